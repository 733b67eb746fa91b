"""Plain CSV and JSONL with named columns, which is also the form simkv exports without loss."""

from __future__ import annotations

import re
from typing import ClassVar

import numpy as np

from simkv.workload.formats.base import Ask, Columns
from simkv.workload.formats.blocks import ListedBlocks
from simkv.workload.formats.cells import UNITS, Times, counts, ids, int_lists, labels, missing, times
from simkv.workload.formats.contents import ANSWER, LENGTHS, STARTS, read_contents
from simkv.workload.formats.public import check_output_ids, lengths
from simkv.workload.formats.table import Complaints, Table
from simkv.workload.request import IntArray

__all__ = ["Csv", "Jsonl"]

_STEMS = ("arrival", "arrived", "timestamp", "time", "send", "sent", "start")
_TIME = re.compile(rf"({'|'.join(_STEMS)})(?:_time)?(?:_at)?(?:_({'|'.join(UNITS)}))?", re.IGNORECASE)
_SESSION = ("session", "session_id")
_NAME = ("request_id", "id")
_BLOCKS = ("block_ids", "hash_ids")
_OTHERS = (
    *("input_tokens", "output_tokens", "output_token_ids", "max_new_tokens", "accept"),
    *("block_size", "ignore_eos", "concurrency", "previous", "think_ns", STARTS, LENGTHS, ANSWER),
)


class _Plain:
    """Columns named as in the module's table; times as ``arrival_s``, ``arrival_ms``, ``timestamp`` ..."""

    required: ClassVar[tuple[tuple[str, ...], ...]] = (("input_tokens", "output_tokens"),)

    def read(self, table: Table, ask: Ask, complaints: Complaints) -> Columns:
        """Columns of the table."""
        columns = lengths(table, "input_tokens", "output_tokens", complaints)
        stamps = sorted(filter(_TIME.fullmatch, table.columns), key=_by_stem)
        columns.times = _arrivals(table, stamps, ask, columns.notes, complaints)
        name, session, blocks = (_first(table, names) for names in (_NAME, _SESSION, _BLOCKS))
        if name:
            columns.names = ids(table, name, complaints)
        if session:
            columns.sessions = labels(table, session, complaints)
        columns.max_new_tokens = _max_new(table, columns.output_tokens, complaints)
        columns.accept = _accept(table, complaints)
        check_output_ids(table, columns, "output_tokens", complaints)
        size = _constant(table, "block_size", complaints)
        if blocks:
            listed = ListedBlocks.of(int_lists(table, blocks, complaints), size=size, open_end=size is not None)
            columns.blocks = listed if size is not None or len(listed.ids) else None
        columns.contents = read_contents(table, complaints)
        if columns.contents is not None and columns.blocks is not None:
            raise complaints.fail(f"is given beside {blocks}; keep one of the two", STARTS)
        columns.previous = ids(table, "previous", complaints) if "previous" in table.columns else None
        columns.ignore_eos = bool(_constant(table, "ignore_eos", complaints))
        columns.concurrency = _constant(table, "concurrency", complaints)
        columns.think_ns = counts(table, "think_ns", complaints) if "think_ns" in table.columns else None
        unused = sorted(set(table.columns) - {*_OTHERS, *stamps, name, session, blocks})
        if unused:
            columns.notes.append(f"columns not used: {', '.join(unused)}")
        return columns


class Csv(_Plain):
    """Plain CSV; lists as numbers with spaces between."""

    name: ClassVar[str] = "csv"
    container: ClassVar[str | None] = "csv"


class Jsonl(_Plain):
    """Plain JSONL."""

    name: ClassVar[str] = "jsonl"
    container: ClassVar[str | None] = "jsonl"


def _first(table: Table, names: tuple[str, ...]) -> str:
    return next((name for name in names if name in table.columns), "")


def _by_stem(column: str) -> int:
    return next(i for i, stem in enumerate(_STEMS) if column.lower().startswith(stem))


def _unit(column: str, ask: Ask, complaints: Complaints) -> tuple[str | None, str]:
    """Unit of a time column and how it was decided: the column's name says it, or the caller."""
    match = _TIME.fullmatch(column)
    named = match.group(2) if match else None
    if named is None:
        return ask.time_unit, "as stated"
    named = named.lower()
    if ask.time_unit not in (None, named):
        raise complaints.fail(f"{ask.time_unit} is stated, but the column is named {column}", "time_unit")
    return named, f"column {column}"


def _arrivals(table: Table, stamps: list[str], ask: Ask, notes: list[str], complaints: Complaints) -> Times | None:
    """Times of the first time column that has any; the others are compared with it."""
    used = [column for column in stamps if not all(map(missing, table.columns[column]))]
    if not used:
        return None
    unit, why = _unit(used[0], ask, complaints)
    own = times(table, used[0], complaints, unit=unit, why=why, from_start=used[0] == "arrival_ns")
    for other in used[1:]:
        unit, _ = _unit(other, Ask(), complaints)
        aside = Complaints(table.source)
        aside.lines = table.lines
        second = times(table, other, aside, unit=unit or ask.time_unit or "s", why="")
        if own is None or second is None or aside.bad_rows or complaints.bad_rows:
            continue
        apart = int(second.ns.min()) - int(own.ns.min())
        if abs(apart) > int(own.ns.max()) - int(own.ns.min()):
            notes.append(
                f"{other} begins {apart / 1e9:g} s from {used[0]}, more than the span of the trace: "
                f"rebased onto it; arrivals are those of {used[0]}"
            )
    return own


def _max_new(table: Table, output_tokens: IntArray, complaints: Complaints) -> IntArray | None:
    cells = table.columns.get("max_new_tokens")
    if cells is None or all(map(missing, cells)):
        return None
    filled = [str(length) if missing(cell) else cell for cell, length in zip(cells, output_tokens, strict=True)]
    limit = counts(
        Table(table.source, table.container, {"max_new_tokens": filled}, table.lines), "max_new_tokens", complaints
    )
    for row in np.flatnonzero(limit < output_tokens):
        if int(row) not in complaints.bad_rows:
            complaints.row(int(row), f"output_tokens is {output_tokens[row]}, above max_new_tokens {limit[row]}")
    return limit


def _accept(table: Table, complaints: Complaints) -> list[list[int]] | None:
    if "accept" not in table.columns:
        return None
    accept = int_lists(table, "accept", complaints)
    for row, steps in enumerate(accept):
        if steps and min(steps) < 1:
            complaints.row(row, f"accept holds {min(steps)}; a verify step yields 1 token at least")
    return accept


def _constant(table: Table, column: str, complaints: Complaints) -> int | None:
    """The one value of a column that must not change; None without it."""
    cells = table.columns.get(column)
    if cells is None or all(map(missing, cells)):
        return None
    values = set(map(str, cells))
    words = {"true": 1, "false": 0}
    word = next(iter(values)).strip().lower()
    if len(values) > 1 or not (word.isdigit() or word in words) or (column != "ignore_eos" and word == "0"):
        raise complaints.fail(f"must be one number in every row; found {', '.join(sorted(values)[:3])}", column)
    return words[word] if word in words else int(word)
