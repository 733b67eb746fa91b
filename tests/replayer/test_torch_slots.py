"""The replay's own allocator against that of the simulation, with which it shares no code, and against the engine's."""

from __future__ import annotations

import copy
import os
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st
from run_cases import read

from simkv.engines.sglang.slots import AllSwaSlots, FullSlots, SlotAllocator, SwaSlots
from simkv.replayer.slots import OutOfSlots, TorchSlots

ROOT = Path(__file__).resolve().parents[2]
OURS = ROOT / "tests" / "data" / "oracle" / "allocator.jsonl.gz"
SHARED = Path(os.environ.get("SIMKV_SHARED", ROOT.parent / "shared")) / "cases" / "sglang-0.5.23.jsonl"


def tensor(ids: Any) -> torch.Tensor:
    return torch.tensor(np.asarray(ids, np.int64))


class Twins:
    """Both allocators, the sequences that hold slots, and what ought to be free."""

    def __init__(self, kind: str, page: int, full: int, swa: int) -> None:
        self.page = page
        self.split, self.all_swa = kind == "split", kind == "all-swa"
        self.full, self.swa = None if self.all_swa else full, None if kind == "full" else swa
        self.torch = TorchSlots(self.full, self.swa, page, torch.device("cpu"))
        self.numpy: SlotAllocator
        if self.split:
            self.numpy = SwaSlots(full, swa, page)
        else:
            self.numpy = AllSwaSlots(swa) if self.all_swa else FullSlots(full, page)
        # Slots of each sequence, and how many of its first have no SWA half.
        self.held: list[list[int]] = []
        self.dead: list[int] = []
        self.grouped = self.short = False

    # ---- moves; n and m are any numbers
    def extend(self, n: int, m: int) -> None:
        """New sequences, and old ones longer, in one call."""
        batch = list(range(max(0, len(self.held) - n % 3), len(self.held)))
        for _ in range(1 + m % 2):
            batch.append(len(self.held))
            self.held.append([])
            self.dead.append(0)
        before = np.array([len(self.held[i]) for i in batch])
        after = before + np.array([(n * (i + 1) + m) % (3 * self.page + 2) for i in batch])
        last = np.array([self.held[i][-1] if self.held[i] else -1 for i in batch])
        told = self.numpy.extend(before, after, last)
        if told is None:
            self.short = True
            with pytest.raises(OutOfSlots):
                self.torch.extend(before, after, tensor(last))
            return
        slots, peers = self.torch.extend(before, after, tensor(last))
        assert slots.tolist() == told.tolist()
        assert (peers is not None) == self.split
        if peers is not None:
            assert peers.tolist() == self.numpy.translate(told).tolist()
        parts = np.split(told, np.cumsum(after - before)[:-1])
        for i, part in zip(batch, parts, strict=True):
            self.held[i] += part.tolist()

    def slide(self, n: int, m: int) -> None:
        """The SWA halves of a sequence's first pages go."""
        if self.held and self.swa is not None:
            i = n % len(self.held)
            begin, end = self.dead[i], len(self.held[i]) // self.page * self.page
            end = begin + m % ((end - begin) // self.page + 1) * self.page
            if end > begin:
                self.both("free_swa", self.held[i][begin:end], begin)
                self.dead[i] = end

    def cut(self, n: int, m: int) -> None:
        """The last pages of a sequence go."""
        if self.held:
            i = n % len(self.held)
            least = self.dead[i] // self.page
            whole = -(-len(self.held[i]) // self.page)
            end = (least + m % (whole - least + 1)) * self.page
            if end < len(self.held[i]):
                self.both("free", self.held[i][end:], end)
                del self.held[i][end:]

    def finish(self, n: int, m: int) -> None:
        """A sequence ends, its dead part first."""
        if self.held:
            i = n % len(self.held)
            slots, dead = self.held.pop(i), self.dead.pop(i)
            if dead:
                self.both("free_full", slots[:dead], 0)
            if len(slots) > dead:
                self.both("free", slots[dead:], dead)

    def move(self, n: int, m: int) -> None:
        """SWA halves of one sequence's pages go to the dead slots of another."""
        if self.split and len(self.held) > 1:
            i, j = n % len(self.held), m % len(self.held)
            alive = len(self.held[j]) // self.page * self.page - self.dead[j]
            count = min(self.dead[i], alive, (1 + n % 3) * self.page)
            if i != j and count > 0:
                kept = self.held[i][self.dead[i] - count : self.dead[i]]
                incoming = self.held[j][self.dead[j] : self.dead[j] + count]
                self.numpy.move_mapping(np.array(kept), np.array(incoming))
                self.torch.move(tensor(kept), tensor(incoming))
                self.dead[i] -= count
                self.dead[j] += count

    def group(self, n: int, m: int) -> None:
        """A group of frees begins or ends."""
        for one in (self.numpy, self.torch):
            (one.end_group if self.grouped else one.begin_group)()
        self.grouped = not self.grouped

    def both(self, call: str, slots: list[int], start: int) -> None:
        getattr(self.numpy, f"{call}_segment")(np.array(slots), start)
        getattr(self.torch, call)(tensor(slots))

    # ---- what must hold
    def check(self) -> None:
        page = self.page
        whole = sum(-(-len(slots) // page) * page for slots in self.held)
        halves = whole - sum(self.dead)
        assert self.torch.counts == (
            -1 if self.full is None else self.full // page * page - whole,
            -1 if self.swa is None else self.swa // page * page - halves,
        )
        if not self.grouped:
            found = tuple(count for count in self.torch.counts if count >= 0)
            assert found == (self.numpy.full_available, self.numpy.swa_available)[: len(found)]
        slots = [slot for held in self.held for slot in held]
        assert self.torch.peers(tensor(slots)).tolist() == self.numpy.translate(np.array(slots, np.int64)).tolist()


NUMBER = st.integers(0, 1000)
MOVES = ["extend", "extend", "extend", "slide", "cut", "finish", "move", "group"]


@settings(deadline=None)
@given(
    st.sampled_from(["full", "split", "split", "all-swa"]),
    st.sampled_from([1, 2, 4, 16, 64]),
    st.integers(1, 40),
    st.integers(1, 40),
    st.lists(st.tuples(st.sampled_from(MOVES), NUMBER, NUMBER), max_size=80),
)
def test_the_same_ids_and_counts_as_the_simulation(
    kind: str, page: int, full: int, swa: int, moves: list[tuple[str, int, int]]
) -> None:
    page = 1 if kind == "all-swa" else page
    # Pools need not be whole pages.
    twins = Twins(kind, page, full * page + page // 2, swa * page + page // 3)
    for move, n, m in moves:
        getattr(twins, move)(n, m)
        if twins.short:
            event("ends short of slots")
            return
        twins.check()
    event("ends with all moves made")


def test_any_of_the_moves_is_made() -> None:
    # A life in which each of them does something, so that the test above is none of nothing.
    twins = Twins("split", 4, 400, 200)
    for move, n, m in [("extend", 2, 1), ("extend", 2, 1), ("slide", 0, 1), ("group", 0, 0), ("cut", 1, 2)]:
        getattr(twins, move)(n, m)
        twins.check()
    before = list(twins.dead)
    assert sum(before) > 0
    twins.group(0, 0)
    twins.move(0, 1)
    twins.check()
    assert twins.dead != before and sum(twins.dead) == sum(before)
    while twins.held:
        twins.finish(0, 0)
        twins.check()
    assert twins.torch.counts == (400, 200)


# Recorded cases of the engine --------------------------------------------------------------------------------------

# The halves that a free gives back; where there is one pool, either stands for it.
FREES = {"free": {"full", "swa"}, "free_full": {"full"}, "free_swa": {"swa"}}


class Unlike(Exception):
    """An operation that a replay never does."""


class Recorded:
    """A recorded case, performed until it ends or does what a replay never does."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.given, self.steps = case["input"], case["result"].get("steps")
        self.kind, self.page = self.given["allocator"], self.given.get("page_size", 1)
        full = None if self.kind == "pure_swa" else self.given["size"]
        self.slots = TorchSlots(full, self.given.get("size_swa"), self.page, torch.device("cpu"))
        self.sides = {"swa": {"full", "swa"}, "pure_swa": {"swa"}}.get(self.kind, {"full"})
        # Pages whose halves are in use, by the number of the full one.
        self.used: dict[str, set[int]] = {"full": set(), "swa": set()}
        self.performed = 0

    def follow(self) -> None:
        if self.steps is None or self.given.get("need_sort"):
            raise Unlike("refused, or sorted as no server here does")
        grouped = False
        for op, told in zip(self.given["ops"], self.steps[1:], strict=True):
            if "error" in told:
                raise Unlike("the engine raises")
            got = self.refused(op) if told["returned"] is None and "alloc" in op["op"] else self.perform(op["op"], op)
            assert got == told["returned"], op
            if got is not None and self.kind == "swa":
                assert self.slots.peers(tensor(got)).tolist() == told["swa_of_returned"]
            grouped = op["op"] == "free_group_begin" or (grouped and op["op"] != "free_group_end")
            if not grouped:
                counts = {side: told.get(f"{side}_available", told["available"]) for side in self.sides}
                assert dict(zip(("full", "swa"), self.slots.counts, strict=True)) == {"full": -1, "swa": -1} | counts
            self.performed += 1

    def refused(self, op: dict[str, Any]) -> None:
        """The engine has too few slots; a copy goes on where this would have ended."""
        if (self.kind, op["op"]) == ("swa", "alloc_decode"):
            raise Unlike("pages that are lost when a decode step is short")
        before, self.slots = copy.deepcopy(self.slots), self.slots
        with pytest.raises(OutOfSlots):
            self.perform(op["op"], op)
        self.slots = before

    def perform(self, name: str, op: dict[str, Any]) -> list[int] | None:
        if name in ("alloc", "alloc_extend", "alloc_decode"):
            return self.allocate(name, op)
        if name.startswith("free_group"):
            (self.slots.begin_group if name.endswith("begin") else self.slots.end_group)()
        elif name.removesuffix("_segment") in FREES:
            # Without pages it makes no difference whether slots follow each other.
            if self.page > 1 and not name.endswith("_segment"):
                raise Unlike(f"{name} of scattered slots")
            self.free(name.removesuffix("_segment"), op.get("ids", []))
        else:
            raise Unlike(name)
        return None

    def allocate(self, name: str, op: dict[str, Any]) -> list[int]:
        # What is allocated at once is whole pages: a sequence of so many tokens.
        after = [op["n"] // self.page * self.page] if name == "alloc" else op["seq_lens"]
        last = op.get("last_loc", [-1])
        before = [0] if name == "alloc" else op.get("prefix_lens", [n - 1 for n in after])
        got: list[int] = self.slots.extend(np.array(before), np.array(after), tensor(last))[0].tolist()
        for used in self.used.values():
            used.update(slot // self.page for slot in got)
        return got

    def free(self, name: str, ids: list[int]) -> None:
        pages = [slot // self.page for slot in ids[:: self.page]]
        # The lone pool of a model without sliding layers has no free_full, in whose order pages would be.
        if (self.kind, name) == ("paged", "free_full"):
            raise Unlike("free_full of a lone pool")
        if [slot // self.page for slot in ids] != np.repeat(pages, self.page).tolist()[: len(ids)]:
            raise Unlike("a segment that is none")
        halves = FREES[name] & self.sides
        gone = self.sides - halves if name == "free_full" else set()
        owned = all(page in self.used[side] for side in halves for page in pages)
        if len(set(pages)) < len(pages) or not owned or any(page in self.used[side] for side in gone for page in pages):
            raise Unlike("slots that are free already, or lost")
        for side in halves:
            self.used[side].difference_update(pages)
        getattr(self.slots, name)(tensor(ids))


@pytest.mark.parametrize(("file", "least"), [(OURS, 1000), (SHARED, 200)], ids=["recorded here", "recorded elsewhere"])
def test_the_same_ids_and_counts_as_the_engine(file: Path, least: int) -> None:
    if not file.exists():
        pytest.skip("the shared recordings are not here")
    performed: Counter[str] = Counter()
    for case in read(file):
        if case["kind"] == "allocator":
            recorded = Recorded(case)
            with suppress(Unlike):
                recorded.follow()
            performed[recorded.kind] += recorded.performed
    assert set(performed) == {"token", "paged", "swa", "pure_swa"}
    assert performed.total() >= least
