"""A run as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simkv.engines.base import EVICTION_CAUSES
from simkv.report.plan import plan_report
from simkv.report.text import bullets, percent, seconds, table, value_text
from simkv.wording import LIMITS, POOLS

__all__ = ["run_report"]


def run_report(run: Any, paths: Sequence[str] = ()) -> RenderableType:
    """Everything a person wants to know of a run; always complete, also when nothing was served."""
    s = run.summary
    parts: list[RenderableType] = [plan_report(run.plan), _workload_text(run), _requests_text(run), _cache_text(run)]
    if run.fault is not None:
        parts.append(Text(f"the engine breaks: {run.fault['fault']}", style="bold red"))
        parts.append(Text(run.fault["message"] + "\n"))
    if run.partial:
        parts.append(Text("interrupted: what was simulated so far\n", style="bold yellow"))
    parts.append(_latency_table(s))
    parts.append(_usage_table(run))
    parts.append(_limit_text(run))
    if run.checks:
        rows = [(c.key, c.condition, value_text(c.value), "holds" if c.holds else "FAILS") for c in run.checks]
        parts.append(table("checks", ("figure", "wanted", "is", ""), rows, left=2))
    parts.append(bullets("notes of the run", run.notes))
    if paths:
        parts.append(bullets("written", paths))
    return Group(*parts)


def _workload_text(run: Any) -> Text:
    w = run.workload
    text = Text("workload", style="bold")
    text.append(
        f"\n  {w['requests']:,} requests from {w['source'] or 'memory'} ({w['format'] or 'given'}", style="not bold"
    )
    times = f", times in {w['time_unit']}" if w["time_unit"] and w["source"] != "generated" else ""
    text.append(f"{times})", style="not bold")
    if w["span_s"]:
        text.append(f", over {w['span_s']:,.1f} s, {w['mean_rate']:.3g} a second", style="not bold")
    extras = [
        f"{w[key]:,} {label}"
        for key, label in (("zero_output", "with no output"), ("out_of_order", "out of order"))
        if w[key]
    ]
    text.append(f"; {', '.join(extras)}\n" if extras else "\n", style="not bold")
    return text


def _requests_text(run: Any) -> Text:
    s = run.summary
    text = Text("requests", style="bold")
    text.append(
        f"\n  injected {s['requests.injected']:,} = completed {s['requests.completed']:,} + refused "
        f"{s['requests.refused']:,} + aborted {s['requests.aborted']:,} + unfinished {s['requests.unfinished']:,} + "
        f"never arrived {s['requests.never_arrived']:,}\n",
        style="not bold",
    )
    text.append(
        f"  {s['requests.retracted']:,} of them were retracted, {s['requests.retractions']:,} times", style="not bold"
    )
    for (event, pool, cause), (count, when, name) in _causes(run).items():
        first = f"{'first ' if count > 1 else ''}{'' if name == '-' else f'{name} '}at {when:,.1f} s"
        own = _own_cause(run, event, name)
        where = f", {pool} pool" if pool != "-" else ""
        text.append(f"\n  {count:,} x {event}{where}: {cause} ({first})", style="not bold")
        if own not in ("", cause):
            text.append(f"\n    {name}: {own}", style="not bold")
    recomputed = s["tokens.recomputed"]
    if recomputed:
        text.append(f"\n  {recomputed:,} tokens were computed again after a retraction", style="not bold")
    rest = s["tokens.generated"] - s["tokens.output"]
    others = f" (and {rest:,} of others)" if rest else ""
    text.append(
        f"\n  {s['tokens.output']:,} output tokens of completed requests{others} in {s['simulated_s']:,.1f} s: "
        f"{s['output_tokens_per_s']:,.1f} tokens/s, {s['requests_per_s']:.3g} requests/s; {s['steps.prefill']:,} prefill "
        f"and {s['steps.decode']:,} decode steps",
        style="not bold",
    )
    accept = s["spec_accept_length"]
    if accept is not None and not isnan(accept):
        text.append(f"\n  accept length {accept:.3f} (bonus token included)", style="not bold")
    text.append("\n")
    return text


def _cache_text(run: Any) -> Text:
    """What the prefix cache found, held and gave up."""
    s, settings = run.summary, run.plan["settings"]
    if settings["disable_radix_cache"]:
        return Text("the prefix cache is off\n")
    text = Text("prefix cache", style="bold")
    text.append(
        f"\n  hit rate {percent(s['cache_hit_rate'])}: {s['tokens.cached']:,} of {s['tokens.admitted']:,} prompt tokens "
        "were found",
        style="not bold",
    )
    if s["requests.retractions"]:
        text.append(f"; {s['tokens.rehit']:,} more after retractions", style="not bold")
    unbounded = run.workload["reusable_token_share"]
    if unbounded is not None:
        text.append(f"; a cache without limits would find {percent(unbounded)}", style="not bold")
    for pool, label, capacity in _cache_pools(run.plan):
        peak, evicted = s[f"{pool}_cached_tokens.peak"], s[f"cache_evicted_{pool}_tokens"]
        causes = {why: s[f"cache_evicted_{pool}_{why}_tokens"] for why in EVICTION_CAUSES}
        told = ", ".join(f"{why} {tokens:,}" for why, tokens in causes.items() if tokens)
        share = percent(peak / capacity if capacity else None)
        text.append(
            f"\n  {label}: at most {peak:,} tokens cached ({share} of it), {evicted:,} evicted"
            + (f" ({told})" if told else ""),
            style="not bold",
        )
    if "swa_cached_tokens.peak" in s:
        dead = s["tombstone_tokens.peak"]
        text.append(f"\n  tombstones: at most {dead:,} tokens (full KV cached, SWA KV gone)", style="not bold")
    text.append("\n")
    return text


def _cache_pools(plan: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """Name, label and tokens of the pools that the prefix cache can hold."""
    if plan["full_max_total_num_tokens"] is None:
        return [("full", POOLS["full"], plan["max_total_num_tokens"] or 0)]
    sizes = ((pool, plan[f"{pool}_max_total_num_tokens"] or 0) for pool in POOLS)
    return [(pool, POOLS[pool], tokens) for pool, tokens in sizes if tokens]


def _own_cause(run: Any, event: str, name: str) -> str:
    """The cause of one request, with its figures."""
    if event not in ("refusal", "abort"):
        return ""
    found = run.requests.loc[run.requests["request_id"] == name, "cause"]
    return str(found.iloc[0]) if len(found) else ""


_TOLD = ("refusal", "abort", "retraction", "repair", "fault")


def _causes(run: Any) -> dict[tuple[str, str, str], tuple[int, float, str]]:
    """Count, first time and first request of every (event, pool, cause); the fault that ends the run is told apart."""
    events = run.events
    picked = events[events["event"].isin(_TOLD)]
    last = None if run.fault is None else f"{run.fault['fault']}: {run.fault['message']}"
    found: dict[tuple[str, str, str], tuple[int, float, str]] = {}
    causes: dict[tuple[str, str, str], str] = {}
    columns = (picked[name] for name in ("event", "pool", "cause", "time_s", "request_id"))
    for event, pool, cause, when, name in zip(*columns, strict=True):
        if event == "fault" and cause == last:
            continue
        # A fault's cause has the figures of one request in it; its code says which faults are one.
        kind = cause.partition(":")[0] if event == "fault" else cause
        cause = causes.setdefault((event, pool, kind), cause)
        count, first, who = found.get((event, pool, cause), (0, when, name))
        found[event, pool, cause] = (count + 1, first, who)
    return found


def _latency_table(s: Mapping[str, Any]) -> Table:
    names = (("ttft_s", "time to first token"), ("tpot_s", "time per output token"), ("e2e_latency_s", "end to end"))
    rows = [(label, *(seconds(s[f"{name}.{p}"]) for p in ("p50", "p90", "p99"))) for name, label in names]
    return table("latency of completed requests", ("", "p50", "p90", "p99"), rows)


def _usage_table(run: Any) -> Table:
    s = run.summary
    rows = []
    for pool, label in POOLS.items():
        name = f"{pool}_token_usage"
        if f"{name}.p50" in s:
            rows.append((label, *(percent(s[f"{name}.{k}"]) for k in ("mean", "p50", "p99", "peak", "time_full"))))
    return table("pool usage over time", ("", "mean", "p50", "p99", "peak", "time >= 99 % full"), rows)


def _limit_text(run: Any) -> Text:
    s = run.summary
    text = Text("binding limit: ", style="bold")
    text.append(LIMITS[s["limit.binding"]])
    held = {name: s[f"limit.{name}"] for name in LIMITS if name != "arrival"}
    worst = max(held, key=lambda name: held[name])
    if s["limit.binding"] == "arrival" and held[worst]:
        text.append(f"; where requests wait, mostly for {LIMITS[worst]}", style="not bold")
    if s["limit.binding"] == "arrival":
        short = run.events[run.events["event"].isin(["retraction", "abort"])]["pool"].value_counts()
        for pool, count in short.items():
            if count:
                text.append(f"; {count:,} times a decode step ran short of {LIMITS[pool]}", style="not bold")
    shares = ", ".join(f"{LIMITS[name]} {percent(s[f'limit.{name}'])}" for name in LIMITS)
    text.append(f"\n  shares of time: {shares}\n", style="not bold")
    return text
