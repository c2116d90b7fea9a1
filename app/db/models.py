"""All tables on one page.

Every owned row is reached from its user by foreign keys, and goes with it (ON DELETE CASCADE); a
message goes with its conversation. Queries name the owner themselves: there are no relations to
walk, so nothing is loaded that was not asked for.

users ─┬─ logins
       ├─ user_quotas, meters ── usage_days
       ├─ identities                                     (what an OpenID provider calls them)
       ├─ api_keys
       ├─ invitations ── invitation_groups               (the first admin's has no maker)
       ├─ group_members ── groups ── group_quotas
       ├─ library_items ── library_versions               (the operator's have no owner)
       │              ├─── library_readers
       │              └─── library_group_readers ── groups
       └─ conversations ── messages (a tree by parent_id) ── responses
                                                        └─── message_texts
departures, audit                                         (also of users who are no more)
"""

from datetime import datetime

from advanced_alchemy.base import CommonTableAttributes, create_registry
from sqlalchemy import BigInteger, ForeignKey, Index, Integer, UniqueConstraint, false
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from app.db.types import (
    AccountRole,
    AuditAct,
    AuditDoor,
    Choice,
    ItemKind,
    Json,
    KeyScope,
    KeyScopes,
    Origin,
    QuotaKind,
    TokenIds,
    VersionRef,
    VersionRefs,
    Visibility,
    Word,
    Words,
)
from app.events import Problem, ResponseStatus, Usage
from app.ids import (
    ConversationId,
    DocumentId,
    GroupId,
    IdentityId,
    InvitationId,
    ItemId,
    KeyId,
    LoginId,
    MessageId,
    PersonaId,
    ResponseId,
    UserId,
)
from engine.api import Message as Said
from engine.api import MissReason, Receipt, Role, Seam

_IDS = (
    UserId,
    LoginId,
    KeyId,
    InvitationId,
    IdentityId,
    GroupId,
    ItemId,
    PersonaId,
    ConversationId,
    MessageId,
    ResponseId,
)


class Base(CommonTableAttributes, DeclarativeBase):
    registry = create_registry(dict.fromkeys((str, *_IDS), Word))


class User(Base):
    __tablename__ = "users"

    id: Mapped[UserId] = mapped_column(primary_key=True)
    email: Mapped[str] = mapped_column(unique=True)
    """As `people.accounts` normalises it: two spellings of one address are one account."""
    name: Mapped[str]
    password_hash: Mapped[str]
    """argon2id in its own encoding; empty where nobody signs in with a password."""
    role: Mapped[AccountRole] = mapped_column(Choice(AccountRole))
    created_at: Mapped[datetime]
    disabled_at: Mapped[datetime | None]


class Login(Base):
    """One browser that is signed in; the cookie holds the token, only its SHA-256 is here."""

    __tablename__ = "logins"

    id: Mapped[LoginId] = mapped_column(primary_key=True)
    user_id: Mapped[UserId] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    token_digest: Mapped[bytes] = mapped_column(unique=True)
    user_agent: Mapped[str]
    created_at: Mapped[datetime]
    last_seen_at: Mapped[datetime]
    expires_at: Mapped[datetime]


class Identity(Base):
    """Somebody at an OpenID provider, who is a user here. A user may be several of them."""

    __tablename__ = "identities"
    __table_args__ = (UniqueConstraint("issuer", "subject"),)

    id: Mapped[IdentityId] = mapped_column(primary_key=True)
    user_id: Mapped[UserId] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    issuer: Mapped[str]
    subject: Mapped[str]
    """By which the provider knows them for good; their address may change."""
    label: Mapped[str]
    """What the provider called them when it was linked, so that they know it again."""
    created_at: Mapped[datetime]


class Departure(Base):
    """A user who was removed: what memory and the engine have of them is to be forgotten.

    Written with the removal, in one transaction, so that it is done whoever removed them and
    whatever is away at that moment.
    """

    __tablename__ = "departures"

    user_id: Mapped[UserId] = mapped_column(primary_key=True)
    left_at: Mapped[datetime]


class AuditEntry(Base):
    """What somebody did, in ids that outlive whom they name."""

    __tablename__ = "audit"

    id: Mapped[str] = mapped_column(primary_key=True)
    """Sorts by time."""
    at: Mapped[datetime]
    actor_id: Mapped[UserId | None] = mapped_column(index=True)
    """No foreign key, nor for the subject: they are told of when they are gone."""
    door: Mapped[AuditDoor] = mapped_column(Choice(AuditDoor))
    act: Mapped[AuditAct] = mapped_column(Choice(AuditAct), index=True)
    subject_id: Mapped[str | None] = mapped_column(index=True)
    details: Mapped[dict[str, object]] = mapped_column(Json(dict[str, object]))
    request_id: Mapped[str | None]


class Group(Base):
    """People whom something can be published to together."""

    __tablename__ = "groups"

    id: Mapped[GroupId] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    created_at: Mapped[datetime]


class GroupMember(Base):
    __tablename__ = "group_members"

    group_id: Mapped[GroupId] = mapped_column(
        ForeignKey("groups.id", ondelete="CASCADE"), primary_key=True
    )
    user_id: Mapped[UserId] = mapped_column(
        ForeignKey("users.id", ondelete="CASCADE"), primary_key=True, index=True
    )


class UserQuota(Base):
    """How much of something a user may have; goes before whatever their groups say."""

    __tablename__ = "user_quotas"

    user_id: Mapped[UserId] = mapped_column(
        ForeignKey("users.id", ondelete="CASCADE"), primary_key=True
    )
    kind: Mapped[QuotaKind] = mapped_column(Choice(QuotaKind), primary_key=True)
    allowed: Mapped[int | None] = mapped_column(BigInteger)
    """None: as much as they like."""


class GroupQuota(Base):
    """How much of something each member of a group may have."""

    __tablename__ = "group_quotas"

    group_id: Mapped[GroupId] = mapped_column(
        ForeignKey("groups.id", ondelete="CASCADE"), primary_key=True
    )
    kind: Mapped[QuotaKind] = mapped_column(Choice(QuotaKind), primary_key=True)
    allowed: Mapped[int | None] = mapped_column(BigInteger)


class Meter(Base):
    """Running sums of a user, and the lock under which their turns are let in.

    Whoever takes it and a conversation's row takes that row first.
    """

    __tablename__ = "meters"

    user_id: Mapped[UserId] = mapped_column(
        ForeignKey("users.id", ondelete="CASCADE"), primary_key=True
    )
    stored_bytes: Mapped[int] = mapped_column(BigInteger)
    """Of the conversations, and of personas and documents of their own."""
    day: Mapped[str]
    """Of UTC, as `2026-12-31`; what follows is of this day."""
    requests: Mapped[int] = mapped_column(BigInteger)
    tokens: Mapped[int] = mapped_column(BigInteger)


class UsageDay(Base):
    """What a user's ended turns came to on a day of UTC, by model and credential."""

    __tablename__ = "usage_days"

    user_id: Mapped[UserId] = mapped_column(
        ForeignKey("meters.user_id", ondelete="CASCADE"), primary_key=True
    )
    """The meter's, which whoever writes here has locked: a user who is being removed is waited for."""
    day: Mapped[str] = mapped_column(primary_key=True, index=True)
    model: Mapped[str] = mapped_column(primary_key=True)
    key_id: Mapped[str] = mapped_column(primary_key=True)
    """Empty for what came by a login."""
    requests: Mapped[int] = mapped_column(BigInteger)
    computed_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger)
    output_tokens: Mapped[int] = mapped_column(BigInteger)


class Invitation(Base):
    """A one-time link that makes an account."""

    __tablename__ = "invitations"

    id: Mapped[InvitationId] = mapped_column(primary_key=True)
    token_digest: Mapped[bytes] = mapped_column(unique=True)
    created_by: Mapped[UserId | None] = mapped_column(
        ForeignKey("users.id", ondelete="CASCADE"), index=True
    )
    """None: the server's own, for the first admin."""
    role: Mapped[AccountRole] = mapped_column(Choice(AccountRole))
    note: Mapped[str]
    """Whom it is for, in the words of who made it."""
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    used_at: Mapped[datetime | None]


class InvitationGroup(Base):
    """A group that whoever comes by the link is in."""

    __tablename__ = "invitation_groups"

    invitation_id: Mapped[InvitationId] = mapped_column(
        ForeignKey("invitations.id", ondelete="CASCADE"), primary_key=True
    )
    group_id: Mapped[GroupId] = mapped_column(
        ForeignKey("groups.id", ondelete="CASCADE"), primary_key=True, index=True
    )


class ApiKey(Base):
    __tablename__ = "api_keys"

    id: Mapped[KeyId] = mapped_column(primary_key=True)
    user_id: Mapped[UserId] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    name: Mapped[str]
    prefix: Mapped[str]
    """The key's first characters, so that its owner knows it again."""
    digest: Mapped[bytes] = mapped_column(unique=True)
    scopes: Mapped[tuple[KeyScope, ...]] = mapped_column(KeyScopes)
    created_at: Mapped[datetime]
    last_used_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class LibraryItem(Base):
    """A persona or a document; what it says is in its versions."""

    __tablename__ = "library_items"

    id: Mapped[ItemId] = mapped_column(primary_key=True)
    kind: Mapped[ItemKind] = mapped_column(Choice(ItemKind))
    owner_id: Mapped[UserId | None] = mapped_column(
        ForeignKey("users.id", ondelete="CASCADE"), index=True
    )
    """None: the operator's. An owner's own is read by nobody else."""
    visibility: Mapped[Visibility] = mapped_column(Choice(Visibility))
    newest: Mapped[int]
    """The version that new conversations take."""
    created_at: Mapped[datetime]
    archived_at: Mapped[datetime | None]
    """Since then no new conversation takes it; those that have it go on."""


class LibraryVersion(Base):
    """What an item says, for good; only what it was compiled to is written again."""

    __tablename__ = "library_versions"

    item_id: Mapped[ItemId] = mapped_column(
        ForeignKey("library_items.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    text: Mapped[str]
    """A persona's instructions, a document's text."""
    examples: Mapped[tuple[Said, ...]] = mapped_column(Json(tuple[Said, ...]))
    document_ids: Mapped[tuple[DocumentId, ...]] = mapped_column(Json(tuple[DocumentId, ...]))
    """Of a persona: the documents that come with it, each at its newest version."""
    built_in: Mapped[bool]
    """Written by the program, whose next release may follow it with another."""
    created_at: Mapped[datetime]
    token_ids: Mapped[tuple[int, ...] | None] = mapped_column(TokenIds)
    """Compiled (law 3); None until it is first read."""
    opening_end: Mapped[int | None]
    model_fingerprint: Mapped[str | None]
    template_fingerprint: Mapped[str | None]
    """What it was compiled with; with another it is compiled again."""


class LibraryReader(Base):
    """Who may read a listed item."""

    __tablename__ = "library_readers"

    item_id: Mapped[ItemId] = mapped_column(
        ForeignKey("library_items.id", ondelete="CASCADE"), primary_key=True
    )
    user_id: Mapped[UserId] = mapped_column(
        ForeignKey("users.id", ondelete="CASCADE"), primary_key=True, index=True
    )


class LibraryGroupReader(Base):
    """Whose members may read a listed item."""

    __tablename__ = "library_group_readers"

    item_id: Mapped[ItemId] = mapped_column(
        ForeignKey("library_items.id", ondelete="CASCADE"), primary_key=True
    )
    group_id: Mapped[GroupId] = mapped_column(
        ForeignKey("groups.id", ondelete="CASCADE"), primary_key=True, index=True
    )


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
