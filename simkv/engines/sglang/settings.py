"""Settings of one SGLang server, resolved: what ``ServerArgs`` holds after its own defaults were applied."""

from __future__ import annotations

from dataclasses import dataclass

from simkv.arch import Arch
from simkv.engines.sglang.hybrid import default_ratio, default_spec, defaults_to_multi_layer

__all__ = ["DTYPE_BYTES", "FAULTS", "Settings", "Spec", "resolve_spec"]

EAGLE_FAMILY = ("EAGLE", "EAGLE3", "NEXTN")
DFLASH_FAMILY = ("DFLASH", "DSPARK")

# Bytes of one K or V element by --kv-cache-dtype. "auto" is the dtype the model is served in, which is 16-bit also for
# a float32 checkpoint (configs/model_config.py:2303-2321). mxfp8 adds one scale byte to every 32 elements
# (model_executor/pool_configurator.py:718-727).
DTYPE_BYTES = {"auto": 2, "fp8_e4m3": 1, "fp8_e5m2": 1, "mxfp8": 1, "bf16": 2, "bfloat16": 2}

# Known faults of earlier versions that a scenario may switch on, by name (policies.faults).
FAULTS = {
    "dflash-no-window-eviction": "DFLASH/DSPARK never frees out-of-window SWA slots (PR #33805)",
    "draft-pool-pre-split": "draft pools are sized with the token count before the full/SWA split (PR #17630)",
    "no-draft-budget": "the hybrid budget has no draft term (PR #28219)",
    "unaligned-reserve": "the speculative reserve is recorded without rounding to pages (PR #31616)",
}


@dataclass(frozen=True)
class Spec:
    """Speculative decoding, resolved.

    Parameters
    ----------
    algorithm : str
        EAGLE, EAGLE3, NEXTN, STANDALONE, DFLASH, DSPARK or NGRAM.
    num_steps, eagle_topk, num_draft_tokens : int
        As the flags ``--speculative-num-steps``, ``-eagle-topk``, ``-num-draft-tokens`` (verify width, root included).
    enable_multi_layer_eagle : bool
        One draft runner a step, each a depth of its own.
    """

    algorithm: str
    num_steps: int
    eagle_topk: int
    num_draft_tokens: int
    enable_multi_layer_eagle: bool = False

    @property
    def is_eagle(self) -> bool:
        """EAGLE, EAGLE-3 and NEXTN share one implementation."""
        return self.algorithm in EAGLE_FAMILY

    @property
    def is_dflash(self) -> bool:
        """DFlash and DSpark."""
        return self.algorithm in DFLASH_FAMILY

    @property
    def has_draft_kv(self) -> bool:
        """Whether a draft model with KV of its own runs beside the target."""
        return self.algorithm != "NGRAM"


@dataclass(frozen=True)
class Settings:
    """Everything of the server that decides about KV memory.

    Parameters
    ----------
    page_size, tp_size : int
        As the flags.
    kv_cache_dtype : str
        ``auto`` or a key of ``DTYPE_BYTES``.
    swa_full_tokens_ratio : float
        In (0, 1].
    max_total_tokens, max_running_requests : int or None
        User caps.
    chunked_prefill_size : int
        -1 switches chunking off.
    max_prefill_tokens : int
        Default 16384.
    context_len : int
        Longest request.
    prefill_max_requests : int or None
        ``--prefill-max-requests``: most requests of one prefill pass.
    swa_eviction_interval : int
        ``SGLANG_SWA_EVICTION_INTERVAL``, 128.
    init_new_token_ratio, new_token_ratio_decay_steps, retract_decode_steps : float, int, int
        ``SGLANG_INIT_NEW_TOKEN_RATIO``, ``SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS``, ``SGLANG_RETRACT_DECODE_STEPS``
        (environ.py:646-650).
    hybrid : bool
        Full and SWA pools are split.
    hybrid_disabled : bool
        ``--disable-hybrid-swa-memory``: the draft's pools are not split either.
    window : int or None
        Earlier tokens the SWA cache keeps.
    attention_window : int or None
        Tokens a sliding layer attends to, also where the engine caches it as a full one; None: ``window``.
    spec : Spec or None
        Speculation.
    faults : frozenset of str
        Keys of ``FAULTS`` that are switched on.
    """

    page_size: int = 1
    tp_size: int = 1
    kv_cache_dtype: str = "auto"
    swa_full_tokens_ratio: float = 0.8
    max_total_tokens: int | None = None
    max_running_requests: int | None = None
    chunked_prefill_size: int = 4096
    max_prefill_tokens: int = 16384
    context_len: int = 131072
    prefill_max_requests: int | None = None
    swa_eviction_interval: int = 128
    init_new_token_ratio: float = 0.7
    new_token_ratio_decay_steps: int = 600
    retract_decode_steps: int = 20
    disable_radix_cache: bool = False
    disable_overlap_schedule: bool = False
    enable_mixed_chunk: bool = False
    schedule_conservativeness: float = 1.0
    hybrid: bool = False
    hybrid_disabled: bool = False
    window: int | None = None
    attention_window: int | None = None
    spec: Spec | None = None
    faults: frozenset[str] = frozenset()

    @property
    def chunk(self) -> int | None:
        """Chunk limit of one prefill pass; None when chunking is off (managers/scheduler.py:1372-1373)."""
        return self.chunked_prefill_size if self.chunked_prefill_size > 0 else None


def resolve_spec(
    algorithm: str,
    arch: Arch,
    draft: Arch | None,
    *,
    num_steps: int | None,
    eagle_topk: int | None,
    num_draft_tokens: int | None,
    enable_multi_layer_eagle: bool | None,
) -> tuple[Spec, list[str]]:
    """Fill in what the engine fills in, and say where it overrides the user.

    Returns
    -------
    spec : Spec
    notes : list of str
        One line for every value the engine changes on its own.

    Notes
    -----
    Rules: arg_groups/speculative_hook.py:334-425 (DFLASH), 757-850 (DSPARK), 1159-1265 (EAGLE), 1314-1329 (NGRAM).
    """
    notes: list[str] = []
    if algorithm in DFLASH_FAMILY:
        block = draft.block_size if draft is not None else None
        if algorithm == "DFLASH":
            width = num_draft_tokens or block or 16
        else:
            width = num_draft_tokens or (block or 7) + 1
        for name, value in (("num_steps", num_steps), ("eagle_topk", eagle_topk)):
            if value not in (None, 1):
                notes.append(f"draft.{name} {value} is set to 1: {algorithm} proposes one block")
        return Spec(algorithm, 1, 1, width), notes
    if algorithm == "NGRAM":
        return Spec(algorithm, num_steps or 1, eagle_topk or 1, num_draft_tokens or 12), notes
    steps, topk, width = default_spec(arch.architecture, algorithm)
    if num_steps is not None:
        steps, topk = num_steps, eagle_topk or 1
        width = num_draft_tokens or steps + 1
    else:
        topk = eagle_topk or topk
        width = num_draft_tokens or width
    if topk == 1 and width != steps + 1:
        notes.append(f"draft.num_draft_tokens {width} becomes num_steps + 1 = {steps + 1}: eagle_topk is 1")
        width = steps + 1
    multi = enable_multi_layer_eagle
    if multi is None:
        multi = algorithm == "EAGLE" and draft is None and defaults_to_multi_layer(arch.architecture)
        if multi:
            notes.append("enable_multi_layer_eagle is on: the engine sets it for this model")
    return Spec(algorithm, steps, topk, width, multi), notes


def resolve_ratio(arch: Arch, stated: float | None) -> float:
    """``swa_full_tokens_ratio``: the user's, else the model's default."""
    return default_ratio(arch) if stated is None else stated
