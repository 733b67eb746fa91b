"""What stands in a cell: whole numbers, lists, names, and times to the nanosecond."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Context, Decimal, InvalidOperation

import numpy as np

from simkv.workload.formats.table import Complaints, Table
from simkv.workload.request import IntArray

__all__ = [
    "UNITS",
    "Times",
    "counts",
    "exact",
    "ids",
    "int_lists",
    "labels",
    "missing",
    "times",
    "to_ns",
    "whole_number",
]

UNITS: Mapping[str, int] = {"s": 9, "ms": 6, "us": 3, "ns": 0}
"""Time units and the power of ten that makes nanoseconds of them."""

_MOST_TOKENS = 10**12
_ISO = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d+))? ?(Z|[+-]\d\d:?\d\d)?", re.ASCII)
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_CONTEXT = Context(prec=60)


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


def counts(table: Table, column: str, complaints: Complaints, least: int = 0, most: int = _MOST_TOKENS) -> IntArray:
    """Column of whole numbers from `least` to `most`; 0 where a cell is none and was complained about."""
    result = np.zeros(len(table), np.int64)
    for row, cell in enumerate(table.columns[column]):
        try:
            value = whole_number(cell)
            if not least <= value <= most:
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
            if values and not (min(values) >= -(2**63) and max(values) < 2**63):
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
