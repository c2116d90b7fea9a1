"""Reads what clients of the dialect send: bytes to a checked request, or a refusal by name.

Three rules. Unknown fields are ignored. What the dialect knows and Keepwarm does not do is refused
with `param` naming it, unless its value asks for nothing. Whatever else is wrong is refused before
anything is stored. PURE: it knows no socket, no HTTP and no storage.
"""

import re
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from app.errors import InvalidRequest
from app.routes.openai.schema import (
    CompletionCreate,
    ConversationCreate,
    ConversationUpdate,
    ItemsCreate,
    ResponseCreate,
    SteerCreate,
)

Document = dict[str, object]
"""A JSON object as it came, before it is typed."""
Request = TypeVar("Request", bound=msgspec.Struct)

MAX_DEPTH = 32
"""Levels of arrays and objects in a request; the deepest that is of use is a schema's."""

_INCLUDABLE = {
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
}
"""All but the last name outputs that no answer here can have: asking for them asks for nothing."""

# Known fields that are not supported, with the values that ask for nothing. None always does.
Unsupported = Mapping[str, tuple[object, ...]]
_ON_BOTH: Unsupported = {
    "moderation": (),
    "service_tier": ("auto", "default"),
    "prompt_cache_options.mode": ("implicit",),
}
UNSUPPORTED_ON_RESPONSES: Unsupported = {
    **_ON_BOTH,
    "access_programs": (),
    "background_options": (),
    "context_management": ([],),
    "image": (),
    "max_tool_calls": (),
    "prompt.variables": ({},),
    "prompt.version": (),
    "reasoning.effort": ("none",),
    "reasoning.generate_summary": (),
    "reasoning.summary": (),
    "text.verbosity": ("medium",),
}
UNSUPPORTED_ON_COMPLETIONS: Unsupported = {
    **_ON_BOTH,
    "audio": (),
    "function_call": ("auto", "none"),
    "functions": ([],),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "n": (1,),
    "prediction": (),
    "prompt_cache_options.comparison_response_id": (),
    "reasoning_effort": ("none",),
    "store": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
_IN_INPUT = ("audio", "function_call", "tool_call_id", "tool_calls")
_IN_MESSAGES = ("audio", "function_call", "name")


# ---------------------------------------------------------------- bytes to documents


def read_document(raw: bytes | str) -> Document:
    """A JSON object of bounded depth whose strings can be stored; refused otherwise."""
    try:
        document = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise InvalidRequest("This is not valid JSON.", code="invalid_json") from error
    if not isinstance(document, dict):
        raise InvalidRequest("A JSON object is expected here.", code="invalid_json")
    _check_value(document, "", MAX_DEPTH)
    return document


def _check_value(value: object, path: str, depth: int) -> None:
    if isinstance(value, str) and "\0" in value:
        raise InvalidRequest("NUL characters are not accepted.", field=path)
    if depth == 0:
        raise InvalidRequest(f"Nested deeper than {MAX_DEPTH} levels.", field=path)
    if isinstance(value, dict):
        for key, member in value.items():
            _check_value(key, path, depth)
            _check_value(member, f"{path}.{key}" if path else key, depth - 1)
    elif isinstance(value, list):
        for index, member in enumerate(value):
            _check_value(member, f"{path}[{index}]", depth - 1)


# ---------------------------------------------------------------- documents to requests


def response_create(document: Document) -> ResponseCreate:
    """A request to `/v1/responses`, by POST or by `response.create`."""
    _refuse_unsupported(document, UNSUPPORTED_ON_RESPONSES)
    _refuse_in_messages(document, "input")
    _refuse_other_tools(document)
    asked = _typed(document, ResponseCreate)
    for name in asked.include or ():
        if name not in _INCLUDABLE:
            raise InvalidRequest(f"There is nothing called {name!r} to include.", field="include")
    if asked.prompt and asked.instructions:
        raise InvalidRequest(
            "`prompt` names a persona, which stands where `instructions` would: give one of them.",
            field="instructions",
        )
    if asked.conversation:
        _check_conversation(asked)
    return asked


def _check_conversation(asked: ResponseCreate) -> None:
    if asked.previous_response_id:
        raise InvalidRequest(
            "`conversation` and `previous_response_id` both say what goes on: give one of them.",
            code="mutually_exclusive_parameters",
            field="previous_response_id",
        )
    if asked.store is False:
        raise InvalidRequest("What goes into a conversation is stored.", field="store")


def completion_create(document: Document) -> CompletionCreate:
    """A request to `/v1/chat/completions`."""
    _refuse_unsupported(document, UNSUPPORTED_ON_COMPLETIONS)
    _refuse_in_messages(document, "messages")
    _refuse_other_tools(document)
    asked = _typed(document, CompletionCreate)
    if not asked.messages:
        raise missing("messages")
    if asked.top_logprobs and not asked.logprobs:
        raise InvalidRequest("`top_logprobs` needs `logprobs: true`.", field="top_logprobs")
    return asked


def steer_create(document: Document) -> SteerCreate:
    """A `response.steer`."""
    _refuse_in_messages(document, "input")
    return _typed(document, SteerCreate)


def conversation_create(document: Document) -> ConversationCreate:
    _refuse_in_messages(document, "items")
    return _typed(document, ConversationCreate)


def conversation_update(document: Document) -> ConversationUpdate:
    return _typed(document, ConversationUpdate)


def items_create(document: Document) -> ItemsCreate:
    _refuse_in_messages(document, "items")
    return _typed(document, ItemsCreate)


def _refuse_unsupported(document: Document, unsupported: Unsupported) -> None:
    for path, neutral in unsupported.items():
        value = _at(document, path)
        if value is not None and value not in neutral:
            raise not_supported(path)


def _at(document: Document, path: str) -> object:
    """The value at `path`; a parent that is no object stands for it."""
    value: object = document
    for key in path.split("."):
        if not isinstance(value, dict):
            return value
        value = value.get(key)
    return value


def _refuse_in_messages(document: Document, field: str) -> None:
    messages = document.get(field)
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        if not isinstance(message, dict):
            continue
        keys = _IN_MESSAGES if field == "messages" else _IN_INPUT
        if message.get("type", "message") == "message":
            keys = (*keys, "name")
        for key in keys:
            if message.get(key):
                raise not_supported(f"{field}[{index}].{key}")


def _refuse_other_tools(document: Document) -> None:
    tools = document.get("tools")
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        if isinstance(tool, dict) and tool.get("type", "function") != "function":
            raise not_supported(f"tools[{index}].type")


def not_supported(path: str) -> InvalidRequest:
    """For what the dialect has and Keepwarm has not."""
    return InvalidRequest(
        f"This value of `{path}` is not supported here.", code="unsupported_parameter", field=path
    )


def missing(path: str) -> InvalidRequest:
    """For what a request cannot be without."""
    return InvalidRequest(f"`{path}` is required.", code="missing_required_parameter", field=path)


_PLACE = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>.*)`$")
_MISSING = re.compile(r"missing required field `(?P<name>\w+)`")


def _typed(document: Document, kind: type[Request]) -> Request:
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise _translated(str(error)) from error


def _translated(words: str) -> InvalidRequest:
    place = _PLACE.search(words)
    path = place["path"] if place else ""
    absent = _MISSING.search(words)
    if absent:
        return missing(f"{path}.{absent['name']}" if path else absent["name"])
    return InvalidRequest(_PLACE.sub("", words) + ".", code="invalid_value", field=path or None)
