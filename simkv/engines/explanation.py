"""The arithmetic of a plan, as data: which sum every figure is, and what follows from it for requests of one length."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from simkv.markup import html_table

__all__ = ["Alternative", "Balance", "Equation", "Explanation", "Fit", "LengthCost", "WindowCost"]


@dataclass(frozen=True)
class Equation:
    """One figure and the sum it is.

    Parameters
    ----------
    name : str
        What it is.
    formula : str
        The sum in numbers; ``floor_64(x)`` and ``ceil_64(x)`` round to whole pages of 64, ``int(x)`` cuts off.
    value : int or float
        What comes out.
    unit : str
        ``B``, ``tokens``, ``B/token``.
    source : str
        Where the rule stands (engine file:line).
    """

    name: str
    formula: str
    value: float
    unit: str
    source: str = ""


@dataclass(frozen=True)
class Fit:
    """How many requests of one length a limit holds at once.

    Parameters
    ----------
    limit : str
        ``full``, ``swa`` or ``rows`` (max_running_requests).
    capacity : int
        Tokens of the pool, or rows.
    holding : int
        Tokens one request holds at its longest; 1 row.
    formula : str
        How ``holding`` comes about.
    requests : int
        How many fit when all are at their longest.
    """

    limit: str
    capacity: int
    holding: int
    formula: str
    requests: int


@dataclass(frozen=True)
class Balance:
    """The ratio at which full and SWA pool run out together.

    Parameters
    ----------
    ratio : float
        ``swa_full_tokens_ratio``, to four digits.
    requests : int
        How many requests fit then.
    full_tokens, swa_tokens : int
        Pools the engine makes of it.
    formula : str
        How the ratio comes about.
    """

    ratio: float
    requests: int
    full_tokens: int
    swa_tokens: int
    formula: str


@dataclass(frozen=True)
class LengthCost:
    """KV that the model itself needs for one sequence, every layer counted, on one rank.

    Parameters
    ----------
    tokens : int
        Length of the sequence.
    split, unsplit : int
        Bytes where sliding layers keep their window only, and where every layer keeps everything.
    """

    tokens: int
    split: int
    unsplit: int

    @property
    def ratio(self) -> float:
        """How many times more it takes without the split."""
        return self.unsplit / self.split


@dataclass(frozen=True)
class WindowCost:
    """What the window of one sequence takes in whole pages.

    Parameters
    ----------
    page_size : int
    mean_pages : float
        Over all offsets of the window in a page.
    most_pages : int
    held : int
        SWA tokens that the engine lets a decoding request hold with that page size.
    """

    page_size: int
    mean_pages: float
    most_pages: int
    held: int

    @property
    def mean_tokens(self) -> float:
        """Tokens of those pages."""
        return self.mean_pages * self.page_size

    @property
    def most_tokens(self) -> int:
        """Tokens of the most pages."""
        return self.most_pages * self.page_size


@dataclass(frozen=True)
class Alternative:
    """The same budget under another setting.

    Parameters
    ----------
    name : str
        In words.
    change : str
        The override that makes it; empty for the scenario as it is.
    bytes_per_token : float
    full_tokens, swa_tokens : int or None
        None where there is no such pool.
    requests : int or None
        How many requests the pools hold at once, whatever max_running_requests says; None where the server would not start.
    binding : str
        Which pool holds the fewest.
    note : str
    """

    name: str
    change: str
    bytes_per_token: float
    full_tokens: int | None
    swa_tokens: int | None
    requests: int | None
    binding: str
    note: str = ""


@dataclass(frozen=True)
class Explanation:
    """Why a plan has its figures, and what they mean for requests of one length.

    Parameters
    ----------
    equations : tuple of Equation
        From the bytes of a layer to the bytes of every pool.
    input_tokens, output_tokens : int
        The request that the rest speaks of.
    fits : tuple of Fit
        Empty where the server would not start.
    mean_holding : float or None
        Full-pool tokens of such a request on average over its decode steps.
    balance : Balance or None
        None for a server without an SWA pool sized by the ratio.
    lengths : tuple of LengthCost
        Empty for a model without sliding layers.
    windows : tuple of WindowCost
        For the page size as it is, and for others.
    alternatives : tuple of Alternative
    advice : tuple of str
        What follows, in words.
    """

    equations: tuple[Equation, ...]
    input_tokens: int
    output_tokens: int
    fits: tuple[Fit, ...] = ()
    mean_holding: float | None = None
    balance: Balance | None = None
    lengths: tuple[LengthCost, ...] = ()
    windows: tuple[WindowCost, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    advice: tuple[str, ...] = ()

    @property
    def binding(self) -> Fit | None:
        """The limit that holds the fewest; of equal ones the first of full, swa, rows."""
        return min(self.fits, key=lambda fit: fit.requests, default=None)

    @property
    def requests(self) -> int | None:
        """Most requests that fit at once, each at its longest."""
        return None if self.binding is None else self.binding.requests

    def _repr_html_(self) -> str:
        """What a notebook shows: what follows, the limits, and the same budget under other settings."""
        said = "".join(f"<li>{escape(line)}</li>" for line in self.advice)
        limits = [(fit.limit, fit.formula, fit.holding, fit.capacity, fit.requests) for fit in self.fits]
        others = [
            (one.name, one.bytes_per_token, one.full_tokens, one.swa_tokens, one.requests, one.binding, one.note)
            for one in self.alternatives
        ]
        parts = [f"<ul>{said}</ul>"]
        if limits:
            parts.append(html_table(("limit", "one holds at most", "tokens", "there are", "requests"), limits))
        if others:
            heads = ("the same budget", "B/token", "full tokens", "SWA tokens", "requests", "runs out first", "")
            parts.append(html_table(heads, others))
        sums = [(one.name, one.formula, one.value, one.unit) for one in self.equations]
        shown = html_table(("figure", "sum", "value", "unit"), sums)
        return "".join([*parts, f"<details><summary>every sum</summary>{shown}</details>"])

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        out = asdict(self)
        for one, made in zip(self.lengths, out["lengths"], strict=True):
            made["ratio"] = one.ratio
        for cost, made in zip(self.windows, out["windows"], strict=True):
            made |= {"mean_tokens": cost.mean_tokens, "most_tokens": cost.most_tokens}
        return {**out, "requests": self.requests, "binding": None if self.binding is None else self.binding.limit}
