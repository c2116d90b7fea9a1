"""What is the radix tree's own: entries are runs, however long; the rest is in `test_tree.py`."""

from array import array

from engine.api import Scope
from engine.kv.blocks import BlockPool
from engine.kv.prefix import NO_END, Entry, Scopes
from engine.kv.radix import RadixIndex

ANN: Scopes = ((Scope("ann"), NO_END),)


def published(tokens: int) -> tuple[BlockPool, RadixIndex, Entry]:
    """A path of so many tokens in blocks of 4, and its one entry."""
    pool = BlockPool(256)
    index, table = RadixIndex(pool, 4), pool.allocate(-(-tokens // 4))
    assert table is not None
    done = index.publish(array("I", range(tokens)), ANN, table, (index.root, tokens))
    pool.free(table)
    return pool, index, done.entry


def test_a_path_is_one_entry_however_long_it_is():
    _, index, leaf = published(1000)

    assert [(entry.start, entry.end) for entry in index.entries()] == [(0, 1000)]
    assert index.match(array("I", range(1000)), ANN, 1000).entry is leaf


def test_a_leaf_lets_several_of_its_last_blocks_go_at_once():
    pool, index, leaf = published(14)

    first = index.trim(leaf, 1)
    assert (first.tokens, first.gone, leaf.end) == (2, False, 12)
    second = index.trim(leaf, 2)
    assert (second.tokens, second.gone, leaf.end) == (8, False, 4)
    third = index.trim(leaf, 1)

    assert (third.tokens, third.gone, third.parent) == (4, True, index.root)
    assert pool.free_blocks == 256
    pool.check({}, index.check())
