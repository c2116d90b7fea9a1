"""One lease, and the budget that all leases which pin share.

Knows leases, classes and block counts; reads no clock, evicts nothing. Upholds law 10: no more is
pinned than the budget of the pool and of each owner allows. What is wished beyond it is degraded in
a strict order: the weakest class first, in it the owner who is furthest over an equal share by more
than one subject, else whoever; of those leases the one whose next turn is not
being written yet, which was used longest ago. A block that several leases pin counts once, and for an owner at most once.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

import msgspec

from engine.api import OwnerId, RetentionClass, SubjectKind
from engine.errors import Corrupt
from engine.figures import CacheChange, EvictionReason
from engine.kv.blocks import BlockPool
from engine.kv.journal import Journal
from engine.kv.prefix import Entry, is_operators
from engine.kv.returns import NO_HABIT, GapModel, first_turn
from engine.step import BlockId

PINNING = [rank for rank in RetentionClass if rank >= RetentionClass.KEPT]
"""The classes whose blocks count as pinned, weakest first."""

PUBLISHED = (SubjectKind.PERSONA, SubjectKind.DOCUMENT)
"""Whose text the operator's zone holds: it is forgotten with them and with nobody else."""

NEVER = -math.inf

TRIALS = 4
"""How many degraded leases are tried at a time, so that a turn's part in it stays small. The next
turn goes on with the others."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the pool may be pinned: by all together, and by one owner."""

    share: float = 0.8
    share_per_owner: float = 0.5


DEFAULT_BUDGET = Budget()

LeaseKey = tuple[OwnerId, str]
"""Owner and subject id; jobs whose `session_id` is the subject's id publish its paths."""


class Lease:
    """The soft pin of one subject, or (`kind` None) of a text of the operator's by itself.

    An `orphan` one has what its subject does not go through: drafts, cancelled branches. `wished`
    is the class that was asked for, until `expires_s`; `retention` is the one granted. What is not
    `durable` may lie in memory only. `stopped` is the use by which its last turn
    ended, if that was cut short.
    `imminent`: its next turn is being written.
    `ttl_s` is the wish's window, which every turn opens anew. `queued_s` and `rank` belong to those
    who look after expiry and budget.
    """

    __slots__ = (
        "durable",
        "entries",
        "expires_s",
        "habit",
        "imminent",
        "key",
        "kind",
        "orphan",
        "queued_s",
        "rank",
        "recent_until_s",
        "retention",
        "stopped",
        "ttl_s",
        "used_s",
        "wished",
    )

    def __init__(
        self, key: LeaseKey, kind: SubjectKind | None, now: float, *, orphan: bool = False
    ) -> None:
        self.key = key
        self.kind = kind
        self.orphan = orphan
        self.retention = RetentionClass.ORPHAN if orphan else RetentionClass.IDLE
        self.wished: RetentionClass | None = None
        self.ttl_s: float | None = None
        self.expires_s: float | None = None
        self.recent_until_s = NEVER
        self.used_s = now
        self.habit = NO_HABIT
        self.imminent = False
        self.durable = True
        self.stopped: int | None = None
        self.entries: dict[Entry, None] = {}
        self.queued_s: float | None = None
        self.rank: RetentionClass | None = None

    @property
    def owner_id(self) -> OwnerId:
        return self.key[0]

    @property
    def pins(self) -> bool:
        """Whether its blocks count as pinned: they were asked to stay, and the budget allows it."""
        return self.retention >= RetentionClass.KEPT

    @property
    def wishes_pins(self) -> bool:
        return self.wished is not None and self.wished >= RetentionClass.KEPT

    @property
    def is_degraded(self) -> bool:
        """It would pin if the budget allowed it."""
        return self.wishes_pins and not self.pins

    @property
    def cached_tokens(self) -> int:
        """Tokens of its longest path."""
        return max((entry.end for entry in self.entries), default=0)

    def learn_turn(self, entry: Entry, now: float, model: GapModel) -> None:
        """A turn of the subject ended in `entry`."""
        if self.habit.turns:
            self.habit = self.habit.after(entry.end, now - self.used_s, model)
        else:
            zone = (above.end for above in entry.path() if is_operators(above.scope))
            self.habit = first_turn(entry.end, next(zone, 0))

    def due_s(self, now: float) -> float | None:
        """When its class may fall by itself."""
        times = [] if self.expires_s is None else [self.expires_s]
        if self.recent_until_s > now and not self.orphan:
            times.append(self.recent_until_s)
        return min(times, default=None)

    def unpinned(self, now: float) -> RetentionClass:
        """Its class where it pins nothing: the wished one, else by its last turn."""
        if self.wished is not None and not self.wishes_pins:
            return self.wished
        if self.orphan:
            return RetentionClass.ORPHAN
        return RetentionClass.RECENT if now < self.recent_until_s else RetentionClass.IDLE


class Pins:
    """Which leases pin and which are degraded. How much is pinned, the pool counts as it goes."""

    def __init__(
        self, pool: BlockPool, block_tokens: int, budget: Budget, journal: Journal
    ) -> None:
        self.blocks = int(pool.total * budget.share)
        self.blocks_per_owner = min(self.blocks, int(pool.total * budget.share_per_owner))
        self._pool = pool
        self._journal = journal
        self._block_tokens = block_tokens
        self._pinning: dict[RetentionClass, dict[OwnerId, dict[Lease, None]]] = {
            rank: {} for rank in PINNING
        }
        self._degraded: dict[Lease, None] = {}
        self._hopeful: list[Lease] = []
        self._room_came = False

    def file(self, lease: Lease) -> None:
        """Book where the lease stands now: it pins, it would, or neither."""
        known = lease in self._degraded
        self._degraded.pop(lease, None)
        if lease.rank is not None:
            owners = self._pinning[lease.rank]
            del owners[lease.owner_id][lease]
            if not owners[lease.owner_id]:
                del owners[lease.owner_id]
        lease.rank = lease.retention if lease.pins and lease.entries else None
        if lease.rank is not None:
            self._pinning[lease.rank].setdefault(lease.owner_id, {})[lease] = None
        elif lease.is_degraded:
            self._degraded[lease] = None
            if not known and lease.wished is not None:
                why = lease.wished, EvictionReason.QUOTA
                self._journal.note(CacheChange.DEGRADED, None, lease.cached_tokens, why=why)

    def note_room(self) -> None:
        """Less is pinned than before: what is degraded may fit now."""
        self._room_came = True

    def excess(self, owner_id: OwnerId) -> Lease | None:
        """The lease to degrade next, since its owner or all pin too much; None: nobody does."""
        if self._pool.pinned_by(owner_id) > self.blocks_per_owner:
            return self._weakest(owner_id)
        if self._pool.pinned_blocks > self.blocks:
            return self._weakest()
        return None

    def hopeful(self) -> Iterator[Lease]:
        """What is degraded and fits, should room have come: in the order opposite to degrading."""
        if self._room_came and not self._hopeful:
            self._hopeful = sorted(self._degraded, key=self._strength)
            self._room_came = False
        for _ in range(min(TRIALS, len(self._hopeful))):
            lease = self._hopeful.pop()
            if lease.is_degraded and self._fits(lease):
                yield lease

    def can_fit(self, lease: Lease) -> bool:
        """Whether the budget could hold the lease's longest path if nothing else were pinned."""
        return lease.cached_tokens <= self.blocks_per_owner * self._block_tokens

    def check(self) -> None:
        """Raises `Corrupt` where more is pinned than the budget allows, or not what leases pin."""
        if self._pool.pinned_blocks > self.blocks:
            raise Corrupt(f"{self._pool.pinned_blocks} blocks are pinned, {self.blocks} may be")
        by_owner: dict[OwnerId, list[Lease]] = {}
        for owners in self._pinning.values():
            for owner_id, pinning in owners.items():
                by_owner.setdefault(owner_id, []).extend(pinning)
        pinned: set[BlockId] = set()
        for owner_id, leases in by_owner.items():
            blocks = blocks_of(leases)
            pinned |= blocks
            if self._pool.pinned_by(owner_id) != len(blocks):
                raise Corrupt(f"{owner_id} pins {len(blocks)} blocks, the pool counts others")
            if len(blocks) > self.blocks_per_owner:
                raise Corrupt(f"{owner_id} pins {len(blocks)} blocks: too many for one")
        if len(pinned) != self._pool.pinned_blocks:
            raise Corrupt(f"{len(pinned)} blocks are pinned, the pool counts others")

    def _weakest(self, owner_id: OwnerId | None = None) -> Lease:
        for owners in self._pinning.values():
            if owner_id in owners:
                return _first(owners[owner_id])
            if owner_id is None and owners:
                over = self._over(owners)
                # Among equals the one who got what he has first.
                most = max(over, key=over.__getitem__)
                greedy = over[most] > 0
                return _first(owners[most] if greedy else chain.from_iterable(owners.values()))
        raise Corrupt("more is pinned than all leases pin")

    def _over(self, owners: Mapping[OwnerId, Iterable[Lease]]) -> dict[OwnerId, int]:
        """Blocks that each pins beyond an equal share and beyond his longest path.

        One long conversation is no greed.
        """
        everybody = {owner_id for pinning in self._pinning.values() for owner_id in pinning}
        share = self.blocks // len(everybody)
        return {
            owner_id: self._pool.pinned_by(owner_id)
            - max(share, *(self._blocks_of(lease) for lease in leases))
            for owner_id, leases in owners.items()
        }

    def _blocks_of(self, lease: Lease) -> int:
        return -(-lease.cached_tokens // self._block_tokens)

    def _strength(self, lease: Lease) -> tuple[int, bool, float]:
        assert lease.wished is not None
        return lease.wished, lease.imminent, lease.used_s

    def _fits(self, lease: Lease) -> bool:
        """Whether what the lease would pin beyond what is pinned fits into the budget."""
        owner_id = lease.owner_id
        own = self.blocks_per_owner - self._pool.pinned_by(owner_id)
        room = self.blocks - self._pool.pinned_blocks
        seen: set[Entry] = set()
        for end in lease.entries:
            for entry in end.path():
                # Whoever pins an entry pins everything above it.
                if owner_id in entry.pins or entry in seen:
                    break
                seen.add(entry)
                blocks = _added_blocks(entry)
                own -= blocks
                room -= 0 if entry.pins else blocks
                if own < 0 or room < 0:
                    return False
        return True


def blocks_of(leases: Iterable[Lease]) -> set[BlockId]:
    """Different blocks that the leases' paths run through."""
    paths = {above for lease in leases for entry in lease.entries for above in entry.path()}
    return {block for entry in paths for block in entry.blocks}


def _first(leases: Iterable[Lease]) -> Lease:
    return min(leases, key=lambda lease: (lease.imminent, lease.used_s))


def _added_blocks(entry: Entry) -> int:
    """How many blocks the entry has that the one above it has not."""
    above, blocks = entry.parent, entry.blocks
    assert above is not None
    return len(blocks) - (bool(above.blocks) and above.blocks[-1] == blocks[0])
