"""The largest (or smallest) value of a knob for which all checks hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from simkv.errors import InfeasibleError, Problem, ScenarioError, UserError
from simkv.results import Run
from simkv.scenario import Scenario, load
from simkv.studies.answer import Capacity, words
from simkv.studies.knobs import (
    KNOBS,
    USUAL_CHECKS,
    parse_checks,
    refuse_unknown_figures,
    scale_of,
    seeds_of,
    spread_of,
    stated_value,
)
from simkv.studies.parcel import Parcel, packed, run_of
from simkv.studies.points import Point, PointResult, given_in_python, replaced_keys, run_points
from simkv.studies.search import Asked, Interval, Number, common, intervals, search
from simkv.wording import value_text

if TYPE_CHECKING:
    from simkv.workload.request import Workload

__all__ = ["Capacity", "capacity"]

GOALS = ("largest", "smallest")


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
        A dotted key, or one of the short names :data:`~simkv.studies.knobs.KNOBS`.
    range : (first, last) or "first:last", optional
        Where to look; needed for a key that is not in :data:`~simkv.studies.knobs.KNOBS`.
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
    taken = replaced_keys([key], given_in_python(base, workload, given))
    wrong = [Problem(key, f"has no effect: {name} is given in Python") for key, name in taken]
    if key == "seed":
        wrong.append(Problem("seed", "is no knob: every value is run with --seeds seeds"))
    if wrong:
        raise ScenarioError("capacity", wrong)
    current = stated_value(base, key)
    low, high = spread_of(base, known, key, current, range)
    scale = scale_of(base, key, low, high, tolerance)
    refuse_unknown_figures(base, key, [*([] if current is None else [current]), scale.high, scale.low])
    numbers = seeds_of(base, seeds)
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
    ends = [all(found.holds[end, seed] for seed in numbers) for end in (scale.low, scale.high)]
    side = goal or ("smallest" if ends == [False, True] else "largest")
    value = _pick(both, side)
    beyond = _beyond(results, value, side)
    parcel = Parcel("capacity", base, workload, packed(", ".join(given), given), str(Path.cwd()))
    at_run = None if value is None else _run(parcel, key, value, numbers[0])
    beyond_run = None if beyond is None else _run(parcel, key, *beyond)
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
    said = tuple(words(base, answer, "" if beyond is None else _why(results[beyond])))
    return replace(answer, words=said)


def _refuse_if_all_wrong(base: Scenario, key: str, results: Mapping[Asked, PointResult]) -> None:
    """An error that every value has is the scenario's, or the knob's."""
    errors = {result.error for result in results.values() if result.state == "error"}
    if errors and all(result.state == "error" for result in results.values()):
        raise ScenarioError(base.source, [Problem(key, f"no value of it can be run: {min(errors)}")])


# ------------------------------------------------------------------------------------------------- answer
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


def _run(parcel: Parcel, key: str, value: Number, seed: int) -> Run | None:
    """The run itself, with its events; None where there is none."""
    try:
        return run_of(parcel, parcel.base.change({key: value, "seed": seed}))
    except (UserError, InfeasibleError):
        return None


def _why(result: PointResult) -> str:
    """Why a point does not hold, empty if it does."""
    if result.error:
        return result.error.splitlines()[0] if result.state != "error" else " ".join(result.error.split())
    failed = [check for check in result.checks if not check["holds"]]
    return "; ".join(f"{check['key']} is {value_text(check['value'])}, not {check['condition']}" for check in failed)


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
