"""Quotas: what holds for whom, and that turns that come at once never exceed it; on both databases."""

import asyncio
import contextlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.chat import stored, turns
from app.chat.apart import Apart
from app.chat.asked import CacheAsked
from app.chat.conversations import Changes
from app.chat.export import Export
from app.chat.imports import Imports
from app.chat.ledger import Act
from app.chat.library import Access, Text
from app.chat.liveness import session_of
from app.db.base import Database
from app.db.models import Conversation, Message, Meter, Response
from app.db.types import ItemKind, QuotaKind, Visibility, text_bytes, utc_now
from app.errors import AppError, Conflict, NotFound, QuotaExceeded, Unavailable
from app.events import ResponseEnded, TextDelta
from app.frames import ConversationChanged
from app.ids import ConversationId, UserId
from app.people.accounts import Accounts, Principal
from app.people.groups import Groups
from app.people.keys import Keys
from app.people.quotas import Limit, Quotas, choose, midnight
from engine.api import Hold, Limits, RetentionClass
from tests.kit.db import held, waiting
from tests.kit.domain import Domain, new_person, open_domain
from tests.kit.echo import REPLY_TOKENS, EchoEngine
from tests.kit.serving import Serving
from tests.kit.staff import done, somebody

pytestmark = pytest.mark.usefixtures("one_day")

AT_ONCE = 50


async def count(db: Database, table: type[Conversation | Message | Response]) -> int:
    async with db.read() as session:
        return await session.scalar(select(func.count()).select_from(table)) or 0


async def stored_bytes(db: Database, user_id: UserId) -> tuple[int, int, int]:
    """By the meter, by the conversations, and by all texts that there are."""
    of_user = Conversation.user_id == user_id
    texts = select(Message.text).join(Conversation).where(of_user)
    instructions = select(Response.instructions).where(Response.user_id == user_id)
    async with db.read() as session:
        meter = await session.scalar(select(Meter.stored_bytes).where(Meter.user_id == user_id))
        sums = await session.scalar(select(func.sum(Conversation.stored_bytes)).where(of_user))
        said = [*await session.scalars(texts), *await session.scalars(instructions)]
    return meter or 0, int(sums or 0), sum(map(text_bytes, said))


async def at_once(domain: Domain, who: Principal, times: int) -> list[object]:
    """So many turns, each in a conversation of its own: what came of each."""
    asked = [domain.respond(who, f"turn {number}") for number in range(times)]
    return list(await asyncio.gather(*asked, return_exceptions=True))


# ---------------------------------------------------------------- what holds


def group(allowed: int | None) -> Limit:
    return Limit(allowed=allowed, source="group", group_id=None)


def test_ones_own_quota_goes_before_the_most_generous_groups_and_that_before_the_default():
    own = Limit(allowed=1, source="own")

    assert choose([], default=7) == Limit(allowed=7, source="default")
    assert choose([group(3), group(5)], default=7).allowed == 5
    assert choose([group(3), group(None)], default=7).allowed is None
    assert choose([group(3), own, group(None)], default=7) == own


async def test_a_quota_holds_from_the_next_look_on_and_is_lifted_again(db: Database):
    quotas, groups = Quotas(db, {QuotaKind.SOCKETS: 32}), Groups(db)
    ann, team = await new_person(db), await groups.create("Team")
    kind = QuotaKind.SOCKETS
    found = [await quotas.allowed(ann.user_id, kind)]
    await quotas.set_for_group(team.id, kind, 5)
    await groups.join(team.id, ann.user_id)
    found.append(await quotas.allowed(ann.user_id, kind))
    for own in (3, None):
        await quotas.set_for_user(ann.user_id, kind, own)
        found.append(await quotas.allowed(ann.user_id, kind))
    told = await quotas.of_user(ann.user_id), await quotas.of_group(team.id)
    await quotas.lift_for_user(ann.user_id, kind)
    await quotas.lift_for_group(team.id, kind)
    found.append(await quotas.allowed(ann.user_id, kind))

    assert found == [32, 5, 3, None, 32]
    assert [[(one.kind, one.allowed) for one in set_] for set_ in told] == [
        [(kind, None)],
        [(kind, 5)],
    ]
    for refused in (
        quotas.lift_for_user(ann.user_id, kind),
        quotas.lift_for_group(team.id, kind),
        quotas.set_for_user(UserId("user_nobody"), kind, 1),
    ):
        with pytest.raises(NotFound):
            await refused


def test_a_day_ends_at_midnight_of_utc():
    late = datetime(2026, 12, 31, 23, 30, tzinfo=UTC).astimezone()

    assert midnight(late) == datetime(2027, 1, 1, tzinfo=UTC)


# ---------------------------------------------------------------- fifty at once


async def test_fifty_requests_at_once_never_exceed_a_quota_and_the_refused_store_nothing(
    db: Database,
):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        await domain.quotas.set_for_user(ann.user_id, QuotaKind.REQUESTS, 7)
        results = await at_once(domain, ann, AT_ONCE)
        refused = [one for one in results if isinstance(one, Exception)]
        for one in results:
            if not isinstance(one, BaseException):
                await domain.ended(ann, one)  # type: ignore[arg-type]
        used = {one.kind: one.used for one in await domain.usage.of(ann.user_id)}

    assert len(refused) == AT_ONCE - 7
    assert all(isinstance(one, QuotaExceeded) for one in refused), refused
    assert await count(db, Conversation) == await count(db, Response) == 7
    assert await count(db, Message) == 14
    assert used[QuotaKind.REQUESTS] == 7
    assert used[QuotaKind.GENERATIONS] == 0
    (fault, *_) = refused
    assert isinstance(fault, QuotaExceeded)
    assert (fault.quota, fault.limit) == ("requests_per_day", 7)
    assert fault.resets_at == midnight(utc_now()).timestamp()
    assert fault.message.startswith("Your quota is 7 requests a day; it begins anew at ")


@pytest.mark.parametrize("store", [True, False], ids=["stored", "not stored"])
async def test_so_many_answers_are_written_at_once_and_then_more_are(db: Database, *, store: bool):
    engine = EchoEngine()
    engine.hold()
    async with open_domain(db, engine) as domain:
        ann, ben = await new_person(db), await new_person(db)
        await domain.quotas.set_for_user(ann.user_id, QuotaKind.GENERATIONS, 3)
        asked = [
            domain.respond(ann, f"turn {number}", store=store if number % 2 else True)
            for number in range(AT_ONCE)
        ]
        results = await asyncio.gather(*asked, return_exceptions=True)
        begun = [one for one in results if not isinstance(one, BaseException)]
        faults = [one for one in results if isinstance(one, BaseException)]
        another = await domain.respond(ben, "hello")
        engine.release()
        for who, one in [*((ann, one) for one in begun), (ben, another)]:
            await domain.ended(who, one)
        await domain.ended(ann, await domain.respond(ann, "again", store=store))

    assert len(begun) == 3
    assert all(
        isinstance(one, QuotaExceeded) and one.quota == "generations" and one.retry_after_s == 1.0
        for one in faults
    )


async def test_tokens_are_held_while_an_answer_is_written_and_counted_when_it_has_ended(
    db: Database,
):
    engine = EchoEngine()
    engine.hold()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        await domain.quotas.set_for_user(ann.user_id, QuotaKind.TOKENS, 500)
        limits = Limits(max_output_tokens=100)
        results = await asyncio.gather(
            *(domain.respond(ann, f"turn {n:02}", limits=limits) for n in range(AT_ONCE)),
            return_exceptions=True,
        )
        begun = [one for one in results if not isinstance(one, BaseException)]
        engine.release()
        ends = [await domain.ended(ann, one) for one in begun]
        used = {one.kind: one.used for one in await domain.usage.of(ann.user_id)}
        days = await domain.usage.days(ann.user_id, "2026-01-01")

    usages = [end.response.usage for end in ends]
    computed = sum(one.input_tokens - one.cached_tokens for one in usages if one)
    cached, output = (
        sum(getattr(one, f"{n}_tokens") for one in usages) for n in ("cached", "output")
    )
    assert 1 < len(begun) <= 4
    assert used[QuotaKind.TOKENS] == computed + output <= 500
    (day,) = days
    assert (day.model, day.key_id, day.requests) == ("echo", None, len(begun))
    assert (day.computed_tokens, day.cached_tokens, day.output_tokens) == (computed, cached, output)


async def test_a_quota_begins_anew_with_the_day(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        await domain.quotas.set_for_user(ann.user_id, QuotaKind.REQUESTS, 1)
        await domain.ended(ann, await domain.respond(ann, "today"))
        with pytest.raises(QuotaExceeded):
            await domain.respond(ann, "today too")
        domain.quotas.now = lambda: utc_now() + timedelta(days=1)
        await domain.ended(ann, await domain.respond(ann, "tomorrow"))
        days = await domain.usage.days(ann.user_id, "2026-01-01")

    assert [day.requests for day in days] == [1, 1]


async def test_what_is_not_stored_counts_too_and_by_the_key_that_asked(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        key = await Keys(db, Accounts(db)).create(ann.user_id, "test")
        program = await Keys(db, Accounts(db)).resolve(key.key)
        end = await domain.ended(program, await domain.respond(program, "hello", store=False))
        (day,) = await domain.usage.days(ann.user_id, "2026-01-01")
        stored = await stored_bytes(db, ann.user_id)

    assert end.response.usage is not None
    output = end.response.usage.output_tokens
    assert (day.key_id, day.requests, day.output_tokens) == (key.view.id, 1, output)
    assert stored == (0, 0, 0)


async def test_the_same_message_sent_again_costs_nothing(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        conversation = await domain.conversations.create(ann.user_id)
        await domain.quotas.set_for_user(ann.user_id, QuotaKind.REQUESTS, 1)
        sent = [domain.send(ann, conversation.id, "hi", client_message_id="c1") for _ in range(8)]
        accepted = await asyncio.gather(*sent)
        await domain.ended(ann, accepted[0].response)

    assert len({one.response.id for one in accepted}) == 1


async def test_a_turn_that_its_engine_refused_leaks_no_hold(db: Database):
    engine = EchoEngine()
    engine.fails_with = RuntimeError("no engine")
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        await domain.quotas.set_for_user(ann.user_id, QuotaKind.GENERATIONS, 1)
        for text in ("one", "two", "three"):
            await domain.ended(ann, await domain.respond(ann, text))


async def test_what_a_killed_server_left_holds_nothing_and_is_weighed(db: Database):
    engine = EchoEngine()
    engine.hold(3)
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        await domain.quotas.set_for_user(ann.user_id, QuotaKind.GENERATIONS, 1)
        response = await domain.respond(ann, "hello")
        await domain.until(ann, response, TextDelta, 2)
        await domain.supervisor.checkpoints.take()
        with pytest.raises(QuotaExceeded):
            await domain.respond(ann, "one too many")

    async with open_domain(db, EchoEngine()) as domain:
        swept = await stored_bytes(db, ann.user_id)
        await domain.ended(ann, await domain.respond(ann, "again", instructions="Be short."))
        after = await stored_bytes(db, ann.user_id)

    assert swept == (7, 7, 7)
    assert after == (7 + 5 + 9 + REPLY_TOKENS,) * 3


# ---------------------------------------------------------------- what is stored


async def test_the_running_sum_is_what_all_texts_come_to_whatever_is_done(db: Database):
    sums = []
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        conversation = await domain.conversations.create(ann.user_id)
        first = await domain.say(ann, conversation.id, "Grüße")
        await domain.say(ann, conversation.id, "and more")
        sums.append(await stored_bytes(db, ann.user_id))
        asked_id = first.response.parent_id
        assert asked_id is not None
        edited = await domain.act(ann, Act.EDIT, asked_id, text="else")
        await domain.ended(ann, edited.response)
        copy = await domain.supervisor.branches.fork(
            ann.user_id, conversation.id, edited.response.message_id
        )
        sums.append(await stored_bytes(db, ann.user_id))
        await domain.supervisor.delete_branch(ann, conversation.id, edited.messages[0].id)
        sums.append(await stored_bytes(db, ann.user_id))
        one = await domain.respond(ann, "by a program", instructions="Be brief.")
        await domain.ended(ann, one)
        two = await domain.respond(ann, "and again", one, instructions="Be brief.")
        await domain.ended(ann, two)
        sums.append(await stored_bytes(db, ann.user_id))
        await domain.supervisor.delete_response(ann, one.id)
        sums.append(await stored_bytes(db, ann.user_id))
        await domain.supervisor.delete_response(ann, two.id)
        await domain.supervisor.delete_conversation(ann, conversation.id)
        await domain.supervisor.delete_conversation(ann, copy.id)
        sums.append(await stored_bytes(db, ann.user_id))

    assert all(meter == rows == texts for meter, rows, texts in sums), sums
    assert sums[-1] == (0, 0, 0)
    assert sums[0][0] == len("Grüße".encode()) + len("and more") + 2 * REPLY_TOKENS


async def test_a_branch_that_is_deleted_while_it_is_written_is_not_counted(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        conversation = await domain.conversations.create(ann.user_id)
        first = await domain.say(ann, conversation.id, "one")
        engine.hold(3)
        accepted = await domain.send(
            ann, conversation.id, "two", parent_id=first.response.message_id
        )
        await domain.until(ann, accepted.response, TextDelta, 1)
        await domain.supervisor.checkpoints.take()
        log = await domain.supervisor.log(ann, accepted.response.id)
        await domain.supervisor.delete_branch(ann, conversation.id, accepted.messages[0].id)
        events = [event async for event in log.subscribe()]
        sums = await stored_bytes(db, ann.user_id)

    assert isinstance(events[-1], ResponseEnded)
    assert sums == (3 + REPLY_TOKENS,) * 3


async def test_who_is_full_stores_no_more_by_any_road_until_something_is_deleted(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        conversation = await domain.conversations.create(ann.user_id)
        said = await domain.say(ann, conversation.id, "hello")
        document = Text(name="Notes", text="x" * 80)
        access = Access(visibility=Visibility.OWNER)
        await domain.quotas.set_for_user(ann.user_id, QuotaKind.STORED, 20)
        before = await count(db, Message)
        faults = [
            await refused(
                domain.send(ann, conversation.id, "y" * 50, parent_id=said.response.message_id)
            ),
            await refused(
                domain.supervisor.branches.fork(
                    ann.user_id, conversation.id, said.response.message_id
                )
            ),
            await refused(domain.library.create(ann.user_id, ItemKind.DOCUMENT, document, access)),
        ]
        after = await count(db, Message)
        await domain.supervisor.delete_conversation(ann, conversation.id)
        await domain.ended(ann, await domain.respond(ann, "room"))
        items = await domain.library.list(ann.user_id, ItemKind.DOCUMENT)

    assert {fault.quota for fault in faults} == {"stored_bytes"}
    assert {fault.retry_after_s for fault in faults} == {None}
    assert after == before
    assert items == ()


async def test_an_import_for_which_there_is_no_room_leaves_nothing(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        for text in ("one", "two"):
            await domain.say(ann, (await domain.conversations.create(ann.user_id)).id, text)
        file = b"".join([part async for part in Export(db).all(ann.user_id)])
        imports = Imports(db, domain.hub, Apart(), domain.usage)
        each = 3 + REPLY_TOKENS
        await domain.quotas.set_for_user(ann.user_id, QuotaKind.STORED, 3 * each)
        fault = await refused(imports.take(ann.user_id, file))
        left = await stored_bytes(db, ann.user_id), await count(db, Conversation)
        await domain.quotas.set_for_user(ann.user_id, QuotaKind.STORED, 4 * each)
        await imports.take(ann.user_id, file)
        full = await stored_bytes(db, ann.user_id)

    assert fault.quota == "stored_bytes"
    assert left == ((2 * each,) * 3, 2)
    assert full == (4 * each,) * 3


async def refused(work: object) -> QuotaExceeded:
    with pytest.raises(QuotaExceeded) as told:
        await work  # type: ignore[misc]
    return told.value


@pytest.mark.row("pins")
async def test_so_much_kv_is_kept_warm_and_no_more(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        made = [await domain.conversations.create(ann.user_id) for _ in range(2)]
        ends = [await domain.say(ann, one.id, "hello") for one in made]
        used = ends[0].response.usage
        assert used is not None
        room = used.input_tokens + used.output_tokens
        await domain.quotas.set_for_user(ann.user_id, QuotaKind.KEPT_WARM, room)
        kept, let_go = Changes(kept_warm=True), Changes(kept_warm=False)

        async def change(conversation_id: ConversationId, changes: Changes) -> bool:
            view = await domain.supervisor.change_conversation(ann, conversation_id, changes)
            return view.kept_warm

        first = await change(made[0].id, kept)
        fault = await refused(domain.supervisor.change_conversation(ann, made[1].id, kept))
        view = await domain.conversations.get(ann.user_id, made[1].id)
        await change(made[0].id, let_go)
        second = await change(made[1].id, kept)

    assert first and second and not view.kept_warm
    assert fault.quota == "kept_warm_bytes"


@pytest.mark.row("pins")
async def test_what_is_kept_warm_is_let_go_of_once_it_has_grown_beyond_the_quota(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        made = await domain.conversations.create(ann.user_id)
        used = (await domain.say(ann, made.id, "hello")).response.usage
        assert used is not None
        room = used.input_tokens + used.output_tokens + 60
        await domain.quotas.set_for_user(ann.user_id, QuotaKind.KEPT_WARM, room)
        await domain.supervisor.change_conversation(ann, made.id, Changes(kept_warm=True))
        kept = []
        for text in ("hi", "and a longer text than what there is room for, by far"):
            with domain.hub.watch(ann.user_id) as feed:
                await domain.say(ann, made.id, text)
                await turns_are_over(domain)
                view = await domain.conversations.get(ann.user_id, made.id)
            kept.append(
                (view.kept_warm, any(_tells(one, kept_warm=False) for one in feed._notices))
            )
        subject = session_of(ann.user_id, made.id)
        assert not domain.supervisor.liveness.keeps(subject)
        kept_bytes = await domain.supervisor.keeping.kept_bytes(ann.user_id)

    assert kept[0][0]
    assert kept[1] == (False, True), "and its pages hear of it"
    assert kept_bytes == 0


def _tells(notice: object, *, kept_warm: bool) -> bool:
    return isinstance(notice, ConversationChanged) and notice.conversation.kept_warm is kept_warm


async def turns_are_over(domain: Domain) -> None:
    while domain.supervisor.live_turns:  # noqa: ASYNC110  what is waited for has no event
        await asyncio.sleep(0)


@pytest.mark.row("pins")
async def test_a_client_that_asks_for_a_while_is_held_to_the_same_quota(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        asked = CacheAsked(key="k", ttl_s=60.0)
        held: dict[int | None, int] = {}
        for allowed in (0, 10, None, 10):
            await domain.quotas.set_for_user(ann.user_id, QuotaKind.KEPT_WARM, allowed)
            before = len(engine.leases)
            response = await domain.respond(ann, "hello", cache=asked)
            await domain.ended(ann, response)
            await turns_are_over(domain)
            wishes = [wish for _, wish in engine.leases[before:] if isinstance(wish, Hold)]
            held[allowed] = sum(one.retention is RetentionClass.KEPT for one in wishes)
            if allowed is None:
                kept_bytes = await domain.supervisor.keeping.kept_bytes(ann.user_id)
                used = (await domain.supervisor.response(ann, response.id)).view.usage

        await domain.quotas.set_for_user(ann.user_id, QuotaKind.KEPT_WARM, 10)
        conversation = await domain.conversations.create(ann.user_id)
        await domain.say(ann, conversation.id, "hello")
        keep = domain.supervisor.change_conversation(ann, conversation.id, Changes(kept_warm=True))
        await refused(keep)

    assert held == {0: 0, 10: 0, None: 1}
    assert used is not None and kept_bytes == used.input_tokens + used.output_tokens


async def test_one_is_told_how_many_sockets_and_how_much_is_kept_warm(house: Serving):
    async with somebody(house) as who, who.tab() as tab, who.tab():
        conversation_id = await who.conversation()
        await tab.subscribe(conversation_id)
        said = await tab.say(conversation_id, "hello")
        await tab.story(said.response.id)
        path = f"/api/conversations/{conversation_id}"
        await done(await who.client.patch(path, json={"kept_warm": True}))
        usage = await done(await who.client.get("/api/account/usage"))
        used = {one["kind"]: one["used"] for one in usage["quotas"]}
        messages = (await done(await who.client.get(path)))["messages"]

    (cost,) = (one["response"]["usage"] for one in messages if one["response"] is not None)
    assert used["sockets"] == 2
    assert used["kept_warm_bytes"] == cost["input_tokens"] + cost["output_tokens"]


# ---------------------------------------------------------------- drafts, and who is gone


async def test_the_tokens_of_drafts_count_with_the_next_message(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        await domain.quotas.set_for_user(ann.user_id, QuotaKind.TOKENS, 1_000)
        may = [await domain.usage.may_draft(ann.user_id)]
        domain.usage.besides(ann.user_id, 400)
        end = await domain.ended(ann, await domain.respond(ann, "hello"))
        used = {one.kind: one.used for one in await domain.usage.of(ann.user_id)}
        domain.usage.besides(ann.user_id, 600)
        may.append(await domain.usage.may_draft(ann.user_id))

    usage = end.response.usage
    assert usage is not None
    cost = usage.input_tokens - usage.cached_tokens + usage.output_tokens
    assert used[QuotaKind.TOKENS] == 400 + cost
    assert may == [True, False]


async def tokens_of(db: Database, user_id: UserId) -> int:
    async with db.read() as session:
        return await session.scalar(select(Meter.tokens).where(Meter.user_id == user_id)) or 0


async def test_turns_that_come_at_once_count_the_tokens_of_drafts_once(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        await domain.ended(ann, await domain.respond(ann, "hello"))
        before = await tokens_of(db, ann.user_id)
        domain.usage.besides(ann.user_id, 400)
        async with held(db, select(Meter)):
            asked = [asyncio.create_task(domain.respond(ann, f"turn {n}")) for n in range(2)]
            await waiting(db, 2)
        ends = [await domain.ended(ann, await one) for one in asked]
        after = await tokens_of(db, ann.user_id)

    usages = [end.response.usage for end in ends]
    cost = sum(one.input_tokens - one.cached_tokens + one.output_tokens for one in usages if one)
    assert after - before == 400 + cost


async def test_a_turn_that_could_not_be_stored_holds_nothing_and_takes_nothing_along(
    db: Database, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object) -> None:
        raise OSError("the disk is full")

    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        domain.usage.besides(ann.user_id, 400)
        with monkeypatch.context() as patch:
            patch.setattr(stored, "_add_turn", full)
            with pytest.raises(OSError, match="full"):
                await domain.respond(ann, "hello")
        used = {one.kind: one.used for one in await domain.usage.of(ann.user_id)}
        end = await domain.ended(ann, await domain.respond(ann, "hello"))
        after = await tokens_of(db, ann.user_id)

    assert (used[QuotaKind.GENERATIONS], used[QuotaKind.TOKENS]) == (0, 400)
    usage = end.response.usage
    assert usage is not None
    assert after == 400 + usage.input_tokens - usage.cached_tokens + usage.output_tokens


async def test_an_end_whose_acknowledgement_was_lost_is_counted_once(
    db: Database, monkeypatch: pytest.MonkeyPatch
):
    """It is stored until the database says so; that it was stored already is seen."""
    engine, write, losses = EchoEngine(), db.write, iter([True])
    engine.hold(2)

    async def write_unheard(work: Callable[[Session], object]) -> None:
        await write(work)
        if next(losses, False):
            raise Unavailable("The database is away.")

    monkeypatch.setattr(turns, "STORE_AGAIN_S", (0.0,))

    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        response = await domain.respond(ann, "hello")
        monkeypatch.setattr(db, "write", write_unheard)
        engine.release()
        await domain.ended(ann, response)
        used = {one.kind: one.used for one in await domain.usage.of(ann.user_id)}
        days = await domain.usage.days(ann.user_id, "2026-01-01")
        sums = await stored_bytes(db, ann.user_id)

    assert [day.requests for day in days] == [1]
    assert (used[QuotaKind.REQUESTS], used[QuotaKind.GENERATIONS]) == (1, 0)
    assert len(set(sums)) == 1


@pytest.mark.parametrize("store", [True, False], ids=["stored", "not stored"])
async def test_who_is_removed_while_a_turn_comes_in_gets_a_typed_refusal(
    db: Database, monkeypatch: pytest.MonkeyPatch, *, store: bool
):
    accounts = Accounts(db)
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        prepare = domain.supervisor.intake.prepare

        async def prepare_and_go(*given: object) -> object:
            prepared = await prepare(*given)  # type: ignore[arg-type]
            await accounts.remove(ann.user_id)
            return prepared

        monkeypatch.setattr(domain.supervisor.intake, "prepare", prepare_and_go)
        with pytest.raises(Conflict) as told:
            await domain.respond(ann, "hello", store=store)

    assert (told.value.code, told.value.status) == ("gone", 409)
    assert await count(db, Message) == 0


async def test_who_is_removed_while_an_answer_is_written_is_counted_no_more(db: Database):
    engine = EchoEngine()
    engine.hold(2)
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        turns = [await domain.respond(ann, "hello", store=store) for store in (True, False)]
        logs = [await domain.supervisor.log(ann, one.id) for one in turns]
        await Accounts(db).remove(ann.user_id)
        engine.release()
        for log in logs:
            with contextlib.suppress(AppError):
                assert [event async for event in log.subscribe()]
        async with db.read() as session:
            left = await session.scalar(select(func.count()).select_from(Meter))

    assert left == 0
