"""The arithmetic of plans: sums that come out, holdings that the scheduler reaches, advice with the reports' figures."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_cases import GIB, hybrid, model, requests

import simkv
from simkv.cli import main
from simkv.engines.sglang.explain import flight_tokens
from simkv.engines.sglang.footprint import footprint, window_pages
from simkv.errors import ScenarioError


def value_of(formula: str) -> float:
    """What a formula comes to, reckoned by Python and not by simkv."""
    rounded = re.sub(r"floor_(\d+)\(", r"floor(\1, ", formula)
    rounded = re.sub(r"ceil_(\d+)\(", r"ceil(\1, ", rounded)
    names = {"floor": lambda p, x: x // p * p, "ceil": lambda p, x: -(-x // p) * p, "int": int, "max": max, "min": min}
    return float(eval(rounded, {"__builtins__": {}}, names))


def check_sums(found: simkv.Explanation) -> None:
    assert found.equations
    for one in found.equations:
        assert value_of(one.formula) == pytest.approx(one.value, rel=1e-12), one


@pytest.mark.parametrize("name", simkv.builtin_names())
def test_every_sum_of_a_builtin_plan_comes_out(name: str) -> None:
    plan = simkv.plan(name)
    found = simkv.explain(name)
    check_sums(found)
    said = {one.name: one.value for one in found.equations}
    assert said["max_total_num_tokens"] == plan.max_total_num_tokens
    assert said["allocated beyond the budget"] == plan.overcommit_bytes
    pools = [one.value for one in found.equations if one.name.endswith("with its padding page")]
    assert sum(pools) == sum(pool.bytes for pool in plan.pools)


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_every_sum_of_a_random_plan_comes_out(data: st.DataObject) -> None:
    draw = data.draw
    page = draw(st.sampled_from([1, 4, 64]))
    memory: dict[str, Any] = {"kv_bytes": draw(st.integers(10**6, 10**11)), "page_size": page}
    memory["chunked_prefill_size"] = draw(st.sampled_from([-1, 4 * page, 64 * page]))
    if draw(st.booleans()):
        memory["max_total_tokens"] = draw(st.integers(page, 10**6))
    if draw(st.booleans()):
        memory["max_running_requests"] = draw(st.integers(1, 100))
    memory["disable_radix_cache"] = draw(st.booleans())
    memory["disable_overlap_schedule"] = draw(st.booleans())
    memory["swa_full_tokens_ratio"] = draw(st.sampled_from([0.05, 0.3, 0.8, 1.0]))
    layers = draw(st.sampled_from(["FF", "FS", "FSSS", "SFSSF"]))
    config = model(layers, window=draw(st.sampled_from([4, 100])), kv_heads=2)
    scenario: dict[str, Any] = {
        "model": {
            "config": config,
            "hybrid_swa": draw(st.booleans()),
            "kv_cache_dtype": draw(st.sampled_from(["auto", "fp8_e4m3", "mxfp8"])),
        },
        "memory": memory,
    }
    kind = draw(st.sampled_from(["none", "eagle", "tree", "dflash"]))
    if kind == "eagle":
        scenario["draft"] = {"algorithm": "EAGLE", "config": model("F", kv_heads=2), "num_steps": 3}
    elif kind == "tree":
        scenario["draft"] = {
            "algorithm": "EAGLE3",
            "config": model("F"),
            "num_steps": 3,
            "eagle_topk": 4,
            "num_draft_tokens": 8,
        }
    elif kind == "dflash":
        scenario["draft"] = {"algorithm": "DFLASH", "config": model("FFF", kv_heads=2), "num_draft_tokens": 8}
    found = simkv.explain(scenario, input_tokens=100, output_tokens=20)
    plan = simkv.plan(scenario)
    check_sums(found)
    if plan.infeasible is not None:
        assert not found.fits
        return
    for fit in found.fits:
        assert fit.requests >= 0
        assert fit.limit != "full" or (fit.requests * fit.holding <= fit.capacity < (fit.requests + 1) * fit.holding)


# ------------------------------------------------------------------------------------------------- holdings
def lone(window: int, made: dict[str, Any], prompt: int, answer: int) -> tuple[simkv.Scenario, Any]:
    """One request alone: the scenario, and the decode steps after the last chunk was processed."""
    one = simkv.load(made)
    line = simkv.simulate(one, workload=requests([(prompt, answer)])).timeline
    return one, line[line["kind"] == "decode"].iloc[3:]


def held(line: Any, pool: str) -> int:
    return int((line[f"{pool}_protected_tokens"] + line[f"{pool}_uncached_tokens"]).max())


@given(
    st.sampled_from([1, 4, 16, 64]),
    st.sampled_from([5, 16, 33, 100]),
    st.sampled_from([1, 8, 64, 128]),
    st.integers(1, 300),
    st.sampled_from([50, 300, 500]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([2, 8, 64]),
)
@settings(max_examples=60, deadline=None)
def test_what_a_request_holds_is_what_the_scheduler_gives_it(
    page: int, window: int, interval: int, prompt: int, answer: int, radix: bool, overlap: bool, chunk: int
) -> None:
    made = hybrid(
        window,
        page_size=page,
        swa_eviction_interval=interval,
        disable_radix_cache=not radix,
        disable_overlap_schedule=not overlap,
        chunked_prefill_size=chunk * page,
    )
    made["memory"]["max_running_requests"] = 1
    one, line = lone(window, made, prompt, answer)
    foot = footprint(one.resolved.settings, prompt, answer)
    assert held(line, "full") == foot.full
    if radix:
        assert int(line["swa_protected_tokens"].max()) == foot.swa_tree
    # The eviction that comes last may find fewer tokens than one more interval would bring.
    most = held(line, "swa")
    assert most <= foot.swa
    if answer > 2 * (window + interval + 2 * page):
        assert most == foot.swa


@given(
    st.sampled_from([5, 33, 100]),
    st.sampled_from([1, 8, 64]),
    st.integers(1, 300),
    st.integers(10, 90),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_a_model_that_only_slides_keeps_whole_prompts_in_its_cache(
    window: int, interval: int, prompt: int, answer: int, radix: bool, overlap: bool
) -> None:
    made = {
        "model": {"config": model("SS", window=window), "hybrid_swa": True, "cache_window": window},
        "memory": {
            "kv_bytes": 1 << 30,
            "page_size": 1,
            "swa_eviction_interval": interval,
            "chunked_prefill_size": 64,
            "disable_radix_cache": not radix,
            "disable_overlap_schedule": not overlap,
            "max_running_requests": 1,
        },
    }
    one, line = lone(window, made, prompt, answer)
    foot = footprint(one.resolved.settings, prompt, answer, all_swa=True)
    assert int(line["swa_protected_tokens"].max()) == foot.swa_tree == (prompt if radix else 0)
    assert held(line, "swa") <= foot.swa
    if answer > 2 * (window + interval + 2):
        assert held(line, "swa") == foot.swa


@given(
    st.sampled_from([1, 4, 64]),
    st.sampled_from([5, 33, 100]),
    st.sampled_from([1, 128]),
    st.integers(2, 300),
    st.sampled_from([50, 300]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([(1, 1), (3, 1), (3, 4)]),
    st.integers(1, 4),
)
@settings(max_examples=60, deadline=None)
def test_with_speculation_it_is_never_more(
    page: int,
    window: int,
    interval: int,
    prompt: int,
    answer: int,
    radix: bool,
    overlap: bool,
    shape: tuple[int, int],
    accepted: int,
) -> None:
    steps, topk = shape
    made = hybrid(
        window,
        page_size=page,
        swa_eviction_interval=interval,
        disable_radix_cache=not radix,
        disable_overlap_schedule=not overlap,
        chunked_prefill_size=64 * page,
    )
    made["memory"]["max_running_requests"] = 1
    made["draft"] = {
        "algorithm": "EAGLE",
        "config": model("F"),
        "num_steps": steps,
        "eagle_topk": topk,
        "num_draft_tokens": steps + 1,
    }
    made["acceptance"] = {"kind": "fixed", "length": min(accepted, steps + 1)}
    one, line = lone(window, made, prompt, answer)
    foot = footprint(one.resolved.settings, prompt, answer)
    if not len(line):
        return
    width = steps + 1
    assert foot.full - page - width < held(line, "full") <= foot.full
    assert held(line, "swa") <= foot.swa


@given(
    st.sampled_from([1, 4, 16, 64]),
    st.sampled_from([5, 16, 100]),
    st.sampled_from([1, 64, 128]),
    st.integers(1, 300),
    st.integers(2, 300),
    st.booleans(),
    st.booleans(),
    st.sampled_from([2, 8, 64]),
    st.sampled_from([None, (1, 1), (3, 1), (3, 4)]),
)
@settings(max_examples=60, deadline=None)
def test_from_its_first_chunk_on_nothing_holds_more(
    page: int,
    window: int,
    interval: int,
    prompt: int,
    answer: int,
    radix: bool,
    overlap: bool,
    chunk: int,
    draft: tuple[int, int] | None,
) -> None:
    made = hybrid(
        window,
        page_size=page,
        swa_eviction_interval=interval,
        disable_radix_cache=not radix,
        disable_overlap_schedule=not overlap,
        chunked_prefill_size=chunk * page,
    )
    made["memory"]["max_running_requests"] = 1
    if draft is not None:
        steps, topk = draft
        made["draft"] = {
            "algorithm": "EAGLE",
            "config": model("F"),
            "num_steps": steps,
            "eagle_topk": topk,
            "num_draft_tokens": steps + 1,
        }
        made["acceptance"] = {"kind": "fixed", "length": 2}
    one = simkv.load(made)
    line = simkv.simulate(one, workload=requests([(prompt, answer)])).timeline
    foot = footprint(one.resolved.settings, prompt, answer)
    assert held(line, "swa") <= max(foot.swa, flight_tokens(one.resolved.settings, foot, prompt))


def crowd(scenario: dict[str, Any], count: int, prompt: int, answer: int, every_s: float = 0.0) -> simkv.Run:
    """So many equal requests, each let in without regard to what the others will still need."""
    made = {**scenario, "policies": {"schedule_conservativeness": 0.0}}
    times = [every_s * number for number in range(count)]
    return simkv.simulate(made, workload=requests([(prompt, answer)] * count, arrival_s=times))


@pytest.mark.parametrize(("page", "prompt", "answer"), [(1, 40, 60), (16, 50, 100), (64, 30, 90)])
def test_so_many_fit_at_once_and_one_more_does_not(page: int, prompt: int, answer: int) -> None:
    price = 2 * 2 * 64 * 2
    scenario = {
        "model": {"config": model("FF")},
        "memory": {
            "kv_bytes": 2048 * price,
            "page_size": page,
            "disable_radix_cache": True,
            "chunked_prefill_size": 8192,
        },
    }
    found = simkv.explain(scenario, input_tokens=prompt, output_tokens=answer)
    # ceil_page(P + O - 1) of 2,048 tokens.
    each = -(-(prompt + answer - 1) // page) * page
    assert found.requests == 2048 // each
    assert found.binding is not None and found.binding.limit == "full"
    assert crowd(scenario, found.requests, prompt, answer).summary["requests.retractions"] == 0
    more = crowd(scenario, found.requests + 1, prompt, answer)
    assert more.summary["requests.retractions"] > 0 or more.summary["num_running_reqs.peak"] <= found.requests


@pytest.mark.parametrize("radix", [True, False])
def test_so_many_fit_the_swa_pool(radix: bool) -> None:
    price = 4 * 64
    scenario = {
        "model": {"config": model("FSSS", window=32), "hybrid_swa": True, "cache_window": 32},
        "memory": {
            "kv_bytes": 40_000 * price,
            "page_size": 4,
            "swa_full_tokens_ratio": 0.1,
            "swa_eviction_interval": 16,
            "chunked_prefill_size": 64,
            "disable_radix_cache": not radix,
        },
    }
    found = simkv.explain(scenario, input_tokens=60, output_tokens=200)
    plan = simkv.plan(scenario)
    assert found.binding is not None and found.binding.limit == "swa"
    assert found.binding.capacity == plan.swa_max_total_num_tokens
    # One after the other, so that no prompt is cut because another one came first.
    held_by = crowd(scenario, found.requests or 0, 60, 200, every_s=0.05)
    assert held_by.summary["requests.retractions"] == 0
    assert held_by.summary["num_running_reqs.peak"] == found.requests


@given(
    st.integers(20, 400),
    st.integers(10, 300),
    st.sampled_from([1, 16, 64]),
    st.sampled_from([8, 100]),
    st.sampled_from(["FS", "FSSS", "FFFS"]),
    st.sampled_from([None, 4000]),
    st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_no_other_ratio_holds_more(
    prompt: int, answer: int, page: int, window: int, layers: str, cap: int | None, radix: bool
) -> None:
    memory: dict[str, Any] = {
        "kv_bytes": 8_000 * 4 * 64 * len(layers),
        "page_size": page,
        "chunked_prefill_size": 8 * page,
        "disable_radix_cache": not radix,
        "swa_full_tokens_ratio": 0.5,
    }
    if cap is not None:
        memory["max_total_tokens"] = cap
    scenario = {
        "model": {"config": model(layers, window=window), "hybrid_swa": True, "cache_window": window},
        "memory": memory,
    }
    found = simkv.explain(scenario, input_tokens=prompt, output_tokens=answer)
    if found.balance is None:
        return

    def pools(ratio: float) -> int:
        other = {**scenario, "memory": memory | {"swa_full_tokens_ratio": ratio}}
        fits = simkv.explain(other, input_tokens=prompt, output_tokens=answer).fits
        return min((fit.requests for fit in fits if fit.limit != "rows"), default=-1)

    assert pools(found.balance.ratio) == found.balance.requests
    sums = re.findall(r"([(\d][^=]*?) = ([\d,]+)", found.balance.formula.replace(" and ", "; "))
    assert len(sums) == 2
    for sum_, value in sums:
        assert value_of(sum_.replace(",", "")) == int(value.replace(",", ""))
    # Whole pages of both pools may cost a request here or there.
    assert max(pools(ratio / 100) for ratio in range(2, 101, 7)) <= found.balance.requests + 1


@pytest.mark.parametrize("overlap", [True, False])
def test_the_ratio_for_whole_chunks_holds_them_where_bytes_bind(overlap: bool) -> None:
    scenario = {
        "model": {"config": model("FS" * 8, window=128), "hybrid_swa": True, "cache_window": 128},
        "memory": {
            "kv_bytes": 128 << 20,
            "page_size": 64,
            "chunked_prefill_size": 8192,
            "disable_overlap_schedule": not overlap,
            "swa_full_tokens_ratio": 0.1,
        },
    }
    found = simkv.explain(scenario, input_tokens=6000, output_tokens=100)
    (line,) = [line for line in found.advice if "prompts in flight" in line]
    least = float(re.search(r"swa_full_tokens_ratio = ([0-9.]+) holds", line)[1])
    need = (2 if overlap else 1) * 8192 + 128 + 64
    plans = [
        simkv.plan({**scenario, "memory": scenario["memory"] | {"swa_full_tokens_ratio": ratio}})
        for ratio in (least, least - 0.002)
    ]
    assert plans[0].swa_max_total_num_tokens >= need > plans[1].swa_max_total_num_tokens
    tight = {**scenario, "memory": scenario["memory"] | {"kv_bytes": 20 << 20}}
    assert any("no ratio holds them" in line for line in simkv.explain(tight, input_tokens=60, output_tokens=1).advice)


def test_the_balanced_ratio_is_the_best_of_all() -> None:
    base = simkv.load("step-3.5-flash")
    found = simkv.explain(base)
    assert found.balance is not None

    def pools(ratio: float) -> int:
        one = simkv.explain(
            base.override(f"memory.swa_full_tokens_ratio={ratio}"),
            input_tokens=found.input_tokens,
            output_tokens=found.output_tokens,
        )
        return min(fit.requests for fit in one.fits if fit.limit != "rows")

    assert pools(found.balance.ratio) == found.balance.requests
    # Whole pages cost a request at most.
    assert max(pools(round(ratio, 3)) for ratio in np.arange(0.05, 1.0, 0.05)) <= found.balance.requests + 1
    plan = base.override(f"memory.swa_full_tokens_ratio={found.balance.ratio}").plan()
    assert (plan.max_total_num_tokens, plan.swa_max_total_num_tokens) == (
        found.balance.full_tokens,
        found.balance.swa_tokens,
    )


@given(st.integers(1, 600), st.integers(1, 300))
def test_pages_of_a_window_by_counting(window: int, page: int) -> None:
    touched = [-(-(offset + window) // page) for offset in range(page)]
    mean, most = window_pages(window, page)
    assert mean == pytest.approx(sum(touched) / page)
    assert most == max(touched)


# ------------------------------------------------------------------------------------------------- the reports' figures
def r01(**memory: Any) -> dict[str, Any]:
    config = model("SSSF" * 9, window=512, kv_heads=4, head_dim=256)
    return {
        "model": {"config": config, "kv_cache_dtype": "fp8_e4m3", "hybrid_swa": True},
        "memory": {"kv_bytes": 20 * GIB, "page_size": 1} | memory,
    }


def test_R01_three_ratios_of_one_budget_and_the_tight_pool() -> None:
    found = simkv.explain(r01(swa_full_tokens_ratio=0.8), input_tokens=8000, output_tokens=500)
    rows = {row.name: row for row in found.alternatives}
    assert rows["as it is"].bytes_per_token == pytest.approx(62_668.8)
    assert rows["as it is"].full_tokens == 342_671
    assert rows["ratio 0.1"].bytes_per_token == pytest.approx(23_961.6)
    assert rows["ratio 0.1"].full_tokens == 896_218
    assert rows["one pool for all layers"].bytes_per_token == 73_728
    assert rows["one pool for all layers"].full_tokens == 291_271
    # 342,671 / 8,499 = 40 requests against 274,136 / (512 + 640) in the SWA pool.
    assert (rows["as it is"].requests, rows["as it is"].binding) == (40, "full")
    assert rows["ratio 0.1"].binding == "swa"


def test_R01_a_model_off_the_allow_list_is_told_what_the_split_would_hold() -> None:
    scenario = r01()
    scenario["model"].pop("hybrid_swa")
    found = simkv.explain(scenario, input_tokens=8000, output_tokens=500)
    rows = {row.name: row for row in found.alternatives}
    assert rows["as it is"].full_tokens == 291_271
    assert rows["split pools"].full_tokens == 342_671


def test_R02_the_draft_that_is_not_charged_is_0_93_GiB_over() -> None:
    scenario = {
        "model": {"config": model("FS" * 18, window=512, kv_heads=8), "hybrid_swa": True},
        "draft": {"algorithm": "EAGLE3", "config": model("F", kv_heads=8), "num_steps": 3},
        "memory": {"kv_bytes": 30 * GIB, "page_size": 1, "swa_full_tokens_ratio": 0.8},
    }
    found = simkv.explain(scenario, input_tokens=1000, output_tokens=500)
    rows = {row.name: row for row in found.alternatives}
    assert (rows["as it is"].bytes_per_token, rows["as it is"].full_tokens) == (68_403.2, 470_917)
    free = rows["the draft not charged"]
    assert (free.bytes_per_token, free.full_tokens) == (66_355.2, 485_451)
    assert round(485_451 * 2048 / GIB, 2) == 0.93
    assert "0.93 GiB that no budget charged" in free.note


def r06(**memory: Any) -> dict[str, Any]:
    stated = {"kv_bytes": 1 << 40, "max_total_tokens": 32_768, "page_size": 256, "chunked_prefill_size": 8192}
    return {
        "model": {"config": model("FS", window=128), "hybrid_swa": True, "cache_window": 128},
        "memory": stated | {"swa_full_tokens_ratio": 0.1} | memory,
    }


@pytest.mark.parametrize(("overlap", "wanted"), [(True, "0.525"), (False, "0.2625")])
def test_R06_the_ratio_that_the_chunks_in_flight_ask_for(overlap: bool, wanted: str) -> None:
    found = simkv.explain(r06(disable_overlap_schedule=not overlap), input_tokens=6000, output_tokens=500)
    (line,) = [line for line in found.advice if "prompts in flight" in line]
    assert f"{wanted} leaves 5 % beside the chunks" in line
    least = float(re.search(r"swa_full_tokens_ratio = ([0-9.]+) holds", line)[1])
    # Whole pages of the chunks, a window and a page; the report's own sum is 16,768 with two chunks.
    need = -(-((2 if overlap else 1) * 8192 + 128 + 256) // 256) * 256
    plan = simkv.plan(r06(swa_full_tokens_ratio=least))
    assert (
        plan.swa_max_total_num_tokens
        >= need
        > simkv.plan(r06(swa_full_tokens_ratio=least - 0.008)).swa_max_total_num_tokens
    )


@pytest.mark.parametrize(("tokens", "ratio"), [(256, 1.3333), (4096, 1.9394), (65_536, 1.9961)])
def test_R10_a_half_sliding_model_costs_about_half(tokens: int, ratio: float) -> None:
    assert 36 * tokens / (18 * tokens + 18 * 128) == pytest.approx(ratio, abs=5e-5)
    scenario = {
        "model": {"config": model("FS" * 18, window=128), "hybrid_swa": True, "cache_window": 128},
        "memory": {"kv_bytes": 10 * GIB},
    }
    found = simkv.explain(scenario, input_tokens=tokens, output_tokens=1)
    cost = next(cost for cost in found.lengths if cost.tokens == tokens)
    assert cost.ratio == pytest.approx(ratio, abs=5e-5)
    assert cost.split == 4 * 64 * (18 * tokens + 18 * 128)


def r15(radix: bool) -> simkv.Explanation:
    made = hybrid(128, page_size=256, disable_overlap_schedule=True, disable_radix_cache=not radix)
    return simkv.explain(made, input_tokens=1000, output_tokens=1000)


def test_R15_window_of_128_in_pages_of_256_and_of_128() -> None:
    costs = {cost.page_size: cost for cost in r15(radix=False).windows}
    assert costs[256].mean_pages == pytest.approx(1.496, abs=5e-4)
    assert round(costs[256].mean_tokens) == 383
    assert costs[256].most_tokens == 512
    assert costs[128].mean_pages == pytest.approx(1.992, abs=5e-4)
    assert round(costs[128].mean_tokens) == 255
    assert costs[128].most_tokens == 256
    assert costs[256].mean_tokens / costs[128].mean_tokens == pytest.approx(1.50, abs=5e-3)
    # What the engine was seen to hold: 512 and 256 with the cache off, 768 and 384 with it on.
    assert (costs[256].held, costs[128].held) == (512, 256)
    costs = {cost.page_size: cost for cost in r15(radix=True).windows}
    assert (costs[256].held, costs[128].held) == (768, 384)


def r16(**memory: Any) -> dict[str, Any]:
    stated = {"kv_bytes": 1 << 40, "max_total_tokens": 4096, "page_size": 256, "chunked_prefill_size": 2048}
    return {
        "model": {"config": model("FS", window=128), "hybrid_swa": True, "cache_window": 128},
        "memory": stated | {"swa_full_tokens_ratio": 0.1} | memory,
    }


def test_R16_a_pool_that_admits_nobody_and_the_two_smallest_fixes() -> None:
    found = simkv.explain(r16(), input_tokens=10, output_tokens=10)
    assert not found.fits and found.requests is None
    said = "\n".join(found.advice)
    assert "memory.swa_full_tokens_ratio >= 0.125" in said
    assert "memory.max_total_tokens >= 5,120" in said
    # Both start with two pages, and a prompt of one page with an answer of 128 tokens and more is admitted from three on.
    for fix in ({"swa_full_tokens_ratio": 0.125}, {"max_total_tokens": 5120}):
        assert simkv.plan(r16(**fix)).infeasible is None
        assert simkv.explain(r16(**fix), input_tokens=10, output_tokens=10).requests == 0
    assert simkv.explain(r16(swa_full_tokens_ratio=0.1875), input_tokens=10, output_tokens=10).requests == 1


@pytest.mark.parametrize(("page", "reserve", "all_of_them"), [(64, 1024, 102_400), (1, 40, 4_000)])
def test_R28_a_tree_reserves_whole_pages_for_each_branch(page: int, reserve: int, all_of_them: int) -> None:
    scenario = {
        "model": {"config": model("FF")},
        "draft": {"algorithm": "EAGLE3", "config": model("F"), "num_steps": 5, "eagle_topk": 4, "num_draft_tokens": 8},
        "memory": {"kv_bytes": 100 * GIB, "page_size": page, "max_running_requests": 100, "chunked_prefill_size": 8192},
    }
    found = simkv.explain(scenario, input_tokens=1000, output_tokens=2)
    (sum_,) = [one for one in found.equations if one.name == "reserved ahead of each request"]
    assert sum_.value == reserve
    assert found.requests == 100
    assert any(f"{all_of_them:,} of 100 requests" in line for line in found.advice)
    # 204,800 slots at page 64, 104,000 at page 1, as the engine was seen to hold.
    full = next(fit for fit in found.fits if fit.limit == "full")
    assert 100 * full.holding == {64: 204_800, 1: 104_000}[page]


# ------------------------------------------------------------------------------------------------- edges, commands
def test_lengths_are_the_workloads_means_unless_given() -> None:
    base = simkv.load("retraction-storm")
    work = base.workload()
    found = simkv.explain(base)
    assert found.input_tokens == round(work.input_tokens.mean())
    assert found.output_tokens == round(work.output_tokens.mean())
    assert simkv.explain(base, input_tokens=7).input_tokens == 7


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, "10"])
def test_lengths_that_are_none(bad: Any) -> None:
    with pytest.raises(ScenarioError, match="input_tokens.*is not an integer >= 1"):
        simkv.explain("retraction-storm", input_tokens=bad)


def test_without_a_workload_lengths_are_asked_for(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    path = tmp_path / "bare.toml"
    path.write_text('[model]\nconfig = "llama-3.1-8b"\n[memory]\nkv_bytes = "1GiB"\n')
    assert main(["size", str(path), "--explain"]) == 2
    told = capsys.readouterr().err
    assert "input_tokens" in told and "output_tokens" in told
    assert main(["size", str(path), "--explain", "--input-tokens", "100", "--output-tokens", "10"]) == 0
    assert "75 requests of 100 + 10 tokens fit at once" in capsys.readouterr().out
    # 1 GiB / 131,072 B = 8,192 tokens, 8,192 // 109 = 75.
    assert main(["size", str(path), "--input-tokens", "100"]) == 2
    assert "has no effect without --explain" in capsys.readouterr().err


def test_json_holds_what_python_gives(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", "gpt-oss-120b-eagle3", "--explain", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    found = simkv.explain("gpt-oss-120b-eagle3")
    assert shown["explain"] == json.loads(json.dumps(found.to_dict()))
    assert shown["explain"]["requests"] == found.requests
    assert shown["max_total_num_tokens"] == simkv.plan("gpt-oss-120b-eagle3").max_total_num_tokens


def test_a_server_that_would_not_start_is_explained_too(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["size", "mimo-v2-flash-chat", "--set", "memory.swa_full_tokens_ratio=0.0001", "--explain"]
    assert main(words) == 3
    told = capsys.readouterr().out
    assert "it would start with memory.swa_full_tokens_ratio >=" in told


def test_all_sliding_models_are_explained() -> None:
    scenario = {
        "model": {"config": model("SS", window=64), "hybrid_swa": True, "cache_window": 64},
        "memory": {"kv_bytes": 2 * 4 * 64 * 5000, "page_size": 1},
    }
    found = simkv.explain(scenario, input_tokens=100, output_tokens=50)
    check_sums(found)
    assert [fit.limit for fit in found.fits] == ["swa", "rows"]
    assert found.balance is None
    # 100 of the prompt, and 50 - 1 of the answer.
    assert (found.fits[0].holding, found.fits[0].requests) == (149, 5000 // 149)
    assert any("(F3)" in line for line in found.advice)


def test_notebooks_show_plans_and_explanations() -> None:
    plan = simkv.plan("mimo-v2-flash-chat")
    shown = plan._repr_html_()
    assert f"<td>{plan.max_total_num_tokens:,}</td>" in shown
    assert shown.count("<tr>") == 1 + len(plan.pools)
    found = simkv.explain("mimo-v2-flash-chat")
    assert f"<li>at most {found.requests} requests of" in found._repr_html_()
    dead = simkv.plan(simkv.load("mimo-v2-flash-chat").override("memory.weights=300GiB"))
    assert "would not start (ValueError)" in dead._repr_html_()
    # Names come from files of anybody.
    odd = simkv.plan({"model": {"config": model("FF") | {"name": "<b>x</b>"}}, "memory": {"kv_bytes": GIB}})
    assert "<b>x</b>" not in odd._repr_html_()
