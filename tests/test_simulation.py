"""Times worked out by hand: every step takes 10 ms, so that a figure can be followed on paper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import EAGLE, TINY, scenario, workload

import simkv
from simkv.engines.sglang.scheduling import Scheduler
from simkv.errors import InfeasibleError, InvariantError, ScenarioError
from simkv.memory.pages import CountedPool
from simkv.results import Run, engine_for
from simkv.simulation import TIMELINE_INTS, Outcome, Simulation, _Arrivals
from simkv.steptime import Constant, StepWork
from simkv.workload.acceptance import NoDraft
from simkv.workload.request import Workload
from simkv.workload.tokens import Contents


def ms(run: Run, column: str) -> list[float | None]:
    values = (run.requests[column] * 1e3).round(6)
    return [None if v != v else v for v in values.tolist()]


def steps(run: Run) -> list[tuple[float, str, int]]:
    frame = run.timeline
    return list(zip((frame["time_s"] * 1e3).round(6).tolist(), frame["kind"], frame["batch_size"], strict=True))


THREE = [(0, 5, 3), (4, 7, 2), (10, 3, 1)]


# Order of things ---------------------------------------------------------------------------------------------------


def test_without_overlap_a_step_is_planned_when_the_last_one_ended() -> None:
    run = simkv.simulate(scenario(), workload=workload(THREE))
    # r0 alone 0-10; r1 (waiting since 4) and r2 (there at the very moment) 10-20; r0 and r1 decode 20-30; r0 30-40.
    rows = [(0, "prefill", 1), (10, "prefill", 2), (20, "decode", 2), (30, "decode", 1)]
    assert steps(run)[:4] == rows
    assert {row[1:] for row in steps(run)[4:]} == {("idle", 0)}
    assert ms(run, "admitted_s") == [0, 10, 10]
    assert ms(run, "first_token_s") == [10, 20, 20]
    assert ms(run, "finished_s") == [40, 30, 20]
    assert ms(run, "ttft_s") == [10, 16, 10]
    assert ms(run, "tpot_s") == [15, 10, None]
    assert run.summary["simulated_s"] == pytest.approx(0.040)
    assert run.timeline["full_uncached_tokens"].tolist()[:5] == [5, 15, 14, 7, 0]
    assert run.timeline["num_running_reqs"].tolist()[:5] == [1, 3, 2, 1, 0]


def test_with_overlap_a_step_is_planned_while_the_last_one_runs() -> None:
    run = simkv.simulate(scenario(overlap=True), workload=workload(THREE))
    # r0's prefill 0-10 and its first decode 10-20 are both planned at 0. At 10 (result of the prefill) r1 and r2 are
    # planned for 20-30, at 20 (r0 has 2 tokens) one more decode of r0 and r1 for 30-40; r2's end by length is known
    # in advance. At 30 both that decode would be left are about to end: nothing is planned.
    rows = [(0, "prefill", 1), (0, "decode", 1), (10, "prefill", 2), (20, "decode", 2), (30, "idle", 0)]
    assert steps(run)[:5] == rows
    assert ms(run, "admitted_s") == [0, 10, 10]
    assert ms(run, "first_token_s") == [10, 30, 30]
    assert ms(run, "finished_s") == [40, 40, 30]
    assert run.summary["simulated_s"] == pytest.approx(0.040)
    assert run.summary["target_worker.busy_s"] == pytest.approx(0.040)
    assert run.timeline["full_uncached_tokens"].tolist()[:5] == [5, 6, 16, 18, 15]


@pytest.mark.parametrize("overlap", [False, True])
def test_an_end_by_stop_token_costs_a_wasted_step_under_overlap_only(overlap: bool) -> None:
    work = workload([(0, 5, 3)], max_new_tokens=np.array([100], np.int64))
    run = simkv.simulate(scenario(overlap=overlap), workload=work)
    assert ms(run, "finished_s") == [30]
    assert run.requests["output_tokens"].tolist() == [3]
    assert run.summary["simulated_s"] == pytest.approx(0.040 if overlap else 0.030)
    assert run.summary["target_worker.busy_s"] == pytest.approx(0.040 if overlap else 0.030)


@pytest.mark.parametrize("overlap", [False, True])
def test_ends_by_length_cost_no_wasted_step(overlap: bool) -> None:
    run = simkv.simulate(scenario(overlap=overlap), workload=workload([(0, 5, 4)]))
    assert ms(run, "finished_s") == [40]
    assert run.summary["simulated_s"] == pytest.approx(0.040)


@pytest.mark.parametrize("late", [0, 1e-6])
def test_an_arrival_at_a_step_border_is_seen_and_one_a_nanosecond_later_is_not(late: float) -> None:
    run = simkv.simulate(scenario(), workload=workload([(0, 5, 3), (10 + late, 5, 1)]))
    assert ms(run, "admitted_s") == [0, 20 if late else 10]


def test_requests_of_the_same_moment_are_served_in_file_order() -> None:
    one = scenario(memory={"max_running_requests": 1})
    run = simkv.simulate(one, workload=workload([(5, 3, 1)] * 5))
    assert ms(run, "admitted_s") == [5, 15, 25, 35, 45]
    assert ms(run, "finished_s") == [15, 25, 35, 45, 55]


def test_an_idle_server_waits_for_the_next_arrival() -> None:
    run = simkv.simulate(scenario(), workload=workload([(3, 5, 1), (1000.25, 5, 2)]))
    assert ms(run, "admitted_s") == [3, 1000.25]
    assert ms(run, "finished_s") == [13, 1020.25]
    assert run.summary["target_worker.busy_s"] == pytest.approx(0.030)


@pytest.mark.parametrize(("chunk", "parts"), [(512, [10]), (10, [10]), (4, [4, 4, 2])])
def test_a_prompt_longer_than_a_chunk_takes_several_steps(chunk: int, parts: list[int]) -> None:
    run = simkv.simulate(scenario(memory={"chunked_prefill_size": chunk}), workload=workload([(0, 10, 1)]))
    assert ms(run, "first_token_s") == ms(run, "finished_s") == [10 * len(parts)]
    assert run.timeline["prefill_tokens"].tolist()[: len(parts)] == parts


# Workers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("overlap", "verifies", "end"), [(False, 2, 42), (True, 3, 58)])
def test_draft_and_target_take_turns(overlap: bool, verifies: int, end: float) -> None:
    one = scenario(
        overlap=overlap,
        draft=EAGLE,
        acceptance={"kind": "fixed", "length": 2},
        steptime={"kind": "constant", "ms": 10, "draft_ms": 2},
    )
    run = simkv.simulate(one, workload=workload([(0, 5, 5)]))
    # 1 token from the prefill, 2 from each verify of 3 * 2 + 10 ms; with overlap a third one is launched in vain.
    assert ms(run, "first_token_s") == [10]
    assert ms(run, "finished_s") == [42]
    assert run.summary["draft_worker.busy_s"] == pytest.approx(0.006 * verifies)
    assert run.summary["target_worker.busy_s"] == pytest.approx(0.010 * (verifies + 1))
    assert run.summary["simulated_s"] == pytest.approx(end / 1e3)
    assert run.summary["spec_accept_length"] == 2


@pytest.mark.parametrize("overlap", [False, True])
def test_busy_times_are_the_sums_over_the_steps(overlap: bool) -> None:
    one = scenario(
        overlap=overlap,
        draft=EAGLE,
        acceptance={"kind": "geometric", "alpha": 0.6},
        steptime={"kind": "linear", "base_ms": 3, "per_prefill_token_us": 7, "draft_ms": 0.5},
    )
    run = simkv.simulate(one, workload=workload([(7 * i, 20 + i, 3 + i) for i in range(20)]))
    busy = run.summary["draft_worker.busy_s"] + run.summary["target_worker.busy_s"]
    assert busy == pytest.approx(run.timeline["duration_s"].sum())
    decodes = (run.timeline["kind"] == "decode").sum()
    assert run.summary["draft_worker.busy_s"] == pytest.approx(decodes * 3 * 0.5e-3)
    assert busy <= run.summary["simulated_s"] + 1e-9


# Closed loop -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [False, True])
def test_clients_think_before_they_send(overlap: bool) -> None:
    think = np.array([0, 0, 25, 5], np.int64) * 10**6
    run = simkv.simulate(scenario(overlap=overlap), workload=workload([(0, 5, 1)] * 4, concurrency=2, think_ns=think))
    assert ms(run, "arrival_s") == [0, 0, 35, 15]
    assert ms(run, "finished_s") == [10, 10, 45, 25]


def test_a_client_thinks_before_its_first_request_too() -> None:
    think = np.array([30, 0, 0], np.int64) * 10**6
    run = simkv.simulate(scenario(), workload=workload([(0, 5, 1)] * 3, concurrency=2, think_ns=think))
    assert ms(run, "arrival_s") == [30, 0, 10]


@settings(max_examples=25, deadline=None)
@given(
    clients=st.integers(1, 6),
    rows=st.lists(st.tuples(st.integers(1, 90), st.integers(0, 12), st.integers(0, 40)), min_size=1, max_size=25),
    overlap=st.booleans(),
)
def test_a_closed_loop_never_has_more_requests_than_clients(
    clients: int, rows: list[tuple[int, int, int]], overlap: bool
) -> None:
    work = workload(
        [(0, i, o) for i, o, _ in rows],
        concurrency=clients,
        think_ns=np.array([t for _, _, t in rows], np.int64) * 10**6,
    )
    run = simkv.simulate(scenario(tokens=120, overlap=overlap), workload=work, check_every=1)
    frame = run.requests
    assert not (frame["state"] == "never arrived").any()
    changes = sorted([(t, 1) for t in frame["arrival_s"]] + [(t, -1) for t in frame["finished_s"]])
    inside = np.cumsum([c for _, c in changes])
    assert inside.max() <= clients
    assert inside[-1] == 0


# Chains ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [False, True])
def test_the_end_of_a_request_sends_the_next_of_its_chain(overlap: bool) -> None:
    think = np.array([99, 25, 99, 0], np.int64) * 10**6
    rows = [(0, 5, 1), (0, 9, 1), (4, 5, 1), (4, 8, 1)]
    previous = np.array([-1, 0, -1, 2], np.int64)
    run = simkv.simulate(scenario(overlap=overlap), workload=workload(rows, think_ns=think, previous=previous))
    # r0 0-10; r2, there since 4, 10-20; r3 at 20, 20-30; r1 25 ms after r0's end
    assert ms(run, "arrival_s") == [0, 35, 4, 20]
    assert ms(run, "finished_s") == [10, 45, 20, 30]


def test_requests_sent_at_the_time_of_others_keep_their_order() -> None:
    previous = np.array([-1, 0, -1, -1, 3], np.int64)
    arrivals = _Arrivals(workload([(0, 5, 1), (0, 5, 1), (10, 5, 1), (10, 5, 1), (10, 5, 1)], previous=previous))
    assert arrivals.due(0) == [(0, 0)]
    arrivals.after(10 * 10**6, 0)
    assert arrivals.next_ns == 10 * 10**6
    assert [index for _, index in arrivals.due(10 * 10**6)] == [1, 2, 3]
    assert arrivals.next_ns is None
    arrivals.after(11, 2)
    arrivals.after(12, 3)
    assert arrivals.due(20) == [(12, 4)]


def test_a_client_stays_with_its_chain_until_that_ends() -> None:
    # Chains r0 r1 and r2 r3 r4 and r5, two clients; a request takes 10 ms, two of them at once too.
    previous = np.array([-1, 0, -1, 2, 3, -1], np.int64)
    think = np.array([0, 20, 0, 0, 0, 7], np.int64) * 10**6
    work = workload([(0, 5, 1)] * 6, concurrency=2, previous=previous, think_ns=think)
    run = simkv.simulate(scenario(), workload=work)
    # r0 and r2 0-10, r3 10-20, r4 20-30, and r5 37-47 of the client that is free then; r1 30-40.
    assert ms(run, "arrival_s") == [0, 30, 0, 10, 20, 37]


def test_a_refused_request_sends_the_next_one_all_the_same() -> None:
    previous = np.array([-1, 0, 1], np.int64)
    think = np.array([0, 5, 0], np.int64) * 10**6
    work = workload([(0, 5, 1), (0, 2000, 1), (0, 6, 1)], previous=previous, think_ns=think)
    run = simkv.simulate(scenario(tokens=600), workload=work)
    assert run.requests["state"].tolist() == ["completed", "refused", "completed"]
    # The engine runs a step for a request that it refuses, 15-25.
    assert ms(run, "arrival_s") == [0, 15, 25]


@settings(max_examples=25, deadline=None)
@given(
    clients=st.none() | st.integers(1, 4),
    rows=st.lists(
        st.tuples(st.integers(1, 90), st.integers(0, 12), st.integers(0, 40), st.booleans()), min_size=1, max_size=25
    ),
    overlap=st.booleans(),
)
def test_whatever_ends_sends_what_follows(
    clients: int | None, rows: list[tuple[int, int, int, bool]], overlap: bool
) -> None:
    previous = np.array([-1 if first or not i else i - 1 for i, (*_, first) in enumerate(rows)], np.int64)
    think = np.array([t for _, _, t, _ in rows], np.int64) * 10**6
    work = workload([(0, i, o) for i, o, *_ in rows], concurrency=clients, think_ns=think, previous=previous)
    run = simkv.simulate(scenario(tokens=120, overlap=overlap), workload=work, check_every=1)
    frame = run.requests
    assert not (frame["state"] == "never arrived").any()
    arrived, ended = frame["arrival_s"].to_numpy(), frame["finished_s"].to_numpy()
    later = previous >= 0
    assert arrived[later] == pytest.approx(ended[previous[later]] + think[later] / 1e9)
    if clients is None:
        assert not arrived[~later].any()
    else:
        changes = sorted([(t, 1) for t in arrived] + [(t, -1) for t in ended])
        assert np.cumsum([c for _, c in changes]).max() <= clients


# Ends --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [False, True])
def test_a_stall_for_ever_is_named_and_ends_the_run(overlap: bool) -> None:
    # 600 tokens are below the longest request, 640 - 1 - 5, but 640 with pages and one page more never fit.
    one = scenario(tokens=640, overlap=overlap, memory={"page_size": 64})
    run = simkv.simulate(one, workload=workload([(0, 5, 1), (5, 600, 10), (6, 5, 1), (9999, 5, 1)]))
    assert run.fault is not None
    assert run.fault["fault"] == "F5"
    assert "r1" in run.fault["message"]
    assert run.exit_code == 3
    assert run.requests["state"].tolist() == ["completed", "unfinished", "unfinished", "never arrived"]
    assert run.events["event"].tolist() == ["fault"]
    assert run.summary["simulated_s"] == pytest.approx(0.010)


def test_a_stalled_server_waits_for_nobody_although_more_requests_come() -> None:
    one = scenario(tokens=640, memory={"page_size": 64})
    run = simkv.simulate(one, workload=workload([(0, 600, 10), (50, 5, 1)]))
    assert run.exit_code == 3
    assert run.summary["requests.never_arrived"] == 1


@pytest.mark.parametrize("overlap", [False, True])
def test_a_fault_of_the_engine_is_named_and_ends_the_run(overlap: bool) -> None:
    # A = 3 * 4 = 12, so 24 slots are reserved; a row has 64 + 4 + 4 slots: the step that starts from more than 48
    # tokens breaks. Without overlap the steps from 40, 41, ... 48 pass, which takes 10 + 9 * 10 ms.
    one = scenario(
        overlap=overlap,
        model={"context_length": 64},
        draft={**EAGLE, "eagle_topk": 4, "num_draft_tokens": 4},
        acceptance={"kind": "fixed", "length": 1},
    )
    run = simkv.simulate(one, workload=workload([(0, 40, 12)]))
    assert run.fault is not None
    assert run.fault["fault"] == "row-overrun"
    assert "slot 73 of a row of 72" in run.fault["message"]
    assert run.exit_code == 3
    assert run.requests["state"].tolist() == ["unfinished"]
    if not overlap:
        assert run.summary["simulated_s"] == pytest.approx(0.100)


class Breaks:
    """Constant steps; an action at the n-th."""

    def __init__(self, at: int, action: Any) -> None:
        self.at, self.action, self.seen = at, action, 0

    def __call__(self, work: StepWork) -> tuple[int, int]:
        self.seen += 1
        if self.seen == self.at:
            self.action()
        return 0, 10_000_000


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("overlap", [False, True])
def test_an_interrupt_keeps_what_was_simulated(overlap: bool) -> None:
    rows = [(20 * i, 10, 4) for i in range(30)]
    run = simkv.simulate(scenario(overlap=overlap), workload=workload(rows), steptime=Breaks(40, interrupt))
    assert run.partial
    assert run.exit_code == 130
    assert run.fault is None
    s = run.summary
    parts = [s[f"requests.{name}"] for name in ("completed", "refused", "aborted", "unfinished", "never_arrived")]
    assert sum(parts) == s["requests.injected"] == 30
    assert parts[0] > 0
    assert parts[3] > 0
    assert parts[4] > 0
    assert (run.timeline["full_available_tokens"] + run.timeline["full_uncached_tokens"] == 1000).all()
    whole = simkv.simulate(scenario(overlap=overlap), workload=workload(rows))
    shared = len(run.timeline) - 1
    assert run.timeline["time_s"][:shared].equals(whole.timeline["time_s"][:shared])


def test_an_interrupt_in_the_middle_of_an_arrival_keeps_what_was_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    submit = Scheduler.submit

    def interrupted(self: Scheduler, request: Any) -> int:
        handle = submit(self, request)
        if handle == 7:
            raise KeyboardInterrupt
        return handle

    monkeypatch.setattr(Scheduler, "submit", interrupted)
    run = simkv.simulate(scenario(), workload=workload([(20 * i, 10, 4) for i in range(30)]))
    assert run.exit_code == 130
    assert run.summary["requests.injected"] == 30


def by_hand(one: simkv.Scenario, work: Workload, **more: Any) -> tuple[Simulation, Any]:
    engine = engine_for(one, one.plan())
    return Simulation(engine, work, NoDraft(width=1), Constant(ms=10), **more), engine


@pytest.mark.parametrize("every", [0, 1])
def test_a_planted_breach_is_a_fault_of_simkv(every: int) -> None:
    simulation, engine = by_hand(scenario(), workload([(0, 10, 5)]), check_every=every)

    def lose_and_end() -> None:
        engine.memory.rows_total += 1

    simulation.step_time = Breaks(3, lose_and_end)
    with pytest.raises(InvariantError, match=r"step \d+: rows") as caught:
        simulation.run()
    assert caught.value.exit_code == 70


def test_a_breach_is_found_in_the_step_it_happens_in() -> None:
    simulation, engine = by_hand(scenario(), workload([(0, 10, 50)]), check_every=1)
    simulation.step_time = Breaks(7, lambda: engine.memory.full.take(3))
    with pytest.raises(InvariantError, match=r"step 7: full pool: available"):
        simulation.run()


def test_a_leak_of_our_own_is_not_blamed_on_the_engine() -> None:
    simulation, engine = by_hand(scenario(), workload([(0, 10, 5)]))
    simulation.step_time = Breaks(3, lambda: engine.memory.full.take(3))
    with pytest.raises(InvariantError):
        simulation.run()


def test_a_pool_that_gives_too_much_is_caught_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    give = CountedPool.give
    monkeypatch.setattr(CountedPool, "give", lambda self, tokens: give(self, tokens + 1))
    with pytest.raises(InvariantError, match="given back"):
        simkv.simulate(scenario(), workload=workload([(0, 10, 2)]))


def test_an_engine_that_does_not_start_is_not_simulated() -> None:
    with pytest.raises(InfeasibleError, match="KV budget") as caught:
        simkv.simulate(scenario(memory={"kv_bytes": 10}), workload=workload([(0, 1, 1)]))
    assert caught.value.exit_code == 3


def test_a_prefix_cache_that_holds_more_than_kv_is_refused_and_not_ignored() -> None:
    # Inkling keeps the state of its short convolutions beside the KV.
    one = simkv.load({"model": {"config": "inkling-small"}, "memory": {"kv_bytes": "40GiB"}})
    with pytest.raises(ScenarioError, match=r"memory.disable_radix_cache .*short-convolution state") as caught:
        simkv.simulate(one, workload=workload([(0, 1, 1)]))
    assert caught.value.exit_code == 2
    off = one.override("memory.disable_radix_cache=true")
    assert simkv.simulate(off, workload=workload([(0, 1, 1)])).summary["requests.completed"] == 1


def test_a_prompt_that_was_there_before_is_read_from_the_prefix_cache() -> None:
    # Two prompts of the same 10 tokens, one after the other: all but the last token are found.
    shared = Contents(np.array([0, 0]), np.array([10, 10]), np.array([0, 1, 2]))
    work = workload([(0, 10, 2), (1000, 10, 2)], contents=shared)
    run = simkv.simulate(scenario(memory={"disable_radix_cache": False}), workload=work, check_every=1)
    assert run.requests["cached_tokens"].tolist() == [0, 9]


# Recording ---------------------------------------------------------------------------------------------------------


def test_progress_is_told_now_and_then() -> None:
    seen: list[Any] = []
    run = simkv.simulate(scenario(), workload=workload([(5 * i, 10, 200) for i in range(40)]), progress=seen.append)
    assert len(seen) >= 3
    assert {p.total for p in seen} == {40}
    assert {p.steps % 256 for p in seen} == {0}
    assert [p.time_s for p in seen] == sorted(p.time_s for p in seen)
    assert all(0 <= p.done <= 40 and p.running <= 8 for p in seen)
    assert run.summary["requests.completed"] == 40


def outcome(one: simkv.Scenario, work: Workload) -> Outcome:
    simulation, _ = by_hand(one, work, check_every=1)
    return simulation.run()


@settings(max_examples=30, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 130), st.integers(0, 30)), min_size=1, max_size=20),
    overlap=st.booleans(),
    tokens=st.integers(40, 200),
    page=st.sampled_from([1, 4, 16]),
)
def test_times_of_a_request_are_in_order_and_rows_do_not_go_back(
    rows: list[tuple[int, int, int]], overlap: bool, tokens: int, page: int
) -> None:
    work = workload(sorted(rows))
    got = outcome(scenario(tokens=tokens - tokens % page, overlap=overlap, memory={"page_size": page}), work)
    assert (np.diff(got.timeline["time_ns"]) >= 0).all()
    assert set(TIMELINE_INTS) <= set(got.timeline)
    assert got.timeline["time_ns"][-1] == got.end_ns
    assert got.draft_busy_ns == 0
    assert got.target_busy_ns == 10**7 * got.steps
    for i, state in enumerate(got.state):
        if state in ("unfinished", "never arrived"):
            assert got.finished_ns[i] == -1
            continue
        assert got.arrival_ns[i] == work.arrival_ns[i]
        if state == "completed":
            assert got.arrival_ns[i] <= got.admitted_ns[i] < got.finished_ns[i]
        if state == "completed" and got.output_tokens[i]:
            assert got.admitted_ns[i] + 10**7 <= got.first_token_ns[i] <= got.finished_ns[i]
        if not got.output_tokens[i]:
            assert got.first_token_ns[i] == -1
    if got.fault is None:
        assert set(got.state) <= {"completed", "refused", "aborted"}
    # Work is conserved: a step is 10 ms, and the workers are never busy at the same time twice.
    assert got.target_busy_ns <= got.end_ns


# Objects of the user's own ------------------------------------------------------------------------------------------


class Draws:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def draw(self, request: Any, verify_index: Any) -> Any:
        return np.broadcast_to(self.answer, request.shape) if np.ndim(self.answer) == 0 else np.array(self.answer)

    def mean_length(self, width: int | None = None) -> float:
        return 1.0


@pytest.mark.parametrize("answer", [0, 5, -1, 1.5, [1, 1]])
def test_an_acceptance_of_ones_own_is_checked(answer: Any) -> None:
    # 3 steps accept at most 3 and the bonus token.
    one = scenario(draft={"algorithm": "EAGLE", "num_steps": 3, "num_layers": 0})
    with pytest.raises(ScenarioError, match=r"acceptance.*\[1, 4\]"):
        simkv.simulate(one, workload=workload([(0, 5, 9)]), acceptance=Draws(answer))
    run = simkv.simulate(one, workload=workload([(0, 5, 9)]), acceptance=Draws(4))
    assert run.summary["requests.completed"] == 1


@pytest.mark.parametrize("answer", [(1.5, 2), (0, 0), (-1, 5), 7, (1, 2, 3)])
def test_a_step_time_of_ones_own_is_checked(answer: Any) -> None:
    with pytest.raises(ScenarioError, match="steptime"):
        simkv.simulate(scenario(), workload=workload([(0, 5, 2)]), steptime=lambda work: answer)


@pytest.mark.parametrize("answer", [[0, 0], [0], [1, 2]])
def test_a_retraction_order_of_ones_own_is_checked(answer: Any) -> None:
    # Two requests of 20 + 15 tokens in a pool of 60: the second one has to go.
    one = scenario(tokens=60, policies={"schedule_conservativeness": 0.05})
    work = workload([(0, 20, 15), (0, 20, 15)])
    assert simkv.simulate(one, workload=work).summary["requests.retractions"] > 0
    with pytest.raises(ScenarioError, match=r"retraction_order.*each once"):
        simkv.simulate(one, workload=work, retraction_order=lambda output, inputs: np.array(answer))


# What a step computes, and what is held -------------------------------------------------------------------------------


class Watch:
    """Steps of 10 ms, and what each of them computes."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __call__(self, work: Any) -> tuple[int, int]:
        self.seen.append(replace(work))
        return 0, 10**7


GEMMA_LIKE = {
    **TINY,
    "num_hidden_layers": 2,
    "layer_types": ["full_attention", "sliding_attention"],
    "sliding_window": 32,
}


@pytest.mark.parametrize("split", [False, True])
def test_a_sliding_layer_attends_to_its_window_whatever_the_cache_keeps(split: bool) -> None:
    watch = Watch()
    one = scenario(tokens=4000, model={"config": GEMMA_LIKE, "hybrid_swa": split})
    simkv.simulate(one, workload=workload([(0, 100, 4), (0, 20, 4)]), steptime=watch)
    decode = [work for work in watch.seen if work.decode_requests]
    # Two rows of 100 and 20 tokens that grow by one a step; of each, at most 32 are seen.
    assert [work.decode_context for work in decode] == [120, 122, 124]
    assert [work.decode_window for work in decode] == [32 + 20, 32 + 21, 32 + 22]


def test_rows_that_ride_along_attend_as_they_would_alone() -> None:
    watch = Watch()
    one = scenario(tokens=4000, memory={"enable_mixed_chunk": True, "chunked_prefill_size": 64})
    simkv.simulate(one, workload=workload([(0, 50, 20), (15, 300, 2)]), steptime=watch)
    mixed = [work for work in watch.seen if work.decode_requests and work.prefill_tokens]
    assert mixed
    assert all(work.decode_window == work.decode_context >= 50 for work in mixed)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("spec", [False, True])
def test_what_is_used_is_live_or_reserved_in_every_row(overlap: bool, spec: bool) -> None:
    more = {"draft": EAGLE, "acceptance": {"kind": "geometric", "alpha": 0.6}} if spec else {}
    one = scenario(tokens=900, overlap=overlap, memory={"chunked_prefill_size": 64}, **more)
    rows = [(7 * i, 20 + 13 * i % 90, 3 + 11 * i % 40) for i in range(60)]
    got = outcome(one, workload(rows))
    used = 900 - got.timeline["full_available"]
    assert used.max() > 600
    assert (used == got.timeline["live_tokens"] + got.timeline["overallocated_tokens"]).all()


def test_objects_that_cannot_be_used_are_named_together() -> None:
    wrong: Any = {"workload": "x", "routing": 5, "acceptance": "x", "steptime": "x", "retraction_order": 3}
    with pytest.raises(ScenarioError) as caught:
        simkv.simulate(scenario(), **wrong)
    assert {problem.place for problem in caught.value.problems} == set(wrong)


def test_a_routing_rule_may_be_named() -> None:
    one = scenario(draft={"algorithm": "EAGLE", "num_steps": 3, "num_layers": 0})
    run = simkv.simulate(one, workload=workload([(0, 5, 2)]), routing="legacy")
    assert run.plan["routing"] == "legacy"
    with pytest.raises(ScenarioError, match="did you mean legacy"):
        one.with_routing("legcy")


@pytest.mark.parametrize("thing", [None, 5, 2.5, ["a"]])
def test_what_is_no_scenario(thing: Any) -> None:
    with pytest.raises(ScenarioError, match="is not a name, a path, a dict or a Scenario"):
        simkv.load(thing)
    with pytest.raises(ScenarioError, match="dotted.key=value"):
        scenario().override(thing)
