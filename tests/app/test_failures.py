"""A server whose database fails under it: what peers are told, and that it is not the inside.

The failure is real: the table that holds the credentials is away.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from sqlalchemy import text
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from app.db.types import AccountRole
from app.ids import new_login_id, new_user_id
from app.people.accounts import Principal
from app.people.rights import Standing
from tests.kit.peers import Log, dialect_socket, open_engine, program, somebody_at
from tests.kit.serving import Serving, serving

ANYONE = Principal(
    user_id=new_user_id(), role=AccountRole.MEMBER, via="login", credential_id=new_login_id()
)
INSIDE = ("logins", "api_keys", "users", "SELECT", "sqlalche", "no such table")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("failures"), open_engine) as server:
        yield server


@contextlib.asynccontextmanager
async def without(server: Serving, table: str) -> AsyncIterator[None]:
    server.do(rename(server, table, f"{table}_away"))
    try:
        yield
    finally:
        server.do(rename(server, f"{table}_away", table))


async def rename(server: Serving, table: str, name: str) -> None:
    async with server.service.db.begin() as session:
        await session.execute(text(f"ALTER TABLE {table} RENAME TO {name}"))


def shows_the_inside(words: str) -> bool:
    return any(word in words for word in INSIDE)


async def close_of(server: Serving, opened: ClientConnection, frame: str) -> tuple[int, str]:
    """The end of a socket that is asked something when its rights have to be looked up anew."""
    rights, anyone = server.service.rights, Standing(ANYONE)
    await asyncio.to_thread(server.until, lambda: not rights.are_sure(anyone))
    with pytest.raises(ConnectionClosed) as closed:
        await opened.send(frame)
        while True:
            assert not shows_the_inside(str(await opened.recv()))
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code, closed.value.rcvd.reason


async def test_an_open_socket_that_fails_is_closed_with_1011_and_without_a_word(
    house: Serving, told: Log
):
    """The framework's own close would carry the error's words to whoever is there."""
    async with (
        somebody_at(house) as somebody,
        somebody.tab() as tab,
        dialect_socket(house) as program_socket,
    ):
        async with without(house, "logins"):
            pages = await close_of(house, tab.socket, "{")
        async with without(house, "api_keys"):
            programs = await close_of(house, program_socket, "{")

    assert pages == programs == (1011, "")
    assert told.complaints, "whoever runs it is told in the log"


async def test_a_handshake_that_fails_is_answered_as_a_request_and_not_with_403(
    house: Serving, told: Log
):
    async with somebody_at(house) as somebody:
        page = {"Cookie": somebody.cookie}, house.site.url
        key = {"Authorization": f"Bearer {house.key}"}, None
        denials = []
        for table, path, (headers, origin) in (
            ("logins", "/ws", page),
            ("api_keys", "/v1/responses", key),
        ):
            async with without(house, table):
                denials.append(await denial(house.site.ws_url + path, headers, origin))

    assert [status for status, _ in denials] == [500, 500]
    assert not any(shows_the_inside(json.dumps(body)) for _, body in denials)
    assert denials[0][1]["code"] == denials[1][1]["error"]["code"] == "server_error"


async def denial(address: str, headers: dict[str, str], origin: Any) -> tuple[int, Any]:
    with pytest.raises(InvalidStatus) as refused:
        async with connect(address, additional_headers=headers, origin=origin, open_timeout=60):
            pass
    return refused.value.response.status_code, json.loads(refused.value.response.body)


async def test_a_request_that_fails_shows_its_id_and_not_its_inside(house: Serving, told: Log):
    async with somebody_at(house) as somebody, program(house) as client:
        async with without(house, "logins"):
            page = await somebody.client.get("/api/conversations")
        async with without(house, "api_keys"):
            dialect = await client.get("/models")
        again = await somebody.client.get("/api/conversations")

    assert (page.status_code, dialect.status_code, again.status_code) == (500, 500, 200)
    assert page.json()["request_id"] == page.headers["x-request-id"]
    assert not shows_the_inside(page.text + dialect.text)
