"""The proof on real memory: a run's allocation log, executed on torch tensors."""

from simkv.replayer.outcome import Replay
from simkv.replayer.start import CHECKS, DEVICES, ENGINES, replay

__all__ = ["CHECKS", "DEVICES", "ENGINES", "Replay", "replay"]
