"""Flags of ``sglang.launch_server`` 0.5.23: which there are, and what each means for KV memory.

The table is ``flags.toml``, beside this module; words are split into flags as the engine's parser (argparse) does it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from simkv.errors import Problem, nearest

__all__ = ["Flag", "Given", "engine_environment", "engine_flags", "read_flags"]

Use = Literal["used", "no effect", "refused"]
Unless = Literal["weights", "fraction", "stateless"]


@dataclass(frozen=True)
class Flag:
    """One flag.

    Parameters
    ----------
    names : tuple of str
        All its names, the engine's own first.
    takes : str
        How many values: ``0``, ``1``, or argparse's ``+``, ``*``, ``?``.
    use : str
        ``used``, ``no effect`` or ``refused``.
    key : str
        Key of the scenario that it sets; empty where it sets none.
    why, remedy : str
        Why it has no effect, or what it changes and what to do instead.
    harmless : tuple of str
        Values of a refused flag that change nothing.
    unless : str or None
        What makes a refused flag harmless.
    """

    names: tuple[str, ...]
    takes: str
    use: Use
    key: str = ""
    why: str = ""
    remedy: str = ""
    harmless: tuple[str, ...] = ()
    unless: Unless | None = None

    @property
    def name(self) -> str:
        """The engine's own name."""
        return self.names[0]


@dataclass(frozen=True)
class Given:
    """A flag as a command line gives it.

    Parameters
    ----------
    flag : Flag
        Which one.
    word : str
        How it was written: an alias, or a beginning that is unique.
    values : tuple of str
        Its values, none for a switch.
    """

    flag: Flag
    word: str
    values: tuple[str, ...] = ()

    @property
    def value(self) -> str:
        """Its values as one text."""
        return " ".join(self.values)


# --------------------------------------------------------------------------------------------------------------- table
@cache
def _table() -> dict[str, Any]:
    return tomllib.loads((files("simkv.engines.sglang") / "flags.toml").read_text(encoding="utf-8"))


def _flag(line: str, use: Use, group: Mapping[str, Any]) -> Flag:
    *names, last = line.split(" ")
    if last.startswith("--"):
        names, last = [*names, last], ""
    harmless = tuple(last[1:].split("|")) if last[:1] == "=" and last != "=" else ()
    facts = {name: group[name] for name in ("key", "why", "remedy", "unless") if name in group}
    return Flag(tuple(names), {"": "0", "=": "1"}.get(last[:1], last), use, harmless=harmless, **facts)


@cache
def engine_flags() -> tuple[Flag, ...]:
    """All flags of the engine."""
    uses: tuple[Use, ...] = ("used", "refused", "no effect")
    return tuple(
        _flag(line, use, group)
        for use in uses
        for group in _table()[use.replace(" ", "_")]
        for line in group["flags"].strip().splitlines()
    )


def engine_environment() -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Environment variables: name -> key of the scenario, and name -> why it is refused."""
    env = _table()["env"]
    return env["used"], env["refused"]


# --------------------------------------------------------------------------------------------------------------- words
def read_flags(words: Sequence[str]) -> tuple[list[Given], list[Problem]]:
    """Flags and values of a command line, and everything that is wrong with it.

    As argparse: ``--flag value`` or ``--flag=value``; a beginning that only one flag has is that flag; the last of
    several counts (the caller's matter: all are returned, in order).

    Parameters
    ----------
    words : sequence of str
        What follows the name of the program.
    """
    by_name = {name: flag for flag in engine_flags() for name in flag.names}
    given: list[Given] = []
    problems: list[Problem] = []
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        if not _is_flag(word):
            problems.append(
                Problem(_shown(word), "is no flag; values belong behind a flag, in quotes if they hold spaces")
            )
            continue
        name, joined, value = word.partition("=")
        found = _find(name, by_name)
        if isinstance(found, Problem):
            problems.append(found)
            # What follows an unknown flag is most likely its value.
            place += sum(1 for _ in _values(words[place:])) if not joined else 0
            continue
        if joined:
            values: tuple[str, ...] = (value,)
            if found.takes == "0":
                problems.append(Problem(name, f"is a switch and takes no value ({_shown(value)})"))
                continue
        else:
            most = {"0": 0, "1": 1, "?": 1}.get(found.takes, len(words))
            values = tuple(_values(words[place:]))[:most]
            place += len(values)
        if not values and found.takes in ("1", "+"):
            problems.append(Problem(name, "lacks its value"))
            continue
        given.append(Given(found, name, values))
    return given, problems


def _is_flag(word: str) -> bool:
    return word.startswith("--") and len(word) > 2


def _values(words: Sequence[str]) -> Iterable[str]:
    """Words up to the next flag; a number may begin with a minus sign."""
    for word in words:
        if word.startswith("-") and not _is_number(word):
            return
        yield word


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _find(name: str, by_name: Mapping[str, Flag]) -> Flag | Problem:
    """The flag of this name or beginning."""
    if name in by_name:
        return by_name[name]
    begun = sorted(other for other in by_name if other.startswith(name))
    found = {by_name[other].names for other in begun}
    if len(found) == 1:
        return by_name[begun[0]]
    if found:
        shown = ", ".join(begun[:6]) + (" ..." if len(begun) > 6 else "")
        return Problem(name, f"may mean {shown}; write one of them")
    return Problem(_shown(name), f"is no flag of SGLang 0.5.23{nearest(name, by_name)}")


def _shown(word: str) -> str:
    """A word that may be anything, on one line."""
    text = word if word.isprintable() else repr(word)
    return text if len(text) <= 60 else text[:57] + "..."
