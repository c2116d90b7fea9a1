"""The OpenAI dialect's own structs: what its clients send and what they are sent.

Field names and shapes are those of the public SDK (`openai.types.responses`, `openai.types.chat`),
plus our few extensions (`Knobs`, `ResponseObject.receipt`). What the dialect knows and Keepwarm
does not do is no field here: `requests.py` refuses it by name; unknown fields are ignored.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.chat.asked import AnswerFormat, CacheAsked, Compared, Difference, Tools
from app.routes.openai.functions import (
    MOST_TOOLS,
    CompletionTool,
    CompletionToolNamed,
    CompletionToolsAllowed,
    FunctionCall,
    FunctionNamed,
    FunctionOutput,
    FunctionsAllowed,
    FunctionTool,
    ToolAsked,
    ToolCall,
    ToolCallDelta,
    ToolChoice,
)
from engine.api import Limits, Receipt, Sampling

# ---------------------------------------------------------------- what clients send

Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Share = Annotated[float, Meta(ge=0, le=1)]
FormatType = Literal["text", "json_object", "json_schema"]
Truncation = Literal["auto", "disabled"]
StopText = Annotated[str, Meta(min_length=1, max_length=256)]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16),
]


class ContentPart(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a message; only texts are understood."""

    type: str
    text: str | None = None


class InputMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message in `messages`, or an item of `input`: a message, a call or what a call gave."""

    role: str | None = None
    content: str | tuple[ContentPart, ...] | None = None
    type: str = "message"
    """Given in `input` only: `message`, `function_call` or `function_call_output`."""
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | tuple[ContentPart, ...] | None = None
    tool_calls: tuple[ToolCall, ...] | None = None
    """In `messages` only, as is `tool_call_id`."""
    tool_call_id: str | None = None


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    """Pad what carries text, so that its size tells nobody on the way how long the tokens are."""


class CacheOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`ttl` is how long at least what is computed is to stay, as far as the budgets allow."""

    mode: Literal["implicit"] | None = None
    ttl: Literal["30m", "12h"] | None = None
    prewarm: bool | None = None
    comparison_response_id: Annotated[str, Meta(max_length=100)] | None = None


class Knobs(msgspec.Struct, frozen=True, kw_only=True):
    """How to sample and when to end, on both routes; from `top_k` on they are our extensions."""

    model: str | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Share | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    metadata: Metadata | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopText | Annotated[tuple[StopText, ...], Meta(max_length=16)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    min_p: Share | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=256)] | None = None
    prompt_cache_options: CacheOptions | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None


class PromptReference(msgspec.Struct, frozen=True, kw_only=True):
    """A stored beginning: a persona by its id."""

    id: str


class ConversationRef(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation of `/v1/conversations`."""

    id: Annotated[str, Meta(max_length=128)]


class SchemaAsked(msgspec.Struct, frozen=True, kw_only=True):
    """A schema by its name; `strict` refuses what of it cannot be held to."""

    name: Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")] | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class FormatAsked(SchemaAsked, frozen=True, kw_only=True):
    """`text.format`; what is a schema's own stands beside the type."""

    type: FormatType = "text"


class TextAsked(msgspec.Struct, frozen=True, kw_only=True):
    format: FormatAsked | None = None


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True):
    """`response_format` of chat completions."""

    type: FormatType = "text"
    json_schema: SchemaAsked | None = None


class ResponseCreate(Knobs, frozen=True, kw_only=True):
    """The body of `POST /v1/responses`, and the `response.create` event of the socket."""

    input: str | tuple[InputMessage, ...] | None = None
    instructions: str | None = None
    previous_response_id: Annotated[str, Meta(max_length=128)] | None = None
    conversation: Annotated[str, Meta(max_length=128)] | ConversationRef | None = None
    prompt: PromptReference | None = None
    max_output_tokens: Count | None = None
    include: tuple[str, ...] | None = None
    text: TextAsked | None = None
    tools: Annotated[tuple[ToolAsked, ...], Meta(max_length=MOST_TOOLS)] | None = None
    tool_choice: ToolChoice | FunctionNamed | FunctionsAllowed | None = None
    parallel_tool_calls: bool | None = None
    store: bool | None = None
    background: bool | None = None
    truncation: Truncation | None = None
    generate: bool | None = None


class SteerCreate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `response.steer` event of the socket, which takes nothing else."""

    type: str
    previous_response_id: Annotated[str, Meta(max_length=128)]
    input: str | Annotated[tuple[InputMessage, ...], Meta(min_length=1)]


class CompletionCreate(Knobs, frozen=True, kw_only=True):
    """The body of `POST /v1/chat/completions`."""

    messages: tuple[InputMessage, ...]
    logprobs: bool | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[tuple[CompletionTool, ...], Meta(max_length=MOST_TOOLS)] | None = None
    tool_choice: ToolChoice | CompletionToolNamed | CompletionToolsAllowed | None = None
    parallel_tool_calls: bool | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None


NewItems = Annotated[tuple[InputMessage, ...], Meta(min_length=1, max_length=20)]


class ConversationCreate(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/conversations`."""

    items: Annotated[tuple[InputMessage, ...], Meta(max_length=20)] | None = None
    metadata: Metadata | None = None


class ConversationUpdate(msgspec.Struct, frozen=True, kw_only=True):
    metadata: Metadata | None


class ItemsCreate(msgspec.Struct, frozen=True, kw_only=True):
    items: NewItems


class Echo(msgspec.Struct, frozen=True, kw_only=True):
    """What a response object repeats of its request."""

    instructions: str | None
    previous_response_id: str | None
    conversation_id: str | None = None
    cache: CacheAsked = CacheAsked()
    compared: Compared | None = None
    metadata: dict[str, str]
    sampling: Sampling
    limits: Limits
    format: AnswerFormat | None
    tools: Tools | None = None
    store: bool
    generate: bool
    shortenable: bool = False


# ---------------------------------------------------------------- pieces of what they are sent


class TopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    logprob: float
    bytes: tuple[int, ...]


class Logprob(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    logprob: float
    bytes: tuple[int, ...]
    top_logprobs: tuple[TopLogprob, ...]


class OutputText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    text: str
    logprobs: tuple[Logprob, ...] = ()
    annotations: tuple[()] = ()


class OutputMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    id: str
    status: str
    content: tuple[OutputText, ...]
    role: Literal["assistant"] = "assistant"


OutputItem = OutputMessage | FunctionCall


class InputText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="input_text"):
    text: str


class InputItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    id: str
    role: str
    content: tuple[InputText | OutputText, ...]
    status: str = "completed"


ListedItem = InputItem | FunctionCall | FunctionOutput


class InputItemList(msgspec.Struct, frozen=True, kw_only=True):
    data: tuple[ListedItem, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


class InputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    total_tokens: int
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True, kw_only=True):
    reason: str


class TextFormat(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    pass


class JsonObjectFormat(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="json_object"
):
    pass


class JsonSchemaFormat(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="json_schema"
):
    name: str
    description: str | None
    schema: msgspec.Raw
    strict: bool | None


class TextConfig(msgspec.Struct, frozen=True, kw_only=True):
    format: TextFormat | JsonObjectFormat | JsonSchemaFormat = TextFormat()


class CacheApplied(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    ttl: str
    mode: Literal["implicit"]
    comparison_response_id: str | None = None


class CacheHit(msgspec.Struct, frozen=True, kw_only=True, tag="cache_hit"):
    """The prompt begins with all that the compared one was, and that was there."""


class CacheMiss(msgspec.Struct, frozen=True, kw_only=True, tag="cache_miss"):
    """`cache_missed_tokens` of the prompt come after the first difference."""

    cache_missed_tokens: int
    comparison_reusable_tokens: int
    reason: Difference


class NotCompared(msgspec.Struct, frozen=True, kw_only=True, tag="comparison_response_not_found"):
    """The caller has no such response."""


class NotToldApart(msgspec.Struct, frozen=True, kw_only=True, tag="unavailable"):
    """The request lost nothing, but not all of it was there (see `receipt`); or it cannot be known."""


CacheDiagnostics = CacheHit | CacheMiss | NotCompared | NotToldApart


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    """`receipt` is ours: what the turn cost, when it has ended."""

    id: str
    created_at: float
    completed_at: float | None
    conversation: ConversationRef | None
    status: str
    error: ErrorDetail | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: tuple[OutputItem, ...]
    previous_response_id: str | None
    prompt_cache_key: str | None
    prompt_cache_options: CacheApplied | None
    prompt_cache_diagnostics: CacheDiagnostics | None
    prompt_cache_retention: Literal["in_memory"] | None
    store: bool
    temperature: float
    top_p: float
    top_logprobs: int
    usage: ResponseUsage | None
    receipt: Receipt | None
    object: Literal["response"] = "response"
    parallel_tool_calls: bool = False
    service_tier: Literal["default"] = "default"
    text: TextConfig = TextConfig()
    tool_choice: str | FunctionNamed | FunctionsAllowed = "none"
    tools: tuple[FunctionTool, ...] = ()
    truncation: Truncation = "disabled"


class ResponseDeleted(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


# ---------------------------------------------------------------- conversations


class ConversationObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created_at: int
    metadata: dict[str, str]
    object: Literal["conversation"] = "conversation"


class DeletedConversation(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: Literal[True] = True


# ---------------------------------------------------------------- chat completions and models


class CompletionLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    content: tuple[Logprob, ...]
    refusal: None = None


class CompletionUsage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: InputTokensDetails
    completion_tokens_details: OutputTokensDetails = OutputTokensDetails()


class CompletionMessage(msgspec.Struct, frozen=True, kw_only=True):
    content: str | None
    """None where it only calls."""
    tool_calls: tuple[ToolCall, ...] | UnsetType = UNSET
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    message: CompletionMessage
    finish_reason: str
    logprobs: CompletionLogprobs | None
    index: int = 0


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created: int
    model: str
    choices: tuple[CompletionChoice, ...]
    usage: CompletionUsage | None
    object: Literal["chat.completion"] = "chat.completion"


class ChunkDelta(msgspec.Struct, frozen=True, kw_only=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: tuple[ToolCallDelta, ...] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    delta: ChunkDelta
    finish_reason: str | None = None
    logprobs: CompletionLogprobs | None = None
    index: int = 0


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """The usage chunk has no choices; the others carry `usage: null` where usage was asked for."""

    id: str
    created: int
    model: str
    choices: tuple[ChunkChoice, ...]
    usage: CompletionUsage | UnsetType | None = UNSET
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    obfuscation: str | UnsetType = UNSET


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """`context_tokens` is ours."""

    id: str
    context_tokens: int
    created: int = 0
    object: Literal["model"] = "model"
    owned_by: str = "keepwarm"


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    data: tuple[Model, ...]
    object: Literal["list"] = "list"
