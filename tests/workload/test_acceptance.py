from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simkv.errors import ScenarioError
from simkv.workload.acceptance import (
    ACCEPTANCE,
    Acceptance,
    Fixed,
    Geometric,
    Histogram,
    NoDraft,
    PerPosition,
    Trace,
    keyed_uniform,
)

N = 200_000
REQUEST = np.arange(N, dtype=np.int64) // 50
STEP = np.arange(N, dtype=np.int64) % 50

probabilities = st.floats(0, 1)
keys = st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)), min_size=1, max_size=50)


@st.composite
def models(draw: Callable[[Any], Any]) -> Any:
    width = draw(st.integers(1, 9))
    seed = draw(st.integers(0, 2**63))
    kind = draw(st.sampled_from(["none", "fixed", "geometric", "per-position", "histogram"]))
    if kind == "fixed":
        return Fixed(length=draw(st.integers(1, 12)), width=width, seed=seed)
    if kind == "geometric":
        return Geometric(alpha=draw(probabilities), width=width, seed=seed)
    if kind == "per-position":
        p = draw(st.lists(probabilities, min_size=max(1, width - 1), max_size=12))
        return PerPosition(p=p, width=width, seed=seed)
    if kind == "histogram":
        weights = draw(st.lists(st.floats(0, 10), min_size=1, max_size=12).filter(lambda w: sum(w) > 0))
        return Histogram(weights=weights, width=width, seed=seed)
    return NoDraft(width=width, seed=seed)


def columns(pairs: list[tuple[int, int]]) -> tuple[Any, Any]:
    array = np.array(pairs, dtype=np.int64)
    return array[:, 0], array[:, 1]


# The hash ----------------------------------------------------------------------------------------------------------


def splitmix64(state: int) -> int:
    """The published generator's output function, in plain integers."""
    mask = 2**64 - 1
    z = state & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def test_reference_vector_of_splitmix64() -> None:
    # first output of SplitMix64 seeded with 0, as published with the reference code
    assert splitmix64(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF


@given(st.integers(0, 2**64 - 1), keys)
def test_uniform_is_the_documented_hash_of_its_key(seed: int, pairs: list[tuple[int, int]]) -> None:
    gamma = 0x9E3779B97F4A7C15
    start = splitmix64(seed + gamma)
    expected = [(splitmix64(start + gamma * (r * 2**32 + v)) >> 11) / 2**53 for r, v in pairs]
    assert keyed_uniform(seed, *columns(pairs)).tolist() == expected


def test_uniforms_are_flat_and_uncorrelated_along_both_keys() -> None:
    u = keyed_uniform(11, REQUEST, STEP).reshape(-1, 50)
    # n = 200,000: a share has standard deviation <= 0.0007 in ten bins, a correlation 0.0022; bounds are over 4 of them
    assert np.abs(np.histogram(u, 10, (0, 1))[0] / N - 0.1).max() < 0.003
    assert abs(np.corrcoef(u[:, :-1].ravel(), u[:, 1:].ravel())[0, 1]) < 0.01
    assert abs(np.corrcoef(u[:-1].ravel(), u[1:].ravel())[0, 1]) < 0.01


def test_seeds_are_independent() -> None:
    a, b = keyed_uniform(1, REQUEST, STEP), keyed_uniform(2, REQUEST, STEP)
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.01


# Draws -------------------------------------------------------------------------------------------------------------


@given(models(), keys)
def test_lengths_are_in_range(model: Acceptance, pairs: list[tuple[int, int]]) -> None:
    length = model.draw(*columns(pairs))
    assert length.dtype == np.int64 and length.shape == (len(pairs),)
    assert length.min() >= 1 and length.max() <= model.width  # type: ignore[attr-defined]


@given(models(), keys, st.randoms())
def test_draws_depend_on_their_key_only(model: Acceptance, pairs: list[tuple[int, int]], random: Any) -> None:
    whole = dict(zip(pairs, model.draw(*columns(pairs)).tolist(), strict=True))
    shuffled = random.sample(pairs, len(pairs))
    assert [whole[key] for key in shuffled] == model.draw(*columns(shuffled)).tolist()
    for key in pairs[:5]:
        assert model.draw(*columns([key])).tolist() == [whole[key]]


@given(st.integers(2, 9), probabilities, probabilities, keys)
def test_more_acceptance_never_yields_less(width: int, a: float, b: float, pairs: list[tuple[int, int]]) -> None:
    low, high = (Geometric(alpha=x, width=width).draw(*columns(pairs)) for x in sorted((a, b)))
    assert (low <= high).all()


@given(models(), keys)
def test_a_narrower_step_cuts_the_same_luck(model: Any, pairs: list[tuple[int, int]]) -> None:
    wide = model.draw(*columns(pairs))
    for width in range(1, model.width + 1):
        parameters = {name: getattr(model, name) for name in model.__dataclass_fields__ if not name.startswith("_")}
        narrow = type(model)(**{**parameters, "width": width})
        assert (narrow.draw(*columns(pairs)) == np.minimum(wide, width)).all()


# Means -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alpha", "width", "mean"),
    [(0.87, 4, 3.3), (0.69, 4, 2.49), (0.41, 4, 1.65), (0.81, 9, 4.47)],  # the fits of published lengths, to 0.1
)
def test_geometric_mean_matches_published_fits(alpha: float, width: int, mean: float) -> None:
    assert Geometric(alpha=alpha, width=width).mean_length() == pytest.approx(mean, abs=0.1)


@given(st.floats(0, 0.99), st.integers(1, 9))
def test_geometric_mean_is_the_closed_form(alpha: float, width: int) -> None:
    assert Geometric(alpha=alpha, width=width).mean_length() == pytest.approx((1 - alpha**width) / (1 - alpha))


@given(st.lists(probabilities, min_size=1, max_size=8))
def test_per_position_mean_is_the_expectation_of_its_lengths(p: list[float]) -> None:
    width = len(p) + 1
    # P(length = k): the first k - 1 accepted, the next one not (or none left)
    exact = sum(k * prod(p[: k - 1]) * ((1 - p[k - 1]) if k < width else 1) for k in range(1, width + 1))
    assert PerPosition(p=p, width=width).mean_length() == pytest.approx(exact)


def test_per_position_with_equal_probabilities_is_geometric() -> None:
    a, b = PerPosition(p=[0.5] * 6, width=7, seed=4), Geometric(alpha=0.5, width=7, seed=4)
    assert (a.draw(REQUEST, STEP) == b.draw(REQUEST, STEP)).all()
    assert a.mean_length(3) == b.mean_length(3) == 1.75


def test_histogram_mean_is_the_weighted_mean() -> None:
    model = Histogram(weights=[1, 2, 0, 5], width=4)
    assert model.mean_length() == pytest.approx((1 + 4 + 20) / 8)
    assert model.mean_length(2) == pytest.approx((1 + 2 * 7) / 8)
    assert model.mean_length(8) == model.mean_length(4)


def test_fixed_and_none() -> None:
    assert set(Fixed(length=3, width=4).draw(REQUEST, STEP)) == {3}
    assert set(Fixed(length=9, width=4).draw(REQUEST, STEP)) == {4}
    assert Fixed(length=3, width=4).mean_length() == 3 and Fixed(length=3, width=4).mean_length(2) == 2
    assert set(NoDraft(width=4).draw(REQUEST, STEP)) == {1} and NoDraft().mean_length() == 1


@pytest.mark.parametrize(
    "model",
    [
        Geometric(alpha=0.8, width=9, seed=5),
        PerPosition(p=(0.77, 0.58, 0.53), width=4, seed=6),
        PerPosition(p=(1.0, 0.0, 1.0), width=4, seed=6),
        Histogram(weights=(3, 1, 0, 2), width=4, seed=7),
    ],
)
def test_sample_mean_agrees_with_the_closed_form(model: Acceptance) -> None:
    sample = model.draw(REQUEST, STEP)
    # 200,000 draws of a variable in [1, 9]: standard error below 0.008; the bound is 4 of them
    assert sample.mean() == pytest.approx(model.mean_length(), abs=0.032)


def test_sample_frequencies_agree_with_the_histogram() -> None:
    sample = Histogram(weights=(3, 1, 0, 2), width=4, seed=7).draw(REQUEST, STEP)
    share = np.bincount(sample, minlength=5)[1:] / N
    # standard error at most 0.0012; the bound is over 4 of them
    assert share == pytest.approx([0.5, 1 / 6, 0, 1 / 3], abs=0.005)


def test_impossible_and_certain_positions_are_exact() -> None:
    assert set(PerPosition(p=(1.0, 0.0, 1.0), width=4).draw(REQUEST, STEP)) == {2}
    assert set(Geometric(alpha=1, width=4).draw(REQUEST, STEP)) == {4}
    assert set(Geometric(alpha=0, width=4).draw(REQUEST, STEP)) == {1}


# Traces ------------------------------------------------------------------------------------------------------------


def test_trace_cycles_per_request_and_cuts() -> None:
    model = Trace(lengths=[np.array([1, 4, 2]), [5]], width=4)
    request, step = np.array([0, 0, 0, 0, 1, 1]), np.array([0, 1, 2, 4, 0, 7])
    assert model.draw(request, step).tolist() == [1, 4, 2, 4, 4, 4]
    assert model.mean_length() == (1 + 4 + 2 + 4) / 4
    assert model.mean_length(2) == (1 + 2 + 2 + 2) / 4


# Errors ------------------------------------------------------------------------------------------------------------


def places(make: Callable[[], object]) -> list[str]:
    with pytest.raises(ScenarioError) as error:
        make()
    return [problem.place for problem in error.value.problems]


def test_all_problems_at_once_with_dotted_keys() -> None:
    assert places(lambda: PerPosition(p=[0.5, 1.5, -1, float("nan")], width=0)) == [
        "acceptance.width",
        "acceptance.p[1]",
        "acceptance.p[2]",
        "acceptance.p[3]",
    ]


@pytest.mark.parametrize(
    ("make", "place"),
    [
        (lambda: Fixed(length=0, width=4), "acceptance.length"),
        (lambda: Fixed(length=2.5, width=4), "acceptance.length"),  # type: ignore[arg-type]
        (lambda: Geometric(alpha=1.1, width=4), "acceptance.alpha"),
        (lambda: Geometric(alpha="0.8", width=4), "acceptance.alpha"),  # type: ignore[arg-type]
        (lambda: PerPosition(p=[0.9], width=4), "acceptance.p"),
        (lambda: PerPosition(p=0.9, width=2), "acceptance.p"),  # type: ignore[arg-type]
        (lambda: PerPosition(p=[], width=1), "acceptance.p"),
        (lambda: PerPosition(p=[0.5], width=2).mean_length(4), "acceptance.p"),
        (lambda: Histogram(weights=[0, 0], width=4), "acceptance.weights"),
        (lambda: Histogram(weights=[1, -1], width=4), "acceptance.weights[1]"),
        (lambda: Trace(lengths=[], width=4), "workload.accept"),
        (lambda: Trace(lengths=[[1], []], width=4), "workload.accept[1]"),
        (lambda: Trace(lengths=[[0]], width=4), "workload.accept[0]"),
        (lambda: NoDraft(width=0), "acceptance.width"),
    ],
)
def test_refused(make: Callable[[], object], place: str) -> None:
    assert places(make) == [place]


def test_missing_probabilities_say_how_many_are_needed() -> None:
    with pytest.raises(ScenarioError, match="1 probabilities for 3 draft positions"):
        PerPosition(p=[0.9], width=4)


def test_every_name_has_a_class() -> None:
    assert set(ACCEPTANCE) == {"none", "fixed", "geometric", "per-position", "histogram", "trace"}
