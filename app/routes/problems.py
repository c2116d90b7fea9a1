"""The only page that knows statuses, bodies and close codes.

An error becomes problem details on `/api`, OpenAI's body on `/v1`, a frame on an open socket, an
HTTP answer to a handshake that is not let in, or a close code. An `AppError` speaks for itself;
foreign errors are translated here, and what nobody foresaw is logged under its request id and shown
without its words.
"""

import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import msgspec
import structlog
from litestar import MediaType, Request, Response, WebSocket
from litestar.exceptions import (
    HTTPException,
    MethodNotAllowedException,
    WebSocketDisconnect,
)

from app.errors import (
    AppError,
    Code,
    Conflict,
    Forbidden,
    InvalidRequest,
    NotFound,
    PromptTooLong,
    QuotaExceeded,
    TooMany,
    Unauthenticated,
    Unavailable,
)
from app.events import Problem, QuotaFault
from app.frames import ErrorFrame
from engine import errors as engine_errors

log = structlog.get_logger("keepwarm.problems")

DIALECT = "/v1"

SOON_S = 60.0
"""What takes longer is not worth a client's automatic repetition."""
CLOSE_OLD = 1000
CLOSE_SIGNED_OUT = 4401
CLOSE_UNSUPPORTED = 1003
CLOSE_POLICY = 1008
CLOSE_TOO_BIG = 1009
CLOSE_INTERNAL = 1011
CLOSE_RESTART = 1012
CLOSE_LATER = 1013


class ProblemDetails(msgspec.Struct, frozen=True, kw_only=True):
    """RFC 9457, with our code, the field at fault and the request id."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    field: str | None
    request_id: str
    quota: QuotaFault | msgspec.UnsetType = msgspec.UNSET


class DialectError(msgspec.Struct, frozen=True, kw_only=True):
    """What stands under `error` in the OpenAI dialect."""

    message: str
    type: str
    param: str | None
    code: str | None


class DialectFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A refusal's whole body in the OpenAI dialect."""

    error: DialectError


# ---------------------------------------------------------------- any error -> AppError


def as_app_error(error: Exception) -> AppError:
    """Translate what we know; log the rest and hide its words."""
    match error:
        case AppError():
            return error
        case HTTPException():
            return _from_framework(error)
        case msgspec.ValidationError() | msgspec.DecodeError():
            return from_decoding(error)
        case engine_errors.EngineError():
            return _from_engine(error)
        case _:
            return _unforeseen(error)


def from_decoding(error: msgspec.DecodeError) -> InvalidRequest:
    """Msgspec names the place as `... - at `$.field``; without one the JSON itself is broken."""
    message, _, place = str(error).partition(" - at `$")
    field = place.rstrip("`").lstrip(".") or None
    if isinstance(error, msgspec.ValidationError):
        return InvalidRequest(message, field=field)
    return InvalidRequest("This is not valid JSON.", code="invalid_json")


def _from_framework(error: HTTPException) -> AppError:
    if error.status_code >= 500:
        return _unforeseen(error)
    if error.status_code == 404:
        return NotFound("There is nothing at this address.")
    # Litestar wraps what msgspec said about a body.
    if isinstance(error.__cause__, msgspec.DecodeError):
        fault = from_decoding(error.__cause__)
        # A handler calls the body `data`, which is nothing that its sender knows.
        handlers_name, _, place = (fault.field or "").partition(".")
        fault.field = (place or None) if handlers_name == "data" else fault.field
        return fault
    code: Code = "body_too_large" if error.status_code == 413 else "invalid_request"
    fault = InvalidRequest(_framework_words(error), code=code, field=_framework_field(error))
    fault.status = error.status_code
    return fault


def _framework_words(error: HTTPException) -> str:
    match error.extra:
        case [{"message": str(message)}, *_]:
            return message
        case _:
            return error.detail or HTTPStatus(error.status_code).phrase


def _framework_field(error: HTTPException) -> str | None:
    match error.extra:
        case [{"key": str(key)}, *_]:
            return key
        case _:
            return None


def _from_engine(error: engine_errors.EngineError) -> AppError:
    match error:
        case engine_errors.PromptTooLong():
            return PromptTooLong(
                error.message, needed_tokens=error.needed_tokens, limit_tokens=error.limit_tokens
            )
        case engine_errors.Overloaded():
            return TooMany(error.message, retry_after_s=error.retry_after_s)
        case engine_errors.Refused():
            return InvalidRequest(error.message, code="invalid_job", field=error.field)
        case engine_errors.EngineLost() | engine_errors.EngineClosed():
            return Unavailable("The engine is away; try again in a moment.", retry_after_s=1.0)
        case _:
            return _unforeseen(error)


def _unforeseen(error: Exception) -> AppError:
    log.error("unforeseen error", exc_info=error)
    return AppError("Something went wrong on the server; its log has more under this request id.")


# ---------------------------------------------------------------- AppError -> what a client sees


def problem(error: AppError) -> Problem:
    """As it stands in an `error` frame and in a failed response."""
    return Problem(
        code=error.code,
        message=error.message,
        field=error.field,
        retry_after_s=error.retry_after_s,
        quota=_quota(error),
    )


def _quota(error: AppError) -> QuotaFault | None:
    if not isinstance(error, QuotaExceeded):
        return None
    return QuotaFault(kind=error.quota, limit=error.limit, resets_at=error.resets_at)


def _returns_soon(error: AppError) -> bool:
    """Whether a client's own repetition may help."""
    if error.status == 409:
        return False
    if isinstance(error, QuotaExceeded):
        return error.retry_after_s is not None and error.retry_after_s <= SOON_S
    return True


def error_frame(error: AppError, request_id: str | None = None) -> ErrorFrame:
    return ErrorFrame(request_id=request_id, error=problem(error))


def dialect_error(error: AppError) -> DialectError:
    return DialectError(
        message=error.message,
        type=_dialect_type(error.status),
        param=error.field,
        code=_dialect_code(error),
    )


def _dialect_code(error: AppError) -> str:
    match error:
        case Unauthenticated():
            return "invalid_api_key"
        case QuotaExceeded():
            return "rate_limit_exceeded" if _returns_soon(error) else "insufficient_quota"
        case _:
            return error.code


def _dialect_type(status: int) -> str:
    if status >= 500:
        return "server_error"
    special = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    return special.get(status, "invalid_request_error")


def close_code(error: AppError) -> int:
    """What an open socket is closed with; an SDK reconnects by itself after 1011 to 1013."""
    match error:
        case Unauthenticated():
            return CLOSE_SIGNED_OUT
        case Unavailable():
            return CLOSE_RESTART
        case TooMany():
            return CLOSE_LATER
        case Forbidden() | NotFound() | InvalidRequest() | Conflict():
            return CLOSE_POLICY
        case _:
            return CLOSE_INTERNAL


def body(error: AppError, path: str, request_id: str) -> tuple[bytes, str]:
    """The error in the dialect of the route it came by, and its content type."""
    if speaks_dialect(path):
        return msgspec.json.encode(DialectFailure(error=dialect_error(error))), MediaType.JSON
    details = ProblemDetails(
        title=HTTPStatus(error.status).phrase,
        status=error.status,
        detail=error.message,
        code=error.code,
        field=error.field,
        request_id=request_id,
        quota=_quota(error) or msgspec.UNSET,
    )
    return msgspec.json.encode(details), "application/problem+json"


def speaks_dialect(path: str) -> bool:
    return path == DIALECT or path.startswith(f"{DIALECT}/")


def headers(error: AppError) -> dict[str, str]:
    """What a client's retry logic needs: SDKs repeat a 409 and a 429 unless they are told not to."""
    found: dict[str, str] = {}
    if error.retry_after_s is not None:
        found["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    if not _returns_soon(error):
        found["x-should-retry"] = "false"
    if error.status == 401:
        found["www-authenticate"] = "Bearer"
    return found


# ---------------------------------------------------------------- the two ways out


def answer(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """The app's one exception handler."""
    found = as_app_error(error)
    content, media_type = body(found, request.url.path, request_id_of(request.scope))
    return Response(
        content,
        status_code=found.status,
        media_type=media_type,
        headers=headers(found) | _allowed(error),
    )


def _allowed(error: Exception) -> dict[str, str]:
    """Which methods there are, where it was another (RFC 9110, 15.5.6)."""
    if not isinstance(error, MethodNotAllowedException):
        return {}
    listed = (error.headers or {}).get("allow", "").split(", ")
    return {"allow": ", ".join(one for one in listed if one.isupper())}


def request_id_of(scope: Mapping[str, Any]) -> str:
    """The id that `gate.Front` gave this request."""
    return str(scope.get("state", {}).get("request_id", ""))


@asynccontextmanager
async def answering(socket: WebSocket[Any, Any, Any]) -> AsyncIterator[None]:
    """What escapes a socket's handler: before accept an HTTP answer, after it a close code.

    A peer that leaves is no error. Close reasons stay empty: they are no place for an error's words.
    """
    try:
        yield
    except WebSocketDisconnect:
        return
    except Exception as error:  # noqa: BLE001 -- the last stop of a socket; logged where unforeseen
        found = as_app_error(error)
        if socket.connection_state == "init":
            await deny(socket, found)
        elif socket.connection_state != "disconnect":
            await socket.close(close_code(found))


async def deny(socket: WebSocket[Any, Any, Any], error: AppError) -> None:
    """Answer a handshake with a real status and body, by ASGI's websocket denial messages.

    Closing before accept would make every refusal a bare 403.
    """
    await socket.receive()
    content, media_type = body(error, socket.scope["path"], request_id_of(socket.scope))
    answer_headers = {"content-type": media_type, **headers(error)}
    encoded = [(name.encode(), value.encode()) for name, value in answer_headers.items()]
    # Litestar's message types leave out the denial extension.
    send: Any = socket.send
    await send(
        {"type": "websocket.http.response.start", "status": error.status, "headers": encoded}
    )
    await send({"type": "websocket.http.response.body", "body": content})
