"""Conversations that API clients make themselves: labels, items, and what goes on below them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import select

from app.chat.items import Item, Items
from app.chat.ledger import Act
from app.db.base import Database
from app.db.models import Message as MessageRow
from app.errors import Conflict, InvalidRequest, NotFound
from app.events import ResponseStatus, ResponseView
from app.ids import ConversationId
from app.people.accounts import Principal
from engine.api import Forget, Message, Role
from tests.kit.domain import Domain, new_person, open_domain, said
from tests.kit.echo import EchoEngine, text_of


@pytest.fixture
def engine() -> EchoEngine:
    return EchoEngine()


@pytest.fixture
async def domain(db: Database, engine: EchoEngine) -> AsyncIterator[Domain]:
    async with open_domain(db, engine) as domain:
        yield domain


@pytest.fixture
def items(domain: Domain) -> Items:
    return Items(domain.db, domain.supervisor, domain.usage, domain.engine)


@pytest.fixture
async def ann(domain: Domain) -> Principal:
    return await new_person(domain.db)


async def ask(
    domain: Domain, who: Principal, conversation_id: ConversationId, text: str, **more: Any
) -> ResponseView:
    """A whole response in the conversation."""
    begun = await domain.respond(who, text, conversation_id=conversation_id, act=Act.APPEND, **more)
    return (await domain.ended(who, begun)).response


def texts(items: tuple[Item, ...]) -> list[str]:
    return [item.message.text for item in items]


async def test_labels_are_kept_replaced_and_their_owners_own(
    domain: Domain, items: Items, ann: Principal
):
    bob = await new_person(domain.db)
    made = await items.create(ann.user_id, {"topic": "sea"})

    assert (await items.get(ann.user_id, made.id)).labels == {"topic": "sea"}
    assert (await items.label(ann.user_id, made.id, {})).labels == {}
    for act in (
        items.get(bob.user_id, made.id),
        items.label(bob.user_id, made.id, {}),
        items.list(bob.user_id, made.id),
        items.delete(bob, made.id),
        items.add(bob, made.id, said("x")),
        ask(domain, bob, made.id, "x"),
    ):
        with pytest.raises(NotFound):
            await act


async def test_only_what_was_made_as_one_is_such_a_conversation(
    domain: Domain, items: Items, ann: Principal
):
    chat = await domain.conversations.create(ann.user_id)
    begun = (await domain.ended(ann, await domain.respond(ann, "Hi"))).response
    assert begun.conversation_id is not None

    for other in (chat.id, begun.conversation_id):
        with pytest.raises(NotFound):
            await items.get(ann.user_id, other)
        with pytest.raises(NotFound):
            await ask(domain, ann, other, "x")

    made = await items.create(ann.user_id, {})
    listed = await domain.conversations.list(ann.user_id)
    assert [one.id for one in listed.items] == [chat.id]
    assert made.id not in (chat.id, begun.conversation_id)


async def test_02_items_are_computed_as_they_come_and_the_response_finds_them(
    domain: Domain, items: Items, ann: Principal, engine: EchoEngine
):
    made = await items.create(ann.user_id, {})
    brought = (
        Message(role=Role.SYSTEM, text="Be brief."),
        Message(role=Role.USER, text="One"),
        Message(role=Role.ASSISTANT, text="Two"),
    )

    added = await items.add(ann, made.id, brought)
    end = await ask(domain, ann, made.id, "Three")

    assert texts(added) == ["Be brief.", "One", "Two"]
    assert text_of(engine.jobs[-1].token_ids) == "Be brief.OneTwoThree"
    assert end.usage is not None
    assert end.usage.cached_tokens >= len(engine.jobs[0].token_ids)
    found = await items.list(ann.user_id, made.id)
    assert texts(found)[:4] == ["Be brief.", "One", "Two", "Three"]
    assert found[4].message.id == end.message_id
    assert {item.status for item in found} == {ResponseStatus.COMPLETED}


async def test_02_items_come_behind_the_instructions_of_the_last_response(
    domain: Domain, items: Items, ann: Principal, engine: EchoEngine
):
    made = await items.create(ann.user_id, {})
    end = await ask(domain, ann, made.id, "One", instructions="Rhyme. ")

    await items.add(ann, made.id, said("Two"))

    warmed = text_of(engine.jobs[-1].token_ids)
    assert warmed.startswith("Rhyme. One")
    assert warmed.endswith("Two")
    assert len(engine.jobs[-1].token_ids) > len(engine.jobs[0].token_ids)
    assert end.status is ResponseStatus.COMPLETED


async def test_16_two_responses_at_once_in_one_conversation_are_one(
    domain: Domain, items: Items, ann: Principal, engine: EchoEngine
):
    made = await items.create(ann.user_id, {})
    await ask(domain, ann, made.id, "One")
    engine.hold()

    begun = await asyncio.gather(
        *(
            domain.respond(ann, text, conversation_id=made.id, act=Act.APPEND)
            for text in ("Two", "Three", "Four")
        ),
        return_exceptions=True,
    )
    with pytest.raises(Conflict):
        await items.remove(ann, made.id, (await items.list(ann.user_id, made.id))[0].message.id)
    running = (await items.list(ann.user_id, made.id))[-1]
    engine.release()

    won = [one for one in begun if isinstance(one, ResponseView)]
    assert len(won) == 1
    assert all(isinstance(one, ResponseView | Conflict) for one in begun)
    assert running.status is ResponseStatus.IN_PROGRESS
    await domain.ended(ann, won[0])
    assert len(await items.list(ann.user_id, made.id)) == 4


@pytest.mark.parametrize("place", range(4))
async def test_a_removed_item_is_said_nowhere_any_more(
    domain: Domain, items: Items, ann: Principal, engine: EchoEngine, *, place: int
):
    made = await items.create(ann.user_id, {})
    for text in ("One", "Two"):
        await ask(domain, ann, made.id, text)
    before = await items.list(ann.user_id, made.id)

    await items.remove(ann, made.id, before[place].message.id)

    left = [item.message for at, item in enumerate(before) if at != place]
    after = await items.list(ann.user_id, made.id)
    assert texts(after) == [message.text for message in left]
    assert engine.leases[-1][1] == Forget()
    end = await ask(domain, ann, made.id, "Three")
    assert text_of(engine.jobs[-1].token_ids) == "".join(one.text for one in left) + "Three"
    prompt = engine.jobs[-1].token_ids
    assert end.status is ResponseStatus.COMPLETED
    # What is stored of it now goes on as it is.
    reply = texts(await items.list(ann.user_id, made.id))[-1]
    await ask(domain, ann, made.id, "Four")
    assert engine.jobs[-1].token_ids[: len(prompt)] == prompt
    assert text_of(engine.jobs[-1].token_ids).endswith(f"Three{reply}Four")


async def test_what_was_said_behind_a_removed_item_is_not_recalled(
    domain: Domain, items: Items, ann: Principal, engine: EchoEngine
):
    """A history that came whole would get the ids of one that is not so."""
    made = await items.create(ann.user_id, {})
    for text in ("One", "Two"):
        await ask(domain, ann, made.id, text)
    before = [item.message for item in await items.list(ann.user_id, made.id)]

    await items.remove(ann, made.id, before[1].id)

    async with domain.db.read() as session:
        rows = await session.scalars(
            select(MessageRow).where(MessageRow.conversation_id == made.id)
        )
        assert {row.path_digest for row in rows} == {None}
    whole = tuple(Message(role=Role(one.role), text=one.text) for one in before)
    end = await domain.respond(ann, "", messages=(*whole, *said("Three")), store=False)
    await domain.ended(ann, end)
    assert text_of(engine.jobs[-1].token_ids) == "".join(one.text for one in whole) + "Three"


async def test_a_conversation_goes_with_its_items_and_its_kv(
    domain: Domain, items: Items, ann: Principal, engine: EchoEngine
):
    made = await items.create(ann.user_id, {})
    end = await ask(domain, ann, made.id, "One")

    await items.delete(ann, made.id)

    assert engine.leases[-1][0].subject_id == made.id
    assert engine.leases[-1][1] == Forget()
    with pytest.raises(NotFound):
        await items.list(ann.user_id, made.id)
    with pytest.raises(NotFound):
        await domain.supervisor.response(ann, end.id)


async def test_it_outlives_its_last_response(domain: Domain, items: Items, ann: Principal):
    made = await items.create(ann.user_id, {})
    end = await ask(domain, ann, made.id, "One")

    await domain.supervisor.delete_response(ann, end.id)

    assert texts(await items.list(ann.user_id, made.id))[0] == "One"
    assert (await ask(domain, ann, made.id, "Two")).status is ResponseStatus.COMPLETED


async def test_what_has_no_room_is_refused_and_nothing_is_kept(
    domain: Domain, items: Items, ann: Principal
):
    made = await items.create(ann.user_id, {})

    with pytest.raises(InvalidRequest):
        await items.add(ann, made.id, said("long " * 1_000))

    assert await items.list(ann.user_id, made.id) == ()
