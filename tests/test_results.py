from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tiny import TINY, scenario, workload

import simkv
from simkv.errors import ScenarioError
from simkv.report import console, run_report
from simkv.results import PLOTS, Run
from simkv.simulation import Simulation
from simkv.workload.tokens import Contents

FRAMES = ("timeline", "requests", "events")
STATES = ("completed", "refused", "aborted", "unfinished", "never_arrived")


@pytest.fixture(autouse=True)
def _figures() -> Iterator[None]:
    mpl.use("Agg")
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


WORK = {
    "kind": "poisson",
    "rate": 40,
    "num_requests": 40,
    "input_tokens": {"kind": "uniform", "min": 1, "max": 60},
    "output_tokens": {"kind": "uniform", "min": 1, "max": 60},
}


def storm(**more: Any) -> simkv.Scenario:
    """Retractions, refusals, speculation."""
    return scenario(
        tokens=300,
        overlap=True,
        draft={"algorithm": "EAGLE", "num_steps": 3, "num_layers": 0},
        acceptance={"kind": "geometric", "alpha": 0.6},
        policies={"schedule_conservativeness": 0.05},
        workload={**WORK, "input_tokens": {"kind": "empirical", "values": [20, 60, 400], "weights": [20, 20, 3]}},
        **more,
    )


@pytest.fixture(scope="module")
def stormy() -> Run:
    return simkv.simulate(storm(checks={"requests.injected": "== 40", "requests.retractions": "== 0"}), check_every=1)


def hybrid(name: str, rows: Sequence[tuple[float, int, int]], *more: str, cache: bool = False) -> Run:
    one = simkv.load(name).override(
        "memory.disable_overlap_schedule=true",
        f"memory.disable_radix_cache={str(not cache).lower()}",
        "acceptance={kind='fixed', length=1}",
        "steptime={kind='constant', ms=10}",
        "checks={}",
        *more,
    )
    return simkv.simulate(one, workload=workload(rows), check_every=1)


def shared(rows: Sequence[tuple[float, int, int]], prefix: int, tokens: int = 300, **more: Any) -> Run:
    """Requests whose prompts begin with the same tokens, on a tiny model with the prefix cache on."""
    n = len(rows)
    contents = Contents(np.zeros(n, np.int64), np.full(n, prefix), np.arange(n + 1))
    one = scenario(tokens=tokens, memory={"disable_radix_cache": False}, **more)
    return simkv.simulate(one, workload=workload(rows, contents=contents), check_every=1)


def text_of(run: Run) -> str:
    out = console()
    with out.capture() as captured:
        out.print(run_report(run))
    return captured.get()


# By hand -----------------------------------------------------------------------------------------------------------


def test_time_weighted_figures_by_hand() -> None:
    # Rows of 10 ms each hold 5, 15, 14, 7 tokens of 1000 and 1, 3, 2, 1 requests (see the tests of the clock).
    run = simkv.simulate(scenario(), workload=workload([(0, 5, 3), (4, 7, 2), (10, 3, 1)]))
    s = run.summary
    assert s["full_token_usage.mean"] == pytest.approx((5 + 15 + 14 + 7) / 4 / 1000)
    assert s["full_token_usage.p50"] == pytest.approx(0.007)
    assert s["full_token_usage.p99"] == s["full_token_usage.peak"] == pytest.approx(0.015)
    assert s["full_token_usage.time_full"] == 0
    assert s["num_running_reqs.mean"] == pytest.approx(7 / 4)
    assert (s["num_running_reqs.p50"], s["num_running_reqs.p99"], s["num_running_reqs.peak"]) == (1, 3, 3)
    assert s["ttft_s.p50"] == pytest.approx(0.010)
    assert s["ttft_s.p90"] == pytest.approx(0.010 + 0.8 * 0.006)
    assert s["e2e_latency_s.p50"] == pytest.approx(0.026)
    assert s["tpot_s.p50"] == pytest.approx(0.0125)
    assert (s["tokens.input"], s["tokens.output"]) == (15, 6)
    assert s["output_tokens_per_s"] == pytest.approx(150)
    assert s["requests_per_s"] == pytest.approx(75)
    assert (s["steps.prefill"], s["steps.decode"]) == (2, 2)


def test_percentiles_weigh_rows_by_their_time() -> None:
    # 990 of 1000 tokens for one step of prefill and one of decode, then an idle gap of 180 ms up to a small request.
    one = scenario(steptime={"kind": "constant", "ms": 10})
    run = simkv.simulate(one, workload=workload([(0, 980, 2), (200, 10, 1)]))
    weights = np.diff(run.timeline["time_s"], append=run.summary["simulated_s"])
    usage = run.timeline["full_token_usage"].to_numpy()
    assert run.summary["full_token_usage.mean"] == pytest.approx((usage * weights).sum() / weights.sum())
    assert run.summary["simulated_s"] == pytest.approx(0.210)
    # Two chunks of 512 and 468 tokens, one decode: 10 ms at 0.512, 10 at 0.98, 10 at 0.981; at the end 10 at 0.01.
    assert run.summary["full_token_usage.mean"] == pytest.approx((0.512 + 0.98 + 0.981 + 0.01) / 21)
    assert run.summary["full_token_usage.p50"] == 0
    assert run.summary["full_token_usage.p99"] == pytest.approx(0.981)
    assert run.summary["full_token_usage.time_full"] == 0


def test_limits_are_shares_of_time() -> None:
    # One slot, two requests of 3 steps at once: the second waits for the first one's 30 ms of 60.
    run = simkv.simulate(scenario(memory={"max_running_requests": 1}), workload=workload([(0, 5, 3), (0, 5, 3)]))
    assert run.summary["limit.rows"] == pytest.approx(0.5)
    assert run.summary["limit.arrival"] == pytest.approx(0.5)
    assert run.summary["limit.binding"] == "rows"
    assert run.summary["num_queue_reqs.mean"] == pytest.approx(0.5)


def test_draft_depths_by_hand() -> None:
    # One prompt of 600 tokens in pages of 16, window 512, no draft token accepted: 1, 2, 3 tokens out.
    run = hybrid("routing-legacy-vs-generalized", [(0, 600, 3)], "memory.max_running_requests=64")
    frame = run.timeline[:3]
    assert frame["kind"].tolist() == ["prefill", "decode", "decode"]
    # 608 = 38 pages; a decode reserves 8 tokens ahead of 600 and of 601.
    assert frame["full_uncached_tokens"].tolist() == [608, 608, 624]
    # Heads of 128 in bf16: 4 of them in a sliding layer, 8 in a full one.
    sliding, full = 4 * 128 * 2 * 2, 8 * 128 * 2 * 2
    for ring in ("draft0", "draft2"):
        assert frame[f"{ring}_resident_tokens"].tolist() == [608, 608, 624]
        assert frame[f"{ring}_live_tokens"].tolist() == [512, 512, 512]
        assert frame[f"{ring}_resident_bytes"].tolist() == [608 * sliding, 608 * sliding, 624 * sliding]
        assert frame[f"{ring}_live_bytes"].tolist() == [512 * sliding] * 3
    assert frame["draft1_resident_tokens"].tolist() == [608, 608, 624]
    assert frame["draft1_live_tokens"].tolist() == [600, 600, 601]
    assert frame["draft1_live_bytes"].tolist() == [600 * full, 600 * full, 601 * full]


def test_a_draft_block_in_the_targets_swa_slots_by_hand() -> None:
    # Window 128, page 64, interval 128: the cursor moves from the second decode on, to whole pages below 301 - 128.
    run = hybrid("mimo-v2-flash-chat", [(0, 300, 4)], "memory.kv_bytes=20GiB")
    assert run.plan["window"] == 128
    frame = run.timeline[:4]
    assert frame["full_uncached_tokens"].tolist() == [320, 320, 320, 320]
    assert frame["swa_uncached_tokens"].tolist() == [320, 320, 192, 192]
    assert frame["window_evicted_swa_tokens"].tolist() == [0, 0, 128, 0]
    for depth in ("draft0", "draft1", "draft2"):
        assert frame[f"{depth}_resident_tokens"].tolist() == [320, 320, 192, 192]
        assert frame[f"{depth}_live_tokens"].tolist() == [128, 128, 128, 128]
    assert run.events["tokens"].tolist() == [128]
    assert run.summary["window_evicted_swa_tokens"] == 128


def test_overallocated_tokens_by_hand() -> None:
    # 5 tokens, and 2 * max(3, 4) slots ahead of them.
    one = scenario(
        draft={"algorithm": "EAGLE", "num_steps": 3, "num_layers": 0}, acceptance={"kind": "fixed", "length": 2}
    )
    run = simkv.simulate(one, workload=workload([(0, 5, 5)]))
    assert run.timeline["overallocated_tokens"].tolist()[:3] == [0, 8, 8]
    assert run.timeline["full_uncached_tokens"].tolist()[:3] == [5, 13, 15]
    assert run.summary["spec_accept_length"] == 2
    assert run.timeline["spec_accept_length"].tolist()[1:3] == [2, 2]


def test_draft_tokens_stay_live_while_the_last_step_runs() -> None:
    one = simkv.load("routing-legacy-vs-generalized").override(
        "acceptance={kind='fixed', length=1}", "steptime={kind='constant', ms=10}"
    )
    run = simkv.simulate(one, workload=workload([(0, 600, 3)]))
    held = run.timeline["draft1_resident_tokens"] > 0
    assert (run.timeline["draft1_live_tokens"][held & (run.timeline["kind"] != "idle")] >= 600).all()


def test_live_tokens_of_a_row_that_waits_for_a_result() -> None:
    one = simkv.load("routing-legacy-vs-generalized").override(
        "acceptance={kind='fixed', length=1}",
        "steptime={kind='constant', ms=10}",
        "memory.disable_radix_cache=true",
        "memory.max_running_requests=64",
    )
    run = simkv.simulate(one, workload=workload([(0, 600, 3)]))
    held = run.timeline["draft1_resident_tokens"] > 0
    assert (run.timeline["draft1_live_tokens"][held] >= 600).all()


def test_what_the_prefix_cache_found_and_gave_up_by_hand() -> None:
    # Prompts of 100, 80 and 250 tokens begin with the same 60; each computes one token after its prefill's.
    run = shared([(0, 100, 2), (100, 80, 2), (200, 250, 2)], prefix=60)
    frame = run.timeline[run.timeline["kind"] == "prefill"]
    assert frame["prefill_tokens"].tolist() == [100, 20, 190]
    assert frame["hit_tokens"].tolist() == [0, 60, 60]
    assert frame["rehit_tokens"].tolist() == [0, 0, 0]
    assert frame["cache_hit_rate"].tolist() == [0, 60 / 80, 60 / 250]
    # In the tree: the first prompt and its one token (101), then 80 + 1 - 60 more. The third needs 190 of 178 free
    # tokens, and the oldest leaf goes whole: the 41 tokens of the first request that nobody shares.
    assert frame["full_evictable_tokens"].tolist() == [0, 41, 21]
    assert frame["full_protected_tokens"].tolist() == [0, 60, 60]
    assert frame["cache_evicted_full_tokens"].tolist() == [0, 0, 41]
    assert frame["cache_evicted_full_prefill_tokens"].tolist() == [0, 0, 41]
    assert run.requests["cached_tokens"].tolist() == [0, 60, 60]
    evicted = run.events[run.events["event"] == "cache-eviction"]
    assert evicted[["pool", "tokens", "cause"]].values.tolist() == [["full", 41, "room for a prefill"]]
    s = run.summary
    assert (s["tokens.cached"], s["tokens.admitted"], s["cache_hit_rate"]) == (120, 430, 120 / 430)
    assert (s["cache_evicted_full_tokens"], s["cache_evicted_full_prefill_tokens"]) == (41, 41)
    assert s["cache_evicted_full_decode_tokens"] == s["cache_evicted_full_retraction_tokens"] == 0
    # At the end: the 60 shared tokens, 21 of the second request, 190 + 1 of the third.
    assert s["full_cached_tokens.peak"] == 272
    accounts(run)
    text = " ".join(text_of(run).split())
    assert "hit rate 27.91%: 120 of 430 prompt tokens were found; a cache without limits would find 27.91%" in text
    assert "full pool: at most 272 tokens cached (90.67% of it), 41 evicted (prefill 41)" in text
    assert "after retractions" not in text
    assert "tombstones" not in text


def test_evictions_for_a_decode_step_by_hand() -> None:
    # 81 tokens of the first request stay behind unused; the second one's 40 + 120 need some of 200.
    run = shared([(0, 100, 2), (100, 40, 120)], prefix=20, tokens=200)
    evicted = run.timeline["cache_evicted_full_decode_tokens"]
    assert evicted[evicted > 0].tolist() == [1, 80]
    assert run.summary["cache_evicted_full_decode_tokens"] == run.summary["cache_evicted_full_tokens"] == 81
    assert "81 evicted (decode 81)" in text_of(run)
    told = run.events[run.events["event"] == "cache-eviction"]
    assert set(told["cause"]) == {"room for a decode step"}


def test_tokens_found_again_after_a_retraction_by_hand() -> None:
    # The first request's prompt is still in the tree when it comes back with 91 tokens more.
    run = shared([(0, 100, 100), (0, 80, 100)], prefix=60, policies={"schedule_conservativeness": 0.01})
    assert run.requests["retractions"].tolist() == [1, 0]
    assert run.requests["cached_tokens"].tolist() == [0, 60]
    assert run.requests["rehit_tokens"].tolist() == [100, 0]
    again = run.timeline[run.timeline["rehit_tokens"] > 0]
    assert again[["hit_tokens", "rehit_tokens", "prefill_tokens"]].values.tolist() == [[0, 100, 91]]
    assert again["cache_hit_rate"].tolist() == [100 / 191]
    assert (run.summary["tokens.cached"], run.summary["tokens.rehit"]) == (60, 100)
    assert run.summary["cache_hit_rate"] == 60 / 180
    assert "60 of 180 prompt tokens were found; 100 more after retractions" in text_of(run)
    accounts(run)


def test_tombstones_by_hand() -> None:
    # Of 300 tokens four whole pages of 64 are cached; the window of 128 keeps the SWA half of the last two.
    run = hybrid("mimo-v2-flash-chat", [(0, 300, 4)], "memory.kv_bytes=20GiB", cache=True)
    frame = run.timeline[:4]
    assert frame["full_protected_tokens"].tolist() == [0, 256, 256, 256]
    assert frame["swa_protected_tokens"].tolist() == [0, 128, 128, 128]
    assert frame["tombstone_tokens"].tolist() == [0, 128, 128, 128]
    assert run.summary["tombstone_tokens.peak"] == run.summary["swa_cached_tokens.peak"] == 128
    assert run.summary["full_cached_tokens.peak"] == 256
    text = text_of(run)
    assert "tombstones: at most 128 tokens (full KV cached, SWA KV gone)" in text
    assert "SWA pool: at most 128 tokens cached" in text


# Accounts ----------------------------------------------------------------------------------------------------------


def accounts(run: Run) -> None:
    """Identities that hold in every run."""
    s, frame, requests, events = run.summary, run.timeline, run.requests, run.events
    assert sum(s[f"requests.{name}"] for name in STATES) == s["requests.injected"] == len(requests)
    for name in STATES:
        assert (requests["state"] == name.replace("_", " ")).sum() == s[f"requests.{name}"]
    pools = [pool for pool in ("full", "swa") if f"{pool}_token_usage" in frame]
    capacity = {"full": run.plan["full_max_total_num_tokens"], "swa": run.plan["swa_max_total_num_tokens"]}
    if capacity["full"] is None:
        capacity["full"] = run.plan["max_total_num_tokens"]
    for pool in pools:
        parts = [frame[f"{pool}_{part}_tokens"] for part in ("available", "evictable", "protected", "uncached")]
        assert (sum(parts) == capacity[pool]).all()
        assert all((part >= 0).all() for part in parts)
        assert frame[f"{pool}_token_usage"].between(0, 1).all()
    assert (frame["token_usage"] == frame[[f"{pool}_token_usage" for pool in pools]].max(axis=1)).all()
    assert frame["time_s"].is_monotonic_increasing
    count = events["event"].value_counts()
    assert count.get("retraction", 0) == frame["num_retracted_reqs"].sum() == s["requests.retractions"]
    assert requests["retractions"].sum() == s["requests.retractions"]
    assert (requests["retractions"] > 0).sum() == s["requests.retracted"]
    assert count.get("refusal", 0) == frame["num_refused_reqs"].sum() == s["requests.refused"]
    assert count.get("abort", 0) == s["requests.aborted"]
    evicted = events.loc[events["event"] == "window-eviction", "tokens"].sum()
    assert evicted == frame["window_evicted_swa_tokens"].sum() == s["window_evicted_swa_tokens"]
    for pool in ("full", "swa"):
        evicted = events.loc[(events["event"] == "cache-eviction") & (events["pool"] == pool), "tokens"].sum()
        assert evicted == frame[f"cache_evicted_{pool}_tokens"].sum() == s[f"cache_evicted_{pool}_tokens"]
        causes = [f"cache_evicted_{pool}_{why}_tokens" for why in ("prefill", "decode", "retraction")]
        assert (frame[causes].sum(axis=1) == frame[f"cache_evicted_{pool}_tokens"]).all()
        assert sum(s[cause] for cause in causes) == evicted
    assert frame["hit_tokens"].sum() == requests["cached_tokens"].sum() == s["tokens.cached"]
    assert frame["rehit_tokens"].sum() == requests["rehit_tokens"].sum() == s["tokens.rehit"]
    assert (requests["cached_tokens"] < requests["input_tokens"]).all()
    assert (events["tokens"] >= 0).all()
    assert events["time_s"].is_monotonic_increasing
    done = requests[requests["state"] == "completed"]
    assert (done["arrival_s"] <= done["admitted_s"]).all()
    assert (done["admitted_s"] < done["finished_s"]).all()
    assert (done["first_token_s"].isna() == (done["output_tokens"] == 0)).all()
    got = done[done["output_tokens"] > 0]
    assert (got["admitted_s"] < got["first_token_s"]).all()
    assert (got["first_token_s"] <= got["finished_s"]).all()
    assert np.allclose(got["ttft_s"], got["first_token_s"] - got["arrival_s"])
    assert np.allclose(done["e2e_latency_s"], done["finished_s"] - done["arrival_s"])
    assert (got["ttft_s"] <= got["e2e_latency_s"]).all()
    several = done[done["output_tokens"] > 1]
    assert np.allclose(several["ttft_s"] + several["tpot_s"] * (several["output_tokens"] - 1), several["e2e_latency_s"])
    assert done["output_tokens"].sum() == s["tokens.output"]
    assert done["input_tokens"].sum() == s["tokens.input"]
    for column in [c for c in frame if "_live_" in c]:
        assert (frame[column] <= frame[column.replace("_live_", "_resident_")]).all()
    limits = [s[k] for k in s.index if k.startswith("limit.") and k != "limit.binding"]
    assert sum(limits) == pytest.approx(1)


def test_accounts_of_a_storm(stormy: Run) -> None:
    assert stormy.summary["requests.retractions"] > 0
    assert stormy.summary["requests.refused"] > 0
    accounts(stormy)
    assert (stormy.events["pool"] == "full").all()


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 200), st.integers(1, 200), st.integers(0, 60)), min_size=1, max_size=25),
    overlap=st.booleans(),
    tokens=st.integers(60, 300),
    page=st.sampled_from([1, 4, 16]),
    spec=st.booleans(),
    conservativeness=st.sampled_from([0.05, 1.0]),
    cache=st.booleans(),
)
def test_accounts_of_any_run(
    rows: list[tuple[int, int, int]],
    overlap: bool,
    tokens: int,
    page: int,
    spec: bool,
    conservativeness: float,
    cache: bool,
) -> None:
    more: dict[str, Any] = {"policies": {"schedule_conservativeness": conservativeness}}
    if spec:
        more |= {
            "draft": {"algorithm": "EAGLE", "num_steps": 2, "num_layers": 0},
            "acceptance": {"kind": "geometric", "alpha": 0.5},
        }
    memory = {"page_size": page, "disable_radix_cache": not cache}
    one = scenario(tokens=tokens - tokens % page, overlap=overlap, memory=memory, **more)
    rows = sorted(rows)
    prefixes = np.minimum([row[1] for row in rows], 40)
    contents = Contents(np.zeros(len(rows), np.int64), prefixes, np.arange(len(rows) + 1))
    accounts(simkv.simulate(one, workload=workload(rows, contents=contents), check_every=1))


@pytest.mark.parametrize("name", ["mimo-v2-flash-chat", "routing-legacy-vs-generalized", "step-3.5-flash"])
def test_accounts_of_hybrid_models(name: str) -> None:
    one = simkv.load(name).override("workload.num_requests=30", "steptime={kind='constant', ms=10}", "checks={}")
    accounts(simkv.simulate(one, check_every=1))


def alone_too_large(overlap: bool) -> Run:
    """25 tokens fit 40, but not with 2 * 12 reserved."""
    one = scenario(
        tokens=40,
        overlap=overlap,
        draft={"algorithm": "NGRAM", "num_draft_tokens": 12},
        acceptance={"kind": "fixed", "length": 1},
    )
    return simkv.simulate(one, workload=workload([(0, 25, 5)]))


@pytest.mark.parametrize("overlap", [False, True])
def test_a_request_that_fits_alone_no_more_is_aborted(overlap: bool) -> None:
    run = alone_too_large(overlap)
    assert run.requests["state"].tolist() == ["aborted"]
    # That it was admitted at all is a fault of the engine, told beside it.
    aborts = run.events[run.events["event"] != "fault"]
    assert aborts["event"].tolist() == ["abort"]
    detail = "alone, its next step needs 24 tokens of a full pool that holds 40"
    assert run.requests["cause"].tolist() == [detail]
    assert aborts["cause"].tolist() == ["alone, its next step does not fit the full pool"]
    accounts(run)
    assert run.exit_code == 0


def test_an_abort_is_one_in_the_timeline() -> None:
    assert alone_too_large(overlap=False).timeline["num_aborted_reqs"].sum() == 1


def test_a_request_without_output_completes() -> None:
    run = simkv.simulate(scenario(), workload=workload([(0, 5, 0), (0, 5, 1)]))
    assert run.requests["state"].tolist() == ["completed", "completed"]
    assert run.requests["output_tokens"].tolist() == [0, 1]
    assert run.requests["tpot_s"].isna().all()
    assert run.summary["tokens.output"] == 1
    accounts(run)


def test_a_request_without_output_has_no_first_token() -> None:
    run = simkv.simulate(scenario(), workload=workload([(0, 5, 0)]))
    assert run.requests["first_token_s"].isna().all()


def test_a_prompt_that_is_too_long_is_refused_with_its_cause() -> None:
    # Of 1000 tokens the longest request has 999, and a prompt needs to stay 5 below it.
    run = simkv.simulate(scenario(), workload=workload([(0, 993, 5), (0, 994, 5)]))
    assert run.requests["state"].tolist() == ["completed", "refused"]
    assert run.requests["cause"].tolist()[0] == ""
    assert "994" in run.requests["cause"].tolist()[1]
    assert run.requests["output_tokens"].tolist()[1] == 0
    refusal = run.events[run.events["event"] == "refusal"]
    assert refusal["tokens"].tolist() == [994]
    assert refusal["request_id"].tolist() == ["r1"]
    assert run.exit_code == 0
    accounts(run)


def test_a_refused_request_has_no_first_token() -> None:
    run = simkv.simulate(scenario(), workload=workload([(0, 994, 5)]))
    assert run.requests["first_token_s"].isna().all()


def test_a_run_in_which_nothing_completes_reports(tmp_path: Path) -> None:
    run = simkv.simulate(scenario(), workload=workload([(0, 2000, 5), (1, 3000, 5)]))
    assert run.summary["requests.completed"] == 0
    text = text_of(run)
    assert "injected 2 = completed 0 + refused 2" in text
    assert "binding limit" in text
    assert "nan" not in text.lower()
    assert run.summary["output_tokens_per_s"] == 0
    again = simkv.load_run(run.save(tmp_path / "run"))
    assert text_of(again) == text


# Storage -----------------------------------------------------------------------------------------------------------


def no_constants(word: str) -> Any:
    raise AssertionError(f"{word} in run.json")


def same(a: Run, b: Run) -> None:
    for name in FRAMES:
        pd.testing.assert_frame_equal(getattr(a, name), getattr(b, name))
    assert list(a.summary.index) == list(b.summary.index)
    for key, value in a.summary.items():
        other = b.summary[key]
        if value is None or value != value:
            assert other is None or other != other
        else:
            assert other == value
            assert isinstance(other, str) == isinstance(value, str)
            assert float(other) == float(value) if not isinstance(value, str) else True


def test_a_run_comes_back_as_it_was(stormy: Run, tmp_path: Path) -> None:
    saved = stormy.save(tmp_path / "run", figures=False)
    assert sorted(p.name for p in saved.iterdir()) == [
        "events.parquet",
        "requests.parquet",
        "run.json",
        "timeline.parquet",
    ]
    data = json.loads((saved / "run.json").read_text(), parse_constant=no_constants)
    assert list(data["summary"]) == list(stormy.summary.index)
    again = simkv.load_run(saved)
    same(stormy, again)
    assert again.scenario == stormy.scenario
    assert again.plan == stormy.plan
    assert again.checks == stormy.checks
    assert again.provenance == stormy.provenance
    assert (again.fault, again.partial, again.notes, again.workload) == (
        stormy.fault,
        stormy.partial,
        stormy.notes,
        stormy.workload,
    )
    assert again.exit_code == stormy.exit_code == 1
    assert text_of(again) == text_of(stormy)


def test_figures_are_written_one_a_kind(stormy: Run, tmp_path: Path) -> None:
    saved = stormy.save(tmp_path / "run")
    assert sorted(p.stem for p in (saved / "figures").iterdir()) == sorted(PLOTS)


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


def test_equal_runs_are_equal_byte_for_byte(tmp_path: Path) -> None:
    a = simkv.simulate(storm()).save(tmp_path / "a", figures=False)
    b = simkv.simulate(storm()).save(tmp_path / "b", figures=False)
    assert bytes_of(a) == bytes_of(b)
    c = simkv.simulate(storm(), seed=1).save(tmp_path / "c", figures=False)
    assert bytes_of(a) != bytes_of(c)


def test_the_order_of_the_rows_of_a_trace_does_not_matter(tmp_path: Path) -> None:
    rng = random.Random(3)
    rows = [
        {
            "request_id": f"q{i}",
            "arrival_s": i / 50,
            "input_tokens": rng.randint(1, 90),
            "output_tokens": rng.randint(0, 40),
        }
        for i in range(40)
    ]
    saved = []
    for name in ("a", "b"):
        path = tmp_path / name / "trace.jsonl"
        path.parent.mkdir()
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        run = simkv.simulate(scenario(tokens=300, overlap=True, workload={"trace": str(path)}))
        assert run.requests["request_id"].tolist() == [f"q{i}" for i in range(40)]
        saved.append(bytes_of(run.save(tmp_path / f"run-{name}", figures=False)))
        rng.shuffle(rows)
    for name in FRAMES:
        assert saved[0][f"{name}.parquet"] == saved[1][f"{name}.parquet"]


def test_the_saved_scenario_gives_the_same_frames(tmp_path: Path) -> None:
    first = simkv.simulate(storm(), seed=5)
    again = simkv.simulate(simkv.load_run(first.save(tmp_path / "run", figures=False)).scenario)
    same(first, again)
    assert again.provenance == first.provenance


@pytest.mark.parametrize("name", simkv.builtin_names())
def test_the_saved_scenario_of_a_built_in_one_gives_the_same_frames(name: str, tmp_path: Path) -> None:
    first = simkv.simulate(simkv.load(name).override("workload.num_requests=8", "checks={}"))
    again = simkv.simulate(simkv.load_run(first.save(tmp_path / "run", figures=False)).scenario)
    same(first, again)


def test_the_saved_scenario_finds_its_trace_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.jsonl").write_text('{"arrival_s": 0, "input_tokens": 5, "output_tokens": 3}\n')
    data = scenario(workload={"trace": "t.jsonl"}).data
    one = simkv.Scenario(data, "s.toml", tmp_path)
    saved = simkv.simulate(one).save(tmp_path / "run", figures=False)
    monkeypatch.chdir("/")
    assert simkv.simulate(simkv.load_run(saved).scenario).summary["requests.completed"] == 1


@pytest.mark.parametrize("value", [float("inf"), float("nan"), pytest.param("date", id="date")])
def test_what_json_cannot_hold_is_refused(value: Any) -> None:
    import datetime

    config = {**TINY, "extra": datetime.date(2024, 1, 1) if value == "date" else value}
    with pytest.raises(ScenarioError, match=r"model\.config"):
        scenario(model={"config": config})


def test_a_failure_leaves_no_directory(stormy: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = pd.DataFrame.to_parquet
    written = []

    def breaks(frame: pd.DataFrame, path: Path, **more: Any) -> None:
        written.append(path)
        if len(written) == 2:
            raise OSError(28, "No space left on device")
        write(frame, path, **more)

    monkeypatch.setattr(pd.DataFrame, "to_parquet", breaks)
    with pytest.raises(ScenarioError, match="cannot be written: No space"):
        stormy.save(tmp_path / "run", figures=False)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_the_old_run(stormy: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = stormy.save(tmp_path / "run", figures=False)
    before = bytes_of(saved)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "_save_figures", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stormy.save(saved, force=True)
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    assert bytes_of(saved) == before


def test_a_failing_rename_leaves_the_old_run(stormy: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = stormy.save(tmp_path / "run", figures=False)
    before = bytes_of(saved)
    rename, calls = Path.rename, []

    def fails_once(self: Path, target: Path) -> Path:
        calls.append(target)
        if Path(target) == saved and len(calls) <= 2:
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fails_once)
    with pytest.raises(ScenarioError, match="Input/output error"):
        stormy.save(saved, force=True, figures=False)
    assert saved.is_dir()
    assert bytes_of(saved) == before


def test_a_directory_is_not_overwritten_by_accident(stormy: Run, tmp_path: Path) -> None:
    saved = stormy.save(tmp_path / "run", figures=False)
    with pytest.raises(ScenarioError, match="exists already"):
        stormy.save(saved, figures=False)
    (saved / "stray").write_text("x")
    stormy.save(saved, force=True, figures=False)
    assert not (saved / "stray").exists()
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("x")
    with pytest.raises(ScenarioError, match="no run directory"):
        stormy.save(foreign, force=True)
    assert (foreign / "thesis.tex").read_text() == "x"
    with pytest.raises(ScenarioError, match="no run directory"):
        stormy.save(foreign / "thesis.tex", force=True)
    (tmp_path / "empty").mkdir()
    assert stormy.save(tmp_path / "empty", force=True, figures=False).is_dir()


def test_a_run_directory_is_readable_for_others(stormy: Run, tmp_path: Path) -> None:
    saved = stormy.save(tmp_path / "a" / "b" / "run", figures=False)
    assert saved.stat().st_mode & 0o055 == 0o055


def test_a_place_that_cannot_be_written_is_an_error_of_the_user(stormy: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ScenarioError, match="cannot be written"):
        stormy.save(tmp_path / "file" / "run")


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_a_name_no_file_system_takes_is_an_error_of_the_user(stormy: Run, tmp_path: Path, name: str) -> None:
    try:
        stormy.save(tmp_path / name, figures=False)
    except ScenarioError:
        return
    pytest.fail("was written")


def test_what_is_no_run_directory(stormy: Run, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="no run directory"):
        simkv.load_run(tmp_path)
    saved = stormy.save(tmp_path / "run", figures=False)
    whole = (saved / "run.json").read_text()
    for text in ("", "{", "{}", '{"schema": 1}'):
        (saved / "run.json").write_text(text)
        with pytest.raises(ScenarioError):
            simkv.load_run(saved)
    (saved / "run.json").write_text(whole)
    (saved / "events.parquet").write_text("x")
    with pytest.raises(ScenarioError, match="no run directory"):
        simkv.load_run(saved)
    (saved / "events.parquet").unlink()
    with pytest.raises(ScenarioError, match="no run directory"):
        simkv.load_run(saved)


@pytest.mark.parametrize("text", ["[]", "null", '"x"', '{"schema": 2}'])
def test_a_run_json_of_another_shape_is_an_error_of_the_user(stormy: Run, tmp_path: Path, text: str) -> None:
    saved = stormy.save(tmp_path / "run", figures=False)
    (saved / "run.json").write_text(text)
    try:
        simkv.load_run(saved)
    except ScenarioError:
        return
    pytest.fail("was loaded")


# Checks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("== 3", True),
        ("==3.0", True),
        ("!= 3", False),
        ("< 3", False),
        ("<= 3", True),
        ("> 2.5", True),
        (">= 3e0", True),
        (" >  -1 ", True),
    ],
)
def test_checks(condition: str, holds: bool) -> None:
    run = simkv.simulate(scenario(checks={"requests.completed": condition}), workload=workload([(0, 5, 2)] * 3))
    [check] = run.checks
    assert (check.key, check.value, check.holds) == ("requests.completed", 3, holds)
    assert run.exit_code == (0 if holds else 1)
    assert [c.key for c in run.failed_checks] == ([] if holds else ["requests.completed"])
    assert ("holds" in text_of(run)) is holds


def test_a_figure_without_a_value_does_not_pass() -> None:
    run = simkv.simulate(scenario(checks={"spec_accept_length": ">= 0"}), workload=workload([(0, 5, 2)]))
    assert [c.holds for c in run.checks] == [False]
    assert run.exit_code == 1


def test_a_check_of_an_unknown_figure_is_refused_before_anything_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Simulation, "run", lambda self: pytest.fail("was simulated"))
    wrong = {"requests.complete": "== 3", "swa_token_usage.p99": "< 1", "requests.completed": "== 3"}
    with pytest.raises(ScenarioError) as caught:
        simkv.simulate(scenario(checks=wrong), workload=workload([(0, 5, 2)]))
    found = {p.place: p.message for p in caught.value.problems}
    assert set(found) == {'checks."requests.complete"', 'checks."swa_token_usage.p99"'}
    assert "did you mean requests.completed?" in found['checks."requests.complete"']


def test_every_figure_can_be_checked() -> None:
    plain = simkv.simulate(scenario(), workload=workload([(0, 5, 2)]))
    wanted = dict.fromkeys(plain.summary.index, ">= 0")
    run = simkv.simulate(scenario(checks=wanted), workload=workload([(0, 5, 2)]))
    assert {c.key for c in run.checks} == set(plain.summary.index)


# Pictures ----------------------------------------------------------------------------------------------------------


def bare() -> Run:
    return simkv.simulate(scenario(), workload=workload([(0, 2000, 5)]))


@pytest.mark.parametrize("kind", PLOTS)
def test_every_kind_of_picture_is_drawn(stormy: Run, kind: str) -> None:
    for run in (
        stormy,
        hybrid("routing-legacy-vs-generalized", [(0, 600, 3)], "memory.max_running_requests=64"),
        bare(),
    ):
        drawn = run.plot(kind)
        assert isinstance(drawn, Figure if kind == "dashboard" else Axes)
        if kind != "dashboard":
            assert isinstance(drawn, Axes)
            assert run.name in str(drawn.get_title(loc="left")) + str(drawn.get_title())


def test_a_picture_is_drawn_where_it_is_told(stormy: Run) -> None:
    figure = Figure()
    ax = figure.subplots()
    assert stormy.plot("utilization", ax=ax, title="mine") is ax
    assert "mine" in ax.get_title(loc="left") + ax.get_title()
    with pytest.raises(ScenarioError, match=r"did you mean utilization\?"):
        stormy.plot("utilisation")


def test_a_run_shows_itself(stormy: Run) -> None:
    assert repr(stormy).startswith("Run('tiny', ")
    assert "requests.completed" in stormy._repr_html_()


# What the report says ------------------------------------------------------------------------------------------------


def test_what_was_computed_again_is_counted(stormy: Run) -> None:
    # Refused prompts are prefilled as stubs of one token.
    refused = int((stormy.requests["state"] == "refused").sum())
    served = stormy.requests[stormy.requests["state"] != "refused"]
    again = int(stormy.requests["recomputed_tokens"].sum())
    assert again > 0
    assert stormy.timeline["prefill_tokens"].sum() == served["input_tokens"].sum() + again + refused
    assert (stormy.requests.loc[stormy.requests["retractions"] == 0, "recomputed_tokens"] == 0).all()
    assert stormy.summary["tokens.recomputed"] == again
    assert f"{again:,} tokens were computed again" in " ".join(text_of(stormy).split())


def test_tokens_of_requests_that_did_not_complete_are_named() -> None:
    run = alone_too_large(overlap=False)
    assert run.summary["tokens.output"] == 0
    generated = int(run.requests["output_tokens"].sum())
    assert generated > 0
    assert run.summary["tokens.generated"] == generated
    assert f"0 output tokens of completed requests (and {generated:,} of others)" in " ".join(text_of(run).split())


def test_a_refusal_says_its_figures_in_the_report() -> None:
    run = simkv.simulate(scenario(), workload=workload([(0, 1200, 5), (0, 5, 1)]))
    cause = run.requests["cause"].tolist()[0]
    assert "1,200" in cause
    assert cause in " ".join(text_of(run).split())


def test_a_prefix_cache_that_is_off_is_said_to_be() -> None:
    run = simkv.simulate(scenario(), workload=workload([(0, 5, 2)]))
    assert "the prefix cache is off\n" in text_of(run)
    assert "hit rate" not in text_of(run)
    assert "the prefix cache is off (memory.disable_radix_cache)" in [t.get_text() for t in run.plot("cache").texts]


def test_faults_and_repairs_are_listed_with_their_code() -> None:
    run = alone_too_large(overlap=False)
    assert "1 x fault, full pool: F4: a lone speculative request" in " ".join(text_of(run).split())
    rows = [
        (0.1, "repair", "-", "swa", 0, "F2: livelock"),
        (0.2, "repair", "r0", "swa", 0, "F2: livelock"),
        (0.3, "fault", "r0", "swa", 0, "F1: 40 of its tokens are computed"),
        (0.4, "fault", "r0", "swa", 0, "F1: 8 of its tokens are computed"),
        (0.5, "fault", "r0", "swa", 0, "F5: it waits for ever"),
    ]
    events = pd.DataFrame(rows, columns=["time_s", "event", "request_id", "pool", "tokens", "cause"])
    ended = replace(run, events=events, fault={"fault": "F5", "message": "it waits for ever"})
    text = " ".join(text_of(ended).split())
    assert "2 x repair, swa pool: F2: livelock (first at 0.1 s)" in text
    assert "2 x fault, swa pool: F1: 40 of its tokens are computed (first r0 at 0.3 s)" in text
    # What ended the run is told once.
    assert text.count("it waits for ever") == text.count("F5") == 1


def test_prices_of_two_pools_add_up_to_the_budget() -> None:
    # Step-3.5-Flash: 12 full layers, 33 sliding and 3 draft layers of 1,024 B; without the prefix cache the SWA pool is
    # sized by requests.
    changes = ("memory.mem_fraction_static=0.8", "memory.disable_radix_cache=true")
    plan = simkv.load("step-3.5-flash").override(*changes).plan()
    text = " ".join(str(plan_text(plan)).split())
    assert "12,288 B for each token of the full pool, 36,864 B for each of the SWA pool" in text
    budget = 12_288 * (plan.full_max_total_num_tokens or 0) + 36_864 * (plan.swa_max_total_num_tokens or 0)
    assert 0 <= plan.kv_bytes - budget < 12_288 * 64


def plan_text(plan: Any) -> str:
    from simkv.report import plan_report

    out = console()
    with out.capture() as captured:
        out.print(plan_report(plan.to_dict()))
    return captured.get()


def test_settings_without_effect_are_named() -> None:
    one = scenario(acceptance={"kind": "fixed", "length": 2}, memory={"weights": "1GiB", "mem_fraction_static": 0.5})
    run = simkv.simulate(one, workload=workload([(0, 5, 1)]))
    assert "acceptance fixed has no effect: there is no [draft]" in run.notes
    assert "memory.kv_bytes is the budget itself: mem_fraction_static, weights have no effect" in run.plan["notes"]


def test_a_notebook_shows_names_as_they_are() -> None:
    one = scenario(name="<b>x</b>")
    assert "<b>x</b>" not in simkv.simulate(one, workload=workload([(0, 5, 3)]))._repr_html_()
