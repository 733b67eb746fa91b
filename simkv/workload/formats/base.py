"""What every trace format shares: the table of a file, its cells, the columns handed over, complaints by line."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Context, Decimal, InvalidOperation
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np

from simkv.errors import Problem, TraceError, nearest
from simkv.workload.request import Blocks, IntArray

__all__ = [
    "MAX_PROBLEMS",
    "UNITS",
    "Ask",
    "BlockSource",
    "Columns",
    "Complaints",
    "Table",
    "TakeBlocks",
    "Times",
    "TraceFormat",
    "counts",
    "exact",
    "ids",
    "int_lists",
    "labels",
    "missing",
    "parse_table",
    "read_text",
    "times",
    "to_ns",
    "whole_number",
]

UNITS: Mapping[str, int] = {"s": 9, "ms": 6, "us": 3, "ns": 0}
"""Time units and the power of ten that makes nanoseconds of them."""

MAX_PROBLEMS = 20
"""Problems printed before "and N more"."""

_MOST_TOKENS = 10**12
_ISO = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d+))? ?(Z|[+-]\d\d:?\d\d)?", re.ASCII)
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_CONTEXT = Context(prec=60)


# ---------------------------------------------------------------------------------------------------- files and tables


@dataclass(frozen=True)
class Table:
    """A file as columns of raw cells, in file order.

    Parameters
    ----------
    source : str
        Path of the file.
    container : str
        ``csv`` or ``jsonl``.
    columns : dict of str to list
        Cells by column name: text in a CSV file; int, text, list, dict or None in a JSONL file, where numbers with a
        fraction stay text, so that no digit is lost.
    lines : list of int
        Line of the file each row stands on, counted from 1.
    """

    source: str
    container: str
    columns: dict[str, list[object]]
    lines: list[int]

    def __len__(self) -> int:
        return len(self.lines)


class Complaints:
    """What is wrong with which row; nothing is raised before everything was looked at.

    Parameters
    ----------
    source : str
        Path of the file.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: list[int] = []
        self.bad_rows: set[int] = set()
        self.unreadable = 0
        self._found: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._found)

    def line(self, line: int, message: str) -> None:
        """Complain about a line that did not even become a row."""
        self.unreadable += 1
        self._found.append((line, message))

    def row(self, row: int, message: str) -> None:
        """Complain about a row."""
        self.bad_rows.add(row)
        self._found.append((self.lines[row], message))

    def good(self, rows: int) -> IntArray:
        """Rows nobody complained about, in file order."""
        keep = np.ones(rows, bool)
        keep[list(self.bad_rows)] = False
        return np.flatnonzero(keep).astype(np.int64)

    def problems(self) -> list[Problem]:
        """Problems in file order, at most `MAX_PROBLEMS` and a last one that counts the rest."""
        name = Path(self.source).name
        found = sorted(self._found, key=lambda item: item[0])
        listed = [Problem(f"{name}:{line}", message) for line, message in found[:MAX_PROBLEMS]]
        if len(found) > MAX_PROBLEMS:
            listed.append(Problem(name, f"and {len(found) - MAX_PROBLEMS} more"))
        return listed

    def fail(self, message: str, place: str = "") -> TraceError:
        """Error about the file as a whole, with the complaints so far."""
        return TraceError(self.source, [Problem(place or Path(self.source).name, message), *self.problems()])


def read_text(path: Path) -> str:
    """Text of a file: gzip unpacked, a byte order mark dropped; every failure is a `TraceError`."""
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8 text ({error.reason} at byte {error.start})"
    except (EOFError, zlib.error) as error:
        reason = f"is a damaged gzip file ({error})"
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
    raise TraceError(str(path), [Problem(path.name, reason)])


def parse_table(source: str, text: str, rename: Mapping[str, str]) -> tuple[Table, Complaints]:
    """Rows of a file, CSV or JSONL by its first character.

    Parameters
    ----------
    source : str
        Path of the file, for messages.
    text : str
        What stands in it.
    rename : mapping
        Name of a column in the file to the name it is read under.
    """
    complaints = Complaints(source)
    first = text.lstrip()[:1]
    if not first:
        raise complaints.fail("is empty")
    if first == "[":
        raise complaints.fail("is one JSON array; one JSON object a line is needed")
    container = "jsonl" if first == "{" else "csv"
    columns, lines = (_json_columns if first == "{" else _csv_columns)(text, complaints)
    unknown = [name for name in rename if name not in columns]
    if unknown:
        text = ", ".join(name + nearest(name, columns) for name in unknown)
        raise complaints.fail(f"has no column {text} (it has {', '.join(columns)})", "columns")
    if not lines:
        raise complaints.fail("has no readable row")
    complaints.lines = lines
    renamed = {ours: columns.pop(theirs) for theirs, ours in rename.items()}
    return Table(source, container, columns | renamed, lines), complaints


def _csv_columns(text: str, complaints: Complaints) -> tuple[dict[str, list[object]], list[int]]:
    reader = csv.reader(io.StringIO(text, newline=""))
    rows: list[list[str]] = []
    lines: list[int] = []
    header: list[str] = []
    try:
        for row in reader:
            if not row:
                continue
            if not header:
                header = [name.strip() for name in row]
            elif len(row) != len(header):
                complaints.line(reader.line_num, f"has {len(row)} fields, the header has {len(header)}")
            else:
                rows.append(row)
                lines.append(reader.line_num)
    except csv.Error as error:
        raise complaints.fail(f"is no CSV: {error}", f"{Path(complaints.source).name}:{reader.line_num}") from None
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise complaints.fail(f"names a column twice: {', '.join(twice)}")
    columns: list[list[object]] = [list(cells) for cells in zip(*rows, strict=True)] if rows else [[] for _ in header]
    return dict(zip(header, columns, strict=True)), lines


def _json_columns(text: str, complaints: Complaints) -> tuple[dict[str, list[object]], list[int]]:
    decode = json.JSONDecoder(parse_float=str, parse_constant=str).decode
    rows: list[dict[str, object]] = []
    lines: list[int] = []
    names: dict[str, None] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = decode(line.strip())
        except (ValueError, RecursionError) as error:
            complaints.line(number, f"is no JSON: {error}")
            continue
        if not isinstance(row, dict):
            complaints.line(number, "is no JSON object")
            continue
        names.update(dict.fromkeys(row))
        rows.append(row)
        lines.append(number)
    return {name: [row.get(name) for row in rows] for name in names}, lines


# --------------------------------------------------------------------------------------------------------------- cells


def missing(cell: object) -> bool:
    """Whether a cell is empty."""
    return cell is None or (isinstance(cell, str) and not cell.strip())


def exact(cell: object) -> Decimal:
    """Finite decimal number of a cell, to the last digit; `ValueError` otherwise."""
    if isinstance(cell, int) and not isinstance(cell, bool):
        return Decimal(cell)
    if not isinstance(cell, str) or "_" in cell:
        raise ValueError("no number")
    try:
        number = Decimal(cell.strip())
    except InvalidOperation:
        raise ValueError("no number") from None
    if not number.is_finite() or number.adjusted() > 40:
        raise ValueError("no finite number")
    return number


def whole_number(cell: object) -> int:
    """Whole number of a cell (``12`` and ``12.0`` are); `ValueError` otherwise."""
    if type(cell) is int:
        return cell
    if isinstance(cell, str) and cell.isascii() and cell.isdigit() and len(cell) < 20:
        return int(cell)
    number = exact(cell)
    if number != number.to_integral_value(context=_CONTEXT):
        raise ValueError("no whole number")
    return int(number)


def counts(table: Table, column: str, complaints: Complaints, least: int = 0) -> IntArray:
    """Column of whole numbers, `least` or more; 0 where a cell is none and was complained about."""
    result = np.zeros(len(table), np.int64)
    for row, cell in enumerate(table.columns[column]):
        try:
            value = whole_number(cell)
            if not least <= value <= _MOST_TOKENS:
                raise ValueError
        except ValueError:
            shown = "missing" if missing(cell) else f"{cell!s:.40}"
            complaints.row(row, f"{column} is {shown}; a whole number of {least} or more is needed")
        else:
            result[row] = value
    return result


def int_lists(table: Table, column: str, complaints: Complaints) -> list[list[int]]:
    """Column of lists of whole numbers (JSON lists, or text as ``1 2 3``); empty where there is none."""
    result: list[list[int]] = []
    for row, cell in enumerate(table.columns[column]):
        values: list[int] = []
        try:
            if isinstance(cell, str):
                values = [int(word) for word in cell.strip("[] ").replace(",", " ").split()]
            elif isinstance(cell, list) and all(type(value) is int for value in cell):
                values = cell
            elif cell is not None:
                raise ValueError
            if values and not (-(2**63) <= min(values) and max(values) < 2**63):
                raise ValueError
        except ValueError:
            values = []
            complaints.row(row, f"{column} is no list of whole numbers of 64 bits")
        result.append(values)
    return result


def ids(table: Table, column: str, complaints: Complaints) -> list[str]:
    """Column of names; an empty name where there is none."""
    result: list[str] = []
    for row, cell in enumerate(table.columns[column]):
        if not (cell is None or type(cell) is int or isinstance(cell, str)):
            complaints.row(row, f"{column} is neither text nor a whole number")
            cell = None
        result.append("" if cell is None else str(cell))
    return result


def labels(table: Table, column: str, complaints: Complaints) -> list[Hashable]:
    """Column of labels: int where the text is one, None where there is none."""
    names = ids(table, column, complaints)
    return [_label(name) if name.strip() else None for name in names]


def _label(name: str) -> Hashable:
    if name.isascii() and name.isdigit() and len(name) < 19 and str(int(name)) == name:
        return int(name)
    return None if name == "-1" else name


# --------------------------------------------------------------------------------------------------------------- times


@dataclass(frozen=True)
class Times:
    """Arrival times as the file gives them, not yet rebased.

    Parameters
    ----------
    ns : int64 array
        Nanoseconds from the file's own origin (1970 for wall clocks).
    unit : str
        Unit and how it was decided.
    wall : bool
        Whether the file gives dates.
    from_start : bool
        Whether the file is known to count from the start of the trace, so that a late first arrival is a pause.
    """

    ns: IntArray
    unit: str
    wall: bool = False
    from_start: bool = False


def to_ns(cell: object, unit: str) -> int:
    """Nanoseconds of a number in `unit`, rounded half to even below 1 ns; `ValueError` when it is none."""
    scaled = exact(cell).scaleb(UNITS[unit], context=_CONTEXT)
    return int(scaled.to_integral_value(context=_CONTEXT))


def _iso_ns(text: str) -> tuple[int, bool] | None:
    """Nanoseconds since 1970 and whether a zone is stated; None when `text` is no date and time."""
    match = _ISO.fullmatch(text.strip())
    if match is None:
        return None
    day, hour, minute, second, fraction, zone = match.groups()
    h, m, s = int(hour), int(minute), int(second)
    if h > 23 or m > 59 or s > 59:
        raise ValueError("no time of day")
    total = ((date.fromisoformat(day).toordinal() - _EPOCH_ORDINAL) * 24 + h) * 3600 + m * 60 + s
    if zone and zone != "Z":
        offset = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
        total -= offset if zone[0] == "+" else -offset
    ns = total * 10**9
    if fraction:
        ns += int(fraction[:9].ljust(9, "0")) + (fraction[9:10] >= "5")
    return ns, zone is not None


def times(
    table: Table, column: str, complaints: Complaints, *, unit: str | None, why: str = "", from_start: bool = False
) -> Times | None:
    """Column of times; None when the column is absent or wholly empty.

    Parameters
    ----------
    table, column, complaints
        What to read, and where to complain.
    unit : str or None
        Unit of plain numbers; None when nobody stated one, which is an error unless the column holds dates.
    why : str
        How the unit was decided, for the report.
    from_start : bool
        See `Times`.
    """
    cells = table.columns.get(column)
    if cells is None or all(map(missing, cells)):
        return None
    empty = sum(map(missing, cells))
    result = np.zeros(len(cells), np.int64)
    kind = ""
    for row, cell in enumerate(cells):
        if missing(cell):
            complaints.row(row, f"{column} is missing ({empty} of {len(cells)} rows lack it; all or none may)")
            continue
        try:
            stamp = _iso_ns(cell) if isinstance(cell, str) else None
            if stamp is None and unit is None:
                exact(cell)
                raise complaints.fail(
                    f'column {column} does not say its unit: give time_unit = "s", "ms", "us" or "ns"', "time_unit"
                )
            found = "number" if stamp is None else "date with zone" if stamp[1] else "date without zone"
            ns = to_ns(cell, unit or "s") if stamp is None else stamp[0]
        except ValueError:
            complaints.row(row, f"{column} is {cell!s:.40}; a time is needed")
            continue
        kind = kind or found
        if found != kind:
            complaints.row(row, f"{column} is a {found}, the rows before have a {kind}")
        elif ns < 0:
            complaints.row(row, f"{column} is {cell}; a time before the start cannot be simulated")
        elif ns >= 2**63:
            complaints.row(row, f"{column} is {cell} {unit or ''}, past the year 2262: is time_unit another one?")
        else:
            result[row] = ns
    wall = kind.startswith("date")
    return Times(result, f"wall clock ({kind})" if wall else f"{unit} ({why})", wall, from_start)


# ------------------------------------------------------------------------------------------------------- format and ask

TakeBlocks = Callable[[IntArray], Blocks]
"""Blocks of the given rows (numbers in file order), in the order asked for."""


class BlockSource(Protocol):
    """Block ids of a file, before the block size is known for certain."""

    def settle(self, input_tokens: IntArray, stated: int | None, complaints: Complaints) -> tuple[TakeBlocks, str]:
        """Decide the block size, complain about rows that do not fit it; returns how to take blocks, and a note."""
        ...


@dataclass
class Columns:
    """What a format hands over: request columns in file order.

    Parameters
    ----------
    input_tokens, output_tokens : int64 array
        Lengths; as in the file, so a session may still be in delta form.
    times : Times or None
        Arrivals; None when the file has no times.
    names : list of str or None
        Request ids, empty where a row has none.
    sessions : list or None
        Session labels, None where a row has none.
    max_new_tokens, think_ns : int64 array or None
        As in `simkv.workload.request.Workload`.
    accept : list of list of int or None
        Accepted lengths of each request.
    blocks : BlockSource or None
        Identity of the prompts.
    ignore_eos : bool
        As in `simkv.workload.request.Workload`.
    concurrency : int or None
        As in `simkv.workload.request.Workload`.
    paced : bool
        Whether the format itself has used the rate asked for.
    notes : list of str
        Anything a person should know.
    """

    input_tokens: IntArray
    output_tokens: IntArray
    times: Times | None = None
    names: list[str] | None = None
    sessions: Sequence[Hashable] | None = None
    max_new_tokens: IntArray | None = None
    think_ns: IntArray | None = None
    accept: list[list[int]] | None = None
    blocks: BlockSource | None = None
    ignore_eos: bool = False
    concurrency: int | None = None
    paced: bool = False
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Ask:
    """What the caller stated about the file.

    Parameters
    ----------
    time_unit : str or None
        Unit of the time stamps.
    rate : float or None
        Requests (or sessions) per second, where the file gives no times.
    """

    time_unit: str | None = None
    rate: float | None = None

    def unit(self, name: str, default: str) -> tuple[str, str]:
        """Unit to read in, and how it was decided; a format's own unless another one was stated."""
        if self.time_unit is None:
            return default, f"as {name} has it"
        return self.time_unit, "as stated" if self.time_unit == default else f"as stated; {name} has {default}"


class TraceFormat(Protocol):
    """A trace format.

    Attributes
    ----------
    name : str
        Name in `simkv.workload.formats.FORMATS`.
    container : str or None
        ``csv`` or ``jsonl`` when the name belongs to one of them only.
    required : tuple of tuple of str
        Alternatives of columns, one of which must be there in full.
    """

    name: ClassVar[str]
    container: ClassVar[str | None]
    required: ClassVar[tuple[tuple[str, ...], ...]]

    def read(self, table: Table, ask: Ask, complaints: Complaints) -> Columns:
        """Columns of the table; rows that are wrong are complained about, not raised."""
        ...
