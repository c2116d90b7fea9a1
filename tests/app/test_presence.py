"""What pages hear of their own conversations: which are warm, and where they are shown; on sockets and streams."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.chat.board import Board
from app.frames import (
    PROTOCOL,
    CacheState,
    ConversationWarmth,
    OutwardFrame,
    Presence,
    PresenceChanged,
    PresenceState,
    Shown,
    Warmth,
)
from app.ids import ConversationId, UserId
from tests.kit.serving import Serving
from tests.kit.staff import CUT_S, boss, done, somebody
from tests.kit.tab import Person, Tab

HEARD_S = 60.0


async def warmth(tab: Tab, conversation_id: str, state: CacheState) -> Warmth:
    def of_it(frame: ConversationWarmth) -> list[Warmth]:
        return [
            one
            for one in frame.conversations
            if (one.conversation_id, one.state) == (conversation_id, state)
        ]

    async with asyncio.timeout(HEARD_S):
        return of_it(await tab.expect(ConversationWarmth, lambda frame: bool(of_it(frame))))[0]


async def shown(tab: Tab, state: Shown) -> None:
    """Until this is heard."""
    async with asyncio.timeout(HEARD_S):
        await tab.expect(PresenceChanged, lambda frame: state in frame.conversations)


class Stream:
    """The event stream of a page without a socket."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines

    async def expect(self, kind: str) -> dict[str, Any]:
        async with asyncio.timeout(HEARD_S):
            async for line in self._lines:
                if line.startswith("data:"):
                    frame: dict[str, Any] = json.loads(line.removeprefix("data:"))
                    if frame["type"] == kind:
                        return frame
        raise AssertionError(f"the stream ended without {kind}")


@contextlib.asynccontextmanager
async def streaming(somebody: Person) -> AsyncIterator[Stream]:
    async with somebody.client.stream("GET", f"/api/events?protocol={PROTOCOL}") as answer:
        assert answer.status_code == 200
        yield Stream(answer.aiter_lines())


async def test_a_page_of_another_version_is_told_so_on_either_road(house: Serving):
    async with somebody(house) as ann:
        answers = [
            await ann.client.get("/api/events", params=query)
            for query in ({}, {"protocol": PROTOCOL + 1})
        ]
        async with ann.socket() as socket:
            await socket.send(json.dumps({"type": "hello", "protocol": PROTOCOL + 1}))
            frame = json.loads(await socket.recv())
        async with streaming(ann) as stream:
            opened = await stream.expect("page.opened")

    assert [one.status_code for one in answers] == [400, 400]
    codes = {*(one.json()["code"] for one in answers), frame["error"]["code"]}
    assert codes == {"unsupported_protocol"}
    assert opened["protocol"] == PROTOCOL


async def say(somebody: Person, conversation_id: str, text: str) -> str:
    turn = {"client_message_id": text, "parent_id": None, "text": text}
    path = f"/api/conversations/{conversation_id}/turns"
    made = await done(await somebody.client.post(path, json=turn))
    return str(made["response"]["id"])


async def test_every_page_hears_which_of_its_conversations_are_warm_parked_and_cold(
    house: Serving,
):
    async with boss(house) as admin, somebody(house) as ann:
        conversation_id = await ann.conversation()
        async with ann.tab() as tab:
            await say(ann, conversation_id, "Hello")
            warm = await warmth(tab, conversation_id, CacheState.WARM)
            async with ann.tab() as late, streaming(ann) as stream:
                told_late = await warmth(late, conversation_id, CacheState.WARM)
                streamed = await stream.expect("conversation.warmth")
            path = f"/api/admin/sessions/{ann.user_id}/{conversation_id}"
            await done(await admin.client.post(f"{path}/park"))
            parked = await warmth(tab, conversation_id, CacheState.PARKED)
            await done(await admin.client.post(f"{path}/evict"))
            cold = await warmth(tab, conversation_id, CacheState.COLD)

    assert warm == told_late and warm.device_tokens > 0
    assert streamed["conversations"][0]["device_tokens"] == warm.device_tokens
    assert (parked.device_tokens, parked.disk_tokens) == (0, warm.device_tokens)
    assert cold == Warmth(conversation_id=conversation_id, state=CacheState.COLD)


async def test_11_nobody_hears_how_warm_anothers_conversations_are_or_who_shows_them(
    house: Serving,
):
    async with somebody(house) as ann, somebody(house) as ben, ben.tab() as other:
        theirs = await ann.conversation()
        async with ann.tab() as tab:
            await tab.subscribe(theirs)
            await say(ann, theirs, "Hello")
            await warmth(tab, theirs, CacheState.WARM)
        own = await ben.conversation()
        await other.subscribe(own)
        await say(ben, own, "Hello")
        heard: list[OutwardFrame] = []
        async with asyncio.timeout(HEARD_S):
            while not any(isinstance(frame, ConversationWarmth) for frame in heard):
                heard.append(await other.receive())

    assert theirs not in str(heard) and ann.user_id not in str(heard)


async def test_every_page_hears_where_a_conversation_is_open_typed_in_and_hidden(house: Serving):
    async with somebody(house) as ann, ann.tab() as here, ann.tab() as there:
        conversation_id = await ann.conversation()
        await here.subscribe(conversation_id)
        await shown(there, Shown(conversation_id=conversation_id, open=1))
        await there.subscribe(conversation_id)
        await there.send(Presence(conversation_id=conversation_id, state=PresenceState.TYPING))
        await shown(here, Shown(conversation_id=conversation_id, open=2, typing=1))
        await there.send(Presence(conversation_id=conversation_id, state=PresenceState.HIDDEN))
        await shown(here, Shown(conversation_id=conversation_id, open=1, hidden=1))
        async with ann.tab() as late:
            await shown(late, Shown(conversation_id=conversation_id, open=1, hidden=1))
        await there.socket.close()
        await shown(here, Shown(conversation_id=conversation_id, open=1))


async def test_a_page_without_a_socket_hears_and_says_the_same(house: Serving):
    async with somebody(house) as ann, ann.tab() as tab:
        async with streaming(ann) as stream:
            opened = await stream.expect("page.opened")
            conversation_id = await ann.conversation()
            made = await stream.expect("conversation.changed")
            page = f"/api/pages/{opened['page_id']}"
            showing = {"conversation_id": conversation_id, "state": "typing"}
            await done(await ann.client.post(f"{page}/presence", json=showing))
            await shown(tab, Shown(conversation_id=conversation_id, open=1, typing=1))
            drafted = {"conversation_id": conversation_id, "parent_id": None, "text": "Tell me of "}
            await done(await ann.client.post(f"{page}/draft", json=drafted))
            response_id = await say(ann, conversation_id, "Tell me of the sea")
            message = await stream.expect("message.added")
            started = await stream.expect("response.started")
        await shown(tab, Shown(conversation_id=conversation_id))
        over = await ann.client.post(f"{page}/presence", json=showing)

    assert made["conversation"]["id"] == conversation_id
    assert message["message"]["text"] == "Tell me of the sea"
    assert started["response"]["id"] == response_id
    assert (over.status_code, over.json()["field"]) == (404, "page_id")


async def test_19_a_page_is_its_openers_alone_and_shows_what_is_theirs(house: Serving):
    async with somebody(house) as ann, somebody(house) as ben, streaming(ben) as stream:
        page = f"/api/pages/{(await stream.expect('page.opened'))['page_id']}"
        theirs, own = await ann.conversation(), await ben.conversation()
        answers = [
            await who.client.post(
                f"{page}/presence", json={"conversation_id": shown_id, "state": "open"}
            )
            for who, shown_id in ((ann, theirs), (ben, theirs), (ben, "conv_0"), (ben, own))
        ]
        draft = {"conversation_id": own, "parent_id": None, "text": "x"}
        drafted = await ann.client.post(f"{page}/draft", json=draft)

    assert [answer.status_code for answer in answers] == [404, 404, 404, 204]
    assert answers[1].json()["detail"] == answers[2].json()["detail"]
    assert drafted.status_code == 404


async def test_a_stream_ends_when_its_reader_is_shut_out_and_when_the_server_stops(
    empty_house: Serving,
):
    async with boss(empty_house) as admin, somebody(empty_house) as ann:
        async with streaming(ann) as stream, asyncio.timeout(CUT_S):
            await stream.expect("page.opened")
            shut = {"is_disabled": True}
            await done(await admin.client.patch(f"/api/users/{ann.user_id}", json=shut))
            with pytest.raises(AssertionError, match="ended"):
                await stream.expect("nothing")
        async with streaming(admin) as stream, asyncio.timeout(CUT_S):
            await stream.expect("page.opened")
            empty_house.stop()
            with pytest.raises(AssertionError, match="ended"):
                await stream.expect("nothing")


# ---------------------------------------------------------------- the board


async def test_of_many_states_the_last_is_told_and_no_more_than_two_words_a_second():
    board, ann = Board(), UserId("user_ann")
    with board.glance(ann) as glance:
        for tokens in range(1, 1000):
            for number in range(3):
                board.post(
                    ann,
                    Warmth(
                        conversation_id=ConversationId(f"conv_{number}"),
                        state=CacheState.WARM,
                        device_tokens=tokens,
                    ),
                )
        began = asyncio.get_running_loop().time()
        (first,) = await glance.frames()
        board.post(ann, Shown(conversation_id=ConversationId("conv_0"), open=1))
        (second,) = await glance.frames()
        took = asyncio.get_running_loop().time() - began

    assert isinstance(first, ConversationWarmth) and isinstance(second, PresenceChanged)
    assert [one.device_tokens for one in first.conversations] == [999] * 3
    assert took >= 0.5


async def test_what_is_nothing_is_told_once_and_kept_nowhere():
    board, ann = Board(), UserId("user_ann")
    conversation_id = ConversationId("conv_0")
    with board.glance(ann) as glance:
        board.post(ann, Shown(conversation_id=conversation_id))
        board.post(ann, Shown(conversation_id=conversation_id, open=1))
        board.post(ann, Shown(conversation_id=conversation_id))
        (told,) = await glance.frames()

    assert told == PresenceChanged(conversations=(Shown(conversation_id=conversation_id),))
    assert board.users == set() and not board._states
