"""The clock: arrivals, the scheduler loop, the draft worker and the target worker, as SimPy processes.

It owns the order of things and knows no rule of memory. Time is integer nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Any

import numpy as np
import simpy

from simkv.engines.base import Engine, Event, Request, Step, Usage
from simkv.errors import EngineFault, InvariantError
from simkv.recorder import Recorder
from simkv.steptime import StepTime
from simkv.workload.acceptance import Acceptance
from simkv.workload.request import IntArray, Workload

__all__ = ["KINDS", "Outcome", "Progress", "Simulation", "TIMELINE_FLOATS", "TIMELINE_INTS"]

KINDS = ("idle", "prefill", "decode")

# Columns of the clock's own, then the engine's.
_CLOCK = (
    "time_ns",
    "duration_ns",
    "kind",
    "batch",
    "prefill_tokens",
    "num_refused_reqs",
    "accepted_tokens",
    "verified_reqs",
    "hit_tokens",
    "rehit_tokens",
)
TIMELINE_FLOATS = ("new_token_ratio",)
TIMELINE_INTS = (*_CLOCK, *(name for name in Usage._fields if name not in TIMELINE_FLOATS))

Process = Generator[simpy.Event, Any, None]


@dataclass(frozen=True)
class Progress:
    """What a progress bar shows."""

    time_s: float
    steps: int
    running: int
    waiting: int
    retracted: int
    done: int
    total: int


@dataclass
class Outcome:
    """Everything a simulation produced, as arrays.

    Parameters
    ----------
    timeline : dict of arrays
        Columns ``TIMELINE_INTS`` and ``TIMELINE_FLOATS``; row i holds from its time until the next row's.
    events : list of (time_ns, Event)
    arrival_ns, admitted_ns, first_token_ns, finished_ns : int64 array, shape (n,)
        -1 where it did not happen.
    output_tokens, retractions : int64 array, shape (n,)
        ``output_tokens`` is what the client got.
    prefilled_tokens : int64 array, shape (n,)
        Tokens computed in prefill steps, again after a retraction included.
    cached_tokens, rehit_tokens : int64 array, shape (n,)
        Prompt tokens found in the prefix cache when the request was first admitted, and tokens of its own found there
        when it came back from a retraction.
    request_of : int64 array
        Number in the workload of each request the engine took, by the engine's handle.
    state : list of str, length n
        completed, refused, aborted, unfinished or never arrived.
    fault : EngineFault or None
        Where the engine itself would die or stall for ever.
    partial : bool
        The run was interrupted.
    draft_busy_ns, target_busy_ns : int
        Time either worker was computing.
    """

    timeline: dict[str, Any]
    events: list[tuple[int, Event]]
    arrival_ns: IntArray
    admitted_ns: IntArray
    first_token_ns: IntArray
    finished_ns: IntArray
    output_tokens: IntArray
    retractions: IntArray
    prefilled_tokens: IntArray
    cached_tokens: IntArray
    rehit_tokens: IntArray
    request_of: IntArray
    state: list[str]
    end_ns: int
    steps: int
    fault: EngineFault | None = None
    partial: bool = False
    draft_busy_ns: int = 0
    target_busy_ns: int = 0
    clipped: list[int] = field(default_factory=list)


class _Arrivals:
    """Requests in the order in which they arrive: by the clock, when a client is free, or when another one ended.

    The first requests of chains come as the workload says, by their times or one a free client; the end of a request
    sends the next one of its chain.
    """

    def __init__(self, workload: Workload) -> None:
        n = len(workload)
        think, previous = workload.think_ns, workload.previous
        self._think = [0] * n if think is None else think.tolist()
        self._times = workload.arrival_ns.tolist()
        self._first: Sequence[int] = range(n)
        self._follower: dict[int, int] = {}
        if previous is not None:
            self._first = np.flatnonzero(previous < 0).tolist()
            sent = np.flatnonzero(previous >= 0)
            self._follower = dict(zip(previous[sent].tolist(), sent.tolist(), strict=True))
        self._begun = 0
        self._heap: list[tuple[int, int]] = []
        self.closed = workload.concurrency is not None
        for _ in range(min(workload.concurrency or 0, len(self._first))):
            self._begin(0)

    def after(self, now: int, index: int) -> None:
        """Request ``index`` ended: the next one of its chain comes, or its client begins another chain."""
        follower = self._follower.get(index)
        if follower is not None:
            self._send(now, follower)
        elif self.closed and self._begun < len(self._first):
            self._begin(now)

    def _begin(self, now: int) -> None:
        self._send(now, self._first[self._begun])
        self._begun += 1

    def _send(self, now: int, index: int) -> None:
        heappush(self._heap, (now + self._think[index], index))

    @property
    def _next(self) -> tuple[int, int] | None:
        """(arrival time, index) of the next request; equal times in order of index."""
        sent = self._heap[0] if self._heap else None
        if self.closed or self._begun == len(self._first):
            return sent
        index = self._first[self._begun]
        timed = self._times[index], index
        return timed if sent is None or timed < sent else sent

    @property
    def next_ns(self) -> int | None:
        """When the next request arrives, None when no more are known."""
        following = self._next
        return None if following is None else following[0]

    def due(self, now: int) -> list[tuple[int, int]]:
        """(arrival time, index) of everything that has arrived by ``now``."""
        out: list[tuple[int, int]] = []
        while (following := self._next) is not None and following[0] <= now:
            if self._heap and self._heap[0] == following:
                heappop(self._heap)
            else:
                self._begun += 1
            out.append(following)
        return out


@dataclass
class _Worker:
    """A worker of the GPU: computes for a while, and remembers how long it was busy."""

    env: simpy.Environment
    busy_ns: int = 0

    def compute(self, duration: int) -> Generator[simpy.Event, Any, None]:
        self.busy_ns += duration
        yield self.env.timeout(duration)


@dataclass
class _Job:
    step: Step
    done: simpy.Event
    times: tuple[int, int] = field(default=(0, 1))


class Simulation:
    """One run of a workload through an engine.

    Parameters
    ----------
    engine : Engine
        The engine, empty.
    workload : Workload
        Requests, in arrival order.
    acceptance : Acceptance
        Draws accepted lengths; asked once a verify step.
    step_time : StepTime
        Duration of a step.
    check_every : int
        Check conservation every so many steps; 0 only at the end.
    progress : callable, optional
        Called with a :class:`Progress` every ``progress_every`` steps.
    """

    def __init__(
        self,
        engine: Engine,
        workload: Workload,
        acceptance: Acceptance,
        step_time: StepTime,
        *,
        check_every: int = 0,
        progress: Callable[[Progress], None] | None = None,
        progress_every: int = 256,
    ) -> None:
        self.env = simpy.Environment()
        self.engine = engine
        self.workload = workload
        self.acceptance = acceptance
        self.step_time = step_time
        self.draft_worker = _Worker(self.env)
        self.target_worker = _Worker(self.env)
        self._arrivals = _Arrivals(workload)
        self._queue: simpy.Store = simpy.Store(self.env)
        self._check_every = check_every
        self._progress = progress
        self._progress_every = progress_every
        self._recorder = Recorder(TIMELINE_INTS, TIMELINE_FLOATS)
        self._events: list[tuple[int, Event]] = []
        n = len(workload)
        self._times = {name: np.full(n, -1, np.int64) for name in ("arrival", "admitted", "first_token", "finished")}
        # Handle of the engine -> number in the workload; -1 until it has one.
        self._index = np.full(n, -1, np.int64)
        self._prefilled, self._cached, self._rehit = (np.zeros(n, np.int64) for _ in range(3))
        self._contents = workload.identity()
        self._requests = self._client_view()
        self._done = 0
        self._retracted = 0
        self._refused = 0
        self._steps = 0
        self._running = self._waiting = 0
        self._accepted = 0
        self._verified = 0
        self._hit = self._hit_again = 0
        self._fault: EngineFault | None = None
        self._stopped = False

    def stop(self) -> None:
        """End the run after the step at hand; what was simulated is kept and marked partial."""
        self._stopped = True

    def _client_view(self) -> tuple[list[int], list[int], list[int | None]]:
        """Prompt length, tokens asked for, and end of sequence of every request."""
        w = self.workload
        inputs, outputs = w.input_tokens.tolist(), w.output_tokens.tolist()
        if w.max_new_tokens is None:
            return inputs, outputs, [None] * len(w)
        asked = w.max_new_tokens.tolist()
        stops = [None if w.ignore_eos or out >= ask else out for out, ask in zip(outputs, asked, strict=True)]
        return inputs, asked, stops

    @property
    def now(self) -> int:
        """Simulated time in nanoseconds; every duration is an integer, so the clock stays one."""
        return int(self.env.now)

    # ---- processes
    def _gpu(self) -> Process:
        """Draft worker, then target worker, one step after the other."""
        while True:
            job: _Job = yield self._queue.get()
            draft_ns, target_ns = job.times
            if draft_ns:
                yield from self.draft_worker.compute(draft_ns)
            yield from self.target_worker.compute(target_ns)
            job.done.succeed()

    def _scheduler(self) -> Process:
        """The engine's event loop; with overlap a result is processed after the next step was launched."""
        engine = self.engine
        previous: _Job | None = None
        idle_steps = 0
        while not self._stopped:
            self._arrive()
            step = engine.schedule()
            job = None if step is None else self._launch(step)
            self._record(step, 0 if job is None else job.times[0] + job.times[1])
            if engine.overlap:
                waited = previous
                previous = job
            else:
                waited = job
            if waited is not None:
                yield waited.done
                self._complete(waited.step)
            if job is not None or waited is not None:
                idle_steps = 0
                continue
            engine.idle()
            when = self._arrivals.next_ns
            if engine.is_empty():
                if when is None:
                    return
            elif idle_steps:
                # Two plans in a row found nothing, and nothing runs that could change the answer.
                if not engine.break_stall():
                    raise engine.diagnose_stall()
                idle_steps = 0
                continue
            else:
                idle_steps += 1
                continue
            idle_steps = 0
            yield self.env.timeout(max(0, when - self.now))

    # ---- steps of the loop
    def _arrive(self) -> None:
        now = self.now
        when = self._arrivals.next_ns
        if when is None or when > now:
            return
        inputs, asked, stops = self._requests
        names, ignore = self.workload.request_id, self.workload.ignore_eos
        for arrived, index in self._arrivals.due(now):
            answer = int(self.workload.output_tokens[index])
            tokens = None if self._contents is None else self._contents.tokens(index, inputs[index], answer)
            request = Request(names[index], inputs[index], asked[index], stops[index], ignore, tokens)
            self._times["arrival"][index] = arrived
            refused = self.engine.front_end_refusal(request)
            if refused is None:
                self._index[self.engine.submit(request)] = index
                continue
            self._events.append((now, Event("refusal", index, "-", inputs[index], *refused)))
            self._refused += 1
            self._finished(index)
        self._collect_events()

    def _collect_events(self) -> None:
        now = self.now
        for event in self.engine.drain_events():
            self._refused += event.event == "refusal"
            self._retracted += event.event == "retraction"
            index = int(self._index[event.request]) if event.request >= 0 else -1
            if event.event == "abort":
                self._finished(index)
            self._events.append((now, replace(event, request=index)))

    def _launch(self, step: Step) -> _Job:
        if step.verify:
            assert step.verify_index is not None
            step.accepted = self.acceptance.draw(self._index[step.batch], step.verify_index)
            self._accepted += int(step.accepted.sum())
            self._verified += len(step.batch)
        elif step.kind == "prefill":
            admitted = self._times["admitted"]
            own = self._index[step.batch[: len(step.batch) - step.mixed_decode]]
            fresh = admitted[own] < 0
            admitted[own[fresh]] = self.now
            self._prefilled[own] += step.extend_lens[: len(own)]
            hits = np.array(step.hit_lens, np.int64)
            self._cached[own] += hits * fresh
            self._rehit[own] += hits * ~fresh
            self._hit, self._hit_again = int(hits[fresh].sum()), int(hits[~fresh].sum())
        job = _Job(step, self.env.event(), self.step_time(step.work))
        self._queue.put(job)
        self._steps += 1
        return job

    def _complete(self, step: Step) -> None:
        finished = self.engine.complete(step, step.accepted)
        now = self.now
        if step.kind == "prefill":
            first = self._times["first_token"]
            index = self._index[step.batch]
            fresh = (first[index] < 0) & (self.engine.output_tokens(step.batch) > 0)
            first[index[fresh]] = now
        for handle in finished:
            self._finished(int(self._index[handle]))
        if self._check_every and self._steps % self._check_every == 0:
            self.engine.check()

    def _finished(self, index: int) -> None:
        self._times["finished"][index] = self.now
        self._done += 1
        self._arrivals.after(self.now, index)

    def _record(self, step: Step | None, duration: int) -> None:
        self._collect_events()
        kind = batch = prefill = 0
        if step is not None:
            kind = 1 if step.kind == "prefill" else 2
            batch, prefill = len(step.batch), step.work.prefill_tokens
        usage = self.engine.usage(step)
        clock = (self.now, duration, kind, batch, prefill, self._refused, self._accepted, self._verified)
        self._recorder.append((*clock, self._hit, self._hit_again, *usage[:-1]), usage[-1:])
        self._running, self._waiting = usage.num_running_reqs, usage.num_queue_reqs
        self._refused = self._accepted = self._verified = self._hit = self._hit_again = 0
        if self._progress is not None and self._steps % self._progress_every == 0:
            self._progress(
                Progress(
                    self.now / 1e9,
                    self._steps,
                    self._running,
                    self._waiting,
                    self._retracted,
                    self._done,
                    len(self.workload),
                )
            )

    # ---- the run
    def run(self) -> Outcome:
        """Simulate until every request ended, the engine broke, or the user interrupted.

        Raises
        ------
        InvariantError
            A fault of simkv, with the step it happened in.
        """
        interrupted = False
        self.env.process(self._gpu())
        loop = self.env.process(self._scheduler())
        try:
            self.env.run(until=loop)
            self.engine.check()
        except EngineFault as fault:
            self._fault = fault
            index = int(self._index[fault.request]) if fault.request >= 0 else -1
            self._events.append((self.now, Event("fault", index, fault.pool, 0, str(fault))))
        except KeyboardInterrupt:
            interrupted = True
        except InvariantError as error:
            raise InvariantError(f"step {self._steps}: {error}") from error
        self._record(None, 0)
        return self._outcome(interrupted or self._stopped)

    def _outcome(self, partial: bool) -> Outcome:
        n, engine = len(self.workload), self.engine
        output = np.zeros(n, np.int64)
        retractions = np.zeros(n, np.int64)
        state = ["never arrived"] * n
        refused = {event.request for _, event in self._events if event.event == "refusal"}
        aborted = {event.request for _, event in self._events if event.event == "abort"}
        for index in refused:
            state[index] = "refused"
        handles = np.flatnonzero(self._index >= 0).astype(np.int64)
        generated = engine.output_tokens(handles).tolist()
        for handle, so_far in zip(handles.tolist(), generated, strict=True):
            index = int(self._index[handle])
            retractions[index] = engine.retractions(handle)
            if index in refused:
                continue
            got = engine.finished_len(handle)
            if index in aborted:
                state[index], output[index] = "aborted", so_far
            elif got >= 0:
                state[index], output[index] = "completed", got
            else:
                state[index], output[index] = "unfinished", so_far
        # The engine computes a token for a request that asks for none, or that it refuses; no client sees it.
        self._times["first_token"][output == 0] = -1
        return Outcome(
            timeline=self._recorder.columns(),
            events=self._events,
            arrival_ns=self._times["arrival"],
            admitted_ns=self._times["admitted"],
            first_token_ns=self._times["first_token"],
            finished_ns=self._times["finished"],
            output_tokens=output,
            retractions=retractions,
            prefilled_tokens=self._prefilled,
            cached_tokens=self._cached,
            rehit_tokens=self._rehit,
            request_of=self._index[handles],
            state=state,
            end_ns=self.now,
            steps=self._steps,
            fault=self._fault,
            partial=partial,
            draft_busy_ns=self.draft_worker.busy_ns,
            target_busy_ns=self.target_worker.busy_ns,
            clipped=[event.request for _, event in self._events if event.event == "clip"],
        )
