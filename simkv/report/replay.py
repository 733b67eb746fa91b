"""A replay on real memory as text."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from simkv.report.text import bullets, count_text, size, table

__all__ = ["replay_report"]


def replay_report(found: Any) -> RenderableType:
    """A replay in which everything matched (:class:`simkv.replayer.Replay`)."""
    rows: list[tuple[str, ...]] = [
        (
            pool.worker,
            pool.pool,
            count_text(pool.layers),
            count_text(pool.rows),
            count_text(pool.planned_bytes),
            count_text(pool.expected_bytes),
            count_text(pool.allocated_bytes),
        )
        for pool in found.pools
    ]
    total = (found.planned_bytes, sum(pool.expected_bytes for pool in found.pools), found.allocated_bytes)
    rows.append(("all", "", "", "", *(count_text(count) for count in total)))
    heads = ("worker", "pool", "layers", "rows", "planned B", "at this scale", "allocated B")
    text = Text()
    text.append(f"{found.name} on {found.device} ({found.device_name}), torch {found.torch}\n", style="bold")
    text.append(
        f"  layers {found.layers}, scale {found.scale}, reads compared: {found.check}; slots by {found.engine}\n"
    )
    done = Text()
    done.append("everything matches\n", style="bold green")
    done.append(
        f"  {found.requests:,} requests, {found.steps:,} steps, {found.calls:,} calls in {found.seconds:,.1f} s\n"
        f"  {found.slots_allocated:,} slots handed out and {found.slots_freed:,} given back, each id and every free count "
        f"as in the log\n"
        f"  {found.tokens_written:,} tokens computed ({found.tokens_per_s:,.0f} a second): {found.tags_written:,} rows of K "
        f"and V written, {found.tags_read:,} read and compared\n"
    )
    if found.measured_bytes is not None:
        done.append(f"  the device says the pools take {found.measured_bytes:,} B\n")
    whose = "device" if found.device == "cuda" else "process"
    peak = "" if found.peak_bytes is None else f"; peak of the {whose} {size(found.peak_bytes)}"
    done.append(f"  row tables {size(found.table_bytes)}{peak}\n")
    parts: list[RenderableType] = [text, table("pools on the device", heads, rows, left=2), done]
    return Group(*parts, bullets("notes", found.notes)) if found.notes else Group(*parts)
