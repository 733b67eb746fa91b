"""Figures: pictures of fixed synthetic frames, and the numbers behind the lines.

To make the pictures anew: ``pytest tests/test_plotting.py --mpl-generate-path=tests/baseline_images``; to compare:
``pytest tests/test_plotting.py --mpl``.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from simkv import plotting
from simkv.plotting.curves import bin_stats, time_bins

picture = pytest.mark.mpl_image_compare(
    baseline_dir="baseline_images",
    style="default",
    tolerance=0.1,
    savefig_kwargs={"dpi": 80, "metadata": {"Software": None}},
)

PANELS = ("utilization", "eviction", "oom", "concurrency", "draft", "cache")
NO_EVENTS = pd.DataFrame({name: [] for name in ("time_s", "event", "request_id", "pool", "tokens", "cause")})
FULL, SWA = 200_000, 50_000


# -------------------------------------------------------------------------------------------------------------- frames


def a_plan(*, depths: int = 3, swa: bool = True, identity: tuple[int, ...] = (), limit: int = 64) -> dict[str, Any]:
    """Return a plan; depths in `identity` have a pool of full capacity of their own."""
    pools = [{"worker": "target", "pool": "full", "layers": 9, "tokens": FULL, "mapping": "-"}]
    if swa:
        pools.append({"worker": "target", "pool": "swa", "layers": 39, "tokens": SWA, "mapping": "target"})
    for depth in range(depths):
        own = depth in identity or not swa
        pools.append(
            {
                "worker": f"draft{depth}",
                "pool": "swa" if swa else "full",
                "layers": 1,
                "tokens": FULL if own else SWA,
                "mapping": "identity" if own else "target",
            }
        )
    return {
        "pools": pools,
        "full_max_total_num_tokens": FULL,
        "swa_max_total_num_tokens": SWA if swa else None,
        "max_running_requests": limit,
    }


def a_timeline(rows: int, seconds: float, *, plan: dict[str, Any], radix: bool = True) -> pd.DataFrame:
    """Return a made-up run with a busy middle, one prefill spike in eight steps, and evictions where a pool is full."""
    t = np.linspace(0, seconds, rows)
    phase = t / seconds if seconds else t
    load = np.sin(np.pi * phase) ** 0.7 * 0.9 + 0.03 * np.sin(60 * phase)
    spike = 0.08 * (np.arange(rows) % 8 == 0)
    full = np.clip(load * 0.8 + spike, 0, 1)
    swa = np.clip(load * 1.1 + spike, 0, 1)
    running = np.round(60 * np.clip(load, 0, 1))
    hit_rate = 0.3 + 0.2 * phase + 0.25 * np.sin(np.arange(rows))
    found = np.round(2000 * hit_rate) * (spike > 0) * (np.abs(phase - 0.6) > 0.05) * radix
    columns: dict[str, Any] = {
        "time_s": t,
        "kind": np.where(spike > 0, "prefill", "decode"),
        "prefill_tokens": np.where((spike > 0) & (np.abs(phase - 0.6) > 0.05), 2000 - found, 0),
        "hit_tokens": found,
        "rehit_tokens": np.zeros(rows, dtype=int),
        "full_token_usage": full,
        "token_usage": np.maximum(full, swa),
        "full_evictable_tokens": np.round(0.15 * FULL * phase) * radix,
        "full_protected_tokens": np.round(0.05 * FULL * load.clip(0)) * radix,
        "num_running_reqs": running,
        "num_queue_reqs": np.round(90 * np.clip(load - 0.75, 0, 1)),
        "num_retracted_reqs": np.zeros(rows, dtype=int),
        "num_aborted_reqs": np.zeros(rows, dtype=int),
        "num_refused_reqs": np.zeros(rows, dtype=int),
        "cache_hit_rate": np.where(spike > 0, found / 2000, np.nan),
    }
    columns |= evicted_by_cause("full", full > 0.6, spike > 0, radix)
    if plan["swa_max_total_num_tokens"]:
        columns["swa_token_usage"] = swa
        columns["swa_evictable_tokens"] = np.round(0.1 * SWA * phase) * radix
        columns["swa_protected_tokens"] = np.round(0.04 * SWA * load.clip(0)) * radix
        columns["window_evicted_swa_tokens"] = np.round(40 * running.clip(0) / 8) * 8
        columns |= evicted_by_cause("swa", swa > 0.95, spike > 0, radix)
        cached = {
            pool: columns[f"{pool}_evictable_tokens"] + columns[f"{pool}_protected_tokens"] for pool in ("full", "swa")
        }
        columns["tombstone_tokens"] = cached["full"] - cached["swa"]
    for depth, pool in enumerate(pool for pool in plan["pools"] if pool["worker"].startswith("draft")):
        usage = full if pool["tokens"] == FULL else swa
        columns[f"draft{depth}_resident_tokens"] = np.round(usage * pool["tokens"])
        columns[f"draft{depth}_live_tokens"] = np.round(np.minimum(usage, 0.6 * swa) * min(pool["tokens"], SWA))
    return pd.DataFrame(columns)


def evicted_by_cause(pool: str, short: Any, prefill: Any, radix: bool) -> dict[str, Any]:
    """Return what the cache gave up where a pool is short: most for prefills, a little after a retraction."""
    causes = {
        "prefill": np.where(short & prefill, 2048, 0) * radix,
        "decode": np.where(short & ~prefill, 64, 0) * radix,
        "retraction": np.where(short & (np.arange(len(short)) % 50 == 0), 1024, 0) * radix,
    }
    named = {f"cache_evicted_{pool}_{why}_tokens": tokens for why, tokens in causes.items()}
    return {**named, f"cache_evicted_{pool}_tokens": sum(causes.values())}


def some_events(seconds: float) -> pd.DataFrame:
    """Return retractions, aborts, refusals and other events of several pools and causes."""
    rng = np.random.default_rng(5)
    kinds = [
        ("retraction", "swa", "no SWA page left for the next decode step", 40),
        ("retraction", "full", "no page left for the next decode step", 22),
        ("retraction", "swa", "reservation of 2 x num_draft_tokens does not fit", 9),
        ("abort", "full", "the last running request can not be retracted", 2),
        ("refusal", "-", "input longer than the context", 14),
        ("refusal", "rows", "no request slot", 6),
        ("window-eviction", "swa", "out of window", 50),
        ("fault", "-", "dflash-no-window-eviction", 1),
    ]
    parts = []
    for event, pool, cause, count in kinds:
        times = np.sort(rng.uniform(0.35 * seconds, 0.7 * seconds, count))
        parts.append(pd.DataFrame({"time_s": times, "event": event, "pool": pool, "cause": cause}))
    frame = pd.concat(parts).sort_values("time_s", ignore_index=True)
    frame["request_id"] = np.arange(len(frame))
    frame["tokens"] = 64
    return frame


def steps(**columns: Any) -> pd.DataFrame:
    """Return a hand-made timeline."""
    return pd.DataFrame(columns)


def draw(name: str, timeline: pd.DataFrame, events: pd.DataFrame | None, plan: dict[str, Any], **more: Any) -> Axes:
    """Call the panel of this name."""
    if name == "oom":
        return plotting.oom(timeline, events, plan, **more)
    ax: Axes = getattr(plotting, name)(timeline, plan, **more)
    return ax


def figure_of(ax: Axes) -> Figure:
    """Return the figure of an Axes."""
    figure = ax.figure
    assert isinstance(figure, Figure)
    return figure


def line(ax: Axes, start: str) -> Line2D:
    """Return the one line whose label starts so."""
    found = [item for item in ax.lines if " ".join(str(item.get_label()).split()).startswith(start)]
    assert len(found) == 1, [item.get_label() for item in ax.lines]
    return found[0]


def ys(ax: Axes, start: str) -> list[float]:
    """Return the heights of a line."""
    return [round(float(y), 9) for y in np.asarray(line(ax, start).get_ydata())]


def texts(ax: Axes) -> str:
    """Return everything written in a panel, as one line."""
    legend = ax.get_legend()
    parts = [*ax.texts, *(legend.get_texts() if legend is not None else [])]
    return " ".join(" ".join(part.get_text() for part in parts).split())


# ------------------------------------------------------------------------------------------------------------ pictures


@picture
@pytest.mark.parametrize("name", PANELS)
def test_picture_short(name: str) -> Figure:
    plan = a_plan(depths=3)
    return figure_of(draw(name, a_timeline(400, 90, plan=plan), some_events(90), plan))


@picture
@pytest.mark.parametrize("name", PANELS)
def test_picture_long(name: str) -> Figure:
    plan = a_plan(depths=4, identity=(0, 2), limit=4096)
    return figure_of(draw(name, a_timeline(30_000, 5400, plan=plan), some_events(5400), plan))


@picture
@pytest.mark.parametrize("name", PANELS)
def test_picture_bare(name: str) -> Figure:
    """No SWA pool, no draft, no cache, no events."""
    plan = {**a_plan(depths=0, swa=False), "settings": {"disable_radix_cache": True}}
    timeline = a_timeline(60, 0.4, plan=plan, radix=False)
    return figure_of(draw(name, timeline, NO_EVENTS, plan))


@picture
def test_picture_empty() -> Figure:
    return figure_of(plotting.utilization(steps(time_s=[], full_token_usage=[]), a_plan()))


@picture
def test_picture_one_row() -> Figure:
    plan = a_plan()
    return figure_of(plotting.utilization(a_timeline(3, 10, plan=plan).iloc[1:2], plan))


@picture
def test_picture_eight_depths() -> Figure:
    plan = a_plan(depths=8)
    timeline = a_timeline(300, 40, plan=plan)
    for depth in range(8):
        timeline[f"draft{depth}_resident_tokens"] *= 1 - 0.09 * depth
    return figure_of(plotting.utilization(timeline, plan, title="Eight draft depths, each with its own curve"))


@picture
def test_picture_long_queue() -> Figure:
    plan = a_plan()
    timeline = a_timeline(300, 40, plan=plan)
    timeline["num_queue_reqs"] *= 700
    return figure_of(plotting.concurrency(timeline, plan))


@picture
def test_picture_dashboard() -> Figure:
    plan = a_plan(depths=4, identity=(0, 2))
    return plotting.dashboard(
        a_timeline(30_000, 5400, plan=plan),
        some_events(5400),
        plan,
        title="mimo-v2-flash-chat",
        notes=["Binding limit: SWA pool for 41 % of the time.", "Engine sglang 0.5.23, seed 7."],
    )


@picture
def test_picture_dashboard_bare() -> Figure:
    plan = a_plan(depths=0, swa=False)
    return plotting.dashboard(a_timeline(60, 0.4, plan=plan, radix=False), NO_EVENTS, plan)


# ----------------------------------------------------------------------------------------------- numbers behind lines


def test_utilization_lines() -> None:
    timeline = steps(
        time_s=[0.0, 1.0, 3.0],
        full_token_usage=[0.0, 0.5, 0.25],
        swa_token_usage=[0.1, 0.9, 1.0],
        draft0_resident_tokens=[0, 50_000, 10_000],
        draft1_resident_tokens=[5_000, 45_000, 50_000],
        draft2_resident_tokens=[5_000, 45_000, 50_000],
    )
    ax = plotting.utilization(timeline, a_plan(depths=3, identity=(0,)))
    assert ys(ax, "full") == [0, 50, 25]
    assert ys(ax, "swa") == [10, 90, 100]
    assert ys(ax, "draft 0 (identity mapping)") == [0, 25, 5]
    assert ys(ax, "draft 1-2 = swa (target's mapping)") == [10, 90, 100]
    assert line(ax, "draft 1-2").is_dashed() and not line(ax, "draft 0").is_dashed()
    assert list(np.asarray(line(ax, "full").get_xdata())) == [0, 1, 3]
    assert line(ax, "full").get_drawstyle() == "steps-post"
    assert ys(ax, "100 %") == [100, 100]
    assert ax.get_ylim()[0] == 0 and ax.get_ylim()[1] > 100


def test_utilization_colors_are_those_of_the_pools() -> None:
    plan = a_plan(depths=4, identity=(0, 2))
    ax = plotting.utilization(a_timeline(50, 5, plan=plan), plan)
    assert line(ax, "full").get_color() == plotting.POOL_COLORS["full"]
    assert line(ax, "swa").get_color() == plotting.POOL_COLORS["swa"]
    assert line(ax, "draft 0, 2 = full (identity mapping)").get_color() == plotting.draft_color(0)
    assert line(ax, "draft 1, 3 = swa").get_color() == plotting.draft_color(1)
    everything = [*plotting.POOL_COLORS.values(), *plotting.DRAFT_COLORS]
    assert len(set(everything)) == len(everything)


def test_two_groups_on_one_pool_are_both_drawn() -> None:
    plan = a_plan(depths=2, identity=(0,))
    timeline = steps(
        time_s=[0.0, 1.0],
        full_token_usage=[0.5, 0.5],
        draft0_resident_tokens=[FULL / 2] * 2,
        draft1_resident_tokens=[SWA / 2] * 2,
    )
    ax = plotting.utilization(timeline, plan)
    assert line(ax, "draft 0 = full (identity mapping)") is not line(ax, "draft 1 = full (target's mapping)")


def test_usage_above_the_pool_stays_in_sight() -> None:
    ax = plotting.utilization(steps(time_s=[0.0, 1.0], full_token_usage=[0.5, 1.3]), a_plan())
    assert ax.get_ylim()[1] > 130


def test_eviction_rate_is_tokens_over_bin() -> None:
    """Twelve steps in 12 s make four bins of 3 s at most; the round width is 5 s, and the last bin ends at 11 s."""
    tokens = np.arange(12) * 10
    timeline = steps(
        time_s=np.arange(12.0),
        swa_token_usage=np.zeros(12),
        window_evicted_swa_tokens=tokens,
        cache_evicted_full_tokens=np.zeros(12),
    )
    ax = plotting.eviction(timeline, a_plan())
    assert "5 s bin" in texts(ax)
    window = line(ax, "swa, window (660)")
    x, y = np.asarray(window.get_xdata(), dtype=float), np.asarray(window.get_ydata(), dtype=float)
    assert list(x) == [0, 5, 11]
    assert list(y[:-1]) == [tokens[:5].sum() / 5, tokens[5:].sum() / 6]
    assert (y[:-1] * np.diff(x)).sum() == tokens.sum()
    assert "full, cache" not in texts(ax)


def test_eviction_conserves_tokens_in_a_long_run() -> None:
    rng = np.random.default_rng(3)
    timeline = steps(time_s=np.sort(rng.uniform(0, 997, 50_000)), cache_evicted_full_tokens=rng.integers(0, 99, 50_000))
    rate = line(plotting.eviction(timeline, a_plan(swa=False)), "full, cache")
    x, y = np.asarray(rate.get_xdata(), dtype=float), np.asarray(rate.get_ydata(), dtype=float)
    assert (y[:-1] * np.diff(x)).sum() == pytest.approx(timeline["cache_evicted_full_tokens"].sum())


def test_eviction_by_cause() -> None:
    timeline = steps(
        time_s=[0.0, 1.0, 2.0],
        cache_evicted_full_tokens=[30, 5, 0],
        cache_evicted_full_prefill_tokens=[30, 0, 0],
        cache_evicted_full_decode_tokens=[0, 5, 0],
        cache_evicted_full_retraction_tokens=[0, 0, 0],
    )
    ax = plotting.eviction(timeline, a_plan(swa=False))
    assert ys(ax, "full, cache: prefill (30)") == [15, 15]
    assert ys(ax, "full, cache: decode (5)") == [2.5, 2.5]
    assert len(ax.lines) == 2
    assert {item.get_color() for item in ax.lines} == {plotting.POOL_COLORS["full"]}
    assert line(ax, "full, cache: prefill").get_linestyle() == line(ax, "full, cache: decode").get_linestyle() == "--"
    assert line(ax, "full, cache: prefill")._dash_pattern != line(ax, "full, cache: decode")._dash_pattern  # type: ignore[attr-defined]
    total = plotting.eviction(timeline[["time_s", "cache_evicted_full_tokens"]], a_plan(swa=False))
    assert ys(total, "full, cache (35)") == [17.5, 17.5]


def test_eviction_adds_up_the_smallest_cause_of_a_pool() -> None:
    causes = {"prefill": 500, "decode": 70, "retraction": 3}
    columns = {
        f"cache_evicted_{pool}_{why}_tokens": [n * k, 0]
        for pool, k in (("full", 2), ("swa", 1))
        for why, n in causes.items()
    }
    ax = plotting.eviction(steps(time_s=[0.0, 1.0], window_evicted_swa_tokens=[9, 0], **columns), a_plan())
    assert [str(item.get_label()).replace("\n ", "") for item in ax.lines] == [
        "swa, window (9)",
        "full, cache: prefill (1,000)",
        "full, cache: decode (140)",
        "full, cache: retraction (6)",
        "swa, cache: prefill (500)",
        "swa, cache: decode + retraction (73)",
    ]


def test_oom_counts_by_event_pool_and_cause() -> None:
    events = pd.DataFrame(
        {
            "time_s": [4.0, 1.0, 2.0, 2.0, 3.0, 5.0],
            "event": ["retraction", "retraction", "retraction", "refusal", "window-eviction", "retraction"],
            "request_id": range(6),
            "pool": ["swa", "swa", "full", "-", "swa", "swa"],
            "tokens": 1,
            "cause": ["no page", "no page", "no page", "too long", "window", "no slot"],
        }
    )
    ax = plotting.oom(steps(time_s=[0.0, 10.0], full_token_usage=[0, 0]), events, a_plan())
    assert ys(ax, "retraction, swa: no page (2)") == [0, 1, 2, 2]
    assert list(np.asarray(line(ax, "retraction, swa: no page").get_xdata())) == [0, 1, 4, 10]
    assert ys(ax, "retraction, full: no page (1)") == [0, 1, 1]
    assert ys(ax, "retraction, swa: no slot (1)") == [0, 1, 1]
    assert ys(ax, "refusal: too long (1)") == [0, 1, 1]
    assert len(ax.lines) == 4
    assert line(ax, "retraction, swa: no page").get_marker() != line(ax, "retraction, swa: no slot").get_marker()


def test_oom_without_events_says_so() -> None:
    timeline = steps(time_s=[0.0, 1.0], num_retracted_reqs=[0, 0])
    for events in (NO_EVENTS, None):
        ax = plotting.oom(timeline, events, a_plan())
        assert "none happened" in texts(ax)
        assert not ax.lines


def test_oom_draws_what_only_the_timeline_counts() -> None:
    timeline = steps(time_s=[0.0, 1.0, 2.0], num_retracted_reqs=[0, 2, 1], num_aborted_reqs=[0, 0, 0])
    ax = plotting.oom(timeline, NO_EVENTS, a_plan())
    assert ys(ax, "retraction: cause not recorded (3)") == [0, 2, 3, 3]


def test_oom_adds_up_rare_causes() -> None:
    events = pd.DataFrame({"time_s": np.arange(66.0), "event": "refusal", "pool": "full"})
    events["cause"] = [f"cause {i}" for i in range(11) for _ in range(i + 1)]
    ax = plotting.oom(steps(time_s=[0.0, 70.0]), events, a_plan())
    assert len(ax.lines) == 8
    assert ys(ax, "others: 4 further events, pools or causes (10)")[-1] == 10
    assert sum(float(np.asarray(item.get_ydata())[-1]) for item in ax.lines) == 66


def test_oom_of_many_events_ends_at_their_number() -> None:
    many = pd.concat([some_events(100)] * 200)
    ax = plotting.oom(steps(time_s=[0.0, 100.0]), many, a_plan())
    assert ys(ax, "retraction, swa: no SWA page")[-1] == 8000
    assert "bins" in texts(ax)


def test_oom_counts_faults_by_their_code() -> None:
    causes = [
        "F1: 40 of its prompt's tokens are computed",
        "F1: 8 of its prompt's tokens are computed",
        "F4: a lone one",
    ]
    events = pd.DataFrame({"time_s": [1.0, 2.0, 3.0], "event": "fault", "pool": "swa", "cause": causes})
    ax = plotting.oom(steps(time_s=[0.0, 4.0]), events, a_plan())
    assert "fault: F1 (2), F4 (1)" in texts(ax)
    assert len(ax.collections) == 1


def test_concurrency_lines_and_limit() -> None:
    timeline = steps(time_s=[0.0, 1.0, 2.0], num_running_reqs=[0, 7, 3], num_queue_reqs=[0, 0, 5])
    ax = plotting.concurrency(timeline, a_plan(limit=16))
    assert ys(ax, "running (peak 7)") == [0, 7, 3]
    assert ys(ax, "queued (peak 5)") == [0, 0, 5]
    assert [16, 16] in [list(np.asarray(item.get_ydata())) for item in ax.lines]
    far = plotting.concurrency(timeline, a_plan(limit=4096))
    assert "max_running_requests = 4,096 (above the axis)" in texts(far)
    assert far.get_ylim()[1] < 20


def test_concurrency_is_logarithmic_only_for_a_long_queue() -> None:
    timeline = steps(time_s=[0.0, 1.0], num_running_reqs=[4, 4], num_queue_reqs=[0, 50])
    assert plotting.concurrency(timeline, a_plan()).get_yscale() == "linear"
    timeline["num_queue_reqs"] *= 100
    ax = plotting.concurrency(timeline, a_plan())
    assert ax.get_yscale() == "symlog" and "log" in ax.get_ylabel()


def test_draft_lines_and_stale_gap() -> None:
    timeline = steps(
        time_s=[0.0, 1.0],
        draft0_resident_tokens=[100, 300],
        draft0_live_tokens=[100, 120],
        draft1_resident_tokens=[100, 200],
        draft1_live_tokens=[100, 120],
    )
    ax = plotting.draft(timeline, a_plan(depths=2))
    assert ys(ax, "draft 0 resident (pool 50k)") == [100, 300]
    assert ys(ax, "draft 1 resident (pool 50k)") == [100, 200]
    live = [list(np.asarray(item.get_ydata())) for item in ax.lines if item.get_gid() == "live"]
    assert live == [[100, 120], [100, 120]]
    assert len(ax.collections) == 2
    assert "stale" in texts(ax) and "live" in texts(ax)


def test_draft_without_draft_says_so() -> None:
    assert "no draft model" in texts(plotting.draft(steps(time_s=[0.0, 1.0]), a_plan(depths=0)))


def test_cache_contents_are_shares_of_their_pools() -> None:
    timeline = steps(
        time_s=[0.0, 1.0, 2.0],
        hit_tokens=[0, 0, 0],
        prefill_tokens=[9, 0, 0],
        full_evictable_tokens=[0, FULL / 4, FULL / 2],
        full_protected_tokens=[0, FULL / 10, 0],
        swa_evictable_tokens=[0, SWA / 10, 0],
        swa_protected_tokens=[0, 0, 0],
        tombstone_tokens=[0, FULL * 0.3, FULL / 2],
    )
    ax = plotting.cache(timeline, a_plan())
    assert ys(ax, "full cached (peak 50 %)") == [0, 35, 50]
    assert ys(ax, "full protected") == [0, 10, 0]
    assert ys(ax, "swa cached (peak 10 %)") == [0, 10, 0]
    assert ys(ax, "tombstones: full cached, swa gone (peak 50 % of full)") == [0, 30, 50]
    assert "swa protected" not in texts(ax)
    assert "shaded: evictable" in texts(ax)


def test_hit_rate_is_a_ratio_of_sums_with_gaps() -> None:
    """Twelve prefill steps make three bins: up to 5, 10 and 17 s. A mean of rates would say 20 % in the first."""
    timeline = steps(
        time_s=np.arange(18.0),
        hit_tokens=[90, 100, 0, 0, 0, *[0] * 5, 40, *[0] * 7],
        rehit_tokens=[*[0] * 10, 10, *[0] * 7],
        prefill_tokens=[10, 900, 1, 1, 1, *[0] * 5, *[50] * 7, 0],
        full_evictable_tokens=[100] * 18,
    )
    ax = plotting.cache(timeline, a_plan(swa=False))
    rate = line(ax, "hit rate (240 tokens found, 10 of them after retractions)")
    assert list(np.asarray(rate.get_xdata())) == [0, 5, 10, 17]
    heights = np.asarray(rate.get_ydata(), dtype=float)
    assert heights[0] == pytest.approx(100 * 190 / 1103)
    assert np.isnan(heights[1])
    assert heights[2] == heights[3] == pytest.approx(100 * 50 / (50 + 7 * 50))
    assert "5 s bin" in texts(ax)


def test_hit_rate_of_a_long_run_is_bounded_and_one_line() -> None:
    plan = a_plan()
    ax = plotting.cache(a_timeline(20_000, 700, plan=plan), plan)
    rate = np.asarray(line(ax, "hit rate").get_ydata(), dtype=float)
    assert np.isnan(rate).any()
    assert np.nanmin(rate) > 0 and np.nanmax(rate) <= 100
    assert len(rate) <= 121


def test_cache_that_is_off_says_so() -> None:
    timeline = steps(time_s=[0.0, 1.0], cache_hit_rate=[0.0, np.nan], full_evictable_tokens=[0, 0])
    for settings, text in (
        ({"settings": {"disable_radix_cache": True}}, "the prefix cache is off (memory.disable_radix_cache)"),
        ({"settings": {"disable_radix_cache": False}}, "the prefix cache is on, but held nothing"),
        ({}, "the prefix cache is off, or was never used"),
    ):
        ax = plotting.cache(timeline, {**a_plan(), **settings})
        assert text in texts(ax) and not ax.lines


# ------------------------------------------------------------------------------------------------------ awkward frames


@pytest.mark.parametrize("name", PANELS)
def test_empty_timeline(name: str) -> None:
    plan = a_plan()
    empty = a_timeline(10, 1, plan=plan).head(0)
    ax = draw(name, empty, NO_EVENTS, plan)
    assert "no steps recorded" in texts(ax)
    figure_of(ax).draw_without_rendering()


@pytest.mark.parametrize("name", PANELS)
def test_one_row(name: str) -> None:
    plan = a_plan()
    ax = draw(name, a_timeline(11, 1, plan=plan).iloc[5:6], NO_EVENTS, plan)
    figure_of(ax).draw_without_rendering()
    left, right = ax.get_xlim()
    assert left < 0.5 < right


@pytest.mark.parametrize("name", PANELS)
@pytest.mark.parametrize("rows", [3, 5000])
def test_constant_zero(name: str, rows: int) -> None:
    plan = a_plan()
    timeline = a_timeline(rows, 10, plan=plan)
    timeline.loc[:, timeline.columns.difference(["time_s", "kind"])] = 0
    ax = draw(name, timeline, NO_EVENTS, plan)
    figure_of(ax).draw_without_rendering()
    low, high = ax.get_ylim()
    assert low < high and np.isfinite([low, high]).all()


@pytest.mark.parametrize("name", PANELS)
def test_all_steps_at_one_instant(name: str) -> None:
    plan = a_plan()
    timeline = a_timeline(3000, 10, plan=plan)
    timeline["time_s"] = 4.0
    figure_of(draw(name, timeline, NO_EVENTS, plan)).draw_without_rendering()


@pytest.mark.parametrize("name", PANELS)
def test_no_swa_pool(name: str) -> None:
    plan = a_plan(depths=2, swa=False)
    ax = draw(name, a_timeline(50, 5, plan=plan), NO_EVENTS, plan)
    assert "swa" not in texts(ax)


def test_events_without_a_step() -> None:
    events = some_events(10)
    ax = plotting.oom(steps(time_s=[]), events, a_plan())
    assert ys(ax, "abort, full")[-1] == 2


@pytest.mark.parametrize("events", [NO_EVENTS, None, some_events(10)])
def test_dashboard_of_an_empty_timeline(events: pd.DataFrame | None) -> None:
    figure = plotting.dashboard(steps(time_s=[], full_token_usage=[]), events, a_plan())
    figure.draw_without_rendering()
    assert [("no steps recorded" in texts(ax)) for ax in figure.axes].count(True) >= 3


def test_time_that_runs_backwards_is_refused() -> None:
    with pytest.raises(ValueError, match="time_s"):
        plotting.utilization(steps(time_s=[1.0, 0.0], full_token_usage=[0, 0]), a_plan())


# -------------------------------------------------------------------------------------------------------------- binning


def test_long_timeline_keeps_a_single_spike() -> None:
    rows = 100_000
    usage = np.full(rows, 0.2)
    usage[54_321] = 0.95
    usage[77_777] = 0.01
    ax = plotting.utilization(steps(time_s=np.arange(rows) * 0.01, full_token_usage=usage), a_plan())
    corners = np.asarray(ax.collections[0].get_paths()[0].vertices)
    assert corners[:, 1].max() == pytest.approx(95)
    assert corners[:, 1].min() == pytest.approx(1)
    assert len(np.asarray(line(ax, "full").get_xdata())) < 1000
    assert "100,000 steps in 5 s bins" in texts(ax)


def test_bins_weigh_by_time_not_by_rows() -> None:
    """A thousand quick steps at 1 and one long step at 0 in each bin: the mean is the share of time, not of rows."""
    cycle = np.concatenate([np.arange(1000) * 0.0001, [0.1]])
    timeline = steps(
        time_s=(np.arange(20)[:, None] + cycle).ravel(), full_token_usage=np.tile([1.0] * 1000 + [0.0], 20)
    )
    mean = np.asarray(line(plotting.utilization(timeline, a_plan()), "full").get_ydata(), dtype=float)
    held = np.diff(np.asarray(line(plotting.utilization(timeline, a_plan()), "full").get_xdata(), dtype=float))
    assert (mean[:-1] * held).sum() / held.sum() == pytest.approx(
        100 * 20 * 0.1 / timeline["time_s"].iloc[-1], rel=1e-6
    )


def test_bins_against_a_slow_reference() -> None:
    rng = np.random.default_rng(11)
    t = np.round(np.sort(rng.uniform(0, 50, 3000)) ** 1.2, 2)  # gaps, and many steps at one instant
    v = rng.uniform(0, 1, 3000)
    v[rng.integers(0, 3000, 200)] = np.nan
    _, edges = time_bins(t[0], t[-1], 60)
    mean, low, high = bin_stats(t, v, edges)
    for i, (left, right) in enumerate(pairwise(edges)):
        ends = np.append(t[1:], t[-1])
        within = np.clip(np.minimum(ends, right) - np.maximum(t, left), 0, None)
        inside = (within > 0) | ((t >= left) & ((t < right) | (right == edges[-1])))
        known = inside & np.isfinite(v)
        assert low[i] == v[known].min() and high[i] == v[known].max()
        assert mean[i] == pytest.approx((within * np.nan_to_num(v)).sum() / within[np.isfinite(v)].sum())


@pytest.mark.parametrize("span", [1e-4, 0.37, 1.0, 59, 61, 3599, 7201, 86_400, 2_000_000])
@pytest.mark.parametrize("at_most", [1, 7, 120, 400])
def test_bins_cover_the_span(span: float, at_most: int) -> None:
    width, edges = time_bins(3.0, 3.0 + span, at_most)
    assert edges[0] == 3.0 and edges[-1] == 3.0 + span
    assert (np.diff(edges) > 0).all() and len(edges) - 1 <= at_most
    assert np.diff(edges)[:-1] == pytest.approx(width)


@pytest.mark.parametrize(
    ("seconds", "label"), [(0.2, "time (ms)"), (30, "time (s)"), (1200, "time (min)"), (90_000, "time (h)")]
)
def test_time_unit(seconds: float, label: str) -> None:
    ax = plotting.utilization(steps(time_s=[0.0, seconds], full_token_usage=[0, 1]), a_plan())
    assert ax.get_xlabel() == label
    shown = [tick for tick in ax.get_xticks() if 0 <= tick <= seconds]
    assert 3 <= len(shown) <= 10


# ---------------------------------------------------------------------------------------------------- figures and files


def test_given_axes_are_used_and_span_both_runs() -> None:
    ax = Figure().add_subplot()
    assert plotting.utilization(steps(time_s=[0.0, 8.0], full_token_usage=[0, 1]), a_plan(), ax=ax, title="A") is ax
    plotting.utilization(steps(time_s=[0.0, 4.0], full_token_usage=[0, 1]), a_plan(), ax=ax, title="B")
    assert ax.get_xlim() == (0, 8)
    assert ax.get_title(loc="left") == "B"
    assert len([text for text in ax.texts if "steps" in text.get_text()]) == 1


def test_no_pyplot_and_no_rcparams() -> None:
    before = dict(matplotlib.rcParams)
    plan = a_plan()
    figure = plotting.dashboard(a_timeline(50, 5, plan=plan), some_events(5), plan)
    assert isinstance(figure.canvas, FigureCanvasAgg)
    assert figure.canvas.manager is None
    assert dict(matplotlib.rcParams) == before


def test_style_of_the_caller_does_not_matter(tmp_path: Path) -> None:
    plan = a_plan()
    timeline = a_timeline(50, 5, plan=plan)
    one = plotting.save(figure_of(plotting.utilization(timeline, plan)), tmp_path / "one.png")
    with matplotlib.rc_context({"font.size": 20, "lines.linewidth": 9, "axes.facecolor": "black", "figure.dpi": 50}):
        two = plotting.save(figure_of(plotting.utilization(timeline, plan)), tmp_path / "two.png")
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_save_is_deterministic(tmp_path: Path, suffix: str) -> None:
    plan = a_plan()
    timeline, events = a_timeline(50, 5, plan=plan), some_events(5)
    figure = plotting.dashboard(timeline, events, plan, "Run", "a note")
    again = plotting.dashboard(timeline, events, plan, "Run", "a note")
    files = [plotting.save(item, tmp_path / f"{i}.{suffix}") for i, item in enumerate((figure, figure, again))]
    first, second, third = (file.read_bytes() for file in files)
    assert first == second == third
    assert b"Software" not in first and b"matplotlib.org" not in first


def test_nothing_is_written_over_the_edge_of_a_figure() -> None:
    plan = a_plan(depths=8, limit=4096)
    timeline, events = a_timeline(300, 40, plan=plan), some_events(40)
    figures = [figure_of(draw(name, timeline, events, plan)) for name in PANELS]
    figures.append(plotting.dashboard(timeline, events, plan, "Run", "a note"))
    for figure in figures:
        figure.draw_without_rendering()
        page = figure.bbox
        for ax in figure.axes:
            legend = ax.get_legend()
            box = ax.get_tightbbox()
            assert box is not None
            assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= page.x1 + 1 and box.y1 <= page.y1 + 1
            if legend is not None:
                assert legend.get_window_extent().x0 >= ax.get_window_extent().x1


def test_dashboard_panels_do_not_overlap() -> None:
    plan = a_plan(depths=8)
    timeline, events = a_timeline(300, 40, plan=plan), some_events(40)
    figure = plotting.dashboard(timeline, events, plan, "Run", ["a note", "and another"])
    figure.draw_without_rendering()
    boxes = [box for ax in figure.axes if (box := ax.get_tightbbox()) is not None]
    assert len(boxes) == 6
    for upper, lower in pairwise(boxes):
        assert upper.y0 >= lower.y1 - 1
