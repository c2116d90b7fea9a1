"""What the database is spared: who waits holds no connection of it, and no token is written alone."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest
from advanced_alchemy.config import EngineConfig
from argon2 import PasswordHasher
from sqlalchemy import event

from app.db import base
from app.routes import health
from tests.kit.peers import Log, dialect_socket, engine_of, open_engine, program, somebody_at, until
from tests.kit.serving import serving
from tests.kit.staff import somebody as another_at
from tests.kit.tab import PASSWORD, Person

SOCKETS = 50
STREAMS = 20
AT_ONCE_S = 1.0
A_SECOND = 300
"""Probes that the server answers one after another in a second, where nothing else takes the machine's
time; where something does, it takes as much longer for all of it."""


async def test_with_fifty_sockets_and_twenty_streams_a_pool_of_two_has_room_for_everybody(
    tmp_path: Path, database_url: str, told: Log, monkeypatch: pytest.MonkeyPatch
):
    """Two idle sockets, or two streams, once starved a pool of two.

    Nobody may have to wait a second for a connection, and each is asked once. How busy the machine is
    counts neither in that wait nor among the probes that are answered meanwhile.
    """
    two = functools.partial(EngineConfig, pool_size=2, max_overflow=0, pool_timeout=10)
    monkeypatch.setattr(base, "EngineConfig", two)
    monkeypatch.setattr(base, "_AT_ONCE", 2)  # SQLite's threads have a connection each
    monkeypatch.setattr(health, "ANSWER_S", 60.0)
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
            paths = ["/ws", "/v1/responses"]
            for _ in range(STREAMS // 2):
                paths.append(await waiting.enter_async_context(pages_stream(somebody)))
                await waiting.enter_async_context(dialects_stream(client))
            await until(server, lambda: pool.checkedout() == 0)
            page, api = f"{server.site.url}/api/conversations", f"{server.url}/models"
            served = await asyncio.gather(
                *(somebody.client.get(page) for _ in range(5)), *(client.get(api) for _ in range(5))
            )
            server.service.accounts.passwords._hasher = PasswordHasher()  # at its full cost
            login = {"email": somebody.email, "password": PASSWORD}
            await until(server, lambda: pool.checkedout() == 0)
            monkeypatch.setattr(pool, "_timeout", AT_ONCE_S)
            answers = [
                await among_probes(another.client, one)
                for one in (
                    somebody.client.get("/health/ready"),
                    somebody.client.post("/api/login", json=login),
                )
            ]
            still_open = server.service.gate.open_sockets, server.service.supervisor.live_turns
            left_early = sum(map(told.answered, paths))
            await waiting.aclose()
            await until(server, lambda: server.service.gate.open_sockets == 0)
        server.call(engine_of(server).release)
        await until(server, lambda: server.service.supervisor.live_turns == 0)
        await until(server, lambda: pool.checkedout() == 0)

    assert [answer.status_code for answer in served] == [200] * 10
    assert [status for status, _ in answers] == [200, 200]
    assert max(probes for _, probes in answers) < A_SECOND
    assert (still_open, left_early) == ((SOCKETS, STREAMS), 0), "all were open meanwhile"
    assert not told.complaints


async def among_probes(
    client: httpx.AsyncClient, asked: Coroutine[Any, Any, httpx.Response]
) -> tuple[int, int]:
    """The status of an answer, and how often the server said meanwhile that it is alive."""
    probes = 0
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(asked)
        while not asking.done():
            (await client.get("/health/live")).raise_for_status()
            probes += 1
    return asking.result().status_code, probes


@contextlib.asynccontextmanager
async def pages_stream(somebody: Person) -> AsyncIterator[str]:
    """Its path."""
    turn = {"client_message_id": "m", "parent_id": None, "text": "Go on"}
    conversation_id = await somebody.conversation()
    made = await somebody.client.post(f"/api/conversations/{conversation_id}/turns", json=turn)
    path = f"/api/responses/{made.json()['response']['id']}/events"
    async with somebody.client.stream("GET", path) as stream, begun(stream):
        yield path


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
