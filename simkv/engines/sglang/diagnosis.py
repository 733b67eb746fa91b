"""Why the engine dies, or nothing will ever run again, in words and figures."""

from __future__ import annotations

from simkv.engines.sglang.journal import Journal
from simkv.engines.sglang.memory import KvMemory
from simkv.engines.sglang.settings import Settings
from simkv.errors import EngineFault

__all__ = ["abort_text", "idle_fault", "parked_for_ever", "waits_for_ever"]

LABELS = {"swa": "SWA", "full": "full"}


def idle_fault(memory: KvMemory, settings: Settings, journal: Journal) -> EngineFault | None:
    """What the check of an idle server finds (managers/scheduler.py:5289-5318); a leak of our own is raised."""
    if memory.swa is not None and memory.counted_twice:
        have = memory.holding(memory.swa)
        detail = f"{have.available:,} available + {have.evictable:,} evictable of {memory.swa.capacity:,}"
        return journal.fault("F3", detail, pool="swa")
    for pool, leaked in ((memory.full, memory.leaked_full), (memory.swa, memory.leaked_swa)):
        if pool is None:
            continue
        have = memory.holding(pool)
        free = have.available + have.evictable
        if free + leaked != pool.usable:
            memory.check()
        if leaked:
            return journal.fault("unaligned-reserve", f"{leaked} of {pool.capacity} tokens of the {pool.name} pool")
        if free != pool.capacity:
            if not settings.repair_faults:
                return journal.fault("unaligned-swa-pool", f"{pool.name} pool: {free} available of {pool.capacity}")
            journal.note_repair("unaligned-swa-pool", pool=pool.name)
    return None


def parked_for_ever(memory: KvMemory, settings: Settings, journal: Journal, handle: int) -> EngineFault:
    """F2: a chunked prompt waits for slots it holds itself; a pool of two chunks avoids it."""
    chunk, swa = settings.chunk, memory.swa
    held = int(memory.table.allocated[handle])
    assert swa is not None and chunk is not None
    detail = (
        f"request {journal.names[handle]} is parked after {held:,} prompt tokens: it holds {swa.used:,} of "
        f"{swa.usable:,} SWA slots itself and {swa.available:,} are free; two chunks in flight take {2 * chunk:,}"
    )
    if memory.full is not None:
        ratio = 2 * chunk * 1.05 / memory.full.capacity
        remedy = f"memory.swa_full_tokens_ratio = {ratio:.4g}" if ratio <= 1 else "a smaller chunked_prefill_size"
        detail += f", so {remedy} avoids it"
    return journal.fault("F2", detail, handle, "swa")


def waits_for_ever(
    memory: KvMemory, settings: Settings, journal: Journal, waiting: list[int], limit: str
) -> EngineFault:
    """The head of the queue is never admitted; ``limit`` is what kept it out."""
    table, page, swa = memory.table, settings.page_size, memory.swa
    handle = waiting[0]
    name, tokens = journal.names[handle], int(table.input_tokens[handle]) + int(table.output[handle])
    if swa is not None and limit == "swa":
        detail = f"request {name}: {tokens:,} prompt tokens never fit the SWA pool of {swa.capacity:,} tokens"
        chunk, window = settings.chunk, memory.window or 0
        if chunk is None:
            return journal.fault("D14", f"{detail} in one piece", handle, "swa")
        least = max(min(page, chunk) - window, 0) + min(page, window) + page
        detail += f"; admitting anything takes more than {least:,} SWA tokens"
        return journal.fault("swa-never-fits", detail, handle, "swa")
    if table.max_new[handle] == 0 or limit == "full":
        detail = (
            f"request {name}: prompt {tokens:,} in a pool of {memory.capacity:,} tokens with pages of {page} passes "
            "arrival but never admission"
        )
        return journal.fault("F5", detail, handle, memory.pools.main.name)
    return journal.fault("stalled", f"{len(waiting)} requests wait, {name} at their head", handle)


def abort_text(memory: KvMemory, pool: str, need: int) -> str:
    """Why the last request of a batch cannot go on although it is alone."""
    full, swa = memory.full, memory.swa
    short, other = (swa, full) if pool == "swa" else (full, swa)
    assert short is not None
    if short.available >= memory.page_size:
        return f"alone, its next step needs {need:,} tokens of a {LABELS[pool]} pool that holds {short.capacity:,}"
    text = f"its {LABELS[pool]} pool of {short.capacity:,} tokens is full"
    if other is None:
        return text
    return f"{text}, the {LABELS[other.name]} pool {other.used / other.capacity:.0%} used"
