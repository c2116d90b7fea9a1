"""Going on with a summary, for the page: `/api/conversations/{id}/summary`. How: `chat.summaries`."""

import msgspec
from litestar import delete, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from app.chat.conversations import Conversations
from app.chat.sequels import Source
from app.chat.summaries import Summaries
from app.events import ConversationView
from app.frames import ClientMessageId, Unsent
from app.ids import ConversationId, MessageId
from app.people.accounts import Principal
from app.routes.cut import WAITS
from app.routes.published.told import told


class NewSummary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    client_message_id: ClientMessageId
    leaf_id: MessageId
    """The end of the branch that the user saw."""
    text: Unsent = ""
    """What is to be said next, which there is to be room for; it is not stored."""


@post("/conversations/{conversation_id:str}/summary", opt=WAITS | told(fails=(409,)))
async def continue_with_summary(
    conversation_id: FromPath[str],
    data: JSONBody[NewSummary],
    principal: NamedDependency[Principal],
    summaries: NamedDependency[Summaries],
) -> ConversationView:
    """A new conversation that begins with a summary of this one; for one that is full."""
    asked = Source(ConversationId(conversation_id), data.leaf_id, data.client_message_id, data.text)
    return await summaries.go_on(principal.user_id, asked)


@delete("/conversations/{conversation_id:str}/summary")
async def stop_summary(
    conversation_id: FromPath[str],
    principal: NamedDependency[Principal],
    conversations: NamedDependency[Conversations],
    summaries: NamedDependency[Summaries],
) -> None:
    """Stop one that is being made; nothing of it is kept."""
    conversation = await conversations.get(principal.user_id, ConversationId(conversation_id))
    await summaries.stop(principal.user_id, conversation.id)


handlers = [continue_with_summary, stop_summary]
