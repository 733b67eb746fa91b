"""A capacity study as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from simkv.report.text import bullets, table, value_text

__all__ = ["capacity_report"]

# Rows of the table: those nearest to the answer.
_ROWS = 15


def capacity_report(found: Any, paths: Sequence[str] = ()) -> RenderableType:
    """The answer in words, and the values tried (:class:`simkv.studies.capacity.Capacity`)."""
    text = Text(f"{found.name}: {found.knob}\n", style="bold")
    for number, line in enumerate(found.words):
        text.append(f"  {line}\n", style="bold green" if number == 0 and found.value is not None else "not bold")
    parts: list[RenderableType] = [text, _tried(found)]
    if paths:
        parts.append(bullets("written", paths))
    return Group(*parts)


def _tried(found: Any) -> RenderableType:
    frame = found.frame
    aim = found.value if found.value is not None else frame["value"].iloc[0]
    near = (frame["value"] - aim).abs().sort_values(kind="stable").index[:_ROWS]
    rows = []
    figures = [key for key in found.checks if key in frame.columns]
    for _, row in frame.loc[sorted(near)].iterrows():
        told = "holds" if row["holds"] else "FAILS" if row["state"] == "check failed" else row["state"]
        cells = (value_text(row[key]) for key in figures)
        rows.append((value_text(row["value"]), str(row["seed"]), told, *cells))
    title = "values tried" if len(frame) <= _ROWS else f"values tried, the {_ROWS} nearest of {len(frame)}"
    return table(title, (found.knob, "seed", "", *figures), rows, left=0)
