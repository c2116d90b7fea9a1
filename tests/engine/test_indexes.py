"""Which index a name stands for."""

import pytest

from engine.config import PREFIX_INDEXES
from engine.errors import Misconfigured
from engine.kv.blocks import BlockPool
from engine.kv.hashed import HashedIndex, encode_root, sha256_digest
from engine.kv.indexes import new_index
from engine.kv.radix import RadixIndex


def test_every_name_stands_for_an_index():
    made = [new_index(name, BlockPool(1), 4, "model") for name in PREFIX_INDEXES]

    assert [type(index) for index in made] == [RadixIndex, HashedIndex]
    assert made[1].root.names == [sha256_digest(encode_root("model"))]


def test_an_unknown_name_is_refused_with_those_that_are_known():
    with pytest.raises(Misconfigured, match="prefix_index is 'trie': use radix or hashed"):
        new_index("trie", BlockPool(1), 4, "model")
