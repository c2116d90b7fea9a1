"""What every answer passes, known path or not, HTTP and websocket alike: the outermost layer.

Gives each request an id and a span, refuses Hosts that are not ours (Litestar's own layer meets a socket with
an HTTP response and breaks it), adds the security headers, plants the CSRF cookie and writes one
log line without query or text. It knows no user.
"""

import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import Any

import structlog
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from app.errors import InvalidRequest
from app.ids import new_request_id
from app.people.audit import STRANGER, act_as
from app.routes import problems
from app.routes.gate import CSRF_COOKIE, Gate
from app.routes.static import SECURITY_HEADERS

log = structlog.get_logger("keepwarm.http")
tracer = trace.get_tracer("keepwarm.http")
propagator = TraceContextTextMapPropagator()

RawHeaders = list[tuple[bytes, bytes]]

_STARTS = {"http.response.start", "websocket.http.response.start", "websocket.accept"}
_SECURITY = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]


class Front:
    """Wraps the whole app. Litestar runs its own middleware only behind a path that it knows."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = new_request_id()
        act_as(STRANGER)
        scope.setdefault("state", {})["request_id"] = request_id
        visit = _Visit(scope, send, self._extra_headers(scope, request_id))
        with structlog.contextvars.bound_contextvars(request_id=request_id), visit.traced():
            try:
                if self._gate.hosts.knows(_header(scope, b"host")):
                    await self._app(scope, receive, visit.send)
                else:
                    await _refuse_host(scope, receive, visit.send, request_id)
            finally:
                visit.log()

    def _extra_headers(self, scope: Scope, request_id: str) -> RawHeaders:
        extra = [(b"x-request-id", request_id.encode())]
        if scope["type"] == ScopeType.HTTP:
            extra += _SECURITY
            if _is_browsers(scope["path"]) and not _has_csrf_cookie(scope):
                extra.append(self._gate.csrf_cookie().to_encoded_header())
        return extra


class _Visit:
    """One request on its way out: adds headers to its first message, remembers how it went."""

    def __init__(self, scope: Scope, send: Send, extra: RawHeaders) -> None:
        self._scope = scope
        self._send = send
        self._extra = extra
        self._status: int | None = None
        self._started = time.perf_counter()

    async def send(self, message: Any) -> None:
        if message["type"] in _STARTS:
            self._status = message.get("status", 101)
            message["headers"] = [*_without(message.get("headers", ()), self._extra), *self._extra]
        await self._send(message)

    @contextlib.contextmanager
    def traced(self) -> Iterator[None]:
        """A span, below the caller's own. None for a socket: it would last as long as a page is open."""
        if self._scope["type"] != ScopeType.HTTP:
            yield
            return
        method, caller = (
            self._scope["method"],
            {"traceparent": _header(self._scope, b"traceparent")},
        )
        with tracer.start_as_current_span(
            method,
            context=propagator.extract(caller),
            kind=trace.SpanKind.SERVER,
            record_exception=False,  # its words may be a user's
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            finally:
                route = self._scope.get("path_template")
                told = {
                    "http.request.method": method,
                    "http.route": route,
                    "http.response.status_code": self._status,
                    "keepwarm.request_id": self._scope["state"]["request_id"],
                }
                span.update_name(f"{method} {route}" if route else method)
                span.set_attributes(
                    {name: value for name, value in told.items() if value is not None}
                )

    def log(self) -> None:
        log.info(
            "answered",
            method=self._scope.get("method", "WEBSOCKET"),
            path=self._scope["path"],
            status=self._status,
            seconds=round(time.perf_counter() - self._started, 4),
        )


async def _refuse_host(scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
    error = InvalidRequest(
        "This name is not one that the server answers to; KEEPWARM_PUBLIC_URL sets it.",
        code="unknown_host",
        field="host",
    )
    content, media_type = problems.body(error, scope["path"], request_id)
    prefix = "" if scope["type"] == ScopeType.HTTP else "websocket."
    if prefix:
        await receive()
    raw: Any = send
    await raw(
        {
            "type": f"{prefix}http.response.start",
            "status": error.status,
            "headers": [(b"content-type", media_type.encode())],
        }
    )
    await raw({"type": f"{prefix}http.response.body", "body": content})


def _header(scope: Scope, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


def _has_csrf_cookie(scope: Scope) -> bool:
    return f"{CSRF_COOKIE}=" in _header(scope, b"cookie")


def _is_browsers(path: str) -> bool:
    return path in ("/", "/setup", "/admin") or path.startswith("/api/")


def _without(headers: Iterable[tuple[bytes, bytes]], extra: RawHeaders) -> RawHeaders:
    """A handler's own cookies stay; its other headers give way to ours."""
    ours = {name for name, _ in extra} - {b"set-cookie"}
    return [(name, value) for name, value in headers if name not in ours]
