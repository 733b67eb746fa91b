"""Golden figures: what is saved, what a check finds, and the golden figures of the built-in scenarios themselves."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import simkv
from simkv.baseline import POINTS, check_baseline, save_baseline
from simkv.errors import ScenarioError
from simkv.scenario import builtin_names

GOLDEN = Path(__file__).resolve().parents[1] / "baselines"


def edited(path: Path, **changes: Any) -> None:
    """Change figures of a saved summary; ``tokens__input`` is ``tokens.input``."""
    data = json.loads(path.read_text())
    data["summary"] |= {name.replace("__", "."): value for name, value in changes.items()}
    path.write_text(json.dumps(data))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# ------------------------------------------------------------------------------------------------- the golden figures
def test_the_golden_figures_of_the_built_in_scenarios() -> None:
    """How to save them again: tests/baselines/baseline.toml."""
    found = check_baseline(GOLDEN)
    assert set(found.comparisons) == set(builtin_names())
    assert found.exit_code == 0, "\n".join(
        f"{name}: {line}" for name, one in found.drifted.items() for line in one.failures
    )


def test_golden_files_are_small_and_portable() -> None:
    for path in GOLDEN.glob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert len(text) < 24_000, path
        assert '"/' not in text, path


# ------------------------------------------------------------------------------------------------- save
def test_what_is_saved(call: Any, here: Path) -> None:
    found = call("baseline", "save", "gold", "s.toml", "--set", "workload.rate=20")
    assert found.code == 0
    assert "- tiny.json" in found.out
    data = json.loads((here / "gold" / "tiny.json").read_text())
    run = simkv.simulate(simkv.load("s.toml").override("workload.rate=20"))
    assert data["provenance"]["workload_sha256"] == run.provenance["workload_sha256"]
    assert data["source"] == {"file": "../s.toml"}
    assert data["overrides"] == ["workload.rate=20"]
    assert data["scenario"]["model"]["config"] == "../m.json"
    assert set(data["summary"]) == set(run.summary.index)
    for name, value in run.summary.items():
        if isinstance(value, float) and value != value:
            value = None
        assert data["summary"][name] == value, name
    assert data["refusal"] is data["fault"] is None


def test_saving_twice_gives_the_same_bytes(call: Any, here: Path) -> None:
    words = ("baseline", "save", "gold", "s.toml", "retraction-storm", "--set", "workload.num_requests=30")
    assert call(*words).code == 0
    first = contents(here / "gold")
    assert set(first) == {"tiny.json", "retraction-storm.json"}
    (here / "gold" / "mine.txt").write_text("notes")
    again = call(*words)
    assert (again.code, again.out) == (2, "")
    assert again.err.count("pass --force") == 2
    assert call(*words, "--force").code == 0
    assert contents(here / "gold") == {**first, "mine.txt": b"notes"}
    # The order in which they are named is nobody's business.
    assert call("baseline", "save", "other", "retraction-storm", "s.toml", *words[-2:]).code == 0
    assert contents(here / "other") == first


def test_a_line_a_figure(here: Path) -> None:
    save_baseline("gold", ["s.toml"])
    lines = (here / "gold" / "tiny.json").read_text().splitlines()
    assert '  "requests.completed": 20,' in lines
    keys = [match[1] for line in lines if (match := re.match(r' "(\w+)":', line))]
    assert keys == sorted(keys)


@pytest.mark.parametrize("name", ["retraction-storm", "step-3.5-flash"])
def test_curves_are_short_and_add_up(here: Path, name: str) -> None:
    base = simkv.load(name).override("workload.num_requests=70", "checks={}")
    run = simkv.simulate(base)
    save_baseline("gold", [base])
    curve = json.loads((here / "gold" / f"{name}.json").read_text())["curve"]
    assert len(run.timeline) > POINTS >= len(curve["time_s"]) > POINTS // 4
    assert {len(values) for values in curve.values()} == {len(curve["time_s"])}
    sums = {n for n in curve if n.endswith(("_reqs", "_tokens")) and not n.startswith(("num_running", "num_queue"))}
    for column in sums:
        assert sum(curve[column]) == run.timeline[column].sum(), column
    # The area under a curve of means is the area under the run, up to the digits that are kept.
    time, usage = run.timeline["time_s"].to_numpy(), run.timeline["full_token_usage"].to_numpy()
    area = sum(u * (t1 - t0) for u, t0, t1 in zip(usage, time, time[1:], strict=False))
    kept = sum(
        u * (t1 - t0)
        for u, t0, t1 in zip(curve["full_token_usage"], curve["time_s"], curve["time_s"][1:], strict=False)
    )
    assert kept == pytest.approx(area, abs=1e-4 * time[-1])


def test_what_cannot_be_saved(call: Any, here: Path) -> None:
    (here / "other.toml").write_text((here / "s.toml").read_text())
    found = call("baseline", "save", "gold", "s.toml", "other.toml")
    assert found.code == 2
    assert "rename one of them" in found.err
    assert call("baseline", "save", "s.toml", "s.toml").code == 2
    both = call("baseline", "save", "gold", "retraction-strm", "nosuch")
    assert "2 problems in retraction-strm, nosuch" in both.err
    assert "did you mean retraction-storm" in both.err
    simkv.simulate("s.toml").save(here / "run", figures=False)
    assert "a directory of results" in call("baseline", "save", "run", "s.toml", "--force").err
    assert not (here / "gold").exists()
    own = simkv.load("s.toml").with_arch(simkv.Arch.from_config("llama-3.1-8b"))
    with pytest.raises(ScenarioError, match="objects given in Python"):
        save_baseline("gold", [own])


# ------------------------------------------------------------------------------------------------- check
def test_a_check_of_what_was_saved(call: Any, here: Path) -> None:
    save_baseline("gold", ["s.toml"])
    found = call("baseline", "check", "gold")
    assert found.code == 0
    assert re.match(r"1 scenario as saved, \d+ figures\n", found.out)
    assert json.loads(call("baseline", "check", "gold", "--json").out)["exit_code"] == 0


def test_a_drift(call: Any, here: Path) -> None:
    save_baseline("gold", ["s.toml"])
    path = here / "gold" / "tiny.json"
    saved = json.loads(path.read_text())["summary"]["tokens.input"]
    edited(path, tokens__input=saved + 1)
    found = call("baseline", "check", "gold", "--html", "d.html", "--md", "d.md", "--figures", "d")
    assert found.code == 1
    assert "1 of 1 scenario drifted: tiny" in found.out
    assert re.search(rf"^ tokens.input +{saved + 1:,} +{saved:,} +-1 ", found.out, re.MULTILINE)
    assert "tiny" in (here / "d.html").read_text()
    assert (here / "d.html").read_text().count("data:image/png") == 4
    assert "tokens.input" in (here / "d.md").read_text()
    assert {p.name for p in (here / "d").iterdir()} == {
        f"tiny-{k}.png" for k in ("utilization", "oom", "concurrency", "eviction")
    }
    table = check_baseline("gold").table
    assert table[["scenario", "figure", "a", "b"]].values.tolist() == [["tiny", "tokens.input", saved + 1, saved]]


def test_a_drift_is_drawn_without_the_version_that_saved_it(here: Path) -> None:
    base = simkv.load("retraction-storm").override("workload.num_requests=300", "checks={}")
    run = simkv.simulate(base)
    save_baseline("gold", [base])
    path = here / "gold" / "retraction-storm.json"
    edited(path, tokens__input=1)
    [found] = check_baseline("gold").comparisons.values()
    retracted = int(run.summary["requests.retractions"])
    drawn = {str(line.get_label()).replace("\n  ", " "): line for line in found.plot("oom").lines}
    old, new = (drawn[f"{label}: retraction, full ({retracted})"] for label in ("baseline", "now"))
    assert old.get_ydata()[-1] == new.get_ydata()[-1] == retracted > 0
    # What the means of a curve do not know is known all the same.
    peak = f"{100 * run.summary['full_token_usage.peak']:.3g}"
    labels = [line.get_label() for line in found.plot("utilization").lines]
    assert labels[:2] == [f"baseline: full (peak {peak} %)", f"now: full (peak {peak} %)"]


def test_the_smallest_drift_of_a_float(here: Path) -> None:
    save_baseline("gold", ["s.toml"])
    path = here / "gold" / "tiny.json"
    value = json.loads(path.read_text())["summary"]["ttft_s.p99"]
    edited(path, ttft_s__p99=value * (1 + 1e-12))
    assert check_baseline("gold").exit_code == 1
    assert check_baseline("gold", rtol={"ttft_s.*": 1e-9}).exit_code == 0
    # What is named is tolerated, and nothing else.
    assert check_baseline("gold", rtol={"tpot_s.*": 1e-9}).exit_code == 1


def test_tolerances_beside_the_baseline(call: Any, here: Path) -> None:
    save_baseline("gold", ["s.toml"])
    saved = json.loads((here / "gold" / "tiny.json").read_text())["summary"]["tokens.input"]
    edited(here / "gold" / "tiny.json", tokens__input=saved + 3)
    settings = here / "gold" / "baseline.toml"
    settings.write_text('[atol]\n"tokens.*" = 3\n')
    assert call("baseline", "check", "gold").code == 0
    # What the command line states replaces it.
    assert call("baseline", "check", "gold", "--atol", "tokens.input=2").code == 1
    assert call("baseline", "check", "gold", "--atol", "3").code == 0
    settings.write_text("rtol = 0.5\n")
    assert call("baseline", "check", "gold").code == 0
    settings.write_text('rtoll = 1\natol = "x"\n[rtol]\n"tokns.input" = 1\n"requests.*" = -1\n')
    found = call("baseline", "check", "gold")
    assert (found.code, found.out) == (2, "")
    for told in ("did you mean rtol?", "'x' is not a number", "-1 is not a finite number"):
        assert told in found.err
    settings.write_text('[rtol]\n"tokns.input" = 1\n')
    assert "did you mean tokens.input?" in call("baseline", "check", "gold").err
    settings.write_text("rtol = [")
    assert call("baseline", "check", "gold").code == 2


def test_a_plan_that_changed_is_a_drift(here: Path) -> None:
    save_baseline("gold", ["s.toml"])
    path = here / "gold" / "tiny.json"
    data = json.loads(path.read_text())
    data["plan"]["pools"][0]["bytes"] += 256
    path.write_text(json.dumps(data))
    [found] = check_baseline("gold", rtol=1.0).comparisons.values()
    assert len(found.failures) == 1
    assert found.failures[0] == "plan: target full: bytes was 256,512, is 256,256"


def test_a_scenario_that_changed_is_refused(call: Any, here: Path) -> None:
    save_baseline("gold", ["s.toml"], overrides=["memory.page_size=2"])
    text = (here / "s.toml").read_text()
    (here / "s.toml").write_text(text.replace("rate = 50", "rate = 40").replace("max_running_requests = 4\n", ""))
    found = call("baseline", "check", "gold")
    assert (found.code, found.out) == (2, "")
    assert "workload.rate was 50" in found.err
    assert "is 40" in found.err
    assert "memory.max_running_requests was 4, is 'not stated'" in found.err
    assert "simkv baseline save gold ../s.toml --set 'memory.page_size=2' --force" in found.err
    # What only says what it is about may be said better.
    (here / "s.toml").write_text('description = "better words"\n' + text)
    assert call("baseline", "check", "gold").code == 0
    (here / "s.toml").unlink()
    assert "cannot be read" in call("baseline", "check", "gold").err


def test_requests_that_changed_are_refused(call: Any, here: Path) -> None:
    save_baseline("gold", ["s.toml"], overrides=["workload.trace=t.jsonl", "checks={}"])
    assert call("baseline", "check", "gold").code == 0
    (here / "t.jsonl").write_text((here / "t.jsonl").read_text().replace('"input_tokens": 5', '"input_tokens": 9'))
    found = call("baseline", "check", "gold")
    assert found.code == 2
    assert "the requests are not those that were saved" in found.err
    assert "save it again: simkv baseline save gold" in found.err


def test_a_baseline_moves_with_its_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_baseline("gold", ["s.toml"])
    elsewhere = here.parent / f"{here.name}-moved"
    here.rename(elsewhere)
    monkeypatch.chdir(elsewhere.parent)
    assert check_baseline(elsewhere / "gold").exit_code == 0
    elsewhere.rename(here)


def test_what_is_no_baseline(call: Any, here: Path) -> None:
    assert "cannot be read" in call("baseline", "check", "nowhere").err
    (here / "empty").mkdir()
    assert "make one with: simkv baseline save empty" in call("baseline", "check", "empty").err
    save_baseline("gold", ["s.toml"])
    good = (here / "gold" / "tiny.json").read_text()
    for bad in (
        "",
        "[]",
        "{}",
        good.replace('"schema": 1', '"schema": 99'),
        good.replace('"curve": {', '"curves": {'),
        good.replace('"full_max_total_num_tokens"', '"x"').replace('"pools"', '"lakes"'),
        good.replace('"holds"', '"hold"'),
        good.replace('"requests.completed": 20', '"requests.completed": [20]'),
        good.replace('"time_s": [0', '"time_s": ["0"'),
        good.replace('"memory": {', '"memory": {"page_siz": 1, '),
    ):
        (here / "gold" / "tiny.json").write_text(bad)
        found = call("baseline", "check", "gold")
        assert (found.code, found.out) == (2, ""), bad[:60]


def test_every_damaged_file_is_told_at_once(call: Any, here: Path) -> None:
    save_baseline("gold", ["s.toml"])
    for name in ("a", "b"):
        (here / "gold" / f"{name}.json").write_text("{")
    (here / "gold" / "baseline.toml").write_text("rtol = -1")
    assert "3 problems in gold" in call("baseline", "check", "gold").err


def test_a_server_that_would_not_start(here: Path) -> None:
    save_baseline("gold", ["s.toml"], overrides=["memory.kv_bytes=0"])
    assert check_baseline("gold").exit_code == 0
    path = here / "gold" / "tiny.json"
    data = json.loads(path.read_text())
    assert data["refusal"]["engine_error"]
    # It was said to start.
    save_baseline("good", ["s.toml"])
    good = json.loads((here / "good" / "tiny.json").read_text())
    for key in ("scenario", "overrides"):
        good[key] = data[key]
    path.write_text(json.dumps(good))
    [found] = check_baseline("gold").comparisons.values()
    assert found.exit_code == 1
    assert any("would not start" in line for line in found.failures)


def test_a_fault_that_is_gone_is_a_drift(here: Path) -> None:
    save_baseline("gold", ["s.toml"])
    path = here / "gold" / "tiny.json"
    data = json.loads(path.read_text())
    data["fault"] = {"fault": "F1", "message": "lost"}
    path.write_text(json.dumps(data))
    [found] = check_baseline("gold").comparisons.values()
    assert "the engine broke (F1) and now does not" in found.failures


def test_half_a_check_is_none(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    save_baseline("gold", ["s.toml"])
    run = simkv.simulate("s.toml")
    monkeypatch.setattr("simkv.comparison.outcome.simulate", lambda *_, **__: replace(run, partial=True))
    with pytest.raises(KeyboardInterrupt):
        check_baseline("gold")
    with pytest.raises(KeyboardInterrupt):
        save_baseline("new", ["s.toml"])
    assert not (here / "new").exists()
