"""Overlay figures: pictures of fixed synthetic frames, and the numbers behind the lines.

To make the pictures anew: ``pytest tests/studies/test_plot_overlay.py --mpl-generate-path=tests/studies/baseline_images``;
to compare: ``pytest tests/studies/test_plot_overlay.py --mpl``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simkv.plotting import overlay
from simkv.plotting.overlay import Traced
from simkv.plotting.style import EXACT_ROWS, POOL_COLORS

picture = pytest.mark.mpl_image_compare(
    baseline_dir="baseline_images",
    style="default",
    tolerance=0.1,
    savefig_kwargs={"dpi": 80, "metadata": {"Software": None}},
)
PLAN: dict[str, Any] = {
    "pools": [],
    "full_max_total_num_tokens": 1000,
    "swa_max_total_num_tokens": 500,
    "max_running_requests": 64,
}
NO_EVENTS = pd.DataFrame({name: [] for name in ("time_s", "event", "request_id", "pool", "tokens", "cause")})


def traced(
    label: str, rows: int, seconds: float, *, height: float = 1.0, swa: bool = True, events: bool = True
) -> Traced:
    """A made-up run with a busy middle."""
    t = np.linspace(0, seconds, rows)
    load = np.clip(np.sin(np.pi * t / seconds) * height, 0, 1)
    columns: dict[str, Any] = {
        "time_s": t,
        "full_token_usage": load,
        "num_running_reqs": np.round(50 * load),
        "num_queue_reqs": np.round(30 * np.clip(load - 0.8, 0, 1) * 5),
        "num_retracted_reqs": np.zeros(rows, int),
        "cache_evicted_full_tokens": np.where(load > 0.7, 512, 0),
        "cache_evicted_full_decode_tokens": np.where(load > 0.7, 512, 0),
    }
    if swa:
        columns["swa_token_usage"] = 0.7 * load
        columns["window_evicted_swa_tokens"] = np.round(20 * columns["num_running_reqs"])
        columns["cache_evicted_swa_tokens"] = np.where(load > 0.9, 256, 0)
        columns["cache_evicted_swa_decode_tokens"] = columns["cache_evicted_swa_tokens"]
    plan = {**PLAN, "swa_max_total_num_tokens": 500 if swa else None}
    return Traced(label, pd.DataFrame(columns), plan, some_events(seconds, height) if events else NO_EVENTS)


def some_events(seconds: float, height: float) -> pd.DataFrame:
    """Retractions in the middle, more of them the higher the load, a refusal and an abort."""
    count = int(20 * height**4)
    rows = [(0.4 + 0.2 * n / count, "retraction", "full", "decode step short") for n in range(count)]
    rows += [(0.45 + 0.1 * n / 6, "retraction", "full", "another cause") for n in range(6)]
    rows += [
        (0.5, "retraction", "swa", "window short"),
        (0.2, "refusal", "-", "too long"),
        (0.7, "abort", "full", "alone"),
    ]
    frame = pd.DataFrame(sorted(rows), columns=["time_s", "event", "pool", "cause"])
    return frame.assign(time_s=frame["time_s"] * seconds, request_id="r", tokens=1)


def pair(**more: Any) -> tuple[Traced, Traced]:
    return traced("legacy", 300, 60.0, height=1.1, **more), traced("generalized", 420, 84.0, height=0.95, **more)


# ------------------------------------------------------------------------------------------------- pictures
@pytest.mark.parametrize("kind", list(overlay.KINDS))
@picture
def test_picture_overlay(kind: str) -> Figure:
    return figure_of(overlay.KINDS[kind](*pair()))


@pytest.mark.parametrize("kind", list(overlay.KINDS))
@picture
def test_picture_overlay_long(kind: str) -> Figure:
    """Long timelines in bins, the second much shorter and without a SWA pool."""
    long = traced("before", 3 * EXACT_ROWS, 900.0, height=1.2)
    short = traced("with a rather long label, as people give them", 2 * EXACT_ROWS, 300.0, height=0.9, swa=False)
    return figure_of(overlay.KINDS[kind](long, short))


@picture
def test_picture_overlay_nothing_ran() -> Figure:
    return figure_of(overlay.utilization(pair()[0], Traced("would not start", pd.DataFrame(), PLAN)))


@picture
def test_picture_overlay_none_happened() -> Figure:
    return figure_of(overlay.oom(*pair(events=False)))


@picture
def test_picture_sweep() -> Figure:
    rates = [1, 2, 4, 8]
    parts = [
        pd.DataFrame({"workload.rate": rates, "a": a, "b": b, "line": f"draft.num_steps = {n}"})
        for n, a, b in ((1, [0, 2, 9, 40], [0, 1, 4, 22]), (3, [0, 5, 21, 66], [0, 3, None, 41]))
    ]
    frame = pd.concat(parts, ignore_index=True)
    return figure_of(overlay.figure_against_axis(frame, "workload.rate", "requests.retracted", ("base", "head")))


def figure_of(axes: Axes) -> Figure:
    found = axes.get_figure(root=True)
    assert found is not None
    return found


# ------------------------------------------------------------------------------------------------- numbers
def lines(axes: Axes) -> dict[str, Any]:
    return {str(line.get_label()).replace("\n  ", " "): line for line in axes.lines}


def test_usage_of_both_on_one_axis() -> None:
    a, b = pair()
    drawn = lines(overlay.utilization(a, b))
    full = drawn["legacy: full (peak 100 %)"]
    assert full.get_xdata().tolist() == a.timeline["time_s"].tolist()
    assert full.get_ydata().tolist() == (100 * a.timeline["full_token_usage"]).tolist()
    assert full.get_color() == POOL_COLORS["full"]
    assert full.get_linestyle() == "-"
    second = drawn["generalized: swa (peak 66.5 %)"]
    assert second.get_ydata().max() == pytest.approx(100 * 0.7 * b.timeline["full_token_usage"].max())
    assert second.get_color() == overlay.lighter(POOL_COLORS["swa"]) != POOL_COLORS["swa"]
    assert second.get_linestyle() == "--"


def test_causes_of_a_pool_are_added_up() -> None:
    a, b = pair()
    drawn = lines(overlay.oom(a, b))
    for side, height in ((a, 1.1), (b, 0.95)):
        count = int(20 * height**4) + 6
        line = drawn[f"{side.label}: retraction, full ({count})"]
        y = line.get_ydata()
        assert (y[0], y[-1]) == (0, count)
        assert (np.diff(y) >= 0).all()
        # Ends where its own run ends, not where the other one does.
        assert line.get_xdata()[-1] == side.timeline["time_s"].iloc[-1]


def test_evicted_tokens_are_all_there() -> None:
    a, b = pair()
    axes = overlay.eviction(a, b)
    for side in (a, b):
        for pool, why, column in (
            ("full", "cache", "cache_evicted_full_tokens"),
            ("swa", "window", "window_evicted_swa_tokens"),
        ):
            [line] = [one for label, one in lines(axes).items() if label.startswith(f"{side.label}: {pool}, {why}")]
            area = (np.diff(line.get_xdata()) * line.get_ydata()[:-1]).sum()
            assert area == pytest.approx(side.timeline[column].sum())
            assert line.get_xdata()[-1] == pytest.approx(side.timeline["time_s"].iloc[-1])


def test_axes_of_ones_own_and_no_pyplot() -> None:
    figure = Figure()
    own = figure.add_subplot()
    a, b = pair()
    assert overlay.concurrency(a, b, ax=own, title="mine") is own
    assert own.get_title(loc="left") == "mine"
    assert len(own.lines) == 4


@pytest.mark.parametrize("kind", list(overlay.KINDS))
@pytest.mark.parametrize("rows", [0, 1])
def test_hardly_any_rows(kind: str, rows: int) -> None:
    a, _ = pair()
    few = a._replace(label="few", timeline=a.timeline.iloc[:rows], events=NO_EVENTS)
    for both in ((a, few), (few, few)):
        axes = overlay.KINDS[kind](*both)
        figure_of(axes).draw_without_rendering()


def test_faults_of_one_side() -> None:
    a, b = pair(events=False)
    fault = pd.DataFrame({"time_s": [12.0], "event": ["fault"], "request_id": ["-"], "pool": ["-"], "tokens": [0]})
    broken = b._replace(events=fault.assign(cause="F1: lost 3 tokens"))
    drawn = lines(overlay.oom(a, broken))
    assert drawn["generalized: fault F1"].get_xdata()[0] == 12.0
    assert "legacy: none" in drawn


def test_numbers_stand_to_scale_and_words_in_order() -> None:
    frame = pd.DataFrame({"x": [4, 1, 2], "a": [1.0, 2.0, 3.0], "b": [None, 5.0, 6.0]})
    axes = overlay.figure_against_axis(frame, "x", "f", ("p", "q"))
    assert axes.get_xticks().tolist() == [1, 2, 4]
    words = overlay.figure_against_axis(frame.assign(x=["b", "a", True]), "x", "f", ("p", "q"))
    assert [text.get_text() for text in words.get_xticklabels()] == ["b", "a", "True"]
    low = overlay.figure_against_axis(frame.assign(a=[-1.0, 2, 3]), "x", "f", ("p", "q"))
    assert low.get_ylim()[0] < 0 == axes.get_ylim()[0]
