"""From GPU memory to KV bytes: startup defaults, the static fraction, the budget of one rank."""

from __future__ import annotations

import re
from typing import Any

import pytest

import simkv
from simkv.engines.base import Plan
from simkv.engines.sglang.budget import default_chunked_prefill_size, default_mem_fraction_static, kv_budget
from simkv.errors import InfeasibleError

GIB = 1 << 30
H200, H100, A10, L40S, T4, B200 = 143_771, 81_559, 24_564, 46_068, 15_360, 183_359
# 4..32 by 4, ..256 by 16, ..512 by 32, ..1024 by 64, ..4096 by 256, then by 512.
GRAPHS = {2048: 8 + 14 + 8 + 8 + 4, 4096: 8 + 14 + 8 + 8 + 12, 8192: 50 + 8, 16384: 50 + 24}


def plan(config: Any, *, draft: Any = None, model: dict[str, Any] | None = None, **memory: Any) -> Plan:
    scenario: dict[str, Any] = {"model": {"config": config, **(model or {})}, "memory": memory}
    if draft is not None:
        scenario["draft"] = draft
    return simkv.plan(scenario)


def fraction(mib: int | None, **changes: Any) -> float:
    """The heuristic with every argument at its default for that memory."""
    facts: dict[str, Any] = {
        "tp_size": 1,
        "chunked_prefill_size": default_chunked_prefill_size(mib),
        "max_prefill_tokens": 16384,
        "max_running_requests": None,
        "mla": False,
    }
    return default_mem_fraction_static(mib, **facts | changes)


@pytest.mark.parametrize(
    ("mib", "chunk"),
    [
        (None, 4096),
        (20 * 1024 - 1, 2048),
        (20 * 1024, 4096),
        (60 * 1024 - 1, 4096),
        (60 * 1024, 8192),
        (160 * 1024 - 1, 8192),
        (160 * 1024, 16384),
    ],
)
def test_chunk_defaults_change_at_the_memory_tiers(mib: int | None, chunk: int) -> None:
    assert default_chunked_prefill_size(mib) == chunk


@pytest.mark.parametrize(("mib", "value"), [(H200, 0.903), (H100, 0.830), (None, 0.95)])
def test_static_fraction_of_the_worked_gpus(mib: int | None, value: float) -> None:
    assert fraction(mib) == value


@pytest.mark.parametrize(
    ("mib", "tp", "chunk", "graph_bs"),
    [
        (T4, 1, 2048, 8),
        (A10, 1, 4096, 48),
        (A10, 4, 4096, 160),
        (L40S, 2, 4096, 32),
        (L40S, 8, 4096, 160),
        (H100, 8, 8192, 512),
        (H200, 4, 8192, 512),
        (B200, 1, 16384, 512),
    ],
)
def test_static_fraction_is_what_the_reserve_leaves(mib: int, tp: int, chunk: int, graph_bs: int) -> None:
    reserve = 512 + 1.5 * chunk + tp / 8 * 1024 + 2 * graph_bs + 8 * GRAPHS[chunk]
    if mib > 60 * 1024:
        reserve = max(reserve, 10 * 1024)
    assert fraction(mib, tp_size=tp) == round((mib - reserve) / mib, 3)


def test_reserve_has_a_floor_above_60_gib() -> None:
    # 512 + 3072 + 128 + 512 + 336 MiB = 4.5 GiB is less than the 10 GiB floor.
    assert fraction(H200, chunked_prefill_size=2048) == round((H200 - 10 * 1024) / H200, 3)


def test_a_chunk_below_2048_reserves_activations_of_2048() -> None:
    reserve = 512 + 1.5 * 2048 + 128 + 2 * 48 + 8 * (8 + 14 + 8 + 8)
    assert fraction(A10, chunked_prefill_size=1024) == round((A10 - reserve) / A10, 3)


def test_without_chunking_the_longest_prefill_counts() -> None:
    # And no prefill graphs are captured: they go up to the chunk, -1.
    reserve = 512 + 1.5 * 16384 + 128 + 2 * 256
    assert fraction(H200, chunked_prefill_size=-1) == round((H200 - reserve) / H200, 3)


def test_other_graphs_reserve_other_amounts() -> None:
    reserve = 512 + 1.5 * 8192 + 128 + 2 * 1000
    assert fraction(H200, decode_graph_bs=1000, prefill_graphs=0) == round((H200 - reserve) / H200, 3)
    assert fraction(H200, decode_graph_bs=0, prefill_graphs=10) == round((H200 - (512 + 12288 + 128 + 80)) / H200, 3)
    assert fraction(H200, prefill_graphs=0, mla=True) == round((H200 - (512 + 12288 + 128 + 512)) / H200, 3)


def test_latent_attention_reserves_a_fixed_gib_and_a_half_for_prefill_graphs() -> None:
    reserve = 512 + 1.5 * 8192 + 128 + 2 * 256 + 1536
    assert fraction(H200, mla=True) == round((H200 - reserve) / H200, 3)


def test_stated_requests_cap_the_decode_graphs() -> None:
    reserve = 512 + 1.5 * 8192 + 128 + 2 * 64 + 8 * 58
    assert fraction(H200, max_running_requests=64) == round((H200 - reserve) / H200, 3)
    assert fraction(H200, max_running_requests=100_000) == fraction(H200)


def test_budget_is_the_static_share_less_all_that_is_resident() -> None:
    budget = kv_budget(100 * GIB, 0.75, weights=30 * GIB, draft_weights=2 * GIB, overhead=GIB, state=3 * GIB)
    assert budget.kv == (75 - 30 - 2 - 1 - 3) * GIB
    assert budget.slack == 25 * GIB


def test_a_plan_shows_the_charges_and_they_add_up() -> None:
    shown = plan(
        "llama-3.1-8b", hbm="80GiB", weights="16GiB", draft_weights="1GiB", overhead="2GiB", mem_fraction_static=0.75
    )
    assert shown.kv_bytes == 41 * GIB
    assert shown.slack_bytes == 20 * GIB
    charges = {charge.name: charge.bytes for charge in shown.charges}
    assert charges.pop("kv_bytes") == 41 * GIB
    assert sum(charges.values()) == 41 * GIB
    # 32 layers x 8 heads x 256 x 2 B
    assert shown.max_total_num_tokens == 41 * GIB // 131_072


def test_weights_are_derived_from_the_parameters() -> None:
    shown = plan("glm-4.5", model={"tp_size": 8}, gpu="h200", overhead="1GiB")
    # 355e9 parameters x 2 B / 8 ranks
    assert {charge.name: charge.bytes for charge in shown.charges}["weights"] == -88_750_000_000
    assert any("memory.weights" in note for note in shown.notes)


def test_short_convolution_state_is_taken_from_the_budget() -> None:
    facts: dict[str, Any] = {"hbm": "141GiB", "weights": "60GiB", "mem_fraction_static": 0.9, "page_size": 128}
    shown = plan("inkling", model={"tp_size": 8}, max_running_requests=7, **facts)
    # Channels a layer on one of 8 ranks: K and V of 1 full and 2 sliding heads of 128, two hidden streams of 6144.
    per_request = 66 * 3 * 2 * (128 + 256 + 6144) * 2
    assert shown.kv_bytes == plan("inkling", model={"tp_size": 8}, state_bytes=0, **facts).kv_bytes - 8 * per_request


def test_kv_bytes_stated_outright_know_no_slack() -> None:
    shown = plan("llama-3.1-8b", kv_bytes="10GiB")
    assert (shown.kv_bytes, shown.slack_bytes, shown.fits_slack) == (10 * GIB, None, None)


def test_overcommit_is_measured_against_the_slack() -> None:
    facts: dict[str, Any] = {"weights": "40GiB", "mem_fraction_static": 0.9, "page_size": 64}
    draft = {"algorithm": "EAGLE"}
    roomy = plan("mimo-v2-flash", model={"tp_size": 4}, draft=draft, hbm="141GiB", **facts)
    assert roomy.slack_bytes is not None
    assert roomy.fits_slack is (roomy.overcommit_bytes <= roomy.slack_bytes)
    assert roomy.fits_slack
    facts |= {"mem_fraction_static": 0.999}
    tight = plan("mimo-v2-flash", model={"tp_size": 4}, draft=draft, hbm="141GiB", **facts)
    assert tight.fits_slack is False


def test_weights_beyond_the_static_share_are_refused() -> None:
    facts: dict[str, Any] = {"hbm": "80GiB", "weights": "60GiB"}
    refused = plan("llama-3.1-8b", mem_fraction_static=0.7, **facts)
    assert refused.infeasible is not None
    assert refused.infeasible.engine_error == "ValueError"
    assert refused.pools == ()
    fix = re.search(r"mem_fraction_static >= ([0-9.]+)", refused.infeasible.text())
    assert fix is not None
    assert plan("llama-3.1-8b", mem_fraction_static=float(fix[1]), **facts).infeasible is None
    assert plan("llama-3.1-8b", mem_fraction_static=float(fix[1]) - 0.0001, **facts).infeasible is not None


def test_the_fraction_named_for_a_refusal_counts_the_request_state() -> None:
    facts: dict[str, Any] = {"hbm": "100GiB", "weights": "80GiB", "state_bytes": "10GiB"}
    refused = plan("inkling-small", mem_fraction_static=0.85, **facts)
    assert refused.infeasible is not None
    fix = re.search(r"mem_fraction_static >= ([0-9.]+)", refused.infeasible.text())
    assert fix is not None
    assert plan("inkling-small", **facts | {"mem_fraction_static": float(fix[1])}).infeasible is None
    below = plan("inkling-small", **facts | {"mem_fraction_static": float(fix[1]) - 0.0001})
    assert below.infeasible is not None


def test_no_fraction_is_named_that_cannot_be_set() -> None:
    refused = plan("llama-3.1-70b", gpu="h100")
    assert refused.infeasible is not None
    assert (
        "mem_fraction_static" not in refused.infeasible.fixes
        and "mem_fraction_static >=" not in refused.infeasible.text()
    )


def test_the_static_fraction_is_chosen_before_speculation_sets_its_requests() -> None:
    # The memory defaults resolve before the speculative ones (arg_groups/pipeline.py:218, 306).
    dense = plan("llama-3.1-8b", gpu="h200")
    drafted = plan("llama-3.1-8b", gpu="h200", draft={"algorithm": "EAGLE3", "config": "draft-llama3-8b-eagle3"})
    assert drafted.slack_bytes == dense.slack_bytes


@pytest.mark.parametrize(
    "changes",
    [
        ["memory.mem_fraction_static=0.1"],
        ["memory.weights=500GiB"],
        ["memory.disable_radix_cache=true", "draft.algorithm=NGRAM"],
        ["memory.disable_radix_cache=true", "memory.overhead=10GiB", "memory.max_running_requests=300"],
        ["memory.disable_radix_cache=false", "memory.mem_fraction_static=0.82"],
    ],
)
def test_every_remedy_of_a_server_on_a_gpu_is_one(changes: list[str]) -> None:
    one = simkv.load("mimo-v2-flash-chat").override(*changes)
    refused = one.plan().infeasible
    assert refused is not None
    assert refused.fixes
    for fix in refused.fixes:
        key, sign, value = re.match(r"(memory\.\w+) (>=|<=) ([0-9.,]+)", fix).groups()  # type: ignore[union-attr]
        number = float(value.replace(",", "")) if "." in value else int(value.replace(",", ""))
        assert one.override(f"{key}={number}").plan().infeasible is None, fix
        step = 0.0001 if key.endswith("static") else 0.001 if key.endswith("ratio") else 1
        worse = round(number - step, 4) if sign == ">=" else number + step
        if key != "memory.weights" or worse > number:
            assert one.override(f"{key}={worse}").plan().infeasible is not None, fix


@pytest.mark.parametrize(("tp", "ok"), [(1, True), (2, True), (3, False), (5, False), (64, True), (128, False)])
def test_heads_have_to_divide_by_the_ranks(tp: int, ok: bool) -> None:
    # 64 query heads (models/mimo_v2.py:691).
    one = simkv.load("mimo-v2-flash-chat").override(f"model.tp_size={tp}", "memory.kv_bytes=20GiB")
    told = [note for note in one.plan().notes if "attention heads" in note]
    assert bool(told) is not ok
    if not ok:
        with pytest.raises(InfeasibleError, match=r"model.tp_size one of 1, 2, 4, 8, 16, 32, 64"):
            simkv.simulate(one)
