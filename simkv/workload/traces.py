"""Request traces: read any of the known formats into a `Workload`, write it, describe it.

Rules every format shares
-------------------------
- Requests are sorted by arrival; rows of equal arrival keep file order. A trace without ids names its requests by
  their number in that order, so a shuffled file with distinct times reads as the sorted one.
- Times are integers of nanoseconds; decimal text is never a float on the way, so the seven digits of a wall clock
  stay. A date, an epoch, or a first arrival later than the whole span is an origin: the first arrival becomes 0, and
  a note says so.
- A window (``start_s``, ``end_s``) selects arrivals in ``[start_s, end_s)`` of the trace's own time; ``start_s``
  becomes 0. Then `limit` keeps the first requests, and `rate_scale` divides the arrivals, to the nearest nanosecond.
- All problems of a file are reported at once, by line.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from simkv.errors import Problem, TraceError, nearest
from simkv.tables import TableReader
from simkv.workload.formats import FORMATS, choose
from simkv.workload.formats.base import Ask, Columns, TakeBlocks
from simkv.workload.formats.cells import UNITS, Times
from simkv.workload.formats.contents import check_contents
from simkv.workload.formats.table import Complaints, parse_table, read_text
from simkv.workload.formats.write import WRITERS, lost
from simkv.workload.request import (
    LONGEST_NS,
    IntArray,
    Workload,
    WorkloadInfo,
    previous_faults,
    taken_previous,
)
from simkv.workload.reuse import reusable_share, reusable_token_share
from simkv.workload.sessions import contents_of_sessions

__all__ = [
    "FORMATS",
    "describe",
    "fit_context",
    "load_profile",
    "option_problems",
    "read_trace",
    "reusable_share",
    "write_trace",
]

_EPOCH_FROM_NS = 946_684_800 * 10**9  # 2000-01-01: no trace counts that long from its own start


def read_trace(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    rate_scale: float = 1.0,
    limit: int | None = None,
    start_s: float | None = None,
    end_s: float | None = None,
    time_unit: str | None = None,
    columns: Mapping[str, str] | None = None,
    rate: float | None = None,
    ignore_eos: bool = False,
    turns: Literal["cumulative", "delta"] | None = None,
    block_size: int | None = None,
    bad_rows: Literal["refuse", "drop"] = "refuse",
) -> Workload:
    """Requests of a trace file.

    Parameters
    ----------
    path : path
        CSV or JSONL, gzip or not.
    format : str, optional
        A name in `FORMATS`; found out from the columns when omitted.
    rate_scale : float
        2.0 sends requests twice as fast: arrivals are divided by it and rounded to the nearest nanosecond (the
        division is exact to the nanosecond up to 104 days).
    limit : int, optional
        Keep the first so many requests, after sorting and the time window.
    start_s, end_s : float, optional
        Keep arrivals in ``[start_s, end_s)``, in seconds of the trace before `rate_scale`; `start_s` becomes 0.
    time_unit : {"s", "ms", "us", "ns"}, optional
        Unit of numeric time stamps, where the format's own is not meant or a column does not say it.
    columns : mapping, optional
        Name of a column as simkv knows it to its name in the file: ``{"input_tokens": "prompt_len"}``.
    rate : float, optional
        Requests a second, evenly spaced in file order, for a file without times; sessions a second, for sessions
        that each have a clock of their own.
    ignore_eos : bool
        Whether requests carry ``ignore_eos``.
    turns : {"cumulative", "delta"}, optional
        Whether a session's prompts are whole conversations (taken when omitted) or only what the turn adds. From
        the latter the whole prompt is rebuilt: prompt and answer of the turn before, then the addition. Stated, either
        says that a turn's prompt begins with the very tokens of the turn before and its answer, unless the file has
        block ids (or contents), which win; omitted, nothing is taken for shared that the file does not say.
    block_size : int, optional
        Tokens a block id stands for, where neither file nor format says it.
    bad_rows : {"refuse", "drop"}
        Whether a wrong row is an error, or is left out, counted and noted.

    Returns
    -------
    Workload
        Requests in arrival order.

    Raises
    ------
    TraceError
        With every problem found, by line.
    """
    path = Path(path)
    problems = option_problems(
        {
            "format": format,
            "rate_scale": rate_scale,
            "limit": limit,
            "start_s": start_s,
            "end_s": end_s,
            "time_unit": time_unit,
            "columns": columns,
            "rate": rate,
            "ignore_eos": ignore_eos,
            "turns": turns,
            "block_size": block_size,
            "bad_rows": bad_rows,
        }
    )
    if problems:
        raise TraceError(str(path), problems)
    rename = {theirs: ours for ours, theirs in (columns or {}).items()}
    table, complaints = parse_table(str(path), read_text(path), rename)
    kind = choose(table, format, complaints)
    found = kind.read(table, Ask(time_unit, rate), complaints)
    rows = len(complaints.lines)
    notes = list(found.notes)

    arrival, unit = _arrivals(found, rate, complaints, notes)
    order = np.argsort(arrival, kind="stable").astype(np.int64)
    if turns == "delta":
        _accumulate(found, order, complaints)
    elif turns is None and found.sessions is not None:
        notes.append(_assumed_turns(found))
    take = _settle_blocks(found, block_size, complaints, notes)
    if found.contents is not None:
        check_contents(found.contents, found.input_tokens, complaints)
    previous = _senders(found, order, complaints)
    if found.names is not None:
        _refuse_duplicates(found.names, complaints)
    _settle_problems(complaints, rows, bad_rows, turns, notes)

    keep = complaints.good(rows)
    out_of_order = int(np.sum(np.diff(arrival[keep]) < 0))
    place = np.empty(rows, np.int64)
    place[order] = np.arange(rows)
    order = order[np.isin(order, keep)]
    arrival = _rebased(arrival, found.times, keep, notes)
    names, sessions = _names(found.names, order), _sessions(found.sessions, order)
    chosen = _window(arrival[order], start_s, end_s)[:limit]
    if not len(chosen):
        raise complaints.fail(f"no request arrives from {start_s or 0} s until {'the end' if end_s is None else end_s}")
    picked = order[chosen]
    given, output = found.input_tokens[picked], found.output_tokens[picked]
    contents = None if found.contents is None else found.contents.take(picked)
    if turns is not None and sessions is not None and take is None and contents is None:
        contents, shorter = contents_of_sessions(sessions[chosen], given, output)
        if shorter:
            notes.append(
                f"{shorter} prompts are shorter than prompt and answer of the turn before: they share what fits"
            )
    return Workload(
        arrival_ns=_scaled(arrival[picked] - _ns(start_s), rate_scale, complaints),
        input_tokens=given,
        output_tokens=output,
        request_id=tuple(names[i] for i in chosen),
        max_new_tokens=None if found.max_new_tokens is None else found.max_new_tokens[picked],
        ignore_eos=ignore_eos or found.ignore_eos,
        accept=None if found.accept is None else tuple(np.array(found.accept[i], np.int64) for i in picked),
        blocks=None if take is None else take(picked),
        contents=contents,
        session=None if sessions is None else sessions[chosen],
        concurrency=found.concurrency,
        previous=None if previous is None else taken_previous(previous, place[picked]),
        think_ns=None if found.think_ns is None else found.think_ns[picked],
        info=WorkloadInfo(
            source=path.name,
            format=kind.name,
            time_unit=unit,
            rows=rows + complaints.unreadable,
            zero_output=int(np.sum(output == 0)),
            out_of_order=out_of_order,
            notes=tuple(notes),
        ),
    )


def write_trace(workload: Workload, path: str | os.PathLike[str], format: str) -> tuple[str, ...]:
    """Write a workload; ``csv`` and ``jsonl`` hold all of it, ``mooncake`` and ``vidur`` what their columns can.

    Parameters
    ----------
    workload : Workload
        Requests to write.
    path : path
        File to write; packed when its name ends in ``.gz``.
    format : str
        ``csv``, ``jsonl``, ``mooncake`` or ``vidur``.

    Returns
    -------
    tuple of str
        Columns of the workload that the format cannot hold.

    Raises
    ------
    TraceError
        For a format that cannot be written, or a file that cannot.
    """
    path = Path(path)
    if format not in WRITERS:
        known = ", ".join(WRITERS)
        raise _wrong(path, "format", f"{format} cannot be written, only {known}{nearest(format, WRITERS)}")
    try:
        with path.open("wb") as file:
            if path.suffix == ".gz":
                with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
                    packed.writelines(line.encode() + b"\n" for line in WRITERS[format](workload))
            else:
                file.writelines(line.encode() + b"\n" for line in WRITERS[format](workload))
    except OSError as error:
        raise _wrong(path, path.name, f"cannot be written: {error.strerror or error}") from None
    return lost(workload, format)


def describe(workload: Workload) -> dict[str, Any]:
    """Figures of a workload, by dotted name.

    Returns
    -------
    dict
        ``source``, ``format``, ``time_unit``, ``rows_read``, ``rows``, ``span_s``, ``mean_rate``, mean, p50, p90, p99
        and max of ``input_tokens`` and ``output_tokens``, ``zero_output``, ``out_of_order``, ``sessions`` (None
        without any), ``block_size`` and ``reusable_block_share`` (None without block ids), ``reusable_token_share`` (None where
        nothing is known of the tokens), ``notes``. Both shares are what a cache without bound finds again: of the
        prompts' blocks, and of their tokens, answers that are known included in what it holds.
    """
    info, blocks = workload.info, workload.blocks
    told: dict[str, Any] = {
        "source": info.source,
        "format": info.format,
        "time_unit": info.time_unit,
        "rows_read": info.rows,
        "rows": len(workload),
        "span_s": workload.span_s,
        "mean_rate": workload.mean_rate,
    }
    for name, column in (("input_tokens", workload.input_tokens), ("output_tokens", workload.output_tokens)):
        told[f"{name}.mean"] = float(column.mean()) if len(column) else 0.0
        for share in (50, 90, 99):
            told[f"{name}.p{share}"] = float(np.percentile(column, share)) if len(column) else 0.0
        told[f"{name}.max"] = int(column.max(initial=0))
    told["zero_output"] = int(np.sum(workload.output_tokens == 0))
    told["out_of_order"] = info.out_of_order
    session = workload.session
    told["sessions"] = None if session is None else len(np.unique(session[session >= 0]))
    told["block_size"] = None if blocks is None else blocks.block_size
    told["reusable_block_share"] = None if blocks is None else reusable_share(blocks)
    told["reusable_token_share"] = reusable_token_share(workload)
    told["notes"] = list(info.notes)
    return told


def load_profile(workload: Workload, window_s: float) -> NDArray[np.float64]:
    """Requests a second in each window of `window_s` seconds from t=0 on; the last window counts as a whole one.

    The requests of a chain (`Workload.previous`) count where its first one arrives.

    A slice whose windows stay far below those of the whole trace may not load any pool.
    """
    width = _ns(window_s)
    if not len(workload) or width < 1:
        return np.zeros(0)
    return np.bincount(workload.arrival_ns // width).astype(np.float64) / window_s


def fit_context(
    workload: Workload, context: int, on_oversize: Literal["refuse", "clip", "drop"] = "refuse", *, reserved: int = 0
) -> Workload:
    """Look at requests whose prompt and the answer they ask for exceed a context together.

    Parameters
    ----------
    workload : Workload
        Requests.
    context : int
        Tokens a request may have, prompt and answer together.
    on_oversize : {"refuse", "clip", "drop"}
        ``refuse`` leaves them, for the engine to refuse; ``clip`` shortens answers to what is left, where the prompt
        leaves at least one token; ``drop`` takes them out. A note names the first of them, with the excess, and
        counts them, in all three cases.
    reserved : int
        Tokens of the context that the server keeps for its draft.

    Returns
    -------
    Workload
        The requests, the note added.
    """
    asked = workload.output_tokens if workload.max_new_tokens is None else workload.max_new_tokens
    room = context - reserved - workload.input_tokens
    excess = np.maximum(asked, 1) - room
    over = np.flatnonzero(excess > 0).astype(np.int64)
    if not len(over):
        return workload
    named = ", ".join(f"{workload.request_id[i]} by {excess[i]}" for i in over[:5])
    more = f", and {len(over) - 5} more" if len(over) > 5 else ""
    fitted = workload
    done = "left to the engine to refuse"
    if on_oversize == "drop":
        fitted, done = workload.take(np.flatnonzero(excess <= 0).astype(np.int64)), "dropped"
    elif on_oversize == "clip":
        done = "answers clipped"
        hopeless = int(np.sum(room[over] < 1))
        if hopeless:
            done += f", but for {hopeless} whose prompt leaves no room"
        limit = np.where(room >= 1, room, asked)
        fitted = replace(
            workload,
            output_tokens=np.minimum(workload.output_tokens, limit),
            max_new_tokens=None if workload.max_new_tokens is None else np.minimum(asked, limit),
        )
    kept = f" ({reserved} of them kept for the draft)" if reserved else ""
    note = f"{len(over)} of {len(workload)} requests exceed {context} tokens{kept} ({named}{more}): {done}"
    return replace(fitted, info=replace(workload.info, notes=(*workload.info.notes, note)))


# ------------------------------------------------------------------------------------------------------ steps of a read


def _wrong(path: Path, place: str, message: str) -> TraceError:
    return TraceError(str(path), [Problem(place, message)])


def option_problems(options: Mapping[str, Any], place: str = "") -> list[Problem]:
    """Everything :func:`read_trace` would refuse in its options; None stands for an option that is left out.

    Parameters
    ----------
    options : mapping
        Keyword arguments of :func:`read_trace`.
    place : str
        Dotted key of the table they stand in, if any.
    """
    problems: list[Problem] = []
    table = TableReader({key: value for key, value in options.items() if value is not None}, place, problems)
    table.known.clear()
    table.word("format", None, FORMATS)
    table.number("rate_scale", 1.0, above=True, unit="times as fast")
    table.integer("limit", 1, low=1, unit="requests")
    start = table.number("start_s", 0.0, unit="s")
    end = table.number("end_s", start + 1, unit="s")
    if not problems and end <= start:
        table.wrong("end_s", f"{end:g} is not above start_s, {start:g}")
    table.word("time_unit", None, tuple(UNITS))
    columns = table.get("columns", {})
    if not isinstance(columns, Mapping) or not all(isinstance(name, str) for pair in columns.items() for name in pair):
        table.wrong("columns", f'{columns!r} is not a table {{input_tokens = "its name in the file"}}')
    table.number("rate", 1.0, above=True, unit="requests/s")
    table.flag("ignore_eos", False)
    table.word("turns", None, ("cumulative", "delta"))
    table.integer("block_size", 1, low=1, unit="tokens")
    table.word("bad_rows", "refuse", ("refuse", "drop"))
    table.close()
    return problems


def _ns(seconds: float | None) -> int:
    return round((seconds or 0.0) * 1e9)


def _arrivals(found: Columns, rate: float | None, complaints: Complaints, notes: list[str]) -> tuple[IntArray, str]:
    """Arrivals by the file's own clock, and their unit; without times a closed batch, or evenly spaced."""
    if found.times is not None:
        if rate is not None and not found.paced:
            raise complaints.fail("is only for files without times, and this one has them: use rate_scale", "rate")
        return found.times.ns, found.times.unit
    rows = len(found.input_tokens)
    if rate is None:
        if found.concurrency is None:
            notes.append(f"no times in the file: all {rows} arrive at t=0")
        return np.zeros(rows, np.int64), "none (no times in the file)"
    notes.append(f"no times in the file: {rows} arrivals evenly spaced at {rate:g} a second")
    return np.rint(np.arange(rows) * (1e9 / rate)).astype(np.int64), "none (evenly spaced at the rate stated)"


def _accumulate(found: Columns, order: IntArray, complaints: Complaints) -> None:
    """Rebuild whole prompts from what each turn adds, in arrival order."""
    if found.sessions is None:
        raise complaints.fail("is delta, but the file names no sessions", "turns")
    so_far: dict[Hashable, int] = {}
    whole = found.input_tokens.copy()
    for row in order.tolist():
        session = found.sessions[row]
        if session is not None:
            whole[row] += so_far.get(session, 0)
            so_far[session] = int(whole[row] + found.output_tokens[row])
    found.input_tokens = whole


def _settle_blocks(found: Columns, stated: int | None, complaints: Complaints, notes: list[str]) -> TakeBlocks | None:
    if found.blocks is None:
        if stated is not None:
            notes.append("block_size is stated, but the file has no block ids")
        return None
    take, note = found.blocks.settle(found.input_tokens, stated, complaints)
    notes.append(note)
    return take


def _assumed_turns(found: Columns) -> str:
    """What is assumed about sessions, where the caller did not state it."""
    told = "a session's prompts are taken as whole conversations (turns = cumulative)"
    if found.blocks is None and found.contents is None:
        told += " of which nothing is shared; stating turns makes each begin with the tokens of the one before"
    return told


def _senders(found: Columns, order: IntArray, complaints: Complaints) -> IntArray | None:
    """Number in arrival order of the request whose end sends each one, in that order; -1 for none.

    Rows that name no request, or one that cannot send them, are complained about.
    """
    if found.previous is None:
        return None
    if found.names is None:
        raise complaints.fail("names requests, and the file has no request_id", "previous")
    number = {found.names[row]: place for place, row in enumerate(order.tolist())}
    senders = np.full(len(order), -1, np.int64)
    for place, row in enumerate(order.tolist()):
        name = found.previous[row]
        senders[place] = number.get(name, -1) if name else -1
        if name and name not in number:
            complaints.row(row, f"previous is {name}, which is no request of the file")
    for place, message in previous_faults(senders):
        row = int(order[place])
        complaints.row(row, f"previous is {found.previous[row]}, which {message}")
        senders[place] = -1
    return senders


def _refuse_duplicates(names: Sequence[str], complaints: Complaints) -> None:
    """Complain about every row whose id another row has too."""
    rows_of: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        if name:
            rows_of.setdefault(name, []).append(row)
    for name, rows in rows_of.items():
        for row in rows if len(rows) > 1 else ():
            others = ", ".join(str(complaints.lines[other]) for other in rows[:6] if other != row)
            complaints.row(row, f"request id {name} is also on line {others}")


def _settle_problems(complaints: Complaints, rows: int, bad_rows: str, turns: str | None, notes: list[str]) -> None:
    """Raise what was found, or note it and go on without those rows."""
    if not len(complaints):
        return
    problems = complaints.problems()
    if bad_rows == "refuse" or turns == "delta" or len(complaints.bad_rows) == rows:
        raise TraceError(complaints.source, problems)
    notes.append(f"{len(complaints.bad_rows) + complaints.unreadable} rows left out")
    notes.extend(f"left out: {problem.place} {problem.message}" for problem in problems)


def _rebased(arrival: IntArray, times: Times | None, keep: IntArray, notes: list[str]) -> IntArray:
    """Arrivals from the first one on, where the file counts from somewhere else."""
    if times is None:
        return arrival
    first, last = int(arrival[keep].min()), int(arrival[keep].max())
    epoch = times.wall or first >= _EPOCH_FROM_NS
    if not epoch and (times.from_start or first <= last - first):
        return arrival
    shown = f"{np.datetime64(first, 'ns')}" if epoch else f"{first / 1e9:g} s, later than the span of the trace"
    notes.append(f"rebased: the first arrival, {shown}, is t=0")
    return arrival - first


def _names(names: Sequence[str] | None, order: IntArray) -> list[str]:
    """Request ids in arrival order; a row without one is called by its number in that order."""
    if names is None or not any(names):
        return list(map(str, range(len(order))))
    return [names[row] or f"row-{number}" for number, row in enumerate(order.tolist())]


def _sessions(sessions: Sequence[Hashable] | None, order: IntArray) -> IntArray | None:
    """Session numbers in arrival order: the file's own if they are numbers, else counted as they appear; -1 for none."""
    if sessions is None:
        return None
    ordered = [sessions[row] for row in order.tolist()]
    if all(isinstance(label, int) for label in ordered if label is not None):
        return np.array([-1 if label is None else label for label in ordered], np.int64)
    number: dict[Hashable, int] = {}
    return np.array([-1 if label is None else number.setdefault(label, len(number)) for label in ordered], np.int64)


def _window(arrival: IntArray, start_s: float | None, end_s: float | None) -> IntArray:
    """Positions of the arrivals in the window."""
    inside = arrival >= _ns(start_s)
    if end_s is not None:
        inside &= arrival < _ns(end_s)
    return np.flatnonzero(inside).astype(np.int64)


def _scaled(arrival: IntArray, rate_scale: float, complaints: Complaints) -> IntArray:
    if rate_scale == 1.0:
        return arrival
    if int(arrival.max(initial=0)) > LONGEST_NS * rate_scale:
        raise complaints.fail(f"{rate_scale:g} stretches the trace to more than a hundred years", "rate_scale")
    return np.rint(arrival / rate_scale).astype(np.int64)
