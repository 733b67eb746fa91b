"""A scenario written out as TOML, with a comment on what set each key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tomli_w

__all__ = ["scenario_toml"]


def scenario_toml(data: Mapping[str, Any], because: Mapping[str, str], head: Sequence[str]) -> str:
    """A scenario file.

    Parameters
    ----------
    data : mapping
        The scenario; tables inside its tables are written inline.
    because : mapping of str to str
        Dotted key -> comment behind it.
    head : sequence of str
        Comments above everything.
    """
    lines = [f"# {_line(text)}" for text in head]
    lines += [_pair(key, value) for key, value in data.items() if not isinstance(value, Mapping)]
    for section, table in data.items():
        if not isinstance(table, Mapping):
            continue
        lines += ["", f"[{section}]"]
        for key, value in table.items():
            why = because.get(f"{section}.{key}", "")
            pair = _pair(key, value)
            lines.append(f"{pair}  # {_line(why)}" if why else pair)
    return "\n".join(lines) + "\n"


def _pair(key: str, value: Any) -> str:
    """One key on one line, tables inside it inline."""
    if isinstance(value, Mapping):
        return f"{_key(key)} = {_inline(value)}"
    return tomli_w.dumps({key: value}).strip() if not isinstance(value, list) else f"{_key(key)} = {_inline(value)}"


def _inline(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {_inline(v)}" for k, v in value.items() if v is not None) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_inline(one) for one in value) + "]"
    return tomli_w.dumps({"x": value}).strip().removeprefix("x = ")


def _key(key: str) -> str:
    return tomli_w.dumps({key: 0}).strip().removesuffix(" = 0")


def _line(text: str) -> str:
    """A comment's text: one line, without what TOML forbids there."""
    return "".join(c if c.isprintable() else " " for c in text)
