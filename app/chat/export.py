"""Takes conversations out: whole as an archive, or the branch that is shown as Markdown.

Only their owner's, and only those that the list shows (law 19). Each is read in a short look of its
own, so that an export of any size holds one conversation and no connection while somebody reads
slowly; what is deleted meanwhile is missing.
"""

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import msgspec
from sqlalchemy import Select, false, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.chat import rows, tree
from app.chat.archive import (
    FORMAT,
    VERSION,
    SavedConversation,
    SavedMessage,
    SavedReading,
    SavedResponse,
)
from app.chat.asked import Asked
from app.chat.readers import readable
from app.db.base import Database
from app.db.models import Conversation, LibraryItem, LibraryVersion, Message, Response
from app.db.types import Origin, VersionRef, pack
from app.errors import NotFound
from app.events import ResponseStatus
from app.ids import ConversationId, UserId
from engine.api import Role

_SPEAKERS = {
    Role.USER: "You",
    Role.ASSISTANT: "Answer",
    Role.SYSTEM: "Instructions",
    Role.TOOL: "Result",
}
_CUT_SHORT = (ResponseStatus.INCOMPLETE, ResponseStatus.CANCELLED, ResponseStatus.FAILED)


class Export:
    """One user's conversations at a time, read and never written."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def read(self, user_id: UserId, conversation_id: ConversationId) -> SavedConversation:
        """Raises `NotFound`."""
        async with self._db.read() as session:
            row = await session.scalar(_listed(user_id).where(Conversation.id == conversation_id))
            if row is None:
                raise NotFound("There is no such conversation.", field="conversation_id")
            return SavedConversation(
                id=row.id,
                title=row.title,
                reads=await _reads(session, user_id, rows.reads_of(row)),
                leaf_id=row.leaf_id,
                created_at=rows.seconds(row.created_at),
                updated_at=rows.seconds(row.updated_at),
                archived_at=None if row.archived_at is None else rows.seconds(row.archived_at),
                pinned_at=None if row.pinned_at is None else rows.seconds(row.pinned_at),
                kept_warm=row.kept_warm,
                continues_id=row.continues_id,
                messages=await _messages(session, row.id),
            )

    async def one(self, user_id: UserId, conversation_id: ConversationId) -> bytes:
        """An archive of one conversation. Raises `NotFound`."""
        return _HEAD + msgspec.json.encode(await self.read(user_id, conversation_id)) + _TAIL

    async def all(self, user_id: UserId) -> AsyncIterator[bytes]:
        """An archive of all conversations, piece by piece, the oldest first."""
        ids = _listed(user_id).with_only_columns(Conversation.id).order_by(Conversation.id)
        async with self._db.read() as session:
            known = list(await session.scalars(ids))
        yield _HEAD
        between = b""
        for one in known:
            try:
                saved = await self.read(user_id, one)
            except NotFound:
                continue
            yield between + msgspec.json.encode(saved)
            between = b",\n"
        yield _TAIL


_HEAD = f'{{"format":"{FORMAT}","version":{VERSION},"conversations":[\n'.encode()
_TAIL = b"\n]}\n"


def markdown(saved: SavedConversation) -> str:
    """The branch that is shown, as a page to read."""
    began = datetime.fromtimestamp(saved.created_at, UTC)
    persona = f", with {saved.reads[0].name}" if saved.reads and saved.reads[0].name else ""
    parts = [f"# {saved.title or 'Conversation'}", f"*{began:%Y-%m-%d}{persona}*"]
    for one in tree.path(saved.messages, saved.leaf_id):
        if not one.text:
            continue
        parts += [f"## {_SPEAKERS[one.role]}", one.text.strip("\n")]
        if one.response is not None and one.response.status in _CUT_SHORT:
            parts.append("*(not finished)*")
    return "\n\n".join(parts) + "\n"


def _listed(user_id: UserId) -> Select[Conversation]:
    return select(Conversation).where(
        Conversation.user_id == user_id, Conversation.origin == Origin.CHAT
    )


async def _reads(
    session: AsyncSession, user_id: UserId, refs: tuple[VersionRef, ...]
) -> tuple[SavedReading, ...]:
    wanted = or_(
        *(
            (LibraryVersion.item_id == ref.id) & (LibraryVersion.number == ref.number)
            for ref in refs
        ),
        false(),
    )
    query = (
        select(LibraryVersion)
        .join(LibraryItem, LibraryItem.id == LibraryVersion.item_id)
        .where(wanted, readable(user_id))
    )
    found = {VersionRef(one.item_id, one.number): one for one in await session.scalars(query)}
    return tuple(
        SavedReading(id=ref.id, number=ref.number)
        if ref not in found
        else SavedReading(
            id=ref.id,
            number=ref.number,
            name=found[ref].name,
            text=found[ref].text,
            examples=found[ref].examples,
        )
        for ref in refs
    )


async def _messages(
    session: AsyncSession, conversation_id: ConversationId
) -> tuple[SavedMessage, ...]:
    query = (
        select(Message, Response)
        .outerjoin(Response, Response.message_id == Message.id)
        .where(Message.conversation_id == conversation_id)
    )
    found = {message.id: (message, response) for message, response in await session.execute(query)}
    below = tree.children(message for message, _ in found.values())
    # Without recursion: a branch may be longer than Python's stack is deep.
    waiting, ordered = below.get(None, [])[::-1], []
    while waiting:
        one = waiting.pop()
        ordered.append(_saved_message(*found[one.id]))
        waiting += below.get(one.id, [])[::-1]
    return tuple(ordered)


def _saved_message(row: Message, response: Response | None) -> SavedMessage:
    head = row.head_token_ids
    return SavedMessage(
        id=row.id,
        parent_id=row.parent_id,
        role=row.role,
        text=row.text,
        created_at=rows.seconds(row.created_at),
        client_message_id=row.client_message_id,
        token_ids=pack(row.token_ids),
        head_token_ids=None if head is None else pack(head),
        seam=row.seam,
        model_fingerprint=row.model_fingerprint,
        template_fingerprint=row.template_fingerprint,
        response=None if response is None else _saved_response(response),
    )


def _saved_response(row: Response) -> SavedResponse:
    view = rows.response_view(row)
    return SavedResponse(
        id=view.id,
        parent_id=view.parent_id,
        status=view.status,
        model=view.model,
        asked=msgspec.convert(row.request, Asked),
        created_at=view.created_at,
        completed_at=view.completed_at,
        previous_response_id=row.previous_response_id,
        instructions=row.instructions,
        incomplete_reason=view.incomplete_reason,
        error=view.error,
        usage=view.usage,
        receipt=view.receipt,
    )
