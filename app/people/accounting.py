"""What everybody has used, summed for administrators and auditors: by user, model, key and day.

Counts of turns and tokens, and of what is stored; nothing of what was said. What a user has used goes
with them.
"""

import enum
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import BigInteger, ColumnElement, Subquery, cast, func, select
from sqlalchemy.orm import InstrumentedAttribute

from app.db.base import Database
from app.db.models import ApiKey, Conversation, Login, Meter, UsageDay, User
from app.db.types import AccountRole
from app.ids import UserId
from app.people.audit import Audit

MOST_ROWS = 1000


class UsageBy(enum.StrEnum):
    """What a sum is apart by."""

    USER = "user"
    MODEL = "model"
    KEY = "key"
    DAY = "day"


_COLUMNS: dict[UsageBy, InstrumentedAttribute[str] | InstrumentedAttribute[UserId]] = {
    UsageBy.USER: UsageDay.user_id,
    UsageBy.MODEL: UsageDay.model,
    UsageBy.KEY: UsageDay.key_id,
    UsageBy.DAY: UsageDay.day,
}
_SUMMED = (
    UsageDay.requests,
    UsageDay.computed_tokens,
    UsageDay.cached_tokens,
    UsageDay.output_tokens,
)


class UsageSum(msgspec.Struct, frozen=True, kw_only=True):
    """Turns that ended, and their tokens. What was not asked to be told apart is None.

    `key_id` is empty for what came by a login.
    """

    user_id: str | None = None
    model: str | None = None
    key_id: str | None = None
    day: str | None = None
    requests: int
    computed_tokens: int
    cached_tokens: int
    output_tokens: int


class UsageFilter(msgspec.Struct, frozen=True, kw_only=True):
    """`since` and `until` are days of UTC, as `2026-12-31`, both included."""

    since: str | None = None
    until: str | None = None
    user_id: str | None = None


class UserSums(msgspec.Struct, frozen=True, kw_only=True):
    """An account, and what it comes to so far."""

    id: UserId
    email: str
    name: str
    role: AccountRole
    is_disabled: bool
    created_at: float
    last_seen_at: float | None
    """By a login that still stands, or by a key."""
    conversations: int
    stored_bytes: int
    requests: int
    computed_tokens: int
    cached_tokens: int
    output_tokens: int


class Accounting:
    """One per server."""

    def __init__(self, db: Database, audit: Audit) -> None:
        self._db = db
        self._audit = audit

    async def usage(self, by: Sequence[UsageBy], wanted: UsageFilter) -> list[UsageSum]:
        """The newest days first, then what took the most tokens; at most `MOST_ROWS`."""
        await self._audit.look("usage", wanted.user_id)
        columns = [_COLUMNS[kind] for kind in dict.fromkeys(by)]
        sums = [_sum(column) for column in _SUMMED]
        spent = func.sum(UsageDay.computed_tokens + UsageDay.output_tokens)
        newest = [UsageDay.day.desc()] if UsageBy.DAY in by else []
        query = select(*columns, *sums).where(*_wanted(wanted)).group_by(*columns)
        query = query.order_by(*newest, spent.desc(), *columns).limit(MOST_ROWS)
        async with self._db.read() as session:
            found = (await session.execute(query)).mappings().all()
        # Without a group there is one sum even of nothing.
        return [msgspec.convert(dict(row), UsageSum) for row in found if row["requests"]]

    async def users(self) -> list[UserSums]:
        """All accounts, the oldest first."""
        await self._audit.look("users")
        used = _per_user(UsageDay.user_id, *map(_sum, _SUMMED))
        kept = _per_user(Conversation.user_id, func.count().label("conversations"))
        logins = _per_user(Login.user_id, func.max(Login.last_seen_at).label("seen_at"))
        keys = _per_user(ApiKey.user_id, func.max(ApiKey.last_used_at).label("used_at"))
        query = (
            select(User, Meter.stored_bytes, kept.c.conversations, logins.c.seen_at, keys.c.used_at)
            .add_columns(*(used.c[one.key] for one in _SUMMED))
            .outerjoin(Meter, Meter.user_id == User.id)
            .order_by(User.created_at, User.id)
        )
        for sums in (used, kept, logins, keys):
            query = query.outerjoin(sums, sums.c.user_id == User.id)
        async with self._db.read() as session:
            return [_user(dict(row)) for row in (await session.execute(query)).mappings()]


def _wanted(wanted: UsageFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if wanted.since is not None:
        conditions.append(UsageDay.day >= wanted.since)
    if wanted.until is not None:
        conditions.append(UsageDay.day <= wanted.until)
    if wanted.user_id is not None:
        conditions.append(UsageDay.user_id == UserId(wanted.user_id))
    return conditions


def _sum(column: InstrumentedAttribute[int]) -> ColumnElement[int]:
    """PostgreSQL's sums have more digits than its numbers."""
    return cast(func.sum(column), BigInteger).label(column.key)


def _per_user(user_id: InstrumentedAttribute[UserId], *sums: Any) -> Subquery:
    return select(user_id, *sums).group_by(user_id).subquery()


def _user(row: dict[str, Any]) -> UserSums:
    user: User = row["User"]
    seen = [moment for moment in (row["seen_at"], row["used_at"]) if moment is not None]
    return UserSums(
        id=user.id,
        email=user.email,
        name=user.name,
        role=user.role,
        is_disabled=user.disabled_at is not None,
        created_at=user.created_at.timestamp(),
        last_seen_at=max(seen).timestamp() if seen else None,
        conversations=row["conversations"] or 0,
        stored_bytes=row["stored_bytes"] or 0,
        **{one.key: row[one.key] or 0 for one in _SUMMED},
    )
