"""What an answer may call: read from both routes' fields, and told back. PURE.

Whether a function's schema can be followed, the engine knows; it says so before the turn is stored.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from app.chat.asked import Choice, Tools
from app.chat.calls import is_never_in_json
from app.errors import InvalidRequest
from app.routes.openai.functions import (
    CompletionToolNamed,
    CompletionToolsAllowed,
    FunctionAllowed,
    FunctionAsked,
    FunctionNamed,
    FunctionsAllowed,
    FunctionTool,
    ToolChoice,
)
from app.routes.openai.schema import CompletionCreate, ResponseCreate
from engine.api import CallForm, Function, ModelCard


class _Chosen(NamedTuple):
    """Which functions are to be called, in the words of both routes."""

    choice: Choice
    named: str | None = None
    allowed: tuple[str, ...] = ()
    place: str = ""
    """Where in the request the name of an allowed one stands."""


def response_tools(asked: ResponseCreate, card: ModelCard) -> Tools | None:
    """Of `/v1/responses`, where a function stands beside its type."""
    tools = asked.tools or ()
    if tools and asked.text and asked.text.format and asked.text.format.type != "text":
        _check_told_apart(card, "text.format")
    return _tools(asked, tools, _chosen_in_response(asked.tool_choice), card)


def completion_tools(asked: CompletionCreate, card: ModelCard) -> Tools | None:
    """Of chat completions, where it is wrapped once more."""
    tools = asked.tools or ()
    if tools and asked.response_format and asked.response_format.type != "text":
        _check_told_apart(card, "response_format")
    functions = [tool.function for tool in tools]
    return _tools(asked, functions, _chosen_in_completion(asked.tool_choice), card)


def _chosen_in_response(asked: ToolChoice | FunctionNamed | FunctionsAllowed | None) -> _Chosen:
    match asked:
        case FunctionNamed():
            return _Chosen(Choice.REQUIRED, named=asked.name)
        case FunctionsAllowed():
            allowed = tuple(one.name for one in asked.tools)
            return _Chosen(Choice(asked.mode), allowed=allowed, place="tool_choice.tools[{}].name")
        case _:
            return _Chosen(Choice(asked or "auto"))


def _chosen_in_completion(
    asked: ToolChoice | CompletionToolNamed | CompletionToolsAllowed | None,
) -> _Chosen:
    match asked:
        case CompletionToolNamed():
            return _Chosen(Choice.REQUIRED, named=asked.function.name)
        case CompletionToolsAllowed():
            picked = asked.allowed_tools
            allowed = tuple(one.function.name for one in picked.tools)
            place = "tool_choice.allowed_tools.tools[{}].function.name"
            return _Chosen(Choice(picked.mode), allowed=allowed, place=place)
        case _:
            return _Chosen(Choice(asked or "auto"))


def _tools(
    asked: ResponseCreate | CompletionCreate,
    functions: Iterable[FunctionAsked],
    chosen: _Chosen,
    card: ModelCard,
) -> Tools | None:
    declared = tuple(_function(one) for one in functions)
    if not declared:
        if asked.tool_choice not in (None, "auto", "none"):
            raise InvalidRequest("There are no `tools` to choose from.", field="tool_choice")
        return None
    names = [one.name for one in declared]
    if len(set(names)) < len(names):
        raise InvalidRequest("Two functions have the same name.", field="tools")
    if chosen.named is not None:
        _check_declared(chosen.named, names, "tool_choice")
    for place, name in enumerate(chosen.allowed):
        _check_declared(name, names, chosen.place.format(place))
    return Tools(
        functions=declared,
        form=call_form(card, "tools"),
        choice=chosen.choice,
        named=chosen.named,
        allowed=chosen.allowed,
        parallel=asked.parallel_tool_calls is not False,
    )


def _check_declared(name: str, names: Iterable[str], field: str) -> None:
    if name not in names:
        raise InvalidRequest(f"No function is called {name!r}.", field=field)


def _check_told_apart(card: ModelCard, field: str) -> None:
    """Raises `InvalidRequest` where an answer that is to be JSON might be read as one that calls."""
    if not is_never_in_json(call_form(card, "tools").opening):
        raise InvalidRequest(
            "Under the model's chat template JSON cannot be told from a call.",
            code="unsupported_parameter",
            field=field,
        )


def call_form(card: ModelCard, field: str) -> CallForm:
    """How the model's template writes calls. Raises `InvalidRequest` where it does not."""
    if card.template.calls is None:
        words = card.template.no_calls or "the model's chat template has no functions"
        raise InvalidRequest(
            f"{words[0].upper()}{words[1:]}.", code="unsupported_parameter", field=field
        )
    return card.template.calls


def _function(asked: FunctionAsked) -> Function:
    parameters = {"type": "object", "properties": {}} if asked.parameters is None else None
    return Function(
        name=asked.name,
        description=asked.description,
        parameters=msgspec.json.encode(parameters or asked.parameters).decode(),
        strict=bool(asked.strict),
    )


# ---------------------------------------------------------------- as a response object repeats it


def told_tools(tools: Tools | None) -> tuple[FunctionTool, ...]:
    return tuple(
        FunctionTool(
            name=one.name,
            description=one.description,
            parameters=msgspec.Raw(one.parameters.encode()),
            strict=one.strict,
        )
        for one in (tools.functions if tools else ())
    )


def told_choice(tools: Tools | None) -> str | FunctionNamed | FunctionsAllowed:
    if tools is None:
        return "none"
    if tools.named:
        return FunctionNamed(name=tools.named)
    if tools.allowed:
        return FunctionsAllowed(
            mode="required" if tools.choice is Choice.REQUIRED else "auto",
            tools=tuple(FunctionAllowed(name=one, type="function") for one in tools.allowed),
        )
    return tools.choice.value
