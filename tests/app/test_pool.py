"""What the database is spared: who waits holds no connection of it, and no token is written alone."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from advanced_alchemy.config import EngineConfig
from argon2 import PasswordHasher
from sqlalchemy import event

from app.db import base
from tests.kit.peers import Log, dialect_socket, engine_of, open_engine, program, somebody_at, until
from tests.kit.serving import serving
from tests.kit.staff import somebody as another_at
from tests.kit.tab import PASSWORD, Person

SOCKETS = 50
STREAMS = 20
AT_ONCE_S = 1.0


async def test_with_fifty_sockets_and_twenty_streams_a_pool_of_two_has_room_for_everybody(
    tmp_path: Path, database_url: str, told: Log, monkeypatch: pytest.MonkeyPatch
):
    """Two idle sockets, or two streams, once starved a pool of two."""
    two = functools.partial(EngineConfig, pool_size=2, max_overflow=0, pool_timeout=10)
    monkeypatch.setattr(base, "EngineConfig", two)
    with serving(tmp_path, open_engine, database_url=database_url) as server:
        pool: Any = server.service.db.engine.sync_engine.pool
        assert pool.size() == 2
        server.call(engine_of(server).hold, 4)
        async with (
            somebody_at(server) as somebody,
            another_at(server) as another,
            program(server) as client,
            contextlib.AsyncExitStack() as waiting,
        ):
            for _ in range(SOCKETS // 2):
                await waiting.enter_async_context(another.tab())
                await waiting.enter_async_context(dialect_socket(server))
            conversation_ids = [await somebody.conversation() for _ in range(STREAMS // 2)]
            for conversation_id in conversation_ids:
                await waiting.enter_async_context(pages_stream(somebody, conversation_id))
                await waiting.enter_async_context(dialects_stream(client))
            await until(server, lambda: pool.checkedout() == 0)
            page, api = f"{server.site.url}/api/conversations", f"{server.url}/models"
            served = await asyncio.gather(
                *(somebody.client.get(page) for _ in range(5)), *(client.get(api) for _ in range(5))
            )
            server.service.accounts.passwords._hasher = PasswordHasher()  # at its full cost
            login = {"email": somebody.email, "password": PASSWORD}
            healthy = await in_time(lambda: somebody.client.get("/health/ready"))
            signed_in = await in_time(lambda: somebody.client.post("/api/login", json=login))
            left_early = told.answered("/v1/responses")
            await waiting.aclose()
            await until(server, lambda: server.service.gate.open_sockets == 0)
        server.call(engine_of(server).release)
        await until(server, lambda: server.service.supervisor.live_turns == 0)
        await until(server, lambda: pool.checkedout() == 0)

    assert [answer.status_code for answer in served] == [200] * 10
    assert (healthy, signed_in) == (200, 200)
    assert left_early == 0, "all sockets and streams were open meanwhile"
    assert not told.complaints


async def in_time(ask: Callable[[], Awaitable[httpx.Response]]) -> int:
    """The status of an answer within a second; a busy machine is asked again.

    Who waits for a connection that is never given back waits for longer than all of it.
    """
    for _ in range(30):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(AT_ONCE_S):
                return (await ask()).status_code
    raise AssertionError("not within a second")


@contextlib.asynccontextmanager
async def pages_stream(somebody: Person, conversation_id: str) -> AsyncIterator[None]:
    turn = {"client_message_id": "m", "parent_id": None, "text": "Go on"}
    made = await somebody.client.post(f"/api/conversations/{conversation_id}/turns", json=turn)
    path = f"/api/responses/{made.json()['response']['id']}/events"
    async with somebody.client.stream("GET", path) as stream, begun(stream):
        yield


@contextlib.asynccontextmanager
async def dialects_stream(client: httpx.AsyncClient) -> AsyncIterator[None]:
    asked = {"input": "Go on", "stream": True}
    async with client.stream("POST", "/responses", json=asked) as stream, begun(stream):
        yield


@contextlib.asynccontextmanager
async def begun(stream: httpx.Response) -> AsyncIterator[None]:
    """Hold the lines: the stream is closed with whoever reads them."""
    lines = stream.aiter_lines()
    await anext(lines)
    yield


# ---------------------------------------------------------------- 7: written by the clock


async def test_an_answer_is_written_by_the_clock_and_not_by_the_token(
    tmp_path: Path, database_url: str, told: Log
):
    tokens = 2_000
    commits = 0

    def count(_: object) -> None:
        nonlocal commits
        commits += 1

    with serving(tmp_path, open_engine, database_url=database_url) as server:
        event.listen(server.service.db.engine.sync_engine, "commit", count)
        async with program(server) as client:
            asked = {"input": "Go on", "max_output_tokens": tokens}
            answer = await client.post("/responses", json=asked)

    assert answer.json()["usage"]["output_tokens"] == tokens
    assert commits < tokens / 20
    assert not told.complaints
