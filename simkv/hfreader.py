"""A Hugging Face ``config.json``: where it comes from, and typed look-ups in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from simkv import catalogue
from simkv.errors import ModelError, Problem, nearest

__all__ = ["Reader", "is_list", "load", "short"]


def load(config: Mapping[str, Any] | str | PathLike[str]) -> tuple[str, Any]:
    """Name and content of what the caller gave."""
    if not isinstance(config, str | PathLike):
        name = config.get("name") if isinstance(config, Mapping) else None
        return name if isinstance(name, str) and name else "<inline>", config
    text = fspath(config)
    is_word = isinstance(config, str) and Path(text).name == text and not text.endswith(".json")
    if is_word and (not text or text in catalogue.names() or not Path(text).exists()):
        return text, catalogue.config(text)
    return _load_file(Path(text))


def _load_file(path: Path) -> tuple[str, Any]:
    """Name and content of a ``config.json``, or of the folder that holds one."""
    if path.is_dir():
        path = path / "config.json"
    try:
        # Every model's file has the same name; its folder tells which it is.
        name = path.resolve().parent.name if path.name == "config.json" else path.name
        return name or path.name, json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        problem = Problem(str(path), "not found; give a config.json, its folder, or a name that `simkv models` lists")
    except json.JSONDecodeError as error:
        problem = Problem(f"{path}:{error.lineno}", f"is not JSON: {error.msg}; correct it or download it again")
    except UnicodeDecodeError as error:
        problem = Problem(str(path), f"is not UTF-8 text ({error.reason}); give the JSON file itself")
    except OSError as error:
        problem = Problem(str(path), f"cannot be read: {error.strerror}; give a file that can")
    raise ModelError(str(path), [problem])


_NESTED = ("text_config", "language_config", "llm_config")

# Keys that multimodal configs state beside the text config as well as in it.
_OUTER = frozenset(
    {
        "active_params",
        "active_params_b",
        "architectures",
        "block_size",
        "dtype",
        "is_hybrid_swa",
        "max_position_embeddings",
        "model_type",
        "mtp_blocks_in_checkpoint",
        "mtp_config",
        "mtp_layer_id_is_depth",
        "mtp_local_extent",
        "mtp_local_layer_ids",
        "mtp_num_hidden_layers",
        "num_nextn_predict_layers",
        "quantization_config",
        "source",
        "tie_word_embeddings",
        "torch_dtype",
        "total_params",
        "total_params_b",
        "unverified",
        "vocab_size",
    }
)


@dataclass
class Reader:
    """Typed look-ups in a config that collect problems instead of raising.

    A look-up returns None for a key that is absent, null or wrong; only the last is a problem.
    """

    text: Mapping[str, Any]
    outer: Mapping[str, Any]
    prefix: str
    problems: list[Problem]

    @classmethod
    def over(cls, config: Any, source: str) -> Reader:
        """Reader of a whole config; finds the text part of a multimodal one."""
        problems: list[Problem] = []
        if not isinstance(config, Mapping):
            message = f"{short(config)} is not a table of keys; give the content of a config.json"
            raise ModelError(source, [Problem("config", message)])
        for key in _NESTED:
            nested = config.get(key)
            if isinstance(nested, Mapping):
                if "num_hidden_layers" in nested or "num_hidden_layers" not in config:
                    return cls(nested, config, f"{key}.", problems)
            elif nested is not None:
                problems.append(Problem(key, f"{short(nested)} is not a table of keys; remove it or correct it"))
        return cls(config, {}, "", problems)

    def find(self, key: str) -> tuple[str, Any]:
        """Dotted place and value of a key."""
        if self.text.get(key) is None and key in _OUTER and self.outer.get(key) is not None:
            return key, self.outer[key]
        return self.prefix + key, self.text.get(key)

    def get(self, key: str) -> Any:
        """Value of a key as it stands."""
        return self.find(key)[1]

    def reject(self, key: str, message: str) -> None:
        """Note a problem of a key."""
        problem = Problem(self.find(key)[0], message)
        if problem not in self.problems:
            self.problems.append(problem)

    def integer(self, *keys: str, least: int = 1) -> int | None:
        """First of the keys that is stated, as an integer not below ``least``."""
        key = next((key for key in keys if self.get(key) is not None), None)
        if key is None:
            return None
        value = self.get(key)
        if type(value) is not int or value < least:
            wanted = "a positive integer" if least == 1 else f"an integer of {least} or more"
            self.reject(key, f"{short(value)} is not {wanted}; correct it or remove the key")
            return None
        return value

    def known(self, key: str) -> int:
        """A positive integer, or 0: for estimates, which a config of another form must not break."""
        value = self.get(key)
        return value if type(value) is int and value > 0 else 0

    def number(self, key: str) -> float | None:
        """A positive number."""
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            self.reject(key, f"{short(value)} is not a positive number; correct it or remove the key")
            return None
        return float(value)

    def flag(self, key: str) -> bool | None:
        """True or false."""
        value = self.get(key)
        if value is None or isinstance(value, bool):
            return value
        self.reject(key, f"{short(value)} is not true or false; correct it or remove the key")
        return None

    def sub(self, key: str) -> Reader | None:
        """Reader of a nested table."""
        place, value = self.find(key)
        if value is None:
            return None
        if isinstance(value, Mapping):
            return Reader(value, {}, f"{place}.", self.problems)
        self.reject(key, f"{short(value)} is not a table of keys; correct it or remove the key")
        return None

    def ids(self, key: str, *, below: int | None = None) -> tuple[int, ...] | None:
        """A list of layer numbers (an empty list is not None)."""
        value = self.get(key)
        if value is None:
            return None
        if not is_list(value) or any(type(entry) is not int or entry < 0 for entry in value):
            self.reject(key, f"{short(value)} is not a list of layer numbers; write integers from 0, or drop the key")
            return None
        high = [entry for entry in value if below is not None and entry >= below]
        if high:
            self.reject(key, f"{high[0]} is beyond the last layer; layers are numbered 0 to {(below or 0) - 1}")
            return None
        return tuple(value)

    def per_layer(self, key: str, count: int, allowed: Sequence[Any]) -> list[Any] | None:
        """A list with an entry a layer, each of the allowed ones; a longer list is cut to ``count``."""
        value = self.get(key)
        if value is None:
            return None
        if not is_list(value):
            self.reject(key, f"{short(value)} is not a list; write one entry for each of the {count} layers")
            return None
        entries, kind = list(value), type(allowed[0])
        # By type too: True equals 1, and a list in place of a word cannot be looked up.
        wrong = [(i, entry) for i, entry in enumerate(entries) if type(entry) is not kind or entry not in allowed]
        if wrong:
            layer, entry = wrong[0]
            hint = nearest(entry, map(str, allowed)) if isinstance(entry, str) else ""
            self.reject(key, f"{short(entry)} (layer {layer}) is not one of {', '.join(map(str, allowed))}{hint}")
        if len(entries) < count:
            self.reject(key, f"has {len(entries)} entries for {count} layers; write one for each layer")
        return None if wrong or len(entries) < count else entries[:count]


def is_list(value: Any) -> bool:
    """Whether a value is a JSON list."""
    return isinstance(value, Sequence) and not isinstance(value, str)


def short(value: Any) -> str:
    """``repr`` of a value, cut to fit a line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
