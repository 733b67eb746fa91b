"""Trace readers and writers against values worked out by hand, and against the published figures of real traces."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simkv.errors import Problem, TraceError
from simkv.workload.formats.cells import to_ns
from simkv.workload.formats.write import decimal_text
from simkv.workload.request import Blocks, Workload, WorkloadInfo
from simkv.workload.tokens import Contents
from simkv.workload.traces import FORMATS, describe, fit_context, load_profile, read_trace, reusable_share, write_trace

DATA = Path(__file__).parents[1] / "data" / "traces"
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write lines to a file and give its path."""

    def write(*lines: str, name: str = "trace.csv", end: str = "\n") -> Path:
        path = tmp_path / name
        path.write_bytes((end.join(lines) + end).encode())
        return path

    return write


def mooncake(stamp: object, given: int = 10, made: int = 1, **more: object) -> str:
    return json.dumps({"timestamp": stamp, "input_length": given, "output_length": made} | more)


def problems(path: Path, **options: object) -> list[Problem]:
    with pytest.raises(TraceError) as caught:
        read_trace(path, **options)  # type: ignore[arg-type]
    return list(caught.value.problems)


def same_columns(one: Workload, two: Workload) -> bool:
    def plain(w: Workload) -> tuple[object, ...]:
        blocks, accept = w.blocks, w.accept
        columns = (w.arrival_ns, w.input_tokens, w.output_tokens, w.max_new_tokens, w.session, w.think_ns, w.previous)
        contents = None if w.contents is None else (w.contents.starts, w.contents.lengths, w.contents.offsets)
        return (
            None if contents is None else [part.tolist() for part in contents],
            None if w.contents is None or w.contents.outputs is None else w.contents.outputs.tolist(),
            *(None if column is None else column.tolist() for column in columns),
            *(w.request_id, w.ignore_eos, w.concurrency),
            None if accept is None else [part.tolist() for part in accept],
            None if blocks is None else (blocks.ids.tolist(), blocks.offsets.tolist(), blocks.block_size),
        )

    return plain(one) == plain(two) and one.digest() == two.digest()


# ------------------------------------------------------------------------------------------------------ the formats

THREE_ARRIVALS = [0, 1_500_000_100, 2_000_000_000]


@pytest.mark.parametrize(
    ("name", "format", "unit"),
    [
        ("azure.csv", "azure", "wall clock (date without zone)"),
        ("vidur.csv", "vidur", "s (as vidur has it)"),
        ("vidur_old.csv", "vidur", "s (as vidur has it)"),
        ("mooncake.jsonl", "mooncake", "ms (as mooncake has it)"),
        ("plain.csv", "csv", "ms (column arrival_ms)"),
        ("plain.jsonl", "jsonl", "ms (column arrival_ms)"),
    ],
)
def test_R62_three_rows_read_alike_in_every_form(name: str, format: str, unit: str) -> None:
    workload = read_trace(DATA / name)
    assert workload.info.format == format
    assert workload.info.time_unit == unit
    assert workload.arrival_ns.tolist() == THREE_ARRIVALS
    assert workload.input_tokens.tolist() == [300, 40, 1100]
    assert workload.output_tokens.tolist() == [20, 5, 0]
    assert (workload.info.rows, workload.info.zero_output, workload.info.out_of_order) == (3, 1, 0)


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_R62_byte_order_mark_and_line_ends_do_not_matter(write: Write, mark: str, end: str) -> None:
    path = write(
        f"{mark}TIMESTAMP,ContextTokens,GeneratedTokens",
        *("2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:50.9951690,396,109"),
        end=end,
    )
    workload = read_trace(path)
    assert workload.arrival_ns.tolist() == [0, 4_314_579_000]
    assert "rebased: the first arrival, 2023-11-16T18:15:46.680590000, is t=0" in workload.info.notes


def test_R62_unknown_header_lists_what_the_nearest_formats_lack(write: Write) -> None:
    (problem,) = problems(write("TIMESTAMP,ContextTokens,Generated", "2023-11-16 18:15:46.0,374,44"))
    assert problem.message == (
        "fits no trace format: azure lacks GeneratedTokens; did you mean Generated? (found TIMESTAMP, ContextTokens, Generated)"
    )
    (problem,) = problems(write("when,in,out", "1,2,3"))
    assert "csv lacks input_tokens, output_tokens" in problem.message


def test_R62_stated_format_lists_what_it_lacks(write: Write) -> None:
    path = write("TIMESTAMP,ContextTokens", "1,2")
    assert "azure lacks column GeneratedTokens" in problems(path, format="azure")[0].message
    (problem,) = problems(path, format="azur")
    assert problem.place == "format"
    assert problem.message.endswith("did you mean azure?")
    assert "the file is csv" in problems(path, format="jsonl")[0].message


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-01 00:00:00.0000001", 100),
        ("1970-01-01T00:00:01Z", 10**9),
        ("1970-01-01 01:00:00+01:00", 0),
        ("1970-01-01 00:00:00-0030", 1800 * 10**9),
        ("1970-01-01 00:00:00.1234567891", 123_456_789),
    ],
)
def test_dates_keep_their_digits_and_zone(write: Write, text: str, ns: int) -> None:
    zone = "+00:00" if text[-1] == "Z" or text[-6:-5] in "+-" or text[-5] == "-" else ""
    rows = (f"1970-01-01 00:00:00{zone},1,1", f"{text},1,1")
    workload = read_trace(write("TIMESTAMP,ContextTokens,GeneratedTokens", *rows))
    assert workload.arrival_ns.tolist() == [0, ns]


def test_dates_with_and_without_a_zone_are_not_mixed(write: Write) -> None:
    rows = ("2024-05-12 00:00:00+00:00,1,1", "2024-05-12 00:00:01,1,1", "17,1,1")
    found = problems(write("TIMESTAMP,ContextTokens,GeneratedTokens", *rows), time_unit="s")
    assert [p.place for p in found] == ["trace.csv:3", "trace.csv:4"]
    assert "date without zone" in found[0].message


def test_impossible_date_is_refused(write: Write) -> None:
    rows = ("2024-02-30 00:00:00,1,1", "2024-02-28 25:00:00,1,1", "2024-02-28 00:00:00,1,1")
    assert len(problems(write("TIMESTAMP,ContextTokens,GeneratedTokens", *rows))) == 2


@pytest.mark.parametrize(
    ("number", "unit", "ns"),
    [
        ("5.8926549999999995", "s", 5_892_655_000),
        ("46.927", "ms", 46_927_000),
        ("0.0000000005", "s", 0),
        ("1e3", "us", 1_000_000),
        (1_787_000_000_123_457, "us", 1_787_000_000_123_457_000),
        ("1787000000.1234567", "s", 1_787_000_000_123_456_700),
    ],
)
def test_numbers_become_nanoseconds_exactly(number: object, unit: str, ns: int) -> None:
    assert to_ns(number, unit) == ns


@given(st.integers(0, 2**62), st.sampled_from(["s", "ms", "us", "ns"]))
def test_decimal_text_reads_back(ns: int, unit: str) -> None:
    assert to_ns(decimal_text(ns, unit), unit) == ns


def test_burstgpt_counts_failures_and_tells_the_version() -> None:
    first, third = read_trace(DATA / "burstgpt_1.csv"), read_trace(DATA / "burstgpt_3.csv")
    assert first.arrival_ns.tolist() == third.arrival_ns.tolist() == [0, 2 * 10**9, 9 * 10**9]
    assert first.info.zero_output == third.info.zero_output == 1
    assert (first.session, first.info.format) == (None, "burstgpt")
    assert third.session is not None
    assert third.session.tolist() == [0, 1, 0]
    assert "BurstGPT version 1 or 2 (no sessions)" in first.info.notes
    assert "BurstGPT version 3 (sessions)" in third.info.notes


def test_bailian_sessions_are_named_by_their_root_chat() -> None:
    workload = read_trace(DATA / "bailian.jsonl")
    assert workload.info.format == "bailian"
    assert workload.arrival_ns.tolist() == [250_000_000, 1_500_000_000, 4_000_000_000, 6_000_000_000]
    assert workload.request_id == ("7", "8", "9", "12")
    assert workload.session is not None
    assert workload.session.tolist() == [7, 8, 7, 7]
    assert workload.blocks is not None
    assert workload.blocks.block_size == 16
    assert describe(workload)["reusable_block_share"] == 4 / 11  # 1 of request 9, 3 of request 12


def test_bailian_with_a_ring_of_parents_ends(write: Write) -> None:
    rows = [mooncake(i, chat_id=i, parent_chat_id=1 - i) for i in range(2)]
    assert read_trace(write(*rows, name="t.jsonl")).info.format == "bailian"


@pytest.mark.parametrize("name", ["weka.csv", "weka.jsonl"])
def test_weka_sessions_and_sub_agents(name: str) -> None:
    workload = read_trace(DATA / name)
    start = 2.5 if name == "weka.csv" else 3.0  # end of the main request above; or 9.5 s less 6.5 s
    assert workload.info.format == "weka"
    assert workload.request_id == ("t1/main/0", "t2/main/0", "t1/agent_001/0", "t1/agent_001/1", "t1/main/1")
    assert (workload.arrival_ns / 1e9).tolist() == [0.0, 0.0, start, start + 4.0, 20.0]
    assert workload.session is not None
    assert workload.session.tolist() == [0, 1, 2, 2, 0]
    blocks = workload.blocks
    assert blocks is not None
    assert blocks.block_size == 64
    assert np.diff(blocks.offsets).tolist() == [3, 1, 2, 2, 5]
    own = [set(part.tolist()) for part in np.split(blocks.ids, blocks.offsets[1:-1])]
    assert not own[0] & own[1], "ids belong to their session"
    assert [len(own[2] & own[3]), len(own[0] & own[4])] == [1, 3]
    assert reusable_share(blocks) == 4 / 13
    assert "each session has a clock of its own: all 2 start at t=0" in workload.info.notes


@pytest.mark.parametrize("name", ["weka.csv", "weka.jsonl"])
def test_weka_sessions_may_be_spaced(name: str) -> None:
    workload = read_trace(DATA / name, rate=0.5)
    assert dict(zip(workload.request_id, workload.arrival_ns.tolist(), strict=True))["t2/main/0"] == 2 * 10**9


def test_weka_blocks_do_not_depend_on_what_is_kept(write: Write) -> None:
    whole, part = read_trace(DATA / "weka.csv"), read_trace(DATA / "weka.csv", start_s=10)
    assert whole.blocks is not None
    assert part.blocks is not None
    assert part.blocks.ids.tolist() == whole.blocks.ids[-5:].tolist()


def test_weka_rows_that_share_too_much_are_refused(write: Write) -> None:
    lines = (DATA / "weka.csv").read_text().splitlines()
    lines[4] = lines[4].replace("330,12,5,3", "330,12,5,4")
    lines[5] = lines[5].replace("100,3,1,0", "100,3,2,0")
    found = problems(write(*lines))
    assert [p.place for p in found] == ["trace.csv:5", "trace.csv:6"]
    assert found[0].message == "shares 4 blocks, but has 5 and the request before 3"


def test_weka_broken_session_is_named(write: Write) -> None:
    good = (DATA / "weka.jsonl").read_text().splitlines()
    bad = json.dumps({"id": "t3", "block_size": 64, "requests": [{"t": 0, "in": -1, "out": 2, "hash_ids": []}, 5]})
    found = problems(write(*good, bad, json.dumps({"id": "t4", "requests": None}), name="t.jsonl"))
    assert {p.place for p in found} == {"t.jsonl:3", "t.jsonl:4"}


def test_tracelab_times_have_zones() -> None:
    workload = read_trace(DATA / "tracelab.csv")
    assert workload.arrival_ns.tolist() == [0, 500_000_000]
    assert workload.request_id == ("a/0", "a/1")


def test_plain_columns_are_all_read() -> None:
    for name in ("plain.csv", "plain.jsonl"):
        workload = read_trace(DATA / name)
        assert workload.request_id == ("r1", "r2", "r,3")
        assert workload.session is not None
        assert workload.session.tolist() == [0, -1, 0]
        assert workload.max_new_tokens is not None
        assert workload.max_new_tokens.tolist() == [64, 8, 0]
        assert workload.accept is not None
        assert [part.tolist() for part in workload.accept] == [[3, 1, 4], [1], [2]]
        assert not workload.ignore_eos
        assert read_trace(DATA / name, ignore_eos=True).ignore_eos


def test_columns_may_be_named(write: Write) -> None:
    path = write("t,prompt,answer,input_tokens,colour", "0,5,6,99,red", "2,7,8,99,blue")
    named = {"arrival_s": "t", "input_tokens": "prompt", "output_tokens": "answer"}
    workload = read_trace(path, columns=named)
    assert workload.arrival_ns.tolist() == [0, 2 * 10**9]
    assert workload.input_tokens.tolist() == [5, 7]
    assert "columns not used: colour" in workload.info.notes
    (problem,) = problems(path, columns={"input_tokens": "promt"})
    assert "promt; did you mean prompt?" in problem.message


def test_gzip_is_read_whatever_its_name(tmp_path: Path) -> None:
    path = tmp_path / "packed.csv"
    path.write_bytes(gzip.compress((DATA / "azure.csv").read_bytes()))
    assert read_trace(path).arrival_ns.tolist() == THREE_ARRIVALS


def test_every_format_is_registered_by_its_name() -> None:
    assert all(kind.name == name for name, kind in FORMATS.items())
    assert set(FORMATS) == {"azure", "mooncake", "burstgpt", "vidur", "weka", "bailian", "tracelab", "csv", "jsonl"}


# ------------------------------------------------------------------------------------------------------- time units


def test_R58_unit_span_and_rate_are_stated(write: Write) -> None:
    path = write(*(mooncake(stamp) for stamp in range(0, 3301, 300)), name="t.jsonl")
    own = read_trace(path)
    assert (len(own), own.span_s, own.info.time_unit) == (12, 3.3, "ms (as mooncake has it)")
    assert own.mean_rate == pytest.approx(11 / 3.3)
    stated = read_trace(path, time_unit="s")
    assert (stated.span_s, stated.info.time_unit) == (3300.0, "s (as stated; mooncake has ms)")
    assert stated.mean_rate == pytest.approx(11 / 3300)


def test_R58_ambiguous_unit_must_be_stated(write: Write) -> None:
    path = write("timestamp,input_tokens,output_tokens", "0,1,1", "5,1,1")
    (problem,) = problems(path)
    assert problem.place == "time_unit"
    assert read_trace(path, time_unit="ms").arrival_ns.tolist() == [0, 5_000_000]


def test_R58_stated_unit_must_agree_with_the_name_of_the_column(write: Write) -> None:
    path = write("arrival_ms,input_tokens,output_tokens", "0,1,1")
    assert problems(path, time_unit="s")[0].place == "time_unit"


def test_R59_send_times_of_another_origin_are_rebased(write: Write) -> None:
    path = write(
        "send_time_us,arrival_time_us,deadline_us,input_tokens,output_tokens",
        *(f"{1_787_000_000_000_000 + i * 1_000_000},{i * 1_000_000},300000000,10,2" for i in range(3)),
    )
    workload = read_trace(path)
    assert workload.arrival_ns.tolist() == [0, 10**9, 2 * 10**9]
    assert any("send_time_us begins 1.787e+09 s from arrival_time_us" in note for note in workload.info.notes)
    assert "columns not used: deadline_us" in workload.info.notes


def test_R59_epoch_times_alone_are_rebased(write: Write) -> None:
    stamps = (f"{1_787_000_000_000_000 + i * 1_000_000},10,2" for i in range(3))
    workload = read_trace(write("send_time_us,input_tokens,output_tokens", *stamps))
    assert workload.arrival_ns.tolist() == [0, 10**9, 2 * 10**9]
    assert any(note.startswith("rebased: the first arrival, 2026-") for note in workload.info.notes)


def test_R59_origin_later_than_the_span_is_rebased(write: Write) -> None:
    path = write(*(mooncake(stamp) for stamp in (90_000, 90_500, 91_000)), name="t.jsonl")
    workload = read_trace(path)
    assert workload.arrival_ns.tolist() == [0, 500_000_000, 10**9]
    assert "rebased: the first arrival, 90 s, later than the span of the trace, is t=0" in workload.info.notes


def test_R59_epoch_in_the_wrong_unit_is_refused(write: Write) -> None:
    (problem,) = problems(write(mooncake(1_787_000_000_000_000), name="t.jsonl"))
    assert "past the year 2262" in problem.message


# -------------------------------------------------------------------------------------------------------- wrong rows

FIVE = ("arrival_s,input_tokens,output_tokens", "0,10,5", "1,10,0", "2,0,5", "-1,10,5", ",10,5")


def test_R60_wrong_rows_are_refused_with_their_lines(write: Write) -> None:
    found = problems(write(*FIVE))
    assert [(p.place, p.message.split(";")[0]) for p in found] == [
        ("trace.csv:4", "input_tokens is 0"),
        ("trace.csv:5", "arrival_s is -1"),
        ("trace.csv:6", "arrival_s is missing (1 of 5 rows lack it"),
    ]


def test_R60_wrong_rows_may_be_dropped_and_are_counted(write: Write) -> None:
    workload = read_trace(write(*FIVE), bad_rows="drop")
    assert workload.output_tokens.tolist() == [5, 0]
    assert (workload.info.rows, workload.info.zero_output) == (5, 1)
    assert workload.info.notes[0] == "3 rows left out"
    assert workload.info.notes[1].startswith("left out: trace.csv:4 input_tokens is 0")


@pytest.mark.parametrize("cell", ["", "NaN", "-1", "1.5", "abc", "1_0", "inf", "1e30", "true", "1e999999"])
def test_bad_counts_are_refused(write: Write, cell: str) -> None:
    assert len(problems(write("arrival_s,input_tokens,output_tokens", f"0,1,{cell}", "1,1,1"))) == 1


@pytest.mark.parametrize("cell", [None, float("nan"), -1, 1.5, True, [], "x", {}])
def test_bad_counts_are_refused_in_json(write: Write, cell: object) -> None:
    row = json.dumps({"timestamp": 0, "input_length": 5, "output_length": cell})
    assert [p.place for p in problems(write(row, mooncake(1), name="t.jsonl"))] == ["t.jsonl:1"]


@pytest.mark.parametrize("cell", ["NaN", "-0.5", "soon", "inf", "2024-13-01 00:00:00"])
def test_bad_times_are_refused(write: Write, cell: str) -> None:
    assert [p.place for p in problems(write("arrival_s,input_tokens,output_tokens", "0,1,1", f"{cell},1,1"))] == [
        "trace.csv:3"
    ]


def test_whole_numbers_may_be_written_with_a_point(write: Write) -> None:
    assert read_trace(write("arrival_s,input_tokens,output_tokens", "0, 7.0 ,5e1")).output_tokens.tolist() == [50]


def test_long_lists_of_problems_are_cut(write: Write) -> None:
    found = problems(write("arrival_s,input_tokens,output_tokens", *(["0,0,1"] * 30)))
    assert len(found) == 21
    assert found[-1] == Problem("trace.csv", "and 10 more")


def test_R69_short_rows_are_named_and_counted(write: Write) -> None:
    lines = ["arrival_s,input_tokens,output_tokens", *(f"{i},65536,10" for i in range(100))]
    lines[50:50] = ["7,65536", "8"]
    path = write(*lines)
    assert [(p.place, p.message) for p in problems(path)] == [
        ("trace.csv:51", "has 2 fields, the header has 3"),
        ("trace.csv:52", "has 1 fields, the header has 3"),
    ]
    workload = read_trace(path, bad_rows="drop")
    assert (len(workload), workload.info.rows) == (100, 102)
    assert workload.info.notes[0] == "2 rows left out"


def test_R65_lengths_are_never_cut_silently(write: Write) -> None:
    path = write("arrival_s,input_tokens,output_tokens", "0,1024,1024", "1,1030,1024", "2,3000,10")
    workload = read_trace(path)
    assert workload.input_tokens.tolist() == [1024, 1030, 3000]
    refused, clipped, dropped = (fit_context(workload, 2048, how) for how in ("refuse", "clip", "drop"))
    assert refused.info.notes[-1] == (
        "2 of 3 requests exceed 2048 tokens (1 by 6, 2 by 962): left to the engine to refuse"
    )
    assert refused.output_tokens.tolist() == [1024, 1024, 10]
    assert clipped.output_tokens.tolist() == [1024, 1018, 10]
    assert dropped.request_id == ("0",)
    assert fit_context(workload, 4096) is workload


def test_what_clients_ask_for_and_what_the_draft_keeps_count_against_the_context(write: Write) -> None:
    path = write(
        "arrival_s,input_tokens,output_tokens,max_new_tokens", "0,1000,50,1500", "1,1000,50,1028", "2,2040,1,5"
    )
    workload = read_trace(path)
    clipped = fit_context(workload, 2048, "clip", reserved=20)
    assert clipped.max_new_tokens is not None
    assert clipped.max_new_tokens.tolist() == [1028, 1028, 5]
    assert clipped.output_tokens.tolist() == [50, 50, 1]
    assert clipped.info.notes[-1] == (
        "2 of 3 requests exceed 2048 tokens (20 of them kept for the draft) (0 by 472, 2 by 17): answers clipped, but "
        "for 1 whose prompt leaves no room"
    )
    assert fit_context(workload, 2048, "drop", reserved=20).request_id == ("1",)


def test_a_rate_that_stretches_a_trace_beyond_all_bounds_is_refused(write: Write) -> None:
    path = write("arrival_s,input_tokens,output_tokens", "0,1,1", "1,1,1")
    assert problems(path, rate_scale=1e-300)[0].place == "rate_scale"


def test_R66_duplicates_and_contradictions_are_named(write: Write) -> None:
    rows = (
        mooncake(0, request_id="a"),
        mooncake(1, 20, request_id="a"),
        mooncake(2, 30),
        mooncake(3, made=6, request_id="b", output_token_ids=[1, 2, 3, 4, 5]),
    )
    path = write(*rows, name="t.jsonl")
    assert [(p.place, p.message) for p in problems(path)] == [
        ("t.jsonl:1", "request id a is also on line 2"),
        ("t.jsonl:2", "request id a is also on line 1"),
        ("t.jsonl:4", "5 output_token_ids, but output_length is 6"),
    ]
    workload = read_trace(path, bad_rows="drop")
    assert (workload.request_id, workload.info.rows) == (("row-0",), 4)


def test_R66_plain_output_token_ids_are_checked(write: Write) -> None:
    row = {"arrival_s": 0, "input_tokens": 5, "output_tokens": 2, "output_token_ids": [1, 2, 3]}
    assert "3 output_token_ids" in problems(write(json.dumps(row), name="t.jsonl"))[0].message


def test_an_answer_longer_than_asked_for_is_refused(write: Write) -> None:
    (problem,) = problems(write("arrival_s,input_tokens,output_tokens,max_new_tokens", "0,1,9,8"))
    assert problem.message == "output_tokens is 9, above max_new_tokens 8"


def test_R67_no_times_is_a_closed_batch(write: Write) -> None:
    path = write("input_tokens,output_tokens", *(["10,2"] * 100))
    batch = read_trace(path)
    assert not batch.arrival_ns.any()
    assert "no times in the file: all 100 arrive at t=0" in batch.info.notes
    paced = read_trace(path, rate=4.0)
    assert paced.arrival_ns[:3].tolist() == [0, 250_000_000, 500_000_000]
    assert "no times in the file: 100 arrivals evenly spaced at 4 a second" in paced.info.notes


def test_R67_some_missing_times_are_an_error(write: Write) -> None:
    rows = [f"{'' if i in (3, 50, 99) else i},10,2" for i in range(100)]
    found = problems(write("arrival_s,input_tokens,output_tokens", *rows))
    assert [p.place for p in found] == ["trace.csv:5", "trace.csv:52", "trace.csv:101"]
    assert "3 of 100 rows" in found[0].message


def test_R67_complete_times_leave_no_place_for_a_rate(write: Write) -> None:
    path = write("arrival_s,input_tokens,output_tokens", *(f"{i},10,2" for i in range(100)))
    assert read_trace(path).span_s == 99.0
    assert problems(path, rate=2.0)[0].place == "rate"


def test_lengths_alone_have_no_times() -> None:
    workload = read_trace(DATA / "vidur_lengths.csv")
    assert workload.info.time_unit == "none (no times in the file)"
    assert workload.input_tokens.tolist() == [300, 40, 1100]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is empty"),
        (b"arrival_s,input_tokens,output_tokens\n", "has no readable row"),
        (b"[1, 2]", "one JSON array"),
        (b"\xff\xfe1,2", "is not UTF-8 text"),
        (b"\x1f\x8b\x08\x00broken", "is a damaged gzip file"),
        (b"a,a\n1,2\n", "names a column twice: a"),
        (b'input_tokens\n"' + b"1" * 200_000 + b'"\n', "is no CSV"),
        (b"{\n", "has no readable row"),
    ],
)
def test_unreadable_files_are_the_users_errors(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "t"
    path.write_bytes(content)
    assert told in problems(path)[0].message


def test_missing_file_and_folder_are_the_users_errors(tmp_path: Path) -> None:
    assert "No such file" in problems(tmp_path / "none.csv")[0].message
    assert "cannot be read" in problems(tmp_path)[0].message


def test_broken_json_lines_are_named(write: Write) -> None:
    found = problems(write(mooncake(0), "{oops", "7", mooncake(1), name="t.jsonl"))
    assert [p.place for p in found] == ["t.jsonl:2", "t.jsonl:3"]


def test_options_are_checked_all_at_once() -> None:
    found = problems(
        DATA / "azure.csv", rate_scale=0, limit=0, start_s=-1, time_unit="sec", turns="deltas", rate=float("nan")
    )
    assert [p.place for p in found] == ["rate_scale", "limit", "start_s", "time_unit", "rate", "turns"]


# ------------------------------------------------------------------------------------------- order, selection, sessions


def test_R68_shuffled_and_sorted_files_read_alike(write: Write) -> None:
    lines = [mooncake(i * 10, 100 + i, i, session_id=f"s{i % 7}", hash_ids=[i % 5]) for i in range(50)]
    ordered = read_trace(write(*lines, name="a.jsonl"), block_size=512)
    random.Random(3).shuffle(lines)
    shuffled = read_trace(write(*lines, name="b.jsonl"), block_size=512)
    assert same_columns(ordered, shuffled)
    assert ordered.request_id[:3] == ("0", "1", "2")
    assert ordered.info.out_of_order == 0
    stamps = [json.loads(line)["timestamp"] for line in lines]
    assert shuffled.info.out_of_order == sum(b < a for a, b in pairwise(stamps)) > 0


def test_R68_equal_arrivals_keep_file_order(write: Write) -> None:
    lines = ["2,1,0", "1,2,0", "2,3,0", "1,4,0", "2,5,0"]
    workload = read_trace(write("arrival_s,input_tokens,output_tokens", *lines))
    assert workload.input_tokens.tolist() == [2, 4, 1, 3, 5]
    assert workload.info.out_of_order == 2


def test_window_then_limit_then_rate(write: Write) -> None:
    path = write("arrival_s,input_tokens,output_tokens", *(f"{i},{i + 1},1" for i in range(10)))
    workload = read_trace(path, start_s=2.5, end_s=7, limit=3, rate_scale=2.0)
    assert workload.input_tokens.tolist() == [4, 5, 6]
    assert workload.arrival_ns.tolist() == [250_000_000, 750_000_000, 1_250_000_000]
    assert workload.request_id == ("3", "4", "5")
    assert workload.info.rows == 10
    assert read_trace(path, end_s=7).arrival_ns[-1] == 6 * 10**9
    assert "no request arrives from 20 s" in problems(path, start_s=20)[0].message
    assert read_trace(path, rate_scale=3.0).arrival_ns[:3].tolist() == [0, 333_333_333, 666_666_667]


@pytest.mark.parametrize("end", [("5374,16", "cumulative"), ("592,16", "delta")])
def test_R63_turns_in_either_form_give_the_same_prompts(write: Write, end: tuple[str, str]) -> None:
    row, form = end
    path = write("arrival_s,session,input_tokens,output_tokens", "0,a,4190,592", "1,b,7,1", f"9,a,{row}")
    workload = read_trace(path, turns=form)  # type: ignore[arg-type]
    assert workload.input_tokens.tolist() == [4190, 7, 5374]
    assert workload.session is not None
    assert workload.session.tolist() == [0, 1, 0]
    # prompt and answer of the first turn, 4190 + 592, are the second one's beginning
    assert workload.contents is not None
    first, other, second = (workload.contents.tokens(i, n, 600) for i, n in enumerate((4190, 7, 5374)))
    assert first.common(second, 0, 4782) == 4782 and first.common(other, 0, 7) == 0
    assert describe(workload)["reusable_token_share"] == pytest.approx(4782 / (4190 + 7 + 5374))
    assert not any("shorter" in note for note in workload.info.notes)


def test_R63_both_forms_give_equal_identity(write: Write) -> None:
    head = "arrival_s,session,input_tokens,output_tokens"
    delta = read_trace(write(head, "0,a,4190,592", "1,b,7,1", "9,a,592,16"), turns="delta")
    whole = read_trace(write(head, "0,a,4190,592", "1,b,7,1", "9,a,5374,16", name="w.csv"), turns="cumulative")
    assert same_columns(delta, whole)
    assert delta.contents is not None


def test_R63_a_shorter_prompt_shares_what_fits_and_is_counted_once(write: Write) -> None:
    path = write("arrival_s,session,input_tokens,output_tokens", "0,a,100,10", "1,a,50,1", "2,a,40,1", "3,,9,1")
    workload = read_trace(path, turns="cumulative")
    assert [note for note in workload.info.notes if "shorter" in note] == [
        "2 prompts are shorter than prompt and answer of the turn before: they share what fits"
    ]
    assert workload.contents is not None
    tokens = [workload.contents.tokens(i, n, 600) for i, n in enumerate((100, 50, 40, 9))]
    assert tokens[0].common(tokens[1], 0, 51) == 50 and tokens[1].common(tokens[2], 0, 41) == 40
    assert tokens[0].common(tokens[3], 0, 9) == 0


def test_R63_nothing_is_shared_unless_stated_and_block_ids_win(write: Write) -> None:
    path = write("arrival_s,session,input_tokens,output_tokens", "0,a,100,10", "1,a,150,1")
    silent = read_trace(path)
    assert silent.identity() is None
    assert any("stating turns" in note for note in silent.info.notes)
    assert not any("stating turns" in note for note in read_trace(path, turns="cumulative").info.notes)
    rows = ("0,a,100,10,64,1 2", "1,a,150,1,64,1 3 4")
    path = write("arrival_s,session,input_tokens,output_tokens,block_size,block_ids", *rows)
    stated = read_trace(path, turns="cumulative")
    assert stated.contents is None and stated.blocks is not None
    assert not any("stating turns" in note for note in read_trace(path).info.notes)


def test_R63_deltas_add_up_in_arrival_order_and_need_sessions(write: Write) -> None:
    path = write("arrival_s,session,input_tokens,output_tokens", "3,5,30,3", "1,5,10,1", "2,5,20,2", "4,,9,9")
    workload = read_trace(path, turns="delta")
    assert workload.input_tokens.tolist() == [10, 31, 63, 9]
    path = write("arrival_s,input_tokens,output_tokens", "3,30,3")
    assert problems(path, turns="delta")[0].place == "turns"


def test_R63_whole_conversations_are_assumed_aloud(write: Write) -> None:
    path = write("arrival_s,session,input_tokens,output_tokens", "3,5,30,3")
    assert any("whole conversations" in note for note in read_trace(path).info.notes)
    assert not any("whole conversations" in note for note in read_trace(path, turns="cumulative").info.notes)


# ------------------------------------------------------------------------------------------------------------- blocks


def test_block_size_is_found_from_the_number_of_ids(write: Write) -> None:
    lines = [mooncake(i, n, hash_ids=list(range(-(-n // 16)))) for i, n in enumerate((40, 100, 7))]
    workload = read_trace(write(*lines, name="t.jsonl"))
    assert workload.blocks is not None
    assert workload.blocks.block_size == 16
    assert "16 tokens a block (from the number of ids a row)" in workload.info.notes


def test_block_size_without_ids_for_partial_blocks(write: Write) -> None:
    lines = [mooncake(i, n, hash_ids=list(range(n // 64))) for i, n in enumerate((200, 127, 64))]
    workload = read_trace(write(*lines, name="t.jsonl"))
    assert workload.blocks is not None
    assert workload.blocks.block_size == 64


def test_usual_block_size_wins_where_several_fit_and_others_must_be_stated(write: Write) -> None:
    short = write(mooncake(0, 10, hash_ids=[3]), name="t.jsonl")
    blocks = read_trace(short).blocks
    assert blocks is not None
    assert blocks.block_size == 512
    row = {"arrival_s": 0, "input_tokens": 10, "output_tokens": 2, "hash_ids": [1]}
    plain = write(json.dumps(row), name="p.jsonl")
    assert problems(plain)[0].place == "block_size"
    blocks = read_trace(plain, block_size=32).blocks
    assert blocks is not None
    assert blocks.block_size == 32


def test_rows_that_disagree_with_the_block_size_are_named(write: Write) -> None:
    lines = [mooncake(i, 1000, hash_ids=[1, 2]) for i in range(4)] + [mooncake(5, 1100, hash_ids=[1])]
    path = write(*lines, name="t.jsonl")
    assert problems(path) == [Problem("t.jsonl:5", "1 block ids for 1100 tokens; 3 blocks of 512 are needed")]
    assert len(problems(path, block_size=16)) == 5
    odd = write(*(mooncake(i, 1000, hash_ids=[0] * i) for i in (7, 11, 13)), name="o.jsonl")
    assert "fits no common block size" in problems(odd)[0].message


def test_stated_block_size_must_agree_with_the_file() -> None:
    assert problems(DATA / "weka.jsonl", block_size=16)[0].place == "block_size"
    assert problems(DATA / "weka.csv", block_size=16)[0].place == "block_size"
    assert any("no block ids" in note for note in read_trace(DATA / "azure.csv", block_size=16).info.notes)


def test_reusable_share_counts_leading_blocks_only() -> None:
    ids = np.array([1, 2, 3, 1, 9, 3, 1, 2, 4], np.int64)
    offsets = np.array([0, 3, 6, 9], np.int64)
    assert reusable_share(Blocks(ids, offsets, 16)) == 3 / 9
    assert reusable_share(Blocks(ids * 2**55, offsets, 16)) == 3 / 9
    assert reusable_share(Blocks(ids[:0], offsets[:1], 16)) == 0.0


# ------------------------------------------------------------------------------------------------ export and import


@pytest.mark.parametrize("form", ["csv", "jsonl", "mooncake"])
def test_R64_shared_prefixes_survive_export_and_import(tmp_path: Path, form: str) -> None:
    prefix = list(range(14_336 // 64))
    lists = [[*prefix, 1000 + 2 * i, 1001 + 2 * i] for i in range(10)]  # 100 own tokens: two blocks
    offsets = np.arange(11) * len(lists[0])
    workload = Workload(
        arrival_ns=np.arange(10) * 10**9,
        input_tokens=np.full(10, 14_436),
        output_tokens=np.full(10, 5),
        request_id=tuple(map(str, range(10))),
        blocks=Blocks(np.array(lists).ravel(), offsets, 64),
    )
    path = tmp_path / f"out.{form}"
    assert write_trace(workload, path, form) == ()
    back = read_trace(path)
    assert same_columns(workload, back)
    assert back.blocks is not None
    assert reusable_share(back.blocks) * len(back.blocks.ids) * 64 == pytest.approx(9 * 14_336)


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_R64_prefixes_given_by_tokens_survive_export_and_import(tmp_path: Path, form: str) -> None:
    # ten requests: 14,336 shared tokens, 100 own ones that no run names
    workload = Workload(
        arrival_ns=np.arange(10) * 10**9,
        input_tokens=np.full(10, 14_436),
        output_tokens=np.full(10, 5),
        request_id=tuple(map(str, range(10))),
        contents=Contents(np.zeros(10, np.int64), np.full(10, 14_336), np.arange(11)),
    )
    path = tmp_path / f"out.{form}"
    assert write_trace(workload, path, form) == ()
    back = read_trace(path)
    assert same_columns(workload, back)
    for one in (workload, back):
        assert describe(one)["reusable_token_share"] * 144_360 == pytest.approx(129_024)
    assert write_trace(workload, path, "mooncake") == ("content_starts", "content_lengths")
    assert read_trace(path).identity() is None


def test_contents_that_cannot_be_are_refused_by_line(write: Write) -> None:
    head = "request_id,arrival_s,input_tokens,output_tokens,content_starts,content_lengths,content_answer"
    rows = (
        "a,0,10,1,0 5,5,-1",
        "b,1,10,1,0,11,-1",
        "c,2,10,1,-1,5,-1",
        "d,3,10,1,7,0,-1",
        "e,4,10,1,1,5,-2",
        "f,5,10,1,1,5,9",
    )
    assert [(p.place, p.message) for p in problems(write(head, *rows))] == [
        ("trace.csv:2", "content_starts has 2 numbers, content_lengths has 1; as many are needed"),
        ("trace.csv:3", "content_lengths add up to 11, above the prompt's 10 tokens"),
        ("trace.csv:4", f"content_starts goes from -1 to -1; tokens from 0 to {2**61} are needed"),
        ("trace.csv:5", f"content_lengths goes from 0 to 0; from 1 to {10**12} is needed"),
        ("trace.csv:6", "content_answer is -2; a whole number of -1 or more is needed"),
    ]
    kept = read_trace(write(head, *rows), bad_rows="drop").contents
    assert kept is not None and kept.outputs is not None
    assert (kept.starts.tolist(), kept.lengths.tolist(), kept.outputs.tolist()) == ([1], [5], [9])
    (problem,) = problems(write("arrival_s,input_tokens,output_tokens,content_starts", "0,10,1,4"))
    assert (problem.place, problem.message) == ("content_lengths", "is needed beside content_starts")
    (problem,) = problems(write("arrival_s,input_tokens,output_tokens,content_answer", "0,10,1,4"))
    assert problem.place == "content_starts"
    both = "arrival_s,input_tokens,output_tokens,block_size,block_ids,content_starts,content_lengths"
    (problem,) = problems(write(both, "0,10,1,16,1,0,5"))
    assert problem.message == "is given beside block_ids; keep one of the two"


CHAINED = "request_id,arrival_s,input_tokens,output_tokens,previous,think_ns"


def test_predecessors_are_named_by_their_ids(write: Write) -> None:
    # the rows in another order than the times
    rows = ("d,2,4,1,c,0", "a,0,1,1,,0", "c,1,3,1,b,7", "b,1,2,1,a,0", "e,3,5,1,,0")
    (problem,) = problems(write(CHAINED, *rows))
    assert (problem.place, problem.message) == ("trace.csv:4", "previous is b, which does not come before it")
    rows = ("d,2,4,1,c,0", "a,0,1,1,,0", "b,1,2,1,a,0", "c,1,3,1,b,7", "e,3,5,1,,0")
    path = write(CHAINED, *rows)
    whole = read_trace(path)
    assert whole.request_id == ("a", "b", "c", "d", "e")
    assert whole.previous is not None and whole.previous.tolist() == [-1, 0, 1, 2, -1]
    # what a window leaves of a chain begins by its time
    late = read_trace(path, start_s=1, limit=3)
    assert late.request_id == ("b", "c", "d")
    assert late.previous is not None and late.previous.tolist() == [-1, 0, 1]


def test_rows_left_out_do_not_break_a_chain(write: Write) -> None:
    path = write(CHAINED, "a,0,1,1,,0", "b,1,x,1,a,0", "c,2,3,1,b,7", "d,3,3,1,nobody,0", "e,4,3,1,c,0", "f,5,3,1,c,0")
    assert [p.message for p in problems(path)] == [
        "input_tokens is x; a whole number of 1 or more is needed",
        "previous is nobody, which is no request of the file",
        "previous is c, which sends another request already",
    ]
    kept = read_trace(path, bad_rows="drop")
    assert kept.request_id == ("a", "c", "e")
    assert kept.previous is not None and kept.previous.tolist() == [-1, 0, 1]


def test_predecessors_need_names(write: Write) -> None:
    (problem,) = problems(write("arrival_s,input_tokens,output_tokens,previous", "0,1,1,"))
    assert (problem.place, problem.message) == ("previous", "names requests, and the file has no request_id")


def test_export_tells_what_a_format_cannot_hold(tmp_path: Path) -> None:
    workload = read_trace(DATA / "plain.csv")
    lost = ("request_id", "max_new_tokens", "session", "accept")
    assert write_trace(workload, tmp_path / "v.csv", "vidur") == lost
    assert read_trace(tmp_path / "v.csv").arrival_ns.tolist() == THREE_ARRIVALS
    assert write_trace(read_trace(DATA / "mooncake.jsonl"), tmp_path / "v.csv", "vidur") == ("block_size", "block_ids")
    with pytest.raises(TraceError, match="cannot be written, only csv"):
        write_trace(workload, tmp_path / "x", "azure")
    with pytest.raises(TraceError, match="cannot be written"):
        write_trace(workload, tmp_path / "none" / "x", "csv")


def test_packed_export_is_reproducible(tmp_path: Path) -> None:
    workload = read_trace(DATA / "weka.csv")
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        write_trace(workload, tmp_path / name, "jsonl")
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()
    assert same_columns(workload, read_trace(tmp_path / "a.jsonl.gz"))


@st.composite
def chains(draw: st.DrawFn, n: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    free: list[int] = []
    previous = []
    for row in range(n):
        before = draw(st.sampled_from([-1, *free]))
        if before >= 0:
            free.remove(before)
        previous.append(before)
        free.append(row)
    return np.array(previous, np.int64)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    n = draw(st.integers(1, 6))

    def column(low: int, high: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        return np.array(draw(st.lists(st.integers(low, high), min_size=n, max_size=n)), np.int64)

    def maybe(low: int, high: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]] | None:
        return column(low, high) if draw(st.booleans()) else None

    given, made = column(1, 400), column(0, 50)
    more = maybe(0, 9)
    accept = draw(st.none() | st.lists(st.lists(st.integers(1, 9), max_size=3), min_size=n, max_size=n))
    blocks = contents = None
    known = draw(st.sampled_from(["nothing", "blocks", "contents"]))
    if known == "contents":
        lists = [draw(st.lists(st.integers(1, 9), max_size=4)) for _ in range(n)]
        given = given + column(36, 36)  # runs are never longer than their prompt
        lengths = np.array([length for part in lists for length in part], np.int64)
        starts = [draw(st.integers(0, draw(st.sampled_from([20, 2**61])))) for _ in lengths]
        offsets = np.cumsum([0, *map(len, lists)]).astype(np.int64)
        contents = Contents(np.array(starts, np.int64), lengths, offsets, maybe(-1, 2**61))
    if known == "blocks":
        size = draw(st.sampled_from([1, 16, 64]))
        number = np.minimum(column(0, 400), -(-given // size))
        offsets = np.concatenate([[0], np.cumsum(number)]).astype(np.int64)
        top = draw(st.sampled_from([3, 2**62]))
        rng = np.random.default_rng(draw(st.integers(0, 99)))
        blocks = Blocks(rng.integers(-top, top, int(offsets[-1])), offsets, size)
    return Workload(
        arrival_ns=np.sort(column(0, 10**17)),
        input_tokens=given,
        output_tokens=made,
        request_id=tuple(draw(st.lists(st.text(min_size=1), min_size=n, max_size=n, unique=True))),
        max_new_tokens=None if more is None else made + more,
        ignore_eos=draw(st.booleans()),
        accept=None if accept is None else tuple(np.array(part, np.int64) for part in accept),
        blocks=blocks,
        contents=contents,
        session=maybe(-1, 4),
        concurrency=draw(st.none() | st.integers(1, 5)),
        previous=draw(st.none() | chains(n)),
        think_ns=maybe(0, 10**9),
        info=WorkloadInfo(format="made up"),
    )


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_R64_whatever_is_written_reads_back(tmp_path: Path, form: str) -> None:
    path = tmp_path / "t"

    @settings(deadline=None, max_examples=150)
    @given(workloads())
    def check(workload: Workload) -> None:
        assert write_trace(workload, path, form) == ()
        assert same_columns(workload, read_trace(path))

    check()


# ----------------------------------------------------------------------------------------------------------- figures


def test_describe_and_load_profile(write: Write) -> None:
    path = write("arrival_s,input_tokens,output_tokens", "0,10,0", "1,20,4", "1.5,30,8", "9,40,0")
    workload = read_trace(path)
    told = describe(workload)
    assert (told["rows"], told["rows_read"], told["span_s"], told["zero_output"]) == (4, 4, 9.0, 2)
    assert told["mean_rate"] == pytest.approx(3 / 9)
    assert (told["input_tokens.p50"], told["input_tokens.max"], told["output_tokens.mean"]) == (25.0, 40, 3.0)
    assert (told["format"], told["block_size"], told["sessions"]) == ("csv", None, None)
    assert (told["reusable_block_share"], told["reusable_token_share"]) == (None, None)
    assert load_profile(workload, 2.0).tolist() == [1.5, 0.0, 0.0, 0.0, 0.5]
    assert load_profile(workload, 0.0).tolist() == []


def test_R61_a_thin_head_shows_in_the_load_profile(write: Write) -> None:
    head = [30 * i for i in range(100)]
    tail = [3000 + i / 3 for i in range(100)]
    rows = [f"{stamp:.6f},ChatGPT,100,{0 if i % 40 == 7 else 9}" for i, stamp in enumerate([*head, *tail])]
    workload = read_trace(write("Timestamp,Model,Request tokens,Response tokens", *rows))
    assert workload.info.zero_output == 5
    rates = load_profile(workload, 30.0)
    assert rates[:100].max() == pytest.approx(1 / 30)
    assert rates.max() == pytest.approx(3.0)


# -------------------------------------------------------------------------------------------------------- real traces


def shared(name: str) -> Path:
    root = os.environ.get("SIMKV_SHARED")
    folder = Path(root) / "traces" if root else Path(__file__).parents[3] / "shared" / "traces"
    if not (folder / name).exists():
        pytest.skip(f"{name} is not at hand: set SIMKV_SHARED to the folder that holds traces/{name}")
    return folder / name


REAL = [
    # file, format, rows, span s, input mean and percentiles, output mean and percentiles
    (
        "mooncake_conversation.jsonl",
        "mooncake",
        12031,
        3537,
        12035,
        "6909/27367/85400/126195",
        343,
        "350/597/1119/2000",
    ),
    ("mooncake_synthetic.jsonl", "mooncake", 3993, 1022, 15325, "11587/38611/66456/191378", 149, "69/389/768/893"),
    ("azure2023_code.csv", "azure", 8819, 3436, 2048, "1469/5188/7436/7437", 28, "13/55/251/1899"),
    ("azure2023_conv.csv", "azure", 19366, 3502, 1155, "1020/2734/4142/14050", 211, "129/424/601/1000"),
    ("vidur_splitwise_code.csv", "vidur", 8819, 3436, 2048, "1469/5188/7436/7437", 28, "13/55/251/1899"),
    ("vidur_splitwise_conv.csv", "vidur", 19366, 3502, 1155, "1020/2734/4142/14050", 211, "129/424/601/1000"),
    (
        *("vidur_arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv", "vidur", 28257, 0),
        *(2588, "2730/3702/3933/4054", 291, "167/372/3271/4056"),
    ),
    (
        *("weka_cc_requests.csv.gz", "weka", 49334, None),
        *(122379, "103659/233633/498519/894371", 440, "216/898/3686/18195"),
    ),
    ("sharegpt_300s_llama3.1.jsonl", "mooncake", 300, 29, 857, "732/1460/2765/3998", 653, "632/770/784/1021"),
    ("sharegpt_300s_qwen3.jsonl", "mooncake", 300, 29, 862, "728/1452/2768/4570", 665, "638/785/1001/1224"),
    ("tracelab_example_rounds.csv", "tracelab", 19, None, 27053, "32272/45725/48162/48305", 597, "273/1452/2419/2475"),
]


@pytest.mark.parametrize("row", REAL, ids=[row[0] for row in REAL])
def test_real_traces_have_their_published_figures(row: tuple[object, ...]) -> None:
    name, format, rows, span, *figures = row
    told = describe(read_trace(shared(str(name))))
    assert (told["format"], told["rows"]) == (format, rows)
    assert span is None or round(told["span_s"]) == span
    for column, mean, shares in (("input_tokens", *figures[:2]), ("output_tokens", *figures[2:])):
        assert round(told[f"{column}.mean"]) == mean
        found = "/".join(str(round(told[f"{column}.{share}"])) for share in ("p50", "p90", "p99", "max"))
        assert found == shares


@pytest.mark.parametrize(
    ("name", "size", "share"),
    [
        ("mooncake_conversation.jsonl", 512, 0.366),
        ("mooncake_synthetic.jsonl", 512, 0.640),
        ("sharegpt_300s_llama3.1.jsonl", 16, None),
        ("weka_cc_requests.csv.gz", 64, 0.963),
    ],
)
def test_real_traces_have_their_published_reuse(name: str, size: int, share: float | None) -> None:
    workload = read_trace(shared(name))
    told = describe(workload)
    assert told["block_size"] == size
    assert share is None or round(told["reusable_block_share"], 3) == share
    # tokens: of the leading blocks that were there before, the last may be partial
    assert workload.blocks is not None
    ids, offsets = workload.blocks.ids, workload.blocks.offsets.tolist()
    seen = np.zeros(int(ids.max()) + 1, bool)
    hits = 0
    for row, (start, end) in enumerate(pairwise(offsets)):
        known = np.append(seen[ids[start:end]], False)
        hits += min(int(known.argmin()) * size, int(workload.input_tokens[row]))
        seen[ids[start:end]] = True
    assert told["reusable_token_share"] == pytest.approx(hits / workload.input_tokens.sum(), rel=1e-9)


def test_R58_real_mooncake_span_and_rate() -> None:
    workload = read_trace(shared("mooncake_conversation.jsonl"))
    assert workload.arrival_ns[-1] == 3_536_999 * 10**6
    assert workload.mean_rate == pytest.approx(3.40, abs=0.005)
    days = read_trace(shared("mooncake_conversation.jsonl"), time_unit="s").span_s / 86400
    assert days == pytest.approx(40.9, abs=0.05)


def test_R62_real_azure_and_vidur_agree() -> None:
    azure, vidur = read_trace(shared("azure2023_conv.csv")), read_trace(shared("vidur_splitwise_conv.csv"))
    assert azure.arrival_ns[:2].tolist() == [0, 4_314_579_000]
    assert same_columns(azure, vidur)
    assert (azure.info.zero_output, int(azure.input_tokens.max())) == (0, 14_050)
    over = int(np.sum(azure.input_tokens + azure.output_tokens > 8192))
    note = fit_context(azure, 8192).info.notes[-1]
    assert over > 0
    assert note.startswith(f"{over} of 19366 requests exceed 8192 tokens")


def test_R64_real_mooncake_survives_export_and_import(tmp_path: Path) -> None:
    workload = read_trace(shared("mooncake_conversation.jsonl"), limit=500)
    for form in ("csv", "jsonl", "mooncake"):
        write_trace(workload, tmp_path / form, form)
        assert same_columns(workload, read_trace(tmp_path / form))


def test_real_weka_sample_holds_sub_agents() -> None:
    workload = read_trace(shared("weka_cc_sample.jsonl.gz"))
    main = np.array(["/main/" in name for name in workload.request_id])
    assert (int(main.sum()), len(workload)) == (2765, 2817)
    assert round(float(workload.input_tokens[main].mean())) == 118270
    assert workload.blocks is not None
    assert (np.diff(workload.blocks.offsets) == workload.input_tokens // 64).all()
