from __future__ import annotations

import json
import os
import pty
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pyarrow.parquet as pq
import pytest
import torch
from tiny import TINY

import simkv
from simkv.cli import main
from simkv.memory.pages import CountedPool
from simkv.results import PLOTS, Run
from simkv.simulation import Simulation

SCENARIO = """schema = 1
name = "tiny"
[model]
config = "m.json"
[memory]
kv_bytes = 256000
max_running_requests = 4
chunked_prefill_size = 512
disable_radix_cache = true
[steptime]
kind = "constant"
ms = 10
[workload]
kind = "poisson"
rate = 50
num_requests = 20
input_tokens = {kind = "uniform", min = 1, max = 60}
output_tokens = 8
"""
COMMANDS = [
    ["size"],
    ["route"],
    ["run"],
    ["sweep"],
    ["show"],
    ["replay"],
    ["scenarios"],
    ["models"],
    ["schema"],
    ["trace"],
]
COMMANDS += [["compare"], ["baseline"], ["baseline", "save"], ["baseline", "check"]]
COMMANDS += [["trace", name] for name in ("describe", "convert", "generate")]
ESCAPE = re.compile(r"\x1b\[")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a scenario, its model and a trace."""
    mpl.use("Agg")
    (tmp_path / "m.json").write_text(json.dumps(TINY))
    (tmp_path / "s.toml").write_text(SCENARIO)
    rows = [{"arrival_s": i / 4, "input_tokens": 5 + i, "output_tokens": i % 3} for i in range(8)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Result:
    """Exit code and both streams of a command."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def call(here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a command in this process, without drawing figures, which take most of the time."""
    monkeypatch.setattr(Run, "_save_figures", lambda self, directory: directory.mkdir())

    def run(*words: str) -> Result:
        code = main(list(words))
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err
        return Result(code, captured.out, captured.err)

    return run


def process(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "simkv.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **more)


# Help --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [[], *COMMANDS], ids=" ".join)
def test_every_command_has_help(call: Any, command: list[str]) -> None:
    result = call(*command, "--help")
    assert result.code == 0
    assert result.err == ""
    assert "Usage: simkv" in result.out
    assert len(result.out.splitlines()) > 2
    assert not ESCAPE.search(result.out)


def test_help_lists_every_command(call: Any) -> None:
    text = call("--help").out
    for command in COMMANDS:
        if len(command) == 1:
            assert re.search(rf"^\W*{command[0]}\s+\w", text, re.MULTILINE), command


def test_options_are_described(call: Any) -> None:
    text = call("run", "--help").out
    for option in ("--set", "--seed", "--out", "--force", "--check-every-step", "--json"):
        line = next(line for line in text.splitlines() if re.search(rf"(^|\s){option}\b", line))
        assert len(line.split(option)[1].split()) > 2, option


def test_the_version(call: Any) -> None:
    result = call("--version")
    assert result.code == 0
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*\n", result.out)


PROBE = """
import sys
from simkv.cli import main
code = main(sys.argv[2:])
heavy = [name for name in sys.argv[1].split(",") if name in sys.modules]
assert not heavy, heavy
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        (["--help"], "pandas,matplotlib,pyarrow,torch,pydantic"),
        (["run", "--help"], "pandas,matplotlib,pyarrow,torch,pydantic"),
        (["replay", "--help"], "pandas,matplotlib,pyarrow,torch,pydantic"),
        (["size", "s.toml"], "pandas,matplotlib,pyarrow,torch"),
        (["size", "inkling-agents", "--json"], "pandas,matplotlib,pyarrow,torch"),
        (["route", "mimo-v2-flash-chat"], "pandas,matplotlib,pyarrow,torch"),
        (["models"], "pandas,matplotlib,pyarrow,torch"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_heavy_packages_are_loaded_where_they_are_used(here: Path, words: list[str], heavy: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, heavy, *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


# Streams and exit codes --------------------------------------------------------------------------------------------


def test_a_run_prints_its_result_and_nothing_else(call: Any, here: Path) -> None:
    result = call("run", "s.toml", "--out", "out")
    assert result.code == 0
    assert result.err == ""
    assert "injected 20 = completed 20" in result.out
    assert "binding limit" in result.out
    assert "out/run.json" in result.out
    assert sorted(p.name for p in (here / "out").iterdir()) == [
        "events.parquet",
        "figures",
        "requests.parquet",
        "run.json",
        "timeline.parquet",
    ]


def test_a_run_is_kept_under_its_name(call: Any, here: Path) -> None:
    assert call("run", "s.toml", "--set", "name=mine").code == 0
    assert (here / "runs" / "mine" / "run.json").is_file()


def test_show_prints_what_run_printed(call: Any) -> None:
    first = call("run", "s.toml", "--out", "out", "--set", 'checks."requests.completed"=== 20').out
    again = call("show", "out")
    assert again.code == 0
    assert first.startswith(again.out.rstrip("\n"))
    assert "written" in first[len(again.out.rstrip("\n")) :]


def test_show_prints_what_run_printed_of_the_prefix_cache(call: Any) -> None:
    sets = ["memory.disable_radix_cache=false", "workload.shared_prefix_tokens=30"]
    first = call("run", "s.toml", "--out", "out", *[word for text in sets for word in ("--set", text)]).out
    again = call("show", "out").out
    assert "prefix cache\n  hit rate" in again
    assert first.startswith(again.rstrip("\n"))
    data = strict(call("show", "out", "--json").out)["summary"]
    assert f"{data['tokens.cached']:,} of {data['tokens.admitted']:,} prompt tokens were found" in again
    assert data["cache_hit_rate"] == data["tokens.cached"] / data["tokens.admitted"] > 0
    names = {"tokens.rehit", "full_cached_tokens.peak", "tombstone_tokens.peak", "cache_evicted_full_prefill_tokens"}
    assert names <= set(data)


@pytest.mark.parametrize(
    ("sets", "code"),
    [
        ([], 0),
        (['checks."requests.completed"=== 20'], 0),
        (['checks."requests.completed"=< 20'], 1),
        (["memory.page_size=0"], 2),
        (["model.config=deepseek-v4-flash"], 2),
        (["memory.kv_bytes=10"], 3),
        # 900 tokens and two pages of 64 do not fit 960.
        (["memory.kv_bytes=245760", "memory.page_size=64", "workload.input_tokens=900"], 3),
    ],
)
def test_exit_codes_of_run_and_of_show(call: Any, here: Path, sets: list[str], code: int) -> None:
    words = [word for text in sets for word in ("--set", text)]
    result = call("run", "s.toml", "--out", "out", *words)
    assert result.code == code
    if (here / "out").exists():
        assert result.err == ""
        assert call("show", "out").code == code
    else:
        assert result.out == ""
        assert result.err.startswith("error: ")


def test_a_fault_of_the_engine_is_told_with_the_result(call: Any) -> None:
    sets = ["memory.kv_bytes=245760", "memory.page_size=64", "workload.input_tokens=900"]
    result = call("run", "s.toml", "--out", "out", *[word for text in sets for word in ("--set", text)])
    assert "the engine breaks: F5" in result.out
    assert "unfinished" in result.out


def test_an_infeasible_plan_shows_its_arithmetic(call: Any, here: Path) -> None:
    size = call("size", "s.toml", "--set", "memory.kv_bytes=10")
    assert size.code == 3
    run = call("run", "s.toml", "--set", "memory.kv_bytes=10")
    assert run.code == 3
    for text in (size.out, run.err):
        assert "256 B" in text
        assert "it would fit with memory.kv_bytes >= 256" in text
    assert not (here / "runs").exists()
    fixed = call("size", "s.toml", "--set", "memory.kv_bytes=256")
    assert fixed.code == 0


def test_a_planted_breach_exits_70(call: Any, monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    give = CountedPool.give
    monkeypatch.setattr(CountedPool, "give", lambda self, tokens: give(self, tokens + 1))
    result = call("run", "s.toml", "--out", "out", "--seed", "5")
    assert result.code == 70
    assert result.out == ""
    assert "a fault of simkv" in result.err
    assert re.search(r"step \d+", result.err)
    assert "reproduce: simkv run s.toml --out out --seed 5" in result.err
    assert not (here / "out").exists()


def test_the_command_that_reproduces_a_breach_can_be_pasted(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    give = CountedPool.give
    monkeypatch.setattr(CountedPool, "give", lambda self, tokens: give(self, tokens + 1))
    result = call("run", "s.toml", "--set", "name=two words", "--check-every-step")
    assert result.code == 70
    assert "'name=two words'" in result.err
    assert result.err.count("--check-every-step") == 1
    assert "seed 0" in result.err


def test_an_interrupted_run_is_kept(call: Any, monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    launch, calls = Simulation._launch, []

    def counted(self: Any, step: Any) -> Any:
        calls.append(step)
        if len(calls) == 20:
            raise KeyboardInterrupt
        return launch(self, step)

    monkeypatch.setattr(Simulation, "_launch", counted)
    result = call("run", "s.toml", "--out", "out")
    assert result.code == 130
    assert "interrupted" in result.out
    assert json.loads((here / "out" / "run.json").read_text())["partial"] is True
    assert call("show", "out").code == 130


def interrupted(out: str) -> tuple[int, str, str]:
    words = ["run", "s.toml", "--out", out]
    words += ["--set", "workload.num_requests=300000", "--set", "workload.output_tokens=50"]
    started = subprocess.Popen(
        [sys.executable, "-c", READY, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert started.stderr is not None
    try:
        assert started.stderr.readline() == "ready\n"
        time.sleep(0.2)
        started.send_signal(signal.SIGINT)
        text = started.communicate(timeout=60)
    finally:
        started.kill()
        started.wait()
    return started.returncode, *text


def test_ctrl_c_saves_what_was_simulated(here: Path) -> None:
    attempt = "a"
    code, out, err = interrupted(attempt)
    assert code == 130, err
    assert "Traceback" not in err
    assert "never arrived" in out
    data = json.loads((here / attempt / "run.json").read_text())
    assert data["partial"] is True
    assert data["summary"]["requests.never_arrived"] > 0


# A parent in the background may have told its children to ignore the signal.
READY = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from simkv import results
from simkv.cli import main
class Told(results.Simulation):
    def run(self):
        print("ready", file=sys.stderr, flush=True)
        return super().run()
results.Simulation = Told
sys.exit(main(sys.argv[1:]))
"""


# Mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "size",
        "size nope",
        "size none.toml",
        "size s.toml extra",
        "size s.toml --foo",
        "size s.toml --set",
        "size s.toml --set x",
        "size s.toml --set a.b.c.d=1",
        "size s.toml --set name.x=1",
        "size s.toml --seed 1",
        "size s.toml --set model.config=none.json",
        "size m.json",
        "size .",
        "size t.jsonl",
        "sizes s.toml",
        "route",
        "route s.toml --set policies.routing=x",
        "run",
        "run s.toml --seed x",
        "run s.toml --seed -1",
        "run s.toml --out",
        "run s.toml --out .",
        "run s.toml --out m.json",
        "run s.toml --out m.json --force",
        "run s.toml --out m.json/x",
        "run s.toml --out . --force",
        "run s.toml --set workload.rate=x",
        "run s.toml --set workload.rat=1",
        "run s.toml --set acceptance=fix",
        "run s.toml --set steptime=constant",
        "run s.toml --set workload={}",
        "run s.toml --set workload={trace='none.csv'}",
        "run s.toml --set memory.disable_radix_cache=maybe",
        "run s.toml --set checks.'a'=1",
        "show",
        "show .",
        "show none",
        "show m.json",
        "scenarios x",
        "models --jsno",
        "schema x",
        "trace nope",
        "trace describe",
        "trace describe none.csv",
        "trace describe m.json",
        "trace describe s.toml",
        "trace describe .",
        "trace describe t.jsonl --format x",
        "trace describe t.jsonl --time-unit h",
        "trace describe t.jsonl --rate 0",
        "trace describe t.jsonl --rate x",
        "trace describe t.jsonl --bad-rows x",
        "trace describe t.jsonl --turns x",
        "trace convert t.jsonl",
        "trace convert t.jsonl out --to x",
        "trace convert t.jsonl m.json",
        "trace convert t.jsonl none/out",
        "trace convert t.jsonl . --force",
        "trace convert t.jsonl out --limit 0",
        "trace convert t.jsonl out --rate-scale 0",
        "trace convert t.jsonl out --rate-scale nan",
        "trace generate none out",
        "trace generate s.toml m.json",
        "trace generate s.toml none/out",
        "trace generate s.toml out --set workload.num_requests=0",
        "--nope",
        "help",
    ],
)
def test_a_mistake_of_the_user_exits_2_and_says_why(call: Any, here: Path, line: str) -> None:
    before = sorted(here.iterdir())
    result = call(*line.split())
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert len(result.err) > len("error: \n")
    assert sorted(here.iterdir()) == before


def test_mistakes_made_of_random_words(call: Any) -> None:
    rng = random.Random(11)
    words = [
        "size",
        "route",
        "show",
        "trace",
        "describe",
        "convert",
        "s.toml",
        "t.jsonl",
        "m.json",
        "nope",
        "--set",
        "--json",
    ]
    words += [
        "memory.page_size=2",
        "memory.page_size=x",
        "=",
        "--to",
        "csv",
        "--format",
        "--limit",
        "-3",
        "",
        "--",
        "\u00e9",
        "-",
    ]
    for _ in range(150):
        line = rng.choices(words, k=rng.randint(1, 6))
        result = call(*line)
        assert result.code in (0, 2), line
        if result.code == 2:
            assert result.out == "", line
            assert result.err.startswith("error: "), line


def test_half_a_seed_is_refused(call: Any) -> None:
    assert call("run", "s.toml", "--out", "out", "--seed", "1.5").code == 2


def test_a_check_against_half_a_number(call: Any) -> None:
    assert call("run", "s.toml", "--set", 'checks."requests.completed"=== 1e').code == 2


@pytest.mark.parametrize("name", ["x" * 300, '"a\\u0000b"'], ids=["long", "null"])
def test_a_name_no_file_system_takes(call: Any, here: Path, name: str) -> None:
    (here / "runs").mkdir()
    assert call("run", "s.toml", "--set", f"name={name}").code == 2


def test_a_run_directory_that_is_a_link_is_replaced_or_refused(call: Any, here: Path) -> None:
    assert call("run", "s.toml", "--out", "out").code == 0
    (here / "link").symlink_to(here / "out")
    assert call("run", "s.toml", "--out", "link", "--force").code in (0, 2)


def test_the_default_directory_stays_inside_runs(call: Any, here: Path) -> None:
    inside = here / "inside"
    inside.mkdir()
    os.chdir(inside)
    call("run", "../s.toml", "--set", "name=../../escaped")
    assert not (here / "escaped").exists()


def test_an_existing_directory_is_refused_before_the_simulation(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call("run", "s.toml", "--out", "out").code == 0
    monkeypatch.setattr(Simulation, "run", lambda self: pytest.fail("was simulated"))
    result = call("run", "s.toml", "--out", "out")
    assert result.code == 2
    assert "--force" in result.err
    monkeypatch.undo()


def test_force_replaces_a_run(call: Any) -> None:
    assert call("run", "s.toml", "--out", "out").code == 0
    assert call("run", "s.toml", "--out", "out", "--force", "--seed", "9", "--json").code == 0
    assert json.loads(call("show", "out", "--json").out)["provenance"]["seed"] == 9


# The machine form --------------------------------------------------------------------------------------------------


def strict(text: str) -> Any:
    def refuse(word: str) -> Any:
        raise AssertionError(word)

    return json.loads(text, parse_constant=refuse)


def test_the_machine_form_of_run_and_of_show(call: Any, here: Path) -> None:
    result = call("run", "s.toml", "--out", "out", "--json", "--set", 'checks."requests.completed"=== 20')
    data = strict(result.out)
    run = simkv.load_run(here / "out")
    assert list(data["summary"]) == list(run.summary.index)
    assert data["summary"]["requests.completed"] == 20
    assert data["summary"]["spec_accept_length"] is None
    assert [c["key"] for c in data["checks"]] == ["requests.completed"]
    assert data["directory"] == "out"
    assert strict(call("show", "out", "--json").out) == data
    without = {k: v for k, v in data.items() if k != "directory"}
    assert strict((here / "out" / "run.json").read_text()) == without


def test_the_machine_form_of_size_is_the_plan(call: Any) -> None:
    assert strict(call("size", "s.toml", "--json").out) == json.loads(json.dumps(simkv.plan("s.toml").to_dict()))
    data = strict(call("size", "s.toml", "--json", "--set", "memory.kv_bytes=10").out)
    assert data["infeasible"]["fixes"]


def test_the_machine_form_of_the_others(call: Any) -> None:
    routes = strict(call("route", "routing-legacy-vs-generalized", "--json").out)
    assert routes["routing"] == "generalized"
    assert set(routes["rules"]) == {"legacy", "generalized", "depth-owned"}
    assert set(strict(call("scenarios", "--json").out)) == set(simkv.builtin_names())
    assert "llama-3.1-8b" in {row["name"] for row in strict(call("models", "--json").out)}
    assert strict(call("schema").out) == simkv.schema()
    facts = strict(call("trace", "describe", "t.jsonl", "--json").out)
    assert facts
    assert all(isinstance(key, str) for key in facts)


@pytest.mark.parametrize("line", ["schema --json", "trace convert t.jsonl a --json", "trace generate s.toml b --json"])
def test_every_command_takes_json(call: Any, line: str) -> None:
    assert call(*line.split()).code == 0


# Replays -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def recorded(call: Any) -> Any:
    """Runs a command where ``out`` is a run that recorded its allocations."""
    assert call("run", "s.toml", "--record-allocations", "--out", "out").code == 0
    return call


def refused(result: Result, *said: str, code: int = 2) -> None:
    assert (result.code, result.out) == (code, "")
    assert [text for text in said if text not in result.err] == [], result.err


def test_a_run_names_its_log(call: Any) -> None:
    result = call("run", "s.toml", "--record-allocations", "--out", "out")
    assert "out/allocations.parquet" in result.out
    assert Path("out/allocations.parquet").is_file()
    assert "allocations.parquet" not in call("run", "s.toml", "--out", "other").out
    assert not Path("other/allocations.parquet").exists()


def test_a_replay_prints_its_report(recorded: Any) -> None:
    result = recorded("replay", "out", "--device", "cpu")
    assert (result.code, result.err) == (0, "")
    # 1000 tokens and a page of padding, 256 B each.
    assert re.search(r"target +full +1 +1,001 +256,256 +256,256 +256,256 *\n", result.out)
    assert result.out.startswith("tiny on cpu") and "everything matches" in result.out


def test_the_machine_form(recorded: Any) -> None:
    data = json.loads(recorded("replay", "out", "--device", "cpu", "--json").out)
    assert set(data) == {
        *("name", "device", "device_name", "torch", "engine", "layers", "scale", "check", "pools", "notes"),
        *("measured_bytes", "table_bytes", "peak_bytes", "planned_bytes", "allocated_bytes"),
        *("requests", "steps", "calls", "tokens_written", "tokens_per_s", "seconds"),
        *("slots_allocated", "slots_freed", "tags_written", "tags_read"),
    }
    pool = {"worker": "target", "pool": "full", "layers": 1, "rows": 1001}
    assert data["pools"] == [pool | dict.fromkeys(("planned_bytes", "expected_bytes", "allocated_bytes"), 256_256)]
    run = simkv.load_run("out")
    assert (data["name"], data["requests"], data["device"]) == ("tiny", 20, "cpu")
    # Every token is computed once, but the last one of each answer.
    tokens = int((run.requests["input_tokens"] + run.requests["output_tokens"] - 1).sum())
    assert data["tokens_written"] == data["slots_allocated"] == tokens
    assert data["tags_written"] == 2 * data["tokens_written"]
    assert data["torch"] == torch.__version__


def test_options_reach_the_replay(recorded: Any) -> None:
    words = ["--device", "cpu", "--layers", "1", "--scale", "1/2", "--check", "end", "--engine", "simkv", "--json"]
    data = json.loads(recorded("replay", "out", *words).out)
    assert (data["layers"], data["scale"], data["check"], data["engine"]) == ("1", "1/2", "end", "simkv")
    assert data["allocated_bytes"] == 1001 * 128
    assert data["planned_bytes"] == 256_256
    assert len(data["notes"]) == 2


def test_a_mismatch_exits_4_and_says_what(recorded: Any) -> None:
    table = pq.read_table("out/allocations.parquet")
    counts = table.column("full_available").to_pylist()
    counts[0] += 1
    index = table.column_names.index("full_available")
    pq.write_table(table.set_column(index, "full_available", [counts]), "out/allocations.parquet")
    refused(
        recorded("replay", "out", "--device", "cpu"),
        "free count of the full pool: the log says 1,001, 1,000 slots are free",
        "arrive, request '0'",
        code=4,
    )
    pq.write_table(table.slice(0, 3), "out/allocations.parquet")
    refused(recorded("replay", "out", "--device", "cpu"), "the log is cut off: it ends at row 3 of", code=4)


def test_a_run_without_allocations_is_refused(call: Any) -> None:
    assert call("run", "s.toml", "--out", "out").code == 0
    refused(call("replay", "out"), "tiny  recorded no allocations; run it again with --record-allocations")
    # The file went missing.
    assert call("run", "s.toml", "--record-allocations", "--out", "other").code == 0
    Path("other/allocations.parquet").unlink()
    refused(call("replay", "other"), "recorded no allocations")


def test_a_log_that_is_no_table_is_refused(recorded: Any) -> None:
    whole = Path("out/allocations.parquet").read_bytes()
    for part in (b"", whole[: len(whole) // 2], b"x" * 100):
        Path("out/allocations.parquet").write_bytes(part)
        refused(recorded("replay", "out"), "out  is no run directory")


def test_a_folder_that_is_no_run_is_refused(call: Any) -> None:
    Path("empty").mkdir()
    refused(call("replay", "empty"), "empty  is no run directory")
    refused(call("replay", "nowhere"), "nowhere  is no run directory")


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--device", "gpu", "device  'gpu' is not one of auto, cpu, cuda"),
        ("--layers", "2", "layers  '2' is not one of all, 1"),
        ("--check", "evry", "check  'evry' is not one of every, sample, end; did you mean every?"),
        ("--engine", "vllm", "engine  'vllm' is not one of simkv, sglang"),
        ("--scale", "2", "scale  '2' is no share of heads and widths; write 1, 0.5 or 1/16"),
        ("--scale", "0", "scale  '0' is no share"),
        ("--scale", "1/0", "scale  '1/0' is no share"),
        ("--scale", "half", "scale  'half' is no share"),
    ],
)
def test_a_wrong_option_is_refused(recorded: Any, option: str, value: str, said: str) -> None:
    refused(recorded("replay", "out", option, value), said)


def test_all_wrong_options_are_told_at_once(recorded: Any) -> None:
    result = recorded("replay", "out", "--device", "tpu", "--layers", "0", "--scale", "-1")
    refused(result, "device  'tpu'", "layers  '0'", "scale   '-1'")


def test_without_torch_the_remedy_is_told(recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    refused(recorded("replay", "out"), "torch  cannot be imported; pip install 'simkv[torch]'")


def test_without_a_cuda_device_the_remedy_is_told(recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    refused(recorded("replay", "out", "--device", "cuda"), "torch finds no CUDA device; use --device cpu")
    assert json.loads(recorded("replay", "out", "--json").out)["device"] == "cpu"


# Traces ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["csv", "jsonl"])
@pytest.mark.parametrize("end", ["", ".gz"])
def test_a_trace_goes_there_and_back(call: Any, here: Path, form: str, end: str) -> None:
    written = call("trace", "generate", "s.toml", f"a.{form}{end}", "--to", form)
    assert (written.code, written.out) == (0, "")
    assert "20 requests" in written.err
    back = call("trace", "convert", f"a.{form}{end}", "b.jsonl")
    assert back.code == 0
    first, again = simkv.load("s.toml").workload(), simkv.read_trace(here / "b.jsonl")
    assert again.digest() == first.digest()
    run = call("run", "s.toml", "--out", "one", "--json")
    traced = call("run", "s.toml", "--out", "two", "--json", "--set", "workload={trace='b.jsonl'}")
    assert json.loads(run.out)["summary"] == json.loads(traced.out)["summary"]


SHARING = ("workload.turns=3", "workload.think_s=0.1", "workload.shared_prefix_tokens=5")


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_sessions_and_prefixes_go_there_and_back(call: Any, here: Path, form: str) -> None:
    changes = [part for change in SHARING for part in ("--set", change)]
    assert call("trace", "generate", "s.toml", f"a.{form}", "--to", form, *changes).err.count("not held") == 0
    first = simkv.load("s.toml").override(*SHARING).workload()
    again = simkv.read_trace(here / f"a.{form}")
    assert first.previous is not None and first.contents is not None
    assert again.digest() == first.digest()
    run = call("run", "s.toml", "--out", "one", "--json", *changes)
    traced = call("run", "s.toml", "--out", "two", "--json", "--set", f"workload={{trace='a.{form}'}}")
    assert run.code == 0
    assert json.loads(run.out)["summary"] == json.loads(traced.out)["summary"]
    poor = call("trace", "generate", "s.toml", "m.jsonl", "--to", "mooncake", *changes).err
    assert "session, previous, think_ns, content_starts, content_lengths, content_answer" in poor


def test_stated_turns_are_described_and_converted(call: Any, here: Path) -> None:
    rows = ("arrival_s,session,input_tokens,output_tokens", "0,a,4190,592", "9,a,592,16")
    (here / "d.csv").write_text("\n".join(rows) + "\n")
    facts = strict(call("trace", "describe", "d.csv", "--turns", "delta", "--json").out)
    assert facts["input_tokens.max"] == 5374
    assert facts["reusable_token_share"] == pytest.approx(4782 / (4190 + 5374))
    assert call("trace", "convert", "d.csv", "whole.jsonl", "--turns", "delta").code == 0
    again = strict(call("trace", "describe", "whole.jsonl", "--json").out)
    assert again["reusable_token_share"] == facts["reusable_token_share"]


def test_describe_says_what_is_in_a_trace(call: Any) -> None:
    text = call("trace", "describe", "t.jsonl").out
    facts = strict(call("trace", "describe", "t.jsonl", "--json").out)
    assert 8 in facts.values()
    for key in facts:
        if not isinstance(facts[key], list):
            assert key in text


def test_convert_keeps_the_first_requests_and_scales_the_rate(call: Any, here: Path) -> None:
    assert call("trace", "convert", "t.jsonl", "b.jsonl", "--limit", "3", "--rate-scale", "2").code == 0
    made = simkv.read_trace(here / "b.jsonl")
    assert made.arrival_ns.tolist() == [0, 125_000_000, 250_000_000]
    assert made.input_tokens.tolist() == [5, 6, 7]


# Terminals ---------------------------------------------------------------------------------------------------------


def test_pipes_get_plain_text_wide_enough_for_tables(here: Path) -> None:
    environment = {**os.environ, "COLUMNS": "20"}
    for words in (["size", "s.toml"], ["run", "s.toml", "--out", "out"], ["size", "nope"]):
        done = process(*words, env=environment)
        assert not ESCAPE.search(done.stdout + done.stderr), words
        assert max(map(len, (done.stdout + done.stderr).splitlines())) > 60
    assert {p.stem for p in (here / "out" / "figures").iterdir()} == set(PLOTS)


def on_a_terminal(*words: str, **environment: str) -> tuple[int, str]:
    leader, follower = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", **environment}
    done = subprocess.Popen([sys.executable, "-m", "simkv.cli", *words], stdout=follower, stderr=follower, env=env)
    os.close(follower)
    text = b""
    while True:
        try:
            chunk = os.read(leader, 65536)
        except OSError:
            break
        if not chunk:
            break
        text += chunk
    os.close(leader)
    return done.wait(60), text.decode()


def test_a_run_on_a_terminal_shows_a_bar_and_ends(here: Path) -> None:
    code, text = on_a_terminal("run", "s.toml", "--out", "out")
    assert code == 0
    assert ESCAPE.search(text)
    assert "injected 20 = completed 20" in text


def test_a_terminal_gets_bold_titles(here: Path) -> None:
    code, text = on_a_terminal("size", "s.toml")
    assert code == 0
    assert "\x1b[1m" in text


def test_no_color_switches_colour_off(here: Path) -> None:
    code, text = on_a_terminal("size", "s.toml", "--set", "memory.kv_bytes=10", NO_COLOR="1")
    assert code == 3
    assert not re.search(r"\x1b\[(\d+;)*3\d[;m]", text)
    code, text = on_a_terminal("size", "s.toml", "--set", "memory.kv_bytes=10")
    assert re.search(r"\x1b\[(\d+;)*3\d[;m]", text)


def test_no_color_switches_the_bar_off(here: Path) -> None:
    code, text = on_a_terminal("run", "s.toml", "--out", "out", NO_COLOR="1")
    assert code == 0
    assert "\x1b[2K" not in text
    assert "\x1b[?25l" not in text


# Endings -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def interruptible() -> Iterator[None]:
    """As at a terminal, also where a parent in the background had the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_while_saving_does_not_cost_the_run(
    call: Any, monkeypatch: pytest.MonkeyPatch, here: Path
) -> None:
    draw = Run._save_figures

    def interrupted(self: Run, directory: Path) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        draw(self, directory)

    monkeypatch.setattr(Run, "_save_figures", interrupted)
    before = signal.getsignal(signal.SIGINT)
    result = call("run", "s.toml", "--out", "out")
    assert result.code == 0
    assert "interrupt again to abandon" in result.err
    assert json.loads((here / "out" / "run.json").read_text())["partial"] is False
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.usefixtures("interruptible")
def test_a_second_interrupt_while_saving_leaves_nothing(call: Any, monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    def interrupted(self: Run, directory: Path) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Run, "_save_figures", interrupted)
    found = set(here.iterdir())
    result = call("run", "s.toml", "--out", "out")
    assert result.code == 130
    assert "interrupted" in result.err
    assert set(here.iterdir()) == found


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_an_output_that_cannot_be_written_is_one_line(here: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "simkv.cli", "size", "s.toml"],
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 2
    assert done.stderr == "error: the output cannot be written: No space left on device\n"


def test_a_reader_that_has_seen_enough_is_no_error(here: Path) -> None:
    line = f"{sys.executable} -m simkv.cli schema | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "{\n", "")


def test_a_terminated_run_leaves_nothing_half_written(here: Path) -> None:
    code = READY.replace(
        "return super().run()", "import os; os.kill(os.getpid(), signal.SIGTERM); return super().run()"
    )
    found = set(here.iterdir())
    words = ["run", "s.toml", "--out", "out"]
    done = subprocess.run([sys.executable, "-c", code, *words], check=False, capture_output=True, text=True)
    assert done.returncode == 143
    assert "Traceback" not in done.stderr
    assert set(here.iterdir()) == found
