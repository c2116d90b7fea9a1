"""A server of the domain that is there to be killed: `python -m tests.kit.killed DATABASE_URL`.

It prints its user's id, then one line for every turn that was acknowledged, and never stops.
"""

import asyncio
import sys

import msgspec

from app.db.base import Database
from app.ids import ConversationId
from app.people.accounts import Principal
from tests.kit.domain import Domain, new_person, open_domain
from tests.kit.echo import EchoEngine

CONVERSATIONS = 4


class Acknowledged(msgspec.Struct, frozen=True, kw_only=True):
    """What the server said that it has."""

    conversation_id: ConversationId
    client_message_id: str
    text: str
    response_id: str


async def talk(domain: Domain, who: Principal) -> None:
    """Turn after turn in one conversation, each told as soon as it is acknowledged."""
    conversation = await domain.conversations.create(who.user_id)
    parent_id = None
    for number in range(1_000_000):
        text = f"message {number}"
        accepted = await domain.send(
            who, conversation.id, text, parent_id=parent_id, client_message_id=f"c{number}"
        )
        line = Acknowledged(
            conversation_id=conversation.id,
            client_message_id=f"c{number}",
            text=text,
            response_id=accepted.response.id,
        )
        print(msgspec.json.encode(line).decode(), flush=True)  # noqa: T201
        parent_id = (await domain.ended(who, accepted.response)).response.message_id


async def main(url: str) -> None:
    database = Database(url)
    async with open_domain(database, EchoEngine()) as domain, asyncio.TaskGroup() as tasks:
        who = await new_person(database)
        print(who.user_id, flush=True)  # noqa: T201
        for _ in range(CONVERSATIONS):
            tasks.create_task(talk(domain, who))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
