"""One life lived by two cores at once, one on each index: after every operation both are the same.

Same is what anybody could see: events, receipts, figures, sessions, what can be matched and how;
and what decides the future: which tokens are left, who holds them, how old they are.
"""

import re
from array import array
from collections.abc import Callable, Sequence

import pytest
from hypothesis.stateful import invariant

from engine.api import Cancelled, Job, LeaseState, OwnerId, Scope, Subject, Wish
from engine.core import Core
from engine.errors import Refused
from engine.kv.blocks import BlockPool
from engine.kv.cache import Cache
from engine.kv.prefix import Entry, PrefixIndex, Scopes, scopes_of
from engine.parts import CoreConfig
from tests.kit.desk import Desk
from tests.kit.indexes import INDEXES
from tests.kit.machine import CacheLife

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

    def lease(self, subject: Subject, wish: Wish) -> LeaseState:
        state = self.core.lease(subject, wish, self.now)
        assert self.twin.core.lease(subject, wish, self.now) == state
        return state


class TwinLife(CacheLife):
    """`CacheLife` on both indexes at once."""

    desk: Mirror

    def _open(self, core_config: CoreConfig, order: Sequence[int]) -> None:
        pools = [BlockPool(core_config.pool_blocks, order=order) for _ in INDEXES]
        size = core_config.block_tokens
        self.indexes = [make(pool, size) for make, pool in zip(INDEXES, pools, strict=True)]
        self.caches = [Cache(*both, size) for both in zip(pools, self.indexes, strict=True)]
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
    def both_match_the_same(self) -> None:
        for job in self.jobs[-6:]:
            ids, scopes = array("I", self._ids_of(job)), scopes_of(job.zones)
            for end in {len(ids), len(ids) - 1, len(ids) // 2}:
                left, right = (found(index, ids, scopes, end) for index in self.indexes)
                assert left == right


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


def found(index: PrefixIndex, ids: "array[int]", scopes: Scopes, end: int) -> tuple[int, int, bool]:
    """How many tokens match, in how many whole blocks, and whether in part of another."""
    match = index.match(ids, scopes, end)
    return match.tokens, len(match.blocks), match.partial is not None
