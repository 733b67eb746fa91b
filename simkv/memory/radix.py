"""A prefix tree over KV slots, with sliding-window tombstones, locks and LRU eviction.

A node stands for a stretch of tokens that begins where its parent's ends; positions are absolute. Every node holds
full-attention KV; where a window is given, a node may have lost its SWA half (a *tombstone*). What the nodes own is
either only counted, or kept as slot ids (see :class:`Slots`); the rules are the same.

The tree owns no pool: whoever asks it to insert or evict hands over a :class:`SlotSink`, which gets back what is freed.

Source of every rule: SGLang 0.5.23, mem_cache/unified_cache/unified_tree_core.py (TC), components/full.py (CF) and
components/swa.py (CS); the tree of an all-sliding model (radix_cache.py) orders its leaves alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any, NamedTuple, Protocol

from simkv.errors import InvariantError
from simkv.workload.tokens import Tokens

__all__ = ["UNNUMBERED", "Lock", "Match", "Node", "RadixTree", "SlotSink", "Slots"]


class Slots(Protocol):
    """Slot ids of consecutive positions: an array, or :data:`UNNUMBERED` where slots are only counted."""

    def __getitem__(self, part: slice) -> Any:
        """Slots of a part."""
        ...


class _Unnumbered:
    """Slots without numbers: any part of them is the same again."""

    __slots__ = ()

    def __getitem__(self, part: slice) -> _Unnumbered:
        return self

    def __repr__(self) -> str:
        return "UNNUMBERED"


UNNUMBERED = _Unnumbered()


class SlotSink(Protocol):
    """Takes back what the tree lets go; ``tokens`` counts positions, which begin on a page."""

    def free(self, slots: Slots, tokens: int) -> None:
        """Both halves of the slots."""
        ...

    def free_full(self, slots: Slots, tokens: int) -> None:
        """The full half of slots whose SWA half is gone."""
        ...

    def free_swa(self, slots: Slots, tokens: int) -> None:
        """The SWA half only."""
        ...

    def move_swa(self, kept: Slots, incoming: Slots) -> None:
        """Give the ``kept`` slots the SWA halves of the ``incoming`` ones."""
        ...


class Node:
    """A stretch ``[begin, end)`` of cached tokens.

    Attributes
    ----------
    tokens : Tokens
        A sequence that has this node's tokens at its place.
    label : hashable
        What the parent finds it by: its first page.
    stamp : int
        When it was last used; larger is later.
    swa : bool
        Whether its SWA half is alive.
    full_lock, swa_lock : int
        Locks that hold either half.
    boundary : int
        Number of the SWA lock segment that ends here, 0 for none.
    """

    __slots__ = (
        "begin",
        "boundary",
        "children",
        "end",
        "full_lock",
        "label",
        "newer",
        "older",
        "parent",
        "queued",
        "slots",
        "stamp",
        "swa",
        "swa_lock",
        "tokens",
    )

    def __init__(self, parent: Node | None, tokens: Tokens, begin: int, end: int, label: Any, slots: Slots) -> None:
        self.parent = parent
        self.tokens = tokens
        self.begin = begin
        self.end = end
        self.label = label
        self.slots = slots
        self.children: dict[Any, Node] = {}
        self.stamp = 0
        self.full_lock = 0
        self.swa_lock = 0
        self.swa = False
        self.boundary = 0
        self.queued = False
        # Neighbours in the SWA recency list; None outside it.
        self.newer: Node | None = None
        self.older: Node | None = None

    def __len__(self) -> int:
        return self.end - self.begin

    def __repr__(self) -> str:
        return f"Node[{self.begin}:{self.end}] full_lock {self.full_lock} swa {self.swa} swa_lock {self.swa_lock}"


class Match(NamedTuple):
    """What of a sequence is cached.

    Parameters
    ----------
    length : int
        Tokens that can be used.
    node : Node
        Where they end.
    full_length : int
        Tokens whose full half is cached, also beyond the last usable window.
    branch : int
        ``full_length`` where it is larger than ``length``, else 0: a checkpoint there makes it usable again
        (CS:378-421).
    """

    length: int
    node: Node
    full_length: int
    branch: int


class Lock(NamedTuple):
    """A lock: the node it was taken at, and the number of its SWA segment's end (0: the root)."""

    node: Node
    boundary: int


class RadixTree:
    """The tree.

    Parameters
    ----------
    page_size : int
        Keys are matched and kept in whole pages.
    bigram : bool
        Keys are pairs of neighbouring tokens, one fewer than tokens (EAGLE family; TC:432).
    window : int or None
        Sliding window of a pool split in full and SWA halves; None: one half only, no tombstones.

    Attributes
    ----------
    full_evictable, full_protected, swa_evictable, swa_protected : int
        Tokens the tree holds, unlocked and locked, of either half; the SWA figures stay 0 without a window.
    tombstones : int
        Tokens whose SWA half is gone, with a window.
    """

    def __init__(self, page_size: int, *, bigram: bool = False, window: int | None = None) -> None:
        self.page_size = page_size
        self.bigram = int(bigram)
        self.window = window
        self._first = page_size + self.bigram
        self.root = Node(None, Tokens(()), 0, 0, None, UNNUMBERED)
        self.full_evictable = self.full_protected = 0
        self.swa_evictable = self.swa_protected = 0
        self._clock = 0
        self._boundaries = 0
        # Evictable leaves by stamp. A leaf is in it once, under a stamp that may be too old: it is put back then.
        self._leaves: list[tuple[int, int, Node]] = []
        self._serial = 0
        # Sentinels of the SWA recency list.
        self._newest = Node(None, Tokens(()), 0, 0, None, UNNUMBERED)
        self._oldest = Node(None, Tokens(()), 0, 0, None, UNNUMBERED)
        self._newest.older, self._oldest.newer = self._oldest, self._newest

    # ---- questions
    def key_length(self, tokens: int) -> int:
        """Length of the key of so many tokens, in whole pages."""
        return max(0, tokens - self.bigram) // self.page_size * self.page_size

    @property
    def tombstones(self) -> int:
        """Tokens whose full half is cached, the SWA half not."""
        if self.window is None:
            return 0
        return self.full_evictable + self.full_protected - self.swa_evictable - self.swa_protected

    def nodes(self) -> Iterator[Node]:
        """Every node but the root, parents first."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack += node.children.values()

    def path(self, node: Node) -> list[Node]:
        """Nodes from the root's child down to ``node``."""
        found = []
        here: Node | None = node
        while here is not None and here is not self.root:
            found.append(here)
            here = here.parent
        return found[::-1]

    def _agreement(self, node: Node, tokens: Tokens, length: int) -> int:
        """Where a node found by its first page and the first ``length`` tokens part, a page boundary."""
        end = min(node.end, length)
        if node.tokens is tokens:
            return end
        same = node.tokens.common(tokens, node.begin, end + self.bigram) - self.bigram
        return node.begin + same // self.page_size * self.page_size

    # ---- match
    def match(self, tokens: Tokens, length: int) -> Match:
        """The longest cached prefix of the first ``length`` tokens; what it passes becomes recent.

        A node in which the match ends is split. With a window, a prefix can be used only where at least a window of
        SWA halves in front of its end is alive, or all of them up to the root (CS:357-377).

        Notes
        -----
        Recency (TC:1024-1034): the SWA halves within a window and a page of the end, and the stamps of the usable
        path, decreasing towards the root.
        """
        length = self.key_length(length)
        root = self.root
        if length <= 0:
            return Match(0, root, 0, 0)
        window, first = self.window, self._first
        node = best = root
        at = 0
        alive: float = float("inf")
        while at < length:
            child = node.children.get(tokens.label(at, at + first))
            if child is None:
                break
            same = self._agreement(child, tokens, length)
            if same < child.end:
                child = self._split(child, same)
            node, at = child, same
            if window is None:
                best = node
            elif node.swa:
                alive += len(node)
                if alive >= window:
                    best = node
            else:
                alive = 0
        if window is not None:
            self._refresh_window(best)
        self._stamp_path(best)
        return Match(best.end, best, at, at if at > best.end else 0)

    # ---- insert
    def insert(
        self, tokens: Tokens, length: int, slots: Slots, sink: SlotSink, *, owned_from: int = 0, swa_from: int = 0
    ) -> tuple[int, Node]:
        """Cache the first ``length`` tokens (whole pages), whose slots are handed over.

        Parameters
        ----------
        tokens : Tokens
            The sequence.
        length : int
            Length of the key.
        slots : Slots
            Slots of the first ``length`` positions.
        sink : SlotSink
            Takes back the slots that are not needed.
        owned_from : int
            Slots below are the tree's already; above, those the tree has already too are freed as duplicates.
        swa_from : int
            Below, the SWA half of the caller's slots is gone (a page boundary).

        Returns
        -------
        (int, Node)
            Tokens the tree had before, and the node the sequence ends at.

        Notes
        -----
        Rules: TC:1129-1465; revival of tombstones CS:454-513, 1581-1594; the cut of a new leaf at one window, so that
        a lock on it holds no more, CS:593-624.
        """
        first, window = self._first, self.window
        self._touch(self.root)
        node, at = self.root, 0
        while at < length:
            child = node.children.get(tokens.label(at, at + first))
            if child is None:
                break
            self._touch(child)
            same = self._agreement(child, tokens, length)
            if same < child.end:
                child = self._split(child, same)
            taken = child.end
            if window is not None and not child.swa and owned_from < child.end:
                taken = max(at, swa_from)
                if taken < child.end:
                    self._revive(child, taken, slots[taken : child.end], sink)
                else:
                    taken = child.end
            self._free_duplicates(slots, max(at, owned_from), taken, swa_from, sink)
            node, at = child, child.end
        before = at
        if at < length:
            node = self._add_leaf(node, tokens, at, length, slots[at:length], swa_from)
        if window is not None and node is not self.root:
            self._refresh_window(node)
        return before, node

    def _free_duplicates(self, slots: Slots, begin: int, end: int, swa_from: int, sink: SlotSink) -> None:
        """Give back the caller's slots of ``[begin, end)``; below ``swa_from`` only their full half is left."""
        if begin >= end:
            return
        if self.window is not None and swa_from > begin:
            middle = min(swa_from, end)
            sink.free_full(slots[begin:middle], middle - begin)
            begin = middle
        if begin < end:
            sink.free(slots[begin:end], end - begin)

    def _revive(self, node: Node, live_from: int, incoming: Slots, sink: SlotSink) -> None:
        """Give a tombstone, from ``live_from`` on, the SWA half of incoming slots."""
        if live_from > node.begin:
            self._split(node, live_from)
        if node.full_lock:
            # Somebody reads the full half: it stays, and the incoming one is freed.
            sink.move_swa(node.slots, incoming)
            sink.free_full(incoming, len(node))
        else:
            kept, node.slots = node.slots, incoming
            sink.free_full(kept, len(node))
        self._publish(node)

    def _add_leaf(self, parent: Node, tokens: Tokens, begin: int, end: int, slots: Slots, swa_from: int) -> Node:
        label = tokens.label(begin, begin + self._first)
        leaf = Node(parent, tokens, begin, end, label, slots)
        self._touch(leaf)
        parent.children[label] = leaf
        self.full_evictable += end - begin
        self._offer(leaf)
        if self.window is None:
            return leaf
        live_from = max(begin, swa_from)
        if live_from >= end:
            return leaf
        if live_from > begin:
            self._split(leaf, live_from)
        tail = -(-self.window // self.page_size) * self.page_size
        if len(leaf) > tail:
            self._publish(self._split(leaf, end - tail))
        self._publish(leaf)
        return leaf

    def _publish(self, node: Node) -> None:
        """The node's SWA half is alive from now on, and the most recent."""
        node.swa = True
        self._link(node, self._newest)
        if node.swa_lock:
            self.swa_protected += len(node)
        else:
            self.swa_evictable += len(node)

    def _split(self, node: Node, at: int) -> Node:
        """Split a node; it keeps the part from ``at`` on, the part before is a new parent, which is returned.

        Both halves keep the locks; the end of an SWA lock segment moves to the new parent. The later half counts as
        just used (TC:1455-1530).
        """
        parent = node.parent
        assert parent is not None
        cut = at - node.begin
        above = Node(parent, node.tokens, node.begin, at, node.label, node.slots[:cut])
        self._touch(above)
        parent.children[node.label] = above
        node.slots = node.slots[cut:]
        node.parent, node.begin = above, at
        node.label = node.tokens.label(at, at + self._first)
        above.children[node.label] = node
        above.full_lock, above.swa_lock = node.full_lock, node.swa_lock
        above.boundary, node.boundary = node.boundary, 0
        if node.swa:
            above.swa = True
            self._link(above, node)
        self._touch(node)
        return above

    # ---- locks
    def lock(self, node: Node) -> Lock:
        """Hold a path: its full halves up to the root, its SWA halves as far as one window (CF:282-319, CS:849-895)."""
        here: Node | None = node
        root = self.root
        while here is not None and here is not root:
            if not here.full_lock:
                self.full_evictable -= len(here)
                self.full_protected += len(here)
            here.full_lock += 1
            here = here.parent
        if self.window is None:
            return Lock(node, 0)
        covered = boundary = 0
        here = node
        while here is not None and here is not root and covered < self.window:
            if not here.swa_lock and here.swa:
                self.swa_evictable -= len(here)
                self.swa_protected += len(here)
            here.swa_lock += 1
            covered += len(here)
            if covered >= self.window:
                if not here.boundary:
                    self._boundaries += 1
                    here.boundary = self._boundaries
                boundary = here.boundary
            here = here.parent
        return Lock(node, boundary)

    def unlock(self, lock: Lock, *, swa: bool = True) -> None:
        """Let a path go; ``swa`` False where its SWA half was let go before (CF:340-376, CS:897-950)."""
        if self.window is not None and swa:
            self.unlock_swa(lock)
        here: Node | None = lock.node
        root = self.root
        while here is not None and here is not root:
            if here.full_lock == 1:
                self.full_evictable += len(here)
                self.full_protected -= len(here)
            here.full_lock -= 1
            self._offer(here)
            here = here.parent

    def unlock_swa(self, lock: Lock) -> None:
        """Let the SWA half of a lock go, the full half stays held (CS:952-996)."""
        here: Node | None = lock.node
        while here is not None and here is not self.root:
            if here.swa_lock == 1 and here.swa:
                self.swa_evictable += len(here)
                self.swa_protected -= len(here)
            here.swa_lock -= 1
            if here.swa_lock < 0:
                raise InvariantError(f"{here}: its SWA half is unlocked more often than locked")
            if lock.boundary and here.boundary == lock.boundary:
                return
            here = here.parent

    # ---- eviction
    def evict(self, full: int, swa: int, sink: SlotSink) -> tuple[int, int]:
        """Free at least so many tokens of each half, as far as unlocked nodes go; returns tokens freed.

        First whole leaves, least recently used first, until the full half is satisfied; then SWA halves from the
        least recent on: of a leaf both halves, of an inner node only the SWA half, which leaves a tombstone. Nodes go
        as a whole, so more than asked for may be freed (CF:205-248, CS:742-847; unified_radix_cache.py:952-1058).
        """
        full_freed = swa_freed = 0
        while full_freed < full:
            leaf = self._oldest_leaf()
            if leaf is None:
                break
            gone = self._delete(leaf, sink)
            full_freed, swa_freed = full_freed + gone[0], swa_freed + gone[1]
        if swa_freed >= swa:
            return full_freed, swa_freed
        node = self._unlocked(self._oldest)
        while node is not None and swa_freed < swa:
            following = self._unlocked(node)
            if self._is_evictable(node):
                gone = self._delete(node, sink)
                full_freed, swa_freed = full_freed + gone[0], swa_freed + gone[1]
            else:
                sink.free_swa(node.slots, len(node))
                swa_freed += self._drop_swa(node)
            node = following
        return full_freed, swa_freed

    def _is_evictable(self, node: Node) -> bool:
        """A leaf that nobody holds and that is still in the tree."""
        return not node.full_lock and not node.children and node.parent is not None

    def _oldest_leaf(self) -> Node | None:
        """Take the least recently used evictable leaf from the heap."""
        heap = self._leaves
        while heap:
            stamp, _, leaf = heappop(heap)
            leaf.queued = False
            if not self._is_evictable(leaf):
                continue
            if leaf.stamp == stamp:
                return leaf
            self._offer(leaf)
        return None

    def _offer(self, node: Node) -> None:
        """Queue a node for eviction, if it is an evictable leaf and not queued yet."""
        if not node.queued and self._is_evictable(node):
            node.queued = True
            self._serial += 1
            heappush(self._leaves, (node.stamp, self._serial, node))

    def _unlocked(self, node: Node) -> Node | None:
        """The next more recent node whose SWA half nobody holds."""
        found = node.newer
        assert found is not None
        while found.swa_lock:
            found = found.newer
            assert found is not None
        return None if found is self._newest else found

    def _delete(self, leaf: Node, sink: SlotSink) -> tuple[int, int]:
        """Take an evictable leaf out, both halves."""
        size, swa = len(leaf), 0
        self.full_evictable -= size
        if self.window is None or leaf.swa:
            sink.free(leaf.slots, size)
        else:
            sink.free_full(leaf.slots, size)
        if leaf.swa:
            swa = self._drop_swa(leaf)
        parent = leaf.parent
        assert parent is not None
        del parent.children[leaf.label]
        leaf.parent = None
        self._offer(parent)
        return size, swa

    def _drop_swa(self, node: Node) -> int:
        """The SWA half of an unlocked node is gone; returns its tokens."""
        node.swa = False
        self.swa_evictable -= len(node)
        self._unlink(node)
        return len(node)

    # ---- recency
    def _touch(self, node: Node) -> None:
        self._clock += 1
        node.stamp = self._clock

    def _stamp_path(self, node: Node) -> None:
        """Stamp a path anew, the deepest node latest."""
        path = self.path(node)
        for here in path:
            self._clock += 1
            here.stamp = self._clock

    def _refresh_window(self, node: Node) -> None:
        """Make the SWA halves of a window and a page in front of a node's end the most recent, deepest first."""
        assert self.window is not None
        limit = self.window + self.page_size
        covered, after = 0, self._newest
        here: Node | None = node
        while here is not None and here is not self.root and covered < limit:
            if here.swa:
                self._unlink(here)
                self._link(here, after)
                after = here
            covered += len(here)
            here = here.parent

    def _link(self, node: Node, newer: Node) -> None:
        """Put a node into the recency list, next older than ``newer``."""
        older = newer.older
        assert older is not None
        node.newer, node.older = newer, older
        newer.older = older.newer = node

    @staticmethod
    def _unlink(node: Node) -> None:
        newer, older = node.newer, node.older
        assert newer is not None and older is not None
        newer.older, older.newer = older, newer
        node.newer = node.older = None

    # ---- conservation
    def check(self) -> None:
        """Recount what the tree holds.

        Raises
        ------
        InvariantError
            A figure, a lock or the shape of the tree is wrong.
        """
        held = {"full": [0, 0], "swa": [0, 0]}
        for node in self.nodes():
            parent = node.parent
            if parent is None or parent.end != node.begin or len(node) <= 0 or len(node) % self.page_size:
                raise InvariantError(f"{node}: does not continue its parent in whole pages")
            if parent.children.get(node.label) is not node:
                raise InvariantError(f"{node}: its parent does not find it")
            if parent is not self.root and parent.full_lock < node.full_lock:
                raise InvariantError(f"{node}: held more often than its parent")
            held["full"][node.full_lock > 0] += len(node)
            if node.swa:
                held["swa"][node.swa_lock > 0] += len(node)
        figures = {
            "full": [self.full_evictable, self.full_protected],
            "swa": [self.swa_evictable, self.swa_protected],
        }
        if held != figures:
            raise InvariantError(f"prefix tree: [evictable, protected] is {figures}, its nodes hold {held}")
