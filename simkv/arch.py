"""Facts of a model's layers, by kind.

This module states facts of the architecture only. What an engine makes of them (which models it treats as
hybrid, which window its cache keeps) is a rule of the engine and lives in its wing. How the facts are read from
a ``config.json`` is in :mod:`simkv.hfconfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any, NamedTuple

from simkv import catalogue, hfconfig
from simkv.errors import ModelError, Problem
from simkv.hfconfig import Geometry, LayerKind, Layers

__all__ = ["Arch", "CatalogueRow", "Geometry", "LayerKind", "describe_catalogue"]


@dataclass(frozen=True)
class Arch:
    """Facts of one model.

    Parameters
    ----------
    name : str
        Built-in name, file name, the ``name`` of a dict, or ``<inline>``.
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
            Name of the result, instead of the built-in name, the file name, or what a dict has under ``name``
            (``<inline>`` where that is no text).

        Raises
        ------
        ModelError
            With every problem at once, if the config is wrong. A config that is merely beyond simkv is no
            error here: ``unsupported`` says what is missing.
        """
        return _settled(cls(**hfconfig.facts(config, name=name)))

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
        unsupported = tuple(phrase for phrase in self.unsupported if not phrase.startswith(hfconfig.OF_LAYERS))
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
    """``arch`` with its state counted, and without a sliding geometry that no layer needs.

    The full geometry stays: budgets price draft layers with it whatever the trunk holds.
    """
    state = arch.state_bytes()
    # The convolution state is wide for both kinds whatever the layers are.
    needs_sliding = arch.count("sliding", "chunked") or arch.mtp_local_layer_ids or arch.sconv_kernel_size
    return replace(
        arch,
        sliding=arch.sliding if needs_sliding else None,
        state_bytes_per_request=state,
    )


class CatalogueRow(NamedTuple):
    """One model as ``simkv models`` lists it.

    Parameters
    ----------
    name, architecture : str
        Built-in name; class name, empty if not known.
    layers : dict
        Hidden layers by kind, in the order of their first layer.
    window : int or None
        Sliding window or chunk, in tokens; None where no layer has one.
    bytes_per_token : dict
        Bytes one token takes in one layer, by kind; 2-byte elements, one rank.
    mtp : int
        MTP layers, stated by the config or shipped in the checkpoint.
    unsupported : tuple of str
        Why plans refuse the model; empty if they do not.
    """

    name: str
    architecture: str
    layers: dict[str, int]
    window: int | None
    bytes_per_token: dict[str, int]
    mtp: int
    unsupported: tuple[str, ...]


def describe_catalogue() -> list[CatalogueRow]:
    """One row for each built-in model, by name."""
    return [_row(Arch.from_config(name)) for name in catalogue.names()]


def _row(arch: Arch) -> CatalogueRow:
    geometries = {"full": arch.full, "mla": arch.full, "sliding": arch.sliding, "chunked": arch.sliding}
    kinds = list(dict.fromkeys(arch.layers))
    return CatalogueRow(
        name=arch.name,
        architecture=arch.architecture,
        layers={kind: arch.count(kind) for kind in kinds},
        window=arch.chunk or (arch.window if arch.count("sliding") else None),
        bytes_per_token={kind: 2 * found.elements() for kind in kinds if (found := geometries.get(kind))},
        mtp=arch.num_nextn_predict_layers or arch.mtp_blocks_in_checkpoint or 0,
        unsupported=arch.unsupported,
    )
