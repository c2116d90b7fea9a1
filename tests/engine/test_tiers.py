"""Lower tiers without a byte: what is ordered, what is found, what goes, and that the sums hold."""

from array import array
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import OPERATOR_SCOPE, OwnerId, Scope, Subject, SubjectKind
from engine.errors import Corrupt
from engine.figures import CacheChange
from engine.kv.blocks import BlockPool
from engine.kv.prefix import NO_END, Ids, Scopes
from engine.kv.segments import OPERATOR_KEY, Path
from engine.kv.tiers import Tiers, TierSizes
from engine.step import (
    Arrival,
    BlockId,
    Drop,
    HandOver,
    Park,
    Restore,
    SegmentHead,
    Spill,
    Transfer,
)
from engine.terms import Tier

BLOCK = 4
ANN, BEN = (OwnerId("ann"), "s1"), (OwnerId("ben"), "s2")
OTHER = (OwnerId("ann"), "s2")


def scopes(shared: int = 0) -> Scopes:
    own = (Scope("user:ann"), NO_END)
    return ((OPERATOR_SCOPE, shared), own) if shared else (own,)


class Bench:
    """Tiers over a pool, and the runner's part played by hand: transfers arrive when told."""

    def __init__(self, *, host: int = 0, disk: int = 0, segment_tokens: int = 16) -> None:
        self.pool = BlockPool(512)
        sizes = TierSizes(
            token_bytes=10,
            host_bytes=host * 10,
            disk_bytes=disk * 10,
            segment_tokens=segment_tokens,
        )
        self.tiers = Tiers(sizes, self.pool, BLOCK, "boot")
        self.pending: list[Park | Spill | Restore] = []
        self.handed: dict[str, SegmentHead] = {}
        self.held: dict[tuple[Tier, str], SegmentHead] = {}

    def path(self, ids: Sequence[int], shared: int = 0) -> Path:
        table = self.pool.allocate(-(-len(ids) // BLOCK))
        assert table is not None
        return Path(ids=array("I", ids), scopes=scopes(shared), table=table)

    def park(
        self, ids: Sequence[int], *, key: tuple[OwnerId, str] = ANN, shared: int = 0, **how: bool
    ) -> bool:
        path = self.path(ids, shared)
        parked = self.tiers.park(path, (OPERATOR_KEY, key), durable=how.get("durable", True))
        self.pool.free(path.table)
        self.collect()
        return parked

    def collect(self) -> None:
        for order in self.tiers.take_orders():
            if isinstance(order, Drop):
                del self.held[order.tier, order.name]
            elif isinstance(order, HandOver):
                name = order.head.name
                self.handed[name] = order.head
                self.held |= {place: order.head for place in self.held if place[1] == name}
            else:
                self.pending.append(order)

    def arrive(self, at: int = 0, pieces: int | None = None) -> Transfer:
        """One pending transfer is over; `pieces` None: it went well."""
        order = self.pending.pop(at)
        whole = len(order.pieces) if isinstance(order, Restore) else 1
        pieces = whole if pieces is None else min(pieces, whole)
        if isinstance(order, Restore):
            for piece in order.pieces:
                assert (piece.tier, piece.name) in self.held, "read after it was dropped"
        elif pieces:
            tier = order.tier if isinstance(order, Park) else Tier.DISK
            assert isinstance(order, Park) or (Tier.HOST, order.head.name) in self.held
            self.held[tier, order.head.name] = self.handed.get(order.head.name, order.head)
        self.tiers.arrived(Arrival(transfer_id=order.transfer_id, pieces=pieces, seconds=0.1))
        self.collect()
        return order

    def arrive_all(self) -> None:
        while self.pending:
            self.arrive()

    def found(self, ids: Sequence[int], shared: int = 0) -> int:
        return self.tiers.find(array("I", ids), scopes(shared), len(ids)).end

    def check(self) -> None:
        self.tiers.check()
        counted = {count.tier: count.segments for count in self.tiers.counts()}
        for tier, segments in counted.items():
            assert segments <= sum(held is tier for held, _ in self.held)


def test_a_parked_path_is_found_when_it_has_arrived_and_not_before():
    bench = Bench(disk=100)

    assert bench.park(range(40))
    assert bench.found(range(40)) == 0
    bench.arrive_all()

    assert bench.found(range(40)) == 40
    assert bench.found([*range(30), 99, 98]) == 30
    assert bench.found([99, *range(40)]) == 0
    bench.check()


def test_the_blocks_of_a_park_are_locked_until_it_has_arrived():
    bench = Bench(disk=100)

    bench.park(range(32))
    assert bench.pool.counts().copying == 8
    bench.arrive_all()

    assert bench.pool.counts().free == 512


def test_a_grown_path_parks_its_new_part_and_drops_its_shorter_tail():
    bench = Bench(disk=100)
    bench.park(range(20))
    bench.arrive_all()

    bench.park(range(30))
    orders = [order for order in bench.pending if isinstance(order, Park)]
    bench.arrive_all()

    assert [(o.head.start, len(o.head.token_ids)) for o in orders] == [(16, 14)]
    assert len(bench.held) == 2
    assert bench.found(range(30)) == 30
    bench.check()


def test_what_is_parked_already_is_not_written_again():
    bench = Bench(disk=100)
    bench.park(range(40))
    bench.arrive_all()

    assert bench.park(range(40))
    assert bench.park(range(33))

    assert bench.pending == []


def test_a_segment_never_crosses_the_operators_border_and_is_found_by_those_who_may():
    bench = Bench(disk=200)

    bench.park(range(30), shared=10)
    orders = [order for order in bench.pending if isinstance(order, Park)]
    bench.arrive_all()

    spans = [(o.head.scope, o.head.start, len(o.head.token_ids)) for o in orders]
    assert spans == [(OPERATOR_SCOPE, 0, 10), ("user:ann", 10, 16), ("user:ann", 26, 4)]
    other = ((OPERATOR_SCOPE, 10), (Scope("user:ben"), NO_END))
    assert bench.tiers.find(array("I", range(30)), other, 30).end == 10
    assert bench.found(range(30), shared=0) == 0


def test_the_longest_unused_goes_first_and_from_the_end():
    bench = Bench(disk=64)
    for start in (0, 100):
        bench.park(range(start, start + 32))
        bench.arrive_all()
    bench.park(range(32))

    bench.park(range(200, 216))
    bench.arrive_all()

    assert bench.found(range(32)) == 32
    assert bench.found(range(100, 132)) == 16
    assert bench.found(range(200, 216)) == 16
    bench.check()


@pytest.mark.parametrize("arrived", [True, False])
def test_what_nobody_is_expected_to_want_goes_before_what_is_older(arrived):
    bench = Bench(disk=48)
    for start, key in ((0, ANN), (100, BEN), (200, ANN)):
        bench.park(range(start, start + 16), key=key)
        if arrived:
            bench.arrive_all()
    bench.tiers.let_wait(BEN)
    bench.arrive_all()
    bench.check()

    bench.park(range(300, 316))
    assert [bench.found(range(start, start + 16)) for start in (0, 100, 200)] == [16, 0, 16]
    bench.arrive_all()
    bench.tiers.let_wait(ANN)
    bench.park(range(16))
    bench.park(range(400, 416))

    assert [bench.found(range(start, start + 16)) for start in (0, 200, 300)] == [16, 0, 16]
    bench.check()


def test_what_does_not_fit_is_not_parked():
    bench = Bench(disk=10)

    assert not bench.park(range(16))
    assert bench.pool.counts().copying == 0
    assert not Bench().park(range(16))


def test_a_restore_reads_every_piece_into_its_slots():
    bench = Bench(disk=100)
    bench.park(range(40))
    bench.arrive_all()
    table = bench.pool.allocate(10)
    assert table is not None

    found = bench.tiers.find(array("I", range(38)), scopes(), 38)
    bench.tiers.restore(found, 20, table)

    (order,) = bench.tiers.take_orders()
    assert isinstance(order, Restore)
    assert [(p.skip, p.slots.tokens, p.slots.offset) for p in order.pieces] == [
        (4, 12, 0),
        (0, 6, 0),
    ]
    assert order.pieces[0].slots.blocks == tuple(table[5:8])


def test_what_is_being_read_stays_until_it_has_arrived():
    bench = Bench(disk=32)
    bench.park(range(32))
    bench.arrive_all()
    bench.tiers.restore(
        bench.tiers.find(array("I", range(32)), scopes(), 32), 0, list(map(BlockId, range(8)))
    )
    bench.collect()

    assert not bench.park(range(50, 66))
    bench.arrive()
    assert bench.park(range(50, 66))

    bench.arrive_all()
    bench.check()


def test_a_damaged_segment_goes_with_all_that_continues_it():
    bench = Bench(disk=100)
    bench.park(range(60))
    bench.arrive_all()
    bench.tiers.restore(
        bench.tiers.find(array("I", range(60)), scopes(), 60), 0, list(map(BlockId, range(15)))
    )
    bench.collect()

    bench.arrive(pieces=1)

    assert bench.found(range(60)) == 16
    assert len(bench.held) == 1
    assert bench.tiers.journal.counted[CacheChange.DAMAGED] == 1
    bench.check()


def test_a_park_that_failed_takes_what_continues_it_along():
    bench = Bench(disk=100)
    bench.park(range(48))

    bench.arrive(pieces=0)
    bench.arrive_all()

    assert bench.found(range(48)) == 0
    assert bench.held == {}
    assert bench.pool.counts().free == 512
    bench.check()


def session(key: tuple[OwnerId, str]) -> Subject:
    return Subject(kind=SubjectKind.SESSION, subject_id=key[1], owner_id=key[0])


def test_forgetting_a_session_drops_what_it_had_written_also_what_is_on_its_way():
    bench = Bench(disk=200)
    bench.park(range(32), shared=8)
    bench.arrive_all()
    bench.park([*range(32), *range(90, 120)], shared=8)

    bench.tiers.forget(session(ANN))
    bench.arrive_all()

    assert bench.found(range(32), shared=8) == 8
    assert len(bench.held) == 1
    bench.check()


COPY = [*range(32), *range(90, 120)]


@pytest.mark.parametrize("sizes", [{"host": 200}, {"disk": 200}, {"host": 200, "disk": 200}])
@pytest.mark.parametrize("is_whole", [False, True], ids=["on its way", "whole"])
def test_forgetting_a_session_leaves_what_its_copy_continues_until_that_goes_too(sizes, is_whole):
    bench = Bench(**sizes)
    bench.park([*range(32), *range(60, 80)])
    bench.arrive_all()
    bench.park(COPY, key=OTHER)
    if is_whole:
        bench.arrive_all()
    bench.tiers.spill()
    bench.collect()

    bench.tiers.forget(session(ANN))
    bench.collect()
    bench.arrive_all()

    assert bench.found(COPY) == len(COPY)
    assert bench.found([*range(32), *range(60, 80)]) == 32
    assert {head.session_id for head in bench.held.values()} == {"s2"}
    bench.check()
    bench.tiers.forget(session(OTHER))
    bench.collect()
    assert bench.held == {}
    bench.check()


def test_what_is_handed_over_goes_with_its_new_session_in_the_next_life():
    bench = Bench(disk=200)
    bench.park(range(32))
    bench.park(COPY, key=OTHER)
    bench.arrive_all()
    bench.tiers.forget(session(ANN))
    bench.collect()
    later = Bench(disk=200)
    later.held = dict(bench.held)
    later.tiers.load(bench.held.values())

    assert later.found(COPY) == len(COPY)
    later.tiers.forget(session(OTHER))
    later.collect()

    assert later.held == {}


def test_a_persona_that_is_forgotten_leaves_its_zone_to_who_goes_on_from_it():
    persona = (OwnerId("operator"), "persona")
    bench = Bench(disk=200)
    path = bench.path(range(40), shared=16)
    bench.tiers.park(path, (persona, ANN), durable=True)
    bench.collect()
    bench.arrive_all()

    bench.tiers.forget(msgspec.structs.replace(session(persona), kind=SubjectKind.PERSONA))
    bench.collect()

    assert bench.found(range(40), shared=16) == 40
    bench.tiers.forget(session(ANN))
    bench.collect()
    assert bench.held == {}


def test_what_may_lie_in_memory_only_keeps_nothing_on_disk():
    bench = Bench(host=200, disk=200)
    bench.park(range(32))
    bench.arrive_all()
    bench.park(COPY, key=OTHER, durable=False)
    bench.tiers.spill()
    bench.collect()
    bench.arrive_all()

    bench.tiers.forget(session(ANN))
    bench.collect()

    assert bench.held == {}
    bench.check()


def test_forgetting_an_owner_drops_everything_of_theirs():
    bench = Bench(disk=200)
    bench.park(range(16))
    bench.park(range(50, 66), key=OTHER)
    bench.arrive_all()

    bench.tiers.forget(Subject(kind=SubjectKind.OWNER, subject_id="ann", owner_id=OwnerId("ann")))
    bench.collect()

    assert bench.held == {}
    bench.check()


def test_host_memory_spills_to_disk_before_it_lets_go():
    bench = Bench(host=32, disk=100)
    bench.park(range(32))
    bench.arrive_all()

    assert not bench.park(range(50, 66))
    assert isinstance(bench.pending[0], Spill)
    bench.arrive_all()
    assert bench.park(range(50, 66))
    bench.arrive_all()

    assert bench.found(range(32)) == 32
    assert bench.found(range(50, 66)) == 16
    bench.check()


def test_a_memory_only_path_never_reaches_the_disk():
    bench = Bench(host=32, disk=100)

    assert bench.park(range(32), durable=False)
    bench.arrive_all()
    bench.tiers.spill()
    bench.collect()
    assert bench.pending == []
    assert bench.park(range(50, 82))
    bench.arrive_all()

    assert {tier for tier, _ in bench.held} == {Tier.HOST}
    assert not Bench(disk=100).park(range(32), durable=False)


def test_a_spill_of_everything_puts_parents_first():
    bench = Bench(host=100, disk=100)
    bench.park(range(48))
    bench.arrive_all()

    bench.tiers.spill()
    bench.collect()

    spills = [order for order in bench.pending if isinstance(order, Spill)]
    assert [order.head.start for order in spills] == [0, 16, 32]
    bench.tiers.spill()
    bench.collect()
    assert len(bench.pending) == 3
    bench.arrive_all()
    assert sum(tier is Tier.DISK for tier, _ in bench.held) == 3
    bench.check()


def test_the_next_life_finds_what_the_disk_held_in_any_order():
    bench = Bench(disk=200)
    bench.park(range(48), shared=8)
    bench.park(range(70, 90))
    bench.arrive_all()
    heads = list(bench.held.values())

    later = Bench(disk=200)
    later.held = dict(bench.held)
    later.tiers.load(reversed(heads))
    later.collect()

    assert later.found(range(48), shared=8) == 48
    assert later.found(range(70, 90)) == 20
    later.check()


def test_what_continues_nothing_and_what_is_too_much_is_dropped_at_load():
    bench = Bench(disk=200)
    bench.park(range(48))
    bench.arrive_all()
    heads = list(bench.held.values())
    lost = next(head for head in heads if head.start == 16)

    later = Bench(disk=20)
    later.held = {(Tier.DISK, head.name): head for head in heads if head is not lost}
    later.tiers.load(head for head in heads if head is not lost)
    later.collect()

    assert later.found(range(48)) == 16
    assert len(later.held) == 1
    without = Bench()
    without.held = dict(bench.held)
    without.tiers.load(heads)
    without.collect()
    assert without.held == {}


def test_the_longest_path_of_a_subject_can_be_asked_for():
    bench = Bench(disk=200)
    bench.park(range(40), shared=8)
    bench.park([*range(20), 77, 78, 79, 80, 81, 82], shared=8, key=OTHER)
    bench.arrive_all()

    ids, path_scopes = bench.tiers.longest(ANN) or (array("I"), ())

    assert list(ids) == list(range(40))
    assert path_scopes == ((OPERATOR_SCOPE, 8), (Scope("user:ann"), 40))
    assert bench.tiers.longest((OwnerId("ben"), "s1")) is None


def test_books_that_were_tampered_with_are_found():
    bench = Bench(disk=100)
    bench.park(range(16))
    bench.tiers._held[Tier.DISK] += 1

    with pytest.raises(Corrupt):
        bench.tiers.check()


ALPHABET = st.lists(st.integers(1, 3), min_size=1, max_size=40)


@given(st.data())
@settings(deadline=None)
def test_08_whatever_happens_what_is_found_is_what_was_parked_and_the_books_are_right(data):
    """Random parks, restores, losses and wishes, arriving in any order (laws 1, 5 and 8)."""
    bench = Bench(host=data.draw(st.sampled_from([0, 40])), disk=80, segment_tokens=16)
    parked: list[Ids] = []
    for _ in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["park", "arrive", "fail", "find", "forget", "spill"]))
        key = data.draw(st.sampled_from([ANN, OTHER]))
        if action == "park":
            ids = data.draw(ALPHABET)
            bench.park(ids, key=key, durable=data.draw(st.booleans()))
            parked.append(array("I", ids))
        elif action in ("arrive", "fail") and bench.pending:
            at = data.draw(st.integers(0, len(bench.pending) - 1))
            bench.arrive(at, None if action == "arrive" else data.draw(st.integers(0, 1)))
        elif action == "find":
            ids = array("I", data.draw(ALPHABET))
            found = bench.tiers.find(ids, scopes(), len(ids))
            assert any(
                list(ids[: found.end]) == list(known[: found.end]) for known in [*parked, ids[:0]]
            )
            if found.end:
                bench.tiers.restore(found, 0, list(map(BlockId, range(len(ids)))))
                bench.collect()
        elif action == "spill":
            bench.tiers.spill()
            bench.collect()
        elif action == "forget":
            owner_id, session_id = key
            bench.tiers.forget(
                Subject(kind=SubjectKind.SESSION, subject_id=session_id, owner_id=owner_id)
            )
            bench.collect()
        bench.check()
    bench.arrive_all()
    bench.check()
    assert bench.tiers.moving == 0
    assert bench.pool.counts().free == 512
    held = {(t, s.head.name) for s in bench.tiers._tree for t in s.tiers}
    assert held == set(bench.held), "a byte was lost sight of"
