"""The one door: what acquire, publish, release and forget do to blocks."""

from array import array
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import count, groupby

import pytest

from engine.api import (
    OPERATOR_SCOPE,
    CacheSnapshot,
    Forget,
    Hold,
    MissReason,
    OwnerId,
    RetentionClass,
    Scope,
    Subject,
    SubjectKind,
)
from engine.errors import Corrupt
from engine.figures import CacheChange
from engine.kv.blocks import BlockPool
from engine.kv.cache import Cache, lease_key
from engine.kv.holding import Holding
from engine.kv.prefix import NO_END, Scopes
from tests.kit.indexes import INDEXES, MakeIndex

ANN = OwnerId("ann")
OWN: Scopes = ((Scope("ann"), NO_END),)
SHARED: Scopes = ((OPERATOR_SCOPE, 6), *OWN)


class Bench:
    """A cache of 4-token blocks and the turns that go through it."""

    def __init__(self, make_index: MakeIndex, blocks: int = 16) -> None:
        ticks = count()
        pool = BlockPool(blocks)
        self.cache = Cache(pool, make_index(pool, 4), 4)
        self.cache.meter = lambda: float(next(ticks))
        self.running: list[Holding] = []

    def acquire(self, ids: Sequence[int], scopes: Scopes = OWN, now: float = 0.0) -> Holding | None:
        holding = self.cache.acquire(array("I", ids), scopes, known_end=len(ids) - 1, now=now)
        if holding is not None:
            self.running.append(holding)
        self.check()
        return holding

    def start(self, ids: Sequence[int], scopes: Scopes = OWN, now: float = 0.0) -> Holding:
        holding = self.acquire(ids, scopes, now)
        assert holding is not None
        self.cache.copied(holding)
        return holding

    def release(
        self, holding: Holding, ids: Sequence[int], *, session: str = "s", now: float = 0.0
    ) -> None:
        key = lease_key(ANN, None) if not session else (ANN, session)
        self.cache.release(holding, array("I", ids), len(ids), key=key, now=now)
        self.running.remove(holding)
        self.check()

    def turn(
        self, ids: Sequence[int], scopes: Scopes = OWN, *, session: str = "s", now: float = 0.0
    ) -> Holding:
        holding = self.start(ids, scopes, now)
        self.release(holding, ids, session=session, now=now)
        return holding

    def known(self, ids: Sequence[int], scopes: Scopes = OWN) -> int:
        return self.cache.matched_tokens(array("I", ids), scopes, len(ids))

    def lease(self, wish: Hold | Forget, kind: SubjectKind = SubjectKind.SESSION, name: str = "s"):
        subject = Subject(kind=kind, subject_id=name, owner_id=ANN)
        state = self.cache.lease(subject, wish, 0.0, self.running)
        self.check()
        return state

    def check(self) -> None:
        self.cache.check(self.running)


@pytest.fixture(params=INDEXES)
def new_bench(request) -> partial[Bench]:
    """A bench with either index."""
    return partial(Bench, request.param)


def test_a_partly_matching_block_is_copied_and_its_source_protected_until_then(new_bench):
    bench = new_bench()
    bench.turn(range(10))

    holding = bench.acquire([*range(10), 5, 5])
    assert holding is not None and holding.copy is not None
    assert (holding.cached, holding.copy.slots) == (10, 2)
    assert holding.copy.target == holding.table[2]
    assert bench.cache.counts().copying == 1
    bench.cache.copied(holding)

    assert bench.cache.counts().copying == 0


def test_a_running_sequence_publishes_whole_blocks_only(new_bench):
    bench = new_bench()
    holding = bench.start(range(10))

    bench.cache.publish(holding, array("I", range(10)), 7)
    assert bench.known(range(10)) == 4
    bench.cache.publish(holding, array("I", range(10)), 7)
    bench.release(holding, range(7))

    assert bench.known(range(10)) == 7


def test_a_release_without_anything_written_publishes_nothing(new_bench):
    bench = new_bench()
    holding = bench.start(range(10))

    bench.release(holding, [])

    assert bench.known(range(10)) == 0
    assert bench.cache.counts().free == 16


def test_two_that_computed_the_same_end_up_with_the_same_blocks(new_bench):
    bench = new_bench()
    first, second = bench.start(range(9)), bench.start(range(9))
    ids = array("I", range(9))

    bench.cache.publish(first, ids, 9)
    bench.cache.publish(second, ids, 9)
    bench.check()

    assert second.table[:2] == first.table[:2]
    assert second.table[2] != first.table[2]


def test_acquire_refuses_and_changes_nothing_where_there_is_no_room(new_bench):
    bench = new_bench(blocks=4)
    bench.start(range(12))
    before = bench.cache.counts()

    assert bench.acquire(range(20, 30)) is None

    assert bench.cache.counts() == before


def test_a_match_gives_up_its_partial_block_when_the_copy_would_not_fit(new_bench):
    bench = new_bench(blocks=3)
    bench.turn(range(10))

    holding = bench.acquire([*range(10), 7, 7])

    assert holding is not None
    assert (holding.cached, holding.copy) == (8, None)


def test_extend_continues_the_table_and_says_when_it_cannot(new_bench):
    bench = new_bench(blocks=3)
    holding = bench.start(range(4))

    assert bench.cache.extend(holding, 4) and len(holding.table) == 1
    assert bench.cache.extend(holding, 12) and len(holding.table) == 3
    assert not bench.cache.extend(holding, 13)

    assert len(holding.table) == 3


def test_eviction_takes_from_the_end_of_a_leaf_and_only_what_is_wanted(new_bench):
    bench = new_bench(blocks=4)
    bench.turn(range(16))

    bench.turn(range(50, 54))

    assert bench.known(range(16)) == 12
    assert bench.cache.journal.counted[CacheChange.EVICTED] == 1


def test_eviction_passes_over_a_leaf_whose_end_is_in_use(new_bench):
    bench = new_bench(blocks=6)
    bench.turn(range(8), now=1)
    bench.turn(range(20, 28), now=2)
    reader = bench.start([*range(8), 1], now=3)

    bench.start(range(40, 48), now=4)

    assert bench.known(range(8)) == 8
    assert bench.known(range(20, 28)) == 4
    assert reader.cached == 8


def test_a_busy_leaf_can_go_as_soon_as_its_reader_is_gone(new_bench):
    bench = new_bench(blocks=6)
    bench.turn(range(8), session="", now=1)
    bench.turn(range(20, 28), session="s", now=2)
    reader = bench.start([*range(8), 1], now=3)
    # An orphan goes before a recent turn, but its reader needs it.
    bench.turn(range(40, 48), session="t", now=4)
    assert (bench.known(range(8)), bench.known(range(20, 28))) == (8, 4)

    bench.release(reader, [*range(8), 1], session="", now=5)
    bench.turn(range(60, 64), session="t", now=6)

    assert bench.known(range(20, 28)) == 4
    assert bench.known([*range(8), 1]) == 8


def test_what_a_session_lost_is_remembered_for_its_next_receipt(new_bench):
    bench = new_bench(blocks=4)
    bench.turn(range(16), session="s")

    bench.turn(range(50, 54), session="t")

    assert bench.cache.loss((ANN, "s")) is MissReason.EVICTED_PRESSURE
    assert bench.cache.loss((ANN, "t")) is None


def test_a_forgotten_session_is_wiped_and_the_operators_zone_is_not(new_bench):
    bench = new_bench()
    bench.turn(range(12), SHARED)

    state = bench.lease(Forget())

    assert state.retention is RetentionClass.ORPHAN
    assert bench.known(range(12), SHARED) == 6
    # The operator's last two tokens lie in a block with forgotten ones, which are wiped alone.
    assert {wipe.behind for wipe in bench.cache.take_wipes()} == {0, 2}
    assert bench.cache.counts().cached == 2


def test_a_persona_that_is_forgotten_goes_with_its_zone(new_bench):
    bench = new_bench()
    bench.turn(range(6), ((OPERATOR_SCOPE, NO_END),), session="p")

    bench.lease(Forget(), SubjectKind.PERSONA, "p")

    assert bench.cache.counts().free == 16


def test_forgetting_spares_what_another_session_refers_to(new_bench):
    bench = new_bench()
    bench.turn(range(8), session="s")
    bench.turn([*range(8), 1, 1], session="t")

    bench.lease(Forget())

    assert bench.known([*range(8), 1, 1]) == 10


def test_forgetting_spares_what_another_sequence_reads(new_bench):
    bench = new_bench()
    bench.turn(range(8))
    holding = bench.start([*range(8), 1])
    bench.running.remove(holding)
    subject = Subject(kind=SubjectKind.SESSION, subject_id="s", owner_id=ANN)

    bench.cache.lease(subject, Forget(), 0.0)

    assert bench.known(range(8)) == 8


def test_forgetting_goes_as_far_as_another_sequence_reads(new_bench):
    bench = new_bench()
    bench.turn(range(12))
    holding = bench.start([*range(4), 1])
    bench.running.remove(holding)
    subject = Subject(kind=SubjectKind.SESSION, subject_id="s", owner_id=ANN)

    bench.cache.lease(subject, Forget(), 0.0)

    assert bench.known(range(12)) == 4
    bench.cache.check([holding])


def test_what_a_turn_did_not_match_of_another_path_is_not_used_by_it(new_bench):
    bench = new_bench(blocks=8)
    bench.turn(range(12), session="", now=1)
    bench.turn(range(40, 48), session="", now=2)
    bench.release(bench.start([*range(4), 1], now=3), [], session="")

    bench.start(range(60, 80), now=4)

    assert bench.known(range(12)) == 4
    assert bench.known(range(40, 48)) == 8


def test_what_a_forgotten_sequence_has_published_is_taken_back_while_it_runs(new_bench):
    bench = new_bench()
    holding = bench.start(range(9))
    bench.cache.publish(holding, array("I", range(9)), 9)

    bench.lease(Forget())
    assert bench.known(range(9)) == 0
    bench.cache.discard(holding)

    assert bench.cache.wipes_wait
    assert len(bench.cache.take_wipes()) == 3
    assert bench.cache.counts().free == 16


def test_forgetting_leaves_the_same_tail_in_whatever_order_its_paths_come(new_bench):
    bench = new_bench()
    bench.turn(range(5), session="t")
    bench.turn([*range(5), 9], session="s")
    long = [*range(5), 7, 7, 7]
    holding = bench.start(long)
    bench.cache.publish(holding, array("I", long), 8)

    bench.lease(Forget())

    # The deepest goes first: the common beginning keeps the tail that nobody uses.
    counts = bench.cache.counts()
    assert (counts.in_use, counts.cached) == (2, 1)
    assert bench.known(long) == 5


def test_an_owner_forgets_jobs_without_a_session_too(new_bench):
    bench = new_bench()
    bench.turn(range(9), session="")

    bench.lease(Forget(), SubjectKind.OWNER, "ann")

    assert bench.cache.counts().free == 16


def test_a_wish_answers_with_its_blocks_and_when_it_expires(new_bench):
    bench = new_bench()
    bench.turn(range(9))

    state = bench.lease(Hold(retention=RetentionClass.LIVE, ttl_s=30.0))
    assert (state.pinned_blocks, state.expires_s) == (3, 30.0)
    assert bench.cache.counts().pinned == 3
    bench.cache.expire(30.0)

    assert bench.cache.counts().pinned == 0
    assert bench.lease(Hold(retention=RetentionClass.IDLE)).expires_s is None


def test_events_are_numbered_and_only_new_ones_are_told(new_bench):
    bench = new_bench(blocks=4)
    bench.turn(range(16))
    bench.turn(range(50, 54))
    bench.lease(Hold(retention=RetentionClass.KEPT))
    bench.lease(Forget())

    events = bench.cache.journal.after(0)
    told = [(kind, sum(e.tokens for e in run)) for kind, run in groupby(events, lambda e: e.kind)]

    assert told == [
        ("published", 16),
        ("evicted", 4),
        ("published", 4),
        ("degraded", 12),
        ("leased", 12),
        ("forgotten", 16),
    ]
    assert [event.sequence_number for event in events] == list(range(1, len(events) + 1))
    assert bench.cache.journal.after(4) == events[4:]


def test_a_snapshot_tells_sizes_and_sessions(new_bench):
    bench = new_bench()
    bench.turn(range(12), SHARED, now=1.0)
    bench.turn(range(30, 34), session="")
    bench.start([*range(6), 9, 9], SHARED)

    snapshot: CacheSnapshot = bench.cache.snapshot(5.0)

    (session,) = snapshot.sessions
    assert (session.session_id, session.cached_tokens, session.idle_s) == ("s", 12, 4.0)
    tokens: Counter[str] = Counter()
    for node in snapshot.nodes:
        tokens[node.scope] += node.tokens
    assert tokens == {OPERATOR_SCOPE: 6, "ann": 10}
    assert {node.scope for node in snapshot.nodes if node.in_use} == {OPERATOR_SCOPE}
    parents = {node.node_id: node.parent_id for node in snapshot.nodes}
    assert sum(parent is None for parent in parents.values()) == 2
    assert RetentionClass.RUNNING in {node.retention for node in snapshot.nodes}


def test_its_own_time_is_measured_with_the_meter_it_is_given(new_bench):
    bench = new_bench()

    bench.turn(range(4))

    assert bench.cache.spent_s > 0


def test_check_notices_a_block_that_could_be_written_while_shared(new_bench):
    bench = new_bench()
    bench.turn(range(8))
    holding = bench.start([*range(8), 1, 1])
    other = bench.start([*range(8), 2, 2])

    bench.cache._pool.share([holding.table[2]])
    bench.cache._pool.free([other.table[2]])
    other.table[2] = holding.table[2]

    with pytest.raises(Corrupt, match="can be written"):
        bench.cache.check(bench.running)


def test_a_sequence_publishes_on_its_own_path_after_another_went_on_from_its_entry(new_bench):
    bench = new_bench()
    slow, fast = [*range(8), 1, 1, 1, 1, 1, 1, 1, 1], [*range(8), 2, 2, 2, 2]
    holding = bench.start(slow)
    bench.cache.publish(holding, array("I", slow), 8)
    other = bench.start(fast)
    bench.cache.publish(other, array("I", fast), 12)

    bench.release(holding, slow)
    bench.release(other, fast)

    assert bench.known(slow) == 16
    assert bench.known(fast) == 12
    assert bench.known([*fast, 1, 1, 1, 1]) == 12


def test_a_path_ends_where_its_sequence_did_though_another_went_on_from_there(new_bench):
    bench = new_bench()
    short, long = [*range(8)], [*range(8), 2, 2, 2, 2]
    holding = bench.start(short)
    bench.cache.publish(holding, array("I", short), 8)
    bench.turn(long, session="long")
    bench.release(holding, short, session="short")

    bench.lease(Forget(), name="long")

    assert bench.known(long) == 8
    bench.lease(Forget(), name="short")
    assert bench.cache.counts().free == 16
