"""A turn on its way in: the request, and the entry and the job that it becomes.

PURE but for new ids and the time. Nothing here looks anything up or asks who owns it; `intake` does.
"""

from collections.abc import Iterator
from datetime import timedelta

import msgspec

from app.chat.asked import AnswerFormat, Asked, CacheAsked, Choice, Compared, Tools
from app.chat.ledger import Act, Branch, Entry, Node, StoredResponse
from app.chat.prompt import Prompt
from app.chat.recall import path_digest
from app.chat.rows import seconds
from app.db.types import Origin, text_bytes, utc_now
from app.events import ResponseStatus, ResponseView
from app.ids import (
    ConversationId,
    DocumentId,
    MessageId,
    PersonaId,
    ResponseId,
    UserId,
    new_message_id,
    new_response_id,
)
from app.people.usage import Ask
from engine.api import (
    Grammar,
    Job,
    JobId,
    Limits,
    Message,
    ModelCard,
    OwnerId,
    Role,
    Sampling,
    Seam,
    SessionId,
)

TITLE_CHARACTERS = 60
CUT = "\N{REPLACEMENT CHARACTER}"
_LATER = timedelta(microseconds=1)


class TurnRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A turn to be made: new messages, and what they continue.

    The browser names a conversation, a message in it to act at, and the leaf that it saw
    (`check_leaf`). The dialect names a
    previous response, or nothing: that is a new conversation, or none with `store` false.
    `instructions` replace a persona for this turn alone; they are not inherited.
    """

    messages: tuple[Message, ...]
    """Empty: a warm-up of what stands before them, or an answer to the branch's last message."""
    conversation_id: ConversationId | None = None
    act: Act = Act.SAY
    message_id: MessageId | None = None
    """What `act` is done at."""
    previous_response_id: ResponseId | None = None
    check_leaf: bool = False
    seen_leaf_id: MessageId | None = None
    client_message_id: str | None = None
    instructions: str | None = None
    persona_id: PersonaId | None = None
    document_ids: tuple[DocumentId, ...] = ()
    """Behind the persona, in a conversation that begins with this turn."""
    sampling: Sampling = Sampling()
    limits: Limits = Limits()
    cache: CacheAsked = CacheAsked()
    format: AnswerFormat | None = None
    tools: Tools | None = None
    results: tuple[str, ...] = ()
    """What the first messages are the outputs of: calls of the reply that they are said below."""
    generate: bool = True
    """False: a warm-up. The messages are stored and their KV is computed; nothing is answered."""
    store: bool = True
    origin: Origin = Origin.CHAT
    metadata: dict[str, str] = {}
    shortenable: bool = False
    """Where it does not fit, the oldest turns may leave."""


def behind_the_same_head(
    request: TurnRequest, last: StoredResponse | None, card: ModelCard
) -> TurnRequest:
    """The request with the instructions and functions of the response that it goes on from.

    So that it finds in the cache what that left there; a call of these functions is not asked for.
    What a file brought was never computed here.
    """
    if last is None or last.origin is Origin.IMPORT:
        return request
    tools, form = last.asked.tools, card.template.calls
    if tools is not None:
        # A model without calls cannot be told of functions.
        tools = Tools(functions=tools.functions, form=form, choice=Choice.NONE) if form else None
    return msgspec.structs.replace(request, instructions=last.instructions, tools=tools)


class Considered(msgspec.Struct, frozen=True, kw_only=True):
    """A request with everything that was found out about it."""

    user_id: UserId
    request: TurnRequest
    branch: Branch
    prompt: Prompt
    recalled: tuple[Node, ...]
    """The first of the request's messages, as they were found in a ledger."""
    carried: int
    """How many of these it did not bring: they were said before, and are said again on a new branch."""
    card: ModelCard
    epoch: str
    """Of the log that will tell the response's life."""
    compared: Compared | None = None


def make_entry(considered: Considered) -> Entry:
    """Everything that the accepted turn stores; its reply is still empty."""
    request, prompt = considered.request, considered.prompt
    inputs = _in_order(considered, _inputs(considered))
    reply = _reply(considered, inputs) if request.generate else None
    if reply is not None:
        *_, reply = _in_order(considered, (*inputs, reply))
    begins = considered.branch.conversation is None and request.store
    appended = request.act is Act.APPEND
    return Entry(
        session_id=considered.branch.session_id,
        begins=request.origin if begins else None,
        path=prompt.path,
        head=prompt.head,
        reads=considered.branch.reads,
        path_changed=prompt.path_changed,
        inputs=inputs,
        reply=reply,
        response=_response(considered, inputs, reply),
        title=_title(request.messages),
        path_digest=path_digest(considered.user_id, prompt.head.key, _said(considered)),
        leaf_checked=request.check_leaf or appended,
        seen_leaf_id=considered.branch.parent_id if appended else request.seen_leaf_id,
    )


def _said(considered: Considered) -> Iterator[Message]:
    for node in considered.branch.said:
        yield Message(role=node.role, text=node.text)
    yield from considered.request.messages


def _response(
    considered: Considered, inputs: tuple[Node, ...], reply: Node | None
) -> StoredResponse:
    request = considered.request
    end = reply or inputs[-1]
    return StoredResponse(
        view=ResponseView(
            id=new_response_id(),
            conversation_id=considered.branch.session_id if request.store else None,
            message_id=end.id,
            parent_id=end.id if reply is None else reply.parent_id,
            status=ResponseStatus.IN_PROGRESS,
            model=considered.card.name,
            created_at=seconds(end.created_at),
        ),
        user_id=considered.user_id,
        text="",
        origin=request.origin,
        previous_response_id=request.previous_response_id,
        instructions=request.instructions,
        asked=_asked(considered, inputs),
        store=request.store,
        epoch=considered.epoch,
    )


def _asked(considered: Considered, inputs: tuple[Node, ...]) -> Asked:
    request, head = considered.request, considered.prompt.head
    return Asked(
        sampling=request.sampling,
        limits=request.limits,
        metadata=request.metadata,
        generate=request.generate,
        input_ids=tuple(node.id for node in inputs[considered.carried :] if not node.is_mark),
        shortenable=request.shortenable,
        head_key=head.key,
        opening_end=head.opening_end,
        cache=request.cache,
        in_conversation=request.act is Act.APPEND,
        boot_id=considered.card.boot_id,
        format=request.format,
        tools=request.tools,
        compared=considered.compared,
    )


def _inputs(considered: Considered) -> tuple[Node, ...]:
    """A chain below the branch; the last one carries the client's id, and the head if it is new."""
    nodes = [_copy(node) for node in considered.recalled]
    new = considered.request.messages[len(nodes) :]
    for message, token_ids in zip(new, considered.prompt.inputs, strict=True):
        nodes.append(_node(considered.card, None, message, token_ids))
    nodes = _chain(nodes, considered.branch.parent_id)
    if not nodes:
        return () if considered.request.generate else (_mark(considered),)
    nodes[-1] = msgspec.structs.replace(
        nodes[-1],
        seam=Seam.CUT if considered.request.generate else Seam.CLOSED,
        head_token_ids=_new_head(considered.branch, considered.prompt),
        client_message_id=considered.request.client_message_id,
    )
    return tuple(nodes)


def _copy(node: Node) -> Node:
    """What a ledger has, for another turn's own: it shares the ids and depends on nothing."""
    return msgspec.structs.replace(
        node,
        id=new_message_id(),
        created_at=utc_now(),
        head_token_ids=None,
        client_message_id=None,
    )


def _in_order(considered: Considered, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Each made after the one that it follows, also by a clock that was set back meanwhile."""
    last = considered.branch.path[-1].created_at if considered.branch.path else None
    ordered: list[Node] = []
    for node in nodes:
        at = node.created_at if last is None else max(node.created_at, last + _LATER)
        ordered.append(msgspec.structs.replace(node, created_at=at))
        last = at
    return tuple(ordered)


def _chain(nodes: list[Node], parent_id: MessageId | None) -> list[Node]:
    parents = [parent_id, *(node.id for node in nodes)]
    return [
        msgspec.structs.replace(node, parent_id=parent)
        for node, parent in zip(nodes, parents, strict=False)
    ]


def _mark(considered: Considered) -> Node:
    """What a warm-up without messages is continued from; glue that it computed is not kept here."""
    path = considered.prompt.path
    mark = _node(
        considered.card, considered.branch.parent_id, Message(role=Role.SYSTEM, text=""), ()
    )
    return msgspec.structs.replace(
        mark,
        seam=path[-1].seam if path else Seam.CLOSED,
        head_token_ids=_new_head(considered.branch, considered.prompt),
    )


def _new_head(branch: Branch, prompt: Prompt) -> tuple[int, ...] | None:
    """The head's ids, where the path above does not tell them."""
    told = branch.head is not None and branch.head.token_ids == prompt.head.token_ids
    return None if told and not prompt.path_changed else prompt.head.token_ids


def _reply(considered: Considered, inputs: tuple[Node, ...]) -> Node:
    """Cut so far: what would follow now must close it first. Empty, unless it is taken up again."""
    answered_id = inputs[-1].id if inputs else considered.branch.parent_id
    resumed = considered.branch.resumed
    # A text that was cut in the middle of a character ends with a stand-in for it.
    said = Message(role=Role.ASSISTANT, text=resumed.text.removesuffix(CUT) if resumed else "")
    token_ids = resumed.token_ids if resumed else considered.prompt.glue
    reply = _node(considered.card, answered_id, said, token_ids)
    if inputs:
        return msgspec.structs.replace(reply, seam=Seam.CUT)
    return msgspec.structs.replace(
        reply,
        seam=Seam.CUT,
        head_token_ids=_new_head(considered.branch, considered.prompt),
        client_message_id=considered.request.client_message_id,
    )


def _node(
    card: ModelCard, parent_id: MessageId | None, message: Message, token_ids: tuple[int, ...]
) -> Node:
    return Node(
        id=new_message_id(),
        parent_id=parent_id,
        role=message.role,
        text=message.text,
        token_ids=token_ids,
        seam=Seam.CLOSED,
        model_fingerprint=card.model_fingerprint,
        template_fingerprint=card.template_fingerprint,
        created_at=utc_now(),
    )


def _title(messages: tuple[Message, ...]) -> str:
    """The first user's words in one line, cut at a space where that is near; else any words."""
    texts = [one.text for one in messages if one.role is Role.USER]
    text = next(iter([*texts, *(one.text for one in messages)]), "")
    line = " ".join(text.split())
    if len(line) <= TITLE_CHARACTERS:
        return line
    cut = line[: TITLE_CHARACTERS - 1]
    return f"{cut.rsplit(' ', 1)[0] if ' ' in cut[30:] else cut}…"


def make_ask(entry: Entry, request: TurnRequest, prompt: Prompt, key_id: str) -> Ask:
    """What the turn asks of its user's quotas. An answer without a limit is not held."""
    response = entry.response
    most = request.limits.max_output_tokens if request.generate else 0
    said = sum(text_bytes(node.text) for node in entry.inputs)
    return Ask(
        response_id=response.view.id,
        user_id=response.user_id,
        key_id=key_id,
        model=response.view.model,
        held_tokens=len(prompt.token_ids) + (most or 0),
        stored_bytes=said + text_bytes(response.instructions) if request.store else 0,
    )


def make_job(entry: Entry, request: TurnRequest, prompt: Prompt) -> Job:
    """The engine's part of the turn; its id is the response's.

    What an answer has already when it is taken up again is output, and adds to the limit.
    """
    resumed = () if entry.reply is None else entry.reply.token_ids[len(prompt.glue) :]
    limits = request.limits if request.generate else Limits(max_output_tokens=0)
    if resumed and limits.max_output_tokens is not None:
        limits = msgspec.structs.replace(
            limits, max_output_tokens=limits.max_output_tokens + len(resumed)
        )
    return Job(
        job_id=JobId(entry.response.view.id),
        owner_id=OwnerId(entry.response.user_id),
        session_id=SessionId(entry.session_id),
        token_ids=prompt.token_ids,
        zones=prompt.zones,
        sampling=request.sampling,
        limits=limits,
        history=prompt.history,
        grammar=grammar_of(entry.response.user_id, request),
        resumed_output=resumed,
        durable=request.store and not request.cache.memory_only,
    )


def grammar_of(user_id: UserId, request: TurnRequest) -> Grammar | None:
    """What holds the answer to its format, to the functions that it may call, or to either."""
    says = None if request.format is None else request.format.grammar(user_id)
    tools = request.tools
    if tools is None or (says is not None and tools.choice is Choice.NONE):
        return says
    return tools.grammar(user_id, says)
