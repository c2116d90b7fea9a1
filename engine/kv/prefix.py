"""What every prefix index obeys: entries, matches, publications, and the protocol over them.

An index knows token ids, scopes and blocks; it knows no sequence, no lease policy and no clock.
Upholds laws 4 (only what was written is published), 8 (ids decide, a key only narrows) and 11
(a token is found only inside its own scope).

There are two: one goes down a tree, run by run of tokens (`radix.py`), one asks a table for the names
of a path's blocks (`hashed.py`). Both answer alike and let go alike; what they share is in `tree.py`.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import NewType, Protocol, TypeAlias

import msgspec

from engine.api import OPERATOR_SCOPE, OwnerId, RetentionClass, Scope, Zone
from engine.step import BlockId

Ids: TypeAlias = "array[int]"
"""Token ids as `array("I")`: slices compare at memory speed."""

EntryId = NewType("EntryId", int)

Scopes: TypeAlias = tuple[tuple[Scope, int], ...]
"""(scope, end) in order: who may match which part of a path. Neighbours differ in scope."""

EvictionKey: TypeAlias = tuple[int, float, int]
"""(retention class, worth, number of its last use): what is let go first has the least."""

NO_END = 1 << 60
"""Where the last scope of a path ends: output continues it."""


class Holder(Protocol):
    """Whoever's path ends in an entry (a lease), as far as an index must know.

    Its entries are in the order in which it came to hold them: what depends on it repeats.
    """

    retention: RetentionClass
    entries: "dict[Entry, None]"

    @property
    def owner_id(self) -> OwnerId: ...

    @property
    def pins(self) -> bool: ...


class Entry:
    """Tokens `[start, end)` of one path, inside one scope, and the blocks that hold them.

    `blocks[0]` covers position `start` and holds the KV of every earlier token of the path that
    lies in the same block as well, so a path's block table is its entries' blocks, the later entry
    winning where two share a block index. The paths of those in `held_by` end with this entry;
    `pins` counts the pinning ones here and below, by owner. It was last used at `used_s`, as the `used`th use
    of any path, and found by `hits` prompts; `queued` belongs to retention, `names` to an index that names blocks.
    """

    __slots__ = (
        "blocks",
        "children",
        "entry_id",
        "held_by",
        "hits",
        "ids",
        "names",
        "parent",
        "parked",
        "pins",
        "queued",
        "scope",
        "start",
        "used",
        "used_s",
    )

    def __init__(self, entry_id: EntryId, scope: Scope, start: int, ids: Ids) -> None:
        self.entry_id = entry_id
        self.scope = scope
        self.start = start
        self.ids = ids
        self.blocks: list[BlockId] = []
        self.parent: Entry | None = None
        self.children: dict[object, list[Entry]] = {}
        self.held_by: dict[Holder, None] = {}
        self.pins: dict[OwnerId, int] = {}
        self.parked = 0
        self.hits = 0
        self.used = 0
        self.used_s = 0.0
        self.queued: EvictionKey | None = None
        self.names: list[bytes] = []

    @property
    def end(self) -> int:
        return self.start + len(self.ids)

    @property
    def is_leaf(self) -> bool:
        return not self.children

    def path(self) -> Iterator["Entry"]:
        """This entry and those before it, the root left out."""
        entry = self
        while entry.parent is not None:
            yield entry
            entry = entry.parent


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """The longest known prefix: `tokens` of it, in whole `blocks` and then in part of `partial`.

    `entry` is the last one touched; `ends_entry` says that the match covers it to its end.
    """

    tokens: int
    blocks: list[BlockId]
    partial: BlockId | None
    entry: Entry
    ends_entry: bool


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """What publishing did: `entry` ends where the published tokens end.

    `adopted` names, by block index, blocks of equal content that the index already had; the
    publisher uses them from now on and lets its own go.
    """

    entry: Entry
    adopted: list[tuple[int, BlockId]]
    new_tokens: int


class Trimming(msgspec.Struct, frozen=True, kw_only=True):
    """`tokens` left a leaf's end. `gone`: nothing of it is left, and `parent` may be a leaf now."""

    tokens: int
    gone: bool
    parent: Entry


class PrefixIndex(Protocol):
    """Finds the longest known prefix of a path, inside its scopes.

    A path is ids and scopes. The index keeps its blocks in the pool's books itself.
    """

    root: Entry

    def match(self, ids: Ids, scopes: Scopes, end: int) -> Match:
        """The longest known prefix of `ids[:end]`. Changes nothing."""
        ...

    def cut_behind(self, match: Match) -> Entry:
        """The entry that the match ends in, cut off behind the last block that was matched.

        What lies beyond was not used: only so is a path used alike however entries are cut.
        """
        ...

    def publish(
        self, ids: Ids, scopes: Scopes, table: Sequence[BlockId], span: tuple[Entry, int]
    ) -> Publication:
        """Make `[entry.end, end)` of the path matchable; `span` is (entry, end).

        `entry` lies on the path (the root always does) and `table` holds the path's KV up to
        `end`, for all layers, committed.
        """
        ...

    def trim(self, leaf: Entry, count: int) -> Trimming:
        """Let go of a leaf's last `count` blocks; holders move up when the leaf is gone."""
        ...

    def hold(self, entry: Entry, holder: Holder) -> None:
        """The holder's path ends here; a pinning one pins every block of the path."""
        ...

    def unhold(self, entry: Entry, holder: Holder) -> None: ...

    def entries(self) -> Iterator[Entry]:
        """Every entry, parents before children, the root left out."""
        ...

    def check(self) -> dict[BlockId, int]:
        """How often entries keep each block. Raises `Corrupt` where the structure is broken."""
        ...


def is_operators(scope: Scope) -> bool:
    """Whether it is the operator's text: everybody's, or `operator:<for whom>` for some.

    It is nobody's own, so it is not forgotten with an owner or a session that read it.
    """
    return scope == OPERATOR_SCOPE or scope.startswith(f"{OPERATOR_SCOPE}:")


def scopes_of(zones: Sequence[Zone]) -> Scopes:
    """Who may match which part of a job's path; output continues the last zone."""
    scopes: list[tuple[Scope, int]] = []
    for zone in zones:
        if scopes and scopes[-1][0] == zone.scope:
            scopes.pop()
        scopes.append((zone.scope, zone.end))
    return (*scopes[:-1], (scopes[-1][0], NO_END))


def path_of(entry: Entry, block_tokens: int) -> tuple[Ids, Scopes, list[BlockId]]:
    """The whole path that ends with an entry: ids, who may match them, block table."""
    ids: Ids = array("I")
    scopes: list[tuple[Scope, int]] = []
    table: list[BlockId] = []
    for above in reversed(list(entry.path())):
        ids += above.ids
        if scopes and scopes[-1][0] == above.scope:
            scopes.pop()
        scopes.append((above.scope, above.end))
        table[above.start // block_tokens :] = above.blocks
    return ids, tuple(scopes), table


def shared_tokens(left: Ids, right: Ids) -> int:
    """How many leading ids are equal: halving slices, so a long run costs a few compares."""
    if left == right:
        return len(left)
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low
