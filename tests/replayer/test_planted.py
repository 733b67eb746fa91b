"""Faults planted in a log or its plan, each found by the check that is made for it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from replay_cases import (
    Row,
    cached_prefixes,
    edited,
    find,
    mismatch,
    mtp,
    planned,
    recorded,
    recounted,
    rows_of,
    server,
    sharing,
)
from report_cases import model, requests

import simkv
from simkv.engines.sglang.memory import KvMemory
from simkv.replayer.slots import TorchSlots

TWO = [(10, 8), (6, 3)]
LITTLE: dict[str, Any] = {"page_size": 1, "chunked_prefill_size": 8, "max_running_requests": 4, "swa_eviction_interval": 2}


@cache
def windowed(page: int = 1) -> simkv.Run:
    """Two requests, a window of four tokens, and so much room that no slot is used twice."""
    scenario = server(model("FS", window=4, head_dim=4), 100, memory=LITTLE | {"page_size": page})
    return recorded(scenario, requests(TWO))


@cache
def dense() -> simkv.Run:
    """Two requests of a model that keeps everything."""
    return recorded(server(model("F", head_dim=4), 100, memory=LITTLE), requests(TWO))


@cache
def cached(*, pattern: str = "FS") -> simkv.Run:
    """Three prompts one after the other; the first two begin alike, the third needs room.

    The first leaves its last five tokens on the sliding side; the second computes the nine it shares again, as their
    sliding halves are gone, and its own go where the cache lacks them; for the third, 24 tokens, some must go.
    """
    config = model(pattern, window=4 if "S" in pattern else None, head_dim=4)
    memory = LITTLE | {"chunked_prefill_size": 64, "disable_radix_cache": False, "swa_full_tokens_ratio": 0.5}
    made = requests([(20, 2), (12, 2), (24, 2)], arrival_s=[0, 0.1, 0.2])
    scenario = server(config, 60 if "S" in pattern else 40, memory=memory)
    return recorded(scenario, sharing(made, [(1000, 20), (1000, 9), (5000, 24)]))


def without(run: simkv.Run, rows: list[Row], number: int, *, recount: bool = True) -> simkv.Run:
    """The run without a row, as if its author had never done it."""
    left = rows[:number] + rows[number + 1 :]
    return edited(run, recounted(run, left) if recount else left)


@pytest.mark.parametrize("run", [windowed, dense, cached, cached_prefixes])
def test_an_edit_that_changes_nothing_is_none(run: Any) -> None:
    rows = rows_of(run())
    simkv.replay(edited(run(), recounted(run(), rows)), device="cpu", layers=1)


# Frees -------------------------------------------------------------------------------------------------------------
def test_a_double_free() -> None:
    run, rows = dense(), rows_of(dense())
    # The shorter one ends first: slots 9 and 10 are the longer one's.
    at = find(rows, "free", request=1)
    assert rows[at]["slots"][0] == 11
    mismatch(
        edited(run, recounted(run, [*rows[: at + 1], rows[at] | {"call": rows[at]["call"]}, *rows[at + 1 :]])),
        "slot 11 is freed twice",
    )
    again = [row | {"call": row["call"] + (number > at)} for number, row in enumerate(rows)]
    again.insert(at + 1, rows[at] | {"call": rows[at]["call"] + 1})
    mismatch(
        edited(run, recounted(run, again)),
        "slot 11 is freed twice",
        "the last operations on slot 11:",
        "allocate (prefill), request 'r1' tokens [0, 6)",
        "at step 3: free (finish), request 'r1' tokens [0, 8)",
        f"row {at + 1} of the log",
    )


def test_slots_that_are_freed_while_somebody_reads_them() -> None:
    run, rows = dense(), rows_of(dense())
    at = find(rows, "compute", request=0, begin=11)
    loss = rows[find(rows, "free", request=0)] | {"slots": [3], "begin": 2, "end": 3, "cause": "abort"}
    mismatch(
        edited(run, recounted(run, renumbered([*rows[:at], loss, *rows[at:]]))),
        "target full pool, layer 0, K: request 'r0' reads token 2 from slot 3",
        "expected: request 'r0' token 2",
        "found:    freed memory (step 3: free (abort), request 'r0' tokens [2, 3))",
        "the last operations on slot 3:",
        "at step 3: compute (decode), request 'r0' tokens [11, 12)",
    )


def renumbered(rows: list[Row]) -> list[Row]:
    """Rows whose calls are numbered anew, after a row that is a call of its own was put in."""
    out: list[Row] = []
    for number, row in enumerate(rows):
        before = rows[number - 1] if number else row
        same = (before["call"], before["operation"]) == (row["call"], row["operation"])
        out.append(row | {"call": out[-1]["call"] + (not same) if out else 0})
    return out
