"""Two runs against one another: each figure, each sentence and each reason to fail, by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import TINY, scenario

import simkv
from simkv.comparison.figures import figure_text, relative_text
from simkv.comparison.labels import default_labels
from simkv.comparison.tables import flat
from simkv.comparison.tolerance import Tolerance, parse_tolerance, tolerance_of
from simkv.errors import ScenarioError, UserError
from simkv.results import Check, Run

MIB = 1 << 20
LOAD = {"kind": "poisson", "rate": 60, "num_requests": 25, "input_tokens": 60, "output_tokens": 40}


def one(**sections: Any) -> simkv.Scenario:
    return scenario(**{"workload": LOAD, **sections})


@pytest.fixture(scope="module")
def run() -> Run:
    return simkv.simulate(one())


def changed(run: Run, *, without: tuple[str, ...] = (), **summary: Any) -> Run:
    """The run with other figures; ``ttft_s__p99`` is ``ttft_s.p99``."""
    figures = {**run.summary.to_dict(), **{name.replace("__", "."): value for name, value in summary.items()}}
    for name in without:
        del figures[name]
    return replace(run, summary=pd.Series(figures, dtype=object, name="value"))


def row(comparison: Any, figure: str) -> dict[str, Any]:
    [found] = comparison.table[comparison.table["figure"] == figure].to_dict("records")
    return found


# ------------------------------------------------------------------------------------------------- figures
def test_a_run_against_itself(run: Run) -> None:
    found = simkv.compare(run, run)
    assert not found.table["changed"].any()
    assert set(found.table["verdict"]) == {"same"}
    assert set(found.table["figure"]) == set(run.summary.index)
    assert (found.a.label, found.b.label) == ("a", "b")
    assert found.inputs.empty
    assert found.exit_code == 0
    assert found.failures == found.warnings == ()
    assert found.same_workload
    assert found.verdict == f"no figure differs ({len(run.summary)} compared)"
    assert f"All {len(run.summary)} figures are equal." in found.paragraph


@pytest.mark.parametrize(
    ("figure", "a", "b", "change", "relative", "verdict"),
    [
        ("ttft_s.p99", 2.0, 1.5, -0.5, -0.25, "improved"),
        ("ttft_s.p99", 1.5, 2.0, 0.5, 1 / 3, "worse"),
        ("requests.retracted", 8, 12, 4, 0.5, "worse"),
        ("output_tokens_per_s", 100.0, 80.0, -20.0, -0.2, "worse"),
        ("cache_hit_rate", 0.2, 0.4, 0.2, 1.0, "improved"),
        ("full_token_usage.peak", 0.5, 0.75, 0.25, 0.5, "changed"),
        ("spec_accept_length", 2.0, 3.0, 1.0, 0.5, "changed"),
        ("requests.retracted", 0, 12, 12, None, "worse"),
        ("limit.binding", "full", "arrival", None, None, "changed"),
        ("cache_hit_rate", float("nan"), 0.5, None, None, "changed"),
        ("cache_hit_rate", float("nan"), float("nan"), None, None, "same"),
        ("cache_hit_rate", None, float("nan"), None, None, "same"),
        ("requests.retracted", np.int64(3), 3.0, 0.0, 0.0, "same"),
    ],
)
def test_one_figure(run: Run, figure: str, a: Any, b: Any, change: Any, relative: Any, verdict: str) -> None:
    name = figure.replace(".", "__")
    found = row(simkv.compare(changed(run, **{name: a}), changed(run, **{name: b})), figure)
    assert found["change"] == (None if change is None else pytest.approx(change))
    assert found["relative_change"] == (None if relative is None else pytest.approx(relative))
    assert found["verdict"] == verdict
    assert found["changed"] == (verdict != "same")


def test_integers_stay_integers(run: Run) -> None:
    big = (1 << 60) + 1
    found = row(simkv.compare(changed(run, tokens__input=big), changed(run, tokens__input=big + 2)), "tokens.input")
    assert (found["a"], found["b"], found["change"]) == (big, big + 2, 2)


def test_figures_that_only_one_side_has(run: Run) -> None:
    hybrid = changed(run, swa_token_usage__peak=0.5)
    found = simkv.compare(run, hybrid)
    assert row(found, "swa_token_usage.peak")["verdict"] == "only in b"
    assert row(simkv.compare(hybrid, run), "swa_token_usage.peak")["verdict"] == "only in a"
    # A figure without a value is a figure all the same.
    assert row(simkv.compare(run, changed(run, swa_token_usage__peak=None)), "swa_token_usage.peak")["changed"]
    assert found.exit_code == 0
    strict = simkv.compare(run, hybrid, rtol={"swa_*": 100.0})
    assert strict.exit_code == 1
    assert "swa_token_usage.peak is beyond its tolerance" in strict.failures[0]


# ------------------------------------------------------------------------------------------------- tolerances
numbers = st.floats(-1e6, 1e6) | st.integers(-(10**6), 10**6)


@given(numbers, numbers, st.floats(0, 10), st.floats(0, 1e6))
def test_within_is_the_inequality(a: float, b: float, rtol: float, atol: float) -> None:
    from simkv.comparison.tables import figure_row

    found = figure_row("x", a, b, tolerance_of(rtol, atol), judged=True)
    assert found["within"] == (a == b or abs(b - a) <= atol + rtol * abs(a))


def test_tolerances_by_name(run: Run) -> None:
    a = changed(run, ttft_s__p50=1.0, ttft_s__p99=10.0, requests__retracted=100, tpot_s__p50=1.0)
    b = changed(run, ttft_s__p50=1.5, ttft_s__p99=11.0, requests__retracted=103, tpot_s__p50=9.0)
    found = simkv.compare(a, b, rtol={"ttft_s.*": 0.4, "ttft_s.p99": 0.05}, atol={"requests.*": 3})
    within = {name: row(found, name)["within"] for name in ("ttft_s.p50", "ttft_s.p99", "requests.retracted")}
    # 0.5 > 0.4 x 1; the name of its own wins: 1 > 0.05 x 10; 3 <= 3.
    assert within == {"ttft_s.p50": False, "ttft_s.p99": False, "requests.retracted": True}
    # Nothing is stated of it, so nothing is asked of it.
    assert row(found, "tpot_s.p50")["within"] is None
    assert found.exit_code == 1
    assert len(found.failures) == 2
    assert "0.5" in found.failures[1] or "0.5" in found.failures[0]
    loose = simkv.compare(a, b, rtol={"ttft_s.*": 0.5}, atol={"requests.*": 3})
    assert loose.exit_code == 0
    # Of several patterns the last one counts.
    assert Tolerance({"*": 1.0, "ttft*": 0.1}).allowed("ttft_s.p50", 2.0) == pytest.approx(0.2)
    assert Tolerance({"ttft*": 0.1, "*": 1.0}).allowed("ttft_s.p50", 2.0) == pytest.approx(2.0)
    # Both kinds add up.
    assert tolerance_of(0.5, 1.0).allowed("x", -4.0) == pytest.approx(3.0)


def test_what_has_no_number_is_beyond_any_tolerance(run: Run) -> None:
    a = changed(run, limit__binding="full", cache_hit_rate=0.5)
    b = changed(run, limit__binding="swa", cache_hit_rate=float("nan"))
    found = simkv.compare(a, b, rtol=1e9)
    assert {line.split()[0] for line in found.failures} == {"limit.binding", "cache_hit_rate"}


@pytest.mark.parametrize(
    ("rtol", "atol", "places"),
    [
        (-1, "x", {"rtol", "atol"}),
        (float("nan"), None, {"rtol"}),
        (float("inf"), None, {"rtol"}),
        (True, None, {"rtol"}),
        ({"ttft_s.p99": "1", "": 1}, {"a": -2.0}, {'rtol."ttft_s.p99"', "rtol", 'atol."a"'}),
    ],
)
def test_bad_tolerances(rtol: Any, atol: Any, places: set[str]) -> None:
    with pytest.raises(ScenarioError) as caught:
        tolerance_of(rtol, atol)
    assert {problem.place for problem in caught.value.problems} == places


def test_a_tolerance_of_no_figure(run: Run) -> None:
    with pytest.raises(ScenarioError, match=r"did you mean ttft_s.p99"):
        simkv.compare(run, run, rtol={"ttft_s.p999": 0.1})
    with pytest.raises(ScenarioError, match="is no figure"):
        # Known before anything is simulated: this scenario would run for ever.
        simkv.compare(one(workload={**LOAD, "num_requests": 10**7}), run, atol={"nothing.*": 1})


def test_tolerances_of_a_command_line() -> None:
    assert parse_tolerance("--rtol", ["0.1", "ttft_s.*=0.2", "a=b=1"]) == ({"*": 0.1, "ttft_s.*": 0.2, "a=b": 1.0}, [])
    found, problems = parse_tolerance("--rtol", ["", "x=", "=1", "-1", "nan", "x=inf"])
    assert found == {}
    assert len(problems) == 6


# ------------------------------------------------------------------------------------------------- reasons to fail
def checked(run: Run, **holds: bool) -> Run:
    checks = tuple(Check(name.replace("__", "."), "== 0", 0 if good else 7, good) for name, good in holds.items())
    return replace(run, checks=checks)


@pytest.mark.parametrize(
    ("before", "now", "code"),
    [
        ({"requests__retracted": True}, {"requests__retracted": False}, 1),
        ({"requests__retracted": False}, {"requests__retracted": False}, 0),
        ({"requests__retracted": False}, {"requests__retracted": True}, 0),
        ({}, {"requests__retracted": False}, 0),
        ({"requests__retracted": True}, {}, 0),
    ],
)
def test_checks(run: Run, before: dict[str, bool], now: dict[str, bool], code: int) -> None:
    found = simkv.compare(checked(run, **before), checked(run, **now))
    assert found.exit_code == code
    if code:
        told = "the check requests.retracted == 0 held and does not any more: 0 in a, 7 in b"
        assert found.failures == (told,)
        assert found.verdict == f"FAILS: {told}"


def test_the_engine_breaks(run: Run) -> None:
    broken = replace(run, fault={"fault": "F1", "message": "memory leak detected"})
    found = simkv.compare(run, broken)
    assert found.failures == ("the engine breaks in b: F1: memory leak detected",)
    assert any("F1" in line for line in found.warnings)
    assert simkv.compare(broken, broken).exit_code == 0
    assert simkv.compare(broken, run).exit_code == 0


def test_a_partial_run_is_not_judged(run: Run) -> None:
    half = replace(changed(run, ttft_s__p99=0.001), partial=True)
    found = simkv.compare(run, half)
    assert row(found, "ttft_s.p99")["verdict"] == "changed"
    assert found.warnings[0].startswith("b is partial: it was interrupted at")
    assert found.exit_code == 0


# 3,000 B of 256 B a token: 11 tokens, where a page has 16. What it would take is a page, 4,096 B.
NO_ROOM = {"memory": {"kv_bytes": 3000, "page_size": 16, "chunked_prefill_size": 512}}


def test_an_engine_that_would_not_start_is_a_side(run: Run) -> None:
    bad = one(**NO_ROOM)
    assert bad.plan().infeasible is not None
    found = simkv.compare(run, bad, labels=("before", "now"))
    assert found.exit_code == 1
    assert found.failures[0].startswith("now would not start: ")
    assert found.b.plan["kv_bytes"] == 3000
    assert not found.b.summary
    assert set(found.table["verdict"]) == {"only in a"}
    # No figure is missing a tolerance where there are none.
    assert len(simkv.compare(run, bad, rtol=0.0).failures) == 1
    assert simkv.compare(bad, run, rtol=0.0).exit_code == 0
    both = simkv.compare(bad, bad)
    assert both.exit_code == 0
    assert both.table.empty
    assert both.plots == ()
    assert "nothing ran in a and b" in both.verdict
    for comparison in (found, both):
        assert "would not start" in comparison.to_markdown()
        assert "would not start" in comparison.to_html()
    assert found.plot("oom").get_title(loc="left")


# ------------------------------------------------------------------------------------------------- the workload
def test_other_requests_are_told_loudly(run: Run) -> None:
    other = simkv.simulate(one(workload={**LOAD, "rate": 30}))
    found = simkv.compare(run, other)
    assert not found.same_workload
    assert found.warnings[0].startswith("THE WORKLOADS DIFFER: rate=60 and rate=30 did not get the same requests")
    assert not {"improved", "worse"} & set(found.table["verdict"])
    assert found.to_markdown().startswith("> **THE WORKLOADS DIFFER")
    page = found.to_html()
    assert page.index("THE WORKLOADS DIFFER") < page.index("<h1>")
    assert found.exit_code == 0
    for pair in ((run, other), (one(), other), (one(), one(seed=2))):
        with pytest.raises(ScenarioError, match="workload_sha256"):
            simkv.compare(*pair, same_workload=True)
    assert simkv.compare(run, one(), same_workload=True).exit_code == 0


# ------------------------------------------------------------------------------------------------- inputs, labels
def test_inputs_that_differ(run: Run) -> None:
    other = simkv.simulate(one(memory={"max_running_requests": 4}, checks={"requests.refused": "== 0"}))
    rows = {r["key"]: (r["a"], r["b"]) for r in simkv.compare(run, other).inputs.to_dict("records")}
    assert rows == {
        "memory.max_running_requests": (8, 4),
        'checks."requests.refused"': ("not stated", "== 0"),
    }


def test_flat_keys() -> None:
    assert flat({"a": {"b": {"c.d": 1}, "e": {}}, "f": [1]}) == {'a.b."c.d"': 1, "f": [1]}


def test_two_copies_of_one_trace_are_one_input(tmp_path: Any) -> None:
    runs = []
    for folder in ("base", "head"):
        place = tmp_path / folder
        place.mkdir()
        (place / "t.csv").write_text("timestamp,input_length,output_length\n0,10,5\n1,10,5\n")
        (place / "m.json").write_text(json.dumps(TINY))
        data = {**one().data, "workload": {"trace": "t.csv"}, "model": {"config": "m.json"}}
        runs.append(simkv.simulate(simkv.Scenario(data, "s.toml", place)))
    for section, key in (("workload", "trace"), ("model", "config")):
        assert runs[0].scenario[section][key] != runs[1].scenario[section][key]
    assert simkv.compare(*runs).inputs.empty
    (tmp_path / "head" / "m.json").write_text(json.dumps({**TINY, "vocab_size": 7}))
    assert simkv.compare(*runs).inputs["key"].tolist() == ["model.config"]


@pytest.mark.parametrize(
    ("a", "b", "labels"),
    [
        ({"policies": {"routing": "legacy"}}, {"policies": {"routing": "generalized"}}, ("legacy", "generalized")),
        ({"workload": {"rate": 1}}, {"workload": {"rate": 2.5}}, ("rate=1", "rate=2.5")),
        ({"x": {"on": True}}, {"x": {"on": False}}, ("on=true", "on=false")),
        ({"memory": {"weights": 7 << 30}}, {"memory": {"weights": 1 << 20}}, ("weights=7GiB", "weights=1MiB")),
        ({"m": {"a": 1, "b": 2}}, {"m": {"a": 2, "b": 3}}, ("a=1, b=2", "a=2, b=3")),
        ({"m": {"a": 1, "b": 2, "c": 3}}, {"m": {"a": 2, "b": 3, "c": 4}}, ("x", "y")),
        ({"name": "one", "m": 1}, {"name": "two", "m": 2}, ("one", "two")),
        ({}, {"m": {"a": "word"}}, ("a=not stated", "a=word")),
        ({}, {}, ("x", "y")),
        ({"m": "a" * 99}, {"m": "b" * 99}, ("x", "y")),
        ({"name": "a\nb", "m": 1}, {"name": "c", "m": 1}, ("x", "y")),
    ],
)
def test_labels_out_of_what_differs(a: Any, b: Any, labels: tuple[str, str]) -> None:
    assert default_labels((a, b), ("x", "y")) == labels


def test_labels_that_say_nothing(run: Run) -> None:
    assert default_labels(({}, {}), ("same", "same")) == ("a", "b")
    for bad in (("x", "x"), ("", "y"), ("a\n", "b"), ("x",), "ab", ("x", 5), ("x" * 80, "y")):
        with pytest.raises(ScenarioError):
            simkv.compare(run, run, labels=bad)  # type: ignore[arg-type]
    for stated, labels in ((("b", None), ("b", "a")), ((None, "x"), ("a", "x")), ((None, "a"), ("b", "a"))):
        half = simkv.compare(run, run, labels=stated)
        assert (half.a.label, half.b.label) == labels


# ------------------------------------------------------------------------------------------------- plan and words
def routing(rule: str, *changes: str) -> simkv.Scenario:
    base = simkv.load("routing-legacy-vs-generalized")
    return base.override(f"policies.routing={rule}", "workload.num_requests=40", *changes)


# Layers of the example: 6 full of 8 heads (4,096 B a token), 18 sliding of 4 heads (2,048 B), ratio 0.8, page 16, 6 GiB.
# Legacy charges three full layers more; generalized one full layer, and two rings at full capacity.
BUDGET = 6 << 30
PRICE = {
    "legacy": (6 + 3) * 4096 + 0.8 * 18 * 2048,
    "generalized": (6 + 1) * 4096 + 2 * 2048 + 0.8 * 18 * 2048,
}


def tokens_of(rule: str) -> tuple[int, int]:
    full = int(BUDGET / PRICE[rule]) // 16 * 16
    return full, int(full * 0.8) // 16 * 16


def overcommit_of(rule: str) -> int:
    swa = tokens_of(rule)[1]
    padding = 16 * (6 * 4096 + 18 * 2048)
    if rule == "legacy":
        # Each of three runners has two sliding layers in rows of the SWA pool, charged by nobody, and a full one.
        return padding + 3 * ((swa + 16) * 2 * 2048 + 16 * 4096)
    return padding + 16 * 4096 + 2 * 16 * 2048


def test_the_plan_side_by_side_by_hand() -> None:
    found = simkv.compare(routing("legacy"), routing("generalized"))
    assert (found.a.label, found.b.label) == ("legacy", "generalized")
    plan = {r["figure"]: (r["a"], r["b"], r["change"]) for r in found.plan.to_dict("records")}
    full, swa = zip(tokens_of("legacy"), tokens_of("generalized"), strict=True)
    over = overcommit_of("legacy"), overcommit_of("generalized")
    assert plan["full_max_total_num_tokens"] == (*full, full[1] - full[0])
    assert plan["swa_max_total_num_tokens"] == (*swa, swa[1] - swa[0])
    assert plan["overcommit_bytes"] == (*over, over[1] - over[0])
    # 16 GiB, an eighth of it outside the static fraction.
    assert plan["slack_bytes"] == (2 << 30, 2 << 30, 0)
    assert plan["fits_slack"] == (True, True, None)
    assert plan["draft_depths"][:2] == (3, 3)
    pools = {(r["worker"], r["pool"]): r for r in found.pools.to_dict("records")}
    assert list(pools)[:2] == [("target", "full"), ("target", "swa")]
    assert pools["draft0", "full"]["tokens_b"] is None
    assert pools["draft0", "swa"]["bytes_a"] == (swa[0] + 16) * 2 * 2048
    assert (pools["draft0", "swa"]["budgeted_bytes_a"], pools["draft0", "swa"]["tokens_b"]) == (0, full[1])
    text = " ".join(found.paragraph)
    assert f"Legacy allocates {over[0] / MIB:,.2f} MiB beyond its KV budget of 6.00 GiB" in text
    assert "K4: full capacity charged" in text
    assert "2.00 GiB outside mem_fraction_static: both fit" in text
    more = full[1] - full[0]
    assert f"holds {full[0]:,} tokens, that of generalized {full[1]:,}: {more:,} more (+{more / full[0]:.1%})" in text
    assert f"{PRICE['legacy']:,.1f} B against {PRICE['generalized']:,.1f} B" in text


def test_start_up_out_of_memory() -> None:
    # At 0.95 the slack is 0.8 GiB, less than what legacy does not charge; the pools get a fifth more.
    high = "memory.mem_fraction_static=0.95"
    found = simkv.compare(routing("generalized", high), routing("legacy", high))
    assert found.b.plan["slack_bytes"] < found.b.plan["overcommit_bytes"]
    assert found.exit_code == 1
    assert "legacy runs out of memory at start-up" in found.failures[0]
    assert "RUNS OUT OF MEMORY AT START-UP" in " ".join(found.paragraph)
    assert "does not fit" in found.to_html()
    assert simkv.compare(routing("legacy", high), routing("generalized", high)).exit_code == 0
    assert simkv.compare(routing("legacy", high), routing("legacy", high)).exit_code == 0


def test_the_show_case() -> None:
    """The smaller pools of the legacy rule make requests wait and retract more of them; words say what events hold."""
    base = simkv.load("routing-legacy-vs-generalized")
    runs = [simkv.simulate(base.override(f"policies.routing={rule}")) for rule in ("legacy", "generalized")]
    found = simkv.compare(*runs)
    counts = [int((run.events["event"] == "retraction").sum()) for run in runs]
    assert counts[0] >= 3 * counts[1] > 0
    assert runs[0].summary["limit.full"] > 2 * runs[1].summary["limit.full"]
    assert found.events["a"].sum() == counts[0]
    assert found.events["b"].sum() == counts[1]
    retracted = [int((run.requests["retractions"] > 0).sum()) for run in runs]
    first = runs[0].events[runs[0].events["event"] == "retraction"].iloc[0]
    text = " ".join(found.paragraph)
    assert f"{retracted[0]} requests were retracted with legacy, {retracted[1]} with generalized" in text
    assert f"first with legacy at {first['time_s']:,.1f} s in the full pool: {first['cause']}" in text
    assert row(found, "requests.retracted")["verdict"] == "improved"
    assert found.exit_code == 0


def test_budget_and_pool_of_one_kind(run: Run) -> None:
    twice = simkv.simulate(one(tokens=2000))
    text = " ".join(simkv.compare(run, twice).paragraph)
    assert "holds 1,000 tokens, that of" in text
    assert "2,000: 1,000 more (+100.0%); the KV budget is 250.00 KiB against 500.00 KiB" in text


def test_a_pool_that_appears(run: Run) -> None:
    found = simkv.compare(run, routing("generalized"))
    assert any("only" in line.lower() and "has a SWA pool" in line for line in found.paragraph)
    assert row(found, "swa_token_usage.peak")["verdict"] == "only in b"
    assert any(line.startswith("the models differ") for line in found.warnings)
    assert found.plot().get_legend() is not None


@pytest.mark.parametrize(
    ("figure", "value", "text"),
    [
        ("ttft_s.p99", 0.25, "250.00 ms"),
        ("e2e_latency_s.p50", 2.5, "2.50 s"),
        ("simulated_s", 3.0, "3.00 s"),
        ("draft_worker.busy_s", 3.0, "3.00 s"),
        ("output_tokens_per_s", 12.5, "12.5"),
        ("full_token_usage.peak", 0.5, "50.00%"),
        ("limit.full", 0.25, "25.00%"),
        ("overcommit_bytes", 3 * MIB, "3.00 MiB"),
        ("overcommit_bytes", -3 * MIB, "-3.00 MiB"),
        ("requests.completed", 1234, "1,234"),
        ("limit.binding", "full", "full"),
        ("cache_hit_rate", None, "-"),
    ],
)
def test_figures_as_text(figure: str, value: Any, text: str) -> None:
    assert figure_text(figure, value) == text


def test_relative_text() -> None:
    shares = (None, 0.25, -0.5, 1e-9, -1e-9, 12.0, 0.0)
    assert [relative_text(share) for share in shares] == [
        "-",
        "+25.0%",
        "-50.0%",
        "+<0.1%",
        "-<0.1%",
        "+1,200%",
        "+0.0%",
    ]


# ------------------------------------------------------------------------------------------------- pages
def test_pages_are_whole_and_the_same_each_time(run: Run) -> None:
    other = simkv.simulate(one(memory={"max_running_requests": 4}))
    found = simkv.compare(run, other)
    page = found.to_html()
    assert page == simkv.compare(run, simkv.simulate(one(memory={"max_running_requests": 4}))).to_html()
    assert page.startswith("<!DOCTYPE html>")
    for outside in ("http:", "https:", "<script", "<link", "@import", "url("):
        assert outside not in page
    assert page.count("data:image/png;base64,") == len(found.plots) == 4
    order = [
        "max_running_requests=4",
        "What differs in the inputs",
        "Memory plan",
        "What happened",
        "Figures that differ",
    ]
    places = [page.index(f"<h2>{part}</h2>") if part[0].isupper() else page.index(part) for part in order]
    assert places == sorted(places)
    assert page.index("<details><summary>all ") > places[-1]
    assert "workload_sha256" in page
    # Every figure that differs is there, in both.
    text = found.to_markdown()
    for name in found.changed["figure"]:
        assert f"| {name} |" in text
        assert f">{name}</td>" in page
    assert "<table" in found._repr_html_()


def test_names_are_escaped(run: Run) -> None:
    wild = replace(run, scenario={**run.scenario, "name": "<script>alert(1)</script>"})
    found = simkv.compare(wild, changed(wild, ttft_s__p99=9.0), labels=("a|b <i>", "`c` *d*"))
    assert "<script" not in found.to_html()
    assert "<script" not in found._repr_html_()
    text = found.to_markdown()
    assert "<i>" not in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert tables
    # Bars inside of labels are no columns.
    assert all("a|b" not in line for line in tables)


def test_the_machine_form_is_strict_json(run: Run) -> None:
    other = changed(run, cache_hit_rate=float("nan"), requests__retracted=np.int64(4))
    found = json.loads(json.dumps(simkv.compare(run, other, rtol=0.5).to_dict(), allow_nan=False))
    assert found["figures"]["cache_hit_rate"]["b"] is None
    assert found["figures"]["requests.retracted"]["b"] == 4
    assert found["tolerance"] == {"rtol": {"*": 0.5}, "atol": {}}
    assert found["exit_code"] == 1


def test_a_kind_of_figure_that_is_none(run: Run) -> None:
    with pytest.raises(ScenarioError, match="did you mean utilization"):
        simkv.compare(run, run).plot("utilisation")


# ------------------------------------------------------------------------------------------------- what is compared
def test_directories_dicts_and_names(run: Run, tmp_path: Any) -> None:
    run.save(tmp_path / "base", figures=False)
    simkv.simulate(one(), seed=0).save(tmp_path / "head", figures=False)
    found = simkv.compare(tmp_path / "base", str(tmp_path / "head" / "run.json"))
    assert (found.a.label, found.b.label) == ("base", "head")
    assert not found.table["changed"].any()
    assert simkv.compare(one().data, tmp_path / "base").exit_code == 0


def test_what_cannot_be_compared(run: Run, tmp_path: Any) -> None:
    with pytest.raises(ScenarioError) as caught:
        simkv.compare(tmp_path, "no-such")
    assert len(caught.value.problems) == 2
    for bad in (5, None, "", "\0", ["x"]):
        with pytest.raises(UserError):
            simkv.compare(bad, run)
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "run.json").write_text("{")
    with pytest.raises(ScenarioError, match="is no run directory"):
        simkv.compare(run, tmp_path / "half")


@pytest.mark.parametrize(
    "harm",
    [
        lambda d: d["plan"].pop("pools"),
        lambda d: d["plan"]["pools"][0].pop("worker"),
        lambda d: d["plan"].update(overcommit_bytes="x"),
        lambda d: d["summary"].update({"requests.completed": [1]}),
        lambda d: d.update(scenario=[]),
        lambda d: d.update(plan=None),
    ],
)
def test_a_run_directory_that_was_damaged(run: Run, tmp_path: Any, harm: Any) -> None:
    run.save(tmp_path / "bad", figures=False)
    path = tmp_path / "bad" / "run.json"
    data = json.loads(path.read_text())
    harm(data)
    path.write_text(json.dumps(data))
    with pytest.raises(ScenarioError, match="run it again"):
        simkv.compare(run, tmp_path / "bad")


def test_half_a_comparison_is_none(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr("simkv.comparison.outcome.simulate", lambda *_, **__: replace(run, partial=True))
    with pytest.raises(KeyboardInterrupt):
        simkv.compare(one(), one())


# ------------------------------------------------------------------------------------------------- sweeps
def a_sweep(rows: list[dict[str, Any]], axes: tuple[str, ...] = ("draft.num_steps",), **scenario: Any) -> Any:
    filled = [{"state": "ok", "error": "", "exit_code": 0, "checks_hold": None, **one} for one in rows]
    return SimpleNamespace(frame=pd.DataFrame(filled), axes=list(axes), scenario={"name": "s", **scenario})


def points(**figures: list[Any]) -> list[dict[str, Any]]:
    steps = range(1, 1 + len(next(iter(figures.values()))))
    named = {name.replace("__", "."): values for name, values in figures.items()}
    return [{"draft.num_steps": n, **{k: v[n - 1] for k, v in named.items()}} for n in steps]


def test_sweeps_are_joined_on_their_axes() -> None:
    a = a_sweep(points(requests__retracted=[0, 4, 9], ttft_s__p99=[1.0, 2.0, 3.0]))
    rows = points(requests__retracted=[0, 2, 9], ttft_s__p99=[1.0, 2.0, 3.0])
    b = a_sweep([*reversed(rows), {"draft.num_steps": 7, "requests.retracted": 1, "ttft_s.p99": 1.0}], cache="on")
    found = simkv.compare(a, b, labels=("off", "on"))
    assert found.axes == ("draft.num_steps",)
    [only] = found.changed.to_dict("records")
    assert (only["draft.num_steps"], only["figure"], only["a"], only["b"], only["change"]) == (
        2,
        "requests.retracted",
        4,
        2,
        -2,
    )
    assert only["verdict"] == "improved"
    assert found.points["in"].tolist() == ["both", "both", "both", "only b"]
    assert "1 of 4 points are only in on" in found.warnings[0]
    assert found.inputs["key"].tolist() == ["cache"]
    assert "most at draft.num_steps = 2: 4 with off, 2 with on" in found.paragraph[0]
    assert found.exit_code == 0
    axes = found.plot("requests.retracted")
    solid, dashed = axes.lines
    assert solid.get_xdata().tolist() == [1, 2, 3]
    assert (solid.get_ydata().tolist(), dashed.get_ydata().tolist()) == ([0, 4, 9], [0, 2, 9])
    assert axes.get_xlabel() == "draft.num_steps"
    assert found.to_html().count("data:image/png") == 2
    assert "requests.retracted" in found._repr_html_()
    assert "requests.retracted" in found.to_markdown()
    json.dumps(found.to_dict(), allow_nan=False)


def test_sweeps_as_simkv_makes_them(tmp_path: Any) -> None:
    axes = {"memory.max_running_requests": [2, 8], "memory.kv_bytes": [0, 256_000]}
    made = [simkv.sweep(one(policies={"routing": rule}), axes, n_jobs=1) for rule in ("legacy", "generalized")]
    found = simkv.compare(*made)
    assert (found.a.label, found.b.label) == ("legacy", "generalized")
    assert found.axes == ("memory.max_running_requests", "memory.kv_bytes")
    assert found.points["state_a"].tolist() == ["infeasible", "ok"] * 2
    # Nothing is drafted, so no rule of drafts has anything to say.
    assert not found.table["changed"].any()
    assert found.same_workload is True
    assert found.exit_code == 0
    for name, sweep in zip(("base", "head"), made, strict=True):
        sweep.save(tmp_path / name, figures=False)
    again = simkv.compare(tmp_path / "base", tmp_path / "head", labels=("x", None))
    assert again.a.label == "x"
    assert again.table["b"].tolist() == found.table["b"].tolist()
    json.dumps(again.to_dict(), allow_nan=False)
    worse = simkv.sweep(one(), {"memory.max_running_requests": [2], "memory.kv_bytes": [0]}, n_jobs=1)
    better = simkv.sweep(one(tokens=999), {"memory.max_running_requests": [2], "memory.page_size": [1]}, n_jobs=1)
    failed = simkv.compare(better, worse)
    assert "memory.max_running_requests = 2: " in failed.failures[0]
    assert "is infeasible" in failed.failures[0]


def test_points_that_have_not_run() -> None:
    rows = points(requests__retracted=[0, None])
    rows[1]["state"] = "not run"
    found = simkv.compare(a_sweep(points(requests__retracted=[0, 1])), a_sweep(rows))
    assert found.exit_code == 0
    assert found.warnings == ("b is partial: 1 of its 2 points have not run",)


def test_sweeps_that_fail() -> None:
    a = a_sweep(points(requests__retracted=[0, 4, 9]))
    rows = points(requests__retracted=[0, None, 12])
    rows[1] |= {"state": "infeasible", "exit_code": 3, "error": "no room"}
    found = simkv.compare(a, a_sweep(rows), atol=2)
    assert found.failures[0] == "draft.num_steps = 2: b is infeasible: no room"
    assert found.failures[1].startswith("draft.num_steps = 3: requests.retracted is beyond its tolerance of 2")
    assert len(found.failures) == 2
    assert found.exit_code == 1
    held, fails = (a_sweep([{**points(x__y=[1])[0], "checks_hold": holds}]) for holds in (True, False))
    assert "a check held with a and does not with b" in simkv.compare(held, fails).failures[0]
    assert simkv.compare(fails, held).exit_code == 0


def test_sweeps_of_other_requests() -> None:
    a = a_sweep(points(requests__retracted=[4]), workload={"rate": 1})
    b = a_sweep(points(requests__retracted=[2]), workload={"rate": 2})
    found = simkv.compare(a, b)
    assert found.warnings[0].startswith("THE WORKLOADS DIFFER")
    assert found.table["verdict"].tolist() == ["changed"]
    with pytest.raises(ScenarioError, match="workload_sha256"):
        simkv.compare(a, b, same_workload=True)


def test_sweeps_that_cannot_be_joined(run: Run) -> None:
    a = a_sweep(points(x__y=[1, 2]))
    wide = a_sweep([{"draft.num_steps": 1, "seed": n, "x.y": n} for n in (1, 2)], axes=("draft.num_steps", "seed"))
    for other, words in (
        (a_sweep([{"seed": 1, "x.y": 1}], axes=("seed",)), "no axis in common"),
        (wide, "it also varies seed"),
        (a_sweep([{"draft.num_steps": 9, "x.y": 1}]), "no point in common"),
        (run, "a sweep is compared with a sweep"),
    ):
        with pytest.raises(ScenarioError, match=words):
            simkv.compare(a, other)
    # Two axes of which both have the same one value are told apart by neither.
    narrow = a_sweep([{"draft.num_steps": 1, "seed": 3, "x.y": 5}], axes=("draft.num_steps", "seed"))
    found = simkv.compare(a, narrow)
    assert any("only b varies seed" in line for line in found.warnings)


def test_a_sweep_over_words_and_two_axes() -> None:
    rows = [
        {"policies.routing": rule, "seed": seed, "requests.retracted": value}
        for rule, seed, value in (("legacy", 1, 4), ("generalized", 1, 2), ("legacy", 2, math.nan))
    ]
    one = a_sweep(rows, axes=("policies.routing", "seed"))
    found = simkv.compare(one, one)
    drawn = found.plot("requests.retracted")
    assert [text.get_text() for text in drawn.get_xticklabels()] == ["legacy", "generalized"]
    assert len(drawn.lines) == 2
    with pytest.raises(ScenarioError, match="is no figure that both sweeps have"):
        found.plot("requests")


def test_sweeps_meet_at_equal_values_whatever_else_is_on_the_axis() -> None:
    base = simkv.load("gpt-oss-120b-eagle3").override("workload.num_requests=3")
    key = "memory.max_running_requests"
    numbers = simkv.sweep(base, {key: [3, 4]})
    words = simkv.sweep(base, {key: ["pool", 3, 4]})
    for found in (simkv.compare(numbers, words), simkv.compare(words, numbers)):
        assert sorted(found.points["in"].tolist()) == sorted(
            ["both", "both", "only b" if found.a.frame.shape[0] == 2 else "only a"]
        )
