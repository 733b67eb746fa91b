"""``simkv compare`` as a person calls it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import simkv
from simkv.cli import main

# One request of 30 tokens, a step of 10 or 20 ms each.
ALONE = ("--set", "workload.num_requests=1", "--set", "checks={}")
SLOW = (*ALONE, "--set-b", "steptime.ms=20")


def strict(text: str) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    return json.loads(text, parse_constant=refuse)


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize(
    "words", [["compare"], ["baseline"], ["baseline", "save"], ["baseline", "check"]], ids=" ".join
)
def test_help_says_what_everything_is(call: Any, words: list[str]) -> None:
    found = call(*words, "--help")
    assert found.code == 0
    assert f"Usage: simkv {' '.join(words)}" in found.out
    for line in found.out.splitlines():
        option = re.match(r"│\s+\*?\s*(--[a-z-]+|[AB]|DIRECTORY)\s+(\S.*)?│", line)
        if option:
            assert len(re.sub(r"(PATH|STR)(\.\.\.)?", "", option[2] or "").split()) > 2, line


def test_help_does_not_load_what_is_heavy() -> None:
    probe = (
        "import sys; from simkv.cli import main; main(['compare', '--help']); "
        "bad = {'pandas', 'matplotlib', 'jinja2', 'pydantic'} & set(sys.modules); assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True, timeout=60)


def test_a_scenario_against_itself(call: Any) -> None:
    found = call("compare", "s.toml", "s.toml", "--only-changed")
    assert found.code == 0
    assert found.err == ""
    assert re.match(r"tiny: a against b\nno figure differs \(\d+ compared\)\n", found.out)
    assert "the two scenarios are the same" in found.out
    assert re.search(r"^figures that differ: 0 of \d+: none$", found.out, re.MULTILINE)


def test_what_differs_is_what_they_are_called(call: Any) -> None:
    found = call("compare", "s.toml", "s.toml", *SLOW)
    assert found.out.startswith("tiny: ms=10 against ms=20\n")
    assert re.search(r"^ steptime.ms +10 +20 *$", found.out, re.MULTILINE)
    assert re.search(r"^ tpot_s.p50 +10.00 ms +20.00 ms +\+10.00 ms +\+100.0% +worse *$", found.out, re.MULTILINE)
    assert re.search(r"^ requests.completed +1 +1 +0 +\+0.0% +same *$", found.out, re.MULTILINE)
    assert found.code == 0
    fewer = call("compare", "s.toml", "s.toml", *SLOW, "--only-changed").out
    assert "requests.completed" not in fewer.partition("figures that differ")[2]
    assert "tpot_s.p50" in fewer


def test_labels_of_ones_own(call: Any) -> None:
    assert call("compare", "s.toml", "s.toml", "--label-a", "old", "--label-b", "new").out.startswith(
        "tiny: old against new\n"
    )
    bad = call("compare", "s.toml", "s.toml", "--label-a", "x", "--label-b", "x")
    assert bad.code == 2
    assert "--label-b" in bad.err


def test_overrides_of_both_and_of_one(call: Any) -> None:
    found = strict(
        call(
            *("compare", "s.toml", "s.toml", "--set", "memory.max_running_requests=3"),
            *("--set-a", "policies.routing=legacy", "--set-b", "memory.max_running_requests=2", "--json"),
        ).out
    )
    rows = {row["key"]: (row["a"], row["b"]) for row in found["inputs"]}
    assert rows == {"memory.max_running_requests": (3, 2), "policies.routing": ("legacy", "generalized")}
    assert found["figures"]["max_running_requests"]["change"] == -1


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ([], 0),
        (["--rtol", "0.99"], 1),
        (["--rtol", "1e9"], 0),
        (["--rtol", "tpot_s.*=1.01"], 0),
        (["--rtol", "tpot_s.*=0.99"], 1),
        (["--atol", "tpot_s.p50=0.0100001"], 0),
        (["--atol", "tpot_s.p50=0.0099"], 1),
    ],
)
def test_tolerances(call: Any, options: list[str], code: int) -> None:
    found = call("compare", "s.toml", "s.toml", *SLOW, "--json", *options)
    assert found.code == code
    assert strict(found.out)["exit_code"] == code


def test_a_check_that_does_not_hold_any_more(call: Any) -> None:
    change = (*SLOW, "--set", 'checks."tpot_s.p50"="< 0.015"')
    found = call("compare", "s.toml", "s.toml", *change)
    assert found.code == 1
    told = "FAILS: the check tpot_s.p50 < 0.015 held and does not any more: 10.00 ms in ms=10, 20.00 ms in ms=20"
    assert told in " ".join(found.out.split())
    # Both fail it, or only the first one did.
    assert call("compare", "s.toml", "s.toml", *change, "--set-a", "steptime.ms=20").code == 0
    assert (
        call("compare", "s.toml", "s.toml", *change, "--set-a", "steptime.ms=20", "--set-b", "steptime.ms=10").code == 0
    )


def test_a_server_that_would_not_start(call: Any) -> None:
    found = call("compare", "s.toml", "s.toml", "--set-b", "memory.kv_bytes=0", "--label-b", "none")
    assert found.code == 1
    assert "FAILS: none would not start" in " ".join(found.out.split())
    assert call("compare", "s.toml", "s.toml", "--set-a", "memory.kv_bytes=0", "--label-b", "none").code == 0


def test_run_directories(call: Any, here: Path) -> None:
    for name in ("base", "head"):
        simkv.simulate(simkv.load("s.toml"), seed=0).save(here / name, figures=False)
    found = call("compare", "base", "head")
    assert found.code == 0
    assert found.out.startswith("tiny: base against head\nno figure differs")
    mixed = call("compare", "base", "s.toml", "--set-b", "steptime.ms=20")
    assert mixed.out.startswith("tiny: ms=10 against ms=20")
    # What was simulated already does not change.
    for words in (("--set", "seed=3"), ("--set-a", "seed=3")):
        bad = call("compare", "base", "s.toml", *words)
        assert bad.code == 2
        assert "is a run directory, which has been simulated already" in bad.err


def test_other_requests(call: Any) -> None:
    words = ("compare", "s.toml", "s.toml", "--set-b", "workload.rate=40")
    found = call(*words)
    assert found.code == 0
    assert found.out.startswith("THE WORKLOADS DIFFER: rate=50 and rate=40 did not get the same requests")
    assert not re.search(r"[-%] +(worse|improved) *$", found.out, re.MULTILINE)
    refused = call(*words, "--same-workload", "--html", "x.html")
    assert (refused.code, refused.out) == (2, "")
    assert "workload_sha256" in refused.err
    assert not Path("x.html").exists()


# ------------------------------------------------------------------------------------------------- files
def test_files_are_written_whole_or_not_at_all(call: Any, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (
        "compare",
        "s.toml",
        "s.toml",
        *SLOW,
        "--html",
        "out/c.html",
        "--md",
        "out/c.md",
        "--figures",
        "out/pictures",
    )
    found = call(*words)
    assert found.code == 0
    assert "out/c.html" in found.out
    made = {"out/c.html", "out/c.md"} | {
        f"out/pictures/{k}.png" for k in ("utilization", "oom", "concurrency", "eviction")
    }
    assert everything(here) >= made
    assert not [name for name in everything(here) if ".simkv" in name]
    first = {name: (here / name).read_bytes() for name in made}
    assert first["out/c.md"].decode().startswith("## tiny: ms=10 against ms=20")
    # Once more is an overwrite, which has to be meant.
    refused = call(*words)
    assert refused.code == 2
    assert refused.err.count("pass --force") == 3
    assert call(*words, "--force").code == 0
    assert {name: (here / name).read_bytes() for name in made} == first

    def fails(*_: Any) -> bytes:
        raise RuntimeError("while drawing")

    monkeypatch.setattr("simkv.comparison.page.picture_bytes", fails)
    with pytest.raises(RuntimeError, match="while drawing"):
        main([*words, "--force", "--set-b", "steptime.ms=30"])
    assert {name: (here / name).read_bytes() for name in made} == first


def test_figures_do_not_replace_anything_else(call: Any, here: Path) -> None:
    (here / "mine").mkdir()
    (here / "mine" / "notes.txt").write_text("dear diary")
    found = call("compare", "s.toml", "s.toml", "--figures", "mine", "--force")
    assert found.code == 2
    assert "holds other things (notes.txt)" in found.err
    assert (here / "mine" / "notes.txt").read_text() == "dear diary"
    assert call("compare", "s.toml", "s.toml", "--figures", "s.toml", "--force").code == 2
    (here / "empty").mkdir()
    assert call("compare", "s.toml", "s.toml", "--figures", "empty").code == 0


def test_every_problem_of_a_command_line_at_once(call: Any, here: Path) -> None:
    before = everything(here)
    found = call("compare", "s.toml", "s.toml", "--html", ".", "--md", "s.toml", "--rtol", "x", "--atol", "y=-1")
    assert (found.code, found.out) == (2, "")
    assert "4 problems in the command line" in found.err
    for place in ("--html", "--md", "--rtol", "--atol"):
        assert re.search(rf"^  {place} ", found.err, re.MULTILINE), place
    assert everything(here) == before
    same = call("compare", "s.toml", "s.toml", "--html", "p", "--md", "./p")
    assert same.code == 2
    assert "name the same place" in same.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("retraction-strm", "s.toml"), "did you mean retraction-storm?"),
        (("s.toml", "nosuch.toml"), "cannot be read"),
        (("nosuch", "neither"), "2 problems in nosuch and neither"),
        (("s.toml", "t.jsonl"), "is not valid TOML"),
        (("s.toml", "s.toml", "--set-b", "memory.pagesize=1"), "did you mean page_size?"),
        (("s.toml", "s.toml", "--rtol", "ttft=1"), "is no figure"),
        (("s.toml",), "B"),
        (("s.toml", "s.toml", "--htm", "x"), "--html"),
        (("", ""), "is no file and no built-in scenario"),
        (("s.toml", "s.toml", "--html", "a\0b"), "cannot be written"),
        (("s.toml", "s.toml", "--html", "s.toml/x.html"), "cannot be written"),
    ],
)
def test_what_is_wrong_is_told(call: Any, words: tuple[str, ...], told: str) -> None:
    found = call("compare", *words)
    assert (found.code, found.out) == (2, "")
    assert told in found.err


def test_the_same_bytes_whatever_the_hash_seed(call: Any) -> None:
    words = ["compare", "s.toml", "s.toml", *SLOW, "--json", "--md", "out.md", "--force"]
    here = call(*words).out, Path("out.md").read_bytes()
    command = [sys.executable, "-m", "simkv.cli", *words]
    seeded = {**os.environ, "PYTHONHASHSEED": "4711"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=seeded)
    assert (done.stdout, Path("out.md").read_bytes()) == here
