"""Reading tables of keys by hand: every problem is collected, none is raised, unknown keys are problems."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from math import inf, isfinite
from typing import Any

from simkv.errors import Problem, nearest

__all__ = ["MOST", "TableReader", "is_number", "keyword_problems", "one_of"]

# Largest count anywhere: the product of two stays inside 64 bits.
MOST = 10**9


def is_number(value: object) -> bool:
    """Whether a value is a finite number; true and false are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)


def one_of(word: object, allowed: Iterable[str]) -> str:
    """Message for a word that is missing or not in a list."""
    allowed = list(allowed)
    if word is None:
        return f"is needed: one of {', '.join(allowed)}"
    return f"{word!r} is not one of {', '.join(allowed)}{nearest(str(word), allowed)}"


class TableReader:
    """Reads keys of a table and collects what is wrong; :meth:`close` reports keys nobody asked for.

    Parameters
    ----------
    table : mapping
        What the user wrote.
    place : str
        Dotted key of the table, without the dot at its end; empty for none.
    problems : list of Problem
        Where to collect.
    """

    def __init__(self, table: Mapping[str, Any], place: str, problems: list[Problem]) -> None:
        self.table, self.place, self.problems = table, place, problems
        self.known: list[str] = ["kind"]

    def wrong(self, key: str, message: str) -> None:
        """Note a problem of a key."""
        self.problems.append(Problem(f"{self.place}.{key}" if self.place else key, message))

    def get(self, key: str, default: Any = None) -> Any:
        """The value of an optional key."""
        self.known.append(key)
        return self.table.get(key, default)

    def number(
        self, key: str, default: float | None, *, low: float = 0, high: float = inf, above: bool = False, unit: str
    ) -> float:
        """A number in [low, high], or in (low, high] when ``above``; needed if the default is None."""
        value = self.get(key, default)
        span = f"a number {'>' if above else '>='} {low:g}{f' and <= {high:g}' if high < inf else ''}"
        if value is None:
            self.wrong(key, f"is needed: {span} ({unit})")
        elif not is_number(value) or value < low or value > high or (above and value == low):
            self.wrong(key, f"{value!r} is not {span} ({unit})")
        else:
            return float(value)
        return low if not above else low + 1

    def integer(self, key: str, default: int | None, *, low: int, unit: str) -> int:
        """An integer in [low, MOST]; needed if the default is None."""
        value = self.get(key, default)
        if value is None:
            self.wrong(key, f"is needed: an integer >= {low} ({unit})")
        elif not isinstance(value, int) or isinstance(value, bool) or not low <= value <= MOST:
            self.wrong(key, f"{value!r} is not an integer >= {low} ({unit})")
        else:
            return value
        return low

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            self.wrong(key, f"{value!r} is not true or false")
            return default
        return value

    def word(self, key: str, default: str | None, allowed: Collection[str]) -> str | None:
        """One of some words, or the default."""
        value = self.get(key, default)
        if value is not None and (not isinstance(value, str) or value not in allowed):
            self.wrong(key, one_of(value, allowed))
            return default
        return None if value is None else str(value)

    def close(self) -> None:
        """Complain about every key nobody asked for."""
        for key in self.table:
            if key not in self.known:
                self.wrong(key, f"unknown key{nearest(str(key), self.known)}; allowed are {', '.join(self.known)}")


def keyword_problems(place: str, cls: Any, table: Mapping[str, Any], hidden: Collection[str] = ()) -> list[Problem]:
    """Keys of a table that a dataclass does not take, or those that it needs and that are not there.

    Parameters
    ----------
    place : str
        Dotted key of the table.
    cls : dataclass
        What is made from the table.
    table : mapping
        What the user wrote.
    hidden : collection of str
        Fields that are not the user's to state.
    """
    fields = [f for f in dataclasses.fields(cls) if f.init and f.name not in hidden]
    allowed = [f.name for f in fields]
    told = ", ".join(allowed) or "none"
    unknown = [
        Problem(f"{place}.{key}", f"unknown key{nearest(str(key), allowed)}; allowed are {told}")
        for key in table
        if key not in allowed
    ]
    if unknown:
        # A key that seems to miss may be the one misspelt.
        return unknown
    return [
        Problem(f"{place}.{f.name}", "is missing")
        for f in fields
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING and f.name not in table
    ]
