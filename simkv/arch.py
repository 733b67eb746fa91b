"""Layers of a model, by kind, read from its Hugging Face ``config.json``.

This module states facts of the architecture only. What an engine makes of them (which models it treats as
hybrid, which window its cache keeps) is a rule of the engine and lives in its wing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

__all__ = ["Arch", "Geometry", "LayerKind"]

LayerKind = Literal["full", "sliding", "chunked", "linear", "mla", "compressed"]


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
        Geometry of full-attention (or latent) and of sliding/chunked layers; None where no layer needs it.
    window : int or None
        The config's sliding window, in tokens.
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
        Parameters of the model; of those, used per token.
    weight_bits : float
        Average bits a weight takes as loaded (16, 8, 4.25 ...).
    state_bytes_per_request : int
        Fixed state a running request holds besides KV, whole model, before tensor parallelism (Inkling's
        short convolutions); 0 for none.
    block_size : int or None
        A DFlash/DSpark draft's block.
    unsupported : tuple of str
        What simkv cannot account for; non-empty means plans refuse this model by name.
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
    block_size: int | None = None
    unsupported: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    source: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    def count(self, *kinds: LayerKind) -> int:
        """Number of hidden layers of the given kinds."""
        return sum(layer in kinds for layer in self.layers)

    def with_layers(self, pattern: str, *, window: int | None = None) -> Arch:
        """A variant with other layers: ``F`` full, ``S`` sliding; for studies of new hybrids."""
        raise NotImplementedError

    def replace(self, **changes: Any) -> Arch:
        """A copy with some facts changed."""
        return replace(self, **changes)
