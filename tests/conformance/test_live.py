"""The live comparison's own parts, without an engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from threading import Timer
from typing import Any

import environment
import live
import numpy as np
import pytest
import random_cases
import run_cases
import shrinking
from allocator_driver import operations
from engine import Engine, Session
from schedule_driver import Driver

from simkv.allocations import AllocationLog
from simkv.alloctable import allocation_table
from simkv.replayer.log import read_log

HERE = Path(__file__).resolve().parent
NUMBERS = range(60)


def tokens(text: Any) -> list[int]:
    if isinstance(text, dict):
        return list(range(*text["range"])) if "range" in text else [t for part in text["cat"] for t in tokens(part)]
    return text


# ------------------------------------------------------------------------------------------------- generators
@pytest.mark.parametrize("kind", sorted(random_cases.KINDS))
def test_a_case_is_a_function_of_seed_and_number(kind: str) -> None:
    made = [random_cases.KINDS[kind](7, n) for n in NUMBERS]
    assert made == [random_cases.KINDS[kind](7, n) for n in NUMBERS]
    assert [json.loads(json.dumps(c)) for c in made] == made
    assert all(set(c) == {"name", "kind", "input"} and c["kind"] == kind for c in made)
    assert len({c["name"] for c in made}) == len(NUMBERS)
    assert len({json.dumps(c["input"]) for c in made}) > 0.9 * len(NUMBERS)
    assert random_cases.KINDS[kind](8, 0)["input"] != made[0]["input"]


def test_cases_do_not_hang_on_the_hash_seed() -> None:
    code = "import json, random_cases as r; print(json.dumps([f(3, n) for f in r.KINDS.values() for n in range(12)]))"
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=HERE,
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4711")
    }
    assert len(said) == 1


def test_schedules_keep_the_engines_own_rules() -> None:
    for number in range(300):
        d = random_cases.schedule_case(5, number)["input"]
        page = d["page_size"]
        assert not (d["chunked_prefill_size"] or 0) % page
        assert d["chunked_prefill_size"] != 0
        assert d["allocator"] in ("token", "paged", "swa", "pure_swa")
        assert (d["allocator"] == "token") <= (page == 1) and (d["allocator"] == "paged") <= (page > 1)
        assert (d["allocator"] == "pure_swa") <= (page == 1 and "size" not in d)
        if "size" in d:
            assert d["size"] % page == 0 < d["size"]
        if "window" in d:
            assert d["size_swa"] % page == 0 and d["size_swa"] >= d["window"] + page
        else:
            assert "size_swa" not in d and "eviction_interval" not in d
        assert bool(d.get("enable_mixed_chunk")) <= bool(d["chunked_prefill_size"])
        spec = d.get("spec")
        if spec and spec["topk"] == 1:
            assert spec["num_draft_tokens"] == spec["num_steps"] + 1
        for place, request in enumerate(d["requests"]):
            assert request["rid"] == f"r{place}" and tokens(request["tokens"])
            assert ("accept" in request) == (spec is not None)
            answers = {t for t in tokens(request["tokens"]) if t >= random_cases.OUTPUT}
            assert all(t - random_cases.OUTPUT < place for t in answers)  # of earlier requests only


def test_schedules_reach_every_corner_asked_for() -> None:
    made = [random_cases.schedule_case(1, n)["input"] for n in range(300)]
    on = [d for d in made if not d["disable_radix_cache"]]
    assert 0.65 < len(on) / len(made) < 0.85
    assert {d["page_size"] for d in made} == {1, 2, 4, 8, 16, 64}
    assert {d["allocator"] for d in on} == {"token", "paged", "swa", "pure_swa"}
    for wanted in (
        lambda d: "spec" not in d,
        lambda d: d.get("spec", {}).get("topk") == 1,
        lambda d: d.get("spec", {}).get("topk", 0) > 1,
        lambda d: d["chunked_prefill_size"] is None,
        lambda d: d.get("enable_mixed_chunk"),
        lambda d: d["overlap"],
        lambda d: d.get("window", 10**9) < d["page_size"],
        lambda d: d["max_prefill_tokens"] < 100,
        lambda d: d["context_len"] < 200,
        lambda d: any(r.get("ignore_eos") for r in d["requests"]),
        lambda d: any(r["max_new_tokens"] == 0 for r in d["requests"]),
        lambda d: any(t >= random_cases.OUTPUT for r in d["requests"] for t in tokens(r["tokens"])),
        lambda d: len({str(r["tokens"]) for r in d["requests"]}) < len(d["requests"]),
    ):
        assert sum(bool(wanted(d)) for d in on) >= 3


def test_operations_name_only_what_is_there() -> None:
    for number in NUMBERS:
        d = random_cases.radix_case(5, number)["input"]
        held: set[str] = set()
        for op in d["ops"]:
            if op["op"] == "lock":
                held.add(op["as"])
            elif op["op"] in ("unlock", "release_swa"):
                assert op["as"] in held
                held -= {op["as"]} if op["op"] == "unlock" else set()
            if "swa_evicted" in op:
                assert d["allocator"] == "swa"
                assert op["swa_evicted"] % d["page_size"] == 0 < op["swa_evicted"] < len(tokens(op["tokens"]))
        e = random_cases.decode_case(5, number)["input"]
        known: set[str] = set()
        for op in e["ops"]:
            known |= set(op.get("reqs", {}))
            assert op.get("req") is None or op["req"] in known
            assert op["op"] != "prefill" or op["if_fits"]


def test_a_log_becomes_the_calls_that_the_engine_would_get() -> None:
    run = {
        "allocator": "paged", "page_size": 4, "size": 64, "disable_radix_cache": True, "overlap": False,
        "requests": [{"rid": "r0", "tokens": {"range": [0, 6]}, "max_new_tokens": 4}],
    }  # fmt: skip
    log = AllocationLog()
    Driver(run, log).run()
    made = [*operations(read_log(allocation_table(log, np.arange(1)), ["r0"]), 4)]
    # Page 0 pads, so the first page's slots are 4 to 7; the last output token has no slot.
    assert [op for op, _ in made] == [
        {"op": "alloc_extend", "prefix_lens": [0], "seq_lens": [6], "last_loc": [-1]},
        {"op": "alloc_decode", "seq_lens": [7], "last_loc": [9]},
        {"op": "alloc_decode", "seq_lens": [8], "last_loc": [10]},
        {"op": "alloc_decode", "seq_lens": [9], "last_loc": [11]},
        {"op": "free_group_begin"},
        {"op": "free_segment", "ids": [4, 5, 6, 7, 8, 9, 10, 11, 12], "start_pos": 0},
        {"op": "free_group_end"},
    ]
    assert [told["returned"] for _, told in made if told] == [[4, 5, 6, 7, 8, 9], [10], [11], [12]]


def test_recorded_runs_do_all_that_an_allocator_can() -> None:
    found = {op["op"] for n in range(40) for op in random_cases.replay_case(1, n)["input"]["ops"]}
    ways = {"alloc", "alloc_extend", "alloc_decode", "move", "free_group_begin", "free_group_end"}
    assert found == ways | {"free_segment", "free_full_segment", "free_swa_segment"}


def test_sizing_cases_are_scenarios() -> None:
    for number in NUMBERS:
        run_cases.scenario(random_cases.sizing_case(5, number)["input"])


# ------------------------------------------------------------------------------------------------- shrinking
def test_a_case_shrinks_to_what_matters() -> None:
    case = {
        "allocator": "swa", "page_size": 4, "size": 400, "size_swa": 200, "window": 8, "chunked_prefill_size": 16,
        "max_running_requests": 8, "core": "rust", "overlap": True, "spec": {"topk": 2},
        "requests": [
            {"rid": f"r{i}", "arrival_step": 30 + i, "tokens": {"range": [1000 * i, 1000 * i + 60]},
             "max_new_tokens": 40, "ignore_eos": True}
            for i in range(9)
        ],
    }  # fmt: skip
    case["requests"][7]["tokens"] = {"cat": [{"range": [5000, 5060]}, [900005] * 9, {"range": [1, 30]}]}
    asked: list[dict] = []

    def differs(one: dict) -> bool:
        """Needs the answer of r5 in a later prompt, at least 10 tokens of r5, and a pool of 100."""
        asked.append(one)
        names = [r["rid"] for r in one["requests"]]
        answer = 900000 + names.index("r5") if "r5" in names else None
        quoted = any(r["rid"] == "r7" and answer in tokens(r["tokens"]) for r in one["requests"])
        long = any(r["rid"] == "r5" and len(tokens(r["tokens"])) >= 10 for r in one["requests"])
        return quoted and long and one["size"] >= 100

    before = json.dumps(case)
    small, tried = shrinking.shrink(case, differs)
    assert tried == len(asked) < 200 and json.dumps(case) == before
    assert differs(small)
    assert [r["rid"] for r in small["requests"]] == ["r5", "r7"]
    first, second = small["requests"]
    assert len(tokens(first["tokens"])) == 10 and second["tokens"] == [900000]
    assert (first["arrival_step"], first["max_new_tokens"]) == (0, 1) and "ignore_eos" not in first
    assert small["size"] == 100 and not {"core", "spec"} & set(small) and small["overlap"] is False


def test_shrinking_stops_when_trials_are_used_up() -> None:
    case = {"requests": [{"rid": f"r{i}", "tokens": [i], "max_new_tokens": 1} for i in range(50)]}
    small, tried = shrinking.shrink(case, lambda one: False, trials=17)
    assert small == case and tried == 17


def test_operations_on_a_lock_go_with_it() -> None:
    ops = [{"op": "match", "tokens": [1]}, {"op": "unlock", "as": "L"}, {"op": "release_swa", "as": "L"}]
    assert shrinking.mended({"ops": ops}) == {"ops": ops[:1]}
    assert shrinking.mended({"ops": ops[1:]}) is None
    lock = {"op": "lock", "as": "L", "tokens": [1]}
    assert shrinking.mended({"ops": [lock, *ops]}) == {"ops": [lock, ops[0], ops[1]]}


@pytest.mark.parametrize("kind", sorted(random_cases.KINDS))
def test_what_shrinks_is_smaller_and_json(kind: str) -> None:
    case = random_cases.KINDS[kind](2, 1)["input"]
    before = json.dumps(case)
    found = [m for family in shrinking.FAMILIES for m in family(case)]
    made = [m for m in map(shrinking.mended, found) if m is not None]
    assert made and json.dumps(case) == before  # the case itself stays
    assert sum(shrinking.size_of(m) < shrinking.size_of(case) for m in made) > 0.5 * len(made)
    if kind == "schedule":
        assert all(not (m["chunked_prefill_size"] or 0) % m["page_size"] for m in made)


# ------------------------------------------------------------------------------------------------- both sides
def test_both_sides_are_printed_at_the_first_difference() -> None:
    def run(free: int) -> dict:
        steps = [{"kind": "decode", "after": {"full": [9 - i, 0, 0], "rows": 3}} for i in range(5)]
        steps[3]["after"]["full"] = [free, 0, 0]
        return {"end": "done", "steps": steps}

    shown = shrinking.side_by_side(run(6), run(5)).splitlines()
    assert shown[0] == "first difference at .steps[3].after.full[0]"
    assert [line.split()[1] for line in shown if line.startswith("  step")] == ["2", "3"]
    assert [line.split()[1] for line in shown if line.startswith("*")] == ["after.full"]
    marked = next(line for line in shown if line.startswith("*"))
    assert marked.index("[6, 0, 0]") < marked.index("[5, 0, 0]")


def test_a_missing_step_is_printed() -> None:
    steps = [{"it": 0}, {"it": 1}]
    shown = shrinking.side_by_side({"end": "done", "steps": steps[:1]}, {"end": "done", "steps": steps})
    assert shown.startswith("first difference at .steps[1]") and "* it" in shown


def test_long_values_are_cut_around_the_difference() -> None:
    left, right = list(range(200)), list(range(200))
    right[150] = -1
    shown = shrinking.side_by_side({"slots": left}, {"slots": right}, width=40)
    row = next(line for line in shown.splitlines() if line.startswith("*"))
    assert "149, 150, 151" in row and "149, -1, 151" in row and len(row) < 130


def test_an_exception_is_a_sort_of_difference_of_its_own() -> None:
    assert shrinking.kind_of("InvariantError: full pool: 3 + 4 != 8") == "InvariantError"
    assert shrinking.kind_of(".steps[3].kind: simkv 1, engine 2") == "values"


# ------------------------------------------------------------------------------------------------- the run
FAKE = """
import json, os, sys
with open(sys.argv[2]) as f, open(sys.argv[3], "w") as g:
    for n, line in enumerate(f):
        case = json.loads(line)
        if case["input"].get("kills") or (case["input"].get("spoilt") and n):
            g.write('{"name": ')
            g.flush()
            os._exit(3)
        case["result"] = {"answer": case["input"].get("n", 0)}
        g.write(json.dumps(case) + "\\n")
        g.flush()
"""


@pytest.fixture
def drivers(tmp_path: Path) -> Path:
    (tmp_path / "driver.py").write_text(FAKE)
    return tmp_path


def test_a_case_that_kills_the_engine_costs_itself_only(drivers: Path) -> None:
    cases = [{"name": str(n), "kind": "radix", "input": {"n": n}} for n in range(9)]
    cases[4]["input"]["kills"] = True
    cases[6]["input"]["spoilt"] = True  # dies unless it is the first of its process
    engine = Engine(sys.executable, together=4, drivers=drivers)
    assert [c["result"]["answer"] for c in engine.run(cases)] == [0, 1, 2, 3, 5, 6, 7, 8]
    assert engine.crashed == ["4"]


def test_an_engine_that_is_stopped_has_not_crashed(drivers: Path) -> None:
    (drivers / "driver.py").write_text("import time; time.sleep(60)")
    engine = Engine(sys.executable, drivers=drivers)
    Timer(0.3, engine.stop).start()
    assert list(engine.run([{"name": str(n), "kind": "radix", "input": {}} for n in range(50)])) == []
    assert engine.crashed == []


def test_an_engine_that_hangs_is_ended(drivers: Path) -> None:
    (drivers / "driver.py").write_text("import time; time.sleep(60)")
    engine = Engine(sys.executable, timeout=0.3, drivers=drivers)
    assert list(engine.run([{"name": "0", "kind": "radix", "input": {}}])) == []
    assert engine.crashed == ["0"] and "nothing more" in engine.said


def test_a_session_goes_on_after_a_crash(drivers: Path) -> None:
    with Session(sys.executable, "radix", together=3, drivers=drivers) as session:
        answers = [session.ask({"n": n, "kills": n == 4}) for n in range(8)]
        assert [a and a["result"]["answer"] for a in answers] == [0, 1, 2, 3, None, 5, 6, 7]


def test_a_session_does_not_wait_for_ever(drivers: Path) -> None:
    (drivers / "driver.py").write_text("import time; time.sleep(60)")
    with Session(sys.executable, "radix", timeout=0.2, drivers=drivers) as session:
        assert session.ask({}) is None


def test_a_run_finds_shrinks_and_reports(
    drivers: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """simkv is wrong about large numbers; the smallest such number is found."""
    monkeypatch.setattr(environment, "find", lambda build=False: Path(sys.executable))
    monkeypatch.setattr(live, "Engine", lambda python, **kw: Engine(python, drivers=drivers, **kw))
    made = {
        "radix": lambda seed, n: {"name": f"radix/{n}", "kind": "radix", "input": {"ops": [{"op": "match"}], "n": n}}
    }
    monkeypatch.setattr(random_cases, "KINDS", made)
    monkeypatch.setattr(run_cases, "KINDS", {"radix": (lambda d: {"answer": min(d["n"], 36)}, lambda result: result)})
    monkeypatch.setattr(live, "Session", lambda python, kind: Session(python, kind, drivers=drivers))
    families = (lambda d: iter([{**d, "n": d["n"] // 2}, {**d, "n": d["n"] - 1}]),)
    monkeypatch.setattr(
        live, "shrink", lambda case, differs, trials: shrinking.shrink(case, differs, families=families)
    )
    kept = tmp_path / "kept.jsonl"
    arguments = ["--seed", "5", "--schedules", "0", "--sizings", "0", "--operations"]
    assert live.main([*arguments, "20"]) == 0
    assert "radix: 20 equal" in capsys.readouterr().out
    assert live.main([*arguments, "90", "--keep", str(kept)]) == 1
    shown = capsys.readouterr().out
    assert "seed 5" in shown and "radix/37 differs" in shown and '"n":37}' in shown
    assert "* answer" in shown
    assert json.loads(kept.read_text())["result"] == {"answer": 37}


def test_without_an_environment_one_line_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("SIMKV_ORACLE", str(tmp_path / "none"))
    assert live.main([]) == 2
    assert live.main(["--if-possible"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and all(line.startswith("live comparison did not run: ") for line in lines)


def test_no_room_no_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SIMKV_ORACLE", str(tmp_path / "none"))
    monkeypatch.setattr(environment, "_base", lambda: sys.executable)
    monkeypatch.setattr(environment, "ROOM", 1 << 60)
    with pytest.raises(environment.Unavailable, match="GiB free"):
        environment.find(build=True)
    assert not (tmp_path / "none").exists()
