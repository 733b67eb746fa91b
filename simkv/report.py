"""Plans, routes, runs and traces as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isnan
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from simkv.arch import CatalogueRow
from simkv.engines.base import EVICTION_CAUSES, Plan

__all__ = ["plan_report", "replay_report", "routes_report", "run_report", "size", "table", "trace_report"]

_GIB = 1 << 30


def size(count: float | None) -> str:
    """Bytes in the unit a person would use, with GiB for GPU memory."""
    if count is None:
        return "-"
    for unit, scale in (("TiB", 1 << 40), ("GiB", _GIB), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(count) >= scale:
            return f"{count / scale:,.2f} {unit}"
    return f"{count:,.0f} B"


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> Table:
    """A plain table; the first ``left`` columns are text, the others right-aligned figures."""
    out = Table(
        title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False, min_width=40
    )
    for number, head in enumerate(heads):
        out.add_column(head, justify="left" if number < left else "right", overflow="fold")
    for row in rows:
        out.add_row(*row)
    return out


def _lines(title: str, lines: Iterable[str]) -> RenderableType:
    text = Text()
    for number, line in enumerate(lines):
        text.append(("\n" if number else "") + f"- {line}")
    return Group(Text(title, style="bold"), text, Text("")) if text else Text("")


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


# ------------------------------------------------------------------------------------------------- replay
def replay_report(found: Any) -> RenderableType:
    """A replay in which everything matched (:class:`simkv.replayer.Replay`)."""
    rows: list[tuple[str, ...]] = [
        (
            pool.worker,
            pool.pool,
            _number(pool.layers),
            _number(pool.rows),
            _number(pool.planned_bytes),
            _number(pool.expected_bytes),
            _number(pool.allocated_bytes),
        )
        for pool in found.pools
    ]
    total = (found.planned_bytes, sum(pool.expected_bytes for pool in found.pools), found.allocated_bytes)
    rows.append(("all", "", "", "", *(_number(count) for count in total)))
    heads = ("worker", "pool", "layers", "rows", "planned B", "at this scale", "allocated B")
    text = Text()
    text.append(f"{found.name} on {found.device} ({found.device_name}), torch {found.torch}\n", style="bold")
    text.append(
        f"  layers {found.layers}, scale {found.scale}, reads compared: {found.check}; slots by {found.engine}\n"
    )
    done = Text()
    done.append("everything matches\n", style="bold green")
    done.append(
        f"  {found.requests:,} requests, {found.steps:,} steps, {found.calls:,} calls in {found.seconds:,.1f} s\n"
        f"  {found.slots_allocated:,} slots handed out and {found.slots_freed:,} given back, each id and every free count "
        f"as in the log\n"
        f"  {found.tokens_written:,} tokens computed ({found.tokens_per_s:,.0f} a second): {found.tags_written:,} rows of K "
        f"and V written, {found.tags_read:,} read and compared\n"
    )
    if found.measured_bytes is not None:
        done.append(f"  the device says the pools take {found.measured_bytes:,} B\n")
    whose = "device" if found.device == "cuda" else "process"
    peak = "" if found.peak_bytes is None else f"; peak of the {whose} {size(found.peak_bytes)}"
    done.append(f"  row tables {size(found.table_bytes)}{peak}\n")
    parts: list[RenderableType] = [text, table("pools on the device", heads, rows, left=2), done]
    return Group(*parts, _lines("notes", found.notes)) if found.notes else Group(*parts)


# ------------------------------------------------------------------------------------------------- plan
def plan_report(plan: Mapping[str, Any]) -> RenderableType:
    """The plan of a server (``Plan.to_dict()``)."""
    parts: list[RenderableType] = [_plan_head(plan)]
    charges = [c for c in plan["charges"] if c["bytes"] or c["name"] == "kv_bytes"]
    if len(charges) > 1:
        rows = [(c["name"], size(c["bytes"]), f"{c['bytes']:,}", c["arithmetic"]) for c in charges]
        budget = table("budget of one rank", ("", "", "bytes", ""), rows)
        budget.columns[3].justify = "left"
        parts.append(budget)
    if plan["infeasible"] is not None:
        bad = plan["infeasible"]
        parts.append(Text(f"the engine would not start ({bad['engine_error']})", style="bold red"))
        parts.append(Text(bad["message"]))
        parts.extend(Text(f"  it would fit with {fix}") for fix in bad["fixes"])
        parts.append(Text(""))
    if plan["pools"]:
        parts.append(_pool_table(plan))
        parts.append(_overcommit(plan))
    parts.append(_disagreements(plan))
    parts.append(_lines("notes", plan["notes"]))
    return Group(*parts)


def _plan_head(plan: Mapping[str, Any]) -> Text:
    layers, draft = plan["layers"], plan["draft_layers"]
    text = Text()
    text.append(f"{plan['model']} on {plan['engine']}\n", style="bold")
    text.append(f"  {plan['configurator']}, KV budget {size(plan['kv_bytes'])} ({plan['kv_bytes']:,} B) a rank\n")
    text.append(f"  {layers['full']} full layers of {plan['full_bytes_per_token_layer']:,} B a token")
    if layers["swa"]:
        text.append(f", {layers['swa']} sliding of {plan['swa_bytes_per_token_layer']:,} B, window {plan['window']}")
    text.append(f"\n  charged draft layers: {draft['full']} full, {draft['swa']} sliding, {draft['swa_full']} rings")
    text.append(f"\n  {_price(plan)}\n")
    if plan["infeasible"] is None:
        text.append(f"  max_total_num_tokens {_number(plan['max_total_num_tokens'])}")
        if plan["full_max_total_num_tokens"] is not None:
            text.append(f", full {_number(plan['full_max_total_num_tokens'])}")
            text.append(f", SWA {_number(plan['swa_max_total_num_tokens'])}")
        text.append(f"; page {plan['page_size']}; max_running_requests {_number(plan['max_running_requests'])}\n")
    return text


def _price(plan: Mapping[str, Any]) -> str:
    """What a token costs; with the SWA pool sized by requests, the two pools have prices of their own."""
    if plan["configurator"] != "SWARequestCapPoolConfigurator":
        return f"{plan['bytes_per_token']:,.10g} B for each token of max_total_num_tokens"
    layers, draft = plan["layers"], plan["draft_layers"]
    full, swa = plan["full_bytes_per_token_layer"], plan["swa_bytes_per_token_layer"]
    first = (layers["full"] + draft["full"]) * full + draft["swa_full"] * swa
    return f"{first:,} B for each token of the full pool, {(layers['swa'] + draft['swa']) * swa:,} B for each of the SWA pool"


def _pool_table(plan: Mapping[str, Any]) -> Table:
    rows = [
        (
            p["worker"],
            p["pool"],
            _number(p["layers"]),
            _number(p["tokens"]),
            _number(p["bytes_per_token"]),
            size(p["bytes"]),
            size(p["budgeted_bytes"]),
            p["mapping"],
        )
        for p in plan["pools"]
    ]
    heads = ("worker", "pool", "layers", "tokens", "B/token", "allocated", "budgeted", "mapping")
    return table("pools of one rank", heads, rows, left=2)


def _overcommit(plan: Mapping[str, Any]) -> Text:
    over, padding, slack = plan["overcommit_bytes"], plan["padding_bytes"], plan["slack_bytes"]
    verb = "over-committed" if over > 0 else "stranded"
    text = Text(f"allocated beyond the budget: {size(over)} ({over:,} B), of it padding pages {size(padding)}")
    if slack is not None:
        fits = "fits" if over <= slack else "does NOT fit"
        text.append(f"; {verb} memory {fits} the slack of {size(slack)} outside the static fraction")
    text.append("\n")
    return text


def _disagreements(plan: Mapping[str, Any]) -> RenderableType:
    found = plan["disagreements"]
    if not found:
        return Text("")
    rows = [(d["code"], d["title"], size(d["bytes"]) if d["bytes"] else "-", d["detail"]) for d in found]
    out = table("budget and allocation disagree", ("", "kind", "bytes", "here"), rows, left=2)
    out.columns[3].justify = "left"
    return out


def routes_report(plans: Sequence[Plan], chosen: str) -> RenderableType:
    """Routing of every draft depth under several rules, side by side."""
    rows: list[tuple[str, ...]] = []
    for plan in plans:
        name = f"{plan.routing} *" if plan.routing == chosen else plan.routing
        if plan.infeasible is not None:
            rows.append((name, "-", "-", "-", "-", "-", "-", "-", "would not start"))
            continue
        for pool in plan.pools:
            if pool.worker == "target":
                continue
            gap = pool.bytes - pool.budgeted_bytes
            kind: str = pool.pool if pool.layers else "none"
            if pool.mapping == "identity":
                kind = "swa ring"
            rows.append(
                (
                    name,
                    pool.worker,
                    kind,
                    _number(pool.layers),
                    _number(pool.tokens),
                    pool.mapping,
                    size(pool.bytes),
                    size(pool.budgeted_bytes),
                    size(gap),
                )
            )
            name = ""
    heads = ("rule", "depth", "kind", "layers", "tokens", "mapping", "allocated", "budgeted", "difference")
    parts: list[RenderableType] = [Text(f"{plans[0].model} on {plans[0].engine}\n", style="bold")]
    parts.append(table("draft pools by routing rule (* the scenario's)", heads, rows, left=3))
    totals: list[tuple[str, ...]] = []
    for plan in plans:
        ok = plan.infeasible is None
        fits = {True: "fits the slack", False: "does not fit the slack", None: "slack not known (no GPU stated)"}
        totals.append(
            (
                plan.routing,
                _number(plan.max_total_num_tokens),
                _number(plan.swa_max_total_num_tokens),
                size(plan.overcommit_bytes) if ok else "-",
                fits[plan.fits_slack] if ok else "would not start",
                ", ".join(dict.fromkeys(d.code for d in plan.disagreements)) or "none",
            )
        )
    kinds = ("rule", "max_total", "SWA tokens", "beyond budget", "", "disagreements")
    parts.append(table("what each rule makes of the budget", kinds, totals))
    for plan in plans:
        if plan.routing == chosen:
            parts.append(_disagreements(plan.to_dict()))
    return Group(*parts)


# ------------------------------------------------------------------------------------------------- run
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
        rows = [(c.key, c.condition, _value(c.value), "holds" if c.holds else "FAILS") for c in run.checks]
        parts.append(table("checks", ("figure", "wanted", "is", ""), rows, left=2))
    parts.append(_lines("notes of the run", run.notes))
    if paths:
        parts.append(_lines("written", paths))
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
        f"\n  hit rate {_percent(s['cache_hit_rate'])}: {s['tokens.cached']:,} of {s['tokens.admitted']:,} prompt tokens "
        "were found",
        style="not bold",
    )
    if s["requests.retractions"]:
        text.append(f"; {s['tokens.rehit']:,} more after retractions", style="not bold")
    unbounded = run.workload["reusable_token_share"]
    if unbounded is not None:
        text.append(f"; a cache without limits would find {_percent(unbounded)}", style="not bold")
    for pool, label, capacity in _cache_pools(run.plan):
        peak, evicted = s[f"{pool}_cached_tokens.peak"], s[f"cache_evicted_{pool}_tokens"]
        causes = {why: s[f"cache_evicted_{pool}_{why}_tokens"] for why in EVICTION_CAUSES}
        told = ", ".join(f"{why} {tokens:,}" for why, tokens in causes.items() if tokens)
        share = _percent(peak / capacity if capacity else None)
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
        return [("full", _POOL_LABELS["full"], plan["max_total_num_tokens"] or 0)]
    sizes = ((pool, plan[f"{pool}_max_total_num_tokens"] or 0) for pool in _POOL_LABELS)
    return [(pool, _POOL_LABELS[pool], tokens) for pool, tokens in sizes if tokens]


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
    rows = [(label, *(_seconds(s[f"{name}.{p}"]) for p in ("p50", "p90", "p99"))) for name, label in names]
    return table("latency of completed requests", ("", "p50", "p90", "p99"), rows)


_POOL_LABELS = {"full": "full pool", "swa": "SWA pool"}


def _usage_table(run: Any) -> Table:
    s = run.summary
    rows = []
    for pool, label in _POOL_LABELS.items():
        name = f"{pool}_token_usage"
        if f"{name}.p50" in s:
            rows.append((label, *(_percent(s[f"{name}.{k}"]) for k in ("mean", "p50", "p99", "peak", "time_full"))))
    return table("pool usage over time", ("", "mean", "p50", "p99", "peak", "time >= 99 % full"), rows)


_LIMIT_NAMES = {
    "full": "the full pool",
    "swa": "the SWA pool",
    "rows": "request slots (max_running_requests)",
    "chunk": "the chunk budget of a prefill pass",
    "arrival": "arrivals (nothing waits)",
}


def _limit_text(run: Any) -> Text:
    s = run.summary
    text = Text("binding limit: ", style="bold")
    text.append(_LIMIT_NAMES[s["limit.binding"]])
    held = {name: s[f"limit.{name}"] for name in _LIMIT_NAMES if name != "arrival"}
    worst = max(held, key=lambda name: held[name])
    if s["limit.binding"] == "arrival" and held[worst]:
        text.append(f"; where requests wait, mostly for {_LIMIT_NAMES[worst]}", style="not bold")
    if s["limit.binding"] == "arrival":
        short = run.events[run.events["event"].isin(["retraction", "abort"])]["pool"].value_counts()
        for pool, count in short.items():
            if count:
                text.append(f"; {count:,} times a decode step ran short of {_LIMIT_NAMES[pool]}", style="not bold")
    shares = ", ".join(f"{_LIMIT_NAMES[name]} {_percent(s[f'limit.{name}'])}" for name in _LIMIT_NAMES)
    text.append(f"\n  shares of time: {shares}\n", style="not bold")
    return text


def _percent(value: float | None) -> str:
    if value is None or isnan(value):
        return "-"
    return f"{value:.2%}" if value < 0.9995 or value == 1 else f"{value:.4%}"


def _seconds(value: float | None) -> str:
    if value is None or isnan(value):
        return "-"
    return f"{value * 1e3:,.2f} ms" if value < 1 else f"{value:,.2f} s"


def _value(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,.6g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


# ------------------------------------------------------------------------------------------------- trace, models
def trace_report(facts: Mapping[str, Any]) -> RenderableType:
    """Figures of a trace, one a line."""
    rows = [(key, _value(value)) for key, value in facts.items() if not isinstance(value, (list, tuple))]
    notes = [str(line) for value in facts.values() if isinstance(value, (list, tuple)) for line in value]
    return Group(table("trace", ("figure", "value"), rows), _lines("notes", notes))


def models_report(rows: Sequence[CatalogueRow]) -> RenderableType:
    """The catalogue of built-in models."""
    body = [
        (
            row.name,
            ", ".join(f"{n} {kind}" for kind, n in row.layers.items()),
            _number(row.window),
            ", ".join(f"{n:,}" for n in row.bytes_per_token.values()),
            str(row.mtp) if row.mtp else "-",
            "; ".join(row.unsupported) or "-",
        )
        for row in rows
    ]
    out = table("built-in models", ("name", "layers", "window", "B/token/layer", "MTP", "not accounted for"), body)
    out.columns[5].justify = "left"
    return out


def console(*, stderr: bool = False) -> Console:
    """A console that is wide enough for tables in a pipe, and plain there."""
    made = Console(stderr=stderr, highlight=False, soft_wrap=False)
    if not made.is_terminal:
        made = Console(stderr=stderr, highlight=False, width=120, no_color=True)
    return made
