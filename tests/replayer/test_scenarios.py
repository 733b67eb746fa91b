"""Four servers whose every layer is replayed, with figures worked out from the traffic."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from typing import Any

import pytest
import torch
from replay_cases import (
    Row,
    cached_prefixes,
    draft_trees,
    held_pages,
    mtp,
    only_sliding,
    reads,
    recounted,
    rows_of,
    tensors,
)

import simkv
from simkv.replayer.tensors import PoolTensors, build_pools

RUNS = {"mtp": mtp, "draft trees": draft_trees, "cached prefixes": cached_prefixes, "only sliding": only_sliding}
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, CUDA])]

# Rows, page of padding included, x heads x (K + V) x 2 B x layers.
BYTES = {
    "mtp": {
        ("target", "full"): 1208 * 2 * (8 + 8) * 2 * 2,
        ("target", "swa"): 768 * 1 * (16 + 16) * 2 * 2,
        ("draft0", "swa"): 1208 * 1 * (16 + 16) * 2,
        ("draft1", "full"): 1208 * 2 * (8 + 8) * 2,
        ("draft2", "swa"): 1208 * 1 * (16 + 16) * 2,
    },
    "draft trees": {
        ("target", "full"): 1216 * 2 * (8 + 8) * 2 * 2,
        ("draft0", "full"): 1216 * 1 * (4 + 4) * 2,
    },
    "cached prefixes": {
        ("target", "full"): 404 * 1 * (8 + 8) * 2,
        ("target", "swa"): 204 * 1 * (8 + 8) * 2 * 2,
    },
    "only sliding": {("target", "swa"): 61 * 1 * (4 + 4) * 2 * 2},
}


def happened(run: simkv.Run) -> Counter[str]:
    """Operations of the log, and with their causes."""
    rows = rows_of(run)
    return Counter(row["operation"] for row in rows) + Counter(f"{row['operation']}: {row['cause']}" for row in rows)


def test_the_mtp_server_has_what_it_is_for() -> None:
    run, rows = mtp(), rows_of(mtp())
    depths = [(one["pool"], one["mapping"]) for one in run.plan["pools"] if one["worker"] != "target"]
    assert depths == [("swa", "identity"), ("full", "target"), ("swa", "identity")]
    chunks = Counter(row["request"] for row in rows if (row["operation"], row["cause"]) == ("compute", "prefill"))
    assert max(chunks.values()) >= -(-int(run.requests["input_tokens"].max()) // 64) > 2
    verified = [row for row in rows if (row["operation"], row["cause"]) == ("compute", "verify")]
    assert {row["kept"] for row in verified} == {1, 2, 3, 4}
    assert {row["end"] - row["begin"] for row in verified} == {4}
    assert happened(run)["free_swa: window"] > 0


def test_the_server_of_draft_trees_has_what_it_is_for() -> None:
    run, rows = draft_trees(), rows_of(draft_trees())
    verified = [row for row in rows if (row["operation"], row["cause"]) == ("compute", "verify")]
    assert {row["end"] - row["begin"] for row in verified} == {8}
    assert {1, 2, 3, 4} == {row["kept"] for row in verified}
    assert run.summary["requests.retractions"] == happened(run)["close: retraction"] > 0


def test_the_server_with_one_window_has_what_it_is_for() -> None:
    rows = rows_of(only_sliding())
    slid = {(slot, row["request"]) for row in rows if row["cause"] == "window" for slot in row["slots"]}
    given: dict[int, set[int]] = {}
    for row in rows:
        for slot in row["slots"] if row["operation"] == "allocate" else ():
            given.setdefault(slot, set()).add(row["request"])
    # What slid out of a window is another request's later.
    assert any(given[slot] - {request} for slot, request in slid)
    assert {row["operation"] for row in rows if row["cause"] == "finish"} == {"free", "close"}


def test_the_server_with_cached_prefixes_has_what_it_is_for() -> None:
    found = happened(cached_prefixes())
    kinds = ("hit", "move", "free: insert", "free_full: insert", "free_swa: window", "close: retraction")
    evictions = [
        f"{half}: room for {what}" for half in ("free", "free_full", "free_swa") for what in ("prefill", "decode")
    ]
    assert {kind for kind in (*kinds, *evictions) if not found[kind]} == set()


@pytest.mark.parametrize("name", RUNS)
def test_believed_counts_are_what_the_rows_take_and_give_back(name: str) -> None:
    run = RUNS[name]()
    rows = rows_of(run)
    assert recounted(run, rows) == rows
    # Every page is free again, but for those in the cache.
    if name != "cached prefixes":
        assert rows[-1]["full_available"] == rows[0]["full_available"]


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("device", DEVICES)
def test_every_layer_matches_and_every_figure_is_right(name: str, device: str) -> None:
    run = RUNS[name]()
    rows = rows_of(run)
    found = simkv.replay(run, device=device, check="every")
    pools = {(one["worker"], one["pool"]): one for one in run.plan["pools"]}
    assert {key: one["bytes"] for key, one in pools.items()} == BYTES[name]
    assert {(one.worker, one.pool): one.allocated_bytes for one in found.pools} == BYTES[name]
    assert {(one.worker, one.pool): one.layers for one in found.pools} == {
        key: one["layers"] for key, one in pools.items()
    }
    assert (found.planned_bytes, found.allocated_bytes) == (sum(BYTES[name].values()),) * 2
    # Prompts, and the width of a verify step for each of its requests.
    steps, width = run.timeline, {"mtp": 4, "draft trees": 8}.get(name, 1)
    decoded = steps.loc[steps["kind"] == "decode", "batch_size"].sum() * width
    assert found.tokens_written == steps["prefill_tokens"].sum() + decoded
    assert found.steps == steps["kind"].isin(["prefill", "decode"]).sum()
    assert found.tags_written == found.tokens_written * sum(map(tensors, pools.values()))
    assert found.tags_read == sum(reads(rows, one["window"]) * tensors(one) for one in pools.values())
    if name in ("cached prefixes", "only sliding"):
        # Without speculation a slot is for a token that is computed.
        assert found.slots_allocated == found.tokens_written
    else:
        assert found.slots_allocated == sum(len(row["slots"]) for row in rows if row["operation"] == "allocate")
    if name != "cached prefixes":
        assert found.slots_freed == held_pages(run, rows)
    assert (found.layers, found.scale, found.check, found.device) == ("all", "1", "every", device)
    assert found.requests == len(run.requests) and found.calls == rows[-1]["call"] + 1
    assert (found.measured_bytes is None) == (device == "cpu")
    if found.measured_bytes is not None:
        # A tensor is rounded up to 512 B.
        count = sum(map(tensors, pools.values()))
        assert 0 <= found.measured_bytes - found.allocated_bytes < 512 * count


def test_memory_is_given_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[torch.Tensor]] = []

    def build(*arguments: Any) -> list[PoolTensors]:
        pools = build_pools(*arguments)
        made.extend(weakref.ref(tensor.data) for pool in pools for tensor in pool.tensors)
        return pools

    monkeypatch.setattr("simkv.replayer.tensors.build_pools", build)
    gc.collect()
    gc.disable()
    try:
        simkv.replay(mtp(), device="cpu")
        # Nothing waits for the garbage collector: the next replay finds the memory.
        assert made and [one for one in made if one() is not None] == []
    finally:
        gc.enable()


def last_steps(rows: list[Row]) -> set[int]:
    """Rows of the last step of each request before its row is closed."""
    last: dict[int, int] = {}
    found = set()
    for number, row in enumerate(rows):
        if row["operation"] == "compute":
            last[row["request"]] = number
        elif row["operation"] == "close":
            found.add(last.pop(row["request"]))
    return found | set(last.values())


@pytest.mark.parametrize("name", RUNS)
def test_one_layer_of_each_pool_is_enough_to_follow_every_slot(name: str) -> None:
    run = RUNS[name]()
    rows = rows_of(run)
    found = simkv.replay(run, device="cpu", layers=1, check="end")
    pools = run.plan["pools"]
    assert {one.layers for one in found.pools} == {1}
    assert found.allocated_bytes == sum(one["bytes"] // one["layers"] for one in pools)
    assert found.planned_bytes == sum(one["bytes"] for one in pools)
    compared = [rows[number] for number in last_steps(rows)]
    assert found.tags_read == sum(reads(compared, one["window"]) * 2 for one in pools)


@pytest.mark.parametrize(("scale", "row"), [("1/2", 16), (0.25, 8), ("1/16", 8)])
def test_scaled_tensors_keep_all_rows_and_match(scale: str | float, row: int) -> None:
    # A row of two heads of 8, or one of 16, has 32 B in bf16: heads go first, then widths, down to the 8 B of a tag.
    run = mtp()
    rows = rows_of(run)
    found = simkv.replay(run, device="cpu", layers=1, scale=scale, check="sample")
    assert [one.rows for one in found.pools] == [one["rows"] for one in run.plan["pools"]]
    assert {one.allocated_bytes // one.rows for one in found.pools} == {2 * row}
    last = last_steps(rows)
    compared = [
        one
        for number, one in enumerate(rows)
        if one["operation"] == "compute" and (one["step"] % 16 == 0 or number in last)
    ]
    assert len(last) < len(compared) < sum(one["operation"] == "compute" for one in rows)
    assert found.tags_read == sum(reads(compared, one["window"]) * 2 for one in run.plan["pools"])
    assert any("rows are all there" in note for note in found.notes)
