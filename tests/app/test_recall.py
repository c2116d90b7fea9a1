"""Histories that come whole: what is found of them by its words, on both ledgers and databases."""

from typing import Any

import msgspec
import pytest
from sqlalchemy import select

from app.chat import memory, recall
from app.db.base import Database
from app.db.models import Conversation
from app.db.models import Message as MessageRow
from app.events import ResponseView, TextDelta
from app.ids import PersonaId, new_user_id
from app.people.accounts import Principal
from engine.api import Limits, Message, Refusal, Role
from tests.kit.domain import Domain, new_person, open_domain, said
from tests.kit.echo import CARD, EchoEngine

Said = tuple[Message, ...]
PERSONA = PersonaId("persona_default")  # type: ignore[arg-type]


@pytest.fixture
def engine() -> EchoEngine:
    return EchoEngine()


@pytest.fixture(params=[True, False], ids=["stored", "in memory"])
def store(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def replied(text: str) -> Said:
    return (Message(role=Role.ASSISTANT, text=text),)


async def send(
    domain: Domain, who: Principal, messages: Said, **changes: Any
) -> tuple[ResponseView, Said]:
    """A turn of a client that keeps its history itself; the history after it."""
    response = await domain.respond(who, "", messages=messages, **changes)
    await domain.ended(who, response)
    found = await domain.supervisor.response(who, response.id)
    if not found.store:
        await domain.supervisor.leave_response(who, response.id)
    return found.view, (*messages, *replied(found.text))


def rendered(engine: EchoEngine) -> Said:
    """What the last turn made ids of."""
    return engine.rendered[-1].messages


async def test_03_a_history_sent_again_keeps_the_ids_of_what_was_said(
    db: Database, engine: EchoEngine, store: bool
):
    """Replies that ended by themselves, and replies cut short."""
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        history: Said = ()
        for number, most in enumerate((None, 3, None, 1)):
            new, limits = said(f"word {number}"), Limits(max_output_tokens=most)
            _, history = await send(domain, ann, history + new, store=store, limits=limits)

            assert rendered(engine) == new
    for job, following in zip(engine.jobs, engine.jobs[1:], strict=False):
        assert following.token_ids[: len(job.token_ids)] == job.token_ids
        assert following.history is not None
        assert (
            following.token_ids[: len(following.history.token_ids)] == following.history.token_ids
        )


async def test_a_changed_word_is_rendered_with_all_that_follows_it(
    db: Database, engine: EchoEngine, store: bool
):
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        _, one = await send(domain, ann, said("one"), store=store)
        _, two = await send(domain, ann, one + said("two"), store=store)

        for place, kept in ((0, 0), (1, 0), (2, 2), (3, 2)):
            text = two[place].text
            for other in (f"{text} ", text.upper(), text[:-1]):
                changed = msgspec.structs.replace(two[place], text=other)
                history = (*two[:place], changed, *two[place + 1 :], *said("three"))
                await send(domain, ann, history, store=store)

                assert rendered(engine) == history[kept:]


async def test_16_an_edited_last_message_shares_what_stands_before_it(
    db: Database, engine: EchoEngine, store: bool
):
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        _, one = await send(domain, ann, said("one"), store=store)
        await send(domain, ann, one + said("two"), store=store)
        await send(domain, ann, one + said("three"), store=store)

        assert rendered(engine) == said("three")


@pytest.mark.parametrize("changes", [{"instructions": "Else."}, {"persona_id": PERSONA}])
async def test_the_same_words_under_another_head_are_not_the_same(
    db: Database, engine: EchoEngine, store: bool, changes: dict[str, object]
):
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        _, one = await send(domain, ann, said("one"), store=store)
        _, other = await send(domain, ann, one + said("two"), store=store, **changes)

        assert rendered(engine) == one + said("two")

        await send(domain, ann, other + said("three"), store=store, **changes)

        assert rendered(engine) == said("three")


async def test_19_equal_histories_of_two_users_have_nothing_in_common(
    db: Database, engine: EchoEngine, store: bool
):
    async with open_domain(db, engine) as domain:
        ann, ben = await new_person(db), await new_person(db)
        _, one = await send(domain, ann, said("one"), store=store)
        await send(domain, ben, one + said("two"), store=store)

        assert rendered(engine) == one + said("two")
        assert engine.jobs[-1].history is None


def test_19_a_digest_is_its_users_and_its_heads_and_of_each_border():
    ann, ben = new_user_id(), new_user_id()
    digests = {
        recall.path_digest(ann, "a", said("one")),
        recall.path_digest(ben, "a", said("one")),
        recall.path_digest(ann, "b", said("one")),
        recall.path_digest(ann, "a", replied("one")),
        recall.path_digest(ann, "a", said("on") + said("e")),
        recall.path_digest(ann, "au", ()),
        recall.path_digest(ann, "a", ()),
    }

    assert len(digests) == 7


async def test_08_words_are_compared_and_not_only_digests(
    db: Database, engine: EchoEngine, store: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(recall, "_chained", lambda *_: b"one for all")
    async with open_domain(db, engine) as domain:
        ann, ben = await new_person(db), await new_person(db)
        _, one = await send(domain, ann, said("one"), store=store)
        for who, history in ((ann, said("two") + one[1:]), (ben, one)):
            await send(domain, who, history + said("three"), store=store)

            assert rendered(engine) == history + said("three")


async def test_16_what_is_found_is_only_read(db: Database, engine: EchoEngine):
    """A continuation that is stored has messages of its own, and outlives what it was found in."""

    async def everything(conversation_id) -> list[object]:
        columns = MessageRow.__table__.columns
        async with db.read() as session:
            mine = select(*columns).where(MessageRow.conversation_id == conversation_id)
            about = select(*Conversation.__table__.columns).where(
                Conversation.id == conversation_id
            )
            return [*(await session.execute(mine)).all(), *(await session.execute(about)).all()]

    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        first, one = await send(domain, ann, said("one"))
        before = await everything(first.conversation_id)
        second, two = await send(domain, ann, one + said("two"))

        assert second.conversation_id != first.conversation_id
        assert await everything(first.conversation_id) == before
        items = await domain.supervisor.input_items(ann, second.id)
        assert [(item.role, item.text) for item in items] == [
            (message.role, message.text) for message in two[:-1]
        ]
        nodes = await domain.nodes(second.message_id)
        head = next(node.head_token_ids for node in nodes if node.head_token_ids is not None)
        ids = sum((node.token_ids for node in nodes[:-1]), head)
        assert ids == engine.jobs[-1].token_ids

        assert first.conversation_id is not None
        await domain.supervisor.delete_conversation(ann, first.conversation_id)
        await send(domain, ann, two + said("three"))

        assert rendered(engine) == said("three")


async def test_a_stored_conversation_is_found_by_who_stores_nothing_and_keeps_its_session(
    db: Database, engine: EchoEngine
):
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        _, one = await send(domain, ann, said("one"))
        _, two = await send(domain, ann, one + said("two"), store=False)
        _, three = await send(domain, ann, two + said("three"), store=False)
        await send(domain, ann, three + said("four"))

        assert rendered(engine) == said("four")
        sessions = [job.session_id for job in engine.jobs]
        assert sessions[1] == sessions[2]
        assert len(set(sessions)) == 3


async def test_a_chat_of_the_browser_is_found_under_its_persona(db: Database, engine: EchoEngine):
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        chat = await domain.conversations.create(ann.user_id)
        end = await domain.say(ann, chat.id, "one")
        text = (await domain.nodes(end.response.message_id))[-1].text
        history = said("one") + replied(text) + said("two")
        await send(domain, ann, history, store=False, persona_id=PERSONA)

        assert rendered(engine) == said("two")


async def test_after_a_restart_only_what_is_stored_is_found(
    db: Database, engine: EchoEngine, store: bool
):
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        _, one = await send(domain, ann, said("one"), store=store)
    async with open_domain(db, engine) as domain:
        _, two = await send(domain, ann, one + said("two"), store=store)

        assert rendered(engine) == (said("two") if store else one + said("two"))
        await send(domain, ann, two + said("three"), store=store)

        assert rendered(engine) == said("three")


@pytest.mark.parametrize(
    "bound", [("KEPT_RESPONSES_PER_USER", 2), ("KEPT_RESPONSES", 2), ("KEPT_TOKENS", 60)]
)
async def test_memory_is_bounded_and_lets_the_oldest_go(
    db: Database, engine: EchoEngine, monkeypatch: pytest.MonkeyPatch, bound: tuple[str, int]
):
    monkeypatch.setattr(memory, *bound)
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        ends = [(await send(domain, ann, said(f"{n}"), store=False))[1] for n in range(4)]

        for history, is_found in ((ends[3], True), (ends[0], False)):
            await send(domain, ann, history + said("more"), store=False)
            assert rendered(engine) == (() if is_found else history) + said("more")


async def test_03_ids_of_another_model_are_rendered_anew_and_the_stored_stay(
    db: Database, engine: EchoEngine, store: bool
):
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        _, one = await send(domain, ann, said("one"), store=store)
        engine.card = msgspec.structs.replace(CARD, model_fingerprint="another")
        _, two = await send(domain, ann, one + said("two"), store=store)

        assert rendered(engine) == one + said("two")
        await send(domain, ann, two + said("three"), store=store)

        assert rendered(engine) == said("three")


async def test_a_reply_that_failed_is_not_found(db: Database, engine: EchoEngine, store: bool):
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        engine.refusal = Refusal(code="overloaded", message="Too much.")
        _, one = await send(domain, ann, said("one"), store=store)
        engine.refusal = None
        await send(domain, ann, one + said("two"), store=store)

        assert rendered(engine) == one + said("two")


async def test_15_a_stopped_reply_is_found_by_what_came_of_it(
    db: Database, engine: EchoEngine, store: bool
):
    engine.hold(after_beats=4)
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        response = await domain.respond(ann, "one", store=store)
        await domain.until(ann, response, TextDelta, 2)
        await domain.supervisor.cancel(ann, response.id)
        engine.release()
        partial = (await domain.supervisor.response(ann, response.id)).text
        assert partial
        history = said("one") + replied(partial) + said("two")
        await send(domain, ann, history, store=store)

        assert rendered(engine) == said("two")


async def test_a_history_that_ends_in_a_reply_is_rendered_from_that_reply_on(
    db: Database, engine: EchoEngine, store: bool
):
    """Something is left to be rendered, whoever said it."""
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        _, one = await send(domain, ann, said("one"), store=store)
        await send(domain, ann, one, store=store)

        assert rendered(engine) == one
