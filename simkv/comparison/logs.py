"""A run against the log of a real server, beside comparisons of simulations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simkv.comparison.opening import Opened
from simkv.errors import InfeasibleError, Problem, ScenarioError
from simkv.imports.measured import LogComparison, compare_log
from simkv.imports.serverlog import ServerLog
from simkv.results import simulate

__all__ = ["against_log"]


def against_log(first: Opened, log: ServerLog, asked: Sequence[str], progress: Any = None) -> LogComparison:
    """Compare a run, or a scenario once it is simulated, with the log of a server.

    Where the engine would not start, its plan alone is compared.

    Parameters
    ----------
    first : Opened
        A run or a scenario.
    log : ServerLog
    asked : sequence of str
        Options of comparisons that are given.
    progress : callable, optional
        Called now and then with a label and a :class:`Progress`.

    Raises
    ------
    UserError
        An option that a log has no use for, or a workload that cannot be read.
    """
    if asked:
        message = "has no effect against a server log, whose requests and figures are not a run's"
        raise ScenarioError("compare", [Problem(name, message) for name in asked])
    if first.kind not in ("run", "scenario"):
        raise ScenarioError("compare", [Problem("A", f"is a {first.kind}; a log is compared with a run or a scenario")])
    if first.kind != "scenario":
        return compare_log(first.thing, log)
    name = first.thing.name
    try:
        run = simulate(first.thing, progress=None if progress is None else lambda p: progress(name, p))
        if run.partial:
            raise KeyboardInterrupt
        return compare_log(run, log)
    except InfeasibleError:
        return compare_log(first.thing.plan(), log)
