"""A core and a paper model at one desk: submit, step, and what came of every job.

Builders for jobs are here as well, so that a test says only what it is about.
"""

import random
from collections.abc import Callable, Sequence
from itertools import count

import msgspec

from engine.api import (
    OPERATOR_SCOPE,
    CacheSource,
    Cancelled,
    FinishReason,
    History,
    Job,
    JobClass,
    JobId,
    Limits,
    OwnerId,
    Receipt,
    Scope,
    Seam,
    SessionId,
    Started,
    Zone,
)
from engine.core import Core
from engine.kv.cache import Cache
from engine.outcome import CoreEvent, Emitted, Ended
from engine.parts import CoreConfig
from tests.kit.paper import EOS_TOKEN_ID, VOCABULARY_TOKENS, PaperModel

ANN, BEN = OwnerId("ann"), OwnerId("ben")


def config(**changes: object) -> CoreConfig:
    """A small engine with every check on."""
    values: dict[str, object] = {
        "block_tokens": 16,
        "pool_blocks": 64,
        "context_tokens": 512,
        "step_tokens": 64,
        "max_running": 8,
        "max_waiting": 64,
        "eos_token_ids": (EOS_TOKEN_ID,),
        "model_fingerprint": "paper",
        "template_fingerprint": "plain",
        "boot_id": "boot",
        "vocabulary_tokens": VOCABULARY_TOKENS,
        "checks": True,
    }
    return CoreConfig(**(values | changes))  # type: ignore[arg-type]


def user_scope(owner_id: OwnerId) -> Scope:
    return Scope(f"user:{owner_id}")


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """A job that ran and ended, with its receipt."""

    reason: FinishReason
    token_ids: tuple[int, ...]
    seam: Seam
    receipt: Receipt


def seeded(seed: int) -> random.Random:
    """Chance that repeats: the same seed, the same life."""
    return random.Random(seed)  # noqa: S311


class Desk:
    """Drives a core with a paper model, and keeps what every job said."""

    def __init__(self, core_config: CoreConfig | None = None, cache: Cache | None = None) -> None:
        self.config = core_config or config()
        self.core = Core(self.config, cache=cache)
        self.paper = PaperModel(self.config.pool_blocks, self.config.block_tokens)
        self.now = 0.0
        self.jobs: dict[JobId, Job] = {}
        self.started: dict[JobId, Started] = {}
        self.emitted: dict[JobId, list[int]] = {}
        self.ended: dict[JobId, Ended] = {}
        self._numbers = count(1)

    def job(
        self,
        token_ids: Sequence[int],
        *,
        owner_id: OwnerId = ANN,
        session: str | None = None,
        shared: int = 0,
        output: int | None = 4,
        history: History | None = None,
        job_class: JobClass = JobClass.INTERACTIVE,
        limits: Limits | None = None,
        resumed: Sequence[int] = (),
    ) -> Job:
        """A job whose first `shared` tokens are the operator's persona, the rest its owner's."""
        end = len(token_ids)
        own = Zone(scope=user_scope(owner_id), source=CacheSource.SESSION, end=end)
        persona = Zone(scope=OPERATOR_SCOPE, source=CacheSource.PERSONA, end=shared)
        return Job(
            job_id=JobId(f"job-{next(self._numbers)}"),
            owner_id=owner_id,
            token_ids=tuple(token_ids),
            zones=(persona, own) if shared else (own,),
            session_id=None if session is None else SessionId(session),
            limits=limits or Limits(max_output_tokens=output, ignore_eos=True),
            job_class=job_class,
            history=history,
            resumed_output=tuple(resumed),
        )

    def history(self, done: Ended | Turn, job: Job, *, head_end: int = 0) -> History:
        """What a turn that follows `done` says of it."""
        return History(
            token_ids=(*job.token_ids, *done.token_ids),
            model_fingerprint=self.config.model_fingerprint,
            template_fingerprint=self.config.template_fingerprint,
            boot_id=self.config.boot_id,
            head_end=head_end,
        )

    def submit(self, job: Job) -> Job:
        self.jobs[job.job_id] = job
        self.core.submit(job, self.now)
        self.paper.learn(job)
        return job

    def step(self, meanwhile: Callable[[Core], object] = id) -> bool:
        """One plan, run, commit; False when there was nothing to do.

        `meanwhile` happens while the step is in flight, or in its stead.
        """
        self.now += 1.0
        plan = self.core.plan(self.now)
        self._book(self.core.take_events())
        for sequence in self.core._scheduler.running:
            # The core has jobs of its own: what is wished back from a lower tier.
            self.paper.learn_of(sequence.job)
        handle = None if plan is None else self.paper.launch(plan)
        meanwhile(self.core)
        self._book(self.core.take_events())
        if handle is None:
            return False
        result = self.paper.collect(handle)
        self._book(self.core.commit(result, self.now + 0.5))
        return True

    def arrive(self, at: int = 0, *, pieces: int | None = None) -> None:
        """One transfer is over."""
        self.core.arrived(self.paper.arrive(at, pieces=pieces))
        self._book(self.core.take_events())

    def cancel(self, job: Job) -> Cancelled:
        cancelled = self.core.cancel(job.job_id, self.now)
        self._book(self.core.take_events())
        return cancelled

    def stop(self, job: Job, kept: Sequence[int]) -> None:
        self.core.stop(job.job_id, tuple(kept), self.now)
        self._book(self.core.take_events())

    def finish(self, job: Job, steps: int = 1000) -> Turn:
        """Step until the job has ended."""
        for _ in range(steps):
            if job.job_id in self.ended:
                break
            if not self.step():
                if not self.paper.moving:
                    break
                self.arrive()
        ended = self.ended[job.job_id]
        return Turn(
            reason=ended.reason,
            token_ids=ended.token_ids,
            seam=ended.seam,
            receipt=self.receipt(job),
        )

    def receipt(self, job: Job) -> Receipt:
        """What the job cost; it must have ended and been admitted."""
        receipt = self.ended[job.job_id].receipt
        assert receipt is not None
        return receipt

    def run(self, job: Job) -> Turn:
        return self.finish(self.submit(job))

    def drain(self, steps: int = 10_000) -> None:
        """Step until nothing is left to do."""
        for _ in range(steps):
            if self.step():
                continue
            if not self.paper.moving:
                return
            self.arrive()
        raise AssertionError(f"still busy after {steps} steps")

    def _book(self, events: Sequence[CoreEvent]) -> None:
        for event in events:
            assert event.job_id not in self.ended, "an event after the last one"
            match event:
                case Started():
                    self.started[event.job_id] = event
                case Emitted():
                    said = self.emitted.setdefault(event.job_id, [])
                    said += [token.token_id for token in event.drawn]
                case Ended():
                    self.ended[event.job_id] = event
