"""What is the hashed index's own: names, the table, hashing once; the rest: `test_tree.py`."""

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import OPERATOR_SCOPE, Scope
from engine.errors import Corrupt
from engine.kv.blocks import BlockPool
from engine.kv.hashed import (
    HashedIndex,
    encode_root,
    encode_scope,
    encode_stretch,
    sha256_digest,
)
from engine.kv.prefix import NO_END, Entry, Match, Scopes
from tests.kit.indexes import no_digest, no_key

ANN: Scopes = ((Scope("ann"), NO_END),)


class Bench:
    """A hashed index of 4-token blocks that writes down what it hashes and how often it searches."""

    def __init__(self, fingerprint: str = "model", digest=sha256_digest) -> None:
        self.hashed: list[bytes] = []
        self.searched = 0
        self.digest = digest
        self.pool = BlockPool(64)
        self.index = HashedIndex(
            self.pool, 4, model_fingerprint=fingerprint, digest=self.note, key=self.search
        )

    def note(self, encoded: bytes) -> bytes:
        self.hashed.append(encoded)
        return self.digest(encoded)

    def search(self, scope: Scope, token_id: int) -> object:
        self.searched += 1
        return no_key(scope, token_id)

    def publish(self, ids: Sequence[int], scopes: Scopes = ANN, *, behind: Entry | None = None):
        table = self.pool.allocate(-(-len(ids) // 4))
        assert table is not None
        span = (behind or self.index.root, len(ids))
        done = self.index.publish(array("I", ids), scopes, table, span)
        self.pool.free(table)
        return done

    def match(self, ids: Sequence[int], scopes: Scopes = ANN) -> Match:
        return self.index.match(array("I", ids), scopes, len(ids))

    def name(self, ids: Sequence[int], scopes: Scopes = ANN) -> bytes:
        """What the path's last block is called, wherever its entries begin and end."""
        match = self.match(ids, scopes)
        assert match.tokens == len(ids) and (match.ends_entry or len(ids) % 4 == 0)
        return match.entry.names[(len(ids) - 1) // 4 - match.entry.start // 4]


names = st.binary(max_size=6)
scopes_ = st.text(max_size=6).map(Scope)
starts = st.integers(0, 1 << 40)
ids_ = st.lists(st.integers(0, (1 << 32) - 1), max_size=6)
stretches = st.tuples(names, scopes_, starts, ids_)


@pytest.mark.row("engine 26")
@settings(deadline=None)
@given(stretches, stretches, st.text(max_size=6))
def test_different_things_are_encoded_differently(one, other, fingerprint):
    encoded = [
        encode_stretch(before, encode_scope(scope), start, array("I", ids).tobytes())
        for before, scope, start, ids in (one, other)
    ]

    assert (encoded[0] == encoded[1]) == (one == other)
    assert encode_root(fingerprint) not in encoded


@pytest.mark.row("engine 27")
@settings(deadline=None)
@given(st.binary(max_size=24), st.integers(0, 24), st.integers(0, 24))
def test_no_bytes_can_wander_from_one_field_into_the_next(text, one, other):
    """Equal bytes, divided elsewhere between a name and a scope."""
    tokens = array("I", [1]).tobytes()
    cuts = [min(cut, len(text)) for cut in (one, other)]
    encoded = [encode_stretch(text[:cut], text[cut:], 0, tokens) for cut in cuts]

    assert (encoded[0] == encoded[1]) == (cuts[0] == cuts[1])


def test_a_scope_that_is_no_valid_text_has_a_name_as_well():
    assert encode_scope(Scope("\ud800")) != encode_scope(Scope("?"))


def test_every_block_of_an_entry_is_in_the_table():
    bench = Bench()
    scopes: Scopes = ((OPERATOR_SCOPE, 6), *ANN)

    bench.publish(range(14), scopes)

    entries = {(entry.start, entry.end): entry for entry in bench.index.entries()}
    assert entries.keys() == {(0, 6), (6, 14)}
    filed = [(name, entry) for name, named in bench.index._named.items() for entry in named]
    assert filed == [
        (bench.name(range(end), scopes), entries[span])
        for end, span in ((4, (0, 6)), (6, (0, 6)), (8, (6, 14)), (12, (6, 14)), (14, (6, 14)))
    ]


def test_a_block_that_is_cut_off_is_in_the_table_no_more():
    bench = Bench()
    leaf = bench.publish(range(14)).entry

    bench.index.trim(leaf, 2)

    assert len(bench.index._named) == 2
    assert bench.match(range(14)).tokens == 8
    bench.index.check()
    bench.index.trim(leaf, 2)
    assert not bench.index._named


def test_a_name_depends_on_all_that_comes_before_and_on_nothing_else():
    first, second, other = Bench(), Bench(), Bench("other weights")
    scopes: Scopes = ((OPERATOR_SCOPE, 6), *ANN)
    # The same path once in one go, once in pieces and beside others.
    first.publish(range(14), scopes)
    for end in (3, 7, 9):
        second.publish([*range(end), 99], scopes)
    second.publish(range(14), scopes)
    other.publish(range(14), scopes)

    for end in (4, 6, 8, 12, 14):
        name = first.name(range(end), scopes)
        assert second.name(range(end), scopes) == name
        assert other.name(range(end), scopes) != name
    assert first.name(range(8), scopes) != _name_alone([*range(8)])


def _name_alone(ids: Sequence[int]) -> bytes:
    bench = Bench()
    bench.publish(ids)
    return bench.name(ids)


def test_a_split_renames_nobody():
    bench = Bench()
    bench.publish(range(12))
    before = {end: bench.name(range(end)) for end in (4, 8, 12)}

    bench.publish([*range(6), 9])

    assert {end: bench.name(range(end)) for end in (4, 8, 12)} == before
    assert bench.match(range(12)).tokens == 12
    bench.index.check()


def test_what_is_published_piece_by_piece_is_hashed_once():
    bench = Bench()
    entry = bench.index.root
    for end in range(4, 44, 4):
        entry = bench.publish(range(end), behind=entry).entry

    assert len(bench.hashed) == 1 + 10


def test_a_split_hashes_only_the_block_that_it_cuts():
    bench = Bench()
    bench.publish(range(40))
    before = len(bench.hashed)

    bench.publish([*range(20), 99])

    assert len(bench.hashed) == before + 1
    bench.publish([*range(30), 99])
    assert len(bench.hashed) == before + 3


def test_what_is_known_is_not_hashed_again_when_it_is_published():
    bench = Bench()
    bench.publish(range(40))
    before = len(bench.hashed)

    bench.publish([*range(40), 1, 2, 3, 4])

    assert len(bench.hashed) == before + 1


def test_a_lookup_hashes_as_far_as_it_finds_and_once_more():
    bench = Bench()
    bench.publish(range(40))
    before = len(bench.hashed)

    match = bench.match([*range(22), *[99] * 40])

    assert match.tokens == 22
    assert len(bench.hashed) == before + 6


def test_a_lookup_searches_the_tree_once_however_often_paths_part():
    bench = Bench()
    bench.publish(range(40))
    for end in range(6, 38):
        bench.publish([*range(end), 99])
    before = bench.searched

    match = bench.match(range(40))

    assert len(list(match.entry.path())) > 30
    assert (match.tokens, bench.searched) == (40, before + 1)


@pytest.mark.parametrize("damage", ["names", "table", "place"])
def test_check_notices_a_table_that_is_not_the_trees(damage):
    bench = Bench()
    leaf = bench.publish(range(8)).entry

    match damage:
        case "names":
            leaf.names[0] = b"another"
        case "table":
            bench.index._named[b"nobody"] = [leaf]
        case "place":
            bench.index._named[leaf.names[0]] = [bench.index.root]
        case _:
            raise AssertionError(damage)

    with pytest.raises(Corrupt):
        bench.index.check()


def test_with_one_name_for_everything_scope_place_and_ids_decide():
    bench = Bench(digest=no_digest)
    bench.publish([1, 1, 1, 1, 1, 1, 1, 1])
    bench.publish([2, 2, 1, 1, 1, 1, 1, 1])
    bench.publish([1, 1, 1, 1], ((Scope("ben"), NO_END),))
    bench.publish([1, 1, 2])

    assert bench.match([1] * 12).tokens == 8
    assert bench.match([2, 2, 1, 1, 1, 1, 2]).tokens == 6
    assert bench.match([1] * 8, ((Scope("ben"), NO_END),)).tokens == 4
    assert bench.match([1, 1, 2, 2]).tokens == 3
    bench.index.check()
