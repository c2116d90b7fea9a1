"""Summaries: a conversation that is full goes on in a new one, which begins with what it was about.

    source   [head) [turn 1] .. [turn n-1] [turn n]
    asked    [head) [turn 1] .. [turn n-1] [question)          behind warm ids, and thrown away
    new      [head) [question) [summary)   [turn n]            a conversation of its own

It is asked for behind the head that the last turn had, with the functions and instructions of a
program if that had some; what is new is a person's, and begins without them. The summary is the
model's words and stands where those belong: in an answer, with its receipt, and never among
instructions. As much of the beginning is summed up as leaves room for that, at worst the beginning of
the first message; the turns behind it are carried along id by id, where they leave room for what is to
be said next. Whatever ends it before the summary is there leaves nothing. Asked for twice by the same
name it is the same. What is stored, and how, is `sequels`'.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import msgspec

from app.chat.asides import Aside, aside_job, heard
from app.chat.entry import (
    Considered,
    TurnRequest,
    behind_the_same_head,
    grammar_of,
    make_entry,
)
from app.chat.errands import Errands
from app.chat.intake import RETRY_AFTER_S, Intake, engine_errors, room_of
from app.chat.ledger import Branch, Entry, Node
from app.chat.prompt import NewMessages, Prompt, Wanted
from app.chat.sequels import Sequel, Sequels, Source, parted, tokens_of, without_room
from app.errors import (
    AppError,
    Conflict,
    InvalidRequest,
    NotFound,
    TooMany,
    Unavailable,
)
from app.events import ConversationView
from app.ids import ConversationId, UserId, new_conversation_id
from app.people.usage import Ask, Usage
from engine.api import (
    Engine,
    FinishReason,
    Grammar,
    Job,
    JobClass,
    JobId,
    Limits,
    Message,
    ModelCard,
    RenderRequest,
    Role,
    Seam,
    Stability,
)
from engine.errors import EngineError

LOG = logging.getLogger(__name__)

QUESTION = (
    "Please sum up our conversation so far: what I wanted, what we found and decided, and what is"
    " still open. We will go on from there."
)
MOST_TOKENS = 512
"""Of a summary; and never more than a quarter of what there is room for."""
SEAM_TOKENS = 16
"""More than the glue before the question grows by where another message comes before it."""
MOST_RUNNING = 2
"""Summaries in the engine at once; its queue is for turns."""
WARM_UP = Limits(max_output_tokens=0)
BUSY_S = 5.0


class _Key(NamedTuple):
    user_id: UserId
    conversation_id: ConversationId


class _Work(NamedTuple):
    name: str
    made: asyncio.Future[ConversationView]
    task: asyncio.Task[None]


class _Question(NamedTuple):
    """Asked behind what the conversation's last turn left in the cache."""

    wanted: Wanted
    prompt: Prompt
    grammar: Grammar | None


class Summaries:
    """One per server. What is under way goes on without whoever asked."""

    def __init__(self, engine: Engine, intake: Intake, sequels: Sequels, usage: Usage) -> None:
        self._engine = engine
        self._intake = intake
        self._sequels = sequels
        self._usage = usage
        self._works: dict[_Key, _Work] = {}
        self._tasks: dict[asyncio.Task[None], set[_Key]] = {}
        """What is computed, and for which conversations: the old one, and the new one once it is."""
        self._seats = asyncio.Semaphore(MOST_RUNNING)
        self.errands = Errands(self._stop)

    async def go_on(self, user_id: UserId, asked: Source) -> ConversationView:
        """The conversation that goes on from a summary of that branch, made or made before.

        Raises `NotFound`, `Conflict` ("turn_in_progress", "summary_in_progress", or
        "summary_stopped"), `InvalidRequest`, `PromptTooLong`, `TooMany`, `QuotaExceeded` and
        `Unavailable`.
        """
        earlier = await self._sequels.find(user_id, asked)
        if earlier is not None:
            return earlier
        work = self._works.get(_Key(user_id, asked.conversation_id))
        if work is None:
            work = self._begin(user_id, asked)
        elif work.name != asked.client_message_id:
            raise Conflict("It is being summed up already.", code="summary_in_progress")
        return await asyncio.shield(work.made)

    async def stop(self, user_id: UserId, conversation_id: ConversationId) -> None:
        """Nothing of it is kept; who waits for it is told. Idempotent."""
        work = self._works.get(_Key(user_id, conversation_id))
        if work is not None:
            await _ended({work.task})

    def users(self) -> set[UserId]:
        return {key.user_id for keys in self._tasks.values() for key in keys}

    async def forget(self, user_id: UserId, conversation_id: ConversationId) -> None:
        """It is deleted: it is summed up no more, nor warmed as what goes on from another."""
        key = _Key(user_id, conversation_id)
        work = self._works.get(key)
        if work is not None:
            gone = NotFound("There is no such conversation.", field="conversation_id")
            work.made.set_exception(gone)
        await _ended({task for task, keys in self._tasks.items() if key in keys})

    async def forget_user(self, user_id: UserId) -> None:
        await _ended(
            {
                task
                for task, keys in self._tasks.items()
                if any(key.user_id == user_id for key in keys)
            }
        )

    def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _begin(self, user_id: UserId, asked: Source) -> _Work:
        if not self.errands.are_taken:
            raise Unavailable("The server is stopping.", retry_after_s=RETRY_AFTER_S)
        if any(owner_id == user_id for owner_id, _ in self._works):
            words = "Another conversation of yours is being summed up."
            raise TooMany(words, retry_after_s=BUSY_S)
        self._usage.begins(user_id)
        key = _Key(user_id, asked.conversation_id)
        made: asyncio.Future[ConversationView] = asyncio.get_running_loop().create_future()
        made.add_done_callback(partial(self._over, key))
        task = self.errands.begin(self._work(user_id, asked, made))
        self._tasks[task] = {key}
        task.add_done_callback(partial(self._rests, made))
        work = self._works[key] = _Work(asked.client_message_id, made, task)
        return work

    def _over(self, key: _Key, made: asyncio.Future[ConversationView]) -> None:
        del self._works[key]
        made.exception()  # it was heard, also where nobody waits any more

    def _rests(self, made: asyncio.Future[ConversationView], task: asyncio.Task[None]) -> None:
        """A task that is cancelled before its first step can tell nobody itself."""
        del self._tasks[task]
        if not made.done():
            made.set_exception(Conflict("The summary was stopped.", code="summary_stopped"))

    async def _work(
        self, user_id: UserId, asked: Source, made: asyncio.Future[ConversationView]
    ) -> None:
        try:
            view = await self._make(user_id, asked)
        except Exception as error:  # noqa: BLE001  it is the caller's, wherever the caller is
            made.set_exception(error)
            return
        made.set_result(view)
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task].add(_Key(user_id, view.id))
        await self._warm(user_id, view)

    # ------------------------------------------------------------ from a branch to a summary

    async def _make(self, user_id: UserId, asked: Source) -> ConversationView:
        card, wanted, question = await self._question(user_id, asked)
        output = min(MOST_TOKENS, room_of(card) // 4)
        begun = await self._beginning(card, wanted, asked)
        left = await self._left(card, begun, asked, output)
        prompt = question.prompt
        carried: tuple[Node, ...] = ()
        if len(prompt.token_ids) + output > room_of(card):
            prompt, carried = await self._cut(card, question, output, min(left, room_of(card) // 2))
        response_id = begun.response.view.id
        ask = Ask(
            response_id=response_id,
            user_id=user_id,
            key_id="",
            model=card.name,
            held_tokens=len(prompt.token_ids) + output,
            stored_bytes=0,
        )
        limits = Limits(max_output_tokens=output)
        job = aside_job(user_id, asked.conversation_id, prompt, limits, grammar=question.grammar)
        spent: list[int] = []
        try:
            await self._usage.let_in(ask)
            async with self._seats, engine_errors():
                answer = await self._ask(job, spent.append)
            carried = await self._behind(card, answer, carried)
            sequel = Sequel(begun=begun, answer=answer, carried=carried)
            view = await self._sequels.store(user_id, asked, sequel)
            spent.clear()  # it was counted with what was stored
        finally:
            self._usage.release(response_id)
            self._usage.besides(user_id, sum(spent))
        return view

    async def _question(
        self, user_id: UserId, asked: Source
    ) -> tuple[ModelCard, Wanted, _Question]:
        """How it begins the new conversation, and how it is asked in the old one."""
        said = TurnRequest(
            conversation_id=asked.conversation_id,
            message_id=asked.leaf_id,
            client_message_id=None,
            messages=(Message(role=Role.USER, text=QUESTION),),
        )
        card, wanted, rendered = await self._intake.wanted(user_id, said)
        if not wanted.branch.said:
            raise InvalidRequest("Nothing was said yet.", code="nothing_to_sum_up")
        told, behind = behind_the_same_head(said, wanted.branch.last, card), wanted
        if told != said:
            _, behind, _ = await self._intake.wanted(user_id, told)
        async with engine_errors():
            prompt = await self._intake.prompts.make(card, behind, rendered)
        return card, wanted, _Question(behind, prompt, grammar_of(user_id, told))

    async def _left(self, card: ModelCard, begun: Entry, asked: Source, output: int) -> int:
        """Tokens that are left for what is carried along, between the summary and what is said next."""
        said = Message(role=Role.USER, text=asked.text)
        async with engine_errors():
            rendered = await self._intake.prompts.render(
                RenderRequest(messages=(said,), seam=Seam.CUT, opens_reply=True)
            )
        assert begun.reply is not None, "it was made to be answered"
        around = len(begun.head.token_ids) + tokens_of((*begun.inputs, begun.reply))
        needed = around + output + len(rendered.token_ids) + 1
        if needed > room_of(card):
            raise without_room(needed, room_of(card))
        return room_of(card) - needed

    async def _cut(
        self, card: ModelCard, question: _Question, output: int, carry: int
    ) -> tuple[Prompt, tuple[Node, ...]]:
        wanted, prompt = question.wanted, question.prompt
        nodes = tuple(node for node in prompt.path if not node.is_mark)
        around = len(prompt.token_ids) - tokens_of(nodes)
        found = parted(nodes, room_of(card) - output - around - SEAM_TOKENS, carry)
        if found is None:
            return await self._beginning_of_the_first(card, question, nodes, output), ()
        branch = msgspec.structs.replace(wanted.branch, path=found.summed_up)
        wanted = msgspec.structs.replace(wanted, branch=branch)
        async with engine_errors():
            return await self._intake.prompts.make(card, wanted), found.carried

    async def _beginning_of_the_first(
        self, card: ModelCard, question: _Question, nodes: tuple[Node, ...], output: int
    ) -> Prompt:
        """What came before the first answer fills the context: it is cut, and asked about at once.

        In one message, for some templates refuse two in a row; its ids are new and thrown away.
        """
        wanted, room = question.wanted, room_of(card) - output
        said = itertools.takewhile(lambda node: node.role is not Role.ASSISTANT, nodes)
        text = "\n\n".join(node.text for node in said)
        branch = msgspec.structs.replace(wanted.branch, path=(), last=None)
        kept, needed = len(text), tokens_of(nodes)
        while kept:
            # As if every character took as much, and then less until it does fit.
            kept = min(kept * room // needed, kept * 7 // 8)
            words = f"{text[:kept]} …\n\n{QUESTION}"
            new = NewMessages(messages=(Message(role=Role.USER, text=words),), opens_reply=True)
            asked = msgspec.structs.replace(wanted, branch=branch, new=new)
            async with engine_errors():
                prompt = await self._intake.prompts.make(card, asked)
            needed = len(prompt.token_ids)
            if needed <= room:
                return prompt
        raise without_room(needed + output, room_of(card))

    async def _ask(self, job: Job, spent: Callable[[int], None]) -> Aside:
        """What is thrown away has only spare room; somebody waits for this, so it may take more."""
        answer = await heard(self._engine, job, spent)
        if answer is not None and answer.end.reason is FinishReason.REFUSED:
            again = msgspec.structs.replace(
                job, job_id=JobId(f"{job.job_id}_again"), job_class=JobClass.INTERACTIVE
            )
            answer = await heard(self._engine, again, spent)
        is_whole = answer is not None and answer.end.reason in (
            FinishReason.STOP,
            FinishReason.LENGTH,
        )
        if answer is None or not is_whole or not answer.text.strip():
            raise Unavailable("The model gave no summary.", retry_after_s=RETRY_AFTER_S)
        return answer

    # ------------------------------------------------------------ from a summary to a conversation

    async def _beginning(self, card: ModelCard, wanted: Wanted, asked: Source) -> Entry:
        """The question as the first message of a conversation under the same head."""
        branch = Branch(
            session_id=new_conversation_id(),
            conversation=None,
            reads=wanted.branch.reads,
            head=wanted.branch.head,
        )
        async with engine_errors():
            prompt = await self._intake.prompts.make(
                card, msgspec.structs.replace(wanted, branch=branch)
            )
        return make_entry(
            Considered(
                user_id=wanted.user_id,
                request=TurnRequest(
                    messages=wanted.new.messages, client_message_id=asked.client_message_id
                ),
                branch=msgspec.structs.replace(branch, head=None),
                prompt=prompt,
                recalled=(),
                carried=0,
                card=card,
                epoch=self._intake.epoch,
            )
        )

    async def _behind(
        self, card: ModelCard, answer: Aside, carried: tuple[Node, ...]
    ) -> tuple[Node, ...]:
        """The first of them follows the summary now, and closes it."""
        if not carried or card.template.stability is Stability.UNSTABLE:
            return carried
        first = carried[0]
        async with engine_errors():
            rendered = await self._intake.prompts.render(
                RenderRequest(
                    messages=(Message(role=first.role, text=first.text),),
                    seam=answer.end.seam,
                    opens_reply=first.seam is Seam.CUT,
                )
            )
        return (msgspec.structs.replace(first, token_ids=rendered.token_ids), *carried[1:])

    async def _warm(self, user_id: UserId, conversation: ConversationView) -> None:
        """Its first turn computes only what is new, if this comes to its end before it."""
        request = TurnRequest(
            conversation_id=conversation.id,
            message_id=conversation.leaf_id,
            messages=(),
            generate=False,
        )
        try:
            card, wanted, rendered = await self._intake.wanted(user_id, request)
            prompt = await self._intake.prompts.make(card, wanted, rendered)
            job = aside_job(user_id, conversation.id, prompt, WARM_UP)
            await heard(self._engine, job, partial(self._usage.besides, user_id))
        except (AppError, EngineError):
            pass  # the turn itself will say what is wrong
        except Exception:  # the conversation is there, warm or not
            LOG.exception("%s was not warmed", conversation.id)


async def _ended(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
