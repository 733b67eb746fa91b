"""A second opinion: the engine's own allocators behind the replay's seam, where its package can be imported."""

from __future__ import annotations

import torch

from simkv.errors import Problem, ScenarioError
from simkv.replayer.slots import SlotAllocator

__all__ = ["sglang_slots"]


def sglang_slots(full: int | None, swa: int | None, page: int, device: torch.device) -> SlotAllocator:
    """The engine's allocator for these pools.

    Raises
    ------
    ScenarioError
        The engine's package cannot be imported.
    """
    raise ScenarioError("replay", [Problem("engine", "sglang cannot be imported")])
