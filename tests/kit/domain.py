"""The domain without a web server: a supervisor on a real database, and people who use it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
from sqlalchemy import select

from app.chat.conversations import Conversations
from app.chat.entry import TurnRequest
from app.chat.eventlog import EventLogs
from app.chat.hub import Hub
from app.chat.ledger import Acceptance, Act, Node
from app.chat.library import Library
from app.chat.rows import node
from app.chat.supervisor import Supervisor
from app.chat.tree import path
from app.chat.warming import Warming
from app.db.base import Database
from app.db.models import Conversation as ConversationRow
from app.db.models import Message as MessageRow
from app.db.models import User
from app.db.types import AccountRole, Origin, utc_now
from app.events import LogEvent, ResponseEnded, ResponseView
from app.ids import ConversationId, LoginId, MessageId, ResponseId, new_login_id, new_user_id
from app.people.accounts import Principal
from app.people.quotas import Quotas
from app.people.usage import Usage
from engine.api import Engine, Limits, Message, Role, Sampling

GREEDY = Sampling(temperature=0.0)
POLL_S = 0.005
"""Between two looks at what has no event: an engine in this process needs the core meanwhile."""


async def new_person(db: Database, role: AccountRole = AccountRole.MEMBER) -> Principal:
    """Somebody with an account of their own; `{user_id}@example.org` is the address."""
    user_id = new_user_id()
    async with db.begin() as session:
        session.add(
            User(
                id=user_id,
                email=f"{user_id}@example.org",
                name="Somebody",
                password_hash="",
                role=role,
                created_at=utc_now(),
                disabled_at=None,
            )
        )
    return Principal(
        user_id=user_id,
        role=role,
        via="login",
        credential_id=LoginId(new_login_id()),
    )


def said(text: str) -> tuple[Message, ...]:
    """One user's message."""
    return (Message(role=Role.USER, text=text),)


class Domain:
    """A supervisor with its hub and logs, and shorthands for what people do."""

    def __init__(self, db: Database, engine: Engine, *, titles: bool = False) -> None:
        self.db = db
        self.engine = engine
        self.hub = Hub()
        self.logs = EventLogs()
        self.quotas = Quotas(db)
        self.usage = Usage(db, self.quotas)
        self.conversations = Conversations(db, self.hub, self.usage)
        self.library = Library(db, self.usage)
        self.supervisor = Supervisor(
            db, engine, self.logs, self.hub, usage=self.usage, titles=titles
        )
        self.warming = Warming(db, engine, self.library, self.supervisor.heads)

    async def send(
        self,
        who: Principal,
        conversation_id: ConversationId,
        text: str,
        *,
        parent_id: MessageId | None = None,
        client_message_id: str | None = None,
        max_tokens: int | None = None,
    ) -> Acceptance:
        """The browser's way: what the user saw is checked."""
        request = TurnRequest(
            conversation_id=conversation_id,
            message_id=parent_id,
            check_leaf=True,
            seen_leaf_id=parent_id,
            client_message_id=client_message_id,
            messages=said(text),
            sampling=GREEDY,
            limits=Limits(max_output_tokens=max_tokens),
        )
        return await self.supervisor.create(who, request)

    async def act(
        self,
        who: Principal,
        act: Act,
        message: ResponseView | MessageId,
        *,
        text: str | None = None,
        max_tokens: int | None = None,
        client_message_id: str | None = None,
    ) -> Acceptance:
        """Edit, regenerate or continue, seeing the leaf that the conversation has."""
        message_id = message if isinstance(message, str) else message.message_id
        async with self.db.read() as session:
            row = await session.get_one(MessageRow, message_id)
            conversation = await session.get_one(ConversationRow, row.conversation_id)
        request = TurnRequest(
            conversation_id=conversation.id,
            act=act,
            message_id=message_id,
            check_leaf=True,
            seen_leaf_id=conversation.leaf_id,
            client_message_id=client_message_id,
            messages=() if text is None else said(text),
            sampling=GREEDY,
            limits=Limits(max_output_tokens=max_tokens),
        )
        return await self.supervisor.create(who, request)

    async def respond(
        self,
        who: Principal,
        text: str,
        previous: ResponseView | ResponseId | None = None,
        **changes: object,
    ) -> ResponseView:
        """The dialect's way."""
        request = TurnRequest(
            previous_response_id=previous.id if isinstance(previous, ResponseView) else previous,
            messages=said(text),
            sampling=GREEDY,
            origin=Origin.API,
        )
        request = msgspec.structs.replace(request, **changes)
        return (await self.supervisor.create(who, request)).response

    async def events(
        self, who: Principal, response: ResponseView, after: int = -1
    ) -> list[LogEvent]:
        """Everything after a cursor, to the end."""
        log = await self.supervisor.log(who, response.id, after)
        return [event async for event in log.subscribe(after)]

    async def until(
        self, who: Principal, response: ResponseView, kind: type[LogEvent], times: int = 1
    ) -> None:
        """Wait for the log to have so many events of a kind."""
        log = await self.supervisor.log(who, response.id)
        async with contextlib.aclosing(log.subscribe()) as events:
            async for event in events:
                times -= isinstance(event, kind)
                if not times:
                    return

    async def ended(self, who: Principal, response: ResponseView) -> ResponseEnded:
        """How it ended, once it has."""
        last = (await self.events(who, response))[-1]
        assert isinstance(last, ResponseEnded)
        return last

    async def say(
        self, who: Principal, conversation_id: ConversationId, text: str, **more: object
    ) -> ResponseEnded:
        """A whole turn at the conversation's leaf."""
        leaf_id = (await self.conversations.get(who.user_id, conversation_id)).leaf_id
        accepted = await self.send(who, conversation_id, text, parent_id=leaf_id, **more)  # type: ignore[arg-type]
        return await self.ended(who, accepted.response)

    async def titled(self) -> None:
        """Wait until no conversation's title is being asked for."""
        while self.supervisor.titles.asking:  # noqa: ASYNC110  what is waited for has no event
            await asyncio.sleep(POLL_S)

    async def nodes(self, leaf_id: MessageId) -> list[Node]:
        """The stored path to a message."""
        async with self.db.read() as session:
            leaf = await session.get_one(MessageRow, leaf_id)
            rows = await session.scalars(
                select(MessageRow).where(MessageRow.conversation_id == leaf.conversation_id)
            )
            return path([node(row) for row in rows], leaf_id)


@contextlib.asynccontextmanager
async def open_domain(
    db: Database, engine: Engine, *, titles: bool = False
) -> AsyncIterator[Domain]:
    """A domain that runs until the block ends; what is live then is cut off."""
    domain = Domain(db, engine, titles=titles)
    await domain.library.ensure_default()
    async with domain.supervisor.running():
        yield domain
