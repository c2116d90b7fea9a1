"""Editing, regenerating, continuing, choosing, forking and deleting: the tree only grows (law 16)."""

import asyncio

import pytest
from sqlalchemy import func, select

from app.chat.ledger import Act
from app.db.base import Database
from app.db.models import Message, Response
from app.errors import Conflict, InvalidRequest, NotFound, ParentMoved
from app.events import ConversationView, ResponseEnded, ResponseStatus, TextDelta
from app.ids import ConversationId, MessageId
from app.people.accounts import Principal
from engine.api import Forget
from tests.kit.domain import Domain, new_person, open_domain
from tests.kit.echo import EchoEngine


async def talk(
    domain: Domain, *texts: str
) -> tuple[Principal, ConversationId, list[ResponseEnded]]:
    """A new person's conversation of so many turns."""
    ann = await new_person(domain.db)
    conversation = await domain.conversations.create(ann.user_id)
    ends = [await domain.say(ann, conversation.id, text, max_tokens=6) for text in texts]
    return ann, conversation.id, ends


async def leaf(domain: Domain, who: Principal, conversation_id: ConversationId) -> MessageId | None:
    return (await domain.conversations.get(who.user_id, conversation_id)).leaf_id


def asked(end: ResponseEnded) -> MessageId:
    assert end.response.parent_id is not None
    return end.response.parent_id


async def count(db: Database, table: type[Message | Response]) -> int:
    async with db.read() as session:
        return await session.scalar(select(func.count()).select_from(table)) or 0


# ---------------------------------------------------------------- acts


@pytest.mark.parametrize("position", [0, 1, 2])
async def test_16_an_edit_is_a_branch_beside_what_was_said(db: Database, position: int):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann, conversation_id, ends = await talk(domain, "one", "two", "three")
        before = await domain.nodes(ends[-1].response.message_id)
        accepted = await domain.act(ann, Act.EDIT, asked(ends[position]), text="other")
        end = await domain.ended(ann, accepted.response)
        after = await domain.nodes(ends[-1].response.message_id)
        path = await domain.nodes(end.response.message_id)
        shown = await leaf(domain, ann, conversation_id)

    assert after == before
    assert path[: 2 * position] == before[: 2 * position]
    assert [node.text for node in path[2 * position :]] == ["other", end.text]
    assert shown == end.response.message_id


async def test_16_a_regenerated_answer_follows_the_same_ids(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann, conversation_id, ends = await talk(domain, "one", "two")
        for named in (ends[-1].response.message_id, asked(ends[-1])):
            accepted = await domain.act(ann, Act.REGENERATE, named)
            end = await domain.ended(ann, accepted.response)
            assert accepted.messages == ()
            assert end.response.parent_id == asked(ends[-1])
            assert end.response.message_id != ends[-1].response.message_id
            assert await leaf(domain, ann, conversation_id) == end.response.message_id

    assert len({job.token_ids for job in engine.jobs[1:]}) == 1
    assert engine.jobs[-1].history is not None, "a miss can be explained"


async def test_16_a_turn_goes_on_below_a_regenerated_answer(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann, conversation_id, (end,) = await talk(domain, "one")
        accepted = await domain.act(ann, Act.REGENERATE, end.response)
        again = await domain.ended(ann, accepted.response)
        last = await domain.say(ann, conversation_id, "two")
        path = await domain.nodes(last.response.message_id)

    assert [node.id for node in path][:2] == [asked(end), again.response.message_id]


@pytest.mark.row("10")
async def test_15_a_stopped_answer_is_taken_up_where_it_was_cut(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann, _, (whole,) = await talk(domain, "hello there")
        conversation = await domain.conversations.create(ann.user_id)
        cut = await domain.say(ann, conversation.id, "hello there", max_tokens=2)
        accepted = await domain.act(ann, Act.CONTINUE, cut.response, max_tokens=4)
        end = await domain.ended(ann, accepted.response)
        deltas = [
            event.delta
            for event in await domain.events(ann, accepted.response)
            if isinstance(event, TextDelta)
        ]
        (_, kept), (_, continued) = [
            await domain.nodes(one.response.message_id) for one in (cut, end)
        ]

    job = engine.jobs[-1]
    assert cut.response.incomplete_reason == "max_output_tokens"
    assert job.resumed_output == kept.token_ids
    assert job.limits.max_output_tokens == 6
    assert end.text == "".join(deltas) == continued.text == whole.text
    assert continued.token_ids[:2] == kept.token_ids
    assert kept.text == cut.text, "what was cut stays as it was"
    assert end.response.receipt is not None
    assert end.response.receipt.output_tokens == 4


async def test_15_a_continuation_that_is_stopped_at_once_keeps_what_there_was(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann, _, (cut,) = await talk(domain, "hello")
        engine.hold()
        accepted = await domain.act(ann, Act.CONTINUE, cut.response)
        await domain.supervisor.cancel(ann, accepted.response.id)
        end = await domain.ended(ann, accepted.response)
        kept, now = [(await domain.nodes(one.response.message_id))[-1] for one in (cut, end)]

    assert end.response.status is ResponseStatus.CANCELLED
    assert (now.text, now.token_ids) == (kept.text, kept.token_ids)


async def test_only_what_was_cut_short_is_continued(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        conversation = await domain.conversations.create(ann.user_id)
        end = await domain.say(ann, conversation.id, "hello")
        assert end.response.status is ResponseStatus.COMPLETED
        with pytest.raises(InvalidRequest) as refused:
            await domain.act(ann, Act.CONTINUE, end.response)
        assert refused.value.code == "not_continuable"
        for act, at, text in (
            (Act.CONTINUE, asked(end), None),
            (Act.EDIT, end.response.message_id, "no"),
        ):
            with pytest.raises(InvalidRequest):
                await domain.act(ann, act, at, text=text)

    assert await count(db, Message) == 2


@pytest.mark.parametrize("act", [Act.EDIT, Act.REGENERATE, Act.CONTINUE])
async def test_17_an_act_that_is_sent_again_is_the_same_act(db: Database, act: Act):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann, _, (end,) = await talk(domain, "hello")
        at = asked(end) if act is Act.EDIT else end.response.message_id
        text = "hi" if act is Act.EDIT else None
        first = await domain.act(ann, act, at, text=text, client_message_id="c1")
        await domain.ended(ann, first.response)
        again = await domain.act(ann, act, at, text=text, client_message_id="c1")

    assert again.response.id == first.response.id
    assert not again.fresh
    assert len(engine.jobs) == 2


async def test_an_act_on_a_branch_that_is_not_shown_any_more_is_refused(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann, conversation_id, ends = await talk(domain, "one", "two")
        stale = await leaf(domain, ann, conversation_id)
        await domain.supervisor.branches.choose(ann.user_id, conversation_id, asked(ends[0]))
        await domain.say(ann, conversation_id, "three")
        with pytest.raises(ParentMoved):
            await domain.send(ann, conversation_id, "four", parent_id=stale)


async def test_nothing_is_done_beside_an_answer_that_is_being_written(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann, conversation_id, (first,) = await talk(domain, "one")
        engine.hold()
        leaf_id = await leaf(domain, ann, conversation_id)
        running = await domain.send(ann, conversation_id, "two", parent_id=leaf_id)
        for act, at, text in (
            (Act.EDIT, asked(first), "other"),
            (Act.REGENERATE, first.response.message_id, None),
            (Act.REGENERATE, running.response.message_id, None),
            (Act.CONTINUE, running.response.message_id, None),
        ):
            with pytest.raises(Conflict) as refused:
                await domain.act(ann, act, at, text=text)
            assert refused.value.code == "turn_in_progress"


# ---------------------------------------------------------------- what is shown


async def test_the_branch_that_is_shown_is_the_servers_to_tell(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann, conversation_id, ends = await talk(domain, "one", "two")
        edited = await domain.act(ann, Act.EDIT, asked(ends[0]), text="other")
        end = await domain.ended(ann, edited.response)
        shown: list[ConversationView] = [
            await domain.supervisor.branches.choose(ann.user_id, conversation_id, message_id)
            for message_id in (asked(ends[0]), edited.messages[0].id, ends[1].response.message_id)
        ]

    last = ends[-1].response.message_id
    assert [view.leaf_id for view in shown] == [last, end.response.message_id, last]


async def test_16_a_copy_begins_with_the_very_ids_and_goes_its_own_way(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann, conversation_id, ends = await talk(domain, "one", "two", "three")
        copy = await domain.supervisor.branches.fork(
            ann.user_id, conversation_id, ends[1].response.message_id
        )
        assert copy.leaf_id is not None
        old = await domain.nodes(ends[1].response.message_id)
        new = await domain.nodes(copy.leaf_id)
        end = await domain.say(ann, copy.id, "three")
        messages = await domain.conversations.messages(ann.user_id, copy.id)
        untouched = await leaf(domain, ann, conversation_id)

    assert [(n.role, n.text, n.token_ids, n.seam) for n in new] == [
        (n.role, n.text, n.token_ids, n.seam) for n in old
    ]
    assert not {n.id for n in new} & {n.id for n in old}
    assert engine.jobs[-1].token_ids == engine.jobs[2].token_ids
    assert end.response.receipt and end.response.receipt.cached_tokens
    assert [m.response.receipt is not None for m in messages if m.response] == [True] * 3
    assert untouched == ends[-1].response.message_id


async def test_an_answer_that_is_being_written_is_not_copied(db: Database):
    engine = EchoEngine()
    engine.hold()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        conversation = await domain.conversations.create(ann.user_id)
        accepted = await domain.send(ann, conversation.id, "one")
        with pytest.raises(Conflict):
            await domain.supervisor.branches.fork(
                ann.user_id, conversation.id, accepted.response.message_id
            )


# ---------------------------------------------------------------- deleting


@pytest.mark.row("24")
async def test_a_deleted_branch_takes_what_is_below_it_and_nothing_else(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann, conversation_id, ends = await talk(domain, "one", "two", "three")
        edited = await domain.act(ann, Act.EDIT, asked(ends[1]), text="other")
        end = await domain.ended(ann, edited.response)
        await domain.supervisor.delete_branch(ann, conversation_id, asked(ends[1]))
        left = await domain.conversations.messages(ann.user_id, conversation_id)
        shown = await leaf(domain, ann, conversation_id)
        await domain.supervisor.delete_branch(ann, conversation_id, edited.messages[0].id)
        then = await leaf(domain, ann, conversation_id)
        await domain.supervisor.delete_branch(ann, conversation_id, asked(ends[0]))
        empty = await leaf(domain, ann, conversation_id)

    assert [one.text for one in left] == ["one", ends[0].text, "other", end.text]
    assert shown == end.response.message_id
    assert then == ends[0].response.message_id
    assert empty is None
    assert (await count(db, Message), await count(db, Response)) == (0, 0)
    assert [type(wish) for _, wish in engine.leases] == [Forget] * 3


async def test_15_what_is_written_in_a_branch_stops_with_it(db: Database):
    engine = EchoEngine()
    engine.hold(2)
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        conversation = await domain.conversations.create(ann.user_id)
        accepted = await domain.send(ann, conversation.id, "one")
        await domain.until(ann, accepted.response, TextDelta)
        await domain.supervisor.delete_branch(ann, conversation.id, accepted.messages[0].id)

        assert domain.supervisor.live_turns == 0
        with pytest.raises(NotFound):
            await domain.supervisor.response(ann, accepted.response.id)


async def test_a_very_long_branch_is_deleted_whole(db: Database):
    """A cascade along it would pass SQLite's limit of 1,000 nested actions."""
    async with open_domain(db, EchoEngine()) as domain:
        ann, conversation_id, (end,) = await talk(domain, "one")
        async with db.begin() as session:
            above = await session.get_one(Message, end.response.message_id)
            for number in range(1100):
                values = {column.key: getattr(above, column.key) for column in Message.__table__.c}
                id_ = MessageId(f"{end.response.message_id}{number:04}")
                above = Message(**values | {"id": id_, "parent_id": above.id})
                session.add(above)
                await session.flush()
        await domain.supervisor.delete_branch(ann, conversation_id, asked(end))

    assert await count(db, Message) == 0


async def test_19_anothers_branches_and_unknown_ones_look_the_same(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann, conversation_id, (end,) = await talk(domain, "one")
        ben, mine, _ = await talk(domain, "two")
        branches, theirs = domain.supervisor.branches, end.response.message_id
        for owned, message_id in (
            (conversation_id, theirs),
            (mine, theirs),
            (mine, MessageId("msg_none")),
            (ConversationId("conv_none"), theirs),
        ):
            for attempt in (
                branches.choose(ben.user_id, owned, message_id),
                branches.fork(ben.user_id, owned, message_id),
                domain.supervisor.delete_branch(ben, owned, message_id),
            ):
                with pytest.raises(NotFound):
                    await attempt
        assert await leaf(domain, ann, conversation_id) == theirs


async def test_16_what_is_said_below_a_message_that_goes_meanwhile_is_refused(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann, conversation_id, ends = await talk(domain, "one", "two")
        accepting = [
            domain.respond(ann, "three", ends[-1].response),
            domain.supervisor.delete_branch(ann, conversation_id, asked(ends[-1])),
        ]
        said, _ = await asyncio.gather(*accepting, return_exceptions=True)

    assert isinstance(said, NotFound) or not isinstance(said, BaseException)
