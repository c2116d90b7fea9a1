"""Brings conversations in: from a file to rows, as somebody's own and under new ids.

What was said, its order, times, costs and settings come back as they were. Token ids do not: a file
may be forged, and ids that say something else than the text would be a prompt that nobody sees. The
next turn renders its path anew, once (law 3). What a conversation went on from it goes on from here, where
that came along or is the importer's, and it is kept warm again as far as a quota allows. A persona or document that the importer may not read is
left out, and the default persona stands in (law 19).

The file is read elsewhere (`foreign`, in a process of its own) and whole before anything is stored;
each conversation is a transaction of its own, so that nobody waits long. When one fails, those before
it go again.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec
from sqlalchemy import ColumnElement, Select, delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.chat import heads, rows, search, sizes
from app.chat.apart import Apart
from app.chat.archive import SavedConversation, SavedMessage, SavedReading, SavedResponse
from app.chat.hub import Hub
from app.chat.library import DEFAULT_PERSONA
from app.chat.readers import hold, readable
from app.db.base import Database
from app.db.models import Conversation, LibraryItem, LibraryVersion, Message, Response
from app.db.types import ItemKind, Origin, VersionRef
from app.errors import AppError
from app.events import ConversationView, ResponseStatus
from app.frames import ConversationChanged
from app.ids import (
    ConversationId,
    MessageId,
    ResponseId,
    UserId,
    new_conversation_id,
    new_message_id,
    new_response_id,
)
from app.people.accounts import hold_user
from app.people.usage import Usage, correct
from engine.errors import EngineError

_decode = msgspec.json.Decoder(SavedConversation).decode


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """What came in; `conversation_ids` in the order of the file."""

    conversation_ids: tuple[ConversationId, ...]
    messages: int
    under_default_persona: int
    """Conversations whose own persona is not there for the importer."""
    not_kept_warm: int = 0
    """Conversations that were kept warm, for which the importer's quota has no room."""


Keep = Callable[[ConversationId], Awaitable[object]]
"""Keeps one of the importer's conversations warm; raises what says why it cannot."""


class Imports:
    def __init__(self, db: Database, hub: Hub, apart: Apart, usage: Usage) -> None:
        self._db = db
        self._hub = hub
        self._usage = usage
        self._apart = apart

    async def take(self, user_id: UserId, data: bytes, keep: Keep | None = None) -> Imported:
        """Store what a file holds. Raises `InvalidRequest` and `TooMany`; then nothing is stored.

        A quota that is used up on the way is such a `TooMany`.
        """
        found = [_decode(item) async for item in self._apart.items("conversations", data)]
        ids = [new_conversation_id() for _ in found]
        renamed = {one.id: new_id for one, new_id in zip(found, ids, strict=True)}
        made: list[ConversationView] = []
        moved = 0
        try:
            for one, new_id in zip(found, ids, strict=True):
                view, is_moved = await self._store(user_id, one, new_id, renamed)
                made.append(view)
                moved += is_moved
        except BaseException:
            await self._undo(user_id, made)
            raise
        for view in made:
            self._hub.publish(user_id, ConversationChanged(conversation=view))
        return Imported(
            conversation_ids=tuple(one.id for one in made),
            messages=sum(len(one.messages) for one in found),
            under_default_persona=moved,
            not_kept_warm=await _keep_again(found, ids, keep),
        )

    async def _store(
        self,
        user_id: UserId,
        saved: SavedConversation,
        new_id: ConversationId,
        renamed: Mapping[ConversationId, ConversationId],
    ) -> tuple[ConversationView, bool]:
        new_ids = _new_ids(saved.messages)
        responses = {
            one.response.id: new_response_id() for one in saved.messages if one.response is not None
        }
        async with self._db.begin() as session:
            reads = await _permitted(session, readable(user_id), saved.reads)
            await session.run_sync(hold, user_id, [ref.id for ref in reads])
            row = rows.new_conversation(new_id, user_id, origin=Origin.CHAT, reads=reads)
            if saved.continues_id is not None:
                row.continues_id = renamed.get(saved.continues_id) or await session.scalar(
                    _own(user_id, saved.continues_id)
                )
            row.title, row.provisional_title = saved.title, not saved.title
            row.leaf_id = new_ids[saved.leaf_id or saved.messages[-1].id] if new_ids else None
            row.created_at = _moment(saved.created_at)
            row.updated_at = _moment(saved.updated_at)
            row.archived_at = None if saved.archived_at is None else _moment(saved.archived_at)
            row.pinned_at = None if saved.pinned_at is None else _moment(saved.pinned_at)
            session.add(row)
            await session.flush()
            session.add_all([_message_row(one, row.id, new_ids) for one in saved.messages])
            await session.flush()
            session.add_all(
                _response_row(one.response, row, new_ids[one.id], (new_ids, responses))
                for one in saved.messages
                if one.response is not None
            )
            await session.flush()
            await session.run_sync(search.index, new_ids.values())
            row.stored_bytes = await sizes.of_conversation(session, row.id)
            await session.run_sync(self._usage.store, user_id, row.stored_bytes)
            wanted = saved.reads[0].id if saved.reads else None
            return rows.conversation_view(row), wanted not in (None, row.persona_id)

    async def _undo(self, user_id: UserId, made: Sequence[ConversationView]) -> None:
        theirs = Conversation.id.in_([one.id for one in made])
        in_order = select(Conversation.id).where(theirs).order_by(Conversation.id)
        gone = delete(Conversation).where(theirs)
        async with self._db.begin() as session:
            await session.run_sync(hold_user, user_id)
            await session.execute(in_order.with_for_update())
            freed = await session.scalars(gone.returning(Conversation.stored_bytes))
            await session.run_sync(correct, user_id, -sum(freed))


async def _keep_again(
    found: Sequence[SavedConversation], ids: Sequence[ConversationId], keep: Keep | None
) -> int:
    """How many of those that were kept warm are not."""
    left = 0
    for one, new_id in zip(found, ids, strict=True):
        if one.kept_warm:
            try:
                if keep is not None:
                    await keep(new_id)
            except (AppError, EngineError):
                left += 1
    return left


def _own(user_id: UserId, conversation_id: ConversationId) -> Select[ConversationId]:
    theirs = Conversation.user_id == user_id, Conversation.id == conversation_id
    return select(Conversation.id).where(*theirs)


async def _permitted(
    session: AsyncSession, allowed: ColumnElement[bool], reads: Sequence[SavedReading]
) -> tuple[VersionRef, ...]:
    """The same versions where they are there and may be read; else the default persona as it is."""
    found = await session.execute(
        select(LibraryVersion.item_id, LibraryVersion.number, LibraryItem.kind)
        .join(LibraryItem, LibraryItem.id == LibraryVersion.item_id)
        .where(LibraryItem.id.in_([one.id for one in reads]), allowed)
    )
    kinds = {VersionRef(item_id, number): kind for item_id, number, kind in found}
    wanted = [VersionRef(one.id, one.number) for one in reads]
    documents = [ref for ref in wanted[1:] if kinds.get(ref) is ItemKind.DOCUMENT]
    if wanted and kinds.get(wanted[0]) is ItemKind.PERSONA:
        return (wanted[0], *documents)
    (persona, *_) = await heads.newest(session, allowed, DEFAULT_PERSONA.id)
    return (persona, *documents)


def _new_ids(messages: Sequence[SavedMessage]) -> dict[MessageId, MessageId]:
    """By the times of the messages, and siblings in the order they have here."""
    last_ms: dict[MessageId | None, int] = {}
    new_ids: dict[MessageId, MessageId] = {}
    for one in messages:
        at_ms = int(_moment(one.created_at).timestamp() * 1000)
        at_ms = max(at_ms, last_ms.get(one.parent_id, -1) + 1)
        last_ms[one.parent_id] = at_ms
        new_ids[one.id] = new_message_id(at_ms)
    return new_ids


def _moment(since_epoch_s: float) -> datetime:
    """No later than now: a list begins with what changed last, and stays with it."""
    return rows.moment(min(since_epoch_s, datetime.now(UTC).timestamp()))


def _message_row(
    one: SavedMessage, conversation_id: ConversationId, new_ids: dict[MessageId, MessageId]
) -> Message:
    return Message(
        id=new_ids[one.id],
        conversation_id=conversation_id,
        parent_id=None if one.parent_id is None else new_ids[one.parent_id],
        role=one.role,
        text=one.text,
        token_ids=(),
        head_token_ids=None,
        model_fingerprint=None,
        template_fingerprint=None,
        seam=None,
        path_digest=None,
        client_message_id=one.client_message_id,
        created_at=_moment(one.created_at),
    )


def _response_row(
    one: SavedResponse,
    conversation: Conversation,
    message_id: MessageId,
    new_ids: tuple[dict[MessageId, MessageId], dict[ResponseId, ResponseId]],
) -> Response:
    messages, responses = new_ids
    asked = msgspec.structs.replace(
        one.asked, input_ids=tuple(messages[two] for two in one.asked.input_ids if two in messages)
    )
    cut_off = not one.status.ended
    return Response(
        id=responses[one.id],
        user_id=conversation.user_id,
        conversation_id=conversation.id,
        message_id=message_id,
        parent_id=messages.get(one.parent_id) if one.parent_id is not None else None,
        previous_response_id=responses.get(one.previous_response_id)
        if one.previous_response_id is not None
        else None,
        origin=Origin.IMPORT,
        status=ResponseStatus.INCOMPLETE if cut_off else one.status,
        incomplete_reason="interrupted" if cut_off else one.incomplete_reason,
        error=one.error,
        usage=one.usage,
        receipt=one.receipt,
        model=one.model,
        instructions=one.instructions,
        request=msgspec.to_builtins(asked),
        epoch="",
        created_at=_moment(one.created_at),
        completed_at=None if one.completed_at is None else _moment(one.completed_at),
    )
