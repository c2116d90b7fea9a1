"""`/ws`, the browser's socket: one reader, one writer, one pump for each response it watches.

All of them live in one task group. The first of reader, writer, rights and server to end ends them
all, with its close code. A socket watches; it owns no turn (law 13) and holds no database session.
Each frame is answered under its `request_id`, by what it asked for or by an `error` frame.
"""

import asyncio
import contextlib
from typing import Any, NoReturn, assert_never

import msgspec
from litestar import WebSocket, websocket
from litestar.exceptions import WebSocketDisconnect

from app.chat.conversations import Conversations
from app.chat.eventlog import EventLog, EventLogs
from app.chat.hub import Feed, Hub
from app.chat.supervisor import Supervisor
from app.errors import InvalidRequest, NotFound, Unauthenticated
from app.events import (
    PROTOCOL,
    CancelAccepted,
    Cursor,
    Hello,
    InwardFrame,
    OutwardFrame,
    ResponseCancel,
    Subscribe,
    Subscribed,
    TurnAccepted,
    TurnCreate,
    Unsubscribe,
    Unsubscribed,
    Welcome,
)
from app.ids import ConversationId
from app.people.accounts import Principal
from app.routes.conversations import browser_turn
from app.routes.gate import Gate
from app.routes.outbox import Close, Outbox
from app.routes.problems import (
    CLOSE_LATER,
    CLOSE_POLICY,
    CLOSE_RESTART,
    CLOSE_SIGNED_OUT,
    CLOSE_TOO_BIG,
    CLOSE_UNSUPPORTED,
    answering,
    as_app_error,
    error_frame,
    from_decoding,
)
from app.routes.watches import Watches

LONGEST_FRAME = 256 * 1024 + 1_000_000
"""In characters: everything around a text, and the longest text of a turn."""
HELLO_S = 10.0
WRITE_S = 20.0
"""A peer that takes no byte for so long is gone."""
FLUSH_S = 0.5
"""What is queued may still go out for so long before a close."""
RECHECK_S = 5.0
"""What another process revoked is noticed after so long on a silent socket."""


class Rooms(msgspec.Struct, frozen=True, kw_only=True):
    """What a frame may ask for."""

    gate: Gate
    conversations: Conversations
    supervisor: Supervisor
    logs: EventLogs
    hub: Hub


@websocket("/ws")
async def browser_socket(
    socket: WebSocket[Any, Any, Any],
    gate: Gate,
    conversations: Conversations,
    *,
    supervisor: Supervisor,
    logs: EventLogs,
    hub: Hub,
) -> None:
    rooms = Rooms(gate=gate, conversations=conversations, supervisor=supervisor, logs=logs, hub=hub)
    async with answering(socket):
        principal = await gate.browser(socket)
        with gate.seat(principal):
            await socket.accept()
            await Connection(socket, principal, rooms).run()


class Connection:
    """One open socket. `run` returns when it is closed."""

    def __init__(
        self, socket: WebSocket[Any, Any, Any], principal: Principal, rooms: Rooms
    ) -> None:
        self._socket = socket
        self._principal = principal
        self._rooms = rooms
        self._outbox: Outbox[OutwardFrame] = Outbox()

    async def run(self) -> None:
        with (
            self._rooms.gate.watching(self._principal) as revoked,
            self._rooms.hub.watch(self._principal.user_id) as feed,
        ):
            code = await self._live(revoked, feed)
        if code is not None:
            with contextlib.suppress(TimeoutError, OSError, WebSocketDisconnect):
                async with asyncio.timeout(FLUSH_S):
                    await self._socket.close(code)

    async def _live(self, revoked: asyncio.Event, feed: Feed) -> int | None:
        """The close code of whatever ended first; None when the peer is gone."""
        async with asyncio.TaskGroup() as group:
            self._watches = Watches(group, self._outbox, self._rooms.logs, self._principal.user_id)
            writer = group.create_task(self._write())
            parts = [
                writer,
                group.create_task(self._read()),
                group.create_task(self._pass_on(feed)),
                group.create_task(self._lose_rights(revoked)),
                group.create_task(self._outlive_server()),
            ]
            ended, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            code = next(iter(ended)).result()
            if code is not None:
                await self._flush(writer, code)
            self._watches.close_all()
            for part in parts:
                part.cancel()
        return code

    async def _flush(self, writer: asyncio.Task[int | None], code: int) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await self._outbox.close(code)
                await asyncio.wait([writer])

    # ------------------------------------------------------------ the parts, each with its code

    async def _write(self) -> int | None:
        while True:
            frame = await self._outbox.take()
            if isinstance(frame, Close):
                return frame.code
            try:
                async with asyncio.timeout(WRITE_S):
                    await self._socket.send_text(msgspec.json.encode(frame))
            except (TimeoutError, OSError, WebSocketDisconnect):
                return None

    async def _pass_on(self, feed: Feed) -> int:
        async for notice in feed:
            if feed.lost_notices:
                break
            await self._watches.notice(notice)
        # The client missed something; coming back, it looks at everything anew.
        return CLOSE_LATER

    async def _lose_rights(self, revoked: asyncio.Event) -> int:
        while await self._still_in():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RECHECK_S):
                    await revoked.wait()
        return CLOSE_SIGNED_OUT

    async def _outlive_server(self) -> int:
        await self._rooms.gate.closing.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await self._watches.finished()
        return CLOSE_RESTART

    async def _still_in(self) -> bool:
        """Rights are looked up anew: a role, a login or an account may be gone meanwhile."""
        try:
            self._principal = await self._rooms.gate.browser(self._socket)
        except Unauthenticated:
            return False
        return True

    # ------------------------------------------------------------ the reader

    async def _read(self) -> int | None:
        try:
            await self._greet()
            while True:
                await self._hear(await self._receive())
        except Ending as ending:
            return ending.code

    async def _receive(self) -> str:
        message: Any = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise Ending(None)
        text: str | None = message.get("text")
        if text is None:
            return await self._refuse("binary_frame", "Send text frames only.", CLOSE_UNSUPPORTED)
        if len(text) > LONGEST_FRAME:
            words = f"A frame has at most {LONGEST_FRAME:,} characters; this one has {len(text):,}."
            return await self._refuse("frame_too_long", words, CLOSE_TOO_BIG)
        return text

    async def _refuse(self, code: str, words: str, close: int) -> NoReturn:
        await self._outbox.put(error_frame(InvalidRequest(words, code=code)))
        raise Ending(close)

    async def _greet(self) -> None:
        try:
            async with asyncio.timeout(HELLO_S):
                hello = _decode(await self._receive())
        except (TimeoutError, InvalidRequest):
            hello = None
        if not isinstance(hello, Hello) or hello.protocol != PROTOCOL:
            words = f"The first frame is a hello of protocol {PROTOCOL}; load the page anew."
            await self._refuse("unsupported_protocol", words, CLOSE_POLICY)
        await self._outbox.put(
            Welcome(
                protocol=PROTOCOL, epoch=self._rooms.logs.epoch, user_id=self._principal.user_id
            )
        )

    async def _hear(self, text: str) -> None:
        if not await self._still_in():
            raise Ending(CLOSE_SIGNED_OUT)
        try:
            await self._obey(_decode(text))
        except Exception as error:  # noqa: BLE001 -- becomes a frame; logged where unforeseen
            await self._outbox.put(error_frame(as_app_error(error), _asked_id(text)))

    # ------------------------------------------------------------ what a frame may ask

    async def _obey(self, frame: InwardFrame) -> None:
        match frame:
            case Subscribe():
                await self._subscribe(frame)
            case Unsubscribe():
                self._watches.close(frame.conversation_id)
                await self._outbox.put(
                    Unsubscribed(request_id=frame.request_id, conversation_id=frame.conversation_id)
                )
            case TurnCreate():
                await self._create_turn(frame)
            case ResponseCancel():
                await self._cancel(frame)
            case Hello():
                raise InvalidRequest("A hello comes first, and once.", code="unexpected_hello")
            case _:
                assert_never(frame)

    async def _subscribe(self, frame: Subscribe) -> None:
        conversation_id = frame.conversation_id
        conversation = await self._rooms.conversations.get(self._principal.user_id, conversation_id)
        logs = [await self._named(conversation_id, cursor) for cursor in frame.cursors]
        await self._outbox.put(
            Subscribed(
                request_id=frame.request_id,
                conversation_id=conversation_id,
                leaf_id=conversation.leaf_id,
            )
        )
        self._watches.open(conversation_id)
        for log, cursor in zip(logs, frame.cursors, strict=True):
            await self._watches.resume(log, cursor)
        for response in self._rooms.supervisor.live(self._principal, conversation_id):
            self._watches.follow(response.id)

    async def _named(self, conversation_id: ConversationId, cursor: Cursor) -> EventLog:
        log = await self._rooms.supervisor.log(self._principal, cursor.response_id)
        if log.response.conversation_id != conversation_id:
            raise NotFound("There is no such response here.", field="cursors")
        return log

    async def _create_turn(self, frame: TurnCreate) -> None:
        acceptance = await self._rooms.supervisor.create(
            self._principal, browser_turn(frame.conversation_id, frame)
        )
        await self._outbox.put(
            TurnAccepted(
                request_id=frame.request_id,
                message=acceptance.messages[-1],
                response=acceptance.response,
            )
        )

    async def _cancel(self, frame: ResponseCancel) -> None:
        step = await self._rooms.supervisor.cancel(self._principal, frame.response_id)
        await self._outbox.put(
            CancelAccepted(request_id=frame.request_id, response_id=frame.response_id, step=step)
        )


class Ending(Exception):
    """The reader is done: with a close code, or None when the peer has left."""

    def __init__(self, code: int | None) -> None:
        super().__init__(code)
        self.code = code


class _Asked(msgspec.Struct):
    """As much of a frame as an error frame repeats."""

    request_id: str | None = None


_frames = msgspec.json.Decoder(InwardFrame)


def _decode(text: str) -> InwardFrame:
    try:
        return _frames.decode(text)
    except msgspec.DecodeError as error:
        raise from_decoding(error) from error


def _asked_id(text: str) -> str | None:
    try:
        return msgspec.json.decode(text, type=_Asked).request_id
    except msgspec.DecodeError:
        return None
