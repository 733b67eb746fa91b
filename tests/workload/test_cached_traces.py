"""What real traces find in a cache that never evicts, against a count over their block ids."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_cases import dense, hybrid

import simkv
from simkv.workload.request import Blocks, Workload
from simkv.workload.traces import read_trace

TRACES = Path(os.environ.get("SIMKV_SHARED", Path(__file__).resolve().parents[3] / "shared")) / "traces"


def trace(name: str, limit: int | None) -> Workload:
    if not TRACES.is_dir():
        pytest.skip("the shared traces are not here")
    return read_trace(TRACES / name, limit=limit)


def agents(sessions: int, turns: int) -> Workload:
    """The first requests of the first sessions of the coding-agent trace, in order of arrival."""
    work = trace("weka_cc_sample.jsonl.gz", None)
    assert work.session is not None
    rows = [np.flatnonzero(work.session == s)[:turns] for s in range(sessions)]
    return work.take(np.sort(np.concatenate(rows)))


def one_by_one(work: Workload) -> Workload:
    """The same prompts, each sent when the one before is answered with one token."""
    n = len(work)
    return replace(
        work,
        arrival_ns=np.zeros(n, np.int64),
        output_tokens=np.ones(n, np.int64),
        max_new_tokens=None,
        previous=None,
        think_ns=None,
        concurrency=1,
    )


def counted(work: Workload, page: int) -> list[int]:
    """Tokens of each prompt that an earlier one had, in whole pages, without the last token of the prompt."""
    assert work.blocks is not None
    size = work.blocks.block_size
    longest: dict[int, int] = {}
    found = []
    for i, tokens in enumerate(work.input_tokens.tolist()):
        ids = work.blocks.ids[work.blocks.offsets[i] : work.blocks.offsets[i + 1]].tolist()
        same = 0
        for place, block in enumerate(ids):
            has = min(size, tokens - place * size)
            same += min(longest.get(block, 0), has)
            if longest.get(block, 0) < size:
                break
        found.append(min(same, tokens - 1) // page * page)
        for place, block in enumerate(ids):
            longest[block] = max(longest.get(block, 0), min(size, tokens - place * size))
    return found


def cached(work: Workload, page: int) -> list[int]:
    one = dense(page_size=page, disable_radix_cache=False, chunked_prefill_size=8192 // page * page)
    result = simkv.simulate(one, workload=one_by_one(work))
    assert result.fault is None and set(result.requests["state"]) == {"completed"}
    hits = [int(tokens) for tokens in result.requests["cached_tokens"]]
    # Nothing was evicted, and what was not found was computed.
    assert result.summary["cache_evicted_full_tokens"] == 0
    assert int(result.timeline["prefill_tokens"].sum()) + sum(hits) == int(work.input_tokens.sum())
    return hits


@pytest.mark.parametrize("page", [1, 64, 512, 1024, 48, 1000])
@pytest.mark.parametrize(("name", "limit"), [("mooncake_conversation.jsonl", 600), ("mooncake_synthetic.jsonl", 500)])
def test_pages_of_any_size_find_what_block_ids_promise(name: str, limit: int, page: int) -> None:
    work = trace(name, limit)
    assert work.blocks is not None and work.blocks.block_size == 512
    want = counted(work, page)
    assert sum(want) > 0.05 * work.input_tokens.sum()
    assert cached(work, page) == want


@pytest.mark.parametrize("page", [64, 512])
def test_a_long_stretch_of_the_conversation_trace(page: int) -> None:
    work = trace("mooncake_conversation.jsonl", 4000)
    assert cached(work, page) == counted(work, page)


@pytest.mark.parametrize("page", [1, 16, 64, 24])
def test_blocks_smaller_than_a_page(page: int) -> None:
    work = trace("sharegpt_300s_llama3.1.jsonl", 300)
    assert work.blocks is not None and work.blocks.block_size == 16
    assert cached(work, page) == counted(work, page)


@pytest.mark.parametrize("page", [64, 256])
def test_the_sessions_of_coding_agents(page: int) -> None:
    work = agents(6, 20)
    assert work.blocks is not None and work.blocks.block_size == 64
    want = counted(work, page)
    assert cached(work, page) == want
    assert sum(want) > 0.3 * work.input_tokens.sum()


def test_the_sessions_of_coding_agents_as_they_come() -> None:
    # A pool of a million tokens with a sliding half, sessions side by side: everybody ends, and nothing is lost.
    work = agents(8, 6)
    work = replace(work, output_tokens=np.minimum(work.output_tokens, 20), max_new_tokens=None)
    one = hybrid(128, page_size=64, max_total_tokens=2_000_000, disable_radix_cache=False)
    result = simkv.simulate(one, workload=work, check_every=10)
    assert result.fault is None
    assert set(result.requests["state"]) == {"completed"}
    assert 0 < result.summary["cache_hit_rate"] <= 1
    # Side by side they cannot find more than one after the other.
    assert sum(result.requests["cached_tokens"]) <= sum(counted(work, 64))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.integers(0, 11)), min_size=1, max_size=8
    ),
    st.sampled_from([1, 2, 3, 5, 8, 12, 16, 24, 36]),
)
def test_any_blocks_and_pages(prompts: list[tuple[list[int], int]], page: int) -> None:
    # Blocks of 12 whose ids say what comes before them; the last one of a prompt is short by up to 11 tokens, and ends
    # a prompt that no other one continues with the same id.
    numbers: dict[tuple[object, ...], int] = {}
    lists = []
    for path, short in prompts:
        keys = [tuple(path[: i + 1]) for i in range(len(path))]
        lists.append([numbers.setdefault((key, short if key == tuple(path) else 0), len(numbers)) for key in keys])
    work = Workload(
        arrival_ns=np.zeros(len(prompts), np.int64),
        input_tokens=np.array([12 * len(path) - short for path, short in prompts]),
        output_tokens=np.ones(len(prompts), np.int64),
        request_id=tuple(map(str, range(len(prompts)))),
        blocks=Blocks(np.array([block for one in lists for block in one]), np.cumsum([0, *map(len, lists)]), 12),
    )
    assert cached(work, page) == counted(work, page)
