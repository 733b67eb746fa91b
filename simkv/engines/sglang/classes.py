"""What SGLang's launcher decides by the class of a model or the name of an algorithm, besides backends.

Sources are files of ``sglang/srt`` 0.5.23.
"""

from __future__ import annotations

from collections.abc import Mapping

from simkv.arch import Arch
from simkv.engines.sglang.backends import Platform

__all__ = ["asks_for_fp8_kv", "captures_prefill_graphs", "is_multimodal", "mixes_chunks", "never_splits"]

# Multimodal classes that are served as language models unless --enable-multimodal is given (configs/model_config.py:692-697).
_TEXT_ONLY = (
    "Gemma3ForConditionalGeneration",
    "Llama4ForConditionalGeneration",
    "Step3VLForConditionalGeneration",
    "InklingForConditionalGeneration",
)
# Multimodal classes with prefill graphs all the same (configs/model_config.py:2501-2516).
_GRAPHED = (
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
    "KimiK25ForConditionalGeneration",
)
# Split pools are switched off, the draft's included (arg_groups/model_overrides: gemma2_gemma3.py:13-26, olmo2.py:16-23).
_NEVER_SPLIT = (
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
    "Gemma3nForCausalLM",
    "Gemma3nForConditionalGeneration",
    "Olmo2ForCausalLM",
)
# The same where the config has a sliding_window_pattern (exaone.py:16-22).
_NEVER_SPLIT_WITH_A_PATTERN = ("Exaone4ForCausalLM", "ExaoneMoEForCausalLM", "ExaoneMoeForCausalLM")


def is_multimodal(arch: Arch) -> bool:
    """Whether it is served with its vision or audio parts."""
    return arch.architecture.endswith("ForConditionalGeneration") and arch.architecture not in _TEXT_ONLY


def captures_prefill_graphs(arch: Arch, platform: Platform) -> bool:
    """Whether prefill graphs are captured where no flag says so.

    Rule: arg_groups/cuda_graph_hook.py:176-256, model_executor/cuda_graph_config.py:119-123.
    """
    return platform != "amd" and (not is_multimodal(arch) or arch.architecture in _GRAPHED)


def never_splits(arch: Arch) -> bool:
    """Whether the launcher gives ``--disable-hybrid-swa-memory`` by itself."""
    patterned = arch.config.get("sliding_window_pattern") is not None
    return arch.architecture in _NEVER_SPLIT or (patterned and arch.architecture in _NEVER_SPLIT_WITH_A_PATTERN)


def asks_for_fp8_kv(arch: Arch) -> bool:
    """Whether ``--kv-cache-dtype auto`` is FP8 for this checkpoint (mem_cache/kv_cache_dtype.py:50-57)."""
    quant = arch.config.get("quantization_config")
    return isinstance(quant, Mapping) and str(quant.get("kv_cache_quant_algo")).upper() == "FP8"


def mixes_chunks(algorithm: str | None) -> bool:
    """Whether ``--enable-mixed-chunk`` stays on (speculative/spec_info.py:147-158; NEXTN is another name of EAGLE)."""
    return algorithm in (None, "EAGLE", "EAGLE3", "NEXTN", "DFLASH", "DSPARK")
