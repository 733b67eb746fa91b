"""How fast the simulation runs: one JSON line a workload.

Usage: ``replay.py [W1] [W1x10] [W2] [W1+cache] ...`` (the first three when none is named), ``replay.py --ratio [W1] [W2]``.

W1     2,000 requests, Poisson 8/s, lognormal prompts (median 1,024, sigma 1.0, 16..8,192) and outputs (median 200, sigma
       0.8, 4..2,048); 256 running, 2,048 tokens a step, 16,384 pages of 16; no speculation.
W1x10  ten times as many requests.
W2     W1's arrivals on 25 sliding layers (window 128) and 7 full ones, with one full MTP layer, 3 steps, acceptance
       0.8 / 0.6 / 0.4.

With ``+cache`` the prefix cache is on; no request shares anything with another, so it only costs. ``--ratio`` runs a
workload with the cache off and on in turn, in one process, and gives the ratio of the quickest of each.

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
    """One of the workloads."""
    name, _, cache = name.partition("+")
    config = {**DENSE, "max_position_embeddings": 32768}
    out: dict[str, Any] = {
        "name": name,
        "model": {"config": config},
        "memory": MEMORY | {"disable_radix_cache": not cache},
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


def simulate(name: str) -> tuple[float, Any]:
    """Seconds of the simulation alone, and its outcome."""
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
    return seconds, outcome


def ratio(name: str, times: int = 5) -> dict[str, Any]:
    """What the prefix cache costs where nothing is shared."""
    taken: dict[str, list[float]] = {name: [], f"{name}+cache": []}
    for _ in range(times):
        for one, seconds in taken.items():
            seconds.append(simulate(one)[0])
    off, on = (min(seconds) for seconds in taken.values())
    return {"workload": name, "seconds": round(off, 4), "with_cache": round(on, 4), "ratio": round(on / off, 3)}


def measure(name: str, started: float) -> dict[str, Any]:
    """Run one workload in this process."""
    seconds, outcome = simulate(name)
    done = len(outcome.state)
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


KNOWN = [f"{name}{cache}" for name in ("W1", "W1x10", "W2") for cache in ("", "+cache")]

if __name__ == "__main__":
    asked = [name for name in sys.argv[1:] if name != "--ratio"]
    unknown = [name for name in asked if name not in KNOWN]
    if unknown:
        sys.exit(f"unknown workload {', '.join(unknown)}; known are {', '.join(KNOWN)}")
    if "--ratio" in sys.argv[1:]:
        for name in asked or ["W1", "W2"]:
            print(json.dumps(ratio(name.partition("+")[0])), flush=True)
    else:
        main(asked)
