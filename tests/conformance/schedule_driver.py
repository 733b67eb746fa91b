"""Drives the engine's seam (submit, schedule, complete, idle) through a recorded case of kind ``schedule``.

No clock: the loop order is that of the engine's own two event loops, one step an iteration.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simkv.allocations import AllocationLog
from simkv.engines.base import Request, Step
from simkv.engines.sglang.scheduling import Scheduler
from simkv.engines.sglang.settings import Settings, Spec
from simkv.engines.sglang.table import FINISHED
from simkv.errors import EngineFault
from simkv.workload.tokens import Tokens

FIRST_OUTPUT = 900000


def runs_of(tokens: Any) -> list[tuple[int, int]]:
    """Runs (first, length) of a token description: a list, ``{"range": [a, b]}`` or ``{"cat": [...]}``."""
    if isinstance(tokens, dict) and "range" in tokens:
        first, end = tokens["range"]
        return [(first, end - first)]
    if isinstance(tokens, dict) and "cat" in tokens:
        return [run for part in tokens["cat"] for run in runs_of(part)]
    return [(token, 1) for token in tokens]


def renamed(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same runs, but for token 0, which simkv calls -1 (the one token of a refused prompt)."""
    out = []
    for first, length in runs:
        out += [(-1, 1), (1, length - 1)] if first == 0 and length else [(first, length)]
    return out


def settings_of(case: dict[str, Any]) -> Settings:
    """Server settings of a case; values there are resolved ones."""
    spec = case.get("spec")
    return Settings(
        page_size=case.get("page_size", 1),
        chunked_prefill_size=case.get("chunked_prefill_size") or -1,
        max_prefill_tokens=case.get("max_prefill_tokens", 16384),
        max_running_requests=case.get("max_running_requests", 8),
        context_len=case.get("context_len", 512),
        prefill_max_requests=case.get("prefill_max_requests"),
        swa_eviction_interval=case.get("eviction_interval", 128),
        disable_radix_cache=case.get("disable_radix_cache", False),
        disable_overlap_schedule=not case.get("overlap", True),
        enable_mixed_chunk=case.get("enable_mixed_chunk", False),
        schedule_conservativeness=case.get("schedule_conservativeness", 1.0),
        init_new_token_ratio=case.get("init_new_token_ratio", 0.7),
        new_token_ratio_decay_steps=case.get("new_token_ratio_decay_steps", 600),
        retract_decode_steps=case.get("retract_decode_steps", 20),
        hybrid=case["allocator"] in ("swa", "pure_swa"),
        window=case.get("window"),
        spec=None
        if not spec
        else Spec(spec["algorithm"], spec["num_steps"], spec.get("topk", 1), spec["num_draft_tokens"]),
    )


class Driver:
    """Runs one case and records what the case records."""

    def __init__(self, case: dict[str, Any], log: AllocationLog | None = None) -> None:
        self.case = case
        kind = case["allocator"]
        self.engine = Scheduler(
            settings_of(case),
            full_tokens=None if kind == "pure_swa" else case["size"],
            swa_tokens=case.get("size_swa") if kind in ("swa", "pure_swa") else None,
            max_running_requests=case.get("max_running_requests", 8),
            log=log,
        )
        self.pending = sorted(case["requests"], key=lambda r: r.get("arrival_step", 0))
        self.requests: list[dict[str, Any]] = []
        self.names: list[str] = []
        self.reported: set[int] = set()
        self.previous: Step | None = None
        self.admitted: dict[str, Any] = {}

    # ---- views
    def pools(self) -> dict[str, Any]:
        memory = self.engine.memory
        out: dict[str, Any] = {}
        for pool in (memory.full, memory.swa):
            if pool is not None:
                out[pool.name] = [*memory.holding(pool)[:3]]
        if memory.full is None:
            out["full"] = [memory.swa.available, 0, 0]
        out["rows"] = memory.rows_free
        return out

    def holders(self) -> dict[str, list[int]]:
        t = self.engine.table
        return {
            self.names[h]: [int(c[h]) for c in (t.committed, t.allocated, t.protected, t.swa_evicted, t.output)]
            for h in range(t.size)
            if t.allocated[h]
        }

    def rids(self, handles: Any) -> list[str]:
        return [self.names[int(h)] for h in handles]

    # ---- steps
    def arrive(self, it: int, out: dict[str, Any]) -> None:
        now = [r for r in self.pending if r.get("arrival_step", 0) <= it]
        self.pending = self.pending[len(now) :]
        for r in now:
            runs = renamed(runs_of(r["tokens"]))
            tokens = sum(length for _, length in runs)
            # Every output token of a request is the same one, by its place in the list.
            answer = [(FIRST_OUTPUT + self.case["requests"].index(r), 1)] * (r["max_new_tokens"] + 64)
            handle = self.engine.submit(
                Request(
                    r["rid"],
                    tokens,
                    r["max_new_tokens"],
                    ignore_eos=r.get("ignore_eos", False),
                    tokens=Tokens([*runs, *answer]),
                )
            )
            self.requests.append(r)
            self.names.append(r["rid"])
            t = self.engine.table
            self.admitted[r["rid"]] = {
                "input_len": tokens,
                "max_new_tokens": int(t.max_new[handle]),
                "refused": bool(t.to_abort[handle]),
            }
            out["arrived"].append(r["rid"])

    def accepted(self, step: Step) -> np.ndarray | None:
        if not step.verify:
            return None
        width = self.case["spec"]["num_draft_tokens"]
        runs = []
        for handle, index in zip(step.batch.tolist(), step.verify_index.tolist(), strict=True):
            script = self.requests[handle].get("accept") or [1]
            runs.append(max(1, min(script[index % len(script)], width)))
        return np.array(runs, np.int64)

    def process(self, step: Step, out: dict[str, Any]) -> None:
        out["processed"].append({"kind": step.kind, "batch": self.rids(step.batch)})
        self.engine.complete(step, step.accepted)

    def iterate(self, it: int) -> dict[str, Any]:
        engine = self.engine
        out: dict[str, Any] = {"it": it, "arrived": [], "retracted": [], "aborted": [], "finished": [], "processed": []}
        self.arrive(it, out)
        out["new_token_ratio_before"] = engine.ratio.current
        out["before"] = self.pools()
        step = engine.schedule()
        out["retracted"], out["aborted"] = self.rids(engine.retracted), self.rids(engine.aborted)
        out["kind"] = "idle" if step is None else step.kind
        out["batch"] = [] if step is None else self.rids(step.batch)
        if step is not None and step.kind == "prefill":
            out["extend_lens"], out["prefix_lens"] = step.extend_lens, step.prefix_lens
            if step.mixed_decode:
                out["mixed_decode"] = out["batch"][-step.mixed_decode :]
        out["chunked"] = self.names[engine.chunked] if engine.chunked >= 0 else None
        out["running"] = self.rids(engine.running.reqs)
        out["batch_is_full"] = engine.running.is_full
        out["waiting_scheduled"] = self.rids(engine.waiting)
        out["scheduled"], out["reqs_scheduled"] = self.pools(), self.holders()
        if step is not None:
            step.accepted = self.accepted(step)
            if step.accepted is not None:
                out["accept"] = step.accepted.tolist()
        if not engine.overlap:
            if step is None:
                engine.idle()
            else:
                self.process(step, out)
        elif self.previous is not None:
            self.process(self.previous, out)
        elif step is None:
            engine.idle()
        self.previous = step
        out["after"], out["reqs"] = self.pools(), self.holders()
        out["waiting"] = self.rids(engine.waiting)
        out["new_token_ratio"] = engine.ratio.current
        t = engine.table
        for h in range(t.size):
            if t.status[h] == FINISHED and h not in self.reported:
                self.reported.add(h)
                aborted = bool(t.to_abort[h])
                out["finished"].append(
                    [
                        self.names[h],
                        "FINISH_ABORT" if aborted else "FINISH_LENGTH",
                        int(t.output[h]),
                        int(t.finished_len[h]),
                    ]
                )
        engine.check()
        # The engine's own check sees slots that are counted twice (fault F3).
        out["conserved"] = None if step is None else not engine.memory.counted_twice
        return out

    def run(self) -> dict[str, Any]:
        """All steps, how the run ended, and the fault where the engine itself breaks."""
        steps: list[dict[str, Any]] = []
        end, fault, stuck = "max_steps", None, 0
        while len(steps) < self.case.get("max_steps", 400):
            try:
                out = self.iterate(len(steps))
            except EngineFault as error:
                end, fault = "error", error.fault
                break
            steps.append(out)
            if out["kind"] == "idle" and not out["processed"]:
                if not self.pending and self.engine.is_empty():
                    end = "done"
                    break
                stuck += 1
                if not self.pending and stuck >= 3 and self.engine.break_stall():
                    stuck = 0
                elif not self.pending and stuck >= 3:
                    end, fault = "stuck", self.engine.diagnose_stall().fault
                    break
            else:
                stuck = 0
        e = self.engine
        return {
            "end": end,
            "fault": fault,
            "new_token_ratio": [e.ratio.init, e.ratio.min, e.ratio.decay],
            "admitted": self.admitted,
            "steps": steps,
        }
