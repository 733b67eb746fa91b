"""Executes an allocation log on real tensors, and compares everything it can with what the log says.

Every call of the log is one vectorised operation on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simkv.errors import ReplayMismatch
from simkv.replayer.checks import Checks
from simkv.replayer.log import ReplayLog
from simkv.replayer.rows import NoRow, Rows, Stretches
from simkv.replayer.slots import OutOfSlots, SlotAllocator
from simkv.replayer.steps import Steps
from simkv.replayer.tags import Contents, poison_tag
from simkv.replayer.tensors import PoolTensors

__all__ = ["Machine"]

# What a page of the pool that rows index is: nobody's, a request's, the prefix cache's.
_FREE, _HELD, _CACHED = 0, 1, 2


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
    tree, check
        See :class:`.steps.Steps`.

    Attributes
    ----------
    calls : int
        Calls executed.
    slots_allocated, slots_freed : int
        Slots handed out and compared with the log, and given back.
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
        tree: bool = False,
        check: str = "every",
    ) -> None:
        self.log = log
        self.pools = pools
        self.allocator = allocator
        self.page = page
        self.device = device
        self._c = log.columns
        self._checks = Checks()
        contents = Contents(log, device)
        self.rows = Rows(log, contents, device)
        self.steps = Steps(
            log,
            self.rows,
            contents,
            pools,
            allocator,
            self._checks,
            tree=tree,
            check=check,
        )
        self._state = torch.zeros(capacity // page + 1, dtype=torch.uint8, device=device)
        full, swa = allocator.counts
        self._paired = full >= 0 and swa >= 0
        self._all_swa = full < 0
        self._at = 0
        self.calls = self.slots_allocated = self.slots_freed = 0

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
            "arrive": lambda first, stop: None,
            "open": self._open,
            "hit": self._hit,
            "allocate": self._allocate,
            "compute": self.steps.compute,
            "insert": self._insert,
            "move": self._move,
            "free": self._free,
            "free_full": self._free_full,
            "free_swa": self._free_swa,
            "close": self._close,
            "begin_group": lambda first, stop: self.allocator.begin_group(),
            "end_group": lambda first, stop: self.allocator.end_group(),
        }
        for operation, first, stop in self.log.each_call():
            self._at = first
            try:
                act[operation](first, stop)
            except OutOfSlots:
                raise self._mismatch("more slots are allocated than are free", first) from None
            except AssertionError as error:
                # The engine's own allocator makes sure of a few things; what was found here has more words for them.
                refused = self._checks.settle() or f"the allocator refuses: {error}"
                raise self._mismatch(refused, first) from None
            except NoRow as error:
                row = first + int(error.args[0])
                raise self._mismatch(f"{self.log.who(int(self._c['request'][row]))} has no row", row) from None
            wrong = self._checks.settle()
            if wrong is not None:
                raise self._mismatch(wrong, first)
            self._compare_counts(first)
            self.calls += 1
            if progress is not None and self.calls % every == 0:
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
        if complete and (still := self.rows.open_requests):
            raise self._mismatch(f"the log ends, and {self.log.who(still[0])} still holds its row", end)
        used = int((self._state[1:] != _FREE).sum()) * self.page
        free = (len(self._state) - 1) * self.page - used
        told = self.allocator.counts[1 if self._all_swa else 0]
        if told != free:
            raise self._mismatch(f"{told:,} slots are free and {used:,} in use: {free - told:+,} are lost", end)

    def _compare_counts(self, row: int) -> None:
        told = int(self._c["full_available"][row]), int(self._c["swa_available"][row])
        for name, found, said in zip(("full", "swa"), self.allocator.counts, told, strict=True):
            if found != said:
                raise self._mismatch(
                    f"free count of the {name} pool: the log says {said:,}, {found:,} slots are free", row
                )

    def _mismatch(self, what: str, row: int) -> ReplayMismatch:
        return ReplayMismatch(f"{what}\n  at {self.log.line(row)} (row {row:,} of the log)" if len(self.log) else what)

    # ---- what the log says, on the device
    def _ids(self, name: str, first: int, stop: int) -> Tensor:
        """Slot ids of the log; those that are no slot become the padding slot, and are a mismatch."""
        part = torch.from_numpy(self.log.part(name, first, stop).astype(np.int64)).to(self.device)
        most = len(self._state) * self.page
        valid = (part >= self.page) & (part < most)
        self._checks.expect(
            valid, lambda at: f"slot {int(part[at]):,} is out of range: the pool's slots end at {most - 1:,}"
        )
        return torch.where(valid, part, 0)

    def _stretches(self, first: int, stop: int) -> Stretches:
        """Token ranges of a call, which its rows hold from now on."""
        requests, begins, ends = (self._c[name][first:stop] for name in ("request", "begin", "end"))
        stretches = self.rows.stretches(requests, begins, ends)
        self.rows.grow(requests, ends)
        return stretches

    # ---- rows
    def _open(self, first: int, stop: int) -> None:
        for request in self._c["request"][first:stop].tolist():
            if self.rows.holds(request):
                raise self._mismatch(f"{self.log.who(request)} has a row already", first)
            self.rows.open(request)

    def _close(self, first: int, stop: int) -> None:
        request = int(self._c["request"][first])
        if not self.rows.holds(request):
            raise NoRow(0)
        slots = self.rows.of(request)
        self._checks.expect(
            self._state[slots // self.page] != _HELD,
            lambda at: (
                f"{self.log.who(request)} ends, and its slot {int(slots[at]):,} (token {at:,}) is lost: nobody gave "
                f"it back\n{self.log.history(int(slots[at]), first)}"
            ),
        )
        self.rows.close(request)

    # ---- allocation
    def _allocate(self, first: int, stop: int) -> None:
        stretches = self._stretches(first, stop)
        begins, ends = stretches.begins, stretches.ends
        slots, peers = self.allocator.extend(begins, ends, self._last(stretches))
        self._compare_ids("slot", slots, self.log.part("slots", first, stop), stretches)
        if peers is not None:
            self._compare_ids("SWA slot", peers, self.log.part("peers", first, stop), stretches)
        pages = slots // self.page
        fresh = slots % self.page == 0
        self._checks.expect(
            ~fresh | (self._state[pages] == _FREE),
            lambda at: (
                f"slot {int(slots[at]):,} is handed out, and somebody has it\n{self.log.history(int(slots[at]), first)}"
            ),
        )
        self._state[torch.where(fresh, pages, 0)] = _HELD
        self._state[0] = _FREE
        self.rows.slots[stretches.place] = slots
        self.slots_allocated += stretches.total

    def _last(self, stretches: Stretches) -> Tensor:
        """Slot in front of each stretch; where the stretch goes on in a page, that slot is in its place there."""
        last = self.rows.before(stretches.requests, stretches.begins)
        if self.page == 1:
            return last
        inside = torch.from_numpy(stretches.begins % self.page).to(self.device)
        placed = (inside == 0) | ((last >= self.page) & (last % self.page == inside - 1))
        self._checks.expect(
            placed,
            lambda at: (
                f"{self.log.who(int(stretches.requests[at]))} goes on at token {int(stretches.begins[at]):,} in a page, and "
                f"the slot of the token before, {int(last[at]):,}, is not in its place there"
            ),
        )
        return torch.where(placed, last, 0)

    def _compare_ids(self, kind: str, found: Tensor, told: NDArray[np.int32], stretches: Stretches) -> None:
        expected = torch.from_numpy(told.astype(np.int64)).to(self.device)
        if len(expected) != len(found):
            raise self._mismatch(f"the log has {len(expected):,} {kind}s for {len(found):,} tokens", self._at)

        def otherwise(at: int) -> str:
            request, position = stretches.find(at)
            return (
                f"{kind} of {self.log.who(request)} token {position:,}: the log says {int(expected[at]):,}, the allocator "
                f"hands out {int(found[at]):,}"
            )

        self._checks.expect(expected == found, otherwise)

    # ---- prefix cache
    def _hit(self, first: int, stop: int) -> None:
        slots = self._ids("slots", first, stop)
        self._checks.expect(
            self._state[slots // self.page] == _CACHED,
            lambda at: f"slot {int(slots[at]):,} is found in the cache, which does not have it",
        )
        self.rows.slots[self._stretches(first, stop).place] = slots

    def _insert(self, first: int, stop: int) -> None:
        slots = self._ids("slots", first, stop)
        pages = slots // self.page
        self._checks.expect(
            self._state[pages] != _FREE, lambda at: f"the cache takes slot {int(slots[at]):,}, which is free"
        )
        place = self._stretches(first, stop).place
        before = self.rows.slots[place]
        self._checks.expect(
            (before == slots) | (self._state[before // self.page] != _HELD),
            lambda at: (
                f"slot {int(before[at]):,} is lost: its row gets slot {int(slots[at]):,} of the cache, and nobody gave it "
                f"back\n{self.log.history(int(before[at]), first)}"
            ),
        )
        self._state[pages] = _CACHED
        self.rows.slots[place] = slots

    def _move(self, first: int, stop: int) -> None:
        kept, incoming = self._ids("slots", first, stop), self._ids("peers", first, stop)
        self._checks.expect(
            self.allocator.peers(kept) == 0, lambda at: f"slot {int(kept[at]):,} gets an SWA half and has one already"
        )
        self._expect_half(incoming)
        self.allocator.move(kept, incoming)

    # ---- frees
    def _free(self, first: int, stop: int) -> None:
        slots, firsts = self._freed(first, stop)
        self._release(firsts, first)
        if self._paired:
            self._drop_half(firsts, first)
        self.allocator.free(slots)

    def _free_full(self, first: int, stop: int) -> None:
        slots, firsts = self._freed(first, stop)
        self._release(firsts, first)
        if self._paired:
            self._checks.expect(
                self.allocator.peers(firsts) == 0,
                lambda at: (
                    f"slot {int(firsts[at]):,} is freed on the full side only, and its SWA half is lost\n"
                    f"{self.log.history(int(firsts[at]), first)}"
                ),
            )
        self.allocator.free_full(slots)

    def _free_swa(self, first: int, stop: int) -> None:
        slots, firsts = self._freed(first, stop)
        if self._paired:
            self._drop_half(firsts, first)
        else:
            self._release(firsts, first)
            self._forget(first)
        self.allocator.free_swa(slots)

    def _freed(self, first: int, stop: int) -> tuple[Tensor, Tensor]:
        """Slots that are freed, page by page and each in its place, and the first one of every page."""
        slots = self._ids("slots", first, stop)
        firsts = slots[:: self.page]
        if self.page > 1:
            place = torch.arange(len(slots), device=self.device)
            self._checks.expect(
                slots == firsts[place // self.page] // self.page * self.page + place % self.page,
                lambda at: f"slot {int(slots[at]):,} is freed at a place that is not its own in the page",
            )
        return slots, firsts

    def _release(self, firsts: Tensor, row: int) -> None:
        """The pages of slots are nobody's."""
        pages = firsts // self.page
        self._checks.expect(
            self._state[pages] != _FREE,
            lambda at: f"slot {int(firsts[at]):,} is freed twice\n{self.log.history(int(firsts[at]), row)}",
        )
        self._state[pages] = _FREE
        self._poison(firsts, row, mapped=False)
        self.slots_freed += len(pages) * self.page

    def _drop_half(self, firsts: Tensor, row: int) -> None:
        """The SWA halves of slots are nobody's."""
        self._expect_half(firsts)
        self._poison(self.allocator.peers(firsts), row, mapped=True)

    def _expect_half(self, slots: Tensor) -> None:
        """Slots have an SWA half."""
        self._checks.expect(
            self.allocator.peers(slots) > 0,
            lambda at: (
                f"the SWA half of slot {int(slots[at]):,} is given away, and it is gone already: a stale mapping\n"
                f"{self.log.history(int(slots[at]), self._at)}"
            ),
        )

    def _poison(self, firsts: Tensor, row: int, *, mapped: bool) -> None:
        """Fill the pages that were freed, so that whoever still reads them is found."""
        pages = firsts // self.page * self.page
        index = (pages[:, None] + torch.arange(self.page, device=self.device)).ravel()
        for pool in self.pools:
            if pool.mapped == mapped:
                safe = torch.where(index < pool.rows, index, 0)
                for tensor in pool.tensors:
                    tensor.fill(safe, poison_tag(row))

    def _forget(self, row: int) -> None:
        """With one pool for sliding layers, what slid out of a window is no longer the row's."""
        request, begin, end = (self._c[name][row : row + 1] for name in ("request", "begin", "end"))
        if self.rows.holds(int(request[0])):
            self.rows.slots[self.rows.stretches(request, begin, end).place] = 0
