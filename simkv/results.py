"""A run as a value: frames, summary, checks, figures, and the directory they are kept in."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from simkv.allocations import AllocationLog
from simkv.alloctable import allocation_table, parquet_options
from simkv.document import holds
from simkv.engines.base import Plan
from simkv.engines.sglang.batch import RetractionOrder, default_retraction_order
from simkv.engines.sglang.build import build_scheduler
from simkv.engines.sglang.routing import RoutingRule
from simkv.engines.sglang.scheduling import Scheduler
from simkv.errors import InvariantError, Problem, ScenarioError, nearest
from simkv.frames import Frames
from simkv.guards import GuardedAcceptance, GuardedStepTime, guarded_order, interrupt_calls, is_usable
from simkv.outputs import write_directory
from simkv.scenario import Scenario, load
from simkv.simulation import Outcome, Progress, Simulation
from simkv.steptime import StepTime
from simkv.wording import plain
from simkv.workload.acceptance import Acceptance
from simkv.workload.request import Workload
from simkv.workload.reuse import reusable_token_share

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Check", "PLOTS", "Run", "check_figures", "engine_for", "load_run", "simulate", "versions"]

SCHEMA = 2
PLOTS = ("utilization", "eviction", "oom", "concurrency", "draft", "cache", "dashboard")
_ALLOCATIONS = "allocations.parquet"
_FRAMES = ("timeline", "requests", "events")


@dataclass(frozen=True)
class Check:
    """One line of ``[checks]``: what was asked, what came out, and whether it holds."""

    key: str
    condition: str
    value: float | str | None
    holds: bool


@dataclass(frozen=True, eq=False)
class Run:
    """Result of one simulation.

    Attributes
    ----------
    scenario : dict
        The scenario with every default filled in.
    plan : dict
        Sizes of the pools (``Plan.to_dict()``).
    timeline, requests, events : DataFrame
        One row a scheduler step, a request, an event.
    summary : Series
        Dotted name -> value.
    checks : tuple of Check
    provenance : dict
        Versions, seed, hash of the workload.
    fault : dict or None
        ``{"fault", "message"}`` where the engine itself would die or stall for ever.
    partial : bool
        The run was interrupted.
    allocations : pyarrow.Table or None
        Every slot that changed hands (:mod:`simkv.allocations`), where that was recorded; what a replay executes.
    allocation_rows : int or None
        How many rows of them the run wrote.
    """

    scenario: dict[str, Any]
    plan: dict[str, Any]
    timeline: pd.DataFrame
    requests: pd.DataFrame
    events: pd.DataFrame
    summary: pd.Series
    checks: tuple[Check, ...]
    provenance: dict[str, Any]
    workload: dict[str, Any]
    fault: dict[str, str] | None = None
    partial: bool = False
    notes: tuple[str, ...] = field(default_factory=tuple)
    allocations: pa.Table | None = field(default=None, repr=False)
    allocation_rows: int | None = None

    @property
    def name(self) -> str:
        """Name of the scenario."""
        return str(self.scenario.get("name", "run"))

    @property
    def failed_checks(self) -> tuple[Check, ...]:
        """Checks that do not hold."""
        return tuple(check for check in self.checks if not check.holds)

    @property
    def exit_code(self) -> int:
        """Exit code of ``simkv run`` for this result."""
        if self.partial:
            return 130
        if self.fault is not None:
            return 3
        return 1 if self.failed_checks else 0

    def plot(self, kind: str = "utilization", ax: Axes | None = None, title: str | None = None) -> Axes | Any:
        """Draw one kind of curve.

        Parameters
        ----------
        kind : str
            ``utilization``, ``eviction``, ``oom``, ``concurrency``, ``draft``, ``cache``, or ``dashboard`` (all, a Figure).
        ax : Axes, optional
            Where to draw; a new figure otherwise.
        title : str, optional
            Instead of the scenario's name.
        """
        from simkv import plotting

        if kind not in PLOTS:
            raise ScenarioError(
                "plot", [Problem("kind", f"{kind!r} is not one of {', '.join(PLOTS)}{nearest(kind, PLOTS)}")]
            )
        title = title if title is not None else f"{self.name}: {kind}"
        if kind == "dashboard":
            return plotting.dashboard(self.timeline, self.events, self.plan, title=self.name, notes=self._footer())
        if kind == "oom":
            return plotting.oom(self.timeline, self.events, self.plan, ax=ax, title=title)
        draw = {
            "utilization": plotting.utilization,
            "eviction": plotting.eviction,
            "concurrency": plotting.concurrency,
            "draft": plotting.draft,
            "cache": plotting.cache,
        }[kind]
        return draw(self.timeline, self.plan, ax=ax, title=title)

    def _footer(self) -> list[str]:
        lines = [
            f"{self.plan['engine']}, {self.plan['model']}, routing {self.plan['routing']}, seed {self.provenance['seed']}"
        ]
        if self.fault is not None:
            lines.append(f"the engine breaks here: {self.fault['fault']}")
        return lines

    # ---- storage
    def to_json(self) -> dict[str, Any]:
        """Everything but the frames."""
        return {
            "schema": SCHEMA,
            "provenance": self.provenance,
            "scenario": self.scenario,
            "workload": self.workload,
            "plan": self.plan,
            "summary": {key: plain(value) for key, value in self.summary.items()},
            "checks": [check.__dict__ for check in self.checks],
            "fault": self.fault,
            "partial": self.partial,
            "notes": list(self.notes),
            "allocation_rows": self.allocation_rows,
        }

    def save(self, directory: str | Path, *, force: bool = False, figures: bool = True) -> Path:
        """Write the run directory: whole, or not at all.

        Raises
        ------
        ScenarioError
            The directory exists and ``force`` is not given, or cannot be written.
        """
        return write_directory(directory, lambda fresh: self._write(fresh, figures=figures), force=force)

    def _write(self, directory: Path, *, figures: bool) -> None:
        directory.mkdir()
        text = json.dumps(self.to_json(), indent=1, allow_nan=False)
        (directory / "run.json").write_text(text + "\n", encoding="utf-8")
        for frame in _FRAMES:
            getattr(self, frame).to_parquet(directory / f"{frame}.parquet", index=False)
        if self.allocations is not None:
            pq.write_table(self.allocations, directory / _ALLOCATIONS, **parquet_options())
        if figures:
            self._save_figures(directory / "figures")

    def _save_figures(self, directory: Path) -> None:
        from simkv import plotting

        directory.mkdir()
        for kind in PLOTS:
            drawn: Any = self.plot(kind)
            plotting.save(drawn if kind == "dashboard" else drawn.figure, directory / f"{kind}.png")

    def _repr_html_(self) -> str:
        head = f"<b>{escape(self.name)}</b> on {escape(self.plan['engine'])}, {escape(self.plan['model'])}"
        if self.fault is not None:
            head += f"<br>the engine breaks: {escape(self.fault['fault'])}"
        return head + self.summary.to_frame("value").to_html()

    def __repr__(self) -> str:
        s = self.summary
        return f"Run({self.name!r}, {s['requests.completed']} of {s['requests.injected']} requests completed)"


def load_run(directory: str | Path) -> Run:
    """Read a run directory back.

    Raises
    ------
    ScenarioError
        It is no run directory, or a file of it is missing.
    """
    path = Path(directory)
    try:
        data = json.loads((path / "run.json").read_text(encoding="utf-8"))
        frames = {name: pd.read_parquet(path / f"{name}.parquet") for name in _FRAMES}
        log = path / _ALLOCATIONS
        allocations = pq.read_table(log) if log.is_file() else None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ScenarioError(str(path), [Problem(str(path), f"is no run directory: {reason}")]) from None
    written = data.get("schema") if isinstance(data, dict) else None
    if written != SCHEMA:
        raise ScenarioError(str(path), [Problem("schema", f"{written!r} is not {SCHEMA}; run it again")])
    try:
        return Run(
            scenario=data["scenario"],
            plan=data["plan"],
            summary=pd.Series(data["summary"], dtype=object, name="value"),
            checks=tuple(Check(**check) for check in data["checks"]),
            provenance=data["provenance"],
            workload=data["workload"],
            fault=data["fault"],
            partial=data["partial"],
            notes=tuple(data["notes"]),
            allocations=allocations,
            allocation_rows=data["allocation_rows"],
            **frames,
        )
    except (KeyError, TypeError) as error:
        raise ScenarioError(str(path), [Problem("run.json", f"lacks {error}; run it again")]) from None


# ------------------------------------------------------------------------------------------------- simulate
def engine_for(
    scenario: Scenario,
    plan: Plan,
    *,
    retraction_order: RetractionOrder = default_retraction_order,
    log: AllocationLog | None = None,
) -> Scheduler:
    """The engine of a scenario, empty, with the pools of its plan.

    Raises
    ------
    InfeasibleError
        The engine would not start.
    ScenarioError
        The prefix cache is on and would hold state that is not simulated, or a fault cannot be recorded.
    """
    r = scenario.resolved
    if log is not None and "unaligned-reserve" in r.settings.faults:
        message = "unaligned-reserve loses parts of pages, for which there are no slots to record; record without it"
        raise ScenarioError(scenario.source, [Problem("policies.faults", message)])
    engine = build_scheduler(r.arch, r.settings, plan, retraction_order, log)
    if not r.settings.disable_radix_cache and r.arch.state_bytes(r.settings.tp_size):
        message = (
            f"false: the prefix cache of {r.arch.name} also holds short-convolution state, which is not simulated; "
            "set it to true"
        )
        raise ScenarioError(scenario.source, [Problem("memory.disable_radix_cache", message)])
    return engine


def simulate(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    *,
    seed: int | None = None,
    workload: Workload | None = None,
    routing: RoutingRule | str | None = None,
    acceptance: Acceptance | None = None,
    steptime: StepTime | None = None,
    retraction_order: RetractionOrder | None = None,
    check_every: int = 0,
    record_allocations: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Run:
    """Run a scenario.

    Parameters
    ----------
    scenario : str, Path, mapping or Scenario
        What to run.
    seed : int, optional
        Instead of the scenario's.
    workload : Workload, optional
        Requests instead of the scenario's.
    routing, acceptance, steptime, retraction_order : optional
        Policies of one's own instead of the scenario's.
    check_every : int
        Check conservation of every pool every so many steps; at the end in any case.
    record_allocations : bool
        Give every slot its number and write down whose it is when: :attr:`Run.allocations`, what a replay executes.
    progress : callable, optional
        Called now and then with a :class:`Progress`.

    Raises
    ------
    UserError
        Scenario, model or trace are wrong.
    InfeasibleError
        The engine would not start.
    InvariantError
        A fault of simkv.
    """
    is_usable(
        workload=(workload, "arrival_ns"),
        routing=(None if isinstance(routing, str) else routing, "owns_depth"),
        acceptance=(acceptance, "draw"),
        steptime=(steptime, "__call__"),
        retraction_order=(retraction_order, "__call__"),
    )
    one = load(scenario)
    if seed is not None:
        one = one.set(seed=seed)
    if routing is not None:
        one = one.with_routing(routing)
    plan = one.plan()
    order = default_retraction_order if retraction_order is None else guarded_order(retraction_order)
    log = AllocationLog() if record_allocations else None
    engine = engine_for(one, plan, retraction_order=order, log=log)
    work = workload if workload is not None else one.workload()
    check_figures(one, plan)
    simulation = Simulation(
        engine,
        work,
        one.acceptance(work) if acceptance is None else GuardedAcceptance(acceptance, one.accept_width),
        one.step_time() if steptime is None else GuardedStepTime(steptime),
        check_every=check_every,
        progress=progress,
    )
    given = {
        "arch": one.arch,
        "routing": one.rule,
        "workload": workload,
        "acceptance": acceptance,
        "steptime": steptime,
        "retraction_order": retraction_order,
    }
    try:
        with interrupt_calls(simulation.stop):
            outcome = simulation.run()
    except InvariantError as error:
        raise InvariantError(f"{one.source}, seed {one.seed}, {error}") from error
    handed_over = [name for name, value in given.items() if value is not None]
    table = None if log is None else allocation_table(log, outcome.request_of)
    return _run(one, plan, work, outcome, handed_over, table)


def _run(
    scenario: Scenario,
    plan: Plan,
    workload: Workload,
    outcome: Outcome,
    given: list[str],
    allocations: pa.Table | None,
) -> Run:
    frames = Frames(plan, workload, outcome)
    summary = frames.summary
    info = workload.info
    return Run(
        scenario=scenario.to_dict(),
        plan=plan.to_dict(),
        timeline=frames.timeline,
        requests=frames.requests,
        events=frames.events,
        summary=pd.Series(summary, dtype=object, name="value"),
        checks=_checks(scenario.document.checks, summary),
        provenance={
            **versions(),
            "engine": plan.engine,
            "seed": scenario.seed,
            "workload_sha256": workload.digest(),
            # Objects handed over in Python, which the scenario below does not hold.
            "given_in_python": given,
        },
        workload={
            "source": info.source,
            "format": info.format,
            "time_unit": info.time_unit,
            "rows": info.rows,
            "requests": len(workload),
            "span_s": workload.span_s,
            "mean_rate": workload.mean_rate,
            "zero_output": info.zero_output,
            "out_of_order": info.out_of_order,
            "reusable_token_share": reusable_token_share(workload),
            "notes": list(info.notes),
        },
        fault=None if outcome.fault is None else {"fault": outcome.fault.fault, "message": outcome.fault.message},
        partial=outcome.partial,
        notes=tuple(_notes(scenario, given, workload, outcome, frames)),
        allocations=allocations,
        allocation_rows=None if allocations is None else allocations.num_rows,
    )


def _notes(scenario: Scenario, given: Sequence[str], workload: Workload, outcome: Outcome, frames: Frames) -> list[str]:
    notes = list(workload.info.notes)
    document = scenario.document
    kind = document.acceptance["kind"]
    if document.draft is None and kind != "none":
        notes.append(f"acceptance {kind} has no effect: there is no [draft]")
    if document.draft is not None and kind == "none" and "acceptance" not in given:
        notes.append("no [acceptance] is stated: every verify step yields the bonus token only")
    if document.sweep:
        notes.append("[sweep] is left alone: this is one run of the scenario itself; simkv sweep runs the grid")
    if outcome.clipped:
        notes.append(
            f"{len(outcome.clipped)} of {len(workload)} requests asked for more tokens than context and pool leave: clipped at "
            f"arrival (first {workload.request_id[outcome.clipped[0]]})"
        )
    peak = frames.peak_usage
    idle = peak is not None and peak < 0.5 and not frames.summary["requests.retractions"]
    if idle and outcome.fault is None and frames.summary["requests.completed"]:
        notes.append(f"no pool is ever more than {peak:.0%} full: this load cannot distinguish memory settings")
    return notes


def versions() -> dict[str, str]:
    """What figures may depend on besides their scenario."""
    numbers = {"python": platform.python_version(), "numpy": np.__version__, "pandas": pd.__version__}
    return {"simkv": _version(), **numbers}


def _version() -> str:
    try:
        return version("simkv")
    except PackageNotFoundError:
        return "0+unknown"


# ------------------------------------------------------------------------------------------------- checks
def check_figures(scenario: Scenario, plan: Plan | None = None) -> None:
    """Refuse checks of names that no summary has, before anything is simulated.

    Raises
    ------
    ScenarioError
        Every such name.
    """
    wanted = scenario.document.checks
    if not wanted:
        return
    known = list(Frames.empty(scenario.plan() if plan is None else plan).summary)
    problems = [
        Problem(f'checks."{key}"', f"no such figure{nearest(key, known)}") for key in wanted if key not in known
    ]
    if problems:
        raise ScenarioError(scenario.source, problems)


def _checks(conditions: Mapping[str, str], summary: Mapping[str, Any]) -> tuple[Check, ...]:
    found = []
    for key, condition in conditions.items():
        value = plain(summary.get(key))
        found.append(Check(key, condition, value, holds(condition, value)))
    return tuple(found)
