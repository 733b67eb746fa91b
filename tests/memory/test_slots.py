from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simkv.engines.sglang.slots import AllSwaSlots, Checks, FullSlots, PeerError, SlotAllocator, SwaSlots
from simkv.errors import InvariantError
from simkv.memory.slots import FreeList, PagedSlots, SlotPool, TokenSlots, new_pages, slot_pool


def array(*ids: int) -> np.ndarray:
    return np.array(ids, np.int64)


def listed(slots: np.ndarray | None) -> list[int] | None:
    return None if slots is None else slots.tolist()


# ------------------------------------------------------------------------------------------------- free list
@given(
    st.integers(0, 5),
    st.lists(st.tuples(st.sampled_from(["take", "put_first", "put_last"]), st.integers(0, 7)), max_size=60),
)
def test_the_free_list_is_a_list(last: int, moves: list[tuple[str, int]]) -> None:
    free, model = FreeList(1, last), list(range(1, last + 1))
    fresh = 100
    for move, count in moves:
        if move == "take":
            count = min(count, len(model))
            assert free.take(count).tolist() == model[:count]
            model = model[count:]
        else:
            ids = list(range(fresh, fresh + count))
            fresh += count
            getattr(free, move)(np.array(ids, np.int64))
            model = ids + model if move == "put_first" else model + ids
        assert free.ids.tolist() == model and len(free) == len(model)


def test_what_was_taken_is_not_overwritten() -> None:
    free = FreeList(1, 4)
    taken = free.take(2)
    free.put_first(array(9, 8))
    assert taken.tolist() == [1, 2]


def test_a_long_queue_is_seldom_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = []
    make_room = FreeList._make_room

    def counted(free: FreeList, count: int, before: int) -> None:
        moved.append(len(free))
        make_room(free, count, before)

    monkeypatch.setattr(FreeList, "_make_room", counted)
    queue, stack = TokenSlots("full", 10_000), PagedSlots("full", 20_000, 2)
    for _ in range(3000):
        for pool in (queue, stack):
            pool.free(pool.alloc(20))
    # 60,000 slots went round: each may have been moved about once.
    assert 0 < sum(moved) <= 60_000


# ------------------------------------------------------------------------------------------------- one pool
def test_tokens_come_back_last_in_the_order_given() -> None:
    pool = TokenSlots("full", 6)
    assert listed(pool.alloc(4)) == [1, 2, 3, 4]
    pool.free(array(3, 1))
    assert pool.available == 4
    assert listed(pool.alloc(3)) == [5, 6, 3]
    assert pool.alloc(2) is None and pool.available == 1
    assert listed(pool.extend(array(7, 0), array(8, 0), array(2, -1))) == [1]
    pool.clear()
    assert pool.free_pages.tolist() == [1, 2, 3, 4, 5, 6]


def test_pages_come_back_first_sorted_or_in_the_order_of_the_request() -> None:
    pool = PagedSlots("full", 26, 4)
    assert listed(pool.alloc(8)) == [4, 5, 6, 7, 8, 9, 10, 11]
    pool.alloc(16)
    assert pool.alloc(4) is None and listed(pool.alloc(3)) == []
    pool.free(array(17, 5, 16, 4))
    assert pool.free_pages.tolist() == [1, 4]
    pool.free_segment(array(20, 21, 22, 23, 8, 9), start=4)
    assert pool.free_pages.tolist() == [5, 2, 1, 4]
    pool.free_page_ids(array(6, 3))
    assert pool.free_pages.tolist() == [6, 3, 5, 2, 1, 4] and pool.available == 24
    with pytest.raises(InvariantError, match="starts at token 2, inside a page of 4"):
        pool.free_segment(array(8), start=2)


def test_a_request_fills_its_page_before_it_gets_new_ones() -> None:
    pool = PagedSlots("full", 40, 4)
    # 5 tokens: page 1 and a slot of page 2; 3 tokens: page 3.
    assert listed(pool.extend(array(0, 0), array(5, 3), array(-1, -1))) == [4, 5, 6, 7, 8, 12, 13, 14]
    # The first goes on in page 2, takes 4 whole and 5 in part; the second only fills its page.
    slots = pool.extend(array(5, 3), array(13, 4), array(8, 14))
    assert listed(slots) == [9, 10, 11, 16, 17, 18, 19, 20, 15]
    assert listed(pool.decode(array(14, 5), array(20, 15))) == [21, 24]
    assert pool.available == 16
    # Five pages are needed, four are free.
    assert pool.extend(array(14, 0), array(17, 16), array(21, -1)) is None
    assert pool.available == 16
    assert new_pages(array(14, 0), array(17, 16), 4).tolist() == [1, 4]


def test_held_back_frees_are_sorted_when_an_allocation_runs_short() -> None:
    for pool in (TokenSlots("full", 4, need_sort=True), PagedSlots("full", 8, 2, need_sort=True)):
        page = pool.page_size
        pool.alloc(3 * page)
        pool.free_page_ids(array(3))
        pool.free_page_ids(array(1))
        assert pool.available == 3 * page
        assert (pool.free_pages.tolist(), pool.held_pages.tolist()) == ([4], [3, 1])
        assert pool.alloc(4 * page) is None
        assert (pool.free_pages.tolist(), pool.held_pages.tolist()) == ([1, 3, 4], [])


def test_held_back_pages_are_merged_by_a_bound() -> None:
    pool = PagedSlots("full", 12, 4, need_sort=True)
    pool.alloc(4)
    pool.free_page_ids(array(1))
    # One page is needed and two are in the list, but the bound is 4 // 4 + 1 + 1 = 3.
    assert listed(pool.extend(array(0), array(4), array(-1))) == [4, 5, 6, 7]


def test_frees_of_a_group_are_invisible_until_its_end() -> None:
    pool = PagedSlots("full", 16, 4)
    pool.alloc(16)
    pool.begin_group()
    with pytest.raises(InvariantError, match="cannot be nested"):
        pool.begin_group()
    freed = array(12, 13)
    pool.free(freed)
    freed[:] = 8
    pool.free_segment(array(16, 17), start=0)
    pool.free(array(4))
    assert pool.available == 0 and pool.alloc(4) is None
    pool.end_group()
    assert pool.free_pages.tolist() == [4, 1, 3]


def test_a_deferred_free_does_not_follow_what_the_caller_does_to_its_array() -> None:
    held_back = FullSlots(4, 1, need_sort=True)
    for slots in (FullSlots(4, 1), AllSwaSlots(4), SwaSlots(4, 4, 1), held_back):
        slots.alloc(4)
        freed = array(2, 3)
        if slots is held_back:
            slots.free(freed)
            freed[:] = 0
        else:
            with slots.group():
                slots.free(freed)
                freed[:] = 0
        assert listed(slots.alloc(2)) == [2, 3]


OPERATIONS = st.lists(st.tuples(st.sampled_from(["begin", "grow", "finish"]), st.integers(0, 40)), max_size=60)


@given(st.sampled_from([1, 2, 4, 16]), st.integers(1, 30), st.booleans(), OPERATIONS)
def test_no_slot_has_two_owners_and_none_is_lost(
    page: int, pages: int, sort: bool, moves: list[tuple[str, int]]
) -> None:
    pool = slot_pool("full", page * pages + page // 2, page, need_sort=sort)
    model = list(range(1, pages + 1))
    held: list[list[int]] = []

    def pages_of(slots: list[int]) -> list[int]:
        return list(dict.fromkeys(slot // page for slot in slots))

    for move, size in moves:
        if move == "finish":
            if held:
                slots = held.pop(size % len(held))
                pool.free_segment(np.array(slots, np.int64), start=0)
                model = model + pages_of(slots) if page == 1 else pages_of(slots) + model
        else:
            slots = held[size % len(held)] if move == "grow" and held else []
            last = array(slots[-1] if slots else -1)
            more = pool.extend(array(len(slots)), array(len(slots) + size), last)
            need = -(-(len(slots) + size) // page) - -(-len(slots) // page)
            if need > len(model):
                assert more is None
                continue
            assert more is not None and len(more) == size
            if not sort:
                assert pages_of([*slots, *more.tolist()])[len(pages_of(slots)) :] == model[:need]
            model = model[need:]
            if not slots:
                held.append(slots)
            slots.extend(more.tolist())
            if not slots:
                held.pop()
        owned = [slot for slots in held for slot in slots]
        assert len(set(owned)) == len(owned) and 0 not in pages_of(owned)
        mine = [number for slots in held for number in pages_of(slots)]
        listed_now = pool.free_pages.tolist() + pool.held_pages.tolist()
        assert sorted(mine + listed_now) == list(range(1, pages + 1))
        assert pool.available == len(listed_now) * page
        if not sort:
            assert listed_now == model


# ------------------------------------------------------------------------------------------------- two sides
def test_peers_are_noted_and_freed_first() -> None:
    slots = SwaSlots(8, 4, 1)
    assert (slots.available, slots.full_available, slots.swa_available) == (4, 8, 4)
    assert listed(slots.alloc(3)) == [1, 2, 3]
    assert slots.alloc(2) is None and slots.full_available == 5
    slots.free_swa(array(1))
    assert listed(slots.alloc(2)) == [4, 5]
    assert slots.translate(array(1, 4, 5, -1)).tolist() == [0, 4, 1, -1]
    slots.free(array(2, 3))
    slots.free_full(array(1))
    assert slots.full.free_pages.tolist() == [6, 7, 8, 2, 3, 1]
    assert slots.swa.free_pages.tolist() == [2, 3]


def test_a_short_decode_loses_the_pages_of_the_other_side() -> None:
    slots = SwaSlots(16, 4, 4)
    slots.extend(array(0), array(4), array(-1))
    assert slots.extend(array(0), array(4), array(-1)) is None
    assert slots.full_available == 12
    assert slots.decode(array(5), array(7)) is None
    assert slots.full_available == 8


def test_without_pages_a_decode_takes_from_both_sides_or_none() -> None:
    slots = SwaSlots(8, 2, 1)
    assert listed(slots.decode(array(5, 9), array(-1, -1))) == [1, 2]
    assert slots.decode(array(6), array(1)) is None and slots.full_available == 6


def test_the_swa_side_may_begin_late() -> None:
    slots = SwaSlots(16, 8, 4)
    assert listed(slots.extend_swa_tail(0, 12, -1, 6)) == list(range(4, 16))
    assert slots.translate(np.arange(4, 16)).tolist() == [0] * 6 + [4, 5, 6, 7, 8, 9]
    assert slots.extend_swa_tail(0, 4, -1, 4) is None
    assert listed(slots.extend_swa_tail(0, 4, -1, 0)) == [16, 17, 18, 19]
    with pytest.raises(InvariantError, match="tail of 3 tokens in 2"):
        slots.extend_swa_tail(0, 2, -1, 3)


def test_a_late_beginning_forgets_peers_that_were_lost() -> None:
    slots = SwaSlots(4, 8, 4)
    row = slots.extend(array(0), array(4), array(-1))
    assert row is not None
    slots.free_full(row)
    assert listed(slots.extend_swa_tail(0, 4, -1, 2)) == [4, 5, 6, 7]
    assert slots.translate(row).tolist() == [0, 0, 8, 9]


def test_more_free_slots_than_there_are_is_noticed_on_either_side() -> None:
    slots = SwaSlots(8, 8, 4)
    row = slots.extend(array(0), array(8), array(-1))
    assert row is not None
    slots.free_swa(row)
    slots.free_full(row)
    with pytest.raises(InvariantError, match="full pool: 12 of 8"):
        slots.free_full(array(4))
    with pytest.raises(InvariantError, match="full pool: 16 of 8"), slots.group():
        slots.free_full_segment(array(4), 0)
    slots.clear()
    with pytest.raises(InvariantError, match="swa pool: 12 of 8"), slots.group():
        slots.free_swa_segment(array(4), 0)


def test_a_group_resolves_peers_when_it_is_told_of_them() -> None:
    slots = SwaSlots(16, 16, 4)
    slots.extend(array(0, 0), array(8, 4), array(-1, -1))
    with slots.group():
        slots.free_swa_segment(array(4, 5, 6, 7), start=0)
        # The pages of a tree node get the SWA side of a newcomer: what was freed above is not meant.
        slots.move_mapping(array(4, 5, 6, 7), array(12, 13, 14, 15))
        slots.free_full(array(12))
        assert slots.swa_available == 4 and slots.full_available == 4
    assert slots.swa.free_pages.tolist() == [1, 4]
    assert slots.full.free_pages.tolist() == [3, 4]
    assert slots.translate(array(4, 7, 12)).tolist() == [12, 15, 0]


def test_a_group_frees_segments_before_sets_on_the_swa_side_and_after_them_on_the_full_side() -> None:
    slots = SwaSlots(16, 16, 4)
    slots.extend(array(0, 0), array(8, 5), array(-1, -1))
    with slots.group():
        slots.free_segment(array(4, 5, 6, 7), start=0)
        slots.free(array(12, 13, 14, 15, 16))
    assert slots.swa.free_pages.tolist() == [3, 4, 1]
    assert slots.full.free_pages.tolist() == [1, 3, 4]


def test_a_peer_freed_twice_is_noticed_when_the_side_overflows_or_when_asked_for() -> None:
    for checks in Checks:
        slots = SwaSlots(8, 4, 1, checks=checks)
        slots.alloc(2)
        slots.free_swa(array(1))
        with pytest.raises(InvariantError, match="swa pool: 5 of 4|free_full is the call") as error:
            slots.free(array(1, 2))
        assert isinstance(error.value, PeerError) is (checks is not Checks.OFF)


def test_a_live_peer_is_missed_only_when_asked_for() -> None:
    for checks in (Checks.WARN, Checks.STRICT):
        slots = SwaSlots(8, 8, 4, checks=checks)
        row = slots.extend(array(0), array(5), array(-1))
        assert row is not None
        if checks is Checks.STRICT:
            for free in (slots.free_full, lambda ids, s=slots: s.free_full_segment(ids, 0)):
                with pytest.raises(PeerError, match="free is the call"):
                    free(row)
        else:
            slots.free_full(row)
            assert (slots.full_available, slots.swa_available) == (8, 0)


def test_one_pool_serves_all_sliding_layers() -> None:
    slots = AllSwaSlots(4)
    assert listed(slots.alloc(3)) == [1, 2, 3]
    slots.free_swa_segment(array(1), start=0)
    slots.free_full_segment(array(1), start=0)
    slots.free_full(array(2))
    assert (slots.available, slots.full_available, slots.swa_available) == (2, 2, 2)
    with slots.group():
        slots.free_segment(array(2, 0, 3), start=1)
        assert slots.available == 2
        with pytest.raises(InvariantError, match="nested"):
            slots.begin_group()
    assert slots.pool.free_pages.tolist() == [4, 1, 2, 3]
    assert slots.translate(array(3, -1)).tolist() == [3, -1]
    with pytest.raises(InvariantError, match="5 of 4"):
        slots.free(array(2))
    with pytest.raises(InvariantError, match="no peers"):
        slots.move_mapping(array(1), array(2))
    with pytest.raises(InvariantError, match="no pages"):
        AllSwaSlots(8, 4)


def allocators(page: int) -> list[tuple[SlotAllocator, tuple[SlotPool, ...]]]:
    full, swa = FullSlots(40 * page, page), SwaSlots(40 * page, 20 * page, page, checks=Checks.STRICT)
    made: list[tuple[SlotAllocator, tuple[SlotPool, ...]]] = [(full, (full.pool,)), (swa, (swa.full, swa.swa))]
    if page == 1:
        all_swa = AllSwaSlots(40)
        made.append((all_swa, (all_swa.pool,)))
    return made


@pytest.mark.parametrize("page", [1, 4])
def test_one_caller_drives_them_all(page: int) -> None:
    for slots, pools in allocators(page):
        start = [pool.available for pool in pools]
        held: list[Any] = []
        for length in (3 * page, 5 * page + 1):
            got = slots.extend(array(0), array(length), array(-1))
            assert got is not None
            held.append(got)
        more = slots.decode(np.array([len(row) + 1 for row in held]), np.array([row[-1] for row in held]))
        assert more is not None
        held = [np.append(row, slot) for row, slot in zip(held, more, strict=True)]
        dead = 2 * page
        with slots.group():
            for row in held:
                slots.free_swa_segment(row[:dead], 0)
        for row in held:
            slots.free_full_segment(row[:dead], 0)
            slots.free_segment(row[dead:], dead)
        assert [pool.available for pool in pools] == start
        assert slots.available == min(slots.full_available, slots.swa_available)
        slots.clear()
        assert [pool.available for pool in pools] == start


@given(st.sampled_from([1, 2, 4]), OPERATIONS)
def test_a_live_slot_has_its_peer_to_itself(page: int, moves: list[tuple[str, int]]) -> None:
    slots = SwaSlots(30 * page, 12 * page, page, checks=Checks.STRICT)
    held: list[tuple[np.ndarray, int]] = []
    for move, size in moves:
        if move == "begin":
            row = slots.extend(array(0), array(size % 12 + 1), array(-1))
            if row is not None:
                held.append((row, 0))
        elif held:
            row, dead = held.pop(size % len(held))
            if move == "grow":
                # The window moves on, then a token is added.
                end = max(dead, (len(row) - size % 8) // page * page)
                slots.free_swa_segment(row[dead:end], dead)
                # A live last token, so that its page can be gone on with; the scarcer side is looked at first.
                if end < len(row) and slots.available >= page:
                    row = np.append(row, slots.decode(array(len(row) + 1), row[-1:]))
                held.append((row, end))
            else:
                slots.free_full_segment(row[:dead], 0)
                slots.free_segment(row[dead:], dead)
        live = [int(x) for row, dead in held for x in slots.translate(row[dead:])]
        assert len(set(live)) == len(live) and min(live, default=page) >= page
        in_use = [
            sum(-(-len(row) // page) for row, _ in held),
            sum(-(-len(row) // page) - dead // page for row, dead in held),
        ]
        assert [30 - slots.full_available // page, 12 - slots.swa_available // page] == in_use
