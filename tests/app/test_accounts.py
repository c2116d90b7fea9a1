"""Users and their roles, on both databases, and that there is always an admin."""

import asyncio

import pytest
from sqlalchemy import func, select

from app.db.base import Database
from app.db.models import User
from app.db.types import AccountRole
from app.errors import Conflict, InvalidRequest, NotFound, Unauthenticated
from app.ids import UserId
from app.people.accounts import Accounts, normal_email
from app.people.invitations import Invitations
from app.people.keys import Keys
from app.people.logins import Logins
from tests.kit.people import WHERE, make_ada


@pytest.mark.parametrize("password", ["short", "x" * 1025])
async def test_a_password_has_a_length_and_no_other_rule(accounts: Accounts, password: str):
    with pytest.raises(InvalidRequest) as refused:
        await accounts.create_user("ada@example.org", "Ada", password)

    assert refused.value.field == "password"


@pytest.mark.parametrize("email", ["", "ada", "a@b@c", "a b@c", "@", "a@" + "x" * 300, "a\x00@b"])
def test_what_is_no_address_is_refused(email: str):
    with pytest.raises(InvalidRequest):
        normal_email(email)


async def test_one_address_in_two_spellings_is_one_account(accounts: Accounts):
    await make_ada(accounts)

    with pytest.raises(Conflict):
        await accounts.create_user("ADA@EXAMPLE.ORG", "Another", "a long password")

    assert (await accounts.find("Ada@example.org")).name == "Ada"
    assert [account.email for account in await accounts.list()] == ["ada@example.org"]
    with pytest.raises(NotFound):
        await accounts.find("nobody@example.org")
    with pytest.raises(NotFound):
        await accounts.set_password(UserId("user_of_nobody"), "a long password")


async def test_somebody_is_called_otherwise_from_then_on(accounts: Accounts):
    user_id = await make_ada(accounts)

    renamed = await accounts.rename(user_id, "  Ada   Lovelace ")
    with pytest.raises(InvalidRequest) as refused:
        await accounts.rename(user_id, " ")

    assert renamed == await accounts.account(user_id)
    assert (renamed.name, renamed.has_password) == ("Ada Lovelace", True)
    assert refused.value.field == "name"
    with pytest.raises(NotFound):
        await accounts.rename(UserId("user_of_nobody"), "Nobody")


CHANGES = {
    "disabled": lambda accounts, user_id: accounts.disable(user_id),
    "another role": lambda accounts, user_id: accounts.set_role(user_id, AccountRole.MEMBER),
    "removed": lambda accounts, user_id: accounts.remove(user_id),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_the_last_admin_stays(accounts: Accounts, invitations: Invitations, change: str):
    first = await invitations.ensure_admin("root@example.org", "a long password")
    shut_out = await accounts.create_user("a@b", "A", "a long password", AccountRole.ADMIN)
    await accounts.disable(shut_out)

    with pytest.raises(Conflict) as refused:
        await CHANGES[change](accounts, first)

    assert refused.value.code == "last_admin"
    await accounts.set_role(first, AccountRole.ADMIN)
    await accounts.create_user("b@example.org", "B", "a long password", AccountRole.ADMIN)
    await CHANGES[change](accounts, first)


async def test_of_admins_who_shut_each_other_out_at_once_one_stays(
    db: Database, accounts: Accounts
):
    ids = [
        await accounts.create_user(f"a{i}@example.org", "A", "a long password", AccountRole.ADMIN)
        for i in range(12)
    ]

    ways = list(CHANGES.values())
    results = await asyncio.gather(
        *(ways[place % 3](accounts, user_id) for place, user_id in enumerate(ids)),
        return_exceptions=True,
    )

    async with db.read() as session:
        admins = await session.scalar(
            select(func.count()).where(User.role == AccountRole.ADMIN, User.disabled_at.is_(None))
        )
    assert admins == 1
    assert sum(isinstance(one, Conflict) for one in results) == 1
    assert sum(one is None for one in results) == 11


async def test_a_role_that_changes_is_told_and_holds_from_then_on(
    accounts: Accounts, logins: Logins, keys: Keys
):
    user_id = await make_ada(accounts)
    signed_in = await logins.login("ada@example.org", "a long password", **WHERE)
    key = await keys.create(user_id, "laptop")
    told: list[str] = []

    with accounts.revocations.watch(lambda: told.append("changed"), user_id):
        await accounts.set_role(user_id, AccountRole.AUDITOR)

    assert told == ["changed"]
    for who in (await logins.resolve(signed_in.token), await keys.resolve(key.key)):
        assert (who.role, who.may_chat, who.sees_figures) == (AccountRole.AUDITOR, False, True)


async def test_who_is_enabled_again_signs_in_anew_and_has_their_keys(
    accounts: Accounts, logins: Logins, keys: Keys
):
    user_id = await make_ada(accounts)
    signed_in = await logins.login("ada@example.org", "a long password", **WHERE)
    key = await keys.create(user_id, "laptop")
    await accounts.disable(user_id)
    assert (await accounts.account(user_id)).is_disabled

    await accounts.enable(user_id)

    with pytest.raises(Unauthenticated):
        await logins.resolve(signed_in.token)
    await logins.login("ada@example.org", "a long password", **WHERE)
    await keys.resolve(key.key)
    assert not (await accounts.account(user_id)).is_disabled


async def test_whoever_is_not_there_is_not_found(accounts: Accounts):
    nobody = UserId("user_of_nobody")

    for change in (*CHANGES.values(), lambda accounts, user_id: accounts.enable(user_id)):
        with pytest.raises(NotFound):
            await change(accounts, nobody)


async def test_a_watcher_that_left_is_forgotten(accounts: Accounts):
    user_id, told = UserId("user_1"), list[str]()

    with accounts.revocations.watch(lambda: told.append("left"), user_id):
        pass
    accounts.revocations.revoke(user_id)

    assert not told
