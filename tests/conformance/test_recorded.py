"""Recorded results of the engine, case by case."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from run_cases import KINDS, check, main, read

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
        OURS / "schedule_radix.jsonl.gz",
        OURS / "radix.jsonl.gz",
        OURS / "decode.jsonl.gz",
        OURS / "sizing_extra.jsonl",
        OURS / "allocator.jsonl.gz",
    ),
)
def test_recorded_here(case: dict) -> None:
    difference, _ = check(case)
    assert difference is None


@pytest.mark.parametrize(
    "case",
    cases(
        SHARED / "sglang-0.5.23.jsonl",
        SHARED / "sglang-0.5.23-schedule.jsonl",
        SHARED / "sglang-0.5.23-schedule-big.jsonl.gz",
    ),
)
def test_recorded_elsewhere(case: dict) -> None:
    difference, _ = check(case)
    assert difference is None


@pytest.mark.parametrize(
    ("file", "counts"),
    [
        (
            "sglang-0.5.23.jsonl",
            {"sizing": 39, "sizes": 7, "draft_pool": 7, "allocator": 30, "radix": 7, "decode": 9, "prefill": 4},
        ),
        ("sglang-0.5.23-schedule.jsonl", {"schedule": 201}),
        ("sglang-0.5.23-schedule-big.jsonl.gz", {"schedule": 6}),
    ],
)
def test_every_shared_case_is_run(file: str, counts: dict[str, int]) -> None:
    if not SHARED.is_dir():
        pytest.skip("the shared recordings are not here")
    assert Counter(case["kind"] for case in read(SHARED / file)) == counts
    assert set(counts) <= set(KINDS)


def steps_of(case: dict) -> list[dict]:
    return case["result"]["steps"]


def told(case: dict, key: str) -> bool:
    return any(step.get(key) for step in steps_of(case))


def evicts(case: dict, pool: str) -> bool:
    """Whether a plan, which allocates and frees nothing of a request, leaves less of a pool in the tree."""
    return any(
        sum(step["scheduled"][pool][1:]) < sum(step["before"][pool][1:])
        for step in steps_of(case)
        if pool in step["before"] and "scheduled" in step
    )


def test_what_the_recorded_schedules_with_a_prefix_cache_are_about() -> None:
    found: Counter[str] = Counter()
    for case in read(OURS / "schedule_radix.jsonl.gz"):
        given, end = case["input"], case["result"]["end"]
        assert not given["disable_radix_cache"]
        spec = given.get("spec")
        found.update(
            {
                f"{given['allocator']}, pages of {given['page_size']}": 1,
                f"ends {end}": 1,
                "overlap" if given["overlap"] else "sync": 1,
                "bigram keys": spec is not None,
                "draft trees": spec is not None and spec["topk"] > 1,
                "mixed chunk": told(case, "mixed_decode"),
                "chunked": told(case, "chunked"),
                "retraction": told(case, "retracted"),
                "abort": told(case, "aborted"),
                "refusal": any(facts["refused"] for facts in case["result"]["admitted"].values()),
                # The waiting ones are looked up again at the first pass and at every 32nd.
                "refresh": sum(bool(step.get("waiting_scheduled")) for step in steps_of(case)) > 32,
                "full eviction": evicts(case, "full"),
                "swa eviction": evicts(case, "swa"),
            }
        )
    least = {
        **{f"swa, pages of {page}": 10 for page in (1, 2, 4, 8, 16, 64)},
        **{f"paged, pages of {page}": 5 for page in (2, 4, 8, 16, 64)},
        "token, pages of 1": 5,
        "pure_swa, pages of 1": 10,
        "overlap": 50,
        "sync": 50,
        "ends done": 100,
        "ends error": 10,
        "ends stuck": 20,
        "bigram keys": 50,
        "draft trees": 20,
        "mixed chunk": 10,
        "chunked": 30,
        "retraction": 30,
        "abort": 15,
        "refusal": 20,
        "refresh": 5,
        "full eviction": 30,
        "swa eviction": 20,
    }
    assert {what: found[what] for what, count in least.items() if found[what] < count} == {}


def test_what_the_recorded_trees_are_about() -> None:
    found: Counter[str] = Counter()
    for case in read(OURS / "radix.jsonl.gz"):
        given, steps = case["input"], steps_of(case)
        matches = [step for step in steps if step["op"] == "match"]
        evictions = [step for step in steps if step["op"].startswith("evict")]
        found.update(
            {
                f"{given['allocator']}, pages of {given['page_size']}": 1,
                "bigram keys": given["is_eagle"],
                "tombstones in a match": any(m["full_kv_hit_length"] > m["device_prefix_len"] for m in matches),
                "branching": any(m["swa_branching_seqlen"] for m in matches),
                "full eviction": any(e.get("num_tokens_evicted") for e in evictions),
                "swa eviction": any(e.get("swa_num_tokens_evicted") for e in evictions),
                "tombstones left": any(
                    e.get("swa_num_tokens_evicted", 0) > e.get("num_tokens_evicted", 0) for e in evictions
                ),
                "swa lock let go first": any(step["op"] == "release_swa" for step in steps),
            }
        )
    least = {
        **{f"swa, pages of {page}": 15 for page in (1, 2, 4, 8, 16)},
        **{f"paged, pages of {page}": 15 for page in (2, 4, 8, 16)},
        "token, pages of 1": 15,
        "pure_swa, pages of 1": 15,
        "bigram keys": 50,
        "tombstones in a match": 30,
        "branching": 30,
        "full eviction": 100,
        "swa eviction": 80,
        "tombstones left": 50,
        "swa lock let go first": 20,
    }
    assert {what: found[what] for what, count in least.items() if found[what] < count} == {}


def test_what_the_recorded_rows_are_about() -> None:
    found: Counter[str] = Counter()
    for case in read(OURS / "decode.jsonl.gz"):
        given = case["input"]
        assert not given["disable_radix_cache"]
        found.update(
            {
                f"{given['allocator']}, pages of {given['page_size']}": 1,
                "bigram keys": given.get("is_eagle", False),
                "retraction": told(case, "retracted"),
                "abort": told(case, "aborted"),
                "cached prefix": any(any(step.get("prefix_len", {}).values()) for step in steps_of(case)),
                "window": any(row["swa_evicted"] for step in steps_of(case) for row in step["reqs"].values()),
            }
        )
    least = {
        **{f"swa, pages of {page}": 10 for page in (1, 2, 4, 8, 16)},
        **{f"paged, pages of {page}": 5 for page in (2, 4, 8, 16)},
        "token, pages of 1": 10,
        "bigram keys": 30,
        "retraction": 40,
        "abort": 20,
        "cached prefix": 40,
        "window": 40,
    }
    assert {what: found[what] for what, count in least.items() if found[what] < count} == {}


@pytest.mark.parametrize("file", ["schedule_noradix.jsonl.gz", "schedule_radix.jsonl.gz"])
def test_the_faults_of_the_engine_are_named(file: str) -> None:
    named = {}
    for case in read(OURS / file):
        _, note = check(case)
        if note:
            named[case["name"]] = note
    ends = {case["name"]: case["result"]["end"] for case in read(OURS / file)}
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
