"""The events of `/v1/responses`, as server-sent events and on the socket: the dialect's structs.

`stream_id` is present on a named lane of the socket only.
"""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from app.routes.openai.schema import Logprob, OutputItem, OutputText, ResponseObject

LifeType = Literal[
    "response.created",
    "response.in_progress",
    "response.completed",
    "response.incomplete",
    "response.failed",
]
PartType = Literal["response.content_part.added", "response.content_part.done"]


class LifeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The response as it begins and as it ends."""

    type: LifeType
    sequence_number: int
    response: ResponseObject
    stream_id: str | UnsetType = UNSET


class ItemEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of the output: its message, or a call."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    sequence_number: int
    item: OutputItem
    output_index: int = 0
    stream_id: str | UnsetType = UNSET


class PartEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A message's one text."""

    type: PartType
    sequence_number: int
    item_id: str
    part: OutputText
    output_index: int = 0
    content_index: int = 0
    stream_id: str | UnsetType = UNSET


class DeltaEvent(msgspec.Struct, frozen=True, kw_only=True):
    sequence_number: int
    item_id: str
    delta: str
    logprobs: tuple[Logprob, ...]
    type: Literal["response.output_text.delta"] = "response.output_text.delta"
    output_index: int = 0
    content_index: int = 0
    stream_id: str | UnsetType = UNSET
    obfuscation: str | UnsetType = UNSET


class DoneEvent(msgspec.Struct, frozen=True, kw_only=True):
    sequence_number: int
    item_id: str
    text: str
    logprobs: tuple[Logprob, ...]
    type: Literal["response.output_text.done"] = "response.output_text.done"
    output_index: int = 0
    content_index: int = 0
    stream_id: str | UnsetType = UNSET


class ArgumentsDelta(msgspec.Struct, frozen=True, kw_only=True):
    sequence_number: int
    item_id: str
    delta: str
    output_index: int
    type: Literal["response.function_call_arguments.delta"] = (
        "response.function_call_arguments.delta"
    )
    stream_id: str | UnsetType = UNSET
    obfuscation: str | UnsetType = UNSET


class ArgumentsDone(msgspec.Struct, frozen=True, kw_only=True):
    sequence_number: int
    item_id: str
    name: str
    arguments: str
    output_index: int
    type: Literal["response.function_call_arguments.done"] = "response.function_call_arguments.done"
    stream_id: str | UnsetType = UNSET


ServerEvent = (
    LifeEvent | ItemEvent | PartEvent | DeltaEvent | DoneEvent | ArgumentsDelta | ArgumentsDone
)


class SteerId(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    previous_response_id: str


class SteerAccepted(msgspec.Struct, frozen=True, kw_only=True):
    """The server owns the input; the successor's `response.created` says that it was used."""

    sequence_number: int
    steer: SteerId
    type: Literal["response.steer.accepted"] = "response.steer.accepted"
    stream_id: str | UnsetType = UNSET


class RequiredOutput(msgspec.Struct, frozen=True, kw_only=True):
    """A call whose output the client has to bring; to be filled in and sent."""

    call_id: str
    name: str
    type: Literal["function_call_output"] = "function_call_output"


class SteerPending(msgspec.Struct, frozen=True, kw_only=True):
    """The response waits for what its functions give, and the input with it; it is not sent again."""

    sequence_number: int
    steer: SteerId
    required_input: tuple[RequiredOutput, ...]
    reason: Literal["waiting_for_required_input"] = "waiting_for_required_input"
    type: Literal["response.steer.pending"] = "response.steer.pending"
    stream_id: str | UnsetType = UNSET


class SteerInput(msgspec.Struct, frozen=True, kw_only=True):
    """Input as it came; `id` where it had been accepted."""

    id: str | UnsetType = UNSET
    previous_response_id: str
    input: object


class SteerError(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    message: str
    type: Literal["invalid_request_error"] = "invalid_request_error"


class SteerFailed(msgspec.Struct, frozen=True, kw_only=True):
    """The input was not used, and is the client's again."""

    sequence_number: int
    error: SteerError
    steer: SteerInput
    type: Literal["response.steer.failed"] = "response.steer.failed"
    stream_id: str | UnsetType = UNSET


class SocketError(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    type: str
    param: str | None
    code: str | None
    headers: dict[str, str] | UnsetType = UNSET


class ErrorEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The socket's error is nested, unlike the flat one of server-sent events."""

    status: int
    error: SocketError
    stream_id: str | UnsetType = UNSET
    type: Literal["error"] = "error"


SocketEvent = ServerEvent | SteerAccepted | SteerPending | SteerFailed | ErrorEvent
"""Whatever a socket of the dialect is told."""
