"""User reports about the prefix cache and about eviction."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_cases import PLENTY, dense, hybrid, model, prefills, requests, run

import simkv
from simkv.engines.base import Request
from simkv.engines.sglang.memory import KvMemory
from simkv.engines.sglang.pools import Pools
from simkv.engines.sglang.scheduling import Scheduler
from simkv.engines.sglang.settings import Settings
from simkv.memory.pages import CountedPool
from simkv.memory.radix import UNNUMBERED, RadixTree
from simkv.workload.request import Blocks, Workload
from simkv.workload.tokens import Contents, Tokens
from simkv.workload.traces import read_trace, write_trace

CACHED = {"disable_radix_cache": False}


def stretch(first: int, length: int) -> Tokens:
    return Tokens([(first, length)])


def insert(tree: RadixTree, tokens: Tokens, end: int, pools: Pools, *, begin: int = 0) -> None:
    """Let the tree have the first ``end`` tokens, of which it has ``begin``; the rest is allocated."""
    for pool in (pools.full, pools.swa):
        assert pool is not None
        pool.take(end - begin)
    tree.insert(tokens, end, UNNUMBERED, pools, owned_from=begin)


def told(runs: Sequence[Sequence[tuple[int, int]]], outputs: int, *, spacing_s: float = 1.0) -> Workload:
    """Requests of runs of tokens, one after the other."""
    flat = [run for one in runs for run in one]
    counts = np.cumsum([0, *(len(one) for one in runs)])
    contents = Contents(np.array([r[0] for r in flat]), np.array([r[1] for r in flat]), counts)
    n = len(runs)
    return Workload(
        arrival_ns=np.arange(n) * round(spacing_s * 1e9),
        input_tokens=np.array([sum(r[1] for r in one) for one in runs]),
        output_tokens=np.full(n, outputs),
        request_id=tuple(f"r{i}" for i in range(n)),
        contents=contents,
    )


def cached(scenario: dict[str, Any], work: Workload) -> list[int]:
    """Tokens that each request found at its first prefill."""
    result = simkv.simulate(scenario, workload=work, check_every=1)
    assert result.fault is None
    assert set(result.requests["state"]) == {"completed"}
    return [int(tokens) for tokens in result.requests["cached_tokens"]]


# ------------------------------------------------------------------------------------------------------ R35


@pytest.mark.parametrize(("node", "gone"), [(1280, 5120), (1000, 5872), (89_000, 88_872)])
def test_R35_the_swa_side_is_made_room_on_alone(node: int, gone: int) -> None:
    # 445,000 SWA slots in inner nodes of five branches, 128 in each leaf, 34,048 free; 39,168 are wanted. Every insert
    # is cut at one window of 128, so 5,120 are four times 1,152 + 128, or five times 872 + 128 and 872 more.
    ends = [*range(node, 89_000, node), 89_000, 89_128]
    held = 5 * 89_128
    assert held == 445_000 + 5 * 128 and 39_168 - 34_048 == 5120
    pools = Pools(CountedPool("full", 2_000_000, 1), CountedPool("swa", held + 34_048, 1), 1, 8)
    tree = RadixTree(1, window=128)
    memory = KvMemory(pools, tree, window=128)
    branches = [stretch(1_000_000 * i, 90_000) for i in range(1, 6)]
    for tokens in branches:
        begin = 0
        for end in ends:
            insert(tree, tokens, end, pools, begin=begin)
            begin = end
    assert memory.available() == memory.swa.available == 34_048  # type: ignore[union-attr]
    full_before = pools.full.available  # type: ignore[union-attr]
    memory.make_room(39_168, "prefill")
    assert memory.evicted["swa", "prefill"] == gone >= 5120
    assert memory.evicted["full", "prefill"] == 0
    assert memory.available() == 34_048 + gone >= 39_168
    assert pools.full.available == full_before  # type: ignore[union-attr]
    # No prefix is lost: a window in front of every end is alive.
    assert [tree.match(tokens, 90_000).length for tokens in branches] == [89_128] * 5
    tree.check()


def test_R35_shortfalls_of_both_sides_are_both_met() -> None:
    pools = Pools(CountedPool("full", 1000, 1), CountedPool("swa", 600, 1), 1, 8)
    tree = RadixTree(1, window=20)
    memory = KvMemory(pools, tree, window=20)
    for i in range(5):
        insert(tree, stretch(10_000 * i, 120), 120, pools)
    assert (pools.full.available, pools.swa.available) == (400, 0)  # type: ignore[union-attr]
    memory.make_room(430, "decode")
    # 30 of the full side: leaves of 20, oldest first, then 100 of the first branch's rest or another leaf; the SWA side
    # is short of 430 less what went with them.
    assert pools.full.available >= 430 and pools.swa.available >= 430  # type: ignore[union-attr]
    assert memory.evicted["full", "decode"] == 600 - tree.full_evictable
    assert memory.evicted["swa", "decode"] == 600 - tree.swa_evictable
    tree.check()


# ------------------------------------------------------------------------------------------------------ R37


def test_R37_a_page_larger_than_the_window_leaves_a_live_page_below_the_boundary() -> None:
    # floor256(640) = 512 goes into the tree; floor256(640 - 256) = 256 is where the window lets go, not
    # floor256(640 - 128) = 512.
    settings = Settings(page_size=256, chunked_prefill_size=8192, context_len=4096, hybrid=True, window=128)
    engine = Scheduler(settings, full_tokens=4096, swa_tokens=2048, max_running_requests=4)
    handle = engine.submit(Request("r0", 640, 2))
    step = engine.schedule()
    assert step is not None
    engine.complete(step, None)
    memory, table = engine.memory, engine.table
    assert (int(table.protected[handle]), int(table.swa_evicted[handle])) == (512, 256)
    tree, swa = memory.tree, memory.swa
    assert tree is not None and swa is not None
    # A page alive in the tree, and the page of the last 128 tokens beside it.
    assert (tree.swa_protected, swa.used) == (256, 512)
    engine.check()
    while (step := engine.schedule()) is not None:
        engine.complete(step, None)
        engine.check()
    assert swa.used == tree.swa_evictable == 256
    tree.evict(1 << 30, 1 << 30, memory.pools)
    assert swa.available == swa.usable == 2048
    engine.check()


@pytest.mark.parametrize(("page", "window"), [(256, 128), (256, 256), (64, 128), (16, 4)])
@pytest.mark.parametrize("given", [640, 641, 767, 768, 769])
def test_R37_what_was_allocated_is_what_comes_back(page: int, window: int, given: int) -> None:
    one = hybrid(window, page_size=page, max_total_tokens=16_384, swa_full_tokens_ratio=0.5, **CACHED)
    result = simkv.simulate(one, workload=requests([(given, 300), (given, 3)]), check_every=1)
    assert result.fault is None
    last = result.timeline.iloc[-1]
    assert last["swa_uncached_tokens"] == 0 and last["full_uncached_tokens"] == 0
    assert (result.timeline["swa_evictable_tokens"] >= 0).all() and (result.timeline["swa_uncached_tokens"] >= 0).all()


# ------------------------------------------------------------------------------------------------------ R44


def parked(ends: Sequence[int]) -> tuple[RadixTree, Pools]:
    """A branch of 20,032 tokens, window 128, page 64, put into the tree up to each of ``ends``."""
    pools = Pools(CountedPool("full", 32_000, 64), CountedPool("swa", 32_000, 64), 64, 4)
    tree = RadixTree(64, window=128)
    begin = 0
    for end in ends:
        insert(tree, stretch(0, 30_000), end, pools, begin=begin)
        begin = end
    return tree, pools


def hit(tree: RadixTree) -> tuple[int, int]:
    found = tree.match(Tokens([(0, 20_032), (90_000, 64)]), 20_096)
    return found.length, found.full_length


def test_R44_a_long_branch_in_two_nodes_loses_its_whole_hit_at_once() -> None:
    tree, pools = parked([20_032])
    assert sorted((node.begin, node.end) for node in tree.nodes()) == [(0, 19_904), (19_904, 20_032)]
    assert tree.evict(0, 64, pools) == (0, 19_904)
    assert hit(tree) == (20_032, 20_032)
    # The next loss takes the leaf as a whole, with its full half.
    assert tree.evict(0, 64, pools) == (128, 128)
    assert hit(tree) == (0, 19_904)


def test_R44_a_long_branch_in_nodes_of_a_page_falls_off_the_same_cliff() -> None:
    tree, pools = parked(range(64, 20_096, 64))
    assert len(list(tree.nodes())) == 313
    assert tree.evict(0, 20_032 - 128, pools) == (0, 19_904)
    assert hit(tree) == (20_032, 20_032)
    assert tree.evict(0, 1, pools) == (0, 64)
    assert hit(tree) == (0, 20_032)


def test_R44_an_older_window_that_is_alive_catches_the_fall() -> None:
    # The last node but one is dead, and all of [0, 19,904) alive: the hit falls to where the dead one begins.
    tree, pools = parked([19_904, 19_968, 20_032])
    node = next(node for node in tree.nodes() if node.end == 19_968)
    pools.free_swa(UNNUMBERED, 64)
    tree._drop_swa(node)
    assert hit(tree) == (19_904, 20_032)
    tree.check()


# ------------------------------------------------------------------------------------------------------ R48


@pytest.mark.parametrize(
    ("page", "message", "hits"),
    [
        # The tail that stays is a window in front of the end less what does not fill a page.
        (1, 1, [0, 7700, 7700, 7700]),
        (1, 2, [0, 0, 7700, 7700]),
        (1, 80, [0, 0, 7700, 7700]),
        (4, 4, [0, 7700, 7700, 7700]),
        (4, 5, [0, 0, 7700, 7700]),
        (4, 80, [0, 0, 7700, 7700]),
    ],
)
@pytest.mark.parametrize("overlap", [True, False])
def test_R48_the_second_fan_out_makes_a_window_at_the_branching_point(
    page: int, message: int, hits: list[int], overlap: bool
) -> None:
    # Recorded on the engine at a scale of 16 : 1,024 (window 16, 100 tokens shared): the same edges.
    one = hybrid(1024, page_size=page, max_total_tokens=100_000, disable_overlap_schedule=not overlap, **CACHED)
    work = told([[(0, 7700), (100_000 * i, message)] for i in range(1, 5)], 2)
    assert cached(one, work) == hits


def test_R48_what_is_appended_is_found_up_to_its_end() -> None:
    # A conversation goes on from where it ended: 7,780 and the 9 stored ones of 10 answered tokens.
    one = hybrid(1024, page_size=1, max_total_tokens=100_000, **CACHED)
    first = 7780
    contents = Contents(np.array([0, 0]), np.array([first, first + 13]), np.array([0, 1, 2]), np.array([first, -1]))
    work = Workload(
        arrival_ns=np.array([0, 10**9]),
        input_tokens=np.array([first, first + 13]),
        output_tokens=np.array([10, 2]),
        request_id=("a", "b"),
        contents=contents,
    )
    assert cached(one, work) == [0, first + 9]


# ------------------------------------------------------------------------------------------------------ R49


def agents(sessions: int, turns: int, grows: int) -> Workload:
    """Sessions whose every prompt is the one before and ``grows`` more tokens, all at the same pace."""
    runs = [[(1_000_000 * (s + 1), grows * (t + 1))] for t in range(turns) for s in range(sessions)]
    work = told(runs, 4, spacing_s=0.0)
    previous = np.array([-1] * sessions + list(range(sessions * (turns - 1))))
    return Workload(
        **{name: getattr(work, name) for name in ("input_tokens", "output_tokens", "request_id", "contents")},
        arrival_ns=np.zeros(len(runs), np.int64),
        previous=previous,
        think_ns=np.zeros(len(runs), np.int64),
    )


def test_R49_hits_over_the_swa_ratio_are_a_cliff() -> None:
    # 30 sessions of 10 turns, 4,000 tokens more each: a window of 128 and a page are 192 slots a session, 5,760 in all.
    work = agents(30, 10, 4000)
    rates = []
    for ratio in (0.006, 0.008, 0.01, 0.015, 0.02, 0.05):
        one = hybrid(
            128,
            page_size=64,
            max_total_tokens=2_000_000,
            swa_full_tokens_ratio=ratio,
            max_running_requests=30,
            **CACHED,
        )
        result = simkv.simulate(one, workload=work)
        assert result.fault is None and set(result.requests["state"]) == {"completed"}
        rates.append(float(result.summary["cache_hit_rate"]))
    assert rates == sorted(rates)
    # 9 of 10 turns find all that the turn before left: 4,000 x (1 + ... + 9) of 4,000 x (1 + ... + 10).
    most = 45 / 55
    assert rates[-1] == pytest.approx(most, abs=0.02)
    assert rates[0] < 0.2 * most
    steps = np.diff(rates)
    assert steps.max() > 0.5 * most


# ------------------------------------------------------------------------------------------------------ R63


def sessions_file(path: Path, second: int) -> Path:
    path.write_text(f"request_id,session,arrival_s,input_tokens,output_tokens\na,s,0,4190,592\nb,s,100,{second},16\n")
    return path


@pytest.mark.parametrize(("page", "found"), [(64, 4736), (1, 4781), (16, 4768)])
def test_R63_a_turn_finds_what_the_turn_before_stored(tmp_path: Path, page: int, found: int) -> None:
    # 4,190 + 592, of which the last token has no slot: 4,781.
    assert found == 4781 // page * page
    one = dense(page_size=page, **CACHED)
    peaks = []
    for form, second in (("delta", 592), ("cumulative", 5374)):
        work = read_trace(sessions_file(tmp_path / f"{form}.csv", second), turns=form)  # type: ignore[arg-type]
        assert work.input_tokens.tolist() == [4190, 5374]
        assert cached(one, work) == [0, found]
        result = simkv.simulate(one, workload=work)
        # What of the second turn was computed: 5,374 less the hit.
        assert prefills(result) == [4190, 5374 - found]
        peaks.append(float(result.summary["full_token_usage.peak"]))
    assert peaks[0] == peaks[1]


# ------------------------------------------------------------------------------------------------------ R64


def shared(prefix: int, *, own: int = 100) -> Workload:
    return told([[(0, prefix), (1_000_000 * (i + 1), own)] for i in range(10)], 5)


@pytest.mark.parametrize("page", [1, 64, 256, 512])
def test_R64_a_shared_prefix_hits_nine_times_of_ten(page: int) -> None:
    one = dense(page_size=page, **CACHED)
    assert 14_336 % 512 == 0 and 9 * 14_336 == 129_024
    assert sum(cached(one, shared(14_336))) == 129_024
    assert sum(cached(one, shared(50))) == 9 * (50 // page * page)


def test_R64_without_a_prefix_nothing_hits() -> None:
    assert cached(dense(page_size=64, **CACHED), shared(50)) == [0] * 10
    assert cached(dense(page_size=64), shared(14_336)) == [0] * 10
    assert cached(dense(page_size=64, **CACHED), requests([(14_436, 5)] * 10)) == [0] * 10


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_R64_hits_are_the_same_after_export_and_import(tmp_path: Path, form: str) -> None:
    one, work = dense(page_size=64, **CACHED), shared(14_336)
    path = tmp_path / f"out.{form}"
    assert write_trace(work, path, form) == ()
    before, after = cached(one, work), cached(one, read_trace(path))
    assert before == after and sum(after) == 129_024


@pytest.mark.parametrize("form", ["csv", "jsonl", "mooncake"])
def test_R64_hits_of_block_ids_are_the_same_after_export_and_import(tmp_path: Path, form: str) -> None:
    lists = [[*range(14_336 // 64), 1000 + 2 * i, 1001 + 2 * i] for i in range(10)]
    work = Workload(
        arrival_ns=np.arange(10) * 10**9,
        input_tokens=np.full(10, 14_436),
        output_tokens=np.full(10, 5),
        request_id=tuple(map(str, range(10))),
        blocks=Blocks(np.array(lists).ravel(), np.arange(11) * len(lists[0]), 64),
    )
    one, path = dense(page_size=64, **CACHED), tmp_path / f"out.{form}"
    assert write_trace(work, path, form) == ()
    before, after = cached(one, work), cached(one, read_trace(path))
    assert before == after and sum(after) == 129_024


# ------------------------------------------------------------------------------------------------------ R72


def r72(lengths: Sequence[tuple[int, int]], *, page: int, tokens: int) -> simkv.Run:
    """A pool that two requests outgrow together."""
    one = {
        "model": {"config": model("FF")},
        "memory": {
            "kv_bytes": PLENTY,
            "max_total_tokens": tokens,
            "page_size": page,
            "chunked_prefill_size": -1,
            "disable_overlap_schedule": True,
            "max_running_requests": 2,
        },
        "policies": {"schedule_conservativeness": 0.05},
    }
    return run(one, lengths)


@pytest.mark.parametrize(
    ("page", "tokens", "lengths", "again"),
    [(1, 1200, [(1000, 100), (100, 75)], 1000), (64, 1280, [(1020, 100), (100, 85)], 960)],
)
def test_R72_a_re_hit_is_told_apart_and_is_the_prompt_at_most(
    page: int, tokens: int, lengths: list[tuple[int, int]], again: int
) -> None:
    # With pages of 1 both have 50 outputs when the pool is full, and the longer prompt goes. With pages of 64 it has 17
    # of 20 and the other one 3, when it needs another one at 1,088 tokens.
    result = r72(lengths, page=page, tokens=tokens)
    assert result.requests["state"].tolist() == ["completed"] * 2
    assert result.requests["retractions"].tolist() == [1, 0]
    assert result.requests["cached_tokens"].tolist() == [0, 0]
    # Its outputs are never put into the cache, so no more than the prompt's whole pages is found.
    assert again == lengths[0][0] // page * page
    assert result.requests["rehit_tokens"].tolist() == [again, 0]
    assert result.summary["tokens.cached"] == 0 and result.summary["tokens.rehit"] == again
    assert result.summary["cache_hit_rate"] == 0.0
    rates = result.timeline["cache_hit_rate"].dropna()
    assert ((rates >= 0) & (rates <= 1)).all() and rates.max() > 0.8


def test_R72_pressure_may_evict_what_it_would_have_found() -> None:
    # The other one goes on for 110 tokens, and only 50 outputs were given back: the prompt of 1,000 has to go.
    result = r72([(100, 160), (1000, 60)], page=1, tokens=1200)
    assert result.requests["state"].tolist() == ["completed"] * 2
    assert result.requests["retractions"].tolist() == [0, 1]
    assert result.requests["rehit_tokens"].tolist() == [0, 0]
    assert result.requests["recomputed_tokens"][1] >= 1000
    # And, when it comes back, the 159 stored tokens of the other one's answer.
    assert int(result.timeline["cache_evicted_full_tokens"].sum()) == 1000 + 159


# ------------------------------------------------------------------------------------------------------ R06


@pytest.mark.parametrize("overlap", [True, False])
def test_R06_with_the_prefix_cache_on_the_prompt_goes_in_chunks_that_fit(overlap: bool) -> None:
    # The cap of a prompt that can never fit: floor256(3,072 - (10 + 256)) = 2,560; what the window lets go is back at
    # the next chunk, which is bounded by 3,072 less what the tree holds.
    one = hybrid(
        128,
        page_size=256,
        max_total_tokens=32_768,
        swa_full_tokens_ratio=0.1,
        disable_overlap_schedule=not overlap,
        **CACHED,
    )
    assert simkv.plan(one).swa_max_total_num_tokens == 3072
    result = run(one, [(6000, 10)])
    assert result.fault is None
    assert prefills(result) == [2560, 2560, 880] and sum(prefills(result)) == 6000
    assert result.requests["state"].tolist() == ["completed"]


@pytest.mark.parametrize("overlap", [True, False])
def test_R06_with_the_prefix_cache_on_and_the_larger_ratio_it_goes_in_one_piece(overlap: bool) -> None:
    one = hybrid(
        128,
        page_size=256,
        max_total_tokens=32_768,
        swa_full_tokens_ratio=0.525,
        disable_overlap_schedule=not overlap,
        **CACHED,
    )
    assert prefills(run(one, [(6000, 10)])) == [6000]
