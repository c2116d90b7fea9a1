"""All live turns: started, watched, stopped, swept and drained here, and owned here (law 13).

A connection asks and goes; the work goes on in the supervisor's task group. An accepted turn is
stored before `create` returns (law 17), and its log is open before its row can be seen. Replies are
checkpointed by one task (`checkpoints`); what a killed server left open is closed at the next start.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import msgspec

from app.chat.branches import Branches
from app.chat.checkpoints import Checkpoints
from app.chat.conversations import Changes, Conversations
from app.chat.drafts import Drafts
from app.chat.entry import TurnRequest
from app.chat.errands import Besides, settled
from app.chat.eventlog import EventLog, EventLogs, rebuild
from app.chat.heads import Heads
from app.chat.hub import Hub
from app.chat.intake import RETRY_AFTER_S, Intake, Prepared
from app.chat.keeping import Keeping
from app.chat.ledger import Acceptance, StoredResponse
from app.chat.liveness import Liveness, session_of
from app.chat.memory import MemoryLedger
from app.chat.record import Record
from app.chat.sequels import Sequels
from app.chat.stored import StoredLedger
from app.chat.summaries import Summaries
from app.chat.titles import Titles
from app.chat.turns import Turn
from app.db.base import Database
from app.db.types import Origin
from app.errors import NotFound, Unavailable
from app.events import ConversationView, MessageView, ResponseView
from app.ids import ConversationId, MessageId, ResponseId, UserId
from app.people.accounts import Principal
from app.people.usage import Usage
from engine.api import Engine, Forget, OwnerId, Subject, SubjectKind
from engine.errors import EngineError

LOG = logging.getLogger(__name__)

INTERRUPT_S = 5.0
"""How long a drain waits for the turns that it interrupted."""


class Supervisor:
    """Owns every generation from `running()` on; its methods are for any task of the loop."""

    def __init__(
        self,
        db: Database,
        engine: Engine,
        logs: EventLogs,
        hub: Hub,
        *,
        usage: Usage,
        titles: bool,
    ) -> None:
        self.heads = Heads(db, engine)
        self._engine = engine
        self._logs = logs
        self._hub = hub
        self._usage = usage
        self._stored = StoredLedger(db, usage)
        self._memory = MemoryLedger(usage)
        self._conversations = Conversations(db, hub, usage)
        self.branches = Branches(db, hub, usage)
        self.intake = Intake(
            engine, self.heads, (self._stored, self._memory), logs.epoch, usage=usage
        )
        self.drafts = Drafts(engine, self.intake, usage)
        self.titles = Titles(engine, self.intake, self._conversations, usage=usage, wanted=titles)
        self.summaries = Summaries(engine, self.intake, Sequels(db, hub, usage), usage)
        self.besides: tuple[Besides, ...] = (self.drafts, self.titles, self.summaries)
        self.liveness = Liveness(engine)
        self.keeping = Keeping(
            engine, self._conversations, self.liveness, holds=self.intake.holds, usage=usage
        )
        self.record = Record()
        self._live: dict[ResponseId, Turn] = {}
        self._writing = asyncio.Lock()
        self.checkpoints = Checkpoints(self._stored, self._live, self._writing)
        self._draining = True
        self._tasks: asyncio.TaskGroup | None = None

    @property
    def live_turns(self) -> int:
        return len(self._live)

    # ------------------------------------------------------------ its own life

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Supervisor"]:
        """Sweep, then take turns until the block ends; what still runs then is cut off.

        Enter and leave it in one task. Call `drain` before the end for a kind stop.
        """
        swept = await self._stored.sweep()
        if swept:
            LOG.warning("closed %d responses that the last run left open", swept)
        await self.keeping.recall()
        async with (
            self.drafts.errands.running(),
            self.titles.errands.running(),
            self.summaries.errands.running(),
            asyncio.TaskGroup() as tasks,
        ):
            self._tasks = tasks
            chores = [
                tasks.create_task(self.checkpoints.keep()),
                tasks.create_task(self.liveness.keep()),
            ]
            self._draining = False
            try:
                yield self
            finally:
                self._draining = True
                for chore in chores:
                    chore.cancel()
                for turn in self._live.values():
                    turn.cut_off()

    async def drain(self, grace_s: float) -> None:
        """Refuse new turns, let the live ones finish for `grace_s`, then interrupt them."""
        self._draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while self._live:
                    await next(iter(self._live.values())).wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(INTERRUPT_S), asyncio.TaskGroup() as stops:
                for turn in self._live.values():
                    stops.create_task(turn.interrupt())

    # ------------------------------------------------------------ turns

    async def create(self, principal: Principal, request: TurnRequest) -> Acceptance:
        """Store a turn and start it; when this returns, both are done.

        Goes on even if the caller is cancelled. Raises `NotFound`, `Conflict` ("turn_in_progress"),
        `ParentMoved`, `InvalidRequest`, `PromptTooLong`, `TooMany` and `Unavailable`.
        """
        self._refuse_when_draining()
        self._usage.begins(principal.user_id)
        made: asyncio.Future[Acceptance] = asyncio.get_running_loop().create_future()
        settling = settled(self._create(principal, request), made)
        making = self._group.create_task(settling)
        try:
            return await made
        except asyncio.CancelledError:
            if not request.store:
                self._group.create_task(self._discard(principal.user_id, making))
            raise

    async def _discard(self, user_id: UserId, making: asyncio.Task[Acceptance | None]) -> None:
        """Nobody learnt of this turn and nobody can ask for it: it is not stored."""
        acceptance = await making
        if acceptance is None:
            return
        response_id = acceptance.response.id
        turn = self._turn(user_id, response_id)
        if turn is not None:
            await turn.cancel()
        await self._memory.delete_response(user_id, response_id)
        self._logs.drop(response_id)

    def _refuse_when_draining(self) -> None:
        if self._draining:
            raise Unavailable("The server is stopping.", retry_after_s=RETRY_AFTER_S)

    async def _create(self, principal: Principal, request: TurnRequest) -> Acceptance:
        user_id = principal.user_id
        prepared = await self.intake.prepare(user_id, request, principal.key_id)
        if isinstance(prepared, Acceptance):
            return prepared
        self._refuse_when_draining()
        # What is still computed of a draft would only delay it; what is computed is matched.
        entry = prepared.entry
        self.drafts.drop(user_id, entry.session_id, begins=not entry.path)
        self.titles.drop(user_id, entry.session_id)
        turn = self._open(prepared)
        # The engine's first step takes all cores: storing beside it would take three times as long,
        # but to wait for the disk takes none.
        try:
            acceptance = await prepared.ledger.accept(prepared.entry, prepared.ask, turn.submit)
        except Unavailable:
            # It may be stored, and only the database could not say so: then it is an answer that was
            # interrupted, and else it is nothing.
            self._usage.release(turn.response.view.id)
            turn.log.begin()
            self._group.create_task(turn.interrupt())
            self._group.create_task(self._run(turn))
            raise
        except BaseException:
            await self._abandon(turn)
            raise
        if not acceptance.fresh:
            await self._abandon(turn)
            return acceptance
        turn.log.begin()
        self._group.create_task(self._run(turn))
        if request.origin is Origin.CHAT:
            self._hub.announce(user_id, acceptance)
        return acceptance

    def _open(self, prepared: Prepared) -> Turn:
        response = prepared.entry.response
        log = self._logs.open(response.user_id, response.view)
        turn = Turn(prepared, log, self._engine, self._writing)
        self._live[response.view.id] = turn
        return turn

    async def _abandon(self, turn: Turn) -> None:
        self._usage.release(turn.response.view.id)
        del self._live[turn.response.view.id]
        self._logs.drop(turn.response.view.id)
        await turn.abandon()

    async def _run(self, turn: Turn) -> None:
        try:
            await turn.run()
            await self.keeping.grown(turn.response.user_id, turn.response.view.conversation_id)
        finally:
            del self._live[turn.response.view.id]
            self._logs.retire(turn.response.view.id)
            if turn.log.response.status.ended:
                self.record.ended(turn.log.response)
                self.titles.offer(turn.response, turn.log.response)

    async def cancel(self, principal: Principal, response_id: ResponseId) -> int | None:
        """Stop a response in any state, and return when it has ended (law 15).

        The engine step after which nothing more was computed; None when it had ended before, or
        the engine had not taken it up. Raises `NotFound` and `TooMany`.
        """
        self._usage.stops(principal.user_id)
        turn = self._turn(principal.user_id, response_id)
        if turn is not None:
            return await turn.cancel()
        await self.response(principal, response_id)
        return None

    async def steer(self, principal: Principal, response_id: ResponseId) -> None:
        """End an answer at the next token, its text kept; what is not theirs stays as it is."""
        turn = self._turn(principal.user_id, response_id)
        if turn is not None:
            await turn.steer()

    def live(
        self, principal: Principal, conversation_id: ConversationId
    ) -> tuple[ResponseView, ...]:
        """The responses that are being written in a conversation now."""
        return tuple(one.log.response for one in self._turns_in(principal.user_id, conversation_id))

    def _turns_in(self, user_id: UserId, conversation_id: ConversationId) -> list[Turn]:
        return [
            turn
            for turn in self._live.values()
            if turn.response.user_id == user_id
            and turn.response.view.conversation_id == conversation_id
        ]

    def _turn(self, user_id: UserId, response_id: ResponseId) -> Turn | None:
        turn = self._live.get(response_id)
        return turn if turn is not None and turn.response.user_id == user_id else None

    # ------------------------------------------------------------ responses

    async def response(self, principal: Principal, response_id: ResponseId) -> StoredResponse:
        """A response as it is now, its text so far included. Raises `NotFound`."""
        user_id = principal.user_id
        found = await self._memory.response(user_id, response_id)
        found = found or await self._stored.response(user_id, response_id)
        if found is None:
            raise NotFound("There is no such response.", field="response_id")
        log = self._logs.get(user_id, response_id)
        if log is None:
            return found
        return msgspec.structs.replace(found, view=log.response, text=log.text)

    async def input_items(
        self, principal: Principal, response_id: ResponseId
    ) -> tuple[MessageView, ...]:
        """The messages that this response's request brought. Raises `NotFound`."""
        found = await self.response(principal, response_id)
        return await (self._stored if found.store else self._memory).inputs(found)

    async def log(self, principal: Principal, response_id: ResponseId, after: int = -1) -> EventLog:
        """The log to subscribe to at `after`: live, kept, or rebuilt from storage.

        Raises `NotFound`.
        """
        log = self._logs.get(principal.user_id, response_id)
        if log is not None:
            return log
        found = await self.response(principal, response_id)
        return rebuild(found.view, found.text, has_item=found.has_item, after=after)

    async def delete_response(self, principal: Principal, response_id: ResponseId) -> None:
        """Stop a response and forget it, and its KV once nothing is left beside. Raises `NotFound`."""
        await self.cancel(principal, response_id)
        user_id = principal.user_id
        removed = await self._memory.delete_response(user_id, response_id)
        removed = removed or await self._stored.delete_response(user_id, response_id)
        if removed is None:
            raise NotFound("There is no such response.", field="response_id")
        self._logs.drop(response_id)
        if removed.session_id is not None:
            await self.forget_session(user_id, removed.session_id)

    async def leave_response(self, principal: Principal, response_id: ResponseId) -> None:
        """Stop a response that is not stored; nobody can ask for it any more."""
        turn = self._turn(principal.user_id, response_id)
        if turn is not None:
            await turn.cancel()
        await self._memory.leave(principal.user_id, response_id)
        self._logs.drop(response_id)

    async def delete_conversation(
        self, principal: Principal, conversation_id: ConversationId
    ) -> None:
        """Delete a conversation, stop what runs in it, forget its KV. Raises `NotFound`."""
        user_id = principal.user_id
        await self._conversations.delete(user_id, conversation_id)
        async with asyncio.TaskGroup() as stops:
            for turn in self._turns_in(user_id, conversation_id):
                stops.create_task(turn.cancel())
        self._logs.drop_conversation(user_id, conversation_id)
        for one in self.besides:
            await one.forget(user_id, conversation_id)
        self.liveness.forget(session_of(user_id, conversation_id))
        await self.forget_session(user_id, conversation_id)

    async def change_conversation(
        self, principal: Principal, conversation_id: ConversationId, changes: Changes
    ) -> ConversationView:
        """Raises `NotFound`, `InvalidRequest`, `QuotaExceeded`, and `EngineError` where it is away."""
        return await self.keeping.change(principal.user_id, conversation_id, changes)

    async def delete_branch(
        self, principal: Principal, conversation_id: ConversationId, message_id: MessageId
    ) -> None:
        """Delete a message and all below it, stop what is written there. Raises `NotFound`.

        The engine forgets the whole conversation, for it cannot tell whose branch a block is of; the
        next turn computes again what is left.
        """
        user_id = principal.user_id
        gone = await self.branches.prune(user_id, conversation_id, message_id)
        async with asyncio.TaskGroup() as stops:
            for turn in self._turns_in(user_id, conversation_id):
                if turn.response.view.message_id in gone:
                    self._logs.drop(turn.response.view.id)
                    stops.create_task(turn.cancel())
        await self.forget_session(user_id, conversation_id)

    async def forget_session(self, user_id: UserId, session_id: ConversationId) -> None:
        """Its KV goes from every tier, but for what others hold as well."""
        with contextlib.suppress(EngineError):  # an engine that is away holds nothing
            await self._engine.lease(session_of(user_id, session_id), Forget())

    # ------------------------------------------------------------ users who may not be here

    def busy_users(self) -> set[UserId]:
        """For whom a turn, or anything besides, is under way."""
        turns = {turn.response.user_id for turn in self._live.values()}
        return turns.union(*(one.users() for one in self.besides))

    async def stop_user(self, user_id: UserId) -> None:
        """Stop all that is computed for a user, and return when it has ended; texts stay."""
        for one in self.besides:
            await one.forget_user(user_id)
        async with asyncio.TaskGroup() as stops:
            for turn in self._live.values():
                if turn.response.user_id == user_id:
                    stops.create_task(turn.cancel())

    async def forget_user(self, user_id: UserId) -> None:
        """Stop and forget all that is of a user who is no more. Raises `EngineError`."""
        await self.stop_user(user_id)
        self._memory.forget_user(user_id)
        self.intake.holds.forget_user(user_id)
        self.intake.prompts.forget_user(user_id)
        self._logs.drop_user(user_id)
        self.liveness.forget_user(user_id)
        owner = Subject(kind=SubjectKind.OWNER, subject_id=user_id, owner_id=OwnerId(user_id))
        await self._engine.lease(owner, Forget())

    # ------------------------------------------------------------ owned work

    @property
    def _group(self) -> asyncio.TaskGroup:
        if self._tasks is None:
            raise Unavailable("The server is not up yet.", retry_after_s=RETRY_AFTER_S)
        return self._tasks
