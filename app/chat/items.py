"""Conversations that API clients make and name themselves: one branch each, as a list of items.

They carry labels, which tells them from those that a first response began by itself, and they are in
nobody's list. An item is a message of the shown branch. New ones come as a warm-up, so that what the
next response needs is computed by then. Every query names the owner (law 19).
"""

from collections.abc import Sequence
from datetime import datetime

import msgspec
from sqlalchemy import Select, exists, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.chat import places, rows, sizes
from app.chat.entry import TurnRequest, behind_the_same_head
from app.chat.ledger import Act
from app.chat.supervisor import Supervisor
from app.db.base import Database
from app.db.models import Conversation, Message, Response
from app.db.types import Origin
from app.errors import Conflict, NotFound
from app.events import MessageView, ResponseStatus
from app.ids import ConversationId, MessageId, ResponseId, UserId, new_conversation_id
from app.people.accounts import Principal, hold_user
from app.people.usage import Usage, correct
from engine.api import CallForm, Engine
from engine.api import Message as Said

Labels = dict[str, str]


class Labelled(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as its client named it."""

    id: ConversationId
    labels: Labels
    created_at: datetime


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the shown branch; `status` is that of the response that writes it."""

    message: MessageView
    status: ResponseStatus


class Items:
    """One user's labelled conversations at a time."""

    def __init__(self, db: Database, supervisor: Supervisor, usage: Usage, engine: Engine) -> None:
        self._db = db
        self._engine = engine
        self._usage = usage
        self._supervisor = supervisor

    async def create(self, user_id: UserId, labels: Labels) -> Labelled:
        """An empty conversation. Raises `TooMany`."""
        self._usage.begins(user_id)
        async with self._db.begin() as session:
            row = rows.new_conversation(new_conversation_id(), user_id, origin=Origin.API, reads=())
            row.labels = labels
            session.add(row)
            return _labelled(row)

    async def get(self, user_id: UserId, conversation_id: ConversationId) -> Labelled:
        """Raises `NotFound`."""
        async with self._db.read() as session:
            return _labelled(await _found(session, _owned(user_id, conversation_id)))

    async def label(
        self, user_id: UserId, conversation_id: ConversationId, labels: Labels
    ) -> Labelled:
        """In place of those that it has. Raises `NotFound`."""
        async with self._db.begin() as session:
            query = _owned(user_id, conversation_id).with_for_update()
            row = await _found(session, query)
            row.labels = labels
            return _labelled(row)

    async def delete(self, principal: Principal, conversation_id: ConversationId) -> None:
        """With all that is in it, its KV too. Raises `NotFound`."""
        await self.get(principal.user_id, conversation_id)
        await self._supervisor.delete_conversation(principal, conversation_id)

    # ------------------------------------------------------------ items

    async def call_form(self) -> CallForm | None:
        """In which the calls of replies stand in their texts; None where they call nothing."""
        return (await self._engine.info()).template.calls

    async def of_response(self, principal: Principal, response_id: ResponseId) -> tuple[Item, ...]:
        """What the response's request brought, oldest first. Raises `NotFound`."""
        brought = await self._supervisor.input_items(principal, response_id)
        return tuple(Item(message=one, status=ResponseStatus.COMPLETED) for one in brought)

    async def add(
        self,
        principal: Principal,
        conversation_id: ConversationId,
        said: tuple[Said, ...],
        results: tuple[str, ...] = (),
    ) -> tuple[Item, ...]:
        """Behind what is there; returns when they are computed as well.

        Raises what `Supervisor.create` raises.
        """
        warm_up = TurnRequest(
            messages=said,
            results=results,
            conversation_id=conversation_id,
            act=Act.APPEND,
            generate=False,
            origin=Origin.API,
        )
        warm_up = await self._told_as_before(principal.user_id, warm_up, conversation_id)
        accepted = await self._supervisor.create(principal, warm_up)
        log = await self._supervisor.log(principal, accepted.response.id)
        async for _ in log.subscribe():
            pass
        return tuple(
            Item(message=message, status=ResponseStatus.COMPLETED) for message in accepted.messages
        )

    async def _told_as_before(
        self, user_id: UserId, request: TurnRequest, conversation_id: ConversationId
    ) -> TurnRequest:
        """What comes next most likely stands behind what the last response was told."""
        async with self._db.read() as session:
            row = await _found(session, _owned(user_id, conversation_id))
            query = select(Response).where(Response.message_id == row.leaf_id)
            found = await session.scalar(query)
            last = None if found is None else rows.stored_response(found, "")
        return behind_the_same_head(request, last, await self._engine.info())

    async def list(self, user_id: UserId, conversation_id: ConversationId) -> tuple[Item, ...]:
        """Oldest first. Raises `NotFound`."""
        async with self._db.read() as session:
            row = await _found(session, _owned(user_id, conversation_id))
            branch = await session.run_sync(places.branch_to, row, row.leaf_id)
            said = branch.said
            statuses = await _statuses(session, [node.id for node in said])
        return tuple(
            Item(
                message=rows.message_view(node, conversation_id),
                status=statuses.get(node.id, ResponseStatus.COMPLETED),
            )
            for node in said
        )

    async def remove(
        self, principal: Principal, conversation_id: ConversationId, message_id: MessageId
    ) -> Labelled:
        """Take one message out of all branches; those below it stay, and are rendered anew.

        Raises `NotFound`, and `Conflict` ("turn_in_progress") while something is written there.
        """
        user_id = principal.user_id
        async with self._db.begin() as session:
            await session.run_sync(hold_user, user_id)
            query = _owned(user_id, conversation_id).with_for_update()
            row = await _found(session, query)
            message = await session.get(Message, message_id)
            if message is None or message.conversation_id != conversation_id:
                raise NotFound("There is no such item.", field="item_id")
            await _check_at_rest(session, conversation_id)
            if row.leaf_id == message_id:
                row.leaf_id = message.parent_id
            await _hang_on_parent(session, message)
            gone = select(Message.id).where(Message.id == message_id)
            freed = await sizes.of_messages(session, gone)
            row.stored_bytes -= freed
            await session.flush()
            await session.run_sync(correct, user_id, -freed)
            await session.delete(message)
            labelled = _labelled(row)
        # Its blocks hold what was taken out; whose branch a block is of, the engine cannot tell.
        await self._supervisor.forget_session(user_id, conversation_id)
        return labelled


def _owned(user_id: UserId, conversation_id: ConversationId) -> Select[Conversation]:
    return select(Conversation).where(
        Conversation.user_id == user_id,
        Conversation.id == conversation_id,
        Conversation.labels.is_not(None),
    )


async def _found(session: AsyncSession, query: Select[Conversation]) -> Conversation:
    row = await session.scalar(query)
    if row is None:
        raise NotFound("There is no such conversation.", field="conversation_id")
    return row


def _labelled(row: Conversation) -> Labelled:
    return Labelled(id=row.id, labels=row.labels or {}, created_at=row.created_at)


async def _statuses(
    session: AsyncSession, message_ids: Sequence[MessageId]
) -> dict[MessageId, ResponseStatus]:
    query = select(Response.message_id, Response.status).where(
        Response.message_id.in_(message_ids), Response.status != ResponseStatus.COMPLETED
    )
    return dict((await session.execute(query)).all())


async def _check_at_rest(session: AsyncSession, conversation_id: ConversationId) -> None:
    busy = exists().where(
        Response.conversation_id == conversation_id, Response.status.in_(places.OPEN)
    )
    if await session.scalar(select(busy)):
        raise Conflict("An answer is still being written here.", code="turn_in_progress")


async def _hang_on_parent(session: AsyncSession, message: Message) -> None:
    """What hangs on the message hangs on its parent from now.

    The ids below were rendered behind it, and nothing may be found by what it said (`recall`).
    """
    walk = select(Message.id).where(Message.parent_id == message.id).cte("walk", recursive=True)
    children = select(Message.id).join(walk, Message.parent_id == walk.c.id)
    below = select(walk.union_all(children).c.id)
    unread = {"synchronize_session": False}
    anew = update(Message).where(Message.id.in_(below)).values(seam=None, path_digest=None)
    await session.execute(anew, execution_options=unread)
    for table in (Message, Response):
        hanging = update(table).where(table.parent_id == message.id)
        moved = hanging.values(parent_id=message.parent_id)
        await session.execute(moved, execution_options=unread)
