"""From a request for a turn to an entry that can be stored, and the job that answers it.

Look (one short transaction), then render (the engine, no transaction); storing comes next and is the
ledger's. What is refused here leaves nothing behind. Whose things are named is checked by the
ledgers' queries (law 19).
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TypeGuard

import msgspec

from app.chat.asked import CacheAsked, Compared
from app.chat.calls import calls_of, in_order
from app.chat.comparison import compare
from app.chat.entry import Considered, TurnRequest, grammar_of, make_ask, make_entry, make_job
from app.chat.headed import (
    HeadText,
    bare_head,
    instructions_head,
    library_head,
    library_key,
    with_tools,
)
from app.chat.heads import Heads
from app.chat.holds import Holds, Wished
from app.chat.ledger import Acceptance, Branch, Entry, Ledger, Node, Place
from app.chat.liveness import session_of
from app.chat.memory import MemoryLedger
from app.chat.prompt import Guess, NewMessages, Prompt, Prompts, Wanted
from app.chat.recall import Recall
from app.chat.shortening import Shortening
from app.chat.stored import StoredLedger
from app.db.types import Origin
from app.errors import Conflict, InvalidRequest, NotFound, PromptTooLong, Unavailable
from app.ids import ResponseId, UserId, new_conversation_id
from app.people.usage import Ask, Usage
from engine.api import Engine, Grammar, Job, ModelCard, Rendered, RenderRequest, Role, Seam
from engine.errors import EngineError, InvalidGrammar, Refused

RETRY_AFTER_S = 2.0
"""When to try again while the engine is away; it is brought back in about this time."""


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that may be stored: what, where, and the job that is to answer it."""

    entry: Entry
    ask: Ask
    job: Job
    ledger: Ledger
    hold: Wished | None


class Intake:
    """Accepts turns for one engine into one database, and into memory."""

    def __init__(
        self,
        engine: Engine,
        heads: Heads,
        ledgers: tuple[StoredLedger, MemoryLedger],
        epoch: str,
        *,
        usage: Usage,
    ) -> None:
        self._engine = engine
        self._heads = heads
        self._stored, self._memory = ledgers
        self.epoch = epoch
        self.holds = Holds(engine, usage)
        self._recall = Recall(self._memory, self._stored)
        self.prompts = Prompts(engine)
        self._shortening = Shortening(self.prompts, self._recall)

    async def prepare(
        self, user_id: UserId, request: TurnRequest, key_id: str
    ) -> Prepared | Acceptance:
        """Everything but the storing; an `Acceptance` is that of the same message sent before.

        Raises `NotFound`, `Conflict`, `ParentMoved`, `InvalidRequest`, `PromptTooLong` and
        `Unavailable`.
        """
        guessing = self._guess(request)
        looked = await self._branch(user_id, request)
        if isinstance(looked, Acceptance):
            return looked
        if request.format is not None:
            await self._make_ready(request.format.grammar(user_id), "format")
        if request.tools is not None:
            await self._make_ready(grammar_of(user_id, request), "tools")
        if request.results:
            request = await self._in_order_of_calls(request, looked)
        card, wanted, rendered = await self._wanted(user_id, request, looked, guessing)
        found = await self._found(request, wanted)
        carried, shortened = 0, False
        async with engine_errors():
            known = _after(found, wanted)
            prompt = await self.prompts.make(card, known, rendered)
            room = room_of(card) - int(request.generate)
            if request.shortenable and request.messages and len(prompt.token_ids) > room:
                cut = await self._shortening.cut(card, request, known, prompt, room=room)
                if cut is not None:
                    request, found, prompt = cut.request, cut.found, cut.prompt
                    carried, shortened = cut.carried, True
        _check_length(prompt, card, request, wanted.branch)
        _check_resumable(prompt, card, wanted.branch)
        compared = await self._compare(user_id, request, prompt, card, shortened=shortened)
        branch, recalled = wanted.branch, _said(prompt.path) if found else ()
        if found is not None:
            branch = _in_session_of(found, branch, request)
            branch = msgspec.structs.replace(branch, path=(), head=None)
            prompt = msgspec.structs.replace(prompt, path=(), path_changed=False)
        considered = Considered(
            user_id=user_id,
            request=request,
            branch=branch,
            prompt=prompt,
            recalled=recalled,
            carried=carried,
            card=card,
            epoch=self.epoch,
            compared=compared,
        )
        entry = make_entry(considered)
        ledger: Ledger = self._stored if request.store else self._memory
        return Prepared(
            entry=entry,
            ask=make_ask(entry, request, prompt, key_id),
            job=make_job(entry, request, prompt),
            ledger=ledger,
            hold=self._hold(entry, request.cache),
        )

    async def _compare(
        self,
        user_id: UserId,
        request: TurnRequest,
        prompt: Prompt,
        card: ModelCard,
        *,
        shortened: bool,
    ) -> Compared | None:
        named = request.cache.comparison_id
        if named is None:
            return None
        before = await self._ended_by(user_id, named)
        return compare(named, before, prompt, card=card, tools=request.tools, shortened=shortened)

    async def _ended_by(self, user_id: UserId, response_id: ResponseId) -> Branch | None:
        """The branch that the caller's response ends, in whichever ledger it is."""
        remembered = await self._memory.after_response(user_id, response_id)
        return remembered or await self._stored.after_response(user_id, response_id)

    def _hold(self, entry: Entry, asked: CacheAsked) -> Wished | None:
        if asked.ttl_s is None:
            return None
        subject = session_of(entry.response.user_id, entry.session_id)
        return Wished(holds=self.holds, subject=subject, asked=asked)

    async def wanted(
        self, user_id: UserId, request: TurnRequest
    ) -> tuple[ModelCard, Wanted, Rendered | None]:
        """What an unsent request's prompt is to be made of, all rights checked; nothing is stored.

        With what is rendered of it already. Raises as `prepare` does.
        """
        guessing = self._guess(request)
        branch = await self._branch(user_id, request)
        assert isinstance(branch, Branch), "what was not sent was not sent before"
        return await self._wanted(user_id, request, branch, guessing)

    def _guess(self, request: TurnRequest) -> asyncio.Task[Guess | None]:
        """Beside the look at the branch, what is most likely to be rendered behind it.

        Whoever raises before it is there leaves it to itself: it raises nothing.
        """
        return asyncio.create_task(self.prompts.guess(request.message_id, _new(request)))

    async def _wanted(
        self,
        user_id: UserId,
        request: TurnRequest,
        branch: Branch,
        guessing: asyncio.Task[Guess | None],
    ) -> tuple[ModelCard, Wanted, Rendered | None]:
        branch = await self._under_persona(user_id, request, branch)
        if not request.messages:
            _check_something_to_do(request, branch)
        async with engine_errors():
            card = await self._engine.info()
            new = _new(request)
            # Two looks that need nothing of each other.
            head, rendered = await asyncio.gather(
                self._head_text(card, user_id, request, branch),
                self.prompts.ahead(card, branch, new, guessing),
            )
        wanted = Wanted(user_id=user_id, branch=branch, head=head, new=new)
        return card, wanted, rendered

    async def _make_ready(self, grammar: Grammar | None, field: str) -> None:
        """Raises `InvalidRequest` in the words of its fault, while nothing is stored."""
        nothing = RenderRequest(messages=(), seam=Seam.CLOSED, opens_reply=False, grammar=grammar)
        async with engine_errors(field):
            await self._engine.render(nothing)

    async def _in_order_of_calls(self, request: TurnRequest, branch: Branch) -> TurnRequest:
        """What functions gave, as the reply before it called them. Raises `InvalidRequest`."""
        async with engine_errors():
            form = (await self._engine.info()).template.calls
        last = branch.said[-1] if branch.said else None
        called = calls_of(last.id, last.text, form) if form and _is_reply(last) else []
        count = len(request.results)
        given = in_order(request.messages[:count], request.results, called, "input")
        return msgspec.structs.replace(
            request, messages=(*given, *request.messages[count:]), results=()
        )

    async def _branch(self, user_id: UserId, request: TurnRequest) -> Branch | Acceptance:
        branch: Branch | Acceptance
        if request.previous_response_id is not None:
            branch = await self._after_response(user_id, request.previous_response_id, request)
        elif request.conversation_id is not None:
            place = Place(
                conversation_id=request.conversation_id,
                act=request.act,
                message_id=request.message_id,
                client_message_id=request.client_message_id,
            )
            branch = await self._stored.at(user_id, place)
            if isinstance(branch, Acceptance):
                return branch
        else:
            branch = Branch(session_id=new_conversation_id(), conversation=None)
        if branch.last is not None and not branch.last.view.status.ended:
            raise Conflict(
                "The answer before this is still being written.", code="turn_in_progress"
            )
        return branch

    async def _after_response(
        self, user_id: UserId, response_id: ResponseId, request: TurnRequest
    ) -> Branch:
        branch = await self._memory.after_response(user_id, response_id)
        if branch is not None and request.store:
            raise InvalidRequest(
                "The previous response was not stored, so its continuation cannot be:"
                " send `store: false`.",
                field="store",
            )
        branch = branch or await self._stored.after_response(user_id, response_id)
        if branch is None:
            raise NotFound("There is no such response.", field="previous_response_id")
        return branch

    async def _found(self, request: TurnRequest, wanted: Wanted) -> Branch | None:
        """What the ledgers know of a history that came whole; what they miss is rendered.

        Asked when there is a head, which only somebody who may read it gets (law 11).
        """
        if request.previous_response_id is not None or request.conversation_id is not None:
            return None
        return await self._recall.find(wanted.user_id, wanted.head.key, request.messages)

    async def _under_persona(self, user_id: UserId, request: TurnRequest, branch: Branch) -> Branch:
        """A conversation stays on the versions that it has; another persona comes as it is now."""
        persona_id = request.persona_id
        if persona_id is None or (branch.reads and branch.reads[0].id == persona_id):
            return branch
        reads = await self._heads.choose(user_id, persona_id, request.document_ids)
        return msgspec.structs.replace(branch, reads=reads, readable=None)

    async def _head_text(
        self, card: ModelCard, user_id: UserId, request: TurnRequest, branch: Branch
    ) -> HeadText:
        """Who may not read what it would say gets no head, so there is nothing to match."""
        if request.instructions:
            head = instructions_head(request.instructions)
        elif branch.reads:
            was_sent = branch.head is not None and branch.head.key == library_key(branch.reads)
            head = library_head(
                await self._heads.for_reader(
                    card, user_id, branch.reads, was_sent=was_sent, readable=branch.readable
                )
            )
        elif request.tools is not None:
            head = HeadText(key="")
        else:
            return bare_head((branch.said or request.messages)[0].role)
        return head if request.tools is None else with_tools(head, request.tools.functions)


def _new(request: TurnRequest) -> NewMessages:
    return NewMessages(messages=request.messages, opens_reply=request.generate)


def _said(path: Iterable[Node]) -> tuple[Node, ...]:
    return tuple(node for node in path if not node.is_mark)


def _after(found: Branch | None, wanted: Wanted) -> Wanted:
    """The same prompt, of which `found` has the ids already."""
    if found is None:
        return wanted
    messages = wanted.new.messages[len(found.said) :]
    new = msgspec.structs.replace(wanted.new, messages=messages)
    return msgspec.structs.replace(wanted, branch=found, new=new)


def _in_session_of(found: Branch, branch: Branch, request: TurnRequest) -> Branch:
    """Where neither is stored, the lease goes along; a stored conversation's stays with it."""
    if request.store or found.conversation is not None:
        return branch
    return msgspec.structs.replace(branch, session_id=found.session_id)


def _is_reply(node: Node | None) -> TypeGuard[Node]:
    return node is not None and node.role is Role.ASSISTANT


@asynccontextmanager
async def engine_errors(schema_field: str = "format") -> AsyncIterator[None]:
    """What the engine raises, in the app's words."""
    try:
        yield
    except InvalidGrammar as error:
        raise InvalidRequest(
            f"This schema cannot be followed: {error.message}.",
            code="invalid_json_schema",
            field=schema_field,
        ) from error
    except Refused as refused:
        raise InvalidRequest(refused.message, field="input") from refused
    except EngineError as error:
        raise Unavailable("The model is not ready.", retry_after_s=RETRY_AFTER_S) from error


def _check_something_to_do(request: TurnRequest, branch: Branch) -> None:
    """Without a new message a turn answers the user's last one, or warms what is there."""
    said = branch.said
    if request.generate:
        if not said or said[-1].role not in (Role.USER, Role.TOOL):
            raise InvalidRequest(
                "There is nothing to answer: without a message in `input` the previous response"
                " must be a warm-up that ended with a user's message.",
                field="input",
            )
    elif not (said or request.instructions or request.tools or branch.reads):
        raise InvalidRequest(
            "There is nothing to warm up: give instructions, a message or a previous response.",
            field="input",
        )


def _check_resumable(prompt: Prompt, card: ModelCard, branch: Branch) -> None:
    """An answer goes on from its exact ids, and those are this model's or none (law 3)."""
    resumed, glue = branch.resumed, prompt.glue
    if resumed is None:
        return
    is_ours = (resumed.model_fingerprint, resumed.template_fingerprint) == (
        card.model_fingerprint,
        card.template_fingerprint,
    )
    if not is_ours or prompt.path_changed or resumed.token_ids[: len(glue)] != glue:
        raise InvalidRequest(
            "This answer was begun by another model; it can be generated anew.",
            code="not_continuable",
            field="message_id",
        )


def room_of(card: ModelCard) -> int:
    """Tokens of the longest prompt and its answer."""
    return min(card.context_tokens, card.pool_blocks * card.block_tokens)


def _check_length(prompt: Prompt, card: ModelCard, request: TurnRequest, branch: Branch) -> None:
    """What surely cannot fit is refused before it is stored; the engine has the last word.

    An answer that goes on counts with what it has already. To a person it is said where the message
    is too long by itself, so that nothing before it need be looked at.
    """
    resumed = () if branch.resumed is None else branch.resumed.token_ids[len(prompt.glue) :]
    said = len(prompt.token_ids) + len(resumed)
    needed = said + int(request.generate)
    limit = room_of(card)
    if needed <= limit:
        return
    alone = len(prompt.head.token_ids) + sum(map(len, prompt.inputs)) + int(request.generate)
    is_alone = request.origin is Origin.CHAT and bool(prompt.inputs) and alone > limit
    raise PromptTooLong(
        f"The prompt has {said} tokens; this model has room for {limit}, the answer included.",
        needed_tokens=needed,
        limit_tokens=limit,
        field="text" if is_alone else "input",
    )
