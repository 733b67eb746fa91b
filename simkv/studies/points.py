"""Points of a study: one scenario under many changes, simulated wherever there are processes.

A study makes points and reads results; what lies between is here, in :mod:`~simkv.studies.processes`, and in
:mod:`~simkv.studies.cluster`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import joblib
import numpy as np

from simkv.errors import Problem, ScenarioError
from simkv.guards import is_usable
from simkv.overrides import split_key
from simkv.scenario import Scenario
from simkv.studies.cluster import on_dask
from simkv.studies.parcel import Parcel, packed, simulated
from simkv.studies.point import FAILED, STATES, Point, PointResult, StudyProgress
from simkv.studies.processes import on_processes
from simkv.workload.request import Workload

__all__ = [
    "FAILED",
    "STATES",
    "Point",
    "PointResult",
    "StudyProgress",
    "check_given",
    "given_in_python",
    "replaced_keys",
    "run_points",
]

POLICIES = {"acceptance": "draw", "steptime": "__call__", "routing": "owns_depth", "retraction_order": "__call__"}
"""Objects of one's own that all points may share, and what each must have."""
REPLACED = {
    "workload": "workload",
    "acceptance": "acceptance",
    "steptime": "steptime",
    "routing": "policies.routing",
    "retraction_order": "policies.retraction",
    "arch": "model.config",
}
"""What an object given in Python takes the place of."""
MOST_JOBS = 256
"""More processes than this, and than four a core, are taken for a slip of the pen."""


def run_points(
    base: Scenario,
    points: Iterable[Point],
    *,
    workload: Workload | None = None,
    n_jobs: int = 1,
    dask: str | None = None,
    progress: StudyProgress | None = None,
    **given: Any,
) -> Iterator[PointResult]:
    """Simulate points, and yield each result as it is there, in any order.

    Parameters
    ----------
    base : Scenario
        What the points change.
    points : iterable of Point
        With different indices.
    workload : Workload, optional
        Requests of all points instead of the scenario's.
    n_jobs : int
        Processes: 1 is this one, more are joblib's, -1 is one a core.
    dask : str, optional
        ``local``, a cluster of ``n_jobs`` processes on this machine, or the address of a scheduler, ``tcp://host:port``.
    progress : callable, optional
        Called with points done, failed, and in all.
    **given
        ``acceptance``, ``steptime``, ``routing``, ``retraction_order``, as :func:`simkv.simulate` takes them. Every point
        gets a copy of its own, so that nothing one point does to them shows in another.

    Raises
    ------
    ScenarioError
        ``n_jobs``, ``dask`` or an object given in Python cannot be used, told before the first result is asked for. What
        is wrong with a point is its result.
    KeyboardInterrupt
        Points that were not yielded yet are lost.
    """
    every = _neighbours(points)
    if len({point.index for point in every}) < len(every):
        raise ValueError("two points have the same index")
    check_given("run_points", workload, given)
    jobs = min(_jobs(n_jobs), max(len(every), 1))
    parcel = Parcel(uuid4().hex, base, workload, packed(", ".join(given), given), str(Path.cwd()))
    if dask is not None:
        results = on_dask(parcel, every, dask, jobs)
    elif jobs > 1:
        results = on_processes(parcel, every, jobs)
    else:
        results = (simulated(parcel, point) for point in every)
    return _counted(results, len(every), progress)


def check_given(caller: str, workload: Any, given: Mapping[str, Any]) -> None:
    """Refuse objects given in Python that cannot be used.

    Raises
    ------
    TypeError
        A keyword that there is not.
    ScenarioError
        An object that lacks what is asked of it.
    """
    unknown = sorted(given.keys() - POLICIES.keys())
    if unknown:
        raise TypeError(f"{caller}() got unexpected keywords: {', '.join(unknown)}")
    # A rule of routing may be a name.
    policies = {name: (None if isinstance(one, str) else one, POLICIES[name]) for name, one in given.items()}
    is_usable(workload=(workload, "arrival_ns"), **policies)


def replaced_keys(keys: Iterable[str], handed: Iterable[str]) -> list[tuple[str, str]]:
    """Keys that have no effect, each with the object given in Python that takes its place."""
    named = list(handed)
    return [(key, name) for name in named for key in keys if _covers(REPLACED[name], key)]


def given_in_python(base: Scenario, workload: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Objects that take the place of something the scenario states."""
    objects = {"routing": base.rule, **given, "workload": workload, "arch": base.arch}
    return {name: one for name, one in objects.items() if one is not None}


def _covers(section: str, key: str) -> bool:
    outer, inner = split_key(section), split_key(key)
    return outer == inner[: len(outer)] or inner == outer[: len(inner)]


def _neighbours(points: Iterable[Point]) -> list[Point]:
    """Points one after the other that share their requests, so that few workloads need to be kept."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        own = [(key, value) for key, value in point.changes if key == "seed" or key.split(".")[0] == "workload"]
        groups.setdefault(repr(own), []).append(point)
    return [point for group in groups.values() for point in group]


def _counted(results: Iterator[PointResult], total: int, progress: StudyProgress | None) -> Iterator[PointResult]:
    failed = 0
    for done, result in enumerate(results, 1):
        failed += result.failed
        if progress is not None:
            progress(done, failed, total)
        yield result


def _jobs(n_jobs: Any) -> int:
    """Number of processes.

    Raises
    ------
    ScenarioError
        It is no number of processes.
    """
    most = max(MOST_JOBS, 4 * joblib.cpu_count())
    whole = isinstance(n_jobs, (int, np.integer)) and not isinstance(n_jobs, bool)
    if whole and (n_jobs == -1 or 1 <= n_jobs <= most):
        return joblib.cpu_count() if n_jobs == -1 else int(n_jobs)
    message = f"{n_jobs!r} is not -1 (a process a core) or an integer from 1 to {most}"
    raise ScenarioError("n_jobs", [Problem("n_jobs", message)])
