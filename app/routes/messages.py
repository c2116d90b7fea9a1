"""What was said in a conversation, for the page to read: `/api`. Whole, or page by page.

How it came to be said, and what follows it, is `conversations`.
"""

from typing import Annotated

import msgspec
from litestar import get
from litestar.di import NamedDependency
from litestar.params import FromPath, QueryParameter

from app.chat.conversations import LONGEST_PAGE, Conversations, MessagePage
from app.events import ConversationView, MessageView
from app.ids import ConversationId
from app.people.accounts import Principal


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation with all messages of its tree, in no order that means anything."""

    conversation: ConversationView
    messages: tuple[MessageView, ...]


@get("/conversations/{conversation_id:str}")
async def read_conversation(
    conversation_id: FromPath[str],
    principal: NamedDependency[Principal],
    conversations: NamedDependency[Conversations],
) -> Tree:
    known_id = ConversationId(conversation_id)
    return Tree(
        conversation=await conversations.get(principal.user_id, known_id),
        messages=await conversations.messages(principal.user_id, known_id),
    )


@get("/conversations/{conversation_id:str}/messages")
async def list_messages(
    conversation_id: FromPath[str],
    principal: NamedDependency[Principal],
    conversations: NamedDependency[Conversations],
    cursor: Annotated[str | None, QueryParameter(max_length=200)] = None,
    *,
    limit: Annotated[int, QueryParameter(ge=1, le=LONGEST_PAGE)] = 50,
) -> MessagePage:
    """A long conversation page by page, the newest messages first."""
    return await conversations.page(
        principal.user_id, ConversationId(conversation_id), cursor=cursor, limit=limit
    )


handlers = [read_conversation, list_messages]
