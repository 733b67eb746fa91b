"""Where the budget of a draft and its allocation disagree: K1 to K11.

Every byte between the two has exactly one code: the codes' bytes add up to the over-commit without padding pages.
"""

from __future__ import annotations

from simkv.engines.base import Disagreement, PoolPlan
from simkv.engines.sglang.drafts import DraftFacts
from simkv.engines.sglang.routing import Capacity, Kind, Route
from simkv.engines.sglang.settings import Settings

__all__ = ["disagreements"]

_NAMES: dict[Kind, str] = {
    "full": "a full layer",
    "swa": "a sliding layer at the SWA share",
    "ring": "a full-capacity ring",
}


class _Ledger:
    def __init__(self) -> None:
        self.found: list[Disagreement] = []

    def add(self, code: str, title: str, detail: str, size: int = 0) -> None:
        self.found.append(Disagreement(code, title, detail, size))


def disagreements(
    facts: DraftFacts,
    routes: tuple[Route, ...],
    kinds: tuple[Kind, ...],
    capacity: Capacity,
    settings: Settings,
    pools: tuple[PoolPlan, ...],
) -> tuple[Disagreement, ...]:
    """Name every way in which budget and allocation disagree.

    Parameters
    ----------
    kinds : tuple of Kind
        What the budget charges each draft layer as.
    pools : tuple of PoolPlan
        The pools of the draft runners.
    """
    ledger = _Ledger()
    if not routes:
        return ()
    if capacity.lump is not None:
        _lump(ledger, facts, routes, capacity, pools)
    elif routes[0].depth is None:
        _single(ledger, facts, routes[0], kinds, capacity)
    else:
        _depths(ledger, facts, routes, kinds, capacity)
    if capacity.lump is None:
        _geometry(ledger, facts, routes, capacity)
    _capacities(ledger, routes, capacity, pools)
    _metadata(ledger, facts)
    _windows(ledger, facts, routes, settings)
    return tuple(ledger.found)


def _nominal(capacity: Capacity, kinds: tuple[Kind, ...]) -> int:
    """Bytes of layers at the budget's own prices and capacities."""
    return sum(capacity.charged(kind) for kind in kinds)


def _lump(
    ledger: _Ledger, facts: DraftFacts, routes: tuple[Route, ...], capacity: Capacity, pools: tuple[PoolPlan, ...]
) -> None:
    """The draft is charged in one sum per token; a remainder below one byte a layer is rounding and has no code."""
    assert capacity.lump is not None
    layers = sum(len(one.kinds) for one in routes)
    held = sum(_slots(pool, capacity) * pool.bytes_per_token for pool in pools)
    gap = held - capacity.lump * capacity.total
    if not capacity.lump and gap:
        ledger.add("K7", "draft not charged", f"{layers} draft layers, the budget charges nothing", gap)
    elif layers != facts.budget_layers and gap:
        _runners(ledger, facts, f"{layers} draft layers, the budget charges {facts.budget_layers or 0}", gap)
    elif abs(gap) >= layers * capacity.total:
        ledger.add(
            "K8",
            "draft geometry differs from the target's",
            f"the draft takes {layers * facts.full_bytes:,} B a token, the budget charges {capacity.lump:,} B",
            gap,
        )


def _single(ledger: _Ledger, facts: DraftFacts, one: Route, kinds: tuple[Kind, ...], capacity: Capacity) -> None:
    """One runner holds the whole draft."""
    gap = _nominal(capacity, one.kinds) - _nominal(capacity, kinds)
    if not gap:
        return
    charged = f"{kinds.count('full')} full, {kinds.count('swa')} sliding, {kinds.count('ring')} rings"
    held = f"{one.full} full and {one.swa} sliding"
    detail = f"the budget charges {charged}; the one runner holds {held} layers"
    if one.swa and "ring" in kinds:
        ledger.add("K4", "full capacity charged, ordinary blocks allocated", detail, gap)
    elif len(kinds) != len(one.kinds):
        _runners(ledger, facts, detail, gap)
    elif kinds.count("swa") > one.swa:
        ledger.add("K3", "charged at the SWA share, full pool allocated", detail, gap)
    else:
        ledger.add("K4", "full capacity charged, ordinary blocks allocated", detail, gap)


def _runners(ledger: _Ledger, facts: DraftFacts, detail: str, gap: int) -> None:
    missing = " (the config has no num_nextn_predict_layers)" if facts.budget_layers is None else ""
    ledger.add("K7", "runners and budgeted layers differ", detail + missing, gap)


def _depths(
    ledger: _Ledger, facts: DraftFacts, routes: tuple[Route, ...], kinds: tuple[Kind, ...], capacity: Capacity
) -> None:
    """One runner a depth: compare depth by depth."""
    surplus = strict = loose = 0
    for one in routes:
        assert one.depth is not None
        held = _nominal(capacity, one.kinds)
        if one.depth >= len(kinds):
            surplus += held
            continue
        kind = kinds[one.depth]
        gap = held - capacity.charged(kind)
        if one.owned:
            _owned(ledger, facts, one, kind, gap)
        elif kind != "swa":
            strict += gap
        elif len(one.kinds) > 1:
            # Every runner builds all MTP layers, the budget counts them once.
            surplus += gap
        else:
            loose += gap
    if strict:
        ledger.add(
            "K4",
            "full capacity charged, ordinary blocks allocated",
            f"the budget charges {kinds.count('full')} full layers and {kinds.count('ring')} rings, but each runner is an "
            "ordinary block whose sliding layers share the target's SWA slots",
            strict,
        )
    if loose:
        ledger.add(
            "K3",
            "charged at the SWA share, full pool allocated",
            "without mtp_local_layer_ids the budget takes every depth for a sliding one; the runners hold full layers",
            loose,
        )
    surplus -= sum(capacity.charged(kind) for kind in kinds[len(routes) :])
    if surplus or len(kinds) != len(routes):
        held_layers = sum(len(one.kinds) for one in routes)
        what = f"{len(kinds)} layer{'s' if len(kinds) != 1 else ''}" if kinds else "nothing"
        detail = f"{len(routes)} draft runners (num_steps) hold {held_layers} layers, the budget charges {what}"
        _runners(ledger, facts, detail, surplus)


def _owned(ledger: _Ledger, facts: DraftFacts, one: Route, kind: Kind, gap: int) -> None:
    """A depth that owns its layer."""
    depth = one.depth
    held = one.kinds[0] if one.kinds else None
    _named_kind(ledger, facts, depth, kind, held, gap)
    if facts.block_zero and depth:
        ledger.add(
            "K9",
            "module asks for layer 0, the pool holds its depth",
            f"depth {depth}: the class builds its block at layer 0, the pool has layer {depth}: KeyError at its first KV "
            "write",
        )


def _named_kind(ledger: _Ledger, facts: DraftFacts, depth: int | None, kind: Kind, held: Kind | None, gap: int) -> None:
    """K1, K2, K3 and K9: what an owned depth is charged as against what it gets."""
    if held is None:
        ledger.add(
            "K9",
            "depth in neither layer list",
            f"depth {depth} gets a pool without layers: KeyError at its first KV write",
            gap,
        )
        return
    if held == kind:
        return
    detail = f"depth {depth}: {_NAMES[kind]} is charged, {_NAMES[held]} is allocated"
    if kind == "swa" or facts.local_ids is None:
        ledger.add("K3", "routed by depth without the metadata the budget reads", detail, gap)
    elif kind == "ring":
        ledger.add("K1", "ring charged, full pool allocated", detail, gap)
    else:
        ledger.add("K2", "full layer charged, ring allocated", detail, gap)


def _geometry(ledger: _Ledger, facts: DraftFacts, routes: tuple[Route, ...], capacity: Capacity) -> None:
    """K8: the budget prices draft layers with the target's geometry."""
    pairs: tuple[tuple[str, tuple[Kind, ...], int, int], ...] = (
        ("full", ("full",), facts.full_bytes, capacity.full_price),
        ("sliding", ("swa", "ring"), facts.swa_bytes, capacity.swa_price),
    )
    for label, group, real, price in pairs:
        tokens = sum(
            (capacity.swa if kind == "swa" else capacity.total) for one in routes for kind in one.kinds if kind in group
        )
        if tokens and real != price:
            ledger.add(
                "K8",
                "draft geometry differs from the target's",
                f"a {label} draft layer takes {real:,} B a token, the budget charges {price:,} B",
                (real - price) * tokens,
            )


def _slots(pool: PoolPlan, capacity: Capacity) -> int:
    """How many slots of the target index a draft pool."""
    return capacity.swa if pool.indexed_by == "swa" else capacity.total


def _capacities(ledger: _Ledger, routes: tuple[Route, ...], capacity: Capacity, pools: tuple[PoolPlan, ...]) -> None:
    """K10: a pool that has fewer rows, or more, than there are slots to index it."""
    for pool in pools:
        number = int(pool.worker[5:])
        if not pool.layers or number >= len(routes):
            continue
        wanted = _slots(pool, capacity)
        gap = (pool.tokens - wanted) * pool.bytes_per_token
        why = "the full capacity of an all-SWA target is 0" if capacity.full == 0 else "sized before the split"
        held = f"{pool.worker} {pool.pool}: {pool.tokens:,} tokens ({why}), indexed by slots up to {wanted:,}"
        if pool.tokens < wanted:
            detail = f"{held}: writes beyond row {pool.rows - 1:,} are out of range"
            ledger.add("K10", "pool smaller than the slots that index it", detail, gap)
        elif pool.tokens > wanted:
            detail = f"{held}: {pool.tokens - wanted:,} rows are never used"
            ledger.add("K10", "pool larger than the slots that index it", detail, gap)


def _metadata(ledger: _Ledger, facts: DraftFacts) -> None:
    """K5 and K6: what the metadata says is not what is meant."""
    local, layers = facts.local_ids, facts.budget_layers or 0
    outside = [i for i in local or () if i >= layers]
    if outside and layers:
        ledger.add(
            "K5",
            "metadata names layers, not depths",
            f"ids {outside} of mtp_local_layer_ids are not below the {layers} draft layers the budget counts: ignored",
        )
    if local == () and layers:
        ledger.add(
            "K6",
            "empty list is not a missing key",
            f"mtp_local_layer_ids = [] charges {layers} full layers; without the key it would be "
            f"{min(facts.budget_swa_layers, layers)} at the SWA share",
        )


def _windows(ledger: _Ledger, facts: DraftFacts, routes: tuple[Route, ...], settings: Settings) -> None:
    """K11: an ordinary block loses KV when the target frees it."""
    if facts.window is None or settings.window is None or not any(one.swa for one in routes):
        return
    if facts.window > settings.window:
        ledger.add(
            "K11",
            "the draft's window outlives the target's",
            f"the draft attends {facts.window} earlier tokens, the target frees SWA slots after {settings.window}: the "
            "draft reads freed slots and its acceptance drops",
        )
