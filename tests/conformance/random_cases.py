"""Random inputs for the engine and simkv alike; every one a pure function of its seed and number.

Usage: ``random_cases.py KIND SEED COUNT [FIRST] > cases.jsonl``; the engine's own driver then adds the results
(``tests/conformance/oracle``, ``live.py`` does both).

A case is ``{"name", "kind", "input"}``; what an input means is said in the driver that runs it. Values are resolved
ones: a chunk is a multiple of the page, an all-SWA pool has pages of one token.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from allocator_driver import Replay, operations
from random_allocators import allocator_case
from schedule_driver import Driver

from simkv.allocations import AllocationLog
from simkv.alloctable import allocation_table
from simkv.replayer.log import read_log

Case = dict[str, Any]
Piece = tuple[int, int, int]  # (first token, length, 1 where tokens count up and 0 where one is repeated)
OUTPUT = 900000  # output tokens of the request at place j are OUTPUT + j


# ------------------------------------------------------------------------------------------------- shared parts
def up(n: int, page: int) -> int:
    """The next multiple of the page."""
    return -(-n // page) * page


def spec_of(rng: random.Random) -> Case | None:
    """No speculation, a chain, or a tree."""
    kind = rng.random()
    if kind < 0.45:
        return None
    steps = rng.randint(1, 5)
    if kind < 0.8:
        return {
            "algorithm": rng.choice(["EAGLE", "EAGLE3"]),
            "num_steps": steps,
            "topk": 1,
            "num_draft_tokens": steps + 1,
        }
    topk = rng.randint(2, 4)
    return {
        "algorithm": "EAGLE",
        "num_steps": steps,
        "topk": topk,
        "num_draft_tokens": rng.randint(2, steps * topk + 1),
    }


def reserve_of(spec: Case | None, page: int) -> int:
    """Slots ahead that a decoding request may hold: what pools are scaled by, no rule of the engine."""
    if spec is None:
        return 0
    width = max(spec["num_steps"] * spec["topk"], spec["num_draft_tokens"])
    if page > 1 and spec["topk"] > 1:
        width = max(up(page - 1 + spec["num_steps"], page) * spec["topk"], spec["num_draft_tokens"])
    return 2 * width


def length_of(pieces: list[Piece]) -> int:
    return sum(n for _, n, _ in pieces)


def cut(pieces: list[Piece], length: int) -> list[Piece]:
    """The first ``length`` tokens."""
    out = []
    for first, n, rising in pieces:
        if length <= 0:
            break
        out.append((first, min(n, length), rising))
        length -= n
    return out


def tokens_of(pieces: list[Piece]) -> Any:
    """Pieces in the driver's form."""
    parts: list[Any] = [{"range": [a, a + n]} if rising else [a] * n for a, n, rising in pieces if n]
    return parts[0] if len(parts) == 1 else {"cat": parts}


class Texts:
    """Prompts that share: trunks, branches of branches, and text of nobody else's."""

    def __init__(self, rng: random.Random, longest: int, page: int) -> None:
        self.rng, self.page, self.longest, self.own = rng, page, longest, 0
        self.nodes: list[list[Piece]] = []
        for number in range(rng.randint(1, 3)):
            self.nodes.append([(1000 * (number + 1), rng.randint(max(2, longest // 3), max(3, longest)), 1)])
        for number in range(rng.randint(0, 4)):
            parent = rng.choice(self.nodes)
            at = self.place(length_of(parent))
            self.nodes.append([*cut(parent, at), (10000 + 1000 * number, rng.randint(1, max(2, longest // 2)), 1)])

    def place(self, length: int) -> int:
        """A place in a text, often at a page's edge or one beside it."""
        at = self.rng.randint(1, max(1, length))
        if self.rng.random() < 0.5:
            at = up(at, self.page) + self.rng.choice([-1, 0, 0, 1])
        return max(1, min(at, length))

    def tail(self, longest: int) -> Piece:
        """Text of nobody else's."""
        self.own += 1
        return (100000 + 2000 * self.own, self.rng.randint(1, max(1, longest)), 1)

    def shared(self) -> list[Piece]:
        """A trunk or branch, cut somewhere, mostly with a tail."""
        text = self.rng.choice(self.nodes)
        if self.rng.random() < 0.7:
            text = cut(text, self.place(length_of(text)))
        if self.rng.random() < 0.7:
            text = [*text, self.tail(self.longest // 4)]
        return text


# ------------------------------------------------------------------------------------------------- schedule
REGIMES = ["retract", "retract", "evict", "evict", "tombstone", "tombstone", "branch", "queue", "queue", "plain", "odd"]


def schedule_case(seed: int, number: int) -> Case:
    """A whole scheduler's run."""
    rng = random.Random(f"schedule/{seed}/{number}")
    radix = rng.random() < 0.75
    regime = rng.choice(REGIMES)
    if regime in ("tombstone", "branch"):
        kind = "swa"
    else:
        kind = rng.choice(["flat", "flat", "flat", "swa", "swa", "swa", "pure_swa"])
    page = 1 if kind == "pure_swa" else rng.choice([1, 1, 2, 4, 4, 8, 16, 64])
    spec = spec_of(rng)
    ahead = reserve_of(spec, page)
    size = page * max(4, -(-(rng.randint(40, 200) + ahead * rng.randint(1, 3)) // page))
    count = rng.randint(1, 8)
    longest = rng.choice([20, 60, size // 2])
    window = rng.choice([4, 6, 8, 12, 20, 33])
    spread = rng.choice([0, 3, 30])
    outputs = rng.choice([8, 40, 40, 120])
    conservative = rng.choice([0.05, 0.3, 1.0])
    chunk = rng.choice([None, None, page * rng.randint(1, 4), page * rng.choice([3, 5, 7, 13]), page * 8])
    rows = rng.choice([1, 2, 4, 8, 8])
    room = rng.randint(0, 40 + ahead * rng.randint(1, 3))  # of the SWA pool beyond its least
    if regime == "retract":  # all are admitted, none can end
        count, longest, spread = rng.randint(3, 8), max(6, size // 12), rng.choice([0, 3, 8])
        outputs, conservative, rows = rng.choice([40, 80, 120]), rng.choice([0.01, 0.05, 0.1]), 8
        room += 24
    elif regime == "evict":  # more texts in a row than the pool can hold
        count, longest, spread = rng.randint(5, 12), max(8, size // 3), rng.choice([40, 90, 150])
        outputs = rng.choice([4, 12, 30])
        room += longest
    elif regime == "tombstone":  # the tree outlives its windows
        count, longest, spread = rng.randint(5, 12), rng.choice([40, 80, 120]), rng.choice([20, 60, 120])
        size, outputs, window = size + 400 // page * page, rng.choice([4, 12, 30]), rng.choice([4, 6, 8, 12])
        room += rng.randint(0, longest)
    elif regime == "branch":  # a match ends where only the full side is still there
        count, longest, spread = rng.randint(5, 10), rng.choice([40, 80]) + 2 * page, rng.choice([30, 80])
        size, outputs, window = size + 300 // page * page, rng.choice([3, 8, 20]), rng.choice([4, 6, 8])
        room += 2 * longest
    elif regime == "queue":  # many passes with somebody waiting
        count, spread, outputs = rng.randint(8, 20), rng.choice([0, 3, 20]), rng.choice([12, 40, 60])
        if kind == "flat" and rng.random() < 0.7:  # passes that count there are those of a chunked prompt
            longest, chunk = size // 2, page * rng.randint(1, 2)
        else:
            longest = max(8, size // 4)
            room += longest
    if kind != "flat" and rng.random() < 0.2:
        window = rng.choice([page, page + 1, 2 * page - 1, 3 * page, 40])
    size_swa = up(window + 2 * page + room, page)
    if kind == "pure_swa":
        size_swa = max(size_swa, size)
        if rng.random() < 0.7:  # window freeing in the decoded part breaks the engine: mostly keep clear of it
            outputs = min(outputs, 6)
    elif rng.random() < 0.8:
        size_swa = min(size_swa, max(size, up(window + 2 * page, page)))
    if spec is not None:
        outputs = max(outputs, 8)
    out: Case = {
        "allocator": {"flat": "token" if page == 1 else "paged"}.get(kind, kind),
        "page_size": page,
        "disable_radix_cache": not radix,
        "chunked_prefill_size": chunk,
        "max_prefill_tokens": rng.choice([16384, 16384, 16384, rng.randint(16, 64)]),
        "max_running_requests": rows,
        "schedule_conservativeness": conservative,
        "overlap": rng.random() < 0.5,
        "context_len": rng.choice([512, 512, 512, rng.randint(40, 160)]),
        "core": rng.choice(["python", "python", "python", "rust"]),
    }
    if kind != "pure_swa":
        out["size"] = size
    if kind != "flat":
        out["window"] = window
        out["size_swa"] = size_swa
        interval = rng.choice([1, 2, 8, 32, None])
        if interval is not None:
            out["eviction_interval"] = interval
    if spec is not None:
        out["spec"] = spec
    if chunk and rng.random() < 0.2:
        out["enable_mixed_chunk"] = True
    texts = Texts(rng, min(longest, 400), page)
    out["requests"] = _requests(rng, texts, regime, count, spread, outputs, spec is not None)
    return {"name": f"schedule/random_{seed}_{number}", "kind": "schedule", "input": out}


def _requests(
    rng: random.Random, texts: Texts, regime: str, count: int, spread: int, outputs: int, spec: bool
) -> list[Case]:
    """Requests of a run, with prompts that share in every way the tree can tell apart."""
    made: list[Case] = []
    prompts: list[list[Piece]] = []
    odd = 0.35 if regime == "odd" else 0.04
    alone = rng.choice([0.1, 0.3, 0.8]) if regime in ("retract", "plain") else rng.choice([0.1, 0.3])
    for place in range(count):
        arrival = rng.randint(0, spread)
        new = rng.choice([1, 2, rng.randint(1, outputs), rng.randint(1, outputs), outputs])
        if regime == "retract":
            new = rng.randint(outputs // 2, outputs)
        how = rng.random()
        if not prompts or how < 0.55:
            text = [texts.tail(texts.longest)] if rng.random() < alone else texts.shared()
        else:
            earlier = rng.randrange(place)
            before = prompts[earlier]
            past = made[earlier]
            if how < 0.67:  # the same again, perhaps after a long gap
                text = before
                arrival = past["arrival_step"] + rng.choice([0, 1, 20, 60, 100])
            elif how < 0.75:
                text = cut(before, texts.place(length_of(before)))
            elif how < 0.82:
                text = [*cut(before, texts.place(length_of(before))), texts.tail(texts.longest // 4)]
            else:  # the next turn: what was said, what was answered, and more
                answered = past["max_new_tokens"] - rng.choice([0, 0, 0, 1, 2])
                text = [*before, (OUTPUT + earlier, max(1, min(answered, 120)), 0)]
                if rng.random() < 0.8:
                    text.append(texts.tail(texts.longest // 4))
                arrival = past["arrival_step"] + min(past["max_new_tokens"], 100) + rng.choice([0, 2, 5, 20])
        if rng.random() < odd:
            which = rng.randrange(3)
            if which == 0:
                text = [*text, texts.tail(rng.choice([100, 300, 600]))]
            elif which == 1:
                new = 0
            else:
                new = rng.choice([150, 400])
        request: Case = {
            "rid": f"r{place}",
            "arrival_step": arrival,
            "tokens": tokens_of(text),
            "max_new_tokens": new,
        }
        if rng.random() < 0.15:
            request["ignore_eos"] = True
        if spec:
            request["accept"] = [rng.randint(1, 7) for _ in range(rng.randint(1, 5))]
        made.append(request)
        prompts.append(text)
    return made


# ------------------------------------------------------------------------------------------------- replay
def replay_case(seed: int, number: int) -> Case:
    """What the run of a random schedule asks of its allocator, as its allocation log has it."""
    run = schedule_case(seed, number)["input"]
    log = AllocationLog()
    driver = Driver(run, log)
    driver.run()
    case = {key: run[key] for key in ("allocator", "page_size", "size", "size_swa") if key in run} | {"ops": []}
    replay = Replay(case)
    table = allocation_table(log, np.arange(len(driver.names)))
    for op, told in operations(read_log(table, driver.names), run["page_size"]):
        case["ops"].append(op)
        # The log has the ids of simkv's allocator, so what the engine's hands out is compared with the log as well.
        done = replay.step(op)
        if any(done.get(key, value) != value for key, value in told.items()):
            raise ValueError(f"schedule {seed}, {number}: the log says {told}, and {op} gives {done}")
    return {"name": f"replay/random_{seed}_{number}", "kind": "replay", "input": case}


# ------------------------------------------------------------------------------------------------- radix
def _pools(rng: random.Random, kinds: list[str], pages: list[int], low: int, high: int, ahead: int = 0) -> Case:
    """Allocator, page, window and sizes of a sequence of operations."""
    kind = rng.choice(kinds)
    page = 1 if kind in ("pure_swa", "token") else rng.choice([p for p in pages if p > 1 or kind == "swa"])
    size = up(rng.randint(low, high) + ahead, page) + 4 * page
    out: Case = {"allocator": kind, "page_size": page}
    if kind != "pure_swa":
        out["size"] = size
    if kind in ("swa", "pure_swa"):
        window = rng.choice([2, 4, 6, 8, 12, 20, page, page + 1, 2 * page])
        out["window"] = window
        least = up(window, page) + 2 * page + ahead
        out["size_swa"] = size if kind == "pure_swa" else max(up(rng.randint(size // 3, size), page), up(least, page))
    return out


def radix_case(seed: int, number: int) -> Case:
    """A tree of prefixes alone: what is inserted, matched, locked, evicted."""
    rng = random.Random(f"radix/{seed}/{number}")
    out = _pools(rng, ["token", "paged", "paged", "swa", "swa", "swa", "swa", "pure_swa"], [1, 2, 4, 8, 16], 20, 120)
    kind, page = out["allocator"], out["page_size"]
    swa = kind == "swa"
    size = out.get("size", out.get("size_swa"))
    out["is_eagle"] = rng.random() < 0.35
    if kind == "pure_swa":
        out["free_duplicates"] = True
    else:
        out["core"] = rng.choice(["python", "python", "rust"])
    texts = Texts(rng, rng.choice([8, 20, max(8, size // 3)]), page)
    seen: list[list[Piece]] = []
    held: list[str] = []
    released: set[str] = set()
    ops: list[Case] = []

    def text() -> list[Piece]:
        how = rng.random()
        if seen and how < 0.3:
            return rng.choice(seen)
        if seen and how < 0.45:
            known = rng.choice(seen)
            return cut(known, texts.place(length_of(known)))
        if seen and how < 0.6:
            known = rng.choice(seen)
            return [*cut(known, texts.place(length_of(known))), texts.tail(texts.longest // 3)]
        return [texts.tail(texts.longest)] if how > 0.9 else texts.shared()

    names = ["insert"] * 16 + ["match"] * 8 + ["evict"] * 6 + ["evict_for_alloc"] * 2 + ["lock"] * 4 + ["unlock"] * 3
    names += ["release_swa"] * (3 if swa else 0)
    for _ in range(rng.randint(10, 60)):
        name = rng.choice(names)
        if (name == "unlock" and not held) or (name == "release_swa" and not set(held) - released):
            name = "insert"
        op: Case = {"op": name}
        if name == "insert":
            now = text()
            seen.append(now)
            op["tokens"] = tokens_of(now)
            whole = (length_of(now) - out["is_eagle"]) // page * page
            if swa and whole > page and rng.random() < 0.45:
                behind = whole - (up(out["window"], page) if rng.random() < 0.8 else page)
                gone = rng.randint(0, max(0, behind) // page) * page
                if gone:
                    op["swa_evicted"] = gone
        elif name == "match":
            op["tokens"] = tokens_of(text())
        elif name == "evict":
            amounts = {"num_tokens": rng.randint(1, size // 2), "swa_num_tokens": rng.randint(1, size // 2)}
            keep = rng.choice([["num_tokens"], ["swa_num_tokens"], ["num_tokens", "swa_num_tokens"]])
            few = rng.random() < 0.6
            op |= {key: rng.randint(1, 2 * page) if few else amounts[key] for key in (keep if swa else ["num_tokens"])}
        elif name == "evict_for_alloc":
            op["num_tokens"] = rng.randint(1, size)
        elif name == "lock":
            op |= {"tokens": tokens_of(text()), "as": f"L{len(ops)}"}
            held.append(op["as"])
        elif name == "unlock":
            op["as"] = held.pop(rng.randrange(len(held)))
        else:
            op["as"] = rng.choice(sorted(set(held) - released))
            released.add(op["as"])
        ops.append(op)
    out["ops"] = ops
    return {"name": f"radix/random_{seed}_{number}", "kind": "radix", "input": out}


# ------------------------------------------------------------------------------------------------- decode
def decode_case(seed: int, number: int) -> Case:
    """Prefills, decode steps and ends of requests, with no scheduler that decides them.

    ``if_fits`` and ``if_live`` leave an operation out where the pools or an earlier retraction rule it out: only the
    run itself knows.
    """
    rng = random.Random(f"decode/{seed}/{number}")
    spec = spec_of(rng)
    kinds, pages = ["token", "paged", "paged", "swa", "swa", "swa"], [1, 1, 2, 4, 8, 16]
    low, high = rng.choice([(30, 120), (60, 200), (200, 400)])
    out = _pools(rng, kinds, pages, low, high, up(reserve_of(spec, 4), 16) * rng.randint(0, 3))
    page = out["page_size"]
    out["disable_radix_cache"] = rng.random() < 0.3
    if rng.random() < 0.25:
        out["overlap"] = False
    if out["allocator"] == "swa":
        interval = rng.choice([1, 2, 4, 16, None])
        if interval is not None:
            out["eviction_interval"] = interval
    if spec is not None:
        out["spec"] = spec
        out["is_eagle"] = rng.random() < 0.75
    if not out["disable_radix_cache"]:
        out["core"] = rng.choice(["python", "python", "rust"])
    size = out["size"]
    texts = Texts(rng, rng.choice([8, 20, 60, max(10, size // 4)]), page)
    prompts: dict[str, list[Piece]] = {}
    live: list[str] = []
    outputs: dict[str, int] = {}
    ops: list[Case] = []
    for _ in range(rng.randint(10, 60)):
        name = rng.choices(["prefill", "decode", "finish"], [2, 8, 1.5])[0] if live else "prefill"
        if name == "prefill":
            reqs = {}
            for _ in range(rng.randint(1, 3)):
                rid = f"q{len(prompts)}"
                if prompts and rng.random() < 0.35:
                    old = rng.choice(list(prompts))
                    text = prompts[old]
                    if rng.random() < 0.5:  # the next turn
                        answered = outputs[old] + (outputs[old] == 0)
                        text = [*text, (9000, 1, 1), (9001, min(answered, 60), 0), texts.tail(texts.longest // 4)]
                    text = cut(text, size // 2)
                else:
                    text = [texts.tail(texts.longest)] if rng.random() < 0.3 else texts.shared()
                prompts[rid] = text
                outputs[rid] = 0
                reqs[rid] = tokens_of(text)
                live.append(rid)
            ops.append({"op": "prefill", "reqs": reqs, "if_fits": True})
        elif name == "decode":
            for _ in range(rng.randint(1, 4)):
                op: Case = {"op": "decode", "if_live": True}
                if spec is not None:
                    op["accept"] = {rid: rng.randint(1, spec["num_draft_tokens"]) for rid in live}
                for rid in live:
                    outputs[rid] += op.get("accept", {}).get(rid, 1)
                ops.append(op)
        else:
            op = {"op": "finish", "req": live.pop(rng.randrange(len(live))), "if_live": True}
            if rng.random() < 0.15:
                op["checkpoint"] = False
            ops.append(op)
    out["ops"] = ops
    return {"name": f"decode/random_{seed}_{number}", "kind": "decode", "input": out}


# ------------------------------------------------------------------------------------------------- sizing
def sizing_case(seed: int, number: int) -> Case:
    """Pool sizes from a model's shape, bytes, and the server's arguments."""
    rng = random.Random(f"sizing/{seed}/{number}")
    layers = rng.randint(1, 40)
    model: Case = {
        "num_layers": layers,
        "num_kv_heads": rng.choice([1, 2, 3, 4, 8, 16]),
        "head_dim": rng.choice([4, 8, 16, 64, 80, 128, 192, 256]),
        "context_len": rng.choice([256, 2048, 32768, 131072, 1048576]),
    }
    if rng.random() < 0.3:
        model["v_head_dim"] = rng.choice([64, 128, 256])
    split = rng.random()
    if split < 0.6:
        share = 1.0 if split < 0.1 else rng.choice([0.25, 0.5, 0.8])
        sliding = [i for i in range(layers) if rng.random() < share] or [rng.randrange(layers)]
        model["swa_layer_ids"] = sliding
        model["full_layer_ids"] = [i for i in range(layers) if i not in sliding]
        model["sliding_window"] = rng.choice([1, 4, 16, 127, 128, 511, 512, 1024, 4096])
        if rng.random() < 0.5:
            model["swa_num_kv_heads"] = rng.choice([1, 2, 4, 8, 16])
            model["swa_head_dim"] = rng.choice([64, 128, 192])
            model["swa_v_head_dim"] = rng.choice([64, 128, 192])
    page = rng.choice([1, 1, 2, 4, 8, 16, 32, 64, 128, 256])
    token = 2 * layers * model["num_kv_heads"] * model["head_dim"]
    out: Case = {
        "model": model,
        "tp_size": rng.choice([1, 1, 2, 4, 8]),
        "page_size": page,
        "kv_dtype": rng.choice(["bf16", "bf16", "fp8_e4m3", "fp8_e5m2"]),
        "available_bytes": int(token * 2 ** rng.uniform(0, 24)) if rng.random() < 0.97 else rng.choice([0, -5]),
    }
    if "swa_layer_ids" in model:
        out["swa_full_tokens_ratio"] = rng.choice(
            [0.05, 0.1, 0.25, 0.3, 0.5, 0.7, 0.8, 1.0, rng.randint(1, 999) / 1000]
        )
    if rng.random() < 0.6:
        steps = rng.randint(1, 6)
        topk = rng.choice([1, 1, 1, 2, 4])
        out["spec"] = {
            "algorithm": rng.choice(["EAGLE", "EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM"]),
            "num_steps": steps,
            "topk": topk,
            "num_draft_tokens": steps + 1 if topk == 1 else rng.randint(2, steps * topk + 1),
        }
        if rng.random() < 0.9:
            out["eagle_draft_num_layers"] = rng.randint(0, 8)
        if rng.random() < 0.4:
            out["eagle_draft_swa_num_layers"] = rng.choice([0, 1, 2, 3, 5, 40])
        if "swa_layer_ids" in model and rng.random() < 0.35:
            model["mtp_local_layer_ids"] = sorted(rng.sample(range(10), rng.randint(0, 6)))
    if rng.random() < 0.35:  # what the bounded window pool wants
        out["disable_radix_cache"] = True
        if rng.random() < 0.4:
            out["eviction_interval"] = rng.choice([1, 4, 128, 1000])
    if rng.random() < 0.5:
        out["max_running_requests"] = rng.choice([1, 4, 48, 64, 1024])
    if rng.random() < 0.25:
        out["disable_overlap_schedule"] = True
    if rng.random() < 0.3:
        out["max_total_tokens"] = rng.choice([100, 5000, 10007, 65536, 10**6, 10**9])
    chunk = rng.choice([None, page * rng.randint(1, 40), up(8192, page), up(2048, page)])
    if chunk is not None:
        out["chunked_prefill_size"] = chunk
    return {"name": f"sizing/random_{seed}_{number}", "kind": "sizing", "input": out}


# ------------------------------------------------------------------------------------------------- command line
KINDS: dict[str, Callable[[int, int], Case]] = {
    "allocator": allocator_case,
    "replay": replay_case,
    "schedule": schedule_case,
    "radix": radix_case,
    "decode": decode_case,
    "sizing": sizing_case,
}

if __name__ == "__main__":
    _kind, _seed, _count, *_first = sys.argv[1:]
    for _number in range(int(_count)):
        _case = KINDS[_kind](int(_seed), _number + (int(_first[0]) if _first else 0))
        print(json.dumps(_case, separators=(",", ":")))
