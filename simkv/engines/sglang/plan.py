"""The plan of a server: budget, sizing and routing put together."""

from __future__ import annotations

from dataclasses import replace

from simkv.arch import Arch
from simkv.engines.base import Charge, Disagreement, Infeasible, KvShape, Plan, PoolPlan
from simkv.engines.sglang.budget import KvBudget
from simkv.engines.sglang.disagree import disagreements
from simkv.engines.sglang.drafts import DraftFacts, StatedDraft, draft_facts
from simkv.engines.sglang.remedies import remedies
from simkv.engines.sglang.reserve import alloc_reserve_per_decode
from simkv.engines.sglang.routing import Capacity, RoutingRule, draft_pools, route
from simkv.engines.sglang.settings import Settings
from simkv.engines.sglang.sizing import (
    Cell,
    PoolSizes,
    cell,
    layer_bytes,
    layer_shape,
    max_running_requests,
    solve,
)

__all__ = ["build_plan", "server_refusal"]

NAME = "sglang@0.5.23"
GIB = 1 << 30


def build_plan(
    arch: Arch,
    draft: Arch | None,
    settings: Settings,
    budget: KvBudget,
    rule: RoutingRule,
    stated: StatedDraft | None = None,
    notes: tuple[str, ...] = (),
) -> Plan:
    """Sizes, pools and disagreements of one server.

    Parameters
    ----------
    arch, draft : Arch, Arch or None
        Target and separate draft model.
    settings : Settings
        Resolved server settings.
    budget : KvBudget
        KV bytes of one rank and where they come from.
    rule : RoutingRule
        Generation of the draft routing rule.
    stated : StatedDraft, optional
        Facts of the draft that win over derived ones.
    notes : tuple of str
        Lines to carry into the plan.

    Returns
    -------
    Plan
        ``infeasible`` is set, and pools are missing, where the engine would refuse to start.
    """
    stated = stated or StatedDraft()
    facts = _facts(arch, draft, settings, stated)

    def prices(changed: Settings) -> Cell:
        return cell(arch, draft, changed, facts, rule, num_draft_layers=stated.num_layers)

    one = prices(settings)
    base = Plan(
        engine=NAME,
        model=arch.name,
        configurator=one.configurator,
        kv_bytes=budget.kv,
        bytes_per_token=one.bytes_per_token,
        full_bytes_per_token_layer=one.full_layer,
        swa_bytes_per_token_layer=one.swa_layer,
        layers={"full": one.full_layers, "swa": one.swa_layers},
        draft_layers={"full": one.terms.full, "swa": one.terms.swa, "swa_full": one.terms.swa_full},
        page_size=settings.page_size,
        window=settings.window if settings.hybrid else None,
        max_total_num_tokens=None,
        full_max_total_num_tokens=None,
        swa_max_total_num_tokens=None,
        max_running_requests=None,
        routing=rule.name,
        slack_bytes=budget.slack,
        charges=_charges(budget),
        notes=notes + _notes(arch, settings, one),
        settings=_settings(settings),
    )
    refusal = _refusal(budget)
    sizes = refusal or solve(one, budget.kv, settings)
    if isinstance(sizes, Infeasible):
        return replace(base, infeasible=replace(sizes, fixes=remedies(prices, budget, settings)))
    made = replace(_finish(base, arch, one, sizes, facts, rule, settings), infeasible=_allocator_refusal(one, settings))
    refused = server_refusal(arch, made, settings)
    return made if refused is None else replace(made, notes=(*made.notes, f"no server starts: {refused.message}"))


def _facts(arch: Arch, draft: Arch | None, settings: Settings, stated: StatedDraft) -> DraftFacts | None:
    if settings.spec is None or not settings.spec.has_draft_kv:
        return None
    mode = draft if draft is not None else arch
    dtype, tp = settings.kv_cache_dtype, settings.tp_size
    return draft_facts(
        arch,
        draft,
        settings,
        full_bytes=layer_bytes(mode.full or mode.sliding, dtype, tp),
        swa_bytes=layer_bytes(mode.sliding or mode.full, dtype, tp),
        stated=stated,
        full_shape=layer_shape(mode.full or mode.sliding, dtype, tp),
        swa_shape=layer_shape(mode.sliding or mode.full, dtype, tp),
    )


def _finish(
    base: Plan, arch: Arch, one: Cell, sizes: PoolSizes, facts: DraftFacts | None, rule: RoutingRule, settings: Settings
) -> Plan:
    page = settings.page_size
    full_tokens = sizes.max_total if sizes.full is None else sizes.full
    swa_tokens = sizes.swa or 0
    pools: list[PoolPlan] = []
    if one.full_layers:
        shape = layer_shape(arch.full or arch.sliding, settings.kv_cache_dtype, settings.tp_size)
        pools.append(_target("full", one.full_layers, one.full_layer, full_tokens, page, one, shape))
    if one.swa_layers:
        shape = layer_shape(arch.sliding, settings.kv_cache_dtype, settings.tp_size)
        swa = _target("swa", one.swa_layers, one.swa_layer, swa_tokens, page, one, shape)
        pools.append(replace(swa, window=settings.window))
    found: tuple[Disagreement, ...] = ()
    if facts is not None:
        spec = settings.spec
        in_one_sum = not settings.hybrid or (spec is not None and spec.is_dflash)
        capacity = Capacity(
            full=full_tokens,
            swa=swa_tokens,
            total=sizes.max_total,
            full_price=one.full_layer,
            swa_price=one.swa_layer,
            lump=one.draft_cell if in_one_sum else None,
            pre_split=_pre_split(base, one, settings),
        )
        routes = route(rule, facts)
        drafts = draft_pools(facts, routes, one.kinds, capacity, settings)
        pools.extend(drafts)
        found = disagreements(facts, routes, one.kinds, capacity, settings, drafts)
    return replace(
        base,
        max_total_num_tokens=sizes.max_total,
        full_max_total_num_tokens=sizes.full,
        swa_max_total_num_tokens=sizes.swa,
        max_running_requests=max_running_requests(settings, sizes.max_total),
        pools=tuple(pools),
        disagreements=found,
        swa_cap=None if one.configurator != "SWARequestCapPoolConfigurator" else sizes.swa,
        notes=base.notes + _size_notes(base, sizes, pools, settings) + _draft_notes(facts),
    )


def _pre_split(base: Plan, one: Cell, settings: Settings) -> int | None:
    """With the fault ``draft-pool-pre-split``: draft tokens as if every layer were full, before the split."""
    if "draft-pool-pre-split" not in settings.faults or not settings.hybrid:
        return None
    dense = one.full_layer * one.full_layers + one.swa_layer * one.swa_layers
    return base.kv_bytes // dense // settings.page_size * settings.page_size


def _draft_notes(facts: DraftFacts | None) -> tuple[str, ...]:
    if facts is None or facts.runners:
        return ()
    return (
        "the draft's layers are not known (no draft.config, and the target states no MTP layers): no draft pool is planned "
        "and none is charged; state draft.config or draft.num_layers",
    )


def _target(name: str, layers: int, per_layer: int, tokens: int, page: int, one: Cell, shape: KvShape) -> PoolPlan:
    per_token = layers * per_layer
    if one.configurator == "DefaultPoolConfigurator":
        per_token = int(one.bytes_per_token) - one.draft_cell
    return PoolPlan(
        worker="target",
        pool="full" if name == "full" else "swa",
        layers=layers,
        tokens=tokens,
        rows=tokens + page,
        bytes_per_token=per_token,
        bytes=(tokens + page) * per_token,
        mapping="none" if name == "full" else "target",
        budgeted_bytes=tokens * per_token,
        shape=shape,
    )


def _refusal(budget: KvBudget) -> Infeasible | None:
    """Refusals that come before any sizing."""
    if budget.kv <= 0 and budget.total is not None:
        return Infeasible(
            f"weights leave no memory for KV: {budget.total:,} B x mem_fraction_static "
            f"{1 - (budget.slack or 0) / budget.total:.3f} - weights {budget.weights:,} B - draft weights "
            f"{budget.draft_weights:,} B - overhead {budget.overhead:,} B - state {budget.state:,} B = {budget.kv:,} B",
            "ValueError",
        )
    return None


def _allocator_refusal(one: Cell, settings: Settings) -> Infeasible | None:
    """Refusals of the allocators, which are built once the pools have their sizes."""
    if settings.hybrid and one.full_layers == 0 and settings.page_size != 1:
        return Infeasible(
            f"an all-SWA model runs with page_size 1 only, not {settings.page_size} (mem_cache/allocator/swa.py:739)",
            "AssertionError",
            ("memory.page_size = 1",),
        )
    return None


def server_refusal(arch: Arch, made: Plan, settings: Settings) -> Infeasible | None:
    """Refusals of what a server builds besides its pools: the model and the worker.

    The pools have sizes all the same, so a plan carries this as a note; a run does not start.
    """
    tp, heads = settings.tp_size, arch.num_attention_heads
    if heads and heads % tp:
        allowed = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        return Infeasible(
            f"{heads} attention heads cannot be split over {tp} ranks: the model classes assert it (models/llama.py:183)",
            "AssertionError",
            (f"model.tp_size one of {allowed}",),
        )
    if made.max_running_requests == 0:
        return Infeasible(
            f"max_running_requests is half of max_total_num_tokens {made.max_total_num_tokens}, that is 0 "
            "(managers/tp_worker.py:420)",
            "AssertionError",
            ("a KV budget of at least 2 tokens",),
        )
    if settings.window == 0 and made.layers["full"]:
        return Infeasible(
            "the cache of a split model needs a window of at least 1 token, this one keeps none "
            "(mem_cache/unified_cache/components/swa.py:86)",
            "ValueError",
            ("model.cache_window >= 1",),
        )
    return None


def _notes(arch: Arch, settings: Settings, one: Cell) -> tuple[str, ...]:
    notes = []
    sliding = arch.count("sliding", "chunked")
    if sliding and not settings.hybrid:
        notes.append(
            f"{sliding} of {len(arch.layers)} layers slide, but the engine sizes {arch.architecture or 'this model'} as "
            "all-full: every layer keeps every token (model.hybrid_swa = true splits the pools for a study)"
        )
    if one.configurator == "SWARequestCapPoolConfigurator":
        notes.append(
            f"the SWA pool is sized for {settings.max_running_requests} requests (radix cache off), so "
            "swa_full_tokens_ratio has no effect"
        )
    if arch.num_kv_shared_layers:
        notes.append(
            f"the last {arch.num_kv_shared_layers} layers share the KV of earlier ones; the engine's sizing budgets all "
            f"{len(arch.layers)}"
        )
    if settings.hybrid and one.full_layers == 0:
        notes.append("all layers slide: one SWA pool, swa_full_tokens_ratio has no effect")
    return tuple(notes)


def _size_notes(base: Plan, sizes: PoolSizes, pools: list[PoolPlan], settings: Settings) -> tuple[str, ...]:
    notes = []
    if sizes.swa is not None and sizes.swa % settings.page_size:
        notes.append(
            f"the SWA pool of {sizes.swa:,} tokens is no whole number of pages ({settings.page_size}): the engine's own "
            "idle check fails with it"
        )
    if sizes.swa is not None and settings.window is not None and settings.window > 0:
        # What the smallest prompt, one page, needs (mem_cache/prefill_budget.py:27-59).
        page, window = settings.page_size, settings.window
        least = max(page - window, 0) + min(page, window) + page
        if least >= sizes.swa:
            notes.append(
                f"the server starts, but a prompt of one page needs more than {least:,} SWA tokens and the pool holds "
                f"{sizes.swa:,}: nothing is ever admitted"
            )
    cap = settings.max_total_tokens
    if cap is not None and cap > sizes.max_total + settings.page_size:
        notes.append(f"max_total_tokens {cap:,} is not reached: the budget holds {sizes.max_total:,}")
    over = sum(p.bytes - p.budgeted_bytes for p in pools)
    if base.slack_bytes is not None and over > base.slack_bytes:
        drafts = sum(p.bytes for p in pools if p.worker != "target")
        notes.append(
            f"the pools take {over / GIB:.2f} GiB more than the budget, and {base.slack_bytes / GIB:.2f} GiB are outside the "
            f"static fraction: start-up runs out of memory ({drafts / GIB:.2f} GiB are draft pools)"
        )
    if settings.spec is not None:
        reserve = alloc_reserve_per_decode(settings.spec, settings.page_size)
        notes.append(f"speculation reserves {reserve} tokens ahead of every running request (twice the step's need)")
    return tuple(notes)


def _charges(budget: KvBudget) -> tuple[Charge, ...]:
    if budget.total is None:
        lines = [Charge("kv_bytes", budget.kv, "stated")]
        return tuple(lines)
    static = budget.total - (budget.slack or 0)
    return (
        Charge("gpu memory", budget.total, "free before weights are loaded"),
        Charge("outside the static fraction", -(budget.slack or 0), f"{1 - static / budget.total:.3f} of it"),
        Charge("weights", -budget.weights, "target, one rank"),
        Charge("draft weights", -budget.draft_weights, "one rank"),
        Charge("runtime overhead", -budget.overhead, "context, communication buffers"),
        Charge("fixed request state", -budget.state, "short convolutions and the like"),
        Charge("kv_bytes", budget.kv, "what is left for KV"),
    )


def _settings(settings: Settings) -> dict[str, object]:
    spec = settings.spec
    shown: dict[str, object] = {
        "tp_size": settings.tp_size,
        "kv_cache_dtype": settings.kv_cache_dtype,
        "page_size": settings.page_size,
        "swa_full_tokens_ratio": settings.swa_full_tokens_ratio,
        "chunked_prefill_size": settings.chunked_prefill_size,
        "context_length": settings.context_len,
        "disable_radix_cache": settings.disable_radix_cache,
        "disable_overlap_schedule": settings.disable_overlap_schedule,
    }
    if spec is not None:
        shown |= {
            "speculative_algorithm": spec.algorithm,
            "speculative_num_steps": spec.num_steps,
            "speculative_eagle_topk": spec.eagle_topk,
            "speculative_num_draft_tokens": spec.num_draft_tokens,
            "enable_multi_layer_eagle": spec.enable_multi_layer_eagle,
        }
    return shown
