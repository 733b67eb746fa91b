"""Comparisons written down: Markdown, and one HTML page that needs nothing else."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from simkv.comparison.outcome import Comparison
from simkv.comparison.view import (
    Grid,
    changed_grid,
    failure_lines,
    figure_grid,
    overcommit_bars,
    sections,
    sweep_sections,
    title_of,
)

__all__ = [
    "fragment",
    "html",
    "html_page",
    "markdown",
    "picture_bytes",
    "picture_uri",
    "sweeps_html",
    "sweeps_markdown",
    "template",
]

_ALT = {
    "utilization": "usage of the pools over time",
    "oom": "retractions, aborts and refusals so far, over time",
    "concurrency": "running and queued requests over time",
    "eviction": "tokens evicted a second over time",
}
# A table of more rows than this is folded in Markdown.
FOLD_FROM = 12


# ------------------------------------------------------------------------------------------------- HTML
def html(comparison: Comparison) -> str:
    """One page of one comparison."""
    return html_page(title_of(comparison), {"": comparison})


def html_page(title: str, comparisons: Mapping[str, Any], *, lead: Sequence[str] = ()) -> str:
    """One page of one or several comparisons.

    Parameters
    ----------
    title : str
        Of the page.
    comparisons : mapping
        Heading to Comparison; an empty heading where there is one.
    lead : sequence of str
        Sentences above the first.
    """
    parts = [{**_view(one), "head": head} for head, one in comparisons.items()]
    return str(template("page.html.j2").render(title=title, lead=lead, parts=parts))


def fragment(comparison: Any, grids: Sequence[Grid]) -> str:
    """Verdict, sentences and some tables, for a notebook."""
    return str(template("fragment.html.j2").render(c=comparison, grids=grids))


def template(name: str) -> Any:
    """A page to be filled."""
    environment = Environment(
        loader=PackageLoader("simkv.comparison"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def _view(c: Comparison) -> dict[str, Any]:
    """What the templates are filled with."""
    inputs, plan, pools, events = sections(c)
    return {
        "a": c.a.label,
        "b": c.b.label,
        "fails": bool(c.failures),
        "verdict": c.verdict,
        "warnings": c.warnings,
        "failures": failure_lines(c.failures),
        "paragraph": c.paragraph,
        "inputs": inputs,
        "plan": plan,
        "bars": overcommit_bars(c),
        "pools": pools,
        "events": events,
        "pictures": [_picture(c, kind) for kind in c.plots],
        "changed": changed_grid(c),
        "all": figure_grid(c, c.table, f"all {len(c.table)} figures"),
        "provenance": _provenance(c),
    }


def _picture(c: Comparison, kind: str) -> dict[str, str]:
    return {"uri": picture_uri(c.pictures[kind]), "alt": f"{_ALT[kind]}: {c.a.label} solid, {c.b.label} dashed"}


def picture_uri(data: bytes) -> str:
    """A PNG file as an address that holds all of it."""
    return f"data:image/png;base64,{base64.b64encode(data).decode('ascii')}"


def picture_bytes(comparison: Any, kind: str) -> bytes:
    """A figure of a comparison, as the bytes of a PNG file."""
    from simkv.plotting import save_to

    out = io.BytesIO()
    save_to(comparison.plot(kind).figure, out)
    return out.getvalue()


def _provenance(c: Comparison) -> Grid:
    keys = dict.fromkeys([*c.a.provenance, *c.b.provenance])
    rows = tuple((key, *(_fact(side.provenance.get(key)) for side in (c.a, c.b))) for key in keys)
    return Grid("provenance", ("", c.a.label, c.b.label), rows, left=3)


def _fact(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(str(one) for one in value) or "-"
    return "-" if value is None else str(value)


# ------------------------------------------------------------------------------------------------- Markdown
def markdown(comparison: Comparison, head: str = "") -> str:
    """A comparison for a pull request or a job's page."""
    c = comparison
    inputs, plan, pools, events = sections(c)
    title = f"{head}: {c.a.label} against {c.b.label}" if head else title_of(c)
    parts = [*(f"> **{_escaped(one)}**" for one in c.warnings), f"## {_escaped(title)}"]
    mark = "❌" if c.failures else "✅"
    parts.append(f"{mark} **{_escaped(c.verdict)}**")
    parts.append("\n".join(f"- {_escaped(one)}" for one in failure_lines(c.failures)))
    parts.append(" ".join(_escaped(one) for one in c.paragraph))
    parts.append(_markdown_grid(inputs))
    if c.plan["changed"].any() or c.failures:
        parts += [_markdown_grid(plan), _folded(pools)]
    parts.append(_markdown_grid(events))
    changed = changed_grid(c)
    parts.append(_folded(changed) if len(changed.rows) > FOLD_FROM else _markdown_grid(changed))
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown_grid(grid: Grid, *, titled: bool = True) -> str:
    title = f"**{_escaped(grid.title)}**\n\n" if titled else ""
    if not grid.rows:
        return f"{title}{_escaped(grid.empty)}" if grid.empty else ""
    rule = ["---" if n < grid.left else "---:" for n in range(len(grid.heads))]
    lines = [_line(_escaped(head) for head in grid.heads), _line(rule)]
    lines += [_line(_escaped(cell) for cell in row) for row in grid.rows]
    return title + "\n".join(lines)


def _folded(grid: Grid) -> str:
    if not grid.rows:
        return _markdown_grid(grid)
    return f"<details><summary>{_escaped(grid.title)}</summary>\n\n{_markdown_grid(grid, titled=False)}\n\n</details>"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    """Text that Markdown leaves as it is."""
    out = " ".join(text.split())
    for sign, code in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "&#124;")):
        out = out.replace(sign, code)
    for sign in ("\\", "`", "*", "[", "]"):
        out = out.replace(sign, "\\" + sign)
    return out


# ------------------------------------------------------------------------------------------------- sweeps
def sweeps_html(comparison: Any) -> str:
    """One page of two sweeps."""
    c = comparison
    pictures = []
    for kind in c.plots:
        alt = f"{kind} against {c.axes[0]}: {c.a.label} solid, {c.b.label} dashed"
        pictures.append({"uri": picture_uri(c.pictures[kind]), "alt": alt})
    inputs, points, changed = sweep_sections(c)
    whole = sweep_sections(c, only_changed=False)[-1]
    part = {
        "a": c.a.label,
        "b": c.b.label,
        "fails": bool(c.failures),
        "verdict": c.verdict,
        "warnings": c.warnings,
        "failures": failure_lines(c.failures),
        "paragraph": c.paragraph,
        "inputs": inputs,
        "points": points,
        "changed": changed,
        "all": whole,
        "pictures": pictures,
    }
    return str(template("sweeps.html.j2").render(title=f"{c.a.label} against {c.b.label}", part=part))


def sweeps_markdown(comparison: Any) -> str:
    """Two sweeps for a pull request or a job's page."""
    c = comparison
    inputs, points, changed = sweep_sections(c)
    parts = [*(f"> **{_escaped(one)}**" for one in c.warnings)]
    parts.append(f"## {_escaped(c.a.label)} against {_escaped(c.b.label)}")
    parts.append(f"{'❌' if c.failures else '✅'} **{_escaped(c.verdict)}**")
    parts.append("\n".join(f"- {_escaped(one)}" for one in failure_lines(c.failures)))
    parts.append(" ".join(_escaped(one) for one in c.paragraph))
    parts += [_markdown_grid(inputs), _markdown_grid(points), _folded(changed)]
    return "\n\n".join(part for part in parts if part) + "\n"
