"""What both indexes do: matching, publishing, splitting, trimming, holding, colliding keys."""

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import OPERATOR_SCOPE, CacheSource, OwnerId, RetentionClass, Scope, Zone
from engine.errors import Corrupt
from engine.kv.blocks import BlockPool
from engine.kv.prefix import NO_END, Entry, Publication, Scopes, scopes_of, shared_tokens
from engine.kv.radix import RadixIndex
from engine.kv.tree import children
from engine.step import BlockId
from tests.kit.indexes import COLLIDING, INDEXES, MakeIndex

ANN: Scopes = ((Scope("ann"), NO_END),)
BEN: Scopes = ((Scope("ben"), NO_END),)


class Bench:
    """An index over a pool of 4-token blocks, and a publisher that computes everything anew."""

    def __init__(self, make_index: MakeIndex = RadixIndex) -> None:
        self.pool = BlockPool(256)
        self.index = make_index(self.pool, 4)

    def publish(self, ids: Sequence[int], scopes: Scopes = ANN) -> Publication:
        table = self.table(ids)
        done = self.index.publish(array("I", ids), scopes, table, (self.index.root, len(ids)))
        self.pool.free(table)
        self.check()
        return done

    def table(self, ids: Sequence[int]) -> list[BlockId]:
        blocks = self.pool.allocate(-(-len(ids) // 4))
        assert blocks is not None
        return blocks

    def matched(self, ids: Sequence[int], scopes: Scopes = ANN) -> int:
        return self.index.match(array("I", ids), scopes, len(ids)).tokens

    def shape(self) -> set[tuple[int, int]]:
        return {(entry.start, entry.end) for entry in self.index.entries()}

    def leaf(self, ids: Sequence[int], scopes: Scopes = ANN) -> Entry:
        return self.index.match(array("I", ids), scopes, len(ids)).entry

    def check(self) -> None:
        self.pool.check({}, self.index.check())


class Lease:
    owner_id = OwnerId("ann")

    def __init__(self, retention: RetentionClass = RetentionClass.KEPT) -> None:
        self.retention = retention
        self.entries: dict[Entry, None] = {}

    @property
    def pins(self) -> bool:
        return self.retention >= RetentionClass.KEPT


@pytest.fixture(params=INDEXES)
def bench(request) -> Bench:
    return Bench(request.param)


def test_nothing_is_known_at_first(bench):
    match = bench.index.match(array("I", [1, 2]), ANN, 2)

    assert (match.tokens, match.blocks, match.partial) == (0, [], None)


def test_a_match_counts_tokens_and_names_whole_blocks_and_the_partial_one(bench):
    table = bench.table(range(10))
    bench.index.publish(array("I", range(10)), ANN, table, (bench.index.root, 10))

    match = bench.index.match(array("I", [*range(6), 99]), ANN, 7)

    assert match.tokens == 6
    assert match.blocks == table[:1]
    assert match.partial == table[1]
    assert not match.ends_entry


def test_a_match_stops_where_it_is_told(bench):
    bench.publish(range(10))

    assert bench.index.match(array("I", range(10)), ANN, 9).tokens == 9


def test_a_scope_matches_only_its_own(bench):
    bench.publish(range(10), ANN)

    assert bench.matched(range(10), BEN) == 0


def test_a_zone_ends_a_match_even_where_the_text_goes_on(bench):
    bench.publish(range(10), ((OPERATOR_SCOPE, NO_END),))

    scopes: Scopes = ((OPERATOR_SCOPE, 5), *ANN)

    assert bench.matched(range(10), scopes) == 5


def test_a_zone_that_ends_inside_a_block_is_matched_and_gone_on_from(bench):
    scopes: Scopes = ((OPERATOR_SCOPE, 6), *ANN)
    bench.publish(range(14), scopes)

    assert bench.shape() == {(0, 6), (6, 14)}
    assert bench.matched(range(14), scopes) == 14
    assert bench.matched(range(14), ((OPERATOR_SCOPE, 6), *BEN)) == 6
    assert bench.matched(range(14), ((OPERATOR_SCOPE, 5), *ANN)) == 5


def test_neighbouring_zones_of_one_scope_are_one():
    zones = [
        Zone(scope=OPERATOR_SCOPE, source=CacheSource.TEMPLATE, end=3),
        Zone(scope=OPERATOR_SCOPE, source=CacheSource.PERSONA, end=7),
        Zone(scope=Scope("ann"), source=CacheSource.SESSION, end=9),
    ]

    assert scopes_of(zones) == ((OPERATOR_SCOPE, 7), (Scope("ann"), NO_END))


def test_paths_part_where_their_ids_do(bench):
    bench.publish([0, 1, 2, 3, 4, 5])
    bench.publish([0, 1, 2, 3, 4, 9, 9])

    assert bench.shape() == {(0, 5), (5, 6), (5, 7)}
    assert bench.matched([0, 1, 2, 3, 4, 9, 9]) == 7
    assert bench.matched([0, 1, 2, 3, 4, 5]) == 6


def test_a_path_goes_on_in_its_last_entry_while_nobody_ends_there(bench):
    bench.publish([0, 1, 2])
    bench.publish([0, 1, 2, 3, 4])
    assert bench.shape() == {(0, 5)}

    bench.index.hold(bench.leaf([0, 1, 2, 3, 4]), Lease())
    bench.publish([0, 1, 2, 3, 4, 5])

    assert bench.shape() == {(0, 5), (5, 6)}
    bench.check()


def test_what_goes_on_is_as_old_as_what_it_continues(bench):
    bench.publish(range(6))
    for entry in bench.leaf(range(6)).path():
        entry.used, entry.used_s = 7, 70.0
    bench.index.hold(bench.leaf(range(6)), Lease())

    bench.publish(range(12))

    ages = {(entry.used, entry.used_s) for entry in bench.leaf(range(12)).path()}
    assert ages == {(7, 70.0)}


def test_blocks_of_equal_content_are_adopted_from_the_index(bench):
    first, second = bench.table(range(9)), bench.table(range(9))
    bench.index.publish(array("I", range(9)), ANN, first, (bench.index.root, 9))

    done = bench.index.publish(array("I", range(9)), ANN, second, (bench.index.root, 9))

    assert done.adopted == [(0, first[0]), (1, first[1])]
    assert done.new_tokens == 0


def test_an_entry_that_ends_in_mid_block_keeps_no_tail_of_its_own(bench):
    bench.publish([0, 1, 2, 3, 4, 5])
    bench.index.hold(bench.leaf([0, 1, 2, 3, 4, 5]), Lease())

    bench.publish([0, 1, 2, 3, 4, 5, 6, 7])

    upper = bench.leaf([0, 1, 2, 3, 4, 5])
    assert {upper.blocks[-1]} == {child.blocks[0] for child in children(upper)}
    assert bench.pool.free_blocks == 256 - 2


def test_a_tail_shared_by_several_short_entries_is_replaced_in_all_of_them(bench):
    for end in (5, 6, 7):
        bench.publish(range(end))
        bench.index.hold(bench.leaf(range(end)), Lease())
        bench.check()

    bench.publish(range(12))

    assert bench.shape() == {(0, 5), (5, 6), (6, 7), (7, 12)}
    assert bench.pool.free_blocks == 256 - 3


def test_trimming_a_leaf_lets_its_last_block_go(bench):
    bench.publish(range(14))

    for left, tokens in ((12, 2), (8, 4), (4, 4), (0, 4)):
        trimming = bench.index.trim(bench.leaf(range(14)), 1)

        assert trimming.tokens == tokens
        assert bench.matched(range(14)) == left
        bench.check()

    assert trimming.gone and trimming.parent is bench.index.root
    assert bench.pool.free_blocks == 256


def test_a_removed_child_leaves_its_parent_the_tail_of_another(bench):
    bench.publish([0, 1, 2, 3, 4, 5])
    bench.publish([0, 1, 2, 3, 4, 6])
    bench.publish([0, 1, 2, 3, 4, 7])

    for last in (5, 6, 7):
        bench.index.trim(bench.leaf([0, 1, 2, 3, 4, last]), 1)
        bench.check()

    assert bench.shape() == {(0, 5)}
    assert bench.pool.free_blocks == 256 - 2


def test_a_split_leaves_an_entry_in_its_place_among_its_siblings(bench):
    bench.publish([0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    bench.publish([0, 1, 2, 3, 4, 9])
    bench.publish([0, 1, 2, 3, 4, 5, 6, 9])

    upper = bench.leaf([0, 1, 2, 3, 4])

    assert [child.ids[0] for child in children(upper)] == [5, 9]


def test_holders_move_up_when_their_leaf_goes_and_out_at_the_root(bench):
    lease = Lease()
    bench.publish([0, 1, 2, 3])
    bench.publish([0, 1, 2, 3, 4, 4])
    bench.publish([0, 1, 2, 3, 5, 5])
    leaf = bench.leaf([0, 1, 2, 3, 4, 4])
    bench.index.hold(leaf, lease)
    bench.index.trim(leaf, 1)
    parent = bench.leaf([0, 1, 2, 3])
    assert [*lease.entries] == [parent]

    bench.index.trim(bench.leaf([0, 1, 2, 3, 5, 5]), 1)
    bench.index.trim(parent, 1)

    assert not lease.entries
    bench.check()


def test_a_pinning_holder_pins_its_whole_path_once(bench):
    lease = Lease()
    bench.publish(range(8))
    bench.publish([*range(4), 9, 9, 9, 9])
    leaf = bench.leaf(range(8))

    bench.index.hold(leaf, lease)
    bench.index.hold(leaf, lease)
    assert (bench.pool.counts().pinned, bench.pool.counts().cached) == (2, 1)
    bench.index.unhold(leaf, lease)

    assert (bench.pool.counts().pinned, bench.pool.counts().cached) == (0, 3)


def test_a_path_stays_pinned_until_its_last_pinning_holder_goes(bench):
    kept, live, idle = Lease(), Lease(), Lease(RetentionClass.IDLE)
    bench.publish(range(8))
    leaf = bench.leaf(range(8))
    for holder in (kept, live, idle):
        bench.index.hold(leaf, holder)

    for holder in (idle, kept):
        bench.index.unhold(leaf, holder)
        assert bench.pool.counts().pinned == 2
    bench.index.unhold(leaf, live)

    assert bench.pool.counts().pinned == 0


def test_a_sequence_that_publishes_in_mid_block_goes_on_in_the_same_block(bench):
    ids, table = array("I", range(8)), bench.table(range(8))
    first = bench.index.publish(ids, ANN, table, (bench.index.root, 6))

    bench.index.publish(ids, ANN, table, (first.entry, 8))

    assert bench.shape() == {(0, 8)}
    assert bench.index.match(ids, ANN, 8).blocks == table


def test_a_split_keeps_pins_on_both_parts(bench):
    lease = Lease()
    bench.publish(range(8))
    bench.index.hold(bench.leaf(range(8)), lease)

    bench.publish([*range(6), 9])

    assert bench.pool.counts().pinned == 2
    bench.check()


@pytest.mark.parametrize("end", range(1, 14))
def test_what_lies_beyond_the_last_matched_block_is_cut_off(bench, end):
    bench.publish(range(14))

    used = bench.index.cut_behind(bench.index.match(array("I", range(14)), ANN, end))

    assert used.end == min(14, -(-end // 4) * 4)
    assert bench.matched(range(14)) == 14
    bench.check()


def test_nothing_is_cut_off_where_nothing_matched(bench):
    bench.publish(range(14))

    match = bench.index.match(array("I", [9]), ANN, 1)

    assert bench.index.cut_behind(match) is bench.index.root


@pytest.mark.parametrize("damage", ["start", "lost", "blocks", "tail", "pins"])
def test_check_notices_a_damaged_tree(bench, damage):
    bench.publish([0, 1, 2, 3, 4, 5])
    bench.publish([0, 1, 2, 3, 4, 6])
    leaf = bench.leaf([0, 1, 2, 3, 4, 6])
    assert leaf.parent is not None

    match damage:
        case "start":
            leaf.start += 1
        case "lost":
            leaf.ids[0] = 77
        case "blocks":
            leaf.blocks.append(BlockId(200))
        case "tail":
            leaf.parent.blocks[-1] = BlockId(200)
        case "pins":
            leaf.pins[OwnerId("ann")] = 1
        case _:
            raise AssertionError(damage)

    with pytest.raises(Corrupt):
        bench.index.check()


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 3), max_size=40))
def test_shared_tokens_are_the_common_prefix(left, right):
    expected = 0
    while expected < min(len(left), len(right)) and left[expected] == right[expected]:
        expected += 1

    assert shared_tokens(array("I", left), array("I", right)) == expected


texts = st.lists(st.integers(0, 2), min_size=1, max_size=14)


@pytest.mark.parametrize("make_index", [*INDEXES, *COLLIDING.values()])
@settings(deadline=None)
@given(st.lists(st.tuples(texts, st.sampled_from([ANN, BEN])), max_size=12), texts)
def test_a_match_is_the_longest_prefix_of_what_was_published(make_index, published, asked):
    bench = Bench(make_index)

    for ids, scopes in published:
        bench.publish(ids, scopes)

    known = [ids for ids, scopes in published if scopes == ANN]
    expected = max((shared_tokens(array("I", ids), array("I", asked)) for ids in known), default=0)
    assert bench.matched(asked) == expected
