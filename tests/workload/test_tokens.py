"""Runs of tokens against plain lists of the same integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simkv.workload.tokens import Contents, Tokens, contents_of_blocks, private_tokens, take_lists

RUNS = st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 6)), max_size=8)


def expanded(runs: list[tuple[int, int]]) -> list[int]:
    return [start + i for start, length in runs for i in range(length)]


def shared(one: list[Any], two: list[Any], begin: int, end: int) -> int:
    same = [a == b for a, b in zip(one[begin:end], two[begin:end], strict=True)]
    return [*same, False].index(False)


def column(*values: int) -> Any:
    return np.array(values, np.int64)


# Sequences ---------------------------------------------------------------------------------------------------------


@given(RUNS)
def test_runs_are_maximal_however_they_are_given(runs: list[tuple[int, int]]) -> None:
    listed = expanded(runs)
    given, single = Tokens(runs), Tokens.of(listed)
    assert len(given) == len(single) == len(listed)
    assert (given.bases, given.ends) == (single.bases, single.ends)
    breaks = [i + 1 for i in range(len(listed) - 1) if listed[i + 1] != listed[i] + 1]
    assert given.ends == breaks + [len(listed)][: len(listed)]
    begins = [0, *breaks][: len(given.ends)]
    assert [base + begin for base, begin in zip(given.bases, begins, strict=True)] == [listed[i] for i in begins]


@given(RUNS, RUNS, st.data())
def test_common_and_label_are_those_of_the_lists(
    one: list[tuple[int, int]], two: list[tuple[int, int]], data: st.DataObject
) -> None:
    a, b = expanded(one), expanded(two)
    end = data.draw(st.integers(0, min(len(a), len(b))))
    begin = data.draw(st.integers(0, end))
    first, second = Tokens(one), Tokens(two)
    assert first.common(second, begin, end) == second.common(first, begin, end) == shared(a, b, begin, end)
    same = a[begin:end] == b[begin:end]
    assert (first.label(begin, end) == second.label(begin, end)) == same
    assert not same or hash(first.label(begin, end)) == hash(second.label(begin, end))
    assert first.common(first, begin, end) == end - begin


@given(RUNS, RUNS, st.data())
def test_labels_of_pieces_at_different_places_are_equal_where_the_pieces_are(
    one: list[tuple[int, int]], two: list[tuple[int, int]], data: st.DataObject
) -> None:
    a, b = expanded(one), expanded(two)
    length = data.draw(st.integers(0, min(len(a), len(b))))
    i, j = data.draw(st.integers(0, len(a) - length)), data.draw(st.integers(0, len(b) - length))
    labels = Tokens(one).label(i, i + length), Tokens(two).label(j, j + length)
    assert (labels[0] == labels[1]) == (a[i : i + length] == b[j : j + length])


def test_an_empty_sequence_has_nothing_in_common() -> None:
    assert len(Tokens([(5, 0)])) == 0
    assert Tokens([]).common(Tokens([(1, 2)]), 0, 0) == 0
    assert Tokens([]).label(0, 0) == Tokens([(1, 2)]).label(2, 2)


def test_nothing_is_as_long_as_a_prompt() -> None:
    long = Tokens([(0, 10**12), (5, 10**12)])
    assert long.ends == [10**12, 2 * 10**12]
    assert long.common(Tokens([(0, 3 * 10**12)]), 0, 2 * 10**12) == 10**12


def test_private_tokens_are_nobody_elses() -> None:
    a, b = private_tokens(0), private_tokens(1)
    assert len(a) >= 10**11
    assert a.common(b, 0, 10**9) == 0 and a.common(private_tokens(0), 0, 10**9) == 10**9
    assert a.bases[0] + len(a) <= 0 and b.bases[0] + len(b) <= a.bases[0]


# Contents ----------------------------------------------------------------------------------------------------------


def test_contents_are_runs_then_own_tokens_then_the_answer() -> None:
    contents = Contents(column(0, 50, 0), column(10, 5, 10), column(0, 2, 3, 3), column(-1, 90, 0))
    a, b, c = (contents.tokens(i, n, 600) for i, n in enumerate((15, 12, 4)))
    assert (len(contents), a.ends[:2], a.bases[:2]) == (3, [10, 15], [0, 40])
    assert a.common(b, 0, 12) == 10
    # own: 2 tokens; the answer of request 1 begins with token 90, behind its prompt
    assert (b.ends[:2], b.bases[2]) == ([10, 12], 90 - 12)
    assert (c.ends[0], c.bases[1]) == (4, -4)
    # what is its own is nobody else's: not the prompt, and not the answer
    assert Contents(column(), column(), column(0, 0, 0)).tokens(0, 9, 5).common(c, 0, 9) == 0
    alike = Contents(column(), column(), column(0, 0, 0))
    assert alike.tokens(0, 9, 20).common(alike.tokens(1, 9, 20), 0, 20) == 0


@given(st.lists(st.lists(st.integers(0, 99), max_size=4), min_size=1, max_size=6), st.data())
def test_lists_of_some_rows(lists: list[list[int]], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=8))
    offsets = np.cumsum([0, *map(len, lists)]).astype(np.int64)
    where, taken = take_lists(offsets, np.array(rows, np.int64))
    flat = [value for part in lists for value in part]
    assert [flat[i] for i in where] == [value for row in rows for value in lists[row]]
    assert taken.tolist() == np.cumsum([0, *(len(lists[row]) for row in rows)]).tolist()


# Block ids ---------------------------------------------------------------------------------------------------------


@st.composite
def blocked(draw: st.DrawFn) -> tuple[int, list[int], list[list[int]]]:
    """Block size, prompt lengths, and ids of each, a partial last block with one or without."""
    size = draw(st.integers(1, 7))
    far = draw(st.sampled_from([0, -3, 2**61, -(2**63) + 3]))
    lengths = draw(st.lists(st.integers(1, 40), min_size=2, max_size=5))
    ids = []
    for length in lengths:
        most = draw(st.sampled_from([length // size, -(-length // size)]))
        start = draw(st.integers(0, 3))
        # Mostly as counted, sometimes another branch.
        ids.append([start + i + draw(st.sampled_from([0, 0, 0, 7])) + far for i in range(most)])
    return size, lengths, ids


@given(blocked(), st.integers(1, 8))
def test_blocks_share_what_their_ids_say(case: tuple[int, list[int], list[list[int]]], page: int) -> None:
    size, lengths, ids = case
    offsets = np.cumsum([0, *map(len, ids)]).astype(np.int64)
    flat = np.array([i for part in ids for i in part], np.int64)
    contents = contents_of_blocks(flat, offsets, size, np.array(lengths, np.int64))
    plain = [
        [(part[p // size], p % size) if p // size < len(part) else ("own", row, p) for p in range(length)]
        for row, (length, part) in enumerate(zip(lengths, ids, strict=True))
    ]
    tokens = [contents.tokens(row, length, 600) for row, length in enumerate(lengths)]
    for a, one in zip(plain, tokens, strict=True):
        for b, two in zip(plain, tokens, strict=True):
            least = min(len(a), len(b))
            assert one.common(two, 0, least) == shared(a, b, 0, least)
            for begin in range(0, least // page * page, page):
                end = begin + page
                assert (one.label(begin, end) == two.label(begin, end)) == (a[begin:end] == b[begin:end])


@pytest.mark.parametrize(("ids", "runs"), [([4, 5, 6], 1), ([4, 6, 7], 2), ([9, 8, 7], 3), ([], 0)])
def test_consecutive_ids_are_one_run(ids: list[int], runs: int) -> None:
    contents = contents_of_blocks(column(*ids), column(0, len(ids)), 16, column(40))
    assert len(contents.starts) == runs
    # the last of three blocks is half full
    assert int(contents.lengths.sum()) == (40 if ids else 0)


def test_a_run_does_not_reach_into_the_next_request() -> None:
    contents = contents_of_blocks(column(1, 2, 3, 4), column(0, 2, 4), 8, column(12, 16))
    assert contents.starts.tolist() == [8, 24] and contents.lengths.tolist() == [12, 16]
    assert contents.offsets.tolist() == [0, 1, 2]


def test_what_is_generated_beyond_an_answer_is_its_own() -> None:
    # The answer's tokens are 90..93; a request that asks for more goes on with tokens nobody else has.
    contents = Contents(column(0, 0), column(10, 10), column(0, 1, 2), column(90, 90))
    a, b = (contents.tokens(i, 10, 4) for i in range(2))
    assert a.common(b, 0, 14) == 14 == a.common(b, 0, 20)
