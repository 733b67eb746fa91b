"""A simulated curve and the measured one on the same axes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from simkv.plotting.frame import count_axis, framed, say_state
from simkv.plotting.style import INK, POOL_COLORS, Floats
from simkv.plotting.texts import top_of, wrapped

__all__ = ["OVERLAYS", "overlay"]


class _Overlay(NamedTuple):
    """What one kind of figure draws: series by label and colour, its y axis, and whether that is a share of a pool."""

    series: Mapping[str, tuple[str, str]]
    ylabel: str
    share: bool = False


OVERLAYS: Mapping[str, _Overlay] = MappingProxyType(
    {
        "usage": _Overlay(
            {
                "full_token_usage": ("full pool", POOL_COLORS["full"]),
                "swa_token_usage": ("SWA pool", POOL_COLORS["swa"]),
            },
            "usage (% of pool)",
            share=True,
        ),
        "running": _Overlay({"num_running_reqs": ("running", POOL_COLORS["full"])}, "requests"),
        "queue": _Overlay({"num_queue_reqs": ("waiting", POOL_COLORS["swa"])}, "requests"),
        "throughput": _Overlay({"gen_throughput": ("generated", POOL_COLORS["full"])}, "tokens/s"),
        "accept-length": _Overlay(
            {"spec_accept_length": ("accepted", POOL_COLORS["full"])}, "tokens a verify step, bonus included"
        ),
    }
)
"""Kinds of overlay and the series in each."""


def overlay(points: pd.DataFrame, kind: str = "usage", ax: Axes | None = None, title: str | None = None) -> Axes:
    """Measured values as marks, simulated ones at the same times as a line.

    Parameters
    ----------
    points : DataFrame
        ``time_s``, and ``measured_<series>`` and ``simulated_<series>`` of each series; NaN where there is none.
    kind : str
        A key of :data:`OVERLAYS`.
    ax : Axes, optional
        Where to draw; a new figure otherwise.
    title : str, optional
        Title of the panel.
    """
    chosen = OVERLAYS[kind]
    time = points["time_s"].to_numpy(float)
    span = (0.0, float(time.max())) if len(time) else (float("nan"), float("nan"))

    def body(axes: Axes) -> str:
        axes.set_ylabel(chosen.ylabel)
        there = [name for name in chosen.series if f"measured_{name}" in points]
        if not there:
            say_state(axes, f"the log tells no {kind.replace('-', ' ')}")
            return ""
        top = 0.0
        for name in there:
            label, color = chosen.series[name]
            scale = 100.0 if chosen.share else 1.0
            simulated, measured = (points[f"{one}_{name}"].to_numpy(float) * scale for one in ("simulated", "measured"))
            axes.plot(time, simulated, color=color, linewidth=1.8, label=wrapped(f"{label}, simulated"))
            axes.add_line(_marks(time, measured, color, wrapped(f"{label}, measured")))
            top = max(top, top_of(simulated), top_of(measured))
        if chosen.share:
            axes.axhline(100, color=INK, linewidth=1.1, linestyle=(0, (2, 2)), label="100 %", zorder=1.5)
            axes.set_ylim(0, max(100.0, top) * 1.06)
        else:
            count_axis(axes, top=top)
        return f"{len(time):,} log lines; time since the first batch"

    return framed(ax, f"measured and simulated: {kind}" if title is None else title, span, body)


def _marks(time: Floats, values: Floats, color: str, label: str) -> Line2D:
    """Hollow marks, thinned where they would touch: at most 120."""
    every = max(1, len(time) // 120)
    return Line2D(
        time,
        values,
        linestyle="none",
        marker="o",
        markersize=4.5,
        markerfacecolor="white",
        markeredgecolor=color,
        markeredgewidth=1.2,
        markevery=every,
        label=label,
        zorder=3,
        clip_on=False,
    )
