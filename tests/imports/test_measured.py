"""A run or a plan against a log: equal where the log is the run's own, and by the right amount apart where it is not.

To make the pictures anew: ``pytest tests/imports/test_measured.py --mpl-generate-path=tests/baseline_images``.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import server_logs
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import simkv
from simkv.cli import main
from simkv.errors import ScenarioError
from simkv.imports.measured import compare_log, rounding_allowed
from simkv.imports.serverlog import ServerLog, read_server_log
from simkv.plotting.measured import OVERLAYS, overlay
from simkv.results import Run

BASE = simkv.load("gpt-oss-120b-eagle3").override("workload.num_requests=150")


@pytest.fixture(scope="module")
def run() -> Run:
    return simkv.simulate(BASE)


@pytest.fixture(scope="module")
def text(run: Run) -> str:
    return server_logs.log_of(run)


def read(tmp_path: Path, text: str) -> ServerLog:
    path = tmp_path / "server.log"
    path.write_text(text)
    return read_server_log(path)


# ---------------------------------------------------------------------------------------------------------------- sizes
def test_a_log_of_the_plan_itself_agrees(run: Run, text: str, tmp_path: Path) -> None:
    found = compare_log(BASE.plan(), read(tmp_path, text))
    sizes = found.plan_table.set_index("size")
    assert list(sizes.index) == [
        "max_total_num_tokens",
        "full_max_total_num_tokens",
        "swa_max_total_num_tokens",
        "max_running_requests",
        "chunked_prefill_size",
        "context_len",
        "target full pool, GiB",
        "target swa pool, GiB",
        "draft0 full pool, GiB",
    ]
    assert sizes["ok"].all()
    assert (sizes["difference"].iloc[:6] == 0).all()
    # Two figures a pool, each rounded to 0.01.
    assert (sizes["difference"].iloc[6:].abs() <= 0.01).all()
    assert found.exit_code == 0
    assert len(found.table) == 0


def test_each_size_that_differs_is_told(run: Run, text: str, tmp_path: Path) -> None:
    other = text.replace("max_running_requests=64", "max_running_requests=60").replace(
        "context_len=131072", "context_len=8192"
    )
    found = compare_log(run, read(tmp_path, other))
    wrong = found.plan_table[~found.plan_table["ok"]].set_index("size")
    assert dict(wrong["difference"]) == {"max_running_requests": 4, "context_len": 131072 - 8192}
    assert found.exit_code == 1


def test_a_pool_of_other_bytes_is_told(run: Run, text: str, tmp_path: Path) -> None:
    other = text.replace("K size: 0.10 GB, V size: 0.10 GB", "K size: 0.12 GB, V size: 0.10 GB")
    assert other != text
    found = compare_log(run, read(tmp_path, other))
    assert list(found.plan_table[~found.plan_table["ok"]]["size"]) == ["draft0 full pool, GiB"]
    # Pools that cannot be told apart are compared as a whole: here one is missing.
    lines = [line for line in text.splitlines() if "K size: 0.10" not in line]
    fewer = compare_log(run, read(tmp_path, "\n".join(lines) + "\n")).plan_table
    assert fewer["size"].iloc[-1] == "all pools, GiB"
    assert not fewer["ok"].iloc[-1]


def test_a_log_without_sizes_checks_nothing_and_says_so(run: Run, text: str, tmp_path: Path) -> None:
    lines = [line for line in text.splitlines() if "batch," in line]
    found = compare_log(run, read(tmp_path, "\n".join(lines) + "\n"))
    assert len(found.plan_table) == 0
    assert found.exit_code == 0
    assert any("nothing of the plan is checked" in note for note in found.notes)


def test_a_plan_that_does_not_start_differs_from_a_server_that_did(text: str, tmp_path: Path) -> None:
    found = compare_log(BASE.set(memory__kv_bytes=1).plan(), read(tmp_path, text))
    assert found.exit_code == 1
    assert found.plan_table.set_index("size").loc["max_total_num_tokens", "planned"] == 0
    assert any("does not start" in note for note in found.notes)


def test_what_rounding_allows() -> None:
    plan = BASE.plan()
    allowed = rounding_allowed(plan)
    # 0.03 GiB in tokens, and a page.
    assert allowed["max_total_num_tokens"] == np.ceil(0.03 * 2**30 / plan.bytes_per_token) + plan.page_size
    assert allowed["max_running_requests"] == np.ceil(512 * allowed["max_total_num_tokens"] / 131072)


# --------------------------------------------------------------------------------------------------------------- curves
def test_a_log_of_the_run_itself_lies_on_it(run: Run, text: str, tmp_path: Path) -> None:
    found = compare_log(run, read(tmp_path, text))
    table = found.table.set_index("series")
    lines = int((run.timeline["kind"] == "decode").sum()) // 40
    assert (table["lines"] == lines).all()
    # Usages and lengths are rounded to 0.01 in a log.
    for name in ("full_token_usage", "swa_token_usage", "spec_accept_length"):
        assert table.loc[name, "max"] <= 0.005 + 1e-9
    assert table.loc["num_queue_reqs", "max"] == 0
    # The throughput is per a time that is cut to milliseconds.
    assert table.loc["gen_throughput", "mae"] < 0.01 * table.loc["gen_throughput", "measured_peak"]
    assert any("first batch of both is time 0" in note for note in found.notes)


def test_whole_seconds_are_spread_and_said(run: Run, tmp_path: Path) -> None:
    found = compare_log(run, read(tmp_path, server_logs.log_of(run, ms=False)))
    assert any("whole seconds" in note for note in found.notes)
    table = found.table.set_index("series")
    exact = compare_log(run, read(tmp_path, server_logs.log_of(run))).points["time_s"]
    assert np.abs(found.points["time_s"] - exact).max() <= 1.0
    assert table["lines"].min() == len(exact)
    assert table.loc["gen_throughput", "mae"] < 0.25 * table.loc["gen_throughput", "measured_peak"]
    assert table.loc["num_running_reqs", "mae"] < 3


def test_the_clock_of_the_log_does_not_matter(run: Run, tmp_path: Path) -> None:
    write = server_logs.Writer()
    server_logs.batches(write, run, begin=500.0)
    late = compare_log(run, read(tmp_path, write.text))
    write = server_logs.Writer()
    server_logs.startup(write, run.plan)
    server_logs.batches(write, run, begin=3600.0)
    later = compare_log(run, read(tmp_path, write.text))
    pd.testing.assert_frame_equal(late.table, later.table)
    assert late.offset_s == 0.0
    # The file's first line, of startup, is written at 8 s.
    assert later.offset_s == pytest.approx(3592.0)


def test_a_known_error_is_found(run: Run, text: str, tmp_path: Path) -> None:
    log = read(tmp_path, text)
    moved = log.decode.assign(
        full_token_usage=log.decode["full_token_usage"] - 0.1, num_running_reqs=log.decode["num_running_reqs"] + 2
    )
    before = compare_log(run, log).table.set_index("series")
    after = compare_log(run, ServerLog(**{**log.__dict__, "decode": moved})).table.set_index("series")
    assert after.loc["full_token_usage", "bias"] == pytest.approx(before.loc["full_token_usage", "bias"] + 0.1)
    assert after.loc["num_running_reqs", "bias"] == pytest.approx(before.loc["num_running_reqs", "bias"] - 2)
    assert after.loc["num_running_reqs", "measured_peak"] == before.loc["num_running_reqs", "measured_peak"] + 2


def test_lines_after_the_end_are_left_out_and_said(run: Run, text: str, tmp_path: Path) -> None:
    short = simkv.simulate(BASE.override("workload.num_requests=40"))
    found = compare_log(short, read(tmp_path, text))
    left = next(note for note in found.notes if "later than the run's end" in note)
    assert found.table["lines"].max() + int(left.split()[0]) == int((run.timeline["kind"] == "decode").sum()) // 40


def test_without_lines_there_are_no_curves(run: Run, tmp_path: Path) -> None:
    write = server_logs.Writer()
    server_logs.startup(write, run.plan)
    found = compare_log(run, read(tmp_path, write.text))
    assert len(found.table) == 0
    assert any("no curves are compared" in note for note in found.notes)
    assert found.plot().texts  # it says why it is empty


def test_other_things_are_no_run(text: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="neither a Run nor a Plan"):
        compare_log({"plan": 1}, read(tmp_path, text))


def test_the_machine_form_and_markdown(run: Run, text: str, tmp_path: Path) -> None:
    found = compare_log(run, read(tmp_path, text))
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert told["exit_code"] == 0
    assert told["sizes"][0] == {
        "size": "max_total_num_tokens",
        "planned": 103441,
        "logged": 103441,
        "difference": 0,
        "allowed": 0.0,
        "ok": True,
    }
    shown = found.to_markdown()
    assert "| max_total_num_tokens | 103,441 | 103,441 | 0 | 0 | yes |" in shown
    assert "gpt-oss-120b-eagle3" in found._repr_html_()


def test_the_command_compares_a_run(run: Run, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "server.log").write_text(text)
    run.save(tmp_path / "run", figures=False)
    words = ["import-log", str(tmp_path / "server.log"), "--run", str(tmp_path / "run")]
    assert main(words) == 0
    assert "simulated peak" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["comparison"]["series"][0]["series"] == "full_token_usage"
    (tmp_path / "server.log").write_text(text.replace("max_total_num_tokens=103441", "max_total_num_tokens=99999"))
    assert main(words) == 1


def test_a_comparison_is_written_whole(run: Run, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "server.log").write_text(text)
    run.save(tmp_path / "run", figures=False)
    words = [
        "import-log",
        str(tmp_path / "server.log"),
        "--run",
        str(tmp_path / "run"),
        "--out",
        str(tmp_path / "new" / "c"),
    ]
    assert main(words) == 0
    out = tmp_path / "new" / "c"
    kinds = ["accept-length", "queue", "running", "throughput", "usage"]
    assert sorted(one.name for one in (out / "figures").iterdir()) == [f"{kind}.png" for kind in kinds]
    assert json.loads((out / "comparison.json").read_text())["exit_code"] == 0
    assert len(pd.read_parquet(out / "points.parquet")) == int((run.timeline["kind"] == "decode").sum()) // 40
    first = {one.name: one.read_bytes() for one in out.rglob("*") if one.is_file()}
    assert main(words) == 2
    assert main([*words, "--force"]) == 0
    assert {one.name: one.read_bytes() for one in out.rglob("*") if one.is_file()} == first
    assert [one.name for one in out.parent.iterdir()] == ["c"]
    assert main([*words[:-1], str(tmp_path / "run"), "--force"]) == 2
    assert "is no comparison directory" in capsys.readouterr().err
    assert main([*words[:2], "--out", str(tmp_path / "d")]) == 2


# ------------------------------------------------------------------------------------------------------------- pictures
def points() -> pd.DataFrame:
    """Fixed curves: the measured ones lag behind and end higher."""
    time = np.arange(60) * 2.5
    full = 0.5 + 0.35 * np.sin(time / 25)
    swa = 0.2 + 0.05 * np.cos(time / 9)
    frame = pd.DataFrame({"time_s": time})
    for name, values, other in (
        ("full_token_usage", full, 0.52 + 0.35 * np.sin((time - 4) / 25)),
        ("swa_token_usage", swa, swa + 0.03),
        ("num_running_reqs", np.round(40 * full), np.round(42 * full)),
        ("gen_throughput", 1500 * full, 1350 * full),
    ):
        frame[f"simulated_{name}"], frame[f"measured_{name}"] = values, other
    return frame


@pytest.mark.mpl_image_compare(
    baseline_dir="../baseline_images",
    style="default",
    tolerance=0.1,
    savefig_kwargs={"dpi": 80, "metadata": {"Software": None}},
)
@pytest.mark.parametrize("kind", ["usage", "throughput"])
def test_measured_overlay(kind: str) -> Figure:
    return overlay(points(), kind, title=f"measured and simulated {kind}").figure


def test_the_line_is_simulated_and_the_marks_are_measured() -> None:
    ax = overlay(points(), "usage")
    lines = {line.get_label(): line for line in ax.lines}
    frame = points()
    assert np.allclose(lines["full pool, simulated"].get_ydata(), 100 * frame["simulated_full_token_usage"])
    assert np.allclose(lines["full pool, measured"].get_ydata(), 100 * frame["measured_full_token_usage"])
    assert lines["full pool, measured"].get_linestyle() == "None"
    assert ax.get_ylabel() == "usage (% of pool)"
    assert ax.get_xlim() == (0.0, frame["time_s"].max())


@pytest.mark.parametrize("kind", sorted(OVERLAYS))
def test_any_kind_draws_on_axes_of_ones_own(kind: str) -> None:
    figure = Figure()
    FigureCanvasAgg(figure)
    ax = figure.add_subplot()
    assert overlay(points(), kind, ax=ax) is ax
    figure.canvas.draw()


def test_an_unknown_kind_is_told(run: Run, text: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="did you mean usage"):
        compare_log(run, read(tmp_path, text)).plot("usages")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--scenario", "gpt-oss-120b-eagle3", "--gpu", "h100"], "--gpu  has no effect beside --scenario"),
        (["--scenario", "gpt-oss-120b-eagle3", "--ignore", "--foo"], "--ignore  has no effect beside --scenario"),
        (["--run", "runs/x", "--set", "seed=1"], "--set  has no effect beside --run"),
    ],
)
def test_options_without_effect_are_refused(
    words: list[str], told: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "server.log").write_text(text)
    assert main(["import-log", str(tmp_path / "server.log"), *words]) == 2
    assert told in capsys.readouterr().err
