"""Sessions, and what a cache without bound finds again, against plain lists of tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simkv.workload.request import Blocks, Workload
from simkv.workload.reuse import found_again
from simkv.workload.sessions import contents_of_sessions
from simkv.workload.tokens import Contents


def column(*values: int) -> Any:
    return np.array(values, np.int64)


def workload(inputs: list[int], outputs: list[int], **more: Any) -> Workload:
    n = len(inputs)
    return Workload(np.zeros(n, np.int64), column(*inputs), column(*outputs), tuple(map(str, range(n))), **more)


def test_R63_a_turn_begins_with_the_turn_before_and_its_answer() -> None:
    given, made = column(4190, 7, 5374), column(592, 1, 16)
    contents, shorter = contents_of_sessions(column(0, 1, 0), given, made)
    first, other, second = (contents.tokens(i, int(given[i]), int(made[i])) for i in range(3))
    assert shorter == 0 and len(contents.starts) == 3
    assert first.common(second, 0, 4190 + 592) == 4782
    # Behind the answer, what the first turn might still have said is not what the second one asks.
    assert len(second) > 5374 and other.common(first, 0, 7) == 0 and other.common(second, 0, 8) == 0
    found = found_again(workload([4190, 7, 5374], [592, 1, 16], contents=contents))
    assert found is not None and found.tolist() == [0, 0, 4782]


def test_a_shorter_turn_shares_what_fits_and_the_session_goes_on_from_there() -> None:
    # 10 + 5, then 6 (+ 4) of those 15, then 12: the 6, the 4 and two more; then 30.
    given, made = column(10, 6, 12, 30), column(5, 4, 3, 1)
    contents, shorter = contents_of_sessions(column(3, 3, 3, 3), given, made)
    a, b, c, d = (contents.tokens(i, int(given[i]), int(made[i])) for i in range(4))
    assert shorter == 1
    assert a.common(b, 0, 10) == 6  # its answer is not the tokens that the first prompt has there
    assert b.common(c, 0, 10) == 10 and a.common(c, 0, 15) == 6
    assert c.common(d, 0, 15) == 15 and a.common(d, 0, 15) == 6


def test_an_answer_of_no_tokens_is_nobody_elses() -> None:
    contents, _ = contents_of_sessions(column(0, 0), column(4, 9), column(0, 1))
    a, b = contents.tokens(0, 4, 0), contents.tokens(1, 9, 1)
    assert a.common(b, 0, 9) == 4


def test_sessions_begin_with_what_they_are_given() -> None:
    shared = {0: (0, 8), 1: (0, 8), 2: (8, 3)}
    contents, _ = contents_of_sessions(
        column(0, 1, 2, 0, -1), column(10, 12, 9, 20, 5), column(1, 1, 1, 1, 1), shared, 11
    )
    lengths = (10, 12, 9, 20, 5)
    tokens = [contents.tokens(i, n, 600) for i, n in enumerate(lengths)]
    assert tokens[0].common(tokens[1], 0, 10) == 8 and tokens[0].common(tokens[2], 0, 9) == 0
    assert tokens[0].common(tokens[3], 0, 11) == 11
    assert contents.starts.min() == 0 and np.diff(contents.offsets).tolist() == [2, 2, 2, 2, 0]


ROWS = st.lists(st.tuples(st.integers(-1, 2), st.integers(1, 12), st.integers(0, 5)), min_size=1, max_size=12)


def plain(rows: list[tuple[int, int, int]]) -> tuple[list[list[Any]], int]:
    """Prompt and answer of each row as a list, and how many are shorter than what came before."""
    so_far: dict[int, list[Any]] = {}
    listed, shorter = [], 0
    for row, (session, length, made) in enumerate(rows):
        known = so_far.get(session, []) if session >= 0 else []
        shorter += len(known) > length
        prompt = known[:length] + [(row, "in", i) for i in range(length - len(known))]
        answer = [(row, "out", i) for i in range(made)]
        so_far[session] = prompt + answer
        listed.append(prompt + answer)
    return listed, shorter


@given(ROWS)
def test_sessions_are_what_their_lists_say(rows: list[tuple[int, int, int]]) -> None:
    session, given, made = (column(*values) for values in zip(*rows, strict=True))
    contents, shorter = contents_of_sessions(session, given, made)
    listed, expected = plain(rows)
    assert shorter == expected
    tokens = [contents.tokens(i, int(given[i]), int(made[i])) for i in range(len(rows))]
    for a, one in zip(listed, tokens, strict=True):
        for b, two in zip(listed, tokens, strict=True):
            least = min(len(a), len(b))
            same = [x == y for x, y in zip(a[:least], b[:least], strict=True)]
            assert one.common(two, 0, least) == [*same, False].index(False)


@given(ROWS)
def test_what_is_found_again_is_the_longest_known_beginning(rows: list[tuple[int, int, int]]) -> None:
    session, given, made = (column(*values) for values in zip(*rows, strict=True))
    contents, _ = contents_of_sessions(session, given, made)
    found = found_again(workload(given.tolist(), made.tolist(), contents=contents))
    listed, _ = plain(rows)
    expected = []
    for row, whole in enumerate(listed):
        prompt = whole[: rows[row][1]]
        lengths = [k for k in range(len(prompt) + 1) if any(before[:k] == prompt[:k] for before in listed[:row])]
        expected.append(max(lengths, default=0))
    assert found is not None and found.tolist() == expected


@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.lists(st.integers(0, 4), max_size=4), st.integers(0, 4)), min_size=1, max_size=8),
)
def test_what_blocks_find_again(size: int, rows: list[tuple[list[int], int]]) -> None:
    ids = [part for part, _ in rows]
    lengths = [max(1, len(part) * size - min(short, size - 1)) for part, short in rows]
    blocks = Blocks(column(*(i for part in ids for i in part)), np.cumsum([0, *map(len, ids)]), size)
    found = found_again(workload(lengths, [3] * len(rows), blocks=blocks))
    listed = [
        [(part[p // size], p % size) for p in range(length if part else 0)]
        for part, length in zip(ids, lengths, strict=True)
    ]
    expected = [
        max((k for k in range(len(mine) + 1) if any(mine[:k] == old[:k] for old in listed[:row])), default=0)
        for row, mine in enumerate(listed)
    ]
    assert found is not None and found.tolist() == expected


def test_nothing_is_known_of_plain_lengths_and_own_tokens_are_never_found() -> None:
    assert found_again(workload([5, 5], [1, 1])) is None
    own = Contents(column(), column(), column(0, 0, 0))
    found = found_again(workload([5, 5], [1, 1], contents=own))
    assert found is not None and found.tolist() == [0, 0]


@pytest.mark.parametrize("known", [True, False])
def test_answers_are_found_where_their_tokens_are_known(known: bool) -> None:
    contents, _ = contents_of_sessions(column(0, 0), column(10, 30), column(5, 1))
    found = found_again(workload([10, 30], [5, 1], contents=contents if known else replace(contents, outputs=None)))
    assert found is not None and found.tolist() == [0, 15 if known else 10]
