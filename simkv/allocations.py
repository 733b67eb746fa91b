"""The allocation log: every slot that changed hands in a run, in order, as columns.

One row stands for one stretch of one request's tokens (or of cached tokens) in one call; a call of the allocator may be
many rows, so that a step of 256 requests costs 256 places in typed arrays and no objects. Slot ids are kept beside the
rows in one flat array.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simkv.workload.tokens import IntArray, Tokens

__all__ = ["CAUSES", "COLUMNS", "OPERATIONS", "AllocationLog"]

OPERATIONS: Mapping[str, str] = MappingProxyType(
    {
        "arrive": "a request is queued; tokens: first token and length of each of its runs",
        "open": "a request gets a row",
        "hit": "its row begins with cached slots",
        "allocate": "slots for new tokens; peers: their SWA slots",
        "compute": "a step writes K and V of these tokens; the first kept of them are the request's",
        "insert": "the prefix cache holds these tokens now, and the row has the cache's slots",
        "move": "SWA halves move from the slots in peers to those in slots",
        "free": "both halves of slots are free",
        "free_full": "the full half of slots is free, their SWA half went before",
        "free_swa": "the SWA half of slots is free",
        "close": "the row is given back",
        "begin_group": "what is freed from here on can be handed out only after end_group",
        "end_group": "it can",
    }
)
"""Operations, and what each means. Where the model has one pool for all layers, both halves of a slot are that slot."""

CAUSES = (
    "-",
    "prefill",
    "decode",
    "verify",
    "window",
    "insert",
    "finish",
    "retraction",
    "abort",
    "room for prefill",
    "room for decode",
    "room for retraction",
)
"""Why: what is computed, or what a free is due to (``insert``: the cache has the tokens already; ``room for ...``: evicted)."""

COLUMNS = {
    "call": np.int32,
    "step": np.int32,
    "operation": np.int8,
    "cause": np.int8,
    "request": np.int32,
    "begin": np.int32,
    "end": np.int32,
    "kept": np.int32,
    "full_available": np.int32,
    "swa_available": np.int32,
}
"""Columns of a row; ``full_available`` and ``swa_available`` are what the simulation counts as free after the call."""

_LISTS = ("slots", "peers", "tokens")
_NUMBER = {name: number for number, name in enumerate(OPERATIONS)}
_CAUSE = {name: number for number, name in enumerate(CAUSES)}


class _Flat:
    """A growing array of integers."""

    def __init__(self, dtype: Any) -> None:
        self._data: NDArray[Any] = np.empty(1 << 12, dtype)
        self._size = 0

    def extend(self, values: Any) -> None:
        end = self._size + len(values)
        if end > len(self._data):
            grown = np.empty(2 * end, self._data.dtype)
            grown[: self._size] = self._data[: self._size]
            self._data = grown
        self._data[self._size : end] = values
        self._size = end

    @property
    def values(self) -> NDArray[Any]:
        return self._data[: self._size]


class AllocationLog:
    """Written while an engine runs.

    Attributes
    ----------
    step : int
        Number of the plan at hand: the row of the timeline.
    counts : tuple of (int, int)
        Free tokens of the full and of the SWA pool, -1 for none; whoever writes rows keeps it true.
    """

    def __init__(self) -> None:
        kinds = [*COLUMNS.items(), *((f"num_{name}", np.int32) for name in _LISTS)]
        self._rows = np.zeros(1 << 10, np.dtype([(name, dtype) for name, dtype in kinds]))
        self._size = 0
        self._calls = 0
        self._flat = {"slots": _Flat(np.int32), "peers": _Flat(np.int32), "tokens": _Flat(np.int64)}
        self.step = -1
        self.counts = (-1, -1)

    def __len__(self) -> int:
        return self._size

    def _claim(self, count: int) -> NDArray[Any]:
        """The next rows, zeroed but for call, step and counts."""
        end = self._size + count
        if end > len(self._rows):
            grown = np.zeros(2 * end, self._rows.dtype)
            grown[: self._size] = self._rows[: self._size]
            self._rows = grown
        rows = self._rows[self._size : end]
        rows["call"] = self._calls
        rows["step"] = self.step
        rows["full_available"], rows["swa_available"] = self.counts
        self._calls += 1
        self._size = end
        return rows

    def add(
        self,
        operation: str,
        cause: str = "-",
        request: int = -1,
        begin: int = 0,
        end: int = 0,
        slots: Any = (),
        peers: Any = (),
    ) -> None:
        """One row; ``slots`` and ``peers`` are sequences of slot ids."""
        full, swa = self.counts
        if self._size == len(self._rows):
            self._claim(1)
            self._size -= 1
            self._calls -= 1
        self._rows[self._size] = (
            self._calls,
            self.step,
            _NUMBER[operation],
            _CAUSE[cause],
            request,
            begin,
            end,
            0,
            full,
            swa,
            len(slots),
            len(peers),
            0,
        )
        self._size += 1
        self._calls += 1
        if len(slots):
            self._flat["slots"].extend(slots)
        if len(peers):
            self._flat["peers"].extend(peers)

    def end_group(self) -> None:
        """The group that is open ends; one in which nothing happened leaves no rows."""
        if self._rows["operation"][self._size - 1] == _NUMBER["begin_group"]:
            self._size -= 1
            self._calls -= 1
        else:
            self.add("end_group")

    def add_tokens(self, request: int, tokens: Tokens, length: int) -> None:
        """What a request's first ``length`` tokens are."""
        runs: list[int] = []
        start = 0
        for base, stop in zip(tokens.bases, tokens.ends, strict=True):
            if start >= length:
                break
            runs += (base + start, min(stop, length) - start)
            start = stop
        self.add("arrive", request=request, end=length)
        self._rows["num_tokens"][self._size - 1] = len(runs)
        self._flat["tokens"].extend(runs)

    def extend(
        self,
        operation: str,
        cause: str,
        requests: IntArray,
        begins: IntArray,
        ends: IntArray,
        slots: IntArray | Sequence[int] = (),
        peers: IntArray | Sequence[int] = (),
    ) -> int:
        """One call for many requests; returns its first row. Slots follow each other request by request."""
        rows = self._claim(len(requests))
        rows["operation"], rows["cause"] = _NUMBER[operation], _CAUSE[cause]
        rows["request"], rows["begin"], rows["end"] = requests, begins, ends
        rows["num_slots"] = (ends - begins) if len(slots) else 0
        rows["num_peers"] = (ends - begins) if len(peers) else 0
        self._flat["slots"].extend(slots)
        self._flat["peers"].extend(peers)
        return self._size - len(requests)

    def computed(self, first: int, begins: IntArray, ends: IntArray, kept: IntArray) -> None:
        """The result of a step whose rows begin at ``first``."""
        rows = self._rows[first : first + len(begins)]
        rows["begin"], rows["end"], rows["kept"] = begins, ends, kept

    def columns(self) -> dict[str, NDArray[Any]]:
        """All rows as arrays, views where possible; a step without result wrote nothing and is left out.

        Returns
        -------
        dict
            :data:`COLUMNS`; and for ``slots``, ``peers`` and ``tokens`` the flat values, and ``num_slots`` ... how many of
            them belong to each row.
        """
        rows = self._rows[: self._size]
        rows = rows[(rows["operation"] != _NUMBER["compute"]) | (rows["end"] > rows["begin"])]
        out: dict[str, NDArray[Any]] = {str(name): np.ascontiguousarray(rows[name]) for name in rows.dtype.names or ()}
        return out | {name: flat.values for name, flat in self._flat.items()}
