"""Append-only columns: one row a step, kept as typed numpy blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Recorder"]

_BLOCK = 8192


class Recorder:
    """Integer columns and float columns that grow in blocks.

    Parameters
    ----------
    ints, floats : sequence of str
        Column names. :meth:`append` takes the values in this order.
    """

    def __init__(self, ints: Sequence[str], floats: Sequence[str] = ()) -> None:
        self.ints = tuple(ints)
        self.floats = tuple(floats)
        self._full_ints: list[NDArray[np.int64]] = []
        self._full_floats: list[NDArray[np.float64]] = []
        self._new_block()

    def _new_block(self) -> None:
        self._int_block = np.empty((_BLOCK, len(self.ints)), np.int64)
        self._float_block = np.empty((_BLOCK, len(self.floats)), np.float64)
        self._place = 0

    def __len__(self) -> int:
        return len(self._full_ints) * _BLOCK + self._place

    def append(self, ints: tuple[int, ...], floats: tuple[float, ...] = ()) -> None:
        """Add one row, a value for every column.

        Raises
        ------
        ValueError
            Their number is not that of the columns.
        """
        if len(ints) != len(self.ints) or len(floats) != len(self.floats):
            raise ValueError(f"{len(ints)} + {len(floats)} values for {len(self.ints)} + {len(self.floats)} columns")
        if self._place == _BLOCK:
            self._full_ints.append(self._int_block)
            self._full_floats.append(self._float_block)
            self._new_block()
        self._int_block[self._place] = ints
        self._float_block[self._place] = floats
        self._place += 1

    def columns(self) -> dict[str, NDArray[np.int64] | NDArray[np.float64]]:
        """All rows, a contiguous array a column."""
        ints = np.concatenate([*self._full_ints, self._int_block[: self._place]])
        floats = np.concatenate([*self._full_floats, self._float_block[: self._place]])
        out: dict[str, NDArray[np.int64] | NDArray[np.float64]] = {}
        for number, name in enumerate(self.ints):
            out[name] = np.ascontiguousarray(ints[:, number])
        for number, name in enumerate(self.floats):
            out[name] = np.ascontiguousarray(floats[:, number])
        return out
