"""Two runs on one axis: the first solid and dark, the second dashed and lighter, each pool in its colour.

As elsewhere in :mod:`simkv.plotting`: plain frames in, Axes out. Long timelines are drawn as the time-weighted mean of
time bins; a legend says the peak, which a mean hides. The two need not last equally long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb

from simkv.plotting.curves import Curve, Sampler, cumulative_counts, draw_line, mark_places, sum_in_bins, time_bins
from simkv.plotting.facts import column_of, evictions, oom_kinds, pool_usage, row_times, time_span
from simkv.plotting.frame import count_axis, framed, say_state
from simkv.plotting.style import DRAFT_COLORS, GREY, INK, POOL_COLORS, RATE_BINS, STYLE, Floats, LineStyle, Plan
from simkv.plotting.texts import duration_text, short_number, top_of, wrapped

__all__ = ["KINDS", "Traced", "concurrency", "eviction", "figure_against_axis", "oom", "utilization"]

QUEUED = "#E69F00"
FAULT = "#EE3377"
SECOND: LineStyle = (0, (4, 2))
OOM_MARKERS = {"retraction": "o", "abort": "s", "refusal": "^"}
SWEEP_LINES = 6
_NOTHING = pd.DataFrame({"time_s": []})


class Traced(NamedTuple):
    """One of the two: its label, its timeline, its plan, and its events where there are any.

    ``peaks`` are the largest values of columns, where the timeline is of means and does not know them.
    """

    label: str
    timeline: pd.DataFrame
    plan: Plan
    events: pd.DataFrame | None = None
    peaks: Mapping[str, float] | None = None

    def peak(self, column: str) -> float:
        """Largest value of a column."""
        values = column_of(self.timeline, column)
        return float((self.peaks or {}).get(column, 0.0 if values is None else top_of(values)))


class _Side(NamedTuple):
    """How one of the two is drawn."""

    traced: Traced
    sampler: Sampler
    second: bool

    @property
    def style(self) -> LineStyle:
        return SECOND if self.second else "-"

    @property
    def width(self) -> float:
        return 1.8 if self.second else 2.2

    def color(self, base: str) -> str:
        return lighter(base) if self.second else base

    def line(self, ax: Axes, values: Floats, color: str, label: str) -> None:
        """Draw a column over time."""
        curve = self.sampler(values)
        text = f"{self.traced.label}: {label}"
        draw_line(ax, Curve(curve.x, curve.y), self.color(color), text, style=self.style, width=self.width)


def lighter(color: str) -> str:
    """The colour of the second run: nearly halfway to white."""
    red, green, blue = (part + (1 - part) * 0.42 for part in to_rgb(color))
    return to_hex((red, green, blue))


def utilization(a: Traced, b: Traced, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Usage of the full and the SWA pool of both, in percent of each run's own pool.

    Parameters
    ----------
    a, b : Traced
        The two runs; an empty timeline is a run in which nothing happened.
    ax : Axes, optional
        Where to draw; a new figure when omitted.
    title : str, optional
        Replaces the default title.

    Returns
    -------
    Axes
    """

    def body(axis: Axes, sides: Sequence[_Side]) -> str:
        axis.set_ylabel("usage (% of pool)")
        top = 100.0
        for side in sides:
            for pool, usage in pool_usage(side.traced.timeline).items():
                top = max(top, top_of(usage))
                peak = 100 * side.traced.peak(f"{pool}_token_usage")
                side.line(axis, usage, POOL_COLORS[pool], f"{pool} (peak {peak:.3g} %)")
        axis.axhline(100, color=INK, linewidth=1.0, linestyle=(0, (1, 2)), zorder=1.5)
        axis.set_ylim(0, top * 1.06)
        return _sampled(sides)

    return _overlaid(a, b, ax, title or "Pool utilization", body)


def concurrency(a: Traced, b: Traced, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Running and queued requests of both.

    Parameters
    ----------
    a, b : Traced
        The two runs.
    ax : Axes, optional
        Where to draw; a new figure when omitted.
    title : str, optional
        Replaces the default title.

    Returns
    -------
    Axes
    """

    def body(axis: Axes, sides: Sequence[_Side]) -> str:
        axis.set_ylabel("requests")
        for side in sides:
            for name, column, color in (("queued", "num_queue_reqs", QUEUED), ("running", "num_running_reqs", INK)):
                values = column_of(side.traced.timeline, column)
                if values is not None:
                    side.line(axis, values, color, f"{name} (peak {side.traced.peak(column):,.0f})")
        count_axis(axis, integer=True)
        limits = list(dict.fromkeys(_limit(side.traced.plan) for side in sides))
        return f"{_sampled(sides)}; max_running_requests {' and '.join(limits)}"

    return _overlaid(a, b, ax, title or "Concurrency", body)


def _limit(plan: Plan) -> str:
    limit = plan.get("max_running_requests")
    return "none" if limit is None else f"{limit:,}"


def oom(a: Traced, b: Traced, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Requests retracted, aborted and refused so far in both, by pool; the marker is the kind of event.

    Parameters
    ----------
    a, b : Traced
        The two runs; events are counted from ``events``, and where it has none from the timeline.
    ax : Axes, optional
        Where to draw; a new figure when omitted.
    title : str, optional
        Replaces the default title.

    Returns
    -------
    Axes
    """

    def body(axis: Axes, sides: Sequence[_Side]) -> str:
        axis.set_ylabel("events so far")
        span = _span(*(side.traced for side in sides))
        drawn: list[str] = []
        for side in sides:
            drawn += _faults(axis, side)
            kinds = _by_pool(oom_kinds(side.traced.timeline, side.traced.events))
            if not kinds:
                axis.plot([], [], color=GREY, linestyle=side.style, label=f"{side.traced.label}: none")
            for order, ((event, pool), (time, counts)) in enumerate(kinds.items()):
                own = time_span(side.traced.timeline, side.traced.events)
                x, y, _ = cumulative_counts(time, counts, (span[0], own[1]))
                axis.plot(
                    x,
                    y,
                    drawstyle="steps-post",
                    color=side.color(POOL_COLORS.get(pool, POOL_COLORS["-"])),
                    linestyle=side.style,
                    linewidth=side.width,
                    marker=OOM_MARKERS.get(event, "D"),
                    markersize=5,
                    markevery=mark_places(len(x), order + 2 * side.second),
                    label=wrapped(
                        f"{side.traced.label}: {event}{'' if pool == '-' else f', {pool}'} ({counts.sum():,.0f})"
                    ),
                )
                drawn.append(event)
        if not drawn:
            for line in list(axis.lines):
                line.remove()
            say_state(axis, "none happened in either: no retraction, no abort, no refusal")
            return ""
        count_axis(axis, integer=True)
        return "each line adds up the causes of a pool"

    return _overlaid(a, b, ax, title or "Retractions, aborts and refusals", body)


def _faults(axis: Axes, side: _Side) -> list[str]:
    """Draw a vertical line where the engine breaks for the first time; what was drawn."""
    events = side.traced.events
    found = None if events is None else events[events["event"] == "fault"]
    if found is None or not len(found):
        return []
    code = str(found["cause"].iloc[0]).partition(":")[0]
    more = f", {len(found):,} in all" if len(found) > 1 else ""
    label = wrapped(f"{side.traced.label}: fault {code}{more}")
    axis.axvline(
        float(found["time_s"].iloc[0]), color=side.color(FAULT), linestyle=side.style, linewidth=1.6, label=label
    )
    return ["fault"]


def _by_pool(
    kinds: Mapping[tuple[str, str, str], tuple[Floats, Floats]],
) -> dict[tuple[str, str], tuple[Floats, Floats]]:
    """Times and counts by event and pool, causes put together."""
    parts: dict[tuple[str, str], list[tuple[Floats, Floats]]] = {}
    for (event, pool, _), one in kinds.items():
        parts.setdefault((event, pool), []).append(one)
    out = {}
    for key, found in sorted(parts.items()):
        time, counts = (np.concatenate(columns) for columns in zip(*found, strict=True))
        order = np.argsort(time, kind="stable")
        out[key] = time[order], counts[order]
    return out


def eviction(a: Traced, b: Traced, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Tokens evicted a second in both: out of the window, and out of the prefix cache, by pool.

    Parameters
    ----------
    a, b : Traced
        The two runs.
    ax : Axes, optional
        Where to draw; a new figure when omitted.
    title : str, optional
        Replaces the default title.

    Returns
    -------
    Axes
    """

    def body(axis: Axes, sides: Sequence[_Side]) -> str:
        axis.set_ylabel("tokens/s")
        found = [(side, _evicted(side.traced)) for side in sides]
        span = _span(*(side.traced for side in sides))
        if not any(kinds for _, kinds in found) or span[1] <= span[0]:
            totals = [f"{side.traced.label}: {sum(map(np.nansum, k.values())):,.0f} tokens" for side, k in found]
            say_state(axis, "no token was evicted in either" if not any(k for _, k in found) else "\n".join(totals))
            return ""
        fewest = min(len(side.traced.timeline) for side in sides)
        width, edges = time_bins(*span, min(RATE_BINS, max(1, fewest // 3)))
        for side, kinds in found:
            time = row_times(side.traced.timeline)
            own = _own_edges(edges, time)
            for (pool, why), tokens in kinds.items():
                rate = sum_in_bins(time, tokens, own) / np.diff(own)
                curve = Curve(own, np.append(rate, rate[-1]))
                label = f"{side.traced.label}: {pool}, {why} ({short_number(float(np.nansum(tokens)))})"
                # Of two reasons in one pool, the cache's is the thinner line.
                line = side.width * (0.6 if why == "cache" and pool == "swa" else 1.0)
                draw_line(axis, curve, side.color(POOL_COLORS[pool]), label, style=side.style, width=line)
            if not kinds:
                axis.plot([], [], color=GREY, linestyle=side.style, label=f"{side.traced.label}: none")
        count_axis(axis)
        return f"tokens evicted in each {duration_text(width)} bin over its width (in all)"

    return _overlaid(a, b, ax, title or "Eviction rate", body)


def _evicted(traced: Traced) -> dict[tuple[str, str], Floats]:
    """Tokens evicted in each step, by pool and by whether they slid out or the cache gave them up."""
    out: dict[tuple[str, str], Floats] = {}
    for one in evictions(traced.timeline, traced.plan):
        key = one.pool, "window" if one.reasons == ("window",) else "cache"
        out[key] = np.nan_to_num(one.tokens) + out.get(key, 0.0)
    return dict(sorted(out.items()))


def _own_edges(edges: Floats, time: Floats) -> Floats:
    """The bins up to where a timeline ends; the last one ends with it, unless that would leave a sliver."""
    inner = edges[edges < time[-1]]
    if len(inner) > 1 and time[-1] - inner[-1] < 0.5 * (edges[1] - edges[0]):
        inner = inner[:-1]
    return np.append(inner, max(time[-1], inner[-1])) if len(inner) else edges[:2]


KINDS: dict[str, Callable[..., Axes]] = {
    "utilization": utilization,
    "oom": oom,
    "concurrency": concurrency,
    "eviction": eviction,
}
"""Name of each kind of overlay -> the function that draws it."""


def _overlaid(a: Traced, b: Traced, ax: Axes | None, title: str, body: Callable[[Axes, Sequence[_Side]], str]) -> Axes:
    """Draw what there is of both in the frame of all figures."""
    known = [(traced, second) for traced, second in ((a, False), (b, True)) if len(traced.timeline)]
    missing = [traced.label for traced in (a, b) if not len(traced.timeline)]

    def draw(axis: Axes) -> str:
        sides = [_Side(traced, Sampler(row_times(traced.timeline)), second) for traced, second in known]
        note = body(axis, sides)
        for label in missing:
            axis.plot([], [], color=GREY, linestyle=(0, (1, 2)), label=f"{label}: nothing ran")
        return note

    drawn = framed(ax, title, _span(a, b), draw)
    if ax is None and not drawn.lines:
        # A sentence needs no room for curves.
        drawn.get_figure(root=True).set_size_inches(9.5, 1.8)  # type: ignore[union-attr]
    return drawn


def _span(*both: Traced) -> tuple[float, float]:
    """The time from the first row or event of either to the last."""
    spans = [
        time_span(
            traced.timeline if len(traced.timeline) else _NOTHING, traced.events if len(traced.timeline) else None
        )
        for traced in both
    ]
    known = [span for span in spans if not math.isnan(span[0])]
    if not known:
        return math.nan, math.nan
    return min(start for start, _ in known), max(stop for _, stop in known)


def _sampled(sides: Sequence[_Side]) -> str:
    """How many steps the lines stand for, in the note."""
    counts = " and ".join(f"{len(side.traced.timeline):,}" for side in sides)
    binned = any(" bins" in side.sampler.note for side in sides)
    return f"{counts} steps" + (" in bins: line = mean over time" if binned else ", each drawn")


# ------------------------------------------------------------------------------------------------- sweeps
def figure_against_axis(
    frame: pd.DataFrame,
    axis: str,
    figure: str,
    labels: tuple[str, str],
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """A figure of two sweeps against one of their axes: the first solid, the second dashed.

    Parameters
    ----------
    frame : DataFrame
        Columns ``axis``, ``a``, ``b``, and of any further axes ``line``, a text that says which line a row is of.
    axis : str
        Name of the axis: its column, and what stands below the picture.
    figure : str
        Name of the figure.
    labels : (str, str)
        Of the two sweeps.
    ax : Axes, optional
        Where to draw; a new figure when omitted.
    title : str, optional
        Replaces the default title.

    Returns
    -------
    Axes
    """
    places, names = _places(frame[axis])
    lines = list(dict.fromkeys(frame["line"])) if "line" in frame else [""]

    def body(axes: Axes) -> str:
        axes.set_ylabel(figure)
        for order, line in enumerate(lines[:SWEEP_LINES]):
            rows = frame["line"] == line if "line" in frame else pd.Series(True, index=frame.index)
            x = places[rows.to_numpy()]
            for second, (column, label) in enumerate(zip("ab", labels, strict=True)):
                y = pd.to_numeric(frame.loc[rows, column], errors="coerce").to_numpy(dtype=float)
                color = DRAFT_COLORS[order] if len(lines) > 1 else POOL_COLORS["full"]
                axes.plot(
                    x,
                    y,
                    color=lighter(color) if second else color,
                    linestyle=SECOND if second else "-",
                    linewidth=1.8 if second else 2.2,
                    marker="s" if second else "o",
                    markersize=5,
                    label=f"{label}{f', {line}' if line else ''}",
                )
        axes.set_axisbelow(True)
        drawn = np.concatenate([np.asarray(one.get_ydata(), dtype=float) for one in axes.lines])
        known = drawn[np.isfinite(drawn)]
        if not (known < 0).any():
            axes.set_ylim(0, 1.06 * max(float(known.max(initial=0.0)), 1e-9))
        more = len(lines) - SWEEP_LINES
        return f"{more} further lines are not drawn" if more > 0 else ""

    with rc_context(STYLE):
        drawn = framed(ax, title or f"{figure} against {axis}", (0.0, 1.0), body)
        low, high = float(places.min()), float(places.max())
        pad = 0.05 * (high - low) or 0.5
        drawn.set_xlim(low - pad, high + pad)
        drawn.set_xticks(sorted(set(places)), [names[place] for place in sorted(set(places))])
        drawn.set_xlabel(axis)
    return drawn


def _places(values: pd.Series[Any]) -> tuple[Floats, dict[float, str]]:
    """Where the values of an axis stand, and what is written there: numbers to scale, anything else one after another."""
    known = values.tolist()
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) for value in known):
        places = np.array(known, dtype=float)
        return places, {float(value): f"{value:g}" for value in known}
    order = {text: float(n) for n, text in enumerate(dict.fromkeys(str(value) for value in known))}
    return np.array([order[str(value)] for value in known]), {place: text for text, place in order.items()}
