"""How much of what running requests may still generate admission keeps free (``new_token_ratio``)."""

from __future__ import annotations

from simkv.engines.sglang.settings import Settings

__all__ = ["NewTokenRatio"]

_MIN_FACTOR = 0.14  # environ.py:648


class NewTokenRatio:
    """The ratio: it starts high, decays with every decode step, and jumps where requests were retracted.

    Source: managers/scheduler_components/new_token_ratio_tracker.py:41-49, environ.py:646-650.

    Attributes
    ----------
    init, min, decay : float
        Where it starts, how low it gets, and by how much a step.
    current : float
    """

    def __init__(self, settings: Settings) -> None:
        self.init = min(settings.init_new_token_ratio * settings.schedule_conservativeness, 1.0)
        self.min = min(self.init * _MIN_FACTOR, 1.0)
        self.decay = (self.init - self.min) / settings.new_token_ratio_decay_steps
        self.current = self.init
        self._ahead = settings.retract_decode_steps

    def fall(self) -> None:
        """A decode step was planned without retracting anybody."""
        self.current = max(self.current - self.decay, self.min)

    def jump(self, requests: int, generated: int, wanted: int) -> None:
        """Requests were retracted; those that stay generated so many tokens of the ones they want in all."""
        self.current = min(1.0, (generated + self._ahead * requests) / (wanted + 1))

    def reset(self) -> None:
        """The server is idle."""
        self.current = self.init
