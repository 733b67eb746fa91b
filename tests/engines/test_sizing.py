"""Pool sizes from KV bytes: worked figures, every configurator, refusals and remedies, the engine's own answers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tiny import EXAMPLE

import simkv
from simkv import catalogue
from simkv.engines.base import Plan
from simkv.engines.sglang import reserve
from simkv.engines.sglang.settings import Spec
from simkv.errors import InfeasibleError, ModelError

GIB = 1 << 30
CASES = Path(__file__).resolve().parent.parent / "data" / "oracle" / "sizing_extra.jsonl"

DENSE: dict[str, Any] = {
    "num_hidden_layers": 10,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "hidden_size": 256,
    "max_position_embeddings": 8192,
}
MTP = {"algorithm": "EAGLE", "enable_multi_layer_eagle": True, "num_steps": 3}


def scenario(
    config: Any = None,
    *,
    draft: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    policies: dict[str, Any] | None = None,
    **memory: Any,
) -> dict[str, Any]:
    """60 GiB, pages of 64 and ratio 0.1 unless told otherwise."""
    data: dict[str, Any] = {
        "model": {"config": EXAMPLE if config is None else config, **(model or {})},
        "memory": {"kv_bytes": 60 * GIB, "page_size": 64, "swa_full_tokens_ratio": 0.1} | memory,
        "policies": policies or {},
    }
    if draft is not None:
        data["draft"] = draft
    return data


def plan(config: Any = None, **facts: Any) -> Plan:
    return simkv.plan(scenario(config, **facts))


def floor(tokens: float, page: int) -> int:
    return int(tokens) // page * page


def sizes(shown: Plan) -> tuple[int | None, int | None, int | None]:
    return shown.max_total_num_tokens, shown.full_max_total_num_tokens, shown.swa_max_total_num_tokens


# ------------------------------------------------------------------------------------------ the worked example
@pytest.mark.parametrize(
    ("ids", "draft", "terms", "cell", "full", "swa"),
    [
        (None, None, (0, 0, 0), 56_524.8, 1_139_712, 113_920),
        ([0, 2], MTP, (1, 0, 2), 64_716.8, 995_456, 99_520),
        ([], MTP, (3, 0, 0), 68_812.8, 936_192, 93_568),
        (None, MTP, (0, 3, 0), 57_139.2, 1_127_488, 112_704),
    ],
    ids=["no speculation", "some local depths", "empty list", "no list"],
)
def test_worked_hybrid_sizes(
    ids: list[int] | None, draft: Any, terms: tuple[int, int, int], cell: float, full: int, swa: int
) -> None:
    config = EXAMPLE if ids is None else EXAMPLE | {"mtp_local_layer_ids": ids}
    shown = plan(config, draft=draft)
    assert shown.configurator == "HybridSWAPoolConfigurator"
    assert tuple(shown.draft_layers[kind] for kind in ("full", "swa", "swa_full")) == terms
    assert shown.bytes_per_token == pytest.approx(cell, rel=1e-12)
    assert sizes(shown) == (full, full, swa)
    assert (shown.full_bytes_per_token_layer, shown.swa_bytes_per_token_layer) == (4096, 2048)


@pytest.mark.parametrize(("window", "cap"), [(128, 50_624), (512, 69_056)])
def test_worked_request_cap(window: int, cap: int) -> None:
    shown = plan(EXAMPLE | {"sliding_window": window}, draft=MTP, disable_radix_cache=True, chunked_prefill_size=8192)
    assert shown.configurator == "SWARequestCapPoolConfigurator"
    assert shown.max_running_requests == 48
    # dec: twice the 4 tokens of a step; two chunks in flight with the overlap schedule
    assert (window + 128 * 4 + 64 + 8) * 48 + 2 * 8192 + 64 == cap
    assert (shown.swa_cap, shown.swa_max_total_num_tokens) == (cap, cap)
    # Three ordinary draft layers ride in the SWA pool.
    left = 60 * GIB - cap * 2048 * 39
    assert shown.full_max_total_num_tokens == floor(left // (4096 * 12), 64)


# ------------------------------------------------------------------------------------------ models of the catalogue
def test_gemma_3_is_sized_all_full_unless_split_on_purpose() -> None:
    facts: dict[str, Any] = {"kv_bytes": 40 * GIB, "page_size": 1, "swa_full_tokens_ratio": 0.8}
    shown = plan("gemma-3-27b", **facts)
    assert shown.configurator == "DefaultPoolConfigurator"
    assert shown.bytes_per_token == 507_904 == 62 * 16 * 256 * 2
    assert sizes(shown) == (84_562, None, None)
    split = plan("gemma-3-27b", model={"hybrid_swa": True}, **facts)
    assert split.configurator == "HybridSWAPoolConfigurator"
    assert split.layers == {"full": 10, "swa": 52}
    assert split.max_total_num_tokens == 101_606
    assert split.window == 1023


@pytest.mark.parametrize(("ids", "tokens"), [([0, 2, 4, 5, 6, 7], 11_650_816), ([], 13_980_928), (None, 17_772_416)])
def test_inkling_with_and_without_its_local_depths(ids: list[int] | None, tokens: int) -> None:
    config = {key: value for key, value in catalogue.config("inkling").items() if key != "mtp_local_layer_ids"}
    if ids is not None:
        config["mtp_local_layer_ids"] = ids
    shown = plan(
        config,
        model={"tp_size": 8, "kv_cache_dtype": "fp8_e4m3"},
        draft={"algorithm": "EAGLE", "enable_multi_layer_eagle": True, "num_steps": 8},
        kv_bytes=100 * GIB,
        page_size=128,
        swa_full_tokens_ratio=None,
    )
    assert shown.max_total_num_tokens == tokens
    assert shown.settings["swa_full_tokens_ratio"] == 0.1
    # One full head and two sliding heads of 128 + 128 remain on a rank.
    assert (shown.full_bytes_per_token_layer, shown.swa_bytes_per_token_layer) == (256, 512)


def test_mxfp8_adds_a_scale_to_every_32_elements() -> None:
    shown = plan(
        "inkling",
        model={"tp_size": 8, "kv_cache_dtype": "mxfp8"},
        draft={"algorithm": "EAGLE", "enable_multi_layer_eagle": True, "num_steps": 8},
        page_size=128,
    )
    assert (shown.full_bytes_per_token_layer, shown.swa_bytes_per_token_layer) == (264, 528)
    kinds = {pool.worker: pool.bytes_per_token for pool in shown.pools if pool.worker != "target"}
    assert kinds == {f"draft{depth}": 264 if depth in (1, 3) else 528 for depth in range(8)}
    cell = 264 * (11 + 2) + 528 * 6 + 0.1 * 528 * 55
    assert shown.max_total_num_tokens == floor(60 * GIB // cell, 128)


def test_mxfp8_rounds_the_scales_of_a_model_without_split_once() -> None:
    # 3 heads x 2 x 20 = 120 elements: 3 scale bytes a layer, but 37 for ten layers together.
    config = DENSE | {"num_key_value_heads": 3, "head_dim": 20}
    shown = plan(config, model={"kv_cache_dtype": "mxfp8"})
    assert shown.bytes_per_token == 1200 + 1200 // 32


@pytest.mark.parametrize("name", ["bf16", "auto", "fp8_e4m3", "fp8_e5m2"])
def test_one_byte_formats_halve_every_price(name: str) -> None:
    shown = plan(model={"kv_cache_dtype": name})
    size = 1 if name.startswith("fp8") else 2
    assert (shown.full_bytes_per_token_layer, shown.swa_bytes_per_token_layer) == (2048 * size, 1024 * size)
    assert shown.max_total_num_tokens == floor(60 * GIB // (size * (2048 * 12 + 0.1 * 1024 * 36)), 64)


@pytest.mark.parametrize(("tp", "full", "swa"), [(1, 8, 4), (2, 4, 2), (3, 2, 1), (4, 2, 1), (8, 1, 1), (16, 1, 1)])
def test_every_rank_keeps_a_head(tp: int, full: int, swa: int) -> None:
    shown = plan(model={"tp_size": tp})
    assert (shown.full_bytes_per_token_layer, shown.swa_bytes_per_token_layer) == (512 * full, 512 * swa)


def test_every_catalogue_model_is_planned_or_refused_by_name() -> None:
    planned, refused = [], []
    for name in catalogue.names():
        facts = simkv.Arch.from_config(name)
        page = 1 if not facts.count("full", "mla") else 64
        data = scenario(name, model={"tp_size": 8, "context_length": 8192}, kv_bytes=100 * GIB, page_size=page)
        try:
            shown = simkv.plan(data)
        except ModelError as error:
            refused.append(name)
            assert facts.unsupported, error
        else:
            planned.append(name)
            assert not facts.unsupported
            assert shown.max_total_num_tokens
    assert len(planned) > 40
    assert len(refused) > 5


# ------------------------------------------------------------------------------------------ models without split
def test_a_dense_model_divides_and_floors_to_a_page() -> None:
    shown = plan(DENSE, kv_bytes=10 * GIB + 12_345)
    assert shown.bytes_per_token == 10 * 4 * 128 * 2
    assert sizes(shown) == (floor((10 * GIB + 12_345) // 10_240, 64), None, None)


def test_a_dense_draft_is_charged_a_share_of_the_whole_stack() -> None:
    draft = DENSE | {"num_hidden_layers": 3, "num_key_value_heads": 1}
    shown = plan(DENSE, draft={"algorithm": "STANDALONE", "config": draft})
    # The target's price a layer, three times, whatever the draft's geometry.
    assert shown.bytes_per_token == 10_240 + int(10_240 * 3 / 10)


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_dense_mtp_layers_are_charged_like_layers_of_the_target(depth: int) -> None:
    shown = plan(DENSE | {"num_nextn_predict_layers": depth}, draft={"algorithm": "EAGLE", "num_steps": 2})
    assert shown.bytes_per_token == 10_240 + 1024 * depth


def test_dflash_on_a_dense_target_is_charged_by_its_own_geometry() -> None:
    shown = plan("qwen3-8b", draft={"algorithm": "DFLASH", "config": "draft-qwen3-8b-dflash"})
    cell = 36 * 8 * 256 * 2 + 5 * 8 * 256 * 2
    assert shown.bytes_per_token == cell
    assert shown.max_total_num_tokens == floor(60 * GIB // cell, 64)


@pytest.mark.parametrize("capped", [False, True])
def test_dflash_on_a_hybrid_target_is_charged_on_every_full_token(capped: bool) -> None:
    draft = DENSE | {"num_hidden_layers": 5, "num_key_value_heads": 2, "head_dim": 96}
    shown = plan(
        draft={"algorithm": "DSPARK", "config": draft, "num_draft_tokens": 8},
        disable_radix_cache=capped,
        chunked_prefill_size=4096,
    )
    lump = 5 * 2 * 192 * 2
    assert shown.draft_layers == {"full": 0, "swa": 0, "swa_full": 0}
    assert shown.bytes_per_token == pytest.approx(4096 * 12 + 0.1 * 2048 * 36 + lump, rel=1e-12)
    if capped:
        cap = -(-((128 + 128 * 8 + 64 + 16) * 48 + 2 * 4096 + 64) // 64) * 64
        assert shown.swa_max_total_num_tokens == cap
        assert shown.max_total_num_tokens == floor((60 * GIB - cap * 2048 * 36) // (4096 * 12 + lump), 64)
    else:
        assert shown.max_total_num_tokens == floor(60 * GIB // shown.bytes_per_token, 64)


def test_dflash_lump_has_no_mxfp8_scales() -> None:
    shown = plan(
        model={"kv_cache_dtype": "mxfp8"}, draft={"algorithm": "DFLASH", "config": DENSE | {"num_hidden_layers": 5}}
    )
    # speculative/dflash_utils.py:121-134 knows the element size only.
    cell = 2112 * 12 + 0.1 * 1056 * 36 + 5 * 4 * 128
    assert shown.bytes_per_token == pytest.approx(cell, rel=1e-12)


def test_a_float32_checkpoint_keeps_kv_of_two_bytes() -> None:
    # The engine serves it in float16, or bfloat16 for Gemma (configs/model_config.py:2303-2319).
    assert plan(DENSE | {"torch_dtype": "float32"}).bytes_per_token == 10_240


# ------------------------------------------------------------------------------------------ caps, all-SWA
def test_a_token_cap_is_split_anew() -> None:
    shown = plan(max_total_tokens=100_007)
    assert sizes(shown) == (99_968, 99_968, floor(99_968 * 0.1, 64))
    assert sizes(plan(max_total_tokens=10**9)) == sizes(plan())


def test_a_token_cap_in_cap_mode_leaves_a_broken_page() -> None:
    shown = plan(disable_radix_cache=True, max_running_requests=64, chunked_prefill_size=8192, max_total_tokens=5000)
    assert sizes(shown) == (4992, 4992, 5000)
    assert any("no whole number of pages" in note for note in shown.notes)


@pytest.mark.parametrize(
    "facts",
    [
        {"disable_radix_cache": False, "max_running_requests": 64, "chunked_prefill_size": 8192},
        {"disable_radix_cache": True, "max_running_requests": "pool", "chunked_prefill_size": 8192},
        {"disable_radix_cache": True, "max_running_requests": 64, "chunked_prefill_size": -1},
    ],
)
def test_cap_mode_needs_requests_chunks_and_no_prefix_cache(facts: dict[str, Any]) -> None:
    assert plan(**facts).configurator == "HybridSWAPoolConfigurator"


def test_speculation_enters_cap_mode_by_itself() -> None:
    facts: dict[str, Any] = {"disable_radix_cache": True, "chunked_prefill_size": 8192}
    assert plan(**facts).configurator == "HybridSWAPoolConfigurator"
    assert plan(draft=MTP, **facts).configurator == "SWARequestCapPoolConfigurator"


@pytest.mark.parametrize(
    ("page", "steps", "topk", "width", "decode"),
    [(1, 3, 1, 4, 4), (64, 3, 1, 4, 64), (64, 3, 2, 4, 256), (16, 5, 4, 8, 128), (1, 5, 4, 8, 20)],
)
def test_cap_without_overlap_uses_the_older_length(page: int, steps: int, topk: int, width: int, decode: int) -> None:
    shown = plan(
        draft={"algorithm": "EAGLE", "num_steps": steps, "eagle_topk": topk, "num_draft_tokens": width},
        page_size=page,
        disable_radix_cache=True,
        disable_overlap_schedule=True,
        chunked_prefill_size=1024,
        max_running_requests=10,
    )
    cap = (128 + 128 * width + page + decode) * 10 + 1024 + page
    assert shown.swa_max_total_num_tokens == -(-cap // page) * page


def test_all_sliding_layers_share_one_pool_and_no_ratio() -> None:
    config = EXAMPLE | {"layer_types": ["sliding_attention"] * 48, "num_nextn_predict_layers": None}
    shown = plan(config, page_size=1)
    assert sizes(shown) == (60 * GIB // (2048 * 48), 0, 60 * GIB // (2048 * 48))
    # No window check there.
    assert plan(config, page_size=1, model={"cache_window": 10**9}).infeasible is None


def test_all_sliding_target_prices_full_draft_layers_by_its_full_geometry() -> None:
    config = EXAMPLE | {"layer_types": ["sliding_attention"] * 48, "num_nextn_predict_layers": None}
    shown = plan(config, page_size=1, draft={"algorithm": "EAGLE", "num_layers": 2, "num_swa_layers": 0})
    assert shown.bytes_per_token == 2048 * 48 + 4096 * 2


@pytest.mark.parametrize(
    ("context", "stated", "expected"),
    [(8192, "pool", 4096), (131072, "pool", 2048), (131072, 7, 7), (131072, 10**7, "half")],
)
def test_requests_follow_from_the_pool(context: int, stated: Any, expected: Any) -> None:
    shown = plan(DENSE, model={"context_length": context}, kv_bytes=GIB, max_running_requests=stated)
    tokens = floor(GIB // 10_240, 64)
    assert shown.max_running_requests == (tokens // 2 if expected == "half" else expected)


# ------------------------------------------------------------------------------------------ refusals
SWA_SHORT = scenario(EXAMPLE | {"sliding_window": 4096}, kv_bytes=GIB)
NO_MEMORY = scenario(DENSE, kv_bytes=10_240 * 63)
CAP_FULL = scenario(kv_bytes=2 * GIB, disable_radix_cache=True, max_running_requests=64, chunked_prefill_size=8192)
TOKEN_CAP = scenario(max_total_tokens=1000)
DENSE_CAP = scenario(DENSE, max_total_tokens=63)
BROKE = scenario(kv_bytes=-5)
BROKE_DENSE = scenario(DENSE, kv_bytes=-5)
BROKE_CAP = scenario(kv_bytes=-5, disable_radix_cache=True, max_running_requests=64, chunked_prefill_size=8192)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (SWA_SHORT, "ValueError"),
        (NO_MEMORY, "RuntimeError"),
        (CAP_FULL, "RuntimeError"),
        (TOKEN_CAP, "ValueError"),
        (DENSE_CAP, "RuntimeError"),
        (BROKE, "ValueError"),
        (BROKE_DENSE, "RuntimeError"),
        (BROKE_CAP, "RuntimeError"),
    ],
)
def test_refusals_carry_the_engines_exception(data: dict[str, Any], error: str) -> None:
    shown = simkv.plan(data)
    assert shown.infeasible is not None
    assert shown.infeasible.engine_error == error
    assert shown.infeasible.fixes
    assert shown.pools == ()
    assert sizes(shown) == (None, None, None)


def test_all_sliding_models_are_sized_and_then_refused_by_the_allocator() -> None:
    # 60 GiB / (48 layers x 2,048 B) = 655,360 tokens; with pages above 1 the engine's allocator asserts a full pool.
    shown = simkv.plan(scenario(EXAMPLE | {"layer_types": ["sliding_attention"] * 48}))
    assert shown.infeasible is not None
    assert shown.infeasible.engine_error == "AssertionError"
    assert shown.infeasible.fixes
    assert [(p.pool, p.layers, p.tokens, p.bytes_per_token) for p in shown.pools] == [("swa", 48, 655_360, 98_304)]


def test_the_window_floor_is_refused_at_equality() -> None:
    # 2 full layers and 2 sliding ones of 4 B: 64 tokens of 12 B, 32 of them in the SWA pool.
    config: dict[str, Any] = {
        "num_hidden_layers": 4,
        "layer_types": ["full_attention", "sliding_attention"] * 2,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 1,
        "hidden_size": 1,
        "sliding_window": 28,
        "max_position_embeddings": 64,
    }
    facts: dict[str, Any] = {"kv_bytes": 64 * 12, "page_size": 4, "swa_full_tokens_ratio": 0.5}
    refused = plan(config, model={"hybrid_swa": True}, **facts)
    assert refused.infeasible is not None
    assert plan(config | {"sliding_window": 27}, model={"hybrid_swa": True}, **facts).infeasible is None


def remedies(shown: Plan) -> dict[str, str]:
    """Knob -> value of the remedies that name a value."""
    assert shown.infeasible is not None
    found = [re.match(r"(memory\.\w+) (?:>=|<=) ([0-9.,]+)", fix) for fix in shown.infeasible.fixes]
    return {fix[1]: fix[2].replace(",", "") for fix in found if fix}


def with_memory(data: dict[str, Any], key: str, value: Any) -> Plan:
    return simkv.plan(data | {"memory": data["memory"] | {key.removeprefix("memory."): value}})


def assert_smallest(data: dict[str, Any], shown: Plan) -> None:
    """Each remedy alone lets the server start, and one unit less of it does not."""
    for key, text in remedies(shown).items():
        if key == "memory.swa_full_tokens_ratio":
            value: Any = float(text)
            less: Any = round(value - 0.001, 3)
        else:
            value = int(text)
            less = value + 1 if key == "memory.max_running_requests" else value - 1
        assert with_memory(data, key, value).infeasible is None, (key, value)
        if less > 0:
            assert with_memory(data, key, less).infeasible is not None, (key, less)


@pytest.mark.parametrize("data", [SWA_SHORT, NO_MEMORY, CAP_FULL, TOKEN_CAP, DENSE_CAP, BROKE, BROKE_DENSE, BROKE_CAP])
def test_remedies_are_the_smallest_that_help(data: dict[str, Any]) -> None:
    shown = simkv.plan(data)
    assert remedies(shown)
    assert_smallest(data, shown)


def test_remedies_name_the_knobs_that_matter() -> None:
    assert set(remedies(simkv.plan(CAP_FULL))) == {"memory.kv_bytes", "memory.max_running_requests"}
    assert set(remedies(simkv.plan(TOKEN_CAP))) == {"memory.swa_full_tokens_ratio", "memory.max_total_tokens"}
    assert set(remedies(simkv.plan(NO_MEMORY))) == {"memory.kv_bytes"}
    # One page of the dense model.
    assert remedies(simkv.plan(NO_MEMORY)) == {"memory.kv_bytes": str(64 * 10_240)}


# ------------------------------------------------------------------------------------------ properties
@st.composite
def scenarios(draw: st.DrawFn) -> dict[str, Any]:
    """Hybrid or dense, any draft, any cap."""
    layers = draw(st.integers(2, 12))
    kinds = draw(st.lists(st.booleans(), min_size=layers, max_size=layers))
    page = draw(st.sampled_from([1, 2, 16, 64, 256])) if not all(kinds) else 1
    config = DENSE | {
        "num_hidden_layers": layers,
        "layer_types": ["sliding_attention" if kind else "full_attention" for kind in kinds],
        "num_key_value_heads": draw(st.sampled_from([1, 2, 4])),
        "sliding_window": draw(st.integers(1, 300)),
    }
    # One geometry where no layer is full.
    if not all(kinds):
        config |= {"swa_num_key_value_heads": draw(st.sampled_from([1, 2, 4, 8]))}
    draft = None
    if draw(st.booleans()):
        depth = draw(st.integers(0, 4))
        config |= {"num_nextn_predict_layers": depth}
        if draw(st.booleans()):
            config |= {"mtp_local_layer_ids": draw(st.lists(st.integers(0, 5), unique=True))}
        steps = draw(st.integers(1, 4))
        draft = {"algorithm": "EAGLE", "num_steps": steps, "enable_multi_layer_eagle": draw(st.booleans())}
    memory: dict[str, Any] = {
        "kv_bytes": draw(st.integers(10**5, 10**8)),
        "page_size": page,
        "swa_full_tokens_ratio": draw(st.floats(0.01, 1.0)),
        "chunked_prefill_size": 512,
    }
    if draw(st.booleans()):
        memory |= {"disable_radix_cache": True, "max_running_requests": draw(st.integers(1, 60))}
    if draw(st.integers(0, 4)) == 0:
        memory |= {"max_total_tokens": draw(st.integers(1, 10**5))}
    routing = draw(st.sampled_from(["legacy", "generalized", "depth-owned"]))
    return scenario(config, model={"hybrid_swa": True}, draft=draft, policies={"routing": routing}, **memory)


@settings(max_examples=200, deadline=None)
@given(scenarios())
def test_plans_keep_their_promises(data: dict[str, Any]) -> None:
    shown = simkv.plan(data)
    assume(shown.infeasible is None)
    page = shown.page_size
    capped = data["memory"].get("max_total_tokens") is not None
    broken = capped and shown.configurator == "SWARequestCapPoolConfigurator"
    for tokens in sizes(shown):
        assert tokens is None or tokens % page == 0 or (broken and tokens == data["memory"]["max_total_tokens"])
    assert sum(pool.budgeted_bytes for pool in shown.pools) <= shown.kv_bytes or broken
    assert shown.overcommit_bytes == sum(p.bytes for p in shown.pools) - sum(p.budgeted_bytes for p in shown.pools)
    for pool in shown.pools:
        assert pool.rows == (pool.tokens + page if pool.layers else 0)
        assert pool.bytes == pool.rows * pool.bytes_per_token
    assert shown.padding_bytes == sum(page * pool.bytes_per_token for pool in shown.pools if pool.layers)


@settings(max_examples=100, deadline=None)
@given(scenarios(), st.integers(0, 10**7))
def test_more_bytes_never_give_fewer_tokens(data: dict[str, Any], more: int) -> None:
    small = simkv.plan(data)
    assume(small.infeasible is None)
    large = with_memory(data, "kv_bytes", data["memory"]["kv_bytes"] + more)
    assert large.infeasible is None
    for before, after in zip(sizes(small), sizes(large), strict=True):
        assert (before is None) == (after is None)
        assert before is None or after is None or before <= after


@settings(max_examples=60, deadline=None)
@given(scenarios(), st.integers(1, 10**5))
def test_remedies_of_any_refusal_are_the_smallest(data: dict[str, Any], kv_bytes: int) -> None:
    data = data | {"memory": data["memory"] | {"kv_bytes": kv_bytes}}
    shown = simkv.plan(data)
    assume(shown.infeasible is not None)
    assert_smallest(data, shown)


# ------------------------------------------------------------------------------------------ the engine's own answers
def written(case: dict[str, Any]) -> dict[str, Any]:
    """A recorded input as a scenario."""
    given_, model = case["input"], case["input"]["model"]
    config: dict[str, Any] = {
        "num_hidden_layers": model["num_layers"],
        "num_attention_heads": model["num_kv_heads"],
        "num_key_value_heads": model["num_kv_heads"],
        "head_dim": model["head_dim"],
        "v_head_dim": model.get("v_head_dim", model["head_dim"]),
        "hidden_size": 64,
        "max_position_embeddings": model["context_len"],
    }
    table: dict[str, Any] = {"tp_size": given_.get("tp_size", 1), "kv_cache_dtype": given_.get("kv_dtype", "bf16")}
    if "swa_layer_ids" in model:
        config |= layer_types(model)
        config |= {key: model[key] for key in ("swa_head_dim", "swa_v_head_dim", "mtp_local_layer_ids") if key in model}
        config["swa_num_key_value_heads"] = model.get("swa_num_kv_heads", model["num_kv_heads"])
        table |= {"hybrid_swa": True, "cache_window": model["sliding_window"]}
    memory = {
        "kv_bytes": given_["available_bytes"],
        "max_running_requests": given_.get("max_running_requests", "pool"),
        "chunked_prefill_size": given_.get("chunked_prefill_size", -1),
    }
    shared = (
        "page_size",
        "swa_full_tokens_ratio",
        "max_total_tokens",
        "disable_radix_cache",
        "disable_overlap_schedule",
    )
    memory |= {key: given_[key] for key in shared if key in given_}
    if "eviction_interval" in given_:
        memory["swa_eviction_interval"] = given_["eviction_interval"]
    data = {"model": {"config": config, **table}, "memory": memory, "policies": {"routing": "depth-owned"}}
    if "spec" in given_:
        data["draft"] = written_draft(case, config)
    return data


def layer_types(model: dict[str, Any]) -> dict[str, Any]:
    sliding = set(model["swa_layer_ids"])
    kinds = ["sliding_attention" if i in sliding else "full_attention" for i in range(model["num_layers"])]
    return {"layer_types": kinds, "sliding_window": model["sliding_window"]}


def written_draft(case: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """The draft section; ``config`` of the target gains what its MTP layers state."""
    given_, spec, facts = case["input"], case["input"]["spec"], case["input"].get("draft_model")
    draft: dict[str, Any] = {
        "algorithm": spec["algorithm"],
        "num_steps": spec["num_steps"],
        "eagle_topk": spec["topk"],
        "num_draft_tokens": spec["num_draft_tokens"],
        "num_layers": given_.get("eagle_draft_num_layers"),
    }
    if "swa_layer_ids" in given_["model"]:
        draft["num_swa_layers"] = given_.get("eagle_draft_swa_num_layers", 0)
    if facts is None:
        return draft
    draft["enable_multi_layer_eagle"] = given_["draft_model_idx"] != [None]
    if "num_nextn_predict_layers" in facts:
        config["num_nextn_predict_layers"] = facts["num_nextn_predict_layers"]
        stand_in = {
            "MiMoV2MTP": "MiMoV2FlashForCausalLM",
            "Step3p5MTP": "Step3p5ForCausalLM",
            "InklingForConditionalGenerationMTP": "InklingForConditionalGeneration",
        }
        if facts["architecture"] in stand_in:
            config["architectures"] = [stand_in[facts["architecture"]]]
        return draft | {
            "swa_attention_layer_ids": facts["swa_layer_ids"],
            "full_attention_layer_ids": facts["full_layer_ids"],
            "mtp_layer_id_is_depth": facts["mtp_layer_id_is_depth"],
        }
    own = {
        "num_hidden_layers": facts["num_layers"],
        "num_attention_heads": facts["num_kv_heads"],
        "num_key_value_heads": facts["num_kv_heads"],
        "head_dim": facts["head_dim"],
        "hidden_size": 64,
    }
    if facts.get("is_hybrid_swa"):
        own |= layer_types(facts) | {"is_hybrid_swa": True}
    return draft | {"config": own}


RECORDED = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]


def recorded(kind: str) -> list[Any]:
    return [pytest.param(case, id=case["name"]) for case in RECORDED if case["kind"] == kind]


@pytest.mark.parametrize("case", recorded("sizing"))
def test_recorded_sizing(case: dict[str, Any]) -> None:
    shown, wanted = simkv.plan(written(case)), case["result"]
    error = shown.infeasible.engine_error if shown.infeasible else None
    assert (shown.configurator, error) == (wanted["configurator"], wanted.get("error"))
    assert shown.bytes_per_token == wanted["cell_size"]
    if "full_layers_num" in wanted:
        assert shown.layers == {"full": wanted["full_layers_num"], "swa": wanted["swa_layers_num"]}
        names = ("full", "swa", "swa_full")
        assert shown.draft_layers == {name: wanted[f"draft_{name}_layers_num"] for name in names}
    if error is None:
        keys = ("max_total_num_tokens", "full_max_total_num_tokens", "swa_max_total_num_tokens", "max_running_requests")
        assert {key: getattr(shown, key) for key in keys} == {key: wanted[key] for key in keys}


def described(worker: str, pool: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Worker, side, layers, rows, bytes of the sub-pools that hold a layer, and how the SWA side is indexed."""
    if "full" not in pool:
        return [(worker, "full", pool["layers"], pool["rows"], pool["bytes"], None)]
    # Every table of an all-SWA target is the identity.
    mappings = {"full": None, "swa": "identity" if pool["mapping_is_identity"] else "target"}
    return [
        (worker, side, pool[side]["layers"], pool[side]["rows"], pool[side]["bytes"], mapping)
        for side, mapping in mappings.items()
        if pool[side]["layers"]
    ]


@pytest.mark.parametrize("case", recorded("draft_pool"))
def test_recorded_draft_pools(case: dict[str, Any]) -> None:
    shown, wanted = simkv.plan(written(case)), case["result"]
    if "error" in wanted:
        assert shown.infeasible is not None
        assert shown.infeasible.engine_error == wanted["error"]
        return
    assert shown.infeasible is None
    assert {key: getattr(shown, key) for key in wanted["config"]} == wanted["config"]
    expected = described("target", wanted["target_pool"])
    for number, draft in enumerate(wanted["drafts"]):
        expected += described(f"draft{number}", draft["pool"])
    got = [
        (p.worker, p.pool, p.layers, p.rows, p.bytes, p.mapping if p.pool == "swa" else None)
        for p in shown.pools
        if p.layers
    ]
    if case["input"]["model"]["full_layer_ids"] == []:
        got, expected = [entry[:-1] for entry in got], [entry[:-1] for entry in expected]
    assert got == expected


@pytest.mark.parametrize("case", recorded("sizes"))
def test_recorded_lengths(case: dict[str, Any]) -> None:
    given_, page = case["input"]["spec"], case["input"]["page_size"]
    spec = None
    if given_:
        spec = Spec(given_["algorithm"], given_["num_steps"], given_["topk"], given_["num_draft_tokens"])
    ahead = reserve.alloc_reserve_per_decode(spec, page)
    held = [allocated for _, allocated in case["input"]["reqs"]]
    then = [int(reserve.decode_alloc_len(done, allocated, ahead, page)) for done, allocated in case["input"]["reqs"]]
    assert {
        "alloc_len_per_decode": reserve.alloc_len_per_decode(spec, page),
        "alloc_reserve_per_decode": ahead,
        "req_to_token_extra_context_len": reserve.extra_context_len(spec, page),
        "spec_v1_alloc_len_per_request": reserve.spec_v1_alloc_len(spec, page),
        "decode_alloc_lens": [held, then, sum(then) - sum(held)],
    } == case["result"]


@pytest.mark.parametrize("radix", [True, False])
def test_a_split_model_without_a_window_is_sized_but_not_served(radix: bool) -> None:
    # The engine builds the pools, then its tree refuses: "requires a positive sliding_window_size" (swa.py:86).
    one = simkv.load(
        {
            **scenario(model={"cache_window": 0}, disable_radix_cache=radix),
            "workload": {"kind": "poisson", "rate": 1.0, "num_requests": 1, "input_tokens": 9, "output_tokens": 2},
        }
    )
    told = one.plan()
    assert told.infeasible is None and any("window of at least 1 token" in note for note in told.notes)
    with pytest.raises(InfeasibleError, match=r"cache_window >= 1"):
        simkv.simulate(one)
