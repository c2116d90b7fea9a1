"""One request of the dialect and the turn it started: begin, read to the end or stream, clean up.

The generation belongs to the supervisor: whoever stops reading stops nothing (law 13). Only a
response that is not stored has no one left to ask for it, and ends with its request. It knows
neither the events of `/v1/responses` nor the chunks of chat completions.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

import msgspec
from litestar import MediaType, Request, Response
from litestar.background_tasks import BackgroundTask
from litestar.response import Stream

from app.chat.asked import Compared
from app.chat.entry import TurnRequest
from app.chat.eventlog import EventLog
from app.chat.supervisor import Supervisor
from app.errors import Conflict, InvalidRequest, NotFound, ParentMoved
from app.events import LogEvent
from app.people.accounts import Principal
from app.routes.openai.formats import IN_RESPONSES, name_the_schema

DialectRequest = Request[Principal, Any, Any]
Result = TypeVar("Result")

_CLIENT_GONE = 499
"""Nobody reads it; the log line shows it, as other servers' do."""
_STREAM_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class Exchange:
    """A turn that was started for `principal`, and its log."""

    __slots__ = ("_principal", "_stored", "_supervisor", "compared", "log")

    def __init__(
        self,
        supervisor: Supervisor,
        principal: Principal,
        log: EventLog,
        *,
        stored: bool,
        compared: Compared | None,
    ) -> None:
        self._supervisor = supervisor
        self._principal = principal
        self._stored = stored
        self.log = log
        self.compared = compared

    async def whole(self, request: DialectRequest) -> list[LogEvent] | None:
        """The log to its end; None where the client went before it."""
        try:
            return await _unless_gone(request, _to_the_end(self.log))
        finally:
            await self.leave()

    def stream(self, frames: AsyncIterator[bytes]) -> Stream:
        """An SSE answer; what follows it is done when the client goes, too."""
        return event_stream(frames, BackgroundTask(self.leave))

    async def leave(self) -> None:
        """Nobody reads here any more: what is not stored is stopped, and has no name from now."""
        if not self._stored:
            await self._supervisor.leave_response(self._principal, self.log.response.id)


async def begin(supervisor: Supervisor, principal: Principal, turn: TurnRequest) -> Exchange:
    """Start a turn. Raises what `Supervisor.create` raises, in the dialect's codes."""
    try:
        accepted = await supervisor.create(principal, turn)
    except NotFound as error:
        raise _dialects_own(error, turn) from error
    except ParentMoved as error:
        raise Conflict(
            "Another response came into this conversation at the same time.",
            code="turn_in_progress",
            field="conversation",
        ) from error
    except InvalidRequest as error:
        name_the_schema(error, IN_RESPONSES)
        raise
    log = await supervisor.log(principal, accepted.response.id)
    return Exchange(supervisor, principal, log, stored=turn.store, compared=accepted.compared)


def _dialects_own(error: NotFound, turn: TurnRequest) -> NotFound | InvalidRequest:
    match error.field:
        case "previous_response_id":
            return previous_response_not_found(str(turn.previous_response_id))
        case "conversation_id":
            return NotFound(error.message, code="conversation_not_found", field="conversation")
        case "persona_id" | "document_id":
            return NotFound(error.message, code="prompt_not_found", field="prompt.id")
        case _:
            return error


def previous_response_not_found(response_id: str) -> InvalidRequest:
    return InvalidRequest(
        f"The previous response {response_id!r} is not found.",
        code="previous_response_not_found",
        field="previous_response_id",
    )


async def _to_the_end(log: EventLog) -> list[LogEvent]:
    return [event async for event in log.subscribe()]


async def _unless_gone(
    request: DialectRequest, work: Coroutine[None, None, Result]
) -> Result | None:
    """`work`'s result; None and `work` cancelled where the client disconnects first."""
    async with asyncio.TaskGroup() as group:
        working = group.create_task(work)
        leaving = group.create_task(_gone(request))
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        if not working.done():
            working.cancel()
    return None if working.cancelled() else working.result()


async def _gone(request: DialectRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


# ---------------------------------------------------------------- answers


def event_stream(frames: AsyncIterator[bytes], background: BackgroundTask | None = None) -> Stream:
    return Stream(
        frames,
        media_type="text/event-stream",
        headers=_STREAM_HEADERS,
        background=background,
        status_code=200,
    )


def json_answer(content: msgspec.Struct | None) -> Response[bytes]:
    """A struct as JSON; None answers a client that has gone."""
    if content is None:
        return Response(b"", status_code=_CLIENT_GONE)
    return Response(msgspec.json.encode(content), media_type=MediaType.JSON, status_code=200)
