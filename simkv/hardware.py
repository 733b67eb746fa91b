"""GPUs by name: memory, bandwidth, arithmetic and link rates.

``memory_mib`` is what the driver reports (``nvidia-smi``, ``rocm-smi``): engines key their defaults on that figure.
Rates are data-sheet peaks, dense (without sparsity); what a kernel reaches of them is a matter of
:mod:`simkv.steptime`.

Sources: NVIDIA and AMD data sheets; the rates of the A100, H100, H200, L40S, B200, B300 and GB200 as the ``systems``
tables of aiconfigurator-core 0.12.0 state them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from simkv.errors import Problem, ScenarioError, nearest

__all__ = ["GPUS", "Gpu", "gpu"]


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Parameters
    ----------
    name : str
        Name in :data:`GPUS`.
    memory_mib : int
        Total memory as the driver reports it, MiB.
    bandwidth_bytes_per_s : float
        Peak bandwidth of its memory, bytes/s.
    bf16_flops : float
        Peak dense rate of 16-bit matrix products, FLOP/s.
    fp8_flops, fp4_flops : float or None
        The same for 8-bit and 4-bit products; None where the chip has no such unit.
    link_bytes_per_s : float
        To the other GPUs of its node, one direction, bytes/s.
    """

    name: str
    memory_mib: int
    bandwidth_bytes_per_s: float
    bf16_flops: float
    fp8_flops: float | None
    fp4_flops: float | None
    link_bytes_per_s: float

    def flops(self, weight_bits: float) -> float:
        """Peak rate for weights of so many bits on average, FLOP/s.

        Up to 5 bits (4 and a scale) use the 4-bit unit, up to 9 the 8-bit unit. Without that unit the weights are
        widened first and the 16-bit rate holds: MXFP4 on Hopper, FP8 on an A100.
        """
        unit = self.fp4_flops if weight_bits <= 5 else self.fp8_flops if weight_bits <= 9 else self.bf16_flops
        return unit or self.bf16_flops


_TERA = 1e12

GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        g.name: g
        for g in (
            # SXM4; 81,920 MiB, 2,039 GB/s, NVLink 3: 300 GB/s a direction; no FP8 unit
            Gpu("a100-80g", 81_920, 2.039e12, 312 * _TERA, None, None, 300e9),
            # 46,068 MiB, GDDR6 864 GB/s, PCIe 4 x16
            Gpu("l40s", 46_068, 0.864e12, 362.05 * _TERA, 733 * _TERA, None, 32e9),
            # SXM5; 81,559 MiB, 3.35 TB/s, NVLink 4: 450 GB/s a direction
            Gpu("h100", 81_559, 3.35e12, 989 * _TERA, 1978 * _TERA, None, 450e9),
            # 143,771 MiB (141 GB), 4.8 TB/s
            Gpu("h200", 143_771, 4.8e12, 989 * _TERA, 1978 * _TERA, None, 450e9),
            # 97,871 MiB (96 GB), 4.0 TB/s, 148 TFLOPS BF16, 296 TFLOPS FP8
            Gpu("h20", 97_871, 4.0e12, 148 * _TERA, 296 * _TERA, None, 450e9),
            # 183,359 MiB in nvidia-smi (180 GB class), 7.7 TB/s, NVLink 5: 900 GB/s a direction
            Gpu("b200", 183_359, 7.7e12, 2250 * _TERA, 4500 * _TERA, 9000 * _TERA, 900e9),
            # 275,040 MiB in nvidia-smi (288 GB class), 7.75 TB/s, 14 PFLOPS FP4
            Gpu("b300", 275_040, 7.75e12, 2250 * _TERA, 4500 * _TERA, 14_000 * _TERA, 900e9),
            # 189,471 MiB in nvidia-smi, 8 TB/s
            Gpu("gb200", 189_471, 8.0e12, 2500 * _TERA, 5000 * _TERA, 10_000 * _TERA, 900e9),
            # 206,141,652,992 bytes in rocm-smi, 5.3 TB/s; seven xGMI links of 64 GB/s a direction
            Gpu("mi300x", 196_592, 5.3e12, 1307.4 * _TERA, 2614.9 * _TERA, None, 448e9),
        )
    }
)


def gpu(name: str, *, place: str = "memory.gpu") -> Gpu:
    """The GPU of this name (case does not matter).

    Parameters
    ----------
    name : str
        A key of :data:`GPUS`.
    place : str
        Dotted key the error names.

    Raises
    ------
    ScenarioError
        No such GPU; the message lists the known ones and the nearest.
    """
    found = GPUS.get(name.lower())
    if found is None:
        message = f'"{name}" is not one of {", ".join(GPUS)}{nearest(name.lower(), GPUS)}'
        raise ScenarioError("<gpu>", [Problem(place, f"{message}; or state memory.hbm")])
    return found
