"""The three slot allocators of 0.5.23, behind one set of names.

A model's layers decide which one it gets (mem_cache/kv_cache_configurator.py:2803-2937): :class:`FullSlots` for full
attention only, :class:`SwaSlots` for a mixture, :class:`AllSwaSlots` for sliding layers only. Ids that go in and out are
those of the full side; the SWA side's are found with ``translate``. Where a model lacks one side, that side never
limits: it reports what the other has, and freeing it frees nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from simkv.errors import InvariantError
from simkv.memory.slots import SlotPool, TokenSlots, check_aligned, new_pages, slot_pool
from simkv.workload.request import IntArray

__all__ = ["AllSwaSlots", "Checks", "FullSlots", "PeerError", "SlotAllocator", "SwaSlots"]


class PeerError(InvariantError):
    """A slot's SWA peer is not as the kind of free supposes (``swa.peer_mapped``, ``swa.peer_released``)."""


class Checks(IntEnum):
    """How much a free makes sure of, ``SGLANG_INVARIANT_CHECK`` (environ.py:235-249, utils/invariants.py:177-184)."""

    OFF = 0
    #: Freeing an SWA peer that is gone raises: it would hand out the padding slot.
    WARN = 1
    #: Freeing a full slot whose SWA peer lives raises too: the peer would be lost.
    STRICT = 2


class SlotAllocator(Protocol):
    """What every allocator offers. All ids and lengths are int64 arrays of one dimension.

    The allocation calls give None when the pool is short. Frees inside a group take effect at its end.
    """

    page_size: int

    @property
    def available(self) -> int:
        """Tokens that can be allocated: the scarcer side's."""
        ...

    @property
    def full_available(self) -> int:
        """Free tokens of the full side."""
        ...

    @property
    def swa_available(self) -> int:
        """Free tokens of the SWA side."""
        ...

    def clear(self) -> None:
        """Everything is free and unmapped again."""
        ...

    def alloc(self, tokens: int) -> IntArray | None:
        """Slots of ``tokens // page_size`` whole pages; see :meth:`SlotPool.alloc`."""
        ...

    def extend(self, prefix_lens: IntArray, seq_lens: IntArray, last_locs: IntArray) -> IntArray | None:
        """Slots for the tokens from ``prefix_lens`` to ``seq_lens`` of each request; see :meth:`SlotPool.extend`."""
        ...

    def decode(self, seq_lens: IntArray, last_locs: IntArray) -> IntArray | None:
        """One slot for the last token of each request; see :meth:`SlotPool.decode`."""
        ...

    def free(self, slots: IntArray) -> None:
        """Free slots in any order, on both sides, with the pages they lie in."""
        ...

    def free_full(self, slots: IntArray) -> None:
        """Free slots whose SWA peers were freed before."""
        ...

    def free_swa(self, slots: IntArray) -> None:
        """Free the SWA peers of slots that stay in use."""
        ...

    def free_segment(self, slots: IntArray, start: int) -> None:
        """:meth:`free` for consecutive tokens of one request, ``start`` the number of the first (a page's first)."""
        ...

    def free_full_segment(self, slots: IntArray, start: int) -> None:
        """:meth:`free_full` for consecutive tokens of one request."""
        ...

    def free_swa_segment(self, slots: IntArray, start: int) -> None:
        """:meth:`free_swa` for consecutive tokens of one request."""
        ...

    def begin_group(self) -> None:
        """Defer frees until :meth:`end_group`; groups cannot be nested."""
        ...

    def end_group(self) -> None:
        """Let the deferred frees take effect."""
        ...

    @contextmanager
    def group(self) -> Iterator[None]:
        """A free group as a ``with`` block."""
        self.begin_group()
        try:
            yield
        finally:
            self.end_group()

    def translate(self, slots: IntArray) -> IntArray:
        """SWA slots of full slots, same shape: 0 for an unmapped one, -1 for -1."""
        ...

    def move_mapping(self, kept: IntArray, incoming: IntArray) -> None:
        """Give ``kept[i]`` the SWA slot of ``incoming[i]``, which then has none (unified_cache/components/swa.py:316-330)."""
        ...


class _OneSided(SlotAllocator):
    """One pool for all layers; full and SWA ids are the same."""

    def __init__(self, pool: SlotPool) -> None:
        self.pool = pool
        self.page_size = pool.page_size

    @property
    def available(self) -> int:
        """Free tokens of the pool."""
        return self.pool.available

    full_available = available
    swa_available = available

    def clear(self) -> None:
        """Everything is free again."""
        self.pool.clear()

    def alloc(self, tokens: int) -> IntArray | None:
        """Slots of whole pages."""
        return self.pool.alloc(tokens)

    def extend(self, prefix_lens: IntArray, seq_lens: IntArray, last_locs: IntArray) -> IntArray | None:
        """Slots for the tokens from ``prefix_lens`` to ``seq_lens``."""
        return self.pool.extend(prefix_lens, seq_lens, last_locs)

    def decode(self, seq_lens: IntArray, last_locs: IntArray) -> IntArray | None:
        """One slot for each request."""
        return self.pool.decode(seq_lens, last_locs)

    def translate(self, slots: IntArray) -> IntArray:
        """The ids themselves."""
        return slots

    def move_mapping(self, kept: IntArray, incoming: IntArray) -> None:
        """Refused: there is no mapping (allocator/swa.py:798-810).

        Raises
        ------
        InvariantError
            Always.
        """
        raise InvariantError(f"the {self.pool.name} pool is the only one: there are no peers to move")


class FullSlots(_OneSided):
    """Full attention only (allocator/base.py, token.py, paged.py).

    Parameters
    ----------
    capacity : int
        Tokens.
    page_size : int
        Tokens a page holds.
    need_sort : bool
        See :class:`SlotPool`.
    """

    def __init__(self, capacity: int, page_size: int, *, need_sort: bool = False) -> None:
        super().__init__(slot_pool("full", capacity, page_size, need_sort=need_sort))

    def free(self, slots: IntArray) -> None:
        """Free slots in any order."""
        self.pool.free(slots)

    free_full = free

    def free_swa(self, slots: IntArray) -> None:
        """No SWA side: nothing to free."""

    def free_segment(self, slots: IntArray, start: int) -> None:
        """Free consecutive tokens of one request; their pages keep the order of the request."""
        self.pool.free_segment(slots, start)

    def free_full_segment(self, slots: IntArray, start: int) -> None:
        """Free consecutive tokens of one request; their pages are sorted, as in :meth:`free` (base.py:303-309)."""
        check_aligned(start, self.page_size)
        self.pool.free(slots)

    def free_swa_segment(self, slots: IntArray, start: int) -> None:
        """No SWA side: nothing to free."""

    def begin_group(self) -> None:
        """Open a free group."""
        self.pool.begin_group()

    def end_group(self) -> None:
        """Close the free group."""
        self.pool.end_group()


def _check_capacity(*pools: SlotPool) -> None:
    """Notice when a pool has more free slots than it ever had."""
    for pool in pools:
        if pool.available > pool.capacity:
            raise InvariantError(f"{pool.name} pool: {pool.available} of {pool.capacity} tokens are free")


class AllSwaSlots(_OneSided):
    """Sliding layers only: one pool without pages, whose slots go with their SWA side (allocator/swa.py:727-876).

    Parameters
    ----------
    capacity : int
        Tokens.
    page_size : int
        1.
    need_sort : bool
        See :class:`SlotPool`.

    Raises
    ------
    InvariantError
        ``page_size`` is not 1 (swa.py:739).
    """

    def __init__(self, capacity: int, page_size: int = 1, *, need_sort: bool = False) -> None:
        if page_size != 1:
            raise InvariantError(f"all-sliding models have no pages, {page_size} asked for")
        super().__init__(TokenSlots("swa", capacity, need_sort=need_sort))
        self._pile: list[IntArray] | None = None

    def clear(self) -> None:
        """Everything is free again; an open group is dropped."""
        super().clear()
        self._pile = None

    def free(self, slots: IntArray) -> None:
        """Free slots; the padding slot among them is left out.

        Raises
        ------
        InvariantError
            More slots are free than there are.
        """
        if len(slots):
            self.free_swa(slots)
            _check_capacity(self.pool)

    def free_swa(self, slots: IntArray) -> None:
        """The same as :meth:`free`, but nothing is checked."""
        if self._pile is None:
            self.pool.free(slots[slots > 0])
        elif len(slots):
            self._pile.append(slots.copy())

    def free_full(self, slots: IntArray) -> None:
        """No full side: nothing to free."""

    def free_segment(self, slots: IntArray, start: int) -> None:
        """Free consecutive tokens of one request."""
        self.free(slots)

    def free_full_segment(self, slots: IntArray, start: int) -> None:
        """No full side: nothing to free."""

    def free_swa_segment(self, slots: IntArray, start: int) -> None:
        """Free consecutive tokens of one request, unchecked."""
        self.free_swa(slots)

    def begin_group(self) -> None:
        """Open a free group."""
        if self._pile is not None:
            raise InvariantError("free groups cannot be nested")
        self._pile = []

    def end_group(self) -> None:
        """Close the free group: its frees in their order, checked together."""
        pile, self._pile = self._pile, None
        if pile:
            self.free(np.concatenate(pile))


class SwaSlots(SlotAllocator):
    """Full and sliding layers: two pools with the same pages, and for each full slot its SWA peer (allocator/swa.py).

    Parameters
    ----------
    full_capacity, swa_capacity : int
        Tokens of either side.
    page_size : int
        Tokens a page holds, on both sides.
    need_sort : bool
        See :class:`SlotPool`.
    checks : Checks
        What a free makes sure of.

    Attributes
    ----------
    full, swa : SlotPool
        The two sides, which know nothing of each other.
    mapping : int64 array, shape (full_capacity + page_size + 1,)
        SWA slot of each full slot; 0 without one. The last entry is -1, so that a ``last_locs`` of -1 stays -1
        (swa.py:110-123).
    """

    def __init__(
        self,
        full_capacity: int,
        swa_capacity: int,
        page_size: int,
        *,
        need_sort: bool = False,
        checks: Checks = Checks.OFF,
    ) -> None:
        self.page_size = page_size
        self.checks = checks
        self.full = slot_pool("full", full_capacity, page_size, need_sort=need_sort)
        self.swa = slot_pool("swa", swa_capacity, page_size, need_sort=need_sort)
        self.mapping: IntArray = np.zeros(full_capacity + page_size + 1, np.int64)
        self.clear()

    def clear(self) -> None:
        """Everything is free and unmapped again; an open group is dropped (swa.py:705-713)."""
        self.full.clear()
        self.swa.clear()
        self.mapping[:-1] = 0
        self.mapping[-1] = -1
        # SWA slots and pages freed in an open group; the full side keeps its own.
        self._grouped = False
        self._slots_pile: list[IntArray] = []
        self._pages_pile: list[IntArray] = []

    # ---- what is free
    @property
    def available(self) -> int:
        """Free tokens of the scarcer side (swa.py:163-171)."""
        return min(self.full.available, self.swa.available)

    @property
    def full_available(self) -> int:
        """Free tokens of the full side."""
        return self.full.available

    @property
    def swa_available(self) -> int:
        """Free tokens of the SWA side."""
        return self.swa.available

    # ---- mapping
    def translate(self, slots: IntArray) -> IntArray:
        """SWA slots of full slots: 0 for an unmapped one, -1 for -1."""
        peers: IntArray = self.mapping[slots]
        return peers

    def set_mapping(self, slots: IntArray, peers: IntArray) -> None:
        """Make ``peers`` the SWA slots of ``slots``; nothing is freed (swa.py:477-485)."""
        self.mapping[slots] = peers

    def clear_mapping(self, slots: IntArray) -> None:
        """Leave ``slots`` without SWA peers; nothing is freed (swa.py:487-497)."""
        self.mapping[slots] = 0

    def move_mapping(self, kept: IntArray, incoming: IntArray) -> None:
        """Give ``kept[i]`` the SWA slot of ``incoming[i]``, which then has none."""
        peers = self.translate(incoming)
        self.clear_mapping(incoming)
        self.set_mapping(kept, peers)

    # ---- allocation
    def _paired(self, slots: IntArray | None, peers: IntArray | None) -> IntArray | None:
        """Note the peers of new slots; None if either side was short."""
        if slots is None or peers is None:
            return None
        self.set_mapping(slots, peers)
        return slots

    def alloc(self, tokens: int) -> IntArray | None:
        """Slots of whole pages on both sides, or nothing taken on either (swa.py:273-286)."""
        if tokens > self.available:
            return None
        return self._paired(self.full.alloc(tokens), self.swa.alloc(tokens))

    def extend(self, prefix_lens: IntArray, seq_lens: IntArray, last_locs: IntArray) -> IntArray | None:
        """Slots for the new tokens on both sides, or nothing taken on either (swa.py:303-354)."""
        if int(new_pages(prefix_lens, seq_lens, self.page_size).sum()) * self.page_size > self.available:
            return None
        peers = self.swa.extend(prefix_lens, seq_lens, self.translate(last_locs))
        return self._paired(self.full.extend(prefix_lens, seq_lens, last_locs), peers)

    def extend_swa_tail(self, prefix_len: int, seq_len: int, last_loc: int, tail: int) -> IntArray | None:
        """Full slots for the new tokens of one request, SWA slots for the last ``tail`` of them (swa.py:356-430).

        The SWA slots begin with a page of their own. Nothing is taken if either side is short.

        Raises
        ------
        InvariantError
            ``tail`` is negative or more than the new tokens.
        """
        if not 0 <= tail <= seq_len - prefix_len:
            raise InvariantError(f"an SWA tail of {tail} tokens in {seq_len - prefix_len} new ones")
        zero, length = np.zeros(1, np.int64), np.array([tail])
        prefix, seq, last = np.array([prefix_len]), np.array([seq_len]), np.array([last_loc])
        full_short = int(new_pages(prefix, seq, self.page_size)[0]) * self.page_size > self.full.available
        if full_short or int(new_pages(zero, length, self.page_size)[0]) * self.page_size > self.swa.available:
            return None
        slots = self.full.extend(prefix, seq, last)
        assert slots is not None
        if tail:
            self._paired(slots[-tail:], self.swa.extend(zero, length, zero - 1))
            self.clear_mapping(slots[:-tail])
        return slots

    def decode(self, seq_lens: IntArray, last_locs: IntArray) -> IntArray | None:
        """One slot for each request on both sides.

        With pages, a side that is not short keeps what it handed out although the call gives None: nobody owns those
        pages any more (swa.py:432-465). The engine looks at the scarcer side before it decodes, so this does not happen
        in its loop.
        """
        if self.page_size == 1:
            return self.alloc(len(seq_lens))
        peers = self.swa.decode(seq_lens, self.translate(last_locs))
        return self._paired(self.full.decode(seq_lens, last_locs), peers)

    # ---- frees
    def free(self, slots: IntArray) -> None:
        """Free slots in any order: the SWA side first, as it reads the mapping (swa.py:467-475)."""
        self.free_swa(slots)
        self.free_full(slots)

    def free_segment(self, slots: IntArray, start: int) -> None:
        """Free consecutive tokens of one request on both sides, the SWA side first (swa.py:646-652)."""
        self.free_swa_segment(slots, start)
        self.full.free_segment(slots, start)

    def free_full(self, slots: IntArray) -> None:
        """Free full slots whose SWA peers were freed before (swa.py:628-644).

        Raises
        ------
        InvariantError
            More slots are free than there are.
        PeerError
            With ``Checks.STRICT``: a peer lives.
        """
        if len(slots):
            self._check_released(slots)
            self.full.free(slots)
            _check_capacity(self.full)

    def free_full_segment(self, slots: IntArray, start: int) -> None:
        """Free consecutive full slots whose SWA peers were freed before (swa.py:654-662).

        Raises
        ------
        PeerError
            With ``Checks.STRICT``: a peer lives.
        """
        self._check_released(slots)
        self.full.free_segment(slots, start)

    def free_swa(self, slots: IntArray) -> None:
        """Free the SWA peers of all slots in the pages named; unmapped slots are left out (swa.py:499-521).

        Without pages nothing is left out: an unmapped slot puts the padding slot into the SWA free list.

        Raises
        ------
        InvariantError
            More slots are free than there are.
        PeerError
            With checks and without pages: a slot is not mapped.
        """
        if self.page_size == 1:
            self.free_swa_segment(slots, 0)
        elif len(slots):
            peers = self._unmap(slots)
            if self._grouped:
                self._slots_pile.append(peers)
            else:
                self._release(peers)

    def free_swa_segment(self, slots: IntArray, start: int) -> None:
        """Free the SWA peers of consecutive tokens of one request, page by page (swa.py:523-599).

        Every page is read off its first slot; an unmapped one puts the padding page into the SWA free list.

        Raises
        ------
        InvariantError
            ``start`` is not the first token of a page, or more slots are free than there are.
        PeerError
            With checks: a page is not mapped.
        """
        if not len(slots):
            return
        check_aligned(start, self.page_size)
        firsts = slots[:: self.page_size]
        peers = self.translate(firsts)
        self._expect(peers > 0, Checks.WARN, "SWA slots were freed before: free_full is the call for them")
        self._unmap(firsts)
        pages = peers // self.page_size
        if self._grouped:
            self._pages_pile.append(pages)
        else:
            self.swa.free_page_ids(pages)
            _check_capacity(self.swa)

    def _unmap(self, slots: IntArray) -> IntArray:
        """Unmap the pages that ``slots`` lie in; gives what their slots were mapped to, 0 for nothing."""
        first = slots // self.page_size * self.page_size
        whole = (first[:, None] + np.arange(self.page_size)).ravel()
        peers = self.translate(whole)
        self.clear_mapping(whole)
        return peers

    def _release(self, peers: IntArray) -> None:
        """Free the pages of SWA slots, whatever is unmapped left out (swa.py:615-626)."""
        self.swa.free(peers[peers > 0])
        _check_capacity(self.swa)

    def _check_released(self, slots: IntArray) -> None:
        self._expect(self.translate(slots) == 0, Checks.STRICT, "SWA slots are in use: free is the call for them")

    def _expect(self, holds: NDArray[np.bool_], level: Checks, otherwise: str) -> None:
        if self.checks >= level and not holds.all():
            raise PeerError(otherwise)

    # ---- groups
    def begin_group(self) -> None:
        """Open a free group on both sides. SWA slots are looked up when they are freed, not when the group ends.

        Raises
        ------
        InvariantError
            A group is open.
        """
        # In this order: after an end that was refused, only the full side is still in its group.
        self._grouped = True
        self.full.begin_group()

    def end_group(self) -> None:
        """Close the group: SWA pages, then single SWA slots as one set, then the full side (swa.py:664-689).

        Raises
        ------
        InvariantError
            More slots are free than there are.
        """
        slots, self._slots_pile = self._slots_pile, []
        pages, self._pages_pile = self._pages_pile, []
        self._grouped = False
        if pages:
            self.swa.free_page_ids(np.concatenate(pages))
        if slots:
            self._release(np.concatenate(slots))
        self.full.end_group()
        _check_capacity(self.full, self.swa)
