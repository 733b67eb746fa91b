"""Why a plan has its figures: every sum in numbers, and how many requests of one length they hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from simkv.arch import Arch
from simkv.engines.base import Plan, PoolPlan
from simkv.engines.explanation import Equation, Fit, LengthCost, WindowCost
from simkv.engines.sglang.footprint import Footprint, chunks_in_flight, footprint, window_pages
from simkv.engines.sglang.reserve import (
    alloc_len_per_decode,
    alloc_reserve_per_decode,
    ceil_page,
    floor_page,
    spec_v1_alloc_len,
)
from simkv.engines.sglang.settings import DTYPE_BYTES, Settings

__all__ = ["chunk_needs", "equations", "fits", "flight_tokens", "length_costs", "sized_by_ratio", "window_costs"]

_CAPPED = "SWARequestCapPoolConfigurator"
# What a pool sized for the chunks in flight leaves on top of them.
CHUNK_HEADROOM = 1.05
# SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION: of an answer, admission reserves no more.
MOST_RESERVED = 4096


# ------------------------------------------------------------------------------------------------- sums
def equations(plan: Plan, settings: Settings) -> tuple[Equation, ...]:
    """Every figure of a plan as a sum in numbers."""
    out = [*_layer_prices(plan), _token_price(plan)]
    if plan.infeasible is None or plan.pools:
        out += _capacities(plan, settings)
    out += [_pool_bytes(pool, plan.page_size) for pool in plan.pools if pool.layers]
    if plan.pools:
        beyond = " + ".join(f"({pool.bytes} - {pool.budgeted_bytes})" for pool in plan.pools)
        out.append(Equation("allocated beyond the budget", beyond, plan.overcommit_bytes, "B"))
    if settings.spec is not None:
        out.append(_reserve(settings))
    return tuple(out)


def _layer_prices(plan: Plan) -> Iterable[Equation]:
    for pool in plan.pools:
        if pool.worker != "target":
            continue
        shape = pool.shape
        width = DTYPE_BYTES.get(shape.dtype, 2)
        price = plan.full_bytes_per_token_layer if pool.pool == "full" else plan.swa_bytes_per_token_layer
        formula = f"{shape.kv_heads} * ({shape.head_dim} + {shape.v_head_dim}) * {width}"
        if shape.dtype == "mxfp8":
            formula += f" + {shape.kv_heads} * ({shape.head_dim} + {shape.v_head_dim}) // 32"
        kind = "full" if pool.pool == "full" else "sliding"
        yield Equation(f"a token in one {kind} layer", formula, price, "B/token", "pool_configurator.py:683-727")


def _token_price(plan: Plan) -> Equation:
    name = "a token of max_total_num_tokens"
    full, swa = plan.full_bytes_per_token_layer, plan.swa_bytes_per_token_layer
    layers, draft = plan.layers, plan.draft_layers
    if plan.configurator == "DefaultPoolConfigurator":
        own = full * layers["full"]
        rest = plan.bytes_per_token - own
        formula = f"{layers['full']} * {full}" + (f" + {rest:.10g}" if rest else "")
        return Equation(name, formula, plan.bytes_per_token, "B/token", "pool_configurator.py:192-349")
    terms = []
    if layers["full"] + draft["full"]:
        terms.append(f"({layers['full']} + {draft['full']}) * {full}")
    if draft["swa_full"]:
        terms.append(f"{draft['swa_full']} * {swa}")
    share = f"{plan.settings['swa_full_tokens_ratio']:.10g} * " if layers["full"] else ""
    terms.append(f"{share}({layers['swa']} + {draft['swa']}) * {swa}")
    if _lump(plan):
        terms.append(f"{_lump(plan)}")
    return Equation(
        name,
        " + ".join(terms),
        plan.bytes_per_token,
        "B/token",
        "pool_configurator.py:786-803",
    )


def _full_side(plan: Plan, lump: int) -> int:
    """Bytes a full token takes outside the SWA pool."""
    full, swa, draft = plan.full_bytes_per_token_layer, plan.swa_bytes_per_token_layer, plan.draft_layers
    return full * (plan.layers["full"] + draft["full"]) + swa * draft["swa_full"] + lump


def _swa_side(plan: Plan) -> int:
    """Bytes a token of the SWA pool takes."""
    return plan.swa_bytes_per_token_layer * (plan.layers["swa"] + plan.draft_layers["swa"])


def _lump(plan: Plan) -> int:
    """What a DFLASH draft adds to each full token."""
    ratio = plan.settings["swa_full_tokens_ratio"] if plan.layers["full"] else 1.0
    return round(plan.bytes_per_token - _full_side(plan, 0) - ratio * _swa_side(plan))


def _capacities(plan: Plan, settings: Settings) -> Iterable[Equation]:
    page, cap = plan.page_size, settings.max_total_tokens
    total = plan.max_total_num_tokens or 0
    if plan.configurator == _CAPPED:
        yield from _capped(plan, settings)
        return
    budget = f"{plan.kv_bytes} // {plan.bytes_per_token:.10g}"
    held = floor_page(int(plan.kv_bytes // plan.bytes_per_token), page)
    formula = f"floor_{page}({cap})" if cap is not None and cap < held else f"floor_{page}({budget})"
    where = "pool_configurator.py:879-893"
    yield Equation("max_total_num_tokens", formula, total, "tokens", where)
    if plan.swa_max_total_num_tokens is not None and plan.layers["full"]:
        ratio = settings.swa_full_tokens_ratio
        swa = f"floor_{page}(int({total} * {ratio:.10g}))"
        yield Equation("tokens of the SWA pool", swa, plan.swa_max_total_num_tokens, "tokens", where)


def _capped(plan: Plan, settings: Settings) -> Iterable[Equation]:
    """The SWA pool sized for its requests; the full pool gets the rest."""
    page, spec, cap = plan.page_size, settings.spec, settings.max_total_tokens
    where = "pool_configurator.py:924-1042"
    width = spec.num_draft_tokens if spec is not None else 1
    decode = page
    if spec is not None:
        v1 = settings.disable_overlap_schedule
        decode = spec_v1_alloc_len(spec, page) if v1 else alloc_reserve_per_decode(spec, page)
    chunks = 1 if settings.disable_overlap_schedule else 2
    need = (
        f"({settings.window} + {settings.swa_eviction_interval} * {width} + {page} + {decode}) * "
        f"{max(1, settings.max_running_requests or 1)} + {chunks} * {settings.chunked_prefill_size} + {page}"
    )
    swa, total = plan.swa_max_total_num_tokens or 0, plan.max_total_num_tokens or 0
    budget = (plan.kv_bytes - swa * _swa_side(plan)) // _full_side(plan, _lump(plan))
    if cap is not None and cap < floor_page(int(budget), page):
        yield Equation("tokens of the SWA pool", f"min(ceil_{page}({need}), {cap})", swa, "tokens", where)
        yield Equation("max_total_num_tokens", f"floor_{page}({cap})", total, "tokens", where)
        return
    yield Equation("tokens of the SWA pool", f"ceil_{page}({need})", swa, "tokens", where)
    rest = f"({plan.kv_bytes} - {swa} * {_swa_side(plan)}) // {_full_side(plan, _lump(plan))}"
    yield Equation("max_total_num_tokens", f"floor_{page}({rest})", total, "tokens", where)


def _pool_bytes(pool: PoolPlan, page: int) -> Equation:
    name = f"{pool.worker} {'ring' if pool.mapping == 'identity' else pool.pool} pool, with its padding page"
    return Equation(
        name, f"({pool.tokens} + {page}) * {pool.bytes_per_token}", pool.bytes, "B", "memory_pool.py:2574-2587"
    )


def _reserve(settings: Settings) -> Equation:
    """Tokens that speculation holds ahead of each request."""
    spec, page = settings.spec, settings.page_size
    assert spec is not None
    if page == 1 or spec.eagle_topk == 1 or not spec.has_draft_kv:
        one = f"max({spec.num_steps} * {spec.eagle_topk}, {spec.num_draft_tokens})"
    else:
        pages = f"({page} - 1 + {spec.num_steps} + {page} - 1) // {page}"
        one = f"max({pages} * {page} * {spec.eagle_topk}, {spec.num_draft_tokens})"
    value = 2 * alloc_len_per_decode(spec, page)
    return Equation("reserved ahead of each request", f"2 * {one}", value, "tokens", "allocation_sizing.py:28-70")


# ------------------------------------------------------------------------------------------------- requests
def fits(plan: Plan, settings: Settings, foot: Footprint, input_tokens: int, output_tokens: int) -> tuple[Fit, ...]:
    """At most how many requests of one length each limit holds at once, all at their longest."""
    out = []
    full = plan.max_total_num_tokens if plan.full_max_total_num_tokens is None else plan.full_max_total_num_tokens
    if full:
        out.append(Fit("full", full, foot.full, foot.full_formula, full // foot.full))
    swa = plan.swa_max_total_num_tokens
    if swa:
        out.append(_swa_fit(swa, plan, settings, foot, input_tokens, output_tokens))
    if plan.max_running_requests is not None:
        out.append(Fit("rows", plan.max_running_requests, 1, "one row a request", plan.max_running_requests))
    return tuple(out)


def _swa_fit(swa: int, plan: Plan, settings: Settings, foot: Footprint, input_tokens: int, output_tokens: int) -> Fit:
    """The SWA pool's share: while the last request is prefilled, the others hold their windows, and a page stays free."""
    flight = flight_tokens(settings, foot, input_tokens)
    formula = foot.swa_formula
    if flight > foot.swa:
        formula += f"; {flight:,} while its prompt is computed"
    count = (swa - plan.page_size - max(foot.swa, flight)) // foot.swa + 1
    if count < 1:
        # Nobody else is there, and a chunk that does not fit is made smaller; unless not even a page of it fits.
        count = int(first_chunk(settings, swa, input_tokens, output_tokens) > 0 and swa >= foot.swa)
    return Fit("swa", swa, foot.swa, formula, count)


def flight_tokens(settings: Settings, foot: Footprint, input_tokens: int) -> int:
    """SWA tokens held at the most before a request's first eviction while it decodes.

    That is what the engine counts for chunks in flight, or the request's own: of a cut prompt the window and the chunks in
    flight, and what its first decode steps add, which evict nothing (managers/schedule_batch.py:4047-4129).
    """
    page, late = settings.page_size, not settings.disable_overlap_schedule
    chunk = settings.chunk or input_tokens
    own = min(input_tokens, ceil_page(settings.window or 0, page) + chunk * (1 + late))
    return max(chunks_in_flight(settings, input_tokens), ceil_page(own + (foot.reserve or 1 + late), page))


def first_chunk(settings: Settings, swa: int, input_tokens: int, output_tokens: int) -> int:
    """Tokens of the first prefill of a request in an empty SWA pool; 0 where none fit (mem_cache/prefill_budget.py:27-59)."""
    page, window = settings.page_size, settings.window or 0
    whole = ceil_page(input_tokens, page)
    chunk = min(settings.chunk or whole, whole)
    new = min(output_tokens, MOST_RESERVED)
    if max(chunk - window, 0) + min(whole + new, window) + page < swa:
        return chunk
    return max(min(chunk, floor_page(swa - min(new, window) - page, page)), 0)


def chunk_needs(plan: Plan, settings: Settings) -> tuple[int, float] | None:
    """SWA tokens with which whole chunks pass the pool, and those with headroom for what decodes beside them.

    A pool smaller than the chunks in flight, a window and a page makes the engine cut prompts into smaller chunks; what
    users of such servers settled on is the chunks and five percent. None where the ratio sizes nothing.
    """
    if settings.window is None or settings.chunk is None or not sized_by_ratio(plan):
        return None
    chunks = settings.chunk * (1 if settings.disable_overlap_schedule else 2)
    return ceil_page(chunks + settings.window + plan.page_size, plan.page_size), CHUNK_HEADROOM * chunks


def sized_by_ratio(plan: Plan) -> bool:
    """Whether ``swa_full_tokens_ratio`` decides over the SWA pool."""
    return bool(plan.swa_bytes_per_token_layer and plan.layers["full"]) and plan.configurator != _CAPPED


def length_costs(arch: Arch, plan: Plan, settings: Settings, lengths: Iterable[int]) -> tuple[LengthCost, ...]:
    """KV of one sequence of the target on one rank, with and without the split, at each length."""
    window = settings.attention_window
    sliding = arch.count("sliding", "chunked")
    if not sliding or not window:
        return ()
    full_layers = len(arch.layers) - sliding
    swa = plan.swa_bytes_per_token_layer or plan.full_bytes_per_token_layer
    full = plan.full_bytes_per_token_layer
    return tuple(
        LengthCost(
            tokens,
            full_layers * full * tokens + sliding * swa * min(tokens, window),
            (full_layers * full + sliding * swa) * tokens,
        )
        for tokens in sorted(set(lengths))
    )


def window_costs(settings: Settings, input_tokens: int, output_tokens: int) -> tuple[WindowCost, ...]:
    """What a window takes in pages, with the page size as it is and with others that divide it or that it divides."""
    if not settings.hybrid or not settings.window:
        return ()
    sizes = sorted({1, 64, 128, 256, settings.page_size})
    out = []
    for page in sizes:
        changed = replace(settings, page_size=page, chunked_prefill_size=_whole(settings.chunked_prefill_size, page))
        foot = footprint(changed, input_tokens, output_tokens)
        out.append(WindowCost(page, *window_pages(settings.window, page), foot.swa))
    return tuple(out)


def _whole(chunk: int, page: int) -> int:
    """A chunk of whole pages."""
    return chunk if chunk <= 0 else max(floor_page(chunk, page), page)
