"""Users, logins and the first admin, on both databases."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Literal

import pytest
from argon2 import PasswordHasher
from sqlalchemy import func, select

from app.db.base import Database
from app.db.models import Login, User
from app.db.types import AccountRole
from app.errors import AppError, Conflict, InvalidRequest, NotFound, TooMany, Unauthenticated
from app.ids import UserId
from app.people.accounts import ABSOLUTE, IDLE, Accounts, normal_email
from app.people.passwords import Passwords
from app.people.throttle import Claim, Throttle

QUICK = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)
WHERE = {"user_agent": "test", "address": "192.0.2.1"}


class Clock:
    """A time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def seconds(self) -> float:
        return self.now.timestamp()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def accounts(db: Database, clock: Clock) -> Accounts:
    return Accounts(db, passwords=Passwords(QUICK), throttle=Throttle(clock.seconds), now=clock)


async def make_ada(accounts: Accounts) -> UserId:
    return await accounts.create_user("ada@example.org", "Ada", "a long password")


async def test_whoever_signs_in_is_known_by_the_token(accounts: Accounts):
    user_id = await make_ada(accounts)

    signed_in = await accounts.login(" ADA@Example.org ", "a long password", **WHERE)
    principal = await accounts.resolve(signed_in.token)

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
    accounts: Accounts, email: str, password: str
):
    await make_ada(accounts)

    with pytest.raises(Unauthenticated, match="address or the password is wrong"):
        await accounts.login(email, password, **WHERE)


async def test_an_unknown_user_costs_as_much_as_a_wrong_password(db: Database):
    class Counting(PasswordHasher):
        verified = 0

        def verify(self, hash: str | bytes, password: str | bytes) -> Literal[True]:  # noqa: A002
            self.verified += 1
            assert not self.check_needs_rehash(str(hash))
            return super().verify(hash, password)

    hasher = Counting(time_cost=1, memory_cost=64, parallelism=1)
    accounts = Accounts(db, passwords=Passwords(hasher))
    await make_ada(accounts)

    for email in ("ada@example.org", "nobody@example.org", "no address"):
        with pytest.raises(Unauthenticated):
            await accounts.login(email, "another password", **WHERE)

    assert hasher.verified == 3


async def test_nobody_signs_in_to_an_account_without_a_password(db: Database, accounts: Accounts):
    user_id = await make_ada(accounts)
    async with db.begin() as session:
        (await session.get_one(User, user_id)).password_hash = ""

    with pytest.raises(Unauthenticated):
        await accounts.login("ada@example.org", "", **WHERE)


async def test_only_hashes_are_stored(db: Database, accounts: Accounts):
    user_id = await make_ada(accounts)
    signed_in = await accounts.login("ada@example.org", "a long password", **WHERE)

    async with db.read() as session:
        user = await session.get_one(User, user_id)
        login = await session.get_one(Login, signed_in.principal.credential_id)

    assert user.password_hash.startswith("$argon2id$")
    assert signed_in.token.encode() not in login.token_digest
    assert len(login.token_digest) == 32


async def test_a_weak_hash_is_renewed_when_its_owner_signs_in(db: Database, accounts: Accounts):
    user_id = await make_ada(accounts)
    stronger = Accounts(
        db, passwords=Passwords(PasswordHasher(time_cost=2, memory_cost=64, parallelism=1))
    )

    await stronger.login("ada@example.org", "a long password", **WHERE)

    async with db.read() as session:
        assert "t=2" in (await session.get_one(User, user_id)).password_hash
    await accounts.login("ada@example.org", "a long password", **WHERE)


async def test_a_login_that_is_used_lives_on_and_an_idle_one_ends(accounts: Accounts, clock: Clock):
    await make_ada(accounts)
    token = (await accounts.login("ada@example.org", "a long password", **WHERE)).token

    for _ in range(3):
        clock.now += IDLE - timedelta(days=1)
        await accounts.resolve(token)

    clock.now += IDLE
    with pytest.raises(Unauthenticated):
        await accounts.resolve(token)


async def test_no_login_lives_for_ever(accounts: Accounts, clock: Clock):
    await make_ada(accounts)
    token = (await accounts.login("ada@example.org", "a long password", **WHERE)).token
    end = clock.now + ABSOLUTE

    while clock.now + timedelta(days=7) < end:
        clock.now += timedelta(days=7)
        await accounts.resolve(token)
    clock.now = end

    with pytest.raises(Unauthenticated):
        await accounts.resolve(token)


async def test_signing_out_ends_this_login_and_no_other(accounts: Accounts):
    await make_ada(accounts)
    first = await accounts.login("ada@example.org", "a long password", **WHERE)
    second = await accounts.login("ada@example.org", "a long password", **WHERE)

    told: list[str] = []
    with accounts.revocations.watch(lambda: told.append("gone"), first.principal.credential_id):
        await accounts.logout(first.principal)
    assert told == ["gone"]

    with pytest.raises(Unauthenticated):
        await accounts.resolve(first.token)
    assert await accounts.resolve(second.token) == second.principal


async def test_a_new_password_ends_every_login(accounts: Accounts):
    user_id = await make_ada(accounts)
    signed_in = await accounts.login("ada@example.org", "a long password", **WHERE)

    told: list[str] = []
    with accounts.revocations.watch(lambda: told.append("gone"), user_id):
        await accounts.set_password(user_id, "an even longer password")
    assert told == ["gone"]

    with pytest.raises(Unauthenticated):
        await accounts.resolve(signed_in.token)
    await accounts.login("ada@example.org", "an even longer password", **WHERE)


async def test_a_disabled_user_is_out_at_once(accounts: Accounts):
    user_id = await make_ada(accounts)
    signed_in = await accounts.login("ada@example.org", "a long password", **WHERE)

    told: list[str] = []
    with accounts.revocations.watch(lambda: told.append("gone"), user_id):
        await accounts.disable(user_id)
    assert told == ["gone"]

    with pytest.raises(Unauthenticated):
        await accounts.resolve(signed_in.token)
    with pytest.raises(Unauthenticated):
        await accounts.login("ada@example.org", "a long password", **WHERE)


async def test_a_watcher_that_left_is_forgotten(accounts: Accounts):
    user_id, told = UserId("user_1"), list[str]()

    with accounts.revocations.watch(lambda: told.append("left"), user_id):
        pass
    accounts.revocations.revoke(user_id)

    assert not told


async def test_guessing_has_to_wait_longer_each_time(accounts: Accounts, clock: Clock):
    await make_ada(accounts)
    waits = []
    for _ in range(9):
        try:
            await accounts.login("ada@example.org", "guess guess", **WHERE)
        except TooMany as error:
            assert error.retry_after_s
            waits.append(error.retry_after_s)
            clock.now += timedelta(seconds=error.retry_after_s)
            with pytest.raises(Unauthenticated):
                await accounts.login("ada@example.org", "guess guess", **WHERE)
        except Unauthenticated:
            pass

    assert waits == [1.0, 2.0, 4.0, 8.0]


async def test_a_volley_of_guesses_sent_at_once_gains_nothing(accounts: Accounts):
    await make_ada(accounts)

    spellings = ("ada@example.org", " Ada@Example.org", "\uff41da@example.org")  # full width a
    results = await asyncio.gather(
        *(accounts.login(spellings[i % 3], f"guess {i}", **WHERE) for i in range(40)),
        return_exceptions=True,
    )

    assert sum(isinstance(result, Unauthenticated) for result in results) == 5
    assert sum(isinstance(result, TooMany) for result in results) == 35


async def test_guesses_from_elsewhere_do_not_lock_the_owner_out(accounts: Accounts):
    await make_ada(accounts)
    for _ in range(5):
        with pytest.raises(Unauthenticated):
            await accounts.login("ada@example.org", "guess guess", **WHERE)

    await accounts.login(
        "ada@example.org", "a long password", user_agent="test", address="192.0.2.2"
    )


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


async def test_the_link_makes_one_admin_and_is_spent(accounts: Accounts):
    token = await accounts.first_admin_link()
    assert token is not None

    user_id = await accounts.accept_invitation(token, "root@example.org", "Root", "a long password")

    assert (await accounts.account(user_id)).role is AccountRole.ADMIN
    assert await accounts.first_admin_link() is None
    with pytest.raises(Unauthenticated):
        await accounts.accept_invitation(token, "b@example.org", "B", "a long password")


async def test_a_new_link_ends_the_old_one_and_an_old_one_ends_by_itself(
    accounts: Accounts, clock: Clock
):
    old = await accounts.first_admin_link()
    new = await accounts.first_admin_link()
    assert old
    assert new

    with pytest.raises(Unauthenticated):
        await accounts.accept_invitation(old, "a@example.org", "A", "a long password")
    clock.now += timedelta(days=8)
    with pytest.raises(Unauthenticated):
        await accounts.accept_invitation(new, "a@example.org", "A", "a long password")


async def test_a_link_refused_for_its_input_can_be_used_again(accounts: Accounts):
    token = await accounts.first_admin_link()
    assert token

    for email, name, password in [
        ("root", "Root", "a long password"),
        ("root@example.org", " ", "a long password"),
        ("root@example.org", "Root", "short"),
    ]:
        with pytest.raises(InvalidRequest):
            await accounts.accept_invitation(token, email, name, password)

    await accounts.accept_invitation(token, "root@example.org", "Root", "a long password")


async def test_of_fifty_who_come_through_every_door_at_once_one_is_admin(
    db: Database, accounts: Accounts
):
    token = await accounts.first_admin_link()
    assert token

    results = await asyncio.gather(
        *(
            accounts.accept_invitation(token, f"a{i}@example.org", "A", "a long password")
            for i in range(40)
        ),
        *(accounts.ensure_admin(f"b{i}@example.org", "a long password") for i in range(5)),
        *(accounts.first_admin_link() for _ in range(5)),
        return_exceptions=True,
    )

    async with db.read() as session:
        admins = await session.scalar(select(func.count()).where(User.role == AccountRole.ADMIN))
        users = await session.scalar(select(func.count()).select_from(User))
    assert admins == users == 1
    failures = [result for result in results if isinstance(result, BaseException)]
    assert all(isinstance(failure, AppError) for failure in failures)


async def test_settings_make_the_first_admin_once(accounts: Accounts):
    first = await accounts.ensure_admin("root@example.org", "a long password")
    again = await accounts.ensure_admin("root@example.org", "another password")

    assert first == again
    await accounts.login("root@example.org", "a long password", **WHERE)


async def test_the_last_admin_stays(accounts: Accounts):
    first = await accounts.ensure_admin("root@example.org", "a long password")

    with pytest.raises(Conflict):
        await accounts.disable(first)

    await accounts.create_user("b@example.org", "B", "a long password", AccountRole.ADMIN)
    await accounts.disable(first)
