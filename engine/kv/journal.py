"""What changed in the cache, numbered: a bounded memory of it, for whoever watches.

Knows kinds, scopes and sizes; no ids, no text, no reader. A gap in the numbers tells a reader that
it came too late and needs a snapshot.
"""

from collections import deque

from engine.api import CacheEvent, Scope
from engine.kv.blocks import BlockPool

REMEMBERED_EVENTS = 4096


class Journal:
    """The latest changes; `last` is the number of the newest, 0 before the first."""

    def __init__(self, pool: BlockPool) -> None:
        self.last = 0
        self._pool = pool
        self._events: deque[CacheEvent] = deque(maxlen=REMEMBERED_EVENTS)

    def note(self, kind: str, scope: Scope | None, tokens: int) -> None:
        """Something happened, just now: the pool's counts are those after it."""
        self.last += 1
        self._events.append(
            CacheEvent(
                sequence_number=self.last,
                kind=kind,
                scope=scope,
                tokens=tokens,
                blocks=self._pool.counts(),
            )
        )

    def after(self, number: int) -> list[CacheEvent]:
        """Remembered events with a number above `number`, oldest first."""
        return [event for event in self._events if event.sequence_number > number]
