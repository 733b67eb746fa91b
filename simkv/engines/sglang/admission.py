"""One prefill pass: which waiting requests fit, and how much of them (managers/schedule_policy.py, prefill_budget.py)."""

from __future__ import annotations

from enum import Enum

import numpy as np

from simkv.engines.sglang.memory import KvMemory
from simkv.engines.sglang.reserve import ceil_page, floor_page
from simkv.workload.request import IntArray

__all__ = ["CLIP_MAX_NEW_TOKENS", "PrefillPass", "Verdict"]

CLIP_MAX_NEW_TOKENS = 4096
_IGNORE_EOS_RESERVE_TOKENS = 1


class Verdict(Enum):
    """Outcome of looking at one candidate (``AddReqResult``)."""

    CONTINUE = "continue"
    NO_TOKEN = "no token"
    OTHER = "other"


class PrefillPass:
    """Budgets of one scheduling pass and what was admitted against them (``PrefillAdder``).

    Parameters
    ----------
    memory : KvMemory
        Live counters: what is free now.
    running : int64 array
        Handles of the running batch.
    ratio : float
        ``new_token_ratio``.
    max_prefill_tokens : int
        Input budget of the pass.
    chunk : int or None
        Chunk limit; None with chunking off.
    mixed : int
        Decoding rows that will ride along (mixed chunk).
    window : int or None
        Window of the SWA cache; None without an SWA pool.
    max_requests : int or None
        Most requests of one pass.
    repair : bool
        Only one prompt is cut at a time, and a prompt goes on only where its chunk can be allocated.

    Attributes
    ----------
    admitted, hits : list of int
        Handles, in order, and the tokens each was found to have in the prefix cache (0 for a prompt that goes on).
    new_chunked : int
        Handle whose prompt was cut in this pass, or -1.
    lost : list of int
        Handles cut in this pass before another one was: the engine loses track of them (fault F1).
    short_pool : str
        Pool that refused the last candidate.
    repaired : str
        Fault of the engine that this pass would have run into, empty for none.
    repaired_for : int
        Handle of the request that would have.
    """

    def __init__(
        self,
        memory: KvMemory,
        running: IntArray,
        ratio: float,
        *,
        max_prefill_tokens: int,
        chunk: int | None,
        mixed: int,
        window: int | None,
        max_requests: int | None = None,
        repair: bool = False,
    ) -> None:
        self.memory = memory
        self.page = memory.page_size
        self.window = window
        self._most = max_requests
        self._repair = repair
        self._unfinished = False
        self.repaired = ""
        self.repaired_for = -1
        self.ratio = ratio
        self.rem_input = max_prefill_tokens - mixed
        self.rem_chunk = None if chunk is None else chunk - mixed
        self.total_offset: float = mixed
        self.current_offset = mixed
        self.swa_offset = 0
        self.admitted: list[int] = []
        self.hits: list[int] = []
        self.new_chunked = -1
        self.lost: list[int] = []
        self.short_pool = ""
        self._running = running
        self._states: list[tuple[float, int]] | None = None
        if len(running):
            self.total_offset += self._running_offset(running)

    def _running_offset(self, running: IntArray) -> float:
        """Tokens the running requests may still take (schedule_policy.py:785-794).

        Summed strictly from left to right, as the engine does, so that ties fall the same way.
        """
        table = self.memory.table
        left = np.minimum(table.max_new[running] - table.output[running], CLIP_MAX_NEW_TOKENS)
        share = np.where(table.ignore_eos[running], 1.0, self.ratio)
        return float(np.add.accumulate(left * share)[-1])

    # ---- what is left
    @property
    def rem_total(self) -> float:
        """Tokens left after what everybody may still decode."""
        return self.memory.reclaimable - self.total_offset

    @property
    def rem_current(self) -> int:
        """Tokens left after what this pass allocates."""
        return self.memory.reclaimable - self.current_offset

    @property
    def rem_swa(self) -> int:
        """SWA tokens left; running requests reserve none."""
        return self.memory.reclaimable_swa - self.swa_offset

    def state(self) -> Verdict:
        """Whether the pass can go on (schedule_policy.py:895-952)."""
        split = self.memory.swa is not None
        if not (self.rem_total > 0 and self.rem_current > 0 and (not split or self.rem_swa > 0)):
            self.short_pool = "swa" if split and self.rem_swa <= 0 else "full"
            return Verdict.NO_TOKEN
        if self.rem_input <= 0 or (self.rem_chunk is not None and self.rem_chunk <= 0):
            return Verdict.OTHER
        return Verdict.CONTINUE

    # ---- SWA need
    def swa_need(self, extend: int, max_new: int) -> int:
        """Peak SWA reservation of one request in this pass (prefill_budget.py:27-59)."""
        if self.window is None or self.window <= 0:
            return extend + max_new + self.page
        taken = extend if self.rem_chunk is None else min(extend, self.rem_chunk)
        return max(taken - self.window, 0) + min(extend + max_new, self.window) + self.page

    def _chunk_for(self, extend: int, total: int, max_new: int) -> tuple[bool, int | None]:
        """Feasibility and chunk limit of a candidate (prefill_budget.py:114-130, 230-269)."""
        if total >= self.rem_total:
            self.short_pool = "full" if self.memory.full is not None else "swa"
            return False, None
        if self.memory.swa is None:
            return True, self.rem_chunk
        whole = ceil_page(extend, self.page)
        need = self.swa_need(whole, max_new)
        if need < self.rem_swa:
            return True, self.rem_chunk
        self.short_pool = "swa"
        # Only a request that could never fit gets a smaller chunk; transient pressure waits.
        cap = 0
        if need >= self.memory.swa.capacity:
            cap = max(0, floor_page(self.rem_swa - self.swa_need(0, max_new), self.page))
        if self.rem_chunk is None or cap <= 0:
            return False, None
        return True, min(self.rem_chunk, cap)

    # ---- candidates
    def add(self, handle: int) -> Verdict:
        """Admit a waiting request if it fits (schedule_policy.py:1395-1590).

        Its cached prefix is found first, and held while the rest is weighed: what it can reuse is not there to be
        evicted for it.
        """
        memory, table = self.memory, self.memory.table
        memory.match(handle)
        if self._most is not None and len(self.admitted) >= self._most:
            return Verdict.OTHER
        if memory.tree is None and table.ignore_eos[handle]:
            return self._add_ignore_eos(handle)
        memory.lock(handle)
        verdict = self._select(handle)
        if verdict is not Verdict.CONTINUE:
            memory.unlock(handle)
            return verdict
        return self.state()

    def _select(self, handle: int) -> Verdict:
        """Take a candidate in, whole or cut; CONTINUE says that it was."""
        table = self.memory.table
        prefix = int(table.prefix_len[handle])
        left = int(table.max_new[handle]) - int(table.output[handle])
        max_new = min(max(left, 0), CLIP_MAX_NEW_TOKENS)
        extend = int(table.input_tokens[handle]) + int(table.output[handle]) - prefix
        fits, limit = self._chunk_for(extend, extend + max_new + self.page, max_new)
        if not fits:
            return Verdict.NO_TOKEN
        whole = ceil_page(extend, self.page)
        if self.rem_chunk is None and self.admitted and whole >= self.rem_input:
            return Verdict.OTHER
        charged = min(int(table.max_new[handle]), CLIP_MAX_NEW_TOKENS)
        chunked = limit is not None and whole > limit
        if chunked:
            assert limit is not None
            if self._repair and (self._unfinished or self.new_chunked >= 0):
                self.repaired, self.repaired_for = "second-chunk" if self._unfinished else "F1", handle
                return Verdict.OTHER
            extend = floor_page(limit, self.page)
            if extend <= 0:
                return Verdict.OTHER
            charged = 0
        self._commit(handle, prefix, extend, charged, chunked=chunked)
        return Verdict.CONTINUE

    def _commit(self, handle: int, prefix: int, extend: int, max_new: int, *, chunked: bool) -> None:
        table = self.memory.table
        table.prefix_len[handle] = prefix
        table.extend_end[handle] = prefix + extend
        self.admitted.append(handle)
        self.hits.append(prefix)
        if chunked:
            if self.new_chunked >= 0:
                self.lost.append(self.new_chunked)
            self.new_chunked = handle
        self._charge(extend, max_new)

    def _charge(self, extend: int, max_new: int) -> None:
        """Debit every budget (schedule_policy.py:895-952; prefill_budget.py:156-168, 301-317)."""
        whole = ceil_page(extend, self.page)
        now = whole + self.page
        self.total_offset += now + max_new
        self.current_offset += now
        if self.memory.swa is not None:
            self.swa_offset += self.swa_need(whole, max_new)
        self.rem_input -= whole
        if self.rem_chunk is not None:
            self.rem_chunk -= whole

    def add_chunk(self, handle: int) -> bool:
        """Continue a cut prompt; returns whether it is still unfinished, or parked (schedule_policy.py:1140-1222).

        A parked request (no SWA room) is not in ``admitted``.
        """
        table = self.memory.table
        assert self.rem_chunk is not None
        room = min(self.rem_chunk, int(self.rem_total))
        if self.memory.swa is not None:
            room = min(room, self.rem_swa - self.page)
            if room <= 0:
                self._unfinished = True
                return True
        elif room <= 0:
            # A single pool has to make progress to give its KV back.
            room = self.rem_chunk
            if self._repair:
                room = min(room, floor_page(self.rem_current - self.page, self.page))
                self.repaired, self.repaired_for = "chunk-oom" if room < self.rem_chunk else "", handle
                if room <= 0:
                    self._unfinished = True
                    return True
        prefix = int(table.prefix_len[handle])
        left = int(table.input_tokens[handle]) + int(table.output[handle]) - prefix
        extend = min(left, room)
        table.extend_end[handle] = prefix + extend
        self.admitted.append(handle)
        self.hits.append(0)
        cut = self._unfinished = left > room
        self._charge(extend, 0 if cut else min(int(table.max_new[handle]), CLIP_MAX_NEW_TOKENS))
        return cut

    # ---- ignore_eos with the radix cache off
    def _add_ignore_eos(self, handle: int) -> Verdict:
        """The test that plays every known length to its end (schedule_policy.py:1241-1383)."""
        table = self.memory.table
        extend = int(table.input_tokens[handle]) + int(table.output[handle])
        paged = ceil_page(extend, self.page) + self.page
        left = int(table.max_new[handle]) - int(table.output[handle])
        split = self.memory.swa is not None
        if paged > min(self.rem_current, self.rem_total):
            self.short_pool = "full" if self.memory.full is not None else "swa"
            return Verdict.NO_TOKEN
        if split and self.swa_need(extend, min(max(left, 0), CLIP_MAX_NEW_TOKENS)) > self.rem_swa:
            self.short_pool = "swa"
            return Verdict.NO_TOKEN
        self._remember(handle)
        # The composite allocator of a split model skips the simulation; a one-pool all-SWA model does not differ.
        if not split and not self._plays_out(paged):
            self.short_pool = "full"
            return Verdict.NO_TOKEN
        if self.rem_chunk is None or extend <= self.rem_chunk:
            self._commit(handle, 0, extend, min(int(table.max_new[handle]), CLIP_MAX_NEW_TOKENS), chunked=False)
        else:
            if self.rem_chunk <= 0:
                return Verdict.OTHER
            self._commit(handle, 0, self.rem_chunk, 0, chunked=True)
        return self.state()

    def _tokens_left(self, handle: int) -> tuple[float, int]:
        table = self.memory.table
        ratio = 1.0 if table.ignore_eos[handle] else self.ratio
        output = int(table.output[handle])
        return int(table.max_new[handle]) * ratio - output, int(table.input_tokens[handle]) + output

    def _remember(self, handle: int) -> None:
        """Keep the list of (tokens left, tokens held).

        It is sorted only when it is built. A later entry goes before the first that is not smaller, and before the
        *last* one when it is the largest (off by one in the engine, schedule_policy.py:1274-1278).
        """
        if self._states is None:
            entries = [handle, *(int(h) for h in self._running), *self.admitted]
            states = [self._tokens_left(h) for h in entries]
            self._states = sorted((s for s in states if s[0] > 0), key=lambda s: s[0])
            return
        entry = self._tokens_left(handle)
        if entry[0] <= 0:
            return
        states = self._states
        later = (place for place, other in enumerate(states) if entry[0] <= other[0])
        states.insert(next(later, max(len(states) - 1, 0)), entry)

    def _plays_out(self, paged: int) -> bool:
        assert self._states is not None
        room = self.rem_current - paged
        freed = 0
        for number, (left, held) in enumerate(self._states):
            count = len(self._states) - number
            if room + freed - left * count <= _IGNORE_EOS_RESERVE_TOKENS * count:
                return False
            freed += held
        return True
