"""What of a scenario can be fitted to a server's log: accepted lengths and step times."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import tomli_w

__all__ = ["Fit", "accept_width", "geometric_alpha", "intervals", "linear_steptime", "mean_accept_length"]


@dataclass(frozen=True)
class Fit:
    """A table of a scenario that was fitted to a log.

    Parameters
    ----------
    section : str
        ``acceptance`` or ``steptime``.
    table : dict
        What belongs under it.
    notes : tuple of str
        What it rests on, and what a log cannot tell.
    """

    section: str
    table: dict[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def toml(self) -> str:
        """The table as part of a scenario file, the notes as comments."""
        return "".join(f"# {note}\n" for note in self.notes) + tomli_w.dumps({self.section: self.table})


# ---------------------------------------------------------------------------------------------------------- acceptance
def mean_accept_length(decode: pd.DataFrame) -> float:
    """Accepted tokens of a verify step, the bonus included: each line's mean, weighted by its running requests.

    A line's mean is over as many verify steps as requests ran in its interval (metrics_reporter.py:973). NaN without drafts.
    """
    if "spec_accept_length" not in decode:
        return math.nan
    length = decode["spec_accept_length"].to_numpy(float)
    running = np.where(np.isnan(length), 0.0, decode["num_running_reqs"].to_numpy(float))
    total = running.sum()
    return float(np.nansum(length * running) / total) if total else math.nan


def accept_width(decode: pd.DataFrame, args: Mapping[str, Any]) -> tuple[int | None, str]:
    """Longest accepted length: by the server's arguments, or by how length and rate of the lines go together.

    Returns
    -------
    width : int or None
        None where neither tells it.
    source : str
        Which of the two.
    """
    drafted, steps = args.get("speculative_num_draft_tokens"), args.get("speculative_num_steps")
    if isinstance(drafted, int):
        by_steps = isinstance(steps, int) and args.get("speculative_algorithm") in ("EAGLE", "EAGLE3", "STANDALONE")
        return (min(drafted, int(steps or 0) + 1) if by_steps else drafted), "server_args"
    if {"spec_accept_rate", "spec_accept_length"} <= set(decode.columns):
        # rate = (length - 1) / (draft tokens - 1): metrics_reporter.py:974-982
        length, rate = (decode[name].to_numpy(float) for name in ("spec_accept_length", "spec_accept_rate"))
        ratio = (length - 1)[rate > 0] / rate[rate > 0]
        if len(ratio):
            return 1 + max(1, round(float(np.median(ratio)))), "from accept len and accept rate"
    return None, ""


def geometric_alpha(mean: float, width: int) -> float:
    """Probability whose mean length ``1 + a + ... + a**(width - 1)`` is this, by bisection; to six digits."""
    if mean <= 1 or width == 1:
        return 0.0
    if mean >= width:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if sum(middle**i for i in range(width)) < mean:
            low = middle
        else:
            high = middle
    return round((low + high) / 2, 6)


# ----------------------------------------------------------------------------------------------------------- step time
def intervals(decode: pd.DataFrame, prefill: pd.DataFrame, steps: int) -> pd.DataFrame:
    """One row a pair of neighbouring decode lines: what was done between them, and how long it took.

    Parameters
    ----------
    decode, prefill : DataFrame
        Of a :class:`simkv.imports.serverlog.ServerLog`.
    steps : int
        Decode steps between two lines.

    Returns
    -------
    DataFrame
        ``requests`` (mean of both lines), ``tokens`` in use, ``prefills`` and ``prefill_tokens`` between, ``duration_s``:
        tokens generated over throughput.
    """

    def column(frame: pd.DataFrame, name: str, default: float) -> Any:
        if name not in frame:
            return np.full(len(frame), default)
        return np.nan_to_num(frame[name].to_numpy(float), nan=default)

    running, used, line = (column(decode, name, 0.0) for name in ("num_running_reqs", "full_used_tokens", "line"))
    rate, length = column(decode, "gen_throughput", 0.0), column(decode, "spec_accept_length", 1.0)
    # Prefill lines up to each decode line, and their tokens.
    upto = np.searchsorted(column(prefill, "line", 0.0), line)
    sums = np.concatenate([[0.0], np.cumsum(column(prefill, "prefill_tokens", 0.0))])
    requests = (running[1:] + running[:-1]) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        duration = steps * requests * length[1:] / rate[1:]
    rows = pd.DataFrame(
        {
            "requests": requests,
            "tokens": (used[1:] + used[:-1]) / 2,
            "prefills": np.diff(upto).astype(float),
            "prefill_tokens": np.diff(sums[upto]),
            "duration_s": duration,
        }
    )
    kept: pd.DataFrame = rows[np.isfinite(duration) & (duration > 0)].reset_index(drop=True)
    return kept


def linear_steptime(rows: pd.DataFrame, steps: int) -> tuple[dict[str, float], float]:
    """Coefficients of a linear step time, none below zero, and the typical error as a share of a step.

    ``duration / steps = base (1 + prefills / steps) + a prefill_tokens / steps + b requests + c tokens``
    """
    features = np.column_stack(
        [1 + rows["prefills"] / steps, rows["prefill_tokens"] / steps, rows["requests"], rows["tokens"]]
    )
    found, error = _not_negative(features, rows["duration_s"].to_numpy(float) / steps)
    units = {
        "base_ms": 1e3,
        "per_prefill_token_us": 1e6,
        "per_decode_request_us": 1e6,
        "per_context_token_ns": 1e9,
    }
    return {key: float(f"{one * unit:.6g}") for one, (key, unit) in zip(found, units.items(), strict=True)}, error


def _not_negative(features: Any, wanted: Any) -> tuple[list[float], float]:
    """Least squares without negative coefficients: the best of all subsets of columns whose own fit has none.

    For four columns that is exact and plain; errors are relative, so that short steps count as much as long ones.
    """
    count = features.shape[1]
    weighted, ones = features / wanted[:, None], np.ones(len(wanted))
    best: tuple[float, list[float]] = (math.inf, [0.0] * count)
    for size in range(1, count + 1):
        for columns in combinations(range(count), size):
            part = weighted[:, columns]
            scale = np.abs(part).max(axis=0)
            if not scale.all():
                continue
            scaled, _, rank, _ = np.linalg.lstsq(part / scale, ones, rcond=None)
            coefficients = scaled / scale
            if rank < size or (coefficients < 0).any():
                continue
            error = float(((part @ coefficients - ones) ** 2).sum())
            # A further column must explain something: rounding alone is no reason.
            if error < best[0] * (1 - 1e-6):
                full = [0.0] * count
                for column, value in zip(columns, coefficients, strict=True):
                    full[column] = float(value)
                best = (error, full)
    return best[1], math.sqrt(best[0] / len(wanted))
