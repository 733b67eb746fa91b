"""User reports of kind ``sizing``: how many tokens a budget holds. Closed forms are written out."""

from __future__ import annotations

import numpy as np
import pytest
from report_cases import GIB, PLENTY, hybrid, model, prefills, requests, run, with_draft

import simkv

# ------------------------------------------------------------------------------------------------------ R01

R01_BUDGET = 20 * GIB
R01_LAYERS = "SSSF" * 9
FULL_BYTES, SWA_BYTES = 9 * 2048, 27 * 2048  # 4 heads x (256 + 256) x 1 B = 2,048 B a token and layer


def r01(architecture: str = "AnyForCausalLM", hybrid_swa: object = True, **memory: object) -> dict[str, object]:
    config = model(R01_LAYERS, window=512, kv_heads=4, head_dim=256, architectures=[architecture])
    return {
        "model": {"config": config, "kv_cache_dtype": "fp8_e4m3", "hybrid_swa": hybrid_swa},
        "memory": {"kv_bytes": R01_BUDGET, "page_size": 1} | memory,
    }


@pytest.mark.parametrize(("ratio", "cell", "tokens"), [(0.1, 23_961.6, 896_218), (0.8, 62_668.8, 342_671)])
def test_R01_split_pools_charge_the_share_of_the_sliding_layers(ratio: float, cell: float, tokens: int) -> None:
    plan = simkv.plan(r01(swa_full_tokens_ratio=ratio))
    assert (FULL_BYTES, SWA_BYTES) == (18_432, 55_296)
    assert plan.bytes_per_token == pytest.approx(FULL_BYTES + ratio * SWA_BYTES)
    assert plan.bytes_per_token == pytest.approx(cell)
    assert plan.max_total_num_tokens == plan.full_max_total_num_tokens == tokens
    assert plan.swa_max_total_num_tokens == int(tokens * ratio)


@pytest.mark.parametrize("hybrid_swa", ["engine", False])
def test_R01_an_architecture_outside_the_allow_list_pays_every_layer(hybrid_swa: object) -> None:
    plan = simkv.plan(r01(hybrid_swa=hybrid_swa))
    assert plan.bytes_per_token == FULL_BYTES + SWA_BYTES == 73_728
    assert plan.max_total_num_tokens == R01_BUDGET // 73_728 == 291_271
    assert plan.swa_max_total_num_tokens is None
    assert any("27 of 36 layers slide" in note and "all-full" in note for note in plan.notes)
    assert pytest.approx(3.08, abs=0.005) == 896_218 / 291_271


@pytest.mark.parametrize("architecture", ["Gemma3ForCausalLM", "Olmo3ForCausalLM", "Exaone4ForCausalLM"])
def test_R01_gemma_olmo_and_exaone_are_sized_as_all_full(architecture: str) -> None:
    assert simkv.plan(r01(architecture, "engine")).max_total_num_tokens == 291_271


def test_R01_allow_list_and_opt_in_split() -> None:
    assert simkv.plan(r01("GptOssForCausalLM", "engine", swa_full_tokens_ratio=0.1)).max_total_num_tokens == 896_218
    opted = r01(hybrid_swa="engine", swa_full_tokens_ratio=0.1)
    opted["model"]["config"] |= {"is_hybrid_swa": True}  # type: ignore[index]
    assert simkv.plan(opted).max_total_num_tokens == 896_218


@pytest.mark.parametrize(("given", "tight"), [(100, "swa"), (4000, "full")])
def test_R01_the_tight_pool_is_named(given: int, tight: str) -> None:
    # Short requests take as much of either pool, so the smaller one binds; long ones keep only their window there.
    scenario = hybrid(512, max_total_tokens=20_480, swa_full_tokens_ratio=0.6, swa_eviction_interval=1)
    result = run(scenario, [(given, 400)] * (200 if tight == "swa" else 20))
    assert result.summary["limit.binding"] == tight
    other = {"swa": "full", "full": "swa"}[tight]
    assert result.summary[f"{tight}_token_usage.mean"] > result.summary[f"{other}_token_usage.mean"]


# ------------------------------------------------------------------------------------------------------ R02


def r02(*faults: str, draft: bool = True, algorithm: str = "EAGLE") -> simkv.Plan:
    config = {"kv_heads": 4, "head_dim": 128}  # 4 x 256 x 2 B = 2,048 B a token and layer
    scenario: dict[str, object] = {
        "model": {"config": model("SF" * 18, window=128, **config), "hybrid_swa": True},
        "memory": {"kv_bytes": 30 * GIB, "swa_full_tokens_ratio": 0.8},
        "policies": {"faults": list(faults)},
    }
    if draft:
        scenario["draft"] = {"algorithm": algorithm, "config": model("F", **config)}
    return simkv.plan(scenario)


@pytest.mark.parametrize("algorithm", ["EAGLE", "STANDALONE", "DFLASH"])
def test_R02_the_draft_is_part_of_the_price_of_a_token(algorithm: str) -> None:
    plan = r02(algorithm=algorithm)
    assert plan.bytes_per_token == pytest.approx(2048 * (18 + 1) + 0.8 * 2048 * 18) == 68_403.2
    assert (plan.max_total_num_tokens, plan.swa_max_total_num_tokens) == (470_917, 376_733)
    assert plan.overcommit_bytes == plan.padding_bytes


@pytest.mark.parametrize("algorithm", ["EAGLE", "STANDALONE", "DFLASH"])
def test_R02_without_a_draft_term_the_draft_pool_is_over_the_budget(algorithm: str) -> None:
    plan = r02("no-draft-budget", algorithm=algorithm)
    assert plan.bytes_per_token == pytest.approx(2048 * 18 + 0.8 * 2048 * 18) == 66_355.2
    assert (plan.max_total_num_tokens, plan.swa_max_total_num_tokens) == (485_451, 388_360)
    over = plan.overcommit_bytes - plan.padding_bytes
    assert over == 485_451 * 2048
    assert over / GIB == pytest.approx(0.93, abs=0.005)
    assert r02(draft=False).max_total_num_tokens == 485_451


def test_R02_a_run_reports_the_memory_nobody_charged() -> None:
    scenario = with_draft(hybrid(128, max_total_tokens=8192, swa_full_tokens_ratio=0.5), "EAGLE")
    scenario["policies"] = {"faults": ["no-draft-budget"]}
    result = simkv.simulate(scenario, workload=requests([(100, 10)]))
    # The draft's pool with its padding row, and the padding rows of the target's two pools; a row takes 256 B.
    assert result.summary["overcommit_bytes"] == (8192 + 1) * 256 + 256 + 256


def r02_short_of_slack() -> simkv.Plan:
    """Slack of 0.34 GiB beside a draft pool of about 0.93 GiB that nobody charged."""
    config = {"kv_heads": 4, "head_dim": 128}
    return simkv.plan(
        {
            "model": {"config": model("SF" * 18, window=128, **config), "hybrid_swa": True},
            "draft": {"algorithm": "EAGLE", "config": model("F", **config)},
            "memory": {"hbm": "34GiB", "weights": "3.66GiB", "mem_fraction_static": 0.99, "swa_full_tokens_ratio": 0.8},
            "policies": {"faults": ["no-draft-budget"]},
        }
    )


def test_R02_over_the_slack_is_known() -> None:
    plan = r02_short_of_slack()
    assert plan.kv_bytes == pytest.approx(30 * GIB, rel=1e-3)
    assert plan.slack_bytes == pytest.approx(0.34 * GIB, rel=1e-3)
    assert plan.overcommit_bytes > plan.slack_bytes
    assert plan.fits_slack is False


def test_R02_R04_over_the_slack_is_refused_or_said() -> None:
    plan = r02_short_of_slack()
    told = [*plan.notes, *(d.detail for d in plan.disagreements)]
    assert plan.infeasible is None
    assert any("draft" in text and "0.93 GiB" in text for text in told)


# ------------------------------------------------------------------------------------------------------ R04

R04_LOCAL, R04_GLOBAL = 528, 264  # 2 heads (1 head) x 256 x 33 / 32 on one of 8 ranks
R04_TOKENS = 21_638_400


def r04(*faults: str, **memory: object) -> simkv.Plan:
    return simkv.plan(
        {
            "model": {"config": "inkling", "tp_size": 8, "kv_cache_dtype": "mxfp8"},
            "draft": {"algorithm": "EAGLE", "num_steps": 8, "enable_multi_layer_eagle": True},
            "memory": {"swa_full_tokens_ratio": 0.1, "page_size": 128} | memory,
            "policies": {"faults": list(faults)},
        }
    )


def test_R04_every_depth_is_in_the_price_of_a_token() -> None:
    budget = R04_TOKENS * 5808
    plan = r04(kv_bytes=budget)
    assert plan.draft_layers == {"full": 2, "swa": 0, "swa_full": 6}
    target = 11 * R04_GLOBAL + 0.1 * 55 * R04_LOCAL
    drafts = 6 * R04_LOCAL + 2 * R04_GLOBAL
    assert (round(target), drafts) == (5808, 3696)
    assert plan.bytes_per_token == pytest.approx(target + drafts) == 9504
    # Smallest token count that the same bytes hold, in whole pages.
    assert plan.max_total_num_tokens == budget // 9504 // 128 * 128
    assert plan.max_total_num_tokens == pytest.approx(13.22e6, rel=1e-3)


def test_R04_eight_draft_pools_of_two_sizes() -> None:
    plan = r04(kv_bytes=PLENTY, max_total_tokens=R04_TOKENS)
    assert (plan.full_max_total_num_tokens, plan.swa_max_total_num_tokens) == (R04_TOKENS, 2_163_840)
    pools = {p.worker: p for p in plan.pools if p.worker != "target"}
    assert len(pools) == 8
    gib = {name: p.tokens * p.bytes_per_token / GIB for name, p in pools.items()}
    for depth in range(8):
        local = depth in (0, 2, 4, 5, 6, 7)
        assert pools[f"draft{depth}"].bytes_per_token == (R04_LOCAL if local else R04_GLOBAL)
        assert gib[f"draft{depth}"] == pytest.approx(10.64 if local else 5.32, abs=0.005)
    assert sum(gib[f"draft{d}"] for d in range(7)) == pytest.approx(63.84, abs=0.01)
    assert sum(gib.values()) == pytest.approx(74.48, abs=0.01)
    # The buffer that failed: keys of local depth 7; and what that depth lacks beside the 0.35 GiB left.
    assert pytest.approx(5.16, abs=0.005) == R04_TOKENS * 256 / GIB
    assert gib["draft7"] - 0.35 == pytest.approx(10.29, abs=0.005)
    assert plan.overcommit_bytes == plan.padding_bytes


def test_R04_a_budget_for_the_target_alone_is_over_by_all_eight_pools() -> None:
    plan = r04("no-draft-budget", kv_bytes=R04_TOKENS * 5808)
    assert plan.max_total_num_tokens == R04_TOKENS
    over = plan.overcommit_bytes - plan.padding_bytes
    assert over == R04_TOKENS * 3696
    assert over / GIB == pytest.approx(74.48, abs=0.01)


# ------------------------------------------------------------------------------------------------------ R05

R05_TENSOR = 248_320 * 5_120 * 2
R05_CELL = 61_030


def r05(draft_weights: object) -> simkv.Plan:
    # 17 layers x 5 heads x (359 + 359) x 1 B = 61,030 B a token.
    return simkv.plan(
        {
            "model": {"config": model("F" * 17, kv_heads=5, head_dim=359), "kv_cache_dtype": "fp8_e4m3"},
            "memory": {"hbm": "80GiB", "weights": "50GiB", "mem_fraction_static": 0.9, "draft_weights": draft_weights},
        }
    )


def test_R05_transient_draft_weights_cost_capacity() -> None:
    assert R05_TENSOR == 2_542_796_800
    assert pytest.approx(4.736, abs=0.0005) == 2 * R05_TENSOR / GIB
    without, counted = r05(0), r05(2 * R05_TENSOR)
    assert counted.bytes_per_token == R05_CELL
    assert without.kv_bytes - counted.kv_bytes == 5_085_593_600
    lost = without.max_total_num_tokens - counted.max_total_num_tokens
    assert lost in (83_329, 83_330)
    assert pytest.approx(83_329.4, abs=0.05) == 5_085_593_600 / R05_CELL


def test_R05_draft_weights_are_a_line_of_their_own_and_units_are_kept_apart() -> None:
    line = next(charge for charge in r05(2 * R05_TENSOR).charges if charge.name == "draft weights")
    assert line.bytes == -5_085_593_600
    # "2.54" is GB, not GiB; one rank of two carries 2.368 GiB.
    assert r05("5.0855936GB").kv_bytes == r05(2 * R05_TENSOR).kv_bytes
    assert r05("4.736328125GiB").kv_bytes == r05(2 * R05_TENSOR).kv_bytes
    assert r05("2.54GiB").kv_bytes < r05("2.54GB").kv_bytes


# ------------------------------------------------------------------------------------------------------ R06


def r06(ratio: float = 0.1, **memory: object) -> dict[str, object]:
    memory = {"page_size": 256, "max_total_tokens": 32_768, "swa_full_tokens_ratio": ratio} | memory
    return hybrid(128, **memory)


@pytest.mark.parametrize(("ratio", "tokens"), [(0.1, 3072), (0.525, 17_152), (0.2625, 8448)])
def test_R06_swa_pool_of_a_ratio(ratio: float, tokens: int) -> None:
    assert int(32_768 * ratio) // 256 * 256 == tokens
    assert simkv.plan(r06(ratio)).swa_max_total_num_tokens == tokens


def test_R06_the_ratio_that_holds_the_chunks_in_flight() -> None:
    assert pytest.approx(0.525) == 2 * 8192 * 1.05 / 32_768
    assert simkv.plan(r06(0.525)).swa_max_total_num_tokens >= 2 * 8192 + 128 + 256
    assert simkv.plan(r06(0.2625)).swa_max_total_num_tokens >= 8192


def test_R06_a_long_prompt_goes_in_pieces_that_the_pool_can_hold() -> None:
    # The first piece leaves room for outputs and a page. With the prefix cache on, the window moves at the end of each
    # piece and the rest is 2,560 + 880. Without it, it moves only when the next piece is on its way, so every other
    # piece gets what is left beside one page: 3,072 - 2,560 - 256 = 256, and then, with 3,072 - 512 free, 2,304.
    result = run(r06(disable_overlap_schedule=True), [(6000, 10)])
    assert (3072 - (10 + 256)) // 256 * 256 == 2560
    assert prefills(result) == [2560, 256, 2304, 256, 624]
    assert result.requests["state"].tolist() == ["completed"]


@pytest.mark.parametrize("overlap", [True, False])
def test_R06_with_the_larger_ratio_it_goes_in_one_piece(overlap: bool) -> None:
    result = run(r06(0.525, disable_overlap_schedule=not overlap), [(6000, 10)])
    assert prefills(result) == [6000]
    assert result.requests["state"].tolist() == ["completed"]


def test_R06_with_overlap_the_prompt_starves_itself() -> None:
    result = run(r06(), [(6000, 10)])
    assert result.fault is not None and result.fault["fault"] == "F2"
    assert "2,816" in result.fault["message"] and "3,072" in result.fault["message"]
    assert result.requests["state"].tolist() == ["unfinished"]


def test_R06_without_chunking_it_waits_for_ever() -> None:
    result = run(r06(chunked_prefill_size=-1), [(6000, 10), (10, 10)])
    assert result.fault is not None and result.fault["fault"] == "D14"
    assert "6,000" in result.fault["message"] and "3,072" in result.fault["message"]
    assert result.summary["requests.completed"] == 0


def test_R06_R18_the_fault_names_the_ratio_that_avoids_it() -> None:
    result = run(r06(), [(6000, 10)])
    assert result.fault is not None
    assert "swa_full_tokens_ratio" in result.fault["message"]


# ------------------------------------------------------------------------------------------------------ R10


@pytest.mark.parametrize("tokens", [256, 4096, 65_536])
def test_R10_bytes_of_a_request_with_and_without_the_window(tokens: int) -> None:
    def bytes_held(split: bool) -> int:
        scenario = {
            "model": {"config": "gpt-oss-120b", "hybrid_swa": "engine" if split else False},
            "memory": {
                "kv_bytes": PLENTY,
                "max_total_tokens": 200_000,
                "chunked_prefill_size": 8192,
                "swa_eviction_interval": 1,
                "disable_radix_cache": True,
                "disable_overlap_schedule": True,
            },
        }
        # The third decode step stores token number ``tokens``; the window moves from the second on.
        result = run(scenario, [(tokens - 3, 8)])
        pools = {p["pool"]: p["bytes_per_token"] for p in result.plan["pools"]}
        row = result.timeline[result.timeline["full_uncached_tokens"] == tokens].iloc[0]
        return sum(int(row[f"{pool}_uncached_tokens"]) * price for pool, price in pools.items())

    layer = 8 * (64 + 64) * 2
    assert bytes_held(False) == 36 * tokens * layer
    assert bytes_held(True) == (18 * tokens + 18 * 128) * layer
    exact = 36 * tokens / (18 * tokens + 18 * 128)
    assert bytes_held(False) / bytes_held(True) == pytest.approx(exact)
    if tokens == 65_536:
        assert exact == pytest.approx(1.9961, abs=5e-5)
        assert exact == pytest.approx(2, rel=0.002)
    if tokens == 256:
        assert exact == pytest.approx(1.333, abs=5e-4)


# ------------------------------------------------------------------------------------------------------ R11


def r11(steps: int) -> simkv.Plan:
    scenario: dict[str, object] = {
        "model": {"config": model("F" * 24, kv_heads=8, head_dim=128)},
        "memory": {
            "gpu": "h200",
            "weights": "90GiB",
            "draft_weights": "2GiB" if steps else 0,
            "chunked_prefill_size": 16_384,
            "max_running_requests": 48,
            "overhead": 0 if steps else "2GiB",
        },
    }
    if steps:
        scenario["draft"] = {"algorithm": "EAGLE", "config": model("F", kv_heads=8, head_dim=128), "num_steps": steps}
    return simkv.plan(scenario)


def test_R11_capacity_does_not_depend_on_the_draft_length() -> None:
    plans = [r11(steps) for steps in (0, 1, 2, 3)]
    assert len({plan.kv_bytes for plan in plans}) == 1
    assert len({plan.max_total_num_tokens for plan in plans[1:]}) == 1
    # Without a draft, only the draft's layer is missing from the price of a token.
    assert plans[1].bytes_per_token / plans[0].bytes_per_token == pytest.approx(25 / 24)


# ------------------------------------------------------------------------------------------------------ R15


def r15(page: int, *, overlap: bool) -> tuple[simkv.Run, list[int]]:
    scenario = hybrid(
        128, page_size=page, max_total_tokens=16_384, swa_full_tokens_ratio=0.5, disable_overlap_schedule=not overlap
    )
    result = run(scenario, [(1000, 1001)])
    rows = result.timeline
    steps = rows.loc[rows["kind"] == "decode", "swa_uncached_tokens"].tolist()
    # Steady: the window moves in the second step for the first time, in the third with overlap.
    return result, [int(tokens) for tokens in steps[2:]]


def r15_live(page: int, stored: int, lag: int) -> int:
    """Whole pages from the one that holds the oldest token of the window to the newest token."""
    oldest = stored - 1 - 128 - lag
    return -(-stored // page) * page - oldest // page * page


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("page", [256, 128])
def test_R15_live_window_slots_of_every_step(page: int, overlap: bool) -> None:
    _, live = r15(page, overlap=overlap)
    assert live == [r15_live(page, stored, int(overlap)) for stored in range(1003, 1003 + len(live))]


@pytest.mark.parametrize(
    ("page", "overlap", "mean", "peak"),
    [(256, False, 384, 512), (128, False, 256, 256), (256, True, 385, 512), (128, True, 257, 384)],
)
def test_R15_mean_over_a_whole_page_and_peak(page: int, overlap: bool, mean: int, peak: int) -> None:
    _, live = r15(page, overlap=overlap)
    period = live[: len(live) // 256 * 256]
    assert np.mean(period) == mean
    assert max(live) == peak
    if not overlap:
        # The report's own figures, over a stretch of its own: 379 and 512, 256 and 256.
        assert mean == pytest.approx({256: 379, 128: 256}[page], rel=0.02)


def test_R15_mean_and_peak_are_reported_apart() -> None:
    result, live = r15(256, overlap=False)
    summary = result.summary
    assert summary["swa_token_usage.peak"] * 8192 == pytest.approx(1024)  # the prompt, before the window moves
    assert 256 < summary["swa_token_usage.mean"] * 8192 < 512
    assert summary["swa_token_usage.mean"] < summary["swa_token_usage.peak"]
    assert (max(live), min(live)) == (512, 256)
