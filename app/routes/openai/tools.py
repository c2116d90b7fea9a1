"""What an answer may call: read from both routes' fields, and told back. PURE.

Whether a function's schema can be followed, the engine knows; it says so before the turn is stored.
"""

from collections.abc import Iterable

import msgspec

from app.chat.ledger import Choice, Tools
from app.errors import InvalidRequest
from app.routes.openai.functions import FunctionAsked, FunctionNamed, FunctionTool
from app.routes.openai.requests import not_supported
from app.routes.openai.schema import CompletionCreate, ResponseCreate
from engine.api import CallForm, Function, ModelCard


def response_tools(asked: ResponseCreate, card: ModelCard) -> Tools | None:
    """Of `/v1/responses`, where a function stands beside its type."""
    tools, choice = asked.tools or (), asked.tool_choice
    named = None if choice is None or isinstance(choice, str) else choice
    if asked.text and asked.text.format and asked.text.format.type != "text" and tools:
        raise not_supported("text.format")
    if asked.top_logprobs and tools:
        raise not_supported("top_logprobs")
    return _tools(asked, tools, named, card)


def completion_tools(asked: CompletionCreate, card: ModelCard) -> Tools | None:
    """Of chat completions, where it is wrapped once more."""
    tools, choice = asked.tools or (), asked.tool_choice
    named = None if choice is None or isinstance(choice, str) else choice.function
    if asked.response_format and asked.response_format.type != "text" and tools:
        raise not_supported("response_format")
    if asked.logprobs and tools:
        raise not_supported("logprobs")
    functions = [tool.function for tool in tools]
    return _tools(asked, functions, named, card)


def _tools(
    asked: ResponseCreate | CompletionCreate,
    functions: Iterable[FunctionAsked],
    named: FunctionNamed | None,
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
    if named is not None and named.name not in names:
        raise InvalidRequest(f"No function is called {named.name!r}.", field="tool_choice")
    word = asked.tool_choice if isinstance(asked.tool_choice, str) else None
    return Tools(
        functions=declared,
        form=call_form(card, "tools"),
        choice=Choice.REQUIRED if named else Choice(word or "auto"),
        named=named.name if named else None,
        parallel=asked.parallel_tool_calls is not False,
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


def told_choice(tools: Tools | None) -> str | FunctionNamed:
    if tools is None:
        return "none"
    return FunctionNamed(name=tools.named) if tools.named else tools.choice.value
