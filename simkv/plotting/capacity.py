"""The curve of a capacity study: checked figures against the knob, what holds, what fails, and the answer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, ScalarFormatter
from matplotlib.transforms import blended_transform_factory

from simkv.plotting.frame import new_figure, panel
from simkv.plotting.style import GREY, INK, PALE, STYLE
from simkv.plotting.sweeps import figure_label

__all__ = ["curve"]

HOLDS, FAILS = "#0072B2", "#D55E00"
# Panels of one page; further checks are told in the title's note.
PANELS = 4


def curve(
    frame: pd.DataFrame,
    knob: str,
    checks: Mapping[str, str],
    *,
    value: float | None = None,
    title: str | None = None,
) -> Figure:
    """Every checked figure against the knob.

    Parameters
    ----------
    frame : DataFrame
        One row a value and seed: ``value``, ``seed``, ``holds``, and figures, NaN where nothing ran.
    knob : str
        Dotted key on the x axis.
    checks : mapping
        Figure -> condition, drawn as a line at its number.
    value : float, optional
        The answer, drawn as a vertical line.
    title : str, optional
        Heading of the page.

    Returns
    -------
    Figure
    """
    shown = [name for name in checks if name in frame.columns][:PANELS]
    with rc_context(STYLE):
        figure = new_figure((9.5, 0.9 + 2.5 * max(1, len(shown))))
        axes = np.atleast_1d(figure.subplots(max(1, len(shown)), 1, sharex=True))
        for ax, name in zip(axes, shown or [""], strict=True):
            body = partial(_draw, frame=frame, name=name, checks=checks, value=value)
            panel(ax, f"{name} {checks.get(name, '')}", body)
        _knob_axis(axes[-1], frame, knob)
        figure.align_ylabels(axes)
        figure.suptitle(title or f"capacity: {knob}", x=0.01, ha="left")
    return figure


def _draw(ax: Axes, frame: pd.DataFrame, name: str, checks: Mapping[str, str], value: float | None) -> str:
    if not name:
        ax.text(0.5, 0.5, "nothing ran", transform=ax.transAxes, ha="center", va="center", color=GREY)
        return ""
    numbers = pd.to_numeric(frame[name], errors="coerce")
    ran = frame.assign(figure=numbers)[numbers.notna()]
    mean = ran.groupby("value", sort=True)["figure"].mean()
    ax.plot(mean.index.to_numpy(), mean.to_numpy(), color=PALE, linewidth=1.2, label="mean over seeds", zorder=2)
    for holds, color, marker, label in ((True, HOLDS, "o", "all checks hold"), (False, FAILS, "X", "a check fails")):
        some = ran[ran["holds"] == holds]
        if len(some):
            ax.scatter(some["value"], some["figure"], s=34, color=color, marker=marker, label=label, zorder=3)
    dead = frame[numbers.isna()]
    if len(dead):
        at_foot = blended_transform_factory(ax.transData, ax.transAxes)
        feet = np.zeros(len(dead)) + 0.03
        style: Any = {"s": 40, "marker": "s", "facecolors": "none", "edgecolors": FAILS}
        ax.scatter(dead["value"], feet, transform=at_foot, label="would not start, or breaks", zorder=3, **style)
    limit = float(checks[name].lstrip("=!<> "))
    ax.axhline(limit, color=INK, linewidth=1.0, linestyle=(0, (5, 2)), label=f"wanted: {checks[name]}", zorder=1)
    if value is not None:
        ax.axvline(value, color=HOLDS, linewidth=1.0, linestyle=(0, (1, 1)), label=f"answer: {value:g}", zorder=1)
    ax.set_ylabel(figure_label(name).replace(" (", "\n("))
    ax.yaxis.set_major_locator(MaxNLocator(nbins=5))
    ax.margins(y=0.12)
    if len(ran) and ran["figure"].min() >= 0 <= limit:
        # Nothing is less than none.
        top = max(float(ran["figure"].max()), limit)
        ax.set_ylim(-0.06 * (top or 1.0), 1.12 * (top or 1.0))
    return ""


def _knob_axis(ax: Axes, frame: pd.DataFrame, knob: str) -> None:
    low, high = float(frame["value"].min()), float(frame["value"].max())
    if low > 0 and high / low >= 8:
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
        ax.xaxis.set_major_formatter(ScalarFormatter())
        ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel(knob)
