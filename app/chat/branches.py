"""Branches of a conversation: which one is shown, copies of one, and the end of one (law 16).

Turns add branches (`supervisor.create`); what is here moves between them and takes them away. Every
query names the owner (law 19). What runs in a branch that goes is stopped by the supervisor.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.chat import rows, search, sizes, tree
from app.chat.hub import Hub
from app.db.base import Database
from app.db.models import Conversation, Message, Response
from app.db.types import Origin, utc_now
from app.errors import Conflict, NotFound
from app.events import ConversationView
from app.frames import ConversationChanged, MessagesDeleted
from app.ids import (
    ConversationId,
    MessageId,
    UserId,
    new_conversation_id,
    new_message_id,
    new_response_id,
)
from app.people.accounts import hold_user
from app.people.usage import Usage, correct


class Step(NamedTuple):
    """As much of a message as its place in the tree."""

    id: MessageId
    parent_id: MessageId | None


class Behind(NamedTuple):
    """Where a copied path goes on, and with which ids its first message follows what is there."""

    message_id: MessageId
    token_ids: tuple[int, ...]


class Branches:
    """One user's branches at a time, in the database."""

    def __init__(self, db: Database, hub: Hub, usage: Usage) -> None:
        self._db = db
        self._hub = hub
        self._usage = usage

    async def choose(
        self, user_id: UserId, conversation_id: ConversationId, message_id: MessageId
    ) -> ConversationView:
        """Show the branch through this message, down to its newest end. Raises `NotFound`."""
        async with self._db.begin() as session:
            row = await locked(session, user_id, conversation_id)
            steps = await _steps(session, conversation_id)
            _find(steps, message_id)
            row.leaf_id = tree.tip(steps, message_id)
        return self._changed(user_id, row)

    async def fork(
        self, user_id: UserId, conversation_id: ConversationId, message_id: MessageId
    ) -> ConversationView:
        """A new conversation that begins with everything up to this message. Raises `NotFound`.

        It has the very ids, so that it shares the KV of what it shares. Raises `Conflict` where the
        answer is still being written, and `TooMany`.
        """
        self._usage.begins(user_id)
        async with self._db.begin() as session:
            row = await locked(session, user_id, conversation_id)
            steps = await _steps(session, conversation_id)
            _find(steps, message_id)
            path = [step.id for step in tree.path(steps, message_id)]
            copy = rows.new_conversation(
                new_conversation_id(), user_id, origin=Origin.CHAT, reads=rows.reads_of(row)
            )
            copy.title, copy.provisional_title = row.title, row.provisional_title
            session.add(copy)
            await session.flush()
            copy.leaf_id = await copy_path(session, path, copy.id)
            copy.stored_bytes = await sizes.of_conversation(session, copy.id)
            await session.run_sync(self._usage.store, user_id, copy.stored_bytes)
        return self._changed(user_id, copy)

    async def prune(
        self, user_id: UserId, conversation_id: ConversationId, message_id: MessageId
    ) -> frozenset[MessageId]:
        """Delete a message and all below it, and say which they were. Raises `NotFound`.

        Where the shown branch went through it, the newest one beside it is shown, or what is above.
        """
        async with self._db.begin() as session:
            row = await locked(session, user_id, conversation_id)
            steps = await _steps(session, conversation_id)
            top = _find(steps, message_id)
            gone = frozenset(tree.below(steps, message_id))
            left = [step for step in steps if step.id not in gone]
            if row.leaf_id in gone:
                row.leaf_id = tree.tip(left, top.parent_id)
            row.updated_at = utc_now()
            await session.flush()
            # In one statement: that nobody's parent is missing is checked at its end.
            walk = select(Message.id).where(Message.id == message_id).cte("walk", recursive=True)
            children = select(Message.id).join(walk, Message.parent_id == walk.c.id)
            walk = walk.union_all(children)
            freed = await sizes.of_messages(session, select(walk.c.id))
            row.stored_bytes -= freed
            await session.flush()
            await session.run_sync(correct, user_id, -freed)
            await session.execute(delete(Message).where(Message.id.in_(select(walk.c.id))))
        self._changed(user_id, row)
        ids = tuple(sorted(gone))
        self._hub.publish(
            user_id, MessagesDeleted(conversation_id=conversation_id, message_ids=ids)
        )
        return gone

    def _changed(self, user_id: UserId, row: Conversation) -> ConversationView:
        view = rows.conversation_view(row)
        self._hub.publish(user_id, ConversationChanged(conversation=view))
        return view


async def locked(
    session: AsyncSession, user_id: UserId, conversation_id: ConversationId
) -> Conversation:
    """Their conversation, until the transaction ends. Raises `NotFound`."""
    await session.run_sync(hold_user, user_id)
    row = await session.scalar(
        select(Conversation)
        .where(Conversation.user_id == user_id, Conversation.id == conversation_id)
        .with_for_update()
    )
    if row is None:
        raise NotFound("There is no such conversation.", field="conversation_id")
    return row


async def _steps(session: AsyncSession, conversation_id: ConversationId) -> list[Step]:
    query = select(Message.id, Message.parent_id)
    found = await session.execute(query.where(Message.conversation_id == conversation_id))
    return [Step(id_, parent_id) for id_, parent_id in found]


def _find(steps: Iterable[Step], message_id: MessageId) -> Step:
    step = next((one for one in steps if one.id == message_id), None)
    if step is None:
        raise NotFound("There is no such message in this conversation.", field="message_id")
    return step


async def copy_path(
    session: AsyncSession,
    path: Sequence[MessageId],
    conversation_id: ConversationId,
    behind: Behind | None = None,
) -> MessageId | None:
    """Copy it with its responses, as a beginning or `behind` a message; the last one's copy.

    Raises `Conflict` where an answer of it is still being written.
    """
    messages = {m.id: m for m in await session.scalars(select(Message).where(Message.id.in_(path)))}
    query = select(Response).where(Response.message_id.in_(path)).order_by(Response.id)
    responses = list(await session.scalars(query))
    if not all(answer.status.ended for answer in responses):
        raise Conflict("The answer is still being written.", code="turn_in_progress")
    above = messages[path[0]].parent_id
    copied: dict[MessageId | None, MessageId | None] = {above: behind and behind.message_id}
    for old_id in path:
        old = messages[old_id]
        copied[old_id] = new_message_id()
        values = _columns(old) | {
            "id": copied[old_id],
            "conversation_id": conversation_id,
            "parent_id": copied[old.parent_id],
            "client_message_id": None,
        }
        if behind is not None:
            # Something else was said before: it is under that head, and not what its words find.
            values |= {"head_token_ids": None, "path_digest": None}
            if old_id == path[0]:
                values["token_ids"] = behind.token_ids
        session.add(Message(**values))
    await session.flush()
    for answer in responses:
        asked = rows.stored_response(answer, "").asked
        inputs = [copied[one] for one in asked.input_ids if one in copied]
        values = _columns(answer) | {
            "id": new_response_id(),
            "conversation_id": conversation_id,
            "message_id": copied[answer.message_id],
            "parent_id": copied[answer.parent_id],
            "previous_response_id": None,
            "request": answer.request | {"input_ids": inputs},
        }
        session.add(Response(**values))
    await session.flush()
    new_ids = [one for old_id in path if (one := copied[old_id]) is not None]
    await session.run_sync(search.index, new_ids)
    return copied[path[-1]]


def _columns(row: Message | Response) -> dict[str, object]:
    return {column.key: getattr(row, column.key) for column in row.__table__.columns}
