"""Where each draft depth goes under the three rules, what it costs, and where budget and allocation disagree."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import EXAMPLE

import simkv
from simkv import catalogue
from simkv.engines.base import Plan, PoolPlan
from simkv.errors import ModelError

GIB = 1 << 30
RULES = ("legacy", "generalized", "depth-owned")

F, S = 4096, 2048
BLOCK = {"swa_attention_layer_ids": [0], "full_attention_layer_ids": [], "mtp_layer_id_is_depth": False}


def plan(
    config: Any = None,
    *,
    draft: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    routing: str | None = None,
    faults: tuple[str, ...] = (),
    **memory: Any,
) -> Plan:
    """A multi-layer MTP draft of three steps, 60 GiB, pages of 64 and ratio 0.1 unless told otherwise."""
    policies: dict[str, Any] = {"faults": list(faults)}
    if routing is not None:
        policies["routing"] = routing
    return simkv.plan(
        {
            "model": {"config": EXAMPLE if config is None else config, **(model or {})},
            "memory": {"kv_bytes": 60 * GIB, "page_size": 64, "swa_full_tokens_ratio": 0.1} | memory,
            "draft": {"algorithm": "EAGLE", "num_steps": 3, "enable_multi_layer_eagle": True} | (draft or {}),
            "policies": policies,
        }
    )


def local(*ids: int) -> dict[str, Any]:
    return EXAMPLE | {"mtp_local_layer_ids": list(ids)}


def depths(full: list[int], swa: list[int]) -> dict[str, Any]:
    """Draft facts of a class whose layer ids are depths."""
    return {"swa_attention_layer_ids": swa, "full_attention_layer_ids": full, "mtp_layer_id_is_depth": True}


def floor(tokens: float, page: int = 64) -> int:
    return int(tokens) // page * page


def sized(cell: float, *, ratio: float = 0.1, kv: int = 60 * GIB, page: int = 64) -> tuple[int, int]:
    """Full and SWA tokens of a price."""
    full = floor(kv // cell, page)
    return full, floor(full * ratio, page)


def drafts(shown: Plan) -> list[PoolPlan]:
    return [pool for pool in shown.pools if pool.worker != "target"]


def row(pool: PoolPlan) -> tuple[Any, ...]:
    return (pool.worker, pool.pool, pool.layers, pool.tokens, pool.mapping)


def codes(shown: Plan) -> dict[str, int]:
    """Bytes by code; every code is reported once in the cases below."""
    found: dict[str, int] = {}
    for one in shown.disagreements:
        found[one.code] = found.get(one.code, 0) + one.bytes
    return found


def terms(shown: Plan) -> tuple[int, int, int]:
    return shown.draft_layers["full"], shown.draft_layers["swa"], shown.draft_layers["swa_full"]


def check_pools(shown: Plan) -> None:
    """What holds of every plan: rows, bytes and the identity of the over-commit."""
    for pool in shown.pools:
        assert pool.rows == (pool.tokens + shown.page_size if pool.layers else 0)
        assert pool.bytes == pool.rows * pool.bytes_per_token
    assert shown.overcommit_bytes == sum(p.bytes for p in shown.pools) - sum(p.budgeted_bytes for p in shown.pools)


# ------------------------------------------------------------------------------------------ Inkling
def inkling(ids: list[int] | None, *, name: str = "inkling", **facts: Any) -> Plan:
    config = {key: value for key, value in catalogue.config(name).items() if key != "mtp_local_layer_ids"}
    if ids is not None:
        config["mtp_local_layer_ids"] = ids
    facts = {"kv_bytes": 100 * GIB, "page_size": 128, "swa_full_tokens_ratio": None} | facts
    return plan(config, model={"tp_size": 8, "kv_cache_dtype": "fp8_e4m3"}, draft={"num_steps": 8}, **facts)


@pytest.mark.parametrize("routing", RULES)
@pytest.mark.parametrize(
    ("name", "swa_bytes", "full_layers", "swa_layers"), [("inkling", 512, 11, 55), ("inkling-small", 256, 7, 35)]
)
def test_inkling_depths(routing: str, name: str, swa_bytes: int, full_layers: int, swa_layers: int) -> None:
    rings = [0, 2, 4, 5, 6, 7]
    shown = inkling(rings, name=name, routing=routing)
    cell = 256 * (full_layers + 2) + swa_bytes * 6 + 0.1 * swa_bytes * swa_layers
    full, swa = sized(cell, kv=100 * GIB, page=128)
    assert (shown.full_max_total_num_tokens, shown.swa_max_total_num_tokens) == (full, swa)
    assert terms(shown) == (2, 0, 6)
    assert [row(pool) for pool in drafts(shown)] == [
        (f"draft{d}", "swa", 1, full, "identity") if d in rings else (f"draft{d}", "full", 1, full, "target")
        for d in range(8)
    ]
    price = {"swa": swa_bytes, "full": 256}
    for pool in drafts(shown):
        assert pool.rows == full + 128
        assert pool.bytes == (full + 128) * price[pool.pool]
        assert pool.budgeted_bytes == full * price[pool.pool]
    # Nothing but the padding pages is beyond the budget.
    padding = 128 * (256 * full_layers + swa_bytes * swa_layers + 2 * 256 + 6 * swa_bytes)
    assert shown.overcommit_bytes == shown.padding_bytes == padding
    assert shown.disagreements == ()
    check_pools(shown)


def test_inkling_depth_bytes_of_the_reported_server() -> None:
    # 21,638,400 tokens, one byte a value, 8 ranks: K and V of a ring take 5.16 GiB each, those of a full depth half.
    shown = inkling([0, 2, 4, 5, 6, 7], max_total_tokens=21_638_400, kv_bytes=400 * GIB)
    assert shown.max_total_num_tokens == 21_638_400 - 21_638_400 % 128
    by_depth = {pool.worker: pool.bytes / GIB for pool in drafts(shown)}
    assert by_depth["draft0"] == pytest.approx(10.32, abs=0.01)
    assert by_depth["draft1"] == pytest.approx(5.16, abs=0.01)


@pytest.mark.parametrize("routing", RULES)
def test_inkling_with_an_empty_list(routing: str) -> None:
    shown = inkling([], routing=routing)
    assert terms(shown) == (8, 0, 0)
    full = shown.full_max_total_num_tokens
    assert [row(pool) for pool in drafts(shown)] == [(f"draft{d}", "full", 1, full, "target") for d in range(8)]
    assert codes(shown) == {"K6": 0}
    assert shown.overcommit_bytes == shown.padding_bytes


def test_inkling_without_the_list_is_over_committed_where_the_class_flag_routes() -> None:
    shown = inkling(None, routing="depth-owned")
    full, swa = sized(256 * 11 + 0.1 * 512 * (55 + 8), kv=100 * GIB, page=128)
    assert terms(shown) == (0, 8, 0)
    assert [row(pool) for pool in drafts(shown)] == [(f"draft{d}", "full", 1, full, "target") for d in range(8)]
    assert codes(shown) == {"K3": 8 * (256 * full - 512 * swa)}
    assert shown.overcommit_bytes - shown.padding_bytes == codes(shown)["K3"]


def test_inkling_without_the_list_under_the_older_rules() -> None:
    # By metadata no runner owns its depth: the first layer id is full.
    shown = inkling(None, routing="generalized")
    full = shown.full_max_total_num_tokens
    assert terms(shown) == (0, 8, 0)
    assert [row(pool) for pool in drafts(shown)] == [(f"draft{d}", "full", 1, full, "target") for d in range(8)]
    # By name every draft layer is charged as full, and allocated so.
    shown = inkling(None, routing="legacy")
    assert terms(shown) == (8, 0, 0)
    assert shown.overcommit_bytes == shown.padding_bytes


def test_inkling_with_fewer_runners_than_depths() -> None:
    shown = plan("inkling", model={"tp_size": 8}, page_size=128, swa_full_tokens_ratio=None)
    full = shown.full_max_total_num_tokens
    assert full == sized(512 * 13 + 1024 * 6 + 0.1 * 1024 * 55, page=128)[0]
    # Depths 3 to 7 are charged (a full one, four rings) and never built.
    assert codes(shown) == {"K7": -(512 + 4 * 1024) * full}
    assert shown.overcommit_bytes - shown.padding_bytes == codes(shown)["K7"]


def test_inkling_as_a_single_runner_is_an_ordinary_block() -> None:
    shown = plan(
        "inkling",
        model={"tp_size": 8},
        draft={"enable_multi_layer_eagle": False},
        page_size=128,
        swa_full_tokens_ratio=None,
    )
    full, swa = sized(512 * 13 + 1024 * 6 + 0.1 * 1024 * 55, page=128)
    assert [row(pool) for pool in drafts(shown)] == [("draft0", "swa", 1, swa, "target")]
    assert codes(shown) == {"K4": 1024 * swa - (2 * 512 + 6 * 1024) * full}


# ------------------------------------------------------------------------------------------ blocks at layer 0
@pytest.mark.parametrize("routing", RULES)
def test_mimo_builds_three_runners_that_nothing_is_charged_for(routing: str) -> None:
    shown = simkv.plan(
        {
            "model": {"config": "mimo-v2-flash", "tp_size": 4},
            "memory": {"kv_bytes": 60 * GIB, "page_size": 64},
            "draft": {"algorithm": "EAGLE"},
            "policies": {"routing": routing},
        }
    )
    # One head of 192 + 128 in a full layer, two in a sliding one; 9 and 39 layers; ratio 0.8.
    full, swa = sized(640 * 9 + 0.8 * 1280 * 39, ratio=0.8)
    assert terms(shown) == (0, 0, 0)
    assert [row(pool) for pool in drafts(shown)] == [(f"draft{d}", "swa", 1, swa, "target") for d in range(3)]
    for pool in drafts(shown):
        assert (pool.rows, pool.bytes, pool.budgeted_bytes) == (swa + 64, (swa + 64) * 1280, 0)
    assert codes(shown) == {"K7": 3 * 1280 * swa}
    assert shown.overcommit_bytes == 3 * 1280 * swa + 64 * (640 * 9 + 1280 * (39 + 3))
    assert full == shown.full_max_total_num_tokens
    assert any("enable_multi_layer_eagle" in note for note in shown.notes)
    check_pools(shown)


def test_mimo_bytes_of_the_uncharged_runners() -> None:
    shown = simkv.plan(
        {
            "model": {"config": "mimo-v2-flash", "tp_size": 4},
            "memory": {"kv_bytes": 60 * GIB, "page_size": 64},
            "draft": {"algorithm": "EAGLE"},
        }
    )
    assert (shown.full_max_total_num_tokens, shown.swa_max_total_num_tokens) == (1_409_792, 1_127_808)
    assert codes(shown) == {"K7": 4_330_782_720}


@pytest.mark.parametrize("routing", RULES)
def test_step_blocks_live_in_the_targets_window(routing: str) -> None:
    shown = simkv.plan(
        {
            "model": {"config": "step-3.5-flash", "tp_size": 8},
            "memory": {"kv_bytes": 60 * GIB, "page_size": 64},
            "draft": {"algorithm": "EAGLE"},
            "policies": {"routing": routing},
        }
    )
    # One head of 256 everywhere; 12 full and 33 sliding layers. The oldest rule charges the blocks as full.
    charged = (3, 0, 0) if routing == "legacy" else (0, 3, 0)
    cell = 512 * (12 + charged[0]) + 0.8 * 512 * (33 + charged[1])
    full, swa = sized(cell, ratio=0.8)
    assert terms(shown) == charged
    assert [row(pool) for pool in drafts(shown)] == [(f"draft{d}", "swa", 1, swa, "target") for d in range(3)]
    budget = 512 * (full if routing == "legacy" else swa)
    assert {pool.budgeted_bytes for pool in drafts(shown)} == {budget}
    assert shown.overcommit_bytes - shown.padding_bytes == 3 * (512 * swa - budget)
    assert codes(shown) == ({"K4": 3 * 512 * (swa - full)} if routing == "legacy" else {})
    check_pools(shown)


# ------------------------------------------------------------------------------------------ other drafts
@pytest.mark.parametrize("routing", RULES)
def test_a_dense_draft_of_a_hybrid_target_follows_full_slots(routing: str) -> None:
    shown = simkv.plan(
        {
            "model": {"config": "gpt-oss-120b", "tp_size": 2},
            "memory": {"kv_bytes": 60 * GIB, "page_size": 64},
            "draft": {"algorithm": "EAGLE3", "config": "draft-gpt-oss-120b-eagle3"},
            "policies": {"routing": routing},
        }
    )
    full, swa = sized(1024 * (18 + 1) + 0.8 * 1024 * 18, ratio=0.8)
    assert terms(shown) == (1, 0, 0)
    assert (shown.full_max_total_num_tokens, shown.swa_max_total_num_tokens) == (full, swa)
    (pool,) = drafts(shown)
    assert row(pool) == ("draft0", "full", 1, full, "none")
    assert (pool.rows, pool.bytes, pool.budgeted_bytes) == (full + 64, (full + 64) * 1024, full * 1024)
    assert shown.disagreements == ()


@pytest.mark.parametrize("routing", RULES)
def test_a_model_opted_in_keeps_its_trunk_ids_in_draft_mode(routing: str) -> None:
    config = catalogue.config("gemma-3-27b") | {"num_nextn_predict_layers": 1}
    shown = plan(
        config,
        model={"hybrid_swa": True, "tp_size": 4},
        draft={"num_steps": 1, "enable_multi_layer_eagle": True},
        routing=routing,
        swa_full_tokens_ratio=0.8,
    )
    # 4 heads of 256 in all layers; layer 0 of the trunk slides.
    charged = (1, 0, 0) if routing == "legacy" else (0, 1, 0)
    full, swa = sized(2048 * (10 + charged[0]) + 0.8 * 2048 * (52 + charged[1]), ratio=0.8)
    assert terms(shown) == charged
    assert (shown.full_max_total_num_tokens, shown.swa_max_total_num_tokens) == (full, swa)
    assert [row(pool) for pool in drafts(shown)] == [("draft0", "swa", 1, swa, "target")]
    assert drafts(shown)[0].budgeted_bytes == 2048 * (full if routing == "legacy" else swa)


def test_an_ordinary_runner_owns_every_mtp_layer() -> None:
    # Without a class that says otherwise a draft runner has num_nextn_predict_layers layers
    # (model_runner_components/layer_setup.py:212-228): ids 0 and 1 of the trunk slide.
    config = catalogue.config("gemma-3-27b") | {"num_nextn_predict_layers": 2}
    shown = plan(config, model={"hybrid_swa": True}, draft={"num_steps": 2, "enable_multi_layer_eagle": False})
    assert [pool.layers for pool in drafts(shown)] == [2]


SELF_MADE = {key: value for key, value in EXAMPLE.items() if key != "layer_types"} | {
    "architectures": ["SomethingForCausalLM"],
    "hybrid_layer_pattern": [1, 1, 0] * 16,
    "mtp_local_layer_ids": [0, 1],
}


def test_self_made_hybrid_under_metadata_owns_its_depths() -> None:
    shown = plan(SELF_MADE, routing="generalized")
    full, _ = sized(F * (16 + 1) + S * 2 + 0.1 * S * 32)
    assert shown.layers == {"full": 16, "swa": 32}
    assert terms(shown) == (1, 0, 2)
    assert [row(pool) for pool in drafts(shown)] == [
        ("draft0", "swa", 1, full, "identity"),
        ("draft1", "swa", 1, full, "identity"),
        ("draft2", "full", 1, full, "target"),
    ]
    assert shown.disagreements == ()
    assert shown.overcommit_bytes == shown.padding_bytes


@pytest.mark.parametrize(("routing", "charged"), [("legacy", (3, 0, 0)), ("depth-owned", (1, 0, 2))])
def test_self_made_hybrid_is_an_ordinary_block_by_name_and_by_flag(routing: str, charged: tuple[int, ...]) -> None:
    shown = plan(SELF_MADE, draft=BLOCK, routing=routing)
    full, swa = sized(F * (16 + charged[0]) + S * charged[2] + 0.1 * S * 32)
    assert terms(shown) == charged
    assert [row(pool) for pool in drafts(shown)] == [(f"draft{d}", "swa", 1, swa, "target") for d in range(3)]
    stranded = 3 * S * swa - (F * charged[0] + S * charged[2]) * full
    assert shown.overcommit_bytes - shown.padding_bytes == stranded
    assert codes(shown) == {"K4": stranded}


# ------------------------------------------------------------------------------------------ the default rule
def test_default_rule_agrees_with_the_newest_on_every_catalogue_model() -> None:
    compared = []
    for name in catalogue.names():
        if name.startswith("draft-"):
            continue
        facts = simkv.Arch.from_config(name)
        for multi in (None, True, False):
            for steps in (1, 3, facts.num_nextn_predict_layers or 1):
                data = {
                    "model": {"config": name, "tp_size": 8, "context_length": 8192},
                    "memory": {"kv_bytes": 100 * GIB, "page_size": 64},
                    "draft": {"algorithm": "EAGLE", "num_steps": steps, "enable_multi_layer_eagle": multi},
                }
                try:
                    default = simkv.plan(data)
                except ModelError:
                    assert facts.unsupported
                    continue
                newest = simkv.plan(data | {"policies": {"routing": "depth-owned"}})
                assert default.routing != newest.routing
                assert default.to_dict() | {"routing": ""} == newest.to_dict() | {"routing": ""}
                compared.append(name)
    assert {"inkling", "inkling-small", "mimo-v2-flash", "step-3.5-flash", "glm-4.5", "gpt-oss-120b"} <= set(compared)


# ------------------------------------------------------------------------------------------ K1 to K11
def test_k1_ring_charged_full_pool_allocated() -> None:
    shown = plan(local(0, 1, 2), draft=depths([1], [0, 2]), routing="depth-owned")
    full, _ = sized(F * 12 + S * 3 + 0.1 * S * 36)
    assert codes(shown) == {"K1": (F - S) * full}
    assert codes(shown)["K1"] / GIB == pytest.approx(1.96, abs=0.005)
    assert [row(pool)[1:] for pool in drafts(shown)] == [
        ("swa", 1, full, "identity"),
        ("full", 1, full, "target"),
        ("swa", 1, full, "identity"),
    ]
    assert shown.overcommit_bytes - shown.padding_bytes == codes(shown)["K1"]


def test_k2_full_charged_ring_allocated() -> None:
    shown = plan(local(0, 2), draft=depths([], [0, 1, 2]), routing="depth-owned")
    assert codes(shown) == {"K2": (S - F) * 995_456}
    assert codes(shown)["K2"] / GIB == pytest.approx(-1.90, abs=0.005)
    assert shown.overcommit_bytes - shown.padding_bytes == codes(shown)["K2"]


def test_k3_routed_by_depth_without_the_metadata() -> None:
    shown = plan(draft=depths([1], [0, 2]), routing="depth-owned")
    assert codes(shown) == {"K3": (2 * S + F) * 1_127_488 - 3 * S * 112_704}
    assert codes(shown)["K3"] / GIB == pytest.approx(7.96, abs=0.005)
    assert shown.overcommit_bytes - shown.padding_bytes == codes(shown)["K3"]


@pytest.mark.parametrize("routing", ["generalized", "legacy"])
def test_k3_needs_a_rule_that_routes_by_the_class_flag(routing: str) -> None:
    assert "K3" not in codes(plan(draft=depths([1], [0, 2]), routing=routing))


def test_k4_rings_charged_ordinary_blocks_allocated() -> None:
    shown = plan(local(0, 1, 2), draft=BLOCK, routing="depth-owned")
    full, swa = sized(F * 12 + S * 3 + 0.1 * S * 36)
    assert codes(shown) == {"K4": 3 * S * (swa - full)}
    assert codes(shown)["K4"] / GIB == pytest.approx(-5.29, abs=0.005)
    assert [row(pool)[1:] for pool in drafts(shown)] == [("swa", 1, swa, "target")] * 3
    assert shown.overcommit_bytes - shown.padding_bytes == codes(shown)["K4"]


def test_k5_ids_beyond_the_depths_are_ignored() -> None:
    shown = plan(local(1, 40, 41), draft=depths([0, 2], [1]), routing="depth-owned")
    assert terms(shown) == (2, 0, 1)
    assert codes(shown) == {"K5": 0}
    assert "[40, 41]" in shown.disagreements[0].detail
    assert shown.overcommit_bytes == shown.padding_bytes


def test_k5_mixes_with_the_kinds_it_hides() -> None:
    # Trunk ids where depths were meant: all three depths are charged as full, two are rings.
    shown = plan(local(45, 46), draft=depths([1], [0, 2]), routing="depth-owned")
    full, _ = sized(F * 15 + 0.1 * S * 36)
    assert terms(shown) == (3, 0, 0)
    assert codes(shown) == {"K2": 2 * (S - F) * full, "K5": 0}


def test_k6_an_empty_list_is_not_a_missing_key() -> None:
    empty = plan(local(), draft=depths([0, 1, 2], []), routing="depth-owned")
    missing = plan(draft=BLOCK, routing="depth-owned")
    assert codes(empty) == {"K6": 0}
    assert (terms(empty), terms(missing)) == ((3, 0, 0), (0, 3, 0))
    assert empty.bytes_per_token - missing.bytes_per_token == pytest.approx(3 * (F - 0.1 * S))


def test_k7_more_runners_than_charged_layers() -> None:
    shown = plan(draft=BLOCK | {"num_layers": 1}, routing="depth-owned")
    full, swa = sized(F * 12 + 0.1 * S * 37)
    assert (full, swa) == (1_135_616, 113_536)
    assert codes(shown) == {"K7": 2 * S * swa}
    assert codes(shown)["K7"] / GIB == pytest.approx(0.43, abs=0.005)
    assert shown.overcommit_bytes - shown.padding_bytes == codes(shown)["K7"]


def test_k7_fewer_runners_than_charged_layers() -> None:
    shown = plan(draft=BLOCK | {"num_steps": 2}, routing="depth-owned")
    assert codes(shown) == {"K7": -S * 112_704}
    unbuilt = drafts(shown)[-1]
    assert (unbuilt.layers, unbuilt.rows, unbuilt.bytes, unbuilt.budgeted_bytes) == (0, 0, 0, S * 112_704)


HYBRID_DRAFT = EXAMPLE | {
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "num_nextn_predict_layers": None,
}


def hybrid_draft(**changes: Any) -> Plan:
    """A separate draft of one sliding and one full layer, charged as one of each."""
    return plan(draft={"algorithm": "STANDALONE", "config": HYBRID_DRAFT | changes, "enable_multi_layer_eagle": False})


def test_a_separate_hybrid_draft_shares_the_targets_table() -> None:
    shown = hybrid_draft()
    full, swa = sized(F * 13 + 0.1 * S * 37)
    assert terms(shown) == (1, 1, 0)
    assert [row(pool) for pool in drafts(shown)] == [
        ("draft0", "full", 1, full, "target"),
        ("draft0", "swa", 1, swa, "target"),
    ]
    assert sum(pool.budgeted_bytes for pool in drafts(shown)) == F * full + S * swa
    assert shown.overcommit_bytes == shown.padding_bytes


def test_a_draft_charged_as_it_is_allocated_has_no_code() -> None:
    assert hybrid_draft().disagreements == ()


def test_k8_full_layers_of_another_geometry() -> None:
    shown = hybrid_draft(num_key_value_heads=16)
    full, swa = sized(F * 13 + 0.1 * S * 37)
    assert codes(shown)["K8"] == F * full
    assert [(pool.pool, pool.tokens, pool.bytes_per_token) for pool in drafts(shown)] == [
        ("full", full, 2 * F),
        ("swa", swa, S),
    ]
    assert shown.overcommit_bytes - shown.padding_bytes == F * full


def test_k8_sliding_layers_of_another_geometry() -> None:
    shown = hybrid_draft(swa_num_key_value_heads=8)
    _, swa = sized(F * 13 + 0.1 * S * 37)
    assert "K8" in codes(shown)
    assert shown.overcommit_bytes - shown.padding_bytes == S * swa


def test_k8_counts_the_bytes_of_sliding_layers() -> None:
    shown = hybrid_draft(swa_num_key_value_heads=8)
    assert codes(shown)["K8"] == shown.overcommit_bytes - shown.padding_bytes


def test_k9_a_depth_in_neither_list() -> None:
    shown = plan(local(0), draft=depths([1], [0]), routing="depth-owned")
    assert list(codes(shown)) == ["K9"]
    empty = drafts(shown)[2]
    assert (empty.layers, empty.rows, empty.bytes) == (0, 0, 0)
    # The older rules call every other depth full.
    assert drafts(plan(local(0), draft=depths([1], [0]), routing="generalized"))[2].layers == 1


@pytest.mark.parametrize("architecture", ["MiMoV2FlashForCausalLM", "Step3p5ForCausalLM"])
def test_generalized_on_a_block_at_layer_zero(architecture: str) -> None:
    shown = plan(local(0, 1, 2) | {"architectures": [architecture]}, routing="generalized")
    full, _ = sized(F * 12 + S * 3 + 0.1 * S * 36)
    # A ring for the first depth; the others are taken for full although the block asks for layer 0.
    assert [row(pool)[1:] for pool in drafts(shown)] == [
        ("swa", 1, full, "identity"),
        ("full", 1, full, "target"),
        ("full", 1, full, "target"),
    ]
    assert [one.code for one in shown.disagreements] == ["K1", "K9", "K1", "K9"]
    # The class flag closes it: ordinary blocks, stranded memory.
    assert set(codes(plan(local(0, 1, 2) | {"architectures": [architecture]}, routing="depth-owned"))) == {"K4"}


def test_k10_draft_pool_sized_before_the_split() -> None:
    shown = plan(local(0, 1, 2), draft=depths([], [0, 1, 2]), routing="depth-owned", faults=("draft-pool-pre-split",))
    before = floor(60 * GIB // (F * 12 + S * 36))
    assert {pool.tokens for pool in drafts(shown)} == {before}
    assert before < (shown.full_max_total_num_tokens or 0)
    assert [one.code for one in shown.disagreements] == ["K10"] * 3


def test_k10_names_full_depths_too() -> None:
    shown = plan(local(), draft=depths([0, 1, 2], []), routing="depth-owned", faults=("draft-pool-pre-split",))
    assert [one.code for one in shown.disagreements].count("K10") == 3


def test_k10_depths_of_an_all_sliding_target() -> None:
    config = local(0, 1, 2) | {"layer_types": ["sliding_attention"] * 48}
    shown = plan(config, draft=depths([], [0, 1, 2]), routing="depth-owned", page_size=1)
    assert [one.code for one in shown.disagreements] == ["K10"] * 3


def test_rings_of_an_all_sliding_target_hold_no_token() -> None:
    config = local(0, 1, 2) | {"layer_types": ["sliding_attention"] * 48}
    shown = plan(config, draft=depths([], [0, 1, 2]), routing="depth-owned", page_size=1)
    assert {(pool.tokens, pool.rows) for pool in drafts(shown)} == {(0, 1)}


@pytest.mark.parametrize(("window", "outlives"), [(64, False), (128, False), (129, True), (4096, True)])
def test_k11_the_drafts_window_outlives_the_targets(window: int, outlives: bool) -> None:
    assert ("K11" in codes(hybrid_draft(sliding_window=window))) is outlives


def test_k11_compares_windows_of_the_same_kind() -> None:
    shown = plan(
        "gpt-oss-120b",
        draft={"algorithm": "STANDALONE", "config": "gpt-oss-20b", "enable_multi_layer_eagle": False},
    )
    assert "K11" not in codes(shown)


def named(shown: Plan) -> bool:
    """Whether the codes account for every byte beyond the padding pages, once."""
    return shown.overcommit_bytes - shown.padding_bytes == sum(codes(shown).values())


def test_every_byte_beyond_the_padding_has_a_code() -> None:
    assert named(plan(draft=BLOCK, routing="legacy"))
    assert named(plan(local(), draft=BLOCK, routing="depth-owned"))


def test_full_layers_charged_as_sliding_have_a_code() -> None:
    assert named(inkling(None, routing="generalized"))


@pytest.mark.parametrize("case", ["K3 and K7", "K4 and K7", "K8"])
def test_no_byte_has_two_codes(case: str) -> None:
    made = {
        "K3 and K7": lambda: plan(draft=depths([1], [0, 2]) | {"num_layers": 1}, routing="depth-owned"),
        "K4 and K7": lambda: plan(local(0, 1, 2), draft=BLOCK | {"num_steps": 2}, routing="depth-owned"),
        "K8": lambda: hybrid_draft(num_key_value_heads=16),
    }
    shown = made[case]()
    assert set(codes(shown)) == set(case.split(" and "))
    assert named(shown)


# ------------------------------------------------------------------------------------------ drafts with a config
@pytest.mark.parametrize("name", ["mimo-v2-flash", "step-3.5-flash", "inkling"])
def test_a_targets_own_checkpoint_as_draft_is_its_mtp_head(name: str) -> None:
    # The draft-mode rewrite asks for the architecture, not for the path (configs/model_config.py:1094-1125).
    facts: dict[str, Any] = {"model": {"tp_size": 8}, "page_size": 128}
    shown = plan(name, draft={"config": name}, **facts)
    alone = plan(name, **facts)
    assert [(p.pool, p.layers, p.mapping) for p in drafts(shown) if p.layers] == [
        (p.pool, p.layers, p.mapping) for p in drafts(alone) if p.layers
    ]


def test_a_target_without_split_has_a_draft_without_split() -> None:
    shown = plan(
        "gpt-oss-120b",
        model={"hybrid_swa": False},
        draft={"algorithm": "STANDALONE", "config": "gpt-oss-20b", "enable_multi_layer_eagle": False},
    )
    assert [(pool.pool, pool.layers) for pool in drafts(shown)] == [("full", 24)]


def test_the_rule_by_name_has_no_ring_without_split() -> None:
    shown = plan("inkling", model={"hybrid_swa": False, "tp_size": 8}, routing="legacy")
    assert {pool.pool for pool in drafts(shown)} == {"full"}


def test_dflash_draft_lives_beside_the_full_pool() -> None:
    own = {
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 96,
        "hidden_size": 384,
        "block_size": 8,
    }
    shown = plan(draft={"algorithm": "DFLASH", "config": own, "num_steps": None, "enable_multi_layer_eagle": None})
    full, _ = sized(F * 12 + 0.1 * S * 36 + 5 * 768)
    (pool,) = drafts(shown)
    assert row(pool) == ("draft0", "full", 5, full, "none")
    assert (pool.bytes, pool.budgeted_bytes) == (5 * 768 * (full + 64), 5 * 768 * full)
    assert shown.disagreements == ()


def test_a_budget_without_draft_term() -> None:
    shown = plan(local(0, 2), draft=depths([1], [0, 2]), routing="depth-owned", faults=("no-draft-budget",))
    assert shown.full_max_total_num_tokens == 1_139_712
    assert {pool.budgeted_bytes for pool in drafts(shown)} == {0}
    assert shown.overcommit_bytes - shown.padding_bytes == (2 * S + F) * 1_139_712


def test_a_rule_of_ones_own() -> None:
    class Everywhere:
        name = "everywhere"

        def owns_depth(self, facts: Any, depth: int | None) -> bool:
            return depth is not None

        def kind(self, facts: Any, depth: int) -> Any:
            return "ring"

        def charge(self, facts: Any) -> Any:
            return ("ring",) * facts.budget_layers

    data = {
        "model": {"config": local(0, 1, 2)},
        "memory": {"kv_bytes": 60 * GIB, "page_size": 64, "swa_full_tokens_ratio": 0.1},
        "draft": {"algorithm": "EAGLE", "num_steps": 3, "enable_multi_layer_eagle": True, **depths([], [0, 1, 2])},
    }
    shown = simkv.load(data).with_routing(Everywhere()).plan()
    assert shown.routing == "everywhere"
    assert {(pool.pool, pool.mapping) for pool in drafts(shown)} == {("swa", "identity")}
    assert shown.overcommit_bytes == shown.padding_bytes


# ------------------------------------------------------------------------------------------ properties
IDS = st.lists(st.integers(0, 4), unique=True)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(RULES),
    st.none() | IDS,
    IDS,
    IDS,
    st.booleans(),
    st.integers(1, 4),
    st.integers(0, 4),
    st.sampled_from([1, 16, 64]),
)
def test_every_routing_adds_up(
    routing: str,
    ids: list[int] | None,
    full: list[int],
    swa: list[int],
    flag: bool,
    steps: int,
    layers: int,
    page: int,
) -> None:
    config = EXAMPLE if ids is None else local(*ids)
    facts = {
        "swa_attention_layer_ids": swa,
        "full_attention_layer_ids": [i for i in full if i not in swa],
        "mtp_layer_id_is_depth": flag,
        "num_steps": steps,
        "num_layers": layers,
    }
    shown = plan(config, draft=facts, routing=routing, page_size=page)
    check_pools(shown)
    assert sum(terms(shown)) == layers
    assert {pool.worker for pool in drafts(shown)} >= {f"draft{d}" for d in range(steps)}
    tokens, window = shown.full_max_total_num_tokens or 0, shown.swa_max_total_num_tokens or 0
    for pool in drafts(shown):
        assert pool.mapping != "identity" or (pool.pool == "swa" and pool.tokens == tokens)
        assert pool.tokens == (window if (pool.pool, pool.mapping) == ("swa", "target") else tokens)
        # An ordinary runner holds all three MTP layers of the config.
        assert pool.layers <= 3
    charged = terms(shown)
    price = charged[0] * F * tokens + charged[1] * S * window + charged[2] * S * tokens
    assert sum(pool.budgeted_bytes for pool in drafts(shown)) == price
    assert sum(pool.budgeted_bytes for pool in shown.pools) <= 60 * GIB
    assert named(shown)


FAULT_SETS = st.sets(st.sampled_from(["draft-pool-pre-split", "no-draft-budget"])).map(
    lambda names: tuple(sorted(names))
)


@settings(max_examples=150, deadline=None)
@given(
    routing=st.sampled_from(RULES),
    ids=st.none() | IDS,
    swa=IDS,
    flag=st.booleans(),
    multi=st.booleans(),
    layers=st.none() | st.integers(0, 4),
    faults=FAULT_SETS,
    ratio=st.sampled_from([0.05, 0.3, 1.0]),
    opened=st.sampled_from([True, False, "engine"]),
)
def test_every_byte_has_one_code_whatever_is_broken(
    routing: str,
    ids: list[int] | None,
    swa: list[int],
    flag: bool,
    multi: bool,
    layers: int | None,
    faults: tuple[str, ...],
    ratio: float,
    opened: Any,
) -> None:
    draft: dict[str, Any] = {"swa_attention_layer_ids": swa, "mtp_layer_id_is_depth": flag}
    draft["enable_multi_layer_eagle"] = multi
    if layers is not None:
        draft["num_layers"] = layers
    config = EXAMPLE if ids is None else local(*ids)
    model = {"hybrid_swa": opened}
    shown = plan(config, draft=draft, model=model, routing=routing, faults=faults, swa_full_tokens_ratio=ratio)
    assert named(shown)


def test_a_full_pool_of_a_hybrid_draft_sized_before_the_split_breaks_the_run() -> None:
    # The draft's full pool has fewer rows than the target's full pool has slots.
    data = {
        "model": {"config": EXAMPLE, "context_length": 131072},
        "memory": {
            "kv_bytes": 4 * GIB,
            "page_size": 64,
            "swa_full_tokens_ratio": 0.3,
            "max_running_requests": "pool",
            "disable_radix_cache": True,
            "chunked_prefill_size": -1,
        },
        "draft": {"algorithm": "EAGLE", "num_steps": 3, "enable_multi_layer_eagle": True}
        | {"swa_attention_layer_ids": [0, 2], "full_attention_layer_ids": [1], "mtp_layer_id_is_depth": False},
        "policies": {"routing": "legacy", "faults": ["draft-pool-pre-split"]},
        "workload": {
            "kind": "burst",
            "burst_size": 400,
            "burst_interval_s": 1,
            "num_requests": 400,
            "input_tokens": 900,
            "output_tokens": 500,
        },
    }
    shown = simkv.plan(data)
    rows = {p.tokens for p in drafts(shown) if p.pool == "full"}
    assert max(rows) < (shown.full_max_total_num_tokens or 0)
    assert any(d.code == "K10" for d in shown.disagreements)
    run = simkv.simulate(data)
    assert run.fault is not None
    assert run.fault["fault"] == "draft-pool-overrun"
