"""What the steps of a batch allocate, and what slides out of their windows before (mem_cache/allocation.py)."""

from __future__ import annotations

import numpy as np

from simkv.engines.sglang.journal import Journal
from simkv.engines.sglang.memory import KvMemory
from simkv.engines.sglang.reserve import alloc_reserve_per_decode, decode_alloc_len, extra_context_len
from simkv.engines.sglang.settings import Settings
from simkv.workload.request import IntArray

__all__ = ["Allocation"]


class Allocation:
    """Allocates for the batches of one server.

    Parameters
    ----------
    memory : KvMemory
    settings : Settings
    journal : Journal
    draft_slots : int or None
        Rows of the smallest draft pool that is indexed by full slots, where that is less than the full pool.

    Attributes
    ----------
    row_width : int
        Tokens a request row has place for.
    """

    def __init__(self, memory: KvMemory, settings: Settings, journal: Journal, draft_slots: int | None) -> None:
        page, spec = settings.page_size, settings.spec
        self._memory = memory
        self._table = memory.table
        self._settings = settings
        self._journal = journal
        self._draft_slots = draft_slots
        self._page = page
        self._overlap = not settings.disable_overlap_schedule
        self._spec = spec
        self._reserve = alloc_reserve_per_decode(spec, page) if spec is not None else 0
        self._reserve_page = 1 if "unaligned-reserve" in settings.faults else page
        self.row_width = settings.context_len + extra_context_len(spec, page)
        self._window_frozen = spec is not None and spec.is_dflash and "dflash-no-window-eviction" in settings.faults

    # ---- prefill
    def prefill(self, reqs: IntArray) -> None:
        """Allocate for the chunks ``prefix_len .. extend_end`` (allocation.py:374-488)."""
        table, memory, page = self._table, self._memory, self._page
        begin, end = table.prefix_len[reqs], table.extend_end[reqs]
        if memory.swa is not None and memory.tree is None:
            self._evict_prefill_windows(reqs, begin)
        memory.open_rows(reqs[table.allocated[reqs] == 0])
        tokens = int((end - begin).sum())
        # The engine makes room for a page more a request than it may need (allocation.py:175-205).
        memory.make_room(tokens + (0 if page == 1 else len(reqs) * page), "prefill")
        need = memory.pages_between(begin, end)
        if need > memory.available():
            pool = memory.short_pool(need)
            detail = f"{need} tokens for a prefill of {tokens}, {pool} pool has {memory.available()}"
            raise self._journal.fault("chunk-oom", detail, pool=pool)
        if self._draft_slots is not None:
            self._guard_draft_slots(reqs, -(-end // page) * page - -(-begin // page) * page)
        memory.grow(reqs, begin, end, need, "prefill")
        table.allocated[reqs] = end
        table.committed[reqs] = end
        table.extend_idx[reqs] += 1

    def _evict_prefill_windows(self, reqs: IntArray, prefix: IntArray) -> None:
        """Free what slid out of the window before a later chunk (managers/schedule_batch.py:4105-4122).

        Under overlap the chunk before may still be running, so the first two chunks free nothing and the frontier
        lags by one chunk.
        """
        pre = prefix
        if self._overlap:
            later = self._table.extend_idx[reqs] >= 2
            reqs, pre = reqs[later], prefix[later] - (self._settings.chunk or 0)
        self._slide_windows(reqs, pre)

    # ---- decode
    def decode_need(self, reqs: IntArray) -> int:
        """Tokens the next decode step of ``reqs`` allocates (managers/schedule_batch.py:3403-3430)."""
        table, page = self._table, self._page
        if self._spec is None:
            if page == 1:
                return len(reqs)
            return int(np.count_nonzero(table.committed[reqs] % page == 0)) * page
        held = table.allocated[reqs]
        after = np.maximum(held, table.committed[reqs] + self._reserve)
        if self._settings.repair_faults:
            after = np.minimum(after, self.row_width)
        return self._memory.pages_between(held, after)

    def decode_fits(self, reqs: IntArray) -> bool:
        """Whether the next decode step fits, after eviction (mem_cache/allocator/base.py:171-185)."""
        need = self.decode_need(reqs)
        self._memory.make_room(need, "decode")
        return need <= self._memory.available()

    def decode(self, reqs: IntArray) -> None:
        """Window eviction, then one step's slots (allocation.py:625-688; speculative/eagle_utils.py:857-921)."""
        table = self._table
        if self._memory.swa is not None and not self._window_frozen:
            self._evict_decode_windows(reqs)
        committed = table.committed[reqs]
        if self._spec is None:
            self._decode_one(reqs, committed)
        else:
            self._decode_reserve(reqs, committed)
        if not self._window_frozen:
            table.decode_idx[reqs] += 1

    def _decode_one(self, reqs: IntArray, committed: IntArray) -> None:
        """A slot each, committed at once."""
        table, page = self._table, self._page
        fresh = (committed % page == 0) * page
        need = len(reqs) if page == 1 else int(fresh.sum())
        # A page is made room for each request, whether or not it needs one.
        self._memory.make_room(len(reqs) * page, "decode")
        self._grow(reqs, committed, committed + 1, fresh, need)
        table.committed[reqs] = table.allocated[reqs] = committed + 1

    def _decode_reserve(self, reqs: IntArray, committed: IntArray) -> None:
        """Slots for the verify step at hand and the one after it."""
        table, page = self._table, self._page
        held = table.allocated[reqs]
        after = decode_alloc_len(committed, held, self._reserve, self._reserve_page)
        if int(after.max()) > self.row_width:
            after = self._beyond_the_row(reqs, committed, after)
        grown = int((after - held).sum())
        if grown:
            # With pages, one more for each request (allocation.py:790-846).
            self._memory.make_room(grown + (0 if page == 1 else len(reqs) * page), "decode")
            fresh = -(-after // page) * page - -(-held // page) * page
            self._grow(reqs, held, after, fresh, int(fresh.sum()))
        table.allocated[reqs] = after

    def _beyond_the_row(self, reqs: IntArray, committed: IntArray, after: IntArray) -> IntArray:
        if not self._settings.repair_faults:
            raise self._journal.fault(
                "row-overrun",
                f"a request of {int(committed[after.argmax()]):,} tokens reserves up to slot {int(after.max()):,} of a "
                f"row of {self.row_width:,}",
            )
        for handle in reqs[after > self.row_width].tolist():
            self._journal.note_repair("row-overrun", handle, "full")
        cut: IntArray = np.minimum(after, self.row_width)
        return cut

    def _grow(self, reqs: IntArray, before: IntArray, after: IntArray, fresh: IntArray, need: int) -> None:
        """Allocate ``need`` tokens, of which each request gets ``fresh`` in whole pages."""
        memory = self._memory
        if self._draft_slots is not None:
            self._guard_draft_slots(reqs, fresh)
        if need > memory.available():
            raise self._journal.fault("decode-oom", f"{need} tokens needed, {memory.available()} available")
        memory.grow(reqs, before, after, need, "decode")

    # ---- windows
    def _evict_decode_windows(self, reqs: IntArray) -> None:
        """Free out-of-window SWA slots once a whole interval has slid out (managers/schedule_batch.py:4047-4129)."""
        table, window = self._table, self._memory.window
        assert window is not None
        pre = table.input_tokens[reqs] + table.output[reqs] - 1
        due = pre - (window + self._settings.swa_eviction_interval) >= table.swa_evicted[reqs]
        if due.any():
            due &= table.decode_idx[reqs] >= 1
            self._slide_windows(reqs[due], pre[due])

    def _slide_windows(self, reqs: IntArray, pre: IntArray) -> None:
        """Free what slid out of each request's window."""
        memory, journal, table = self._memory, self._journal, self._table
        memory.pools.begin_group()
        for handle, position in zip(reqs.tolist(), pre.tolist(), strict=True):
            memory.slide_window(handle, position)
            if journal.lost and table.swa_evicted[handle] > table.allocated[handle]:
                raise journal.fault(
                    "F1", f"request {journal.names[handle]}: its window moves past its own slots", handle
                )
        memory.pools.end_group()

    def _guard_draft_slots(self, reqs: IntArray, fresh: IntArray) -> None:
        """Fail where a slot is handed out that lies beyond the draft's pool."""
        pool = self._memory.full
        assert pool is not None and self._draft_slots is not None
        beyond = np.flatnonzero(np.cumsum(fresh) + pool.reach > self._draft_slots)
        if len(beyond):
            handle = int(reqs[beyond[0]])
            last = self._draft_slots + self._page - 1
            detail = (
                f"request {self._journal.names[handle]} is handed full slot {last + 1:,}, the draft's pool ends at slot "
                f"{last:,}"
            )
            raise self._journal.fault("draft-pool-overrun", detail, handle, "full")
