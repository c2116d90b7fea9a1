"""Drafts: what somebody is typing, prefilled on idle compute before it is sent.

    newer text ──> waiting ──> rendered ──> a job of the lowest class ──> warm
                      └───────────┴──────────────┴── superseded, or dropped at Enter

Of a draft only what will hardly change is computed: no glue behind it, and not its last word, whose
tokens depend on what is typed next. Where its last sentence is closed it is computed as if it were sent
now, for it may be. So a wrong guess is wasted work, and never a wrong prompt.

A text is held in memory until it is rendered, in nothing else: no database, no log, no disk. A
failure is silent, for nobody asked. Drafts of one session supersede each other, and those of one user
have a budget. What was computed of one that is withdrawn, whose last page has gone, or to which
nothing was added for a while, is forgotten at once, but for what others share.
"""

import asyncio
import contextlib
import logging
import secrets
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from app.chat.entry import TurnRequest
from app.chat.errands import Errands
from app.chat.intake import Intake
from app.chat.liveness import session_of
from app.chat.prompt import Prompt, Wanted
from app.chat.typed import is_finished, settled, shared_start
from app.errors import AppError, TooMany
from app.ids import ConversationId, UserId, new_conversation_id
from app.people.rates import DRAFTS_PER_SOCKET, Bucket
from app.people.usage import Usage
from engine.api import (
    Engine,
    Finished,
    Forget,
    Job,
    JobClass,
    JobId,
    Limits,
    Message,
    ModelCard,
    OwnerId,
    SessionId,
    Started,
    Withdraw,
    Zone,
)
from engine.errors import EngineError

LOG = logging.getLogger(__name__)

BUDGET_TOKENS, WINDOW_S = 16_384, 60.0
"""Once so many tokens were computed for a user's drafts within the window, further ones wait for
its end."""
MOST_RUNNING = 8
"""Drafts in the engine at once; its queue is for turns."""
TOKEN_CHARACTERS = 16
"""A text of more characters for each token of the context is not even looked at."""
REMEMBERED_USERS = 4096
REST_S = 900.0
"""An unsent text that nothing is added to for so long is forgotten; the next key drafts it anew."""


class _Key(NamedTuple):
    user_id: UserId
    session_id: ConversationId


class _Unsent:
    """What was typed in a session, and by whom; let go of when nobody goes on typing."""

    __slots__ = ("resting", "typists")

    def __init__(self) -> None:
        self.typists: set[Typist] = set()
        self.resting: asyncio.TimerHandle | None = None


class _Line:
    """The drafts of one session: the newest that waits, and the job that runs."""

    __slots__ = ("job_id", "task", "typists", "waiting")

    def __init__(self) -> None:
        self.typists: set[Typist] = set()
        self.waiting: TurnRequest | None = None
        self.job_id: JobId | None = None
        self.task: asyncio.Task[None] | None = None


class Drafts:
    """One per server. Only `forget` waits for anything."""

    def __init__(self, engine: Engine, intake: Intake, usage: Usage) -> None:
        self._engine = engine
        self._intake = intake
        self._usage = usage
        self._lines: dict[_Key, _Line] = {}
        self._unsent: dict[_Key, _Unsent] = {}
        self._unnamed: dict[_Key, Typist] = {}
        """Sessions of conversations that are not made yet: of each socket one, once it is used."""
        self._spent: OrderedDict[UserId, Spent] = OrderedDict()
        self._seats = asyncio.Semaphore(MOST_RUNNING)
        self.errands = Errands(self._stop)

    @contextlib.contextmanager
    def typist(self, user_id: UserId) -> Iterator["Typist"]:
        """One socket's drafts; when the block ends they are dropped."""
        typist = Typist(self, user_id)
        try:
            yield typist
        finally:
            for kept in (self._lines, self._unsent):
                for key in [key for key, one in kept.items() if typist in one.typists]:
                    self.withdraw(typist, key.session_id)
            unnamed = _Key(user_id, typist.unnamed_id)
            if self._unnamed.pop(unnamed, None) is not None and self.errands.are_taken:
                _ = self.errands.begin(self._let_go(unnamed))

    def offer(self, typist: "Typist", request: TurnRequest) -> None:
        """Prefill this, instead of what was offered for the same session before."""
        if not self.errands.are_taken:
            return
        key = _Key(typist.user_id, request.conversation_id or typist.unnamed_id)
        if request.conversation_id is None:
            self._unnamed[key] = typist
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line()
            line.task = self.errands.begin(self._serve(key, line))
        elif line.job_id is not None:
            _ = self.errands.begin(self._cancel(line.job_id))
        line.typists.add(typist)
        line.waiting = request

    def drop(self, user_id: UserId, session_id: ConversationId, *, begins: bool = False) -> None:
        """What was typed in the session is sent. `begins`: it was its first message."""
        for key in (_Key(user_id, session_id), *(self._unnamed_of(user_id) if begins else ())):
            self._drop(key)
            self._settle(key)

    def withdraw(self, typist: "Typist", session_id: ConversationId) -> None:
        """The typist has nothing unsent there any more, and it is not sent."""
        key = _Key(typist.user_id, session_id)
        kept = [one[key] for one in (self._lines, self._unsent) if key in one]
        for one in kept:
            one.typists.discard(typist)
        if not any(one.typists for one in kept):
            self._rest(key)

    def _note(self, key: _Key, line: _Line) -> None:
        """They may write there, and something of it is about to be computed."""
        unsent = self._unsent.setdefault(key, _Unsent())
        unsent.typists |= line.typists
        if unsent.resting is not None:
            unsent.resting.cancel()
        unsent.resting = asyncio.get_running_loop().call_later(REST_S, self._rest, key)

    def _settle(self, key: _Key) -> bool:
        """Nothing is unsent there any more. False where nothing was."""
        unsent = self._unsent.pop(key, None)
        if unsent is not None and unsent.resting is not None:
            unsent.resting.cancel()
        return unsent is not None

    def _rest(self, key: _Key) -> None:
        line = self._drop(key)
        if self._settle(key) and self.errands.are_taken:
            _ = self.errands.begin(self._withdraw(key, None if line is None else line.task))

    async def _withdraw(self, key: _Key, task: asyncio.Task[None] | None) -> None:
        if task is not None:
            await asyncio.wait((task,))
        if not (key in self._unsent or key in self._lines):  # else it supersedes what is there
            with contextlib.suppress(EngineError):  # an engine that is away holds nothing
                await self._engine.lease(session_of(*key), Withdraw())

    def name(self, user_id: UserId) -> ConversationId:
        """The id of a conversation that is about to be made.

        If its maker types in one place where there is none yet, that is where the first message
        comes from: so what was drafted belongs to the conversation.
        """
        match self._unnamed_of(user_id):
            case [key]:
                self._unnamed.pop(key).unnamed_id = new_conversation_id()
                return key.session_id
            case _:
                return new_conversation_id()

    async def forget(self, user_id: UserId, session_id: ConversationId) -> None:
        """The conversation is deleted: when this returns nothing more is computed for it.

        Its first message may have been typed under another name.
        """
        line = self._drop(_Key(user_id, session_id))
        self._settle(_Key(user_id, session_id))
        if line is not None and line.task is not None:
            await asyncio.wait((line.task,))
        for key in self._unnamed_of(user_id):
            await self._let_go(key)

    async def forget_user(self, user_id: UserId) -> None:
        """They may not be here: when this returns nothing more is computed for them."""
        lines = [self._drop(key) for key in list(self._lines) if key.user_id == user_id]
        tasks = [line.task for line in lines if line is not None and line.task is not None]
        if tasks:
            await asyncio.wait(tasks)
        for key in [key for key in self._unsent if key.user_id == user_id]:
            self._rest(key)
        for key in self._unnamed_of(user_id):
            del self._unnamed[key]
            await self._let_go(key)
        self._spent.pop(user_id, None)

    def users(self) -> set[UserId]:
        return {key.user_id for key in self._lines}

    def _unnamed_of(self, user_id: UserId) -> list[_Key]:
        return [key for key in self._unnamed if key.user_id == user_id]

    # ------------------------------------------------------------ a session's line

    def _stop(self) -> None:
        for line in self._lines.values():
            _stop(line)

    def _drop(self, key: _Key) -> _Line | None:
        line = self._lines.pop(key, None)
        if line is not None:
            _stop(line)
        return line

    async def _let_go(self, key: _Key) -> None:
        with contextlib.suppress(EngineError):  # an engine that is away holds nothing
            await self._engine.lease(session_of(*key), Forget())

    async def _cancel(self, job_id: JobId) -> None:
        with contextlib.suppress(EngineError):
            await self._engine.cancel(job_id)

    async def _serve(self, key: _Key, line: _Line) -> None:
        """Until nothing waits."""
        try:
            while (request := line.waiting) is not None:
                line.waiting = None
                await self._prefill(key, line, request)
        finally:
            if self._lines.get(key) is line:
                del self._lines[key]

    async def _prefill(self, key: _Key, line: _Line, request: TurnRequest) -> None:
        try:
            job = await self._job(key, request)
            if job is None:
                return
            self._note(key, line)
            if await self._usage.may_draft(key.user_id):
                async with self._seats:
                    if line.waiting is None and self._may_spend(key.user_id):
                        await self._compute(key.user_id, line, job)
        except (AppError, EngineError):
            pass  # the turn itself will say what is wrong
        except Exception as error:  # noqa: BLE001  its words might quote the text
            LOG.error("a draft was given up: %s", type(error).__name__)

    async def _compute(self, user_id: UserId, line: _Line, job: Job) -> None:
        line.job_id = job.job_id
        owed = 0
        try:
            async for event in self._engine.generate(job):
                if isinstance(event, Started):
                    owed = event.prompt_tokens - event.cached_tokens
                    if line.waiting is not None:
                        # The wish may have overtaken the job on its way to the engine.
                        await self._cancel(job.job_id)
                elif isinstance(event, Finished):
                    owed = 0 if event.receipt is None else event.receipt.computed_tokens
        finally:
            line.job_id = None
            self._spend(user_id, owed)
            self._usage.besides(user_id, owed)

    # ------------------------------------------------------------ from text to a job

    async def _job(self, key: _Key, request: TurnRequest) -> Job | None:
        """What the request will most likely begin with; None where nothing tells."""
        card, wanted, rendered = await self._intake.wanted(key.user_id, request)
        prompt = await self._intake.prompts.make(card, wanted, rendered)
        token_ids = await self._likely(card, wanted, prompt)
        if not token_ids or len(token_ids) >= _limit(card):
            return None
        return Job(
            job_id=JobId(f"draft_{secrets.token_hex(8)}"),
            owner_id=OwnerId(key.user_id),
            session_id=SessionId(key.session_id),
            token_ids=token_ids,
            zones=tuple(_cut(prompt.zones, len(token_ids))),
            limits=Limits(max_output_tokens=0),
            job_class=JobClass.DRAFT,
            durable=False,
        )

    async def _likely(self, card: ModelCard, wanted: Wanted, prompt: Prompt) -> tuple[int, ...]:
        """What the prompt shares with that of its settled part: no glue, nothing that may change.

        Of a finished text all but the last token, which the turn computes to draw its first one.
        """
        (message,) = wanted.new.messages
        if len(message.text) > _limit(card) * TOKEN_CHARACTERS:
            return ()
        if is_finished(message.text):
            return prompt.token_ids[:-1]
        before = Message(role=message.role, text=settled(message.text))
        new = msgspec.structs.replace(wanted.new, messages=(before,))
        known = await self._intake.prompts.make(card, msgspec.structs.replace(wanted, new=new))
        return shared_start(prompt.token_ids, known.token_ids)

    # ------------------------------------------------------------ the budget

    def _may_spend(self, user_id: UserId) -> bool:
        spent = self._spent.get(user_id)
        return spent is None or spent.within(_now()) < BUDGET_TOKENS

    def _spend(self, user_id: UserId, tokens: int) -> None:
        self._spent.setdefault(user_id, Spent()).add(_now(), tokens)
        self._spent.move_to_end(user_id)
        if len(self._spent) > REMEMBERED_USERS:
            self._spent.popitem(last=False)


class Typist:
    """One socket's drafts, not too many of them."""

    def __init__(self, drafts: Drafts, user_id: UserId) -> None:
        self.user_id = user_id
        self.unnamed_id = new_conversation_id()
        """Stands for a conversation that is not made yet."""
        self._drafts = drafts
        self._rate = Bucket(DRAFTS_PER_SOCKET)

    def hear(self, request: TurnRequest) -> None:
        """Take up a draft; one without any text withdraws what was typed there before.

        One that comes too soon behind others is ignored.
        """
        if not request.messages[0].text.strip():
            self._drafts.withdraw(self, request.conversation_id or self.unnamed_id)
            return
        with contextlib.suppress(TooMany):
            self._rate.take()
            self._drafts.offer(self, request)


class Spent:
    """Tokens that were computed for one user's drafts, and when."""

    __slots__ = ("_entries", "_tokens")

    def __init__(self) -> None:
        self._entries: deque[tuple[float, int]] = deque()
        self._tokens = 0

    def add(self, now: float, tokens: int) -> None:
        self._entries.append((now, tokens))
        self._tokens += tokens

    def within(self, now: float) -> int:
        """Those of the window that ends now."""
        while self._entries and self._entries[0][0] <= now - WINDOW_S:
            self._tokens -= self._entries.popleft()[1]
        return self._tokens


def _stop(line: _Line) -> None:
    """Dropping its iterator cancels the job, wherever it is."""
    line.waiting = None
    if line.task is not None:
        line.task.cancel()


def _limit(card: ModelCard) -> int:
    return min(card.context_tokens, card.pool_blocks * card.block_tokens)


def _cut(zones: tuple[Zone, ...], end: int) -> Iterator[Zone]:
    """The zones of a prompt that ends earlier."""
    start = 0
    for zone in zones:
        if start < end:
            yield msgspec.structs.replace(zone, end=min(zone.end, end))
        start = zone.end


def _now() -> float:
    return asyncio.get_running_loop().time()
