"""Figures of a sweep: a tidy frame in, matplotlib Axes out.

The frame has a row a point: columns of axes, ``state``, and figures, which are NaN where the point failed. Points that
failed are drawn as such: as crosses at the foot of lines, as hatched cells, or in the note where they have no place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from simkv.plotting.frame import panel, say_state
from simkv.plotting.style import GREY, INK, MARKERS, PALE, Floats
from simkv.plotting.texts import short_number, wrapped

__all__ = ["heatmap", "lines", "pareto"]

# Okabe and Ito's, yellow left out: it is too pale for lines.
HUES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#222222")
PRINTED_CELLS = 150  # heat maps of up to this many cells bear their numbers
LABELLED = 15  # points of a Pareto front that bear a number
RAN = ("ok", "check failed")
MAP = "cividis"
# More of these is better; less of everything else.
_MORE = re.compile(r"(.*_per_s|.*hit_rate|spec_accept_length|requests\.completed|tokens\.output|max_.*)")
_UNITS = (
    (r"output_tokens_per_s", "tokens/s"),
    (r"requests_per_s", "requests/s"),
    (r".*(_token_usage|token_usage)\..*|cache_hit_rate|limit\..*|new_token_ratio.*", "share"),
    (r".*_s(\.p\d+)?", "s"),
    (r"tokens\..*|.*_tokens(\.\w+)?|max_total_num_tokens", "tokens"),
    (r".*_bytes", "B"),
    (r"num_.*|max_running_requests", "requests"),
    (r"requests\.retractions", "times"),
    (r"requests\..*", "requests"),
    (r"steps\..*", "steps"),
)


def lines(
    frame: pd.DataFrame,
    x: str,
    y: str,
    *,
    hue: str | None = None,
    over: Sequence[str] = (),
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """A figure against an axis of the sweep, a line for each value of another axis.

    Parameters
    ----------
    frame : DataFrame
        One row a point.
    x, hue : str
        Columns of axes.
    y : str
        Column of the figure.
    over : sequence of str
        Other axes that vary: the line is the mean over them, the band their smallest and largest.
    ax : Axes, optional
        Where to draw; a new figure when omitted.
    title : str, optional
        Replaces the default title.

    Returns
    -------
    Axes
    """
    return panel(ax, title or y, lambda a: _draw_lines(a, frame, x, y, hue, over))


def heatmap(
    frame: pd.DataFrame,
    x: str,
    y: str,
    value: str,
    *,
    over: Sequence[str] = (),
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """A figure over two axes of the sweep, as colours, and as numbers where the cells are few.

    Parameters
    ----------
    frame : DataFrame
        One row a point.
    x, y : str
        Columns of axes.
    value : str
        Column of the figure.
    over : sequence of str
        Other axes that vary: a cell is the mean over those points that ran.
    ax : Axes, optional
        Where to draw; a new figure when omitted.
    title : str, optional
        Replaces the default title.

    Returns
    -------
    Axes
    """
    return panel(ax, title or value, lambda a: _draw_heatmap(a, frame, x, y, value, over))


def pareto(
    frame: pd.DataFrame,
    x: str,
    y: str,
    axes: Sequence[str],
    *,
    more: Mapping[str, bool] | None = None,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Two figures against each other, and the front: the points that no other one beats in both.

    Parameters
    ----------
    frame : DataFrame
        One row a point.
    x, y : str
        Columns of figures.
    axes : sequence of str
        Columns of the axes that vary; those of the front are labelled by their values. Points that differ in ``seed``
        alone are one, at their mean.
    more : mapping, optional
        Figure to whether more of it is better; default: rates and what is completed, yes, all else no.
    ax : Axes, optional
        Where to draw; a new figure when omitted.
    title : str, optional
        Replaces the default title.

    Returns
    -------
    Axes
    """
    ways = {name: (more or {}).get(name, is_more_better(name)) for name in (x, y)}
    return panel(ax, title or f"{y} against {x}", lambda a: _draw_pareto(a, frame, x, y, axes, ways))


def is_more_better(figure: str) -> bool:
    """Whether more of a figure is better."""
    return _MORE.fullmatch(figure) is not None


def figure_label(figure: str) -> str:
    """A figure's name with its unit."""
    unit = next((unit for pattern, unit in _UNITS if re.fullmatch(pattern, figure)), "")
    return f"{figure} ({unit})" if unit else figure


# ------------------------------------------------------------------------------------------------- an axis of a sweep
class _Scale:
    """Where the values of an axis stand: as numbers where they are, side by side where not.

    Parameters
    ----------
    column : Series
    """

    def __init__(self, column: pd.Series[Any]) -> None:
        self.numeric = column.dtype.kind in "if" and not column.isna().any()
        # Numbers by size, words as they come.
        values = column.drop_duplicates()
        self.values = list(values.sort_values()) if self.numeric else list(values)
        self.labels = [_label(value) for value in self.values]
        spread = [b / a for a, b in pairwise(self.values) if a > 0] if self.numeric else []
        self.log = len(spread) > 2 and len(spread) == len(self.values) - 1 and min(spread) >= 1.5 and max(spread) <= 20

    def index(self, column: pd.Series[Any]) -> Any:
        """Number of each value among the different ones."""
        return np.array([self.labels.index(_label(value)) for value in column], dtype=int)

    def places(self) -> Floats:
        """Where each different value stands."""
        return np.array(self.values if self.numeric else range(len(self.values)), dtype=float)

    def dress(self, ax: Axes, name: str) -> None:
        """Scale, ticks and label of the x axis."""
        places = self.places()
        if self.log:
            ax.set_xscale("log")
        if not self.numeric or len(places) <= 12:
            ax.xaxis.set_major_locator(FixedLocator(places.tolist()))
            ax.xaxis.set_major_formatter(FixedFormatter(self.labels))
        else:
            ax.xaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 2.5, 5, 10]))
            ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.xaxis.set_minor_locator(NullLocator())
        _turned(ax, self.labels if not self.numeric or len(places) <= 12 else [])
        ax.set_xlabel(name)
        if len(places) == 1:
            ax.set_xlim(places[0] - 0.5, places[0] + 0.5)
        elif not self.numeric:
            ax.set_xlim(-0.4, len(places) - 0.6)


def _label(value: Any) -> str:
    """A value of an axis as it is written."""
    if value is None or (isinstance(value, float) and np.isnan(value)) or value is pd.NA:
        return "default"
    if isinstance(value, (float, np.floating)):
        return f"{value:g}"
    text = str(value)
    return text if len(text) <= 28 else text[:27] + "…"


def _turned(ax: Axes, labels: Sequence[str]) -> None:
    """Turn tick labels that would run into each other."""
    if sum(len(label) + 3 for label in labels) > 90:
        ax.tick_params(axis="x", labelrotation=30)
        for label in ax.get_xticklabels():
            label.set_horizontalalignment("right")


def _over_text(over: Sequence[str], ranged: bool) -> str:
    """What a value is the mean of."""
    if not over:
        return ""
    return f"mean{' and range' if ranged else ''} over {', '.join(over)}"


def _states_text(states: pd.Series[Any]) -> str:
    """Points that failed, in words."""
    counted = states[~states.isin(RAN)].value_counts(sort=False)
    return ", ".join(f"{count} {state}" for state, count in counted.items())


# ------------------------------------------------------------------------------------------------- lines
def _draw_lines(ax: Axes, frame: pd.DataFrame, x: str, y: str, hue: str | None, over: Sequence[str]) -> str:
    scale = _Scale(frame[x])
    hues = None if hue is None else _Scale(frame[hue])
    ran = frame["state"].isin(RAN) & frame[y].notna()
    ax.set_ylabel(figure_label(y))
    places, count = scale.places(), 1 if hues is None else len(hues.values)
    group = np.zeros(len(frame), dtype=int) if hues is None or hue is None else hues.index(frame[hue])
    at = scale.index(frame[x])
    for number in range(count):
        own = ran.to_numpy() & (group == number)
        color, marker = HUES[number % len(HUES)], MARKERS[number % len(MARKERS)]
        label = y if hues is None else wrapped(f"{hue} = {hues.labels[number]}")
        _line(ax, places, at[own], frame.loc[own, y].to_numpy(float), color, marker, label)
        _failures(ax, places, at[(group == number) & ~ran.to_numpy()], color, number, count)
    scale.dress(ax, x)
    if ran.any():
        _value_axis(ax, frame.loc[ran, y].to_numpy(float))
    else:
        say_state(ax, "no point ran")
    if (~ran).any():
        told = _states_text(frame.loc[~ran, "state"]) or f"without {y}"
        key = Line2D([], [], color=GREY, marker="x", linestyle="", markersize=6, label=wrapped(f"failed: {told}"))
        ax.add_line(key)
    return _over_text(over, ranged=True)


def _line(ax: Axes, places: Floats, at: Any, values: Floats, color: str, marker: str, label: str) -> None:
    """Mean at every place, and smallest to largest as a band; a gap where nothing ran."""
    low, mean, high = (np.full(len(places), np.nan) for _ in range(3))
    for place in np.unique(at):
        own = values[at == place]
        low[place], mean[place], high[place] = own.min(), own.mean(), own.max()
    ax.plot(places, mean, color=color, marker=marker, markersize=5, linestyle="-", label=label)
    if (high > low).any():
        ax.fill_between(places, low, high, color=color, alpha=0.18, linewidth=0)


def _failures(ax: Axes, places: Floats, at: Any, color: str, number: int, count: int) -> None:
    """A cross at the foot of the panel for each place where points failed, those of each line on a row of their own."""
    if len(at):
        height = 0.03 + 0.035 * number if count <= 8 else 0.03
        ax.plot(
            places[np.unique(at)],
            np.full(len(np.unique(at)), height),
            transform=ax.get_xaxis_transform(),
            color=color,
            marker="x",
            markersize=6,
            linestyle="",
            clip_on=False,
            label="_failed",
        )


def _value_axis(ax: Axes, values: Floats) -> None:
    """Start at zero, unless all values lie close together far from it; leave the foot free for crosses."""
    low, high = _span(values)
    room = high - low
    if low >= 0 and low < 0.8 * high:
        ax.set_ylim(-0.02 * high, high * 1.06)
    else:
        ax.set_ylim(low - 0.25 * room, high + 0.1 * room)
    ax.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _number(value)))


def _span(values: Any) -> tuple[float, float]:
    """Smallest and largest value, apart by a twentieth at least: what hardly differs is not to look as if it did."""
    low, high = float(values.min()), float(values.max())
    if low == high == 0:
        return 0.0, 1.0
    short = max(0.05 * max(abs(low), abs(high)) - (high - low), 0)
    return low - short / 2, high + short / 2


def _number(value: float, figures: int = 4) -> str:
    """A number in a few figures, whatever its size."""
    return short_number(value) if abs(value) >= 1000 else f"{round(value, 12) + 0.0:.{figures}g}"


# ------------------------------------------------------------------------------------------------- heat map
def _draw_heatmap(ax: Axes, frame: pd.DataFrame, x: str, y: str, value: str, over: Sequence[str]) -> str:
    across, up = _Scale(frame[x]), _Scale(frame[y])
    column, row = across.index(frame[x]), up.index(frame[y])
    ran = (frame["state"].isin(RAN) & frame[value].notna()).to_numpy()
    shape = len(up.values), len(across.values)
    total, count, failed = np.zeros(shape), np.zeros(shape), np.zeros(shape, int)
    np.add.at(total, (row[ran], column[ran]), frame.loc[ran, value].to_numpy(float))
    np.add.at(count, (row[ran], column[ran]), 1)
    np.add.at(failed, (row[~ran], column[~ran]), 1)
    mean = np.ma.masked_invalid(np.divide(total, count, out=np.full(shape, np.nan), where=count > 0))
    ax.grid(False)
    told = shape[0] * shape[1] <= PRINTED_CELLS
    if mean.count():
        low, high = _span(mean)
        mesh = ax.pcolormesh(mean, cmap=MAP, vmin=low, vmax=high, edgecolors="white", linewidth=1.0)
        bar = ax.figure.colorbar(mesh, ax=ax, pad=0.02)
        bar.set_label(figure_label(value))
        bar.outline.set_visible(False)
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda number, _: _number(number)))
    states = frame["state"].to_numpy()
    for i, j in np.ndindex(shape):
        if not count[i, j]:
            ax.add_patch(Rectangle((j, i), 1, 1, facecolor="#F2F2F2", edgecolor=PALE, hatch="///", linewidth=0))
        if told and (count[i, j] or failed[i, j]):
            gone = sorted({str(state) for state in states[(row == i) & (column == j) & ~ran]})
            _cell_text(ax, i, j, mean, int(failed[i, j]), gone)
    _cell_axis(ax.xaxis, across.labels)
    _cell_axis(ax.yaxis, up.labels)
    _turned(ax, across.labels)
    ax.set_xlim(0, shape[1])
    ax.set_ylim(0, shape[0])
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.tick_params(length=0)
    notes = [_over_text(over, ranged=False)]
    if (~ran).any():
        notes.append(f"hatched: failed ({_states_text(frame.loc[~ran, 'state']) or 'no value'})")
    if (failed[count > 0] > 0).any():
        notes.append("* some points of the cell failed")
    return "; ".join(note for note in notes if note)


def _cell_axis(axis: Any, labels: Sequence[str]) -> None:
    """A label at the middle of each cell, or of some where they are many."""
    step = -(-len(labels) // 24)
    axis.set_major_locator(FixedLocator([n + 0.5 for n in range(0, len(labels), step)]))
    axis.set_major_formatter(FixedFormatter(labels[::step]))
    axis.set_minor_locator(NullLocator())


def _cell_text(ax: Axes, i: int, j: int, mean: Any, failed: int, gone: Sequence[str]) -> None:
    """The number of a cell, or what became of it."""
    wide = mean.shape[1] > 12
    if np.ma.is_masked(mean[i, j]):
        text, color = "\n".join(gone).replace(" ", "\n"), INK
    else:
        low, high = _span(mean)
        share = (mean[i, j] - low) / (high - low)
        red, green, blue, _ = colormaps[MAP](share)
        color = "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.55 else INK
        text = _number(float(mean[i, j]), 3) + ("*" if failed else "")
    size = 7 if wide or np.ma.is_masked(mean[i, j]) else 9
    ax.text(j + 0.5, i + 0.5, text, ha="center", va="center", fontsize=size, color=color)


# ------------------------------------------------------------------------------------------------- Pareto
def _draw_pareto(ax: Axes, frame: pd.DataFrame, x: str, y: str, axes: Sequence[str], more: Mapping[str, bool]) -> str:
    ran = frame["state"].isin(RAN) & frame[x].notna() & frame[y].notna()
    named = [name for name in axes if name != "seed"] or list(axes)
    points = frame[ran].groupby(named, sort=False, dropna=False, observed=True)[[x, y]].mean().reset_index()
    for name, label, axis in ((x, ax.set_xlabel, ax.xaxis), (y, ax.set_ylabel, ax.yaxis)):
        label(f"{figure_label(name)}\n{'more' if more[name] else 'less'} is better")
        axis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
        axis.set_major_formatter(FuncFormatter(lambda value, _: _number(value)))
    if points.empty:
        say_state(ax, "no point ran")
    else:
        front = points[pareto_front(points[x].to_numpy(float), points[y].to_numpy(float), more[x], more[y])]
        front = front.sort_values([x, y], kind="stable")
        for values, limits in ((points[x], ax.set_xlim), (points[y], ax.set_ylim)):
            low, high = _span(values)
            limits(low - 0.14 * (high - low), high + 0.14 * (high - low))
        ax.plot(
            points[x], points[y], color=PALE, marker="o", markersize=5, linestyle="", label=f"points ({len(points)})"
        )
        ax.plot(
            front[x],
            front[y],
            color=HUES[0],
            marker="o",
            markersize=6,
            # Between two points there is nothing but what the worse of them reaches.
            drawstyle="steps-pre" if more[x] else "steps-post",
            label=f"front ({len(front)}): beaten\n  by none in both",
        )
        for number, (place, ones) in enumerate(list(front.groupby([x, y], sort=False))[:LABELLED], 1):
            _front_label(
                ax, number, place, [", ".join(_label(one[name]) for name in named) for _, one in ones.iterrows()]
            )
    notes = [f"front: {', '.join(named)}"]
    if "seed" in axes and named != ["seed"]:
        notes.append("means over seed")
    if (~ran).any():
        notes.append(f"without a place here: {_states_text(frame.loc[~ran, 'state']) or 'points without the figures'}")
    return "; ".join(notes)


def _front_label(ax: Axes, number: int, place: tuple[float, float], texts: Sequence[str]) -> None:
    """A number at a point of the front, and in the legend what it stands for."""
    ax.annotate(
        str(number),
        xy=place,
        xytext=(0, 6),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=9,
        color=INK,
    )
    text = texts[0] + (f" and {len(texts) - 1} more" if len(texts) > 1 else "")
    ax.plot([], [], color=INK, marker=f"${number}$", markersize=6, linestyle="", label=wrapped(text))


def pareto_front(x: Floats, y: Floats, more_x: bool, more_y: bool) -> Any:
    """Which points no other one beats: as good in both, and better in one.

    Parameters
    ----------
    x, y : float arrays, shape (n,)
    more_x, more_y : bool
        Whether more is better.

    Returns
    -------
    bool array, shape (n,)
    """
    a, b = (-x if more_x else x), (-y if more_y else y)
    front = np.zeros(len(a), dtype=bool)
    least, at = np.inf, np.nan
    for one in np.lexsort((b, a)).tolist():
        # Those before are as good in the first; equal in both are on the front together.
        front[one] = b[one] < least or (b[one] == least and a[one] == at)
        if b[one] < least:
            least, at = b[one], a[one]
    return front
