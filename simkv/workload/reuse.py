"""What a cache without bound would find again: the longest beginning of a prompt that was there before."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from simkv.workload.request import Blocks, IntArray, Workload

__all__ = ["found_again", "reusable_share", "reusable_token_share"]


class _Node:
    """Where edges part: first token of an edge -> its length, and the node at its end. An edge is one run."""

    __slots__ = ("edges",)

    def __init__(self) -> None:
        self.edges: dict[int, tuple[int, _Node]] = {}


def found_again(workload: Workload) -> IntArray | None:
    """Tokens of each prompt that lead it and also led an earlier request, prompt and answer.

    Earlier is by number: every request is over when the next one comes. An answer counts where its tokens are known.

    Parameters
    ----------
    workload : Workload
        Requests, in order.

    Returns
    -------
    int64 array, shape (n,), or None
        None where nothing is known of the tokens.
    """
    contents = workload.identity()
    if contents is None:
        return None
    root = _Node()
    found = np.zeros(len(workload), np.int64)
    lengths = zip(workload.input_tokens.tolist(), workload.output_tokens.tolist(), strict=True)
    for index, (given, made) in enumerate(lengths):
        tokens = contents.tokens(index, given, made)
        runs = []
        begin = 0
        for base, end in zip(tokens.bases, tokens.ends, strict=True):
            # Tokens below zero are its own, and so nobody looks for what comes behind them.
            if base + begin < 0 or begin >= given + made:
                break
            runs.append((base + begin, min(end, given + made) - begin))
            begin = end
        found[index] = min(given, _insert(root, runs))
    return found


def reusable_token_share(workload: Workload) -> float | None:
    """Share of all prompt tokens that a cache without bound would find; None where nothing is known of the tokens."""
    found = found_again(workload)
    if found is None:
        return None
    total = int(workload.input_tokens.sum())
    return int(found.sum()) / total if total else 0.0


def _insert(node: _Node, runs: list[tuple[int, int]]) -> int:
    """Put a sequence into the tree; returns how many tokens that lead it were there."""
    known = 0
    for number, (start, length) in enumerate(runs):
        while length:
            edge = node.edges.get(start)
            if edge is None:
                for first, rest in [(start, length), *runs[number + 1 :]]:
                    end = _Node()
                    node.edges[first] = rest, end
                    node = end
                return known
            whole, end = edge
            same = min(whole, length)
            if same < whole:
                middle = _Node()
                middle.edges[start + same] = whole - same, end
                node.edges[start] = same, middle
                end = middle
            node, start, length, known = end, start + same, length - same, known + same
    return known


def reusable_share(blocks: Blocks) -> float:
    """Share of blocks that lead a prompt and were all seen in requests before: hits of a cache without bound."""
    if not len(blocks.ids):
        return 0.0
    ids = blocks.ids
    low, high = int(ids.min()), int(ids.max())
    if high - low > 4 * len(ids) + 2**20:
        ids = np.unique(ids, return_inverse=True)[1].astype(np.int64)
        low, high = 0, int(ids.max())
    seen = np.zeros(high - low + 1, bool)
    hits = 0
    for start, end in pairwise(blocks.offsets.tolist()):
        own = ids[start:end] - low
        known = seen[own]
        hits += len(own) if known.all() else int(known.argmin())
        seen[own] = True
    return hits / len(ids)
