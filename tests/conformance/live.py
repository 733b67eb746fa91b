"""Compares simkv with the engine's own classes on random cases, live.

Usage::

    live.py [--seed S] [--schedules N] [--operations M] [--sizings K] [--minutes T]
            [--build] [--if-possible] [--jobs J] [--trials N] [--keep FILE]

Whole schedules; sequences of operations on allocators (random ones, and those of recorded runs), the prefix tree and
the requests' bookkeeping (``--operations`` counts them together); pool sizes. Inputs come from ``random_cases.py``,
results from the engine in other processes, a few cases a process. At the first difference the case is made small (every
trial asks the engine again), both sides are printed around it, and the exit status is 1.

The engine's environment is ``$SIMKV_ORACLE`` or lies in the user's cache folder; ``--build`` builds it if it is missing.
Without one the comparison does not run: one line says why, exit 2, or 0 with ``--if-possible``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import environment  # noqa: E402
import random_cases  # noqa: E402
import run_cases  # noqa: E402
from engine import Engine, Session  # noqa: E402
from shrinking import kind_of, shrink, side_by_side  # noqa: E402

Case = dict[str, Any]
OPERATIONS = ("allocator", "replay", "radix", "decode")
TOGETHER = {"schedule": 40, "sizing": 200}  # cases a process; the rest 100


def compared(case: Case) -> tuple[str | None, str]:
    """(difference or None, note); a crash of simkv is a difference."""
    try:
        return run_cases.check(case)
    except run_cases.Skip:
        raise
    except Exception as error:  # noqa: BLE001 - any crash is a difference of this case
        return f"{type(error).__name__}: {error}", ""


@dataclass
class Tally:
    """What a run has seen."""

    equal: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    spoiled: list[str] = field(default_factory=list)  # differ only after other cases in the engine's process
    crashed: list[str] = field(default_factory=list)  # end the engine's process

    def lines(self) -> Iterator[str]:
        for kind, count in sorted(self.equal.items()):
            faults = self.faults[kind]
            yield f"{kind}: {count} equal" + (f", {faults} of them up to a fault of the engine" if faults else "")
        for reason, count in self.skipped.items():
            yield f"skipped {count}: {reason}"
        if self.spoiled:
            yield f"equal only in a process of their own: {', '.join(self.spoiled)}"
        if self.crashed:
            yield f"the engine's process ended or hung: {', '.join(self.crashed)}"


def lots(seed: int, wanted: dict[str, int]) -> Iterator[list[Case]]:
    """Cases in lots for one process each, kinds in turn."""
    place = dict.fromkeys(wanted, 0)
    while any(place[kind] < count for kind, count in wanted.items()):
        for kind, count in wanted.items():
            first = place[kind]
            last = min(count, first + TOGETHER.get(kind, 100))
            if first < last:
                place[kind] = last
                yield [random_cases.KINDS[kind](seed, number) for number in range(first, last)]


class Live:
    """One comparison."""

    def __init__(self, python: Path, *, jobs: int = 2, trials: int = 400) -> None:
        self.python, self.jobs, self.trials = python, jobs, trials
        self.tally = Tally()
        self.engines: set[Engine] = set()

    def ask(self, cases: list[Case]) -> list[Case]:
        """The engine's results, from a fresh process."""
        engine = Engine(self.python, together=max(1, len(cases)))
        self.engines.add(engine)
        done = list(engine.run(cases))
        self.engines.discard(engine)
        self.tally.crashed += engine.crashed
        if cases and not done and len(engine.crashed) == len(cases) > 1:
            raise RuntimeError(f"the engine answers nothing: {engine.said}")
        return done

    def first_difference(self, seed: int, wanted: dict[str, int], until: float | None) -> Case | None:
        """The first case, in order of completion, that differs; lots run side by side."""
        source = lots(seed, wanted)
        with ThreadPoolExecutor(self.jobs) as pool:
            running: set[Future[list[Case]]] = set()
            while True:
                while len(running) < self.jobs and (until is None or time.monotonic() < until):
                    lot = next(source, None)
                    if lot is None:
                        break
                    running.add(pool.submit(self.ask, lot))
                if not running:
                    return None
                finished, running = wait(running, return_when=FIRST_COMPLETED)
                for one in finished:
                    for case in one.result():
                        if self.differs(case):
                            for engine in [*self.engines]:  # what else runs is not waited for
                                engine.stop()
                            return case

    def differs(self, case: Case) -> bool:
        """Whether a case differs, also in a process of its own."""
        kind = case["kind"]
        try:
            difference, note = compared(case)
            if difference is not None:
                alone = self.ask([case])
                if alone and compared(alone[0])[0] is None:
                    self.tally.spoiled.append(case["name"])
                    difference, note = compared(alone[0])
        except run_cases.Skip as reason:
            self.tally.skipped[str(reason)] += 1
            return False
        if difference is None:
            self.tally.equal[kind] += 1
            self.tally.faults[kind] += bool(note)
        return difference is not None

    def smallest(self, case: Case) -> tuple[Case, int]:
        """The case made small, with the engine's result."""
        sort = kind_of(compared(case)[0] or "")
        ran = "steps" in case["result"]  # a smaller one that the engine refuses is another matter
        with Session(self.python, case["kind"]) as session:

            def differs(inputs: Case) -> bool:
                done = session.ask(inputs)
                if done is None or (ran and "steps" not in done["result"]):
                    return False
                try:
                    difference = compared(done)[0]
                except run_cases.Skip:
                    return False
                return difference is not None and kind_of(difference) == sort

            found, tried = shrink(case["input"], differs, trials=self.trials)
        made = {"name": case["name"] + "_small", "kind": case["kind"], "input": found}
        alone = self.ask([made])  # in a process of its own it must still differ
        return (alone[0] if alone and compared(alone[0])[0] is not None else case), tried


def report(case: Case) -> Iterator[str]:
    """The case and where its sides part."""
    yield json.dumps({"name": case["name"], "kind": case["kind"], "input": case["input"]}, separators=(",", ":"))
    try:
        got, want, note = run_cases.sides(case)
        if note:
            yield note
        yield side_by_side(got, want)
    except Exception:  # noqa: BLE001 - simkv's own crash is what is reported
        yield traceback.format_exc(limit=-6).rstrip()
        steps = case["result"].get("steps")
        if steps:
            yield f"the engine, {len(steps)} steps, the last one: {json.dumps(steps[-1])[:1500]}"


def wanted_of(options: argparse.Namespace) -> tuple[dict[str, int], list[str]]:
    """Cases by kind, and kinds of operations that cannot be compared here."""
    known = [k for k in OPERATIONS if k in random_cases.KINDS and k in run_cases.KINDS]
    missing = [k for k in OPERATIONS if k not in known]
    wanted = {"schedule": options.schedules}
    for place, kind in enumerate(known):
        wanted[kind] = options.operations // len(known) + (place < options.operations % len(known))
    return wanted | {"sizing": options.sizings}, missing


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="default: a new one, which is printed")
    parser.add_argument("--schedules", type=int, default=400)
    parser.add_argument("--operations", type=int, default=900)
    parser.add_argument("--sizings", type=int, default=200)
    parser.add_argument("--minutes", type=float, help="start nothing new after that long")
    parser.add_argument("--build", action="store_true", help="build the engine's environment if it is missing")
    parser.add_argument("--if-possible", action="store_true", help="exit 0 without an environment")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="engine processes side by side")
    parser.add_argument("--trials", type=int, default=400, help="inputs to try when a case is made small")
    parser.add_argument("--keep", type=Path, help="append the smallest case with the engine's result to this file")
    options = parser.parse_args(argv)
    try:
        python = environment.find(build=options.build)
    except environment.Unavailable as reason:
        print(f"live comparison did not run: {reason}")
        return 0 if options.if_possible else 2
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    wanted, missing = wanted_of(options)
    print(f"seed {seed}: " + ", ".join(f"{count} {kind}" for kind, count in wanted.items() if count), flush=True)
    if missing:
        print(f"not compared yet: {', '.join(missing)}")
    start = time.monotonic()
    live = Live(python, jobs=options.jobs, trials=options.trials)
    until = None if options.minutes is None else start + 60 * options.minutes
    case = live.first_difference(seed, wanted, until)
    for line in live.tally.lines():
        print(line)
    print(f"seed {seed}, {time.monotonic() - start:.0f} s", flush=True)
    if case is None:
        compared_any = sum(live.tally.equal.values())
        print("no difference" if compared_any else "nothing was compared")
        return 0 if compared_any else 2
    print(f"{case['name']} differs: {compared(case)[0]}", flush=True)
    small, tried = live.smallest(case)
    print(f"smallest of {tried} trials:")
    for line in report(small):
        print(line)
    if options.keep is not None:
        with options.keep.open("a", encoding="utf-8") as file:
            file.write(json.dumps(small, separators=(",", ":")) + "\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
