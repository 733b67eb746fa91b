"""Contents of requests as columns of the plain forms: runs of consecutive tokens, and where the answer begins."""

from __future__ import annotations

import numpy as np

from simkv.workload.formats.blocks import flattened
from simkv.workload.formats.cells import counts, int_lists
from simkv.workload.formats.table import Complaints, Table
from simkv.workload.request import IntArray
from simkv.workload.tokens import Contents

__all__ = ["ANSWER", "LENGTHS", "STARTS", "check_contents", "read_contents"]

STARTS, LENGTHS, ANSWER = "content_starts", "content_lengths", "content_answer"

_HIGHEST = 1 << 61  # sums of token and length stay inside 64 bits
_LONGEST = 10**12


def read_contents(table: Table, complaints: Complaints) -> Contents | None:
    """Contents of the rows, in file order; None where the file has none. Wrong rows are complained about."""
    there = [name for name in (STARTS, LENGTHS, ANSWER) if name in table.columns]
    if not there:
        return None
    lacking = [name for name in (STARTS, LENGTHS) if name not in there]
    if lacking:
        raise complaints.fail(f"is needed beside {there[0]}", lacking[0])
    lists = {name: int_lists(table, name, complaints) for name in (STARTS, LENGTHS)}
    for row, (starts, lengths) in enumerate(zip(lists[STARTS], lists[LENGTHS], strict=True)):
        wrong = ""
        if len(starts) != len(lengths):
            wrong = f"{STARTS} has {len(starts)} numbers, {LENGTHS} has {len(lengths)}; as many are needed"
        elif starts and not (min(starts) >= 0 and max(starts) <= _HIGHEST):
            wrong = f"{STARTS} goes from {min(starts)} to {max(starts)}; tokens from 0 to {_HIGHEST} are needed"
        elif lengths and not (min(lengths) >= 1 and max(lengths) <= _LONGEST):
            wrong = f"{LENGTHS} goes from {min(lengths)} to {max(lengths)}; from 1 to {_LONGEST} is needed"
        if wrong:
            lists[STARTS][row], lists[LENGTHS][row] = [], []
            if row not in complaints.bad_rows:
                complaints.row(row, wrong)
    (first, offsets), (number, _) = flattened(lists[STARTS]), flattened(lists[LENGTHS])
    answer = counts(table, ANSWER, complaints, least=-1, most=_HIGHEST) if ANSWER in there else None
    return Contents(first, number, offsets, answer)


def check_contents(contents: Contents, input_tokens: IntArray, complaints: Complaints) -> None:
    """Complain about rows whose runs are longer than their prompt."""
    ends = np.concatenate([[0], np.cumsum(contents.lengths)])[contents.offsets]
    total = np.diff(ends)
    for row in np.flatnonzero(total > input_tokens).tolist():
        if row not in complaints.bad_rows:
            complaints.row(row, f"{LENGTHS} add up to {total[row]}, above the prompt's {input_tokens[row]} tokens")
