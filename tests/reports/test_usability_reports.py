"""User reports of kind ``usability`` and the simulation's side of ``trace-input``: what a person is told."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from report_cases import PLENTY, dense, hybrid, model, run

import simkv
from simkv.errors import TraceError

# ------------------------------------------------------------------------------------------------------ R69


def csv(path: Path, *rows: str, head: str = "arrival_s,input_tokens,output_tokens") -> Path:
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


def within(context: int, tokens: int = 200_000, **memory: object) -> dict[str, object]:
    scenario = dense(**({"max_total_tokens": tokens} | memory))
    scenario["model"]["context_length"] = context
    return scenario


def test_R69_a_run_in_which_nothing_completes_is_reported_in_full(tmp_path: Path) -> None:
    rows = [f"{i},65536,10" for i in range(100)]
    path = csv(tmp_path / "long.csv", *rows[:40], "40", *rows[40:], "x,y,z")
    # The longest prompt is one less than 38,545: context 38,551, less 1 for the engine and 5 for the request.
    scenario = within(38_551) | {"workload": {"trace": str(path), "bad_rows": "drop"}}
    result = simkv.simulate(scenario)
    summary = result.summary
    assert (summary["requests.injected"], summary["requests.completed"], summary["requests.refused"]) == (100, 0, 100)
    assert set(result.requests["state"]) == {"refused"}
    cause = result.requests["cause"][0]
    assert "65,536" in cause and "38,544" in cause
    assert any("2 rows left out" in note for note in result.notes)
    assert any("long.csv:42" in note for note in result.notes) and any("long.csv:103" in note for note in result.notes)
    assert math.isnan(summary["ttft_s.p50"]) and math.isnan(summary["e2e_latency_s.p99"])
    assert summary["output_tokens_per_s"] == 0
    assert result.exit_code == 0
    stored = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert stored["summary"]["ttft_s.p50"] is None and stored["summary"]["requests.refused"] == 100
    assert stored["workload"]["rows"] == 102


def test_R69_the_limit_named_is_the_longest_prompt_taken() -> None:
    scenario = within(38_551, max_running_requests=8)
    assert run(scenario, [(38_544, 1)]).requests["state"].tolist() == ["completed"]
    refused = run(scenario, [(38_545, 1)])
    assert refused.requests["state"].tolist() == ["refused"]
    assert "38,544, the longest" in refused.requests["cause"][0]


def test_R69_the_report_of_an_empty_run_can_be_drawn_and_kept(tmp_path: Path) -> None:
    result = run(within(1000), [(65_536, 10)] * 3)
    assert result.summary["requests.refused"] == 3
    kept = simkv.load_run(result.save(tmp_path / "out", figures=False))
    assert kept.summary["requests.completed"] == 0
    assert "0 of 3" in repr(kept)


# ------------------------------------------------------------------------------------------------------ R70


@pytest.mark.parametrize(
    ("length", "fit", "limit"),
    [(1_000_000, 1, "full"), (500_000, 3, "full"), (300_000, 4, "rows"), (200_000, 4, "rows")],
)
def test_R70_how_many_requests_run_and_which_limit_binds(length: int, fit: int, limit: str) -> None:
    assert fit == min(4, 1_526_178 // length)
    scenario = dense(max_total_tokens=1_526_178, max_running_requests=4, chunked_prefill_size=-1)
    result = run(scenario, [(length - 400, 400)] * 6)
    assert result.summary["num_running_reqs.peak"] == fit
    assert result.summary["limit.binding"] == limit
    assert result.summary[f"limit.{limit}"] > 0.2
    assert result.summary["requests.completed"] == 6


def test_R70_four_requests_and_a_free_slot_wait_for_memory() -> None:
    # 2 running, 1 waiting "for capacity" while two of four slots are free: the pool is named, not the slots.
    scenario = dense(max_total_tokens=1_526_178, max_running_requests=4, chunked_prefill_size=-1)
    result = run(scenario, [(700_000, 100)] * 3)
    assert result.summary["num_running_reqs.peak"] == 2
    assert (result.summary["limit.binding"], result.summary["limit.rows"]) == ("full", 0)


# ------------------------------------------------------------------------------------------------------ R71


def live_slots(cached: int, *, config_window: int = 4, interval: int = 1) -> dict[int, range]:
    """Live SWA slots of a lone request, by the position whose KV is written in a decode step."""
    scenario = hybrid(
        cached,
        max_total_tokens=2000,
        swa_full_tokens_ratio=0.5,
        swa_eviction_interval=interval,
        disable_overlap_schedule=True,
    )
    scenario["model"] |= {"config": model("FS", window=config_window), "cache_window": cached}
    result = run(scenario, [(2, 400)])
    rows = result.timeline[result.timeline["kind"] == "decode"]
    live = {}
    for used, held in zip(rows["full_uncached_tokens"], rows["swa_uncached_tokens"], strict=True):
        live[int(used) - 1] = range(int(used) - int(held), int(used))
    return live


@pytest.mark.parametrize(("cached", "slots"), [(3, [6, 7, 8, 9]), (4, [5, 6, 7, 8, 9])])
def test_R71_a_window_of_four_is_the_token_itself_and_three_before_it(cached: int, slots: list[int]) -> None:
    live = live_slots(cached)
    assert list(live[9]) == slots
    # The oldest slot goes when the next position is prepared, not earlier: one slot a step.
    assert list(live[8]) == [slot - 1 for slot in slots]
    assert len(live_slots(4)[9]) - len(live_slots(3)[9]) == 1


def test_R71_the_default_interval_frees_in_lots() -> None:
    live = live_slots(3, interval=128)
    starts = sorted({held.start for held in live.values()})
    # Due once a whole interval of 128 has left the window of 3; then everything outside the window goes.
    assert starts[:3] == [0, 128, 256]
    assert live[130] == range(131) and live[131] == range(128, 132)


@pytest.mark.parametrize(
    ("name", "config", "cached"), [("gpt-oss-120b", 128, 127), ("inkling", 512, 511), ("mimo-v2-flash", 128, 128)]
)
def test_R71_the_convention_is_the_model_class_s_own(name: str, config: int, cached: int) -> None:
    plan = simkv.plan({"model": {"config": name}, "memory": {"kv_bytes": PLENTY, "max_total_tokens": 100_000}})
    assert plan.window == cached
    assert simkv.Arch.from_config(name).window == config
    stated = {"config": name, "cache_window": config}
    assert simkv.plan({"model": stated, "memory": {"kv_bytes": PLENTY, "max_total_tokens": 100_000}}).window == config


# ------------------------------------------------------------------------------------------------------ R60


def test_R60_zero_outputs_end_after_their_prefill_and_free_their_slots(tmp_path: Path) -> None:
    path = csv(tmp_path / "odd.csv", "0,100,5", "1,100,0", "2,0,5", "-1,100,5", ",100,5")
    scenario = dense(max_total_tokens=1000) | {"workload": {"trace": str(path), "bad_rows": "drop"}}
    result = simkv.simulate(scenario)
    assert result.requests["output_tokens"].tolist() == [5, 0]
    assert result.requests["state"].tolist() == ["completed", "completed"]
    assert result.summary["tokens.output"] == 5
    assert result.timeline["full_available_tokens"].iloc[-1] == 1000
    assert (result.workload["zero_output"], result.workload["requests"], result.workload["rows"]) == (1, 2, 5)
    for line in (4, 5, 6):
        assert any(f"odd.csv:{line}" in note for note in result.notes)


def test_R60_many_zero_outputs_do_not_stall_the_replay() -> None:
    result = run(dense(max_total_tokens=1000, max_running_requests=4), [(200, 0), (200, 3)] * 50)
    assert result.fault is None
    assert result.summary["requests.completed"] == 100
    assert result.summary["tokens.output"] == 150


# ------------------------------------------------------------------------------------------------------ R61


def r61(tmp_path: Path, **table: object) -> simkv.Run:
    slow = [(30 * i, 200, 0 if i < 5 else 20) for i in range(100)]
    fast = [(3000 + i / 3, 200, 20) for i in range(100)]
    path = csv(tmp_path / "burst.csv", *(f"{t:.4f},{given},{made}" for t, given, made in slow + fast))
    # A step takes a second, so 3 requests a second pile up and 1 in 30 s does not.
    scenario = dense(max_total_tokens=3000) | {"steptime": {"kind": "constant", "ms": 1000}}
    return simkv.simulate(scenario | {"workload": {"trace": str(path)} | table})


def test_R61_a_thin_slice_is_said_to_tell_nothing(tmp_path: Path) -> None:
    first = r61(tmp_path, end_s=3000)
    assert first.summary["requests.injected"] == 100
    assert first.workload["zero_output"] == 5
    assert first.workload["mean_rate"] == pytest.approx(99 / 2970)
    assert any("cannot distinguish" in note for note in first.notes)
    assert first.summary["token_usage.peak"] < 0.5


def test_R61_a_busy_slice_carries_no_warning(tmp_path: Path) -> None:
    second = r61(tmp_path, start_s=3000)
    assert second.summary["requests.injected"] == 100
    assert second.workload["zero_output"] == 0
    assert not any("cannot distinguish" in note for note in second.notes)
    assert second.summary["token_usage.peak"] > 0.9


# ------------------------------------------------------------------------------------------------------ R65

R65_ROWS = ("0,1024,1024", "0,1030,1024", "0,3000,10")


def r65(tmp_path: Path, **table: object) -> simkv.Run:
    path = csv(tmp_path / "context.csv", *R65_ROWS)
    return simkv.simulate(within(2048) | {"workload": {"trace": str(path)} | table})


@pytest.mark.parametrize("handling", ["refuse", "clip"])
def test_R65_rows_beyond_the_context_are_counted_with_their_excess(tmp_path: Path, handling: str) -> None:
    result = r65(tmp_path, on_oversize=handling)
    (note,) = (note for note in result.notes if "2048" in note or "2,048" in note)
    assert "2 of 3" in note and "by 6" in note and f"by {3010 - 2048}" in note
    assert result.requests["state"].tolist()[2] == "refused"
    assert "3,000" in result.requests["cause"][2]


def test_R65_dropped_rows_are_out_and_counted(tmp_path: Path) -> None:
    result = r65(tmp_path, on_oversize="drop")
    assert result.summary["requests.injected"] == 1
    assert any("2 of 3" in note and "dropped" in note for note in result.notes)


def test_R65_a_row_over_by_six_is_refused(tmp_path: Path) -> None:
    result = r65(tmp_path)
    assert 1030 + 1024 - 2048 == 6
    assert result.requests["state"].tolist() == ["completed", "refused", "refused"]


def test_R65_clipped_when_asked_and_the_engine_s_own_ladder_takes_two_more(tmp_path: Path) -> None:
    table = {"trace": str(csv(tmp_path / "asked.csv", *R65_ROWS)), "on_oversize": "clip"}
    assert simkv.load(within(2048) | {"workload": table}).workload().output_tokens.tolist() == [1024, 2048 - 1030, 10]
    result = r65(tmp_path, on_oversize="clip")
    # R25: outputs end at context - 2 - prompt.
    assert result.requests["output_tokens"].tolist()[:2] == [2048 - 2 - 1024, 2048 - 2 - 1030]
    assert any("clipped at arrival" in note for note in result.notes)


# ------------------------------------------------------------------------------------------------------ R67


@pytest.mark.parametrize("limit", [30, 200])
def test_R67_no_times_is_a_batch_at_once_and_said_so(tmp_path: Path, limit: int) -> None:
    path = csv(tmp_path / "batch.csv", *["100,50"] * 100, head="input_tokens,output_tokens")
    scenario = dense(max_total_tokens=100_000, max_running_requests=limit) | {"workload": {"trace": str(path)}}
    result = simkv.simulate(scenario)
    assert any("all 100 arrive at t=0" in note for note in result.notes)
    assert result.summary["num_running_reqs.peak"] == min(100, limit)
    assert set(result.requests["arrival_s"]) == {0.0}


def test_R67_complete_times_are_kept_and_some_missing_ones_are_an_error(tmp_path: Path) -> None:
    rows = [f"{i},100,50" for i in range(100)]
    scenario = dense(max_total_tokens=100_000)
    good = csv(tmp_path / "good.csv", *rows)
    result = simkv.simulate(scenario | {"workload": {"trace": str(good)}})
    assert not any("arrive at t=0" in note for note in result.notes)
    assert result.requests["arrival_s"].max() == 99
    bad = csv(tmp_path / "bad.csv", *rows[:97], ",100,50", ",100,50", ",100,50")
    with pytest.raises(TraceError) as caught:
        simkv.simulate(scenario | {"workload": {"trace": str(bad)}})
    assert {problem.place for problem in caught.value.problems} == {f"bad.csv:{line}" for line in (99, 100, 101)}
