"""The audit log: who did what, to whom, when, by which request; and how figures of others were looked at.

An act is written down in the transaction that does it, so that neither is there without the other.
Who acts is known from the context, as the request's id is: the gate says it for each request, a
command for itself; what nobody asked for is the server's own. Ids and words of ours, never a text, no
address of an account: a row outlives whom it is about, and names are looked up when it is read.
"""

from collections import OrderedDict
from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any

import msgspec
import structlog
from sqlalchemy import ColumnElement, delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db.base import Database
from app.db.cursors import cursor_of, place_of
from app.db.models import AuditEntry, User
from app.db.types import AuditAct, AuditDoor, utc_now
from app.ids import UserId, new_audit_id

LOOK_AGAIN = timedelta(minutes=10)
"""Whoever looks at the same again within that time goes on looking."""
REMEMBERED_LOOKS = 4096
FAILURES_KEPT = timedelta(days=90)
"""Strangers write these rows, so they do not stay for ever."""
LONGEST_PAGE = 200
_FAILURES = (AuditAct.LOGIN_FAILED, AuditAct.LOGIN_LOCKED)


class Actor(msgspec.Struct, frozen=True, kw_only=True):
    """Who acts, and by which door they came in. `user_id` is None where nobody was signed in."""

    user_id: UserId | None
    door: AuditDoor


SERVER = Actor(user_id=None, door=AuditDoor.SERVER)
STRANGER = Actor(user_id=None, door=AuditDoor.STRANGER)
COMMAND = Actor(user_id=None, door=AuditDoor.COMMAND)

_actor: ContextVar[Actor] = ContextVar("actor", default=SERVER)


def act_as(actor: Actor) -> None:
    """Whatever is done from here on in this context, this one does."""
    _actor.set(actor)


def note(
    session: AsyncSession, act: AuditAct, subject_id: str | None = None, **details: object
) -> None:
    """Write an act down with the transaction that does it. `subject_id`: on whom or on what."""
    actor = _actor.get()
    session.add(
        AuditEntry(
            id=new_audit_id(),
            at=utc_now(),
            actor_id=actor.user_id,
            door=actor.door,
            act=act,
            subject_id=subject_id,
            details=details,
            request_id=structlog.contextvars.get_contextvars().get("request_id"),
        )
    )


async def note_failure(
    db: Database, act: AuditAct, user_id: UserId | None, **details: object
) -> None:
    """Somebody did not get in. What was typed is not kept: it may be a password.

    Nobody is promised these rows.
    """
    async with db.jot() as session:
        old = AuditEntry.act.in_(_FAILURES), AuditEntry.at < utc_now() - FAILURES_KEPT
        free = select(AuditEntry.id).where(*old).with_for_update(skip_locked=True)
        await session.execute(delete(AuditEntry).where(AuditEntry.id.in_(free)))
        note(session, act, user_id, **details)


class AuditView(msgspec.Struct, frozen=True, kw_only=True):
    """One row. Names are today's; None where the account is no more, or it is none."""

    id: str
    at: float
    door: AuditDoor
    actor_id: UserId | None
    actor_email: str | None
    act: AuditAct
    subject_id: str | None
    subject_email: str | None
    details: dict[str, Any]
    request_id: str | None


class AuditPage(msgspec.Struct, frozen=True, kw_only=True):
    """The newest first; `next_cursor` is None on the last page."""

    items: tuple[AuditView, ...]
    next_cursor: str | None


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    act: AuditAct | None = None
    actor_id: str | None = None
    subject_id: str | None = None


class Audit:
    """One per server."""

    def __init__(self, db: Database, now: Callable[[], datetime] = utc_now) -> None:
        self._db = db
        self._now = now
        self._looks: OrderedDict[tuple[UserId | None, str, str | None], datetime] = OrderedDict()

    async def look(self, what: str, subject_id: str | None = None) -> None:
        """Somebody looks at figures of others: written down before they are told."""
        key = _actor.get().user_id, what, subject_id
        now, last = self._now(), self._looks.get(key)
        if last is not None and now - last < LOOK_AGAIN:
            return
        async with self._db.jot() as session:
            note(session, AuditAct.FIGURES_LOOK, subject_id, what=what)
        self._looks[key] = now
        self._looks.move_to_end(key)
        if len(self._looks) > REMEMBERED_LOOKS:
            self._looks.popitem(last=False)

    async def order(self, act: AuditAct, subject_id: str, **details: object) -> None:
        """An act that no transaction can do is written down before it is done."""
        async with self._db.begin() as session:
            note(session, act, subject_id, **details)

    async def read(
        self, wanted: AuditFilter, *, cursor: str | None = None, limit: int = 50
    ) -> AuditPage:
        """A page, and where the next one begins. Raises `InvalidRequest` for a foreign cursor."""
        limit = max(1, min(limit, LONGEST_PAGE))
        query = select(AuditEntry).where(*_wanted(wanted))
        if cursor is not None:
            query = query.where(AuditEntry.id < place_of(cursor)[1])
        query = query.order_by(AuditEntry.id.desc())
        async with self._db.read() as session:
            found = list(await session.scalars(query.limit(limit + 1)))
            emails = await _emails(session, found[:limit])
        last = found[limit - 1] if len(found) > limit else None
        return AuditPage(
            items=tuple(_view(row, emails) for row in found[:limit]),
            next_cursor=None if last is None else cursor_of(last.at, last.id),
        )


def _wanted(wanted: AuditFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if wanted.act is not None:
        conditions.append(AuditEntry.act == wanted.act)
    if wanted.actor_id is not None:
        conditions.append(AuditEntry.actor_id == UserId(wanted.actor_id))
    if wanted.subject_id is not None:
        conditions.append(AuditEntry.subject_id == wanted.subject_id)
    return conditions


async def _emails(session: AsyncSession, found: list[AuditEntry]) -> dict[str, str]:
    ids = {id_ for row in found for id_ in (row.actor_id, row.subject_id) if id_ is not None}
    users = await session.execute(
        select(User.id, User.email).where(User.id.in_([UserId(id_) for id_ in ids]))
    )
    return {str(user_id): email for user_id, email in users}


def _view(row: AuditEntry, emails: dict[str, str]) -> AuditView:
    return AuditView(
        id=row.id,
        at=row.at.timestamp(),
        door=row.door,
        actor_id=row.actor_id,
        actor_email=emails.get(row.actor_id or ""),
        act=row.act,
        subject_id=row.subject_id,
        subject_email=emails.get(row.subject_id or ""),
        details=row.details,
        request_id=row.request_id,
    )
