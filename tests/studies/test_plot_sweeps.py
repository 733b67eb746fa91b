"""Figures of sweeps, on frames that are written here; pictures are compared with --mpl.

To make the pictures anew: ``pytest tests/studies/test_plot_sweeps.py --mpl-generate-path=tests/studies/baseline_images``.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simkv.plotting import sweeps as draw

picture = pytest.mark.mpl_image_compare(
    baseline_dir="baseline_images",
    style="default",
    tolerance=0.1,
    savefig_kwargs={"dpi": 80, "metadata": {"Software": None}},
)


def frame(failed: dict[int, str] | None = None, **axes: list[Any]) -> pd.DataFrame:
    """A grid whose figures follow from its places: throughput 100 (1 + place), retractions its square."""
    rows = list(product(*axes.values()))
    made = pd.DataFrame(rows, columns=[name.replace("__", ".") for name in axes])
    places = np.arange(len(rows), dtype=float)
    made["state"] = "ok"
    made["output_tokens_per_s"] = 100 * (1 + places)
    made["requests.retractions"] = places**2
    made["ttft_s.p99"] = 0.5 + places % 3
    for row, state in (failed or {}).items():
        made.loc[row, "state"] = state
        made.loc[row, ["output_tokens_per_s", "requests.retractions", "ttft_s.p99"]] = np.nan
    return made


def line(ax: Axes, label: str) -> Any:
    (found,) = [one for one in ax.lines if str(one.get_label()) == label]
    return found


def texts(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def legend(ax: Axes) -> list[str]:
    box = ax.get_legend()
    return [] if box is None else [text.get_text() for text in box.get_texts()]


def note(ax: Axes) -> str:
    (found,) = [text.get_text() for text in ax.texts if text.get_gid() == "simkv-note"]
    return found


# ------------------------------------------------------------------------------------------------- lines
def test_a_line_is_the_mean_and_its_band_the_range() -> None:
    ax = draw.lines(
        frame(memory__page_size=[16, 64], seed=[1, 2, 3]), "memory.page_size", "output_tokens_per_s", over=["seed"]
    )
    mean = line(ax, "output_tokens_per_s")
    assert mean.get_xdata().tolist() == [16, 64]
    # 100, 200, 300 and 400, 500, 600.
    assert mean.get_ydata().tolist() == [200, 500]
    (band,) = ax.collections
    corners = np.asarray(band.get_paths()[0].vertices)
    assert [corners[corners[:, 0] == x][:, 1].min() for x in (16, 64)] == [100, 400]
    assert [corners[corners[:, 0] == x][:, 1].max() for x in (16, 64)] == [300, 600]
    assert note(ax) == "mean and range over seed"
    assert ax.get_ylabel() == "output_tokens_per_s (tokens/s)"


def test_a_point_that_failed_is_a_cross_and_a_gap() -> None:
    found = frame({1: "infeasible", 3: "engine fault", 4: "infeasible"}, a=[1, 2, 3], b=["x", "y"])
    ax = draw.lines(found, "a", "output_tokens_per_s", hue="b")
    # x ran at 1 and 2, y at 3 only.
    assert np.isnan(line(ax, "b = x").get_ydata()).tolist() == [False, False, True]
    assert np.isnan(line(ax, "b = y").get_ydata()).tolist() == [True, True, False]
    crosses = [one for one in ax.lines if str(one.get_label()) == "_failed"]
    assert [one.get_xdata().tolist() for one in crosses] == [[3], [1, 2]]
    assert legend(ax)[-1].replace("\n", " ").split() == ["failed:", "2", "infeasible,", "1", "engine", "fault"]
    low, high = ax.get_ylim()
    assert low <= 100 and high > 600


def test_words_stand_side_by_side_and_numbers_where_they_are() -> None:
    ax = draw.lines(frame(policies__routing=["legacy", "generalized"]), "policies.routing", "output_tokens_per_s")
    assert line(ax, "output_tokens_per_s").get_xdata().tolist() == [0, 1]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["legacy", "generalized"]
    assert ax.get_xlabel() == "policies.routing"
    # Numbers by size, whatever order they were given in.
    ax = draw.lines(frame(a=[8, 2, 1, 4]), "a", "output_tokens_per_s")
    assert line(ax, "output_tokens_per_s").get_xdata().tolist() == [1, 2, 4, 8]
    assert line(ax, "output_tokens_per_s").get_ydata().tolist() == [300, 200, 400, 100]
    assert ax.get_xscale() == "log"
    assert draw.lines(frame(a=[1, 2, 3, 4]), "a", "output_tokens_per_s").get_xscale() == "linear"
    # The engine's own default beside stated values.
    found = frame(a=[None, 0.5, 1.0])
    ax = draw.lines(found, "a", "output_tokens_per_s")
    assert [label.get_text() for label in ax.get_xticklabels()] == ["default", "0.5", "1"]


def test_long_names_stay_apart() -> None:
    names = ["x" * 40 + "a" + "y" * 40, "x" * 40 + "b" + "y" * 40]
    ax = draw.lines(frame(model__config=names), "model.config", "output_tokens_per_s")
    assert line(ax, "output_tokens_per_s").get_ydata().tolist() == [100, 200]
    ax = draw.lines(frame(a=[0.123456789, 0.123456788]), "a", "output_tokens_per_s")
    assert line(ax, "output_tokens_per_s").get_ydata().tolist() == [200, 100]


def test_nothing_ran() -> None:
    found = frame({0: "error", 1: "infeasible"}, a=[1, 2])
    for ax in (
        draw.lines(found, "a", "output_tokens_per_s"),
        draw.pareto(found, "requests.retractions", "output_tokens_per_s", ["a"]),
    ):
        assert "no point ran" in texts(ax)
    found = frame(a=[1, 2])
    found["ttft_s.p99"] = np.nan
    assert "no point has a value" in texts(draw.lines(found, "a", "ttft_s.p99"))
    found = frame(dict.fromkeys(range(4), "infeasible"), a=[1, 2], b=[1, 2])
    assert texts(draw.heatmap(found, "a", "b", "ttft_s.p99")).count("infeasible") == 4


# ------------------------------------------------------------------------------------------------- heat map
def test_cells_hold_means_and_say_what_failed() -> None:
    found = frame({0: "infeasible", 1: "infeasible", 2: "error"}, a=[1, 2], b=["x", "y"], seed=[1, 2])
    ax = draw.heatmap(found, "a", "b", "output_tokens_per_s", over=["seed"])
    (mesh,) = ax.collections
    values = np.ma.filled(mesh.get_array(), np.nan).reshape(2, 2)
    # Rows are b, columns a: (1, x) failed, (1, y) has one seed left, 400; (2, x) 500 and 600, (2, y) 700 and 800.
    np.testing.assert_array_equal(values, [[np.nan, 550], [400, 750]])
    assert {"infeasible", "400*", "550", "750"} <= set(texts(ax))
    assert note(ax) == "mean over seed; hatched: failed (2 infeasible, 1 error); * some points of the cell failed"
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["x", "y"]


def test_many_cells_bear_no_numbers() -> None:
    ax = draw.heatmap(frame(a=list(range(20)), b=list(range(20))), "a", "b", "output_tokens_per_s")
    assert texts(ax) == []


def test_what_hardly_differs_does_not_look_as_if_it_did() -> None:
    found = frame(a=[1, 2], b=[1, 2])
    found["output_tokens_per_s"] = [1000.0, 1000.1, 1000.2, 1000.3]
    (mesh,) = draw.heatmap(found, "a", "b", "output_tokens_per_s").collections
    low, high = mesh.get_clim()
    assert high - low == pytest.approx(0.05 * 1000.3)


# ------------------------------------------------------------------------------------------------- Pareto
POINTS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=30)


@given(POINTS, st.booleans(), st.booleans())
def test_the_front_is_what_nobody_beats(points: list[tuple[int, int]], more_x: bool, more_y: bool) -> None:
    x, y = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    a, b = x if more_x else -x, y if more_y else -y
    expected = [
        not any((a[j] >= a[i] and b[j] >= b[i]) and (a[j] > a[i] or b[j] > b[i]) for j in range(len(points)))
        for i in range(len(points))
    ]
    assert draw.pareto_front(x, y, more_x, more_y).tolist() == expected


def test_the_front_is_numbered_and_failures_are_told() -> None:
    found = frame({3: "infeasible"}, a=[1, 2], b=["x", "y"])
    found.loc[2, "output_tokens_per_s"] = 50.0
    ax = draw.pareto(found, "requests.retractions", "output_tokens_per_s", ["a", "b"])
    front = line(ax, "front (2): beaten\n  by none in both")
    # (0, 100) and (1, 200); (4, 50) is worse in both.
    assert front.get_xdata().tolist() == [0, 1] and front.get_ydata().tolist() == [100, 200]
    assert {"1", "2"} <= set(texts(ax))
    assert legend(ax)[2:] == ["1, x", "1, y"]
    assert note(ax) == "front: a, b; without a place here: 1 infeasible"
    assert ax.get_xlabel() == "requests.retractions (times)\nless is better"
    assert ax.get_ylabel() == "output_tokens_per_s (tokens/s)\nmore is better"


def test_seeds_of_a_point_are_one_at_their_mean() -> None:
    ax = draw.pareto(frame(a=[1, 2], seed=[1, 2]), "requests.retractions", "output_tokens_per_s", ["a", "seed"])
    points = line(ax, "points (2)")
    assert points.get_xdata().tolist() == [0.5, 6.5] and points.get_ydata().tolist() == [150, 350]


def test_a_stated_direction_wins() -> None:
    found = frame(a=[1, 2, 3])
    more = {"output_tokens_per_s": False}
    ax = draw.pareto(found, "requests.retractions", "output_tokens_per_s", ["a"], more=more)
    assert line(ax, "front (1): beaten\n  by none in both").get_xdata().tolist() == [0]


# ------------------------------------------------------------------------------------------------- pictures
def figure(ax: Axes) -> Figure:
    assert isinstance(ax.figure, Figure)
    return ax.figure


@picture
def test_picture_lines() -> Figure:
    axes = {
        "workload__rate": [1, 2, 4, 8, 16],
        "policies__routing": ["legacy", "generalized", "depth-owned"],
        "seed": [1, 2],
    }
    found = frame({26: "infeasible", 27: "infeasible", 29: "engine fault"}, **axes)
    return figure(draw.lines(found, "workload.rate", "output_tokens_per_s", hue="policies.routing", over=["seed"]))


@picture
def test_picture_heatmap() -> Figure:
    axes = {
        "memory__swa_full_tokens_ratio": [0.05, 0.1, 0.2, 0.4],
        "memory__kv_bytes": ["1GiB", "2GiB", "4GiB"],
        "seed": [1, 2],
    }
    found = frame({0: "infeasible", 1: "infeasible", 2: "engine fault"}, **axes)
    return figure(draw.heatmap(found, "memory.swa_full_tokens_ratio", "memory.kv_bytes", "ttft_s.p99", over=["seed"]))


@picture
def test_picture_pareto() -> Figure:
    found = frame({11: "infeasible"}, memory__page_size=[16, 32, 64, 128], draft__num_steps=[1, 2, 3])
    found.loc[[2, 7, 8], "output_tokens_per_s"] = 60.0
    return figure(
        draw.pareto(found, "requests.retractions", "output_tokens_per_s", ["memory.page_size", "draft.num_steps"])
    )


@picture
def test_picture_words() -> Figure:
    names = [f"a-rather-long-name-of-a-model-{n}" for n in range(6)]
    return figure(draw.lines(frame({2: "error"}, model__config=names), "model.config", "ttft_s.p99"))
