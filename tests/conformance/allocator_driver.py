"""Replays the operations of a case of kind ``allocator`` and describes what came of each, as the recordings do.

A case of kind ``replay`` is one whose operations are those of an allocation log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from simkv.engines.sglang.slots import AllSwaSlots, Checks, FullSlots, PeerError, SwaSlots
from simkv.errors import InvariantError
from simkv.memory.slots import SlotPool
from simkv.replayer.log import ReplayLog

Case = dict[str, Any]

# The engine's name of an operation -> simkv's.
RENAMED = {
    "alloc_extend": "extend",
    "alloc_decode": "decode",
    "free_group_begin": "begin_group",
    "free_group_end": "end_group",
    "move": "move_mapping",
}
FREES = {"free", "free_swa", "free_full"}
SEGMENTS = {"free_segment", "free_swa_segment", "free_full_segment"}
PAGED_ONLY = {"alloc_extend", "alloc_decode", "alloc_extend_swa_tail"}


class Missing(Exception):
    """The engine's class has no such operation; the text is what it raises."""


def make(case: Case) -> FullSlots | SwaSlots | AllSwaSlots:
    """The allocator of a case."""
    kind, page, sort = case["allocator"], case.get("page_size", 1), case.get("need_sort", False)
    if kind == "pure_swa":
        return AllSwaSlots(case["size_swa"], page, need_sort=sort)
    if kind == "swa":
        checks = Checks(int(case.get("invariant_check") or 0))
        return SwaSlots(case["size"], case["size_swa"], page, need_sort=sort, checks=checks)
    return FullSlots(case["size"], page, need_sort=sort)


def refusal(kind: str, page: int, name: str) -> str | None:
    """What the engine's class raises on an operation that simkv offers for every kind and page size."""
    if kind in ("token", "paged"):
        if name in ("free_swa", "free_swa_segment", "alloc_extend_swa_tail"):
            return "AttributeError"
        return "NotImplementedError" if kind == "token" and name in PAGED_ONLY else None
    if name == "merge_and_sort_free":
        return "TypeError"
    if kind == "pure_swa":
        return "NotImplementedError" if name in PAGED_ONLY else None
    wrong = PAGED_ONLY if page == 1 else {"alloc"}
    return "AssertionError" if name in wrong else None


def free_list(pool: SlotPool) -> Case:
    return {"free_pages": pool.free_pages.tolist(), "held_back": pool.held_pages.tolist()}


class Replay:
    """One allocator and what is done to it."""

    def __init__(self, case: Case) -> None:
        self.kind = case["allocator"]
        self.allocator = make(case)

    def state(self) -> Case:
        a = self.allocator
        if isinstance(a, FullSlots):
            return {"available": a.available, **free_list(a.pool)}
        full, swa = (a.full, a.swa) if isinstance(a, SwaSlots) else (a.pool, a.pool)
        return {
            "available": a.available,
            "full_available": a.full_available,
            "swa_available": a.swa_available,
            "full": free_list(full),
            "swa": free_list(swa),
        }

    def perform(self, op: Case) -> np.ndarray | None:
        a, name = self.allocator, op["op"]
        refused = refusal(self.kind, a.page_size, name)
        if refused is not None:
            raise Missing(refused)
        if name == "merge_and_sort_free":
            assert isinstance(a, FullSlots)
            return a.pool.merge_and_sort()
        if name == "alloc_extend_swa_tail":
            assert isinstance(a, SwaSlots)
            if len(op["seq_lens"]) != 1:
                raise Missing("AssertionError")
            return a.extend_swa_tail(op["prefix_lens"][0], op["seq_lens"][0], op["last_loc"][0], op["swa_tail_len"])
        method = getattr(a, RENAMED.get(name, name))
        if name == "alloc":
            return method(op["n"])
        if name in FREES:
            return method(np.array(op.get("ids", []), np.int64))
        if name == "move":
            return method(np.array(op["ids"], np.int64), np.array(op["incoming"], np.int64))
        if name in SEGMENTS:
            return method(np.array(op.get("ids", []), np.int64), op["start_pos"])
        arrays = (np.array(op[key], np.int64) for key in ("prefix_lens", "seq_lens", "last_loc") if key in op)
        return method(*arrays)

    def step(self, op: Case) -> Case:
        """Perform ``op``; its result and the state after it."""
        out: Case = {"op": op["op"]}
        try:
            slots = self.perform(op)
            out["returned"] = None if slots is None else slots.tolist()
            if slots is not None and not isinstance(self.allocator, FullSlots):
                out["swa_of_returned"] = self.allocator.translate(slots).tolist()
        except Missing as error:
            out["error"] = str(error)
        except PeerError:
            out["error"] = "RuntimeError"
        except InvariantError:
            out["error"] = "AssertionError"
        return out | self.state()


def run(case: Case) -> Case:
    """All steps of a case; the error where its allocator is refused."""
    try:
        replay = Replay(case)
    except InvariantError:
        return {"error": "AssertionError"}
    return {"steps": [{"op": "init", **replay.state()}, *map(replay.step, case["ops"])]}


def operations(log: ReplayLog, page: int) -> Iterator[tuple[Case, Case]]:
    """What a run asked of its allocator, in the engine's words, and the ids that the log says came of it."""
    rows: dict[int, list[int]] = {}
    for name, first, stop in log.each_call():
        slots = log.part("slots", first, stop).tolist()
        requests, begins, ends = (log.columns[key][first:stop].tolist() for key in ("request", "begin", "end"))
        if name == "allocate":
            last = [rows[r][b - 1] if b else -1 for r, b in zip(requests, begins, strict=True)]
            if page == 1:
                op: Case = {"op": "alloc", "n": len(slots)}
            elif len(slots) == len(requests):
                op = {"op": "alloc_decode", "seq_lens": ends, "last_loc": last}
            else:
                op = {"op": "alloc_extend", "prefix_lens": begins, "seq_lens": ends, "last_loc": last}
            yield op, {"returned": slots, "swa_of_returned": log.part("peers", first, stop).tolist() or slots}
        elif name in FREES:
            yield {"op": f"{name}_segment", "ids": slots, "start_pos": 0}, {}
        elif name == "move":
            yield {"op": "move", "ids": slots, "incoming": log.part("peers", first, stop).tolist()}, {}
        elif name in ("begin_group", "end_group"):
            yield {"op": "free_group_begin" if name == "begin_group" else "free_group_end"}, {}
        elif name == "open":
            rows |= {request: [] for request in requests}
        if name in ("hit", "insert", "allocate"):
            for row, request, begin, end in zip(range(first, stop), requests, begins, ends, strict=True):
                rows[request][begin:end] = log.part("slots", row, row + 1).tolist()
