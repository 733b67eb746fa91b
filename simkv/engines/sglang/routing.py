"""Which pool each draft depth gets, what the budget charges for it, and where the two disagree.

Three generations of one rule (spec §4.2 of the engine's history around PR #35379) differ in two questions only:
does a draft runner own the single layer of its depth, and what does the budget charge. Everything else follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from simkv.arch import Arch
from simkv.engines.base import Disagreement, Mapping, PoolPlan
from simkv.engines.sglang.hybrid import BLOCK_ZERO, is_hybrid
from simkv.engines.sglang.settings import Settings, Spec

__all__ = [
    "ROUTING_RULES",
    "DepthOwned",
    "DraftFacts",
    "DraftTerms",
    "Generalized",
    "Legacy",
    "Route",
    "RoutingRule",
    "disagreements",
    "draft_facts",
    "draft_pools",
    "route",
]

_INKLING = ("InklingForConditionalGeneration", "InklingForConditionalGenerationMTP")


@dataclass(frozen=True)
class DraftFacts:
    """What the engine knows of the draft, before any rule is applied.

    Parameters
    ----------
    runners : tuple of (int or None)
        ``draft_model_idx`` of every draft runner: 0 .. num_steps - 1 with multi-layer EAGLE, else one None.
    budget_layers : int or None
        Layers the budget counts (``eagle_draft_num_layers``); None charges nothing
        (spec_aux_hidden_state.py:168-178).
    budget_swa_layers : int or None
        ``eagle_draft_swa_num_layers``; used where the target has no ``mtp_local_layer_ids``.
    hybrid : bool
        The draft's own config is hybrid SWA.
    swa_ids, full_ids : tuple of int
        Layer ids the draft-mode config lists as sliding and as full (whole model, not one runner).
    num_layers : int
        Layers of one ordinary runner: it owns ids 0 .. num_layers - 1.
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
        The draft's own window, in earlier tokens.
    """

    runners: tuple[int | None, ...]
    budget_layers: int | None
    budget_swa_layers: int | None
    hybrid: bool
    swa_ids: tuple[int, ...]
    full_ids: tuple[int, ...]
    num_layers: int
    full_bytes: int
    swa_bytes: int
    architecture: str = ""
    local_ids: tuple[int, ...] | None = None
    layer_id_is_depth: bool = False
    block_zero: bool = False
    window: int | None = None


@dataclass(frozen=True)
class DraftTerms:
    """Draft layers the budget charges: at full price, at the SWA share, and as SWA at full capacity."""

    full: int = 0
    swa: int = 0
    swa_full: int = 0


@dataclass(frozen=True)
class Route:
    """Where one draft runner's layers go.

    Parameters
    ----------
    depth : int or None
        ``draft_model_idx``.
    owned : bool
        The runner owns the single layer of its depth.
    full_ids, swa_ids : tuple of int
        Layer ids in its full and SWA sub-pool.
    full_capacity_ring : bool
        The SWA sub-pool has the full pool's capacity and an identity mapping.
    """

    depth: int | None
    owned: bool
    full_ids: tuple[int, ...]
    swa_ids: tuple[int, ...]
    full_capacity_ring: bool


class RoutingRule(Protocol):
    """A generation of the rule. A class of your own with these two methods is a routing policy."""

    name: str

    def owns_depth(self, facts: DraftFacts, depth: int | None) -> bool:
        """Whether the runner of this depth owns exactly the layer of its depth."""
        ...

    def charge(self, facts: DraftFacts) -> DraftTerms:
        """Draft layers the budget of a hybrid target charges."""
        ...


def _count_local(facts: DraftFacts) -> DraftTerms:
    layers = facts.budget_layers or 0
    rings = sum(depth in set(facts.local_ids or ()) for depth in range(layers))
    return DraftTerms(full=layers - rings, swa_full=rings)


class Legacy:
    """Before PR #35379: both questions ask for one architecture's name."""

    name = "legacy"

    def owns_depth(self, facts: DraftFacts, depth: int | None) -> bool:
        """Depth set and the architecture is Inkling's."""
        return depth is not None and facts.architecture in _INKLING

    def charge(self, facts: DraftFacts) -> DraftTerms:
        """Local ids count for Inkling only; every other draft layer is charged as full."""
        if facts.architecture in _INKLING and facts.local_ids is not None:
            return _count_local(facts)
        return DraftTerms(full=facts.budget_layers or 0)


class Generalized:
    """PR #35379: model metadata instead of a name."""

    name = "generalized"

    def owns_depth(self, facts: DraftFacts, depth: int | None) -> bool:
        """Depth set, hybrid SWA draft, and ``mtp_local_layer_ids`` present on the text config (``[]`` counts)."""
        return depth is not None and facts.hybrid and facts.local_ids is not None

    def charge(self, facts: DraftFacts) -> DraftTerms:
        """Metadata present: local depths as full-capacity rings; absent: the draft's SWA layers at the SWA share.

        Rule: model_executor/pool_configurator.py:729-759.
        """
        layers = facts.budget_layers or 0
        if facts.local_ids is not None:
            return _count_local(facts)
        swa = min(max(facts.budget_swa_layers or 0, 0), layers)
        return DraftTerms(full=layers - swa, swa=swa)


class DepthOwned(Generalized):
    """0.5.23: a flag of the model class decides who owns its depth; the budget is that of PR #35379."""

    name = "depth-owned"

    def owns_depth(self, facts: DraftFacts, depth: int | None) -> bool:
        """Depth set, hybrid SWA draft and the class flag (model_runner_components/layer_setup.py:161-166)."""
        return depth is not None and facts.hybrid and facts.layer_id_is_depth


ROUTING_RULES: dict[str, type[Legacy] | type[Generalized] | type[DepthOwned]] = {
    "legacy": Legacy,
    "generalized": Generalized,
    "depth-owned": DepthOwned,
}


def draft_facts(
    target: Arch,
    draft: Arch | None,
    settings: Settings,
    *,
    full_bytes: int,
    swa_bytes: int,
    num_layers: int | None = None,
    num_swa_layers: int | None = None,
    swa_ids: tuple[int, ...] | None = None,
    full_ids: tuple[int, ...] | None = None,
    layer_id_is_depth: bool | None = None,
) -> DraftFacts:
    """Collect what the engine knows of the draft; stated facts win over derived ones.

    Parameters
    ----------
    target, draft : Arch, Arch or None
        The served model, and a separate draft model if there is one.
    full_bytes, swa_bytes : int
        Bytes per token and layer of the draft's geometry on one rank.
    num_layers, num_swa_layers : int or None
        ``draft.num_layers``, ``draft.num_swa_layers`` as stated.
    swa_ids, full_ids : tuple of int or None
        Layer ids of the draft-mode config as stated.
    layer_id_is_depth : bool or None
        ``draft.mtp_layer_id_is_depth`` as stated.
    """
    spec = settings.spec
    assert spec is not None
    mode = draft if draft is not None else target
    multi = spec.enable_multi_layer_eagle
    runners: tuple[int | None, ...] = tuple(range(spec.num_steps)) if multi else (None,)
    block_zero = draft is None and target.architecture in BLOCK_ZERO
    derived_swa, derived_full = _mode_ids(target, draft, settings)
    stated = swa_ids is not None or full_ids is not None
    hybrid = stated or (settings.hybrid if draft is None else is_hybrid(draft, None))
    nextn = mode.num_nextn_predict_layers
    if draft is None:
        own_layers = 1 if settings.hybrid else max(nextn or 1, 1)
    else:
        own_layers = nextn if nextn else len(draft.layers)
    budget_layers = num_layers
    if budget_layers is None:
        budget_layers = nextn if draft is None or nextn is not None else len(draft.layers)
    budget_swa = num_swa_layers
    if budget_swa is None and (settings.hybrid if draft is None else hybrid):
        # Path-less MTP is budgeted from the *target's* config, so this is the trunk's count of sliding layers
        # (spec_aux_hidden_state.py:180-183).
        budget_swa = target.count("sliding", "chunked") if draft is None else len(derived_swa)
    return DraftFacts(
        runners=runners,
        budget_layers=budget_layers,
        budget_swa_layers=budget_swa,
        hybrid=hybrid,
        swa_ids=swa_ids if swa_ids is not None else (() if stated else derived_swa),
        full_ids=full_ids if full_ids is not None else (() if stated else derived_full),
        num_layers=num_layers if num_layers is not None and draft is None and not hybrid else own_layers,
        full_bytes=full_bytes,
        swa_bytes=swa_bytes,
        architecture=target.architecture,
        local_ids=target.mtp_local_layer_ids,
        layer_id_is_depth=mode.mtp_layer_id_is_depth if layer_id_is_depth is None else layer_id_is_depth,
        block_zero=block_zero,
        window=settings.window if draft is None else draft.window,
    )


def _mode_ids(target: Arch, draft: Arch | None, settings: Settings) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sliding and full layer ids of the config as a draft runner reads it (configs/model_config.py:2700-2826)."""
    if draft is not None:
        kinds = draft.layers
        sliding = tuple(i for i, kind in enumerate(kinds) if kind in ("sliding", "chunked"))
        return sliding, tuple(i for i in range(len(kinds)) if i not in sliding)
    if target.architecture in BLOCK_ZERO:
        return (0,), ()
    if target.architecture in _INKLING:
        local = set(target.mtp_local_layer_ids or ())
        depths = range(target.num_nextn_predict_layers or 0)
        return tuple(sorted(local)), tuple(d for d in depths if d not in local)
    if settings.hybrid:
        # A model that opts in keeps its trunk's layer pattern in draft mode: the ids then name trunk layers, not
        # depths, and routing by depth reads them as depths all the same.
        sliding = tuple(i for i, kind in enumerate(target.layers) if kind in ("sliding", "chunked"))
        return sliding, tuple(i for i in range(len(target.layers)) if i not in sliding)
    return (), ()


def route(rule: RoutingRule, facts: DraftFacts) -> tuple[Route, ...]:
    """Layer ids and capacity of every draft runner under one rule.

    Notes
    -----
    0.5.23 slices both id lists to the owned depth, so that a depth in neither list gets an empty pool
    (layer_setup.py:167-198); the two older rules call every depth that is not sliding full.
    """
    routes = []
    for depth in facts.runners:
        owned = rule.owns_depth(facts, depth)
        if owned:
            assert depth is not None
            sliding: tuple[int, ...] = (depth,) if depth in facts.swa_ids else ()
            if rule.name == "legacy":
                sliding = (depth,) if depth in (facts.local_ids or ()) else ()
            full: tuple[int, ...] = (
                (depth,) if not sliding and (depth in facts.full_ids or rule.name != "depth-owned") else ()
            )
            routes.append(Route(depth, True, full, sliding, bool(sliding)))
        elif facts.hybrid:
            own = range(facts.num_layers)
            full = tuple(i for i in facts.full_ids if i in own)
            routes.append(Route(depth, False, full, tuple(i for i in facts.swa_ids if i in own), False))
        else:
            routes.append(Route(depth, False, tuple(range(facts.num_layers)), (), False))
    return tuple(routes)


def _charges_by_depth(facts: DraftFacts, terms: DraftTerms) -> list[str]:
    """Kind the budget charges each of its draft layers as: ``full``, ``swa`` or ``ring``."""
    layers = facts.budget_layers or 0
    if terms.swa_full or (facts.local_ids is not None and terms.swa == 0 and terms.full + terms.swa_full == layers):
        local = set(facts.local_ids or ()) if terms.swa_full else set()
        return ["ring" if d in local else "full" for d in range(layers)]
    kinds = ["swa"] * terms.swa + ["full"] * terms.full
    return kinds[:layers]


def draft_pools(
    rule: RoutingRule,
    facts: DraftFacts,
    terms: DraftTerms,
    settings: Settings,
    *,
    full_tokens: int,
    swa_tokens: int,
    target_full_bytes: int,
    target_swa_bytes: int,
    draft_cell: int | None = None,
    pre_split_tokens: int | None = None,
) -> tuple[PoolPlan, ...]:
    """Pools of every draft runner, each with what the budget charged for it.

    Parameters
    ----------
    full_tokens, swa_tokens : int
        The target's capacities. ``full_tokens`` is ``max_total_num_tokens`` for a model without split.
    target_full_bytes, target_swa_bytes : int
        Bytes per token and layer the *budget* uses for draft layers: the target's geometry
        (pool_configurator.py:786-803).
    draft_cell : int or None
        Charge per full token where the budget uses one lump (DFLASH family, default configurator).
    pre_split_tokens : int or None
        With the fault ``draft-pool-pre-split``: tokens the draft's pools are sized with instead.
    """
    page = settings.page_size
    price = {
        "full": target_full_bytes * full_tokens,
        "ring": target_swa_bytes * full_tokens,
        "swa": target_swa_bytes * swa_tokens,
    }
    kinds = _charges_by_depth(facts, terms)
    routes = route(rule, facts)
    pools: list[PoolPlan] = []
    for number, one in enumerate(routes):
        if draft_cell is not None:
            budget = draft_cell * full_tokens if number == 0 else 0
        elif one.depth is None:
            budget = sum(price[kind] for kind in kinds)
        else:
            budget = price[kinds[one.depth]] if one.depth < len(kinds) else 0
        full_cap = pre_split_tokens if pre_split_tokens is not None else full_tokens
        swa_cap = full_cap if one.full_capacity_ring else swa_tokens
        swa_map: Mapping = "identity" if one.full_capacity_ring else "target"
        parts: list[tuple[str, int, int, int, Mapping]] = []
        if one.full_ids:
            parts.append(("full", len(one.full_ids), full_cap, facts.full_bytes, "target" if facts.hybrid else "none"))
        if one.swa_ids:
            parts.append(("swa", len(one.swa_ids), swa_cap, facts.swa_bytes, swa_map))
        if not parts:
            parts.append(("full", 0, full_cap, facts.full_bytes, "target" if facts.hybrid else "none"))
        for place, (name, layers, tokens, per_layer, mapping) in enumerate(parts):
            rows = tokens + page if layers else 0
            pools.append(
                PoolPlan(
                    worker=f"draft{number}",
                    pool="full" if name == "full" else "swa",
                    layers=layers,
                    tokens=tokens,
                    rows=rows,
                    bytes_per_token=layers * per_layer,
                    bytes=rows * layers * per_layer,
                    mapping=mapping,
                    budgeted_bytes=budget if place == 0 else 0,
                )
            )
    # Depths the budget charges although no runner exists for them.
    if draft_cell is None and routes and routes[0].depth is not None:
        for depth in range(len(routes), len(kinds)):
            pools.append(PoolPlan(f"draft{depth}", "full", 0, full_tokens, 0, 0, 0, "none", price[kinds[depth]]))
    return tuple(pools)


def disagreements(
    rule: RoutingRule,
    facts: DraftFacts,
    terms: DraftTerms,
    settings: Settings,
    pools: tuple[PoolPlan, ...],
    *,
    full_tokens: int,
    swa_tokens: int,
    target_full_bytes: int,
    target_swa_bytes: int,
) -> tuple[Disagreement, ...]:
    """Name every way in which budget and allocation disagree (K1 to K11).

    Byte figures leave padding pages out.
    """
    found: list[Disagreement] = []
    routes = route(rule, facts)
    kinds = _charges_by_depth(facts, terms)
    f, s, r = target_full_bytes, target_swa_bytes, swa_tokens / full_tokens if full_tokens else 0.0
    local, layers = facts.local_ids, facts.budget_layers or 0
    multi = routes[0].depth is not None if routes else False
    owned = [one for one in routes if one.owned]

    def add(code: str, title: str, detail: str, size: int = 0) -> None:
        found.append(Disagreement(code, title, detail, size))

    for one in owned:
        depth = one.depth
        assert depth is not None
        charged = kinds[depth] if depth < len(kinds) else None
        if charged == "ring" and one.full_ids:
            add(
                "K1",
                "ring charged, full pool allocated",
                f"depth {depth} is in mtp_local_layer_ids but not sliding: {s} B a token charged, {f} B allocated",
                (facts.full_bytes - s) * full_tokens,
            )
        elif charged == "full" and one.swa_ids and local is not None:
            add(
                "K2",
                "full charged, ring allocated",
                f"depth {depth} is sliding but not in mtp_local_layer_ids: {f} B a token charged, {s} B allocated",
                (facts.swa_bytes - f) * full_tokens,
            )
        elif charged == "full" and one.full_ids and depth in facts.swa_ids:
            add(
                "K2",
                "full charged and allocated for a sliding depth",
                f"depth {depth} is sliding, but the {rule.name} rule reads another list",
                0,
            )
        if not one.full_ids and not one.swa_ids:
            add(
                "K9",
                "depth in neither layer list",
                f"depth {depth} gets a pool without layers: KeyError at its first KV write",
                0,
            )
        elif facts.block_zero and depth > 0:
            add(
                "K9",
                "module asks for layer 0, the pool holds its depth",
                f"depth {depth}: the class builds its block at layer 0, the pool has layer {depth}: KeyError at its "
                "first KV write",
                0,
            )
    if local is None and owned:
        charged_bytes = sum(f * full_tokens if k == "full" else s * swa_tokens for k in kinds)
        real = sum((len(o.full_ids) * facts.full_bytes + len(o.swa_ids) * facts.swa_bytes) * full_tokens for o in owned)
        add(
            "K3",
            "routed by depth without the metadata the budget reads",
            f"mtp_local_layer_ids is absent: the budget charges {charged_bytes} B, the depths take {real} B",
            real - charged_bytes,
        )
    ordinary_swa = [one for one in routes if not one.owned and one.swa_ids]
    if ordinary_swa and (terms.full or terms.swa_full):
        allocated = sum(
            len(o.swa_ids) * facts.swa_bytes * swa_tokens + len(o.full_ids) * facts.full_bytes * full_tokens
            for o in routes
        )
        price = {"full": f * full_tokens, "ring": s * full_tokens, "swa": s * swa_tokens}
        charged_as = "full-capacity rings" if terms.swa_full else "full layers"
        add(
            "K4",
            f"{charged_as} charged, ordinary blocks allocated",
            f"the budget charges {terms.full} full layers and {terms.swa_full} rings, but the draft is an ordinary "
            f"sliding block at the SWA share ({r:.3g} of the tokens)",
            allocated - sum(price[k] for k in kinds),
        )
    if local is not None and any(i >= layers for i in local):
        outside = [i for i in local if i >= layers]
        add(
            "K5",
            "metadata names layers, not depths",
            f"ids {outside} of mtp_local_layer_ids are not below the {layers} draft layers the budget counts: ignored",
            0,
        )
    if local == () and layers:
        add(
            "K6",
            "empty list is not a missing key",
            f"mtp_local_layer_ids = [] charges {layers} full layers ({f * layers} B a token); without the key it would "
            f"be {min(facts.budget_swa_layers or 0, layers)} at the SWA share",
            0,
        )
    if multi and layers != len(routes):
        per_runner = [
            sum(p.bytes_per_token * p.tokens for p in pools if p.worker == f"draft{n}") for n in range(len(routes))
        ]
        over = sum(per_runner[layers:]) - sum(p.budgeted_bytes for p in pools if int(p.worker[5:]) >= len(routes))
        what = "nothing" if facts.budget_layers is None else f"{layers} layer{'s' if layers != 1 else ''}"
        add(
            "K7",
            "runners and budgeted layers differ",
            f"{len(routes)} draft runners (num_steps), the budget charges {what}"
            + (" (the config has no num_nextn_predict_layers)" if facts.budget_layers is None else ""),
            over,
        )
    if facts.hybrid and facts.swa_bytes != s and any(o.swa_ids for o in routes):
        add(
            "K8",
            "draft geometry differs from the target's",
            f"a sliding draft layer takes {facts.swa_bytes} B a token, the budget charges {s} B",
            0,
        )
    if facts.full_bytes != f and any(o.full_ids for o in routes) and terms.full:
        add(
            "K8",
            "draft geometry differs from the target's",
            f"a full draft layer takes {facts.full_bytes} B a token, the budget charges {f} B",
            (facts.full_bytes - f) * full_tokens * sum(len(o.full_ids) for o in routes),
        )
    for pool in pools:
        if pool.layers and pool.mapping in ("identity", "none") and pool.tokens < full_tokens:
            add(
                "K10",
                "pool smaller than the slots that index it",
                f"{pool.worker} {pool.pool}: {pool.tokens} tokens, indexed by full slots up to {full_tokens}: writes "
                f"beyond row {pool.rows - 1} are out of range",
                0,
            )
        if pool.layers and pool.pool == "swa" and pool.mapping == "identity" and full_tokens == 0:
            add(
                "K10",
                "identity ring on an all-SWA target",
                f"{pool.worker}: the full capacity is 0, so the ring holds one padding page only",
                0,
            )
    if ordinary_swa and facts.window is not None and settings.window is not None and facts.window > settings.window:
        add(
            "K11",
            "the draft's window outlives the target's",
            f"the draft attends {facts.window} earlier tokens, the target frees SWA slots after {settings.window}: "
            "the draft reads freed slots and its acceptance drops",
            0,
        )
    return tuple(found)


def is_spec_draft(spec: Spec | None) -> bool:
    """Whether there is a draft worker with KV pools."""
    return spec is not None and spec.has_draft_kv
