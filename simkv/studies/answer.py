"""The answer of a capacity study: a value, and what it says in words with its arithmetic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from simkv.errors import UserError
from simkv.outputs import write_directory
from simkv.results import Run
from simkv.scenario import Scenario
from simkv.studies.explain import explain
from simkv.studies.search import Interval, Number
from simkv.wording import LIMITS, value_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Capacity", "words"]


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
            "points": frame.to_dict("records"),
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
        shown = self.frame[["value", "seed", "holds", "why", *(key for key in self.checks if key in self.frame)]]
        return "".join(f"<p>{escape(line)}</p>" for line in self.words) + shown.to_html(index=False)

    def __repr__(self) -> str:
        return f"Capacity({self.knob}: {self.goal} {self.value})"


def words(base: Scenario, answer: Capacity, why: str) -> Iterator[str]:
    """The answer, what binds there, what the next step breaks (``why``), and how sure it is."""
    conditions = " and ".join(f"{key} {condition}" for key, condition in answer.checks.items())
    low, high = answer.spread
    if answer.value is None:
        ends = f"from {value_text(low)} to {value_text(high)}"
        yield f"no {answer.knob} {ends} will do: {conditions} holds nowhere with every seed"
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
    if answer.beyond_value is not None:
        yield f"at {value_text(answer.beyond_value)} (the nearest value tried that fails) {why}"
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
        f"{LIMITS[pool]} {usage:.1%} at its peak of {_pool_tokens(run, pool):,} tokens"
        for pool, usage in usages.items()
    )
    binding = f"{LIMITS[s['limit.binding']]} ({share:.1%} of the time)"
    yield (
        f"there, {told}; requests wait for {binding}"
        if s["limit.binding"] != "arrival"
        else f"there, {told}; nobody waits"
    )
    if not len(run.requests):
        return
    try:
        ran = run.requests
        lengths = {f"{name}_tokens": max(1, round(ran[f"{name}_tokens"].mean())) for name in ("input", "output")}
        found = explain(base.change({answer.knob: answer.value}), **lengths)
    except UserError:
        return
    fit = next((one for one in found.fits if one.limit == worst), None)
    if fit is not None:
        yield (
            f"{LIMITS[worst]} holds {fit.requests:,} requests of the mean length {found.input_tokens:,} + "
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
    figures = answer.frame.drop(columns=["value", "holds", "why", "state"])
    if len(figures) > len(answer.per_seed) and len(figures.drop_duplicates()) <= len(answer.per_seed):
        yield f"no figure changes with it: {answer.knob} has no effect here"
    if not answer.monotone:
        runs = [value_text(a) if a == b else f"{value_text(a)} to {value_text(b)}" for a, b in answer.intervals]
        held = ", ".join(runs) or "nowhere"
        yield f"not monotone: the checks hold {held} (scanned, and each change bisected)"
    found = [value for value in answer.per_seed.values() if value is not None]
    count = len(answer.per_seed)
    if count > 1 and found:
        none = f", none with {count - len(found)}" if len(found) < count else ""
        all_of_them = "; the answer holds with all of them" if answer.value is not None else ""
        least, most = value_text(min(found)), value_text(max(found))
        spread = f"{least} to {most}" if least != most else f"{least} with each"
        yield f"over {count} seeds the {answer.goal} is {spread}{none}{all_of_them}"
    yield f"{len(answer.frame):,} simulations; every value saw the same seeds"
