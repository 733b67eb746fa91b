"""Which tokens requests are made of: every token is an integer, equal integers are equal tokens.

Prompts of real traces repeat whole blocks, so a sequence is kept as runs of consecutive integers; nothing here is as
long as a prompt. Runs are maximal, so two sequences are equal exactly where their runs are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Contents", "IntArray", "Tokens", "contents_of_blocks", "private_tokens", "take_lists"]

IntArray = NDArray[np.int64]

# Private tokens lie below zero, a stretch of its own for each owner; shared ones are >= 0.
_STRETCH = 1 << 40


class Tokens:
    """A sequence of tokens.

    Parameters
    ----------
    runs : iterable of (int, int)
        First token and length of each run of consecutive integers; empty runs are left out, runs that follow each
        other are joined.

    Attributes
    ----------
    ends : list of int
        Position behind the last token of each run.
    bases : list of int
        Token of each run less its position: the token at position ``i`` is ``base + i``.
    """

    __slots__ = ("bases", "ends")

    def __init__(self, runs: Iterable[tuple[int, int]]) -> None:
        self.bases: list[int] = []
        self.ends: list[int] = []
        end = 0
        for start, length in runs:
            if length <= 0:
                continue
            base = start - end
            end += length
            if self.bases and self.bases[-1] == base:
                self.ends[-1] = end
            else:
                self.bases.append(base)
                self.ends.append(end)

    @classmethod
    def of(cls, tokens: Sequence[int]) -> Tokens:
        """The sequence of the given integers."""
        return cls((token, 1) for token in tokens)

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def common(self, other: Tokens, begin: int, end: int) -> int:
        """How many tokens from ``begin`` on, up to ``end``, are the same at the same place in both.

        Both sequences reach as far as ``end``.
        """
        if self is other or begin >= end:
            return max(0, end - begin)
        i, j = bisect_right(self.ends, begin), bisect_right(other.ends, begin)
        at = begin
        while self.bases[i] == other.bases[j]:
            mine, theirs = self.ends[i], other.ends[j]
            at = min(mine, theirs)
            if at >= end:
                return end - begin
            i += mine == at
            j += theirs == at
        return at - begin

    def label(self, begin: int, end: int) -> int | tuple[int, ...]:
        """A hashable that is equal for two sequences exactly when their tokens in ``[begin, end)`` are.

        The sequence reaches as far as ``end``.
        """
        if begin >= end:
            return ()
        i = bisect_right(self.ends, begin)
        if self.ends[i] >= end:
            return self.bases[i] + begin
        parts = [self.bases[i] + begin]
        while self.ends[i] < end:
            at = self.ends[i]
            i += 1
            parts += (at - begin, self.bases[i] + at)
        return tuple(parts)


def private_tokens(owner: int) -> Tokens:
    """Tokens that no other owner has, as many as are ever needed.

    Parameters
    ----------
    owner : int
        Number of the owner, >= 0.
    """
    return Tokens([(-(owner + 1) * _STRETCH, _STRETCH // 2)])


@dataclass(frozen=True)
class Contents:
    """Tokens of many requests, prompt and answer.

    Parameters
    ----------
    starts, lengths : int64 array, shape (m,)
        Runs of all prompts, one request after the other; tokens >= 0, lengths >= 1. A prompt is as long as its runs
        or longer; what they leave of it is its own.
    offsets : int64 array, shape (n + 1,)
        Request ``i`` owns the runs ``offsets[i]:offsets[i + 1]``.
    outputs : int64 array, shape (n,), or None
        First token of each answer, whose tokens are consecutive; -1, or None for all: the answer is nobody else's.
    """

    starts: IntArray
    lengths: IntArray
    offsets: IntArray
    outputs: IntArray | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, rows: IntArray) -> Contents:
        """Contents of the requests in ``rows``, in that order."""
        where, offsets = take_lists(self.offsets, rows)
        outputs = None if self.outputs is None else self.outputs[rows]
        return Contents(self.starts[where], self.lengths[where], offsets, outputs)

    def tokens(self, index: int, input_tokens: int, output_tokens: int) -> Tokens:
        """Tokens of request ``index``: its prompt of ``input_tokens``, its answer of ``output_tokens``.

        Whatever is generated beyond the answer is nobody else's.
        """
        low, high = int(self.offsets[index]), int(self.offsets[index + 1])
        runs = list(zip(self.starts[low:high].tolist(), self.lengths[low:high].tolist(), strict=True))
        own = -(index + 1) * _STRETCH
        left = input_tokens - sum(length for _, length in runs)
        if left > 0:
            runs.append((own, left))
        answer = -1 if self.outputs is None else int(self.outputs[index])
        if answer >= 0:
            runs.append((answer, output_tokens))
        runs.append((own + max(left, 0), _STRETCH // 2))
        return Tokens(runs)


def take_lists(offsets: IntArray, rows: IntArray) -> tuple[IntArray, IntArray]:
    """Lists of some rows, of lists that stand one after the other.

    Parameters
    ----------
    offsets : int64 array, shape (n + 1,)
        Row ``i`` owns the entries ``offsets[i]:offsets[i + 1]``.
    rows : int64 array, shape (k,)
        Rows to take, in that order.

    Returns
    -------
    where : int64 array
        Entries of the rows taken.
    offsets : int64 array, shape (k + 1,)
        Offsets of the rows taken.
    """
    lengths = np.diff(offsets)[rows]
    taken = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return np.repeat(offsets[rows] - taken[:-1], lengths) + np.arange(taken[-1]), taken


def contents_of_blocks(ids: IntArray, offsets: IntArray, block_size: int, input_tokens: IntArray) -> Contents:
    """Contents of prompts whose blocks have ids: equal ids after equal ids are equal tokens.

    Parameters
    ----------
    ids : int64 array, shape (m,)
        Block ids, one request after the other.
    offsets : int64 array, shape (n + 1,)
        Request ``i`` owns ``ids[offsets[i]:offsets[i + 1]]``.
    block_size : int
        Tokens a block covers; the last block of a prompt may be partial.
    input_tokens : int64 array, shape (n,)
        Prompt lengths.

    Notes
    -----
    The same id at another place, or after other ids, would be taken for the same tokens; the ids of traces are
    chained, so that does not occur.
    """
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) > (1 << 62) // max(block_size, 1)):
        ids = np.unique(ids, return_inverse=True)[1].astype(np.int64)
    number = np.diff(offsets)
    filled = number > 0
    # A run begins where the request changes or the id is not the next one. Ids may be many: nothing else is as long.
    fresh = np.ones(len(ids), bool)
    np.not_equal(np.diff(ids), 1, out=fresh[1:])
    fresh[offsets[:-1][filled]] = True
    first = np.flatnonzero(fresh)
    lengths = np.diff(first, append=len(ids)) * block_size
    runs = np.searchsorted(first, offsets, side="left").astype(np.int64)
    lengths[runs[1:][filled] - 1] -= np.maximum(number * block_size - input_tokens, 0)[filled]
    return Contents(ids[first] * block_size, lengths.astype(np.int64), runs)
