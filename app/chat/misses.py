"""What ended turns cost, over all users: misses by their reason, and the last turn of each session.

For administrators and auditors. Numbers, ids and reasons; no text and no title is selected.
"""

from collections.abc import Sequence

import msgspec
from sqlalchemy import func, select, tuple_
from sqlalchemy.orm import load_only

from app.db.base import Database
from app.db.cursors import cursor_of, place_of
from app.db.models import Response
from app.ids import ConversationId, ResponseId, UserId
from engine.api import MissReason, Receipt

LONGEST_PAGE = 200
_NUMBERS = load_only(
    Response.user_id,
    Response.conversation_id,
    Response.created_at,
    Response.model,
    Response.receipt,
    Response.miss_reason,
    Response.differs_at,
    raiseload=True,
)
"""Instructions, metadata and what failed are texts: they are not read here."""


class Miss(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that computed more than what was new. `differs_at`: where its prompt left the known one."""

    response_id: ResponseId
    user_id: UserId
    conversation_id: ConversationId
    model: str
    created_at: float
    reason: MissReason
    differs_at: int | None
    prompt_tokens: int
    cached_tokens: int
    first_token_s: float | None


class MissPage(msgspec.Struct, frozen=True, kw_only=True):
    """The newest first; `next_cursor` is None on the last page."""

    items: tuple[Miss, ...]
    next_cursor: str | None


class MissFilter(msgspec.Struct, frozen=True, kw_only=True):
    reason: MissReason | None = None
    user_id: str | None = None
    model: str | None = None


class TurnCost(msgspec.Struct, frozen=True, kw_only=True):
    """An ended turn in numbers. `first_token_s` is None where there was no first token."""

    response_id: ResponseId
    created_at: float
    prompt_tokens: int
    cached_tokens: int
    first_token_s: float | None


class LastTurn(msgspec.Struct, frozen=True, kw_only=True):
    response_id: ResponseId
    created_at: float
    receipt: Receipt


class Misses:
    """One per server. Turns that are not stored leave nothing to be read here."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def list(
        self, wanted: MissFilter, *, cursor: str | None = None, limit: int = 50
    ) -> MissPage:
        """A page, and where the next one begins. Raises `InvalidRequest` for a foreign cursor."""
        limit = max(1, min(limit, LONGEST_PAGE))
        query = select(Response).options(_NUMBERS).where(Response.miss_reason.is_not(None))
        if wanted.reason is not None:
            query = query.where(Response.miss_reason == wanted.reason)
        if wanted.user_id is not None:
            query = query.where(Response.user_id == UserId(wanted.user_id))
        if wanted.model is not None:
            query = query.where(Response.model == wanted.model)
        if cursor is not None:
            place = tuple_(Response.created_at, Response.id)
            query = query.where(place < tuple_(*place_of(cursor)))
        query = query.order_by(Response.created_at.desc(), Response.id.desc())
        async with self._db.read() as session:
            found = list(await session.scalars(query.limit(limit + 1)))
        last = found[limit - 1] if len(found) > limit else None
        return MissPage(
            items=tuple(_miss(row) for row in found[:limit]),
            next_cursor=None if last is None else cursor_of(last.created_at, last.id),
        )

    async def turns(self, limit: int) -> Sequence[TurnCost]:
        """The last turns that have a receipt, the newest first: an id sorts by when it was made."""
        query = select(Response).options(_NUMBERS).where(Response.receipt.is_not(None))
        async with self._db.read() as session:
            rows = await session.scalars(query.order_by(Response.id.desc()).limit(limit))
            return [
                _cost(row.id, row.created_at.timestamp(), row.receipt)
                for row in rows
                if row.receipt
            ]

    async def last_turns(
        self, conversation_ids: Sequence[ConversationId]
    ) -> dict[ConversationId, LastTurn]:
        """Of each the newest turn that has a receipt."""
        newest = (
            select(func.max(Response.id))
            .where(Response.conversation_id.in_(conversation_ids), Response.receipt.is_not(None))
            .group_by(Response.conversation_id)
        )
        async with self._db.read() as session:
            query = select(Response).options(_NUMBERS).where(Response.id.in_(newest))
            found = await session.scalars(query)
            return {row.conversation_id: _last(row) for row in found if row.receipt is not None}


def _miss(row: Response) -> Miss:
    receipt = row.receipt
    assert row.miss_reason is not None and receipt is not None
    return Miss(
        response_id=row.id,
        user_id=row.user_id,
        conversation_id=row.conversation_id,
        model=row.model,
        created_at=row.created_at.timestamp(),
        reason=row.miss_reason,
        differs_at=row.differs_at,
        prompt_tokens=receipt.prompt_tokens,
        cached_tokens=receipt.cached_tokens,
        first_token_s=receipt.first_token_s,
    )


def _cost(response_id: ResponseId, created_at: float, receipt: Receipt) -> TurnCost:
    return TurnCost(
        response_id=response_id,
        created_at=created_at,
        prompt_tokens=receipt.prompt_tokens,
        cached_tokens=receipt.cached_tokens,
        first_token_s=receipt.first_token_s,
    )


def _last(row: Response) -> LastTurn:
    assert row.receipt is not None
    return LastTurn(response_id=row.id, created_at=row.created_at.timestamp(), receipt=row.receipt)
