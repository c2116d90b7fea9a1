"""A domain whose power goes: `python -m tests.kit.powercut DATABASE_URL`, on the disk of `powercut.c`.

It prints what it acknowledged, writes what it promised nobody, and is gone.
"""

import asyncio
import os
import sys

import msgspec
from sqlalchemy import update

from app.db.base import Database
from app.db.models import User
from app.db.revisions import migrate
from app.ids import ResponseId, UserId
from tests.kit.domain import new_person, open_domain
from tests.kit.echo import EchoEngine

LOST = "lost"


class Acknowledged(msgspec.Struct, frozen=True, kw_only=True):
    """One turn that was told to have ended with `text`, and one that was told to be stored."""

    user_id: UserId
    ended_id: ResponseId
    text: str
    stored_id: ResponseId


async def main(url: str) -> None:
    await migrate(url)
    db, engine = Database(url), EchoEngine()
    async with open_domain(db, engine) as domain:
        who = await new_person(db)
        conversation = await domain.conversations.create(who.user_id)
        first = await domain.send(who, conversation.id, "one")
        ended = await domain.ended(who, first.response)
        text = (await domain.supervisor.response(who, first.response.id)).text
        engine.hold()
        leaf_id = ended.response.message_id
        second = await domain.send(who, conversation.id, "two", parent_id=leaf_id)
        async with db.jot() as session:
            await session.execute(update(User).values(name=LOST))
        told = Acknowledged(
            user_id=who.user_id,
            ended_id=first.response.id,
            text=text,
            stored_id=second.response.id,
        )
        print(msgspec.json.encode(told).decode(), flush=True)  # noqa: T201
        os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
