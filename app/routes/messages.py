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
    """A conversation with the messages of its tree, oldest first.

    `next_cursor` is where those before them begin; None: these are all.
    """

    conversation: ConversationView
    messages: tuple[MessageView, ...]
    next_cursor: str | None = None


@get("/conversations/{conversation_id:str}")
async def read_conversation(
    conversation_id: FromPath[str],
    principal: NamedDependency[Principal],
    conversations: NamedDependency[Conversations],
    *,
    limit: Annotated[int | None, QueryParameter(ge=1, le=LONGEST_PAGE)] = None,
) -> Tree:
    """All of it, or with `limit` its newest messages, as the page opens one."""
    user_id, known_id = principal.user_id, ConversationId(conversation_id)
    found = await conversations.get(user_id, known_id)
    if limit is None:
        messages = await conversations.messages(user_id, known_id)
        return Tree(conversation=found, messages=messages)
    page = await conversations.page(user_id, known_id, limit=limit)
    return Tree(conversation=found, messages=page.items[::-1], next_cursor=page.next_cursor)


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
