"""Frames and summary of an outcome: arrays in, pandas out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from simkv.engines.base import EVICTION_CAUSES, LIMITS, Plan
from simkv.simulation import KINDS, TIMELINE_FLOATS, TIMELINE_INTS, Outcome
from simkv.workload.request import Workload

__all__ = ["Frames"]

# Share of a pool's capacity from which it counts as full.
FULL_FROM = 0.99
# Share of time from which a limit that keeps requests waiting is the binding one.
BINDING_FROM = 0.01
_CAUSES = tuple(f"_{why}" for why in EVICTION_CAUSES)
_ROOM = {"prefill": "prefill", "decode": "decode step", "retraction": "batch after a retraction"}


class Frames:
    """Frames and summary of an outcome."""

    def __init__(self, plan: Plan, workload: Workload, outcome: Outcome) -> None:
        self.plan = plan
        self.workload = workload
        self.outcome = outcome

    @classmethod
    def empty(cls, plan: Plan) -> Frames:
        """Frames of a run in which nothing happened: the names, without values."""
        none = np.empty(0, np.int64)
        columns: dict[str, Any] = {name: np.zeros(1, np.int64) for name in TIMELINE_INTS}
        columns |= {name: np.zeros(1) for name in TIMELINE_FLOATS}
        outcome = Outcome(columns, [], none, none, none, none, none, none, none, none, none, none, [], 0, 0)
        return cls(plan, Workload(none, none, none, ()), outcome)

    # ---- pools
    @cached_property
    def capacities(self) -> dict[str, int]:
        """Capacity of the target's pools, in tokens."""
        plan = self.plan
        if plan.full_max_total_num_tokens is None:
            return {"full": plan.max_total_num_tokens or 0}
        pools = {"full": plan.full_max_total_num_tokens, "swa": plan.swa_max_total_num_tokens or 0}
        return {name: tokens for name, tokens in pools.items() if tokens}

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """One row a scheduler step; names as SGLang's metrics where it has one."""
        raw = self.outcome.timeline
        columns: dict[str, Any] = {
            "time_s": raw["time_ns"] / 1e9,
            "duration_s": raw["duration_ns"] / 1e9,
            "kind": _category(raw["kind"], KINDS),
            "batch_size": raw["batch"].astype(np.int32),
            "prefill_tokens": raw["prefill_tokens"].astype(np.int32),
        }
        usages = []
        for pool, capacity in self.capacities.items():
            available, evictable, protected = (
                raw[f"{pool}_{state}"] for state in ("available", "evictable", "protected")
            )
            usage = (capacity - available - evictable) / capacity
            usages.append(usage)
            columns[f"{pool}_token_usage"] = usage
            columns[f"{pool}_available_tokens"] = available
            columns[f"{pool}_evictable_tokens"] = evictable
            columns[f"{pool}_protected_tokens"] = protected
            columns[f"{pool}_uncached_tokens"] = capacity - available - evictable - protected
        columns["token_usage"] = np.maximum.reduce(usages)
        for name in (
            "num_running_reqs",
            "num_queue_reqs",
            "num_retracted_reqs",
            "num_aborted_reqs",
            "num_refused_reqs",
        ):
            columns[name] = raw[name].astype(np.int32)
        columns["new_token_ratio"] = raw["new_token_ratio"]
        with np.errstate(invalid="ignore"):
            columns["spec_accept_length"] = raw["accepted_tokens"] / raw["verified_reqs"]
            # Of the tokens a prefill step's prompts have, those it need not compute.
            hit = raw["hit_tokens"] + raw["rehit_tokens"]
            columns["cache_hit_rate"] = np.where(raw["kind"] == 1, hit / (hit + raw["prefill_tokens"]), np.nan)
        # Together SGLang's #cached-token of a batch; the second are a retracted request's own.
        columns["hit_tokens"], columns["rehit_tokens"] = raw["hit_tokens"], raw["rehit_tokens"]
        columns["overallocated_tokens"] = raw["overallocated_tokens"]
        columns["window_evicted_swa_tokens"] = raw["window_evicted_swa_tokens"]
        for pool in ("full", "swa"):
            causes = {
                f"cache_evicted_{pool}_{why}_tokens": raw[f"cache_evicted_{pool}_{why}"] for why in EVICTION_CAUSES
            }
            columns[f"cache_evicted_{pool}_tokens"] = sum(causes.values())
            columns |= causes
        columns["tombstone_tokens"] = self._tombstones
        columns |= self._drafts()
        columns["limit"] = _category(raw["limit"], LIMITS)
        return pd.DataFrame(columns)

    @property
    def _tombstones(self) -> Any:
        """Tokens whose full half is in the prefix cache, the SWA half not."""
        raw = self.outcome.timeline
        if len(self.capacities) < 2:
            return np.zeros(len(raw["time_ns"]), np.int64)
        cached = {pool: raw[f"{pool}_evictable"] + raw[f"{pool}_protected"] for pool in self.capacities}
        return cached["full"] - cached["swa"]

    def _drafts(self) -> dict[str, Any]:
        """Tokens and bytes resident in each draft depth's pools, and of those, what its attention can still see."""
        raw = self.outcome.timeline
        used = {pool: capacity - raw[f"{pool}_available"] for pool, capacity in self.capacities.items()}
        out: dict[str, Any] = {}
        workers = sorted(
            {p.worker for p in self.plan.pools if p.worker != "target" and p.layers}, key=lambda w: int(w[5:])
        )
        for worker in workers:
            resident = live = resident_bytes = live_bytes = np.zeros(len(raw["time_ns"]), np.int64)
            for pool in (p for p in self.plan.pools if p.worker == worker and p.layers):
                # A ring at full capacity is indexed by full slots and freed with them.
                source = pool.indexed_by
                held = used[source] if source in used else next(iter(used.values()))
                seen = raw["live_window_tokens"] if pool.pool == "swa" else raw["live_tokens"]
                seen = np.minimum(seen, held)
                resident, live = np.maximum(resident, held), np.maximum(live, seen)
                resident_bytes = resident_bytes + held * pool.bytes_per_token
                live_bytes = live_bytes + seen * pool.bytes_per_token
            out[f"{worker}_resident_tokens"], out[f"{worker}_live_tokens"] = resident, live
            out[f"{worker}_resident_bytes"], out[f"{worker}_live_bytes"] = resident_bytes, live_bytes
        return out

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a request, in arrival order."""
        o, w = self.outcome, self.workload

        def seconds(ns: Any) -> Any:
            return np.where(ns < 0, np.nan, ns / 1e9)

        frame = pd.DataFrame(
            {
                "request_id": pd.array(list(w.request_id), dtype="str"),
                "arrival_s": seconds(o.arrival_ns),
                "admitted_s": seconds(o.admitted_ns),
                "first_token_s": seconds(o.first_token_ns),
                "finished_s": seconds(o.finished_ns),
                "input_tokens": w.input_tokens,
                "output_tokens": o.output_tokens,
                "cached_tokens": o.cached_tokens,
                "rehit_tokens": o.rehit_tokens,
                # Whatever was prefilled beyond what the prompt lacked had its KV before.
                "recomputed_tokens": np.maximum(o.prefilled_tokens + o.cached_tokens - w.input_tokens, 0),
                "retractions": o.retractions,
                "state": pd.Categorical(o.state, ["completed", "refused", "aborted", "unfinished", "never arrived"]),
            }
        )
        cause = [""] * len(w)
        for _, event in o.events:
            if event.event in ("refusal", "abort") and event.request >= 0:
                cause[event.request] = event.detail or event.cause
        frame["cause"] = pd.array(cause, dtype="str")
        frame["ttft_s"] = frame["first_token_s"] - frame["arrival_s"]
        frame["e2e_latency_s"] = frame["finished_s"] - frame["arrival_s"]
        rest = frame["finished_s"] - frame["first_token_s"]
        frame["tpot_s"] = np.where(
            frame["output_tokens"] > 1, rest / (frame["output_tokens"] - 1).clip(lower=1), np.nan
        )
        return frame

    @cached_property
    def events(self) -> pd.DataFrame:
        """Retractions, aborts, refusals, repairs, faults and evictions, each with pool and cause."""
        names = self.workload.request_id
        rows = [
            (
                when,
                e.event,
                names[e.request] if e.request >= 0 else "-",
                e.pool,
                e.tokens,
                e.cause,
            )
            for when, e in self.outcome.events
            if e.event != "clip"
        ]
        frame = pd.DataFrame(rows, columns=["time_ns", "event", "request_id", "pool", "tokens", "cause"])
        both = pd.concat([part for part in (frame, *self._evictions()) if len(part)] or [frame])
        both = both.sort_values("time_ns", kind="stable", ignore_index=True)
        out = pd.DataFrame({"time_s": both["time_ns"].astype(np.int64) / 1e9})
        for name in ("event", "pool", "cause"):
            out[name] = pd.Categorical(both[name], sorted(set(both[name])))
        out["request_id"] = both["request_id"].astype("str")
        out["tokens"] = both["tokens"].astype(np.int64)
        return out[["time_s", "event", "request_id", "pool", "tokens", "cause"]]

    def _evictions(self) -> Iterator[pd.DataFrame]:
        """One row a step in which something was evicted, by pool and cause."""
        raw = self.outcome.timeline
        columns = [("window-eviction", "swa", "window_evicted_swa_tokens", "out of the sliding window")]
        columns += [
            ("cache-eviction", pool, f"cache_evicted_{pool}_{why}", f"room for a {_ROOM[why]}")
            for pool in ("full", "swa")
            for why in EVICTION_CAUSES
        ]
        for event, pool, column, cause in columns:
            steps = np.flatnonzero(raw[column])
            told = {"event": event, "request_id": "-", "pool": pool, "tokens": raw[column][steps], "cause": cause}
            yield pd.DataFrame({"time_ns": raw["time_ns"][steps], **told})

    # ---- summary
    @cached_property
    def _weights(self) -> Any:
        """Seconds each row of the timeline holds."""
        time = self.outcome.timeline["time_ns"]
        return np.diff(time, append=max(self.outcome.end_ns, int(time[-1]) if len(time) else 0)) / 1e9

    @cached_property
    def peak_usage(self) -> float | None:
        """Largest usage of any pool at any time."""
        column = self.timeline["token_usage"]
        return float(column.max()) if len(column) else None

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Dotted name -> value; the names of ``[checks]``."""
        o, plan = self.outcome, self.plan
        state = np.array(o.state, dtype=object)
        span = o.end_ns / 1e9
        kinds = np.bincount(o.timeline["kind"], minlength=3)
        out: dict[str, Any] = {"requests.injected": len(state)}
        for name in ("completed", "refused", "aborted", "unfinished"):
            out[f"requests.{name}"] = int((state == name).sum())
        out["requests.never_arrived"] = int((state == "never arrived").sum())
        out["requests.retracted"] = int((o.retractions > 0).sum())
        out["requests.retractions"] = int(o.retractions.sum())
        done = state == "completed"
        out["tokens.input"] = int(self.workload.input_tokens[done].sum())
        out["tokens.output"] = int(o.output_tokens[done].sum())
        out["tokens.generated"] = int(o.output_tokens.sum())
        for name in ("cached", "rehit", "recomputed"):
            out[f"tokens.{name}"] = int(self.requests[f"{name}_tokens"].sum())
        asked = out["tokens.admitted"] = int(self.workload.input_tokens[o.admitted_ns >= 0].sum())
        out["cache_hit_rate"] = out["tokens.cached"] / asked if asked else float("nan")
        out["simulated_s"] = span
        out["steps.prefill"], out["steps.decode"] = int(kinds[1]), int(kinds[2])
        out["output_tokens_per_s"] = out["tokens.output"] / span if span else 0.0
        out["requests_per_s"] = out["requests.completed"] / span if span else 0.0
        verified = int(o.timeline["verified_reqs"].sum())
        out["spec_accept_length"] = float(o.timeline["accepted_tokens"].sum() / verified) if verified else float("nan")
        out |= self._latencies(done)
        out |= self._pools()
        for name in ("num_running_reqs", "num_queue_reqs"):
            out |= _stats(name, self.timeline[name].to_numpy(), self._weights)
        out |= self._limits()
        out["overallocated_tokens.peak"] = int(o.timeline["overallocated_tokens"].max(initial=0))
        evicted = [f"cache_evicted_{pool}{why}" for pool in ("full", "swa") for why in ("", *_CAUSES)]
        for name in ("window_evicted_swa", *evicted):
            out[f"{name}_tokens"] = int(self.timeline[f"{name}_tokens"].sum())
        for pool in self.capacities:
            cached = o.timeline[f"{pool}_evictable"] + o.timeline[f"{pool}_protected"]
            out[f"{pool}_cached_tokens.peak"] = int(cached.max(initial=0))
        out["tombstone_tokens.peak"] = int(self.timeline["tombstone_tokens"].max()) if len(self.timeline) else 0
        out["draft_worker.busy_s"] = o.draft_busy_ns / 1e9
        out["target_worker.busy_s"] = o.target_busy_ns / 1e9
        out["max_total_num_tokens"] = plan.max_total_num_tokens
        out["max_running_requests"] = plan.max_running_requests
        out["overcommit_bytes"] = plan.overcommit_bytes
        return out

    def _latencies(self, done: Any) -> dict[str, Any]:
        out: dict[str, Any] = {}
        frame = self.requests[done]
        for name in ("ttft_s", "tpot_s", "e2e_latency_s"):
            values = frame[name].dropna().to_numpy()
            for label, share in (("p50", 50), ("p90", 90), ("p99", 99)):
                out[f"{name}.{label}"] = float(np.percentile(values, share)) if len(values) else float("nan")
        return out

    def _pools(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for pool in [*self.capacities, ""]:
            name = f"{pool}_token_usage" if pool else "token_usage"
            values = self.timeline[name].to_numpy()
            out |= _stats(name, values, self._weights)
            total = self._weights.sum()
            full = float(self._weights[values >= FULL_FROM].sum() / total) if total else 0.0
            out[f"{name}.time_full"] = full
        return out

    def _limits(self) -> dict[str, Any]:
        """Shares of time in which each limit kept requests waiting; the queue is empty in ``arrival``."""
        raw, weights = self.outcome.timeline, self._weights
        if not weights.sum():
            # No time has passed: what counts is how it ended.
            weights = (np.arange(len(weights)) == len(weights) - 1).astype(float)
        total = weights.sum()
        shares = {name: float(weights[raw["limit"] == code].sum() / total) for code, name in enumerate(LIMITS)}
        out: dict[str, Any] = {f"limit.{name}": share for name, share in shares.items()}
        held = {name: share for name, share in shares.items() if name != "arrival"}
        worst = max(held, key=lambda name: held[name])
        out["limit.binding"] = worst if held[worst] >= BINDING_FROM else "arrival"
        return out


def _category(codes: Any, names: Sequence[str]) -> pd.Categorical[str]:
    """Codes as a categorical column."""
    return pd.Categorical.from_codes(codes, pd.Index(names))


def _stats(name: str, values: Any, weights: Any) -> dict[str, Any]:
    """Time-weighted mean and percentiles, and the peak."""
    out: dict[str, Any] = {}
    total = weights.sum() if len(weights) else 0.0
    order = np.argsort(values, kind="stable")
    ranked, cumulative = values[order], np.cumsum(weights[order])
    for label, share in (("p50", 0.5), ("p99", 0.99)):
        if not len(values):
            out[f"{name}.{label}"] = float("nan")
            continue
        place = int(np.searchsorted(cumulative, share * total)) if total else len(ranked) - 1
        out[f"{name}.{label}"] = float(ranked[min(place, len(ranked) - 1)])
    out[f"{name}.mean"] = float((values * weights).sum() / total) if total else float("nan")
    out[f"{name}.peak"] = float(values.max()) if len(values) else float("nan")
    return out
