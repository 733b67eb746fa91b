"""A run or a plan against the log of a real server: sizes, and curves over time."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from simkv.engines.base import Plan
from simkv.errors import Problem, ScenarioError, nearest
from simkv.imports.serverlog import ServerLog, read_server_log
from simkv.outputs import write_directory
from simkv.results import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["LogComparison", "compare_log", "rounding_allowed"]

GIB = 1 << 30
# Series that hold at an instant, are means over an interval, or are rates over one.
_LEVELS = ("full_token_usage", "swa_token_usage", "num_running_reqs", "num_queue_reqs")
_INTERVALS = ("spec_accept_length", "gen_throughput")
_SIZES = ("max_total_num_tokens", "full_max_total_num_tokens", "swa_max_total_num_tokens", "max_running_requests")
_SETTINGS = {"chunked_prefill_size": "chunked_prefill_size", "context_len": "context_length"}


@dataclass(frozen=True, eq=False)
class LogComparison:
    """A simulation beside a server's log.

    Attributes
    ----------
    name, path : str
        The run or model, and the log.
    plan_table : DataFrame
        One row a size: ``size``, ``planned``, ``logged``, ``difference`` (planned - logged), ``allowed``, ``ok``.
    table : DataFrame
        One row a series that both have: ``lines`` compared, ``bias`` (mean of simulated - measured), ``mae``, ``max``
        (largest distance), ``simulated_peak``, ``measured_peak``; empty for a plan.
    points : DataFrame
        ``time_s`` since the first batch, ``simulated_<series>`` and ``measured_<series>`` at each decode line.
    offset_s : float
        What was added to the run's times to lay its first batch on the log's; NaN for a plan.
    notes : tuple of str
    """

    name: str
    path: str
    plan_table: pd.DataFrame
    table: pd.DataFrame
    points: pd.DataFrame
    offset_s: float = math.nan
    notes: tuple[str, ...] = field(default_factory=tuple)

    @property
    def exit_code(self) -> int:
        """1 if a size of the plan is not the log's, else 0."""
        return 0 if self.plan_table["ok"].all() else 1

    def plot(self, kind: str = "usage", ax: Axes | None = None, title: str | None = None) -> Axes:
        """Measured and simulated values over time.

        Parameters
        ----------
        kind : str
            ``usage``, ``running``, ``queue``, ``throughput`` or ``accept-length``.
        ax : Axes, optional
            Where to draw; a new figure otherwise.
        title : str, optional
            Instead of the name and the kind.
        """
        from simkv.plotting.measured import OVERLAYS, overlay

        if kind not in OVERLAYS:
            message = f"{kind!r} is not one of {', '.join(OVERLAYS)}{nearest(str(kind), OVERLAYS)}"
            raise ScenarioError("plot", [Problem("kind", message)])
        return overlay(self.points, kind, ax=ax, title=title if title is not None else f"{self.name}: {kind}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values: what ``simkv import-log --json`` prints of it."""
        return {
            "name": self.name,
            "path": self.path,
            "sizes": _records(self.plan_table),
            "series": _records(self.table),
            "offset_s": None if math.isnan(self.offset_s) else self.offset_s,
            "notes": list(self.notes),
            "exit_code": self.exit_code,
        }

    def to_markdown(self) -> str:
        """Both tables as Markdown."""
        parts = [f"### {_cell(self.name)} against {_cell(Path(self.path).name)}"]
        for frame in (self.plan_table, self.table):
            if len(frame):
                rows = [list(frame.columns), ["---"] * frame.shape[1], *frame.itertuples(index=False)]
                parts.append("\n".join("| " + " | ".join(map(_cell, row)) + " |" for row in rows))
        parts += [f"- {_cell(note)}" for note in self.notes]
        return "\n\n".join(parts) + "\n"

    def save(self, directory: str | Path, *, force: bool = False) -> list[str]:
        """Write comparison.md, comparison.json, points.parquet and figures/*.png: all of it, or nothing.

        Parameters
        ----------
        directory : str or path
            A folder that is not there yet.
        force : bool
            Replace what an earlier comparison wrote there.

        Returns
        -------
        list of str
            Names of what was written, below the folder.

        Raises
        ------
        ScenarioError
            The folder is there already, or cannot be written.
        """
        written: list[str] = []
        write_directory(
            directory, lambda fresh: written.extend(self._write(fresh)), force=force, holds="comparison.json"
        )
        return written

    def _write(self, directory: Path) -> list[str]:
        from simkv import plotting
        from simkv.plotting.measured import OVERLAYS

        directory.mkdir()
        (directory / "comparison.md").write_text(self.to_markdown(), encoding="utf-8")
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False)
        (directory / "comparison.json").write_text(text + "\n", encoding="utf-8")
        written = ["comparison.md", "comparison.json"]
        if len(self.points):
            self.points.to_parquet(directory / "points.parquet", index=False)
            (directory / "figures").mkdir()
            written.append("points.parquet")
            for kind, one in OVERLAYS.items():
                if any(f"measured_{name}" in self.points for name in one.series):
                    figure: Any = self.plot(kind).figure
                    plotting.save(figure, directory / "figures" / f"{kind}.png")
                    written.append(f"figures/{kind}.png")
        return written

    def _repr_html_(self) -> str:
        head = f"<b>{html.escape(self.name)}</b> against {html.escape(self.path)}"
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
        tables = "".join(frame.to_html(index=False) for frame in (self.plan_table, self.table) if len(frame))
        return f"{head}{tables}<ul>{notes}</ul>"


def compare_log(
    run_or_plan: Run | Plan, log: ServerLog | str | Path, *, allowed: Mapping[str, float] | None = None
) -> LogComparison:
    """Compare a run, or a plan alone, with the log of a server.

    Parameters
    ----------
    run_or_plan : Run or Plan
        What simkv says.
    log : ServerLog, str or path
        What the server wrote.
    allowed : mapping, optional
        Size of the startup line -> difference that is no failure; default none: sizes must be equal. Bytes of pools
        may differ by as much as the log rounds them.

    Raises
    ------
    ScenarioError
        The log cannot be read, or ``run_or_plan`` is neither.
    """
    if isinstance(run_or_plan, Run):
        plan, name = run_or_plan.plan, run_or_plan.name
    elif isinstance(run_or_plan, Plan):
        plan, name = run_or_plan.to_dict(), run_or_plan.model
    else:
        message = f"{type(run_or_plan).__name__} is neither a Run nor a Plan"
        raise ScenarioError("compare_log", [Problem("run_or_plan", message)])
    if not isinstance(log, ServerLog):
        log = read_server_log(log)
    sizes = _plan_table(plan, log, dict(allowed or {}))
    notes = list(log.notes)
    if plan.get("infeasible") is not None:
        notes.append(f"by the plan the server does not start: {plan['infeasible']['message']}")
    if not len(sizes):
        notes.append("the log tells no sizes of startup: nothing of the plan is checked")
    if isinstance(run_or_plan, Plan):
        empty = pd.DataFrame({"time_s": pd.Series(dtype=float)})
        return LogComparison(name, log.path, sizes, _series_table(empty), empty, notes=tuple(notes))
    points, offset, more = _points(run_or_plan, log)
    return LogComparison(name, log.path, sizes, _series_table(points), points, offset, (*notes, *more))


def rounding_allowed(plan: Plan) -> dict[str, float]:
    """How far sizes may be from the log's where the budget itself was taken from the log, which rounds to 0.01 GiB.

    Memory before the weights, the weights and the draft's weights each may be off by 0.005 GiB, and what is free when the
    pools are sized is not what the difference leaves: 0.03 GiB in all.
    """
    gib = 0.03
    tokens = float(math.ceil(gib * GIB / plan.bytes_per_token) + plan.page_size) if plan.bytes_per_token else 0.0
    context = plan.settings.get("context_length") or math.inf
    names = ("max_total_num_tokens", "full_max_total_num_tokens", "swa_max_total_num_tokens")
    # Without a limit of its own the engine takes 512 requests a context's worth of tokens, or half the tokens.
    requests = float(math.ceil(512 * tokens / context))
    return {**dict.fromkeys(names, tokens), "max_running_requests": requests, "pools_gib": gib}


# ---------------------------------------------------------------------------------------------------------------- plan
def _plan_table(plan: Mapping[str, Any], log: ServerLog, allowed: Mapping[str, float]) -> pd.DataFrame:
    rows: list[tuple[str, float, float, float]] = []
    told: dict[str, Any] = log.startup
    for size in _SIZES:
        planned = plan.get(size)
        if planned is None and size == "max_total_num_tokens" and plan.get("infeasible") is not None:
            planned = 0  # the log's server started
        if planned is not None and size in told:
            rows.append((size, planned, told[size], allowed.get(size, 0.0)))
    for ours, theirs in _SETTINGS.items():
        planned = plan.get("settings", {}).get(theirs)
        if planned is not None and ours in told:
            rows.append((ours, planned, told[ours], allowed.get(ours, 0.0)))
    rows += _pool_rows(plan["pools"], told.get("pools", []), allowed)
    frame = pd.DataFrame(rows, columns=["size", "planned", "logged", "allowed"])
    frame.insert(3, "difference", frame["planned"] - frame["logged"])
    apart: Any = frame["difference"].abs()
    most: Any = frame["allowed"]
    frame["ok"] = apart <= most + 1e-9
    return frame


def _pool_rows(
    pools: Iterable[Mapping[str, Any]], told: list[dict[str, Any]], allowed: Mapping[str, float]
) -> list[tuple[str, float, float, float]]:
    """Bytes of the allocations, in the plan's order where tokens and count agree, else their sum."""
    planned = [pool for pool in pools if pool["layers"]]
    if not planned or not told:
        return []
    extra = allowed.get("pools_gib", 0.0)
    # The engine allocates the SWA half of a pool before its full half: match by tokens, in order.
    left = list(told)
    rows = []
    for pool in planned:
        match = next((one for one in left if one["tokens"] == pool["tokens"]), None)
        if match is None:
            break
        left.remove(match)
        name = f"{pool['worker']} {pool['pool']} pool, GiB"
        rows.append((name, pool["bytes"] / GIB, match["gib"], match["rounding"] + extra))
    if len(rows) == len(planned) == len(told):
        return rows
    rounding = sum(one["rounding"] for one in told)
    total = sum(pool["bytes"] for pool in planned) / GIB
    return [("all pools, GiB", total, round(sum(one["gib"] for one in told), 2), rounding + extra)]


# -------------------------------------------------------------------------------------------------------------- curves
def _points(run: Run, log: ServerLog) -> tuple[pd.DataFrame, float, list[str]]:
    """Simulated and measured values at the decode lines, on one clock that begins with the first batch of each."""
    steps = run.timeline[run.timeline["kind"] != "idle"]
    batches = log.timeline
    if not len(steps) or not len(log.decode):
        what = "the run has no steps" if not len(steps) else "the log has no decode lines"
        return pd.DataFrame({"time_s": pd.Series(dtype=float)}), math.nan, [f"{what}: no curves are compared"]
    first, began = float(batches["time_s"].min()), float(steps["time_s"].iloc[0])
    offset = first - began
    end = float(run.timeline["time_s"].iloc[-1]) - began
    times = log.decode["time_s"].to_numpy(float) - first
    notes = [f"the run's times are moved by {offset:+.3f} s: the first batch of both is time 0"]
    shortest = 0.0
    if (times % 1 == 0).all():
        times, shortest = _spread(times), 2.0
        notes.append(
            "the log's stamps are whole seconds: lines of one second are spread over it, and rates are simulated over "
            "2 s at least"
        )
    inside = times <= end
    if not inside.all():
        notes.append(f"{int((~inside).sum())} of {len(times)} decode lines are later than the run's end: left out")
    measured = log.decode[inside]
    points = pd.DataFrame({"time_s": times[inside]})
    for name, values in _simulated(run, points["time_s"].to_numpy(float) + began, began, shortest).items():
        if name in measured:
            points[f"simulated_{name}"] = values
            points[f"measured_{name}"] = measured[name].to_numpy(float)
    return points, offset, notes


def _spread(times: Any) -> Any:
    """Lines of one second, evenly over it: k of n at (k + 1/2) / n."""
    _, first, counts = np.unique(times, return_index=True, return_counts=True)
    within = np.arange(len(times)) - np.repeat(first, counts)
    return times + (within + 0.5) / np.repeat(counts, counts)


def _simulated(run: Run, times: Any, began: float, shortest: float) -> dict[str, Any]:
    """The run's series at these times: what held, and what was done since the time before (``shortest`` s at least)."""
    rows = run.timeline[run.timeline["kind"] == "decode"]
    when = rows["time_s"].to_numpy(float)
    # Stamps are cut to whole milliseconds at best.
    place = np.searchsorted(when, times + 1e-3, side="right") - 1
    found: dict[str, Any] = {}
    for name in _LEVELS:
        if name in rows:
            values = rows[name].to_numpy(float)
            found[name] = np.where(place >= 0, values[np.maximum(place, 0)], math.nan) if len(values) else math.nan
    lengths = rows["spec_accept_length"].to_numpy(float)
    batch = rows["batch_size"].to_numpy(float)
    made = batch * np.where(np.isnan(lengths), 1.0, lengths)
    start = np.maximum(np.minimum(np.concatenate([[began], times[:-1]]), times - shortest), began)
    before = np.where(start > began, np.searchsorted(when, start + 1e-3, side="right") - 1, -1)
    tokens, requests = (_between(part, before, place) for part in (made, batch))
    since = times - start
    with np.errstate(divide="ignore", invalid="ignore"):
        found["gen_throughput"] = np.where(since > 0, tokens / since, math.nan)
        if not np.isnan(lengths).all():
            found["spec_accept_length"] = np.where(requests > 0, tokens / requests, math.nan)
    return found


def _between(values: Any, before: Any, upto: Any) -> Any:
    """Sums of the rows after one place, up to another."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    return sums[upto + 1] - sums[before + 1]


def _series_table(points: pd.DataFrame) -> pd.DataFrame:
    columns = ["series", "lines", "bias", "mae", "max", "simulated_peak", "measured_peak"]
    rows = []
    for name in (*_LEVELS, *_INTERVALS):
        if f"measured_{name}" not in points:
            continue
        ours, theirs = points[f"simulated_{name}"].to_numpy(float), points[f"measured_{name}"].to_numpy(float)
        both = np.isfinite(ours) & np.isfinite(theirs)
        if not both.any():
            continue
        apart = ours[both] - theirs[both]
        errors = (float(apart.mean()), float(np.abs(apart).mean()), float(np.abs(apart).max()))
        rows.append((name, int(both.sum()), *errors, float(ours[both].max()), float(theirs[both].max())))
    return pd.DataFrame(rows, columns=columns)


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [
        {str(key): value.item() if isinstance(value, np.generic) else value for key, value in row.items()}
        for _, row in frame.iterrows()
    ]


def _cell(value: Any) -> str:
    """A cell of a Markdown table."""
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, (int, float, np.number)):
        number = float(value)
        return f"{number:,.0f}" if number.is_integer() else f"{number:,.4g}"
    return str(value).replace("|", "\\|").replace("\n", " ")
