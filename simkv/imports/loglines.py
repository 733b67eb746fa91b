"""Lines of a SGLang server's log: stamps, ranks, batches, events, sizes, arguments.

Formats are those of 0.5.23 (``managers/scheduler_components/metrics_reporter.py:759-800, 958-1044``,
``pool_stats_observer.py:99-143``, ``managers/scheduler.py:1266-1276, 4525-4537``, ``mem_cache/memory_pool.py:2073-2099``,
``model_executor/pool_configurator.py:869-891``, ``model_executor/model_runner.py:1273-1379``); what older releases wrote
otherwise is read as well.
"""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

__all__ = [
    "ANSI",
    "BATCH",
    "EVENTS",
    "NEEDED",
    "Line",
    "event_of",
    "pairs_of",
    "rank_of",
    "shown",
    "split_lines",
    "split_starts",
    "startup_of",
]

ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_LINE = re.compile(
    r"\[(?P<when>(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d)(?:[.,](?P<ms>\d{1,6}))?(?P<rank>(?: [A-Z_]+\d+)*)\] ?(?P<text>.*)"
)
BATCH = re.compile(r"(?P<kind>Decode|Prefill) batch(?: ?\[\d+\])?[.,] ?(?P<pairs>.*)")
_SIZES = re.compile(r"max_total_num_tokens=\d+")
_FACTS = re.compile(r"(\w+)=(-?\d+(?:\.\d+)?)(?: GB)?")
_RETRACTION = re.compile(r"(?:KV cache pool is full\. Retract requests|Decode out of memory happened)\.(?P<pairs>.*)")
_POOL = re.compile(
    r"(?:(?P<label>.*?) )?KV Cache is allocated\.(?: dtype: (?P<dtype>[\w.]+),)? #tokens: (?P<tokens>\d+), "
    r"(?:K size: (?P<k>[\d.]+) GB, V size: (?P<v>[\d.]+) GB|KV size: (?P<kv>[\d.]+) GB)"
)
_SPLIT = re.compile(r"full_layer_tokens=(?P<full>\d+), swa_layer_tokens=(?P<swa>\d+)")
_ALL_SWA = re.compile(r"\(all SWA\)\. swa_layer_tokens=(?P<swa>\d+)")
_SWA_POOL = re.compile(r"SWAKVPool mem usage: (?P<gb>[\d.]+) GB, swa size: (?P<swa>\d+), full size: (?P<full>\d+)")
_BEGIN = re.compile(r"Load weight begin\. avail mem=(?P<gb>[\d.]+) GB")
_END = re.compile(r"Load weight end\..*?mem usage=(?P<gb>[\d.]+) GB")
_TROUBLE = (
    ("out of memory", re.compile(r"out of memory|OutOfMemoryError", re.IGNORECASE)),
    ("exception", re.compile(r"hit an exception|^Traceback \(most recent call last\)")),
)

# What a batch line calls it -> simkv's and SGLang's metric name.
_NAMES = {
    "#running-req": "num_running_reqs",
    "#queue-req": "num_queue_reqs",
    "#new-seq": "num_new_seqs",
    "#new-token": "prefill_tokens",
    "#cached-token": "hit_tokens",
    "#pending-token": "pending_tokens",
    "#replay-token": "replay_tokens",
    "#token": "full_used_tokens",
    "#full token": "full_used_tokens",
    "#swa token": "swa_used_tokens",
    "token usage": "full_token_usage",
    "full token usage": "full_token_usage",
    "swa token usage": "swa_token_usage",
    "accept len": "spec_accept_length",
    "accept rate": "spec_accept_rate",
    "gen throughput (token/s)": "gen_throughput",
    "input throughput (token/s)": "input_throughput",
    "cache hit rate": "cache_hit_rate",
    "#retracted-req": "num_retracted_reqs",
}
NEEDED = {"num_running_reqs", "full_token_usage"}
_COUNTS = {
    "num_running_reqs",
    "num_queue_reqs",
    "num_new_seqs",
    "prefill_tokens",
    "hit_tokens",
    "pending_tokens",
    "replay_tokens",
    "full_used_tokens",
    "swa_used_tokens",
    "num_retracted_reqs",
}
EVENTS = ("time_s", "event", "num_retracted_reqs", "new_tokens_gained", "ratio_before", "ratio_after", "text")


class Line(NamedTuple):
    """One line: seconds since the first, the rank that wrote it, and what it says."""

    time_s: float
    rank: str
    text: str


def split_lines(text: str) -> Iterator[Line]:
    """Lines with seconds since the first stamped one; a line without a stamp belongs to the one before it."""
    zero = None
    now, rank, days = 0.0, "", 0.0
    for raw in text.splitlines():
        match = _LINE.search(raw)
        if match is None:
            yield Line(now, rank, raw)
            continue
        seconds = _seconds(match["when"], match["ms"])
        if seconds is not None:
            if len(match["when"]) == 8 and zero is not None and seconds + days < zero + now - 43200:
                days += 86400  # a clock without dates has passed midnight
            zero = seconds if zero is None else zero
            now = max(now, seconds + days - zero)  # a clock that was set back stands still
        rank = match["rank"].strip()
        yield Line(now, rank, match["text"])


def _seconds(when: str, fraction: str | None) -> float | None:
    try:
        stamp = datetime.fromisoformat(when if len(when) > 8 else f"2000-01-01 {when}")
    except ValueError:
        return None
    return (stamp - datetime(1970, 1, 1)).total_seconds() + (float(f"0.{fraction}") if fraction else 0.0)


def split_starts(lines: Sequence[Line]) -> list[tuple[int, int]]:
    """Where each start of a server begins and ends: at its arguments, or else where sizes come after batches."""
    told = [n for n, line in enumerate(lines) if line.text.startswith("server_args=")]
    if not told:
        batch = 0
        for n, line in enumerate(lines):
            if BATCH.match(line.text):
                batch = n + 1
                told = told or [0]
            elif _SIZES.search(line.text) and (not told or told[-1] != batch):
                told.append(batch if told else 0)
    else:
        early = any(BATCH.match(line.text) for line in lines[: told[0]])
        told = [0, *told] if early else told
    ends = [*told[1:], len(lines)] if told else []
    return list(zip(told, ends, strict=True))


def rank_of(lines: Sequence[Line]) -> tuple[str, set[str]]:
    """The rank whose batches are read: the first by name of those that tell batches, or else sizes."""
    told: Counter[str] = Counter(line.rank for line in lines if BATCH.match(line.text))
    if not told:
        told = Counter(line.rank for line in lines if _SIZES.search(line.text))
    return (min(told, key=_natural) if told else ""), set(told)


def _natural(name: str) -> list[Any]:
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def pairs_of(text: str) -> dict[str, Any]:
    """Names and values of a batch line; what is no number or yes and no is left out."""
    found: dict[str, Any] = {}
    for part in text.split(","):
        name, colon, value = part.strip().rpartition(": ")
        if not colon:
            continue
        key = _NAMES.get(name) or re.sub(r"\W+", "_", name).strip("_").lower()
        read = _value(value)
        if read is not None and (key not in _COUNTS or float(read).is_integer()):
            found[key] = int(read) if key in _COUNTS else read
    return found


def _value(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    match = re.fullmatch(r"(-?\d+(?:\.\d*)?)(%?)", text)
    return None if match is None else float(match[1]) / (100 if match[2] else 1)


def event_of(line: Line, when: float, before: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """What a line tells besides batches: nothing, or one event."""
    blank = dict.fromkeys(EVENTS, math.nan)
    if match := _RETRACTION.match(line.text):
        facts = dict(re.findall(r"#(\w+): ([\d.]+(?: -> [\d.]+)?)", match["pairs"]))
        old, _, new = facts.get("new_token_ratio", "").partition(" -> ")
        yield blank | {
            "time_s": when,
            "event": "retraction",
            "num_retracted_reqs": _number(facts.get("retracted_reqs")),
            "new_tokens_gained": _number(facts.get("new_tokens_gained")),
            "ratio_before": _number(old),
            "ratio_after": _number(new),
            "text": line.text,
        }
        return
    for event, pattern in _TROUBLE:
        if pattern.search(line.text):
            # One trouble, several lines: it is told once.
            same = before and before[-1]["event"] == event and before[-1]["time_s"] == when
            if not same:
                yield blank | {"time_s": when, "event": event, "text": line.text[:300]}
            return


def _number(text: str | None) -> float:
    try:
        return float(text) if text else math.nan
    except ValueError:
        return math.nan


def startup_of(lines: Sequence[Line], rank: str, notes: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sizes and arguments."""
    found: dict[str, Any] = {}
    args: dict[str, Any] = {}
    pools: list[dict[str, Any]] = []
    loads: list[float] = []
    for line in lines:
        text = line.text
        if text.startswith("server_args="):
            args = _arguments(text.partition("=")[2])
            if not args:
                notes.append("server_args= is there and cannot be read")
        elif line.rank not in (rank, "") or " batch" in text:
            continue
        elif _SIZES.search(text):
            found |= {key: _whole(value) for key, value in _FACTS.findall(text)}
        elif "KV Cache is allocated." in text and (match := _POOL.search(text)):
            pools.append(_pool(match))
        elif match := _SPLIT.search(text):
            found.setdefault("full_max_total_num_tokens", int(match["full"]))
            found.setdefault("swa_max_total_num_tokens", int(match["swa"]))
        elif match := _ALL_SWA.search(text):
            found |= {"full_max_total_num_tokens": 0, "swa_max_total_num_tokens": int(match["swa"])}
        elif match := _SWA_POOL.search(text):
            found.setdefault("full_max_total_num_tokens", int(match["full"]))
            found.setdefault("swa_max_total_num_tokens", int(match["swa"]))
        elif match := _BEGIN.search(text):
            found.setdefault("load_begin", float(match["gb"]))
        elif match := _END.search(text):
            loads.append(float(match["gb"]))
    if loads:
        found["weights"] = loads[0]
    if len(loads) > 1:
        found["draft_weights"] = round(sum(loads[1:]), 2)
    if pools:
        found["pools"] = pools
    return found, args


def _whole(text: str) -> int | float:
    return float(text) if "." in text else int(text)


def _pool(match: re.Match[str]) -> dict[str, Any]:
    parts = [match["kv"]] if match["kv"] is not None else [match["k"], match["v"]]
    return {
        "label": match["label"] or "",
        "dtype": (match["dtype"] or "").removeprefix("torch."),
        "tokens": int(match["tokens"]),
        "gib": round(sum(map(float, parts)), 2),
        # Each printed figure is rounded to 0.01.
        "rounding": 0.005 * len(parts),
    }


def _arguments(text: str) -> dict[str, Any]:
    """Arguments from ``{'a': 1}`` or ``ServerArgs(a=1)``; a value that is no plain one is left out."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        # Cut off, or with values that are no Python: what can be told one by one.
        pairs = re.findall(r"(?:'(\w+)': |\b(\w+)=)('(?:[^'\\]|\\.)*'|-?[\d.]+|True|False|None)", text)
        return {a or b: ast.literal_eval(value) for a, b, value in pairs if _literal(value) is not _NOTHING}
    if isinstance(tree, ast.Call):
        items = [(one.arg, one.value) for one in tree.keywords if one.arg is not None]
    elif isinstance(tree, ast.Dict):
        items = [(str(k.value), v) for k, v in zip(tree.keys, tree.values, strict=True) if isinstance(k, ast.Constant)]
    else:
        return {}
    read = {name: _literal(value) for name, value in items}
    return {name: value for name, value in read.items() if value is not _NOTHING}


_NOTHING = object()


def _literal(node: Any) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, SyntaxError, TypeError):
        return _NOTHING


def shown(text: str) -> str:
    """A line that may be anything, short and printable."""
    plain = text if text.isprintable() else repr(text)
    return plain if len(plain) <= 80 else plain[:77] + "..."
