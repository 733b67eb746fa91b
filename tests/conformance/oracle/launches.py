"""What the engine's own launcher makes of command lines: every argument after resolution, on a GPU that is made up.

Usage: ``PY tests/conformance/oracle/launches.py < IN.jsonl > OUT.jsonl``. A line in is ``{"argv", "config", "platform",
"memory_mib"}`` (``draft_config`` besides, where there is one); ``MODEL`` and ``DRAFT`` in ``argv`` stand for folders with
those configs. A line out is the same with ``resolved``, or ``refused`` with what the engine says.

Platform and memory are overridden, nothing else: the argument parser and the whole resolution run as they are.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import traceback
from pathlib import Path

import stubs

stubs.install()

import sglang.srt.arg_groups.memory_hook as memory_hook
import sglang.srt.layers.layer_boundary.construction  # noqa: F401  (asks for the real device when imported)
import sglang.srt.layers.quantization  # noqa: F401  (the same)
import sglang.srt.utils as sglang_utils
from sglang.srt.arg_groups.overrides import resolution_result
from sglang.srt.runtime_context import override_platform
from sglang.srt.server_args import ServerArgs

PLATFORMS = {
    "ampere": {},
    "hopper": {"is_sm90": True, "is_hopper_with_cuda_12_3": True},
    "blackwell": {"is_sm100": True, "is_blackwell": True},
    "amd": {"is_hip": True, "is_cuda": False},
}
SM = {"ampere": 80, "hopper": 90, "blackwell": 100, "amd": 0}
FIELDS = (
    "tp_size",
    "kv_cache_dtype",
    "context_length",
    "disable_hybrid_swa_memory",
    "mem_fraction_static",
    "page_size",
    "attention_backend",
    "swa_full_tokens_ratio",
    "max_total_tokens",
    "max_running_requests",
    "chunked_prefill_size",
    "max_prefill_tokens",
    "prefill_max_requests",
    "disable_radix_cache",
    "disable_overlap_schedule",
    "enable_mixed_chunk",
    "schedule_conservativeness",
    "schedule_policy",
    "speculative_algorithm",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "enable_multi_layer_eagle",
)


def resolve(case: dict) -> dict:
    """One command line."""
    with tempfile.TemporaryDirectory() as folder:
        words = list(case["argv"])
        for word, key in (("MODEL", "config"), ("DRAFT", "draft_config")):
            if key in case:
                place = Path(folder) / word.lower()
                place.mkdir()
                (place / "config.json").write_text(json.dumps(case[key]))
                words = [str(place) if one == word else one for one in words]
        sglang_utils.is_cuda = lambda: case["platform"] != "amd"
        memory_hook.get_device_memory_capacity = lambda device=None: case["memory_mib"]
        parser = argparse.ArgumentParser(exit_on_error=False)
        ServerArgs.add_cli_args(parser)
        sm = SM[case["platform"]]
        facts = {"is_cuda": True, "device_sm": sm, "device_capability": (sm // 10, 0), "has_flashinfer": True}
        with override_platform(**{**facts, **PLATFORMS[case["platform"]]}):
            try:
                args = ServerArgs.from_cli_args(parser.parse_args([*words, "--device", "cuda"]))
                args.resolve_once()
                args.check_server_args()
            except Exception as error:
                if "--trace" in sys.argv:
                    traceback.print_exc()
                return {"refused": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
            return {"resolved": {name: resolution_result(args, name) for name in FIELDS}}


def main() -> None:
    """All of them; the configs are left out of the answers."""
    for line in sys.stdin:
        case = json.loads(line)
        kept = {key: value for key, value in case.items() if key not in ("config", "draft_config")}
        sys.stdout.write(json.dumps({**kept, **resolve(case)}, default=str) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
