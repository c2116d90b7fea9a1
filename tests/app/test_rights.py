"""Who may still be in, when another process says otherwise; on both databases."""

import asyncio
import math

import msgspec
import pytest
from sqlalchemy import update

from app.db.base import Database
from app.db.models import ApiKey, Login, User
from app.db.types import AccountRole, utc_now
from app.people.accounts import Accounts, Principal
from app.people.keys import Keys
from app.people.logins import Logins
from app.people.rights import Rights, Standing
from tests.kit.people import ADA, PASSWORD, WHERE, make_ada, quick_passwords


@pytest.fixture
def accounts(db: Database) -> Accounts:
    return Accounts(db, passwords=quick_passwords())


@pytest.fixture
def elsewhere(db: Database) -> Accounts:
    """Another process's view of the same people."""
    return Accounts(db, passwords=quick_passwords())


@pytest.fixture
async def rights(
    accounts: Accounts, logins: Logins, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> Rights:
    """A look of theirs stays recent, however long the database takes."""
    monkeypatch.setattr("app.people.rights.STALE_S", math.inf)
    rights = Rights(accounts.revocations, logins, keys)
    await rights.look()
    return rights


@pytest.fixture
async def by_login(accounts: Accounts, logins: Logins) -> Principal:
    await make_ada(accounts)
    return (await logins.login(ADA, PASSWORD, **WHERE)).principal


@pytest.fixture
async def by_key(accounts: Accounts, keys: Keys, by_login: Principal) -> Principal:
    return await keys.resolve((await keys.create(by_login.user_id, "laptop")).key)


async def test_who_is_in_by_login_or_key_is_sure_after_a_look(
    rights: Rights, by_login: Principal, by_key: Principal
):
    login, key = Standing(by_login), Standing(by_key)
    with rights.watching(login), rights.watching(key):
        await rights.look()

        assert rights.are_sure(login) and rights.are_sure(key)


@pytest.mark.parametrize("change", ["disabled", "role", "expired", "gone"])
async def test_what_another_process_changes_is_found_by_the_next_look(
    db: Database, rights: Rights, by_login: Principal, by_key: Principal, *, change: str
):
    now = utc_now()
    login, key = Standing(by_login), Standing(by_key)
    with rights.watching(login), rights.watching(key):
        async with db.begin() as session:
            match change:
                case "disabled":
                    await session.execute(update(User).values(disabled_at=now))
                case "role":
                    await session.execute(update(User).values(role=AccountRole.ADMIN))
                case "expired":
                    await session.execute(update(Login).values(expires_at=now))
                    await session.execute(update(ApiKey).values(expires_at=now))
                case _:
                    await session.delete(await session.get_one(Login, by_login.credential_id))
                    await session.execute(update(ApiKey).values(revoked_at=now))
        assert rights.are_sure(login) and rights.are_sure(key)
        await rights.look()

        assert not rights.are_sure(login) and not rights.are_sure(key)


async def test_what_this_process_revokes_is_in_doubt_at_once(
    rights: Rights, keys: Keys, by_login: Principal, by_key: Principal
):
    login, key = Standing(by_login), Standing(by_key)
    with rights.watching(login), rights.watching(key):
        await keys.revoke(by_key.user_id, (await keys.list(by_key.user_id))[0].id)

        assert not rights.are_sure(key)
        assert rights.are_sure(login)


async def test_a_doubt_that_comes_while_it_is_resolved_stays(rights: Rights, by_login: Principal):
    async def find() -> Principal:
        standing.doubt()
        return by_login

    standing = Standing(by_login)
    standing.doubt()
    await standing.resolve(find())

    assert not rights.are_sure(standing)


async def test_a_role_that_was_found_anew_is_trusted(
    db: Database, rights: Rights, keys: Keys, by_key: Principal
):
    standing = Standing(by_key)
    with rights.watching(standing):
        async with db.begin() as session:
            await session.execute(update(User).values(role=AccountRole.ADMIN))
        await rights.look()

        async def find() -> Principal:
            return msgspec.structs.replace(by_key, role=AccountRole.ADMIN)

        await standing.resolve(find())
        await rights.look()

        assert rights.are_sure(standing)


async def test_without_a_recent_look_nobody_is_sure(
    accounts: Accounts, logins: Logins, keys: Keys, by_login: Principal
):
    rights = Rights(accounts.revocations, logins, keys)
    standing = Standing(by_login)
    with rights.watching(standing):
        assert not rights.are_sure(standing)


async def test_looks_go_on_by_themselves(rights: Rights, elsewhere: Accounts, by_login: Principal):
    standing = Standing(by_login)
    async with rights.running():
        with rights.watching(standing):
            await elsewhere.disable(by_login.user_id)
            async with asyncio.timeout(30):
                await standing.doubted.wait()
