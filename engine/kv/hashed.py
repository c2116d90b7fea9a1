"""The prefix index as a table of blocks: each is named by the path that ends with it.

A block's name is a digest over what it must not be confused by: all that comes before it (by name),
its scope, where it begins, its ids. So a path's blocks have the same names in every process that
runs the same model, and a lookup needs nothing but the path: it names block after block until the
table knows one no more. A name only narrows: the path down to the entry that holds the last one is
compared by scope and ids, a run of blocks at once, and what lies in it and behind it as well (law 8).

A name covers a stretch: what lies in one block and one scope, from the stretch's beginning to the
end of the block or of the entry, however many entries it was split into. So a split renames nobody;
the blocks above it are the upper entry's from then on. With blocks of 4:

    [0 1 2 3  4 5 6 7]         names  a = H(root, 0 1 2 3)   b = H(a, 4 5 6 7)
    [0 1 2 3  4 5] [6 7]       names  a   c = H(a, 4 5)      b
                   [9]                                       d = H(a, 4 5 9)

A block is hashed once when it is looked for and once when it is published, never again.
"""

from collections.abc import Callable, Iterator
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


def encode_scope(scope: Scope) -> bytes:
    return scope.encode("utf-8", "surrogatepass")


def encode_stretch(before: bytes, scope: bytes, start: int, tokens: bytes) -> bytes:
    """`tokens` at `start`, in one scope, behind what is named `before`. Injective: lengths first.

    Scope and ids come as bytes, so that a path makes them once for all its blocks.
    """
    head = _STRETCH(b"S", len(before), len(scope), len(tokens), start)
    return b"".join((head, before, scope, tokens))


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
        self.root.names = [digest(encode_root(model_fingerprint))]

    def check(self) -> dict[BlockId, int]:
        """How often entries keep each block. Raises `Corrupt` where tree or table is broken."""
        kept = super().check()
        named = sum(map(len, self._named.values()))
        if named != sum(kept.values()):
            raise Corrupt(f"the table names {named} blocks, the tree has others")
        return kept

    def _enter(self, entry: Entry, first: int) -> None:
        for name in self._names_from(entry, first):
            entry.names.append(name)
            self._named.setdefault(name, []).append(entry)

    def _leave(self, entry: Entry, first: int) -> None:
        for name in entry.names[first:]:
            self._named[name].remove(entry)
            if not self._named[name]:
                del self._named[name]
        del entry.names[first:]

    def _part(self, upper: Entry, lower: Entry) -> None:
        whole = upper.end // self._block_tokens - upper.start // self._block_tokens
        upper.names, lower.names = lower.names[:whole], lower.names[whole:]
        for name in upper.names:
            named = self._named[name]
            named[named.index(lower)] = upper
        if upper.end % self._block_tokens:
            self._enter(upper, whole)

    def _follow(
        self, entry: Entry, scope: Scope, ids: Ids, table: list[BlockId]
    ) -> tuple[Entry, int, bool]:
        """By name as far as the table goes, then from the entry above what it names by ids."""
        named: list[Entry] = []
        for name in self._names(entry.names[-1], scope, entry.end, ids[entry.end :]):
            if name not in self._named:
                break
            named = self._named[name]
        for known in named:
            path = _path_between(entry, known, scope, ids)
            if path is None:
                continue
            for above in path:
                table[above.start // self._block_tokens :] = above.blocks
                entry = above
            break
        return super()._follow(entry, scope, ids, table)

    def _names(self, before: bytes, scope: Scope, start: int, ids: Ids) -> Iterator[bytes]:
        """Of each stretch of `ids`, which begin a stretch at `start` behind what `before` names."""
        place, tokens = encode_scope(scope), ids.tobytes()
        size, width, first = self._block_tokens, ids.itemsize, start
        last = start + len(ids)
        while start < last:
            end = start - start % size + size
            stretch = tokens[(start - first) * width : (end - first) * width]
            before = self._digest(encode_stretch(before, place, start, stretch))
            yield before
            start = end

    def _names_from(self, entry: Entry, first: int) -> Iterator[bytes]:
        """What the entry's blocks from the `first` on have to be called."""
        size, above = self._block_tokens, entry
        start = max(entry.start, (entry.start // size + first) * size)
        ids = entry.ids[start - entry.start :]
        # Back to where the first one's stretch begins, and to the entry that ends or goes on there.
        while start == above.start and above.parent is not None:
            above = above.parent
            if start % size and above.scope == entry.scope:
                begin = max(above.start, start - start % size)
                ids = above.ids[begin - above.start :] + ids
                start = begin
        before = above.names[(start - 1) // size - above.start // size]
        yield from self._names(before, entry.scope, start, ids)

    def _check_entry(self, entry: Entry) -> None:
        super()._check_entry(entry)
        if entry.names != list(self._names_from(entry, 0)):
            raise Corrupt(f"entry {entry.entry_id} has blocks by other names")
        if any(entry not in self._named.get(name, ()) for name in entry.names):
            raise Corrupt(f"entry {entry.entry_id} is not in the table under its names")


def _path_between(before: Entry, known: Entry, scope: Scope, ids: Ids) -> list[Entry] | None:
    """The entries from `before` to `known`, both left out; None where `scope` or `ids` say no."""
    path: list[Entry] = []
    above = known.parent
    while above is not before:
        if above is None or above.scope != scope or above.ids != ids[above.start : above.end]:
            return None
        path.append(above)
        above = above.parent
    return path[::-1]
