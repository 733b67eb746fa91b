"""The largest (or smallest) value of a knob for which all checks hold."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from simkv.directory import write_directory
from simkv.document import comparison
from simkv.errors import InfeasibleError, Problem, ScenarioError, UserError, nearest
from simkv.overrides import toml_value
from simkv.points import Point, PointResult, run_points
from simkv.results import Run, check_figures, simulate
from simkv.scenario import Scenario, load
from simkv.studies.explain import explain
from simkv.studies.search import Asked, Interval, Number, Scale, common, intervals, search
from simkv.wording import value_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simkv.workload.request import Workload

__all__ = ["KNOBS", "Capacity", "capacity", "parse_checks", "parse_range"]

GOALS = ("largest", "smallest")
USUAL_CHECKS = {"requests.refused": "== 0", "requests.aborted": "== 0", "requests.retracted": "== 0"}
"""What is asked for where nobody says."""
# Integers of wider ranges are told apart to a share of them, as fractions are.
_EXACT_TO = 4096


@dataclass(frozen=True)
class Knob:
    """A knob that needs no range.

    Parameters
    ----------
    key : str
        Dotted key.
    spread : tuple of numbers or None
        Both ends; None: an eighth to eight times of what the scenario states.
    """

    key: str
    spread: tuple[Number, Number] | None = None


KNOBS = {
    "rate": Knob("workload.rate"),
    "rate_scale": Knob("workload.rate_scale", (0.125, 8.0)),
    "concurrency": Knob("workload.concurrency", (1, 1024)),
    "swa_full_tokens_ratio": Knob("memory.swa_full_tokens_ratio", (0.01, 1.0)),
    "mem_fraction_static": Knob("memory.mem_fraction_static", (0.3, 0.98)),
    "max_running_requests": Knob("memory.max_running_requests", (1, 1024)),
    "context_length": Knob("model.context_length", (1024, 1 << 20)),
    "num_steps": Knob("draft.num_steps", (1, 8)),
}
"""Short names of the knobs people ask for most; any other dotted key needs a range."""


@dataclass(frozen=True, eq=False)
class Capacity:
    """Answer of :func:`capacity`.

    Attributes
    ----------
    name : str
        Of the scenario.
    knob : str
        Dotted key.
    goal : str
        ``largest`` or ``smallest``.
    value : int, float or None
        With it all checks hold with every seed; None where no tested value does.
    current : int, float or None
        What the scenario states.
    spread : tuple
        The range that was searched.
    intervals : list of (first, last)
        All values that hold with every seed.
    per_seed : dict of int to (int, float or None)
        The answer of each seed alone.
    monotone : bool
        Whether the outcome changes once at the most.
    checks : dict
        Figure -> condition.
    frame : DataFrame
        A row a simulated value and seed, ascending: ``value``, ``seed``, ``holds``, ``why``, ``state``, then all figures.
    at, beyond : Run or None
        The run at the answer, and at the nearest tested value that fails, with the first seed that fails there.
    beyond_value : int, float or None
        That value.
    words : tuple of str
        The answer in words, with its arithmetic.
    """

    name: str
    knob: str
    goal: str
    value: Number | None
    current: Number | None
    spread: Interval
    intervals: list[Interval]
    per_seed: dict[int, Number | None]
    monotone: bool
    checks: dict[str, str]
    frame: pd.DataFrame = field(repr=False)
    at: Run | None = field(repr=False)
    beyond: Run | None = field(repr=False)
    beyond_value: Number | None = None
    words: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """Exit code of ``simkv capacity``: 1 where no value of the range will do."""
        return 0 if self.value is not None else 1

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        frame = self.frame.astype(object).where(self.frame.notna(), None)
        return {
            "name": self.name,
            "knob": self.knob,
            "goal": self.goal,
            "value": self.value,
            "current": self.current,
            "range": list(self.spread),
            "intervals": [list(one) for one in self.intervals],
            "per_seed": {str(seed): value for seed, value in self.per_seed.items()},
            "monotone": self.monotone,
            "checks": self.checks,
            "fails_at": self.beyond_value,
            "words": list(self.words),
            "points": [{str(key): _plain(value) for key, value in row.items()} for row in frame.to_dict("records")],
        }

    def plot(self) -> Figure:
        """The figures that are checked against the knob: what holds, what fails, and the answer."""
        from simkv.plotting.capacity import curve

        return curve(self.frame, self.knob, self.checks, value=self.value, title=f"{self.name}: {self.knob}")

    def save(self, directory: str | Path, *, force: bool = False) -> Path:
        """Write ``capacity.json``, ``points.parquet`` and ``curve.png``: whole, or not at all.

        Raises
        ------
        ScenarioError
            The directory exists and ``force`` is not given, or cannot be written.
        """
        from simkv.plotting import save

        def write(fresh: Path) -> None:
            fresh.mkdir()
            text = json.dumps(self.to_dict(), indent=1, allow_nan=False)
            (fresh / "capacity.json").write_text(text + "\n", encoding="utf-8")
            self.frame.to_parquet(fresh / "points.parquet", index=False)
            save(self.plot(), fresh / "curve.png")

        return write_directory(Path(directory), write, force=force, holds="capacity.json")

    def _repr_html_(self) -> str:
        from html import escape

        shown = self.frame[["value", "seed", "holds", "why", *(key for key in self.checks if key in self.frame)]]
        return "".join(f"<p>{escape(line)}</p>" for line in self.words) + shown.to_html(index=False)

    def __repr__(self) -> str:
        return f"Capacity({self.knob}: {self.goal} {self.value})"


def capacity(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    knob: str,
    *,
    range: Sequence[Number] | str | None = None,
    until: Sequence[str] | str = (),
    goal: str | None = None,
    seeds: int | Sequence[int] = 3,
    tolerance: float = 0.01,
    workload: Workload | None = None,
    n_jobs: int = 1,
    dask: str | None = None,
    progress: Callable[[int], None] | None = None,
    **given: Any,
) -> Capacity:
    """Find how far a knob can be turned until a check fails.

    Parameters
    ----------
    scenario : str, Path, mapping or Scenario
    knob : str
        A dotted key, or one of the short names :data:`KNOBS`.
    range : (first, last) or "first:last", optional
        Where to look; needed for a key that is not in :data:`KNOBS`.
    until : sequence of str
        Checks besides the scenario's, such as ``"requests.retracted == 0"``. With none at all nothing may be refused,
        aborted or retracted.
    goal : str, optional
        ``largest`` or ``smallest``; default: the side on which the checks begin to fail.
    seeds : int or sequence of int
        How many, counted from the scenario's, or which. All values see the same seeds, so that they see the same traffic.
    tolerance : float
        Share of a value to which the answer is told apart from the next that fails; integers up to 4,096 exactly.
    workload, n_jobs, dask, **given
        As for :func:`simkv.sweep`.
    progress : callable, optional
        Called with the number of simulations done.

    Notes
    -----
    Nine values are tried. Where the outcome changes once, it is bisected, of each seed on its own; where it goes to and fro,
    twenty-five are tried and every change is bisected. Between tested values nothing is known: a monotone answer is one that
    was monotone at all of them.

    Raises
    ------
    ScenarioError
        An unknown knob or check, a range that is none, a scenario that is wrong at every value.
    """
    base = load(scenario)
    known = KNOBS.get(knob)
    key = knob if known is None else known.key
    checks = {**base.document.checks, **parse_checks(until)} or dict(USUAL_CHECKS)
    base = base.change({f'checks."{name}"': condition for name, condition in checks.items()})
    if goal is not None and goal not in GOALS:
        raise ScenarioError("capacity", [Problem("goal", f"{goal!r} is not one of {', '.join(GOALS)}")])
    current = _current(base, key)
    low, high = _spread(known, key, current, range)
    scale = _scale(base, key, low, high, tolerance)
    _refuse_unknown_figures(base, key, [*([] if current is None else [current]), scale.high, scale.low])
    numbers = _seeds(base, seeds)
    results: dict[Asked, PointResult] = {}

    def ask(pairs: list[Asked]) -> dict[Asked, bool]:
        points = [Point(n, ((key, value), ("seed", seed))) for n, (value, seed) in enumerate(pairs)]
        for result in run_points(base, points, workload=workload, n_jobs=n_jobs, dask=dask, **given):
            results[pairs[result.index]] = result
            if progress is not None:
                progress(len(results))
        return {pair: results[pair].state == "ok" for pair in pairs}

    found = search(scale, numbers, ask)
    _refuse_if_all_wrong(base, key, results)
    runs = {seed: intervals(found.of(seed)) for seed in numbers}
    both = common(list(runs.values()))
    side = goal or _side(found.of(numbers[0]))
    value = _pick(both, side)
    beyond = _beyond(results, value, side)
    at_run = None if value is None else _run(base, key, value, numbers[0], workload, given)
    beyond_run = None if beyond is None else _run(base, key, beyond[0], beyond[1], workload, given)
    answer = Capacity(
        name=base.name,
        knob=key,
        goal=side,
        value=value,
        current=current,
        spread=(scale.low, scale.high),
        intervals=both,
        per_seed={seed: _pick(own, side) for seed, own in runs.items()},
        monotone=found.monotone,
        checks=checks,
        frame=_frame(results),
        at=at_run,
        beyond=beyond_run,
        beyond_value=None if beyond is None else beyond[0],
    )
    words = tuple(_words(base, answer, None if beyond is None else results[beyond]))
    return Capacity(**{**answer.__dict__, "words": words})


# ------------------------------------------------------------------------------------------------- input
def parse_checks(until: Sequence[str] | str) -> dict[str, str]:
    """Figure -> condition of texts such as ``"requests.retracted == 0"``.

    Raises
    ------
    ScenarioError
        Every text that is none.
    """
    texts = [until] if isinstance(until, str) else list(until)
    out, problems = {}, []
    for text in texts:
        match = re.fullmatch(r"\s*([\w.]+)\s*((?:==|!=|<=|>=|<|>).*)", text)
        if match is None or comparison(match.group(2)) is None:
            problems.append(Problem("until", f"{text!r} is not a check such as 'requests.retracted == 0'"))
        else:
            out[match.group(1)] = match.group(2).strip()
    if problems:
        raise ScenarioError("capacity", problems)
    return out


def parse_range(text: Any) -> tuple[Number, Number]:
    """Both ends of ``first:last``, or of a pair.

    Raises
    ------
    ScenarioError
        They are no two numbers, the first below the second.
    """
    ends = text.split(":") if isinstance(text, str) else list(text) if isinstance(text, (list, tuple)) else []
    values = [toml_value(end.strip()) if isinstance(end, str) else end for end in ends]
    right = len(values) == 2 and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)
    if not right or not abs(values[0]) < float("inf") or not values[0] < values[1] < float("inf"):
        message = f"{text!r} is not a range such as 1:64, its first number below its last"
        raise ScenarioError("capacity", [Problem("range", message)])
    return values[0], values[1]


def _current(base: Scenario, key: str) -> Number | None:
    """What the scenario states, or a default that it shows."""
    node: Any = base.to_dict()
    for part in key.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node if isinstance(node, (int, float)) and not isinstance(node, bool) else None


def _spread(known: Knob | None, key: str, current: Number | None, stated: Any) -> tuple[Number, Number]:
    if stated is not None:
        return parse_range(stated)
    if known is not None and known.spread is not None:
        return known.spread
    if known is not None and current:
        return current / 8, current * 8
    hint = nearest(key, KNOBS)
    message = f"is needed for {key}: first:last; known without one are {', '.join(KNOBS)}{hint}"
    raise ScenarioError("capacity", [Problem("range", message)])


def _scale(base: Scenario, key: str, low: Number, high: Number, tolerance: Any) -> Scale:
    """The values between two ends that the key takes.

    Raises
    ------
    ScenarioError
        The key takes no number, or the tolerance is none.
    """
    if not isinstance(tolerance, (int, float)) or isinstance(tolerance, bool) or not 0 < tolerance < 1:
        raise ScenarioError("capacity", [Problem("tolerance", f"{tolerance!r} is not in (0, 1)")])
    middle = (low + high) / 2
    fraction = middle if middle != round(middle) else middle + (high - low) / 7
    wrong = _problems(base, key, fraction)
    if not wrong:
        return Scale(low, high, False, tolerance)
    whole = round(middle)
    if other := _problems(base, key, whole):
        raise ScenarioError(base.source, other)
    if low != round(low) or high != round(high):
        message = f"{low:g}:{high:g} has ends that are not whole, and {key} takes integers only"
        raise ScenarioError("capacity", [Problem("range", message)])
    return Scale(round(low), round(high), True, 0.0 if high <= _EXACT_TO else tolerance)


def _problems(base: Scenario, key: str, value: Number) -> list[Problem]:
    """What is wrong with a scenario with this value, the scenario alone."""
    try:
        base.change({key: value})
    except UserError as error:
        return list(error.problems)
    return []


def _seeds(base: Scenario, seeds: Any) -> list[int]:
    """Seeds, each once."""
    whole = isinstance(seeds, int) and not isinstance(seeds, bool)
    listed = list(seeds) if isinstance(seeds, (list, tuple)) else []
    numbers = [base.seed + number for number in range(seeds)] if whole else listed
    wrong = [one for one in numbers if not isinstance(one, int) or isinstance(one, bool) or one < 0]
    if not numbers or wrong or len(set(numbers)) < len(numbers):
        message = f"{seeds!r} is neither how many seeds (an integer >= 1) nor a list of different ones"
        raise ScenarioError("capacity", [Problem("seeds", message)])
    return numbers


def _refuse_unknown_figures(base: Scenario, key: str, values: Sequence[Number]) -> None:
    """Checks of figures that no run has, told before anything runs; a server that starts knows which there are."""
    for value in values:
        one = base.change({key: value})
        try:
            plan = one.plan()
        except UserError:
            continue
        if plan.infeasible is None:
            check_figures(one, plan)
            return


def _refuse_if_all_wrong(base: Scenario, key: str, results: Mapping[Asked, PointResult]) -> None:
    """An error that every value has is the scenario's, or the knob's."""
    errors = {result.error for result in results.values() if result.state == "error"}
    if errors and all(result.state == "error" for result in results.values()):
        raise ScenarioError(base.source, [Problem(key, f"no value of it can be run: {min(errors)}")])


# ------------------------------------------------------------------------------------------------- answer
def _side(outcomes: Mapping[Number, bool]) -> str:
    """The side on which checks begin to fail."""
    held = list(outcomes.values())
    return "smallest" if not held[0] and held[-1] else "largest"


def _pick(found: Sequence[Interval], side: str) -> Number | None:
    if not found:
        return None
    return found[-1][1] if side == "largest" else found[0][0]


def _beyond(results: Mapping[Asked, PointResult], value: Number | None, side: str) -> Asked | None:
    """The nearest value beyond the answer that fails, with the first seed that fails there."""
    failed = [pair for pair, result in results.items() if result.state != "ok"]
    if value is None:
        # Nothing holds: the end that is the easier one is the one to explain.
        ends = sorted(failed, key=lambda pair: (pair[0] if side == "largest" else -pair[0], pair[1]))
        return ends[0] if ends else None
    if side == "largest":
        further = [pair for pair in failed if pair[0] > value]
        return min(further, default=None)
    further = [pair for pair in failed if pair[0] < value]
    return max(further, key=lambda pair: (pair[0], -pair[1]), default=None)


def _run(base: Scenario, key: str, value: Number, seed: int, workload: Any, given: Mapping[str, Any]) -> Run | None:
    """The run itself, with its events; None where there is none."""
    try:
        return simulate(base.change({key: value, "seed": seed}), workload=workload, **given)
    except (UserError, InfeasibleError):
        return None


def _why(result: PointResult) -> str:
    """Why a point does not hold, empty if it does."""
    if result.error:
        return result.error.splitlines()[0] if result.state != "error" else " ".join(result.error.split())
    failed = [check for check in result.checks if not check["holds"]]
    return "; ".join(f"{check['key']} is {value_text(check['value'])}, not {check['condition']}" for check in failed)


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _frame(results: Mapping[Asked, PointResult]) -> pd.DataFrame:
    rows = [
        {
            "value": value,
            "seed": seed,
            "holds": result.state == "ok",
            "why": _why(result),
            "state": result.state,
            **result.summary,
        }
        for (value, seed), result in sorted(results.items(), key=lambda item: item[0])
    ]
    return pd.DataFrame(rows)


_LIMITS = {
    "full": "the full pool",
    "swa": "the SWA pool",
    "rows": "request slots (max_running_requests)",
    "chunk": "the chunk budget of a prefill pass",
    "arrival": "arrivals: nothing waits",
}


def _words(base: Scenario, answer: Capacity, failed: PointResult | None) -> Iterator[str]:
    """The answer, what binds there, what the next step breaks, and how sure it is."""
    conditions = " and ".join(f"{key} {condition}" for key, condition in answer.checks.items())
    low, high = answer.spread
    if answer.value is None:
        yield f"no {answer.knob} from {value_text(low)} to {value_text(high)} will do: {conditions} holds nowhere with every seed"
    else:
        times = ""
        if answer.current and answer.value != answer.current:
            times = f", {answer.value / answer.current:.3g} times the scenario's {value_text(answer.current)}"
        least = "at most" if answer.goal == "largest" else "at least"
        yield f"{answer.knob} can be {value_text(answer.value)} {least}{times}: {conditions}"
        if answer.value in answer.spread and answer.beyond_value is None:
            yield f"that is the end of the range {value_text(low)}:{value_text(high)}; a wider --range may find more"
    if answer.at is not None:
        yield from _binding(base, answer, answer.at)
    if failed is not None:
        yield f"at {value_text(answer.beyond_value)} (the nearest value tried that fails) {_why(failed)}"
        if answer.beyond is not None:
            yield from _first_cause(answer.beyond)
    yield from _certainty(answer)


def _binding(base: Scenario, answer: Capacity, run: Run) -> Iterator[str]:
    """What binds at the answer, with the pool's arithmetic."""
    s = run.summary
    usages = {pool: s[f"{pool}_token_usage.peak"] for pool in ("full", "swa") if f"{pool}_token_usage.peak" in s}
    worst = max(usages, key=lambda pool: usages[pool])
    share = s[f"limit.{s['limit.binding']}"]
    told = ", ".join(
        f"{_LIMITS[pool]} {usage:.1%} at its peak of {_pool_tokens(run, pool):,} tokens"
        for pool, usage in usages.items()
    )
    binding = f"{_LIMITS[s['limit.binding']]} ({share:.1%} of the time)"
    yield (
        f"there, {told}; requests wait for {binding}"
        if s["limit.binding"] != "arrival"
        else f"there, {told}; nobody waits"
    )
    try:
        found = explain(base.change({answer.knob: answer.value}))
    except UserError:
        return
    fit = next((one for one in found.fits if one.limit == worst), None)
    if fit is not None:
        yield (
            f"{_LIMITS[worst]} holds {fit.requests:,} requests of the mean length {found.input_tokens:,} + "
            f"{found.output_tokens:,} at their longest ({fit.capacity:,} / {fit.holding:,}), shared prefixes not counted; "
            f"{s['num_running_reqs.peak']:,.0f} ran at once"
        )


def _pool_tokens(run: Run, pool: str) -> int:
    plan = run.plan
    tokens = plan[f"{pool}_max_total_num_tokens"]
    return int(plan["max_total_num_tokens"] if tokens is None else tokens)


def _first_cause(run: Run) -> Iterator[str]:
    """The first thing that went wrong."""
    events = run.events[run.events["event"].isin(["retraction", "abort", "refusal", "fault"])]
    if len(events):
        first = events.iloc[0]
        pool = (
            ""
            if first["pool"] == "-"
            else f" in the {first['pool']} pool"
            if first["pool"] != "swa"
            else " in the SWA pool"
        )
        who = "" if first["request_id"] == "-" else f" of {first['request_id']}"
        count = int((events["event"] == first["event"]).sum())
        more = f", the first of {count:,}" if count > 1 else ""
        yield f"first a {first['event']}{who} at {first['time_s']:,.1f} s{pool}: {first['cause']}{more}"


def _certainty(answer: Capacity) -> Iterator[str]:
    count = len(answer.frame)
    if not answer.monotone:
        runs = (
            ", ".join(f"{value_text(a)} to {value_text(b)}" if a != b else value_text(a) for a, b in answer.intervals)
            or "nowhere"
        )
        yield f"not monotone: the checks hold {runs} (scanned, and each change bisected)"
    found = [value for value in answer.per_seed.values() if value is not None]
    if len(answer.per_seed) > 1 and found:
        missing = len(answer.per_seed) - len(found)
        none = f", none with {missing}" if missing else ""
        yield (
            f"over {len(answer.per_seed)} seeds the {answer.goal} is {value_text(min(found))} to {value_text(max(found))}{none}; the "
            "answer holds with all of them"
            if answer.value is not None
            else f"over {len(answer.per_seed)} seeds the {answer.goal} is {value_text(min(found))} to {value_text(max(found))}{none}"
        )
    yield f"{count:,} simulations; every value saw the same seeds"
