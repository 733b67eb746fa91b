"""How long one scheduler step runs on the GPU.

Four kinds, by increasing claim: :class:`Constant`, :class:`Linear`, :class:`Table` (measured decode steps) and
:class:`Roofline` (from the model and the GPU). Each gives integer nanoseconds of the draft worker's part and of the
target worker's part; formulas, defaults and measured errors are in ``docs/steptime.md``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType
from typing import Any, Protocol

from simkv.arch import Arch, Geometry
from simkv.errors import Problem, ScenarioError
from simkv.hardware import GPUS, Gpu
from simkv.tables import is_number, keyword_problems, one_of

__all__ = ["STEPTIME", "Constant", "Linear", "Roofline", "StepTime", "StepWork", "Table", "steptime_problems"]


@dataclass(slots=True)
class StepWork:
    """What one step computes, summed over its batch.

    Parameters
    ----------
    prefill_tokens : int
        Prompt tokens computed (new ones, without cached prefix).
    prefill_pairs : int
        Sum over prefilling requests of ``extend_len * prefix_len + extend_len * (extend_len + 1) // 2``: query/key
        pairs of causal attention.
    prefill_requests : int
        Requests in the prefill part.
    decode_requests : int
        Requests in the decode part.
    decode_context : int
        Sum of the committed lengths of the decoding requests, in tokens.
    decode_window : int
        Sum of ``min(committed length, window)`` of the decoding requests.
    verify_tokens : int
        Tokens a decoding request puts through the target in this step: 1, or the verify width with speculation.
    draft_steps : int
        Draft forward passes in this step (0 without speculation).
    """

    prefill_tokens: int = 0
    prefill_pairs: int = 0
    prefill_requests: int = 0
    decode_requests: int = 0
    decode_context: int = 0
    decode_window: int = 0
    verify_tokens: int = 1
    draft_steps: int = 0


class StepTime(Protocol):
    """Gives the duration of a step."""

    def __call__(self, work: StepWork) -> tuple[int, int]:
        """Nanoseconds of the draft worker's part and of the target worker's part (0 and > 0)."""
        ...


def _check(value: Any, key: str, problems: list[Problem], *, above: bool = False, high: float = inf) -> None:
    """Notes a value that is no number in [0, high] (in (0, high] when ``above``)."""
    if not is_number(value) or value < 0 or value > high or (above and value == 0):
        span = f"a number {'> 0' if above else '>= 0'}{f' and <= {high:g}' if high < inf else ''}"
        problems.append(Problem(f"steptime.{key}", f"{value!r} is not {span}"))


def _refuse(problems: list[Problem]) -> None:
    if problems:
        raise ScenarioError("<steptime>", problems)


@dataclass(frozen=True, kw_only=True)
class Constant:
    """Every step takes the same time.

    Parameters
    ----------
    ms : float
        Target worker's part of any step, ms, > 0.
    draft_ms : float
        One draft forward pass, ms.
    """

    ms: float
    draft_ms: float = 0.0

    def __post_init__(self) -> None:
        problems: list[Problem] = []
        _check(self.ms, "ms", problems, above=True)
        _check(self.draft_ms, "draft_ms", problems)
        _refuse(problems)

    def __call__(self, work: StepWork) -> tuple[int, int]:
        """Nanoseconds of the draft worker's and the target worker's part."""
        return round(work.draft_steps * self.draft_ms * 1e6), max(1, round(self.ms * 1e6))


@dataclass(frozen=True, kw_only=True)
class Linear:
    """A sum of terms; the form for a fit to one's own measurements.

    Parameters
    ----------
    base_ms : float
        Per step, ms.
    per_prefill_token_us : float
        Per computed prompt token, us.
    per_decode_request_us : float
        Per decoding request, us.
    per_context_token_ns : float
        Per token of the decoding requests' contexts, ns.
    draft_ms : float
        One draft forward pass, ms.
    """

    base_ms: float = 0.0
    per_prefill_token_us: float = 0.0
    per_decode_request_us: float = 0.0
    per_context_token_ns: float = 0.0
    draft_ms: float = 0.0

    def __post_init__(self) -> None:
        problems: list[Problem] = []
        for key in ("base_ms", "per_prefill_token_us", "per_decode_request_us", "per_context_token_ns", "draft_ms"):
            _check(getattr(self, key), key, problems)
        _refuse(problems)

    def __call__(self, work: StepWork) -> tuple[int, int]:
        """Nanoseconds of the draft worker's and the target worker's part."""
        target = (
            self.base_ms * 1e6
            + work.prefill_tokens * self.per_prefill_token_us * 1e3
            + work.decode_requests * self.per_decode_request_us * 1e3
            + work.decode_context * self.per_context_token_ns
        )
        return round(work.draft_steps * self.draft_ms * 1e6), max(1, round(target))


@dataclass(frozen=True, kw_only=True)
class Table:
    """Measured decode steps, and a prefill rate.

    Parameters
    ----------
    decode_ms : mapping of int (or its text) to float
        Decoding requests -> ms of a step, as the engine runs it (a verify step, with speculation). Between two rows
        the time is interpolated, above the last one it continues with the last slope (but does not fall), below the
        first one it is the first row's.
    prefill_tokens_per_s : float
        Prompt tokens computed per second; their time is added to the decode part's.
    draft_ms : float
        One draft forward pass, ms.
    """

    decode_ms: Mapping[int | str, float]
    prefill_tokens_per_s: float
    draft_ms: float = 0.0
    _batch: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _ns: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        problems: list[Problem] = []
        _check(self.prefill_tokens_per_s, "prefill_tokens_per_s", problems, above=True)
        _check(self.draft_ms, "draft_ms", problems)
        rows: dict[int, float] = {}
        if not isinstance(self.decode_ms, Mapping) or not self.decode_ms:
            problems.append(Problem("steptime.decode_ms", "is not a table {batch = ms} of at least one row"))
        else:
            for key, value in self.decode_ms.items():
                _check(value, f"decode_ms.{key}", problems, above=True)
                if not str(key).isdecimal() or int(key) < 1:
                    problems.append(Problem(f"steptime.decode_ms.{key}", "is not a batch size, an integer >= 1"))
                elif int(key) in rows:
                    problems.append(Problem(f"steptime.decode_ms.{key}", "is stated twice"))
                else:
                    rows[int(key)] = value
        _refuse(problems)
        batches = tuple(sorted(rows))
        object.__setattr__(self, "_batch", batches)
        object.__setattr__(self, "_ns", tuple(rows[b] * 1e6 for b in batches))

    def _decode_ns(self, requests: int) -> float:
        batch, ns = self._batch, self._ns
        i = bisect_left(batch, requests)
        if i == 0:
            return ns[0]
        last = len(batch) - 1
        if i > last:
            if last == 0:
                return ns[0]
            slope = max(0.0, (ns[last] - ns[last - 1]) / (batch[last] - batch[last - 1]))
            return ns[last] + slope * (requests - batch[last])
        share = (requests - batch[i - 1]) / (batch[i] - batch[i - 1])
        return ns[i - 1] + share * (ns[i] - ns[i - 1])

    def __call__(self, work: StepWork) -> tuple[int, int]:
        """Nanoseconds of the draft worker's and the target worker's part."""
        target = self._decode_ns(work.decode_requests) if work.decode_requests else 0.0
        target += work.prefill_tokens * 1e9 / self.prefill_tokens_per_s
        return round(work.draft_steps * self.draft_ms * 1e6), max(1, round(target))


def _roofline_problems(values: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with those of the roofline's numbers that are stated."""
    problems: list[Problem] = []
    for key in ("memory_efficiency", "compute_efficiency", "expert_efficiency", "link_efficiency"):
        if key in values:
            _check(values[key], key, problems, above=True, high=1)
    for key in ("layer_overhead_us", "allreduce_us", "step_overhead_ms", "draft_step_ms", "draft_weight_bytes"):
        if key in values:
            _check(values[key], key, problems)
    positive = ("kv_bytes", "weight_bits", "dense_weight_bits", "total_params", "active_params")
    for key in (*positive, "num_experts", "experts_per_token"):
        if values.get(key) is not None:
            _check(values[key], key, problems, above=True)
    return problems


_EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """Each part of a step takes the longer of its arithmetic and its memory traffic.

    ``target = linear + decode attention + prefill attention + all-reduce + overhead``, see ``docs/steptime.md``.

    Parameters
    ----------
    gpu : Gpu
        Of each rank.
    arch : Arch
        The target model.
    tp_size : int
        Tensor-parallel ranks.
    kv_bytes : float
        Bytes of one element of the KV cache.
    weight_bits : float or None
        Average bits of a weight as loaded; None: the arch's.
    dense_weight_bits : float or None
        The same for weights outside routed experts, where they differ (MXFP4 models keep them 16-bit); None:
        ``weight_bits``.
    total_params, active_params : float or None
        Parameters of the model, and of those used per token; None: the arch's. A model without experts needs only one.
    num_experts, experts_per_token : int or None
        Routed experts of a layer and how many a token uses; None: the config's. Without them a model whose total
        exceeds its active parameters is refused.
    memory_efficiency, compute_efficiency : float
        Share of the peak bandwidth, of the peak arithmetic rate, that kernels reach; in (0, 1].
    expert_efficiency : float
        What is left of both with routed experts, whose products are many and small; in (0, 1].
    link_efficiency : float
        The same for the link between ranks.
    layer_overhead_us : float
        Fixed time of one layer, us: kernel launches, small kernels, gaps.
    allreduce_us : float
        Latency of one all-reduce, us; two a layer, with ``tp_size > 1``.
    step_overhead_ms : float
        Fixed time of one step on top, ms.
    draft_step_ms : float
        Fixed time of one draft forward pass, ms. 0.24: TPOT 3.15 ms at 3 and 4.33 ms at 8 chained steps.
    draft_weight_bytes : float
        Bytes of weights one draft pass reads, over all ranks, on top of ``draft_step_ms``.

    Raises
    ------
    ScenarioError
        Every parameter that is wrong, or needed and known neither from the arch nor as an argument.
    """

    gpu: Gpu
    arch: Arch
    tp_size: int = 1
    kv_bytes: float = 2.0
    weight_bits: float | None = None
    dense_weight_bits: float | None = None
    total_params: float | None = None
    active_params: float | None = None
    num_experts: int | None = None
    experts_per_token: int | None = None
    memory_efficiency: float = 0.85
    compute_efficiency: float = 0.6
    expert_efficiency: float = 0.7
    link_efficiency: float = 0.8
    layer_overhead_us: float = 60.0
    allreduce_us: float = 10.0
    step_overhead_ms: float = 0.0
    draft_step_ms: float = 0.24
    draft_weight_bytes: float = 0.0

    # Coefficients, in ns: a call is a handful of multiplications.
    _fixed: float = field(init=False, repr=False, compare=False)
    _per_token_compute: float = field(init=False, repr=False, compare=False)
    _per_token_link: float = field(init=False, repr=False, compare=False)
    _dense_read: float = field(init=False, repr=False, compare=False)
    _expert_read: float = field(init=False, repr=False, compare=False)
    _miss: float = field(init=False, repr=False, compare=False)
    _full_read: float = field(init=False, repr=False, compare=False)
    _window_read: float = field(init=False, repr=False, compare=False)
    _state_read: float = field(init=False, repr=False, compare=False)
    _full_pair: float = field(init=False, repr=False, compare=False)
    _full_prefill_pair: float = field(init=False, repr=False, compare=False)
    _window_pair: float = field(init=False, repr=False, compare=False)
    _window: int = field(init=False, repr=False, compare=False)
    _draft: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        arch, tp = self.arch, self.tp_size
        self._check_settings()
        bits = arch.weight_bits if self.weight_bits is None else self.weight_bits
        dense_bits = bits if self.dense_weight_bits is None else self.dense_weight_bits
        dense, expert, routed, heads, hidden = self._facts()

        byte = 1e9 / (self.gpu.bandwidth_bytes_per_s * self.memory_efficiency)
        flop = 1e9 / (self.gpu.flops(bits) * self.compute_efficiency)
        flop16 = 1e9 / (self.gpu.bf16_flops * self.compute_efficiency)
        link = 1e9 / (self.gpu.link_bytes_per_s * self.link_efficiency)
        layers = len(arch.layers)
        full, window = arch.count("full", "mla"), arch.count("sliding", "chunked")

        def put(name: str, value: float) -> None:
            object.__setattr__(self, name, value)

        overhead_us = self.layer_overhead_us + (2 * self.allreduce_us if tp > 1 else 0.0)
        put("_fixed", self.step_overhead_ms * 1e6 + layers * overhead_us * 1e3)
        put("_per_token_compute", 2 * (dense + expert * routed / self.expert_efficiency) / tp * flop)
        put("_per_token_link", 2 * layers * 2 * (tp - 1) / tp * hidden * 2 * link)
        put("_dense_read", dense * dense_bits / 8 / tp * byte)
        put("_expert_read", expert * bits / 8 / tp * byte / self.expert_efficiency)
        put("_miss", 1.0 - routed)
        put("_full_read", full * _elements(arch.full, tp) * self.kv_bytes * byte)
        put("_window_read", window * _elements(arch.sliding, tp) * self.kv_bytes * byte)
        put("_state_read", 2 * arch.state_bytes(tp) * byte)
        put("_full_pair", full * 2 * heads / tp * _width(arch.full) * flop16)
        put("_full_prefill_pair", full * 2 * heads / tp * _prefill_width(arch) * flop16)
        put("_window_pair", window * 2 * heads / tp * _width(arch.sliding) * flop16)
        put("_window", arch.chunk or arch.window or 0)
        put("_draft", self.draft_step_ms * 1e6 + self.draft_weight_bytes / tp * byte)

    def _check_settings(self) -> None:
        problems: list[Problem] = []
        if not isinstance(self.tp_size, int) or self.tp_size < 1:
            problems.append(Problem("model.tp_size", f"{self.tp_size!r} is not an integer >= 1"))
        problems += _roofline_problems(self.__dict__)
        if self.arch.count("compressed"):
            message = f"{self.arch.name} has compressed layers, which the roofline does not know; use linear or table"
            problems.append(Problem("steptime.kind", message))
        _refuse(problems)

    def _facts(self) -> tuple[float, float, float, int, int]:
        """Parameters outside routed experts, in all routed experts, share of experts a token uses, heads, hidden size."""
        arch, config = self.arch, self.arch.config
        problems: list[Problem] = []

        def need(value: Any, place: str, what: str, where: str = "[steptime]") -> Any:
            if value is None:
                key = place.rpartition(".")[2]
                message = f"the roofline needs {what} of {arch.name}, which its config does not state"
                remedy = f"state {key} in {where}, or use another steptime.kind"
                problems.append(Problem(place, f"{message}; {remedy}"))
            return value

        heads, hidden = arch.num_attention_heads, arch.hidden_size
        if arch.count("full", "mla", "sliding", "chunked"):
            need(heads, "model.num_attention_heads", "the number of query heads", "the model's config")
        if self.tp_size > 1:
            need(hidden, "model.hidden_size", "the hidden size", "the model's config")

        total = self.total_params or arch.total_params
        active = self.active_params or arch.active_params
        if self.active_params is None and active == arch.total_params:
            active = total  # a dense model, whichever of its counts is used
        experts = self.num_experts or next((config[key] for key in _EXPERT_KEYS if config.get(key)), None)
        chosen = self.experts_per_token or config.get("num_experts_per_tok") or config.get("moe_top_k")
        mixture = (experts or 0) > 1 or (total is not None and active is not None and active < total)
        need(total if mixture else total or active, "steptime.total_params", "the number of parameters")
        if mixture:
            need(active, "steptime.active_params", "the parameters a token uses")
            need(experts, "steptime.num_experts", "the number of routed experts of a layer")
            need(chosen, "steptime.experts_per_token", "how many experts a token uses")
        _refuse(problems)

        if not mixture:
            return float(total or active or 0), 0.0, 1.0, heads or 0, hidden or 0
        assert total and active and experts and chosen
        routed = chosen / experts
        if not routed < 1 or not routed * total <= active <= total:
            message = f"{active:g} active of {total:g} parameters with {chosen} of {experts} experts is not possible"
            _refuse([Problem("steptime.active_params", message)])
        expert = (total - active) / (1 - routed)
        return total - expert, expert, routed, heads or 0, hidden or 0

    def __call__(self, work: StepWork) -> tuple[int, int]:
        """Nanoseconds of the draft worker's and the target worker's part."""
        decode, verify, prefill = work.decode_requests, work.verify_tokens, work.prefill_tokens
        context, window, pairs = work.decode_context, work.decode_window, work.prefill_pairs
        tokens = prefill + decode * verify
        target = self._fixed + tokens * self._per_token_link
        compute = tokens * self._per_token_compute
        memory = self._dense_read + self._expert_read * (1.0 - self._miss**tokens)
        target += max(memory, compute)
        if decode:
            memory = context * self._full_read + window * self._window_read + decode * self._state_read
            compute = verify * (context * self._full_pair + window * self._window_pair)
            target += max(memory, compute)
        if pairs:
            target += pairs * self._full_prefill_pair + min(pairs, prefill * self._window) * self._window_pair
        return int(work.draft_steps * self._draft + 0.5), int(target + 0.5) or 1


def _elements(geometry: Geometry | None, tp_size: int) -> int:
    return geometry.elements(tp_size) if geometry else 0


def _width(geometry: Geometry | None) -> int:
    """Multiply-adds of one query head and one key: the key's width and the value's (a latent serves as both)."""
    return geometry.head_dim + (geometry.v_head_dim or geometry.head_dim) if geometry else 0


def _prefill_width(arch: Arch) -> int:
    """The same in prefill, where engines expand a latent to ordinary keys and values, if the config tells their width."""
    keys = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    expanded = [int(arch.config.get(key) or 0) for key in keys]
    return sum(expanded) if arch.full and arch.full.latent and all(expanded) else _width(arch.full)


def steptime_problems(table: Mapping[str, Any]) -> list[Problem]:
    """Everything that is wrong in a ``[steptime]`` table, whatever the model and the GPU.

    Parameters
    ----------
    table : mapping
        ``kind`` (a key of :data:`STEPTIME`) and the kind's own parameters. The roofline's ``gpu`` is a name; its
        model, ranks and bytes of a KV element come from elsewhere.
    """
    own = {key: value for key, value in table.items() if key != "kind"}
    family: Any = STEPTIME[table["kind"]]
    if family is Roofline:
        name = own.pop("gpu", None)
        known = name is None or (isinstance(name, str) and name.lower() in GPUS)
        problems = [] if known else [Problem("steptime.gpu", one_of(name, GPUS))]
        problems += keyword_problems("steptime", family, own, hidden=("arch", "tp_size", "kv_bytes", "gpu"))
        return problems + _roofline_problems(own)
    problems = keyword_problems("steptime", family, own)
    if problems:
        return problems
    try:
        family(**own)
    except ScenarioError as error:
        return list(error.problems)
    return []


STEPTIME: Mapping[str, type[StepTime]] = MappingProxyType(
    {"constant": Constant, "linear": Linear, "table": Table, "roofline": Roofline}
)
