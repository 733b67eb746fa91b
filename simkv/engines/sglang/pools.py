"""The target's pools: a full one, an SWA one, or both, whose slots are handed out together.

Here slots are only counted. Where their numbers matter, :mod:`.numbered` hands out real ones behind the same methods.
"""

from __future__ import annotations

from simkv.engines.sglang.reserve import ceil_page
from simkv.memory.pages import CountedPool
from simkv.memory.radix import UNNUMBERED, Node, Slots
from simkv.workload.request import IntArray

__all__ = ["Pools"]


class Pools:
    """Counted pools of one server.

    Parameters
    ----------
    full : CountedPool or None
        None for a model whose layers all slide.
    swa : CountedPool or None
        None for a model without split.
    page_size : int
        Page of both pools.
    rows : int
        Request rows.

    Attributes
    ----------
    cause : str
        Why slots move at present, one of :data:`simkv.allocations.CAUSES`; for those who write it down.
    """

    def __init__(self, full: CountedPool | None, swa: CountedPool | None, page_size: int, rows: int) -> None:
        self.cause = "-"
        self.full = full
        self.swa = swa
        self.page_size = page_size
        self.rows = rows

    # ---- questions
    @property
    def main(self) -> CountedPool:
        """The pool that admission counts on: the full one, or the SWA pool of an all-SWA model."""
        pool = self.full if self.full is not None else self.swa
        assert pool is not None
        return pool

    def available(self) -> int:
        """Tokens that can be allocated at once: the smaller side of a split model (allocator/swa.py:163-171)."""
        if self.full is None or self.swa is None:
            return self.main.available
        return min(self.full.available, self.swa.available)

    def slots(self, handle: int, begin: int, end: int) -> Slots:
        """Slots of a stretch of a request's row."""
        return UNNUMBERED

    # ---- actions
    def open_rows(self, handles: IntArray) -> None:
        """Give requests a row."""

    def close_row(self, handle: int) -> None:
        """Take a request's row back."""

    def take(self, handles: IntArray, before: IntArray, after: IntArray, tokens: int) -> None:
        """Allocate for requests that grow ``before -> after``: ``tokens`` in whole pages, on every side."""
        if self.full is not None:
            self.full.take(tokens)
        if self.swa is not None:
            self.swa.take(tokens)

    def adopt(self, handle: int, begin: int, node: Node) -> None:
        """Let a request's row from ``begin`` on hold the slots of the cached path that ends at ``node``."""

    def begin_group(self) -> None:
        """What is freed from here on can be allocated again only after :meth:`end_group`."""

    def end_group(self) -> None:
        """End a group of frees."""

    # ---- frees (a SlotSink); the tokens of a segment begin on a page, its last page goes as a whole
    def free(self, slots: Slots, tokens: int) -> None:
        """Free both halves."""
        whole = ceil_page(tokens, self.page_size)
        if self.full is not None:
            self.full.give(whole)
        if self.swa is not None:
            self.swa.give(whole)

    def free_full(self, slots: Slots, tokens: int) -> None:
        """Free the full half; an all-SWA model has none (allocator/swa.py:727-876)."""
        if self.full is not None:
            self.full.give(ceil_page(tokens, self.page_size))

    def free_swa(self, slots: Slots, tokens: int) -> None:
        """Free the SWA half."""
        assert self.swa is not None
        self.swa.give(ceil_page(tokens, self.page_size))

    def move_swa(self, kept: Slots, incoming: Slots) -> None:
        """Give kept full slots the SWA halves of incoming ones."""

    def check(self) -> None:
        """Whether counts and slot numbers agree."""
