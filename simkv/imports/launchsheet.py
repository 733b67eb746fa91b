"""A launch command on its way to a scenario: flags on one side, keys on the other, and what is wrong or to be said."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from simkv.engines.sglang.command import Command
from simkv.engines.sglang.flags import Given, engine_flags, read_flags
from simkv.errors import Problem, nearest

__all__ = ["LaunchFlag", "LaunchSheet"]


class LaunchFlag(NamedTuple):
    """What became of one flag, variable or default.

    ``use`` is ``used``, ``no effect``, ``ignored`` (refused, and overruled by the user), or ``default`` (no flag: what
    the engine chooses by itself).
    """

    flag: str
    value: str
    use: str
    key: str
    why: str


def _human(text: str) -> int:
    """An integer, or with k, M, G, T (decimal) or Ki, Mi, Gi, Ti (binary), as the engine reads some (utils/common.py:3394)."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)(k|M|G|T)\s*|\s*(\d+)(Ki|Mi|Gi|Ti)\s*", text)
    if match is None:
        return int(text)
    if match[2]:
        return int(Decimal(match[1]) * int(1000 ** ("kMGT".index(match[2]) + 1)))
    return int(match[3]) * int(1024 ** ("KMGT".index(match[4][0]) + 1))


_READERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "integer": (int, "an integer"),
    "human": (_human, "an integer, also as 8k or 8Ki"),
    "number": (float, "a number"),
}


class LaunchSheet:
    """One command: what it gives, what was made of it, what is wrong, what to say.

    Parameters
    ----------
    command : Command
        What the command says.
    ignore : tuple of str
        Flags that the user wants left out.

    Attributes
    ----------
    given : dict of str to Given
        Flags by the engine's own name, in the command's order, the last of several.
    data : dict of dict
        Sections and keys of the scenario so far.
    because : dict of str to str
        Dotted key -> the flag or the reason that set it.
    rows : list of LaunchFlag
    problems : list of Problem
    notes : list of str
    """

    def __init__(self, command: Command, ignore: tuple[str, ...]) -> None:
        self.command = command
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.data: dict[str, dict[str, Any]] = {}
        self.because: dict[str, str] = {}
        self.rows: list[LaunchFlag] = []
        given, problems = read_flags(command.words)
        self.given: dict[str, Given] = {}
        self._ignore(ignore, given, problems)

    # ---- what was given
    def _ignore(self, ignore: tuple[str, ...], given: Sequence[Given], problems: Sequence[Problem]) -> None:
        by_name = {name: flag.name for flag in engine_flags() for name in flag.names}
        dashed = [name if name.startswith("--") else f"--{name}" for name in ignore]
        dropped = {by_name.get(name, name): name for name in dashed}
        seen = {one.flag.name for one in given} | {problem.place for problem in problems}
        for own, name in dropped.items():
            if own not in seen:
                message = f"is to be ignored, and is no flag of the command{nearest(name, seen)}"
                self.problems.append(Problem(name, message))
        self.problems += [problem for problem in problems if problem.place not in dropped]
        for problem in problems:
            if problem.place in dropped:
                self._ignored(problem.place, "", problem.message)
        for one in given:
            if one.flag.name in dropped:
                self._ignored(one.flag.name, one.value, one.flag.why or "its own value is not wanted")
            else:
                if one.flag.name in self.given and one.value != self.given[one.flag.name].value:
                    self.notes.append(f"{one.flag.name} is given more than once: the last one counts")
                # The last one counts, in its own place.
                self.given.pop(one.flag.name, None)
                self.given[one.flag.name] = one

    def _ignored(self, flag: str, value: str, why: str) -> None:
        self.rows.append(LaunchFlag(flag, value, "ignored", "", why))
        self.notes.append(f"{flag} is ignored as asked, and the scenario is not this server: {why}")

    def wrong(self, flag: str, message: str) -> None:
        """Note a problem."""
        self.problems.append(Problem(flag, message))

    def text(self, flag: str) -> str | None:
        """The value of a flag, None where it is not given."""
        given = self.given.get(flag)
        if given is None:
            return None
        if "$" in given.value:
            self.wrong(flag, f"{given.value!r} holds a shell variable that the command does not set; write its value")
        return given.value

    def number(self, flag: str, kind: str = "integer") -> Any:
        """The value of a flag as a number; None where it is not given or is none."""
        text = self.text(flag)
        if text is None or "$" in text:
            return None
        read, what = _READERS[kind]
        try:
            return read(text)
        except ValueError:
            self.wrong(flag, f"{text!r} is not {what}")
            return None

    def put(self, key: str, value: Any, because: str) -> None:
        """Set a key of the scenario."""
        section, _, name = key.partition(".")
        self.data.setdefault(section, {})[name] = value
        self.because[key] = because

    def default(self, key: str, value: Any, why: str) -> None:
        """Write out what the engine chooses by itself."""
        self.put(key, value, why)
        self.rows.append(LaunchFlag("", _shown(value), "default", key, why))


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
