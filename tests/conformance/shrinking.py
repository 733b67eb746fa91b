"""Makes a case that shows a difference small, and prints where the difference is, both sides next to each other."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

Case = dict[str, Any]
OUTPUT = 900000  # output tokens of the request at place j are OUTPUT + j
FOREIGN = 700000  # what an output token becomes when its request is dropped


# ------------------------------------------------------------------------------------------------- smaller inputs
def size_of(value: Any) -> float:
    """How large an input is: what shrinking makes less. Tokens count by how many they are, not by what they are."""
    if isinstance(value, dict):
        if set(value) == {"range"}:
            return 2 + value["range"][1] - value["range"][0]
        return sum(1 + size_of(v) for v in value.values())
    if isinstance(value, list):
        return sum(2 if isinstance(v, int) else 1 + size_of(v) for v in value)
    if isinstance(value, bool) or value is None:
        return int(bool(value))
    if isinstance(value, (int, float)):
        return math.log2(1 + abs(value))
    return 1


def without(items: Sequence[Any]) -> Iterator[list[int]]:
    """Places to keep: without halves first, then quarters, down to single ones; ends before beginnings."""
    count = len(items)
    part = count // 2
    while part >= 1:
        starts = list(range(0, count, part))
        for start in reversed(starts):
            kept = [i for i in range(count) if not start <= i < start + part]
            if kept:
                yield kept
        part //= 2


def renumbered(tokens: Any, place: dict[int, int]) -> Any:
    """Output tokens in a prompt, after requests changed their places."""
    if isinstance(tokens, dict) and "cat" in tokens:
        return {"cat": [renumbered(part, place) for part in tokens["cat"]]}
    if isinstance(tokens, dict):
        return tokens
    out = []
    for token in tokens:
        if token >= OUTPUT:
            was = token - OUTPUT
            token = OUTPUT + place[was] if was in place else FOREIGN + was
        out.append(token)
    return out


def shorter(tokens: Any) -> Iterator[Any]:
    """A token description with less in it."""
    if isinstance(tokens, dict) and "cat" in tokens:
        parts = tokens["cat"]
        for place, part in enumerate(parts):
            rest = parts[:place] + parts[place + 1 :]
            if rest:
                yield rest[0] if len(rest) == 1 else {"cat": rest}
            for cut in shorter(part):
                yield {"cat": [*parts[:place], cut, *parts[place + 1 :]]}
    elif isinstance(tokens, dict):
        first, end = tokens["range"]
        for length in sorted({(end - first) // 2, end - first - 1}):
            if 1 <= length < end - first:
                yield {"range": [first, first + length]}
    elif len(tokens) > 1:
        yield tokens[: len(tokens) // 2]
        if len(tokens) > 2:
            yield tokens[:-1]


def lower(number: int, step: int = 1, least: int = 0) -> Iterator[int]:
    """Smaller multiples of ``step``."""
    for value in (number // 2, number - step):
        value = value // step * step
        if least <= value < number:
            yield value


def mended(case: Case) -> Case | None:
    """The case without what its own operations no longer make sense of; None if nothing is left."""
    if case.get("requests") == [] or case.get("ops") == []:
        return None
    if "ops" in case:
        held: set[str] = set()
        ops = []
        for op in case["ops"]:
            if op["op"] == "lock":
                held.add(op["as"])
            elif op["op"] in ("unlock", "release_swa"):
                if op["as"] not in held:
                    continue
                if op["op"] == "unlock":
                    held.discard(op["as"])
            ops.append(op)
        return {**case, "ops": ops} if ops else None
    return case


# Settings whose absence (None) or plainest value makes a case easier to read.
PLAIN: dict[str, Any] = {
    "core": None,
    "enable_mixed_chunk": None,
    "eviction_interval": None,
    "need_sort": None,
    "is_eagle": False,
    "overlap": False,
    "disable_radix_cache": True,
    "chunked_prefill_size": None,
    "max_prefill_tokens": 16384,
    "max_running_requests": 8,
    "schedule_conservativeness": 1.0,
    "context_len": 512,
    "spec": None,
}
OPTIONAL = {"core", "enable_mixed_chunk", "eviction_interval", "need_sort", "spec"}


def fewer(case: Case) -> Iterator[Case]:
    """Without some of the requests or operations, the boldest first."""
    for key in ("requests", "ops"):
        items = case.get(key, [])
        for kept in without(items):
            out = {**case, key: [items[i] for i in kept]}
            if key == "requests":
                place = {was: now for now, was in enumerate(kept)}
                out[key] = [{**r, "tokens": renumbered(r["tokens"], place)} for r in out[key]]
            yield out


def plainer(case: Case) -> Iterator[Case]:
    """With one setting less, or at its plainest."""
    for key, plain in PLAIN.items():
        if key in case and case[key] != plain and case[key] is not None:
            if key in OPTIONAL:
                yield {k: v for k, v in case.items() if k != key and not (key == "spec" and k == "is_eagle")}
            else:
                yield {**case, key: plain}


def less(case: Case) -> Iterator[Case]:
    """With smaller pools and bounds."""
    page = case.get("page_size", 1)
    for key in ("size", "size_swa", "window", "chunked_prefill_size", "max_running_requests", "max_prefill_tokens"):
        whole = page if key in ("size", "size_swa", "chunked_prefill_size") else 1
        for value in lower(case.get(key) or 0, whole, whole):
            yield {**case, key: value}
    for value in lower(case.get("available_bytes", 0)):
        yield {**case, "available_bytes": value}


def slighter(case: Case) -> Iterator[Case]:
    """With less in one request or operation."""
    for key in ("requests", "ops"):
        items = case.get(key, [])
        for place, item in enumerate(items):
            for now in smaller_item(item):
                yield {**case, key: [*items[:place], now, *items[place + 1 :]]}


FAMILIES: tuple[Callable[[Case], Iterator[Case]], ...] = (fewer, plainer, slighter, less)


def smaller_item(item: Case) -> Iterator[Case]:
    """A request or an operation with less in it."""
    if "tokens" in item:
        for tokens in shorter(item["tokens"]):
            yield {**item, "tokens": tokens}
    for key in ("arrival_step", "max_new_tokens", "num_tokens", "swa_num_tokens", "n"):
        for value in lower(item.get(key) or 0, 1, 0 if key == "arrival_step" else 1):
            yield {**item, key: value}
    for key in ("ignore_eos", "swa_evicted", "checkpoint"):
        if key in item:
            yield {k: v for k, v in item.items() if k != key}
    if isinstance(item.get("accept"), list):  # without it, every verify accepts one
        yield {k: v for k, v in item.items() if k != "accept"}
    if isinstance(item.get("accept"), list) and item["accept"] != [1]:
        yield {**item, "accept": [1]}
        if len(item["accept"]) > 1:
            yield {**item, "accept": item["accept"][:1]}
    if isinstance(item.get("reqs"), dict):
        for name in item["reqs"]:
            if len(item["reqs"]) > 1:
                yield {**item, "reqs": {k: v for k, v in item["reqs"].items() if k != name}}
            for tokens in shorter(item["reqs"][name]):
                yield {**item, "reqs": {**item["reqs"], name: tokens}}


def shrink(
    case: Case,
    differs: Callable[[Case], bool],
    *,
    trials: int = 400,
    families: Sequence[Callable[[Case], Iterator[Case]]] = FAMILIES,
) -> tuple[Case, int]:
    """The smallest input found that still differs, and how many inputs were tried.

    Every kind of lessening in turn, again and again until none helps or the trials are used up. After one that helps,
    the next of its kind are tried from the same place on; those before it had not helped a moment ago.
    """
    tried, helped = 0, True
    seen = {json.dumps(case, sort_keys=True)}
    while helped:
        helped = False
        for family in families:
            place = 0
            while (found := next(islice(family(case), place, None), None)) is not None:
                candidate = mended(found)
                if candidate is None or size_of(candidate) >= size_of(case):
                    place += 1
                    continue
                name = json.dumps(candidate, sort_keys=True)
                if name in seen:
                    place += 1
                    continue
                if tried >= trials:
                    return case, tried
                seen.add(name)
                tried += 1
                if differs(candidate):
                    case, helped = candidate, True
                else:
                    place += 1
    return case, tried


# ------------------------------------------------------------------------------------------------- both sides
def path_of(got: Any, want: Any) -> list[str | int]:
    """Where the first difference is."""
    if isinstance(got, dict) and isinstance(want, dict):
        for key in [*want, *(k for k in got if k not in want)]:
            if key not in got or key not in want:
                return [key]
            if got[key] != want[key]:
                return [key, *path_of(got[key], want[key])]
    if isinstance(got, list) and isinstance(want, list):
        for place, (x, y) in enumerate(zip(got, want, strict=False)):
            if x != y:
                return [place, *path_of(x, y)]
        return [min(len(got), len(want))] if len(got) != len(want) else []
    return []


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Leaves of nested mappings by dotted path; lists stay whole."""
    if isinstance(value, dict) and value:
        out: dict[str, Any] = {}
        for key, item in value.items():
            out |= flat(item, f"{path}.{key}" if path else str(key))
        return out
    return {path or ".": value}


def shown(path: list[str | int]) -> str:
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path) or "."


def side_by_side(got: Any, want: Any, width: int = 60, before: int = 1) -> str:
    """Both sides around the first difference: that step whole, ``before`` steps ahead of it; ``*`` marks a difference."""
    path = path_of(got, want)
    lines = [f"first difference at {shown(path)}"]
    blocks: list[tuple[str, Any, Any]]
    if path[:1] == ["steps"] and len(path) > 1 and isinstance(path[1], int):
        first = max(0, path[1] - before)

        def step(side: Any, at: int) -> Any:
            return side["steps"][at] if at < len(side["steps"]) else {}

        blocks = [(f"step {at}", step(got, at), step(want, at)) for at in range(first, path[1] + 1)]
    else:
        blocks = [("result", _short(got), _short(want))]
    for title, left, right in blocks:
        lines.append(f"  {title:<28} {'simkv':<{width}} engine")
        a, b = flat(left), flat(right)
        for key in [*b, *(k for k in a if k not in b)]:
            x, y = (json.dumps(s[key]) if key in s else "-" for s in (a, b))
            mark = "*" if x != y else " "
            x, y = _around(x, y, width)
            lines.append(f"{mark} {key:<28} {x:<{width}} {y}".rstrip())
    return "\n".join(lines)


def _short(side: Any) -> Any:
    if isinstance(side, dict) and "steps" in side:
        return {**side, "steps": f"{len(side['steps'])} steps"}
    return side


def _around(x: str, y: str, width: int) -> tuple[str, str]:
    """Both texts cut to a width, around the place where they part."""
    if len(x) <= width and len(y) <= width:
        return x, y
    at = next((i for i, (p, q) in enumerate(zip(x, y, strict=False)) if p != q), min(len(x), len(y)))
    start = 0 if x == y else max(0, at - width // 3)

    def part(text: str) -> str:
        ahead = ".." if start else ""
        body = text[start : start + width - len(ahead)]
        if start + len(body) < len(text):
            body = body[:-2] + ".."
        return ahead + body

    return part(x), part(y)


def kind_of(difference: str) -> str:
    """What sort of difference a text tells of: an exception by its name, or values that differ."""
    found = re.match(r"([A-Za-z_.]+(Error|Exception|Fault)): ", difference)
    return found[1] if found else "values"
