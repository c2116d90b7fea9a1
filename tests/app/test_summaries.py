"""A conversation goes on in a new one that begins with its summary: whole, once, or not at all."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.chat.asked import Tools
from app.chat.calls import Call, Written, call_id, spelled
from app.chat.departures import Departures
from app.chat.ledger import Node
from app.chat.sequels import Source, parted, tokens_of
from app.chat.summaries import QUESTION, Summaries
from app.db.base import Database
from app.db.models import Conversation
from app.db.types import QuotaKind, text_bytes, utc_now
from app.errors import Conflict, NotFound, PromptTooLong, QuotaExceeded, TooMany, Unavailable
from app.events import ConversationView, ResponseStatus
from app.frames import ConversationChanged, ErrorFrame, SummaryCreate, SummaryCreated
from app.ids import ConversationId, MessageId, UserId, new_message_id
from app.people.accounts import Accounts, Principal
from app.people.usage import Ask
from engine.api import (
    CallGrammar,
    Finished,
    FinishReason,
    Function,
    Job,
    JobClass,
    JobEvent,
    Message,
    OwnerId,
    Refusal,
    RenderRequest,
    Role,
    Seam,
)
from engine.errors import EngineLost
from tests.kit.db import Pause
from tests.kit.domain import Domain, new_person, open_domain
from tests.kit.echo import CALL_FORM, CARD, EchoEngine, text_of, with_calls
from tests.kit.peers import engine_of, somebody_at
from tests.kit.serving import Serving

SUMMARY = "They spoke of ships."
Leaving = Callable[[Accounts, UserId], Awaitable[object]]
LONG = 150
"""Characters, and so tokens, of a message of which nine leave no room for a summary."""


class Talk:
    """A person's conversation, and whoever sums it up."""

    def __init__(self, domain: Domain, summaries: Summaries, who: Principal) -> None:
        self.domain = domain
        self.summaries = summaries
        self.who = who

    async def begin(self, *texts: str) -> ConversationId:
        made = await self.domain.conversations.create(self.who.user_id)
        for text in texts:
            await self.domain.say(self.who, made.id, text)
        return made.id

    async def leaf(self, conversation_id: ConversationId) -> MessageId:
        view = await self.domain.conversations.get(self.who.user_id, conversation_id)
        assert view.leaf_id is not None
        return view.leaf_id

    async def go_on(
        self, conversation_id: ConversationId, name: str = "s1", text: str = ""
    ) -> ConversationView:
        asked = Source(conversation_id, await self.leaf(conversation_id), name, text)
        return await self.summaries.go_on(self.who.user_id, asked)

    async def path(self, conversation_id: ConversationId) -> list[Node]:
        return await self.domain.nodes(await self.leaf(conversation_id))

    async def tokens_of_today(self) -> int:
        used = await self.domain.usage.of(self.who.user_id)
        return next(one.used or 0 for one in used if one.kind is QuotaKind.TOKENS)

    async def conversations(self) -> int:
        async with self.domain.db.read() as session:
            found = await session.scalar(select(func.count()).select_from(Conversation))
            return found or 0


@contextlib.asynccontextmanager
async def talking(db: Database, engine: EchoEngine) -> AsyncIterator[Talk]:
    engine.says[JobClass.BACKGROUND] = SUMMARY
    async with open_domain(db, engine) as domain:
        yield Talk(domain, domain.supervisor.summaries, await new_person(db))


async def until_asked(engine: EchoEngine, job_class: JobClass = JobClass.BACKGROUND) -> Job:
    while True:
        for job in engine.jobs:
            if job.job_class is job_class and job.limits.max_output_tokens:
                return job
        await asyncio.sleep(0)


async def until_warmed(engine: EchoEngine, conversation_id: ConversationId) -> Job:
    while True:
        for job in engine.jobs:
            if str(job.session_id) == conversation_id and engine.is_running(job.job_id):
                return job
        await asyncio.sleep(0)


# ---------------------------------------------------------------- what is made


async def test_a_conversation_goes_on_from_its_summary(db: Database):
    engine = EchoEngine()
    async with talking(db, engine) as talk:
        source_id = await talk.begin("Ships?", "Sails?")
        before = await talk.path(source_id)
        with talk.domain.hub.watch(talk.who.user_id) as feed:
            made = await talk.go_on(source_id)
            notice = await anext(aiter(feed))
        (question, summary) = await talk.path(made.id)
        messages = await talk.domain.conversations.messages(talk.who.user_id, made.id)
        source = await talk.domain.conversations.get(talk.who.user_id, source_id)
        after = await talk.path(source_id)
        asked = await until_asked(engine)
        end = await talk.domain.say(talk.who, made.id, "And now?")

    assert after == before
    assert (made.continues_id, made.title, source.continues_id) == (source_id, "Ships?", None)
    assert notice == ConversationChanged(conversation=made)
    assert [(question.role, question.text), (summary.role, summary.text)] == [
        (Role.USER, QUESTION),
        (Role.ASSISTANT, SUMMARY),
    ], "what the model says is never an instruction"
    head = before[0].head_token_ids
    assert head is not None
    old = sum((node.token_ids for node in before), head)
    assert asked.token_ids[: len(old)] == old
    assert asked.session_id == engine.jobs[0].session_id
    response = messages[1].response
    assert response is not None
    assert response.receipt is not None
    assert response.status is ResponseStatus.COMPLETED
    assert response.receipt.prompt_tokens == len(asked.token_ids)
    assert response.receipt.cached_tokens >= len(old)
    assert end.response.status is ResponseStatus.COMPLETED
    assert engine.jobs[-1].token_ids == await whole(
        talk,
        engine,
        made.id,
        (Role.USER, QUESTION),
        (Role.ASSISTANT, SUMMARY),
        (Role.USER, "And now?"),
    )
    warmed = next(job for job in engine.jobs if str(job.session_id) == made.id)
    assert warmed.limits.max_output_tokens == 0
    assert engine.jobs[-1].token_ids[: len(warmed.token_ids)] == warmed.token_ids


async def test_02_a_conversation_with_functions_is_summed_up_behind_its_own_ids(db: Database):
    """And calls none; the person who goes on from it has none."""
    engine = EchoEngine(with_calls())
    tools = Tools(functions=(Function(name="tide"),), form=CALL_FORM)
    calling = Written(text="", calls=(Call(name="tide", arguments="{}"),))
    told: dict[str, Any] = {"tools": tools, "instructions": "Be brief."}
    async with talking(db, engine) as talk:
        engine.says[JobClass.INTERACTIVE] = spelled(calling, CALL_FORM)
        first = await talk.domain.respond(talk.who, "Ships?", **told)
        await talk.domain.ended(talk.who, first)
        del engine.says[JobClass.INTERACTIVE]
        given = (Message(role=Role.TOOL, text="high"),)
        named = (call_id(first.message_id, 0),)
        second = await talk.domain.respond(
            talk.who, "", first, messages=given, results=named, **told
        )
        await talk.domain.ended(talk.who, second)
        assert second.conversation_id is not None
        path = await talk.path(second.conversation_id)
        made = await talk.go_on(second.conversation_id)
        asked = await until_asked(engine)
        question, summary = await talk.path(made.id)
        messages = await talk.domain.conversations.messages(talk.who.user_id, made.id)
        await talk.domain.say(talk.who, made.id, "And now?")

    head = path[0].head_token_ids
    assert head is not None
    assert "tide" in text_of(head)
    assert text_of(head).endswith("Be brief.")
    old = sum((node.token_ids for node in path), head)
    assert asked.token_ids[: len(old)] == old
    assert asked.grammar == CallGrammar(
        owner_id=OwnerId(talk.who.user_id), form=CALL_FORM, functions=()
    )
    response = messages[1].response
    assert response is not None
    assert response.receipt is not None
    assert response.receipt.cached_tokens >= len(old)
    assert summary.text == SUMMARY
    assert question.head_token_ids is not None
    assert "tide" not in text_of(question.head_token_ids)
    assert "tide" not in text_of(engine.jobs[-1].token_ids)


async def whole(
    talk: Talk, engine: EchoEngine, conversation_id: ConversationId, *said: tuple[Role, str]
) -> tuple[int, ...]:
    """The head, and all this behind it as the template writes it."""
    path = await talk.path(conversation_id)
    head = path[0].head_token_ids
    assert head is not None
    rendered = await engine.render(
        RenderRequest(
            messages=tuple(Message(role=role, text=text) for role, text in said),
            seam=Seam.CLOSED,
            opens_reply=True,
        )
    )
    return (*head, *rendered.token_ids)


async def test_of_a_full_conversation_what_has_no_room_is_carried_along(db: Database):
    engine = EchoEngine()
    async with talking(db, engine) as talk:
        source_id = await talk.begin(*(letter * LONG for letter in "abcdefghi"))
        source = await talk.path(source_id)
        made = await talk.go_on(source_id)
        asked = await until_asked(engine)
        question, summary, *carried = await talk.path(made.id)
        messages = await talk.domain.conversations.messages(talk.who.user_id, made.id)
        await talk.domain.say(talk.who, made.id, "And now?")
        texts = [node.text for node in carried]

    limit = asked.limits.max_output_tokens
    assert limit is not None
    assert len(asked.token_ids) + limit <= CARD.context_tokens
    assert (question.text, summary.text) == (QUESTION, SUMMARY)
    kept = source[-len(carried) :]
    assert 0 < len(carried) < len(source)
    assert [node.text for node in kept] == texts
    assert [node.token_ids for node in kept[1:]] == [node.token_ids for node in carried[1:]]
    summed_up = source[: -len(carried)]
    assert summed_up[-1].role is Role.ASSISTANT, "turns stay whole"
    assert all(one.response for one in messages if one.role == Role.ASSISTANT)
    roles = [Role.USER, Role.ASSISTANT] * 20
    assert engine.jobs[-1].token_ids == await whole(
        talk,
        engine,
        made.id,
        *zip(roles, [QUESTION, SUMMARY, *texts, "And now?"], strict=False),
    )


def a_node(role: Role, tokens: int) -> Node:
    return Node(
        id=new_message_id(),
        parent_id=None,
        role=role,
        text="",
        token_ids=(7,) * tokens,
        seam=Seam.STOPPED,
        model_fingerprint=None,
        template_fingerprint=None,
        created_at=utc_now(),
    )


@pytest.mark.parametrize(
    ("tokens", "summed_up", "carried"),
    [
        ((10, 10, 10, 10), 40, 0),
        ((40, 40, 10, 10), 100, 0),
        ((40, 40, 20, 10), 80, 30),
        ((40, 40, 40, 40), 80, 0),  # half of the room: it stays where it was said
        ((40, 90), 100, 0),  # the end of the answer stays behind
        ((40, 90, 10, 10), 100, 20),
        ((120, 10), None, 0),
        ((40, 20, 10, 60), 100, 0),  # of an answer that may not be carried, what has room
        ((40, 20, 10, 60, 10, 10), 100, 20),
    ],
)
def test_whole_turns_are_summed_up_and_carried(
    tokens: tuple[int, ...], summed_up: int | None, carried: int
):
    roles = (Role.USER, Role.ASSISTANT) * 3
    nodes = [a_node(role, count) for role, count in zip(roles, tokens, strict=False)]

    found = parted(nodes, 100, 50)

    if summed_up is None:
        assert found is None
    else:
        assert found is not None
        assert (tokens_of(found.summed_up), tokens_of(found.carried)) == (summed_up, carried)


async def test_what_is_called_goes_with_its_call():
    roles = (Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT, Role.USER, Role.ASSISTANT)
    nodes = [a_node(role, 20) for role in roles]

    found = parted(nodes, 50, 50)

    assert found is not None
    assert [node.role for node in found.summed_up] == list(roles[:2])
    assert found.carried == tuple(nodes[4:]), "a result stands behind the call that it answers"


async def test_a_first_message_that_fills_the_context_is_summed_up_by_its_beginning(db: Database):
    engine = EchoEngine()
    async with talking(db, engine) as talk:
        source_id = await talk.begin("x" * 1_500)
        made = await talk.go_on(source_id)
        asked = await until_asked(engine)
        question, summary = await talk.path(made.id)
        end = await talk.domain.say(talk.who, made.id, "And now?")

    assert asked.limits.max_output_tokens is not None
    assert len(asked.token_ids) + asked.limits.max_output_tokens <= CARD.context_tokens
    assert text_of(asked.token_ids).count("x") > 700
    assert text_of(asked.token_ids).endswith(QUESTION)
    assert (question.text, summary.text) == (QUESTION, SUMMARY)
    assert end.response.status is ResponseStatus.COMPLETED


@pytest.mark.parametrize("length", [0, 300, 700])
async def test_what_is_to_be_said_next_has_room_behind_the_summary(db: Database, length: int):
    """Less is carried along for it."""
    engine = EchoEngine()
    async with talking(db, engine) as talk:
        source_id = await talk.begin(*(letter * LONG for letter in "abcdefghi"))
        made = await talk.go_on(source_id, text="y" * length)
        carried = len(await talk.path(made.id)) - 2
        end = await talk.domain.say(talk.who, made.id, "y" * max(length, 1))

    assert (carried > 0) == (length < 700)
    assert end.response.status is ResponseStatus.COMPLETED


# ---------------------------------------------------------------- once, or not at all


async def test_17_a_summary_that_is_asked_for_again_is_the_same(db: Database):
    engine = EchoEngine()
    async with talking(db, engine) as talk:
        source_id = await talk.begin("Ships?")
        together = await asyncio.gather(*(talk.go_on(source_id) for _ in range(3)))
        later = await talk.go_on(source_id)
        other = await talk.go_on(source_id, "s2")

    assert len({one.id for one in (*together, later)}) == 1
    assert other.id != later.id


async def test_one_summary_at_a_time(db: Database):
    engine = EchoEngine()
    async with talking(db, engine) as talk:
        source_id, other_id = await talk.begin("Ships?"), await talk.begin("Sails?")
        engine.hold()
        first = asyncio.create_task(talk.go_on(source_id))
        await until_asked(engine)
        with pytest.raises(Conflict) as refused:
            await talk.go_on(source_id, "s2")
        with pytest.raises(TooMany):
            await talk.go_on(other_id)
        engine.release()
        await first

    assert refused.value.code == "summary_in_progress"


async def test_15_a_summary_that_is_stopped_leaves_nothing(db: Database):
    engine = EchoEngine()
    async with talking(db, engine) as talk:
        source_id = await talk.begin("Ships?")
        engine.hold(after_beats=3)
        asking = asyncio.create_task(talk.go_on(source_id))
        job = await until_asked(engine)
        await talk.summaries.stop(talk.who.user_id, source_id)
        assert not engine.is_running(job.job_id)
        with pytest.raises(Conflict) as refused:
            await asking
        assert await talk.conversations() == 1
        engine.release()
        await talk.go_on(source_id)
        await talk.summaries.stop(talk.who.user_id, source_id)

    assert refused.value.code == "summary_stopped"


async def test_a_summary_that_is_stopped_as_it_is_let_in_holds_nothing(
    db: Database, monkeypatch: pytest.MonkeyPatch
):
    async with talking(db, EchoEngine()) as talk:
        source_id = await talk.begin("Ships?")
        usage, admitted = talk.domain.usage, Pause(db)
        admit = usage.admit

        def admit_slowly(session: Session, ask: Ask) -> None:
            admit(session, ask)
            admitted.here()

        monkeypatch.setattr(usage, "admit", admit_slowly)
        asking = asyncio.create_task(talk.go_on(source_id))
        await admitted.reached.wait()
        stopping = asyncio.create_task(talk.summaries.stop(talk.who.user_id, source_id))
        await asyncio.sleep(0)
        admitted.go_on.set()
        await stopping
        with pytest.raises(Conflict):
            await asking
        used = {one.kind: one.used for one in await usage.of(talk.who.user_id)}

    assert used[QuotaKind.GENERATIONS] == 0


async def test_13_a_summary_goes_on_without_whoever_asked(db: Database):
    engine = EchoEngine()
    async with talking(db, engine) as talk:
        source_id = await talk.begin("Ships?")
        engine.hold()
        asking = asyncio.create_task(talk.go_on(source_id))
        await until_asked(engine)
        with talk.domain.hub.watch(talk.who.user_id) as feed:
            asking.cancel()
            engine.release()
            notice = await anext(aiter(feed))
        again = await talk.go_on(source_id)

    assert notice == ConversationChanged(conversation=again)


@pytest.mark.parametrize("fault", ["lost", "refused", "silent"])
@pytest.mark.usefixtures("one_day")
async def test_an_engine_that_gives_no_summary_leaves_nothing(db: Database, fault: str):
    engine = EchoEngine()
    async with talking(db, engine) as talk:
        source_id = await talk.begin("Ships?")
        if fault == "lost":
            engine.fails_with = EngineLost("gone")
        elif fault == "refused":
            engine.refusal = Refusal(code="overloaded", message="no room")
        else:
            engine.says[JobClass.BACKGROUND] = " "
        before = await talk.tokens_of_today()
        with pytest.raises(Unavailable):
            await talk.go_on(source_id)
        assert await talk.conversations() == 1
        after = await talk.tokens_of_today()

    was_computed = fault != "refused"
    assert (after > before) == was_computed, "what was computed counts, whatever came of it"


class Crowded(EchoEngine):
    """Has no room to spare for what is thrown away."""

    async def generate(self, job: Job) -> AsyncGenerator[JobEvent, None]:
        if job.job_class is JobClass.BACKGROUND:
            yield Finished(
                job_id=job.job_id,
                reason=FinishReason.REFUSED,
                token_ids=(),
                text="",
                seam=Seam.CUT,
                refusal=Refusal(code="overloaded", message="no room"),
            )
            return
        async for event in super().generate(job):
            yield event


async def test_where_there_is_no_room_to_spare_it_takes_room_as_a_turn_does(db: Database):
    engine = Crowded()
    async with talking(db, engine) as talk:
        made = await talk.go_on(await talk.begin("Ships?"))

    assert made.leaf_id is not None


async def test_a_source_that_is_deleted_meanwhile_is_not_gone_on_from(db: Database):
    engine = EchoEngine()
    async with talking(db, engine) as talk:
        source_id = await talk.begin("Ships?")
        engine.hold()
        asking = asyncio.create_task(talk.go_on(source_id))
        job = await until_asked(engine)
        await talk.domain.supervisor.delete_conversation(talk.who, source_id)
        assert not engine.is_running(job.job_id)
        engine.release()
        with pytest.raises(NotFound):
            await asking
        assert await talk.conversations() == 0


@pytest.mark.row("live revocation")
@pytest.mark.parametrize("leaves", [Accounts.disable, Accounts.remove])
async def test_a_summary_ends_with_the_account_it_is_for(db: Database, leaves: Leaving):
    engine = EchoEngine()
    async with talking(db, engine) as talk:
        source_id = await talk.begin("Ships?")
        departures = Departures(db, talk.domain.supervisor, engine)
        engine.hold()
        asking = asyncio.create_task(talk.go_on(source_id))
        job = await until_asked(engine)
        before = await talk.conversations()
        await leaves(Accounts(db), talk.who.user_id)
        await departures.look()
        assert not engine.is_running(job.job_id)
        with pytest.raises(Conflict):
            await asking
        assert await talk.conversations() == (before if leaves is Accounts.disable else 0)


async def test_what_is_made_is_warmed_no_more_once_it_is_deleted(db: Database):
    engine = EchoEngine()
    async with talking(db, engine) as talk:
        source_id = await talk.begin("Ships?")
        engine.hold(after_beats=len(SUMMARY) + 1)
        made = await talk.go_on(source_id)
        engine.hold()
        job = await until_warmed(engine, made.id)
        await talk.domain.supervisor.delete_conversation(talk.who, made.id)
        assert not engine.is_running(job.job_id)
        assert talk.summaries.users() == set()


async def test_19_only_ones_own_is_summed_up(db: Database):
    engine = EchoEngine()
    async with talking(db, engine) as talk:
        source_id = await talk.begin("Ships?")
        asked = Source(source_id, await talk.leaf(source_id), "s1")
        stranger = await new_person(db)
        with pytest.raises(NotFound):
            await talk.summaries.go_on(stranger.user_id, asked)
        made = await talk.go_on(source_id)
        with pytest.raises(NotFound):
            await talk.summaries.go_on(stranger.user_id, asked)
        branches = talk.domain.supervisor.branches
        forked = await branches.fork(talk.who.user_id, made.id, await talk.leaf(made.id))

    assert forked.id != made.id


async def test_what_has_no_room_behind_a_summary_is_refused_in_numbers(db: Database):
    """Before the model is asked: the same again would not help."""
    engine = EchoEngine()
    async with talking(db, engine) as talk:
        source_id = await talk.begin("x" * 900)
        with pytest.raises(PromptTooLong) as refused:
            await talk.go_on(source_id, text="y" * 1_400)
        assert await talk.conversations() == 1

    assert refused.value.field == "leaf_id"
    assert refused.value.needed_tokens > refused.value.limit_tokens == CARD.context_tokens
    assert all(job.job_class is not JobClass.BACKGROUND for job in engine.jobs)


@pytest.mark.usefixtures("one_day")
async def test_a_summary_counts_as_a_turn_of_whoever_asks(db: Database):
    """And the texts that it stores count; without room for it nothing is asked and nothing stored."""
    engine = EchoEngine()
    async with talking(db, engine) as talk:
        source_id = await talk.begin("Ships?")
        user_id = talk.who.user_id
        before = {one.kind: one.used or 0 for one in await talk.domain.usage.of(user_id)}
        await talk.go_on(source_id)
        after = {one.kind: one.used or 0 for one in await talk.domain.usage.of(user_id)}
        await talk.domain.quotas.set_for_user(user_id, QuotaKind.REQUESTS, 2)
        with pytest.raises(QuotaExceeded):
            await talk.go_on(source_id, "s2")
        assert await talk.conversations() == 2

    assert after[QuotaKind.REQUESTS] == before[QuotaKind.REQUESTS] + 1
    assert after[QuotaKind.TOKENS] > before[QuotaKind.TOKENS]
    assert after[QuotaKind.GENERATIONS] == 0
    grown = after[QuotaKind.STORED] - before[QuotaKind.STORED]
    assert grown == text_bytes(QUESTION) + text_bytes(SUMMARY)
    asides = [job for job in engine.jobs if job.job_class is JobClass.BACKGROUND]
    assert sum(bool(job.limits.max_output_tokens) for job in asides) == 1


# ---------------------------------------------------------------- over connections


async def test_the_page_asks_by_http_and_by_its_socket(house: Serving):
    engine_of(house).says[JobClass.BACKGROUND] = SUMMARY
    async with somebody_at(house) as somebody, somebody.tab() as tab:
        source_id = await somebody.conversation()
        await tab.subscribe(source_id)
        accepted = await tab.say(source_id, "Ships?")
        story = await tab.story(accepted.response.id)
        assert story.ended
        leaf_id = accepted.response.message_id
        address = f"/api/conversations/{source_id}/summary"
        body = {"client_message_id": "s1", "leaf_id": leaf_id}
        made = await somebody.client.post(address, json=body)
        frame = SummaryCreate(
            request_id="r1", conversation_id=source_id, client_message_id="s1", leaf_id=leaf_id
        )
        await tab.send(frame)
        told = await tab.expect(SummaryCreated)
        await tab.send(
            SummaryCreate(
                request_id="r2",
                conversation_id=ConversationId("conv_0"),
                client_message_id="s1",
                leaf_id=leaf_id,
            )
        )
        refused = await tab.expect(ErrorFrame)
        stopped = await somebody.client.delete(address)
        unknown = await somebody.client.delete("/api/conversations/conv_0/summary")

    assert made.status_code == 201
    assert made.json()["continues_id"] == source_id
    assert told.request_id == "r1"
    assert told.conversation.id == made.json()["id"]
    assert (refused.request_id, refused.error.code) == ("r2", "not_found")
    assert (stopped.status_code, unknown.status_code) == (204, 404)
