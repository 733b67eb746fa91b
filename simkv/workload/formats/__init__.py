"""Trace formats by name, and which of them a file is."""

from __future__ import annotations

from collections.abc import Mapping

from simkv.errors import Problem, TraceError, nearest
from simkv.workload.formats.base import TraceFormat
from simkv.workload.formats.plain import Csv, Jsonl
from simkv.workload.formats.public import Azure, Bailian, BurstGPT, Mooncake, TraceLab, Vidur
from simkv.workload.formats.table import Complaints, Table
from simkv.workload.formats.weka import Weka

__all__ = ["FORMATS", "choose"]

FORMATS: Mapping[str, type[TraceFormat]] = {
    kind.name: kind for kind in (Weka, TraceLab, Bailian, BurstGPT, Azure, Vidur, Mooncake, Csv, Jsonl)
}
"""Formats by name, the more particular before the more general: a file is the first whose columns it has."""


def choose(table: Table, name: str | None, complaints: Complaints) -> TraceFormat:
    """Format of a table: the one named, or the first whose columns are all there.

    Raises
    ------
    TraceError
        For an unknown name, or columns that fit no format; it lists what the nearest formats lack.
    """
    if name is None:
        for kind in FORMATS.values():
            if kind.container in (None, table.container) and not _lacking(kind, table):
                return kind()
        raise complaints.fail(f"fits no trace format: {_nearest_formats(table)}")
    if name not in FORMATS:
        known = ", ".join(FORMATS)
        raise TraceError(table.source, [Problem("format", f"{name} is not one of {known}{nearest(name, FORMATS)}")])
    kind = FORMATS[name]
    if kind.container not in (None, table.container):
        raise complaints.fail(f"{name} is stated, the file is {table.container}", "format")
    lacking = _lacking(kind, table)
    if lacking:
        raise complaints.fail(f"{name} lacks column {', '.join(lacking)} (found {', '.join(table.columns)})")
    return kind()


def _lacking(kind: type[TraceFormat], table: Table) -> list[str]:
    """Columns the format misses, in the alternative it comes nearest to."""
    return [name for name in _nearest(kind, table) if name not in table.columns]


def _nearest(kind: type[TraceFormat], table: Table) -> tuple[str, ...]:
    return max(kind.required, key=lambda names: _share(names, table))


def _share(names: tuple[str, ...], table: Table) -> float:
    return sum(name in table.columns for name in names) / len(names)


def _nearest_formats(table: Table) -> str:
    """What the nearest formats lack, nearest first."""
    lacking = {
        name: _lacking(kind, table) for name, kind in FORMATS.items() if kind.container in (None, table.container)
    }
    partly = {name: lack for name, lack in lacking.items() if _overlap(FORMATS[name], table)}
    plain = {name: lack for name, lack in lacking.items() if name == table.container}
    ranked = sorted((partly or plain).items(), key=lambda item: (-_overlap(FORMATS[item[0]], table), len(item[1])))
    told = "; ".join(
        f"{name} lacks {', '.join(column + nearest(column, table.columns) for column in lack)}"
        for name, lack in ranked[:3]
    )
    return f"{told} (found {', '.join(table.columns)})"


def _overlap(kind: type[TraceFormat], table: Table) -> float:
    """Share of a format's columns that are there."""
    return _share(_nearest(kind, table), table)
