"""Comparisons and baselines as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simkv.comparison.view import Grid, changed_grid, failure_lines, figure_grid, sections, title_of
from simkv.report.text import bullets, table

__all__ = ["baseline_report", "comparison_report", "grid_table", "saved_report", "sweeps_report"]


def comparison_report(comparison: Any, paths: Sequence[str] = (), *, only_changed: bool = False) -> RenderableType:
    """Everything that two runs say about one another.

    Parameters
    ----------
    comparison : Comparison
    paths : sequence of str
        Files that were written.
    only_changed : bool
        Leave out the figures that are the same.
    """
    c = comparison
    inputs, plan, pools, events = sections(c)
    figures = changed_grid(c) if only_changed else figure_grid(c, c.table, f"all {len(c.table)} figures")
    parts: list[RenderableType] = [_head(c, title_of(c))]
    parts += [grid_table(inputs), grid_table(plan), grid_table(pools), grid_table(events)]
    parts += [grid_table(figures), bullets("written", paths)]
    return Group(*parts)


def sweeps_report(comparison: Any, paths: Sequence[str] = (), *, only_changed: bool = False) -> RenderableType:
    """Everything that two sweeps say about one another."""
    from simkv.comparison.view import sweep_sections

    parts: list[RenderableType] = [_head(comparison, f"{comparison.a.label} against {comparison.b.label}")]
    parts += [grid_table(grid) for grid in sweep_sections(comparison, only_changed=only_changed)]
    parts.append(bullets("written", paths))
    return Group(*parts)


def _head(c: Any, title: str) -> Text:
    """Warnings first, then the verdict and the sentences."""
    text = Text()
    for line in c.warnings:
        text.append(f"{line}\n", style="bold yellow")
    text.append(f"{title}\n", style="bold")
    text.append(f"{c.verdict}\n", style="bold red" if c.failures else "bold")
    for line in failure_lines(c.failures):
        text.append(f"- {line}\n", style="red")
    text.append("\n")
    for line in c.paragraph:
        text.append(f"{line}\n")
    return text


def grid_table(grid: Grid) -> RenderableType:
    """A table of text; a line where it has no rows."""
    if not grid.rows:
        return Text(f"{grid.title}: {grid.empty}\n") if grid.empty else Text("")
    made: Table = table(grid.title, grid.heads, grid.rows, left=grid.left)
    for column in made.columns:
        # Dotted names are to be found with a search, and read at a glance.
        column.no_wrap = column.header in ("figure", "key")
    if not grid.note:
        return made
    return Group(made, Text(f"{grid.note}\n", style="dim"))


def saved_report(directory: Any, files: Sequence[str]) -> RenderableType:
    """What a baseline was saved as."""
    return bullets(f"saved in {directory}", files)


def baseline_report(found: Any, paths: Sequence[str] = ()) -> RenderableType:
    """What a check of a baseline found: every scenario in a line, and what drifted."""
    parts: list[RenderableType] = [Text(f"{found.verdict}\n", style="bold red" if found.drifted else "bold")]
    for name, one in found.drifted.items():
        parts.append(Text(name, style="bold"))
        parts.extend(Text(line, style="bold yellow") for line in one.warnings)
        parts.extend(Text(f"- {line}") for line in one.broken)
        rows = one.table[[within is False for within in one.table["within"]]]
        parts.append(grid_table(figure_grid(one, rows, f"beyond tolerance: {len(rows)} of {len(one.table)} figures")))
    parts.append(bullets("written", paths))
    return Group(*parts)
