"""What a comparison says, in sentences with their arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from simkv.comparison.figures import change_text, figure_text, relative_text
from simkv.comparison.sides import Side
from simkv.wording import LIMITS, POOLS, size

__all__ = ["failures_of", "paragraph", "warnings_of"]


# ------------------------------------------------------------------------------------------------- warnings
def warnings_of(a: Side, b: Side) -> list[str]:
    """What stands above everything else: why the two may not be comparable."""
    return list(_warnings(a, b))


def _warnings(a: Side, b: Side) -> Iterator[str]:
    if a.workload_sha256 != b.workload_sha256:
        yield (
            f"THE WORKLOADS DIFFER: {a.label} and {b.label} did not get the same requests (workload_sha256 "
            f"{_short(a)} and {_short(b)}), so no figure is called better or worse"
        )
    for key, name in (("engine", "engines"), ("model", "models")):
        if a.plan[key] != b.plan[key]:
            yield f"the {name} differ: {a.label} is {a.plan[key]}, {b.label} is {b.plan[key]}"
    for side in (a, b):
        if side.partial:
            until = figure_text("simulated_s", side.summary.get("simulated_s"))
            yield f"{side.label} is partial: it was interrupted at {until}, and its figures are those until then"
        if side.fault is not None:
            yield f"{side.label}: the engine breaks ({side.fault['fault']}), and its figures are those until then"


def _short(side: Side) -> str:
    return side.workload_sha256[:12] or "unknown"


# ------------------------------------------------------------------------------------------------- failures
def failures_of(a: Side, b: Side) -> list[str]:
    """What held in a and does not in b: start-up, running to the end, checks. Tolerances are told apart."""
    return list(_failures(a, b))


def _failures(a: Side, b: Side) -> Iterator[str]:
    if a.ran and b.refusal is not None:
        yield f"{b.label} would not start: {b.refusal['message']} ({b.refusal['engine_error']})"
    elif b.fits_slack is False and a.starts:
        yield f"{b.label} runs out of memory at start-up: {_beyond(b)}"
    if a.ran and a.fault is None and b.fault is not None:
        yield f"the engine breaks in {b.label}: {b.fault['fault']}: {b.fault['message']}"
    now = {check.key: check for check in b.checks}
    for check in a.checks:
        other = now.get(check.key)
        if check.holds and other is not None and not other.holds:
            values = f"{figure_text(check.key, check.value)} in {a.label}, {figure_text(check.key, other.value)} in {b.label}"
            yield f"the check {check.key} {other.condition} held and does not any more: {values}"


def _beyond(side: Side) -> str:
    over, slack = size(side.plan["overcommit_bytes"]), size(side.plan["slack_bytes"])
    return f"{over} are allocated beyond the budget, and {slack} are outside the static fraction"


# ------------------------------------------------------------------------------------------------- the paragraph
def paragraph(a: Side, b: Side, changed: int, total: int) -> list[str]:
    """A few sentences that a stranger understands.

    Parameters
    ----------
    a, b : Side
    changed, total : int
        Figures that differ, and all of them.
    """
    said = [*_starting(a, b), *_memory(a, b), *_pools(a, b)]
    if a.ran and b.ran:
        said += [*_happened(a, b), *_speed(a, b), *_limits(a, b), *_checks(a, b)]
        if not changed:
            said.append(f"All {total} figures are equal.")
    return said


def _starting(a: Side, b: Side) -> Iterator[str]:
    for side in (a, b):
        if side.refusal is not None:
            fixes = side.refusal["fixes"]
            fit = f" It would fit with {fixes[0]}." if fixes else ""
            yield f"{_upper(side.label)} would not start ({side.refusal['engine_error']}): {side.refusal['message']}.{fit}"


def _memory(a: Side, b: Side) -> Iterator[str]:
    """Bytes beyond the budget, against the slack."""
    known = [side for side in (a, b) if side.plan["pools"]]
    overs = [side.plan["overcommit_bytes"] for side in known]
    # Padding pages alone are no news.
    news = [over - side.plan["padding_bytes"] for over, side in zip(overs, known, strict=True)]
    if not any(news):
        return
    if len(known) == 2 and overs[0] == overs[1]:
        yield f"Both {_allocates(known[0], plural=True)} the KV budget of {size(known[0].plan['kv_bytes'])}."
    else:
        yield (
            "; ".join(
                f"{_upper(side.label) if not n else side.label} {_allocates(side)} its KV budget of "
                f"{size(side.plan['kv_bytes'])}{_kinds(side)}"
                for n, side in enumerate(known)
            )
            + "."
        )
    slacks = [side for side in known if side.plan["slack_bytes"] is not None]
    if not slacks:
        yield "Whether that fits is not known, because no GPU is stated."
    elif all(side.fits_slack for side in slacks):
        lines = list(dict.fromkeys(size(side.plan["slack_bytes"]) for side in slacks))
        both = f"that of {slacks[0].label} fits" if len(slacks) == 1 else "both fit"
        yield f"What is beyond the budget has to fit the {' and '.join(lines)} outside mem_fraction_static: {both}."
    else:
        told = [
            f"{side.label} {'fits' if side.fits_slack else 'RUNS OUT OF MEMORY AT START-UP'} "
            f"({size(side.plan['overcommit_bytes'])} against {size(side.plan['slack_bytes'])})"
            for side in slacks
        ]
        yield f"What is beyond the budget has to fit what is outside mem_fraction_static: {', '.join(told)}."
        yield "Its figures are those of a server that had the memory."


def _allocates(side: Side, *, plural: bool = False) -> str:
    over = side.plan["overcommit_bytes"]
    s = "" if plural else "s"
    return f"allocate{s} {size(over)} beyond" if over >= 0 else f"leave{s} {size(-over)} unused of"


def _kinds(side: Side) -> str:
    """The disagreement that is most of it."""
    found = max(side.plan["disagreements"], key=lambda d: abs(d["bytes"] or 0), default=None)
    if found is None or not found["bytes"]:
        return ""
    return f" ({size(found['bytes'])} of it {found['code']}: {found['title']})"


def _pools(a: Side, b: Side) -> Iterator[str]:
    """Tokens of the pools, and what they are divided by."""
    for pool, name in ((None, "pool"), ("full", "full pool"), ("swa", "SWA pool")):
        key = "max_total_num_tokens" if pool is None else f"{pool}_max_total_num_tokens"
        x, y = a.plan[key], b.plan[key]
        split = a.plan["full_max_total_num_tokens"] is not None and b.plan["full_max_total_num_tokens"] is not None
        if x is None or y is None or x == y or split == (pool is None):
            continue
        relative = relative_text((y - x) / x) if x else "-"
        word = "more" if y > x else "fewer"
        why = ""
        if pool != "swa" and a.plan["bytes_per_token"] != b.plan["bytes_per_token"]:
            prices = [f"{side.plan['bytes_per_token']:,.6g} B" for side in (a, b)]
            why = f"; a token of max_total_num_tokens costs {prices[0]} against {prices[1]}"
        elif pool != "swa" and a.plan["kv_bytes"] != b.plan["kv_bytes"]:
            why = f"; the KV budget is {size(a.plan['kv_bytes'])} against {size(b.plan['kv_bytes'])}"
        yield (
            f"The {name} of {a.label} holds {x:,} tokens, that of {b.label} {y:,}: {abs(y - x):,} {word} ({relative}){why}."
        )
    alone = [side for side in (a, b) if side.plan["swa_max_total_num_tokens"] is not None]
    if len(alone) == 1 and a.ran and b.ran:
        yield f"Only {alone[0].label} has a SWA pool ({alone[0].plan['swa_max_total_num_tokens']:,} tokens)."


def _happened(a: Side, b: Side) -> Iterator[str]:
    """Retractions, refusals and aborts, and the first cause."""
    told = False
    for event, done in (("retraction", "retracted"), ("refusal", "refused"), ("abort", "aborted")):
        x, y = (int(side.summary.get(f"requests.{done}") or 0) for side in (a, b))
        if not x and not y:
            continue
        told = True
        verb = "request was" if x == 1 else "requests were"
        firsts = [(side.label, _first(side, event)) for side in (a, b)]
        if firsts[0][1] == firsts[1][1]:
            firsts = [("both", firsts[0][1])]
        told_first = "".join(f"; first with {label} {first}" for label, first in firsts if first)
        yield f"{x:,} {verb} {done} with {a.label}, {y:,} with {b.label}{told_first}."
    if not told:
        yield "No request was retracted, refused or aborted in either."


def _first(side: Side, event: str) -> str:
    found = [cause for cause in side.causes if cause.event == event]
    if not found:
        return ""
    first = min(found, key=lambda cause: cause.first_s)
    where = f" in the {POOLS[first.pool]}" if first.pool in POOLS else ""
    return f"at {first.first_s:,.1f} s{where}: {first.cause}"


def _speed(a: Side, b: Side) -> Iterator[str]:
    parts = []
    for key, name in (
        ("output_tokens_per_s", "output tokens a second"),
        ("ttft_s.p99", "time to first token (p99)"),
        ("tpot_s.p99", "time per output token (p99)"),
    ):
        x, y = a.summary.get(key), b.summary.get(key)
        if x is None or y is None or x == y:
            continue
        relative = f" ({relative_text((y - x) / x)})" if x else ""
        parts.append(f"{name} {_level(key, x)} against {_level(key, y)}{relative}")
    if parts:
        text = ", ".join(parts)
        yield f"From {a.label} to {b.label}: {text}."


def _level(key: str, value: float) -> str:
    return f"{value:,.1f}" if key == "output_tokens_per_s" else figure_text(key, value)


def _limits(a: Side, b: Side) -> Iterator[str]:
    x, y = a.summary.get("limit.binding"), b.summary.get("limit.binding")
    if x is None or y is None:
        return
    if x != y:
        yield f"{_upper(a.label)} is limited by {LIMITS.get(x, x)}, {b.label} by {LIMITS.get(y, y)}."
        return
    share, other = a.summary.get(f"limit.{x}"), b.summary.get(f"limit.{x}")
    if x != "arrival" and share is not None and other is not None and share != other:
        key = f"limit.{x}"
        yield (
            f"Both are limited by {LIMITS.get(x, x)}: requests wait for it {figure_text(key, share)} of the time with "
            f"{a.label}, {figure_text(key, other)} with {b.label} ({change_text(key, other - share)})."
        )


def _checks(a: Side, b: Side) -> Iterator[str]:
    held = [(sum(check.holds for check in side.checks), len(side.checks)) for side in (a, b)]
    if any(count for _, count in held):
        yield (
            "Checks that hold: "
            + ", ".join(f"{n} of {count} with {side.label}" for (n, count), side in zip(held, (a, b), strict=True))
            + "."
        )


def _upper(text: Any) -> str:
    """A sentence's first letter, where it is a word and no name with capitals or signs in it."""
    word = str(text)
    return word[:1].upper() + word[1:] if word.isalpha() and word.islower() else word
