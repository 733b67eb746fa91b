"""What the tests of studies share: commands in this process, and a folder with scenarios."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import pytest
from tiny import TINY

from simkv.cli import main

SCENARIO = """schema = 1
name = "tiny"
[model]
config = "m.json"
[memory]
kv_bytes = 256000
max_running_requests = 4
chunked_prefill_size = 512
[steptime]
kind = "constant"
ms = 10
[workload]
kind = "poisson"
rate = 50
num_requests = 20
input_tokens = 40
output_tokens = 30
[checks]
"requests.completed" = "== 20"
"""


class Result(NamedTuple):
    """Exit code and both streams of a command."""

    code: int
    out: str
    err: str


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a scenario, its model and a trace."""
    mpl.use("Agg")
    (tmp_path / "m.json").write_text(json.dumps(TINY))
    (tmp_path / "s.toml").write_text(SCENARIO)
    rows = [{"arrival_s": i / 4, "input_tokens": 5 + i, "output_tokens": 3 + i % 3} for i in range(8)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def call(here: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command in this process."""

    def run(*words: str) -> Result:
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err
        return Result(code, captured.out, captured.err)

    return run
