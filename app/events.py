"""What things look like outside, and the events of a response's log: tagged structs.

A response's log is the one account of its life (law 14). Its events carry the names and the order
of the OpenAI dialect, one to one, so that a sequence number means the same to the browser, to an
SDK and to `starting_after`; the views only dress them. Times are seconds since the epoch.
"""

import enum

import msgspec

from app.ids import ConversationId, DocumentId, MessageId, PersonaId, ResponseId
from engine.api import Receipt, TokenLogprobs
from engine.figures import (
    BlockCounts,
    CacheChange,
    CachedBySource,
    CachedShare,
    DraftTokens,
    EvictionReason,
    Histogram,
    TierCounts,
    TurnTokens,
)
from engine.terms import MissReason

# ---------------------------------------------------------------- what things look like outside


class ResponseStatus(enum.StrEnum):
    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        return self not in (ResponseStatus.QUEUED, ResponseStatus.IN_PROGRESS)


class QuotaFault(msgspec.Struct, frozen=True, kw_only=True):
    """The quota that was used up."""

    kind: str
    limit: int
    resets_at: float | None
    """When it begins anew; None for what does not by itself."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """An error as a client sees it."""

    code: str
    message: str
    field: str | None = None
    retry_after_s: float | None = None
    quota: QuotaFault | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    input_tokens: int
    cached_tokens: int
    output_tokens: int


class ResponseView(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a response; `text` is left out, it belongs to its message or its events."""

    id: ResponseId
    conversation_id: ConversationId | None
    """None for a response that is not stored."""
    message_id: MessageId
    """The assistant's message that this response writes."""
    parent_id: MessageId | None
    """The message it answers."""
    status: ResponseStatus
    model: str
    created_at: float
    completed_at: float | None = None
    incomplete_reason: str | None = None
    """`max_output_tokens`, `context_full`, `steered`, or `interrupted` after the server was killed."""
    error: Problem | None = None
    usage: Usage | None = None
    receipt: Receipt | None = None


class MessageView(msgspec.Struct, frozen=True, kw_only=True):
    id: MessageId
    conversation_id: ConversationId
    parent_id: MessageId | None
    role: str
    text: str
    created_at: float
    client_message_id: str | None = None
    response: ResponseView | None = None
    """Of an assistant's message."""


class ConversationView(msgspec.Struct, frozen=True, kw_only=True):
    id: ConversationId
    title: str
    persona_id: PersonaId | None
    persona_version: int | None
    """It stays on this version until it is moved to the newest."""
    document_ids: tuple[DocumentId, ...]
    """Documents that stand behind the persona, in this order."""
    leaf_id: MessageId | None
    """The end of the branch that is shown."""
    created_at: float
    updated_at: float
    archived: bool = False
    pinned: bool = False
    kept_warm: bool = False
    continues_id: ConversationId | None = None
    """The conversation from whose summary it goes on."""


class Figures(msgspec.Struct, frozen=True, kw_only=True, tag="figures"):
    """The engine's counters since its boot, and its gauges, as they were at one time."""

    at: float
    boot_id: str
    blocks: BlockCounts
    tiers: tuple[TierCounts, ...]
    prompt_tokens: int
    cached_tokens: int
    restored_tokens: int
    computed_tokens: int
    output_tokens: int
    saved_s: float
    cached_by_source: CachedBySource
    first_turns: TurnTokens
    later_turns: TurnTokens
    misses: dict[MissReason, int]
    evicted_tokens: dict[EvictionReason, int]
    published_tokens: int
    regretted_tokens: int
    segments: dict[CacheChange, int]
    degradations: int
    drafts: DraftTokens
    preemptions: int
    running_jobs: int
    waiting_jobs: int
    first_token_s: dict[CachedShare, Histogram]


# ---------------------------------------------------------------- the log of one response


class ResponseCreated(msgspec.Struct, frozen=True, kw_only=True, tag="response.created"):
    sequence_number: int
    response: ResponseView


class ResponseInProgress(msgspec.Struct, frozen=True, kw_only=True, tag="response.in_progress"):
    sequence_number: int
    response: ResponseView


class ItemAdded(msgspec.Struct, frozen=True, kw_only=True, tag="response.output_item.added"):
    sequence_number: int
    item_id: MessageId


class PartAdded(msgspec.Struct, frozen=True, kw_only=True, tag="response.content_part.added"):
    sequence_number: int
    item_id: MessageId


class TextDelta(msgspec.Struct, frozen=True, kw_only=True, tag="response.output_text.delta"):
    sequence_number: int
    item_id: MessageId
    delta: str
    logprobs: tuple[TokenLogprobs, ...] = ()


class TextDone(msgspec.Struct, frozen=True, kw_only=True, tag="response.output_text.done"):
    sequence_number: int
    item_id: MessageId
    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()


class PartDone(msgspec.Struct, frozen=True, kw_only=True, tag="response.content_part.done"):
    sequence_number: int
    item_id: MessageId
    text: str


class ItemDone(msgspec.Struct, frozen=True, kw_only=True, tag="response.output_item.done"):
    sequence_number: int
    item_id: MessageId
    text: str


class ResponseEnded(msgspec.Struct, frozen=True, kw_only=True, tag="response.ended"):
    """The terminal event; the dialect names it by `response.status`. Exactly one, always last."""

    sequence_number: int
    response: ResponseView
    text: str


LogEvent = (
    ResponseCreated
    | ResponseInProgress
    | ItemAdded
    | PartAdded
    | TextDelta
    | TextDone
    | PartDone
    | ItemDone
    | ResponseEnded
)
