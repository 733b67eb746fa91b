"""Sweeps as values: the grid, the frame, what is refused, and the directory."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import TINY, scenario, workload

import simkv
from simkv import plotting
from simkv.axes import Axis, grid, parse_axes, read_axes
from simkv.errors import ScenarioError
from simkv.studies import sweeps
from simkv.studies.points import PointResult
from simkv.studies.sweepdir import read_points

CLOSED = {"kind": "closed", "concurrency": 1, "num_requests": 1, "input_tokens": 10, "output_tokens": 5}


def files_of(directory: Path) -> dict[str, bytes]:
    return {str(one.relative_to(directory)): one.read_bytes() for one in directory.rglob("*") if one.is_file()}


def undrawn(directory: Path) -> dict[str, bytes]:
    return {name: data for name, data in files_of(directory).items() if not name.startswith("figures")}


# ------------------------------------------------------------------------------------------------- the grid and the frame
def test_a_frame_by_hand() -> None:
    base = scenario(workload=CLOSED, checks={"simulated_s": "< 0.06"})
    found = simkv.sweep(base, {"memory.kv_bytes": [256_000, 0], "steptime.ms": [10, 20.0]}, seeds=[3, 1])
    frame = found.frame
    assert list(frame.columns[:7]) == [
        "memory.kv_bytes",
        "steptime.ms",
        "seed",
        "state",
        "error",
        "exit_code",
        "checks_hold",
    ]
    assert frame["memory.kv_bytes"].tolist() == [256_000] * 4 + [0] * 4
    assert frame["steptime.ms"].tolist() == [10, 10, 20, 20] * 2
    assert frame["seed"].tolist() == [3, 1] * 4
    assert frame["state"].tolist() == ["ok"] * 2 + ["check failed"] * 2 + ["infeasible"] * 4
    assert frame["exit_code"].tolist() == [0, 0, 1, 1, 3, 3, 3, 3]
    assert frame["checks_hold"].tolist() == [True, True, False, False, *[pd.NA] * 4]
    # A prefill step, and four of decode.
    assert frame["simulated_s"][:4].tolist() == [0.05, 0.05, 0.1, 0.1]
    assert frame[found.figures][4:].isna().all(axis=None)
    assert (frame["error"] == "").tolist() == [True] * 4 + [False] * 4
    assert found.states == {"ok": 2, "check failed": 2, "infeasible": 4}
    assert not found.partial
    assert found.axes == {"memory.kv_bytes": [256_000, 0], "steptime.ms": [10, 20.0], "seed": [3, 1]}
    assert "sweep" not in found.scenario
    # Once for both seeds of a closed loop: its lengths are given.
    assert len(found.provenance["workload_sha256"]) == 1


def test_keys_that_change_together() -> None:
    table = {"memory.page_size,memory.chunked_prefill_size": [[16, 64], [64, 128]], "steptime.ms": [10, 20]}
    found = simkv.sweep(scenario(workload=CLOSED), table)
    assert found.frame["memory.page_size"].tolist() == [16, 16, 64, 64]
    assert found.frame["memory.chunked_prefill_size"].tolist() == [64, 64, 128, 128]
    assert found.frame["max_total_num_tokens"].tolist() == [992, 992, 960, 960]
    assert repr(found) == ("Sweep('tiny', memory.page_size,memory.chunked_prefill_size (2) x steptime.ms (2): 4 ok)")
    assert "4 points: 4 ok" in found._repr_html_()


def test_axes_may_be_ranges_and_arrays_and_hold_none() -> None:
    base = scenario(workload=CLOSED, memory={"max_running_requests": 8})
    found = simkv.sweep(
        base,
        {
            "steptime.ms": np.array([10.0, 20.0]),
            "memory.max_running_requests": [None, 3, "pool"],
            "seed": range(2),
        },
    )
    assert found.axes == {"steptime.ms": [10.0, 20.0], "memory.max_running_requests": [None, 3, "pool"], "seed": [0, 1]}
    assert found.frame["memory.max_running_requests"].isna().tolist() == [True, True, False, False, False, False] * 2
    # 3 where it is stated; else from the pool's size, whose smallest answer is the pool itself, or 48 at least.
    assert found.frame["max_running_requests"].tolist()[2:4] == [3, 3]
    assert found.frame["max_running_requests"][0] == found.frame["max_running_requests"][4]
    assert {"steptime.ms": "float64", "seed": "int64"}.items() <= {
        k: str(v) for k, v in found.frame.dtypes.items()
    }.items()


def test_the_scenario_states_the_grid_and_a_run_leaves_it_alone() -> None:
    table = {"steptime.ms": [10, 20], "seed": [1, 2]}
    base = scenario(workload=CLOSED, sweep=table)
    plain = scenario(workload=CLOSED)
    assert simkv.sweep(base).frame.equals(simkv.sweep(plain, table).frame)
    assert simkv.sweep(base, {"seed": [9]}).axes == {"seed": [9]}
    run, without = simkv.simulate(base), simkv.simulate(plain)
    assert run.summary.equals(without.summary)
    assert [note for note in run.notes if note not in without.notes] == [
        "[sweep] is left alone: this is one run of the scenario itself; simkv sweep runs the grid"
    ]
    assert base.plan().to_dict() == plain.plan().to_dict()


def test_seeds_count_from_the_scenarios() -> None:
    assert simkv.sweep(scenario(workload=CLOSED, seed=7), seeds=3).frame["seed"].tolist() == [7, 8, 9]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_the_last_axis_is_the_fastest(sizes: list[int]) -> None:
    axes = [Axis((f"a.k{n}",), tuple((value,) for value in range(size))) for n, size in enumerate(sizes)]
    found = [tuple(value for _, value in changes) for changes in grid(axes)]
    assert found == list(product(*(range(size) for size in sizes)))
    assert found == [sweeps._places(index, sizes) for index in range(len(found))]


# ------------------------------------------------------------------------------------------------- what is refused
@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({}, "nothing to vary"),
        ([1], "is no mapping"),
        ({"memory.page_size": []}, 'sweep."memory.page_size"  is an empty list'),
        ({"memory.page_size": 4}, "4 is not a list of values"),
        ({"policies.routing": "legacy"}, "'legacy' is not a list of values"),
        ({"memory.page_size": {1, 2}}, "is not a list of values"),
        ({"memory.page_size": iter([1])}, "is not a list of values"),
        ({"memory": {"page_size": [1]}}, 'is quoted here: "memory.page_size" = [...]'),
        ({"memory.page_size": [1, 2, 1]}, "1 is there twice"),
        ({"steptime.ms": [10, 10.0]}, "10.0 is there twice"),
        ({"steptime.ms": [float("nan")]}, "nan is no value a scenario could hold"),
        ({"workload.trace": ["\udcff.csv"]}, "is no value a scenario could hold"),
        ({"steptime.ms": [object()]}, "is no value a scenario could hold"),
        (
            {"memory.page_size": [1], 'memory."page_size"': [2]},
            "memory.page_size is a key of the axis memory.page_size",
        ),
        ({"workload": [CLOSED], "workload.rate": [1]}, "workload.rate overlaps a key of the axis workload"),
        ({"seed,seed": [[1, 2]]}, "seed is a key of the same axis"),
        ({"seed,steptime.ms": [[1, 2], [3]]}, "[3] is not a list of 2 values"),
        ({"seed,steptime.ms": [1, 2]}, "1 is not a list of 2 values"),
        ({"": [1]}, "'' is no dotted key"),
        ({"a,,b": [1]}, "'a,,b' is no dotted key"),
        ({"a b": [1]}, "'a b' is no dotted key"),
        ({'a."b': [1]}, "is no dotted key"),
        ({7: [1]}, "7 is no dotted key"),
        ({"schema": [1]}, "schema is nothing that a run could differ in"),
        ({"memory.page_sizes": [1, 2]}, "memory.page_sizes  unknown key; did you mean page_size?"),
        ({"memorie.page_size": [1]}, "unknown key"),
        ({"policies.routing": ["legacy", "legacyy"]}, "'legacyy' is not one of"),
        ({"seed": [-1, 0]}, "seed  -1 is not >= 0"),
        ({"name.x": [1]}, "name is 'tiny', not a table"),
        ({"seed": range(10**12)}, "holds 1,000,000,000,000 values"),
        ({"seed": range(1000), "steptime.ms": range(1, 1001)}, "makes 1,000,000 points; at most 100,000"),
    ],
)
def test_axes_that_cannot_be_meant(table: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        simkv.sweep(scenario(workload=CLOSED), table, out=tmp_path / "out")
    assert told in str(caught.value)
    assert not (tmp_path / "out").exists()
    if (
        isinstance(table, dict)
        and table
        and not any(isinstance(v, (set, range)) or hasattr(v, "__next__") for v in table.values())
    ):
        # The same grammar in a scenario, except for what only a run of points tells.
        try:
            base = scenario(workload=CLOSED, sweep=table)
        except ScenarioError as error:
            assert str(error).startswith(str(len(error.problems)))
        else:
            with pytest.raises(ScenarioError):
                simkv.sweep(base)


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(ScenarioError) as caught:
        simkv.sweep(scenario(workload=CLOSED), {"memory.page_size": [], "seed": 1, "steptime.ms": [1, 1]})
    assert len(caught.value.problems) == 3
    with pytest.raises(ScenarioError) as caught:
        simkv.sweep(scenario(workload=CLOSED), {"memory.page_siz": [1, 2], "policies.routing": ["x", "y"]})
    assert [problem.place for problem in caught.value.problems] == ["memory.page_siz", *["policies.routing"] * 2]


def test_a_wrong_combination_is_a_point_and_a_wrong_value_is_not() -> None:
    # 96 is a multiple of 32 and not of 64.
    table = {"memory.page_size": [32, 64], "memory.chunked_prefill_size": [96, 128]}
    found = simkv.sweep(scenario(workload=CLOSED), table)
    assert found.frame["state"].tolist() == ["ok", "ok", "error", "ok"]
    assert "96 is not a multiple of memory.page_size 64" in found.frame["error"][2]
    assert found.frame["exit_code"][2] == 2


@pytest.mark.parametrize("seeds", [0, -1, [], [1, 1], "12", 1.5, True, [1.5]])
def test_seeds_that_are_none(seeds: Any) -> None:
    with pytest.raises(ScenarioError, match="seed"):
        simkv.sweep(scenario(workload=CLOSED), seeds=seeds)


def test_axes_without_effect() -> None:
    base = scenario(workload=CLOSED)
    with pytest.raises(ScenarioError, match="workload.rate has no effect: workload is given in Python"):
        simkv.sweep(base, {"workload.rate": [1, 2]}, workload=workload([(0, 1, 1)]))
    with pytest.raises(ScenarioError, match="policies.routing has no effect: routing is given"):
        simkv.sweep(base, {"policies.routing": ["legacy"]}, routing=base.resolved.rule)
    with pytest.raises(ScenarioError, match="model.config has no effect: arch is given"):
        simkv.sweep(base.with_arch(base.resolved.arch), {"model.config": [TINY]})
    with pytest.raises(ScenarioError, match="stated beside an axis seed"):
        simkv.sweep(base, {"seed": [1]}, seeds=2)
    with pytest.raises(ScenarioError, match="workload .* has no arrival_ns"):
        simkv.sweep(base, {"seed": [1]}, workload="t.csv")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="steptimes"):
        simkv.sweep(base, {"seed": [1]}, steptimes=1)
    assert simkv.sweep(base, {"seed": [1]}, routing="legacy").scenario["policies"]["routing"] == "legacy"


def test_plots_of_what_is_not_there() -> None:
    found = simkv.sweep(scenario(workload=CLOSED), {"seed": [1, 2]})
    for bad, told in (
        ({"kind": "line"}, "'line' is not one of lines, heatmap, pareto; did you mean lines?"),
        ({"kind": "lines", "y": "requests.complete"}, "no figure of this sweep; did you mean requests.completed?"),
        ({"kind": "lines", "x": "sead"}, "'sead' is no axis of this sweep; did you mean seed?"),
        ({"kind": "heatmap", "x": "seed"}, "a heat map needs two axes"),
        ({"kind": "lines", "y": "limit.binding"}, "'limit.binding' is text, and cannot be drawn"),
        ({"kind": "lines", "x": "seed", "hue": "seed"}, "'seed' is the axis x already"),
        ({"kind": "pareto", "x": "seed"}, "'seed' is no figure of this sweep"),
    ):
        with pytest.raises(ScenarioError, match=told.replace("?", r"\?")):
            found.plot(**bad)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------- the command line's axes
@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a.b=[1, 2.5, 'x']", [1, 2.5, "x"]),
        ("a.b=1:5", [1, 2, 3, 4, 5]),
        ("a.b = 5:1:-2", [5, 3, 1]),
        ("a.b=1:6:2", [1, 3, 5]),
        ("a.b=0.1:0.5:0.1", [0.1, 0.2, 0.3, 0.4, 0.5]),
        ("a.b=legacy,generalized", ["legacy", "generalized"]),
        ("a.b=1GiB, 2GiB", ["1GiB", "2GiB"]),
        ("a.b=true,1", [True, 1]),
        ("a.b=x:y", ["x:y"]),
        ("a.b=tcp://x:1", ["tcp://x:1"]),
        ("a.b=1=2", ["1=2"]),
    ],
)
def test_values_as_they_are_typed(text: str, values: list[Any]) -> None:
    assert parse_axes([text]) == {"a.b": values}
    assert [type(value) for value in parse_axes([text])["a.b"]] == [type(value) for value in values]


def test_axes_as_they_are_typed() -> None:
    assert parse_axes(["a.b,c.d=[[1,2],[3,4]]", 'checks."x=y"=1,2']) == {
        "a.b,c.d": [[1, 2], [3, 4]],
        'checks."x=y"': [1, 2],
    }


@pytest.mark.parametrize(
    "text", ["", "=", "a", "a=", "a= ", "=1", "a=1:2:0", "a=2:1", "a=1:10000000", "a=[1", "a=1:-", "a=[1]\nb=2"]
)
def test_axes_mistyped(text: str) -> None:
    with pytest.raises(ScenarioError, match="1 problem in command line"):
        read_axes(parse_axes([text]))


@given(st.integers(-50, 50), st.integers(-50, 50), st.integers(1, 9))
def test_ranges_end_where_they_say(start: int, stop: int, step: int) -> None:
    step = step if stop >= start else -step
    expected = list(range(start, stop + (1 if step > 0 else -1), step))
    assert parse_axes([f"a={start}:{stop}:{step}"]) == {"a": expected}


# ------------------------------------------------------------------------------------------------- the directory
GRID = {"memory.kv_bytes": [256_000, 128_000, 0], "steptime.ms": [10, 20]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a sweep that was run in this process."""
    target = tmp_path_factory.mktemp("sweep") / "whole"
    simkv.sweep(scenario(workload=CLOSED), GRID, out=target)
    return target


def test_a_directory_holds_what_was_asked_and_what_came(whole: Path) -> None:
    found = simkv.load_sweep(whole)
    assert sorted(files_of(whole)) == sorted(
        [
            *(f"figures/heatmap-{name}.png" for name in ("output_tokens_per_s", "requests.retractions")),
            *(f"figures/heatmap-{name}.png" for name in ("token_usage.p99", "ttft_s.p99")),
            *(f"figures/pareto-{name}.png" for name in ("requests.retractions", "ttft_s.p99")),
            "points.jsonl",
            "points.parquet",
            "sweep.json",
        ]
    )
    again = simkv.sweep(scenario(workload=CLOSED), GRID)
    pd.testing.assert_frame_equal(found.frame, again.frame, check_exact=True)
    pd.testing.assert_frame_equal(pd.read_parquet(whole / "points.parquet"), found.frame, check_exact=True)
    head = json.loads((whole / "sweep.json").read_text())
    assert head["points"] == 6 and head["axes"] == GRID and head["schema"] == 1
    assert head["provenance"]["workload_sha256"] == [
        simkv.simulate(scenario(workload=CLOSED)).provenance["workload_sha256"]
    ]
    lines = [json.loads(line) for line in (whole / "points.jsonl").read_text().splitlines()]
    assert [line["index"] for line in lines] == list(range(6))
    assert lines[3]["changes"] == {"memory.kv_bytes": 128_000, "steptime.ms": 20}


def test_figures_are_the_same_bytes_again(whole: Path, tmp_path: Path) -> None:
    drawn = simkv.load_sweep(whole).plot("heatmap", y="ttft_s.p99")
    plotting.save(drawn.figure, tmp_path / "again.png")  # type: ignore[arg-type]
    assert (tmp_path / "again.png").read_bytes() == (whole / "figures" / "heatmap-ttft_s.p99.png").read_bytes()


def test_save_writes_the_same_directory(whole: Path, tmp_path: Path) -> None:
    simkv.load_sweep(whole).save(tmp_path / "copy", figures=False)
    assert files_of(tmp_path / "copy") == undrawn(whole)
    with pytest.raises(ScenarioError, match="exists already"):
        simkv.load_sweep(whole).save(tmp_path / "copy")


def test_processes_write_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    simkv.sweep(scenario(workload=CLOSED), GRID, out=tmp_path / "two", n_jobs=2, figures=False)
    assert files_of(tmp_path / "two") == undrawn(whole)


@settings(max_examples=12, deadline=None)
@given(cut=st.integers(0, 20_000), drop=st.sampled_from(["", "points.parquet", "points.jsonl"]))
def test_whatever_was_written_when_it_ended_it_goes_on(whole: Path, cut: int, drop: str) -> None:
    torn = whole.parent / "torn"
    shutil.rmtree(torn, ignore_errors=True)
    shutil.copytree(whole, torn)
    data = (whole / "points.jsonl").read_bytes()
    (torn / "points.jsonl").write_bytes(data[: cut % (len(data) + 1)])
    (torn / "sweep.json.new").write_text("{")
    if drop:
        (torn / drop).unlink()
    simkv.sweep(scenario(workload=CLOSED), GRID, out=torn, resume=True, figures=False)
    assert files_of(torn) == undrawn(whole)


def test_what_ended_is_kept_and_what_broke_is_run_again(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "some"
    shutil.copytree(whole, target)
    lines = (whole / "points.jsonl").read_text().splitlines(keepends=True)
    broken = {"index": 3, "changes": {}, **PointResult(3, "error", "disk full", 70).to_dict()}
    # 0 and 1 are there, 3 broke, 5 cannot start; 2 and 4 are missing.
    kept = [lines[5], json.dumps({**broken, "index": 3}) + "\n", lines[0], lines[1]]
    (target / "points.jsonl").write_text("".join(kept))
    assert simkv.load_sweep(target).partial
    assert simkv.load_sweep(target).frame["state"].tolist() == ["ok", "ok", "not run", "error", "not run", "infeasible"]
    ran: list[int] = []
    told: list[tuple[int, int, int]] = []
    run_points = sweeps.run_points

    def noted(base: Any, points: Any, **more: Any) -> Any:
        ran.extend(point.index for point in points)
        return run_points(base, points, **more)

    monkeypatch.setattr(sweeps, "run_points", noted)
    simkv.sweep(
        scenario(workload=CLOSED),
        GRID,
        out=target,
        resume=True,
        figures=False,
        progress=lambda *counts: told.append(counts),
    )
    assert ran == [2, 3, 4]
    assert told == [(4, 1, 6), (5, 1, 6), (6, 2, 6)]
    assert files_of(target) == undrawn(whole)
    simkv.sweep(scenario(workload=CLOSED), GRID, out=target, resume=True, figures=False)
    assert ran == [2, 3, 4] and files_of(target) == undrawn(whole)


def test_another_sweep_is_not_gone_on_with(whole: Path) -> None:
    before = files_of(whole)
    base = scenario(workload=CLOSED)
    for other, axes, told in (
        (base.set(seed=3), GRID, "scenario.seed  is 3, and 0 in"),
        (base.set(memory__page_size=2), GRID, "scenario.memory.page_size  is 2, and 1 in"),
        (base, {**GRID, "steptime.ms": [10, 30]}, "axes.steptime.ms  is [10, 30], and [10, 20] in"),
        (base, dict(reversed(GRID.items())), 'axes  is ["steptime.ms", "memory.kv_bytes"]'),
        (base, {**GRID, "seed": [1]}, "axes.seed  is [1], and not there in"),
        (base.with_arch(base.resolved.arch), GRID, "provenance.given_in_python.arch  is"),
    ):
        with pytest.raises(ScenarioError, match="name another directory") as caught:
            simkv.sweep(other, axes, out=whole, resume=True)
        assert told in str(caught.value)
    assert files_of(whole) == before


def test_a_trace_that_changed_is_another_sweep(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"arrival_s": 0, "input_tokens": 5, "output_tokens": 2}\n')
    base = scenario(workload={"trace": str(trace)})
    simkv.sweep(base, {"seed": [1]}, out=tmp_path / "out", figures=False)
    trace.write_text('{"arrival_s": 0, "input_tokens": 6, "output_tokens": 2}\n')
    with pytest.raises(ScenarioError, match=r"provenance.files\..*t.jsonl"):
        simkv.sweep(base, {"seed": [1]}, out=tmp_path / "out", resume=True)


def test_directories_that_are_in_the_way(whole: Path, tmp_path: Path) -> None:
    base = scenario(workload=CLOSED)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letters.txt").write_text("dear")
    for force, resume in ((False, False), (True, False), (False, True)):
        with pytest.raises(ScenarioError, match="exists and is no sweep directory"):
            simkv.sweep(base, GRID, out=tmp_path / "mine", force=force, resume=resume)
    (tmp_path / "file").write_text("")
    with pytest.raises(ScenarioError, match="exists and is no sweep directory"):
        simkv.sweep(base, GRID, out=tmp_path / "file", force=True)
    with pytest.raises(ScenarioError, match="cannot be written"):
        simkv.sweep(base, GRID, out=tmp_path / "file" / "below")
    with pytest.raises(ScenarioError, match="cannot be written"):
        simkv.sweep(base, GRID, out="a\0b")
    with pytest.raises(ScenarioError, match="stated beside --force"):
        simkv.sweep(base, GRID, out=whole, force=True, resume=True)
    with pytest.raises(ScenarioError, match=r"exists already.*--resume.*--force"):
        simkv.sweep(base, GRID, out=whole)
    # What is not the sweep's own stays.
    shutil.copytree(whole, tmp_path / "again")
    (tmp_path / "again" / "letters.txt").write_text("dear")
    simkv.sweep(base, {"seed": [1, 2]}, out=tmp_path / "again", force=True, figures=False)
    assert {"letters.txt", "points.jsonl"} <= set(files_of(tmp_path / "again"))
    assert simkv.load_sweep(tmp_path / "again").axes == {"seed": [1, 2]}
    assert not any("heatmap" in name for name in files_of(tmp_path / "again"))


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("sweep.json", "{", "is no sweep directory"),
        ("sweep.json", "[]", "lacks schema, scenario, axes"),
        ("points.jsonl", '{"index": 99}\n', "points.jsonl:1  is no result of this sweep"),
        ("points.jsonl", "x\n", "points.jsonl:1  is no result"),
        ("points.jsonl", "[]\n", "points.jsonl:1  is no result"),
        ("points.jsonl", "\xff\n", "points.jsonl:1  is no result"),
    ],
)
def test_files_that_somebody_changed(whole: Path, tmp_path: Path, name: str, text: str, told: str) -> None:
    target = tmp_path / "bad"
    shutil.copytree(whole, target)
    (target / name).write_bytes(text.encode("latin-1"))
    for call in (
        lambda: simkv.load_sweep(target),
        lambda: simkv.sweep(scenario(workload=CLOSED), GRID, out=target, resume=True),
    ):
        with pytest.raises(ScenarioError) as caught:
            call()
        assert told in str(caught.value)


def test_no_directory_at_all(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="is no sweep directory: No such file"):
        simkv.load_sweep(tmp_path / "none")


SLOW = """
import time
from dataclasses import dataclass, field
import simkv
from tiny import scenario

CLOSED = {"kind": "closed", "concurrency": 1, "num_requests": 1, "input_tokens": 10, "output_tokens": 5}

@dataclass
class Slow:
    pause: float = field(repr=False)

    def __call__(self, work):
        time.sleep(self.pause)
        return 0, 10_000_000

def study(out, pause, jobs):
    axes = {"workload.input_tokens": list(range(10, 22))}
    base = scenario(workload=CLOSED)
    simkv.sweep(base, axes, out=out, n_jobs=jobs, resume=True, steptime=Slow(pause), figures=False)
"""


def test_killed_half_way_and_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_study.py").write_text(SLOW)
    monkeypatch.syspath_prepend(tmp_path)
    out, other = tmp_path / "killed", tmp_path / "whole"
    paths = os.pathsep.join(path for path in sys.path if path)
    text = f"from slow_study import study\nif __name__ == '__main__': study({str(out)!r}, 0.05, 2)"
    process = subprocess.Popen(
        [sys.executable, "-c", text], env={**os.environ, "PYTHONPATH": paths}, start_new_session=True
    )
    deadline = time.monotonic() + 60
    points = out / "points.jsonl"
    while time.monotonic() < deadline and not (points.exists() and points.read_bytes().count(b"\n") >= 4):
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert 4 <= len(read_points(out, 12)) < 12
    assert not (out / "points.parquet").exists()

    import slow_study  # type: ignore[import-not-found]

    slow_study.study(out, 0, 1)
    slow_study.study(other, 0, 1)
    assert files_of(out) == files_of(other)
