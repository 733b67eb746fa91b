"""Plans, routes and the catalogue as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simkv.arch import CatalogueRow
from simkv.engines.base import Plan
from simkv.report.text import bullets, count_text, size, table

__all__ = ["models_report", "plan_report", "routes_report"]


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
    parts.append(bullets("notes", plan["notes"]))
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
        text.append(f"  max_total_num_tokens {count_text(plan['max_total_num_tokens'])}")
        if plan["full_max_total_num_tokens"] is not None:
            text.append(f", full {count_text(plan['full_max_total_num_tokens'])}")
            text.append(f", SWA {count_text(plan['swa_max_total_num_tokens'])}")
        text.append(f"; page {plan['page_size']}; max_running_requests {count_text(plan['max_running_requests'])}\n")
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
            count_text(p["layers"]),
            count_text(p["tokens"]),
            count_text(p["bytes_per_token"]),
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
                    count_text(pool.layers),
                    count_text(pool.tokens),
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
                count_text(plan.max_total_num_tokens),
                count_text(plan.swa_max_total_num_tokens),
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


def models_report(rows: Sequence[CatalogueRow]) -> RenderableType:
    """The catalogue of built-in models."""
    body = [
        (
            row.name,
            ", ".join(f"{n} {kind}" for kind, n in row.layers.items()),
            count_text(row.window),
            ", ".join(f"{n:,}" for n in row.bytes_per_token.values()),
            str(row.mtp) if row.mtp else "-",
            "; ".join(row.unsupported) or "-",
        )
        for row in rows
    ]
    out = table("built-in models", ("name", "layers", "window", "B/token/layer", "MTP", "not accounted for"), body)
    out.columns[5].justify = "left"
    return out
