"""Faults planted in a log or its plan, each found by the check that is made for it.

Numbers of calls and believed counts are made to agree with the planted rows, so that nothing but memory itself tells.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from replay_cases import (
    Row,
    cached_prefixes,
    draft_trees,
    edited,
    find,
    mismatch,
    mtp,
    planned,
    planted,
    recorded,
    rows_of,
    server,
    sharing,
)
from report_cases import model, requests

import simkv
from simkv.engines.sglang.memory import KvMemory
from simkv.replayer.slots import TorchSlots
from simkv.replayer.steps import Steps
from simkv.replayer.tensors import KvTensor

LITTLE: dict[str, Any] = {
    "page_size": 1,
    "chunked_prefill_size": 8,
    "max_running_requests": 4,
    "swa_eviction_interval": 2,
}
# r0 is prefilled in chunks of 8 and 2, the second beside r1; r1 ends in step 3, r0 in step 8.
TWO = [(10, 8), (6, 3)]


def windowed_run(**memory: Any) -> simkv.Run:
    return recorded(server(model("FS", window=4, head_dim=4), 100, memory=LITTLE | memory), requests(TWO))


@cache
def windowed() -> simkv.Run:
    """A window of four tokens, and so much room that no slot is used twice."""
    return windowed_run()


@cache
def dense(tokens: int = 100) -> simkv.Run:
    """A model that keeps everything."""
    return recorded(server(model("F", head_dim=4), tokens, memory=LITTLE), requests(TWO))


@cache
def cached(pattern: str = "FS") -> simkv.Run:
    """Three prompts one after the other; the first two begin alike, and room must be made for the third.

    With a sliding side the second computes the shared tokens again, as their SWA halves are gone, and the cache gets
    the slots it lacks.
    """
    window = 4 if "S" in pattern else None
    memory = LITTLE | {"chunked_prefill_size": 64, "disable_radix_cache": False, "swa_full_tokens_ratio": 0.5}
    scenario = server(model(pattern, window=window, head_dim=4), 60 if window else 40, memory=memory)
    made = requests([(20, 2), (12, 2), (24, 2)], arrival_s=[0, 0.1, 0.2])
    return recorded(scenario, sharing(made, [(1000, 20), (1000, 9), (5000, 24)]))


def without(run: simkv.Run, number: int) -> simkv.Run:
    """The run without a row, as if its author had never done that."""
    rows = rows_of(run)
    return planted(run, rows[:number] + rows[number + 1 :])


def inserted(run: simkv.Run, number: int, row: Row) -> simkv.Run:
    """The run with a call more, in front of a row."""
    rows = rows_of(run)
    return planted(run, [*rows[:number], row | {"call": None}, *rows[number:]])


def changed(run: simkv.Run, number: int, **columns: Any) -> simkv.Run:
    """The run with other columns in a row."""
    rows = rows_of(run)
    return planted(run, [row | columns if at == number else row for at, row in enumerate(rows)])


@pytest.mark.parametrize("run", [windowed, dense, cached, mtp, cached_prefixes])
def test_a_log_that_is_taken_apart_and_put_together_is_the_same(run: Any) -> None:
    again = planted(run(), rows_of(run()))
    assert rows_of(again) == rows_of(run())
    simkv.replay(again, device="cpu", layers=1)


# Frees -------------------------------------------------------------------------------------------------------------
def test_a_double_free() -> None:
    rows = rows_of(dense())
    at = find(rows, "free", request=1)
    # r1 follows on the 10 tokens of r0.
    assert rows[at]["slots"][0] == 11
    mismatch(
        inserted(dense(), at + 1, rows[at]),
        "slot 11 is freed twice",
        "the last operations on slot 11:",
        "    step 1: allocate (prefill), request 'r1' tokens [0, 6)",
        f"at step 3: free (finish), request 'r1' tokens [0, 8) (row {at + 1} of the log)",
    )


def test_a_slot_that_is_named_twice_in_one_free() -> None:
    rows = rows_of(dense())
    at = find(rows, "free", request=1)
    mismatch(changed(dense(), at, slots=[*rows[at]["slots"], 12]), "101 slots are free and 0 in use: -1 are lost")


def test_slots_that_are_freed_while_they_are_read() -> None:
    rows = rows_of(dense())
    at = find(rows, "compute", request=0, begin=11)
    loss = rows[at] | {"operation": "free", "cause": "abort", "slots": [3], "begin": 2, "end": 3}
    mismatch(
        inserted(dense(), at, loss),
        "target full pool, layer 0, K: request 'r0' reads token 2 from slot 3",
        "  expected: request 'r0' token 2",
        "  found:    freed memory (step 3: free (abort), request 'r0' tokens [2, 3))",
        "the last operations on slot 3:",
        "at step 3: compute (decode), request 'r0' tokens [11, 12)",
    )


def test_slots_that_are_freed_in_another_order_than_their_page_has_them() -> None:
    rows = rows_of(draft_trees())
    at = find(rows, "free")
    one, two, *rest = rows[at]["slots"]
    mismatch(
        changed(draft_trees(), at, slots=[one, two + 1, *rest]),
        f"slot {two + 1} is freed at a place that is not its own in the page",
    )


def test_lost_slots() -> None:
    mismatch(
        without(dense(), find(rows_of(dense()), "free", request=1)),
        "request 'r1' ends, and its slot 11 (token 0) is lost: nobody gave it back",
        "the last operations on slot 11:",
        "at step 3: close (finish), request 'r1'",
    )


def test_lost_slots_of_tokens_that_the_cache_has_already() -> None:
    rows = rows_of(cached())
    at = find(rows, "free_full", cause="insert", request=1)
    assert rows[at]["slots"] == [22, 23, 24, 25]
    mismatch(
        without(cached(), at),
        "slot 22 is lost: its row gets slot 1 of the cache, and nobody gave it back",
        "at step 3: insert (insert), request 'r1' tokens [0, 9)",
    )


def test_a_window_eviction_that_is_dropped() -> None:
    rows = rows_of(windowed())
    at = find(rows, "free_swa", cause="window", request=1)
    assert rows[at]["slots"] == [11, 12, 13]
    mismatch(
        without(windowed(), at),
        "slot 11 is freed on the full side only, and its SWA half is lost",
        "the last operations on slot 11:",
        "at step 3: free_full (finish), request 'r1' tokens [0, 3)",
    )
    # Whoever believes that it happened has three slots more than there are.
    mismatch(
        edited(windowed(), rows[:at] + rows[at + 1 :]),
        "free count of the swa pool: the log says 33, 30 slots are free",
        "at step 3: end_group",
    )


@pytest.mark.parametrize(
    ("pattern", "operation"), [("F", "free"), ("FS", "free_swa")], ids=["of a leaf", "of SWA halves"]
)
def test_a_tree_eviction_that_is_dropped(pattern: str, operation: str) -> None:
    rows = rows_of(cached(pattern))
    # r2 needs all the room that is made for it, so the last eviction is missed at once.
    at = find(rows, operation, -1, cause="room for prefill")
    mismatch(
        without(cached(pattern), at),
        "more slots are allocated than are free",
        "at step 6: allocate (prefill), request 'r2' tokens [0, 24)",
    )


@pytest.mark.parametrize("page", [1, 4])
def test_an_eviction_a_page_too_far(page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    build = KvMemory.__init__

    def hasty(self: KvMemory, *args: Any, **more: Any) -> None:
        build(self, *args, **more)
        self._kept -= page

    simkv.replay(windowed_run(page_size=page), device="cpu")
    monkeypatch.setattr(KvMemory, "__init__", hasty)
    run = windowed_run(page_size=page)
    window = [row for row in rows_of(run) if row["cause"] == "window"]
    # Everything else agrees: the simulation itself finds nothing.
    first = window[0]["end"] - page
    mismatch(
        run,
        f"target swa pool: request 'r0' token {first:,}, slot",
        "is read, and its SWA half is gone",
        "the last operations on slot",
        f": free_swa (window), request 'r0' tokens [{window[0]['begin']}, {window[0]['end']})",
    )


def test_a_stale_mapping_after_its_page_went() -> None:
    # Issue #27789: a stretch whose SWA half slid out of the window is freed on both sides.
    at = find(rows_of(windowed()), "free_full", request=1)
    mismatch(
        changed(windowed(), at, operation="free"),
        "the SWA half of slot 11 is given away, and it is gone already: a stale mapping",
        "the last operations on slot 11:",
        "    step 3: free_swa (window), request 'r1' tokens [0, 3)",
        "at step 3: free (finish), request 'r1' tokens [0, 3)",
    )


# Mapping -----------------------------------------------------------------------------------------------------------
def test_a_swapped_mapping() -> None:
    rows = rows_of(windowed())
    at = find(rows, "allocate", request=1, cause="prefill")
    one, two, *rest = rows[at]["peers"]
    assert (one, two) == (11, 12)
    mismatch(
        changed(windowed(), at, peers=[two, one, *rest]),
        "SWA slot of request 'r1' token 0: the log says 12, the allocator hands out 11",
        "at step 1: allocate (prefill)",
    )


def test_halves_that_are_moved_to_each_others_slots() -> None:
    # r3 computed again what r2 left in the cache without its SWA halves, and r6 is the first to find it there.
    rows = rows_of(cached_prefixes())
    at = find(rows, "move")
    one, two, *rest = rows[at]["peers"]
    mismatch(
        changed(cached_prefixes(), at, peers=[two, one, *rest]),
        "target swa pool, layer 0, K: request",
        f"  expected: request 'r6' token {rows[at]['begin']}\n  found:    request 'r2' token {rows[at]['begin'] + 1}\n",
        f"the last operations on slot {rows[at]['slots'][0]:,}:",
    )


def test_a_half_that_is_moved_where_one_is() -> None:
    rows = rows_of(cached_prefixes())
    at = find(rows, "move")
    mismatch(
        changed(cached_prefixes(), at, slots=rows[at]["peers"]),
        f"slot {rows[at]['peers'][0]:,} gets an SWA half and has one already",
    )


def test_a_half_that_is_moved_from_where_none_is() -> None:
    rows = rows_of(cached_prefixes())
    at = find(rows, "move")
    kept = rows[at]["slots"]
    mismatch(
        changed(cached_prefixes(), at, peers=kept),
        f"the SWA half of slot {kept[0]:,} is given away, and it is gone already: a stale mapping",
        f"at step {rows[at]['step']}: move (insert)",
    )


def test_a_draft_ring_of_the_size_of_the_swa_pool() -> None:
    # PR #17630: its mapping is the identity, so the slots of the full pool run out of it.
    swa = mtp().plan["swa_max_total_num_tokens"]
    pool = next(one for one in mtp().plan["pools"] if one["worker"] == "draft2")
    assert (pool["pool"], pool["mapping"], pool["tokens"]) == ("swa", "identity", 1200)
    rows = swa + mtp().plan["page_size"]
    small = planned(mtp(), "draft2", "swa", tokens=swa, rows=rows, bytes=rows * pool["bytes_per_token"])
    # The first row that is too high is that of slot ``rows``.
    told = next(row for row in rows_of(mtp()) if row["operation"] == "allocate" and rows in row["slots"])
    token = told["begin"] + told["slots"].index(rows)
    mismatch(
        small,
        f"draft2 swa pool: request 'r{told['request']}' token {token:,}, slot {rows:,} is written to",
        f"row {rows:,} is out of range, the pool ends at row {rows - 1:,}",
    )


# Contents ----------------------------------------------------------------------------------------------------------
def test_a_missing_write() -> None:
    mismatch(
        without(dense(), find(rows_of(dense()), "compute", request=1, cause="prefill")),
        "target full pool, layer 0, K: request 'r1' reads token 0 from slot 11",
        "  expected: request 'r1' token 0",
        "  found:    nothing, it was never written",
        "the last operations on slot 11:",
        "    step 1: allocate (prefill), request 'r1' tokens [0, 6)",
        "at step 2: compute (decode)",
    )


def test_a_write_that_stops_early() -> None:
    at = find(rows_of(windowed()), "compute", request=1, cause="prefill")
    mismatch(
        changed(windowed(), at, end=5, kept=5),
        "target full pool, layer 0, K: request 'r1' reads token 5 from slot 16",
        "  found:    nothing, it was never written",
    )


def test_a_missing_write_where_others_were_before() -> None:
    # 18 slots are too few for both: r1 comes after r0 and gets slots 16 to 18, then 1, 2 ... again.
    run = dense(18)
    mismatch(
        without(run, find(rows_of(run), "compute", request=1, begin=6)),
        "target full pool, layer 0, K: request 'r1' reads token 6 from slot 4",
        "  expected: request 'r1' token 6",
        "  found:    freed memory (step 6: free (finish), request 'r0' tokens [0, 15))",
        "the last operations on slot 4:",
        "    step 0: allocate (prefill), request 'r0' tokens [0, 8)",
    )


def test_a_guess_that_was_not_taken_is_not_read_as_a_token() -> None:
    rows = rows_of(mtp())
    at = find(rows, "compute", cause="verify", kept=1)
    request, begin = rows[at]["request"], rows[at]["begin"]
    # One token more is claimed of a later step than it wrote: the one before it is a guess still.
    later = find(rows, "compute", cause="verify", request=request, begin=begin + 1)
    mismatch(
        changed(mtp(), later, begin=begin + 2, kept=min(rows[later]["kept"], 3)),
        f"target full pool, layer 0, K: request 'r{request}' reads token {begin + 1:,} from slot",
        f"  found:    a rejected guess of request 'r{request}' at token {begin + 1:,}",
    )


def test_an_accepted_path_that_is_left_in_its_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Steps, "_move_accepted", lambda *_: None)
    mismatch(draft_trees(), "target full pool, layer 0, K: request 'r", "  found:    a rejected guess of request 'r")


def test_two_requests_that_share_a_slot() -> None:
    rows = rows_of(dense())
    at = find(rows, "allocate", request=1, cause="prefill")
    mismatch(
        changed(dense(), at, slots=[3, *rows[at]["slots"][1:]]),
        "slot of request 'r1' token 0: the log says 3, the allocator hands out 11",
        "at step 1: allocate (prefill)",
    )


def test_a_row_that_goes_on_behind_a_token_without_slot() -> None:
    rows = rows_of(draft_trees())
    at = find(rows, "allocate", cause="decode", request=0)
    begin, slots = rows[at]["begin"], rows[at]["slots"]
    assert begin % 16
    mismatch(
        changed(draft_trees(), at, begin=begin + 1, slots=slots[1:]),
        f"request 'r0' goes on at token {begin + 1} in a page, and the slot of the token before, 0, is not in its place",
    )


def test_an_allocator_that_hands_a_slot_out_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(dense())
    at = find(rows, "allocate", request=1, cause="prefill")
    hand_out = TorchSlots.extend

    def generous(self: TorchSlots, *args: Any) -> tuple[torch.Tensor, Any]:
        slots, peers = hand_out(self, *args)
        return torch.where(slots == 11, 3, slots), peers

    monkeypatch.setattr(TorchSlots, "extend", generous)
    mismatch(
        changed(dense(), at, slots=[3, *rows[at]["slots"][1:]]),
        "slot 3 is handed out, and somebody has it",
        "    step 0: allocate (prefill), request 'r0' tokens [0, 8)",
    )


def test_tokens_without_a_slot() -> None:
    at = find(rows_of(dense()), "compute", request=1, begin=7)
    mismatch(changed(dense(), at, end=9, kept=2), "request 'r1' token 8 is computed and has no slot")
    # Where the row was another request's before.
    run = dense(18)
    at = find(rows_of(run), "allocate", request=1, begin=6)
    mismatch(without(run, at), "request 'r1' token 6 is computed and has no slot")


def test_a_write_of_a_part_of_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def partial(self: KvTensor, index: torch.Tensor, tags: torch.Tensor) -> None:
        self.lanes[index, 0] = self.encoded(tags)

    monkeypatch.setattr(KvTensor, "write", partial)
    mismatch(draft_trees(), "target full pool, layer 0, K: request 'r", "  found:    nothing, it was never written")


# Prefix cache ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("slot", "whose"), [(21, "evicted before"), (30, "never handed out"), (41, "out of range")])
def test_a_hit_of_a_slot_that_the_cache_does_not_hold(slot: int, whose: str) -> None:
    rows = rows_of(cached("F"))
    at = find(rows, "hit", request=1)
    assert rows[at]["slots"] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    run = changed(cached("F"), at, slots=[1, 2, slot, *rows[at]["slots"][3:]])
    if whose == "evicted before":
        free = rows[find(rows, "free", cause="room for prefill")]
        assert free["slots"] == [slot]
        run = inserted(run, at, free)
    if whose == "out of range":
        mismatch(run, "slot 41 is out of range: the pool's slots end at 40")
    else:
        mismatch(
            run, f"slot {slot} is found in the cache, which does not have it", "at step 3: hit (prefill), request 'r1'"
        )


def test_a_hit_of_a_slot_that_another_request_holds() -> None:
    scenario = server(
        model("F", head_dim=4), 100, memory=LITTLE | {"chunked_prefill_size": 64, "disable_radix_cache": False}
    )
    # r1's tokens are its own until its first result; r2 comes with r0's.
    made = requests([(9, 2), (7, 9), (12, 2)], arrival_s=[0, 0.015, 0.055])
    run = recorded(scenario, sharing(made, [(1000, 9), (5000, 7), (1000, 9)]))
    rows = rows_of(run)
    at = find(rows, "hit", request=2)
    decoded = rows[find(rows[:at], "allocate", -1, request=1)]["slots"]
    assert len(decoded) == 1
    mismatch(changed(run, at, slots=[*decoded, *rows[at]["slots"][1:]]), f"slot {decoded[0]} is found in the cache")


def test_a_hit_on_another_requests_tokens() -> None:
    rows = rows_of(cached("F"))
    at = find(rows, "arrive", request=1)
    shared, length, *own = rows[at]["tokens"]
    assert (shared, length) == (1000, 9)
    # The fifth token is another one than that of r0, and so is all that follows.
    mismatch(
        changed(cached("F"), at, tokens=[1000, 4, 7000, 5, *own]),
        "target full pool, layer 0, K: request 'r1' reads token 4 from slot 5",
        "  expected: request 'r1' token 4",
        "  found:    request 'r0' token 4",
        "    step 0: insert (insert), request 'r0' tokens [0, 20)",
        "at step 3: compute (prefill), request 'r1' tokens [9, 12)",
    )


def test_a_cache_that_takes_what_is_free() -> None:
    rows = rows_of(cached("F"))
    at = find(rows, "insert", request=1)
    mismatch(changed(cached("F"), at, slots=[22, 23, 30]), "the cache takes slot 30, which is free")


# Counts, rows and bytes --------------------------------------------------------------------------------------------
def test_a_free_count_that_is_off_by_one() -> None:
    rows = rows_of(windowed())
    at = find(rows, "free", request=1)
    for pool, believed in (("full", 88), ("swa", 36)):
        assert rows[at][f"{pool}_available"] == believed
        wrong = rows[:at] + [rows[at] | {f"{pool}_available": believed + 1}] + rows[at + 1 :]
        mismatch(
            edited(windowed(), wrong),
            f"free count of the {pool} pool: the log says {believed + 1}, {believed} slots are free",
            "at step 3: free (finish), request 'r1' tokens [3, 8)",
        )


def test_a_log_that_is_cut_off() -> None:
    run = dense()
    assert run.allocations is not None
    total = run.allocations.num_rows
    mismatch(
        replace(run, allocations=run.allocations.slice(0, total - 4)),
        f"the log is cut off: it ends at row {total - 4} of {total}, ",
        "after step 8: compute (decode), request 'r0' tokens [16, 17)",
    )
    mismatch(replace(run, allocations=run.allocations.slice(0, 0)), f"the log is cut off: it ends at row 0 of {total}")


def test_a_log_that_ends_early() -> None:
    rows = rows_of(dense())
    for end in (find(rows, "close", request=0), find(rows, "compute", request=0, begin=12)):
        mismatch(planted(dense(), rows[:end]), "the log ends, and request 'r0' still holds its row")


def test_rows_that_are_taken_twice_or_never() -> None:
    rows = rows_of(dense())
    opened = find(rows, "open", request=1)
    mismatch(inserted(dense(), opened + 1, rows[opened]), "request 'r1' has a row already")
    mismatch(without(dense(), opened), "request 'r1' has no row", "allocate (prefill), request 'r1' tokens [0, 6)")
    closed = find(rows, "close", request=1)
    mismatch(inserted(dense(), closed + 1, rows[closed]), "request 'r1' has no row", "close (finish), request 'r1'")


def test_wrong_bytes_in_the_plan() -> None:
    # 101 rows of one head of 4 + 4 in bf16.
    assert [one["bytes"] for one in dense().plan["pools"]] == [101 * 16]
    for layers in ("all", "1"):
        mismatch(
            planned(dense(), "target", "full", bytes=102 * 16),
            "target full pool: the plan says 1,632 B, its 101 rows of 1 layers with 1 heads of 4 + 4 bfloat16 take 1,616 B",
            layers=layers,
        )


def test_a_pool_that_is_smaller_than_its_slots() -> None:
    small = planned(dense(), "target", "full", rows=20, bytes=20 * 16)
    mismatch(small, "target full pool: request 'r1' token 7, slot 20 is written to: row 20 is out of range")
