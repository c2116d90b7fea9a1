"""What is expected where people and programs come in, one test or more a row of docs/rows.md.

Over real connections to a server of this process, on each database.
"""

import asyncio
import contextlib
import json
import re
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from http.cookiejar import DefaultCookiePolicy
from typing import Any, Literal

import httpx
import pytest
from argon2 import Parameters, PasswordHasher, extract_parameters
from sqlalchemy import delete, func, select
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from app.db.base import Database
from app.db.models import ApiKey, User
from app.db.types import AccountRole, QuotaKind, utc_now
from app.frames import ErrorFrame
from app.people.accounts import Accounts
from app.people.invitations import Invitations
from app.people.passwords import Passwords
from app.people.rights import LOOK_S, Rights, Standing
from app.routes.problems import CLOSE_INTERNAL, CLOSE_SIGNED_OUT
from tests.app.test_gate import PUBLIC
from tests.kit.peers import create, engine_of, until
from tests.kit.people import quick_passwords
from tests.kit.serving import Serving
from tests.kit.staff import Somebody, ask, closes, done, somebody
from tests.kit.tab import PASSWORD, sign_in

FORM = {"cookie": "kw_csrf=t", "x-csrf-token": "t"}
"""With which a stranger's form is taken for our own page's."""


async def denied(house: Serving, path: str, headers: dict[str, str], **options: Any) -> Any:
    """Status and code with which a handshake is answered."""
    with pytest.raises(InvalidStatus) as refused:
        address = house.site.ws_url + path
        async with connect(address, additional_headers=headers, open_timeout=60, **options):
            pass
    response = refused.value.response
    told = json.loads(response.body)
    return response.status_code, told.get("error", told)["code"]


# ---------------------------------------------------------------- sockets


@pytest.mark.row("handshake")
async def test_a_socket_with_both_kinds_of_credentials_or_with_one_in_its_address_is_refused(
    house: Serving,
):
    async with somebody(house) as who:
        key, login = who.key.key, who.client.cookies["kw_session"]
        both = {"Cookie": who.cookie, "Authorization": f"Bearer {key}"}
        page: Any = {"origin": house.site.url}
        two = [
            await denied(house, "/ws", both, **page),
            await denied(house, "/v1/responses", both),
        ]
        in_address = [
            await denied(house, f"/ws?kw_session={login}&token={login}", {}, **page),
            await denied(house, f"/ws?key={key}&api_key={key}", {}, **page),
            await denied(house, f"/v1/responses?kw_session={login}&api_key={key}", {}),
        ]

    assert two == [(400, "two_credentials")] * 2
    assert [status for status, _ in in_address] == [401] * 3


@pytest.mark.row("messages")
async def test_what_a_program_sends_on_its_socket_is_read_strictly(house: Serving):
    deep = '{"type":"response.create","input":"x","metadata":{"a":' + "[" * 40 + "]" * 40 + "}}"
    frames: list[tuple[str | bytes, str, str]] = [
        ("{", "invalid_json", ""),
        ("[]", "invalid_json", ""),
        ("[" * 5_000, "invalid_json", ""),
        (b"{}", "invalid_json", "text frames"),
        (deep, "invalid_request", "32 levels"),
        (create(type="response.pause"), "unknown_event_type", "response.steer"),
        (create(background=True), "unsupported_parameter", "background"),
        (create(input="x" * 2**20), "frame_too_long", "at most"),
    ]
    async with somebody(house) as who, who.program() as program:
        told = []
        for frame, _, _ in frames:
            await program.send(frame)
            told.append(json.loads(await program.recv())["error"])
        await program.send(create(no_such_field=1))
        heard = json.loads(await program.recv())
        while "response" not in heard or heard["response"]["status"] != "completed":
            assert heard["type"] != "error"
            heard = json.loads(await program.recv())

    assert [one["code"] for one in told] == [code for _, code, _ in frames]
    for one, (_, _, words) in zip(told, frames, strict=True):
        assert words in f"{one['message']} {one['param']}"


@pytest.mark.row("counts")
async def test_who_answers_no_ping_is_gone_and_its_seat_is_free(
    house: Serving, monkeypatch: pytest.MonkeyPatch
):
    """As after 20 seconds, in a fifth of one."""
    gate = house.service.gate
    await until(house, lambda: gate.open_sockets == 0)
    async with somebody(house) as who, who.tab() as tab:
        for setting in ("ws_ping_interval", "ws_ping_timeout"):
            assert getattr(house.config, setting) == 20
            monkeypatch.setattr(house.config, setting, 0.2)
        async with who.tab() as page, who.program() as program:
            opened = gate.open_sockets
            silent = page.socket, program
            for one in silent:
                one.transport.pause_reading()  # what reads nothing answers nothing
            await until(house, lambda: gate.open_sockets == 1)
            for one in silent:
                one.transport.resume_reading()
            codes = [await closes(one) for one in silent]
        await tab.subscribe(await who.conversation())

    assert opened == 3
    assert codes == [CLOSE_INTERNAL] * 2


# ---------------------------------------------------------------- live revocation


@pytest.mark.row("live revocation")
@pytest.mark.parametrize("how", ["ended", "expired"])
async def test_a_key_that_ends_closes_the_sockets_that_it_opened(
    house: Serving, monkeypatch: pytest.MonkeyPatch, how: str
):
    async with somebody(house) as who, who.tab() as tab, who.program() as other:
        body = {"name": "short", "expires_in_s": 60}
        made = await done(await who.client.post("/api/keys", json=body))
        async with opened_by(house, made["key"]) as program:
            if how == "ended":
                await done(await who.client.delete(f"/api/keys/{made['view']['id']}"))
            else:
                later = timedelta(seconds=61)
                monkeypatch.setattr(house.service.keys, "_now", lambda: utc_now() + later)
            code = await closes(program)
        status, _ = await denied(house, "/v1/responses", {"Authorization": f"Bearer {made['key']}"})
        await other.send(create())
        heard = json.loads(await other.recv())
        await tab.subscribe(await who.conversation())

    assert (code, status) == (CLOSE_SIGNED_OUT, 401)
    assert heard["type"] == "response.created", "another key of theirs is as good as before"


@contextlib.asynccontextmanager
async def opened_by(house: Serving, key: str) -> AsyncIterator[ClientConnection]:
    address, headers = f"{house.site.ws_url}/v1/responses", {"Authorization": f"Bearer {key}"}
    async with connect(address, additional_headers=headers, open_timeout=60) as opened:
        yield opened


def standings(rights: Rights, user_id: str) -> list[Standing]:
    return [one for one in rights._standings if one.principal.user_id == user_id]


@pytest.mark.row("live revocation", "CVE-2026-44553")
async def test_who_is_shut_out_by_a_command_is_found_by_the_next_look_of_two_a_second(
    house: Serving, monkeypatch: pytest.MonkeyPatch
):
    """Which is within a second, however slow this machine is."""
    rights, seen, is_out = house.service.rights, list[bool](), threading.Event()
    look = rights.look
    async with somebody(house) as who, who.tab() as tab, who.program() as program:
        # A socket is open a moment before it is watched, and resolved anew once it is.
        await until(house, lambda: len(standings(rights, who.user_id)) == 2)
        theirs = standings(rights, who.user_id)

        async def watched() -> None:
            counts = is_out.is_set()
            await look()
            if counts:
                seen.append(all(one.doubted.is_set() for one in theirs))

        monkeypatch.setattr(rights, "look", watched)
        async with contextlib.aclosing(Database(house.database_url)) as db:
            await Accounts(db).disable(who.user_id)
        is_out.set()
        codes = [await closes(tab.socket), await closes(program)]
        await until(house, lambda: len(seen) > 0)

    assert seen[0], "the first look that began after it found it"
    assert codes == [CLOSE_SIGNED_OUT] * 2
    assert 2 * LOOK_S <= 1


# ---------------------------------------------------------------- quotas


@pytest.mark.row("quotas", "pins")
async def test_every_quota_is_enforced_at_the_door_and_the_refusal_says_which(house: Serving):
    house.call(engine_of(house).hold, 2)
    async with somebody(house) as who, who.tab() as tab:
        first, second = await who.conversation(), await who.conversation()
        await tab.subscribe(first)
        await tab.say(first, "Go on")
        turn = "POST", f"{second}/turns", TURN
        one = await limited(house, who, (QuotaKind.GENERATIONS, 1), turn)
        refused = {QuotaKind.GENERATIONS: [one]}
        house.call(engine_of(house).release)
        await until(house, lambda: house.service.supervisor.live_turns == 0)
        listed = await done(await who.client.get(f"/api/conversations/{first}"))
        copied = {"message_id": listed["messages"][-1]["id"]}
        asked: list[tuple[QuotaKind, int, tuple[str, str, object]]] = [
            (QuotaKind.REQUESTS, 1, turn),
            (QuotaKind.TOKENS, 1, turn),
            (QuotaKind.STORED, 1, turn),
            (QuotaKind.STORED, 1, ("POST", f"{first}/fork", copied)),
            (QuotaKind.KEPT_WARM, 0, ("PATCH", first, {"kept_warm": True})),
        ]
        for kind, allowed, request in asked:
            answer = await limited(house, who, (kind, allowed), request)
            refused.setdefault(kind, []).append(answer)
        set_quota(house, who, QuotaKind.SOCKETS, 1)
        with pytest.raises(InvalidStatus) as full:
            async with who.socket():
                pass
        listed = await done(await who.client.get("/api/conversations"))
        empty = await done(await who.client.get(f"/api/conversations/{second}"))
        used = (await done(await who.client.get("/api/account/usage")))["quotas"]

    for kind, answers in refused.items():
        for answer in answers:
            told = answer.json()
            assert (answer.status_code, told["code"]) == (429, "quota_exceeded"), told
            assert told["quota"]["kind"] == kind
            assert bool(told["quota"].get("resets_at")) == kind.is_daily
    assert json.loads(full.value.response.body)["quota"]["kind"] == QuotaKind.SOCKETS
    assert {*refused, QuotaKind.SOCKETS} == set(QuotaKind)
    assert len(listed["items"]) == 2
    assert empty["messages"] == [], "what is refused leaves nothing"
    assert not any(one["kept_warm"] for one in listed["items"])
    assert {one["kind"]: one["used"] for one in used}["requests_per_day"] == 1


TURN = {"client_message_id": "one more", "parent_id": None, "text": "Go on"}


def set_quota(house: Serving, who: Somebody, kind: QuotaKind, allowed: int | None) -> None:
    house.do(house.service.quotas.set_for_user(who.user_id, kind, allowed))


async def limited(
    house: Serving, who: Somebody, quota: tuple[QuotaKind, int], asked: tuple[str, str, object]
) -> httpx.Response:
    """What is answered while this quota holds, which is lifted again."""
    (kind, allowed), (method, path, body) = quota, asked
    set_quota(house, who, kind, allowed)
    answer = await who.client.request(method, f"/api/conversations/{path}", json=body)
    set_quota(house, who, kind, None)
    return answer


# ---------------------------------------------------------------- passwords and keys


class Counting(PasswordHasher):
    """Remembers what it was asked to verify."""

    def __init__(self) -> None:
        super().__init__(time_cost=1, memory_cost=64, parallelism=1)
        self.verified: list[Parameters] = []

    def verify(self, hash: str | bytes, password: str | bytes) -> Literal[True]:  # noqa: A002
        self.verified.append(extract_parameters(str(hash)))
        return super().verify(hash, password)


@pytest.mark.row("passwords", "login")
async def test_at_the_door_whoever_does_not_exist_costs_as_much_as_a_wrong_password(
    house: Serving, monkeypatch: pytest.MonkeyPatch
):
    hasher = Counting()
    monkeypatch.setattr(house.service.logins, "_passwords", Passwords(hasher))
    async with somebody(house) as who:
        hasher.verified.clear()
        answers = [
            await who.client.post("/api/login", json={"email": email, "password": "a wrong one"})
            for email in (who.email, "nobody@example.org", "no address")
        ]

    assert {(answer.status_code, answer.json()["detail"]) for answer in answers} == {
        (401, "The address or the password is wrong.")
    }
    assert len(hasher.verified) == 3
    assert len(set(map(str, hasher.verified))) == 1


@pytest.mark.row("passwords")
async def test_who_signs_in_has_a_hash_renewed_that_is_weaker_than_todays(
    house: Serving, monkeypatch: pytest.MonkeyPatch
):
    stronger = PasswordHasher(time_cost=2, memory_cost=64, parallelism=1)
    async with somebody(house) as who:
        before = await kept_hash(house, who)
        monkeypatch.setattr(house.service.logins, "_passwords", Passwords(stronger))
        await sign_in(who.client, who.email)
        after = await kept_hash(house, who)
        await sign_in(who.client, who.email)

    assert (before.time_cost, after.time_cost) == (1, 2)


async def kept_hash(house: Serving, who: Somebody) -> Parameters:
    async with contextlib.aclosing(Database(house.database_url)) as db, db.read() as session:
        return extract_parameters((await session.get_one(User, who.user_id)).password_hash)


@pytest.mark.row("api keys")
async def test_a_key_is_kept_as_a_hash_and_opens_nothing_after_its_time(
    house: Serving, monkeypatch: pytest.MonkeyPatch
):
    async with somebody(house) as who:
        body = {"name": "short", "expires_in_s": 60}
        made = await done(await who.client.post("/api/keys", json=body))
        key, url = made["key"], house.site.url
        async with contextlib.aclosing(Database(house.database_url)) as db, db.read() as session:
            row = await session.get_one(ApiKey, made["view"]["id"])
            kept = {one.key: getattr(row, one.key) for one in ApiKey.__table__.columns}
        before = await ask(url, key, "/v1/models")
        monkeypatch.setattr(house.service.keys, "_now", lambda: utc_now() + timedelta(seconds=61))
        after = await ask(url, key, "/v1/models")

    assert len(kept.pop("digest")) == 32
    assert key not in str(kept)
    assert key.startswith(kept["prefix"]) and len(kept["prefix"]) < len(key) / 3
    assert (before.status_code, after.status_code) == (200, 401)


# ---------------------------------------------------------------- the first administrator


@pytest.mark.row("admin bootstrap", "CVE-2026-45675")
async def test_of_fifty_strangers_who_set_up_at_once_one_is_admin(empty_house: Serving):
    """By the link alone; then, when nobody is one any more, through every other door besides."""
    async with (
        contextlib.aclosing(Database(empty_house.database_url)) as db,
        httpx.AsyncClient(base_url=empty_house.site.url, timeout=60) as stranger,
    ):
        stranger.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        beside = Invitations(db, Accounts(db, passwords=quick_passwords()))

        async def set_up(token: str | None, number: int) -> int:
            email = f"number{number}@example.org"
            form = {"token": token, "email": email, "name": "Root", "password": PASSWORD}
            return (await stranger.post("/api/setup", json=form, headers=FORM)).status_code

        token = await beside.first_admin_link()
        by_link = await asyncio.gather(*(set_up(token, number) for number in range(50)))
        admins = [await count_admins(db)]
        async with db.begin() as session:
            await session.execute(delete(User).where(User.role == AccountRole.ADMIN))
        token = await beside.first_admin_link()
        by_all = await asyncio.gather(
            *(set_up(token, number) for number in range(40)),
            *(beside.ensure_admin(f"b{number}@example.org", PASSWORD) for number in range(5)),
            *(beside.first_admin_link() for _ in range(5)),
        )
        admins.append(await count_admins(db))
        late = await set_up(token, 99)

    assert sorted(by_link) == [200] + [401] * 49
    assert by_all[:40].count(200) <= 1
    assert set(by_all[:40]) <= {200, 401}
    assert admins == [1, 1]
    assert late == 401


async def count_admins(db: Database) -> int | None:
    async with db.read() as session:
        return await session.scalar(select(func.count()).where(User.role == AccountRole.ADMIN))


# ---------------------------------------------------------------- strangers


@pytest.mark.row("cheap endpoints first", "CVE-2024-12537")
async def test_every_route_that_is_not_public_refuses_a_stranger_before_it_reads_a_body(
    house: Serving,
):
    """Of what is sent no document can be made, which would be the fault of whoever is let in."""
    broken = FORM | {"content-type": "application/json"}
    statuses: dict[tuple[str, str], int] = {}
    async with httpx.AsyncClient(base_url=house.site.url, timeout=60) as stranger:
        published = (await stranger.get("/schema/openapi.json")).json()["paths"]
        for path, methods in published.items():
            for method in methods:
                answer = await stranger.request(
                    method, re.sub(r"{\w+}", "1", path), content=b'{"broken', headers=broken
                )
                statuses[method.upper(), path] = answer.status_code
    async with somebody(house) as who:
        read = await who.client.post(
            "/api/conversations", content=b'{"broken', headers={"content-type": "application/json"}
        )

    asked = {route: status for route, status in statuses.items() if route not in PUBLIC}
    assert len(asked) > 60
    assert set(asked.values()) == {401}
    assert read.status_code == 400


# ---------------------------------------------------------------- resumed by others


@pytest.mark.row("CVE-2026-31950", "authorisation")
async def test_19_anothers_answer_is_resumed_by_no_road_while_it_is_written_nor_afterwards(
    house: Serving,
):
    never = "resp_" + "0" * 26
    house.call(engine_of(house).hold, 4)
    async with somebody(house) as ann, somebody(house) as eve:
        conversation_id, own = await ann.conversation(), await eve.conversation()
        turn = {"client_message_id": "m", "parent_id": None, "text": "Mine"}
        path = f"/api/conversations/{conversation_id}/turns"
        on_page = (await done(await ann.client.post(path, json=turn)))["response"]["id"]
        asked = {"input": "Mine", "background": True}
        by_key = (await done(await ann.ask("POST", "/v1/responses", json=asked)))["id"]
        told = [await roads(eve, own, (never, on_page, by_key))]
        live = house.service.supervisor.live_turns
        house.call(engine_of(house).release)
        await until(house, lambda: house.service.supervisor.live_turns == 0)
        told.append(await roads(eve, own, (never, on_page, by_key)))
        stream = await ann.ask(
            "GET", f"/v1/responses/{by_key}", params={"stream": True, "starting_after": 0}
        )

    assert live == 2, "what others did stopped nothing"
    assert stream.status_code == 200
    for unknown, *theirs in told:
        assert unknown == {
            "/v1": [404] * 3,
            "/api": [404] * 2,
            "/ws": "not_found",
            "/v1 socket": "previous_response_not_found",
        }
        assert theirs == [unknown, unknown]


async def roads(who: Somebody, own_id: str, response_ids: tuple[str, ...]) -> list[dict[str, Any]]:
    """What is told of each response, or of going on from it, wherever one may name it."""
    headers = {"authorization": f"Bearer {who.key.key}"}
    async with (
        who.tab() as tab,
        who.program() as socket,
        httpx.AsyncClient(base_url=who.server.url, headers=headers, timeout=60) as program,
    ):

        async def told(response_id: str) -> dict[str, Any]:
            v1, api = f"/v1/responses/{response_id}", f"/api/responses/{response_id}"
            resumed = {"stream": True, "starting_after": 0}
            cursor = {"response_id": response_id, "after": 0, "epoch": "e"}
            subscribe = {"type": "subscribe", "request_id": "r", "conversation_id": own_id}
            await tab.socket.send(json.dumps(subscribe | {"cursors": [cursor]}))
            refused = await tab.expect(ErrorFrame)
            await socket.send(create(previous_response_id=response_id))
            event = json.loads(await socket.recv())
            return {
                "/v1": [
                    (await program.get(v1, params=resumed)).status_code,
                    (await program.get(v1)).status_code,
                    (await program.post(f"{v1}/cancel")).status_code,
                ],
                "/api": [
                    (await who.client.get(f"{api}/events", params={"after": 0})).status_code,
                    (await who.client.post(f"{api}/cancel")).status_code,
                ],
                "/ws": refused.error.code,
                "/v1 socket": event["error"]["code"],
            }

        return [await told(one) for one in response_ids]
