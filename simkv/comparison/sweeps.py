"""Two sweeps against one another: point by point, on the axes they share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pandas as pd

from simkv.comparison.figures import figure_text, plain
from simkv.comparison.labels import default_labels, labelled
from simkv.comparison.opening import Opened
from simkv.comparison.tables import ABSENT, FIGURE_COLUMNS, figure_row, flat
from simkv.comparison.tolerance import Tolerance
from simkv.errors import Problem, ScenarioError, nearest
from simkv.studies.points import FAILED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["SweepComparison", "compare_sweeps"]

# Columns of a sweep's frame that say how a point went, and are no figures.
_STATE = ("state", "error", "exit_code", "checks_hold", "workload_sha256")
_RAN = ("ok", "check failed")
PLOTS = ("requests.retracted", "output_tokens_per_s", "ttft_s.p99", "token_usage.peak")


@dataclass(frozen=True, eq=False)
class SweepComparison:
    """Two sweeps, and what follows.

    Attributes
    ----------
    a, b
        ``label`` and ``frame`` of each.
    axes : tuple of str
        Axes that both have, on which points are joined.
    table : DataFrame
        One row a point and figure: the axes, then the columns of :attr:`Comparison.table`.
    points : DataFrame
        One row a point that either has: the axes, ``state_a``, ``state_b`` and ``in``, which is both, only a or only b.
    inputs : DataFrame
        What differs in the two scenarios the sweeps are of.
    """

    a: SimpleNamespace
    b: SimpleNamespace
    axes: tuple[str, ...]
    tolerance: Tolerance

    @cached_property
    def _points(self) -> list[tuple[tuple[Any, ...], dict[str, Any] | None, dict[str, Any] | None]]:
        """Values on the axes, and the rows of a and b there."""
        sides = [
            {tuple(_mark(row[axis]) for axis in self.axes): row for row in side.frame.to_dict("records")}
            for side in (self.a, self.b)
        ]
        found: list[tuple[tuple[Any, ...], dict[str, Any] | None, dict[str, Any] | None]] = []
        for mark in dict.fromkeys([*sides[0], *sides[1]]):
            both = sides[0].get(mark), sides[1].get(mark)
            named = both[0] if both[0] is not None else both[1]
            assert named is not None
            found.append((tuple(plain(named[axis]) for axis in self.axes), *both))
        return found

    @cached_property
    def points(self) -> pd.DataFrame:
        """What became of each point in both."""
        rows = [
            {
                **dict(zip(self.axes, key, strict=True)),
                "state_a": None if x is None else x["state"],
                "state_b": None if y is None else y["state"],
                "in": "both" if x and y else "only a" if x else "only b",
            }
            for key, x, y in self._points
        ]
        return pd.DataFrame(rows, columns=[*self.axes, "state_a", "state_b", "in"], dtype=object)

    @cached_property
    def figures(self) -> tuple[str, ...]:
        """Names of the figures that either has."""
        names = dict.fromkeys([*self.a.frame.columns, *self.b.frame.columns])
        apart = {*_STATE, *self.a.axes, *self.b.axes}
        return tuple(str(name) for name in names if name not in apart)

    @cached_property
    def table(self) -> pd.DataFrame:
        """Every figure of every point that both have."""
        rows = [
            {**dict(zip(self.axes, key, strict=True)), **row}
            for key, x, y in self._points
            if x and y
            for row in self._figure_rows(x, y)
        ]
        made = pd.DataFrame(rows, columns=[*self.axes, *FIGURE_COLUMNS], dtype=object)
        return made.astype({"changed": bool})

    def _figure_rows(self, x: dict[str, Any], y: dict[str, Any]) -> Iterator[dict[str, Any]]:
        ran = all(row["state"] in _RAN for row in (x, y))
        same = self.judged and x.get("workload_sha256") == y.get("workload_sha256")
        for name in self.figures:
            has = (name in self.a.frame, name in self.b.frame)
            values = (plain(x.get(name)), plain(y.get(name)))
            if values == (None, None) and has == (True, True):
                continue
            yield figure_row(name, *values, self.tolerance if ran else Tolerance(), judged=ran and same, sides=has)

    @property
    def judged(self) -> bool:
        """Whether figures may be called better and worse; a point whose requests differ is told apart."""
        return self.same_workload is not False

    @cached_property
    def same_workload(self) -> bool | None:
        """Whether every point got the same requests in both; None where the sweeps do not say."""
        pairs = [(x.get("workload_sha256"), y.get("workload_sha256")) for _, x, y in self._points if x and y]
        known = [pair for pair in pairs if all(isinstance(one, str) and one for one in pair)]
        if known:
            return all(one == other for one, other in known)
        keys = ("workload", "seed")
        one, other = ({k: side.scenario.get(k) for k in keys} for side in (self.a, self.b))
        return False if one != other else None

    @property
    def changed(self) -> pd.DataFrame:
        """Figures that differ."""
        return self.table[self.table["changed"]]

    @cached_property
    def inputs(self) -> pd.DataFrame:
        """What differs in the two scenarios."""
        sides = [flat({k: v for k, v in side.scenario.items() if k != "description"}) for side in (self.a, self.b)]
        keys = [k for k in dict.fromkeys([*sides[0], *sides[1]]) if k not in self.axes]
        rows = [
            {"key": key, "a": sides[0].get(key, ABSENT), "b": sides[1].get(key, ABSENT)}
            for key in keys
            if sides[0].get(key, ABSENT) != sides[1].get(key, ABSENT)
        ]
        return pd.DataFrame(rows, columns=["key", "a", "b"], dtype=object)

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Why the two may not be comparable."""
        told = []
        if self.same_workload is False:
            told.append(
                f"THE WORKLOADS DIFFER: not every point of {self.a.label} and {self.b.label} got the same requests, so no "
                "figure is called better or worse"
            )
        alone = [self.points[self.points["in"] == f"only {side}"] for side in "ab"]
        for side, rows in zip((self.a, self.b), alone, strict=True):
            if len(rows):
                told.append(f"{len(rows)} of {len(self.points)} points are only in {side.label}, and are not compared")
        for side in (self.a, self.b):
            missing = int((side.frame["state"] == "not run").sum())
            if missing:
                told.append(f"{side.label} is partial: {missing} of its {len(side.frame)} points have not run")
        for side, other in ((self.a, self.b), (self.b, self.a)):
            more = [axis for axis in side.axes if axis not in other.axes]
            if more:
                told.append(f"only {side.label} varies {', '.join(more)}, which has one value there")
        return tuple(told)

    @cached_property
    def failures(self) -> tuple[str, ...]:
        """Points that worked in a and do not in b, checks that held, tolerances that are exceeded."""
        return tuple(self._failures())

    def _failures(self) -> Iterator[str]:
        for key, x, y in self._points:
            if not x or not y:
                continue
            where = self._where(key)
            if x["state"] in _RAN and y["state"] in FAILED:
                error = f": {y['error']}" if y.get("error") else ""
                yield f"{where}: {self.b.label} is {y['state']}{error}"
            elif plain(x.get("checks_hold")) is True and plain(y.get("checks_hold")) is False:
                yield f"{where}: a check held with {self.a.label} and does not with {self.b.label}"
        for row in self.table[[within is False for within in self.table["within"]]].to_dict("records"):
            values = " and ".join(figure_text(row["figure"], row[side], "no value") for side in "ab")
            where = self._where([row[axis] for axis in self.axes])
            yield f"{where}: {row['figure']} is beyond its tolerance of {row['allowed']:,.6g}: {values}"

    def _where(self, key: Any) -> str:
        return ", ".join(f"{axis} = {value}" for axis, value in zip(self.axes, key, strict=True))

    @property
    def verdict(self) -> str:
        """The outcome in one line."""
        if self.failures:
            more = f" (and {len(self.failures) - 1} more)" if len(self.failures) > 1 else ""
            return f"FAILS: {self.failures[0]}{more}"
        both = int((self.points["in"] == "both").sum())
        if not len(self.changed):
            return f"no figure differs at any of {both} points"
        counts = self.table["verdict"].value_counts()
        better, worse = int(counts.get("improved", 0)), int(counts.get("worse", 0))
        judged = f", {better} for the better and {worse} for the worse" if better or worse else ""
        return f"{len(self.changed)} of {len(self.table)} figures at {both} points differ{judged}"

    @cached_property
    def paragraph(self) -> tuple[str, ...]:
        """What happened, in sentences: the largest difference of the figures people ask for."""
        return tuple(self._sentences())

    def _sentences(self) -> Iterator[str]:
        for figure in PLOTS:
            rows = self.table[(self.table["figure"] == figure) & self.table["change"].notna()]
            rows = rows[rows["changed"]]
            if not len(rows):
                continue
            most = max(rows.to_dict("records"), key=lambda row: abs(row["change"]))
            where = self._where([most[axis] for axis in self.axes])
            a, b = (figure_text(figure, most[side]) for side in "ab")
            yield (
                f"{figure} differs at {len(rows)} of {int((self.points['in'] == 'both').sum())} points, most at {where}: "
                f"{a} with {self.a.label}, {b} with {self.b.label}."
            )

    @property
    def exit_code(self) -> int:
        """1 if something failed, else 0."""
        return 1 if self.failures else 0

    @property
    def plots(self) -> tuple[str, ...]:
        """Figures that can be drawn against the first axis."""
        drawn = [name for name in PLOTS if name in self.figures and (self.table["figure"] == name).any()]
        return tuple(drawn)

    def plot(self, kind: str | None = None, ax: Axes | None = None, title: str | None = None) -> Axes:
        """Draw a figure against the first axis, both sweeps on one picture.

        Parameters
        ----------
        kind : str, optional
            Name of a figure; the first of :attr:`plots` when omitted.
        ax : Axes, optional
            Where to draw; a new figure otherwise.
        title : str, optional
            Instead of the default title.
        """
        from simkv.plotting.overlay import figure_against_axis

        name = kind if kind is not None else next(iter(self.plots), None)
        rows = self.table[self.table["figure"] == name]
        if name is None or not len(rows):
            known = list(self.figures)
            message = f"{name!r} is no figure that both sweeps have{nearest(str(name), known)}"
            raise ScenarioError("plot", [Problem("kind", message)])
        frame = rows.copy()
        if len(self.axes) > 1:
            rest = self.axes[1:]
            frame["line"] = [", ".join(f"{axis} = {row[axis]}" for axis in rest) for row in rows.to_dict("records")]
        return figure_against_axis(frame, self.axes[0], name, (self.a.label, self.b.label), ax=ax, title=title)

    @cached_property
    def pictures(self) -> dict[str, bytes]:
        """Every figure as the bytes of a PNG file."""
        from simkv.comparison.page import picture_bytes

        return {kind: picture_bytes(self, kind) for kind in self.plots}

    def to_markdown(self) -> str:
        """A summary for a pull request or a job's page."""
        from simkv.comparison.page import sweeps_markdown

        return sweeps_markdown(self)

    def to_html(self) -> str:
        """One page that holds everything, figures included."""
        from simkv.comparison.page import sweeps_html

        return sweeps_html(self)

    def _repr_html_(self) -> str:
        from simkv.comparison.page import fragment
        from simkv.comparison.view import sweep_sections

        return fragment(self, sweep_sections(self))

    def __repr__(self) -> str:
        return f"SweepComparison({self.a.label!r}, {self.b.label!r}: {self.verdict})"

    def to_dict(self) -> dict[str, Any]:
        """What ``simkv compare --json`` prints."""
        return {
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "failures": list(self.failures),
            "warnings": list(self.warnings),
            "paragraph": list(self.paragraph),
            "same_workload": self.same_workload,
            "axes": list(self.axes),
            "labels": [self.a.label, self.b.label],
            "inputs": self.inputs.to_dict("records"),
            "points": self.points.to_dict("records"),
            "figures": self.table.to_dict("records"),
        }


def compare_sweeps(
    first: Opened,
    second: Opened,
    tolerance: Tolerance,
    stated: tuple[str | None, str | None],
    *,
    same_workload: bool = False,
) -> SweepComparison:
    """Join two sweeps on the axes they share.

    Raises
    ------
    ScenarioError
        They share no axis, a point of one is several of the other, a tolerance names no figure, or the requests differ
        and should not.
    """
    sweeps = [first.thing, second.thing]
    every = [_columns(sweep) for sweep in sweeps]
    shared = tuple(axis for axis in every[0] if axis in every[1])
    if not shared:
        message = f"vary {', '.join(every[0])} and {', '.join(every[1])}: no axis in common to join them on"
        raise ScenarioError("compare", [Problem("axes", message)])
    scenarios = [_scenario(sweep) for sweep in sweeps]
    default = default_labels((scenarios[0], scenarios[1]), (first.origin, second.origin))
    labels = labelled(stated, default)
    problems = []
    for label, sweep, axes in zip(labels, sweeps, every, strict=True):
        doubled = sweep.frame.duplicated(subset=list(shared)).sum()
        if doubled:
            extra = ", ".join(axis for axis in axes if axis not in shared) or "nothing else"
            message = f"{label} has {doubled} points more than values of {', '.join(shared)} (it also varies {extra})"
            problems.append(Problem("axes", f"{message}: they cannot be told apart by the axes that both have"))
    sides = [
        SimpleNamespace(label=label, frame=_hashed(sweep), axes=axes, scenario=scenario)
        for label, sweep, axes, scenario in zip(labels, sweeps, every, scenarios, strict=True)
    ]
    made = SweepComparison(sides[0], sides[1], shared, tolerance)
    problems += tolerance.problems(made.figures)
    if not problems and not (made.points["in"] == "both").any():
        problems.append(Problem("points", f"the sweeps have no point in common on {', '.join(shared)}"))
    if not problems and same_workload and made.same_workload is False:
        problems.append(Problem("workload_sha256", "the requests of the two sweeps differ, and should not"))
    if problems:
        raise ScenarioError("compare", problems)
    return made


def _mark(value: Any) -> Any:
    """Equal for equal values: an axis with a word on it has its numbers as text, too."""
    value = plain(value)
    if isinstance(value, str):
        with suppress(ValueError):
            value = json.loads(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return json.dumps(value) if isinstance(value, (list, dict)) else value


def _columns(sweep: Any) -> list[str]:
    """Columns of the frame that are axes; one axis may be several keys, joined by commas."""
    found: list[str] = []
    for axis in sweep.axes:
        found += [str(axis)] if axis in sweep.frame else str(axis).split(",")
    return found


def _hashed(sweep: Any) -> pd.DataFrame:
    """The frame, with the hash of each point's requests where it is known."""
    results = {result.index: result.workload_sha256 for result in getattr(sweep, "results", ())}
    if not results:
        return sweep.frame  # type: ignore[no-any-return]
    hashes = [results.get(place, "") for place in range(len(sweep.frame))]
    return sweep.frame.assign(workload_sha256=hashes)  # type: ignore[no-any-return]


def _scenario(sweep: Any) -> dict[str, Any]:
    """The scenario a sweep is of, as a dict."""
    found = getattr(sweep, "scenario", None)
    return dict(found.to_dict() if found is not None and hasattr(found, "to_dict") else found or {})
