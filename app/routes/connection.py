"""An open websocket, whatever is spoken on it: its writer, its rights and its end.

Whoever speaks brings the parts: coroutines that read, pass on or wait, each returning a close code
(None where the peer is gone). They live in one task group with the writer and with two parts that
every socket has: one ends it when the rights are lost, one when the server stops. The first to end
ends them all, and everything else that was started in the group.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Generic, TypeVar

import msgspec
from litestar import WebSocket
from litestar.exceptions import WebSocketDisconnect

from app.errors import Forbidden, Unauthenticated
from app.people.accounts import Principal
from app.people.rates import FRAMES_PER_SOCKET, Bucket
from app.people.rights import Standing
from app.routes.gate import Gate
from app.routes.outbox import Close, Outbox
from app.routes.problems import CLOSE_RESTART, CLOSE_SIGNED_OUT

Socket = WebSocket[Any, Any, Any]
Frame = TypeVar("Frame")
Part = Coroutine[Any, Any, int | None]

WRITE_S = 20.0
"""A peer that takes no byte for so long is gone."""
FLUSH_S = 0.5
"""What is queued may still go out for so long before a close."""
SEEN_S = 60.0
"""An open socket is a use of its credential, and is written down as one so often."""


class _Over(Exception):
    """Ends the task group, and with it every task that is still in it."""


class OpenSocket(Generic[Frame]):
    """An accepted socket of `principal`; what is put into `outbox` is sent.

    `who` finds the principal anew; it raises `Unauthenticated` or `Forbidden` once the rights are
    gone.
    """

    def __init__(
        self,
        socket: Socket,
        principal: Principal,
        gate: Gate,
        who: Callable[[Socket], Awaitable[Principal]],
    ) -> None:
        self.outbox: Outbox[Frame] = Outbox()
        self._socket = socket
        self._gate = gate
        self._who = who
        self._frames = Bucket(FRAMES_PER_SOCKET)
        self._standing = Standing(principal)

    @property
    def principal(self) -> Principal:
        return self._standing.principal

    async def run(
        self,
        begin: Callable[[asyncio.TaskGroup], Iterable[Part]],
        at_rest: Callable[[], Awaitable[None]],
    ) -> None:
        """Returns when the socket is closed.

        `begin` makes the parts. `at_rest` returns when nothing is being told any more; a server
        that stops waits for it a little.
        """
        with self._gate.rights.watching(self._standing):
            code = await self._live(begin, at_rest)
        if code is not None:
            with contextlib.suppress(TimeoutError, OSError, WebSocketDisconnect):
                async with asyncio.timeout(FLUSH_S):
                    await self._socket.close(code)

    async def receive(self) -> dict[str, Any] | None:
        """The next message as it came; None when the peer has left. Raises `TooMany`."""
        message: dict[str, Any] = dict(await self._socket.receive())
        if message["type"] == "websocket.disconnect":
            return None
        self._frames.take()
        return message

    async def while_sure(self, longest_s: float) -> None:
        """Returns after so long, or as soon as the rights are in doubt."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await self._standing.doubted.wait()

    async def may_go_on(self) -> bool:
        """A role, a login, a key or an account may be gone meanwhile."""
        return self._gate.rights.are_sure(self._standing) or await self._resolve()

    async def _resolve(self) -> bool:
        try:
            await self._standing.resolve(self._who(self._socket))
        except (Unauthenticated, Forbidden):
            return False
        return True

    async def _live(
        self,
        begin: Callable[[asyncio.TaskGroup], Iterable[Part]],
        at_rest: Callable[[], Awaitable[None]],
    ) -> int | None:
        """The close code of whatever ended first."""
        code = None
        try:
            async with asyncio.TaskGroup() as group:
                writer = group.create_task(self._write())
                own = [self._lose_rights(), self._outlive_server(at_rest)]
                parts = [group.create_task(part) for part in (*own, *begin(group))]
                ended, _ = await asyncio.wait([writer, *parts], return_when=asyncio.FIRST_COMPLETED)
                code = next(iter(ended)).result()
                if code is not None:
                    await self._flush(writer, code)
                raise _Over
        except* _Over:
            pass
        return code

    async def _flush(self, writer: asyncio.Task[int | None], code: int) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await self.outbox.close(code)
                await asyncio.wait([writer])

    async def _write(self) -> int | None:
        is_left = False
        while True:
            frame = await self.outbox.take()
            if isinstance(frame, Close):
                return frame.code
            if is_left:
                continue
            try:
                async with asyncio.timeout(WRITE_S):
                    await self._socket.send_text(msgspec.json.encode(frame))
            except TimeoutError:
                return None
            except (OSError, WebSocketDisconnect):
                # Who reads hears of it behind what was sent before, and ends all when that is done.
                is_left = True

    async def _lose_rights(self) -> int:
        while await self._resolve():
            await self.while_sure(SEEN_S)
        return CLOSE_SIGNED_OUT

    async def _outlive_server(self, at_rest: Callable[[], Awaitable[None]]) -> int:
        await self._gate.closing.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await at_rest()
        return CLOSE_RESTART
