"""User reports of kind ``admission``: who is let in, who waits, who is refused, and who would wait for ever."""

from __future__ import annotations

import pytest
from report_cases import PLENTY, dense, hybrid, peak_tokens, prefills, requests, run

import simkv
from simkv.engines.sglang.admission import PrefillPass, Verdict
from simkv.engines.sglang.memory import KvMemory
from simkv.engines.sglang.pools import Pools
from simkv.errors import InfeasibleError
from simkv.memory.pages import CountedPool

# ------------------------------------------------------------------------------------------------------ R16


def r16(tokens: int = 4096, ratio: float = 0.1, window: int = 128) -> dict[str, object]:
    return hybrid(window, page_size=256, max_total_tokens=tokens, swa_full_tokens_ratio=ratio)


def test_R16_a_pool_that_admits_nobody_is_refused_at_start() -> None:
    plan = simkv.plan(r16())
    assert int(4096 * 0.1) // 256 * 256 == 256 <= 128 + 256
    assert plan.infeasible is not None
    assert plan.infeasible.engine_error == "ValueError"
    for figure in ("SWA pool", "256", "384"):
        assert figure in plan.infeasible.message
    with pytest.raises(InfeasibleError, match="SWA pool") as caught:
        run(r16(), [(10, 5)])
    assert (caught.value.exit_code, caught.value.engine_error) == (3, "ValueError")


def test_R16_the_smallest_fixes_are_named_and_suffice() -> None:
    infeasible = simkv.plan(r16()).infeasible
    assert infeasible is not None
    assert "memory.swa_full_tokens_ratio >= 0.125" in infeasible.fixes
    assert "memory.max_total_tokens >= 5,120" in infeasible.fixes
    assert "0.125" in infeasible.text() and "5,120" in infeasible.text()
    for fixed in (r16(ratio=0.125), r16(tokens=5120)):
        assert simkv.plan(fixed).swa_max_total_num_tokens == 512
    assert simkv.plan(r16(ratio=0.124)).infeasible is not None
    assert simkv.plan(r16(tokens=5119)).infeasible is not None


def test_R16_a_pool_that_starts_may_still_admit_nobody() -> None:
    # One page of prompt: (256 - 128) + 128 + 256 = 512, which must be less than what is free.
    stuck = run(r16(ratio=0.125), [(10, 5)])
    assert stuck.fault is not None and stuck.summary["requests.completed"] == 0
    assert "SWA pool" in stuck.fault["message"] and "512" in stuck.fault["message"]
    served = run(r16(ratio=0.1875), [(10, 5)])
    assert served.plan["swa_max_total_num_tokens"] == 768
    assert served.summary["requests.completed"] == 1


def test_R16_a_plan_that_starts_and_admits_nobody_says_so() -> None:
    # The fixes are the smallest that boot; one page of prompt needs (256 - 128) + 128 + 256 = 512 of 512.
    for fixed in (r16(ratio=0.125), r16(tokens=5120)):
        assert any("nothing is ever admitted" in note for note in simkv.plan(fixed).notes)
    assert not any("nothing is ever admitted" in note for note in simkv.plan(r16(ratio=0.1875)).notes)


def test_R16_the_stall_is_not_blamed_on_chunking_being_off() -> None:
    stuck = run(r16(ratio=0.125), [(10, 5)])
    assert stuck.fault is not None
    assert "chunking off" not in stuck.fault["message"]


def test_R16_equality_is_refused_too() -> None:
    assert simkv.plan(r16(ratio=0.125, window=256)).infeasible is not None
    assert simkv.plan(r16(ratio=0.125, window=255)).infeasible is None


# ------------------------------------------------------------------------------------------------------ R18


def r18(ratio: float = 0.1, **memory: object) -> dict[str, object]:
    return hybrid(128, **({"page_size": 256, "max_total_tokens": 131_072, "swa_full_tokens_ratio": ratio} | memory))


@pytest.mark.parametrize("burst", [1, 16])
def test_R18_a_long_prompt_starved_by_its_own_slots_is_named(burst: int) -> None:
    result = run(r18(), [(40_000, 10)] * burst)
    assert prefills(result) == [8192, 4608]
    assert 51 * 256 == 13_056 and 13_056 - 8192 - 256 == 4608
    assert result.fault is not None and result.fault["fault"] == "F2"
    for figure in ("r0", "SWA", "12,800", "13,056", "256"):
        assert figure in result.fault["message"]
    assert result.summary["swa_token_usage.peak"] == pytest.approx(12_800 / 13_056)
    assert result.summary["swa_token_usage.peak"] == pytest.approx(0.980, abs=5e-4)
    assert (result.exit_code, result.summary["requests.completed"]) == (3, 0)
    assert result.events["event"].tolist().count("fault") == 1


def test_R18_the_pool_that_parks_a_lone_prompt_is_the_binding_limit() -> None:
    result = run(r18(), [(40_000, 10)])
    assert result.fault is not None and result.fault["fault"] == "F2"
    assert result.summary["limit.binding"] == "swa"


@pytest.mark.parametrize(
    ("ratio", "overlap", "tokens"),
    [(0.1, False, 13_056), (0.129, True, 16_896), (2 * 8192 * 1.05 / 131_072, True, 17_152)],
)
def test_R18_it_finishes_without_overlap_or_with_room_for_two_chunks(ratio: float, overlap: bool, tokens: int) -> None:
    scenario = r18(ratio, disable_overlap_schedule=not overlap)
    assert simkv.plan(scenario).swa_max_total_num_tokens == tokens
    result = run(scenario, [(40_000, 10)])
    assert result.fault is None
    assert result.summary["requests.completed"] == 1
    assert sum(prefills(result)) == 40_000


def test_R18_a_stated_number_of_requests_sizes_the_pool_for_them() -> None:
    scenario = r18(max_running_requests=16)
    plan = simkv.plan(scenario)
    # Window, eviction interval, a page for the tail and a page to decode into, 16 times; two chunks; a page.
    assert plan.swa_cap == plan.swa_max_total_num_tokens == (128 + 128 + 256 + 256) * 16 + 2 * 8192 + 256 == 28_928
    assert run(scenario, [(40_000, 10)] * 16).summary["requests.completed"] == 16


# ------------------------------------------------------------------------------------------------------ R19


def test_R19_need_of_a_request_that_resumes_on_a_cached_window() -> None:
    # Only the rule: 8 new prompt tokens count as a page of 64, then 16 outputs and a page; not window and page.
    memory = KvMemory(Pools(CountedPool("full", 1 << 20, 64), CountedPool("swa", 2112, 64), 64, 8))
    one = PrefillPass(
        memory, memory.table.input_tokens[:0], 0.7, max_prefill_tokens=16_384, chunk=8192, mixed=0, window=1024
    )
    assert one.swa_need(64, 16) == 64 + 16 + 64 == 144 < 1088 == 1024 + 64


# ------------------------------------------------------------------------------------------------------ R20


def r20(prompt: int, chunk: int | None, *, free: int = 2048) -> tuple[Verdict, PrefillPass, KvMemory]:
    """One candidate against an SWA pool of 13,056 tokens of which ``free`` are free, window 128, page 256."""
    memory = KvMemory(Pools(CountedPool("full", 1 << 20, 256), CountedPool("swa", 13_056, 256), 256, 64))
    assert memory.swa is not None
    memory.swa.take(13_056 - free)
    handle = memory.table.add(prompt, 500, 500, ignore_eos=False, to_abort=False)
    one = PrefillPass(
        memory, memory.table.input_tokens[:0], 0.7, max_prefill_tokens=16_384, chunk=chunk, mixed=0, window=128
    )
    return one.add(handle), one, memory


@pytest.mark.parametrize(
    ("prompt", "chunk", "need"),
    [
        (4096, 8192, (4096 - 128) + 128 + 256),  # 4,352: waits for its turn
        (13_000, 8192, (8192 - 128) + 128 + 256),  # 8,448: waits as well
    ],
)
def test_R20_ordinary_pressure_waits(prompt: int, chunk: int, need: int) -> None:
    assert 2048 <= need < 13_056
    verdict, one, _ = r20(prompt, chunk)
    assert one.swa_need(-(-prompt // 256) * 256, 500) == need
    assert (verdict, one.admitted, one.short_pool) == (Verdict.NO_TOKEN, [], "swa")


@pytest.mark.parametrize(("prompt", "need"), [(13_000, 13_312), (12_800, 13_056)])
def test_R20_only_what_can_never_fit_is_cut(prompt: int, need: int) -> None:
    assert -(-prompt // 256) * 256 - 128 + 128 + 256 == need >= 13_056
    verdict, one, memory = r20(prompt, 16_384)
    assert one.admitted == [0] and one.new_chunked == 0
    assert int(memory.table.extend_end[0]) == (2048 - 128 - 256) // 256 * 256 == 1536
    assert verdict is not Verdict.OTHER


def test_R20_with_chunking_off_what_can_never_fit_waits_for_ever() -> None:
    verdict, one, _ = r20(13_000, None)
    assert (verdict, one.admitted) == (Verdict.NO_TOKEN, [])


def r20_run(chunk: int, prompt: int) -> simkv.Run:
    """Eight requests that hold 43 of 51 pages, and a prompt that comes before any of them could free some."""
    scenario = hybrid(
        128,
        page_size=256,
        max_total_tokens=131_072,
        swa_full_tokens_ratio=0.1,
        chunked_prefill_size=chunk,
        disable_overlap_schedule=True,
    ) | {"steptime": {"kind": "constant", "ms": 20}}
    lengths = [(1280, 200)] * 5 + [(1536, 200)] * 3
    assert sum(given for given, _ in lengths) == 13_056 - 2048
    # Two passes take all eight; the third finds the window of none of them moved yet.
    return run(scenario, [*lengths, (prompt, 200)], arrival_s=[0.0] * 8 + [0.04])


@pytest.mark.parametrize("prompt", [4096, 13_000])
def test_R20_a_waiting_prompt_costs_nobody_a_retraction(prompt: int) -> None:
    result = r20_run(8192, prompt)
    pieces = prefills(result)
    assert pieces[:2] == [8192, 11_008 - 8192]
    assert pieces[2] == min(prompt, 8192) and sum(pieces[2:]) == prompt
    assert 1536 not in pieces
    assert result.summary["requests.retractions"] == 0
    assert result.summary["requests.completed"] == 9
    # It waits for a few steps of some two hundred: named, but not what binds this run.
    assert 0 < result.summary["limit.swa"] < 0.05


def test_R20_a_prompt_that_never_fits_starts_with_what_is_free() -> None:
    result = r20_run(16_384, 13_000)
    pieces = prefills(result)
    assert (sum(pieces[:2]), pieces[2]) == (11_008, 1536)
    assert result.summary["requests.completed"] == 9
    # The price of the hatch: who is retracted is computed again.
    again = sum(pieces) - (11_008 + 13_000)
    assert (again > 0) == (result.summary["requests.retractions"] > 0)


# ------------------------------------------------------------------------------------------------------ R21


def r21(*lengths: tuple[int, int]) -> simkv.Run:
    return run(dense(page_size=64, max_total_tokens=64_384), lengths)


def test_R21_outputs_are_clipped_to_what_the_pool_can_ever_hold() -> None:
    limit = 64_384 - -(-61_200 // 64) * 64 - 64 - 1
    assert limit == 3071
    asked = r21((61_200, 3000))
    assert asked.requests["output_tokens"].tolist() == [3000]
    assert not any("clipped" in note for note in asked.notes)
    clipped = r21((61_200, 6800))
    assert clipped.requests["output_tokens"].tolist() == [limit]
    assert clipped.requests["state"].tolist() == ["completed"]
    assert any("1 requests" in note and "clipped" in note for note in clipped.notes)


def test_R21_no_room_for_an_output_ends_with_none() -> None:
    result = r21((64_300, 10))
    assert result.requests["state"].tolist() == ["completed"]
    assert result.requests["output_tokens"].tolist() == [0]


@pytest.mark.parametrize("given", [64_320, 64_350, 64_377])
def test_R21_a_prompt_within_a_page_of_the_pool_blocks_the_queue_by_name(given: int) -> None:
    result = r21((given, 10), (100, 10))
    assert result.fault is not None and result.fault["fault"] == "F5"
    assert f"{given:,}" in result.fault["message"] and "64,384" in result.fault["message"]
    assert result.requests["state"].tolist() == ["unfinished", "unfinished"]


@pytest.mark.parametrize(("given", "state"), [(64_319, "completed"), (64_378, "refused")])
def test_R21_beside_that_gap_prompts_are_served_or_refused(given: int, state: str) -> None:
    result = r21((given, 10), (100, 10))
    assert result.fault is None
    assert result.requests["state"].tolist() == [state, "completed"]


def test_R21_R06_a_run_stalled_at_its_start_names_the_limit() -> None:
    result = r21((64_350, 10), (100, 10))
    assert not any("cannot distinguish" in note for note in result.notes)
    assert result.summary["limit.binding"] == "full"


# ------------------------------------------------------------------------------------------------------ R22


@pytest.mark.parametrize(("overlap", "peak"), [(True, 2 * 8192), (False, 8192 + 127)])
def test_R22_the_full_pool_limits_a_prompt_not_the_window_pool(overlap: bool, peak: int) -> None:
    scenario = {
        "model": {"config": "gpt-oss-120b", "tp_size": 2},
        "memory": {
            "kv_bytes": PLENTY,
            "max_total_tokens": 100_000,
            "swa_full_tokens_ratio": 0.2,
            "chunked_prefill_size": 8192,
            "disable_radix_cache": True,
            "disable_overlap_schedule": not overlap,
        },
    }
    result = run(scenario, [(90_000, 100)])
    assert result.plan["swa_max_total_num_tokens"] == 20_000
    assert result.requests["output_tokens"].tolist() == [100]
    # The last output is never stored.
    assert peak_tokens(result, "full") == 90_000 + 99
    assert peak_tokens(result, "swa") == peak < 20_000


def test_R22_pool_of_72_pages_does_not_cap_a_prompt() -> None:
    scenario = hybrid(128, page_size=256, max_total_tokens=186_368, swa_full_tokens_ratio=0.1)
    result = run(scenario | {"memory": scenario["memory"] | {"disable_overlap_schedule": True}}, [(100_000, 10)])
    assert result.plan["swa_max_total_num_tokens"] == 18_432 == 72 * 256
    assert result.requests["state"].tolist() == ["completed"]


# ------------------------------------------------------------------------------------------------------ R24


def test_R24_a_request_larger_than_the_pool_is_dropped_and_everything_is_counted() -> None:
    result = run(dense(page_size=16, max_total_tokens=800), [(900, 10)] + [(100, 10)] * 9)
    states = result.requests["state"].tolist()
    assert states == ["refused"] + ["completed"] * 9
    assert "900" in result.requests["cause"][0]
    summary = result.summary
    parts = ("completed", "refused", "aborted", "unfinished", "never_arrived")
    assert sum(summary[f"requests.{part}"] for part in parts) == summary["requests.injected"] == 10


def test_R24_a_pool_holds_as_many_requests_as_their_ends_allow() -> None:
    pages, at_start, at_end = 7463, -(-6432 // 16), -(-(6432 + 1448) // 16)
    assert (at_start, at_end) == (402, 493)
    assert (pages // at_start, pages // at_end) == (18, 15)
    scenario = dense(page_size=16, max_total_tokens=pages * 16)
    fitting = simkv.simulate(scenario, workload=requests([(6432, 1448)] * 15))
    assert fitting.summary["requests.retractions"] == 0
    assert peak_tokens(fitting, "full") == 15 * at_end * 16
    result = simkv.simulate(scenario, workload=requests([(6432, 1448)] * 20))
    assert result.summary["requests.completed"] == 20
    # Requests that arrive together grow together: at the first end, no more than 15 hold memory.
    first_end = result.requests["finished_s"].min()
    rows = result.timeline[(result.timeline["kind"] == "decode") & (result.timeline["time_s"] < first_end)]
    assert rows["num_running_reqs"].iloc[-1] <= 15
    assert result.summary["limit.binding"] == "full"


# ------------------------------------------------------------------------------------------------------ R25


def r25(given: int, wanted: int = 16) -> simkv.Run:
    scenario = dense(max_total_tokens=50_000)
    scenario["model"]["context_length"] = 4096
    return simkv.simulate(scenario | {"workload": None}, workload=requests([(given, wanted)]))


@pytest.mark.parametrize(("given", "outputs"), [(4078, 16), (4079, 15), (4080, 14)])
def test_R25_the_ladder_at_the_end_of_the_context(given: int, outputs: int) -> None:
    result = r25(given)
    assert result.requests["output_tokens"].tolist() == [outputs]
    # N outputs store N - 1 tokens after the prompt.
    assert peak_tokens(result, "full") == given + outputs - 1 == 4093
    assert any("clipped" in note for note in result.notes) == (outputs < 16)


@pytest.mark.parametrize("given", [4090, 4096, 5000])
def test_R25_prompts_at_the_context_are_refused(given: int) -> None:
    result = r25(given)
    assert result.requests["state"].tolist() == ["refused"]
    assert f"{given:,}" in result.requests["cause"][0]


def test_R25_prompt_and_outputs_beyond_the_context_are_refused() -> None:
    result = r25(4081)
    assert 4081 + 16 > 4096
    assert result.requests["state"].tolist() == ["refused"]
