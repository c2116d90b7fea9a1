"""Lets leaves go from their ends: to make room, in the order of retention, or to be forgotten.

Knows the index, the leases that its entries are held by, and which blocks somebody needs; knows no
sequence and no step. Upholds law 9: never more than what is missing, never a block in use.
"""

from collections import Counter
from collections.abc import Callable, Collection
from itertools import islice, takewhile

from engine.figures import EvictionReason
from engine.kv.blocks import BlockPool
from engine.kv.journal import Journal
from engine.kv.leases import Leases
from engine.kv.pins import Lease, LeaseKey
from engine.kv.prefix import Entry, Ids, PrefixIndex, is_operators
from engine.kv.regret import BEFORE_TOKENS, Regret, end_of_path
from engine.kv.retention import EvictionQueue, retention_of
from engine.step import BlockId
from engine.terms import RetentionClass

OrphanLoses = Callable[[LeaseKey, Ids, tuple[int, int]], None]
"""Told that a subject's orphan path lost positions `[start, end)`; `ids` are its last up to `end`."""


class Evictor:
    """Takes leaves out of `queue` until there is room, and remembers them in `regret`."""

    def __init__(
        self,
        pool: BlockPool,
        index: PrefixIndex,
        block_tokens: int,
        *,
        queue: EvictionQueue,
        leases: Leases,
        journal: Journal,
    ) -> None:
        self.regret = Regret(block_tokens)
        self._block_tokens = block_tokens
        self._pool = pool
        self._index = index
        self._queue = queue
        self._leases = leases
        self._journal = journal
        self._busy: list[Entry] = []
        self.orphan_loses: OrphanLoses | None = None

    def make_room(self, wanted: int, sparing: Collection[LeaseKey] | None = None) -> None:
        """Let leaves go until `wanted` blocks are free, if what is idle is enough for that.

        With `sparing` (which may be empty), none that was used lately or that is to be kept, and none
        of these subjects.
        """
        if self._pool.free_blocks < wanted <= self._pool.free_blocks + self._pool.idle_blocks:
            self._evict(wanted, sparing)

    def look_again(self) -> None:
        """Something was given back: leaves that were passed over as busy may be idle now."""
        for leaf in self._busy:
            self._queue.offer(leaf)
        self._busy.clear()

    def forget(
        self,
        entry: Entry,
        own: Counter[BlockId],
        *,
        published: bool,
        retention: RetentionClass,
    ) -> None:
        """Take the end of a path out of the index, as far up as nobody else refers to it.

        `own` is how often the forgotten subject's sequences use each block. The operator's text
        goes with what it was `published` as and with nobody else. What goes is counted as of the
        class `retention`.
        """
        while count := self._forgettable_blocks(entry, own, published=published):
            blocks, why = entry.blocks[-count:], (retention, EvictionReason.FORGOTTEN)
            trimming = self._index.trim(entry, count)
            self._journal.note_eviction(entry.scope, trimming.tokens, blocks, why)
            entry = trimming.parent if trimming.gone else entry
            self._queue.offer(entry)

    def _forgettable_blocks(self, entry: Entry, own: Counter[BlockId], *, published: bool) -> int:
        """How many blocks at the entry's end only the subject itself refers to."""
        if entry.parent is None or not entry.is_leaf or self._leases.is_claimed(entry):
            return 0
        if is_operators(entry.scope) and not published:
            return 0
        tail = takewhile(lambda block: self._pool.users(block) == own[block], entry.blocks[::-1])
        return sum(1 for _ in tail)

    def _evict(self, wanted: int, sparing: Collection[LeaseKey] | None) -> None:
        spared: list[Entry] = []
        while self._pool.free_blocks < wanted:
            leaf = self._queue.take()
            if leaf is None:
                break
            if sparing is not None and not _is_spare(leaf, sparing):
                spared.append(leaf)
                if retention_of(leaf) > RetentionClass.IDLE:
                    break
                continue
            idle = self._idle_blocks(leaf, wanted - self._pool.free_blocks)
            if idle:
                self._trim(leaf, idle)
            else:
                # Out of the way until something is given back: many run, few end.
                self._busy.append(leaf)
        for leaf in spared:
            self._queue.offer(leaf)

    def _idle_blocks(self, leaf: Entry, most: int) -> int:
        """How many blocks at the leaf's end no sequence and no copy needs, up to `most`."""
        tail = islice(reversed(leaf.blocks), most)
        return sum(1 for _ in takewhile(lambda block: not self._pool.busy(block), tail))

    def _trim(self, leaf: Entry, count: int) -> None:
        holders, end, blocks = list(leaf.held_by), leaf.end, leaf.blocks[-count:]
        ids = end_of_path(leaf, count * self._block_tokens + BEFORE_TOKENS)
        why = retention_of(leaf), self._leases.note_loss(holders)
        trimming = self._index.trim(leaf, count)
        self._queue.offer(trimming.parent if trimming.gone else leaf)
        self._leases.settle(holders)
        self._journal.note_eviction(leaf.scope, trimming.tokens, blocks, why)
        lost = end - trimming.tokens, end
        self.regret.remember(leaf.scope, ids, lost, self._queue.now)
        for lease in holders:
            if isinstance(lease, Lease) and lease.orphan and self.orphan_loses is not None:
                self.orphan_loses(lease.key, ids, lost)


def _is_spare(leaf: Entry, sparing: Collection[LeaseKey]) -> bool:
    """Whether it is idle, and nobody's of whom all is spared."""
    holders = (holder for holder in leaf.held_by if isinstance(holder, Lease))
    own = any(lease.key in sparing for lease in holders)
    return not own and retention_of(leaf) <= RetentionClass.IDLE
