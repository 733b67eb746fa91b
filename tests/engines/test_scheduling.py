"""Properties of the scheduler under any small server and any traffic, driven without a clock."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from servers import Case, Log, Server, cases

import simkv
from simkv.engines.base import Request, Step
from simkv.engines.sglang.batch import default_retraction_order
from simkv.engines.sglang.faults import ENGINE_FAULTS
from simkv.engines.sglang.routing import DraftFacts, Generalized, Kind
from simkv.engines.sglang.scheduling import Scheduler
from simkv.engines.sglang.settings import Settings, Spec
from simkv.workload.request import Workload

FEW = settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def expected(case: Case, request: Request) -> tuple[bool, int]:
    """(refused, tokens the client gets) from the rules of arrival: limits of the server, then the model's own stop."""
    capacity = case.full if case.full is not None else case.swa
    assert capacity is not None
    page = case.settings.page_size
    longest = min(case.settings.context_len - 1, capacity - 1)
    if request.input_tokens >= longest - 5:
        return True, 0
    room = min(longest - request.input_tokens - 1, capacity - -(-request.input_tokens // page) * page - page - 1)
    most = max(0, min(request.max_new_tokens, room))
    return False, most if request.stop_tokens is None else min(most, request.stop_tokens)


@FEW
@given(cases())
def test_any_traffic_ends_and_nothing_is_lost(case: Case) -> None:
    server = Server(case)
    log = server.run()
    engine, table = server.engine, server.engine.table
    event("faulted" if log.fault else "retracted" if log.retracted else "ended")
    assert log.ended or log.fault is not None, "neither an end nor a named fault in 20,000 iterations"
    ends = log.finished + log.aborted
    assert len(set(ends)) == len(ends)
    want = [expected(case, request) for _, request, _ in case.requests[: table.size]]
    assert log.refused == [h for h, (refused, _) in enumerate(want) if refused]
    if log.fault is not None:
        assert log.fault.fault in ENGINE_FAULTS
        assert log.fault.exit_code == 3
        assert log.fault.message
    if log.lost:
        return
    for handle in log.finished:
        refused, tokens = want[handle]
        assert int(table.finished_len[handle]) == (int(table.output[handle]) if refused else tokens)
    if not log.ended:
        return
    assert sorted(ends) == list(range(len(case.requests)))
    assert set(log.retracted) <= set(ends)
    assert engine.memory.rows_free == case.rows
    for pool in (engine.memory.full, engine.memory.swa):
        assert pool is None or pool.available == pool.usable
    for handle, tokens in log.prefilled.items():
        if handle not in log.retracted and handle not in log.refused:
            assert tokens == case.requests[handle][1].input_tokens
    assert np.bincount(log.retracted, minlength=table.size).tolist() == table.retractions[: table.size].tolist()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_the_same_traffic_gives_the_same_steps(case: Case) -> None:
    one, two = Server(case).run(), Server(case).run()
    assert one.steps == two.steps
    assert (one.finished, one.aborted, one.retracted) == (two.finished, two.aborted, two.retracted)
    assert (one.fault is None) == (two.fault is None)
    assert str(one.fault) == str(two.fault)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases(), st.integers(0, 3))
def test_any_order_of_retraction_ends_as_well(case: Case, seed: int) -> None:
    rng = np.random.default_rng(seed)

    def order(output: Any, input_tokens: Any) -> Any:
        assert len(output) == len(input_tokens) > 0
        return rng.permutation(len(output))

    log = Server(case, retraction_order=order).run()
    assert log.ended or log.fault is not None


# By hand -----------------------------------------------------------------------------------------------------------


def plain(**more: Any) -> Settings:
    return Settings(
        **{
            "context_len": 1000,
            "disable_radix_cache": True,
            "disable_overlap_schedule": True,
            "chunked_prefill_size": -1,
            "schedule_conservativeness": 0.05,
            **more,
        }
    )


def storm(order: Any = default_retraction_order) -> tuple[Log, Scheduler]:
    """Requests of 10, 20 and 30 prompt tokens and 40 outputs, one a step, in 104 slots: 60 + 3 * 14 fit, no more."""
    requests = [(i, Request(f"r{i}", tokens, 40), [1]) for i, tokens in enumerate((10, 20, 30))]
    server = Server(Case(plain(), 104, None, 8, requests), retraction_order=order)
    return server.run(), server.engine


def test_the_longest_prompt_of_equal_outputs_is_retracted_first() -> None:
    log, _ = storm()
    assert [s[:3] for s in log.steps[:3]] == [("prefill", (i,), (n,)) for i, n in enumerate((10, 20, 30))]
    assert [s[:2] for s in log.steps[3:17]] == [("decode", (0, 1, 2))] * 14
    assert log.retracted[0] == 2
    # The default puts the kept ones in order: most outputs, then the shorter prompt.
    assert log.steps[17][:2] == ("decode", (0, 1))
    assert sorted(log.finished) == [0, 1, 2]


def test_an_order_of_ones_own_decides_who_is_retracted() -> None:
    log, engine = storm(lambda output, tokens: np.argsort(-tokens, kind="stable"))
    assert log.retracted[0] == 0
    assert log.steps[17][:2] == ("decode", (2, 1))
    assert sorted(log.finished) == [0, 1, 2]
    assert engine.table.retractions[0] >= 1


def test_a_retracted_request_computes_its_outputs_again() -> None:
    log, _ = storm()
    # Prompt of 30 and the 15 tokens it had (prefill and 14 decodes).
    again = [s for s in log.steps[3:] if s[0] == "prefill" and 2 in s[1]]
    assert again[0][2:4] == ((45,), (0,))


def test_the_default_order_keeps_most_outputs_then_short_prompts() -> None:
    output, tokens = np.array([3, 9, 9, 1]), np.array([5, 8, 2, 1])
    assert default_retraction_order(output, tokens).tolist() == [2, 1, 0, 3]
    assert default_retraction_order(np.array([4, 4, 4]), np.array([7, 7, 7])).tolist() == [0, 1, 2]


def test_chunks_are_whole_pages_of_the_chunk_budget() -> None:
    case = Case(plain(page_size=4, chunked_prefill_size=8), 400, None, 4, [(0, Request("a", 21, 1), [1])])
    log = Server(case).run()
    assert [(s[2], s[3]) for s in log.steps] == [((8,), (0,)), ((8,), (8,)), ((5,), (16,))]
    assert log.finished == [0]


def test_rows_bound_the_batch() -> None:
    case = Case(
        plain(schedule_conservativeness=1.0), 400, None, 2, [(0, Request(f"r{i}", 5, 3), [1]) for i in range(5)]
    )
    log = Server(case).run()
    assert [s[1] for s in log.steps if s[0] == "prefill"] == [(0, 1), (2, 3), (4,)]


def test_the_speculative_reserve_is_twice_the_step() -> None:
    spec = Spec("EAGLE", 3, 1, 4)
    server = Server(Case(plain(spec=spec, page_size=16), 160, None, 2, [(0, Request("a", 20, 30), [2])]))
    held = []
    note = server.note

    def look(step: Step | None) -> None:
        note(step)
        if step is not None and step.kind == "decode":
            held.append(int(server.engine.table.allocated[0]))

    server.note = look  # type: ignore[method-assign]
    log = server.run()
    # 20, 22, 24 ... tokens and 8 reserved, in pages of 16; 1 + 2 * 15 >= 30 outputs.
    assert held == [-(-(20 + 2 * i + 8) // 16) * 16 for i in range(15)]
    assert log.finished == [0]


# Policies of one's own ---------------------------------------------------------------------------------------------


class Always:
    """Accepts the same length at every verify."""

    def __init__(self, length: int) -> None:
        self.length, self.asked = length, 0

    def draw(self, request: Any, verify_index: Any) -> Any:
        self.asked += len(request)
        return np.full(len(request), self.length, np.int64)

    def mean_length(self, width: int | None = None) -> float:
        return float(self.length)


def hybrid() -> simkv.Scenario:
    return simkv.load("routing-legacy-vs-generalized").override(
        "memory.disable_overlap_schedule=true", "steptime={kind='constant', ms=10}"
    )


def one_request(inputs: int, outputs: int) -> Workload:
    def column(x: int) -> Any:
        return np.array([x], np.int64)

    return Workload(column(0), column(inputs), column(outputs), ("a",))


@pytest.mark.parametrize(("length", "verifies"), [(1, 12), (2, 6), (3, 4), (4, 3)])
def test_an_acceptance_of_ones_own(length: int, verifies: int) -> None:
    mine = Always(length)
    run = simkv.simulate(hybrid(), workload=one_request(50, 13), acceptance=mine)
    assert mine.asked == verifies
    assert run.summary["steps.decode"] == verifies
    assert run.summary["spec_accept_length"] == length
    assert run.requests["output_tokens"].tolist() == [13]


class NobodyOwns:
    """Charges one ring and lets no runner own its depth."""

    name = "nobody"

    def owns_depth(self, facts: DraftFacts, depth: int | None) -> bool:
        return False

    def kind(self, facts: DraftFacts, depth: int) -> Kind | None:
        raise AssertionError("asked of an owned depth only")

    def charge(self, facts: DraftFacts) -> tuple[Kind, ...]:
        return ("ring",)


def test_a_routing_rule_of_ones_own() -> None:
    stock, mine = hybrid(), hybrid().with_routing(NobodyOwns())
    assert mine.plan().routing == "nobody"
    assert mine.plan().draft_layers == {"full": 0, "swa": 0, "swa_full": 1}
    assert stock.plan().draft_layers != mine.plan().draft_layers
    run = simkv.simulate(stock, workload=one_request(50, 5), routing=NobodyOwns())
    assert run.plan["routing"] == "nobody"
    assert run.plan["max_total_num_tokens"] == mine.plan().max_total_num_tokens


def test_the_stock_rule_as_an_object_is_the_stock_rule() -> None:
    assert hybrid().with_routing(Generalized()).plan() == hybrid().plan()


def test_an_order_of_ones_own_reaches_the_engine() -> None:
    seen = []

    def order(output: Any, tokens: Any) -> Any:
        seen.append(len(output))
        return default_retraction_order(output, tokens)

    one = simkv.load("retraction-storm").override(
        "workload.num_requests=40", "memory.kv_bytes=600MiB", "steptime={kind='constant', ms=10}", "checks={}"
    )
    run = simkv.simulate(one, retraction_order=order)
    assert seen
    assert run.summary["requests.retractions"] > 0
    assert run.timeline.equals(simkv.simulate(one).timeline)
