"""How fast the simulation runs: one JSON line a workload.

Usage: ``replay.py [W1] [W1x10] [W2]`` (all three when none is named).

W1     2,000 requests, Poisson 8/s, lognormal prompts (median 1,024, sigma 1.0, 16..8,192) and outputs (median 200, sigma
       0.8, 4..2,048); 256 running, 2,048 tokens a step, 16,384 pages of 16; no speculation.
W1x10  ten times as many requests.
W2     W1's arrivals on 25 sliding layers (window 128) and 7 full ones, with one full MTP layer, 3 steps, acceptance
       0.8 / 0.6 / 0.4.

``start_seconds`` is everything before the clock starts (interpreter, imports, plan, workload), ``simulation_seconds`` the
simulation alone. Each workload runs in a process of its own, so that ``peak_mb`` is its own.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from typing import Any

LENGTHS = {
    "input_tokens": {"kind": "lognormal", "median": 1024, "sigma": 1.0, "min": 16, "max": 8192},
    "output_tokens": {"kind": "lognormal", "median": 200, "sigma": 0.8, "min": 4, "max": 2048},
}
MEMORY = {
    "kv_bytes": "1TiB",
    "page_size": 16,
    "max_total_tokens": 16384 * 16,
    "max_running_requests": 256,
    "chunked_prefill_size": 2048,
    "disable_radix_cache": True,
}
DENSE = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
STEPTIME = {
    "kind": "linear",
    "base_ms": 8.0,
    "per_prefill_token_us": 60.0,
    "per_decode_request_us": 60.0,
    "draft_ms": 0.24,
}


def scenario(name: str) -> dict[str, Any]:
    """One of the three workloads."""
    config = {**DENSE, "max_position_embeddings": 32768}
    out: dict[str, Any] = {
        "name": name,
        "model": {"config": config},
        "memory": MEMORY,
        "steptime": STEPTIME,
        "workload": {"kind": "poisson", "rate": 8, "num_requests": 20000 if name == "W1x10" else 2000, **LENGTHS},
    }
    if name == "W2":
        config["layer_types"] = ["full_attention" if i in range(0, 32, 5) else "sliding_attention" for i in range(32)]
        config |= {"sliding_window": 128, "num_nextn_predict_layers": 1}
        out["model"] |= {"hybrid_swa": True, "cache_window": 128}
        out["draft"] = {"algorithm": "EAGLE", "num_steps": 3, "num_layers": 1, "full_attention_layer_ids": [0]}
        out["acceptance"] = {"kind": "per-position", "p": [0.8, 0.6, 0.4]}
    return out


def measure(name: str, started: float) -> dict[str, Any]:
    """Run one workload in this process."""
    from simkv.results import engine_for
    from simkv.scenario import load
    from simkv.simulation import Simulation

    one = load(scenario(name))
    work = one.workload()
    simulation = Simulation(engine_for(one, one.plan()), work, one.acceptance(work), one.step_time())
    begun = time.perf_counter()
    outcome = simulation.run()
    seconds = time.perf_counter() - begun
    done = sum(state == "completed" for state in outcome.state)
    assert done == len(work), f"{done} of {len(work)} completed"
    return {
        "workload": name,
        "simulation_seconds": round(seconds, 4),
        "start_seconds": round(time.time() - started - seconds, 3),
        "requests_per_s": round(done / seconds, 1),
        "output_tokens_per_s": round(int(outcome.output_tokens.sum()) / seconds),
        "steps_per_s": round(outcome.steps / seconds),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


def main(names: list[str]) -> None:
    """Measure each workload in a process of its own."""
    child = os.environ.get("SIMKV_BENCHMARK_STARTED")
    if child is not None:
        print(json.dumps(measure(names[0], float(child))), flush=True)
        return
    for name in names or ["W1", "W1x10", "W2"]:
        env = {**os.environ, "SIMKV_BENCHMARK_STARTED": repr(time.time())}
        subprocess.run([sys.executable, __file__, name], env=env, check=True)


if __name__ == "__main__":
    unknown = [name for name in sys.argv[1:] if name not in ("W1", "W1x10", "W2")]
    if unknown:
        sys.exit(f"unknown workload {', '.join(unknown)}; known are W1, W1x10, W2")
    main(sys.argv[1:])
