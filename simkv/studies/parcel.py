"""What all points of a study share, and what one of them comes to: in whatever process it is simulated.

A parcel goes to a process once. Requests are read or generated once a process for every workload the points differ in
(:class:`Shelf`). A point that fails is a result with its error.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, TypeVar

import cloudpickle

from simkv.errors import EngineFault, InfeasibleError, Problem, ScenarioError, SimkvError
from simkv.results import Run, simulate
from simkv.scenario import Scenario
from simkv.studies.point import Point, PointResult
from simkv.wording import plain
from simkv.workload.request import Workload

__all__ = ["DIED", "PARCELS", "WORKLOADS", "Parcel", "Shelf", "packed", "requests_of", "run_of", "simulated"]

# Workloads and parcels kept in a process: neighbours in a grid share theirs.
KEPT = 4
DIED = "its process died; perhaps it was killed for its memory"


@dataclass(frozen=True)
class Parcel:
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
    folder : str
        Where paths of the scenario start that are neither absolute nor beside it.
    requests : dict
        Requests of traces that were sent along, by :attr:`Scenario.requests_key`.
    """

    token: str
    base: Scenario
    workload: Workload | None
    given: bytes
    folder: str
    requests: dict[str, Workload] = field(default_factory=dict)

    def workload_of(self, scenario: Scenario) -> Workload:
        """The workload of one of its points."""
        if self.workload is not None:
            return self.workload
        sent = self.requests.get(scenario.requests_key)
        return scenario.fitted(requests_of(scenario) if sent is None else sent)


def packed(names: str, thing: Any) -> bytes:
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


def run_of(parcel: Parcel, scenario: Scenario) -> Run:
    """The run of a scenario with what the parcel holds, policies anew.

    Raises
    ------
    UserError, InfeasibleError
        As :func:`simkv.simulate`.
    """
    return simulate(scenario, workload=parcel.workload_of(scenario), **cloudpickle.loads(parcel.given))


def simulated(parcel: Parcel, point: Point) -> PointResult:
    """The result of a point, whatever comes of it.

    Raises
    ------
    KeyboardInterrupt
    """
    scenario = None
    try:
        scenario = parcel.base.change(dict(point.changes))
        run = run_of(parcel, scenario)
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
        {str(key): plain(value) for key, value in run.summary.items()},
        [{**asdict(check), "value": plain(check.value), "holds": bool(check.holds)} for check in run.checks],
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
    return {key: plain(value) for key, value in plan.items() if not isinstance(value, (list, tuple, dict))}


# ------------------------------------------------------------------------------------------------- once a process
T = TypeVar("T")


class Shelf(Generic[T]):
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
WORKLOADS: Shelf[Workload] = Shelf(KEPT)
PARCELS: Shelf[Parcel] = Shelf(KEPT)


def requests_of(scenario: Scenario) -> Workload:
    """The requests of a scenario, read or generated only if none of the last few points had the same."""
    path = scenario.trace_path
    written = None
    if path is not None:
        with suppress(OSError):
            about = os.stat(path)
            written = about.st_mtime_ns, about.st_size, about.st_ino
    return WORKLOADS.get((scenario.requests_key, written), scenario.requests)
