"""Who goes first: lowest retention class, then least recently used, leaves only.

Knows entries and classes, not why a class was given. Upholds law 9: because only leaves are let
go, an inner entry outlives everything below it, whatever its own class.
"""

import heapq

from engine.api import OPERATOR_SCOPE, RetentionClass
from engine.kv.prefix import Entry


def retention_of(entry: Entry) -> RetentionClass:
    """The class of an entry by itself: the operator's zone is everybody's, the rest is leased."""
    if entry.scope == OPERATOR_SCOPE:
        return RetentionClass.SHARED
    held = (holder.retention for holder in entry.held_by)
    return max(held, default=RetentionClass.ORPHAN)


class EvictionQueue:
    """Leaves in the order in which they are let go.

    A heap whose keys may be too low: an entry that was used or promoted since is filed again when
    it comes up, so using a leaf costs nothing here. A key that falls must be offered anew.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, float], int, Entry]] = []

    def offer(self, entry: Entry) -> None:
        """File a leaf under its present key; what is no leaf, or filed well enough, is skipped."""
        key = (int(retention_of(entry)), entry.used_s)
        if entry.parent is None or not entry.is_leaf:
            return
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
            if key == (int(retention_of(entry)), entry.used_s):
                return entry
            self.offer(entry)
        return None
