"""How reports look: figures in words, plain tables, a console."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isnan
from typing import Any

import numpy as np
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

__all__ = ["console", "bullets", "count_text", "percent", "seconds", "size", "table", "value_text"]

GIB = 1 << 30


def size(count: float | None) -> str:
    """Bytes in the unit a person would use, with GiB for GPU memory."""
    if count is None:
        return "-"
    for unit, scale in (("TiB", 1 << 40), ("GiB", GIB), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(count) >= scale:
            return f"{count / scale:,.2f} {unit}"
    return f"{count:,.0f} B"


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> Table:
    """A plain table; the first ``left`` columns are text, the others right-aligned figures."""
    out = Table(
        title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False, min_width=40
    )
    for number, head in enumerate(heads):
        out.add_column(head, justify="left" if number < left else "right", overflow="fold")
    for row in rows:
        out.add_row(*row)
    return out


def bullets(title: str, lines: Iterable[str]) -> RenderableType:
    """A title and a list under it; nothing where the list is empty."""
    text = Text()
    for number, line in enumerate(lines):
        text.append(("\n" if number else "") + f"- {line}")
    return Group(Text(title, style="bold"), text, Text("")) if text else Text("")


def count_text(value: int | None) -> str:
    """A whole number with thousands marked."""
    return "-" if value is None else f"{value:,}"


def percent(value: float | None) -> str:
    """A share in percent, precise where it is nearly all."""
    if value is None or isnan(value):
        return "-"
    return f"{value:.2%}" if value < 0.9995 or value == 1 else f"{value:.4%}"


def seconds(value: float | None) -> str:
    """A duration in s, or in ms below one."""
    if value is None or isnan(value):
        return "-"
    return f"{value * 1e3:,.2f} ms" if value < 1 else f"{value:,.2f} s"


def value_text(value: Any) -> str:
    """A figure of a summary, whatever its type; a dash where there is none."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or (isinstance(value, float) and isnan(value)):
        return "-"
    return f"{value:,.6g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def console(*, stderr: bool = False) -> Console:
    """A console that is wide enough for tables in a pipe, and plain there."""
    made = Console(stderr=stderr, highlight=False, soft_wrap=False)
    if not made.is_terminal:
        made = Console(stderr=stderr, highlight=False, width=120, no_color=True)
    return made
