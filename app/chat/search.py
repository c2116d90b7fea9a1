"""Search over all messages: FTS5 on SQLite, a `tsvector` on PostgreSQL, both filled with `words`.

All that is looked for must occur, each term as the beginning of words ("light" finds "lighthouse");
a query is data and never syntax. Whoever looks is in the look-up itself (law 19). What is found
comes newest first and without a rank, which would be made of how often others wrote a word (law 11).
Both databases walk through all that has a word before they look whose it is, and who searches could
measure that; so each word begins with a mark of its owner, and one's own words are all there are.

A turn's messages are indexed in the transaction that stores its end (`index`). What was stored before
there was an index, and what a killed server left, is caught up with at the start.
"""

import asyncio
import base64
import contextlib
import hashlib
import logging
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial

import msgspec
from sqlalchemy import ColumnElement, Select, cast, column, exists, select, table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from app.chat.rows import seconds
from app.chat.words import Phrase, Piece, excerpt, is_beginning, phrases, words
from app.db.base import Database
from app.db.models import Conversation, Message, MessageText, Response, User
from app.db.types import Origin
from app.errors import InvalidRequest
from app.events import ResponseStatus
from app.ids import ConversationId, MessageId, UserId
from engine.api import Role

LOG = logging.getLogger(__name__)

LONGEST_QUERY = 200
LONGEST_PAGE = 100
CAUGHT_UP_AT_ONCE = 200
MARK_CHARACTERS = 6
"""Of 32 letters: two of a thousand users have the same once in two thousand servers."""

_CURSOR = re.compile(r"msg_[0-9a-z]{1,60}")
_OPEN = (ResponseStatus.QUEUED, ResponseStatus.IN_PROGRESS)
_FTS5 = table("message_words", column("rowid"))


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One message, with what stands around the first match in it."""

    conversation_id: ConversationId
    title: str
    message_id: MessageId
    role: Role
    created_at: float
    excerpt: tuple[Piece, ...]


class FoundPage(msgspec.Struct, frozen=True, kw_only=True):
    """The newest first; `next_cursor` is None on the last page."""

    items: tuple[Found, ...]
    next_cursor: str | None


class Search:
    """One user's messages at a time, in the conversations that their list shows."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def find(
        self, user_id: UserId, query: str, *, cursor: str | None = None, limit: int = 20
    ) -> FoundPage:
        """Raises `InvalidRequest` for a query without a word, and for a foreign cursor."""
        wanted = phrases(query[:LONGEST_QUERY])
        if not wanted:
            raise InvalidRequest("There is no word to look for.", field="words")
        if cursor is not None and not _CURSOR.fullmatch(cursor):
            raise InvalidRequest("This cursor is not ours.", field="cursor")
        limit = max(1, min(limit, LONGEST_PAGE))
        matches = (
            select(Message, Conversation.title)
            .join(MessageText, MessageText.message_id == Message.id)
            .join(Conversation, Conversation.id == Message.conversation_id)
            .where(MessageText.user_id == user_id, Conversation.user_id == user_id)
            .where(self._has([_marked(user_id, phrase) for phrase in wanted]))
            .order_by(Message.id.desc())
            .limit(limit + 1)
        )
        if cursor is not None:
            matches = matches.where(Message.id < cursor)
        async with self._db.read() as session:
            found = (await session.execute(matches)).all()
        items = tuple(_found(message, title, wanted) for message, title in found[:limit])
        more = len(found) > limit
        return FoundPage(items=items, next_cursor=items[-1].message_id if more else None)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Catches up meanwhile. Enter and leave it in one task."""
        catching_up = asyncio.create_task(self._catch_up())
        try:
            yield
        finally:
            catching_up.cancel()
            await asyncio.wait((catching_up,))

    async def catch_up(self) -> int:
        """Index what should be and is not; how many messages that were."""
        done, last_id = 0, MessageId("")
        while True:
            async with self._db.read() as session:
                ids = list(await session.scalars(_not_indexed(last_id)))
            if not ids:
                return done
            await self._db.note(partial(index, message_ids=ids))
            done, last_id = done + len(ids), ids[-1]

    async def _catch_up(self) -> None:
        try:
            await self.catch_up()
        except Exception:  # a full disk: the next start tries again
            LOG.exception("older messages could not be made searchable")

    def _has(self, wanted: Sequence[Phrase]) -> ColumnElement[bool]:
        if not self._db.is_sqlite:
            return MessageText.words.op("@@")(cast(_tsquery(wanted), postgresql.TSQUERY))
        match = f"words : ({_fts5_query(wanted)})"
        table_itself: ColumnElement[str] = column(_FTS5.name)
        rows = select(_FTS5.c.rowid).where(table_itself.op("MATCH")(match))
        return MessageText.number.in_(rows)


def index(session: Session, message_ids: Iterable[MessageId]) -> None:
    """Make these messages findable as they are stored now, in the caller's transaction.

    Passed over is what is gone, says nothing, or belongs to a conversation that is not listed.
    """
    query = (
        select(Message.id, Message.text, User.id)
        .join(Conversation, Conversation.id == Message.conversation_id)
        .join(User, User.id == Conversation.user_id)
        .where(Message.id.in_(tuple(message_ids)), *_is_findable())
        .order_by(Conversation.id, Message.id)
        # So that none of them is deleted before what refers to it is there.
        .with_for_update(read=True, key_share=True, of=(User, Conversation, Message))
    )
    found = session.execute(query).all()
    if not found:
        return
    insert = (sqlite if session.get_bind().dialect.name == "sqlite" else postgresql).insert(
        MessageText
    )
    session.execute(
        insert.on_conflict_do_update(
            index_elements=[MessageText.message_id], set_={"words": insert.excluded.words}
        ),
        [
            {"message_id": message_id, "user_id": user_id, "words": _marked(user_id, words(text))}
            for message_id, text, user_id in found
        ],
    )


def _marked(user_id: UserId, own: Phrase) -> Phrase:
    """Words as the index has them. All marks are as long, so none is the beginning of another."""
    digest = hashlib.sha256(user_id.encode()).digest()
    mark = base64.b32encode(digest)[:MARK_CHARACTERS].decode().lower()
    return tuple(f"{mark}{word}" for word in own)


def _is_findable() -> tuple[ColumnElement[bool], ...]:
    return (
        Conversation.origin == Origin.CHAT,
        Message.role.in_((Role.USER, Role.ASSISTANT)),
        Message.text != "",
    )


def _not_indexed(after_id: MessageId) -> Select[MessageId]:
    known = exists().where(MessageText.message_id == Message.id)
    growing = exists().where(Response.message_id == Message.id, Response.status.in_(_OPEN))
    return (
        select(Message.id)
        .join(Conversation, Conversation.id == Message.conversation_id)
        .where(Message.id > after_id, *_is_findable(), ~known, ~growing)
        .order_by(Message.id)
        .limit(CAUGHT_UP_AT_ONCE)
    )


def _found(message: Message, title: str, wanted: Sequence[Phrase]) -> Found:
    return Found(
        conversation_id=message.conversation_id,
        title=title,
        message_id=message.id,
        role=message.role,
        created_at=seconds(message.created_at),
        excerpt=excerpt(message.text, wanted),
    )


def _fts5_query(wanted: Sequence[Phrase]) -> str:
    """Words have no quotes in them: they are letters and digits."""
    return " AND ".join(
        f'"{" ".join(phrase)}"' + (" *" if _is_beginning(phrase) else "") for phrase in wanted
    )


def _tsquery(wanted: Sequence[Phrase]) -> str:
    return " & ".join(
        " <-> ".join(f"'{word}'" for word in phrase) + (":*" if _is_beginning(phrase) else "")
        for phrase in wanted
    )


def _is_beginning(marked: Phrase) -> bool:
    return is_beginning(marked[-1][MARK_CHARACTERS:])
