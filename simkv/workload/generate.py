"""Synthetic workloads: an arrival process and two length distributions.

::

    generate({"kind": "poisson", "rate": 8.0, "num_requests": 1000,
              "input_tokens": "azure2023_conv",
              "output_tokens": {"kind": "lognormal", "median": 200, "sigma": 0.8, "max": 2000}}, seed=7)

Arrival kinds: ``poisson``, ``gamma``, ``constant`` (an open loop of a given rate, which may swing as a sine), ``burst``
(so many at once, every so often) and ``closed`` (clients that wait for their answer). Lengths: a number, the name of a
public trace's shape (:data:`SHAPES`), or a table ``{kind = ...}``.

One seed makes independent streams, one a purpose (``arrivals``, ``input_tokens``, ``output_tokens``, ``think``), so that
a change of one distribution leaves the others' draws as they were, and more requests extend a workload without
changing its beginning.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, log, pi
from statistics import NormalDist
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from simkv.errors import Problem, ScenarioError
from simkv.tables import MOST, TableReader, is_number, one_of
from simkv.workload.request import LONGEST_NS, IntArray, Workload, WorkloadInfo

__all__ = [
    "KINDS",
    "LENGTH_KINDS",
    "SHAPES",
    "Empirical",
    "Lengths",
    "LogNormal",
    "Percentiles",
    "Uniform",
    "generate",
    "generate_problems",
    "lengths",
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


# Lengths ---------------------------------------------------------------------------------------------------------


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


def _clip(table: TableReader) -> tuple[float, float]:
    low = table.integer("min", 1, low=1, unit="tokens")
    if table.get("max") is None:
        return low, inf
    high = table.integer("max", None, low=1, unit="tokens")
    if high < low:
        table.wrong("max", f"{high} is less than min, {low}")
    return low, max(low, high)


def _constant(table: TableReader) -> Lengths:
    value = table.integer("value", None, low=1, unit="tokens")
    return Uniform(value, value)


def _uniform(table: TableReader) -> Lengths:
    low = table.integer("min", None, low=1, unit="tokens")
    high = table.integer("max", None, low=1, unit="tokens")
    if high < low and not table.problems:
        table.wrong("max", f"{high} is less than min, {low}")
    return Uniform(low, max(low, high))


def _lognormal(table: TableReader) -> Lengths:
    median = table.number("median", None, above=True, unit="tokens")
    sigma = table.number("sigma", None, unit="standard deviation of the logarithm")
    return LogNormal(median, sigma, *_clip(table))


def _empirical(table: TableReader) -> Lengths:
    points, values, weights = table.get("percentiles"), table.get("values"), table.get("weights")
    clip = _clip(table)
    if (points is None) == (values is None):
        table.wrong("percentiles", "state either percentiles, a table {percentile = tokens}, or values with weights")
        return Uniform(1, 1)
    if points is not None:
        return Percentiles(_points(table, points), *clip)
    return Empirical(*_values(table, values, weights), *clip)


def _points(table: TableReader, points: Any) -> Points:
    """Checked percentile points (a harmless one where they are wrong)."""
    fallback: Points = ((0.0, 1.0),)
    if not isinstance(points, Mapping) or not points:
        table.wrong("percentiles", "is not a table {percentile = tokens} of at least one entry")
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
            table.wrong(f"percentiles.{key}", f"{tokens!r} is not a number >= 1 (tokens)")
        else:
            read.append((at, float(tokens)))
    if len(read) < len(points):
        return fallback
    read.sort()
    for (p, a), (q, b) in pairwise(read):
        if q == p or b < a:
            table.wrong("percentiles", f"percentile {q:g} ({b:g}) does not follow percentile {p:g} ({a:g})")
    return tuple(read)


def _values(table: TableReader, values: Any, weights: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Checked values and weights (harmless ones where they are wrong)."""
    before = len(table.problems)
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        table.wrong("values", f"{values!r} is not a list of at least one number (tokens)")
    elif not all(is_number(v) and v >= 1 for v in values):
        table.wrong("values", "holds something that is not a number >= 1 (tokens)")
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
    column : {"input_tokens", "output_tokens"}
        Which column of a shape is meant, and what errors name.

    Raises
    ------
    ScenarioError
        All problems at once, with dotted keys ``workload.<column>.*``.
    """
    problems: list[Problem] = []
    found = _lengths(spec, column, problems)
    if problems:
        raise ScenarioError("<workload>", problems)
    return found


def _lengths(spec: Any, column: str, problems: list[Problem]) -> Lengths:
    place = f"workload.{column}"
    if isinstance(spec, int) and not isinstance(spec, bool):
        spec = {"kind": "constant", "value": spec}
    elif isinstance(spec, str):
        spec = {"kind": spec}
    if not isinstance(spec, Mapping):
        shown = "is needed" if spec is None else f"{spec!r} is no length distribution"
        problems.append(Problem(place, f'{shown}: a number of tokens, a shape such as "azure2023_conv", or a table'))
        return Uniform(1, 1)
    kind = spec.get("kind") if isinstance(spec.get("kind"), str) else None
    table = TableReader(spec, place, [])
    if kind is not None and kind in SHAPES:
        found: Lengths = Percentiles(SHAPES[kind][column == "output_tokens"], *_clip(table))
    elif kind is not None and kind in LENGTH_KINDS:
        found = LENGTH_KINDS[kind](table)
    else:
        problems.append(Problem(f"{place}.kind", one_of(kind, [*LENGTH_KINDS, *SHAPES])))
        return Uniform(1, 1)
    table.close()
    problems += table.problems
    return found


# Arrivals --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Columns:
    arrival_s: FloatArray
    think_s: FloatArray | None = None
    concurrency: int | None = None


class _Arrivals(Protocol):
    def draw(self, n: int, seed: int) -> _Columns: ...


@dataclass(frozen=True)
class _Open:
    """An open loop: gaps of mean 1 / rate and a given variation; the rate may swing as a sine."""

    rate: float
    cv: float
    amplitude: float
    period_s: float

    def draw(self, n: int, seed: int) -> _Columns:
        rng = stream(seed, "arrivals")
        if self.cv == 0:
            gaps: FloatArray = np.ones(n)
        elif self.cv == 1:
            gaps = rng.standard_exponential(n)
        else:
            shape = 1 / self.cv**2
            gaps = rng.standard_gamma(shape, n) / shape
        operational = np.cumsum(gaps) / self.rate
        arrival = self._warp(operational)
        return _Columns(arrival - (arrival[0] if n else 0))

    def _warp(self, x: FloatArray) -> FloatArray:
        """Times t with ``t + (a P / 2 pi)(1 - cos(2 pi t / P)) = x``: rate(t) = rate (1 + a sin(2 pi t / P))."""
        if self.amplitude == 0:
            return x
        swing = self.amplitude * self.period_s / (2 * pi)
        low, high = x - 2 * swing, x.copy()
        for _ in range(64):
            middle = (low + high) / 2
            early = middle + swing * (1 - np.cos(2 * pi * middle / self.period_s)) < x
            low, high = np.where(early, middle, low), np.where(early, high, middle)
        return (low + high) / 2


@dataclass(frozen=True)
class _Burst:
    size: int
    interval_s: float

    def draw(self, n: int, seed: int) -> _Columns:
        return _Columns((np.arange(n) // self.size).astype(np.float64) * self.interval_s)


@dataclass(frozen=True)
class _Closed:
    concurrency: int
    think_s: float
    think_cv: float

    def draw(self, n: int, seed: int) -> _Columns:
        rng = stream(seed, "think")
        if self.think_cv == 0 or self.think_s == 0:
            think = np.full(n, self.think_s)
        else:
            shape = 1 / self.think_cv**2
            think = rng.standard_gamma(shape, n) / shape * self.think_s
        return _Columns(np.zeros(n), think, self.concurrency)


def _open(table: TableReader, cv: float) -> _Arrivals:
    rate = table.number("rate", None, above=True, unit="requests/s")
    amplitude = table.number("rate_amplitude", 0.0, high=1, unit="share of the rate")
    period = table.number("rate_period_s", None if amplitude > 0 else 1.0, above=True, unit="s")
    return _Open(rate, cv, amplitude, period)


def _poisson(table: TableReader) -> _Arrivals:
    return _open(table, 1.0)


def _steady(table: TableReader) -> _Arrivals:
    return _open(table, 0.0)


def _gamma(table: TableReader) -> _Arrivals:
    return _open(table, table.number("cv", None, above=True, unit="standard deviation of the gaps over their mean"))


def _burst(table: TableReader) -> _Arrivals:
    size = table.integer("burst_size", None, low=1, unit="requests")
    return _Burst(size, table.number("burst_interval_s", None, unit="s"))


def _closed(table: TableReader) -> _Arrivals:
    concurrency = table.integer("concurrency", None, low=1, unit="clients")
    think = table.number("think_s", 0.0, unit="mean pause, s")
    return _Closed(concurrency, think, table.number("think_cv", 1.0, unit="0: constant, 1: exponential"))


KINDS = MappingProxyType(
    {"poisson": _poisson, "gamma": _gamma, "constant": _steady, "burst": _burst, "closed": _closed}
)
"""Kinds of arrivals."""


def generate_problems(spec: Mapping[str, Any]) -> list[Problem]:
    """Everything :func:`generate` would refuse in a table, without drawing."""
    problems: list[Problem] = []
    _parse(spec, problems)
    return problems


def _parse(spec: Mapping[str, Any], problems: list[Problem]) -> tuple[int, dict[str, Lengths], bool, _Arrivals | None]:
    """Number of requests, lengths, ``ignore_eos`` and arrivals of a table."""
    table = TableReader(spec, "workload", problems)
    kind = spec.get("kind") if isinstance(spec.get("kind"), str) else None
    n = table.integer("num_requests", None, low=1, unit="requests")
    columns = {name: _lengths(table.get(name), name, problems) for name in ("input_tokens", "output_tokens")}
    ignore_eos = table.flag("ignore_eos", False)
    if kind is None or kind not in KINDS:
        table.wrong("kind", one_of(spec.get("kind"), KINDS))
        return n, columns, ignore_eos, None
    arrivals = KINDS[kind](table)
    table.close()
    return n, columns, ignore_eos, arrivals


def generate(spec: Mapping[str, Any], seed: int = 0) -> Workload:
    """A workload from its table.

    Parameters
    ----------
    spec : mapping
        ``kind`` (a key of :data:`KINDS`), ``num_requests``, ``input_tokens``, ``output_tokens`` (see :func:`lengths`),
        ``ignore_eos`` (default false), and the kind's own:

        - ``poisson``: ``rate`` (requests/s); optional ``rate_amplitude`` a in [0, 1] and ``rate_period_s`` P for
          rate(t) = rate (1 + a sin(2 pi t / P)), also of ``gamma`` and ``constant``;
        - ``gamma``: ``rate``, ``cv`` of the gaps (1 is Poisson, above 1 bursty);
        - ``constant``: ``rate``;
        - ``burst``: ``burst_size`` requests every ``burst_interval_s``;
        - ``closed``: ``concurrency`` clients, ``think_s`` mean pause (default 0), ``think_cv`` (default 1,
          exponential; 0 constant; else gamma).
    seed : int
        Seed of the run, >= 0.

    Returns
    -------
    Workload
        The first request of an open loop arrives at 0. Lengths are rounded to whole tokens, at least 1.

    Raises
    ------
    ScenarioError
        All problems at once, with dotted keys ``workload.*``.
    """
    problems: list[Problem] = []
    n, columns, ignore_eos, arrivals = _parse(spec, problems)
    if problems or arrivals is None:
        raise ScenarioError("<workload>", problems)

    drawn = arrivals.draw(n, seed)
    tokens = {name: _tokens(columns[name], name, seed, n) for name in columns}
    return Workload(
        arrival_ns=_nanoseconds(drawn.arrival_s),
        input_tokens=tokens["input_tokens"],
        output_tokens=tokens["output_tokens"],
        request_id=tuple(map(str, range(n))),
        ignore_eos=ignore_eos,
        concurrency=drawn.concurrency,
        think_ns=None if drawn.think_s is None else _nanoseconds(drawn.think_s),
        info=WorkloadInfo(source="generated", format=str(spec["kind"]), time_unit="ns", rows=n),
    )


def _tokens(distribution: Lengths, name: str, seed: int, n: int) -> IntArray:
    drawn = np.rint(distribution.quantile(stream(seed, name).random(n)))
    if drawn.max(initial=1) > MOST:
        message = f"draws lengths up to {drawn.max():.3g} tokens, more than {MOST:,}: state its max"
        raise ScenarioError("<workload>", [Problem(f"workload.{name}", message)])
    return np.maximum(drawn, 1).astype(np.int64)


def _nanoseconds(seconds: FloatArray) -> IntArray:
    if seconds.max(initial=0) > LONGEST_NS / 1e9:
        message = (
            f"the last request comes after {seconds.max():.3g} s, more than a hundred years: fewer requests, or faster"
        )
        raise ScenarioError("<workload>", [Problem("workload", message)])
    return np.rint(seconds * 1e9).astype(np.int64)
