"""Who comes in, and what their role and their keys open; over real connections, on both databases."""

import json

import httpx
import pytest

from app.db.types import AccountRole, KeyScope
from app.frames import ErrorFrame, LeafChoose, Subscribe, TurnCreate
from app.ids import new_conversation_id, new_message_id
from tests.kit.peers import Log, engine_of
from tests.kit.server import Server
from tests.kit.serving import Serving
from tests.kit.staff import SIGNED_OUT, ask, boss, closes, done, refusal, somebody
from tests.kit.tab import PASSWORD, browser, person

# ---------------------------------------------------------------- coming in


async def test_who_is_invited_comes_in_by_the_link_once_and_reads_what_the_group_may(
    empty_house: Serving,
):
    async with (
        boss(empty_house) as admin,
        httpx.AsyncClient(base_url=empty_house.site.url, timeout=60) as stranger,
    ):
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
        guess, guessed = {"email": "ada@b", "password": "wrong"}, 0
        while guessed != 429:
            guessed = (await stranger.post("/api/login", json=guess)).status_code
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


@pytest.mark.row("authorisation")
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
    frames: list[ErrorFrame] = []
    async with somebody(house, AccountRole.AUDITOR) as auditor:
        answers = [
            await auditor.client.request(method, path, json=body) for method, path, body in CHAT
        ]
        answers += [
            await auditor.ask("GET", "/v1/models"),
            await auditor.ask("POST", "/v1/responses", json={"input": "Hi"}),
            await auditor.ask("GET", "/v1/responses/resp_0"),
        ]
        handshake = await refusal(auditor.program())
        async with auditor.tab() as tab:
            conversation_id, message_id = new_conversation_id(), new_message_id()
            for frame in (
                Subscribe(request_id="r", conversation_id=conversation_id),
                LeafChoose(request_id="r", conversation_id=conversation_id, message_id=message_id),
                TurnCreate(
                    request_id="r",
                    conversation_id=conversation_id,
                    client_message_id="m",
                    parent_id=None,
                    text="Hi",
                ),
            ):
                await tab.send(frame)
                frames.append(await tab.expect(ErrorFrame))
        own = [await auditor.client.get(path) for path in ("/api/logins", "/api/keys")]

    assert {answer.status_code for answer in answers} == {403}
    assert handshake == 403
    assert [(one.request_id, one.error.code) for one in frames] == [("r", "forbidden")] * 3
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


@pytest.mark.row("api keys")
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


@pytest.mark.row("api keys")
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


# ---------------------------------------------------------------- one's own logins


@pytest.mark.row("live revocation")
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


@pytest.mark.row("session cookie", "live revocation")
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


async def test_19_anothers_login_and_key_are_as_unknown_as_what_never_was(house: Serving):
    async with somebody(house) as ann, somebody(house) as eve:
        (login,) = await done(await ann.client.get("/api/logins"))
        paths = [
            [f"/api/logins/{login['id']}", "/api/logins/login_0"],
            [f"/api/keys/{ann.key.view.id}", "/api/keys/key_0"],
        ]
        for pair in paths:
            answers = [await eve.client.delete(path) for path in pair]
            told = [{**answer.json(), "request_id": ""} for answer in answers]
            assert answers[0].status_code == 404
            assert told[0] == told[1]
        assert (await ann.ask("GET", "/v1/models")).status_code == 200
        assert await done(await ann.client.get("/api/account"))


ODD = ["%00", "%ED%A0%80", "%F0%9F%98%80", "..%2F..", "x" * 5000, "user_0'--", "%FF", "%20"]
ODD_TEXTS = ["\0", "\ud800", "\U0001f600", "x" * 5000, "'--", " ", "\u202e"]


@pytest.mark.row("also untrusted", "robustness")
async def test_odd_ids_and_texts_are_refused_or_taken_and_break_nothing(house: Serving, told: Log):
    async with boss(house) as admin, somebody(house) as who:
        answers = [
            await admin.client.request(method, path.replace("{}", odd), json=body)
            for method, path, body in [
                *ADMINISTRATION,
                ("DELETE", "/api/logins/{}", None),
                ("DELETE", "/api/keys/{}", None),
            ]
            if "{}" in path
            for odd in ODD
        ]
        for odd in ODD_TEXTS:
            answers += [
                await admin.client.post(path, content=json.dumps(body))
                for path, body in [
                    ("/api/groups", {"name": odd}),
                    ("/api/invitations", {"note": odd}),
                    ("/api/invitations", {"note": "n", "group_ids": [odd]}),
                    ("/api/keys", {"name": odd}),
                    ("/api/keys", {"name": "n", "scopes": [odd]}),
                    ("/api/account/password", {"current_password": odd, "password": odd}),
                ]
            ]
        assert await done(await who.client.get("/api/account"))

    assert {answer.status_code for answer in answers} <= {201, 400, 403, 404, 409, 429}
    assert not [one for one in told.complaints if "unforeseen" in str(one)]
