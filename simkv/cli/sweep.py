"""The command of sweeps."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from simkv.cli.frame import Bar, Force, Integer, Json, Overrides, app, dump, emit, load_scenario
from simkv.cli.runs import default_directory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simkv.scenario import Scenario
    from simkv.studies.sweeps import Sweep

__all__ = ["print_sweep", "sweep"]

AxisTexts = Annotated[
    tuple[str, ...],
    Parameter(
        name="--axis",
        consume_multiple=False,
        negative="",
        help="One key and its values: dotted.key=[v1, v2], dotted.key=a:b:step or dotted.key=a,b. Repeatable.",
    ),
]
Shown = Annotated[
    tuple[str, ...],
    Parameter(
        name="--show",
        consume_multiple=False,
        negative="",
        help="A figure for the table instead of its own. Repeatable.",
    ),
]


@app.command
def sweep(
    scenario: str,
    /,
    *,
    axes: AxisTexts = (),
    overrides: Overrides = (),
    seeds: Integer | None = None,
    jobs: Integer = -1,
    dask: str | None = None,
    out: Path | None = None,
    force: Force = False,
    resume: Force = False,
    show: Shown = (),
    as_json: Json = False,
) -> int:
    """Simulate a scenario over a grid of changes, print the table and write a sweep directory.

    Parameters
    ----------
    scenario : str
        A built-in name or a scenario file; its table [sweep] is the grid unless --axis is given.
    seeds : int, optional
        Every point with so many seeds, from the scenario's on.
    jobs : int
        Processes; -1 is one a core.
    dask : str, optional
        local, or the address of a Dask scheduler, tcp://host:port.
    out : Path, optional
        Sweep directory; default sweeps/<name>.
    force : bool
        Replace an existing sweep directory.
    resume : bool
        Go on with a sweep directory that was interrupted.
    """
    from simkv.axes import parse_axes
    from simkv.studies.sweeps import sweep as run_sweep

    base = load_scenario(scenario, overrides)
    table = parse_axes(axes) if axes else None
    target = out if out is not None else default_directory("sweeps", base.name)
    _check_figures(base, show)
    try:
        with Bar(base.name) as update:
            found = run_sweep(
                base,
                table,
                seeds=seeds,
                n_jobs=jobs,
                dask=dask,
                out=target,
                force=force,
                resume=resume,
                progress=None
                if update is None
                else lambda done, failed, total: update(done, total, lambda s: _facts(done, failed, total, s)),
            )
    except (KeyboardInterrupt, SystemExit):
        print(f"what was simulated is in {target}; go on with the same command and --resume", file=sys.stderr)
        raise
    files = [f"{target}/sweep.json, points.jsonl, points.parquet"]
    if any((target / "figures").iterdir()):
        files.append(f"{target}/figures/*.png")
    return print_sweep(found, target, files, show=show, as_json=as_json)


def print_sweep(
    found: Sweep, directory: Path, files: Sequence[str] = (), *, show: Sequence[str] = (), as_json: bool = False
) -> int:
    """Print a sweep; returns the exit code."""
    from simkv.report import sweep_report

    if as_json:
        dump({**found.to_json(), "directory": str(directory), "states": found.states, "results": _results(found)})
    else:
        emit(sweep_report(found, files, show))
    return 1 if all(result.failed for result in found.results) else 0


def _results(found: Sweep) -> list[dict[str, object]]:
    """Every point with what it changes and what came of it."""
    points = found.points
    return [{"changes": dict(points[result.index].changes), **result.to_dict()} for result in found.results]


def _check_figures(base: Scenario, show: Sequence[str]) -> None:
    """Refuse figures that no summary has, before hours are spent.

    Raises
    ------
    ScenarioError
    """
    from simkv.errors import Problem, ScenarioError, nearest
    from simkv.frames import Frames

    known = list(Frames.empty(base.plan()).summary) if show else []
    problems = [
        Problem("--show", f"{name!r} is no figure of a run{nearest(name, known)}") for name in show if name not in known
    ]
    if problems:
        raise ScenarioError("command line", problems)


def _facts(done: int, failed: int, total: int, seconds: float) -> str:
    """How a sweep is getting on."""
    left = seconds / done * (total - done) if done else 0.0
    return f"{done:,}/{total:,} points  {failed:,} failed  {left / 60:,.0f} min {left % 60:02.0f} s to go"
