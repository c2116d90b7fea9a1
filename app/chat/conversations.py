"""Conversations as their owner sees them: make, list, change, read, delete.

Every query names the owner, so another's conversation is not found (law 19). Turns are added
elsewhere (`supervisor`); a conversation that the dialect made is not listed here.
"""

import enum
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec
from sqlalchemy import ColumnElement, Select, delete, select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from app.chat import heads, rows
from app.chat.hub import Hub
from app.chat.library import DEFAULT_PERSONA
from app.chat.readers import hold, readable
from app.db.base import Database
from app.db.cursors import cursor_of, place_of
from app.db.models import Conversation, LibraryVersion, Message, Response, User
from app.db.types import Origin, QuotaKind, utc_now
from app.errors import InvalidRequest, NotFound, QuotaExceeded
from app.events import ConversationView, MessageView
from app.frames import ConversationChanged, ConversationDeleted
from app.ids import ConversationId, DocumentId, PersonaId, UserId, new_conversation_id
from app.people.accounts import hold_user
from app.people.usage import Usage, correct
from engine.api import Role

LONGEST_TITLE = 200
NOTHING_HELD: Mapping[ConversationId, int] = MappingProxyType({})
LONGEST_PAGE = 100


class Changes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What its owner may change of a conversation; None leaves it as it is."""

    title: str | None = None
    archived: bool | None = None
    pinned: bool | None = None
    kept_warm: bool | None = None


class Shelf(enum.StrEnum):
    """Which conversations a list shows."""

    CURRENT = "current"
    PINNED = "pinned"
    ARCHIVED = "archived"


class ConversationPage(msgspec.Struct, frozen=True, kw_only=True):
    """The last changed first; `next_cursor` is None on the last page."""

    items: tuple[ConversationView, ...]
    next_cursor: str | None


class MessagePage(msgspec.Struct, frozen=True, kw_only=True):
    """The newest first, of all branches; `next_cursor` is None on the last page."""

    items: tuple[MessageView, ...]
    next_cursor: str | None


class Conversations:
    """One user's conversations at a time, in the database."""

    def __init__(self, db: Database, hub: Hub, usage: Usage) -> None:
        self._db = db
        self._hub = hub
        self._usage = usage

    async def create(
        self,
        user_id: UserId,
        persona_id: PersonaId = DEFAULT_PERSONA.id,
        document_ids: Sequence[DocumentId] = (),
        *,
        conversation_id: ConversationId | None = None,
    ) -> ConversationView:
        """An empty conversation; its title comes with the first message.

        Raises `NotFound` and `TooMany`.

        `conversation_id` is one that was made for it, and that nobody else was told.
        """
        self._usage.begins(user_id)
        async with self._db.begin() as session:
            reads = await heads.newest(session, readable(user_id), persona_id, document_ids)
            await session.run_sync(hold, user_id, [ref.id for ref in reads])
            made_id = conversation_id or new_conversation_id()
            row = rows.new_conversation(made_id, user_id, origin=Origin.CHAT, reads=reads)
            session.add(row)
        return self._changed(user_id, row)

    async def move_to_newest(
        self, user_id: UserId, conversation_id: ConversationId
    ) -> ConversationView:
        """Leave the versions that it has for the newest; its next turn has another head.

        What came with the persona's old version goes with it, what was picked stays. Raises
        `NotFound`.
        """
        async with self._db.begin() as session:
            await session.run_sync(hold_user, user_id)
            row = _found(await session.scalar(_owned(user_id, conversation_id).with_for_update()))
            if row.persona_id is None:
                return rows.conversation_view(row)
            old = await session.get(LibraryVersion, (row.persona_id, row.persona_version))
            brought = set(old.document_ids) if old else set()
            picked = {DocumentId(ref.id) for ref in row.documents} - brought
            reads = await heads.newest(session, readable(user_id), row.persona_id, picked)
            await session.run_sync(hold, user_id, [ref.id for ref in reads])
            rows.set_reads(row, reads)
        return self._changed(user_id, row)

    async def get(self, user_id: UserId, conversation_id: ConversationId) -> ConversationView:
        """Raises `NotFound`."""
        async with self._db.read() as session:
            return rows.conversation_view(
                _found(await session.scalar(_owned(user_id, conversation_id)))
            )

    async def list(
        self,
        user_id: UserId,
        *,
        shelf: Shelf = Shelf.CURRENT,
        cursor: str | None = None,
        limit: int = 50,
    ) -> ConversationPage:
        """A page, and where the next one begins. Raises `InvalidRequest` for a foreign cursor."""
        limit = max(1, min(limit, LONGEST_PAGE))
        query = (
            select(Conversation)
            .where(Conversation.user_id == user_id, Conversation.origin == Origin.CHAT)
            .where(*_on(shelf))
            .order_by(Conversation.updated_at.desc(), Conversation.id.desc())
            .limit(limit + 1)
        )
        if cursor is not None:
            place = tuple_(Conversation.updated_at, Conversation.id)
            query = query.where(place < tuple_(*place_of(cursor)))
        async with self._db.read() as session:
            found = list(await session.scalars(query))
        items = tuple(rows.conversation_view(row) for row in found[:limit])
        return ConversationPage(
            items=items,
            next_cursor=cursor_of(found[limit - 1].updated_at, found[limit - 1].id)
            if len(found) > limit
            else None,
        )

    async def change(
        self,
        user_id: UserId,
        conversation_id: ConversationId,
        changes: Changes,
        *,
        kv_bytes_per_token: int = 0,
        held: Mapping[ConversationId, int] = NOTHING_HELD,
    ) -> ConversationView:
        """Raises `NotFound`, `InvalidRequest` for an empty or over-long title, `TooMany`.

        `kv_bytes_per_token` is needed for what is to be kept warm; `held` are the tokens of what is
        held otherwise.
        """
        title = None if changes.title is None else " ".join(changes.title.split())
        if title is not None and not 1 <= len(title) <= LONGEST_TITLE:
            raise InvalidRequest(f"A title has 1 to {LONGEST_TITLE} characters.", field="title")
        if changes.kept_warm:
            self._usage.pins(user_id)
        now = utc_now()
        async with self._db.begin() as session:
            if changes.kept_warm:
                await _one_at_a_time(session, user_id)
            row = _found(await session.scalar(_owned(user_id, conversation_id).with_for_update()))
            if title is not None:
                row.title, row.provisional_title = title, False
            if changes.archived is not None:
                row.archived_at = now if changes.archived else None
            if changes.pinned is not None:
                row.pinned_at = now if changes.pinned else None
            if changes.kept_warm is not None:
                row.kept_warm = changes.kept_warm
            if changes.kept_warm:
                await session.flush()
                await session.run_sync(self._usage.check_kept, user_id, kv_bytes_per_token, held)
        return self._changed(user_id, row)

    async def let_go_of_too_much(
        self,
        user_id: UserId,
        conversation_id: ConversationId,
        *,
        kv_bytes_per_token: int,
        held: Mapping[ConversationId, int],
    ) -> bool:
        """It has grown: keep it warm no more where that is more than its owner may, and say so."""
        if await self._usage.quotas.allowed(user_id, QuotaKind.KEPT_WARM) is None:
            return False
        query = _owned(user_id, conversation_id).where(Conversation.kept_warm)
        async with self._db.begin() as session:
            await _one_at_a_time(session, user_id)
            row = await session.scalar(query.with_for_update())
            if row is None:
                return False
            try:
                await session.run_sync(self._usage.check_kept, user_id, kv_bytes_per_token, held)
                return False
            except QuotaExceeded:
                row.kept_warm = False
        self._changed(user_id, row)
        return True

    async def wants_title(self, user_id: UserId, conversation_id: ConversationId) -> bool:
        """Whether what it has are first words only, and the model has not been asked yet."""
        query = _owned(user_id, conversation_id).with_only_columns(Conversation.provisional_title)
        async with self._db.read() as session:
            return await session.scalar(query) is True

    async def settle_title(
        self, user_id: UserId, conversation_id: ConversationId, title: str
    ) -> None:
        """The model was asked: keep its title, or for good what there is where it found none.

        Nothing happens where a person has given one meanwhile.
        """
        async with self._db.jot() as session:
            query = _owned(user_id, conversation_id).where(Conversation.provisional_title)
            row = await session.scalar(query.with_for_update())
            if row is None:
                return
            row.title, row.provisional_title = title or row.title, False
        if title:
            self._changed(user_id, row)

    async def kept_warm(self) -> Sequence[tuple[UserId, ConversationId]]:
        """Everybody's, with their owners."""
        query = select(Conversation.user_id, Conversation.id).where(Conversation.kept_warm)
        async with self._db.read() as session:
            return (await session.execute(query)).all()

    async def messages(
        self, user_id: UserId, conversation_id: ConversationId
    ) -> tuple[MessageView, ...]:
        """The whole tree, oldest first; an assistant's message with its response."""
        query = _said(conversation_id).order_by(Message.created_at, Message.id)
        async with self._db.read() as session:
            _found(await session.scalar(_owned(user_id, conversation_id)))
            found = await session.execute(query)
            return tuple(_message(message, response) for message, response in found)

    async def page(
        self,
        user_id: UserId,
        conversation_id: ConversationId,
        *,
        cursor: str | None = None,
        limit: int = 50,
    ) -> MessagePage:
        """The tree from its newest message backwards. Raises `NotFound` and `InvalidRequest`.

        A message that was written here is newer than the one that it follows, so of what has come
        everything below is there as well.
        """
        limit = max(1, min(limit, LONGEST_PAGE))
        query = _said(conversation_id).order_by(Message.created_at.desc(), Message.id.desc())
        if cursor is not None:
            query = query.where(tuple_(Message.created_at, Message.id) < tuple_(*place_of(cursor)))
        async with self._db.read() as session:
            _found(await session.scalar(_owned(user_id, conversation_id)))
            found = (await session.execute(query.limit(limit + 1))).all()
        last = found[limit - 1][0] if len(found) > limit else None
        return MessagePage(
            items=tuple(_message(message, response) for message, response in found[:limit]),
            next_cursor=None if last is None else cursor_of(last.created_at, last.id),
        )

    async def delete(self, user_id: UserId, conversation_id: ConversationId) -> None:
        """Raises `NotFound`. What runs in it is stopped by `Supervisor.delete_conversation`."""
        async with self._db.begin() as session:
            await session.run_sync(hold_user, user_id)
            freed = await session.scalar(
                delete(Conversation)
                .where(Conversation.user_id == user_id, Conversation.id == conversation_id)
                .returning(Conversation.stored_bytes)
            )
            if freed is None:
                raise NotFound("There is no such conversation.", field="conversation_id")
            await session.run_sync(correct, user_id, -freed)
        self._hub.publish(user_id, ConversationDeleted(conversation_id=conversation_id))

    def _changed(self, user_id: UserId, row: Conversation) -> ConversationView:
        view = rows.conversation_view(row)
        self._hub.publish(user_id, ConversationChanged(conversation=view))
        return view


def _owned(user_id: UserId, conversation_id: ConversationId) -> Select[Conversation]:
    return select(Conversation).where(
        Conversation.user_id == user_id, Conversation.id == conversation_id
    )


def _said(conversation_id: ConversationId) -> Select[Message, Response | None]:
    """Its messages, each answer with what wrote it."""
    wrote = (Response.message_id == Message.id) & (Message.role == Role.ASSISTANT)
    query = select(Message, Response).outerjoin(Response, wrote)
    return query.where(Message.conversation_id == conversation_id)


def _message(message: Message, response: Response | None) -> MessageView:
    view = None if response is None else rows.response_view(response)
    return rows.message_view(message, message.conversation_id, view)


async def _one_at_a_time(session: AsyncSession, user_id: UserId) -> None:
    """Of what a user wants kept warm: two together might be too much."""
    owner = select(User.id).where(User.id == user_id)
    await session.execute(owner.with_for_update(key_share=True))


def _on(shelf: Shelf) -> tuple[ColumnElement[bool], ...]:
    if shelf is Shelf.ARCHIVED:
        return (Conversation.archived_at.is_not(None),)
    current = Conversation.archived_at.is_(None)
    return (current, Conversation.pinned_at.is_not(None)) if shelf is Shelf.PINNED else (current,)


def _found(row: Conversation | None) -> Conversation:
    if row is None:
        raise NotFound("There is no such conversation.", field="conversation_id")
    return row
