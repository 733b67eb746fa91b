"""Pools of KV slots with real slot ids: which slot is handed out next, and where a freed one goes.

Page ``k`` holds the slots ``k * page_size`` up to ``(k + 1) * page_size - 1``. Page 0 takes the writes of padding rows
and is never handed out, so ids run from ``page_size`` on. The order of the free list is SGLang's (0.5.23,
mem_cache/allocator/token.py:42-81, paged.py:168-404); :class:`~simkv.memory.pages.CountedPool` counts the same pool
without ids.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from simkv.errors import InvariantError
from simkv.workload.request import IntArray

__all__ = ["FreeList", "PagedSlots", "SlotPool", "TokenSlots", "check_aligned", "new_pages", "slot_pool"]


def new_pages(prefix_lens: IntArray, seq_lens: IntArray, page_size: int) -> IntArray:
    """Pages that each request needs to grow from ``prefix_lens`` to ``seq_lens`` tokens (utils/common.py:4857-4863).

    Both arrays and the result have shape ``(requests,)``.
    """
    needed: IntArray = -(-seq_lens // page_size) + -prefix_lens // page_size
    return needed


class FreeList:
    """Ids in the order in which they will be handed out; both ends can be added to.

    The ids lie in one stretch of a buffer. Taking moves the start of the stretch, adding writes beside it; the whole
    list is moved only when the stretch meets the end of the buffer, which then has room for as many ids again, so
    neither costs more than the ids it is about.

    Parameters
    ----------
    first, last : int
        The list starts as ``first, first + 1, ..., last``.
    """

    __slots__ = ("_buffer", "_end", "_start")

    def __init__(self, first: int, last: int) -> None:
        self.replace(np.arange(first, last + 1, dtype=np.int64))

    def __len__(self) -> int:
        return self._end - self._start

    @property
    def ids(self) -> IntArray:
        """A copy of the list, next id first."""
        return self._buffer[self._start : self._end].copy()

    def replace(self, ids: IntArray) -> None:
        """Start over with ``ids``, which the list then owns."""
        self._buffer = ids
        self._start, self._end = 0, len(ids)

    def take(self, count: int) -> IntArray:
        """Remove the first ``count`` ids; the caller has made sure that they are there."""
        taken: IntArray = self._buffer[self._start : self._start + count].copy()
        self._start += count
        return taken

    def put_last(self, ids: IntArray) -> None:
        """Add ``ids`` behind all others."""
        if self._end + len(ids) > len(self._buffer):
            self._make_room(len(ids), before=0)
        self._buffer[self._end : self._end + len(ids)] = ids
        self._end += len(ids)

    def put_first(self, ids: IntArray) -> None:
        """Add ``ids`` in front of all others, ``ids[0]`` first."""
        if len(ids) > self._start:
            self._make_room(len(ids), before=len(self) + 2 * len(ids))
        self._buffer[self._start - len(ids) : self._start] = ids
        self._start -= len(ids)

    def _make_room(self, count: int, before: int) -> None:
        """Move the list into a buffer of twice what ``count`` more ids need, leaving ``before`` places in front."""
        ids = self._buffer[self._start : self._end]
        self._buffer = np.empty(2 * (len(ids) + count), np.int64)
        self._start, self._end = before, before + len(ids)
        self._buffer[self._start : self._end] = ids


class SlotPool(ABC):
    """What pools with and without pages share: pages from the front of the free list, free groups, held-back frees.

    Parameters
    ----------
    name : str
        ``full`` or ``swa``.
    capacity : int
        Size in tokens as the engine states it; a remainder below one page is never handed out.
    page_size : int
        Tokens a page holds.
    need_sort : bool
        Hold freed pages back until an allocation runs short, then sort everything that is free. The engine does so
        with prefill and decode on separate servers only (kv_cache_configurator.py:2805).

    Notes
    -----
    Freeing a slot twice is not noticed, as in the engine: the owner of the slots has to keep count.
    """

    def __init__(self, name: str, capacity: int, page_size: int, *, need_sort: bool = False) -> None:
        self.name = name
        self.capacity = capacity
        self.page_size = page_size
        self.need_sort = need_sort
        self.clear()

    def clear(self) -> None:
        """Everything is free again, in ascending order; an open group is dropped (token.py:42-48, paged.py:395-404)."""
        self._free = FreeList(1, self.capacity // self.page_size)
        self._held: list[IntArray] = []
        self._grouped = False
        # Frees of an open group: slots whose pages are still to be found, and pages.
        self._slots_pile: list[IntArray] = []
        self._pages_pile: list[IntArray] = []

    # ---- what is free
    @property
    def available(self) -> int:
        """Free tokens, held-back ones included and those freed in an open group not (paged.py:168-169)."""
        return (len(self._free) + sum(map(len, self._held))) * self.page_size

    @property
    def free_pages(self) -> IntArray:
        """Ids of the pages in the order in which they would be handed out, int64, a copy."""
        return self._free.ids

    @property
    def held_pages(self) -> IntArray:
        """Ids of the pages held back (``need_sort``), in the order of their frees, int64, a copy."""
        return np.concatenate([np.empty(0, np.int64), *self._held])

    def merge_and_sort(self) -> None:
        """Put held-back pages into the free list and sort it; without any, nothing moves (base.py:225-231)."""
        if self._held:
            self._free.replace(np.sort(np.concatenate([self._free.ids, *self._held])))
            self._held = []

    # ---- allocation
    def _take(self, pages: int, bound: int) -> IntArray | None:
        """The next ``pages`` pages, or None; held-back ones are merged when fewer than ``bound`` are in the list."""
        if bound > len(self._free):
            self.merge_and_sort()
        return self._free.take(pages) if pages <= len(self._free) else None

    def alloc(self, tokens: int) -> IntArray | None:
        """Slots of ``tokens // page_size`` whole pages (token.py:55-64, paged.py:179-200).

        Parameters
        ----------
        tokens : int
            Tokens wanted; a part of a page is left out.

        Returns
        -------
        int64 array, shape (tokens // page_size * page_size,), or None
            Slot ids page by page; None if the pool is short, and then nothing is taken.
        """
        count = tokens // self.page_size
        pages = self._take(count, count)
        if pages is None:
            return None
        slots: IntArray = (pages[:, None] * self.page_size + np.arange(self.page_size)).ravel()
        return slots

    @abstractmethod
    def extend(self, prefix_lens: IntArray, seq_lens: IntArray, last_locs: IntArray) -> IntArray | None:
        """Slots for the tokens ``prefix_lens[r]`` up to ``seq_lens[r] - 1`` of every request ``r``.

        Parameters
        ----------
        prefix_lens, seq_lens : int64 array, shape (requests,)
            Tokens that have slots, and that shall have them.
        last_locs : int64 array, shape (requests,)
            Slot of each request's last token so far; -1 without one.

        Returns
        -------
        int64 array, shape (sum(seq_lens - prefix_lens),), or None
            Slot ids, request by request; None if the pool is short, and then nothing is taken.
        """

    @abstractmethod
    def decode(self, seq_lens: IntArray, last_locs: IntArray) -> IntArray | None:
        """One slot for the last token of every request.

        Parameters
        ----------
        seq_lens : int64 array, shape (requests,)
            Lengths that count the new token.
        last_locs : int64 array, shape (requests,)
            Slot of the token before it; -1 without one.

        Returns
        -------
        int64 array, shape (requests,), or None
            Slot ids; None if the pool is short, and then nothing is taken.
        """

    # ---- frees
    @abstractmethod
    def free(self, slots: IntArray) -> None:
        """Free the page of every slot, whichever of its slots are named, int64, any order."""

    @abstractmethod
    def _put(self, pages: IntArray) -> None:
        """Add pages to the free list."""

    def free_page_ids(self, pages: IntArray) -> None:
        """Free exactly these pages, in this order (token.py:78-80, paged.py:359-370)."""
        if not len(pages):
            return
        if self._grouped:
            self._pages_pile.append(pages.copy())
        else:
            self._release(pages)

    def free_segment(self, slots: IntArray, start: int) -> None:
        """Free the tokens ``start`` up to ``start + len(slots) - 1`` of one request, in the order of the request.

        Parameters
        ----------
        slots : int64 array
            Consecutive entries of the request's row; a page that the segment ends in goes as a whole.
        start : int
            Token number of the first one.

        Raises
        ------
        InvariantError
            ``start`` is not the first token of a page (paged.py:340-357, base.py:284-293).
        """
        if not len(slots):
            return
        check_aligned(start, self.page_size)
        self.free_page_ids(slots[:: self.page_size] // self.page_size)

    def _release(self, pages: IntArray) -> None:
        if self.need_sort:
            self._held.append(pages.copy())
        else:
            self._put(pages)

    def begin_group(self) -> None:
        """Defer frees until :meth:`end_group`; until then nobody can see or take what they free (base.py:213-220).

        Raises
        ------
        InvariantError
            A group is open.
        """
        if self._grouped:
            raise InvariantError(f"{self.name} pool: free groups cannot be nested")
        self._grouped = True

    def end_group(self) -> None:
        """Free what the group deferred: single slots first, as one set, then pages (paged.py:386-392)."""
        slots, self._slots_pile = self._slots_pile, []
        pages, self._pages_pile = self._pages_pile, []
        self._grouped = False
        if slots:
            self.free(np.concatenate(slots))
        if pages:
            self.free_page_ids(np.concatenate(pages))


class TokenSlots(SlotPool):
    """A pool without pages: first in, first out (token.py:42-81).

    Parameters
    ----------
    name : str
        ``full`` or ``swa``.
    capacity : int
        Size in tokens.
    need_sort : bool
        See :class:`SlotPool`.
    """

    def __init__(self, name: str, capacity: int, *, need_sort: bool = False) -> None:
        super().__init__(name, capacity, 1, need_sort=need_sort)

    def extend(self, prefix_lens: IntArray, seq_lens: IntArray, last_locs: IntArray) -> IntArray | None:
        """The next slots, whatever the last ones were (mem_cache/allocation.py:161-170)."""
        return self.alloc(int((seq_lens - prefix_lens).sum()))

    def decode(self, seq_lens: IntArray, last_locs: IntArray) -> IntArray | None:
        """The next slots, one for each request."""
        return self.alloc(len(seq_lens))

    def free(self, slots: IntArray) -> None:
        """Free slots in the order given; they will be handed out after all others."""
        self.free_page_ids(slots)

    def _put(self, pages: IntArray) -> None:
        self._free.put_last(pages)


class PagedSlots(SlotPool):
    """A pool of pages: freed pages are the next ones handed out (paged.py:168-404)."""

    def extend(self, prefix_lens: IntArray, seq_lens: IntArray, last_locs: IntArray) -> IntArray | None:
        """The rest of the page that ``last_locs`` lies in, then new pages, request by request (paged.py:41-114).

        Held-back pages are merged by an upper bound of the pages needed, before the exact number is known to be free
        or not (paged.py:219-239).
        """
        page = self.page_size
        tokens = seq_lens - prefix_lens
        fresh = new_pages(prefix_lens, seq_lens, page)
        pages = self._take(int(fresh.sum()), int(tokens.sum()) // page + len(tokens) + 1)
        if pages is None:
            return None
        owner = np.repeat(np.arange(len(tokens)), tokens)
        number = np.arange(len(owner)) - (np.cumsum(tokens) - tokens)[owner]
        position = prefix_lens[owner] + number
        slots: IntArray = last_locs[owner] + 1 + number
        # Counted from the first page of the request that is not yet begun.
        ahead = position // page + (-prefix_lens // page)[owner]
        new = ahead >= 0
        index = (np.cumsum(fresh) - fresh)[owner] + ahead
        slots[new] = pages[index[new]] * page + position[new] % page
        return slots

    def decode(self, seq_lens: IntArray, last_locs: IntArray) -> IntArray | None:
        """The slot after ``last_locs``, or a new page where the token is the first of one (paged.py:117-133, 279-326).

        Held-back pages are merged when there are fewer pages than requests.
        """
        new = seq_lens % self.page_size == 1
        pages = self._take(int(new.sum()), len(seq_lens))
        if pages is None:
            return None
        slots: IntArray = last_locs + 1
        slots[new] = pages * self.page_size
        return slots

    def free(self, slots: IntArray) -> None:
        """Free the page of every slot; the pages of one call get in front in ascending order (paged.py:328-335)."""
        if not len(slots):
            return
        if self._grouped:
            self._slots_pile.append(slots.copy())
        else:
            self._release(np.unique(slots // self.page_size))

    def _put(self, pages: IntArray) -> None:
        self._free.put_first(pages)


def check_aligned(start: int, page_size: int) -> None:
    """Refuse a segment of a request that does not begin with a page (base.py:284-293).

    Raises
    ------
    InvariantError
        ``start`` is no multiple of ``page_size``.
    """
    if start % page_size:
        raise InvariantError(f"a segment to free starts at token {start}, inside a page of {page_size}")


def slot_pool(name: str, capacity: int, page_size: int, *, need_sort: bool = False) -> SlotPool:
    """A pool of the kind that the page size asks for (kv_cache_configurator.py:2803-2937)."""
    if page_size == 1:
        return TokenSlots(name, capacity, need_sort=need_sort)
    return PagedSlots(name, capacity, page_size, need_sort=need_sort)
