"""Conversations and their turns for the page: `/api`. What a socket does, plain HTTP can do too.

Lists and trees are read here; a turn that is on its way is watched on `/ws`, or by server-sent
events where a proxy blocks websockets. Whose they are is checked in the queries of `chat`.
"""

from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from litestar import delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter
from litestar.response import ServerSentEvent, ServerSentEventMessage

from app.chat.conversations import ConversationPage, Conversations
from app.chat.entry import TurnRequest
from app.chat.eventlog import EventLog, EventLogs
from app.chat.library import DEFAULT_PERSONA
from app.chat.supervisor import Supervisor
from app.events import ConversationView, MessageView, ResponseView
from app.frames import Draft, Event, Snapshot, Text, TurnCreate
from app.ids import ConversationId, DocumentId, MessageId, PersonaId, ResponseId
from app.people.accounts import Principal
from app.routes.watches import dress, snapshot
from engine.api import Limits, Message, Role, Sampling

BROWSER_SAMPLING = Sampling(temperature=0.2, top_p=0.9, repetition_penalty=1.1)
"""What the default model's makers recommend for chat, and a little against going in circles."""
BROWSER_LIMITS = Limits(max_output_tokens=2048)
"""A small model that goes in circles all the same comes to an end."""


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation with all messages of its tree, in no order that means anything."""

    conversation: ConversationView
    messages: tuple[MessageView, ...]


class NewConversation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    persona_id: PersonaId = DEFAULT_PERSONA.id
    document_ids: Annotated[tuple[DocumentId, ...], msgspec.Meta(max_length=32)] = ()
    """Documents to ask about, besides those that come with the persona."""


class Rename(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    title: str


class NewTurn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    client_message_id: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    parent_id: MessageId | None
    text: Text


class AcceptedTurn(msgspec.Struct, frozen=True, kw_only=True):
    message: MessageView
    response: ResponseView


class CancelledResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`step` is None when the response had ended before."""

    response_id: ResponseId
    step: int | None


@get("/conversations")
async def list_conversations(
    principal: NamedDependency[Principal],
    conversations: NamedDependency[Conversations],
    cursor: Annotated[str | None, QueryParameter(max_length=200)] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=100)] = 50,
) -> ConversationPage:
    return await conversations.list(principal.user_id, cursor=cursor, limit=limit)


@post("/conversations")
async def create_conversation(
    data: JSONBody[NewConversation],
    principal: NamedDependency[Principal],
    conversations: NamedDependency[Conversations],
    supervisor: NamedDependency[Supervisor],
) -> ConversationView:
    return await conversations.create(
        principal.user_id,
        data.persona_id,
        data.document_ids,
        conversation_id=supervisor.drafts.name(principal.user_id),
    )


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


@patch("/conversations/{conversation_id:str}")
async def rename_conversation(
    conversation_id: FromPath[str],
    data: JSONBody[Rename],
    principal: NamedDependency[Principal],
    conversations: NamedDependency[Conversations],
) -> ConversationView:
    known_id = ConversationId(conversation_id)
    return await conversations.rename(principal.user_id, known_id, data.title)


@post("/conversations/{conversation_id:str}/newest", status_code=200)
async def move_to_newest(
    conversation_id: FromPath[str],
    principal: NamedDependency[Principal],
    conversations: NamedDependency[Conversations],
) -> ConversationView:
    """Leave the versions of persona and documents that it began with for the newest."""
    return await conversations.move_to_newest(principal.user_id, ConversationId(conversation_id))


@delete("/conversations/{conversation_id:str}")
async def delete_conversation(
    conversation_id: FromPath[str],
    principal: NamedDependency[Principal],
    supervisor: NamedDependency[Supervisor],
) -> None:
    await supervisor.delete_conversation(principal, ConversationId(conversation_id))


@post("/conversations/{conversation_id:str}/turns")
async def create_turn(
    conversation_id: FromPath[str],
    data: JSONBody[NewTurn],
    principal: NamedDependency[Principal],
    supervisor: NamedDependency[Supervisor],
) -> AcceptedTurn:
    request = browser_turn(ConversationId(conversation_id), data)
    acceptance = await supervisor.create(principal, request)
    return AcceptedTurn(message=acceptance.messages[-1], response=acceptance.response)


@get("/responses/{response_id:str}/events", media_type="text/event-stream")
async def watch_response(
    response_id: FromPath[str],
    principal: NamedDependency[Principal],
    supervisor: NamedDependency[Supervisor],
    logs: NamedDependency[EventLogs],
    *,
    after: Annotated[int, QueryParameter(ge=-1)] = -1,
    epoch: FromQuery[str | None] = None,
) -> ServerSentEvent:
    log = await supervisor.log(principal, ResponseId(response_id))
    return ServerSentEvent(_frames(log, logs, after, epoch))


@post("/responses/{response_id:str}/cancel", status_code=200)
async def cancel_response(
    response_id: FromPath[str],
    principal: NamedDependency[Principal],
    supervisor: NamedDependency[Supervisor],
) -> CancelledResponse:
    known_id = ResponseId(response_id)
    step = await supervisor.cancel(principal, known_id)
    return CancelledResponse(response_id=known_id, step=step)


def browser_turn(conversation_id: ConversationId, turn: NewTurn | TurnCreate) -> TurnRequest:
    """What a person's message becomes, by whichever road it came."""
    return TurnRequest(
        messages=(Message(role=Role.USER, text=turn.text),),
        conversation_id=conversation_id,
        parent_id=turn.parent_id,
        check_leaf=True,
        client_message_id=turn.client_message_id,
        sampling=BROWSER_SAMPLING,
        limits=BROWSER_LIMITS,
    )


def unsent_turn(draft: Draft) -> TurnRequest:
    """The turn that a draft may become."""
    begins = draft.conversation_id is None
    return TurnRequest(
        messages=(Message(role=Role.USER, text=draft.text),),
        conversation_id=draft.conversation_id,
        parent_id=draft.parent_id,
        persona_id=draft.persona_id or (DEFAULT_PERSONA.id if begins else None),
        document_ids=draft.document_ids,
    )


async def _frames(
    log: EventLog, logs: EventLogs, after: int, epoch: str | None
) -> AsyncIterator[ServerSentEventMessage]:
    """The socket's own frames; a cursor that does not fit the log gets a snapshot first."""
    if epoch not in (None, logs.epoch) or after >= log.next_number:
        frame = snapshot(log, logs.epoch)
        after = frame.sequence_number
        yield _message(frame, after)
    async for event in log.subscribe(after):
        yield _message(dress(log, event, logs.epoch), event.sequence_number)


def _message(frame: Event | Snapshot, number: int) -> ServerSentEventMessage:
    return ServerSentEventMessage(data=msgspec.json.encode(frame).decode(), id=str(number))


handlers = [
    list_conversations,
    create_conversation,
    read_conversation,
    rename_conversation,
    move_to_newest,
    delete_conversation,
    create_turn,
    watch_response,
    cancel_response,
]
