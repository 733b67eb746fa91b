"""Figures in words: bytes, shares, durations and counts as a person would write them."""

from __future__ import annotations

from math import isfinite, isnan
from typing import Any

import numpy as np

__all__ = ["GIB", "LIMITS", "POOLS", "count_text", "percent", "plain", "seconds", "size", "value_text"]

GIB = 1 << 30

LIMITS = {
    "full": "the full pool",
    "swa": "the SWA pool",
    "rows": "request slots (max_running_requests)",
    "chunk": "the chunk budget of a prefill pass",
    "arrival": "arrivals (nothing waits)",
}
"""What requests wait for, as a text calls it (``limit.*`` of a summary)."""
POOLS = {"full": "full pool", "swa": "SWA pool"}
"""Pools of the target, as a table calls them."""


def plain(value: Any) -> Any:
    """A value that JSON can hold: of Python itself, and None where a number is none."""
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not isfinite(value) else value


def size(count: float | None) -> str:
    """Bytes in the unit a person would use, with GiB for GPU memory."""
    if count is None:
        return "-"
    for unit, scale in (("TiB", 1 << 40), ("GiB", GIB), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(count) >= scale:
            return f"{count / scale:,.2f} {unit}"
    return f"{count:,.0f} B"


def count_text(value: int | None) -> str:
    """A whole number with thousands marked."""
    return "-" if value is None else f"{value:,}"


def percent(value: float | None) -> str:
    """A share in percent, precise where it is nearly all."""
    if value is None or isnan(value):
        return "-"
    return f"{value:.2%}" if value < 0.9995 or value == 1 else f"{value:.4%}"


def seconds(value: float | None) -> str:
    """A duration in s, or in ms below one."""
    if value is None or isnan(value):
        return "-"
    return f"{value * 1e3:,.2f} ms" if value < 1 else f"{value:,.2f} s"


def value_text(value: Any) -> str:
    """A figure of a summary, whatever its type; a dash where there is none."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or (isinstance(value, float) and isnan(value)):
        return "-"
    return f"{value:,.6g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
