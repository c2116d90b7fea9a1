"""What is parked, and when; and whether bringing it back is worth its time.

Knows the order of eviction, leases and lower tiers; moves nothing and evicts nothing. A path is
parked when its lease has gone idle, when it is among the next to be evicted while room is short,
and at the close. What nobody leases (drafts, cancelled branches) is never parked. A path is
restored where reading it takes less time than computing it, both as they were measured here.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from engine.api import RetentionClass, SubjectKind
from engine.kv.blocks import BlockPool
from engine.kv.holding import Holding
from engine.kv.pins import Lease, LeaseKey
from engine.kv.prefix import Entry, Ids, Scopes, is_operators, path_of
from engine.kv.prices import Prices
from engine.kv.retention import EvictionQueue, retention_of
from engine.kv.segments import OPERATOR_KEY, Found, Path
from engine.kv.tiers import Tiers
from engine.step import Arrival, BlockId
from engine.terms import Tier

MOVING_AT_ONCE = 8
"""Transfers beyond it wait: what moves is locked, and must not be all that could be evicted."""

SHORT_SHARE = 8
"""Room is short while less than one block in so many is free."""

LOOK_AHEAD = 8
"""How many of the next leaves to be evicted are looked at."""

MEMORY = 0.8
"""How much of an old measurement is kept when a new one comes."""

DOUBT = 0.98
"""How much of a measurement is kept when nothing is tried because of it: a disk that was slow once
is tried again some day."""


class Speed:
    """Seconds a token, as measured lately; None before the first measurement."""

    __slots__ = ("token_s",)

    def __init__(self) -> None:
        self.token_s: float | None = None

    def learn(self, tokens: int, seconds: float) -> None:
        if tokens > 0:
            now = seconds / tokens
            old = self.token_s
            self.token_s = now if old is None else MEMORY * old + (1 - MEMORY) * now

    def doubt(self) -> None:
        if self.token_s is not None:
            self.token_s *= DOUBT


class Reading:
    """How long bringing tokens back takes: memory and disk are measured apart."""

    def __init__(self) -> None:
        self.speeds = {Tier.HOST: Speed(), Tier.DISK: Speed()}

    def seconds(self, tokens: Mapping[Tier, int]) -> float | None:
        """What reading so many tokens from each tier takes; None: of one of them nothing is known."""
        total = 0.0
        for tier, count in tokens.items():
            token_s = self.speeds[tier].token_s
            if token_s is None:
                return None
            total += count * token_s
        return total

    def learn(self, tokens: Mapping[Tier, int], seconds: float) -> None:
        """Where both were read, memory took what it usually does, and the disk the rest."""
        known = self.speeds[Tier.HOST].token_s or 0.0
        host, disk = tokens.get(Tier.HOST, 0), tokens.get(Tier.DISK, 0)
        if disk:
            self.speeds[Tier.DISK].learn(disk, max(0.0, seconds - host * known))
        else:
            self.speeds[Tier.HOST].learn(host, seconds)

    def doubt(self, tiers: Iterable[Tier]) -> None:
        for tier in tiers:
            self.speeds[tier].doubt()


class Restoring(msgspec.Struct, kw_only=True):
    """A restore that has not arrived: `ends[n]` is cached once n pieces are whole.

    `tiers` are those of the pieces.
    """

    holding: Holding
    ends: list[int]
    tiers: list[Tier]
    abandoned: bool = False


class Parking:
    """Keeps lower tiers a little ahead of eviction, and brings back what is asked for.

    `sizes`: tokens of a block, and of what a restore must be a multiple of.
    """

    def __init__(
        self,
        pool: BlockPool,
        queue: EvictionQueue,
        tiers: Tiers,
        *,
        sizes: tuple[int, int],
        prices: Prices,
    ) -> None:
        self.reading = Reading()
        self.tiers = tiers
        self._prices = prices
        self._pool = pool
        self._queue = queue
        self._block_tokens, self._granule_tokens = sizes
        self._wanted: dict[Entry, None] = {}
        self._refused: dict[Entry, None] = {}
        self._restores: dict[int, Restoring] = {}

    @property
    def is_busy(self) -> bool:
        """Whether something moves, or waits to be."""
        return bool(self._wanted) or self.tiers.moving > 0

    @property
    def abandoned(self) -> list[Holding]:
        """Holdings that nobody waits for, whose blocks are still being written."""
        return [r.holding for r in self._restores.values() if r.abandoned]

    # ------------------------------------------------------------ down

    def want(self, entries: Iterable[Entry], *, again: bool = False) -> None:
        """Park the paths that end in these entries as soon as there is a hand for it.

        `again`: also where it was tried before; a tier may have let them go since.
        """
        if self.tiers.are_used:
            self._wanted.update((e, None) for e in entries if again or e.parked < e.end)

    def order(self) -> None:
        """Order what is wanted, and what is about to be evicted, as far as it may move now."""
        if not self.tiers.are_used or self.tiers.moving >= MOVING_AT_ONCE:
            return
        if self._pool.free_blocks * SHORT_SHARE < self._pool.total:
            self.want(self._queue.upcoming(LOOK_AHEAD))
        while self._wanted and self.tiers.moving < MOVING_AT_ONCE:
            entry = next(iter(self._wanted))
            del self._wanted[entry]
            self._park(entry)

    def _park(self, entry: Entry) -> None:
        if entry.parent is None or retention_of(entry) is RetentionClass.ORPHAN:
            return
        leases = (h for h in entry.held_by if isinstance(h, Lease))
        lease = next((one for one in leases if one.kind is not None and not one.orphan), None)
        if lease is None and not is_operators(entry.scope):
            return
        ids, scopes, table = path_of(entry, self._block_tokens)
        path = Path(ids=ids, scopes=scopes, table=table)
        # Tried is tried: without room now, there may be some when the path has grown, or when what
        # moves has left.
        entry.parked = entry.end
        is_parked = self.tiers.park(path, _keys(lease), durable=lease is None or lease.durable)
        if not is_parked and self.tiers.moving:
            self._refused[entry] = None
        if lease is not None and lease.retention <= RetentionClass.IDLE:
            self.tiers.let_wait(lease.key)

    # ------------------------------------------------------------ up

    def find(self, ids: Ids, scopes: Scopes, end: int, matched: int) -> Found | None:
        """What lower tiers have beyond a match, if reading it beats computing it."""
        if not self.tiers.are_used or end - matched < self._block_tokens:
            return None
        found = self.tiers.find(ids, scopes, end)
        found = msgspec.structs.replace(found, end=self._granular(found.end))
        worth = found.end - matched >= self._block_tokens and self._beats(matched, found)
        return found if worth else None

    def restore(self, holding: Holding, found: Found) -> None:
        """Order what was found into the holding's blocks, from `cached` on."""
        start = holding.cached
        holding.restoring = self.tiers.restore(found, start, holding.table)
        pieces = _pieces(found, start)
        self._restores[holding.restoring] = Restoring(
            holding=holding,
            ends=[start, *(end for _, end in pieces)],
            tiers=[tier for tier, _ in pieces],
        )

    def abandon(self, holding: Holding) -> bool:
        """Nobody waits for a restore any more; False: it was not being restored."""
        if holding.restoring is None:
            return False
        self._restores[holding.restoring].abandoned = True
        return True

    def arrived(self, arrival: Arrival) -> tuple[Holding | None, Sequence[BlockId]]:
        """A transfer is over: the holding that waited for it, and the blocks that nobody needs."""
        restore = self._restores.pop(arrival.transfer_id, None)
        self.tiers.arrived(arrival)
        self._wanted.update(self._refused)
        self._refused.clear()
        if restore is None:
            return None, ()
        holding, start = restore.holding, restore.ends[0]
        holding.restoring, holding.restored = None, start
        holding.cached = max(start, self._granular(restore.ends[arrival.pieces]))
        whole = list(zip(restore.tiers, restore.ends[1:], strict=True))[: arrival.pieces]
        self.reading.learn(_by_tier(start, whole), arrival.seconds)
        return (None, holding.table) if restore.abandoned else (holding, ())

    def _granular(self, tokens: int) -> int:
        return tokens - tokens % self._granule_tokens

    def _beats(self, start: int, found: Found) -> bool:
        """Before anything was read or computed, reading is taken for the quicker."""
        tokens = _by_tier(start, _pieces(found, start))
        read_s, compute_s = self.reading.seconds(tokens), self._prices.span_s(start, found.end)
        if read_s is None or not compute_s or read_s < compute_s:
            return True
        self.reading.doubt(tokens)
        return False


def _pieces(found: Found, start: int) -> list[tuple[Tier, int]]:
    """Where each part behind `start` lies, and where it ends."""
    return [(s.nearest, min(s.end, found.end)) for s in found.segments if s.end > start]


def _by_tier(start: int, pieces: Iterable[tuple[Tier, int]]) -> Counter[Tier]:
    """Tokens behind `start`, by tier."""
    tokens: Counter[Tier] = Counter()
    for tier, end in pieces:
        tokens[tier] += end - start
        start = end
    return tokens


def _keys(lease: Lease | None) -> tuple[LeaseKey, LeaseKey]:
    """Whose the operator's part of a path is, and whose the rest."""
    if lease is None:
        return OPERATOR_KEY, OPERATOR_KEY
    if lease.kind is SubjectKind.SESSION:
        return OPERATOR_KEY, lease.key
    return lease.key, lease.key
