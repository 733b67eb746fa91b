from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simkv.arch import Arch, Geometry
from simkv.errors import ScenarioError
from simkv.hardware import Gpu, gpu
from simkv.steptime import STEPTIME, Constant, Linear, Roofline, StepTime, StepWork, Table

# 1 byte/ns of memory, 1 FLOP/ns in 16 bits and 2 in 8, 1 byte/ns of link: times can be read off
TOY_GPU = Gpu("toy", 1024, 1e9, 1e9, 2e9, None, 1e9)
TOY = Arch(
    name="toy",
    architecture="",
    layers=("full", "sliding", "sliding"),
    full=Geometry(2, 4, 4),
    sliding=Geometry(4, 4, 2),
    window=8,
    hidden_size=16,
    num_attention_heads=4,
    total_params=1000.0,
    active_params=1000.0,
)
MIXTURE = TOY.replace(active_params=400.0, config={"num_experts": 8, "num_experts_per_tok": 2})
IDEAL: dict[str, Any] = {
    "gpu": TOY_GPU,
    "memory_efficiency": 1,
    "compute_efficiency": 1,
    "expert_efficiency": 1,
    "link_efficiency": 1,
    "layer_overhead_us": 0,
    "allreduce_us": 0,
}

counts = st.integers(0, 100_000)
works = st.builds(
    StepWork,
    prefill_tokens=counts,
    prefill_pairs=counts,
    prefill_requests=counts,
    decode_requests=counts,
    decode_context=counts,
    decode_window=counts,
    verify_tokens=st.integers(1, 9),
    draft_steps=st.integers(0, 8),
)
steptimes = st.sampled_from(
    [
        Constant(ms=2, draft_ms=0.1),
        Linear(base_ms=1, per_prefill_token_us=3, per_decode_request_us=5, per_context_token_ns=7, draft_ms=0.5),
        Table(decode_ms={1: 5, 16: 8, 64: 15}, prefill_tokens_per_s=20_000, draft_ms=0.2),
        Roofline(arch=TOY, gpu=gpu("h100")),
        Roofline(arch=MIXTURE, gpu=gpu("b200"), tp_size=2),
    ]
)


def decode(requests: int = 1, context: int = 0, window: int = 0, verify: int = 1, drafts: int = 0) -> StepWork:
    return StepWork(
        decode_requests=requests,
        decode_context=context,
        decode_window=window,
        verify_tokens=verify,
        draft_steps=drafts,
    )


# Every kind --------------------------------------------------------------------------------------------------------


@given(steptimes, works)
def test_times_are_integers_and_the_target_works(steptime: StepTime, work: StepWork) -> None:
    draft, target = steptime(work)
    assert type(draft) is int and type(target) is int and draft >= 0 and target >= 1
    assert steptime(dataclasses.replace(work, draft_steps=0))[0] == 0
    assert steptime(work) == (draft, target)


@given(steptimes, works, st.sampled_from([f.name for f in dataclasses.fields(StepWork)]), st.integers(1, 1000))
def test_more_work_never_takes_less_time(steptime: StepTime, work: StepWork, column: str, more: int) -> None:
    larger = dataclasses.replace(work, **{column: getattr(work, column) + more})
    for before, after in zip(steptime(work), steptime(larger), strict=True):
        assert before <= after


def test_constant() -> None:
    assert Constant(ms=2.5, draft_ms=0.25)(decode(drafts=3)) == (750_000, 2_500_000)
    assert Constant(ms=1e-9)(StepWork()) == (0, 1)


def test_linear() -> None:
    model = Linear(base_ms=1, per_prefill_token_us=2, per_decode_request_us=3, per_context_token_ns=4, draft_ms=0.5)
    work = StepWork(prefill_tokens=10, decode_requests=5, decode_context=100, draft_steps=2)
    assert model(work) == (1_000_000, 1_000_000 + 20_000 + 15_000 + 400)


def test_table_interpolates_and_continues() -> None:
    model = Table(decode_ms={"64": 15, "4": 5, "16": 8}, prefill_tokens_per_s=10_000)
    expected = {1: 5, 4: 5, 10: 6.5, 16: 8, 40: 11.5, 64: 15, 112: 22}
    for batch, ms in expected.items():
        assert model(decode(batch)) == (0, round(ms * 1e6))
    assert model(StepWork(prefill_tokens=100)) == (0, 10_000_000)
    assert model(StepWork(prefill_tokens=100, decode_requests=4)) == (0, 15_000_000)


def test_table_of_one_row_or_a_falling_end() -> None:
    assert Table(decode_ms={8: 3}, prefill_tokens_per_s=1)(decode(100)) == (0, 3_000_000)
    assert Table(decode_ms={8: 3, 16: 2}, prefill_tokens_per_s=1)(decode(32)) == (0, 2_000_000)


# The roofline, by hand ---------------------------------------------------------------------------------------------


def test_decode_step_of_a_dense_model() -> None:
    model = Roofline(arch=TOY, **IDEAL)
    # weights: 1000 * 2 bytes, 2 * 1000 FLOP/token; KV: full 2 * 8 * 2 = 32, sliding 2 * 4 * 6 * 2 = 96 bytes a token;
    # attention: full 2 * 4 heads * 8 = 64, sliding 2 layers * 2 * 4 * 6 = 96 FLOP a pair
    assert model(decode(1, 0, 0)) == (0, 2000)
    assert model(decode(3, 0, 0)) == (0, 6000)
    assert model(decode(1, 10, 8)) == (0, 2000 + max(10 * 32 + 8 * 96, 10 * 64 + 8 * 96))
    assert model(decode(1, 0, 8)) == (0, 2000 + 768)


def test_verify_step_repeats_arithmetic_and_not_traffic() -> None:
    fast = dataclasses.replace(TOY_GPU, bf16_flops=4e9)
    model = Roofline(arch=TOY, **{**IDEAL, "gpu": fast})
    # arithmetic at a quarter: 500 a token; attention max(32 * context, verify * 64 / 4 * context)
    assert model(decode(1, 100)) == (0, 2000 + 3200)
    assert model(decode(1, 100, verify=2)) == (0, 2000 + 3200)
    assert model(decode(1, 100, verify=8)) == (0, 4000 + 12_800)


def test_prefill_step_counts_pairs_within_the_window() -> None:
    model = Roofline(arch=TOY, **IDEAL)
    n = 100
    work = StepWork(prefill_tokens=n, prefill_pairs=n * (n + 1) // 2, prefill_requests=1)
    assert model(work) == (0, 2000 * n + 64 * 5050 + 96 * min(5050, 8 * n))
    short = StepWork(prefill_tokens=4, prefill_pairs=10, prefill_requests=1)
    assert model(short) == (0, 2000 * 4 + 64 * 10 + 96 * 10)


def test_experts_read_grow_with_the_tokens() -> None:
    # 1000 = dense + expert, 400 = dense + expert / 4: expert 800, dense 200
    slow = dataclasses.replace(TOY_GPU, bandwidth_bytes_per_s=1e3)  # memory decides: 1e6 ns a byte
    model = Roofline(arch=MIXTURE, **{**IDEAL, "gpu": slow})
    for tokens in (1, 2, 5, 40):
        expected = (200 + 800 * (1 - 0.75**tokens)) * 2 * 1e6
        assert model(decode(tokens))[1] == pytest.approx(expected)
    assert model(decode(1))[1] == pytest.approx(400 * 2 * 1e6)  # one token reads the active parameters


def test_arithmetic_of_a_mixture_is_that_of_its_active_parameters() -> None:
    quick = dataclasses.replace(TOY_GPU, bandwidth_bytes_per_s=1e15)
    assert Roofline(arch=MIXTURE, **{**IDEAL, "gpu": quick})(decode(10)) == (0, 2 * 400 * 10)
    halved = Roofline(arch=MIXTURE, **{**IDEAL, "gpu": quick, "expert_efficiency": 0.5})
    assert halved(decode(10)) == (0, 2 * (200 + 2 * 200) * 10)


def test_weight_widths() -> None:
    model = Roofline(arch=TOY, weight_bits=8, **IDEAL)
    assert model(decode(1)) == (0, 1000)  # 1000 bytes; 2000 FLOP at the 8-bit rate of 2 FLOP/ns
    mixed = Roofline(arch=MIXTURE, weight_bits=8, dense_weight_bits=16, **IDEAL)
    assert mixed(decode(1)) == (0, 200 * 2 + 200)


def test_tensor_parallel_ranks_split_weights_heads_and_pay_for_all_reduces() -> None:
    model = Roofline(arch=TOY, tp_size=4, **{**IDEAL, "allreduce_us": 0.5})
    # 2 KV heads cannot be split in 4: one head each. 3 layers, 2 all-reduces of 500 ns, each moving
    # 2 * 3/4 * 16 * 2 bytes a token
    reduces = 3 * 2 * (500 + 48)
    assert model(decode(1)) == (0, 500 + reduces)
    full, sliding = 8 * 2, 2 * 6 * 2
    assert model(decode(1, 100, 8)) == (0, 500 + 100 * max(full, 16) + 8 * max(sliding, 24) + reduces)


def test_a_latent_is_not_split_and_prefill_expands_it() -> None:
    latent = TOY.replace(layers=("mla",), full=Geometry(1, 6, 0, latent=True), sliding=None, window=None)
    config = {"qk_nope_head_dim": 2, "qk_rope_head_dim": 1, "v_head_dim": 2}
    model = Roofline(arch=latent.replace(config=config), tp_size=2, **IDEAL)
    reduces = 2 * 2 * 0.5 * 16 * 2
    assert model(decode(1, 100)) == (0, 1000 + max(100 * 6 * 2, 100 * 2 * 2 * 12) + reduces)
    assert model(StepWork(prefill_tokens=1, prefill_pairs=100)) == (0, 1000 + 100 * 2 * 2 * 5 + reduces)


def test_overheads_state_and_draft() -> None:
    arch = TOY.replace(state_bytes_per_request=10)
    settings = {**IDEAL, "layer_overhead_us": 2, "step_overhead_ms": 0.001}
    model = Roofline(arch=arch, draft_step_ms=0.001, draft_weight_bytes=50, **settings)
    assert model(decode(1, drafts=3)) == (3 * 1050, 1000 + 3 * 2000 + 2000 + 2 * 10)


def test_efficiencies_scale_their_part() -> None:
    halved = Roofline(arch=TOY, **{**IDEAL, "memory_efficiency": 0.5, "compute_efficiency": 0.25})
    assert halved(decode(1)) == (0, 8000)


def test_gpt_oss_decode_attention_agrees_with_the_measured_kernel() -> None:
    # H200, batch 64, 8,192 tokens, 64/8 heads of 64, BF16: 269.6 us a full layer
    arch = TOY.replace(layers=("full",) * 18, full=Geometry(8, 64, 64), sliding=None, num_attention_heads=64)
    model = Roofline(arch=arch, gpu=gpu("h200"))
    attention = model(decode(64, 64 * 8192))[1] - model(decode(64))[1]
    assert attention / 18 == pytest.approx(269_600, rel=0.05)


# Errors ------------------------------------------------------------------------------------------------------------


def places(make: Callable[[], object]) -> list[str]:
    with pytest.raises(ScenarioError) as error:
        make()
    return sorted(problem.place for problem in error.value.problems)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: Constant(ms=0, draft_ms=-1), ["steptime.draft_ms", "steptime.ms"]),
        (lambda: Constant(ms=float("nan")), ["steptime.ms"]),
        (lambda: Linear(base_ms=True), ["steptime.base_ms"]),
        (lambda: Linear(base_ms="1", draft_ms=-1), ["steptime.base_ms", "steptime.draft_ms"]),  # type: ignore[arg-type]
        (lambda: Table(decode_ms={}, prefill_tokens_per_s=0), ["steptime.decode_ms", "steptime.prefill_tokens_per_s"]),
        (
            lambda: Table(decode_ms={"x": 1, 0: 1, 1: 0}, prefill_tokens_per_s=1),
            ["steptime.decode_ms.0", "steptime.decode_ms.1", "steptime.decode_ms.x"],
        ),
        (lambda: Table(decode_ms={1: 2, "1": 3}, prefill_tokens_per_s=1), ["steptime.decode_ms.1"]),
        (lambda: Roofline(arch=TOY, gpu=TOY_GPU, tp_size=0), ["model.tp_size"]),
        (
            lambda: Roofline(arch=TOY, gpu=TOY_GPU, memory_efficiency=1.5, kv_bytes=0, draft_step_ms=-1),
            ["steptime.draft_step_ms", "steptime.kv_bytes", "steptime.memory_efficiency"],
        ),
        (lambda: Roofline(arch=TOY.replace(layers=("compressed",)), gpu=TOY_GPU), ["steptime.kind"]),
    ],
)
def test_refused(make: Callable[[], object], expected: list[str]) -> None:
    assert places(make) == expected


def test_facts_the_model_lacks_are_all_named_with_the_remedy() -> None:
    bare = TOY.replace(
        total_params=None, active_params=None, num_attention_heads=None, hidden_size=None, config={"num_experts": 8}
    )
    with pytest.raises(ScenarioError, match=r"state active_params in \[steptime\]") as error:
        Roofline(arch=bare, gpu=TOY_GPU, tp_size=2)
    assert [problem.place for problem in error.value.problems] == [
        "model.num_attention_heads",
        "model.hidden_size",
        "steptime.total_params",
        "steptime.active_params",
        "steptime.experts_per_token",
    ]


def test_stated_facts_do() -> None:
    bare = TOY.replace(total_params=None, active_params=None)
    stated = Roofline(arch=bare, total_params=1000, active_params=400, num_experts=8, experts_per_token=2, **IDEAL)
    assert stated(decode(3)) == Roofline(arch=MIXTURE, **IDEAL)(decode(3))
    assert Roofline(arch=bare, total_params=1000, **IDEAL)(decode(3)) == Roofline(arch=TOY, **IDEAL)(decode(3))
    assert Roofline(arch=TOY, total_params=500, **IDEAL)(decode(1)) == (0, 1000)


def test_a_mixture_that_cannot_be_is_refused() -> None:
    assert places(lambda: Roofline(arch=MIXTURE, active_params=100, **IDEAL)) == ["steptime.active_params"]
    assert places(lambda: Roofline(arch=MIXTURE, experts_per_token=8, **IDEAL)) == ["steptime.active_params"]


def test_every_kind_has_a_class() -> None:
    assert set(STEPTIME) == {"constant", "linear", "table", "roofline"}
