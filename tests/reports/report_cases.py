"""Small models, scenarios and workloads that the tests of user reports share.

A test's number, R01 ... R73, is that of a public bug report whose right value was worked out by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import simkv
from simkv.engines.sglang.batch import Batch
from simkv.engines.sglang.scheduling import Scheduler
from simkv.engines.sglang.table import LIVE
from simkv.workload.request import Workload
from simkv.workload.tokens import private_tokens

GIB = 1 << 30
PLENTY = 1 << 45


def model(
    pattern: str = "FFFF", *, window: int | None = None, kv_heads: int = 1, head_dim: int = 64, **more: Any
) -> dict[str, Any]:
    """An inline config: one letter a layer, F full and S sliding.

    In bf16, so a token takes ``4 * kv_heads * head_dim`` bytes in a layer.
    """
    kinds = {"F": "full_attention", "S": "sliding_attention"}
    config: dict[str, Any] = {
        "architectures": ["AnyForCausalLM"],
        "num_hidden_layers": len(pattern),
        "layer_types": [kinds[letter] for letter in pattern],
        "num_attention_heads": kv_heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_size": kv_heads * head_dim,
        "max_position_embeddings": 1 << 22,
        "torch_dtype": "bfloat16",
    }
    if window is not None:
        config["sliding_window"] = window
    return config | more


def dense(**memory: Any) -> dict[str, Any]:
    """A scenario of a model whose layers are all full, with the prefix cache off."""
    memory = {"kv_bytes": PLENTY, "disable_radix_cache": True, "chunked_prefill_size": 8192} | memory
    return {"model": {"config": model("FF")}, "memory": memory}


def hybrid(window: int, **memory: Any) -> dict[str, Any]:
    """A scenario of a model with one full and one sliding layer, with the prefix cache off.

    ``window`` is the one the cache keeps: earlier tokens besides the new one.
    """
    memory = {"kv_bytes": PLENTY, "disable_radix_cache": True, "chunked_prefill_size": 8192} | memory
    return {
        "model": {"config": model("FS", window=window), "hybrid_swa": True, "cache_window": window},
        "memory": memory,
    }


def requests(
    lengths: Sequence[tuple[int, int]],
    *,
    arrival_s: Sequence[float] | None = None,
    accept: Sequence[Sequence[int]] | None = None,
    ignore_eos: bool = False,
    concurrency: int | None = None,
) -> Workload:
    """Requests of (prompt, outputs) tokens, all at t=0 unless said otherwise."""
    times = arrival_s if arrival_s is not None else [0.0] * len(lengths)
    return Workload(
        arrival_ns=np.array([round(t * 1e9) for t in times], np.int64),
        input_tokens=np.array([given for given, _ in lengths], np.int64),
        output_tokens=np.array([made for _, made in lengths], np.int64),
        request_id=tuple(f"r{i}" for i in range(len(lengths))),
        ignore_eos=ignore_eos,
        accept=None if accept is None else tuple(np.array(row, np.int64) for row in accept),
        concurrency=concurrency,
    )


def run(scenario: dict[str, Any], lengths: Sequence[tuple[int, int]], **more: Any) -> simkv.Run:
    """Simulate requests of (prompt, outputs) tokens, with every pool checked at every step."""
    return simkv.simulate(scenario, workload=requests(lengths, **more), check_every=1)


def with_draft(scenario: dict[str, Any], algorithm: str, *, accept: int = 1, **draft: Any) -> dict[str, Any]:
    """The scenario with a one-layer full-attention draft of its own, and a fixed accepted length."""
    draft = {"algorithm": algorithm, "config": model("F")} | draft
    return scenario | {"draft": draft, "acceptance": {"kind": "fixed", "length": accept}}


def prefills(result: simkv.Run) -> list[int]:
    """Prompt tokens of every prefill step, in order."""
    rows = result.timeline
    return [int(tokens) for tokens in rows.loc[rows["kind"] == "prefill", "prefill_tokens"]]


def peak_tokens(result: simkv.Run, pool: str) -> int:
    """Most tokens in use in a pool at any time."""
    return int(result.timeline[f"{pool}_uncached_tokens"].max())


def decoding(engine: Scheduler, held: Sequence[tuple[int, int, int]]) -> list[int]:
    """Put requests of (prompt, outputs so far, max_new_tokens) into an empty engine as its running batch.

    Their newest output is not stored yet, as always: ``prompt + outputs - 1`` tokens are.
    """
    handles = []
    for number, (given, made, wanted) in enumerate(held):
        handle = engine.table.add(given, wanted, wanted, ignore_eos=False, to_abort=False)
        stored = given + made - 1
        table, one = engine.table, np.array([handle])
        engine.memory.add(private_tokens(handle))
        engine.memory.open_rows(one)
        engine.memory.grow(one, 0 * one, 0 * one + stored, -(-stored // engine.page) * engine.page, "prefill")
        table.allocated[handle] = table.committed[handle] = stored
        table.output[handle], table.status[handle] = made, LIVE
        engine.journal.names.append(f"r{number}")
        handles.append(handle)
    engine.running = Batch(np.array(handles, np.int64))
    engine.memory.check()
    return handles
