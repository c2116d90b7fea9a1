"""What is the hashed index's own: names, blocks as entries, hashing once; the rest: `test_tree.py`."""

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import OPERATOR_SCOPE, Scope
from engine.errors import Corrupt
from engine.kv.blocks import BlockPool
from engine.kv.hashed import HashedIndex, encode_root, encode_stretch, sha256_digest
from engine.kv.prefix import NO_END, Entry, Match, Scopes
from tests.kit.indexes import no_digest, no_key

ANN: Scopes = ((Scope("ann"), NO_END),)


class Bench:
    """A hashed index of 4-token blocks that writes down whatever it hashes."""

    def __init__(self, fingerprint: str = "model", digest=sha256_digest) -> None:
        self.hashed: list[bytes] = []
        self.digest = digest
        self.pool = BlockPool(64)
        self.index = HashedIndex(
            self.pool, 4, model_fingerprint=fingerprint, digest=self.note, key=no_key
        )

    def note(self, encoded: bytes) -> bytes:
        self.hashed.append(encoded)
        return self.digest(encoded)

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
        """What the path is called, wherever its entries begin."""
        match = self.match(ids, scopes)
        assert (match.tokens, match.ends_entry) == (len(ids), True)
        return match.entry.name


names = st.binary(max_size=6)
scopes_ = st.text(max_size=6).map(Scope)
starts = st.integers(0, 1 << 40)
ids_ = st.lists(st.integers(0, (1 << 32) - 1), max_size=6)
stretches = st.tuples(names, scopes_, starts, ids_)


@settings(deadline=None)
@given(stretches, stretches, st.text(max_size=6))
def test_different_things_are_encoded_differently(one, other, fingerprint):
    encoded = [
        encode_stretch(before, scope, start, array("I", ids))
        for before, scope, start, ids in (one, other)
    ]

    assert (encoded[0] == encoded[1]) == (one == other)
    assert encode_root(fingerprint) not in encoded


@settings(deadline=None)
@given(st.binary(max_size=24), st.integers(0, 24), st.integers(0, 24))
def test_no_bytes_can_wander_from_one_field_into_the_next(text, one, other):
    """Equal bytes, divided elsewhere between a name and a scope."""
    ids = array("I", [1])
    cuts = [min(cut, len(text)) for cut in (one, other)]
    encoded = [
        encode_stretch(text[:cut], Scope(text[cut:].decode("latin-1")), 0, ids) for cut in cuts
    ]

    assert (encoded[0] == encoded[1]) == (cuts[0] == cuts[1])


def test_a_scope_that_is_no_valid_text_has_a_name_as_well():
    broken, plain = Scope("\ud800"), Scope("?")

    assert encode_stretch(b"", broken, 0, array("I")) != encode_stretch(b"", plain, 0, array("I"))


def test_every_entry_is_one_block_or_less():
    bench = Bench()

    bench.publish(range(14), ((OPERATOR_SCOPE, 6), *ANN))

    spans = {(entry.start, entry.end) for entry in bench.index.entries()}
    assert spans == {(0, 4), (4, 6), (6, 8), (8, 12), (12, 14)}
    assert all(len(entry.blocks) == 1 for entry in bench.index.entries())


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


@pytest.mark.parametrize("damage", ["name", "table", "limit"])
def test_check_notices_a_table_that_is_not_the_trees(damage):
    bench = Bench()
    leaf = bench.publish(range(8)).entry

    match damage:
        case "name":
            leaf.name = b"another"
        case "table":
            bench.index._named[b"nobody"] = [leaf]
        case "limit":
            leaf.ids += array("I", [8])
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
