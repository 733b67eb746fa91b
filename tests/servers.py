"""Random small servers and their traffic, and the engine's event loop without a clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from simkv.engines.base import Request, Step
from simkv.engines.sglang.numbered import NumberedPools
from simkv.engines.sglang.reserve import extra_context_len
from simkv.engines.sglang.scheduling import Scheduler
from simkv.engines.sglang.settings import Settings, Spec
from simkv.errors import EngineFault
from simkv.workload.tokens import Tokens


@dataclass
class Case:
    """A server and its traffic."""

    settings: Settings
    full: int | None
    swa: int | None
    rows: int
    requests: list[tuple[int, Request, list[int]]]


@dataclass
class Log:
    """What happened."""

    steps: list[tuple[Any, ...]] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)
    retracted: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    prefilled: dict[int, int] = field(default_factory=dict)
    repaired: list[str] = field(default_factory=list)
    lost: bool = False
    fault: EngineFault | None = None
    ended: bool = False


@st.composite
def cases(draw: Any, *, radix: bool = False, repair: bool = False) -> Case:
    """A server and its traffic; with ``radix`` its prefix cache is on, and prompts share beginnings and answers."""
    page = draw(st.sampled_from([1, 1, 2, 4, 16, 64]))
    kind = draw(st.sampled_from(["full", "full", "split", "all-swa"]))
    if kind == "all-swa":
        page = 1
    spec = None
    if draw(st.booleans()):
        steps, topk = draw(st.integers(1, 4)), draw(st.sampled_from([1, 1, 2, 4]))
        width = steps + 1 if topk == 1 else draw(st.integers(2, steps * topk + 1))
        spec = Spec(draw(st.sampled_from(["EAGLE", "EAGLE3", "NGRAM", "DFLASH"])), steps, topk, width)
    window = None if kind == "full" else draw(st.sampled_from([4, 8, 20, 33]))
    full = None if kind == "all-swa" else page * draw(st.integers(2, 400 // page + 2))
    swa = None
    if kind != "full":
        swa = page * (-(-(window + 2 * page) // page) + draw(st.integers(0, 120 // page + 1)))
    rows = draw(st.sampled_from([1, 2, 4, 8]))
    context = draw(st.sampled_from([60, 200, 1000]))
    made = Settings(
        page_size=page,
        chunked_prefill_size=draw(st.sampled_from([-1, page, 3 * page, 8 * page, 512])),
        max_prefill_tokens=draw(st.sampled_from([16, 64, 16384])),
        max_running_requests=rows,
        context_len=context,
        swa_eviction_interval=draw(st.sampled_from([1, 8, 128])),
        disable_radix_cache=not radix,
        repair_faults=repair,
        disable_overlap_schedule=draw(st.booleans()),
        enable_mixed_chunk=draw(st.booleans()),
        schedule_conservativeness=draw(st.sampled_from([0.05, 0.3, 1.0])),
        hybrid=kind != "full",
        window=window,
        spec=spec,
    )
    requests = []
    longest = draw(st.sampled_from([15, 60, 250]))
    said: list[list[tuple[int, int]]] = [[(1_000, 10_000)], [(20_000, 10_000)]]
    for number in range(draw(st.integers(1, 14))):
        new = draw(st.integers(0, 60))
        stop = draw(st.none() | st.integers(0, new))
        length = draw(st.integers(1, longest))
        tokens = None
        if radix:
            # A beginning that somebody else has, too, perhaps with an answer in it, and tokens of its own.
            own = 100_000 * (number + 1)
            shared = cut(said[draw(st.integers(0, len(said) - 1))], draw(st.integers(0, length)))
            prompt = [*shared, (own, length - sum(count for _, count in shared))]
            said.append([*prompt, (own + 50_000, 10_000)])
            tokens = Tokens(said[-1])
        one = Request(f"r{number}", length, new, stop, draw(st.integers(0, 7)) == 0, tokens)
        script = draw(st.lists(st.integers(1, spec.num_draft_tokens if spec else 1), min_size=1, max_size=3))
        requests.append((draw(st.integers(0, 25)), one, script))
    return Case(made, full, swa, rows, sorted(requests, key=lambda r: r[0]))


def cut(runs: list[tuple[int, int]], length: int) -> list[tuple[int, int]]:
    """The first tokens of a sequence of runs."""
    found = []
    for first, count in runs:
        count = min(count, length)
        found.append((first, count))
        length -= count
    return [run for run in found if run[1]]


class Server:
    """The engine's event loop, a step an iteration, with a check of everything after each."""

    def __init__(self, case: Case, **policies: Any) -> None:
        self.case = case
        self.engine = Scheduler(
            case.settings, full_tokens=case.full, swa_tokens=case.swa, max_running_requests=case.rows, **policies
        )
        self.log = Log()
        self.pending = list(case.requests)
        self.scripts: list[list[int]] = []

    def run(self) -> Log:
        engine, log = self.engine, self.log
        previous: Step | None = None
        nothing = 0
        try:
            for it in range(20_000):
                self.arrive(it)
                step = engine.schedule()
                self.note(step)
                waited, previous = (previous, step) if engine.overlap else (step, None)
                if waited is not None:
                    log.finished += engine.complete(waited, waited.accepted)
                self.check()
                if step is not None or waited is not None:
                    nothing = 0
                    continue
                engine.idle()
                self.note(None)
                if engine.is_empty():
                    if not self.pending:
                        log.ended = True
                        return log
                elif nothing:
                    if not engine.break_stall():
                        raise engine.diagnose_stall()
                    nothing = 0
                    continue
                nothing += not engine.is_empty()
        except EngineFault as fault:
            log.fault = fault
        return log

    def arrive(self, it: int) -> None:
        while self.pending and self.pending[0][0] <= it:
            _, request, script = self.pending.pop(0)
            handle = self.engine.submit(request)
            assert handle == len(self.scripts)
            self.scripts.append(script)

    def note(self, step: Step | None) -> None:
        engine, log = self.engine, self.log
        for one in engine.drain_events():
            if one.event == "refusal":
                log.refused.append(one.request)
            elif one.event == "retraction":
                log.retracted.append(one.request)
                log.prefilled[one.request] = 0
            elif one.event == "abort":
                log.aborted.append(one.request)
            elif one.event == "fault" and one.cause.startswith("F1"):
                log.lost = True
            elif one.event == "repair":
                log.repaired.append(one.cause.split(":")[0])
            assert one.tokens >= 0
        if step is None:
            return
        batch = step.batch.tolist()
        assert len(set(batch)) == len(batch) > 0
        assert len(batch) <= self.case.rows
        log.steps.append((step.kind, tuple(batch), tuple(step.extend_lens), tuple(step.prefix_lens), step.verify))
        if step.verify:
            assert self.case.settings.spec is not None
            assert step.verify_index is not None
            picks = [
                self.scripts[h][v % len(self.scripts[h])]
                for h, v in zip(batch, step.verify_index.tolist(), strict=True)
            ]
            step.accepted = np.array(picks, np.int64)
        if step.kind == "prefill":
            riding = len(batch) - step.mixed_decode
            assert len(step.extend_lens) == len(step.prefix_lens) == len(batch)
            for h, extend in zip(batch[:riding], step.extend_lens, strict=False):
                assert extend > 0
                log.prefilled[h] = log.prefilled.get(h, 0) + extend
            assert sum(step.extend_lens[:riding]) == step.work.prefill_tokens
            assert step.work.prefill_requests == riding

    def check(self) -> None:
        """Every token of every pool has exactly one owner, recounted from requests and tree."""
        engine, case = self.engine, self.case
        engine.memory.check()
        table, page, tree = engine.table, case.settings.page_size, engine.memory.tree
        full = swa = rows = 0
        for h in range(table.size):
            held, dead, cached = (int(c[h]) for c in (table.allocated, table.swa_evicted, table.protected))
            assert 0 <= int(table.committed[h]) <= held or held == 0
            assert held <= engine.settings.context_len + extra_context_len(engine.spec, page)
            assert dead % page == 0
            rows += held > 0
            if held:
                assert cached <= held and cached % page == 0
                full += -(-held // page) * page - cached
                swa += -(-held // page) * page - max(dead, cached)
        assert engine.memory.rows_free == case.rows - rows
        nodes = [] if tree is None else list(tree.nodes())
        if case.full is not None:
            assert engine.memory.full is not None
            full += sum(len(node) for node in nodes)
            assert engine.memory.full.available == case.full // page * page - full >= 0
        if case.swa is not None and not engine.memory.counted_twice:
            assert engine.memory.swa is not None
            swa += sum(len(node) for node in nodes if node.swa or case.full is None)
            assert engine.memory.swa.available == case.swa // page * page - swa >= 0
        assert 0 <= engine.ratio.current <= 1
        if isinstance(engine.memory.pools, NumberedPools):
            self.check_slots(engine.memory.pools)

    def check_slots(self, pools: NumberedPools) -> None:
        """No slot is in two places: free, in the tree, in the part of a row that is the request's own."""
        engine, page = self.engine, self.case.settings.page_size
        table, allocator = engine.table, pools.allocator
        nodes = [] if engine.memory.tree is None else list(engine.memory.tree.nodes())
        full = [node.slots for node in nodes]
        swa = [node.slots for node in nodes if node.swa or pools.full is None]
        for h in pools.row_ids:
            # Rows end in the middle of a page, and the rest of it is theirs.
            cached, held, dead = (int(c[h]) for c in (table.protected, table.allocated, table.swa_evicted))
            for slots, begin in ((full, cached), (swa, max(cached, dead))):
                row = pools.slots(h, begin, held)
                slots.append((row[::page, None] + np.arange(page)).ravel() if len(row) else row)
        sides: list[tuple[Any, list[Any]]] = []
        if pools.swa is None or pools.full is None:
            sides.append((allocator.pool, full if pools.swa is None else swa))  # type: ignore[attr-defined]
        else:
            # Of a page that is not full only the slots in use have peers.
            peers = [
                (allocator.translate(slots[::page])[:, None] // page * page + np.arange(page)).ravel() for slots in swa
            ]
            sides += [(allocator.full, full), (allocator.swa, peers)]  # type: ignore[attr-defined]
        for side, owned in sides:
            free = np.concatenate([side.free_pages, side.held_pages])
            free = (free[:, None] * page + np.arange(page)).ravel()
            every = np.sort(np.concatenate([free, *owned]))
            assert every.tolist() == list(range(page, side.capacity // page * page + page))
