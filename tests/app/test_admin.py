"""Figures for administrators and auditors over a real server, on both databases; and for nobody else."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
from sqlalchemy import event

from app.chat.board import Board
from app.chat.prefixes import prefix_tree
from app.chat.watching import Watching
from app.db.types import AccountRole
from app.settings import SETTINGS
from engine.api import MissReason
from engine.figures import CacheChange
from engine.kv.tiers import TierSizes
from engine.terms import SessionId, SubjectKind, Tier
from tests.kit.desk import Desk, config
from tests.kit.echo import EchoEngine
from tests.kit.peers import engine_of
from tests.kit.server import Server
from tests.kit.serving import Serving
from tests.kit.staff import boss, done, somebody
from tests.kit.tab import Person, person

SECRET = "the treasure is under the oak"
FIGURES = [
    "/api/admin/health",
    "/api/admin/cache",
    "/api/admin/cache/events",
    "/api/admin/sessions",
    "/api/admin/prefixes",
    "/api/admin/misses",
    "/api/admin/shares",
    "/api/admin/turns",
    "/api/admin/figures",
]


async def talked(somebody: Person, text: str = SECRET) -> str:
    """A conversation of one turn that has ended."""
    conversation_id = await somebody.conversation()
    async with somebody.tab() as tab:
        await tab.subscribe(conversation_id)
        accepted = await tab.say(conversation_id, text)
        await tab.story(accepted.response.id)
    return conversation_id


async def frames(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.aiter_lines():
        if line.startswith("data:"):
            yield json.loads(line.removeprefix("data:"))


async def test_11_a_member_sees_no_figure_of_the_pool_and_an_auditor_does_nothing(house: Serving):
    async with (
        somebody(house) as member,
        somebody(house, AccountRole.AUDITOR) as auditor,
        boss(house) as admin,
    ):
        conversation_id = await talked(member)
        act = f"/api/admin/sessions/{member.user_id}/{conversation_id}/evict"
        members = [await member.client.get(path) for path in FIGURES]
        members += [await member.client.post(act), await member.client.get("/api/admin/audit")]
        auditors = [await auditor.client.get(path) for path in FIGURES if "events" not in path]
        refused = [await auditor.client.post(act), await auditor.client.get("/api/admin/audit")]
        owned = {"owner_id": member.user_id}
        warm = await done(await admin.client.get("/api/admin/sessions", params=owned))

    assert {answer.status_code for answer in members} == {403}
    assert {answer.status_code for answer in auditors} == {200}
    assert {answer.status_code for answer in refused} == {403}
    assert [row["state"] for row in warm["items"]] == ["warm"], "nobody evicted it"


async def test_sessions_tell_of_owner_place_size_and_last_turn_and_no_word_of_what_was_said(
    empty_house: Serving,
):
    async with (
        boss(empty_house) as admin,
        somebody(empty_house) as ann,
        somebody(empty_house) as ben,
    ):
        conversations = {who.user_id: await talked(who) for who in (ann, ben)}
        every = await done(await admin.client.get("/api/admin/sessions", params={"limit": 1}))
        cursor = {"limit": 1, "cursor": every["next_cursor"]}
        rest = await done(await admin.client.get("/api/admin/sessions", params=cursor))
        owned = await admin.client.get("/api/admin/sessions", params={"owner_id": ben.user_id})
        looks = [await admin.client.get(path) for path in FIGURES if "events" not in path]

    rows = [*every["items"], *rest["items"]]
    assert {row["owner_id"]: row["session_id"] for row in rows} == conversations
    assert rest["next_cursor"] is None
    (row,) = owned.json()["items"]
    receipt = row["last_turn"]["receipt"]
    assert row["session_id"] == conversations[ben.user_id]
    assert row["device_tokens"] == receipt["prompt_tokens"] + receipt["output_tokens"]
    assert row["device_bytes"] == row["blocks"] * 16
    assert (row["state"], row["tier"], row["is_running"]) == ("warm", "device", False)
    told = "".join(answer.text for answer in (owned, *looks))
    assert SECRET not in told and "treasure" not in told


@pytest.mark.row("dashboard")
async def test_11_no_text_and_no_title_is_even_read_for_a_figure(house: Serving):
    asked: list[str] = []

    def note(*told: Any) -> None:
        asked.append(told[2])

    async with boss(house) as admin, somebody(house) as ann:
        await talked(ann)
        event.listen(engine := house.service.db.engine.sync_engine, "before_cursor_execute", note)
        for path in FIGURES:
            if "events" not in path:
                await done(await admin.client.get(path))
        event.remove(engine, "before_cursor_execute", note)

    columns = {word.strip(",") for one in asked for word in one.split()}
    assert "responses.receipt" in columns
    texts = "responses.instructions", "responses.request", "messages.text", "conversations.title"
    assert not columns & {*texts, "library_versions.text", "responses.error"}


async def test_shares_and_turns_sum_up_what_sessions_hold_and_what_their_turns_cost(
    empty_house: Serving,
):
    async with (
        boss(empty_house) as admin,
        somebody(empty_house) as ann,
        somebody(empty_house) as ben,
    ):
        for who in (ann, ben, ann):
            await talked(who)
        quota = f"/api/users/{ann.user_id}/quotas/kept_warm_bytes"
        await done(await admin.client.put(quota, json={"allowed": 5000}))
        told = await done(await admin.client.get("/api/admin/shares"))
        turns = await done(await admin.client.get("/api/admin/turns", params={"limit": 2}))
        listed = await done(await admin.client.get("/api/admin/sessions"))

    rows = listed["items"]
    assert {one["owner_id"]: one["sessions"] for one in told["owners"]} == {
        ann.user_id: 2,
        ben.user_id: 1,
    }
    limits = {one["owner_id"]: one["kept_limit_bytes"] for one in told["owners"]}
    assert limits == {ann.user_id: 5000, ben.user_id: None}
    for one in told["owners"]:
        own = [row for row in rows if row["owner_id"] == one["owner_id"]]
        assert one["device_bytes"] == sum(row["device_bytes"] for row in own)
    assert told["owner_limit_bytes"] <= told["pinned_limit_bytes"] <= told["pool_bytes"]
    newest = sorted((row["last_turn"] for row in rows), key=lambda turn: turn["response_id"])
    assert [turn["response_id"] for turn in turns] == [
        turn["response_id"] for turn in reversed(newest[1:])
    ]
    assert turns[0]["prompt_tokens"] == newest[-1]["receipt"]["prompt_tokens"]


async def test_the_settings_in_force_are_told_without_their_secrets(house: Serving):
    async with boss(house) as admin:
        told = await done(await admin.client.get("/api/admin/settings"))

    values = {row["variable"]: row["value"] for row in told}
    assert list(values) == [one.variable for one in SETTINGS]
    assert values["KEEPWARM_PORT"] == str(house.service.settings.port)
    secret = house.service.settings.admin_password
    assert secret is None or secret not in str(told)


async def test_everybodys_keys_are_listed_and_revoked_by_an_administrator(house: Serving):
    async with boss(house) as admin, somebody(house) as ann:
        listed = await done(await admin.client.get("/api/admin/keys"))
        path = f"/api/users/{ann.user_id}/keys/{ann.key.view.id}"
        refused = await ann.client.delete(path)
        foreign = await admin.client.delete(path.replace(ann.user_id, admin.user_id))
        await done(await admin.client.delete(path))
        after = await ann.ask("GET", "/v1/models")
        acts = await done(
            await admin.client.get("/api/admin/audit", params={"subject_id": ann.user_id})
        )

    (row,) = [one for one in listed if one["user_id"] == ann.user_id]
    assert (row["id"], row["email"]) == (ann.key.view.id, ann.email)
    assert ann.key.key not in str(listed)
    assert (refused.status_code, foreign.status_code, after.status_code) == (403, 404, 401)
    assert acts["items"][0]["act"] == "key.revoked"
    assert acts["items"][0]["actor_id"] == admin.user_id


async def test_a_session_is_parked_warmed_and_evicted_and_answers_all_the_same(house: Serving):
    async with boss(house) as admin, somebody(house) as ann:
        conversation_id = await talked(ann)
        states, owned = [], {"owner_id": ann.user_id}
        for act in ("park", "warm", "unpin", "evict"):
            path = f"/api/admin/sessions/{ann.user_id}/{conversation_id}/{act}"
            await done(await admin.client.post(path))
            listed = await done(await admin.client.get("/api/admin/sessions", params=owned))
            states.append([row["state"] for row in listed["items"]])
        gone = [
            await admin.client.post(f"/api/admin/sessions/{ids}/evict")
            for ids in (f"{ann.user_id}/{conversation_id}", f"{admin.user_id}/{conversation_id}")
        ]
        acts = await done(
            await admin.client.get("/api/admin/audit", params={"subject_id": ann.user_id})
        )
        tree = await done(await ann.client.get(f"/api/conversations/{conversation_id}"))
        turn = {
            "client_message_id": "again",
            "parent_id": tree["conversation"]["leaf_id"],
            "text": "And now?",
        }
        answer = await ann.client.post(f"/api/conversations/{conversation_id}/turns", json=turn)

    assert states == [["parked"], ["warm"], ["warm"], []]
    assert [one.status_code for one in gone] == [404, 404]
    done_acts = [row["act"] for row in acts["items"] if row["act"].startswith("session.")]
    in_order = ("parked", "warmed", "unpinned", "evicted")
    assert done_acts[::-1] == [f"session.{act}" for act in in_order]
    assert answer.is_success


async def test_misses_are_listed_by_reason_with_the_place_and_in_pages(empty_house: Serving):
    engine = engine_of(empty_house)
    async with (
        boss(empty_house) as admin,
        somebody(empty_house) as ann,
        somebody(empty_house) as ben,
    ):
        engine.misses.extend([(MissReason.FIRST_TURN, None), (MissReason.INPUT_CHANGED, 12)])
        for who in (ann, ben, ann):
            await talked(who)
        every = await done(await admin.client.get("/api/admin/misses", params={"limit": 1}))
        cursor = {"cursor": every["next_cursor"]}
        rest = await done(await admin.client.get("/api/admin/misses", params=cursor))
        changed = await done(
            await admin.client.get("/api/admin/misses", params={"reason": "input_changed"})
        )
        anns = await done(
            await admin.client.get("/api/admin/misses", params={"user_id": ann.user_id})
        )
        foreign = await admin.client.get("/api/admin/misses", params={"cursor": "x"})

    rows = [*every["items"], *rest["items"]]
    assert [(row["reason"], row["differs_at"], row["user_id"]) for row in rows] == [
        ("input_changed", 12, ben.user_id),
        ("first_turn", None, ann.user_id),
    ]
    assert changed["items"] == rows[:1] and anns["items"] == rows[1:]
    assert foreign.status_code == 400


async def test_what_happens_in_the_cache_is_streamed_as_sums_after_a_snapshot(house: Serving):
    async with (
        boss(house) as admin,
        somebody(house) as ann,
        admin.client.stream("GET", "/api/admin/cache/events") as stream,
    ):
        heard = frames(stream)
        first = await anext(heard)
        await talked(ann)
        change = await anext(heard)
        while "published" not in [one["kind"] for one in change["changes"]]:
            change = await anext(heard)

    assert first["type"] == "cache.snapshot" and change["type"] == "cache.changes"
    assert change["sequence_number"] > first["sequence_number"]
    assert change["blocks"]["cached"] > 0 and not change["missed"]
    assert ann.user_id not in str(change), "whose it was is not told"


async def test_where_an_event_is_missing_the_stream_says_so():
    engine, board = EchoEngine(), Board()
    watching = Watching(engine, board)
    async with watching.running():
        with watching.tally() as tally:
            taking = asyncio.create_task(tally.take())
            while not taking.done():
                engine.note(CacheChange.PUBLISHED, 1)
                await asyncio.sleep(0)
            whole = await taking
            engine.note(CacheChange.EVICTED, 1, missing=1)
            gap = await tally.take()
            while gap.changes[-1].kind is not CacheChange.EVICTED:
                gap = await tally.take()

    assert whole.changes[0].kind is CacheChange.PUBLISHED and not whole.missed
    assert gap.missed and gap.sequence_number > whole.sequence_number


async def test_health_tells_of_engine_process_and_database(house: Serving):
    async with boss(house) as admin, admin.tab():
        told = await done(await admin.client.get("/api/admin/health"))

    assert told["engine"]["model"] == "echo" and told["engine"]["restarts"] == 0
    assert told["engine"]["pool_bytes"] > 0
    assert told["database_answers"] and told["open_sockets"] >= 1
    assert told["process"]["resident_bytes"] > 2**20 and told["process"]["uptime_s"] > 0


@pytest.mark.usefixtures("one_day")
async def test_usage_is_summed_by_user_model_key_and_day(empty_house: Serving):
    async with (
        boss(empty_house) as admin,
        somebody(empty_house) as ann,
        somebody(empty_house) as ben,
    ):
        for who in (ann, ben, ann):
            await talked(who)
        await done(await ann.ask("POST", "/v1/responses", json={"input": "Hi"}))

        async def summed(*by: str, **wanted: str) -> list[dict[str, Any]]:
            asked = {"by": list(by), **wanted}
            found: list[dict[str, Any]] = await done(
                await admin.client.get("/api/admin/usage", params=asked)
            )
            return found

        by_user, by_key = await summed("user"), await summed("key", "model", user_id=ann.user_id)
        by_day = await summed("day")
        day = by_day[0]["day"]
        none = await summed("user", since="2999-01-01")
        whole = await summed("user", since=day, until=day)
        users = await done(await admin.client.get("/api/admin/users"))
        wrong = [
            await admin.client.get("/api/admin/usage", params=asked)
            for asked in ({}, {"by": "text"}, {"by": "user", "since": "yesterday"})
        ]

    assert {row["user_id"]: row["requests"] for row in by_user} == {ann.user_id: 3, ben.user_id: 1}
    assert {(row["key_id"], row["model"]): row["requests"] for row in by_key} == {
        ("", "echo"): 2,
        (ann.key.view.id, "echo"): 1,
    }
    assert [row["requests"] for row in by_day] == [4] and by_day[0]["user_id"] is None
    assert none == [] and whole == by_user
    sums = {row["id"]: row for row in users}
    assert sums[ann.user_id]["requests"] == 3 and sums[ann.user_id]["conversations"] == 3
    assert sums[ann.user_id]["stored_bytes"] > 0 and sums[ann.user_id]["last_seen_at"] is not None
    assert sums[admin.user_id]["requests"] == 0
    assert {answer.status_code for answer in wrong} == {400}


# ---------------------------------------------------------------- a real engine


async def test_01_what_an_administrator_evicts_is_computed_again_and_nothing_else_is_lost(
    server: Server,
):
    async with (
        person(server, AccountRole.ADMIN) as admin,
        person(server) as ann,
        ann.tab() as tab,
    ):
        conversation_id = await ann.conversation()
        await tab.subscribe(conversation_id)
        first = await tab.say(conversation_id, "Name a bird.")
        end = await tab.taste(first.response.id)
        user_id = (await done(await ann.client.get("/api/account")))["id"]
        owned = {"owner_id": user_id}
        listed = await done(await admin.client.get("/api/admin/sessions", params=owned))
        tree = await done(await admin.client.get("/api/admin/prefixes"))
        health = await done(await admin.client.get("/api/admin/health"))
        path = f"/api/admin/sessions/{user_id}/{conversation_id}/evict"
        await done(await admin.client.post(path))
        evicted = await done(await admin.client.get("/api/admin/sessions", params=owned))
        second = await tab.say(conversation_id, "And another.", end.response.message_id)
        receipt = (await tab.taste(second.response.id)).response.receipt

    (row,) = listed["items"]
    assert (row["session_id"], row["state"], row["retention"]) == (conversation_id, "warm", "live")
    assert 0 < row["shared_blocks"] < row["blocks"]
    assert row["last_turn"]["response_id"] == first.response.id
    persona = max((n for n in tree["nodes"] if n["scope"] == "operator"), key=lambda n: n["hits"])
    assert persona["hits"] > 0 and persona["paths"] > 0
    assert health["engine"]["steps"] > 0
    assert [one["device_tokens"] for one in evicted["items"]] in ([], [0])
    assert receipt is not None and end.response.receipt is not None
    assert receipt.cached_by_source.session == 0 < receipt.cached_by_source.persona
    assert receipt.prompt_tokens > end.response.receipt.prompt_tokens


# ---------------------------------------------------------------- the prefix tree


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_the_largest_part_of_a_prefix_tree_is_a_tree(limit: int):
    desk = Desk(config(tiers=TierSizes(token_bytes=1, disk_bytes=4096)))
    for at in range(4):
        desk.run(desk.job([*range(2, 34), *[50 + at] * (8 * at + 1)], session=f"s{at}", shared=32))

    whole = desk.core.snapshot(desk.now)
    tree = prefix_tree(whole, limit, 8)

    ids = {row.node_id for row in tree.nodes}
    assert all(row.parent_id is None or row.parent_id in ids for row in tree.nodes)
    assert len(tree.nodes) + tree.left_out == len(whole.nodes)
    roots = sum(row.all_tokens for row in tree.nodes if row.parent_id is None)
    leaves = {row.subject_id: row for row in tree.nodes if row.kind is SubjectKind.SESSION}
    assert limit < len(whole.nodes) or set(leaves) == {f"s{at}" for at in range(4)}
    assert limit < len(whole.nodes) or roots == sum(node.tokens for node in whole.nodes)


def test_what_lies_in_a_lower_tier_alone_stands_behind_its_session():
    desk = Desk(config())
    desk.run(desk.job(list(range(2, 50)), session="here"))
    snapshot = desk.core.snapshot(desk.now)
    (view,) = snapshot.sessions
    more = msgspec.structs.replace(view, disk_tokens=view.cached_tokens + 30)
    away = msgspec.structs.replace(
        view, session_id=SessionId("away"), cached_tokens=0, host_tokens=20
    )

    tree = prefix_tree(msgspec.structs.replace(snapshot, sessions=(more, away)), 100, 8)

    end = next(row for row in tree.nodes if row.subject_id == "here" and row.node_id > 0)
    parked = {row.subject_id: row for row in tree.nodes if row.node_id < 0}
    assert (parked["here"].parent_id, parked["here"].tokens) == (end.node_id, 30)
    assert (parked["away"].parent_id, parked["away"].tokens) == (None, 20)
    assert (parked["here"].tier, parked["away"].tier) == (Tier.DISK, Tier.HOST)
    assert end.all_tokens == end.tokens + 30
    assert all(row.bytes == 8 * row.tokens for row in tree.nodes)
