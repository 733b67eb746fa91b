"""Commands that read what a real server was told and what it wrote: import-launch, import-log."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from simkv.cli.frame import Force, Integer, Json, Overrides, app, dump, emit, load_scenario

if TYPE_CHECKING:
    from simkv.imports.launch import Launch
    from simkv.imports.serverlog import Fit, ServerLog

__all__ = ["import_launch", "import_log"]

Ignore = Annotated[
    tuple[str, ...],
    Parameter(
        name="--ignore",
        consume_multiple=False,
        negative="",
        allow_leading_hyphen=True,
        help="Leave out a flag that is refused or unknown; it is noted. Repeatable.",
    ),
]


@app.command
def import_launch(
    command: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    gpu: str | None = None,
    hbm: str | None = None,
    config: Path | None = None,
    draft_config: Path | None = None,
    weights: str | None = None,
    name: str | None = None,
    workload: str | None = None,
    ignore: Ignore = (),
    overrides: Overrides = (),
    out: Path | None = None,
    force: Force = False,
    as_json: Json = False,
) -> int:
    """Make a scenario of the command that starts a SGLang server: TOML on stdout, what became of each flag on stderr.

    Parameters
    ----------
    command : str
        The command in quotes, or - to read it from stdin.
    gpu : str, optional
        GPU of each rank; the engine keys defaults on it.
    hbm : str, optional
        Free memory of one GPU instead, such as 141GB.
    config : Path, optional
        config.json of the model, where --model-path is not known.
    draft_config : Path, optional
        config.json of the draft model.
    weights : str, optional
        Bytes of weights on one rank, such as 78GiB; default: from the parameter count.
    name : str, optional
        Name of the scenario.
    workload : str, optional
        A request trace, or a built-in scenario whose workload it is.
    out : Path, optional
        Write the scenario there instead.
    force : bool
        Replace an existing file.
    """
    from simkv.imports import launch as reading
    from simkv.report import console, launch_report

    text = sys.stdin.read() if command == "-" else command
    found = reading.import_launch(
        text,
        gpu=gpu,
        hbm=hbm,
        config=config,
        weights=weights,
        draft_config=draft_config,
        name=name,
        workload=workload,
        ignore=ignore,
    )
    if overrides:
        found = found.override(*overrides, because="--set")
    if out is not None:
        _write(out, found.toml, force=force)
    if as_json:
        dump({**found.to_dict(), "written": None if out is None else str(out)})
        return 0
    if out is None:
        print(found.toml, end="")
    err = console(stderr=True)
    err.print(launch_report(found.flags, found.notes))
    if out is not None:
        err.print(f"written: {out}")
    return 0


def _write(path: Path, text: str, *, force: bool) -> None:
    """A file, whole or not at all."""
    from simkv.errors import ScenarioError
    from simkv.outputs import file_problem, write_file

    problem = file_problem(path, "--out", force=force)
    if problem is not None:
        raise ScenarioError("--out", [problem])
    write_file(path, text)


@app.command
def import_log(
    log: Path,
    /,
    *,
    scenario: str | None = None,
    run: Path | None = None,
    start: Integer | None = None,
    fit: Annotated[bool, Parameter(negative="")] = False,
    gpu: str | None = None,
    config: Path | None = None,
    draft_config: Path | None = None,
    ignore: Ignore = (),
    overrides: Overrides = (),
    out: Path | None = None,
    force: Force = False,
    as_json: Json = False,
) -> int:
    """Read the log of a SGLang server: sizes, batches, retractions; compare a plan or a run with it, and fit to it.

    Without a scenario and a run the plan is that of the arguments the log prints, if it does.

    Parameters
    ----------
    log : Path
        Plain text or gzip.
    scenario : str, optional
        A built-in name or a scenario file whose plan is compared.
    run : Path, optional
        A run directory whose plan and curves are compared.
    start : int, optional
        Which start of the server, from 1, where the file holds several; default: the last.
    fit : bool
        Print [acceptance] and [steptime] fitted to the log.
    gpu : str, optional
        GPU of the server, for a scenario from its arguments; default: the memory the log tells.
    config : Path, optional
        config.json of the model, for the same.
    draft_config : Path, optional
        config.json of the draft model, for the same.
    out : Path, optional
        Write the comparison there: comparison.md, comparison.json, points.parquet and figures.
    force : bool
        Replace an earlier comparison.
    """
    from simkv.errors import Problem, ScenarioError
    from simkv.imports.measured import compare_log, rounding_allowed
    from simkv.imports.serverlog import read_server_log
    from simkv.report import log_report
    from simkv.results import load_run

    if scenario is not None and run is not None:
        raise ScenarioError("import-log", [Problem("--run", "is given beside --scenario; keep one of the two")])
    about = {"--gpu": gpu, "--config": config, "--draft-config": draft_config, "--ignore": ignore}
    about |= {"--set": overrides} if run is not None else {}
    if scenario is not None or run is not None:
        beside = "--run" if run is not None else "--scenario"
        ignored = [Problem(name, f"has no effect beside {beside}") for name, value in about.items() if value]
        if ignored:
            raise ScenarioError("import-log", ignored)
    read = read_server_log(log, start=start)
    comparison = None
    if run is not None:
        comparison = compare_log(load_run(run), read)
    elif scenario is not None:
        comparison = compare_log(load_scenario(scenario, overrides).plan(), read)
    elif read.server_args:
        made = _launch(read, overrides, gpu=gpu, config=config, draft_config=draft_config, ignore=ignore)
        if made is not None:
            plan = made.scenario.plan()
            comparison = compare_log(plan, read, allowed=rounding_allowed(plan) if gpu is None else None)
    if out is not None and comparison is None:
        message = "there is nothing to compare with: give --scenario or --run"
        raise ScenarioError("import-log", [Problem("--out", message)])
    written = comparison.save(out, force=force) if comparison is not None and out is not None else []
    fits = _fits(read) if fit else []
    if as_json:
        told: dict[str, Any] = {"log": read.to_dict()}
        told["comparison"] = None if comparison is None else comparison.to_dict()
        told["fits"] = {one.section: {**one.table, "notes": list(one.notes)} for one in fits}
        dump(told)
    else:
        emit(log_report(read, comparison, [one.toml for one in fits]))
        if written:
            print(f"written: {out}/{', '.join(written)}", file=sys.stderr)
    return 0 if comparison is None else comparison.exit_code


def _launch(read: ServerLog, overrides: tuple[str, ...], **given: Any) -> Launch | None:
    """The scenario of the log's own arguments; where there is none, why is told and the log is read all the same."""
    from simkv.errors import UserError

    try:
        made = read.launch(**{key: value for key, value in given.items() if value is not None})
        return made.override(*overrides, because="--set") if overrides else made
    except UserError as error:
        print(f"no plan is compared, the log's arguments make no scenario: {error}", file=sys.stderr)
        return None


def _fits(read: ServerLog) -> list[Fit]:
    """What can be fitted; what cannot is told."""
    from simkv.errors import ScenarioError

    found = []
    for make in (read.fit_acceptance, read.fit_steptime):
        try:
            found.append(make())
        except ScenarioError as error:
            print(f"not fitted: {'; '.join(f'{p.place} {p.message}' for p in error.problems)}", file=sys.stderr)
    return found
