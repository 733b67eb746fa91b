"""Where an outcome changes along a number: a coarse grid, bisection between neighbours that differ, a finer grid where the
outcome goes to and fro.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import floor, log10

__all__ = ["Found", "Interval", "Scale", "common", "intervals", "search"]

Number = int | float
Asked = tuple[Number, int]
"""A value and a seed."""
Interval = tuple[Number, Number]
"""First and last tested value of a run of values that hold."""

# Values tried first, and where they show that the outcome goes to and fro.
COARSE, FINE = 9, 25
# From this quotient of its ends on, a scale is looked at in factors and not in differences.
_FACTORS = 8


@dataclass(frozen=True)
class Scale:
    """The values a knob may take.

    Parameters
    ----------
    low, high : int or float
        Both ends, which belong to it.
    whole : bool
        Only integers.
    tolerance : float
        Neighbours that differ are told apart to this share of the larger one, integers at least to 1, fractions at most to
        the four digits that values are written with.
    """

    low: Number
    high: Number
    whole: bool
    tolerance: float

    @property
    def _geometric(self) -> bool:
        return self.low > 0 and self.high / self.low >= _FACTORS

    def grid(self, count: int) -> list[Number]:
        """About so many values from end to end, ascending, each once."""
        steps = [number / (count - 1) for number in range(count)]
        if self._geometric:
            raw = [self.low * (self.high / self.low) ** share for share in steps]
        else:
            raw = [self.low + (self.high - self.low) * share for share in steps]
        inside = {self._neat(value) for value in raw[1:-1]}
        return sorted({self.low, self.high, *(value for value in inside if self.low < value < self.high)})

    def middle(self, low: Number, high: Number) -> Number | None:
        """A value between two, None where they are as near as wanted."""
        # Towards zero a share of the value would go on for ever: there it is a share of the scale.
        least = self.tolerance * (self.high - self.low) if self.low <= 0 else 0.0
        near = self.tolerance * max(abs(low), abs(high), least)
        if high - low <= near or (self.whole and high - low <= 1):
            return None
        value = self._neat((low * high) ** 0.5 if self._geometric else (low + high) / 2)
        return value if low < value < high else None

    def _neat(self, value: float) -> Number:
        """A value as a person would write it: whole, or of four digits."""
        if self.whole:
            return floor(value + 0.5)
        return 0.0 if not value else float(f"{value:.{max(0, 3 - floor(log10(abs(value))))}f}")


@dataclass(frozen=True)
class Found:
    """What a search saw.

    Parameters
    ----------
    holds : dict of (value, seed) to bool
    monotone : bool
        Of every seed, the outcome changes once at the most, and all in the same direction.
    """

    holds: Mapping[Asked, bool]
    monotone: bool

    def of(self, seed: int) -> dict[Number, bool]:
        """Outcomes of one seed by value, ascending."""
        return {value: self.holds[value, own] for value, own in sorted(self.holds) if own == seed}


def search(scale: Scale, seeds: Sequence[int], ask: Callable[[list[Asked]], Mapping[Asked, bool]]) -> Found:
    """Find where the outcome changes, of every seed.

    Parameters
    ----------
    scale : Scale
    seeds : sequence of int
    ask : callable
        Outcomes of values and seeds, all at once, so that they can be run side by side.
    """
    holds: dict[Asked, bool] = {}

    def add(values: Iterable[Asked]) -> None:
        new = [pair for pair in values if pair not in holds]
        if new:
            holds.update(ask(new))

    add((value, seed) for value in scale.grid(COARSE) for seed in seeds)
    if not _monotone(holds, seeds):
        add((value, seed) for value in scale.grid(FINE) for seed in seeds)
    while between := [pair for seed in seeds for pair in _between(scale, holds, seed)]:
        add(between)
    # What all seeds agree on rests on values that all of them were asked.
    while missing := [pair for pair in _ends(holds, seeds) if pair not in holds]:
        add(missing)
        while between := [pair for seed in seeds for pair in _between(scale, holds, seed)]:
            add(between)
    return Found(holds, _monotone(holds, seeds))


def _of(holds: Mapping[Asked, bool], seed: int) -> list[tuple[Number, bool]]:
    return sorted((value, held) for (value, own), held in holds.items() if own == seed)


def _between(scale: Scale, holds: Mapping[Asked, bool], seed: int) -> Iterable[Asked]:
    """Middles of neighbours that differ and are not near enough yet."""
    for (low, before), (high, after) in pairwise(_of(holds, seed)):
        if before != after and (middle := scale.middle(low, high)) is not None:
            yield middle, seed


def _ends(holds: Mapping[Asked, bool], seeds: Sequence[int]) -> Iterable[Asked]:
    """Ends of what holds with all seeds, asked of each of them."""
    for low, high in common([intervals(dict(_of(holds, seed))) for seed in seeds]):
        yield from ((value, seed) for value in (low, high) for seed in seeds)


def _monotone(holds: Mapping[Asked, bool], seeds: Sequence[int]) -> bool:
    changes = set()
    for seed in seeds:
        outcomes = [held for _, held in _of(holds, seed)]
        switches = [after for before, after in pairwise(outcomes) if before != after]
        if len(switches) > 1:
            return False
        changes.update(switches)
    return len(changes) <= 1


def intervals(outcomes: Mapping[Number, bool]) -> list[Interval]:
    """Runs of tested values that hold, ascending."""
    out: list[Interval] = []
    run: list[Number] = []
    for value, held in sorted(outcomes.items()):
        if held:
            run.append(value)
        elif run:
            out.append((run[0], run[-1]))
            run = []
    return [*out, (run[0], run[-1])] if run else out


def common(several: Sequence[Sequence[Interval]]) -> list[Interval]:
    """What lies in an interval of each."""
    if not several:
        return []
    out = list(several[0])
    for other in several[1:]:
        pairs = [(max(a, c), min(b, d)) for a, b in out for c, d in other]
        out = [(low, high) for low, high in pairs if low <= high]
    return out
