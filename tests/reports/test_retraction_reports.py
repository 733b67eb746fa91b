"""User reports of kind ``retraction``: who must go, because of which pool, and what is promised afterwards."""

from __future__ import annotations

import pytest
from report_cases import decoding, dense, hybrid, prefills, requests, run, with_draft

import simkv
from simkv.engines.base import Request
from simkv.engines.sglang.scheduling import Scheduler
from simkv.engines.sglang.settings import Settings

# ------------------------------------------------------------------------------------------------------ R39

R39_FULL, R39_SWA = 2_646_784, 243_200


def r39(ratio: float = 0.0919) -> simkv.Run:
    # Verify steps of 16 tokens stand in for the long decode of the report.
    scenario = with_draft(
        hybrid(128, page_size=256, max_total_tokens=R39_FULL, swa_full_tokens_ratio=ratio, max_running_requests="pool"),
        "EAGLE",
        accept=16,
        num_steps=15,
    )
    return simkv.simulate(scenario, workload=requests([(600_000, 64_000)] * 7))


@pytest.fixture(scope="module")
def growing() -> simkv.Run:
    """Four requests that grow beyond a quarter of the full pool each, and three that wait."""
    return r39()


def test_R39_the_full_pool_is_named(growing: simkv.Run) -> None:
    assert growing.plan["full_max_total_num_tokens"] == R39_FULL
    assert growing.plan["swa_max_total_num_tokens"] == R39_SWA
    events = growing.events[growing.events["event"] == "retraction"]
    assert set(events["pool"]) == {"full"}
    assert set(events["cause"]) == {"decode step short of full-pool tokens"}
    first = events.iloc[0]
    rows = growing.timeline
    at = rows[rows["num_retracted_reqs"] > 0].iloc[0]
    assert at["time_s"] == first["time_s"]
    before = rows[rows["time_s"] < first["time_s"]].iloc[-1]
    assert before["full_token_usage"] == pytest.approx(1.0, abs=0.001)
    assert before["swa_token_usage"] < 0.09
    # Four run, three wait; each of the four is about a quarter of the pool.
    assert (before["num_running_reqs"], before["num_queue_reqs"]) == (4, 3)
    assert (at["num_running_reqs"], at["num_queue_reqs"]) == (3, 4)
    assert first["tokens"] == pytest.approx(R39_FULL / 4, rel=0.001)


def test_R39_a_fifth_is_never_let_in(growing: simkv.Run) -> None:
    assert growing.summary["num_running_reqs.peak"] == 4
    assert growing.summary["limit.binding"] == "full"
    assert growing.summary["requests.completed"] == 7


def test_R39_a_larger_share_for_the_window_pool_makes_it_worse() -> None:
    def full_tokens(ratio: float) -> int:
        scenario = hybrid(
            128, page_size=256, kv_bytes=int(R39_FULL * (256 + 0.0919 * 256)), swa_full_tokens_ratio=ratio
        )
        return simkv.plan(scenario).full_max_total_num_tokens or 0

    assert full_tokens(0.05) > full_tokens(0.0919) > full_tokens(0.2)


# ------------------------------------------------------------------------------------------------------ R41


def r41() -> Scheduler:
    settings = Settings(
        page_size=16, chunked_prefill_size=8192, disable_radix_cache=True, disable_overlap_schedule=True
    )
    return Scheduler(settings, full_tokens=9 * 16, swa_tokens=None, max_running_requests=8)


def test_R41_memory_comes_in_pages_and_exactly_one_request_goes() -> None:
    engine = r41()
    # Prompts of 32 tokens, the first output not stored: two pages each, the next token needs a third.
    handles = decoding(engine, [(32, 1, 64)] * 4)
    assert engine.memory.available() == 16
    need = engine.allocation.decode_need(engine.running.reqs)
    assert need == 4 * 16 > 16
    step = engine.schedule()
    assert step is not None
    # Three pages for three requests: the free one and the two of the retracted.
    assert engine.retracted == [handles[-1]]
    assert step.batch.tolist() == handles[:3]
    assert engine.memory.available() == 0
    assert list(engine.waiting) == [handles[-1]]
    assert engine.ratio.current == (3 + 20 * 3) / (3 * 64 + 1)
    assert engine.ratio.current == pytest.approx(0.3264, abs=5e-5)
    (event,) = engine.drain_events()
    assert (event.event, event.pool, event.tokens) == ("retraction", "full", 32)


def test_R41_a_request_that_is_alone_is_aborted_by_name() -> None:
    engine = r41()
    (handle,) = decoding(engine, [(100, 45, 200)])
    assert engine.memory.available() == 0
    assert engine.schedule() is None
    assert (engine.retracted, engine.aborted) == ([], [handle])
    (event,) = engine.drain_events()
    assert (event.event, event.pool, event.request) == ("abort", "full", handle)
    assert "full" in event.cause and "144" in event.detail
    assert engine.memory.available() == 9 * 16
    assert engine.ratio.current == 0.0


@pytest.mark.parametrize("given", [138, 144, 1000])
def test_R41_a_prompt_of_the_whole_pool_is_refused_at_arrival(given: int) -> None:
    result = run(dense(page_size=16, max_total_tokens=144), [(given, 5), (20, 5)])
    assert result.requests["state"].tolist() == ["refused", "completed"]
    assert f"{given:,}" in result.requests["cause"][0]


@pytest.mark.parametrize("given", [128, 133, 137])
def test_R41_a_prompt_just_below_is_never_admitted_and_named(given: int) -> None:
    result = run(dense(page_size=16, max_total_tokens=144), [(given, 5), (20, 5)])
    assert result.fault is not None and result.fault["fault"] == "F5"
    assert str(given) in result.fault["message"] and "144" in result.fault["message"]
    assert result.summary["requests.completed"] == 0


def test_R41_page_one_and_the_next_smaller_prompt_are_served() -> None:
    served = run(dense(page_size=16, max_total_tokens=144), [(127, 5)])
    assert served.requests["state"].tolist() == ["completed"]
    for given in (136, 137):
        flat = run(dense(page_size=1, max_total_tokens=144), [(given, 5)])
        assert flat.requests["state"].tolist() == ["completed"]
    assert run(dense(page_size=1, max_total_tokens=144), [(138, 5)]).requests["state"].tolist() == ["refused"]


def test_R41_a_lone_speculative_request_is_aborted_and_counted() -> None:
    # Reserve 2 x 60 beside a prompt of 30 in a pool of 144: admitted, then short at its first decode step.
    scenario = with_draft(dense(max_total_tokens=144, max_running_requests=4), "EAGLE", num_steps=59)
    result = run(scenario, [(30, 20)])
    assert result.requests["state"].tolist() == ["aborted"]
    assert result.summary["requests.aborted"] == 1
    assert "full pool" in result.requests["cause"][0] and "144" in result.requests["cause"][0]
    assert result.events["event"].tolist() == ["fault", "abort"]
    assert result.events["cause"][0].startswith("F4:")
    assert result.fault is None


def test_R41_a_reserve_that_does_not_fit_is_not_called_a_full_pool() -> None:
    scenario = with_draft(dense(max_total_tokens=144, max_running_requests=4), "EAGLE", num_steps=59)
    result = run(scenario, [(30, 20)])
    assert result.summary["full_token_usage.peak"] == pytest.approx(30 / 144)
    assert "in a full" not in result.requests["cause"][0] and "is full" not in result.requests["cause"][0]


# ------------------------------------------------------------------------------------------------------ R42


@pytest.mark.parametrize(("requests_held", "retracted"), [(5, 2), (2, 0)])
def test_R42_each_rank_retracts_for_its_own_shortage_only(requests_held: int, retracted: int) -> None:
    # Ten pages of 16. Five requests of two pages that all need a third: k go, with 5 - k <= 2 k. Two: six pages free.
    settings = Settings(
        page_size=16, chunked_prefill_size=8192, disable_radix_cache=True, disable_overlap_schedule=True
    )
    engine = Scheduler(settings, full_tokens=160, swa_tokens=None, max_running_requests=8)
    decoding(engine, [(32, 1, 64)] * requests_held)
    step = engine.schedule()
    assert step is not None
    assert len(engine.retracted) == retracted
    assert len(step.batch) == requests_held - retracted
    assert engine.memory.available() == 160 - (requests_held - retracted) * 48


# ------------------------------------------------------------------------------------------------------ R43


def test_R43_ratio_after_a_retraction() -> None:
    settings = Settings(page_size=1, chunked_prefill_size=8192, disable_radix_cache=True, disable_overlap_schedule=True)
    held = [(10, 100, 1000), (10, 200, 1000), (10, 50, 1000), (10, 300, 1000)]
    stored = sum(given + made - 1 for given, made, _ in held)
    engine = Scheduler(settings, full_tokens=stored + 3, swa_tokens=None, max_running_requests=8)
    handles = decoding(engine, held)
    engine.submit(Request("late", 5, 5))
    engine.running.is_full = True
    step = engine.schedule()
    assert step is not None and step.kind == "decode"
    # Fewest outputs go first; the rest stays in the order of most outputs; the retracted waits behind the others.
    assert engine.retracted == [handles[2]]
    assert step.batch.tolist() == [handles[3], handles[1], handles[0]]
    assert list(engine.waiting)[-1] == handles[2] and len(engine.waiting) == 2
    assert engine.ratio.current == (600 + 20 * 3) / (3 * 1000 + 1)
    assert engine.ratio.current == pytest.approx(0.2199, abs=5e-5)


def test_R43_decay_of_the_ratio_to_its_floor() -> None:
    result = run(dense(max_total_tokens=10_000, disable_overlap_schedule=True), [(10, 701)])
    rows = result.timeline[result.timeline["kind"] == "decode"]
    step = (0.7 - 0.7 * 0.14) / 600
    assert step == pytest.approx(0.001003, abs=5e-7)
    want = [max(0.7 - step * passes, 0.098) for passes in range(1, 701)]
    assert rows["new_token_ratio"].tolist() == pytest.approx(want)
    assert rows["new_token_ratio"].iloc[599] == pytest.approx(0.098)
    assert rows["new_token_ratio"].iloc[598] > 0.0985
    # Idle, it starts anew.
    assert result.timeline["new_token_ratio"].iloc[-1] == pytest.approx(0.7)


@pytest.mark.parametrize("overlap", [True, False])
def test_R43_a_prefill_runs_alone_and_does_not_decay_the_ratio(overlap: bool) -> None:
    scenario = dense(max_total_tokens=10_000, disable_overlap_schedule=not overlap) | {
        "steptime": {"kind": "constant", "ms": 20}
    }
    result = run(scenario, [(10, 100)] * 3 + [(50, 5)], arrival_s=[0, 0, 0, 0.5])
    rows = result.timeline
    late = rows[(rows["kind"] == "prefill") & (rows["time_s"] > 0)]
    assert len(late) == 1 and prefills(result) == [30, 50]
    at = late.index[0]
    assert rows["batch_size"][at] == 1 and rows["num_running_reqs"][at] == 4
    assert rows["new_token_ratio"][at] == rows["new_token_ratio"][at - 1]
    assert rows["new_token_ratio"][at + 1] < rows["new_token_ratio"][at]


def test_R43_each_retraction_lifts_the_ratio() -> None:
    # As 0.0980 -> 0.1919 and 0.1474 -> 0.1845 in the logs; 0.0980 is the floor.
    result = run(dense(max_total_tokens=2600, disable_overlap_schedule=True, max_running_requests=8), [(50, 1000)] * 3)
    ratios = result.timeline["new_token_ratio"]
    at = result.timeline.index[result.timeline["num_retracted_reqs"] > 0]
    assert len(at) >= 1
    assert result.summary["requests.retractions"] == len(result.events[result.events["event"] == "retraction"])
    assert result.summary["requests.completed"] == 3
    assert all(ratios[i] > ratios[i - 1] for i in at)
