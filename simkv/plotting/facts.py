"""Reading frames and plan: columns, pools, draft depths, kinds of events."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from simkv.engines.base import EVICTION_CAUSES
from simkv.plotting.style import EVICTION_LINES, OOM_COLUMNS, OOM_EVENTS, OOM_LINES, Floats, Plan
from simkv.plotting.texts import mapping_text, short_number, top_of


def row_times(frame: pd.DataFrame) -> Floats:
    """Return the times of a frame, which must not decrease."""
    time = frame["time_s"].to_numpy(dtype=float)
    if len(time) and (np.isnan(time).any() or (np.diff(time) < 0).any()):
        raise ValueError("time_s must be in order and without gaps (NaN)")
    return time


def time_span(timeline: pd.DataFrame, events: pd.DataFrame | None = None) -> tuple[float, float]:
    """Return first and last time of the frames, NaN when both are empty."""
    parts = [frame["time_s"].to_numpy(dtype=float) for frame in (timeline, events) if frame is not None and len(frame)]
    if not parts:
        return math.nan, math.nan
    return min(float(part.min()) for part in parts), max(float(part.max()) for part in parts)


def column_of(timeline: pd.DataFrame, name: str) -> Floats | None:
    """Return a column as floats; None when it is absent or holds no value at all."""
    if name not in timeline:
        return None
    values = timeline[name].to_numpy(dtype=float, na_value=np.nan)
    return None if np.isnan(values).all() else values


def pool_usage(timeline: pd.DataFrame) -> dict[str, Floats]:
    """Return the usage of the target's pools in percent."""
    usage = {pool: column_of(timeline, f"{pool}_token_usage") for pool in ("full", "swa")}
    return {pool: 100 * values for pool, values in usage.items() if values is not None}


def has_swa_pool(timeline: pd.DataFrame, plan: Plan) -> bool:
    """Tell whether the model has a SWA pool."""
    return bool(plan.get("swa_max_total_num_tokens")) or "swa_token_usage" in timeline


@dataclass(frozen=True)
class Group:
    """Draft depths that have the same curves."""

    depths: list[int]
    values: list[Floats]
    detail: str


def usage_groups(timeline: pd.DataFrame, plan: Plan) -> list[Group]:
    """Return the usage of the draft depths in percent, equal ones together."""
    found = []
    for depth in draft_depths(timeline):
        pool = draft_pool(plan, depth)
        resident = column_of(timeline, f"draft{depth}_resident_tokens")
        if pool is not None and resident is not None:
            found.append((depth, [100 * resident / pool["tokens"]], mapping_text(pool.get("mapping"))))
    return _grouped(found)


def token_groups(timeline: pd.DataFrame, plan: Plan) -> list[Group]:
    """Return resident and, where there are any, live tokens of the draft depths, equal ones together."""
    found = []
    for depth in draft_depths(timeline):
        pool = draft_pool(plan, depth)
        columns = [column_of(timeline, f"draft{depth}_{state}_tokens") for state in ("resident", "live")]
        values = [column for column in columns if column is not None]
        if columns[0] is not None:
            found.append(
                (depth, values, f"pool {short_number(pool['tokens'])}" if pool is not None else "no pool in the plan")
            )
    return _grouped(found)


def _grouped(found: Iterable[tuple[int, list[Floats], str]]) -> list[Group]:
    """Put depths together whose curves and details are the same."""
    groups: list[Group] = []
    for depth, values, detail in found:
        for group in groups:
            if (
                group.detail == detail
                and len(group.values) == len(values)
                and all(map(same_curve, group.values, values))
            ):
                group.depths.append(depth)
                break
        else:
            groups.append(Group([depth], values, detail))
    return groups


@dataclass(frozen=True)
class Cached:
    """What the prefix cache holds of one pool, in percent of the pool."""

    pool: str
    cached: Floats
    protected: Floats


def cache_contents(timeline: pd.DataFrame, plan: Plan) -> list[Cached]:
    """Return what the prefix cache holds of each pool."""
    found = []
    for pool in ("full", "swa"):
        capacity = pool_tokens(plan, pool)
        parts = [column_of(timeline, f"{pool}_{state}_tokens") for state in ("evictable", "protected")]
        evictable, protected = (np.zeros(len(timeline)) if part is None else part for part in parts)
        if capacity and any(part is not None for part in parts):
            found.append(Cached(pool, 100 * (evictable + protected) / capacity, 100 * protected / capacity))
    return found


def pool_tokens(plan: Plan, pool: str) -> int:
    """Return the size of a pool; a model with one kind of layer has its whole budget in the full one."""
    stated = plan.get(f"{pool}_max_total_num_tokens")
    if stated is None and pool == "full":
        stated = plan.get("max_total_num_tokens")
    return stated or 0


def cache_was_used(timeline: pd.DataFrame) -> bool:
    """Tell whether the prefix cache ever held, hit or lost anything."""
    names = ["cache_hit_rate", "hit_tokens", "rehit_tokens"]
    names += [f"{pool}_{state}_tokens" for pool in ("full", "swa") for state in ("evictable", "protected")]
    names += [f"cache_evicted_{pool}_tokens" for pool in ("full", "swa")]
    columns = (column_of(timeline, name) for name in names)
    return any(np.nan_to_num(values).any() for values in columns if values is not None)


@dataclass(frozen=True, eq=False)
class Evicted:
    """Tokens evicted in each step for some reasons: ``window``, or what the cache made room for."""

    pool: str
    reasons: tuple[str, ...]
    tokens: Floats

    @property
    def total(self) -> float:
        """Tokens in all."""
        return float(np.nansum(self.tokens))

    @property
    def label(self) -> str:
        """The reasons in words."""
        if self.reasons == ("window",):
            return f"{self.pool}, window"
        return f"{self.pool}, cache" + (f": {' + '.join(self.reasons)}" if self.reasons else "")


def evictions(timeline: pd.DataFrame, plan: Plan) -> list[Evicted]:
    """Return what was evicted, by pool and reason; the smallest of many are added to the next one of their pool."""
    pools = ("full", "swa") if has_swa_pool(timeline, plan) else ("full",)
    window = column_of(timeline, "window_evicted_swa_tokens")
    found = [Evicted("swa", ("window",), window)] if window is not None and "swa" in pools else []
    for pool in pools:
        causes = {why: column_of(timeline, f"cache_evicted_{pool}_{why}_tokens") for why in EVICTION_CAUSES}
        parts = [Evicted(pool, (why,), values) for why, values in causes.items() if values is not None]
        total = column_of(timeline, f"cache_evicted_{pool}_tokens")
        found += parts or ([] if total is None else [Evicted(pool, (), total)])
    found = [one for one in found if one.total]
    while len(found) > EVICTION_LINES:
        by_size = sorted((one for one in found if one.reasons != ("window",)), key=lambda one: (one.pool, one.total))
        pairs = [(one, other) for one, other in pairwise(by_size) if one.pool == other.pool]
        small, larger = min(pairs, key=lambda pair: pair[0].total)
        both = np.nan_to_num(larger.tokens) + np.nan_to_num(small.tokens)
        found[found.index(larger)] = Evicted(larger.pool, larger.reasons + small.reasons, both)
        found.remove(small)
    return found


def draft_depths(timeline: pd.DataFrame) -> list[int]:
    """Return the draft depths that the timeline has columns of."""
    found = (re.fullmatch(r"draft(\d+)_resident_tokens", str(name)) for name in timeline.columns)
    return sorted(int(match[1]) for match in found if match)


def draft_pool(plan: Plan, depth: int) -> Mapping[str, Any] | None:
    """Return the plan's pool of a draft depth; the larger one, where it has both a full and a SWA pool."""
    pools = [pool for pool in plan.get("pools", ()) if pool["worker"] == f"draft{depth}" and pool.get("tokens")]
    pools = [pool for pool in pools if pool.get("layers", 1)]
    return max(pools, key=lambda pool: int(pool["tokens"]), default=None)


def same_curve(one: Floats, other: Floats) -> bool:
    """Tell whether two curves lie on one another (to a part in two thousand of their height)."""
    if one is other:
        return True
    difference = np.abs(one - other)
    return bool(np.nan_to_num(difference).max() <= max(top_of(one), top_of(other)) / 2000)


def oom_kinds(timeline: pd.DataFrame, events: pd.DataFrame | None) -> dict[tuple[str, str, str], tuple[Floats, Floats]]:
    """Return times and counts for each event, pool and cause."""
    kinds: dict[tuple[str, str, str], tuple[Floats, Floats]] = {}
    if events is not None and len(events):
        chosen = events[events["event"].isin(OOM_EVENTS)].sort_values("time_s", kind="stable")
        keys: list[Hashable] = ["event", "pool", "cause"]
        for key, rows in chosen.groupby(keys, sort=False, observed=True, dropna=False)["time_s"]:
            event, pool, cause = (str(part) for part in key)
            kinds[event, pool, cause or "no cause given"] = rows.to_numpy(dtype=float), np.ones(len(rows))
    for event in set(OOM_EVENTS) - {event for event, _, _ in kinds}:
        counts = column_of(timeline, OOM_COLUMNS[event])
        if counts is not None and counts.any():
            some = np.nan_to_num(counts) > 0
            kinds[event, "-", "cause not recorded"] = row_times(timeline)[some], counts[some]
    return dict(sorted(kinds.items(), key=lambda item: (-item[1][1].sum(), item[0])))


def _foremost(
    kinds: dict[tuple[str, str, str], tuple[Floats, Floats]],
) -> list[tuple[tuple[str, str, str], tuple[Floats, Floats]]]:
    """Return the most frequent kinds, and all the others as one more."""
    items = list(kinds.items())
    if len(items) <= OOM_LINES:
        return items
    kept, rest = items[: OOM_LINES - 1], items[OOM_LINES - 1 :]
    time = np.concatenate([value[0] for _, value in rest])
    counts = np.concatenate([value[1] for _, value in rest])
    order = np.argsort(time, kind="stable")
    return [*kept, (("others", "-", f"{len(rest)} further events, pools or causes"), (time[order], counts[order]))]
