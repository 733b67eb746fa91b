"""What a step does to memory: it writes K and V of its tokens, and its attention reads what is there.

Tags stand for K and V. A verify step writes more tokens than are kept: the rejected ones hold guesses until something is
written over them. Where the draft is a tree, the accepted path lies scattered among them and is moved to the front once
the target has read it (SGLang 0.5.23, speculative/spec_utils.py:859-910); which nodes those are does not matter to
memory, so they are spread over the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simkv.replayer.checks import Checks
from simkv.replayer.log import ReplayLog
from simkv.replayer.rows import Rows, Stretches
from simkv.replayer.slots import SlotAllocator, spread
from simkv.replayer.tags import Contents, guess_tags, say_tag
from simkv.replayer.tensors import KvTensor, PoolTensors

__all__ = ["Steps"]

# Of a sampled replay, every so many-th step is read.
_SAMPLE = 16


class _Written(NamedTuple):
    """Tokens a step wrote, their slots, the tags that were written; ``mixed`` where some are guesses."""

    stretches: Stretches
    slots: Tensor
    tags: Tensor
    mixed: bool


@dataclass(frozen=True)
class _Group:
    """Pools that are read alike: they share the search for their rows."""

    pools: list[PoolTensors]
    mapped: bool
    window: int | None
    tree: bool


class Steps:
    """Executes the steps of a log.

    Parameters
    ----------
    log : ReplayLog
    rows : Rows
    contents : Contents
    pools : sequence of PoolTensors
    allocator : SlotAllocator
        Knows the SWA peers of slots.
    checks : Checks
        Gets what must hold.
    tree : bool
        Drafts are trees: what the target accepts is scattered.
    check : str
        ``every``: each step's reads are compared; ``sample``: one step's of 16; ``end``: each request's last step's,
        which the others compare too.

    Attributes
    ----------
    steps, tokens, tags_written, tags_read : int
        Done so far.
    """

    def __init__(
        self,
        log: ReplayLog,
        rows: Rows,
        contents: Contents,
        pools: Sequence[PoolTensors],
        allocator: SlotAllocator,
        checks: Checks,
        *,
        tree: bool,
        check: str,
    ) -> None:
        self._log = log
        self._c = log.columns
        self._rows = rows
        self._contents = contents
        self._pools = pools
        self._allocator = allocator
        self._checks = checks
        # First row of the step at hand.
        self._at = 0
        self._tree = tree
        self._read = _to_read(log, check)
        self._groups: list[_Group] = []
        for pool in pools:
            key = (pool.mapped, pool.window, tree and pool.worker == "target")
            group = next((one for one in self._groups if (one.mapped, one.window, one.tree) == key), None)
            if group is None:
                group = _Group([], *key)
                self._groups.append(group)
            group.pools.append(pool)
        self.steps = self.tokens = self.tags_written = self.tags_read = 0

    def compute(self, first: int, stop: int) -> None:
        """Execute the step in rows ``first`` up to ``stop - 1`` of the log."""
        self._at = first
        requests, begins, ends, kept = (self._c[name][first:stop] for name in ("request", "begin", "end", "kept"))
        stretches = self._rows.stretches(requests, begins, ends)
        slots = self._rows.slots[stretches.place]

        def nowhere(at: int) -> str:
            request, position = stretches.find(at)
            return f"{self._log.who(request)} token {position:,} is computed and has no slot"

        self._checks.expect(slots > 0, nowhere)
        mixed = bool((kept < ends - begins).any())
        call = int(self._c["call"][first])
        chain = _Written(stretches, slots, self._tags(stretches, kept, call, tree=False), mixed)
        tree = chain
        if self._tree and mixed:
            tree = _Written(stretches, slots, self._tags(stretches, kept, call, tree=True), mixed)
        self.steps += 1
        self.tokens += stretches.total
        chosen = np.flatnonzero(self._read[first:stop])
        for group in self._groups:
            written = tree if group.tree else chain
            self._write(group, written)
            if len(chosen):
                self._compare(group, written, chosen, lane=int(self._c["step"][first]))
            if written is not chain:
                self._move_accepted(group, written, kept)

    # ---- tags
    def _tags(self, stretches: Stretches, kept: NDArray[np.int64], call: int, *, tree: bool) -> Tensor:
        """Tags of what a step writes: the tokens that are kept, and guesses."""
        tags = self._rows.tags[stretches.place]
        if not (kept < stretches.ends - stretches.begins).any():
            return tags
        device = tags.device
        facts = np.stack([stretches.requests, stretches.begins, stretches.ends - stretches.begins, kept])
        whose, begin, size, keep = torch.from_numpy(facts).to(device)[:, stretches.which]
        number = _numbers(stretches)
        guesses = guess_tags(whose, begin + number, call)
        if not tree:
            return torch.where(number < keep, tags, guesses)
        # The token of the path that this node would be, and whether it is that one's node.
        token = ((keep - 1) * number + size - 2).div((size - 1).clamp(min=1), rounding_mode="floor").clamp(min=0)
        accepted = (token < keep) & (_node(token, keep, size) == number)
        return torch.where(accepted, self._rows.tags[stretches.place - number + token], guesses)

    # ---- memory
    def _reach(self, pool: PoolTensors, slots: Tensor, peers: Tensor, stretches: Stretches, what: str) -> Tensor:
        """Rows of a pool for slots; those out of range are a mismatch, and become the padding row."""
        index, valid = pool.rows_of(slots, peers)

        def otherwise(at: int) -> str:
            request, position = stretches.find(at)
            slot, row = int(slots[at]), int((peers if pool.mapped else slots)[at])
            whose = f"{self._log.who(request)} token {position:,}, slot {slot:,}"
            if row <= 0:
                return f"{pool.name}: {whose} is {what}, and its SWA half is gone\n{self._log.history(slot, self._at)}"
            return (
                f"{pool.name}: {whose} is {what}: row {row:,} is out of range, the pool ends at row {pool.rows - 1:,}"
            )

        self._checks.expect(valid, otherwise)
        return index

    def _peers(self, group: _Group, slots: Tensor) -> Tensor:
        return self._allocator.peers(slots) if group.mapped else slots

    def _write(self, group: _Group, written: _Written) -> None:
        peers = self._peers(group, written.slots)
        for pool in group.pools:
            index = self._reach(pool, written.slots, peers, written.stretches, "written to")
            for tensor in pool.tensors:
                tensor.write(index, written.tags)
            self.tags_written += len(index) * len(pool.tensors)

    def _move_accepted(self, group: _Group, written: _Written, kept: NDArray[np.int64]) -> None:
        """Bring the accepted path of each tree to the front of what its step wrote."""
        stretches, device = written.stretches, written.slots.device
        sizes = stretches.ends - stretches.begins
        front = np.cumsum(sizes) - sizes
        starts, keep, size = torch.from_numpy(np.stack([front, kept, sizes])).to(device)
        target, which = spread(starts, keep, int(kept.sum()))
        token = target - starts[which]
        source = starts[which] + _node(token, keep[which], size[which])
        peers = self._peers(group, written.slots)
        for pool in group.pools:
            index, _ = pool.rows_of(written.slots, peers)
            for tensor in pool.tensors:
                tensor.move(index[target], index[source])

    def _compare(self, group: _Group, written: _Written, chosen: NDArray[np.int64], *, lane: int) -> None:
        """Gather what the attention of a step reads, and compare the tags.

        Parameters
        ----------
        group : _Group
            Where it reads.
        written : _Written
            What the step wrote, which it reads too.
        chosen : int64 array
            Which stretches of the step are looked at.
        lane : int
            Which part of each row.
        """
        wrote = written.stretches
        begins, ends = wrote.begins[chosen], wrote.ends[chosen]
        low = begins - (begins if group.window is None else np.minimum(begins, group.window))
        stretches = self._rows.stretches(wrote.requests[chosen], low, ends)
        tags = self._rows.tags[stretches.place]
        if written.mixed:
            # What the step wrote ends each stretch, and is not all that the row will hold there.
            sizes = wrote.ends - wrote.begins
            own = np.stack([np.cumsum(ends - low) - (ends - begins), (np.cumsum(sizes) - sizes)[chosen], sizes[chosen]])
            target, source, number = torch.from_numpy(own).to(tags.device)
            total = int(sizes[chosen].sum())
            tags[spread(target, number, total)[0]] = written.tags[spread(source, number, total)[0]]
        slots = self._rows.slots[stretches.place]
        peers = self._peers(group, slots)
        for pool in group.pools:
            index = self._reach(pool, slots, peers, stretches, "read")
            for number, tensor in enumerate(pool.tensors):
                found = tensor.read(index, lane)
                otherwise = self._wrong_tag(pool, number, found, slots, stretches)
                self._checks.expect(found == tensor.encoded(tags), otherwise)
            self.tags_read += stretches.total * len(pool.tensors)

    # ---- messages
    def _wrong_tag(
        self, pool: PoolTensors, number: int, found: Tensor, slots: Tensor, stretches: Stretches
    ) -> Callable[[int], str]:
        def otherwise(at: int) -> str:
            request, position = stretches.find(at)
            slot, tensor = int(slots[at]), pool.tensors[number]
            return (
                f"{pool.name}, {pool.part(number)}: {self._log.who(request)} reads token {position:,} from slot {slot:,}\n"
                f"  expected: {self._log.who(request)} token {position:,}\n"
                f"  found:    {self._say(tensor, found[at])}\n{self._log.history(slot, self._at)}"
            )

        return otherwise

    def _say(self, tensor: KvTensor, stored: Tensor) -> str:
        if not int(stored):
            return "nothing, it was never written"
        if not tensor.whole_tags:
            return "something else (rows this narrow hold a part of a tag only)"
        return say_tag(int(tensor.decoded(stored)), self._log, self._contents, lambda one: int(self._rows.longest[one]))


def _numbers(stretches: Stretches) -> Tensor:
    """Place of each token in its stretch."""
    first = torch.cumsum(stretches.lengths, 0) - stretches.lengths
    return torch.arange(stretches.total, device=first.device) - first[stretches.which]


def _node(token: Tensor, kept: Tensor, size: Tensor) -> Tensor:
    """Node of a tree that holds a token of the accepted path: the root the first, the others spread over the rest."""
    return (token * (size - 1)).div((kept - 1).clamp(min=1), rounding_mode="floor")


def _to_read(log: ReplayLog, check: str) -> NDArray[np.bool_]:
    """Rows of steps whose reads are compared."""
    steps, requests = log.are("compute"), log.columns["request"]
    if check == "every":
        return steps
    # The last step before a request's row is closed, or before the log ends.
    rows = np.flatnonzero(steps | log.are("close"))
    order = rows[np.lexsort((rows, requests[rows]))]
    followed = requests[order[1:]] == requests[order[:-1]]
    last = np.append(~followed | ~steps[order[1:]], True)
    found = np.zeros(len(steps), np.bool_)
    found[order[last[: len(order)]]] = True
    found &= steps
    if check == "sample":
        found |= steps & (log.columns["step"] % _SAMPLE == 0)
    return found
