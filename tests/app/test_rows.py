"""What hurt the users of other chats, one test or more a row of docs/rows.md, over real connections.

`house` is a server of this process on each database whose engine a test holds in its hand;
`each_server` is one as its user has it, with the real model.
"""

import asyncio
import contextlib
import itertools
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
from argon2 import Type, extract_parameters
from sqlalchemy import select

from app.chat import checkpoints
from app.db.base import Database
from app.db.models import User
from app.db.types import AccountRole
from app.events import ResponseEnded, ResponseStatus, TextDelta
from app.frames import (
    CancelAccepted,
    ConversationChanged,
    Cursor,
    ErrorFrame,
    Event,
    OutwardFrame,
    TurnAccepted,
    TurnContinue,
    Unsubscribe,
    Unsubscribed,
)
from app.ids import ConversationId, ResponseId
from app.people.accounts import Accounts
from app.people.keys import Keys
from app.routes.socket import LONGEST_FRAME
from engine.api import JobClass, SessionId
from tests.kit.peers import Log, create, engine_of, until
from tests.kit.server import Server
from tests.kit.serving import Serving
from tests.kit.staff import Somebody, ask, boss, done, nothing_to_warm, somebody, stats
from tests.kit.tab import LONG, Person, Tab, browser, person

_numbers = itertools.count(1)


async def tree(who: Person, conversation_id: str) -> dict[str, Any]:
    found: dict[str, Any] = await done(
        await who.client.get(f"/api/conversations/{conversation_id}")
    )
    return found


async def say(
    who: Person, conversation_id: str, text: str, parent_id: str | None = None
) -> dict[str, Any]:
    """A turn by the page's other road, without a socket."""
    turn = {"client_message_id": f"c{next(_numbers)}", "parent_id": parent_id, "text": text}
    answer = await who.client.post(f"/api/conversations/{conversation_id}/turns", json=turn)
    accepted: dict[str, Any] = await done(answer)
    return accepted


async def rest(house: Serving) -> None:
    """Until nothing is being written."""
    await until(house, lambda: house.service.supervisor.live_turns == 0)


async def talk(house: Serving, who: Person, *texts: str) -> str:
    """A conversation of which every message has its answer."""
    conversation_id, leaf_id = await who.conversation(), None
    for text in texts:
        accepted = await say(who, conversation_id, text, leaf_id)
        leaf_id = accepted["response"]["message_id"]
        await rest(house)
    return conversation_id


# ---------------------------------------------------------------- who writes, and who watches


@pytest.mark.row("2")
async def test_13_an_answer_that_one_leaves_and_comes_back_to_is_whole_and_told_once(
    house: Serving,
):
    house.call(engine_of(house).hold, 4)
    async with somebody(house) as who, who.tab() as tab:
        here, there = await who.conversation(), await who.conversation()
        await tab.subscribe(here)
        accepted = await tab.say(here, "Go on")
        first = await tab.event(accepted.response.id, TextDelta)
        seen = await tab.event(accepted.response.id, TextDelta)

        await tab.send(Unsubscribe(request_id="u", conversation_id=here))
        await tab.expect(Unsubscribed)
        await tab.subscribe(there)
        house.call(engine_of(house).release)
        await rest(house)
        after = seen.sequence_number
        cursor = Cursor(response_id=accepted.response.id, after=after, epoch=tab.epoch)
        await tab.subscribe(here, cursor)
        story = await tab.story(accepted.response.id)
        stored = (await tree(who, here))["messages"][-1]

    assert story.snapshot is None
    assert story.numbers == list(range(after + 1, after + 1 + len(story.events)))
    assert stored["text"] == first.delta + seen.delta + story.text


@pytest.mark.row("3")
async def test_13_an_answer_is_the_same_whoever_watches_it(house: Serving):
    async with somebody(house) as who, who.tab() as tab, who.tab() as other:
        seen, unseen = await who.conversation(), await who.conversation()
        for one in (tab, other):
            await one.subscribe(seen)
        watched = await tab.say(seen, "Go on")
        await tab.story(watched.response.id)
        await say(who, unseen, "Go on")
        await rest(house)
        answers = [(await tree(who, one))["messages"][-1] for one in (seen, unseen)]

    assert answers[0]["text"] == answers[1]["text"] != ""
    counts = [answer["response"]["usage"]["output_tokens"] for answer in answers]
    assert counts[0] == counts[1] > 0


@pytest.mark.row("6", "7")
async def test_15_a_stop_stops_the_engine_within_a_step_and_the_next_answer_begins(
    each_server: Server,
):
    async with (
        person(each_server, AccountRole.ADMIN) as who,
        who.tab() as tab,
    ):
        await nothing_to_warm(who)
        conversation_id = await who.conversation()
        await tab.subscribe(conversation_id)
        accepted = await tab.say(conversation_id, LONG)
        await tab.event(accepted.response.id, TextDelta)

        await tab.cancel(accepted.response.id)
        answer = await tab.expect(CancelAccepted)
        stopped = await stats(who)
        running = await gauge(each_server, "keepwarm_num_requests_running")
        again = await stats(who)
        after = await tab.say(conversation_id, "Shorter.", accepted.response.message_id)
        ended = await tab.taste(after.response.id)

    assert answer.step is not None
    assert stopped["steps"] <= answer.step + 1
    assert again["steps"] == stopped["steps"]
    assert stopped["running_jobs"] == running == 0
    assert ended.text != ""


@pytest.mark.row("10")
async def test_15_a_stopped_answer_says_so_and_is_gone_on_with_from_its_last_word(house: Serving):
    house.call(engine_of(house).hold, 4)
    async with somebody(house) as who, who.tab() as tab:
        conversation_id = await who.conversation()
        await tab.subscribe(conversation_id)
        accepted = await tab.say(conversation_id, "Go on")
        await tab.event(accepted.response.id, TextDelta)
        await tab.cancel(accepted.response.id)
        stopped = await tab.event(accepted.response.id, ResponseEnded)
        kept = (await tree(who, conversation_id))["messages"][-1]

        answer_id = accepted.response.message_id
        await tab.send(
            TurnContinue(
                request_id="go on",
                conversation_id=conversation_id,
                client_message_id="go on",
                message_id=answer_id,
                leaf_id=answer_id,
            )
        )
        again = await tab.expect(TurnAccepted)
        house.call(engine_of(house).release)
        ended = await tab.event(again.response.id, ResponseEnded)
        whole = (await tree(who, conversation_id))["messages"]

    assert stopped.text != ""
    assert (kept["text"], kept["response"]["status"]) == (stopped.text, "cancelled")
    assert ended.response.status is ResponseStatus.COMPLETED
    assert ended.text.startswith(stopped.text) and ended.text != stopped.text
    answers = {one["id"]: one["text"] for one in whole if one["role"] == "assistant"}
    assert answers == {answer_id: stopped.text, again.response.message_id: ended.text}


async def gauge(server: Server, name: str) -> float:
    told = (await server.get("/metrics", authorization=f"Bearer {server.api_key}")).text
    (line,) = [line for line in told.splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[1])


@pytest.mark.row("13")
async def test_02_a_title_is_asked_for_behind_the_conversation_and_its_next_turn_pays_nothing(
    house: Serving, monkeypatch: pytest.MonkeyPatch
):
    engine, titles = engine_of(house), house.service.supervisor.titles
    monkeypatch.setattr(titles, "_wanted", True)
    monkeypatch.setitem(engine.says, JobClass.BACKGROUND, "Ships and sails.\n")
    async with somebody(house) as who, who.tab() as tab:
        conversation_id = await who.conversation()
        await tab.subscribe(conversation_id)
        accepted = await tab.say(conversation_id, "Tell me of ships, please.")
        await tab.event(accepted.response.id, ResponseEnded)
        await tab.expect(
            ConversationChanged, lambda frame: frame.conversation.title == "Ships and sails"
        )
        (asked,) = [
            job
            for job in engine.jobs
            if job.session_id == SessionId(conversation_id) and job.job_class is JobClass.BACKGROUND
        ]
        first = await receipt_of(who, conversation_id)
        leaf_id = accepted.response.message_id
        again = await tab.say(conversation_id, "And of sails?", leaf_id)
        await tab.event(again.response.id, ResponseEnded)
        second = await receipt_of(who, conversation_id)
        whole = await tree(who, conversation_id)
        turns = [job for job in engine.jobs if job.session_id == SessionId(conversation_id)]

    history = first["prompt_tokens"] + first["output_tokens"]
    assert asked.token_ids[:history] == turns[-1].token_ids[:history], "the same history first"
    assert second["cached_tokens"] >= history - 1
    assert whole["conversation"]["title"] == "Ships and sails"
    assert len(whole["messages"]) == 4, "the question for the title is none of them"


async def receipt_of(who: Person, conversation_id: str) -> dict[str, Any]:
    """What its last answer cost."""
    receipt: dict[str, Any] = (await tree(who, conversation_id))["messages"][-1]["response"][
        "receipt"
    ]
    return receipt


@pytest.mark.row("15")
async def test_02_a_second_turn_computes_what_is_new_and_not_a_token_more(each_server: Server):
    async with person(each_server) as who, who.tab() as tab:
        conversation_id = await who.conversation()
        await tab.subscribe(conversation_id)
        first = await tab.say(conversation_id, "Name three colours.")
        before = (await tab.taste(first.response.id)).response.receipt
        second = await tab.say(conversation_id, "And a fourth?", first.response.message_id)
        after = (await tab.taste(second.response.id)).response.receipt

    assert before is not None
    assert after is not None
    known = before.prompt_tokens + before.output_tokens
    assert after.computed_tokens == after.prompt_tokens - after.cached_tokens
    assert after.cached_tokens in (known - 1, known), "what was drawn last is computed with the new"


@pytest.mark.row("16")
async def test_14_two_tabs_on_two_conversations_never_get_each_others_answer(house: Serving):
    house.call(engine_of(house).hold, 3)
    async with somebody(house) as who, who.tab() as one, who.tab() as two:
        accepted: list[ResponseId] = []
        for tab in (one, two):
            conversation_id = await who.conversation()
            await tab.subscribe(conversation_id)
            accepted.append((await tab.say(conversation_id, "Go on")).response.id)
        house.call(engine_of(house).release)
        heard = [await heard_until_an_end(tab) for tab in (one, two)]

    assert accepted[0] != accepted[1]
    for response_id, frames in zip(accepted, heard, strict=True):
        events = [frame for frame in frames if isinstance(frame, Event)]
        assert {frame.response_id for frame in events} == {response_id}


async def heard_until_an_end(tab: Tab) -> list[OutwardFrame]:
    frames: list[OutwardFrame] = []
    while True:
        frame = await tab.receive()
        frames.append(frame)
        if isinstance(frame, Event) and isinstance(frame.event, ResponseEnded):
            return frames


@pytest.mark.row("17")
async def test_what_two_tabs_write_at_once_is_all_there(house: Serving):
    house.call(engine_of(house).hold, 3)
    async with somebody(house) as who, who.tab() as tab:
        answered = await who.conversation()
        await tab.subscribe(answered)
        accepted = await tab.say(answered, "Go on")
        await tab.event(accepted.response.id, TextDelta)
        made = await asyncio.gather(*(who.conversation() for _ in range(5)))
        rename = {"title": "Mine"}
        renamed = await asyncio.gather(
            *(who.client.patch(f"/api/conversations/{one}", json=rename) for one in made),
            *(say(who, one, "Me too") for one in made),
        )
        house.call(engine_of(house).release)
        await rest(house)
        listed = await done(await who.client.get("/api/conversations"))
        trees = [await tree(who, one) for one in (answered, *made)]

    assert len(renamed) == 10
    assert {one["id"] for one in listed["items"]} == {answered, *made}
    assert {one["title"] for one in listed["items"] if one["id"] in made} == {"Mine"}
    for found in trees:
        assert [one["role"] for one in found["messages"]] == ["user", "assistant"]
        assert all(one["text"] for one in found["messages"])


# ---------------------------------------------------------------- the tree


@pytest.mark.row("20", "36")
async def test_16_a_long_tree_goes_out_and_comes_in_as_it_was_in_whatever_order(house: Serving):
    async with somebody(house) as who:
        conversation_id = await talk(house, who, *(f"Message {n}" for n in range(10)))
        page, leaf_id = f"/api/conversations/{conversation_id}", await leaf(who, conversation_id)
        body = {"client_message_id": "again", "leaf_id": leaf_id}
        await done(await who.client.post(f"{page}/messages/{leaf_id}/regenerate", json=body))
        await rest(house)
        settings = {"title": "Mine", "pinned": True, "archived": True}
        await done(await who.client.patch(page, json=settings))
        exported = (await who.client.get(f"{page}/export")).json()
        mixed = {**exported, "conversations": [shuffled(one) for one in exported["conversations"]]}
        shapes, files = [shape(await tree(who, conversation_id))], [without_ids(exported)]
        for file in (exported, mixed):
            came = await done(await who.client.post("/api/import", content=json.dumps(file)))
            (known,) = came["conversation_ids"]
            shapes.append(shape(await tree(who, known)))
            files.append(without_ids(await done(await who.client.get(page_of(known, "export")))))
        copied = await done(await who.client.post(f"{page}/fork", json={"message_id": leaf_id}))
        copy = shape(await tree(who, copied["id"]))

    assert len(shapes[0]) == 21
    assert shapes[1] == shapes[2] == shapes[0]
    assert [one["text"] for one in copy] == [one["text"] for one in shapes[0][:20]]
    assert [one["parent"] for one in copy] == [one["parent"] for one in shapes[0][:20]]
    assert files[1] == files[0], "all that is kept of a conversation, but for its ids"


def shuffled(conversation: dict[str, Any]) -> dict[str, Any]:
    messages = conversation["messages"]
    dice = random.Random(len(messages))  # noqa: S311
    return {**conversation, "messages": dice.sample(messages, len(messages))}


def shape(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Each message, its parent's text, its time and what its answer cost, in the order of the tree."""
    messages = sorted(found["messages"], key=lambda one: (one["created_at"], one["id"]))
    texts = {one["id"]: one["text"] for one in messages}
    return [
        {
            "text": one["text"],
            "parent": texts.get(one["parent_id"]),
            "created_at": one["created_at"],
            "receipt": (one["response"] or {}).get("receipt"),
        }
        for one in messages
    ]


OF_TOKENS = {
    *("token_ids", "head_token_ids", "seam"),
    *("model_fingerprint", "template_fingerprint"),
}
"""What of a message does not come in again: a file may be forged, so its text is rendered anew."""


def without_ids(file: dict[str, Any]) -> Any:
    """The conversation of an archive, each id in it by its place."""
    (conversation,) = file["conversations"]
    messages, ids = conversation["messages"], [conversation["id"]]
    ids += [one["id"] for one in messages]
    ids += [one["response"]["id"] for one in messages if one.get("response")]
    said = [{key: one[key] for key in one.keys() - OF_TOKENS} for one in messages]
    text = json.dumps({**conversation, "messages": said})
    for place, one in enumerate(ids):
        text = text.replace(json.dumps(one), json.dumps(f"id {place}"))
    return json.loads(text)


def page_of(conversation_id: str, noun: str) -> str:
    return f"/api/conversations/{conversation_id}/{noun}"


async def leaf(who: Person, conversation_id: str) -> str:
    found: str = (await tree(who, conversation_id))["conversation"]["leaf_id"]
    return found


@pytest.mark.row("22", "24")
async def test_the_branch_that_one_chose_is_shown_on_every_device_and_nothing_is_lost(
    house: Serving,
):
    async with somebody(house) as who, browser(house.site, who.email) as phone, who.tab() as tab:
        conversation_id = await talk(house, who, "One", "Two")
        page, first_end = f"/api/conversations/{conversation_id}", await leaf(who, conversation_id)
        whole = await tree(who, conversation_id)
        root = whole["messages"][0]["id"]
        edit = {"client_message_id": "e", "leaf_id": first_end, "text": "Another one"}
        edited = await done(await who.client.post(f"{page}/messages/{root}/edit", json=edit))
        await rest(house)
        other_end = edited["response"]["message_id"]
        ends = []
        for chosen in (root, edited["message"]["id"], root):
            await done(await who.client.put(f"{page}/leaf", json={"message_id": chosen}))
            ends.append(await leaf(phone, conversation_id))
        both = await tree(phone, conversation_id)
        await tab.subscribe(ConversationId(conversation_id))
        await done(await who.client.delete(f"{page}/messages/{edited['message']['id']}"))
        left = await tree(phone, conversation_id)

    assert ends == [first_end, other_end, first_end]
    assert len(both["messages"]) == 6
    assert left["messages"] == whole["messages"]
    assert left["conversation"]["leaf_id"] == first_end


@pytest.mark.row("23")
async def test_a_message_for_a_leaf_that_moved_is_refused_on_every_road_and_stored_on_none(
    house: Serving,
):
    async with somebody(house) as who, who.tab() as tab:
        conversation_id = await talk(house, who, "First")
        root = (await tree(who, conversation_id))["messages"][0]["id"]
        turn = {"client_message_id": "late", "parent_id": None, "text": "I saw nothing"}
        edit = {"client_message_id": "later", "leaf_id": root, "text": "I saw half of it"}
        again = {"client_message_id": "latest", "leaf_id": root}
        refused = [
            await who.client.post(page_of(conversation_id, act), json=body)
            for act, body in (
                ("turns", turn),
                (f"messages/{root}/edit", edit),
                (f"messages/{root}/regenerate", again),
            )
        ]
        errors = []
        for kind, body in (
            ("turn.create", turn),
            ("turn.edit", edit | {"message_id": root}),
            ("turn.regenerate", again | {"message_id": root}),
        ):
            frame = {"type": kind, "request_id": "r", "conversation_id": conversation_id}
            await tab.socket.send(json.dumps(frame | body))
            errors.append((await tab.expect(ErrorFrame)).error.code)
        stored = (await tree(who, conversation_id))["messages"]

    for answer in refused:
        assert (answer.status_code, answer.json()["code"]) == (409, "parent_moved")
        assert answer.headers["x-should-retry"] == "false"
    assert errors == ["parent_moved"] * 3
    assert len(stored) == 2


@pytest.mark.row("25")
async def test_17_one_message_that_is_sent_by_every_road_at_once_is_one_message(house: Serving):
    house.call(engine_of(house).hold, 2)
    async with somebody(house) as who, who.tab() as tab, who.tab() as other:
        conversation_id = await who.conversation()
        turn = {"client_message_id": "same", "parent_id": None, "text": "Once"}
        path = f"/api/conversations/{conversation_id}/turns"
        by_socket = (one.say(conversation_id, "Once", None, "same") for one in (tab, other))
        by_request = (who.client.post(path, json=turn) for _ in range(3))
        accepted, answers = await asyncio.gather(
            asyncio.gather(*by_socket), asyncio.gather(*by_request)
        )
        house.call(engine_of(house).release)
        await rest(house)
        stored = (await tree(who, conversation_id))["messages"]
        jobs = [job for job in engine_of(house).jobs if str(job.owner_id) == who.user_id]

    told = {one.response.id for one in accepted}
    told |= {(await done(answer))["response"]["id"] for answer in answers}
    assert len(told) == 1
    assert [one["role"] for one in stored] == ["user", "assistant"]
    assert len(jobs) == 1


# ---------------------------------------------------------------- many at once


HALF_A_MINUTE = 20 * 10 * 2
"""Transactions that twenty people write in it who send something every three seconds: each turn is
stored when it is let in, and when it has ended."""


@pytest.mark.row("27")
async def test_twenty_conversations_at_once_never_find_the_database_locked(
    house: Serving, told: Log, monkeypatch: pytest.MonkeyPatch
):
    """As much as in half a minute, without its pauses, and beside another process that writes."""
    monkeypatch.setattr(checkpoints, "CHECKPOINT_S", 0.005)

    async def chat(who: Somebody, beside: Keys) -> list[ResponseStatus]:
        ends: list[ResponseStatus] = []
        leaf_id = None
        async with who.tab() as tab:
            conversation_id = await who.conversation()
            await tab.subscribe(conversation_id)
            while written(house) - begun < HALF_A_MINUTE:
                accepted = await tab.say(conversation_id, f"Message {len(ends)}", leaf_id)
                ended = await tab.event(accepted.response.id, ResponseEnded)
                leaf_id = accepted.response.message_id
                ends.append(ended.response.status)
                if len(ends) % 3 == 1:
                    await beside.create(who.user_id, "beside the server")
        return ends

    async with (
        contextlib.aclosing(Database(house.database_url)) as db,
        contextlib.AsyncExitStack() as stack,
    ):
        beside = Keys(db, Accounts(db))
        people = [await stack.enter_async_context(somebody(house)) for _ in range(20)]
        begun = written(house)
        ends = await asyncio.gather(*(chat(one, beside) for one in people))
        stored = [
            [len((await tree(one, item["id"]))["messages"]) for item in listed["items"]]
            for one in people
            for listed in [await done(await one.client.get("/api/conversations"))]
        ]
        keys = [len(await beside.list(one.user_id)) for one in people]

    assert {status for one in ends for status in one} == {ResponseStatus.COMPLETED}
    assert stored == [[2 * len(one)] for one in ends], "everything that was said is there"
    assert keys == [1 + (len(one) + 2) // 3 for one in ends]
    assert not told.complaints


def written(house: Serving) -> float:
    """How many transactions the server has written since it was started."""
    name = "keepwarm_database_transaction_seconds_count"
    found = house.service.db.figures.registry.get_sample_value(name, {"kind": "write"})
    assert found is not None
    return found


@pytest.mark.row("29")
async def test_a_conversation_of_five_hundred_messages_is_read_and_goes_on(house: Serving):
    async with somebody(house) as who, who.tab() as tab:
        conversation_id = await talk(house, who, "First")
        file = (await who.client.get(f"/api/conversations/{conversation_id}/export")).json()
        (conversation,) = file["conversations"]
        question, answer = conversation["messages"]
        messages, parent_id = [], None
        for number in range(250):
            at = question["created_at"] + 2 * number
            asked = question | {"id": f"q{number}", "parent_id": parent_id, "created_at": at}
            parent_id, response = f"a{number}", answer["response"] | {"id": f"r{number}"}
            said = answer | {"id": parent_id, "parent_id": asked["id"], "created_at": at + 1}
            messages += [
                asked | {"client_message_id": f"c{number}"},
                said | {"response": response},
            ]
        long = {**conversation, "messages": messages, "leaf_id": parent_id}
        body = json.dumps({**file, "conversations": [long]})
        came = await done(await who.client.post("/api/import", content=body))
        known = came["conversation_ids"][0]
        subscribed = await tab.subscribe(known)
        whole = await tree(who, known)
        newest = await done(
            await who.client.get(f"/api/conversations/{known}", params={"limit": 40})
        )
        before = {"limit": 40, "cursor": newest["next_cursor"]}
        older = await done(await who.client.get(messages_of(known), params=before))

        pages = [page async for page in backwards(who, known)]
        with pytest.raises(AssertionError, match="This cursor is not ours"):
            await done(await who.client.get(f"{messages_of(known)}?cursor=none"))
        accepted = await tab.say(known, "And now?", subscribed.leaf_id)
        ended = (await tab.event(accepted.response.id, ResponseEnded)).response

    assert ended.status is ResponseStatus.COMPLETED
    assert ended.receipt is not None
    assert ended.receipt.prompt_tokens > sum(len(one["text"]) for one in whole["messages"])
    assert len(whole["messages"]) == 500
    assert subscribed.leaf_id == whole["conversation"]["leaf_id"]
    assert [len(page) for page in pages] == [70] * 7 + [10]
    assert [one for page in pages for one in page] == whole["messages"][::-1]
    assert pages[0][0]["id"] == subscribed.leaf_id
    assert newest["messages"] == whole["messages"][-40:]
    assert older["items"] == whole["messages"][-80:-40][::-1]
    assert (newest["conversation"], whole["next_cursor"]) == (whole["conversation"], None)


async def backwards(who: Person, conversation_id: str) -> AsyncIterator[list[dict[str, Any]]]:
    """The pages of a conversation, from the newest message on."""
    asked: dict[str, Any] = {"limit": 70}
    while "cursor" not in asked or asked["cursor"] is not None:
        page = await done(await who.client.get(messages_of(conversation_id), params=asked))
        yield page["items"]
        asked["cursor"] = page["next_cursor"]


def messages_of(conversation_id: str) -> str:
    return page_of(conversation_id, "messages")


@pytest.mark.row("31", "messages")
async def test_a_text_that_is_too_long_is_refused_with_its_limit_by_every_road(house: Serving):
    async with somebody(house) as who, who.tab() as tab, who.tab() as other:
        conversation_id = await who.conversation()
        longest = "x" * 250_000
        turn = {"client_message_id": "m", "parent_id": None, "text": longest}
        path = f"/api/conversations/{conversation_id}/turns"
        beyond = await who.client.post(path, json=turn)
        megabyte = await who.client.post(path, json=turn | {"text": "x" * 1_100_000})
        frame = {"type": "turn.create", "request_id": "r", "conversation_id": conversation_id}
        await tab.socket.send(json.dumps(frame | turn))
        error = await tab.expect(ErrorFrame)
        await other.socket.send("x" * (LONGEST_FRAME + 1))
        too_long = await other.expect(ErrorFrame)
        stored = (await tree(who, conversation_id))["messages"]
        said = [{"role": "user", "content": longest}]
        dialect = [
            await who.ask("POST", "/v1/responses", json={"input": longest}),
            await who.ask("POST", "/v1/chat/completions", json={"model": "echo", "messages": said}),
        ]
        async with who.program() as program:
            await program.send(create(input=longest))
            dialects = json.loads(await program.recv())["error"]

    for told in (*(answer.json()["error"] for answer in dialect), dialects):
        assert told["code"] == "context_length_exceeded"
        assert "100,000" in told["message"] or "100000" in told["message"]
    assert (beyond.status_code, beyond.json()["code"]) == (400, "context_length_exceeded")
    assert "100,000" in beyond.json()["detail"] or "100000" in beyond.json()["detail"]
    assert megabyte.status_code == 400
    assert error.error.code == "context_length_exceeded"
    assert too_long.error.code == "frame_too_long"
    assert stored == []


# ---------------------------------------------------------------- when the engine is away


@pytest.mark.row("36")
async def test_17_while_the_engine_is_away_everything_that_was_said_can_be_read(house: Serving):
    async with somebody(house) as who, who.tab() as tab:
        conversation_id = await talk(house, who, "Remember the lighthouse")
        end = await leaf(who, conversation_id)
        engine_of(house)._closed = True
        try:
            refused = await say_anyhow(who, conversation_id, end)
            read = await tree(who, conversation_id)
            listed = await who.client.get("/api/conversations")
            found = await who.client.get("/api/search", params={"words": "lighthouse"})
            exported = await who.client.get(f"/api/conversations/{conversation_id}/export")
            await tab.subscribe(ConversationId(conversation_id))
        finally:
            engine_of(house)._closed = False

    assert refused
    assert read["messages"][0]["text"] == "Remember the lighthouse"
    assert [one.status_code for one in (listed, found, exported)] == [200] * 3
    assert len(found.json()["items"]) == 1


async def say_anyhow(who: Somebody, conversation_id: str, parent_id: str) -> bool:
    """Whether a turn is refused, or fails with words, and does not hang."""
    turn = {"client_message_id": "away", "parent_id": parent_id, "text": "Are you there?"}
    answer = await who.client.post(f"/api/conversations/{conversation_id}/turns", json=turn)
    if answer.status_code == 503:
        return True
    response_id = (await done(answer))["response"]["id"]
    events = await who.client.get(f"/api/responses/{response_id}/events")
    return '"failed"' in events.text


# ---------------------------------------------------------------- who may come in


@pytest.mark.row("api keys", "CVE-2026-45339")
async def test_one_key_is_worth_the_same_wherever_it_is_shown(house: Serving):
    """In one place, that is: all others open nothing."""
    async with (
        somebody(house) as who,
        httpx.AsyncClient(base_url=house.site.url, timeout=60) as stranger,
    ):
        key = who.key.key
        right = await ask(house.site.url, key, "/v1/models")
        elsewhere = [
            await stranger.get("/v1/models", headers={"x-api-key": key}),
            await stranger.get("/v1/models", headers={"api-key": key}),
            await stranger.get("/v1/models", headers={"authorization": f"Basic {key}"}),
            await stranger.get("/v1/models", params={"key": key, "api_key": key}),
            await stranger.get("/v1/models", cookies={"kw_session": key}),
            await stranger.get("/api/account", headers={"authorization": f"Bearer {key}"}),
        ]
        listed = await done(await who.client.get("/api/keys"))

    assert right.status_code == 200
    assert {answer.status_code for answer in elsewhere} == {401}
    assert key not in msgspec.json.encode(listed).decode()


@pytest.mark.row("csrf")
async def test_what_changes_something_is_sent_as_json_and_as_nothing_else(house: Serving):
    """A form of another site is sent as text or as a form, without asking."""
    async with somebody(house) as who:
        answers = [
            await who.client.post(
                "/api/conversations", content=b"{}", headers={"content-type": kind}
            )
            for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data")
        ]
        before = (await done(await who.client.get("/api/conversations")))["items"]

    assert {answer.status_code for answer in answers} <= {400, 415}
    assert before == []


@pytest.mark.row("messages")
async def test_what_a_socket_is_sent_is_read_strictly(house: Serving):
    told = []
    async with somebody(house) as who, who.tab() as tab:
        for frame in (
            '{"type":"no.such.thing","request_id":"r"}',
            '{"type":"subscribe","request_id":"r","conversation_id":"c","more":1}',
            '{"type":"subscribe","request_id":"r","conversation_id":' + "[" * 5_000,
            '{"request_id":"r","more":' + "[" * 5_000 + "]" * 5_000 + ',"type":"subscribe"}',
            '{"type":"hello","protocol":1}',
        ):
            await tab.socket.send(frame)
            told.append((await tab.expect(ErrorFrame)).error)
        await tab.subscribe(await who.conversation())
        await tab.socket.send(b"{}")
        last = (await tab.expect(ErrorFrame)).error.code
        async with asyncio.timeout(60):
            await tab.socket.wait_closed()

    assert [one.code for one in told] == ["invalid_request"] * 4 + ["unexpected_hello"]
    assert "no.such.thing" in told[0].message
    assert "`more`" in told[1].message
    assert (last, tab.socket.close_code) == ("binary_frame", 1003)


@pytest.mark.row("passwords")
async def test_a_password_is_kept_as_argon2id_with_what_it_should_cost(each_server: Server):
    async with contextlib.aclosing(Database(each_server.database_url)) as db, db.read() as session:
        admin = select(User.password_hash).where(User.email == each_server.admin_email)
        kept = await session.scalar(admin)

    assert kept is not None
    parameters = extract_parameters(kept)
    assert parameters.type is Type.ID
    assert parameters.memory_cost >= 19 * 1024
    assert parameters.time_cost >= 2


@pytest.mark.row("permission before lookup")
async def test_11_who_may_not_read_a_document_has_nothing_computed_with_it(house: Serving):
    async with somebody(house) as ann, somebody(house) as eve:
        mine = {"title": "Mine", "text": "The lighthouse is blue."}
        document = await done(await ann.client.post("/api/documents", json=mine))
        named = [document["summary"]["id"]]
        answer = await eve.client.post("/api/conversations", json={"document_ids": named})
        jobs = [job for job in engine_of(house).jobs if str(job.owner_id) == eve.user_id]

    assert answer.status_code == 404
    assert jobs == []


@pytest.mark.row("secrets")
async def test_no_answer_to_a_fault_and_no_figure_holds_a_secret(each_server: Server):
    key = {"authorization": f"Bearer {each_server.api_key}"}
    async with httpx.AsyncClient(base_url=each_server.url, timeout=60) as client:
        answers = [
            await client.get("/metrics", headers=key),
            await client.get("/schema/openapi.json"),
            await client.get("/api/account", headers=key),
            await client.get("/v1/responses/resp_0", headers=key),
            await client.post("/v1/responses", headers=key, json={"input": 5}),
        ]

    told = "".join(answer.text for answer in answers) + each_server.output
    for secret in (each_server.api_key, each_server.admin_password, each_server.database_url):
        assert secret not in told


@pytest.mark.row("admin bootstrap")
async def test_the_last_administrator_stays_whatever_is_tried(empty_house: Serving):
    async with boss(empty_house) as admin:
        path = f"/api/users/{admin.user_id}"
        answers = [
            await admin.client.patch(path, json={"role": "member"}),
            await admin.client.patch(path, json={"is_disabled": True}),
            await admin.client.delete(path),
        ]
        still = await done(await admin.client.get("/api/account"))

    assert {answer.status_code for answer in answers} == {409}
    assert still["role"] == "admin"


@pytest.mark.row("side channels")
async def test_11_what_another_wrote_is_no_hit_and_shows_in_no_figure(each_server: Server):
    secret = "The launch code of the lighthouse is seven seven three, and nobody may know it."
    cached = []
    for _ in range(2):
        async with person(each_server) as who, who.tab() as tab:
            conversation_id = await who.conversation()
            await tab.subscribe(conversation_id)
            accepted = await tab.say(conversation_id, secret)
            receipt = (await tab.taste(accepted.response.id)).response.receipt
            assert receipt is not None
            cached.append((receipt.cached_tokens, receipt.cached_by_source.session))

    assert [of_session for _, of_session in cached] == [0, 0]
