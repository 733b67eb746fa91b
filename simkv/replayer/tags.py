"""What is written into memory in place of K and V: for every token a number that says whose it is.

The tag of a token is made of the token, its position and everything before it, which is what its K and V depend on: a
cached prefix has the same tags for every request it belongs to, and no other token has them. Rejected guesses and freed
slots get tags below zero, which say what they are.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simkv.replayer.log import ReplayLog

__all__ = ["Contents", "guess_tags", "poison_tag", "salt", "say_tag"]

_MASK = (1 << 64) - 1
_POSITIVE = (1 << 63) - 1
_POISON = -(1 << 63)
_GUESS = -(1 << 62)
_REQUEST_BITS, _POSITION_BITS, _ROUND_BITS = 24, 24, 13


def _signed(number: int) -> int:
    number &= _MASK
    return number - (1 << 64) if number >> 63 else number


_M1, _M2 = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)
_STEP = _signed(0x9E3779B97F4A7C15)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Right shift without the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mixed(x: Tensor) -> Tensor:
    """A permutation of 64-bit integers that leaves no pattern (splitmix64's finalizer)."""
    x = (x ^ _shifted(x, 30)) * _M1
    x = (x ^ _shifted(x, 27)) * _M2
    return x ^ _shifted(x, 31)


def _mixed_number(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def salt(worker: int, layer: int, part: int) -> int:
    """What a tensor's tags are combined with (exclusive or), so that no two tensors hold the same."""
    return _signed(_mixed_number((worker + 1) << 40 | (layer + 1) << 4 | part)) & _POSITIVE


class Contents:
    """Tags of the requests' tokens.

    Parameters
    ----------
    log : ReplayLog
        Its ``arrive`` rows say what requests are made of.
    device : torch.device
    """

    def __init__(self, log: ReplayLog, device: torch.device) -> None:
        self._device = device
        rows = np.flatnonzero(log.are("arrive"))
        self._row = np.full(len(log.names), -1, np.int64)
        self._row[log.columns["request"][rows]] = rows
        self._log = log

    def _runs(self, request: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """First token and position of each run, and a number for where it begins and what came before."""
        row = int(self._row[request])
        flat = self._log.part("tokens", row, row + 1).tolist() if row >= 0 else []
        runs: list[list[int]] = []
        for first, length in zip(flat[0::2], flat[1::2], strict=True):
            if runs and first == sum(runs[-1]):
                runs[-1][1] += length
            else:
                runs.append([first, length])
        chain, chains = 0, []
        for first, length in runs:
            chain = _mixed_number(chain ^ first & _MASK)
            chains.append(_signed(chain))
            chain = _mixed_number(chain ^ length)
        firsts, lengths = np.array(runs, np.int64).reshape(-1, 2).T
        return firsts, np.cumsum(lengths) - lengths, np.array(chains, np.int64)

    def tags(self, request: int, length: int) -> Tensor:
        """Tags of the first ``length`` tokens, int64; the last run goes on where more are asked for."""
        firsts, begins, chains = self._runs(request)
        if not len(firsts):
            firsts, begins, chains = np.array([-1 - request]), np.zeros(1, np.int64), np.full(1, request + 1)
        keep = begins < max(length, 1)
        lengths = np.diff(begins[keep], append=max(length, 1))
        run = torch.from_numpy(np.stack([firsts[keep] - begins[keep], chains[keep], lengths])).to(self._device)
        spread = torch.repeat_interleave(run[:2], run[2], dim=1, output_size=max(length, 1))[:, :length]
        token = spread[0] + torch.arange(length, device=self._device)
        return _mixed((token * _STEP) ^ spread[1]) & _POSITIVE

    def find(self, tag: int, longest: Callable[[int], int]) -> tuple[int, int] | None:
        """Request and position that a tag belongs to: the first request that has it."""
        for request in range(len(self._log.names)):
            hits = torch.nonzero(self.tags(request, longest(request)) == tag)
            if len(hits):
                return request, int(hits[0])
        return None


def guess_tags(requests: Tensor, positions: Tensor, call: int) -> Tensor:
    """Tags of drafted tokens that the target rejected: whose, where, and a number of the verify step."""
    packed = (requests << (_POSITION_BITS + _ROUND_BITS)) | (positions << _ROUND_BITS) | (call % (1 << _ROUND_BITS))
    return packed + _GUESS


def poison_tag(row: int) -> int:
    """What a slot gets when it is freed by a row of the log."""
    return _POISON + row


def say_tag(tag: int, log: ReplayLog, contents: Contents, longest: Callable[[int], int]) -> str:
    """A tag in words."""
    if tag < _GUESS:
        row = tag - _POISON
        return f"freed memory ({log.line(row)})" if row < len(log) else "no tag of this run"
    if tag < 0:
        packed = tag - _GUESS
        position = (packed >> _ROUND_BITS) % (1 << _POSITION_BITS)
        return f"a rejected guess of {log.who(packed >> (_POSITION_BITS + _ROUND_BITS))} at token {position:,}"
    found = contents.find(tag, longest)
    return "no tag of this run" if found is None else f"{log.who(found[0])} token {found[1]:,}"
