"""The tables of conversations: trees of messages, and what wrote the answers."""

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, UniqueConstraint, false
from sqlalchemy.orm import Mapped, mapped_column

from app.db.registry import Base
from app.db.types import Choice, Json, Origin, TokenIds, VersionRef, VersionRefs, Words
from app.events import Problem, ResponseStatus, Usage
from app.ids import ConversationId, MessageId, PersonaId, ResponseId, UserId
from engine.api import MissReason, Receipt, Role, Seam


class Conversation(Base):
    __tablename__ = "conversations"
    __table_args__ = (Index("ix_conversations_list", "user_id", "origin", "updated_at", "id"),)

    id: Mapped[ConversationId] = mapped_column(primary_key=True)
    user_id: Mapped[UserId] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    origin: Mapped[Origin] = mapped_column(Choice(Origin))
    title: Mapped[str]
    provisional_title: Mapped[bool] = mapped_column(default=False, server_default=false())
    """It is the first message's words, until the model has been asked for a better one."""
    persona_id: Mapped[PersonaId | None]
    """No foreign key, nor for documents: the library archives and never deletes what is read."""
    persona_version: Mapped[int | None]
    documents: Mapped[tuple[VersionRef, ...]] = mapped_column(VersionRefs, default=())
    """What stands behind the persona, in this order."""
    leaf_id: Mapped[MessageId | None]
    """The branch that is shown. No foreign key: it would close a circle with `messages`."""
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    archived_at: Mapped[datetime | None]
    """Since then it is not in the list, and otherwise as it was."""
    pinned_at: Mapped[datetime | None]
    continues_id: Mapped[ConversationId | None]
    """From whose summary it goes on. No foreign key: that one may be deleted."""
    kept_warm: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Its owner wants its KV to stay, within what the budgets allow."""
    stored_bytes: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    """Of the texts of its messages, and of instructions; a reply counts when it has ended."""
    labels: Mapped[dict[str, str] | None] = mapped_column(Json(dict[str, str]))
    """What an API client that made it named it by; None where none did."""


class Message(Base):
    """A node of a conversation's tree, with the exact ids that it adds to the prompt (law 3)."""

    __tablename__ = "messages"
    __table_args__ = (UniqueConstraint("conversation_id", "client_message_id"),)

    id: Mapped[MessageId] = mapped_column(primary_key=True)
    conversation_id: Mapped[ConversationId] = mapped_column(
        ForeignKey("conversations.id", ondelete="CASCADE")
    )
    parent_id: Mapped[MessageId | None] = mapped_column(ForeignKey("messages.id"), index=True)
    """No cascade: the conversation takes all its messages at once, while a cascade along a long
    branch would pass SQLite's limit of 1,000 nested actions."""
    role: Mapped[Role] = mapped_column(Choice(Role))
    text: Mapped[str]
    token_ids: Mapped[tuple[int, ...]] = mapped_column(TokenIds)
    head_token_ids: Mapped[tuple[int, ...] | None] = mapped_column(TokenIds)
    """Ids that stood before the path of this turn: persona, instructions or template opening."""
    model_fingerprint: Mapped[str | None]
    template_fingerprint: Mapped[str | None]
    seam: Mapped[Seam | None] = mapped_column(Choice(Seam))
    """How its ids end, which decides the glue of what follows."""
    path_digest: Mapped[bytes | None] = mapped_column(index=True)
    """Of an ended reply: stands for all that is said up to it, its user and head included."""
    client_message_id: Mapped[str | None]
    created_at: Mapped[datetime]


class MessageText(Base):
    """The words of a message that can be found; another table, since a growing reply is written often.

    On SQLite triggers carry each row into `message_words` (FTS5), which is no table of ours; on
    PostgreSQL a GIN index stands on `words`. The migration makes both.
    """

    __tablename__ = "message_texts"

    number: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer(), "sqlite"), primary_key=True
    )
    """FTS5 names its rows by a number that lasts."""
    message_id: Mapped[MessageId] = mapped_column(
        ForeignKey("messages.id", ondelete="CASCADE"), unique=True
    )
    user_id: Mapped[UserId] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    words: Mapped[tuple[str, ...]] = mapped_column(Words)


class Response(Base):
    """What writes an assistant's message: its state, its cost and what was asked for."""

    __tablename__ = "responses"
    __table_args__ = (
        Index("ix_responses_list", "user_id", "created_at", "id"),
        Index("ix_responses_misses", "miss_reason", "created_at", "id"),
    )

    id: Mapped[ResponseId] = mapped_column(primary_key=True)
    user_id: Mapped[UserId] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    conversation_id: Mapped[ConversationId] = mapped_column(
        ForeignKey("conversations.id", ondelete="CASCADE"), index=True
    )
    message_id: Mapped[MessageId] = mapped_column(
        ForeignKey("messages.id", ondelete="CASCADE"), unique=True
    )
    """The assistant's message that it writes."""
    parent_id: Mapped[MessageId | None] = mapped_column(
        ForeignKey("messages.id", ondelete="CASCADE"), index=True
    )
    """The message that it answers."""
    previous_response_id: Mapped[ResponseId | None]
    """As the caller named it. No foreign key: the previous one may be deleted, or never stored."""
    origin: Mapped[Origin] = mapped_column(Choice(Origin))
    status: Mapped[ResponseStatus] = mapped_column(Choice(ResponseStatus), index=True)
    incomplete_reason: Mapped[str | None]
    error: Mapped[Problem | None] = mapped_column(Json(Problem))
    usage: Mapped[Usage | None] = mapped_column(Json(Usage))
    receipt: Mapped[Receipt | None] = mapped_column(Json(Receipt))
    miss_reason: Mapped[MissReason | None] = mapped_column(Choice(MissReason))
    """The receipt's, like the next, where they can be searched for."""
    differs_at: Mapped[int | None]
    model: Mapped[str]
    instructions: Mapped[str | None]
    request: Mapped[dict[str, object]] = mapped_column(Json(dict[str, object]))
    """Sampling, limits and metadata as they were asked for."""
    epoch: Mapped[str]
    """Of the event log that told its life; another epoch's cursors do not fit."""
    created_at: Mapped[datetime]
    completed_at: Mapped[datetime | None]
