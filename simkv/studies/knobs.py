"""Knobs of a capacity study: which there are, between which values, and what is asked of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simkv.document import comparison
from simkv.errors import Problem, ScenarioError, UserError, nearest
from simkv.overrides import toml_value
from simkv.results import check_figures
from simkv.scenario import Scenario
from simkv.studies.search import Number, Scale

__all__ = [
    "KNOBS",
    "USUAL_CHECKS",
    "Knob",
    "parse_checks",
    "parse_range",
    "refuse_unknown_figures",
    "scale_of",
    "seeds_of",
    "spread_of",
    "stated_value",
]

USUAL_CHECKS = {"requests.refused": "== 0", "requests.aborted": "== 0", "requests.retracted": "== 0"}
"""What is asked for where nobody says."""
# Integers of wider ranges are told apart to a share of them, as fractions are.
_EXACT_TO = 4096


@dataclass(frozen=True)
class Knob:
    """A knob that needs no range.

    Parameters
    ----------
    key : str
        Dotted key.
    spread : tuple of numbers or None
        Both ends; None: an eighth to eight times of what the scenario states.
    """

    key: str
    spread: tuple[Number, Number] | None = None


KNOBS = {
    "rate": Knob("workload.rate"),
    "rate_scale": Knob("workload.rate_scale", (0.125, 8.0)),
    "concurrency": Knob("workload.concurrency", (1, 1024)),
    "swa_full_tokens_ratio": Knob("memory.swa_full_tokens_ratio", (0.01, 1.0)),
    "mem_fraction_static": Knob("memory.mem_fraction_static", (0.3, 0.98)),
    "max_running_requests": Knob("memory.max_running_requests", (1, 1024)),
    "context_length": Knob("model.context_length", (1024, 1 << 20)),
    "num_steps": Knob("draft.num_steps", (1, 8)),
}
"""Short names of the knobs people ask for most; any other dotted key needs a range."""


def parse_checks(until: Sequence[str] | str) -> dict[str, str]:
    """Figure -> condition of texts such as ``"requests.retracted == 0"``.

    Raises
    ------
    ScenarioError
        Every text that is none.
    """
    texts = [until] if isinstance(until, str) else list(until)
    out, problems = {}, []
    for text in texts:
        match = re.fullmatch(r"\s*([\w.]+)\s*((?:==|!=|<=|>=|<|>).*)", text)
        if match is None or comparison(match.group(2)) is None:
            problems.append(Problem("until", f"{text!r} is not a check such as 'requests.retracted == 0'"))
        else:
            out[match.group(1)] = match.group(2).strip()
    if problems:
        raise ScenarioError("capacity", problems)
    return out


def parse_range(text: Any) -> tuple[Number, Number]:
    """Both ends of ``first:last``, or of a pair.

    Raises
    ------
    ScenarioError
        They are no two numbers, the first below the second.
    """
    ends = text.split(":") if isinstance(text, str) else list(text) if isinstance(text, (list, tuple)) else []
    values = [toml_value(end.strip()) if isinstance(end, str) else end for end in ends]
    right = len(values) == 2 and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)
    if not right or not abs(values[0]) < float("inf") or not values[0] < values[1] < float("inf"):
        message = f"{text!r} is not a range such as 1:64, its first number below its last"
        raise ScenarioError("capacity", [Problem("range", message)])
    return values[0], values[1]


def stated_value(base: Scenario, key: str) -> Number | None:
    """What the scenario states, or a default that it shows."""
    node: Any = base.to_dict()
    for part in key.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node if isinstance(node, (int, float)) and not isinstance(node, bool) else None


def spread_of(
    base: Scenario, known: Knob | None, key: str, current: Number | None, stated: Any
) -> tuple[Number, Number]:
    """Both ends of where to look.

    Raises
    ------
    ScenarioError
        A range that is none, or none for a knob that needs one.
    """
    if stated is not None:
        return parse_range(stated)
    if known is not None and known.spread is not None:
        return known.spread
    if known is not None and current:
        return current / 8, current * 8
    unknown = _problems(base, key, 1 if current is None else current)
    if unknown:
        raise ScenarioError(base.source, unknown)
    hint = nearest(key, KNOBS)
    message = f"is needed for {key}: first:last; known without one are {', '.join(KNOBS)}{hint}"
    raise ScenarioError("capacity", [Problem("range", message)])


def scale_of(base: Scenario, key: str, low: Number, high: Number, tolerance: Any) -> Scale:
    """The values between two ends that the key takes.

    Raises
    ------
    ScenarioError
        The key takes no number, or the tolerance is none.
    """
    if not isinstance(tolerance, (int, float)) or isinstance(tolerance, bool) or not 0 < tolerance < 1:
        raise ScenarioError("capacity", [Problem("tolerance", f"{tolerance!r} is not in (0, 1)")])
    middle = (low + high) / 2
    fraction = middle if middle != round(middle) else middle + (high - low) / 7
    wrong = _problems(base, key, fraction)
    if not wrong:
        _refuse_ends(base, key, low, high)
        return Scale(low, high, False, tolerance)
    whole = round(middle)
    if other := _problems(base, key, whole):
        raise ScenarioError(base.source, other)
    if low != round(low) or high != round(high):
        message = f"{low:g}:{high:g} has ends that are not whole, and {key} takes integers only"
        raise ScenarioError("capacity", [Problem("range", message)])
    _refuse_ends(base, key, round(low), round(high))
    return Scale(round(low), round(high), True, 0.0 if high <= _EXACT_TO else tolerance)


def _refuse_ends(base: Scenario, key: str, low: Number, high: Number) -> None:
    """Ends that no scenario may have."""
    wrong = dict.fromkeys(problem for end in (low, high) for problem in _problems(base, key, end))
    if wrong:
        raise ScenarioError(f"the range of {key}", wrong)


def _problems(base: Scenario, key: str, value: Number) -> list[Problem]:
    """What is wrong with a scenario with this value, the scenario alone."""
    try:
        base.change({key: value})
    except UserError as error:
        return list(error.problems)
    return []


def seeds_of(base: Scenario, seeds: Any) -> list[int]:
    """Seeds, each once."""
    whole = isinstance(seeds, int) and not isinstance(seeds, bool)
    listed = list(seeds) if isinstance(seeds, (list, tuple)) else []
    numbers = [base.seed + number for number in range(seeds)] if whole else listed
    wrong = [one for one in numbers if not isinstance(one, int) or isinstance(one, bool) or one < 0]
    if not numbers or wrong or len(set(numbers)) < len(numbers):
        message = f"{seeds!r} is neither how many seeds (an integer >= 1) nor a list of different ones"
        raise ScenarioError("capacity", [Problem("seeds", message)])
    return numbers


def refuse_unknown_figures(base: Scenario, key: str, values: Sequence[Number]) -> None:
    """Checks of figures that no run has, told before anything runs; a server that starts knows which there are."""
    for value in values:
        one = base.change({key: value})
        try:
            plan = one.plan()
        except UserError:
            continue
        if plan.infeasible is None:
            check_figures(one, plan)
            return
