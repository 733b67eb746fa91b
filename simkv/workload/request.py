"""A workload: requests as columns, sorted by arrival."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simkv.workload.tokens import Contents, contents_of_blocks

__all__ = ["LONGEST_NS", "Blocks", "IntArray", "Workload", "WorkloadInfo"]

IntArray = NDArray[np.int64]

# A hundred years: sums of clock and durations stay inside 64 bits.
LONGEST_NS = round(100 * 365.25 * 86400 * 1e9)


@dataclass(frozen=True)
class Blocks:
    """Identity of prompt contents: equal ids after equal ids are equal tokens.

    Parameters
    ----------
    ids : int64 array, shape (m,)
        Block ids of all requests, one request after the other.
    offsets : int64 array, shape (n + 1,)
        Request ``i`` owns ``ids[offsets[i]:offsets[i + 1]]``.
    block_size : int
        Tokens a block covers (the last block of a prompt may be partial).
    """

    ids: IntArray
    offsets: IntArray
    block_size: int


@dataclass(frozen=True)
class WorkloadInfo:
    """What was read or generated, for the report and for provenance.

    Parameters
    ----------
    source : str
        File name, or the generator's name.
    format : str
        Trace format (``azure``, ``mooncake`` ...) or generator kind.
    time_unit : str
        Unit the time stamps were read in, with how it was decided.
    rows : int
        Rows read (before limits and refusals).
    zero_output : int
        Requests that ask for no output token.
    out_of_order : int
        Rows that arrived earlier than the row before them in the file.
    notes : tuple of str
        Anything a person should know (rebased times, clipped rows, a closed batch ...).
    """

    source: str = ""
    format: str = ""
    time_unit: str = ""
    rows: int = 0
    zero_output: int = 0
    out_of_order: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Workload:
    """Requests in arrival order (ties keep file order).

    Parameters
    ----------
    arrival_ns : int64 array, shape (n,)
        Nanoseconds from the start; ascending, all >= 0. All zero for a closed batch or a closed loop.
    input_tokens, output_tokens : int64 array, shape (n,)
        Prompt length (>= 1) and number of tokens the model generates (>= 0).
    request_id : tuple of str, length n
        Unique names, as in the trace (or the row number).
    max_new_tokens : int64 array or None
        What the client asked for at most; None: exactly the output length (the request ends by length).
    ignore_eos : bool
        Whether requests carry ``ignore_eos`` (a fixed-length benchmark does).
    accept : tuple of int64 arrays or None
        Per request, accepted lengths (bonus included) of its verify steps, cycled; None: a model draws them.
    blocks : Blocks or None
        Identity of the prompts' contents for prefix caching.
    session : int64 array or None
        Session number of each request, -1 for none.
    concurrency : int or None
        Closed loop: so many clients, each sends its next request when its last one ended.
    think_ns : int64 array or None
        Closed loop: pause of a client before it sends request i.
    info : WorkloadInfo
        Where it came from.
    """

    arrival_ns: IntArray
    input_tokens: IntArray
    output_tokens: IntArray
    request_id: tuple[str, ...]
    max_new_tokens: IntArray | None = None
    ignore_eos: bool = False
    accept: tuple[IntArray, ...] | None = None
    blocks: Blocks | None = None
    session: IntArray | None = None
    concurrency: int | None = None
    think_ns: IntArray | None = None
    info: WorkloadInfo = field(default_factory=WorkloadInfo)

    def __len__(self) -> int:
        return len(self.arrival_ns)

    @property
    def span_s(self) -> float:
        """Seconds from the first to the last arrival."""
        return float(self.arrival_ns[-1] - self.arrival_ns[0]) / 1e9 if len(self) else 0.0

    @property
    def mean_rate(self) -> float:
        """Requests per second over the span; 0 when everything arrives at once."""
        return (len(self) - 1) / self.span_s if self.span_s > 0 else 0.0

    def identity(self) -> Contents | None:
        """What prompts and answers are made of; None: no request shares anything with another."""
        if self.blocks is None:
            return None
        return contents_of_blocks(self.blocks.ids, self.blocks.offsets, self.blocks.block_size, self.input_tokens)

    def digest(self) -> str:
        """SHA-256 over the request columns: two workloads with the same digest simulate alike."""
        sha = hashlib.sha256()
        for column in (self.arrival_ns, self.input_tokens, self.output_tokens, self.max_new_tokens, self.think_ns):
            sha.update(b"-" if column is None else np.ascontiguousarray(column, dtype="<i8").tobytes())
        sha.update("\0".join(self.request_id).encode())
        sha.update(f"{self.ignore_eos}{self.concurrency}".encode())
        for part in self.accept or ():
            sha.update(np.ascontiguousarray(part, dtype="<i8").tobytes() + b";")
        if self.blocks is not None:
            sha.update(f"{self.blocks.block_size}".encode())
            sha.update(np.ascontiguousarray(self.blocks.ids, dtype="<i8").tobytes())
            sha.update(np.ascontiguousarray(self.blocks.offsets, dtype="<i8").tobytes())
        return sha.hexdigest()

    def take(self, index: IntArray, **changes: Any) -> Workload:
        """Workload of the rows in ``index`` (in that order)."""
        blocks = self.blocks
        if blocks is not None:
            lengths = np.diff(blocks.offsets)[index]
            offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
            parts = [blocks.ids[blocks.offsets[i] : blocks.offsets[i + 1]] for i in index]
            ids = np.concatenate(parts) if parts else np.empty(0, np.int64)
            blocks = Blocks(ids, offsets, blocks.block_size)

        def rows(column: IntArray | None) -> IntArray | None:
            return None if column is None else column[index]

        return replace(
            self,
            arrival_ns=self.arrival_ns[index],
            input_tokens=self.input_tokens[index],
            output_tokens=self.output_tokens[index],
            request_id=tuple(self.request_id[i] for i in index),
            max_new_tokens=rows(self.max_new_tokens),
            accept=None if self.accept is None else tuple(self.accept[i] for i in index),
            blocks=blocks,
            session=rows(self.session),
            think_ns=rows(self.think_ns),
            **changes,
        )
