"""People over real connections, on both databases: invited, moved, shut out and gone, sockets open."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from app.db.base import Database
from app.db.types import AccountRole, KeyScope
from app.events import TextDelta
from app.ids import UserId
from app.people.accounts import Accounts
from app.people.keys import NewKey
from engine.api import Forget, OwnerId, Subject, SubjectKind
from tests.kit.peers import create, engine_of, open_engine, until
from tests.kit.server import Server
from tests.kit.serving import Serving, serving
from tests.kit.tab import PASSWORD, Person, browser, person

_names = itertools.count(1)
SIGNED_OUT = 4401
CUT_S = 5.0
"""Rights are looked up twice a second; a busy machine is given more than the second promised."""


@pytest.fixture
def house(tmp_path: Path, database_url: str) -> Iterator[Serving]:
    with serving(tmp_path, open_engine, database_url=database_url) as server:
        yield server


class Somebody(Person):
    """With the account behind the browser, and a key."""

    user_id: UserId
    key: NewKey

    @contextlib.asynccontextmanager
    async def program(self) -> AsyncIterator[ClientConnection]:
        """The dialect's socket."""
        headers = {"Authorization": f"Bearer {self.key.key}"}
        address = f"{self.server.ws_url}/v1/responses"
        async with connect(address, additional_headers=headers) as opened:
            yield opened

    async def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """With the key."""
        return await ask(self.server.url, self.key.key, path, method, **options)


async def ask(url: str, key: str, path: str, method: str = "GET", **options: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
        return await client.request(method, path, **options)


@contextlib.asynccontextmanager
async def somebody(
    house: Serving, role: AccountRole = AccountRole.MEMBER, *scopes: KeyScope
) -> AsyncIterator[Somebody]:
    service, email = house.service, f"somebody{next(_names)}@example.org"
    user_id = house.do(service.accounts.create_user(email, "Somebody", PASSWORD, role))
    async with browser(house.site, email) as found:
        made = Somebody(house.site, email, found.client)
        made.user_id = user_id
        made.key = house.do(service.keys.create(user_id, "test", scopes=scopes or tuple(KeyScope)))
        yield made


def boss(house: Serving) -> contextlib.AbstractAsyncContextManager[Somebody]:
    return somebody(house, AccountRole.ADMIN)


async def done(answer: httpx.Response) -> Any:
    assert answer.is_success, answer.text
    return answer.json() if answer.content else None


async def closes(socket: ClientConnection) -> int | None:
    """The code with which the server closes it."""
    async with asyncio.timeout(CUT_S):
        with contextlib.suppress(ConnectionClosed):
            while True:
                await socket.recv()
    return socket.close_code


async def refusal(handshake: contextlib.AbstractAsyncContextManager[Any]) -> int:
    with pytest.raises(InvalidStatus) as refused:
        async with handshake:
            pass
    return refused.value.response.status_code


@contextlib.asynccontextmanager
async def answering(house: Serving, who: Somebody) -> AsyncIterator[list[ClientConnection]]:
    """A page that hears an answer being written, and a program that waits for one."""
    house.call(engine_of(house).hold, 4)
    async with who.tab() as tab, who.program() as program:
        conversation_id = await who.conversation()
        await tab.subscribe(conversation_id)
        accepted = await tab.say(conversation_id, "Go on")
        await tab.event(accepted.response.id, TextDelta)
        await program.send(create())
        while "delta" not in await program.recv(decode=True):
            pass
        assert house.service.supervisor.live_turns == 2
        yield [tab.socket, program]
    house.call(engine_of(house).release)


def forgotten(house: Serving, user_id: UserId) -> bool:
    owner = Subject(kind=SubjectKind.OWNER, subject_id=user_id, owner_id=OwnerId(user_id))
    return (owner, Forget()) in engine_of(house).leases


# ---------------------------------------------------------------- coming in


async def test_who_is_invited_comes_in_by_the_link_once_and_reads_what_the_group_may(
    house: Serving,
):
    async with boss(house) as admin, httpx.AsyncClient(base_url=house.site.url) as stranger:
        group = await done(await admin.client.post("/api/groups", json={"name": "Sales"}))
        body = {"note": "Ada", "role": "member", "group_ids": [group["id"]]}
        made = await done(await admin.client.post("/api/invitations", json=body))
        listed = await done(await admin.client.get("/api/invitations"))
        pirate = {"name": "Pirate", "instructions": "Talk like a pirate."}
        access = {"visibility": "listed", "group_ids": [group["id"]]}
        persona = await done(await admin.client.post("/api/personas", json=pirate | access))
        persona_id = persona["summary"]["id"]

        await stranger.get("/api/account")
        stranger.headers["x-csrf-token"] = stranger.cookies["kw_csrf"]
        form = {"token": made["token"], "name": "Ada", "password": PASSWORD}
        signed_in = await done(await stranger.post("/api/setup", json=form | {"email": "ada@b"}))
        stranger.headers["x-csrf-token"] = stranger.cookies["kw_csrf"]
        again = await stranger.post("/api/setup", json=form | {"email": "eve@b"})
        read = await stranger.get(f"/api/personas/{persona_id}")
        member = f"/api/groups/{group['id']}/members/{signed_in['id']}"
        groups = await done(await admin.client.get("/api/groups"))
        await done(await admin.client.delete(member))
        unread = await stranger.get(f"/api/personas/{persona_id}")
        await done(await admin.client.put(member))
        reread = await stranger.get(f"/api/personas/{persona_id}")

    assert listed == [made["view"]]
    assert (signed_in["role"], signed_in["email"]) == ("member", "ada@b")
    assert (again.status_code, again.json()["code"]) == (401, "invalid_link")
    assert [one["member_ids"] for one in groups] == [[signed_in["id"]]]
    assert persona["group_ids"] == [group["id"]]
    assert (read.status_code, unread.status_code, reread.status_code) == (200, 404, 200)


ADMINISTRATION = [
    ("GET", "/api/users", None),
    ("PATCH", "/api/users/{}", {"role": "admin"}),
    ("DELETE", "/api/users/{}", None),
    ("GET", "/api/invitations", None),
    ("POST", "/api/invitations", {"note": "me", "role": "admin"}),
    ("DELETE", "/api/invitations/invite_0", None),
    ("GET", "/api/groups", None),
    ("POST", "/api/groups", {"name": "mine"}),
    ("PATCH", "/api/groups/group_0", {"name": "mine"}),
    ("DELETE", "/api/groups/group_0", None),
    ("PUT", "/api/groups/group_0/members/{}", None),
    ("DELETE", "/api/groups/group_0/members/{}", None),
]
CHAT: list[tuple[str, str, dict[str, str] | None]] = [
    ("GET", "/api/conversations", None),
    ("POST", "/api/conversations", {}),
    ("GET", "/api/personas", None),
    ("GET", "/api/responses/resp_0/events", None),
]


async def test_what_is_for_administrators_is_for_nobody_else(house: Serving):
    roles = (AccountRole.MEMBER, AccountRole.AUDITOR)
    found = set()
    for role in roles:
        async with somebody(house, role) as who:
            for method, path, body in ADMINISTRATION:
                answer = await who.client.request(method, path.format(who.user_id), json=body)
                found.add((answer.status_code, answer.json()["code"]))
            assert await done(await who.client.get("/api/account"))

    assert found == {(403, "forbidden")}


async def test_an_auditor_does_not_chat_by_any_door(house: Serving):
    async with somebody(house, AccountRole.AUDITOR) as auditor:
        answers = [
            await auditor.client.request(method, path, json=body) for method, path, body in CHAT
        ]
        answers += [
            await auditor.ask("GET", "/v1/models"),
            await auditor.ask("POST", "/v1/responses", json={"input": "Hi"}),
            await auditor.ask("GET", "/v1/responses/resp_0"),
        ]
        handshakes = [await refusal(auditor.socket()), await refusal(auditor.program())]
        own = [await auditor.client.get(path) for path in ("/api/logins", "/api/keys")]

    assert {answer.status_code for answer in answers} == {403}
    assert handshakes == [403, 403]
    assert {answer.status_code for answer in own} == {200}
    assert auditor.user_id not in {str(job.owner_id) for job in engine_of(house).jobs}


async def test_an_auditor_reads_the_figures_and_a_member_does_not(server: Server):
    seen = {}
    for role in AccountRole:
        async with person(server, role) as who:
            status = await done(await who.client.get("/api/status"))
            made = await done(
                await who.client.post("/api/keys", json={"name": "k", "scopes": ["figures"]})
            )
            other = await done(
                await who.client.post("/api/keys", json={"name": "k", "scopes": ["read", "write"]})
            )
            codes = [
                (await ask(server.url, one["key"], path)).status_code
                for one in (made, other)
                for path in ("/metrics", "/v1/models")
            ]
            seen[role] = ("stats" in status, codes)

    assert seen == {
        AccountRole.ADMIN: (True, [200, 403, 403, 200]),
        AccountRole.MEMBER: (False, [403, 403, 403, 200]),
        AccountRole.AUDITOR: (True, [200, 403, 403, 403]),
    }


# ---------------------------------------------------------------- keys


async def test_a_key_opens_what_its_scopes_say_and_nothing_else(house: Serving):
    async with (
        somebody(house, AccountRole.MEMBER, KeyScope.READ) as reader,
        somebody(house, AccountRole.MEMBER, KeyScope.WRITE) as writer,
    ):
        seen = []
        for who in (reader, writer):
            answers = [
                await who.ask("GET", "/v1/models"),
                await who.ask("GET", "/v1/responses/resp_0"),
                await who.ask("POST", "/v1/responses", json={"input": "Hi"}),
                await who.ask(
                    "POST",
                    "/v1/chat/completions",
                    json={"model": "echo", "messages": [{"role": "user", "content": "Hi"}]},
                ),
                await who.ask("DELETE", "/v1/responses/resp_0"),
            ]
            seen.append([answer.status_code for answer in answers])
        wrong = await reader.ask("POST", "/v1/responses", json={"input": "Hi"})
        handshake = await refusal(reader.program())
        async with writer.program():
            pass

    assert seen == [[200, 404, 403, 403, 403], [403, 403, 200, 200, 404]]
    assert wrong.json()["error"]["code"] == "missing_scope"
    assert handshake == 403


async def test_one_makes_a_key_for_a_purpose_and_a_time_and_sees_when_it_was_used(house: Serving):
    async with somebody(house) as who:
        body = {"name": "report", "scopes": ["read"], "expires_in_s": 3600}
        made = await done(await who.client.post("/api/keys", json=body))
        used = await ask(house.site.url, made["key"], "/v1/models")
        listed = await done(await who.client.get("/api/keys"))
        wrong: list[dict[str, object]] = [
            {"scopes": []},
            {"scopes": ["everything"]},
            {"expires_in_s": 1},
            {"expires_in_s": 10**12},
        ]
        refused = [await who.client.post("/api/keys", json={"name": "k"} | one) for one in wrong]

    view = next(one for one in listed if one["id"] == made["view"]["id"])
    assert used.status_code == 200
    assert view["scopes"] == ["read"]
    assert view["expires_at"] - view["created_at"] == pytest.approx(3600)
    assert view["last_used_at"] is not None
    assert [answer.status_code for answer in refused] == [400] * 4


# ---------------------------------------------------------------- moved, with sockets open


async def test_who_is_moved_to_auditing_is_cut_off_within_a_second(house: Serving):
    async with (
        boss(house) as admin,
        somebody(house) as who,
        who.tab() as tab,
        who.program() as program,
    ):
        path = f"/api/users/{who.user_id}"
        changed = await done(await admin.client.patch(path, json={"role": "auditor"}))
        codes = [await closes(tab.socket), await closes(program)]
        back = [await refusal(who.socket()), await refusal(who.program())]
        await done(await admin.client.patch(path, json={"role": "member"}))
        async with who.tab(), who.program():
            pass

    assert changed["role"] == "auditor"
    assert codes == [SIGNED_OUT, SIGNED_OUT]
    assert back == [403, 403]


async def test_who_is_moved_by_a_command_is_cut_off_within_a_second(
    house: Serving, database_url: str
):
    async with (
        contextlib.aclosing(Database(database_url)) as db,
        somebody(house) as who,
        who.tab() as tab,
        who.program() as program,
    ):
        await Accounts(db).set_role(who.user_id, AccountRole.AUDITOR)
        codes = [await closes(tab.socket), await closes(program)]

    assert codes == [SIGNED_OUT, SIGNED_OUT]


async def test_who_is_no_administrator_any_more_has_nothing_of_it_from_the_next_request_on(
    house: Serving,
):
    async with boss(house) as admin, boss(house) as other, other.tab() as tab:
        pirate = {"name": "Pirate", "instructions": "Ahoy.", "visibility": "listed"}
        made = await done(await other.client.post("/api/personas", json=pirate))
        path = f"/api/personas/{made['summary']['id']}"
        await done(await admin.client.patch(f"/api/users/{other.user_id}", json={"role": "member"}))
        answers = [
            await other.client.get("/api/users"),
            await other.client.patch(f"/api/users/{other.user_id}", json={"role": "admin"}),
            await other.client.get(path),
            await other.client.patch(path, json={"visibility": "everybody"}),
            await other.client.post("/api/personas", json=pirate),
        ]
        conversation_id = await other.conversation()
        await tab.subscribe(conversation_id)

    assert [answer.status_code for answer in answers] == [403, 403, 404, 404, 403]


# ---------------------------------------------------------------- shut out, with sockets open


async def test_who_is_disabled_is_cut_off_and_answered_no_more(house: Serving):
    async with boss(house) as admin, somebody(house) as who, answering(house, who) as sockets:
        path = f"/api/users/{who.user_id}"
        changed = await done(await admin.client.patch(path, json={"is_disabled": True}))
        live = house.service.supervisor.live_turns
        codes = [await closes(socket) for socket in sockets]
        out = [
            (await who.client.get("/api/account")).status_code,
            (await who.ask("GET", "/v1/models")).status_code,
            await refusal(who.socket()),
            await refusal(who.program()),
        ]
        body = {"email": who.email, "password": PASSWORD}
        login = await who.client.post("/api/login", json=body)
        await done(await admin.client.patch(path, json={"is_disabled": False}))
        again = await who.client.post("/api/login", json=body)

    assert changed["is_disabled"]
    assert live == 0
    assert codes == [SIGNED_OUT, SIGNED_OUT]
    assert out == [401] * 4
    assert (login.status_code, login.json()["code"]) == (401, "bad_credentials")
    assert again.status_code == 200
    assert not forgotten(house, who.user_id)


async def test_07_who_is_removed_is_cut_off_stopped_and_forgotten(house: Serving):
    async with boss(house) as admin, somebody(house) as who, answering(house, who) as sockets:
        conversation_id = (await done(await who.client.get("/api/conversations")))["items"][0]["id"]
        gone = await admin.client.delete(f"/api/users/{who.user_id}")
        live = house.service.supervisor.live_turns
        codes = [await closes(socket) for socket in sockets]
        out = [
            (await who.client.get(f"/api/conversations/{conversation_id}")).status_code,
            (await who.ask("GET", "/v1/models")).status_code,
            await refusal(who.socket()),
        ]
        users = await done(await admin.client.get("/api/users"))
        twice = await admin.client.delete(f"/api/users/{who.user_id}")

    assert gone.status_code == 204
    assert live == 0
    assert codes == [SIGNED_OUT, SIGNED_OUT]
    assert out == [401] * 3
    assert who.user_id not in [one["id"] for one in users]
    assert twice.status_code == 404
    assert forgotten(house, who.user_id)
    assert not forgotten(house, admin.user_id)


async def test_07_who_is_removed_by_a_command_is_cut_off_stopped_and_forgotten(
    house: Serving, database_url: str
):
    async with somebody(house) as who, answering(house, who) as sockets:
        async with contextlib.aclosing(Database(database_url)) as db:
            await Accounts(db).remove(who.user_id)
        codes = [await closes(socket) for socket in sockets]
        async with asyncio.timeout(CUT_S):
            await until(house, lambda: forgotten(house, who.user_id))

    assert codes == [SIGNED_OUT, SIGNED_OUT]
    assert house.service.supervisor.live_turns == 0


async def test_one_removes_oneself_with_the_password_unless_nobody_else_is_an_administrator(
    house: Serving,
):
    async with boss(house) as admin, somebody(house) as who, who.tab() as tab:
        path, word = "/api/account/removal", {"current_password": PASSWORD}
        wrong = await who.client.post(path, json={"current_password": "a wrong one"})
        last = await admin.client.post(path, json=word)
        gone = await who.client.post(path, json=word)
        code = await closes(tab.socket)
        after = await who.client.get("/api/account")

    assert (wrong.status_code, wrong.json()["code"]) == (403, "wrong_password")
    assert (last.status_code, last.json()["code"]) == (409, "last_admin")
    assert (gone.status_code, after.status_code, code) == (204, 401, SIGNED_OUT)
    assert gone.headers["set-cookie"].startswith('kw_session=""')
    assert forgotten(house, who.user_id)


# ---------------------------------------------------------------- one's own logins


async def test_one_signs_another_device_out_and_its_socket_is_closed(house: Serving):
    async with (
        somebody(house) as who,
        browser(house.site, who.email) as phone,
        phone.tab() as tab,
        who.tab() as own,
    ):
        seen = await done(await who.client.get("/api/logins"))
        (other,) = [one["id"] for one in seen if not one["is_this_one"]]
        await done(await who.client.delete(f"/api/logins/{other}"))
        code = await closes(tab.socket)
        out = await phone.client.get("/api/account")
        twice = await who.client.delete(f"/api/logins/{other}")
        await own.subscribe(await who.conversation())

    assert (code, out.status_code, twice.status_code) == (SIGNED_OUT, 401, 404)


async def test_a_changed_password_signs_every_other_device_out(house: Serving):
    async with (
        somebody(house) as who,
        browser(house.site, who.email) as phone,
        phone.tab() as tab,
        who.tab() as own,
    ):
        path, new = "/api/account/password", "a much louder word"
        wrong = await who.client.post(path, json={"current_password": "guess", "password": new})
        body = {"current_password": PASSWORD, "password": new}
        await done(await who.client.post(path, json=body))
        code = await closes(tab.socket)
        await own.subscribe(await who.conversation())
        async with who.program():
            pass
        old = {"email": who.email, "password": PASSWORD}
        refused = await phone.client.post("/api/login", json=old)
        welcome = await phone.client.post("/api/login", json=old | {"password": new})
        phone.client.headers["x-csrf-token"] = phone.client.cookies["kw_csrf"]
        await done(await phone.client.delete("/api/logins"))
        out = await who.client.get("/api/account")

    assert (wrong.status_code, wrong.json()["field"]) == (403, "current_password")
    assert code == SIGNED_OUT
    assert (refused.status_code, welcome.status_code, out.status_code) == (401, 200, 401)
