"""Which pool each draft depth gets, and what the budget charges for it.

Three generations of one rule (around PR #35379) differ in three questions only: does a draft runner own the single
layer of its depth, is that depth a ring, and what does the budget charge. Everything else follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, Protocol

from simkv.engines.base import Mapping as SlotMapping
from simkv.engines.base import PoolPlan
from simkv.engines.sglang.drafts import DraftFacts
from simkv.engines.sglang.hybrid import INKLING
from simkv.engines.sglang.settings import Settings
from simkv.errors import Problem, ScenarioError

__all__ = [
    "ROUTING_RULES",
    "Capacity",
    "DepthOwned",
    "DraftTerms",
    "Generalized",
    "Kind",
    "Legacy",
    "Route",
    "RoutingRule",
    "draft_pools",
    "route",
]

# full: a full pool. swa: sliding, at the SWA pool's capacity. ring: sliding, at the full pool's capacity.
Kind = Literal["full", "swa", "ring"]


@dataclass(frozen=True)
class DraftTerms:
    """Draft layers the budget charges: at full price, at the SWA share, and as SWA at full capacity."""

    full: int = 0
    swa: int = 0
    swa_full: int = 0

    @classmethod
    def of(cls, kinds: tuple[Kind, ...]) -> DraftTerms:
        """Count charges."""
        return cls(kinds.count("full"), kinds.count("swa"), kinds.count("ring"))


class RoutingRule(Protocol):
    """A generation of the rule. A class of your own with these three methods is a routing policy."""

    name: str

    def owns_depth(self, facts: DraftFacts, depth: int | None) -> bool:
        """Whether the runner of this depth owns exactly the layer of its depth."""
        ...

    def kind(self, facts: DraftFacts, depth: int) -> Kind | None:
        """Pool of an owned depth: ``ring``, ``full``, or None for a pool without layers."""
        ...

    def charge(self, facts: DraftFacts) -> tuple[Kind, ...]:
        """What the budget of a hybrid target charges each of its draft layers as."""
        ...


def _repeat(kind: Kind, count: int) -> tuple[Kind, ...]:
    return (kind,) * count


def _by_local_ids(facts: DraftFacts) -> tuple[Kind, ...]:
    local = set(facts.local_ids or ())
    kinds: list[Kind] = ["ring" if depth in local else "full" for depth in range(facts.budget_layers or 0)]
    return tuple(kinds)


class Legacy:
    """Before PR #35379: every question asks for one architecture's name."""

    name = "legacy"

    def owns_depth(self, facts: DraftFacts, depth: int | None) -> bool:
        """Depth set, hybrid SWA draft, and the architecture is Inkling's."""
        return depth is not None and facts.hybrid and facts.architecture in INKLING

    def kind(self, facts: DraftFacts, depth: int) -> Kind | None:
        """A ring if the depth is in ``mtp_local_layer_ids``."""
        return "ring" if depth in (facts.local_ids or ()) else "full"

    def charge(self, facts: DraftFacts) -> tuple[Kind, ...]:
        """Local ids count for Inkling only; every other draft layer is charged as full."""
        if facts.architecture in INKLING and facts.local_ids is not None:
            return _by_local_ids(facts)
        return _repeat("full", facts.budget_layers or 0)


class Generalized:
    """PR #35379: model metadata instead of a name."""

    name = "generalized"

    def owns_depth(self, facts: DraftFacts, depth: int | None) -> bool:
        """Depth set, hybrid SWA draft, and ``mtp_local_layer_ids`` present on the text config (``[]`` counts)."""
        return depth is not None and facts.hybrid and facts.local_ids is not None

    def kind(self, facts: DraftFacts, depth: int) -> Kind | None:
        """A ring if the depth is in ``swa_attention_layer_ids``."""
        return "ring" if depth in facts.swa_ids else "full"

    def charge(self, facts: DraftFacts) -> tuple[Kind, ...]:
        """Metadata present: local depths as full-capacity rings; absent: the draft's SWA layers at the SWA share.

        Rule: model_executor/pool_configurator.py:729-759. The budget only counts; which depth it means is not said
        there, so the SWA share goes to the first ones.
        """
        if facts.local_ids is not None:
            return _by_local_ids(facts)
        layers = facts.budget_layers or 0
        swa = min(max(facts.budget_swa_layers, 0), layers)
        return _repeat("swa", swa) + _repeat("full", layers - swa)


class DepthOwned(Generalized):
    """0.5.23: a flag of the model class decides who owns its depth; the budget is that of PR #35379."""

    name = "depth-owned"

    def owns_depth(self, facts: DraftFacts, depth: int | None) -> bool:
        """Depth set, hybrid SWA draft and the class flag (model_runner_components/layer_setup.py:161-166)."""
        return depth is not None and facts.hybrid and facts.layer_id_is_depth

    def kind(self, facts: DraftFacts, depth: int) -> Kind | None:
        """Both id lists are sliced to the depth; in neither, the pool has no layer (layer_setup.py:167-198)."""
        if depth in facts.swa_ids:
            return "ring"
        return "full" if depth in facts.full_ids else None


ROUTING_RULES: Mapping[str, type[Legacy] | type[Generalized] | type[DepthOwned]] = MappingProxyType(
    {"legacy": Legacy, "generalized": Generalized, "depth-owned": DepthOwned}
)


@dataclass(frozen=True)
class Route:
    """Where one draft runner's layers go.

    Parameters
    ----------
    depth : int or None
        ``draft_model_idx``.
    owned : bool
        The runner owns the single layer of its depth.
    full, swa, ring : int
        Layers in its full sub-pool, in an SWA sub-pool of the target's SWA capacity, in a full-capacity ring.
    """

    depth: int | None
    owned: bool
    full: int = 0
    swa: int = 0
    ring: int = 0

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """One entry a layer."""
        return _repeat("full", self.full) + _repeat("swa", self.swa) + _repeat("ring", self.ring)


def route(rule: RoutingRule, facts: DraftFacts) -> tuple[Route, ...]:
    """Layers of every draft runner under one rule (mem_cache/kv_cache_configurator.py:2500-2550)."""
    routes = []
    for depth in facts.runners:
        if rule.owns_depth(facts, depth):
            assert depth is not None
            kind = rule.kind(facts, depth)
            if kind not in ("full", "ring", None):
                message = f"kind of depth {depth} is {kind!r}: an owned depth gets 'full', 'ring' or None"
                raise ScenarioError("routing", [Problem(rule.name, message)])
            routes.append(Route(depth, True, full=int(kind == "full"), ring=int(kind == "ring")))
        elif facts.hybrid:
            own = range(facts.own_layers)
            routes.append(
                Route(
                    depth,
                    False,
                    full=sum(i in own for i in facts.full_ids),
                    swa=sum(i in own for i in facts.swa_ids),
                )
            )
        else:
            routes.append(Route(depth, False, full=facts.own_layers))
    return tuple(routes)


@dataclass(frozen=True)
class Capacity:
    """Capacities and prices that draft pools are planned with.

    Parameters
    ----------
    full, swa : int
        The target's pools, in tokens; ``full`` is 0 for an all-SWA target.
    total : int
        ``max_total_num_tokens``: rows of a draft without split, and what the budget multiplies with.
    full_price, swa_price : int
        Bytes per token and layer the budget uses for draft layers: the target's geometry
        (pool_configurator.py:786-803).
    lump : int or None
        Bytes per ``total`` token where the budget charges the draft in one sum.
    pre_split : int or None
        With the fault ``draft-pool-pre-split``: tokens the draft's pools are sized with instead.
    """

    full: int
    swa: int
    total: int
    full_price: int
    swa_price: int
    lump: int | None = None
    pre_split: int | None = None

    def charged(self, kind: Kind) -> int:
        """Bytes the budget charges for one draft layer of a kind."""
        if kind == "full":
            return self.full_price * self.total
        return self.swa_price * (self.total if kind == "ring" else self.swa)

    def tokens(self, kind: Kind, *, hybrid: bool) -> int:
        """Capacity a draft layer of a kind really gets; only a hybrid draft follows the split."""
        if kind == "swa":
            return self.swa
        if self.pre_split is not None:
            return self.pre_split
        return self.full if hybrid else self.total


def draft_pools(
    facts: DraftFacts, routes: tuple[Route, ...], kinds: tuple[Kind, ...], capacity: Capacity, settings: Settings
) -> tuple[PoolPlan, ...]:
    """Pools of every draft runner, each with what the budget charged for it.

    Parameters
    ----------
    kinds : tuple of Kind
        What the budget charges each draft layer as.

    Notes
    -----
    A depth the budget charges although no runner exists for it is listed with no layers.
    """
    page = settings.page_size
    pools: list[PoolPlan] = []
    for number, one in enumerate(routes):
        budget = _charge_of(one, number, kinds, capacity)
        layers: dict[Kind, int] = {"full": one.full, "swa": one.swa, "ring": one.ring}
        parts: list[Kind] = [kind for kind in layers if layers[kind]] or ["full"]
        for place, kind in enumerate(parts):
            tokens, count = capacity.tokens(kind, hybrid=facts.hybrid), layers[kind]
            per_token = count * (facts.full_bytes if kind == "full" else facts.swa_bytes)
            rows = tokens + page if count else 0
            mapping: SlotMapping = "identity" if kind == "ring" else "target" if facts.hybrid else "none"
            pools.append(
                PoolPlan(
                    worker=f"draft{number}",
                    pool="full" if kind == "full" else "swa",
                    layers=count,
                    tokens=tokens,
                    rows=rows,
                    bytes_per_token=per_token,
                    bytes=rows * per_token,
                    mapping=mapping,
                    budgeted_bytes=budget if place == 0 else 0,
                    shape=facts.full_shape if kind == "full" else facts.swa_shape,
                    window=None if kind == "full" else facts.window,
                )
            )
    if routes and routes[0].depth is not None and capacity.lump is None:
        for depth in range(len(routes), len(kinds)):
            charged = capacity.charged(kinds[depth])
            pools.append(PoolPlan(f"draft{depth}", "full", 0, capacity.full, 0, 0, 0, "none", charged))
    return tuple(pools)


def _charge_of(one: Route, number: int, kinds: tuple[Kind, ...], capacity: Capacity) -> int:
    """Bytes the budget charged for one runner."""
    if capacity.lump is not None:
        return capacity.lump * capacity.total if number == 0 else 0
    if one.depth is None:
        return sum(capacity.charged(kind) for kind in kinds)
    return capacity.charged(kinds[one.depth]) if one.depth < len(kinds) else 0
