"""The ledger in the database, where two transactions meet."""

import asyncio

import pytest
from sqlalchemy.orm import Session

from app.chat import stored
from app.chat.ledger import Entry
from app.db.base import Database
from app.db.models import Conversation
from app.errors import NotFound
from app.events import ResponseStatus
from tests.kit.db import Pause, waiting
from tests.kit.domain import new_person, open_domain
from tests.kit.echo import EchoEngine


async def test_17_deleting_a_response_never_takes_a_turn_that_is_being_accepted(
    db: Database, monkeypatch: pytest.MonkeyPatch
):
    """The last response of a conversation takes it along; this one is the last no more."""
    add_turn, added = stored._add_turn, Pause(db)

    def add_slowly(session: Session, conversation: Conversation, entry: Entry) -> None:
        add_turn(session, conversation, entry)
        added.here()

    async with open_domain(db, EchoEngine()) as domain, asyncio.TaskGroup() as tasks:
        ann = await new_person(db)
        first = await domain.respond(ann, "one")
        await domain.ended(ann, first)
        monkeypatch.setattr(stored, "_add_turn", add_slowly)
        following = tasks.create_task(domain.respond(ann, "two", first))
        await added.reached.wait()
        deleting = tasks.create_task(domain.supervisor.delete_response(ann, first.id))
        await waiting(db)
        added.go_on.set()
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
