"""Who left or was shut out: what runs is stopped, and who left is forgotten; on both databases."""

import asyncio

import msgspec
import pytest
from sqlalchemy import func, select

from app.chat.asked import CacheAsked
from app.chat.departures import SETTLED, Departures, forget_strays
from app.chat.library import Access, Text
from app.chat.liveness import session_of
from app.db.base import Database
from app.db.models import (
    Conversation,
    Departure,
    LibraryItem,
    Login,
    Message,
    Response,
    User,
)
from app.db.types import ItemKind, Visibility, utc_now
from app.errors import Conflict, NotFound
from app.events import TextDelta
from app.ids import new_message_id
from app.people.accounts import Accounts
from engine.api import Forget, LeaseState, OwnerId, Role, Subject, SubjectKind, Wish
from engine.errors import EngineLost
from tests.kit.domain import new_person, open_domain
from tests.kit.echo import EchoEngine
from tests.kit.people import Clock

OWNED = (User, Login, Conversation, Message, Response, LibraryItem)


async def rows(db: Database) -> dict[str, int]:
    async with db.read() as session:
        counts = {
            table.__tablename__: await session.scalar(select(func.count()).select_from(table))
            for table in OWNED
        }
    return {name: count for name, count in counts.items() if count}


def forgotten(engine: EchoEngine, user_id: str) -> bool:
    owner = Subject(kind=SubjectKind.OWNER, subject_id=user_id, owner_id=OwnerId(user_id))
    return (owner, Forget()) in engine.leases


async def departures_left(db: Database) -> int:
    async with db.read() as session:
        return await session.scalar(select(func.count()).select_from(Departure)) or 0


async def test_who_is_removed_leaves_nothing_behind(db: Database, accounts: Accounts, clock: Clock):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        departures = Departures(db, domain.supervisor, domain.engine, clock)
        ann, ben = await new_person(db), await new_person(db)
        own = Text(name="Mine", text="A text of my own.")
        access = Access(visibility=Visibility.OWNER)
        await domain.library.create(ann.user_id, ItemKind.DOCUMENT, own, access)
        stored = await domain.conversations.create(ann.user_id)
        await domain.say(ann, stored.id, "hello")
        kept = CacheAsked(key="a name of Ann's", ttl_s=60.0)
        hidden = await domain.respond(ann, "hidden", store=False, cache=kept)
        await domain.ended(ann, hidden)
        assert domain.supervisor.intake.holds._held
        bens = await domain.respond(ben, "hidden", store=False)
        await domain.ended(ben, bens)
        before = await rows(db)
        engine.hold(after_beats=2)
        live = [await domain.respond(ann, "go on", store=store) for store in (True, False)]
        for response in live:
            await domain.until(ann, response, TextDelta)
        logs = [await domain.supervisor.log(ann, response.id) for response in live]

        await accounts.remove(ann.user_id)
        await departures.look()

        assert domain.supervisor.live_turns == 0
        assert [log.response.status for log in logs] == ["cancelled"] * 2
        for response in (hidden, *live):
            with pytest.raises(NotFound):
                await domain.supervisor.response(ann, response.id)
        await domain.supervisor.response(ben, bens.id)
        assert len(domain.logs) == 1
        assert not domain.supervisor.intake.holds._held
        assert forgotten(engine, ann.user_id) and not forgotten(engine, ben.user_id)

    assert before == {
        "users": 2,
        "conversations": 1,
        "messages": 2,
        "responses": 1,
        "library_items": 2,
    }
    assert await rows(db) == {"users": 1, "library_items": 1}


async def test_what_was_on_its_way_when_its_owner_left_is_stopped_too(
    db: Database, accounts: Accounts, clock: Clock
):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        departures = Departures(db, domain.supervisor, domain.engine, clock)
        ann = await new_person(db)
        engine.hold(after_beats=2)
        late = await domain.respond(ann, "hidden", store=False)
        await domain.until(ann, late, TextDelta)
        await accounts.remove(ann.user_id)
        with pytest.raises(Conflict):
            await domain.respond(ann, "hidden", store=False)
        before = len(engine.leases)

        await departures.look()

        assert domain.supervisor.live_turns == 0
        assert len(engine.leases) == before + 1
        assert await departures_left(db) == 1
        clock.now += SETTLED
        await departures.look()
        assert await departures_left(db) == 0
        await departures.look()
        assert len(engine.leases) == before + 2


class Absent(EchoEngine):
    """An engine that is away for a while."""

    is_away = True

    async def lease(self, subject: Subject, wish: Wish) -> LeaseState:
        if self.is_away:
            raise EngineLost("away")
        return await super().lease(subject, wish)


async def test_who_left_while_the_engine_was_away_is_forgotten_when_it_is_back(
    db: Database, accounts: Accounts, clock: Clock
):
    engine = Absent()
    async with open_domain(db, engine) as domain:
        departures = Departures(db, domain.supervisor, domain.engine, clock)
        ann = await new_person(db)
        await accounts.remove(ann.user_id)
        clock.now += SETTLED
        await departures.look()
        assert await departures_left(db) == 1

        engine.is_away = False
        await departures.look()

    assert forgotten(engine, ann.user_id)
    assert await departures_left(db) == 0


async def test_who_left_while_no_server_ran_is_forgotten_by_the_next(
    db: Database, accounts: Accounts, clock: Clock
):
    ann = await new_person(db)
    await accounts.remove(ann.user_id)
    clock.now += SETTLED

    engine = EchoEngine()
    async with (
        open_domain(db, engine) as domain,
        Departures(db, domain.supervisor, domain.engine, clock).running(),
        asyncio.timeout(30),
    ):
        while await departures_left(db):  # noqa: ASYNC110  another task's row has no event
            await asyncio.sleep(0)

    assert forgotten(engine, ann.user_id)


async def test_what_is_parked_of_a_conversation_that_is_no_more_is_forgotten_by_the_next_start(
    db: Database,
):
    """As a server leaves it that is killed between a deletion's commit and the word to the engine."""
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        kept, gone = [await domain.conversations.create(ann.user_id) for _ in range(2)]
        for one in (kept, gone):
            await domain.say(ann, one.id, "hello")
        await domain.conversations.delete(ann.user_id, gone.id)
    engine.leases.clear()

    strays = await forget_strays(db, engine)

    assert strays == 1
    assert engine.leases == [(session_of(ann.user_id, gone.id), Forget())]
    assert await forget_strays(db, engine) == 0


async def test_a_conversation_that_went_while_there_was_no_engine_is_forgotten_by_the_next_engine(
    db: Database, clock: Clock
):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        departures = Departures(db, domain.supervisor, domain.engine, clock)
        await departures.look_behind_a_start()
        ann = await new_person(db)
        gone = await domain.conversations.create(ann.user_id)
        await domain.say(ann, gone.id, "hello")
        await domain.conversations.delete(ann.user_id, gone.id)
        engine.leases.clear()

        await departures.look_behind_a_start()
        before = list(engine.leases)
        engine.card = msgspec.structs.replace(engine.card, boot_id="boot-2")
        await departures.look_behind_a_start()

    assert before == []
    assert engine.leases == [(session_of(ann.user_id, gone.id), Forget())]


async def test_who_is_shut_out_is_answered_no_more_and_keeps_what_there_is(
    db: Database, accounts: Accounts, clock: Clock
):
    engine = EchoEngine()
    engine.hold(after_beats=3)
    async with open_domain(db, engine) as domain:
        departures = Departures(db, domain.supervisor, domain.engine, clock)
        ann, ben = await new_person(db), await new_person(db)
        conversation = await domain.conversations.create(ann.user_id)
        theirs = (await domain.send(ann, conversation.id, "go on")).response
        other = await domain.respond(ben, "go on")
        for who, response in ((ann, theirs), (ben, other)):
            await domain.until(who, response, TextDelta, times=2)
        await departures.look()
        assert domain.supervisor.live_turns == 2

        await accounts.disable(ann.user_id)
        await departures.look()

        assert domain.supervisor.busy_users() == {ben.user_id}
        kept = await domain.supervisor.response(ann, theirs.id)
        engine.release()
        await domain.ended(ben, other)

    assert kept.view.status == "cancelled"
    assert len(kept.text) == 2
    assert not forgotten(engine, ann.user_id)


async def test_a_long_branch_goes_with_its_owner(db: Database, accounts: Accounts):
    """SQLite nests at most 1,000 actions, so none may follow a branch."""
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        conversation = await domain.conversations.create(ann.user_id)
        said = await domain.say(ann, conversation.id, "hello")
        async with db.begin() as session:
            leaf_id = said.response.message_id
            for _ in range(1_200):
                row = Message(
                    id=new_message_id(),
                    conversation_id=conversation.id,
                    parent_id=leaf_id,
                    role=Role.USER,
                    text="more",
                    token_ids=(),
                    created_at=utc_now(),
                )
                session.add(row)
                leaf_id = row.id

        await accounts.remove(ann.user_id)

    assert await rows(db) == {"library_items": 1}
