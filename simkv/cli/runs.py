"""Commands of runs: run, show, replay."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from simkv.cli.frame import Bar, Force, Integer, Json, Overrides, app, dump, emit, load_scenario

if TYPE_CHECKING:
    from simkv.simulation import Progress

__all__ = ["default_directory", "replay", "run", "show"]


@app.command
def run(
    scenario: str,
    /,
    *,
    overrides: Overrides = (),
    seed: Integer | None = None,
    out: Path | None = None,
    force: Force = False,
    check_every_step: Annotated[bool, Parameter(negative="")] = False,
    record_allocations: Annotated[bool, Parameter(negative="")] = False,
    as_json: Json = False,
) -> int:
    """Simulate a scenario, print the report and write the run directory.

    Parameters
    ----------
    scenario : str
        A built-in name or a scenario file.
    seed : int, optional
        Instead of the scenario's seed.
    out : Path, optional
        Run directory; default runs/<name>. Nothing is written there before the run has ended.
    force : bool
        Replace an existing run directory.
    check_every_step : bool
        Check conservation of every pool after every step (slower).
    record_allocations : bool
        Write allocations.parquet, every slot that changes hands, for simkv replay (slower).
    """
    from simkv.guards import interrupt_calls
    from simkv.outputs import check_free
    from simkv.report import run_report
    from simkv.results import simulate

    base = load_scenario(scenario, overrides)
    if seed is not None:
        base = base.set(seed=seed)
    target = out if out is not None else default_directory("runs", base.name)
    check_free(target, force=force)
    with Bar(base.name) as update:
        result = simulate(
            base,
            check_every=1 if check_every_step else 0,
            record_allocations=record_allocations,
            progress=None if update is None else lambda p: update(p.done, p.total, lambda s: _run_facts(p, s)),
        )
    # The first Ctrl-C does not cost what was simulated; a second one does.
    with interrupt_calls(lambda: print("saving the run; interrupt again to abandon it", file=sys.stderr)):
        result.save(target, force=force)
    written = [f"{target}/run.json, timeline.parquet, requests.parquet, events.parquet", f"{target}/figures/*.png"]
    if record_allocations:
        written.append(f"{target}/allocations.parquet")
    if as_json:
        dump({**result.to_json(), "directory": str(target)})
    else:
        emit(run_report(result, written))
    return result.exit_code


def default_directory(parent: str, name: str) -> Path:
    """<parent>/<name>, whatever the name is: separators and leading dots do not lead out of there."""
    return Path(parent) / (re.sub(r"[/\\:]+", "-", name).lstrip(".") or "run")


@app.command
def show(directory: Path, /, *, as_json: Json = False) -> int:
    """Print the report of a run directory again, or of a sweep directory, finished or not.

    Parameters
    ----------
    directory : Path
        What ``simkv run`` or ``simkv sweep`` wrote.
    """
    from simkv.report import run_report
    from simkv.results import load_run

    if (directory / "sweep.json").is_file():
        from simkv.cli.sweep import print_sweep
        from simkv.studies.sweeps import load_sweep

        return print_sweep(load_sweep(directory), directory, as_json=as_json)
    result = load_run(directory)
    if as_json:
        dump({**result.to_json(), "directory": str(directory)})
    else:
        emit(run_report(result))
    return result.exit_code


@app.command
def replay(
    directory: Path,
    /,
    *,
    device: str = "auto",
    layers: str = "all",
    scale: str | None = None,
    check: str = "every",
    engine: str = "simkv",
    as_json: Json = False,
) -> int:
    """Execute a run's allocation log on real tensors, and compare every slot, byte and read with what the run claims.

    Parameters
    ----------
    directory : Path
        What ``simkv run --record-allocations`` wrote.
    device : str
        cuda, cpu, or auto: CUDA where torch finds a device.
    layers : str
        all layers of every pool, or 1 of each.
    scale : str, optional
        Share of heads and widths, such as 1/16; never fewer rows. Default: the largest that fits.
    check : str
        Whose reads are compared: every step's; sample, one step's of 16; end, each request's last.
    engine : str
        Whose allocator hands out slots: simkv, or sglang where its package can be imported.
    """
    from simkv.replayer import replay as execute
    from simkv.report import replay_report

    with Bar(directory.name) as update:
        found = execute(
            directory,
            device=device,
            layers=layers,
            scale=scale,
            check=check,
            engine=engine,
            progress=None
            if update is None
            else lambda done, total: update(done, total, lambda s: _row_facts(done, total, s)),
        )
    if as_json:
        dump(found.to_dict())
    else:
        emit(replay_report(found))
    return 0


def _row_facts(done: int, total: int, seconds: float) -> str:
    """How a replay is getting on."""
    return f"{done:,}/{total:,} rows  {done / seconds if seconds else 0.0:,.0f} rows/s"


def _run_facts(p: Progress, seconds: float) -> str:
    """How a simulation is getting on."""
    rate = p.steps / seconds if seconds else 0.0
    done = f"{p.done:,}/{p.total:,} requests  {p.time_s:,.1f} s simulated  {rate:,.0f} steps/s"
    return f"{done}  run {p.running} wait {p.waiting} retr {p.retracted}"
