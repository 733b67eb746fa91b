"""How the two sides are called: by what differs between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simkv.comparison.tables import ABSENT, flat
from simkv.errors import Problem, ScenarioError
from simkv.wording import size

__all__ = ["default_labels", "labelled", "stated_labels"]

LONGEST = 48
_BYTES = ("kv_bytes", "hbm", "weights", "draft_weights", "overhead", "state_bytes")


def stated_labels(labels: Sequence[str | None] | None, places: tuple[str, str]) -> tuple[str | None, str | None]:
    """Labels that somebody chose; None for one that is left out.

    Parameters
    ----------
    labels : sequence of str or None
        Two of them.
    places : (str, str)
        What they are called in errors.

    Raises
    ------
    ScenarioError
        Not two texts, an empty or unprintable one, or twice the same.
    """
    if labels is None:
        return None, None
    if isinstance(labels, str) or not isinstance(labels, Sequence) or len(labels) != 2:
        raise ScenarioError("compare", [Problem("labels", f"{labels!r} are not two texts, one of a and one of b")])
    problems = []
    for place, label in zip(places, labels, strict=True):
        if label is None:
            continue
        if not isinstance(label, str) or not label.strip() or not label.isprintable():
            problems.append(Problem(place, f"{label!r} is not a printable text"))
        elif len(label) > LONGEST:
            problems.append(Problem(place, f"{label[:LONGEST]!r}... is longer than {LONGEST} characters"))
    if not problems and labels[0] is not None and labels[0] == labels[1]:
        problems.append(Problem(places[1], f"{labels[1]!r} is the other side's label, too"))
    if problems:
        raise ScenarioError("compare", problems)
    return labels[0], labels[1]


def default_labels(
    scenarios: tuple[Mapping[str, Any], Mapping[str, Any]], origins: tuple[str, str] = ("", "")
) -> tuple[str, str]:
    """Labels out of what differs: one or two keys, else the names, else the directories, else a and b."""
    one, other = (flat({k: v for k, v in s.items() if k not in ("name", "description")}) for s in scenarios)
    differ = [k for k in dict.fromkeys([*one, *other]) if one.get(k, ABSENT) != other.get(k, ABSENT)]
    named = (str(scenarios[0].get("name", "")), str(scenarios[1].get("name", "")))
    values = [[side.get(k, ABSENT) for side in (one, other)] for k in differ]
    choices = [
        named,
        _of_words(differ, values),
        _of_values(differ, values),
        origins,
    ]
    return next((pair for pair in choices if pair is not None and _usable(pair)), ("a", "b"))


def labelled(stated: tuple[str | None, str | None], default: tuple[str, str]) -> tuple[str, str]:
    """What the two are called in the end: as stated, else as by default, and never alike."""
    a, b = (given or made for given, made in zip(stated, default, strict=True))
    if a != b:
        return a, b
    # One is stated, and is what the other would have been called.
    other = next(letter for letter in "ab" if letter != a)
    return (a, other) if stated[0] is not None else (other, b)


def _usable(pair: tuple[str, str]) -> bool:
    return pair[0] != pair[1] and all(text.strip() and text.isprintable() and len(text) <= LONGEST for text in pair)


def _of_words(keys: Sequence[str], values: Sequence[Sequence[Any]]) -> tuple[str, str] | None:
    """``legacy`` and ``generalized``: words speak for themselves."""
    if len(keys) != 1 or not all(isinstance(value, str) and value != ABSENT for value in values[0]):
        return None
    return str(values[0][0]), str(values[0][1])


def _of_values(keys: Sequence[str], values: Sequence[Sequence[Any]]) -> tuple[str, str] | None:
    """``rate=20`` and ``rate=30``."""
    if not 1 <= len(keys) <= 2:
        return None
    names = [key.rpartition(".")[2] for key in keys]
    made = [", ".join(f"{name}={_short(name, v[n])}" for name, v in zip(names, values, strict=True)) for n in (0, 1)]
    return made[0], made[1]


def _short(name: str, value: Any) -> str:
    if name in _BYTES and isinstance(value, int):
        return size(value).replace(".00 ", " ").replace(" ", "")
    return str(value).lower() if isinstance(value, bool) else str(value)
