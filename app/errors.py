"""The app's errors: each has a stable code, an HTTP-like status, words and the field at fault.

AppError
├── InvalidRequest      400  malformed, unknown or unsupported; `field` names it
│   └── PromptTooLong   400  carries the token count and the limit
├── Unauthenticated     401  no valid login or key
├── Forbidden           403  known caller, not allowed (never used for ids: see NotFound)
├── NotFound            404  unknown id and another user's id look the same
├── Conflict            409  a turn is running, or the id is taken; not worth an automatic retry
│   └── ParentMoved       409  the conversation went on elsewhere; carries its leaf
├── TooMany             429  sockets, turns, log-in attempts; carries retry_after_s
│   └── QuotaExceeded     429  carries the quota, its limit and when it begins anew
└── Unavailable         503  engine or database is away or busy, or the server stops; carries retry_after_s

Only `routes.problems` turns these into bodies and close codes.
"""


class AppError(Exception):
    """Root of what the app raises on purpose."""

    code = "server_error"
    status = 500

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        field: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.field = field
        self.retry_after_s = retry_after_s


class InvalidRequest(AppError):
    code = "invalid_request"
    status = 400


class PromptTooLong(InvalidRequest):
    code = "context_length_exceeded"

    def __init__(
        self, message: str, *, needed_tokens: int, limit_tokens: int, field: str = "input"
    ) -> None:
        super().__init__(message, field=field)
        self.needed_tokens = needed_tokens
        self.limit_tokens = limit_tokens


class Unauthenticated(AppError):
    code = "unauthenticated"
    status = 401


class Forbidden(AppError):
    code = "forbidden"
    status = 403


class NotFound(AppError):
    code = "not_found"
    status = 404


class Conflict(AppError):
    code = "conflict"
    status = 409


class ParentMoved(Conflict):
    code = "parent_moved"

    def __init__(self, message: str, *, leaf_id: str | None) -> None:
        super().__init__(message, field="parent_id")
        self.leaf_id = leaf_id


class TooMany(AppError):
    code = "rate_limit_exceeded"
    status = 429


class QuotaExceeded(TooMany):
    code = "quota_exceeded"

    def __init__(
        self,
        message: str,
        *,
        quota: str,
        limit: int,
        resets_at: float | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.quota = quota
        self.limit = limit
        self.resets_at = resets_at


class Unavailable(AppError):
    code = "unavailable"
    status = 503
