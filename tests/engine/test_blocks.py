"""The pool's books by themselves: runs, states, references, wipes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import OwnerId
from engine.errors import Corrupt
from engine.figures import BlockCounts
from engine.kv.blocks import BlockPool, BlockState, FreeRuns
from engine.step import BlockId, Wipe

ANN, BEN = OwnerId("ann"), OwnerId("ben")


def taken(pool: BlockPool, count: int, after: BlockId | None = None) -> list[BlockId]:
    blocks = pool.allocate(count, after)
    assert blocks is not None
    return blocks


def test_a_first_run_is_contiguous():
    blocks = taken(BlockPool(16), 5)

    assert blocks == list(range(blocks[0], blocks[0] + 5))


def test_growing_continues_the_run_while_its_neighbour_is_free():
    pool = BlockPool(32)
    first, second = taken(pool, 2), taken(pool, 2)

    grown = taken(pool, 3, first[-1])

    assert grown == list(range(first[-1] + 1, first[-1] + 4))
    assert not set(grown) & set(second)


def test_a_run_is_pieced_together_when_no_hole_is_long_enough():
    pool = BlockPool(8)
    blocks = taken(pool, 8)
    pool.free([blocks[1], blocks[4], blocks[6]])

    assert sorted(taken(pool, 3)) == sorted([blocks[1], blocks[4], blocks[6]])


def test_an_allocation_beyond_what_is_free_changes_nothing():
    pool = BlockPool(4)
    taken(pool, 3)

    assert pool.allocate(2) is None
    assert pool.free_blocks == 1


def test_no_blocks_at_all_are_an_allocation_too():
    assert BlockPool(2).allocate(0) == []


def test_a_pool_of_no_blocks_has_none_to_give():
    assert BlockPool(0).allocate(1) is None


def test_idle_blocks_are_kept_and_needed_by_nobody():
    pool = BlockPool(4)
    blocks = taken(pool, 2)
    for block in blocks:
        pool.keep(block)
    pool.free(blocks[:1])

    assert pool.idle_blocks == 1
    assert [pool.busy(block) for block in blocks] == [False, True]


def test_an_order_renames_the_blocks_and_nothing_else():
    plain, renamed = BlockPool(6), BlockPool(6, order=[3, 5, 1, 0, 2, 4])

    names = [3, 5, 1, 0, 2, 4]
    assert [names[block] for block in taken(plain, 4)] == taken(renamed, 4)


def test_a_block_is_in_the_first_state_that_applies():
    pool = BlockPool(1)
    (block,) = taken(pool, 1)
    states = [pool.state(block)]

    pool.keep(block)
    pool.pin(block, ANN)
    pool.begin_copy(block)
    states.append(pool.state(block))
    pool.free([block])
    states.append(pool.state(block))
    pool.end_copy(block)
    states.append(pool.state(block))
    pool.unpin(block, ANN)
    states.append(pool.state(block))
    pool.unkeep(block)
    states.append(pool.state(block))

    assert states == [
        BlockState.IN_USE,
        BlockState.IN_USE,
        BlockState.COPYING,
        BlockState.PINNED,
        BlockState.CACHED,
        BlockState.FREE,
    ]


def test_a_block_is_pinned_once_for_all_and_once_for_each_owner():
    pool = BlockPool(4)
    blocks = taken(pool, 2)
    for owner_id in (ANN, ANN, BEN):
        pool.pin(blocks[0], owner_id)
    pool.pin(blocks[1], BEN)
    assert (pool.pinned_blocks, pool.pinned_by(ANN), pool.pinned_by(BEN)) == (2, 1, 2)

    pool.unpin(blocks[0], ANN)
    assert pool.pinned_by(ANN) == 1
    pool.unpin(blocks[0], ANN)
    pool.unpin(blocks[0], BEN)

    assert (pool.pinned_blocks, pool.pinned_by(ANN), pool.pinned_by(BEN)) == (1, 0, 1)


def test_a_shared_block_is_free_only_when_its_last_user_gave_it_back():
    pool = BlockPool(2)
    blocks = taken(pool, 1)
    pool.share(blocks)

    pool.free(blocks)
    assert pool.users(blocks[0]) == 1
    pool.free(blocks)

    assert pool.counts() == BlockCounts(in_use=0, copying=0, pinned=0, cached=0, free=2)


def test_a_block_given_back_twice_is_corrupt():
    pool = BlockPool(2)
    blocks = taken(pool, 1)
    pool.free(blocks)

    with pytest.raises(Corrupt, match="more often than taken"):
        pool.free(blocks)


def test_a_block_that_falls_free_is_wiped():
    pool = BlockPool(4)
    kept, plain = taken(pool, 2)
    pool.keep(kept)
    pool.free([kept, plain])
    assert pool.take_wipes() == (Wipe(block=plain),)

    pool.unkeep(kept)

    assert pool.wipes_wait
    assert pool.take_wipes() == (Wipe(block=kept),)
    assert pool.take_wipes() == ()


def test_the_end_of_a_kept_block_is_wiped_once_nobody_needs_it():
    pool = BlockPool(4)
    (block,) = taken(pool, 1)
    pool.keep(block)
    pool.begin_copy(block)
    pool.wipe_behind(block, 3)
    pool.free([block])
    pool.wipe_behind(block, 2)
    pool.wipe_behind(block, 5)
    assert pool.take_wipes() == ()

    pool.end_copy(block)

    assert pool.take_wipes() == (Wipe(block=block, behind=2),)


def test_a_block_that_falls_free_is_wiped_from_its_beginning():
    pool = BlockPool(4)
    idle, busy = taken(pool, 2)
    for block in (idle, busy):
        pool.keep(block)
    pool.free([idle])
    for block in (idle, busy):
        pool.wipe_behind(block, 3)
        pool.unkeep(block)

    pool.free([busy])

    assert pool.take_wipes() == (Wipe(block=idle), Wipe(block=busy))
    (again,) = taken(pool, 1)
    pool.keep(again)
    pool.free([again])
    assert pool.take_wipes() == (), "nothing of an earlier life is left to be done"


@pytest.mark.parametrize("column", ["users", "kept", "pins", "counts", "runs"])
def test_check_notices_books_that_differ(column):
    pool = BlockPool(3)
    (block,) = taken(pool, 1)
    in_use, kept = {block: 1}, dict[BlockId, int]()
    pool.check(in_use, kept)

    match column:
        case "users":
            in_use = {}
        case "kept":
            kept = {block: 1}
        case "pins":
            pool.pin(block, ANN)
        case "counts":
            pool._counts[BlockState.FREE] += 1
        case "runs":
            pool._free.take(1, None)
        case _:
            raise AssertionError(column)

    with pytest.raises(Corrupt):
        pool.check(in_use, kept)


@settings(deadline=None)
@given(st.data())
def test_free_runs_are_what_a_set_of_places_would_be(data):
    places = data.draw(st.integers(1, 40))
    runs, free = FreeRuns(places), set(range(places))
    out: list[int] = []
    for _ in range(data.draw(st.integers(1, 40))):
        if free and data.draw(st.booleans()):
            count = data.draw(st.integers(1, len(free)))
            after = data.draw(st.sampled_from([None, *out]))
            got = runs.take(count, after)
            assert len(set(got)) == count and set(got) <= free
            if after is not None and after + 1 in free:
                assert got[0] == after + 1
            free -= set(got)
            out += got
        elif out:
            place = out.pop(data.draw(st.integers(0, len(out) - 1)))
            runs.put(place)
            free.add(place)

        assert runs.places == len(free)
        assert runs.spans() == maximal_runs(free)


def maximal_runs(places: set[int]) -> list[tuple[int, int]]:
    starts = sorted(place for place in places if place - 1 not in places)
    ends = sorted(place + 1 for place in places if place + 1 not in places)
    return list(zip(starts, ends, strict=True))
