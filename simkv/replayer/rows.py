"""Rows of requests: the slot of every token they hold, and the tag its K and V must have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simkv.replayer.log import ReplayLog
from simkv.replayer.slots import spread
from simkv.replayer.tags import Contents

__all__ = ["NoRow", "Rows", "Stretches"]

Ints = NDArray[np.int64]


class NoRow(Exception):
    """A request that holds no row is told to do something with it; the argument is its place in the call."""


@dataclass(frozen=True, eq=False)
class Stretches:
    """Tokens ``begins[i]`` up to ``ends[i] - 1`` of requests, behind each other.

    Attributes
    ----------
    place : Tensor, shape (total,)
        Where each token is in the row table.
    which : Tensor, shape (total,)
        Stretch it belongs to.
    lengths : Tensor, shape (stretches,)
        Tokens of each stretch.
    """

    requests: Ints
    begins: Ints
    ends: Ints
    place: Tensor
    which: Tensor
    lengths: Tensor

    @property
    def total(self) -> int:
        """Tokens of all stretches."""
        return len(self.place)

    def find(self, at: int) -> tuple[int, int]:
        """Request and position of a token, for messages."""
        stops = np.cumsum(self.ends - self.begins)
        number = int(np.searchsorted(stops, at, side="right"))
        return int(self.requests[number]), int(self.ends[number]) - (int(stops[number]) - at)


class Rows:
    """The row table.

    Parameters
    ----------
    log : ReplayLog
        Says how many rows are open at once, and how long they get.
    contents : Contents
        What requests are made of.
    device : torch.device

    Attributes
    ----------
    slots, tags : int64 Tensor
        All rows behind each other: slot of each token (0 for none), and its tag.
    width : int
        Places of a row.
    """

    def __init__(self, log: ReplayLog, contents: Contents, device: torch.device) -> None:
        self._contents = contents
        self._device = device
        self.longest = np.zeros(len(log.names), np.int64)
        holding = log.are("allocate", "hit", "insert", "compute")
        np.maximum.at(self.longest, log.columns["request"][holding], log.columns["end"][holding])
        opened = log.are("open").astype(np.int64) - log.are("close")
        count = max(1, int(np.cumsum(opened).max(initial=0)))
        self.width = int(self.longest.max(initial=0)) + 1
        self.slots = torch.zeros(count * self.width, dtype=torch.int64, device=device)
        self.tags = torch.zeros(count * self.width, dtype=torch.int64, device=device)
        self._row_of = np.full(len(log.names), -1, np.int64)
        self._free = list(range(count))
        # Tokens that each open row has held a slot for.
        self._extent = np.zeros(len(log.names), np.int64)

    @property
    def bytes(self) -> int:
        """Memory of the table."""
        return self.slots.nbytes + self.tags.nbytes

    def holds(self, request: int) -> bool:
        """Whether a request has a row."""
        return request >= 0 and bool(self._row_of[request] >= 0)

    @property
    def open_requests(self) -> list[int]:
        """Requests that have a row."""
        found: list[int] = np.flatnonzero(self._row_of >= 0).tolist()
        return found

    def open(self, request: int) -> None:
        """Give a request a row without slots, and with the tags of its tokens."""
        row = self._row_of[request] = self._free.pop()
        begin, length = int(row) * self.width, int(self.longest[request])
        self.slots[begin : begin + self.width] = 0
        self.tags[begin : begin + length] = self._contents.tags(request, length)
        self._extent[request] = 0

    def close(self, request: int) -> None:
        """Take a row back."""
        self._free.append(int(self._row_of[request]))
        self._row_of[request] = -1

    def of(self, request: int) -> Tensor:
        """Slots that a request's row has had, a view."""
        begin = int(self._row_of[request]) * self.width
        return self.slots[begin : begin + int(self._extent[request])]

    def grow(self, requests: Ints, ends: Ints) -> None:
        """Rows reach so far."""
        self._extent[requests] = np.maximum(self._extent[requests], ends)

    def stretches(self, requests: Ints, begins: Ints, ends: Ints) -> Stretches:
        """Places of tokens.

        Raises
        ------
        NoRow
            A request has no row.
        """
        rows = self._row_of[requests]
        if bool((rows < 0).any()):
            raise NoRow(int(np.flatnonzero(rows < 0)[0]))
        starts, lengths = torch.from_numpy(np.stack([rows * self.width + begins, ends - begins])).to(self._device)
        place, which = spread(starts, lengths, int((ends - begins).sum()))
        return Stretches(requests, begins, ends, place, which, lengths)

    def before(self, requests: Ints, begins: Ints) -> Tensor:
        """Slot in front of a position of each row, -1 at its beginning."""
        places = np.where(begins > 0, self._row_of[requests] * self.width + begins - 1, 0)
        place, first = torch.from_numpy(np.stack([places, begins == 0])).to(self._device)
        return torch.where(first > 0, -1, self.slots[place])
