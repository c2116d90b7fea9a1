"""The pages of a load that do harm: those that do not read what they asked for, and floods.

What they are refused with is to be documented as well.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import httpx
from websockets.exceptions import ConnectionClosed, InvalidStatus

from app.frames import PROTOCOL, Draft, ErrorFrame, Hello, Subscribe
from app.routes.watches import MOST_SUBSCRIPTIONS
from benchmarks.texts import text
from tests.chaos.gauges import Tally
from tests.chaos.pages import GONE, Session, opened, pause
from tests.kit.tab import Person, Tab

FLOOD_ADDRESS = "127.0.0.2"
"""Floods of handshakes come from an address of their own, as those of strangers do."""
FLOOD_S = 0.5
SIP_S = 0.5
DRAFT_S = 0.02
DRAFT_WORDS = 200
DEAF_S = 45.0
DEAF_BYTES = 4096


# ---------------------------------------------------------------- who does not read


async def be_deaf(
    person: Person, sessions: list[Session], tally: Tally, ending: asyncio.Event
) -> None:
    """Watch, and take no byte of what comes."""
    while not ending.is_set():
        with contextlib.suppress(*GONE):
            small = socket.socket()
            small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, DEAF_BYTES)
            small.setblocking(False)
            place = urlsplit(person.server.url)
            address = (place.hostname, place.port)
            await asyncio.get_running_loop().sock_connect(small, address)
            async with person.socket(sock=small) as deaf:
                await _watch_all(Tab(deaf), sessions)
                deaf.transport.pause_reading()
                tally.counts["deaf pages"] += 1
                await pause(DEAF_S, ending)
                deaf.transport.abort()


async def sip(person: Person, sessions: list[Session], tally: Tally, ending: asyncio.Event) -> None:
    """Watch, and read a frame now and then."""
    while not ending.is_set():
        with contextlib.suppress(*GONE):
            async with person.socket(max_queue=1) as slow:
                await _watch_all(Tab(slow), sessions)
                tally.counts["slow pages"] += 1
                while not ending.is_set():
                    await Tab(slow).next_frame()
                    await pause(SIP_S, ending)
                slow.transport.abort()


async def _watch_all(tab: Tab, sessions: list[Session]) -> None:
    await tab.send(Hello(protocol=PROTOCOL))
    for session in sessions[:MOST_SUBSCRIPTIONS]:
        conversation_id = session.conversation_id
        await tab.send(Subscribe(request_id=tab.name(), conversation_id=conversation_id))


# ---------------------------------------------------------------- floods


@contextlib.asynccontextmanager
async def _read(tab: Tab, tally: Tally) -> AsyncIterator[None]:
    """A browser reads whatever its page does: else it would answer no ping, and count as gone."""

    async def read() -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                frame = await tab.receive()
                if isinstance(frame, ErrorFrame):
                    tally.told(frame.error.code, f"an error frame: {frame.error}")

    reading = asyncio.create_task(read())
    try:
        yield
        await tab.socket.close()
    finally:
        await asyncio.wait((reading,), timeout=FLOOD_S)
        reading.cancel()


async def flood_frames(
    person: Person, sessions: list[Session], tally: Tally, ending: asyncio.Event
) -> None:
    """As many frames as a socket takes, until it is closed."""
    while not ending.is_set():
        with contextlib.suppress(*GONE):
            async with opened(person, tally) as tab, _read(tab, tally):
                while not ending.is_set():
                    await _watch_all(tab, sessions)
        await pause(FLOOD_S, ending)


async def flood_drafts(
    person: Person, sessions: list[Session], tally: Tally, ending: asyncio.Event
) -> None:
    """Unsent text that is another one all the time."""
    while not ending.is_set():
        with contextlib.suppress(*GONE):
            async with opened(person, tally) as tab, _read(tab, tally):
                await _watch_all(tab, sessions)
                number = 0
                while not ending.is_set():
                    number += 1
                    words = text(f"{person.email} {number}", DRAFT_WORDS)
                    conversation_id = sessions[0].conversation_id
                    await tab.send(
                        Draft(
                            conversation_id=conversation_id,
                            parent_id=sessions[0].leaf,
                            text=words,
                        )
                    )
                    tally.counts["drafts of floods"] += 1
                    await pause(DRAFT_S, ending)


async def flood_handshakes(
    person: Person, _: list[Session], tally: Tally, ending: asyncio.Event
) -> None:
    """Sockets that are opened and left."""
    while not ending.is_set():
        try:
            async with person.socket(local_addr=(FLOOD_ADDRESS, 0)) as idle:
                tally.counts["handshakes of floods"] += 1
                idle.transport.abort()
        except InvalidStatus as refusal:
            tally.refused(refusal.response.status_code, refusal.response.body)
            await pause(FLOOD_S, ending)
        except GONE:
            pass


async def flood_strangers(
    person: Person, _: list[Session], tally: Tally, ending: asyncio.Event
) -> None:
    """Requests of somebody whom nobody let in."""
    async with httpx.AsyncClient(base_url=person.server.url, timeout=60) as client:
        while not ending.is_set():
            for path in ("/api/conversations", "/v1/models", "/api/nothing"):
                with contextlib.suppress(*GONE):
                    answer = await client.get(path)
                    tally.refused(answer.status_code, answer.content)
                    tally.counts["requests of strangers"] += 1
            await pause(DRAFT_S, ending)


FLOODS = (flood_frames, flood_drafts, flood_handshakes, flood_strangers)
