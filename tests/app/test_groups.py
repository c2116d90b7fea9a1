"""Groups, on both databases: who is in them, and what that opens (law 19)."""

import asyncio

import pytest

from app.chat.library import Access, Text
from app.db.base import Database
from app.db.types import AccountRole, ItemKind, Visibility
from app.errors import Conflict, InvalidRequest, NotFound
from app.ids import GroupId, PersonaId, UserId
from app.people.accounts import Accounts
from app.people.groups import Groups
from tests.kit.domain import new_person, open_domain
from tests.kit.echo import EchoEngine
from tests.kit.people import make_ada

PIRATE = Text(name="Pirate", text="Talk like a pirate.")


async def test_a_group_is_made_renamed_filled_emptied_and_deleted(
    accounts: Accounts, groups: Groups
):
    ada = await make_ada(accounts)
    sales, ops = await groups.create(" Sales "), await groups.create("Operations")

    for _ in range(2):
        await groups.join(sales.id, ada)
    await groups.rename(ops.id, "Accounting")
    listed = await groups.list()
    await groups.leave(sales.id, ada)
    await groups.delete(ops.id)

    assert [(one.name, one.member_ids) for one in listed] == [("Accounting", ()), ("Sales", (ada,))]
    assert [(one.id, one.member_ids) for one in await groups.list()] == [(sales.id, ())]


async def test_names_are_one_of_a_kind_and_what_is_not_there_is_not_found(
    accounts: Accounts, groups: Groups
):
    ada = await make_ada(accounts)
    sales, ops = await groups.create("Sales"), await groups.create("Operations")
    never = GroupId("group_0")

    for twice in (groups.create("Sales"), groups.rename(ops.id, "Sales")):
        with pytest.raises(Conflict):
            await twice
    for nameless in (groups.create(" "), groups.rename(ops.id, "\0")):
        with pytest.raises(InvalidRequest):
            await nameless
    for missing in (
        groups.rename(never, "Other"),
        groups.delete(never),
        groups.join(never, ada),
        groups.join(sales.id, UserId("user_0")),
        groups.leave(sales.id, ada),
    ):
        with pytest.raises(NotFound):
            await missing


async def test_who_joins_twice_at_once_is_in_once(accounts: Accounts, groups: Groups):
    ada = await make_ada(accounts)
    sales = await groups.create("Sales")

    await asyncio.gather(*(groups.join(sales.id, ada) for _ in range(10)))

    assert (await groups.list())[0].member_ids == (ada,)


async def test_a_group_goes_with_nobody_and_its_members_go_with_their_accounts(
    accounts: Accounts, groups: Groups
):
    ada = await make_ada(accounts)
    sales = await groups.create("Sales")
    await groups.join(sales.id, ada)

    await accounts.remove(ada)

    assert (await groups.list())[0].member_ids == ()


async def test_19_what_is_published_to_a_group_is_read_by_its_members_while_they_are(
    db: Database, groups: Groups
):
    async with open_domain(db, EchoEngine()) as domain:
        boss = await new_person(db, AccountRole.ADMIN)
        ann, eve = await new_person(db), await new_person(db)
        sales, ops = await groups.create("Sales"), await groups.create("Operations")
        await groups.join(sales.id, ann.user_id)
        access = Access(visibility=Visibility.LISTED, group_ids=(sales.id,))
        made = await domain.library.create(boss.user_id, ItemKind.PERSONA, PIRATE, access)
        persona_id = PersonaId(made.summary.id)
        begun = await domain.conversations.create(ann.user_id, persona_id)
        await domain.say(ann, begun.id, "hello")
        read = await domain.library.read(ann.user_id, ItemKind.PERSONA, persona_id)

        async def is_shut_out(user_id: UserId) -> bool:
            listed = await domain.library.list(user_id, ItemKind.PERSONA)
            with pytest.raises(NotFound):
                await domain.library.read(user_id, ItemKind.PERSONA, persona_id)
            with pytest.raises(NotFound):
                await domain.conversations.create(user_id, persona_id)
            return persona_id not in [one.id for one in listed]

        assert await is_shut_out(eve.user_id)
        await groups.leave(sales.id, ann.user_id)
        assert await is_shut_out(ann.user_id)
        with pytest.raises(NotFound):
            await domain.say(ann, begun.id, "still there?")
        await groups.join(sales.id, ann.user_id)
        await domain.say(ann, begun.id, "and now?")
        await domain.library.set_access(
            boss.user_id,
            ItemKind.PERSONA,
            persona_id,
            Access(visibility=Visibility.LISTED, group_ids=(ops.id,)),
        )
        assert await is_shut_out(ann.user_id)
        await groups.join(ops.id, ann.user_id)
        await groups.delete(ops.id)
        assert await is_shut_out(ann.user_id)

    assert made.group_ids == (sales.id,)
    assert (read.group_ids, read.readers) == ((), ())


async def test_groups_are_named_that_are_and_for_what_is_listed(db: Database, groups: Groups):
    async with open_domain(db, EchoEngine()) as domain:
        boss = await new_person(db, AccountRole.ADMIN)
        sales = await groups.create("Sales")
        both = (sales.id, GroupId("group_0"))
        for access, error in (
            (Access(visibility=Visibility.LISTED, group_ids=both), NotFound),
            (Access(visibility=Visibility.EVERYBODY, group_ids=(sales.id,)), InvalidRequest),
            (Access(visibility=Visibility.OWNER, group_ids=(sales.id,)), InvalidRequest),
        ):
            with pytest.raises(error) as refused:
                await domain.library.create(boss.user_id, ItemKind.DOCUMENT, PIRATE, access)
            assert refused.value.field == "group_ids"
