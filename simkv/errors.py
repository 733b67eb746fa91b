"""Exceptions a caller may catch.

::

    SimkvError                 exit 70 unless a subclass says otherwise
    ├── UserError              exit 2: something the user wrote is wrong; carries every problem at once
    │   ├── ScenarioError      a scenario, an override, a command line
    │   ├── ModelError         a model config, or an architecture refused by name
    │   └── TraceError         a request trace (places are file:line)
    ├── InfeasibleError        exit 3: the engine would not start with these settings
    ├── EngineFault            exit 3: the engine would die, or stall for ever, in this run
    ├── ReplayMismatch         exit 4: real memory does not hold what the run claims
    └── InvariantError         exit 70: a fault of simkv itself
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

__all__ = [
    "EngineFault",
    "InfeasibleError",
    "InvariantError",
    "ModelError",
    "Problem",
    "ReplayMismatch",
    "ScenarioError",
    "SimkvError",
    "TraceError",
    "UserError",
    "nearest",
]


@dataclass(frozen=True, order=True)
class Problem:
    """One thing that is wrong.

    Parameters
    ----------
    place : str
        Dotted key (``memory.page_size``) or ``file:line``.
    message : str
        The value found, what is allowed, and the remedy, in one sentence.
    """

    place: str
    message: str


class SimkvError(Exception):
    """Base of every error simkv raises on purpose."""

    exit_code = 70


class UserError(SimkvError):
    """Something the user wrote is wrong; reports all problems at once.

    Parameters
    ----------
    source : str
        What was being read: a file name, ``<dict>``, a command.
    problems : iterable of Problem
        At least one.
    """

    exit_code = 2

    def __init__(self, source: str, problems: Iterable[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        super().__init__(self.render())

    def render(self) -> str:
        """Text of the message, one line a problem."""
        count = len(self.problems)
        head = f"{count} problem{'s' if count != 1 else ''} in {self.source}"
        width = max((len(p.place) for p in self.problems), default=0)
        return "\n".join([head, *(f"  {p.place:<{width}}  {p.message}" for p in self.problems)])

    def __reduce__(self) -> tuple[type[UserError], tuple[str, tuple[Problem, ...]]]:
        return (type(self), (self.source, self.problems))


class ScenarioError(UserError):
    """A scenario, an override or a command line is wrong."""


class ModelError(UserError):
    """A model config is wrong, or describes layers simkv cannot account for."""


class TraceError(UserError):
    """A request trace is wrong; places are ``file:line``."""


class InfeasibleError(SimkvError):
    """The engine would refuse to start.

    Parameters
    ----------
    message : str
        Which pool, what it needs, what there is, and the smallest change of each knob that would do.
    engine_error : str
        Name of the exception the engine itself raises (``ValueError``, ``RuntimeError`` ...).
    """

    exit_code = 3

    def __init__(self, message: str, engine_error: str = "RuntimeError") -> None:
        super().__init__(message)
        self.engine_error = engine_error


class EngineFault(SimkvError):
    """The engine itself would die or stall for ever at this point of the run.

    Parameters
    ----------
    fault : str
        Name of the fault (see ``simkv.engines.sglang.faults``).
    message : str
        What happens, in which pool, to which request.
    request : int
        Handle of the request it happens to, -1 for none.
    pool : str
        Pool it happens in, ``-`` for none.
    """

    exit_code = 3

    def __init__(self, fault: str, message: str, request: int = -1, pool: str = "-") -> None:
        super().__init__(f"{fault}: {message}")
        self.fault = fault
        self.message = message
        self.request = request
        self.pool = pool


class ReplayMismatch(SimkvError):
    """Real memory does not hold what the run claims."""

    exit_code = 4


class InvariantError(SimkvError):
    """simkv broke a rule of its own; always a fault of simkv."""

    exit_code = 70


def nearest(word: str, allowed: Iterable[str]) -> str:
    """``; did you mean X?`` for the closest allowed word, or an empty string."""
    words = list(allowed)
    # The start of a word says more than its likeness: fp8 is fp8_e4m3 rather than mxfp8.
    same = [one for one in words if one.lower() == word.lower()]
    begun = same or [one for one in words if word and one.startswith(word)]
    match = sorted(begun, key=len)[:1] or get_close_matches(word, words, n=1, cutoff=0.6)
    return f"; did you mean {match[0]}?" if match else ""
