"""From KV bytes to pool sizes (model_executor/pool_configurator.py, mem_cache/kv_cache_configurator.py)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from simkv.arch import Arch, Geometry
from simkv.engines.base import Infeasible, KvShape
from simkv.engines.sglang.drafts import DraftFacts
from simkv.engines.sglang.hybrid import layer_split
from simkv.engines.sglang.reserve import alloc_reserve_per_decode, ceil_page, floor_page, spec_v1_alloc_len
from simkv.engines.sglang.routing import DraftTerms, Kind, RoutingRule
from simkv.engines.sglang.settings import DTYPE_BYTES, Settings

__all__ = [
    "Cell",
    "PoolSizes",
    "cell",
    "layer_bytes",
    "layer_shape",
    "max_running_requests",
    "solve",
    "swa_request_cap",
]

_MXFP8_BLOCK = 32


def layer_bytes(geometry: Geometry | None, kv_cache_dtype: str, tp_size: int) -> int:
    """Bytes one token takes in one layer on one rank (pool_configurator.py:683-727)."""
    if geometry is None:
        return 0
    elements = geometry.elements(tp_size)
    scales = elements // _MXFP8_BLOCK if kv_cache_dtype == "mxfp8" else 0
    return elements * DTYPE_BYTES[kv_cache_dtype] + scales


def layer_shape(geometry: Geometry | None, kv_cache_dtype: str, tp_size: int) -> KvShape:
    """What those bytes are made of."""
    dtype = "bfloat16" if DTYPE_BYTES[kv_cache_dtype] == 2 else kv_cache_dtype
    if geometry is None:
        return KvShape(dtype=dtype)
    heads = geometry.kv_heads if geometry.latent else max(1, geometry.kv_heads // tp_size)
    return KvShape(heads, geometry.head_dim, geometry.v_head_dim, dtype)


@dataclass(frozen=True)
class Cell:
    """Prices per token, in bytes on one rank.

    Parameters
    ----------
    configurator : str
        SGLang's class name.
    full_layer, swa_layer : int
        One full, one sliding layer.
    full_layers, swa_layers : int
        The target's layers.
    kinds : tuple of Kind
        What each draft layer is charged as.
    draft_cell : int
        Lump charged per full token for a DFLASH draft (hybrid), or all draft bytes (default configurator).
    bytes_per_token : float
        Bytes per ``max_total_num_tokens`` token: the ``cell_size`` of the engine.
    """

    configurator: str
    full_layer: int
    swa_layer: int
    full_layers: int
    swa_layers: int
    kinds: tuple[Kind, ...]
    draft_cell: int
    bytes_per_token: float

    @property
    def terms(self) -> DraftTerms:
        """Draft layers charged, by kind."""
        return DraftTerms.of(self.kinds)

    @property
    def full_side(self) -> int:
        """Bytes a full token takes outside the SWA pool."""
        return (
            self.full_layer * (self.full_layers + self.terms.full)
            + self.swa_layer * self.terms.swa_full
            + self.draft_cell
        )

    @property
    def swa_side(self) -> int:
        """Bytes an SWA token takes."""
        return self.swa_layer * (self.swa_layers + self.terms.swa)


def dflash_cell(draft: Arch | None, settings: Settings) -> int | None:
    """Bytes per token of a DFLASH/DSPARK draft, None if its config is not known (mem_cache/draft_kv_budget.py:14-55).

    The engine prices elements only: scale bytes of mxfp8 are left out (speculative/dflash_utils.py:121-134).
    """
    spec = settings.spec
    geometry = None if draft is None else draft.full or draft.sliding
    if spec is None or not spec.is_dflash or draft is None or geometry is None:
        return None
    return geometry.elements(settings.tp_size) * DTYPE_BYTES[settings.kv_cache_dtype] * len(draft.layers)


def cell(
    arch: Arch,
    draft: Arch | None,
    settings: Settings,
    facts: DraftFacts | None,
    rule: RoutingRule,
    *,
    num_draft_layers: int | None = None,
) -> Cell:
    """Prices of this model under these settings.

    Notes
    -----
    Which configurator: pool_configurator.py:1715-1725; cap mode applies when the requests are known, the radix cache
    is off, chunking is on and the model has a full layer (:986-1003).
    """
    spec = settings.spec
    full_layer = layer_bytes(arch.full or arch.sliding, settings.kv_cache_dtype, settings.tp_size)
    swa_layer = layer_bytes(arch.sliding, settings.kv_cache_dtype, settings.tp_size) if settings.hybrid else 0
    full_layers, swa_layers = layer_split(arch, settings.hybrid)
    lump = dflash_cell(draft, settings)
    charged = facts if spec is not None and not spec.is_dflash and spec.has_draft_kv else None
    if not settings.hybrid:
        base = _dense_cell(arch, settings, full_layer, full_layers)
        extra = 0
        if charged is not None and (charged.budget_layers or 0) > 0:
            extra = int(base * (charged.budget_layers or 0) / full_layers)
        elif spec is not None and spec.is_dflash:
            layers = len(draft.layers) if draft is not None else (num_draft_layers or 0)
            scaled = -(-base * (full_layers + layers) // full_layers) - base
            extra = lump if lump else scaled
        return Cell("DefaultPoolConfigurator", full_layer, 0, full_layers, 0, (), extra, base + extra)
    kinds = rule.charge(charged) if charged is not None else ()
    if "no-draft-budget" in settings.faults:
        kinds, lump = (), 0
    one = Cell("", full_layer, swa_layer, full_layers, swa_layers, kinds, lump or 0, 0)
    terms = one.terms
    if full_layers == 0:
        total: float = swa_layer * (swa_layers + terms.swa + terms.swa_full) + full_layer * terms.full + one.draft_cell
    else:
        # Same order of additions as the engine: the sum is a float and is divided into the budget.
        total = (
            full_layer * (full_layers + terms.full)
            + swa_layer * terms.swa_full
            + settings.swa_full_tokens_ratio * one.swa_side
            + one.draft_cell
        )
    capped = (
        settings.max_running_requests is not None
        and settings.disable_radix_cache
        and settings.chunked_prefill_size > 0
        and settings.window is not None
        and full_layers > 0
    )
    name = "SWARequestCapPoolConfigurator" if capped else "HybridSWAPoolConfigurator"
    return replace(one, configurator=name, bytes_per_token=total)


def _dense_cell(arch: Arch, settings: Settings, full_layer: int, layers: int) -> int:
    """All layers of a model without split; mxfp8 scales are rounded once for the whole stack (:524-531)."""
    if settings.kv_cache_dtype != "mxfp8":
        return full_layer * layers
    geometry = arch.full or arch.sliding
    assert geometry is not None
    elements = geometry.elements(settings.tp_size)
    return elements * layers + elements * layers // _MXFP8_BLOCK


def swa_request_cap(settings: Settings) -> int:
    """Worst-case SWA slots of ``max_running_requests`` requests (pool_configurator.py:924-969)."""
    spec = settings.spec
    assert settings.window is not None and settings.max_running_requests is not None
    width = spec.num_draft_tokens if spec is not None else 1
    trailing = settings.window + settings.swa_eviction_interval * width + settings.page_size
    if spec is None:
        decode = settings.page_size
    elif settings.disable_overlap_schedule:
        decode = spec_v1_alloc_len(spec, settings.page_size)
    else:
        decode = alloc_reserve_per_decode(spec, settings.page_size)
    chunks = 1 if settings.disable_overlap_schedule else 2
    requests = max(1, settings.max_running_requests)
    return (trailing + decode) * requests + chunks * settings.chunked_prefill_size + settings.page_size


@dataclass(frozen=True)
class PoolSizes:
    """Capacities in tokens; ``full`` and ``swa`` are None for a model without split."""

    max_total: int
    full: int | None
    swa: int | None


def max_running_requests(settings: Settings, max_total: int) -> int:
    """Resolved ``max_running_requests`` (mem_cache/kv_cache_configurator.py:3119-3172)."""
    requested = settings.max_running_requests
    if requested is not None:
        return min(max(1, requested), max_total // 2)
    estimate = int(max_total / settings.context_len * 512)
    return min(max(min(estimate, 4096), 2048), max_total // 2)


def solve(prices: Cell, kv_bytes: int, settings: Settings) -> PoolSizes | Infeasible:
    """Pool sizes from a byte budget, with the user's token cap applied (kv_cache_configurator.py:3192-3227)."""
    sizes = _solve_budget(prices, kv_bytes, settings)
    if isinstance(sizes, Infeasible):
        return sizes
    cap = settings.max_total_tokens
    if cap is not None and cap < sizes.max_total:
        return _solve_tokens(prices, cap, settings)
    return sizes


def _solve_budget(prices: Cell, kv_bytes: int, settings: Settings) -> PoolSizes | Infeasible:
    page = settings.page_size
    if prices.configurator == "SWARequestCapPoolConfigurator":
        swa = ceil_page(swa_request_cap(settings), page)
        fixed = swa * prices.swa_side
        full = int((kv_bytes - fixed) // prices.full_side) // page * page
        if full <= 0:
            return Infeasible(
                f"the SWA pool for {settings.max_running_requests} requests takes {swa:,} tokens x "
                f"{prices.swa_side:,} B = {fixed:,} B of a KV budget of {kv_bytes:,} B and leaves no page "
                f"({page * prices.full_side:,} B) for the full pool",
                "RuntimeError",
            )
        return PoolSizes(full, full, swa)
    return _solve_tokens(prices, int(kv_bytes // prices.bytes_per_token), settings)


def _solve_tokens(prices: Cell, tokens: int, settings: Settings) -> PoolSizes | Infeasible:
    page = settings.page_size
    total = floor_page(tokens, page)
    if prices.configurator == "SWARequestCapPoolConfigurator":
        swa = min(ceil_page(swa_request_cap(settings), page), tokens)
        return PoolSizes(total, total, swa) if total > 0 else _no_memory(prices, tokens, settings)
    if prices.configurator == "DefaultPoolConfigurator":
        return PoolSizes(total, None, None) if total > 0 else _no_memory(prices, tokens, settings)
    if prices.full_layers == 0:
        return PoolSizes(total, 0, total) if total > 0 else _no_memory(prices, tokens, settings)
    swa = floor_page(int(total * settings.swa_full_tokens_ratio), page)
    if settings.window is not None and settings.window + page >= swa:
        # The window check comes first, so a hybrid model short of memory fails with it (:168-189, 883-886).
        return Infeasible(
            f"the SWA pool holds {swa:,} tokens (ratio {settings.swa_full_tokens_ratio:g} of {total:,}, whole pages "
            f"of {page}), and no request is ever admitted unless it holds more than window + page = "
            f"{settings.window:,} + {page:,} = {settings.window + page:,}",
            "ValueError",
        )
    return PoolSizes(total, total, swa) if total > 0 else _no_memory(prices, tokens, settings)


def _no_memory(prices: Cell, tokens: int, settings: Settings) -> Infeasible:
    need = int(prices.bytes_per_token * settings.page_size)
    return Infeasible(
        f"the KV budget holds {max(tokens, 0):,} tokens of {prices.bytes_per_token:,.10g} B, less than one page of "
        f"{settings.page_size} tokens ({need:,} B)",
        "RuntimeError",
    )
