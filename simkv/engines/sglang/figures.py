"""A row of the timeline: what the server says of itself after a plan."""

from __future__ import annotations

import numpy as np

from simkv.engines.base import Step
from simkv.engines.sglang.memory import Holding, KvMemory
from simkv.steptime import StepWork
from simkv.workload.request import IntArray

__all__ = ["Meter"]

_NO_POOL = Holding(-1, 0, 0, 0)


class Meter:
    """Reads the counters of a server.

    Parameters
    ----------
    memory : KvMemory
    attention_window : int or None
        Tokens a sliding layer attends to, whether or not the cache frees the rest.
    """

    def __init__(self, memory: KvMemory, attention_window: int | None) -> None:
        self._memory = memory
        self._attention_window = attention_window

    def windowed(self, lengths: IntArray, total: int) -> int:
        """Sum of what a sliding layer sees of each length; ``total`` is that of the lengths."""
        return total if self._attention_window is None else int(np.minimum(lengths, self._attention_window).sum())

    def decode_work(self, lengths: IntArray) -> StepWork:
        """Work of one decoding row for each length."""
        context = int(lengths.sum())
        return StepWork(
            decode_requests=len(lengths), decode_context=context, decode_window=self.windowed(lengths, context)
        )

    def batch(self, step: Step) -> tuple[int, int, int, int]:
        """Figures of :meth:`held` where nobody but a decode batch holds KV: its sums are known."""
        table = self._memory.table
        running, live, windowed = len(step.batch), step.work.decode_context, step.work.decode_window
        if step.verify:
            return running, live, windowed, int(table.allocated[step.batch].sum()) - live
        # Without a draft the new tokens are committed already.
        live += running
        return running, live, self.windowed(table.committed[step.batch], live), 0

    def held(self, holders: IntArray) -> tuple[int, int, int, int]:
        """Requests, their committed tokens, of those what a sliding layer sees, and slots allocated beyond."""
        table = self._memory.table
        committed = table.committed[holders]
        live = int(committed.sum())
        return len(holders), live, self.windowed(committed, live), int(table.allocated[holders].sum()) - live

    def pools(self) -> tuple[int, ...]:
        """Available, evictable and protected tokens of the full pool, then of the SWA pool; -1, 0, 0 for none."""
        memory = self._memory
        parts = (_NO_POOL if pool is None else memory.holding(pool) for pool in (memory.full, memory.swa))
        return tuple(figure for part in parts for figure in part[:3])

    def evicted(self) -> tuple[int, ...]:
        """Tokens that slid out of windows, and that left the prefix tree by pool and cause, since the last call."""
        memory = self._memory
        told = (memory.window_evicted, *memory.evicted.values())
        if any(told):
            memory.window_evicted = 0
            memory.evicted = dict.fromkeys(memory.evicted, 0)
        return told
