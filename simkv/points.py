"""Points of a study: one scenario under many changes, simulated wherever there are processes.

A study (:mod:`simkv.sweep`) makes points and reads results; what lies between is here. What all points share, the base
scenario and objects given in Python, goes to a process once, and is a :class:`_Parcel` there. Requests are read or
generated once a process for every workload the points differ in (:class:`_Shelf`). A point that fails is a result with
its error.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import signal
import tempfile
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar
from uuid import uuid4

import cloudpickle
import joblib
import numpy as np

from simkv.errors import EngineFault, InfeasibleError, Problem, ScenarioError, SimkvError
from simkv.guards import is_usable
from simkv.results import Run, simulate
from simkv.scenario import Scenario
from simkv.workload.request import Workload

__all__ = ["FAILED", "STATES", "Point", "PointResult", "StudyProgress", "run_points"]

STATES = ("ok", "check failed", "engine fault", "infeasible", "error")
FAILED = ("engine fault", "infeasible", "error")
"""States of a point whose figures stand for nothing: nothing ran, or not to its end."""
StudyProgress = Callable[[int, int, int], None]
"""Called with the number of points that are done, of those that failed, and of all."""

POLICIES = {"acceptance": "draw", "steptime": "__call__", "routing": "owns_depth", "retraction_order": "__call__"}
"""Objects of one's own that all points may share, and what each must have."""

# Seconds for a scheduler to answer and have a worker, how many times that for a cluster without any to get one, and how
# often joblib's processes may break before points get one of their own.
DASK_TIMEOUT_S = 10.0
DASK_PATIENCE = 6
RETRIES = 2
DIED = "its process died; perhaps it was killed for its memory"
# Workloads and parcels kept in a process: neighbours in a grid share theirs.
KEPT = 4


@dataclass(frozen=True)
class Point:
    """One point of a study.

    Parameters
    ----------
    index : int
        Its number in the study; results bear it.
    changes : tuple of (str, value)
        Dotted key and value, ``seed`` among them; None removes a key.
    """

    index: int
    # Values may be lists and tables, which have no hash.
    changes: tuple[tuple[str, Any], ...] = field(default=(), hash=False)


@dataclass(frozen=True)
class PointResult:
    """What came of a point; the same whoever simulated it.

    Attributes
    ----------
    index : int
        Of the point.
    state : str
        One of :data:`STATES`.
    error : str
        What went wrong with it, empty if nothing did; a failed check is no error.
    exit_code : int
        Of ``simkv run`` for this point.
    summary : dict
        Dotted name -> int, float, str or None; of an engine fault, until then; empty where nothing ran.
    checks : list of dict
        ``key``, ``condition``, ``value``, ``holds``.
    plan : dict
        Figures of the plan (``max_total_num_tokens`` ...), empty where the scenario is wrong.
    workload_sha256 : str
        Of the requests, empty where nothing ran.
    """

    index: int
    state: str
    error: str = ""
    exit_code: int = 0
    summary: dict[str, Any] = field(default_factory=dict)
    checks: list[dict[str, Any]] = field(default_factory=list)
    plan: dict[str, Any] = field(default_factory=dict)
    workload_sha256: str = ""

    @property
    def failed(self) -> bool:
        """Whether its figures stand for nothing."""
        return self.state in FAILED

    def to_dict(self) -> dict[str, Any]:
        """What JSON can hold."""
        return asdict(self)


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
        ``n_jobs``, ``dask`` or an object given in Python cannot be used. What is wrong with a point is its result.
    KeyboardInterrupt
        Points that were not yielded yet are lost.
    """
    every = list(points)
    if len({point.index for point in every}) < len(every):
        raise ValueError("two points have the same index")
    unknown = sorted(given.keys() - POLICIES.keys())
    if unknown:
        raise TypeError(f"run_points() got unexpected keywords: {', '.join(unknown)}")
    # A rule of routing may be a name.
    is_usable(**{name: (None if isinstance(one, str) else one, POLICIES[name]) for name, one in given.items()})
    jobs = _jobs(n_jobs)
    parcel = _Parcel(uuid4().hex, base, workload, _packed(", ".join(given), given))
    if dask is not None:
        results = _on_dask(parcel, every, dask, jobs)
    elif jobs > 1:
        results = _on_processes(parcel, every, jobs)
    else:
        results = (_simulated(parcel, point) for point in every)
    return _counted(results, len(every), progress)


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
    if isinstance(n_jobs, (int, np.integer)) and not isinstance(n_jobs, bool) and (n_jobs == -1 or n_jobs >= 1):
        return joblib.cpu_count() if n_jobs == -1 else int(n_jobs)
    raise ScenarioError("n_jobs", [Problem("n_jobs", f"{n_jobs!r} is not -1 (a process a core) or an integer >= 1")])


# ------------------------------------------------------------------------------------------------- one point
@dataclass(frozen=True)
class _Parcel:
    """What all points of a study share.

    Parameters
    ----------
    token : str
        Names it in the processes that keep it.
    base : Scenario
    workload : Workload or None
        Requests of all points.
    given : bytes
        Pickled policies, one copy a point.
    requests : dict
        Requests of traces that were sent along, by :attr:`Scenario.requests_key`.
    """

    token: str
    base: Scenario
    workload: Workload | None
    given: bytes
    requests: dict[str, Workload] = field(default_factory=dict)

    def workload_of(self, scenario: Scenario) -> Workload:
        """The workload of one of its points."""
        if self.workload is not None:
            return self.workload
        sent = self.requests.get(scenario.requests_key)
        return scenario.fitted(_requests(scenario) if sent is None else sent)


def _packed(names: str, thing: Any) -> bytes:
    """A pickle of objects of the user's own, also of classes written in a notebook.

    Raises
    ------
    ScenarioError
        They cannot be pickled.
    """
    try:
        return bytes(cloudpickle.dumps(thing))
    except Exception as error:
        message = f"cannot be sent to another process: {error}"
        raise ScenarioError("simulate", [Problem(names, message)]) from None


def _simulated(parcel: _Parcel, point: Point) -> PointResult:
    """The result of a point, whatever comes of it.

    Raises
    ------
    KeyboardInterrupt
    """
    scenario = None
    try:
        scenario = parcel.base.change(dict(point.changes))
        run = simulate(scenario, workload=parcel.workload_of(scenario), **cloudpickle.loads(parcel.given))
    except InfeasibleError as error:
        return _failure(point, "infeasible", error, scenario)
    except EngineFault as error:
        return _failure(point, "engine fault", error, scenario)
    except Exception as error:
        return _failure(point, "error", error, scenario)
    if run.partial:
        raise KeyboardInterrupt
    return _result(point, run)


def _result(point: Point, run: Run) -> PointResult:
    state, error = "check failed" if run.failed_checks else "ok", ""
    if run.fault is not None:
        state, error = "engine fault", f"{run.fault['fault']}: {run.fault['message']}"
    return PointResult(
        point.index,
        state,
        error,
        run.exit_code,
        {str(key): _plain(value) for key, value in run.summary.items()},
        [{**asdict(check), "value": _plain(check.value), "holds": bool(check.holds)} for check in run.checks],
        _figures(run.plan),
        run.provenance["workload_sha256"],
    )


def _failure(point: Point, state: str, error: Exception, scenario: Scenario | None) -> PointResult:
    if isinstance(error, SimkvError):
        text, code = str(error), error.exit_code
    else:
        text, code = f"{type(error).__name__}: {error}", SimkvError.exit_code
    plan: dict[str, Any] = {}
    if scenario is not None:
        with suppress(Exception):
            plan = _figures(scenario.plan().to_dict())
    return PointResult(point.index, state, text, code, plan=plan)


def _figures(plan: dict[str, Any]) -> dict[str, Any]:
    """Sizes of a plan, without its tables."""
    return {key: _plain(value) for key, value in plan.items() if not isinstance(value, (list, tuple, dict))}


def _plain(value: Any) -> Any:
    """An int, a float, a text or None; None also where there is no number."""
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ------------------------------------------------------------------------------------------------- once a process
T = TypeVar("T")


class _Shelf(Generic[T]):
    """The few things used last, each made once.

    Parameters
    ----------
    room : int
        How many are kept.
    """

    def __init__(self, room: int) -> None:
        self.made = 0
        self._room = room
        self._things: OrderedDict[Any, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Any, make: Callable[[], T]) -> T:
        """The thing of this key, made if it is not there."""
        # A Dask worker may have several threads: the second one waits rather than read the same trace.
        with self._lock:
            if key in self._things:
                self._things.move_to_end(key)
                return self._things[key]
            thing = self._things[key] = make()
            self.made += 1
            if len(self._things) > self._room:
                self._things.popitem(last=False)
            return thing


# A process's own: workers live longer than a task, and these are what they need not get again.
_WORKLOADS: _Shelf[Workload] = _Shelf(KEPT)
_PARCELS: _Shelf[_Parcel] = _Shelf(KEPT)


def _requests(scenario: Scenario) -> Workload:
    """The requests of a scenario, read or generated only if none of the last few points had the same."""
    path = scenario.trace_path
    written = None
    if path is not None:
        with suppress(OSError):
            about = os.stat(path)
            written = about.st_mtime_ns, about.st_size, about.st_ino
    return _WORKLOADS.get((scenario.requests_key, written), scenario.requests)


# ------------------------------------------------------------------------------------------------- processes
def _from_file(path: str, point: Point) -> PointResult:
    """In a process of joblib's: the result of a point, its parcel read from a file the first time."""
    if threading.current_thread() is threading.main_thread():
        # Ctrl-C reaches the whole group; it is the study that answers, and ends its processes.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return _simulated(_PARCELS.get(path, lambda: cloudpickle.loads(Path(path).read_bytes())), point)


def _on_processes(parcel: _Parcel, points: Sequence[Point], jobs: int) -> Iterator[PointResult]:
    """Results from processes of this machine.

    A process that dies takes joblib's whole call with it, and nobody says which point it had. What is missing then is
    begun again, and if that does not help, one at a time, until the point is found.
    """
    rest = {point.index: point for point in points}
    with tempfile.TemporaryDirectory(prefix="simkv-study-") as folder:
        path = Path(folder) / parcel.token
        path.write_bytes(_packed("workload", parcel))
        task = partial(_from_file, str(path))
        broken = 0
        while rest:
            groups = [list(rest.values())] if broken < RETRIES else [[point] for point in rest.values()]
            try:
                for group in groups:
                    for result in _streamed(task, group, jobs):
                        del rest[result.index]
                        yield result
            except BrokenProcessPool:
                broken += 1
                if len(group) == 1:
                    del rest[group[0].index]
                    broken = 0
                    yield PointResult(group[0].index, "error", DIED, SimkvError.exit_code)


def _streamed(task: Callable[[Point], PointResult], points: Sequence[Point], jobs: int) -> Iterator[PointResult]:
    """Results as they come; joblib makes batches of quick points."""
    # One thread a process: a simulation has nothing that BLAS or OpenMP could share out.
    with joblib.parallel_config(backend="loky", inner_max_num_threads=1):
        parallel = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered", max_nbytes=None)
    results = parallel(joblib.delayed(task)(point) for point in points)
    try:
        yield from results
    finally:
        results.close()


# ------------------------------------------------------------------------------------------------- Dask
def _from_bytes(packed: bytes, token: str, point: Point) -> PointResult:
    """In a Dask worker: the result of a point, its parcel unpickled the first time."""
    return _simulated(_PARCELS.get(token, lambda: cloudpickle.loads(packed)), point)


def _on_dask(parcel: _Parcel, points: Sequence[Point], address: str, jobs: int) -> Iterator[PointResult]:
    """Results from a Dask cluster.

    Not through joblib: its Dask backend (1.6, ``_dask.py``, ``_collect``) calls nobody back for a task that failed, so
    that a worker lost for good would be waited for without end.
    """
    client, close = _connected(address, jobs)
    # What goes wrong is told once, by us.
    with import_module("distributed.utils").silence_logging_cmgr(logging.CRITICAL):
        try:
            yield from _gathered(client, parcel, points)
        finally:
            close()


def _connected(address: Any, jobs: int) -> tuple[Any, Callable[[], None]]:
    """A client, and what ends it.

    Raises
    ------
    ScenarioError
        The package is missing, or the scheduler.
    """
    try:
        distributed: Any = import_module("distributed")
    except ImportError:
        message = "needs the package distributed: pip install 'simkv[dask]'"
        raise ScenarioError("dask", [Problem("dask", message)]) from None
    if not isinstance(address, str) or not (address == "local" or "://" in address):
        message = f"{address!r} is not local or the address of a scheduler such as tcp://127.0.0.1:8786"
        raise ScenarioError("dask", [Problem("dask", message)])
    if address == "local":
        cluster = distributed.LocalCluster(
            n_workers=jobs, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
        )
        client = distributed.Client(cluster, set_as_default=False)
        return client, lambda: (client.close(), cluster.close())[0]
    try:
        client = distributed.Client(address, timeout=DASK_TIMEOUT_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        message = f"{address!r} cannot be reached within {DASK_TIMEOUT_S:g} s: {error}"
        raise ScenarioError("dask", [Problem("dask", message)]) from None
    try:
        client.wait_for_workers(1, timeout=DASK_TIMEOUT_S)
    except TimeoutError:
        client.close()
        message = f"the scheduler at {address} has no worker after {DASK_TIMEOUT_S:g} s"
        raise ScenarioError("dask", [Problem("dask", message)]) from None
    return client, client.close


def _gathered(client: Any, parcel: _Parcel, points: Sequence[Point]) -> Iterator[PointResult]:
    """Results as they come.

    Dask begins a task again whose worker is lost, and gives it up when that happens a few times. It may have been in bad
    company, so it then gets the cluster to itself.

    Raises
    ------
    ScenarioError
        The scheduler is gone, or all workers for good.
    """
    begun: dict[str, tuple[Any, Point]] = {}
    parcels: dict[str, Any] = {}
    ended: SimpleQueue[Any] = SimpleQueue()

    def begin(point: Point) -> None:
        own = _with_trace(parcel, point)
        if own.token not in parcels:
            parcels[own.token] = _sent(client, _packed("workload", own))
        future = client.submit(_from_bytes, parcels[own.token], own.token, point, pure=False)
        begun[future.key] = future, point
        future.add_done_callback(ended.put)

    def end() -> tuple[Point, PointResult | Exception]:
        future, point = begun.pop(_next(client, ended).key)
        try:
            return point, future.result()
        except Exception as error:
            if client.status != "running":
                raise _lost("the scheduler is gone") from None
            return point, error

    doubtful: list[Point] = []
    for point in points:
        begin(point)
    while begun:
        point, outcome = end()
        if isinstance(outcome, PointResult):
            yield outcome
        else:
            doubtful.append(point)
    for point in doubtful:
        begin(point)
        _, outcome = end()
        if not isinstance(outcome, PointResult):
            killed = isinstance(outcome, import_module("distributed").KilledWorker)
            text = DIED if killed else f"no worker brings it to an end: {type(outcome).__name__}: {outcome}"
            outcome = PointResult(point.index, "error", text, SimkvError.exit_code)
        yield outcome


def _sent(client: Any, packed: bytes) -> Any:
    """Bytes on the cluster: at every worker that needs them, and there again when a worker is lost.

    That is what they are a task for. What is scattered is gone with the last worker that had it, and so are the tasks
    that need it.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sending large graph")
        return client.submit(bytes, packed, pure=False)


def _next(client: Any, ended: SimpleQueue[Any]) -> Any:
    """The next task that ended, however it did.

    Raises
    ------
    ScenarioError
        There is nobody left to end one.
    """
    alone = 0
    while alone < DASK_PATIENCE:
        try:
            return ended.get(timeout=DASK_TIMEOUT_S)
        except Empty:
            # A point may take hours, a new worker a while.
            alone = 0 if client.status == "running" and client.scheduler_info()["workers"] else alone + 1
    raise _no_workers()


def _no_workers() -> ScenarioError:
    return _lost(f"no worker is left, and none came in {DASK_PATIENCE * DASK_TIMEOUT_S:g} s")


def _lost(what: str) -> ScenarioError:
    return ScenarioError("dask", [Problem("dask", f"{what}; points that ended are in the directory: resume")])


def _with_trace(parcel: _Parcel, point: Point) -> _Parcel:
    """The parcel of a point; requests of a trace go along, since a worker elsewhere may not have the file."""
    if parcel.workload is not None:
        return parcel
    # What is wrong with the point or its trace is for the worker to find.
    with suppress(SimkvError):
        scenario = parcel.base.change(dict(point.changes))
        if scenario.trace_path is not None:
            key = scenario.requests_key
            token = f"{parcel.token}-{hashlib.sha256(key.encode()).hexdigest()}"
            return replace(parcel, token=token, requests={key: _requests(scenario)})
    return parcel
