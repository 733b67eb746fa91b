"""Roofline step times against measured time per output token.

    python benchmarks/roofline_vs_measured.py steptimes.csv [--models DIR] [--set layer_overhead_us=40]

The file has columns ``model_path, backend, system, precision, isl, osl, batch_size, tp_size, attention_dp_size,
silicon_ttft_ms, silicon_tpot_ms`` (aiconfigurator-core 0.12.0, ``silicon_sample.csv``); ``batch_size`` is the number of
clients. Prints, for each model, GPU and engine, the median and the 10th and 90th percentile of predicted / measured
TPOT and, from rows of at most 4 clients and prompts of 4,096 tokens and more, the median ratio of one prompt's
prefill time to TTFT (which holds the wait for the running step and the server's own time as well).

A closed loop of B clients mixes prefill into decode: while a request makes its ``osl`` tokens, each of the B - 1 others
ends once and its successor's prompt is computed. So

    TPOT = decode step (B requests of isl + osl / 2 tokens) + (B - 1) / osl * prefill step (one prompt of isl tokens)

Left out: more than 8 ranks a replica or data-parallel attention (other formulas), and rows whose clients queued (TTFT
above a quarter of the decode time: their batch is smaller than the number of clients).
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simkv.arch import Arch
from simkv.hardware import GPUS, gpu
from simkv.steptime import Roofline, StepWork


def _mixture(total_b: float, active_b: float, experts_per_token: int) -> dict[str, Any]:
    return {"total_params": total_b * 1e9, "active_params": active_b * 1e9, "experts_per_token": experts_per_token}


# Parameters as the model cards state them, where the catalogue has none.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "openai/gpt-oss-120b": ("gpt-oss-120b", {"experts_per_token": 4}),
    "MiniMaxAI/MiniMax-M2.5": ("minimax-m2.5", _mixture(230, 10, 8)),
    "Qwen/Qwen3-235B-A22B-FP8": ("qwen3-235b-a22b-fp8", _mixture(235, 22, 8)),
    "Qwen/Qwen3.5-397B-A17B": ("qwen3.5-397b-a17b", _mixture(397, 17, 10)),
    "deepseek-ai/DeepSeek-V3": ("deepseek-v3", _mixture(671, 37, 8)),
    "deepseek-ai/DeepSeek-R1": ("deepseek-v3", _mixture(671, 37, 8)),
    "Qwen/Qwen3-32B": ("qwen3-32b", {}),
    "meta-llama/Llama-3.1-70B": ("llama-3.1-70b", {}),
    "meta-llama/Llama-3.1-8B-Instruct": ("llama-3.1-8b", {}),
}
WEIGHT_BITS = {"": 16.0, "bf16": 16.0, "fp8": 8.0, "fp4": 4.5}


@dataclass(frozen=True)
class Row:
    """One measured row."""

    model: str
    engine: str
    gpu: str
    precision: str
    tp: int
    input_tokens: int
    output_tokens: int
    clients: int
    ttft_ms: float
    tpot_ms: float

    @property
    def queued(self) -> bool:
        """Whether clients waited for a place in the batch."""
        return self.ttft_ms > 0.25 * self.output_tokens * self.tpot_ms


def read(path: Path) -> Iterator[Row]:
    """Rows of models, GPUs and layouts the roofline covers."""
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            system = line["system"].removesuffix("_sxm")
            if line["model_path"] not in MODELS or system not in GPUS or float(line["tp_size"]) > 8:
                continue
            if line["attention_dp_size"] not in ("", "0.0", "1.0") or not line["silicon_tpot_ms"]:
                continue
            yield Row(
                line["model_path"],
                line["backend"],
                system,
                line["precision"],
                int(float(line["tp_size"])),
                int(line["isl"]),
                int(line["osl"]),
                int(float(line["batch_size"])),
                float(line["silicon_ttft_ms"] or "nan"),
                float(line["silicon_tpot_ms"]),
            )


class Predictor:
    """Rooflines by (model, GPU, precision, ranks)."""

    def __init__(self, models: Path | None, settings: dict[str, Any]) -> None:
        self.models, self.settings = models, settings
        self.known: dict[tuple[str, str, str, int], Roofline] = {}

    def roofline(self, row: Row) -> Roofline:
        key = (row.model, row.gpu, row.precision, row.tp)
        if key not in self.known:
            name, facts = MODELS[row.model]
            arch = Arch.from_config(self.models / f"{name}.json" if self.models else name)
            bits, dense = WEIGHT_BITS[row.precision], None
            if row.model == "openai/gpt-oss-120b":
                bits, dense = 4.25, 16.0  # MXFP4 experts whatever the label says
            elif row.precision == "fp4" and "experts_per_token" in facts:
                dense = 16.0  # NVFP4 checkpoints of mixtures quantise the experts
            self.known[key] = Roofline(
                gpu=gpu(row.gpu),
                arch=arch,
                tp_size=row.tp,
                weight_bits=bits,
                dense_weight_bits=dense,
                **{**facts, **self.settings},
            )
        return self.known[key]

    def decode_ms(self, row: Row) -> float:
        """A decode step of all clients, ms."""
        roofline = self.roofline(row)
        context = row.input_tokens + row.output_tokens // 2
        window = min(context, roofline.arch.window or context)
        work = StepWork(
            decode_requests=row.clients, decode_context=row.clients * context, decode_window=row.clients * window
        )
        return roofline(work)[1] / 1e6

    def prefill_ms(self, row: Row) -> float:
        """The prefill of one prompt, ms."""
        n = row.input_tokens
        return (
            self.roofline(row)(StepWork(prefill_tokens=n, prefill_pairs=n * (n + 1) // 2, prefill_requests=1))[1] / 1e6
        )

    def tpot_ms(self, row: Row) -> float:
        """Time per output token in a closed loop, ms."""
        return self.decode_ms(row) + (row.clients - 1) / row.output_tokens * self.prefill_ms(row)


def line(label: tuple[str, ...], rows: list[Row], predictor: Predictor) -> str:
    """One line of the table."""
    ratio = np.array([predictor.tpot_ms(row) / row.tpot_ms for row in rows])
    p10, p50, p90 = np.percentile(ratio, [10, 50, 90])
    within = float(np.mean((ratio > 1 / 1.3) & (ratio < 1.3)))
    long = [row for row in rows if row.clients <= 4 and row.input_tokens >= 4096 and row.ttft_ms > 0]
    first = [predictor.prefill_ms(row) / row.ttft_ms for row in long]
    ttft = f"{np.median(first):.2f}" if first else ""
    cells = [*label, str(len(rows)), f"{p50:.2f}", f"{p10:.2f}", f"{p90:.2f}", f"{within:.0%}", ttft]
    return f"| {' | '.join(cells)} |"


def table(rows: Iterable[Row], predictor: Predictor) -> Iterator[str]:
    """The table in Markdown."""
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    kept = [row for row in rows if not row.queued]
    for row in kept:
        groups[row.model.rpartition("/")[2], row.gpu, row.engine].append(row)
    yield "| model | GPU | engine | rows | TPOT p50 | p10 | p90 | within 1.3x | prefill / TTFT |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for label in sorted(groups):
        yield line(label, groups[label], predictor)
    yield line(("all", "", ""), kept, predictor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--models", type=Path, help="folder of configs, instead of the built-in models")
    parser.add_argument("--set", action="append", default=[], metavar="PARAMETER=NUMBER", help="of Roofline")
    options = parser.parse_args()
    known = {field.name for field in dataclasses.fields(Roofline) if field.init}
    pairs = [item.partition("=") for item in options.set]
    if wrong := [key for key, _, _ in pairs if key not in known]:
        sys.exit(f"no parameter of Roofline: {', '.join(wrong)}")
    rows = list(read(options.file))
    for text in table(rows, Predictor(options.models, {key: float(value) for key, _, value in pairs})):
        print(text)
    print(f"\n{len(rows)} rows read, {sum(row.queued for row in rows)} left out because clients queued")


if __name__ == "__main__":
    main()
