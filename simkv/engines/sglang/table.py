"""State of requests: a row of columns each."""

from __future__ import annotations

import numpy as np

from simkv.workload.request import IntArray

__all__ = ["FINISHED", "LIVE", "RETRACTED", "RequestTable"]

LIVE, RETRACTED, FINISHED = 0, 1, 2

_COLUMNS = (
    "input_tokens",
    "max_new",
    "stop_at",
    "output",
    "committed",
    "allocated",
    "protected",
    "branch",
    "swa_evicted",
    "decode_idx",
    "extend_idx",
    "prefix_len",
    "extend_end",
    "middle_chunks",
    "verifies",
    "finished_len",
    "retractions",
    "status",
)


class RequestTable:
    """Columns of request state, indexed by handle.

    ``input_tokens``, ``max_new`` (after clipping), ``stop_at`` (output length at which the request ends), ``output``
    (tokens generated and processed), ``committed`` / ``allocated`` (valid KV and slots held, ``kv_committed_len`` and
    ``kv_allocated_len``), ``protected`` (prefix owned by the tree, ``cache_protected_len``), ``branch``
    (``swa_branching_seqlen``, 0 for none), ``swa_evicted`` (window cursor), ``decode_idx`` / ``extend_idx`` (batches
    prepared), ``prefix_len`` / ``extend_end`` (span of the last prefill chunk), ``middle_chunks`` (chunks in flight
    that are not the last), ``verifies`` (verify steps launched), ``finished_len`` (tokens the client gets; -1 while
    running), ``retractions``, ``status``.
    """

    input_tokens: IntArray
    max_new: IntArray
    stop_at: IntArray
    output: IntArray
    committed: IntArray
    allocated: IntArray
    protected: IntArray
    branch: IntArray
    swa_evicted: IntArray
    decode_idx: IntArray
    extend_idx: IntArray
    prefix_len: IntArray
    extend_end: IntArray
    middle_chunks: IntArray
    verifies: IntArray
    finished_len: IntArray
    retractions: IntArray
    status: IntArray

    def __init__(self, capacity: int = 1024) -> None:
        self.size = 0
        self._data = np.zeros((len(_COLUMNS), max(capacity, 1)), np.int64)
        self.ignore_eos = np.zeros(max(capacity, 1), np.bool_)
        self.to_abort = np.zeros(max(capacity, 1), np.bool_)
        self._name_columns()

    def _name_columns(self) -> None:
        for name, column in zip(_COLUMNS, self._data, strict=True):
            setattr(self, name, column)

    def add(self, input_tokens: int, max_new: int, stop_at: int, *, ignore_eos: bool, to_abort: bool) -> int:
        """Append a request; returns its handle."""
        handle = self.size
        if handle == self._data.shape[1]:
            self._data = np.concatenate([self._data, np.zeros_like(self._data)], axis=1)
            self.ignore_eos = np.concatenate([self.ignore_eos, np.zeros_like(self.ignore_eos)])
            self.to_abort = np.concatenate([self.to_abort, np.zeros_like(self.to_abort)])
            self._name_columns()
        self.size += 1
        self.input_tokens[handle] = input_tokens
        self.max_new[handle] = max_new
        self.stop_at[handle] = stop_at
        self.finished_len[handle] = -1
        self.ignore_eos[handle] = ignore_eos
        self.to_abort[handle] = to_abort
        return handle
