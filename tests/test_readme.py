"""The Python of the README runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib as mpl

README = Path(__file__).resolve().parents[1] / "README.md"


def test_the_python_of_the_readme_runs() -> None:
    mpl.use("Agg")
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 2
    code = "".join(blocks)
    names: dict[str, object] = {}
    exec(compile(code, str(README), "exec"), names)
    fit = re.search(r"most that fit at once: ([0-9,]+)", code)
    assert fit is not None
    assert eval("simkv.explain(base, input_tokens=4096, output_tokens=512).requests", names) == int(fit[1])
    told = re.search(r"a hybrid of your own: ([0-9,]+)", code)
    assert told is not None
    value = eval("simkv.plan(base.with_arch(arch)).max_total_num_tokens", names)
    assert value == int(told[1].replace(",", ""))
