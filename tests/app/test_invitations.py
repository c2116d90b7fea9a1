"""How people come to be here, on both databases: one-time links, and the first admin."""

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import func, select

from app.db.base import Database
from app.db.models import User
from app.db.types import AccountRole
from app.errors import AppError, Conflict, InvalidRequest, NotFound, Unauthenticated
from app.ids import GroupId, InvitationId, UserId
from app.people.accounts import Accounts
from app.people.groups import Groups
from app.people.invitations import Invitations
from app.people.logins import Logins
from tests.kit.people import WHERE, Clock


async def test_the_link_makes_one_admin_and_is_spent(accounts: Accounts, invitations: Invitations):
    token = await invitations.first_admin_link()
    assert token is not None

    user_id = await invitations.accept(token, "root@example.org", "Root", "a long password")

    assert (await accounts.account(user_id)).role is AccountRole.ADMIN
    assert await invitations.first_admin_link() is None
    with pytest.raises(Unauthenticated):
        await invitations.accept(token, "b@example.org", "B", "a long password")


async def test_a_new_link_ends_the_old_one_and_an_old_one_ends_by_itself(
    clock: Clock, invitations: Invitations
):
    old = await invitations.first_admin_link()
    new = await invitations.first_admin_link()
    assert old
    assert new

    with pytest.raises(Unauthenticated):
        await invitations.accept(old, "a@example.org", "A", "a long password")
    clock.now += timedelta(days=8)
    with pytest.raises(Unauthenticated):
        await invitations.accept(new, "a@example.org", "A", "a long password")


async def test_a_link_refused_for_its_input_can_be_used_again(invitations: Invitations):
    token = await invitations.first_admin_link()
    assert token

    for email, name, password in [
        ("root", "Root", "a long password"),
        ("root@example.org", " ", "a long password"),
        ("root@example.org", "Root", "short"),
    ]:
        with pytest.raises(InvalidRequest):
            await invitations.accept(token, email, name, password)

    await invitations.accept(token, "root@example.org", "Root", "a long password")


@pytest.mark.row("admin bootstrap", "CVE-2026-45675")
async def test_of_fifty_who_come_through_every_door_at_once_one_is_admin(
    db: Database, invitations: Invitations
):
    token = await invitations.first_admin_link()
    assert token

    results = await asyncio.gather(
        *(
            invitations.accept(token, f"a{i}@example.org", "A", "a long password")
            for i in range(40)
        ),
        *(invitations.ensure_admin(f"b{i}@example.org", "a long password") for i in range(5)),
        *(invitations.first_admin_link() for _ in range(5)),
        return_exceptions=True,
    )

    async with db.read() as session:
        admins = await session.scalar(select(func.count()).where(User.role == AccountRole.ADMIN))
        users = await session.scalar(select(func.count()).select_from(User))
    assert admins == users == 1
    failures = [result for result in results if isinstance(result, BaseException)]
    assert all(isinstance(failure, AppError) for failure in failures)


async def test_settings_make_the_first_admin_once(logins: Logins, invitations: Invitations):
    first = await invitations.ensure_admin("root@example.org", "a long password")
    again = await invitations.ensure_admin("root@example.org", "another password")

    assert first == again
    await logins.login("root@example.org", "a long password", **WHERE)


@pytest.fixture
async def boss(accounts: Accounts) -> UserId:
    return await accounts.create_user("boss@b", "Boss", "a long password", AccountRole.ADMIN)


async def test_who_is_invited_has_the_role_and_the_groups_of_the_link(
    accounts: Accounts, invitations: Invitations, groups: Groups, boss: UserId
):
    sales, ops = await groups.create("Sales"), await groups.create("Operations")
    made = await invitations.invite(
        boss, "Ada of sales", AccountRole.AUDITOR, group_ids=(sales.id, ops.id)
    )
    (listed,) = await invitations.list()

    user_id = await invitations.accept(made.token, "ada@example.org", "Ada", "a long password")

    assert listed == made.view
    assert (listed.note, listed.role, listed.created_by) == ("Ada of sales", "auditor", boss)
    assert listed.group_ids == (sales.id, ops.id)
    assert (await accounts.account(user_id)).role is AccountRole.AUDITOR
    assert [one.member_ids for one in await groups.list()] == [(user_id,), (user_id,)]
    assert await invitations.list() == []
    with pytest.raises(Unauthenticated):
        await invitations.accept(made.token, "eve@example.org", "Eve", "a long password")


async def test_of_many_who_open_one_link_one_comes_in(
    db: Database, invitations: Invitations, boss: UserId
):
    token = (await invitations.invite(boss, "Somebody", AccountRole.MEMBER)).token

    results = await asyncio.gather(
        *(invitations.accept(token, f"a{i}@b", "A", "a long password") for i in range(20)),
        return_exceptions=True,
    )

    assert sum(isinstance(one, str) for one in results) == 1
    assert sum(isinstance(one, Unauthenticated) for one in results) == 19
    async with db.read() as session:
        assert await session.scalar(select(func.count()).select_from(User)) == 2


async def test_a_link_ends_with_its_time_its_revocation_and_its_makers_power(
    accounts: Accounts, invitations: Invitations, clock: Clock, boss: UserId
):
    other = await accounts.create_user("b@b", "B", "a long password", AccountRole.ADMIN)
    ends = {
        "old": await invitations.invite(
            boss, "old", AccountRole.MEMBER, lifetime=timedelta(hours=1)
        ),
        "revoked": await invitations.invite(boss, "revoked", AccountRole.MEMBER),
        "another's": await invitations.invite(other, "another's", AccountRole.ADMIN),
    }
    stays = await invitations.invite(boss, "stays", AccountRole.MEMBER)
    clock.now += timedelta(hours=2)
    await invitations.revoke(ends["revoked"].view.id)
    await accounts.set_role(other, AccountRole.MEMBER)

    assert [one.note for one in await invitations.list()] == ["stays"]
    for made in ends.values():
        with pytest.raises(Unauthenticated):
            await invitations.accept(made.token, "eve@b", "Eve", "a long password")
    for invitation_id in (ends["revoked"].view.id, InvitationId("invite_0")):
        with pytest.raises(NotFound):
            await invitations.revoke(invitation_id)
    await invitations.accept(stays.token, "eve@b", "Eve", "a long password")
    with pytest.raises(NotFound):
        await invitations.revoke(stays.view.id)


async def test_the_links_of_who_is_removed_go_with_them(
    accounts: Accounts, invitations: Invitations, boss: UserId
):
    other = await accounts.create_user("b@b", "B", "a long password", AccountRole.ADMIN)
    made = await invitations.invite(other, "Somebody", AccountRole.MEMBER)

    await accounts.remove(other)

    with pytest.raises(Unauthenticated):
        await invitations.accept(made.token, "eve@b", "Eve", "a long password")


async def test_a_link_into_a_group_that_is_none_is_refused(
    invitations: Invitations, groups: Groups, boss: UserId
):
    sales = await groups.create("Sales")
    with pytest.raises(NotFound) as refused:
        await invitations.invite(
            boss, "Ada", AccountRole.MEMBER, group_ids=(sales.id, GroupId("group_0"))
        )
    with pytest.raises(InvalidRequest):
        await invitations.invite(boss, " ", AccountRole.MEMBER)

    assert refused.value.field == "group_ids"
    assert await invitations.list() == []


async def test_a_group_that_was_deleted_meanwhile_does_not_shut_the_invited_out(
    invitations: Invitations, groups: Groups, boss: UserId
):
    sales = await groups.create("Sales")
    made = await invitations.invite(boss, "Ada", AccountRole.MEMBER, group_ids=(sales.id,))
    await groups.delete(sales.id)

    await invitations.accept(made.token, "ada@example.org", "Ada", "a long password")


async def test_so_many_links_wait_and_no_more(
    invitations: Invitations, boss: UserId, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("app.people.invitations.MOST_OPEN", 2)
    first, _ = [await invitations.invite(boss, "A", AccountRole.MEMBER) for _ in range(2)]

    with pytest.raises(Conflict):
        await invitations.invite(boss, "B", AccountRole.MEMBER)

    await invitations.revoke(first.view.id)
    await invitations.invite(boss, "B", AccountRole.MEMBER)
