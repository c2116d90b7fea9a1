"""What a peer may do without a word: leave, break off, stop reading, sit idle for hours.

On real sockets of a real server whose engine the tests hold in their hand.
"""

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection

from app.asgi import listener_for
from app.events import TextDelta
from app.frames import PROTOCOL, Hello, Welcome
from app.routes import connection
from tests.kit.echo import EchoEngine
from tests.kit.peers import (
    Log,
    create,
    dialect_socket,
    engine_of,
    narrow,
    open_engine,
    program,
    somebody_at,
    until,
)
from tests.kit.serving import Serving, serving
from tests.kit.tab import Tab

LONG_TOKENS = 4_000
ENDS = ("response.completed", "response.incomplete")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("peers"), open_engine) as server:
        yield server


@pytest.fixture
def echo(house: Serving) -> Iterator[EchoEngine]:
    """Its engine, let go when the test ends, with all that it still has to answer."""
    engine = engine_of(house)
    yield engine
    house.call(engine.release)
    service = house.service
    # The next test counts the sockets that are open, and what is answered meanwhile.
    house.until(lambda: service.supervisor.live_turns == service.gate.open_sockets == 0)


async def test_nothing_that_is_sent_waits_until_a_packet_is_full():
    accepted: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
    with listener_for("127.0.0.1") as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        async with await asyncio.start_server(
            lambda _, writer: accepted.set_result(writer), sock=listener
        ):
            _, ours = await asyncio.open_connection("127.0.0.1", port)
            theirs = await accepted
            option = socket.IPPROTO_TCP, socket.TCP_NODELAY
            is_set = theirs.get_extra_info("socket").getsockopt(*option)
            for writer in (ours, theirs):
                writer.close()
                await writer.wait_closed()

    assert is_set


async def events_of(opened: ClientConnection) -> list[dict[str, Any]]:
    """Every event of the dialect up to a response's end."""
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] not in ENDS:
        events.append(json.loads(await opened.recv()))
    return events


async def text_at(server: Serving, response_id: str) -> str:
    """Read by somebody else over HTTP, to the response's end."""
    async with program(server) as client:
        await client.get(f"/responses/{response_id}", params={"stream": True})
        shown = (await client.get(f"/responses/{response_id}")).json()
    assert shown["status"] == "incomplete", "as long as it may be, and stopped by nothing else"
    text: str = shown["output"][0]["content"][0]["text"]
    return text


# ---------------------------------------------------------------- 1, 2: leaving is heard, not felt


@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "in mid-answer"])
@pytest.mark.parametrize("leave", ["close", "abort"])
async def test_a_tab_that_leaves_is_missed_though_nothing_is_sent_to_it(
    house: Serving, echo: EchoEngine, told: Log, *, leave: str, is_busy: bool
):
    gate = house.service.gate
    if not is_busy:
        house.call(echo.hold, 2)
    async with somebody_at(house) as somebody, somebody.tab() as tab:
        conversation_id = await somebody.conversation()
        await tab.subscribe(conversation_id)
        accepted = await tab.say(conversation_id, "Go on")
        await tab.event(accepted.response.id, TextDelta)
        assert gate.open_sockets == 1

        await left(tab.socket, leave)
        await until(house, lambda: gate.open_sockets == 0 and told.answered("/ws") == 1)

    assert not told.complaints


@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "in mid-answer"])
@pytest.mark.parametrize("leave", ["close", "abort"])
async def test_a_program_that_leaves_is_missed_though_nothing_is_sent_to_it(
    house: Serving, echo: EchoEngine, told: Log, *, leave: str, is_busy: bool
):
    gate = house.service.gate
    if not is_busy:
        house.call(echo.hold, 2)
    async with dialect_socket(house) as opened:
        await opened.send(create(max_output_tokens=LONG_TOKENS))
        await opened.recv()
        assert gate.open_sockets == 1

        await left(opened, leave)
        await until(house, lambda: gate.open_sockets == 0 and told.answered("/v1/responses") == 1)

    assert not told.complaints


async def left(opened: ClientConnection, how: str) -> None:
    if how == "abort":
        opened.transport.abort()
        return
    async with asyncio.TaskGroup() as group:
        # A client that does not read what is on its way never comes to the answer to its close.
        group.create_task(read_all(opened))
        group.create_task(opened.close())


async def read_all(opened: ClientConnection) -> None:
    async for _ in opened:
        pass


# ---------------------------------------------------------------- 3: a dropped stream stops nothing


async def test_13_dropping_the_pages_event_stream_stops_nothing(
    house: Serving, echo: EchoEngine, told: Log
):
    house.call(echo.hold, 4)
    async with somebody_at(house) as somebody:
        conversation_id = await somebody.conversation()
        turn = {"client_message_id": "m", "parent_id": None, "text": "Go on"}
        made = await somebody.client.post(f"/api/conversations/{conversation_id}/turns", json=turn)
        response_id = made.json()["response"]["id"]
        path = f"/api/responses/{response_id}/events"

        async with somebody.client.stream("GET", path) as stream:
            async for line in stream.aiter_lines():
                if "response.output_text.delta" in line:
                    break
        await until(house, lambda: told.answered(path) == 1)
        live = house.service.supervisor.live_turns
        house.call(echo.release)
        rest = await somebody.client.get(path)

    assert live == 1
    assert '"incomplete_reason":"max_output_tokens"' in rest.text
    assert not told.complaints


@pytest.mark.parametrize("resumed", [False, True], ids=["its first", "resumed"])
async def test_13_dropping_the_dialects_event_stream_stops_nothing(
    house: Serving, echo: EchoEngine, told: Log, resumed: bool
):
    house.call(echo.hold, 4)
    async with program(house) as client:
        asked = {"input": "Go on", "stream": True, "max_output_tokens": LONG_TOKENS}
        response_id = await dropped(client, "POST", "/responses", json=asked)
        path = "/v1/responses"
        if resumed:
            await dropped(client, "GET", f"/responses/{response_id}", params={"stream": True})
            path = f"/v1/responses/{response_id}"
        await until(house, lambda: told.answered(path) == 1)
        live = house.service.supervisor.live_turns
        house.call(echo.release)

    assert live == 1
    assert len(await text_at(house, response_id)) == LONG_TOKENS
    assert not told.complaints


async def dropped(client: httpx.AsyncClient, method: str, path: str, **asked: Any) -> str:
    """Read a stream up to its first words, and hang up; the response's id."""
    response_id = ""
    async with client.stream(method, path, **asked) as stream:
        async for line in stream.aiter_lines():
            if line.startswith("data: ") and not response_id:
                response_id = json.loads(line[6:])["response"]["id"]
            if "response.output_text.delta" in line:
                break
    return response_id


# ---------------------------------------------------------------- 4: who does not read holds nobody up


async def test_18_an_answer_does_not_wait_for_a_tab_that_takes_nothing_and_catches_it_up_at_once(
    house: Serving, echo: EchoEngine, told: Log
):
    async with (
        somebody_at(house) as somebody,
        somebody.socket(sock=narrow(house), max_queue=1) as silent,
        somebody.tab() as tab,
    ):
        conversation_id = await somebody.conversation()
        deaf = Tab(silent)
        await deaf.send(Hello(protocol=PROTOCOL))
        await deaf.expect(Welcome)
        for one in (deaf, tab):
            await one.subscribe(conversation_id)
        silent.transport.pause_reading()

        accepted = await tab.say(conversation_id, "Go on")
        whole = await tab.story(accepted.response.id)
        silent.transport.resume_reading()
        late = await deaf.story(accepted.response.id)

    assert whole.ended
    assert late.ended
    assert late.snapshot is not None, "what it did not take was given up for one snapshot"
    assert late.text == whole.text
    assert not told.complaints


async def test_18_an_answer_does_not_wait_for_a_program_that_takes_nothing(
    house: Serving, echo: EchoEngine, told: Log
):
    async with dialect_socket(house, sock=narrow(house), max_queue=1) as silent:
        await silent.send(create(max_output_tokens=LONG_TOKENS))
        created = json.loads(await silent.recv())
        silent.transport.pause_reading()

        text = await text_at(house, created["response"]["id"])
        silent.transport.resume_reading()
        events = [created, *await events_of(silent)]

    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert "".join(event.get("delta", "") for event in events) == text
    assert len(text) == LONG_TOKENS
    assert not told.complaints


async def test_18_an_answer_does_not_wait_for_a_stream_that_nobody_takes(
    house: Serving, echo: EchoEngine, told: Log
):
    asked = json.dumps({"input": "Go on", "stream": True, "max_output_tokens": LONG_TOKENS})
    reader, writer = await asyncio.open_connection(sock=narrow(house), limit=1024)
    head = ("POST /v1/responses HTTP/1.1", "Host: localhost", f"Authorization: Bearer {house.key}")
    writer.write("\r\n".join((*head, f"Content-Length: {len(asked)}", "", asked)).encode())
    while not (line := await reader.readline()).startswith(b"data: "):
        pass
    response_id = json.loads(line[6:])["response"]["id"]

    text = await text_at(house, response_id)
    unfinished = told.answered("/v1/responses")
    writer.transport.abort()
    await until(house, lambda: told.answered("/v1/responses") == 1)

    assert len(text) == LONG_TOKENS
    assert unfinished == 0, "the stream was still stuck when the answer was long stored"
    assert not told.complaints


async def test_who_takes_nothing_for_too_long_is_let_go(
    house: Serving, echo: EchoEngine, told: Log, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(connection, "WRITE_S", 0.1)
    gate = house.service.gate
    async with dialect_socket(house, sock=narrow(house), max_queue=1) as silent:
        await silent.send(create(max_output_tokens=LONG_TOKENS))
        created = json.loads(await silent.recv())
        silent.transport.pause_reading()

        await until(house, lambda: gate.open_sockets == 0)
        silent.transport.abort()

    assert len(await text_at(house, created["response"]["id"])) == LONG_TOKENS
    assert not told.complaints
