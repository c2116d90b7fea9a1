"""Who goes first: lowest retention class, then what is worth least, then what was used longest ago.

Knows entries and classes, not why a class was given. Upholds law 9: because only leaves are let
go, an inner entry outlives everything below it, whatever its own class.
"""

import heapq
import math
from collections.abc import Callable

from engine.api import RetentionClass
from engine.kv.pins import Lease
from engine.kv.prefix import Entry, EvictionKey, Holder
from engine.kv.prices import Prices
from engine.kv.returns import MOONCAKE, NO_HABIT, GapModel, worth

Worth = Callable[[Entry, float], float]
"""What keeping a leaf is worth at a time (in seconds); inside a class the lowest goes first."""

REFRESH_S = 2.0
"""How old the time may be at which worths are compared, and"""
REFRESH_S_PER_LEAF = 0.004
"""how much older for each leaf: filing all of them anew stays below two parts in a thousand."""

OLD_BRANCH = 0.1
"""How much less likely a session returns to a branch that is not its newest: few edits go back
behind one (below 1 % of the turns of the Mooncake trace)."""


def retention_of(entry: Entry) -> RetentionClass:
    """The class of an entry by itself: that of the strongest lease whose path ends in it."""
    held = (holder.retention for holder in entry.held_by)
    return max(held, default=RetentionClass.ORPHAN)


def equal_worth(_entry: Entry, _now: float) -> float:
    """Least recently used goes first: nothing else is known."""
    return 0.0


class CostWorth:
    """Seconds of computing that a token's memory saves per second: price x chance of return.

    All tokens take equally many bytes. An entry is worth what its likeliest holder makes it.
    """

    def __init__(self, prices: Prices, model: GapModel = MOONCAKE) -> None:
        self._prices = prices
        self._model = model

    def __call__(self, entry: Entry, now: float) -> float:
        returns = max((self._returns(entry, holder, now) for holder in entry.held_by), default=None)
        if returns is None:
            returns = worth(self._model, NO_HABIT, now - entry.used_s)
        return self._prices.token_s(entry.end) * returns

    def _returns(self, entry: Entry, holder: Holder, now: float) -> float:
        assert isinstance(holder, Lease)
        idle_s = now - holder.used_s
        if holder.kind is None:
            # The operator's text, used by whoever comes: the longer ago, the more rarely.
            return 1 / (1 + max(0.0, idle_s))
        expected = worth(self._model, holder.habit, idle_s)
        return expected if entry.used_s >= holder.used_s else OLD_BRANCH * expected


class EvictionQueue:
    """Leaves in the order in which they are let go.

    A heap whose keys may be too low: an entry that was used or promoted since is filed again when
    it comes up, so using a leaf costs nothing here. A key that falls must be offered anew. Worths
    change by themselves as time passes, so they are compared as of `_as_of`, and when that is too
    old, everything is filed anew as of `now`: between two such times the order is exact.
    """

    def __init__(self, worth: Worth = equal_worth) -> None:
        self.now = 0.0
        self._heap: list[tuple[EvictionKey, int, Entry]] = []
        self._as_of = 0.0
        self.weigh(worth)

    def weigh(self, worth: Worth) -> None:
        """From now on this is what keeping a leaf is worth."""
        self._worth = worth
        self._refresh()

    def offer(self, entry: Entry) -> None:
        """File a leaf under its present key; what is no leaf, or filed well enough, is skipped."""
        if entry.parent is None or not entry.is_leaf:
            return
        key = self._key(entry)
        if entry.queued is None or key < entry.queued:
            entry.queued = key
            heapq.heappush(self._heap, (key, entry.entry_id, entry))

    def take(self) -> Entry | None:
        """The leaf that goes first, out of the queue; None when there is none."""
        if self.now >= self._stale_s:
            self._refresh()
        while self._heap:
            key, _, entry = heapq.heappop(self._heap)
            if entry.queued != key:
                continue
            entry.queued = None
            if entry.parent is None or not entry.is_leaf:
                continue
            if key == self._key(entry):
                return entry
            self.offer(entry)
        return None

    def upcoming(self, count: int) -> list[Entry]:
        """The leaves that go next, in order; they stay where they are."""
        leaves: list[Entry] = []
        while len(leaves) < count and (leaf := self.take()):
            leaves.append(leaf)
        for leaf in leaves:
            self.offer(leaf)
        return leaves

    def _refresh(self) -> None:
        filed, self._heap = self._heap, []
        self._as_of = self.now
        for key, entry_id, entry in filed:
            if entry.queued != key:
                continue
            entry.queued = None
            if entry.parent is not None and entry.is_leaf:
                self._heap.append((self._key(entry), entry_id, entry))
        for key, _, entry in self._heap:
            entry.queued = key
        heapq.heapify(self._heap)
        lasts_s = max(REFRESH_S, REFRESH_S_PER_LEAF * len(self._heap))
        self._stale_s = math.inf if self._worth is equal_worth else self.now + lasts_s

    def _key(self, entry: Entry) -> EvictionKey:
        return int(retention_of(entry)), self._worth(entry, self._as_of), entry.used
