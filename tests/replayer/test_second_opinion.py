"""Replays whose slots come from the engine's own allocators, where its package is installed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tiny import EAGLE, TINY, scenario, workload

import simkv
from simkv.cli import main
from simkv.errors import ReplayMismatch, ScenarioError
from simkv.results import Run
from simkv.workload.request import Workload
from simkv.workload.tokens import Contents

torch = pytest.importorskip("torch")

from simkv.replayer import replay, sglang  # noqa: E402
from simkv.replayer.slots import OutOfSlots  # noqa: E402

needs_engine = pytest.mark.skipif(
    find_spec("sglang") is None,
    reason="sglang is not installed beside simkv; make conformance asks the engine elsewhere",
)


# ------------------------------------------------------------------------------------------------- runs
def sharing(seed: int, longest: int, outputs: int, count: int = 16) -> Workload:
    """Requests within 0.3 s whose prompts begin with one of three texts."""
    rng = np.random.default_rng(seed)
    arrival = np.sort(rng.uniform(0, 300, count))
    common, own = rng.integers(longest // 3, longest, count), rng.integers(1, longest // 3, count)
    starts = np.stack([1000 * rng.integers(0, 3, count), 100_000 + 1000 * np.arange(count)], axis=1)
    contents = Contents(starts.ravel(), np.stack([common, own], axis=1).ravel(), 2 * np.arange(count + 1))
    rows = zip(arrival, common + own, rng.integers(1, outputs, count), strict=True)
    return workload([(float(at), int(inputs), int(answer)) for at, inputs, answer in rows], contents=contents)


def recorded(layers: Sequence[str], page: int, seed: int, *, tokens: int, cache: bool = True) -> Run:
    """A run of a model of such layers, speculating, in pools that are too small for it."""
    full = layers.count("full")
    config = TINY | {
        "num_hidden_layers": len(layers),
        "layer_types": [f"{kind}_attention" for kind in layers],
        "sliding_window": 24,
        "is_hybrid_swa": full < len(layers),
    }
    split = 0 < full < len(layers)
    # A layer takes 256 B a token; of a split, the pool for sliding layers has half as many.
    wide = full + (len(layers) - full) / (2 if split else 1)
    one = scenario(
        model={"config": config} if full < len(layers) else {},
        overlap=True,
        memory={
            "kv_bytes": int(256 * tokens * wide),
            "page_size": page,
            "chunked_prefill_size": 64 * page,
            "disable_radix_cache": not cache,
            "swa_eviction_interval": 8,
            **({"swa_full_tokens_ratio": 0.5} if split else {}),
        },
        draft=EAGLE,
        acceptance={"kind": "geometric", "alpha": 0.6},
        policies={"schedule_conservativeness": 0.01, "engine_faults": "repair"},
    )
    work = sharing(seed, 180 if page == 64 else 90, 150 if page > 1 else 60)
    run = simkv.simulate(one, workload=work, record_allocations=True)
    assert run.summary["requests.completed"] == 16
    return run


def column(run: Run, name: str) -> list[Any]:
    assert run.allocations is not None
    found: list[Any] = run.allocations[name].to_pylist()
    return found


def edited(run: Run, rows: list[dict[str, Any]]) -> Run:
    """The run with another log."""
    assert run.allocations is not None
    return replace(run, allocations=pa.Table.from_pylist(rows, run.allocations.schema), allocation_rows=len(rows))


# ------------------------------------------------------------------------------------------------- with the engine
KINDS = {
    "full": (["full"], 1, 350),
    "full, pages of 16": (["full"], 16, 800),
    "split": (["sliding", "full"], 1, 350),
    "split, pages of 16": (["sliding", "full"], 16, 1050),
    "split, pages of 64": (["sliding", "full"], 64, 2800),
    "sliding": (["sliding"], 1, 350),
}


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine looks at every call: pages free twice, last slots, peers that are gone or would be lost."""
    monkeypatch.setenv("SGLANG_DEBUG_MEMORY_POOL", "1")
    monkeypatch.setenv("SGLANG_INVARIANT_CHECK", "2")


@needs_engine
@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("kind", KINDS)
def test_the_engines_allocators_hand_out_the_slots_of_the_log(kind: str) -> None:
    layers, page, tokens = KINDS[kind]
    did: Counter[str] = Counter()
    for seed in range(3):
        run = recorded(layers, page, seed, tokens=tokens)
        operations = column(run, "operation")
        did.update(operations)
        did.update(column(run, "cause"))
        found = replay(run, device="cpu", engine="sglang")
        slots = zip(operations, column(run, "slots"), strict=True)
        assert found.engine == "sglang"
        assert found.slots_allocated == sum(len(ids) for operation, ids in slots if operation == "allocate") > 900
    # What the runs are for: hits, speculation, eviction, retraction; windows that slide; tombstones that come to life.
    assert all(did[what] for what in ("hit", "verify", "room for prefill", "retraction", "end_group", "free"))
    assert bool(did["window"]) == ("sliding" in layers)
    assert bool(did["move"]) == (len(layers) == 2)


@needs_engine
@pytest.mark.parametrize("kind", KINDS)
def test_a_swapped_slot_is_found_by_the_engines_allocator(kind: str) -> None:
    layers, page, tokens = KINDS[kind]
    run = recorded(layers, page, 0, tokens=tokens)
    assert run.allocations is not None
    rows = run.allocations.to_pylist()
    at = [n for n, row in enumerate(rows) if row["operation"] == "allocate" and len(row["slots"]) > 1][-1]
    slots = rows[at]["slots"]
    slots[0], slots[1] = slots[1], slots[0]
    says = f"slot of request .* token {rows[at]['begin']:,}: the log says {slots[0]:,}, the allocator hands out {slots[1]:,}"
    with pytest.raises(ReplayMismatch, match=says):
        replay(edited(run, rows), device="cpu", engine="sglang")


@needs_engine
def test_what_the_engine_refuses_is_a_mismatch_in_our_words() -> None:
    # Everything is free, and the last slots are freed again: the engine's pool would have more than it ever had.
    run = recorded(["sliding", "full"], 1, 0, tokens=1000, cache=False)
    assert run.allocations is not None
    rows = run.allocations.to_pylist()
    end = rows[-1]
    sizes = (run.plan["full_max_total_num_tokens"], run.plan["swa_max_total_num_tokens"])
    assert (end["full_available"], end["swa_available"]) == sizes
    last = max(n for n, row in enumerate(rows) if row["operation"] == "free")
    rows.append(end | {name: rows[last][name] for name in ("operation", "slots")} | {"call": end["call"] + 1})
    with pytest.raises(ReplayMismatch, match=f"slot {rows[last]['slots'][0]:,} is freed twice"):
        replay(edited(run, rows), device="cpu", engine="sglang")


# ------------------------------------------------------------------------------------------------- without it
class Calls:
    """Stands for the engine's allocator: five pages of 4, of which it says what it was asked."""

    def __init__(self) -> None:
        self.free, self.pending, self.asked = 20, 0, [""]

    def available_size(self) -> int:
        return self.free

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            self.asked.append(name)
            if name.startswith("alloc"):
                count = int(arguments[-1]) if name == "alloc_extend" else len(arguments[0])
                return None if count > self.free else torch.arange(4, 4 + count)
            if name == "free_group_end":
                self.free += self.pending
            return self.pending

        return call


def test_what_an_open_group_holds_back_is_counted_as_free() -> None:
    engine = Calls()
    slots = sglang.EngineSlots(engine, full=True, swa=False, page=4)
    engine.free, engine.pending = 8, 12
    assert slots.counts == (8, -1)
    slots.begin_group()
    slots.free(torch.arange(4, 9))  # five tokens: two pages
    assert slots.counts == (8 + 8, -1)
    slots.free_full(torch.arange(12, 16))
    assert slots.counts == (8 + 8 + 4, -1)
    slots.end_group()
    assert slots.counts == (20, -1)
    # Outside a group the engine alone counts.
    slots.free(torch.arange(4, 8))
    assert slots.counts == (20, -1)


def test_rows_that_grow_by_a_token_are_decoded_others_extended() -> None:
    engine = Calls()
    slots = sglang.EngineSlots(engine, full=True, swa=False, page=4)
    last = torch.tensor([7, 11])
    slots.extend(np.array([4, 8]), np.array([5, 9]), last)
    slots.extend(np.array([4, 8]), np.array([5, 10]), last)
    assert engine.asked[1:] == ["alloc_decode", "alloc_extend"]
    with pytest.raises(OutOfSlots):
        slots.extend(np.array([0]), np.array([21]), torch.tensor([-1]))


@pytest.mark.parametrize(("installed", "why"), [(None, "sglang"), ("0.6.1", "0.6.1 is installed")])
def test_without_the_engine_one_problem_says_what_to_do(
    installed: str | None,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def version(name: str) -> str:
        if installed is None:
            raise PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(sglang, "version", version)
    monkeypatch.setattr(Run, "_save_figures", lambda self, directory: directory.mkdir())
    run = simkv.simulate(scenario(), workload=workload([(0, 20, 3)]), record_allocations=True)
    with pytest.raises(ScenarioError, match="sglang 0.5.23 cannot be imported") as caught:
        replay(run, device="cpu", engine="sglang")
    (problem,) = caught.value.problems
    assert (problem.place, caught.value.exit_code) == ("engine", 2)
    assert why in problem.message and "leave --engine out" in problem.message
    run.save(tmp_path / "run")
    assert main(["replay", str(tmp_path / "run"), "--device", "cpu", "--engine", "sglang"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and "sglang 0.5.23 cannot be imported" in " ".join(said.err.split())
