"""Built-in models: KV-relevant facts of public models, one JSON file each.

The files under ``simkv/models`` hold the keys that :class:`simkv.arch.Arch` and the roofline read, in Hugging
Face's names, and

- ``source``: where the numbers come from; ``unverified``: what that source inferred, if anything;
- ``hf_ids``: names of checkpoints on Hugging Face that have these facts, weights included;
- ``layer_types`` as one letter a layer (:data:`LETTERS`), which :func:`config` writes out.

A model whose head counts nobody published is listed too, so that a plan can refuse it by name.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from simkv.errors import ModelError, Problem, nearest

__all__ = ["config", "hf_ids", "names"]

LETTERS = {
    "F": "full_attention",
    "S": "sliding_attention",
    "C": "chunked_attention",
    "L": "linear_attention",
    "H": "hybrid",
    "W": "hybrid_sliding",
}


def names() -> list[str]:
    """Names of the built-in models, sorted."""
    entries = (files("simkv") / "models").iterdir()
    return sorted(entry.name.removesuffix(".json") for entry in entries if entry.name.endswith(".json"))


@cache
def hf_ids() -> dict[str, str]:
    """Built-in model of each known name on Hugging Face."""
    folder = files("simkv") / "models"
    read = {name: json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) for name in names()}
    return {one: name for name, facts in read.items() for one in facts.get("hf_ids", ())}


def config(name: str) -> dict[str, Any]:
    """Config of a built-in model, in Hugging Face's key names.

    Raises
    ------
    ModelError
        If there is no such model; names the nearest one.
    """
    known = names()
    if name not in known:
        message = f"{name!r} is neither a file nor a built-in model (`simkv models` lists those){nearest(name, known)}"
        raise ModelError(name, [Problem("config", message)])
    facts: dict[str, Any] = json.loads((files("simkv") / "models" / f"{name}.json").read_text(encoding="utf-8"))
    if "layer_types" in facts:
        facts["layer_types"] = [LETTERS[letter] for letter in facts["layer_types"]]
    return facts
