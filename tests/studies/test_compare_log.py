"""A run against a server's log, asked for as any comparison is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import server_logs

import simkv
from simkv.cli import main
from simkv.errors import ScenarioError
from simkv.imports.measured import LogComparison

NAME = "gpt-oss-120b-eagle3"
FEW = "workload.num_requests=60"


@pytest.fixture(scope="module")
def run() -> simkv.Run:
    return simkv.simulate(simkv.load(NAME).override(FEW))


@pytest.fixture
def log(run: simkv.Run, tmp_path: Path) -> str:
    path = tmp_path / "server.log"
    path.write_text(server_logs.log_of(run))
    return str(path)


def test_a_run_and_its_own_log_agree_whichever_way_it_is_asked(run: simkv.Run, log: str) -> None:
    for second in (log, Path(log), simkv.read_server_log(log)):
        found = simkv.compare(run, second)
        assert isinstance(found, LogComparison)
        assert found.exit_code == 0
        usage = found.table.set_index("series").loc["full_token_usage"]
        # The log prints usages in hundredths.
        assert usage["mae"] <= 0.005 + 1e-9
    assert np.array_equal(found.points, simkv.compare_log(run, log).points, equal_nan=True)


def test_the_command_simulates_compares_and_writes(
    run: simkv.Run, log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, text, figures = tmp_path / "page.html", tmp_path / "page.md", tmp_path / "figures"
    words = ["compare", NAME, log, "--set", FEW]
    assert main([*words, "--html", str(page), "--md", str(text), "--figures", str(figures)]) == 0
    said = capsys.readouterr().out
    assert f"{NAME} against {log}" in said
    assert "simulated and measured" in said
    drawn = {path.name for path in figures.iterdir()}
    assert {"usage.png", "running.png"} <= drawn
    html = page.read_text()
    assert "every size of the plan is the log's".replace("'", "&#39;") in html
    assert html.count("<img ") == len(drawn) and "http" not in html.replace("http-equiv", "")
    assert text.read_text() == simkv.compare(run, log).to_markdown()
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["exit_code"] == 0


def test_a_size_that_differs_is_a_failure(log: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = ["compare", NAME, log, "--set", FEW, "--set", "memory.max_running_requests=60", "--html", str(page)]
    assert main(words) == 1
    assert "differs" in capsys.readouterr().out
    assert "1 of 9 sizes differ" in page.read_text()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--same-workload"], "same_workload"),
        (["--rtol", "0.1"], "rtol"),
        (["--label-a", "here"], "labels"),
        (["--set-b", "seed=1"], "--set changes scenarios"),
    ],
)
def test_what_a_log_has_no_use_for_is_refused(
    more: list[str], told: str, log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", NAME, log, "--set", FEW, *more]) == 2
    assert told in capsys.readouterr().err


def test_the_log_comes_second_and_a_sweep_is_no_run(run: simkv.Run, log: str) -> None:
    with pytest.raises(ScenarioError, match="name the run first, and the log as B"):
        simkv.compare(log, run)
    with pytest.raises(ScenarioError, match="a sweep is compared with a sweep"):
        simkv.compare(simkv.sweep(simkv.load(NAME).override("workload.num_requests=2"), {"seed": [1, 2]}), log)


def test_a_server_that_would_not_start_is_compared_by_its_plan(log: str) -> None:
    dead = simkv.load(NAME).override(FEW, "memory.weights=200GiB")
    found = simkv.compare(dead, log)
    assert isinstance(found, LogComparison)
    assert not len(found.table)
    assert any("does not start" in note for note in found.notes)
