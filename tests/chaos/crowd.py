"""A crowd under harm, and whether all is as everybody was told when it is over.

What harms is handed in (`kill.py`, `cut.py`); what must hold does not depend on it: everything that
was acknowledged is there once, the pool is at rest, the database is sound, and what is warm says what
is cold.
"""

import argparse
import asyncio
import contextlib
import random
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
from sqlalchemy import make_url

from tests.chaos.people import Talker, branch, look
from tests.kit.db import new_postgres_url, start_postgres
from tests.kit.server import READY_S, Server, signed_in, start_server
from tests.kit.tab import Person, Site, person

REST_S = 300.0
QUESTION = {"role": "user", "content": "And then?"}
SETTINGS = {
    # So little that conversations are parked and fetched back all the time, and bit for bit.
    "KEEPWARM_KV_MEMORY": "48MiB",
    "KEEPWARM_PARK_DISK": "256MiB",
    "KEEPWARM_DETERMINISTIC": "1",
}


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to; it holds where there are no faults."""

    harms: dict[str, int]
    seconds: float
    people: int
    turns: int
    """How many were acknowledged."""
    compared: int
    """How many conversations were asked on, warm and cold."""
    counts: dict[str, int]
    faults: list[str]


class House:
    """A server that may be started again in its place."""

    def __init__(self, **settings: str) -> None:
        self._settings = SETTINGS | settings
        self.server = start_server(None, None, **self._settings)

    def end(self) -> None:
        self.server.kill()

    async def start_again(self) -> None:
        """On what the last one left; it is over."""
        folder, port = self.server.folder, self.server.port
        self.server = await asyncio.to_thread(start_server, folder, port, **self._settings)


Harm = Callable[[], Coroutine[Any, Any, None]]


async def live_through(
    house: House,
    harm: Harm,
    harms: Counter[str],
    *,
    people: int,
    seed: int,
    cuts: float = 0.0,
    site: Site | None = None,
) -> Outcome:
    """A crowd lives until `harm` returns; `harms` is what it counted.

    Each connection is cut by its own person with a chance of `cuts` a frame. With a `site` people come
    by that address.
    """
    began = time.monotonic()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(house.end)
        crowd = []
        for number in range(people):
            member = await stack.enter_async_context(person(house.server))
            if site is not None:
                member = Person(site, member.email, member.client)
            crowd.append(Talker(member, f"{seed}-{number}", cuts=cuts))
        ending = asyncio.Event()
        async with asyncio.TaskGroup() as lives:
            for talker in crowd:
                lives.create_task(talker.live(ending))
            await harm()
            async with asyncio.timeout(READY_S):
                # Where processes have to share a core, nobody may have been answered until now.
                while not any(text for one in crowd for _, text in one.told.ends.values()):  # noqa: ASYNC110  people tell nobody
                    await asyncio.sleep(0.05)
            ending.set()
        faults = [f"{one.person.email}: {fault}" for one in crowd for fault in await look(one)]
        faults += await asyncio.to_thread(restless, house.server)
        compared, differing = await _compare(house.server, crowd, random.Random(seed))  # noqa: S311
        faults += differing
        house.server.stop()
        faults += unsound(house.server)
    return Outcome(
        harms=dict(harms),
        seconds=round(time.monotonic() - began, 1),
        people=people,
        turns=sum(act.accepted is not None for one in crowd for act in one.told.acts),
        compared=compared,
        counts=dict(sum((one.told.counts for one in crowd), Counter())),
        faults=faults,
    )


def command(
    parser: argparse.ArgumentParser,
    run: Callable[[argparse.Namespace, dict[str, str]], Coroutine[Any, Any, Outcome]],
) -> int:
    """With the options that all have: run, tell the outcome as JSON; the status to end with."""
    parser.add_argument("--people", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--database", choices=("sqlite", "postgres"), default="sqlite")
    asked = parser.parse_args()
    with settings_for(asked.database) as settings:
        outcome = asyncio.run(run(asked, settings))
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(outcome)).decode() + "\n")
    return 1 if outcome.faults else 0


@contextlib.contextmanager
def settings_for(database: str) -> Iterator[dict[str, str]]:
    """What has a server use the named database; PostgreSQL is one of its own, gone afterwards."""
    if database == "sqlite":
        yield {}
        return
    with tempfile.TemporaryDirectory() as folder:
        server = start_postgres(Path(folder) / "data")
        try:
            yield {"KEEPWARM_DATABASE_URL": asyncio.run(new_postgres_url(server))}
        finally:
            server.cleanup()


def restless(server: Server) -> list[str]:
    """What the pool holds for nobody, once nobody wants anything."""
    deadline = time.monotonic() + REST_S
    with signed_in(server) as client:
        while True:
            told = client.get("/api/status").raise_for_status().json()
            stats, blocks = told["stats"], told["stats"]["blocks"]
            if stats["running_jobs"] == stats["waiting_jobs"] == blocks["copying"] == 0:
                break
            if time.monotonic() > deadline:
                return [f"it does not come to rest: {stats}"]
    faults = []
    if blocks["in_use"]:
        faults.append(f"{blocks['in_use']} blocks are in use by nobody")
    if sum(blocks.values()) != told["card"]["pool_blocks"]:
        faults.append(f"{blocks} do not sum to {told['card']['pool_blocks']}")
    return faults


async def _compare(
    server: Server, crowd: list[Talker], draw: random.Random
) -> tuple[int, list[str]]:
    """What is said behind a conversation, warm and by somebody who has nothing of it in the cache."""
    compared, faults = 0, []
    async with person(server) as stranger:
        cold = await _key(stranger.client)
        for talker in crowd:
            warm = await _key(talker.person.client)
            for conversation_id in draw.sample(
                talker.conversations, min(2, len(talker.conversations))
            ):
                answer = await talker.person.client.get(f"/api/conversations/{conversation_id}")
                told = answer.raise_for_status().json()
                path = branch(told["messages"], told["conversation"]["leaf_id"])
                while path and not (path[-1]["role"] == "assistant" and path[-1]["content"]):
                    path.pop()  # cut before its first word
                if not path or not all(one["content"] for one in path):
                    continue
                said = [await _said(server, key, [*path, QUESTION]) for key in (warm, cold)]
                compared += 1
                if said[0] != said[1]:
                    faults.append(f"{conversation_id} warm says {said[0]!r}, cold {said[1]!r}")
    return compared, faults


async def _key(client: httpx.AsyncClient) -> str:
    made = await client.post("/api/keys", json={"name": "kill"})
    key: str = made.raise_for_status().json()["key"]
    return key


async def _said(server: Server, key: str, messages: list[dict[str, str]]) -> str:
    body = {"model": "default", "messages": messages, "temperature": 0, "max_tokens": 12}
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=120) as client:
        answer = await client.post("/v1/chat/completions", json=body)
    text: str = answer.raise_for_status().json()["choices"][0]["message"]["content"]
    return text


def unsound(server: Server) -> list[str]:
    """What SQLite finds wrong; PostgreSQL holds its constraints at every commit."""
    url = make_url(server.database_url)
    if not url.drivername.startswith("sqlite"):
        return []
    with contextlib.closing(sqlite3.connect(str(url.database))) as database:
        found = [row[0] for row in database.execute("pragma integrity_check") if row[0] != "ok"]
        return found + [str(row) for row in database.execute("pragma foreign_key_check")]
