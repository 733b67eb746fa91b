"""Drives the prefix tree over real slot ids through a recorded case of kind ``radix``."""

from __future__ import annotations

from typing import Any

import numpy as np
from schedule_driver import runs_of

from simkv.engines.sglang.numbered import NumberedPools
from simkv.memory.pages import CountedPool
from simkv.memory.radix import Lock, RadixTree
from simkv.workload.tokens import Tokens

Case = dict[str, Any]


def pools_of(case: Case, rows: int = 8) -> NumberedPools:
    """The pools a case describes, empty."""
    kind, page = case["allocator"], case.get("page_size", 1)
    full = None if kind == "pure_swa" else CountedPool("full", case["size"], page)
    swa = CountedPool("swa", case["size_swa"], page) if kind in ("swa", "pure_swa") else None
    return NumberedPools(full, swa, page, rows)


def tree_of(case: Case, *, bigram: bool) -> RadixTree:
    """The tree a case describes, empty."""
    window = case.get("window") if case["allocator"] == "swa" else None
    return RadixTree(case.get("page_size", 1), bigram=bigram, window=window)


def figures(case: Case, pools: NumberedPools, tree: RadixTree | None) -> Case:
    """The counters that cases of kinds ``radix`` and ``decode`` record."""
    halves = (0, 0, 0, 0)
    if tree is not None:
        halves = (tree.full_evictable, tree.full_protected, tree.swa_evictable, tree.swa_protected)
    if case["allocator"] == "pure_swa":
        halves = (0, 0, *halves[:2])
    out: Case = dict(zip(("full_evictable", "full_protected", "swa_evictable", "swa_protected"), halves, strict=True))
    if pools.swa is None:
        return {"full_evictable": halves[0], "full_protected": halves[1], "available": pools.main.available}
    return out | {"full_available": pools.main.available, "swa_available": pools.swa.available}


class TreeDriver:
    """Runs one case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.page = case.get("page_size", 1)
        self.pools = pools_of(case)
        self.tree = tree_of(case, bigram=case.get("is_eagle", False))
        self.locks: dict[str, Lock] = {}
        self.released: set[str] = set()

    def slots_for(self, count: int) -> Any:
        """Fresh slots of one new sequence, None where the pools are short."""
        whole = -(-count // self.page) * self.page
        if whole > self.pools.available():
            return None
        for pool in (self.pools.full, self.pools.swa):
            if pool is not None:
                pool.take(whole)
        return self.pools.allocator.extend(np.array([0]), np.array([count]), np.array([-1]))

    def insert(self, op: Case) -> Case:
        runs = runs_of(op["tokens"])
        tokens, count = Tokens(runs), sum(length for _, length in runs)
        slots = self.slots_for(count)
        if slots is None:
            return {"slots": None}
        dead = op.get("swa_evicted", 0)
        if dead:
            self.pools.free_swa(slots[:dead], dead)
        key = self.tree.key_length(count)
        # The engine's tree of an all-sliding model leaves duplicates to its caller.
        owned = key if self.case["allocator"] == "pure_swa" and not self.case.get("free_duplicates") else 0
        before, _ = self.tree.insert(tokens, key, slots, self.pools, owned_from=owned, swa_from=dead)
        if key < count:
            self.pools.free(slots[key:], count - key)
        return {"slots": slots.tolist(), "prefix_len": before}

    def match(self, op: Case) -> Case:
        runs = runs_of(op["tokens"])
        found = self.tree.match(Tokens(runs), sum(length for _, length in runs))
        parts = [node.slots for node in self.tree.path(found.node)]
        return {
            "device_prefix_len": found.length,
            # The engine's tree of an all-sliding model does not tell.
            "full_kv_hit_length": 0 if self.case["allocator"] == "pure_swa" else found.full_length,
            "swa_branching_seqlen": found.branch or None,
            "slots": np.concatenate(parts).tolist() if parts else [],
        }

    def evict(self, op: Case) -> Case:
        full, swa = op.get("num_tokens", 0), op.get("swa_num_tokens", 0)
        if self.case["allocator"] == "pure_swa":
            full, swa = max(full, swa), 0
        elif self.tree.window is None:
            swa = 0
        gone = self.tree.evict(full, swa, self.pools)
        return {"num_tokens_evicted": gone[0], "swa_num_tokens_evicted": gone[1]}

    def evict_for_alloc(self, op: Case) -> Case:
        full = max(0, op["num_tokens"] - self.pools.main.available)
        swa = 0
        if self.tree.window is not None and self.pools.swa is not None:
            swa = max(0, op["num_tokens"] - self.pools.swa.available)
        if full or swa:
            self.tree.evict(full, swa, self.pools)
        return {}

    def lock(self, op: Case) -> Case:
        runs = runs_of(op["tokens"])
        found = self.tree.match(Tokens(runs), sum(length for _, length in runs))
        self.locks[op["as"]] = self.tree.lock(found.node)
        return {"device_prefix_len": found.length}

    def unlock(self, op: Case) -> Case:
        name = op["as"]
        self.tree.unlock(self.locks.pop(name), swa=name not in self.released)
        self.released.discard(name)
        return {}

    def release_swa(self, op: Case) -> Case:
        name = op["as"]
        lock = self.locks[name]
        if self.tree.window is not None and name not in self.released:
            self.released.add(name)
            self.tree.unlock_swa(lock)
        return {}

    def run(self) -> Case:
        steps = []
        for op in self.case["ops"]:
            step: Case = {"op": op["op"], **getattr(self, op["op"])(op)}
            self.tree.check()
            self.pools.check()
            steps.append(step | figures(self.case, self.pools, self.tree))
        return {"steps": steps}
