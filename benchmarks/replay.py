"""Drives the engine's own cache (index, leases, retention) by a workload, without a model.

A block of the pool is a unit of the workload. A turn acquires, publishes and releases at once: how
long a reply takes is no part of what is compared.
"""

import heapq

import msgspec

from app.chat.liveness import wishes
from app.frames import PresenceState
from benchmarks.workloads import Signal, Turn, Workload
from engine.api import (
    OPERATOR_SCOPE,
    Forget,
    Hold,
    OwnerId,
    Scope,
    SessionId,
    Subject,
    SubjectKind,
    Warm,
)
from engine.kv.blocks import BlockPool
from engine.kv.cache import Cache, lease_key
from engine.kv.holding import Closing
from engine.kv.indexes import new_index
from engine.kv.prefix import NO_END, Scopes
from engine.kv.returns import GapModel
from engine.kv.tiers import SEGMENT_TOKENS, Tiers, TierSizes
from engine.step import Arrival, Drop, HandOver, Restore


class Score(msgspec.Struct, kw_only=True):
    """Units of the scored prompts, and how many of them were cached."""

    units: int = 0
    hits: int = 0

    @property
    def rate(self) -> float:
        return self.hits / self.units if self.units else 0.0

    def add(self, turn: Turn, hits: int) -> None:
        self.units += turn.prompt
        self.hits += hits


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How the cache decides. `model` None: least recently used inside a class.

    `ttl_s`: a session that was not used for so long is forgotten. `heeds`: the app's wishes for what
    sockets say are carried out. `disk`: how many times the pool's size a disk below it has.
    """

    model: GapModel | None = None
    ttl_s: float | None = None
    heeds: bool = False
    disk: float = 0.0
    index: str = "radix"


class Replay:
    """One cache of `units` under one policy."""

    def __init__(self, units: int, policy: Policy, unit_tokens: int) -> None:
        pool = BlockPool(units)
        sizes = TierSizes(
            token_bytes=1,
            disk_bytes=int(policy.disk * units),
            segment_tokens=max(1, SEGMENT_TOKENS // unit_tokens),
        )
        tiers = Tiers(sizes, pool, 1, "")
        self.cache = Cache(pool, new_index(policy.index, pool, 1, ""), 1, tiers=tiers)
        model = policy.model
        if model is not None:
            # The cache takes a unit for a token.
            growth = model.growth_tokens / unit_tokens
            self.cache.keep_by_cost(msgspec.structs.replace(model, growth_tokens=growth))
        self._policy = policy
        self._expiries: list[tuple[float, str, str]] = []
        self._used_s: dict[tuple[str, str], float] = {}
        self._told: dict[Subject, PresenceState] = {}

    def run(self, workload: Workload) -> Score:
        score = Score()
        for event in workload.events:
            self._expire(event.at_s)
            if isinstance(event, Turn):
                hits = self._take(event)
                if event.at_s >= workload.scored_from_s:
                    score.add(event, hits)
            elif self._policy.heeds:
                self._heed(event)
        return score

    def _take(self, turn: Turn) -> int:
        scopes: Scopes = ((Scope(turn.owner), NO_END),)
        if turn.shared:
            scopes = ((OPERATOR_SCOPE, turn.shared), *scopes)
        holding = self.cache.acquire(turn.path, scopes, known_end=turn.prompt, now=turn.at_s)
        if holding is None:
            return 0
        hits = holding.cached
        self._carry()
        key = lease_key(OwnerId(turn.owner), SessionId(turn.session))
        self.cache.release(holding, turn.path, turn.kept, key=key, now=turn.at_s)
        if self._policy.ttl_s is not None:
            due_s = turn.at_s + self._policy.ttl_s
            self._used_s[turn.owner, turn.session] = due_s
            heapq.heappush(self._expiries, (due_s, turn.owner, turn.session))
        self._carry()
        return hits

    def _heed(self, signal: Signal) -> None:
        subject = _subject(signal.owner, signal.session)
        before = self._told.get(subject, PresenceState.CLOSED)
        self._told[subject] = signal.state
        for wish in wishes(before, signal.state):
            if isinstance(wish, Hold) and signal.state is not PresenceState.CLOSED:
                # Renewed for as long as the socket says so.
                renewed = msgspec.structs.replace(wish, ttl_s=None)
                self.cache.lease(subject, renewed, signal.at_s)
            else:
                self.cache.lease(subject, wish, signal.at_s)
            if isinstance(wish, Warm):
                self._warm(subject, signal.at_s)

    def _warm(self, subject: Subject, now: float) -> None:
        """As the engine does: a turn of no consequence goes through what was parked."""
        key = lease_key(subject.owner_id, SessionId(subject.subject_id))
        path = self.cache.parked(key)
        if path is None:
            return
        ids, scopes = path
        holding = self.cache.acquire(ids, scopes, known_end=len(ids), now=now)
        if holding is not None:
            self._carry()
            holding.closing = Closing(counted=False)
            self.cache.release(holding, ids, holding.cached, key=key, now=now)
            self._carry()

    def _carry(self) -> None:
        """Whatever is to be moved arrives whole, at once."""
        while orders := self.cache.take_transfers():
            for order in orders:
                if not isinstance(order, Drop | HandOver):
                    pieces = len(order.pieces) if isinstance(order, Restore) else 1
                    self.cache.arrived(
                        Arrival(transfer_id=order.transfer_id, pieces=pieces, seconds=0.0)
                    )

    def _expire(self, now: float) -> None:
        self.cache.expire(now)
        while self._expiries and self._expiries[0][0] <= now:
            due_s, owner, session = heapq.heappop(self._expiries)
            if self._used_s.get((owner, session)) == due_s:
                self.cache.lease(_subject(owner, session), Forget(), now)


def replay(workload: Workload, units: int, policy: Policy) -> Score:
    return Replay(units, policy, workload.unit_tokens).run(workload)


def optimum(workload: Workload, units: int, *, knows_when: bool = True) -> Score:
    """The clairvoyant bound: what is used again last, or never, goes first (Belady 1966).

    A unit is never used later than one behind it, so what goes first is a leaf or as good as one. What
    is not scored counts for nothing: what is used again there first might as well be gone until then.
    It need not hold a whole prompt at once, as every real cache must: a bound, not a policy.
    Without `knows_when` it knows of each unit whether it is used again, and no more: what is not
    goes first, then what was used longest ago.
    """
    turns = list(workload.turns())
    never = len(turns)
    next_use: dict[int, int] = {}
    uses: list[list[int]] = []
    for number in range(len(turns) - 1, -1, -1):
        path = turns[number].path
        uses.append([next_use.get(unit, never) for unit in path])
        is_scored = turns[number].at_s >= workload.scored_from_s
        next_use |= dict.fromkeys(path, number if is_scored else never)
    score = Score()
    held: dict[int, int] = {}
    heap: list[tuple[int, int, int]] = []
    for number, (turn, following) in enumerate(zip(turns, reversed(uses), strict=True)):
        prompt = turn.path[: turn.prompt]
        hits = next((at for at, unit in enumerate(prompt) if unit not in held), len(prompt))
        if turn.at_s >= workload.scored_from_s:
            score.add(turn, hits)
        for place, (unit, use) in enumerate(zip(turn.path, following, strict=True)):
            if place < turn.kept:
                rank = -use if knows_when or use == never else number
                held[unit] = rank
                heapq.heappush(heap, (rank, -place, unit))
        while len(held) > units:
            rank, _, unit = heapq.heappop(heap)
            if held.get(unit) == rank:
                del held[unit]
    return score


def _subject(owner: str, session: str) -> Subject:
    return Subject(kind=SubjectKind.SESSION, subject_id=session, owner_id=OwnerId(owner))
