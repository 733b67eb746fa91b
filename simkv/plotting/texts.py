"""Numbers and names as people read them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np

from simkv.plotting.style import LEGEND_CHARS, TIME_UNITS, Floats, Plan


def top_of(values: Floats) -> float:
    """Return the largest value, 0 where there is none."""
    finite = values[np.isfinite(values)] if not np.isfinite(values).all() else values
    return float(finite.max()) if len(finite) else 0.0


def wrapped(text: str) -> str:
    """Break a legend text into lines."""
    return textwrap.fill(text, LEGEND_CHARS, subsequent_indent="  ")


def steps_text(count: int) -> str:
    """Return the number of steps in words."""
    return "1 step" if count == 1 else f"{count:,} steps"


def short_number(number: float) -> str:
    """Return a number of tokens as 950, 12.3k or 1.5M."""
    for limit, unit, suffix in ((1e4, 1.0, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M")):
        if abs(number) < limit:
            return f"{number / unit:,.4g}{suffix}" if suffix else f"{number:,.0f}"
    return f"{number / 1e9:,.4g}G"


def duration_text(seconds: float) -> str:
    """Return a round duration in its own unit."""
    name, unit = next(((name, unit) for name, unit in reversed(TIME_UNITS) if seconds >= unit), TIME_UNITS[0])
    return f"{seconds / unit:.6g} {name}"


def depths_text(depths: Sequence[int]) -> str:
    """Return draft depths as a name: ``draft 0``, ``draft 0-2, 5``."""
    parts: list[list[int]] = []
    for depth in depths:
        if parts and parts[-1][-1] == depth - 1:
            parts[-1].append(depth)
        else:
            parts.append([depth])
    return "draft " + ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def mapping_text(mapping: object) -> str:
    """Return how a draft pool finds its rows, in words."""
    text = "" if mapping is None else str(mapping)
    if text.lower() in ("", "-", "none"):
        return "indexed as full"
    return "target's mapping" if "target" in text.lower() else f"{text} mapping"


def capacity_text(plan: Plan) -> str:
    """Return the limits of the plan in one line."""
    names = ("full_max_total_num_tokens", "swa_max_total_num_tokens", "max_running_requests")
    limits = {name: plan.get(name) for name in names}
    if limits[names[0]] is None:
        limits[names[0]] = plan.get("max_total_num_tokens")
    parts = [
        f"{pool} pool {limits[name]:,} tokens"
        for pool, name in zip(("full", "swa"), names, strict=False)
        if limits[name]
    ]
    if limits["max_running_requests"]:
        parts.append(f"max_running_requests {limits['max_running_requests']:,}")
    return ", ".join(parts)
