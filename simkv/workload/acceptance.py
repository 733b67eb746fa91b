"""How many tokens a verify step accepts.

Lengths count the bonus token: 1 means that no draft token was accepted, ``width`` that all were. ``width`` is the
longest length a step can yield (draft steps + 1 for a chain).

Draws are *keyed*: the luck of verify step ``v`` of request ``r`` depends on ``(seed, r, v)`` and on nothing else, so two
policies that schedule the same requests differently see the same luck. The uniform of a key is output number
``r * 2**32 + v`` of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) started at the mixed seed, its top 53 bits divided by
2**53; distinct keys below 2**32 give distinct counters.

Every model but ``trace`` is a survival function ``s_i = P(length > i)``, ``i = 1 .. width - 1``; a draw is
``1 + #{i : u < s_i}`` and the mean ``1 + sum(s_i)``. One uniform a step couples models: with the same seed, a model with
larger ``s`` never accepts less, and a narrower step accepts the shorter of its width and what the wide one accepts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from simkv.errors import Problem, ScenarioError
from simkv.tables import is_number, keyword_problems
from simkv.workload.request import IntArray

__all__ = [
    "ACCEPTANCE",
    "Acceptance",
    "Fixed",
    "Geometric",
    "Histogram",
    "NoDraft",
    "PerPosition",
    "Trace",
    "acceptance_problems",
    "keyed_uniform",
]

_GAMMA = 0x9E3779B97F4A7C15  # odd, 2**64 / golden ratio
_MIX_A = 0xBF58476D1CE4E5B9
_MIX_B = 0x94D049BB133111EB
_MASK = (1 << 64) - 1

_U_GAMMA, _U_MIX_A, _U_MIX_B = np.uint64(_GAMMA), np.uint64(_MIX_A), np.uint64(_MIX_B)
_U11, _U27, _U30, _U31, _U32 = (np.uint64(n) for n in (11, 27, 30, 31, 32))


def _start(seed: int) -> np.uint64:
    """SplitMix64's mix of the seed: where the counters of this seed start."""
    z = (seed + _GAMMA) & _MASK
    z = ((z ^ (z >> 30)) * _MIX_A) & _MASK
    z = ((z ^ (z >> 27)) * _MIX_B) & _MASK
    return np.uint64(z ^ (z >> 31))


def _uniform(start: np.uint64, request: IntArray, verify_index: IntArray) -> NDArray[np.float64]:
    z = request.astype(np.uint64)
    z <<= _U32
    z += verify_index.astype(np.uint64)
    z *= _U_GAMMA
    z += start
    z ^= z >> _U30
    z *= _U_MIX_A
    z ^= z >> _U27
    z *= _U_MIX_B
    z ^= z >> _U31
    z >>= _U11
    return z.astype(np.float64) * 2.0**-53


def keyed_uniform(seed: int, request: IntArray, verify_index: IntArray) -> NDArray[np.float64]:
    """Uniforms in [0, 1) that depend on their key only.

    Parameters
    ----------
    seed : int
        Seed of the run, taken modulo 2**64.
    request, verify_index : int64 array, same shape
        Key of each draw, both in [0, 2**32).

    Returns
    -------
    float64 array, same shape
    """
    return _uniform(_start(seed), request, verify_index)


class Acceptance(Protocol):
    """Gives the accepted lengths of verify steps."""

    def draw(self, request: IntArray, verify_index: IntArray) -> IntArray:
        """Accepted lengths, bonus included.

        Parameters
        ----------
        request : int64 array, shape (n,)
            Number of each request in its workload.
        verify_index : int64 array, shape (n,)
            How many verify steps the request had before this one.

        Returns
        -------
        int64 array, shape (n,)
            In [1, width].
        """
        ...

    def mean_length(self, width: int | None = None) -> float:
        """Expected length for steps of this width (default: the model's own)."""
        ...


def _width_problems(width: object) -> list[Problem]:
    if isinstance(width, int) and not isinstance(width, bool) and width >= 1:
        return []
    return [Problem("acceptance.width", f"{width!r} is not an integer >= 1")]


def _refuse(problems: list[Problem]) -> None:
    if problems:
        raise ScenarioError("<acceptance>", problems)


def _list_problems(place: str, values: Any, high: float, what: str) -> tuple[tuple[float, ...], list[Problem]]:
    """The values as a tuple, and what is wrong with them."""
    if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray) or len(values) == 0:
        return (), [Problem(place, f"{values!r} is not a list of at least one number")]
    items = tuple(v.item() if isinstance(v, np.generic) else v for v in values)
    bad = [Problem(f"{place}[{i}]", f"{v!r} is not {what}") for i, v in enumerate(items) if not _in(v, high)]
    return items, bad


def _in(value: Any, high: float) -> bool:
    return is_number(value) and 0 <= value <= high


@dataclass(frozen=True, kw_only=True)
class _Drawn:
    """Draws by one uniform a step from a survival function; subclasses give that function.

    Parameters
    ----------
    width : int
        Longest length a step can yield.
    seed : int
        Seed of the run.
    """

    width: int
    seed: int = 0
    _ascending: NDArray[np.float64] = field(init=False, repr=False, compare=False)
    _first: np.uint64 = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        width = _width_problems(self.width)
        _refuse([*width, *self._check(0 if width else self.width)])
        object.__setattr__(self, "_first", _start(self.seed))
        object.__setattr__(self, "_ascending", np.array(self._survival(self.width)[::-1], dtype=np.float64))

    def _check(self, width: int) -> list[Problem]:
        """What is wrong with the model's own parameters (``width`` is 0 where it is wrong itself)."""
        raise NotImplementedError

    def _survival(self, width: int) -> Sequence[float]:
        """``P(length > i)`` for i = 1 .. width - 1, descending."""
        raise NotImplementedError

    def draw(self, request: IntArray, verify_index: IntArray) -> IntArray:
        """Accepted lengths, int64, same shape; see :class:`Acceptance`."""
        u = _uniform(self._first, request, verify_index)
        below = self._ascending.searchsorted(u, side="right")
        return (len(self._ascending) + 1) - below

    def mean_length(self, width: int | None = None) -> float:
        """``1 + sum of s_i``."""
        width = self.width if width is None else width
        _refuse([*_width_problems(width), *self._check(width)])
        return 1.0 + sum(self._survival(width))


@dataclass(frozen=True, kw_only=True)
class NoDraft(_Drawn):
    """Every step yields one token: no speculation, or a draft that is always wrong."""

    width: int = 1

    def draw(self, request: IntArray, verify_index: IntArray) -> IntArray:
        """Ones, int64, same shape as ``request``."""
        return np.ones(request.shape, dtype=np.int64)

    def _check(self, width: int) -> list[Problem]:
        return []

    def _survival(self, width: int) -> Sequence[float]:
        return ()


@dataclass(frozen=True, kw_only=True)
class Fixed(_Drawn):
    """Every step yields ``min(length, width)`` tokens.

    Parameters
    ----------
    length : int
        Accepted length, bonus included, >= 1.
    """

    length: int

    def _check(self, width: int) -> list[Problem]:
        if isinstance(self.length, int) and not isinstance(self.length, bool) and self.length >= 1:
            return []
        return [Problem("acceptance.length", f"{self.length!r} is not an integer >= 1 (the bonus token counts)")]

    def _survival(self, width: int) -> Sequence[float]:
        return [1.0 if i < self.length else 0.0 for i in range(1, width)]


@dataclass(frozen=True, kw_only=True)
class Geometric(_Drawn):
    """Each draft token is accepted with the same probability, given that those before it were.

    Mean ``(1 - alpha**width) / (1 - alpha)``.

    Parameters
    ----------
    alpha : float
        In [0, 1].
    """

    alpha: float

    def _check(self, width: int) -> list[Problem]:
        return [] if _in(self.alpha, 1) else [Problem("acceptance.alpha", f"{self.alpha!r} is not in [0, 1]")]

    def _survival(self, width: int) -> Sequence[float]:
        return [float(self.alpha) ** i for i in range(1, width)]


@dataclass(frozen=True, kw_only=True)
class PerPosition(_Drawn):
    """Each draft position has a probability of its own. Mean ``1 + p1 + p1 p2 + ...``.

    Parameters
    ----------
    p : tuple of float
        P(position i accepted | all before it), in [0, 1]; at least ``width - 1`` of them, further ones are unused.
    """

    p: Sequence[float]

    def _check(self, width: int) -> list[Problem]:
        p, problems = _list_problems("acceptance.p", self.p, 1, "a probability in [0, 1]")
        if not problems and len(p) < width - 1:
            message = f"{len(p)} probabilities for {width - 1} draft positions; state one for each"
            problems = [Problem("acceptance.p", message)]
        object.__setattr__(self, "p", p if not problems else self.p)
        return problems

    def _survival(self, width: int) -> Sequence[float]:
        return list(accumulate(self.p[: width - 1], mul))


@dataclass(frozen=True, kw_only=True)
class Histogram(_Drawn):
    """Lengths with given frequencies. A step narrower than the histogram yields ``min(length, width)``.

    Parameters
    ----------
    weights : tuple of float
        ``weights[k - 1]`` is the weight of length k; >= 0, not all 0. Need not sum to 1.
    """

    weights: Sequence[float]

    def _check(self, width: int) -> list[Problem]:
        weights, problems = _list_problems("acceptance.weights", self.weights, float("inf"), "a weight >= 0")
        if not problems and sum(weights) <= 0:
            problems = [Problem("acceptance.weights", "all weights are 0")]
        object.__setattr__(self, "weights", weights if not problems else self.weights)
        return problems

    def _survival(self, width: int) -> Sequence[float]:
        total = sum(self.weights)
        return [sum(self.weights[i:]) / total for i in range(1, width)]


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """Recorded lengths: step ``v`` of request ``r`` yields ``min(lengths[r][v % len(lengths[r])], width)``.

    Parameters
    ----------
    lengths : tuple of int arrays
        One list a request (``Workload.accept``), each of at least one length >= 1.
    width : int
        Longest length a step can yield; a recorded step that was wider is cut.
    seed : int
        Not used: nothing is drawn.
    """

    lengths: Sequence[Sequence[int] | IntArray]
    width: int
    seed: int = 0
    _flat: IntArray = field(init=False, repr=False, compare=False)
    _offset: IntArray = field(init=False, repr=False, compare=False)
    _count: IntArray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        place = "workload.accept"
        problems = _width_problems(self.width)
        if self.lengths is None or len(self.lengths) == 0:
            remedy = "the workload records no accepted lengths; use another acceptance.kind"
            _refuse([*problems, Problem(place, remedy)])
        rows = [np.asarray(row, dtype=np.int64) for row in self.lengths]
        for i, row in enumerate(rows):
            if row.size == 0 or row.min() < 1:
                problems.append(Problem(f"{place}[{i}]", "needs at least one length, each >= 1 with the bonus token"))
        _refuse(problems)
        count = np.array([len(row) for row in rows], dtype=np.int64)
        object.__setattr__(self, "_flat", np.minimum(np.concatenate(rows), self.width))
        object.__setattr__(self, "_count", count)
        object.__setattr__(self, "_offset", np.cumsum(count) - count)

    def draw(self, request: IntArray, verify_index: IntArray) -> IntArray:
        """Accepted lengths, int64, same shape; see :class:`Acceptance`."""
        return self._flat[self._offset[request] + verify_index % self._count[request]]

    def mean_length(self, width: int | None = None) -> float:
        """Mean over all recorded steps, each cut at ``width`` (at most the model's own)."""
        flat = self._flat if width is None else np.minimum(self._flat, width)
        return float(flat.mean())


ACCEPTANCE: Mapping[str, type[Acceptance]] = MappingProxyType(
    {
        "none": NoDraft,
        "fixed": Fixed,
        "geometric": Geometric,
        "per-position": PerPosition,
        "histogram": Histogram,
        "trace": Trace,
    }
)


def acceptance_problems(table: Mapping[str, Any]) -> list[Problem]:
    """Everything that is wrong in an ``[acceptance]`` table, whatever the draft's width.

    Parameters
    ----------
    table : mapping
        ``kind`` (a key of :data:`ACCEPTANCE`) and the kind's own parameters.
    """
    own = {key: value for key, value in table.items() if key != "kind"}
    family: Any = ACCEPTANCE[table["kind"]]
    problems = keyword_problems("acceptance", family, own, hidden=("width", "seed", "lengths"))
    if problems or family is Trace:
        return problems
    try:
        family(width=1, **own)
    except ScenarioError as error:
        return list(error.problems)
    return []
