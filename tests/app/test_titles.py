"""Titles that the model gives: in the background, once, and never over a person's."""

import asyncio

import pytest

from app.chat.conversations import Changes
from app.chat.titles import QUESTION, cleaned
from app.db.base import Database
from app.db.types import QuotaKind
from app.errors import NotFound
from app.frames import ConversationChanged
from app.ids import ConversationId
from app.people.accounts import Principal
from engine.api import Job, JobClass, Refusal, SessionId
from engine.errors import EngineLost
from tests.kit.domain import Domain, new_person, open_domain
from tests.kit.echo import EchoEngine, text_of


def talkative(says: str = "“Ships and sails.”\n") -> EchoEngine:
    engine = EchoEngine()
    engine.says[JobClass.BACKGROUND] = says
    return engine


def asked_for(engine: EchoEngine) -> list[Job]:
    return [job for job in engine.jobs if job.job_class is JobClass.BACKGROUND]


async def under_way(engine: EchoEngine) -> None:
    while not asked_for(engine):  # noqa: ASYNC110  what is waited for has no event
        await asyncio.sleep(0)


async def begin(domain: Domain) -> tuple[Principal, ConversationId]:
    ann = await new_person(domain.db)
    return ann, (await domain.conversations.create(ann.user_id)).id


async def title_of(domain: Domain, who: Principal, conversation_id: ConversationId) -> str:
    return (await domain.conversations.get(who.user_id, conversation_id)).title


async def test_the_model_gives_the_title_once_there_is_an_answer(db: Database):
    engine = talkative()
    async with open_domain(db, engine, titles=True) as domain:
        ann, conversation_id = await begin(domain)
        with domain.hub.watch(ann.user_id) as feed:
            end = await domain.say(ann, conversation_id, "Tell me of ships, please.")
            await domain.titled()
            notices = [await anext(aiter(feed)) for _ in range(4)]
        titles = [one.conversation.title for one in notices if isinstance(one, ConversationChanged)]
        reply = (await domain.nodes(end.response.message_id))[-1]

    turn, title = engine.jobs
    assert titles == ["Tell me of ships, please.", "Ships and sails"]
    assert title.job_class is JobClass.BACKGROUND
    assert title.session_id == turn.session_id == SessionId(conversation_id)
    own = (*turn.token_ids, *reply.token_ids)
    assert title.token_ids[: len(own)] == own
    assert text_of(title.token_ids[len(own) :]) == QUESTION


async def test_a_conversation_is_titled_once_and_its_messages_stay_two(db: Database):
    engine = talkative()
    async with open_domain(db, engine, titles=True) as domain:
        ann, conversation_id = await begin(domain)
        for text in ("one", "two"):
            await domain.say(ann, conversation_id, text)
            await domain.titled()
        messages = await domain.conversations.messages(ann.user_id, conversation_id)

    assert len(asked_for(engine)) == 1
    assert len(messages) == 4


async def test_a_title_that_a_person_gave_stays(db: Database):
    """Before the first word, or while the model thinks."""
    engine = talkative()
    async with open_domain(db, engine, titles=True) as domain:
        ann, named_id = await begin(domain)
        await domain.conversations.change(ann.user_id, named_id, Changes(title="Mine"))
        await domain.say(ann, named_id, "hello")
        await domain.titled()
        assert not asked_for(engine)

        meanwhile_id = (await domain.conversations.create(ann.user_id)).id
        end = await domain.send(ann, meanwhile_id, "hello")
        await domain.ended(ann, end.response)
        engine.hold()
        await under_way(engine)
        await domain.conversations.change(ann.user_id, meanwhile_id, Changes(title="Mine too"))
        engine.release()
        await domain.titled()
        titles = [await title_of(domain, ann, one) for one in (named_id, meanwhile_id)]

    assert titles == ["Mine", "Mine too"]


@pytest.mark.parametrize(
    "says", ["", "<think>ships</think>", "***", "a title that never ends " * 3]
)
async def test_what_is_no_title_leaves_the_first_words_for_good(db: Database, says: str):
    engine = talkative(says)
    async with open_domain(db, engine, titles=True) as domain:
        ann, conversation_id = await begin(domain)
        for text in ("hello there", "and then"):
            await domain.say(ann, conversation_id, text)
            await domain.titled()
        title = await title_of(domain, ann, conversation_id)

    assert title == "hello there"
    assert len(asked_for(engine)) == 1


async def test_where_there_was_no_room_the_next_answer_asks_again(db: Database):
    engine = talkative()
    async with open_domain(db, engine, titles=True) as domain:
        ann, conversation_id = await begin(domain)
        accepted = await domain.send(ann, conversation_id, "hello")
        await domain.ended(ann, accepted.response)
        engine.refusal = Refusal(code="overloaded", message="no room")
        await domain.titled()
        first = await title_of(domain, ann, conversation_id)
        engine.refusal = None
        await domain.say(ann, conversation_id, "again")
        await domain.titled()
        second = await title_of(domain, ann, conversation_id)

    assert (first, second) == ("hello", "Ships and sails")


async def test_an_engine_that_is_lost_costs_the_title_alone(db: Database):
    engine = talkative()
    async with open_domain(db, engine, titles=True) as domain:
        ann, conversation_id = await begin(domain)
        accepted = await domain.send(ann, conversation_id, "hello")
        await domain.ended(ann, accepted.response)
        engine.fails_with = EngineLost("gone")
        await domain.titled()
        title = await title_of(domain, ann, conversation_id)

    assert len(asked_for(engine)) == 1
    assert title == "hello"


@pytest.mark.usefixtures("one_day")
async def test_what_a_title_takes_counts_for_the_day_of_whom_it_is_for(db: Database):
    engine = talkative()
    async with open_domain(db, engine, titles=True) as domain:
        ann, conversation_id = await begin(domain)
        end = await domain.say(ann, conversation_id, "Tell me of ships, please.")
        await domain.titled()
        used = {one.kind: one.used for one in await domain.usage.of(ann.user_id)}

    receipt, title = end.response.receipt, asked_for(engine)[0]
    assert receipt is not None
    known = receipt.prompt_tokens + receipt.output_tokens
    said = len("“Ships and sails.”\n") + 1
    turn = receipt.computed_tokens + receipt.output_tokens
    assert used[QuotaKind.TOKENS] == turn + len(title.token_ids) - known + said


async def test_the_next_turn_stops_who_is_asked_for_a_title(db: Database):
    engine = talkative()
    async with open_domain(db, engine, titles=True) as domain:
        ann, conversation_id = await begin(domain)
        accepted = await domain.send(ann, conversation_id, "hello")
        end = await domain.ended(ann, accepted.response)
        engine.hold()
        await under_way(engine)
        await domain.send(ann, conversation_id, "next", parent_id=end.response.message_id)
        assert not domain.supervisor.titles.asking
        assert not engine.is_running(asked_for(engine)[0].job_id)


async def test_a_deleted_conversation_gets_no_title(db: Database):
    engine = talkative()
    async with open_domain(db, engine, titles=True) as domain:
        ann, conversation_id = await begin(domain)
        accepted = await domain.send(ann, conversation_id, "hello")
        await domain.ended(ann, accepted.response)
        engine.hold()
        await under_way(engine)
        await domain.supervisor.delete_conversation(ann, conversation_id)
        assert not engine.is_running(asked_for(engine)[0].job_id)
        with pytest.raises(NotFound):
            await title_of(domain, ann, conversation_id)


async def test_programs_and_what_is_not_stored_get_no_title(db: Database):
    engine = talkative()
    async with open_domain(db, engine, titles=True) as domain:
        ann = await new_person(db)
        for stored in (True, False):
            await domain.ended(ann, await domain.respond(ann, "hello", store=stored))
        await domain.titled()

    assert not asked_for(engine)


async def test_titles_can_be_left_out(db: Database):
    engine = talkative()
    async with open_domain(db, engine, titles=False) as domain:
        ann, conversation_id = await begin(domain)
        await domain.say(ann, conversation_id, "hello")
        assert not domain.supervisor.titles.asking

    assert not asked_for(engine)


@pytest.mark.parametrize(
    ("answer", "title"),
    [
        ("Ships", "Ships"),
        ('\n\n  "Ships  and\tsails"  \nBecause.', "Ships and sails"),
        ("Title: **Ships.**", "Ships"),
        ("# Ships and so on...", "Ships and so on..."),
        ("«Корабли»", "Корабли"),
        ("\U0001f469\u200d\U0001f680 ahoy", "\U0001f469\u200d\U0001f680 ahoy"),
        ("Ships\u202e\u0007 ahoy", "Ships ahoy"),
        ("!?", ""),
        ("Here is a title:\nShips", ""),
        ("Ships and sails:\nA story", "Ships and sails"),
        ("x" * 61, ""),
        (" ", ""),
    ],
)
def test_a_title_is_one_short_line_without_marks(answer: str, title: str):
    assert cleaned(answer) == title
