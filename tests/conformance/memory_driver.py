"""Drives the engine's memory, row by row and slot by slot, through recorded cases of kinds ``decode`` and ``prefill``.

No scheduler decides here who goes next: the case says so, and records every request's row.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from schedule_driver import runs_of, settings_of
from tree_driver import figures, pools_of, tree_of

from simkv.engines.sglang.admission import PrefillPass
from simkv.engines.sglang.memory import KvMemory
from simkv.engines.sglang.numbered import NumberedPools
from simkv.engines.sglang.scheduling import Scheduler
from simkv.engines.sglang.table import FINISHED, LIVE
from simkv.errors import EngineFault
from simkv.workload.tokens import Tokens

Case = dict[str, Any]

# What the scripted model answers: its first token, and every later one.
FIRST, LATER = 9000, 9001
FOR_EVER = 1 << 40
# The exception the engine raises where simkv names a fault.
EXCEPTIONS = {"chunk-oom": "RuntimeError", "decode-oom": "RuntimeError"}


class DecodeDriver:
    """Prefills, decode steps and ends in the order a case gives them."""

    def __init__(self, case: Case) -> None:
        self.case = case
        kind = case["allocator"]
        rows = case.get("max_reqs", 8)
        self.engine = Scheduler(
            settings_of({"context_len": 1024, **case}),
            full_tokens=None if kind == "pure_swa" else case["size"],
            swa_tokens=case.get("size_swa") if kind in ("swa", "pure_swa") else None,
            max_running_requests=rows,
            pools=NumberedPools,
        )
        if not case.get("disable_radix_cache", False):
            # These cases state whether keys are bigrams; the algorithm does not decide it.
            self.engine.memory.tree = tree_of(case, bigram=case.get("is_eagle", False))
        self.handles: dict[str, int] = {}
        self.names: dict[int, str] = {}

    @property
    def running(self) -> list[int]:
        return self.engine.running.reqs.tolist()

    def view(self, handle: int) -> Case:
        pools, t = self.engine.memory.pools, self.engine.table
        row = None
        if handle in pools.row_ids:
            row = pools.slots(handle, 0, int(t.allocated[handle])).tolist()
        columns = ("committed", "allocated", "protected", "swa_evicted")
        figures = {name: int(getattr(t, name)[handle]) for name in columns}
        return {"row_index": pools.row_ids.get(handle), **figures, "row": row}

    # ---- operations
    def prefill(self, op: Case) -> Case:
        engine = self.engine
        memory, t = engine.memory, engine.table
        new = []
        for name, prompt in op["reqs"].items():
            runs = runs_of(prompt)
            length = sum(count for _, count in runs)
            handle = t.add(length, op.get("max_new_tokens", 64), FOR_EVER, ignore_eos=False, to_abort=False)
            engine.journal.names.append(name)
            memory.add(Tokens([*runs, (FIRST, 1), *[(LATER, 1)] * 2000]))
            memory.match(handle)
            memory.lock(handle)
            t.extend_end[handle] = length
            self.handles[name], self.names[handle] = handle, name
            new.append(handle)
        out: Case = {"prefix_len": {self.names[h]: int(t.prefix_len[h]) for h in new}}
        engine._launch_prefill(SimpleNamespace(admitted=new, hits=[]))
        out["out_cache_loc"] = [
            slot for h in new for slot in memory.pools.slots(h, int(t.prefix_len[h]), int(t.extend_end[h])).tolist()
        ]
        for handle in new:
            t.output[handle] += 1
            engine._checkpoint(handle)
        engine.running.reqs = np.concatenate([engine.running.reqs, np.array(new, np.int64)])
        return out

    def decode(self, op: Case) -> Case:
        engine = self.engine
        t = engine.table
        out: Case = {"new_tokens_required": engine.allocation.decode_need(engine.running.reqs)}
        out["fits"] = engine.allocation.decode_fits(engine.running.reqs)
        if not out["fits"] and op.get("retract", True):
            engine.retracted, engine.aborted = [], []
            engine._retract(engine.running)
            out["retracted"] = [self.names[h] for h in engine.retracted]
            out["aborted"] = [self.names[h] for h in engine.aborted]
            out["new_token_ratio"] = engine.ratio.current
        if self.running:
            engine._prepare_decode(engine.running.reqs)
        for handle in self.running:
            accepted = op.get("accept", {}).get(self.names[handle], 1)
            t.output[handle] += accepted
            if engine.spec is not None:
                t.committed[handle] += accepted
        return out

    def finish(self, op: Case) -> Case:
        engine, handle = self.engine, self.handles[op["req"]]
        t = engine.table
        t.finished_len[handle] = t.output[handle]
        t.status[handle] = FINISHED
        engine.memory.release(handle, "finish", insert=op.get("checkpoint", True))
        engine.running.reqs = engine.running.reqs[t.status[engine.running.reqs] == LIVE]
        return {}

    def skipped(self, op: Case) -> bool:
        """Whether an operation asks to be left out as things are (``if_fits``, ``if_live``)."""
        live = {self.names[handle] for handle in self.running}
        if op.get("if_live"):
            return op.get("req") not in live if op["op"] == "finish" else not live
        if not op.get("if_fits"):
            return False
        memory = self.engine.memory
        lengths = [sum(count for _, count in runs_of(prompt)) for prompt in op["reqs"].values()]
        need = sum(-(-length // memory.page_size) * memory.page_size + memory.page_size for length in lengths)
        have = memory.reclaimable if memory.swa is None else min(memory.reclaimable, memory.reclaimable_swa)
        return need > have or len(lengths) > memory.rows_free

    def run(self) -> Case:
        steps = []
        for op in self.case["ops"]:
            step: Case = {"op": op["op"]}
            try:
                if self.skipped(op):
                    step["skipped"] = True
                else:
                    step |= getattr(self, op["op"])(op)
                self.engine.check()
            except EngineFault as fault:
                step["error"] = EXCEPTIONS[fault.fault]
            step["batch"] = [self.names[h] for h in self.running]
            step["reqs"] = {name: self.view(handle) for name, handle in self.handles.items()}
            memory = self.engine.memory
            step |= figures(self.case, memory.pools, memory.tree)
            steps.append(step | {"row_slots_free": memory.rows_free})
        return {"steps": steps}


def prefill(case: Case) -> Case:
    """One prefill pass over a waiting list with nothing running."""
    tree = None if case.get("disable_radix_cache", False) else tree_of(case, bigram=case.get("is_eagle", False))
    memory = KvMemory(pools_of(case), tree, window=case.get("window"))
    one = PrefillPass(
        memory,
        np.empty(0, np.int64),
        case.get("new_token_ratio", 1.0),
        max_prefill_tokens=case.get("max_prefill_tokens", 16384),
        chunk=case.get("chunked_prefill_size"),
        mixed=0,
        window=case.get("window"),
    )
    steps, names = [], []
    for waiting in case["waiting"]:
        runs = runs_of(waiting["tokens"])
        length = sum(count for _, count in runs)
        new = waiting["max_new_tokens"]
        handle = memory.table.add(length, new, new, ignore_eos=waiting.get("ignore_eos", False), to_abort=False)
        memory.add(Tokens([*runs, *[(FIRST, 1)] * (new + 1)]))
        names.append(waiting["rid"])
        verdict = one.add(handle)
        admitted = [names[h] for h in one.admitted]
        steps.append(
            {
                "rid": waiting["rid"],
                "prefix_len": int(memory.table.prefix_len[handle]),
                "result": verdict.name,
                "admitted": admitted,
                "chunked": names[one.new_chunked] if one.new_chunked >= 0 else None,
                "extend_end": int(memory.table.extend_end[handle]) if waiting["rid"] in admitted else None,
                "rem_chunk_tokens": one.rem_chunk,
                "rem_input_tokens": one.rem_input,
                "remaining_total": one.rem_total,
                "remaining_current": one.rem_current,
                "remaining_swa": one.rem_swa if memory.swa is not None else 0,
            }
        )
    return {"steps": steps}
