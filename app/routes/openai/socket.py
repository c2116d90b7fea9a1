"""`/v1/responses` as a websocket: a reader, and one worker for each lane.

A refused request is answered by an `error` event in its lane and harms no other. Stored responses
go on without the socket; what is not stored goes with it. A response that was steered is followed by
its successor before anything else that waits in its lane.
"""

import asyncio
import contextlib
import itertools
from typing import Any

import msgspec
from litestar import WebSocket, websocket
from litestar.di import NamedDependency
from msgspec import UNSET

from app.chat.entry import TurnRequest
from app.chat.supervisor import Supervisor
from app.errors import AppError, InvalidRequest, NotFound, TooMany
from app.events import ResponseStatus
from app.ids import ResponseId
from app.routes.connection import OpenSocket
from app.routes.gate import Gate
from app.routes.openai.events import ErrorEvent, SocketError, SocketEvent
from app.routes.openai.exchange import begin, previous_response_not_found
from app.routes.openai.lanes import IN_FLIGHT, Lane, Lanes, lane_name
from app.routes.openai.requests import Document, not_supported, read_document, response_create
from app.routes.openai.steering import (
    Telling,
    as_it_came,
    given_back,
    not_active,
    not_told,
    steer_accepted,
    steer_failed,
    steer_pending,
    successor_failed,
)
from app.routes.openai.turns import echo, response_turn, wants_padding
from app.routes.openai.view import ResponseFold
from app.routes.problems import (
    CLOSE_LATER,
    CLOSE_OLD,
    CLOSE_SIGNED_OUT,
    answering,
    as_app_error,
    dialect_error,
    headers,
)
from engine.api import Engine

LONGEST_FRAME = 1024 * 1024
"""In characters; what is longer is refused, and the connection lives."""
LIFETIME_S = 3600.0
"""Its end is final for an SDK: the owner reconnects, knowing that the connection's memory is gone."""

_KINDS = ("response.create", "response.steer", "response.cancel")
_CONTINUABLE = (ResponseStatus.COMPLETED, ResponseStatus.INCOMPLETE)
"""Ends after which a steer that was accepted has its successor."""


def error_event(error: AppError, stream_id: str | None = None) -> ErrorEvent:
    told = dialect_error(error)
    return ErrorEvent(
        status=error.status,
        stream_id=UNSET if stream_id is None else stream_id,
        error=SocketError(
            message=told.message,
            type=told.type,
            param=told.param,
            code=told.code,
            headers=headers(error) or UNSET,
        ),
    )


class Rooms(msgspec.Struct, frozen=True, kw_only=True):
    """What a request may need."""

    supervisor: Supervisor
    engine: Engine


@websocket("/v1/responses")
async def dialect_socket(
    socket: WebSocket[Any, Any, Any],
    gate: NamedDependency[Gate],
    supervisor: NamedDependency[Supervisor],
    engine: NamedDependency[Engine],
) -> None:
    rooms = Rooms(supervisor=supervisor, engine=engine)
    async with answering(socket):
        gate.knock(socket)
        principal = await gate.bearer(socket)
        async with gate.seat(socket, principal):
            await socket.accept()
            client = OpenSocket[SocketEvent](socket, principal, gate, gate.bearer)
            await Connection(client, rooms).run()


handlers = [dialect_socket]


class Connection:
    """One client's lanes. `run` returns when its socket is closed and what it alone knew is gone."""

    def __init__(self, client: OpenSocket[SocketEvent], rooms: Rooms) -> None:
        self._client = client
        self._outbox = client.outbox
        self._rooms = rooms
        self._lanes = Lanes()
        self._in_flight = asyncio.Semaphore(IN_FLIGHT)
        self._steer_numbers = itertools.count()

    async def run(self) -> None:
        try:
            await self._client.run(
                lambda group: [self._read(group), self._grow_old()], self._come_to_rest
            )
        finally:
            for lane in self._lanes:
                await self._forget(lane)

    async def _grow_old(self) -> int:
        await asyncio.sleep(LIFETIME_S)
        old = InvalidRequest(
            "This connection is an hour old; open a new one.",
            code="websocket_connection_limit_reached",
        )
        await self._outbox.put(error_event(old))
        return CLOSE_OLD

    async def _come_to_rest(self) -> None:
        """Returns when no lane is telling a response: all places are free, and taken here."""
        for _ in range(IN_FLIGHT):
            await self._in_flight.acquire()

    # ------------------------------------------------------------ the reader

    async def _read(self, group: asyncio.TaskGroup) -> int | None:
        try:
            return await self._hear(group)
        except TooMany as flood:
            await self._outbox.put(error_event(flood))
            return CLOSE_LATER

    async def _hear(self, group: asyncio.TaskGroup) -> int | None:
        while (message := await self._client.receive()) is not None:
            if not await self._client.may_go_on():
                return CLOSE_SIGNED_OUT
            document: Document = {}
            try:
                document = _document(message.get("text"))
                match _kind(document):
                    case "response.cancel":
                        await self._cancel(document)
                    case "response.steer":
                        await self._steer(document)
                    case _:
                        self._queue(document, group)
            except AppError as error:
                await self._outbox.put(error_event(error, _named(document)))
        return None

    def _queue(self, document: Document, group: asyncio.TaskGroup) -> None:
        lane, is_new = self._lanes.find(document.get("stream_id"))
        if is_new:
            group.create_task(self._work(lane))
        self._lanes.queue(lane, document)

    async def _cancel(self, document: Document) -> None:
        """Stop an answer, in whatever lane; its own terminal event tells that it stopped.

        Raises `InvalidRequest` and `NotFound`.
        """
        await self._rooms.supervisor.cancel(self._client.principal, _response_id(document))

    async def _steer(self, document: Document) -> None:
        """Take what is to be said next, and end the answer for it; or give it back."""
        named = document.get("previous_response_id")
        lane = self._lanes.telling(named)
        number = next(self._steer_numbers)
        try:
            if lane is None or lane.telling is None:
                raise not_told(document, self._lanes.told(named))
            telling = lane.telling
            steer = telling.accept(document)
        except InvalidRequest as error:
            stream_id = None if lane is None else lane.stream_id
            await self._outbox.put(steer_failed(error, as_it_came(document), number, stream_id))
            return
        told = steer_accepted(steer, telling.response_id, number, lane.stream_id)
        await self._outbox.put(told)
        await self._rooms.supervisor.steer(self._client.principal, telling.response_id)

    # ------------------------------------------------------------ a lane's worker

    async def _work(self, lane: Lane) -> None:
        while True:
            document = await lane.requests.get()
            async with self._in_flight:
                steered = await self._answer(lane, document)
                while steered is not None:
                    steered = await self._succeed(lane, steered)

    async def _answer(self, lane: Lane, document: Document) -> Telling | None:
        """Tell the response that is asked for; where it is steered, it comes back."""
        try:
            asked = response_create(document)
            if asked.background:
                raise not_supported("background")
            turn = response_turn(asked, await self._rooms.engine.info())
            if lane.waiting and lane.waiting.response_id == turn.previous_response_id:
                turn = lane.waiting.continued(turn)
            return await self._respond(lane, turn, padding=wants_padding(asked))
        except Exception as error:  # noqa: BLE001 -- becomes an event; logged where unforeseen
            if document.get("previous_response_id") == lane.latest:
                await self._forget(lane)
            await self._outbox.put(error_event(as_app_error(error), lane.stream_id))
            return None

    async def _succeed(self, lane: Lane, steered: Telling) -> Telling | None:
        """Go on from a steered response, or wait for what its functions give.

        What cannot be said is given back.
        """
        if steered.required:
            lane.waiting = steered
            for steer in steered.steers:
                number = next(self._steer_numbers)
                await self._outbox.put(steer_pending(steer, steered, number, lane.stream_id))
            return None
        failure: AppError = not_active()
        if lane.told is not None and lane.told.status in _CONTINUABLE:
            try:
                turn = steered.successor()
                return await self._respond(lane, turn, padding=steered.padding)
            except Exception as error:  # noqa: BLE001 -- becomes events; logged where unforeseen
                failure = successor_failed(as_app_error(error))
        await self._give_back(lane, steered, failure)
        return None

    async def _give_back(self, lane: Lane, steered: Telling, failure: AppError) -> None:
        for steer in steered.steers:
            returned = given_back(steer, steered.response_id)
            number = next(self._steer_numbers)
            await self._outbox.put(steer_failed(failure, returned, number, lane.stream_id))

    async def _respond(self, lane: Lane, turn: TurnRequest, *, padding: bool) -> Telling | None:
        await self._check_previous(turn)
        exchange = await begin(self._rooms.supervisor, self._client.principal, turn)
        response_id = exchange.log.response.id
        await self._move_on(lane, turn, response_id)
        waiting, lane.waiting = lane.waiting, None
        if waiting and waiting.response_id != turn.previous_response_id:
            await self._give_back(lane, waiting, not_active())
        lane.telling = telling = Telling(turn, response_id, padding=padding)
        fold = ResponseFold(echo(turn, exchange.compared), lane.stream_id, padding=padding)
        try:
            async for event in exchange.log.subscribe():
                for seen in fold.events(event):
                    telling.hear(seen)
                    await self._outbox.put(seen)
        finally:
            lane.telling, lane.told = None, exchange.log.response
        return telling if telling.steers else None

    async def _check_previous(self, turn: TurnRequest) -> None:
        """Beyond what the lanes remember only stored responses can be continued."""
        previous = turn.previous_response_id
        if previous is None or self._lanes.remembers(previous):
            return
        try:
            found = await self._rooms.supervisor.response(self._client.principal, previous)
        except NotFound as error:
            raise previous_response_not_found(previous) from error
        if not found.store:
            raise previous_response_not_found(previous)

    async def _move_on(self, lane: Lane, turn: TurnRequest, response_id: ResponseId) -> None:
        """The lane remembers its latest response only."""
        await self._forget(lane, None if turn.store else response_id)

    async def _forget(self, lane: Lane, latest: ResponseId | None = None) -> None:
        """Let go of what the lane remembers; it remembers `latest` before anything is awaited."""
        response_id, lane.latest = lane.latest, latest
        if response_id is not None:
            await self._rooms.supervisor.leave_response(self._client.principal, response_id)


def _document(text: str | None) -> Document:
    """A frame's JSON object. Raises `InvalidRequest`."""
    if text is None:
        raise InvalidRequest("Send text frames only.", code="invalid_json")
    if len(text) > LONGEST_FRAME:
        refused = InvalidRequest(
            f"A frame has at most {LONGEST_FRAME} characters, this one has {len(text)}.",
            code="frame_too_long",
        )
        refused.status = 413
        raise refused
    return read_document(text)


def _kind(document: Document) -> str:
    """One of the dialect's two, or our own `response.cancel`, which it lacks on a socket."""
    kind = document.get("type")
    if kind not in _KINDS:
        raise InvalidRequest(
            f"The events that are understood here are {', '.join(f'`{one}`' for one in _KINDS)}.",
            code="unknown_event_type",
            field="type",
        )
    return str(kind)


def _response_id(document: Document) -> ResponseId:
    response_id = document.get("response_id")
    if not isinstance(response_id, str):
        raise InvalidRequest("Name the response to stop.", field="response_id")
    return ResponseId(response_id)


def _named(document: Document) -> str | None:
    """The lane that an error belongs to, where its name is one."""
    with contextlib.suppress(InvalidRequest):
        return lane_name(document.get("stream_id"))
    return None
