"""The tables of people: who they are, how they come in, what they may have and have used."""

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from app.db.registry import Base
from app.db.types import (
    AccountRole,
    AuditAct,
    AuditDoor,
    Choice,
    Json,
    KeyScope,
    KeyScopes,
    QuotaKind,
)
from app.ids import GroupId, IdentityId, InvitationId, KeyId, LoginId, UserId


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
    """Running sums of a user, and the lock under which their turns are let in."""

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


class PasswordLink(Base):
    """A one-time link by which a user chooses a password anew; the newest alone."""

    __tablename__ = "password_links"

    user_id: Mapped[UserId] = mapped_column(
        ForeignKey("users.id", ondelete="CASCADE"), primary_key=True
    )
    token_digest: Mapped[bytes] = mapped_column(unique=True)
    created_by: Mapped[UserId] = mapped_column(
        ForeignKey("users.id", ondelete="CASCADE"), index=True
    )
    expires_at: Mapped[datetime]


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
