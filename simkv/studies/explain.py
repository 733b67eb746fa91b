"""``size --explain``: the sums behind a plan, what they mean for requests of one length, and what would be better.

Nothing is simulated: these are bounds in closed form, for requests that share nothing with one another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simkv.engines.base import Plan
from simkv.engines.explanation import Alternative, Balance, Explanation, Fit
from simkv.engines.sglang.explain import (
    chunk_needs,
    equations,
    fits,
    flight_tokens,
    length_costs,
    sized_by_ratio,
    window_costs,
)
from simkv.engines.sglang.footprint import Footprint, footprint
from simkv.engines.sglang.plan import build_plan
from simkv.errors import Problem, ScenarioError, UserError
from simkv.scenario import Scenario, load
from simkv.wording import GIB, LIMITS

__all__ = ["explain"]

# The engine's defaults, of most models and of Inkling (server_args.py).
_RATIOS = (0.8, 0.1)


def explain(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    *,
    input_tokens: int | None = None,
    output_tokens: int | None = None,
) -> Explanation:
    """The arithmetic of a scenario's plan, and its closed-form bounds.

    Parameters
    ----------
    scenario : str, Path, mapping or Scenario
        What to size.
    input_tokens, output_tokens : int, optional
        The request to reckon with; default: the means of the scenario's workload.

    Raises
    ------
    ScenarioError
        No length is given and there is no workload to take it from, or one is below 1.
    """
    one = load(scenario)
    prompt, answer = _lengths(one, input_tokens, output_tokens)
    plan, settings = one.plan(), one.resolved.settings
    found = Explanation(equations(plan, settings), prompt, answer)
    if plan.infeasible is not None:
        return replace(found, advice=tuple(f"it would start with {fix}" for fix in plan.infeasible.fixes))
    foot = _foot(one, plan, prompt, answer)
    found = replace(
        found,
        fits=fits(plan, settings, foot, prompt, answer),
        mean_holding=foot.full_mean if plan.layers["full"] else None,
        balance=_balance(one, plan, foot, prompt, answer),
        lengths=length_costs(one.resolved.arch, plan, settings, (prompt, prompt + answer, settings.context_len)),
        windows=window_costs(settings, prompt, answer) if plan.layers["full"] else (),
    )
    found = replace(found, alternatives=tuple(_alternatives(one, found)))
    return replace(found, advice=tuple(_advice(one, plan, foot, found)))


def _lengths(one: Scenario, prompt: int | None, answer: int | None) -> tuple[int, int]:
    problems = [
        Problem(name, f"{value!r} is not an integer >= 1")
        for name, value in (("input_tokens", prompt), ("output_tokens", answer))
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1)
    ]
    if problems:
        raise ScenarioError(one.source, problems)
    if prompt is not None and answer is not None:
        return prompt, answer
    if one.document.workload is None:
        missing = [name for name, value in (("input_tokens", prompt), ("output_tokens", answer)) if value is None]
        message = "is needed: the scenario has no [workload] to take its mean from"
        raise ScenarioError(one.source, [Problem(name, message) for name in missing])
    work = one.workload()
    if not len(work):
        raise ScenarioError(one.source, [Problem("workload", "has no request to take the mean length of")])
    mean_in, mean_out = max(1, round(work.input_tokens.mean())), max(1, round(work.output_tokens.mean()))
    return mean_in if prompt is None else prompt, mean_out if answer is None else answer


def _foot(one: Scenario, plan: Plan, prompt: int, answer: int) -> Footprint:
    return footprint(one.resolved.settings, prompt, answer, all_swa=not plan.layers["full"])


def _tighter_pool(one: Scenario, prompt: int, answer: int) -> tuple[Plan, Fit | None]:
    """Plan of a scenario, and its pool that holds the fewest requests, whatever max_running_requests says."""
    plan, settings = one.plan(), one.resolved.settings
    if plan.infeasible is not None:
        return plan, None
    found = fits(plan, settings, _foot(one, plan, prompt, answer), prompt, answer)
    return plan, min((fit for fit in found if fit.limit != "rows"), key=lambda fit: fit.requests)


def _balance(one: Scenario, plan: Plan, foot: Footprint, prompt: int, answer: int) -> Balance | None:
    """The ratio, in ten-thousandths, at which both pools hold the same number of requests, as near as pages allow."""
    if not sized_by_ratio(plan):
        return None

    def held(ratio: int) -> tuple[int, int]:
        made = _with_ratio(one, ratio)
        if made.infeasible is not None:
            return 1, -1
        found = fits(made, one.resolved.settings, foot, prompt, answer)
        by_pool = {fit.limit: fit.requests for fit in found}
        return by_pool["full"], by_pool["swa"]

    cross = _first_ratio(lambda ratio: held(ratio)[0] <= held(ratio)[1])
    near = [10_000] if cross is None else [ratio for ratio in (cross - 1, cross) if ratio]
    best = max(near, key=lambda ratio: (min(held(ratio)), -ratio))
    made, count = _with_ratio(one, best), min(held(best))
    if count < 1:
        return None
    full, swa = made.max_total_num_tokens or 0, made.swa_max_total_num_tokens or 0
    last = max(foot.swa, flight_tokens(one.resolved.settings, foot, prompt))
    formula = (
        f"{full:,} // {foot.full:,} = {held(best)[0]:,} and ({swa:,} - {made.page_size:,} - {last:,}) // {foot.swa:,} + 1 = "
        f"{held(best)[1]:,} requests"
    )
    return Balance(best / 10_000, count, full, swa, formula)


def _with_ratio(one: Scenario, ratio: int) -> Plan:
    """The plan with this ratio, in ten-thousandths."""
    r = one.resolved
    settings = replace(r.settings, swa_full_tokens_ratio=ratio / 10_000)
    return build_plan(r.arch, r.draft, settings, r.budget, r.rule, r.stated)


def _first_ratio(good: Callable[[int], bool]) -> int | None:
    """A ratio in ten-thousandths from which on something holds, found by bisection; None where it never does."""
    low, high = 1, 10_000
    if not good(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if good(middle) else (middle + 1, high)
    return high


# ------------------------------------------------------------------------------------------------- alternatives
def _alternatives(one: Scenario, found: Explanation) -> Iterator[Alternative]:
    """The same budget as it is and under other settings."""
    plan = one.plan()
    yield _alternative(one, "as it is", "", found)
    sliding = bool(one.resolved.arch.count("sliding", "chunked"))
    if plan.swa_max_total_num_tokens is None:
        if sliding:
            change = "model.hybrid_swa=true"
            yield _alternative(one.override(change), "split pools", change, found)
    else:
        if plan.layers["full"]:
            for ratio in dict.fromkeys([*_RATIOS, *([found.balance.ratio] if found.balance else [])]):
                if ratio == one.resolved.settings.swa_full_tokens_ratio or found.balance is None:
                    continue
                change = f"memory.swa_full_tokens_ratio={ratio:g}"
                name = "the pools run out together" if ratio == found.balance.ratio else f"ratio {ratio:g}"
                yield _alternative(one.override(change), name, change, found)
        change = "model.hybrid_swa=false"
        yield _alternative(one.override(change), "one pool for all layers", change, found)
    drafts = [pool for pool in plan.pools if pool.worker != "target"]
    if drafts and plan.swa_max_total_num_tokens is not None and "no-draft-budget" not in one.document.policies.faults:
        named = sorted([*one.document.policies.faults, "no-draft-budget"])
        free = one.set(policies__faults=named)
        over = free.plan()
        if over.bytes_per_token != plan.bytes_per_token:
            note = f"allocates {over.overcommit_bytes / GIB:.2f} GiB that no budget charged"
            change = f"policies.faults={named!r}".replace("'", '"')
            yield replace(_alternative(free, "the draft not charged", change, found), note=note)


def _alternative(one: Scenario, name: str, change: str, found: Explanation) -> Alternative:
    try:
        plan, fit = _tighter_pool(one, found.input_tokens, found.output_tokens)
    except UserError as error:
        return Alternative(name, change, float("nan"), None, None, None, "", error.problems[0].message)
    note = "" if plan.infeasible is None else f"would not start ({plan.infeasible.engine_error})"
    full = plan.max_total_num_tokens if plan.full_max_total_num_tokens is None else plan.full_max_total_num_tokens
    return Alternative(
        name,
        change,
        plan.bytes_per_token,
        full or None,
        plan.swa_max_total_num_tokens,
        None if fit is None else fit.requests,
        "" if fit is None else fit.limit,
        note,
    )


# ------------------------------------------------------------------------------------------------- advice
def _chunk_advice(one: Scenario, plan: Plan) -> Iterator[str]:
    """Whether whole chunks of prompts pass the SWA pool, and the ratio with which they would."""
    settings, needs = one.resolved.settings, chunk_needs(plan, one.resolved.settings)
    if needs is None or (plan.swa_max_total_num_tokens or 0) >= needs[0]:
        return
    chunks = 1 if settings.disable_overlap_schedule else 2

    def tokens(ratio: int) -> tuple[int, float]:
        made = _with_ratio(one, ratio)
        total = made.max_total_num_tokens if made.infeasible is None else None
        # A billionth of a token is no token.
        return made.swa_max_total_num_tokens or 0, (total or 0) * ratio / 10_000 + 1e-9

    least = _first_ratio(lambda ratio: tokens(ratio)[0] >= needs[0])
    roomy = _first_ratio(lambda ratio: tokens(ratio)[1] >= needs[1])
    told = (
        f"the SWA pool is smaller than {chunks} x {settings.chunked_prefill_size:,} tokens of prompts in flight, a window "
        "and a page: longer prompts are cut smaller; "
    )
    if least is None:
        yield told + "no ratio holds them: smaller chunks do, or a larger budget"
        return
    more = "" if roomy is None else f", {roomy / 10_000:g} leaves 5 % beside the chunks"
    yield told + f"memory.swa_full_tokens_ratio = {least / 10_000:g} holds them{more}"


def _advice(one: Scenario, plan: Plan, foot: Footprint, found: Explanation) -> Iterator[str]:
    """What follows from the figures, in words."""
    bound, settings = found.binding, one.resolved.settings
    if bound is None:
        return
    length = f"{found.input_tokens:,} + {found.output_tokens:,} tokens"
    many = "request" if bound.requests == 1 else "requests"
    yield f"at most {bound.requests:,} {many} of {length} fit at once, each at its longest; {LIMITS[bound.limit]} is the limit"
    if found.mean_holding is not None and bound.limit == "full":
        full = next(fit for fit in found.fits if fit.limit == "full")
        mixed = int(full.capacity / found.mean_holding)
        if mixed > full.requests:
            yield (
                f"in a steady mix of young and old ones the full pool holds about {mixed:,} "
                f"({full.capacity:,} / {found.mean_holding:,.0f} on average)"
            )
    pools = min(fit.requests for fit in found.fits if fit.limit != "rows")
    if bound.limit == "rows" and pools > bound.requests:
        yield f"the pools would hold {pools:,}: memory.max_running_requests = {pools} uses them"
    balance = found.balance
    if balance is not None and balance.requests > pools:
        yield (
            f"at memory.swa_full_tokens_ratio = {balance.ratio:g} the pools run out together and hold {balance.requests:,} "
            f"({balance.full_tokens:,} full and {balance.swa_tokens:,} SWA tokens): {balance.formula}"
        )
    yield from _chunk_advice(one, plan)
    if foot.reserve:
        yield (
            f"of each request's {foot.full:,} tokens, {foot.reserve:,} are reserved for speculation: "
            f"{bound.requests * foot.reserve:,} of {bound.requests:,} {many}"
        )
    if not plan.layers["full"] and not settings.disable_radix_cache:
        yield (
            "with the prefix cache on, a model whose layers all slide keeps whole prompts, and answers that outgrow the window "
            "end the engine (F3): memory.disable_radix_cache = true keeps windows only"
        )
    if plan.fits_slack is False:
        yield (
            f"start-up runs out of memory: {plan.overcommit_bytes:,} B are allocated beyond the budget and "
            f"{plan.slack_bytes:,} B are left for them"
        )
