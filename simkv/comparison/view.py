"""A comparison as titles, sentences and tables of text: what terminal, Markdown and HTML all show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from simkv.comparison.figures import change_text, figure_text, relative_text
from simkv.comparison.outcome import Comparison
from simkv.comparison.sides import Side
from simkv.wording import size

__all__ = [
    "Grid",
    "changed_grid",
    "failure_lines",
    "figure_grid",
    "overcommit_bars",
    "sections",
    "sweep_sections",
    "title_of",
]

# Of the plan, what is told even where it is the same on both sides.
_ALWAYS = ("kv_bytes", "overcommit_bytes", "slack_bytes", "fits_slack")
# What another line of the same table says already.
_TWICE = ("max_total_num_tokens",)
_NAMES = {
    "kv_bytes": "KV budget (kv_bytes)",
    "bytes_per_token": "bytes a token (bytes_per_token)",
    "full_max_total_num_tokens": "full pool, tokens (full_max_total_num_tokens)",
    "swa_max_total_num_tokens": "SWA pool, tokens (swa_max_total_num_tokens)",
    "draft_layers.full": "full draft layers that are charged (draft_layers.full)",
    "draft_layers.swa": "sliding draft layers that are charged (draft_layers.swa)",
    "draft_layers.swa_full": "draft rings that are charged (draft_layers.swa_full)",
    "overcommit_bytes": "allocated beyond the budget (overcommit_bytes)",
    "padding_bytes": "of it padding pages (padding_bytes)",
    "slack_bytes": "outside mem_fraction_static (slack_bytes)",
    "fits_slack": "fits there at start-up",
}


@dataclass(frozen=True)
class Grid:
    """A table of text.

    Parameters
    ----------
    title : str
    heads : tuple of str
    rows : tuple of tuple of str
    left : int
        So many columns, from the left, are text; the others are figures.
    note : str
        What a stranger needs to know to read it.
    empty : str
        What stands there instead of no rows.
    """

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1
    note: str = ""
    empty: str = ""


def _signed(count: int) -> str:
    return f"{count:+,}" if count else "0"


def title_of(c: Comparison) -> str:
    """What is compared, with the scenario's name where both have one and it is no label."""
    names = {str(side.scenario.get("name", "")) for side in (c.a, c.b)}
    name = f"{names.pop()}: " if len(names) == 1 else ""
    return f"{name}{c.a.label} against {c.b.label}"


def sections(comparison: Comparison) -> tuple[Grid, Grid, Grid, Grid]:
    """What differs in the inputs; the plan; its pools; what happened."""
    return _inputs(comparison), _plan(comparison), _pools(comparison), _events(comparison)


def _inputs(c: Comparison) -> Grid:
    rows = tuple((row["key"], _value(row["a"]), _value(row["b"])) for row in c.inputs.to_dict("records"))
    return Grid(
        "what differs in the inputs",
        ("key", c.a.label, c.b.label),
        rows,
        left=3,
        empty="nothing: the two scenarios are the same",
    )


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _plan(c: Comparison) -> Grid:
    split = c.a.plan["full_max_total_num_tokens"] is not None or c.b.plan["full_max_total_num_tokens"] is not None
    rows = []
    for row in c.plan.to_dict("records"):
        name = row["figure"]
        if (split and name in _TWICE) or (not row["changed"] and name not in _ALWAYS):
            continue
        texts = (_plan_text(name, row["a"]), _plan_text(name, row["b"]))
        rows.append((_NAMES.get(name, name), *texts, change_text(name, row["change"]) if row["change"] else "-"))
    note = (
        "Bytes of one rank. What is allocated beyond the budget was charged by nobody; it has to fit what "
        "mem_fraction_static leaves outside, or start-up runs out of memory."
    )
    return Grid("memory plan", ("", c.a.label, c.b.label, "change"), tuple(rows), note=note)


def _plan_text(name: str, value: Any) -> str:
    if value is None:
        return {"slack_bytes": "not known (no GPU stated)", "fits_slack": "not known"}.get(name, "-")
    if isinstance(value, bool):
        return "yes" if value else "NO" if name == "fits_slack" else "no"
    return figure_text(name, value)


def _pools(c: Comparison) -> Grid:
    rows = []
    for row in c.pools.to_dict("records"):
        cells = [row["worker"], row["pool"]]
        for key in ("tokens", "bytes", "budgeted_bytes"):
            cells += [figure_text(key, row[f"{key}_{side}"]) for side in "ab"]
        rows.append(tuple(cells))
    heads = [f"{name}, {side.label}" for name in ("tokens", "allocated", "budgeted") for side in (c.a, c.b)]
    note = "Every draft depth has pools of its own beside the target's; a dash is a pool that a side does not have."
    return Grid(
        "pools of one rank", ("worker", "pool", *heads), tuple(rows), left=2, note=note, empty="no pool was planned"
    )


def _events(c: Comparison) -> Grid:
    rows = []
    for row in c.events.to_dict("records"):
        firsts = [figure_text("time_s", row[f"first_s_{side}"]) for side in "ab"]
        counts = [f"{row[side]:,}" for side in "ab"]
        rows.append((row["event"], row["pool"], row["cause"], *counts, _signed(row["change"]), *firsts))
    heads = ("event", "pool", "cause", c.a.label, c.b.label, "change", f"first, {c.a.label}", f"first, {c.b.label}")
    empty = "no retraction, no abort, no refusal, no fault in either"
    return Grid("what happened, by pool and cause", heads, tuple(rows), left=3, empty=empty)


def figure_grid(c: Any, table: pd.DataFrame, title: str, keys: Sequence[str] = ()) -> Grid:
    """Rows of ``Comparison.table``; ``keys`` are columns that come before the figure's name."""
    stated = bool(c.tolerance)
    rows = []
    for row in table.to_dict("records"):
        name = row["figure"]
        cells = [*(_value(row[key]) for key in keys), name]
        cells += [figure_text(name, row["a"]), figure_text(name, row["b"])]
        cells += [change_text(name, row["change"]), relative_text(row["relative_change"]), _verdict(c, row["verdict"])]
        if stated:
            cells.append({True: "within", False: "BEYOND", None: "-"}[row["within"]])
        rows.append(tuple(cells))
    heads = [*keys, "figure", c.a.label, c.b.label, "change", "relative", "verdict", *(["tolerance"] if stated else [])]
    note = ""
    if not getattr(c, "judged", True):
        note = "Nothing is called better or worse here: the two are not like for like (see the top)."
    return Grid(title, tuple(heads), tuple(rows), left=1 + len(keys), note=note, empty="none")


def changed_grid(c: Comparison) -> Grid:
    """The figures that differ; where only one side has any, that."""
    silent = [side.label for side in (c.a, c.b) if not side.ran]
    if silent:
        return Grid(
            "figures that differ", (), (), empty=f"nothing ran with {' or '.join(silent)}: there are no figures"
        )
    return figure_grid(c, c.changed, f"figures that differ: {len(c.changed)} of {len(c.table)}")


def _verdict(c: Any, verdict: str) -> str:
    return {"only in a": f"only in {c.a.label}", "only in b": f"only in {c.b.label}"}.get(verdict, verdict)


def failure_lines(failures: Sequence[str], most: int = 12) -> list[str]:
    """Failures as a list, where the verdict does not hold all of them: there is more than one."""
    if len(failures) < 2:
        return []
    more = [f"and {len(failures) - most} more"] if len(failures) > most else []
    return [*failures[:most], *more]


def overcommit_bars(c: Comparison) -> list[dict[str, Any]]:
    """Bytes beyond the budget against the slack, of each side whose slack is known, as shares of the longer one."""
    known = [side for side in (c.a, c.b) if side.plan["pools"] and side.plan["slack_bytes"] is not None]
    longest = max((max(s.plan["overcommit_bytes"], s.plan["slack_bytes"]) for s in known), default=0)
    if longest <= 0:
        return []
    return [_bar(side, longest) for side in known]


def _bar(side: Side, longest: int) -> dict[str, Any]:
    over, slack = side.plan["overcommit_bytes"], side.plan["slack_bytes"]
    return {
        "label": side.label,
        "over": size(over),
        "slack": size(slack),
        "fits": bool(side.fits_slack),
        "over_share": round(100 * max(over, 0) / longest, 2),
        "slack_share": round(100 * max(slack, 0) / longest, 2),
    }


def sweep_sections(comparison: Any, *, only_changed: bool = True) -> list[Grid]:
    """What differs in the inputs of two sweeps, what became of each point, and the figures."""
    c = comparison
    keys = list(c.axes)
    rows = tuple((row["key"], _value(row["a"]), _value(row["b"])) for row in c.inputs.to_dict("records"))
    inputs = Grid("what differs in the inputs", ("key", c.a.label, c.b.label), rows, 3, empty="nothing but the code")
    points = tuple(
        (*(_value(row[key]) for key in keys), *(_value(row[f"state_{side}"] or "-") for side in "ab"))
        for row in c.points.to_dict("records")
    )
    heads = (*keys, c.a.label, c.b.label)
    table = c.changed if only_changed else c.table
    title = (
        f"figures that differ: {len(c.changed)} of {len(c.table)}" if only_changed else f"all {len(c.table)} figures"
    )
    return [inputs, Grid("points", heads, points, len(heads)), figure_grid(c, table, title, keys)]
