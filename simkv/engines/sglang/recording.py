"""Writes the allocation log of a server: what its pools do, and what its steps compute."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from simkv.allocations import AllocationLog
from simkv.engines.base import Step
from simkv.engines.sglang.numbered import NumberedPools
from simkv.engines.sglang.slots import SwaSlots
from simkv.errors import InvariantError
from simkv.memory.pages import CountedPool
from simkv.memory.radix import Node
from simkv.workload.request import IntArray
from simkv.workload.tokens import Tokens

__all__ = ["RecordingPools", "StepRecord"]


class RecordingPools(NumberedPools):
    """Numbered pools that write down every operation.

    Parameters
    ----------
    full, swa, page_size, rows
        See :class:`.pools.Pools`.
    log : AllocationLog
        Where to.
    """

    def __init__(
        self, full: CountedPool | None, swa: CountedPool | None, page_size: int, rows: int, *, log: AllocationLog
    ) -> None:
        super().__init__(full, swa, page_size, rows)
        self.log = log
        # Whom each slot was handed out to, and for which token: the request of a cached slot may be gone.
        self._author = np.full(self.main.capacity + page_size, -1, np.int64)
        self._position = np.zeros(self.main.capacity + page_size, np.int64)
        self._count()

    def _count(self) -> None:
        full, swa = self.full, self.swa
        self.log.counts = (-1 if full is None else full.available, -1 if swa is None else swa.available)

    def _note(self, operation: str, slots: Any, tokens: int) -> None:
        """A row about slots that lie behind each other in some request."""
        self._count()
        begin = int(self._position[slots[0]])
        self.log.add(operation, self.cause, int(self._author[slots[0]]), begin, begin + tokens, slots)

    def open_rows(self, handles: IntArray) -> None:
        """Give requests a row."""
        super().open_rows(handles)
        if len(handles):
            nothing = np.zeros(len(handles), np.int64)
            self.log.extend("open", "-", handles, nothing, nothing)

    def close_row(self, handle: int) -> None:
        """Take a request's row back."""
        super().close_row(handle)
        self.log.add("close", self.cause, handle)

    def _hand_out(self, handles: IntArray, before: IntArray, after: IntArray, tokens: int) -> IntArray:
        slots = super()._hand_out(handles, before, after, tokens)
        self._count()
        number = after - before
        self._author[slots] = np.repeat(handles, number)
        self._position[slots] = np.arange(len(slots)) + np.repeat(before - np.cumsum(number) + number, number)
        peers = self.allocator.translate(slots) if isinstance(self.allocator, SwaSlots) else ()
        grown = np.flatnonzero(number)
        self.log.extend("allocate", self.cause, handles[grown], before[grown], after[grown], slots, peers)
        return slots

    def adopt(self, handle: int, begin: int, node: Node) -> None:
        """Let a request's row from ``begin`` on hold the slots of the cached path that ends at ``node``."""
        super().adopt(handle, begin, node)
        if node.end > begin:
            operation = "insert" if self.cause == "insert" else "hit"
            self.log.add(operation, self.cause, handle, begin, node.end, self.slots(handle, begin, node.end))

    def begin_group(self) -> None:
        """Defer frees of ids."""
        super().begin_group()
        self.log.add("begin_group")

    def end_group(self) -> None:
        """Let deferred frees take effect."""
        super().end_group()
        self.log.end_group()

    def free(self, slots: Any, tokens: int) -> None:
        """Free both halves."""
        super().free(slots, tokens)
        self._note("free", slots, tokens)

    def free_full(self, slots: Any, tokens: int) -> None:
        """Free the full half; without full layers there is none, and the slots may be somebody else's by now."""
        super().free_full(slots, tokens)
        if self.full is not None:
            self._note("free_full", slots, tokens)

    def free_swa(self, slots: Any, tokens: int) -> None:
        """Free the SWA half."""
        super().free_swa(slots, tokens)
        self._note("free_swa", slots, tokens)

    def move_swa(self, kept: Any, incoming: Any) -> None:
        """Give kept full slots the SWA halves of incoming ones."""
        super().move_swa(kept, incoming)
        begin = int(self._position[incoming[0]])
        author = int(self._author[incoming[0]])
        self.log.add("move", self.cause, author, begin, begin + len(incoming), kept, incoming)


class StepRecord:
    """What the steps of a server compute.

    With overlap a step is planned before the accepted tokens of the one before it are known, so its rows are reserved at
    launch, where the device would run it, and filled in with its result.

    Parameters
    ----------
    log : AllocationLog
    row_width : int or None
        Places of a row, where steps near the end of one are cut to it instead of running over.
    """

    def __init__(self, log: AllocationLog, row_width: int | None) -> None:
        self.log = log
        self._row_width = row_width
        self._launched: deque[tuple[Step, int]] = deque()
        # Tokens of each request whose K and V are there, in the order of the device.
        self._lengths = np.zeros(1024, np.int64)

    def arrive(self, handle: int, tokens: Tokens, length: int) -> None:
        """A request was queued; ``length`` tokens of it may be computed."""
        if handle >= len(self._lengths):
            self._lengths = np.concatenate([self._lengths, np.zeros_like(self._lengths)])
        self.log.add_tokens(handle, tokens, min(length, len(tokens)))

    def launch(self, step: Step) -> None:
        """A step was planned and allocated for."""
        nothing = np.zeros(len(step.batch), np.int64)
        cause = "verify" if step.verify else step.kind
        self._launched.append((step, self.log.extend("compute", cause, step.batch, nothing, nothing)))

    def result(self, step: Step, accepted: IntArray | None) -> None:
        """The result of the oldest step that was launched."""
        launched, first = self._launched.popleft()
        if launched is not step:
            raise InvariantError("results come in the order of their steps")
        batch = step.batch
        begins = self._lengths[batch]
        kept = np.ones(len(batch), np.int64) if accepted is None else accepted
        ends = begins + (step.work.verify_tokens if step.verify else 1)
        if step.kind == "prefill":
            own = len(batch) - step.mixed_decode
            begins[:own] = step.prefix_lens[:own]
            kept[:own] = step.extend_lens[:own]
            ends = begins + kept
        if self._row_width is not None:
            ends = np.minimum(ends, self._row_width)
        if bool((begins + kept > ends).any()):
            raise InvariantError(f"step {self.log.step}: more tokens are accepted than were verified")
        self._lengths[batch] = begins + kept
        self.log.computed(first, begins, ends, kept)
