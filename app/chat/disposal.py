"""Deletes a persona or a document of one's own that nothing reads any more.

What conversations read stays for them (there is no foreign key, on purpose), so whoever wants it gone
deletes those first; their KV goes with them. What is published is archived instead: others read it.
"""

from sqlalchemy import ColumnElement, String, cast, exists, or_, select

from app.chat.library import Library, bytes_of
from app.chat.readers import not_found
from app.db.base import Database
from app.db.models import Conversation, LibraryItem, LibraryVersion
from app.db.types import ItemKind
from app.errors import Conflict
from app.ids import ItemId, UserId
from app.people.accounts import hold_user
from app.people.usage import correct


class Disposal:
    def __init__(self, db: Database, library: Library) -> None:
        self._db = db
        self._library = library

    async def delete(self, user_id: UserId, kind: ItemKind, item_id: ItemId) -> None:
        """For good, every version. Raises `NotFound`, and `Conflict` while it is read."""
        own = LibraryItem.owner_id == user_id
        query = select(LibraryItem).where(LibraryItem.id == item_id, LibraryItem.kind == kind, own)
        async with self._db.begin() as session:
            await session.run_sync(hold_user, user_id)
            item = await session.scalar(query.with_for_update())
            if item is None:
                raise not_found(kind)
            if await session.scalar(select(_is_read(item_id))):
                raise Conflict(f"This {kind} is still in use; archive it instead.", code="in_use")
            versions = select(LibraryVersion).where(LibraryVersion.item_id == item_id)
            stored = sum(map(bytes_of, await session.scalars(versions)))
            await session.delete(item)
            await session.flush()
            await session.run_sync(correct, user_id, -stored)
        self._library.changed.set()


def _is_read(item_id: ItemId) -> ColumnElement[bool]:
    """By a conversation, or, if it is a document, by any version of a persona."""
    name = item_id.replace("_", r"\_")
    documents = cast(Conversation.documents, String).like(f"%{name}@%", escape="\\")
    under = exists().where(or_(Conversation.persona_id == item_id, documents))
    brought = cast(LibraryVersion.document_ids, String).like(f'%"{name}"%', escape="\\")
    return or_(under, exists().where(brought))
