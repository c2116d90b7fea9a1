"""What a server answers before it is up: that it is alive, and to everything else, when to come back.

It stands at the door while the database is migrated and the model is loaded, knows no request but its
first line, and leaves its connections to nobody: each has one answer.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from http import HTTPStatus

from app.errors import Unavailable
from app.ids import new_request_id
from app.routes import problems
from app.routes.static import SECURITY_HEADERS

RETRY_S = 1.0
_HEAD_BYTES = 64 * 1024
_HEAD_S = 5.0
"""How long a client may take over the head of its request."""
_LIVE = "/health/live"
_CLIENTS_FAULT = (
    OSError,
    TimeoutError,
    ValueError,
    asyncio.IncompleteReadError,
    asyncio.LimitOverrunError,
)


@contextlib.asynccontextmanager
async def answering(listener: socket.socket) -> AsyncIterator[None]:
    """Answer on this address until the block ends; who comes later waits for who listens then."""
    loop = asyncio.get_running_loop()
    answers: set[asyncio.Task[None]] = set()

    def take() -> None:
        with contextlib.suppress(OSError):
            taken, _ = listener.accept()
            answers.add(answer := loop.create_task(_answer(taken)))
            answer.add_done_callback(answers.discard)

    listener.setblocking(False)
    listener.listen()
    # An asyncio.Server would drop what it has accepted and not yet begun when it is closed. What is
    # not accepted here stays in the socket's queue.
    loop.add_reader(listener, take)
    try:
        yield
    finally:
        loop.remove_reader(listener)  # what was accepted has its answer yet


async def _answer(taken: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=taken, limit=_HEAD_BYTES)
    with contextlib.suppress(*_CLIENTS_FAULT):
        async with asyncio.timeout(_HEAD_S):
            head = await reader.readuntil(b"\r\n\r\n")
            _, target, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
            writer.write(_response(target.partition("?")[0]))
            await writer.drain()
    writer.close()


def _response(path: str) -> bytes:
    request_id = new_request_id()
    headers = {"connection": "close", "x-request-id": request_id, **SECURITY_HEADERS}
    if path == _LIVE:
        status, content, media_type = HTTPStatus.OK, b'{"status":"live"}', "application/json"
    else:
        error = Unavailable("The server is starting.", retry_after_s=RETRY_S)
        status = HTTPStatus(error.status)
        content, media_type = problems.body(error, path, request_id)
        headers |= problems.headers(error)
    headers |= {"content-type": media_type, "content-length": str(len(content))}
    lines = [f"HTTP/1.1 {status.value} {status.phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + content
