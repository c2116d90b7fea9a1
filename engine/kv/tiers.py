"""Where KV lies that the pool has no room for: host memory and disk, as segments of paths.

Knows ids, scopes, sizes and names of segments; moves no byte itself (it orders transfers) and
reads no clock. Upholds laws 1 (what is damaged is dropped, and computed again), 8 (ids are
compared, a name is never derived from them), 10 (nobody waits for room here) and 11 (scopes are
compared with the ids).

A segment's states: being written (nobody can match it), whole, going (to be dropped when its transfer has
arrived). What a transfer reads or writes is not dropped before it has arrived.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count

import msgspec

from engine.api import Scope, Subject
from engine.errors import Corrupt
from engine.figures import CacheChange, TierCounts
from engine.kv.blocks import BlockPool
from engine.kv.journal import Journal
from engine.kv.pins import LeaseKey
from engine.kv.prefix import Ids, Scopes, is_operators
from engine.kv.segments import Ages, Found, Path, Segment, SegmentTree
from engine.step import (
    Arrival,
    BlockId,
    Drop,
    HandOver,
    Park,
    Piece,
    Restore,
    SegmentHead,
    Spill,
    Transfer,
    TransferId,
    slots_at,
)
from engine.terms import Tier

SEGMENT_TOKENS = 256
"""6 MB of the default model's KV: long enough to move at full speed, short enough to be let go."""

IDLE_AGE = 1 << 40
"""By how many uses what nobody is expected to want is older than the rest."""

LOWER = (Tier.HOST, Tier.DISK)


class TierSizes(msgspec.Struct, frozen=True, kw_only=True):
    """What lower tiers may take, in bytes; none: the tier is not used."""

    token_bytes: int
    host_bytes: int = 0
    disk_bytes: int = 0
    segment_tokens: int = SEGMENT_TOKENS


NO_TIERS = TierSizes(token_bytes=1)
"""There is the pool and nothing below it."""


class Tiers:
    """Host memory and disk. `budgets` are in bytes; a tier without one is not used."""

    def __init__(self, sizes: TierSizes, pool: BlockPool, block_tokens: int, boot_id: str) -> None:
        self.journal = Journal(pool)
        self._sizes = sizes
        self._pool = pool
        self._block_tokens = block_tokens
        # Children are looked up by so many ids; fewer are not worth a transfer.
        self._key_tokens = max(1, sizes.segment_tokens // 16)
        self._budget = {
            Tier.HOST: sizes.host_bytes // sizes.token_bytes,
            Tier.DISK: sizes.disk_bytes // sizes.token_bytes,
        }
        self._held = dict.fromkeys(LOWER, 0)
        self._names = (f"{boot_id}-{number}" for number in count(1))
        self._transfer_ids = map(TransferId, count(1))
        self._tree = SegmentTree(self._key_tokens)
        self._ages = Ages(self._tree)
        self._writes: dict[TransferId, tuple[Segment, Tier, tuple[BlockId, ...]]] = {}
        self._reads: dict[TransferId, list[Segment]] = {}
        self._going: set[Segment] = set()
        self._orders: list[Transfer] = []
        self._uses = 0
        self._is_closing = False

    @property
    def are_used(self) -> bool:
        return any(self._budget.values())

    @property
    def moving(self) -> int:  # Transfers that were ordered and have not arrived.
        return len(self._writes) + len(self._reads)

    def load(self, heads: Iterable[SegmentHead]) -> None:
        """Take over what a disk was found to hold, longest unused first; the rest is dropped."""
        waiting = {head.name: head for head in heads}
        for head in list(waiting.values()):
            self._place(head, waiting)
        for head in waiting.values():
            self._orders.append(Drop(tier=Tier.DISK, name=head.name))
        self._make_room(Tier.DISK, 0, None)

    def find(self, ids: Ids, scopes: Scopes, end: int) -> Found:
        """The longest prefix of `ids[:end]` that lower tiers hold. Changes nothing."""
        return self._tree.find(ids, scopes, end)

    def longest(self, key: LeaseKey) -> tuple[Ids, Scopes] | None:
        """The longest path that was parked for a subject; None: nothing of it is held."""
        return self._tree.longest(key)

    def park(self, path: Path, keys: tuple[LeaseKey, LeaseKey], *, durable: bool) -> bool:
        """Order what lower tiers lack of a path; False: there is no room for it now.

        `keys` are whose the operator's part and the rest will be. The blocks that are read count
        as copying until their transfer has arrived.
        """
        tier = self._tier_for(durable=durable)
        if tier is None:
            return False
        parent = self._tree.root
        for scope, start, end in path.spans(self._sizes.segment_tokens, self._key_tokens):
            ids = path.ids[start:end]
            whose = keys[0] if is_operators(scope) else keys[1], durable
            known = self._tree.continuation(parent, scope, ids, whose)
            if known is None:
                if not self._make_room(tier, len(ids), parent):
                    return False
                known = self._add(parent, scope, ids, whose)
                self._write(known, tier, path.table)
            elif self._is_closing and not self._spill(known):
                return False
            self._touch(known)
            parent = known
        return True

    def let_wait(self, key: LeaseKey) -> None:
        """Until it is used again, what is held of the subject leaves before all the rest."""
        for segment in self._tree.of(key):
            if segment.used >= 0:
                segment.used -= IDLE_AGE
                for tier in segment.tiers:
                    self._ages.add(segment, tier)

    def spill(self) -> None:
        """Order everything that may lie on disk and does not to be written there."""
        for segment in self._tree:
            self._spill(segment)

    def close(self) -> None:
        """From now on everything goes to the disk: memory ends with the process."""
        self._is_closing = True
        self.spill()

    def restore(self, found: Found, start: int, table: Sequence[BlockId]) -> TransferId:
        """Order tokens `[start, found.end)` into the slots of a block table."""
        pieces, segments = [], []
        for segment in found.segments:
            skip = max(0, start - segment.head.start)
            tokens = min(segment.end, found.end) - segment.head.start - skip
            if tokens > 0:
                segments.append(segment)
                pieces.append(
                    Piece(
                        tier=segment.nearest,
                        name=segment.head.name,
                        skip=skip,
                        slots=slots_at(
                            table, self._block_tokens, segment.head.start + skip, tokens
                        ),
                    )
                )
            self._touch(segment)
        for segment in segments:
            segment.moving += 1
        transfer_id = next(self._transfer_ids)
        self._reads[transfer_id] = segments
        self._orders.append(Restore(transfer_id=transfer_id, pieces=tuple(pieces)))
        return transfer_id

    def arrived(self, arrival: Arrival) -> None:
        """Book a transfer that is over: what it read may change again, what it wrote is found."""
        write = self._writes.pop(arrival.transfer_id, None)
        if write is not None:
            segment, tier, blocks = write
            for block in blocks:
                self._pool.end_copy(block)
            segment.moving -= 1
            self._written(segment, tier, whole=arrival.pieces == 1)
            return
        for at, segment in enumerate(self._reads.pop(arrival.transfer_id)):
            segment.moving -= 1
            if at == arrival.pieces:
                self._note(CacheChange.DAMAGED, segment)
                self._remove(segment)
            elif at < arrival.pieces:
                self._note(CacheChange.RESTORED, segment)
            self._settle(segment)

    def forget(self, subject: Subject) -> None:
        """Drop what was written for the subject. What others continue or share becomes theirs."""
        for segment in self._tree.forget(subject):
            if head := self._tree.hand_over(segment):
                self._orders.append(HandOver(head=head))
            else:
                self._remove(segment)

    def __iter__(self) -> Iterator[Segment]:
        """Every segment that is not going."""
        return iter(self._tree)

    def take_orders(self) -> tuple[Transfer, ...]:
        """What was ordered since this was last asked, in order."""
        orders, self._orders = tuple(self._orders), []
        return orders

    def counts(self) -> tuple[TierCounts, ...]:
        """The tiers that are used, by segments and bytes."""
        size = self._sizes.token_bytes
        return tuple(
            TierCounts(
                tier=tier,
                segments=sum(tier in segment.tiers for segment in self._tree),
                used_bytes=self._held[tier] * size,
                limit_bytes=self._budget[tier] * size,
            )
            for tier in LOWER
            if self._budget[tier]
        )

    def check(self) -> None:
        """Every invariant of the segments' books. Raises `Corrupt`."""
        held = Counter(dict.fromkeys(LOWER, 0))
        moving: Counter[str] = Counter()
        for segment, tier, _ in self._writes.values():
            held[tier] += len(segment.ids)
            moving[segment.head.name] += 1
        for segment in chain.from_iterable(self._reads.values()):
            moving[segment.head.name] += 1
        for segment in (*self._tree, *self._going):
            name, parent = segment.head.name, segment.parent
            if not segment.going and (parent is None or parent.end != segment.head.start):
                raise Corrupt(f"segment {name} does not continue its parent")
            if segment.moving != moving[name] or not (segment.tiers or segment.moving):
                raise Corrupt(f"segment {name} counts {segment.moving} transfers")
            for tier in segment.tiers:
                held[tier] += len(segment.ids)
        if dict(held) != self._held or any(held[tier] > self._budget[tier] for tier in LOWER):
            raise Corrupt(f"lower tiers hold {dict(held)} tokens, the books say {self._held}")

    # ------------------------------------------------------------ inside

    def _tier_for(self, *, durable: bool) -> Tier | None:
        """Where a path is parked first: what is not durable never lies on a disk."""
        for tier in LOWER:
            is_open = durable if tier is Tier.DISK else not self._is_closing
            if self._budget[tier] and is_open:
                return tier
        return None

    def _add(
        self, parent: Segment, scope: Scope, ids: Ids, whose: tuple[LeaseKey, bool]
    ) -> Segment:
        (owner_id, session_id), durable = whose
        head = SegmentHead(
            name=next(self._names),
            parent=parent.head.name,
            scope=scope,
            start=parent.end,
            token_ids=tuple(ids),
            owner_id=owner_id,
            session_id=session_id,
            durable=durable and parent.head.durable,
        )
        return self._tree.link(head, parent)

    def _place(self, head: SegmentHead, waiting: dict[str, SegmentHead]) -> None:
        """Put a segment that was found on disk into the tree, if what it continues is there."""
        line: list[SegmentHead] = []
        while head.name in waiting and head not in line:
            line.append(head)
            head = waiting.get(head.parent, head)
        for found in reversed(line):
            parent = self._tree.get(found.parent) if found.parent else self._tree.root
            if parent is None or parent.end != found.start or not found.token_ids:
                return
            del waiting[found.name]
            segment = self._tree.link(found, parent)
            segment.tiers.add(Tier.DISK)
            self._held[Tier.DISK] += len(segment.ids)
            self._touch(segment)
            self._ages.add(segment, Tier.DISK)

    def _write(self, segment: Segment, tier: Tier, table: Sequence[BlockId]) -> None:
        """Order a new segment's KV out of the pool."""
        slots = slots_at(table, self._block_tokens, segment.head.start, len(segment.ids))
        for block in slots.blocks:
            self._pool.begin_copy(block)
        transfer_id = self._begin(segment, tier, slots.blocks)
        self._orders.append(
            Park(transfer_id=transfer_id, tier=tier, head=segment.head, slots=slots)
        )

    def _begin(self, segment: Segment, tier: Tier, blocks: tuple[BlockId, ...]) -> TransferId:
        transfer_id = next(self._transfer_ids)
        self._writes[transfer_id] = segment, tier, blocks
        self._held[tier] += len(segment.ids)
        segment.moving += 1
        return transfer_id

    def _spill(self, segment: Segment) -> bool:
        """Order a segment onto the disk, after what it continues; False: not there, nor going."""
        spilling = (s for s, tier, _ in self._writes.values() if tier is Tier.DISK)
        if Tier.DISK in segment.tiers or segment in spilling:
            return True
        parent = segment.parent
        above = parent is self._tree.root or (parent is not None and self._spill(parent))
        if not (above and segment.head.durable and Tier.HOST in segment.tiers):
            return False
        if not self._make_room(Tier.DISK, len(segment.ids), parent):
            return False
        transfer_id = self._begin(segment, Tier.DISK, ())
        self._orders.append(Spill(transfer_id=transfer_id, head=segment.head))
        return True

    def _written(self, segment: Segment, tier: Tier, *, whole: bool) -> None:
        if not whole:
            self._note(CacheChange.FAILED, segment, tier)
            self._held[tier] -= len(segment.ids)
            if not segment.tiers and not segment.going:
                self._remove(segment)
        else:
            segment.tiers.add(tier)
            first = len(segment.tiers) == 1
            self._note(CacheChange.PARKED if first else CacheChange.SPILLED, segment, tier)
            if not segment.going:
                self._ages.add(segment, tier)
                for shorter in self._tree.superseded(segment):
                    self._remove(shorter)
        self._settle(segment)

    def _make_room(self, tier: Tier, tokens: int, spare: Segment | None) -> bool:
        """Let the longest unused segments go until `tokens` fit beside the others."""
        while self._held[tier] + tokens > self._budget[tier]:
            victim = None
            if tokens <= self._budget[tier]:
                victim = self._ages.take(
                    tier, lambda s: s is not spare and self._may_leave(s, tier)
                )
            if victim is None:
                return False
            if tier is Tier.HOST and self._spill(victim) and Tier.DISK not in victim.tiers:
                # It leaves as soon as the disk has it; until then there is no room.
                self._ages.add(victim, tier)
                return False
            self._leave(victim, tier)
        return True

    def _may_leave(self, segment: Segment, tier: Tier) -> bool:
        continued = any(Tier.DISK in below.tiers for below in segment.below())
        if segment.moving or (tier is Tier.DISK and continued):
            return False
        return len(segment.tiers) > 1 or not segment.children

    def _leave(self, segment: Segment, tier: Tier) -> None:
        segment.tiers.remove(tier)
        self._held[tier] -= len(segment.ids)
        self._orders.append(Drop(tier=tier, name=segment.head.name))
        if not segment.tiers:
            self._note(CacheChange.LET_GO, segment, tier)
            self._tree.unlink(segment)

    def _remove(self, segment: Segment) -> None:
        """Take a segment and whatever continues it out of every tier, as soon as nobody moves it."""
        if segment.going:
            return
        for child in list(segment.below()):
            self._remove(child)
        self._tree.unlink(segment)
        segment.going = True
        self._going.add(segment)
        self._settle(segment)

    def _settle(self, segment: Segment) -> None:
        if segment in self._going and not segment.moving:
            self._going.remove(segment)
            for tier in segment.tiers:
                self._held[tier] -= len(segment.ids)
                self._orders.append(Drop(tier=tier, name=segment.head.name))

    def _note(self, kind: CacheChange, segment: Segment, tier: Tier | None = None) -> None:
        self.journal.note(kind, segment.head.scope, len(segment.ids), tier=tier)

    def _touch(self, segment: Segment) -> None:
        self._uses += 1
        segment.used = self._uses
