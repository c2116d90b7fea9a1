"""Who comes to a house that is full, and with how many pages and conversations."""

import asyncio
import contextlib
import functools
import itertools
import random
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.chaos.floods import FLOODS, be_deaf, sip
from tests.chaos.gauges import Tally
from tests.chaos.pages import Session, Speaker
from tests.kit.server import Server
from tests.kit.tab import Person, person

STREAMS_PER_USER = 4
PAGES_PER_USER = 8
SESSIONS_PER_STREAM = 2
GREED = 60
"""Answers that one page of the greedy user wants at once."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """How full the house is; `slow`, `greedy` and `floods` (of each kind) are pages."""

    seconds: float = 600.0
    sockets: int = 500
    streams: int = 64
    slow: int = 50
    greedy: int = 2
    floods: int = 2
    times: float = 10.0
    """What all sessions hold that is their own, by what the pool does."""
    pool_mib: int = 96
    """Enough for as many as run at once (`engine.config`), and little more."""

    @property
    def lookers(self) -> int:
        return self.sockets - self.streams - self.slow - self.greedy - self.floods * len(FLOODS)

    @property
    def sessions(self) -> int:
        """That are shown by who reads, and is no flood."""
        return self.streams * SESSIONS_PER_STREAM + self.greedy * GREED + self.lookers


@dataclass
class Crowd:
    """Everybody, by what they do."""

    speakers: list[Speaker] = field(default_factory=list)
    """Who always want more; the greedy one's pages too."""
    lookers: list[Speaker] = field(default_factory=list)
    others: list[Callable[[asyncio.Event], Coroutine[Any, Any, None]]] = field(default_factory=list)
    """Who do not read, and floods."""
    sessions: list[Session] = field(default_factory=list)
    users: list[str] = field(default_factory=list)
    """Who always want as much as each other."""
    greedy: str = ""


class Gathering:
    """Makes the people of a crowd, with their conversations."""

    def __init__(self, stack: contextlib.AsyncExitStack, server: Server, tally: Tally) -> None:
        self._stack = stack
        self._server = server
        self._tally = tally

    async def all(self, shape: Shape, seed: int) -> Crowd:
        crowd, number = Crowd(), itertools.count()
        draw = random.Random(seed)  # noqa: S311

        def speaker(owner: Person, sessions: list[Session], **how: Any) -> Speaker:
            crowd.sessions += sessions
            own = random.Random(f"{seed} {next(number)}")  # noqa: S311
            return Speaker(owner, sessions, self._tally, own, **how)

        watched: list[tuple[Person, list[Session]]] = []
        for streams in _shared(shape.streams, STREAMS_PER_USER):
            owner = await self._person()
            crowd.users.append(owner.email)
            for sessions in await self._pages(owner, streams, SESSIONS_PER_STREAM):
                crowd.speakers.append(speaker(owner, sessions))
                watched.append((owner, sessions))
        owner = await self._person()
        crowd.greedy = owner.email
        for sessions in await self._pages(owner, shape.greedy, GREED):
            crowd.speakers.append(speaker(owner, sessions, at_once=GREED, rude=True))
        for pages in _shared(shape.lookers, PAGES_PER_USER):
            owner = await self._person()
            for sessions in await self._pages(owner, pages, 1):
                crowd.lookers.append(speaker(owner, sessions))
        for at in range(shape.slow):
            owner, sessions = draw.choice(watched)
            life = be_deaf if at % 2 else sip
            crowd.others.append(functools.partial(life, owner, sessions, self._tally))
        for flood in FLOODS:
            owner = await self._person()
            (sessions,) = await self._pages(owner, 1, 1)
            for _ in range(shape.floods):
                crowd.others.append(functools.partial(flood, owner, sessions, self._tally))
        return crowd

    async def _person(self) -> Person:
        return await self._stack.enter_async_context(person(self._server))

    async def _pages(self, owner: Person, pages: int, each: int) -> list[list[Session]]:
        """So many pages, each with sessions of its own."""
        made = await asyncio.gather(*(owner.conversation() for _ in range(pages * each)))
        sessions = [Session(conversation_id) for conversation_id in made]
        return [sessions[page * each : (page + 1) * each] for page in range(pages)]


def _shared(total: int, each: int) -> Iterator[int]:
    """In parts of at most so many."""
    for begun in range(0, total, each):
        yield min(each, total - begun)
