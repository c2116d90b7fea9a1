"""Blocks for sequences: what is free, else what is idle, as far as promises and branches allow.

Knows matches, the pool and what may be let go; knows no index and no lease's wish. Upholds laws 2
and 10.

Why a throw-away branch (a title, a summary) never costs its subject's next turn a token, in any
pool. What it reads is as old as before, and what it writes is published to nobody: so as soon as
the branches have given their blocks back, all is as if they had never been, but for what they let
go. They let go what is idle and not their subject's. While they hold blocks, nobody lets go
anything else: who needs more has to drop them first, and only then takes what it would have taken
without them. So nothing of the class recent or above goes for them either, whosever it is.

A draft is a guess, so it lets go no more than that either, and while it holds blocks nobody does: it
is dropped first. What is left of earlier drafts of its own session may go for it.
"""

from collections import Counter
from collections.abc import Collection, Iterable

from engine.errors import Corrupt
from engine.kv.blocks import BlockPool
from engine.kv.eviction import Evictor
from engine.kv.holding import Holding
from engine.kv.pins import LeaseKey
from engine.kv.prefix import Entry, Match, Scopes
from engine.kv.promises import Promises
from engine.step import BlockId, Copy


class Supply:
    """Gives blocks to holdings and takes them back. `root` is where a path begins in the index."""

    def __init__(self, pool: BlockPool, evictor: Evictor, block_tokens: int, root: Entry) -> None:
        self._pool = pool
        self._evictor = evictor
        self._block_tokens = block_tokens
        self._root = root
        self._promises = Promises(pool)
        self._branches: Counter[LeaseKey] = Counter()
        self._drafts = 0

    def hold(
        self, match: Match, scopes: Scopes, ends: tuple[int, int], *, copies: bool
    ) -> Holding | None:
        """Blocks up to the first end, and room promised up to the second; None: no room now.

        What is matched in part of a block is copied, if `copies` and if there is room for that.
        """
        self._pool.share(match.blocks)
        here = self._blocks_to(ends[0])
        missing, promised = here - len(match.blocks), self._blocks_to(ends[1]) - here
        partial, fresh = match.partial if copies else None, None
        if self._promises.allow(missing + promised):
            after = match.blocks[-1] if match.blocks else None
            if partial is not None:
                self._pool.begin_copy(partial)
            fresh = self._allocate(missing, after)
            if fresh is None and partial is not None:
                # A pool so full that the copy's source itself has to go: match whole blocks only.
                self._pool.end_copy(partial)
                self.give_back(())
                partial = None
                fresh = None if self._branches else self._allocate(missing, after)
        if fresh is None:
            self.give_back(match.blocks)
            return None
        holding = Holding(scopes, match.blocks + fresh, self._root)
        holding.cached = len(match.blocks) * self._block_tokens
        self._promises.make(holding, promised)
        if partial is not None:
            holding.cached = match.tokens
            slots = match.tokens % self._block_tokens
            holding.copy = Copy(source=partial, target=fresh[0], slots=slots)
        return holding

    def branch(
        self, match: Match, scopes: Scopes, ends: tuple[int, int], *, key: LeaseKey
    ) -> Holding | None:
        """The same for a throw-away branch of the subject."""
        self._branches[key] += 1
        holding = self.hold(match, scopes, ends, copies=True)
        if holding is None:
            self._end_branch(key)
        else:
            holding.branch = key
        return holding

    def draft(
        self, match: Match, scopes: Scopes, ends: tuple[int, int], *, copies: bool
    ) -> Holding | None:
        """The same for a draft."""
        self._drafts += 1
        holding = self.hold(match, scopes, ends, copies=copies)
        if holding is None:
            self._drafts -= 1
        else:
            holding.is_draft = True
        return holding

    def extend(self, holding: Holding, end: int) -> bool:
        """Make the block table reach position `end`; False, and no change: no room now."""
        missing = self._blocks_to(end) - len(holding.table)
        if missing <= 0:
            return True
        fresh = self._allocate(missing, holding.table[-1])
        holding.table += fresh or ()
        self._promises.redeem(holding, len(fresh or ()))
        return fresh is not None

    def copied(self, holding: Holding) -> None:
        """The copy is done (or will never be asked for); its source may go."""
        if holding.copy is not None:
            self._pool.end_copy(holding.copy.source)
            holding.copy = None
            self.give_back(())

    def close(self, holding: Holding) -> None:
        """The holding grows no more, and nothing is kept free for it."""
        self._promises.redeem(holding, holding.promised)
        if holding.branch is not None:
            self._end_branch(holding.branch)
            holding.branch = None
        self.give_up_draft(holding)

    def give_up_draft(self, holding: Holding) -> None:
        """The holding is no draft any more, as far as others have to care."""
        self._drafts -= holding.is_draft
        holding.is_draft = False

    def give_back(self, blocks: Iterable[BlockId]) -> None:
        """One user fewer."""
        self._pool.free(blocks)
        self._evictor.look_again()

    def check(self, holdings: Collection[Holding]) -> None:
        """Raises `Corrupt` where promises or branches are not those of the holdings."""
        self._promises.check(holdings)
        held = Counter(holding.branch for holding in holdings if holding.branch is not None)
        if held != self._branches:
            raise Corrupt(f"{self._branches} branches are counted, {held} hold blocks")
        drafts = sum(holding.is_draft for holding in holdings)
        if drafts != self._drafts:
            raise Corrupt(f"{self._drafts} drafts are counted, {drafts} hold blocks")

    def _allocate(self, count: int, after: BlockId | None) -> list[BlockId] | None:
        modest = self._drafts or self._branches
        self._evictor.make_room(count, self._branches if modest else None)
        return self._pool.allocate(count, after)

    def _end_branch(self, key: LeaseKey) -> None:
        self._branches[key] -= 1
        if not self._branches[key]:
            del self._branches[key]

    def _blocks_to(self, position: int) -> int:
        return -(-position // self._block_tokens)
