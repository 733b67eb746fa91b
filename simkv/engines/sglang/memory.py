"""Who holds which KV: requests, and the prefix tree that outlives them.

Mutation happens here and only here; the rules of who allocates when are in :mod:`.scheduling`. Whether slots are
counted or have numbers is the pools' business: the operations are the same.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simkv.engines.base import EVICTION_CAUSES
from simkv.engines.sglang.pools import Pools
from simkv.engines.sglang.reserve import ceil_page, floor_page
from simkv.engines.sglang.table import RequestTable
from simkv.errors import InvariantError
from simkv.memory.pages import CountedPool
from simkv.memory.radix import Lock, Node, RadixTree
from simkv.workload.request import IntArray
from simkv.workload.tokens import Tokens

__all__ = ["Holding", "KvMemory"]

_NO_TOKENS = Tokens(())


class Holding(NamedTuple):
    """Tokens of one pool, by who has them; they add up to its capacity in whole pages."""

    available: int
    evictable: int
    protected: int
    uncached: int


class KvMemory:
    """Pools, requests and prefix tree of one server.

    Parameters
    ----------
    pools : Pools
        The target's pools.
    tree : RadixTree or None
        None with ``--disable-radix-cache``.
    window : int or None
        Sliding window of the SWA cache; None without an SWA pool.
    exact_release : bool
        False with the fault ``unaligned-reserve``: what a request recorded is freed, the tail of its last page is
        lost.
    keeps_dead_slots : bool
        An all-SWA model inserts slots its window freed already (fault F3); False: they stay out of the tree.

    Attributes
    ----------
    table : RequestTable
    rows_free : int
        Request rows nobody has.
    window_evicted : int
        SWA tokens freed because they slid out of a window.
    evicted : dict
        (pool, cause) to tokens evicted from the tree to make room.
    counted_twice : int
        SWA tokens that are free and in the tree, or free twice (fault F3).
    kept_out : int
        Tokens that did not get into the tree, so that none is counted twice.
    """

    def __init__(
        self,
        pools: Pools,
        tree: RadixTree | None = None,
        *,
        window: int | None = None,
        exact_release: bool = True,
        keeps_dead_slots: bool = True,
    ) -> None:
        self.pools = pools
        self.full: CountedPool | None = pools.full
        self.swa: CountedPool | None = pools.swa
        self.tree = tree
        self.window = window
        self.page_size = pools.page_size
        self.rows_free = self.rows_total = pools.rows
        self.table = RequestTable()
        self.window_evicted = 0
        self.evicted = {(pool, cause): 0 for pool in ("full", "swa") for cause in EVICTION_CAUSES}
        self.leaked_full = 0
        self.leaked_swa = 0
        self.counted_twice = 0
        self.kept_out = 0
        self._exact_release = exact_release
        self._keeps_dead_slots = keeps_dead_slots
        # By handle: what the request's tokens are, where its cached prefix ends, and the lock on it.
        self._tokens: list[Tokens] = []
        self._nodes: list[Node | None] = []
        self._locks: list[Lock | None] = []
        if window is not None:
            kept = max(window, self.page_size) if tree is not None else window
            # What stays of a window: whole pages where the rest of the row may go into the tree (mem_cache/common.py:112).
            self._kept = ceil_page(kept, self.page_size) if tree is not None else kept

    # ---- questions
    @property
    def capacity(self) -> int:
        """Tokens the scheduler counts on: the full pool, or the SWA pool of an all-SWA model."""
        return self.pools.main.capacity

    def available(self) -> int:
        """Tokens that can be allocated without eviction."""
        return self.pools.available()

    @property
    def reclaimable(self) -> int:
        """Tokens of the main pool that are free or can be evicted."""
        return self.pools.main.available + (self.tree.full_evictable if self.tree is not None else 0)

    @property
    def reclaimable_swa(self) -> int:
        """Tokens of the SWA pool that are free or can be evicted."""
        assert self.swa is not None
        return self.swa.available + self._cached("swa")[0]

    def _cached(self, pool: str) -> tuple[int, int]:
        """Tokens of a pool in the tree: evictable, protected. The only half of a lone pool is the tree's full one."""
        tree = self.tree
        if tree is None:
            return 0, 0
        if pool == "full" or self.full is None:
            return tree.full_evictable, tree.full_protected
        return tree.swa_evictable, tree.swa_protected

    def holding(self, pool: CountedPool) -> Holding:
        """Who has the tokens of a pool."""
        evictable, protected = self._cached(pool.name)
        return Holding(pool.available, evictable, protected, pool.usable - pool.available - evictable - protected)

    def short_pool(self, tokens: int) -> str:
        """Name of the pool that cannot give ``tokens``; the full pool first."""
        if self.full is not None and self.full.available < tokens:
            return "full"
        return "swa" if self.swa is not None else "full"

    def pages_between(self, before: IntArray, after: IntArray) -> int:
        """Tokens of the whole pages that growing from ``before`` to ``after`` takes."""
        page = self.page_size
        if page == 1:
            return int((after - before).sum())
        return int((-(-after // page) + (-before // page)).sum()) * page

    # ---- arrival and prefix
    def tokens(self, handle: int) -> Tokens:
        """What a waiting or running request is made of."""
        return self._tokens[handle]

    def add(self, tokens: Tokens) -> None:
        """Remember what the newest request of the table is made of: prompt, then answer."""
        self._tokens.append(tokens)
        self._nodes.append(None)
        self._locks.append(None)

    def match(self, handle: int) -> None:
        """Find the cached prefix of a waiting request; at least its last token is left to compute.

        Notes
        -----
        Rule: managers/schedule_batch.py:1692-1785, mem_cache/common.py:193-268.
        """
        if self.tree is None:
            return
        table = self.table
        length = int(table.input_tokens[handle]) + int(table.output[handle])
        found = self.tree.match(self._tokens[handle], length - 1)
        table.prefix_len[handle] = table.protected[handle] = found.length
        table.branch[handle] = found.branch
        self._nodes[handle] = found.node

    def refresh(self, handle: int) -> None:
        """Make the cached prefix of a waiting request recent (managers/schedule_policy.py:282-302)."""
        if self.tree is not None:
            table = self.table
            self.tree.match(self._tokens[handle], int(table.input_tokens[handle]) + int(table.output[handle]))

    def lock(self, handle: int) -> None:
        """Hold the prefix that was matched."""
        if self.tree is not None and (node := self._nodes[handle]):
            self._locks[handle] = self.tree.lock(node)

    def unlock(self, handle: int) -> None:
        """Let the held prefix go."""
        if self.tree is not None and (lock := self._locks[handle]):
            self.tree.unlock(lock)
            self._locks[handle] = None

    # ---- allocation
    def make_room(self, tokens: int, cause: str) -> None:
        """Evict from the tree until ``tokens`` can be allocated on every side, or nothing more can go.

        Notes
        -----
        Rule: mem_cache/allocator/base.py:127-139, swa.py:210-220; each side asks for its own shortfall.
        """
        tree = self.tree
        if tree is None:
            return
        full = tokens - self.pools.main.available
        swa = tokens - self.swa.available if self.swa is not None and self.full is not None else 0
        if full <= 0 and swa <= 0:
            return
        self.pools.cause = f"room for {cause}"
        gone = tree.evict(max(full, 0), max(swa, 0), self.pools)
        self.evicted[self.pools.main.name, cause] += gone[0]
        self.evicted["swa", cause] += gone[1]

    def open_rows(self, handles: IntArray) -> None:
        """Give requests a row, which begins with the slots of their cached prefix."""
        self.rows_free -= len(handles)
        if self.rows_free < 0:
            raise InvariantError(f"{len(handles)} request rows taken, {self.rows_free + len(handles)} were free")
        self.pools.cause = "prefill"
        self.pools.open_rows(handles)
        if self.tree is not None:
            for handle in handles.tolist():
                if node := self._nodes[handle]:
                    self.pools.adopt(handle, 0, node)

    def grow(self, handles: IntArray, before: IntArray, after: IntArray, tokens: int, cause: str) -> None:
        """Allocate for rows that grow ``before -> after``: ``tokens`` in whole pages, which are there."""
        self.pools.cause = cause
        self.pools.take(handles, before, after, tokens)

    # ---- window
    def slide_window(self, handle: int, pre: int) -> None:
        """Free the SWA slots of a request that slid out of the window of position ``pre``.

        Those below ``protected`` are the tree's: the cursor jumps over them (mem_cache/common.py:75-138).
        """
        assert self.window is not None
        table, page = self.table, self.page_size
        cursor = int(table.swa_evicted[handle])
        if pre - self.window < cursor + 1:
            return
        begin = max(cursor, int(table.protected[handle]))
        end = floor_page(max(begin, pre - self._kept), page)
        if end > begin:
            self.pools.cause = "window"
            self.pools.free_swa(self.pools.slots(handle, begin, end), end - begin)
            self.window_evicted += end - begin
            begin = end
        table.swa_evicted[handle] = begin

    # ---- tree
    def checkpoint(self, handle: int, upto: int, *, finished: bool = False) -> None:
        """Hand the first ``upto`` tokens of a request to the tree, and hold them there.

        With an SWA branch point pending, only as far as that point is handed over (components/swa.py:999-1069).

        Notes
        -----
        Rule: mem_cache/unified_radix_cache.py:1164-1327; all-SWA models radix_cache.py:510-543.
        """
        tree, table = self.tree, self.table
        if tree is None:
            return
        bigram, split = tree.bigram, tree.window is not None
        protected, branch = int(table.protected[handle]), int(table.branch[handle])
        length = upto
        at_branch = split and protected < branch <= upto - bigram
        if at_branch:
            length = branch + bigram
        if split and not finished:
            self.slide_window(handle, max(0, length - bigram) - 1)
        if length <= 0:
            return
        dead = int(table.swa_evicted[handle])
        key = self._sound_key(tree.key_length(length), protected, dead)
        tokens, slots = self._tokens[handle], self.pools.slots(handle, 0, key)
        self.pools.cause = "insert"
        _, node = tree.insert(tokens, key, slots, self.pools, owned_from=protected, swa_from=dead if split else 0)
        if not split:
            # Answers can be evicted without their prompt: they begin a node of their own.
            prompt = tree.key_length(int(table.input_tokens[handle]))
            if 0 < prompt < key:
                tree.insert(tokens, prompt, slots[:prompt], self.pools, owned_from=prompt)
        self.pools.adopt(handle, protected, node)
        held = self._locks[handle]
        self._nodes[handle] = node
        self._locks[handle] = tree.lock(node)
        if held is not None:
            tree.unlock(held)
        table.protected[handle] = key
        if at_branch:
            table.branch[handle] = 0
            if not finished:
                self.slide_window(handle, int(table.extend_end[handle]) - bigram - 1)

    def _sound_key(self, key: int, protected: int, dead: int) -> int:
        """Length of a key without the slots an all-SWA model freed before; the engine inserts them (fault F3)."""
        if self.full is not None or dead <= protected:
            return key
        if not self._keeps_dead_slots:
            self.kept_out += max(0, key - protected)
            return min(key, protected)
        self.counted_twice += max(0, min(key, dead) - protected)
        return key

    # ---- release
    def release(self, handle: int, cause: str, *, insert: bool = False) -> int:
        """Give back a request's row and everything it holds outside the tree; returns tokens of its row.

        Parameters
        ----------
        handle : int
        cause : str
            ``finish``, ``retraction`` or ``abort``.
        insert : bool
            Its tokens go into the tree first: of a request that finished, as many as the client got.

        Notes
        -----
        Rule: mem_cache/common.py:152-186, 400-476. The slots below the window cursor go back on the full side only;
        what was allocated beyond the request's own tokens follows in a segment of its own.
        """
        table, page, pools = self.table, self.page_size, self.pools
        allocated, owned = int(table.allocated[handle]), int(table.committed[handle])
        finished_len = int(table.finished_len[handle])
        if finished_len >= 0:
            owned = min(owned, int(table.input_tokens[handle]) + finished_len)
        if insert:
            self.checkpoint(handle, owned, finished=True)
            # It never comes back: what it was made of is the tree's business now.
            self._tokens[handle], self._nodes[handle] = _NO_TOKENS, None
        begin = int(table.protected[handle])
        pools.cause = cause
        if self.swa is not None:
            alive = min(max(begin, int(table.swa_evicted[handle])), owned)
            if alive > begin:
                pools.free_full(pools.slots(handle, begin, alive), alive - begin)
                begin = alive
        if owned > begin:
            pools.free(pools.slots(handle, begin, owned), owned - begin)
        self.unlock(handle)
        over = ceil_page(owned, page)
        if allocated > over:
            pools.free(pools.slots(handle, over, allocated), allocated - over)
        lost = 0 if self._exact_release else ceil_page(allocated, page) - allocated
        if lost:
            self._lose(lost)
        pools.close_row(handle)
        table.allocated[handle] = table.swa_evicted[handle] = 0
        self.rows_free += 1
        return ceil_page(allocated, page)

    def _lose(self, tokens: int) -> None:
        """Fault ``unaligned-reserve``: tokens that nobody gives back."""
        if self.full is not None:
            self.full.take(tokens)
            self.leaked_full += tokens
        if self.swa is not None:
            self.swa.take(tokens)
            self.leaked_swa += tokens

    # ---- conservation
    def check(self) -> None:
        """``available + evictable + protected + uncached == capacity`` in every pool, and the rows.

        Raises
        ------
        InvariantError
            With the pool and the figures, when the identity does not hold.
        """
        table, page = self.table, self.page_size
        allocated = table.allocated[: table.size]
        held = np.flatnonzero(allocated)
        whole = -(-allocated[held] // page) * page - table.protected[held]
        if self.full is not None:
            self._compare(self.full, int(whole.sum()), self.leaked_full)
        if self.swa is not None:
            dead = np.maximum(0, table.swa_evicted[held] - table.protected[held])
            self._compare(self.swa, int((whole - dead).sum()), self.leaked_swa - self.counted_twice)
        if self.rows_free + len(held) != self.rows_total:
            raise InvariantError(f"rows: {self.rows_free} free + {len(held)} held != {self.rows_total}")
        if bool((table.committed[held] > allocated[held]).any()):
            raise InvariantError("a request has more committed KV than slots")
        if self.tree is not None:
            self.tree.check()
        self.pools.check()

    def _compare(self, pool: CountedPool, uncached: int, leaked: int) -> None:
        evictable, protected = self._cached(pool.name)
        held = evictable + protected + uncached + leaked
        gap = pool.available + held - pool.usable
        if gap:
            what = "counted twice" if gap > 0 else "leaked"
            raise InvariantError(
                f"{pool.name} pool: available {pool.available} + evictable {evictable} + protected {protected} + held "
                f"{uncached + leaked} = {pool.available + held} != {pool.usable}: {gap:+d}, "
                f"{abs(gap) / pool.page_size:g} pages {what} ({'over-count' if gap > 0 else 'leak'})"
            )
