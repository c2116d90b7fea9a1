"""What both prefix indexes share: a tree of entries, the blocks that they keep, who holds them.

How a known prefix is found is for the index to say; where paths part, which block a tail is and who
pins what is the same for both, so they let go the same. Knows nothing of sequences, leases or time.
Upholds laws 4, 8 and 11: scope and ids are compared before anything is matched, so colliding keys
cost time and never truth.

A split keeps the lower part's identity, so whoever holds the entry still ends where it ended.
With blocks of 4 and a split after 6 tokens, both parts keep the block they share:

    before   [0 ................. 12)   blocks  a b c
    upper    [0 ...... 6)               blocks  a b
    lower             [6 ....... 12)    blocks    b c

An entry that ends inside a block and has children keeps no tail of its own: its last block is the
first block of its first child (which holds the same slots and more). So a path that is in use
never pins down blocks that are not.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence

from engine.api import OwnerId, Scope
from engine.errors import Corrupt
from engine.kv.blocks import BlockPool
from engine.kv.prefix import (
    Entry,
    EntryId,
    Holder,
    Ids,
    Match,
    Publication,
    Scopes,
    Trimming,
    shared_tokens,
)
from engine.step import BlockId

Key = Callable[[Scope, int], object]


def exact_key(scope: Scope, token_id: int) -> object:
    return scope, token_id


class EntryTree:
    """See `PrefixIndex`. `key` narrows the search for a child; any function is right."""

    def __init__(self, pool: BlockPool, block_tokens: int, *, key: Key = exact_key) -> None:
        self._pool = pool
        self._block_tokens = block_tokens
        self._key = key
        self._last_id = 0
        self.root = Entry(EntryId(0), Scope(""), 0, array("I"))

    # ------------------------------------------------------------ the protocol

    def match(self, ids: Ids, scopes: Scopes, end: int) -> Match:
        """The longest known prefix of `ids[:end]`. Changes nothing."""
        entry, position, ends_entry = self.root, 0, True
        table: list[BlockId] = []
        for scope, scope_end in scopes:
            bound = min(scope_end, end)
            entry, position, ends_entry = self._follow(entry, scope, ids[:bound], table)
            if position < bound or not ends_entry:
                break
        whole = position // self._block_tokens
        return Match(
            tokens=position,
            blocks=table[:whole],
            partial=table[whole] if position % self._block_tokens else None,
            entry=entry,
            ends_entry=ends_entry,
        )

    def cut_behind(self, match: Match) -> Entry:
        """The entry that the match ends in, cut off behind the last block that was matched."""
        end = self._blocks_to(match.tokens) * self._block_tokens
        if end >= match.entry.end:
            return match.entry
        return self._split(match.entry, end - match.entry.start)

    def publish(
        self, ids: Ids, scopes: Scopes, table: Sequence[BlockId], span: tuple[Entry, int]
    ) -> Publication:
        """Make `[entry.end, end)` of the path matchable, block by block where it is new."""
        entry, end = span
        adopted: list[tuple[int, BlockId]] = []
        new_tokens = 0
        for scope, scope_end in scopes:
            bound = min(scope_end, end)
            while entry.end < bound:
                known = entry.end
                child = self._child(entry, scope, ids[known])
                if child is None:
                    entry = self._grow(entry, scope, ids[known:bound], table)
                    new_tokens += bound - known
                    break
                shared = shared_tokens(child.ids, ids[known : min(bound, child.end)])
                entry = child if shared == len(child.ids) else self._split(child, shared)
                adopted += self._duplicates(entry, table)
        return Publication(entry=entry, adopted=adopted, new_tokens=new_tokens)

    def trim(self, leaf: Entry, count: int) -> Trimming:
        """Let go of a leaf's last `count` blocks; holders move up when the leaf is gone."""
        parent = leaf.parent
        assert parent is not None and leaf.is_leaf
        left = len(leaf.blocks) - count
        cut = max(leaf.start, (leaf.start // self._block_tokens + left) * self._block_tokens)
        tokens = leaf.end - cut
        if cut == leaf.start:
            self._remove(leaf, parent)
        else:
            self._leave(leaf, left)
            for block in leaf.blocks[left:]:
                self._unkeep(leaf, block)
            del leaf.blocks[left:], leaf.ids[cut - leaf.start :]
        return Trimming(tokens=tokens, gone=cut == leaf.start, parent=parent)

    def hold(self, entry: Entry, holder: Holder) -> None:
        """The holder's path ends here; a pinning one pins every block of the path."""
        if holder in entry.held_by:
            return
        entry.held_by[holder] = None
        holder.entries[entry] = None
        if holder.pins:
            owner_id = holder.owner_id
            for above in entry.path():
                pins = above.pins.get(owner_id, 0)
                above.pins[owner_id] = pins + 1
                if not pins:
                    for block in above.blocks:
                        self._pool.pin(block, owner_id)

    def unhold(self, entry: Entry, holder: Holder) -> None:
        del entry.held_by[holder], holder.entries[entry]
        if holder.pins:
            owner_id = holder.owner_id
            for above in entry.path():
                above.pins[owner_id] -= 1
                if not above.pins[owner_id]:
                    del above.pins[owner_id]
                    for block in above.blocks:
                        self._pool.unpin(block, owner_id)

    def entries(self) -> Iterator[Entry]:
        """Every entry, parents before children, the root left out."""
        stack = [self.root]
        while stack:
            entry = stack.pop()
            if entry is not self.root:
                yield entry
            stack += children(entry)

    def check(self) -> dict[BlockId, int]:
        """How often entries keep each block. Raises `Corrupt` where the tree is broken."""
        kept: dict[BlockId, int] = {}
        for entry in self.entries():
            self._check_entry(entry)
            for block in entry.blocks:
                kept[block] = kept.get(block, 0) + 1
        return kept

    # ------------------------------------------------------------ what an index says of its own

    # Who finds paths by nothing but the tree has nothing to do here.
    def _enter(self, entry: Entry, first: int) -> None:
        """The entry's blocks from the `first` on are part of the tree now, or hold more."""

    def _leave(self, entry: Entry, first: int) -> None:
        """The entry's blocks from the `first` on are about to go, or to hold more."""

    def _part(self, upper: Entry, lower: Entry) -> None:
        """`upper` is new, and took what it has from `lower`, which it precedes."""

    # ------------------------------------------------------------ inside

    def _blocks_to(self, position: int) -> int:
        return -(-position // self._block_tokens)

    def _child(self, entry: Entry, scope: Scope, token_id: int) -> Entry | None:
        for child in entry.children.get(self._key(scope, token_id), ()):
            if child.scope == scope and child.ids[0] == token_id:
                return child
        return None

    def _follow(
        self, entry: Entry, scope: Scope, ids: Ids, table: list[BlockId]
    ) -> tuple[Entry, int, bool]:
        """From the end of `entry` on as far as `ids` are known: where, and if an entry ends there.

        Blocks on the way are put into `table`.
        """
        position, ends_entry = entry.end, True
        while position < len(ids) and ends_entry:
            child = self._child(entry, scope, ids[position])
            if child is None:
                break
            shared = shared_tokens(child.ids, ids[position : child.end])
            position += shared
            first = child.start // self._block_tokens
            table[first:] = child.blocks[: self._blocks_to(position) - first]
            entry, ends_entry = child, shared == len(child.ids)
        return entry, position, ends_entry

    def _grow(self, entry: Entry, scope: Scope, ids: Ids, table: Sequence[BlockId]) -> Entry:
        """New tokens behind `entry`: appended to a leaf that nobody holds, else a child of it."""
        start, end = entry.end, entry.end + len(ids)
        blocks = list(table[start // self._block_tokens : self._blocks_to(end)])
        if start % self._block_tokens and entry.is_leaf:
            self._replace_tail(entry, blocks[0])
        first = 0
        if self._can_go_on(entry, scope):
            first = start // self._block_tokens - entry.start // self._block_tokens
            self._leave(entry, first)
            entry.ids += ids
            fresh = blocks[1 if start % self._block_tokens else 0 :]
            target = entry
        else:
            target = Entry(self._new_id(), scope, start, ids)
            target.used, target.used_s = entry.used, entry.used_s
            self._attach(entry, target)
            fresh = blocks
        for block in fresh:
            self._pool.keep(block)
        target.blocks += fresh
        self._enter(target, first)
        return target

    def _can_go_on(self, entry: Entry, scope: Scope) -> bool:
        if entry is self.root or entry.held_by or not entry.is_leaf:
            return False
        return entry.scope == scope

    def _split(self, lower: Entry, tokens: int) -> Entry:
        """Put the first `tokens` of an entry into a new one above it, which is returned."""
        parent = lower.parent
        assert parent is not None
        upper = Entry(self._new_id(), lower.scope, lower.start, lower.ids[:tokens])
        upper.used, upper.used_s, upper.pins = lower.used, lower.used_s, dict(lower.pins)
        upper.hits = lower.hits
        upper.parent = parent
        first = lower.start // self._block_tokens
        cut = lower.start + tokens
        upper.blocks = lower.blocks[: self._blocks_to(cut) - first]
        # In the same place among its siblings: the first one lends its tail to the parent.
        siblings = parent.children[self._key(lower.scope, lower.ids[0])]
        siblings[siblings.index(lower)] = upper
        lower.start, lower.ids = cut, lower.ids[tokens:]
        lower.blocks = lower.blocks[cut // self._block_tokens - first :]
        self._attach(upper, lower)
        if cut % self._block_tokens:
            self._keep(upper, upper.blocks[-1])
        self._part(upper, lower)
        return upper

    def _duplicates(self, entry: Entry, table: Sequence[BlockId]) -> list[tuple[int, BlockId]]:
        """Whole blocks of the entry that the publisher holds copies of, by block index."""
        first = entry.start // self._block_tokens
        if entry.blocks == table[first : first + len(entry.blocks)]:
            return []
        whole = entry.blocks[: entry.end // self._block_tokens - first]
        return [
            (index, block)
            for index, block in enumerate(whole, start=first)
            if table[index] != block
        ]

    def _remove(self, leaf: Entry, parent: Entry) -> None:
        for holder in list(leaf.held_by):
            self.unhold(leaf, holder)
            if parent is not self.root:
                self.hold(parent, holder)
        self._leave(leaf, 0)
        self._detach(parent, leaf)
        slots, sibling = leaf.start % self._block_tokens, next(children(parent), None)
        if slots and parent.blocks[-1] == leaf.blocks[0]:
            if sibling is None:
                self._pool.wipe_behind(leaf.blocks[0], slots)
            else:
                self._replace_tail(parent, sibling.blocks[0])
        for block in leaf.blocks:
            self._unkeep(leaf, block)
        leaf.parent = None

    def _replace_tail(self, entry: Entry, block: BlockId) -> None:
        """`block` holds all that the entry's last block does; up the path where it is shared."""
        old = entry.blocks[-1]
        if old == block:
            return
        self._keep(entry, block)
        entry.blocks[-1] = block
        self._unkeep(entry, old)
        parent = entry.parent
        only = len(entry.blocks) == 1 and entry.start % self._block_tokens
        if only and parent is not None and parent.blocks[-1] == old:
            self._replace_tail(parent, block)

    def _attach(self, parent: Entry, child: Entry) -> None:
        child.parent = parent
        parent.children.setdefault(self._key(child.scope, child.ids[0]), []).append(child)

    def _detach(self, parent: Entry, child: Entry) -> None:
        key = self._key(child.scope, child.ids[0])
        parent.children[key].remove(child)
        if not parent.children[key]:
            del parent.children[key]

    def _keep(self, entry: Entry, block: BlockId) -> None:
        self._pool.keep(block)
        for owner_id in entry.pins:
            self._pool.pin(block, owner_id)

    def _unkeep(self, entry: Entry, block: BlockId) -> None:
        for owner_id in entry.pins:
            self._pool.unpin(block, owner_id)
        self._pool.unkeep(block)

    def _new_id(self) -> EntryId:
        self._last_id += 1
        return EntryId(self._last_id)

    def _check_entry(self, entry: Entry) -> None:
        parent, end = entry.parent, entry.end
        if parent is None or parent.end != entry.start or not entry.ids:
            raise _broken(entry, "does not continue its parent")
        if self._child(parent, entry.scope, entry.ids[0]) is not entry:
            raise _broken(entry, "cannot be found")
        covered = self._blocks_to(end) - entry.start // self._block_tokens
        if len(entry.blocks) != covered:
            raise _broken(entry, f"has {len(entry.blocks)} blocks, its tokens fill {covered}")
        below = list(children(entry))
        if end % self._block_tokens and below and entry.blocks[-1] != below[0].blocks[0]:
            raise _broken(entry, "keeps a tail that its first child does not share")
        pins: dict[OwnerId, int] = {}
        for holder in entry.held_by:
            if holder.pins:
                pins[holder.owner_id] = pins.get(holder.owner_id, 0) + 1
        for child in below:
            for owner_id, count in child.pins.items():
                pins[owner_id] = pins.get(owner_id, 0) + count
        if entry.pins != pins:
            raise _broken(entry, f"counts {entry.pins} pins")


def _broken(entry: Entry, how: str) -> Corrupt:
    return Corrupt(f"entry {entry.entry_id} [{entry.start}, {entry.end}) {how}")


def children(entry: Entry) -> Iterator[Entry]:
    """The entries right below, in no particular order."""
    for bucket in entry.children.values():
        yield from bucket
