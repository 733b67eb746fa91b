"""Golden figures: what scenarios gave once, kept in a repository, and whether they still do.

A directory holds one small JSON file a scenario, and may hold ``baseline.toml`` with tolerances. A file has the scenario,
the hash of its requests, the plan, every figure of the summary (integers exactly, floats as ``repr`` writes them), what
happened by cause, and curves of at most :data:`POINTS` points, so that a drift can be drawn without the version that
made it. The same scenario and version give the same bytes. Paths in a file start at its directory.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simkv.comparison.outcome import Comparison, damage_of, simulated_side
from simkv.comparison.pages import Pages
from simkv.comparison.sides import Cause, Side
from simkv.comparison.tables import ABSENT, flat
from simkv.comparison.tolerance import Tolerance, tolerance_of
from simkv.errors import Problem, ScenarioError, UserError, nearest
from simkv.outputs import write_file
from simkv.plotting.style import OOM_COLUMNS
from simkv.results import Check
from simkv.scenario import Scenario, builtin_names, load
from simkv.simulation import Progress

__all__ = ["POINTS", "BaselineCheck", "check_baseline", "save_baseline"]

SCHEMA = 1
POINTS = 200
"""Most points of a stored curve."""
SETTINGS = "baseline.toml"
_KNOWN = ("rtol", "atol")
# Of a timeline, what is averaged over a bin, with the decimals kept, and what is added up.
_MEANS = {"full_token_usage": 4, "swa_token_usage": 4, "num_running_reqs": 2, "num_queue_reqs": 2}
_SUMS = (
    "num_retracted_reqs",
    "num_aborted_reqs",
    "num_refused_reqs",
    "window_evicted_swa_tokens",
    "cache_evicted_full_tokens",
    "cache_evicted_swa_tokens",
)
# Words that may be written better without anything having changed.
_PROSE = ("notes", "charges")
_PATHS = (("model", "config"), ("draft", "config"), ("workload", "trace"))

Watch = Callable[[str, Progress], None]


# ------------------------------------------------------------------------------------------------- save
def save_baseline(
    directory: str | Path,
    scenarios: Iterable[str | Path | Mapping[str, Any] | Scenario] = (),
    *,
    overrides: Sequence[str] = (),
    force: bool = False,
    progress: Watch | None = None,
) -> list[str]:
    """Simulate scenarios and write one file each.

    Parameters
    ----------
    directory : str or Path
        Made where it is missing; other files in it are left alone.
    scenarios : iterable
        Names, files, dicts or Scenarios; without any, all that are built in.
    overrides : sequence of str
        ``dotted.key=value`` changes of every one of them; a check makes them again.
    force : bool
        Replace files that are there.
    progress : callable, optional
        Called now and then with a scenario's name and a :class:`Progress`.

    Returns
    -------
    list of str
        Names of the files, in the order of the scenarios. Either all of them are written, or none that is half done.

    Raises
    ------
    UserError
        A scenario is wrong, two have one name, a file is there already, or cannot be written.
    """
    folder = Path(directory)
    # Built-in ones by name: what comes after decides what is meant by it.
    wanted = list(scenarios) or list(builtin_names())
    made = list(zip(wanted, _loaded(wanted, overrides), strict=True))
    _refuse_names(folder, [scenario for _, scenario in made], force=force)
    texts = {}
    for given, scenario in made:
        side = simulated_side(scenario, scenario.name, progress)
        texts[_file_name(scenario.name)] = _text(_entry(side, scenario, folder, _source(given, folder), overrides))
    for name, text in texts.items():
        write_file(folder / name, text)
    return list(texts)


def _loaded(wanted: Sequence[Any], overrides: Sequence[str]) -> list[Scenario]:
    """The scenarios, or everything that is wrong with any of them."""
    made: list[Scenario] = []
    wrong: list[UserError] = []
    for one in wanted:
        try:
            made.append(load(one).override(*overrides))
        except UserError as error:
            wrong.append(error)
    if len(wrong) == 1:
        raise wrong[0]
    if wrong:
        problems = dict.fromkeys(problem for error in wrong for problem in error.problems)
        raise ScenarioError(", ".join(dict.fromkeys(error.source for error in wrong)), problems)
    return made


def _refuse_names(folder: Path, scenarios: Sequence[Scenario], *, force: bool) -> None:
    problems = []
    names: dict[str, str] = {}
    for one in scenarios:
        file = _file_name(one.name)
        if one.arch is not None or one.rule is not None:
            problems.append(Problem(one.name, "holds objects given in Python, which no file can hold"))
        if file in names:
            problems.append(
                Problem(one.name, f"would be written to {file}, as {names[file]} would; rename one of them")
            )
        elif not force and (folder / file).exists():
            problems.append(Problem(str(folder / file), "exists already; pass --force to save it again"))
        names[file] = one.name
    held = [name for name in ("run.json", "sweep.json") if (folder / name).exists()]
    if held:
        problems.append(Problem(str(folder), f"holds {held[0]}: a directory of results; name another one"))
    if folder.exists() and not folder.is_dir():
        problems.append(Problem(str(folder), "is a file; name a directory"))
    if problems:
        raise ScenarioError("the baseline", problems)


def _file_name(name: str) -> str:
    return (re.sub(r"[^\w.=-]+", "-", name).strip(".-") or "scenario") + ".json"


def _source(given: Any, folder: Path) -> dict[str, str]:
    """Where a scenario came from, so that a check can see that it is still the same."""
    if isinstance(given, (str, Path)):
        path = Path(given)
        return {"file": _relative(path, folder)} if path.is_file() else {"builtin": str(given)}
    return {}


def _relative(path: str | Path, folder: Path) -> str:
    return Path(os.path.relpath(Path(path).resolve(), folder.resolve())).as_posix()


def _entry(
    side: Side, scenario: Scenario, folder: Path, source: dict[str, str], overrides: Sequence[str]
) -> dict[str, Any]:
    """What is written of one scenario."""
    return {
        "schema": SCHEMA,
        "provenance": {key: side.provenance.get(key) for key in ("simkv", "engine", "seed", "workload_sha256")},
        "source": source,
        "overrides": list(overrides),
        "scenario": _portable(scenario, folder),
        "plan": {key: value for key, value in side.plan.items() if key not in _PROSE},
        "summary": side.summary,
        "checks": [asdict(check) for check in side.checks],
        "causes": [asdict(cause) for cause in side.causes],
        "fault": side.fault,
        "refusal": side.refusal,
        "curve": _curve(side.timeline),
    }


def _portable(scenario: Scenario, folder: Path) -> dict[str, Any]:
    """The resolved scenario, with paths that start at the directory of the baseline."""
    data = scenario.to_dict()
    for section, key in _PATHS:
        value = (data.get(section) or {}).get(key)
        if isinstance(value, str) and os.path.isabs(value):
            data[section][key] = _relative(value, folder)
    return data


def _curve(timeline: pd.DataFrame) -> dict[str, list[float]]:
    """The main series, in at most :data:`POINTS` points: means over time of usage and requests, sums of the others."""
    if not len(timeline):
        return {}
    from simkv.plotting.curves import bin_stats, sum_in_bins, time_bins

    time = timeline["time_s"].to_numpy(dtype=float)
    means = {name: digits for name, digits in _MEANS.items() if name in timeline}
    if len(time) <= POINTS or time[-1] <= time[0]:
        rows = timeline.iloc[:POINTS] if time[-1] <= time[0] else timeline
        out = {name: [round(float(x), digits) for x in rows[name]] for name, digits in means.items()}
        out |= {name: [int(x) for x in rows[name]] for name in _summed(rows)}
        return {"time_s": [round(float(t), 6) for t in rows["time_s"]], **out}
    _, edges = time_bins(time[0], time[-1], POINTS - 1)
    out = {"time_s": [round(float(t), 6) for t in edges]}
    for name, digits in means.items():
        mean = bin_stats(time, timeline[name].to_numpy(dtype=float), edges)[0]
        out[name] = [round(float(x), digits) for x in [*mean, timeline[name].iloc[-1]]]
    for name in _summed(timeline):
        out[name] = [*(int(x) for x in sum_in_bins(time, timeline[name].to_numpy(dtype=float), edges)), 0]
    return out


def _summed(rows: pd.DataFrame) -> list[str]:
    """Counts of which there are any."""
    return [name for name in _SUMS if name in rows and rows[name].any()]


def _text(entry: Mapping[str, Any]) -> str:
    """JSON with a line a figure, so that a diff shows which one changed."""
    return "{\n" + ",\n".join(f' "{key}": {_block(entry[key])}' for key in sorted(entry)) + "\n}\n"


def _block(value: Any) -> str:
    if isinstance(value, Mapping) and value:
        return "{\n" + ",\n".join(f"  {_line(key)}: {_line(value[key])}" for key in sorted(value)) + "\n }"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"  {_line(one)}" for one in value) + "\n ]"
    return _line(value)


def _line(value: Any) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False, ensure_ascii=False)


# ------------------------------------------------------------------------------------------------- check
@dataclass(frozen=True, eq=False)
class BaselineCheck:
    """What a check found.

    Attributes
    ----------
    directory : Path
    comparisons : dict
        Scenario name -> Comparison of what was saved (a) with what it is now (b).
    """

    directory: Path
    comparisons: dict[str, Comparison]

    @property
    def drifted(self) -> dict[str, Comparison]:
        """Those that are not what they were."""
        return {name: one for name, one in self.comparisons.items() if one.failures}

    @property
    def exit_code(self) -> int:
        """1 if anything drifted, else 0."""
        return 1 if self.drifted else 0

    @property
    def verdict(self) -> str:
        """The outcome in one line."""
        count = len(self.comparisons)
        scenarios = "1 scenario" if count == 1 else f"{count} scenarios"
        if self.drifted:
            return f"{len(self.drifted)} of {scenarios} drifted: {', '.join(self.drifted)}"
        figures = sum(len(one.table) for one in self.comparisons.values())
        return f"{scenarios} as saved, {figures:,} figures"

    @cached_property
    def table(self) -> pd.DataFrame:
        """Figures beyond their tolerance: ``scenario``, then the columns of :attr:`Comparison.table`."""
        parts = []
        for name, one in self.drifted.items():
            rows = one.table[[within is False for within in one.table["within"]]].copy()
            rows.insert(0, "scenario", name)
            parts.append(rows)
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["scenario", "figure", "a", "b"])

    def write(self, pages: Pages) -> list[str]:
        """Write pages about what drifted; the names of what was written."""
        lead = [f"{self.verdict}."]
        return pages.write_several(f"Baseline {self.directory.name}", lead, self.drifted)

    def to_dict(self) -> dict[str, Any]:
        """What ``simkv baseline check --json`` prints."""
        return {
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "scenarios": {
                name: {
                    "verdict": one.verdict,
                    "failures": list(one.failures),
                    "warnings": list(one.warnings),
                    "figures": {row.pop("figure"): row for row in one.table[one.table["changed"]].to_dict("records")},
                }
                for name, one in self.comparisons.items()
            },
        }

    def __repr__(self) -> str:
        return f"BaselineCheck({self.verdict!r})"


def check_baseline(
    directory: str | Path,
    *,
    rtol: float | Mapping[str, float] | None = None,
    atol: float | Mapping[str, float] | None = None,
    progress: Watch | None = None,
) -> BaselineCheck:
    """Simulate the scenarios of a baseline again and compare.

    Every figure and every size of the plan must be equal, unless a tolerance is stated: ``rtol`` and ``atol`` in
    ``baseline.toml``, each a number or a table of figures (or glob patterns) to numbers. What is given here replaces
    the one there.

    Raises
    ------
    UserError
        No baseline is there, a file is damaged, its scenario or its requests are not those that were saved (save
        again), or a tolerance names no figure; everything that is wrong at once, and before anything is simulated.
    """
    folder = Path(directory)
    problems: list[Problem] = []
    tolerance = _tolerance(folder, rtol, atol, problems)
    loaded: dict[str, tuple[dict[str, Any], Scenario]] = {}
    for path in _files(folder):
        try:
            entry = _read(path)
            loaded[path.stem] = entry, _same_scenario(entry, path)
        except UserError as error:
            problems += error.problems
    known = {figure for entry, _ in loaded.values() for figure in entry["summary"]}
    if known:
        problems += tolerance.problems(known, prefix="baseline: ")
    if problems:
        raise ScenarioError(str(folder), problems)
    found = {}
    for name, (entry, scenario) in loaded.items():
        now = simulated_side(scenario, "now", None if progress is None else _named(progress, name))
        before = _side(entry)
        found[name] = Comparison(before, now, tolerance, tuple(_plan_drift(before, now)))
    return BaselineCheck(folder, found)


def _named(progress: Watch, name: str) -> Watch:
    return lambda _, p: progress(name, p)


def _files(folder: Path) -> list[Path]:
    try:
        found = sorted(path for path in folder.iterdir() if path.suffix == ".json" and path.is_file())
    except OSError as error:
        raise ScenarioError(str(folder), [Problem(str(folder), f"cannot be read: {error.strerror}")]) from None
    if not found:
        message = f"holds no baseline; make one with: simkv baseline save {folder}"
        raise ScenarioError(str(folder), [Problem(str(folder), message)])
    return found


def _tolerance(folder: Path, rtol: Any, atol: Any, problems: list[Problem]) -> Tolerance:
    """Stated tolerances over exactness."""
    path = folder / SETTINGS
    stated: dict[str, Any] = {}
    if path.is_file():
        try:
            stated = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            problems.append(Problem(str(path), f"cannot be read: {error}"))
        problems += [
            Problem(f"{path}: {key}", f"unknown key{nearest(key, _KNOWN) or '; allowed are rtol, atol'}")
            for key in stated
            if key not in _KNOWN
        ]
    try:
        made = tolerance_of(
            rtol if rtol is not None else stated.get("rtol"),
            atol if atol is not None else stated.get("atol"),
            str(path),
        )
    except ScenarioError as error:
        problems += [Problem(f"{path}: {p.place}", p.message) for p in error.problems]
        made = Tolerance()
    return Tolerance({"*": 0.0, **made.rtol}, made.atol)


_FIELDS = {
    "provenance": dict,
    "source": dict,
    "overrides": list,
    "scenario": dict,
    "plan": dict,
    "summary": dict,
    "checks": list,
    "causes": list,
    "curve": dict,
}


def _read(path: Path) -> dict[str, Any]:
    """A file of a baseline."""
    again = "save it again: simkv baseline save DIR --force"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ScenarioError(str(path), [Problem(str(path), f"cannot be read: {reason}")]) from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        written = data.get("schema") if isinstance(data, dict) else None
        raise ScenarioError(str(path), [Problem(str(path), f"schema {written!r} is not {SCHEMA}; {again}")])
    wrong = [key for key, kind in _FIELDS.items() if not isinstance(data.get(key), kind)]
    if not wrong:
        try:
            wrong = [damage for damage in [damage_of(_side(data))] if damage]
        except (KeyError, TypeError, ValueError) as error:
            wrong = [str(error)]
    if wrong:
        raise ScenarioError(str(path), [Problem(str(path), f"is damaged ({', '.join(wrong)}); {again}")])
    return data


def _same_scenario(entry: Mapping[str, Any], path: Path) -> Scenario:
    """The scenario as it is today, if it is the one that was saved."""
    folder, source = path.parent, entry["source"]
    saved = Scenario(dict(entry["scenario"]), str(path), folder.resolve())
    now = saved
    if "builtin" in source:
        now = load(str(source["builtin"]) if source["builtin"] in builtin_names() else folder / "no such scenario")
    elif "file" in source:
        now = load(folder / str(source["file"]))
    if now is not saved:
        now = now.override(*entry["overrides"])
    one, other = (flat({k: v for k, v in s.to_dict().items() if k != "description"}) for s in (saved, now))
    differ = [key for key in dict.fromkeys([*one, *other]) if one.get(key, ABSENT) != other.get(key, ABSENT)]
    again = f"save it again: {_command(folder, entry)}"
    if differ:
        shown = ", ".join(f"{k} was {one.get(k, ABSENT)!r}, is {other.get(k, ABSENT)!r}" for k in differ[:3])
        more = f" and {len(differ) - 3} more" if len(differ) > 3 else ""
        message = f"the scenario is not the one that was saved ({shown}{more}); {again}"
        raise ScenarioError(str(path), [Problem(path.name, message)])
    digest = now.workload().digest()
    if digest != entry["provenance"].get("workload_sha256"):
        message = f"the requests are not those that were saved (their trace or generator changed); {again}"
        raise ScenarioError(str(path), [Problem(path.name, message)])
    return now


def _command(folder: Path, entry: Mapping[str, Any]) -> str:
    source = entry["source"]
    name = source.get("builtin") or source.get("file") or "SCENARIO"
    changes = "".join(f" --set '{change}'" for change in entry["overrides"])
    return f"simkv baseline save {folder} {name}{changes} --force"


def _side(entry: Mapping[str, Any]) -> Side:
    """What was saved, as a side."""
    causes = tuple(Cause(**cause) for cause in entry["causes"])
    timeline = _timeline(entry["curve"])
    return Side(
        label="baseline",
        scenario=dict(entry["scenario"]),
        plan=dict(entry["plan"]),
        summary=dict(entry["summary"]),
        checks=tuple(Check(**check) for check in entry["checks"]),
        timeline=timeline,
        events=_events(timeline, causes),
        causes=causes,
        provenance=dict(entry["provenance"]),
        fault=entry["fault"],
        refusal=entry["refusal"],
    )


def _timeline(curve: Mapping[str, Sequence[float]]) -> pd.DataFrame:
    """A stored curve as a timeline; where the engine has one pool, it has no columns of the other."""
    return pd.DataFrame({name: np.asarray(values, dtype=float) for name, values in curve.items()})


def _events(timeline: pd.DataFrame, causes: Sequence[Cause]) -> pd.DataFrame:
    """Events out of the counts of a curve, where all of a kind were in one pool; of others only the counts are known."""
    parts = []
    for event, column in OOM_COLUMNS.items():
        known = [cause for cause in causes if cause.event == event]
        if column in timeline and len({cause.pool for cause in known}) == 1:
            times = np.repeat(timeline["time_s"], timeline[column].astype(int))
            parts.append(
                pd.DataFrame({"time_s": times, "event": event, "pool": known[0].pool, "cause": known[0].cause})
            )
    made = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["time_s", "event", "pool", "cause"])
    return made.assign(request_id="-", tokens=0)


def _plan_drift(before: Side, now: Side) -> Iterable[str]:
    """Sizes of the plan that changed and are no figure of the summary, and how the run ended."""
    comparison = Comparison(before, now, Tolerance())
    for row in comparison.plan[comparison.plan["changed"]].to_dict("records"):
        if row["figure"] not in now.summary and row["figure"] not in before.summary and row["figure"] != "engine":
            yield f"plan: {row['figure']} was {_value(row['a'])}, is {_value(row['b'])}"
    for row in comparison.pools.to_dict("records"):
        name = f"plan: {row['worker']} {row['pool']}"
        there = [row[f"layers_{side}"] is not None for side in "ab"]
        parts = [
            f"{key} was {_value(row[f'{key}_a'])}, is {_value(row[f'{key}_b'])}"
            for key in ("layers", "tokens", "bytes", "budgeted_bytes", "mapping")
            if row[f"{key}_a"] != row[f"{key}_b"]
        ]
        if there[0] != there[1]:
            yield f"{name} is {'new' if there[1] else 'gone'}"
        elif parts:
            yield f"{name}: {'; '.join(parts)}"
    endings = [side.fault["fault"] if side.fault else None for side in (before, now)]
    if endings[0] is not None and endings[0] != endings[1]:
        yield f"the engine broke ({endings[0]}) and now {'breaks: ' + endings[1] if endings[1] else 'does not'}"
    if before.refusal is not None and now.refusal is None:
        yield "the engine would not start, and now does"


def _value(value: Any) -> str:
    """A figure of a plan as a person would write it, to the last digit."""
    return f"{value:,}" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)
