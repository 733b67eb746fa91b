"""Lengths that speculation reserves, from the arguments alone (mem_cache/allocation_sizing.py)."""

from __future__ import annotations

import numpy as np

from simkv.engines.sglang.settings import Spec
from simkv.workload.request import IntArray

__all__ = [
    "alloc_len_per_decode",
    "alloc_reserve_per_decode",
    "ceil_page",
    "extra_context_len",
    "decode_alloc_len",
    "floor_page",
    "front_end_reserve",
    "spec_v1_alloc_len",
]


def ceil_page(tokens: int, page: int) -> int:
    """``tokens`` rounded up to a whole page."""
    return -(-tokens // page) * page


def floor_page(tokens: int, page: int) -> int:
    """``tokens`` rounded down to a whole page."""
    return tokens // page * page


def alloc_len_per_decode(spec: Spec | None, page_size: int) -> int:
    """KV length one verify step may need, ``A`` (allocation_sizing.py:28-61).

    With pages and a tree, each of the ``topk`` branches gets its own worst-case run of pages.
    """
    if spec is None:
        return 1
    if page_size == 1 or spec.eagle_topk == 1 or not spec.has_draft_kv:
        return max(spec.num_steps * spec.eagle_topk, spec.num_draft_tokens)
    pages = (page_size - 1 + spec.num_steps + page_size - 1) // page_size
    return max(pages * page_size * spec.eagle_topk, spec.num_draft_tokens)


def alloc_reserve_per_decode(spec: Spec | None, page_size: int) -> int:
    """KV length reserved ahead of the committed length, ``R = 2 A`` (allocation_sizing.py:64-70)."""
    return 2 * alloc_len_per_decode(spec, page_size)


def decode_alloc_len(committed: IntArray, allocated: IntArray, reserve: int, page_size: int) -> IntArray:
    """Lengths that requests hold after a speculative step was prepared (allocation_sizing.py:73-93)."""
    held: IntArray = np.maximum(allocated, -(-(committed + reserve) // page_size) * page_size)
    return held


def front_end_reserve(spec: Spec | None) -> int:
    """Draft slots the front end counts on top of a prompt, for the EAGLE family (managers/utils.py:484-500)."""
    if spec is None or not spec.is_eagle:
        return 0
    return max(spec.eagle_topk * spec.num_steps, spec.num_draft_tokens)


def extra_context_len(spec: Spec | None, page_size: int) -> int:
    """Slots a request row has beyond the context length (allocation_sizing.py:96-116)."""
    extra = 4 + (spec.num_draft_tokens if spec is not None else 0)
    if spec is not None and page_size > 1:
        extra = max(extra, alloc_reserve_per_decode(spec, page_size) + page_size - 1)
    return extra


def spec_v1_alloc_len(spec: Spec | None, page_size: int) -> int:
    """Length the historical v1 step allocated; lives on in one branch of the SWA cap (utils/common.py:4424-4448)."""
    steps = spec.num_steps if spec is not None else 1
    topk = spec.eagle_topk if spec is not None else 1
    width = spec.num_draft_tokens if spec is not None else 1
    if page_size > 1 and topk > 1:
        steps, width = ceil_page(steps + page_size, page_size), ceil_page(width, page_size)
    elif page_size > 1:
        steps, width = ceil_page(steps, page_size), ceil_page(width, page_size)
    return max(steps * topk, width)
