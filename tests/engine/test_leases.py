"""Leases and the order of eviction: classes, expiry, what a subject lost, who goes first."""

from array import array
from collections.abc import Sequence

import msgspec
import pytest

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
from engine.errors import Corrupt
from engine.kv import leases as leases_module
from engine.kv.blocks import BlockPool
from engine.kv.journal import Journal
from engine.kv.leases import NO_SESSION, Leases
from engine.kv.pins import DEFAULT_BUDGET, Budget, Lease, LeaseKey
from engine.kv.prefix import NO_END, Entry
from engine.kv.radix import RadixIndex
from engine.kv.retention import EvictionQueue, retention_of
from engine.kv.returns import MOONCAKE, NO_HABIT

RECENT_S = MOONCAKE.recent_s(NO_HABIT)
ANN, BEN = OwnerId("ann"), OwnerId("ben")
LIVE, KEPT, SHARED = RetentionClass.LIVE, RetentionClass.KEPT, RetentionClass.SHARED
RECENT, IDLE, ORPHAN = RetentionClass.RECENT, RetentionClass.IDLE, RetentionClass.ORPHAN


class Bench:
    """Leases over a real index of 4-token blocks, with the queue that they order."""

    def __init__(self, blocks: int = 64, budget: Budget = DEFAULT_BUDGET) -> None:
        self.pool = BlockPool(blocks)
        self.index = RadixIndex(self.pool, 4)
        self.queue = EvictionQueue()
        self.leases = Leases(
            self.index,
            self.pool,
            4,
            refile=self.queue.offer,
            budget=budget,
            journal=Journal(self.pool),
        )

    def path(self, ids: Sequence[int], *, scope: str = "ann", used: int = 0) -> Entry:
        table = self.pool.allocate(-(-len(ids) // 4)) or []
        scopes = ((Scope(scope), NO_END),)
        span = (self.index.root, len(ids))
        entry = self.index.publish(array("I", ids), scopes, table, span).entry
        self.pool.free(table)
        entry.used = used
        self.queue.offer(entry)
        return entry

    def turn(self, name: str, ids: Sequence[int], now: float, owner_id: OwnerId = ANN) -> Entry:
        entry = self.path(ids, scope=owner_id)
        self.leases.end_turn((owner_id, name), entry, now)
        self.leases.check()
        return entry

    def hold(
        self,
        name: str,
        retention: RetentionClass,
        now: float,
        *,
        ttl_s: float | None = None,
        owner_id: OwnerId = ANN,
        imminent: bool = False,
    ) -> Lease:
        """Wish for a session's class; returns its lease."""
        subject = session(name, owner_id)
        wish = Hold(retention=retention, ttl_s=ttl_s, imminent=imminent)
        (lease,) = self.leases.hold(subject, wish, now)
        self.leases.check()
        return lease

    def classes(self) -> dict[str, RetentionClass]:
        return {lease.key[1]: lease.retention for lease in self.leases}


def session(name: str, owner_id: OwnerId = ANN) -> Subject:
    return Subject(kind=SubjectKind.SESSION, subject_id=name, owner_id=owner_id)


def owner(owner_id: OwnerId) -> Subject:
    return Subject(kind=SubjectKind.OWNER, subject_id=owner_id, owner_id=owner_id)


def key(name: str) -> LeaseKey:
    return ANN, name


def blocks(first: int, count: int) -> list[int]:
    """Ids that fill `count` blocks and share nothing with those of another `first`."""
    return [first] * (4 * count)


# ------------------------------------------------------------ time


def test_a_turn_is_recent_for_a_while_and_then_idle():
    bench = Bench()
    entry = bench.turn("s", range(8), 0.0)

    assert bench.leases.expire(RECENT_S - 1) == []
    assert retention_of(entry) is RECENT
    idle = bench.leases.expire(RECENT_S)

    assert retention_of(entry) is IDLE
    assert idle == list(bench.leases)
    assert bench.leases.expire(2 * RECENT_S) == []


def test_how_long_a_turn_is_recent_is_told_by_the_conversations_own_pace():
    bench = Bench()
    bench.leases.by_pace = True
    for name, gap_s in (("quick", 20.0), ("slow", 900.0)):
        for turn in range(4):
            bench.turn(name, [*name.encode(), *range(8 * turn)], turn * gap_s)

    until = {lease.key[1]: lease.recent_until_s - lease.used_s for lease in bench.leases}

    assert until["quick"] < RECENT_S < until["slow"]
    for lease in bench.leases:
        assert until[lease.key[1]] == MOONCAKE.recent_s(lease.habit)


def test_by_plain_recency_what_was_used_longer_ago_is_never_the_longer_recent():
    bench = Bench()
    for name, gap_s in (("quick", 20.0), ("slow", 900.0)):
        for turn in range(4):
            bench.turn(name, [*name.encode(), *range(8 * turn)], turn * gap_s)

    for lease in bench.leases:
        assert lease.recent_until_s == lease.used_s + RECENT_S


def test_another_model_of_gaps_makes_other_turns_recent():
    bench = Bench()
    bench.leases.model = msgspec.structs.replace(MOONCAKE, gap_s=MOONCAKE.gap_s / 2)

    entry = bench.turn("s", range(8), 0.0)
    bench.leases.expire(RECENT_S / 2 - 1)
    before = retention_of(entry)
    bench.leases.expire(RECENT_S / 2 + 1)

    assert (before, retention_of(entry)) == (RECENT, IDLE)


def test_a_next_turn_renews_the_lease_and_moves_its_end():
    bench = Bench()
    bench.turn("s", range(4), 0.0)

    second = bench.turn("s", range(8), 500.0)
    bench.leases.expire(RECENT_S)

    (lease,) = bench.leases
    assert [*lease.entries] == [second]
    assert (lease.retention, lease.habit.turns) == (RECENT, 2)


def test_a_fork_keeps_both_ends():
    bench = Bench()
    for ids in ([1, 2, 3, 4], [1, 2, 9, 9]):
        bench.turn("s", ids, 0.0)

    (lease,) = bench.leases

    assert len(lease.entries) == 2
    assert lease.cached_tokens == 4


def test_a_wish_is_for_what_is_there_and_for_what_will_come():
    bench = Bench()
    bench.hold("s", LIVE, 0.0)

    entry = bench.turn("s", range(8), 10.0)

    assert retention_of(entry) is LIVE
    assert bench.pool.counts().pinned == 2


@pytest.mark.row("engine 13")
def test_every_turn_opens_the_window_of_a_wish_anew():
    bench = Bench()
    bench.hold("s", LIVE, 0.0, ttl_s=50.0)

    entry = bench.turn("s", range(8), 40.0)
    bench.leases.expire(89.0)
    assert retention_of(entry) is LIVE
    bench.leases.expire(90.0)

    assert retention_of(entry) is not LIVE


def test_after_a_wish_the_last_turn_counts_and_nothing_is_let_go():
    bench = Bench()
    entry = bench.turn("s", range(8), 0.0)
    bench.hold("s", KEPT, 0.0, ttl_s=50.0)
    assert bench.pool.counts().pinned == 2

    bench.leases.expire(50.0)
    assert retention_of(entry) is RECENT
    bench.leases.expire(RECENT_S)

    assert retention_of(entry) is IDLE
    assert (bench.pool.counts().pinned, bench.pool.counts().cached) == (0, 2)


@pytest.mark.parametrize("wished", [RECENT, IDLE, ORPHAN])
def test_a_wish_for_less_outlasts_turns_and_ends_in_idle(wished):
    bench = Bench()
    bench.turn("s", range(4), 0.0)
    bench.hold("s", wished, 0.0, ttl_s=50.0)

    entry = bench.turn("s", range(8), 10.0)
    assert retention_of(entry) is wished
    bench.leases.expire(60.0)

    assert retention_of(entry) is IDLE
    bench.turn("s", range(8), 70.0)
    assert retention_of(entry) is RECENT


def test_a_wish_without_end_never_expires():
    bench = Bench()
    entry = bench.turn("s", range(4), 0.0)

    bench.hold("s", KEPT, 1.0)
    bench.leases.expire(1e9)

    assert retention_of(entry) is KEPT


def test_a_clock_that_jumps_back_and_forth_expires_nothing():
    bench = Bench()
    live = bench.turn("s", range(8), 1000.0)
    recent = bench.turn("t", [9] * 8, 1000.0)
    bench.hold("s", LIVE, 1000.0, ttl_s=60.0)

    for now in (0.0, 1059.0, -1e6, 1059.0):
        bench.leases.expire(now)

    assert (retention_of(live), retention_of(recent)) == (LIVE, RECENT)


# ------------------------------------------------------------ subjects


def test_an_owner_wish_reaches_all_of_the_owners_leases_and_makes_none():
    bench = Bench()
    assert bench.leases.hold(owner(ANN), Hold(retention=LIVE), 0.0) == []
    for name, ids in (("s1", [1, 1]), ("s2", [2, 2])):
        bench.turn(name, ids, 0.0)

    held = bench.leases.hold(owner(ANN), Hold(retention=LIVE), 0.0)

    assert {lease.retention for lease in held} == {LIVE}
    assert {lease.kind for lease in held} == {SubjectKind.SESSION}


def test_drafts_and_cancelled_branches_stay_orphans_whatever_is_wished():
    bench = Bench()
    draft = bench.path(range(8))
    bench.leases.orphan(key("s"), draft, 0.0)

    bench.hold("s", LIVE, 0.0)
    bench.leases.hold(owner(ANN), Hold(retention=LIVE), 0.0)

    assert retention_of(draft) is ORPHAN
    assert len(bench.leases.of(session("s"))) == len(bench.leases.of(owner(ANN))) == 2


def test_an_orphan_path_that_its_session_goes_through_is_the_sessions():
    bench = Bench()
    bench.leases.orphan(key("s"), bench.path(range(8)), 0.0)

    entry = bench.turn("s", range(8), 0.0)

    assert retention_of(entry) is RECENT


def test_a_forgotten_lease_leaves_orphans():
    bench = Bench()
    entry = bench.turn("s", range(4), 0.0)

    bench.leases.forget(bench.leases.of(session("s"))[0])

    assert retention_of(entry) is ORPHAN
    assert list(bench.leases) == []
    bench.leases.expire(RECENT_S)


def test_a_subject_that_comes_back_is_not_aged_by_the_one_that_was_forgotten():
    bench = Bench()
    bench.turn("s", range(4), 0.0)
    bench.leases.forget(bench.leases.of(session("s"))[0])
    bench.hold("s", LIVE, 0.0)

    bench.leases.expire(RECENT_S)

    assert bench.classes() == {"s": LIVE}


def test_leases_that_hold_nothing_are_dropped():
    bench = Bench()

    bench.hold("s1", IDLE, 0.0)
    bench.hold("s2", LIVE, 0.0, ttl_s=5.0)
    assert bench.classes() == {"s2": LIVE}
    bench.leases.expire(5.0)

    assert bench.classes() == {}


# ------------------------------------------------------------ the operator's text


def test_the_operators_text_is_recent_after_use_and_then_idle():
    bench = Bench()
    entry = bench.path(range(6), scope=OPERATOR_SCOPE)
    table = bench.pool.allocate(2) or []
    scopes = ((OPERATOR_SCOPE, 6), (Scope("ann"), NO_END))
    user = bench.index.publish(array("I", range(8)), scopes, table, (entry, 8)).entry
    assert retention_of(entry) is ORPHAN

    bench.leases.end_turn((ANN, NO_SESSION), user, 0.0)
    assert (retention_of(entry), retention_of(user)) == (RECENT, ORPHAN)
    bench.leases.expire(RECENT_S)

    assert retention_of(entry) is IDLE
    assert not bench.leases.is_claimed(entry)
    assert bench.leases.is_claimed(user)


def test_a_leased_persona_is_shared_until_its_lease_ends():
    bench = Bench()
    persona = Subject(kind=SubjectKind.PERSONA, subject_id="p", owner_id=OwnerId("operator"))
    entry = bench.path(range(8), scope=OPERATOR_SCOPE)
    bench.leases.end_turn((persona.owner_id, "p"), entry, 0.0)
    bench.leases.hold(persona, Hold(retention=SHARED), 0.0)

    bench.leases.expire(1e6)
    assert retention_of(entry) is SHARED
    assert bench.leases.is_claimed(entry)
    bench.leases.hold(persona, Hold(retention=RECENT, ttl_s=60.0), 1e6)
    bench.leases.expire(1e6 + 60)

    assert retention_of(entry) is IDLE


def test_text_of_the_operator_that_is_gone_is_forgotten():
    bench = Bench()
    entry = bench.path(range(4), scope=OPERATOR_SCOPE)
    bench.leases.end_turn(key("s"), entry, 0.0)
    holders = list(entry.held_by)
    bench.leases.note_loss(holders)
    bench.index.trim(entry, 1)

    bench.leases.settle(holders)
    bench.leases.expire(RECENT_S)

    assert list(bench.leases) == []


# ------------------------------------------------------------ the budget


def test_the_weakest_class_is_degraded_first():
    bench = Bench(blocks=20, budget=Budget(share=0.3, share_per_owner=1))
    for at, retention in enumerate((SHARED, KEPT, LIVE)):
        bench.turn(retention.name, blocks(at, 2), at)
        bench.hold(retention.name, retention, at)
    assert bench.pool.pinned_blocks == 6

    bench.turn("new", blocks(9, 2), 5)
    bench.hold("new", LIVE, 5)
    assert bench.classes() == {"SHARED": SHARED, "KEPT": RECENT, "LIVE": LIVE, "new": LIVE}
    # Among equals whoever was used longest ago.
    bench.turn("SHARED", blocks(0, 3), 6)
    bench.leases.check()

    assert bench.classes() == {"SHARED": SHARED, "KEPT": RECENT, "LIVE": RECENT, "new": LIVE}


def test_the_owner_furthest_over_an_equal_share_is_degraded_first():
    bench = Bench(blocks=10, budget=Budget(share=0.6, share_per_owner=1))
    for at in range(2):
        bench.turn(f"b{at}", blocks(at, 2), 5 + at, BEN)
        bench.hold(f"b{at}", LIVE, 5 + at, owner_id=BEN)
    bench.turn("a0", blocks(7, 2), 0)
    bench.hold("a0", LIVE, 0)

    bench.turn("a1", blocks(8, 1), 1)
    bench.hold("a1", LIVE, 1)

    assert bench.classes() == {"b0": RECENT, "b1": LIVE, "a0": LIVE, "a1": LIVE}


def test_one_long_conversation_is_no_greed():
    bench = Bench(blocks=20, budget=Budget(share=0.5, share_per_owner=1))
    bench.turn("b", blocks(0, 1), 0, BEN)
    bench.hold("b", LIVE, 0, owner_id=BEN)
    bench.turn("long", blocks(1, 8), 1)
    bench.hold("long", LIVE, 1)

    bench.turn("c", blocks(2, 2), 2, OwnerId("cat"))
    bench.hold("c", LIVE, 2, owner_id=OwnerId("cat"))

    assert bench.classes() == {"b": RECENT, "long": LIVE, "c": LIVE}


def test_who_writes_the_next_turn_is_degraded_last_until_it_has_come():
    bench = Bench(blocks=20, budget=Budget(share=0.3, share_per_owner=1))
    for at, name in enumerate(("writes", "reads", "too")):
        bench.turn(name, blocks(at, 2), at)
        bench.hold(name, LIVE, at, imminent=name == "writes")

    bench.turn("new", blocks(9, 2), 5)
    bench.hold("new", LIVE, 5)
    assert bench.classes() == {"writes": LIVE, "reads": RECENT, "too": LIVE, "new": LIVE}
    bench.turn("writes", blocks(0, 3), 6)
    bench.turn("new", blocks(9, 4), 7)

    assert bench.classes() == {"writes": RECENT, "reads": RECENT, "too": LIVE, "new": LIVE}


def test_one_owner_may_pin_no_more_than_a_share():
    bench = Bench(blocks=10, budget=Budget(share=1, share_per_owner=0.4))
    bench.turn("b", blocks(9, 4), 0, BEN)
    bench.hold("b", KEPT, 0, owner_id=BEN)
    for at in range(3):
        bench.turn(f"a{at}", blocks(at, 2), at)
        bench.hold(f"a{at}", LIVE, at)

    assert bench.classes() == {"b": KEPT, "a0": RECENT, "a1": LIVE, "a2": LIVE}


def test_what_could_never_fit_is_degraded_at_once_and_harms_nobody():
    bench = Bench(blocks=20, budget=Budget(share=0.5, share_per_owner=0.25))
    bench.turn("small", blocks(1, 5), 0)
    bench.hold("small", KEPT, 0)
    bench.turn("big", blocks(2, 6), 1)

    lease = bench.hold("big", LIVE, 1)

    assert (lease.wished, lease.retention, lease.is_degraded) == (LIVE, RECENT, True)
    assert bench.classes() == {"small": KEPT, "big": RECENT}


def test_a_degraded_lease_is_recent_and_idle_like_any_other():
    bench = Bench(blocks=8)
    bench.turn("big", blocks(2, 6), 0)
    lease = bench.hold("big", LIVE, 0)

    bench.leases.expire(RECENT_S)

    assert (lease.wished, lease.retention) == (LIVE, IDLE)


@pytest.mark.parametrize("how", ["wished away", "forgotten", "expired", "evicted"])
def test_a_wish_is_granted_when_room_comes(how):
    bench = Bench(blocks=10, budget=Budget(share=0.4, share_per_owner=1))
    for at, name in enumerate(("old", "other", "new")):
        bench.turn(name, blocks(at, 2), at)
    bench.hold("old", KEPT, 3)
    bench.hold("other", KEPT, 3)
    bench.hold("new", LIVE, 3, ttl_s=5.0)
    assert bench.classes() == {"old": RECENT, "other": KEPT, "new": LIVE}

    match how:
        case "wished away":
            bench.hold("new", RECENT, 4)
        case "forgotten":
            bench.leases.forget(bench.leases.of(session("new"))[0])
        case "expired":
            bench.leases.expire(8.0)
        case "evicted":
            (entry,) = bench.leases.of(session("new"))[0].entries
            holders = list(entry.held_by)
            bench.leases.note_loss(holders)
            bench.index.trim(entry, 2)
            bench.leases.settle(holders)
            bench.turn("another", [77], 4)
        case _:
            raise AssertionError(how)
    bench.leases.check()

    assert bench.classes()["old"] is KEPT


def test_room_goes_to_the_strongest_that_fits():
    bench = Bench(blocks=20, budget=Budget(share=0.2, share_per_owner=1))
    wishes = {"first": SHARED, "kept": KEPT, "live": LIVE, "large": LIVE}
    for at, (name, retention) in enumerate(wishes.items()):
        bench.turn(name, blocks(at, 4 if name == "first" else 3 if name == "large" else 2), at)
        bench.hold(name, retention, at)
    assert list(bench.classes().values()) == [SHARED, RECENT, RECENT, RECENT]

    bench.hold("first", RECENT, 9)

    assert bench.classes() == {"first": RECENT, "kept": RECENT, "live": RECENT, "large": LIVE}


def test_blocks_that_several_leases_pin_count_once():
    bench = Bench(blocks=10, budget=Budget(share=0.6, share_per_owner=0.5))
    shared = blocks(1, 3)
    for at in range(3):
        bench.turn(f"s{at}", [*shared, *blocks(10 + at, 1)], at)
        bench.hold(f"s{at}", LIVE, at)

    # Three shared ones and one of its own each: the third would be the sixth for one owner.
    assert bench.classes() == {"s0": RECENT, "s1": LIVE, "s2": LIVE}
    assert bench.pool.pinned_by(ANN) == bench.pool.pinned_blocks == 5


def test_nothing_is_pinned_where_the_budget_is_nothing():
    bench = Bench(budget=Budget(share=0, share_per_owner=1))
    bench.turn("s", range(8), 0)

    assert bench.hold("s", LIVE, 0).retention is RECENT


@pytest.mark.parametrize("damage", ["pool", "owner", "one too many", "stranger"])
def test_check_notices_pins_that_no_lease_has(damage):
    bench = Bench(blocks=10)
    bench.turn("s", blocks(1, 4), 0)
    bench.turn("t", blocks(2, 4), 0)
    bench.hold("s", LIVE, 0)
    (other,) = bench.leases.of(session("t"))[0].entries

    match damage:
        case "pool":
            bench.leases._pins.blocks = 3
        case "owner":
            bench.pool.pin(other.blocks[0], ANN)
        case "one too many":
            bench.leases._pins.blocks_per_owner = 3
        case "stranger":
            bench.pool.pin(other.blocks[0], BEN)
        case _:
            raise AssertionError(damage)

    with pytest.raises(Corrupt):
        bench.leases.check()


def test_pins_that_no_lease_has_are_not_taken_from_the_leases_in_vain():
    bench = Bench(blocks=10, budget=Budget(share=0.2, share_per_owner=0.2))
    entry = bench.turn("s", blocks(1, 2), 0)
    for block in bench.turn("t", blocks(2, 4), 0).blocks:
        bench.pool.pin(block, BEN)

    with pytest.raises(Corrupt, match="more is pinned"):
        bench.hold("s", LIVE, 0)

    assert retention_of(entry) is RECENT


# ------------------------------------------------------------ what was lost


def test_a_loss_is_named_by_what_the_lease_was_worth_until_the_next_turn():
    bench = Bench()
    entry = bench.turn("s", range(4), 0.0)
    bench.leases.note_loss(entry.held_by)
    assert bench.leases.loss(key("s")) is MissReason.EVICTED_PRESSURE
    bench.leases.expire(RECENT_S)
    bench.leases.note_loss(entry.held_by)
    assert bench.leases.loss(key("s")) is MissReason.EVICTED_IDLE

    bench.leases.end_turn(key("s"), entry, RECENT_S)

    assert bench.leases.loss(key("s")) is None


def test_what_the_budget_did_not_allow_to_stay_is_lost_by_quota():
    bench = Bench(blocks=8)
    entry = bench.turn("s", blocks(1, 5), 0.0)
    bench.hold("s", LIVE, 0.0)

    bench.leases.note_loss(entry.held_by)

    assert bench.leases.loss(key("s")) is MissReason.EVICTED_QUOTA


def test_a_lost_draft_tells_its_session_but_not_over_a_loss_of_its_own():
    bench = Bench()
    draft = bench.path([7, 7])
    bench.leases.orphan(key("s"), draft, 0.0)
    bench.leases.note_loss(draft.held_by)
    assert bench.leases.loss(key("s")) is MissReason.EVICTED_IDLE

    entry = bench.turn("s", range(4), 0.0)
    bench.leases.note_loss(entry.held_by)
    bench.leases.note_loss(draft.held_by)

    assert bench.leases.loss(key("s")) is MissReason.EVICTED_PRESSURE


def test_only_so_many_losses_are_remembered(monkeypatch):
    monkeypatch.setattr(leases_module, "REMEMBERED_LOSSES", 2)
    bench = Bench()
    for name in ("s1", "s2", "s3"):
        entry = bench.turn(name, [ord(name[1])], 0.0)
        bench.leases.note_loss(entry.held_by)

    assert bench.leases.loss(key("s1")) is None
    assert bench.leases.loss(key("s3")) is not None


# ------------------------------------------------------------ who goes first


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
