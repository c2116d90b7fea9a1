"""Old versions of what the library holds, for those who may edit it: what each said, and what it costs.

They are read and never written; to bring one back is to publish what it said as a new version.
"""

import msgspec
from sqlalchemy import ColumnElement, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.chat.library import TOKENS, Text
from app.chat.readers import editable, not_found
from app.chat.rows import seconds
from app.db.base import Database
from app.db.models import AuditEntry, LibraryItem, LibraryVersion, User
from app.db.types import AuditAct, ItemKind
from app.errors import NotFound
from app.ids import ItemId, UserId


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One version. `tokens` is None until it was first read by the model that is served."""

    number: int
    name: str
    created_at: float
    author_email: str | None
    """None where the program wrote it, or the account is no more."""
    tokens: int | None


class Versions:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def list(self, user_id: UserId, kind: ItemKind, item_id: ItemId) -> tuple[Version, ...]:
        """The newest first. Raises `NotFound`."""
        query = (
            select(
                LibraryVersion.number,
                LibraryVersion.name,
                LibraryVersion.created_at,
                User.email,
                TOKENS,
            )
            .join(LibraryItem, LibraryItem.id == LibraryVersion.item_id)
            .outerjoin(User, User.id == LibraryItem.owner_id)
            .where(*_edited(user_id, kind, item_id))
            .order_by(LibraryVersion.number.desc())
        )
        async with self._db.read() as session:
            found = (await session.execute(query)).all()
            publishers = await _publishers(session, item_id)
        if not found:
            raise not_found(kind)
        return tuple(
            Version(
                number=number,
                name=name,
                created_at=seconds(created_at),
                author_email=owner_email or publishers.get(number),
                tokens=tokens,
            )
            for number, name, created_at, owner_email, tokens in found
        )

    async def read(self, user_id: UserId, kind: ItemKind, item_id: ItemId, number: int) -> Text:
        """What it said. Raises `NotFound`."""
        query = (
            select(LibraryVersion)
            .join(LibraryItem, LibraryItem.id == LibraryVersion.item_id)
            .where(*_edited(user_id, kind, item_id), LibraryVersion.number == number)
        )
        async with self._db.read() as session:
            found = await session.scalar(query)
        if found is None:
            raise NotFound("There is no such version.", field="number")
        return Text(
            name=found.name,
            text=found.text,
            examples=found.examples,
            document_ids=found.document_ids,
        )


async def _publishers(session: AsyncSession, item_id: ItemId) -> dict[object, str]:
    """Whose account published which version of what is the operator's, as the audit log has it."""
    query = (
        select(AuditEntry.details, User.email)
        .join(User, User.id == AuditEntry.actor_id)
        .where(AuditEntry.act == AuditAct.LIBRARY_PUBLISHED, AuditEntry.subject_id == item_id)
    )
    return {details["version"]: email for details, email in await session.execute(query)}


def _edited(user_id: UserId, kind: ItemKind, item_id: ItemId) -> tuple[ColumnElement[bool], ...]:
    return (LibraryItem.id == item_id, LibraryItem.kind == kind, editable(user_id))
