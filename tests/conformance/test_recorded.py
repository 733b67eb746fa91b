"""Recorded results of the engine, case by case."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from run_cases import KINDS, Skip, check, main, read

ROOT = Path(__file__).resolve().parents[2]
OURS = ROOT / "tests" / "data" / "oracle"
SHARED = Path(os.environ.get("SIMKV_SHARED", ROOT.parent / "shared")) / "cases"


def cases(*files: Path) -> list[object]:
    return [
        pytest.param(case, id=case["name"])
        for file in files
        if file.exists()
        for case in read(file)
        if case["kind"] in KINDS
    ]


@pytest.mark.parametrize(
    "case",
    cases(
        OURS / "schedule_noradix.jsonl.gz",
        OURS / "schedule_noradix_big.jsonl.gz",
        OURS / "sizing_extra.jsonl",
        OURS / "allocator.jsonl.gz",
    ),
)
def test_recorded_here(case: dict) -> None:
    difference, _ = check(case)
    assert difference is None


@pytest.mark.parametrize("case", cases(SHARED / "sglang-0.5.23.jsonl", SHARED / "sglang-0.5.23-schedule.jsonl"))
def test_recorded_elsewhere(case: dict) -> None:
    try:
        difference, _ = check(case)
    except Skip as reason:
        pytest.skip(str(reason))
    assert difference is None


def test_the_counts_of_the_shared_files() -> None:
    if not SHARED.is_dir():
        pytest.skip("the shared recordings are not here")
    kinds = [case["kind"] for case in read(SHARED / "sglang-0.5.23.jsonl")]
    assert {kind: kinds.count(kind) for kind in ("sizing", "sizes", "draft_pool", "allocator")} == {
        "sizing": 39,
        "sizes": 7,
        "draft_pool": 7,
        "allocator": 30,
    }
    off = [c for c in read(SHARED / "sglang-0.5.23-schedule.jsonl") if c["input"].get("disable_radix_cache")]
    assert len(off) == 32


def test_the_faults_of_the_engine_are_named() -> None:
    named = {}
    for case in read(OURS / "schedule_noradix.jsonl.gz"):
        _, note = check(case)
        if note:
            named[case["name"]] = note
    ends = {case["name"]: case["result"]["end"] for case in read(OURS / "schedule_noradix.jsonl.gz")}
    # Whatever the engine does not get to its end is named, and nothing else is.
    assert set(named) == {name for name, end in ends.items() if end not in ("done", "max_steps")}
    assert len(named) > 10


def test_a_difference_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    case = next(c for c in read(OURS / "schedule_noradix.jsonl.gz") if c["result"]["end"] == "done")
    case["result"]["steps"][-1]["after"]["rows"] += 1
    file = tmp_path / "wrong.jsonl"
    file.write_text(json.dumps(case) + "\n")
    assert main([str(file)]) == 1
    shown = capsys.readouterr().out
    assert "0 passed, 1 failed" in shown and ".after.rows" in shown
