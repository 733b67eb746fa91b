"""Models whose bytes are followed by hand, and scenarios and workloads of the smallest one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import simkv
from simkv.workload.request import Workload

# One layer, one KV head of 64: 2 * 64 * 2 B = 256 B a token.
TINY: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 1,
    "hidden_size": 64,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": 1000,
    "intermediate_size": 64,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
EAGLE: dict[str, Any] = {"algorithm": "EAGLE", "num_steps": 3, "num_layers": 0}

# 12 full layers of 8 heads and 36 sliding ones of 4, width 128, bf16: 4096 and 2048 B a token and layer.
EXAMPLE: dict[str, Any] = {
    "num_hidden_layers": 48,
    "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 1024,
    "swa_num_key_value_heads": 4,
    "sliding_window": 128,
    "is_hybrid_swa": True,
    "max_position_embeddings": 131072,
    "num_nextn_predict_layers": 3,
}


def scenario(*, tokens: int = 1000, overlap: bool = False, **sections: Any) -> simkv.Scenario:
    """A scenario of the model with a pool of so many tokens and steps of 10 ms."""
    memory = {
        "kv_bytes": 256 * tokens,
        "max_running_requests": 8,
        "chunked_prefill_size": 512,
        "disable_radix_cache": True,
        "disable_overlap_schedule": not overlap,
        **sections.pop("memory", {}),
    }
    model = {"config": TINY, **sections.pop("model", {})}
    data = {"name": "tiny", "model": model, "memory": memory, "steptime": {"kind": "constant", "ms": 10}, **sections}
    return simkv.load(data)


def workload(rows: Sequence[tuple[float, int, int]], **more: Any) -> Workload:
    """Requests of (arrival in ms, input tokens, output tokens)."""
    arrival, inputs, outputs = (np.array(column) for column in zip(*rows, strict=True))
    ns = np.round(arrival * 1e6).astype(np.int64)
    names = tuple(f"r{i}" for i in range(len(rows)))
    return Workload(ns, inputs.astype(np.int64), outputs.astype(np.int64), names, **more)
