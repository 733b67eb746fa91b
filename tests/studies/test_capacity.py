"""Capacity: answers that a closed form knows, words that say what breaks, input that is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from report_cases import model, requests

import simkv
from simkv.cli import main
from simkv.errors import ScenarioError
from simkv.studies.knobs import parse_checks, parse_range

PRICE = 2 * 4 * 64


def crowd(tokens: int = 2048, page: int = 1, prompt: int = 40, answer: int = 60, **memory: Any) -> dict[str, Any]:
    """Clients that all ask for the same, let in without regard to what the others will still need."""
    return {
        "name": "crowd",
        "model": {"config": model("FF")},
        "memory": {"kv_bytes": tokens * PRICE, "page_size": page, "chunked_prefill_size": 8192} | memory,
        "policies": {"schedule_conservativeness": 0.0},
        "workload": {
            "kind": "closed",
            "concurrency": 4,
            "num_requests": 64,
            "input_tokens": prompt,
            "output_tokens": answer,
        },
        "checks": {"requests.retracted": "== 0"},
    }


@pytest.mark.parametrize(("page", "prompt", "answer"), [(1, 40, 60), (16, 50, 100), (16, 20, 200)])
def test_concurrency_is_what_the_pool_divided_by_a_request_gives(page: int, prompt: int, answer: int) -> None:
    found = simkv.capacity(crowd(2048, page, prompt, answer), "concurrency", range=(1, 30), seeds=1)
    each = -(-(prompt + answer - 1) // page) * page
    assert found.value == 2048 // each
    assert found.beyond_value == found.value + 1
    assert found.monotone and found.goal == "largest" and found.exit_code == 0
    assert found.at is not None and found.at.summary["requests.retracted"] == 0
    assert found.beyond is not None and found.beyond.summary["requests.retracted"] > 0
    said = "\n".join(found.words)
    assert f"workload.concurrency can be {found.value} at most" in said
    assert f"holds {found.value} requests of the mean length {prompt} + {answer}" in said
    assert "in the full pool: decode step short of full-pool tokens" in said


def test_the_smallest_budget_is_the_other_side() -> None:
    base = crowd(4096)
    base["workload"] |= {"concurrency": 10}
    base["checks"] = {"num_queue_reqs.peak": "== 0"}
    found = simkv.capacity(base, "memory.kv_bytes", range=(200 * PRICE, 4096 * PRICE), seeds=1, tolerance=0.0001)
    # Ten prompts of 40 that ask for 60 are admitted at once while 40 + 60 + 1 < what the others, each charged the same,
    # leave: from 10 x 101 + 1 tokens on.
    assert found.goal == "smallest"
    assert 1011 * PRICE <= found.value < 1012 * PRICE
    assert found.beyond_value is not None and found.beyond_value < 1011 * PRICE


def test_a_server_that_does_not_start_is_a_value_that_fails() -> None:
    # R16: 4,096 tokens in pages of 256 with a window of 128 start from a ratio of 0.125 on (two pages), and admit nobody
    # before 0.1875: a prompt of one page needs 128 + 128 + 256 tokens and one more, so three pages.
    scenario = {
        "model": {"config": model("FS", window=128), "hybrid_swa": True, "cache_window": 128},
        "memory": {"kv_bytes": 1 << 40, "max_total_tokens": 4096, "page_size": 256, "chunked_prefill_size": 2048},
        "workload": {"kind": "closed", "concurrency": 1, "num_requests": 2, "input_tokens": 10, "output_tokens": 10},
    }
    found = simkv.capacity(scenario, "swa_full_tokens_ratio", seeds=1)
    assert found.goal == "smallest"
    assert 0.1875 <= found.value < 0.19
    states = found.frame.set_index("value")["state"]
    assert (states[states.index < 0.125] == "infeasible").all()
    assert (states[(states.index >= 0.125) & (states.index < 0.1875)] == "engine fault").all()
    why = found.frame["why"].iloc[0]
    assert "no request is ever admitted unless it holds more than window + page" in why
    assert found.checks == {"requests.refused": "== 0", "requests.aborted": "== 0", "requests.retracted": "== 0"}


def two_sided() -> dict[str, Any]:
    """Too small a ratio leaves the SWA pool short, too large a one the full pool."""
    scenario = crowd(prompt=60, answer=200)
    scenario["model"] = {"config": model("FSSS", window=32), "hybrid_swa": True, "cache_window": 32}
    scenario["memory"] = {
        "kv_bytes": 6000 * 4 * 64,
        "page_size": 4,
        "swa_eviction_interval": 16,
        "chunked_prefill_size": 64,
    }
    scenario["workload"] |= {"concurrency": 10, "num_requests": 14}
    return scenario


def test_an_outcome_with_two_sides_is_scanned_and_said() -> None:
    found = simkv.capacity(two_sided(), "swa_full_tokens_ratio", range="0.02:1", seeds=1, tolerance=0.02)
    assert not found.monotone
    held = found.frame.set_index("value")["holds"]
    assert not held.iloc[0] and not held.iloc[-1] and held.any()
    assert found.value == held[held].index.max()
    line = next(line for line in found.words if line.startswith("not monotone"))
    assert f"{found.intervals[0][0]:g} to" in line
    # Below it is the SWA pool that is short, above it the full one.
    least = simkv.capacity(
        two_sided(), "swa_full_tokens_ratio", range="0.02:1", seeds=1, tolerance=0.02, goal="smallest"
    )
    assert least.value == held[held].index.min()
    assert any("in the SWA pool" in line for line in least.words)
    assert any("in the full pool" in line for line in found.words)


def poisson() -> dict[str, Any]:
    scenario = crowd()
    scenario["workload"] = {
        "kind": "poisson",
        "rate": 4.0,
        "num_requests": 30,
        "input_tokens": {"kind": "uniform", "min": 20, "max": 80},
        "output_tokens": {"kind": "uniform", "min": 20, "max": 120},
    }
    return scenario


def test_seeds_give_an_interval_and_the_answer_holds_with_all() -> None:
    found = simkv.capacity(poisson(), "rate", seeds=[3, 4, 5])
    assert set(found.per_seed) == {3, 4, 5}
    alone = {seed: simkv.capacity(poisson(), "rate", seeds=[seed]).value for seed in (3, 4, 5)}
    assert found.monotone
    assert found.per_seed == alone
    assert found.value == min(alone.values())
    at = found.frame[found.frame["value"] == found.value]
    assert sorted(at["seed"]) == [3, 4, 5] and at["holds"].all()
    spread = f"{min(found.per_seed.values()):,.6g} to {max(found.per_seed.values()):,.6g}"
    assert any(f"over 3 seeds the largest is {spread}" in line for line in found.words)
    assert found.spread == (0.5, 32.0)


def test_requests_given_in_python_are_the_ones_that_are_reckoned_with() -> None:
    work = requests([(50, 30)] * 20)
    found = simkv.capacity(crowd(), "max_running_requests", range=(1, 12), seeds=1, workload=work)
    assert any("requests of the mean length 50 + 30" in line for line in found.words)
    with pytest.raises(ScenarioError, match="has no effect: workload is given in Python"):
        simkv.capacity(crowd(), "concurrency", range=(1, 6), workload=work)


class Slower:
    """A step time that remembers how often it was asked: each copy begins anew."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, work: object) -> tuple[int, int]:
        self.asked += 1
        return 0, 1_000_000 + self.asked


def test_policies_of_ones_own_are_left_as_they_were() -> None:
    policy = Slower()
    both = [
        simkv.capacity(crowd(), "concurrency", range=(10, 30), seeds=1, steptime=policy).to_dict() for _ in range(2)
    ]
    assert policy.asked == 0
    assert both[0] == both[1]


def test_the_direction_is_that_of_every_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    from simkv.studies import capacity as module
    from simkv.studies.point import PointResult

    def answers(base: Any, points: Any, **_: Any) -> Any:
        for point in points:
            made = dict(point.changes)
            # The first seed holds everywhere, the second one from 20 on.
            good = made["seed"] == 0 or made["workload.concurrency"] >= 20
            yield PointResult(point.index, "ok" if good else "check failed", summary={"requests.retracted": 0})

    monkeypatch.setattr(module, "run_points", answers)
    found = simkv.capacity(crowd(), "concurrency", range=(1, 64), seeds=2)
    assert (found.goal, found.value, found.beyond_value) == ("smallest", 20, 19)


def test_a_knob_without_effect_is_told() -> None:
    found = simkv.capacity(crowd(), "memory.swa_full_tokens_ratio", range=(0.1, 1), seeds=1)
    assert "no figure changes with it: memory.swa_full_tokens_ratio has no effect here" in found.words


def test_processes_make_no_difference() -> None:
    one = simkv.capacity(poisson(), "rate", seeds=2, n_jobs=1)
    two = simkv.capacity(poisson(), "rate", seeds=2, n_jobs=2)
    assert one.to_dict() == two.to_dict()
    pd.testing.assert_frame_equal(one.frame, two.frame)


def test_where_nothing_holds_the_easier_end_is_told() -> None:
    never = crowd(prompt=400, tokens=300) | {"checks": {"requests.refused": "== 0"}}
    found = simkv.capacity(never, "concurrency", range=(2, 5), seeds=1)
    assert found.value is None and found.exit_code == 1
    assert found.words[0].startswith("no workload.concurrency from 2 to 5 will do")
    assert found.beyond_value == 2


def test_where_everything_holds_the_end_is_no_answer_of_the_server() -> None:
    found = simkv.capacity(crowd(), "concurrency", range=(1, 5), seeds=1)
    assert found.value == 5 and found.beyond_value is None
    assert any("a wider --range may find more" in line for line in found.words)


# ------------------------------------------------------------------------------------------------- input
@pytest.mark.parametrize(
    ("knob", "more", "told"),
    [
        ("memory.page_siez", {"range": (1, 64)}, "did you mean page_size"),
        ("memory.page_size", {}, "is needed for memory.page_size: first:last"),
        ("concurrency", {"range": (5, 5)}, "is not a range such as 1:64"),
        ("concurrency", {"range": "5"}, "is not a range such as 1:64"),
        ("concurrency", {"range": "a:b"}, "is not a range such as 1:64"),
        ("concurrency", {"range": (1, float("inf"))}, "is not a range such as 1:64"),
        ("concurrency", {"range": (1.5, 4)}, "takes integers only"),
        ("concurrency", {"until": "requests.retracted"}, "is not a check such as"),
        ("concurrency", {"until": ["requests.retracted == many"]}, "is not a check such as"),
        ("concurrency", {"until": "requests.retrated == 0"}, "no such figure; did you mean requests.retracted"),
        ("concurrency", {"goal": "best"}, "'best' is not one of largest, smallest"),
        ("concurrency", {"seeds": 0}, "is neither how many seeds"),
        ("concurrency", {"seeds": [1, 1]}, "is neither how many seeds"),
        ("concurrency", {"seeds": True}, "is neither how many seeds"),
        ("concurrency", {"tolerance": 0}, "is not in (0, 1)"),
        ("name", {"range": (1, 4)}, "name"),
        ("seed", {"range": (1, 4)}, "is no knob"),
        ("workload.nosuch", {}, "unknown key"),
        ("swa_full_tokens_ratio", {"range": (0, 1)}, "0 is not in (0, 1]"),
        ("concurrency", {"range": (0, 8)}, "0 is not"),
        ("concurrency", {"n_jobs": 100_000}, "integer from 1 to"),
        ("rate_scale", {}, "rate_scale"),
    ],
)
def test_wrong_input_is_told_before_anything_runs(
    knob: str, more: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("something ran")

    monkeypatch.setattr("simkv.studies.parcel.simulate", never)
    with pytest.raises(ScenarioError) as caught:
        simkv.capacity(crowd(), knob, **more)
    assert told in str(caught.value)


def test_a_trace_that_is_not_there_is_the_scenarios_fault() -> None:
    scenario = crowd() | {"workload": {"trace": "nowhere.csv"}}
    with pytest.raises(ScenarioError, match=r"no value of it can be run: .*nowhere\.csv"):
        simkv.capacity(scenario, "max_running_requests", range=(1, 4), seeds=1)


def test_texts_of_checks_and_ranges() -> None:
    assert parse_checks(["a.b <= 0.5", "c==1"]) == {"a.b": "<= 0.5", "c": "==1"}
    assert parse_range("0.1:2") == (0.1, 2)
    assert parse_range((1, 3)) == (1, 3)


# ------------------------------------------------------------------------------------------------- command
def written(tmp_path: Path) -> str:
    path = tmp_path / "crowd.toml"
    path.write_text(
        """
        name = "crowd"
        model.config = "llama-3.1-8b"
        policies.schedule_conservativeness = 0.0
        [memory]
        kv_bytes = "256MiB"
        page_size = 16
        chunked_prefill_size = 8192
        [workload]
        kind = "closed"
        concurrency = 4
        num_requests = 24
        input_tokens = 50
        output_tokens = 100
        """
    )
    return str(path)


def test_the_command_says_it_and_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["capacity", written(tmp_path), "--knob", "concurrency", "--range", "1:30", "--seeds", "1", "--jobs", "1"]
    out = tmp_path / "study"
    assert main([*words, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    # 256 MiB of 131,072 B are 2,048 tokens; a request takes ten pages of 16.
    assert "workload.concurrency can be 12 at most, 3 times the scenario's 4" in said
    assert {path.name for path in out.iterdir()} == {"capacity.json", "points.parquet", "curve.png"}
    shown = json.loads((out / "capacity.json").read_text())
    assert (shown["value"], shown["fails_at"], shown["range"]) == (12, 13, [1, 30])
    before = (out / "capacity.json").read_bytes(), (out / "curve.png").read_bytes()
    assert main([*words, "--out", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main([*words, "--out", str(out), "--force"]) == 0
    assert before == ((out / "capacity.json").read_bytes(), (out / "curve.png").read_bytes())
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == shown
    assert main([*words[:5], "13:30", "--seeds", "1", "--jobs", "1"]) == 1


def test_the_curve_shows_what_holds_what_fails_and_what_never_ran() -> None:
    frame = pd.DataFrame(
        {
            "value": [1.0, 2.0, 4.0, 8.0, 8.0],
            "seed": [1, 1, 1, 1, 2],
            "holds": [False, True, True, False, False],
            "requests.retracted": [None, 0, 0, 5, 7],
        }
    )
    from simkv.plotting.capacity import curve

    figure = curve(frame, "workload.rate", {"requests.retracted": "== 0"}, value=4.0)
    (ax,) = figure.axes
    drawn = {part.get_label(): part.get_offsets().tolist() for part in ax.collections}
    assert drawn["all checks hold"] == [[2, 0], [4, 0]]
    assert drawn["a check fails"] == [[8, 5], [8, 7]]
    assert [x for x, _ in drawn["would not start, or breaks"]] == [1]
    mean = next(line for line in ax.lines if line.get_label() == "mean over seeds")
    assert mean.get_xydata().tolist() == [[2, 0], [4, 0], [8, 6]]
    assert any(line.get_label() == "answer: 4" for line in ax.lines)
    assert ax.get_xlabel() == "workload.rate"
