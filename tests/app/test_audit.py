"""The audit log on both databases: every act of an administrator, who looked at what, who did not get in."""

import contextlib
from typing import Any

import httpx
import pytest

from app.db.base import Database
from app.db.types import AccountRole, AuditAct, AuditDoor
from app.errors import Conflict, InvalidRequest, NotFound, TooMany, Unauthenticated
from app.ids import GroupId, UserId
from app.people.accounts import Accounts
from app.people.audit import COMMAND, LOOK_AGAIN, Actor, Audit, AuditFilter, act_as
from app.people.groups import Groups
from app.people.logins import Logins
from tests.kit.people import ADA, PASSWORD, WHERE, Clock, make_ada
from tests.kit.serving import Serving
from tests.kit.staff import boss, done, somebody

Rows = list[dict[str, Any]]


async def told(client: httpx.AsyncClient, **wanted: str) -> Rows:
    """The whole log, page by page, the oldest first."""
    rows: Rows = []
    cursor: dict[str, str] = {}
    while True:
        page = await done(await client.get("/api/admin/audit", params=wanted | cursor))
        rows += page["items"]
        if page["next_cursor"] is None:
            return rows[::-1]
        cursor = {"cursor": page["next_cursor"]}


async def test_whatever_an_administrator_does_is_told_with_who_whom_and_which_request(
    house: Serving,
):
    async with boss(house) as admin, somebody(house) as other:
        client, user = admin.client, f"/api/users/{other.user_id}"
        answers = [
            await client.patch(user, json={"role": "auditor"}),
            await client.patch(user, json={"is_disabled": True}),
            await client.patch(user, json={"is_disabled": False}),
            invited := await client.post("/api/invitations", json={"note": "Eve"}),
            await client.delete(f"/api/invitations/{invited.json()['view']['id']}"),
            grouped := await client.post("/api/groups", json={"name": f"Sales {other.user_id}"}),
            await client.patch(
                f"/api/groups/{grouped.json()['id']}", json={"name": f"Ops {other.user_id}"}
            ),
            await client.put(f"/api/groups/{grouped.json()['id']}/members/{other.user_id}"),
            await client.delete(f"/api/groups/{grouped.json()['id']}/members/{other.user_id}"),
            await client.put(f"{user}/quotas/requests_per_day", json={"allowed": 7}),
            await client.delete(f"{user}/quotas/requests_per_day"),
            await client.delete(f"/api/groups/{grouped.json()['id']}"),
            made := await client.post("/api/keys", json={"name": "mine"}),
            await client.delete(f"/api/keys/{made.json()['view']['id']}"),
            await client.post(
                "/api/personas",
                json={"name": "Pirate", "instructions": "Arr.", "visibility": "everybody"},
            ),
            await client.delete(user),
        ]
        rows = await told(client, actor_id=admin.user_id)
        about = await told(client, subject_id=other.user_id)
        pages = await done(await client.get("/api/admin/audit", params={"limit": 3}))

    assert {answer.is_success for answer in answers} == {True}
    assert [row["act"] for row in rows] == [
        "account.role",
        "account.disabled",
        "account.enabled",
        "invitation.created",
        "invitation.revoked",
        "group.created",
        "group.renamed",
        "group.joined",
        "group.left",
        "quota.set",
        "quota.lifted",
        "group.deleted",
        "key.created",
        "key.revoked",
        "library.published",
        "account.removed",
    ]
    requests = [answer.headers["x-request-id"] for answer in answers]
    assert [row["request_id"] for row in rows] == requests
    assert {(row["door"], row["actor_email"]) for row in rows} == {("login", admin.email)}
    assert rows[0]["details"] == {"role": "auditor"}
    assert rows[-1]["subject_id"] == other.user_id and rows[-1]["subject_email"] is None
    assert [row["act"] for row in about][-3:] == ["quota.set", "quota.lifted", "account.removed"]
    assert len(pages["items"]) == 3 and pages["next_cursor"] is not None
    assert "Arr." not in str(rows) and "Pirate" not in str(rows)


async def test_who_comes_by_an_invitation_is_told_as_a_stranger(house: Serving):
    async with (
        boss(house) as admin,
        httpx.AsyncClient(base_url=house.site.url, timeout=60) as stranger,
    ):
        made = await done(await admin.client.post("/api/invitations", json={"note": "Ada"}))
        await stranger.get("/api/account")
        stranger.headers["x-csrf-token"] = stranger.cookies["kw_csrf"]
        form = {
            "token": made["token"],
            "name": "Ada",
            "password": PASSWORD,
            "email": f"ada@{admin.user_id}",
        }
        account = await done(await stranger.post("/api/setup", json=form))
        rows = await told(admin.client, subject_id=account["id"])

    assert [(row["act"], row["door"], row["actor_id"]) for row in rows] == [
        ("account.created", "stranger", None),
        ("invitation.accepted", "stranger", None),
    ]
    assert rows[1]["details"] == {"invitation_id": made["view"]["id"]}


@pytest.mark.row("login")
async def test_a_wrong_password_is_told_with_whose_it_was_to_be_and_where_it_came_from(
    house: Serving,
):
    async with boss(house) as admin, somebody(house) as ann:
        wrong = {"email": ann.email, "password": "a wrong word"}
        refused = await ann.client.post("/api/login", json=wrong)
        rows = await told(admin.client, act="login.failed", subject_id=ann.user_id)

    assert refused.status_code == 401
    assert [(row["door"], row["actor_id"], row["details"]) for row in rows] == [
        ("stranger", None, {"address": "127.0.0.1"})
    ]
    assert rows[0]["request_id"] == refused.headers["x-request-id"]


@pytest.mark.row("dashboard")
async def test_who_looks_at_figures_of_others_is_told_once_in_a_while(empty_house: Serving):
    async with boss(empty_house) as admin, somebody(empty_house, AccountRole.AUDITOR) as auditor:
        for who in (admin, auditor, auditor):
            await done(await who.client.get("/api/admin/sessions"))
        await done(await auditor.client.get("/api/admin/misses", params={"user_id": admin.user_id}))
        rows = await told(admin.client, act="figures.look")
        refused = await auditor.client.get("/api/admin/audit")

    assert [(row["actor_id"], row["details"]["what"], row["subject_id"]) for row in rows] == [
        (admin.user_id, "sessions", None),
        (auditor.user_id, "sessions", None),
        (auditor.user_id, "misses", admin.user_id),
    ]
    assert refused.status_code == 403, "an auditor of figures is none of people"


# ---------------------------------------------------------------- the domain, on both databases


async def test_what_is_refused_is_not_told(db: Database, accounts: Accounts, groups: Groups):
    ada = await make_ada(accounts)
    await groups.create("Sales")

    for refused in (
        groups.create("Sales"),
        groups.join(GroupId("group_0"), ada),
        accounts.create_user(ADA, "Ada", PASSWORD),
        accounts.remove(UserId("user_0")),
    ):
        with pytest.raises((Conflict, NotFound)):
            await refused

    page = await Audit(db).read(AuditFilter())
    assert [row.act for row in page.items] == [AuditAct.GROUP_CREATED, AuditAct.ACCOUNT_CREATED]
    assert {row.door for row in page.items} == {AuditDoor.SERVER}


async def test_a_command_is_told_as_one(db: Database, accounts: Accounts):
    act_as(COMMAND)
    ada = await make_ada(accounts)
    await accounts.set_password(ada, "another password")

    page = await Audit(db).read(AuditFilter(subject_id=ada))

    assert [(row.act, row.door, row.subject_email) for row in page.items] == [
        (AuditAct.ACCOUNT_PASSWORD, AuditDoor.COMMAND, ADA),
        (AuditAct.ACCOUNT_CREATED, AuditDoor.COMMAND, ADA),
    ]


async def test_who_does_not_get_in_is_told_and_what_they_typed_is_not(
    db: Database, accounts: Accounts, logins: Logins, clock: Clock
):
    ada = await make_ada(accounts)
    for name, times in ((ADA, 8), ("hunter2@nobody", 1)):
        for _ in range(times):
            with pytest.raises((Unauthenticated, TooMany)):
                await logins.login(name, "a wrong word", **WHERE)

    failures = await Audit(db).read(AuditFilter(act=AuditAct.LOGIN_FAILED))
    lockouts = await Audit(db).read(AuditFilter(act=AuditAct.LOGIN_LOCKED))

    assert [row.subject_id for row in failures.items] == [None, ada, ada, ada, ada, ada]
    assert len(lockouts.items) == 1, "a lockout is told once, however often it is met"
    assert {row.details["address"] for row in failures.items} == {WHERE["address"]}
    assert "hunter2" not in str(failures) and "a wrong word" not in str(failures)


async def test_looks_are_told_again_after_a_while_and_each_persons_apart(
    db: Database, clock: Clock
):
    audit = Audit(db, now=clock)
    for name in ("user_a", "user_b", "user_a"):
        act_as(Actor(user_id=UserId(name), door=AuditDoor.LOGIN))
        await audit.look("sessions")
    clock.now += LOOK_AGAIN
    await audit.look("sessions")

    page = await audit.read(AuditFilter(act=AuditAct.FIGURES_LOOK))

    assert sorted(str(row.actor_id) for row in page.items) == ["user_a", "user_a", "user_b"]


@pytest.mark.parametrize("cursor", ["", "nonsense", "YXVkaXRfMA==", "\x00"])
async def test_a_foreign_cursor_is_refused(db: Database, cursor: str):
    with pytest.raises(InvalidRequest):
        await Audit(db).read(AuditFilter(), cursor=cursor)


async def test_an_act_and_its_row_are_stored_together_or_not_at_all(
    db: Database, accounts: Accounts, monkeypatch: pytest.MonkeyPatch
):
    ada = await make_ada(accounts)

    def fail(*_: object, **__: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("app.people.accounts.note", fail)
    with contextlib.suppress(OSError):
        await accounts.disable(ada)

    assert not (await accounts.account(ada)).is_disabled
