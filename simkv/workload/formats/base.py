"""What a trace format is, and the columns it hands over."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from simkv.workload.formats.cells import Times
from simkv.workload.formats.table import Complaints, Table
from simkv.workload.request import Blocks, IntArray
from simkv.workload.tokens import Contents

__all__ = ["Ask", "BlockSource", "Columns", "TakeBlocks", "TraceFormat"]

TakeBlocks = Callable[[IntArray], Blocks]
"""Blocks of the given rows (numbers in file order), in the order asked for."""


class BlockSource(Protocol):
    """Block ids of a file, before the block size is known for certain."""

    def settle(self, input_tokens: IntArray, stated: int | None, complaints: Complaints) -> tuple[TakeBlocks, str]:
        """Decide the block size, complain about rows that do not fit it; returns how to take blocks, and a note."""
        ...


@dataclass
class Columns:
    """What a format hands over: request columns in file order.

    Parameters
    ----------
    input_tokens, output_tokens : int64 array
        Lengths; as in the file, so a session may still be in delta form.
    times : Times or None
        Arrivals; None when the file has no times.
    names : list of str or None
        Request ids, empty where a row has none.
    sessions : list or None
        Session labels, None where a row has none.
    max_new_tokens, think_ns : int64 array or None
        As in `simkv.workload.request.Workload`.
    accept : list of list of int or None
        Accepted lengths of each request.
    blocks : BlockSource or None
        Identity of the prompts.
    contents : Contents or None
        The same by tokens; never beside blocks.
    previous : list of str or None
        Id of the request whose end sends this one; empty where it arrives by its time.
    ignore_eos : bool
        As in `simkv.workload.request.Workload`.
    concurrency : int or None
        As in `simkv.workload.request.Workload`.
    paced : bool
        Whether the format itself has used the rate asked for.
    notes : list of str
        Anything a person should know.
    """

    input_tokens: IntArray
    output_tokens: IntArray
    times: Times | None = None
    names: list[str] | None = None
    sessions: Sequence[Hashable] | None = None
    max_new_tokens: IntArray | None = None
    think_ns: IntArray | None = None
    accept: list[list[int]] | None = None
    blocks: BlockSource | None = None
    contents: Contents | None = None
    previous: list[str] | None = None
    ignore_eos: bool = False
    concurrency: int | None = None
    paced: bool = False
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Ask:
    """What the caller stated about the file.

    Parameters
    ----------
    time_unit : str or None
        Unit of the time stamps.
    rate : float or None
        Requests (or sessions) per second, where the file gives no times.
    """

    time_unit: str | None = None
    rate: float | None = None

    def unit(self, name: str, default: str) -> tuple[str, str]:
        """Unit to read in, and how it was decided; a format's own unless another one was stated."""
        if self.time_unit is None:
            return default, f"as {name} has it"
        return self.time_unit, "as stated" if self.time_unit == default else f"as stated; {name} has {default}"


class TraceFormat(Protocol):
    """A trace format.

    Attributes
    ----------
    name : str
        Name in `simkv.workload.formats.FORMATS`.
    container : str or None
        ``csv`` or ``jsonl`` when the name belongs to one of them only.
    required : tuple of tuple of str
        Alternatives of columns, one of which must be there in full.
    """

    name: ClassVar[str]
    container: ClassVar[str | None]
    required: ClassVar[tuple[tuple[str, ...], ...]]

    def read(self, table: Table, ask: Ask, complaints: Complaints) -> Columns:
        """Columns of the table; rows that are wrong are complained about, not raised."""
        ...
