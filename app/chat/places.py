"""Places in a stored conversation: where a turn may go, and the branch that it continues (law 16).

In the caller's transaction. Who owns the conversation was asked before.
"""

from collections.abc import Sequence

import msgspec
from sqlalchemy import Select, bindparam, select
from sqlalchemy.orm import Session

from app.chat import rows, tree
from app.chat.ledger import Act, Branch, Entry, Head, Node, Place, StoredResponse
from app.db.models import Conversation, Message, Response
from app.errors import Conflict, InvalidRequest, NotFound, ParentMoved
from app.events import ResponseStatus
from app.ids import ConversationId, MessageId
from engine.api import Role

OPEN = (ResponseStatus.QUEUED, ResponseStatus.IN_PROGRESS)
"""What a response is in while it may still be written."""


def _walk() -> Select[Message, Response]:
    """A leaf and everything above it, with the responses that the leaf is of, the first one first."""
    is_leaf = Message.id == bindparam("leaf")
    walk = (
        select(Message.id, Message.parent_id)
        .where(is_leaf, Message.conversation_id == bindparam("conversation"))
        .cte("walk", recursive=True)
    )
    parents = select(Message.id, Message.parent_id).join(walk, Message.id == walk.c.parent_id)
    walk = walk.union_all(parents)
    sent_with = (Response.parent_id == Message.id) & (Message.role != Role.ASSISTANT)
    of_leaf = is_leaf & ((Response.message_id == Message.id) | sent_with)
    query = select(Message, Response).join(walk, Message.id == walk.c.id)
    return query.outerjoin(Response, of_leaf).order_by(Response.id)


_WALK = _walk()
"""Built once: to say it costs more than to run it."""
_ENDS = (
    select(Message.id, Message.client_message_id, Response.status)
    .outerjoin(Response, Response.message_id == Message.id)
    .where(
        (Message.id == bindparam("end"))
        | (Message.id == bindparam("parent"))
        | (
            (Message.conversation_id == bindparam("conversation"))
            & (Message.client_message_id == bindparam("name"))
        )
    )
)
"""Where a turn may go, and the message that has its name already."""


def turning_point(
    session: Session, conversation: Conversation, place: Place
) -> tuple[MessageId | None, Node | None]:
    """The message that the turn goes below, and the answer that it takes up again."""
    if place.act is Act.SAY:
        return place.message_id, None
    if place.act is Act.APPEND:
        if conversation.labels is None:
            raise NotFound("There is no such conversation.", field="conversation_id")
        return conversation.leaf_id, None
    row = session.get(Message, place.message_id) if place.message_id else None
    if row is None or row.conversation_id != place.conversation_id:
        raise NotFound("There is no such message in this conversation.", field="message_id")
    if place.act is Act.EDIT:
        _check_role(row, Role.USER, "Only what a person said can be edited.")
        return row.parent_id, None
    if place.act is Act.REGENERATE and row.role is Role.USER:
        return row.id, None
    _check_role(row, Role.ASSISTANT, "This is not an answer.")
    if place.act is Act.REGENERATE:
        return row.parent_id, None
    status = session.scalar(select(Response.status).where(Response.message_id == row.id))
    if status in OPEN:
        raise Conflict("This answer is still being written.", code="turn_in_progress")
    if status is ResponseStatus.COMPLETED or not row.text:
        raise InvalidRequest(
            "There is nothing to continue: the answer is complete, or has not begun.",
            code="not_continuable",
            field="message_id",
        )
    return row.parent_id, rows.node(row)


def _check_role(row: Message, role: Role, words: str) -> None:
    if row.role is not role:
        raise InvalidRequest(words, field="message_id")


def check_place(session: Session, conversation: Conversation, entry: Entry) -> MessageId | None:
    """What the same `client_message_id` stored before; else the place must be as it was seen."""
    end = conversation.leaf_id if entry.leaf_checked else entry.parent_id
    seen = entry.seen_leaf_id if entry.leaf_checked else entry.parent_id
    name = entry.client_message_id
    asked = {"end": end, "parent": entry.parent_id, "conversation": conversation.id, "name": name}
    found = session.execute(_ENDS, asked).all()
    earlier = (id_ for id_, told, _ in found if name is not None and told == name)
    if (earlier_id := next(earlier, None)) is not None:
        return earlier_id
    statuses: dict[MessageId | None, ResponseStatus | None] = {
        id_: status for id_, _, status in found
    }
    if statuses.get(end) in OPEN:
        raise Conflict("The answer before this is still being written.", code="turn_in_progress")
    if end != seen:
        raise ParentMoved(f"The conversation went on meanwhile; it ends at {end} now.", leaf_id=end)
    if entry.parent_id is not None and entry.parent_id not in statuses:
        raise NotFound("This message was deleted meanwhile.", field="parent_id")
    return None


def branch_to(session: Session, conversation: Conversation, leaf_id: MessageId | None) -> Branch:
    branch = Branch(
        session_id=conversation.id,
        conversation=rows.conversation_view(conversation),
        reads=rows.reads_of(conversation),
        forked=leaf_id != conversation.leaf_id,
    )
    if leaf_id is None:
        return branch
    nodes, row = _nodes_above(session, conversation.id, leaf_id)
    path = tree.path(nodes, leaf_id)
    last = None if row is None else rows.stored_response(row, reply_text(path[-1]))
    return msgspec.structs.replace(branch, path=tuple(path), head=_head_of(path, last), last=last)


def _nodes_above(
    session: Session, conversation_id: ConversationId, leaf_id: MessageId
) -> tuple[list[Node], Response | None]:
    """The leaf and everything above it, and the response that the leaf is of.

    A person's message is of no response; the first one that answers it was sent with it.
    """
    asked = {"leaf": leaf_id, "conversation": conversation_id}
    found = session.execute(_WALK, asked).all()
    if not found:
        raise NotFound("There is no such message in this conversation.", field="parent_id")
    responses = (response for _, response in found if response is not None)
    return [rows.node(row) for row, _ in found], next(responses, None)


def _head_of(path: Sequence[Node], last: StoredResponse | None) -> Head | None:
    """The head under which the path's last turn was sent: kept on the node where it changed."""
    kept = next(
        (one.head_token_ids for one in reversed(path) if one.head_token_ids is not None), None
    )
    if last is None or kept is None:
        return None
    return Head(key=last.asked.head_key, token_ids=kept, opening_end=last.asked.opening_end)


def reply_text(message: Message | Node) -> str:
    return message.text if message.role is Role.ASSISTANT else ""
