"""The workflow that compares the curves of a pull request: it parses, and its shell steps are shell."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "kv-curves.yml"
ALLOWED = {"actions/checkout", "actions/setup-python", "actions/upload-artifact"}


def workflow(text: str) -> dict[str, Any]:
    loaded = yaml.safe_load(text)
    assert isinstance(loaded, dict)
    return loaded


def sources() -> list[Any]:
    """Our own workflow, and each that docs/ci.md shows."""
    shown = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "ci.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(shown) >= 2
    own = pytest.param(WORKFLOW.read_text(encoding="utf-8"), id="own")
    return [own, *(pytest.param(text, id=f"docs {n}") for n, text in enumerate(shown))]


@pytest.mark.parametrize("text", sources())
def test_a_workflow_is_one(text: str) -> None:
    found = workflow(text)
    # YAML reads the key "on" as true.
    assert "pull_request" in found[True]
    assert found["permissions"] == {"contents": "read"}
    [job] = found["jobs"].values()
    assert job["runs-on"] and job["timeout-minutes"] <= 30
    for step in job["steps"]:
        assert ("run" in step) != ("uses" in step)
        if "uses" in step:
            action, _, version = step["uses"].partition("@")
            assert action in ALLOWED and version.startswith("v")
        else:
            # Whatever comes from a pull request stays out of the shell's text.
            assert "${{" not in step["run"]
            subprocess.run(["bash", "-n"], input=step["run"], text=True, check=True, timeout=20)
    last = job["steps"][-1]
    assert last["uses"].startswith("actions/upload-artifact") and last["if"] == "always()"
    shell = "\n".join(step.get("run", "") for step in job["steps"])
    assert "GITHUB_STEP_SUMMARY" in shell
    assert "--html" in shell and "--md" in shell


def test_our_own_runs_base_and_head() -> None:
    [job] = workflow(WORKFLOW.read_text(encoding="utf-8"))["jobs"].values()
    checkouts = [step["with"] for step in job["steps"] if step.get("uses", "").startswith("actions/checkout")]
    assert [one["path"] for one in checkouts] == ["base", "head"]
    # Without a ref, the head is what a merge would give.
    assert [one.get("ref") for one in checkouts] == ["${{ github.event.pull_request.base.sha }}", None]
