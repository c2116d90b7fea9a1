"""The prefix index as a table of blocks: an entry is one block, named by the path that it ends.

A block's name is a digest over what it must not be confused by: all that comes before it (by name),
its scope, where it begins, its ids. So a path's blocks have the same names in every process that
runs the same model, and a lookup needs nothing but the path. A name only narrows: whatever it finds
is compared by scope and ids, back to the entry that the lookup came from (law 8).

A name covers a stretch: what lies in one block and one scope, from the stretch's beginning to the
entry's end, however many entries it was split into. So a split renames nobody. With blocks of 4:

    [0 1 2 3] [4 5 6 7]        names  a = H(root, 0 1 2 3)   b = H(a, 4 5 6 7)
    [0 1 2 3] [4 5 [6 7]       names  a   c = H(a, 4 5)      b = H(a, 4 5 6 7)
                   [9]                                       d = H(a, 4 5 9)

A block is hashed once when it is looked for and once when it is published, never again.
"""

from collections.abc import Callable
from hashlib import sha256
from struct import Struct

from engine.api import Scope
from engine.errors import Corrupt
from engine.kv.blocks import BlockPool
from engine.kv.prefix import Entry, Ids
from engine.kv.tree import EntryTree, Key, exact_key
from engine.step import BlockId

Digest = Callable[[bytes], bytes]


def sha256_digest(encoded: bytes) -> bytes:
    return sha256(encoded).digest()


_STRETCH = Struct("<cQQQQ").pack
"""A tag, how long what is named, scope and ids are, and where the ids begin."""


def encode_root(model_fingerprint: str) -> bytes:
    """What every path begins with: KV of other weights is other KV."""
    return b"R" + model_fingerprint.encode()


def encode_stretch(before: bytes, scope: Scope, start: int, ids: Ids) -> bytes:
    """`ids` at `start`, in one scope, behind what is named `before`. Injective: lengths first."""
    place, tokens = scope.encode("utf-8", "surrogatepass"), ids.tobytes()
    head = _STRETCH(b"S", len(before), len(place), len(tokens), start)
    return b"".join((head, before, place, tokens))


class HashedIndex(EntryTree):
    """See `PrefixIndex`. `digest` and `key` narrow a search; any functions are right."""

    def __init__(
        self,
        pool: BlockPool,
        block_tokens: int,
        *,
        model_fingerprint: str = "",
        digest: Digest = sha256_digest,
        key: Key = exact_key,
    ) -> None:
        super().__init__(pool, block_tokens, key=key)
        self._digest = digest
        self._named: dict[bytes, list[Entry]] = {}
        self.root.name = digest(encode_root(model_fingerprint))

    def check(self) -> dict[BlockId, int]:
        """How often entries keep each block. Raises `Corrupt` where tree or table is broken."""
        kept = super().check()
        named = sum(map(len, self._named.values()))
        if named != sum(1 for _ in self.entries()):
            raise Corrupt(f"the table names {named} entries, the tree has others")
        return kept

    def _limit(self, position: int) -> int:
        return (position // self._block_tokens + 1) * self._block_tokens

    def _enter(self, entry: Entry) -> None:
        entry.name = self._name_of(entry)
        self._named.setdefault(entry.name, []).append(entry)

    def _leave(self, entry: Entry) -> None:
        self._named[entry.name].remove(entry)
        if not self._named[entry.name]:
            del self._named[entry.name]

    def _follow(
        self, entry: Entry, scope: Scope, ids: Ids, table: list[BlockId]
    ) -> tuple[Entry, int, bool]:
        """By name, a block at a time; then by its ids as much of a block as is known of it."""
        while entry.end < len(ids):
            known = self._find(entry, scope, ids[entry.end : self._limit(entry.end)])
            if known is None:
                break
            entry = known
            table[entry.start // self._block_tokens :] = entry.blocks
        return super()._follow(entry, scope, ids, table)

    def _find(self, before: Entry, scope: Scope, ids: Ids) -> Entry | None:
        """The entry that ends where the stretch `ids` behind `before` does."""
        name = self._digest(encode_stretch(before.name, scope, before.end, ids))
        for entry in self._named.get(name, ()):
            if _is_stretch(entry, before, scope, ids):
                return entry
        return None

    def _name_of(self, entry: Entry) -> bytes:
        before, ids = entry.parent, entry.ids
        assert before is not None
        start = entry.start
        while start % self._block_tokens and before.scope == entry.scope:
            assert before.parent is not None
            start, ids, before = before.start, before.ids + ids, before.parent
        return self._digest(encode_stretch(before.name, entry.scope, start, ids))

    def _check_entry(self, entry: Entry) -> None:
        super()._check_entry(entry)
        if entry.name != self._name_of(entry) or entry not in self._named.get(entry.name, ()):
            raise Corrupt(f"entry {entry.entry_id} is not in the table under its name")


def _is_stretch(entry: Entry, before: Entry, scope: Scope, ids: Ids) -> bool:
    """Whether `entry` ends exactly the stretch `ids` in `scope` behind `before`."""
    start = before.end
    if entry.end != start + len(ids):
        return False
    piece: Entry | None = entry
    while piece is not before:
        if piece is None or piece.start < start or piece.scope != scope:
            return False
        if piece.ids != ids[piece.start - start : piece.end - start]:
            return False
        piece = piece.parent
    return True
