"""What the two things are that somebody wants compared: the one place that tells kinds apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simkv.errors import Problem, ScenarioError, UserError
from simkv.imports.serverlog import ServerLog, is_server_log, read_server_log
from simkv.results import Run, load_run
from simkv.scenario import Scenario, load

__all__ = ["Opened", "kind_of", "open_both", "opened"]


@dataclass(frozen=True, eq=False)
class Opened:
    """Something to compare.

    Parameters
    ----------
    kind : str
        run, scenario, sweep or server log.
    thing : Run, Scenario, Sweep or ServerLog
    origin : str
        Name of the directory it was read from, empty for none.
    """

    kind: str
    thing: Any
    origin: str = ""


def kind_of(thing: Any) -> str:
    """run, sweep, scenario, run directory, sweep directory or server log; a further kind is one more line here.

    A directory that holds ``run.json`` or ``sweep.json`` is taken before a built-in scenario of its name.
    """
    if isinstance(thing, Run):
        return "run"
    if isinstance(thing, (Scenario, Mapping)):
        return "scenario"
    if hasattr(thing, "frame") and hasattr(thing, "axes"):
        return "sweep"
    path = _directory(thing)
    if path is not None and (path / "sweep.json").is_file():
        return "sweep directory"
    if path is None:
        return "server log" if _is_log(thing) else "scenario"
    return "run directory"


def _is_log(thing: Any) -> bool:
    """Whether it is a server's log, read or as a file."""
    if isinstance(thing, ServerLog):
        return True
    readable = isinstance(thing, (str, Path)) and Path(thing).suffix not in (".toml", ".json")
    return readable and is_server_log(thing)


def _directory(thing: Any) -> Path | None:
    """A directory, or the one whose ``run.json`` or ``sweep.json`` was named; None for anything else."""
    if not isinstance(thing, (str, Path)) or not str(thing):
        return None
    path = Path(thing)
    try:
        if path.is_dir():
            return path
        return path.parent if path.name in ("run.json", "sweep.json") and path.is_file() else None
    except (OSError, ValueError):
        return None


def opened(thing: Any, overrides: Sequence[str] = ()) -> Opened:
    """Read whatever it is.

    Parameters
    ----------
    thing : Run, Sweep, Scenario, dict, str or Path
    overrides : sequence of str
        ``dotted.key=value``; of scenarios only.

    Raises
    ------
    UserError
        It cannot be read, or it is no scenario and overrides are given.
    """
    if isinstance(thing, Opened):
        return thing
    kind = kind_of(thing)
    if overrides and kind != "scenario":
        message = f"is a {kind}, which has been simulated already; --set changes scenarios"
        raise ScenarioError("compare", [Problem(str(thing), message)])
    if kind == "scenario":
        return Opened("scenario", load(thing).override(*overrides))
    if kind == "server log":
        return Opened("server log", thing if isinstance(thing, ServerLog) else read_server_log(thing))
    if kind == "run":
        return Opened("run", thing)
    if kind == "sweep":
        return Opened("sweep", thing)
    path = _directory(thing)
    assert path is not None
    origin = path.resolve().name
    if kind == "sweep directory":
        # Its module is heavy, and most comparisons are of runs.
        from simkv.studies.sweeps import load_sweep

        return Opened("sweep", load_sweep(path), origin)
    return Opened("run", load_run(path), origin)


def open_both(a: Any, b: Any, overrides: tuple[Sequence[str], Sequence[str]] = ((), ())) -> tuple[Opened, Opened]:
    """Both things; where both are wrong, the problems of both are told.

    Raises
    ------
    UserError
        As :func:`opened`, or one is a sweep and the other is none.
    """
    made: list[Opened] = []
    wrong: list[UserError] = []
    for thing, changes in zip((a, b), overrides, strict=True):
        try:
            made.append(opened(thing, changes))
        except UserError as error:
            wrong.append(error)
    if len(wrong) == 2 and wrong[0].args != wrong[1].args:
        names = dict.fromkeys(error.source for error in wrong)
        raise ScenarioError(" and ".join(names), [p for error in wrong for p in error.problems])
    if wrong:
        raise wrong[0]
    if {one.kind for one in made} >= {"sweep"} and made[0].kind != made[1].kind:
        kinds = " and ".join(f"a {one.kind}" for one in made)
        raise ScenarioError("compare", [Problem("A, B", f"are {kinds}; a sweep is compared with a sweep")])
    if made[0].kind == "server log":
        raise ScenarioError("compare", [Problem("A", "is a server log; name the run first, and the log as B")])
    return made[0], made[1]
