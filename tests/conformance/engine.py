"""The engine's own classes, asked in other processes: a few cases at a time, so that a crash costs one case."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Case = dict[str, Any]
DRIVERS = Path(__file__).resolve().parent / "oracle"


def driver_of(kind: str) -> str:
    """The driver of a kind."""
    return "schedule.py" if kind == "schedule" else "driver.py"


class Engine:
    """Runs cases with the engine's python; ``crashed`` holds the names of those that ended the process."""

    def __init__(
        self, python: str | Path, *, together: int = 40, timeout: float = 900, drivers: Path = DRIVERS
    ) -> None:
        self.python, self.together, self.timeout, self.drivers = str(python), together, timeout, drivers
        self.crashed: list[str] = []
        self.said = ""
        self.process: subprocess.Popen[str] | None = None
        self.stopped = False

    def stop(self) -> None:
        """Ends what is running; nothing more comes."""
        self.stopped = True
        if self.process is not None:
            self.process.kill()

    def run(self, cases: Iterable[Case]) -> Iterator[Case]:
        """The cases with results, in their order by kind; those that crash the process are left out."""
        by_driver: dict[str, list[Case]] = {}
        for case in cases:
            by_driver.setdefault(driver_of(case["kind"]), []).append(case)
        for driver, group in by_driver.items():
            while group and not self.stopped:
                now, group = group[: self.together], group[self.together :]
                done = self._once(driver, now)
                yield from done
                if len(done) == len(now) or self.stopped:
                    continue
                # The one after the last result ended the process, or one before it spoiled the process.
                last, group = now[len(done)], now[len(done) + 1 :] + group
                again = self._once(driver, [last]) if done else []
                yield from again
                if not again:
                    self.crashed.append(last["name"])

    def _once(self, driver: str, cases: list[Case]) -> list[Case]:
        with tempfile.TemporaryDirectory() as folder:
            asked, answered = Path(folder, "in.jsonl"), Path(folder, "out.jsonl")
            asked.write_text("".join(json.dumps({k: c[k] for k in ("name", "kind", "input")}) + "\n" for c in cases))
            self.process = subprocess.Popen(
                [self.python, driver, "run", str(asked), str(answered)],
                cwd=self.drivers,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            try:
                self.said = self.process.communicate(timeout=self.timeout)[1][-2000:]
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.communicate()
                self.said = f"nothing more after {self.timeout} s"
            lines = answered.read_text().splitlines(keepends=True) if answered.exists() else []
            return [json.loads(line) for line in lines if line.endswith("\n")]


class Session:
    """One process of the engine, asked one case after the other; a new one after a crash and every few answers."""

    def __init__(
        self, python: str | Path, kind: str, *, together: int = 40, timeout: float = 120, drivers: Path = DRIVERS
    ) -> None:
        self.python, self.kind, self.together, self.timeout, self.drivers = (
            str(python),
            kind,
            together,
            timeout,
            drivers,
        )
        self.process: subprocess.Popen[bytes] | None = None
        self.answered = 0

    def ask(self, inputs: Case) -> Case | None:
        """The case with its result; None if the engine's process ended or hung over it."""
        if self.process is None or self.answered >= self.together:
            self._start()
        line = json.dumps({"name": "asked", "kind": self.kind, "input": inputs}) + "\n"
        try:
            self.requests.write(line.encode())
            self.requests.flush()
            answer = self._line()
        except BrokenPipeError:
            answer = b""
        if not answer.endswith(b"\n"):
            self.close()
            return None
        self.answered += 1
        done: Case = json.loads(answer)
        return done

    def close(self) -> None:
        """Ends the process."""
        if self.process is None:
            return
        self.process.kill()
        self.process.wait()
        for file in (self.requests, self.answers):
            with contextlib.suppress(BrokenPipeError):
                file.close()
        self.process = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        self.close()
        asked, to_driver = os.pipe()
        from_driver, answered = os.pipe()
        self.process = subprocess.Popen(
            [self.python, driver_of(self.kind), "run", f"/dev/fd/{asked}", f"/dev/fd/{answered}"],
            cwd=self.drivers,
            pass_fds=(asked, answered),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(asked)
        os.close(answered)
        self.requests, self.answers = os.fdopen(to_driver, "wb"), os.fdopen(from_driver, "rb", buffering=0)
        self.answered = 0

    def _line(self) -> bytes:
        until = time.monotonic() + self.timeout
        got = b""
        while not got.endswith(b"\n"):
            ready, _, _ = select.select([self.answers], [], [], max(0.0, until - time.monotonic()))
            part = self.answers.read(1 << 20) if ready else b""
            if not part:
                break
            got += part
        return got
