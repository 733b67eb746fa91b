"""The frame around a panel: figure, title, note, legend, axes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator

from simkv.plotting.style import DPI, GREY, INK, NOTE, PALE, STYLE, TIME_UNITS
from simkv.plotting.texts import top_of


def new_figure(size: tuple[float, float]) -> Figure:
    """Return a new figure that no pyplot knows of."""
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def framed(ax: Axes | None, title: str, span: tuple[float, float], body: Callable[[Axes], str]) -> Axes:
    """Draw a panel: `body` draws the data and returns the note, the rest is the same for all."""
    with rc_context(STYLE):
        own = None
        if ax is None:
            own = new_figure((9.5, 4))
            ax = own.add_subplot()
        if ax.has_data():
            left, right = ax.get_xlim()
            span = min(left, span[0]), max(right, span[1])
        _dress(ax)
        note = _run_body(ax, span, body)
        _head(ax, title, note)
        time_axis(ax, span)
        _legend(ax)
        if own is not None:
            own.set_size_inches(9.5, max(4.0, legend_height(ax) + 1.1))
    return ax


def panel(ax: Axes | None, title: str, body: Callable[[Axes], str]) -> Axes:
    """Draw a panel without a time axis: `body` draws the data and its axes, and returns the note."""
    with rc_context(STYLE):
        own = None
        if ax is None:
            own = new_figure((9.5, 4))
            ax = own.add_subplot()
        _dress(ax)
        _head(ax, title, body(ax))
        _legend(ax)
        if own is not None:
            own.set_size_inches(9.5, max(4.0, legend_height(ax) + 1.1))
    return ax


def _run_body(ax: Axes, span: tuple[float, float], body: Callable[[Axes], str]) -> str:
    """Draw the data, or say that there is none."""
    if math.isnan(span[0]):
        say_state(ax, "no steps recorded")
        return ""
    return body(ax)


def _dress(ax: Axes) -> None:
    """Give an Axes the house style, whatever style it was created with."""
    ax.set_axisbelow(True)
    ax.grid(True, color="#DDDDDD", linewidth=0.7, linestyle="-")
    ax.tick_params(colors=INK, labelsize=10, length=3, color=PALE)
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(PALE)


def _head(ax: Axes, title: str, note: str) -> None:
    """Write the title, and under it the note in small print."""
    for old in [text for text in ax.texts if text.get_gid() == NOTE]:
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
            color=GREY,
            gid=NOTE,
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


def legend_height(ax: Axes) -> float:
    """Return about how high the legend is, in inches."""
    legend = ax.get_legend()
    lines = [text.get_text().count("\n") + 1 for text in legend.get_texts()] if legend is not None else []
    return 0.152 * sum(lines) + 0.07 * len(lines)


def _draft_key(ax: Axes) -> list[Artist]:
    """Return the legend entries that explain live and stale, where the panel has a gap."""
    if not any(line.get_gid() == "live" for line in ax.lines):
        return []
    return [
        Line2D([], [], color=GREY, linewidth=1.4, linestyle=(0, (3, 2)), label="live: in the depth's attention"),
        Patch(facecolor="none", edgecolor=GREY, hatch="////", linewidth=0, label="stale: resident, not live"),
    ]


def say_state(ax: Axes, text: str) -> None:
    """Say in the middle of an empty panel why it is empty."""
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", fontsize=11, color=GREY)
    ax.grid(False, axis="y")
    ax.set_yticks([])
    ax.set_ylabel("")


def add_footer(figure: Figure, notes: Iterable[str]) -> None:
    """Write notes at the foot of a page."""
    text = "\n".join(textwrap.fill(note, 130) for note in notes)
    figure.supxlabel(text, x=0.01, ha="left", fontsize=9.5, color=GREY)


class _TimeLocator(MaxNLocator):
    """Round ticks in a unit other than the second in which the data are."""

    def __init__(self, unit: float) -> None:
        super().__init__(nbins=8, steps=[1, 2, 2.5, 5, 10])
        self._unit = unit

    def tick_values(self, vmin: float, vmax: float) -> Any:
        """Return the tick places between two limits in seconds."""
        return np.asarray(super().tick_values(vmin / self._unit, vmax / self._unit)) * self._unit


def time_axis(ax: Axes, span: tuple[float, float]) -> None:
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
    for (name, unit), (_, above) in pairwise(TIME_UNITS):
        if span < (above if unit < 1 else 3 * above):
            return name, unit
    return TIME_UNITS[-1]


def count_axis(ax: Axes, integer: bool = False, top: float = 0.0) -> None:
    """Start the y axis at zero and write its numbers as 12k, 1.5M."""
    limit = max(top, *(top_of(np.asarray(line.get_ydata(), dtype=float)) for line in ax.lines), *band_tops(ax), 1.0)
    ax.set_ylim(0, limit * 1.06)
    ax.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10], integer=integer))
    ax.yaxis.set_major_formatter(EngFormatter(sep=""))


def band_tops(ax: Axes) -> list[float]:
    """Return the highest point of every filled band."""
    corners = [np.asarray(path.vertices, dtype=float) for band in ax.collections for path in band.get_paths()[:1]]
    return [top_of(part[:, 1]) for part in corners if len(part)]


def log_counts(ax: Axes, top: float) -> None:
    """Make the y axis logarithmic above ten, for a queue that dwarfs what runs."""
    ax.set_yscale("symlog", linthresh=10)
    decades = range(1, math.ceil(math.log10(max(top, 10))) + 1)
    ax.set_ylim(0, top * 1.6)
    ax.set_yticks([0, *(10.0**decade for decade in decades if 10.0**decade <= top * 1.6)])
    ax.yaxis.set_major_formatter(EngFormatter(sep=""))
    ax.set_ylabel("requests (log above 10)")
