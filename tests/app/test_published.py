"""The published schemas of the sockets against the frames of real ones: every kind, both ways."""

import json
from collections.abc import Iterator
from typing import Any, get_args

import httpx
import jsonschema_rs
import msgspec
import pytest
from websockets.asyncio.client import ClientConnection

from app.chat.calls import Call, Written, spelled
from app.chat.hub import Notice
from app.events import Figures, ResponseEnded, TextDelta
from app.frames import (
    PROTOCOL,
    CancelAccepted,
    ConversationChanged,
    ConversationDeleted,
    ConversationWarmth,
    Cursor,
    Draft,
    ErrorFrame,
    FiguresUnwatch,
    FiguresUnwatched,
    FiguresWatch,
    Hello,
    Inward,
    LeafChoose,
    MessagesDeleted,
    OutwardFrame,
    Presence,
    PresenceChanged,
    PresenceState,
    StreamFrame,
    SummaryCreate,
    SummaryCreated,
    TurnAccepted,
    TurnContinue,
    TurnEdit,
    TurnRegenerate,
    Unsubscribe,
    Unsubscribed,
    Welcome,
)
from engine.api import JobClass
from tests.kit.echo import CALL_FORM, EchoEngine
from tests.kit.peers import dialect_socket, engine_of, open_engine, somebody_at
from tests.kit.schemas import Frames
from tests.kit.server import ROOT
from tests.kit.serving import Serving, serving
from tests.kit.staff import boss
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
    return Frames(
        httpx.get(f"{house.site.url}/schema/events.json", timeout=60).raise_for_status().json()
    )


def tags(union: Any) -> set[str]:
    """By which the frames of a union are told apart."""
    return {one.__struct_config__.tag for one in get_args(union)}


def test_whatever_is_told_of_a_users_things_is_declared_on_both_roads():
    """The socket makes events of one kind; the stream has addresses for them."""
    told = tags(Notice) | tags(ConversationWarmth | PresenceChanged)

    assert told <= tags(StreamFrame)
    assert told - {"response.started"} <= tags(OutwardFrame)


@pytest.fixture(scope="module")
def document(house: Serving) -> Any:
    return httpx.get(f"{house.site.url}/schema/openapi.json", timeout=60).json()


async def test_the_stream_says_all_that_is_declared_and_nothing_else(house: Serving, document: Any):
    told = document["paths"]["/api/events"]["get"]["responses"]["200"]["content"]
    (kind,) = (one["itemSchema"]["properties"]["data"]["contentSchema"] for one in told.values())
    check = jsonschema_rs.validator_for({**kind, "components": document["components"]})
    heard: list[dict[str, Any]] = []
    async with (
        somebody_at(house) as somebody,
        somebody.client.stream("GET", f"/api/events?protocol={PROTOCOL}") as stream,
    ):
        lines = stream.aiter_lines()

        async def until(tag: str) -> None:
            async for line in lines:
                if line.startswith("data:"):
                    heard.append(json.loads(line.removeprefix("data:")))
                    if heard[-1]["type"] == tag:
                        return
            raise AssertionError(f"the stream ended without {tag}")

        await until("page.opened")
        page = f"/api/pages/{heard[-1]['page_id']}/presence"
        conversation_id = await somebody.conversation()
        path = f"/api/conversations/{conversation_id}"
        turn = {"client_message_id": "c1", "parent_id": None, "text": "Hello"}
        said = (await somebody.client.post(f"{path}/turns", json=turn)).json()
        await until("conversation.warmth")
        shown = {"conversation_id": conversation_id, "state": "open"}
        await somebody.client.post(page, json=shown)
        await until("presence.changed")
        await somebody.client.delete(f"{path}/messages/{said['message']['id']}")
        await until("messages.deleted")
        await somebody.client.delete(path)
        await until("conversation.deleted")

    for frame in heard:
        check.validate(frame)
    assert {frame["type"] for frame in heard} == tags(StreamFrame)


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
    async with boss(house) as somebody, somebody.socket(max_queue=None) as socket:
        tab = Noted(socket)
        await tab.send(Hello(protocol=PROTOCOL))
        tab.epoch = (await tab.expect(Welcome)).epoch
        conversation_id = await somebody.conversation()
        await tab.subscribe(conversation_id)
        whole = await tab.say(conversation_id, "Hello")
        ended = await tab.event(whole.response.id, ResponseEnded)
        states = {"conversation.warmth", "presence.changed"}
        while not states <= {frame["type"] for frame in tab.heard}:
            await tab.next_frame()
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
        await tab.send(
            SummaryCreate(
                request_id="s",
                conversation_id=conversation_id,
                client_message_id="s",
                leaf_id=parent_id,
            )
        )
        await tab.expect(SummaryCreated)
        branch = f"/api/conversations/{conversation_id}/messages/{seen_id}"
        (await somebody.client.delete(branch)).raise_for_status()
        await tab.expect(MessagesDeleted)
        await tab.send(FiguresWatch(request_id="f"))
        await tab.expect(Figures)
        await tab.send(FiguresUnwatch(request_id="g"))
        await tab.expect(FiguresUnwatched)
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


# ---------------------------------------------------------------- the dialect's socket


@pytest.fixture(scope="module")
def dialect(house: Serving) -> Frames:
    return Frames(
        httpx.get(f"{house.site.url}/schema/dialect.json", timeout=60).raise_for_status().json()
    )


async def test_every_event_of_a_real_dialect_socket_is_valid_by_its_schema(
    house: Serving, echo: EchoEngine, dialect: Frames, monkeypatch: pytest.MonkeyPatch
):
    async def loses(*_: object) -> None:
        """The answer is complete before the engine hears of the steer."""

    said: list[dict[str, Any]] = []
    heard: list[dict[str, Any]] = []
    calling = spelled(Written(text="", calls=(Call(name="tide", arguments="{}"),)), CALL_FORM)
    async with dialect_socket(house) as socket:

        async def say(**event: Any) -> None:
            said.append(event)
            await socket.send(json.dumps(event))

        async def until(*types: str) -> dict[str, Any]:
            while True:
                heard.append(json.loads(await socket.recv()))
                if heard[-1]["type"] in types:
                    return heard[-1]

        await say(type="response.create", input="Hello", stream_id="left", top_logprobs=1)
        whole = await until("response.completed")
        echo.says[JobClass.INTERACTIVE] = calling
        tide = {"type": "function", "name": "tide"}
        await say(type="response.create", input="Hello", tools=[tide], tool_choice="required")
        await until("response.completed")
        echo.says.clear()
        await say(type="response.create", input="Hello", max_output_tokens=2, store=False)
        await until("response.incomplete")
        await say(type="response.create", input="Hello", temperature=5.0)
        await until("error")
        house.call(echo.hold, 3)
        previous = whole["response"]["id"]
        await say(type="response.create", input="Go on", previous_response_id=previous)
        begun = await until("response.created")
        await until("response.output_text.delta")
        steer = {"type": "response.steer", "previous_response_id": begun["response"]["id"]}
        await say(**steer, input="Shorter")
        await until("response.steer.accepted")
        begun = await until("response.created")
        await say(type="response.cancel", response_id=begun["response"]["id"])
        await until("response.incomplete")
        house.call(echo.release)
        await say(**steer, input="Too late")
        await until("response.steer.failed")
        echo.says[JobClass.INTERACTIVE] = calling
        house.call(echo.hold)
        await say(type="response.create", input="Hello", tools=[tide], tool_choice="required")
        begun = await until("response.created")
        steer = {"type": "response.steer", "previous_response_id": begun["response"]["id"]}
        with monkeypatch.context() as patch:
            patch.setattr(house.service.supervisor, "steer", loses)
            await say(**steer, input="And then?")
            await until("response.steer.accepted")
        house.call(echo.release)
        await until("response.steer.pending")
        echo.says.clear()
        echo.fails_with = RuntimeError("a failure for the schema")
        await say(type="response.create", input="Hello")
        await until("response.failed")
        echo.fails_with = None

    wrong = [one for one in said if one.get("temperature") == 5.0]
    assert [one for one in said if dialect.faults("inward", one)] == wrong
    assert not [fault for event in heard for fault in dialect.faults("outward", event)]
    assert {event["type"] for event in said} == dialect.types("inward")
    assert {event["type"] for event in heard} == dialect.types("outward")


@pytest.mark.parametrize(
    "event",
    [
        {"type": "response.steal"},
        {"input": "no type"},
        {"type": "response.cancel"},
        {"type": "response.cancel", "response_id": 5},
        {"type": "response.create", "input": 5},
        {"type": "response.create", "input": "x", "stream_id": "a b"},
        {"type": "response.create", "input": "x", "stream_id": "a" * 257},
        {"type": "response.create", "input": "x", "top_p": 2},
        {"type": "response.steer", "input": "x"},
        {"type": "response.steer", "input": [], "previous_response_id": "resp_1"},
        {"type": "response.steer", "input": "x", "previous_response_id": "resp_1", "more": 1},
        {"type": "response.create", "input": "x", "max_output_tokens": 0},
        {"type": "response.create", "input": "x", "metadata": {"k": "v" * 513}},
        {"type": "response.create", "input": "x", "stop": ["s"] * 17},
        {"type": "response.create", "input": [{"role": 5}]},
        [],
    ],
)
async def test_what_the_dialects_schema_forbids_a_real_socket_refuses(
    house: Serving, dialect: Frames, event: Any
):
    async with dialect_socket(house) as socket:
        await socket.send(json.dumps(event))
        refused = json.loads(await socket.recv())

    assert dialect.faults("inward", event)
    assert refused["type"] in ("error", "response.steer.failed")


# ---------------------------------------------------------------- AsyncAPI


ASYNCAPI = ROOT / "web/node_modules/@asyncapi/specs/schemas/3.0.0-without-$id.json"


def test_the_page_about_the_sockets_is_valid_asyncapi(house: Serving):
    document = (
        httpx.get(f"{house.site.url}/schema/asyncapi.json", timeout=60).raise_for_status().json()
    )
    standard = jsonschema_rs.Draft7Validator(json.loads(ASYNCAPI.read_text()))

    faults = [
        (fault.instance_path, fault.message[:200]) for fault in standard.iter_errors(document)
    ]
    assert not faults
    assert not [ref for ref in _references(document) if not _leads_somewhere(document, ref)]


def test_the_page_about_the_sockets_names_what_the_schemas_name(
    house: Serving, published: Frames, dialect: Frames
):
    document = (
        httpx.get(f"{house.site.url}/schema/asyncapi.json", timeout=60).raise_for_status().json()
    )

    for operation, named in (
        ("page.receive", published.types("inward")),
        ("page.send", published.types("outward")),
        ("dialect.receive", dialect.types("inward")),
        ("dialect.send", dialect.types("outward")),
    ):
        told = document["operations"][operation]["messages"]
        messages = [_at(document, _at(document, one["$ref"])["$ref"]) for one in told]
        payloads = [_at(document, one["payload"]["$ref"]) for one in messages]
        types = {value for one in payloads for value in one["properties"]["type"]["enum"]}
        assert types == named


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, one in value.items():
            if key == "$ref" and isinstance(one, str):
                yield one
            yield from _references(one)
    elif isinstance(value, list):
        for one in value:
            yield from _references(one)


def _leads_somewhere(document: Any, reference: str) -> bool:
    try:
        _at(document, reference)
    except KeyError:
        return False
    return True


def _at(document: Any, reference: str) -> Any:
    for name in reference.removeprefix("#/").split("/"):
        document = document[name]
    return document
