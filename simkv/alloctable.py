"""The allocation log as an Arrow table: what ``allocations.parquet`` holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from simkv.allocations import CAUSES, COLUMNS, OPERATIONS, AllocationLog
from simkv.workload.request import IntArray

__all__ = ["allocation_table", "parquet_options"]

# The columns that are names, and what they can be.
_NAMED = {"operation": tuple(OPERATIONS), "cause": CAUSES}


def allocation_table(log: AllocationLog, request_of: IntArray) -> pa.Table:
    """One row a stretch of tokens in a call.

    Parameters
    ----------
    log : AllocationLog
        What the engine wrote.
    request_of : int64 array
        Row in ``requests`` of each request, by the engine's handle.

    Returns
    -------
    pyarrow.Table
        :data:`simkv.allocations.COLUMNS`, ``operation`` and ``cause`` as dictionaries, ``request`` the row in
        ``requests`` (-1 for none); then ``slots`` and ``peers``, lists of int32, and ``tokens``, lists of int64.
    """
    found = log.columns()
    requests = found["request"]
    found["request"] = np.where(requests >= 0, request_of[requests], -1).astype(np.int32)
    columns: dict[str, Any] = {}
    for name in COLUMNS:
        if name in _NAMED:
            columns[name] = pa.DictionaryArray.from_arrays(pa.array(found[name]), pa.array(_NAMED[name]))
        else:
            columns[name] = pa.array(found[name])
    for name in ("slots", "peers", "tokens"):
        offsets = np.concatenate([[0], np.cumsum(found[f"num_{name}"], dtype=np.int64)])
        columns[name] = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(found[name]))
    return pa.table(columns)


def parquet_options() -> dict[str, Any]:
    """How the table is written: ids that follow each other take next to nothing."""
    flat = {f"{name}.list.element": "DELTA_BINARY_PACKED" for name in ("slots", "peers", "tokens")}
    numbers = {name: "DELTA_BINARY_PACKED" for name in COLUMNS if name not in _NAMED}
    return {
        "compression": "zstd",
        "use_dictionary": list(_NAMED),
        "column_encoding": {**numbers, **flat},
    }
