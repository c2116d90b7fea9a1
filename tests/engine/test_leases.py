"""Leases and the order of eviction: classes, expiry, what a subject lost, who goes first."""

from array import array
from collections.abc import Sequence

from engine.api import (
    OPERATOR_SCOPE,
    Hold,
    MissReason,
    OwnerId,
    RetentionClass,
    Scope,
    Subject,
    SubjectKind,
)
from engine.kv import leases as leases_module
from engine.kv.blocks import BlockPool
from engine.kv.leases import NO_SESSION, RECENT_S, LeaseKey, Leases
from engine.kv.prefix import NO_END, Entry
from engine.kv.radix import RadixIndex
from engine.kv.retention import EvictionQueue, retention_of

ANN = OwnerId("ann")


class Bench:
    """Leases over a real index, with the queue that they order."""

    def __init__(self) -> None:
        self.pool = BlockPool(64)
        self.index = RadixIndex(self.pool, 4)
        self.queue = EvictionQueue()
        self.leases = Leases(self.index, self.queue.offer)

    def path(self, ids: Sequence[int], *, scope: str = "ann", used: int = 0) -> Entry:
        table = self.pool.allocate(-(-len(ids) // 4)) or []
        scopes = ((Scope(scope), NO_END),)
        span = (self.index.root, len(ids))
        entry = self.index.publish(array("I", ids), scopes, table, span).entry
        self.pool.free(table)
        entry.used = used
        self.queue.offer(entry)
        return entry


def session(name: str) -> Subject:
    return Subject(kind=SubjectKind.SESSION, subject_id=name, owner_id=ANN)


def key(name: str) -> LeaseKey:
    return ANN, name


def test_a_turn_is_recent_for_a_while_and_then_idle():
    bench = Bench()
    entry = bench.path(range(8))

    bench.leases.end_turn(key("s"), entry, 0.0)
    bench.leases.expire(RECENT_S - 1)
    assert retention_of(entry) is RetentionClass.RECENT
    bench.leases.expire(RECENT_S)

    assert retention_of(entry) is RetentionClass.IDLE


def test_a_next_turn_renews_the_lease_and_moves_its_end():
    bench = Bench()
    first = bench.path(range(4))
    bench.leases.end_turn(key("s"), first, 0.0)
    second = bench.path(range(8))

    bench.leases.end_turn(key("s"), second, 500.0)
    bench.leases.expire(RECENT_S)

    (lease,) = bench.leases
    assert lease.entries == {second}
    assert lease.retention is RetentionClass.RECENT


def test_a_fork_keeps_both_ends():
    bench = Bench()
    for ids in ([1, 2, 3, 4], [1, 2, 9, 9]):
        bench.leases.end_turn(key("s"), bench.path(ids), 0.0)

    (lease,) = bench.leases

    assert len(lease.entries) == 2
    assert lease.cached_tokens == 4
    assert lease.blocks == 2


def test_a_wish_outlasts_turns_until_it_expires():
    bench = Bench()
    bench.leases.hold(session("s"), Hold(retention=RetentionClass.LIVE, ttl_s=50.0), 0.0)
    entry = bench.path(range(8))

    bench.leases.end_turn(key("s"), entry, 10.0)
    assert retention_of(entry) is RetentionClass.LIVE
    assert bench.pool.counts().pinned == 2
    bench.leases.expire(50.0)

    assert retention_of(entry) is RetentionClass.IDLE
    assert bench.pool.counts().pinned == 0


def test_a_wish_without_end_never_expires():
    bench = Bench()
    entry = bench.path(range(4))
    bench.leases.end_turn(key("s"), entry, 0.0)

    bench.leases.hold(session("s"), Hold(retention=RetentionClass.KEPT), 1.0)
    bench.leases.expire(1e9)

    assert retention_of(entry) is RetentionClass.KEPT


def test_an_owner_wish_reaches_all_of_the_owners_leases_and_makes_none():
    bench = Bench()
    owner = Subject(kind=SubjectKind.OWNER, subject_id=ANN, owner_id=ANN)
    assert bench.leases.hold(owner, Hold(retention=RetentionClass.LIVE), 0.0) == []
    for name, ids in (("s1", [1, 1]), ("s2", [2, 2])):
        bench.leases.end_turn(key(name), bench.path(ids), 0.0)

    held = bench.leases.hold(owner, Hold(retention=RetentionClass.LIVE), 0.0)

    assert {lease.retention for lease in held} == {RetentionClass.LIVE}
    assert {lease.kind for lease in held} == {SubjectKind.SESSION}


def test_jobs_without_a_session_are_orphans_again_after_a_wish_ran_out():
    bench = Bench()
    entry = bench.path(range(4))
    bench.leases.end_turn(key(NO_SESSION), entry, 0.0)
    assert retention_of(entry) is RetentionClass.ORPHAN
    owner = Subject(kind=SubjectKind.OWNER, subject_id=ANN, owner_id=ANN)
    bench.leases.hold(owner, Hold(retention=RetentionClass.LIVE, ttl_s=1.0), 0.0)
    bench.leases.expire(1.0)

    bench.leases.end_turn(key(NO_SESSION), bench.path(range(6)), 2.0)
    bench.leases.end_turn(key(NO_SESSION), bench.path(range(8)), 3.0)

    (lease,) = bench.leases
    assert lease.retention is RetentionClass.ORPHAN


def test_a_forgotten_lease_leaves_orphans():
    bench = Bench()
    entry = bench.path(range(4))
    bench.leases.end_turn(key("s"), entry, 0.0)

    bench.leases.forget(bench.leases.of(session("s"))[0])

    assert retention_of(entry) is RetentionClass.ORPHAN
    assert list(bench.leases) == []


def test_leases_that_hold_nothing_are_dropped():
    bench = Bench()

    bench.leases.hold(session("s1"), Hold(retention=RetentionClass.IDLE), 0.0)
    bench.leases.hold(session("s2"), Hold(retention=RetentionClass.LIVE, ttl_s=5.0), 0.0)
    assert [lease.key for lease in bench.leases] == [key("s2")]
    bench.leases.expire(5.0)

    assert list(bench.leases) == []


def test_a_loss_is_named_by_what_the_lease_was_worth_until_the_next_turn():
    bench = Bench()
    entry = bench.path(range(4))
    bench.leases.end_turn(key("s"), entry, 0.0)
    bench.leases.note_loss(entry.held_by)
    assert bench.leases.loss(key("s")) is MissReason.EVICTED_PRESSURE
    bench.leases.expire(RECENT_S)
    bench.leases.note_loss(entry.held_by)
    assert bench.leases.loss(key("s")) is MissReason.EVICTED_IDLE

    bench.leases.end_turn(key("s"), entry, RECENT_S)

    assert bench.leases.loss(key("s")) is None


def test_only_so_many_losses_are_remembered(monkeypatch):
    monkeypatch.setattr(leases_module, "REMEMBERED_LOSSES", 2)
    bench = Bench()
    for name in ("s1", "s2", "s3"):
        entry = bench.path([ord(name[1])])
        bench.leases.end_turn(key(name), entry, 0.0)
        bench.leases.note_loss(entry.held_by)

    assert bench.leases.loss(key("s1")) is None
    assert bench.leases.loss(key("s3")) is not None


def test_the_operators_zone_is_shared_by_itself():
    bench = Bench()

    assert retention_of(bench.path([1], scope=OPERATOR_SCOPE)) is RetentionClass.SHARED


def test_the_queue_gives_the_lowest_class_first_then_the_least_recently_used():
    bench = Bench()
    old, new, kept = bench.path([1], used=1), bench.path([2], used=2), bench.path([3])
    bench.leases.end_turn(key("s"), kept, 0.0)

    assert [bench.queue.take() for _ in range(4)] == [old, new, kept, None]


def test_the_queue_files_anew_what_was_used_meanwhile():
    bench = Bench()
    first, second = bench.path([1], used=1), bench.path([2], used=2)

    first.used = 3

    assert [bench.queue.take() for _ in range(2)] == [second, first]


def test_the_queue_learns_of_a_class_that_fell():
    bench = Bench()
    kept, other = bench.path([1], used=1), bench.path([2], used=2)
    for name, entry in (("s1", kept), ("s2", other)):
        bench.leases.end_turn(key(name), entry, 0.0)
    bench.leases.hold(session("s2"), Hold(retention=RetentionClass.ORPHAN), 0.0)

    assert [bench.queue.take() for _ in range(3)] == [other, kept, None]


def test_the_queue_gives_an_entry_once_though_it_was_filed_twice():
    bench = Bench()
    risen, other = bench.path([1], used=1), bench.path([2], used=2)
    bench.leases.end_turn(key("s"), risen, 0.0)
    assert bench.queue.take() is other

    bench.leases.hold(session("s"), Hold(retention=RetentionClass.ORPHAN), 0.0)

    assert [bench.queue.take() for _ in range(2)] == [risen, None]


def test_the_queue_passes_over_what_is_gone_or_no_leaf_any_more():
    bench = Bench()
    gone, grown = bench.path([1]), bench.path([2], used=1)
    bench.leases.end_turn(key("s"), grown, 0.0)
    bench.index.trim(gone, 1)
    bench.queue.offer(gone)
    child = bench.path([2, 3], used=2)

    assert [bench.queue.take() for _ in range(2)] == [child, None]
