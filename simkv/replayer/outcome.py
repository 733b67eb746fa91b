"""What a replay found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Replay", "ReplayedPool"]


@dataclass(frozen=True)
class ReplayedPool:
    """One pool of the plan, and what became of it.

    Parameters
    ----------
    worker, pool : str
        As in the plan.
    layers, rows : int
        Layers and rows that were allocated.
    planned_bytes : int
        What the plan says, padding page included, at full size.
    expected_bytes : int
        The same at the scale and with the layers of this replay.
    allocated_bytes : int
        Storage of its tensors.
    """

    worker: str
    pool: str
    layers: int
    rows: int
    planned_bytes: int
    expected_bytes: int
    allocated_bytes: int


@dataclass(frozen=True)
class Replay:
    """Result of a replay in which everything matched; a mismatch is an exception.

    Parameters
    ----------
    name : str
        Scenario of the run.
    device, device_name, torch : str
        Where it ran, and torch's version.
    engine : str
        Whose allocator handed out slots: ``simkv`` or ``sglang``.
    layers : str
        ``all`` or ``1``.
    scale : str
        Share of heads and widths of every tensor, ``1`` or ``1/16``.
    check : str
        Which steps' reads were compared: ``every``, ``sample`` or ``end``.
    pools : tuple of ReplayedPool
    measured_bytes : int or None
        What the device says the pools took (``torch.cuda.memory_allocated``); None where it cannot say.
    table_bytes : int
        Row tables and tags, which are the replay's own.
    peak_bytes : int or None
        Most memory during the replay: of the device on CUDA, of the process elsewhere; None where it is not known.
    requests, steps, calls : int
        Requests of the run, steps that computed something, calls of the log.
    tokens_written : int
        Tokens computed.
    slots_allocated, slots_freed : int
        Slots that changed hands, each compared with the log.
    tags_written, tags_read : int
        Rows of K or V tensors written, and read and compared.
    seconds : float
        Duration, without the building of the pools.
    notes : tuple of str
    """

    name: str
    device: str
    device_name: str
    torch: str
    engine: str
    layers: str
    scale: str
    check: str
    pools: tuple[ReplayedPool, ...]
    measured_bytes: int | None
    table_bytes: int
    peak_bytes: int | None
    requests: int
    steps: int
    calls: int
    tokens_written: int
    slots_allocated: int
    slots_freed: int
    tags_written: int
    tags_read: int
    seconds: float
    notes: tuple[str, ...] = ()

    @property
    def planned_bytes(self) -> int:
        """Bytes of the plan at full size."""
        return sum(pool.planned_bytes for pool in self.pools)

    @property
    def allocated_bytes(self) -> int:
        """Storage of all tensors."""
        return sum(pool.allocated_bytes for pool in self.pools)

    @property
    def tokens_per_s(self) -> float:
        """Tokens computed a second."""
        return self.tokens_written / self.seconds if self.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values: what ``simkv replay --json`` prints."""
        made = asdict(self)
        made["pools"] = [asdict(pool) for pool in self.pools]
        made["notes"] = list(self.notes)
        totals = {"planned_bytes": self.planned_bytes, "allocated_bytes": self.allocated_bytes}
        return made | totals | {"tokens_per_s": self.tokens_per_s}

    def _repr_html_(self) -> str:
        facts = {
            "device": f"{self.device} ({self.device_name})",
            "layers, scale": f"{self.layers}, {self.scale}",
            "bytes planned": f"{self.planned_bytes:,}",
            "bytes allocated": f"{self.allocated_bytes:,}",
            "slots compared with the log": f"{self.slots_allocated:,}",
            "tags read and compared": f"{self.tags_read:,}",
            "tokens/s": f"{self.tokens_per_s:,.0f}",
        }
        rows = "".join(f"<tr><td>{key}</td><td>{value}</td></tr>" for key, value in facts.items())
        return f"<b>{self.name}</b>: replayed, everything matches<table>{rows}</table>"
