"""Faults of SGLang 0.5.23 itself that simkv meets, names, and reproduces or repairs (``policies.engine_faults``)."""

from __future__ import annotations

__all__ = ["ENGINE_FAULTS"]

ENGINE_FAULTS = {
    "F1": "two prompts are cut in one pass; the engine loses track of the first, frees its SWA slots twice and dies at "
    "the next idle check (managers/schedule_policy.py:1692-1693)",
    "F2": "livelock: a chunked prompt holds the whole SWA pool, and its out-of-window slots are freed only when its next "
    "chunk is scheduled (managers/schedule_batch.py:4105-4122)",
    "F3": "an all-sliding model: slots that the window of a long answer freed are put into the prefix tree when the "
    "request ends, so they are free and cached at once; an allocator or the idle check finds too many and the scheduler "
    "process dies (mem_cache/radix_cache.py:510-543)",
    "F4": "a lone speculative request whose reserve exceeds the pool is admitted, prefilled, and aborted at its first "
    "decode step (managers/schedule_batch.py:3508-3530)",
    "F5": "a prompt within one page of the pool's size is accepted and never admitted; it blocks the queue for ever "
    "(mem_cache/allocator/base.py:88-105 rounds, the admission test does not)",
    "D14": "with chunking off, a prompt that can never fit the SWA pool waits for ever at the head of the queue "
    "(mem_cache/prefill_budget.py:267)",
    "swa-never-fits": "a prompt that can never fit the SWA pool whole is given a smaller chunk, and not even one page of "
    "it fits: it waits for ever at the head of the queue (mem_cache/prefill_budget.py:230-269)",
    "chunk-oom": "a continued chunk must make progress although the pool is promised away, and its allocation fails: "
    "the scheduler process dies (mem_cache/allocation.py:161-170)",
    "decode-oom": "an allocation of a decode step fails although the check before it passed: the scheduler process "
    "dies (mem_cache/allocation.py:611-620)",
    "second-chunk": "a second prompt is cut while another chunked prompt is parked: an assertion of the scheduler "
    "fails (managers/scheduler.py:4322)",
    "row-overrun": "with page_size 1 a request row is only 4 + num_draft_tokens longer than the context, but speculation "
    "reserves twice its step: near the context's end the slots beyond the row are written into the next one "
    "(mem_cache/allocation_sizing.py:96-116)",
    "unaligned-swa-pool": "the SWA pool is no whole number of pages, so the idle check finds tokens missing and the "
    "scheduler process dies",
    "draft-pool-overrun": "a slot beyond the draft's pool is written: index out of bounds in the draft's KV store "
    "(PR #17630)",
    "unaligned-reserve": "tails of speculative reservations were never given back; the idle check finds them missing "
    "(PR #31616)",
    "stalled": "nothing runs and the head of the queue is never admitted",
}
