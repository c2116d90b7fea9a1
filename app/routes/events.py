"""What a page hears that has no socket, as one event stream, and what it says: `/api/events`, `/api/pages`.

The twin of `/ws` where a proxy blocks websockets. Turns, and the events of one answer, have addresses
of their own (`conversations.py`).
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Annotated, Any

import msgspec
from litestar import get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody
from litestar.response import ServerSentEvent

from app.chat.board import Board, Glance
from app.chat.conversations import Conversations
from app.chat.eventlog import EventLogs
from app.chat.hub import Feed, Hub
from app.chat.presence import Pages
from app.errors import InvalidRequest
from app.frames import PROTOCOL, Draft, PageOpened, PresenceState, StreamFrame
from app.ids import ConversationId, DocumentId, MessageId, PersonaId
from app.people.accounts import Principal
from app.routes.conversations import unsent_turn
from app.routes.gate import Gate
from app.routes.published.told import EVENT_STREAM, told
from app.routes.streams import Asked, Frames, stream


class Showing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a page shows a conversation; `closed` when it does no more."""

    conversation_id: ConversationId
    state: PresenceState


class Typed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Unsent text; see the socket's `draft`."""

    conversation_id: ConversationId | None
    parent_id: MessageId | None
    text: Annotated[str, msgspec.Meta(max_length=1_000_000)]
    persona_id: PersonaId | None = None
    document_ids: Annotated[tuple[DocumentId, ...], msgspec.Meta(max_length=32)] = ()


@get("/events", opt=told(gives={EVENT_STREAM: StreamFrame}))
async def watch_everything(  # noqa: PLR0913  each is something that a page hears of
    request: Asked,
    gate: NamedDependency[Gate],
    hub: NamedDependency[Hub],
    *,
    board: NamedDependency[Board],
    pages: NamedDependency[Pages],
    logs: NamedDependency[EventLogs],
    protocol: FromQuery[int | None] = None,
) -> ServerSentEvent:
    """What changes in one's list, where conversations are shown, and which are warm.

    `protocol` is the version that the page speaks, as in the socket's hello; another than the server's is
    refused (`unsupported_protocol`), and so is none.

    First `page.opened`. The stream ends where something had to be left out; a page that opens it again reads its
    list anew.
    """
    if protocol != PROTOCOL:
        words = f"Name protocol {PROTOCOL} in the query; load the page anew."
        raise InvalidRequest(words, code="unsupported_protocol", field="protocol")
    user_id = request.user.user_id

    @contextlib.asynccontextmanager
    async def tell(outbox: Frames) -> AsyncIterator[Sequence[Coroutine[Any, Any, object]]]:
        with (
            hub.watch(user_id) as feed,
            board.glance(user_id) as glance,
            pages.open(user_id) as page,
        ):
            opened = PageOpened(
                protocol=PROTOCOL, page_id=page.page_id, epoch=logs.epoch, user_id=user_id
            )
            await outbox.put(opened)
            yield _notices(feed, outbox.put), _states(glance, outbox.put)

    return await stream(request, gate, tell)


@post("/pages/{page_id:str}/presence", status_code=204)
async def show_conversation(
    page_id: FromPath[str],
    data: JSONBody[Showing],
    principal: NamedDependency[Principal],
    *,
    pages: NamedDependency[Pages],
    conversations: NamedDependency[Conversations],
) -> None:
    page = pages.find(principal.user_id, page_id)
    await conversations.get(principal.user_id, data.conversation_id)
    page.presence.see(data.conversation_id, data.state)


@post("/pages/{page_id:str}/draft", status_code=204)
async def type_draft(
    page_id: FromPath[str],
    data: JSONBody[Typed],
    principal: NamedDependency[Principal],
    pages: NamedDependency[Pages],
) -> None:
    page = pages.find(principal.user_id, page_id)
    page.typist.hear(unsent_turn(Draft(**msgspec.structs.asdict(data))))


Put = Callable[[StreamFrame], Awaitable[None]]
"""Nothing goes out that the published schema of the stream does not have: types are checked."""


async def _notices(feed: Feed, put: Put) -> None:
    async for notice in feed:
        if feed.lost_notices:
            return
        await put(notice)


async def _states(glance: Glance, put: Put) -> None:
    while True:
        for frame in await glance.frames():
            await put(frame)


handlers = [watch_everything, show_conversation, type_draft]
