"""Commands: parse, call, print.

Heavy modules are imported where they are used, so that ``simkv --help`` starts at once.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, CycloptsError, Parameter

if TYPE_CHECKING:
    from simkv.simulation import Progress

__all__ = ["app", "main"]

app = App(
    name="simkv",
    help="What a serving engine's KV memory does under your traffic, with speculative decoding on.",
    help_format="plaintext",
    version_flags=["--version"],
    suppress_keyboard_interrupt=False,
)
trace_app = App(name="trace", help="Describe, convert and generate request traces.", help_format="plaintext")
app.command(trace_app)

Overrides = Annotated[
    tuple[str, ...],
    Parameter(
        name="--set", consume_multiple=False, negative="", help="Override one key: dotted.key=value. Repeatable."
    ),
]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print the machine form instead of tables.")]
Force = Annotated[bool, Parameter(negative="")]


def _integer(_: Any, tokens: Sequence[Any]) -> int:
    """An integer and nothing that could be rounded to one."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r} is not an integer") from None


Integer = Annotated[int, Parameter(converter=_integer)]


def _print(thing: Any) -> None:
    from simkv.report import console

    console().print(thing)


def _dump(thing: Any) -> None:
    print(json.dumps(thing, indent=1, allow_nan=False))


def _load(scenario: str, overrides: tuple[str, ...]) -> Any:
    from simkv.scenario import load

    return load(scenario).override(*overrides)


@app.command
def size(scenario: str, /, *, overrides: Overrides = (), as_json: Json = False) -> int:
    """Sizes of every pool before the first request; no simulation.

    Parameters
    ----------
    scenario : str
        A built-in name or a scenario file.
    """
    plan = _load(scenario, overrides).plan()
    if as_json:
        _dump(plan.to_dict())
    else:
        from simkv.report import plan_report

        _print(plan_report(plan.to_dict()))
    return 3 if plan.infeasible is not None else 0


@app.command
def route(scenario: str, /, *, overrides: Overrides = (), as_json: Json = False) -> int:
    """Where each draft depth's KV goes, what the budget charges for it, and where the two disagree.

    Parameters
    ----------
    scenario : str
        A built-in name or a scenario file.
    """
    from simkv.engines.sglang.routing import ROUTING_RULES

    base = _load(scenario, overrides)
    plans = [base.override(f"policies.routing={rule}").plan() for rule in ROUTING_RULES]
    chosen = base.document.policies.routing
    if as_json:
        _dump({"routing": chosen, "rules": {plan.routing: plan.to_dict() for plan in plans}})
    else:
        from simkv.report import routes_report

        _print(routes_report(plans, chosen))
    return 3 if next(p for p in plans if p.routing == chosen).infeasible is not None else 0


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
    from simkv.report import run_report
    from simkv.results import check_free, simulate

    base = _load(scenario, overrides)
    if seed is not None:
        base = base.set(seed=seed)
    target = out if out is not None else _default_directory(base.name)
    check_free(target, force=force)
    with _Bar(base.name) as update:
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
        _dump({**result.to_json(), "directory": str(target)})
    else:
        _print(run_report(result, written))
    return result.exit_code


def _default_directory(name: str) -> Path:
    """runs/<name>, whatever the name is: separators and leading dots do not lead out of there."""
    return Path("runs") / (re.sub(r"[/\\:]+", "-", name).lstrip(".") or "run")


@app.command
def show(directory: Path, /, *, as_json: Json = False) -> int:
    """Print the report of a run directory again.

    Parameters
    ----------
    directory : Path
        What ``simkv run`` wrote.
    """
    from simkv.report import run_report
    from simkv.results import load_run

    result = load_run(directory)
    if as_json:
        _dump({**result.to_json(), "directory": str(directory)})
    else:
        _print(run_report(result))
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

    with _Bar(directory.name) as update:
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
        _dump(found.to_dict())
    else:
        _print(replay_report(found))
    return 0


@app.command
def scenarios(*, as_json: Json = False) -> int:
    """List the built-in scenarios and what each teaches."""
    from simkv.report import table
    from simkv.scenario import builtin_names, load

    found = {name: load(name).document.description for name in builtin_names()}
    if as_json:
        _dump(found)
    else:
        shown = table("built-in scenarios", ("name", "teaches"), list(found.items()), left=2)
        _print(shown)
    return 0


@app.command
def models(*, as_json: Json = False) -> int:
    """List the built-in models: layers by kind, window, bytes a token, MTP heads."""
    from simkv.arch import describe_catalogue

    rows = describe_catalogue()
    if as_json:
        _dump([row._asdict() for row in rows])
    else:
        from simkv.report import models_report

        _print(models_report(rows))
    return 0


@app.command
def schema(*, as_json: Json = False) -> int:
    """Print the JSON Schema of a scenario, for editors; it is JSON with --json or without."""
    from simkv.scenario import schema as scenario_schema

    _dump(scenario_schema())
    return 0


# ------------------------------------------------------------------------------------------------- trace
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
        _dump(facts)
    else:
        _print(trace_report(facts))
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
    _write_trace(_load(scenario, overrides).workload(), target, to, force=force, as_json=as_json)
    return 0


def _write_trace(workload: Any, target: Path, to: str, *, force: bool, as_json: bool) -> None:
    from simkv.errors import Problem, ScenarioError
    from simkv.workload.traces import write_trace

    if target.exists() and not force:
        raise ScenarioError("trace", [Problem(str(target), "exists already; name another file or pass --force")])
    lost = write_trace(workload, target, to)
    if as_json:
        _dump({"file": str(target), "requests": len(workload), "format": to, "not_held": list(lost)})
        return
    print(f"{target}: {len(workload):,} requests, format {to}", file=sys.stderr)
    if lost:
        print(f"not held by this format: {', '.join(lost)}", file=sys.stderr)


# ------------------------------------------------------------------------------------------------- frame
def _row_facts(done: int, total: int, seconds: float) -> str:
    """How a replay is getting on."""
    return f"{done:,}/{total:,} rows  {done / seconds if seconds else 0.0:,.0f} rows/s"


def _run_facts(p: Progress, seconds: float) -> str:
    """How a simulation is getting on."""
    rate = p.steps / seconds if seconds else 0.0
    done = f"{p.done:,}/{p.total:,} requests  {p.time_s:,.1f} s simulated  {rate:,.0f} steps/s"
    return f"{done}  run {p.running} wait {p.waiting} retr {p.retracted}"


class _Bar:
    """Progress on stderr while a run lasts; nothing where stderr is no terminal."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._live: Any = None

    def __enter__(self) -> Callable[[int, int, Callable[[float], str]], None] | None:
        from simkv.report import console

        out = console(stderr=True)
        if not out.is_terminal or os.environ.get("NO_COLOR"):
            return None
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        columns = (BarColumn(bar_width=10), TextColumn("{task.fields[facts]}"))
        self._live = RichProgress(*columns, console=out, transient=True)
        self._live.start()
        self._task = self._live.add_task(self.name, total=None, facts="")
        return self._update

    def _update(self, done: int, total: int, facts: Callable[[float], str]) -> None:
        """So much of it is done; ``facts`` says more, given the seconds since the start."""
        elapsed = self._live.tasks[0].elapsed or 0.0
        self._live.update(self._task, completed=done, total=total, facts=facts(elapsed))

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()


@contextmanager
def _terminable() -> Iterator[None]:
    """Let a termination signal unwind, so that nothing half written stays behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _reproduce(words: Sequence[str]) -> str:
    """The command of a breach, every step checked, to be pasted into a shell."""
    more = [] if "--check-every-step" in words else ["--check-every-step"]
    return shlex.join(["simkv", *words, *more])


def _mute() -> None:
    """Nothing more is to be written, at exit neither."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(argv: list[str] | None = None) -> int:
    """Run a command; returns the exit code of the table in the README."""
    from simkv.errors import InvariantError, SimkvError

    words = sys.argv[1:] if argv is None else argv
    try:
        with _terminable():
            code = app(words, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
        return int(code or 0)
    except CycloptsError as error:
        print(f"error: {error}\ntry: simkv --help", file=sys.stderr)
        return 2
    except InvariantError as error:
        print(f"error: broken invariant, a fault of simkv: {error}", file=sys.stderr)
        print(f"reproduce: {_reproduce(words)}", file=sys.stderr)
        return error.exit_code
    except SimkvError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # Whoever reads has seen enough.
        _mute()
        return 0
    except OSError as error:
        print(f"error: the output cannot be written: {error.strerror or error}", file=sys.stderr)
        _mute()
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
