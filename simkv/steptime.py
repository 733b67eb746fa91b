"""How long one scheduler step runs on the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["StepTime", "StepWork"]


@dataclass(slots=True)
class StepWork:
    """What one step computes, summed over its batch.

    Parameters
    ----------
    prefill_tokens : int
        Prompt tokens computed (new ones, without cached prefix).
    prefill_pairs : int
        Sum over prefilling requests of ``extend_len * prefix_len + extend_len * (extend_len + 1) // 2``: query/key
        pairs of causal attention.
    prefill_requests : int
        Requests in the prefill part.
    decode_requests : int
        Requests in the decode part.
    decode_context : int
        Sum of the committed lengths of the decoding requests, in tokens.
    decode_window : int
        Sum of ``min(committed length, window)`` of the decoding requests.
    verify_tokens : int
        Tokens a decoding request puts through the target in this step: 1, or the verify width with speculation.
    draft_steps : int
        Draft forward passes in this step (0 without speculation).
    """

    prefill_tokens: int = 0
    prefill_pairs: int = 0
    prefill_requests: int = 0
    decode_requests: int = 0
    decode_context: int = 0
    decode_window: int = 0
    verify_tokens: int = 1
    draft_steps: int = 0


class StepTime(Protocol):
    """Gives the duration of a step."""

    def __call__(self, work: StepWork) -> tuple[int, int]:
        """Nanoseconds of the draft worker's part and of the target worker's part (0 and > 0)."""
        ...
