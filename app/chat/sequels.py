"""Sequels: a conversation that goes on from another one's summary, stored in one transaction.

It is linked to its source and has a title already. The turns that are carried along are copies with
their responses; by their words they are found where they were said first (`recall`), and not here.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.chat import rows, search, sizes
from app.chat.asides import Aside
from app.chat.branches import Behind, copy_path, locked
from app.chat.hub import Hub
from app.chat.ledger import Entry, Node
from app.chat.shortening import begins
from app.chat.turns import MAX_OUTPUT_TOKENS, usage_of
from app.db.base import Database
from app.db.models import Conversation, Message, Response
from app.db.types import Origin, utc_now
from app.errors import PromptTooLong
from app.events import ConversationView, ResponseStatus
from app.frames import ConversationChanged
from app.ids import ConversationId, MessageId, UserId
from app.people.usage import Cost, Usage
from engine.api import FinishReason, Role, Seam


class Source(NamedTuple):
    """Which branch is to go on, and its asker's name for the wish."""

    conversation_id: ConversationId
    leaf_id: MessageId
    client_message_id: str
    text: str = ""
    """What is to be said next, for which there is to be room; it is not stored."""


class Parted(NamedTuple):
    """A path: what is summed up of it, and what is carried along as it is."""

    summed_up: tuple[Node, ...]
    carried: tuple[Node, ...]


def parted(nodes: Sequence[Node], room: int, carry: int) -> Parted | None:
    """As many whole turns as have `room`; what is behind them is carried along, up to `carry` tokens.

    Where it has more, the next turn is summed up too, without the end of its answer, and what has no
    room even so stays where it was said. None where not one word of an answer has room.
    """
    ends = [*begins([node.role for node in nodes]), len(nodes)]
    end = max((end for end in ends if tokens_of(nodes[:end]) <= room), default=0)
    cut = tuple(nodes[:end])
    if not cut or tokens_of(nodes[end:]) > carry:
        cut = _with_a_beginning(nodes, end, room) or cut
    if not cut:
        return None
    rest = tuple(nodes[next(at for at in ends if at >= len(cut)) :])
    return Parted(cut, rest if tokens_of(rest) <= carry else ())


def _with_a_beginning(nodes: Sequence[Node], end: int, room: int) -> tuple[Node, ...] | None:
    """The turns up to `end`, and what has room of the next one, where an answer begins in that."""
    answers = [at for at in range(end, len(nodes)) if nodes[at].role is Role.ASSISTANT]
    begun = [at for at in answers if tokens_of(nodes[:at]) < room]
    if not begun:
        return None
    place = begun[-1]
    answer, left = nodes[place], room - tokens_of(nodes[:place])
    if left < len(answer.token_ids):
        answer = msgspec.structs.replace(answer, token_ids=answer.token_ids[:left], seam=Seam.CUT)
    return (*nodes[:place], answer)


def tokens_of(nodes: Sequence[Node]) -> int:
    return sum(len(node.token_ids) for node in nodes)


def without_room(needed: int, limit: int) -> PromptTooLong:
    """Both in tokens: with the summary, what is said next and one word of an answer."""
    return PromptTooLong(
        "A summary would leave no room for what is said next.",
        needed_tokens=needed,
        limit_tokens=limit,
        field="leaf_id",
    )


class Sequel(msgspec.Struct, frozen=True, kw_only=True):
    """What the new conversation is made of: the question, the summary, and what follows it."""

    begun: Entry
    answer: Aside
    carried: tuple[Node, ...]


class Sequels:
    """One user's at a time, in the database."""

    def __init__(self, db: Database, hub: Hub, usage: Usage) -> None:
        self._db = db
        self._hub = hub
        self._usage = usage

    async def store(self, user_id: UserId, asked: Source, sequel: Sequel) -> ConversationView:
        """Everything or nothing.

        Raises `NotFound` where the source was deleted meanwhile, and `QuotaExceeded`.
        """
        begun, carried = sequel.begun, sequel.carried
        async with self._db.begin() as session:
            source = await locked(session, user_id, asked.conversation_id)
            row = rows.new_conversation(
                begun.session_id, user_id, origin=Origin.CHAT, reads=begun.reads
            )
            row.title, row.provisional_title = source.title, False
            row.continues_id = source.id
            session.add(row)
            await session.flush()
            row.leaf_id = await _add_summary(session, begun, sequel.answer)
            if carried:
                behind = Behind(row.leaf_id, carried[0].token_ids)
                ids = [node.id for node in carried]
                row.leaf_id = await copy_path(session, ids, row.id, behind)
            await session.flush()
            row.stored_bytes = await sizes.of_conversation(session, row.id)
            await session.run_sync(self._usage.store, user_id, row.stored_bytes)
            await session.run_sync(self._usage.settle, begun.response.view.id, _cost(sequel.answer))
            view = rows.conversation_view(row)
        self._hub.publish(user_id, ConversationChanged(conversation=view))
        return view

    async def find(self, user_id: UserId, asked: Source) -> ConversationView | None:
        """What was made of the same wish before."""
        query = (
            select(Conversation)
            .join(Message, Message.conversation_id == Conversation.id)
            .where(
                Conversation.user_id == user_id,
                Conversation.continues_id == asked.conversation_id,
                Message.client_message_id == asked.client_message_id,
            )
        )
        async with self._db.read() as session:
            row = await session.scalar(query.limit(1))
            return None if row is None else rows.conversation_view(row)


async def _add_summary(session: AsyncSession, begun: Entry, answer: Aside) -> MessageId:
    """The question and its answer, as a turn that has ended."""
    (question,), reply, end = begun.inputs, begun.reply, answer.end
    assert reply is not None, "it was made to be answered"
    reply = msgspec.structs.replace(reply, text=answer.text, token_ids=end.token_ids, seam=end.seam)
    for node in (question, reply):
        await session.execute(insert(Message).values(rows.message_columns(node, begun.session_id)))
    cut_short = end.reason is FinishReason.LENGTH
    ended = {
        "status": ResponseStatus.INCOMPLETE if cut_short else ResponseStatus.COMPLETED,
        "incomplete_reason": MAX_OUTPUT_TOKENS if cut_short else None,
        "usage": usage_of(end.receipt),
        "receipt": end.receipt,
        "completed_at": utc_now(),
    }
    await session.execute(insert(Response).values(rows.response_columns(begun.response) | ended))
    await session.run_sync(search.index, [reply.id])
    return reply.id


def _cost(answer: Aside) -> Cost:
    receipt = answer.end.receipt
    if receipt is None:
        return Cost()
    return Cost(
        computed_tokens=receipt.computed_tokens,
        cached_tokens=receipt.cached_tokens,
        output_tokens=receipt.output_tokens,
    )
