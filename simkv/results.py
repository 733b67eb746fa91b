"""A run as a value: frames, summary, checks, figures, and the directory they are kept in."""

from __future__ import annotations

import json
import operator
import platform
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from simkv.document import comparison
from simkv.engines.base import LIMITS, Plan
from simkv.engines.sglang.plan import server_refusal
from simkv.engines.sglang.routing import RoutingRule
from simkv.engines.sglang.scheduling import RetractionOrder, Scheduler, default_retraction_order
from simkv.errors import InfeasibleError, InvariantError, Problem, ScenarioError, nearest
from simkv.guards import GuardedAcceptance, GuardedStepTime, guarded_order, interrupt_calls
from simkv.scenario import Scenario, load
from simkv.simulation import KINDS, Outcome, Progress, Simulation
from simkv.steptime import StepTime
from simkv.workload.acceptance import Acceptance
from simkv.workload.request import Workload

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Check", "PLOTS", "Run", "engine_for", "load_run", "simulate"]

SCHEMA = 1
PLOTS = ("utilization", "eviction", "oom", "concurrency", "draft", "dashboard")
_FRAMES = ("timeline", "requests", "events")
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
# Share of a pool's capacity from which it counts as full.
FULL_FROM = 0.99
# Share of time from which a limit that keeps requests waiting is the binding one.
BINDING_FROM = 0.01


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
            ``utilization``, ``eviction``, ``oom``, ``concurrency``, ``draft``, or ``dashboard`` (all, a Figure).
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
            "summary": {key: _plain(value) for key, value in self.summary.items()},
            "checks": [check.__dict__ for check in self.checks],
            "fault": self.fault,
            "partial": self.partial,
            "notes": list(self.notes),
        }

    def save(self, directory: str | Path, *, force: bool = False, figures: bool = True) -> Path:
        """Write the run directory: whole, or not at all.

        Raises
        ------
        ScenarioError
            The directory exists and ``force`` is not given, or cannot be written.
        """
        target = Path(directory)
        check_free(target, force=force)
        # A link stays one; what it points to is replaced.
        target = target.resolve()
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".simkv-", dir=target.parent) as name:
                fresh = Path(name) / "run"
                self._write(fresh, figures=figures)
                _replace(target, fresh, aside=Path(f"{name}.old"))
        except OSError as error:
            reason = error.strerror or str(error)
            raise ScenarioError("--out", [Problem(str(target), f"cannot be written: {reason}")]) from None
        return target

    def _write(self, directory: Path, *, figures: bool) -> None:
        directory.mkdir()
        text = json.dumps(self.to_json(), indent=1, allow_nan=False)
        (directory / "run.json").write_text(text + "\n", encoding="utf-8")
        for frame in _FRAMES:
            getattr(self, frame).to_parquet(directory / f"{frame}.parquet", index=False)
        if figures:
            self._save_figures(directory / "figures")

    def _save_figures(self, directory: Path) -> None:
        from simkv import plotting

        directory.mkdir()
        for kind in PLOTS:
            drawn: Any = self.plot(kind)
            plotting.save(drawn if kind == "dashboard" else drawn.figure, directory / f"{kind}.png")

    def _repr_html_(self) -> str:
        head = f"<b>{self.name}</b> on {self.plan['engine']}, {self.plan['model']}"
        if self.fault is not None:
            head += f"<br>the engine breaks: {self.fault['fault']}"
        return head + self.summary.to_frame("value").to_html()

    def __repr__(self) -> str:
        s = self.summary
        return f"Run({self.name!r}, {s['requests.completed']} of {s['requests.injected']} requests completed)"


def check_free(target: Path, *, force: bool) -> None:
    """Refuse a directory that cannot be, or to overwrite one that was not meant to be.

    Raises
    ------
    ScenarioError
        With what to do instead.
    """
    try:
        target.lstat()
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        shown = str(target) if str(target).isprintable() else repr(str(target))
        raise ScenarioError("--out", [Problem(shown, f"cannot be written: {reason}")]) from None
    if not (target / "run.json").is_file() and (not target.is_dir() or any(target.iterdir())):
        raise ScenarioError("--out", [Problem(str(target), "exists and is no run directory; name another one")])
    if not force:
        raise ScenarioError("--out", [Problem(str(target), "exists already; name another directory or pass --force")])


def _replace(target: Path, fresh: Path, aside: Path) -> None:
    """Put a directory in the place of another; if that fails, the other one is there as before."""
    if not target.exists():
        fresh.rename(target)
        return
    target.rename(aside)
    try:
        fresh.rename(target)
    except BaseException:
        aside.rename(target)
        raise
    shutil.rmtree(aside)


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
            **frames,
        )
    except (KeyError, TypeError) as error:
        raise ScenarioError(str(path), [Problem("run.json", f"lacks {error}; run it again")]) from None


# ------------------------------------------------------------------------------------------------- simulate
def engine_for(
    scenario: Scenario, plan: Plan, *, retraction_order: RetractionOrder = default_retraction_order
) -> Scheduler:
    """The engine of a scenario, empty, with the pools of its plan.

    Raises
    ------
    InfeasibleError
        The engine would not start.
    ScenarioError
        The prefix cache is on, which is not simulated yet.
    """
    settings = scenario.resolved.settings
    refused = plan.infeasible or server_refusal(scenario.resolved.arch, plan, settings)
    if refused is not None:
        raise InfeasibleError(refused.text(), refused.engine_error)
    if not settings.disable_radix_cache:
        raise ScenarioError(
            scenario.source,
            [
                Problem(
                    "memory.disable_radix_cache",
                    "false: the prefix cache is sized but not simulated yet; set it to true",
                )
            ],
        )
    all_swa = plan.full_max_total_num_tokens == 0
    full = plan.max_total_num_tokens if plan.full_max_total_num_tokens is None else plan.full_max_total_num_tokens
    drafts = [p.tokens for p in plan.pools if p.worker != "target" and p.layers and p.indexed_by == "full"]
    smallest = min(drafts, default=None)
    return Scheduler(
        settings,
        full_tokens=None if all_swa else full,
        swa_tokens=plan.swa_max_total_num_tokens,
        max_running_requests=plan.max_running_requests or 0,
        draft_slots=smallest if smallest is not None and full is not None and smallest < full else None,
        retraction_order=retraction_order,
    )


def simulate(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    *,
    seed: int | None = None,
    workload: Workload | None = None,
    routing: RoutingRule | None = None,
    acceptance: Acceptance | None = None,
    steptime: StepTime | None = None,
    retraction_order: RetractionOrder | None = None,
    check_every: int = 0,
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
    one = load(scenario)
    if seed is not None:
        one = one.set(seed=seed)
    if routing is not None:
        one = one.with_routing(routing)
    plan = one.plan()
    order = default_retraction_order if retraction_order is None else guarded_order(retraction_order)
    engine = engine_for(one, plan, retraction_order=order)
    work = workload if workload is not None else one.workload()
    _check_keys(one, plan)
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
    return _run(one, plan, work, outcome, [name for name, value in given.items() if value is not None])


def _run(scenario: Scenario, plan: Plan, workload: Workload, outcome: Outcome, given: list[str]) -> Run:
    frames = _Frames(plan, workload, outcome)
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
            "simkv": _version(),
            "engine": plan.engine,
            "seed": scenario.seed,
            "workload_sha256": workload.digest(),
            # Objects handed over in Python, which the scenario below does not hold.
            "given_in_python": given,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "pandas": pd.__version__,
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
            "notes": list(info.notes),
        },
        fault=None if outcome.fault is None else {"fault": outcome.fault.fault, "message": outcome.fault.message},
        partial=outcome.partial,
        notes=tuple(_notes(scenario, given, workload, outcome, frames)),
    )


def _notes(
    scenario: Scenario, given: Sequence[str], workload: Workload, outcome: Outcome, frames: _Frames
) -> list[str]:
    notes = list(workload.info.notes)
    document = scenario.document
    kind = document.acceptance["kind"]
    if document.draft is None and kind != "none":
        notes.append(f"acceptance {kind} has no effect: there is no [draft]")
    if document.draft is not None and kind == "none" and "acceptance" not in given:
        notes.append("no [acceptance] is stated: every verify step yields the bonus token only")
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


def _version() -> str:
    try:
        return version("simkv")
    except PackageNotFoundError:
        return "0+unknown"


def _plain(value: Any) -> Any:
    """A value JSON can hold: NaN is null."""
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value


# ------------------------------------------------------------------------------------------------- checks
def _check_keys(scenario: Scenario, plan: Plan) -> None:
    """Refuse checks of names that no summary has, before anything is simulated."""
    wanted = scenario.document.checks
    if not wanted:
        return
    known = list(_Frames.empty(plan).summary)
    problems = [
        Problem(f'checks."{key}"', f"no such figure{nearest(key, known)}") for key in wanted if key not in known
    ]
    if problems:
        raise ScenarioError(scenario.source, problems)


def _checks(conditions: Mapping[str, str], summary: Mapping[str, Any]) -> tuple[Check, ...]:
    found = []
    for key, condition in conditions.items():
        parsed = comparison(condition)
        assert parsed is not None  # the document was validated
        sign, number = parsed
        value = _plain(summary.get(key))
        found.append(Check(key, condition, value, isinstance(value, (int, float)) and _COMPARE[sign](value, number)))
    return tuple(found)


# ------------------------------------------------------------------------------------------------- frames
class _Frames:
    """Frames and summary of an outcome."""

    def __init__(self, plan: Plan, workload: Workload, outcome: Outcome) -> None:
        self.plan = plan
        self.workload = workload
        self.outcome = outcome

    @classmethod
    def empty(cls, plan: Plan) -> _Frames:
        """Frames of a run in which nothing happened: the names, without values."""
        none = np.empty(0, np.int64)
        from simkv.simulation import TIMELINE_FLOATS, TIMELINE_INTS

        columns: dict[str, Any] = {name: np.zeros(1, np.int64) for name in TIMELINE_INTS}
        columns |= {name: np.zeros(1) for name in TIMELINE_FLOATS}
        outcome = Outcome(columns, [], none, none, none, none, none, none, none, [], 0, 0)
        return cls(plan, Workload(none, none, none, ()), outcome)

    # ---- pools
    @cached_property
    def capacities(self) -> dict[str, int]:
        """Capacity of the target's pools, in tokens."""
        plan = self.plan
        if plan.full_max_total_num_tokens is None:
            return {"full": plan.max_total_num_tokens or 0}
        pools = {"full": plan.full_max_total_num_tokens, "swa": plan.swa_max_total_num_tokens or 0}
        return {name: tokens for name, tokens in pools.items() if tokens}

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """One row a scheduler step; names as SGLang's metrics where it has one."""
        raw = self.outcome.timeline
        columns: dict[str, Any] = {
            "time_s": raw["time_ns"] / 1e9,
            "duration_s": raw["duration_ns"] / 1e9,
            "kind": _category(raw["kind"], KINDS),
            "batch_size": raw["batch"].astype(np.int32),
            "prefill_tokens": raw["prefill_tokens"].astype(np.int32),
        }
        usages = []
        for pool, capacity in self.capacities.items():
            available = raw[f"{pool}_available"]
            usage = (capacity - available) / capacity
            usages.append(usage)
            columns[f"{pool}_token_usage"] = usage
            columns[f"{pool}_available_tokens"] = available
            columns[f"{pool}_evictable_tokens"] = np.zeros(len(available), np.int64)
            columns[f"{pool}_protected_tokens"] = np.zeros(len(available), np.int64)
            columns[f"{pool}_uncached_tokens"] = capacity - available
        columns["token_usage"] = np.maximum.reduce(usages)
        for name in (
            "num_running_reqs",
            "num_queue_reqs",
            "num_retracted_reqs",
            "num_aborted_reqs",
            "num_refused_reqs",
        ):
            columns[name] = raw[name].astype(np.int32)
        columns["new_token_ratio"] = raw["new_token_ratio"]
        with np.errstate(invalid="ignore"):
            columns["spec_accept_length"] = raw["accepted_tokens"] / raw["verified_reqs"]
        columns["cache_hit_rate"] = np.full(len(raw["time_ns"]), np.nan)
        columns["overallocated_tokens"] = raw["overallocated_tokens"]
        columns["window_evicted_swa_tokens"] = raw["window_evicted_swa_tokens"]
        columns["cache_evicted_full_tokens"] = np.zeros(len(raw["time_ns"]), np.int64)
        columns["cache_evicted_swa_tokens"] = np.zeros(len(raw["time_ns"]), np.int64)
        columns |= self._drafts()
        columns["limit"] = _category(raw["limit"], LIMITS)
        return pd.DataFrame(columns)

    def _drafts(self) -> dict[str, Any]:
        """Tokens and bytes resident in each draft depth's pools, and of those, what its attention can still see."""
        raw = self.outcome.timeline
        used = {pool: capacity - raw[f"{pool}_available"] for pool, capacity in self.capacities.items()}
        out: dict[str, Any] = {}
        workers = sorted(
            {p.worker for p in self.plan.pools if p.worker != "target" and p.layers}, key=lambda w: int(w[5:])
        )
        for worker in workers:
            resident = live = resident_bytes = live_bytes = np.zeros(len(raw["time_ns"]), np.int64)
            for pool in (p for p in self.plan.pools if p.worker == worker and p.layers):
                # A ring at full capacity is indexed by full slots and freed with them.
                source = pool.indexed_by
                held = used[source] if source in used else next(iter(used.values()))
                seen = raw["live_window_tokens"] if pool.pool == "swa" else raw["live_tokens"]
                seen = np.minimum(seen, held)
                resident, live = np.maximum(resident, held), np.maximum(live, seen)
                resident_bytes = resident_bytes + held * pool.bytes_per_token
                live_bytes = live_bytes + seen * pool.bytes_per_token
            out[f"{worker}_resident_tokens"], out[f"{worker}_live_tokens"] = resident, live
            out[f"{worker}_resident_bytes"], out[f"{worker}_live_bytes"] = resident_bytes, live_bytes
        return out

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a request, in arrival order."""
        o, w = self.outcome, self.workload

        def seconds(ns: Any) -> Any:
            return np.where(ns < 0, np.nan, ns / 1e9)

        frame = pd.DataFrame(
            {
                "request_id": pd.array(list(w.request_id), dtype="str"),
                "arrival_s": seconds(o.arrival_ns),
                "admitted_s": seconds(o.admitted_ns),
                "first_token_s": seconds(o.first_token_ns),
                "finished_s": seconds(o.finished_ns),
                "input_tokens": w.input_tokens,
                "output_tokens": o.output_tokens,
                "hit_tokens": np.zeros(len(w), np.int64),
                # Whatever was prefilled beyond the prompt had its KV before.
                "recomputed_tokens": np.maximum(o.prefilled_tokens - w.input_tokens, 0),
                "retractions": o.retractions,
                "state": pd.Categorical(o.state, ["completed", "refused", "aborted", "unfinished", "never arrived"]),
            }
        )
        cause = [""] * len(w)
        for _, event in o.events:
            if event.event in ("refusal", "abort") and event.request >= 0:
                cause[event.request] = event.detail or event.cause
        frame["cause"] = pd.array(cause, dtype="str")
        frame["ttft_s"] = frame["first_token_s"] - frame["arrival_s"]
        frame["e2e_latency_s"] = frame["finished_s"] - frame["arrival_s"]
        rest = frame["finished_s"] - frame["first_token_s"]
        frame["tpot_s"] = np.where(
            frame["output_tokens"] > 1, rest / (frame["output_tokens"] - 1).clip(lower=1), np.nan
        )
        return frame

    @cached_property
    def events(self) -> pd.DataFrame:
        """Retractions, aborts, refusals, faults and window evictions, each with pool and cause."""
        names = self.workload.request_id
        rows = [
            (
                when,
                e.event,
                names[e.request] if e.request >= 0 else "-",
                e.pool,
                e.tokens,
                e.cause,
            )
            for when, e in self.outcome.events
            if e.event != "clip"
        ]
        frame = pd.DataFrame(rows, columns=["time_ns", "event", "request_id", "pool", "tokens", "cause"])
        raw = self.outcome.timeline
        evicted = np.flatnonzero(raw["window_evicted_swa_tokens"])
        window = pd.DataFrame(
            {
                "time_ns": raw["time_ns"][evicted],
                "event": "window-eviction",
                "request_id": "-",
                "pool": "swa",
                "tokens": raw["window_evicted_swa_tokens"][evicted],
                "cause": "out of the sliding window",
            }
        )
        both = pd.concat([frame, window]) if len(frame) else window
        both = both.sort_values("time_ns", kind="stable", ignore_index=True)
        out = pd.DataFrame({"time_s": both["time_ns"].astype(np.int64) / 1e9})
        for name in ("event", "pool", "cause"):
            out[name] = pd.Categorical(both[name], sorted(set(both[name])))
        out["request_id"] = both["request_id"].astype("str")
        out["tokens"] = both["tokens"].astype(np.int64)
        return out[["time_s", "event", "request_id", "pool", "tokens", "cause"]]

    # ---- summary
    @cached_property
    def _weights(self) -> Any:
        """Seconds each row of the timeline holds."""
        time = self.outcome.timeline["time_ns"]
        return np.diff(time, append=max(self.outcome.end_ns, int(time[-1]) if len(time) else 0)) / 1e9

    @cached_property
    def peak_usage(self) -> float | None:
        """Largest usage of any pool at any time."""
        column = self.timeline["token_usage"]
        return float(column.max()) if len(column) else None

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Dotted name -> value; the names of ``[checks]``."""
        o, plan = self.outcome, self.plan
        state = np.array(o.state, dtype=object)
        span = o.end_ns / 1e9
        kinds = np.bincount(o.timeline["kind"], minlength=3)
        out: dict[str, Any] = {"requests.injected": len(state)}
        for name in ("completed", "refused", "aborted", "unfinished"):
            out[f"requests.{name}"] = int((state == name).sum())
        out["requests.never_arrived"] = int((state == "never arrived").sum())
        out["requests.retracted"] = int((o.retractions > 0).sum())
        out["requests.retractions"] = int(o.retractions.sum())
        done = state == "completed"
        out["tokens.input"] = int(self.workload.input_tokens[done].sum())
        out["tokens.output"] = int(o.output_tokens[done].sum())
        out["tokens.generated"] = int(o.output_tokens.sum())
        out["tokens.recomputed"] = int(self.requests["recomputed_tokens"].sum())
        out["simulated_s"] = span
        out["steps.prefill"], out["steps.decode"] = int(kinds[1]), int(kinds[2])
        out["output_tokens_per_s"] = out["tokens.output"] / span if span else 0.0
        out["requests_per_s"] = out["requests.completed"] / span if span else 0.0
        verified = int(o.timeline["verified_reqs"].sum())
        out["spec_accept_length"] = float(o.timeline["accepted_tokens"].sum() / verified) if verified else float("nan")
        out |= self._latencies(done)
        out |= self._pools()
        for name in ("num_running_reqs", "num_queue_reqs"):
            out |= _stats(name, self.timeline[name].to_numpy(), self._weights)
        out |= self._limits()
        out["overallocated_tokens.peak"] = int(o.timeline["overallocated_tokens"].max(initial=0))
        out["window_evicted_swa_tokens"] = int(o.timeline["window_evicted_swa_tokens"].sum())
        out["draft_worker.busy_s"] = o.draft_busy_ns / 1e9
        out["target_worker.busy_s"] = o.target_busy_ns / 1e9
        out["max_total_num_tokens"] = plan.max_total_num_tokens
        out["max_running_requests"] = plan.max_running_requests
        out["overcommit_bytes"] = plan.overcommit_bytes
        return out

    def _latencies(self, done: Any) -> dict[str, Any]:
        out: dict[str, Any] = {}
        frame = self.requests[done]
        for name in ("ttft_s", "tpot_s", "e2e_latency_s"):
            values = frame[name].dropna().to_numpy()
            for label, share in (("p50", 50), ("p90", 90), ("p99", 99)):
                out[f"{name}.{label}"] = float(np.percentile(values, share)) if len(values) else float("nan")
        return out

    def _pools(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for pool in [*self.capacities, ""]:
            name = f"{pool}_token_usage" if pool else "token_usage"
            values = self.timeline[name].to_numpy()
            out |= _stats(name, values, self._weights)
            total = self._weights.sum()
            full = float(self._weights[values >= FULL_FROM].sum() / total) if total else 0.0
            out[f"{name}.time_full"] = full
        return out

    def _limits(self) -> dict[str, Any]:
        """Shares of time in which each limit kept requests waiting; the queue is empty in ``arrival``."""
        raw, weights = self.outcome.timeline, self._weights
        if not weights.sum():
            # No time has passed: what counts is how it ended.
            weights = (np.arange(len(weights)) == len(weights) - 1).astype(float)
        total = weights.sum()
        shares = {name: float(weights[raw["limit"] == code].sum() / total) for code, name in enumerate(LIMITS)}
        out: dict[str, Any] = {f"limit.{name}": share for name, share in shares.items()}
        held = {name: share for name, share in shares.items() if name != "arrival"}
        worst = max(held, key=lambda name: held[name])
        out["limit.binding"] = worst if held[worst] >= BINDING_FROM else "arrival"
        return out


def _category(codes: Any, names: Sequence[str]) -> pd.Categorical[str]:
    """Codes as a categorical column."""
    return pd.Categorical.from_codes(codes, pd.Index(names))


def _stats(name: str, values: Any, weights: Any) -> dict[str, Any]:
    """Time-weighted mean and percentiles, and the peak."""
    out: dict[str, Any] = {}
    total = weights.sum() if len(weights) else 0.0
    order = np.argsort(values, kind="stable")
    ranked, cumulative = values[order], np.cumsum(weights[order])
    for label, share in (("p50", 0.5), ("p99", 0.99)):
        if not len(values):
            out[f"{name}.{label}"] = float("nan")
            continue
        place = int(np.searchsorted(cumulative, share * total)) if total else len(ranked) - 1
        out[f"{name}.{label}"] = float(ranked[min(place, len(ranked) - 1)])
    out[f"{name}.mean"] = float((values * weights).sum() / total) if total else float("nan")
    out[f"{name}.peak"] = float(values.max()) if len(values) else float("nan")
    return out
