"""One life lived by two cores at once, one on each index: after every operation both are the same.

Same is what anybody could see: events, receipts, figures, sessions, what can be matched and how,
what was evicted, parked and restored, in which order and why; and what decides the future: which
tokens are left, who holds them, how old they are, what lower tiers hold and what is on its way.
"""

import re
from array import array
from collections.abc import Callable, Sequence

import msgspec
import pytest
from hypothesis.stateful import invariant

from engine.api import Cancelled, Job, LeaseState, OwnerId, Scope, Subject, Wish
from engine.core import Core
from engine.errors import Refused
from engine.kv.cache import Cache
from engine.kv.prefix import Entry, PrefixIndex, Scopes, scopes_of
from engine.parts import CoreConfig
from engine.step import Park, Restore, SegmentHead, Spill
from engine.terms import Tier
from tests.kit.desk import Desk
from tests.kit.indexes import INDEXES
from tests.kit.machine import CacheLife, cache_of

Path = tuple[tuple[Scope, int], ...]
"""Every token of a path with its scope."""


class Mirror(Desk):
    """A desk at which everything is done twice; the answers have to be equal."""

    def __init__(self, core_config: CoreConfig, cache: Cache, twin: Desk) -> None:
        super().__init__(core_config, cache)
        self.twin = twin

    def submit(self, job: Job) -> Job:
        self.twin.now = self.now
        try:
            super().submit(job)
        except Refused as refusal:
            with pytest.raises(type(refusal), match=re.escape(str(refusal))):
                self.twin.submit(job)
            raise
        return self.twin.submit(job)

    def step(self, meanwhile: Callable[[Core], object] = id) -> bool:
        self.twin.now = self.now
        went_on = super().step(meanwhile)
        assert self.twin.step(meanwhile) == went_on
        return went_on

    def cancel(self, job: Job) -> Cancelled:
        self.twin.now = self.now
        cancelled = super().cancel(job)
        assert self.twin.cancel(job) == cancelled
        return cancelled

    def arrive(self, at: int = 0, *, pieces: int | None = None) -> None:
        super().arrive(at, pieces=pieces)
        self.twin.arrive(at, pieces=pieces)

    def lease(self, subject: Subject, wish: Wish) -> LeaseState:
        state = self.core.lease(subject, wish, self.now)
        assert self.twin.core.lease(subject, wish, self.now) == state
        return state


class TwinLife(CacheLife):
    """`CacheLife` on both indexes at once."""

    desk: Mirror
    seen = 0

    def _open(self, core_config: CoreConfig, order: Sequence[int]) -> None:
        self.caches = [cache_of(core_config, make_index, order) for make_index in INDEXES]
        self.indexes = [cache._index for cache in self.caches]
        self.cache = self.caches[0]
        self.desk = Mirror(core_config, self.cache, Desk(core_config, self.caches[1]))

    def _lease(self, subject: Subject, wish: Wish) -> None:
        self.desk.lease(subject, wish)

    @invariant()
    def both_said_the_same(self) -> None:
        desk, twin = self.desk, self.desk.twin
        assert (desk.started, desk.emitted, desk.ended) == (twin.started, twin.emitted, twin.ended)
        assert desk.core.stats() == twin.core.stats()
        twin.core.check()
        left, right = (core.snapshot(desk.now) for core in (desk.core, twin.core))
        assert left.sessions == right.sessions

    @invariant()
    def both_keep_the_same_tokens(self) -> None:
        left, right = (leaves(index) for index in self.indexes)
        assert left == right

    @invariant()
    def the_same_is_held_by_the_same(self) -> None:
        left, right = (
            {
                (lease.key, lease.retention, lease.expires_s, path_of(entry))
                for lease in cache._leases
                for entry in lease.entries
            }
            for cache in self.caches
        )
        assert left == right

    @invariant()
    def the_same_happened_in_the_same_order(self) -> None:
        """Evictions by class and reason, parks, restores, damage: kinds, scopes, tokens, counts."""
        desk, twin = self.desk, self.desk.twin
        left, right = (core.cache_events(self.seen) for core in (desk.core, twin.core))
        assert left == right
        self.seen = max((event.sequence_number for event in left), default=self.seen)

    @invariant()
    def lower_tiers_hold_the_same(self) -> None:
        papers = self.desk.paper, self.desk.twin.paper
        assert papers[0].segments == papers[1].segments
        ways = [[moved(order) for order in paper.moving] for paper in papers]
        assert ways[0] == ways[1]
        left, right = (parked(cache) for cache in self.caches)
        assert left == right

    @invariant()
    def both_match_the_same(self) -> None:
        for job in self.jobs[-6:]:
            ids, scopes = array("I", self._ids_of(job)), scopes_of(job.zones)
            for end in {len(ids), len(ids) - 1, len(ids) // 2}:
                left, right = (found(cache, ids, scopes, end) for cache in self.caches)
                assert left == right

    def check_everything(self) -> None:
        super().check_everything()
        self.both_said_the_same()
        self.both_keep_the_same_tokens()
        self.the_same_is_held_by_the_same()
        self.the_same_happened_in_the_same_order()
        self.lower_tiers_hold_the_same()
        self.both_match_the_same()


def path_of(entry: Entry) -> Path:
    above = list(entry.path())[::-1]
    return tuple((part.scope, token_id) for part in above for token_id in part.ids)


def leaves(index: PrefixIndex) -> dict[Path, tuple[int, float, dict[OwnerId, int]]]:
    """Every path that is known to its end: how old it is, and who pins it how often."""
    return {
        path_of(entry): (entry.used, entry.used_s, dict(entry.pins))
        for entry in index.entries()
        if entry.is_leaf
    }


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """What there is of some ids: tokens and whole blocks of the pool, and how far lower tiers go."""

    tokens: int
    blocks: int
    in_part_of_another: bool
    parked_tokens: int


def found(cache: Cache, ids: "array[int]", scopes: Scopes, end: int) -> Hit:
    match = cache._index.match(ids, scopes, end)
    return Hit(
        tokens=match.tokens,
        blocks=len(match.blocks),
        in_part_of_another=match.partial is not None,
        parked_tokens=cache.tiers.find(ids, scopes, end).end,
    )


def moved(order: Park | Spill | Restore) -> object:
    """What a transfer moves, wherever in the pool it lies."""
    match order:
        case Park(tier=tier, head=head, slots=slots):
            return tier, head, slots.offset, slots.tokens
        case Spill(head=head):
            return head
        case Restore(pieces=pieces):
            return [(one.tier, one.name, one.skip, one.slots.tokens) for one in pieces]


def parked(cache: Cache) -> dict[str, tuple[SegmentHead, set[Tier], int]]:
    """Every segment: whose it is, the tiers that hold it, how old it is."""
    return {
        segment.head.name: (segment.head, set(segment.tiers), segment.used)
        for segment in cache.tiers
    }
