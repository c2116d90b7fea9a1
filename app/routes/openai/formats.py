"""What form an answer is asked to have: read from both routes' fields, and told back.

PURE. Whether a schema can be followed, the engine knows; it says so before the turn is stored.
"""

import msgspec

from app.chat.asked import AnswerFormat
from app.errors import InvalidRequest
from app.routes.openai.requests import missing
from app.routes.openai.schema import (
    JsonObjectFormat,
    JsonSchemaFormat,
    ResponseFormat,
    SchemaAsked,
    TextAsked,
    TextFormat,
)

IN_RESPONSES = "text.format.schema"
IN_COMPLETIONS = "response_format.json_schema.schema"


def text_format(asked: TextAsked | None) -> AnswerFormat | None:
    """Of `/v1/responses`: `text.format`, where a schema stands beside its name."""
    form = None if asked is None else asked.format
    if form is None or form.type == "text":
        return None
    return AnswerFormat() if form.type == "json_object" else _schema(form, "text.format")


def response_format(asked: ResponseFormat | None) -> AnswerFormat | None:
    """Of chat completions, where they are wrapped once more."""
    if asked is None or asked.type == "text":
        return None
    if asked.type == "json_object":
        return AnswerFormat()
    if asked.json_schema is None:
        raise missing("response_format.json_schema")
    return _schema(asked.json_schema, "response_format.json_schema")


def _schema(asked: SchemaAsked, path: str) -> AnswerFormat:
    if asked.name is None:
        raise missing(f"{path}.name")
    if asked.schema is None:
        raise missing(f"{path}.schema")
    return AnswerFormat(
        name=asked.name,
        description=asked.description,
        schema=msgspec.json.encode(asked.schema).decode(),
        strict=asked.strict,
    )


def told(form: AnswerFormat | None) -> TextFormat | JsonObjectFormat | JsonSchemaFormat:
    """As a response object repeats it."""
    if form is None:
        return TextFormat()
    if form.schema is None:
        return JsonObjectFormat()
    return JsonSchemaFormat(
        name=form.name or "",
        description=form.description,
        schema=msgspec.Raw(form.schema.encode()),
        strict=form.strict,
    )


def name_the_schema(error: InvalidRequest, path: str) -> None:
    """The domain calls it `format`; a client knows it by another name on each route."""
    if error.field == "format":
        error.field = path
