"""Block ids of a trace: listed row by row, or told as "so many shared with the request before"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from simkv.workload.formats.base import TakeBlocks
from simkv.workload.formats.table import Complaints
from simkv.workload.request import Blocks, IntArray

__all__ = ["COMMON_SIZES", "ChainedBlocks", "ListedBlocks", "flattened"]

COMMON_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
"""Block sizes looked for when a file does not state its own."""


def flattened(lists: Sequence[Sequence[int]]) -> tuple[IntArray, IntArray]:
    """Lists one after the other, and the offsets of each: row ``i`` owns ``offsets[i]:offsets[i + 1]``."""
    offsets = np.zeros(len(lists) + 1, np.int64)
    np.cumsum([len(part) for part in lists], out=offsets[1:])
    return np.fromiter(chain.from_iterable(lists), np.int64, count=int(offsets[-1])), offsets


@dataclass(frozen=True)
class ListedBlocks:
    """Block ids each row lists itself.

    Parameters
    ----------
    ids, offsets : int64 array
        As in `simkv.workload.request.Blocks`, in file order.
    size : int or None
        Tokens a block, where the file states it.
    usual : int or None
        Tokens a block that the format usually has: taken when it fits the whole file.
    open_end : bool
        Whether a row may list fewer ids than its prompt has blocks (the rest is nobody else's).
    """

    ids: IntArray
    offsets: IntArray
    size: int | None = None
    usual: int | None = None
    open_end: bool = False

    @classmethod
    def of(
        cls, lists: Sequence[Sequence[int]], size: int | None = None, usual: int | None = None, open_end: bool = False
    ) -> ListedBlocks:
        """Block ids given as one list a row."""
        return cls(*flattened(lists), size, usual, open_end)

    def settle(self, input_tokens: IntArray, stated: int | None, complaints: Complaints) -> tuple[TakeBlocks, str]:
        """Decide the block size, complain about rows whose ids do not fit it."""
        number = np.diff(self.offsets)
        if stated is not None and self.size not in (None, stated):
            raise complaints.fail(f"{stated} is stated, the file says {self.size}", "block_size")
        size, how = stated or self.size, "as stated"
        if size is None:
            good = complaints.good(len(number))
            size, how = self._infer(number[good], input_tokens[good], complaints), "from the number of ids a row"
        whole = -(-input_tokens // size)
        wrong = number > whole if self.open_end else (number != whole) & (number != input_tokens // size)
        for row in np.flatnonzero(wrong):
            if int(row) not in complaints.bad_rows:
                complaints.row(
                    int(row),
                    f"{number[row]} block ids for {input_tokens[row]} tokens; {whole[row]} blocks of {size} are needed",
                )
        settled = Blocks(self.ids, self.offsets, size)
        return settled.take, f"{size} tokens a block ({how})"

    def _infer(self, number: IntArray, tokens: IntArray, complaints: Complaints) -> int:
        agree = {size: _agreeing(number, tokens, size) for size in COMMON_SIZES}
        fitting = [size for size, rows in agree.items() if rows == len(number)]
        if self.usual in fitting:
            return self.usual
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            found = ", ".join(map(str, fitting))
            raise complaints.fail(f"the block ids fit {found} tokens a block alike: state block_size", "block_size")
        best = max(agree, key=lambda size: agree[size])
        if 2 * agree[best] <= len(number):
            raise complaints.fail("the number of block ids fits no common block size: state block_size", "block_size")
        return best


def _agreeing(number: IntArray, tokens: IntArray, size: int) -> int:
    """Rows whose number of ids is right for `size`, with or without an id for a partial block."""
    return max(int(np.sum(number == -(-tokens // size))), int(np.sum(number == tokens // size)))


@dataclass(frozen=True)
class ChainedBlocks:
    """Block ids rebuilt from how many leading blocks a request shares with the one before it in its chain.

    Ids are made up: shared blocks repeat those of the request before, the others are new. They are made when the rows
    to keep are known, because they may be many.

    Parameters
    ----------
    number, shared : int64 array
        Whole blocks of each row, and how many of them the request before in the chain has too.
    order : int64 array
        Rows chain after chain.
    first : bool array
        Whether a row begins a chain.
    size : int
        Tokens a block.
    """

    number: IntArray
    shared: IntArray
    order: IntArray
    first: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
    size: int

    def settle(self, input_tokens: IntArray, stated: int | None, complaints: Complaints) -> tuple[TakeBlocks, str]:
        """Complain about rows that share more blocks than there are, or have a wrong number of them."""
        if stated not in (None, self.size):
            raise complaints.fail(f"{stated} is stated, the format has {self.size}", "block_size")
        before = np.zeros_like(self.number)
        before[self.order[1:]] = self.number[self.order[:-1]]
        before[self.first] = 0
        good = np.zeros(len(before), bool)
        good[complaints.good(len(before))] = True
        for row in np.flatnonzero((self.number != input_tokens // self.size) & good):
            complaints.row(
                int(row), f"{self.number[row]} whole blocks of {self.size} for {input_tokens[row]} tokens do not fit"
            )
        for row in np.flatnonzero((self.shared > np.minimum(before, self.number)) & good):
            complaints.row(
                int(row),
                f"shares {self.shared[row]} blocks, but has {self.number[row]} and the request before {before[row]}",
            )
        return self.take, f"{self.size} tokens a block, ids made from the shared lengths; a last partial block has none"

    def take(self, rows: IntArray) -> Blocks:
        """Blocks of the given rows."""
        offsets = np.concatenate([[0], np.cumsum(self.number[rows])]).astype(np.int64)
        place = np.full(len(self.number), -1, np.int64)
        place[rows] = offsets[:-1]
        out = np.empty(int(offsets[-1]), np.int64)
        before = out[:0]
        fresh = 0
        chained = (column[self.order].tolist() for column in (self.number, self.shared, place, self.first))
        for number, shared, start, first in zip(*chained, strict=True):
            kept = 0 if first else min(shared, len(before), number)
            here = out[start : start + number] if start >= 0 else np.empty(number, np.int64)
            here[:kept] = before[:kept]
            here[kept:] = np.arange(fresh, fresh + number - kept)
            fresh += number - kept
            before = here
        return Blocks(out, offsets, self.size)
