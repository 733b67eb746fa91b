"""Points on the processes of this machine, through joblib."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from pathlib import Path

import cloudpickle
import joblib

from simkv.errors import SimkvError
from simkv.studies.parcel import DIED, PARCELS, Parcel, packed, simulated
from simkv.studies.point import Point, PointResult

__all__ = ["on_processes"]

# How often joblib's processes may break before points get one of their own.
RETRIES = 2


def _from_file(path: str, point: Point) -> PointResult:
    """In a process of joblib's: the result of a point, its parcel read from a file the first time."""
    if threading.current_thread() is threading.main_thread():
        # Ctrl-C reaches the whole group; it is the study that answers, and ends its processes.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    parcel = PARCELS.get(path, lambda: cloudpickle.loads(Path(path).read_bytes()))
    # The process may be left from a study that was begun elsewhere.
    with suppress(OSError):
        os.chdir(parcel.folder)
    return simulated(parcel, point)


def on_processes(parcel: Parcel, points: Sequence[Point], jobs: int) -> Iterator[PointResult]:
    """Results from processes of this machine.

    A process that dies takes joblib's whole call with it, and nobody says which point it had. What is missing then is
    begun again, and if that does not help, one at a time, until the point is found.
    """
    rest = {point.index: point for point in points}
    with tempfile.TemporaryDirectory(prefix="simkv-study-") as folder:
        path = Path(folder) / parcel.token
        path.write_bytes(packed("workload", parcel))
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
