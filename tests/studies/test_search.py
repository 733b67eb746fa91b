"""The search for where an outcome changes, on outcomes that are known."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simkv.studies.search import Asked, Found, Scale, common, intervals, search


def found(scale: Scale, outcome: Callable[[float, int], bool], seeds: list[int]) -> tuple[Found, int]:
    asked: list[Asked] = []

    def ask(pairs: list[Asked]) -> dict[Asked, bool]:
        assert not set(pairs) & set(asked), "asked twice"
        asked.extend(pairs)
        return {pair: outcome(*pair) for pair in pairs}

    return search(scale, seeds, ask), len(asked)


@given(st.integers(-50, 50), st.integers(1, 3000), st.data(), st.booleans())
@settings(max_examples=200, deadline=None)
def test_a_threshold_among_integers_is_exact(low: int, width: int, data: st.DataObject, rising: bool) -> None:
    high = low + width
    seeds = [0, 1, 2]
    last = {seed: data.draw(st.integers(low - 1, high)) for seed in seeds}
    got, asked = found(Scale(low, high, True, 0.0), lambda v, s: (v <= last[s]) != rising, seeds)
    assert got.monotone
    for seed in seeds:
        runs = intervals(got.of(seed))
        true = (low, last[seed]) if not rising else (last[seed] + 1, high)
        assert runs == ([true] if true[0] <= true[1] else [])
    # Nine and a bisection each, and the ends that the seeds agree on.
    assert asked <= 3 * (9 + 14)


@given(st.floats(0.01, 100), st.floats(1.01, 1000), st.floats(0, 1), st.sampled_from([0.01, 0.001]))
@settings(max_examples=200, deadline=None)
def test_a_threshold_among_fractions_is_as_near_as_wanted(low: float, times: float, share: float, near: float) -> None:
    high = low * times
    true = low + share * (high - low)
    got, _ = found(Scale(low, high, False, near), lambda v, _: v <= true, [7])
    assert got.monotone
    outcomes = got.of(7)
    last = max(v for v, held in outcomes.items() if held)
    assert last <= true
    failing = [v for v, held in outcomes.items() if not held]
    if failing:
        # Four digits of a value are no nearer than a thousandth of it.
        assert min(failing) - last <= max(near, 0.0011) * min(failing)


def test_what_goes_to_and_fro_is_scanned_and_each_change_bisected() -> None:
    got, _ = found(Scale(1, 1000, True, 0.0), lambda v, _: 30 <= v <= 70 or v >= 500, [1])
    assert not got.monotone
    assert intervals(got.of(1)) == [(30, 70), (500, 1000)]


def test_seeds_that_change_in_different_directions_are_not_monotone() -> None:
    got, _ = found(Scale(1, 100, True, 0.0), lambda v, s: (v < 50) == bool(s), [0, 1])
    assert not got.monotone
    assert common([intervals(got.of(seed)) for seed in (0, 1)]) == []


def test_what_all_seeds_agree_on_was_asked_of_all() -> None:
    # Seed 1 fails at 37 alone, which only seed 0 would be asked.
    got, _ = found(Scale(1, 64, True, 0.0), lambda v, s: v <= 37 if s == 0 else v != 37, [0, 1])
    both = common([intervals(got.of(seed)) for seed in (0, 1)])
    for low, high in both:
        for value in (low, high):
            assert got.holds[value, 0] and got.holds[value, 1]
    assert both[-1][1] == 36


@pytest.mark.parametrize(
    ("outcomes", "runs"),
    [
        ({}, []),
        ({1: False}, []),
        ({1: True}, [(1, 1)]),
        ({3: True, 1: True, 2: False, 4: True}, [(1, 1), (3, 4)]),
    ],
)
def test_runs_that_hold(outcomes: dict[float, bool], runs: list[tuple[float, float]]) -> None:
    assert intervals(outcomes) == runs


@given(st.lists(st.lists(st.booleans(), min_size=12, max_size=12), min_size=1, max_size=4))
def test_what_is_common_by_counting(rows: list[list[bool]]) -> None:
    several = [intervals(dict(enumerate(row))) for row in rows]
    inside = {v for v in range(12) if all(any(a <= v <= b for a, b in one) for one in several)}
    both = common(several)
    assert {v for v in range(12) if any(a <= v <= b for a, b in both)} == inside
    assert all(before[1] < after[0] for before, after in pairwise(sorted(both)))


def test_a_grid_has_both_ends_and_whole_numbers_once() -> None:
    assert Scale(1, 4, True, 0.0).grid(9) == [1, 2, 3, 4]
    # Squares of two, since 256 is more than eight times 1.
    assert Scale(1, 256, True, 0.0).grid(9) == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert Scale(0, 1, False, 0.01).grid(5) == [0, 0.25, 0.5, 0.75, 1]


def test_a_scale_that_begins_at_none_comes_to_an_end() -> None:
    got, asked = found(Scale(0, 1.0, False, 0.01), lambda v, _: v == 0, [1, 2, 3])
    assert intervals(got.of(1)) == [(0, 0)]
    assert asked <= 3 * (9 + 14)
