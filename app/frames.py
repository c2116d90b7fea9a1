"""Everything the browser's socket may say or hear: tagged structs, inwards and outwards.

A new frame joins the union of its direction; the page's types, docs/protocol.md and the published
schema are made from those two.
"""

import enum
from typing import Annotated

import msgspec

from app.events import ConversationView, Figures, LogEvent, MessageView, Problem, ResponseView
from app.ids import ConversationId, DocumentId, MessageId, PersonaId, ResponseId

PROTOCOL = 1
"""Version of what the browser's socket and event stream say; the hello, or the query, must name it."""


# ---------------------------------------------------------------- inwards

RequestId = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
"""Chosen by the client; the answer to a frame repeats it."""
ClientMessageId = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=1_000_000)]
Unsent = Annotated[str, msgspec.Meta(max_length=1_000_000)]
"""What is in the field; it may be nothing."""


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
    client_message_id: ClientMessageId
    parent_id: MessageId | None
    text: Text


class TurnEdit(Inward, frozen=True, kw_only=True, tag="turn.edit"):
    """Say something else in place of a message of one's own: a branch beside it.

    `leaf_id` is the end of the branch that the user saw.
    """

    request_id: RequestId
    conversation_id: ConversationId
    client_message_id: ClientMessageId
    message_id: MessageId
    leaf_id: MessageId
    text: Text


class TurnRegenerate(Inward, frozen=True, kw_only=True, tag="turn.regenerate"):
    """Answer a message once more; an answer may be named as well as what it answers."""

    request_id: RequestId
    conversation_id: ConversationId
    client_message_id: ClientMessageId
    message_id: MessageId
    leaf_id: MessageId


class TurnContinue(Inward, frozen=True, kw_only=True, tag="turn.continue"):
    """Go on with an answer that was stopped or cut short: a new one beside it that begins with it."""

    request_id: RequestId
    conversation_id: ConversationId
    client_message_id: ClientMessageId
    message_id: MessageId
    leaf_id: MessageId


class LeafChoose(Inward, frozen=True, kw_only=True, tag="leaf.choose"):
    """Show the branch through this message, down to its newest end.

    Answered to all by `conversation.changed`.
    """

    request_id: RequestId
    conversation_id: ConversationId
    message_id: MessageId


class SummaryCreate(Inward, frozen=True, kw_only=True, tag="summary.create"):
    """Go on in a new conversation that begins with a summary of this branch; for a full one.

    Answered when it is there. The same `client_message_id` twice gives the same conversation. For
    `text`, which is to be said next and is not stored, room is left there.
    """

    request_id: RequestId
    conversation_id: ConversationId
    client_message_id: ClientMessageId
    leaf_id: MessageId
    text: Unsent = ""


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

    Each replaces the one before; it is held in memory only. One without text withdraws it, and so do
    the end of the last page that wrote there and 15 minutes without another: then what was computed
    of it is forgotten.
    Without a conversation yet, the persona and the documents are those that it will be made with.
    """

    conversation_id: ConversationId | None
    parent_id: MessageId | None
    text: Annotated[str, msgspec.Meta(max_length=1_000_000)]
    persona_id: PersonaId | None = None
    document_ids: Annotated[tuple[DocumentId, ...], msgspec.Meta(max_length=32)] = ()


class FiguresWatch(Inward, frozen=True, kw_only=True, tag="figures.watch"):
    """Hear the figures as they come, at once and every two seconds; administrators and auditors may.

    That ends with an `error` of this `request_id` where the engine is away or the role is taken away.
    """

    request_id: RequestId


class FiguresUnwatch(Inward, frozen=True, kw_only=True, tag="figures.unwatch"):
    request_id: RequestId


ChatFrame = (
    Subscribe
    | Unsubscribe
    | TurnCreate
    | TurnEdit
    | TurnRegenerate
    | TurnContinue
    | LeafChoose
    | SummaryCreate
    | ResponseCancel
    | Presence
    | Draft
)
"""What only those may say who chat."""

InwardFrame = Hello | ChatFrame | FiguresWatch | FiguresUnwatch


# ---------------------------------------------------------------- outwards


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
    """The message and its response are stored; there is none where an answer was asked for anew."""

    request_id: str
    message: MessageView | None
    response: ResponseView


class CancelAccepted(msgspec.Struct, frozen=True, kw_only=True, tag="response.cancel.accepted"):
    """`step` is the engine step after which nothing more was computed; None: it had ended."""

    request_id: str
    response_id: ResponseId
    step: int | None


class LeafChosen(msgspec.Struct, frozen=True, kw_only=True, tag="leaf.chosen"):
    """The branch that is shown now ends at `leaf_id`."""

    request_id: str
    conversation_id: ConversationId
    leaf_id: MessageId


class SummaryCreated(msgspec.Struct, frozen=True, kw_only=True, tag="summary.created"):
    """The conversation that goes on from the summary; `continues_id` is what was summed up."""

    request_id: str
    conversation: ConversationView


class FiguresWatched(msgspec.Struct, frozen=True, kw_only=True, tag="figures.watched"):
    """`figures` follow. A page that reads too slowly gets the newest and none that came before."""

    request_id: str


class FiguresUnwatched(msgspec.Struct, frozen=True, kw_only=True, tag="figures.unwatched"):
    request_id: str


class MessageAdded(msgspec.Struct, frozen=True, kw_only=True, tag="message.added"):
    """A message appeared in a watched conversation, from this tab or from another."""

    message: MessageView


class MessagesDeleted(msgspec.Struct, frozen=True, kw_only=True, tag="messages.deleted"):
    """A branch of a watched conversation is gone; on the event stream, of any of one's own."""

    conversation_id: ConversationId
    message_ids: tuple[MessageId, ...]


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


class CacheState(enum.StrEnum):
    """Where the longest of a conversation's KV lies: in the pool, in a lower tier, or nowhere."""

    WARM = "warm"
    PARKED = "parked"
    COLD = "cold"


class Warmth(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a conversation is computed, by where it lies."""

    conversation_id: ConversationId
    state: CacheState
    device_tokens: int = 0
    host_tokens: int = 0
    disk_tokens: int = 0


class ConversationWarmth(msgspec.Struct, frozen=True, kw_only=True, tag="conversation.warmth"):
    """Of one's own conversations those whose cache state is another now; first, all that are not cold.

    At most twice a second.
    """

    conversations: tuple[Warmth, ...]


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """How many of a user's pages show a conversation, by how they do. `typing` ones are open too."""

    conversation_id: ConversationId
    open: int = 0
    typing: int = 0
    hidden: int = 0


class PresenceChanged(msgspec.Struct, frozen=True, kw_only=True, tag="presence.changed"):
    """Which of one's conversations are shown otherwise now, this page's own showing included.

    At most twice a second.
    """

    conversations: tuple[Shown, ...]


class ResponseStarted(msgspec.Struct, frozen=True, kw_only=True, tag="response.started"):
    """On the event stream only: a response has begun. Its events are at its own address."""

    response: ResponseView


class PageOpened(msgspec.Struct, frozen=True, kw_only=True, tag="page.opened"):
    """The first word of the event stream. `page_id` stands for this page until the stream ends."""

    protocol: int
    page_id: str
    epoch: str
    """Of the logs on this server."""
    user_id: str


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
    | LeafChosen
    | SummaryCreated
    | FiguresWatched
    | Figures
    | FiguresUnwatched
    | MessageAdded
    | MessagesDeleted
    | Event
    | Snapshot
    | ConversationChanged
    | ConversationDeleted
    | ConversationWarmth
    | PresenceChanged
    | ErrorFrame
)
"""On `/ws`."""

StreamFrame = (
    PageOpened
    | ResponseStarted
    | MessageAdded
    | MessagesDeleted
    | ConversationChanged
    | ConversationDeleted
    | ConversationWarmth
    | PresenceChanged
)
"""On the event stream of `/api/events`, for pages without a socket."""
