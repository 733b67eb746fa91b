"""Axes of a sweep: which dotted keys take which values, written in a scenario, on a command line or in Python.

An axis varies one key, or several together: ``"memory.page_size,memory.chunked_prefill_size" = [[16, 4096], [64, 8192]]``
goes through pairs. Axes make a grid, the last one fastest.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import product
from typing import Any

import numpy as np

from simkv.errors import Problem, ScenarioError
from simkv.overrides import split_key, toml_value

__all__ = ["MOST_POINTS", "Axis", "axis_problems", "grid", "parse_axes", "read_axes", "split_keys"]

MOST_POINTS = 100_000
"""More points than this are taken for a slip of the pen."""

# Sections that describe the file, and not what is simulated.
_NOT_VARIED = ("schema", "sweep")
_RANGE = re.compile(r"\s*([-+0-9.eE]+)\s*:\s*([-+0-9.eE]+)\s*(?::\s*([-+0-9.eE]+)\s*)?")
_AXIS = re.compile(r'\s*((?:"[^"]*"|[^"=])+?)\s*=(.*)', re.DOTALL)


@dataclass(frozen=True)
class Axis:
    """One axis.

    Parameters
    ----------
    keys : tuple of str
        Dotted keys that change together.
    values : tuple of tuple
        One value a key, for each place on the axis.
    """

    keys: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]

    @property
    def name(self) -> str:
        """The keys as a scenario writes them."""
        return ",".join(self.keys)

    def to_list(self) -> list[Any]:
        """The values as a scenario writes them."""
        return [list(value) if len(self.keys) > 1 else value[0] for value in self.values]


def grid(axes: Iterable[Axis]) -> Iterable[tuple[tuple[str, Any], ...]]:
    """Changes of every point, the last axis fastest."""
    named = list(axes)
    for places in product(*(axis.values for axis in named)):
        yield tuple(
            pair for axis, place in zip(named, places, strict=True) for pair in zip(axis.keys, place, strict=True)
        )


def read_axes(table: Mapping[str, Any], source: str = "sweep") -> tuple[Axis, ...]:
    """Axes of a table of keys and lists.

    Parameters
    ----------
    table : mapping
        Dotted key, or several with commas, to its values: a list, a tuple, a range, an array.
    source : str
        What errors name.

    Raises
    ------
    ScenarioError
        Every problem: a key that is none, a key on two axes, values that are no list, an empty one, one twice, rows of
        the wrong length, too many points.
    """
    axes, problems = _read(table)
    if problems:
        raise ScenarioError(source, problems)
    return axes


def axis_problems(table: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with axes, as far as it can be told without a scenario."""
    return _read(table)[1]


def _read(table: Mapping[str, Any]) -> tuple[tuple[Axis, ...], list[Problem]]:
    axes: list[Axis] = []
    problems: list[Problem] = []
    for key, values in table.items():
        place = f'sweep."{key}"'
        keys = split_keys(key)
        problems += _key_problems(place, key, keys, values)
        rows, wrong = _rows(place, keys, values)
        problems += wrong
        axes.append(Axis(keys, rows))
    problems += _twice(axes)
    count = math.prod(len(axis.values) for axis in axes)
    if count > MOST_POINTS:
        problems.append(Problem("sweep", f"makes {count:,} points; at most {MOST_POINTS:,} are run"))
    return tuple(axes), problems


def split_keys(key: Any) -> tuple[str, ...]:
    """Keys of an axis, each as :func:`~simkv.overrides.split_key` takes it apart; empty where one is none."""
    parts = re.findall(r'(?:"[^"]*"|[^",])+', key) if isinstance(key, str) and key.count('"') % 2 == 0 else []
    if not parts or len(parts) != _commas(key) + 1:
        return ()
    split = [split_key(part.strip()) for part in parts]
    return tuple(_joined(path) for path in split) if all(split) else ()


def _commas(key: str) -> int:
    """Commas outside quotes."""
    return re.sub(r'"[^"]*"', "", key).count(",")


def _joined(path: list[str]) -> str:
    """One way to write a key, whichever it was written in."""
    return ".".join(part if re.fullmatch(r"[\w-]+", part) else f'"{part}"' for part in path)


def _key_problems(place: str, key: Any, keys: tuple[str, ...], values: Any) -> list[Problem]:
    if not keys:
        return [Problem(place, f"{key!r} is no dotted key, nor several with commas between them")]
    if isinstance(values, Mapping):
        return []  # told with the values: the key was not quoted
    refused = [one for one in keys if one.split(".")[0] in _NOT_VARIED]
    return [Problem(place, f"{one} is nothing that a run could differ in") for one in refused]


def _rows(place: str, keys: tuple[str, ...], values: Any) -> tuple[tuple[tuple[Any, ...], ...], list[Problem]]:
    """Values as rows, one value a key."""
    if isinstance(values, Mapping):
        inner = next(iter(values), "key")
        hint = f'a table; a dotted key is quoted here: "{place[7:-1]}.{inner}" = [...]'
        return (), [Problem(place, f"is {hint}")]
    scalar = isinstance(values, (str, bytes, AbstractSet)) or not hasattr(values, "__len__")
    if scalar or (isinstance(values, np.ndarray) and values.ndim == 0):
        return (), [Problem(place, f"{values!r} is not a list of values")]
    count = len(values)
    if not count:
        return (), [Problem(place, "is an empty list; give at least one value, or leave the key out")]
    if count > MOST_POINTS:
        return (), [Problem(place, f"holds {count:,} values; at most {MOST_POINTS:,} points are run")]
    found = [_plain(value) for value in values]
    problems = [
        Problem(place, f"{value!r} is no value a scenario could hold") for value in found if not _storable(value)
    ]
    if len(keys) > 1:
        short = [value for value in found if not isinstance(value, list) or len(value) != len(keys)]
        problems += [Problem(place, f"{value!r} is not a list of {len(keys)} values, one a key") for value in short[:3]]
        if short:
            return (), problems
    rows = tuple(tuple(value) if len(keys) > 1 else (value,) for value in found)
    seen: set[str] = set()
    for value in found:
        mark = json.dumps(_mark(value), sort_keys=True, default=repr)
        if mark in seen:
            problems.append(Problem(place, f"{value!r} is there twice"))
        seen.add(mark)
    return rows, problems


def _plain(value: Any) -> Any:
    """A value of Python itself, whatever array it comes from."""
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple, range)):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return value


def _storable(value: Any) -> bool:
    """Whether TOML could hold it; None, which removes a key, besides."""
    if isinstance(value, list):
        return all(_storable(one) for one in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and _storable(one) for key, one in value.items())
    return value is None or isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value))


def _mark(value: Any) -> Any:
    """Equal for equal values: 4 and 4.0 are one, true and 1 are not."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return ["number", float(value) if abs(value) < 2**53 else str(value)]
    if isinstance(value, list):
        return [_mark(one) for one in value]
    return {key: _mark(one) for key, one in value.items()} if isinstance(value, dict) else value


def _twice(axes: Iterable[Axis]) -> list[Problem]:
    """Keys that two axes would change, or one and a part of it."""
    paths = [(axis, tuple(split_key(key))) for axis in axes for key in axis.keys]
    problems = []
    for number, (axis, path) in enumerate(paths):
        for other, before in paths[:number]:
            short = min(len(path), len(before))
            if path[:short] == before[:short]:
                where = "the same axis" if other is axis else f"the axis {other.name}"
                what = "is a key of" if path == before else "overlaps a key of"
                problems.append(Problem(f'sweep."{axis.name}"', f"{_joined(list(path))} {what} {where} already"))
                break
    return problems


# ------------------------------------------------------------------------------------------------- command line
def parse_axes(texts: Iterable[str]) -> dict[str, Any]:
    """A table of axes from texts of the form ``dotted.key=values``.

    Values are a TOML list, a range with both ends in it (``1:5``, ``0.1:0.5:0.1``), or words and numbers with commas
    between them.

    Raises
    ------
    ScenarioError
        Every text that is none, and every key that comes twice.
    """
    table: dict[str, Any] = {}
    problems = []
    for text in texts:
        match = _AXIS.fullmatch(text)
        if match is None or not match.group(2).strip():
            message = f"{text!r} is not of the form 'dotted.key=[v1, v2]', dotted.key=a:b:step or dotted.key=a,b"
            problems.append(Problem("--axis", message))
            continue
        key = match.group(1)
        if key in table:
            problems.append(Problem("--axis", f"{key} is given twice"))
        try:
            table[key] = _values(match.group(2).strip())
        except ValueError as error:
            problems.append(Problem(f"--axis {key}", str(error)))
    if problems:
        raise ScenarioError("command line", problems)
    return table


def _values(text: str) -> Any:
    """Values of an axis as a person types them.

    Raises
    ------
    ValueError
        A range that does not get anywhere, or a list that is not closed.
    """
    span = _RANGE.fullmatch(text)
    if span is not None:
        return _range(text, *span.groups())
    if text.startswith("["):
        value = toml_value(text)
        if not isinstance(value, list):
            raise ValueError(f'{text!r} is not a TOML list; words in it are quoted, ["a", "b"]')
        return value
    return [toml_value(word.strip()) for word in text.split(",")]


def _range(text: str, start: str, stop: str, step: str | None) -> list[int] | list[float]:
    """From start to stop, both in it where the steps meet the end; exact in decimals."""
    try:
        first, last, by = Decimal(start), Decimal(stop), Decimal(step or "1")
    except InvalidOperation:
        raise ValueError(f"{text!r} is not a range of numbers, a:b or a:b:step") from None
    if not all(number.is_finite() for number in (first, last, by)) or not by or (last - first) / by < 0:
        raise ValueError(f"the range {text!r} does not get from its start to its end")
    count = int((last - first) / by) + 1
    if count > MOST_POINTS:
        raise ValueError(f"the range {text!r} holds {count:,} values; at most {MOST_POINTS:,} points are run")
    whole = all("." not in part and "e" not in part.lower() for part in (start, stop, step or "1"))
    numbers = [first + by * n for n in range(count)]
    return [int(n) for n in numbers] if whole else [float(n) for n in numbers]
