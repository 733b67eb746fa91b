"""The engine's own classes, asked in other processes: a few cases at a time, so that a crash costs one case."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Case = dict[str, Any]
DRIVERS = Path(__file__).resolve().parent / "oracle"


class Engine:
    """Runs cases with the engine's python; ``crashed`` holds the names of those that ended the process."""

    def __init__(
        self, python: str | Path, *, together: int = 40, timeout: float = 900, drivers: Path = DRIVERS
    ) -> None:
        self.python, self.together, self.timeout, self.drivers = str(python), together, timeout, drivers
        self.crashed: list[str] = []
        self.said = ""

    def run(self, cases: Iterable[Case]) -> Iterator[Case]:
        """The cases with results, in their order by kind; those that crash the process are left out."""
        by_driver: dict[str, list[Case]] = {}
        for case in cases:
            by_driver.setdefault("schedule.py" if case["kind"] == "schedule" else "driver.py", []).append(case)
        for driver, group in by_driver.items():
            while group:
                now, group = group[: self.together], group[self.together :]
                done = self._once(driver, now)
                yield from done
                if len(done) == len(now):
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
            try:
                ended = subprocess.run(
                    [self.python, driver, "run", asked, answered],
                    cwd=self.drivers,
                    timeout=self.timeout,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                self.said = ended.stderr[-2000:]
            except subprocess.TimeoutExpired:
                self.said = f"nothing more after {self.timeout} s"
            lines = answered.read_text().splitlines(keepends=True) if answered.exists() else []
            return [json.loads(line) for line in lines if line.endswith("\n")]
