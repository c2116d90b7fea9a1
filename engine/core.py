"""Plan and commit: joins the scheduler, the cache and whatever carries out a step.

Knows jobs, blocks and steps; knows no torch, no clock (`now` is an argument, in seconds), no loop
and no text. One driver calls it from one thread:

    submit, cancel, stop, lease     at any time
    arrived                         at any time: a transfer between tiers is over
    plan(now)                       the order for one step, or None: nothing to do
    commit(result, now)             what came of it; the next plan is made after this

Events gather in order. `commit` hands over all that gathered; after any other call
`take_events` does the same (a job cancelled between two steps ends there and then).
"""

import hashlib
from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec

from engine.api import (
    CacheSource,
    Cancelled,
    FinishReason,
    Forget,
    Job,
    JobClass,
    JobId,
    LeaseState,
    Limits,
    SessionId,
    Started,
    Subject,
    Warm,
    Wish,
    Withdraw,
    Zone,
)
from engine.errors import Corrupt, InvalidJob, Refused
from engine.figures import CacheChange, CacheEvent, CacheSnapshot, Stats
from engine.kv.cache import Cache, lease_key
from engine.kv.misses import Fingerprints, Lookup, explain
from engine.outcome import CoreEvent, Emitted, Ended
from engine.parts import CoreConfig, new_cache
from engine.receipts import Totals, Work, write_receipt
from engine.scheduler import Capacity, Scheduler
from engine.sequence import Bounds, Ending, Sequence, misled, overloaded, validate
from engine.step import Arrival, DrawnToken, Plan, RunResult, SegmentHead, StepResult

NO_ROOM = overloaded("titles, summaries and drafts take only memory that is spare: too little is")
CROWDED = overloaded("the queue is full, and of all who wait this owner has most in it")


class Flight(msgspec.Struct, frozen=True, kw_only=True):
    """A step that was planned and is not committed: how many ids each sequence computes."""

    step: int
    shares: dict[Sequence, int]
    planned_s: float


class Core:
    """The deciding half of an engine.

    `cache` None: a new radix cache of the config's sizes. `meter` returns seconds and only
    measures the cache's own work.
    """

    def __init__(
        self,
        config: CoreConfig,
        *,
        cache: Cache | None = None,
        meter: Callable[[], float] = float,
    ) -> None:
        self.config = config
        self._cache = cache or new_cache(config, meter)
        self._scheduler = Scheduler(
            self._cache,
            Capacity(
                block_tokens=config.block_tokens,
                step_tokens=config.step_tokens,
                max_running=config.max_running,
                max_waiting=config.max_waiting,
            ),
        )
        self._fingerprints = Fingerprints(
            model_fingerprint=config.model_fingerprint,
            template_fingerprint=config.template_fingerprint,
            boot_id=config.boot_id,
        )
        self._bounds = Bounds(
            limit_tokens=min(config.context_tokens, config.pool_blocks * config.block_tokens),
            vocabulary_tokens=config.vocabulary_tokens,
            eos_token_ids=config.eos_token_ids,
            canonical_tokens=config.canonical_tokens,
        )
        self._sequences: dict[JobId, Sequence] = {}
        self._events: list[CoreEvent] = []
        self._flight: Flight | None = None
        self._totals = Totals(self._cache)
        self._step = 0
        self._step_s = 0.0
        self._seeds = self._warmed = 0
        self._own_jobs: set[JobId] = set()

    # ------------------------------------------------------------ jobs

    @property
    def is_idle(self) -> bool:
        """Nothing runs, waits, is in flight or has to be wiped."""
        return not (self._sequences or self._flight or self._cache.wipes_wait)

    def submit(self, job: Job, now: float) -> None:
        """Queue a job. Raises `InvalidJob`, `PromptTooLong` or `Overloaded`, nothing half-done."""
        try:
            self._sequences[job.job_id] = self._queue(job, now)
        except Refused:
            self._totals.refuse()
            raise

    def cancel(self, job_id: JobId, now: float) -> Cancelled:
        """Stop a job in any state; idempotent. A job in flight ends with the commit of its step.

        What it drew in that step is not emitted any more.
        """
        sequence = self._sequences.get(job_id)
        if sequence is None:
            return Cancelled(job_id=job_id, step=None)
        self._end_soon(sequence, Ending(reason=FinishReason.CANCELLED), now)
        return Cancelled(job_id=job_id, step=self._step)

    def stop(self, job_id: JobId, kept: tuple[int, ...], now: float) -> None:
        """End a job whose text is complete: of its output, resumed included, only `kept` counts.

        It may be shorter than what was drawn, and may end in ids that never were (the
        re-encoded rest of a token that a stop string cut in two). A job that has ended stays as
        it ended.
        """
        sequence = self._sequences.get(job_id)
        if sequence is not None:
            self._end_soon(sequence, Ending(reason=FinishReason.STOP, kept=kept), now)

    def take_events(self) -> list[CoreEvent]:
        """What happened since events were last handed over, in order."""
        events, self._events = self._events, []
        return events

    # ------------------------------------------------------------ steps

    def plan(self, now: float) -> Plan | None:
        """The order for the next step; None: nothing to do. The last plan must be committed."""
        assert self._flight is None
        self._cache.expire(now)
        shares = self._schedule(now)
        wipes, transfers = self._cache.take_wipes(), self._cache.take_transfers()
        if not (shares or wipes or transfers):
            return None
        self._step += 1
        self._flight = Flight(step=self._step, shares=shares, planned_s=now)
        copies = [s.holding.copy for s in shares if s.holding is not None]
        return Plan(
            step=self._step,
            copies=tuple(copy for copy in copies if copy is not None),
            runs=tuple(sequence.run(count) for sequence, count in shares.items()),
            wipes=wipes,
            transfers=transfers,
        )

    def commit(self, result: StepResult, now: float) -> list[CoreEvent]:
        """Book a step's outcome, publish what it wrote, end what is over.

        Raises `Corrupt` when the result is not that of the planned step.
        """
        flight = self._flight
        if flight is None or flight.step != result.step or len(result.runs) != len(flight.shares):
            raise Corrupt(f"the result of step {result.step} is not that of the planned step")
        self._flight = None
        self._step_s += now - flight.planned_s
        spans = [(s.written, s.written + count) for s, count in flight.shares.items()]
        self._cache.learn_speed(spans, now - flight.planned_s)
        for (sequence, count), run in zip(flight.shares.items(), result.runs, strict=True):
            self._advance(sequence, count, run, now)
        if self.config.checks:
            self.check()
        return self.take_events()

    # ------------------------------------------------------------ lower tiers

    @property
    def is_moving(self) -> bool:
        """Whether transfers are under way, or wait for their turn."""
        return self._cache.parking.is_busy

    def load(self, heads: Iterable[SegmentHead], *, refused: int = 0) -> None:
        """Take over what an earlier life left on disk, longest unused first.

        `refused` is how many segments were found there and deleted: nobody knows of which tokens.
        """
        for _ in range(refused):
            self._cache.journal.note(CacheChange.DAMAGED, None, 0)
        self._cache.tiers.load(heads)

    def arrived(self, arrival: Arrival) -> None:
        """A transfer is over; who waited for it to be restored runs from the next plan on."""
        holding = self._cache.arrived(arrival)
        if holding is not None:
            self._scheduler.resume(holding)

    def close(self) -> None:
        """Have whatever is leased parked; plans follow until nothing moves any more."""
        self._cache.park_everything()

    # ------------------------------------------------------------ subjects and figures

    def lease(self, subject: Subject, wish: Wish, now: float) -> LeaseState:
        """Carry out a wish. What still runs of a forgotten subject publishes nothing any more."""
        own = [s for s in self._sequences.values() if s.belongs_to(subject)]
        if isinstance(wish, Withdraw):
            own = [s for s in own if s.job.job_class is JobClass.DRAFT]
        if isinstance(wish, Forget | Withdraw):
            for sequence in own:
                sequence.forgotten = True
            self._totals.drafts.forget(subject)
        if isinstance(wish, Warm) and all(sequence.is_throwaway for sequence in own):
            self._warm(subject, now)
        return self._cache.lease(subject, wish, now, [s.holding for s in own if s.holding])

    def stats(self) -> Stats:
        work = Work(
            boot_id=self.config.boot_id,
            steps=self._step,
            step_s=self._step_s,
            running_jobs=len(self._scheduler.running),
            waiting_jobs=len(self._scheduler.waiting),
            preemptions=self._scheduler.preemptions,
        )
        return self._totals.stats(work)

    def snapshot(self, now: float, *, tree: bool = True) -> CacheSnapshot:
        """Sessions, and with `tree` prefix entries: sizes, never ids."""
        return self._cache.snapshot(now, tree=tree)

    def cache_events(self, after: int) -> list[CacheEvent]:
        """Cache events numbered above `after`, as far as they are remembered."""
        return self._cache.journal.after(after)

    def check(self) -> None:
        """Every invariant of the books. Raises `Corrupt`."""
        self._cache.check(s.holding for s in self._sequences.values() if s.holding is not None)

    # ------------------------------------------------------------ inside

    def _queue(self, job: Job, now: float) -> Sequence:
        if job.job_id in self._sequences:
            raise InvalidJob(f"job {job.job_id} is running already", field="job_id")
        validate(job, self._bounds)
        sequence = Sequence(job, self._bounds, seed=self._seed(job), now=now)
        crowded = self._scheduler.crowded_by(sequence)
        if crowded is not None:
            self._end(crowded, CROWDED, now)
        self._scheduler.add(sequence)
        return sequence

    def _warm(self, subject: Subject, now: float) -> None:
        """Ask for the longest path of the subject that lies below, as if it were a turn's."""
        path = self._cache.parked(lease_key(subject.owner_id, SessionId(subject.subject_id)))
        if path is None:
            return
        ids, scopes = path
        self._warmed += 1
        job = Job(
            job_id=JobId(f"{self.config.boot_id}/warm-{self._warmed}"),
            owner_id=subject.owner_id,
            session_id=SessionId(subject.subject_id),
            token_ids=tuple(ids),
            zones=tuple(
                Zone(scope=scope, source=CacheSource.SESSION, end=end) for scope, end in scopes
            ),
            limits=Limits(max_output_tokens=0),
            job_class=JobClass.BACKGROUND,
        )
        with suppress(Refused):
            self._sequences[job.job_id] = self._queue(job, now)
            self._own_jobs.add(job.job_id)

    def _schedule(self, now: float) -> dict[Sequence, int]:
        while True:
            step = self._scheduler.schedule(now)
            for sequence in step.refused:
                self._end(sequence, NO_ROOM, now)
            for sequence in step.admitted:
                self._start(sequence, now)
            over = [s for s in step.admitted if s.is_complete]
            for sequence in over:
                step.shares.pop(sequence, None)
                ending = sequence.ended_by_itself()
                assert ending is not None
                self._end(sequence, ending, now)
            # Those made room; with nothing else to run, look again who waits.
            if step.shares or not (over or step.refused):
                return step.shares

    def _start(self, sequence: Sequence, now: float) -> None:
        """Book what was cached; at the first admission, say so and find out why not more."""
        holding, job = sequence.holding, sequence.job
        assert holding is not None
        end = min(holding.cached, sequence.prompt_tokens)
        sequence.progress.find(end, restored=holding.restored)
        if sequence.times.admitted_s is not None:
            return
        sequence.times.admitted_s = now
        cached_tokens = sequence.progress.cached_tokens
        self._totals.drafts.settle(sequence, cached_tokens)
        sequence.miss = explain(
            job.history,
            Lookup(
                token_ids=job.token_ids,
                cached_tokens=cached_tokens,
                unused_tokens=self.config.unused_tokens,
                fingerprints=self._fingerprints,
                loss=self._cache.loss(sequence.key),
            ),
        )
        self._events.append(
            Started(
                job_id=job.job_id,
                prompt_tokens=sequence.prompt_tokens,
                cached_tokens=cached_tokens,
            )
        )

    def _advance(self, sequence: Sequence, count: int, run: RunResult, now: float) -> None:
        holding = sequence.holding
        assert holding is not None
        self._cache.copied(holding)
        sequence.written += count
        sequence.progress.compute(min(sequence.written, sequence.prompt_tokens))
        if not sequence.forgotten:
            self._cache.publish(holding, sequence.ids, sequence.publishable)
        if sequence.times.prefilled_s is None and sequence.pending == 0:
            sequence.times.prefilled_s = now
        ending = sequence.ending
        if ending is None and run.fault is not None:
            ending = misled(run.fault)
        elif ending is None and sequence.pending == 0:
            self._take(sequence, run.drawn, now)
            ending = sequence.ended_by_itself()
        if ending is not None:
            self._end(sequence, ending, now)

    def _take(self, sequence: Sequence, drawn: tuple[DrawnToken, ...], now: float) -> None:
        if len(drawn) != (0 if sequence.is_warm_up else 1):
            raise Corrupt(f"job {sequence.job.job_id} drew {len(drawn)} tokens")
        if not drawn:
            return
        sequence.append(drawn[0].token_id)
        self._events.append(Emitted(job_id=sequence.job.job_id, drawn=drawn))
        if sequence.times.first_token_s is None:
            sequence.times.first_token_s = now

    def _end_soon(self, sequence: Sequence, ending: Ending, now: float) -> None:
        """Now, or where a step in flight still writes into its blocks, with that step's commit."""
        if self._flight is not None and sequence in self._flight.shares:
            sequence.ending = sequence.ending or ending
        else:
            self._end(sequence, ending, now)

    def _end(self, sequence: Sequence, ending: Ending, now: float) -> None:
        job_id = sequence.job.job_id
        kept = tuple(sequence.output) if ending.kept is None else ending.kept
        sequence.ending = ending
        if sequence.holding is not None:
            sequence.give_back(self._cache, now)
        self._scheduler.remove(sequence)
        del self._sequences[job_id]
        receipt = write_receipt(sequence, self._fingerprints, len(kept), now)
        if job_id in self._own_jobs:
            self._own_jobs.remove(job_id)
        else:
            self._totals.add(sequence, ending.reason, receipt)
        self._events.append(
            Ended(
                job_id=job_id,
                reason=ending.reason,
                token_ids=kept,
                seam=ending.seam,
                receipt=receipt,
                refusal=ending.refusal,
            )
        )

    def _seed(self, job: Job) -> int:
        """The job's own, else one that no other job of this boot shares."""
        if job.sampling.seed is not None:
            return job.sampling.seed
        self._seeds += 1
        digest = hashlib.sha256(f"{self.config.boot_id}/{self._seeds}".encode()).digest()
        return int.from_bytes(digest[:8], "little") >> 1
