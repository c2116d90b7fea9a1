"""Cuts an HTTP request that is under way when the rights of who asked are gone.

    body comes in    the rest is not waited for, and nothing is done with what came
    is answered      who listens for the client to leave (`receive`) hears that it left;
                     who does not, and may take long (`WAITS`), is cancelled
    then             the client gets a last word, and the end

They go when a login, a key or an account is revoked, or a role is another (`people.rights`). What is
answered at once is never touched: who signs out, or takes something back, hears that it is done.
"""

import asyncio
import contextlib
from typing import Any

import msgspec
from litestar.connection import ASGIConnection
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from app.errors import AppError, Forbidden, InvalidRequest, Unauthenticated, Unavailable
from app.people.accounts import Principal
from app.people.rights import Standing
from app.routes import problems
from app.routes.gate import Gate

GONE = {"type": "http.disconnect"}
WAITS = {"waits": True}
"""Stands in the `opt` of a handler that takes long without listening. Cancelled, it undoes its own."""


class Cut:
    """Wraps the whole app, inside `Front`."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        asked = _Asked(scope, receive, send, self._gate)
        await asked.serve(self._app)


class _Asked:
    """One request: what comes in and goes out of it."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, gate: Gate) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._gate = gate
        self._is_read = False
        self._is_answered = False
        self._serving: asyncio.Task[Any] | None = asyncio.current_task()
        self._watching: asyncio.Task[None] | None = None
        self._fault: AppError | None = None
        self._media_type: str | None = None
        """Of the answer, once it has begun."""

    async def serve(self, app: ASGIApp) -> None:
        try:
            await app(self._scope, self.receive, self.send)
        except asyncio.CancelledError:
            assert self._serving is not None
            if self._fault is None or self._watching is None or self._serving.uncancel():
                raise
        finally:
            if self._watching is not None:
                self._watching.cancel()
        await self._end()

    async def receive(self) -> Any:
        principal = self._scope.get("user")
        is_known = isinstance(principal, Principal)
        message = await (self._until_gone(principal) if is_known else self._receive())
        if not self._is_read:
            self._is_read = self._is_last(message)
            if self._is_read and is_known and self._waits:
                self._watching = asyncio.create_task(self._cancel_without_rights(principal))
        return message

    def _is_last(self, message: Any) -> bool:
        """Of the body. Raises what ends the request where there will be no more of it."""
        if message["type"] == "http.request":
            return not message.get("more_body", False)
        if self._media_type is not None:
            # It is being answered, so nobody wants a body: who answers hears that its client left.
            return True
        fault, self._fault = self._fault, None
        raise fault or InvalidRequest("The client left before all of its request was there.")

    @property
    def _waits(self) -> bool:
        return bool(self._scope["route_handler"].opt.get("waits"))

    async def send(self, message: Any) -> None:
        if self._fault is not None:
            return
        if message["type"] == "http.response.start":
            headers = {name.lower(): value for name, value in message.get("headers", ())}
            self._media_type = headers.get(b"content-type", b"").decode("latin-1")
        self._is_answered = message["type"] == "http.response.body" and not message.get(
            "more_body", False
        )
        await self._send(message)

    async def _until_gone(self, principal: Principal) -> Any:
        """The client leaves, or its rights do."""
        async with asyncio.TaskGroup() as group:
            leaving = group.create_task(self._take())
            await asyncio.sleep(0)  # mostly it is there already, and nobody has to watch
            if leaving.done():
                return leaving.result()
            losing = group.create_task(self._lose_rights(principal))
            await asyncio.wait((leaving, losing), return_when=asyncio.FIRST_COMPLETED)
            leaving.cancel()
            losing.cancel()
        return GONE if leaving.cancelled() else leaving.result()

    async def _take(self) -> Any:
        return await self._receive()

    async def _lose_rights(self, principal: Principal) -> None:
        standing = Standing(principal)
        connection = ASGIConnection[Any, Any, Any, Any](self._scope)
        with self._gate.rights.watching(standing):
            while True:
                await standing.doubted.wait()
                try:
                    await standing.resolve(self._gate.again(connection, principal))
                except (Unauthenticated, Forbidden, Unavailable) as fault:
                    self._fault = fault
                    return

    async def _cancel_without_rights(self, principal: Principal) -> None:
        await self._lose_rights(principal)
        assert self._serving is not None
        self._serving.cancel()

    async def _end(self) -> None:
        """The last word to whoever was cut off."""
        if self._fault is None or self._is_answered:
            return
        raw: Any = self._send
        request_id = problems.request_id_of(self._scope)
        body, kind = problems.body(self._fault, self._scope["path"], request_id)
        if self._media_type is None:
            headers = {"content-type": kind, **problems.headers(self._fault)}
            encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
            status = self._fault.status
            await raw({"type": "http.response.start", "status": status, "headers": encoded})
        else:
            is_stream = self._media_type.startswith("text/event-stream")
            body = self._last_event(self._fault) if is_stream else b""
        with contextlib.suppress(OSError):
            await raw({"type": "http.response.body", "body": body, "more_body": False})

    def _last_event(self, fault: AppError) -> bytes:
        """In the form that errors have on this stream."""
        path = self._scope["path"]
        said: object
        if not problems.speaks_dialect(path):
            said = problems.error_frame(fault)
        elif path.startswith(f"{problems.DIALECT}/responses"):
            said = {**msgspec.structs.asdict(problems.dialect_error(fault)), "type": "error"}
        else:
            said = {"error": problems.dialect_error(fault)}
        return b"event: error\ndata: %b\n\n" % msgspec.json.encode(said)
