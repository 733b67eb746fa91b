"""Random lives of slot allocators. Operations name literal slot ids, which simkv's own allocator supplies."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from allocator_driver import Replay


class AllocatorLife:
    """The life of a few sequences in one allocator, now and then broken off or abused.

    ``abuse`` is the share of operations that no caller of the engine would make: slots freed twice or by the wrong
    call, segments that start inside a page, groups in groups, calls that the class does not have.
    """

    def __init__(self, rng: random.Random, case: dict[str, Any], abuse: float) -> None:
        self.rng, self.case, self.abuse = rng, case, abuse
        self.page = case["page_size"]
        self.kind = case["allocator"]
        self.split = self.kind == "swa"
        self.replay = Replay(case)
        self.sequences: list[dict[str, Any]] = []
        self.freed: list[int] = []
        self.grouped = False

    def do(self, name: str, **arguments: Any) -> list[int] | None:
        """Perform one operation and write it down."""
        op = {"op": name, **arguments}
        self.case["ops"].append(op)
        return self.replay.step(op).get("returned")

    def some(self) -> list[dict[str, Any]]:
        """Up to four sequences, in any order."""
        return self.rng.sample(self.sequences, min(len(self.sequences), self.rng.randint(1, 4)))

    def pop(self) -> dict[str, Any]:
        return self.sequences.pop(self.rng.randrange(len(self.sequences)))

    # ---- allocation
    def begin(self) -> None:
        """A new sequence by ``alloc``."""
        pages = self.rng.choice([0, 1, 1, 2, 3, self.rng.randint(1, 30)])
        part = self.rng.randrange(self.page) if self.rng.random() < 0.1 else 0
        slots = self.do("alloc", n=pages * self.page + part)
        if slots:
            self.sequences.append({"slots": slots, "dead": 0})

    def extend(self) -> None:
        """New sequences and longer ones in one batch."""
        batch = self.some() if self.sequences and self.rng.random() < 0.7 else []
        batch += [{"slots": [], "dead": 0} for _ in range(self.rng.randint(0 if batch else 1, 3))]
        self.rng.shuffle(batch)
        before = [len(s["slots"]) for s in batch]
        longest = self.rng.choice([2, self.page, 3 * self.page])
        after = [n + self.rng.randint(0 if n else 1, longest) for n in before]
        last = [s["slots"][-1] if s["slots"] else -1 for s in batch]
        slots = self.do("alloc_extend", prefix_lens=before, seq_lens=after, last_loc=last)
        self.give(batch, [y - x for x, y in zip(before, after, strict=True)], slots)

    def extend_tail(self) -> None:
        """A sequence whose SWA side begins late."""
        length = self.rng.randint(1, 4 * self.page)
        tail = self.rng.choice([0, length, self.rng.randint(0, length), length + (self.rng.random() < self.abuse)])
        old = self.rng.choice(self.sequences) if self.sequences and self.rng.random() < 0.2 else None
        sequence = old or {"slots": [], "dead": 0}
        start = len(sequence["slots"])
        slots = self.do(
            "alloc_extend_swa_tail",
            prefix_lens=[start],
            seq_lens=[start + length],
            last_loc=[sequence["slots"][-1] if start else -1],
            swa_tail_len=tail,
        )
        if slots and old is None:
            sequence["dead"] = (length - tail) // self.page * self.page
        self.give([sequence], [length], slots)

    def decode(self) -> None:
        """One more token for several sequences."""
        batch = self.some()
        if self.page == 1 and self.rng.random() >= self.abuse:
            slots = self.do("alloc", n=len(batch))
        else:
            after = [len(s["slots"]) + 1 for s in batch]
            slots = self.do("alloc_decode", seq_lens=after, last_loc=[s["slots"][-1] for s in batch])
        self.give(batch, [1] * len(batch), slots)

    def give(self, batch: list[dict[str, Any]], counts: list[int], slots: list[int] | None) -> None:
        """Share new slots out among the sequences of a batch."""
        if slots is None:
            return
        taken = 0
        for sequence, count in zip(batch, counts, strict=True):
            sequence["slots"] = sequence["slots"] + slots[taken : taken + count]
            taken += count
            if sequence["slots"] and sequence not in self.sequences:
                self.sequences.append(sequence)

    # ---- frees
    def slide(self) -> None:
        """The window moves on: the SWA side of a sequence's first pages goes."""
        sequence = self.rng.choice(self.sequences)
        dead, slots = sequence["dead"], sequence["slots"]
        keep = self.rng.choice([0, 1, self.page, 2 * self.page])
        end = max(dead, (len(slots) - keep) // self.page * self.page)
        if end == dead and self.rng.random() < 0.8:
            return
        if self.kind == "pure_swa":
            # One pool: what the window leaves behind is gone for good.
            self.freed += slots[dead:end]
        if self.rng.random() < 0.6:
            self.do("free_swa_segment", ids=slots[dead:end], start_pos=dead)
        else:
            ids = slots[dead:end]
            self.rng.shuffle(ids)
            self.do("free_swa", ids=ids[: max(1, len(ids) - self.rng.choice([0, 0, 1]))])
            if self.page == 1 and ids:
                # One may be left over; put the sequence in order again.
                self.do("free_swa", ids=[x for x in ids if x not in self.case["ops"][-1]["ids"]])
        sequence["dead"] = end

    def finish(self) -> None:
        """A sequence ends: its dead part, then the rest, as segments or as sets of slots."""
        sequence = self.pop()
        slots, dead = sequence["slots"], sequence["dead"]
        self.freed += slots
        if self.rng.random() < 0.6:
            if dead and (self.kind != "pure_swa" or self.rng.random() < 0.5):
                self.do("free_full_segment", ids=slots[:dead], start_pos=0)
            self.do("free_segment", ids=slots[dead:], start_pos=dead)
            return
        for name, ids in (("free_full", slots[:dead]), ("free", slots[dead:])):
            self.rng.shuffle(ids)
            if ids or self.rng.random() < 0.1:
                self.do(name, ids=ids)

    def cut(self) -> None:
        """The last tokens of a sequence go, whole pages of them."""
        sequence = self.rng.choice(self.sequences)
        slots, dead = sequence["slots"], sequence["dead"]
        end = self.rng.randint(dead // self.page, len(slots) // self.page) * self.page
        rest = slots[end:]
        if rest and self.rng.random() < 0.5:
            self.do("free_segment", ids=rest, start_pos=end)
        else:
            self.do("free", ids=self.rng.sample(rest, len(rest)))
        self.freed += rest
        sequence["slots"] = slots[:end]
        if not end:
            self.sequences.remove(sequence)

    def toggle(self) -> None:
        """Open or close a group."""
        self.do("free_group_end" if self.grouped else "free_group_begin")
        self.grouped = not self.grouped

    def misuse(self) -> None:
        """Something no caller would do."""
        held = [x for s in self.sequences for x in s["slots"]] + self.freed[-20:] + [0]
        ids = self.rng.sample(held, min(len(held), self.rng.randint(0, 6)))
        name = self.rng.choice(
            ["free", "free_swa", "free_full", "free_segment", "free_swa_segment", "free_full_segment"]
            + ["free_group_begin", "free_group_end", "merge_and_sort_free", "clear"]
        )
        if name.endswith("segment"):
            self.do(name, ids=ids, start_pos=self.rng.choice([0, self.page, self.rng.randrange(2 * self.page)]))
        elif name.startswith("free_group"):
            self.do(name)
            self.grouped = name == "free_group_begin"
        elif name in ("merge_and_sort_free", "clear"):
            self.do(name)
            if name == "clear":
                self.sequences, self.grouped = [], False
        else:
            self.do(name, ids=ids)

    def step(self) -> None:
        """One random operation that is possible now."""
        ways: list[tuple[float, Callable[[], None]]] = [
            (2.0 if self.page == 1 or not self.split else self.abuse, self.begin),
            (5.0 if self.page > 1 else self.abuse, self.extend),
            (1.0 if self.split and self.page > 1 else self.abuse, self.extend_tail),
            (0.5, self.toggle),
            (20 * self.abuse, self.misuse),
        ]
        if self.sequences:
            ways += [(4.0, self.decode), (2.0, self.finish), (1.0, self.cut)]
            ways.append((3.0 if self.kind in ("swa", "pure_swa") else self.abuse, self.slide))
        self.rng.choices([way for _, way in ways], [weight for weight, _ in ways])[0]()


def allocator_case(seed: int, number: int) -> dict[str, Any]:
    """One case of kind ``allocator``: tens of operations on a pool that now and then runs short."""
    rng = random.Random(f"allocator/{seed}/{number}")
    kind = rng.choice(["token", "paged", "paged", "swa", "swa", "swa", "pure_swa"])
    page = {"token": 1, "pure_swa": 1, "paged": rng.choice([2, 3, 4, 4, 16, 64])}.get(
        kind, rng.choice([1, 1, 2, 4, 4, 16, 64])
    )
    pages = rng.choice([rng.randint(1, 8), rng.randint(4, 24), rng.randint(16, 60)])
    case: dict[str, Any] = {"allocator": kind, "page_size": page, "need_sort": rng.random() < 0.3}
    if kind != "pure_swa":
        case["size"] = pages * page + (rng.randrange(page) if rng.random() < 0.3 else 0)
    if kind in ("swa", "pure_swa"):
        case["size_swa"] = rng.randint(max(1, pages // 3), pages) * page + (
            rng.randrange(page) if rng.random() < 0.3 else 0
        )
    if kind == "swa" and rng.random() < 0.2:
        case["invariant_check"] = rng.choice([1, 2])
    case["ops"] = []
    life = AllocatorLife(rng, case, abuse=rng.choice([0.0, 0.0, 0.02, 0.1]))
    for _ in range(rng.randint(10, 60)):
        life.step()
    if life.grouped:
        life.toggle()
    return {"name": f"allocator/random_{seed}_{number}", "kind": "allocator", "input": case}
