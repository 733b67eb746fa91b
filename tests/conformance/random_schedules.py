"""Random inputs of kind ``schedule`` with the radix cache off; prints JSON lines without results.

Usage: ``random_schedules.py SEED COUNT > cases.jsonl``; the engine's own driver then adds the results.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any


def spec_of(rng: random.Random) -> dict[str, Any] | None:
    """No speculation, a chain, or a tree."""
    kind = rng.random()
    if kind < 0.4:
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


def request_of(rng: random.Random, number: int, longest: int, spec: bool) -> dict[str, Any]:
    """One request with contents of its own."""
    first = 1000 * (number + 1)
    out: dict[str, Any] = {
        "rid": f"r{number}",
        "arrival_step": rng.choice([0, 0, 1, 2, rng.randint(0, 30)]),
        "tokens": {"range": [first, first + rng.randint(1, longest)]},
        "max_new_tokens": rng.choice([0, 1, 2, rng.randint(1, 40), rng.randint(1, 40), rng.randint(1, 120)]),
    }
    if rng.random() < 0.2:
        out["ignore_eos"] = True
    if spec:
        out["accept"] = [rng.randint(1, 7) for _ in range(rng.randint(1, 5))]
    return out


def case_of(seed: int, number: int) -> dict[str, Any]:
    """One case, from nothing but its seed and number."""
    rng = random.Random(f"{seed}/{number}")
    kind = rng.choice(["flat", "flat", "swa", "swa", "swa", "pure_swa"])
    page = 1 if kind == "pure_swa" else rng.choice([1, 2, 4, 4, 16, 64])
    spec = spec_of(rng)
    reserve = 0
    if spec is not None:
        width = max(spec["num_steps"] * spec["topk"], spec["num_draft_tokens"])
        if page > 1 and spec["topk"] > 1:
            width = max(-(-(page - 1 + spec["num_steps"]) // page) * page * spec["topk"], spec["num_draft_tokens"])
        reserve = 2 * width
    size = page * max(4, -(-(rng.randint(30, 200) + reserve * rng.randint(1, 3)) // page))
    out: dict[str, Any] = {
        "allocator": {"flat": "token" if page == 1 else "paged"}.get(kind, kind),
        "page_size": page,
        "disable_radix_cache": True,
        "chunked_prefill_size": rng.choice([None, page * rng.randint(1, 4), page * 8, page * 3]),
        "max_prefill_tokens": rng.choice([16384, 16384, rng.randint(16, 64)]),
        "max_running_requests": rng.choice([1, 2, 4, 8]),
        "schedule_conservativeness": rng.choice([0.05, 0.3, 1.0]),
        "overlap": rng.random() < 0.5,
        "context_len": rng.choice([512, 512, rng.randint(40, 160)]),
    }
    if kind != "pure_swa":
        out["size"] = size
    longest = rng.choice([20, 60, size])
    if kind != "flat":
        window = rng.choice([4, 6, 8, 12, 20, 33])
        out["window"] = window
        low = window + 2 * page
        out["size_swa"] = page * -(-rng.randint(low, low + 40 + reserve * rng.randint(1, 3)) // page)
        if kind == "pure_swa":
            out["size_swa"] = max(out["size_swa"], size)
        interval = rng.choice([1, 2, 8, 32, None])
        if interval is not None:
            out["eviction_interval"] = interval
    if spec is not None:
        out["spec"] = spec
    if out["chunked_prefill_size"] and rng.random() < 0.2:
        out["enable_mixed_chunk"] = True
    out["requests"] = [request_of(rng, i, longest, spec is not None) for i in range(rng.randint(1, 8))]
    return {"name": f"schedule/random_noradix_{seed}_{number}", "kind": "schedule", "input": out}


if __name__ == "__main__":
    for count in range(int(sys.argv[2])):
        print(json.dumps(case_of(int(sys.argv[1]), count), separators=(",", ":")))
