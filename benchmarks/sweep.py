"""How much faster several processes run a sweep than one does: ``python benchmarks/sweep.py [--points 200] [--jobs 2]``.

The sweep is of one scenario under many changes, 2,000 requests a point. A share of the points is run with one process, and
all of them with several; both are given in points a second, and the ratio. What a process spends on itself, starting and
importing, is in it. The two take turns, so that what else the machine does falls on both.

Where others use the machine too, the seconds of CPU a point costs tell more: were they the same for one process and for
several, as many cores would be as many times as fast.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Sequence

from joblib.externals.loky import get_reusable_executor

import simkv
from simkv.studies.points import Point, run_points


def points(count: int) -> list[Point]:
    """Points that cost about the same each."""
    return [
        Point(
            n, (("memory.max_running_requests", 64 + n % 20), ("memory.swa_full_tokens_ratio", 0.5 + 0.005 * (n // 20)))
        )
        for n in range(count)
    ]


def timed(base: simkv.Scenario, some: Sequence[Point], jobs: int) -> tuple[float, float]:
    """Seconds for the points, and seconds of CPU."""
    start, spent = time.perf_counter(), cpu()
    found = list(run_points(base, some, n_jobs=jobs))
    assert {result.state for result in found} == {"ok"}
    took = time.perf_counter() - start
    # The CPU time of processes is known when they have ended.
    get_reusable_executor().shutdown(wait=True)
    return took, cpu() - spent


def cpu() -> float:
    """Seconds of CPU of this process and of those it started that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--turns", type=int, default=4, help="how many times one process and several take turns")
    given = parser.parse_args()
    base = simkv.load("mimo-v2-flash-chat").override(f"workload.num_requests={given.requests}")
    every = points(given.points)
    alone, together = [0.0, 0.0], [0.0, 0.0]
    count = 0
    for turn in range(given.turns):
        part = every[turn :: given.turns]
        few = part[: max(1, len(part) // 4)]
        alone = [sum(pair) for pair in zip(alone, timed(base, few, 1), strict=True)]
        count += len(few)
        together = [sum(pair) for pair in zip(together, timed(base, part, given.jobs), strict=True)]
    one, many = count / alone[0], len(every) / together[0]
    print(f"1 process: {one:.3f} points/s; {given.jobs} processes: {many:.3f} points/s; ratio {many / one:.2f}")
    print(f"CPU a point: {alone[1] / count:.3f} s with 1 process, {together[1] / len(every):.3f} s with {given.jobs}")


if __name__ == "__main__":
    main()
