"""The allocation log as a replay reads it: arrays, checked before anything is executed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simkv.allocations import CAUSES, COLUMNS, OPERATIONS
from simkv.errors import ReplayMismatch

__all__ = ["ReplayLog", "read_log"]

_LISTS = {"slots": np.int32, "peers": np.int32, "tokens": np.int64}
_CODES = {"operation": tuple(OPERATIONS), "cause": CAUSES}
# The last operations on a slot that a message names.
_HISTORY = 5
# Calls that may be about many requests; any other is one row.
_MANY = ("open", "allocate", "compute")
# Calls that are a request's own; a freed slot may be of one that nobody knows.
_OWNED = ("arrive", "open", "hit", "allocate", "compute", "insert", "close")
_SLOTTED = ("hit", "allocate", "insert", "move")


@dataclass(frozen=True, eq=False)
class ReplayLog:
    """Columns of the log (:data:`simkv.allocations.COLUMNS`), one entry a row.

    Parameters
    ----------
    columns : dict of arrays
        By name; ``operation`` and ``cause`` are numbers into :data:`simkv.allocations.OPERATIONS` and ``CAUSES``.
    flat : dict of arrays
        ``slots``, ``peers``, ``tokens``: the values of all rows, one row after the other.
    offsets : dict of arrays
        Where each row's values begin, and where the last one's end.
    names : list of str
        Name of each request, by its number in the log.
    """

    columns: dict[str, NDArray[Any]]
    flat: dict[str, NDArray[Any]]
    offsets: dict[str, NDArray[np.int64]]
    names: list[str]
    calls: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        call = self.columns["call"]
        firsts = np.flatnonzero(np.diff(call, prepend=-1))
        object.__setattr__(self, "calls", np.append(firsts, len(call)))

    def __len__(self) -> int:
        return len(self.columns["call"])

    def each_call(self) -> Iterator[tuple[str, int, int]]:
        """Operation, first row and last row + 1 of every call."""
        bounds = self.calls.tolist()
        names = tuple(OPERATIONS)
        codes = self.columns["operation"][self.calls[:-1]].tolist()
        for code, first, stop in zip(codes, bounds[:-1], bounds[1:], strict=True):
            yield names[code], first, stop

    def operation(self, row: int) -> str:
        """Name of a row's operation."""
        return tuple(OPERATIONS)[int(self.columns["operation"][row])]

    def are(self, *operations: str) -> NDArray[np.bool_]:
        """Which rows are one of these operations."""
        codes = [tuple(OPERATIONS).index(name) for name in operations]
        found: NDArray[np.bool_] = np.isin(self.columns["operation"], codes)
        return found

    def part(self, name: str, first: int, stop: int) -> NDArray[Any]:
        """Slots, peers or tokens of rows ``first`` up to ``stop - 1``."""
        offsets = self.offsets[name]
        return self.flat[name][offsets[first] : offsets[stop]]

    def who(self, request: int) -> str:
        """A request's name, for messages."""
        return f"request {self.names[request]!r}" if 0 <= request < len(self.names) else "no request"

    def history(self, slot: int, row: int) -> str:
        """The last operations on a slot, up to the call of a row, a line each."""
        offsets = self.offsets["slots"]
        stop = int(offsets[self.calls[np.searchsorted(self.calls, row, side="right")]])
        places = np.flatnonzero(self.flat["slots"][:stop] == slot)
        rows = np.unique(np.searchsorted(offsets, places, side="right") - 1)[-_HISTORY:]
        lines = [f"    {self.line(int(one))}" for one in rows]
        return "\n".join([f"  the last operations on slot {slot:,}:", *lines])

    def line(self, row: int) -> str:
        """A row in words."""
        c = self.columns
        cause = CAUSES[int(c["cause"][row])]
        tokens = f"[{int(c['begin'][row]):,}, {int(c['end'][row]):,})"
        why = "" if cause == "-" else f" ({cause})"
        return f"step {int(c['step'][row])}: {self.operation(row)}{why}, {self.who(int(c['request'][row]))} tokens {tokens}"


def read_log(table: pa.Table, names: list[str]) -> ReplayLog:
    """Read the table of a run.

    Parameters
    ----------
    table : pyarrow.Table
        What :func:`simkv.alloctable.allocation_table` makes.
    names : list of str
        Names of the requests.

    Raises
    ------
    ReplayMismatch
        A column is missing or is of another kind, or a row contradicts itself.
    """
    lacking = [name for name in (*COLUMNS, *_LISTS) if name not in table.column_names]
    if lacking:
        raise ReplayMismatch(f"the log has no column {', '.join(lacking)}: it is no allocation log of this version")
    try:
        columns = {name: _column(table, name) for name in COLUMNS}
        lists = {name: _list(table, name, dtype) for name, dtype in _LISTS.items()}
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise ReplayMismatch(f"the log cannot be read: {error}") from None
    log = ReplayLog(
        columns,
        {name: values for name, (values, _) in lists.items()},
        {name: offsets for name, (_, offsets) in lists.items()},
        names,
    )
    _check(log)
    return log


def _one(table: pa.Table, name: str) -> Any:
    column = table.column(name)
    if column.null_count:
        raise ValueError(f"column {name} has empty places")
    found = column.combine_chunks()
    return found.chunk(0) if isinstance(found, pa.ChunkedArray) else found


def _column(table: pa.Table, name: str) -> NDArray[Any]:
    column = _one(table, name)
    if name not in _CODES:
        if not pa.types.is_integer(column.type):
            raise ValueError(f"column {name} is {column.type}, not whole numbers")
        return np.asarray(column.to_numpy(zero_copy_only=False)).astype(np.int64)
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    known = _CODES[name]
    said = column.dictionary.to_pylist()
    wrong = [value for value in said if value not in known]
    if wrong:
        raise ValueError(f"{name} {wrong[0]!r} is not one of {', '.join(known)}")
    place = np.array([known.index(value) for value in said] or [0], np.int64)
    codes: NDArray[Any] = place[column.indices.to_numpy(zero_copy_only=False)]
    return codes


def _list(table: pa.Table, name: str, dtype: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
    column = _one(table, name)
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_integer(kind.value_type):
        raise ValueError(f"column {name} is {kind}, not lists of whole numbers")
    offsets = np.asarray(column.offsets.to_numpy()).astype(np.int64)
    values = column.values.slice(offsets[0], offsets[-1] - offsets[0])
    if values.null_count:
        raise ValueError(f"lists of {name} have empty places")
    found = np.asarray(values.to_numpy(zero_copy_only=False))
    if (found != found.astype(dtype)).any():
        raise ValueError(f"{name} are numbers too large")
    return found.astype(dtype), offsets - offsets[0]


def _check(log: ReplayLog) -> None:
    """Rows that contradict themselves."""
    c = log.columns
    numbers = {name: np.diff(offsets) for name, offsets in log.offsets.items()}
    spans = c["end"] - c["begin"]
    slotted, moved = log.are(*_SLOTTED), log.are("move")
    mapped = log.are("allocate") & (numbers["peers"] > 0)
    empty = np.zeros(len(log), np.bool_)
    empty[
        np.searchsorted(log.offsets["tokens"], 2 * np.flatnonzero(log.flat["tokens"][1::2] < 1), side="right") - 1
    ] = True
    rules = [
        ((c["begin"] < 0) | (spans < 0), "its token range is none"),
        ((c["request"] < -1) | (c["request"] >= len(log.names)), f"there are {len(log.names):,} requests"),
        (log.are(*_OWNED) & (c["request"] < 0), "it is nobody's"),
        (numbers["tokens"] % 2 > 0, "a run of tokens is a token and a length"),
        (empty, "a run of tokens is empty"),
        (slotted & (numbers["slots"] != spans), "not a slot for every token"),
        ((moved | mapped) & (numbers["peers"] != spans), "not a peer for every token"),
        (log.are("compute") & ((c["kept"] < 0) | (c["kept"] > spans)), "more tokens are kept than computed"),
        (np.diff(c["call"], prepend=0) < 0, "its call is older than the one before"),
    ]
    for wrong, what in rules:
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise ReplayMismatch(f"row {row} of the log contradicts itself: {what}\n  {log.line(row)}")
    # Rows of one call follow each other, and what is said of the call is the same in all of them.
    same = np.diff(c["call"]) == 0
    alike = ("operation", "step", "cause", "full_available", "swa_available")
    differ = np.any([np.diff(c[name]) != 0 for name in alike], axis=0)
    mixed = np.flatnonzero(same & (differ | ~log.are(*_MANY)[1:]))
    if len(mixed):
        row = int(mixed[0]) + 1
        raise ReplayMismatch(f"row {row} of the log cannot be of one call with the row before it\n  {log.line(row)}")
