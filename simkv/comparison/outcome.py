"""Two runs against one another: the tables, the words, the figures, and whether it is good enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd

from simkv.comparison.figures import figure_text
from simkv.comparison.labels import default_labels, labelled, stated_labels
from simkv.comparison.logs import against_log
from simkv.comparison.opening import Opened, open_both
from simkv.comparison.sides import Side, side_of_refusal, side_of_run
from simkv.comparison.tables import event_table, figure_table, input_table, plan_table, pool_table
from simkv.comparison.tolerance import Tolerance, tolerance_of
from simkv.comparison.words import failures_of, paragraph, warnings_of
from simkv.errors import InfeasibleError, Problem, ScenarioError, nearest
from simkv.frames import Frames
from simkv.results import simulate
from simkv.scenario import Scenario
from simkv.simulation import Progress

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from simkv.comparison.sweeps import SweepComparison
    from simkv.imports.measured import LogComparison

__all__ = ["PLOTS", "Comparison", "compare", "damage_of", "simulated_side"]

PLOTS = ("utilization", "oom", "concurrency", "eviction")


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two sides of a comparison, and what follows from them.

    Attributes
    ----------
    a, b : Side
        What was compared; ``label``, ``scenario``, ``plan``, ``summary`` and so on.
    tolerance : Tolerance
        What was stated of how far figures may be apart.
    table : DataFrame
        One row a figure: ``figure``, ``a``, ``b``, ``change`` (b - a), ``relative_change`` (of a), ``changed``,
        ``allowed`` and ``within`` (of a stated tolerance, None without one), ``verdict`` (same, improved, worse,
        changed, only in a, only in b).
    inputs : DataFrame
        ``key``, ``a``, ``b`` of what differs in the resolved scenarios.
    plan : DataFrame
        ``figure``, ``a``, ``b``, ``change``, ``changed``: budget, tokens, over-commit, slack, draft depths, settings.
    pools : DataFrame
        One row a pool: tokens, bytes allocated and budgeted, mapping of both sides.
    events : DataFrame
        Retractions, aborts, refusals, faults and repairs by pool and cause, counted in a and b.
    also : tuple of str
        Failures that whoever compares found besides.
    """

    a: Side
    b: Side
    tolerance: Tolerance
    also: tuple[str, ...] = ()

    # ---- tables
    @property
    def same_workload(self) -> bool:
        """Whether both got the same requests, by their hash."""
        return self.a.workload_sha256 == self.b.workload_sha256

    @property
    def judged(self) -> bool:
        """Whether figures may be called better and worse: both ran to the end, with the same requests."""
        return self.same_workload and self.a.complete and self.b.complete

    @cached_property
    def table(self) -> pd.DataFrame:
        """Every figure of either side."""
        return figure_table(self.a, self.b, self.tolerance, judged=self.judged)

    @property
    def changed(self) -> pd.DataFrame:
        """Figures that differ."""
        return self.table[self.table["changed"]]

    @cached_property
    def inputs(self) -> pd.DataFrame:
        """What differs in the resolved scenarios."""
        return input_table(self.a, self.b)

    @cached_property
    def plan(self) -> pd.DataFrame:
        """The two memory plans, figure by figure."""
        return plan_table(self.a, self.b)

    @cached_property
    def pools(self) -> pd.DataFrame:
        """The pools side by side."""
        return pool_table(self.a, self.b)

    @cached_property
    def events(self) -> pd.DataFrame:
        """What happened, by pool and cause."""
        return event_table(self.a, self.b)

    # ---- words
    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Why the two may not be comparable; told before anything else."""
        return tuple(warnings_of(self.a, self.b))

    @cached_property
    def broken(self) -> tuple[str, ...]:
        """What held in a and does not in b; empty where nothing did."""
        return (*failures_of(self.a, self.b), *self.also)

    @property
    def failures(self) -> tuple[str, ...]:
        """Why this comparison fails: what is broken, and what is beyond its tolerance; empty where it does not."""
        return (*self.broken, *self.exceeded)

    @cached_property
    def exceeded(self) -> tuple[str, ...]:
        """Figures beyond their tolerance, in words."""
        rows = self.table[[within is False for within in self.table["within"]]]
        told = []
        for row in rows.to_dict("records"):
            values = " and ".join(figure_text(row["figure"], row[side], "no value") for side in ("a", "b"))
            apart = f", {row['change']:+,.6g}" if row["change"] is not None else ""
            told.append(f"{row['figure']} is beyond its tolerance of {row['allowed']:,.6g}: {values}{apart}")
        return tuple(told)

    @property
    def verdict(self) -> str:
        """The outcome in one line."""
        counts = self.table["verdict"].value_counts()
        changed = int(self.table["changed"].sum())
        if self.failures:
            more = f" (and {len(self.failures) - 1} more)" if len(self.failures) > 1 else ""
            return f"FAILS: {self.failures[0]}{more}"
        if not self.a.ran or not self.b.ran:
            where = [side.label for side in (self.a, self.b) if not side.ran]
            return f"nothing ran in {' and '.join(where)}: the plans are compared"
        if not changed:
            return f"no figure differs ({len(self.table)} compared)"
        better, worse = int(counts.get("improved", 0)), int(counts.get("worse", 0))
        judged = f", {better} for the better and {worse} for the worse" if better or worse else ""
        held = "; all are within the stated tolerance" if self.tolerance else ""
        return f"{changed} of {len(self.table)} figures differ{judged}{held}"

    @cached_property
    def paragraph(self) -> tuple[str, ...]:
        """What happened, in sentences."""
        return tuple(paragraph(self.a, self.b, len(self.changed), len(self.table)))

    @property
    def exit_code(self) -> int:
        """1 if something failed, else 0."""
        return 1 if self.failures else 0

    # ---- figures and pages
    @property
    def plots(self) -> tuple[str, ...]:
        """Kinds of figures there are; none where neither side ran."""
        return PLOTS if self.a.ran or self.b.ran else ()

    def plot(self, kind: str = "utilization", ax: Axes | None = None, title: str | None = None) -> Axes:
        """Draw one kind of curve of both sides on one axis.

        Parameters
        ----------
        kind : str
            ``utilization``, ``oom``, ``concurrency`` or ``eviction``.
        ax : Axes, optional
            Where to draw; a new figure otherwise.
        title : str, optional
            Instead of the default title.
        """
        from simkv.plotting import overlay

        if kind not in PLOTS:
            raise ScenarioError(
                "plot", [Problem("kind", f"{kind!r} is not one of {', '.join(PLOTS)}{nearest(str(kind), PLOTS)}")]
            )
        first, second = (
            overlay.Traced(side.label, side.timeline, side.plan, side.events, side.peaks) for side in (self.a, self.b)
        )
        return overlay.KINDS[kind](first, second, ax=ax, title=title)

    @cached_property
    def pictures(self) -> dict[str, bytes]:
        """Every figure as the bytes of a PNG file."""
        from simkv.comparison.page import picture_bytes

        return {kind: picture_bytes(self, kind) for kind in self.plots}

    def to_markdown(self) -> str:
        """A summary for a pull request or a job's page."""
        from simkv.comparison.page import markdown

        return markdown(self)

    def to_html(self) -> str:
        """One page that holds everything, figures included; it needs no network."""
        from simkv.comparison.page import html

        return html(self)

    def _repr_html_(self) -> str:
        from simkv.comparison.page import fragment
        from simkv.comparison.view import changed_grid, sections

        inputs, _, _, events = sections(self)
        return fragment(self, [inputs, events, changed_grid(self)])

    def __repr__(self) -> str:
        return f"Comparison({self.a.label!r}, {self.b.label!r}: {self.verdict})"

    def to_dict(self) -> dict[str, Any]:
        """What ``simkv compare --json`` prints."""
        return {
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "failures": list(self.failures),
            "warnings": list(self.warnings),
            "paragraph": list(self.paragraph),
            "same_workload": self.same_workload,
            "a": _side_facts(self.a),
            "b": _side_facts(self.b),
            "tolerance": {"rtol": self.tolerance.rtol, "atol": self.tolerance.atol},
            "inputs": self.inputs.to_dict("records"),
            "plan": self.plan.to_dict("records"),
            "pools": self.pools.to_dict("records"),
            "events": self.events.to_dict("records"),
            "figures": {row.pop("figure"): row for row in self.table.to_dict("records")},
        }


def _side_facts(side: Side) -> dict[str, Any]:
    return {
        "label": side.label,
        "name": side.scenario.get("name"),
        "provenance": side.provenance,
        "checks": [dict(check.__dict__) for check in side.checks],
        "fault": side.fault,
        "infeasible": side.refusal,
        "fits_slack": side.fits_slack,
        "partial": side.partial,
    }


# ------------------------------------------------------------------------------------------------- compare
Watch = Callable[[str, Progress], None]


def compare(
    a: Any,
    b: Any,
    *,
    rtol: float | Mapping[str, float] | None = None,
    atol: float | Mapping[str, float] | None = None,
    labels: Sequence[str | None] | None = None,
    same_workload: bool = False,
    progress: Watch | None = None,
) -> Comparison | SweepComparison | LogComparison:
    """Compare two runs, two sweeps, or a run with the log of a real server.

    Parameters
    ----------
    a, b : Run, Scenario, Sweep, str, Path or mapping
        A run, a run directory, or a scenario (name, file, dict), which is simulated; or two sweeps or their directories.
        A scenario whose engine would not start is a side with a plan and no figures. ``b`` may be the log of a SGLang
        server, a file or a :class:`ServerLog`; nothing else can be asked of that comparison.
    rtol, atol : float or mapping, optional
        How far a figure of b may be from that of a, ``|b - a| <= atol + rtol * |a|``: one number for all, or figure to
        number, where glob patterns such as ``ttft_s.*`` are figures, too. Nothing stated means nothing asked.
    labels : (str, str), optional
        How texts and legends call the two; by default by what differs.
    same_workload : bool
        Refuse to compare where the requests differ.
    progress : callable, optional
        Called now and then with a label and a :class:`Progress`, while a scenario is simulated.

    Returns
    -------
    Comparison
        Or a SweepComparison, or a LogComparison.

    Raises
    ------
    UserError
        Something cannot be read or is wrong, names in a tolerance that no figure has, or requests that differ and
        should not.
    """
    tolerance = tolerance_of(rtol, atol)
    stated = stated_labels(labels, ("labels[0]", "labels[1]"))
    first, second = open_both(a, b)
    if second.kind == "server log":
        asked = {"rtol": rtol, "atol": atol, "labels": labels and any(labels), "same_workload": same_workload}
        return against_log(first, second.thing, [name for name, value in asked.items() if value], progress)
    if first.kind == "sweep":
        from simkv.comparison.sweeps import compare_sweeps

        return compare_sweeps(first, second, tolerance, stated, same_workload=same_workload)
    _refuse_damage((first, second))
    scenarios = [one.thing.to_dict() if one.kind == "scenario" else one.thing.scenario for one in (first, second)]
    default = default_labels((scenarios[0], scenarios[1]), (first.origin, second.origin))
    names = labelled(stated, default)
    planned = _planned(first, second)
    _check_names(planned, tolerance)
    if same_workload:
        _check_workloads(first, second, names)
    sides = [_side(one, name, progress) for one, name in zip((first, second), names, strict=True)]
    return Comparison(sides[0], sides[1], tolerance)


def damage_of(side: Side) -> str:
    """What is wrong with a side that was read from a file; empty where it can be compared.

    It is compared with itself, so that everything is looked at that a comparison looks at.
    """
    try:
        odd = [name for name, value in side.summary.items() if not isinstance(value, (int, float, str, type(None)))]
        if odd:
            return f"{odd[0]} is no figure"
        one = Comparison(side, side, Tolerance({"*": 0.0}))
        looked = (one.table, one.inputs, one.plan, one.pools, one.events, one.paragraph, one.warnings)
        return one.failures[0] if one.failures or not looked else ""
    except KeyError as error:
        return f"{error} is missing"
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        return str(error)


def _refuse_damage(both: Sequence[Opened]) -> None:
    """Refuse run directories that somebody changed by hand, or that were cut off."""
    problems = [
        Problem(f"{one.origin}/run.json", f"is damaged ({damage}); run it again")
        for one in both
        if one.kind == "run" and one.origin and (damage := damage_of(side_of_run(one.thing, one.origin)))
    ]
    if problems:
        raise ScenarioError("compare", problems)


def _planned(*both: Opened) -> list[list[str]]:
    """Names of the figures each side will have; where something is wrong with a scenario, this is where it shows."""
    names = []
    for one in both:
        if one.kind == "run":
            names.append([str(name) for name in one.thing.summary.index])
        else:
            plan = one.thing.plan()
            names.append([] if plan.infeasible is not None else list(Frames.empty(plan).summary))
    return names


def _check_names(names: list[list[str]], tolerance: Tolerance) -> None:
    known = dict.fromkeys(name for side in names for name in side)
    problems = tolerance.problems(known) if known else []
    if problems:
        raise ScenarioError("compare", problems)


def _check_workloads(first: Opened, second: Opened, labels: tuple[str, str]) -> None:
    """Refuse different requests, before anything is simulated."""
    hashes = [
        one.thing.provenance["workload_sha256"] if one.kind == "run" else one.thing.workload().digest()
        for one in (first, second)
    ]
    if hashes[0] != hashes[1]:
        message = (
            f"{labels[0]} has {hashes[0][:12]}, {labels[1]} has {hashes[1][:12]}: the requests differ; give both the same "
            "trace, generator and seed, or compare without asking for the same workload"
        )
        raise ScenarioError("compare", [Problem("workload_sha256", message)])


def _side(one: Opened, label: str, progress: Watch | None) -> Side:
    if one.kind == "run":
        return side_of_run(one.thing, label)
    return simulated_side(one.thing, label, progress)


def simulated_side(scenario: Scenario, label: str, progress: Watch | None = None) -> Side:
    """Simulate a scenario and take the outcome as a side; a plan with its refusal, where the engine would not start.

    Raises
    ------
    KeyboardInterrupt
        The simulation was interrupted: half a comparison is none.
    """
    try:
        run = simulate(scenario, progress=None if progress is None else lambda p: progress(label, p))
    except InfeasibleError as error:
        plan = scenario.plan().to_dict()
        sha = scenario.workload().digest()
        return side_of_refusal(
            scenario.to_dict(), plan, str(error), error.engine_error, label, seed=scenario.seed, workload_sha256=sha
        )
    if run.partial:
        raise KeyboardInterrupt
    return side_of_run(run, label)
