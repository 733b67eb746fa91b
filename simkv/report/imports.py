"""Launch commands and server logs as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simkv.report.text import bullets, percent, table, value_text

__all__ = ["log_comparison_report", "launch_report", "log_report"]

_USES = ("used", "default", "ignored", "no effect")


def launch_report(flags: Iterable[Sequence[str]], notes: Iterable[str]) -> RenderableType:
    """What became of each flag, those that set something first.

    Parameters
    ----------
    flags : iterable of (flag, value, use, key, why)
    notes : iterable of str
    """
    rows = []
    for flag, value, use, key, why in sorted(flags, key=lambda row: _USES.index(row[2])):
        given = f"{flag} {value}".strip() if flag else "(not given)"
        sets = f"{key} = {value}" if use == "default" else key
        rows.append((_cell(given, 44), use, _cell(": ".join(part for part in (sets, why) if part), 200)))
    return Group(table("flags", ("flag", "use", "sets, or why not"), rows, left=3), bullets("notes", notes))


def _cell(text: str, most: int) -> str:
    """A cell on one line, short."""
    kept = "".join(c if c.isprintable() else " " for c in text)
    return kept if len(kept) <= most else kept[: most - 3] + "..."


def log_report(log: Any, comparison: Any = None, fits: Iterable[str] = ()) -> RenderableType:
    """What a server's log says, how a plan or run compares, and what was fitted."""
    parts: list[RenderableType] = [_head(log)]
    facts = [(key, value_text(value)) for key, value in log.startup.items() if key != "pools"]
    if facts:
        parts.append(table("startup", ("size", "logged"), facts))
    for pool in log.startup.get("pools", ()):
        label = f"{pool['label']} pool" if pool["label"] else "pool"
        parts.append(Text(f"  {label} of {pool['tokens']:,} tokens, {pool['gib']:.2f} GiB {pool['dtype']}"))
    if len(log.timeline):
        parts += [Text(""), _batches(log)]
    if len(log.events):
        parts.append(_events(log))
    if comparison is not None:
        parts += _comparison_parts(comparison)
    parts.append(bullets("notes", comparison.notes if comparison is not None else log.notes))
    parts += [Text(fit) for fit in fits]
    return Group(*parts)


def _head(log: Any) -> Text:
    text = Text(log.path, style="bold")
    span = float(log.timeline["time_s"].max()) if len(log.timeline) else 0.0
    text.append(
        f"\n  {len(log.decode):,} decode and {len(log.prefill):,} prefill lines over {span:,.1f} s"
        + (f", of {log.rank}" if log.rank else "")
        + (f"; start {log.start} of {log.starts}" if log.starts > 1 else "")
        + "\n",
        style="not bold",
    )
    return text


_BATCHES = {
    "full_token_usage": percent,
    "swa_token_usage": percent,
    "num_running_reqs": value_text,
    "num_queue_reqs": value_text,
    "spec_accept_length": value_text,
    "gen_throughput": value_text,
    "prefill_tokens": value_text,
    "cache_hit_rate": percent,
}


def _batches(log: Any) -> Table:
    frame: Any = log.timeline
    rows = []
    for name, text in _BATCHES.items():
        if name in frame and frame[name].notna().any():
            column = frame[name].dropna().astype(float)
            rows.append((name, *(text(float(one)) for one in (column.mean(), column.median(), column.max()))))
    return table("batch lines", ("", "mean", "p50", "peak"), rows)


def _events(log: Any) -> Text:
    counts = log.events["event"].value_counts()
    parts = [f"{count:,} x {event}" for event, count in counts.items()]
    retracted = log.events["num_retracted_reqs"].sum()
    text = Text("events: ", style="bold")
    more = f"; {int(retracted):,} requests retracted" if retracted else ""
    text.append(f"{', '.join(parts)}{more}\n", style="not bold")
    return text


def log_comparison_report(comparison: Any, paths: Sequence[str] = ()) -> RenderableType:
    """A run or plan beside a server's log (:class:`simkv.imports.measured.LogComparison`)."""
    head = Text(f"{comparison.name} against {comparison.path}\n", style="bold")
    parts: list[RenderableType] = [head, *_comparison_parts(comparison), bullets("notes", comparison.notes)]
    if paths:
        parts.append(bullets("written", paths))
    return Group(*parts)


def _comparison_parts(comparison: Any) -> list[RenderableType]:
    """Sizes and curves."""
    parts: list[RenderableType] = []
    if len(comparison.plan_table):
        rows = [
            (
                row["size"],
                *(value_text(_number(row[key])) for key in ("planned", "logged", "difference")),
                "equal" if not row["difference"] else "ok" if row["ok"] else "differs",
            )
            for row in comparison.plan_table.to_dict("records")
        ]
        parts.append(
            table(f"plan of {comparison.name} and startup", ("size", "planned", "logged", "difference", ""), rows)
        )
    if len(comparison.table):
        parts.append(_series(comparison.table.to_dict("records")))
    return parts


def _series(rows: Iterable[Mapping[str, Any]]) -> Table:
    keys = ("bias", "mae", "max", "simulated_peak", "measured_peak")
    cells = [(row["series"], f"{row['lines']:,}", *(value_text(float(row[key])) for key in keys)) for row in rows]
    heads = ("series", "lines", "bias", "mean abs. error", "largest", "simulated peak", "measured peak")
    return table("simulated and measured", heads, cells)


def _number(value: Any) -> Any:
    """A whole number as one."""
    return int(value) if float(value).is_integer() else float(value)
