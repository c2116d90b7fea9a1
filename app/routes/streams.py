"""An open event stream for a page: what is put into its outbox goes out until a reason to end it comes.

Like a socket it takes one of its user's places and ends when the server stops; it holds no connection of
the database. That it ends with its reader's rights is seen to for every answer (`cut`).
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
from litestar import Request
from litestar.response import ServerSentEvent, ServerSentEventMessage

from app.people.accounts import Principal
from app.routes.gate import Gate
from app.routes.outbox import Close, Outbox

QUIET_S = 15.0
"""A proxy takes a stream for dead that says nothing for a minute, most often."""

LOG = logging.getLogger(__name__)

Asked = Request[Principal, Any, Any]
Frames = Outbox[msgspec.Struct]
Tell = Callable[[Frames], AbstractAsyncContextManager[Sequence[Coroutine[Any, Any, object]]]]
"""Opens what the stream tells of, and gives what puts it into the outbox; the first to end ends all."""


async def stream(request: Asked, gate: Gate, tell: Tell) -> ServerSentEvent:
    """Raises `TooMany` and `Unavailable`, as a socket's handshake does."""
    gate.knock(request)
    async with gate.seat(request, request.user):
        pass  # refused here it is an answer; the stream takes the place itself when it begins
    return ServerSentEvent(_messages(request, gate, tell))


async def _messages(
    request: Asked, gate: Gate, tell: Tell
) -> AsyncIterator[ServerSentEventMessage]:
    outbox = Frames()
    async with gate.seat(request, request.user), tell(outbox) as telling:
        parts = [asyncio.create_task(part) for part in (*telling, gate.closing.wait())]
        ending = asyncio.create_task(_end_with(parts, outbox))
        try:
            while not isinstance(frame := await _next(outbox), Close):
                yield _message(frame)
        finally:
            for task in (ending, *parts):
                task.cancel()
            await asyncio.wait((ending, *parts))


async def _end_with(parts: Sequence["asyncio.Task[object]"], outbox: Frames) -> None:
    ended, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
    for part in ended:
        if error := part.exception():
            LOG.error("a stream failed", exc_info=error)
    await outbox.close(0)


async def _next(outbox: Frames) -> msgspec.Struct | Close | None:
    """None where nothing came for a while."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(QUIET_S):
            return await outbox.take()
    return None


def _message(frame: msgspec.Struct | None) -> ServerSentEventMessage:
    if frame is None:
        return ServerSentEventMessage(comment="")
    return ServerSentEventMessage(data=msgspec.json.encode(frame).decode())
