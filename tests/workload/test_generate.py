from __future__ import annotations

from collections.abc import Callable
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simkv.errors import ScenarioError
from simkv.workload.generate import KINDS, generate
from simkv.workload.lengths import SHAPES, Empirical, Lengths, LogNormal, Percentiles, Uniform, lengths, stream
from simkv.workload.request import Workload
from simkv.workload.reuse import found_again
from simkv.workload.tokens import Tokens
from simkv.workload.traces import describe, read_trace, write_trace

POISSON: dict[str, Any] = {
    "kind": "poisson",
    "rate": 4.0,
    "num_requests": 5000,
    "input_tokens": "azure2023_conv",
    "output_tokens": {"kind": "lognormal", "median": 200, "sigma": 0.8, "max": 2000},
}
EVERY_KIND: list[dict[str, Any]] = [
    {"kind": "poisson", "rate": 4.0},
    {"kind": "gamma", "rate": 4.0, "cv": 3.0},
    {"kind": "constant", "rate": 4.0},
    {"kind": "burst", "burst_size": 7, "burst_interval_s": 2.5},
    {"kind": "closed", "concurrency": 16, "think_s": 1.0},
]

GOLDEN_STREAM = [0.15631536411972913, 0.6806645423159413, 0.07564964920505524]
GOLDEN_ARRIVALS = [0, 543469440, 608837032, 775101570]
GOLDEN_INPUTS = [4123, 2655, 1079, 1085]


def spec(**changes: Any) -> dict[str, Any]:
    return {"num_requests": 200, "input_tokens": 100, "output_tokens": 10, **changes}


def found(workload: Workload) -> list[int]:
    tokens = found_again(workload)
    assert tokens is not None
    return [int(number) for number in tokens]


def gaps_s(workload: Workload) -> Any:
    return np.diff(workload.arrival_ns) / 1e9


# Streams -----------------------------------------------------------------------------------------------------------


def test_streams_are_named() -> None:
    a, b = stream(1, "arrivals").random(4), stream(1, "input_tokens").random(4)
    assert (stream(1, "arrivals").random(4) == a).all()
    assert not (a == b).any() and not (stream(2, "arrivals").random(4) == a).any()


def test_first_draws_do_not_change_between_versions() -> None:
    assert stream(7, "arrivals").random(3).tolist() == GOLDEN_STREAM
    workload = generate({**POISSON, "num_requests": 4}, seed=7)
    assert workload.arrival_ns.tolist() == GOLDEN_ARRIVALS
    assert workload.input_tokens.tolist() == GOLDEN_INPUTS


@pytest.mark.parametrize("kind", EVERY_KIND, ids=lambda kind: kind["kind"])
def test_same_seed_same_workload(kind: dict[str, Any]) -> None:
    first, second, other = (generate(spec(**kind, input_tokens="azure2023_conv"), seed=s) for s in (1, 1, 2))
    assert first.digest() == second.digest() != other.digest()


def test_a_change_of_one_stream_leaves_the_others() -> None:
    base = generate(POISSON, seed=3)
    longer = generate({**POISSON, "output_tokens": "mooncake_conversation"}, seed=3)
    faster = generate({**POISSON, "kind": "gamma", "cv": 2.0}, seed=3)
    assert (base.arrival_ns == longer.arrival_ns).all() and (base.input_tokens == longer.input_tokens).all()
    assert (base.input_tokens == faster.input_tokens).all() and (base.output_tokens == faster.output_tokens).all()


@pytest.mark.parametrize("kind", EVERY_KIND, ids=lambda kind: kind["kind"])
def test_more_requests_extend_the_same_beginning(kind: dict[str, Any]) -> None:
    few = generate(spec(**kind, num_requests=50, input_tokens="weka_agents"), seed=5)
    many = generate(spec(**kind, num_requests=80, input_tokens="weka_agents"), seed=5)
    assert many.take(np.arange(50)).digest() == few.digest()


# Arrivals ----------------------------------------------------------------------------------------------------------


@given(st.sampled_from(EVERY_KIND), st.integers(1, 60), st.integers(0, 2**32))
def test_a_workload_is_well_formed(kind: dict[str, Any], n: int, seed: int) -> None:
    workload = generate(spec(**kind, num_requests=n, output_tokens="azure2023_code"), seed)
    assert len(workload) == n == len(set(workload.request_id))
    assert workload.arrival_ns[0] == 0 and (np.diff(workload.arrival_ns) >= 0).all()
    assert workload.input_tokens.min() >= 1 and workload.output_tokens.min() >= 1
    columns = (workload.arrival_ns, workload.input_tokens, workload.output_tokens)
    assert {column.dtype for column in columns} == {np.dtype(np.int64)}


def test_poisson_gaps_are_exponential() -> None:
    gaps = gaps_s(generate(POISSON, seed=1))
    # n = 4,999, mean 0.25: standard error of the mean 0.0035, of the cv 0.014, of the share 0.007; bounds are 4 of them
    assert gaps.mean() == pytest.approx(0.25, abs=0.014)
    assert gaps.std() / gaps.mean() == pytest.approx(1, abs=0.06)
    assert (gaps > 0.25).mean() == pytest.approx(exp(-1), abs=0.028)


@pytest.mark.parametrize("cv", [0.5, 3.0])
def test_gamma_gaps_have_the_rate_and_the_variation(cv: float) -> None:
    gaps = gaps_s(generate({**POISSON, "kind": "gamma", "cv": cv, "num_requests": 40_000}, seed=1))
    # standard error of the mean: cv / 200 of it; of the cv below 2% for cv = 3; bounds are 4 of them
    assert gaps.mean() == pytest.approx(0.25, rel=4 * cv / 200)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.08)


def test_constant_and_burst_are_exact() -> None:
    steady = generate(spec(kind="constant", rate=8.0, num_requests=4))
    assert steady.arrival_ns.tolist() == [0, 125_000_000, 250_000_000, 375_000_000]
    burst = generate(spec(kind="burst", burst_size=2, burst_interval_s=0.5, num_requests=5))
    assert burst.arrival_ns.tolist() == [0, 0, 500_000_000, 500_000_000, 1_000_000_000]


def test_closed_loop_draws_pauses() -> None:
    workload = generate(spec(kind="closed", concurrency=16, think_s=2.0, num_requests=10_000), seed=1)
    assert workload.concurrency == 16 and not workload.arrival_ns.any()
    assert workload.think_ns is not None
    # exponential: standard error of the mean 0.02 s; the bound is 4 of them
    assert workload.think_ns.mean() / 1e9 == pytest.approx(2.0, abs=0.08)
    assert workload.think_ns.std() / workload.think_ns.mean() == pytest.approx(1, abs=0.06)


def test_closed_loop_with_constant_or_no_pause() -> None:
    constant = generate(spec(kind="closed", concurrency=2, think_s=0.5, think_cv=0.0))
    assert constant.think_ns is not None and set(constant.think_ns.tolist()) == {500_000_000}
    busy = generate(spec(kind="closed", concurrency=2))
    assert busy.think_ns is not None and not busy.think_ns.any()


def test_a_swinging_rate_counts_what_its_integral_says() -> None:
    rate, amplitude, period, n = 10.0, 0.9, 100.0, 4000
    workload = generate(
        spec(kind="constant", rate=rate, rate_amplitude=amplitude, rate_period_s=period, num_requests=n)
    )
    t = workload.arrival_ns / 1e9
    swing = amplitude * period / (2 * np.pi)
    true = t + _first_time(rate, amplitude, period)  # t counts from the first request
    count = rate * (true + swing * (1 - np.cos(2 * np.pi * true / period)))
    assert np.abs(count - np.arange(1, n + 1)).max() < 1e-5
    # sin > 0 in the first half of a period: (1/2 + 0.9 / pi) of its arrivals fall there
    assert ((t % period) < period / 2).mean() == pytest.approx(0.5 + amplitude / np.pi, abs=0.002)


def _first_time(rate: float, amplitude: float, period: float) -> float:
    """Where the integral of the rate reaches 1, by Newton's method."""
    t = 0.0
    for _ in range(50):
        integral = rate * (t + amplitude * period / (2 * np.pi) * (1 - np.cos(2 * np.pi * t / period)))
        t -= (integral - 1) / (rate * (1 + amplitude * np.sin(2 * np.pi * t / period)))
    return float(t)


# Lengths -----------------------------------------------------------------------------------------------------------

GRID = (np.arange(100_000) + 0.5) / 100_000


def mean(distribution: Lengths) -> float:
    """Mean by the midpoint rule over the quantile function."""
    return float(distribution.quantile(GRID).mean())


def test_constant_length() -> None:
    workload = generate(spec(kind="constant", rate=1.0, input_tokens=1024))
    assert set(workload.input_tokens.tolist()) == {1024} and set(workload.output_tokens.tolist()) == {10}


def test_uniform_takes_every_value_alike() -> None:
    values, counts = np.unique(Uniform(3, 7).quantile(GRID), return_counts=True)
    assert values.tolist() == [3, 4, 5, 6, 7] and counts.tolist() == [20_000] * 5


def test_lognormal_has_its_median_mean_and_clip() -> None:
    plain = LogNormal(200, 0.8)
    assert plain.quantile(np.array([0.5]))[0] == pytest.approx(200)
    assert mean(plain) == pytest.approx(200 * exp(0.8**2 / 2), rel=1e-3)
    clipped = LogNormal(200, 0.8, 50, 300).quantile(GRID)
    assert clipped.min() == 50 and clipped.max() == 300
    assert set(LogNormal(200, 0).quantile(np.array([0.0, 0.3]))) == {200.0}


def test_percentiles_interpolate_the_logarithm() -> None:
    table = Percentiles(((0, 1), (50, 100), (100, 10_000)))
    assert table.quantile(np.array([0.0, 0.25, 0.5, 0.75])) == pytest.approx([1, 10, 100, 1000])
    assert table.mean() == pytest.approx((99 / log(100) + 9900 / log(100)) / 2) == pytest.approx(mean(table), rel=1e-4)


def test_beyond_the_outer_percentiles_the_length_is_theirs() -> None:
    table = Percentiles(((25, 10), (75, 20)))
    assert table.quantile(np.array([0.0, 0.2, 0.8, 0.99])).tolist() == pytest.approx([10, 10, 20, 20])
    assert table.mean() == pytest.approx(2.5 + 5 + 0.5 * 10 / log(2))


def test_empirical_values_have_their_weights() -> None:
    drawn = Empirical((30, 10, 20), (1, 2, 0)).quantile(GRID)
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == [10, 30]
    assert counts / len(GRID) == pytest.approx([2 / 3, 1 / 3], abs=1e-4)


@given(st.sampled_from(sorted(SHAPES)), st.sampled_from(["input_tokens", "output_tokens"]))
def test_shapes_ascend_and_stay_between_their_ends(name: str, column: str) -> None:
    points = SHAPES[name][column == "output_tokens"]
    at, tokens = zip(*points, strict=True)
    assert list(at) == sorted(set(at)) and list(tokens) == sorted(tokens) and at[0] == 0 and at[-1] == 100
    drawn = lengths(name, column).quantile(GRID)
    assert drawn.min() >= tokens[0] * (1 - 1e-12) and drawn.max() <= tokens[-1] * (1 + 1e-12)
    assert drawn.mean() == pytest.approx(Percentiles(points).mean(), rel=2e-3)


@pytest.mark.parametrize(
    ("name", "inputs", "outputs"),
    [
        ("azure2023_conv", 1155, 211),
        ("azure2023_code", 2048, 28),
        ("mooncake_conversation", 12_035, 343),
        ("mooncake_synthetic", 15_325, 149),
        ("weka_agents", 122_379, 440),
        ("sharegpt_300s", 857, 653),
    ],
)
def test_shapes_have_about_the_mean_of_their_trace(name: str, inputs: float, outputs: float) -> None:
    # a table of twelve percentiles knows the mean to 2% (inputs) and 8% (outputs) in these traces
    assert Percentiles(SHAPES[name][0]).mean() == pytest.approx(inputs, rel=0.02)
    assert Percentiles(SHAPES[name][1]).mean() == pytest.approx(outputs, rel=0.08)


def test_a_shape_gives_each_column_its_own_marginal_and_may_be_clipped() -> None:
    table = {"kind": "azure2023_code", "max": 4096}
    workload = generate({**POISSON, "input_tokens": table, "output_tokens": "azure2023_code"}, seed=2)
    assert workload.input_tokens.max() == 4096
    # medians of the trace: 1,469 and 13; with 5,000 draws within 10%
    assert np.median(workload.input_tokens) == pytest.approx(1469, rel=0.1)
    assert np.median(workload.output_tokens) == pytest.approx(13, rel=0.1)


def test_percentile_keys_may_be_text_as_in_toml() -> None:
    assert lengths({"kind": "empirical", "percentiles": {"50": 10, "0": 1, "99.9": 40}}) == Percentiles(
        ((0, 1), (50, 10), (99.9, 40))
    )


# What requests share -----------------------------------------------------------------------------------------------

SHARED = {"shared_prefix_tokens": "azure2023_conv", "shared_prefix_pool": 5, "shared_prefix_zipf": 1.0}
TURNS = {"turns": {"kind": "uniform", "min": 1, "max": 6}}
SHARING: list[dict[str, Any]] = [SHARED, TURNS, {**SHARED, **TURNS}]


def tokens_of(workload: Workload) -> list[Tokens]:
    contents = workload.identity()
    assert contents is not None
    lengths = zip(workload.input_tokens.tolist(), workload.output_tokens.tolist(), strict=True)
    return [contents.tokens(i, given, made) for i, (given, made) in enumerate(lengths)]


@pytest.mark.parametrize("kind", EVERY_KIND, ids=lambda kind: kind["kind"])
@pytest.mark.parametrize("sharing", SHARING, ids=["prefix", "turns", "both"])
def test_sharing_requests_extend_the_same_beginning(kind: dict[str, Any], sharing: dict[str, Any]) -> None:
    few, same, many = (
        generate(spec(**kind, **sharing, num_requests=n, input_tokens="azure2023_code"), seed=5) for n in (50, 50, 80)
    )
    assert few.digest() == same.digest() == many.take(np.arange(50)).digest()


def test_R64_ten_requests_share_a_prefix(tmp_path: Path) -> None:
    table = spec(kind="constant", rate=1.0, num_requests=10, shared_prefix_tokens=14_336)
    workload = generate(table)
    assert set(workload.input_tokens.tolist()) == {14_436}
    assert workload.session is workload.previous is workload.think_ns is None
    # nine of ten find 14,336 tokens, and none the 100 tokens of another one
    assert found(workload) == [0, *[14_336] * 9]
    assert describe(workload)["reusable_token_share"] == pytest.approx(129_024 / 144_360)
    first, *others = tokens_of(workload)
    assert {first.common(other, 0, 14_437) for other in others} == {14_336}
    for form in ("csv", "jsonl"):
        assert write_trace(workload, tmp_path / form, form) == ()
        back = read_trace(tmp_path / form)
        assert back.digest() == workload.digest() and found(back) == found(workload)


def test_a_prefix_comes_on_top_and_its_length_is_drawn_once() -> None:
    base = {"kind": "poisson", "rate": 4.0, "num_requests": 3000, "input_tokens": "azure2023_code"}
    plain, workload = generate(spec(**base), seed=3), generate(spec(**base, **SHARED), seed=3)
    for name in ("arrival_ns", "output_tokens"):
        assert (getattr(plain, name) == getattr(workload, name)).all()
    contents = workload.contents
    assert contents is not None and contents.outputs is None
    assert (workload.input_tokens - contents.lengths == plain.input_tokens).all()
    starts, first, counts = np.unique(contents.starts, return_index=True, return_counts=True)
    length = contents.lengths[first]
    # five prefixes side by side, each of one length
    assert starts.tolist() == [0, *np.cumsum(length)[:-1].tolist()]
    assert (length[np.searchsorted(starts, contents.starts)] == contents.lengths).all()
    # popularity 1, 1/2, 1/3, 1/4, 1/5 of 137/60; the standard error of a share is below 0.01, the bound 4 of them
    shares = np.array([1 / k for k in range(1, 6)]) * 60 / 137
    assert counts / 3000 == pytest.approx(shares, abs=0.037)


def test_prefixes_are_alike_unless_popularity_is_stated() -> None:
    table = spec(kind="constant", rate=1.0, num_requests=4000, shared_prefix_tokens=7, shared_prefix_pool=4)
    contents = generate(table, seed=1).contents
    assert contents is not None
    starts, counts = np.unique(contents.starts, return_counts=True)
    assert starts.tolist() == [0, 7, 14, 21]
    assert counts / 4000 == pytest.approx(np.full(4, 0.25), abs=4 * (0.25 * 0.75 / 4000) ** 0.5)


def test_turns_grow_by_question_and_answer() -> None:
    workload = generate(spec(kind="constant", rate=0.5, num_requests=7, turns=3, think_s=2.0, think_cv=0.0))
    # 100 in and 10 out a turn, the third session cut after one
    assert workload.input_tokens.tolist() == [100, 210, 320, 100, 210, 320, 100]
    assert workload.session is not None and workload.session.tolist() == [0, 0, 0, 1, 1, 1, 2]
    assert workload.previous is not None and workload.previous.tolist() == [-1, 0, 1, -1, 3, 4, -1]
    assert workload.arrival_ns.tolist() == [0] * 3 + [2 * 10**9] * 3 + [4 * 10**9]
    assert workload.think_ns is not None
    assert (workload.think_ns / 1e9).tolist() == [0, 2, 2, 0, 2, 2, 0]
    assert found(workload) == [0, 110, 220, 0, 110, 220, 0]


@pytest.mark.parametrize("prefix", [0, 1000])
def test_sessions_begin_with_their_prefix(prefix: int) -> None:
    more = {"shared_prefix_tokens": prefix} if prefix else {}
    workload = generate(spec(kind="burst", burst_size=2, burst_interval_s=1.0, num_requests=5, turns=2, **more))
    assert workload.input_tokens.tolist() == [prefix + 100, prefix + 210] * 2 + [prefix + 100]
    assert found(workload) == [0, prefix + 110, prefix, prefix + 110, prefix]
    # bursts are of sessions
    assert workload.arrival_ns.tolist() == [0, 0, 0, 0, 10**9]


def test_clients_of_a_closed_loop_run_sessions() -> None:
    workload = generate(spec(kind="closed", concurrency=2, think_s=1.0, num_requests=6, turns=2), seed=4)
    plain = generate(spec(kind="closed", concurrency=2, think_s=1.0, num_requests=6), seed=4)
    assert workload.concurrency == 2 and not workload.arrival_ns.any()
    assert workload.previous is not None and workload.previous.tolist() == [-1, 0, -1, 2, -1, 4]
    assert workload.think_ns is not None and plain.think_ns is not None
    assert (workload.think_ns == plain.think_ns).all() and workload.think_ns.all()


@given(st.sampled_from(EVERY_KIND), st.sampled_from(SHARING), st.integers(1, 40), st.integers(0, 2**32))
def test_sharing_workloads_add_up(kind: dict[str, Any], sharing: dict[str, Any], n: int, seed: int) -> None:
    lengths_of = {"input_tokens": "azure2023_code", "output_tokens": "azure2023_code", "num_requests": n}
    plain, workload = generate(spec(**kind, **lengths_of), seed), generate(spec(**kind, **lengths_of, **sharing), seed)
    assert (plain.output_tokens == workload.output_tokens).all()
    assert len(workload) == n and (np.diff(workload.arrival_ns) >= 0).all()
    own, made, whole = plain.input_tokens, plain.output_tokens, workload.input_tokens
    before = np.full(n, -1) if workload.previous is None else workload.previous
    tokens = tokens_of(workload)
    prefixes = set()
    for row, previous in enumerate(before.tolist()):
        if previous < 0:
            prefixes.add(int(whole[row] - own[row]))
        else:
            known = int(whole[previous] + made[previous])
            assert whole[row] == known + own[row] and previous == row - 1
            assert tokens[row].common(tokens[previous], 0, known) == known
    assert len(prefixes) <= 5 and (prefixes == {0}) == ("shared_prefix_tokens" not in sharing)
    assert workload.contents is not None
    shares = np.add.reduceat(np.append(workload.contents.lengths, 0), workload.contents.offsets[:-1])
    assert (shares <= whole).all()


# Errors ------------------------------------------------------------------------------------------------------------


def places(make: Callable[[], object]) -> list[str]:
    with pytest.raises(ScenarioError) as error:
        make()
    return sorted(problem.place for problem in error.value.problems)


def test_all_problems_at_once() -> None:
    wrong = {
        "kind": "gamma",
        "rte": 8,
        "num_requests": 0,
        "input_tokens": {"kind": "uniform", "min": 3, "mx": 4},
        "output_tokens": "azure2023_conf",
        "ignore_eos": 1,
    }
    assert places(lambda: generate(wrong)) == [
        "workload.cv",
        "workload.ignore_eos",
        "workload.input_tokens.max",
        "workload.input_tokens.mx",
        "workload.num_requests",
        "workload.output_tokens.kind",
        "workload.rate",
        "workload.rte",
    ]
    with pytest.raises(ScenarioError, match="did you mean azure2023_conv"):
        generate(wrong)


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"kind": "poison", "rate": 1.0}, "workload.kind"),
        ({"kind": None}, "workload.kind"),
        ({"kind": ["poisson"]}, "workload.kind"),
        ({"kind": "poisson", "rate": 0}, "workload.rate"),
        ({"kind": "poisson", "rate": float("nan")}, "workload.rate"),
        ({"kind": "poisson", "rate": True}, "workload.rate"),
        ({"kind": "poisson", "rate": 1.0, "cv": 2.0}, "workload.cv"),
        ({"kind": "poisson", "rate": 1.0, "rate_amplitude": 0.5}, "workload.rate_period_s"),
        ({"kind": "poisson", "rate": 1.0, "rate_amplitude": 1.5, "rate_period_s": 9}, "workload.rate_amplitude"),
        ({"kind": "burst", "burst_size": 1.5, "burst_interval_s": 1.0}, "workload.burst_size"),
        ({"kind": "closed", "concurrency": 0}, "workload.concurrency"),
        ({"kind": "closed", "concurrency": 1, "think_s": -1}, "workload.think_s"),
        ({"kind": "constant", "rate": 1.0, "input_tokens": 0}, "workload.input_tokens.value"),
        ({"kind": "constant", "rate": 1.0, "input_tokens": None}, "workload.input_tokens"),
        ({"kind": "constant", "rate": 1.0, "input_tokens": 1.5}, "workload.input_tokens"),
        ({"kind": "constant", "rate": 1.0, "output_tokens": {}}, "workload.output_tokens.kind"),
        ({"kind": "constant", "rate": 1.0, "turns": 0}, "workload.turns.value"),
        ({"kind": "constant", "rate": 1.0, "turns": "azure2023_conv"}, "workload.turns.kind"),
        (
            {"kind": "constant", "rate": 1.0, "turns": 10**9, "num_requests": 1000, "input_tokens": 10**8},
            "workload.turns",
        ),
        ({"kind": "constant", "rate": 1.0, "think_s": 1.0}, "workload.think_s"),
        ({"kind": "constant", "rate": 1.0, "turns": 2, "think_s": -1.0}, "workload.think_s"),
        ({"kind": "constant", "rate": 1.0, "turns": 2, "think_mean_s": 1.0}, "workload.think_mean_s"),
        ({"kind": "constant", "rate": 1.0, "shared_prefix_pool": 2}, "workload.shared_prefix_pool"),
        ({"kind": "constant", "rate": 1.0, "shared_prefix_zipf": 1}, "workload.shared_prefix_zipf"),
        ({"kind": "constant", "rate": 1.0, "shared_prefix_tokens": 0}, "workload.shared_prefix_tokens.value"),
        ({"kind": "constant", "rate": 1.0, "shared_prefix_tokens": 10**9}, "workload.shared_prefix_tokens"),
        (
            {"kind": "constant", "rate": 1.0, "shared_prefix_tokens": 9, "shared_prefix_pool": 10**7},
            "workload.shared_prefix_pool",
        ),
        (
            {"kind": "constant", "rate": 1.0, "shared_prefix_tokens": 9, "shared_prefix_zipf": -1},
            "workload.shared_prefix_zipf",
        ),
    ],
)
def test_refused(changes: dict[str, Any], place: str) -> None:
    assert places(lambda: generate(spec(**changes))) == [place]


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"kind": "uniform", "min": 9, "max": 3}, "max"),
        ({"kind": "lognormal", "median": 0, "sigma": 1}, "median"),
        ({"kind": "lognormal", "median": 5, "sigma": -1}, "sigma"),
        ({"kind": "lognormal", "median": 5, "sigma": 1, "min": 9, "max": 3}, "max"),
        ({"kind": "empirical"}, "percentiles"),
        ({"kind": "empirical", "percentiles": {"50": 1}, "values": [1]}, "percentiles"),
        ({"kind": "empirical", "percentiles": {}}, "percentiles"),
        ({"kind": "empirical", "percentiles": {"p50": 7}}, "percentiles.p50"),
        ({"kind": "empirical", "percentiles": {"101": 7}}, "percentiles.101"),
        ({"kind": "empirical", "percentiles": {"50": 0}}, "percentiles.50"),
        ({"kind": "empirical", "percentiles": {"10": 7, "50": 6}}, "percentiles"),
        ({"kind": "empirical", "values": []}, "values"),
        ({"kind": "empirical", "values": [0]}, "values"),
        ({"kind": "empirical", "values": [1, 2], "weights": [1]}, "weights"),
        ({"kind": "empirical", "values": [1, 2], "weights": [0, 0]}, "weights"),
        ({"kind": "weka_agents", "mean": 4}, "mean"),
    ],
)
def test_lengths_refused(table: dict[str, Any], key: str) -> None:
    assert places(lambda: lengths(table, "output_tokens")) == [f"workload.output_tokens.{key}"]


def test_every_kind_is_tested() -> None:
    assert {kind["kind"] for kind in EVERY_KIND} == set(KINDS)
