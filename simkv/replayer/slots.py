"""A slot allocator of its own on the device, in torch operations only.

It is written from the engine's rules (SGLang 0.5.23, mem_cache/allocator/token.py, paged.py, swa.py) and shares no code
with the simulation's :mod:`simkv.memory.slots`: without pages first in, first out; with pages the freed ones are the next
to go; a full slot knows its SWA peer by a table. Ids stay on the device; only their numbers are known to the host.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["OutOfSlots", "SlotAllocator", "TorchSlots", "spread"]

Ints = NDArray[np.int64]


class OutOfSlots(Exception):
    """More slots are asked for than are free."""


class SlotAllocator(Protocol):
    """What a replay asks of an allocator. Slots are int64 tensors of full-pool ids, consecutive tokens of one request."""

    @property
    def counts(self) -> tuple[int, int]:
        """Free tokens of the full and of the SWA pool, those freed in an open group included; -1 for no pool."""
        ...

    def extend(self, before: Ints, after: Ints, last: Tensor) -> tuple[Tensor, Tensor | None]:
        """Slots for rows that grow ``before -> after`` behind slots ``last``, and their SWA peers where there are two pools."""
        ...

    def peers(self, slots: Tensor) -> Tensor:
        """SWA slots of full slots, 0 for none; where there is one pool, the slots."""
        ...

    def free(self, slots: Tensor) -> None:
        """Free both halves."""
        ...

    def free_full(self, slots: Tensor) -> None:
        """Free the full half of slots without SWA half."""
        ...

    def free_swa(self, slots: Tensor) -> None:
        """Free the SWA half."""
        ...

    def move(self, kept: Tensor, incoming: Tensor) -> None:
        """Give kept slots the SWA halves of incoming ones."""
        ...

    def begin_group(self) -> None:
        """Hold back what is freed from here on."""
        ...

    def end_group(self) -> None:
        """Let it be handed out."""
        ...


def spread(starts: Tensor, lengths: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """Stretches ``starts[i], starts[i] + 1, ...`` of ``lengths[i]``, behind each other, and which one each belongs to."""
    which = torch.repeat_interleave(lengths, output_size=total)
    offset = starts - torch.cumsum(lengths, 0) + lengths
    return offset[which] + torch.arange(total, device=lengths.device), which


class _FreeList:
    """Page ids in the order in which they are handed out: a stretch of a tensor, with room at both ends."""

    def __init__(self, count: int, device: torch.device) -> None:
        self._data = torch.arange(1, count + 1, device=device)
        self._start, self._end = 0, count

    def __len__(self) -> int:
        return self._end - self._start

    def take(self, count: int) -> Tensor:
        if count > len(self):
            raise OutOfSlots
        self._start += count
        return self._data[self._start - count : self._start].clone()

    def put(self, ids: Tensor, *, first: bool) -> None:
        count = len(ids)
        room = self._start if first else len(self._data) - self._end
        if count > room:
            spare = len(self) + 2 * count
            grown = self._data.new_empty(len(self) + 2 * spare)
            grown[spare : spare + len(self)] = self._data[self._start : self._end]
            self._data, self._start, self._end = grown, spare, spare + len(self)
        if first:
            self._start -= count
            self._data[self._start : self._start + count] = ids
        else:
            self._data[self._end : self._end + count] = ids
            self._end += count


class _Side:
    """One pool."""

    def __init__(self, capacity: int, page: int, device: torch.device) -> None:
        self.page = page
        self._free = _FreeList(capacity // page, device)
        self._pile: list[Tensor] | None = None

    @property
    def available(self) -> int:
        held = sum(map(len, self._pile)) if self._pile else 0
        return (len(self._free) + held) * self.page

    def extend(self, before: Ints, after: Ints, last: Tensor) -> Tensor:
        page, device = self.page, last.device
        total = int((after - before).sum())
        if page == 1:
            return self._free.take(total)
        fresh = -(-after // page) + -before // page
        pages = self._free.take(int(fresh.sum()))
        begun, ends, first = (
            torch.from_numpy(array).to(device) for array in (before, after, np.cumsum(fresh) - fresh + -before // page)
        )
        position, which = spread(begun, ends - begun, total)
        number = first[which] + position // page
        # What still lies in the page of the last slot goes on behind it; the rest is new pages.
        new = position >= (-(-begun // page) * page)[which]
        pages = torch.cat([pages, pages.new_zeros(1)])
        behind = last[which] + 1 + position - begun[which]
        return torch.where(new, pages[torch.where(new, number, -1)] * page + position % page, behind)

    def give(self, pages: Tensor) -> None:
        if self._pile is None:
            self._free.put(pages, first=self.page > 1)
        else:
            self._pile.append(pages)

    def begin_group(self) -> None:
        self._pile = []

    def end_group(self) -> None:
        pile, self._pile = self._pile, None
        if pile:
            self.give(torch.cat(pile))


class TorchSlots:
    """The allocator (a :class:`SlotAllocator`).

    Parameters
    ----------
    full, swa : int or None
        Capacities in tokens; None for a model without such a pool.
    page : int
        Tokens a page holds.
    device : torch.device
    """

    def __init__(self, full: int | None, swa: int | None, page: int, device: torch.device) -> None:
        self.page = page
        self._full = None if full is None else _Side(full, page, device)
        self._swa = None if swa is None else _Side(swa, page, device)
        self._sides = [side for side in (self._full, self._swa) if side is not None]
        self._paired = len(self._sides) > 1
        self._mapping = torch.zeros((full or 0) + page if self._paired else 0, dtype=torch.int64, device=device)

    @property
    def counts(self) -> tuple[int, int]:
        """Free tokens of the full and of the SWA pool, those freed in an open group included; -1 for no pool."""
        full, swa = self._full, self._swa
        return -1 if full is None else full.available, -1 if swa is None else swa.available

    def extend(self, before: Ints, after: Ints, last: Tensor) -> tuple[Tensor, Tensor | None]:
        """Slots for rows that grow ``before -> after`` behind slots ``last``, and their SWA peers where there are two pools."""
        slots = self._sides[0].extend(before, after, last)
        if not self._paired:
            return slots, None
        peers = self._sides[1].extend(before, after, self.peers(last.clamp(min=0)))
        self._mapping[slots] = peers
        return slots, peers

    def peers(self, slots: Tensor) -> Tensor:
        """SWA slots of full slots, 0 for none; where there is one pool, the slots."""
        return self._mapping[slots] if self._paired else slots

    def _pages(self, slots: Tensor) -> Tensor:
        return slots[:: self.page] // self.page

    def free(self, slots: Tensor) -> None:
        """Free both halves."""
        if self._paired:
            self.free_swa(slots)
        self._sides[0].give(self._pages(slots))

    def free_full(self, slots: Tensor) -> None:
        """Free the full half of slots without SWA half; a model whose layers all slide has none."""
        if self._full is not None:
            self._full.give(self._pages(slots))

    def free_swa(self, slots: Tensor) -> None:
        """Free the SWA half."""
        assert self._swa is not None
        if not self._paired:
            self._swa.give(slots)
            return
        firsts = slots[:: self.page]
        self._swa.give(self._mapping[firsts] // self.page)
        whole = (self._pages(slots)[:, None] * self.page + torch.arange(self.page, device=slots.device)).ravel()
        self._mapping[whole] = 0

    def move(self, kept: Tensor, incoming: Tensor) -> None:
        """Give kept slots the SWA halves of incoming ones."""
        self._mapping[kept] = self._mapping[incoming]
        self._mapping[incoming] = 0

    def begin_group(self) -> None:
        """Hold back what is freed from here on."""
        for side in self._sides:
            side.begin_group()

    def end_group(self) -> None:
        """Let it be handed out."""
        for side in self._sides:
            side.end_group()
