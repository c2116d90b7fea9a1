"""The one door to the KV cache: acquire, extend, publish, release, forget, check.

Joins the pool, the prefix index, leases and retention; knows no job, no step and no tensor, and
reads no clock but the meter it is given. Upholds laws 1 to 5 and 9 to 12.

Whose is which token of a sequence, with blocks of 4 and a match of 10 tokens (law 4):

    after acquire   [0 ..... 8)            shared with the index: read only, never written
                           [8 .. 10)       copied into the sequence's own block (copy-on-write)
                                 [10 ...)  own blocks, nobody else can see them
    after publish   [0 ............ 16)    whole written blocks belong to the index as well
                                   [16 ..) own blocks
    after release   [0 ................ n) all that was written is the index's, nothing in use

So a block that the index keeps is written by nobody, and an abort publishes only committed tokens.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from engine.api import (
    Forget,
    Hold,
    LeaseState,
    Park,
    Subject,
    Wish,
    Withdraw,
)
from engine.errors import Corrupt
from engine.figures import BlockCounts, CacheChange, CacheSnapshot
from engine.kv.blocks import BlockPool
from engine.kv.eviction import Evictor, OrphanLoses
from engine.kv.holding import Holding
from engine.kv.leases import NO_SESSION, Leases
from engine.kv.meter import metered
from engine.kv.parking import Parking
from engine.kv.pins import DEFAULT_BUDGET, PUBLISHED, Budget, Lease, LeaseKey, blocks_of
from engine.kv.prefix import Entry, Ids, Match, PrefixIndex, Scopes
from engine.kv.prices import Prices
from engine.kv.retention import CostWorth, EvictionQueue
from engine.kv.returns import MOONCAKE, GapModel
from engine.kv.supply import Supply
from engine.kv.survey import snapshot
from engine.kv.tiers import NO_TIERS, Tiers
from engine.step import Arrival, Transfer, Wipe
from engine.terms import MissReason, OwnerId, RetentionClass, SessionId


class Cache:
    """KV blocks for sequences, shared through a prefix index, kept by leases.

    `meter` may be set to what returns seconds: it only feeds `spent_s` and decides nothing. What is
    matched or restored ends at a multiple of `granule_tokens`.
    """

    def __init__(
        self,
        pool: BlockPool,
        index: PrefixIndex,
        block_tokens: int,
        *,
        tiers: Tiers | None = None,
        budget: Budget = DEFAULT_BUDGET,
        granule_tokens: int = 1,
    ) -> None:
        self.meter: Callable[[], float] = float
        self.spent_s = 0.0
        self._pool = pool
        self._index = index
        self._block_tokens = block_tokens
        self._granule_tokens = granule_tokens
        self._queue = EvictionQueue()
        self._prices = Prices()
        self.tiers = tiers or Tiers(NO_TIERS, pool, block_tokens, "")
        self.journal = self.tiers.journal
        self._leases = Leases(
            index,
            pool,
            block_tokens,
            refile=self._queue.offer,
            budget=budget,
            journal=self.journal,
        )
        self._evictor = Evictor(
            pool,
            index,
            block_tokens,
            queue=self._queue,
            leases=self._leases,
            journal=self.journal,
        )
        sizes = block_tokens, granule_tokens
        self.parking = Parking(pool, self._queue, self.tiers, sizes=sizes, prices=self._prices)
        self._supply = Supply(pool, self._evictor, block_tokens, index.root)
        self._uses = 0

    # ------------------------------------------------------------ a sequence's road

    @metered
    def matched_tokens(self, ids: Ids, scopes: Scopes, end: int) -> int:
        """How much of `ids[:end]` is known now. Changes nothing."""
        return self._match(ids, scopes, end).tokens

    @metered
    def acquire(
        self,
        ids: Ids,
        scopes: Scopes,
        *,
        known_end: int,
        now: float,
        ahead: int = 0,
        is_draft: bool = False,
    ) -> Holding | None:
        """Blocks for all of `ids`, matched as far as `known_end` allows; None: no room now.

        Room for `ahead` tokens more is promised: who comes later does not get it. A draft makes room
        of nothing but what is idle or orphan, nor does anybody else while it holds blocks.
        A returned `copy` must be part of the step that first runs the sequence; until `copied` is
        called its source is protected. One that is `restoring` runs after `arrived` says so.
        """
        match = self._match(ids, scopes, known_end)
        found = self._index.cut_behind(match)
        self._touch(found, now)
        parked = self.parking.find(ids, scopes, known_end, match.tokens)
        ends = len(ids), len(ids) + ahead
        # Whole blocks only: what is copied when the sequence runs must not be restored before.
        # What is being restored cannot be dropped at once, so nobody is to wait for that.
        hold = self._supply.draft if is_draft and parked is None else self._supply.hold
        holding = hold(match, scopes, ends, copies=parked is None)
        if holding is None:
            return None
        for above in found.path():
            above.hits += 1
        if parked is not None:
            self.parking.restore(holding, parked)
        known = parked.end if parked else match.tokens
        self._evictor.regret.ask(ids, scopes, (known, known_end), now)
        return holding

    @metered
    def branch(
        self, ids: Ids, scopes: Scopes, *, known_end: int, ahead: int, key: LeaseKey
    ) -> Holding | None:
        """The same for a throw-away branch of the subject, which leaves nothing behind (law 2).

        It makes room of nothing but what is idle and not the subject's. Nor does anybody else while
        it holds blocks: who is told that there is no room gets it by dropping branches first.
        Give it back by `discard`.
        """
        match = self._match(ids, scopes, known_end)
        return self._supply.branch(match, scopes, (len(ids), len(ids) + ahead), key=key)

    @metered
    def extend(self, holding: Holding, end: int) -> bool:
        """Make the block table reach position `end`; False, and no change: no room now."""
        return self._supply.extend(holding, end)

    def copied(self, holding: Holding) -> None:
        """The copy is done (or will never be asked for); its source may go."""
        self._supply.copied(holding)

    @metered
    def publish(self, holding: Holding, ids: Ids, written: int) -> None:
        """Make the whole blocks of `[0, written)` matchable: their KV is committed (law 4)."""
        end = written // self._block_tokens * self._block_tokens
        if end > holding.published:
            self._publish(holding, ids, end)

    @metered
    def release(
        self, holding: Holding, ids: Ids, written: int, *, key: LeaseKey, now: float
    ) -> None:
        """The sequence ends or has to wait: publish all that is written, give the blocks back.

        Its path is leased to `key` in either case: whatever is published can be forgotten.
        """
        entry = self._close(holding, ids, written, now)
        if entry is not None:
            self._leases.end_turn(key, entry, now, holding.closing)
            self._queue.offer(entry)

    @metered
    def orphan(
        self, holding: Holding, ids: Ids, written: int, *, key: LeaseKey, now: float
    ) -> None:
        """The same for a path that its subject hardly goes on from: a draft."""
        entry = self._close(holding, ids, written, now)
        if entry is not None:
            self._leases.orphan(key, entry, now)
            self._queue.offer(entry)

    @metered
    def discard(self, holding: Holding) -> None:
        """Give the blocks back, publish nothing: thrown away, or their subject was forgotten."""
        self._supply.close(holding)
        self.copied(holding)
        if not self.parking.abandon(holding):
            self._supply.give_back(holding.table)

    # ------------------------------------------------------------ subjects

    def lease(
        self, subject: Subject, wish: Wish, now: float, running: Iterable[Holding] = ()
    ) -> LeaseState:
        """Carry out a wish. `running` is what the subject's own sequences hold now."""
        if isinstance(wish, Forget):
            self.tiers.forget(subject)
            return self._forget(subject, self._leases.of(subject), list(running))
        if isinstance(wish, Withdraw):
            left = [lease for lease in self._leases.of(subject) if lease.orphan]
            return self._forget(subject, left, list(running))
        if isinstance(wish, Hold):
            held = self._leases.hold(subject, wish, now)
        else:
            held = [lease for lease in self._leases.of(subject) if not lease.orphan]
        if isinstance(wish, Park):
            self.parking.want((e for lease in held for e in lease.entries), again=True)
        retention = min((lease.retention for lease in held), default=RetentionClass.IDLE)
        tokens = sum(lease.cached_tokens for lease in held)
        self.journal.note(CacheChange.LEASED, None, tokens, why=(retention, None))
        return LeaseState(
            subject=subject,
            wished=max(
                (lease.wished or lease.retention for lease in held), default=RetentionClass.IDLE
            ),
            retention=retention,
            pinned_blocks=len(blocks_of(lease for lease in held if lease.pins)),
            expires_s=next((lease.expires_s for lease in held), None),
        )

    def keep_by_cost(self, model: GapModel = MOONCAKE) -> None:
        """Weigh price and chance of return inside a class; without it, least recently used goes."""
        self._queue.weigh(CostWorth(self._prices, model))
        self._leases.model, self._leases.by_pace = model, True

    def expire(self, now: float) -> None:
        """Time goes on: let leases that are due fall back."""
        self._queue.now = now
        for lease in self._leases.expire(now):
            self.parking.want(lease.entries)
            self.tiers.let_wait(lease.key)

    def watch_orphans(self, told: OrphanLoses) -> None:
        """From now on `told` hears what is let go of drafts and of what was left behind."""
        self._evictor.orphan_loses = told

    def loss(self, key: LeaseKey) -> MissReason | None:
        """Why the subject's blocks were let go since its last turn, if they were."""
        return self._leases.loss(key)

    # ------------------------------------------------------------ what it tells of itself

    @property
    def wipes_wait(self) -> bool:
        return self._pool.wipes_wait

    def take_wipes(self) -> tuple[Wipe, ...]:
        """What to wipe before the next step does anything else."""
        return self._pool.take_wipes()

    @property
    def regretted_tokens(self) -> int:
        """Tokens that were evicted, and missing in a prompt soon after."""
        return self._evictor.regret.tokens

    def counts(self) -> BlockCounts:
        return self._pool.counts()

    def snapshot(self, now: float, *, tree: bool = True) -> CacheSnapshot:
        """Every session, and with `tree` every entry: sizes, never ids."""
        return snapshot(
            self._index if tree else None,
            self._leases,
            self.tiers,
            pool=self._pool,
            block_tokens=self._block_tokens,
            now=now,
        )

    def check(self, holdings: Iterable[Holding]) -> None:
        """Every invariant of the books, given all that is held. Raises `Corrupt`."""
        holdings = [*holdings, *self.parking.abandoned]
        in_use = Counter(block for holding in holdings for block in holding.table)
        kept = self._index.check()
        self._pool.check(in_use, kept)
        self.tiers.check()
        self._leases.check()
        self._supply.check(holdings)
        for holding in holdings:
            own = holding.table[holding.published // self._block_tokens :]
            matched = holding.cached // self._block_tokens - holding.published // self._block_tokens
            for block in own[max(0, matched) :]:
                if block in kept or in_use[block] > 1:
                    raise Corrupt(f"block {block} can be written while others refer to it")

    # ------------------------------------------------------------ lower tiers

    @metered
    def arrived(self, arrival: Arrival) -> Holding | None:
        """A transfer is over. The holding that waited for it, if one does.

        It has as much cached as was whole; the rest is to be computed.
        """
        holding, given_back = self.parking.arrived(arrival)
        self._supply.give_back(given_back)
        return holding

    @metered
    def take_transfers(self) -> tuple[Transfer, ...]:
        """What is to be moved with the next step."""
        self.parking.order()
        return self.tiers.take_orders()

    def learn_speed(self, spans: Sequence[tuple[int, int]], seconds: float) -> None:
        """A step computed the tokens of each `[start, end)` in that time, all together."""
        self._prices.learn(spans, seconds)

    def worth_s(self, spans: Iterable[tuple[int, int]]) -> float:
        """What computing the tokens of each `[start, end)` would take, as far as is known."""
        return sum(self._prices.span_s(start, end) for start, end in spans)

    def park_everything(self) -> None:
        """Whatever is leased is to outlive the engine, where there is a disk."""
        self.tiers.close()
        for lease in self._leases:
            self.parking.want(lease.entries, again=True)

    def parked(self, key: LeaseKey) -> tuple[Ids, Scopes] | None:
        """The longest path of a subject in lower tiers; None where the pool has all of it."""
        path = self.tiers.longest(key)
        if path is None or self.matched_tokens(*path, len(path[0])) == len(path[0]):
            return None
        return path

    # ------------------------------------------------------------ inside

    def _match(self, ids: Ids, scopes: Scopes, end: int) -> Match:
        match = self._index.match(ids, scopes, end)
        if over := match.tokens % self._granule_tokens:
            match = self._index.match(ids, scopes, match.tokens - over)
        return match

    def _close(self, holding: Holding, ids: Ids, written: int, now: float) -> Entry | None:
        """Publish and give back; returns what the path ends in, if anything of it is published."""
        self._supply.close(holding)
        if self.parking.abandon(holding):
            return None
        self.copied(holding)
        # Another may have gone on from the entry that this path ends in: then it is split there.
        if written > holding.published or holding.entry.end != holding.published:
            self._publish(holding, ids, written)
        if holding.published:
            self._touch(holding.entry, now)
        self._supply.give_back(holding.table)
        return holding.entry if holding.published else None

    def _publish(self, holding: Holding, ids: Ids, end: int) -> None:
        known = holding.entry
        # The entry may have been split off, extended or forgotten since; the root never is.
        if known.parent is None or known.end != holding.published:
            known = self._index.root
        done = self._index.publish(ids, holding.scopes, holding.table, (known, end))
        for at, block in done.adopted:
            self._pool.share([block])
            self._pool.free([holding.table[at]])
            holding.table[at] = block
        holding.entry, holding.published = done.entry, end
        self._queue.offer(done.entry)
        if done.new_tokens:
            self.journal.note(CacheChange.PUBLISHED, done.entry.scope, done.new_tokens)

    def _forget(
        self, subject: Subject, leases: Sequence[Lease], running: Sequence[Holding]
    ) -> LeaseState:
        own = Counter(block for holding in running for block in holding.table)
        ends = [holding.entry for holding in running if holding.published]
        published = subject.kind in PUBLISHED
        retention = max((lease.retention for lease in leases), default=RetentionClass.ORPHAN)
        for lease in leases:
            ends += lease.entries
            self._leases.forget(lease)
        # Where paths part inside a block, who goes last leaves its tail to what is left.
        for entry in sorted(ends, key=lambda entry: (-entry.end, entry.used)):
            self._evictor.forget(entry, own, published=published, retention=retention)
        orphan = RetentionClass.ORPHAN
        return LeaseState(subject=subject, wished=orphan, retention=orphan)

    def _touch(self, entry: Entry, now: float) -> None:
        self._uses += 1
        for above in entry.path():
            above.used, above.used_s = self._uses, now


def lease_key(owner_id: OwnerId, session_id: SessionId | None) -> LeaseKey:
    """The lease that a job's path belongs to."""
    return owner_id, session_id or NO_SESSION
