"""Everything a socket may say or hear: tagged structs, and the events of a response's log.

A response's log is the one account of its life (law 14). Its events carry the names and the order
of the OpenAI dialect, one to one, so that a sequence number means the same to the browser, to an
SDK and to `starting_after`; the views only dress them. Times are seconds since the epoch.
"""

import enum
from typing import Annotated

import msgspec

from app.ids import ConversationId, DocumentId, MessageId, PersonaId, ResponseId
from engine.api import Receipt, TokenLogprobs

PROTOCOL = 1
"""Version of the browser's socket; the hello must name it."""


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


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """An error as a client sees it."""

    code: str
    message: str
    field: str | None = None
    retry_after_s: float | None = None


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
    """`max_output_tokens`, or `interrupted` after the server was killed."""
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
    created_at: float
    updated_at: float


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


# ---------------------------------------------------------------- the browser's socket, inwards

RequestId = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
"""Chosen by the client; the answer to a frame repeats it."""
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=1_000_000)]


class Inward(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A frame from the browser; unknown fields are refused."""


class Hello(Inward, frozen=True, kw_only=True, tag="hello"):
    """The first frame on a socket."""

    protocol: int


class Cursor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The client has seen `response_id` up to `after`, in the log of `epoch`."""

    response_id: ResponseId
    after: int
    epoch: str


class Subscribe(Inward, frozen=True, kw_only=True, tag="subscribe"):
    """Watch a conversation: live responses are replayed from the cursor (or whole), then live."""

    request_id: RequestId
    conversation_id: ConversationId
    cursors: tuple[Cursor, ...] = ()


class Unsubscribe(Inward, frozen=True, kw_only=True, tag="unsubscribe"):
    request_id: RequestId
    conversation_id: ConversationId


class TurnCreate(Inward, frozen=True, kw_only=True, tag="turn.create"):
    """Send a message. `parent_id` is the leaf that the user saw (None: the conversation is empty).

    The same `client_message_id` twice gives the same message and response, once.
    """

    request_id: RequestId
    conversation_id: ConversationId
    client_message_id: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    parent_id: MessageId | None
    text: Text


class ResponseCancel(Inward, frozen=True, kw_only=True, tag="response.cancel"):
    request_id: RequestId
    response_id: ResponseId


class PresenceState(enum.StrEnum):
    OPEN = "open"
    TYPING = "typing"
    HIDDEN = "hidden"
    CLOSED = "closed"


class Presence(Inward, frozen=True, kw_only=True, tag="presence"):
    """How a watched conversation is shown: what is looked at is kept warm. Never answered."""

    conversation_id: ConversationId
    state: PresenceState


class Draft(Inward, frozen=True, kw_only=True, tag="draft"):
    """Unsent text, of which the server may compute what it can before it is sent. Never answered.

    Each replaces the one before, and one without text withdraws it; it is held in memory only.
    Without a conversation yet, the persona and the documents are those that it will be made with.
    """

    conversation_id: ConversationId | None
    parent_id: MessageId | None
    text: Annotated[str, msgspec.Meta(max_length=1_000_000)]
    persona_id: PersonaId | None = None
    document_ids: Annotated[tuple[DocumentId, ...], msgspec.Meta(max_length=32)] = ()


InwardFrame = Hello | Subscribe | Unsubscribe | TurnCreate | ResponseCancel | Presence | Draft


# ---------------------------------------------------------------- the browser's socket, outwards


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag="welcome"):
    protocol: int
    epoch: str
    """Of the logs on this server; cursors of another epoch are answered with a snapshot."""
    user_id: str


class Subscribed(msgspec.Struct, frozen=True, kw_only=True, tag="subscribed"):
    request_id: str
    conversation_id: ConversationId
    leaf_id: MessageId | None


class Unsubscribed(msgspec.Struct, frozen=True, kw_only=True, tag="unsubscribed"):
    request_id: str
    conversation_id: ConversationId


class TurnAccepted(msgspec.Struct, frozen=True, kw_only=True, tag="turn.accepted"):
    """The message and its response are stored."""

    request_id: str
    message: MessageView
    response: ResponseView


class CancelAccepted(msgspec.Struct, frozen=True, kw_only=True, tag="response.cancel.accepted"):
    """`step` is the engine step after which nothing more was computed; None: it had ended."""

    request_id: str
    response_id: ResponseId
    step: int | None


class MessageAdded(msgspec.Struct, frozen=True, kw_only=True, tag="message.added"):
    """A message appeared in a watched conversation, from this tab or from another."""

    message: MessageView


class Event(msgspec.Struct, frozen=True, kw_only=True, tag="event"):
    """One event of a response's log."""

    conversation_id: ConversationId
    response_id: ResponseId
    epoch: str
    event: LogEvent


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, tag="snapshot"):
    """Replaces what the client holds of this response: everything up to `sequence_number`."""

    response: ResponseView
    epoch: str
    text: str
    sequence_number: int


class ConversationChanged(msgspec.Struct, frozen=True, kw_only=True, tag="conversation.changed"):
    conversation: ConversationView


class ConversationDeleted(msgspec.Struct, frozen=True, kw_only=True, tag="conversation.deleted"):
    conversation_id: ConversationId


class ErrorFrame(msgspec.Struct, frozen=True, kw_only=True, tag="error"):
    """`request_id` is None where the frame could not be read."""

    request_id: str | None
    error: Problem


OutwardFrame = (
    Welcome
    | Subscribed
    | Unsubscribed
    | TurnAccepted
    | CancelAccepted
    | MessageAdded
    | Event
    | Snapshot
    | ConversationChanged
    | ConversationDeleted
    | ErrorFrame
)
