"""A batch of requests, and the order in which it wants to keep them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simkv.workload.request import IntArray

__all__ = ["Batch", "RetractionOrder", "default_retraction_order"]

_EMPTY = np.empty(0, np.int64)
_EMPTY.flags.writeable = False

RetractionOrder = Callable[[IntArray, IntArray], NDArray[np.intp]]


def default_retraction_order(output: IntArray, input_tokens: IntArray) -> NDArray[np.intp]:
    """Positions in the order in which the engine wants to *keep* requests.

    Most outputs first, then the shorter prompt; ties keep batch order. The last one is retracted first
    (managers/schedule_batch.py:3511-3560).
    """
    return np.lexsort((input_tokens, -output))


@dataclass(eq=False, slots=True)
class Batch:
    """A batch object; ``is_full`` (``batch_is_full``) belongs to it and is lost or kept with it."""

    reqs: IntArray = field(default_factory=lambda: _EMPTY)
    is_full: bool = False
    prefill_only: bool = False
    extend: bool = False
    chunked: int = -1
