"""The prefix tree, by hand and against a model that keeps every page on its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from simkv.engines.sglang.numbered import NumberedPools
from simkv.engines.sglang.pools import Pools
from simkv.errors import InvariantError
from simkv.memory.pages import CountedPool
from simkv.memory.radix import UNNUMBERED, Lock, RadixTree
from simkv.workload.tokens import Tokens


class Sink:
    """Remembers what comes back."""

    def __init__(self) -> None:
        self.full = self.swa = 0
        self.calls: list[tuple[str, list[int]]] = []
        self.moved: list[tuple[list[int], list[int]]] = []

    def _note(self, name: str, slots: Any, tokens: int) -> None:
        ids = slots.tolist() if isinstance(slots, np.ndarray) else []
        assert not ids or len(ids) == tokens
        self.calls.append((name, ids))

    def free(self, slots: Any, tokens: int) -> None:
        self._note("both", slots, tokens)
        self.full += tokens
        self.swa += tokens

    def free_full(self, slots: Any, tokens: int) -> None:
        self._note("full", slots, tokens)
        self.full += tokens

    def free_swa(self, slots: Any, tokens: int) -> None:
        self._note("swa", slots, tokens)
        self.swa += tokens

    def move_swa(self, kept: Any, incoming: Any) -> None:
        self.moved.append((kept.tolist(), incoming.tolist()))

    def drain(self) -> list[tuple[str, list[int]]]:
        calls, self.calls = self.calls, []
        return calls


def seq(*parts: int | tuple[int, int]) -> Tokens:
    """Tokens: single ones, and stretches (first, end)."""
    return Tokens([(part, 1) if isinstance(part, int) else (part[0], part[1] - part[0]) for part in parts])


def put(tree: RadixTree, tokens: Tokens, sink: Sink | None = None, *, first: int = 0, **more: int) -> tuple[int, Any]:
    """Insert a whole sequence whose slots are first, first + 1, ..."""
    length = tree.key_length(len(tokens))
    slots = np.arange(first, first + length)
    return tree.insert(tokens, length, slots, sink if sink is not None else Sink(), **more)


def shape(tree: RadixTree) -> list[tuple[int, int, bool]]:
    """(begin, end, SWA alive) of every node, by place."""
    return sorted((node.begin, node.end, node.swa) for node in tree.nodes())


def figures(tree: RadixTree) -> tuple[int, int, int, int]:
    tree.check()
    return tree.full_evictable, tree.full_protected, tree.swa_evictable, tree.swa_protected


def lock(tree: RadixTree, tokens: Tokens) -> Lock:
    return tree.lock(tree.match(tokens, len(tokens)).node)


# Matching ----------------------------------------------------------------------------------------------------------


def test_an_empty_tree_has_nothing() -> None:
    tree = RadixTree(1)
    found = tree.match(seq((0, 10)), 10)
    assert (found.length, found.node, found.full_length, found.branch) == (0, tree.root, 0, 0)
    assert tree.evict(5, 5, Sink()) == (0, 0)
    assert figures(tree) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("page", "common", "hit"), [(1, 7, 7), (4, 7, 4), (4, 8, 8), (4, 3, 0), (16, 15, 0), (16, 31, 16), (16, 32, 32)]
)
def test_a_match_is_as_many_whole_pages_as_are_the_same(page: int, common: int, hit: int) -> None:
    tree = RadixTree(page)
    put(tree, seq((0, 64)))
    found = tree.match(seq((0, common), (900, 964)), common + 64)
    assert (found.length, found.full_length, found.branch) == (hit, hit, 0)
    assert found.node.end == hit
    # The node is split there, unless it is not entered at all.
    assert shape(tree) == ([(0, 64, False)] if not hit else [(0, hit, False), (hit, 64, False)])


@pytest.mark.parametrize(("page", "given", "kept"), [(1, 5, 4), (4, 5, 4), (4, 4, 0), (4, 8, 4), (4, 9, 8), (1, 1, 0)])
def test_keys_of_two_tokens_are_one_fewer(page: int, given: int, kept: int) -> None:
    tree = RadixTree(page, bigram=True)
    assert tree.key_length(given) == kept
    put(tree, seq((0, given)))
    assert figures(tree) == (kept, 0, 0, 0)
    assert tree.match(seq((0, given)), given).length == kept


def test_keys_of_two_tokens_part_one_token_earlier() -> None:
    # (0 1) (1 2) (2 3) ... against (0 1) (1 2) (2 90): three tokens are the same, two keys.
    for bigram, hit in ((False, 3), (True, 2)):
        tree = RadixTree(1, bigram=bigram)
        put(tree, seq((0, 10)))
        assert tree.match(seq((0, 3), (90, 99)), 12).length == hit


def test_keys_of_two_tokens_with_pages_look_one_token_beyond_the_page() -> None:
    # Pages of 4 keys take 5 tokens: with the same 8 tokens and another ninth, only one page is the same.
    tree = RadixTree(4, bigram=True)
    put(tree, seq((0, 13)))
    assert figures(tree) == (12, 0, 0, 0)
    assert tree.match(seq((0, 8), (90, 99)), 17).length == 4
    assert tree.match(seq((0, 9), (90, 99)), 18).length == 8


def test_a_window_alive_is_enough_behind_a_tombstone_and_less_is_not() -> None:
    # Nodes [0, 16) and [16, 20): the cut of a new leaf at one window.
    tree = RadixTree(1, window=4)
    put(tree, seq((0, 20)))
    assert shape(tree) == [(0, 16, True), (16, 20, True)]
    assert tree.evict(0, 1, Sink()) == (0, 16)
    assert shape(tree) == [(0, 16, False), (16, 20, True)]
    assert tree.tombstones == 16
    found = tree.match(seq((0, 20)), 20)
    assert (found.length, found.full_length, found.branch) == (20, 20, 0)
    # Three of the four do not do: nothing is usable, and the branch point is where the full half ends.
    found = tree.match(seq((0, 19), (90, 99)), 28)
    assert (found.length, found.node, found.full_length, found.branch) == (0, tree.root, 19, 19)
    # Two nodes of 3 and 1 tokens still make a window.
    assert tree.match(seq((0, 20)), 20).length == 20


def test_less_than_a_window_is_enough_where_nothing_is_missing_up_to_the_root() -> None:
    tree = RadixTree(1, window=100)
    put(tree, seq((0, 20)))
    assert tree.match(seq((0, 3)), 3).length == 3
    assert tree.match(seq((0, 20)), 20).length == 20


def test_a_match_falls_back_to_the_last_usable_boundary() -> None:
    # [0, 6) alive, [6, 12) dead, [12, 14) alive: two of a window of 4 behind the dead one.
    tree = RadixTree(1, window=4)
    put(tree, seq((0, 4)))
    put(tree, seq((0, 6)), owned_from=4)
    put(tree, seq((0, 14)), owned_from=6, swa_from=12)
    assert shape(tree) == [(0, 4, True), (4, 6, True), (6, 12, False), (12, 14, True)]
    found = tree.match(seq((0, 14)), 14)
    assert (found.length, found.full_length, found.branch) == (6, 14, 14)
    assert found.node.end == 6


# Order of eviction -------------------------------------------------------------------------------------------------


def test_the_least_recently_used_goes_first_and_as_a_whole() -> None:
    tree, sink = RadixTree(1), Sink()
    for start in (0, 100, 200):
        put(tree, seq((start, start + 10)), first=start)
    tree.match(seq((0, 10)), 10)
    assert tree.evict(1, 0, sink) == (10, 0)
    assert sink.drain() == [("both", list(range(100, 110)))]
    assert tree.evict(11, 0, sink) == (20, 0)
    assert sink.drain() == [("both", list(range(200, 210))), ("both", list(range(10)))]
    assert figures(tree) == (0, 0, 0, 0)


def test_an_insert_makes_all_it_passes_recent() -> None:
    tree, sink = RadixTree(1), Sink()
    put(tree, seq((0, 10)))
    put(tree, seq((100, 110)), first=100)
    put(tree, seq((0, 10), (50, 55)), owned_from=10)
    assert tree.evict(1, 0, sink) == (10, 0)
    assert sink.drain() == [("both", list(range(100, 110)))]


def test_an_insert_of_what_is_there_makes_it_recent() -> None:
    for window in (None, 20):
        tree, sink = RadixTree(1, window=window), Sink()
        put(tree, seq((0, 10)))
        put(tree, seq((100, 110)), first=100)
        put(tree, seq((0, 10)), owned_from=10)
        # Both orders agree: that of the stamps, and that of the SWA halves.
        tree.evict(*((1, 0) if window is None else (0, 1)), sink)
        assert sink.drain() == [("both", list(range(100, 110)))], window
        assert tree.evict(1, 0, sink)[0] == 10


def test_the_halves_of_a_split_keep_their_place_among_swa_halves() -> None:
    # [0, 16) dead, [16, 20) alive, then another branch. A match that can use nothing splits the older one.
    tree, sink = RadixTree(1, window=4), Sink()
    put(tree, seq((0, 20)))
    tree.evict(0, 1, Sink())
    put(tree, seq((100, 104)), first=100)
    found = tree.match(seq((0, 18), 99), 19)
    assert (found.length, found.branch) == (0, 18)
    order = []
    while tree.evict(0, 1, sink) != (0, 0):
        order += sink.drain()
    assert order == [("swa", [16, 17]), ("both", [18, 19]), ("both", [100, 101, 102, 103])]


def test_a_leaf_that_is_split_keeps_no_age() -> None:
    # A, then B; a match that ends inside A. What A does not share with it is an unrelated suffix, and yet more recent
    # than B (recorded: evict_after_split).
    tree, sink = RadixTree(1), Sink()
    put(tree, seq((0, 10)))
    put(tree, seq((100, 110)), first=100)
    assert tree.match(seq((0, 5), (90, 99)), 14).length == 5
    assert shape(tree) == [(0, 5, False), (0, 10, False), (5, 10, False)]
    assert tree.evict(1, 0, sink) == (10, 0)
    assert sink.drain() == [("both", list(range(100, 110)))]
    assert tree.evict(1, 0, sink) == (5, 0)
    assert sink.drain() == [("both", [5, 6, 7, 8, 9])]
    # The part before is a leaf only now.
    assert tree.evict(1, 0, sink) == (5, 0)
    assert sink.drain() == [("both", [0, 1, 2, 3, 4])]


def test_stamps_of_a_split() -> None:
    # The new parent is stamped, then the suffix, then the path of the match.
    tree = RadixTree(1)
    _, leaf = put(tree, seq((0, 10)))
    before = leaf.stamp
    found = tree.match(seq((0, 5)), 5)
    assert found.node is leaf.parent
    assert before < leaf.stamp < found.node.stamp
    # An insert that ends at the cut stamps the parent no later than the suffix: only then comes the split's own stamp.
    tree = RadixTree(1)
    _, leaf = put(tree, seq((0, 10)))
    _, parent = put(tree, seq((0, 5)))
    assert parent is leaf.parent and parent.stamp < leaf.stamp


def test_the_new_parent_of_a_split_is_as_recent_as_the_split() -> None:
    # The suffix goes while the other branch is held; then the parent is a leaf, and more recent than that branch.
    tree, sink = RadixTree(1), Sink()
    put(tree, seq((0, 10)))
    _, other = put(tree, seq((100, 110)), first=100)
    put(tree, seq((0, 5)), owned_from=5)
    held = tree.lock(other)
    assert tree.evict(1, 0, sink) == (5, 0)
    tree.unlock(held)
    assert tree.evict(1, 0, sink) == (10, 0)
    assert sink.drain() == [("both", [5, 6, 7, 8, 9]), ("both", list(range(100, 110)))]


def test_the_deepest_node_of_a_match_is_the_most_recent() -> None:
    tree = RadixTree(1)
    put(tree, seq((0, 4)))
    put(tree, seq((0, 8)), owned_from=4)
    _, leaf = put(tree, seq((0, 12)), owned_from=8)
    tree.match(seq((0, 12)), 12)
    stamps = [node.stamp for node in tree.path(leaf)]
    assert stamps == sorted(stamps) and len(set(stamps)) == 3


def test_a_stale_place_in_the_queue_does_not_evict_what_is_recent() -> None:
    tree, sink = RadixTree(1), Sink()
    for start in (0, 100, 200, 300):
        put(tree, seq((start, start + 1)), first=start)
    for start in (100, 0):
        tree.match(seq((start, start + 1)), 1)
    order = []
    while tree.evict(1, 0, sink) != (0, 0):
        order += [ids[0] for _, ids in sink.drain()]
    assert order == [200, 300, 100, 0]


def test_the_full_side_is_satisfied_first_and_counts_for_the_swa_side() -> None:
    # Two branches of 8 in nodes of 4 and 4; the older leaf gives 4 of both halves, which is all that is asked.
    tree, sink = RadixTree(1, window=4), Sink()
    put(tree, seq((0, 8)))
    put(tree, seq((100, 108)), first=100)
    assert tree.evict(1, 4, sink) == (4, 4)
    assert sink.drain() == [("both", [4, 5, 6, 7])]
    # Then two more of the SWA side than the next leaf (the rest of the branch) frees: a tombstone of the other one.
    assert tree.evict(1, 5, sink) == (4, 8)
    assert sink.drain() == [("both", [0, 1, 2, 3]), ("swa", [100, 101, 102, 103])]
    assert figures(tree) == (8, 0, 4, 0)


def test_of_the_swa_side_leaves_go_with_both_halves() -> None:
    tree, sink = RadixTree(1, window=4), Sink()
    put(tree, seq((0, 20)))
    assert tree.evict(0, 17, sink) == (4, 20)
    assert sink.drain() == [("swa", list(range(16))), ("both", [16, 17, 18, 19])]
    # What is left has no SWA half, so nothing can be freed of it that way.
    assert figures(tree) == (16, 0, 0, 0)
    assert tree.evict(0, 1, sink) == (0, 0)
    assert tree.evict(1, 1, sink) == (16, 0)
    assert sink.drain() == [("full", list(range(16)))]


def test_a_match_makes_a_window_and_a_page_of_swa_halves_recent() -> None:
    # A branch in nodes of 4 from chunked inserts, window 4, page 4: the last two nodes become recent, no more.
    tree, sink = RadixTree(4, window=4), Sink()
    for end in (4, 8, 12, 16):
        put(tree, seq((0, end)), owned_from=end - 4)
    put(tree, seq((100, 108)), first=100)
    tree.match(seq((0, 16)), 16)
    order = []
    for _ in range(6):
        tree.evict(0, 1, sink)
        order += [(name, ids[0]) for name, ids in sink.drain()]
    # Oldest: the root side; then the other branch, root side first; then what the match touched.
    assert order == [("swa", 0), ("swa", 4), ("swa", 100), ("both", 104), ("swa", 8), ("both", 12)]


def test_nothing_goes_where_everything_is_held() -> None:
    tree, sink = RadixTree(1, window=4), Sink()
    put(tree, seq((0, 4)))
    held = lock(tree, seq((0, 4)))
    assert figures(tree) == (0, 4, 0, 4)
    assert tree.evict(100, 100, sink) == (0, 0)
    assert sink.drain() == []
    tree.unlock(held)
    assert tree.evict(100, 100, sink) == (4, 4)


# Locks -------------------------------------------------------------------------------------------------------------


def test_a_lock_holds_the_full_path_and_one_window() -> None:
    tree, sink = RadixTree(1, window=4), Sink()
    for end in (6, 9, 11, 13):
        put(tree, seq((0, end)), owned_from=max(0, end - (2 if end > 9 else 3 if end > 6 else 6)))
    # Nodes 0:2, 2:6, 6:9, 9:11, 11:13; the window of 4 is the last two.
    assert shape(tree) == [(0, 2, True), (2, 6, True), (6, 9, True), (9, 11, True), (11, 13, True)]
    held = lock(tree, seq((0, 13)))
    assert figures(tree) == (0, 13, 9, 4)
    assert tree.evict(100, 100, sink) == (0, 9)
    assert [name for name, _ in sink.drain()] == ["swa"] * 3
    assert figures(tree) == (0, 13, 0, 4)
    tree.unlock(held)
    assert figures(tree) == (13, 0, 4, 0)


def test_a_lock_counts_tombstones_as_part_of_its_window() -> None:
    # [0, 6) alive, [6, 9) dead, [9, 10) alive: from the end, 1 + 3 make a window of 4 of which only 1 is alive.
    tree = RadixTree(1, window=4)
    put(tree, seq((0, 6)))
    _, leaf = put(tree, seq((0, 10)), owned_from=6, swa_from=9)
    held = tree.lock(leaf)
    assert figures(tree) == (0, 10, 6, 1)
    tree.unlock(held)
    assert figures(tree) == (10, 0, 7, 0)


def test_where_the_window_ends_moves_up_when_its_node_is_split() -> None:
    tree = RadixTree(1, window=4)
    _, leaf = put(tree, seq((0, 20)))
    held = tree.lock(leaf)
    assert leaf.boundary == held.boundary > 0
    # A match splits the held node; both parts stay held, and nothing above is let go that was not taken.
    found = tree.match(seq((0, 18), 99), 19)
    assert found.node.end == 18
    assert (found.node.boundary, leaf.boundary) == (held.boundary, 0)
    assert (found.node.swa_lock, leaf.swa_lock, found.node.full_lock, leaf.full_lock) == (1, 1, 1, 1)
    assert figures(tree) == (0, 20, 16, 4)
    tree.unlock(held)
    assert figures(tree) == (20, 0, 20, 0)
    assert {node.swa_lock for node in tree.nodes()} == {0}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
def test_locks_go_in_any_order(order: tuple[int, ...]) -> None:
    tree = RadixTree(1, window=4)
    put(tree, seq((0, 20)))
    held = [lock(tree, seq((0, 20)))]
    held.append(lock(tree, seq((0, 18), 99)))
    put(tree, seq((0, 26)), owned_from=20)
    held.append(lock(tree, seq((0, 26))))
    # The windows of the ends 20, 18 and 26. A lock goes by nodes: of the second, [16, 18) and all of [0, 16); of the
    # third, [22, 26).
    assert figures(tree) == (0, 26, 2, 24)
    kept = {0, 1, 2}
    ends = {0: (20, 16), 1: (18, 0), 2: (26, 22)}
    for one in order:
        tree.unlock(held[one])
        kept.discard(one)
        full = max((ends[k][0] for k in kept), default=0)
        swa = len({p for k in kept for p in range(ends[k][1], ends[k][0])})
        assert figures(tree) == (26 - full, full, 26 - swa, swa)


def test_the_swa_half_can_be_let_go_before_the_full_one() -> None:
    tree, sink = RadixTree(1, window=4), Sink()
    put(tree, seq((0, 20)))
    held = lock(tree, seq((0, 20)))
    tree.unlock_swa(held)
    assert figures(tree) == (0, 20, 20, 0)
    # The held leaf cannot go, but its SWA half can.
    assert tree.evict(5, 20, sink) == (0, 20)
    assert [name for name, _ in sink.drain()] == ["swa", "swa"]
    tree.unlock(held, swa=False)
    assert figures(tree) == (20, 0, 0, 0)


def test_a_lock_that_is_let_go_twice_is_found_out() -> None:
    tree = RadixTree(1, window=4)
    put(tree, seq((0, 20)))
    held = lock(tree, seq((0, 20)))
    tree.unlock_swa(held)
    with pytest.raises(InvariantError, match="unlocked more often"):
        tree.unlock_swa(held)


# Inserts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("window", "page", "tail"), [(4, 1, 4), (5, 4, 8), (128, 256, 256), (128, 64, 128)])
def test_a_new_leaf_is_cut_so_that_a_lock_holds_one_window_of_whole_pages(window: int, page: int, tail: int) -> None:
    tree = RadixTree(page, window=window)
    length = 10 * tail
    _, leaf = put(tree, seq((0, length)))
    assert shape(tree) == [(0, length - tail, True), (length - tail, length, True)]
    tree.lock(leaf)
    assert figures(tree) == (0, length, length - tail, tail)
    # One that is no longer than that stays whole.
    tree = RadixTree(page, window=window)
    put(tree, seq((0, tail)))
    assert shape(tree) == [(0, tail, True)]


def test_what_is_there_already_is_freed_above_what_the_tree_owns() -> None:
    tree, sink = RadixTree(1), Sink()
    put(tree, seq((0, 10)))
    before, node = put(tree, seq((0, 10), (50, 53)), sink, first=100, owned_from=4)
    assert (before, node.begin, node.end) == (10, 10, 13)
    assert sink.drain() == [("both", list(range(104, 110)))]
    assert node.slots.tolist() == [110, 111, 112]


def test_duplicates_below_the_dead_part_have_a_full_half_only() -> None:
    tree, sink = RadixTree(1, window=4), Sink()
    put(tree, seq((0, 4)))
    put(tree, seq((0, 12)), owned_from=4)
    assert shape(tree) == [(0, 4, True), (4, 8, True), (8, 12, True)]
    put(tree, seq((0, 12)), sink, first=100, owned_from=2, swa_from=6)
    assert sink.drain() == [
        ("full", [102, 103]),
        ("full", [104, 105]),
        ("both", [106, 107]),
        ("both", [108, 109, 110, 111]),
    ]


def test_a_new_leaf_is_dead_below_the_window_cursor() -> None:
    tree = RadixTree(1, window=4)
    put(tree, seq((0, 20)), swa_from=6)
    assert shape(tree) == [(0, 6, False), (6, 16, True), (16, 20, True)]
    assert figures(tree) == (20, 0, 14, 0)
    tree = RadixTree(1, window=4)
    put(tree, seq((0, 20)), swa_from=20)
    assert shape(tree) == [(0, 20, False)]


def dead_root_side(window: int = 4) -> RadixTree:
    """Slots 0 ... 19 in a dead node [0, 16) and an alive one [16, 20)."""
    tree = RadixTree(1, window=window)
    put(tree, seq((0, 20)))
    tree.evict(0, 1, Sink())
    assert shape(tree) == [(0, 16, False), (16, 20, True)]
    return tree


def test_a_tombstone_nobody_holds_comes_to_life_with_the_new_slots() -> None:
    tree, sink = dead_root_side(), Sink()
    before, _ = put(tree, seq((0, 20)), sink, first=100)
    assert before == 20
    # The old full half goes, and of the rest the new slots, which are there twice.
    assert sink.drain() == [("full", list(range(16))), ("both", [116, 117, 118, 119])]
    assert sink.moved == []
    assert shape(tree) == [(0, 16, True), (16, 20, True)]
    assert figures(tree) == (20, 0, 20, 0)
    first, second = sorted(tree.nodes(), key=lambda node: node.begin)
    assert (first.slots.tolist(), second.slots.tolist()) == (list(range(100, 116)), [16, 17, 18, 19])


def test_a_tombstone_that_is_held_keeps_its_full_half() -> None:
    tree, sink = dead_root_side(), Sink()
    held = lock(tree, seq((0, 20)))
    put(tree, seq((0, 20)), sink, first=100)
    # The SWA half of the new slots moves to the old ones; the new full half goes.
    assert sink.moved == [(list(range(16)), list(range(100, 116)))]
    assert sink.drain() == [("full", list(range(100, 116))), ("both", [116, 117, 118, 119])]
    assert figures(tree) == (0, 20, 16, 4)
    tree.unlock(held)
    assert figures(tree) == (20, 0, 20, 0)


def test_a_tombstone_within_a_held_window_comes_to_life_held() -> None:
    # [0, 6) alive, [6, 9) dead, [9, 10) alive, all four of the window's tokens held.
    tree = RadixTree(1, window=4)
    put(tree, seq((0, 6)))
    _, leaf = put(tree, seq((0, 10)), owned_from=6, swa_from=9)
    held = tree.lock(leaf)
    assert figures(tree) == (0, 10, 6, 1)
    put(tree, seq((0, 10)), Sink(), first=100)
    assert figures(tree) == (0, 10, 6, 4)
    tree.unlock(held)
    assert figures(tree) == (10, 0, 10, 0)


def test_only_the_part_with_a_live_half_comes_to_life() -> None:
    tree, sink = dead_root_side(), Sink()
    put(tree, seq((0, 20)), sink, first=100, swa_from=10)
    assert shape(tree) == [(0, 10, False), (10, 16, True), (16, 20, True)]
    assert sink.drain() == [
        ("full", list(range(10, 16))),
        ("full", list(range(100, 110))),
        ("both", [116, 117, 118, 119]),
    ]
    assert figures(tree) == (20, 0, 10, 0)


def test_slots_the_tree_owns_bring_no_tombstone_to_life() -> None:
    tree, sink = dead_root_side(), Sink()
    put(tree, seq((0, 22)), sink, first=100, owned_from=20)
    assert shape(tree) == [(0, 16, False), (16, 20, True), (20, 22, True)]
    assert sink.drain() == []


# Any operations, against a model of single pages -------------------------------------------------------------------


class Pages:
    """A prefix tree of single pages: what a *node* is follows from where pages branch and where a cut was made.

    A page is the tuple of all keys up to its end. ``ends`` holds, oldest stamp known, the pages at which a node ends.
    """

    def __init__(self, page: int, window: int | None) -> None:
        self.page, self.window = page, window
        self.alive: dict[tuple[int, ...], bool] = {}
        self.ends: dict[tuple[int, ...], int] = {}
        self.clock = 0
        self.recent: list[tuple[int, ...]] = []  # ends of nodes with an SWA half, most recent first
        self.full_locks: dict[int, tuple[int, ...]] = {}
        self.swa_locks: dict[int, tuple[tuple[int, ...], int]] = {}  # end, and how far it reaches up

    # -- nodes
    def up(self, at: tuple[int, ...]) -> tuple[int, ...]:
        """Where the node that ends at ``at`` begins."""
        at = at[: -self.page]
        while at and at not in self.ends:
            at = at[: -self.page]
        return at

    def path(self, at: tuple[int, ...]) -> list[tuple[int, ...]]:
        found = []
        while at:
            found.append(at)
            at = self.up(at)
        return found[::-1]

    def pages_of(self, end: tuple[int, ...]) -> list[tuple[int, ...]]:
        begin = len(self.up(end))
        return [end[:i] for i in range(begin + self.page, len(end) + 1, self.page)]

    def size(self, end: tuple[int, ...]) -> int:
        return len(end) - len(self.up(end))

    def is_leaf(self, end: tuple[int, ...]) -> bool:
        return not any(other != end and other[: len(end)] == end for other in self.ends)

    def touch(self, end: tuple[int, ...]) -> None:
        self.clock += 1
        self.ends[end] = self.clock

    def cut(self, at: tuple[int, ...]) -> None:
        """Make ``at`` the end of a node."""
        if not at or at in self.ends:
            return
        below = next(e for e in sorted(self.ends, key=len) if e[: len(at)] == at)
        self.touch(at)
        self.touch(below)
        if below in self.recent:
            self.recent.insert(self.recent.index(below) + 1, at)

    # -- locks
    def full_held(self, at: tuple[int, ...]) -> bool:
        return any(end[: len(at)] == at for end in self.full_locks.values())

    def swa_held(self, at: tuple[int, ...]) -> bool:
        return any(end[: len(at)] == at and len(at) > reach for end, reach in self.swa_locks.values())

    def lock(self, name: int, at: tuple[int, ...]) -> None:
        self.full_locks[name] = at
        if self.window is not None:
            reach = at
            while reach and len(at) - len(reach) < self.window:
                reach = self.up(reach)
            self.swa_locks[name] = (at, len(reach))

    # -- operations
    def cached(self, key: tuple[int, ...]) -> tuple[int, ...]:
        at = 0
        while at < len(key) and key[: at + self.page] in self.alive:
            at += self.page
        return key[:at]

    def match(self, key: tuple[int, ...]) -> tuple[int, int]:
        full = self.cached(key)
        # Nodes are cut on the way down, one at most.
        self.cut(full)
        best = full
        if self.window is not None:
            best, row = (), float("inf")
            for end in self.path(full):
                row = row + self.size(end) if self.alive[end] else 0
                if row >= self.window:
                    best = end
            self.refresh(best)
        for end in self.path(best):
            self.touch(end)
        return len(best), len(full)

    def refresh(self, at: tuple[int, ...]) -> None:
        assert self.window is not None
        moved = []
        covered = 0
        for end in self.path(at)[::-1]:
            if covered >= self.window + self.page:
                break
            covered += self.size(end)
            if self.alive[end]:
                moved.append(end)
        self.recent = moved + [end for end in self.recent if end not in moved]

    def insert(self, key: tuple[int, ...], owned: int, dead: int) -> tuple[int, int, int]:
        """Tokens that were there; tokens of either half that come back."""
        there = self.cached(key)
        full = swa = 0
        at: tuple[int, ...] = ()
        while len(at) < len(there):
            below = min((e for e in self.ends if e[: len(at) + self.page] == key[: len(at) + self.page]), key=len)
            self.touch(below)
            end = below if there[: len(below)] == below else there
            self.cut(end)
            for at in self.pages_of(end):
                low = len(at) - self.page
                live = low >= dead
                if self.window is not None and not self.alive[at] and owned < len(end) and live:
                    full += self.page  # one full half too many, whichever it is
                elif low >= owned:
                    full += self.page
                    swa += self.page if live else 0
            if self.window is not None and not self.alive[end] and owned < len(end) and len(end) > dead:
                self.cut(key[: max(len(self.up(end)), dead)])
                for one in self.pages_of(end):
                    self.alive[one] = True
                self.recent.insert(0, end)
            at = end
        if len(there) < len(key):
            for i in range(len(there) + self.page, len(key) + 1, self.page):
                self.alive[key[:i]] = self.window is not None and i > dead
            self.touch(key)
            if self.window is not None and len(key) > dead:
                self.cut(key[: max(len(there), dead)])
                tail = -(-self.window // self.page) * self.page
                if self.size(key) > tail:
                    self.cut(key[:-tail])
                    self.recent.insert(0, key[:-tail])
                self.recent.insert(0, key)
        if self.window is not None:
            self.refresh(key)
        return len(there), full, swa

    def delete(self, end: tuple[int, ...]) -> tuple[int, int]:
        size, swa = self.size(end), self.size(end) if self.alive[end] else 0
        for one in self.pages_of(end):
            del self.alive[one]
        del self.ends[end]
        if end in self.recent:
            self.recent.remove(end)
        return size, swa

    def evict(self, full: int, swa: int) -> tuple[int, int]:
        gone = [0, 0]
        while gone[0] < full:
            leaves = [e for e in self.ends if self.is_leaf(e) and not self.full_held(e)]
            if not leaves:
                break
            size, live = self.delete(min(leaves, key=lambda e: self.ends[e]))
            gone[0] += size
            gone[1] += live
        for end in self.recent[::-1]:
            if gone[1] >= swa:
                break
            if self.swa_held(end):
                continue
            if self.is_leaf(end) and not self.full_held(end):
                size, live = self.delete(end)
                gone[0] += size
                gone[1] += live
                continue
            gone[1] += self.size(end)
            for one in self.pages_of(end):
                self.alive[one] = False
            self.recent.remove(end)
        return gone[0], gone[1]

    def figures(self) -> tuple[int, int, int, int]:
        held = [0, 0, 0, 0]
        for at, alive in self.alive.items():
            held[self.full_held(at)] += self.page
            if alive:
                held[2 + self.swa_held(at)] += self.page
        return tuple(held)  # type: ignore[return-value]


Op = tuple[str, Any]


@st.composite
def lives(draw: Any) -> tuple[int, bool, int | None, list[Op]]:
    """A tree and what happens to it; sequences share prefixes, as they are drawn from few tokens."""
    page = draw(st.sampled_from([1, 1, 2, 4]))
    bigram = draw(st.booleans())
    window = draw(st.sampled_from([None, 1, 3, 4, 9]))
    words: list[list[int]] = [[]]
    ops: list[Op] = []
    for number in range(draw(st.integers(1, 30))):
        what = draw(st.sampled_from(["insert", "insert", "match", "lock", "unlock", "release", "evict", "evict"]))
        base = words[draw(st.integers(0, len(words) - 1))]
        keep = draw(st.integers(0, len(base)))
        own = draw(st.sampled_from([0, 0, 1, 2, 5])) * page
        keep = len(base) if draw(st.integers(0, 2)) else keep
        word = base[:keep] + ([1000 * (number + 1) + i for i in range(own)] if draw(st.booleans()) else [7] * own)
        if what == "insert":
            words.append(word)
            ops.append((what, (word, draw(st.floats(0, 1)), draw(st.floats(0, 1)))))
        elif what in ("match", "lock"):
            ops.append((what, word))
        elif what in ("unlock", "release"):
            ops.append((what, draw(st.integers(0, 5))))
        else:
            ops.append((what, (draw(st.sampled_from([0, 1, 4, 12])), draw(st.sampled_from([0, 1, 4, 12])))))
    return page, bigram, window, ops


def keys_of(tokens: list[int], page: int, bigram: bool) -> tuple[Any, ...]:
    keys: list[Any] = list(zip(tokens, tokens[1:], strict=False)) if bigram else list(tokens)
    return tuple(keys[: len(keys) // page * page])


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(lives())
def test_any_life_of_a_tree_is_that_of_its_pages(life: tuple[int, bool, int | None, list[Op]]) -> None:
    page, bigram, window, ops = life
    tree, model, sink = RadixTree(page, bigram=bigram, window=window), Pages(page, window), Sink()
    locks: dict[int, tuple[Lock, bool]] = {}
    taken_full = taken_swa = 0
    for number, (what, more) in enumerate(ops):
        if what == "insert":
            tokens, low, high = Tokens.of(more[0]), more[1], more[2]
            key = keys_of(more[0], page, bigram)
            assert tree.key_length(len(tokens)) == len(key)
            # Only what the tree has can be its own already, and slots below that have the tree's halves.
            owned = int(low * (len(model.cached(key)) // page)) * page
            dead = 0 if window is None else owned + int(high * ((len(key) - owned) // page)) * page
            taken_full += len(key) - owned
            taken_swa += len(key) - max(owned, dead)
            before = (sink.full, sink.swa)
            want = model.insert(key, owned, dead)
            got = tree.insert(tokens, len(key), UNNUMBERED, Quiet(sink), owned_from=owned, swa_from=dead)[0]
            assert (got, sink.full - before[0]) == want[:2]
            if window is not None:
                assert sink.swa - before[1] == want[2]
        elif what in ("match", "lock"):
            found = tree.match(Tokens.of(more), len(more))
            hit, full = model.match(keys_of(more, page, bigram))
            assert (found.length, found.full_length) == (hit, full)
            assert found.branch == (full if full > hit else 0)
            if found.branch:
                event("branch")
            if what == "lock":
                locks[number] = (tree.lock(found.node), True)
                model.lock(number, keys_of(more, page, bigram)[:hit])
        elif what == "evict":
            before = (sink.full, sink.swa)
            full, swa = more[0], more[1] if window is not None else 0
            want = model.evict(full, swa)
            got = tree.evict(full, swa, Quiet(sink))
            if window is None:
                assert got[0] == want[0] == sink.full - before[0]
            else:
                assert got == want == (sink.full - before[0], sink.swa - before[1])
            if any(got):
                event("evicted")
        elif locks:
            name = sorted(locks)[more % len(locks)]
            held, swa_too = locks[name]
            if what == "unlock":
                tree.unlock(held, swa=swa_too)
                del locks[name], model.full_locks[name]
                model.swa_locks.pop(name, None)
            elif window is not None and swa_too:
                tree.unlock_swa(held)
                locks[name] = (held, False)
                del model.swa_locks[name]
        tree.check()
        have = figures(tree)
        assert have == model.figures()
        assert shape(tree) == sorted(
            (len(model.up(end)), len(end), model.alive[end] and window is not None) for end in model.ends
        )
        # Whatever was handed over is in the tree or was given back.
        assert taken_full - sink.full == have[0] + have[1]
        if window is not None:
            assert taken_swa - sink.swa == have[2] + have[3]
            assert tree.tombstones == have[0] + have[1] - have[2] - have[3]
    for held, swa_too in locks.values():
        tree.unlock(held, swa=swa_too)
    tree.evict(1 << 40, 0, Quiet(sink))
    assert figures(tree) == (0, 0, 0, 0)
    assert sink.full == taken_full
    assert window is None or sink.swa == taken_swa


class Quiet:
    """Counts into a sink, without slots."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink

    def free(self, slots: Any, tokens: int) -> None:
        assert tokens > 0
        self.sink.full += tokens
        self.sink.swa += tokens

    def free_full(self, slots: Any, tokens: int) -> None:
        assert tokens > 0
        self.sink.full += tokens

    def free_swa(self, slots: Any, tokens: int) -> None:
        assert tokens > 0
        self.sink.swa += tokens

    def move_swa(self, kept: Any, incoming: Any) -> None:
        pass


# Counted and numbered ----------------------------------------------------------------------------------------------


def pools_of(kind: type[Pools], page: int, window: int | None) -> Pools:
    full = CountedPool("full", 60 * page, page)
    return kind(full, CountedPool("swa", 40 * page, page) if window is not None else None, page, 4)


def free_ids(pools: NumberedPools) -> tuple[list[int], list[int]]:
    """Free slots of the full and of the SWA pool."""
    allocator: Any = pools.allocator
    sides = [allocator.pool] if pools.swa is None else [allocator.full, allocator.swa]
    found = []
    for side in sides:
        pages = np.concatenate([side.free_pages, side.held_pages])
        found.append((pages[:, None] * side.page_size + np.arange(side.page_size)).ravel().tolist())
    return found[0], found[1] if len(found) > 1 else []


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(lives())
def test_counted_and_numbered_pools_tell_the_same(life: tuple[int, bool, int | None, list[Op]]) -> None:
    page, bigram, window, ops = life
    sides: list[tuple[Any, RadixTree, dict[int, tuple[Lock, bool]]]] = [
        (pools_of(kind, page, window), RadixTree(page, bigram=bigram, window=window), {})
        for kind in (Pools, NumberedPools)
    ]
    for number, (what, more) in enumerate(ops):
        told = []
        for pools, tree, locks in sides:
            said: Any = None
            if what == "insert":
                said = insert_fresh(pools, tree, more[0], more[2])
            elif what == "match":
                said = tree.match(Tokens.of(more), len(more))._replace(node=None)  # type: ignore[arg-type]
            elif what == "lock":
                locks[number] = (tree.lock(tree.match(Tokens.of(more), len(more)).node), True)
            elif what == "evict":
                said = tree.evict(more[0], more[1] if window is not None else 0, pools)
            elif locks:
                name = sorted(locks)[more % len(locks)]
                held, swa_too = locks[name]
                if what == "unlock":
                    tree.unlock(held, swa=swa_too)
                    del locks[name]
                elif window is not None and swa_too:
                    tree.unlock_swa(held)
                    locks[name] = (held, False)
            pools.check()
            told.append((said, figures(tree), shape(tree), pools.available()))
        assert told[0] == told[1]
        numbered, tree, _ = sides[1]
        own_every_slot_once(numbered, tree)


def insert_fresh(pools: Any, tree: RadixTree, word: list[int], share: float) -> Any:
    """Insert a sequence with slots of its own, of which the SWA half is gone up to a share of the key."""
    tokens, page = Tokens.of(word), tree.page_size
    key = tree.key_length(len(word))
    whole = -(-len(word) // page) * page
    if not key or whole > pools.available():
        return None
    slots: Any = UNNUMBERED
    for pool in (pools.full, pools.swa):
        if pool is not None:
            pool.take(whole)
    if isinstance(pools, NumberedPools):
        slots = pools.allocator.extend(np.array([0]), np.array([len(word)]), np.array([-1]))
    dead = 0 if tree.window is None else int(share * (key // page)) * page
    if dead:
        pools.free_swa(slots[:dead], dead)
    before = tree.insert(tokens, key, slots[:key], pools, swa_from=dead)[0]
    if len(word) > key:
        pools.free(slots[key:], len(word) - key)
    return before


def own_every_slot_once(pools: NumberedPools, tree: RadixTree) -> None:
    """Every slot is either free or in one node of the tree; so is every SWA slot."""
    full_free, swa_free = free_ids(pools)
    nodes = list(tree.nodes())
    assert all(len(node.slots) == len(node) for node in nodes)
    kept = [slot for node in nodes for slot in node.slots.tolist()]
    # Slot 0, or page 0, is the padding.
    page = pools.page_size
    assert sorted(full_free + kept) == list(range(page, pools.main.capacity + page))
    if pools.swa is None:
        return
    peers = {True: [], False: []}  # type: dict[bool, list[int]]
    for node in nodes:
        peers[node.swa] += pools.allocator.translate(node.slots).tolist()
    assert sorted(swa_free + peers[True]) == list(range(page, pools.swa.capacity + page))
    assert not any(peers[False])
