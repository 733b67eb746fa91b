"""A trace as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType

from simkv.report.text import bullets, table, value_text

__all__ = ["trace_report"]


def trace_report(facts: Mapping[str, Any]) -> RenderableType:
    """Figures of a trace, one a line."""
    rows = [(key, value_text(value)) for key, value in facts.items() if not isinstance(value, (list, tuple))]
    notes = [str(line) for value in facts.values() if isinstance(value, (list, tuple)) for line in value]
    return Group(table("trace", ("figure", "value"), rows), bullets("notes", notes))
