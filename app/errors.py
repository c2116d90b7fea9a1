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

from typing import Literal

PageCode = Literal[
    "account_disabled",
    "bad_credentials",
    "body_too_large",
    "conflict",
    "context_length_exceeded",
    "csrf",
    "email_taken",
    "file_damaged",
    "file_encrypted",
    "file_foreign",
    "file_too_complex",
    "file_too_large",
    "file_unknown",
    "file_without_conversations",
    "file_without_text",
    "forbidden",
    "gone",
    "identity_taken",
    "in_use",
    "invalid_job",
    "invalid_json_schema",
    "invalid_link",
    "invalid_prompt",
    "invalid_request",
    "last_admin",
    "login_too_old",
    "needs_password",
    "no_address",
    "no_provider",
    "not_continuable",
    "not_found",
    "not_invited",
    "nothing_to_sum_up",
    "only_way_in",
    "origin",
    "parent_moved",
    "provider_unavailable",
    "quota_exceeded",
    "rate_limit_exceeded",
    "response_deleted",
    "server_error",
    "sign_in_denied",
    "sign_in_expired",
    "sign_in_refused",
    "summary_in_progress",
    "summary_stopped",
    "too_many_invitations",
    "too_many_items",
    "turn_in_progress",
    "unauthenticated",
    "unavailable",
    "unknown_host",
    "wrong_address",
    "wrong_password",
]
"""What a page may be told. It says each in its reader's language: `web/src/strings/faults.en.ts`."""
ProgramCode = Literal[
    "bad_backup",
    "bad_setting",
    "binary_frame",
    "call_not_answered",
    "call_not_found",
    "conversation_not_found",
    "exists",
    "frame_too_long",
    "invalid_api_key",
    "invalid_input",
    "invalid_json",
    "invalid_stream_id",
    "invalid_value",
    "missing_required_parameter",
    "missing_scope",
    "model_not_found",
    "mutually_exclusive_parameters",
    "previous_response_not_found",
    "prompt_not_found",
    "response_already_completed",
    "response_not_active",
    "response_not_found",
    "steering_not_supported",
    "successor_creation_failed",
    "too_many_pending_steers",
    "two_credentials",
    "unexpected_hello",
    "unknown_event_type",
    "unsupported_parameter",
    "unsupported_protocol",
    "websocket_connection_limit_reached",
    "websocket_queue_full",
    "websocket_stream_limit_reached",
    "wrong_revision",
]
"""What only programs, commands and pages of another version can cause."""
Code = Literal[PageCode, ProgramCode]


class AppError(Exception):
    """Root of what the app raises on purpose."""

    code: Code = "server_error"
    status = 500

    def __init__(
        self,
        message: str,
        *,
        code: Code | None = None,
        field: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.field = field
        self.retry_after_s = retry_after_s


class InvalidRequest(AppError):
    code: Code = "invalid_request"
    status = 400


class PromptTooLong(InvalidRequest):
    code: Code = "context_length_exceeded"

    def __init__(
        self, message: str, *, needed_tokens: int, limit_tokens: int, field: str = "input"
    ) -> None:
        super().__init__(message, field=field)
        self.needed_tokens = needed_tokens
        self.limit_tokens = limit_tokens


class Unauthenticated(AppError):
    code: Code = "unauthenticated"
    status = 401


class Forbidden(AppError):
    code: Code = "forbidden"
    status = 403


class NotFound(AppError):
    code: Code = "not_found"
    status = 404


class Conflict(AppError):
    code: Code = "conflict"
    status = 409


class ParentMoved(Conflict):
    code: Code = "parent_moved"

    def __init__(self, message: str, *, leaf_id: str | None) -> None:
        super().__init__(message, field="parent_id")
        self.leaf_id = leaf_id


class TooMany(AppError):
    code: Code = "rate_limit_exceeded"
    status = 429


class QuotaExceeded(TooMany):
    code: Code = "quota_exceeded"

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
    code: Code = "unavailable"
    status = 503
