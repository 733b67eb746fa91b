from __future__ import annotations

import numpy as np
import pytest

from simkv.recorder import Recorder


@pytest.mark.parametrize("rows", [0, 1, 8191, 8192, 8193, 16384, 20000])
def test_rows_come_back_in_order_over_block_borders(rows: int) -> None:
    recorder = Recorder(("a", "b"), ("x",))
    for i in range(rows):
        recorder.append((i, -i), (i / 4,))
    columns = recorder.columns()
    assert len(recorder) == rows
    assert list(columns) == ["a", "b", "x"]
    want = np.arange(rows)
    assert (columns["a"] == want).all()
    assert (columns["b"] == -want).all()
    assert (columns["x"] == want / 4).all()
    assert [c.dtype for c in columns.values()] == [np.int64, np.int64, np.float64]
    assert all(len(c) == rows and c.flags.c_contiguous for c in columns.values())


def test_columns_are_a_snapshot_of_their_own() -> None:
    recorder = Recorder(("a",))
    recorder.append((1,))
    before = recorder.columns()
    before["a"][0] = 99
    recorder.append((2,))
    assert recorder.columns()["a"].tolist() == [1, 2]
    assert before["a"].tolist() == [99]


def test_integers_are_exact_up_to_64_bits() -> None:
    recorder = Recorder(("a",), ("x",))
    recorder.append((2**62 + 1,), (float("nan"),))
    columns = recorder.columns()
    assert columns["a"][0] == 2**62 + 1
    assert np.isnan(columns["x"][0])


def test_a_row_of_the_wrong_length_is_refused() -> None:
    recorder = Recorder(("a", "b", "c"))
    with pytest.raises(ValueError, match="columns"):
        recorder.append((1, 2))
    assert len(recorder) == 0


def test_a_row_of_one_value_is_refused() -> None:
    recorder = Recorder(("a", "b", "c"))
    with pytest.raises(ValueError):
        recorder.append((1,))
