"""From GPU memory to KV bytes: startup defaults and the static budget (arg_groups/memory_hook.py)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "KvBudget",
    "default_chunked_prefill_size",
    "default_mem_fraction_static",
    "kv_budget",
    "prefill_graphs_up_to",
]

MIB = 1 << 20
GIB = 1 << 30


def _tier(gpu_mem_mib: int | None, tp_size: int) -> tuple[int, int]:
    """Default chunk and largest decode graph by memory size (memory_hook.py:89-180)."""
    small = tp_size < 4
    if gpu_mem_mib is None:
        return 4096, 160
    if gpu_mem_mib < 20 * 1024:
        return 2048, 8
    if gpu_mem_mib < 35 * 1024:
        return 4096, 48 if small else 160
    if gpu_mem_mib < 60 * 1024:
        return 4096, 32 if small else 160
    if gpu_mem_mib < 160 * 1024:
        return 8192, 256 if small else 512
    return 16384, 512


def default_chunked_prefill_size(gpu_mem_mib: int | None) -> int:
    """Default of ``--chunked-prefill-size`` for this much memory, in tokens."""
    return _tier(gpu_mem_mib, 1)[0]


def prefill_graphs_up_to(max_tokens: int) -> int:
    """How many prefill graphs are captured (arg_groups/cuda_graph_hook.py:480-497)."""
    sizes = [*range(4, 33, 4), *range(48, 257, 16), *range(288, 513, 32), *range(576, 1025, 64)]
    sizes += [*range(1280, 4097, 256), *range(4608, max_tokens + 1, 512)]
    return sum(size <= max_tokens for size in sizes)


def default_mem_fraction_static(
    gpu_mem_mib: int | None,
    *,
    tp_size: int,
    chunked_prefill_size: int,
    max_prefill_tokens: int,
    max_running_requests: int | None,
    mla: bool,
    decode_graph_bs: int | None = None,
    prefill_graphs: int | None = None,
) -> float:
    """The engine's heuristic for ``--mem-fraction-static`` (memory_hook.py:281-343, 357-399).

    Parameters
    ----------
    gpu_mem_mib : int or None
        Memory of one GPU in MiB; None gives 0.95.
    max_running_requests : int or None
        As the user (or the speculation default) set it; caps the largest decode graph.
    mla : bool
        MLA models reserve a fixed 1.5 GiB for prefill graphs.
    decode_graph_bs : int or None
        Largest batch with a decode graph, 0 for none; None: the default of this much memory.
    prefill_graphs : int or None
        How many prefill graphs are captured, 0 for none; None: as many as chunks are long.
    """
    if gpu_mem_mib is None:
        return 0.95
    graph_bs = _tier(gpu_mem_mib, tp_size)[1]
    if max_running_requests is not None:
        graph_bs = min(graph_bs, max_running_requests)
    if decode_graph_bs is not None:
        graph_bs = decode_graph_bs
    tokens = chunked_prefill_size if chunked_prefill_size > 0 else max_prefill_tokens
    reserved = 512 + max(tokens, 2048) * 1.5 + tp_size / 8 * 1024 + graph_bs * 2
    if mla:
        reserved += 0 if prefill_graphs == 0 else 1.5 * 1024
    else:
        # Without chunks (-1) the list of graphs is empty (memory_hook.py:232-268).
        reserved += 8 * (prefill_graphs_up_to(chunked_prefill_size) if prefill_graphs is None else prefill_graphs)
    if gpu_mem_mib > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    return round((gpu_mem_mib - reserved) / gpu_mem_mib, 3)


@dataclass(frozen=True)
class KvBudget:
    """The KV budget of one rank and how it came about, in bytes.

    ``kv = total * mem_fraction_static - weights - draft_weights - overhead - state``; ``slack`` is what the static
    fraction leaves for activations, graphs and everything the budget forgot.
    """

    kv: int
    slack: int | None
    total: int | None = None
    weights: int = 0
    draft_weights: int = 0
    overhead: int = 0
    state: int = 0
    fraction: float | None = None


def kv_budget(
    total: int, mem_fraction_static: float, *, weights: int, draft_weights: int, overhead: int, state: int
) -> KvBudget:
    """Static budget of one rank (mem_cache/kv_cache_configurator.py:2990-3060).

    ``total`` is the free memory before any weight is loaded; ``overhead`` what the runtime (context, NCCL) takes
    besides the weights.
    """
    slack = total * (1 - mem_fraction_static)
    free_now = total - weights - draft_weights - overhead
    kv = int(free_now - slack) - state
    return KvBudget(kv, int(slack), total, weights, draft_weights, overhead, state, mem_fraction_static)
