from __future__ import annotations

import pytest

from simkv.errors import ScenarioError
from simkv.hardware import GPUS, gpu


def test_names_are_keys_and_figures_positive() -> None:
    for name, found in GPUS.items():
        assert found.name == name == name.lower()
        assert found.memory_mib > 0 and found.bandwidth_bytes_per_s > 0 and found.link_bytes_per_s > 0
        assert found.bf16_flops <= (found.fp8_flops or found.bf16_flops) <= (found.fp4_flops or float("inf"))


@pytest.mark.parametrize(
    ("name", "mib", "bandwidth"),
    [("h100", 81_559, 3.35e12), ("h200", 143_771, 4.8e12), ("b200", 183_359, 7.7e12), ("b300", 275_040, 7.75e12)],
)
def test_documented_figures(name: str, mib: int, bandwidth: float) -> None:
    assert gpu(name).memory_mib == mib
    assert gpu(name).bandwidth_bytes_per_s == bandwidth


def test_case_does_not_matter() -> None:
    assert gpu("H200") is GPUS["h200"]


@pytest.mark.parametrize(
    ("name", "bits", "tflops"),
    [
        ("b200", 4.5, 9000),
        ("b200", 8, 4500),
        ("b200", 16, 2250),
        ("h100", 4.25, 989),  # no 4-bit unit: widened to 16 bits
        ("h100", 8, 1978),
        ("a100-80g", 8, 312),
    ],
)
def test_rate_follows_the_width_of_weights(name: str, bits: float, tflops: float) -> None:
    assert gpu(name).flops(bits) == tflops * 1e12


def test_unknown_name_lists_the_known_and_the_nearest() -> None:
    with pytest.raises(ScenarioError) as error:
        gpu("h20o", place="memory.gpu")
    (problem,) = error.value.problems
    assert problem.place == "memory.gpu"
    assert "did you mean h20" in problem.message and "mi300x" in problem.message


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        GPUS["x"] = gpu("h100")  # type: ignore[index]
