"""How much a peer may send at once: a form, a body, a websocket message."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from app.asgi import LARGEST_MESSAGE
from app.routes.table import LARGEST_FORM
from tests.kit.peers import Log, dialect_socket, program, somebody_at
from tests.kit.serving import Serving

LARGEST_BODY = 10_000_000


def sent(body: bytes, *, is_chunked: bool) -> dict[str, Any]:
    """A JSON body, of a length that is told or not."""
    content = (body[start : start + 65_536] for start in range(0, len(body), 65_536))
    headers = {"content-type": "application/json", "x-csrf-token": "t", "cookie": "kw_csrf=t"}
    return {"content": as_it_comes(content) if is_chunked else body, "headers": headers}


async def as_it_comes(parts: Iterator[bytes]):
    for part in parts:
        yield part


@pytest.mark.row("cheap endpoints first")
@pytest.mark.parametrize("is_chunked", [False, True], ids=["length told", "chunked"])
@pytest.mark.parametrize("path", ["/api/login", "/api/setup"])
async def test_a_stranger_sends_no_more_than_a_form(house: Serving, path: str, is_chunked: bool):
    async with httpx.AsyncClient(base_url=house.site.url, timeout=60) as stranger:
        answer = await stranger.post(path, **sent(b" " * (LARGEST_FORM + 1), is_chunked=is_chunked))

    assert answer.status_code == 413
    assert answer.headers["content-type"] == "application/problem+json"


async def test_the_longest_form_fits_however_it_is_escaped(house: Serving):
    longest = b"\\ud83d\\udd25" * 1024
    form = b'{"token":"%b","email":"%b","name":"%b","password":"%b"}' % ((longest,) * 4)
    async with httpx.AsyncClient(base_url=house.site.url, timeout=60) as stranger:
        answer = await stranger.post("/api/setup", **sent(form, is_chunked=False))

    assert answer.status_code == 401, "read, and found to hold no valid token"


LOOSE: list[tuple[str, str, dict[str, Any], str]] = [
    ("PATCH", "/api/conversations/{}", {"kept_warm": 0}, "kept_warm"),
    ("PATCH", "/api/conversations/{}", {"archived": "true"}, "archived"),
    ("PATCH", "/api/conversations/{}", {"title": 5}, "title"),
    ("PATCH", "/api/personas/persona_1", {"archived": 0}, "archived"),
    ("POST", "/api/keys", {"name": "one", "expires_in_s": "700"}, "expires_in_s"),
    ("POST", "/api/conversations", {"document_ids": "one"}, "document_ids"),
]


@pytest.mark.parametrize(("method", "path", "body", "field"), LOOSE)
async def test_a_body_is_taken_at_its_word(
    house: Serving, *, method: str, path: str, body: dict[str, Any], field: str
):
    async with somebody_at(house) as somebody:
        conversation_id = await somebody.conversation()
        answer = await somebody.client.request(method, path.format(conversation_id), json=body)

    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert answer.json()["field"] == field


@pytest.mark.parametrize("is_chunked", [False, True], ids=["length told", "chunked"])
async def test_a_body_of_the_page_has_a_limit(house: Serving, is_chunked: bool):
    body = sent(b" " * (LARGEST_BODY + 1), is_chunked=is_chunked)
    body["headers"] = {"content-type": "application/json"}
    async with somebody_at(house) as somebody:
        answer = await somebody.client.post("/api/conversations", **body)

    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")


@pytest.mark.parametrize("is_chunked", [False, True], ids=["length told", "chunked"])
@pytest.mark.parametrize("path", ["/responses", "/chat/completions"])
async def test_a_body_of_the_dialect_has_a_limit(house: Serving, path: str, is_chunked: bool):
    body = sent(b" " * (LARGEST_BODY + 1), is_chunked=is_chunked)
    body["headers"] = {"content-type": "application/json"}
    async with program(house) as client:
        answer = await client.post(path, **body)

    assert answer.status_code == 413
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.row("messages")
async def test_a_message_beyond_the_servers_limit_is_not_even_received(house: Serving, told: Log):
    async with (
        somebody_at(house) as somebody,
        somebody.tab() as tab,
        dialect_socket(house) as program_socket,
    ):
        codes = [await refused(one) for one in (tab.socket, program_socket)]
        async with somebody.tab() as another:
            await another.subscribe(await somebody.conversation())

    assert codes == [1009, 1009]
    assert not told.complaints


async def refused(opened: ClientConnection) -> int | None:
    """The close code that a message of one byte too many is met with."""
    with pytest.raises(ConnectionClosed) as closed:
        await opened.send("x" * (LARGEST_MESSAGE + 1))
        await opened.recv()
    return closed.value.rcvd.code if closed.value.rcvd else None
