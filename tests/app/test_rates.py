"""How often and how many: buckets, and what a door says to who comes too often."""

import asyncio
import contextlib
import json

import httpx
import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from app import frames
from app.db.types import QuotaKind
from app.errors import TooMany
from app.frames import ErrorFrame, Subscribe
from app.ids import ConversationId
from app.people import rates
from app.people.rates import Rate, Rates, one_line
from app.routes import connection, watches
from app.routes import socket as browser
from app.routes.problems import CLOSE_LATER, CLOSE_OLD
from tests.kit.people import Clock
from tests.kit.serving import Serving
from tests.kit.staff import Somebody, boss, closes, done, somebody

PAIR = Rate(acts="acts", burst=2, per_s=0.5)


def wait(found: Rates, subject: str) -> float | None:
    """How long the subject is told to wait; None where it may act."""
    try:
        found.take(PAIR, subject)
    except TooMany as told:
        return told.retry_after_s
    return None


def test_a_bucket_is_emptied_at_once_and_fills_steadily():
    now = [0.0]
    found = Rates(lambda: now[0])

    first = [wait(found, "ann") for _ in range(3)]
    other = wait(found, "ben")
    now[0] = 1.0
    early = wait(found, "ann")
    now[0] = 3.0
    later = [wait(found, "ann") for _ in range(2)]
    now[0] = 1000.0
    full = [wait(found, "ann") for _ in range(3)]

    assert (first, other, early) == ([None, None, 2.0], None, 1.0)
    assert later == [None, 1.0]
    assert [one is None for one in full] == [True, True, False]


@pytest.mark.row("rates")
def test_there_are_only_so_many_buckets_and_who_is_held_back_keeps_theirs():
    found = Rates(Clock().seconds, bound=10)
    held = [wait(found, "ann") for _ in range(3)]
    for stranger in range(100):
        wait(found, str(stranger))
        held.append(wait(found, "ann"))

    assert len(found) == 10
    assert held[:2] == [None, None]
    assert None not in held[2:]


# ---------------------------------------------------------------- on real connections


def slower(monkeypatch: pytest.MonkeyPatch, module: object, name: str, burst: int = 2) -> None:
    rate = getattr(rates, name)
    monkeypatch.setattr(module, name, msgspec.structs.replace(rate, burst=burst, per_s=0.001))


async def told(handshake: contextlib.AbstractAsyncContextManager[object]) -> tuple[int, int, str]:
    with pytest.raises(InvalidStatus) as refused:
        async with handshake:
            pass
    answer = refused.value.response
    return answer.status_code, int(answer.headers["retry-after"]), answer.body.decode()


@pytest.mark.row("rates")
@pytest.mark.parametrize("name", ["HANDSHAKES_PER_ADDRESS", "HANDSHAKES_PER_USER"])
async def test_who_opens_sockets_too_often_is_told_when_to_come_again(
    house: Serving, monkeypatch: pytest.MonkeyPatch, name: str
):
    slower(monkeypatch, rates, name)
    async with somebody(house) as who:
        async with who.tab(), who.program():
            pass
        page, program = await told(who.socket()), await told(who.program())

    assert page[0] == program[0] == 429
    assert min(page[1], program[1]) > 1
    assert json.loads(page[2])["code"] == "rate_limit_exceeded"
    assert json.loads(program[2])["error"]["code"] == "rate_limit_exceeded"


@pytest.mark.row("counts")
async def test_an_address_has_so_many_sockets(house: Serving, monkeypatch: pytest.MonkeyPatch):
    house.until(lambda: house.service.gate.open_sockets == 0)
    monkeypatch.setattr(house.service.gate, "_per_address", 2)
    async with somebody(house) as one, somebody(house) as other:
        async with one.tab(), other.program():
            status, _, body = await told(one.socket())
        house.until(lambda: house.service.gate.open_sockets == 0)
        async with one.tab():
            pass

    assert status == 429
    assert "from this address" in json.loads(body)["detail"]


@pytest.mark.row("counts")
async def test_an_address_is_what_a_trusted_proxy_says(
    house: Serving, monkeypatch: pytest.MonkeyPatch
):
    async with somebody(house) as who:

        def from_address(address: str) -> connect:
            headers = {"Authorization": f"Bearer {who.key.key}", "X-Forwarded-For": address}
            door = f"{house.site.ws_url}/v1/responses"
            return connect(door, additional_headers=headers, open_timeout=60)

        monkeypatch.setattr(house.service.gate, "_per_address", 1)
        async with (
            from_address("203.0.113.1"),
            from_address("203.0.113.2"),
            from_address("2001:db8::1"),
            from_address("2001:db8:0:1::1"),
        ):
            again = [
                await told(from_address(one))
                for one in ("203.0.113.1", "::ffff:203.0.113.1", "2001:db8::ffff")
            ]

    assert [status for status, _, _ in again] == [429] * 3


def test_who_has_a_line_of_ipv6_has_one_address_and_what_is_no_address_stays_as_it_is():
    assert one_line("2001:db8::1") == one_line("2001:db8::ffff:1") != one_line("2001:db8:0:1::1")
    assert one_line("::ffff:192.0.2.1") == "192.0.2.1"
    for one in ("192.0.2.1", "", "unknown", "testclient"):
        assert one_line(one) == one


@pytest.mark.row("rates")
async def test_who_floods_a_socket_with_frames_is_told_and_closed(
    house: Serving, monkeypatch: pytest.MonkeyPatch
):
    slower(monkeypatch, connection, "FRAMES_PER_SOCKET")
    async with somebody(house) as who, who.tab() as tab, who.program() as program:
        for one in (tab.socket, program):
            with contextlib.suppress(ConnectionClosed):  # the server may be quicker than the third
                for _ in range(3):
                    await one.send("{}")
        error = await tab.expect(
            ErrorFrame, lambda frame: frame.error.code == "rate_limit_exceeded"
        )
        codes = [await closes(tab.socket), await closes(program)]

    assert error.error.retry_after_s is not None
    assert codes == [CLOSE_LATER, CLOSE_LATER]


@pytest.mark.row("rates")
async def test_who_begins_or_stops_too_often_is_told_on_socket_and_http_alike(
    house: Serving, monkeypatch: pytest.MonkeyPatch
):
    async with somebody(house) as who, who.tab() as tab:
        conversation_id = await who.conversation()
        accepted = await tab.say(conversation_id, "hello")
        for name in ("CREATES_PER_USER", "CANCELS_PER_USER"):
            slower(monkeypatch, rates, name, burst=0)
        await tab.send(
            frames.TurnCreate(
                request_id="again",
                conversation_id=conversation_id,
                client_message_id="c9",
                parent_id=None,
                text="hello",
            )
        )
        on_socket = await tab.expect(ErrorFrame)
        refused = [
            await who.client.post("/api/conversations", json={}),
            await who.client.post(f"/api/responses/{accepted.response.id}/cancel"),
            await who.ask("POST", "/v1/responses", json={"model": "echo", "input": "hello"}),
        ]

    assert on_socket.error.code == "rate_limit_exceeded"
    assert [answer.status_code for answer in refused] == [429] * 3
    assert all("retry-after" in answer.headers for answer in refused)


@pytest.mark.row("pins")
async def test_who_keeps_too_much_warm_too_often_is_told(
    house: Serving, monkeypatch: pytest.MonkeyPatch
):
    slower(monkeypatch, rates, "PINS_PER_USER", burst=1)
    async with somebody(house) as who:
        path = f"/api/conversations/{await who.conversation()}"
        answers = [
            await who.client.patch(path, json={"kept_warm": kept}) for kept in (True, False, True)
        ]

    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[-1].json()["code"] == "rate_limit_exceeded"


@pytest.mark.row("counts")
async def test_a_socket_watches_so_many_conversations(
    house: Serving, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(watches, "MOST_SUBSCRIPTIONS", 1)
    async with somebody(house) as who, who.tab() as tab:
        first, second = [await who.conversation() for _ in range(2)]
        await tab.subscribe(first)
        await tab.subscribe(first)
        await tab.send(Subscribe(request_id="second", conversation_id=ConversationId(second)))
        refused = await tab.expect(ErrorFrame)
        await tab.send(frames.Unsubscribe(request_id="leave", conversation_id=first))
        await tab.subscribe(second)

    assert (refused.request_id, refused.error.code) == ("second", "rate_limit_exceeded")


@pytest.mark.row("counts")
@pytest.mark.parametrize("name", ["IDLE_S", "LIFETIME_S"])
async def test_a_page_that_is_idle_or_old_is_closed_and_comes_back(
    house: Serving, monkeypatch: pytest.MonkeyPatch, name: str
):
    async with somebody(house) as who:
        monkeypatch.setattr(browser, name, 0.2)
        async with who.socket() as socket:
            code = await closes(socket)
        monkeypatch.undo()
        async with who.tab():
            pass

    assert code == CLOSE_OLD


# ---------------------------------------------------------------- quotas at the doors


async def set_quota(house: Serving, who: Somebody, kind: QuotaKind, allowed: int) -> None:
    house.do(house.service.quotas.set_for_user(who.user_id, kind, allowed))


@pytest.mark.row("quotas")
async def test_a_quota_that_is_used_up_is_told_in_every_dialect(house: Serving):
    async with somebody(house) as who, who.tab() as tab, who.program() as program:
        conversation_id = await who.conversation()
        await set_quota(house, who, QuotaKind.REQUESTS, 0)
        turn = {"client_message_id": "c1", "parent_id": None, "text": "Go on"}
        page = await who.client.post(f"/api/conversations/{conversation_id}/turns", json=turn)
        asked = {"model": "echo", "input": "Go on"}
        dialect = await who.ask("POST", "/v1/responses", json=asked)
        await tab.send(
            frames.TurnCreate(
                request_id="r1",
                conversation_id=conversation_id,
                client_message_id="c1",
                parent_id=None,
                text="Go on",
            )
        )
        on_socket = (await tab.expect(ErrorFrame)).error
        await program.send(json.dumps({"type": "response.create", **asked}))
        event = json.loads(await program.recv())
        mine = await done(await who.client.get("/api/account/usage"))

    told = page.json()
    assert (page.status_code, told["code"]) == (429, "quota_exceeded")
    assert told["quota"]["kind"] == "requests_per_day"
    assert told["quota"]["limit"] == 0
    assert told["quota"]["resets_at"] % 86_400 == 0
    for answer in (page, dialect):
        assert 0 < int(answer.headers["retry-after"]) <= 86_400
    assert on_socket.quota is not None
    assert on_socket.quota.kind == "requests_per_day"
    assert dialect.json()["error"]["code"] == event["error"]["code"] == "insufficient_quota"
    assert event["status"] == 429
    assert "0 requests a day" in dialect.json()["error"]["message"]
    requests = next(one for one in mine["quotas"] if one["kind"] == "requests_per_day")
    assert (requests["used"], requests["allowed"], requests["source"]) == (0, 0, "own")


@pytest.mark.row("counts")
async def test_who_may_have_no_socket_gets_none(house: Serving):
    async with somebody(house) as who:
        await set_quota(house, who, QuotaKind.SOCKETS, 0)
        status, _, body = await told(who.socket())

    assert status == 429
    assert json.loads(body)["quota"]["kind"] == "sockets"


@pytest.mark.row("quotas")
@pytest.mark.usefixtures("one_day")
async def test_fifty_messages_at_once_over_real_connections_never_exceed_a_quota(house: Serving):
    async with somebody(house) as who:
        await set_quota(house, who, QuotaKind.REQUESTS, 7)
        asked = {"model": "echo", "input": "Go on"}
        headers = {"authorization": f"Bearer {who.key.key}"}
        async with httpx.AsyncClient(base_url=house.url, headers=headers, timeout=60) as program:
            answers = await asyncio.gather(
                *(program.post("/responses", json=asked) for _ in range(50))
            )
        mine = await done(await who.client.get("/api/account/usage"))

    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [429] * 43
    assert {one["kind"]: one["used"] for one in mine["quotas"]}["requests_per_day"] == 7
    (day,) = mine["days"]
    assert (day["model"], day["key_id"], day["requests"]) == ("echo", who.key.view.id, 7)


async def test_administrators_set_and_lift_quotas_of_users_and_groups(house: Serving):
    async with boss(house) as admin, somebody(house) as who:
        user = f"/api/users/{who.user_id}"
        team = (await done(await admin.client.post("/api/groups", json={"name": who.email})))["id"]
        await done(await admin.client.put(f"/api/groups/{team}/members/{who.user_id}"))
        for path, allowed in ((f"/api/groups/{team}", 5), (user, None)):
            to = f"{path}/quotas/tokens_per_day"
            await done(await admin.client.put(to, json={"allowed": allowed}))
        own = await done(await admin.client.get(f"{user}/quotas"))
        theirs = await done(await admin.client.get(f"/api/groups/{team}/quotas"))
        await done(await admin.client.delete(f"{user}/quotas/tokens_per_day"))
        used = (await done(await admin.client.get(f"{user}/usage?days=7")))["quotas"]
        refused = [
            await admin.client.delete(f"{user}/quotas/tokens_per_day"),
            await admin.client.put(f"{user}/quotas/nothing", json={"allowed": 1}),
            await admin.client.put(f"{user}/quotas/sockets", json={"allowed": -1}),
            await admin.client.put("/api/users/user_no/quotas/sockets", json={"allowed": 1}),
            await admin.client.get("/api/groups/group_no/quotas"),
            await who.client.put(f"{user}/quotas/sockets", json={"allowed": None}),
        ]
        asked = {"subject_id": who.user_id}
        log = (await done(await admin.client.get("/api/admin/audit", params=asked)))["items"]

    assert own == [{"kind": "tokens_per_day", "allowed": None}]
    assert theirs == [{"kind": "tokens_per_day", "allowed": 5}]
    tokens = next(one for one in used if one["kind"] == "tokens_per_day")
    assert (tokens["allowed"], tokens["source"], tokens["group_id"]) == (5, "group", team)
    assert [answer.status_code for answer in refused] == [404, 400, 400, 404, 404, 403]
    acts = [one["act"] for one in log if one["actor_id"] == admin.user_id]
    assert acts == ["figures.look", "quota.lifted", "quota.set", "group.joined"]
