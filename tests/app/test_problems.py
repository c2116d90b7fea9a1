"""What each error becomes, in each dialect, and that none of them shows its inside."""

import json

import msgspec
import pytest
from litestar.exceptions import (
    InternalServerException,
    MethodNotAllowedException,
    NotFoundException,
    ValidationException,
)

from app.errors import (
    AppError,
    Conflict,
    Forbidden,
    InvalidRequest,
    NotFound,
    PromptTooLong,
    TooMany,
    Unauthenticated,
    Unavailable,
)
from app.frames import InwardFrame
from app.routes import problems
from engine import errors as engine_errors

SECRET = "the inside of the server"

ALL = [
    InvalidRequest("m"),
    Unauthenticated("m"),
    Forbidden("m"),
    NotFound("m"),
    Conflict("m"),
    TooMany("m", retry_after_s=0.2),
    Unavailable("m"),
    AppError("m"),
]


@pytest.mark.parametrize("error", ALL, ids=lambda error: type(error).__name__)
def test_api_errors_are_problem_details(error: AppError):
    content, media_type = problems.body(error, "/api/keys", "req_1")

    assert media_type == "application/problem+json"
    details = json.loads(content)
    assert set(details) == {"type", "title", "status", "detail", "code", "field", "request_id"}
    assert (details["status"], details["code"], details["detail"]) == (
        error.status,
        error.code,
        "m",
    )
    assert details["request_id"] == "req_1"


@pytest.mark.parametrize("path", ["/v1", "/v1/responses", "/v1/no-such-thing"])
def test_dialect_errors_have_the_openai_body(path: str):
    content, media_type = problems.body(InvalidRequest("m", code="gone", field="input"), path, "r")

    assert media_type == "application/json"
    assert json.loads(content) == {
        "error": {"message": "m", "type": "invalid_request_error", "param": "input", "code": "gone"}
    }


def test_a_path_that_only_begins_like_the_dialect_is_not_the_dialect():
    assert not problems.speaks_dialect("/v10/x")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Unauthenticated("m"), "authentication_error"),
        (Forbidden("m"), "permission_error"),
        (NotFound("m"), "invalid_request_error"),
        (TooMany("m"), "rate_limit_error"),
        (Unavailable("m"), "server_error"),
    ],
)
def test_the_dialect_names_the_type_of_an_error_by_its_status(error: AppError, kind: str):
    assert problems.dialect_error(error).type == kind


def test_headers_tell_a_client_when_to_try_again_and_when_not():
    assert problems.headers(TooMany("m", retry_after_s=0.2)) == {"retry-after": "1"}
    assert problems.headers(TooMany("m", retry_after_s=7.1)) == {"retry-after": "8"}
    assert problems.headers(Conflict("m")) == {"x-should-retry": "false"}
    assert problems.headers(Unauthenticated("m")) == {"www-authenticate": "Bearer"}


@pytest.mark.parametrize("error", ALL, ids=lambda error: type(error).__name__)
def test_close_codes_are_ones_that_an_application_may_send(error: AppError):
    code = problems.close_code(error)

    assert code in {1008, 1011, 1012, 1013, 4401}


def test_only_what_another_try_can_mend_makes_an_sdk_come_back():
    comes_back = {1001, 1005, 1006, 1011, 1012, 1013, 1015}

    assert problems.close_code(Unavailable("m")) in comes_back
    assert problems.close_code(TooMany("m")) in comes_back
    assert problems.close_code(Unauthenticated("m")) not in comes_back
    assert problems.close_code(Forbidden("m")) not in comes_back


@pytest.mark.parametrize(
    "error",
    [
        ValueError(SECRET),
        RuntimeError(SECRET),
        InternalServerException(SECRET),
        engine_errors.Corrupt(SECRET),
        ExceptionGroup("group", [ValueError(SECRET)]),
    ],
)
def test_what_nobody_foresaw_is_a_server_error_without_its_words(error: Exception):
    found = problems.as_app_error(error)

    assert (found.status, found.code) == (500, "server_error")
    assert SECRET not in found.message


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NotFoundException(), 404, "not_found"),
        (MethodNotAllowedException(), 405, "invalid_request"),
        (engine_errors.EngineLost(SECRET), 503, "unavailable"),
        (engine_errors.EngineClosed(SECRET), 503, "unavailable"),
        (engine_errors.Overloaded("full", retry_after_s=2.0), 429, "rate_limit_exceeded"),
        (engine_errors.InvalidJob("empty"), 400, "invalid_job"),
        (
            engine_errors.PromptTooLong("long", needed_tokens=9, limit_tokens=8),
            400,
            "context_length_exceeded",
        ),
    ],
)
def test_foreign_errors_are_translated(error: Exception, status: int, code: str):
    found = problems.as_app_error(error)

    assert (found.status, found.code) == (status, code)
    assert SECRET not in found.message


def test_both_numbers_of_an_over_long_prompt_survive():
    found = problems.as_app_error(
        engine_errors.PromptTooLong("long", needed_tokens=9, limit_tokens=8)
    )

    assert isinstance(found, PromptTooLong)
    assert (found.needed_tokens, found.limit_tokens) == (9, 8)


def test_a_failed_validation_names_the_field():
    error = ValidationException(
        detail=SECRET, extra=[{"message": "Expected `str`", "key": "email"}]
    )

    found = problems.as_app_error(error)

    assert (found.message, found.field) == ("Expected `str`", "email")


@pytest.mark.parametrize(
    ("frame", "field"),
    [
        (b'{"type":"turn.create","request_id":1}', "request_id"),
        (b'{"type":"nonsense"}', "type"),
        (b'{"type":"hello"}', None),
        (b"{", None),
    ],
)
def test_a_frame_that_cannot_be_read_names_the_place(frame: bytes, field: str | None):
    with pytest.raises(msgspec.DecodeError) as caught:
        msgspec.json.decode(frame, type=InwardFrame)

    found = problems.from_decoding(caught.value)

    assert (found.status, found.field) == (400, field)
