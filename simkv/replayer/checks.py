"""What must hold in one call of the log, decided on the device all at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["Checks"]


class Checks:
    """Collects conditions; only when one does not hold are figures fetched to say which and why."""

    def __init__(self) -> None:
        self._pending: list[tuple[Tensor, Callable[[int], str]]] = []

    def expect(self, holds: Tensor, otherwise: Callable[[int], str]) -> None:
        """Every entry of ``holds`` is true; ``otherwise`` says what is wrong with the first that is not."""
        if holds.numel():
            self._pending.append((holds, otherwise))

    def settle(self) -> str | None:
        """What is wrong first, in the order of the conditions, if anything."""
        pending, self._pending = self._pending, []
        if not pending or bool(torch.stack([holds.all() for holds, _ in pending]).all()):
            return None
        for holds, otherwise in pending:
            wrong = torch.nonzero(~holds)
            if len(wrong):
                return otherwise(int(wrong[0, 0]))
        return None
