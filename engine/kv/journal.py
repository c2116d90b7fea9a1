"""What changed in the cache: counted since boot, numbered, and for a while remembered.

Knows kinds, classes, scopes and sizes; no ids, no text, no reader. A gap in the numbers tells a
reader that it came too late and needs a snapshot.
"""

from collections import Counter, deque
from collections.abc import Iterable
from itertools import islice

from engine.figures import CacheChange, CacheEvent, EvictionReason, Evictions
from engine.kv.blocks import BlockPool
from engine.step import BlockId
from engine.terms import RetentionClass, Scope, Tier

REMEMBERED_EVENTS = 4096


class Journal:
    """The latest changes, and how many there were of each kind, in all and in tokens.

    `last` is the number of the newest, 0 before the first.
    """

    def __init__(self, pool: BlockPool) -> None:
        self.last = 0
        self.counted: Counter[CacheChange] = Counter()
        self.tokens: Counter[CacheChange] = Counter()
        self._pool = pool
        self._events: deque[CacheEvent] = deque(maxlen=REMEMBERED_EVENTS)
        self._evicted_blocks: Counter[tuple[RetentionClass, EvictionReason]] = Counter()
        self._evicted_tokens: Counter[tuple[RetentionClass, EvictionReason]] = Counter()

    def note(
        self,
        kind: CacheChange,
        scope: Scope | None,
        tokens: int,
        *,
        why: tuple[RetentionClass, EvictionReason | None] | None = None,
        tier: Tier | None = None,
    ) -> None:
        """Something happened, just now: the pool's counts are those after it."""
        self.last += 1
        self.counted[kind] += 1
        self.tokens[kind] += tokens
        retention, reason = why or (None, None)
        self._events.append(
            CacheEvent(
                sequence_number=self.last,
                kind=kind,
                scope=scope,
                tokens=tokens,
                blocks=self._pool.counts(),
                retention=retention,
                reason=reason,
                tier=tier,
            )
        )

    def note_eviction(
        self,
        scope: Scope,
        tokens: int,
        blocks: Iterable[BlockId],
        why: tuple[RetentionClass, EvictionReason],
    ) -> None:
        """An entry lost tokens and is without these blocks now, of which others may keep some."""
        self._evicted_blocks[why] += sum(not self._pool.is_kept(block) for block in blocks)
        self._evicted_tokens[why] += tokens
        forgotten = why[1] is EvictionReason.FORGOTTEN
        self.note(
            CacheChange.FORGOTTEN if forgotten else CacheChange.EVICTED, scope, tokens, why=why
        )

    def evictions(self) -> tuple[Evictions, ...]:
        """What left the pool, by class and reason."""
        return tuple(
            Evictions(
                retention=retention,
                reason=reason,
                blocks=self._evicted_blocks[retention, reason],
                tokens=tokens,
            )
            for (retention, reason), tokens in sorted(self._evicted_tokens.items())
        )

    def after(self, number: int) -> list[CacheEvent]:
        """Remembered events with a number above `number`, oldest first."""
        newer = min(max(0, self.last - number), len(self._events))
        return list(islice(reversed(self._events), newer))[::-1]
