"""What the engine knows of the draft before any routing rule is applied.

A draft runner reads a config in *draft mode*: the target's own (path-less MTP heads), or that of a separate draft model.
Classes with MTP heads are rewritten to their MTP form there, whichever of the two it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simkv.arch import Arch
from simkv.engines.base import KvShape
from simkv.engines.sglang.hybrid import BLOCK_ZERO, INKLING, cache_window, is_hybrid
from simkv.engines.sglang.settings import Settings

__all__ = ["DraftFacts", "StatedDraft", "draft_facts"]

Ids = tuple[int, ...]


@dataclass(frozen=True)
class StatedDraft:
    """Facts of the draft that a scenario states outright; None lets them be derived."""

    num_layers: int | None = None
    num_swa_layers: int | None = None
    swa_ids: Ids | None = None
    full_ids: Ids | None = None
    layer_id_is_depth: bool | None = None


@dataclass(frozen=True)
class DraftFacts:
    """The draft as its runners and the budget see it.

    Parameters
    ----------
    runners : tuple of (int or None)
        ``draft_model_idx`` of every draft runner: 0 .. num_steps - 1 with multi-layer EAGLE, one None otherwise; empty
        where there is nothing to draft with.
    budget_layers : int or None
        Layers the budget counts (``eagle_draft_num_layers``); None charges nothing
        (model_runner_components/spec_aux_hidden_state.py:168-178).
    budget_swa_layers : int
        ``eagle_draft_swa_num_layers``; read where the target has no ``mtp_local_layer_ids``.
    hybrid : bool
        The draft-mode config is hybrid SWA.
    swa_ids, full_ids : tuple of int
        Layer ids that config lists as sliding and as full (whole model, not one runner).
    own_layers : int
        Layers of one ordinary runner: it owns ids 0 .. own_layers - 1 (layer_setup.py:204-228).
    full_bytes, swa_bytes : int
        Bytes a token takes in one full / one sliding draft layer, in the draft's geometry.
    architecture : str
        Class of the target, for the legacy rule.
    local_ids : tuple of int or None
        ``mtp_local_layer_ids`` on the target's text config.
    layer_id_is_depth : bool
        Class flag of the draft model (0.5.23).
    block_zero : bool
        The draft class builds its only block at layer id 0 whatever its depth.
    window : int or None
        Earlier tokens the draft's sliding layers attend to.
    full_shape, swa_shape : KvShape
        What those bytes are made of.
    """

    runners: tuple[int | None, ...]
    budget_layers: int | None
    budget_swa_layers: int
    hybrid: bool
    swa_ids: Ids
    full_ids: Ids
    own_layers: int
    full_bytes: int
    swa_bytes: int
    architecture: str = ""
    local_ids: Ids | None = None
    layer_id_is_depth: bool = False
    block_zero: bool = False
    window: int | None = None
    full_shape: KvShape = KvShape()
    swa_shape: KvShape = KvShape()


def draft_facts(
    target: Arch,
    draft: Arch | None,
    settings: Settings,
    *,
    full_bytes: int,
    swa_bytes: int,
    stated: StatedDraft,
    full_shape: KvShape = KvShape(),
    swa_shape: KvShape = KvShape(),
) -> DraftFacts:
    """Collect what the engine knows of the draft; stated facts win over derived ones.

    Parameters
    ----------
    target, draft : Arch, Arch or None
        The served model, and a separate draft model if there is one.
    full_bytes, swa_bytes : int
        Bytes per token and layer of the draft's geometry on one rank.
    stated : StatedDraft
        What the scenario states.
    full_shape, swa_shape : KvShape
        What those bytes are made of.
    """
    spec = settings.spec
    assert spec is not None
    mode = draft if draft is not None else target
    hybrid = settings.hybrid if draft is None else _separate_is_hybrid(draft, settings)
    swa_ids, full_ids = _ids(mode, hybrid)
    facts = DraftFacts(
        runners=tuple(range(spec.num_steps)) if spec.enable_multi_layer_eagle else (None,),
        budget_layers=_budget_layers(target, draft),
        budget_swa_layers=_budget_swa_layers(target, swa_ids, hybrid, separate=draft is not None),
        hybrid=hybrid,
        swa_ids=swa_ids,
        full_ids=full_ids,
        own_layers=_own_layers(mode, separate=draft is not None),
        full_bytes=full_bytes,
        swa_bytes=swa_bytes,
        architecture=target.architecture,
        local_ids=target.mtp_local_layer_ids,
        layer_id_is_depth=mode.mtp_layer_id_is_depth,
        block_zero=mode.architecture in BLOCK_ZERO,
        window=settings.window if draft is None else cache_window(draft, None),
        full_shape=full_shape,
        swa_shape=swa_shape,
    )
    facts = _with_stated(facts, stated, separate=draft is not None, split=not settings.hybrid_disabled)
    said = any(fact is not None for fact in (stated.num_layers, stated.swa_ids, stated.full_ids))
    known = draft is not None or said or mode.num_nextn_predict_layers or mode.mtp_blocks_in_checkpoint
    return facts if known else replace(facts, runners=())


def _separate_is_hybrid(draft: Arch, settings: Settings) -> bool:
    """``--disable-hybrid-swa-memory`` is a flag of the server and reaches the draft; an opt-in does not."""
    return not settings.hybrid_disabled and is_hybrid(draft, None)


def _ids(mode: Arch, hybrid: bool) -> tuple[Ids, Ids]:
    """Sliding and full layer ids of a draft-mode config (configs/model_config.py:1094-1125, 2700-2826)."""
    if not hybrid:
        return (), ()
    if mode.architecture in BLOCK_ZERO:
        return (0,), ()
    if mode.architecture in INKLING:
        local = set(mode.mtp_local_layer_ids or ())
        depths = range(mode.num_nextn_predict_layers or 0)
        return tuple(sorted(local)), tuple(d for d in depths if d not in local)
    # Any other class keeps its trunk's pattern in draft mode: the ids then name trunk layers, and routing by depth
    # reads them as depths all the same.
    sliding = tuple(i for i, kind in enumerate(mode.layers) if kind in ("sliding", "chunked"))
    return sliding, tuple(i for i in range(len(mode.layers)) if i not in sliding)


def _own_layers(mode: Arch, *, separate: bool) -> int:
    """Layers of one ordinary draft runner (layer_setup.py:204-228)."""
    if mode.architecture in BLOCK_ZERO or mode.architecture in INKLING:
        return 1
    return mode.num_nextn_predict_layers or (len(mode.layers) if separate else 1)


def _budget_layers(target: Arch, draft: Arch | None) -> int | None:
    """``eagle_draft_num_layers`` (spec_aux_hidden_state.py:150-178); MiMo-V2 in draft mode states one MTP layer."""
    if draft is None:
        return target.num_nextn_predict_layers
    if draft.architecture in ("MiMoV2ForCausalLM", "MiMoV2FlashForCausalLM", "MiMoV2MTP"):
        return 1
    return len(draft.layers) if draft.num_nextn_predict_layers is None else draft.num_nextn_predict_layers


def _budget_swa_layers(target: Arch, swa_ids: Ids, hybrid: bool, *, separate: bool) -> int:
    """``eagle_draft_swa_num_layers`` (spec_aux_hidden_state.py:180-183).

    Path-less MTP is budgeted from the *target's* config, so this is the trunk's count of sliding layers.
    """
    if not hybrid:
        return 0
    return len(swa_ids) if separate else target.count("sliding", "chunked")


def _with_stated(facts: DraftFacts, stated: StatedDraft, *, separate: bool, split: bool) -> DraftFacts:
    if stated.num_layers is not None:
        own = facts.own_layers
        if facts.budget_layers is None and not separate and not facts.block_zero:
            own = max(stated.num_layers, 1)
        facts = replace(facts, budget_layers=stated.num_layers, own_layers=own)
    if stated.num_swa_layers is not None:
        facts = replace(facts, budget_swa_layers=stated.num_swa_layers)
    if stated.swa_ids is not None or stated.full_ids is not None:
        # The lists make a draft hybrid, but not against --disable-hybrid-swa-memory.
        facts = replace(facts, hybrid=split, swa_ids=stated.swa_ids or (), full_ids=stated.full_ids or ())
    if stated.layer_id_is_depth is not None:
        facts = replace(facts, layer_id_is_depth=stated.layer_id_is_depth)
    return facts
