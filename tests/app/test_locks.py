"""Transactions that meet: nobody waits for ever, and whoever was slower gets a typed refusal."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from sqlalchemy import delete, func, select

from app.chat import library
from app.chat.conversations import Changes
from app.chat.disposal import Disposal
from app.chat.items import Items
from app.chat.ledger import Progress
from app.chat.library import Access, Text
from app.chat.search import Search
from app.chat.stored import StoredLedger
from app.db.base import Database
from app.db.models import (
    ApiKey,
    Group,
    GroupMember,
    Invitation,
    LibraryVersion,
    Login,
    Message,
    MessageText,
    Meter,
    User,
    UserQuota,
)
from app.db.types import AccountRole, ItemKind, QuotaKind, Visibility, utc_now
from app.errors import AppError, Conflict, InvalidRequest, NotFound, Unauthenticated
from app.events import ResponseView
from app.ids import ConversationId, DocumentId, MessageId, new_group_id, new_login_id, new_user_id
from app.people.accounts import Accounts, Principal, digest
from app.people.groups import Groups
from app.people.invitations import Invitations
from app.people.keys import Keys
from app.people.quotas import today
from tests.kit.db import held, waiting
from tests.kit.domain import Domain, new_person, open_domain, said
from tests.kit.echo import EchoEngine
from tests.kit.people import PASSWORD, Clock

PERSONA, DOCUMENT = ItemKind.PERSONA, ItemKind.DOCUMENT
CHARTER = Text(name="Charter", text="The ship has two masts.")
OWN = Access(visibility=Visibility.OWNER)


@pytest.fixture(autouse=True)
def _nothing_was_given_up(caplog: pytest.LogCaptureFixture):
    """All of these keep to one order, so the database never has to choose one of two."""
    yield
    assert [one for one in caplog.get_records("call") if one.name == "app.db.base"] == []


# ---------------------------------------------------------------- a user who is being removed


class Theirs(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody has: a login and a meter, and something of each that can be written."""

    who: Principal
    conversation_id: ConversationId
    leaf_id: MessageId
    response: ResponseView
    labelled_id: ConversationId
    item_id: MessageId
    document_id: DocumentId


def items_of(domain: Domain) -> Items:
    return Items(domain.db, domain.supervisor, domain.usage, domain.engine)


async def signed_in(db: Database, who: Principal) -> None:
    now = utc_now()
    login = Login(
        id=new_login_id(),
        user_id=who.user_id,
        token_digest=digest(who.user_id),
        user_agent="",
        created_at=now,
        last_seen_at=now,
        expires_at=now + timedelta(days=1),
    )
    async with db.begin() as session:
        session.add(login)


async def somebody(domain: Domain) -> Theirs:
    who = await new_person(domain.db)
    await signed_in(domain.db, who)
    conversation = await domain.conversations.create(who.user_id)
    said_last = await domain.say(who, conversation.id, "hello")
    response = await domain.respond(who, "hello")
    await domain.ended(who, response)
    labelled = await items_of(domain).create(who.user_id, {})
    (item,) = await items_of(domain).add(who, labelled.id, said("hello"))
    document = await domain.library.create(who.user_id, DOCUMENT, CHARTER, OWN)
    return Theirs(
        who=who,
        conversation_id=conversation.id,
        leaf_id=said_last.response.message_id,
        response=response,
        labelled_id=labelled.id,
        item_id=item.message.id,
        document_id=DocumentId(document.summary.id),
    )


async def a_document(domain: Domain, of: Theirs) -> None:
    await domain.library.create(of.who.user_id, DOCUMENT, CHARTER, OWN)


async def a_persona(domain: Domain, of: Theirs) -> None:
    says = Text(name="Captain", text="Talk of ships.", document_ids=(of.document_id,))
    await domain.library.create(of.who.user_id, PERSONA, says, OWN)


async def a_version(domain: Domain, of: Theirs) -> None:
    await domain.library.add_version(of.who.user_id, DOCUMENT, of.document_id, CHARTER)


async def a_text_that_goes(domain: Domain, of: Theirs) -> None:
    disposal = Disposal(domain.db, domain.library)
    await disposal.delete(of.who.user_id, DOCUMENT, of.document_id)


async def a_turn(domain: Domain, of: Theirs) -> None:
    await domain.say(of.who, of.conversation_id, "go on")


async def a_first_turn(domain: Domain, of: Theirs) -> None:
    await domain.ended(of.who, await domain.respond(of.who, "hello again"))


async def a_fork(domain: Domain, of: Theirs) -> None:
    await domain.supervisor.branches.fork(of.who.user_id, of.conversation_id, of.leaf_id)


async def a_branch_that_goes(domain: Domain, of: Theirs) -> None:
    await domain.supervisor.delete_branch(of.who, of.conversation_id, of.leaf_id)


async def a_conversation_that_goes(domain: Domain, of: Theirs) -> None:
    await domain.supervisor.delete_conversation(of.who, of.conversation_id)


async def a_response_that_goes(domain: Domain, of: Theirs) -> None:
    await domain.supervisor.delete_response(of.who, of.response.id)


async def an_item_that_goes(domain: Domain, of: Theirs) -> None:
    await items_of(domain).remove(of.who, of.labelled_id, of.item_id)


async def a_conversation(domain: Domain, of: Theirs) -> None:
    await domain.conversations.create(of.who.user_id)


async def newer_versions(domain: Domain, of: Theirs) -> None:
    await domain.conversations.move_to_newest(of.who.user_id, of.conversation_id)


Write = Callable[[Domain, Theirs], Coroutine[Any, Any, None]]
METERED: tuple[Write, ...] = (
    *(a_document, a_persona, a_version, a_text_that_goes),
    *(a_turn, a_first_turn, a_fork),
    *(a_branch_that_goes, a_conversation_that_goes, a_response_that_goes, an_item_that_goes),
)
"""What changes how much its owner stores."""
WRITES: tuple[Write, ...] = (*METERED, a_conversation, newer_versions)


def is_refusal(result: object) -> bool:
    return isinstance(result, AppError) and result.status in (404, 409)


async def test_what_is_written_for_somebody_who_is_being_removed_is_refused(
    db: Database, accounts: Accounts
):
    results: dict[str, object] = {}
    async with open_domain(db, EchoEngine()) as domain:
        for write in WRITES:
            theirs = await somebody(domain)
            login = select(Login).where(Login.user_id == theirs.who.user_id)
            async with held(db, login):
                removing = asyncio.create_task(accounts.remove(theirs.who.user_id))
                await waiting(db, 1)
                writing = asyncio.create_task(write(domain, theirs))
                await waiting(db, 2)
            both = await asyncio.gather(removing, writing, return_exceptions=True)
            results[write.__name__] = both[0] or both[1]
        async with db.read() as session:
            left = await session.scalar(select(func.count()).select_from(User))

    assert {name: one for name, one in results.items() if not is_refusal(one)} == {}
    assert left == 0


async def test_who_is_removed_while_something_of_theirs_is_written_goes_behind_it(
    db: Database, accounts: Accounts
):
    results: dict[str, object] = {}
    async with open_domain(db, EchoEngine()) as domain:
        for write in METERED:
            theirs = await somebody(domain)
            async with held(db, select(Meter).where(Meter.user_id == theirs.who.user_id)):
                writing = asyncio.create_task(write(domain, theirs))
                await waiting(db, 1)
                removing = asyncio.create_task(accounts.remove(theirs.who.user_id))
                await waiting(db, 2)
            both = await asyncio.gather(removing, writing, return_exceptions=True)
            results[write.__name__] = both[0] or both[1]
        async with db.read() as session:
            left = await session.scalar(select(func.count()).select_from(User))

    assert {name: one for name, one in results.items() if one is not None} == {}
    assert left == 0


async def test_messages_that_are_made_searchable_may_go_with_their_owner(
    db: Database, accounts: Accounts
):
    async with open_domain(db, EchoEngine()) as domain:
        theirs = await somebody(domain)
        async with db.begin() as session:
            await session.execute(delete(MessageText))
        async with held(db, select(Login).where(Login.user_id == theirs.who.user_id)):
            removing = asyncio.create_task(accounts.remove(theirs.who.user_id))
            await waiting(db, 1)
            catching_up = asyncio.create_task(Search(db).catch_up())
            await waiting(db, 2)
        await asyncio.gather(removing, catching_up)
        async with db.read() as session:
            left = await session.scalar(select(func.count()).select_from(MessageText))

    assert left == 0


async def test_17_a_checkpoint_waits_for_no_message_that_somebody_deletes(db: Database):
    """It writes to many conversations at once, and so might hold what a deletion comes to next."""
    async with open_domain(db, EchoEngine()) as domain:
        theirs = await somebody(domain)
        await domain.say(theirs.who, theirs.conversation_id, "go on")
        of_it = Message.conversation_id == theirs.conversation_id
        async with db.read() as session:
            ids = list(await session.scalars(select(Message.id).where(of_it).order_by(Message.id)))
        progress = [
            Progress(response_id=theirs.response.id, message_id=one, text="so far", token_ids=(1,))
            for one in reversed(ids)
        ]
        ledger = StoredLedger(db, domain.usage)
        async with held(db, select(Message).where(Message.id == ids[1])):
            keeping = asyncio.create_task(ledger.checkpoint(progress))
            if db.is_sqlite:
                await waiting(db, 1)
            else:
                await keeping
            deletion = domain.conversations.delete(theirs.who.user_id, theirs.conversation_id)
            deleting = asyncio.create_task(deletion)
            await waiting(db, 2 if db.is_sqlite else 1)
        await asyncio.gather(keeping, deleting)


# ---------------------------------------------------------------- readers and groups that go


async def test_a_reader_who_is_being_removed_is_listed_no_more(db: Database, accounts: Accounts):
    async with open_domain(db, EchoEngine()) as domain:
        boss, ben = await new_person(db, AccountRole.ADMIN), await new_person(db)
        await signed_in(db, ben)
        listed = Access(visibility=Visibility.LISTED, readers=(f"{ben.user_id}@example.org",))
        made = await domain.library.create(boss.user_id, DOCUMENT, CHARTER, listed)
        item_id = made.summary.id
        async with held(db, select(Login)):
            removing = asyncio.create_task(accounts.remove(ben.user_id))
            await waiting(db, 1)
            change = domain.library.set_access(boss.user_id, DOCUMENT, item_id, listed)
            listing = asyncio.create_task(change)
            await waiting(db, 2)
        await removing
        with pytest.raises(InvalidRequest, match="Nobody here"):
            await listing
        now = await domain.library.read(boss.user_id, DOCUMENT, item_id)

    assert now.readers == ()


async def test_a_group_that_is_being_deleted_is_published_to_and_invited_into_no_more(
    db: Database, clock: Clock, groups: Groups, invitations: Invitations
):
    async with open_domain(db, EchoEngine()) as domain:
        boss, ben = await new_person(db, AccountRole.ADMIN), await new_person(db)
        crew = await groups.create("Crew")
        await groups.join(crew.id, ben.user_id)
        listed = Access(visibility=Visibility.LISTED, group_ids=(crew.id,))
        made = await domain.library.create(boss.user_id, DOCUMENT, CHARTER, listed)
        await invitations.invite(boss.user_id, "Ada", AccountRole.MEMBER, group_ids=(crew.id,))
        clock.now += timedelta(days=30)
        async with held(db, select(GroupMember)):
            deleting = asyncio.create_task(groups.delete(crew.id))
            await waiting(db, 1)
            asked = (
                domain.library.set_access(boss.user_id, DOCUMENT, made.summary.id, listed),
                invitations.invite(boss.user_id, "Eve", AccountRole.MEMBER, group_ids=(crew.id,)),
                groups.join(crew.id, boss.user_id),
            )
            tasks = [asyncio.create_task(one) for one in asked]
            await waiting(db, 4)
        await deleting
        results = await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(one) for one in results] == [NotFound] * 3, results


# ---------------------------------------------------------------- the same, by two at once


@pytest.mark.parametrize("first", ["accepted", "revoked"])
async def test_an_invitation_is_accepted_or_revoked_and_never_both(
    db: Database, invitations: Invitations, first: str
):
    boss = await new_person(db, AccountRole.ADMIN)
    made = await invitations.invite(boss.user_id, "Ada", AccountRole.MEMBER)
    acts: dict[str, Coroutine[Any, Any, object]] = {
        "accepted": invitations.accept(made.token, "ada@example.org", "Ada", PASSWORD),
        "revoked": invitations.revoke(made.view.id),
    }
    async with held(db, select(Invitation)):
        tasks = {first: asyncio.create_task(acts.pop(first))}
        await waiting(db, 1)
        ((second, act),) = acts.items()
        tasks[second] = asyncio.create_task(act)
        await waiting(db, 2)
    await asyncio.wait(tasks.values())
    async with db.read() as session:
        people = await session.scalar(select(func.count()).select_from(User))

    assert tasks[first].exception() is None
    refused = Unauthenticated if first == "revoked" else NotFound
    assert isinstance(tasks[second].exception(), refused)
    assert people == (1 if first == "revoked" else 2)


async def test_of_two_who_revoke_a_key_at_once_one_does(db: Database, keys: Keys):
    ann = await new_person(db)
    made = await keys.create(ann.user_id, "test")
    async with held(db, select(ApiKey)):
        tasks = [asyncio.create_task(keys.revoke(ann.user_id, made.view.id)) for _ in range(2)]
        await waiting(db, 2)
    results = await asyncio.gather(*tasks, return_exceptions=True)

    assert {type(one) for one in results} == {type(None), NotFound}


async def test_a_name_that_somebody_takes_at_this_moment_is_taken(
    db: Database, accounts: Accounts, groups: Groups
):
    async with db.begin() as session:
        session.add(Group(id=new_group_id(), name="Crew", created_at=utc_now()))
        session.add(
            User(
                id=new_user_id(),
                email="ada@example.org",
                name="Ada",
                password_hash="",
                role=AccountRole.MEMBER,
                created_at=utc_now(),
            )
        )
        await session.flush()
        asked = groups.create("Crew"), accounts.create_user("Ada@example.org", "Ada", PASSWORD)
        tasks = [asyncio.create_task(one) for one in asked]
        await waiting(db, 2)
    results = await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(one) for one in results] == [Conflict] * 2
    assert [one.field for one in results if isinstance(one, Conflict)] == ["name", "email"]


async def test_a_meter_and_a_quota_that_several_begin_at_once_are_one(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann, kind = await new_person(db), QuotaKind.REQUESTS
        async with db.begin() as session:
            day = today(utc_now())
            session.add(Meter(user_id=ann.user_id, stored_bytes=0, day=day, requests=0, tokens=0))
            session.add(UserQuota(user_id=ann.user_id, kind=kind, allowed=1))
            await session.flush()
            turns = [asyncio.create_task(domain.respond(ann, "hello")) for _ in range(2)]
            setting = asyncio.create_task(domain.quotas.set_for_user(ann.user_id, kind, 5))
            await waiting(db, 3)
        results = await asyncio.gather(setting, *turns, return_exceptions=True)
        for one in results:
            if isinstance(one, ResponseView):
                await domain.ended(ann, one)
        async with db.read() as session:
            counted = await session.scalar(select(Meter.requests))
            allowed = await session.scalar(select(UserQuota.allowed))

    begun = sum(isinstance(one, ResponseView) for one in results)
    assert begun >= 1
    assert (counted, allowed) == (begun, 5)


async def test_two_who_are_let_in_one_by_one_are_not_let_in_together(
    db: Database, monkeypatch: pytest.MonkeyPatch
):
    """What is counted in rows: texts of one's own, and conversations that are kept warm."""
    monkeypatch.setattr(library, "OWN_ITEMS", 2)
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        await domain.library.create(ann.user_id, DOCUMENT, CHARTER, OWN)
        asked = [domain.library.create(ann.user_id, DOCUMENT, CHARTER, OWN) for _ in range(2)]
        async with held(db, select(Meter)):
            tasks = [asyncio.create_task(one) for one in asked]
            await waiting(db, 2)
        made = await asyncio.gather(*tasks, return_exceptions=True)
        conversations = [await domain.conversations.create(ann.user_id) for _ in range(2)]
        ends = [await domain.say(ann, one.id, "hello") for one in conversations]
        tokens = [
            one.input_tokens + one.output_tokens for end in ends if (one := end.response.usage)
        ]
        await domain.quotas.set_for_user(ann.user_id, QuotaKind.KEPT_WARM, max(tokens))
        wish = Changes(kept_warm=True)
        async with held(db, select(User)):
            wishes = [
                asyncio.create_task(
                    domain.conversations.change(ann.user_id, one.id, wish, kv_bytes_per_token=1)
                )
                for one in conversations
            ]
            await waiting(db, 2)
        kept = await asyncio.gather(*wishes, return_exceptions=True)

    assert sorted(type(one).__name__ for one in made) == ["Conflict", "Item"]
    assert sorted(type(one).__name__ for one in kept) == ["ConversationView", "QuotaExceeded"]


async def test_a_text_that_its_owner_deleted_meanwhile_is_not_found(db: Database):
    """Between the look at who may read it and the look at what it says."""
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        made = await domain.library.create(ann.user_id, DOCUMENT, CHARTER, OWN)
        await Disposal(db, domain.library).delete(ann.user_id, DOCUMENT, made.summary.id)
        with pytest.raises(NotFound):
            await domain.supervisor.heads.counted(made)
        async with db.read() as session:
            left = await session.scalars(select(LibraryVersion.name))

            assert CHARTER.name not in set(left)
