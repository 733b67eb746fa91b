"""Public request traces of one row a request: Azure, Vidur, BurstGPT, Mooncake, Bailian, TraceLab."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

from simkv.workload.formats.base import Ask, BlockSource, Columns
from simkv.workload.formats.blocks import ListedBlocks
from simkv.workload.formats.cells import counts, ids, int_lists, labels, times
from simkv.workload.formats.table import Complaints, Table

__all__ = ["Azure", "Bailian", "BurstGPT", "Mooncake", "TraceLab", "Vidur", "check_output_ids", "lengths"]


def lengths(table: Table, given: str, made: str, complaints: Complaints) -> Columns:
    """Input and output lengths from two columns; a prompt has a token at least, an answer may have none."""
    return Columns(counts(table, given, complaints, least=1), counts(table, made, complaints))


def check_output_ids(table: Table, columns: Columns, made: str, complaints: Complaints) -> None:
    """Complain about rows whose ``output_token_ids`` are not as many as the output length says."""
    cells = table.columns.get("output_token_ids")
    if cells is None:
        return
    listed = int_lists(table, "output_token_ids", complaints)
    for row, tokens in enumerate(listed):
        if (
            cells[row] not in (None, "")
            and len(tokens) != columns.output_tokens[row]
            and row not in complaints.bad_rows
        ):
            complaints.row(row, f"{len(tokens)} output_token_ids, but {made} is {columns.output_tokens[row]}")


def _hashed(table: Table, complaints: Complaints, usual: int) -> BlockSource | None:
    if "hash_ids" not in table.columns:
        return None
    blocks = ListedBlocks.of(int_lists(table, "hash_ids", complaints), usual=usual)
    return blocks if len(blocks.ids) else None


class Azure:
    """Azure LLM inference trace, 2023 and 2024: ``TIMESTAMP,ContextTokens,GeneratedTokens``, wall clock."""

    name: ClassVar[str] = "azure"
    container: ClassVar[str | None] = None
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("ContextTokens", "GeneratedTokens"),)

    def read(self, table: Table, ask: Ask, complaints: Complaints) -> Columns:
        """Columns of the table."""
        columns = lengths(table, "ContextTokens", "GeneratedTokens", complaints)
        columns.times = times(table, "TIMESTAMP", complaints, unit=ask.time_unit, why="as stated")
        return columns


class Vidur:
    """Vidur's processed traces: ``arrived_at`` (s) with token counts, an older naming, or lengths alone."""

    name: ClassVar[str] = "vidur"
    container: ClassVar[str | None] = None
    required: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("num_prefill_tokens", "num_decode_tokens"),
        ("PromptTokenCount", "GeneratedTokenCount"),
    )

    def read(self, table: Table, ask: Ask, complaints: Complaints) -> Columns:
        """Columns of the table."""
        new = "num_prefill_tokens" in table.columns
        given, made = self.required[0 if new else 1]
        columns = lengths(table, given, made, complaints)
        unit, why = ask.unit(self.name, "s")
        columns.times = times(table, "arrived_at" if new else "Time", complaints, unit=unit, why=why)
        return columns


class BurstGPT:
    """BurstGPT: ``Timestamp`` in s; version 3 names sessions. Rows without response tokens are failed requests."""

    name: ClassVar[str] = "burstgpt"
    container: ClassVar[str | None] = None
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("Timestamp", "Model", "Request tokens", "Response tokens"),)

    def read(self, table: Table, ask: Ask, complaints: Complaints) -> Columns:
        """Columns of the table."""
        columns = lengths(table, "Request tokens", "Response tokens", complaints)
        unit, why = ask.unit(self.name, "s")
        columns.times = times(table, "Timestamp", complaints, unit=unit, why=why)
        third = "Session ID" in table.columns
        columns.sessions = labels(table, "Session ID", complaints) if third else None
        columns.notes.append("BurstGPT version 3 (sessions)" if third else "BurstGPT version 1 or 2 (no sessions)")
        return columns


class Mooncake:
    """Mooncake: JSONL with ``timestamp`` in ms and ``hash_ids``, 512 tokens a block unless the file fits another size.

    Tools that write the same keys add ``request_id``, ``session_id`` and ``output_token_ids``.
    """

    name: ClassVar[str] = "mooncake"
    container: ClassVar[str | None] = None
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("input_length", "output_length"),)

    def read(self, table: Table, ask: Ask, complaints: Complaints) -> Columns:
        """Columns of the table."""
        columns = lengths(table, "input_length", "output_length", complaints)
        unit, why = ask.unit(self.name, "ms")
        columns.times = times(table, "timestamp", complaints, unit=unit, why=why)
        if "request_id" in table.columns:
            columns.names = ids(table, "request_id", complaints)
        if "session_id" in table.columns:
            columns.sessions = labels(table, "session_id", complaints)
        check_output_ids(table, columns, "output_length", complaints)
        columns.blocks = _hashed(table, complaints, usual=512)
        return columns


class Bailian:
    """Qwen-Bailian: JSONL with ``timestamp`` in s, 16 tokens a block, each chat naming the one it continues.

    A session is named by its root chat; the prompts are whole conversations.
    """

    name: ClassVar[str] = "bailian"
    container: ClassVar[str | None] = None
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("chat_id", "parent_chat_id", "input_length", "output_length"),)

    def read(self, table: Table, ask: Ask, complaints: Complaints) -> Columns:
        """Columns of the table."""
        columns = lengths(table, "input_length", "output_length", complaints)
        unit, why = ask.unit(self.name, "s")
        columns.times = times(table, "timestamp", complaints, unit=unit, why=why)
        columns.names = ids(table, "chat_id", complaints)
        columns.sessions = self._roots(
            labels(table, "chat_id", complaints), labels(table, "parent_chat_id", complaints)
        )
        columns.blocks = _hashed(table, complaints, usual=16)
        return columns

    @staticmethod
    def _roots(chats: list[Hashable], parents: list[Hashable]) -> list[Hashable]:
        """First chat of each conversation; a parent the file does not have is the first one."""
        parent_of = dict(zip(chats, parents, strict=True))
        root_of: dict[Hashable, Hashable] = {}
        for chat in chats:
            path: dict[Hashable, None] = {}
            here = chat
            while here not in root_of and here not in path and parent_of.get(here) is not None:
                path[here] = None
                here = parent_of[here]
            root = root_of.get(here, here)
            root_of.update(dict.fromkeys((*path, chat), root))
        return [root_of[chat] for chat in chats]


class TraceLab:
    """TraceLab rounds: one row a round of an agent's session, ``first_event`` as a date, whole prompts."""

    name: ClassVar[str] = "tracelab"
    container: ClassVar[str | None] = None
    required: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("session", "round", "first_event", "input_tokens_total", "output_tokens"),
    )

    def read(self, table: Table, ask: Ask, complaints: Complaints) -> Columns:
        """Columns of the table."""
        columns = lengths(table, "input_tokens_total", "output_tokens", complaints)
        columns.times = times(table, "first_event", complaints, unit=ask.time_unit, why="as stated")
        columns.sessions = labels(table, "session", complaints)
        rounds = ids(table, "round", complaints)
        columns.names = [f"{session}/{turn}" for session, turn in zip(columns.sessions, rounds, strict=True)]
        return columns
