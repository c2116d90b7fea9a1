"""Laws 13, 15, 17, 18 and 19 over real sockets of a real server, which some tests stop or kill."""

import asyncio
import contextlib
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from app.db.types import AccountRole
from app.events import ResponseEnded, ResponseStatus, TextDelta
from app.frames import (
    CancelAccepted,
    Cursor,
    ErrorFrame,
    Inward,
    ResponseCancel,
    Snapshot,
    Subscribe,
    TurnAccepted,
    TurnCreate,
)
from app.ids import ConversationId, MessageId, ResponseId
from tests.kit.server import POLL_S, Server, fork_server
from tests.kit.serving import Serving
from tests.kit.staff import nothing_to_warm, somebody, stats
from tests.kit.tab import LONG, Person, Tab, person

TREE = "/api/conversations/{}"


async def tree(somebody: Person, conversation_id: ConversationId) -> list[dict[str, Any]]:
    """The messages of a conversation as they are stored, oldest first."""
    answer = await somebody.client.get(TREE.format(conversation_id))
    messages: list[dict[str, Any]] = answer.raise_for_status().json()["messages"]
    return messages


async def begun(tab: Tab, conversation_id: ConversationId) -> tuple[TurnAccepted, Cursor]:
    """A long answer that is on its way, and the cursor of what this tab heard of it."""
    await tab.subscribe(conversation_id)
    accepted = await tab.say(conversation_id, LONG)
    await tab.event(accepted.response.id, TextDelta)
    event = await tab.event(accepted.response.id, TextDelta)
    cursor = Cursor(response_id=accepted.response.id, after=event.sequence_number, epoch=tab.epoch)
    return accepted, cursor


# ---------------------------------------------------------------- 13: the server owns the generation


@pytest.mark.row("2")
async def test_13_an_answer_goes_on_without_its_tab_and_is_resumed_at_the_cursor(
    each_server: Server,
):
    async with person(each_server) as somebody:
        conversation_id = await somebody.conversation()
        async with somebody.tab() as tab:
            await tab.subscribe(conversation_id)
            accepted = await tab.say(conversation_id, "Say yes.")
            event = await tab.event(accepted.response.id, TextDelta)
            cursor = Cursor(
                response_id=accepted.response.id, after=event.sequence_number, epoch=tab.epoch
            )
        async with somebody.tab() as back:
            await back.subscribe(conversation_id, cursor)
            story = await back.story(accepted.response.id)
        async with somebody.tab() as late:
            await late.subscribe(
                conversation_id,
                Cursor(response_id=accepted.response.id, after=-1, epoch=late.epoch),
            )
            whole = await late.story(accepted.response.id)
        stored = (await tree(somebody, conversation_id))[-1]

    assert story.snapshot is None
    assert story.numbers == list(range(cursor.after + 1, whole.numbers[-1] + 1))
    assert whole.numbers == list(range(whole.numbers[-1] + 1))
    assert "".join(e.delta for e in whole.events if isinstance(e, TextDelta)) == stored["text"]


async def test_13_a_connection_that_breaks_without_a_word_changes_nothing(server: Server):
    async with person(server) as somebody:
        conversation_id = await somebody.conversation()
        async with somebody.tab() as tab:
            _, cursor = await begun(tab, conversation_id)
            tab.socket.transport.abort()
            with contextlib.suppress(ConnectionClosed):
                await tab.socket.recv()
        async with somebody.tab() as back:
            await back.subscribe(conversation_id, cursor)
            delta = await back.event(cursor.response_id, TextDelta)
            await back.cancel(cursor.response_id)
            await back.expect(CancelAccepted)

    assert delta.sequence_number == cursor.after + 1


async def test_13_an_ended_answer_is_replayed_from_any_cursor(server: Server):
    async with person(server) as somebody, somebody.tab() as tab:
        conversation_id = await somebody.conversation()
        await tab.subscribe(conversation_id)
        accepted = await tab.say(conversation_id, "Say yes.")
        whole = await tab.story(accepted.response.id)
        for after in (0, whole.numbers[-1] - 1):
            await tab.subscribe(
                conversation_id,
                Cursor(response_id=accepted.response.id, after=after, epoch=tab.epoch),
            )
            again = await tab.story(accepted.response.id)
            assert again.events == whole.events[after + 1 :]


# ---------------------------------------------------------------- 15: stop stops


@pytest.mark.row("6", "10")
async def test_15_a_stop_keeps_the_text_names_the_step_and_frees_what_was_held(each_server: Server):
    async with person(each_server, AccountRole.ADMIN) as somebody, somebody.tab() as tab:
        conversation_id = await somebody.conversation()
        accepted, _ = await begun(tab, conversation_id)

        await tab.cancel(accepted.response.id)
        end = await tab.event(accepted.response.id, ResponseEnded)
        answer = await tab.expect(CancelAccepted)
        await tab.cancel(accepted.response.id)
        again = await tab.expect(CancelAccepted)
        stored = (await tree(somebody, conversation_id))[-1]
        after = await stats(somebody)

    assert end.response.status is ResponseStatus.CANCELLED
    assert isinstance(answer.step, int)
    assert again.step is None
    assert stored["text"] == end.text != ""
    assert stored["response"]["status"] == "cancelled"
    assert after["running_jobs"] == after["blocks"]["in_use"] == 0


@pytest.mark.row("9")
async def test_15_a_stop_before_the_first_token_is_honoured(each_server: Server):
    """Between two pieces of a prompt of several, the first of which is computed already."""
    words = 2000
    async with person(each_server, AccountRole.ADMIN) as somebody, somebody.tab() as tab:
        await nothing_to_warm(somebody)
        conversation_id = await somebody.conversation()
        await tab.subscribe(conversation_id)
        accepted = await tab.say(conversation_id, "word " * words)
        while not (await stats(somebody))["running_jobs"]:  # noqa: ASYNC110  it has no event
            await asyncio.sleep(POLL_S)

        await tab.cancel(accepted.response.id)
        end = await tab.event(accepted.response.id, ResponseEnded)
        answer = await tab.expect(CancelAccepted)
        after = await stats(somebody)

    assert (end.response.status, end.text) == (ResponseStatus.CANCELLED, "")
    assert answer.step is not None
    assert end.response.receipt is not None
    assert 0 < end.response.receipt.computed_tokens < words
    assert after["running_jobs"] == after["blocks"]["in_use"] == 0


@pytest.mark.row("10")
async def test_15_a_stopped_answer_can_be_continued(each_server: Server):
    async with person(each_server) as somebody, somebody.tab() as tab:
        conversation_id = await somebody.conversation()
        accepted, _ = await begun(tab, conversation_id)
        await tab.cancel(accepted.response.id)
        stopped = await tab.event(accepted.response.id, ResponseEnded)

        after = await tab.say(conversation_id, "Shorter.", accepted.response.message_id)
        receipt = (await tab.taste(after.response.id)).response.receipt

    before = stopped.response.receipt
    assert before is not None
    assert receipt is not None
    assert receipt.cached_tokens >= before.prompt_tokens + before.output_tokens - 1


# ---------------------------------------------------------------- 17: acknowledged means stored


@pytest.mark.row("11")
async def test_17_nothing_acknowledged_is_lost_when_the_server_is_killed_in_mid_answer(
    database_url: str,
):
    with fork_server(KEEPWARM_DATABASE_URL=database_url) as server:
        async with person(server) as somebody:
            conversation_id = await somebody.conversation()
            async with somebody.tab() as tab:
                accepted, cursor = await begun(tab, conversation_id)
                server.kill()
            with fork_server(server.folder, server.port, KEEPWARM_DATABASE_URL=database_url):
                question, answer = await tree(somebody, conversation_id)
                async with somebody.tab() as back:
                    await back.subscribe(conversation_id, cursor)
                    snapshot = await back.expect(Snapshot)
                    after = await back.say(conversation_id, "Go on.", MessageId(answer["id"]))
                    receipt = (await back.taste(after.response.id)).response.receipt

    assert accepted.message is not None
    assert (question["id"], question["text"]) == (accepted.message.id, LONG)
    assert answer["response"]["status"] == "incomplete"
    assert answer["response"]["incomplete_reason"] == "interrupted"
    assert snapshot.epoch == back.epoch != cursor.epoch
    assert snapshot.text == answer["text"]
    assert receipt is not None
    assert receipt.prompt_tokens > len(answer["text"].split()), "the kept text is a part of it"


async def test_17_a_server_that_is_asked_to_stop_closes_with_1012_and_keeps_the_text():
    with fork_server() as server:
        async with person(server) as somebody:
            conversation_id = await somebody.conversation()
            async with somebody.tab() as tab:
                accepted, _ = await begun(tab, conversation_id)
                stopping = asyncio.create_task(asyncio.to_thread(server.stop))
                end = await tab.event(accepted.response.id, ResponseEnded)
                with contextlib.suppress(ConnectionClosed):
                    while True:
                        await tab.receive()
                code = tab.socket.close_code
            status = await stopping
            with fork_server(server.folder, server.port):
                stored = (await tree(somebody, conversation_id))[-1]

    assert end.response.status.ended
    assert stored["text"] == end.text
    assert code == 1012
    assert status == 0


# ---------------------------------------------------------------- 18: nothing waits for a slow reader


async def test_18_a_tab_that_reads_nothing_holds_up_nobody(server: Server):
    async with person(server) as somebody:
        conversation_id = await somebody.conversation()
        async with somebody.socket(max_queue=1) as deaf, somebody.tab() as tab:
            await deaf.send('{"type":"hello","protocol":1}')
            asked = Subscribe(request_id="r", conversation_id=conversation_id)
            await Tab(deaf).send(asked)
            deaf.transport.pause_reading()
            await tab.subscribe(conversation_id)

            accepted = await tab.say(conversation_id, "Say yes.")
            story = await tab.story(accepted.response.id)

            deaf.transport.abort()

    assert story.numbers == list(range(len(story.events)))
    assert isinstance(story.events[-1], ResponseEnded)


# ---------------------------------------------------------------- 19: the owner check


def strip(frame: ErrorFrame) -> tuple[str, str, str | None]:
    return frame.error.code, frame.error.message, frame.error.field


async def test_19_on_a_socket_anothers_ids_are_as_unknown_as_ids_that_never_were(server: Server):
    async with person(server) as owner, person(server) as other:
        theirs = await owner.conversation()
        mine = await other.conversation()
        async with owner.tab() as own, other.tab() as tab:
            await own.subscribe(theirs)
            accepted = await own.say(theirs, "Mine.")
            await own.taste(accepted.response.id)
            for named, never in asked_of(mine, theirs, accepted.response.id, tab.epoch):
                told = []
                for frame in (named, never):
                    await tab.send(frame)
                    told.append(await tab.expect(ErrorFrame))
                assert strip(told[0]) == strip(told[1])
                assert told[0].error.code == "not_found"


def asked_of(
    mine: ConversationId, theirs: ConversationId, response_id: ResponseId, epoch: str
) -> list[tuple[Inward, Inward]]:
    """Every frame that names an id: once with another's, once with one that never was."""
    unknown, nothing = ConversationId("conv_0"), ResponseId("resp_0")

    def turn(conversation_id: ConversationId) -> TurnCreate:
        return TurnCreate(
            request_id="r",
            conversation_id=conversation_id,
            client_message_id="m",
            parent_id=None,
            text="Whose?",
        )

    def watch(conversation_id: ConversationId, *ids: ResponseId) -> Subscribe:
        cursors = tuple(Cursor(response_id=one, after=-1, epoch=epoch) for one in ids)
        return Subscribe(request_id="r", conversation_id=conversation_id, cursors=cursors)

    return [
        (watch(theirs), watch(unknown)),
        (watch(mine, response_id), watch(mine, nothing)),
        (turn(theirs), turn(unknown)),
        (
            ResponseCancel(request_id="r", response_id=response_id),
            ResponseCancel(request_id="r", response_id=nothing),
        ),
    ]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/api/conversations/{conversation}", None),
        ("PATCH", "/api/conversations/{conversation}", {"title": "x"}),
        ("DELETE", "/api/conversations/{conversation}", None),
        (
            "POST",
            "/api/conversations/{conversation}/turns",
            {"client_message_id": "m", "parent_id": None, "text": "t"},
        ),
        ("GET", "/api/responses/{response}/events", None),
        ("POST", "/api/responses/{response}/cancel", None),
        ("DELETE", "/api/keys/{key}", None),
    ],
)
async def test_19_over_http_anothers_ids_are_as_unknown_as_ids_that_never_were(
    house: Serving, method: str, path: str, body: dict[str, Any] | None
):
    async with somebody(house) as owner, somebody(house) as other, owner.tab() as tab:
        theirs = await owner.conversation()
        await tab.subscribe(theirs)
        accepted = await tab.say(theirs, "Mine.")
        await tab.taste(accepted.response.id)
        key = (await owner.client.post("/api/keys", json={"name": "k"})).json()["view"]["id"]
        named = path.format(conversation=theirs, response=accepted.response.id, key=key)
        never = path.format(conversation="conv_0", response="resp_0", key="key_0")

        told = [await other.client.request(method, one, json=body) for one in (named, never)]
        still_there = await owner.client.get(TREE.format(theirs))

    assert [answer.status_code for answer in told] == [404, 404]
    first, second = ({**answer.json(), "request_id": ""} for answer in told)
    assert first == second
    assert still_there.status_code == 200
