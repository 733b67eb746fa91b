"""The arithmetic of a plan as text."""

from __future__ import annotations

import re
from math import isnan

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simkv.engines.explanation import Equation, Explanation
from simkv.report.text import bullets, count_text, size, table, value_text
from simkv.wording import POOLS

__all__ = ["explain_report"]

_LIMITS = {**POOLS, "rows": "max_running_requests", "": "-"}


def explain_report(found: Explanation) -> RenderableType:
    """An explanation: the sums, how many requests fit, and what other settings would hold."""
    parts: list[RenderableType] = [_sums(found.equations)]
    if found.fits:
        parts.append(_fits(found))
    if len(found.alternatives) > 1:
        parts.append(_alternatives(found))
    if found.lengths:
        parts.append(_lengths(found))
    if found.windows:
        parts.append(_windows(found))
    parts.append(bullets("what follows", found.advice))
    return Group(*parts)


def _sums(equations: tuple[Equation, ...]) -> Text:
    text = Text("how every figure comes about", style="bold")
    for one in equations:
        text.append(f"\n  {one.name}", style="bold")
        text.append(f"\n    {_marked(one.formula)}\n    = {value_text(one.value)} {one.unit}", style="not bold")
        text.append(f"   ({one.source})" if one.source else "", style="not bold")
    text.append("\n")
    return text


def _marked(formula: str) -> str:
    """A sum as a person writes it: thousands marked, a cross for the product."""
    marked = re.sub(r"(?<![\w.])\d{4,}(?![\w.])", lambda match: f"{int(match[0]):,}", formula)
    return marked.replace(" * ", " x ")


def _fits(found: Explanation) -> Table:
    rows = [
        (_LIMITS[fit.limit], fit.formula, count_text(fit.holding), count_text(fit.capacity), count_text(fit.requests))
        for fit in found.fits
    ]
    title = f"requests of {found.input_tokens:,} + {found.output_tokens:,} tokens that fit at once, each at its longest"
    return table(title, ("limit", "one holds at most", "tokens", "there are", "requests"), rows, left=2)


def _alternatives(found: Explanation) -> Group:
    rows = []
    for one in found.alternatives:
        price = "-" if isnan(one.bytes_per_token) else f"{one.bytes_per_token:,.10g}"
        sizes = (one.full_tokens, one.swa_tokens, one.requests)
        rows.append((one.name, price, *(count_text(value) for value in sizes), _LIMITS[one.binding]))
    heads = ("the same budget", "B/token", "full tokens", "SWA tokens", "requests", "runs out first")
    title = "what the same budget holds (requests of that length in the pools, whatever max_running_requests says)"
    notes = [
        f"{one.name}: --set '{one.change}'" + (f"; {one.note}" if one.note else "")
        for one in found.alternatives
        if one.change
    ]
    return Group(table(title, heads, rows), bullets("to try one of them", notes))


def _lengths(found: Explanation) -> Table:
    rows = [(count_text(c.tokens), size(c.split), size(c.unsplit), f"{c.ratio:.4g}x") for c in found.lengths]
    heads = ("sequence", "window only", "every layer all", "unsplit costs")
    return table("KV of one sequence that the model itself needs, one rank", heads, rows, left=0)


def _windows(found: Explanation) -> Table:
    rows = [
        (
            count_text(cost.page_size),
            f"{cost.mean_pages:.3f}",
            f"{cost.mean_tokens:,.0f}",
            count_text(cost.most_tokens),
            count_text(cost.held),
        )
        for cost in found.windows
    ]
    heads = ("page_size", "pages, mean", "tokens, mean", "tokens, most", "the engine lets a request hold")
    return table("the window of one sequence in whole pages", heads, rows, left=0)
