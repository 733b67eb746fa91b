"""The scheduler: who goes next, what is allocated for it, who must go (managers/scheduler.py, schedule_batch.py)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from simkv.allocations import AllocationLog
from simkv.engines.base import LIMITS, Event, Request, Step, Usage
from simkv.engines.sglang.admission import PrefillPass, Verdict
from simkv.engines.sglang.allocation import Allocation
from simkv.engines.sglang.arrival import TOO_LONG, Limits
from simkv.engines.sglang.batch import Batch, RetractionOrder, default_retraction_order
from simkv.engines.sglang.diagnosis import LABELS, abort_text, idle_fault, parked_for_ever, waits_for_ever
from simkv.engines.sglang.figures import Meter
from simkv.engines.sglang.journal import Journal
from simkv.engines.sglang.memory import KvMemory
from simkv.engines.sglang.pools import Pools
from simkv.engines.sglang.ratio import NewTokenRatio
from simkv.engines.sglang.recording import RecordingPools, StepRecord
from simkv.engines.sglang.settings import Settings
from simkv.engines.sglang.table import FINISHED, LIVE, RETRACTED
from simkv.errors import EngineFault, InvariantError
from simkv.memory.pages import CountedPool
from simkv.memory.radix import RadixTree
from simkv.steptime import StepWork
from simkv.workload.request import IntArray
from simkv.workload.tokens import Tokens, private_tokens

__all__ = ["Scheduler"]

# Waiting requests whose cached prefixes are made recent, and every how many passes (managers/schedule_policy.py:139).
_REFRESHED_REQUESTS = 128
_REFRESH_INTERVAL = 32

# A refused prompt becomes one token, the same for all (managers/schedule_batch.py:2221-2238).
_STUB = Tokens([(-1, 1), (-3, 1)])


class Scheduler:
    """SGLang's scheduler.

    Parameters
    ----------
    settings : Settings
        Resolved server settings.
    full_tokens, swa_tokens : int or None
        Capacities; ``full_tokens`` None for an all-SWA model, ``swa_tokens`` None without split.
    max_running_requests : int
        Request rows and largest batch.
    draft_slots : int or None
        Rows of the smallest draft pool that is indexed by full slots, where that is less than the full pool.
    retraction_order : callable, optional
        Policy: which requests to keep.
    pools : callable, optional
        How slots are handed out: counted, or with numbers.
    log : AllocationLog, optional
        Where to write down every slot that changes hands; slots then have numbers.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        full_tokens: int | None,
        swa_tokens: int | None,
        max_running_requests: int,
        draft_slots: int | None = None,
        retraction_order: RetractionOrder = default_retraction_order,
        pools: Callable[..., Pools] = Pools,
        log: AllocationLog | None = None,
    ) -> None:
        page = settings.page_size
        if log is not None:
            pools = partial(RecordingPools, log=log)
        self.settings = settings
        self.page = page
        self.overlap = not settings.disable_overlap_schedule
        self.spec = settings.spec
        self.window = settings.window if swa_tokens is not None else None
        self.memory = KvMemory(
            pools(
                None if full_tokens is None else CountedPool("full", full_tokens, page),
                None if swa_tokens is None else CountedPool("swa", swa_tokens, page),
                page,
                max_running_requests,
            ),
            None if settings.disable_radix_cache else self._tree(split=full_tokens is not None),
            window=self.window,
            exact_release="unaligned-reserve" not in settings.faults,
            keeps_dead_slots=not settings.repair_faults,
        )
        self.table = self.memory.table
        self.journal = Journal()
        self.limits = Limits(settings, self.memory.capacity)
        self.allocation = Allocation(self.memory, settings, self.journal, draft_slots)
        self._log = log
        self._record = None
        if log is not None:
            self._record = StepRecord(log, self.allocation.row_width if settings.repair_faults else None)
        self._meter = Meter(self.memory, settings.attention_window or self.window)
        self.max_running_requests = max_running_requests
        self.waiting: deque[int] = deque()
        self.running = Batch()
        self.last: Batch | None = None
        self.chunked = -1
        self.retracted: list[int] = []
        self.aborted: list[int] = []
        self.limit = "arrival"
        self._in_flight: deque[Step] = deque()
        # Whether the last plan left nobody with KV outside its batch and the running ones.
        self._alone = True
        self._status_changes = 0
        self._running_seen = 0
        self._full_reason = "rows"
        self._retraction_order = retraction_order
        self.ratio = NewTokenRatio(settings)
        self._refreshes = 0

    def _tree(self, *, split: bool) -> RadixTree:
        """The prefix tree: keys of the EAGLE family are bigrams (mem_cache/kv_cache_builder.py:401)."""
        bigram = self.spec is not None and self.spec.is_eagle
        return RadixTree(self.page, bigram=bigram, window=self.window if split else None)

    # ------------------------------------------------------------------ arrival
    def front_end_refusal(self, request: Request) -> tuple[str, str] | None:
        """Cause and detail of a 400 of the front end, before the scheduler sees the request; None: none."""
        return self.limits.front_end_refusal(request)

    def submit(self, request: Request) -> int:
        """Clip and queue a request; one that is too long becomes a one-token stub that ends as an abort.

        Notes
        -----
        Rules: managers/scheduler.py:2693-2740, 3231-3248. A refused request still waits, takes a row and a page, and
        is prefilled.
        """
        limits, journal, pool = self.limits, self.journal, self.memory.pools.main.name
        tokens, max_new = request.input_tokens, limits.max_new(request)
        refused = tokens > limits.longest_prompt
        stop = max_new if request.stop_tokens is None else min(request.stop_tokens, max_new)
        # Refused, it keeps its figures, but for a prompt of one token.
        kept, stop = (1, 0) if refused else (tokens, stop)
        handle = self.table.add(kept, max_new, stop, ignore_eos=request.ignore_eos, to_abort=refused)
        journal.names.append(request.name)
        self.memory.add(_STUB if refused else request.tokens or private_tokens(handle))
        if self._record is not None:
            self._record.arrive(handle, self.memory.tokens(handle), kept + max_new + 1)
        self.waiting.append(handle)
        if refused:
            detail = f"prompt {tokens:,} > {limits.longest_prompt:,}, the longest the server takes"
            journal.note("refusal", handle, pool, tokens, TOO_LONG, detail)
        elif max_new < request.max_new_tokens:
            cause = "max_new_tokens clipped to what context and pool leave"
            journal.note("clip", handle, pool, request.max_new_tokens - max_new, cause)
        return handle

    # ------------------------------------------------------------------ figures
    def drain_events(self) -> list[Event]:
        """Events since the last call."""
        return self.journal.drain()

    def check(self) -> None:
        """Check conservation of every pool; raises InvariantError."""
        self.memory.check()

    def output_tokens(self, handles: IntArray) -> IntArray:
        """Tokens each request has generated so far."""
        generated: IntArray = self.table.output[handles]
        return generated

    def finished_len(self, handle: int) -> int:
        """Output length a request finished with, -1 while it has not."""
        return int(self.table.finished_len[handle])

    def retractions(self, handle: int) -> int:
        """How often a request was retracted."""
        return int(self.table.retractions[handle])

    def holders(self) -> IntArray:
        """Requests that hold KV: the running ones, those of steps whose result is awaited, and a parked chunk."""
        parked = [np.array([self.chunked])] if self.chunked >= 0 else []
        found = np.unique(np.concatenate([self.running.reqs, *(step.batch for step in self._in_flight), *parked]))
        live: IntArray = found[self.table.status[found] == LIVE]
        return live

    def usage(self, step: Step | None) -> Usage:
        """Figures after a plan."""
        meter = self._meter
        alone = self._alone and (self.chunked < 0 or (step is not None and self.chunked in step.batch))
        if step is not None and step.kind == "decode" and alone:
            running, live, windowed, over = meter.batch(step)
        elif step is not None and step.kind == "prefill" and alone:
            running, live, windowed, over = meter.held(np.concatenate([self.running.reqs, step.batch]))
        else:
            running, live, windowed, over = meter.held(self.holders())
        requests = (running, len(self.waiting), len(self.retracted), len(self.aborted))
        self.retracted, self.aborted = [], []
        tokens = (*meter.pools(), self.memory.rows_free, over, *meter.evicted(), live, windowed)
        return Usage._make((*requests, *tokens, LIMITS.index(self.limit), self.ratio.current))

    # ------------------------------------------------------------------ plan
    def schedule(self) -> Step | None:
        """Plan one step and allocate for it (``get_next_batch_to_run``, managers/scheduler.py:3894-4025)."""
        with self._blaming():
            return self._plan()

    @contextmanager
    def _blaming(self) -> Iterator[None]:
        """More slots free than there are: the engine's fault where it counts some twice (F3), else our own."""
        try:
            yield
        except InvariantError as error:
            swa = self.memory.swa
            if not self.memory.counted_twice or swa is None or swa.available <= swa.usable:
                raise
            detail = f"{swa.available:,} available of {swa.capacity:,}"
            raise self.journal.fault("F3", detail, pool="swa") from error

    def _plan(self) -> Step | None:
        table = self.table
        if self._log is not None:
            self._log.step += 1
        self.retracted, self.aborted = [], []
        self._alone = True
        exclude: list[int] = []
        if self.chunked >= 0:
            exclude.append(self.chunked)
            # A parked chunk computed nothing; otherwise the next chunk resumes behind this one.
            if table.extend_end[self.chunked] > table.prefix_len[self.chunked]:
                self._checkpoint(self.chunked)
        self._merge_last(exclude)
        self._drop_finished()
        step = self._prefill()
        if step is None and len(self.running.reqs) and not self.running.prefill_only:
            step = self._decode()
        if step is None:
            self.last = None
        else:
            step.stamp = self._status_changes
            self._in_flight.append(step)
            if self._record is not None:
                self._record.launch(step)
        return step

    def _checkpoint(self, handle: int) -> None:
        """Publish what a request has computed; its next chunk resumes there (mem_cache/common.py:271-280)."""
        table = self.table
        self.memory.checkpoint(handle, int(table.extend_end[handle]))
        table.prefix_len[handle] = table.extend_end[handle]

    def _merge_last(self, exclude: list[int]) -> None:
        last = self.last
        if last is None or not last.extend:
            return
        if last.chunked >= 0:
            exclude.append(last.chunked)
        keep = self.table.status[last.reqs] != FINISHED
        for handle in exclude:
            keep &= last.reqs != handle
        if not keep.all():
            last.reqs = last.reqs[keep]
            self.running.is_full = False
        if len(last.reqs) and last is not self.running:
            if len(self.running.reqs) == 0:
                self.running = last
            else:
                self.running.reqs = np.concatenate([self.running.reqs, last.reqs])
                self.running.prefill_only = self.running.prefill_only and last.prefill_only

    def _drop_finished(self) -> None:
        running = self.running
        if self._running_seen == self._status_changes:
            return
        self._running_seen = self._status_changes
        keep = self.table.status[running.reqs] != FINISHED
        if not keep.all():
            running.reqs = running.reqs[keep]
            running.is_full = False

    def _finishing(self, reqs: IntArray) -> NDArray[np.bool_] | None:
        """Which of ``reqs`` the queued result will finish by length (schedule_batch.py:1661-1663)."""
        if not self.overlap or not self._in_flight:
            return None
        table = self.table
        due = table.output[reqs] + 1 >= table.max_new[reqs]
        if not due.any():
            return None
        queued = self._in_flight[0].batch
        if reqs is not queued:
            due &= np.isin(reqs, queued)
        return due if due.any() else None

    # ------------------------------------------------------------------ prefill
    def _prefill(self) -> Step | None:
        running, memory = self.running, self.memory
        if memory.swa is not None or len(running.reqs) == 0:
            running.is_full = False
        if (running.is_full or not self.waiting) and self.chunked < 0:
            self.limit = self._full_reason if self.waiting else "arrival"
            return None
        count = len(running.reqs)
        if min(self.max_running_requests - count, memory.rows_free) <= 0 and self.chunked < 0:
            running.is_full = True
            self.limit = self._full_reason = "rows"
            return None
        self._refresh_waiting()
        mixed = count if self.settings.enable_mixed_chunk else 0
        adder = PrefillPass(
            memory,
            running.reqs,
            self.ratio.current,
            max_prefill_tokens=self.settings.max_prefill_tokens,
            chunk=self.settings.chunk,
            mixed=mixed,
            window=self.window,
            max_requests=self.settings.prefill_max_requests,
            repair=self.settings.repair_faults,
        )
        if self.chunked >= 0 and not adder.add_chunk(self.chunked):
            self.chunked = -1
        self._admit(adder, count)
        if adder.repaired:
            self.journal.note_repair(adder.repaired, adder.repaired_for)
        if self.chunked >= 0 and self.chunked not in adder.admitted:
            self._free_parked()
        if self.chunked >= 0 and self.chunked not in adder.admitted and self.limit == "arrival":
            self.limit = "swa"
        if not adder.admitted:
            return None
        for handle in adder.lost:
            # The engine takes it for fully prefilled and lets it generate from where it was cut.
            self.journal.lost.add(handle)
            detail = f"{int(self.table.extend_end[handle]):,} of its prompt's tokens are computed, the rest is lost"
            self.journal.note_fault("F1", handle, "swa", detail)
        if adder.new_chunked >= 0:
            if self.chunked >= 0:
                name = self.journal.names[adder.new_chunked]
                raise self.journal.fault("second-chunk", f"request {name} is cut as well", adder.new_chunked)
            self.chunked = adder.new_chunked
        if self.chunked >= 0:
            self.table.middle_chunks[self.chunked] += 1
        return self._launch_prefill(adder)

    def _free_parked(self) -> None:
        """Repair of F2: a parked prompt that nothing computes gives its out-of-window slots back at once."""
        handle = self.chunked
        if not self.settings.repair_faults or self.memory.tree is not None or self.window is None:
            return
        if any(handle in step.batch for step in self._in_flight):
            return
        before = self.memory.window_evicted
        self.memory.slide_window(handle, int(self.table.prefix_len[handle]))
        if self.memory.window_evicted > before:
            self.journal.note_repair("F2", handle, "swa")

    def _refresh_waiting(self) -> None:
        """Now and then, keep the cached prefixes of those who wait from being evicted, the head's longest.

        Rule: managers/schedule_policy.py:282-302.
        """
        if self.memory.tree is None or not self.waiting:
            return
        if self._refreshes % _REFRESH_INTERVAL == 0:
            for handle in [*islice(self.waiting, _REFRESHED_REQUESTS)][::-1]:
                self.memory.refresh(handle)
        self._refreshes += 1

    def _admit(self, adder: PrefillPass, running: int) -> None:
        """Head-of-line admission (managers/scheduler.py:4204-4300)."""
        memory, waiting = self.memory, self.waiting
        self.limit = "arrival"
        taken = 0
        # Only a prompt that goes on has its slots, and its row, already.
        held = len(adder.admitted)
        for handle in waiting:
            if adder.state() is Verdict.OTHER:
                self.limit = "chunk"
                break
            if len(adder.admitted) >= min(self.max_running_requests - running, memory.rows_free + held):
                self.running.is_full = True
                self.limit = self._full_reason = "rows"
                break
            before = len(adder.admitted)
            verdict = adder.add(handle)
            taken += len(adder.admitted) - before
            if verdict is not Verdict.CONTINUE:
                if verdict is Verdict.NO_TOKEN:
                    self.running.is_full = bool(adder.admitted) or running > 0
                    self._full_reason = adder.short_pool
                self.limit = adder.short_pool if verdict is Verdict.NO_TOKEN else "chunk"
                break
        for _ in range(taken):
            waiting.popleft()
        if not waiting:
            self.limit = "arrival"

    def _launch_prefill(self, adder: PrefillPass) -> Step:
        table = self.table
        reqs = np.array(adder.admitted, np.int64)
        self.allocation.prefill(reqs)
        table.status[reqs] = LIVE
        batch = Batch(
            reqs,
            extend=True,
            chunked=self.chunked,
            prefill_only=self.spec is None and bool((table.max_new[reqs] == 0).all()),
        )
        prefix = table.prefix_len[reqs]
        extend = table.extend_end[reqs] - prefix
        step = Step("prefill", reqs, extend.tolist(), prefix.tolist(), adder.hits, chunked=self.chunked)
        step.work = StepWork(
            prefill_tokens=int(extend.sum()),
            prefill_pairs=int((extend * prefix + extend * (extend + 1) // 2).sum()),
            prefill_requests=len(reqs),
        )
        if self.settings.enable_mixed_chunk and len(self.running.reqs):
            self._mix(batch, step)
        self.last = batch
        return step

    def _mix(self, batch: Batch, step: Step) -> None:
        """Let decoding rows ride along with a prefill (managers/scheduler.py:4375-4410)."""
        running, table = self.running, self.table
        finishing = self._finishing(running.reqs)
        if finishing is not None:
            self._alone = False
            running.reqs = running.reqs[~finishing]
            running.is_full = False
        if not len(running.reqs) or not self.allocation.decode_fits(running.reqs):
            return
        before = table.committed[running.reqs]
        self.allocation.decode(running.reqs)
        if self.spec is None:
            rows = before
        else:
            rows = table.input_tokens[running.reqs] + table.output[running.reqs] - 1
        batch.reqs = np.concatenate([batch.reqs, running.reqs])
        batch.prefill_only = False
        step.batch = batch.reqs
        step.prefix_lens = step.prefix_lens + rows.tolist()
        step.extend_lens = step.extend_lens + [1] * len(rows)
        step.mixed_decode = len(rows)
        work = self._meter.decode_work(rows)
        step.work.decode_requests = work.decode_requests
        step.work.decode_context, step.work.decode_window = work.decode_context, work.decode_window
        self.running = Batch(is_full=running.is_full)

    # ------------------------------------------------------------------ decode
    def _decode(self) -> Step | None:
        """``update_running_batch`` (managers/scheduler.py:4459-4552)."""
        batch = self.running
        count = len(batch.reqs)
        finishing = self._finishing(batch.reqs)
        if finishing is not None:
            self._alone = False
            batch.reqs = batch.reqs[~finishing]
            if not len(batch.reqs):
                batch.is_full = False
                return None
        if not self.allocation.decode_fits(batch.reqs):
            if finishing is not None:
                # The queued result frees memory at the end of this step: wait instead of retracting.
                batch.is_full = False
                return None
            self._retract(batch)
        else:
            self.ratio.fall()
        if len(batch.reqs) < count:
            batch.is_full = False
        if not len(batch.reqs):
            return None
        work = self._prepare_decode(batch.reqs)
        batch.extend = False
        self.last = batch
        step = Step("decode", batch.reqs, [], [], chunked=self.chunked, verify=self.spec is not None, work=work)
        if self.spec is not None:
            step.verify_index = self.table.verifies[batch.reqs]
            self.table.verifies[batch.reqs] += 1
        return step

    def _prepare_decode(self, reqs: IntArray) -> StepWork:
        """Allocate for a decode step; returns what it computes."""
        work = self._meter.decode_work(self.table.committed[reqs])
        self.allocation.decode(reqs)
        if self.spec is not None:
            work.verify_tokens = self.spec.num_draft_tokens
            work.draft_steps = self.spec.num_steps if self.spec.has_draft_kv else 0
        return work

    def _retract(self, batch: Batch) -> None:
        """Free memory by taking requests out of the batch (schedule_batch.py:3451-3560)."""
        table, memory = self.table, self.memory
        reqs = batch.reqs
        keep = reqs[self._retraction_order(table.output[reqs], table.input_tokens[reqs])]
        first = True
        while len(keep) > 1 and (first or not self.allocation.decode_fits(keep)):
            first = False
            handle = int(keep[-1])
            self._release(handle, self.allocation.decode_need(keep), "retraction")
            self.retracted.append(handle)
            # It goes to the end of the queue (managers/scheduler.py:4539-4540).
            self.waiting.append(handle)
            keep = keep[:-1]
            # Whoever is left gets room for some steps at once (schedule_batch.py:2391).
            memory.make_room(len(keep) * self.settings.retract_decode_steps, "retraction")
        if len(keep) == 1 and not self.allocation.decode_fits(keep):
            handle = int(keep[-1])
            self._release(handle, self.allocation.decode_need(keep), "abort")
            self.aborted.append(handle)
            keep = keep[:-1]
        batch.reqs = keep
        self.ratio.jump(len(keep), int(table.output[keep].sum()), int(table.max_new[keep].sum()))
        self._status_changes += 1

    def _release(self, handle: int, need: int, kind: str) -> None:
        table, memory = self.table, self.memory
        pool = memory.short_pool(need)
        if kind == "abort":
            # With overlap its first token is not there yet at the first decode step, so outputs do not tell.
            if self.spec is not None and not table.verifies[handle] and not table.decode_idx[handle]:
                self.journal.note_fault("F4", handle, pool)
            cause, detail = f"alone, its next step does not fit the {LABELS[pool]} pool", abort_text(memory, pool, need)
        else:
            cause, detail = f"decode step short of {LABELS[pool]}-pool tokens", ""
        tokens = memory.release(handle, kind)
        self.journal.note(kind, handle, pool, tokens, cause, detail)
        table.status[handle] = RETRACTED
        table.retractions[handle] += kind == "retraction"
        table.prefix_len[handle] = table.extend_end[handle] = 0
        table.committed[handle] = table.protected[handle] = table.branch[handle] = 0
        table.decode_idx[handle] = table.extend_idx[handle] = 0
        table.middle_chunks[handle] = 0

    # ------------------------------------------------------------------ results
    def complete(self, step: Step, accepted: IntArray | None) -> list[int]:
        """Process a result (scheduler_components/batch_result_processor.py:250-420, 985-1110).

        Parameters
        ----------
        step : Step
            The oldest launched step.
        accepted : int64 array or None
            Accepted tokens of every row of a verify step, the bonus token included.

        Returns
        -------
        list of int
            Handles that finished.
        """
        if self._in_flight.popleft() is not step:
            raise InvariantError("results come in the order of their steps")
        if self._record is not None:
            self._record.result(step, accepted)
        with self._blaming():
            if step.kind == "prefill":
                return self._complete_prefill(step)
            return self._complete_decode(step, accepted)

    def _complete_decode(self, step: Step, accepted: IntArray | None) -> list[int]:
        table = self.table
        reqs = step.batch
        if self._status_changes != step.stamp:
            # Somebody finished or was retracted after this step was planned.
            live = table.status[reqs] == LIVE
            if not live.all():
                reqs = reqs[live]
                accepted = None if accepted is None else accepted[live]
        output = table.output[reqs]
        if accepted is None:
            output += 1
        else:
            output += accepted
            table.committed[reqs] += accepted
        table.output[reqs] = output
        done = output >= table.stop_at[reqs]
        if not done.any():
            return []
        finished: list[int] = reqs[done].tolist()
        self.memory.pools.begin_group()
        for handle in finished:
            self._finish(handle)
        self.memory.pools.end_group()
        return finished

    def _complete_prefill(self, step: Step) -> list[int]:
        table = self.table
        riding = len(step.batch) - step.mixed_decode
        finished = []
        self.memory.pools.begin_group()
        for place, handle in enumerate(step.batch.tolist()):
            chunks = table.middle_chunks[handle]
            status = table.status[handle]
            if (status == FINISHED and chunks <= 0) or status == RETRACTED:
                continue
            if chunks > 0:
                table.middle_chunks[handle] -= 1
                continue
            table.output[handle] += 1
            if table.to_abort[handle] or table.output[handle] >= table.stop_at[handle]:
                self._finish(handle)
                finished.append(handle)
            elif place >= riding:
                if self.spec is not None:
                    table.committed[handle] += 1
            else:
                self._checkpoint(handle)
        self.memory.pools.end_group()
        return finished

    def _finish(self, handle: int) -> None:
        table = self.table
        table.finished_len[handle] = table.output[handle] if table.to_abort[handle] else table.stop_at[handle]
        table.status[handle] = FINISHED
        self._status_changes += 1
        before = self.memory.kept_out
        self.memory.release(handle, "finish", insert=True)
        if self.memory.kept_out > before:
            self.journal.note_repair("F3", handle, "swa")

    # ------------------------------------------------------------------ idle
    def idle(self) -> None:
        """Nothing launched, nothing in flight; when everything is empty the ratio starts anew and pools are checked.

        Notes
        -----
        Rule: managers/scheduler.py:5289-5318.
        """
        if not self.is_empty():
            return
        fault = idle_fault(self.memory, self.settings, self.journal)
        if fault is not None:
            raise fault
        self.ratio.reset()

    def is_empty(self) -> bool:
        """Nothing waits, runs or is half prefilled."""
        return not self.waiting and not len(self.running.reqs) and self.chunked < 0 and self.last is None

    def break_stall(self) -> bool:
        """Repair: give up the request that keeps everything from running."""
        handle = self.chunked if self.chunked >= 0 else self.waiting[0] if self.waiting else -1
        if not self.settings.repair_faults or handle < 0:
            return False
        fault = self.diagnose_stall()
        tokens = int(self.table.input_tokens[handle]) + int(self.table.output[handle])
        if self.chunked >= 0:
            self.memory.release(handle, "abort")
            self.chunked = -1
        else:
            self.waiting.popleft()
        self.table.status[handle] = RETRACTED
        cause = f"{fault.fault}: the engine would wait for ever"
        self.journal.note("abort", handle, fault.pool, tokens, cause, fault.message)
        self.aborted.append(handle)
        return True

    def diagnose_stall(self) -> EngineFault:
        """Name why nothing will ever run again."""
        if self.chunked >= 0:
            return parked_for_ever(self.memory, self.settings, self.journal, self.chunked)
        if not self.waiting:
            return self.journal.fault("stalled", "requests are running that can never decode")
        return waits_for_ever(self.memory, self.settings, self.journal, list(self.waiting), self.limit)
