"""The dialect's structs of functions: declared, chosen, called and answered, in both of its forms.

Field names and shapes are those of the public SDK, as in `schema`.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

FunctionName = Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")]
MOST_TOOLS = 128
ToolChoice = Literal["auto", "none", "required"]
Mode = Literal["auto", "required"]


# ---------------------------------------------------------------- what clients send


class FunctionCalled(msgspec.Struct, frozen=True, kw_only=True):
    """`arguments` is JSON text."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call in a message of chat completions."""

    id: str
    function: FunctionCalled
    type: Literal["function"] = "function"


class FunctionAsked(msgspec.Struct, frozen=True, kw_only=True):
    """A function that an answer may call; `strict` refuses what of its schema cannot be held to."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolAsked(FunctionAsked, frozen=True, kw_only=True):
    """`tools` of `/v1/responses`; what is a function's own stands beside the type."""

    type: Literal["function"]


class FunctionNamed(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function"):
    """The one function that is to be called."""

    name: str


class FunctionAllowed(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    type: Literal["function"]


class FunctionsAllowed(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="allowed_tools"
):
    """Those of `tools` that may be called this time; the prompt tells of all of them as before."""

    mode: Mode
    tools: Annotated[tuple[FunctionAllowed, ...], Meta(min_length=1, max_length=MOST_TOOLS)]


class CompletionTool(msgspec.Struct, frozen=True, kw_only=True):
    """`tools` of chat completions."""

    function: FunctionAsked
    type: Literal["function"]


class NameOfFunction(msgspec.Struct, frozen=True, kw_only=True):
    name: str


class CompletionToolNamed(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function"
):
    function: NameOfFunction


class CompletionToolAllowed(msgspec.Struct, frozen=True, kw_only=True):
    function: NameOfFunction
    type: Literal["function"]


class CompletionToolsOfMode(msgspec.Struct, frozen=True, kw_only=True):
    mode: Mode
    tools: Annotated[tuple[CompletionToolAllowed, ...], Meta(min_length=1, max_length=MOST_TOOLS)]


class CompletionToolsAllowed(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="allowed_tools"
):
    """As `FunctionsAllowed`, wrapped once more."""

    allowed_tools: CompletionToolsOfMode


# ---------------------------------------------------------------- what they are sent


class FunctionTool(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str | None
    parameters: msgspec.Raw
    strict: bool
    type: Literal["function"] = "function"


class FunctionCall(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"
):
    """`arguments` is JSON text of the function's schema; `call_id` names the call for its output."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: str


class FunctionOutput(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call_output"
):
    id: str
    call_id: str
    output: str
    status: str = "completed"


class CalledDelta(msgspec.Struct, frozen=True, kw_only=True):
    arguments: str
    name: str | UnsetType = UNSET


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """The first of a call has its id and its name; the others add to its arguments."""

    index: int
    function: CalledDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
