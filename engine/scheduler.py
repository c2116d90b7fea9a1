"""Who runs in this step, under the token budget: order, admission, preemption.

Knows sequences and asks the cache for blocks; knows no tensor, no token's meaning, no socket.

Order of a step: decodes, then what is to prefill, interactive before background. Drafts are for
idle compute: they have a step to themselves, where nothing else can use it, and else they wait.

Inside a class, prefill goes chunk by chunk to the owner who is owed most (`fairness.py`): to his
earliest sequence that runs, else his next one is given a seat. A chunk is a quarter of a step, so
that a long prompt has no step to itself while another owner wants something, and nothing of the
budget is left while anybody who has room wants more. Hence, of two owners who have something that
runs and wants more, neither gets ahead of the other by more than two chunks and what is decoded in
a step, if they began as equals, and by two steps more, whatever each was owed. A seat goes first to
owners who have none in the class, among these to whoever was preempted; with its seat a sequence
gets its first token.

Law 11: what decides is arrival and what was computed for each owner's own jobs. A prompt's cached
tokens are found before it is charged, in the owner's own scope or in the operator's zone; so a
charge tells of others at most that the operator's text was warm, which is no secret and is said in
the receipt. Of a prompt that waits, what is cached decides one thing only: whether it waits for
another of the very same scopes that is writing what comes next.

Why nothing can deadlock: what runs is ordered by strength: by class, then each owner's first
sequence before all others, then by turn of admission. Who needs a block takes it from what no
sequence uses, else from the weakest, which gives all its blocks back and waits again; who is to be
seated takes from whoever would be weaker, and while it lacks room nobody of its class or below is
seated. So the oldest of the strongest class, which is its owner's first, lacks nothing but what it
uses itself, and no job is accepted that would not fit into the whole pool; it ends, and the next
is strongest. An owner with one sequence takes from one with several, never the other way round.

Places are shared as well: where none is left, one that has not run yet ends for one of a stronger
class, or of an owner who has at least two fewer that wait, and it is the newest of whoever has most.

Throw-away branches (titles, summaries) are background work, and weaker than all that where room is
short (`kv/supply.py` says why that is enough for law 2). One of these, or a draft, that has none lets
others pass and tries again when any of those who have some has gone; when all have gone who had some
at its first try, it is refused. So it waits for room no longer than they take, and nobody waits for it.
"""

from collections import Counter, deque
from heapq import heapify, heappop, heappush
from itertools import chain

import msgspec

from engine.api import JobClass, OwnerId
from engine.errors import Overloaded
from engine.fairness import Deficits
from engine.kv.cache import Cache
from engine.kv.holding import Holding
from engine.rounds import Round, Step
from engine.sequence import RANKS, RETRY_AFTER_S, Sequence, Status
from engine.waiting import Waiting

CHUNKS = 4
"""Into how many chunks a step is cut: fewer and longer ones are cheaper to compute."""

DRAFT_STEP_TOKENS = 128
"""A turn that comes waits for the step in flight, so those that compute drafts are short."""

GROUPS = (
    (RANKS[JobClass.INTERACTIVE], RANKS[JobClass.BACKGROUND]),
    (RANKS[JobClass.DRAFT],),
)
"""Classes that may share a step; a group is looked at where the one before it leaves it idle."""


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """How much fits: into a step, among those that run, and in front of the door."""

    block_tokens: int
    step_tokens: int
    max_running: int
    max_waiting: int

    @property
    def places(self) -> int:
        return self.max_running + self.max_waiting


class Scheduler:
    """Holds every sequence that waits or runs (`running`: by class, then turn of admission)."""

    def __init__(self, cache: Cache, capacity: Capacity) -> None:
        self.waiting = Waiting()
        self.running: list[Sequence] = []
        self.restoring: list[Sequence] = []
        """These hold blocks and a seat, and run when their KV has arrived from a lower tier."""
        self.preemptions = 0
        self._cache = cache
        self._capacity = capacity
        self._chunk = max(1, capacity.step_tokens // CHUNKS)
        self._deficits = tuple(Deficits(capacity.step_tokens) for _ in RANKS)
        self._seats: tuple[Counter[OwnerId], ...] = tuple(Counter() for _ in RANKS)
        self._arrivals = 0
        self._turns = 0
        self._resumed: list[Sequence] = []

    def crowded_by(self, sequence: Sequence) -> Sequence | None:
        """Which one that waits has to end before this may be added; None: there is a place.

        Raises `Overloaded` where there is none and it has no better claim than anybody who waits.
        """
        # With those that run: all that a lost engine had taken on come back at once, and wait.
        if len(self.waiting) + self._seated < self._capacity.places:
            return None
        crowded = self.waiting.crowded_by(sequence)
        if crowded is None:
            raise Overloaded(
                f"{len(self.waiting)} jobs wait already, no more are queued",
                retry_after_s=RETRY_AFTER_S,
            )
        return crowded

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence for which there is a place."""
        self._arrivals += 1
        sequence.arrival = self._arrivals
        rank, owner_id = sequence.rank, sequence.owner_id
        prefills = (s.pending > 1 for s in self.running if (s.rank, s.owner_id) == (rank, owner_id))
        idle = owner_id not in self.waiting.of(rank) and not any(prefills)
        self._deficits[rank].join(owner_id, idle=idle)
        self.waiting.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """The sequence ended; its blocks are the caller's to give back."""
        if sequence.status is Status.RUNNING:
            self._unseat(sequence)
        elif sequence.status is Status.RESTORING:
            self.restoring.remove(sequence)
            self._free_seat(sequence)
        else:
            self.waiting.remove(sequence)
        self._deficits[sequence.rank].leave(sequence.owner_id)
        sequence.status = Status.ENDED

    def schedule(self, now: float) -> Step:
        """Decide one step; blocks for it are held when this returns."""
        step = Step(self._capacity.step_tokens)
        # One that was preempted or has ended since is not in its place any more.
        step.admitted += [s for s in self._resumed if s.status is Status.RUNNING]
        self._resumed.clear()
        for job_class in (JobClass.BACKGROUND, JobClass.DRAFT):
            waiting = chain.from_iterable(self.waiting.of(RANKS[job_class]).values())
            step.put_off.update(sequence for sequence in waiting if sequence.is_put_off)
        for group in GROUPS:
            preemptions = self.preemptions
            self._decode(step, group, now)
            # Who was just preempted must not take back what it gave.
            crowded = self.preemptions > preemptions
            for rank in group:
                crowded = self._serve(step, rank, now, crowded=crowded)
            if step.shares or crowded:
                break
            step.budget = min(step.budget, DRAFT_STEP_TOKENS)
        return step

    # ------------------------------------------------------------ who computes how much

    def _decode(self, step: Step, group: tuple[int, ...], now: float) -> None:
        for sequence in [s for s in self.running if s.pending == 1 and s.rank in group]:
            # Stronger ones before it may have preempted it meanwhile.
            if sequence.status is Status.RUNNING and self._grow(step, sequence, now):
                self._give(step, sequence, 1)

    def _grow(self, step: Step, sequence: Sequence, now: float) -> bool:
        assert sequence.holding is not None
        while not self._cache.extend(sequence.holding, len(sequence.ids)):
            weakest = self._weakest()
            self._preempt(step, weakest, now, by=sequence)
            if weakest is sequence:
                return False
        return True

    def _give(self, step: Step, sequence: Sequence, most: int) -> None:
        self._deficits[sequence.rank].charge(sequence.owner_id, step.give(sequence, most))

    def _serve(self, step: Step, rank: int, now: float, *, crowded: bool) -> bool:
        """Share what is left of the budget inside a class; whether somebody there lacks room."""
        deficits, waiting = self._deficits[rank], self.waiting.of(rank)
        if not deficits:
            return crowded
        round_ = self._round(step, rank, opens=not crowded and self._has_seat(rank))
        while step.budget and round_.turns:
            owner_id = heappop(round_.turns)[-1]
            sequence = round_.prefill(step, owner_id)
            if sequence is not None:
                self._give(step, sequence, self._chunk)
            elif not self._admit(step, round_, owner_id, now):
                continue
            deficits.had_turn(owner_id)
            heappush(round_.turns, (deficits.place(owner_id), owner_id))
        if step.budget and not waiting:
            deficits.forgive()
        else:
            deficits.settle(sum(n for s, n in step.shares.items() if s.rank == rank))
        return crowded or (bool(waiting) and not round_.opens)

    def _round(self, step: Step, rank: int, *, opens: bool) -> Round:
        round_, place = Round(rank, opens=opens), self._deficits[rank].place
        for sequence in self.running:
            # Whatever has a share already decodes, and wants no more.
            if sequence.rank == rank and sequence not in step.shares:
                round_.prefills.setdefault(sequence.owner_id, deque()).append(sequence)
        if opens:
            waiting, seats = self.waiting.of(rank), self._seats[rank]
            round_.turns = [(place(o), o) for o in round_.prefills.keys() | waiting.keys()]
            round_.line = [
                (not q[0].turn, place(o), o) for o, q in waiting.items() if o not in seats
            ]
        else:
            round_.turns = [(place(o), o) for o in round_.prefills]
        heapify(round_.turns)
        heapify(round_.line)
        return round_

    # ------------------------------------------------------------ who gets a seat

    def _admit(self, step: Step, round_: Round, owner_id: OwnerId, now: float) -> bool:
        """Seat the owner's next, or first whoever has the better claim to a seat."""
        sequence = self._candidate(step, round_, owner_id)
        while sequence is not None and not self._seat(step, sequence, now):
            if not sequence.is_modest:
                round_.opens = False
                return False
            self._put_off(step, sequence, by=sequence)
            sequence = self._candidate(step, round_, owner_id)
        if sequence is None:
            return False
        if round_.line:
            heappop(round_.line)
        round_.prefills.setdefault(sequence.owner_id, deque()).append(sequence)
        if sequence.status is Status.RUNNING:
            # Its own turn decides how much more: this much, so that no match is held without its
            # copy.
            self._give(step, sequence, 1)
        return True

    def _candidate(self, step: Step, round_: Round, owner_id: OwnerId) -> Sequence | None:
        sequence = self._ready(step, round_.rank, owner_id) if round_.opens else None
        while sequence is not None and round_.line and round_.line[0][-1] != owner_id:
            other = self._ready(step, round_.rank, round_.line[0][-1])
            if other is not None:
                return other
            heappop(round_.line)
        return sequence

    def _ready(self, step: Step, rank: int, owner_id: OwnerId) -> Sequence | None:
        """The owner's next that is not put off and need not wait for a prefix."""
        queue = self.waiting.of(rank).get(owner_id, ())
        ready = (s for s in queue if s not in step.put_off and not self._waits_for_prefix(s))
        return next(ready, None)

    @property
    def _seated(self) -> int:
        return len(self.running) + len(self.restoring)

    def _has_seat(self, rank: int) -> bool:
        """Whether one more of those who wait may run, if need be in the place of a weaker one."""
        if self._seated < self._capacity.max_running:
            return True
        if not self.running or self.running[-1].strength > rank:
            return bool(self.running)
        seats = self._seats[rank]
        several = self.running[-1].rank == rank and len(seats) < seats.total()
        return several and not self.waiting.of(rank).keys() <= seats.keys()

    def _seat(self, step: Step, sequence: Sequence, now: float) -> bool:
        holding = None
        while holding is None:
            if self._seated < self._capacity.max_running:
                holding = sequence.acquire(self._cache, now)
            if holding is None:
                weakest = self._weakest() if self.running else None
                if weakest is None or not self._is_weaker(weakest, sequence):
                    return False
                self._preempt(step, weakest, now, by=sequence)
        self.waiting.remove(sequence)
        self._turns += 1
        sequence.turn = self._turns
        sequence.holding, sequence.patience = holding, None
        self._seats[sequence.rank][sequence.owner_id] += 1
        if holding.restoring is not None:
            sequence.status = Status.RESTORING
            self.restoring.append(sequence)
        else:
            self._start(sequence)
            step.admitted.append(sequence)
        return True

    def resume(self, holding: Holding) -> None:
        """What a sequence waited for has arrived: it is admitted with the next step."""
        sequence = next(s for s in self.restoring if s.holding is holding)
        self.restoring.remove(sequence)
        self._start(sequence)
        self._resumed.append(sequence)

    def _start(self, sequence: Sequence) -> None:
        assert sequence.holding is not None
        sequence.written = sequence.holding.cached
        sequence.status = Status.RUNNING
        self.running.append(sequence)
        self.running.sort(key=lambda s: (s.strength, s.turn))

    # ------------------------------------------------------------ who gives way

    def _weakest(self) -> Sequence:
        """Of the weakest the newest whose owner has another in the class, else the newest."""
        newest = self.running[-1]
        seats = self._seats[newest.rank]
        if len(seats) == seats.total():
            return newest
        # Another that is being restored gives nothing back, and counts all the same.
        several = (s for s in reversed(self.running) if seats[s.owner_id] > 1)
        return next((s for s in several if s.strength == newest.strength), newest)

    def _is_weaker(self, runs: Sequence, waits: Sequence) -> bool:
        """Whether one that runs is weaker than one that waits would be."""
        seats = self._seats[waits.rank]
        first = waits.owner_id not in seats
        return runs.strength > waits.strength or (
            runs.strength == waits.strength and first and seats[runs.owner_id] > 1
        )

    def _preempt(self, step: Step, sequence: Sequence, now: float, *, by: Sequence) -> None:
        self.preemptions += 1
        share = step.shares.pop(sequence, 0)
        step.budget += share
        self._deficits[sequence.rank].charge(sequence.owner_id, -share)
        if sequence in step.admitted:
            step.admitted.remove(sequence)
        sequence.give_back(self._cache, now)
        self._unseat(sequence)
        self.waiting.add(sequence)
        sequence.written = 0
        sequence.status = Status.WAITING
        if sequence.is_modest:
            self._put_off(step, sequence, by=by)

    def _put_off(self, step: Step, sequence: Sequence, *, by: Sequence) -> None:
        """A throw-away branch or a draft has no seat or no room: others have it, or are to have it."""
        others = frozenset((*self.running, *self.restoring, by)) - {sequence}
        sequence.waits_for = others
        step.put_off.add(sequence)
        if self._seated < self._capacity.max_running:
            known = sequence.patience
            sequence.patience = others if known is None else known & others
            if not sequence.patience:
                step.refused.append(sequence)

    def _unseat(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._free_seat(sequence)

    def _free_seat(self, sequence: Sequence) -> None:
        seats = self._seats[sequence.rank]
        seats[sequence.owner_id] -= 1
        if not seats[sequence.owner_id]:
            del seats[sequence.owner_id]

    # ------------------------------------------------------------ who waits for a prefix

    def _waits_for_prefix(self, sequence: Sequence) -> bool:
        """Whether the block it would compute first is being prefilled by another right now."""
        if sequence.held_until is not None:
            other, end = sequence.held_until
            if other.will_write(end):
                return True
            sequence.held_until = None
        prefilling = [s for s in self.running if s.pending > 1 and s.rank <= sequence.rank]
        if not prefilling:
            return False
        known = self._cache.matched_tokens(sequence.ids, sequence.scopes, sequence.known_end)
        end = (known // self._capacity.block_tokens + 1) * self._capacity.block_tokens
        for other in prefilling:
            if other.will_write(end) and sequence.has_path_of(other, end):
                sequence.held_until = (other, end)
                return True
        return False
