"""The file that conversations leave in and come back by: JSON, one format with a version number.

Everything that is kept of a conversation is in it: the whole tree with its ids, what each answer was
asked with and what it cost, and the persona and documents that it stands under, as text. Token ids
are base64 of four little-endian bytes each. Nothing here touches a database.
"""

from typing import Annotated, Literal

import msgspec

from app.chat.asked import Asked
from app.events import Problem, ResponseStatus, Usage
from app.ids import ConversationId, ItemId, MessageId, ResponseId
from engine.api import Message as Said
from engine.api import Receipt, Role, Seam

FORMAT: Literal["keepwarm.conversations"] = "keepwarm.conversations"
VERSION: Literal[1] = 1

_NAMED = msgspec.Meta(min_length=1, max_length=100)
MessageKey = Annotated[MessageId, _NAMED]
ResponseKey = Annotated[ResponseId, _NAMED]
Moment = Annotated[float, msgspec.Meta(ge=0)]


class SavedResponse(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """What wrote a message, or read it in advance."""

    id: ResponseKey
    parent_id: MessageKey | None
    status: ResponseStatus
    model: str
    asked: Asked
    created_at: Moment
    completed_at: Moment | None = None
    previous_response_id: ResponseKey | None = None
    instructions: str | None = None
    incomplete_reason: str | None = None
    error: Problem | None = None
    usage: Usage | None = None
    receipt: Receipt | None = None


class SavedMessage(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A node of the tree; a parent stands before its children, and siblings in their order."""

    id: MessageKey
    parent_id: MessageKey | None
    role: Role
    text: str
    created_at: Moment
    client_message_id: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    token_ids: bytes = b""
    head_token_ids: bytes | None = None
    seam: Seam | None = None
    model_fingerprint: str | None = None
    template_fingerprint: str | None = None
    response: SavedResponse | None = None


class SavedReading(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A persona or a document as it stands before the conversation.

    Without its text where the owner of the conversation may not read it any more.
    """

    id: Annotated[ItemId, _NAMED]
    number: int
    name: str = ""
    text: str | None = None
    examples: tuple[Said, ...] = ()


class SavedConversation(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    id: Annotated[ConversationId, _NAMED]
    title: str
    reads: tuple[SavedReading, ...]
    """The persona first, then the documents behind it."""
    leaf_id: MessageKey | None
    created_at: Moment
    updated_at: Moment
    archived_at: Moment | None = None
    pinned_at: Moment | None = None
    kept_warm: bool = False
    continues_id: Annotated[ConversationId, _NAMED] | None = None
    """From whose summary it goes on; that one may be missing."""
    messages: tuple[SavedMessage, ...]


class Archive(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    format: Literal["keepwarm.conversations"]
    version: Literal[1]
    conversations: tuple[SavedConversation, ...]
