"""The ledger in the database: an accepted turn is one transaction, and then it is stored (law 17).

A conversation's row is the lock under which its turns are accepted, one after the other on both
databases: the same `client_message_id` finds what its first arrival stored, and a leaf that was
checked cannot move before the commit. The unique constraint on the id stands behind that.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec
from sqlalchemy import Select, bindparam, delete, exists, func, insert, select, update
from sqlalchemy.orm import Session

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
from app.chat.readers import hold, scopes
from app.db.base import Database
from app.db.models import Base, Conversation, Message, Response, User
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
        return await self._db.look(lambda session: _after(session, user_id, response_id))

    async def at(self, user_id: UserId, place: Place) -> Branch | Acceptance:
        """The branch that a turn there continues, or what the `client_message_id` stored before.

        Raises `NotFound`, and `InvalidRequest` or `Conflict` where the message is no place for
        the act.
        """
        return await self._db.look(lambda session: _at(session, user_id, place))

    async def accept(self, entry: Entry, ask: Ask, written: Callable[[], None]) -> Acceptance:
        loop = asyncio.get_running_loop()

        def store(session: Session) -> Acceptance:
            acceptance = self._accept(session, entry, ask)
            if acceptance.fresh:
                session.flush()
                loop.call_soon_threadsafe(written)
            return acceptance

        return await self._db.write(store)

    def _accept(self, session: Session, entry: Entry, ask: Ask) -> Acceptance:
        conversation = _open_conversation(session, entry)
        earlier_id = None if entry.begins else check_place(session, conversation, entry)
        if earlier_id is not None:
            earlier = session.get_one(Message, earlier_id)
            return _repeated(session, conversation, earlier)
        self._usage.admit(session, ask)
        if entry.path_changed:
            _store_path(session, conversation.id, entry.path)
        _add_turn(session, conversation, entry)
        conversation.stored_bytes += ask.stored_bytes
        return Acceptance(
            messages=tuple(rows.message_view(one, conversation.id) for one in entry.inputs),
            response=entry.response.view,
            conversation=rows.conversation_view(conversation),
            fresh=True,
            compared=entry.response.asked.compared,
        )

    async def checkpoint(self, progress: Sequence[Progress]) -> None:
        """Keep what replies have so far, all in one transaction."""
        await self._db.note(lambda session: _keep(session, progress))

    async def finish(self, outcome: Outcome) -> None:
        await self._db.write(lambda session: self._finish(session, outcome))
        self._usage.release(outcome.view.id)

    def _finish(self, session: Session, outcome: Outcome) -> None:
        view = outcome.view
        # Before all else, as whoever deletes does; it may be gone with its rows.
        conversation = session.scalar(_HELD, _named(outcome.user_id, view.conversation_id))
        ended = session.scalar(
            update(Response)
            .where(Response.id == view.id, Response.user_id == outcome.user_id)
            .where(Response.status.in_(OPEN))
            .values(
                status=view.status,
                incomplete_reason=view.incomplete_reason,
                error=view.error,
                usage=view.usage,
                receipt=view.receipt,
                miss_reason=None if view.receipt is None else view.receipt.miss_reason,
                differs_at=None if view.receipt is None else view.receipt.differs_at,
                completed_at=None if view.completed_at is None else rows.moment(view.completed_at),
            )
            .returning(Response.id)
        )
        if ended is None and session.scalar(select(exists().where(Response.id == view.id))):
            return  # it was stored before, only the database could not say so any more
        reply_bytes = _store_reply(session, outcome)
        if conversation is not None:
            conversation.stored_bytes += reply_bytes
        self._usage.settle(session, view.id, cost_of(outcome), reply_bytes)
        # Together with the answer: before it a person waits for the first word of that.
        search.index(session, outcome.message_ids)

    async def response(self, user_id: UserId, response_id: ResponseId) -> StoredResponse | None:
        return await self._db.look(lambda session: _stored(session, user_id, response_id))

    async def inputs(self, response: StoredResponse) -> tuple[MessageView, ...]:
        conversation_id, ids = response.view.conversation_id, response.asked.input_ids
        if conversation_id is None:
            return ()
        return await self._db.look(lambda session: _inputs(session, conversation_id, ids))

    async def recall(self, user_id: UserId, digests: Sequence[bytes]) -> Branch | None:
        return await self._db.look(lambda session: _recalled(session, user_id, digests))

    async def delete_response(self, user_id: UserId, response_id: ResponseId) -> Removed | None:
        """The last response of a conversation that began with one takes it with it."""
        async with self._db.begin() as session:
            row = await session.scalar(_owned(user_id, response_id))
            if row is None:
                return None
            # A turn that is being accepted holds this lock: afterwards it is seen among the others.
            conversation = await session.scalar(_HELD, _named(user_id, row.conversation_id))
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
            await session.run_sync(correct, user_id, -freed)
            return Removed(session_id=whole_id)

    async def sweep(self) -> int:
        """Close what a killed server left open, with the text of its last checkpoint.

        Returns how many responses were closed. Only for the start, when nothing is live.
        """
        return await self._db.write(_sweep)


def _owned(user_id: UserId, response_id: ResponseId) -> Select[Response]:
    return select(Response).where(Response.user_id == user_id, Response.id == response_id)


_OWN = select(Conversation).where(
    Conversation.user_id == bindparam("user"), Conversation.id == bindparam("conversation")
)
_OWNER = (
    select(User.id)
    .where(User.id == bindparam("user"))
    .with_for_update(read=True, key_share=True)
    .cte("owner")
)
_HELD = _OWN.join(_OWNER, _OWNER.c.id == Conversation.user_id).with_for_update(of=Conversation)
"""Its owner first (`hold_user`), in one look: it is locked when all is found, the owner while."""
_WITH_SENT = _OWN.outerjoin(
    Message,
    (Message.conversation_id == Conversation.id) & (Message.client_message_id == bindparam("name")),
).add_columns(Message)
"""With the message of this name, if it was sent before. These are built once, as all that a turn says
before its first word: to build one costs more than to run it."""
_NEW_MESSAGES, _NEW_RESPONSES = (
    insert(Base.metadata.tables[one.__tablename__]) for one in (Message, Response)
)
"""Into the tables: a session that knows these rows costs as much again, and nobody reads them here."""


def _named(user_id: UserId, conversation_id: ConversationId | None) -> dict[str, str | None]:
    return {"user": user_id, "conversation": conversation_id}


def _after(session: Session, user_id: UserId, response_id: ResponseId) -> Branch | None:
    row = session.scalar(_owned(user_id, response_id))
    if row is None:
        return None
    conversation = session.get_one(Conversation, row.conversation_id)
    return _read_by(session, user_id, branch_to(session, conversation, row.message_id))


def _read_by(session: Session, user_id: UserId, branch: Branch) -> Branch:
    """With what the user may read of it: a look of its own costs as much as all of this one."""
    if not branch.reads:
        return branch
    readable = scopes(session, user_id, [ref.id for ref in branch.reads])
    return msgspec.structs.replace(branch, readable=readable)


def _at(session: Session, user_id: UserId, place: Place) -> Branch | Acceptance:
    named = _named(user_id, place.conversation_id) | {"name": place.client_message_id}
    found = session.execute(_WITH_SENT, named).one_or_none()
    if found is None:
        raise NotFound("There is no such conversation.", field="conversation_id")
    conversation, earlier = found
    if earlier is not None:
        return _repeated(session, conversation, earlier)
    leaf_id, resumed = turning_point(session, conversation, place)
    branch = _read_by(session, user_id, branch_to(session, conversation, leaf_id))
    return msgspec.structs.replace(branch, resumed=resumed)


def _keep(session: Session, progress: Sequence[Progress]) -> None:
    # Of several conversations at once: what somebody is about to delete is not waited for.
    there = select(Message.id).where(Message.id.in_([one.message_id for one in progress]))
    kept = set(session.scalars(there.with_for_update(key_share=True, skip_locked=True)))
    for one in progress:
        if one.message_id in kept:
            session.execute(
                update(Message)
                .where(Message.id == one.message_id)
                .values(text=one.text, token_ids=one.token_ids)
            )


def _recalled(session: Session, user_id: UserId, digests: Sequence[bytes]) -> Branch | None:
    # Of replies that say the same the newest: its ids are most likely the present model's.
    ends = (
        select(Message.path_digest, func.max(Message.id))
        .join(Conversation, Conversation.id == Message.conversation_id)
        .where(Conversation.user_id == user_id, Message.path_digest.in_(digests))
        .group_by(Message.path_digest)
    )
    found = dict(session.execute(ends).all())
    leaf_id = next((found[digest] for digest in digests if digest in found), None)
    if leaf_id is None:
        return None
    leaf = session.get_one(Message, leaf_id)
    conversation = session.get_one(Conversation, leaf.conversation_id)
    return branch_to(session, conversation, leaf_id)


def _stored(session: Session, user_id: UserId, response_id: ResponseId) -> StoredResponse | None:
    row = session.scalar(_owned(user_id, response_id))
    if row is None:
        return None
    return rows.stored_response(row, reply_text(session.get_one(Message, row.message_id)))


def _open_conversation(session: Session, entry: Entry) -> Conversation:
    """The entry's conversation, locked until the commit: a new row, or the owner's."""
    user_id = entry.response.user_id
    if entry.begins is None:
        row = session.scalar(_HELD, _named(user_id, entry.session_id))
        if row is None:
            raise NotFound("There is no such conversation.", field="conversation_id")
        return row
    row = rows.new_conversation(entry.session_id, user_id, origin=entry.begins, reads=entry.reads)
    session.add(row)
    session.flush()
    if entry.reads:
        hold(session, user_id, [ref.id for ref in entry.reads])
    return row


def _repeated(session: Session, conversation: Conversation, sent: Message) -> Acceptance:
    named = Response.message_id if sent.role is Role.ASSISTANT else Response.parent_id
    answer = session.scalar(select(Response).where(named == sent.id).order_by(Response.id).limit(1))
    if answer is None:
        raise Conflict(
            "This message was sent before, and its response was deleted.", code="response_deleted"
        )
    asked = rows.stored_response(answer, "").asked
    return Acceptance(
        messages=_inputs(session, conversation.id, asked.input_ids),
        response=rows.response_view(answer),
        conversation=rows.conversation_view(conversation),
        fresh=False,
    )


def _inputs(
    session: Session, conversation_id: ConversationId, ids: Sequence[MessageId]
) -> tuple[MessageView, ...]:
    found = session.scalars(
        select(Message).where(Message.conversation_id == conversation_id, Message.id.in_(ids))
    )
    by_id = {one.id: rows.message_view(one, conversation_id) for one in found}
    return tuple(by_id[one] for one in ids if one in by_id)


def _store_reply(session: Session, outcome: Outcome) -> int:
    """The answer as it ended, and how many bytes that is; none where it was deleted meanwhile."""
    if outcome.reply_id is None:
        return 0
    stored = session.scalar(
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


def _sweep(session: Session) -> int:
    is_open = Response.status.in_(OPEN)
    owners = select(User.id).where(User.id.in_(select(Response.user_id).where(is_open)))
    session.execute(owners.order_by(User.id).with_for_update(read=True, key_share=True))
    left = session.scalars(select(Response).where(is_open).order_by(Response.id)).all()
    for row in left:
        _weigh_reply(session, row)
        row.status = ResponseStatus.INCOMPLETE
        row.incomplete_reason = "interrupted"
        row.completed_at = utc_now()
    return len(left)


def _weigh_reply(session: Session, row: Response) -> None:
    """Count what a checkpoint kept of an answer; nobody else will."""
    reply = session.get_one(Message, row.message_id)
    kept_bytes = text_bytes(reply_text(reply))
    conversation = session.get_one(Conversation, row.conversation_id)
    conversation.stored_bytes += kept_bytes
    correct(session, row.user_id, kept_bytes)


def _store_path(session: Session, conversation_id: ConversationId, path: Sequence[Node]) -> None:
    for one in path:
        session.execute(
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


def _add_turn(session: Session, conversation: Conversation, entry: Entry) -> None:
    nodes = entry.inputs if entry.reply is None else (*entry.inputs, entry.reply)
    # Parents first: rows go in in this order, and each is checked against those before it.
    messages = [rows.message_columns(one, conversation.id) for one in nodes]
    session.execute(_NEW_MESSAGES, messages)
    session.execute(_NEW_RESPONSES, [rows.response_columns(entry.response)])
    conversation.title = conversation.title or entry.title
    conversation.leaf_id = entry.leaf_id
    conversation.updated_at = utc_now()
