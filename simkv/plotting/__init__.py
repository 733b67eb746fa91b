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

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simkv.plotting.facts import cache_was_used, draft_depths, time_span
from simkv.plotting.frame import add_footer, framed, legend_height, new_figure, time_axis
from simkv.plotting.panels import draw_cache, draw_concurrency, draw_draft, draw_eviction, draw_oom, draw_utilization
from simkv.plotting.style import DPI, DRAFT_COLORS, EXACT_ROWS, POOL_COLORS, STYLE, Plan, draft_color

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
    "save_to",
    "utilization",
]


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
    return framed(ax, title or "Pool utilization", time_span(timeline), lambda a: draw_utilization(a, timeline, plan))


def eviction(timeline: pd.DataFrame, plan: Plan, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Tokens evicted a second, by pool and reason: out of the window, or out of the prefix cache and for what.

    Colour is the pool, line style the reason. With more than six lines, the smallest reasons of a pool are added up.

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
    return framed(ax, title or "Eviction rate", time_span(timeline), lambda a: draw_eviction(a, timeline, plan))


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
    span = time_span(timeline, events)
    heading = title or "Out of memory: retractions, aborts and refusals"
    return framed(ax, heading, span, lambda a: draw_oom(a, timeline, events, plan, span))


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
    return framed(ax, title or "Concurrency", time_span(timeline), lambda a: draw_concurrency(a, timeline, plan))


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
    return framed(ax, heading, time_span(timeline), lambda a: draw_draft(a, timeline, plan))


def cache(timeline: pd.DataFrame, plan: Plan, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Prefix cache: how much of each pool it holds, and the hit rate.

    The hit rate is the tokens found over the tokens of the prompts prefilled in a time bin, a ratio of sums, with gaps
    where nothing was prefilled. Of what is cached, the part below the dashed line is protected by running requests and
    the shaded part above it can be evicted. Tombstones are tokens whose full KV is cached and whose SWA KV is gone.

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
    return framed(ax, title or "Prefix cache", time_span(timeline), lambda a: draw_cache(a, timeline, plan))


def dashboard(
    timeline: pd.DataFrame,
    events: pd.DataFrame | None,
    plan: Plan,
    title: str | None = None,
    notes: str | Sequence[str] | None = None,
) -> Figure:
    """All panels that have something to say on one page, on one time axis.

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
    span = time_span(timeline, events)
    with rc_context(STYLE):
        figure = new_figure((11, 15.5))
        figure.set_layout_engine("constrained", h_pad=0.08, w_pad=0.08)
        panels: list[Callable[[Axes], Axes]] = [
            lambda ax: utilization(timeline, plan, ax=ax),
            lambda ax: concurrency(timeline, plan, ax=ax),
            lambda ax: oom(timeline, events, plan, ax=ax),
            lambda ax: eviction(timeline, plan, ax=ax),
        ]
        # That nothing was evicted is news; that there is no draft, or no cache, is none.
        if draft_depths(timeline):
            panels.append(lambda ax: draft(timeline, plan, ax=ax))
        if cache_was_used(timeline):
            panels.append(lambda ax: cache(timeline, plan, ax=ax))
        axes = figure.subplots(len(panels), 1, sharex=True)
        for axis, panel in zip(axes, panels, strict=True):
            panel(axis)
        time_axis(axes[-1], span)
        for axis in axes[:-1]:
            axis.tick_params(axis="x", labelbottom=False)
            axis.set_xlabel("")
        figure.align_ylabels(axes)
        heights = [max(2.0, legend_height(axis)) if axis.lines else 0.9 for axis in axes]
        axes[0].get_gridspec().set_height_ratios(heights)
        figure.set_size_inches(11, sum(heights) + 0.55 * len(heights) + 1)
        figure.suptitle(title or "KV memory of the run", x=0.01, ha="left")
        if notes:
            add_footer(figure, [notes] if isinstance(notes, str) else notes)
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
    save_to(fig, path, path.suffix.lower().lstrip("."))
    return path


def save_to(fig: Figure, out: Path | IO[bytes], suffix: str = "png") -> None:
    """Write a figure to a path or into a buffer, in a format; otherwise as :func:`save`."""
    metadata: dict[str, Any] = {"Software": None}
    if suffix == "svg":
        metadata = {"Date": None, "Creator": None}
    elif suffix == "pdf":
        metadata = {"CreationDate": None, "Creator": None, "Producer": None}
    with rc_context(STYLE):
        layout = fig.get_layout_engine()
        if layout is not None:
            layout.execute(fig)
            fig.set_layout_engine("none")
        fig.savefig(out, dpi=DPI, metadata=metadata, format=suffix)
