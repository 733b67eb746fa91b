"""A point of a study, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["FAILED", "STATES", "Point", "PointResult", "StudyProgress"]

STATES = ("ok", "check failed", "engine fault", "infeasible", "error")
FAILED = ("engine fault", "infeasible", "error")
"""States of a point whose figures stand for nothing: nothing ran, or not to its end."""
StudyProgress = Callable[[int, int, int], None]
"""Called with the number of points that are done, of those that failed, and of all."""


@dataclass(frozen=True)
class Point:
    """One point of a study.

    Parameters
    ----------
    index : int
        Its number in the study; results bear it.
    changes : tuple of (str, value)
        Dotted key and value, ``seed`` among them; None removes a key.
    """

    index: int
    # Values may be lists and tables, which have no hash.
    changes: tuple[tuple[str, Any], ...] = field(default=(), hash=False)


@dataclass(frozen=True)
class PointResult:
    """What came of a point; the same whoever simulated it.

    Attributes
    ----------
    index : int
        Of the point.
    state : str
        One of :data:`STATES`.
    error : str
        What went wrong with it, empty if nothing did; a failed check is no error.
    exit_code : int
        Of ``simkv run`` for this point.
    summary : dict
        Dotted name -> int, float, str or None; of an engine fault, until then; empty where nothing ran.
    checks : list of dict
        ``key``, ``condition``, ``value``, ``holds``.
    plan : dict
        Figures of the plan (``max_total_num_tokens`` ...), empty where the scenario is wrong.
    workload_sha256 : str
        Of the requests, empty where nothing ran.
    """

    index: int
    state: str
    error: str = ""
    exit_code: int = 0
    summary: dict[str, Any] = field(default_factory=dict)
    checks: list[dict[str, Any]] = field(default_factory=list)
    plan: dict[str, Any] = field(default_factory=dict)
    workload_sha256: str = ""

    @property
    def failed(self) -> bool:
        """Whether its figures stand for nothing."""
        return self.state in FAILED

    def to_dict(self) -> dict[str, Any]:
        """What JSON can hold."""
        return asdict(self)
