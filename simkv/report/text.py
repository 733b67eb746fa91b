"""How reports look: figures in words, plain tables, a console."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from simkv.wording import count_text, percent, seconds, size, value_text

__all__ = ["console", "bullets", "count_text", "percent", "seconds", "size", "table", "value_text"]


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


def console(*, stderr: bool = False) -> Console:
    """A console that is wide enough for tables in a pipe, and plain there."""
    made = Console(stderr=stderr, highlight=False, soft_wrap=False, markup=False)
    if not made.is_terminal:
        made = Console(stderr=stderr, highlight=False, width=120, no_color=True, markup=False)
    return made
