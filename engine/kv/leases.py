"""Leases: for each subject, where its paths end, in which class they are kept, and until when.

Knows subjects and classes; evicts nothing itself and reads no clock (`now` is an argument). A
lease is soft: it orders what is let go and holds nothing fast, so it can never stop a turn
(law 10). What a subject lost is remembered for a while, so that its next receipt can say why.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

from engine.api import Hold, MissReason, OwnerId, RetentionClass, Subject, SubjectKind
from engine.kv.prefix import Entry, Holder, PrefixIndex

LeaseKey = tuple[OwnerId, str]
"""Owner and subject id; jobs whose `session_id` is the subject's id publish its paths."""

NO_SESSION = ""
"""The subject id of an owner's jobs that belong to no session: kept as orphans, and still known,
so that they can be forgotten with their owner."""

RECENT_S = 600.0
"""How long a turn's blocks stay RECENT without any wish: 95 % of the gaps between the turns of a
conversation are shorter (Mooncake FAST 25 conversation trace)."""

REMEMBERED_LOSSES = 4096


class Lease:
    """The soft pin of one subject. `wished` says whether its class was asked for."""

    __slots__ = ("entries", "expires_s", "key", "kind", "retention", "turns", "used_s", "wished")

    def __init__(self, key: LeaseKey, kind: SubjectKind, now: float) -> None:
        self.key = key
        self.kind = kind
        self.retention = RetentionClass.IDLE
        self.expires_s: float | None = None
        self.wished = False
        self.used_s = now
        self.turns = 0
        self.entries: set[Entry] = set()

    @property
    def pins(self) -> bool:
        """Whether its blocks count as pinned: somebody asked for them to stay."""
        return self.retention >= RetentionClass.KEPT

    @property
    def cached_tokens(self) -> int:
        """Tokens of its longest path."""
        return max((entry.end for entry in self.entries), default=0)

    @property
    def blocks(self) -> int:
        """Different blocks that its paths run through."""
        return len({b for entry in self.entries for above in entry.path() for b in above.blocks})


class Leases:
    """All leases. `refile` is told of every entry whose retention class may have fallen."""

    def __init__(self, index: PrefixIndex, refile: Callable[[Entry], None]) -> None:
        self._index = index
        self._refile = refile
        self._leases: dict[LeaseKey, Lease] = {}
        self._expiries: list[tuple[float, LeaseKey]] = []
        self._losses: OrderedDict[LeaseKey, MissReason] = OrderedDict()

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._leases.values())

    def end_turn(self, key: LeaseKey, entry: Entry, now: float) -> None:
        """A path of the subject now ends in `entry`; earlier ends on the same path are dropped."""
        lease = self._leases.setdefault(key, Lease(key, SubjectKind.SESSION, now))
        lease.used_s = now
        lease.turns += 1
        for above in entry.path():
            if above in lease.entries:
                self._index.unhold(above, lease)
        self._index.hold(entry, lease)
        self._losses.pop(key, None)
        if lease.wished:
            return
        if key[1] != NO_SESSION:
            self._put(lease, RetentionClass.RECENT, now + RECENT_S)
        elif lease.retention is not RetentionClass.ORPHAN:
            self._put(lease, RetentionClass.ORPHAN, None)

    def hold(self, subject: Subject, wish: Hold, now: float) -> list[Lease]:
        """Put the subject's leases into the wished class, until it expires."""
        held = self.of(subject)
        if not held and subject.kind is not SubjectKind.OWNER:
            key = (subject.owner_id, subject.subject_id)
            held = [self._leases.setdefault(key, Lease(key, subject.kind, now))]
        for lease in held:
            lease.wished = True
            lease.kind = subject.kind if subject.kind is not SubjectKind.OWNER else lease.kind
            self._put(lease, wish.retention, None if wish.ttl_s is None else now + wish.ttl_s)
        self.settle(held)
        return held

    def forget(self, lease: Lease) -> None:
        """The lease is over; its entries stay, held by others or by nobody."""
        for entry in list(lease.entries):
            self._index.unhold(entry, lease)
            self._refile(entry)
        self._leases.pop(lease.key, None)

    def of(self, subject: Subject) -> list[Lease]:
        """The subject's leases: one or none, or all of an owner's."""
        if subject.kind is SubjectKind.OWNER:
            return [lease for lease in self if lease.key[0] == subject.owner_id]
        lease = self._leases.get((subject.owner_id, subject.subject_id))
        return [] if lease is None else [lease]

    def expire(self, now: float) -> None:
        """Leases that are due fall back to IDLE; nothing is let go by that."""
        while self._expiries and self._expiries[0][0] <= now:
            due_s, key = heapq.heappop(self._expiries)
            lease = self._leases.get(key)
            if lease is not None and lease.expires_s == due_s:
                lease.wished = False
                self._put(lease, RetentionClass.IDLE, None)
                self.settle([lease])

    def note_loss(self, holders: Iterable[Holder]) -> None:
        """Remember why the holders of an entry lose part of it; the oldest losses are forgotten."""
        for lease in holders:
            assert isinstance(lease, Lease)
            idle = lease.retention <= RetentionClass.IDLE
            self._losses[lease.key] = (
                MissReason.EVICTED_IDLE if idle else MissReason.EVICTED_PRESSURE
            )
            self._losses.move_to_end(lease.key)
        while len(self._losses) > REMEMBERED_LOSSES:
            self._losses.popitem(last=False)

    def loss(self, key: LeaseKey) -> MissReason | None:
        """Why the subject's blocks were let go since its last turn, if they were."""
        return self._losses.get(key)

    def settle(self, holders: Iterable[Holder]) -> None:
        """Drop leases that hold nothing and are held for nothing."""
        for lease in holders:
            assert isinstance(lease, Lease)
            if lease.retention <= RetentionClass.IDLE and not lease.entries:
                self._leases.pop(lease.key, None)

    def _put(self, lease: Lease, retention: RetentionClass, expires_s: float | None) -> None:
        entries = list(lease.entries)
        for entry in entries:
            self._index.unhold(entry, lease)
        lease.retention = retention
        lease.expires_s = expires_s
        if expires_s is not None:
            heapq.heappush(self._expiries, (expires_s, lease.key))
        for entry in entries:
            self._index.hold(entry, lease)
            self._refile(entry)
