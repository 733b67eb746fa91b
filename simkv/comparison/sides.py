"""One side of a comparison: whatever has a plan and, if anything ran, figures and curves.

A run is one, a scenario whose engine would not start is one, a line of a golden file is one. What compares them knows no
more of them than this.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from simkv.comparison.figures import by_name
from simkv.results import Check, Run

__all__ = ["Cause", "Side", "side_of_refusal", "side_of_run"]

TOLD = ("retraction", "abort", "refusal", "fault", "repair")


@dataclass(frozen=True)
class Cause:
    """Events of one kind, pool and cause.

    Parameters
    ----------
    event : str
        retraction, abort, refusal, fault or repair.
    pool : str
        full, swa, or ``-`` for none.
    cause : str
        Why.
    count : int
        How many.
    first_s : float
        When the first one was.
    """

    event: str
    pool: str
    cause: str
    count: int
    first_s: float


@dataclass(frozen=True, eq=False)
class Side:
    """What is compared.

    Parameters
    ----------
    label : str
        How texts and legends call it.
    scenario : dict
        Resolved, as ``Scenario.to_dict()``.
    plan : dict
        ``Plan.to_dict()``.
    summary : dict
        Figure to int, float, str or None; empty where nothing ran.
    checks : tuple of Check
    timeline, events : DataFrame
        Empty where nothing ran.
    causes : tuple of Cause
    provenance : dict
        ``simkv``, ``engine``, ``seed``, ``workload_sha256``, ``given_in_python``, and what else is known.
    fault : dict or None
        Where the engine breaks.
    refusal : dict or None
        ``engine_error``, ``message``, ``fixes`` where it would not start.
    partial : bool
        It was interrupted.
    """

    label: str
    scenario: dict[str, Any]
    plan: dict[str, Any]
    summary: dict[str, Any] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    timeline: pd.DataFrame = field(default_factory=pd.DataFrame)
    events: pd.DataFrame | None = None
    causes: tuple[Cause, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)
    fault: dict[str, str] | None = None
    refusal: dict[str, Any] | None = None
    partial: bool = False

    @property
    def ran(self) -> bool:
        """Whether anything was simulated."""
        return self.refusal is None

    @property
    def complete(self) -> bool:
        """Whether it ran to its end, so that its figures stand for the whole workload."""
        return self.ran and self.fault is None and not self.partial

    @property
    def fits_slack(self) -> bool | None:
        """Whether what is allocated beyond the budget fits outside the static fraction; None where that is not known."""
        slack = self.plan.get("slack_bytes")
        return None if slack is None or not self.plan["pools"] else bool(self.plan["overcommit_bytes"] <= slack)

    @property
    def starts(self) -> bool:
        """Whether the server starts, as far as the plan knows."""
        return self.ran and self.fits_slack is not False

    @property
    def peaks(self) -> dict[str, float]:
        """Largest values of columns of the timeline, as far as the summary has them."""
        named = {name.removesuffix(".peak"): value for name, value in self.summary.items() if name.endswith(".peak")}
        return {name: value for name, value in named.items() if isinstance(value, (int, float))}

    @property
    def workload_sha256(self) -> str:
        """Hash of the requests."""
        return str(self.provenance.get("workload_sha256", ""))


def side_of_run(run: Run, label: str) -> Side:
    """A run as a side."""
    return Side(
        label=label,
        scenario=run.scenario,
        plan=run.plan,
        summary=by_name(run.summary),
        checks=run.checks,
        timeline=run.timeline,
        events=run.events,
        causes=tuple(_causes(run.events)),
        provenance=run.provenance,
        fault=run.fault,
        partial=run.partial,
    )


def side_of_refusal(
    scenario: dict[str, Any], plan: dict[str, Any], message: str, engine_error: str, label: str, **provenance: Any
) -> Side:
    """A scenario whose engine would not start, as a side: it has a plan and no figures."""
    known = plan["infeasible"] or {"message": message, "engine_error": engine_error, "fixes": []}
    return Side(
        label=label, scenario=scenario, plan=plan, refusal=known, provenance={"engine": plan["engine"], **provenance}
    )


def _causes(events: pd.DataFrame) -> Iterable[Cause]:
    """Events that are told, by kind, pool and cause; in the order in which each first happened."""
    told = events[events["event"].isin(TOLD)]
    columns = (told[name].astype(str) for name in ("event", "pool", "cause"))
    found: dict[tuple[str, str, str], tuple[int, float]] = {}
    for event, pool, cause, when in zip(*columns, told["time_s"], strict=True):
        # A fault's cause has the figures of one request in it; its code says which faults are one.
        kind = cause.partition(":")[0] if event in ("fault", "repair") else cause
        count, first = found.get((event, pool, kind), (0, float(when)))
        found[event, pool, kind] = count + 1, first
    return (Cause(*key, *value) for key, value in found.items())
