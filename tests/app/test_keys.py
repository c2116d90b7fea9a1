"""API keys, on both databases."""

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import func, select

from app.db.base import Database
from app.db.models import ApiKey, User
from app.db.types import AccountRole, KeyScope
from app.errors import InvalidRequest, NotFound, Unauthenticated
from app.people.accounts import Accounts
from app.people.invitations import Invitations
from app.people.keys import Keys, bearer
from tests.kit.people import Clock, make_ada

OWN = "a key that an operator made up"


async def test_a_key_is_shown_once_and_stands_for_its_owner(
    db: Database, accounts: Accounts, keys: Keys
):
    user_id = await make_ada(accounts)

    new = await keys.create(user_id, "laptop")
    principal = await keys.resolve(new.key)

    assert new.key.startswith("sk-kw-")
    assert principal.user_id == user_id
    assert principal.via == "key"
    assert principal.credential_id == new.view.id
    async with db.read() as session:
        stored = await session.get_one(ApiKey, new.view.id)
    assert len(stored.digest) == 32
    assert new.key.startswith(stored.prefix)
    assert len(stored.prefix) < 16


async def test_a_list_shows_when_a_key_was_used_and_leaves_out_the_revoked(
    accounts: Accounts, keys: Keys
):
    user_id = await make_ada(accounts)
    first = await keys.create(user_id, "first")
    second = await keys.create(user_id, "second")
    await keys.resolve(second.key)

    await keys.revoke(user_id, first.view.id)

    (view,) = await keys.list(user_id)
    assert view.id == second.view.id
    assert view.last_used_at is not None


async def test_being_used_is_written_at_most_once_a_minute(
    accounts: Accounts, keys: Keys, clock: Clock
):
    user_id = await make_ada(accounts)
    key = (await keys.create(user_id, "laptop")).key

    seen = []
    for _ in range(4):
        clock.now += timedelta(seconds=40)
        await keys.resolve(key)
        seen.append((await keys.list(user_id))[0].last_used_at)

    assert seen[0] == seen[1] != seen[2] == seen[3]


async def test_a_revoked_key_is_refused_and_its_sockets_are_told(accounts: Accounts, keys: Keys):
    user_id = await make_ada(accounts)
    new = await keys.create(user_id, "laptop")

    told: list[str] = []
    with accounts.revocations.watch(lambda: told.append("gone"), new.view.id):
        await keys.revoke(user_id, new.view.id)
    assert told == ["gone"]

    with pytest.raises(Unauthenticated):
        await keys.resolve(new.key)


async def test_nobody_revokes_the_key_of_another(accounts: Accounts, keys: Keys):
    ada = await make_ada(accounts)
    eve = await accounts.create_user("eve@example.org", "Eve", "a long password")
    new = await keys.create(ada, "laptop")

    with pytest.raises(NotFound):
        await keys.revoke(eve, new.view.id)

    assert await keys.list(eve) == []
    await keys.resolve(new.key)


async def test_keys_end_with_their_time_and_with_their_owner(
    accounts: Accounts, keys: Keys, clock: Clock
):
    user_id = await make_ada(accounts)
    old = await keys.create(user_id, "old", lifetime=timedelta(hours=1))
    new = await keys.create(user_id, "new", lifetime=timedelta(days=1))
    clock.now += timedelta(hours=1)

    with pytest.raises(Unauthenticated):
        await keys.resolve(old.key)
    await keys.resolve(new.key)
    await accounts.disable(user_id)
    with pytest.raises(Unauthenticated):
        await keys.resolve(new.key)


async def test_a_key_is_for_what_it_was_made_for(accounts: Accounts, keys: Keys):
    user_id = await make_ada(accounts)

    reads = await keys.create(user_id, "reads", scopes=[KeyScope.FIGURES, KeyScope.READ] * 2)
    does_all = await keys.create(user_id, "does all")
    with pytest.raises(InvalidRequest) as refused:
        await keys.create(user_id, "nothing", scopes=[])

    assert refused.value.field == "scopes"
    assert reads.view.scopes == (KeyScope.READ, KeyScope.FIGURES)
    assert (await keys.resolve(reads.key)).scopes == reads.view.scopes
    assert (await keys.resolve(does_all.key)).scopes == tuple(KeyScope)


@pytest.mark.parametrize("plain", ["", "sk-kw-", "sk-kw-" + "a" * 43, "\x00", "ключ"])
async def test_what_is_no_key_is_refused(keys: Keys, plain: str):
    with pytest.raises(Unauthenticated):
        await keys.resolve(plain)


@pytest.mark.parametrize("name", ["", "  ", "\x00", "x" * 201])
async def test_a_key_needs_a_name(accounts: Accounts, keys: Keys, name: str):
    user_id = await make_ada(accounts)

    with pytest.raises(InvalidRequest):
        await keys.create(user_id, name)


async def test_the_settings_key_belongs_to_the_first_admin(keys: Keys, invitations: Invitations):
    admin_id = await invitations.ensure_admin("root@example.org", "a long password")

    await keys.ensure_key(OWN)
    await keys.ensure_key(OWN)

    assert (await keys.resolve(OWN)).user_id == admin_id
    (view,) = await keys.list(admin_id)
    assert view.prefix == OWN[:4]


async def test_the_settings_key_leaves_the_first_admins_link_open(
    keys: Keys, invitations: Invitations
):
    await keys.ensure_key(OWN)

    assert (await keys.resolve(OWN)).role is AccountRole.MEMBER
    assert await invitations.first_admin_link() is not None


async def test_servers_that_start_at_once_make_one_key(db: Database, keys: Keys):
    await asyncio.gather(*(keys.ensure_key(OWN) for _ in range(10)))

    async with db.read() as session:
        assert await session.scalar(select(func.count()).select_from(ApiKey)) == 1
        assert await session.scalar(select(func.count()).select_from(User)) == 1


async def test_a_key_that_could_be_guessed_is_refused(keys: Keys):
    with pytest.raises(InvalidRequest):
        await keys.ensure_key("secret")


@pytest.mark.parametrize("header", ["Bearer sk-kw-1", "bearer  sk-kw-1 ", "BEARER sk-kw-1"])
def test_a_header_is_read_one_way(header: str):
    assert bearer(header) == "sk-kw-1"


@pytest.mark.parametrize("header", [None, "", "sk-kw-1", "Basic sk-kw-1", "Bearer", "Bearer  "])
def test_a_header_without_a_key_is_refused(header: str | None):
    with pytest.raises(Unauthenticated):
        bearer(header)
