"""The command capacity."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from simkv.cli.frame import Bar, Force, Integer, Json, Overrides, app, dump, emit, load_scenario

__all__ = ["capacity"]

Checks = Annotated[
    tuple[str, ...], Parameter(consume_multiple=False, negative="", help="Check besides the scenario's. Repeatable.")
]


@app.command
def capacity(
    scenario: str,
    /,
    *,
    knob: str,
    range: str | None = None,
    until: Checks = (),
    goal: str | None = None,
    seeds: Integer = 3,
    tolerance: float = 0.01,
    jobs: Integer = -1,
    dask: str | None = None,
    overrides: Overrides = (),
    out: Path | None = None,
    force: Force = False,
    as_json: Json = False,
) -> int:
    """The largest (or smallest) value of a knob for which all checks hold, and what the next step breaks.

    Parameters
    ----------
    scenario : str
        A built-in name or a scenario file.
    knob : str
        A dotted key, or rate, rate_scale, concurrency, swa_full_tokens_ratio, mem_fraction_static,
        max_running_requests, context_length, num_steps.
    range : str, optional
        first:last; needed for a dotted key that has no short name.
    goal : str, optional
        largest or smallest; default: the side on which the checks begin to fail.
    seeds : int
        Seeds that every value is run with, counted from the scenario's.
    tolerance : float
        Share to which the answer is told apart from the next value that fails; integers up to 4096 exactly.
    jobs : int
        Processes; -1 is one a core.
    dask : str, optional
        local, or the address of a Dask scheduler, tcp://host:port.
    out : Path, optional
        Directory for capacity.json, points.parquet and curve.png; nothing is written without it.
    force : bool
        Replace an existing one.
    """
    from simkv.outputs import check_free
    from simkv.report import capacity_report
    from simkv.studies.capacity import capacity as find

    base = load_scenario(scenario, overrides)
    if out is not None:
        check_free(out, force=force, holds="capacity.json")
    with Bar(base.name) as update:
        found = find(
            base,
            knob,
            range=range,
            until=until,
            goal=goal,
            seeds=seeds,
            tolerance=tolerance,
            n_jobs=jobs,
            dask=dask,
            progress=None
            if update is None
            else lambda done: update(done, 0, lambda s: f"{done:,} simulations  {s:,.0f} s"),
        )
    written = []
    if out is not None:
        found.save(out, force=force)
        written = [f"{out}/capacity.json, points.parquet, curve.png"]
    if as_json:
        dump(found.to_dict())
    else:
        emit(capacity_report(found, written))
    return found.exit_code
