"""The ledger in the database, where two transactions meet."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session
from sqlalchemy.util import await_only

from app.chat import stored
from app.chat.ledger import Entry
from app.db.base import Database
from app.db.models import Conversation
from app.errors import NotFound
from app.events import ResponseStatus
from tests.kit.domain import new_person, open_domain
from tests.kit.echo import EchoEngine


async def one_waits_for_another(db: Database) -> None:
    """Returns when a transaction waits for another one's lock."""
    while not db.is_sqlite:
        async with db.read() as session:
            if await session.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")):
                return
    writer: Any = db._writer  # SQLite's writers queue in this process
    while db.is_sqlite and not writer._waiters:  # noqa: ASYNC110  what is waited for has no event
        await asyncio.sleep(0)


async def test_17_deleting_a_response_never_takes_a_turn_that_is_being_accepted(
    db: Database, monkeypatch: pytest.MonkeyPatch
):
    """The last response of a conversation takes it along; this one is the last no more."""
    add_turn, added, go_on = stored._add_turn, asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def add_slowly(session: Session, conversation: Conversation, entry: Entry) -> None:
        add_turn(session, conversation, entry)
        loop.call_soon_threadsafe(added.set)
        if db.is_sqlite:
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()
        else:
            await_only(go_on.wait())

    async with open_domain(db, EchoEngine()) as domain, asyncio.TaskGroup() as tasks:
        ann = await new_person(db)
        first = await domain.respond(ann, "one")
        await domain.ended(ann, first)
        monkeypatch.setattr(stored, "_add_turn", add_slowly)
        following = tasks.create_task(domain.respond(ann, "two", first))
        await added.wait()
        deleting = tasks.create_task(domain.supervisor.delete_response(ann, first.id))
        await one_waits_for_another(db)
        go_on.set()
        second = await following
        await deleting
        await domain.ended(ann, second)
        found = await domain.supervisor.response(ann, second.id)

    assert found.view.status is ResponseStatus.COMPLETED
    assert found.text


async def test_a_response_that_two_delete_is_deleted_once(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        response = await domain.respond(ann, "one")
        await domain.ended(ann, response)
        deletions = (domain.supervisor.delete_response(ann, response.id) for _ in range(4))
        results = await asyncio.gather(*deletions, return_exceptions=True)

    assert results.count(None) == 1
    assert sum(isinstance(result, NotFound) for result in results) == 3
