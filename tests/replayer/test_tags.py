"""Tags: what stands for K and V of a token depends on the token, its place and everything before it, and no more."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from replay_cases import find, recorded, rows_of, server
from report_cases import model, requests

from simkv.allocations import AllocationLog
from simkv.alloctable import allocation_table
from simkv.replayer.log import ReplayLog, read_log
from simkv.replayer.tags import Contents, guess_tags, poison_tag, salt, say_tag
from simkv.replayer.tensors import KvTensor
from simkv.workload.tokens import Tokens

CPU = torch.device("cpu")


def log_of(*sequences: Sequence[int]) -> ReplayLog:
    """A log in which requests of these tokens arrive."""
    log = AllocationLog()
    for number, tokens in enumerate(sequences):
        log.add_tokens(number, Tokens.of(tokens), len(tokens))
    count = len(sequences)
    return read_log(allocation_table(log, np.arange(count)), [f"r{i}" for i in range(count)])


# Few tokens, many of them one more than the one before, so that runs begin, end and go on at all places.
SEQUENCE = st.lists(st.integers(0, 5), min_size=1, max_size=12)


@given(st.lists(SEQUENCE, min_size=2, max_size=6))
def test_tags_are_equal_exactly_where_everything_up_to_there_is(sequences: list[list[int]]) -> None:
    contents = Contents(log_of(*sequences), CPU)
    tag_of: dict[tuple[int, ...], int] = {}
    for number, tokens in enumerate(sequences):
        tags = contents.tags(number, len(tokens)).tolist()
        assert all(0 <= tag < 1 << 63 for tag in tags)
        for end, tag in enumerate(tags, 1):
            assert tag_of.setdefault(tuple(tokens[:end]), tag) == tag
    assert len(set(tag_of.values())) == len(tag_of)


def test_where_runs_are_cut_makes_no_difference() -> None:
    log = log_of([7, 8, 9, 10, 40], [7, 8, 9, 10, 40])
    cut = ReplayLog(
        log.columns,
        log.flat | {"tokens": np.array([7, 4, 40, 1, 7, 1, 8, 2, 10, 1, 40, 1])},
        log.offsets | {"tokens": np.array([0, 4, 12])},
        log.names,
    )
    contents = Contents(cut, CPU)
    assert contents.tags(1, 5).tolist() == contents.tags(0, 5).tolist() == Contents(log, CPU).tags(0, 5).tolist()


def test_the_last_run_goes_on() -> None:
    one, two = Contents(log_of([3, 4]), CPU), Contents(log_of([3, 4, 5, 6]), CPU)
    assert one.tags(0, 4).tolist() == two.tags(0, 4).tolist()
    assert one.tags(0, 0).tolist() == []


def test_requests_without_tokens_have_tags_of_their_own() -> None:
    contents = Contents(log_of([], []), CPU)
    assert len({*contents.tags(0, 5).tolist(), *contents.tags(1, 5).tolist()}) == 10


def test_every_tag_says_what_it_is() -> None:
    run = recorded(server(model("F", head_dim=4), 100), requests([(10, 3), (6, 3)]))
    assert run.allocations is not None
    log = read_log(run.allocations, ["first", "second"])
    contents = Contents(log, CPU)

    def said(tag: int) -> str:
        return say_tag(tag, log, contents, lambda request: 12)

    for request, name in ((0, "first"), (1, "second")):
        tags = contents.tags(request, 12).tolist()
        assert [said(tag) for tag in tags] == [f"request {name!r} token {position}" for position in range(12)]
    positions = torch.tensor([0, 5, 1_234_567])
    guesses = guess_tags(torch.tensor([1, 0, 1]), positions, 9_000_000).tolist()
    whose = zip(("second", "first", "second"), ("0", "5", "1,234,567"), strict=True)
    assert [said(tag) for tag in guesses] == [
        f"a rejected guess of request {name!r} at token {at}" for name, at in whose
    ]
    # The same place is guessed again and again.
    assert (
        guess_tags(torch.tensor([0]), positions[:1], 1).tolist()
        != guess_tags(torch.tensor([0]), positions[:1], 2).tolist()
    )
    freed = find(rows_of(run), "free", request=1)
    assert said(poison_tag(freed)) == f"freed memory ({log.line(freed)})"
    assert log.line(freed) == "step 2: free (finish), request 'second' tokens [0, 8)"
    assert said(poison_tag(1 << 20)) == said(123) == "no tag of this run"


def test_no_two_tensors_are_salted_alike() -> None:
    salts = {salt(worker, layer, part) for worker in range(9) for layer in range(100) for part in range(2)}
    assert len(salts) == 1800
    assert all(0 < one < 1 << 63 for one in salts)


# 8 x 2 B is two whole tags, 3 x 4 B are three halves, 3 x 2 B three quarters, and 5 x 1 B five bytes.
@pytest.mark.parametrize(
    ("heads", "width", "dtype", "lanes", "bits"),
    [
        (2, 4, torch.bfloat16, 2, 64),
        (3, 2, torch.bfloat16, 3, 32),
        (1, 3, torch.bfloat16, 3, 16),
        (5, 1, torch.float8_e4m3fn, 5, 8),
    ],
)
def test_a_row_holds_its_tag_in_every_part(heads: int, width: int, dtype: torch.dtype, lanes: int, bits: int) -> None:
    data = torch.zeros(6, heads, width, dtype=dtype)
    tensor = KvTensor(data, salt(1, 2, 0))
    assert tensor.lanes.shape == (6, lanes) and tensor.whole_tags == (bits == 64)
    assert tensor.lanes.untyped_storage().data_ptr() == data.untyped_storage().data_ptr()
    tags = torch.tensor([1, 5_000_000_000_000_000_001, poison_tag(7)])
    rows = torch.tensor([4, 2, 1])
    tensor.write(rows, tags)
    lowest = (tags ^ tensor.salt) & ((1 << bits) - 1) if bits < 64 else tags ^ tensor.salt
    for lane in range(2 * lanes):
        stored = tensor.read(rows, lane)
        assert torch.equal(stored, tensor.encoded(tags))
        assert torch.equal(stored.to(torch.int64) & ((1 << bits) - 1) if bits < 64 else stored, lowest)
    if tensor.whole_tags:
        assert tensor.decoded(tensor.read(rows, 0)).tolist() == tags.tolist()
    # The others are as they were.
    assert tensor.read(torch.tensor([0, 3, 5]), 0).tolist() == [0, 0, 0]
    tensor.fill(torch.tensor([4, 0]), -3)
    assert torch.equal(tensor.read(torch.tensor([0, 4, 2]), 1), tensor.encoded(torch.tensor([-3, -3, int(tags[1])])))
    # Rows move all at once: what is read is what was there before.
    tensor.move(torch.tensor([2, 4]), torch.tensor([4, 2]))
    assert torch.equal(tensor.read(torch.tensor([4, 2]), 1), tensor.encoded(torch.tensor([int(tags[1]), -3])))
