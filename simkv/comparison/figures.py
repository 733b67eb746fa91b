"""What is known of a figure: which way is better, and how it is written."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from math import isfinite
from typing import Any, Literal

import pandas as pd

from simkv.wording import percent, seconds, size, value_text

__all__ = ["better", "by_name", "change_text", "figure_text", "plain", "relative_text"]

# Usage, sizes and counts of cached tokens are neither: a fuller pool may be a better used one, and a longer accept length
# may come of a draft that costs more than it gives.
_LESS = (
    "requests.refused",
    "requests.aborted",
    "requests.unfinished",
    "requests.retracted",
    "requests.retractions",
    "tokens.recomputed",
    "ttft_s.*",
    "tpot_s.*",
    "e2e_latency_s.*",
    "num_queue_reqs.*",
)
_MORE = ("requests.completed", "output_tokens_per_s", "requests_per_s", "cache_hit_rate")
_SHARES = ("*_token_usage.*", "token_usage.*", "cache_hit_rate", "limit.*")


def better(figure: str) -> Literal["less", "more"] | None:
    """Which way a figure gets better under the same traffic; None where neither is."""
    if any(fnmatchcase(figure, pattern) for pattern in _LESS):
        return "less"
    return "more" if figure in _MORE else None


def plain(value: Any) -> Any:
    """A value of a summary as int, float, str or None; NaN, NA and infinities are None."""
    if value is pd.NA:
        return None
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not isfinite(value) else value


def figure_text(figure: str, value: Any, missing: str = "-") -> str:
    """A figure as a person would write it, in its unit."""
    if value is None:
        return missing
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return str(value)
    if figure.endswith("bytes"):
        return f"-{size(-value)}" if value < 0 else size(value)
    if "_s." in figure or (figure.endswith("_s") and not figure.endswith("per_s")):
        return seconds(value)
    if any(fnmatchcase(figure, pattern) for pattern in _SHARES):
        return percent(value)
    return value_text(value)


def change_text(figure: str, change: Any) -> str:
    """A difference with its sign; of shares in percentage points."""
    if change is None:
        return "-"
    if any(fnmatchcase(figure, pattern) for pattern in _SHARES):
        return f"{100 * change:+,.2f} pp"
    sign = "+" if change > 0 else "-" if change < 0 else ""
    return sign + figure_text(figure, abs(change))


def relative_text(share: float | None) -> str:
    """A relative difference in percent."""
    if share is None:
        return "-"
    if 0 < abs(share) < 0.0005:
        return f"{'+' if share > 0 else '-'}<0.1%"
    return f"{share:+.1%}" if abs(share) < 10 else f"{share:+,.0%}"


def by_name(summary: Mapping[str, Any] | pd.Series) -> dict[str, Any]:
    """A summary with plain values."""
    return {str(name): plain(value) for name, value in summary.items()}
