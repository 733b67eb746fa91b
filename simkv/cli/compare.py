"""Commands that set results against one another: compare, and baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from simkv.cli.frame import Bar, Force, Json, Overrides, app, dump, emit

if TYPE_CHECKING:
    from simkv.simulation import Progress

__all__ = ["baseline", "check", "compare", "save"]


SetA = Annotated[
    tuple[str, ...],
    Parameter(name="--set-a", consume_multiple=False, negative="", help="Override one key of A only. Repeatable."),
]
SetB = Annotated[
    tuple[str, ...],
    Parameter(name="--set-b", consume_multiple=False, negative="", help="Override one key of B only. Repeatable."),
]
Numbers = Annotated[tuple[str, ...], Parameter(consume_multiple=False, negative="")]
Flag = Annotated[bool, Parameter(negative="")]


@app.command
def compare(
    a: str,
    b: str,
    /,
    *,
    overrides: Overrides = (),
    set_a: SetA = (),
    set_b: SetB = (),
    only_changed: Flag = False,
    rtol: Numbers = (),
    atol: Numbers = (),
    same_workload: Flag = False,
    html: Path | None = None,
    md: Path | None = None,
    figures: Path | None = None,
    force: Force = False,
    label_a: str | None = None,
    label_b: str | None = None,
    as_json: Json = False,
) -> int:
    """Set two runs, scenarios or sweeps against one another, or a run against a server's log; a scenario is simulated first.

    Exit code 1 where a check that held with A does not hold with B, where B would not start or breaks and A does not, or
    where a stated tolerance is exceeded; against a log, where a size of the plan is not the server's. Other differences are
    shown, and are no failure.

    Parameters
    ----------
    a : str
        Run directory, sweep directory, scenario file, or built-in name.
    b : str
        The same; what is judged. Or the log of a SGLang server, whose curves are laid over those of A.
    only_changed : bool
        Leave out the figures that are the same.
    rtol : str
        How far b may be from a, |b - a| <= atol + rtol * |a|: a number for every figure, or figure=number, where
        ttft_s.* and the like are figures, too. Repeatable. Without any, no difference is too large.
    atol : str
        As --rtol, in the figure's own unit.
    same_workload : bool
        Refuse to compare where the requests differ.
    html : Path, optional
        Write one page with everything in it.
    md : Path, optional
        Write a summary in Markdown.
    figures : Path, optional
        Write overlay figures into this directory.
    force : bool
        Replace what is there.
    label_a : str, optional
        How texts and legends call A; by default by what differs.
    label_b : str, optional
        How they call B.
    """
    from simkv.comparison import compare as compared
    from simkv.comparison.labels import stated_labels
    from simkv.comparison.opening import kind_of, open_both
    from simkv.comparison.pages import Pages
    from simkv.imports.measured import LogComparison

    pages = Pages(html, md, figures)
    stated = _tolerances(rtol, atol, pages.problems(force=force))
    labels = stated_labels((label_a, label_b), ("--label-a", "--label-b"))
    # A log takes no overrides but those that are meant for it, which are refused.
    first, second = open_both(
        a, b, ((*overrides, *set_a), (*(() if kind_of(b) == "server log" else overrides), *set_b))
    )
    with _watch() as watch:
        found = compared(
            first,
            second,
            rtol=stated[0],
            atol=stated[1],
            labels=labels,
            same_workload=same_workload,
            progress=watch,
        )
    if isinstance(found, LogComparison):
        from simkv.comparison.logpage import LogPages
        from simkv.report import log_comparison_report

        written = pages.write(LogPages(found))
        report = log_comparison_report(found, written)
    else:
        from simkv.report.compare import comparison_report, sweeps_report

        written = pages.write(found)
        made = comparison_report if hasattr(found, "pools") else sweeps_report
        report = made(found, written, only_changed=only_changed)
    if as_json:
        dump({**found.to_dict(), "written": written})
    else:
        emit(report)
    return found.exit_code


def _tolerances(
    rtol: Sequence[str], atol: Sequence[str], problems: Sequence[Any] = ()
) -> tuple[dict[str, float] | None, dict[str, float] | None]:
    """The tolerances of a command line; everything that is wrong with it so far is told at once."""
    from simkv.comparison.tolerance import parse_tolerance
    from simkv.errors import ScenarioError

    relative, wrong = parse_tolerance("--rtol", rtol)
    absolute, more = parse_tolerance("--atol", atol)
    if problems or wrong or more:
        raise ScenarioError("the command line", [*problems, *wrong, *more])
    return relative or None, absolute or None


@contextmanager
def _watch() -> Iterator[Callable[[str, Progress], None] | None]:
    """A bar on stderr that says which side is simulated, and how it is getting on."""
    with Bar("compare") as update:
        if update is None:
            yield None
        else:
            yield lambda label, p: update(p.done, p.total, lambda _: _facts(label, p))


def _facts(label: str, p: Progress) -> str:
    done = f"{p.done:,}/{p.total:,} requests  {p.time_s:,.1f} s simulated"
    return f"{label}: {done}  run {p.running} wait {p.waiting} retr {p.retracted}"


# ------------------------------------------------------------------------------------------------- baselines
baseline = App(name="baseline", help="Golden figures of scenarios, to keep in a repository and to check against.")
app.command(baseline)


@baseline.command
def save(
    directory: Path,
    /,
    *scenarios: str,
    overrides: Overrides = (),
    force: Force = False,
    as_json: Json = False,
) -> int:
    """Simulate scenarios and write their figures, one small file a scenario.

    Parameters
    ----------
    directory : Path
        Where the files go; other files there are left alone.
    scenarios : str
        Built-in names or scenario files; without any, all built-in ones.
    force : bool
        Replace files that are there.
    """
    from simkv.baseline import save_baseline

    with _watch() as watch:
        found = save_baseline(directory, scenarios, overrides=overrides, force=force, progress=watch)
    if as_json:
        dump({"directory": str(directory), "files": found})
    else:
        from simkv.report.compare import saved_report

        emit(saved_report(directory, found))
    return 0


@baseline.command
def check(
    directory: Path,
    /,
    *,
    rtol: Numbers = (),
    atol: Numbers = (),
    html: Path | None = None,
    md: Path | None = None,
    figures: Path | None = None,
    force: Force = False,
    as_json: Json = False,
) -> int:
    """Simulate the scenarios of a baseline again and compare; exit code 1 where a figure drifted.

    Figures must be equal, unless baseline.toml in the directory, or the command line, states tolerances.

    Parameters
    ----------
    directory : Path
        What simkv baseline save wrote.
    rtol : str
        A number for every figure, or figure=number, instead of the rtol of baseline.toml. Repeatable.
    atol : str
        The same for atol, in the figure's own unit.
    html : Path, optional
        Write one page of what drifted.
    md : Path, optional
        Write a summary in Markdown.
    figures : Path, optional
        Write overlay figures of what drifted into this directory.
    force : bool
        Replace what is there.
    """
    from simkv.baseline import check_baseline
    from simkv.comparison.pages import Pages

    pages = Pages(html, md, figures)
    stated = _tolerances(rtol, atol, pages.problems(force=force))
    with _watch() as watch:
        found = check_baseline(directory, rtol=stated[0], atol=stated[1], progress=watch)
    written = found.write(pages)
    if as_json:
        dump({**found.to_dict(), "written": written})
    else:
        from simkv.report.compare import baseline_report

        emit(baseline_report(found, written))
    return found.exit_code
