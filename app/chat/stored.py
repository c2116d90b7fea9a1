"""The ledger in the database: an accepted turn is one transaction, and then it is stored (law 17).

A conversation's row is the lock under which its turns are accepted, one after the other on both
databases: the same `client_message_id` finds what its first arrival stored, and a leaf that was
checked cannot move before the commit. The unique constraint on the id stands behind that.
"""

from collections.abc import Sequence

import msgspec
from sqlalchemy import Select, delete, exists, false, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.chat import rows, search
from app.chat.ledger import (
    Acceptance,
    Branch,
    Entry,
    Node,
    Outcome,
    Place,
    Progress,
    Removed,
    StoredResponse,
    cost_of,
)
from app.chat.places import OPEN, branch_to, check_place, reply_text, turning_point
from app.db.base import Database
from app.db.models import Conversation, Message, Response
from app.db.types import Origin, text_bytes, utc_now
from app.errors import Conflict, NotFound
from app.events import MessageView, ResponseStatus
from app.ids import ConversationId, MessageId, ResponseId, UserId
from app.people.usage import Ask, Usage, correct
from engine.api import Role


class StoredLedger:
    """Keeps turns in the database; see `Ledger`."""

    def __init__(self, db: Database, usage: Usage) -> None:
        self._db = db
        self._usage = usage

    async def after_response(self, user_id: UserId, response_id: ResponseId) -> Branch | None:
        async with self._db.read() as session:
            row = await session.scalar(_owned(user_id, response_id))
            if row is None:
                return None
            conversation = await session.get_one(Conversation, row.conversation_id)
            return await branch_to(session, conversation, row.message_id)

    async def at(self, user_id: UserId, place: Place) -> Branch | Acceptance:
        """The branch that a turn there continues, or what the `client_message_id` stored before.

        Raises `NotFound`, and `InvalidRequest` or `Conflict` where the message is no place for
        the act.
        """
        name = place.client_message_id
        is_it = false() if name is None else Message.client_message_id == name
        sent = (Message.conversation_id == Conversation.id) & is_it
        known = _conversation(user_id, place.conversation_id)
        look = known.outerjoin(Message, sent).add_columns(Message)
        async with self._db.read() as session:
            found = (await session.execute(look)).one_or_none()
            if found is None:
                raise NotFound("There is no such conversation.", field="conversation_id")
            conversation, earlier = found
            if earlier is not None:
                return await _repeated(session, conversation, earlier)
            leaf_id, resumed = await turning_point(session, conversation, place)
            branch = await branch_to(session, conversation, leaf_id)
            return msgspec.structs.replace(branch, resumed=resumed)

    async def accept(self, entry: Entry, ask: Ask) -> Acceptance:
        async with self._db.begin() as session:
            conversation = await _open_conversation(session, entry)
            earlier_id = None if entry.begins else await check_place(session, conversation, entry)
            if earlier_id is not None:
                earlier = await session.get_one(Message, earlier_id)
                return await _repeated(session, conversation, earlier)
            await self._usage.admit(session, ask)
            conversation.stored_bytes += ask.stored_bytes
            if entry.path_changed:
                await _store_path(session, conversation.id, entry.path)
            await _add_turn(session, conversation, entry)
            return Acceptance(
                messages=tuple(rows.message_view(one, conversation.id) for one in entry.inputs),
                response=entry.response.view,
                conversation=rows.conversation_view(conversation),
                fresh=True,
            )

    async def checkpoint(self, progress: Sequence[Progress]) -> None:
        """Keep what replies have so far, all in one transaction."""
        async with self._db.jot() as session:
            for one in progress:
                await session.execute(
                    update(Message)
                    .where(Message.id == one.message_id)
                    .values(text=one.text, token_ids=one.token_ids)
                )

    async def finish(self, outcome: Outcome) -> None:
        view = outcome.view
        async with self._db.begin() as session:
            # Before all else, as whoever deletes does; it may be gone with its rows.
            held = select(Conversation).where(Conversation.id == view.conversation_id)
            conversation = await session.scalar(held.with_for_update())
            await session.execute(
                update(Response)
                .where(Response.id == view.id, Response.user_id == outcome.user_id)
                .values(
                    status=view.status,
                    incomplete_reason=view.incomplete_reason,
                    error=view.error,
                    usage=view.usage,
                    receipt=view.receipt,
                    miss_reason=None if view.receipt is None else view.receipt.miss_reason,
                    differs_at=None if view.receipt is None else view.receipt.differs_at,
                    completed_at=None
                    if view.completed_at is None
                    else rows.moment(view.completed_at),
                )
            )
            reply_bytes = await _store_reply(session, outcome)
            if conversation is not None:
                conversation.stored_bytes += reply_bytes
            await self._usage.settle(session, view.id, cost_of(outcome), reply_bytes)
            # Together with the answer: before it a person waits for the first word of that.
            await search.index(session, outcome.message_ids)
        self._usage.release(view.id)

    async def response(self, user_id: UserId, response_id: ResponseId) -> StoredResponse | None:
        async with self._db.read() as session:
            row = await session.scalar(_owned(user_id, response_id))
            return None if row is None else await _with_text(session, row)

    async def inputs(self, response: StoredResponse) -> tuple[MessageView, ...]:
        conversation_id, ids = response.view.conversation_id, response.asked.input_ids
        if conversation_id is None:
            return ()
        async with self._db.read() as session:
            return await _inputs(session, conversation_id, ids)

    async def recall(self, user_id: UserId, digests: Sequence[bytes]) -> Branch | None:
        # Of replies that say the same the newest: its ids are most likely the present model's.
        ends = (
            select(Message.path_digest, func.max(Message.id))
            .join(Conversation, Conversation.id == Message.conversation_id)
            .where(Conversation.user_id == user_id, Message.path_digest.in_(digests))
            .group_by(Message.path_digest)
        )
        async with self._db.read() as session:
            found = dict((await session.execute(ends)).all())
            leaf_id = next((found[digest] for digest in digests if digest in found), None)
            if leaf_id is None:
                return None
            leaf = await session.get_one(Message, leaf_id)
            conversation = await session.get_one(Conversation, leaf.conversation_id)
            return await branch_to(session, conversation, leaf_id)

    async def delete_response(self, user_id: UserId, response_id: ResponseId) -> Removed | None:
        """The last response of a conversation that began with one takes it with it."""
        async with self._db.begin() as session:
            row = await session.scalar(_owned(user_id, response_id))
            if row is None:
                return None
            # A turn that is being accepted holds this lock: afterwards it is seen among the others.
            held = select(Conversation).where(Conversation.id == row.conversation_id)
            conversation = await session.scalar(held.with_for_update())
            gone = delete(Response).where(Response.id == response_id).returning(Response.id)
            if conversation is None or await session.scalar(gone) is None:
                return None
            freed, whole_id = text_bytes(row.instructions), None
            conversation.stored_bytes -= freed
            others = select(exists().where(Response.conversation_id == row.conversation_id))
            is_its_own = conversation.origin is Origin.API and conversation.labels is None
            if is_its_own and not await session.scalar(others):
                whole_id, freed = conversation.id, freed + conversation.stored_bytes
                await session.delete(conversation)
            await correct(session, user_id, -freed)
            return Removed(session_id=whole_id)

    async def sweep(self) -> int:
        """Close what a killed server left open, with the text of its last checkpoint.

        Returns how many responses were closed. Only for the start, when nothing is live.
        """
        async with self._db.begin() as session:
            left = list(await session.scalars(select(Response).where(Response.status.in_(OPEN))))
            for row in left:
                await _weigh_reply(session, row)
                row.status = ResponseStatus.INCOMPLETE
                row.incomplete_reason = "interrupted"
                row.completed_at = utc_now()
            return len(left)


def _owned(user_id: UserId, response_id: ResponseId) -> Select[Response]:
    return select(Response).where(Response.user_id == user_id, Response.id == response_id)


def _conversation(user_id: UserId, conversation_id: ConversationId) -> Select[Conversation]:
    return select(Conversation).where(
        Conversation.user_id == user_id, Conversation.id == conversation_id
    )


async def _with_text(session: AsyncSession, row: Response) -> StoredResponse:
    return rows.stored_response(row, reply_text(await session.get_one(Message, row.message_id)))


async def _open_conversation(session: AsyncSession, entry: Entry) -> Conversation:
    """The entry's conversation, locked until the commit: a new row, or the owner's."""
    user_id = entry.response.user_id
    if entry.begins is None:
        query = _conversation(user_id, entry.session_id).with_for_update()
        row = await session.scalar(query)
        if row is None:
            raise NotFound("There is no such conversation.", field="conversation_id")
        return row
    row = rows.new_conversation(entry.session_id, user_id, origin=entry.begins, reads=entry.reads)
    session.add(row)
    await session.flush()
    return row


async def _repeated(session: AsyncSession, conversation: Conversation, sent: Message) -> Acceptance:
    named = Response.message_id if sent.role is Role.ASSISTANT else Response.parent_id
    answer = await session.scalar(
        select(Response).where(named == sent.id).order_by(Response.id).limit(1)
    )
    if answer is None:
        raise Conflict("This message was sent before, and its response was deleted.")
    asked = rows.stored_response(answer, "").asked
    return Acceptance(
        messages=await _inputs(session, conversation.id, asked.input_ids),
        response=rows.response_view(answer),
        conversation=rows.conversation_view(conversation),
        fresh=False,
    )


async def _inputs(
    session: AsyncSession, conversation_id: ConversationId, ids: Sequence[MessageId]
) -> tuple[MessageView, ...]:
    found = await session.scalars(
        select(Message).where(Message.conversation_id == conversation_id, Message.id.in_(ids))
    )
    by_id = {one.id: rows.message_view(one, conversation_id) for one in found}
    return tuple(by_id[one] for one in ids if one in by_id)


async def _store_reply(session: AsyncSession, outcome: Outcome) -> int:
    """The answer as it ended, and how many bytes that is; none where it was deleted meanwhile."""
    if outcome.reply_id is None:
        return 0
    stored = await session.scalar(
        update(Message)
        .where(Message.id == outcome.reply_id)
        .values(
            text=outcome.text,
            token_ids=outcome.token_ids,
            seam=outcome.seam,
            path_digest=outcome.path_digest,
        )
        .returning(Message.id)
    )
    return 0 if stored is None else text_bytes(outcome.text)


async def _weigh_reply(session: AsyncSession, row: Response) -> None:
    """Count what a checkpoint kept of an answer; nobody else will."""
    reply = await session.get_one(Message, row.message_id)
    kept_bytes = text_bytes(reply_text(reply))
    conversation = await session.get_one(Conversation, row.conversation_id)
    conversation.stored_bytes += kept_bytes
    await correct(session, row.user_id, kept_bytes)


async def _store_path(
    session: AsyncSession, conversation_id: ConversationId, path: Sequence[Node]
) -> None:
    for one in path:
        await session.execute(
            update(Message)
            .where(Message.id == one.id, Message.conversation_id == conversation_id)
            .values(
                token_ids=one.token_ids,
                head_token_ids=one.head_token_ids,
                seam=one.seam,
                model_fingerprint=one.model_fingerprint,
                template_fingerprint=one.template_fingerprint,
            )
        )


async def _add_turn(session: AsyncSession, conversation: Conversation, entry: Entry) -> None:
    nodes = entry.inputs if entry.reply is None else (*entry.inputs, entry.reply)
    # Parents first: rows go in in this order, and each is checked against those before it. Said as
    # statements: nobody reads these rows here, and a session that keeps them costs as much again.
    messages = [rows.message_columns(one, conversation.id) for one in nodes]
    await session.execute(insert(Message), messages)
    await session.execute(insert(Response), [rows.response_columns(entry.response)])
    conversation.title = conversation.title or entry.title
    conversation.leaf_id = entry.leaf_id
    conversation.updated_at = utc_now()
    await session.flush()
