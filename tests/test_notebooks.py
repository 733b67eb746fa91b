"""Notebooks as they are stored. That they run, and that what they say holds, is for ``pytest --nbmake notebooks``."""

from __future__ import annotations

import ast
import copy
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "notebooks"
GUIDE = ROOT / "docs" / "notebooks.md"
PATHS = sorted(FOLDER.glob("*.ipynb"))
# What a reader has who has simkv.
IMPORTS = {*sys.stdlib_module_names, "matplotlib", "numpy", "pandas", "simkv"}
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
# A folder of some machine: /a/b, ~/a, C:\a; not tokens/s, and no address of a page.
_PLACE = re.compile(r"(?<![\w.:/~<])(?:/[A-Za-z][\w.-]*/|~/)|\b[A-Za-z]:\\")

Notebook = dict[str, Any]


def source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def python(cell: dict[str, Any]) -> str:
    """A code cell without its magics."""
    return "\n".join("" if line.startswith("%") else line for line in source(cell).splitlines())


def imported(cell: dict[str, Any]) -> set[str]:
    nodes = list(ast.walk(ast.parse(python(cell))))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "." for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


def faults(notebook: Notebook) -> list[str]:
    """What is wrong with a notebook as it is stored."""
    found = []
    cells = notebook["cells"]
    if (notebook["nbformat"], notebook["nbformat_minor"]) != (4, 5):
        found.append("is not of format 4.5")
    if notebook["metadata"] != METADATA:
        found.append("metadata are not a plain python3 kernel's")
    ids = [cell.get("id") for cell in cells]
    if len(set(ids)) < len(ids) or not all(
        isinstance(one, str) and re.fullmatch(r"[a-z][a-z0-9-]*", one) for one in ids
    ):
        found.append("ids are not unique words")
    if cells[0]["cell_type"] != "markdown" or not source(cells[0]).startswith("# ") or "?" not in source(cells[0]):
        found.append("does not open with a title and a question")
    if cells[-1]["cell_type"] != "markdown" or not source(cells[-1]).startswith("## What you know now"):
        found.append("does not end with what one knows")
    elif "**Change**" not in source(cells[-1]):
        found.append("does not say what to change")
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    if not any("assert " in source(cell) for cell in code):
        found.append("checks nothing of what it says")
    for before, cell in zip([None, *cells], cells, strict=False):
        name = cell.get("id")
        if cell["metadata"]:
            found.append(f"{name} has metadata")
        if not source(cell).strip():
            found.append(f"{name} is empty")
        if _PLACE.search(source(cell)):
            found.append(f"{name} names a folder of some machine")
        if cell["cell_type"] != "code":
            continue
        if cell["outputs"]:
            found.append(f"{name} has outputs")
        if cell["execution_count"] is not None:
            found.append(f"{name} has an execution count")
        if before is None or before["cell_type"] != "markdown":
            found.append(f"{name} has no prose before it")
        if strange := imported(cell) - IMPORTS:
            found.append(f"{name} imports {', '.join(sorted(strange))}")
    return found


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_clean(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    notebook = json.loads(text)
    assert faults(notebook) == []
    assert text == json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def test_the_list_is_the_folder() -> None:
    listed = re.findall(r"^- \[(.+?)\]\((.+?)\): ", (FOLDER / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert [name for name, _ in listed] == [path.name for path in PATHS]
    assert all(name == target for name, target in listed)
    assert len(PATHS) >= 5
    # Nothing else: a module beside them would be a hidden helper.
    assert {path.name for path in FOLDER.iterdir()} - {".ipynb_checkpoints"} == {"README.md", *(p.name for p in PATHS)}


def _code(notebook: Notebook) -> dict[str, Any]:
    return next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")


def _put(key: str, value: Any) -> Callable[[Notebook], None]:
    return lambda notebook: _code(notebook).update({key: value})


PLANTED: dict[str, tuple[Callable[[Notebook], Any], str]] = {
    "output": (_put("outputs", [{"output_type": "stream", "name": "stdout", "text": ["7\n"]}]), "has outputs"),
    "count": (_put("execution_count", 3), "has an execution count"),
    "cell metadata": (_put("metadata", {"collapsed": True}), "has metadata"),
    "machine": (lambda n: n["metadata"]["language_info"].update(version="3.11.7"), "metadata are not"),
    "kernel": (lambda n: n["metadata"]["kernelspec"].update(name="my-env"), "metadata are not"),
    "same id": (lambda n: n["cells"][2].update(id=n["cells"][0]["id"]), "ids are not unique"),
    "no id": (lambda n: n["cells"][2].pop("id"), "ids are not unique"),
    "no prose": (lambda n: n["cells"].pop(3), "has no prose before it"),
    "no question": (lambda n: n["cells"][0].update(source=["# A title\n", "Only words."]), "does not open with"),
    "no end": (lambda n: n["cells"].pop(), "does not end with"),
    "empty": (_put("source", ["\n"]), "is empty"),
    "home": (_put("source", ["open('/home/me/x.log')"]), "names a folder"),
    "tilde": (_put("source", ["open('~/x.log')"]), "names a folder"),
    "drive": (_put("source", ["open('C:\\\\x.log')"]), "names a folder"),
    "helper": (_put("source", ["import my_helpers"]), "imports my_helpers"),
    "relative": (_put("source", ["from .helpers import x"]), "imports "),
    "format": (lambda n: n.update(nbformat_minor=4), "is not of format"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str) -> None:
    notebook = copy.deepcopy(json.loads(PATHS[0].read_text(encoding="utf-8")))
    assert faults(notebook) == []
    plant, words = PLANTED[name]
    plant(notebook)
    assert any(words in fault for fault in faults(notebook))


def test_prose_and_code_may_hold_slashes() -> None:
    for text in ("tokens/s and prefill/decode", "a / b", "2**31 / x", "https://example.org/a/b", "<br/>", "1/2"):
        assert not _PLACE.search(text), text


def test_the_guide_runs_and_gives_its_figures() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    code = "".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)).replace("%matplotlib inline\n", "")
    names: dict[str, object] = {}
    exec(compile(code, str(GUIDE), "exec"), names)
    line, _, told = code.strip().splitlines()[-1].partition("  # ")
    assert eval(line, names) == tuple(map(int, told.split(", ")))


def test_the_guide_names_places_that_are_there() -> None:
    places = re.findall(r"`(simkv/[\w/]+\.py|tests/\w+\.py|notebooks/)`", GUIDE.read_text(encoding="utf-8"))
    assert len(places) >= 6
    assert [place for place in places if not (ROOT / place).exists()] == []
