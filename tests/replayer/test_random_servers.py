"""Random small servers: each replays, and its figures are those of its rows counted one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from replay_cases import bare_run, mismatch, pool_plan, reads, recounted, rows_of, tensors
from servers import Case, Server, cases

import simkv
from simkv.allocations import AllocationLog
from simkv.alloctable import allocation_table


class Recorded(Server):
    """A server whose slots are followed, also where the engine counts some twice."""

    def __init__(self, case: Case) -> None:
        self.allocations = AllocationLog()
        super().__init__(case, log=self.allocations)

    def check_slots(self, pools: Any) -> None:
        if not self.engine.memory.counted_twice:
            super().check_slots(pools)

    def result(self) -> simkv.Run:
        log = self.run()
        names = [request.name for _, request, _ in self.case.requests]
        table = allocation_table(self.allocations, np.arange(len(names)))
        return bare_run(plan_of(self.case), table, names, whole=log.ended)


def plan_of(case: Case) -> dict[str, Any]:
    """A layer in each pool, and with a draft one in its own full pool and one in a ring."""
    page, window, spec = case.settings.page_size, case.settings.window, case.settings.spec
    span = case.swa if case.full is None else case.full
    assert span is not None
    pools = []
    if case.full is not None:
        pools.append(pool_plan("target", "full", case.full + page))
    if case.swa is not None:
        pools.append(pool_plan("target", "swa", case.swa + page, window=window, mapping="target"))
    if spec is not None and spec.has_draft_kv and case.full is not None:
        pools.append(pool_plan("draft0", "full", span + page, width=8))
        pools.append(pool_plan("draft1", "swa", span + page, window=window or 5, mapping="identity"))
    return {
        "pools": pools,
        "page_size": page,
        "max_total_num_tokens": span,
        "full_max_total_num_tokens": None if case.swa is None else case.full or 0,
        "swa_max_total_num_tokens": case.swa,
        "settings": {"speculative_eagle_topk": 1 if spec is None else spec.eagle_topk},
    }


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.tuples(st.booleans(), st.booleans()).flatmap(lambda how: cases(radix=how[0], repair=how[1])))
def test_any_server_replays(case: Case) -> None:
    server = Recorded(case)
    run = server.result()
    if server.engine.memory.counted_twice:
        # The engine's fault F3: what is free is put into the cache.
        event("F3")
        mismatch(run, "the cache takes slot ", ", which is free")
        return
    if server.log.lost:
        # F1: a half-prefilled prompt is decoded, whose window moves past what it holds. Memory may be wrong.
        event("F1")
        return
    event("retracted" if server.log.retracted else "fault" if server.log.fault else "ended")
    rows = rows_of(run)
    assert recounted(run, rows) == rows
    found = simkv.replay(run, device="cpu", check="every")
    pools = run.plan["pools"]
    assert found.tags_read == sum(reads(rows, one["window"]) * tensors(one) for one in pools)
    written = sum(row["end"] - row["begin"] for row in rows if row["operation"] == "compute")
    assert (found.tokens_written, found.tags_written) == (written, written * sum(map(tensors, pools)))
    assert found.slots_allocated == sum(len(row["slots"]) for row in rows if row["operation"] == "allocate")
