"""Built-in models: KV-relevant facts of public models, one JSON file each.

The files under ``simkv/models`` hold the keys that :class:`simkv.arch.Arch` and the roofline read, in Hugging
Face's names, and

- ``source``: where the numbers come from; ``unverified``: what that source inferred, if anything;
- ``layer_types`` as one letter a layer (:data:`LETTERS`), which :func:`config` writes out.

A model whose head counts nobody published is listed too, so that a plan can refuse it by name.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any, NamedTuple

from simkv.arch import Arch
from simkv.errors import ModelError, Problem, nearest

__all__ = ["Row", "config", "describe", "names"]

LETTERS = {
    "F": "full_attention",
    "S": "sliding_attention",
    "C": "chunked_attention",
    "L": "linear_attention",
    "H": "hybrid",
    "W": "hybrid_sliding",
}


class Row(NamedTuple):
    """One model as ``simkv models`` lists it.

    Parameters
    ----------
    name, architecture : str
        Built-in name; class name, empty if not known.
    layers : dict
        Hidden layers by kind, in the order of their first layer.
    window : int or None
        Sliding window or chunk, in tokens; None where no layer has one.
    bytes_per_token : dict
        Bytes one token takes in one layer, by kind; 2-byte elements, one rank.
    mtp : int
        MTP layers, stated by the config or shipped in the checkpoint.
    unsupported : tuple of str
        Why plans refuse the model; empty if they do not.
    """

    name: str
    architecture: str
    layers: dict[str, int]
    window: int | None
    bytes_per_token: dict[str, int]
    mtp: int
    unsupported: tuple[str, ...]


def names() -> list[str]:
    """Names of the built-in models, sorted."""
    entries = (files("simkv") / "models").iterdir()
    return sorted(entry.name.removesuffix(".json") for entry in entries if entry.name.endswith(".json"))


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


def describe() -> list[Row]:
    """One row for each built-in model, by name."""
    return [_row(Arch.from_config(name)) for name in names()]


def _row(arch: Arch) -> Row:
    geometries = {"full": arch.full, "mla": arch.full, "sliding": arch.sliding, "chunked": arch.sliding}
    kinds = list(dict.fromkeys(arch.layers))
    return Row(
        name=arch.name,
        architecture=arch.architecture,
        layers={kind: arch.count(kind) for kind in kinds},
        window=arch.chunk or (arch.window if arch.count("sliding") else None),
        bytes_per_token={kind: 2 * found.elements() for kind in kinds if (found := geometries.get(kind))},
        mtp=arch.num_nextn_predict_layers or arch.mtp_blocks_in_checkpoint or 0,
        unsupported=arch.unsupported,
    )
