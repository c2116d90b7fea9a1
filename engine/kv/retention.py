"""Who goes first: lowest retention class, then what is worth least, then what was used longest ago.

Knows entries and classes, not why a class was given. Upholds law 9: because only leaves are let
go, an inner entry outlives everything below it, whatever its own class.
"""

import heapq
from collections.abc import Callable

from engine.api import RetentionClass
from engine.kv.prefix import Entry, EvictionKey

Worth = Callable[[Entry, float], float]
"""What keeping a leaf is worth at a time (in seconds); inside a class the lowest goes first."""


def retention_of(entry: Entry) -> RetentionClass:
    """The class of an entry by itself: that of the strongest lease whose path ends in it."""
    held = (holder.retention for holder in entry.held_by)
    return max(held, default=RetentionClass.ORPHAN)


def equal_worth(_entry: Entry, _now: float) -> float:
    """Least recently used goes first: nothing else is known."""
    return 0.0


class EvictionQueue:
    """Leaves in the order in which they are let go.

    A heap whose keys may be too low: an entry that was used or promoted since is filed again when
    it comes up, so using a leaf costs nothing here. A key that falls must be offered anew.
    """

    def __init__(self, worth: Worth = equal_worth) -> None:
        self.now = 0.0
        self._worth = worth
        self._heap: list[tuple[EvictionKey, int, Entry]] = []

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

    def _key(self, entry: Entry) -> EvictionKey:
        return int(retention_of(entry)), self._worth(entry, self.now), entry.used
