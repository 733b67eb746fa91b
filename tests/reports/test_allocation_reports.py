"""User reports of kind ``allocation``: what a request holds, what is lost, and which slots are out of range."""

from __future__ import annotations

import pytest
from report_cases import GIB, dense, hybrid, model, peak_tokens, requests, run, with_draft

import simkv
from simkv.engines.base import Request
from simkv.engines.sglang.memory import KvMemory
from simkv.engines.sglang.pools import Pools
from simkv.engines.sglang.reserve import alloc_reserve_per_decode, extra_context_len
from simkv.engines.sglang.scheduling import Scheduler
from simkv.engines.sglang.settings import Settings, Spec
from simkv.errors import EngineFault, InvariantError
from simkv.memory.pages import CountedPool

# ------------------------------------------------------------------------------------------------------ R26


def r26(number: int, draft_slots: int | None = 600) -> Scheduler:
    """So many requests of 50 tokens, prefilled in one pass: slots 1 .. 50 * number."""
    engine = Scheduler(
        Settings(page_size=1, chunked_prefill_size=8192, disable_radix_cache=True),
        full_tokens=1000,
        swa_tokens=None,
        max_running_requests=100,
        draft_slots=draft_slots,
    )
    for i in range(number):
        engine.submit(Request(f"r{i}", 50, 1))
    return engine


@pytest.mark.parametrize("number", [1, 10, 12])
def test_R26_low_slots_hide_a_draft_pool_that_is_too_small(number: int) -> None:
    step = r26(number).schedule()
    assert step is not None and len(step.batch) == number


@pytest.mark.parametrize("number", [13, 19])
def test_R26_the_first_slot_beyond_the_draft_pool_is_a_fault(number: int) -> None:
    assert 12 * 50 <= 600 < 13 * 50
    with pytest.raises(EngineFault, match="600") as caught:
        r26(number).schedule()
    assert (caught.value.fault, caught.value.exit_code) == ("draft-pool-overrun", 3)
    step = r26(number, draft_slots=None).schedule()
    assert step is not None and len(step.batch) == number


def test_R26_freed_slots_are_used_again_only_after_every_fresh_one() -> None:
    # At page 1 the free list is a queue, so requests one after the other reach slot 601 as well, at the 13th.
    engine = r26(0)
    for number in range(1, 13):
        engine.submit(Request(f"r{number}", 50, 1))
        step = engine.schedule()
        assert step is not None
        engine.complete(step, None)
    engine.submit(Request("r13", 50, 1))
    with pytest.raises(EngineFault):
        engine.schedule()


def test_R26_the_fault_names_slot_and_request() -> None:
    with pytest.raises(EngineFault) as caught:
        r26(13).schedule()
    assert "601" in caught.value.message
    assert "r12" in caught.value.message


def r26_plan(*faults: str) -> simkv.Plan:
    return simkv.plan(
        {
            "model": {"config": "gpt-oss-120b"},
            "draft": {"algorithm": "EAGLE3", "config": model("F", kv_heads=8, head_dim=64), "num_steps": 3},
            "memory": {"kv_bytes": 40 * GIB, "page_size": 1},
            "policies": {"faults": list(faults)},
        }
    )


def test_R26_the_draft_pool_has_the_size_after_the_split() -> None:
    plan = r26_plan()
    (draft,) = (p for p in plan.pools if p.worker != "target")
    assert (draft.tokens, draft.rows) == (plan.full_max_total_num_tokens, plan.full_max_total_num_tokens + 1)
    assert not [d for d in plan.disagreements if d.code == "K10"]


def test_R26_a_draft_pool_sized_before_the_split_is_named_at_start() -> None:
    plan = r26_plan("draft-pool-pre-split")
    (draft,) = (p for p in plan.pools if p.worker != "target")
    assert draft.tokens == 40 * GIB // (36 * 2048) < plan.full_max_total_num_tokens
    (named,) = (d for d in plan.disagreements if d.code == "K10")
    assert "draft0" in named.detail
    assert f"{draft.tokens:,}" in named.detail and f"{plan.full_max_total_num_tokens:,}" in named.detail


def test_R26_a_small_run_ends_at_the_same_overrun() -> None:
    # Bytes of 500 tokens in both layers hold 666 full tokens and 333 sliding ones at ratio 0.5.
    layer = 256
    scenario = with_draft(
        hybrid(16, kv_bytes=500 * 2 * layer, swa_full_tokens_ratio=0.5, max_running_requests="pool"), "EAGLE"
    )
    scenario["policies"] = {"faults": ["draft-pool-pre-split", "no-draft-budget"]}
    plan = simkv.plan(scenario)
    assert (plan.full_max_total_num_tokens, plan.swa_max_total_num_tokens) == (666, 333)
    (draft,) = (p for p in plan.pools if p.worker != "target")
    assert draft.tokens == 500
    few = run(scenario, [(20, 1)] * 10)
    assert few.fault is None and few.summary["requests.completed"] == 10
    many = run(scenario, [(20, 1)] * 60)
    assert many.fault is not None and many.fault["fault"] == "draft-pool-overrun"
    assert "500" in many.fault["message"]


# ------------------------------------------------------------------------------------------------------ R28

R28_SPEC = Spec("EAGLE", 5, 4, 8)


def test_R28_reserve_of_a_tree_with_and_without_pages() -> None:
    assert (64 - 1 + 5 + 64 - 1) // 64 == 2 and 2 * 64 * 4 == 512
    assert alloc_reserve_per_decode(R28_SPEC, 64) == 1024
    assert alloc_reserve_per_decode(R28_SPEC, 1) == 2 * max(5 * 4, 8) == 40


def test_R28_a_row_has_room_for_the_reserve() -> None:
    assert extra_context_len(R28_SPEC, 64) == max(4 + 8, 1024 + 64 - 1) == 1087
    assert extra_context_len(R28_SPEC, 1) == 12


@pytest.mark.parametrize(("page", "held", "ahead"), [(64, 2048, 1024), (1, 1040, 40)])
def test_R28_a_hundred_requests_hold_the_reserve_as_well(page: int, held: int, ahead: int) -> None:
    assert held == -(-(1000 + ahead) // page) * page
    scenario = with_draft(
        dense(page_size=page, max_total_tokens=300_032, max_running_requests=100, disable_overlap_schedule=True),
        "EAGLE",
        num_steps=5,
        eagle_topk=4,
        num_draft_tokens=8,
    )
    result = run(scenario, [(1000, 2)] * 100)
    assert peak_tokens(result, "full") == 100 * held
    assert result.summary["overallocated_tokens.peak"] == 100 * (held - 1000)
    assert 100 * ahead == {64: 102_400, 1: 4000}[page]
    assert result.fault is None and result.summary["requests.completed"] == 100
    assert any(
        f"reserves {ahead:,} tokens" in note or f"reserves {ahead} tokens" in note for note in result.plan["notes"]
    )


# ------------------------------------------------------------------------------------------------------ R29


def r29(*faults: str, number: int = 20, outputs: int = 30) -> simkv.Run:
    scenario = with_draft(
        dense(page_size=64, max_total_tokens=64_000, disable_overlap_schedule=True), "EAGLE", num_steps=3
    )
    scenario |= {"acceptance": {"kind": "trace"}, "policies": {"faults": list(faults)}}
    return run(scenario, [(100, outputs)] * number, accept=[[1, 2, 3, 4]] * number)


def test_R29_the_reserve_is_recorded_in_whole_pages() -> None:
    assert alloc_reserve_per_decode(Spec("EAGLE", 3, 1, 4), 64) == 8
    result = r29(outputs=3)
    assert -(-(100 + 8) // 64) * 64 == 128
    first = result.timeline[result.timeline["kind"] == "decode"].iloc[0]
    assert first["full_uncached_tokens"] == 20 * 128
    assert first["overallocated_tokens"] == 20 * 28


def test_R29_nothing_is_lost_when_all_have_ended() -> None:
    result = r29()
    assert result.fault is None
    assert result.timeline["full_available_tokens"].iloc[-1] == 64_000
    assert result.summary["spec_accept_length"] == pytest.approx(2.5, abs=0.3)


@pytest.mark.parametrize("number", [1, 20])
def test_R29_recording_it_unrounded_loses_the_tails(number: int) -> None:
    # Prompt 100, two outputs: the only verify step records 108 of the 128 slots it took.
    result = r29("unaligned-reserve", number=number, outputs=2)
    assert result.fault is not None and result.fault["fault"] == "unaligned-reserve"
    lost = 64_000 - int(result.timeline["full_available_tokens"].iloc[-1])
    assert lost == number * 20
    assert f"{lost}" in result.fault["message"] and "full pool" in result.fault["message"]


# ------------------------------------------------------------------------------------------------------ R30


def test_R30_a_thousand_requests_in_sequence_lose_nothing() -> None:
    capacity = 108_544
    scenario = with_draft(dense(page_size=64, max_total_tokens=capacity), "EAGLE", num_steps=3)
    result = simkv.simulate(scenario, workload=requests([(100, 4)] * 1000, concurrency=1), check_every=1)
    assert result.summary["requests.completed"] == 1000
    assert result.timeline["full_available_tokens"].iloc[-1] == capacity
    assert result.summary["num_running_reqs.peak"] == 1


# ------------------------------------------------------------------------------------------------------ R31


def checked(name: str, capacity: int, available: int, held: int) -> str:
    pool = CountedPool(name, capacity, 256)
    memory = KvMemory(Pools(pool, None, 256, 10))
    pool.available = available
    handle = memory.table.add(held, 1, 1, ignore_eos=False, to_abort=False)
    memory.table.allocated[handle] = memory.table.committed[handle] = held
    memory.rows_free -= 1
    try:
        memory.check()
    except InvariantError as error:
        return str(error)
    return ""


def test_R31_the_check_names_the_pool_and_both_sums() -> None:
    held = 308_992 + 2_560 + 0 + 8_704
    message = checked("full", 322_816, 2_816, held)
    assert 2_816 + held == 323_072 == 322_816 + 256
    for figure in ("full pool", "323072", "322816"):
        assert figure in message.replace(",", "")
    assert checked("full", 322_816, 2_816 - 256, held) == ""
    assert InvariantError.exit_code == 70


@pytest.mark.parametrize(("more", "words"), [(256, "over"), (-256, "leak")])
def test_R31_the_check_says_over_count_or_leak_by_sign(more: int, words: str) -> None:
    message = checked("full", 322_816, 2_560 + more, 320_256)
    assert f"{more:+d}" in message
    assert words in message


@pytest.mark.parametrize("overlap", [True, False])
def test_R31_the_identity_holds_at_every_step(overlap: bool) -> None:
    scenario = with_draft(
        hybrid(
            128,
            page_size=256,
            max_total_tokens=60_160,
            swa_full_tokens_ratio=0.3,
            chunked_prefill_size=4096,
            disable_overlap_schedule=not overlap,
            max_running_requests="pool",
        ),
        "EAGLE",
        accept=2,
        num_steps=1,
    )
    result = run(scenario, [(100 + 37 * i, 20 + i % 7) for i in range(100)])
    assert result.fault is None
    assert result.summary["requests.completed"] == 100
    last = result.timeline.iloc[-1]
    assert (last["full_available_tokens"], last["swa_available_tokens"]) == (60_160, 17_920)


# ------------------------------------------------------------------------------------------------------ PR #33805


def dflash(*faults: str, outputs: int = 100_000) -> simkv.Run:
    scenario = with_draft(
        hybrid(128, page_size=256, chunked_prefill_size=-1, max_total_tokens=778_496, swa_full_tokens_ratio=0.1),
        "DFLASH",
        accept=16,
        num_draft_tokens=16,
    )
    scenario["policies"] = {"faults": list(faults)}
    return simkv.simulate(scenario, workload=requests([(256, outputs)]))


def test_PR33805_a_lone_request_is_aborted_when_its_window_pool_is_full() -> None:
    result = dflash("dflash-no-window-eviction")
    assert result.plan["swa_max_total_num_tokens"] == 778_496 // 10 // 256 * 256 == 77_824
    assert result.requests["state"].tolist() == ["aborted"]
    (event,) = (e for e in result.events.itertuples() if e.event == "abort")
    assert event.pool == "swa"
    made = int(result.requests["output_tokens"][0])
    # The step that would need slots beyond 77,824: prompt, outputs and a reserve of twice 16.
    assert 77_824 - 2 * 16 - 16 <= 256 + made <= 77_824
    assert result.summary["swa_token_usage.peak"] == 1
    assert result.summary["full_token_usage.peak"] == pytest.approx(0.1, abs=0.001)
    assert result.summary["window_evicted_swa_tokens"] == 0
    assert result.summary["requests.retractions"] == 0


def test_PR33805_with_the_fault_off_it_runs_to_its_end() -> None:
    result = dflash()
    assert result.requests["state"].tolist() == ["completed"]
    assert result.requests["output_tokens"].tolist() == [100_000]
    assert peak_tokens(result, "swa") <= 4 * 256
    assert result.summary["window_evicted_swa_tokens"] > 99_000
