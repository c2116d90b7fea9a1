"""How many bytes of text conversations hold: looked up where no running sum tells it.

A message counts with its text, a response with its instructions. A reply that is still being written
does not count yet: it does when it ends (`stored`).
"""

from sqlalchemy import ColumnElement, Select, exists, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.chat.places import OPEN
from app.db.models import Message, Response
from app.db.types import octets
from app.ids import ConversationId, MessageId
from engine.api import Role


async def of_conversation(session: AsyncSession, conversation_id: ConversationId) -> int:
    """All of one conversation."""
    return await _sum(
        session,
        Message.conversation_id == conversation_id,
        Response.conversation_id == conversation_id,
    )


async def of_messages(session: AsyncSession, message_ids: Select[MessageId]) -> int:
    """What goes when these messages do."""
    return await _sum(
        session,
        Message.id.in_(message_ids),
        or_(Response.message_id.in_(message_ids), Response.parent_id.in_(message_ids)),
    )


async def _sum(
    session: AsyncSession, messages: ColumnElement[bool], responses: ColumnElement[bool]
) -> int:
    is_written = exists().where(Response.message_id == Message.id, Response.status.in_(OPEN))
    is_open = (Message.role == Role.ASSISTANT) & is_written
    said = select(func.coalesce(func.sum(octets(Message.text)), 0)).where(messages, ~is_open)
    asked = select(func.coalesce(func.sum(octets(Response.instructions)), 0)).where(responses)
    return int(await session.scalar(said) or 0) + int(await session.scalar(asked) or 0)
