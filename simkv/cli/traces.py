"""Commands of traces: describe, convert, generate."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from simkv.cli.frame import Force, Integer, Json, Overrides, app, dump, emit, load_scenario

__all__ = ["convert", "describe", "generate_trace", "trace_app"]

trace_app = App(name="trace", help="Describe, convert and generate request traces.", help_format="plaintext")
app.command(trace_app)

TraceFormat = Annotated[str | None, Parameter(help="Format of the file; detected when omitted.")]
TimeUnit = Annotated[str | None, Parameter(help="Unit of numeric times: s, ms, us or ns.")]


@trace_app.command
def describe(
    file: Path,
    /,
    *,
    format: TraceFormat = None,
    time_unit: TimeUnit = None,
    rate: float | None = None,
    turns: str | None = None,
    bad_rows: str = "refuse",
    as_json: Json = False,
) -> int:
    """Rows, span, rate and lengths of a trace.

    Parameters
    ----------
    file : Path
        CSV or JSONL, gzip or not.
    rate : float, optional
        Requests a second for a file without times.
    turns : str, optional
        cumulative or delta: a session's prompts are whole conversations, or what each turn adds; its turns then
        share their tokens.
    bad_rows : str
        refuse, or drop: leave wrong rows out and count them.
    """
    from simkv.report import trace_report
    from simkv.workload.traces import describe as facts_of
    from simkv.workload.traces import read_trace

    form: Any = turns
    drop: Any = bad_rows
    facts = facts_of(read_trace(file, format=format, time_unit=time_unit, rate=rate, turns=form, bad_rows=drop))
    if as_json:
        dump(facts)
    else:
        emit(trace_report(facts))
    return 0


@trace_app.command
def convert(
    file: Path,
    target: Path,
    /,
    *,
    to: str = "jsonl",
    format: TraceFormat = None,
    time_unit: TimeUnit = None,
    rate: float | None = None,
    turns: str | None = None,
    rate_scale: float = 1.0,
    limit: Integer | None = None,
    force: Force = False,
    as_json: Json = False,
) -> int:
    """Rewrite a trace in another format.

    Parameters
    ----------
    file, target : Path
        What to read and what to write; .gz is packed.
    to : str
        csv, jsonl (both lossless), mooncake or vidur.
    rate : float, optional
        Requests a second for a file without times.
    turns : str, optional
        cumulative or delta, as in describe; what the turns share is written by csv and jsonl.
    rate_scale : float
        2 sends requests twice as fast.
    limit : int, optional
        Keep the first so many requests.
    force : bool
        Replace an existing file.
    """
    from simkv.workload.traces import read_trace

    form: Any = turns
    made = read_trace(
        file, format=format, time_unit=time_unit, rate=rate, turns=form, rate_scale=rate_scale, limit=limit
    )
    _write_trace(made, target, to, force=force, as_json=as_json)
    return 0


@trace_app.command(name="generate")
def generate_trace(
    scenario: str,
    target: Path,
    /,
    *,
    to: str = "jsonl",
    overrides: Overrides = (),
    force: Force = False,
    as_json: Json = False,
) -> int:
    """Write the workload of a scenario as a trace file.

    Parameters
    ----------
    scenario : str
        A built-in name or a scenario file; its [workload] is generated.
    target : Path
        What to write.
    to : str
        csv, jsonl (both lossless), mooncake or vidur.
    force : bool
        Replace an existing file.
    """
    _write_trace(load_scenario(scenario, overrides).workload(), target, to, force=force, as_json=as_json)
    return 0


def _write_trace(workload: Any, target: Path, to: str, *, force: bool, as_json: bool) -> None:
    from simkv.errors import Problem, ScenarioError
    from simkv.workload.traces import write_trace

    if target.exists() and not force:
        raise ScenarioError("trace", [Problem(str(target), "exists already; name another file or pass --force")])
    lost = write_trace(workload, target, to)
    if as_json:
        dump({"file": str(target), "requests": len(workload), "format": to, "not_held": list(lost)})
        return
    print(f"{target}: {len(workload):,} requests, format {to}", file=sys.stderr)
    if lost:
        print(f"not held by this format: {', '.join(lost)}", file=sys.stderr)
