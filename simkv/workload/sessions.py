"""Sessions: the turns of a conversation, each of which begins with the turn before it and its answer."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from simkv.workload.tokens import Contents, IntArray

__all__ = ["contents_of_sessions"]

Run = tuple[int, int]
_NOTHING: Mapping[int, Run] = MappingProxyType({})


def contents_of_sessions(
    session: IntArray,
    input_tokens: IntArray,
    output_tokens: IntArray,
    begins_with: Mapping[int, Run] = _NOTHING,
    first_token: int = 0,
) -> tuple[Contents, int]:
    """Contents of requests whose prompts are whole conversations.

    A turn's prompt is prompt and answer of the turn before it, then tokens nobody else has. One that is shorter than
    those begins with as much of them as fits, and the conversation goes on from there.

    Parameters
    ----------
    session : int64 array, shape (n,)
        Number of each request's session, its turns in order; -1 for none, whose tokens are its own.
    input_tokens, output_tokens : int64 array, shape (n,)
        Prompts, whole, and answers, in tokens.
    begins_with : mapping
        By number of the session, first token and length of what its first prompt begins with.
    first_token : int
        Tokens from here on are used, as many as there are new ones.

    Returns
    -------
    contents : Contents
        Tokens of the requests. An answer of no tokens is its own: the engine may compute one all the same.
    shorter : int
        Turns that are shorter than prompt and answer of the turn before.
    """
    runs: list[list[Run]] = [[] for _ in range(len(session))]
    outputs = np.full(len(session), -1, np.int64)
    given, made, number = input_tokens.tolist(), output_tokens.tolist(), session.tolist()
    fresh, shorter, length = first_token, 0, 0
    so_far: list[Run] = []
    current = -1
    for row in np.argsort(session, kind="stable").tolist():
        if number[row] < 0:
            continue
        if number[row] != current:
            current = number[row]
            begin = begins_with.get(current, (0, 0))
            so_far, length = _extended([], *begin), begin[1]
        new = given[row] - length
        if new < 0:
            shorter += 1
            so_far = _cut(so_far, given[row])
        so_far = _extended(so_far, fresh, new)
        fresh += max(new, 0)
        runs[row] = so_far
        if made[row]:
            outputs[row] = fresh
        so_far = _extended(so_far, fresh, made[row])
        fresh += made[row]
        length = given[row] + made[row]
    flat = np.array([run for part in runs for run in part], np.int64).reshape(-1, 2)
    offsets = np.cumsum([0, *map(len, runs)]).astype(np.int64)
    return Contents(flat[:, 0].copy(), flat[:, 1].copy(), offsets, outputs), shorter


def _extended(runs: list[Run], start: int, length: int) -> list[Run]:
    """Runs and another one behind them, joined to the last where it goes on from there."""
    if length <= 0:
        return runs
    if runs and sum(runs[-1]) == start:
        return [*runs[:-1], (runs[-1][0], runs[-1][1] + length)]
    return [*runs, (start, length)]


def _cut(runs: list[Run], length: int) -> list[Run]:
    """The first ``length`` tokens of runs."""
    kept: list[Run] = []
    for start, available in runs:
        if length <= 0:
            break
        kept.append((start, min(available, length)))
        length -= available
    return kept
