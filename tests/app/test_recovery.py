"""A forgotten password, over connections and in the database: one link, used once, by its owner."""

import asyncio
from datetime import timedelta

import httpx
import pytest

from app.db.base import Database
from app.db.types import AccountRole
from app.errors import AppError, InvalidRequest, NotFound, Unauthenticated
from app.ids import UserId
from app.people.accounts import Accounts
from app.people.logins import Logins
from app.people.recovery import LINK, Recovery
from tests.kit.people import ADA, PASSWORD, WHERE, Clock, make_ada
from tests.kit.serving import Serving
from tests.kit.staff import SIGNED_OUT, boss, closes, done, somebody
from tests.kit.tab import browser

NEW = "quite another password"


async def choose(house: Serving, token: str, password: str) -> httpx.Response:
    """By somebody who is not signed in, from our own page."""
    async with httpx.AsyncClient(base_url=house.site.url, timeout=60) as client:
        await client.get("/api/account")
        client.headers["x-csrf-token"] = client.cookies["kw_csrf"]
        answer = await client.post("/api/password", json={"token": token, "password": password})
        if answer.is_success:
            await done(await client.get("/api/account"))
        return answer


@pytest.mark.row("live revocation")
async def test_by_the_link_one_chooses_a_password_and_is_signed_out_everywhere_else(
    house: Serving,
):
    async with boss(house) as admin, somebody(house) as who, who.tab() as tab:
        path = f"/api/users/{who.user_id}/password-link"
        refused = [await who.client.post(path), await who.client.post(path + "s")]
        first = await done(await admin.client.post(path))
        link = await done(await admin.client.post(path))
        unknown = await admin.client.post("/api/users/user_0/password-link")
        before = await who.client.get("/api/account")
        wrong = [
            await choose(house, token, password)
            for token, password in ((first["token"], NEW), ("x", NEW), (link["token"], "short"))
        ]
        chosen = await choose(house, link["token"], NEW)
        code = await closes(tab.socket)
        after = await who.client.get("/api/account")
        again = await choose(house, link["token"], NEW)
        told = await done(
            await admin.client.get("/api/admin/audit", params={"subject_id": who.user_id})
        )
        old = {"email": who.email, "password": PASSWORD}
        with pytest.raises(httpx.HTTPStatusError):
            async with browser(house.site, who.email):
                pass
        signed_in = await admin.client.post("/api/login", json=old | {"password": NEW})

    assert [answer.status_code for answer in refused] == [403, 404]
    assert unknown.status_code == 404
    assert before.status_code == 200, "nothing changes before the link is used"
    assert [(one.status_code, one.json()["code"]) for one in wrong[:2]] == [
        (401, "invalid_link"),
        (401, "invalid_link"),
    ]
    assert (wrong[2].status_code, wrong[2].json()["field"]) == (400, "password")
    assert (chosen.status_code, chosen.json()["email"]) == (200, who.email)
    assert (code, after.status_code, again.status_code) == (SIGNED_OUT, 401, 401)
    assert signed_in.status_code == 200
    acts = [one["act"] for one in told["items"]]
    assert acts[:3] == ["account.password", "account.password_link", "account.password_link"]
    assert link["token"] not in str(told)


@pytest.fixture
def recovery(db: Database, accounts: Accounts, logins: Logins) -> Recovery:
    return Recovery(db, accounts, logins)


@pytest.fixture
async def root_id(accounts: Accounts) -> UserId:
    return await accounts.create_user("root@example.org", "Root", PASSWORD, AccountRole.ADMIN)


async def test_a_link_ends_with_its_day_its_maker_or_the_account(
    recovery: Recovery, accounts: Accounts, clock: Clock, root_id: UserId
):
    ada_id = await make_ada(accounts)
    other_id = await accounts.create_user("o@example.org", "O", PASSWORD, AccountRole.ADMIN)

    async def refused(token: str) -> None:
        with pytest.raises(Unauthenticated):
            await recovery.redeem(token, NEW, user_agent="test")

    link = await recovery.offer(other_id, ada_id)
    await accounts.set_role(other_id, AccountRole.MEMBER)
    await refused(link.token)
    await accounts.set_role(other_id, AccountRole.ADMIN)
    await accounts.disable(ada_id)
    await refused(link.token)
    await accounts.enable(ada_id)
    clock.now += LINK - timedelta(seconds=1)
    with pytest.raises(InvalidRequest):
        await recovery.redeem(link.token, "short", user_agent="test")
    clock.now += timedelta(seconds=1)
    await refused(link.token)
    link = await recovery.offer(root_id, ada_id)
    await accounts.remove(ada_id)
    await refused(link.token)
    with pytest.raises(NotFound):
        await recovery.offer(root_id, ada_id)


async def test_a_link_ends_when_the_password_is_changed_otherwise(
    recovery: Recovery, accounts: Accounts, logins: Logins, root_id: UserId
):
    """Who remembered it after all need not fear whoever reads old mail."""
    ada_id = await make_ada(accounts)

    async def remember() -> None:
        signed_in = await logins.login(ADA, PASSWORD, **WHERE)
        await logins.change_password(signed_in.principal, PASSWORD, "one more password")

    async def by_command() -> None:
        await accounts.set_password(ada_id, PASSWORD)

    for change in (remember, by_command):
        link = await recovery.offer(root_id, ada_id)
        await change()
        with pytest.raises(Unauthenticated):
            await recovery.redeem(link.token, NEW, user_agent="test")


async def test_of_many_who_use_a_link_at_once_one_does(
    recovery: Recovery, accounts: Accounts, logins: Logins, root_id: UserId
):
    link = await recovery.offer(root_id, await make_ada(accounts))

    ends = await asyncio.gather(
        *(recovery.redeem(link.token, f"{NEW} {n}", user_agent="test") for n in range(8)),
        return_exceptions=True,
    )

    (used,) = [number for number, end in enumerate(ends) if not isinstance(end, AppError)]
    await logins.login(ADA, f"{NEW} {used}", **WHERE)
