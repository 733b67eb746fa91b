"""What every engine wing shares with the clock and with the reports: plans, steps, the protocol."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from simkv.errors import EngineFault
from simkv.markup import html_table
from simkv.steptime import StepWork
from simkv.workload.request import IntArray
from simkv.workload.tokens import Tokens

__all__ = [
    "EVICTION_CAUSES",
    "LIMITS",
    "Charge",
    "Disagreement",
    "Engine",
    "Event",
    "Infeasible",
    "KvShape",
    "Plan",
    "PoolPlan",
    "Request",
    "Step",
    "Usage",
]

LIMITS = ("arrival", "full", "swa", "rows", "chunk")

EVICTION_CAUSES = ("prefill", "decode", "retraction")
"""What a prefix cache is asked to make room for."""

Mapping = Literal["none", "target", "identity"]


class KvShape(NamedTuple):
    """What one token takes in one layer on one rank.

    Parameters
    ----------
    kv_heads : int
        Heads of the rank.
    head_dim, v_head_dim : int
        Elements of a key and of a value head; a latent layer has no values of its own: 0.
    dtype : str
        ``bfloat16``, ``fp8_e4m3``, ``fp8_e5m2`` or ``mxfp8``.
    """

    kv_heads: int = 0
    head_dim: int = 0
    v_head_dim: int = 0
    dtype: str = "bfloat16"


@dataclass(frozen=True)
class PoolPlan:
    """One pool of K/V tensors on one rank.

    Parameters
    ----------
    worker : str
        ``target``, or ``draft0``, ``draft1`` ... (one a draft runner, that is one a depth with multi-layer EAGLE).
    pool : str
        ``full`` or ``swa``.
    layers : int
        Layers whose K/V the pool holds.
    tokens : int
        Capacity in tokens.
    rows : int
        Rows of each tensor: tokens plus one padding page (0 when the pool has no layer).
    bytes_per_token : int
        Bytes one token takes in all layers of the pool.
    bytes : int
        ``rows * bytes_per_token``: what is allocated.
    mapping : str
        How a full-pool slot finds its row: ``none`` (the same index), ``target`` (the target's full-to-SWA table),
        ``identity`` (a table of its own that maps every slot to itself).
    budgeted_bytes : int
        What the memory budget charged for this pool (never the padding page).
    shape : KvShape
        Heads, widths and dtype of its layers.
    window : int or None
        Earlier tokens the attention of its layers reads; None: all of them.
    """

    worker: str
    pool: Literal["full", "swa"]
    layers: int
    tokens: int
    rows: int
    bytes_per_token: int
    bytes: int
    mapping: Mapping
    budgeted_bytes: int
    shape: KvShape = KvShape()
    window: int | None = None

    @property
    def indexed_by(self) -> Literal["full", "swa"]:
        """Pool of the target whose slots index this one."""
        return "swa" if self.pool == "swa" and self.mapping == "target" else "full"


@dataclass(frozen=True)
class Disagreement:
    """Budget and allocation of a draft pool disagree.

    Parameters
    ----------
    code : str
        ``K1`` ... ``K11``.
    title : str
        The kind of disagreement, in a few words.
    detail : str
        What is charged and what is allocated here.
    bytes : int
        Over-commit (positive) or stranded memory (negative) it causes; 0 where it is not a matter of bytes.
    """

    code: str
    title: str
    detail: str
    bytes: int = 0


@dataclass(frozen=True)
class Infeasible:
    """Why the engine would refuse to start.

    Parameters
    ----------
    message : str
        Which pool, need, have.
    engine_error : str
        Name of the exception the engine raises.
    fixes : tuple of str
        The smallest change of each knob that would make it start, one a line.
    """

    message: str
    engine_error: str
    fixes: tuple[str, ...] = ()

    def text(self) -> str:
        """Message and remedies."""
        return "\n".join([self.message, *(f"  it would fit with {fix}" for fix in self.fixes)])


@dataclass(frozen=True)
class Charge:
    """One line of the memory budget: a name, bytes, and the arithmetic behind it."""

    name: str
    bytes: int
    arithmetic: str = ""


@dataclass(frozen=True)
class Plan:
    """Sizes of every pool before the first request.

    Attributes are the keys of :meth:`to_dict`; byte figures are per rank.
    """

    engine: str
    model: str
    configurator: str
    kv_bytes: int
    bytes_per_token: float
    full_bytes_per_token_layer: int
    swa_bytes_per_token_layer: int
    layers: dict[str, int]
    draft_layers: dict[str, int]
    page_size: int
    window: int | None
    max_total_num_tokens: int | None
    full_max_total_num_tokens: int | None
    swa_max_total_num_tokens: int | None
    max_running_requests: int | None
    routing: str
    pools: tuple[PoolPlan, ...] = ()
    charges: tuple[Charge, ...] = ()
    slack_bytes: int | None = None
    disagreements: tuple[Disagreement, ...] = ()
    notes: tuple[str, ...] = ()
    swa_cap: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    infeasible: Infeasible | None = None

    @property
    def padding_bytes(self) -> int:
        """Bytes of the padding pages, which no budget charges."""
        return sum((p.rows - p.tokens) * p.bytes_per_token for p in self.pools if p.rows)

    @property
    def overcommit_bytes(self) -> int:
        """Allocated minus budgeted bytes, padding pages included; negative is stranded memory."""
        return sum(p.bytes - p.budgeted_bytes for p in self.pools)

    @property
    def fits_slack(self) -> bool | None:
        """Whether the over-commit fits beside the static budget; None when the slack is not known."""
        return None if self.slack_bytes is None else self.overcommit_bytes <= self.slack_bytes

    def _repr_html_(self) -> str:
        """What a notebook shows: the sizes, or why the server would not start."""
        head = f"<b>{escape(self.model)}</b> on {escape(self.engine)}, routing {escape(self.routing)}"
        if self.infeasible is not None:
            head += f"<br>would not start ({escape(self.infeasible.engine_error)}): {escape(self.infeasible.text())}"
        heads = ("worker", "pool", "layers", "tokens", "B/token", "allocated B", "budgeted B", "mapping")
        rows = [
            (p.worker, p.pool, p.layers, p.tokens, p.bytes_per_token, p.bytes, p.budgeted_bytes, p.mapping)
            for p in self.pools
        ]
        over = f"allocated beyond the budget: {self.overcommit_bytes:,} B"
        return f"<p>{head}</p>{html_table(heads, rows) + f'<p>{over}</p>' if rows else ''}"

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values: what ``simkv size --json`` prints."""
        pools = [
            {
                "worker": p.worker,
                "pool": p.pool,
                "layers": p.layers,
                "tokens": p.tokens,
                "rows": p.rows,
                "bytes": p.bytes,
                "bytes_per_token": p.bytes_per_token,
                "mapping": p.mapping,
                "budgeted_bytes": p.budgeted_bytes,
                **p.shape._asdict(),
                "window": p.window,
            }
            for p in self.pools
        ]
        infeasible = None
        if self.infeasible is not None:
            infeasible = {
                "engine_error": self.infeasible.engine_error,
                "message": self.infeasible.message,
                "fixes": list(self.infeasible.fixes),
            }
        return {
            "engine": self.engine,
            "model": self.model,
            "configurator": self.configurator,
            "routing": self.routing,
            "kv_bytes": self.kv_bytes,
            "bytes_per_token": self.bytes_per_token,
            "full_bytes_per_token_layer": self.full_bytes_per_token_layer,
            "swa_bytes_per_token_layer": self.swa_bytes_per_token_layer,
            "layers": dict(self.layers),
            "draft_layers": dict(self.draft_layers),
            "page_size": self.page_size,
            "window": self.window,
            "swa_cap": self.swa_cap,
            "max_total_num_tokens": self.max_total_num_tokens,
            "full_max_total_num_tokens": self.full_max_total_num_tokens,
            "swa_max_total_num_tokens": self.swa_max_total_num_tokens,
            "max_running_requests": self.max_running_requests,
            "pools": pools,
            "charges": [{"name": c.name, "bytes": c.bytes, "arithmetic": c.arithmetic} for c in self.charges],
            "overcommit_bytes": self.overcommit_bytes,
            "padding_bytes": self.padding_bytes,
            "slack_bytes": self.slack_bytes,
            "disagreements": [
                {"code": d.code, "title": d.title, "detail": d.detail, "bytes": d.bytes} for d in self.disagreements
            ],
            "settings": dict(self.settings),
            "notes": list(self.notes),
            "infeasible": infeasible,
        }


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it reaches the engine.

    Parameters
    ----------
    name : str
        Unique name.
    input_tokens : int
        Prompt length, >= 1.
    max_new_tokens : int
        What the client asked for.
    stop_tokens : int or None
        Output length at which the model emits its end of sequence; None: the request ends by length.
    ignore_eos : bool
        As the request's sampling parameter.
    tokens : Tokens or None
        What prompt and answer are made of; None: nothing that another request has too.
    """

    name: str
    input_tokens: int
    max_new_tokens: int
    stop_tokens: int | None = None
    ignore_eos: bool = False
    tokens: Tokens | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """Something worth a line in ``events``.

    Parameters
    ----------
    event : str
        retraction, abort, refusal, clip or fault.
    request : int
        Handle of the request, -1 for none.
    pool : str
        ``full``, ``swa``, or ``-`` for none.
    tokens : int
        Tokens it is about.
    cause : str
        Why, without figures: equal causes are one line of a legend.
    detail : str
        Why, in one sentence with its figures; empty where the cause says it all.
    """

    event: str
    request: int
    pool: str
    tokens: int
    cause: str
    detail: str = ""


@dataclass(slots=True, eq=False)
class Step:
    """What the engine decided to launch.

    Parameters
    ----------
    kind : str
        ``prefill`` (also when decoding rows ride along) or ``decode``.
    batch : int64 array
        Request handles in batch order.
    extend_lens, prefix_lens : list of int
        Per row of a prefill step: tokens computed, tokens before them. Empty for decode.
    hit_lens : list of int
        Per row of a prefill step: tokens found in the prefix cache when it was admitted, 0 for one that goes on.
    mixed_decode : int
        How many rows at the end of a prefill batch are decoding rows (mixed chunk).
    verify : bool
        Rows of a decode step put a draft through the target, and are accepted in part.
    verify_index : int64 array or None
        How many verifies each row launched before this one, dropped ones included.
    chunked : int
        Handle of the prompt that is cut and goes on in a later step, or -1.
    stamp : int
        The engine's own mark of when the step was planned.
    accepted : int64 array or None
        Whoever launches a verify step keeps its accepted lengths here until the result is processed.
    work : StepWork
        What the step computes, for its duration.
    """

    kind: Literal["prefill", "decode"]
    batch: IntArray
    extend_lens: list[int]
    prefix_lens: list[int]
    hit_lens: list[int] = field(default_factory=list)
    mixed_decode: int = 0
    verify: bool = False
    verify_index: IntArray | None = None
    chunked: int = -1
    stamp: int = 0
    accepted: IntArray | None = None
    work: StepWork = field(default_factory=StepWork)


class Usage(NamedTuple):
    """What an engine says of itself once a plan is made: a row of the timeline.

    Parameters
    ----------
    num_running_reqs, num_queue_reqs : int
        Requests that hold KV; requests that wait.
    num_retracted_reqs, num_aborted_reqs : int
        Since the last call.
    full_available, swa_available : int
        Tokens that are free; -1 where there is no such pool.
    full_evictable, full_protected, swa_evictable, swa_protected : int
        Tokens in the prefix cache that can be evicted, and that running requests hold there.
    rows_free : int
        Request slots.
    overallocated_tokens : int
        Allocated beyond the committed tokens.
    window_evicted_swa_tokens : int
        Since the last call.
    cache_evicted_full_prefill ... cache_evicted_swa_retraction : int
        Tokens evicted from the prefix cache since the last call, by pool and by what room was made for
        (:data:`EVICTION_CAUSES`).
    live_tokens, live_window_tokens : int
        Committed tokens of all requests that hold KV; of those, what a sliding layer can still see.
    limit : int
        Position in :data:`LIMITS` of what kept requests waiting.
    new_token_ratio : float
        Share of a request's remaining output that admission reserves.
    """

    num_running_reqs: int
    num_queue_reqs: int
    num_retracted_reqs: int
    num_aborted_reqs: int
    full_available: int
    full_evictable: int
    full_protected: int
    swa_available: int
    swa_evictable: int
    swa_protected: int
    rows_free: int
    overallocated_tokens: int
    window_evicted_swa_tokens: int
    cache_evicted_full_prefill: int
    cache_evicted_full_decode: int
    cache_evicted_full_retraction: int
    cache_evicted_swa_prefill: int
    cache_evicted_swa_decode: int
    cache_evicted_swa_retraction: int
    live_tokens: int
    live_window_tokens: int
    limit: int
    new_token_ratio: float


class Engine(Protocol):
    """The seam between clock and engine: all that the clock knows of one."""

    @property
    def overlap(self) -> bool:
        """Whether a result is processed after the next step was launched."""
        ...

    def front_end_refusal(self, request: Request) -> tuple[str, str] | None:
        """Cause and detail of an error of the server's front end, before the scheduler sees the request; None: none."""
        ...

    def submit(self, request: Request) -> int:
        """Take a request; returns its handle. A request that can never fit is refused by the engine's own rule."""
        ...

    def schedule(self) -> Step | None:
        """Decide the next step and allocate for it; None when nothing can run."""
        ...

    def complete(self, step: Step, accepted: np.ndarray[Any, Any] | None) -> list[int]:
        """Process the result of a launched step; returns handles that finished."""
        ...

    def idle(self) -> None:
        """Nothing was launched and nothing is in flight."""
        ...

    def is_empty(self) -> bool:
        """Nothing waits, runs or is half prefilled."""
        ...

    def break_stall(self) -> bool:
        """Give up the request for which nothing will ever run again; False where the engine would stall instead."""
        ...

    def diagnose_stall(self) -> EngineFault:
        """Name why nothing will ever run again."""
        ...

    def drain_events(self) -> list[Event]:
        """Events since the last call."""
        ...

    def usage(self, step: Step | None) -> Usage:
        """Figures after a plan; ``step`` is what was planned."""
        ...

    def output_tokens(self, handles: IntArray) -> IntArray:
        """Tokens each request has generated so far, shape of ``handles``."""
        ...

    def finished_len(self, handle: int) -> int:
        """Output length a request finished with, -1 while it has not."""
        ...

    def retractions(self, handle: int) -> int:
        """How often a request was retracted."""
        ...

    def check(self) -> None:
        """Check conservation of every pool; raises InvariantError."""
        ...
