"""Layers of a model, by kind, read from its Hugging Face ``config.json``.

This module states facts of the architecture only. What an engine makes of them (which models it treats as
hybrid, which window its cache keeps) is a rule of the engine and lives in its wing.

Rules of the spellings are those of transformers' configuration classes (``models/*/configuration_*.py`` of
5.19 and 5.24), unless a function names another source.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal, TypeAlias

from simkv.errors import ModelError, Problem, nearest

__all__ = ["Arch", "Geometry", "LayerKind"]

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


@dataclass(frozen=True)
class Arch:
    """Facts of one model.

    Parameters
    ----------
    name : str
        Built-in name, file name or ``<inline>``.
    architecture : str
        First entry of ``architectures``; empty if the config has none.
    layers : tuple of LayerKind
        Kind of each hidden layer, in order (MTP layers are not part of it).
    full, sliding : Geometry or None
        Geometry of full-attention (or latent) and of sliding/chunked layers; None where neither a hidden layer
        nor an MTP layer needs it, or where the config does not state it (``unsupported`` then says so).
    window : int or None
        The config's sliding window, in tokens, also where no layer uses it.
    chunk : int or None
        ``attention_chunk_size`` of chunked layers.
    context_len : int or None
        ``max_position_embeddings``.
    dtype_bytes : int
        Bytes of the checkpoint's dtype (``torch_dtype``/``dtype``; 2 when absent).
    num_nextn_predict_layers : int or None
        MTP layers as the config states them; None where the key is absent (that differs from 0).
    mtp_local_layer_ids : tuple of int or None
        Depths with sliding attention; None where the key is absent (that differs from an empty list).
    mtp_local_extent : int or None
        Window of those depths, in tokens; None where they use the trunk's.
    mtp_blocks_in_checkpoint : int or None
        MTP blocks the checkpoint ships although its config has no key for them.
    mtp_layer_id_is_depth : bool
        Fact of the model class: an MTP head's layer id is its depth (true for Inkling).
    is_hybrid_swa : bool
        The config's own ``is_hybrid_swa`` opt-in.
    num_kv_shared_layers : int
        Last layers that reuse the KV of earlier ones (Gemma-3n, Gemma-4-E*).
    hidden_size, num_attention_heads, vocab_size : int or None
        For the roofline and the draft's weights.
    total_params, active_params : float or None
        Parameters of the model; of those, used per token. Stated, or estimated for a dense model.
    weight_bits : float
        Average bits a weight takes as loaded (16, 8, 4.25 ...).
    state_bytes_per_request : int
        Fixed state a running request holds besides KV, in bytes, whole model, before tensor parallelism
        (Inkling's short convolutions); 0 for none. See :meth:`state_bytes`.
    sconv_kernel_size : int or None
        Kernel of those convolutions, in tokens; None where the model has none.
    block_size : int or None
        A DFlash/DSpark draft's block.
    unsupported : tuple of str
        What simkv cannot account for; non-empty means plans refuse this model by name.
    unverified : tuple of str
        What the source of the numbers inferred (catalogue models).
    config : dict
        The text config the facts were read from.
    source : dict
        Where the numbers come from (catalogue models).
    """

    name: str
    architecture: str
    layers: tuple[LayerKind, ...]
    full: Geometry | None
    sliding: Geometry | None
    window: int | None = None
    chunk: int | None = None
    context_len: int | None = None
    dtype_bytes: int = 2
    num_nextn_predict_layers: int | None = None
    mtp_local_layer_ids: tuple[int, ...] | None = None
    mtp_local_extent: int | None = None
    mtp_blocks_in_checkpoint: int | None = None
    mtp_layer_id_is_depth: bool = False
    is_hybrid_swa: bool = False
    num_kv_shared_layers: int = 0
    hidden_size: int | None = None
    num_attention_heads: int | None = None
    vocab_size: int | None = None
    total_params: float | None = None
    active_params: float | None = None
    weight_bits: float = 16.0
    state_bytes_per_request: int = 0
    sconv_kernel_size: int | None = None
    block_size: int | None = None
    unsupported: tuple[str, ...] = ()
    unverified: tuple[str, ...] = field(default=(), compare=False, repr=False)
    config: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    source: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | str | PathLike[str], *, name: str | None = None) -> Arch:
        """Read the facts from a config.

        Parameters
        ----------
        config : dict, str or path
            A config in Hugging Face's key names; the path of a ``config.json``, or of the folder that holds
            it; or a built-in name (:func:`simkv.catalogue.names`). Keys that simkv does not need are ignored.
        name : str, optional
            Name of the result, instead of the built-in name, the file name or ``<inline>``.

        Raises
        ------
        ModelError
            With every problem at once, if the config is wrong. A config that is merely beyond simkv is no
            error here: ``unsupported`` says what is missing.
        """
        source, loaded = _load(config)
        reader = _Reader.over(loaded, source)
        arch = _read(reader, name or source)
        if reader.problems:
            raise ModelError(name or source, reader.problems)
        return arch

    def count(self, *kinds: LayerKind) -> int:
        """Number of hidden layers of the given kinds."""
        return sum(layer in kinds for layer in self.layers)

    def state_bytes(self, tp_size: int = 1, *, scattered: bool = False) -> int:
        """Fixed state a running request holds on one rank, in bytes.

        Each layer keeps the last ``sconv_kernel_size - 1`` inputs of six bfloat16 convolution streams: keys and
        values of the full geometry, keys and values of the sliding geometry (every layer allocates both), and
        the hidden stream after attention and after the MLP. The four key/value streams shrink with the
        tensor-parallel size like KV heads do (``max(1, heads // tp_size)``) and are a key head wide; the two
        hidden streams stay whole on each rank, unless the engine scatters its convolutions.
        Source: SGLang 0.5.23, ``srt/configs/inkling.py:217-256``.

        Parameters
        ----------
        tp_size : int
            Ranks the attention is split over.
        scattered : bool
            True where the hidden streams are split over the ranks too (SGLang's scattered convolutions).

        Returns
        -------
        int
            Bytes; ``state_bytes_per_request`` for a model without short convolutions.
        """
        if self.sconv_kernel_size is None:
            return self.state_bytes_per_request
        hidden = (self.hidden_size or 0) // (tp_size if scattered else 1)
        channels = 2 * (_key_channels(self.full, tp_size) + _key_channels(self.sliding, tp_size) + hidden)
        return len(self.layers) * (self.sconv_kernel_size - 1) * channels * _BF16_BYTES

    def with_layers(self, pattern: str, *, window: int | None = None) -> Arch:
        """A variant with other layers, for studies of new hybrids.

        Parameters
        ----------
        pattern : str
            One letter a layer: ``F`` full (latent, where this model's full layers are), ``S`` sliding.
        window : int, optional
            Window of the sliding layers, in tokens; this model's window (or chunk) by default.

        Returns
        -------
        Arch
            The same model otherwise, MTP facts included. A kind this model lacks takes the geometry of the
            other kind. Parameter counts hold for the original depth only and are dropped at any other.

        Raises
        ------
        ModelError
            If the pattern is empty or has other letters, or if a sliding layer has no window.
        """
        window = window if window is not None else self.window or self.chunk
        problems = _pattern_problems(pattern, window)
        if problems:
            raise ModelError(f"the layer pattern of {self.name}", problems)
        full, sliding = self.full or self.sliding, self.sliding or self.full
        deep: LayerKind = "mla" if full is not None and full.latent else "full"
        layers: Layers = tuple(deep if letter == "F" else "sliding" for letter in pattern.upper())
        same_depth = len(layers) == len(self.layers)
        unsupported = tuple(phrase for phrase in self.unsupported if not phrase.startswith(_OF_LAYERS))
        if full is None and not unsupported:
            unsupported = ("KV geometry of the layers (not stated)",)
        variant = replace(
            self,
            layers=layers,
            full=full,
            sliding=sliding,
            window=window,
            chunk=None,
            num_kv_shared_layers=min(self.num_kv_shared_layers, len(layers)),
            total_params=self.total_params if same_depth else None,
            active_params=self.active_params if same_depth else None,
            unsupported=unsupported,
        )
        return _settled(variant)

    def replace(self, **changes: Any) -> Arch:
        """A copy with some facts changed."""
        return replace(self, **changes)


_BF16_BYTES = 2

# How the phrases start that other layers make void.
_OF_LAYERS = ("linear-attention", "compressed KV", "window of", "chunk of", "recurrent")


def _key_channels(geometry: Geometry | None, tp_size: int) -> int:
    return max(1, geometry.kv_heads // tp_size) * geometry.head_dim if geometry else 0


def _pattern_problems(pattern: str, window: int | None) -> list[Problem]:
    """What is wrong with the arguments of ``with_layers``."""
    problems = []
    wrong = sorted({letter for letter in pattern.upper() if letter not in "FS"})
    if not pattern:
        problems.append(Problem("pattern", "empty; write one letter a layer, F for full and S for sliding"))
    if wrong:
        letters = ", ".join(map(repr, wrong))
        problems.append(Problem("pattern", f"{letters} is not F (full) or S (sliding); write one letter a layer"))
    if window is None and "S" in pattern.upper():
        problems.append(Problem("window", "missing: this model states no window; give one, in tokens"))
    elif window is not None and (type(window) is not int or window < 1):
        problems.append(Problem("window", f"{window!r} is not a positive integer; give the window in tokens"))
    return problems


def _settled(arch: Arch) -> Arch:
    """``arch`` with its state counted, and without geometries that no layer needs."""
    state = arch.state_bytes()
    needs_full = arch.count("full", "mla") or arch.num_nextn_predict_layers or arch.mtp_blocks_in_checkpoint
    # The convolution state is wide for both kinds whatever the layers are.
    needs_sliding = arch.count("sliding", "chunked") or arch.mtp_local_layer_ids or arch.sconv_kernel_size
    return replace(
        arch,
        full=arch.full if needs_full or arch.sconv_kernel_size else None,
        sliding=arch.sliding if needs_sliding else None,
        state_bytes_per_request=state,
    )


# ---------------------------------------------------------------- where a config comes from


def _load(config: Mapping[str, Any] | str | PathLike[str]) -> tuple[str, Any]:
    """Name and content of what the caller gave."""
    if not isinstance(config, str | PathLike):
        return "<inline>", config
    text = fspath(config)
    if isinstance(config, str) and Path(text).name == text and not text.endswith(".json"):
        # The catalogue reads its entries through this class: imported late, because each needs the other.
        from simkv import catalogue

        if not text or text in catalogue.names() or not Path(text).exists():
            return text, catalogue.config(text)
    return _load_file(Path(text))


def _load_file(path: Path) -> tuple[str, Any]:
    """Name and content of a ``config.json``, or of the folder that holds one."""
    if path.is_dir():
        path = path / "config.json"
    try:
        return path.name, json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        problem = Problem(str(path), "not found; give a config.json, its folder, or a name that `simkv models` lists")
    except json.JSONDecodeError as error:
        problem = Problem(f"{path}:{error.lineno}", f"is not JSON: {error.msg}; correct it or download it again")
    except UnicodeDecodeError as error:
        problem = Problem(str(path), f"is not UTF-8 text ({error.reason}); give the JSON file itself")
    except OSError as error:
        problem = Problem(str(path), f"cannot be read: {error.strerror}; give a file that can")
    raise ModelError(str(path), [problem])


# ---------------------------------------------------------------- reading values

_NESTED = ("text_config", "language_config", "llm_config")

# Keys that multimodal configs state beside the text config as well as in it.
_OUTER = frozenset(
    {
        "active_params",
        "active_params_b",
        "architectures",
        "block_size",
        "dtype",
        "is_hybrid_swa",
        "max_position_embeddings",
        "model_type",
        "mtp_blocks_in_checkpoint",
        "mtp_config",
        "mtp_layer_id_is_depth",
        "mtp_local_extent",
        "mtp_local_layer_ids",
        "mtp_num_hidden_layers",
        "num_nextn_predict_layers",
        "quantization_config",
        "source",
        "tie_word_embeddings",
        "torch_dtype",
        "total_params",
        "total_params_b",
        "unverified",
        "vocab_size",
    }
)


@dataclass
class _Reader:
    """Typed look-ups in a config that collect problems instead of raising.

    A look-up returns None for a key that is absent, null or wrong; only the last is a problem.
    """

    text: Mapping[str, Any]
    outer: Mapping[str, Any]
    prefix: str
    problems: list[Problem]

    @classmethod
    def over(cls, config: Any, source: str) -> _Reader:
        """Reader of a whole config; finds the text part of a multimodal one."""
        problems: list[Problem] = []
        if not isinstance(config, Mapping):
            message = f"{_short(config)} is not a table of keys; give the content of a config.json"
            raise ModelError(source, [Problem("config", message)])
        for key in _NESTED:
            nested = config.get(key)
            if isinstance(nested, Mapping):
                if "num_hidden_layers" in nested or "num_hidden_layers" not in config:
                    return cls(nested, config, f"{key}.", problems)
            elif nested is not None:
                problems.append(Problem(key, f"{_short(nested)} is not a table of keys; remove it or correct it"))
        return cls(config, {}, "", problems)

    def find(self, key: str) -> tuple[str, Any]:
        """Dotted place and value of a key."""
        if self.text.get(key) is None and key in _OUTER and self.outer.get(key) is not None:
            return key, self.outer[key]
        return self.prefix + key, self.text.get(key)

    def get(self, key: str) -> Any:
        """Value of a key as it stands."""
        return self.find(key)[1]

    def reject(self, key: str, message: str) -> None:
        """Note a problem of a key."""
        problem = Problem(self.find(key)[0], message)
        if problem not in self.problems:
            self.problems.append(problem)

    def integer(self, *keys: str, least: int = 1) -> int | None:
        """First of the keys that is stated, as an integer not below ``least``."""
        key = next((key for key in keys if self.get(key) is not None), None)
        if key is None:
            return None
        value = self.get(key)
        if type(value) is not int or value < least:
            wanted = "a positive integer" if least == 1 else f"an integer of {least} or more"
            self.reject(key, f"{_short(value)} is not {wanted}; correct it or remove the key")
            return None
        return value

    def known(self, key: str) -> int:
        """A positive integer, or 0: for estimates, which a config of another form must not break."""
        value = self.get(key)
        return value if type(value) is int and value > 0 else 0

    def number(self, key: str) -> float | None:
        """A positive number."""
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            self.reject(key, f"{_short(value)} is not a positive number; correct it or remove the key")
            return None
        return float(value)

    def flag(self, key: str) -> bool | None:
        """True or false."""
        value = self.get(key)
        if value is None or isinstance(value, bool):
            return value
        self.reject(key, f"{_short(value)} is not true or false; correct it or remove the key")
        return None

    def sub(self, key: str) -> _Reader | None:
        """Reader of a nested table."""
        place, value = self.find(key)
        if value is None:
            return None
        if isinstance(value, Mapping):
            return _Reader(value, {}, f"{place}.", self.problems)
        self.reject(key, f"{_short(value)} is not a table of keys; correct it or remove the key")
        return None

    def ids(self, key: str, *, below: int | None = None) -> tuple[int, ...] | None:
        """A list of layer numbers (an empty list is not None)."""
        value = self.get(key)
        if value is None:
            return None
        if not _is_list(value) or any(type(entry) is not int or entry < 0 for entry in value):
            self.reject(key, f"{_short(value)} is not a list of layer numbers; write integers from 0, or drop the key")
            return None
        high = [entry for entry in value if below is not None and entry >= below]
        if high:
            self.reject(key, f"{high[0]} is beyond the last layer; layers are numbered 0 to {(below or 0) - 1}")
            return None
        return tuple(value)

    def per_layer(self, key: str, count: int, allowed: Sequence[Any]) -> list[Any] | None:
        """A list with an entry a layer, each of the allowed ones; a longer list is cut to ``count``."""
        value = self.get(key)
        if value is None:
            return None
        if not _is_list(value):
            self.reject(key, f"{_short(value)} is not a list; write one entry for each of the {count} layers")
            return None
        entries, kind = list(value), type(allowed[0])
        # By type too: True equals 1, and a list in place of a word cannot be looked up.
        wrong = [(i, entry) for i, entry in enumerate(entries) if type(entry) is not kind or entry not in allowed]
        if wrong:
            layer, entry = wrong[0]
            hint = nearest(entry, map(str, allowed)) if isinstance(entry, str) else ""
            self.reject(key, f"{_short(entry)} (layer {layer}) is not one of {', '.join(map(str, allowed))}{hint}")
        if len(entries) < count:
            self.reject(key, f"has {len(entries)} entries for {count} layers; write one for each layer")
        return None if wrong or len(entries) < count else entries[:count]


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _short(value: Any) -> str:
    """``repr`` of a value, cut to fit a line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


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

_Rule: TypeAlias = Callable[[_Reader, int], Layers | None]


def _layer_kinds(reader: _Reader, count: int) -> Layers:
    """Kind of each of ``count`` layers: the first spelling that the config uses decides."""
    slides = reader.flag("use_sliding_window") is not False
    found = next((kinds for rule in _RULES if (kinds := rule(reader, count)) is not None), _all("full", count))
    return tuple("full" if kind == "sliding" and not slides else kind for kind in found)


def _all(kind: LayerKind, count: int) -> Layers:
    return (kind,) * count


def _by_compression(reader: _Reader, count: int) -> Layers | None:
    """DeepSeek-V4's ``compress_ratios``: each layer packs latents its own way, also those of ratio 0."""
    return _all("compressed", count) if reader.get("compress_ratios") is not None else None


def _by_types(reader: _Reader, count: int) -> Layers | None:
    """``layer_types`` or ``layers_block_type``; entries past the hidden layers describe MTP layers (Step-3.5)."""
    for key in ("layer_types", "layers_block_type"):
        if reader.get(key) is not None:
            return tuple(_TYPES[entry] for entry in reader.per_layer(key, count, list(_TYPES)) or ())
    return None


def _by_flags(reader: _Reader, count: int) -> Layers | None:
    """Lists of 0 and 1: ``hybrid_layer_pattern`` (MiMo, 1 slides), ``attn_type_list`` (MiniMax-01, 0 is linear)."""
    spellings: dict[str, tuple[LayerKind, LayerKind]] = {
        "hybrid_layer_pattern": ("full", "sliding"),
        "attn_type_list": ("linear", "full"),
    }
    for key, kinds in spellings.items():
        if reader.get(key) is not None:
            return tuple(kinds[entry] for entry in reader.per_layer(key, count, [0, 1]) or ())
    return None


def _by_ids(reader: _Reader, count: int) -> Layers | None:
    """Inkling's ``local_layer_ids``: the layers that slide."""
    if reader.get("local_layer_ids") is None:
        return None
    ids = reader.ids("local_layer_ids", below=count) or ()
    return tuple("sliding" if i in ids else "full" for i in range(count))


def _every(interval: int, count: int, other: LayerKind) -> Layers:
    """Every ``interval``-th layer full, the rest of the other kind; interval 0 makes all of them full."""
    return tuple("full" if interval == 0 or (i + 1) % interval == 0 else other for i in range(count))


def _by_interval(reader: _Reader, count: int) -> Layers | None:
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


def _by_letters(reader: _Reader, key: str, letters: str, count: int) -> Layers | None:
    """EXAONE's ``LLLG``: local and global, repeated from layer 0."""
    if not letters or set(letters) - {"L", "G"}:
        reader.reject(key, f"{_short(letters)} is not a pattern of L (local) and G (global); write that or a number")
        return None
    return tuple("sliding" if letters[i % len(letters)] == "L" else "full" for i in range(count))


def _by_windows(reader: _Reader, count: int) -> Layers | None:
    """Mistral's ``interleaved_sliding_window``: windows repeated from layer 0, null for a full layer."""
    value = reader.get("interleaved_sliding_window")
    if value is None:
        return None
    windows = [entry for entry in value if entry is not None] if _is_list(value) else []
    if not windows or any(type(entry) is not int or entry < 1 or entry != windows[0] for entry in windows):
        message = f"{_short(value)} is not a list of null and one window; write a positive integer for sliding layers"
        reader.reject("interleaved_sliding_window", message)
        return None
    return tuple("full" if value[i % len(value)] is None else "sliding" for i in range(count))


def _by_chunk(reader: _Reader, count: int) -> Layers | None:
    """Llama-4: chunked, but for the layers without rotary embedding (``no_rope_layers`` 0, or every fourth)."""
    if reader.get("attention_chunk_size") is None or reader.get("sliding_window") is not None:
        return None
    if reader.get("no_rope_layers"):
        listed = reader.per_layer("no_rope_layers", count, [0, 1])
        return tuple("chunked" if entry else "full" for entry in listed or ())
    return _every(reader.integer("no_rope_layer_interval") or 4, count, "chunked")


def _by_window(reader: _Reader, count: int) -> Layers | None:
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


def _window(reader: _Reader) -> int | None:
    """The config's sliding window, in tokens; 0 means none."""
    interleaved = reader.get("interleaved_sliding_window")
    if _is_list(interleaved):
        return next((entry for entry in interleaved if type(entry) is int and entry > 0), None)
    return reader.integer("sliding_window", "sliding_window_size", "window_size", least=0) or None


# ---------------------------------------------------------------- geometry

_KV_HEADS = ("num_key_value_heads", "num_attention_groups", "num_kv_heads", "n_head_kv", "multi_query_group_num")


def _geometries(reader: _Reader) -> tuple[Geometry | None, Geometry | None, list[str]]:
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


def _latents(reader: _Reader) -> tuple[Geometry | None, Geometry | None, list[str]]:
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


def _dtype_bytes(reader: _Reader) -> int:
    """Bytes of the checkpoint's dtype; 2 where the config has none."""
    key = "torch_dtype" if reader.get("torch_dtype") is not None else "dtype"
    value = reader.get(key)
    if value is None:
        return 2
    word = str(value).removeprefix("torch.")
    if word not in _DTYPES:
        reader.reject(key, f"{_short(value)} is not one of {', '.join(_DTYPES)}{nearest(word, _DTYPES)}")
    return _DTYPES.get(word, 2)


def _weight_bits(reader: _Reader, dtype_bytes: int) -> float:
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


def _stated_params(reader: _Reader, key: str) -> float | None:
    """A stated parameter count: ``key``, or ``key`` with ``_b`` in billions."""
    billions = reader.number(f"{key}_b")
    return reader.number(key) or (billions * 1e9 if billions else None)


_EXPERT_KEYS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")


def _dense_params(reader: _Reader, arch: Arch) -> float | None:
    """Parameters of a dense model of gated MLPs; None where the config does not tell, or has experts.

    With h = ``hidden_size``, a layer has ``2 h q + h (k + v)`` weights in attention (q, k, v: channels of
    queries, keys and values over all heads), ``3 h intermediate_size`` in its MLP and 2 h in its norms; a final
    norm, the embedding and, unless tied, the output head (``draft_vocab_size`` rows in a draft) are added.
    """
    h, inner, vocab = arch.hidden_size, reader.known("intermediate_size"), arch.vocab_size
    experts = any(reader.known(key) > 1 for key in _EXPERT_KEYS)
    if h is None or not inner or vocab is None or arch.num_attention_heads is None or experts:
        return None
    head = 0 if reader.flag("tie_word_embeddings") else reader.known("draft_vocab_size") or vocab
    total = h * (1 + vocab + head)
    for kind in arch.layers:
        geometry = arch.full if kind == "full" else arch.sliding
        if kind not in ("full", "sliding", "chunked") or geometry is None:
            return None
        queries = arch.num_attention_heads * (geometry.head_dim + geometry.v_head_dim)
        total += h * (queries + geometry.elements() + 3 * inner + 2)
    return float(total)


def _with_params(reader: _Reader, arch: Arch) -> Arch:
    """``arch`` with its parameter counts; a dense model uses all of them for each token."""
    total, active = _stated_params(reader, "total_params"), _stated_params(reader, "active_params")
    dense = _dense_params(reader, arch)
    total = total or dense
    return replace(arch, total_params=total, active_params=active or (total if dense else None))


def _mtp_facts(reader: _Reader) -> dict[str, Any]:
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


def _architecture(reader: _Reader) -> str:
    """First entry of ``architectures``; a multimodal config's own, not its text part's."""
    value = reader.outer.get("architectures") or reader.text.get("architectures") or []
    if not _is_list(value) or any(not isinstance(entry, str) for entry in value):
        reader.reject("architectures", f"{_short(value)} is not a list of class names; correct it or remove the key")
        return ""
    return str(value[0]) if value else ""


def _sconv_kernel(reader: _Reader, architecture: str) -> int | None:
    """Kernel of Inkling's short convolutions; 4 where an Inkling config is silent (SGLang inkling.py:52)."""
    inkling = architecture.startswith("Inkling") or str(reader.get("model_type")).startswith("inkling")
    if not inkling:
        return reader.integer("sconv_kernel_size")
    return reader.integer("sconv_kernel_size", "conv_kernel_size") or 4


def _layer_phrases(layers: Layers) -> list[str]:
    """Phrases for layers whose memory simkv cannot account for."""
    names: dict[LayerKind, str] = {"linear": "linear-attention state", "compressed": "compressed KV"}
    found = [(what, layers.count(kind)) for kind, what in names.items()]
    return [f"{what} ({n} of {len(layers)} layers)" for what, n in found if n]


def _other_phrases(reader: _Reader, arch: Arch) -> list[str]:
    """Phrases for what else simkv cannot account for."""
    phrases = []
    if arch.count("sliding") and arch.window is None:
        phrases.append("window of the sliding layers (sliding_window is not stated)")
    if arch.count("chunked") and arch.chunk is None:
        phrases.append("chunk of the chunked layers (attention_chunk_size is not stated)")
    index = reader.integer("index_head_dim")
    if index is not None and not arch.count("compressed"):
        phrases.append(f"sparse-attention index keys (index_head_dim {index})")
    types = reader.get("layer_types")
    if arch.sconv_kernel_size is None and _is_list(types) and {"hybrid", "hybrid_sliding"} & set(map(str, types)):
        phrases.append("recurrent state of the hybrid layers")
    recurrent = [key for key in _RECURRENT_KEYS if reader.get(key) is not None]
    if recurrent and not arch.count("linear"):
        phrases.append(f"recurrent layers ({recurrent[0]} is stated, but no layer list)")
    return phrases


def _read(reader: _Reader, name: str) -> Arch:
    """All facts of a config; what is wrong is left in ``reader.problems``."""
    depth = reader.integer("num_hidden_layers")
    if reader.get("num_hidden_layers") is None:
        reader.reject("num_hidden_layers", "missing; write the number of layers as a positive integer")
    architecture = _architecture(reader)
    full, sliding, missing = _geometries(reader)
    layers = _layer_kinds(reader, depth or 0)
    if full is not None and full.latent:
        layers = tuple("mla" if kind == "full" else kind for kind in layers)
    attention = any(kind not in ("linear", "compressed") for kind in layers)
    dtype_bytes = _dtype_bytes(reader)
    declared = reader.flag("mtp_layer_id_is_depth")
    arch = Arch(
        name=name,
        architecture=architecture,
        layers=layers,
        full=full if attention else None,
        sliding=sliding if attention else None,
        window=_window(reader),
        chunk=reader.integer("attention_chunk_size") if "chunked" in layers else None,
        context_len=reader.integer("max_position_embeddings"),
        dtype_bytes=dtype_bytes,
        **_mtp_facts(reader),
        mtp_layer_id_is_depth=declared if declared is not None else architecture in _DEPTH_ID_CLASSES,
        is_hybrid_swa=reader.flag("is_hybrid_swa") or False,
        num_kv_shared_layers=reader.integer("num_kv_shared_layers", least=0) or 0,
        hidden_size=reader.integer("hidden_size"),
        num_attention_heads=reader.integer("num_attention_heads"),
        vocab_size=reader.integer("vocab_size"),
        weight_bits=_weight_bits(reader, dtype_bytes),
        sconv_kernel_size=_sconv_kernel(reader, architecture),
        block_size=reader.integer("block_size"),
        unverified=_words(reader.get("unverified")),
        config=dict(reader.text),
        source=_source(reader.get("source")),
    )
    phrases = _layer_phrases(layers) + (missing if attention else []) + _other_phrases(reader, arch)
    return _settled(_with_params(reader, replace(arch, unsupported=tuple(phrases))))


_DEPTH_ID_CLASSES = ("InklingForConditionalGeneration", "InklingForConditionalGenerationMTP")


def _words(value: Any) -> tuple[str, ...]:
    return tuple(map(str, value)) if _is_list(value) else ()


def _source(value: Any) -> dict[str, str]:
    if isinstance(value, Mapping):
        return {str(key): str(text) for key, text in value.items()}
    return {"*": value} if isinstance(value, str) else {}
