"""Synthetic workloads: an arrival process, length distributions, and what requests share.

::

    generate({"kind": "poisson", "rate": 8.0, "num_requests": 1000,
              "input_tokens": "azure2023_conv",
              "output_tokens": {"kind": "lognormal", "median": 200, "sigma": 0.8, "max": 2000}}, seed=7)

Arrival kinds: ``poisson``, ``gamma``, ``constant`` (an open loop of a given rate, which may swing as a sine), ``burst``
(so many at once, every so often) and ``closed`` (clients that wait for their answer). Lengths: a number, the name of a
public trace's shape (:data:`~simkv.workload.lengths.SHAPES`), or a table ``{kind = ...}``.

What requests share: system prompts (``shared_prefix_tokens``), and conversations (``turns``), whose every turn repeats
the one before it and its answer.

One seed makes independent streams, one a purpose (``arrivals``, ``input_tokens``, ``output_tokens``, ``think``,
``turns``, ``shared_prefix_tokens``, ``shared_prefix``), so that a change of one distribution leaves the others' draws
as they were, and more requests extend a workload without changing its beginning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import pi
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from simkv.errors import Problem, ScenarioError
from simkv.tables import MOST, TableReader, one_of
from simkv.workload.lengths import Empirical, FloatArray, Lengths, draw_lengths, read_lengths, stream
from simkv.workload.request import LONGEST_NS, IntArray, Workload, WorkloadInfo
from simkv.workload.sessions import contents_of_sessions
from simkv.workload.tokens import Contents

__all__ = ["KINDS", "generate", "generate_problems"]


# Arrivals --------------------------------------------------------------------------------------------------------


class _Arrivals(Protocol):
    def draw(self, n: int, seed: int) -> FloatArray:
        """Arrivals in seconds, ascending."""
        ...


@dataclass(frozen=True)
class _Open:
    """An open loop: gaps of mean 1 / rate and a given variation; the rate may swing as a sine."""

    rate: float
    cv: float
    amplitude: float
    period_s: float

    def draw(self, n: int, seed: int) -> FloatArray:
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
        return np.asarray(arrival - (arrival[0] if n else 0))

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

    def draw(self, n: int, seed: int) -> FloatArray:
        return (np.arange(n) // self.size).astype(np.float64) * self.interval_s


@dataclass(frozen=True)
class _Closed:
    concurrency: int

    def draw(self, n: int, seed: int) -> FloatArray:
        return np.zeros(n)


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
    return _Closed(table.integer("concurrency", None, low=1, unit="clients"))


KINDS = MappingProxyType(
    {"poisson": _poisson, "gamma": _gamma, "constant": _steady, "burst": _burst, "closed": _closed}
)
"""Kinds of arrivals."""


# What requests share ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pause:
    """Time a client takes before it sends a request: mean, and standard deviation over the mean."""

    mean_s: float
    cv: float

    def draw(self, n: int, seed: int) -> FloatArray:
        if self.cv == 0 or self.mean_s == 0:
            return np.full(n, self.mean_s)
        shape = 1 / self.cv**2
        return np.asarray(stream(seed, "think").standard_gamma(shape, n) / shape * self.mean_s)


@dataclass(frozen=True)
class _Prefixes:
    """System prompts: a pool of them, the k-th taken as often as k to the power of -zipf says."""

    tokens: Lengths
    pool: int
    zipf: float

    def draw(self, n: int, seed: int) -> tuple[IntArray, IntArray, int]:
        """First token and length of the prefix of each of ``n`` conversations, and how many tokens all have."""
        length = draw_lengths(self.tokens, "shared_prefix_tokens", seed, self.pool)
        end = np.cumsum(length)
        weights = np.arange(1, self.pool + 1, dtype=np.float64) ** -self.zipf
        popular = Empirical(tuple(range(self.pool)), tuple(weights.tolist()), min=0)
        chosen = popular.quantile(stream(seed, "shared_prefix").random(n)).astype(np.int64)
        return (end - length)[chosen], length[chosen], int(end[-1])


_MOST_PREFIXES = 1_000_000


def _pause(table: TableReader, kind: str, turns: Lengths | None) -> _Pause | None:
    if kind != "closed" and turns is None:
        for key in ("think_s", "think_cv"):
            if table.get(key) is not None:
                table.wrong(key, 'is about pauses before a turn: state turns too, or kind = "closed"')
        return None
    mean = table.number("think_s", 0.0, unit="mean pause, s")
    return _Pause(mean, table.number("think_cv", 1.0, unit="0: constant, 1: exponential"))


def _prefixes(table: TableReader) -> _Prefixes | None:
    tokens = table.get("shared_prefix_tokens")
    if tokens is None:
        for key in ("shared_prefix_pool", "shared_prefix_zipf"):
            if table.get(key) is not None:
                table.wrong(key, "is about shared prefixes: state shared_prefix_tokens too")
        return None
    read = read_lengths(tokens, "shared_prefix_tokens", table.problems)
    pool = table.integer("shared_prefix_pool", 1, low=1, unit="prefixes")
    if pool > _MOST_PREFIXES:
        table.wrong("shared_prefix_pool", f"{pool} is more than {_MOST_PREFIXES:,} prefixes")
    return _Prefixes(read, pool, table.number("shared_prefix_zipf", 0.0, unit="exponent, 0: all alike"))


# The workload ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Spec:
    """A table as read."""

    num_requests: int
    input_tokens: Lengths
    output_tokens: Lengths
    ignore_eos: bool
    arrivals: _Arrivals
    pause: _Pause | None
    prefixes: _Prefixes | None
    turns: Lengths | None


def generate_problems(spec: Mapping[str, Any]) -> list[Problem]:
    """Everything :func:`generate` would refuse in a table, without drawing."""
    problems: list[Problem] = []
    _parse(spec, problems)
    return problems


def _parse(spec: Mapping[str, Any], problems: list[Problem]) -> _Spec | None:
    table = TableReader(spec, "workload", problems)
    kind = spec.get("kind") if isinstance(spec.get("kind"), str) else None
    n = table.integer("num_requests", None, low=1, unit="requests")
    given, made = (read_lengths(table.get(name), name, problems) for name in ("input_tokens", "output_tokens"))
    ignore_eos = table.flag("ignore_eos", False)
    if kind is None or kind not in KINDS:
        table.wrong("kind", one_of(spec.get("kind"), KINDS))
        return None
    arrivals = KINDS[kind](table)
    turns = None if table.get("turns") is None else read_lengths(spec["turns"], "turns", problems)
    pause, prefixes = _pause(table, kind, turns), _prefixes(table)
    table.close()
    return _Spec(n, given, made, ignore_eos, arrivals, pause, prefixes, turns)


def generate(spec: Mapping[str, Any], seed: int = 0) -> Workload:
    """A workload from its table.

    Parameters
    ----------
    spec : mapping
        ``kind`` (a key of :data:`KINDS`), ``num_requests``, ``input_tokens``, ``output_tokens`` (see
        :func:`~simkv.workload.lengths.lengths`), ``ignore_eos`` (default false), and the kind's own:

        - ``poisson``: ``rate`` (requests/s); optional ``rate_amplitude`` a in [0, 1] and ``rate_period_s`` P for
          rate(t) = rate (1 + a sin(2 pi t / P)), also of ``gamma`` and ``constant``;
        - ``gamma``: ``rate``, ``cv`` of the gaps (1 is Poisson, above 1 bursty);
        - ``constant``: ``rate``;
        - ``burst``: ``burst_size`` requests every ``burst_interval_s``;
        - ``closed``: ``concurrency`` clients, ``think_s`` mean pause (default 0), ``think_cv`` (default 1,
          exponential; 0 constant; else gamma).

        Of any kind, what requests share:

        - ``shared_prefix_tokens``: length of a system prompt (a distribution as ``input_tokens``, drawn once a
          prefix), which comes in front of ``input_tokens``; ``shared_prefix_pool`` different ones (default 1), the
          k-th taken in proportion to k to the power of -``shared_prefix_zipf`` (default 0: all alike);
        - ``turns``: turns of a session (a number or a distribution without shapes). A turn's prompt is prompt and
          answer of the turn before it and ``input_tokens`` new ones. Arrivals (``rate``, ``burst_size``) are then those
          of sessions; each further turn is sent ``think_s`` (mean, default 0, ``think_cv`` as above) after the answer
          before it. In a closed loop a client runs one session after the other and thinks before every turn.
          ``num_requests`` counts turns; the last session is cut.
    seed : int
        Seed of the run, >= 0.

    Returns
    -------
    Workload
        The first request of an open loop arrives at 0. Lengths are rounded to whole tokens, at least 1. Sessions stand
        one behind the other in the order in which they start, each with its turns in order.

    Raises
    ------
    ScenarioError
        All problems at once, with dotted keys ``workload.*``.
    """
    problems: list[Problem] = []
    read = _parse(spec, problems)
    if problems or read is None:
        raise ScenarioError("<workload>", problems)

    n = read.num_requests
    session = np.arange(n) if read.turns is None else _sessions(draw_lengths(read.turns, "turns", seed, n))
    first = np.diff(session, prepend=-1) > 0
    given = draw_lengths(read.input_tokens, "input_tokens", seed, n)
    made = draw_lengths(read.output_tokens, "output_tokens", seed, n)
    contents = None
    if read.prefixes is not None or read.turns is not None:
        given, contents = _share(read, session, first, given, made, seed)
    pause = None if read.pause is None else _nanoseconds(read.pause.draw(n, seed))
    if pause is not None and not isinstance(read.arrivals, _Closed):
        pause[first] = 0
    return Workload(
        arrival_ns=_nanoseconds(read.arrivals.draw(int(session[-1]) + 1, seed))[session],
        input_tokens=given,
        output_tokens=made,
        request_id=tuple(map(str, range(n))),
        ignore_eos=read.ignore_eos,
        contents=contents,
        session=None if read.turns is None else session,
        concurrency=read.arrivals.concurrency if isinstance(read.arrivals, _Closed) else None,
        previous=None if read.turns is None else np.where(first, -1, np.arange(n) - 1),
        think_ns=pause,
        info=WorkloadInfo(source="generated", format=str(spec["kind"]), time_unit="ns", rows=n),
    )


def _sessions(turns: IntArray) -> IntArray:
    """Number of the session of each request: sessions of so many turns, as many requests as there are numbers given."""
    n = len(turns)
    ends = np.cumsum(turns)
    sessions = int(np.searchsorted(ends, n)) + 1
    counts = np.diff(np.minimum(ends[:sessions], n), prepend=0)
    return np.repeat(np.arange(sessions), counts)


def _share(
    read: _Spec, session: IntArray, first: NDArray[np.bool_], given: IntArray, made: IntArray, seed: int
) -> tuple[IntArray, Contents]:
    """Whole prompts from the tokens each request adds, and what they are made of."""
    chains = int(session[-1]) + 1
    start, length, used = np.zeros(chains, np.int64), np.zeros(chains, np.int64), 0
    if read.prefixes is not None:
        start, length, used = read.prefixes.draw(chains, seed)
    added = given + np.where(first, length[session], np.roll(made, 1))
    total = np.cumsum(added)
    whole = total - (total - added)[first][session]
    if whole.max() > MOST:
        place = "workload.shared_prefix_tokens" if read.turns is None else "workload.turns"
        message = f"makes prompts of up to {whole.max():,} tokens, more than {MOST:,}: fewer or shorter ones"
        raise ScenarioError("<workload>", [Problem(place, message)])
    if read.turns is None:
        return whole, Contents(start, length, np.arange(len(given) + 1))
    begins = dict(enumerate(zip(start.tolist(), length.tolist(), strict=True)))
    return whole, contents_of_sessions(session, whole, made, begins, used)[0]


def _nanoseconds(seconds: FloatArray) -> IntArray:
    if seconds.max(initial=0) > LONGEST_NS / 1e9:
        message = (
            f"the last request comes after {seconds.max():.3g} s, more than a hundred years: fewer requests, or faster"
        )
        raise ScenarioError("<workload>", [Problem("workload", message)])
    return np.rint(seconds * 1e9).astype(np.int64)
