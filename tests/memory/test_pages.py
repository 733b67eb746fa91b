from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simkv.errors import InvariantError
from simkv.memory.pages import CountedPool

PAGES = st.sampled_from([1, 2, 3, 16, 64])


class Slots:
    """A pool with slot numbers: a queue of tokens without pages, a stack of pages with them; page 0 is padding."""

    def __init__(self, capacity: int, page: int) -> None:
        self.page = page
        self.free = deque(range(1, capacity // page + 1))
        self.highest = 0

    def take(self, count: int) -> list[int]:
        got = [self.free.popleft() for _ in range(count)]
        self.highest = max(self.highest, *(number * self.page + self.page - 1 for number in got))
        return got

    def give(self, numbers: list[int]) -> None:
        if self.page == 1:
            self.free.extend(numbers)
        else:
            self.free.extendleft(reversed(numbers))


@given(page=PAGES, pages=st.integers(1, 12), rest=st.integers(0, 63), moves=st.lists(st.integers(-6, 6), max_size=40))
def test_counts_agree_with_numbered_slots(page: int, pages: int, rest: int, moves: list[int]) -> None:
    capacity = page * pages + rest % page
    pool, slots = CountedPool("full", capacity, page), Slots(capacity, page)
    held: list[list[int]] = []
    reach = taken = 0
    for move in moves:
        if move > 0 and move <= len(slots.free):
            held.append(slots.take(move))
            pool.take(move * page)
            taken += move * page
        elif move < 0 and held:
            numbers = held.pop(-move % len(held))
            slots.give(numbers)
            pool.give(len(numbers) * page)
        in_use = sum(map(len, held)) * page
        assert pool.available == len(slots.free) * page
        assert pool.used == in_use
        assert pool.available + pool.used == pool.usable == page * pages
        assert pool.handed_out == taken
        reach = max(reach, pool.reach)
        if taken:
            assert slots.highest == (min(reach, capacity) if page == 1 else reach + page - 1)
    assert pool.capacity == capacity


@pytest.mark.parametrize(("capacity", "page", "usable"), [(10, 1, 10), (127, 64, 64), (128, 64, 128), (63, 64, 0)])
def test_a_remainder_below_a_page_is_never_handed_out(capacity: int, page: int, usable: int) -> None:
    pool = CountedPool("swa", capacity, page)
    assert (pool.available, pool.usable, pool.capacity, pool.used) == (usable, usable, capacity, 0)
    if usable:
        pool.take(usable)
        assert pool.available == 0
    with pytest.raises(InvariantError, match=r"swa pool: \d+ tokens taken, 0 were free"):
        pool.take(page)


def test_giving_back_more_than_was_taken_is_a_fault_of_simkv() -> None:
    pool = CountedPool("full", 8, 4)
    pool.take(4)
    pool.give(4)
    with pytest.raises(InvariantError, match=r"full pool: 4 tokens given back, 12 of 8"):
        pool.give(4)


def test_a_queue_reaches_every_slot_although_few_are_held() -> None:
    queue, stack = CountedPool("full", 100, 1), CountedPool("full", 100, 2)
    for _ in range(30):
        for pool in (queue, stack):
            pool.take(2)
        assert stack.reach == 2
        for pool in (queue, stack):
            pool.give(2)
    assert queue.reach == 60
