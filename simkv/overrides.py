"""Changes of a scenario by dotted keys."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from simkv.errors import Problem, ScenarioError

__all__ = ["overridden", "parse_assignments", "split_key", "toml_value"]

_PART = r'"[^"]*"|[^."\s=]+'
_KEY = re.compile(rf"(?:{_PART})(?:\.(?:{_PART}))*")
_ASSIGNMENT = re.compile(rf"\s*({_KEY.pattern})\s*=(.*)", re.DOTALL)

Change = tuple[Sequence[str], Any]


def parse_assignments(assignments: Iterable[str]) -> list[Change]:
    """Paths and values of texts of the form ``dotted.key=value``; values are TOML, or bare words.

    Raises
    ------
    ScenarioError
        Every text that is none.
    """
    changes: list[Change] = []
    problems = []
    for text in assignments:
        match = _ASSIGNMENT.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            problems.append(
                Problem(str(text).partition("=")[0] or str(text), f"{text!r} is not of the form dotted.key=value")
            )
        else:
            changes.append((split_key(match.group(1)), toml_value(match.group(2).strip())))
    if problems:
        raise ScenarioError("override", problems)
    return changes


def split_key(key: str) -> list[str]:
    """Parts of a dotted key; a quoted part may hold dots: ``checks."requests.retracted"``. Empty if it is none."""
    if not isinstance(key, str) or _KEY.fullmatch(key) is None:
        return []
    return [part.strip('"') for part in re.findall(_PART, key)]


def toml_value(text: str) -> Any:
    """A TOML value, or the bare word itself."""
    try:
        table = tomllib.loads(f"x = {text}")
    except tomllib.TOMLDecodeError:
        return text
    # More than one key: the text held a line of its own.
    return table["x"] if len(table) == 1 else text


def overridden(data: Mapping[str, Any], changes: Iterable[Change]) -> dict[str, Any]:
    """A copy with changes; None as a value removes a key.

    ``workload.trace`` where a generator was, and ``workload.kind`` where a trace was, replace the whole workload, and
    come before whatever else changes it.

    Raises
    ------
    ScenarioError
        Every path that leads through a value that is no table.
    """
    made = deepcopy(dict(data))
    problems: list[Problem] = []
    for path, value in sorted(changes, key=lambda change: not _replaces_source(change[0])):
        problem = _assign(made, path, value)
        if problem is not None:
            problems.append(problem)
    if problems:
        raise ScenarioError("override", problems)
    return made


def _replaces_source(path: Sequence[str]) -> bool:
    return list(path) in (["workload"], ["workload", "trace"], ["workload", "kind"])


def _assign(data: dict[str, Any], path: Sequence[str], value: Any) -> Problem | None:
    node = data
    for number, part in enumerate(path[:-1]):
        child = node.get(part)
        if number == 0 and part in ("acceptance", "steptime") and isinstance(child, str):
            child = {"kind": child}
        if child is not None and not isinstance(child, dict):
            return Problem(".".join(path), f"{part} is {child!r}, not a table")
        node[part] = dict(child or {})
        node = node[part]
    if value is None:
        node.pop(path[-1], None)
        return None
    if len(path) == 2 and _replaces_source(path) and path[-1] not in node:
        node.clear()
    node[path[-1]] = value
    return None
