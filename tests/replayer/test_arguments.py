"""Arguments of :func:`simkv.replay`, and what it gives back."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from replay_cases import draft_trees, mtp, tensors
from report_cases import requests

import simkv
from simkv.errors import ScenarioError


def test_a_run_and_its_directory_replay_alike(tmp_path: Path) -> None:
    place = draft_trees().save(tmp_path / "run", figures=False)
    figures = []
    for run in (draft_trees(), place, str(place)):
        found = simkv.replay(run, device="cpu").to_dict()
        del found["seconds"], found["tokens_per_s"], found["peak_bytes"]
        figures.append(found)
    assert figures[0] == figures[1] == figures[2]


@pytest.mark.parametrize("scale", [0.5, "0.5", "1/2", Fraction(1, 2)])
def test_a_scale_can_be_written_in_many_ways(scale: Any) -> None:
    assert simkv.replay(draft_trees(), device="cpu", layers="1", scale=scale).scale == "1/2"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"device": "gpu"}, "device  'gpu' is not one of"),
        ({"layers": 2}, "layers  '2' is not one of"),
        ({"layers": None}, "layers  'None' is not one of"),
        ({"check": ""}, "check  '' is not one of"),
        ({"scale": 1.5}, "scale  1.5 is no share"),
        ({"scale": float("nan")}, "scale  nan is no share"),
        ({"scale": float("inf")}, "scale  inf is no share"),
        ({"scale": Fraction(0)}, r"scale  Fraction\(0, 1\) is no share"),
    ],
)
def test_a_wrong_argument_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        simkv.replay(draft_trees(), **arguments)


def test_a_plan_that_does_not_fit_is_scaled_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # 716,800 B of tensors, of which the mtp server's rows of 32 B may become 8 B.
    run = mtp()
    pools = run.plan["pools"]
    whole = sum(one["bytes"] for one in pools)
    monkeypatch.setattr("simkv.replayer.tensors.memory_free", lambda device: whole // 2)
    found = simkv.replay(run, device="cpu")
    assert (found.scale, found.allocated_bytes) == ("1/2", whole // 2)
    assert f"{whole:,} B of tensors become {whole // 2:,} B; rows are all there" in found.notes[0]
    with pytest.raises(
        ScenarioError, match=f"the tensors take {whole:,} B at 1 of their width, {whole // 2:,} B are to be had"
    ):
        simkv.replay(run, device="cpu", scale=1)
    monkeypatch.setattr("simkv.replayer.tensors.memory_free", lambda device: 1000)
    least = sum(one["rows"] * 8 * tensors(one) for one in pools)
    with pytest.raises(ScenarioError, match=f"{least:,} B at 1/1024 .* use --layers 1"):
        simkv.replay(run, device="cpu")


def test_progress_is_told_now_and_then() -> None:
    told: list[tuple[int, int]] = []
    run = draft_trees()
    simkv.replay(run, device="cpu", layers=1, progress=lambda done, total: told.append((done, total)))
    assert run.allocation_rows is not None
    assert {total for _, total in told} == {run.allocation_rows}
    done = [row for row, _ in told]
    assert done == sorted(set(done)) and done[0] > 0 and done[-1] <= run.allocation_rows
    assert len(told) == simkv.replay(run, device="cpu", layers=1).calls // 256


def test_a_replay_shows_itself_in_a_notebook() -> None:
    text = simkv.replay(draft_trees(), device="cpu", layers=1)._repr_html_()
    assert "everything matches" in text and "<table>" in text


def test_a_fault_that_loses_parts_of_pages_is_not_recorded() -> None:
    scenario = draft_trees().scenario
    faulty = scenario | {"policies": scenario["policies"] | {"faults": ["unaligned-reserve"]}}
    with pytest.raises(ScenarioError, match="policies.faults  unaligned-reserve loses parts of pages"):
        simkv.simulate(faulty, workload=requests([(5, 3)]), record_allocations=True)
