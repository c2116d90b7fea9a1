"""The browser's socket on a real server: what it understands, what it refuses, when it closes."""

import asyncio
import contextlib
import threading

import msgspec
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from app.chat.conversations import Conversations
from app.events import ConversationView, ResponseEnded, ResponseStatus, TextDelta
from app.frames import (
    PROTOCOL,
    CancelAccepted,
    ConversationChanged,
    ConversationDeleted,
    Cursor,
    ErrorFrame,
    Event,
    Hello,
    LeafChoose,
    LeafChosen,
    MessageAdded,
    MessagesDeleted,
    OutwardFrame,
    ResponseCancel,
    Subscribe,
    Subscribed,
    TurnAccepted,
    TurnContinue,
    TurnCreate,
    TurnEdit,
    TurnRegenerate,
    Unsubscribe,
    Unsubscribed,
)
from app.ids import ConversationId, ResponseId, UserId
from app.routes.socket import LINE_FRAMES, LONGEST_FRAME
from tests.kit.peers import engine_of, somebody_at
from tests.kit.server import POLL_S, Server
from tests.kit.serving import WAIT_S, Serving
from tests.kit.tab import Person, Tab, accounts, person

HELLO = msgspec.json.encode(Hello(protocol=PROTOCOL)).decode()


async def heard(socket: ClientConnection) -> list[OutwardFrame]:
    """Every frame up to the close."""
    frames: list[OutwardFrame] = []
    with contextlib.suppress(ConnectionClosed):
        while True:
            frames.append(msgspec.json.decode(await socket.recv(), type=OutwardFrame))
    return frames


async def closed(socket: ClientConnection) -> int:
    """The code that the server closes with."""
    async with asyncio.timeout(WAIT_S):
        await socket.wait_closed()
    assert socket.close_code is not None
    assert socket.close_reason == "", "a close reason is no place for words"
    return socket.close_code


async def refused(tab: Tab, frame: str) -> ErrorFrame:
    await tab.socket.send(frame)
    return await tab.expect(ErrorFrame)


# ---------------------------------------------------------------- the greeting


async def test_a_hello_is_answered_with_the_protocol_and_the_epoch(server: Server):
    async with person(server) as somebody, somebody.tab() as one, somebody.tab() as two:
        assert one.epoch == two.epoch


@pytest.mark.parametrize(
    "first",
    [
        '{"type":"hello","protocol":999}',
        '{"type":"unsubscribe","request_id":"r","conversation_id":"c"}',
        "nonsense",
    ],
)
async def test_what_does_not_begin_with_our_hello_is_told_so_and_closed(server: Server, first: str):
    async with person(server) as somebody, somebody.socket() as socket:
        await socket.send(first)

        (frame,) = await heard(socket)
        code = await closed(socket)

    assert isinstance(frame, ErrorFrame)
    assert frame.error.code == "unsupported_protocol"
    assert code == 1008


# ---------------------------------------------------------------- frames that are wrong


@pytest.mark.parametrize(
    ("frame", "request_id", "field"),
    [
        ('{"type":"no.such.thing","request_id":"r1"}', "r1", "type"),
        ('{"type":"subscribe","request_id":"r1"}', "r1", None),
        ('{"type":"subscribe","request_id":"r1","conversation_id":5}', "r1", "conversation_id"),
        ('{"type":"subscribe","request_id":"","conversation_id":"c"}', "", "request_id"),
        ('{"type":"hello","protocol":1,"more":2}', None, "more"),
        ('{"type":"hello","protocol":1}', None, None),
        ("{", None, None),
        ("[]", None, None),
        ("null", None, None),
    ],
)
async def test_a_frame_that_is_wrong_is_told_so_and_the_socket_goes_on(
    server: Server, frame: str, request_id: str | None, field: str | None
):
    async with person(server) as somebody, somebody.tab() as tab:
        error = await refused(tab, frame)
        conversation_id = await somebody.conversation()
        await tab.subscribe(conversation_id)

    assert error.request_id == request_id
    assert field is None or field in (error.error.field or "") + error.error.message


@pytest.mark.parametrize(
    ("frame", "code", "close"),
    [(HELLO.encode(), "binary_frame", 1003), ("x" * (LONGEST_FRAME + 1), "frame_too_long", 1009)],
    ids=["binary", "too long"],
)
async def test_a_frame_of_the_wrong_kind_or_size_ends_the_socket(
    server: Server, frame: str | bytes, code: str, close: int
):
    async with person(server) as somebody, somebody.tab() as tab:
        await tab.socket.send(frame)

        (told,) = await heard(tab.socket)

        assert isinstance(told, ErrorFrame)
        assert told.error.code == code
        assert await closed(tab.socket) == close


async def test_the_longest_text_of_a_turn_fits_into_a_frame(server: Server):
    async with person(server) as somebody, somebody.tab() as tab:
        conversation_id = await somebody.conversation()
        turn = TurnCreate(
            request_id="r",
            conversation_id=conversation_id,
            client_message_id="m",
            parent_id=None,
            text="word " * 200_000,
        )

        error = await refused(tab, msgspec.json.encode(turn).decode())

    assert error.error.code == "context_length_exceeded"


# ---------------------------------------------------------------- turns


async def test_a_turn_is_accepted_streamed_and_ended(server: Server):
    async with person(server) as somebody, somebody.tab() as tab:
        conversation_id = await somebody.conversation()
        await tab.subscribe(conversation_id)

        accepted = await tab.say(conversation_id, "Say yes.")
        story = await tab.story(accepted.response.id)

    assert story.numbers == list(range(len(story.events)))
    end = story.events[-1]
    assert isinstance(end, ResponseEnded)
    assert end.response.status is ResponseStatus.COMPLETED
    assert end.text == "".join(e.delta for e in story.events if isinstance(e, TextDelta))
    receipt = end.response.receipt
    assert receipt is not None
    assert receipt.cached_tokens + receipt.computed_tokens == receipt.prompt_tokens


async def test_the_second_turn_computes_only_what_is_new(server: Server):
    async with person(server) as somebody, somebody.tab() as tab:
        conversation_id = await somebody.conversation()
        await tab.subscribe(conversation_id)
        first = await tab.say(conversation_id, "Say yes.")
        ended = await tab.event(first.response.id, ResponseEnded)

        second = await tab.say(conversation_id, "Say no.", first.response.message_id)
        receipt = (await tab.taste(second.response.id)).response.receipt

    before = ended.response.receipt
    assert before is not None
    assert receipt is not None
    assert receipt.cached_tokens >= before.prompt_tokens + before.output_tokens - 1


async def test_the_same_message_sent_twice_is_one_message_and_one_answer(server: Server):
    async with person(server) as somebody, somebody.tab() as tab:
        conversation_id = await somebody.conversation()

        one = await tab.say(conversation_id, "Once.", client_message_id="same")
        two = await tab.say(conversation_id, "Once.", client_message_id="same")
        tree = (await somebody.client.get(f"/api/conversations/{conversation_id}")).json()

    assert one.message is not None
    assert (one.message, one.response.id) == (two.message, two.response.id)
    assert [message["role"] for message in tree["messages"]] == ["user", "assistant"]


async def test_a_message_for_a_leaf_that_moved_is_refused_and_nothing_is_stored(server: Server):
    async with person(server) as somebody, somebody.tab() as tab:
        conversation_id = await somebody.conversation()
        await tab.subscribe(conversation_id)
        first = await tab.say(conversation_id, "First.")
        await tab.taste(first.response.id)

        await tab.send(
            TurnCreate(
                request_id="late",
                conversation_id=conversation_id,
                client_message_id="late",
                parent_id=None,
                text="I saw an empty conversation.",
            )
        )
        error = await tab.expect(ErrorFrame)
        tree = (await somebody.client.get(f"/api/conversations/{conversation_id}")).json()

    assert error.request_id == "late"
    assert len(tree["messages"]) == 2


async def test_16_a_tab_edits_regenerates_continues_and_chooses_and_another_hears_it(
    server: Server,
):
    async with (
        person(server) as somebody,
        somebody.tab() as tab,
        somebody.tab() as other,
    ):
        conversation_id = await somebody.conversation()
        for one in (tab, other):
            await one.subscribe(conversation_id)
        first = await tab.say(conversation_id, "Tell me of lighthouses.")
        stopped = await tab.taste(first.response.id)
        assert first.message is not None
        seen, texts, answers = first.response.message_id, {}, [first.response]
        for kind, message_id, more in (
            (TurnContinue, stopped.response.message_id, {}),
            (TurnRegenerate, stopped.response.message_id, {}),
            (TurnEdit, first.message.id, {"text": "Tell me of ships."}),
        ):
            await tab.send(
                kind(
                    request_id=kind.__name__,
                    conversation_id=conversation_id,
                    client_message_id=kind.__name__,
                    message_id=message_id,
                    leaf_id=seen,
                    **more,
                )
            )
            accepted = await tab.expect(TurnAccepted)
            texts[kind] = (await tab.taste(accepted.response.id)).text
            answers.append(accepted.response)
            seen = accepted.response.message_id
        await tab.send(
            LeafChoose(
                request_id="c",
                conversation_id=conversation_id,
                message_id=first.response.message_id,
            )
        )
        chosen = await tab.expect(LeafChosen)
        for one in (tab, other):
            await one.expect(
                ConversationChanged,
                lambda frame: frame.conversation.leaf_id == first.response.message_id,
            )
        tree = (await somebody.client.get(f"/api/conversations/{conversation_id}")).json()

    assert (chosen.request_id, chosen.leaf_id) == ("c", first.response.message_id)
    assert texts[TurnContinue].startswith(stopped.text)
    parents = [answer.parent_id for answer in answers]
    assert parents[:3] == [first.message.id] * 3 and parents[3] != first.message.id
    assert [one["role"] for one in tree["messages"]].count("user") == 2


async def test_16_over_http_it_is_the_same(server: Server):
    async with person(server) as somebody, somebody.tab() as tab:
        conversation_id = await somebody.conversation()
        path, client = f"/api/conversations/{conversation_id}", somebody.client
        await tab.subscribe(conversation_id)
        first = await tab.say(conversation_id, "Tell me of lighthouses.")
        stopped = await tab.taste(first.response.id)
        assert first.message is not None
        seen, roads = stopped.response.message_id, {}
        for road, message_id, more in (
            ("continue", seen, {}),
            ("regenerate", seen, {}),
            ("edit", first.message.id, {"text": "Tell me of ships."}),
        ):
            body = {"client_message_id": road, "leaf_id": seen, **more}
            answer = await client.post(f"{path}/messages/{message_id}/{road}", json=body)
            assert answer.status_code == 201, answer.text
            response = answer.json()["response"]
            await tab.taste(response["id"])
            roads[road], seen = response["parent_id"], response["message_id"]
        chosen = await client.put(f"{path}/leaf", json={"message_id": first.message.id})
        copy = await client.post(f"{path}/fork", json={"message_id": stopped.response.message_id})
        gone = await client.delete(f"{path}/messages/{first.message.id}")
        deleted = await tab.expect(MessagesDeleted)
        kept = await client.patch(path, json={"kept_warm": True, "pinned": True})
        shelf = await client.get("/api/conversations", params={"shelf": "pinned"})
        tree = (await client.get(path)).json()

    assert roads["continue"] == roads["regenerate"] == first.message.id != roads["edit"]
    assert chosen.json()["leaf_id"] not in (seen, first.message.id)
    assert copy.status_code == 201 and copy.json()["leaf_id"]
    assert gone.status_code == 204
    assert {first.message.id, stopped.response.message_id} < set(deleted.message_ids)
    assert len(deleted.message_ids) == 4  # what was said and three answers to it
    assert kept.json()["kept_warm"] and [one["id"] for one in shelf.json()["items"]] == [
        conversation_id
    ]
    assert [one["text"] for one in tree["messages"]][:1] == ["Tell me of ships."]


# ---------------------------------------------------------------- tabs


async def test_all_tabs_of_a_conversation_hear_a_turn_and_other_people_do_not(server: Server):
    async with (
        person(server) as somebody,
        person(server) as another,
        somebody.tab() as writing,
        somebody.tab() as watching,
        another.tab() as strange,
    ):
        conversation_id = await somebody.conversation()
        await writing.subscribe(conversation_id)
        await watching.subscribe(conversation_id)

        accepted = await writing.say(conversation_id, "Say yes.")
        added = await watching.expect(MessageAdded)
        told = [await tab.story(accepted.response.id) for tab in (writing, watching)]
        own = await another.conversation()
        only = await strange.expect(ConversationChanged)

    assert added.message == accepted.message
    assert told[0].events == told[1].events
    assert only.conversation.id == own


async def test_a_conversation_that_is_left_is_heard_no_more(server: Server):
    async with person(server) as somebody, somebody.tab() as tab:
        left, stayed = await somebody.conversation(), await somebody.conversation()
        await tab.subscribe(left)
        await tab.subscribe(stayed)
        await tab.send(Unsubscribe(request_id="u", conversation_id=left))
        await tab.expect(Unsubscribed)

        await tab.say(left, "Nobody listens.")
        await tab.say(stayed, "Say yes.")
        first = await tab.expect(Event)
        story = await tab.story(first.response_id)

    assert first.conversation_id == stayed
    assert story.ended


async def test_every_tab_hears_of_new_renamed_and_deleted_conversations(server: Server):
    async with person(server) as somebody, somebody.tab() as tab:
        conversation_id = await somebody.conversation()
        made = await tab.expect(ConversationChanged)
        address = f"/api/conversations/{conversation_id}"
        await somebody.client.patch(address, json={"title": "Rivers"})
        renamed = await tab.expect(ConversationChanged)
        await somebody.client.delete(address)
        deleted = await tab.expect(ConversationDeleted)

    assert made.conversation.id == conversation_id
    assert renamed.conversation.title == "Rivers"
    assert deleted.conversation_id == conversation_id


async def test_subscribing_again_neither_doubles_nor_loses(server: Server):
    async with person(server) as somebody, somebody.tab() as tab:
        conversation_id = await somebody.conversation()
        await tab.subscribe(conversation_id)
        accepted = await tab.say(conversation_id, "Say yes.")
        await tab.event(accepted.response.id, TextDelta)

        await tab.subscribe(conversation_id)
        rest = await tab.story(accepted.response.id)

    assert rest.numbers == list(range(rest.numbers[0], rest.numbers[-1] + 1))


# ---------------------------------------------------------------- when rights are lost


async def test_signing_out_closes_the_sockets_of_that_login_alone(server: Server):
    async with (
        person(server) as somebody,
        person(server) as another,
        somebody.tab() as tab,
        another.tab() as other,
    ):
        await somebody.client.post("/api/logout")

        code = await closed(tab.socket)
        await other.subscribe(await another.conversation())

    assert code == 4401


async def test_a_silent_socket_is_closed_soon_after_another_process_disabled_its_user(
    server: Server,
):
    async with person(server) as somebody, somebody.tab() as tab:
        async with accounts(server) as elsewhere:
            await elsewhere.disable((await elsewhere.find(somebody.email)).id)

        assert await closed(tab.socket) == 4401


async def test_sockets_hold_no_database_connection(server: Server):
    """Two idle sockets once starved a pool of two."""
    async with person(server) as somebody, asyncio.TaskGroup() as group:
        tabs = [group.create_task(read_with_a_tab_open(somebody)) for _ in range(20)]

    assert [tab.result() for tab in tabs] == [200] * 20


async def read_with_a_tab_open(somebody: Person) -> int:
    async with somebody.tab():
        return (await somebody.client.get("/api/conversations")).status_code


# ---------------------------------------------------------------- while it is looked at


async def test_what_begins_while_a_conversation_is_looked_at_is_not_missed(
    house: Serving, monkeypatch: pytest.MonkeyPatch
):
    get, looked, go_on = Conversations.get, threading.Event(), asyncio.Event()

    async def get_slowly(
        self: Conversations, user_id: UserId, conversation_id: ConversationId
    ) -> ConversationView:
        found = await get(self, user_id, conversation_id)
        looked.set()
        await go_on.wait()
        return found

    async with somebody_at(house) as somebody, somebody.tab() as tab, somebody.tab() as other:
        conversation_id = await somebody.conversation()
        monkeypatch.setattr(Conversations, "get", get_slowly)
        await tab.send(Subscribe(request_id="r", conversation_id=conversation_id))
        assert await asyncio.to_thread(looked.wait, WAIT_S)
        accepted = await other.say(conversation_id, "Meanwhile")
        house.call(go_on.set)
        async with asyncio.timeout(WAIT_S):
            added = await tab.expect(MessageAdded)
            story = await tab.story(accepted.response.id)

    assert added.message == accepted.message
    assert story.numbers == list(range(len(story.numbers)))


async def texts_of(somebody: Person, conversation_id: ConversationId) -> list[str]:
    """What is stored in a conversation."""
    tree = await somebody.client.get(f"/api/conversations/{conversation_id}")
    return [message["text"] for message in tree.raise_for_status().json()["messages"]]


def slow_looks(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """From now on looking at a conversation takes until this is set, on the server's loop."""
    get, go_on = Conversations.get, asyncio.Event()

    async def get_slowly(
        self: Conversations, user_id: UserId, conversation_id: ConversationId
    ) -> ConversationView:
        await go_on.wait()
        return await get(self, user_id, conversation_id)

    monkeypatch.setattr(Conversations, "get", get_slowly)
    return go_on


async def test_15_a_stop_waits_for_no_frame_before_it(house: Serving, monkeypatch):
    house.call(engine_of(house).hold, 2)
    async with somebody_at(house) as somebody, somebody.tab() as tab:
        conversation_id, other_id = await somebody.conversation(), await somebody.conversation()
        await tab.subscribe(conversation_id)
        accepted = await tab.say(conversation_id, "Tell me of lighthouses.")
        go_on = slow_looks(monkeypatch)
        for number in range(LINE_FRAMES // 2):
            await tab.send(Subscribe(request_id=f"{number}", conversation_id=other_id))
        await tab.send(ResponseCancel(request_id="stop", response_id=accepted.response.id))

        async with asyncio.timeout(WAIT_S):
            stopped = await tab.expect(CancelAccepted)
            house.call(go_on.set)
            answered = [(await tab.expect(Subscribed)).request_id for _ in range(LINE_FRAMES // 2)]

    assert stopped.request_id == "stop"
    assert answered == [str(number) for number in range(LINE_FRAMES // 2)]


async def test_what_was_sent_before_the_page_left_is_done(house: Serving, monkeypatch):
    async with somebody_at(house) as somebody:
        conversation_id = await somebody.conversation()
        async with somebody.tab() as tab:
            await tab.subscribe(conversation_id)
            go_on = slow_looks(monkeypatch)
            await tab.send(Subscribe(request_id="r", conversation_id=conversation_id))
            await tab.send(
                TurnCreate(
                    request_id="t",
                    conversation_id=conversation_id,
                    client_message_id="m",
                    parent_id=None,
                    text="Say yes.",
                )
            )
        # What happens meanwhile is told to a page that is no longer there.
        for title in ("Another", "Yet another", "The last"):
            path = f"/api/conversations/{conversation_id}"
            (await somebody.client.patch(path, json={"title": title})).raise_for_status()
        house.call(go_on.set)
        async with asyncio.timeout(WAIT_S):
            while not await texts_of(somebody, conversation_id):  # noqa: ASYNC110  it has no event
                await asyncio.sleep(POLL_S)


async def test_a_conversation_that_is_not_ones_own_is_not_watched_either(house: Serving):
    async with somebody_at(house) as somebody, somebody.tab() as tab:
        conversation_id = await somebody.conversation()
        unknown = Cursor(response_id=ResponseId("resp_none"), after=0, epoch=tab.epoch)
        many = Subscribe(request_id="r1", conversation_id=conversation_id, cursors=(unknown,) * 65)
        errors = [
            await refused(tab, msgspec.json.encode(frame).decode())
            for frame in (
                many,
                msgspec.structs.replace(many, cursors=(unknown,)),
                Subscribe(request_id="r2", conversation_id=ConversationId("conv_none")),
            )
        ]
        async with somebody.tab() as other:
            await other.subscribe(conversation_id)
            unheard = await other.say(conversation_id, "Unheard")
            await other.event(unheard.response.id, ResponseEnded)
            await tab.subscribe(conversation_id)
            heard = await other.say(conversation_id, "Heard", unheard.response.message_id)
            added = await tab.expect(MessageAdded)

    fields = ["cursors", "response_id", "conversation_id"]
    assert [error.error.field for error in errors] == fields
    assert [error.error.code for error in errors] == ["invalid_request", "not_found", "not_found"]
    assert added.message == heard.message
