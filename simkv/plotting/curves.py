"""Curves of step functions: exact where they are short, binned without losing a spike where they are long."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke

from simkv.plotting.style import BINS, EXACT_ROWS, Floats, LineStyle
from simkv.plotting.texts import duration_text, steps_text, wrapped


@dataclass(frozen=True)
class Curve:
    """Points of a step line (each holds until the next), with the band around it where it was binned."""

    x: Floats
    y: Floats
    low: Floats | None = None
    high: Floats | None = None


class Sampler:
    """Turns the columns of one timeline into curves: row by row, or in time bins when there are too many rows."""

    def __init__(self, time: Floats) -> None:
        self._time = time
        self._edges: Floats | None = None
        self.note = f"{steps_text(len(time))}, each drawn"
        if len(time) > EXACT_ROWS and time[-1] > time[0]:
            width, self._edges = time_bins(time[0], time[-1], BINS)
            self.note = (
                f"{steps_text(len(time))} in {duration_text(width)} bins: line = mean over time, band = min to max"
            )

    def __call__(self, values: Floats) -> Curve:
        """Return the curve of one column."""
        if self._edges is None:
            return Curve(self._time, values)
        mean, low, high = bin_stats(self._time, values, self._edges)
        return Curve(self._edges, *(np.append(part, part[-1]) for part in (mean, low, high)))


def draw_line(
    ax: Axes,
    curve: Curve,
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
        label=wrapped(label) or "_",
        gid=None if label else "live",
        path_effects=[withStroke(linewidth=width + 1.2, foreground="white")] if on_top else None,
    )


def time_bins(start: float, stop: float, at_most: int) -> tuple[float, Floats]:
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


def bin_stats(time: Floats, values: Floats, edges: Floats) -> tuple[Floats, Floats, Floats]:
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


def sum_in_bins(time: Floats, values: Floats, edges: Floats) -> Floats:
    """Return the sum of the rows that fall into each bin."""
    so_far = np.concatenate([[0.0], np.cumsum(np.nan_to_num(values))])
    places = np.searchsorted(time, edges, side="left")
    places[-1] = len(time)
    return np.diff(so_far[places])


def cumulative_counts(time: Floats, counts: Floats, span: tuple[float, float]) -> tuple[Floats, Floats, bool]:
    """Return the points of a cumulative count over the whole span, and whether it was thinned to bin ends."""
    total = np.cumsum(counts)
    if len(time) <= EXACT_ROWS or span[1] <= span[0]:
        x = np.concatenate([[span[0]], time, [span[1]]])
        return x, np.concatenate([[0.0], total, total[-1:]]), False
    edges = time_bins(*span, BINS)[1]
    return edges, np.append(0.0, total)[np.searchsorted(time, edges, side="right")], True


def mark_places(points: int, order: int) -> list[int]:
    """Return about six places for markers, shifted for each line so that they don't hide one another."""
    return sorted({min(points - 2, max(1, round((points - 1) * (i + 0.5 + 0.12 * order) / 6))) for i in range(6)})
