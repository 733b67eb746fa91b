"""Full-size replays on one CUDA GPU; ``gpu_replay.sh`` says how to start it.

What it takes, so that it can be planned: the kernels of these logs, counted on torch's meta device with a KV budget of
64 GiB, and 10 microseconds to launch each. K and V of the 9 full, 39 sliding and 3 draft layers of mimo-v2-flash are 102
tensors; each takes 2 kernels to write and 4 to read and compare (gather, tag, equal, all), and one for every free.

    mimo-v2-flash-chat                          2 x 2,216 steps x 1,007 kernels x 10 us = 45 s
    routing-legacy-vs-generalized, legacy             631 steps x 1,181 kernels x 10 us =  7 s
    routing-legacy-vs-generalized, generalized        631 steps x 1,011 kernels x 10 us =  6 s
    copies to the device, each waits for it       100,000 x 20 us                       =  2 s

The bytes hardly count. Reads: 29 billion rows are compared, a sector of 32 B each and some 80 B of temporaries, 3.2 TB.
Writes: 2.6 million tokens of 119 KB in all layers of mimo-v2-flash, overwritten once when freed, twice: 1.2 TB. Together
two seconds at 3 TB/s. The simulations before take some seconds of one CPU core. About a minute in all, and under three
if a launch costs three times as much.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

# What simulating and replaying import, and what those import; matplotlib, rich and cyclopts are for the command line.
NEEDED = {
    "torch": "torch",
    "numpy": "numpy",
    "pandas": "pandas",
    "pyarrow": "pyarrow",
    "simpy": "simpy",
    "pydantic": "pydantic",
    "pydantic_core": "pydantic-core",
    "annotated_types": "annotated-types",
    "typing_inspection": "typing-inspection",
    "typing_extensions": "typing-extensions",
}

GIB = 1 << 30
# Where they are; the other tests import more than this machine need have.
GPU_TESTS = "tests/replayer/test_scenarios.py"
# Enough traffic that the full pool fills and the prefix cache must evict, and little time with nobody running.
TRAFFIC = {
    "mimo-v2-flash-chat": (
        "workload.num_requests=600",
        "workload.rate=100",
        "workload.rate_amplitude=0",
        "workload.think_s=0.5",
        "workload.input_tokens.median=1500",
        "workload.input_tokens.max=16000",
        "memory.max_running_requests=512",
    ),
    "routing-legacy-vs-generalized": (
        "workload.num_requests=900",
        "workload.rate=300",
        "workload.shared_prefix_tokens=500",
        "workload.shared_prefix_pool=5",
        "memory.max_running_requests=512",
    ),
}
TINY = (
    "workload.num_requests=8",
    'workload.input_tokens={kind = "uniform", min = 50, max = 500}',
    'workload.output_tokens={kind = "uniform", min = 20, max = 100}',
)
# Both rules give mimo-v2-flash the same pools, for it names no mtp_local_layer_ids; the other model's differ.
CASES = [(name, routing) for name in TRAFFIC for routing in ("legacy", "generalized")]

COLUMNS = {
    "model": 14,
    "routing": 11,
    "planned B": 15,
    "allocated B": 15,
    "measured B": 15,
    "peak B": 15,
    "slots": 10,
    "rows written": 13,
    "rows compared": 15,
    "steps": 6,
    "seconds": 8,
    "tokens/s": 9,
}


# ------------------------------------------------------------------------------------------------- what is there
def missing() -> dict[str, str]:
    """Packages that cannot be imported, and why."""
    found = {}
    for module, name in NEEDED.items():
        try:
            importlib.import_module(module)
        # A compiled part that does not fit its Python part is no ImportError.
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def bring(names: list[str]) -> str:
    """How to bring packages to a machine without a network."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return (
        f"missing: {', '.join(names)}. Where there is a network: python -m pip download --no-deps --only-binary=:all: "
        f"--python-version {version} --platform manylinux2014_{platform.machine()} -d wheels {' '.join(names)}; "
        f"then here: WHEELS=wheels benchmarks/gpu_replay.sh"
    )


def found(device: str) -> dict[str, Any]:
    """The machine, which is printed too."""
    import torch

    facts: dict[str, Any] = {"python": platform.python_version(), "torch": str(torch.__version__)}
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        facts |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda, "free": free, "memory": total}
        print(f"GPU {facts['gpu']}, {free / GIB:.1f} of {total / GIB:.1f} GiB free; CUDA {facts['cuda']}", end="; ")
    print(f"torch {facts['torch']}, Python {facts['python']}; replays on {device}", flush=True)
    return facts


# ------------------------------------------------------------------------------------------------- tests
def test(*, dry: bool) -> str:
    """Run the tests that need a GPU, only collect them in a dry run: passed, failed, or why not run."""
    if importlib.util.find_spec("pytest") is None:
        return "not run: pytest is missing"
    # Other versions than the pinned ones are at work here, and their deprecations are no failures.
    how = ["-m", "gpu", "-W", "default", "-p", "no:cacheprovider", *(["--collect-only"] if dry else [])]
    done = subprocess.run([sys.executable, "-m", "pytest", *how, GPU_TESTS], cwd=ROOT, check=False)
    return {0: "collected" if dry else "passed", 5: "not run: none is marked gpu"}.get(done.returncode, "failed")


# ------------------------------------------------------------------------------------------------- replays
def replayed(name: str, routing: str, device: str, kv_bytes: int, *, dry: bool) -> dict[str, Any]:
    """Simulate and replay one case: the figures of the replay, and what happened in the run."""
    import simkv

    one = simkv.load(name).override(*TRAFFIC[name], f"policies.routing={routing}", f"memory.kv_bytes={kv_bytes}")
    if dry:
        one = one.override(*TINY)
    began = time.perf_counter()
    run = simkv.simulate(one, record_allocations=True)
    simulated = time.perf_counter() - began
    layers, scale = ("1", "1/64") if dry else ("all", "1")
    replay = simkv.replay(run, device=device, layers=layers, scale=scale)
    happened = ("requests.completed", "requests.retractions", "cache_hit_rate", "cache_evicted_full_tokens")
    return {
        "model": run.plan["model"],
        "routing": routing,
        "kv_bytes": kv_bytes,
        "simulation_seconds": simulated,
        "run": {key: run.summary[key] for key in happened},
        **replay.to_dict(),
    }


def row(case: dict[str, Any]) -> list[str]:
    """A replay's line of the table."""
    numbers = ("planned_bytes", "allocated_bytes", "measured_bytes", "peak_bytes")
    counts = ("slots_allocated", "tags_written", "tags_read", "steps")
    return [
        case["model"],
        case["routing"],
        *("-" if case[key] is None else f"{case[key]:,}" for key in (*numbers, *counts)),
        f"{case['seconds']:.2f}",
        f"{case['tokens_per_s']:,.0f}",
    ]


def line(cells: list[str]) -> str:
    """Cells under each other: two names, then numbers."""
    widths = list(COLUMNS.values())
    names = [f"{cell:<{width}}" for cell, width in zip(cells[:2], widths[:2], strict=True)]
    numbers = [f"{cell:>{width}}" for cell, width in zip(cells[2:], widths[2:], strict=True)]
    return " ".join(names + numbers)


def main() -> int:
    """Everything in turn; what fails does not stop the rest."""
    parser = argparse.ArgumentParser(description="Full-size replays on one CUDA GPU.")
    parser.add_argument("--dry-run", action="store_true", help="tiny replays on the CPU, as DEVICE=cpu")
    parser.add_argument("--missing", action="store_true", help="name the packages that are missing, and end")
    asked = parser.parse_args()
    dry = asked.dry_run or os.environ.get("DEVICE") == "cpu"
    lacking = missing()
    if asked.missing:
        print(bring(list(lacking)) if lacking else "nothing is missing")
        return 2 if lacking else 0
    if lacking:
        for name, why in lacking.items():
            print(f"{name}: {why}")
        print(bring(list(lacking)))
        return 2
    import torch

    if not dry and not torch.cuda.is_available():
        print(f"torch {torch.__version__} finds no CUDA device here; --dry-run needs none")
        return 2
    device = "cpu" if dry else "cuda"
    if dry:
        # Tensors this small are not worth threads.
        torch.set_num_threads(1)
    facts = found(device)
    # The rest is for the row tables, the temporaries, and what the legacy rule allocates and does not charge (15 %).
    kv_bytes = GIB if dry else min(64 * GIB, int(facts["free"] * 0.6))
    report: dict[str, Any] = facts | {"tests": test(dry=dry), "replays": [], "failed": []}
    print(f"tests marked gpu: {report['tests']}\n\n{line(list(COLUMNS))}", flush=True)
    for name, routing in CASES:
        try:
            report["replays"].append(replayed(name, routing, device, kv_bytes, dry=dry))
            print(line(row(report["replays"][-1])), flush=True)
        except Exception:
            report["failed"].append({"case": f"{name}, {routing}", "why": traceback.format_exc()})
            print(f"{name}, {routing}: failed\n{report['failed'][-1]['why']}", flush=True)
        # After each, so that it is there whatever becomes of the next.
        if out := os.environ.get("OUT"):
            Path(out, "gpu_replay.json").write_text(json.dumps(report, indent=1, default=str) + "\n")
    bad = [one["case"] for one in report["failed"]] + (["the tests"] if report["tests"] == "failed" else [])
    good = f"{len(CASES)} replays: every slot and every row is as the log says"
    print(f"\nfailed: {'; '.join(bad)}" if bad else f"\n{good}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
