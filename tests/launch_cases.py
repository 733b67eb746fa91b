"""Launch lines that the engine's own launcher was asked about, and what simkv makes of them.

``python tests/launch_cases.py`` prints the questions for ``tests/conformance/oracle/launches.py``; the answers are in
``tests/data/oracle/launches.jsonl``, without the configs.
"""

from __future__ import annotations

import json
from typing import Any

from simkv import catalogue
from simkv.engines.sglang.backends import PLATFORMS
from simkv.errors import UserError
from simkv.hardware import GPUS
from simkv.imports.launch import import_launch

EAGLE3, CHAIN = "--speculative-algorithm EAGLE3", "--speculative-num-steps 3 --speculative-eagle-topk 1 "
CHAIN += "--speculative-num-draft-tokens 4"
LLAMA_DRAFT, OSS_DRAFT, QWEN_DRAFT = "draft-llama3-8b-eagle3", "draft-gpt-oss-120b-eagle3", "draft-qwen3-8b-dflash"

MODELS = [
    "llama-3.1-8b",
    "gpt-oss-120b",
    "qwen3-8b",
    "glm-4.5",
    "minimax-m2.5",
    "step-3.5-flash",
    "mimo-v2-flash",
    "deepseek-v3",
    "gemma-3-1b",
    "gemma-3-27b",
    "llama-4-scout",
    "mistral-7b-v0.1",
]

CASES: list[tuple[str, str, str, str | None]] = [
    *((model, gpu, "", None) for model in MODELS for gpu in ("h200", "b200", "mi300x", "a100-80g")),
    ("gpt-oss-120b", "b200", "--page-size 1 --tp 4", None),
    ("gpt-oss-120b", "h100", f"{EAGLE3} {CHAIN}", OSS_DRAFT),
    ("gpt-oss-120b", "b200", EAGLE3, OSS_DRAFT),
    ("llama-3.1-8b", "h100", f"{EAGLE3} --dtype float16", LLAMA_DRAFT),
    ("llama-3.1-8b", "b200", f"{EAGLE3} {CHAIN}", LLAMA_DRAFT),
    (
        "llama-3.1-8b",
        "b200",
        f"{EAGLE3} --speculative-num-steps 5 --speculative-eagle-topk 8 --speculative-num-draft-tokens 32",
        LLAMA_DRAFT,
    ),
    ("llama-3.1-8b", "h100", "--speculative-algorithm NGRAM --enable-mixed-chunk", None),
    ("llama-3.1-8b", "h100", "--speculative-algorithm NGRAM --page-size 16", None),
    ("llama-3.1-8b", "b200", "--speculative-algorithm NGRAM", None),
    ("qwen3-8b", "h100", "--speculative-algorithm DFLASH", QWEN_DRAFT),
    ("qwen3-8b", "b200", "--speculative-algorithm DFLASH --speculative-dflash-block-size 8", QWEN_DRAFT),
    ("qwen3-8b", "h100", "--speculative-algorithm STANDALONE --enable-mixed-chunk", "draft-qwen3-8b-eagle3"),
    ("mimo-v2-flash", "h200", "--speculative-algorithm EAGLE --tp 8 --enable-mixed-chunk", None),
    ("mimo-v2-flash", "b200", f"--speculative-algorithm EAGLE --tp 4 {CHAIN}", None),
    ("mimo-v2-flash", "h200", "--speculative-algorithm NEXTN --tp 8", None),
    ("mimo-v2-flash", "h200", "--speculative-algorithm eagle --tp 8", None),
    ("step-3.5-flash", "h200", "--speculative-algorithm EAGLE --tp 4", None),
    ("glm-4.5", "h200", "--speculative-algorithm NEXTN --tp 8", None),
    ("deepseek-v3", "h200", "--speculative-algorithm EAGLE --tp 8 --enable-flashinfer-allreduce-fusion", None),
    ("deepseek-v3", "b200", "--tp 8 --page-size 1 --attention-backend trtllm_mla", None),
    ("llama-3.1-8b", "h100", "--attention-backend fa3 --kv-cache-dtype fp8_e5m2", None),
    ("llama-3.1-8b", "h100", "--max-running-requests 64 --chunked-prefill-size 4096 --max-total-tokens 100k", None),
    ("llama-3.1-8b", "h100", "--chunked-prefill-size -1", None),
    ("llama-3.1-8b", "l40s", "--disable-cuda-graph", None),
    ("llama-3.1-8b", "h200", "--cuda-graph-max-bs-decode 512 --tp 2", None),
    ("llama-3.1-8b", "h200", "--cuda-graph-bs-decode 1 2 4 1000 --disable-prefill-cuda-graph", None),
    ("llama-3.1-8b", "h200", "--cuda-graph-max-bs-prefill 2048 --max-running-requests 8", None),
    ("llama-3.1-8b", "h200", "--context-length 200000", None),
    ("llama-3.1-8b", "h200", "--page-size 3", None),
    ("llama-3.1-8b", "h200", "--quantization fp8 --cuda-graph-backend-prefill full --max-prefill-tokens 8Ki", None),
    ("deepseek-v3", "h200", "--tp 8 --disable-cuda-graph", None),
    ("deepseek-v3", "h200", "--tp 8 --attention-backend flashmla --chunked-prefill-size 16384", None),
    ("glm-4.5", "mi300x", "--tp 8 --attention-backend triton --swa-full-tokens-ratio 0.3", None),
    ("gemma-3-27b", "h100", "--tp 2 --disable-hybrid-swa-memory --schedule-policy fcfs --dp-size 1", None),
    ("mimo-v2-flash", "h200", "--swa-full-tokens-ratio 0.2 --tp 4 --cuda-graph-max-bs-decode 64", None),
    ("llama-3.1-8b", "b200", "--page-size 32 --kv-cache-dtype fp8_e4m3", None),
    ("llama-3.1-8b", "b200", "--speculative-draft-attention-backend trtllm_mha --attention-backend triton", None),
    ("llama-3.1-8b", "b200", "--prefill-attention-backend fa4 --decode-attention-backend trtllm_mha", None),
    ("llama-3.1-8b", "b200", "--attention-backend flashinfer --page-size 64", None),
    ("llama-3.1-8b", "h100", f"{EAGLE3} --speculative-eagle-topk 4", LLAMA_DRAFT),
    (
        "llama-3.1-8b",
        "h100",
        "--disable-radix-cache --disable-overlap-schedule --schedule-conservativeness 0.5 --prefill-max-requests 4",
        None,
    ),
]

# Keys of the catalogue that are no config, and a quantization that the engine's CPU build does not know.
_OURS = ("hf_ids", "source", "unverified", "quantization_config")


def _config(name: str) -> dict[str, Any]:
    made = catalogue.config(name)
    return {key: value for key, value in made.items() if key not in _OURS and "_params" not in key}


def question(model: str, gpu: str, line: str, draft: str | None) -> dict[str, Any]:
    """One line for the engine's launcher."""
    argv = ["--model-path", "MODEL", "--trust-remote-code", *line.split()]
    made: dict[str, Any] = {"model": model, "gpu": gpu, "draft": draft, "config": _config(model)}
    if draft is not None:
        argv += ["--speculative-draft-model-path", "DRAFT"]
        made["draft_config"] = _config(draft)
    return {**made, "argv": argv, "platform": PLATFORMS[gpu], "memory_mib": GPUS[gpu].memory_mib}


def differences(answer: dict[str, Any]) -> list[str]:
    """What simkv resolves otherwise than the engine did; empty where both agree."""
    names = {"MODEL": answer["model"], "DRAFT": answer["draft"]}
    words = [names.get(word, word) for word in answer["argv"]]
    try:
        launch = import_launch(words, gpu=answer["gpu"], weights="20GiB")
        settings, budget = launch.scenario.resolved.settings, launch.scenario.resolved.budget
    except UserError as error:
        return [] if "refused" in answer else [str(error)]
    if "refused" in answer:
        return [f"accepted, and the engine says: {answer['refused']}"]
    theirs = answer["resolved"]
    spec = settings.spec
    ours = {
        "tp_size": settings.tp_size,
        "disable_hybrid_swa_memory": settings.hybrid_disabled,
        "kv_cache_dtype": settings.kv_cache_dtype,
        "mem_fraction_static": budget.fraction,
        "page_size": settings.page_size,
        "max_total_tokens": settings.max_total_tokens,
        "max_running_requests": settings.max_running_requests,
        "chunked_prefill_size": settings.chunked_prefill_size,
        "max_prefill_tokens": settings.max_prefill_tokens,
        "prefill_max_requests": settings.prefill_max_requests,
        "disable_radix_cache": settings.disable_radix_cache,
        "disable_overlap_schedule": settings.disable_overlap_schedule,
        "enable_mixed_chunk": settings.enable_mixed_chunk,
        "schedule_conservativeness": settings.schedule_conservativeness,
        "speculative_num_steps": spec and spec.num_steps,
        "speculative_eagle_topk": spec and spec.eagle_topk,
        "speculative_num_draft_tokens": spec and spec.num_draft_tokens,
        "enable_multi_layer_eagle": bool(spec and spec.enable_multi_layer_eagle),
    }
    if settings.hybrid:
        ours["swa_full_tokens_ratio"] = settings.swa_full_tokens_ratio
    return [f"{key}: {value} here, {theirs[key]} there" for key, value in ours.items() if value != theirs[key]]


if __name__ == "__main__":
    for case in CASES:
        print(json.dumps(question(*case)))
