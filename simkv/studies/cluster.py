"""Points on a Dask cluster."""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from queue import Empty, SimpleQueue
from typing import Any

import cloudpickle

from simkv.errors import Problem, ScenarioError, SimkvError
from simkv.studies.parcel import DIED, PARCELS, Parcel, packed, requests_of, simulated
from simkv.studies.point import Point, PointResult

__all__ = ["on_dask"]

# Seconds for a scheduler to answer and have a worker, and how many times that for a cluster without any to get one.
DASK_TIMEOUT_S = 10.0
DASK_PATIENCE = 6


def _from_bytes(packed: bytes, token: str, point: Point) -> PointResult:
    """In a Dask worker: the result of a point, its parcel unpickled the first time."""
    return simulated(PARCELS.get(token, lambda: cloudpickle.loads(packed)), point)


def on_dask(parcel: Parcel, points: Sequence[Point], address: str, jobs: int) -> Iterator[PointResult]:
    """Results from a Dask cluster.

    Not through joblib: its Dask backend (1.6, ``_dask.py``, ``_collect``) calls nobody back for a task that failed, so
    that a worker lost for good would be waited for without end.
    """
    stream: Any = _gathered_and_closed(*_connected(address, jobs), parcel, points)
    # Begun, so that it is closed also where nobody asks for a result.
    next(stream)
    return iter(stream)


def _gathered_and_closed(
    client: Any, close: Callable[[], None], parcel: Parcel, points: Sequence[Point]
) -> Iterator[PointResult | None]:
    """Nothing first, then the results."""
    # What goes wrong is told once, by us.
    with import_module("distributed.utils").silence_logging_cmgr(logging.CRITICAL):
        try:
            yield None
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


def _gathered(client: Any, parcel: Parcel, points: Sequence[Point]) -> Iterator[PointResult]:
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
            parcels[own.token] = _sent(client, packed("workload", own))
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


def _with_trace(parcel: Parcel, point: Point) -> Parcel:
    """The parcel of a point; requests of a trace go along, since a worker elsewhere may not have the file."""
    if parcel.workload is not None:
        return parcel
    # What is wrong with the point or its trace is for the worker to find.
    with suppress(SimkvError):
        scenario = parcel.base.change(dict(point.changes))
        if scenario.trace_path is not None:
            key = scenario.requests_key
            token = f"{parcel.token}-{hashlib.sha256(key.encode()).hexdigest()}"
            return replace(parcel, token=token, requests={key: requests_of(scenario)})
    return parcel
