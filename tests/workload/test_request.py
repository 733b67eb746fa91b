"""Workloads as columns: who sends whom, and what a selection of rows keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simkv.errors import ScenarioError
from simkv.workload.request import Blocks, Workload
from simkv.workload.tokens import Contents


def column(*values: int) -> Any:
    return np.array(values, np.int64)


def workload(n: int, **more: Any) -> Workload:
    names = tuple(f"r{i}" for i in range(n))
    return Workload(np.arange(n, dtype=np.int64), np.full(n, 20), np.full(n, 3), names, **more)


CONTENTS = Contents(column(0, 100, 0, 0), column(8, 4, 20, 8), column(0, 2, 3, 4), column(-1, 20, -1))


def test_digest_tells_contents_and_predecessors_apart() -> None:
    plain = workload(3)
    others = [
        replace(plain, contents=CONTENTS),
        replace(plain, contents=replace(CONTENTS, outputs=None)),
        replace(plain, contents=replace(CONTENTS, outputs=column(-1, 20, 30))),
        replace(plain, contents=replace(CONTENTS, starts=column(0, 100, 0, 1))),
        replace(plain, contents=replace(CONTENTS, lengths=column(8, 4, 19, 8))),
        replace(plain, contents=replace(CONTENTS, offsets=column(0, 1, 3, 4))),
        replace(plain, previous=column(-1, 0, 1)),
        replace(plain, previous=column(-1, -1, 1)),
    ]
    assert len({plain.digest(), *(other.digest() for other in others)}) == 1 + len(others)
    assert replace(plain, contents=replace(CONTENTS)).digest() == others[0].digest()


def test_identity_comes_from_contents_or_from_blocks() -> None:
    assert workload(3).identity() is None
    assert workload(3, contents=CONTENTS).identity() is CONTENTS
    found = workload(2, blocks=Blocks(column(7, 8, 7, 9), column(0, 2, 4), 16)).identity()
    assert found is not None
    # two blocks of 16 for 20 tokens: the second holds 4
    assert found.tokens(0, 20, 1).common(found.tokens(1, 20, 1), 0, 20) == 16
    assert found.lengths.sum() == 40


def test_a_selection_keeps_the_contents_of_its_rows() -> None:
    taken = workload(3, contents=CONTENTS).take(column(2, 0)).contents
    assert taken is not None and taken.outputs is not None
    assert taken.starts.tolist() == [0, 0, 100] and taken.lengths.tolist() == [8, 8, 4]
    assert taken.offsets.tolist() == [0, 1, 3] and taken.outputs.tolist() == [-1, -1]
    blocks = workload(2, blocks=Blocks(column(7, 8, 9), column(0, 2, 3), 16)).take(column(1)).blocks
    assert blocks is not None and (blocks.ids.tolist(), blocks.offsets.tolist()) == ([9], [0, 1])


@pytest.mark.parametrize(
    ("rows", "previous"),
    [
        ((0, 1, 2, 3), [-1, 0, -1, 1]),
        ((0, 3), [-1, 0]),  # 1 is not kept, so that 0 sends 3
        ((1, 3), [-1, 0]),
        ((2, 3), [-1, -1]),
        ((2, 0, 3), [-1, -1, 1]),
        ((), []),
    ],
)
def test_a_selection_closes_the_gaps_of_a_chain(rows: tuple[int, ...], previous: list[int]) -> None:
    taken = workload(4, previous=column(-1, 0, -1, 1)).take(column(*rows))
    assert taken.previous is not None and taken.previous.tolist() == previous


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=20))
def test_chains_stay_chains_in_any_selection(rows: list[tuple[bool, bool]]) -> None:
    chains: list[list[int]] = []
    previous = []
    for row, (begins, _) in enumerate(rows):
        if begins or not chains:
            chains.append([])
        previous.append(chains[-1][-1] if chains[-1] else -1)
        chains[-1].append(row)
    kept = [row for row, (_, keep) in enumerate(rows) if keep]
    expected = {}
    for chain in chains:
        left = [kept.index(row) for row in chain if row in kept]
        expected |= dict(zip(left, [-1, *left], strict=False))
    taken = workload(len(rows), previous=column(*previous)).take(column(*kept)).previous
    assert taken is not None and dict(enumerate(taken.tolist())) == expected


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"previous": column(-1, 1, 0)}, "1 of request r1 does not come before it"),
        ({"previous": column(2, -1, -1)}, "2 of request r0 does not come before it"),
        ({"previous": column(-1, -2, -1)}, "-2 of request r1 does not come before it"),
        ({"previous": column(-1, 0, 0)}, "0 of request r2 sends another request already"),
        ({"contents": CONTENTS, "blocks": Blocks(column(), column(0, 0, 0, 0), 16)}, "keep one of the two"),
    ],
)
def test_workloads_that_cannot_be_are_refused(more: dict[str, Any], told: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        workload(3, **more)
    assert told in caught.value.problems[0].message
