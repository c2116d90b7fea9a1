"""People at a real server: an account of their own, a signed-in browser, and its tabs.

A `Tab` is one browser socket; what it hears is decoded into the frames of `app.frames`.
"""

import contextlib
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import httpx
import msgspec
from websockets.asyncio.client import ClientConnection, connect

from app.db.base import Database
from app.db.types import AccountRole
from app.events import LogEvent, ResponseEnded, TextDelta
from app.frames import (
    PROTOCOL,
    Cursor,
    Event,
    Hello,
    Inward,
    OutwardFrame,
    ResponseCancel,
    Snapshot,
    Subscribe,
    Subscribed,
    TurnAccepted,
    TurnCreate,
    Welcome,
)
from app.ids import ConversationId, MessageId, ResponseId, new_user_id
from app.people.accounts import Accounts
from tests.kit.people import quick_passwords
from tests.kit.server import Server

PASSWORD = "a quiet word"
SOON = httpx.Limits(keepalive_expiry=2.0)
"""An idle connection is left before the server leaves it, which it does after five seconds."""
LONG = "Write a very long story, with many chapters, about a lighthouse and the sea."
"""Asks for an answer that is still on its way when a test acts."""

F = TypeVar("F")
_names = itertools.count(1)
_decode = msgspec.json.Decoder(OutwardFrame).decode


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server's page is."""

    url: str
    ws_url: str


class Place(Site, frozen=True, kw_only=True):
    """With what opens it: for tests that do not ask whether the server is a process of its own."""

    api_key: str
    database_url: str

    async def get(self, path: str, **headers: str) -> httpx.Response:
        """As somebody without cookies."""
        async with httpx.AsyncClient(base_url=self.url, timeout=60) as client:
            return await client.get(path, headers=headers)


class Person:
    """An account and its signed-in browser."""

    def __init__(self, server: Server | Site, email: str, client: httpx.AsyncClient) -> None:
        self.server = server
        self.email = email
        self.client = client

    @property
    def cookie(self) -> str:
        return "; ".join(f"{name}={value}" for name, value in self.client.cookies.items())

    async def conversation(self) -> ConversationId:
        made = await self.client.post("/api/conversations", json={})
        return ConversationId(made.raise_for_status().json()["id"])

    @contextlib.asynccontextmanager
    async def tab(self) -> AsyncIterator["Tab"]:
        """A socket that has been greeted.

        What comes and is not read is kept: a full queue would keep its close waiting for seconds.
        """
        async with self.socket(max_queue=None) as socket:
            tab = Tab(socket)
            await tab.send(Hello(protocol=PROTOCOL))
            tab.epoch = (await tab.expect(Welcome)).epoch
            yield tab

    @contextlib.asynccontextmanager
    async def socket(self, **options: object) -> AsyncIterator[ClientConnection]:
        """The bare socket, with this browser's cookies and the page's origin."""
        address = f"{self.server.ws_url}/ws"
        headers = {"Cookie": self.cookie}
        async with connect(
            address,
            additional_headers=headers,
            origin=self.server.url,  # type: ignore[arg-type]  # websockets' own NewType of str
            open_timeout=60,
            **options,  # type: ignore[arg-type]
        ) as socket:
            yield socket


class Tab:
    """One open tab."""

    epoch: str

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self._requests = itertools.count(1)
        self._early: deque[OutwardFrame] = deque()

    async def send(self, frame: Inward) -> None:
        await self.socket.send(msgspec.json.encode(frame).decode())

    async def receive(self) -> OutwardFrame:
        return self._early.popleft() if self._early else await self.next_frame()

    async def next_frame(self) -> OutwardFrame:
        frame: OutwardFrame = _decode(await self.socket.recv())
        return frame

    async def expect(self, kind: type[F], accept: Callable[[F], bool] = lambda _: True) -> F:
        """The next frame of this kind that is accepted; others are passed over."""
        while True:
            frame = await self.receive()
            if isinstance(frame, kind) and accept(frame):
                return frame

    async def subscribe(self, conversation_id: ConversationId, *cursors: Cursor) -> Subscribed:
        await self.send(
            Subscribe(request_id=self.name(), conversation_id=conversation_id, cursors=cursors)
        )
        return await self.expect(Subscribed)

    async def say(
        self,
        conversation_id: ConversationId,
        text: str,
        parent_id: MessageId | None = None,
        client_message_id: str | None = None,
    ) -> TurnAccepted:
        """Send a turn and wait until it is acknowledged; what was heard before that is kept.

        The first events of its answer may overtake the acknowledgement.
        """
        await self.send(
            TurnCreate(
                request_id=self.name(),
                conversation_id=conversation_id,
                client_message_id=client_message_id or f"m{next(_names)}",
                parent_id=parent_id,
                text=text,
            )
        )
        early: list[OutwardFrame] = []
        while not isinstance(frame := await self.receive(), TurnAccepted):
            early.append(frame)
        self._early.extend(early)
        return frame

    async def cancel(self, response_id: ResponseId) -> None:
        await self.send(ResponseCancel(request_id=self.name(), response_id=response_id))

    async def event(self, response_id: ResponseId, kind: type[F]) -> F:
        """The next event of this kind in a response's log."""
        while True:
            frame = await self.expect(Event, lambda frame: frame.response_id == response_id)
            if isinstance(frame.event, kind):
                return frame.event

    async def taste(self, response_id: ResponseId) -> ResponseEnded:
        """Stop an answer at its first words, however long it would be; its end."""
        await self.event(response_id, TextDelta)
        await self.cancel(response_id)
        return await self.event(response_id, ResponseEnded)

    async def story(self, response_id: ResponseId) -> "Story":
        """Everything that is heard of a response, up to its end."""
        story = Story()
        while not story.ended:
            frame = await self.receive()
            if isinstance(frame, Event) and frame.response_id == response_id:
                story.events.append(frame.event)
            elif isinstance(frame, Snapshot) and frame.response.id == response_id:
                story.events.clear()
                story.snapshot = frame
        return story

    def name(self) -> str:
        return f"r{next(self._requests)}"


class Story:
    """What one tab heard of one response: perhaps a snapshot, then events."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self.events: list[LogEvent] = []

    @property
    def ended(self) -> bool:
        if self.events:
            return isinstance(self.events[-1], ResponseEnded)
        return self.snapshot is not None and self.snapshot.response.status.ended

    @property
    def text(self) -> str:
        known = self.snapshot.text if self.snapshot else ""
        return known + "".join(e.delta for e in self.events if isinstance(e, TextDelta))

    @property
    def numbers(self) -> list[int]:
        return [event.sequence_number for event in self.events]


@contextlib.asynccontextmanager
async def person(
    server: Server | Place, role: AccountRole = AccountRole.MEMBER
) -> AsyncIterator[Person]:
    """Somebody new, signed in."""
    email = f"{new_user_id()}@example.org"
    async with accounts(server) as found:
        await found.create_user(email, "Somebody", PASSWORD, role)
    async with browser(server, email) as somebody:
        yield somebody


@contextlib.asynccontextmanager
async def browser(server: Server | Site, email: str) -> AsyncIterator[Person]:
    """The signed-in browser of whoever has this address."""
    async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=SOON) as client:
        await client.get("/api/account")
        client.headers["x-csrf-token"] = client.cookies["kw_csrf"]
        await sign_in(client, email)
        yield Person(server, email, client)


async def sign_in(client: httpx.AsyncClient, email: str) -> None:
    answer = await client.post("/api/login", json={"email": email, "password": PASSWORD})
    answer.raise_for_status()
    client.headers["x-csrf-token"] = client.cookies["kw_csrf"]


@contextlib.asynccontextmanager
async def accounts(server: Server | Place) -> AsyncIterator[Accounts]:
    """The server's accounts, reached from another process as `keepwarm admin` reaches them."""
    async with contextlib.aclosing(Database(server.database_url)) as db:
        yield Accounts(db, passwords=quick_passwords())
