"""``simkv replay`` and :func:`simkv.replay`: what they print, take and refuse."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from replay_cases import draft_trees, mtp, tensors
from report_cases import requests

import simkv
from simkv.cli import main
from simkv.errors import ScenarioError
from simkv.results import Run

SCENARIO = """schema = 1
name = "tiny"
[model.config]
architectures = ["LlamaForCausalLM"]
num_hidden_layers = 2
hidden_size = 8
num_attention_heads = 1
num_key_value_heads = 1
head_dim = 8
max_position_embeddings = 4096
torch_dtype = "bfloat16"
[memory]
kv_bytes = 64000
max_running_requests = 4
chunked_prefill_size = 64
[steptime]
kind = "constant"
ms = 10
[workload]
kind = "poisson"
rate = 50
num_requests = 12
input_tokens = {kind = "uniform", min = 1, max = 60}
output_tokens = 8
"""


class Result:
    """Exit code and both streams of a command."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


Call = Callable[..., Result]


@pytest.fixture
def call(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Runs a command in this process and in a folder with a scenario, without drawing figures."""
    monkeypatch.setattr(Run, "_save_figures", lambda self, directory: directory.mkdir())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text(SCENARIO)

    def run(*words: str) -> Result:
        code = main(list(words))
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture
def recorded(call: Call) -> Call:
    """The same, with a run that recorded its allocations in ``out``."""
    assert call("run", "s.toml", "--record-allocations", "--out", "out").code == 0
    return call


def refused(result: Result, *said: str, code: int = 2) -> None:
    assert (result.code, result.out) == (code, "")
    assert [text for text in said if text not in result.err] == [], result.err


# The command -------------------------------------------------------------------------------------------------------
def test_a_run_names_its_log(call: Call) -> None:
    result = call("run", "s.toml", "--record-allocations", "--out", "out")
    assert "out/allocations.parquet" in result.out
    assert Path("out/allocations.parquet").is_file()
    assert "allocations.parquet" not in call("run", "s.toml", "--out", "other").out
    assert not Path("other/allocations.parquet").exists()


def test_a_replay_prints_its_report(recorded: Call) -> None:
    result = recorded("replay", "out", "--device", "cpu")
    assert (result.code, result.err) == (0, "")
    # 1000 tokens and a page of padding, 32 B a layer.
    assert re.search(r"target +full +2 +1,001 +64,064 +64,064 +64,064 *\n", result.out)
    assert result.out.startswith("tiny on cpu") and "everything matches" in result.out


def test_the_machine_form(recorded: Call) -> None:
    data = json.loads(recorded("replay", "out", "--device", "cpu", "--json").out)
    assert set(data) == {
        *("name", "device", "device_name", "torch", "engine", "layers", "scale", "check", "pools", "notes"),
        *("measured_bytes", "table_bytes", "peak_bytes", "planned_bytes", "allocated_bytes"),
        *("requests", "steps", "calls", "tokens_written", "tokens_per_s", "seconds"),
        *("slots_allocated", "slots_freed", "tags_written", "tags_read"),
    }
    pool = {"worker": "target", "pool": "full", "layers": 2, "rows": 1001}
    assert data["pools"] == [pool | dict.fromkeys(("planned_bytes", "expected_bytes", "allocated_bytes"), 64_064)]
    run = simkv.load_run("out")
    assert (data["name"], data["requests"], data["device"]) == ("tiny", 12, "cpu")
    # Every token is computed once, but the last one of each answer.
    tokens = int((run.requests["input_tokens"] + run.requests["output_tokens"] - 1).sum())
    cached = int(run.summary["tokens.cached"])
    assert data["tokens_written"] == data["slots_allocated"] == tokens - cached
    assert data["tags_written"] == 4 * data["tokens_written"]
    assert data["torch"] == torch.__version__


def test_options_reach_the_replay(recorded: Call) -> None:
    words = ["--device", "cpu", "--layers", "1", "--scale", "1/2", "--check", "end", "--engine", "simkv", "--json"]
    data = json.loads(recorded("replay", "out", *words).out)
    assert (data["layers"], data["scale"], data["check"], data["engine"]) == ("1", "1/2", "end", "simkv")
    assert data["allocated_bytes"] == 1001 * 16
    assert data["planned_bytes"] == 64_064
    assert len(data["notes"]) == 2


def test_a_mismatch_exits_4_and_says_what(recorded: Call) -> None:
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


def test_a_run_without_allocations_is_refused(call: Call) -> None:
    assert call("run", "s.toml", "--out", "out").code == 0
    refused(call("replay", "out"), "tiny  recorded no allocations; run it again with --record-allocations")
    # The file went missing.
    assert call("run", "s.toml", "--record-allocations", "--out", "other").code == 0
    Path("other/allocations.parquet").unlink()
    refused(call("replay", "other"), "recorded no allocations")


def test_a_folder_that_is_no_run_is_refused(call: Call) -> None:
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
def test_a_wrong_option_is_refused(recorded: Call, option: str, value: str, said: str) -> None:
    refused(recorded("replay", "out", option, value), said)


def test_all_wrong_options_are_told_at_once(recorded: Call) -> None:
    result = recorded("replay", "out", "--device", "tpu", "--layers", "0", "--scale", "-1")
    refused(result, "device  'tpu'", "layers  '0'", "scale   '-1'")


def test_without_torch_the_remedy_is_told(recorded: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    refused(recorded("replay", "out"), "torch  cannot be imported; pip install 'simkv[torch]'")


def test_without_a_cuda_device_the_remedy_is_told(recorded: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    refused(recorded("replay", "out", "--device", "cuda"), "torch finds no CUDA device; use --device cpu")
    assert json.loads(recorded("replay", "out", "--json").out)["device"] == "cpu"


def test_without_the_engine_it_is_told(recorded: Call) -> None:
    refused(recorded("replay", "out", "--device", "cpu", "--engine", "sglang"), "engine  sglang cannot be imported")


# From Python -------------------------------------------------------------------------------------------------------
def test_a_run_and_its_directory_replay_alike(recorded: Call) -> None:
    figures = []
    for run in ("out", Path("out"), simkv.load_run("out")):
        found = simkv.replay(run, device="cpu").to_dict()
        del found["seconds"], found["tokens_per_s"], found["peak_bytes"]
        figures.append(found)
    assert figures[0] == figures[1] == figures[2]


@pytest.mark.parametrize("scale", [0.5, "0.5", "1/2", Fraction(1, 2)])
def test_a_scale_can_be_written_in_many_ways(scale: Any) -> None:
    assert simkv.replay(draft_trees(), device="cpu", layers="1", scale=scale).scale == "1/2"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"device": "gpu"}, "device  'gpu' is not one of"),
        ({"layers": 2}, "layers  '2' is not one of"),
        ({"layers": None}, "layers  'None' is not one of"),
        ({"check": ""}, "check  '' is not one of"),
        ({"scale": 1.5}, "scale  1.5 is no share"),
        ({"scale": float("nan")}, "scale  nan is no share"),
        ({"scale": float("inf")}, "scale  inf is no share"),
        ({"scale": Fraction(0)}, r"scale  Fraction\(0, 1\) is no share"),
    ],
)
def test_a_wrong_argument_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        simkv.replay(draft_trees(), **arguments)


def test_a_plan_that_does_not_fit_is_scaled_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # 716,800 B of tensors, of which the mtp server's rows of 32 B may become 8 B.
    run = mtp()
    pools = run.plan["pools"]
    whole = sum(one["bytes"] for one in pools)
    monkeypatch.setattr("simkv.replayer.tensors.memory_free", lambda device: whole // 2)
    found = simkv.replay(run, device="cpu")
    assert (found.scale, found.allocated_bytes) == ("1/2", whole // 2)
    assert f"{whole:,} B of tensors become {whole // 2:,} B; rows are all there" in found.notes[0]
    with pytest.raises(
        ScenarioError, match=f"the tensors take {whole:,} B at 1 of their width, {whole // 2:,} B are to be had"
    ):
        simkv.replay(run, device="cpu", scale=1)
    monkeypatch.setattr("simkv.replayer.tensors.memory_free", lambda device: 1000)
    least = sum(one["rows"] * 8 * tensors(one) for one in pools)
    with pytest.raises(ScenarioError, match=f"{least:,} B at 1/1024 .* use --layers 1"):
        simkv.replay(run, device="cpu")


def test_progress_is_told_now_and_then() -> None:
    told: list[tuple[int, int]] = []
    run = draft_trees()
    simkv.replay(run, device="cpu", layers=1, progress=lambda done, total: told.append((done, total)))
    assert run.allocation_rows is not None
    assert {total for _, total in told} == {run.allocation_rows}
    done = [row for row, _ in told]
    assert done == sorted(set(done)) and done[0] > 0 and done[-1] <= run.allocation_rows
    assert len(told) == simkv.replay(run, device="cpu", layers=1).calls // 256


def test_a_replay_shows_itself_in_a_notebook() -> None:
    text = simkv.replay(draft_trees(), device="cpu", layers=1)._repr_html_()
    assert "everything matches" in text and "<table>" in text


def test_a_fault_that_loses_parts_of_pages_is_not_recorded() -> None:
    scenario = draft_trees().scenario
    faulty = scenario | {"policies": scenario["policies"] | {"faults": ["unaligned-reserve"]}}
    with pytest.raises(ScenarioError, match="policies.faults  unaligned-reserve loses parts of pages"):
        simkv.simulate(faulty, workload=requests([(5, 3)]), record_allocations=True)
