"""Pools that hand out real slot ids, beside counting them: the same memory code drives either."""

from __future__ import annotations

from typing import Any

import numpy as np

from simkv.engines.sglang.pools import Pools
from simkv.engines.sglang.slots import AllSwaSlots, FullSlots, SlotAllocator, SwaSlots
from simkv.errors import InvariantError
from simkv.memory.pages import CountedPool
from simkv.memory.radix import Node
from simkv.workload.request import IntArray

__all__ = ["NumberedPools"]


class NumberedPools(Pools):
    """Pools whose slots have numbers; ``slots`` and what the prefix tree keeps are arrays of full-pool ids.

    Attributes
    ----------
    allocator : SlotAllocator
        Hands out the ids, and maps those of the full pool to those of the SWA pool.
    row_ids : dict
        Handle to the request row it has (``req_pool_idx``).
    """

    def __init__(self, full: CountedPool | None, swa: CountedPool | None, page_size: int, rows: int) -> None:
        super().__init__(full, swa, page_size, rows)
        self.allocator: SlotAllocator
        if swa is None:
            self.allocator = FullSlots(self.main.capacity, page_size)
        elif full is None:
            self.allocator = AllSwaSlots(swa.capacity, page_size)
        else:
            self.allocator = SwaSlots(full.capacity, swa.capacity, page_size)
        self.row_ids: dict[int, int] = {}
        # Row 0 pads; rows are taken from the tail and put back there (mem_cache/memory_pool.py:437-460).
        self._free_rows = list(range(1, rows + 1))
        self._rows: dict[int, IntArray] = {}

    def slots(self, handle: int, begin: int, end: int) -> IntArray:
        """Full-pool ids of a stretch of a request's row."""
        return self._rows[handle][begin:end].copy()

    def open_rows(self, handles: IntArray) -> None:
        """Give requests a row; rows taken together are in ascending order."""
        count = len(handles)
        if count:
            taken, self._free_rows = self._free_rows[-count:], self._free_rows[:-count]
            for handle, row in zip(handles.tolist(), taken, strict=True):
                self.row_ids[handle] = row
                self._rows[handle] = np.zeros(0, np.int64)

    def close_row(self, handle: int) -> None:
        """Take a request's row back."""
        self._free_rows.append(self.row_ids.pop(handle))
        del self._rows[handle]

    def _write(self, handle: int, begin: int, ids: IntArray) -> None:
        row, end = self._rows[handle], begin + len(ids)
        if end > len(row):
            row = np.concatenate([row, np.zeros(max(end - len(row), len(row)), np.int64)])
            self._rows[handle] = row
        row[begin:end] = ids

    def take(self, handles: IntArray, before: IntArray, after: IntArray, tokens: int) -> None:
        """Allocate ids: the rest of a request's last page, whole pages, the page of its tail."""
        super().take(handles, before, after, tokens)
        ids = self._hand_out(handles, before, after, tokens)
        parts = np.split(ids, np.cumsum(after - before)[:-1])
        for handle, begin, part in zip(handles.tolist(), before.tolist(), parts, strict=True):
            self._write(handle, begin, part)

    def _hand_out(self, handles: IntArray, before: IntArray, after: IntArray, tokens: int) -> IntArray:
        grown, begins = handles.tolist(), before.tolist()
        last = [self._rows[handle][begin - 1] if begin else -1 for handle, begin in zip(grown, begins, strict=True)]
        ids = self.allocator.extend(before, after, np.array(last, np.int64))
        if ids is None:
            raise InvariantError(f"{tokens} tokens counted as free, and no slots for them")
        return ids

    def adopt(self, handle: int, begin: int, node: Node) -> None:
        """Let a request's row from ``begin`` on hold the slots of the cached path that ends at ``node``."""
        here: Node | None = node
        while here is not None and here.end > begin:
            skip = max(begin - here.begin, 0)
            self._write(handle, here.begin + skip, here.slots[skip:])
            here = here.parent

    def begin_group(self) -> None:
        """Defer frees of ids."""
        self.allocator.begin_group()

    def end_group(self) -> None:
        """Let deferred frees take effect."""
        self.allocator.end_group()

    def free(self, slots: Any, tokens: int) -> None:
        """Free both halves."""
        super().free(slots, tokens)
        self.allocator.free_segment(slots, 0)

    def free_full(self, slots: Any, tokens: int) -> None:
        """Free the full half."""
        super().free_full(slots, tokens)
        self.allocator.free_full_segment(slots, 0)

    def free_swa(self, slots: Any, tokens: int) -> None:
        """Free the SWA half."""
        super().free_swa(slots, tokens)
        self.allocator.free_swa_segment(slots, 0)

    def move_swa(self, kept: Any, incoming: Any) -> None:
        """Give kept full slots the SWA halves of incoming ones."""
        self.allocator.move_mapping(kept, incoming)

    def check(self) -> None:
        """Whether counts and slot numbers agree.

        Raises
        ------
        InvariantError
            They do not.
        """
        for pool, ids in ((self.full, self.allocator.full_available), (self.swa, self.allocator.swa_available)):
            if pool is not None and pool.available != ids:
                raise InvariantError(f"{pool.name} pool: {pool.available} tokens are counted as free, {ids} slots are")
