"""Weka coding-agent sessions: a CSV of requests, or JSONL of whole sessions with their sub-agents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import ClassVar

import numpy as np

from simkv.workload.formats.base import Ask, Columns
from simkv.workload.formats.blocks import ChainedBlocks, ListedBlocks
from simkv.workload.formats.cells import Times, counts, ids, int_lists, missing, times, to_ns
from simkv.workload.formats.public import lengths
from simkv.workload.formats.table import Complaints, Table
from simkv.workload.request import IntArray

__all__ = ["Weka"]

_BLOCK = 64
_MAIN = "main"


class Weka:
    """Sessions of coding agents, each on a clock of its own, prompts cumulative, 64 tokens a block.

    Sessions start together at 0, or evenly spaced when a rate (sessions a second) is asked for. An agent's requests
    are one session, a sub-agent's another. Block ids belong to their session, and a last partial block has none.
    A sub-agent counts from its own start: in the JSONL, its end (``t``) less ``duration_ms``; in the CSV, which does
    not say, the end of the main request in the row above.
    """

    name: ClassVar[str] = "weka"
    container: ClassVar[str | None] = None
    required: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("trace_id", "agent", "req_idx", "t_s", "input_tokens", "output_tokens", "n_blocks", "shared_prefix_blocks"),
        ("id", "requests", "block_size"),
    )

    def read(self, table: Table, ask: Ask, complaints: Complaints) -> Columns:
        """Columns of the table."""
        return (self._read_sessions if "requests" in table.columns else self._read_rows)(table, ask, complaints)

    def _read_rows(self, table: Table, ask: Ask, complaints: Complaints) -> Columns:
        columns = lengths(table, "input_tokens", "output_tokens", complaints)
        trace, agent = ids(table, "trace_id", complaints), ids(table, "agent", complaints)
        turn = counts(table, "req_idx", complaints)
        unit, why = ask.unit(self.name, "s")
        own = times(table, "t_s", complaints, unit=unit, why=why)
        if own is not None:
            own = _shift(own, _launches(trace, agent, own.ns, table.columns.get("api_time_s")))
        _fill(columns, own, trace, agent, turn, ask)
        order = np.lexsort((turn, _rank(agent), _rank(trace))).astype(np.int64)
        chain = list(zip(trace, agent, strict=True))
        first = np.ones(len(chain), bool)
        first[order[1:]] = [chain[here] != chain[before] for before, here in pairwise(order.tolist())]
        columns.blocks = ChainedBlocks(
            counts(table, "n_blocks", complaints),
            counts(table, "shared_prefix_blocks", complaints),
            order,
            first,
            _BLOCK,
        )
        if any(name != _MAIN for name in agent):
            columns.notes.append("sub-agents start where the main request above them in the file ends")
        return columns

    def _read_sessions(self, table: Table, ask: Ask, complaints: Complaints) -> Columns:
        unit, why = ask.unit(self.name, "s")
        flat, starts = _flatten(table, complaints, unit)
        columns = lengths(flat, "in", "out", complaints)
        trace, agent = ids(flat, "trace", complaints), ids(flat, "agent", complaints)
        own = times(flat, "t", complaints, unit=unit, why=why)
        if own is not None:
            own = _shift(own, starts)
        _fill(columns, own, trace, agent, counts(flat, "turn", complaints), ask)
        listed = ListedBlocks.of(int_lists(flat, "hash_ids", complaints))
        sizes = set(counts(flat, "block_size", complaints, least=1).tolist()) - {0}
        if len(sizes) > 1:
            raise complaints.fail(f"sessions have different block sizes: {sorted(sizes)}", "block_size")
        if len(listed.ids):
            spread = _spread(listed, trace)
            columns.blocks = ListedBlocks(spread, listed.offsets, size=sizes.pop() if sizes else None)
        return columns


def _fill(columns: Columns, own: Times | None, trace: list[str], agent: list[str], turn: IntArray, ask: Ask) -> None:
    """Names, sessions and starts, which both forms have alike."""
    columns.names = [f"{t}/{a}/{k}" for t, a, k in zip(trace, agent, turn.tolist(), strict=True)]
    columns.sessions = list(zip(trace, agent, strict=True))
    columns.times = own
    if own is None:
        return
    sessions = len(set(trace))
    if ask.rate is None:
        columns.notes.append(f"each session has a clock of its own: all {sessions} start at t=0")
    else:
        columns.times = _shift(own, np.rint(_rank(trace) * (1e9 / ask.rate)).astype(np.int64))
        columns.paced = True
        columns.notes.append(f"each session has a clock of its own: {sessions} start evenly at {ask.rate:g} a second")


def _shift(own: Times, by: IntArray) -> Times:
    return Times(own.ns + by, own.unit, own.wall, from_start=True)


def _rank(names: list[str]) -> IntArray:
    """Number of each name in sorted order."""
    return np.unique(names, return_inverse=True)[1].astype(np.int64)


def _launches(trace: list[str], agent: list[str], own: IntArray, busy: Sequence[object] | None) -> IntArray:
    """Start of each row's agent on the clock of its session."""
    starts = np.zeros(len(trace), np.int64)
    end_of: dict[str, int] = {}
    start_of: dict[tuple[str, str], int] = {}
    for row, (session, name) in enumerate(zip(trace, agent, strict=True)):
        if name == _MAIN:
            end_of[session] = int(own[row]) + (_ns_or_zero(busy[row], "s") if busy else 0)
        else:
            starts[row] = start_of.setdefault((session, name), end_of.get(session, 0))
    return starts


def _ns_or_zero(cell: object, unit: str) -> int:
    try:
        return 0 if missing(cell) else max(0, to_ns(cell, unit))
    except ValueError:
        return 0


def _flatten(table: Table, complaints: Complaints, unit: str) -> tuple[Table, IntArray]:
    """One row a request, sub-agents' included, and where each row's agent starts on the clock of its session."""
    names = ("trace", "block_size", "agent", "turn", "t", "in", "out", "hash_ids")
    cells: dict[str, list[object]] = {name: [] for name in names}
    lines: list[int] = []
    starts: list[int] = []
    sessions = (table.columns[name] for name in ("id", "block_size", "requests"))
    for line, session, size, requests in zip(table.lines, *sessions, strict=True):
        if missing(session) or not isinstance(requests, list):
            complaints.line(line, "a session needs an id and a list of requests")
            continue
        for agent, turn, start, request in _walk(requests, _MAIN, 0, unit):
            values = (session, size, agent, turn, *(request.get(name) for name in names[4:]))
            for name, value in zip(names, values, strict=True):
                cells[name].append(value)
            lines.append(line)
            starts.append(start)
    complaints.lines = lines
    if not lines:
        raise complaints.fail("has no request")
    return Table(table.source, table.container, cells, lines), np.array(starts, np.int64)


def _walk(
    requests: list[object], agent: str, start: int, unit: str
) -> Iterator[tuple[str, int, int, dict[str, object]]]:
    """Agent, turn, start of the agent and request, sub-agents where they stand."""
    turn = 0
    for request in requests:
        if not isinstance(request, dict):
            yield agent, turn, start, {}
        elif request.get("type") == "subagent":
            end, duration = _ns_or_zero(request.get("t"), unit), _ns_or_zero(request.get("duration_ms"), "ms")
            inner = request.get("requests")
            begin = start + max(0, end - duration)
            yield from _walk(inner if isinstance(inner, list) else [None], str(request.get("agent_id")), begin, unit)
            continue
        else:
            yield agent, turn, start, request
        turn += 1


def _spread(listed: ListedBlocks, trace: list[str]) -> IntArray:
    """Ids made unique over sessions: those of a session follow those of the session before it by name."""
    rank = np.repeat(_rank(trace), np.diff(listed.offsets))
    sessions = int(rank.max()) + 1
    low, high = np.full(sessions, np.iinfo(np.int64).max), np.full(sessions, -1)
    np.minimum.at(low, rank, listed.ids)
    np.maximum.at(high, rank, listed.ids)
    width = np.where(high >= low, high - low + 1, 0)
    return np.asarray(listed.ids + (np.cumsum(width) - width - low)[rank], np.int64)
