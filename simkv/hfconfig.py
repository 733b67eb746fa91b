"""Facts of a model, read from its Hugging Face ``config.json``: :func:`facts`.

Rules of the spellings are those of transformers' configuration classes (``models/*/configuration_*.py`` of
5.19 and 5.24), unless a function names another source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal, TypeAlias

from simkv.errors import ModelError, nearest
from simkv.hfreader import Reader, is_list, load, short

__all__ = ["OF_LAYERS", "Geometry", "LayerKind", "Layers", "facts"]

LayerKind = Literal["full", "sliding", "chunked", "linear", "mla", "compressed"]

Layers: TypeAlias = tuple[LayerKind, ...]


@dataclass(frozen=True)
class Geometry:
    """What one token writes into one layer, before tensor parallelism.

    Parameters
    ----------
    kv_heads : int
        Key/value heads of the layer. 1 for a latent (MLA) layer.
    head_dim, v_head_dim : int
        Width of a key head and of a value head, in elements. A latent layer has its latent plus rotary width
        as ``head_dim`` and 0 as ``v_head_dim``.
    latent : bool
        True for MLA: one latent a token, not split over tensor-parallel ranks.
    """

    kv_heads: int
    head_dim: int
    v_head_dim: int
    latent: bool = False

    def elements(self, tp_size: int = 1) -> int:
        """Elements one token takes in one layer on one of ``tp_size`` ranks."""
        heads = self.kv_heads if self.latent else max(1, self.kv_heads // tp_size)
        return heads * (self.head_dim + self.v_head_dim)


def facts(config: Mapping[str, Any] | str | PathLike[str], *, name: str | None = None) -> dict[str, Any]:
    """Facts of a config, by the field names of :class:`simkv.arch.Arch`; its ``from_config`` has the arguments.

    Geometries that no layer needs may be among them; the state, which follows from other facts, is not.
    """
    source, loaded = load(config)
    reader = Reader.over(loaded, source)
    found = _read(reader)
    if reader.problems:
        raise ModelError(name or source, reader.problems)
    return {"name": name or source, **found}


def _read(reader: Reader) -> dict[str, Any]:
    """All facts but the name; what is wrong is left in ``reader.problems``."""
    depth = reader.integer("num_hidden_layers")
    if reader.get("num_hidden_layers") is None:
        reader.reject("num_hidden_layers", "missing; write the number of layers as a positive integer")
    architecture = _architecture(reader)
    full, sliding, missing = _geometries(reader)
    layers = _layer_kinds(reader, depth or 0)
    if full is not None and full.latent:
        layers = tuple("mla" if kind == "full" else kind for kind in layers)
    if all(kind in ("linear", "compressed") for kind in layers):
        full, sliding, missing = None, None, []
    dtype_bytes = _dtype_bytes(reader)
    declared = reader.flag("mtp_layer_id_is_depth")
    return {
        "architecture": architecture,
        "layers": layers,
        "full": full,
        "sliding": sliding,
        "window": _window(reader),
        "chunk": reader.integer("attention_chunk_size") if "chunked" in layers else None,
        "context_len": reader.integer("max_position_embeddings"),
        "dtype_bytes": dtype_bytes,
        **_mtp_facts(reader),
        "mtp_layer_id_is_depth": declared if declared is not None else architecture in _DEPTH_ID_CLASSES,
        "is_hybrid_swa": reader.flag("is_hybrid_swa") or False,
        "num_kv_shared_layers": reader.integer("num_kv_shared_layers", least=0) or 0,
        "hidden_size": reader.integer("hidden_size"),
        "num_attention_heads": reader.integer("num_attention_heads"),
        "vocab_size": reader.integer("vocab_size"),
        "weight_bits": _weight_bits(reader, dtype_bytes),
        "sconv_kernel_size": _sconv_kernel(reader, architecture),
        "block_size": reader.integer("block_size"),
        "unsupported": (*_layer_phrases(layers), *missing, *_other_phrases(reader, layers, architecture)),
        **_params(reader, layers, full, sliding),
        "unverified": _words(reader.get("unverified")),
        "config": dict(reader.text),
        "source": _source(reader.get("source")),
    }


# ---------------------------------------------------------------- kinds of the layers

_TYPES: dict[str, LayerKind] = {
    "full_attention": "full",
    "attention": "full",
    "hybrid": "full",
    "indexed_attention": "full",
    "deepseek_sparse_attention": "full",
    "sliding_attention": "sliding",
    "hybrid_sliding": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "linear",
    "mamba": "linear",
    "mamba2": "linear",
    "recurrent": "linear",
    "conv": "linear",
    "compressed_sparse_attention": "compressed",
    "heavily_compressed_attention": "compressed",
}

# Model types whose class makes every n-th layer full and lets the others slide, where the config has no list.
_CLASS_INTERVAL = {
    "cohere2": 4,
    "exaone4": 4,
    "exaone_moe": 4,
    "gemma2": 2,
    "gemma3": 6,
    "gemma3_text": 6,
    "gemma3n": 5,
    "gemma3n_text": 5,
    "gemma4": 6,
    "gemma4_text": 6,
    "gpt_oss": 2,
    "inkling_model": 6,
    "inkling_text": 6,
    "olmo3": 4,
    "vaultgemma": 2,
}

# Keys that only models with recurrent layers have; without a layer list, their layer rule is not read here.
_RECURRENT_KEYS = (
    "attn_layer_period",
    "block_types",
    "hybrid_override_pattern",
    "linear_attn_config",
    "linear_key_head_dim",
    "mamba_d_state",
    "ssm_state_size",
    "state_size",
)

_Rule: TypeAlias = Callable[[Reader, int], Layers | None]


def _layer_kinds(reader: Reader, count: int) -> Layers:
    """Kind of each of ``count`` layers: the first spelling that the config uses decides."""
    slides = reader.flag("use_sliding_window") is not False
    found = next((kinds for rule in _RULES if (kinds := rule(reader, count)) is not None), _all("full", count))
    return tuple("full" if kind == "sliding" and not slides else kind for kind in found)


def _all(kind: LayerKind, count: int) -> Layers:
    return (kind,) * count


def _by_compression(reader: Reader, count: int) -> Layers | None:
    """DeepSeek-V4's ``compress_ratios``: each layer packs latents its own way, also those of ratio 0."""
    return _all("compressed", count) if reader.get("compress_ratios") is not None else None


def _by_types(reader: Reader, count: int) -> Layers | None:
    """``layer_types`` or ``layers_block_type``; entries past the hidden layers describe MTP layers (Step-3.5)."""
    for key in ("layer_types", "layers_block_type"):
        if reader.get(key) is not None:
            return tuple(_TYPES[entry] for entry in reader.per_layer(key, count, list(_TYPES)) or ())
    return None


def _by_flags(reader: Reader, count: int) -> Layers | None:
    """Lists of 0 and 1: ``hybrid_layer_pattern`` (MiMo, 1 slides), ``attn_type_list`` (MiniMax-01, 0 is linear)."""
    spellings: dict[str, tuple[LayerKind, LayerKind]] = {
        "hybrid_layer_pattern": ("full", "sliding"),
        "attn_type_list": ("linear", "full"),
    }
    for key, kinds in spellings.items():
        if reader.get(key) is not None:
            return tuple(kinds[entry] for entry in reader.per_layer(key, count, [0, 1]) or ())
    return None


def _by_ids(reader: Reader, count: int) -> Layers | None:
    """Inkling's ``local_layer_ids``: the layers that slide."""
    if reader.get("local_layer_ids") is None:
        return None
    ids = reader.ids("local_layer_ids", below=count) or ()
    return tuple("sliding" if i in ids else "full" for i in range(count))


def _every(interval: int, count: int, other: LayerKind) -> Layers:
    """Every ``interval``-th layer full, the rest of the other kind; interval 0 makes all of them full."""
    return tuple("full" if interval == 0 or (i + 1) % interval == 0 else other for i in range(count))


def _by_interval(reader: Reader, count: int) -> Layers | None:
    """``full_attention_interval`` (Qwen3-Next: the others are linear) and ``sliding_window_pattern``."""
    if reader.get("full_attention_interval") is not None:
        return _every(reader.integer("full_attention_interval") or 0, count, "linear")
    for key in ("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers"):
        value = reader.get(key)
        if value is None:
            continue
        if reader.text.get("sliding_window", 0) is None:  # an explicit null switches the pattern off (EXAONE-4)
            return _all("full", count)
        if isinstance(value, str):
            return _by_letters(reader, key, value, count)
        return _every(reader.integer(key, least=0) or 0, count, "sliding")
    return None


def _by_letters(reader: Reader, key: str, letters: str, count: int) -> Layers | None:
    """EXAONE's ``LLLG``: local and global, repeated from layer 0."""
    if not letters or set(letters) - {"L", "G"}:
        reader.reject(key, f"{short(letters)} is not a pattern of L (local) and G (global); write that or a number")
        return None
    return tuple("sliding" if letters[i % len(letters)] == "L" else "full" for i in range(count))


def _by_windows(reader: Reader, count: int) -> Layers | None:
    """Mistral's ``interleaved_sliding_window``: windows repeated from layer 0, null for a full layer."""
    value = reader.get("interleaved_sliding_window")
    if value is None:
        return None
    windows = [entry for entry in value if entry is not None] if is_list(value) else []
    if not windows or any(type(entry) is not int or entry < 1 or entry != windows[0] for entry in windows):
        message = f"{short(value)} is not a list of null and one window; write a positive integer for sliding layers"
        reader.reject("interleaved_sliding_window", message)
        return None
    return tuple("full" if value[i % len(value)] is None else "sliding" for i in range(count))


def _by_chunk(reader: Reader, count: int) -> Layers | None:
    """Llama-4: chunked, but for the layers without rotary embedding (``no_rope_layers`` 0, or every fourth)."""
    if reader.get("attention_chunk_size") is None or reader.get("sliding_window") is not None:
        return None
    if reader.get("no_rope_layers"):
        listed = reader.per_layer("no_rope_layers", count, [0, 1])
        return tuple("chunked" if entry else "full" for entry in listed or ())
    return _every(reader.integer("no_rope_layer_interval") or 4, count, "chunked")


def _by_window(reader: Reader, count: int) -> Layers | None:
    """A window without a layer list: the class's interval, Qwen's ``max_window_layers``, or every layer."""
    if _window(reader) is None:
        return None
    interval = _CLASS_INTERVAL.get(str(reader.get("model_type")))
    if interval is not None:
        return _every(interval, count, "sliding")
    first = reader.integer("max_window_layers", least=0) if reader.get("use_sliding_window") else None
    return tuple("sliding" if i >= (first or 0) else "full" for i in range(count))


_RULES: tuple[_Rule, ...] = (
    _by_compression,
    _by_types,
    _by_flags,
    _by_ids,
    _by_interval,
    _by_windows,
    _by_chunk,
    _by_window,
)


def _window(reader: Reader) -> int | None:
    """The config's sliding window, in tokens; 0 means none."""
    interleaved = reader.get("interleaved_sliding_window")
    if is_list(interleaved):
        return next((entry for entry in interleaved if type(entry) is int and entry > 0), None)
    return reader.integer("sliding_window", "sliding_window_size", "window_size", least=0) or None


# ---------------------------------------------------------------- geometry

_KV_HEADS = ("num_key_value_heads", "num_attention_groups", "num_kv_heads", "n_head_kv", "multi_query_group_num")


def _geometries(reader: Reader) -> tuple[Geometry | None, Geometry | None, list[str]]:
    """Geometry of full and of sliding layers, and what the config does not state of them.

    Missing KV heads are the attention heads, a missing head width is ``hidden_size // num_attention_heads``, a
    missing value width is the key width, and a missing fact of the sliding layers is that of the full ones.
    """
    if reader.get("kv_lora_rank"):
        return _latents(reader)
    heads, hidden = reader.integer("num_attention_heads"), reader.integer("hidden_size")
    kv_heads = reader.integer(*_KV_HEADS) or heads
    width = reader.integer("head_dim") or (hidden // heads if hidden and heads else None)
    value_width = reader.integer("v_head_dim", least=0) or width
    missing = ["KV heads (num_key_value_heads is not stated)"] if kv_heads is None else []
    missing += ["head width (head_dim is not stated)"] if width is None else []

    sliding_width = reader.integer("swa_head_dim")
    sliding_value = reader.integer("swa_v_head_dim") or sliding_width or value_width
    sliding_heads = reader.integer("swa_num_key_value_heads")
    other = reader.sub("attention_other_setting")
    if other is not None:
        sliding_heads = sliding_heads or other.integer("num_attention_groups", "num_key_value_heads")
        sliding_width = sliding_width or other.integer("head_dim")
        sliding_value = other.integer("head_dim") or sliding_value
    sliding = _geometry(sliding_heads or kv_heads, sliding_width or width, sliding_value)

    # Gemma-4 states its full layers apart; the plain keys are then those of the sliding layers.
    wide, few = reader.integer("global_head_dim"), reader.integer("num_global_key_value_heads")
    full = _geometry(few or kv_heads, wide or width, wide or value_width)
    return full, sliding, missing


def _geometry(kv_heads: int | None, head_dim: int | None, v_head_dim: int | None) -> Geometry | None:
    if kv_heads is None or head_dim is None or v_head_dim is None:
        return None
    return Geometry(kv_heads, head_dim, v_head_dim)


def _latents(reader: Reader) -> tuple[Geometry | None, Geometry | None, list[str]]:
    """MLA: one latent and one rotary key a token, whatever the number of heads."""
    rank, rope = reader.integer("kv_lora_rank"), reader.integer("qk_rope_head_dim")
    if rank is None or rope is None:
        return None, None, ["rotary width of the latent (qk_rope_head_dim is not stated)"]
    narrow = reader.integer("swa_kv_lora_rank") or rank
    sliding = narrow + (reader.integer("swa_qk_rope_head_dim") or rope)
    return Geometry(1, rank + rope, 0, latent=True), Geometry(1, sliding, 0, latent=True), []


# ---------------------------------------------------------------- the other facts

_DTYPES = {
    "auto": 2,
    "bfloat16": 2,
    "float": 4,
    "float16": 2,
    "float32": 4,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "half": 2,
}

# Bits of a weight and its share of the block scales: 32 weights to 8 bits of scale, NVFP4 16 to 8.
_QUANT_BITS = {"nvfp4": 4.5, "modelopt_fp4": 4.5, "mxfp4": 4.25, "mxfp8": 8.25, "fp8": 8.0}


def _dtype_bytes(reader: Reader) -> int:
    """Bytes of the checkpoint's dtype; 2 where the config has none."""
    key = "torch_dtype" if reader.get("torch_dtype") is not None else "dtype"
    value = reader.get(key)
    if value is None:
        return 2
    word = str(value).removeprefix("torch.")
    if word not in _DTYPES:
        reader.reject(key, f"{short(value)} is not one of {', '.join(_DTYPES)}{nearest(word, _DTYPES)}")
    return _DTYPES.get(word, 2)


def _weight_bits(reader: Reader, dtype_bytes: int) -> float:
    """Average bits of a weight, from ``quantization_config``; those of the dtype where it names no width."""
    quant = reader.sub("quantization_config")
    if quant is None:
        return 8.0 * dtype_bytes
    words = " ".join(str(quant.get(key)) for key in ("quant_algo", "quant_method", "format")).lower()
    for word, width in _QUANT_BITS.items():
        if word in words:
            return width
    groups = quant.sub("config_groups")
    group = groups.sub(next(iter(groups.text))) if groups is not None and groups.text else None
    weights = group.sub("weights") if group is not None else None
    bits = (weights.integer("num_bits") if weights is not None else None) or quant.integer("bits", "w_bit")
    if bits is None and (quant.get("load_in_4bit") or quant.get("load_in_8bit")):
        bits = 4 if quant.get("load_in_4bit") else 8
    return float(bits or 8 * dtype_bytes)


def _stated_params(reader: Reader, key: str) -> float | None:
    """A stated parameter count: ``key``, or ``key`` with ``_b`` in billions."""
    billions = reader.number(f"{key}_b")
    return reader.number(key) or (billions * 1e9 if billions else None)


_EXPERT_KEYS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")


def _dense_params(reader: Reader, layers: Layers, full: Geometry | None, sliding: Geometry | None) -> float | None:
    """Parameters of a dense model of gated MLPs; None where the config does not tell, or has experts.

    With h = ``hidden_size``, a layer has ``2 h q + h (k + v)`` weights in attention (q, k, v: channels of
    queries, keys and values over all heads), ``3 h intermediate_size`` in its MLP and 2 h in its norms; a final
    norm, the embedding and, unless tied, the output head (``draft_vocab_size`` rows in a draft) are added.
    """
    h, inner = reader.integer("hidden_size"), reader.known("intermediate_size")
    heads, vocab = reader.integer("num_attention_heads"), reader.integer("vocab_size")
    experts = any(reader.known(key) > 1 for key in _EXPERT_KEYS)
    if h is None or not inner or vocab is None or heads is None or experts:
        return None
    head = 0 if reader.flag("tie_word_embeddings") else reader.known("draft_vocab_size") or vocab
    total = h * (1 + vocab + head)
    for kind in layers:
        geometry = full if kind == "full" else sliding
        if kind not in ("full", "sliding", "chunked") or geometry is None:
            return None
        queries = heads * (geometry.head_dim + geometry.v_head_dim)
        total += h * (queries + geometry.elements() + 3 * inner + 2)
    return float(total)


def _params(reader: Reader, layers: Layers, full: Geometry | None, sliding: Geometry | None) -> dict[str, float | None]:
    """Parameter counts, as stated or estimated; a dense model uses all of them for each token."""
    total, active = _stated_params(reader, "total_params"), _stated_params(reader, "active_params")
    dense = _dense_params(reader, layers, full, sliding)
    total = total or dense
    return {"total_params": total, "active_params": active or (total if dense else None)}


_DEPTH_ID_CLASSES = ("InklingForConditionalGeneration", "InklingForConditionalGenerationMTP")


def _mtp_facts(reader: Reader) -> dict[str, Any]:
    """Facts of the MTP layers; Inkling's checkpoints keep them in ``mtp_config``.

    There, a non-empty list replaces the flat key, as in SGLang 0.5.23 (``srt/configs/inkling.py:334-343``).
    """
    nested = reader.sub("mtp_config")
    flat_ids, flat_extent = reader.ids("mtp_local_layer_ids"), reader.integer("mtp_local_extent")
    nested_ids = nested.ids("local_layer_ids") if nested else None
    depth = nested.integer("n_layers", least=0) if nested else None
    if depth is None:
        depth = reader.integer("num_nextn_predict_layers", "mtp_num_hidden_layers", least=0)
    return {
        "num_nextn_predict_layers": depth,
        "mtp_local_layer_ids": nested_ids or (flat_ids if flat_ids is not None else nested_ids),
        "mtp_local_extent": (nested.integer("local_extent") if nested else None) or flat_extent,
        "mtp_blocks_in_checkpoint": reader.integer("mtp_blocks_in_checkpoint", least=0),
    }


def _architecture(reader: Reader) -> str:
    """First entry of ``architectures``; a multimodal config's own, not its text part's."""
    value = reader.outer.get("architectures") or reader.text.get("architectures") or []
    if not is_list(value) or any(not isinstance(entry, str) for entry in value):
        reader.reject("architectures", f"{short(value)} is not a list of class names; correct it or remove the key")
        return ""
    return str(value[0]) if value else ""


def _sconv_kernel(reader: Reader, architecture: str) -> int | None:
    """Kernel of Inkling's short convolutions; 4 where an Inkling config is silent (SGLang inkling.py:52)."""
    inkling = architecture.startswith("Inkling") or str(reader.get("model_type")).startswith("inkling")
    if not inkling:
        return reader.integer("sconv_kernel_size")
    return reader.integer("sconv_kernel_size", "conv_kernel_size") or 4


# How the phrases of ``unsupported`` start that other layers make void.
OF_LAYERS = ("linear-attention", "compressed KV", "window of", "chunk of", "recurrent")


def _layer_phrases(layers: Layers) -> list[str]:
    """Phrases for layers whose memory simkv cannot account for."""
    names: dict[LayerKind, str] = {"linear": "linear-attention state", "compressed": "compressed KV"}
    found = [(what, layers.count(kind)) for kind, what in names.items()]
    return [f"{what} ({n} of {len(layers)} layers)" for what, n in found if n]


def _other_phrases(reader: Reader, layers: Layers, architecture: str) -> list[str]:
    """Phrases for what else simkv cannot account for."""
    phrases = []
    if "sliding" in layers and _window(reader) is None:
        phrases.append("window of the sliding layers (sliding_window is not stated)")
    if "chunked" in layers and reader.integer("attention_chunk_size") is None:
        phrases.append("chunk of the chunked layers (attention_chunk_size is not stated)")
    index = reader.integer("index_head_dim")
    if index is not None and "compressed" not in layers:
        phrases.append(f"sparse-attention index keys (index_head_dim {index})")
    types = reader.get("layer_types")
    hybrid = is_list(types) and {"hybrid", "hybrid_sliding"} & set(map(str, types))
    if hybrid and _sconv_kernel(reader, architecture) is None:
        phrases.append("recurrent state of the hybrid layers")
    recurrent = [key for key in _RECURRENT_KEYS if reader.get(key) is not None]
    if recurrent and "linear" not in layers:
        phrases.append(f"recurrent layers ({recurrent[0]} is stated, but no layer list)")
    return phrases


def _words(value: Any) -> tuple[str, ...]:
    return tuple(map(str, value)) if is_list(value) else ()


def _source(value: Any) -> dict[str, str]:
    if isinstance(value, Mapping):
        return {str(key): str(text) for key, text in value.items()}
    return {"*": value} if isinstance(value, str) else {}
