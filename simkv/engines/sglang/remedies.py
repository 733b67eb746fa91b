"""The smallest change of each knob with which a server that would not start does start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil

from simkv.engines.base import Infeasible
from simkv.engines.sglang.budget import KvBudget, kv_budget
from simkv.engines.sglang.settings import Settings
from simkv.engines.sglang.sizing import Cell, solve

__all__ = ["remedies"]

_GIB = 1 << 30
_MOST_KV = 1 << 50


def remedies(prices: Callable[[Settings], Cell], budget: KvBudget, settings: Settings) -> tuple[str, ...]:
    """The smallest change of each single knob that makes :func:`solve` succeed, in words.

    Parameters
    ----------
    prices : callable
        Prices of the pools under changed settings.
    budget : KvBudget
        As it is. Where it comes from a GPU and weights, those are the knobs; where it is stated, it is one itself.
    settings : Settings
        As they are.

    Notes
    -----
    Every knob is searched on its own by bisection; a knob that cannot help is left out.
    """

    def fits(changed: Settings, kv: int = budget.kv) -> bool:
        positive = kv > 0 or budget.total is None
        return positive and not isinstance(solve(prices(changed), kv, changed), Infeasible)

    fixes = list(_budget_fixes(budget, lambda kv: fits(settings, kv)))
    if settings.hybrid and fits(replace(settings, swa_full_tokens_ratio=1.0)):
        step = _bisect(1, 1000, lambda k: fits(replace(settings, swa_full_tokens_ratio=k / 1000)))
        fixes.append(f"memory.swa_full_tokens_ratio >= {step / 1000:g}")
    requested = settings.max_running_requests
    if requested is not None and requested > 1 and fits(replace(settings, max_running_requests=1)):
        least = _bisect(1, requested, lambda k: not fits(replace(settings, max_running_requests=k)))
        fixes.append(f"memory.max_running_requests <= {least - 1}")
    cap = settings.max_total_tokens
    if cap is not None and fits(replace(settings, max_total_tokens=None)):
        top = cap
        while not fits(replace(settings, max_total_tokens=top)):
            top *= 2
        page = settings.page_size
        pages = _bisect(cap // page, top // page + 1, lambda k: fits(replace(settings, max_total_tokens=k * page)))
        fixes.append(f"memory.max_total_tokens >= {pages * page:,}")
    return tuple(fixes)


def _budget_fixes(budget: KvBudget, fits: Callable[[int], bool]) -> tuple[str, ...]:
    """What would make the budget large enough."""
    low, high = max(budget.kv, 0), max(budget.kv, 1)
    while not fits(high) and high < _MOST_KV:
        high *= 2
    if not fits(high):
        return ()
    need = _bisect(low, high, fits)
    if budget.total is None:
        return (f"memory.kv_bytes >= {need:,} ({need / _GIB:.3f} GiB)",)
    fixes = []
    taken = budget.weights + budget.draft_weights + budget.overhead + budget.state
    # Four digits, as one writes it; here and below, whole bytes of a float may want one unit more.
    units = ceil((need + taken) / budget.total * 10_000)
    for fraction in (units / 10_000, (units + 1) / 10_000):
        if fraction < 1 and fits(_with(budget, fraction=fraction)):
            fixes.append(f"memory.mem_fraction_static >= {fraction:g}")
            break
    most = budget.weights - (need - budget.kv)
    for weights in (most, most - 1):
        if weights > 0 and fits(_with(budget, weights=weights)):
            fixes.append(f"memory.weights <= {weights:,} B a rank ({weights / _GIB:.2f} GiB)")
            break
    return tuple(fixes)


def _with(budget: KvBudget, *, fraction: float | None = None, weights: int | None = None) -> int:
    """KV bytes with another fraction or other weights."""
    assert budget.total is not None and budget.fraction is not None
    return kv_budget(
        budget.total,
        budget.fraction if fraction is None else fraction,
        weights=budget.weights if weights is None else weights,
        draft_weights=budget.draft_weights,
        overhead=budget.overhead,
        state=budget.state,
    ).kv


def _bisect(low: int, high: int, good: Callable[[int], bool]) -> int:
    """Smallest value in ``[low, high]`` for which ``good`` holds, assuming it holds at ``high``."""
    while low < high:
        middle = (low + high) // 2
        if good(middle):
            high = middle
        else:
            low = middle + 1
    return low
