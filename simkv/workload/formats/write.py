"""Writers: the plain forms hold a whole workload, the public ones what their columns can."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from simkv.workload.formats.cells import UNITS
from simkv.workload.formats.contents import ANSWER, LENGTHS, STARTS
from simkv.workload.request import IntArray, Workload

__all__ = ["WRITERS", "decimal_text", "lost"]


def decimal_text(ns: int, unit: str) -> str:
    """Exact decimal number of `ns` nanoseconds in `unit`."""
    digits = UNITS[unit]
    whole, rest = divmod(ns, 10**digits)
    return f"{whole}.{rest:0{digits}d}".rstrip("0").rstrip(".") if rest else str(whole)


def _columns(workload: Workload) -> dict[str, Iterable[Any]]:
    """Columns of the plain form: those the workload has."""
    n = len(workload)
    columns: dict[str, Iterable[Any]] = {
        "request_id": workload.request_id,
        "arrival_ns": workload.arrival_ns.tolist(),
        "input_tokens": workload.input_tokens.tolist(),
        "output_tokens": workload.output_tokens.tolist(),
    }
    if workload.max_new_tokens is not None:
        columns["max_new_tokens"] = workload.max_new_tokens.tolist()
    if workload.session is not None:
        columns["session"] = workload.session.tolist()
    if workload.accept is not None:
        columns["accept"] = (part.tolist() for part in workload.accept)
    if workload.previous is not None:
        names = (*workload.request_id, "")  # -1 is the last
        columns["previous"] = [names[row] for row in workload.previous.tolist()]
    if workload.think_ns is not None:
        columns["think_ns"] = workload.think_ns.tolist()
    if workload.concurrency is not None:
        columns["concurrency"] = [workload.concurrency] * n
    if workload.ignore_eos:
        columns["ignore_eos"] = [1] * n
    if workload.blocks is not None:
        columns["block_size"] = [workload.blocks.block_size] * n
        columns["block_ids"] = _lists(workload.blocks.ids, workload.blocks.offsets)
    if workload.contents is not None:
        contents = workload.contents
        columns[STARTS] = _lists(contents.starts, contents.offsets)
        columns[LENGTHS] = _lists(contents.lengths, contents.offsets)
        if contents.outputs is not None:
            columns[ANSWER] = contents.outputs.tolist()
    return columns


def _lists(flat: IntArray, offsets: IntArray) -> Iterator[list[int]]:
    for start, end in pairwise(offsets.tolist()):
        yield flat[start:end].tolist()


def _csv(workload: Workload) -> Iterator[str]:
    columns = _columns(workload)
    yield ",".join(columns)
    for row in zip(*columns.values(), strict=True):
        yield ",".join(map(_csv_cell, row))


def _csv_cell(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    text = str(value)
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\r\n') else text


def _jsonl(workload: Workload) -> Iterator[str]:
    columns = _columns(workload)
    for row in zip(*columns.values(), strict=True):
        yield json.dumps(dict(zip(columns, row, strict=True)), separators=(",", ":"))


def _mooncake(workload: Workload) -> Iterator[str]:
    lengths = zip(
        workload.arrival_ns.tolist(), workload.input_tokens.tolist(), workload.output_tokens.tolist(), strict=True
    )
    blocked = workload.blocks
    lists = iter([None] * len(workload)) if blocked is None else _lists(blocked.ids, blocked.offsets)
    for (arrival, given, made), blocks in zip(lengths, lists, strict=True):
        ids = "" if blocks is None else f', "hash_ids": {json.dumps(blocks)}'
        stamp = decimal_text(arrival, "ms")
        yield f'{{"timestamp": {stamp}, "input_length": {given}, "output_length": {made}{ids}}}'


def _vidur(workload: Workload) -> Iterator[str]:
    yield "arrived_at,num_prefill_tokens,num_decode_tokens"
    columns = (workload.arrival_ns.tolist(), workload.input_tokens.tolist(), workload.output_tokens.tolist())
    for arrival, given, made in zip(*columns, strict=True):
        yield f"{decimal_text(arrival, 's')},{given},{made}"


WRITERS: Mapping[str, Callable[[Workload], Iterator[str]]] = {
    "csv": _csv,
    "jsonl": _jsonl,
    "mooncake": _mooncake,
    "vidur": _vidur,
}
"""Lines of a file by format name."""

_HOLDS = {"mooncake": {"block_ids", "block_size"}, "vidur": set[str]()}


def lost(workload: Workload, name: str) -> tuple[str, ...]:
    """Columns of the workload that the format cannot hold."""
    if name not in _HOLDS:
        return ()
    always = {"arrival_ns", "input_tokens", "output_tokens"}
    numbered = tuple(map(str, range(len(workload))))
    spare = {"request_id"} if workload.request_id == numbered else set()
    return tuple(column for column in _columns(workload) if column not in always | spare | _HOLDS[name])
