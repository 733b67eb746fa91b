"""Commands that answer without simulating: size, route, and the lists."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from simkv.cli.frame import Integer, Json, Overrides, app, dump, emit, load_scenario

__all__ = ["models", "route", "scenarios", "schema", "size"]


@app.command
def size(
    scenario: str,
    /,
    *,
    explain: Annotated[bool, Parameter(negative="")] = False,
    input_tokens: Integer | None = None,
    output_tokens: Integer | None = None,
    overrides: Overrides = (),
    as_json: Json = False,
) -> int:
    """Sizes of every pool before the first request; no simulation.

    Parameters
    ----------
    scenario : str
        A built-in name or a scenario file.
    explain : bool
        The sum behind every figure, how many requests fit at once, and what other settings would hold.
    input_tokens, output_tokens : int, optional
        Lengths that --explain reckons with; default: the means of the scenario's workload.
    """
    base = load_scenario(scenario, overrides)
    if not explain and (input_tokens is not None or output_tokens is not None):
        raise _needs_explain(base.source, input_tokens, output_tokens)
    plan = base.plan()
    found = None
    if explain:
        from simkv.studies.explain import explain as explained

        found = explained(base, input_tokens=input_tokens, output_tokens=output_tokens)
    if as_json:
        dump(plan.to_dict() if found is None else {**plan.to_dict(), "explain": found.to_dict()})
    else:
        from simkv.report import explain_report, plan_report

        emit(plan_report(plan.to_dict()))
        if found is not None:
            emit(explain_report(found))
    return 3 if plan.infeasible is not None else 0


def _needs_explain(source: str, prompt: int | None, answer: int | None) -> Exception:
    from simkv.errors import Problem, ScenarioError

    given = [name for name, value in (("--input-tokens", prompt), ("--output-tokens", answer)) if value is not None]
    return ScenarioError(source, [Problem(name, "has no effect without --explain") for name in given])


@app.command
def route(scenario: str, /, *, overrides: Overrides = (), as_json: Json = False) -> int:
    """Where each draft depth's KV goes, what the budget charges for it, and where the two disagree.

    Parameters
    ----------
    scenario : str
        A built-in name or a scenario file.
    """
    from simkv.engines.sglang.routing import ROUTING_RULES

    base = load_scenario(scenario, overrides)
    plans = [base.override(f"policies.routing={rule}").plan() for rule in ROUTING_RULES]
    chosen = base.document.policies.routing
    if as_json:
        dump({"routing": chosen, "rules": {plan.routing: plan.to_dict() for plan in plans}})
    else:
        from simkv.report import routes_report

        emit(routes_report(plans, chosen))
    return 3 if next(p for p in plans if p.routing == chosen).infeasible is not None else 0


@app.command
def scenarios(*, as_json: Json = False) -> int:
    """List the built-in scenarios and what each teaches."""
    from simkv.report import table
    from simkv.scenario import builtin_names, load

    found = {name: load(name).document.description for name in builtin_names()}
    if as_json:
        dump(found)
    else:
        shown = table("built-in scenarios", ("name", "teaches"), list(found.items()), left=2)
        emit(shown)
    return 0


@app.command
def models(*, as_json: Json = False) -> int:
    """List the built-in models: layers by kind, window, bytes a token, MTP heads."""
    from simkv.arch import describe_catalogue

    rows = describe_catalogue()
    if as_json:
        dump([row._asdict() for row in rows])
    else:
        from simkv.report import models_report

        emit(models_report(rows))
    return 0


@app.command
def schema(*, as_json: Json = False) -> int:
    """Print the JSON Schema of a scenario, for editors; it is JSON with --json or without."""
    from simkv.scenario import schema as scenario_schema

    dump(scenario_schema())
    return 0
