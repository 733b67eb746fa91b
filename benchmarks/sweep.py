"""How much faster several processes run a sweep than one does: ``python benchmarks/sweep.py [--points 200] [--jobs 2]``.

The sweep is of one scenario under many changes, 2,000 requests a point. It is timed on a share of the points with one
process, and on all of them with several; both are given in points a second, and the ratio. What a process spends on
itself, starting and importing, is in it. The two take turns, so that what else the machine does falls on both.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import simkv
from simkv.points import Point, run_points


def points(count: int) -> list[Point]:
    """Points that cost about the same each."""
    return [
        Point(
            n, (("memory.max_running_requests", 64 + n % 20), ("memory.swa_full_tokens_ratio", 0.5 + 0.005 * (n // 20)))
        )
        for n in range(count)
    ]


def timed(base: simkv.Scenario, some: Sequence[Point], jobs: int) -> float:
    """Seconds for the points."""
    start = time.perf_counter()
    found = list(run_points(base, some, n_jobs=jobs))
    assert {result.state for result in found} == {"ok"}
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--turns", type=int, default=4, help="how many times one process and several take turns")
    given = parser.parse_args()
    base = simkv.load("mimo-v2-flash-chat").override(f"workload.num_requests={given.requests}")
    every = points(given.points)
    alone = together = 0.0
    count = 0
    for turn in range(given.turns):
        part = every[turn :: given.turns]
        few = part[: max(1, len(part) // 4)]
        alone += timed(base, few, 1)
        count += len(few)
        together += timed(base, part, given.jobs)
    one, many = count / alone, len(every) / together
    print(f"1 process: {one:.3f} points/s; {given.jobs} processes: {many:.3f} points/s; ratio {many / one:.2f}")


if __name__ == "__main__":
    main()
