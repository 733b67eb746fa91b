"""What stands in each panel: curves from frames and plan onto axes that are there."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from simkv.plotting.curves import Curve, Sampler, cumulative_counts, draw_line, mark_places, sum_in_bins, time_bins
from simkv.plotting.facts import (
    _foremost,
    cache_contents,
    cache_was_used,
    column_of,
    evictions,
    has_swa_pool,
    oom_kinds,
    pool_tokens,
    pool_usage,
    row_times,
    same_curve,
    token_groups,
    usage_groups,
)
from simkv.plotting.frame import count_axis, log_counts, say_state
from simkv.plotting.style import (
    BINS,
    EVICTION_STYLES,
    EXACT_ROWS,
    GREY,
    INK,
    MARKERS,
    OOM_STYLES,
    POOL_COLORS,
    RATE_BINS,
    STALE_HATCHES,
    TOMBSTONES,
    Floats,
    LineStyle,
    Plan,
    draft_color,
)
from simkv.plotting.texts import capacity_text, depths_text, duration_text, short_number, steps_text, top_of, wrapped


def draw_utilization(ax: Axes, timeline: pd.DataFrame, plan: Plan) -> str:
    """Draw the utilization panel on `ax`; the note is returned."""
    ax.set_ylabel("usage (% of pool)")
    sampler = Sampler(row_times(timeline))
    pools = pool_usage(timeline)
    top = 100.0
    for pool, usage in pools.items():
        top = max(top, top_of(usage))
        draw_line(ax, sampler(usage), POOL_COLORS[pool], pool, width=3.0)
    dashes = 0
    for group in usage_groups(timeline, plan):
        on = next((pool for pool, usage in pools.items() if same_curve(usage, group.values[0])), None)
        style: LineStyle = "-"
        if on is not None:
            style = (4 * dashes, (4, 5))
            dashes += 1
        top = max(top, top_of(group.values[0]))
        label = f"{depths_text(group.depths)}{f' = {on}' if on else ''} ({group.detail})"
        draw_line(ax, sampler(group.values[0]), draft_color(group.depths[0]), label, style=style, on_top=on is not None)
    ax.axhline(100, color=INK, linewidth=1.1, linestyle=(0, (2, 2)), label="100 %", zorder=1.5)
    ax.set_ylim(0, top * 1.06)
    return sampler.note


def draw_eviction(ax: Axes, timeline: pd.DataFrame, plan: Plan) -> str:
    """Draw the eviction panel on `ax`; the note is returned."""
    ax.set_ylabel("tokens/s")
    evicted = evictions(timeline, plan)
    time = row_times(timeline)
    if not evicted:
        say_state(ax, "no token was evicted" + ("" if has_swa_pool(timeline, plan) else " (no SWA pool)"))
        return steps_text(len(time))
    if time[-1] <= time[0]:
        parts = [f"{one.label}: {one.total:,.0f} tokens" for one in evicted]
        say_state(ax, "no rate: all steps at one instant\n" + "\n".join(parts))
        return steps_text(len(time))
    width, edges = _rate_bins(time, len(time))
    for one in evicted:
        rate: Floats = sum_in_bins(time, one.tokens, edges) / np.diff(edges)
        curve = Curve(edges, np.append(rate, rate[-1]))
        style = EVICTION_STYLES[one.reasons[0]] if one.reasons else "--"
        draw_line(ax, curve, POOL_COLORS[one.pool], f"{one.label} ({short_number(one.total)})", style=style)
        # One area only: two on one another take each other's colour.
        if one is evicted[0]:
            ax.fill_between(curve.x, curve.y, step="post", color=POOL_COLORS[one.pool], alpha=0.1, linewidth=0)
    count_axis(ax)
    bins = f"tokens evicted in each {duration_text(width)} bin over its width"
    cause = "; cache: what room was made for" if any(one.reasons not in ((), ("window",)) for one in evicted) else ""
    return f"{bins} (in all){cause}; {steps_text(len(time))}"


def _rate_bins(time: Floats, count: int) -> tuple[float, Floats]:
    """Return the bins of sums over time: few enough that each holds some of so many steps."""
    return time_bins(time[0], time[-1], min(RATE_BINS, max(1, count // 3)))


def draw_oom(
    ax: Axes, timeline: pd.DataFrame, events: pd.DataFrame | None, plan: Plan, span: tuple[float, float]
) -> str:
    """Draw the out-of-memory panel on `ax`; the note is returned."""
    ax.set_ylabel("events so far")
    kinds = oom_kinds(timeline, events)
    note = capacity_text(plan)
    if not kinds:
        say_state(ax, "none happened: no retraction, no abort, no refusal")
        draw_faults(ax, events)
        return note
    binned = False
    seen: dict[tuple[str, str], int] = {}
    for (event, pool, cause), (time, counts) in _foremost(kinds):
        order = seen.setdefault((event, pool), 0)
        seen[event, pool] += 1
        x, y, was_binned = cumulative_counts(time, counts, span)
        binned |= was_binned
        ax.plot(
            x,
            y,
            drawstyle="steps-post",
            color=POOL_COLORS.get(pool, POOL_COLORS["-"]),
            linestyle=OOM_STYLES.get(event, "-."),
            marker=MARKERS[order % len(MARKERS)],
            markersize=5,
            markevery=mark_places(len(x), order),
            label=wrapped(f"{event}{'' if pool == '-' else f', {pool}'}: {cause} ({counts.sum():,.0f})"),
        )
    count_axis(ax, integer=True)
    draw_faults(ax, events)
    if binned:
        width = time_bins(*span, BINS)[0]
        note = (
            f"counts at the end of {duration_text(width)} bins; {note}" if note else f"in {duration_text(width)} bins"
        )
    return note


def draw_concurrency(ax: Axes, timeline: pd.DataFrame, plan: Plan) -> str:
    """Draw the concurrency panel on `ax`; the note is returned."""
    ax.set_ylabel("requests")
    sampler = Sampler(row_times(timeline))
    peaks = {"running": 0.0, "queued": 0.0}
    for name, column, color in (
        ("queued", "num_queue_reqs", "#E69F00"),
        ("running", "num_running_reqs", INK),
    ):
        values = column_of(timeline, column)
        if values is not None:
            peaks[name] = top_of(values)
            draw_line(ax, sampler(values), color, f"{name} (peak {peaks[name]:,.0f})")
    limit = plan.get("max_running_requests")
    scale = max(*peaks.values(), 1.0)
    if limit is not None:
        shown = limit <= 4 * scale
        label = f"max_running_requests = {limit:,}" + ("" if shown else " (above the axis)")
        ax.plot([], [], color=GREY, linewidth=1.4, linestyle=(0, (2, 2)), label=label)
        if shown:
            scale = max(scale, limit)
            ax.axhline(limit, color=GREY, linewidth=1.4, linestyle=(0, (2, 2)), zorder=1.5)
    if peaks["queued"] > 20 * max(peaks["running"], 1.0):
        log_counts(ax, scale)
    else:
        count_axis(ax, integer=True, top=scale)
    return sampler.note


def draw_draft(ax: Axes, timeline: pd.DataFrame, plan: Plan) -> str:
    """Draw the draft panel on `ax`; the note is returned."""
    ax.set_ylabel("tokens")
    sampler = Sampler(row_times(timeline))
    groups = token_groups(timeline, plan)
    if not groups:
        say_state(ax, "no draft model")
        return steps_text(len(timeline))
    dashes = 0
    for order, group in enumerate(groups):
        color = draft_color(group.depths[0])
        resident, *rest = (sampler(values) for values in group.values)
        hidden = any(same_curve(group.values[0], other.values[0]) for other in groups[:order])
        style: LineStyle = "-"
        if hidden:
            style, dashes = (4 * dashes, (4, 5)), dashes + 1
        label = f"{depths_text(group.depths)} resident ({group.detail})"
        draw_line(ax, resident, color, label, style=style, width=2.0, on_top=hidden)
        for live in rest:
            hatch = STALE_HATCHES[order % len(STALE_HATCHES)]
            ax.fill_between(
                resident.x, live.y, resident.y, step="post", facecolor="none", edgecolor=color, hatch=hatch, linewidth=0
            )
            draw_line(ax, live, color, "", style=(0, (3, 2)), width=1.4)
    count_axis(ax)
    return sampler.note


def draw_cache(ax: Axes, timeline: pd.DataFrame, plan: Plan) -> str:
    """Draw the prefix-cache panel on `ax`; the note is returned."""
    ax.set_ylabel("% of pool, % of prompts")
    if not cache_was_used(timeline):
        say_state(ax, _unused_text(plan))
        return steps_text(len(timeline))
    sampler = Sampler(row_times(timeline))
    contents = cache_contents(timeline, plan)
    for one in contents:
        color = POOL_COLORS[one.pool]
        cached, protected = (_mean_only(sampler(values)) for values in (one.cached, one.protected))
        ax.fill_between(cached.x, protected.y, cached.y, step="post", color=color, alpha=0.15, linewidth=0)
        draw_line(ax, cached, color, f"{one.pool} cached (peak {top_of(one.cached):.3g} %)")
        if one.protected.any():
            draw_line(ax, protected, color, f"{one.pool} protected", style=(0, (3, 2)), width=1.4)
    dead = column_of(timeline, "tombstone_tokens")
    full = pool_tokens(plan, "full")
    if dead is not None and dead.any() and full:
        values = 100 * dead / full
        label = f"tombstones: full cached, swa gone (peak {top_of(values):.3g} % of full)"
        draw_line(ax, _mean_only(sampler(values)), TOMBSTONES, label, style=(0, (1, 1)), width=2.0)
    notes = [sampler.note.partition(":")[0]]
    if contents:
        notes.append("shaded: evictable")
    notes += _draw_hits(ax, timeline)
    ax.set_ylim(0, 106)
    return "; ".join(notes)


def _unused_text(plan: Plan) -> str:
    """Say why a prefix cache holds nothing, as far as the plan tells."""
    off = plan.get("settings", {}).get("disable_radix_cache")
    if off is None:
        return "the prefix cache is off, or was never used"
    return "the prefix cache is off (memory.disable_radix_cache)" if off else "the prefix cache is on, but held nothing"


def _mean_only(curve: Curve) -> Curve:
    """Return a curve without its band."""
    return Curve(curve.x, curve.y)


def _draw_hits(ax: Axes, timeline: pd.DataFrame) -> list[str]:
    """Draw tokens found over prompt tokens in each time bin, with gaps where nothing was prefilled; how it was done."""
    names = ("hit_tokens", "rehit_tokens", "prefill_tokens")
    columns = [column_of(timeline, name) for name in names]
    if columns[0] is None or columns[2] is None:
        return []
    hits, again, computed = (np.zeros(len(timeline)) if part is None else np.nan_to_num(part) for part in columns)
    found = hits + again
    label = f"hit rate ({short_number(found.sum())} tokens found"
    label += f", {short_number(again.sum())} of them after retractions)" if again.any() else ")"
    time = row_times(timeline)
    if time[-1] > time[0]:
        width, edges = _rate_bins(time, int(np.count_nonzero(found + computed)))
        note = f"hit rate: tokens found of the prompt tokens in each {duration_text(width)} bin"
    else:
        edges, note = time[[0, -1]], "hit rate of all steps"
    sums = [sum_in_bins(time, part, edges) for part in (found, found + computed)]
    with np.errstate(invalid="ignore", divide="ignore"):
        rate = 100 * sums[0] / sums[1]
    draw_line(ax, Curve(edges, np.append(rate, rate[-1])), INK, label, width=2.6, on_top=True)
    return [note]


def draw_faults(ax: Axes, events: pd.DataFrame | None) -> None:
    """Draw a vertical line where a fault happened; at most one each pixel or so."""
    if events is None or not len(events):
        return
    found = events[events["event"] == "fault"]
    if not len(found):
        return
    time = found["time_s"].to_numpy(dtype=float)
    if len(time) > EXACT_ROWS:
        time = time[np.unique(np.digitize(time, np.linspace(time.min(), time.max(), EXACT_ROWS)), return_index=True)[1]]
    # A cause begins with the fault's code; what follows differs from one request to another.
    codes = found["cause"].astype(str).str.partition(":")[0].value_counts(sort=True)
    told = [f"{code} ({count:,})" for code, count in codes.head(4).items()]
    text = ", ".join(told) + (f" and {len(codes) - 4} others" if len(codes) > 4 else "")
    ax.vlines(
        np.unique(time),
        0,
        1,
        transform=ax.get_xaxis_transform(),
        color="#EE3377",
        linewidth=1.4,
        label=wrapped(f"fault: {text}"),
    )
