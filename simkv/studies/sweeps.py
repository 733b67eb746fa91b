"""Sweeps: one scenario over a grid of changes, as a tidy frame.

>>> import simkv
>>> found = simkv.sweep("retraction-storm", {"workload.num_requests": [20, 40]})
>>> found.frame["requests.completed"].tolist()
[20, 40]
"""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from simkv.axes import Axis, grid, read_axes
from simkv.errors import Problem, ScenarioError, UserError, nearest
from simkv.results import versions
from simkv.scenario import Scenario, load
from simkv.studies.points import (
    FAILED,
    Point,
    PointResult,
    StudyProgress,
    check_given,
    given_in_python,
    replaced_keys,
    run_points,
)
from simkv.studies.sweepdir import TABLE, SweepDirectory, read_head, read_points
from simkv.workload.request import Workload

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Sweep", "load_sweep", "sweep"]

SCHEMA = 1
KINDS = ("lines", "heatmap", "pareto")
# Columns before the figures, and what a figure may not be called.
_OUTCOME = ("state", "error", "exit_code", "checks_hold")
_FILES = ("workload.trace", "model.config", "draft.config")


@dataclass(frozen=True, eq=False)
class Sweep:
    """A grid of runs.

    Attributes
    ----------
    frame : DataFrame
        One row a point, in the order of the grid, the last axis fastest: the axes by their dotted keys; ``state`` (``ok``,
        ``check failed``, ``engine fault``, ``infeasible``, ``error``, or ``not run`` where the sweep was interrupted),
        ``error``, ``exit_code``, ``checks_hold``; every figure of the summary, NaN where the point failed.
    axes : dict
        Dotted key, or keys joined by commas, to its values.
    scenario : dict
        What the points change, with every default filled in.
    provenance : dict
        Versions, files and objects the points were made from, and the hashes of their requests.
    results : tuple of PointResult
        What the frame is made of.
    """

    frame: pd.DataFrame = field(repr=False)
    axes: dict[str, list[Any]]
    scenario: dict[str, Any] = field(repr=False)
    provenance: dict[str, Any] = field(repr=False)
    results: tuple[PointResult, ...] = field(default=(), repr=False)

    @property
    def name(self) -> str:
        """Name of the scenario."""
        return str(self.scenario.get("name", "sweep"))

    @property
    def partial(self) -> bool:
        """Whether points are missing."""
        return len(self.results) < len(self.frame)

    @property
    def figures(self) -> list[str]:
        """Names of the figures in the frame."""
        outcome = list(self.frame.columns).index("checks_hold")
        return list(self.frame.columns[outcome + 1 :])

    @property
    def states(self) -> dict[str, int]:
        """How many points are in which state."""
        counted = self.frame["state"].value_counts(sort=False)
        return {str(state): int(count) for state, count in counted.items()}

    def plot(
        self,
        kind: str,
        x: str | None = None,
        y: str = "output_tokens_per_s",
        hue: str | None = None,
        ax: Axes | None = None,
        title: str | None = None,
    ) -> Axes:
        """Draw the sweep.

        Parameters
        ----------
        kind : str
            ``lines``: figure ``y`` against the axis ``x``, a line for each value of the axis ``hue``, with the mean and
            the range over all else. ``heatmap``: figure ``y`` over the axes ``x`` and ``hue``. ``pareto``: figure ``y``
            against figure ``x``, and the points that none beats in both.
        x : str, optional
            Default: the first axis; of ``pareto``, ``requests.retractions``.
        y : str
            A figure.
        hue : str, optional
            An axis; default: the second one, if there are two.
        ax : Axes, optional
            Where to draw; a new figure otherwise.
        title : str, optional
            Instead of the scenario's name.

        Raises
        ------
        ScenarioError
            No such kind, axis or figure.
        """
        from simkv.plotting import sweeps as draw

        if kind == "pareto":
            x = "requests.retractions" if x is None else x
            title = title if title is not None else f"{self.name}: {y} against {x}"
            self._check_names(kind, {"x": (x, self.figures), "y": (y, self.figures)})
            return draw.pareto(self._drawable(), x, y, self._varied, ax=ax, title=title)
        title = title if title is not None else f"{self.name}: {y}"
        varied = self._varied
        x = varied[0] if x is None else x
        hue = next((axis for axis in varied if axis not in (x, "seed")), None) if hue is None else hue
        names = {"x": (x, list(self.axes)), "y": (y, self.figures)}
        if hue is not None:
            names["hue"] = (hue, list(self.axes))
        self._check_names(kind, names)
        if hue == x:
            raise ScenarioError("plot", [Problem("hue", f"{hue!r} is the axis x already")])
        if kind == "lines":
            return draw.lines(self._drawable(), x, y, hue=hue, over=self._rest(x, hue), ax=ax, title=title)
        if hue is None:
            raise ScenarioError("plot", [Problem("hue", "a heat map needs two axes: state the second one")])
        return draw.heatmap(self._drawable(), x, hue, y, over=self._rest(x, hue), ax=ax, title=title)

    def _check_names(self, kind: str, names: Mapping[str, tuple[str, Sequence[str]]]) -> None:
        problems = []
        if kind not in KINDS:
            problems.append(Problem("kind", f"{kind!r} is not one of {', '.join(KINDS)}{nearest(str(kind), KINDS)}"))
        for place, (name, allowed) in names.items():
            if name not in allowed:
                known = f"; allowed are {', '.join(allowed)}" if len(allowed) < 10 else ""
                what = "figure" if allowed == self.figures else "axis"
                problems.append(
                    Problem(place, f"{name!r} is no {what} of this sweep{nearest(str(name), allowed) or known}")
                )
            elif allowed == self.figures and self.frame[name].dtype.kind not in "if":
                problems.append(Problem(place, f"{name!r} is text, and cannot be drawn"))
        if problems:
            raise ScenarioError("plot", problems)

    @property
    def _varied(self) -> list[str]:
        """Axes with more than one value, or all where there is none."""
        return [name for name, values in self.axes.items() if len(values) > 1] or list(self.axes)

    def _rest(self, *drawn: str | None) -> list[str]:
        return [name for name in self._varied if name not in drawn]

    def _drawable(self) -> pd.DataFrame:
        """The frame with a column an axis, also of those that vary several keys."""
        every = [dict(point.changes) for point in self.points]
        joined = {
            axis.name: [", ".join(_text(changes[key]) for key in axis.keys) for changes in every]
            for axis in read_axes(self.axes)
            if len(axis.keys) > 1
        }
        return self.frame.assign(**joined)

    @property
    def points(self) -> list[Point]:
        """What each row of the frame changes."""
        return _points(read_axes(self.axes))

    # ---- storage
    def to_json(self) -> dict[str, Any]:
        """What ``sweep.json`` says."""
        return _head(self.scenario, self.axes, len(self.frame), self.provenance)

    def save(self, directory: str | Path, *, force: bool = False, figures: bool = True) -> Path:
        """Write the sweep directory.

        Raises
        ------
        ScenarioError
            It exists and ``force`` is not given, or cannot be written.
        """
        target = SweepDirectory.found(directory, self.to_json(), self.points, force=force, resume=False)
        target.begin(self.to_json())
        return self._save_into(target, figures=figures)

    def _save_into(self, target: SweepDirectory, *, figures: bool) -> Path:
        target.write(self.to_json(), {result.index: result for result in self.results})
        self._save_rest(target.path, figures=figures)
        return target.path

    def _save_rest(self, directory: Path, *, figures: bool) -> None:
        """The frame, and the figures that suit the axes."""
        self.frame.to_parquet(directory / TABLE, index=False)
        if figures:
            from simkv import plotting

            folder = directory / "figures"
            folder.mkdir(exist_ok=True)
            for name, axes in self._chosen().items():
                plotting.save(axes.figure, folder / f"{name}.png")  # type: ignore[arg-type]

    def _chosen(self) -> dict[str, Axes]:
        """Figures that suit the axes: lines or heat maps of what matters most, and what it costs."""
        axes = [name for name in self._varied if name != "seed"] or ["seed"]
        kind = "heatmap" if len(axes) == 2 else "lines"
        drawn = {}
        for name in main_figures(self):
            hue = axes[1] if len(axes) > 1 else None
            drawn[f"{kind}-{name}"] = self.plot(kind, x=axes[0], y=name, hue=hue)
        for cost in ("requests.retractions", "ttft_s.p99"):
            if axes != ["seed"] and {cost, "output_tokens_per_s"} <= set(self.figures):
                drawn[f"pareto-{cost}"] = self.plot("pareto", x=cost)
        return drawn

    def _repr_html_(self) -> str:
        states = ", ".join(f"{count} {state}" for state, count in self.states.items())
        head = f"<b>{html.escape(self.name)}</b>, {len(self.frame)} points: {states}"
        shown = self.frame[[*self.frame.columns[: -len(self.figures) or None], *main_figures(self)]]
        return head + shown.to_html(index=False, max_rows=20)

    def __repr__(self) -> str:
        axes = " x ".join(f"{name} ({len(values)})" for name, values in self.axes.items())
        states = ", ".join(f"{count} {state}" for state, count in self.states.items())
        return f"Sweep({self.name!r}, {axes}: {states})"


MAIN = ("output_tokens_per_s", "requests.retractions", "ttft_s.p99", "token_usage.p99")


def main_figures(found: Sweep) -> list[str]:
    """Figures that matter most: those of the checks, then throughput, retractions, latency and usage."""
    wanted = [*found.scenario.get("checks", {}), *MAIN]
    numbers = {name for name in found.figures if found.frame[name].dtype.kind in "if"}
    return [name for name in dict.fromkeys(wanted) if name in numbers]


# ------------------------------------------------------------------------------------------------- sweep
def sweep(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    axes: Mapping[str, Any] | None = None,
    *,
    seeds: int | Sequence[int] | None = None,
    workload: Workload | None = None,
    n_jobs: int = 1,
    dask: str | None = None,
    out: str | Path | None = None,
    force: bool = False,
    resume: bool = False,
    figures: bool = True,
    progress: StudyProgress | None = None,
    **given: Any,
) -> Sweep:
    """Simulate a scenario over a grid of changes.

    Parameters
    ----------
    scenario : str, Path, mapping or Scenario
        What the points change.
    axes : mapping, optional
        Dotted key to its values, a list, a range or an array, one axis each; keys joined by commas take a row of values
        each time. Default: the scenario's ``[sweep]``.
    seeds : int or sequence of int, optional
        One more axis, ``seed``, the fastest: so many seeds from the scenario's on, or these.
    workload : Workload, optional
        Requests of all points instead of the scenario's.
    n_jobs : int
        Processes; -1 is one a core.
    dask : str, optional
        ``local``, or the address of a Dask scheduler, whose workers run the points.
    out : str or Path, optional
        Directory to write: each point as it ends, then frame and figures.
    force : bool
        Replace a sweep directory.
    resume : bool
        Go on with a sweep directory, if it is there: points that ended are kept, but for those in state ``error``.
    figures : bool
        Draw figures into the directory.
    progress : callable, optional
        Called with points done, failed, and in all.
    **given
        ``acceptance``, ``steptime``, ``routing``, ``retraction_order`` for all points, as :func:`simkv.simulate` takes
        them.

    Returns
    -------
    Sweep
        The same whatever ran it. A point that failed is a row with its error.

    Raises
    ------
    UserError
        The scenario or the axes are wrong: a value that no point can hold, a key on two axes, one without effect.
    KeyboardInterrupt
        What was simulated is in ``out``, if that was given.
    """
    check_given("sweep", workload, given)
    one = load(scenario)
    if isinstance(given.get("routing"), str):
        one = one.with_routing(given.pop("routing"))
    wanted = _axes(one, axes, seeds)
    base = one.set(sweep=None)
    handed = given_in_python(one, workload, given)
    points = _points(wanted)
    _check(base, wanted, points, handed)
    table = {axis.name: axis.to_list() for axis in wanted}
    provenance = {**versions(), "given_in_python": _told(handed), "files": _files(base, wanted), "workload_sha256": []}
    head = _head(base.to_dict(), table, len(points), provenance)

    target = None if out is None else SweepDirectory.found(out, head, points, force=force, resume=resume)
    results = {} if target is None else dict(target.kept)
    rest = [point for point in points if point.index not in results]
    failed = sum(result.failed for result in results.values())
    shift = len(results)
    told = None if progress is None else lambda done, bad, _: progress(shift + done, failed + bad, len(points))
    # Whether there is anybody to run them is told before anything is written.
    arriving = (
        run_points(base, rest, workload=workload, n_jobs=n_jobs, dask=dask, progress=told, **given) if rest else ()
    )
    if target is not None:
        target.begin(head)
    with nullcontext() if target is None else target:
        for result in arriving:
            results[result.index] = result
            if target is not None:
                target.add(result)
    made = _made(base.to_dict(), table, points, results, provenance)
    if target is not None:
        made._save_into(target, figures=figures)
    return made


def load_sweep(directory: str | Path) -> Sweep:
    """Read a sweep directory back, also one that is not finished.

    Raises
    ------
    ScenarioError
        It is no sweep directory, or not one of this version's.
    """
    path = Path(directory)
    head = read_head(path)
    if head["schema"] != SCHEMA:
        raise ScenarioError(str(path), [Problem("schema", f"{head['schema']!r} is not {SCHEMA}; run it again")])
    points = _points(read_axes(head["axes"]))
    results = read_points(path, len(points))
    return _made(head["scenario"], head["axes"], points, results, head["provenance"])


def _points(axes: Iterable[Axis]) -> list[Point]:
    return [Point(index, changes) for index, changes in enumerate(grid(axes))]


def _head(scenario: dict[str, Any], axes: dict[str, Any], points: int, provenance: dict[str, Any]) -> dict[str, Any]:
    return {"schema": SCHEMA, "points": points, "axes": axes, "scenario": scenario, "provenance": provenance}


# ------------------------------------------------------------------------------------------------- what is asked
def _axes(one: Scenario, axes: Mapping[str, Any] | None, seeds: Any) -> tuple[Axis, ...]:
    """Axes of the call, or else of the scenario.

    Raises
    ------
    ScenarioError
        There are none, or they are wrong.
    """
    if axes is not None and not isinstance(axes, Mapping):
        raise ScenarioError("sweep", [Problem("axes", f"{axes!r} is no mapping of dotted keys to values")])
    table = dict((one.document.sweep or {}) if axes is None else axes)
    if seeds is not None:
        if "seed" in table:
            raise ScenarioError("sweep", [Problem("seeds", "stated beside an axis seed; keep one of the two")])
        if isinstance(seeds, int) and not isinstance(seeds, bool):
            if seeds < 1:
                raise ScenarioError("sweep", [Problem("seeds", f"{seeds} is not an integer >= 1, or a list of seeds")])
            seeds = range(one.seed, one.seed + seeds)
        table["seed"] = seeds
    if not table:
        message = "nothing to vary: give axes, seeds, or a table [sweep] in the scenario"
        raise ScenarioError(one.source, [Problem("sweep", message)])
    return read_axes(table, one.source if axes is None else "sweep")


def _check(base: Scenario, axes: Sequence[Axis], points: Sequence[Point], handed: Mapping[str, Any]) -> None:
    """Refuse axes that cannot be meant, before anything is run.

    A combination that is wrong is a point's own failure; a value that is wrong in all combinations is not meant.

    Raises
    ------
    ScenarioError
    """
    problems = [
        Problem(f'sweep."{axis.name}"', f"{key} has no effect: {name} is given in Python")
        for axis in axes
        for key, name in replaced_keys(axis.keys, handed)
    ]
    problems += _hopeless(base, axes, points)
    if problems:
        raise ScenarioError(f"sweep of {base.source}", problems)


def _hopeless(base: Scenario, axes: Sequence[Axis], points: Sequence[Point]) -> list[Problem]:
    """What is wrong with values that no point can hold."""
    unproven = {(number, place) for number, axis in enumerate(axes) for place in range(len(axis.values))}
    reasons: dict[tuple[int, int], tuple[Problem, ...]] = {}
    sizes = [len(axis.values) for axis in axes]
    for point in points:
        if not unproven:
            return []
        own = unproven.intersection(enumerate(_places(point.index, sizes)))
        if not own:
            continue
        try:
            base.change(dict(point.changes))
        except UserError as error:
            reasons = {**dict.fromkeys(own, error.problems), **reasons}
        else:
            unproven -= own
    return list(dict.fromkeys(problem for one in sorted(unproven) for problem in reasons[one]))


def _places(index: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Place on each axis of a point of the grid."""
    places = []
    for size in reversed(sizes):
        index, place = divmod(index, size)
        places.append(place)
    return tuple(reversed(places))


def _told(handed: Mapping[str, Any]) -> dict[str, str]:
    """Objects given in Python, so that others would be noticed: requests by their hash, the rest by what they say."""
    told = {}
    for name, thing in sorted(handed.items()):
        text = thing.digest() if name == "workload" else re.sub(r" at 0x[0-9a-fA-F]+", "", repr(thing))
        told[name] = text if len(text) <= 200 else hashlib.sha256(text.encode()).hexdigest()
    return told


def _files(base: Scenario, axes: Sequence[Axis]) -> dict[str, str]:
    """SHA-256 of every file that base or axes name."""
    document = base.document.model_dump(by_alias=True)
    named = [(document.get(section) or {}).get(key) for section, key in (one.split(".") for one in _FILES)]
    for axis in axes:
        for row in axis.values:
            named += [value for key, value in zip(axis.keys, row, strict=True) if key in _FILES]
    found = {}
    for name in dict.fromkeys(one for one in named if isinstance(one, str)):
        path = base._path(name)
        if path.is_file():
            with open(path, "rb") as file:
                found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


# ------------------------------------------------------------------------------------------------- what came of it
def _made(
    scenario: dict[str, Any],
    axes: dict[str, list[Any]],
    points: Sequence[Point],
    results: Mapping[int, PointResult],
    provenance: dict[str, Any],
) -> Sweep:
    ordered = tuple(results[index] for index in sorted(results))
    hashes = sorted({result.workload_sha256 for result in ordered} - {""})
    frame = _frame(points, results)
    return Sweep(frame, axes, scenario, {**provenance, "workload_sha256": hashes}, ordered)


def _frame(points: Sequence[Point], results: Mapping[int, PointResult]) -> pd.DataFrame:
    rows = [results.get(point.index, PointResult(point.index, "not run")) for point in points]
    columns: dict[str, Any] = {}
    for number, (key, _) in enumerate(points[0].changes):
        columns[key] = _column([point.changes[number][1] for point in points])
    columns["state"] = _column([row.state for row in rows])
    columns["error"] = _column([row.error for row in rows])
    columns["exit_code"] = _column([row.exit_code for row in rows])
    columns["checks_hold"] = pd.array([_checks_hold(row) for row in rows], dtype="boolean")
    ran = [{} if row.failed else row.summary for row in rows]
    # Points may differ in pools, and so in figures.
    for name in dict.fromkeys(name for summary in ran for name in summary):
        columns[name] = _column([summary.get(name) for summary in ran])
    return pd.DataFrame(columns)


def _checks_hold(row: PointResult) -> bool | None:
    """None where there are no checks, or nothing to check."""
    if row.state in FAILED or not row.checks:
        return None
    return all(check["holds"] for check in row.checks)


def _column(values: Sequence[Any]) -> Any:
    """A column of one type: whole numbers, numbers, truth values, or else text."""
    there = [value for value in values if value is not None]
    if there and all(isinstance(value, bool) for value in there):
        return pd.array(values, dtype="bool" if len(there) == len(values) else "boolean")
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in there):
        whole = len(there) == len(values) and all(isinstance(value, int) and abs(value) < 2**63 for value in there)
        return pd.Series(
            [float("nan") if value is None else value for value in values], dtype="int64" if whole else "float64"
        )
    return pd.array([None if value is None else _text(value) for value in values], dtype="str")


def _text(value: Any) -> str:
    """A value as a person writes it."""
    return value if isinstance(value, str) else "default" if value is None else json.dumps(value)
