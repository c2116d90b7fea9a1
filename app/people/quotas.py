"""Quotas: how much each user may use, decided from what was said of them, their groups and everybody.

A user's own quota goes before those of their groups, of which the most generous counts, and these go
before the default of the settings. A quota may say that there is no limit. What was used is counted
elsewhere (`usage`); here is the one place that knows the words of a refusal.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime, time, timedelta
from typing import Literal

import msgspec
from sqlalchemy import BindParameter, CompoundSelect, bindparam, delete, null, select, union_all
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from app.db.base import Database, upsert
from app.db.models import GroupMember, GroupQuota, UserQuota
from app.db.types import AuditAct, QuotaKind, utc_now
from app.errors import NotFound, QuotaExceeded
from app.ids import GroupId, UserId
from app.people.audit import note

Defaults = Mapping[QuotaKind, int | None]
BUSY_S = 1.0
"""When to try again where the generations of the moment are the limit."""


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for a user. `allowed` is None where there is no limit."""

    allowed: int | None
    source: Literal["own", "group", "default"]
    group_id: GroupId | None = None
    """The group that it comes from."""


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """A quota as it was set, for a user or a group."""

    kind: QuotaKind
    allowed: int | None


Limits = Mapping[QuotaKind, Limit]


def _said_of_a_user() -> CompoundSelect[GroupId | None, QuotaKind, int | None]:
    own = select(null(), UserQuota.kind, UserQuota.allowed)
    groups = select(GroupQuota.group_id, GroupQuota.kind, GroupQuota.allowed).join(
        GroupMember, GroupMember.group_id == GroupQuota.group_id
    )
    user: BindParameter[UserId] = bindparam("user")
    return union_all(
        own.where(UserQuota.user_id == user), groups.where(GroupMember.user_id == user)
    )


_SAID = _said_of_a_user()
"""Built once: every turn asks."""


class Quotas:
    """One per server; `defaults` are of the settings."""

    def __init__(
        self,
        db: Database,
        defaults: Defaults | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self.now = now
        self._db = db
        self._defaults: Defaults = defaults or {}

    def limits(self, session: Session, user_id: UserId) -> Limits:
        """What holds for the user now, in the caller's transaction."""
        found = [
            (QuotaKind(kind), _said(group_id, allowed))
            for group_id, kind, allowed in session.execute(_SAID, {"user": user_id})
        ]
        return {
            kind: choose(
                (limit for of, limit in found if of is kind), default=self._defaults.get(kind)
            )
            for kind in QuotaKind
        }

    async def allowed(self, user_id: UserId, kind: QuotaKind) -> int | None:
        async with self._db.read() as session:
            return (await session.run_sync(self.limits, user_id))[kind].allowed

    async def allowed_of(
        self, user_ids: Collection[UserId], kind: QuotaKind
    ) -> dict[UserId, int | None]:
        """What holds for each of them."""
        own = select(UserQuota.user_id, null(), UserQuota.allowed).where(
            UserQuota.kind == kind, UserQuota.user_id.in_(user_ids)
        )
        groups = (
            select(GroupMember.user_id, GroupQuota.group_id, GroupQuota.allowed)
            .join(GroupQuota, GroupQuota.group_id == GroupMember.group_id)
            .where(GroupQuota.kind == kind, GroupMember.user_id.in_(user_ids))
        )
        both: CompoundSelect[UserId, GroupId | None, int | None] = union_all(own, groups)
        said: dict[UserId, list[Limit]] = {user_id: [] for user_id in user_ids}
        async with self._db.read() as session:
            for user_id, group_id, allowed in await session.execute(both):
                said[user_id].append(_said(group_id, allowed))
        default = self._defaults.get(kind)
        return {user_id: choose(found, default=default).allowed for user_id, found in said.items()}

    # ------------------------------------------------------------ what administrators say

    async def of_user(self, user_id: UserId) -> tuple[Quota, ...]:
        """Those that were set for the user."""
        async with self._db.read() as session:
            rows = await session.scalars(select(UserQuota).where(UserQuota.user_id == user_id))
            return _in_order(rows)

    async def of_group(self, group_id: GroupId) -> tuple[Quota, ...]:
        async with self._db.read() as session:
            rows = await session.scalars(select(GroupQuota).where(GroupQuota.group_id == group_id))
            return _in_order(rows)

    async def set_for_user(self, user_id: UserId, kind: QuotaKind, allowed: int | None) -> None:
        """From the next request on. Raises `NotFound`."""
        async with self._db.begin() as session:
            await _set(session, UserQuota, {"user_id": user_id, "kind": kind}, allowed)
            note(session, AuditAct.QUOTA_SET, user_id, kind=kind, allowed=allowed)

    async def set_for_group(self, group_id: GroupId, kind: QuotaKind, allowed: int | None) -> None:
        """For each of its members. Raises `NotFound`."""
        async with self._db.begin() as session:
            await _set(session, GroupQuota, {"group_id": group_id, "kind": kind}, allowed)
            note(session, AuditAct.QUOTA_SET, group_id, kind=kind, allowed=allowed)

    async def lift_for_user(self, user_id: UserId, kind: QuotaKind) -> None:
        """What their groups or the settings say holds again. Raises `NotFound`."""
        query = delete(UserQuota).where(UserQuota.user_id == user_id, UserQuota.kind == kind)
        async with self._db.begin() as session:
            if await session.scalar(query.returning(UserQuota.user_id)) is None:
                raise NotFound("No such quota was set.", field="kind")
            note(session, AuditAct.QUOTA_LIFTED, user_id, kind=kind)

    async def lift_for_group(self, group_id: GroupId, kind: QuotaKind) -> None:
        """Raises `NotFound`."""
        query = delete(GroupQuota).where(GroupQuota.group_id == group_id, GroupQuota.kind == kind)
        async with self._db.begin() as session:
            if await session.scalar(query.returning(GroupQuota.group_id)) is None:
                raise NotFound("No such quota was set.", field="kind")
            note(session, AuditAct.QUOTA_LIFTED, group_id, kind=kind)


def choose(said: Iterable[Limit], *, default: int | None) -> Limit:
    """The own one, else the most generous of the groups', else the default."""
    found = list(said)
    own = next((one for one in found if one.source == "own"), None)
    if own is not None:
        return own
    fallback = Limit(allowed=default, source="default")
    return max(found, key=_generosity, default=fallback)


def _said(group_id: GroupId | None, allowed: int | None) -> Limit:
    source: Literal["own", "group"] = "own" if group_id is None else "group"
    return Limit(allowed=allowed, source=source, group_id=group_id)


def _generosity(limit: Limit) -> float:
    return float("inf") if limit.allowed is None else limit.allowed


def _in_order(rows: Iterable[UserQuota] | Iterable[GroupQuota]) -> tuple[Quota, ...]:
    found = {row.kind: Quota(kind=row.kind, allowed=row.allowed) for row in rows}
    return tuple(found[kind] for kind in QuotaKind if kind in found)


async def _set(
    session: AsyncSession,
    table: type[UserQuota] | type[GroupQuota],
    named: Mapping[str, str],
    allowed: int | None,
) -> None:
    query = upsert(session, table).values(**named, allowed=allowed)
    query = query.on_conflict_do_update(index_elements=list(named), set_={"allowed": allowed})
    try:
        await session.execute(query)
    except IntegrityError as error:
        subject = "account" if table is UserQuota else "group"
        raise NotFound(f"There is no such {subject}.") from error


# ---------------------------------------------------------------- days and refusals


def today(now: datetime) -> str:
    return now.astimezone(UTC).date().isoformat()


def midnight(now: datetime) -> datetime:
    """When the day of UTC ends."""
    return datetime.combine(now.astimezone(UTC).date() + timedelta(days=1), time(), UTC)


def refusal(kind: QuotaKind, limit: int, now: datetime) -> QuotaExceeded:
    """Which quota it is, how much it allows, and when there is room again."""
    if kind.is_daily:
        ends = midnight(now)
        words = f"it begins anew at {ends:%Y-%m-%d %H:%M} UTC"
        wait_s: float | None = (ends - now).total_seconds()
    else:
        words, wait_s = _ROOM[kind]
        ends = None
    return QuotaExceeded(
        f"{_NAMES[kind].format(limit=limit)}; {words}.",
        quota=kind,
        limit=limit,
        resets_at=None if ends is None else ends.timestamp(),
        retry_after_s=wait_s,
    )


_NAMES = {
    QuotaKind.REQUESTS: "Your quota is {limit:,} requests a day",
    QuotaKind.TOKENS: "Your quota is {limit:,} tokens a day, and this could take more",
    QuotaKind.GENERATIONS: "Your quota is {limit:,} answers being written at once",
    QuotaKind.SOCKETS: "Your quota is {limit:,} open sockets",
    QuotaKind.STORED: "Your quota is {limit:,} stored bytes",
    QuotaKind.KEPT_WARM: "Your quota is {limit:,} bytes of KV kept warm",
}
_ROOM: dict[QuotaKind, tuple[str, float | None]] = {
    QuotaKind.GENERATIONS: ("wait for one of them", BUSY_S),
    QuotaKind.SOCKETS: ("close one first", 5.0),
    QuotaKind.STORED: ("delete conversations to make room", None),
    QuotaKind.KEPT_WARM: ("let another conversation go first", None),
}
