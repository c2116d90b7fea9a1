"""Answers over HTTP that are under way when the rights of who asked go; on both databases."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import urlsplit

import httpx
import pytest

from app.chat.apart import PROCESSES
from app.chat.turns import Turn
from app.db.base import Database
from app.db.types import AccountRole
from app.frames import PROTOCOL
from app.people.accounts import Accounts
from app.people.keys import Keys
from tests.kit.peers import Log, engine_of, until
from tests.kit.serving import Serving
from tests.kit.staff import CUT_S, Somebody, boss, done, somebody

Way = Callable[[Serving, Somebody], Awaitable[None]]
ASKED = {"model": "echo", "input": "Go on", "store": True}
CHAT = {"model": "echo", "messages": [{"role": "user", "content": "Go on"}]}


async def revoke_the_key(house: Serving, who: Somebody) -> None:
    await done(await who.client.delete(f"/api/keys/{who.key.view.id}"))
    await done(await who.client.post("/api/logout"))


async def revoke_beside_the_server(house: Serving, who: Somebody) -> None:
    async with contextlib.aclosing(Database(house.database_url)) as db:
        await Keys(db, Accounts(db)).revoke(who.user_id, who.key.view.id)
        await Accounts(db).set_password(who.user_id, "another long password")


async def move(house: Serving, who: Somebody) -> None:
    async with boss(house) as admin:
        path = f"/api/users/{who.user_id}"
        await done(await admin.client.patch(path, json={"role": AccountRole.AUDITOR}))


async def remove(house: Serving, who: Somebody) -> None:
    async with contextlib.aclosing(Database(house.database_url)) as db:
        await Accounts(db).remove(who.user_id)


@contextlib.asynccontextmanager
async def listening(
    who: Somebody, house: Serving
) -> AsyncIterator[list[asyncio.Task[tuple[int, bytes]]]]:
    """A page's stream, two programs' streams and one that waits for the whole, all under way."""
    house.call(engine_of(house).hold, 4)
    conversation_id = await who.conversation()
    turn = {"client_message_id": "c1", "parent_id": None, "text": "Go on"}
    path = f"/api/conversations/{conversation_id}/turns"
    response_id = (await done(await who.client.post(path, json=turn)))["response"]["id"]
    headers = {"authorization": f"Bearer {who.key.key}"}
    async with (
        httpx.AsyncClient(base_url=who.server.url, headers=headers, timeout=60) as program,
        asyncio.TaskGroup() as group,
    ):

        async def hear(
            client: httpx.AsyncClient, method: str, path: str, body: object
        ) -> tuple[int, bytes]:
            async with client.stream(method, path, json=body) as answer:
                return answer.status_code, await answer.aread()

        asked: list[tuple[httpx.AsyncClient, str, str, object]] = [
            (who.client, "GET", f"/api/responses/{response_id}/events", None),
            (program, "POST", "/v1/responses", {**ASKED, "stream": True}),
            (program, "POST", "/v1/chat/completions", {**CHAT, "stream": True}),
            (program, "POST", "/v1/responses", ASKED),
            (who.client, "GET", f"/api/events?protocol={PROTOCOL}", None),
        ]

        def is_theirs(turn: Turn) -> bool:
            return turn.response.user_id == who.user_id

        tasks = [group.create_task(hear(*one)) for one in asked]
        live, seats = house.service.supervisor._live, house.service.gate._seats
        await until(house, lambda: sum(is_theirs(one) for one in live.values()) == 4)
        await until(house, lambda: who.user_id in seats)
        yield tasks
        house.call(engine_of(house).release)


@pytest.mark.row("live revocation")
@pytest.mark.parametrize("way", [revoke_the_key, revoke_beside_the_server, move])
async def test_streams_and_who_waits_are_cut_off_within_a_second(house: Serving, way: Way):
    async with somebody(house) as who, listening(who, house) as tasks:
        await way(house, who)
        async with asyncio.timeout(CUT_S):
            page, events, chunks, whole, changes = await asyncio.gather(*tasks)

    assert page[0] == events[0] == chunks[0] == changes[0] == 200
    ends = page, events, chunks, changes
    said = [json.loads(body.rpartition(b"data: ")[2]) for _, body in ends]
    assert said[0]["type"] == said[1]["type"] == "error"
    refused = {said[1]["code"], *(said[place]["error"]["code"] for place in (0, 2, 3))}
    assert refused <= {"unauthenticated", "invalid_api_key", "forbidden"}, said
    assert whole[0] in (401, 403)
    assert json.loads(whole[1])["error"]["code"] in refused


@pytest.mark.row("live revocation")
async def test_whatever_is_answered_ends_when_who_asked_is_removed(house: Serving):
    """What is being written for them is stopped at the same time: a stream may end as one does."""
    async with somebody(house) as who, listening(who, house) as tasks:
        await remove(house, who)
        async with asyncio.timeout(CUT_S):
            answers = await asyncio.gather(*tasks)

    assert [status for status, _ in answers[:3]] == [200] * 3


@contextlib.asynccontextmanager
async def waiting(
    who: Somebody, house: Serving
) -> AsyncIterator[list[asyncio.Task[httpx.Response]]]:
    """A summary, an import and a file, all waiting for their turn."""
    engine, seats = engine_of(house), house.service.apart._seats
    conversation_id = await who.conversation()
    async with who.tab() as tab:
        await tab.subscribe(conversation_id)
        said = await tab.say(conversation_id, "Go on")
        await tab.story(said.response.id)
    house.call(engine.hold)
    for _ in range(PROCESSES):
        house.do(seats.acquire())
    leaf = {"client_message_id": "s1", "leaf_id": said.response.message_id}
    archive = (await who.client.get("/api/export")).content
    client = who.client
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(one)
            for one in (
                client.post(f"/api/conversations/{conversation_id}/summary", json=leaf),
                client.post("/api/import", content=archive),
                client.post("/api/files/text", content=b"text"),
            )
        ]
        summaries, apart = house.service.summaries, house.service.apart
        await until(house, lambda: apart._asking == 2 and who.user_id in summaries.users())
        yield tasks
        house.call(engine.release)
        for _ in range(PROCESSES):
            house.call(seats.release)


@pytest.mark.row("live revocation")
@pytest.mark.parametrize("way", [revoke_beside_the_server, move, remove])
async def test_what_takes_long_is_cut_off_within_a_second(house: Serving, way: Way):
    async with somebody(house) as who, waiting(who, house) as tasks:
        await way(house, who)
        async with asyncio.timeout(CUT_S):
            answers = await asyncio.gather(*tasks)
        await until(house, lambda: house.service.apart._asking == 0)

    told = {(answer.status_code, answer.json()["code"]) for answer in answers}
    # A summary is stopped with its account as well, and may hear of that first.
    stopped = {(409, "summary_stopped")} if way is remove else set()
    assert told - stopped <= {(401, "unauthenticated"), (403, "forbidden")}


def request_head(who: Somebody, path: str, length: int) -> bytes:
    csrf = who.client.headers["x-csrf-token"]
    by_cookie = f"cookie: {who.cookie}\r\nx-csrf-token: {csrf}\r\n"
    by_key = f"authorization: Bearer {who.key.key}\r\n"
    return (
        f"POST {path} HTTP/1.1\r\nhost: {urlsplit(who.server.url).netloc}\r\n"
        f"{by_key if path.startswith('/v1') else by_cookie}"
        f"content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    ).encode()


@pytest.mark.row("live revocation")
@pytest.mark.parametrize("way", [revoke_the_key, move])
@pytest.mark.parametrize("path", ["/api/import", "/api/conversations", "/v1/responses"])
async def test_the_rest_of_a_body_is_not_waited_for(house: Serving, way: Way, path: str, told: Log):
    """Nor done with what came late: it would be done for somebody who may not."""
    async with somebody(house) as who:
        before = house.service.rights._standings.copy()
        url = urlsplit(who.server.url)
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        with contextlib.closing(writer):
            writer.write(request_head(who, path, 2) + b"{")
            await until(house, lambda: len(house.service.rights._standings - before) == 1)
            await way(house, who)
            async with asyncio.timeout(CUT_S):
                answer = await reader.read()

    assert answer.split()[1] in (b"401", b"403"), answer
    assert not told.complaints


async def test_who_leaves_in_the_middle_of_a_body_is_no_fault_of_ours(house: Serving, told: Log):
    url = urlsplit(house.site.url)
    for path in ("/api/login", "/api/import"):
        async with somebody(house) as who:
            head = request_head(who, path, 2)
            _, writer = await asyncio.open_connection(url.hostname, url.port)
            writer.write(head + b"{")
            await writer.drain()
            writer.close()
            await until(house, lambda: bool(told.answered(path)))  # noqa: B023  called here

    assert not told.complaints


async def test_what_does_not_concern_who_asked_cuts_nothing(house: Serving):
    async with somebody(house) as who, somebody(house) as other, listening(who, house) as tasks:
        house.do(house.service.accounts.set_password(other.user_id, "another long password"))
        await done(await who.client.post("/api/keys", json={"name": "one more"}))
        house.call(engine_of(house).release)
        async with asyncio.timeout(30):
            answers = await asyncio.gather(*tasks[:4])
        assert not tasks[4].done()
        await done(await who.client.post("/api/logout"))

    assert [status for status, _ in answers] == [200] * 4
    assert all(b'"code"' not in body.rpartition(b"data: ")[2] for _, body in answers[:3])
