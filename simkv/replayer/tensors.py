"""The pools of a plan as real tensors: K and V of every layer, rows as many as the plan says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from simkv.replayer.tags import salt

__all__ = ["KvTensor", "PoolTensors", "build_pools", "fitting_scale", "memory_free", "planned_tensor_bytes"]

_DTYPES = {
    "bfloat16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
    "mxfp8": torch.float8_e4m3fn,
}
# Bytes to count on where the system does not say.
_MEMORY_UNKNOWN = 4 << 30
_LANES = (torch.int64, torch.int32, torch.int16, torch.uint8)

SCALES = tuple(Fraction(1, 1 << power) for power in range(11))


class KvTensor:
    """K or V of one layer.

    Parameters
    ----------
    data : Tensor, shape (rows, heads, width)
        As the engine allocates it.
    salt : int
        What its tags are combined with.
    """

    def __init__(self, data: Tensor, salt: int) -> None:
        self.data = data
        self.salt = salt
        flat = data.view(len(data), -1)
        row_bytes = flat.shape[1] * data.element_size()
        lane = next(dtype for dtype in _LANES if row_bytes % dtype.itemsize == 0)
        # The same memory as whole numbers; a tag is in every one of a row.
        self.lanes = flat.view(torch.uint8).view(lane)
        self._narrow = lane.itemsize < 8

    def encoded(self, tags: Tensor) -> Tensor:
        """Tags as this tensor holds them; rows too narrow hold their lower bits."""
        salted = tags ^ self.salt
        return salted.to(self.lanes.dtype) if self._narrow else salted

    def decoded(self, stored: Tensor) -> Tensor:
        """Tags of what this tensor holds; only the lower bits where rows are too narrow."""
        return stored.to(torch.int64) ^ self.salt

    @property
    def whole_tags(self) -> bool:
        """Whether a row has place for a whole tag."""
        return not self._narrow

    def write(self, index: Tensor, tags: Tensor) -> None:
        """Fill rows with their tags."""
        self.lanes[index] = self.encoded(tags)[:, None]

    def fill(self, index: Tensor, tag: int) -> None:
        """Fill rows with one tag."""
        salted = tag ^ self.salt
        value = torch.tensor(salted).to(self.lanes.dtype).item() if self._narrow else salted
        self.lanes.index_fill_(0, index, value)

    def move(self, target: Tensor, source: Tensor) -> None:
        """Copy rows, all at once."""
        self.lanes[target] = self.lanes[source]

    def read(self, index: Tensor, lane: int) -> Tensor:
        """What rows hold, in one of their lanes."""
        return self.lanes[:, lane % self.lanes.shape[1]][index]


@dataclass(frozen=True, eq=False)
class PoolTensors:
    """One pool of a worker.

    Parameters
    ----------
    plan : mapping
        Its entry in the plan (``Plan.to_dict()["pools"]``).
    worker, pool : str
        Whose it is, ``full`` or ``swa``.
    rows : int
        Rows of each tensor.
    window : int or None
        Earlier tokens its layers read.
    mapped : bool
        Slots find their row through the target's table of SWA peers.
    tensors : list of KvTensor
        K, then V, layer by layer.
    extra : list of Tensor
        Scales of block formats, which hold no tags.
    """

    plan: Mapping[str, Any]
    worker: str
    pool: str
    rows: int
    window: int | None
    mapped: bool
    tensors: list[KvTensor]
    extra: list[Tensor]

    @property
    def name(self) -> str:
        """For messages: ``target full pool``, ``draft1 swa pool``."""
        return f"{self.worker} {self.pool} pool"

    @property
    def bytes(self) -> int:
        """Storage of its tensors."""
        every = [one.data for one in self.tensors] + self.extra
        return sum(tensor.untyped_storage().nbytes() for tensor in every)

    def part(self, number: int) -> str:
        """For messages: layer, and K or V, of a tensor."""
        parts = "KV" if int(self.plan["v_head_dim"]) else "K"
        return f"layer {number // len(parts)}, {parts[number % len(parts)]}"

    def rows_of(self, slots: Tensor, peers: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of full slots whose SWA slots are ``peers``, and whether each is one; a wrong one becomes the padding row."""
        index = peers if self.mapped else slots
        valid = (index > 0) & (index < self.rows)
        return torch.where(valid, index, 0), valid


def _shape(plan: Mapping[str, Any], scale: Fraction) -> tuple[int, int, int, int]:
    """Heads, head width, value width and scale bytes of a row, scaled: heads go first, then widths."""
    heads, widths = int(plan["kv_heads"]), [int(plan["head_dim"]), int(plan["v_head_dim"])]
    size = _DTYPES[plan["dtype"]].itemsize
    blocks = 0
    if plan["layers"] and plan["dtype"] == "mxfp8":
        blocks = max(0, plan["bytes_per_token"] // plan["layers"] - heads * sum(widths) * size)
    if scale != 1:
        kept = max(1, int(heads * scale))
        rest = scale * heads / kept
        # A row has place for one tag at least.
        least = max(1, 8 // (kept * size))
        widths = [width and max(least, int(width * rest) // least * least) for width in widths]
        heads, blocks = kept, int(blocks * scale)
    return heads, widths[0], widths[1], blocks


def planned_tensor_bytes(pools: Sequence[Mapping[str, Any]], layers: int | None, scale: Fraction) -> int:
    """Bytes of all tensors of a plan: so many layers a pool (None: all), scaled."""
    total = 0
    for plan in pools:
        heads, width, v_width, blocks = _shape(plan, scale)
        row = heads * (width + v_width) * _DTYPES[plan["dtype"]].itemsize + blocks
        total += int(plan["rows"]) * row * min(int(plan["layers"]), layers or int(plan["layers"]))
    return total


def memory_free(device: torch.device) -> int:
    """Bytes that tensors may take: nine tenths of what is free on a GPU, half of it elsewhere."""
    if device.type == "cuda":
        # What an earlier replay gave back is still torch's, and not free in the device's count.
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(device)[0] * 9 // 10)
    try:
        # What files are kept in for speed counts as free.
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 // 2 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return _MEMORY_UNKNOWN


def fitting_scale(pools: Sequence[Mapping[str, Any]], layers: int | None, free: int) -> Fraction | None:
    """The largest scale at which a plan's tensors fit; None if no scale does."""
    return next((scale for scale in SCALES if planned_tensor_bytes(pools, layers, scale) <= free), None)


def build_pools(
    pools: Sequence[Mapping[str, Any]], layers: int | None, scale: Fraction, device: torch.device
) -> list[PoolTensors]:
    """Tensors of every pool that has layers.

    Parameters
    ----------
    pools : sequence of mapping
        ``Plan.to_dict()["pools"]``.
    layers : int or None
        Layers a pool; None: all of them.
    scale : Fraction
        Share of heads and widths; rows are never fewer.
    device : torch.device
    """
    workers = {name: number for number, name in enumerate(dict.fromkeys(plan["worker"] for plan in pools))}
    whole = [plan for plan in pools if plan["layers"]]
    # A model whose layers all slide hands out slots of its SWA pool: nothing is translated.
    paired = {plan["pool"] for plan in whole if plan["worker"] == "target"} == {"full", "swa"}
    built = []
    for number, plan in enumerate(whole):
        heads, width, v_width, blocks = _shape(plan, scale)
        rows, dtype = int(plan["rows"]), _DTYPES[plan["dtype"]]
        tensors, extra = [], []
        for layer in range(min(int(plan["layers"]), layers or int(plan["layers"]))):
            for part, columns in enumerate((width, v_width)):
                if columns:
                    # Two pools of one worker have layers of their own.
                    key = salt(workers[plan["worker"]] << 8 | number, layer, part)
                    tensors.append(KvTensor(torch.zeros(rows, heads, columns, dtype=dtype, device=device), key))
            if blocks:
                extra.append(torch.zeros(rows, blocks, dtype=torch.uint8, device=device))
        built.append(
            PoolTensors(
                plan=plan,
                worker=plan["worker"],
                pool=plan["pool"],
                rows=rows,
                window=plan["window"],
                mapped=paired and plan["pool"] == "swa" and plan["mapping"] == "target",
                tensors=tensors,
                extra=extra,
            )
        )
    return built
