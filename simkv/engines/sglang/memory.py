"""What requests hold: one row of columns a request, and the pools they allocate from.

Mutation happens here and only here; the rules of who allocates when are in :mod:`.scheduling`. Every operation is
vectorised over the rows it is given.
"""

from __future__ import annotations

import numpy as np

from simkv.engines.sglang.reserve import ceil_page
from simkv.errors import InvariantError
from simkv.memory.pages import CountedPool
from simkv.workload.request import IntArray

__all__ = ["FINISHED", "LIVE", "RETRACTED", "KvMemory", "RequestTable"]

LIVE, RETRACTED, FINISHED = 0, 1, 2

_COLUMNS = (
    "input_tokens",
    "max_new",
    "stop_at",
    "output",
    "committed",
    "allocated",
    "protected",
    "swa_evicted",
    "decode_idx",
    "extend_idx",
    "prefix_len",
    "extend_end",
    "middle_chunks",
    "verifies",
    "finished_len",
    "retractions",
    "status",
)


class RequestTable:
    """Columns of request state, indexed by handle.

    ``input_tokens``, ``max_new`` (after clipping), ``stop_at`` (output length at which the request ends), ``output``
    (tokens generated and processed), ``committed`` / ``allocated`` (valid KV and slots held, ``kv_committed_len`` and
    ``kv_allocated_len``), ``protected`` (prefix owned by the tree), ``swa_evicted`` (window cursor), ``decode_idx`` /
    ``extend_idx`` (batches prepared), ``prefix_len`` / ``extend_end`` (span of the last prefill chunk),
    ``middle_chunks`` (chunks in flight that are not the last), ``verifies`` (verify steps launched),
    ``finished_len`` (tokens the client gets; -1 while running), ``retractions``, ``status``.
    """

    input_tokens: IntArray
    max_new: IntArray
    stop_at: IntArray
    output: IntArray
    committed: IntArray
    allocated: IntArray
    protected: IntArray
    swa_evicted: IntArray
    decode_idx: IntArray
    extend_idx: IntArray
    prefix_len: IntArray
    extend_end: IntArray
    middle_chunks: IntArray
    verifies: IntArray
    finished_len: IntArray
    retractions: IntArray
    status: IntArray

    def __init__(self, capacity: int = 1024) -> None:
        self.size = 0
        self._data = np.zeros((len(_COLUMNS), max(capacity, 1)), np.int64)
        self.ignore_eos = np.zeros(max(capacity, 1), np.bool_)
        self.to_abort = np.zeros(max(capacity, 1), np.bool_)
        self._name_columns()

    def _name_columns(self) -> None:
        for name, column in zip(_COLUMNS, self._data, strict=True):
            setattr(self, name, column)

    def add(self, input_tokens: int, max_new: int, stop_at: int, *, ignore_eos: bool, to_abort: bool) -> int:
        """Append a request; returns its handle."""
        handle = self.size
        if handle == self._data.shape[1]:
            self._data = np.concatenate([self._data, np.zeros_like(self._data)], axis=1)
            self.ignore_eos = np.concatenate([self.ignore_eos, np.zeros_like(self.ignore_eos)])
            self.to_abort = np.concatenate([self.to_abort, np.zeros_like(self.to_abort)])
            self._name_columns()
        self.size += 1
        self.input_tokens[handle] = input_tokens
        self.max_new[handle] = max_new
        self.stop_at[handle] = stop_at
        self.finished_len[handle] = -1
        self.ignore_eos[handle] = ignore_eos
        self.to_abort[handle] = to_abort
        return handle


class KvMemory:
    """Pools and request rows of one server without a prefix tree.

    Parameters
    ----------
    full : CountedPool or None
        None for a model whose layers all slide.
    swa : CountedPool or None
        None for a model without split.
    rows : int
        Request rows (``max_running_requests``).
    page_size : int
        Page of both pools.
    exact_release : bool
        False with the fault ``unaligned-reserve``: what a request recorded is freed, the tail of its last page is
        lost.
    """

    def __init__(
        self,
        full: CountedPool | None,
        swa: CountedPool | None,
        rows: int,
        page_size: int,
        *,
        exact_release: bool = True,
    ) -> None:
        self.full = full
        self.swa = swa
        self.page_size = page_size
        self.rows_total = rows
        self.rows_free = rows
        self.table = RequestTable()
        self.window_evicted = 0
        self.leaked_full = 0
        self.leaked_swa = 0
        self._exact_release = exact_release

    # ---- questions
    @property
    def capacity(self) -> int:
        """Tokens the scheduler counts on: the full pool, or the SWA pool of an all-SWA model."""
        pool = self.full if self.full is not None else self.swa
        assert pool is not None
        return pool.capacity

    def available(self) -> int:
        """Tokens that can be allocated at once: the smaller side of a split model (allocator/swa.py:163-171)."""
        if self.full is None:
            assert self.swa is not None
            return self.swa.available
        if self.swa is None:
            return self.full.available
        return min(self.full.available, self.swa.available)

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

    # ---- actions
    def take_row(self, count: int) -> None:
        """Give ``count`` requests a row."""
        self.rows_free -= count
        if self.rows_free < 0:
            raise InvariantError(f"{count} request rows taken, {self.rows_free + count} were free")

    def take(self, tokens: int) -> None:
        """Allocate whole pages on every side."""
        if self.full is not None:
            self.full.take(tokens)
        if self.swa is not None:
            self.swa.take(tokens)

    def evict_window(self, handles: IntArray, upto: IntArray) -> int:
        """Free the SWA slots of ``[cursor, upto)`` of each request and move the cursor; returns tokens freed."""
        assert self.swa is not None
        table = self.table
        freed = int((upto - table.swa_evicted[handles]).sum())
        table.swa_evicted[handles] = upto
        self.swa.give(freed)
        self.window_evicted += freed
        return freed

    def release(self, handle: int) -> tuple[int, int]:
        """Give back everything a request holds outside the tree, its row too; returns (full, swa) tokens freed.

        The slots below the window cursor go back on the full side only (mem_cache/common.py:152).
        """
        table, page = self.table, self.page_size
        allocated = int(table.allocated[handle])
        whole = ceil_page(allocated, page) - int(table.protected[handle])
        dead = max(0, int(table.swa_evicted[handle]) - int(table.protected[handle]))
        lost = 0 if self._exact_release else ceil_page(allocated, page) - allocated
        if self.full is not None:
            self.full.give(whole - lost)
            self.leaked_full += lost
        swa = 0
        if self.swa is not None:
            swa = whole - dead
            self.swa.give(swa - lost)
            self.leaked_swa += lost
        table.allocated[handle] = table.swa_evicted[handle] = 0
        self.rows_free += 1
        return whole, swa

    # ---- conservation
    def check(self) -> None:
        """``available + held + leaked == capacity`` in every pool and for the rows.

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
            self._compare(self.full, int(whole.sum()) + self.leaked_full)
        if self.swa is not None:
            dead = np.maximum(0, table.swa_evicted[held] - table.protected[held])
            self._compare(self.swa, int((whole - dead).sum()) + self.leaked_swa)
        if self.rows_free + len(held) != self.rows_total:
            raise InvariantError(f"rows: {self.rows_free} free + {len(held)} held != {self.rows_total}")
        if bool((table.committed[held] > allocated[held]).any()):
            raise InvariantError("a request has more committed KV than slots")

    @staticmethod
    def _compare(pool: CountedPool, held: int) -> None:
        gap = pool.available + held - pool.usable
        if gap:
            what = "counted twice" if gap > 0 else "leaked"
            raise InvariantError(
                f"{pool.name} pool: available {pool.available} + held {held} = {pool.available + held} != {pool.usable}: "
                f"{gap:+d}, {abs(gap) / pool.page_size:g} pages {what} ({'over-count' if gap > 0 else 'leak'})"
            )
