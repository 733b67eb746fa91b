"""A sweep as text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from simkv.document import holds
from simkv.report.text import bullets, table

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["shown_figures", "sweep_report"]

ROWS = 40
WIDTH = 13
BEST = 5
FIGURES = 5
# What a person asks first; of those that differ, the first few are shown.
_FIRST = (
    "output_tokens_per_s",
    "requests.completed",
    "requests.refused",
    "requests.aborted",
    "requests.retractions",
    "ttft_s.p99",
    "tpot_s.p99",
    "cache_hit_rate",
    "full_token_usage.p99",
    "swa_token_usage.p99",
    "limit.binding",
)


def sweep_report(sweep: Any, paths: Sequence[str] = (), show: Sequence[str] = ()) -> RenderableType:
    """What was varied, what came of it, what failed and why.

    Parameters
    ----------
    sweep : Sweep
    paths : sequence of str
        What was written.
    show : sequence of str
        Figures of the table; default: those that differ.
    """
    frame = sweep.frame
    axes = list(frame.columns[: list(frame.columns).index("state")])
    figures = list(show) or shown_figures(sweep)
    parts: list[RenderableType] = [_head(sweep), _points(frame, axes, figures)]
    if frame["checks_hold"].notna().any():
        parts.append(_best(frame, axes, figures, sweep.scenario.get("checks", {})))
    parts.append(_failures(frame, axes))
    if paths:
        parts.append(bullets("written", paths))
    return Group(*parts)


def shown_figures(sweep: Any) -> list[str]:
    """Figures worth a column: those of checks, then those that differ, by what a person asks first, then by how much."""
    frame = sweep.frame
    ran = frame[frame["state"].isin(["ok", "check failed"])]
    checked = [name for name in sweep.scenario.get("checks", {}) if name in sweep.figures]
    differing = [name for name in sweep.figures if ran[name].nunique(dropna=False) > 1]
    first = [name for name in _FIRST if name in differing]
    rest = sorted((name for name in differing if name not in first), key=lambda name: (-_spread(ran[name]), name))
    return list(dict.fromkeys([*checked, *first, *rest]))[: max(FIGURES, len(checked))]


def _spread(column: pd.Series[Any]) -> float:
    """How far values lie apart, against their size."""
    if column.dtype.kind not in "if":
        return 0.0
    low, high = float(column.min()), float(column.max())
    size = max(abs(low), abs(high))
    return (high - low) / size if size and np.isfinite(size) else 0.0


def _head(sweep: Any) -> Text:
    text = Text(f"{sweep.name}: ", style="bold")
    states = ", ".join(f"{count:,} {state}" for state, count in sweep.states.items())
    count = len(sweep.frame)
    text.append(f"{count:,} point{'s' if count != 1 else ''}: {states}\n", style="not bold")
    for name, values in sweep.axes.items():
        told = [_typed(value) for value in values]
        some = told if len(told) <= 12 else [*told[:6], "...", *told[-2:]]
        text.append(
            f"  {name}: {'; '.join(some)}" + (f" ({len(told)})\n" if len(told) > 12 else "\n"), style="not bold"
        )
    return text


def _points(frame: pd.DataFrame, axes: Sequence[str], figures: Sequence[str]) -> RenderableType:
    """A row a point, the mean over seeds where there are several."""
    rows, note = _rows(frame, axes, figures)
    title = "points" + (", means over seed" if note else "")
    shown = rows[:ROWS]
    made = table(title, _heads([*(one for one in axes if not note or one != "seed"), "state", *figures]), shown, left=0)
    if len(rows) > ROWS:
        return Group(made, Text(f"  {len(rows) - ROWS:,} more rows: --json, or points.parquet\n"))
    return made


def _heads(names: Sequence[str]) -> list[str]:
    """Names broken behind dots and underscores, so that they are no wider than figures are."""
    heads = []
    for name in names:
        lines = [""]
        for part in re.findall(r"[^._]*[._]|[^._]+", name):
            if lines[-1] and (lines[-1].endswith(".") or len(lines[-1]) + len(part) > WIDTH):
                lines.append("")
            lines[-1] += part
        heads.append("\n".join(lines))
    return heads


def _rows(frame: pd.DataFrame, axes: Sequence[str], figures: Sequence[str]) -> tuple[list[list[str]], bool]:
    if "seed" not in axes or len(axes) == 1 or frame["seed"].nunique() == 1:
        return [_row(row, axes, ["state", *figures]) for _, row in frame.iterrows()], False
    keys = [name for name in axes if name != "seed"]
    rows = []
    for values, group in frame.groupby(keys, sort=False, dropna=False, observed=True):
        states = group["state"].value_counts(sort=False)
        state = str(states.index[0]) if len(states) == 1 else ", ".join(f"{n} {name}" for name, n in states.items())
        rows.append([*(_typed(value) for value in values), state, *(_mean(group[name]) for name in figures)])
    return rows, True


def _mean(column: pd.Series[Any]) -> str:
    """The mean of numbers, or the words that come up."""
    if column.dtype.kind in "if":
        return _cell(float(column.mean()))
    return "/".join(sorted({str(value) for value in column.dropna()})) or "-"


def _best(
    frame: pd.DataFrame, axes: Sequence[str], figures: Sequence[str], checks: Mapping[str, str]
) -> RenderableType:
    """Points at which every check holds, those first that put out most."""
    held = frame[frame["checks_hold"].fillna(False).astype(bool)]
    if held.empty:
        ran = frame[frame["checks_hold"].notna()]
        told = []
        for key, condition in checks.items():
            missed = sum(not holds(condition, value) for value in ran[key].tolist()) if key in ran else len(ran)
            if missed:
                told.append(f"{key} {condition} fails at {missed:,} of {len(ran):,}")
        return bullets("no point passes every check", told) if told else Text("no point passes every check\n")
    ranked = held.sort_values("output_tokens_per_s", ascending=False, kind="stable").head(BEST)
    shown = list(dict.fromkeys(["output_tokens_per_s", *figures]))
    rows = [_row(row, axes, shown) for _, row in ranked.iterrows()]
    title = f"every check holds at {len(held):,} of {len(frame):,} points; most output_tokens_per_s first"
    return table(title, _heads([*axes, *shown]), rows, left=0)


def _failures(frame: pd.DataFrame, axes: Sequence[str]) -> RenderableType:
    """Points that failed, together where they failed alike."""
    failed = frame[frame["error"] != ""]
    lines = []
    # Alike but for the figures of each point.
    kinds = failed["error"].str.replace(r"\d[\d,.]*", "#", regex=True)
    for (state, _), group in failed.groupby(["state", kinds], sort=False, observed=True):
        error = group["error"].iloc[0]
        first = ", ".join(f"{name} = {_typed(group.iloc[0][name])}" for name in axes)
        count = f"{len(group):,} points, first at" if len(group) > 1 else "at"
        lines.append(f"{state}, {count} {first}:\n  " + str(error).replace("\n", "\n  "))
    return bullets("failed", lines)


def _row(row: pd.Series[Any], axes: Sequence[str], figures: Sequence[str]) -> list[str]:
    return [*(_typed(row[name]) for name in axes), *(_cell(row[name]) for name in figures)]


def _typed(value: Any) -> str:
    """A value of an axis as a person would type it."""
    if _is_missing(value):
        return "default"
    if isinstance(value, (list, dict)):
        return json.dumps(value)
    return f"{value:.12g}" if isinstance(value, (float, np.floating)) else str(value)


def _cell(value: Any) -> str:
    """A value in a table."""
    if _is_missing(value):
        return "-"
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value)).lower()
    if isinstance(value, (int, np.integer)):
        return f"{value:,}"
    return f"{value:,.6g}" if isinstance(value, (float, np.floating)) else str(value)


def _is_missing(value: Any) -> bool:
    """Whether a cell of a frame holds nothing."""
    import pandas as pd

    return not isinstance(value, (list, dict)) and bool(pd.isna(value))
