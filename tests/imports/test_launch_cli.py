"""``simkv import-launch`` as a person types it."""

from __future__ import annotations

import io
import json
import tomllib
from pathlib import Path

import pytest

import simkv
from simkv.cli import main

LINE = "python -m sglang.launch_server --model-path openai/gpt-oss-120b --tp 2 --host 0.0.0.0"


def test_the_scenario_is_on_stdout_and_the_flags_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import-launch", LINE, "--gpu", "h100"]) == 0
    out, err = capsys.readouterr()
    data = tomllib.loads(out)
    assert data["model"] == {"config": "gpt-oss-120b", "tp_size": 2}
    assert "tp_size = 2  # --tp-size" in out
    assert "--host" in err
    assert "no effect" in err


def test_the_command_may_come_on_stdin(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(LINE + "\n"))
    assert main(["import-launch", "-", "--gpu", "h100"]) == 0
    assert tomllib.loads(capsys.readouterr().out)["model"]["config"] == "gpt-oss-120b"


def test_the_command_may_be_flags_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import-launch", "--gpu", "h100", "--model-path openai/gpt-oss-120b --tp 2"]) == 0
    assert tomllib.loads(capsys.readouterr().out)["model"]["tp_size"] == 2


def test_the_file_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new" / "s.toml"
    assert main(["import-launch", LINE, "--gpu", "h100", "--out", str(file), "--workload", "retraction-storm"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["size", str(file)]) == 0
    assert "gpt-oss-120b" in capsys.readouterr().out
    assert simkv.load(file).document.workload is not None
    before = file.read_text()
    assert main(["import-launch", LINE, "--gpu", "b200", "--out", str(file)]) == 2
    assert "--force" in capsys.readouterr().err
    assert file.read_text() == before
    assert main(["import-launch", LINE, "--gpu", "b200", "--out", str(file), "--force"]) == 0
    assert simkv.load(file).data["memory"]["gpu"] == "b200"
    assert sorted(one.name for one in file.parent.iterdir()) == ["s.toml"]


def test_json_holds_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import-launch", LINE, "--gpu", "h100", "--json", "--set", "memory.overhead=1GiB"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert tomllib.loads(told["toml"]) == told["scenario"]
    assert told["scenario"]["memory"]["overhead"] == "1GiB"
    assert {"flag": "--tp-size", "value": "2", "use": "used", "key": "model.tp_size", "why": ""} in told["flags"]


def test_refused_flags_can_be_ignored(capsys: pytest.CaptureFixture[str]) -> None:
    line = f"{LINE} --enable-hicache --dp 2"
    assert main(["import-launch", line, "--gpu", "h100"]) == 2
    err = capsys.readouterr().err
    assert "2 problems in the launch command" in err
    assert "Traceback" not in err
    words = ["--ignore", "--dp-size", "--ignore", "enable-hicache"]
    assert main(["import-launch", line, "--gpu", "h100", *words]) == 0
    out, err = capsys.readouterr()
    assert "# ignored, though it matters: --dp-size 2" in out
    assert "is ignored as asked" in err


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--gpu", "h100"],
        [""],
        ["sglang serve openai/gpt-oss-120b"],
        ["sglang serve openai/gpt-oss-120b", "--gpu", "h100", "--hbm", "80GB"],
        ["sglang serve openai/gpt-oss-120b", "--gpu", "[red]x"],
        ["sglang serve nobody/nothing", "--gpu", "h100"],
        ["sglang serve x", "--gpu", "h100", "--config", "missing.json"],
        ["sglang serve openai/gpt-oss-120b", "--gpu", "h100", "--workload", "missing.csv"],
        ["sglang serve openai/gpt-oss-120b", "--gpu", "h100", "--out", "/proc/none/s.toml"],
        ["sglang serve openai/gpt-oss-120b", "--gpu", "h100", "--out", "."],
        ["sglang serve openai/gpt-oss-120b", "--gpu", "h100", "--set", "memory.pages=2"],
        ["sglang serve openai/gpt-oss-120b", "--gpu", "h100", "--nonsense"],
    ],
)
def test_mistakes_are_told_without_a_traceback(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import-launch", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")


def test_markup_in_values_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import-launch", f"{LINE} --chat-template '[bold]x'", "--gpu", "h100"]) == 0
    assert "[bold]x" in capsys.readouterr().err
