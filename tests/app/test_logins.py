"""Logins, on both databases: who is signed in, where, and until when."""

import asyncio
from datetime import timedelta
from typing import Literal, NoReturn

import pytest
from argon2 import PasswordHasher
from argon2.exceptions import VerifyMismatchError
from sqlalchemy import update

from app.db.base import Database
from app.db.models import AuditEntry, Login, User
from app.db.types import AccountRole, utc_now
from app.errors import (
    Forbidden,
    InvalidRequest,
    NotFound,
    TooMany,
    Unauthenticated,
    Unavailable,
)
from app.ids import LoginId
from app.people.accounts import Accounts
from app.people.keys import Keys
from app.people.logins import ABSOLUTE, IDLE, Logins, SignedIn
from app.people.passwords import Passwords
from app.people.throttle import Claim, Throttle
from tests.kit.people import ADA, PASSWORD, WHERE, Clock, make_ada


async def test_whoever_signs_in_is_known_by_the_token(accounts: Accounts, logins: Logins):
    user_id = await make_ada(accounts)

    signed_in = await logins.login(" ADA@Example.org ", "a long password", **WHERE)
    principal = await logins.resolve(signed_in.token)

    assert principal == signed_in.principal
    assert principal.user_id == user_id
    assert principal.via == "login"
    assert principal.role is AccountRole.MEMBER


@pytest.mark.parametrize(
    ("email", "password"),
    [
        ("ada@example.org", "another password"),
        ("nobody@example.org", "a long password"),
        ("not an address\x00", "a long password"),
        ("ada@example.org", "x" * 5000),
        ("ada@example.org", ""),
    ],
)
async def test_a_refusal_does_not_tell_what_was_wrong(
    accounts: Accounts, email: str, password: str, logins: Logins
):
    await make_ada(accounts)

    with pytest.raises(Unauthenticated, match="address or the password is wrong"):
        await logins.login(email, password, **WHERE)


@pytest.mark.row("passwords")
async def test_an_unknown_user_costs_as_much_as_a_wrong_password(db: Database):
    class Counting(PasswordHasher):
        computed = 0

        def verify(self, hash: str | bytes, password: str | bytes) -> Literal[True]:  # noqa: A002
            assert not self.check_needs_rehash(str(hash))
            try:
                return super().verify(hash, password)
            except VerifyMismatchError:
                self.computed += 1
                raise

    hasher = Counting(time_cost=1, memory_cost=64, parallelism=1)
    accounts = Accounts(db, passwords=Passwords(hasher))
    logins = Logins(db, accounts)
    await make_ada(accounts)

    for email in ("ada@example.org", "nobody@example.org", "no address"):
        with pytest.raises(Unauthenticated):
            await logins.login(email, "another password", **WHERE)

    assert hasher.computed == 3


async def test_nobody_signs_in_to_an_account_without_a_password(
    db: Database, accounts: Accounts, logins: Logins
):
    user_id = await make_ada(accounts)
    async with db.begin() as session:
        (await session.get_one(User, user_id)).password_hash = ""

    with pytest.raises(Unauthenticated):
        await logins.login("ada@example.org", "", **WHERE)


@pytest.mark.row("passwords")
async def test_only_hashes_are_stored(db: Database, accounts: Accounts, logins: Logins):
    user_id = await make_ada(accounts)
    signed_in = await logins.login("ada@example.org", "a long password", **WHERE)

    async with db.read() as session:
        user = await session.get_one(User, user_id)
        login = await session.get_one(Login, signed_in.principal.credential_id)

    assert user.password_hash.startswith("$argon2id$")
    assert signed_in.token.encode() not in login.token_digest
    assert len(login.token_digest) == 32


@pytest.mark.row("passwords")
async def test_a_weak_hash_is_renewed_when_its_owner_signs_in(
    db: Database, accounts: Accounts, logins: Logins
):
    user_id = await make_ada(accounts)
    hasher = PasswordHasher(time_cost=2, memory_cost=64, parallelism=1)
    stronger = Logins(db, Accounts(db, passwords=Passwords(hasher)))

    await stronger.login("ada@example.org", "a long password", **WHERE)

    async with db.read() as session:
        assert "t=2" in (await session.get_one(User, user_id)).password_hash
    await logins.login("ada@example.org", "a long password", **WHERE)


async def test_a_login_that_is_used_lives_on_and_an_idle_one_ends(
    accounts: Accounts, clock: Clock, logins: Logins
):
    await make_ada(accounts)
    token = (await logins.login("ada@example.org", "a long password", **WHERE)).token

    for _ in range(3):
        clock.now += IDLE - timedelta(days=1)
        await logins.resolve(token)

    clock.now += IDLE
    with pytest.raises(Unauthenticated):
        await logins.resolve(token)


async def test_no_login_lives_for_ever(accounts: Accounts, clock: Clock, logins: Logins):
    await make_ada(accounts)
    token = (await logins.login("ada@example.org", "a long password", **WHERE)).token
    end = clock.now + ABSOLUTE

    while clock.now + timedelta(days=7) < end:
        clock.now += timedelta(days=7)
        await logins.resolve(token)
    clock.now = end

    with pytest.raises(Unauthenticated):
        await logins.resolve(token)


async def test_signing_out_ends_this_login_and_no_other(accounts: Accounts, logins: Logins):
    await make_ada(accounts)
    first = await logins.login("ada@example.org", "a long password", **WHERE)
    second = await logins.login("ada@example.org", "a long password", **WHERE)

    told: list[str] = []
    with accounts.revocations.watch(lambda: told.append("gone"), first.principal.credential_id):
        await logins.logout(first.principal)
    assert told == ["gone"]

    with pytest.raises(Unauthenticated):
        await logins.resolve(first.token)
    assert await logins.resolve(second.token) == second.principal


async def test_a_new_password_ends_every_login(accounts: Accounts, logins: Logins):
    user_id = await make_ada(accounts)
    signed_in = await logins.login("ada@example.org", "a long password", **WHERE)

    told: list[str] = []
    with accounts.revocations.watch(lambda: told.append("gone"), user_id):
        await accounts.set_password(user_id, "an even longer password")
    assert told == ["gone"]

    with pytest.raises(Unauthenticated):
        await logins.resolve(signed_in.token)
    await logins.login("ada@example.org", "an even longer password", **WHERE)


async def test_a_disabled_user_is_out_at_once(accounts: Accounts, logins: Logins):
    user_id = await make_ada(accounts)
    signed_in = await logins.login("ada@example.org", "a long password", **WHERE)

    told: list[str] = []
    with accounts.revocations.watch(lambda: told.append("gone"), user_id):
        await accounts.disable(user_id)
    assert told == ["gone"]

    with pytest.raises(Unauthenticated):
        await logins.resolve(signed_in.token)
    with pytest.raises(Unauthenticated):
        await logins.login("ada@example.org", "a long password", **WHERE)


async def test_guessing_has_to_wait_longer_each_time(
    accounts: Accounts, clock: Clock, logins: Logins
):
    await make_ada(accounts)
    waits = []
    for _ in range(9):
        try:
            await logins.login("ada@example.org", "guess guess", **WHERE)
        except TooMany as error:
            assert error.retry_after_s
            waits.append(error.retry_after_s)
            clock.now += timedelta(seconds=error.retry_after_s)
            with pytest.raises(Unauthenticated):
                await logins.login("ada@example.org", "guess guess", **WHERE)
        except Unauthenticated:
            pass

    assert waits == [1.0, 2.0, 4.0, 8.0]


async def test_a_volley_of_guesses_sent_at_once_gains_nothing(accounts: Accounts, logins: Logins):
    await make_ada(accounts)

    spellings = ("ada@example.org", " Ada@Example.org", "\uff41da@example.org")  # full width a
    results = await asyncio.gather(
        *(logins.login(spellings[i % 3], f"guess {i}", **WHERE) for i in range(40)),
        return_exceptions=True,
    )

    assert sum(isinstance(result, Unauthenticated) for result in results) == 5
    assert sum(isinstance(result, TooMany) for result in results) == 35


async def test_a_restart_does_not_let_anybody_guess_anew(
    db: Database, accounts: Accounts, logins: Logins, clock: Clock
):
    await make_ada(accounts)
    here = (await logins.login(ADA, PASSWORD, **WHERE)).principal
    for number in range(12):
        for email in (ADA, f"nobody{number}@example.org", "nobody@example.org"):
            clock.now += timedelta(minutes=15)
            with pytest.raises(Unauthenticated):
                await logins.login(email, "guess guess", **WHERE)
        with pytest.raises(Forbidden):
            await logins.confirm(here, "guess guess")

    again = Logins(db, accounts, throttle=Throttle(clock.seconds))
    await again.recall()

    for email in (ADA, "eve@example.org"):
        with pytest.raises(TooMany):
            await again.login(email, PASSWORD, **WHERE)
    with pytest.raises(TooMany):
        await again.confirm(here, PASSWORD)
    await again.login(ADA, PASSWORD, user_agent="test", address="192.0.2.2")


async def test_what_failed_before_one_came_in_is_forgotten_by_a_restart_as_well(
    db: Database, accounts: Accounts, logins: Logins, clock: Clock
):
    await make_ada(accounts)
    for _ in range(4):
        with pytest.raises(Unauthenticated):
            await logins.login(ADA, "guess guess", **WHERE)
    clock.now = utc_now() + timedelta(minutes=1)
    await logins.login(ADA, PASSWORD, **WHERE)

    again = Logins(db, accounts, throttle=Throttle(clock.seconds))
    await again.recall()

    for _ in range(4):
        with pytest.raises(Unauthenticated):
            await again.login(ADA, "guess guess", **WHERE)


async def test_what_failed_by_a_clock_that_was_ahead_is_not_waited_for_after_a_restart(
    db: Database, accounts: Accounts, logins: Logins, clock: Clock
):
    await make_ada(accounts)
    for _ in range(8):
        clock.now += timedelta(minutes=15)
        with pytest.raises(Unauthenticated):
            await logins.login(ADA, "guess guess", **WHERE)
    async with db.begin() as session:
        await session.execute(update(AuditEntry).values(at=utc_now() + timedelta(days=400)))

    again = Logins(db, accounts, throttle=Throttle(clock.seconds))
    await again.recall()
    clock.now += timedelta(minutes=15)

    await again.login(ADA, PASSWORD, **WHERE)


async def test_who_is_signed_in_is_known_where_nothing_can_be_stored(
    accounts: Accounts, logins: Logins, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    await make_ada(accounts)
    token = (await logins.login(ADA, PASSWORD, **WHERE)).token
    clock.now += timedelta(hours=1)

    def refuse(_: Database) -> NoReturn:
        raise Unavailable("The disk is full.", retry_after_s=1.0)

    with monkeypatch.context() as full:
        full.setattr(Database, "begin", refuse)
        found = await logins.resolve(token)

    assert found == await logins.resolve(token)


async def test_guesses_from_elsewhere_do_not_lock_the_owner_out(accounts: Accounts, logins: Logins):
    await make_ada(accounts)
    for _ in range(5):
        with pytest.raises(Unauthenticated):
            await logins.login("ada@example.org", "guess guess", **WHERE)

    await logins.login("ada@example.org", "a long password", user_agent="test", address="192.0.2.2")


def test_throttling_forgets_the_quietest_first_and_everybody_after_an_hour(clock: Clock):
    throttle = Throttle(clock.seconds)
    claim = Claim(key="a", free=1)
    throttle.attempt(claim)
    with pytest.raises(TooMany):
        throttle.attempt(claim)

    clock.now += timedelta(hours=2)

    throttle.attempt(claim)
    for i in range(10_000):
        throttle.attempt(Claim(key=i, free=1))
    throttle.attempt(claim)


def seen_id(signed_in: SignedIn) -> LoginId:
    return LoginId(signed_in.principal.credential_id)


async def test_one_sees_where_one_is_signed_in_and_ends_any_of_it(
    accounts: Accounts, logins: Logins, clock: Clock
):
    await make_ada(accounts)
    await accounts.create_user("eve@example.org", "Eve", "a long password")
    phone, laptop, desk = [
        await logins.login(
            "ada@example.org", "a long password", user_agent=agent, address="192.0.2.1"
        )
        for agent in ("phone", "laptop", "desk")
    ]
    eve = await logins.login("eve@example.org", "a long password", **WHERE)
    clock.now += timedelta(hours=1)
    await logins.resolve(laptop.token)

    seen = await logins.list(laptop.principal)
    await logins.end(laptop.principal, seen_id(phone))
    for who, whose in ((eve, desk), (laptop, phone)):
        with pytest.raises(NotFound):
            await logins.end(who.principal, seen_id(whose))
    told: list[str] = []
    with accounts.revocations.watch(lambda: told.append("gone"), desk.principal.credential_id):
        await logins.end_others(laptop.principal)

    assert seen[0].user_agent == "laptop"
    assert {one.user_agent for one in seen} == {"phone", "laptop", "desk"}
    assert [one.user_agent for one in seen if one.is_this_one] == ["laptop"]
    assert told == ["gone"]
    assert [one.user_agent for one in await logins.list(laptop.principal)] == ["laptop"]
    for ended in (phone, desk):
        with pytest.raises(Unauthenticated):
            await logins.resolve(ended.token)
    for stays in (laptop, eve):
        await logins.resolve(stays.token)


async def test_changing_ones_password_ends_the_other_logins_and_no_key(
    accounts: Accounts, logins: Logins, keys: Keys
):
    user_id = await make_ada(accounts)
    here, there = [
        await logins.login("ada@example.org", "a long password", **WHERE) for _ in range(2)
    ]
    key = await keys.create(user_id, "laptop")
    told: list[str] = []

    with accounts.revocations.watch(lambda: told.append("gone"), user_id):
        await logins.change_password(here.principal, "a long password", "an even longer one")

    assert told == ["gone"]
    await logins.resolve(here.token)
    await keys.resolve(key.key)
    with pytest.raises(Unauthenticated):
        await logins.resolve(there.token)
    with pytest.raises(Unauthenticated):
        await logins.login("ada@example.org", "a long password", **WHERE)
    await logins.login("ada@example.org", "an even longer one", **WHERE)


async def test_a_fresh_login_does_not_stand_in_for_a_password_that_there_is(
    accounts: Accounts, logins: Logins
):
    await make_ada(accounts)
    signed_in = await logins.login(ADA, PASSWORD, **WHERE)

    for password in (None, "", "a wrong one"):
        with pytest.raises(Forbidden):
            await logins.make_sure(signed_in.principal, password)
    await logins.make_sure(signed_in.principal, PASSWORD)


async def test_a_stolen_login_cannot_guess_the_password(
    accounts: Accounts, logins: Logins, clock: Clock
):
    await make_ada(accounts)
    stolen = (await logins.login("ada@example.org", "a long password", **WHERE)).principal

    for _ in range(5):
        with pytest.raises(Forbidden) as refused:
            await logins.change_password(stolen, "guess guess", "an even longer one")
        assert refused.value.field == "current_password"
    with pytest.raises(TooMany):
        await logins.confirm(stolen, "a long password")
    clock.now += timedelta(minutes=1)

    with pytest.raises(InvalidRequest) as short:
        await logins.change_password(stolen, "a long password", "short")
    assert short.value.field == "password"
    await logins.confirm(stolen, "a long password")


async def test_of_two_who_change_a_password_at_once_one_does(accounts: Accounts, logins: Logins):
    await make_ada(accounts)
    who = (await logins.login("ada@example.org", "a long password", **WHERE)).principal
    wanted = [f"a new password {i}" for i in range(2)]

    results = await asyncio.gather(
        *(logins.change_password(who, "a long password", one) for one in wanted),
        return_exceptions=True,
    )

    assert sorted(isinstance(one, Forbidden) for one in results) == [False, True]
    changed = wanted[results.index(None)]
    await logins.login("ada@example.org", changed, **WHERE)
