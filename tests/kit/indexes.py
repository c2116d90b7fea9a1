"""Both prefix indexes, as they are and with everything that narrows a search made to collide."""

from collections.abc import Callable
from functools import partial

from engine.api import Scope
from engine.kv.blocks import BlockPool
from engine.kv.hashed import HashedIndex
from engine.kv.radix import RadixIndex
from engine.kv.tree import EntryTree

MakeIndex = Callable[[BlockPool, int], EntryTree]

INDEXES: list[type[RadixIndex] | type[HashedIndex]] = [RadixIndex, HashedIndex]


def no_key(_scope: Scope, _token_id: int) -> object:
    return 0


def parity_key(_scope: Scope, token_id: int) -> object:
    return token_id % 2


def no_digest(_encoded: bytes) -> bytes:
    return b""


def parity_digest(encoded: bytes) -> bytes:
    return bytes([sum(encoded) % 2])


COLLIDING: dict[str, MakeIndex] = {
    "radix, all keys alike": partial(RadixIndex, key=no_key),
    "radix, two keys": partial(RadixIndex, key=parity_key),
    "hashed, all digests alike": partial(HashedIndex, digest=no_digest),
    "hashed, two digests": partial(HashedIndex, digest=parity_digest),
    "hashed, all digests and keys alike": partial(HashedIndex, digest=no_digest, key=no_key),
}
