"""Server logs: lines in every form, starts, ranks, and fits; all samples are written here, in the engine's format."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import server_logs
from hypothesis import given, settings
from hypothesis import strategies as st

import simkv
from simkv.cli import main
from simkv.errors import ScenarioError
from simkv.imports.launch import import_launch
from simkv.imports.logfit import geometric_alpha, intervals, linear_steptime
from simkv.imports.serverlog import ServerLog, is_server_log, read_server_log
from simkv.results import Run

DATA = Path(__file__).resolve().parents[1] / "data" / "oracle"

STARTUP = """\
[2026-03-01 10:00:00] server_args={'model_path': 'openai/gpt-oss-120b', 'tp_size': 2, 'page_size': 1, 'decode_log_interval': 20}
[2026-03-01 10:00:05 TP0] Load weight begin. avail mem=138.54 GB
[2026-03-01 10:00:05 TP1] Load weight begin. avail mem=138.60 GB
[2026-03-01 10:00:30 TP0] Load weight end. elapsed=25.10 s, type=GptOss, avail mem=107.20 GB, mem usage=31.34 GB.
[2026-03-01 10:00:33 TP0] Use sliding window memory pool. full_layer_tokens=1000000, swa_layer_tokens=800000
[2026-03-01 10:00:33 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 800000, K size: 6.87 GB, V size: 6.87 GB
[2026-03-01 10:00:33 TP0] full KV Cache is allocated. dtype: torch.bfloat16, #tokens: 1000000, K size: 8.58 GB, V size: 8.58 GB
[2026-03-01 10:00:33 TP1] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 800000, K size: 6.87 GB, V size: 6.87 GB
[2026-03-01 10:00:40 TP0] max_total_num_tokens=1000000, chunked_prefill_size=8192, max_prefill_tokens=16384, \
max_running_requests=4096, context_len=131072, available_gpu_mem=13.37 GB
"""
BATCHES = """\
[2026-03-01 10:01:00 TP0] Prefill batch, #new-seq: 2, #new-token: 300, #cached-token: 100, full token usage: 0.01, \
swa token usage: 0.02, #running-req: 0, #queue-req: 3, #pending-token: 0, cuda graph: True, input throughput (token/s): 12.50
[2026-03-01 10:01:02 TP0] Decode batch, #running-req: 5, #full token: 2000, full token usage: 0.10, #swa token: 700, \
swa token usage: 0.20, accept len: 2.00, accept rate: 0.33, cuda graph: True, gen throughput (token/s): 100.00, #queue-req: 1
[2026-03-01 10:01:04 TP0] Decode batch, #running-req: 15, #full token: 6000, full token usage: 0.30, #swa token: 900, \
swa token usage: 0.25, accept len: 3.00, accept rate: 0.67, cuda graph: False, gen throughput (token/s): 300.00, #queue-req: 0
"""


def written(tmp_path: Path, text: str, name: str = "server.log") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def parsed(tmp_path: Path, text: str, **kwargs: Any) -> ServerLog:
    return read_server_log(written(tmp_path, text), **kwargs)


@pytest.fixture(scope="module")
def run() -> Run:
    return simkv.simulate(simkv.load("gpt-oss-120b-eagle3").override("workload.num_requests=120"))


@pytest.fixture(scope="module")
def storm() -> Run:
    return simkv.simulate(simkv.load("retraction-storm").override("workload.num_requests=600", "workload.rate=20"))


# -------------------------------------------------------------------------------------------------------------- lines
def test_sizes_of_startup(tmp_path: Path) -> None:
    log = parsed(tmp_path, STARTUP + BATCHES)
    assert log.startup == {
        "load_begin": 138.54,
        "weights": 31.34,
        "full_max_total_num_tokens": 1_000_000,
        "swa_max_total_num_tokens": 800_000,
        "max_total_num_tokens": 1_000_000,
        "chunked_prefill_size": 8192,
        "max_prefill_tokens": 16384,
        "max_running_requests": 4096,
        "context_len": 131072,
        "available_gpu_mem": 13.37,
        "pools": [
            {"label": "", "dtype": "bfloat16", "tokens": 800_000, "gib": 13.74, "rounding": 0.01},
            {"label": "full", "dtype": "bfloat16", "tokens": 1_000_000, "gib": 17.16, "rounding": 0.01},
        ],
    }
    assert log.server_args["tp_size"] == 2
    assert log.interval == 20


def test_batch_lines_of_a_hybrid_model_with_drafts(tmp_path: Path) -> None:
    log = parsed(tmp_path, STARTUP + BATCHES)
    assert (log.rank, len(log.decode), len(log.prefill), len(log.events)) == ("TP0", 2, 1, 0)
    first = log.decode.iloc[0].to_dict()
    assert first == {
        "time_s": 62.0,
        "num_running_reqs": 5,
        "full_used_tokens": 2000,
        "full_token_usage": 0.1,
        "swa_used_tokens": 700,
        "swa_token_usage": 0.2,
        "spec_accept_length": 2.0,
        "spec_accept_rate": 0.33,
        "cuda_graph": True,
        "gen_throughput": 100.0,
        "num_queue_reqs": 1,
        "line": first["line"],
    }
    prefill = log.prefill.iloc[0]
    assert (prefill["num_new_seqs"], prefill["prefill_tokens"], prefill["hit_tokens"]) == (2, 300, 100)
    timeline = log.timeline
    assert list(timeline["kind"]) == ["prefill", "decode", "decode"]
    assert list(timeline["token_usage"]) == [0.02, 0.2, 0.3]
    assert timeline["cache_hit_rate"].iloc[0] == 0.25
    assert set(timeline.columns) >= {
        "time_s",
        "full_token_usage",
        "swa_token_usage",
        "num_running_reqs",
        "num_queue_reqs",
    }


@pytest.mark.parametrize(
    ("line", "values"),
    [
        # 0.5.23, one pool
        (
            "Decode batch, #running-req: 7, #token: 900, token usage: 0.45, cuda graph: True, "
            "gen throughput (token/s): 50.25, #queue-req: 2",
            (7, 900, 0.45, 50.25, 2),
        ),
        # SGLANG_LOG_FORWARD_ITERS
        (
            "Decode batch [1200], #running-req: 7, #token: 900, token usage: 0.45, npu graph: True, "
            "gen throughput (token/s): 50.25, #queue-req: 2, est. decode TFLOPS/s (per GPU): 1.50",
            (7, 900, 0.45, 50.25, 2),
        ),
        # 2024 and 2025
        (
            "Decode batch. #running-req: 7, #token: 900, token usage: 0.45, gen throughput (token/s): 50.25, #queue-req: 2, ",
            (7, 900, 0.45, 50.25, 2),
        ),
        # decode server of a split pair
        (
            "Decode batch, #running-req: 7, #token: 900, token usage: 0.45, pre-allocated usage: 0.10, #prealloc-req: 1, "
            "#transfer-req: 0, #retracted-req: 3, cuda graph: True, gen throughput (token/s): 50.25, #queue-req: 2",
            (7, 900, 0.45, 50.25, 2),
        ),
    ],
)
def test_other_releases_and_modes(line: str, values: tuple[float, ...], tmp_path: Path) -> None:
    log = parsed(tmp_path, f"[2026-03-01 10:01:00] {line}\n")
    row = log.decode.iloc[0]
    names = ("num_running_reqs", "full_used_tokens", "full_token_usage", "gen_throughput", "num_queue_reqs")
    assert tuple(row[name] for name in names) == values


def test_an_old_prefill_line(tmp_path: Path) -> None:
    text = (
        "[10:01:00 TP0] Prefill batch. #new-seq: 1, #new-token: 7, #cached-token: 3, cache hit rate: 12.50%, "
        "token usage: 0.02, #running-req: 1, #queue-req: 0\n"
    )
    row = parsed(tmp_path, text).prefill.iloc[0]
    assert (row["prefill_tokens"], row["cache_hit_rate"], row["full_token_usage"]) == (7, 0.125, 0.02)


def test_colours_prefixes_and_other_programs(tmp_path: Path) -> None:
    dressed = "".join(
        f"sglang-1  | \x1b[32m{line}\x1b[0m\nnginx: 200 GET /v1 [{n}] Decode batches are nice\n"
        for n, line in enumerate((STARTUP + BATCHES).splitlines())
    )
    log = parsed(tmp_path, dressed)
    assert (len(log.decode), len(log.prefill)) == (2, 1)
    assert log.startup["max_total_num_tokens"] == 1_000_000
    assert log.server_args["page_size"] == 1
    assert log.notes == ()


def test_carriage_returns_and_gzip(tmp_path: Path) -> None:
    path = tmp_path / "server.log.gz"
    path.write_bytes(gzip.compress((STARTUP + BATCHES).replace("\n", "\r\n").encode()))
    assert is_server_log(path)
    assert len(read_server_log(path).decode) == 2
    path.write_bytes(gzip.compress((STARTUP + BATCHES * 400).encode())[:-200])
    cut = read_server_log(path)
    assert any("cut or broken" in note for note in cut.notes)
    assert len(cut.decode) > 100


def test_one_rank_is_read_and_said(tmp_path: Path) -> None:
    more = "".join(
        f"{line.replace('TP0', rank)}\n" for line in BATCHES.splitlines() for rank in ("DP1 TP0", "DP0 TP0", "DP10 TP0")
    )
    log = parsed(tmp_path, more)
    assert log.rank == "DP0 TP0"
    assert len(log.decode) == 2
    assert log.notes == ("lines of DP0 TP0 are read, those of DP1 TP0, DP10 TP0 are left out",)


def test_the_last_start_is_read_or_the_one_asked_for(tmp_path: Path) -> None:
    text = (
        STARTUP
        + BATCHES
        + STARTUP.replace("1000000", "500000").replace("10:0", "11:0")
        + BATCHES.replace("10:0", "11:0") * 2
    )
    log = parsed(tmp_path, text)
    assert (log.start, log.starts, len(log.decode)) == (2, 2, 4)
    assert log.startup["max_total_num_tokens"] == 500_000
    assert log.decode["time_s"].iloc[0] == 62.0
    assert log.notes == ("the file holds 2 starts of a server: the last one is read",)
    first = parsed(tmp_path, text, start=1)
    assert (first.startup["max_total_num_tokens"], len(first.decode)) == (1_000_000, 2)
    for wrong in (0, 3, -1):
        with pytest.raises(ScenarioError, match="none of the 2 starts"):
            parsed(tmp_path, text, start=wrong)


def test_starts_without_arguments_are_told_by_sizes(tmp_path: Path) -> None:
    bare = "\n".join(line for line in STARTUP.splitlines() if "server_args" not in line) + "\n"
    log = parsed(tmp_path, bare + BATCHES + bare.replace("1000000", "500000") + BATCHES)
    assert (log.starts, log.startup["max_total_num_tokens"], len(log.decode)) == (2, 500_000, 2)
    # The same sizes twice in one start, as by two ranks, are one start.
    assert parsed(tmp_path, bare + bare + BATCHES).starts == 1


def test_a_start_that_only_sizes(tmp_path: Path) -> None:
    log = parsed(tmp_path, STARTUP)
    assert (len(log.decode), len(log.timeline)) == (0, 0)
    assert "no batch lines" in log.notes[0]


def test_a_clock_without_dates_passes_midnight(tmp_path: Path) -> None:
    line = "Decode batch. #running-req: 1, #token: 9, token usage: 0.45, gen throughput (token/s): 5, #queue-req: 0"
    log = parsed(tmp_path, f"[23:59:50 TP0] {line}\n[00:00:10 TP0] {line}\n[00:00:30 TP0] {line}\n")
    assert list(log.decode["time_s"]) == [0.0, 20.0, 40.0]


def test_milliseconds(tmp_path: Path) -> None:
    text = BATCHES.replace("10:01:02 TP0", "10:01:02.250 TP0").replace("10:01:04 TP0", "10:01:04.500 TP0")
    assert list(parsed(tmp_path, text).decode["time_s"]) == [2.25, 4.5]


def test_lines_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    bad = "[2026-03-01 10:01:03 TP0] Decode batch, #running-req: many, #token: x\n"
    log = parsed(tmp_path, BATCHES + bad * 2)
    assert len(log.decode) == 2
    assert log.notes[0].startswith("2 batch lines could not be read, the first: Decode batch, #running-req: many")


def test_a_line_that_is_cut_is_left_out(tmp_path: Path) -> None:
    log = parsed(tmp_path, BATCHES + BATCHES.splitlines()[1][:90])
    assert len(log.decode) == 2
    assert log.notes[0].startswith("the last line does not end")


@pytest.mark.parametrize(
    "text", ["", "hello\n", "\n\n", "time,running\n1,2\n", "Decode batch of cookies\n", "\x00\x01\x02"]
)
def test_what_is_no_log_is_refused(text: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    assert not is_server_log(path)
    with pytest.raises(ScenarioError) as caught:
        read_server_log(path)
    assert "SGLang server" in caught.value.problems[0].message


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.log", tmp_path):
        assert not is_server_log(path)
        with pytest.raises(ScenarioError, match="cannot be read"):
            read_server_log(path)


def test_a_log_is_known_by_its_look(tmp_path: Path) -> None:
    assert is_server_log(written(tmp_path, STARTUP))
    assert is_server_log(written(tmp_path, BATCHES))
    assert is_server_log(written(tmp_path, "noise\n" * 100_000 + BATCHES))
    assert not is_server_log(Path(__file__).with_name("missing"))


def test_retractions_and_troubles(tmp_path: Path) -> None:
    text = BATCHES + (
        "[2026-03-01 10:01:05 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_tokens_gained: 900, "
        "#new_token_ratio: 0.4000 -> 0.8125\n"
        "[2026-03-01 10:01:06 TP0] Decode out of memory happened. #retracted_reqs: 1, #new_token_ratio: 0.3000 -> 0.9000\n"
        "[2026-03-01 10:01:07 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "x.py", line 1, in f\n'
        "RuntimeError: Prefill out of memory. Try to lower your batch size.\n"
    )
    events = parsed(tmp_path, text).events
    assert list(events["event"]) == ["retraction", "retraction", "exception", "out of memory"]
    assert list(events["num_retracted_reqs"][:2]) == [3, 1]
    assert events["new_tokens_gained"][0] == 900
    assert (events["ratio_before"][0], events["ratio_after"][0]) == (0.4, 0.8125)
    assert list(events["time_s"]) == [5.0, 6.0, 7.0, 7.0]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.sampled_from((STARTUP + BATCHES).splitlines()), st.text(max_size=40)), max_size=12))
def test_any_lines_are_a_log_or_an_error_of_the_user(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    path = tmp_path_factory.mktemp("any") / "x.log"
    path.write_text("\n".join(lines), encoding="utf-8", errors="replace")
    is_server_log(path)
    try:
        log = read_server_log(path)
    except ScenarioError:
        return
    assert len(log.timeline) == len(log.decode) + len(log.prefill)
    json.dumps(log.to_dict(), allow_nan=False)


# -------------------------------------------------------------------------------------------------- a run written down
@pytest.mark.parametrize("ms", [True, False])
def test_a_run_comes_back(run: Run, ms: bool, tmp_path: Path) -> None:
    log = parsed(tmp_path, server_logs.log_of(run, ms=ms))
    steps = run.timeline["kind"].value_counts()
    assert len(log.prefill) == steps["prefill"]
    assert len(log.decode) == steps["decode"] // 40
    assert log.prefill["prefill_tokens"].sum() == run.timeline["prefill_tokens"].sum()
    assert log.startup["max_total_num_tokens"] == run.plan["max_total_num_tokens"]
    rows = run.timeline[run.timeline["kind"] == "decode"].iloc[39::40]
    assert np.allclose(log.decode["full_token_usage"], rows["full_token_usage"], atol=0.005)
    assert np.allclose(log.decode["swa_token_usage"], rows["swa_token_usage"], atol=0.005)
    assert list(log.decode["num_running_reqs"]) == list(rows["batch_size"])
    since = log.decode["time_s"] - log.prefill["time_s"].iloc[0]
    assert np.allclose(since, rows["time_s"], atol=0.001 if ms else 1.0)


def test_retractions_come_back(storm: Run, tmp_path: Path) -> None:
    log = parsed(tmp_path, server_logs.log_of(storm))
    assert storm.summary["requests.retractions"] > 0
    assert log.events["num_retracted_reqs"].sum() == storm.summary["requests.retractions"]
    assert set(log.events["event"]) == {"retraction"}


# ---------------------------------------------------------------------------------------------------------------- fits
@pytest.mark.parametrize(
    ("mean", "width", "alpha"),
    [(1.5, 2, 0.5), (1.75, 3, 0.5), (1.0, 4, 0.0), (4.0, 4, 1.0), (0.5, 4, 0.0), (9.0, 4, 1.0), (1.0, 1, 0.0)],
)
def test_alpha_of_a_mean(mean: float, width: int, alpha: float) -> None:
    # 1 + 1/2 = 1.5 of two; 1 + 1/2 + 1/4 = 1.75 of three.
    assert geometric_alpha(mean, width) == alpha


def test_acceptance_is_weighted_by_running_requests(tmp_path: Path) -> None:
    log = parsed(tmp_path, STARTUP + BATCHES)
    # 5 requests of 2.00 and 15 of 3.00.
    assert log.accept_length == 2.75
    fit = log.fit_acceptance(num_draft_tokens=4)
    alpha = fit.table["alpha"]
    assert 1 + alpha + alpha**2 + alpha**3 == pytest.approx(2.75, abs=1e-5)
    # (2 - 1) / 0.33 and (3 - 1) / 0.67 are 3.03 and 2.99: three draft tokens besides the bonus.
    assert log.fit_acceptance().table == fit.table
    assert "positions" in " ".join(fit.notes)
    assert simkv.load("gpt-oss-120b-eagle3").set(acceptance=fit.table).document.acceptance == fit.table
    for wrong in (0, -3):
        with pytest.raises(ScenarioError, match="num_draft_tokens"):
            log.fit_acceptance(wrong)


def test_acceptance_of_a_run_comes_back(run: Run, tmp_path: Path) -> None:
    fit = parsed(tmp_path, server_logs.log_of(run)).fit_acceptance()
    again = simkv.simulate(
        simkv.load("gpt-oss-120b-eagle3").override("workload.num_requests=120").set(acceptance=fit.table)
    )
    assert again.summary["spec_accept_length"] == pytest.approx(run.summary["spec_accept_length"], abs=0.05)


def test_without_drafts_there_is_nothing_to_fit(storm: Run, tmp_path: Path) -> None:
    log = parsed(tmp_path, server_logs.log_of(storm))
    assert math.isnan(log.accept_length)
    with pytest.raises(ScenarioError, match="does not speculate"):
        log.fit_acceptance()


def steady(loads: list[tuple[int, int, list[int]]], base: float, prefill: float, request: float, token: float) -> str:
    """A log of a server with these coefficients (s), two decode lines at each load, prefills before the second."""
    write = server_logs.Writer("TP0")
    now = 0.0
    for running, tokens, chunks in loads:
        for chunk_list in ([], chunks):
            step = base + request * running + token * tokens
            for chunk in chunk_list:
                write.say(
                    now,
                    f"Prefill batch, #new-seq: 1, #new-token: {chunk}, #cached-token: 0, token usage: 0.50, #running-req: "
                    f"{running}, #queue-req: 0, cuda graph: False, input throughput (token/s): 1.00",
                )
            took = 40 * step + sum(base + prefill * chunk for chunk in chunk_list)
            now += took
            write.say(
                now,
                f"Decode batch, #running-req: {running}, #token: {tokens}, token usage: 0.50, cuda graph: True, "
                f"gen throughput (token/s): {40 * running / took:.6f}, #queue-req: 0",
            )
    return write.text


def test_a_linear_step_time_comes_back(tmp_path: Path) -> None:
    loads = [
        (4, 9000, [500, 1500]),
        (60, 20000, [4000]),
        (16, 90000, [250]),
        (120, 300000, [8000, 100]),
        (8, 2000, [64]),
    ]
    log = parsed(tmp_path, steady(loads, base=0.008, prefill=20e-6, request=50e-6, token=30e-9))
    # Of ten lines every second interval is at one load; between loads the mean of both lines is no measure.
    rows = intervals(log.decode, log.prefill, 40).iloc[::2]
    found, error = linear_steptime(rows, 40)
    assert found["base_ms"] == pytest.approx(8.0, rel=1e-4)
    assert found["per_prefill_token_us"] == pytest.approx(20.0, rel=1e-3)
    assert found["per_decode_request_us"] == pytest.approx(50.0, rel=1e-3)
    assert found["per_context_token_ns"] == pytest.approx(30.0, rel=1e-3)
    assert error < 1e-5


def test_no_coefficient_is_negative(tmp_path: Path) -> None:
    # Steps get shorter with more requests: no such term can be had.
    write = server_logs.Writer("")
    for n, (running, rate) in enumerate([(10, 400.0), (10, 400.0), (20, 1600.0), (20, 1600.0), (40, 6400.0)]):
        write.say(
            n,
            f"Decode batch, #running-req: {running}, #token: {100 * running}, token usage: 0.50, cuda graph: True, "
            f"gen throughput (token/s): {rate:.2f}, #queue-req: 0",
        )
    fit = parsed(tmp_path, write.text).fit_steptime()
    assert all(value >= 0 for key, value in fit.table.items() if key != "kind")
    assert fit.table["base_ms"] > 0
    assert any("per_decode_request_us is 0" in note for note in fit.notes)
    assert simkv.load("retraction-storm").set(steptime=fit.table).step_time() is not None


def test_step_times_of_a_run_come_back(storm: Run, tmp_path: Path) -> None:
    fit = parsed(tmp_path, server_logs.log_of(storm)).fit_steptime()
    again = simkv.simulate(
        simkv.load("retraction-storm").override("workload.num_requests=600", "workload.rate=20").set(steptime=fit.table)
    )
    assert again.summary["simulated_s"] == pytest.approx(storm.summary["simulated_s"], rel=0.1)


def test_too_few_lines_for_a_fit(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="at least 2 are needed"):
        parsed(tmp_path, STARTUP + BATCHES).fit_steptime()


# ----------------------------------------------------------------------------------------------------------- arguments
def recorded() -> list[dict[str, Any]]:
    with gzip.open(DATA / "server_args.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.mark.parametrize("case", recorded(), ids=lambda case: f"{case['model']} {' '.join(case['argv'][3:])}")
def test_printed_arguments_make_the_scenario_of_the_command(case: dict[str, Any], tmp_path: Path) -> None:
    """Arguments as the engine's own launcher prints them after it resolved a command."""
    log = parsed(tmp_path, f"[2026-03-01 10:00:00] server_args={case['line']}\n" + BATCHES)
    made = log.launch(gpu=case["gpu"], weights="20GiB").scenario
    names = {"MODEL": case["model"], "DRAFT": case["draft"]}
    command = import_launch([names.get(w, w) for w in case["argv"]], gpu=case["gpu"], weights="20GiB").scenario
    ours, theirs = made.plan().to_dict(), command.plan().to_dict()
    for plan in (ours, theirs):
        plan.pop("notes")
        # NEXTN is another name of EAGLE.
        plan["settings"].pop("speculative_algorithm", None)
    assert ours == theirs


def test_memory_of_the_log_is_the_budget(tmp_path: Path) -> None:
    args = "server_args=ServerArgs(model_path='meta-llama/Llama-3.1-8B-Instruct', mem_fraction_static=0.9, x=<Y 1>)"
    text = STARTUP.replace(STARTUP.splitlines()[0], f"[2026-03-01 10:00:00] {args}") + BATCHES
    log = parsed(tmp_path, text)
    made = log.launch()
    budget = made.scenario.resolved.budget
    assert (budget.total, budget.weights) == (round(138.54 * (1 << 30)), round(31.34 * (1 << 30)))
    # 0.9 x 138.54 - 31.34 = 93.346 GiB
    assert budget.kv / (1 << 30) == pytest.approx(93.346, abs=1e-6)
    assert "mem_fraction_static = 0.9" in made.toml


def test_a_log_without_arguments_makes_no_scenario(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="prints no server_args"):
        parsed(tmp_path, BATCHES).launch()


# ------------------------------------------------------------------------------------------------------------- command
def test_import_log_prints_what_it_read(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, server_logs.log_of(run))
    assert main(["import-log", str(path), "--fit", "--scenario", "gpt-oss-120b-eagle3"]) == 0
    out = capsys.readouterr().out
    assert "103,441" in out
    assert "[acceptance]" in out
    assert "[steptime]" in out
    assert main(["import-log", str(path), "--json", "--fit"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["log"]["startup"]["max_running_requests"] == 64
    assert told["comparison"] is None
    assert set(told["fits"]) == {"acceptance", "steptime"}


def test_import_log_fails_where_the_plan_is_another(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, server_logs.log_of(run))
    words = ["--scenario", "gpt-oss-120b-eagle3", "--set", "memory.kv_bytes=7GiB"]
    assert main(["import-log", str(path), *words]) == 1
    assert "differs" in capsys.readouterr().out


def test_import_log_compares_its_own_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = "--model-path meta-llama/Llama-3.1-8B-Instruct --mem-fraction-static 0.8"
    plan = import_launch(line, hbm=round(79.1 * (1 << 30)), weights=round(15.02 * (1 << 30))).scenario.plan().to_dict()
    write = server_logs.Writer("")
    args = {"model_path": "meta-llama/Llama-3.1-8B-Instruct", "mem_fraction_static": 0.8, "page_size": 1}
    server_logs.startup(write, plan, args)
    write.say(2, "Load weight begin. avail mem=79.10 GB")
    write.say(3, "Load weight end. elapsed=1 s, type=Llama, avail mem=64.08 GB, mem usage=15.02 GB.")
    path = written(tmp_path, write.text)
    assert main(["import-log", str(path)]) == 0
    out, err = capsys.readouterr()
    assert "plan of llama-3.1-8b and startup" in out
    assert err == ""
    told = path.read_text().replace("meta-llama/Llama-3.1-8B-Instruct", "org/else")
    path.write_text(told)
    assert main(["import-log", str(path)]) == 0
    assert "make no scenario" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["missing.log"],
        [simkv.__file__],
        [".", "--fit"],
        [simkv.__file__, "--start", "2"],
        [simkv.__file__, "--scenario", "a", "--run", "b"],
    ],
)
def test_mistakes_are_told_without_a_traceback(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import-log", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
