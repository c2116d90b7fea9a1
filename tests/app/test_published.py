"""The published schema of the page's socket against the frames of a real one: every kind, both ways."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from websockets.asyncio.client import ClientConnection

from app.events import ResponseEnded, TextDelta
from app.frames import (
    PROTOCOL,
    CancelAccepted,
    ConversationChanged,
    ConversationDeleted,
    Cursor,
    Draft,
    ErrorFrame,
    Hello,
    Inward,
    LeafChoose,
    OutwardFrame,
    Presence,
    PresenceState,
    TurnAccepted,
    TurnContinue,
    TurnEdit,
    TurnRegenerate,
    Unsubscribe,
    Unsubscribed,
    Welcome,
)
from tests.kit.echo import EchoEngine
from tests.kit.peers import engine_of, open_engine, somebody_at
from tests.kit.schemas import Frames
from tests.kit.serving import Serving, serving
from tests.kit.tab import Tab


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("published"), open_engine) as server:
        yield server


@pytest.fixture
def echo(house: Serving) -> Iterator[EchoEngine]:
    engine = engine_of(house)
    yield engine
    house.call(engine.release)


@pytest.fixture(scope="module")
def published(house: Serving) -> Frames:
    return Frames(httpx.get(f"{house.site.url}/schema/events.json").raise_for_status().json())


class Noted(Tab):
    """A tab that keeps every frame as it was sent and as it came."""

    def __init__(self, socket: ClientConnection) -> None:
        super().__init__(socket)
        self.said: list[dict[str, Any]] = []
        self.heard: list[dict[str, Any]] = []

    async def send(self, frame: Inward) -> None:
        self.said.append(json.loads(msgspec.json.encode(frame)))
        await super().send(frame)

    async def next_frame(self) -> OutwardFrame:
        text = await self.socket.recv()
        self.heard.append(json.loads(text))
        return msgspec.json.decode(text, type=OutwardFrame)


async def test_every_frame_of_a_real_socket_is_valid_by_the_published_schema(
    house: Serving, echo: EchoEngine, published: Frames
):
    async with somebody_at(house) as somebody, somebody.socket() as socket:
        tab = Noted(socket)
        await tab.send(Hello(protocol=PROTOCOL))
        tab.epoch = (await tab.expect(Welcome)).epoch
        conversation_id = await somebody.conversation()
        await tab.subscribe(conversation_id)
        whole = await tab.say(conversation_id, "Hello")
        ended = await tab.event(whole.response.id, ResponseEnded)
        stale = Cursor(response_id=whole.response.id, after=1, epoch="another")
        await tab.subscribe(conversation_id, stale)
        seen = PresenceState.TYPING
        await tab.send(Presence(conversation_id=conversation_id, state=seen))
        parent_id = ended.response.message_id
        await tab.send(Draft(conversation_id=conversation_id, parent_id=parent_id, text="Go "))
        house.call(echo.hold, 3)
        cut = await tab.say(conversation_id, "Go on", parent_id)
        await tab.event(cut.response.id, TextDelta)
        await tab.cancel(cut.response.id)
        await tab.expect(CancelAccepted)
        house.call(echo.release)
        assert whole.message is not None
        seen_id = cut.response.message_id
        for kind, message_id, more in (
            (TurnContinue, seen_id, {}),
            (TurnRegenerate, seen_id, {}),
            (TurnEdit, whole.message.id, {"text": "Good day"}),
        ):
            name = kind.__name__
            await tab.send(
                kind(
                    request_id=name,
                    client_message_id=name,
                    conversation_id=conversation_id,
                    message_id=message_id,
                    leaf_id=seen_id,
                    **more,
                )
            )
            accepted = await tab.expect(TurnAccepted)
            await tab.event(accepted.response.id, ResponseEnded)
            seen_id = accepted.response.message_id
        await tab.send(
            LeafChoose(request_id="l", conversation_id=conversation_id, message_id=parent_id)
        )
        await tab.expect(ConversationChanged)
        await tab.send(Unsubscribe(request_id="u", conversation_id=conversation_id))
        await tab.expect(Unsubscribed)
        await tab.send(Hello(protocol=PROTOCOL))
        await tab.expect(ErrorFrame)
        await somebody.client.delete(f"/api/conversations/{conversation_id}")
        await tab.expect(ConversationDeleted)

    faults = [fault for frame in tab.said for fault in published.faults("inward", frame)]
    faults += [fault for frame in tab.heard for fault in published.faults("outward", frame)]
    events = {frame["event"]["type"] for frame in tab.heard if frame["type"] == "event"}
    assert not faults
    assert {frame["type"] for frame in tab.said} == published.types("inward")
    assert {frame["type"] for frame in tab.heard} == published.types("outward")
    assert events == published.types("event")


@pytest.mark.parametrize(
    "frame",
    [
        {"type": "no.such.thing", "request_id": "r"},
        {"type": "unsubscribe", "request_id": "r"},
        {"type": "unsubscribe", "request_id": "", "conversation_id": "c"},
        {"type": "unsubscribe", "request_id": "r" * 65, "conversation_id": "c"},
        {"type": "unsubscribe", "request_id": "r", "conversation_id": "c", "more": 1},
        {"type": "subscribe", "request_id": "r", "conversation_id": 5},
        {"type": "subscribe", "request_id": "r", "conversation_id": "c", "cursors": [{}]},
        {"type": "presence", "conversation_id": "c", "state": "asleep"},
        {"type": "draft", "conversation_id": "c", "text": "no parent"},
        {
            "type": "draft",
            "conversation_id": None,
            "parent_id": None,
            "text": "",
            "document_ids": ["d"] * 33,
        },
        {"type": "response.cancel", "request_id": True, "response_id": "r"},
        [],
        None,
    ],
)
async def test_what_the_schema_forbids_a_real_socket_refuses(
    house: Serving, published: Frames, frame: Any
):
    async with somebody_at(house) as somebody, somebody.tab() as tab:
        await tab.socket.send(json.dumps(frame))
        refused = await tab.expect(ErrorFrame)

    assert published.faults("inward", frame)
    assert refused.error.code == "invalid_request"
