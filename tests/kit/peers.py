"""Peers of a server that runs in this process: programs and pages, and what its log says of them."""

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import msgspec
import pytest
from structlog.typing import EventDict
from websockets.asyncio.client import ClientConnection, connect

from app.errors import Conflict
from engine.api import Engine
from tests.kit.echo import EchoEngine, with_calls
from tests.kit.serving import Serving
from tests.kit.tab import PASSWORD, SOON, Person, browser

ROOMY = msgspec.structs.replace(with_calls(), context_tokens=100_000, pool_blocks=10_000)
"""For answers that fill every buffer between the engine and a peer that does not read."""


async def open_engine() -> Engine:
    return EchoEngine(ROOMY)


class Log:
    """What a server logged, its own lines and those of its libraries."""

    def __init__(self, entries: list[EventDict], caplog: pytest.LogCaptureFixture) -> None:
        self._entries = entries
        self._caplog = caplog

    def answered(self, path: str) -> int:
        """How many requests to this path are over, whichever way."""
        return sum(one["event"] == "answered" and one["path"] == path for one in self._entries)

    @property
    def complaints(self) -> list[Any]:
        ours = [one for one in self._entries if one["log_level"] in ("warning", "error")]
        return ours + [one for one in self._caplog.records if one.levelno >= logging.WARNING]


def engine_of(server: Serving) -> EchoEngine:
    engine = server.service.engine
    assert isinstance(engine, EchoEngine)
    return engine


async def until(server: Serving, holds: Callable[[], bool]) -> None:
    """While this test's own sockets go on living."""
    await asyncio.to_thread(server.until, holds)


@contextlib.asynccontextmanager
async def somebody_at(server: Serving) -> AsyncIterator[Person]:
    email = "somebody@example.org"
    with contextlib.suppress(Conflict):
        server.do(server.service.accounts.create_user(email, "Somebody", PASSWORD))
    async with browser(server.site, email) as somebody:
        yield somebody


def program(server: Serving) -> httpx.AsyncClient:
    key = {"authorization": f"Bearer {server.key}"}
    return httpx.AsyncClient(base_url=server.url, headers=key, timeout=60, limits=SOON)


@contextlib.asynccontextmanager
async def dialect_socket(server: Serving, **options: Any) -> AsyncIterator[ClientConnection]:
    key = {"Authorization": f"Bearer {server.key}"}
    address = f"{server.site.ws_url}/v1/responses"
    async with connect(address, additional_headers=key, open_timeout=60, **options) as opened:
        yield opened


def narrow(server: Serving) -> socket.socket:
    """A connection with small buffers, so that a peer that stops reading is felt at once."""
    small = socket.socket()
    small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    small.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
    small.connect(("127.0.0.1", int(server.site.url.rpartition(":")[2])))
    small.setblocking(False)
    return small


def create(**asked: Any) -> str:
    return json.dumps({"type": "response.create", "input": "Go on", **asked})
