"""A trace file as a table of raw cells, and complaints by line."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simkv.errors import Problem, TraceError, nearest
from simkv.workload.request import IntArray

__all__ = ["MAX_PROBLEMS", "Complaints", "Table", "parse_table", "read_text"]

MAX_PROBLEMS = 20
"""Problems printed before "and N more"."""


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
    raise TraceError(str(path), [Problem(path.name or str(path), reason)])


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
