"""Figures of a run: frames in, matplotlib Axes out.

Every function takes plain pandas frames (the timeline with one row a scheduler step, the events) and the plan as a
dict, and returns the :class:`~matplotlib.axes.Axes` it drew on. Nothing here touches pyplot or changes ``rcParams``
for the caller. Times on the axes are seconds; only the tick labels are converted to ms, s, min or h, so that several
runs can share an axis.

The timeline is a step function: a row holds until the next one. Up to :data:`EXACT_ROWS` rows are drawn one by one.
Longer timelines are cut into equal time bins, and each bin shows its time-weighted mean as a line and its minimum and
maximum as a band, so that no spike is lost; the note under the title says which of the two was done.

A pool has one colour in every figure (:data:`POOL_COLORS`, :data:`DRAFT_COLORS`).
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator

__all__ = [
    "DRAFT_COLORS",
    "EXACT_ROWS",
    "POOL_COLORS",
    "cache",
    "concurrency",
    "dashboard",
    "draft",
    "draft_color",
    "eviction",
    "oom",
    "save",
    "utilization",
]

Floats: TypeAlias = npt.NDArray[np.float64]
Plan: TypeAlias = Mapping[str, Any]
LineStyle: TypeAlias = str | tuple[int, tuple[int, ...]]

POOL_COLORS: dict[str, str] = {"full": "#0072B2", "swa": "#D55E00", "rows": "#222222", "-": "#808080"}
"""Colour of each pool (Okabe-Ito blue and vermilion; request rows and "no pool" in greys)."""

DRAFT_COLORS: tuple[str, ...] = (
    "#117733",
    "#AA4499",
    "#88CCEE",
    "#882255",
    "#999933",
    "#332288",
    "#44AA99",
    "#CC9A2B",
)
"""Colour of each draft depth (after Tol's "muted" set); deeper ones start again."""

EXACT_ROWS = 2000
"""Timelines of up to this many rows are drawn row by row, longer ones in time bins."""

_BINS = 400  # about one bin for each two pixels of a panel
_RATE_BINS = 120
_OOM_EVENTS = ("retraction", "abort", "refusal")
_OOM_COLUMNS = {"retraction": "num_retracted_reqs", "abort": "num_aborted_reqs", "refusal": "num_refused_reqs"}
_OOM_LINES = 8  # lines of the oom panel; further kinds are added up into one, and the legend says so
_OOM_STYLES: dict[str, LineStyle] = {"retraction": "-", "abort": (0, (5, 2)), "refusal": (0, (1, 1))}
_MARKERS = "os^Dv<>p"
_STALE_HATCHES = ("//", "\\\\", "||", "--")
_TIME_UNITS = (("ms", 1e-3), ("s", 1.0), ("min", 60.0), ("h", 3600.0))
_INK = "#222222"
_GREY = "#666666"
_PALE = "#8C8C8C"
_NOTE = "simkv-note"
_DPI = 150
_LEGEND_CHARS = 36

_STYLE: Any = {  # Any, because matplotlib types the keys one by one
    "font.family": ["DejaVu Sans"],
    "font.size": 10,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlecolor": _INK,
    "axes.labelsize": 10,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _PALE,
    "axes.facecolor": "white",
    "axes.unicode_minus": False,
    "axes.autolimit_mode": "data",
    "figure.facecolor": "white",
    "figure.titlesize": 15,
    "figure.titleweight": "bold",
    "savefig.facecolor": "white",
    "hatch.linewidth": 0.6,
    "legend.fontsize": 9,
    "lines.linewidth": 1.6,
    "path.simplify": True,
    "path.simplify_threshold": 1 / 9,
    "svg.hashsalt": "simkv",
    "text.color": _INK,
    "text.usetex": False,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "xtick.color": _INK,
    "ytick.color": _INK,
}


# ------------------------------------------------------------------------------------------------------- public panels


def utilization(timeline: pd.DataFrame, plan: Plan, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Usage of every pool, in percent of its tokens.

    The full and the SWA pool are `full_token_usage` and `swa_token_usage`; a draft depth is its resident tokens over
    the tokens of its pool in the plan. Depths with one and the same curve share a line, and a line that lies on that
    of the full or the SWA pool is dashed and says so.

    Parameters
    ----------
    timeline : DataFrame
        One row a scheduler step.
    plan : Mapping
        ``pools`` gives tokens and mapping of each draft depth.
    ax : Axes, optional
        Where to draw; a new figure when omitted.
    title : str, optional
        Replaces the default title.

    Returns
    -------
    Axes
    """
    return _panel(ax, title or "Pool utilization", _span(timeline), lambda a: _utilization(a, timeline, plan))


def eviction(timeline: pd.DataFrame, plan: Plan, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Tokens evicted a second, by pool and by reason (out of the window, or out of the prefix cache).

    Parameters
    ----------
    timeline : DataFrame
        One row a scheduler step.
    plan : Mapping
        Tells whether there is a SWA pool.
    ax : Axes, optional
        Where to draw; a new figure when omitted.
    title : str, optional
        Replaces the default title.

    Returns
    -------
    Axes
    """
    return _panel(ax, title or "Eviction rate", _span(timeline), lambda a: _eviction(a, timeline, plan))


def oom(
    timeline: pd.DataFrame,
    events: pd.DataFrame | None,
    plan: Plan,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Requests retracted, aborted and refused so far, one line for each event, pool and cause.

    Colour is the pool, line style the event, marker the cause. Faults are vertical lines. Where the timeline counts
    an event of which `events` has no row, the count is drawn with the cause "not recorded".

    Parameters
    ----------
    timeline : DataFrame
        One row a scheduler step.
    events : DataFrame or None
        One row an event.
    plan : Mapping
        Pool sizes, for the note.
    ax : Axes, optional
        Where to draw; a new figure when omitted.
    title : str, optional
        Replaces the default title.

    Returns
    -------
    Axes
    """
    span = _span(timeline, events)
    heading = title or "Out of memory: retractions, aborts and refusals"
    return _panel(ax, heading, span, lambda a: _oom(a, timeline, events, plan, span))


def concurrency(timeline: pd.DataFrame, plan: Plan, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Running and queued requests, and the limit `max_running_requests`.

    Parameters
    ----------
    timeline : DataFrame
        One row a scheduler step.
    plan : Mapping
        ``max_running_requests`` is the limit.
    ax : Axes, optional
        Where to draw; a new figure when omitted.
    title : str, optional
        Replaces the default title.

    Returns
    -------
    Axes
    """
    return _panel(ax, title or "Concurrency", _span(timeline), lambda a: _concurrency(a, timeline, plan))


def draft(timeline: pd.DataFrame, plan: Plan, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Tokens resident in the pool of each draft depth against those its attention can still see.

    The shaded gap between the two is stale: memory that is held for nothing. Depths with the same two curves share
    their lines.

    Parameters
    ----------
    timeline : DataFrame
        One row a scheduler step.
    plan : Mapping
        ``pools`` gives the tokens of each draft depth.
    ax : Axes, optional
        Where to draw; a new figure when omitted.
    title : str, optional
        Replaces the default title.

    Returns
    -------
    Axes
    """
    heading = title or "Draft pools: resident and live tokens"
    return _panel(ax, heading, _span(timeline), lambda a: _draft(a, timeline, plan))


def cache(timeline: pd.DataFrame, plan: Plan, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Prefix cache: hit rate, and the share of each pool it holds (evictable, and protected by running requests).

    Parameters
    ----------
    timeline : DataFrame
        One row a scheduler step.
    plan : Mapping
        Tokens of the full and the SWA pool.
    ax : Axes, optional
        Where to draw; a new figure when omitted.
    title : str, optional
        Replaces the default title.

    Returns
    -------
    Axes
    """
    return _panel(ax, title or "Prefix cache", _span(timeline), lambda a: _cache(a, timeline, plan))


def dashboard(
    timeline: pd.DataFrame,
    events: pd.DataFrame | None,
    plan: Plan,
    title: str | None = None,
    notes: str | Sequence[str] | None = None,
) -> Figure:
    """All panels on one page, on one time axis.

    Parameters
    ----------
    timeline : DataFrame
        One row a scheduler step.
    events : DataFrame or None
        One row an event.
    plan : Mapping
        The plan of the run.
    title : str, optional
        Heading of the page.
    notes : str or sequence of str, optional
        Printed at the foot of the page, one paragraph each.

    Returns
    -------
    Figure
    """
    span = _span(timeline, events)
    with rc_context(_STYLE):
        figure = _figure((11, 15.5))
        figure.set_layout_engine("constrained", h_pad=0.08, w_pad=0.08)
        axes = figure.subplots(6, 1, sharex=True)
        utilization(timeline, plan, ax=axes[0])
        concurrency(timeline, plan, ax=axes[1])
        oom(timeline, events, plan, ax=axes[2])
        eviction(timeline, plan, ax=axes[3])
        draft(timeline, plan, ax=axes[4])
        cache(timeline, plan, ax=axes[5])
        _time_axis(axes[-1], span)
        for axis in axes[:-1]:
            axis.tick_params(axis="x", labelbottom=False)
            axis.set_xlabel("")
        figure.align_ylabels(axes)
        heights = [max(2.0, _legend_height(axis)) if axis.lines else 0.9 for axis in axes]
        axes[0].get_gridspec().set_height_ratios(heights)
        figure.set_size_inches(11, sum(heights) + 0.55 * len(heights) + 1)
        figure.suptitle(title or "KV memory of the run", x=0.01, ha="left")
        if notes:
            _footer(figure, [notes] if isinstance(notes, str) else notes)
    return figure


def save(fig: Figure, path: str | Path) -> Path:
    """Write a figure; the same figure gives the same bytes.

    An automatic layout is done once and then kept, because matplotlib refines it a little each time it draws.

    Parameters
    ----------
    fig : Figure
        What to write.
    path : str or Path
        The suffix decides the format (png, svg, pdf).

    Returns
    -------
    Path
        Where it was written.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    metadata: dict[str, Any] = {"Software": None}
    if suffix == ".svg":
        metadata = {"Date": None, "Creator": None}
    elif suffix == ".pdf":
        metadata = {"CreationDate": None, "Creator": None, "Producer": None}
    with rc_context(_STYLE):
        layout = fig.get_layout_engine()
        if layout is not None:
            layout.execute(fig)
            fig.set_layout_engine("none")
        fig.savefig(path, dpi=_DPI, metadata=metadata)
    return path


def draft_color(depth: int) -> str:
    """Colour of a draft depth, the same in every figure."""
    return DRAFT_COLORS[depth % len(DRAFT_COLORS)]


# -------------------------------------------------------------------------------------------------------- panel bodies


def _utilization(ax: Axes, timeline: pd.DataFrame, plan: Plan) -> str:
    """Draw the utilization panel on `ax`; the note is returned."""
    ax.set_ylabel("usage (% of pool)")
    sampler = _Sampler(_times(timeline))
    pools = _pool_usage(timeline)
    top = 100.0
    for pool, usage in pools.items():
        top = max(top, _top(usage))
        _line(ax, sampler(usage), POOL_COLORS[pool], pool, width=3.0)
    dashes = 0
    for group in _usage_groups(timeline, plan):
        on = next((pool for pool, usage in pools.items() if _same(usage, group.values[0])), None)
        style: LineStyle = "-"
        if on is not None:
            style = (4 * dashes, (4, 5))
            dashes += 1
        top = max(top, _top(group.values[0]))
        label = f"{_depths(group.depths)}{f' = {on}' if on else ''} ({group.detail})"
        _line(ax, sampler(group.values[0]), draft_color(group.depths[0]), label, style=style, on_top=on is not None)
    ax.axhline(100, color=_INK, linewidth=1.1, linestyle=(0, (2, 2)), label="100 %", zorder=1.5)
    ax.set_ylim(0, top * 1.06)
    return sampler.note


def _eviction(ax: Axes, timeline: pd.DataFrame, plan: Plan) -> str:
    """Draw the eviction panel on `ax`; the note is returned."""
    ax.set_ylabel("tokens/s")
    has_swa = _has_swa(timeline, plan)
    rows: list[tuple[str, str, str, LineStyle]] = [
        ("window_evicted_swa_tokens", "swa", "window", "-"),
        ("cache_evicted_full_tokens", "full", "cache", (0, (5, 2))),
        ("cache_evicted_swa_tokens", "swa", "cache", (0, (1, 1))),
    ]
    series = [
        (pool, why, style, _column(timeline, name)) for name, pool, why, style in rows if has_swa or pool != "swa"
    ]
    evicted = [(pool, why, style, values) for pool, why, style, values in series if values is not None and values.any()]
    time = _times(timeline)
    if not evicted:
        _state(ax, "no token was evicted" + ("" if has_swa else " (no SWA pool)"))
        return _steps_text(len(time))
    if time[-1] <= time[0]:
        parts = [f"{pool}, {why}: {np.nansum(values):,.0f} tokens" for pool, why, _, values in evicted]
        _state(ax, "no rate: all steps at one instant\n" + "\n".join(parts))
        return _steps_text(len(time))
    width, edges = _bins(time[0], time[-1], min(_RATE_BINS, max(1, len(time) // 3)))
    for pool, why, style, values in evicted:
        rate: Floats = _sum_in_bins(time, values, edges) / np.diff(edges)
        label = f"{pool}, {why} ({_short(float(np.nansum(values)))} tokens)"
        _line(ax, _Curve(edges, np.append(rate, rate[-1])), POOL_COLORS[pool], label, style=style)
        ax.fill_between(edges, np.append(rate, rate[-1]), step="post", color=POOL_COLORS[pool], alpha=0.1, linewidth=0)
    _count_axis(ax)
    return f"tokens evicted in each {_duration(width)} bin over its width; {_steps_text(len(time))}"


def _oom(ax: Axes, timeline: pd.DataFrame, events: pd.DataFrame | None, plan: Plan, span: tuple[float, float]) -> str:
    """Draw the out-of-memory panel on `ax`; the note is returned."""
    ax.set_ylabel("requests so far")
    kinds = _oom_kinds(timeline, events)
    note = _capacity_text(plan)
    if not kinds:
        _state(ax, "none happened: no retraction, no abort, no refusal")
        _faults(ax, events)
        return note
    binned = False
    seen: dict[tuple[str, str], int] = {}
    for (event, pool, cause), (time, counts) in _foremost(kinds):
        order = seen.setdefault((event, pool), 0)
        seen[event, pool] += 1
        x, y, was_binned = _cumulative(time, counts, span)
        binned |= was_binned
        ax.plot(
            x,
            y,
            drawstyle="steps-post",
            color=POOL_COLORS.get(pool, POOL_COLORS["-"]),
            linestyle=_OOM_STYLES.get(event, "-."),
            marker=_MARKERS[order % len(_MARKERS)],
            markersize=5,
            markevery=_marks(len(x), order),
            label=_wrap(f"{event}{'' if pool == '-' else f', {pool}'}: {cause} ({counts.sum():,.0f})"),
        )
    _count_axis(ax, integer=True)
    _faults(ax, events)
    if binned:
        width = _bins(*span, _BINS)[0]
        note = f"counts at the end of {_duration(width)} bins; {note}" if note else f"in {_duration(width)} bins"
    return note


def _concurrency(ax: Axes, timeline: pd.DataFrame, plan: Plan) -> str:
    """Draw the concurrency panel on `ax`; the note is returned."""
    ax.set_ylabel("requests")
    sampler = _Sampler(_times(timeline))
    peaks = {"running": 0.0, "queued": 0.0}
    for name, column, color in (
        ("queued", "num_queue_reqs", "#E69F00"),
        ("running", "num_running_reqs", _INK),
    ):
        values = _column(timeline, column)
        if values is not None:
            peaks[name] = _top(values)
            _line(ax, sampler(values), color, f"{name} (peak {peaks[name]:,.0f})")
    limit = plan.get("max_running_requests")
    scale = max(*peaks.values(), 1.0)
    if limit is not None:
        shown = limit <= 4 * scale
        label = f"max_running_requests = {limit:,}" + ("" if shown else " (above the axis)")
        ax.plot([], [], color=_GREY, linewidth=1.4, linestyle=(0, (2, 2)), label=label)
        if shown:
            scale = max(scale, limit)
            ax.axhline(limit, color=_GREY, linewidth=1.4, linestyle=(0, (2, 2)), zorder=1.5)
    if peaks["queued"] > 20 * max(peaks["running"], 1.0):
        _log_counts(ax, scale)
    else:
        _count_axis(ax, integer=True, top=scale)
    return sampler.note


def _draft(ax: Axes, timeline: pd.DataFrame, plan: Plan) -> str:
    """Draw the draft panel on `ax`; the note is returned."""
    ax.set_ylabel("tokens")
    sampler = _Sampler(_times(timeline))
    groups = _token_groups(timeline, plan)
    if not groups:
        _state(ax, "no draft model")
        return _steps_text(len(timeline))
    for order, group in enumerate(groups):
        color = draft_color(group.depths[0])
        resident, *rest = (sampler(values) for values in group.values)
        _line(ax, resident, color, f"{_depths(group.depths)} resident ({group.detail})", width=2.0)
        for live in rest:
            hatch = _STALE_HATCHES[order % len(_STALE_HATCHES)]
            ax.fill_between(
                resident.x, live.y, resident.y, step="post", facecolor="none", edgecolor=color, hatch=hatch, linewidth=0
            )
            _line(ax, live, color, "", style=(0, (3, 2)), width=1.4)
    _count_axis(ax)
    return sampler.note


def _cache(ax: Axes, timeline: pd.DataFrame, plan: Plan) -> str:
    """Draw the prefix-cache panel on `ax`; the note is returned."""
    ax.set_ylabel("share (%)")
    names = ["cache_hit_rate"]
    names += [f"{pool}_{state}_tokens" for pool in ("full", "swa") for state in ("evictable", "protected")]
    names += [f"cache_evicted_{pool}_tokens" for pool in ("full", "swa")]
    columns = {name: values for name in names if (values := _column(timeline, name)) is not None}
    if not any(np.nan_to_num(values).any() for values in columns.values()):
        _state(ax, "the prefix cache is off, or was never used")
        return _steps_text(len(timeline))
    sampler = _Sampler(_times(timeline))
    styles: dict[str, LineStyle] = {"evictable": "-", "protected": (0, (3, 2))}
    for pool in ("full", "swa"):
        capacity = plan.get(f"{pool}_max_total_num_tokens") or 0
        for state, style in styles.items():
            values = columns.get(f"{pool}_{state}_tokens")
            if values is not None and capacity:
                _line(
                    ax, sampler(100 * values / capacity), POOL_COLORS[pool], f"{pool} {state} (% of pool)", style=style
                )
    if "cache_hit_rate" in columns:
        held = np.asarray(pd.Series(columns["cache_hit_rate"]).ffill(), dtype=np.float64)
        _line(ax, sampler(100 * held), _INK, "cache_hit_rate (% of prompt tokens)", style=(0, (1, 1)), width=2.0)
    ax.set_ylim(0, 106)
    return sampler.note


# ------------------------------------------------------------------------------------------- the frame around a panel


def _figure(size: tuple[float, float]) -> Figure:
    """Return a new figure that no pyplot knows of."""
    figure = Figure(figsize=size, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _panel(ax: Axes | None, title: str, span: tuple[float, float], body: Callable[[Axes], str]) -> Axes:
    """Draw a panel: `body` draws the data and returns the note, the rest is the same for all."""
    with rc_context(_STYLE):
        own = None
        if ax is None:
            own = _figure((9.5, 4))
            ax = own.add_subplot()
        if ax.has_data():
            left, right = ax.get_xlim()
            span = min(left, span[0]), max(right, span[1])
        _dress(ax)
        note = _run_body(ax, span, body)
        _head(ax, title, note)
        _time_axis(ax, span)
        _legend(ax)
        if own is not None:
            own.set_size_inches(9.5, max(4.0, _legend_height(ax) + 1.1))
    return ax


def _run_body(ax: Axes, span: tuple[float, float], body: Callable[[Axes], str]) -> str:
    """Draw the data, or say that there is none."""
    if math.isnan(span[0]):
        _state(ax, "no steps recorded")
        return ""
    return body(ax)


def _dress(ax: Axes) -> None:
    """Give an Axes the house style, whatever style it was created with."""
    ax.set_axisbelow(True)
    ax.grid(True, color="#DDDDDD", linewidth=0.7, linestyle="-")
    ax.tick_params(colors=_INK, labelsize=10, length=3, color=_PALE)
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(_PALE)


def _head(ax: Axes, title: str, note: str) -> None:
    """Write the title, and under it the note in small print."""
    for old in [text for text in ax.texts if text.get_gid() == _NOTE]:
        old.remove()
    ax.set_title(title, loc="left", pad=20 if note else 8)
    if note:
        ax.annotate(
            note,
            xy=(0, 1),
            xycoords="axes fraction",
            xytext=(0, 5),
            textcoords="offset points",
            va="bottom",
            fontsize=9,
            color=_GREY,
            gid=_NOTE,
            annotation_clip=False,
        )


def _legend(ax: Axes) -> None:
    """Put the legend to the right of the data."""
    handles, _ = ax.get_legend_handles_labels()
    handles += _draft_key(ax)
    if handles:
        ax.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=(1.01, 1.0),
            borderaxespad=0,
            frameon=False,
            handlelength=2.6,
            labelspacing=0.55,
        )


def _legend_height(ax: Axes) -> float:
    """Return about how high the legend is, in inches."""
    legend = ax.get_legend()
    lines = [text.get_text().count("\n") + 1 for text in legend.get_texts()] if legend is not None else []
    return 0.152 * sum(lines) + 0.07 * len(lines)


def _draft_key(ax: Axes) -> list[Artist]:
    """Return the legend entries that explain live and stale, where the panel has a gap."""
    if not any(line.get_gid() == "live" for line in ax.lines):
        return []
    return [
        Line2D([], [], color=_GREY, linewidth=1.4, linestyle=(0, (3, 2)), label="live: in the depth's attention"),
        Patch(facecolor="none", edgecolor=_GREY, hatch="////", linewidth=0, label="stale: resident, not live"),
    ]


def _state(ax: Axes, text: str) -> None:
    """Say in the middle of an empty panel why it is empty."""
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", fontsize=11, color=_GREY)
    ax.grid(False, axis="y")
    ax.set_yticks([])
    ax.set_ylabel("")


def _footer(figure: Figure, notes: Iterable[str]) -> None:
    """Write notes at the foot of a page."""
    text = "\n".join(textwrap.fill(note, 130) for note in notes)
    figure.supxlabel(text, x=0.01, ha="left", fontsize=9.5, color=_GREY)


# ---------------------------------------------------------------------------------------------------------------- axes


class _TimeLocator(MaxNLocator):
    """Round ticks in a unit other than the second in which the data are."""

    def __init__(self, unit: float) -> None:
        super().__init__(nbins=8, steps=[1, 2, 2.5, 5, 10])
        self._unit = unit

    def tick_values(self, vmin: float, vmax: float) -> Any:
        """Return the tick places between two limits in seconds."""
        return np.asarray(super().tick_values(vmin / self._unit, vmax / self._unit)) * self._unit


def _time_axis(ax: Axes, span: tuple[float, float]) -> None:
    """Label the x axis in the unit that suits its span, and set its limits."""
    start, stop = span
    if math.isnan(start):
        ax.set_xticks([])
        return
    if stop <= start:
        start, stop = start - 0.5, stop + 0.5
    name, unit = _time_unit(stop - start)
    ax.set_xlim(start, stop)
    ax.xaxis.set_major_locator(_TimeLocator(unit))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{round(x / unit, 9) + 0.0:g}"))
    ax.set_xlabel(f"time ({name})")


def _time_unit(span: float) -> tuple[str, float]:
    """Return name and seconds of the unit for a span of time."""
    for (name, unit), (_, above) in pairwise(_TIME_UNITS):
        if span < (above if unit < 1 else 3 * above):
            return name, unit
    return _TIME_UNITS[-1]


def _count_axis(ax: Axes, integer: bool = False, top: float = 0.0) -> None:
    """Start the y axis at zero and write its numbers as 12k, 1.5M."""
    limit = max(top, *(_top(np.asarray(line.get_ydata(), dtype=float)) for line in ax.lines), *_band_tops(ax), 1.0)
    ax.set_ylim(0, limit * 1.06)
    ax.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10], integer=integer))
    ax.yaxis.set_major_formatter(EngFormatter(sep=""))


def _band_tops(ax: Axes) -> list[float]:
    """Return the highest point of every filled band."""
    corners = [np.asarray(path.vertices, dtype=float) for band in ax.collections for path in band.get_paths()[:1]]
    return [_top(part[:, 1]) for part in corners if len(part)]


def _log_counts(ax: Axes, top: float) -> None:
    """Make the y axis logarithmic above ten, for a queue that dwarfs what runs."""
    ax.set_yscale("symlog", linthresh=10)
    decades = range(1, math.ceil(math.log10(max(top, 10))) + 1)
    ax.set_ylim(0, top * 1.6)
    ax.set_yticks([0, *(10.0**decade for decade in decades if 10.0**decade <= top * 1.6)])
    ax.yaxis.set_major_formatter(EngFormatter(sep=""))
    ax.set_ylabel("requests (log above 10)")


# -------------------------------------------------------------------------------------------------------------- curves


@dataclass(frozen=True)
class _Curve:
    """Points of a step line (each holds until the next), with the band around it where it was binned."""

    x: Floats
    y: Floats
    low: Floats | None = None
    high: Floats | None = None


class _Sampler:
    """Turns the columns of one timeline into curves: row by row, or in time bins when there are too many rows."""

    def __init__(self, time: Floats) -> None:
        self._time = time
        self._edges: Floats | None = None
        self.note = f"{_steps_text(len(time))}, each drawn"
        if len(time) > EXACT_ROWS and time[-1] > time[0]:
            width, self._edges = _bins(time[0], time[-1], _BINS)
            self.note = f"{_steps_text(len(time))} in {_duration(width)} bins: line = mean over time, band = min to max"

    def __call__(self, values: Floats) -> _Curve:
        """Return the curve of one column."""
        if self._edges is None:
            return _Curve(self._time, values)
        mean, low, high = _bin_stats(self._time, values, self._edges)
        return _Curve(self._edges, *(np.append(part, part[-1]) for part in (mean, low, high)))


def _line(
    ax: Axes,
    curve: _Curve,
    color: str,
    label: str,
    style: LineStyle = "-",
    width: float = 1.6,
    on_top: bool = False,
) -> None:
    """Draw a curve and its band; one that lies on top of another gets a white rim and no band of its own."""
    if not on_top and curve.low is not None and curve.high is not None:
        ax.fill_between(curve.x, curve.low, curve.high, step="post", color=color, alpha=0.22, linewidth=0)
    ax.plot(
        curve.x,
        curve.y,
        drawstyle="steps-post",
        color=color,
        linestyle=style,
        linewidth=width,
        marker="o" if len(curve.x) == 1 else None,
        markersize=3.5 * width,
        label=_wrap(label) or "_",
        gid=None if label else "live",
        path_effects=[withStroke(linewidth=width + 1.2, foreground="white")] if on_top else None,
    )


def _bins(start: float, stop: float, at_most: int) -> tuple[float, Floats]:
    """Cut a span into bins of a round width.

    Parameters
    ----------
    start, stop : float
        Ends of the span, seconds.
    at_most : int
        No more bins than this.

    Returns
    -------
    width : float
        Width of a bin. The last one is between a half and one and a half of it.
    edges : array
        One more than there are bins; the first is `start` and the last `stop`.
    """
    width = _round_up((stop - start) / at_most)
    count = max(1, round((stop - start) / width))
    edges = start + width * np.arange(count + 1, dtype=float)
    edges[-1] = stop
    return width, edges


def _round_up(seconds: float) -> float:
    """Return the next round duration: 1, 2, 5 below a minute, then those a clock has."""
    for width in (60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400):
        if 50 < seconds <= width:
            return float(width)
    unit = 86400.0 if seconds > 86400 else 1.0
    power = 10.0 ** math.floor(math.log10(seconds / unit))
    return next(unit * power * step for step in (1, 2, 5, 10) if seconds <= unit * power * step * (1 + 1e-12))


def _bin_stats(time: Floats, values: Floats, edges: Floats) -> tuple[Floats, Floats, Floats]:
    """Return time-weighted mean, minimum and maximum of a step function in each bin; NaN counts as no value.

    The value that an earlier step left behind belongs to the bin too; of a step without duration only minimum and
    maximum know.
    """
    first = np.searchsorted(time, edges[:-1], side="left")
    first = np.where(time[np.minimum(first, len(time) - 1)] == edges[:-1], first, first - 1)
    last = np.searchsorted(time, edges[1:], side="left")
    last[-1] = len(time)
    places = np.column_stack([first, last]).ravel()
    padded = np.append(values, np.nan)
    low = np.fmin.reduceat(padded, places)[::2]
    high = np.fmax.reduceat(padded, places)[::2]
    held = np.diff(time, append=time[-1])
    known = np.isfinite(values)
    if not known.all():
        held, values = np.where(known, held, 0.0), np.where(known, values, 0.0)
    area, weight = (_integral(time, part, edges) for part in (values * held, held))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.clip(area / weight, low, high), low, high


def _integral(time: Floats, pieces: Floats, edges: Floats) -> Floats:
    """Return the integral over each bin of a step function with these areas of its steps."""
    so_far = np.concatenate([[0.0], np.cumsum(pieces[:-1])])
    return np.diff(np.interp(edges, time, so_far))


def _sum_in_bins(time: Floats, values: Floats, edges: Floats) -> Floats:
    """Return the sum of the rows that fall into each bin."""
    so_far = np.concatenate([[0.0], np.cumsum(np.nan_to_num(values))])
    places = np.searchsorted(time, edges, side="left")
    places[-1] = len(time)
    return np.diff(so_far[places])


def _cumulative(time: Floats, counts: Floats, span: tuple[float, float]) -> tuple[Floats, Floats, bool]:
    """Return the points of a cumulative count over the whole span, and whether it was thinned to bin ends."""
    total = np.cumsum(counts)
    if len(time) <= EXACT_ROWS or span[1] <= span[0]:
        x = np.concatenate([[span[0]], time, [span[1]]])
        return x, np.concatenate([[0.0], total, total[-1:]]), False
    edges = _bins(*span, _BINS)[1]
    return edges, np.append(0.0, total)[np.searchsorted(time, edges, side="right")], True


def _marks(points: int, order: int) -> list[int]:
    """Return about six places for markers, shifted for each line so that they don't hide one another."""
    return sorted({min(points - 2, max(1, round((points - 1) * (i + 0.5 + 0.12 * order) / 6))) for i in range(6)})


# --------------------------------------------------------------------------------------------------- reading the frames


def _times(frame: pd.DataFrame) -> Floats:
    """Return the times of a frame, which must not decrease."""
    time = frame["time_s"].to_numpy(dtype=float)
    if len(time) and (np.isnan(time).any() or (np.diff(time) < 0).any()):
        raise ValueError("time_s must be in order and without gaps (NaN)")
    return time


def _span(timeline: pd.DataFrame, events: pd.DataFrame | None = None) -> tuple[float, float]:
    """Return first and last time of the frames, NaN when both are empty."""
    parts = [frame["time_s"].to_numpy(dtype=float) for frame in (timeline, events) if frame is not None and len(frame)]
    if not parts:
        return math.nan, math.nan
    return min(float(part.min()) for part in parts), max(float(part.max()) for part in parts)


def _column(timeline: pd.DataFrame, name: str) -> Floats | None:
    """Return a column as floats; None when it is absent or holds no value at all."""
    if name not in timeline:
        return None
    values = timeline[name].to_numpy(dtype=float, na_value=np.nan)
    return None if np.isnan(values).all() else values


def _pool_usage(timeline: pd.DataFrame) -> dict[str, Floats]:
    """Return the usage of the target's pools in percent."""
    usage = {pool: _column(timeline, f"{pool}_token_usage") for pool in ("full", "swa")}
    return {pool: 100 * values for pool, values in usage.items() if values is not None}


def _has_swa(timeline: pd.DataFrame, plan: Plan) -> bool:
    """Tell whether the model has a SWA pool."""
    return bool(plan.get("swa_max_total_num_tokens")) or "swa_token_usage" in timeline


@dataclass(frozen=True)
class _Group:
    """Draft depths that have the same curves."""

    depths: list[int]
    values: list[Floats]
    detail: str


def _usage_groups(timeline: pd.DataFrame, plan: Plan) -> list[_Group]:
    """Return the usage of the draft depths in percent, equal ones together."""
    found = []
    for depth in _draft_depths(timeline):
        pool = _draft_pool(plan, depth)
        resident = _column(timeline, f"draft{depth}_resident_tokens")
        if pool is not None and resident is not None:
            found.append((depth, [100 * resident / pool["tokens"]], _mapping_text(pool.get("mapping"))))
    return _grouped(found)


def _token_groups(timeline: pd.DataFrame, plan: Plan) -> list[_Group]:
    """Return resident and, where there are any, live tokens of the draft depths, equal ones together."""
    found = []
    for depth in _draft_depths(timeline):
        pool = _draft_pool(plan, depth)
        columns = [_column(timeline, f"draft{depth}_{state}_tokens") for state in ("resident", "live")]
        values = [column for column in columns if column is not None]
        if columns[0] is not None:
            found.append(
                (depth, values, f"pool {_short(pool['tokens'])}" if pool is not None else "no pool in the plan")
            )
    return _grouped(found)


def _grouped(found: Iterable[tuple[int, list[Floats], str]]) -> list[_Group]:
    """Put depths together whose curves and details are the same."""
    groups: list[_Group] = []
    for depth, values, detail in found:
        for group in groups:
            if group.detail == detail and len(group.values) == len(values) and all(map(_same, group.values, values)):
                group.depths.append(depth)
                break
        else:
            groups.append(_Group([depth], values, detail))
    return groups


def _draft_depths(timeline: pd.DataFrame) -> list[int]:
    """Return the draft depths that the timeline has columns of."""
    found = (re.fullmatch(r"draft(\d+)_resident_tokens", str(name)) for name in timeline.columns)
    return sorted(int(match[1]) for match in found if match)


def _draft_pool(plan: Plan, depth: int) -> Mapping[str, Any] | None:
    """Return the plan's pool of a draft depth; the larger one, where it has both a full and a SWA pool."""
    pools = [pool for pool in plan.get("pools", ()) if pool["worker"] == f"draft{depth}" and pool.get("tokens")]
    pools = [pool for pool in pools if pool.get("layers", 1)]
    return max(pools, key=lambda pool: int(pool["tokens"]), default=None)


def _same(one: Floats, other: Floats) -> bool:
    """Tell whether two curves lie on one another (to a part in two thousand of their height)."""
    if one is other:
        return True
    difference = np.abs(one - other)
    return bool(np.nan_to_num(difference).max() <= max(_top(one), _top(other)) / 2000)


def _oom_kinds(
    timeline: pd.DataFrame, events: pd.DataFrame | None
) -> dict[tuple[str, str, str], tuple[Floats, Floats]]:
    """Return times and counts for each event, pool and cause."""
    kinds: dict[tuple[str, str, str], tuple[Floats, Floats]] = {}
    if events is not None and len(events):
        chosen = events[events["event"].isin(_OOM_EVENTS)].sort_values("time_s", kind="stable")
        keys: list[Hashable] = ["event", "pool", "cause"]
        for key, rows in chosen.groupby(keys, sort=False, observed=True, dropna=False)["time_s"]:
            event, pool, cause = (str(part) for part in key)
            kinds[event, pool, cause or "no cause given"] = rows.to_numpy(dtype=float), np.ones(len(rows))
    for event in set(_OOM_EVENTS) - {event for event, _, _ in kinds}:
        counts = _column(timeline, _OOM_COLUMNS[event])
        if counts is not None and counts.any():
            some = np.nan_to_num(counts) > 0
            kinds[event, "-", "cause not recorded"] = _times(timeline)[some], counts[some]
    return dict(sorted(kinds.items(), key=lambda item: (-item[1][1].sum(), item[0])))


def _foremost(
    kinds: dict[tuple[str, str, str], tuple[Floats, Floats]],
) -> list[tuple[tuple[str, str, str], tuple[Floats, Floats]]]:
    """Return the most frequent kinds, and all the others as one more."""
    items = list(kinds.items())
    if len(items) <= _OOM_LINES:
        return items
    kept, rest = items[: _OOM_LINES - 1], items[_OOM_LINES - 1 :]
    time = np.concatenate([value[0] for _, value in rest])
    counts = np.concatenate([value[1] for _, value in rest])
    order = np.argsort(time, kind="stable")
    return [*kept, (("others", "-", f"{len(rest)} further events, pools or causes"), (time[order], counts[order]))]


def _faults(ax: Axes, events: pd.DataFrame | None) -> None:
    """Draw a vertical line where a fault happened; at most one each pixel or so."""
    if events is None or not len(events):
        return
    found = events[events["event"] == "fault"]
    if not len(found):
        return
    time = found["time_s"].to_numpy(dtype=float)
    if len(time) > EXACT_ROWS:
        time = time[np.unique(np.digitize(time, np.linspace(time.min(), time.max(), EXACT_ROWS)), return_index=True)[1]]
    causes = found["cause"].astype(str).value_counts(sort=True)
    text = f"{causes.index[0]}" + (f" and {len(causes) - 1} further causes" if len(causes) > 1 else "")
    ax.vlines(
        np.unique(time),
        0,
        1,
        transform=ax.get_xaxis_transform(),
        color="#EE3377",
        linewidth=1.4,
        label=_wrap(f"fault: {text} ({len(found):,})"),
    )


# --------------------------------------------------------------------------------------------------------------- texts


def _top(values: Floats) -> float:
    """Return the largest value, 0 where there is none."""
    finite = values[np.isfinite(values)] if not np.isfinite(values).all() else values
    return float(finite.max()) if len(finite) else 0.0


def _wrap(text: str) -> str:
    """Break a legend text into lines."""
    return textwrap.fill(text, _LEGEND_CHARS, subsequent_indent="  ")


def _steps_text(count: int) -> str:
    """Return the number of steps in words."""
    return "1 step" if count == 1 else f"{count:,} steps"


def _short(number: float) -> str:
    """Return a number of tokens as 950, 12.3k or 1.5M."""
    for limit, unit, suffix in ((1e4, 1.0, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M")):
        if abs(number) < limit:
            return f"{number / unit:,.4g}{suffix}" if suffix else f"{number:,.0f}"
    return f"{number / 1e9:,.4g}G"


def _duration(seconds: float) -> str:
    """Return a round duration in its own unit."""
    name, unit = next(((name, unit) for name, unit in reversed(_TIME_UNITS) if seconds >= unit), _TIME_UNITS[0])
    return f"{seconds / unit:.6g} {name}"


def _depths(depths: Sequence[int]) -> str:
    """Return draft depths as a name: ``draft 0``, ``draft 0-2, 5``."""
    parts: list[list[int]] = []
    for depth in depths:
        if parts and parts[-1][-1] == depth - 1:
            parts[-1].append(depth)
        else:
            parts.append([depth])
    return "draft " + ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def _mapping_text(mapping: object) -> str:
    """Return how a draft pool finds its rows, in words."""
    text = "" if mapping is None else str(mapping)
    if text.lower() in ("", "-", "none"):
        return "indexed as full"
    return "target's mapping" if "target" in text.lower() else f"{text} mapping"


def _capacity_text(plan: Plan) -> str:
    """Return the limits of the plan in one line."""
    names = ("full_max_total_num_tokens", "swa_max_total_num_tokens", "max_running_requests")
    limits = {name: plan.get(name) for name in names}
    parts = [
        f"{pool} pool {limits[name]:,} tokens"
        for pool, name in zip(("full", "swa"), names, strict=False)
        if limits[name]
    ]
    if limits["max_running_requests"]:
        parts.append(f"max_running_requests {limits['max_running_requests']:,}")
    return ", ".join(parts)
