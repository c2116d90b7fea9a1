"""Who runs in this step, under the token budget: order, admission, preemption.

Knows sequences and asks the cache for blocks; knows no tensor, no token's meaning, no socket.

Order of a step: all decodes, then per class (interactive, background, draft) prefills that run
already, then admissions. Inside a class the owner with the fewest running sequences goes first,
then whoever came first. Hits never change the order (law 11).

Why nothing can deadlock: sequences that run are ordered by (class, turn of admission). One that
needs a block takes it from what no sequence uses, else from the last in that order, which gives
all its blocks back and waits again. So the first in the order lacks nothing but what it uses
itself, and no job is accepted that would not fit into the whole pool; it ends, and the next is
first. Admission takes from weaker classes only.
"""

from collections import Counter

import msgspec

from engine.errors import Overloaded
from engine.kv.cache import Cache
from engine.kv.prefix import Scopes
from engine.sequence import RANKS, Sequence, Status

RETRY_AFTER_S = 1.0


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """How much fits: into a step, among those that run, and in front of the door."""

    block_tokens: int
    step_tokens: int
    max_running: int
    max_waiting: int


class Step:
    """A step being put together: how many ids each sequence computes, and the budget left."""

    __slots__ = ("admitted", "budget", "shares")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.shares: dict[Sequence, int] = {}
        self.admitted: list[Sequence] = []

    def give(self, sequence: Sequence) -> None:
        """As many of the sequence's pending ids as the budget allows."""
        count = min(self.budget, sequence.pending)
        if count:
            self.shares[sequence] = count
            self.budget -= count


class Scheduler:
    """Holds every sequence that waits (in order of arrival) or runs (in order of strength)."""

    def __init__(self, cache: Cache, capacity: Capacity) -> None:
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.preemptions = 0
        self._cache = cache
        self._capacity = capacity
        self._arrivals = 0
        self._turns = 0

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises `Overloaded` when too many wait already."""
        if len(self.waiting) >= self._capacity.max_waiting:
            raise Overloaded(
                f"{len(self.waiting)} jobs wait already, no more are queued",
                retry_after_s=RETRY_AFTER_S,
            )
        self._arrivals += 1
        sequence.arrival = self._arrivals
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """The sequence ended; its blocks are the caller's to give back."""
        (self.running if sequence.status is Status.RUNNING else self.waiting).remove(sequence)
        sequence.status = Status.ENDED

    def schedule(self, now: float) -> Step:
        """Decide one step; blocks for it are held when this returns."""
        step = Step(self._capacity.step_tokens)
        preemptions = self.preemptions
        self._decode(step, now)
        crowded = self.preemptions > preemptions
        for rank in RANKS.values():
            self._prefill(step, rank)
            # Who was just preempted must not take back what it gave.
            if crowded or not self._admit(step, rank, now):
                crowded = True
        return step

    def _decode(self, step: Step, now: float) -> None:
        for sequence in [s for s in self.running if s.pending == 1]:
            # Stronger ones before it may have preempted it meanwhile.
            if sequence.status is Status.RUNNING and self._grow(step, sequence, now):
                step.give(sequence)

    def _grow(self, step: Step, sequence: Sequence, now: float) -> bool:
        assert sequence.holding is not None
        while not self._cache.extend(sequence.holding, len(sequence.ids)):
            weakest = self.running[-1]
            self._preempt(step, weakest, now)
            if weakest is sequence:
                return False
        return True

    def _prefill(self, step: Step, rank: int) -> None:
        for sequence in self.running:
            if sequence.rank == rank and sequence not in step.shares:
                step.give(sequence)

    def _admit(self, step: Step, rank: int, now: float) -> bool:
        """Start what waits in a class; False when somebody there found no room."""
        while any(s.rank == rank for s in self.waiting):
            if step.budget == 0 or not self._has_seat(rank):
                return False
            sequence = self._next_waiting(rank)
            if sequence is None:
                return True
            if not self._seat(step, sequence, now):
                return False
            step.give(sequence)
        return True

    def _next_waiting(self, rank: int) -> Sequence | None:
        waiting = [s for s in self.waiting if s.rank == rank]
        running = Counter(s.job.owner_id for s in self.running)
        waiting.sort(key=lambda s: (not s.turn, running[s.job.owner_id], s.arrival))
        return next((s for s in waiting if not self._waits_for_prefix(s)), None)

    def _has_seat(self, rank: int) -> bool:
        """Whether one more may run, if need be in the place of a weaker one."""
        return len(self.running) < self._capacity.max_running or self.running[-1].rank > rank

    def _seat(self, step: Step, sequence: Sequence, now: float) -> bool:
        holding = None
        while holding is None:
            if len(self.running) < self._capacity.max_running:
                holding = self._cache.acquire(
                    sequence.ids, sequence.scopes, known_end=sequence.known_end, now=now
                )
            if holding is None:
                if not self.running or self.running[-1].rank <= sequence.rank:
                    return False
                self._preempt(step, self.running[-1], now)
        self._turns += 1
        sequence.turn = self._turns
        sequence.holding = holding
        sequence.written = holding.cached
        sequence.status = Status.RUNNING
        self.waiting.remove(sequence)
        self.running.append(sequence)
        self.running.sort(key=lambda s: (s.rank, s.turn))
        step.admitted.append(sequence)
        return True

    def _preempt(self, step: Step, sequence: Sequence, now: float) -> None:
        self.preemptions += 1
        step.budget += step.shares.pop(sequence, 0)
        if sequence in step.admitted:
            step.admitted.remove(sequence)
        sequence.give_back(self._cache, now)
        self.running.remove(sequence)
        self.waiting.append(sequence)
        sequence.written = 0
        sequence.status = Status.WAITING

    def _waits_for_prefix(self, sequence: Sequence) -> bool:
        """Whether the block it would compute first is being prefilled by another right now."""
        if sequence.held_until is not None:
            other, end = sequence.held_until
            if _will_write(other, end):
                return True
            sequence.held_until = None
        prefilling = [s for s in self.running if s.pending > 1 and s.rank <= sequence.rank]
        if not prefilling:
            return False
        known = self._cache.matched_tokens(sequence.ids, sequence.scopes, sequence.known_end)
        end = (known // self._capacity.block_tokens + 1) * self._capacity.block_tokens
        for other in prefilling:
            if _will_write(other, end) and _same_path(sequence, other, end):
                sequence.held_until = (other, end)
                return True
        return False


def _will_write(other: Sequence, end: int) -> bool:
    """Whether a prefill in progress is going to publish a block that ends at `end`."""
    return (
        other.status is Status.RUNNING
        and not other.forgotten
        and other.written < end <= other.written + other.pending
    )


def _same_path(one: Sequence, other: Sequence, end: int) -> bool:
    return (
        end <= len(one.ids)
        and one.ids[:end] == other.ids[:end]
        and _scopes_to(one.scopes, end) == _scopes_to(other.scopes, end)
    )


def _scopes_to(scopes: Scopes, end: int) -> list[tuple[str, int]]:
    starts = [0, *(scope_end for _, scope_end in scopes[:-1])]
    return [
        (scope, min(scope_end, end))
        for start, (scope, scope_end) in zip(starts, scopes, strict=True)
        if start < end
    ]
