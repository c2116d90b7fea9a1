"""`/ws`, the browser's socket: a reader, a worker, and one pump for each response that it watches.

A socket watches; it owns no turn (law 13) and holds no database session. Each frame is answered
under its `request_id`, by what it asked for or by an `error` frame. Frames are obeyed one by one, in
their order, but for a stop, which waits for none of them (law 15). An account that does not chat
watches figures here, and hears and says nothing else.
"""

import asyncio
import functools
from typing import Any, NoReturn, assert_never

import msgspec
from litestar import WebSocket, websocket
from litestar.di import NamedDependency

from app import frames
from app.chat.board import Glance
from app.chat.chronicle import Chronicle
from app.chat.conversations import Conversations
from app.chat.drafts import Typist
from app.chat.eventlog import EventLog, EventLogs
from app.chat.hub import Feed, Hub
from app.chat.liveness import Presence
from app.chat.sequels import Source
from app.chat.summaries import Summaries
from app.chat.supervisor import Supervisor
from app.errors import Code, InvalidRequest, NotFound, TooMany
from app.frames import (
    PROTOCOL,
    CancelAccepted,
    ChatFrame,
    Cursor,
    FiguresUnwatch,
    FiguresUnwatched,
    FiguresWatch,
    Hello,
    InwardFrame,
    LeafChoose,
    LeafChosen,
    OutwardFrame,
    ResponseCancel,
    Subscribe,
    Subscribed,
    SummaryCreate,
    SummaryCreated,
    TurnAccepted,
    TurnContinue,
    TurnCreate,
    TurnEdit,
    TurnRegenerate,
    Unsubscribe,
    Unsubscribed,
    Welcome,
)
from app.ids import ConversationId
from app.people.audit import Audit
from app.routes.connection import OpenSocket, Part
from app.routes.conversations import branching_turn, browser_turn, unsent_turn
from app.routes.gate import Gate, chatting
from app.routes.inward import asked_id, decode
from app.routes.problems import (
    CLOSE_LATER,
    CLOSE_OLD,
    CLOSE_POLICY,
    CLOSE_SIGNED_OUT,
    CLOSE_TOO_BIG,
    CLOSE_UNSUPPORTED,
    answering,
    as_app_error,
    error_frame,
)
from app.routes.samples import Samples
from app.routes.watches import Watches

LONGEST_FRAME = 256 * 1024 + 1_000_000
"""In characters: everything around a text, and the longest text of a turn."""
MOST_CURSORS = 64
"""In one subscription. A page names what it saw begin and not end: its answers in flight."""
LINE_FRAMES = 64
"""Frames that wait for those before them; beyond it the socket is read no further."""
SHORT_FRAME = 16 * 1024
"""In characters; a longer frame is taken when none waits, so that what waits stays small."""
HELLO_S = 10.0
IDLE_S = 3600.0
"""A page that asked for nothing for so long comes back anew, if it is still there."""
LIFETIME_S = 12 * 3600.0
"""So does each page after so long."""


class Rooms(msgspec.Struct, frozen=True, kw_only=True):
    """What a frame may ask for."""

    conversations: Conversations
    supervisor: Supervisor
    logs: EventLogs
    summaries: Summaries
    typist: Typist
    presence: Presence
    chronicle: Chronicle
    audit: Audit


@websocket("/ws")
async def browser_socket(  # noqa: PLR0913  each is something that a frame may ask for
    socket: WebSocket[Any, Any, Any],
    gate: NamedDependency[Gate],
    conversations: NamedDependency[Conversations],
    *,
    supervisor: NamedDependency[Supervisor],
    logs: NamedDependency[EventLogs],
    summaries: NamedDependency[Summaries],
    hub: NamedDependency[Hub],
    chronicle: NamedDependency[Chronicle],
    audit: NamedDependency[Audit],
) -> None:
    async with answering(socket):
        gate.knock(socket)
        principal = await gate.browser(socket)
        user_id = principal.user_id
        async with gate.seat(socket, principal):
            with (
                hub.watch(user_id) as feed,
                supervisor.liveness.board.glance(user_id) as glance,
                supervisor.drafts.typist(user_id) as typist,
                supervisor.liveness.page(user_id) as presence,
            ):
                await socket.accept()
                rooms = Rooms(
                    conversations=conversations,
                    supervisor=supervisor,
                    logs=logs,
                    summaries=summaries,
                    typist=typist,
                    presence=presence,
                    chronicle=chronicle,
                    audit=audit,
                )
                still = functools.partial(gate.browser, before=principal)
                page = OpenSocket[OutwardFrame](socket, principal, gate, still)
                await Connection(page, rooms).run(feed, glance)


class Connection:
    """What one page and the server say to each other. `run` returns when its socket is closed."""

    def __init__(self, page: OpenSocket[OutwardFrame], rooms: Rooms) -> None:
        self._page = page
        self._outbox = page.outbox
        self._rooms = rooms
        self._greeted = asyncio.Event()
        self._line: asyncio.Queue[InwardFrame] = asyncio.Queue(LINE_FRAMES)

    async def run(self, feed: Feed, glance: Glance) -> None:
        def begin(group: asyncio.TaskGroup) -> list[Part]:
            rooms, self._group = self._rooms, group
            self._watches = Watches(group, self._outbox, rooms.logs, rooms.presence)
            self._samples = Samples(group, self._page, rooms.chronicle, rooms.audit)
            parts: list[Part] = [self._read(), self._work(), self._grow_old()]
            if self._page.principal.may_chat:
                parts += [self._pass_on(feed), self._tell(glance)]
            return parts

        await self._page.run(begin, self._come_to_rest)

    async def _come_to_rest(self) -> None:
        await self._watches.finished()

    async def _grow_old(self) -> int:
        await asyncio.sleep(LIFETIME_S)
        return CLOSE_OLD

    async def _pass_on(self, feed: Feed) -> int:
        async for notice in feed:
            if feed.lost_notices:
                break
            await self._watches.notice(notice)
        # The client missed something; coming back, it looks at everything anew.
        return CLOSE_LATER

    async def _tell(self, glance: Glance) -> NoReturn:
        await self._greeted.wait()
        while True:
            for frame in await glance.frames():
                await self._outbox.put(frame)

    # ------------------------------------------------------------ the reader

    async def _read(self) -> int | None:
        try:
            await self._greet()
            while True:
                await self._hear(await self._receive())
        except Ending as ending:
            if ending.code is None:
                # Who sends and leaves has sent all the same.
                await self._line.join()
            return ending.code
        except TooMany as flood:
            await self._outbox.put(error_frame(flood))
            return CLOSE_LATER

    async def _receive(self) -> str:
        try:
            async with asyncio.timeout(IDLE_S):
                message = await self._page.receive()
        except TimeoutError as error:
            raise Ending(CLOSE_OLD) from error
        if message is None:
            raise Ending(None)
        text: str | None = message.get("text")
        if text is None:
            return await self._refuse("binary_frame", "Send text frames only.", CLOSE_UNSUPPORTED)
        if len(text) > LONGEST_FRAME:
            words = f"A frame has at most {LONGEST_FRAME:,} characters; this one has {len(text):,}."
            return await self._refuse("frame_too_long", words, CLOSE_TOO_BIG)
        return text

    async def _refuse(self, code: Code, words: str, close: int) -> NoReturn:
        await self._outbox.put(error_frame(InvalidRequest(words, code=code)))
        raise Ending(close)

    async def _greet(self) -> None:
        try:
            async with asyncio.timeout(HELLO_S):
                hello = decode(await self._receive())
        except (TimeoutError, InvalidRequest):
            hello = None
        if not isinstance(hello, Hello) or hello.protocol != PROTOCOL:
            words = f"The first frame is a hello of protocol {PROTOCOL}; load the page anew."
            await self._refuse("unsupported_protocol", words, CLOSE_POLICY)
        await self._outbox.put(
            Welcome(
                protocol=PROTOCOL,
                epoch=self._rooms.logs.epoch,
                user_id=self._page.principal.user_id,
            )
        )
        self._greeted.set()

    async def _hear(self, text: str) -> None:
        if not await self._page.may_go_on():
            raise Ending(CLOSE_SIGNED_OUT)
        try:
            frame = decode(text)
        except InvalidRequest as error:
            await self._outbox.put(error_frame(error, asked_id(text)))
            return
        if isinstance(frame, ResponseCancel):
            self._group.create_task(self._answer(frame))
            return
        if len(text) > SHORT_FRAME:
            await self._line.join()
        await self._line.put(frame)

    # ------------------------------------------------------------ the worker

    async def _work(self) -> NoReturn:
        while True:
            await self._answer(await self._line.get())
            self._line.task_done()

    async def _answer(self, frame: InwardFrame) -> None:
        try:
            await self._obey(frame)
        except Exception as error:  # noqa: BLE001 -- becomes a frame; logged where unforeseen
            request_id = getattr(frame, "request_id", None)
            await self._outbox.put(error_frame(as_app_error(error), request_id))

    # ------------------------------------------------------------ what a frame may ask

    async def _obey(self, frame: InwardFrame) -> None:
        match frame:
            case Hello():
                raise InvalidRequest("A hello comes first, and once.", code="unexpected_hello")
            case FiguresWatch():
                await self._samples.watch(frame.request_id)
            case FiguresUnwatch():
                self._samples.unwatch()
                await self._outbox.put(FiguresUnwatched(request_id=frame.request_id))
            case _:
                chatting(self._page.principal)
                await self._chat(frame)

    async def _chat(self, frame: ChatFrame) -> None:
        match frame:
            case Subscribe():
                await self._subscribe(frame)
            case Unsubscribe():
                self._watches.close(frame.conversation_id)
                await self._outbox.put(
                    Unsubscribed(request_id=frame.request_id, conversation_id=frame.conversation_id)
                )
            case TurnCreate() | TurnEdit() | TurnRegenerate() | TurnContinue():
                await self._create_turn(frame)
            case LeafChoose():
                await self._choose_leaf(frame)
            case SummaryCreate():
                # It takes as long as an answer; the frames behind it do not wait for it.
                self._group.create_task(self._sum_up(frame))
            case ResponseCancel():
                await self._cancel(frame)
            case frames.Draft():
                self._rooms.typist.hear(unsent_turn(frame))
            case frames.Presence():
                self._see(frame)
            case _:
                assert_never(frame)

    def _see(self, frame: frames.Presence) -> None:
        """Only what was subscribed to, where the owner was asked for, can be looked at."""
        if self._watches.holds(frame.conversation_id):
            self._rooms.presence.see(frame.conversation_id, frame.state)

    async def _subscribe(self, frame: Subscribe) -> None:
        if len(frame.cursors) > MOST_CURSORS:
            raise InvalidRequest(f"Name at most {MOST_CURSORS} responses.", field="cursors")
        conversation_id = frame.conversation_id
        # Watched before it is looked at, so that nothing falls between the two.
        is_new = self._watches.open(conversation_id)
        try:
            conversation = await self._rooms.conversations.get(
                self._page.principal.user_id, conversation_id
            )
            logs = [await self._named(conversation_id, cursor) for cursor in frame.cursors]
        except Exception:
            if is_new:
                self._watches.close(conversation_id)
            raise
        self._rooms.presence.watch(conversation_id)
        await self._outbox.put(
            Subscribed(
                request_id=frame.request_id,
                conversation_id=conversation_id,
                leaf_id=conversation.leaf_id,
            )
        )
        for log, cursor in zip(logs, frame.cursors, strict=True):
            await self._watches.resume(log, cursor)
        for response in self._rooms.supervisor.live(self._page.principal, conversation_id):
            self._watches.follow(response.id)

    async def _named(self, conversation_id: ConversationId, cursor: Cursor) -> EventLog:
        log = await self._rooms.supervisor.log(self._page.principal, cursor.response_id)
        if log.response.conversation_id != conversation_id:
            raise NotFound("There is no such response here.", field="cursors")
        return log

    async def _create_turn(
        self, frame: TurnCreate | TurnEdit | TurnRegenerate | TurnContinue
    ) -> None:
        if isinstance(frame, TurnCreate):
            turn = browser_turn(frame.conversation_id, frame)
        else:
            turn = branching_turn(frame)
        acceptance = await self._rooms.supervisor.create(self._page.principal, turn)
        await self._outbox.put(
            TurnAccepted(
                request_id=frame.request_id,
                message=acceptance.message,
                response=acceptance.response,
            )
        )

    async def _choose_leaf(self, frame: LeafChoose) -> None:
        shown = await self._rooms.supervisor.branches.choose(
            self._page.principal.user_id, frame.conversation_id, frame.message_id
        )
        assert shown.leaf_id is not None, "a message was chosen"
        await self._outbox.put(
            LeafChosen(request_id=frame.request_id, conversation_id=shown.id, leaf_id=shown.leaf_id)
        )

    async def _sum_up(self, frame: SummaryCreate) -> None:
        asked = Source(frame.conversation_id, frame.leaf_id, frame.client_message_id, frame.text)
        try:
            made = await self._rooms.summaries.go_on(self._page.principal.user_id, asked)
            answer: OutwardFrame = SummaryCreated(request_id=frame.request_id, conversation=made)
        except Exception as error:  # noqa: BLE001 -- becomes a frame; logged where unforeseen
            answer = error_frame(as_app_error(error), frame.request_id)
        await self._outbox.put(answer)

    async def _cancel(self, frame: ResponseCancel) -> None:
        step = await self._rooms.supervisor.cancel(self._page.principal, frame.response_id)
        await self._outbox.put(
            CancelAccepted(request_id=frame.request_id, response_id=frame.response_id, step=step)
        )


class Ending(Exception):
    """The reader is done: with a close code, or None when the peer has left."""

    def __init__(self, code: int | None) -> None:
        super().__init__(code)
        self.code = code
