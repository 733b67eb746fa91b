"""``simkv sweep`` as a person types it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny import TINY

import simkv
from simkv.cli import main

SCENARIO = """schema = 1
name = "tiny"
[model]
config = "m.json"
[memory]
kv_bytes = 256000
max_running_requests = 4
chunked_prefill_size = 512
disable_radix_cache = true
disable_overlap_schedule = true
[steptime]
kind = "constant"
ms = 10
[workload]
kind = "closed"
concurrency = 1
num_requests = 1
input_tokens = 10
output_tokens = 5
[checks]
"simulated_s" = "< 0.06"
[sweep]
"steptime.ms" = [10, 20]
"memory.kv_bytes" = [256000, 0]
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a scenario that states a grid."""
    (tmp_path / "m.json").write_text(json.dumps(TINY))
    (tmp_path / "s.toml").write_text(SCENARIO)
    monkeypatch.chdir(tmp_path)
    # Drawing takes longer than all else here, and has tests of its own.
    monkeypatch.setattr(simkv.Sweep, "_chosen", lambda _: {})
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    jobs = [] if "--jobs" in words else ["--jobs", "1"]
    code = main(["sweep", "s.toml", *jobs, *words])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return code, out, err


def test_the_report(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = told(capsys)
    assert (code, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0] == "tiny: 4 points: 1 ok, 2 infeasible, 1 check failed"
    assert lines[1:3] == ["steptime.ms: 10; 20", "memory.kv_bytes: 256000; 0"]
    rows = [line for line in lines if line.startswith(("10 ", "20 "))]
    assert rows[0].startswith("10 256000 ok 0.05 ")
    assert rows[1].startswith("10 0 infeasible - ")
    assert rows[2].startswith("20 256000 check failed 0.1 ")
    assert "every check holds at 1 of 4 points; most output_tokens_per_s first" in lines
    assert "- infeasible, 2 points, first at steptime.ms = 10, memory.kv_bytes = 0:" in lines
    assert "- sweeps/tiny/sweep.json, points.jsonl, points.parquet" in lines
    assert simkv.load_sweep("sweeps/tiny").states == {"ok": 1, "infeasible": 2, "check failed": 1}


def test_the_machine_form(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capsys, "--axis", "steptime.ms=10:30:10", "--seeds", "2", "--json", "--out", "x")
    assert code == 0
    found = json.loads(out)
    assert found["axes"] == {"steptime.ms": [10, 20, 30], "seed": [0, 1]}
    assert found["directory"] == "x" and found["points"] == 6 and found["states"] == {"ok": 2, "check failed": 4}
    assert [one["changes"] for one in found["results"]][:2] == [{"steptime.ms": 10, "seed": n} for n in (0, 1)]
    assert [one["summary"]["simulated_s"] for one in found["results"]] == [0.05, 0.05, 0.1, 0.1, 0.15, 0.15]
    assert "sweep" not in found["scenario"]


def test_figures_that_are_asked_for(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = told(capsys, "--show", "steps.decode", "--axis", "workload.output_tokens=5,6,9")
    rows = [line.split() for line in out.splitlines() if line.split()[1:2] in (["ok"], ["check"])]
    assert [row[-1] for row in rows[:3]] == ["4", "5", "8"]
    code, _, err = told(capsys, "--show", "steps.decodes", "--force")
    assert code == 2 and "--show  'steps.decodes' is no figure of a run; did you mean steps.decode?" in err


def test_means_over_seeds(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--axis", "steptime.ms=10,20", "--axis", "seed,workload.output_tokens=[[1, 3], [2, 5]]"]
    _, out, _ = told(capsys, *words, "--show", "simulated_s", "--set", 'checks={"simulated_s"="< 0.04"}')
    lines = [" ".join(line.split()) for line in out.splitlines()]
    # 3 and 5 steps of 10 ms; 20 ms.
    assert "10 3 ok 0.03" in lines and "20 5 check failed 0.1" in lines
    assert "points, means over seed" in lines


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--axis", "memory.page_sizes=1,2"], "memory.page_sizes  unknown key; did you mean page_size?"),
        (["--axis", "steptime.ms"], "--axis  'steptime.ms' is not of the form"),
        (["--axis", "seed=1", "--axis", "seed=2"], "--axis  seed is given twice"),
        (["--axis", "seed=5:1"], "the range '5:1' does not get from its start to its end"),
        (["--seeds", "0"], "seeds  0 is not an integer >= 1"),
        (["--seeds", "x"], "'x' is not an integer"),
        (["--seeds", "2", "--axis", "seed=1"], "stated beside an axis seed"),
        (["--jobs", "0"], "n_jobs  0 is not -1"),
        (["--set", "sweep=3"], "sweep  3 is not a table of keys and lists"),
        (["--set", 'sweep."memory.page_size"=[]'], 'sweep."memory.page_size"  is an empty list'),
        (["--force", "--resume"], "stated beside --force"),
        (["--dask", "nowhere"], "'nowhere' is not local or the address"),
    ],
)
def test_mistakes(here: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    code, out, err = told(capsys, *words)
    assert (code, out) == (2, "")
    assert message in err
    assert not (here / "sweeps").exists()


def test_no_point_could_be_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capsys, "--axis", "memory.kv_bytes=0,1")
    assert code == 1
    assert "tiny: 2 points: 2 infeasible" in out


def test_a_directory_that_is_there(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys)
    before = (here / "sweeps/tiny/points.jsonl").read_bytes()
    code, _, err = told(capsys)
    assert code == 2 and "exists already; name another directory, pass --resume to go on with it or --force" in err
    assert told(capsys, "--resume")[0] == 0
    code, _, err = told(capsys, "--resume", "--seeds", "2")
    assert code == 2 and "axes.seed  is [0, 1], and not there in sweeps/tiny" in err
    assert (here / "sweeps/tiny/points.jsonl").read_bytes() == before
    assert told(capsys, "--force", "--seeds", "2")[0] == 0


def test_run_and_size_leave_the_grid_alone(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", "s.toml"]) == 0
    assert main(["run", "s.toml"]) == 0
    assert "[sweep] is left alone" in capsys.readouterr().out


def test_many_rows_are_cut_and_said(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = told(capsys, "--axis", "steptime.ms=1:60", "--show", "simulated_s")
    assert "20 more rows: --json, or points.parquet" in out


def test_interrupted_and_gone_on_with(here: Path) -> None:
    """Ctrl-C in a terminal: the whole group hears it, what was simulated is kept, and the bar goes."""
    axis = "steptime.ms=[" + ",".join(str(n) for n in range(10, 26)) + "]"
    slow = ["--set", "workload.num_requests=200", "--axis", axis, "--out", "x"]
    command = [sys.executable, "-m", "simkv.cli", "sweep", "s.toml", "--jobs", "2", *slow]
    master, slave = pty.openpty()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=slave, start_new_session=True)
    os.close(slave)
    points = here / "x" / "points.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (points.exists() and points.read_bytes().count(b"\n") >= 2):
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    shown = b""
    while True:
        try:
            part = os.read(master, 4096)
        except OSError:
            break
        if not part:
            break
        shown += part
    os.close(master)
    assert process.returncode == 130, shown
    assert out == b""
    assert b"/16 points" in shown and b"0 failed" in shown
    assert b"what was simulated is in x; go on with the same command and --resume" in shown
    assert b"Traceback" not in shown
    kept = points.read_bytes().splitlines()
    assert 2 <= len(kept) < 16
    assert main(["sweep", "s.toml", "--jobs", "1", *slow, "--resume"]) == 0
    now = points.read_bytes().splitlines()
    assert len(now) == 16 and set(kept) <= set(now)


def test_a_sweep_is_shown_again_finished_or_not(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, first, _ = told(capsys, "--out", "x")
    assert main(["show", "x"]) == 0
    again = capsys.readouterr().out
    assert first.startswith(again.rstrip()) and "every check holds at 1 of 4 points" in again
    lines = (here / "x/points.jsonl").read_text().splitlines(keepends=True)
    (here / "x/points.jsonl").write_text("".join(lines[3:]))
    assert main(["show", "x"]) == 1
    assert "tiny: 4 points: 3 not run, 1 infeasible" in capsys.readouterr().out
    assert main(["show", "x", "--json"]) == 1
    (one,) = json.loads(capsys.readouterr().out)["results"]
    assert one["changes"] == {"steptime.ms": 20, "memory.kv_bytes": 0} and one["state"] == "infeasible"
    (here / "x/sweep.json").write_text("{}")
    assert main(["show", "x"]) == 2


def test_names_with_brackets_and_checks_that_fail_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", "retraction-storm", "--set", "workload.num_requests=8", "--axis", 'name=["[/x]", "[bold]y"]']
    assert main([*words, "--jobs", "1", "--out", str(tmp_path / "s")]) == 0
    said = capsys.readouterr().out
    assert "[/x]" in said and "[bold]y" in said
    assert "requests.completed == 1500 fails at 2 of 2" in said
    assert main([*words, "--jobs", "100000", "--out", str(tmp_path / "t")]) == 2
    assert "is not -1 (a process a core) or an integer from 1 to" in capsys.readouterr().err
    assert not (tmp_path / "t").exists()
