"""A pool of KV slots, handed out in whole pages and counted.

With pages there is no fragmentation beyond the page, so counts are exact without slot numbers.
"""

from __future__ import annotations

from simkv.errors import InvariantError

__all__ = ["CountedPool"]


class CountedPool:
    """Counts the free tokens of one pool.

    Parameters
    ----------
    name : str
        ``full`` or ``swa``.
    capacity : int
        Size in tokens as the engine states it; a remainder below one page is never handed out.
    page_size : int
        Tokens a page holds.

    Attributes
    ----------
    available : int
        Free tokens, always whole pages.
    handed_out : int
        Tokens handed out so far, over the whole life of the pool.
    """

    __slots__ = ("available", "capacity", "handed_out", "name", "page_size", "usable")

    def __init__(self, name: str, capacity: int, page_size: int) -> None:
        self.name = name
        self.capacity = capacity
        self.page_size = page_size
        self.usable = capacity // page_size * page_size
        self.available = self.usable
        self.handed_out = 0

    @property
    def used(self) -> int:
        """Tokens in use."""
        return self.usable - self.available

    def take(self, tokens: int) -> None:
        """Hand out ``tokens`` (whole pages); the caller has made sure that they are there."""
        self.available -= tokens
        if self.available < 0:
            raise InvariantError(f"{self.name} pool: {tokens} tokens taken, {self.available + tokens} were free")
        self.handed_out += tokens

    def give(self, tokens: int) -> None:
        """Take ``tokens`` back."""
        self.available += tokens
        if self.available > self.usable:
            raise InvariantError(
                f"{self.name} pool: {tokens} tokens given back, {self.available} of {self.usable} would be free"
            )

    @property
    def reach(self) -> int:
        """How many slots, counted from the first one, what was handed out by now can lie in.

        Token pools are FIFO, so every slot is used once before any is used again
        (mem_cache/allocator/token.py:42-75); page pools are LIFO, so a fresh page is touched only when more pages are
        in use than ever before (paged.py:375-380).
        """
        return self.handed_out if self.page_size == 1 else self.used
