"""Conversations and their turns for the page: `/api`. What a socket does, plain HTTP can do too.

Lists and trees are read here; a turn that is on its way is watched on `/ws`, or by server-sent
events where a proxy blocks websockets. Whose they are is checked in the queries of `chat`.
"""

from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from litestar import delete, get, patch, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter
from litestar.response import ServerSentEvent, ServerSentEventMessage

from app.chat.conversations import Changes, ConversationPage, Conversations, Shelf
from app.chat.entry import TurnRequest
from app.chat.eventlog import EventLog, EventLogs
from app.chat.ledger import Act
from app.chat.library import DEFAULT_PERSONA
from app.chat.supervisor import Supervisor
from app.events import ConversationView, MessageView, ResponseView
from app.frames import (
    ClientMessageId,
    Draft,
    Event,
    Snapshot,
    Text,
    TurnContinue,
    TurnCreate,
    TurnEdit,
    TurnRegenerate,
)
from app.ids import ConversationId, DocumentId, MessageId, PersonaId, ResponseId
from app.people.accounts import Principal
from app.routes.published.told import EVENT_STREAM, told
from app.routes.watches import dress, snapshot
from engine.api import Limits, Message, Role, Sampling

BROWSER_SAMPLING = Sampling(temperature=0.2, top_p=0.9, repetition_penalty=1.1)
"""What the default model's makers recommend for chat, and a little against going in circles."""
BROWSER_LIMITS = Limits(max_output_tokens=2048)
"""A small model that goes in circles all the same comes to an end."""


class NewConversation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    persona_id: PersonaId = DEFAULT_PERSONA.id
    document_ids: Annotated[tuple[DocumentId, ...], msgspec.Meta(max_length=32)] = ()
    """Documents to ask about, besides those that come with the persona."""


class NewTurn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    client_message_id: ClientMessageId
    parent_id: MessageId | None
    text: Text


class Edit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    client_message_id: ClientMessageId
    leaf_id: MessageId
    """The end of the branch that the user saw."""
    text: Text


class Again(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    client_message_id: ClientMessageId
    leaf_id: MessageId
    """The end of the branch that the user saw."""


class Chosen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    message_id: MessageId


class AcceptedTurn(msgspec.Struct, frozen=True, kw_only=True):
    message: MessageView | None
    """None where an answer was asked for anew."""
    response: ResponseView


class CancelledResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`step` is None when the response had ended before."""

    response_id: ResponseId
    step: int | None


@get("/conversations")
async def list_conversations(
    principal: NamedDependency[Principal],
    conversations: NamedDependency[Conversations],
    shelf: FromQuery[Shelf] = Shelf.CURRENT,
    cursor: Annotated[str | None, QueryParameter(max_length=200)] = None,
    *,
    limit: Annotated[int, QueryParameter(ge=1, le=100)] = 50,
) -> ConversationPage:
    return await conversations.list(principal.user_id, shelf=shelf, cursor=cursor, limit=limit)


@post("/conversations", opt=told(fails=(404,)))
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


@patch("/conversations/{conversation_id:str}")
async def change_conversation(
    conversation_id: FromPath[str],
    data: JSONBody[Changes],
    principal: NamedDependency[Principal],
    supervisor: NamedDependency[Supervisor],
) -> ConversationView:
    """Rename, archive, pin, keep warm."""
    return await supervisor.change_conversation(principal, ConversationId(conversation_id), data)


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


@post("/conversations/{conversation_id:str}/turns", opt=told(fails=(409,)))
async def create_turn(
    conversation_id: FromPath[str],
    data: JSONBody[NewTurn],
    principal: NamedDependency[Principal],
    supervisor: NamedDependency[Supervisor],
) -> AcceptedTurn:
    return await _accepted(supervisor, principal, browser_turn(conversation_id, data))


@post("/conversations/{conversation_id:str}/messages/{message_id:str}/edit", opt=told(fails=(409,)))
async def edit_message(
    conversation_id: FromPath[str],
    message_id: FromPath[str],
    data: JSONBody[Edit],
    principal: NamedDependency[Principal],
    *,
    supervisor: NamedDependency[Supervisor],
) -> AcceptedTurn:
    """Say something else in its place: a branch beside it."""
    request = _turn_at(Act.EDIT, conversation_id, message_id, data)
    return await _accepted(supervisor, principal, _saying(request, data.text))


@post(
    "/conversations/{conversation_id:str}/messages/{message_id:str}/regenerate",
    opt=told(fails=(409,)),
)
async def regenerate_answer(
    conversation_id: FromPath[str],
    message_id: FromPath[str],
    data: JSONBody[Again],
    principal: NamedDependency[Principal],
    *,
    supervisor: NamedDependency[Supervisor],
) -> AcceptedTurn:
    """Answer it once more, or what it answers."""
    request = _turn_at(Act.REGENERATE, conversation_id, message_id, data)
    return await _accepted(supervisor, principal, request)


@post(
    "/conversations/{conversation_id:str}/messages/{message_id:str}/continue",
    opt=told(fails=(409,)),
)
async def continue_answer(
    conversation_id: FromPath[str],
    message_id: FromPath[str],
    data: JSONBody[Again],
    principal: NamedDependency[Principal],
    *,
    supervisor: NamedDependency[Supervisor],
) -> AcceptedTurn:
    """Go on with an answer that was cut short: a new one beside it that begins with it."""
    request = _turn_at(Act.CONTINUE, conversation_id, message_id, data)
    return await _accepted(supervisor, principal, request)


@delete("/conversations/{conversation_id:str}/messages/{message_id:str}", opt=told(fails=(409,)))
async def delete_branch(
    conversation_id: FromPath[str],
    message_id: FromPath[str],
    principal: NamedDependency[Principal],
    supervisor: NamedDependency[Supervisor],
) -> None:
    """The message and all below it."""
    await supervisor.delete_branch(
        principal, ConversationId(conversation_id), MessageId(message_id)
    )


@put("/conversations/{conversation_id:str}/leaf")
async def choose_leaf(
    conversation_id: FromPath[str],
    data: JSONBody[Chosen],
    principal: NamedDependency[Principal],
    supervisor: NamedDependency[Supervisor],
) -> ConversationView:
    """Show the branch through this message, down to its newest end."""
    known_id = ConversationId(conversation_id)
    return await supervisor.branches.choose(principal.user_id, known_id, data.message_id)


@post("/conversations/{conversation_id:str}/fork", opt=told(fails=(409,)))
async def fork_conversation(
    conversation_id: FromPath[str],
    data: JSONBody[Chosen],
    principal: NamedDependency[Principal],
    supervisor: NamedDependency[Supervisor],
) -> ConversationView:
    """A new conversation that begins with everything up to this message."""
    known_id = ConversationId(conversation_id)
    return await supervisor.branches.fork(principal.user_id, known_id, data.message_id)


@get("/responses/{response_id:str}/events", opt=told(gives={EVENT_STREAM: Event | Snapshot}))
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


async def _accepted(
    supervisor: Supervisor, principal: Principal, request: TurnRequest
) -> AcceptedTurn:
    acceptance = await supervisor.create(principal, request)
    return AcceptedTurn(message=acceptance.message, response=acceptance.response)


def browser_turn(conversation_id: str, turn: NewTurn | TurnCreate) -> TurnRequest:
    """What a person's message becomes, by whichever road it came."""
    request = TurnRequest(
        messages=(),
        conversation_id=ConversationId(conversation_id),
        message_id=turn.parent_id,
        check_leaf=True,
        seen_leaf_id=turn.parent_id,
        client_message_id=turn.client_message_id,
        sampling=BROWSER_SAMPLING,
        limits=BROWSER_LIMITS,
    )
    return _saying(request, turn.text)


def branching_turn(frame: TurnEdit | TurnRegenerate | TurnContinue) -> TurnRequest:
    """What goes on elsewhere than at the end."""
    match frame:
        case TurnEdit():
            request = _turn_at(Act.EDIT, frame.conversation_id, frame.message_id, frame)
            return _saying(request, frame.text)
        case TurnRegenerate():
            return _turn_at(Act.REGENERATE, frame.conversation_id, frame.message_id, frame)
        case TurnContinue():
            return _turn_at(Act.CONTINUE, frame.conversation_id, frame.message_id, frame)


def _turn_at(
    act: Act,
    conversation_id: str,
    message_id: str,
    asked: Edit | Again | TurnEdit | TurnRegenerate | TurnContinue,
) -> TurnRequest:
    return TurnRequest(
        messages=(),
        conversation_id=ConversationId(conversation_id),
        act=act,
        message_id=MessageId(message_id),
        check_leaf=True,
        seen_leaf_id=asked.leaf_id,
        client_message_id=asked.client_message_id,
        sampling=BROWSER_SAMPLING,
        limits=BROWSER_LIMITS,
    )


def _saying(request: TurnRequest, text: str) -> TurnRequest:
    said = (Message(role=Role.USER, text=text),)
    return msgspec.structs.replace(request, messages=said)


def unsent_turn(draft: Draft) -> TurnRequest:
    """The turn that a draft may become."""
    begins = draft.conversation_id is None
    return TurnRequest(
        messages=(Message(role=Role.USER, text=draft.text),),
        conversation_id=draft.conversation_id,
        message_id=draft.parent_id,
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
    change_conversation,
    move_to_newest,
    delete_conversation,
    create_turn,
    edit_message,
    regenerate_answer,
    continue_answer,
    delete_branch,
    choose_leaf,
    fork_conversation,
    watch_response,
    cancel_response,
]
