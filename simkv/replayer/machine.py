"""Executes an allocation log on real tensors, and compares everything it can with what the log says.

Every call of the log is one vectorised operation on the device. What must hold is collected on the device and looked at
once a call; only when something does not hold are the figures fetched to say what.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simkv.errors import ReplayMismatch
from simkv.replayer.log import ReplayLog
from simkv.replayer.slots import OutOfSlots, SlotAllocator, spread
from simkv.replayer.tags import Contents, guess_tags, poison_tag, say_tag
from simkv.replayer.tensors import KvTensor, PoolTensors

__all__ = ["Counts", "Machine"]

_FREE, _HELD, _CACHED = 0, 1, 2
# Of a sampled replay, every so many-th step is read.
_SAMPLE = 16
# The last operations on a slot that a message names.
_HISTORY = 5


@dataclass
class Counts:
    """What was done.

    Parameters
    ----------
    calls, steps : int
        Calls of the log, and steps that computed something.
    tokens_written : int
        Tokens whose K and V were computed, each in every pool.
    tags_written, tags_read : int
        Rows of tensors written and compared.
    slots_allocated, slots_freed : int
        Slots handed out and compared with the log, and given back.
    """

    calls: int = 0
    steps: int = 0
    tokens_written: int = 0
    tags_written: int = 0
    tags_read: int = 0
    slots_allocated: int = 0
    slots_freed: int = 0


class _Checks:
    """What must hold in a call: whether it does is decided on the device, all at once."""

    def __init__(self) -> None:
        self._pending: list[tuple[Tensor, Callable[[int], str]]] = []

    def expect(self, holds: Tensor, otherwise: Callable[[int], str]) -> None:
        """Every entry of ``holds`` is true; ``otherwise`` says what is wrong with the first that is not."""
        if holds.numel():
            self._pending.append((holds, otherwise))

    def settle(self) -> str | None:
        """What is wrong first, if anything."""
        pending, self._pending = self._pending, []
        if not pending or bool(torch.stack([holds.all() for holds, _ in pending]).all()):
            return None
        for holds, otherwise in pending:
            wrong = torch.nonzero(~holds)
            if len(wrong):
                return otherwise(int(wrong[0, 0]))
        return None


class Machine:
    """Pools, rows and an allocator on one device.

    Parameters
    ----------
    log : ReplayLog
        What to execute.
    pools : sequence of PoolTensors
        Memory.
    allocator : SlotAllocator
        Hands out slots.
    capacity, page : int
        Tokens of the pool whose slots requests hold, and of a page.
    device : torch.device
        Where everything lies.
    check : str
        ``every``: each step's reads are compared; ``sample``: one step's of 16; ``end``: each request's last step's. The
        last step of a request is compared in any case.
    """

    def __init__(
        self,
        log: ReplayLog,
        pools: Sequence[PoolTensors],
        allocator: SlotAllocator,
        *,
        capacity: int,
        page: int,
        device: torch.device,
        check: str = "every",
    ) -> None:
        self.log = log
        self.pools = pools
        self.allocator = allocator
        self.page = page
        self.device = device
        self.done = Counts()
        self.contents = Contents(log, device)
        self._checks = _Checks()
        self._c = {name: np.asarray(column, np.int64) for name, column in log.columns.items()}
        self._state = torch.zeros(capacity // page + 1, dtype=torch.uint8, device=device)
        # Pools whose layers read alike share the search for their rows.
        self._groups: dict[tuple[bool, int | None], list[PoolTensors]] = {}
        for pool in pools:
            self._groups.setdefault((pool.mapped, pool.window), []).append(pool)
        self._one_pool = allocator.counts[0] < 0
        self._paired = allocator.counts[0] >= 0 and allocator.counts[1] >= 0
        self._longest = self._extents()
        count = self._rows_at_once()
        self._width = int(self._longest.max(initial=0)) + 1
        self._slots = torch.zeros(count * self._width, dtype=torch.int64, device=device)
        self._tags = torch.zeros(count * self._width, dtype=torch.int64, device=device)
        self._row_of = np.full(len(log.names), -1, np.int64)
        self._free_rows = list(range(count))
        self._extent = np.zeros(len(log.names), np.int64)
        self._read = self._to_read(check)
        self._at = 0

    @property
    def table_bytes(self) -> int:
        """Memory of the row tables, which are not part of any pool."""
        return self._slots.nbytes + self._tags.nbytes

    # ---- what is known from the log beforehand
    def _extents(self) -> NDArray[np.int64]:
        """Most tokens each request's row holds."""
        longest = np.zeros(len(self.log.names), np.int64)
        rows = self.log.are("allocate", "hit", "insert", "compute")
        np.maximum.at(longest, self._c["request"][rows], self._c["end"][rows])
        return longest

    def _rows_at_once(self) -> int:
        """Most rows that are open together."""
        change = self.log.are("open").astype(np.int64) - self.log.are("close")
        return max(1, int(np.cumsum(change).max(initial=0)))

    def _to_read(self, check: str) -> NDArray[np.bool_]:
        """Rows of steps whose reads are compared."""
        steps = self.log.are("compute")
        # The last step before a request's row is closed, or before the log ends.
        rows = np.flatnonzero(steps | self.log.are("close"))
        order = rows[np.lexsort((rows, self._c["request"][rows]))]
        requests = self._c["request"][order]
        last = np.append(requests[1:] != requests[:-1], True) | ~np.append(steps[order[1:]], True)
        found = np.zeros(len(steps), np.bool_)
        found[order[last]] = True
        found &= steps
        if check == "every":
            found = steps
        elif check == "sample":
            found |= steps & (self._c["step"] % _SAMPLE == 0)
        return found

    # ---- running
    def run(self, progress: Callable[[int], None] | None = None, every: int = 256) -> None:
        """Execute the log.

        Parameters
        ----------
        progress : callable, optional
            Called every so many calls with the row that is reached.

        Raises
        ------
        ReplayMismatch
            Memory does not hold what the log claims: step, pool, request, position, what was expected and what is there.
        """
        act: dict[str, Callable[[int, int], None]] = {
            "open": self._open,
            "hit": self._hit,
            "allocate": self._allocate,
            "compute": self._compute,
            "insert": self._insert,
            "move": self._move,
            "free": self._free,
            "free_full": self._free_full,
            "free_swa": self._free_swa,
            "close": self._close,
            "begin_group": lambda first, stop: self.allocator.begin_group(),
            "end_group": lambda first, stop: self.allocator.end_group(),
        }
        for number, (operation, first, stop) in enumerate(self.log.each_call()):
            if operation == "arrive":
                continue
            self._at = first
            try:
                act[operation](first, stop)
            except OutOfSlots:
                raise self._mismatch("more slots are allocated than are free", first) from None
            wrong = self._checks.settle()
            if wrong is not None:
                raise self._mismatch(wrong, first)
            self._compare_counts(first)
            self.done.calls += 1
            if progress is not None and number % every == 0:
                progress(stop)

    def finish(self, *, complete: bool) -> None:
        """Compare what is left when the log is at its end.

        Parameters
        ----------
        complete : bool
            The run came to its end, so nobody holds a row.

        Raises
        ------
        ReplayMismatch
            Rows are open, or pages are neither free nor in anybody's hands.
        """
        end = max(0, len(self.log) - 1)
        still = np.flatnonzero(self._row_of >= 0)
        if complete and len(still):
            raise self._mismatch(f"the log ends, and {self.log.who(int(still[0]))} still holds its row", end)
        used = int((self._state[1:] != _FREE).sum()) * self.page
        main = max(self.allocator.counts) if not self._paired else self.allocator.counts[0]
        free = (len(self._state) - 1) * self.page - used
        if main != free:
            raise self._mismatch(f"{main:,} slots are free, {used:,} in use, {free - main:+,} are lost", end)

    def _compare_counts(self, row: int) -> None:
        told = int(self._c["full_available"][row]), int(self._c["swa_available"][row])
        for name, found, said in zip(("full", "swa"), self.allocator.counts, told, strict=True):
            if found != said:
                raise self._mismatch(
                    f"free count of the {name} pool: the log says {said:,}, {found:,} slots are free", row
                )

    def _mismatch(self, what: str, row: int) -> ReplayMismatch:
        return ReplayMismatch(f"{what}\n  at {self.log.line(row)} (row {row:,} of the log)")

    # ---- rows and stretches
    def _numbers(self, *arrays: NDArray[np.int64]) -> list[Tensor]:
        """Figures of the host on the device."""
        return list(torch.from_numpy(np.stack(arrays)).to(self.device))

    def _ids(self, name: str, first: int, stop: int) -> Tensor:
        """Slot ids of the log on the device; those that are no slot become the padding slot, and are a mismatch."""
        part = torch.from_numpy(self.log.part(name, first, stop).astype(np.int64)).to(self.device)
        most = len(self._state) * self.page
        valid = (part >= self.page) & (part < most)
        self._checks.expect(
            valid, lambda at: f"slot {int(part[at]):,} is out of range: the pool's slots end at {most - 1:,}"
        )
        return torch.where(valid, part, 0)

    def _rows(self, first: int, stop: int) -> NDArray[np.int64]:
        """Row of each request of a call."""
        requests = self._c["request"][first:stop]
        rows = self._row_of[requests]
        if bool((rows < 0).any()):
            place = int(np.flatnonzero(rows < 0)[0])
            raise self._mismatch(f"{self.log.who(int(requests[place]))} has no row", first + place)
        return rows

    def _owner(self, first: int, stop: int, begins: NDArray[np.int64]) -> Callable[[int], tuple[int, int]]:
        """For messages: request and position of an entry of the stretches that begin there."""
        ends = np.cumsum(self._c["end"][first:stop] - begins)

        def find(at: int) -> tuple[int, int]:
            row = int(np.searchsorted(ends, at, side="right"))
            before = int(ends[row - 1]) if row else 0
            return int(self._c["request"][first + row]), int(begins[row]) + at - before

        return find

    # ---- operations
    def _open(self, first: int, stop: int) -> None:
        for request in self._c["request"][first:stop].tolist():
            if self._row_of[request] >= 0:
                raise self._mismatch(f"{self.log.who(request)} has a row already", first)
            row = self._free_rows.pop()
            self._row_of[request] = row
            length, begin = int(self._longest[request]), row * self._width
            self._slots[begin : begin + self._width] = 0
            self._tags[begin : begin + length] = self.contents.tags(request, length)
            self._extent[request] = 0

    def _place(self, first: int, stop: int) -> tuple[Tensor, int]:
        """Places in the row table of a call's token ranges."""
        begin, end = self._c["begin"][first:stop], self._c["end"][first:stop]
        rows = self._rows(first, stop)
        total = int((end - begin).sum())
        starts, lengths = self._numbers(rows * self._width + begin, end - begin)
        requests = self._c["request"][first:stop]
        self._extent[requests] = np.maximum(self._extent[requests], end)
        return spread(starts, lengths, total)[0], total

    def _hit(self, first: int, stop: int) -> None:
        slots = self._ids("slots", first, stop)
        state = self._state[slots // self.page]
        self._checks.expect(
            state == _CACHED, lambda at: f"slot {int(slots[at]):,} is found in the cache, which does not have it"
        )
        place, _ = self._place(first, stop)
        self._slots[place] = slots

    def _insert(self, first: int, stop: int) -> None:
        slots = self._ids("slots", first, stop)
        pages = slots // self.page
        self._checks.expect(
            self._state[pages] != _FREE, lambda at: f"the cache takes slot {int(slots[at]):,}, which is free"
        )
        self._state[pages] = _CACHED
        place, _ = self._place(first, stop)
        self._slots[place] = slots

    def _allocate(self, first: int, stop: int) -> None:
        begin, end = self._c["begin"][first:stop], self._c["end"][first:stop]
        place, total = self._place(first, stop)
        (before,) = self._numbers(self._rows(first, stop) * self._width + begin - 1)
        last = torch.where(before >= 0, self._slots[before.clamp(min=0)], -1)
        slots, peers = self.allocator.extend(begin, end, last)
        find = self._owner(first, stop, begin)
        self._compare_ids("slot", slots, self.log.part("slots", first, stop), find)
        if peers is not None:
            self._compare_ids("SWA slot", peers, self.log.part("peers", first, stop), find)
        pages = slots // self.page
        fresh = slots % self.page == 0
        self._checks.expect(
            ~fresh | (self._state[pages] == _FREE),
            lambda at: f"slot {int(slots[at]):,} is handed out twice: somebody has it\n{self._history(int(slots[at]))}",
        )
        self._state[torch.where(fresh, pages, 0)] = _HELD
        self._state[0] = _FREE
        self._slots[place] = slots
        self.done.slots_allocated += total

    def _compare_ids(
        self, kind: str, found: Tensor, told: NDArray[np.int32], find: Callable[[int], tuple[int, int]]
    ) -> None:
        expected = torch.from_numpy(told.astype(np.int64)).to(self.device)
        if len(expected) != len(found):
            raise self._mismatch(f"the log has {len(expected):,} {kind}s for {len(found):,} tokens", self._at)

        def otherwise(at: int) -> str:
            request, position = find(at)
            return (
                f"{kind} of {self.log.who(request)} token {position:,}: the log says {int(expected[at]):,}, the allocator "
                f"hands out {int(found[at]):,}"
            )

        self._checks.expect(expected == found, otherwise)

    def _compute(self, first: int, stop: int) -> None:
        begin, end, kept = (self._c[name][first:stop] for name in ("begin", "end", "kept"))
        requests = self._c["request"][first:stop]
        bases = self._rows(first, stop) * self._width
        total = int((end - begin).sum())
        base, begins, lengths, limit, whose = self._numbers(bases, begin, end - begin, begin + kept, requests)
        place, which = spread(base + begins, lengths, total)
        position = place - base[which]
        tags = self._tags[place]
        guessed = bool((kept < end - begin).any())
        if guessed:
            guesses = guess_tags(whose[which], position, int(self._c["call"][first]))
            tags = torch.where(position >= limit[which], guesses, tags)
        self._write(self._slots[place], tags, self._owner(first, stop, begin))
        self.done.steps += 1
        self.done.tokens_written += total
        chosen = np.flatnonzero(self._read[first:stop])
        for (_, window), pools in self._groups.items() if len(chosen) else ():
            low = begin[chosen] if window is None else np.minimum(begin[chosen], window)
            self._compare_reads(
                first + chosen, begin[chosen] - low, (chosen, lengths, tags if guessed else None), pools
            )

    def _write(self, slots: Tensor, tags: Tensor, find: Callable[[int], tuple[int, int]]) -> None:
        """Write tokens into every pool."""

        def nowhere(at: int) -> str:
            request, position = find(at)
            return f"{self.log.who(request)} token {position:,} is computed and has no slot"

        self._checks.expect(slots > 0, nowhere)
        peers = self.allocator.peers(slots) if self._paired else slots
        for pool in self.pools:
            index, valid = pool.rows_of(slots, peers)
            self._checks.expect(valid, self._unreachable(pool, slots, peers, find, "written to"))
            for tensor in pool.tensors:
                tensor.write(index, tags)
            self.done.tags_written += len(index) * len(pool.tensors)

    def _unreachable(
        self, pool: PoolTensors, slots: Tensor, peers: Tensor, find: Callable[[int], tuple[int, int]], what: str
    ) -> Callable[[int], str]:
        def otherwise(at: int) -> str:
            request, position = find(at)
            slot, row = int(slots[at]), int((peers if pool.mapped else slots)[at])
            whose = f"{self.log.who(request)} token {position:,}, slot {slot:,}"
            if row <= 0:
                return f"{pool.name}: {whose} is {what}, and its SWA half is gone\n{self._history(slot)}"
            return (
                f"{pool.name}: {whose} is {what}: row {row:,} is out of range, the pool ends at row {pool.rows - 1:,}"
            )

        return otherwise

    def _compare_reads(
        self,
        rows: NDArray[np.int64],
        low: NDArray[np.int64],
        written: tuple[NDArray[np.int64], Tensor, Tensor | None],
        pools: Sequence[PoolTensors],
    ) -> None:
        """Gather what the attention of a step reads, and compare the tags.

        Parameters
        ----------
        rows : int64 array
            Rows of the log that are looked at.
        low : int64 array
            First position that is read, of each.
        written : tuple
            Which rows of the call they are, how many tokens each row of the call wrote, and the tags of those where
            some are guesses.
        pools : sequence of PoolTensors
            Pools that are read alike.
        """
        requests, end = self._c["request"][rows], self._c["end"][rows]
        bases = self._row_of[requests] * self._width
        total = int((end - low).sum())
        starts, lengths = self._numbers(bases + low, end - low)
        place, _ = spread(starts, lengths, total)
        tags = self._tags[place]
        chosen, wrote, fresh = written
        if fresh is not None:
            # The tokens of this step end each stretch; some of them are guesses.
            sizes = wrote[torch.from_numpy(chosen).to(self.device)]
            number = int((end - self._c["begin"][rows]).sum())
            target, _ = spread(torch.cumsum(lengths, 0) - sizes, sizes, number)
            source, _ = spread(
                (torch.cumsum(wrote, 0) - wrote)[torch.from_numpy(chosen).to(self.device)], sizes, number
            )
            tags[target] = fresh[source]
        slots = self._slots[place]
        peers = self.allocator.peers(slots) if self._paired and pools[0].mapped else slots
        ends = np.cumsum(end - low)

        def find(at: int) -> tuple[int, int]:
            row = int(np.searchsorted(ends, at, side="right"))
            return int(requests[row]), int(end[row]) - (int(ends[row]) - at)

        lane = int(self._c["step"][rows[0]])
        for pool in pools:
            index, valid = pool.rows_of(slots, peers)
            self._checks.expect(valid, self._unreachable(pool, slots, peers, find, "read"))
            for number, tensor in enumerate(pool.tensors):
                found = tensor.read(index, lane)
                self._checks.expect(
                    found == tensor.encoded(tags), self._wrong_tag(pool, number, tensor, found, slots, find)
                )
            self.done.tags_read += total * len(pool.tensors)

    def _wrong_tag(
        self,
        pool: PoolTensors,
        number: int,
        tensor: KvTensor,
        found: Tensor,
        slots: Tensor,
        find: Callable[[int], tuple[int, int]],
    ) -> Callable[[int], str]:
        def otherwise(at: int) -> str:
            request, position = find(at)
            tag = int(tensor.decoded(found[at]))
            there = say_tag(tag, self.log, self.contents, self._length) if tensor.whole_tags else "something else"
            part = "KV"[number % 2] if int(pool.plan["v_head_dim"]) else "K"
            layer = number // 2 if int(pool.plan["v_head_dim"]) else number
            return (
                f"{pool.name}, layer {layer}, {part}: {self.log.who(request)} reads token {position:,} from slot "
                f"{int(slots[at]):,}\n  expected: {self.log.who(request)} token {position:,}\n  found:    {there}\n"
                f"{self._history(int(slots[at]))}"
            )

        return otherwise

    def _length(self, request: int) -> int:
        return int(self._longest[request])

    def _move(self, first: int, stop: int) -> None:
        kept, incoming = self._ids("slots", first, stop), self._ids("peers", first, stop)
        self._checks.expect(
            self.allocator.peers(kept) == 0, lambda at: f"slot {int(kept[at]):,} gets an SWA half and has one already"
        )
        self._expect_half(incoming)
        self.allocator.move(kept, incoming)

    def _expect_half(self, slots: Tensor) -> None:
        """Slots have an SWA half."""
        self._checks.expect(
            self.allocator.peers(slots) > 0,
            lambda at: (
                f"the SWA half of slot {int(slots[at]):,} is freed, and it is gone already: a stale mapping\n"
                f"{self._history(int(slots[at]))}"
            ),
        )

    def _whole(self, firsts: Tensor) -> Tensor:
        """All slots of the pages that slots lie in."""
        pages = firsts // self.page * self.page
        return (pages[:, None] + torch.arange(self.page, device=self.device)).ravel()

    def _release(self, slots: Tensor) -> None:
        """The pages of full slots are free."""
        pages = slots[:: self.page] // self.page
        state = self._state[pages]
        self._checks.expect(
            state != _FREE,
            lambda at: (
                f"slot {int(slots[at * self.page]):,} is freed twice\n{self._history(int(slots[at * self.page]))}"
            ),
        )
        self._state[pages] = _FREE
        self.done.slots_freed += len(pages) * self.page

    def _poison(self, index: Tensor, row: int, *, mapped: bool) -> None:
        """Fill what was freed, so that whoever still reads it is found."""
        tag = poison_tag(row)
        for pool in self.pools:
            if pool.mapped == mapped:
                safe = torch.where(index < pool.rows, index, 0)
                for tensor in pool.tensors:
                    tensor.fill(safe, tag)

    def _free(self, first: int, stop: int) -> None:
        slots = self._ids("slots", first, stop)
        self._release(slots)
        if self._paired:
            self._drop_half(slots, first)
        self._poison(self._whole(slots[:: self.page]), first, mapped=False)
        self.allocator.free(slots)

    def _drop_half(self, slots: Tensor, row: int) -> None:
        firsts = slots[:: self.page]
        self._expect_half(firsts)
        self._poison(self._whole(self.allocator.peers(firsts)), row, mapped=True)

    def _free_full(self, first: int, stop: int) -> None:
        slots = self._ids("slots", first, stop)
        if self._one_pool:
            # Only sliding layers: there is no full half.
            self.allocator.free_full(slots)
            return
        self._release(slots)
        if self._paired:
            self._checks.expect(
                self.allocator.peers(slots[:: self.page]) == 0,
                lambda at: (
                    f"slot {int(slots[at * self.page]):,} is freed on the full side only, and its SWA half is lost\n"
                    f"{self._history(int(slots[at * self.page]))}"
                ),
            )
        self._poison(self._whole(slots[:: self.page]), first, mapped=False)
        self.allocator.free_full(slots)

    def _free_swa(self, first: int, stop: int) -> None:
        slots = self._ids("slots", first, stop)
        if self._paired:
            self._drop_half(slots, first)
        else:
            self._release(slots)
            self._poison(slots, first, mapped=False)
            self._forget(first)
        self.allocator.free_swa(slots)

    def _forget(self, row: int) -> None:
        """With one pool for sliding layers, what slid out of a window is no longer the row's."""
        request, begin, end = (int(self._c[name][row]) for name in ("request", "begin", "end"))
        place = int(self._row_of[request]) if request >= 0 else -1
        if place >= 0:
            self._slots[place * self._width + begin : place * self._width + end] = 0

    def _close(self, first: int, stop: int) -> None:
        request = int(self._c["request"][first])
        row = int(self._rows(first, stop)[0])
        begin = row * self._width
        slots = self._slots[begin : begin + int(self._extent[request])]
        self._checks.expect(
            self._state[slots // self.page] != _HELD,
            lambda at: (
                f"{self.log.who(request)} ends, and its slot {int(slots[at]):,} (token {at:,}) is lost: nobody gave "
                f"it back\n{self._history(int(slots[at]))}"
            ),
        )
        self._row_of[request] = -1
        self._free_rows.append(row)

    # ---- messages
    def _history(self, slot: int) -> str:
        """The last operations on a slot, up to the call at hand."""
        offsets = self.log.offsets["slots"]
        stop = int(offsets[self.log.calls[np.searchsorted(self.log.calls, self._at, side="right")]])
        places = np.flatnonzero(self.log.flat["slots"][:stop] == slot)
        rows = np.unique(np.searchsorted(offsets, places, side="right") - 1)[-_HISTORY:]
        lines = [f"    {self.log.line(int(row))}" for row in rows]
        return "\n".join([f"  the last operations on slot {slot:,}:", *lines])
