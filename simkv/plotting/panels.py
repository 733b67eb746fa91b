"""What stands in each panel: curves from frames and plan onto axes that are there."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from simkv.plotting.curves import Curve, Sampler, cumulative_counts, draw_line, mark_places, sum_in_bins, time_bins
from simkv.plotting.facts import (
    _foremost,
    cache_columns,
    cache_was_used,
    column_of,
    has_swa_pool,
    oom_kinds,
    pool_usage,
    row_times,
    same_curve,
    token_groups,
    usage_groups,
)
from simkv.plotting.frame import count_axis, log_counts, say_state
from simkv.plotting.style import (
    BINS,
    EXACT_ROWS,
    GREY,
    INK,
    MARKERS,
    OOM_STYLES,
    POOL_COLORS,
    RATE_BINS,
    STALE_HATCHES,
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
    has_swa = has_swa_pool(timeline, plan)
    rows: list[tuple[str, str, str, LineStyle]] = [
        ("window_evicted_swa_tokens", "swa", "window", "-"),
        ("cache_evicted_full_tokens", "full", "cache", (0, (5, 2))),
        ("cache_evicted_swa_tokens", "swa", "cache", (0, (1, 1))),
    ]
    series = [
        (pool, why, style, column_of(timeline, name)) for name, pool, why, style in rows if has_swa or pool != "swa"
    ]
    evicted = [(pool, why, style, values) for pool, why, style, values in series if values is not None and values.any()]
    time = row_times(timeline)
    if not evicted:
        say_state(ax, "no token was evicted" + ("" if has_swa else " (no SWA pool)"))
        return steps_text(len(time))
    if time[-1] <= time[0]:
        parts = [f"{pool}, {why}: {np.nansum(values):,.0f} tokens" for pool, why, _, values in evicted]
        say_state(ax, "no rate: all steps at one instant\n" + "\n".join(parts))
        return steps_text(len(time))
    width, edges = time_bins(time[0], time[-1], min(RATE_BINS, max(1, len(time) // 3)))
    for pool, why, style, values in evicted:
        rate: Floats = sum_in_bins(time, values, edges) / np.diff(edges)
        label = f"{pool}, {why} ({short_number(float(np.nansum(values)))} tokens)"
        draw_line(ax, Curve(edges, np.append(rate, rate[-1])), POOL_COLORS[pool], label, style=style)
        ax.fill_between(edges, np.append(rate, rate[-1]), step="post", color=POOL_COLORS[pool], alpha=0.1, linewidth=0)
    count_axis(ax)
    return f"tokens evicted in each {duration_text(width)} bin over its width; {steps_text(len(time))}"


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
    ax.set_ylabel("share (%)")
    columns = cache_columns(timeline)
    if not cache_was_used(timeline):
        say_state(ax, "the prefix cache is off, or was never used")
        return steps_text(len(timeline))
    sampler = Sampler(row_times(timeline))
    styles: dict[str, LineStyle] = {"evictable": "-", "protected": (0, (3, 2))}
    for pool in ("full", "swa"):
        capacity = plan.get(f"{pool}_max_total_num_tokens") or 0
        for state, style in styles.items():
            values = columns.get(f"{pool}_{state}_tokens")
            if values is not None and capacity:
                draw_line(
                    ax, sampler(100 * values / capacity), POOL_COLORS[pool], f"{pool} {state} (% of pool)", style=style
                )
    if "cache_hit_rate" in columns:
        held = np.asarray(pd.Series(columns["cache_hit_rate"]).ffill(), dtype=np.float64)
        draw_line(ax, sampler(100 * held), INK, "cache_hit_rate (% of prompt tokens)", style=(0, (1, 1)), width=2.0)
    ax.set_ylim(0, 106)
    return sampler.note


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
    causes = found["cause"].astype(str).value_counts(sort=True)
    text = f"{causes.index[0]}" + (f" and {len(causes) - 1} further causes" if len(causes) > 1 else "")
    ax.vlines(
        np.unique(time),
        0,
        1,
        transform=ax.get_xaxis_transform(),
        color="#EE3377",
        linewidth=1.4,
        label=wrapped(f"fault: {text} ({len(found):,})"),
    )
