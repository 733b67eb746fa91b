"""Distributions of lengths, by their quantile functions: a number, a public trace's shape, or a table.

Each purpose draws from a random stream of its own (:func:`stream`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, log
from statistics import NormalDist
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from simkv.errors import Problem, ScenarioError
from simkv.tables import MOST, TableReader, is_number, one_of
from simkv.workload.request import IntArray

__all__ = [
    "LENGTH_KINDS",
    "SHAPES",
    "Empirical",
    "FloatArray",
    "Lengths",
    "LogNormal",
    "Percentiles",
    "Uniform",
    "draw_lengths",
    "lengths",
    "read_lengths",
    "stream",
]

FloatArray = NDArray[np.float64]
Points = tuple[tuple[float, float], ...]


def stream(seed: int, purpose: str) -> np.random.Generator:
    """The random stream of one purpose: PCG64 on a ``SeedSequence`` whose spawn key is the purpose's SHA-256.

    Parameters
    ----------
    seed : int
        Seed of the run, >= 0.
    purpose : str
        Name of what is drawn; equal names give equal streams, different names independent ones.
    """
    digest = hashlib.sha256(purpose.encode()).digest()
    key = tuple(int.from_bytes(digest[i : i + 4], "little") for i in range(0, 16, 4))
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))


def _clipped(x: Any, low: float, high: float) -> FloatArray:
    return np.asarray(np.minimum(np.maximum(x, low), high), dtype=np.float64)


# Distributions ---------------------------------------------------------------------------------------------------


class Lengths(Protocol):
    """A distribution of token counts, by its quantile function: one uniform a request."""

    def quantile(self, u: FloatArray) -> FloatArray:
        """Length (not yet rounded) below which a share ``u`` of the requests lies; ``u`` in [0, 1)."""
        ...


@dataclass(frozen=True)
class Uniform:
    """Integers from ``min`` to ``max``, both included, all alike. ``min == max`` is a constant."""

    min: int
    max: int

    def quantile(self, u: FloatArray) -> FloatArray:
        """``min + floor(u * (max - min + 1))``."""
        return self.min + np.floor(u * (self.max - self.min + 1))


@dataclass(frozen=True)
class LogNormal:
    """``median * exp(sigma * z)``, ``z`` standard normal, clipped to [min, max] (which shifts the mean).

    Parameters
    ----------
    median : float
        Tokens.
    sigma : float
        Standard deviation of the logarithm, >= 0.
    min, max : float
        Tokens.
    """

    median: float
    sigma: float
    min: float = 1
    max: float = inf

    def quantile(self, u: FloatArray) -> FloatArray:
        """The clipped quantile; ``u = 0`` gives ``min``."""
        z = np.fromiter((_NORMAL.inv_cdf(x) if x > 0 else -inf for x in u), np.float64, len(u))
        scaled = np.zeros_like(z) if self.sigma == 0 else self.sigma * z
        return _clipped(self.median * np.exp(scaled), self.min, self.max)


_NORMAL = NormalDist()


@dataclass(frozen=True)
class Percentiles:
    """Piecewise linear in (percentile, log length), clipped to [min, max].

    Parameters
    ----------
    points : tuple of (float, float)
        ``(percentile in [0, 100], tokens > 0)``, percentiles ascending, tokens not descending. Below the first and
        above the last percentile the length is that point's own.
    min, max : float
        Tokens.
    """

    points: Points
    min: float = 1
    max: float = inf

    def quantile(self, u: FloatArray) -> FloatArray:
        """The clipped interpolation."""
        at, tokens = zip(*self.points, strict=True)
        return _clipped(np.exp(np.interp(u * 100.0, at, np.log(tokens))), self.min, self.max)

    def mean(self) -> float:
        """Mean without the clip and without rounding: ``(b - a) / ln(b / a)`` a piece, weighted by its width."""
        total = self.points[0][0] * self.points[0][1] + (100 - self.points[-1][0]) * self.points[-1][1]
        for (p, a), (q, b) in pairwise(self.points):
            total += (q - p) * (a if a == b else (b - a) / log(b / a))
        return total / 100


@dataclass(frozen=True)
class Empirical:
    """Values with weights, clipped to [min, max].

    Parameters
    ----------
    values : tuple of float
        Tokens, in any order.
    weights : tuple of float
        One a value, >= 0, not all 0.
    min, max : float
        Tokens.
    """

    values: tuple[float, ...]
    weights: tuple[float, ...]
    min: float = 1
    max: float = inf

    def quantile(self, u: FloatArray) -> FloatArray:
        """The value whose cumulated weight (in order of value) passes ``u``."""
        order = np.argsort(self.values, kind="stable")
        cumulated = np.cumsum(np.asarray(self.weights, dtype=np.float64)[order])
        index = np.searchsorted(cumulated, u * cumulated[-1], side="right")
        drawn = np.asarray(self.values, dtype=np.float64)[order][np.minimum(index, len(order) - 1)]
        return _clipped(drawn, self.min, self.max)


_AT = (0.0, 1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 100.0)


def _shape(inputs: Sequence[float], outputs: Sequence[float]) -> tuple[Points, Points]:
    return tuple(zip(_AT, inputs, strict=True)), tuple(zip(_AT, outputs, strict=True))


SHAPES: Mapping[str, tuple[Points, Points]] = MappingProxyType(
    {
        # AzurePublicDataset @b469a113, AzureLLMInferenceTrace_{conv,code}.csv (CC-BY-4.0; Splitwise, ISCA 2024)
        "azure2023_conv": _shape(
            (2, 29, 181, 207, 396, 1020, 1189, 2735, 4083, 4142, 6212, 14050),
            (7, 16, 41, 54, 85, 129, 395, 424, 451, 601, 954, 1000),
        ),
        "azure2023_code": _shape(
            (3, 17, 75, 147, 578, 1469, 2745, 5194, 7315, 7436, 7437, 7437),
            (6, 6, 6, 7, 9, 13, 24, 55, 90, 252, 831, 1899),
        ),
        # kvcache-ai/Mooncake @3b5a5941, FAST25-release/traces (Apache-2.0)
        "mooncake_conversation": _shape(
            (891, 894, 901, 964, 2306, 6909, 15368, 27367, 39552, 85401, 121301, 126195),
            (1, 3, 10, 24, 156, 350, 472, 597, 698, 1120, 2000, 2000),
        ),
        "mooncake_synthetic": _shape(
            (13, 16, 22, 30, 277, 11587, 23175, 38615, 49009, 66458, 191374, 191378),
            (1, 2, 2, 4, 11, 69, 250, 389, 519, 769, 825, 893),
        ),
        # callanjfox/kv-cache-tester @94f6046d (Apache-2.0): coding-agent sessions, each request with its whole context
        "weka_agents": _shape(
            (6343, 16162, 30544, 42419, 66519, 103656, 138566, 233633, 300694, 498617, 802467, 894371),
            (1, 58, 89, 105, 137, 216, 426, 898, 1554, 3687, 8013, 18195),
        ),
        # casys-kaist/LLMServingSim @5daddb21, sharegpt (Llama-3.1 tokenizer), 300 sessions (MIT)
        "sharegpt_300s": _shape(
            (262, 264, 305, 363, 482, 730, 1109, 1458, 1747, 2764, 3998, 3998),
            (512, 513, 523, 530, 561, 631, 767, 770, 773, 784, 1021, 1021),
        ),
    }
)
"""Shapes of public traces: percentiles of input and of output tokens (0 counted as 1). Marginals only: the two are drawn
independently, and neither arrivals nor shared prefixes are part of a shape."""


# Reading a table -------------------------------------------------------------------------------------------------


def _clip(table: TableReader, unit: str) -> tuple[float, float]:
    low = table.integer("min", 1, low=1, unit=unit)
    if table.get("max") is None:
        return low, inf
    high = table.integer("max", None, low=1, unit=unit)
    if high < low:
        table.wrong("max", f"{high} is less than min, {low}")
    return low, max(low, high)


def _constant(table: TableReader, unit: str) -> Lengths:
    value = table.integer("value", None, low=1, unit=unit)
    return Uniform(value, value)


def _uniform(table: TableReader, unit: str) -> Lengths:
    low = table.integer("min", None, low=1, unit=unit)
    high = table.integer("max", None, low=1, unit=unit)
    if high < low and not table.problems:
        table.wrong("max", f"{high} is less than min, {low}")
    return Uniform(low, max(low, high))


def _lognormal(table: TableReader, unit: str) -> Lengths:
    median = table.number("median", None, above=True, unit=unit)
    sigma = table.number("sigma", None, unit="standard deviation of the logarithm")
    return LogNormal(median, sigma, *_clip(table, unit))


def _empirical(table: TableReader, unit: str) -> Lengths:
    points, values, weights = table.get("percentiles"), table.get("values"), table.get("weights")
    clip = _clip(table, unit)
    if (points is None) == (values is None):
        table.wrong("percentiles", "state either percentiles, a table {percentile = length}, or values with weights")
        return Uniform(1, 1)
    if points is not None:
        return Percentiles(_points(table, points, unit), *clip)
    return Empirical(*_values(table, values, weights, unit), *clip)


def _points(table: TableReader, points: Any, unit: str) -> Points:
    """Checked percentile points (a harmless one where they are wrong)."""
    fallback: Points = ((0.0, 1.0),)
    if not isinstance(points, Mapping) or not points:
        table.wrong("percentiles", "is not a table {percentile = length} of at least one entry")
        return fallback
    read: list[tuple[float, float]] = []
    for key, tokens in points.items():
        try:
            at = float(key)
        except (TypeError, ValueError):
            at = -1.0
        if not 0 <= at <= 100:
            table.wrong(f"percentiles.{key}", "is not a percentile in [0, 100]")
        elif not is_number(tokens) or tokens < 1:
            table.wrong(f"percentiles.{key}", f"{tokens!r} is not a number >= 1 ({unit})")
        else:
            read.append((at, float(tokens)))
    if len(read) < len(points):
        return fallback
    read.sort()
    for (p, a), (q, b) in pairwise(read):
        if q == p or b < a:
            table.wrong("percentiles", f"percentile {q:g} ({b:g}) does not follow percentile {p:g} ({a:g})")
    return tuple(read)


def _values(table: TableReader, values: Any, weights: Any, unit: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Checked values and weights (harmless ones where they are wrong)."""
    before = len(table.problems)
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        table.wrong("values", f"{values!r} is not a list of at least one number ({unit})")
    elif not all(is_number(v) and v >= 1 for v in values):
        table.wrong("values", f"holds something that is not a number >= 1 ({unit})")
    elif weights is None:
        weights = [1.0] * len(values)
    elif not isinstance(weights, Sequence) or isinstance(weights, str) or len(weights) != len(values):
        table.wrong("weights", f"is not a list of {len(values)} numbers, one a value")
    elif not all(is_number(w) and w >= 0 for w in weights) or sum(weights) <= 0:
        table.wrong("weights", "must be numbers >= 0, not all 0")
    if len(table.problems) > before:
        return (1.0,), (1.0,)
    return tuple(map(float, values)), tuple(map(float, weights))


LENGTH_KINDS = MappingProxyType(
    {"constant": _constant, "uniform": _uniform, "lognormal": _lognormal, "empirical": _empirical}
)
"""Kinds of length distributions, besides the names in :data:`SHAPES`."""


def lengths(spec: Any, column: str = "input_tokens") -> Lengths:
    """A length distribution from its short or long form.

    Parameters
    ----------
    spec : int, str or mapping
        A number of tokens; a name in :data:`SHAPES`; ``{kind = "constant", value}``, ``{kind = "uniform", min, max}``,
        ``{kind = "lognormal", median, sigma, min = 1, max}``, ``{kind = "empirical", percentiles = {"50" = 100}}`` or
        ``{kind = "empirical", values, weights}`` (both with ``min``, ``max``), ``{kind = <shape>, min, max}``.
    column : {"input_tokens", "output_tokens", "shared_prefix_tokens", "turns"}
        What errors name, and which column of a shape is meant: outputs of ``output_tokens``, else inputs. Turns are no
        tokens and have no shape.

    Raises
    ------
    ScenarioError
        All problems at once, with dotted keys ``workload.<column>.*``.
    """
    problems: list[Problem] = []
    found = read_lengths(spec, column, problems)
    if problems:
        raise ScenarioError("<workload>", problems)
    return found


def read_lengths(spec: Any, column: str, problems: list[Problem]) -> Lengths:
    """As :func:`lengths`, but problems are collected and a harmless distribution is returned where there are any."""
    place = f"workload.{column}"
    unit = "turns" if column == "turns" else "tokens"
    shapes: Mapping[str, tuple[Points, Points]] = {} if unit == "turns" else SHAPES
    if isinstance(spec, int) and not isinstance(spec, bool):
        spec = {"kind": "constant", "value": spec}
    elif isinstance(spec, str):
        spec = {"kind": spec}
    if not isinstance(spec, Mapping):
        shown = "is needed" if spec is None else f"{spec!r} is no length distribution"
        example = 'a shape such as "azure2023_conv", ' if shapes else ""
        problems.append(Problem(place, f"{shown}: a number of {unit}, {example}or a table"))
        return Uniform(1, 1)
    kind = spec.get("kind") if isinstance(spec.get("kind"), str) else None
    table = TableReader(spec, place, [])
    if kind is not None and kind in shapes:
        found: Lengths = Percentiles(shapes[kind][column == "output_tokens"], *_clip(table, unit))
    elif kind is not None and kind in LENGTH_KINDS:
        found = LENGTH_KINDS[kind](table, unit)
    else:
        problems.append(Problem(f"{place}.kind", one_of(kind, [*LENGTH_KINDS, *shapes])))
        return Uniform(1, 1)
    table.close()
    problems += table.problems
    return found


def draw_lengths(distribution: Lengths, column: str, seed: int, n: int) -> IntArray:
    """Lengths of ``n`` things from the stream of their column, rounded, at least 1.

    Raises
    ------
    ScenarioError
        For lengths beyond all bounds.
    """
    drawn = np.rint(distribution.quantile(stream(seed, column).random(n)))
    if drawn.max(initial=1) > MOST:
        message = f"draws lengths up to {drawn.max():.3g}, more than {MOST:,}: state its max"
        raise ScenarioError("<workload>", [Problem(f"workload.{column}", message)])
    return np.maximum(drawn, 1).astype(np.int64)
