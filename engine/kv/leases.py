"""Leases: for each subject, where its paths end, in which class they are kept, and until when.

Knows subjects and classes; evicts nothing itself and reads no clock (`now` is an argument; where it
goes back, time stands still). A lease is soft: it orders what is let go and holds nothing fast, so
it can never stop a turn (law 10). What a wish for a pinning class is granted:

    wished --- fits ---------> that class, pinned
       |                          |        ^
       |              others come v        | room comes
       +------ too much ------> degraded: recent after its last turn, then idle

A wish stands until another comes or until it expires, and every turn opens its window anew. After
it the subject is in the order of its last turn again; nothing is let go by that. What a subject lost
is remembered for a while, so that its next receipt can say why.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count

from engine.api import (
    Hold,
    MissReason,
    OwnerId,
    RetentionClass,
    Subject,
    SubjectKind,
)
from engine.figures import EvictionReason
from engine.kv.blocks import BlockPool
from engine.kv.holding import A_TURN, Closing
from engine.kv.journal import Journal
from engine.kv.pins import NEVER, Budget, Lease, LeaseKey, Pins
from engine.kv.prefix import Entry, Holder, PrefixIndex, is_operators
from engine.kv.returns import MOONCAKE, NO_HABIT

REMEMBERED_LOSSES = 4096

NO_SESSION = ""
"""The subject id of an owner's jobs that belong to no session: orphans that are forgotten with
their owner."""

NOBODY = OwnerId("")
"""Whose the operator's text is where no persona and no document is leased."""


class Leases:
    """All leases. `refile` is told of every entry whose retention class may have fallen.

    `model` says how long a subject counts as recent after a turn: all alike, so that the least recently
    used falls first, or (`by_pace`) each as its own gaps foretell.
    """

    def __init__(
        self,
        index: PrefixIndex,
        pool: BlockPool,
        block_tokens: int,
        *,
        refile: Callable[[Entry], None],
        budget: Budget,
        journal: Journal,
    ) -> None:
        self.model = MOONCAKE
        self.by_pace = False
        self._index = index
        self._refile = refile
        self._pins = Pins(pool, block_tokens, budget, journal)
        self._now = NEVER
        self._leases: dict[LeaseKey, Lease] = {}
        self._orphans: dict[LeaseKey, Lease] = {}
        self._due: list[tuple[float, int, Lease]] = []
        self._numbers = count()
        self._losses: OrderedDict[LeaseKey, MissReason] = OrderedDict()

    def __iter__(self) -> Iterator[Lease]:
        """Every subject's, orphans left out."""
        return iter(self._leases.values())

    def end_turn(self, key: LeaseKey, entry: Entry, now: float, closing: Closing = A_TURN) -> None:
        """A path of the subject now ends in `entry`; earlier ends on the same path are dropped.

        One turn that is not durable makes the whole subject so. One that was stopped is gone on
        from, most often; if the next turn does not, what it has of its own becomes orphan.
        """
        if key[1] == NO_SESSION:
            self.orphan(key, entry, now)
            return
        self._pass(now)
        lease = self._leases.setdefault(key, Lease(key, SubjectKind.SESSION, self._now))
        if closing.counted:
            lease.learn_turn(entry, self._now, self.model)
            lease.imminent = False
        lease.durable = lease.durable and closing.durable
        left, path = lease.stopped, set(entry.path())
        self._use(lease, entry)
        lease.stopped = entry.used if closing.stopped else None
        branches = [e for e in lease.entries if e.used == left and e not in path]
        for branch in sorted(branches, key=lambda entry: -entry.start):
            self.orphan(key, branch, now)
            self._index.unhold(branch, lease)
            self._refile(branch)
        self._losses.pop(key, None)
        self._use_zone(entry)
        self._raise()

    def orphan(self, key: LeaseKey, entry: Entry, now: float) -> None:
        """A path ends in `entry` that the subject will hardly go on from: what it has of its own."""
        self._pass(now)
        lease = Lease(key, SubjectKind.SESSION, self._now, orphan=True)
        self._use(self._orphans.setdefault(key, lease), entry)
        self._use_zone(entry)

    def hold(self, subject: Subject, wish: Hold, now: float) -> list[Lease]:
        """Wish the subject into a class, until the wish expires. What is orphan stays orphan."""
        self._pass(now)
        held = [lease for lease in self.of(subject) if not lease.orphan]
        if not held and subject.kind is not SubjectKind.OWNER:
            key = (subject.owner_id, subject.subject_id)
            held = [self._leases.setdefault(key, Lease(key, subject.kind, self._now))]
        for lease in held:
            lease.wished, lease.ttl_s = wish.retention, wish.ttl_s
            lease.imminent = wish.imminent
            lease.kind = subject.kind if subject.kind is not SubjectKind.OWNER else lease.kind
            self._renew(lease)
            self._review(lease)
        self._raise()
        self.settle(held)
        return held

    def forget(self, lease: Lease) -> None:
        """The lease is over; its entries stay, held by others or by nobody."""
        for entry in list(lease.entries):
            self._index.unhold(entry, lease)
            self._refile(entry)
        del self._home(lease)[lease.key]
        lease.wished = None
        self._pins.file(lease)
        self._pins.note_room()
        self._raise()

    def of(self, subject: Subject) -> list[Lease]:
        """The subject's leases, orphans with them; or all of an owner's."""
        if subject.kind is SubjectKind.OWNER:
            every = chain(self._leases.values(), self._orphans.values())
            return [lease for lease in every if lease.owner_id == subject.owner_id]
        key = (subject.owner_id, subject.subject_id)
        return [leases[key] for leases in (self._leases, self._orphans) if key in leases]

    def is_claimed(self, entry: Entry) -> bool:
        """Whether a subject's path ends here; the operator's text by itself is nobody's."""
        return any(isinstance(lease, Lease) and lease.kind is not None for lease in entry.held_by)

    def expire(self, now: float) -> list[Lease]:
        """Wishes that are due end, and what was recent is idle; nothing is let go by that.

        Returns the subjects' leases that are idle from now on.
        """
        self._pass(now)
        idle: list[Lease] = []
        if not self._due or self._due[0][0] > self._now:
            return idle
        while self._due and self._due[0][0] <= self._now:
            due_s, _, lease = heapq.heappop(self._due)
            if lease.queued_s != due_s:
                continue
            lease.queued_s, before = None, lease.retention
            self._review(lease)
            self.settle([lease])
            if lease.retention is RetentionClass.IDLE < before and lease.kind is not None:
                idle.append(lease)
        self._raise()
        return idle

    def note_loss(self, holders: Iterable[Holder]) -> EvictionReason:
        """Remember why the holders of an entry lose part of it; the oldest losses are forgotten.

        Returns why the entry does: for want of budget, where one of them would have pinned it.
        """
        why = EvictionReason.PRESSURE
        for lease in holders:
            assert isinstance(lease, Lease)
            if lease.kind is None:
                continue
            if lease.is_degraded:
                why = EvictionReason.QUOTA
            if lease.pins:
                self._pins.note_room()
            if lease.key not in self._losses or not lease.orphan:
                self._losses[lease.key] = _reason(lease)
            self._losses.move_to_end(lease.key)
        while len(self._losses) > REMEMBERED_LOSSES:
            self._losses.popitem(last=False)
        return why

    def loss(self, key: LeaseKey) -> MissReason | None:
        """Why the subject's blocks were let go since its last turn, if they were."""
        return self._losses.get(key)

    def settle(self, holders: Iterable[Holder]) -> None:
        """Drop leases that hold nothing and are held for nothing."""
        for lease in holders:
            assert isinstance(lease, Lease)
            if lease.entries:
                continue
            self._pins.file(lease)
            if lease.retention <= RetentionClass.IDLE and not lease.wishes_pins:
                home = self._home(lease)
                if home.get(lease.key) is lease:
                    del home[lease.key]

    def check(self) -> None:
        """Raises `Corrupt` where more is pinned than may be, or the books are wrong."""
        self._pins.check()

    # ------------------------------------------------------------ inside

    def _pass(self, now: float) -> None:
        """Time goes on; a clock that jumps back lets nothing expire, now or when it returns."""
        self._now = max(self._now, now)

    def _use(self, lease: Lease, entry: Entry) -> None:
        lease.used_s = self._now
        habit = lease.habit if self.by_pace else NO_HABIT
        lease.recent_until_s = self._now + self.model.recent_s(habit)
        self._renew(lease)
        # The longer path first, so that what stays pinned is not unpinned in between.
        self._index.hold(entry, lease)
        for above in entry.path():
            if above is not entry and above in lease.entries:
                self._index.unhold(above, lease)
        self._review(lease)

    def _use_zone(self, entry: Entry) -> None:
        """What the path uses of the operator's text is recent, leased or not."""
        for above in entry.path():
            if is_operators(above.scope):
                zones = (h for h in above.held_by if isinstance(h, Lease) and h.kind is None)
                self._use(next(zones, Lease((NOBODY, NO_SESSION), None, self._now)), above)
                return

    def _home(self, lease: Lease) -> dict[LeaseKey, Lease]:
        return self._orphans if lease.orphan else self._leases

    def _renew(self, lease: Lease) -> None:
        lease.expires_s = None if lease.ttl_s is None else self._now + lease.ttl_s

    def _review(self, lease: Lease) -> None:
        """Put the lease where its wish, its last turn and the budget want it."""
        if lease.expires_s is not None and lease.expires_s <= self._now:
            if not lease.wishes_pins:
                lease.recent_until_s = NEVER
            lease.wished = lease.ttl_s = lease.expires_s = None
        if lease.wishes_pins and (lease.pins or self._pins.can_fit(lease)):
            assert lease.wished is not None
            self._put(lease, lease.wished)
            while (excess := self._pins.excess(lease.owner_id)) is not None:
                self._put(excess, excess.unpinned(self._now))
        else:
            self._put(lease, lease.unpinned(self._now))
        self._queue(lease)

    def _raise(self) -> None:
        """Grant what is degraded and fits into room that came."""
        for lease in self._pins.hopeful():
            assert lease.wished is not None
            self._put(lease, lease.wished)

    def _put(self, lease: Lease, retention: RetentionClass) -> None:
        fell, pinned = retention < lease.retention, lease.pins
        entries = list(lease.entries)
        if pinned is (retention >= RetentionClass.KEPT):
            lease.retention = retention
        else:
            for entry in entries:
                self._index.unhold(entry, lease)
            lease.retention = retention
            for entry in entries:
                self._index.hold(entry, lease)
        self._pins.file(lease)
        if pinned and not lease.pins:
            self._pins.note_room()
        if fell:
            for entry in entries:
                self._refile(entry)

    def _queue(self, lease: Lease) -> None:
        """Look at the lease again when it is due; sooner is no harm, so a later date waits."""
        due_s = lease.due_s(self._now)
        if due_s is not None and (lease.queued_s is None or due_s < lease.queued_s):
            lease.queued_s = due_s
            heapq.heappush(self._due, (due_s, next(self._numbers), lease))


def _reason(lease: Lease) -> MissReason:
    if lease.is_degraded:
        return MissReason.EVICTED_QUOTA
    idle = lease.retention <= RetentionClass.IDLE
    return MissReason.EVICTED_IDLE if idle else MissReason.EVICTED_PRESSURE
