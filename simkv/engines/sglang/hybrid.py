"""Which models SGLang treats as hybrid sliding-window, which window its cache keeps, and which defaults it sets.

These are rules of the engine, not of the model: Gemma-3 slides in five layers of six, and SGLang 0.5.23 sizes it
as all-full.
"""

from __future__ import annotations

from simkv.arch import Arch

__all__ = [
    "BLOCK_ZERO",
    "HYBRID_ARCHITECTURES",
    "INKLING",
    "cache_window",
    "default_ratio",
    "default_spec",
    "defaults_to_multi_layer",
    "is_hybrid",
    "layer_split",
]

# configs/model_config.py:2651-2697
HYBRID_ARCHITECTURES = frozenset(
    [
        "BeamForCausalLM",
        "Llama4ForConditionalGeneration",
        "DeepseekV4ForCausalLM",
        "DeepseekV4ForCausalLMNextN",
        "DeepseekV4ForCausalLMDSpark",
        "GptOssForCausalLM",
        "GraniteSWAForCausalLM",
        "GraniteMoeSWAForCausalLM",
        "IQuestQ1ForCausalLM",
        "IQuestQ1MTP",
        "MiMoV2ForCausalLM",
        "MiMoV2FlashForCausalLM",
        "MiMoV2MTP",
        "Step3p5ForCausalLM",
        "Step3p5MTP",
        "Step3p7ForConditionalGeneration",
        "Gemma4ForCausalLM",
        "Gemma4ForConditionalGeneration",
        "EmbeddingGemma2Model",
        "Gemma4UnifiedForConditionalGeneration",
        "DiffusionGemmaForBlockDiffusion",
        "LagunaForCausalLM",
        "MellumForCausalLM",
        "MuseGlimmerForCausalLM",
        "MuseGlimmerForConditionalGeneration",
        "InklingForConditionalGeneration",
        "InklingForConditionalGenerationMTP",
        "UnlimitedOCRForCausalLM",
    ]
)

# Model classes whose own answer is one less than the config's window: the query's own position is not counted
# (model_executor/model_runner_components/load_model_utils.py:144 asks the class first).
_WINDOW_MINUS_ONE = frozenset(
    [
        "GptOssForCausalLM",
        "Gemma2ForCausalLM",
        "Gemma3ForCausalLM",
        "Gemma3ForConditionalGeneration",
        "Gemma3nForCausalLM",
        "Gemma3nForConditionalGeneration",
        "Gemma4ForCausalLM",
        "Gemma4ForConditionalGeneration",
        "Gemma4UnifiedForConditionalGeneration",
        "EmbeddingGemma2Model",
        "DiffusionGemmaForBlockDiffusion",
        "InklingForConditionalGeneration",
        "InklingForConditionalGenerationMTP",
        "Olmo2ForCausalLM",
        "Olmo3ForCausalLM",
        "Exaone4ForCausalLM",
        "ExaoneMoEForCausalLM",
        "AfmoeForCausalLM",
        "BeamForCausalLM",
        "MellumForCausalLM",
        "MuseGlimmerForCausalLM",
        "MuseGlimmerForConditionalGeneration",
    ]
)

# MTP runners of these classes build their only block at layer id 0 (models/mimo_v2_nextn.py:64; step3p5.py:457-460)
# and advertise it as sliding (configs/model_config.py:2731-2733, 2749-2751).
BLOCK_ZERO = frozenset(
    [
        "MiMoV2ForCausalLM",
        "MiMoV2FlashForCausalLM",
        "MiMoV2MTP",
        "Step3p5ForCausalLM",
        "Step3p5MTP",
        "Step3p7ForConditionalGeneration",
    ]
)

INKLING = frozenset(["InklingForConditionalGeneration", "InklingForConditionalGenerationMTP"])


def is_hybrid(arch: Arch, hybrid_swa: bool | None) -> bool:
    """Whether the engine splits full and SWA pools for this model.

    Parameters
    ----------
    arch : Arch
        The model.
    hybrid_swa : bool or None
        The scenario's ``model.hybrid_swa``: None lets the engine's allow-list decide; True opts any model in that
        has a sliding layer (as ``is_hybrid_swa`` in its text config would); False is
        ``--disable-hybrid-swa-memory``.

    Notes
    -----
    Rule: configs/model_config.py:2651-2697, 1215-1218.
    """
    if arch.count("sliding", "chunked") == 0 or hybrid_swa is False:
        return False
    return bool(hybrid_swa) or arch.is_hybrid_swa or arch.architecture in HYBRID_ARCHITECTURES


def layer_split(arch: Arch, hybrid: bool) -> tuple[int, int]:
    """Full and SWA layers as the sizing counts them: all full unless the engine treats the model as hybrid."""
    if not hybrid:
        return len(arch.layers), 0
    return arch.count("full", "mla"), arch.count("sliding", "chunked")


def cache_window(arch: Arch, stated: int | None) -> int | None:
    """Earlier tokens a sliding layer's cache keeps besides the new one (``sliding_window_size`` of the runner).

    The model class answers first (one less than the config for gpt-oss, Gemma, Inkling ...), else the config's
    window, else the attention chunk (load_model_utils.py:144).
    """
    if stated is not None:
        return stated
    if arch.count("chunked") and arch.chunk is not None:
        return arch.chunk
    if arch.window is None:
        return arch.chunk
    return arch.window - 1 if arch.architecture in _WINDOW_MINUS_ONE else arch.window


def default_ratio(arch: Arch) -> float:
    """Default of ``swa_full_tokens_ratio``: 0.8, and 0.1 for Inkling."""
    return 0.1 if arch.architecture in INKLING else 0.8


def default_spec(architecture: str, algorithm: str) -> tuple[int, int, int]:
    """Default steps, top-k and draft tokens of the EAGLE family (arg_groups/speculative_hook.py:1430-1461)."""
    if algorithm != "STANDALONE" and architecture in ("LlamaForCausalLM", "Grok1ForCausalLM", "Grok1VForCausalLM"):
        return 5, 4, 8
    return 3, 1, 4


def defaults_to_multi_layer(architecture: str) -> bool:
    """Whether EAGLE on this model switches ``enable_multi_layer_eagle`` on by itself (arg_groups/overrides.py)."""
    return architecture in BLOCK_ZERO
