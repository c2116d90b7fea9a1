"""Who is moved, shut out or removed while their sockets are open, on both databases."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from safetensors import safe_open
from sqlalchemy import delete
from websockets.asyncio.client import ClientConnection

from app.db.base import Database
from app.db.models import Conversation
from app.db.types import AccountRole
from app.events import TextDelta
from app.frames import ErrorFrame, Unsubscribe
from app.ids import ConversationId, UserId, new_conversation_id
from app.people.accounts import Accounts
from engine.api import Forget, OwnerId, Subject, SubjectKind
from tests.kit.peers import create, engine_of, until
from tests.kit.server import POLL_S, fork_server, run_command
from tests.kit.serving import Serving
from tests.kit.staff import CUT_S, SIGNED_OUT, Somebody, boss, closes, done, refusal, somebody
from tests.kit.tab import LONG, PASSWORD, person


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


# ---------------------------------------------------------------- moved, with sockets open


@pytest.mark.row("live revocation", "CVE-2026-44553")
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
        back = await refusal(who.program())
        async with who.tab() as other:
            await other.send(Unsubscribe(request_id="r", conversation_id=new_conversation_id()))
            refused = await other.expect(ErrorFrame)
        await done(await admin.client.patch(path, json={"role": "member"}))
        async with who.tab(), who.program():
            pass

    assert changed["role"] == "auditor"
    assert codes == [SIGNED_OUT, SIGNED_OUT]
    assert (back, refused.error.code) == (403, "forbidden")


@pytest.mark.row("live revocation", "CVE-2026-44553")
async def test_who_is_moved_by_a_command_is_cut_off_within_a_second(house: Serving):
    async with (
        contextlib.aclosing(Database(house.database_url)) as db,
        somebody(house) as who,
        who.tab() as tab,
        who.program() as program,
    ):
        await Accounts(db).set_role(who.user_id, AccountRole.AUDITOR)
        codes = [await closes(tab.socket), await closes(program)]

    assert codes == [SIGNED_OUT, SIGNED_OUT]


@pytest.mark.row("CVE-2026-44553")
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


@pytest.mark.row("live revocation")
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


@pytest.mark.row("live revocation")
async def test_who_is_removed_is_cut_off_stopped_and_forgotten(house: Serving):
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


async def test_who_is_removed_by_a_command_is_cut_off_stopped_and_forgotten(house: Serving):
    async with somebody(house) as who, answering(house, who) as sockets:
        async with contextlib.aclosing(Database(house.database_url)) as db:
            await Accounts(db).remove(who.user_id)
        codes = [await closes(socket) for socket in sockets]
        async with asyncio.timeout(CUT_S):
            await until(house, lambda: forgotten(house, who.user_id))

    assert codes == [SIGNED_OUT, SIGNED_OUT]
    assert house.service.supervisor.live_turns == 0


@pytest.mark.row("admin bootstrap")
async def test_one_removes_oneself_with_the_password_unless_nobody_else_is_an_administrator(
    empty_house: Serving,
):
    async with boss(empty_house) as admin, somebody(empty_house) as who, who.tab() as tab:
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
    assert forgotten(empty_house, who.user_id)


# ---------------------------------------------------------------- on the real engine


def sessions(folder: Path) -> set[str]:
    """Whose KV lies in a folder of parked segments."""
    heads = set()
    for file in folder.glob("*.safetensors"):
        with contextlib.suppress(FileNotFoundError), safe_open(file, framework="np") as opened:
            heads.add(json.loads(opened.metadata()["head"])["session_id"])
    return heads


async def test_what_goes_while_no_server_runs_leaves_nothing_on_the_disk():
    """What a server parks when it stops is found again by the next, and forgotten there."""
    begun: list[ConversationId] = []
    with fork_server() as server:
        parked = server.folder / "data" / "parked"
        async with person(server) as ann, person(server) as ben:
            for number, who in enumerate((ann, ben, ben)):
                begun.append(await who.conversation())
                async with who.tab() as tab:
                    await tab.subscribe(begun[-1])
                    # What both of Ben's had in common would be parked for one of them alone.
                    accepted = await tab.say(begun[-1], f"{number}. {LONG}")
                    await tab.taste(accepted.response.id)
        server.stop()
        before = sessions(parked)
        of_ann, stays, gone = begun
        run_command(server.folder, "admin", "user", "remove", ann.email, "--yes")
        async with contextlib.aclosing(Database(server.database_url)) as db, db.begin() as session:
            await session.execute(delete(Conversation).where(Conversation.id == gone))
        with fork_server(server.folder) as again:
            async with asyncio.timeout(CUT_S):
                while {of_ann, gone} & sessions(parked):  # noqa: ASYNC110  a file's going has no event
                    await asyncio.sleep(POLL_S)
            again.stop()

    assert set(begun) <= before
    assert sessions(parked) & set(begun) == {stays}
