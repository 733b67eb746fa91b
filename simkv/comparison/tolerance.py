"""Tolerances of figures, stated as one number or by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import isfinite
from typing import Any

from simkv.errors import Problem, ScenarioError, nearest

__all__ = ["Tolerance", "parse_tolerance", "tolerance_of"]

Stated = float | Mapping[str, float] | None


@dataclass(frozen=True)
class Tolerance:
    """How far figures may be apart: ``|b - a| <= atol + rtol * |a|``.

    Parameters
    ----------
    rtol, atol : dict
        Figure, or glob pattern of figures, to a number. A figure's own name wins over patterns; of several patterns the
        one stated last.
    """

    rtol: dict[str, float] = field(default_factory=dict)
    atol: dict[str, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.rtol or self.atol)

    def allowed(self, figure: str, a: float) -> float | None:
        """How far b may be from a; None where nothing is stated for this figure."""
        relative, absolute = _stated(self.rtol, figure), _stated(self.atol, figure)
        if relative is None and absolute is None:
            return None
        return (absolute or 0.0) + (relative or 0.0) * abs(a)

    def covers(self, figure: str) -> bool:
        """Whether anything is stated for this figure."""
        return self.allowed(figure, 0.0) is not None

    def over(self, other: Tolerance) -> Tolerance:
        """Both; what this one states wins over the other."""
        return Tolerance({**other.rtol, **self.rtol}, {**other.atol, **self.atol})

    def problems(self, figures: Iterable[str], *, prefix: str = "") -> list[Problem]:
        """Names and patterns that no figure has."""
        known = list(figures)
        return [
            Problem(f"{prefix}{option}", f"{pattern!r} is no figure{nearest(pattern, known)}")
            for option, stated in (("rtol", self.rtol), ("atol", self.atol))
            for pattern in stated
            if pattern != "*" and not any(fnmatchcase(name, pattern) for name in known)
        ]


def _stated(stated: Mapping[str, float], figure: str) -> float | None:
    if figure in stated:
        return stated[figure]
    found = [number for pattern, number in stated.items() if fnmatchcase(figure, pattern)]
    return found[-1] if found else None


def tolerance_of(rtol: Stated | Any = None, atol: Stated | Any = None, source: str = "compare") -> Tolerance:
    """A tolerance from numbers, or mappings of figures to numbers.

    Raises
    ------
    ScenarioError
        A number that is negative, not finite or none at all; every one of them.
    """
    problems: list[Problem] = []
    made: dict[str, dict[str, float]] = {}
    for option, stated in (("rtol", rtol), ("atol", atol)):
        table = stated if isinstance(stated, Mapping) else {} if stated is None else {"*": stated}
        for figure, number in table.items():
            place = option if figure == "*" else f'{option}."{figure}"'
            if not isinstance(figure, str) or not figure:
                problems.append(Problem(option, f"{figure!r} is not the name of a figure"))
            elif isinstance(number, bool) or not isinstance(number, (int, float)):
                problems.append(Problem(place, f"{number!r} is not a number"))
            elif not isfinite(number) or number < 0:
                problems.append(Problem(place, f"{number!r} is not a finite number >= 0"))
        made[option] = dict(table)
    if problems:
        raise ScenarioError(source, problems)
    return Tolerance(**made)


def parse_tolerance(option: str, texts: Iterable[str]) -> tuple[dict[str, float], list[Problem]]:
    """Numbers and ``figure=number`` of a command line, and what is wrong with them."""
    found: dict[str, float] = {}
    problems: list[Problem] = []
    for text in texts:
        figure, equals, number = text.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            problems.append(Problem(option, f"{text!r} is not a number or figure=number"))
            continue
        if not isfinite(value) or value < 0:
            problems.append(Problem(option, f"{text!r}: a finite number >= 0 is needed"))
        elif equals and not figure.strip():
            problems.append(Problem(option, f"{text!r} names no figure"))
        else:
            found[figure.strip() or "*"] = value
    return found, problems
