"""A second opinion: the engine's own allocators behind the replay's seam, where its package can be imported.

All places named here are SGLang 0.5.23's. What its allocators can check themselves they do when told so:
``SGLANG_DEBUG_MEMORY_POOL=1`` looks for pages that are free twice (paged.py:154), ``SGLANG_INVARIANT_CHECK=2`` for SWA halves
that are gone or would be lost (swa.py:27-31).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from simkv.errors import Problem, ScenarioError
from simkv.replayer.slots import Ints, OutOfSlots, SlotAllocator

__all__ = ["EngineSlots", "sglang_slots"]

_VERSION = "0.5.23"


class EngineSlots:
    """The engine's allocator as a :class:`SlotAllocator` (SGLang 0.5.23, mem_cache/allocator/).

    Inside an open group the engine counts what was freed as in use and shows it at the group's end (base.py:213-220,
    paged.py:382-393, swa.py:643-665), the log counts it as free at once. So here the tokens handed back since the group
    began are added to the engine's figures; outside a group, and so after its end, the figures are the engine's alone.

    Parameters
    ----------
    engine : object
        One of its allocators: for one pool of layers with full attention (token.py:28, paged.py:136), for two pools
        (swa.py:41), for sliding layers only (swa.py:727).
    full, swa : bool
        Which pools there are.
    page : int
        Tokens a page holds.
    """

    def __init__(self, engine: Any, *, full: bool, swa: bool, page: int) -> None:
        self._engine = engine
        self._has_full, self._has_swa = full, swa
        self._page = page
        self._grouped = False
        self._held_full = self._held_swa = 0

    @property
    def counts(self) -> tuple[int, int]:
        """Free tokens of the full and of the SWA pool, those freed in an open group included; -1 for no pool.

        The engine's figures are ``available_size`` (token.py:50, paged.py:168), and with sliding layers
        ``full_available_size`` and ``swa_available_size`` (swa.py:222-229, 785-789).
        """
        engine = self._engine
        if not self._has_swa:
            return int(engine.available_size()) + self._held_full, -1
        full = int(engine.full_available_size()) + self._held_full if self._has_full else -1
        return full, int(engine.swa_available_size()) + self._held_swa

    def extend(self, before: Ints, after: Ints, last: Tensor) -> tuple[Tensor, Tensor | None]:
        """Slots for rows that grow ``before -> after`` behind slots ``last``, and their SWA peers where there are two pools.

        As the engine asks (mem_cache/allocation.py): ``alloc`` without pages (:159); with pages ``alloc_decode`` where every
        row grows by a token (:601), ``alloc_extend`` elsewhere (:219).

        Raises
        ------
        OutOfSlots
            The engine has not enough; it says so with None.
        """
        total = int((after - before).sum())
        if self._page == 1:
            slots = self._engine.alloc(total)
        else:
            begun, ends = torch.from_numpy(before), torch.from_numpy(after)
            there = ends.to(last.device)
            if bool((after - before == 1).all()):
                slots = self._engine.alloc_decode(there, ends, last)
            else:
                slots = self._engine.alloc_extend(begun.to(last.device), begun, there, ends, last, total)
        if slots is None:
            raise OutOfSlots
        return slots, self.peers(slots) if self._has_full and self._has_swa else None

    def peers(self, slots: Tensor) -> Tensor:
        """SWA slots of full slots, 0 for none (swa.py:263-265); where there is one pool, the slots."""
        if not (self._has_full and self._has_swa):
            return slots
        found: Tensor = self._engine.translate_loc_from_full_to_swa(slots)
        return found

    def _hold(self, slots: Tensor, *, full: bool, swa: bool) -> None:
        if self._grouped:
            tokens = -(-len(slots) // self._page) * self._page
            self._held_full += tokens * full
            self._held_swa += tokens * swa

    def free(self, slots: Tensor) -> None:
        """Free both halves (base.py:284, paged.py:340, swa.py:625, 855)."""
        self._hold(slots, full=True, swa=True)
        self._engine.free_segment(slots, start_pos=0)

    def free_full(self, slots: Tensor) -> None:
        """Free the full half of slots without SWA half (base.py:303, swa.py:633, 860)."""
        self._hold(slots, full=True, swa=False)
        self._engine.free_full_segment(slots, start_pos=0)

    def free_swa(self, slots: Tensor) -> None:
        """Free the SWA half (swa.py:524, 847)."""
        self._hold(slots, full=False, swa=True)
        self._engine.free_swa_segment(slots, start_pos=0)

    def move(self, kept: Tensor, incoming: Tensor) -> None:
        """Give kept slots the SWA halves of incoming ones, as unified_cache/components/swa.py:326-329 does."""
        peers = self.peers(incoming)
        self._engine.clear_full_to_swa_mapping(incoming)
        self._engine.set_full_to_swa_mapping(kept, peers)

    def begin_group(self) -> None:
        """Hold back what is freed from here on (base.py:213, swa.py:643)."""
        self._grouped = True
        self._engine.free_group_begin()

    def end_group(self) -> None:
        """Let it be handed out (base.py:217, paged.py:386, swa.py:650)."""
        self._grouped = False
        self._held_full = self._held_swa = 0
        self._engine.free_group_end()


@contextmanager
def _stand_in() -> Iterator[None]:
    """Empty modules for torchvision, as long as this lasts, where there is none.

    Allocators for sliding layers import every model configuration, one of which names an enumeration of torchvision
    (multimodal/internvl_utils.py:5-7). A build of the engine for the CPU has no torchvision to go with it.
    """
    names = ("torchvision", "torchvision.transforms", "torchvision.transforms.functional")
    made = names if find_spec("torchvision") is None else ()
    for name in made:
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name])["InterpolationMode"] = None
    try:
        yield
    finally:
        for name in made:
            del sys.modules[name]


def _make(full: int | None, swa: int | None, page: int, device: torch.device) -> Any:
    """The engine's allocator, chosen as it chooses (mem_cache/kv_cache_configurator.py:2865-2937)."""
    common: dict[str, Any] = {"dtype": torch.bfloat16, "device": str(device), "need_sort": False}
    if swa is None:
        from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator

        if page == 1:
            return TokenToKVPoolAllocator(full, kvcache=None, **common)
        return PagedTokenToKVPoolAllocator(full, page_size=page, kvcache=None, **common)
    with _stand_in():
        from sglang.srt.mem_cache.allocator.swa import PureSWATokenToKVPoolAllocator, SWATokenToKVPoolAllocator
        from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

    # Its own pool object keeps the table of peers (swa_memory_pool.py:248-251); the tensors in it are the replay's.
    pool = object.__new__(SWAKVPool)
    pool.swa_kv_pool = None
    if full is None:
        return PureSWATokenToKVPoolAllocator(swa, page_size=page, kvcache=pool, **common)
    return SWATokenToKVPoolAllocator(full, swa, page_size=page, kvcache=pool, **common)


def sglang_slots(full: int | None, swa: int | None, page: int, device: torch.device) -> SlotAllocator:
    """The engine's allocator for these pools.

    Parameters
    ----------
    full, swa : int or None
        Capacities in tokens; None for a model without such a pool.
    page : int
        Tokens a page holds.
    device : torch.device
        Where its free lists lie.

    Raises
    ------
    ScenarioError
        The engine's package cannot be imported, or is of another version.
    """
    try:
        found = version("sglang")
        if found != _VERSION:
            raise ImportError(f"{found} is installed")
        with warnings.catch_warnings():
            # What of the engine does not run on this device is not asked for.
            warnings.simplefilter("ignore")
            # Before anything stands in for torchvision: transformers, which this imports, looks whether it is there.
            import sglang  # noqa: F401

            engine = _make(full, swa, page, device)
    except ImportError as error:
        problem = (
            f"'sglang', and sglang {_VERSION} cannot be imported ({error}); run simkv in the environment of that package, or "
            "leave --engine out"
        )
        raise ScenarioError("replay", [Problem("engine", problem)]) from None
    return EngineSlots(engine, full=full is not None, swa=swa is not None, page=page)
