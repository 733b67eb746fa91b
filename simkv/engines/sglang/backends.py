"""Attention backends that SGLang chooses by itself, and the page sizes they force.

Only what decides the page size is here. Sources are files of ``sglang/srt`` 0.5.23.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from simkv.arch import Arch

__all__ = ["PLATFORMS", "Backends", "Platform", "resolve_backends", "resolve_page_size"]

Platform = Literal["ampere", "hopper", "blackwell", "amd"]

PLATFORMS: Mapping[str, Platform] = MappingProxyType(
    {
        "a100-80g": "ampere",
        "l40s": "ampere",  # no rule of this module tells Ada from Ampere
        "h100": "hopper",
        "h200": "hopper",
        "h20": "hopper",
        "b200": "blackwell",
        "b300": "blackwell",
        "gb200": "blackwell",
        "mi300x": "amd",
    }
)
"""Generation of each GPU of :data:`simkv.hardware.GPUS`."""

_FALLBACKS: Mapping[Platform, str] = {"hopper": "fa3", "blackwell": "trtllm_mha", "amd": "aiter", "ampere": "triton"}
_GEMMA4 = ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration")
_MIMO = ("MiMoV2ForCausalLM", "MiMoV2FlashForCausalLM")
_STEP = ("Step3p5ForCausalLM", "Step3p7ForConditionalGeneration")
_INKLING = ("InklingForConditionalGeneration", "InklingForConditionalGenerationMTP")
_LLAMA4 = ("Llama4ForCausalLM", "Llama4ForConditionalGeneration")
_DEEPSEEK = (
    "DeepseekV3ForCausalLM",
    "KimiK25ForConditionalGeneration",
    "MistralLarge3ForCausalLM",
    "PixtralForConditionalGeneration",
)
# Learned attention sinks, which flashinfer does not know.
_SINKS = ("GptOssForCausalLM", *_MIMO)


@dataclass(frozen=True)
class Backends:
    """Attention backends as flags: of both phases, of either, of the draft."""

    attention: str | None = None
    prefill: str | None = None
    decode: str | None = None
    draft: str | None = None

    def has(self, name: str) -> bool:
        """Whether either phase of the target uses it."""
        return name in (self.attention, self.prefill, self.decode)

    @property
    def unset(self) -> bool:
        """No flag of the target's backends is given."""
        return self.attention is None and self.prefill is None and self.decode is None


def resolve_backends(
    arch: Arch,
    platform: Platform,
    given: Backends,
    *,
    algorithm: str | None = None,
    eagle_topk: int | None = None,
    page_size: int | None = None,
) -> Backends:
    """Fill in the backend that the engine chooses.

    Parameters
    ----------
    arch : Arch
        The target.
    platform : str
        Generation of the GPU.
    given : Backends
        As the flags state them.
    algorithm, eagle_topk, page_size : str or None, int or None, int or None
        As the flags state them: their own defaults come later.

    Notes
    -----
    Rules: the model's own choice (arg_groups/model_overrides/gpt_oss.py:24-42, gemma4.py:22-46, mimo_v2.py:28-30,
    inkling.py:68-77, llama4.py:20-37, olmo2.py:24-30, deepseek_v2.py:179-185; arg_groups/overrides.py:331-345), else the
    platform's (arg_groups/model_override_base.py:277-345).
    """
    attention = given.attention
    if given.prefill is not None and given.prefill == given.decode:
        attention = given.prefill
    if attention is None:
        attention = _of_model(arch, platform, given) or _of_platform(arch, platform, algorithm, eagle_topk, page_size)
    return Backends(attention, given.prefill, given.decode, given.draft)


def _of_model(arch: Arch, platform: Platform, given: Backends) -> str | None:
    name = arch.architecture
    if name in _LLAMA4 or name in _GEMMA4:
        if name in _GEMMA4 and platform != "blackwell":
            return "triton"
        return _FALLBACKS[platform]
    if not given.unset:
        return None
    if name == "GptOssForCausalLM":
        return _FALLBACKS[platform]
    if name in _INKLING:
        return "fa4" if platform in ("hopper", "blackwell") else "triton"
    if name in _STEP and platform in ("hopper", "blackwell"):
        return "fa3" if platform == "hopper" else "fa4"
    if platform == "blackwell" and name in _MIMO:
        return "fa4"
    if platform == "blackwell" and name in _DEEPSEEK:
        return "trtllm_mla"
    return None


def _of_platform(
    arch: Arch, platform: Platform, algorithm: str | None, eagle_topk: int | None, page_size: int | None
) -> str:
    # utils/common.py:3960-3966
    chain = eagle_topk is None or (eagle_topk == 1 and page_size in (None, 1))
    if arch.count("mla"):
        return {"hopper": "fa3", "blackwell": "flashinfer", "amd": "aiter"}.get(platform, "triton")
    if platform == "hopper" and chain:
        return "fa3"
    # Without --speculative-eagle-topk only DFLASH is known to draft a chain here (model_override_base.py:268-274).
    told = algorithm is None or eagle_topk is not None or algorithm.upper() == "DFLASH"
    if platform == "blackwell" and chain and told:
        return "fa4" if _asymmetric(arch) else "trtllm_mha"
    if platform == "amd":
        return "aiter"
    return "triton" if arch.architecture in _SINKS else "flashinfer"


def _asymmetric(arch: Arch) -> bool:
    """Keys and values of different widths (configs/model_config.py:1263-1271)."""
    return any(g is not None and g.head_dim != g.v_head_dim for g in (arch.full, arch.sliding))


def resolve_page_size(
    arch: Arch, platform: Platform, backends: Backends, page_size: int | None, *, eagle_topk: int | None = None
) -> tuple[int, str]:
    """The page size the engine ends up with, and why where a backend forces it.

    Rules, in this order: arg_groups/overrides.py:1143-1200 (MLA and TensorRT-LLM backends), 1262-1297 (fa4), 1341-1363
    (1 where nothing is stated).

    Parameters
    ----------
    backends : Backends
        Resolved ones.
    page_size, eagle_topk : int or None
        As the flags state them.

    Returns
    -------
    page_size : int
    why : str
        Empty where it is the stated one.
    """
    size, why = page_size, ""
    forced = (
        ("flashmla", backends.attention == "flashmla" or backends.decode == "flashmla", (64,)),
        ("trtllm_mla", backends.attention == "trtllm_mla" or backends.decode == "trtllm_mla", (32, 64)),
        ("cutedsl_mla", backends.has("cutedsl_mla"), (32, 64)),
        ("trtllm_mha", backends.has("trtllm_mha") or backends.draft == "trtllm_mha", (16, 32, 64, 128)),
        ("hpc_ops", backends.has("hpc_ops"), (64,)),
    )
    for name, applies, allowed in forced:
        if applies and size not in allowed:
            size, why = 64, f"the attention backend {name} takes pages of {_either(allowed)}"
    if (
        backends.has("fa4")
        and platform == "blackwell"
        and not arch.count("mla")
        and (eagle_topk or 0) <= 1
        and size != 128
    ):
        size, why = 128, "the attention backend fa4 takes pages of 128"
    if size is None:
        return 1, "the engine's default"
    return size, why


def _either(sizes: tuple[int, ...]) -> str:
    return " or ".join(map(str, sizes))
