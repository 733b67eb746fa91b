"""The allocation log: as a table it is kept and read back, and a table that cannot be one is refused with its fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from replay_cases import Row, cached_prefixes, draft_trees, edited, find, mtp, rows_of
from report_cases import requests

import simkv
from simkv.allocations import CAUSES, COLUMNS, OPERATIONS
from simkv.errors import ReplayMismatch
from simkv.replayer.log import read_log


def table_of(run: simkv.Run) -> pa.Table:
    assert run.allocations is not None
    return run.allocations


def names_of(run: simkv.Run) -> list[str]:
    names: list[str] = run.requests["request_id"].tolist()
    return names


def damaged(column: str, change: Callable[[Any], Any]) -> pa.Table:
    """The table of the server with cached prefixes with another column."""
    table = table_of(cached_prefixes())
    return table.set_column(table.column_names.index(column), column, change(table.column(column)))


# Kept and read -----------------------------------------------------------------------------------------------------
def test_a_log_reads_as_it_was_written() -> None:
    run = cached_prefixes()
    log, rows = read_log(table_of(run), names_of(run)), rows_of(run)
    assert len(log) == len(rows)
    for name in COLUMNS:
        found = log.columns[name].tolist()
        words = {"operation": tuple(OPERATIONS), "cause": CAUSES}.get(name)
        assert [words[code] for code in found] if words else found == [row[name] for row in rows]
    for name in ("slots", "peers", "tokens"):
        assert [log.part(name, at, at + 1).tolist() for at in range(len(rows))] == [row[name] for row in rows]
    calls = [(operation, first, stop) for operation, first, stop in log.each_call()]
    assert [first for _, first, _ in calls] == [
        at for at, row in enumerate(rows) if not at or rows[at - 1]["call"] != row["call"]
    ]
    assert calls[-1][2] == len(rows)
    assert all(operation == rows[first]["operation"] for operation, first, _ in calls)


@pytest.mark.parametrize("run", [mtp, draft_trees, cached_prefixes])
def test_a_saved_run_has_the_same_log(run: Any, tmp_path: Path) -> None:
    made = run()
    made.save(tmp_path / "run", figures=False)
    again = simkv.load_run(tmp_path / "run")
    assert again.allocations is not None
    assert again.allocations.schema.names == table_of(made).schema.names
    assert rows_of(again) == rows_of(made)
    assert again.allocation_rows == made.allocation_rows == len(rows_of(made))
    found = simkv.replay(tmp_path / "run", device="cpu", layers=1)
    assert found.tags_read == simkv.replay(made, device="cpu", layers=1).tags_read


def test_a_log_in_parts_is_read_whole() -> None:
    run = cached_prefixes()
    table = table_of(run)
    half = table.num_rows // 2
    parts = pa.concat_tables([table.slice(0, half), table.slice(half)])
    assert parts.column("slots").num_chunks == 2
    plain = parts.set_column(2, "operation", parts.column("operation").cast(pa.string()))
    one, two = read_log(table, names_of(run)), read_log(plain, names_of(run))
    for name in COLUMNS:
        assert one.columns[name].tolist() == two.columns[name].tolist()
    for name in ("slots", "peers", "tokens"):
        assert one.flat[name].tolist() == two.flat[name].tolist()
        assert one.offsets[name].tolist() == two.offsets[name].tolist()


def test_a_run_without_a_log_has_no_file(tmp_path: Path) -> None:
    made = simkv.simulate(cached_prefixes().scenario, workload=requests([(5, 2)]))
    made.save(tmp_path / "run", figures=False)
    assert not (tmp_path / "run" / "allocations.parquet").exists()
    again = simkv.load_run(tmp_path / "run")
    assert (again.allocations, again.allocation_rows) == (None, None)


def test_slots_that_follow_each_other_take_next_to_nothing(tmp_path: Path) -> None:
    made = draft_trees()
    made.save(tmp_path / "run", figures=False)
    kept = pq.ParquetFile(tmp_path / "run" / "allocations.parquet").metadata
    assert kept.num_rows == made.allocation_rows
    sizes = {kept.row_group(0).column(i).path_in_schema: kept.row_group(0).column(i) for i in range(kept.num_columns)}
    slots = sizes["slots.list.element"]
    assert slots.num_values > 5000
    # Four bytes each as they are.
    assert slots.total_compressed_size < slots.num_values / 2


@pytest.mark.parametrize("run", [mtp, draft_trees, cached_prefixes])
def test_recording_changes_nothing_else(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate = simkv.simulate
    made = run()
    with monkeypatch.context() as patched:
        patched.setattr(
            simkv, "simulate", lambda *args, **more: simulate(*args, **more | {"record_allocations": False})
        )
        plain = run.__wrapped__()
    assert plain.allocations is None and made.allocations is not None
    for frame in ("timeline", "requests", "events"):
        pd.testing.assert_frame_equal(getattr(plain, frame), getattr(made, frame))
    pd.testing.assert_series_equal(plain.summary, made.summary)
    assert plain.plan == made.plan


# Refused -----------------------------------------------------------------------------------------------------------
def refused(table: pa.Table, *said: str) -> None:
    with pytest.raises(ReplayMismatch) as caught:
        read_log(table, names_of(cached_prefixes()))
    message = str(caught.value)
    assert [text for text in said if text not in message] == [], message


def test_a_table_of_another_kind() -> None:
    table = table_of(cached_prefixes())
    refused(
        table.drop_columns(["peers", "kept"]), "the log has no column kept, peers", "no allocation log of this version"
    )
    refused(pa.table({"a": [1]}), "the log has no column call, step")


@pytest.mark.parametrize(
    ("column", "change", "said"),
    [
        ("begin", lambda c: c.cast(pa.float64()), "column begin is double, not whole numbers"),
        ("call", lambda c: c.cast(pa.string()), "column call is string, not whole numbers"),
        ("end", lambda c: pc.if_else(pc.equal(c, c[5]), None, c), "column end has empty places"),
        ("slots", pc.list_value_length, "column slots is int64, not lists of whole numbers"),
        ("peers", lambda c: c.cast(pa.large_list(pa.float64())), "column peers is large_list<item: double>, not lists"),
        (
            "tokens",
            lambda c: pa.array([[None]] * len(c), pa.large_list(pa.int64())),
            "lists of tokens have empty places",
        ),
        ("slots", lambda c: pa.array([[1 << 40]] * len(c), pa.large_list(pa.int64())), "slots are numbers too large"),
        ("operation", lambda c: pa.array(["steal"] * len(c)), "operation 'steal' is not one of arrive, open, hit"),
        ("cause", lambda c: pa.array([3] * len(c)), "cause 3 is not one of -, prefill"),
    ],
)
def test_a_column_of_another_kind(column: str, change: Callable[[Any], Any], said: str) -> None:
    refused(damaged(column, change), f"the log cannot be read: {said}")


@pytest.mark.parametrize(
    ("operation", "columns", "said"),
    [
        ("compute", {"begin": -1}, "its token range is none"),
        ("compute", {"begin": 9, "end": 8}, "its token range is none"),
        ("open", {"request": 40}, "there are 40 requests"),
        ("free", {"request": -2}, "there are 40 requests"),
        ("close", {"request": -1}, "it is nobody's"),
        ("insert", {"request": -1}, "it is nobody's"),
        ("allocate", {"slots": [1, 2]}, "not a slot for every token"),
        ("hit", {"slots": []}, "not a slot for every token"),
        ("allocate", {"peers": [1, 2]}, "not a peer for every token"),
        ("move", {"peers": []}, "not a peer for every token"),
        ("compute", {"kept": 1000}, "more tokens are kept than computed"),
        ("compute", {"kept": -1}, "more tokens are kept than computed"),
        ("arrive", {"tokens": [5, 3, 7]}, "a run of tokens is a token and a length"),
        ("arrive", {"tokens": [5, 3, 7, 0]}, "a run of tokens is empty"),
        ("close", {"call": 0}, "its call is older than the one before"),
    ],
)
def test_a_row_that_contradicts_itself(operation: str, columns: dict[str, Any], said: str) -> None:
    rows = rows_of(cached_prefixes())
    at = find(rows, operation)
    changed = edited(cached_prefixes(), [row | columns if number == at else row for number, row in enumerate(rows)])
    refused(
        table_of(changed),
        f"row {at} of the log contradicts itself: {said}\n",
        f"\n  step {rows[at]['step']}: {operation}",
    )


@pytest.mark.parametrize(
    "columns", [{"operation": "open"}, {"step": 1000}, {"cause": "abort"}, {"full_available": 1}, {"swa_available": 1}]
)
def test_rows_of_one_call_that_disagree(columns: dict[str, Any]) -> None:
    rows = rows_of(cached_prefixes())
    at = next(n for n, row in enumerate(rows) if row["operation"] == "compute" and row["call"] == rows[n - 1]["call"])
    changed = edited(cached_prefixes(), [row | columns if number == at else row for number, row in enumerate(rows)])
    refused(table_of(changed), f"row {at} of the log cannot be of one call with the row before it")


def test_a_call_of_one_row_that_has_two() -> None:
    rows: list[Row] = rows_of(cached_prefixes())
    at = find(rows, "close")
    twice = [*rows[: at + 1], rows[at], *rows[at + 1 :]]
    refused(table_of(edited(cached_prefixes(), twice)), f"row {at + 1} of the log cannot be of one call")
