"""Small recorded runs whose logs can be edited as rows, and figures of a log counted one row at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from report_cases import PLENTY, model, requests

import simkv
from simkv.errors import ReplayMismatch
from simkv.workload.request import Workload
from simkv.workload.tokens import Contents

Row = dict[str, Any]

# These tensors are too small to be shared among threads, which only wait for each other where cores are taken.
torch.set_num_threads(1)


# Runs --------------------------------------------------------------------------------------------------------------
def server(config: dict[str, Any], tokens: int, **sections: Any) -> dict[str, Any]:
    """A scenario with a full pool of so many tokens; sliding layers get an SWA pool with the window of the config."""
    window = config.get("sliding_window")
    split = {} if window is None else {"hybrid_swa": True, "cache_window": window}
    memory = {
        "kv_bytes": PLENTY,
        "max_total_tokens": tokens,
        "disable_radix_cache": True,
        "disable_overlap_schedule": True,
        **sections.pop("memory", {}),
    }
    model_section = {"config": config, **split}
    return {"model": model_section, "memory": memory, "steptime": {"kind": "constant", "ms": 10}} | sections


def recorded(scenario: dict[str, Any], workload: Workload) -> simkv.Run:
    """Simulate with every pool checked at every step, and the log written."""
    return simkv.simulate(scenario, workload=workload, check_every=1, record_allocations=True)


def lengths(seed: int, count: int, longest: int, answers: int) -> list[tuple[int, int]]:
    """Random (prompt, outputs) tokens."""
    rng = np.random.default_rng(seed)
    prompts, outputs = rng.integers(5, longest, count), rng.integers(1, answers, count)
    return list(zip(prompts.tolist(), outputs.tolist(), strict=True))


def sharing(workload: Workload, prefixes: Sequence[tuple[int, int]]) -> Workload:
    """Prompts that begin with the given runs (first token, length); the rest of each is its own."""
    starts, sizes = (np.array(column, np.int64) for column in zip(*prefixes, strict=True))
    return replace(workload, contents=Contents(starts, sizes, np.arange(len(workload) + 1)))


@cache
def mtp() -> simkv.Run:
    """MTP heads of which two slide in rings of their own and one is full, beside a target of both kinds.

    Pages of 8, prompts in chunks of 64, wide and narrow geometries, results that come a step late.
    """
    config = model("FSSF", window=24, kv_heads=2, head_dim=8)
    config |= {"swa_num_key_value_heads": 1, "swa_head_dim": 16, "num_nextn_predict_layers": 3}
    config |= {"mtp_local_layer_ids": [0, 2]}
    scenario = server(
        config,
        1200,
        draft={
            "algorithm": "EAGLE",
            "num_steps": 3,
            "enable_multi_layer_eagle": True,
            "swa_attention_layer_ids": [0, 2],
            "full_attention_layer_ids": [1],
        },
        memory={
            "page_size": 8,
            "chunked_prefill_size": 64,
            "max_running_requests": 6,
            "swa_eviction_interval": 16,
            "disable_overlap_schedule": False,
        },
        policies={"routing": "generalized"},
        acceptance={"kind": "geometric", "alpha": 0.6},
    )
    return recorded(scenario, requests(lengths(1, 24, 200, 40)))


@cache
def draft_trees() -> simkv.Run:
    """EAGLE with trees of four branches, a narrow draft model of its own, pages of 16, and too little memory."""
    scenario = server(
        model("FF", kv_heads=2, head_dim=8),
        1200,
        draft={
            "algorithm": "EAGLE",
            "num_steps": 3,
            "eagle_topk": 4,
            "num_draft_tokens": 8,
            "config": model("F", kv_heads=1, head_dim=4),
        },
        memory={"page_size": 16, "chunked_prefill_size": 96, "max_running_requests": 6},
        acceptance={"kind": "geometric", "alpha": 0.5},
    )
    return recorded(scenario, requests(lengths(1, 16, 150, 50)))


@cache
def cached_prefixes() -> simkv.Run:
    """Prompts with four beginnings, a prefix cache of a full and a sliding side, and too little memory for either."""
    scenario = server(
        model("FSS", window=16, kv_heads=1, head_dim=8),
        400,
        memory={
            "page_size": 4,
            "chunked_prefill_size": 64,
            "max_running_requests": 8,
            "disable_radix_cache": False,
            "swa_full_tokens_ratio": 0.5,
            "swa_eviction_interval": 8,
            "disable_overlap_schedule": False,
        },
        policies={"schedule_conservativeness": 0.05},
    )
    rng = np.random.default_rng(1)
    sizes = [
        (int(given), int(made)) for given, made in zip(rng.integers(30, 110, 40), rng.integers(1, 60, 40), strict=True)
    ]
    begin = [
        (1000 * int(which), min(given, int(size)))
        for (given, _), which, size in zip(sizes, rng.integers(4, size=40), rng.integers(10, 80, 40), strict=True)
    ]
    return recorded(scenario, sharing(requests(sizes, arrival_s=[0.03 * i for i in range(40)]), begin))


@cache
def only_sliding() -> simkv.Run:
    """A model whose layers all slide: one pool, whose slots go from one request's window to another request."""
    scenario = server(
        model("SS", window=8, head_dim=4), 60, memory={"max_running_requests": 4, "swa_eviction_interval": 4}
    )
    return recorded(scenario, requests(lengths(1, 12, 40, 30)))


# Logs --------------------------------------------------------------------------------------------------------------
def rows_of(run: simkv.Run) -> list[Row]:
    """The log, a dictionary a row."""
    assert run.allocations is not None
    rows: list[Row] = run.allocations.to_pylist()
    return rows


def renumbered(rows: Sequence[Row]) -> list[Row]:
    """The rows with their calls counted anew; a row without a call is one of its own."""
    out: list[Row] = []
    before: Row | None = None
    for row in rows:
        same = before is not None and row["call"] is not None and row["call"] == before["call"]
        out.append(row | {"call": out[-1]["call"] + (not same) if out else 0})
        before = row
    return out


def edited(run: simkv.Run, rows: Sequence[Row]) -> simkv.Run:
    """The run with another log, which claims to be whole."""
    assert run.allocations is not None
    table = pa.Table.from_pylist(list(rows), schema=run.allocations.schema)
    return replace(run, allocations=table, allocation_rows=len(rows))


def planned(run: simkv.Run, worker: str, pool: str, **changes: Any) -> simkv.Run:
    """The run with other figures for one pool of its plan."""
    pools = [one | changes if (one["worker"], one["pool"]) == (worker, pool) else one for one in run.plan["pools"]]
    assert pools != run.plan["pools"]
    return replace(run, plan=run.plan | {"pools": pools})


def find(rows: Sequence[Row], operation: str, nth: int = 0, **where: Any) -> int:
    """Number of the nth row of an operation whose columns are as said."""
    wanted = {"operation": operation, **where}
    found = [number for number, row in enumerate(rows) if all(row[key] == value for key, value in wanted.items())]
    return found[nth]


def pages(tokens: int, page: int) -> int:
    """Tokens of the pages that so many take."""
    return -(-tokens // page) * page


def capacities(plan: dict[str, Any]) -> tuple[int, int]:
    """Tokens of the full and of the SWA pool in whole pages, -1 for none."""
    full, swa = plan["full_max_total_num_tokens"], plan["swa_max_total_num_tokens"]
    if full is None and swa is None:
        full = plan["max_total_num_tokens"]
    page = plan["page_size"]
    return -1 if not full else full // page * page, -1 if swa is None else swa // page * page


def planted(run: simkv.Run, rows: Sequence[Row]) -> simkv.Run:
    """The run with another log, whose numbers and counts agree with its rows: whatever is wrong is what they do."""
    return edited(run, recounted(run, renumbered(rows)))


def recounted(run: simkv.Run, rows: Sequence[Row]) -> list[Row]:
    """The rows with what is free after each call counted from what the rows take and give back."""
    page = run.plan["page_size"]
    full, swa = capacities(run.plan)
    has_full, has_swa = full >= 0, swa >= 0
    out: list[Row] = []
    for _, call in groupby(rows, key=lambda row: row["call"]):
        together = list(call)
        for row in together:
            taken = pages(row["end"], page) - pages(row["begin"], page) if row["operation"] == "allocate" else 0
            given = pages(len(row["slots"]), page)
            full += has_full * (given * (row["operation"] in ("free", "free_full")) - taken)
            swa += has_swa * (given * (row["operation"] in ("free", "free_swa")) - taken)
        out += [row | {"full_available": full, "swa_available": swa} for row in together]
    return out


def reads(rows: Sequence[Row], window: int | None) -> int:
    """Tokens that the attention of all steps reads in one layer: everything, or a window, and what the step wrote."""
    total = 0
    for row in rows:
        if row["operation"] == "compute":
            earlier = row["begin"] if window is None else min(row["begin"], window)
            total += earlier + row["end"] - row["begin"]
    return total


def tensors(pool: dict[str, Any]) -> int:
    """K and V of every layer."""
    count: int = pool["layers"] * (1 + (pool["v_head_dim"] > 0))
    return count


def held_pages(run: simkv.Run, rows: Sequence[Row]) -> int:
    """Tokens of the pages that all requests took while they had a row, without a prefix cache."""
    total, longest = 0, {}
    for row in rows:
        if row["operation"] == "allocate":
            longest[row["request"]] = max(longest.get(row["request"], 0), row["end"])
        elif row["operation"] == "close":
            total += pages(longest.pop(row["request"], 0), run.plan["page_size"])
    return total


def mismatch(run: simkv.Run, *said: str, layers: str | int = "all") -> None:
    """The replay refuses the run, and its message has all of these texts."""
    with pytest.raises(ReplayMismatch) as caught:
        simkv.replay(run, device="cpu", layers=layers)
    message = str(caught.value)
    assert [text for text in said if text not in message] == [], message


def pool_plan(
    worker: str,
    pool: str,
    rows: int,
    *,
    window: int | None = None,
    mapping: str = "none",
    heads: int = 1,
    width: int = 4,
) -> dict[str, Any]:
    """One pool of a plan, with one layer in bf16."""
    shape = {"kv_heads": heads, "head_dim": width, "v_head_dim": width, "dtype": "bfloat16"}
    facts = {"worker": worker, "pool": pool, "layers": 1, "rows": rows, "mapping": mapping, "window": window}
    per_token = 4 * heads * width
    return facts | shape | {"bytes_per_token": per_token, "bytes": rows * per_token}


def bare_run(plan: dict[str, Any], table: pa.Table, names: Sequence[str], *, whole: bool) -> simkv.Run:
    """A run of which nothing is known but what a replay looks at."""
    nothing = pd.DataFrame()
    return simkv.Run(
        scenario={"name": "bare"},
        plan=plan,
        timeline=nothing,
        requests=pd.DataFrame({"request_id": list(names)}),
        events=nothing,
        summary=pd.Series(dtype=object),
        checks=(),
        provenance={},
        workload={},
        partial=not whole,
        allocations=table,
        allocation_rows=table.num_rows,
    )
