"""A workload: requests as columns, sorted by arrival."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from simkv.errors import Problem, ScenarioError
from simkv.workload.tokens import Contents, IntArray, contents_of_blocks, take_lists

__all__ = ["LONGEST_NS", "Blocks", "IntArray", "Workload", "WorkloadInfo", "previous_faults", "taken_previous"]

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

    def take(self, rows: IntArray) -> Blocks:
        """Blocks of the requests in ``rows``, in that order."""
        where, offsets = take_lists(self.offsets, rows)
        return Blocks(self.ids[where], offsets, self.block_size)


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
        Nanoseconds from the start; ascending, all >= 0. All zero for a closed batch or a closed loop. Of a request
        that another one's end sends (``previous``), the arrival of the first of that chain: it never comes earlier.
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
        Identity of the prompts' contents for prefix caching, as a trace's block ids tell it.
    contents : Contents or None
        The same, token by token and with the answers, of sessions and of generated prefixes; never beside ``blocks``.
    session : int64 array or None
        Session number of each request, -1 for none.
    concurrency : int or None
        Closed loop: so many clients, each sends its next request when its last one ended.
    previous : int64 array or None
        Number of the request whose end sends this one, ``think_ns`` later, however it ended; smaller than the
        request's own number, and nobody else's. -1: it arrives by ``arrival_ns``, or with the next free client of a
        closed loop, which stays with the chain it began until that ends.
    think_ns : int64 array or None
        Pause before request i is sent, after a client of a closed loop became free, or ``previous`` ended.
    info : WorkloadInfo
        Where it came from.

    Raises
    ------
    ScenarioError
        For blocks and contents at once, or a request sent by itself, by a later one, or by one that sends another.
    """

    arrival_ns: IntArray
    input_tokens: IntArray
    output_tokens: IntArray
    request_id: tuple[str, ...]
    max_new_tokens: IntArray | None = None
    ignore_eos: bool = False
    accept: tuple[IntArray, ...] | None = None
    blocks: Blocks | None = None
    contents: Contents | None = None
    session: IntArray | None = None
    concurrency: int | None = None
    previous: IntArray | None = None
    think_ns: IntArray | None = None
    info: WorkloadInfo = field(default_factory=WorkloadInfo)

    def __post_init__(self) -> None:
        problems = []
        if self.blocks is not None and self.contents is not None:
            problems.append(Problem("workload.contents", "is given beside blocks; keep one of the two"))
        if self.previous is not None:
            problems += [
                Problem("workload.previous", f"{self.previous[row]} of request {self.request_id[row]} {message}")
                for row, message in previous_faults(self.previous)[:1]
            ]
        if problems:
            raise ScenarioError("<workload>", problems)

    def __len__(self) -> int:
        return len(self.arrival_ns)

    @property
    def span_s(self) -> float:
        """Seconds from the first to the last arrival."""
        return float(self.arrival_ns[-1] - self.arrival_ns[0]) / 1e9 if len(self) else 0.0

    @property
    def mean_rate(self) -> float:
        """Requests per second over the span; 0 when everything arrives at once.

        Of sessions, the span is that of their first requests; the others come as fast as the server lets them.
        """
        return (len(self) - 1) / self.span_s if self.span_s > 0 else 0.0

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
        # What came later to a workload adds to the digest only where it is there: those of old stay.
        later = {"previous": self.previous}
        if self.contents is not None:
            starts, lengths, offsets = self.contents.starts, self.contents.lengths, self.contents.offsets
            later |= {"starts": starts, "lengths": lengths, "offsets": offsets, "outputs": self.contents.outputs}
        for name, column in later.items():
            if column is not None:
                sha.update(name.encode() + np.ascontiguousarray(column, dtype="<i8").tobytes())
        return sha.hexdigest()

    def identity(self) -> Contents | None:
        """Which tokens the requests are made of, as far as that is known; None where nothing is."""
        if self.contents is not None or self.blocks is None:
            return self.contents
        blocks = self.blocks
        return contents_of_blocks(blocks.ids, blocks.offsets, blocks.block_size, self.input_tokens)

    def take(self, index: IntArray, **changes: Any) -> Workload:
        """Workload of the rows in ``index`` (in that order).

        A request whose predecessor is not among them is sent by the nearest one before that which is, or arrives by
        ``arrival_ns`` if there is none.
        """

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
            blocks=None if self.blocks is None else self.blocks.take(index),
            contents=None if self.contents is None else self.contents.take(index),
            session=rows(self.session),
            previous=None if self.previous is None else taken_previous(self.previous, index),
            think_ns=rows(self.think_ns),
            **changes,
        )


def previous_faults(previous: IntArray) -> list[tuple[int, str]]:
    """Requests that cannot be sent as ``previous`` says (see `Workload`), each with what is wrong.

    Parameters
    ----------
    previous : int64 array, shape (n,)
        Number of the request whose end sends this one, -1 for none.

    Returns
    -------
    list of (int, str)
        Number of the request, and the end of a sentence about its predecessor.
    """
    number = np.arange(len(previous))
    late = dict.fromkeys(np.flatnonzero((previous >= number) | (previous < -1)).tolist(), "does not come before it")
    sent = np.flatnonzero(previous >= 0)
    _, first = np.unique(previous[sent], return_index=True)
    twice = np.delete(sent, first).tolist()
    return sorted((dict.fromkeys(twice, "sends another request already") | late).items())


def taken_previous(previous: IntArray, rows: IntArray) -> IntArray:
    """Predecessors among the requests in ``rows``, as numbers there.

    Parameters
    ----------
    previous : int64 array, shape (n,)
        See `Workload`.
    rows : int64 array, shape (k,)
        Requests kept, in their new order.

    Returns
    -------
    int64 array, shape (k,)
        The nearest request before, through those not kept; -1 where there is none.
    """
    place = np.full(len(previous), -1, np.int64)
    place[rows] = np.arange(len(rows))
    # Ascending, so that the one before is settled already: where a request not kept leads to.
    leads = place.tolist()
    for row in np.flatnonzero((place < 0) & (previous >= 0)).tolist():
        leads[row] = leads[previous[row]]
    taken = np.array(leads, np.int64)[previous[rows]]
    taken[previous[rows] < 0] = -1
    return taken
