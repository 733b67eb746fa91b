"""What one request holds of each pool, in closed form.

Without speculation the figures are exact for a request that shares nothing with another one and whose prompt is cut as if
it were alone; with speculation, whose accepted lengths are not known beforehand, they are the most it can hold. In a crowd a
chunk that ends within a window of a prompt's end leaves up to that much more of it locked. Tests compare with the scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass

from simkv.engines.sglang.reserve import alloc_reserve_per_decode, ceil_page, floor_page
from simkv.engines.sglang.settings import Settings

__all__ = ["Footprint", "chunks_in_flight", "footprint", "window_pages"]


@dataclass(frozen=True)
class Footprint:
    """Tokens one request holds while it decodes, from its first eviction on.

    Parameters
    ----------
    full : int
        Full-pool tokens at its end.
    full_mean : float
        Full-pool tokens on average over its decode steps.
    full_formula : str
        How ``full`` comes about.
    swa_tree, swa_tail : int
        SWA tokens of its prompt that the prefix cache keeps locked, and its own ones behind them at their most; 0 without
        an SWA pool.
    swa_formula : str
        How the two come about.
    reserve : int
        Tokens that speculation holds ahead of it, part of both pools' figures.
    """

    full: int
    full_mean: float
    full_formula: str
    swa_tree: int = 0
    swa_tail: int = 0
    swa_formula: str = ""
    reserve: int = 0

    @property
    def swa(self) -> int:
        """SWA-pool tokens at the most."""
        return self.swa_tree + self.swa_tail


def footprint(settings: Settings, input_tokens: int, output_tokens: int, *, all_swa: bool = False) -> Footprint:
    """Tokens that a request of this length holds.

    Parameters
    ----------
    settings : Settings
        The server's.
    input_tokens, output_tokens : int
        Prompt and answer, each at least 1.
    all_swa : bool
        No layer is full: there is one pool, and the prefix cache knows no tombstones, so that it keeps whole prompts
        (mem_cache/pure_swa_radix_cache.py).

    Notes
    -----
    Full pool: a prompt of P and O outputs need the KV of ``P + O - 1`` tokens, since nobody reads the last one's; a verify
    step is prepared with ``ceil_page(committed + R)`` while ``committed <= P + O - 2`` (mem_cache/allocation_sizing.py:73-93).
    SWA pool: :func:`_tree_window` and :func:`_tail`.
    """
    page, spec = settings.page_size, settings.spec
    reserve = alloc_reserve_per_decode(spec, page) if spec is not None else 0
    last = max(input_tokens + output_tokens - (1 if spec is None else 2), input_tokens)
    full = ceil_page(last + reserve, page)
    first = ceil_page(input_tokens + reserve, page)
    ahead = f" + {reserve:,} reserved" if reserve else ""
    formula = f"ceil_{page}({input_tokens:,} + {last - input_tokens:,}{ahead})"
    if not settings.hybrid or settings.window is None:
        return Footprint(full, (first + full) / 2, formula, reserve=reserve)
    tree = 0
    if not settings.disable_radix_cache:
        tree = input_tokens - _unshared(settings, input_tokens) if all_swa else _tree_window(settings, input_tokens)
    own, tail = _tail(settings, input_tokens, last - input_tokens, reserve)
    cached = f"{tree:,} of the prompt in the prefix cache + " if tree else ""
    return Footprint(full, (first + full) / 2, formula, tree, min(own, tail[0]), cached + tail[1], reserve)


def _kept(settings: Settings) -> int:
    """Window that an eviction leaves: ``W``, or whole pages of it with the prefix cache on (mem_cache/common.py:112-118)."""
    assert settings.window is not None
    if settings.disable_radix_cache:
        return settings.window
    return ceil_page(max(settings.window, settings.page_size), settings.page_size)


def _unshared(settings: Settings, input_tokens: int) -> int:
    """Tokens of a prompt that the prefix cache does not take: what is no whole page, and one token of EAGLE's pairs."""
    short = 1 if settings.spec is not None and settings.spec.is_eagle else 0
    return input_tokens - max(floor_page(input_tokens - short, settings.page_size), 0)


def _tree_window(settings: Settings, input_tokens: int) -> int:
    """SWA tokens of the prompt that stay locked in the prefix cache.

    Each chunk of the prompt enters the tree with at most a window of SWA tokens, and the lock goes back over as many
    chunks as it takes to cover the window (mem_cache/unified_cache/components/swa.py:849-950). The EAGLE family's tree
    has one token less: its keys are pairs.
    """
    assert settings.window is not None
    page, chunk, kept = settings.page_size, settings.chunk or input_tokens, _kept(settings)
    short = 1 if settings.spec is not None and settings.spec.is_eagle else 0
    ends = [*range(chunk, input_tokens, chunk), input_tokens]
    locked = 0
    for number in reversed(range(len(ends))):
        begin = max(floor_page(ends[number - 1] - short, page), 0) if number else 0
        locked += min(max(floor_page(ends[number] - short, page) - begin, 0), kept)
        if locked >= settings.window:
            break
    return locked


def _tail(settings: Settings, input_tokens: int, decoded: int, reserve: int) -> tuple[int, tuple[int, str]]:
    """All the SWA tokens that are its own, were none evicted, and the most that evictions leave of them.

    Evictions come once ``I`` tokens, and a page of them, slid out of the kept window (managers/schedule_batch.py:4047-4129);
    with overlap the scheduler knows the length one step late, and a verify step moves by up to its width.
    """
    assert settings.window is not None
    page, window, spec = settings.page_size, settings.window, settings.spec
    unshared = input_tokens if settings.disable_radix_cache else _unshared(settings, input_tokens)
    own = ceil_page(unshared + decoded + reserve, page)
    width = 1 if spec is None else spec.num_draft_tokens
    late = 0 if settings.disable_overlap_schedule else width
    slack = max(settings.swa_eviction_interval, page + _kept(settings) - window)
    ahead = reserve if spec is not None else 1
    most = ceil_page(window + slack - 1 + ahead + (width - 1) + late, page)
    terms = [f"window {window:,}", f"{slack - 1:,} until {slack:,} are due to be evicted"]
    terms.append(f"{ahead:,} ahead" if spec is not None else "1 new")
    if width - 1 + late:
        terms.append(f"{width - 1 + late:,} not yet known")
    if own < most:
        return own, (most, f"{own:,} own, fewer than an eviction would leave")
    return own, (most, f"ceil_{page}({' + '.join(terms)})")


def chunks_in_flight(settings: Settings, input_tokens: int) -> int:
    """SWA tokens that prefill passes hold on top: one chunk, two with overlap (model_executor/pool_configurator.py:924-969)."""
    longest = ceil_page(input_tokens, settings.page_size)
    chunk = min(settings.chunk or longest, longest)
    return chunk * (1 if settings.disable_overlap_schedule else 2)


def window_pages(window: int, page_size: int) -> tuple[float, int]:
    """Pages that a window of tokens touches: mean over all its offsets in a page, and the most.

    ``ceil((o + W) / p)`` summed over the ``p`` offsets ``o`` is ``p + W - 1``.
    """
    return (window - 1) / page_size + 1, -(-(window - 1) // page_size) + 1
