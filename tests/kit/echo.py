"""A tiny engine for tests of the domain: no model, every moment under the test's hand.

It keeps the `Engine` contract exactly: ids in, ids and text out, receipts that sum up. A message is
rendered as one opening id, one id a character and one closing id; a reply is a function of the
prompt's ids alone. A job moves in beats: one to start, one for each token. `hold()` stops all of them
before their next beat, until `release()`.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator

import msgspec

from engine.api import (
    OPERATOR_SCOPE,
    CachedBySource,
    CacheEvent,
    CacheSnapshot,
    CallForm,
    Cancelled,
    Delta,
    Finished,
    FinishReason,
    Forget,
    Job,
    JobClass,
    JobEvent,
    JobId,
    LeaseState,
    MissReason,
    ModelCard,
    OwnerId,
    Park,
    Receipt,
    Refusal,
    Rendered,
    RenderRequest,
    RetentionClass,
    Role,
    Scope,
    Seam,
    SessionId,
    Stability,
    Started,
    Stats,
    Subject,
    SubjectKind,
    TemplateFinding,
    Warm,
    Wish,
)
from engine.core import Core
from engine.errors import EngineClosed
from engine.figures import BlockCounts, CacheChange, PrefixNode, SessionView
from engine.parts import CoreConfig

BOS, END = 1, 2
OPEN = {Role.SYSTEM: 3, Role.USER: 4, Role.ASSISTANT: 5, Role.TOOL: 6}
FIRST_CHARACTER = 16
REPLY_TOKENS = 8

CARD = ModelCard(
    name="echo",
    model_fingerprint="echo-model",
    template_fingerprint="echo-template",
    boot_id="boot-1",
    context_tokens=2_000,
    block_tokens=16,
    pool_blocks=1_000,
    kv_bytes_per_token=1,
    dtype="none",
    device="none",
    attention="none",
    vocabulary_tokens=1_114_112 + FIRST_CHARACTER,
    eos_token_ids=(END,),
    template=TemplateFinding(stability=Stability.STABLE),
)
CALL_FORM = CallForm(
    opening='<tool_call>\n{"name": "',
    middle='", "arguments": ',
    closing="}\n</tool_call>",
    separator="\n",
)


def reply_ids(prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
    """`count` letters that depend on every id before them."""
    out: list[int] = []
    state = hash(prompt)
    for place in range(count):
        state = hash((state, place))
        out.append(FIRST_CHARACTER + ord("a") + state % 26)
    return tuple(out)


def ids_of(text: str) -> tuple[int, ...]:
    return tuple(FIRST_CHARACTER + ord(one) for one in text)


def text_of(token_ids: tuple[int, ...]) -> str:
    return "".join(chr(one - FIRST_CHARACTER) for one in token_ids if one >= FIRST_CHARACTER)


class EchoEngine:
    """One conversation partner without a model. `jobs` is everything that was ever submitted."""

    def __init__(self, card: ModelCard = CARD) -> None:
        self.card = card
        self.jobs: list[Job] = []
        self.rendered: list[RenderRequest] = []
        self.leases: list[tuple[Subject, Wish]] = []
        self.says: dict[JobClass, str] = {}
        """What jobs of a class answer, instead of letters."""
        self.fails_with: Exception | None = None
        self.refusal: Refusal | None = None
        self.misses: deque[tuple[MissReason, int | None]] = deque()
        """What the next receipts say of why, and where the prompt differed."""
        self.ends_after: int | None = None
        """Of how many tokens a reply ends by itself, where it may have more."""
        self.step = 0
        self.submitted = asyncio.Event()
        self._seen: list[tuple[int, ...]] = []
        self._cancelled: set[JobId] = set()
        self._running: set[JobId] = set()
        self._moved = asyncio.Event()
        self._beats: Counter[JobId] = Counter()
        self._allowed: int | None = None
        self._closed = False
        self._leased = asyncio.Event()
        self._cached: dict[tuple[OwnerId, SessionId], int] = {}
        self._parked: dict[tuple[OwnerId, SessionId], int] = {}
        self._events: list[CacheEvent] = []
        self._numbered = 0
        self._changed = asyncio.Event()

    # ------------------------------------------------------------ the test's hand

    def hold(self, after_beats: int = 0) -> None:
        """Let each job do `after_beats` beats in all, then wait."""
        self._allowed = after_beats

    def extend(self, after_beats: int) -> None:
        """As `hold`; those that wait go on to there."""
        self._allowed = after_beats
        self._wake()

    def release(self) -> None:
        """Let all jobs run to their ends."""
        self._allowed = None
        self._wake()

    def evict(self) -> None:
        """Nothing that was sent before is found any more."""
        self._seen.clear()

    def is_running(self, job_id: JobId) -> bool:
        return job_id in self._running

    async def told(self, wishes: int) -> None:
        """Until so many wishes have come."""
        while len(self.leases) < wishes:
            self._leased.clear()
            await self._leased.wait()

    def _wake(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    # ------------------------------------------------------------ the contract

    async def info(self) -> ModelCard:
        return self.card

    async def render(self, request: RenderRequest) -> Rendered:
        self.rendered.append(request)
        opening = {Seam.START: (BOS,), Seam.CLOSED: (), Seam.STOPPED: (), Seam.CUT: (END,)}
        ids = list(opening[request.seam])
        for function in request.tools:
            ids += [OPEN[Role.SYSTEM], *ids_of(function.name + function.parameters), END]
        opened = len(ids)
        ends = []
        for message in request.messages:
            ids += [OPEN[message.role], *(FIRST_CHARACTER + ord(c) for c in message.text), END]
            ends.append(len(ids))
        if request.opens_reply:
            ids.append(OPEN[Role.ASSISTANT])
        opening_end = opened if request.seam is Seam.START else 0
        return Rendered(token_ids=tuple(ids), ends=tuple(ends), opening_end=opening_end)

    async def generate(self, job: Job) -> AsyncGenerator[JobEvent, None]:
        if self._closed:
            raise EngineClosed("closed")
        self.jobs.append(job)
        self._running.add(job.job_id)
        self.submitted.set()
        try:
            async for event in self._answer(job):
                yield event
        finally:
            self._running.discard(job.job_id)

    async def _answer(self, job: Job) -> AsyncIterator[JobEvent]:
        if self.refusal is not None:
            yield Finished(
                job_id=job.job_id,
                reason=FinishReason.REFUSED,
                token_ids=(),
                text="",
                seam=Seam.CUT,
                refusal=self.refusal,
            )
            return
        cached = self._match(job.token_ids)
        if not await self._may_go(job):
            yield self._finished(job, FinishReason.CANCELLED, job.resumed_output, cached)
            return
        yield Started(job_id=job.job_id, prompt_tokens=len(job.token_ids), cached_tokens=cached)
        wanted = job.limits.max_output_tokens
        length = REPLY_TOKENS if wanted is None else wanted
        stopped = wanted is None
        if self.ends_after is not None and self.ends_after < length:
            length, stopped = self.ends_after, True
        room = self.card.context_tokens - len(job.token_ids)
        if length > room:
            length, stopped = room, False
        whole = reply_ids(job.token_ids, length)
        if job.job_class in self.says and wanted != 0:
            said = ids_of(self.says[job.job_class])
            stopped = wanted is None or len(said) < wanted
            whole = said[:wanted]
        sent = job.resumed_output
        for token_id in whole[len(sent) :]:
            if not await self._may_go(job):
                yield self._finished(job, FinishReason.CANCELLED, sent, cached)
                return
            if self.fails_with is not None:
                raise self.fails_with
            self.step += 1
            sent = (*sent, token_id)
            yield Delta(job_id=job.job_id, token_ids=(token_id,), text=text_of((token_id,)))
        reason = FinishReason.STOP if stopped else FinishReason.LENGTH
        yield self._finished(job, reason, (*sent, END) if stopped else sent, cached)

    async def _may_go(self, job: Job) -> bool:
        """Wait for the test's hand; False when the job was cancelled meanwhile."""
        while self._held(job.job_id) and job.job_id not in self._cancelled:
            await self._moved.wait()
        if job.job_id in self._cancelled:
            return False
        self._beats[job.job_id] += 1
        await asyncio.sleep(0)
        return True

    def _held(self, job_id: JobId) -> bool:
        return self._allowed is not None and self._beats[job_id] >= self._allowed

    def _match(self, prompt: tuple[int, ...]) -> int:
        lengths = [_common(prompt, one) for one in self._seen]
        return min(max(lengths, default=0), len(prompt) - 1)

    def _finished(
        self, job: Job, reason: FinishReason, token_ids: tuple[int, ...], cached: int
    ) -> Finished:
        self._seen.append((*job.token_ids, *token_ids))
        published = job.zones[-1].scope.startswith(OPERATOR_SCOPE)
        if job.session_id is not None and not published:
            self._cached[job.owner_id, job.session_id] = len(self._seen[-1])
            self.note(CacheChange.PUBLISHED, len(self._seen[-1]))
        seam = Seam.STOPPED if token_ids[-1:] == (END,) else Seam.CUT
        prompt = len(job.token_ids)
        miss_reason, differs_at = self.misses.popleft() if self.misses else (None, None)
        receipt = Receipt(
            prompt_tokens=prompt,
            cached_tokens=cached,
            computed_tokens=prompt - cached,
            output_tokens=len(token_ids),
            cached_by_source=CachedBySource(session=cached),
            miss_reason=miss_reason,
            differs_at=differs_at,
            queue_s=0.0,
            prefill_s=0.0,
            first_token_s=None,
            total_s=0.0,
            model_fingerprint=self.card.model_fingerprint,
            template_fingerprint=self.card.template_fingerprint,
            boot_id=self.card.boot_id,
        )
        return Finished(
            job_id=job.job_id,
            reason=reason,
            token_ids=token_ids,
            text="",
            seam=Seam.CLOSED if job.limits.max_output_tokens == 0 else seam,
            receipt=receipt,
        )

    async def cancel(self, job_id: JobId) -> Cancelled:
        if job_id not in self._running:
            return Cancelled(job_id=job_id, step=None)
        self._cancelled.add(job_id)
        self._wake()
        return Cancelled(job_id=job_id, step=self.step)

    async def lease(self, subject: Subject, wish: Wish) -> LeaseState:
        self.leases.append((subject, wish))
        self._leased.set()
        self._carry_out(subject, wish)
        return LeaseState(
            subject=subject,
            wished=RetentionClass.IDLE,
            retention=RetentionClass.IDLE,
            pinned_blocks=0,
            expires_s=None,
        )

    def _carry_out(self, subject: Subject, wish: Wish) -> None:
        """What is parked leaves the pool, and what is warmed comes back, all at once."""
        key = subject.owner_id, SessionId(subject.subject_id)
        match wish:
            case Forget() if subject.kind is SubjectKind.OWNER:
                for known in (self._cached, self._parked):
                    for one in [one for one in known if one[0] == subject.owner_id]:
                        del known[one]
            case Forget():
                self._cached.pop(key, None)
                self._parked.pop(key, None)
            case Park() if key in self._cached:
                self._parked[key] = self._cached.pop(key)
            case Warm() if key in self._parked:
                self._cached[key] = self._parked.pop(key)
            case _:
                return
        self.note(CacheChange.LEASED, 0)

    def note(self, kind: CacheChange, tokens: int, *, missing: int = 0) -> None:
        """Something happened in the cache; so many events before it are not told."""
        self._numbered += 1 + missing
        number = self._numbered
        self._events.append(
            CacheEvent(
                sequence_number=number, kind=kind, scope=None, tokens=tokens, blocks=self._blocks()
            )
        )
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _blocks(self) -> BlockCounts:
        cached = sum(-(-tokens // self.card.block_tokens) for tokens in self._cached.values())
        free = self.card.pool_blocks - cached
        return BlockCounts(in_use=0, copying=0, pinned=0, cached=cached, free=free)

    async def stats(self) -> Stats:
        return Core(a_config(self.card)).stats()

    async def snapshot(self, *, tree: bool = True) -> CacheSnapshot:
        keys = sorted({**self._cached, **self._parked})
        return CacheSnapshot(
            sequence_number=self._numbered,
            blocks=self._blocks(),
            pinned_blocks={},
            tiers=(),
            sessions=tuple(self._session(key) for key in keys),
            nodes=tuple(self._node(number, key) for number, key in enumerate(keys, 1) if tree),
        )

    def _session(self, key: tuple[OwnerId, SessionId]) -> SessionView:
        tokens = self._cached.get(key, 0)
        return SessionView(
            session_id=key[1],
            owner_id=key[0],
            wished=None,
            retention=RetentionClass.IDLE,
            expires_in_s=None,
            idle_s=0.0,
            cached_tokens=tokens,
            blocks=-(-tokens // self.card.block_tokens),
            disk_tokens=self._parked.get(key, 0),
        )

    def _node(self, number: int, key: tuple[OwnerId, SessionId]) -> PrefixNode:
        tokens = self._cached.get(key, 0)
        return PrefixNode(
            node_id=number,
            parent_id=None,
            scope=Scope(f"user:{key[0]}"),
            tokens=tokens,
            blocks=-(-tokens // self.card.block_tokens),
            in_use=False,
            retention=RetentionClass.IDLE,
            hits=0,
            paths=1,
            idle_s=0.0,
        )

    async def watch(self, after: int) -> AsyncIterator[CacheEvent]:
        while True:
            changed = self._changed
            for event in [one for one in self._events if one.sequence_number > after]:
                after = event.sequence_number
                yield event
            await changed.wait()

    async def aclose(self) -> None:
        self._closed = True


def _common(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    pairs = zip(left, right, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def a_config(card: ModelCard) -> CoreConfig:
    """As much of a core as is needed to have its figures."""
    return CoreConfig(
        block_tokens=card.block_tokens,
        pool_blocks=1,
        context_tokens=card.context_tokens,
        step_tokens=1,
        max_running=1,
        max_waiting=1,
        eos_token_ids=card.eos_token_ids,
        model_fingerprint=card.model_fingerprint,
        template_fingerprint=card.template_fingerprint,
        boot_id=card.boot_id,
        vocabulary_tokens=card.vocabulary_tokens,
    )


def with_calls() -> ModelCard:
    """Of a model whose template writes calls between marks."""
    template = TemplateFinding(stability=Stability.STABLE, calls=CALL_FORM)
    return msgspec.structs.replace(CARD, template=template)


def with_template(stable: bool) -> ModelCard:
    stability = Stability.STABLE if stable else Stability.UNSTABLE
    return msgspec.structs.replace(CARD, template=TemplateFinding(stability=stability))
