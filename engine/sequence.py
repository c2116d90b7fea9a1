"""One running job: its ids, its blocks, how far it is, and when it is over.

Knows its own job only: neither who else runs nor how a token is chosen. Its road:

    waiting -> running -> ended
       | ^        | ^
       | +--------+ |   preempted: it gave its blocks back and will take up where it was
       +-> restoring    its blocks are being read from a lower tier
"""

import enum
from array import array

import msgspec

from engine.api import FinishReason, Job, JobClass, OwnerId, Refusal, Seam, Subject, SubjectKind
from engine.errors import InvalidGrammar, InvalidJob, Overloaded, PromptTooLong
from engine.kv.cache import Cache, lease_key
from engine.kv.holding import Closing, Holding
from engine.kv.misses import Miss
from engine.kv.prefix import Ids, Scopes, scopes_of
from engine.step import Draw, Run

RANKS = {JobClass.INTERACTIVE: 0, JobClass.BACKGROUND: 1, JobClass.DRAFT: 2}
"""The scheduler's order of job classes: a lower rank goes first."""

RETRY_AFTER_S = 1.0
"""When whoever found the engine overloaded may try again."""

THROWAWAY = len(RANKS)
"""What a throw-away branch counts as where blocks or seats are short: weaker than every class."""

UNSTATED_REPLY_TOKENS = 2048
"""The worst case of a reply that has no limit but the context: none in the Mooncake trace is
longer. One that is takes what is there, in the end from the weakest."""


class Status(enum.Enum):
    WAITING = "waiting"
    RESTORING = "restoring"
    RUNNING = "running"
    ENDED = "ended"


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for every sequence. `limit_tokens`: the context's limit or the whole pool's."""

    limit_tokens: int
    vocabulary_tokens: int
    eos_token_ids: tuple[int, ...]
    canonical_tokens: int = 0
    """Not 0: how a sequence is cut into passes depends on nothing but its ids, see `piece`."""


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a sequence ends. `kept` None: all of its output, else the part that counts."""

    reason: FinishReason
    seam: Seam = Seam.CUT
    kept: tuple[int, ...] | None = None
    refusal: Refusal | None = None


def overloaded(words: str) -> Ending:
    """The end of a sequence that has to leave its place to others."""
    refusal = Refusal(code=Overloaded.code, message=words, retry_after_s=RETRY_AFTER_S)
    return Ending(reason=FinishReason.REFUSED, refusal=refusal)


def misled(fault: str) -> Ending:
    """The end of a sequence whose grammar leads nowhere."""
    refusal = Refusal(code=InvalidGrammar.code, message=fault, field="grammar")
    return Ending(reason=FinishReason.REFUSED, refusal=refusal)


class Times:
    """When things happened, on the engine's clock; None: not yet."""

    __slots__ = ("admitted_s", "first_token_s", "prefilled_s", "submitted_s")

    def __init__(self, submitted_s: float) -> None:
        self.submitted_s = submitted_s
        self.admitted_s: float | None = None
        self.prefilled_s: float | None = None
        self.first_token_s: float | None = None


class Progress:
    """How far a prompt has got: `found` are the spans that were cached when they were needed.

    `restored_tokens` of them came back from a lower tier for it. Each token counts once, however often its sequence is preempted and starts again.
    """

    __slots__ = ("found", "reached", "restored_tokens")

    def __init__(self) -> None:
        self.restored_tokens = 0
        self.found: list[tuple[int, int]] = []
        self.reached = 0

    @property
    def cached_tokens(self) -> int:
        return sum(end - start for start, end in self.found)

    def find(self, end: int, *, restored: int | None = None) -> None:
        """The cache has `[0, end)`, from `restored` on only since just now."""
        if end > self.reached:
            if restored is not None:
                self.restored_tokens += end - min(end, max(self.reached, restored))
            self.found.append((self.reached, end))
            self.reached = end

    def compute(self, end: int) -> None:
        """What was missing of `[0, end)` is computed."""
        self.reached = max(self.reached, end)


class Sequence:
    """A job once the scheduler holds it.

    `ids` are prompt and output; `[0, written)` of them have committed KV. The reply is full at
    `end` ids. `arrival` orders what waits, `turn` what runs. `progress` is the prompt's, `miss` that
    of the first admission. `ending` was asked for while a step was in flight and waits for its commit.

    A throw-away branch (a title, a summary) reads what its session has cached and leaves nothing.
    Where it or a draft has no room it is put off until one of `waits_for` has gone, and refused once all
    of `patience` have.
    """

    __slots__ = (
        "arrival",
        "canonical_tokens",
        "end",
        "ending",
        "eos_token_ids",
        "forgotten",
        "held_until",
        "holding",
        "ids",
        "is_throwaway",
        "job",
        "key",
        "miss",
        "output",
        "patience",
        "progress",
        "rank",
        "scopes",
        "seed",
        "status",
        "strength",
        "times",
        "turn",
        "waits_for",
        "written",
    )

    def __init__(self, job: Job, bounds: Bounds, *, seed: int, now: float) -> None:
        self.job = job
        self.key = lease_key(job.owner_id, job.session_id)
        self.rank = RANKS[job.job_class]
        self.is_throwaway = job.job_class is JobClass.BACKGROUND and not self.is_warm_up
        self.strength = THROWAWAY if self.is_throwaway else self.rank
        self.scopes = scopes_of(job.zones)
        self.ids: Ids = array("I", job.token_ids)
        self.output: Ids = array("I", job.resumed_output)
        self.ids.extend(self.output)
        self.end = reply_end(job, bounds)
        self.eos_token_ids = bounds.eos_token_ids
        self.canonical_tokens = bounds.canonical_tokens
        self.seed = seed
        self.status = Status.WAITING
        self.arrival = 0
        self.turn = 0
        self.written = 0
        self.holding: Holding | None = None
        self.held_until: tuple[Sequence, int] | None = None
        self.waits_for: frozenset[Sequence] = frozenset()
        self.patience: frozenset[Sequence] | None = None
        self.ending: Ending | None = None
        self.forgotten = False
        self.times = Times(now)
        self.progress = Progress()
        self.miss = Miss(reason=None, differs_at=None)

    @property
    def owner_id(self) -> OwnerId:
        return self.job.owner_id

    @property
    def is_stopped(self) -> bool:
        return self.ending is not None and self.ending.reason is FinishReason.CANCELLED

    @property
    def is_modest(self) -> bool:
        """It takes only room that is spare."""
        return self.is_throwaway or self.job.job_class is JobClass.DRAFT

    @property
    def is_seated(self) -> bool:
        return self.status in (Status.RUNNING, Status.RESTORING)

    @property
    def is_put_off(self) -> bool:
        """Nobody has gone since it had no room."""
        return bool(self.waits_for) and all(other.is_seated for other in self.waits_for)

    @property
    def prompt_tokens(self) -> int:
        return len(self.job.token_ids)

    @property
    def is_warm_up(self) -> bool:
        return self.job.limits.max_output_tokens == 0

    @property
    def pending(self) -> int:
        """Known ids without KV: 1 when it decodes, more while it prefills."""
        return len(self.ids) - self.written

    @property
    def worst_case_tokens(self) -> int:
        """What its reply may still take, and what a seat comes with room for."""
        left = self.end - len(self.ids)
        stated = self.job.limits.max_output_tokens is not None
        return left if stated else min(left, UNSTATED_REPLY_TOKENS)

    @property
    def known_end(self) -> int:
        """How far a match may reach: the last id is computed, unless nobody wants its logits."""
        return len(self.ids) if self.ended_by_itself() else len(self.ids) - 1

    @property
    def is_complete(self) -> bool:
        """Nothing is left to compute: a cached warm-up, or a resumed reply that was at its end."""
        return self.ended_by_itself() is not None and not (self.is_warm_up and self.pending)

    @property
    def piece(self) -> int:
        """How many ids its next pass computes where passes are canonical.

        A prompt is cut at multiples of `canonical_tokens`; each token of a reply is a pass of its
        own, also where it is computed again.
        """
        if self.written >= self.prompt_tokens:
            return 1
        border = (self.written // self.canonical_tokens + 1) * self.canonical_tokens
        return min(border, self.prompt_tokens) - self.written

    @property
    def publishable(self) -> int:
        """Of what is written, how much others may go on from.

        Where passes are canonical: whole pieces of the prompt. The rest was computed in a shorter
        pass than the one in which a longer prompt would compute it.
        """
        if self.is_throwaway:
            return 0
        if not self.canonical_tokens:
            return self.written
        prompt = min(self.written, self.prompt_tokens)
        return prompt - prompt % self.canonical_tokens

    def run(self, count: int) -> Run:
        """The order to compute the next `count` ids, and to draw after the last known one."""
        assert self.holding is not None
        end = self.written + count
        draws = end == len(self.ids) and not self.is_warm_up
        return Run(
            job_id=self.job.job_id,
            token_ids=self.ids[self.written : end],
            start=self.written,
            block_table=self.holding.table,
            draw=self._draw() if draws else None,
        )

    def acquire(self, cache: Cache, now: float) -> Holding | None:
        """Blocks for what it has to compute; None: no room for it now."""
        ahead = self.worst_case_tokens
        if self.is_throwaway:
            known_end = self.known_end
            return cache.branch(
                self.ids, self.scopes, known_end=known_end, ahead=ahead, key=self.key
            )
        return cache.acquire(
            self.ids,
            self.scopes,
            known_end=self.known_end,
            now=now,
            ahead=ahead,
            is_draft=self.job.job_class is JobClass.DRAFT,
        )

    def give_back(self, cache: Cache, now: float) -> None:
        """It holds no blocks any more; what is written in them is published, or forgotten."""
        assert self.holding is not None
        if self.forgotten or self.is_throwaway:
            cache.discard(self.holding)
        elif self.job.job_class is JobClass.DRAFT:
            cache.orphan(self.holding, self.ids, self.publishable, key=self.key, now=now)
        else:
            self.holding.closing = Closing(
                durable=self.job.durable, stopped=self.is_stopped, counted=not self.is_warm_up
            )
            cache.release(self.holding, self.ids, self.publishable, key=self.key, now=now)
        self.holding = None

    def append(self, token_id: int) -> None:
        self.ids.append(token_id)
        self.output.append(token_id)

    def ended_by_itself(self) -> Ending | None:
        """How it ends, if its ids so far say that it does (KV of a warm-up still to come)."""
        last = len(self.output) - 1
        if last >= 0 and self.output[last] in self.eos_token_ids and self._may_end(last):
            return Ending(reason=FinishReason.STOP, seam=Seam.STOPPED)
        if len(self.ids) >= self.end:
            return Ending(reason=FinishReason.LENGTH)
        return None

    def belongs_to(self, subject: Subject) -> bool:
        whole = subject.kind is SubjectKind.OWNER
        return self.owner_id == subject.owner_id and (whole or self.key[1] == subject.subject_id)

    def will_write(self, end: int) -> bool:
        """Whether it prefills, and is going to publish a block that ends at `end`."""
        return (
            self.status is Status.RUNNING
            and not (self.forgotten or self.is_throwaway)
            and self.written < end <= self.written + self.pending
        )

    def has_path_of(self, other: "Sequence", end: int) -> bool:
        """Whether both have the same ids in the same scopes up to `end`."""
        return (
            end <= len(self.ids)
            and self.ids[:end] == other.ids[:end]
            and _scopes_to(self.scopes, end) == _scopes_to(other.scopes, end)
        )

    def _draw(self) -> Draw:
        return Draw(
            sampling=self.job.sampling,
            seed=self.seed,
            prompt_ids=self.ids[: len(self.job.token_ids)],
            output_ids=self.ids[len(self.job.token_ids) :],
            banned_ids=self.eos_token_ids if self._bans_eos(len(self.output)) else (),
            grammar=self.job.grammar,
        )

    def _may_end(self, drawn: int) -> bool:
        """By a grammar an end that is banned is drawn only where nothing else can come."""
        return self.job.grammar is not None or not self._bans_eos(drawn)

    def _bans_eos(self, drawn: int) -> bool:
        limits = self.job.limits
        return limits.ignore_eos or drawn < limits.min_output_tokens


def reply_end(job: Job, bounds: Bounds) -> int:
    """At how many ids the reply is full."""
    output = job.limits.max_output_tokens
    if output is None:
        return bounds.limit_tokens
    return min(bounds.limit_tokens, len(job.token_ids) + output)


def validate(job: Job, bounds: Bounds) -> None:
    """Raises `InvalidJob` for what no engine could run, `PromptTooLong` for what this one cannot.

    A prompt must leave room for one token of its reply, where it wants one.
    """
    ids = (*job.token_ids, *job.resumed_output)
    ends = [zone.end for zone in job.zones]
    if not job.token_ids:
        raise InvalidJob("the prompt is empty", field="token_ids")
    if min(ids) < 0 or max(ids) >= bounds.vocabulary_tokens:
        raise InvalidJob("a token id is out of the model's range", field="token_ids")
    if not ends or ends != sorted(ends) or ends[0] < 0 or ends[-1] != len(job.token_ids):
        raise InvalidJob("zones do not cover the prompt in order", field="zones")
    if (job.limits.max_output_tokens or 0) < 0 or job.limits.min_output_tokens < 0:
        raise InvalidJob("a reply cannot have a negative length", field="limits")
    reply = 0 if job.limits.max_output_tokens == 0 else 1
    needed = len(job.token_ids) + max(reply, len(job.resumed_output))
    if needed > bounds.limit_tokens:
        raise PromptTooLong(
            f"the prompt and what follows it are {needed} tokens, {bounds.limit_tokens} fit",
            needed_tokens=needed,
            limit_tokens=bounds.limit_tokens,
        )


def _scopes_to(scopes: Scopes, end: int) -> Scopes:
    starts = [0, *(scope_end for _, scope_end in scopes[:-1])]
    return tuple(
        (scope, min(scope_end, end))
        for start, (scope, scope_end) in zip(starts, scopes, strict=True)
        if start < end
    )
