"""``benchmarks/gpu_replay.sh``, in its dry run."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_replay.sh"


def run(*arguments, **environment):
    env = os.environ | {"PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""} | environment
    return subprocess.run(["bash", str(SCRIPT), *arguments], env=env, capture_output=True, text=True, check=False)


def bf16(rows, layers, heads, width):
    return rows * layers * heads * width * 2


def test_a_dry_run_plans_and_allocates_what_the_models_say(tmp_path):
    done = run(DEVICE="cpu", OUT=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    cases = json.loads((tmp_path / "gpu_replay.json").read_text())["replays"]
    assert [(case["model"], case["routing"]) for case in cases] == [
        (model, rule) for model in ("mimo-v2-flash", "example-hybrid") for rule in ("legacy", "generalized")
    ]
    for case in cases:
        rows = {(pool["worker"], pool["pool"]): pool["rows"] for pool in case["pools"]}
        full, swa = rows["target", "full"], rows["target", "swa"]
        if case["model"] == "mimo-v2-flash":
            # One of two ranks: 2 of 4 and 4 of 8 heads, K 192 and V 128 wide; three drafts beside 39 sliding layers.
            planned = bf16(full, 9, 2, 320) + bf16(swa, 39 + 3, 4, 320)
            # One layer a pool, and of it a 64th: 6 and 4, and 12 and 8 columns, in whole tags of 8 bytes.
            allocated = full * (8 + 8) + 4 * swa * (24 + 16)
        elif case["routing"] == "legacy":
            # Each of three runners builds all three MTP layers, one full and two sliding.
            planned = bf16(full, 6 + 3, 8, 256) + bf16(swa, 18 + 6, 4, 256)
            allocated = 4 * full * (32 + 32) + 4 * swa * (16 + 16)
        else:
            # One full depth, and two rings of as many rows as the full pool has.
            planned = bf16(full, 6 + 1, 8, 256) + bf16(full, 2, 4, 256) + bf16(swa, 18, 4, 256)
            allocated = 2 * full * (32 + 32) + (2 * full + swa) * (16 + 16)
        assert (case["planned_bytes"], case["allocated_bytes"]) == (planned, allocated)
        assert case["run"]["requests.completed"] == 8
        line = next(x for x in done.stdout.splitlines() if x.split()[:2] == [case["model"], case["routing"]])
        assert line.split()[2:4] == [f"{planned:,}", f"{allocated:,}"]


def test_without_a_cuda_device_it_says_so():
    done = run()
    assert done.returncode == 2
    assert "finds no CUDA device" in done.stdout.splitlines()[-1]


def test_missing_packages_are_all_named(tmp_path):
    for name in ("torch", "simpy", "pydantic"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not here')\n")
    done = run("--missing", PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert done.stdout.startswith("missing: torch, simpy, pydantic. ")
