"""All live turns: accepted once, owned by the server, swept, drained, found by their owner."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.chat import memory
from app.chat.stored import StoredLedger
from app.db.base import Database
from app.db.models import Conversation, Message, Response
from app.db.types import QuotaKind
from app.errors import Conflict, InvalidRequest, NotFound, ParentMoved, Unavailable
from app.events import ResponseCreated, ResponseEnded, ResponseStatus, TextDelta, TextDone
from app.frames import ConversationChanged, MessageAdded, ResponseStarted
from app.ids import ConversationId, MessageId, ResponseId
from app.routes.openai.objects import stored_response
from engine.api import Forget, Refusal, Role, Seam, SubjectKind
from engine.api import Message as Said
from engine.errors import EngineLost
from tests.kit.domain import new_person, open_domain
from tests.kit.echo import REPLY_TOKENS, EchoEngine

T = TypeVar("T")


async def count(db: Database, table: type[Conversation | Message | Response]) -> int:
    async with db.read() as session:
        return await session.scalar(select(func.count()).select_from(table)) or 0


# ---------------------------------------------------------------- accepting


async def test_17_the_same_client_message_id_is_one_turn_however_often_it_comes(db: Database):
    engine = EchoEngine()
    engine.hold()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        conversation = await domain.conversations.create(ann.user_id)
        sent = [
            domain.send(ann, conversation.id, "hello", client_message_id="c1") for _ in range(8)
        ]
        accepted = await asyncio.gather(*sent)
        engine.release()
        await domain.ended(ann, accepted[0].response)
        late = await domain.send(ann, conversation.id, "hello", client_message_id="c1")

    assert len(engine.jobs) == 1
    assert {one.response.id for one in (*accepted, late)} == {late.response.id}
    assert {one.message and one.message.id for one in (*accepted, late)} == {late.messages[0].id}
    assert [one.fresh for one in accepted].count(True) == 1
    assert late.response.status is ResponseStatus.COMPLETED
    assert await count(db, Message) == 2


async def test_a_second_turn_waits_for_the_answer_that_is_written(db: Database):
    engine = EchoEngine()
    engine.hold()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        conversation = await domain.conversations.create(ann.user_id)
        first = await domain.send(ann, conversation.id, "one")
        for parent_id in (first.response.message_id, None):
            with pytest.raises(Conflict) as refused:
                await domain.send(ann, conversation.id, "two", parent_id=parent_id)
            assert refused.value.code == "turn_in_progress"
        with pytest.raises(Conflict) as refused:
            await domain.respond(ann, "two", first.response)
        assert refused.value.code == "turn_in_progress"

    assert await count(db, Message) == 2


async def test_a_turn_below_an_older_leaf_is_told_where_the_conversation_is(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        conversation = await domain.conversations.create(ann.user_id)
        first = await domain.say(ann, conversation.id, "one")
        second = await domain.say(ann, conversation.id, "two")
        with pytest.raises(ParentMoved) as refused:
            await domain.send(ann, conversation.id, "three", parent_id=first.response.message_id)

    assert refused.value.code == "parent_moved"
    assert refused.value.leaf_id == second.response.message_id


async def test_two_tabs_at_once_make_one_turn_and_one_refusal(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        conversation = await domain.conversations.create(ann.user_id)
        results = await asyncio.gather(
            *(domain.send(ann, conversation.id, text) for text in ("left", "right")),
            return_exceptions=True,
        )
        messages = await domain.conversations.messages(ann.user_id, conversation.id)

    kinds = sorted(type(result).__name__ for result in results)
    assert kinds in (["Acceptance", "Conflict"], ["Acceptance", "ParentMoved"])
    assert len(messages) == 2


async def test_13_a_turn_whose_caller_goes_away_in_mid_accept_is_whole(
    db: Database, monkeypatch: pytest.MonkeyPatch
):
    accept, stored, go_on = StoredLedger.accept, asyncio.Event(), asyncio.Event()

    async def accept_slowly(self, entry, ask, written):
        acceptance = await accept(self, entry, ask, written)
        stored.set()
        await go_on.wait()
        return acceptance

    monkeypatch.setattr(StoredLedger, "accept", accept_slowly)
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        conversation = await domain.conversations.create(ann.user_id)
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(domain.send(ann, conversation.id, "hello"))
            await stored.wait()
            sending.cancel()
        (response,) = domain.supervisor.live(ann, conversation.id)
        go_on.set()
        end = await domain.ended(ann, response)

    assert sending.cancelled()
    assert end.response.status is ResponseStatus.COMPLETED


async def test_17_what_the_disk_refuses_is_not_computed_on_and_can_be_sent_again(
    db: Database, monkeypatch: pytest.MonkeyPatch
):
    """The engine has it before the disk does; a turn that was never stored is nobody's."""
    write, engine = Database.write, EchoEngine()

    async def fail_to_commit(self, work):
        def written(session):
            work(session)
            raise OSError("the disk is full")

        return await write(self, written)

    engine.hold()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        conversation = await domain.conversations.create(ann.user_id)
        with monkeypatch.context() as broken, pytest.raises(OSError, match="full"):
            broken.setattr(Database, "write", fail_to_commit)
            await domain.send(ann, conversation.id, "hello", client_message_id="one")
        refused = [engine.is_running(job.job_id) for job in engine.jobs]
        live = domain.supervisor.live_turns
        engine.release()
        accepted = await domain.send(ann, conversation.id, "hello", client_message_id="one")
        end = await domain.ended(ann, accepted.response)
        messages = await domain.conversations.messages(ann.user_id, conversation.id)

    assert refused == [False], "it was handed in, and stopped"
    assert live == 0
    assert accepted.fresh
    assert end.response.status is ResponseStatus.COMPLETED
    assert len(messages) == 2


async def test_13_nobody_needs_to_watch(db: Database):
    """The number of tokens does not depend on who reads; a reader who leaves changes nothing."""
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        watched = await domain.respond(ann, "watched")
        await domain.until(ann, watched, TextDelta)
        alone = await domain.respond(ann, "alone")
        for response in (watched, alone):
            assert len((await domain.ended(ann, response)).text) == REPLY_TOKENS


async def test_an_engine_that_is_away_refuses_before_anything_is_stored(
    db: Database, monkeypatch: pytest.MonkeyPatch
):
    engine = EchoEngine()

    async def info():
        raise EngineLost("gone")

    monkeypatch.setattr(engine, "info", info)
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        conversation = await domain.conversations.create(ann.user_id)
        with pytest.raises(Unavailable) as refused:
            await domain.send(ann, conversation.id, "hello")

    assert refused.value.retry_after_s is not None
    assert await count(db, Message) == 0


async def test_a_turn_with_nothing_to_answer_or_to_warm_is_refused(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        answered = await domain.respond(ann, "hello")
        warmed = await domain.respond(ann, "", messages=(), generate=False, instructions="Rules.")
        developer = await domain.respond(
            ann, "", messages=(Said(role=Role.SYSTEM, text="Rules."),), generate=False
        )
        for one in (answered, warmed, developer):
            await domain.ended(ann, one)
        stored = await count(db, Message)

        for previous in (None, answered, warmed, developer):
            with pytest.raises(InvalidRequest, match="nothing to answer") as refused:
                await domain.respond(ann, "", previous, messages=(), instructions="Rules.")
            assert refused.value.field == "input"
        for previous in (None, warmed):
            with pytest.raises(InvalidRequest, match="nothing to warm up") as refused:
                await domain.respond(ann, "", previous, messages=(), generate=False)
            assert refused.value.field == "input"

        assert await count(db, Message) == stored


async def test_15_deleting_a_conversation_stops_every_answer_in_it(db: Database):
    """Also where one of them has ended by itself meanwhile, which must not look like a fault."""
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        root = await domain.respond(ann, "root")
        await domain.ended(ann, root)
        assert root.conversation_id is not None
        engine.hold(after_beats=2)
        forks = [await domain.respond(ann, text, root) for text in ("left", "middle", "right")]
        for fork in forks:
            await domain.until(ann, fork, TextDelta)
        cancel = engine.cancel

        async def cancel_when_the_others_have_ended(job_id):
            engine.release()
            for fork in forks:
                if fork.id != job_id:
                    await domain.ended(ann, fork)
            return await cancel(job_id)

        engine.cancel = cancel_when_the_others_have_ended  # type: ignore[method-assign]
        await domain.supervisor.delete_conversation(ann, root.conversation_id)

        assert domain.supervisor.live_turns == 0
        assert [(subject.subject_id, wish) for subject, wish in engine.leases] == [
            (root.conversation_id, Forget())
        ]
        for response in (root, *forks):
            with pytest.raises(NotFound):
                await domain.supervisor.log(ann, response.id)


async def test_14_a_response_that_never_began_shows_no_item_now_or_later(db: Database):
    engine = EchoEngine()
    engine.refusal = Refusal(code="overloaded", message="The queue is full.")
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        response = await domain.respond(ann, "hello")
        told = await domain.events(ann, response)
        found = await domain.supervisor.response(ann, response.id)
        domain.logs.drop(response.id)
        told_later = await domain.events(ann, response)

    assert told_later == told
    assert [type(event) for event in told] == [ResponseCreated, ResponseEnded]
    assert stored_response(found).output == ()


async def test_watchers_hear_of_the_messages_the_response_and_the_title(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        conversation = await domain.conversations.create(ann.user_id)
        with domain.hub.watch(ann.user_id) as feed:
            accepted = await domain.send(ann, conversation.id, "hello")
            notices = [await anext(aiter(feed)) for _ in range(3)]

    added, begun, changed = notices
    assert isinstance(added, MessageAdded)
    assert added.message == accepted.message
    assert begun == ResponseStarted(response=accepted.response)
    assert isinstance(changed, ConversationChanged)
    assert changed.conversation.title == "hello"
    assert changed.conversation.leaf_id == accepted.response.message_id


# ---------------------------------------------------------------- checkpoints, kill, sweep


async def test_17_a_checkpoint_keeps_text_and_ids_of_all_live_replies(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        engine.hold(after_beats=3)
        responses = [await domain.respond(ann, text) for text in ("one", "two")]
        for response in responses:
            await domain.until(ann, response, TextDelta, times=2)
        await domain.supervisor.checkpoints.take()
        kept = [(await domain.nodes(one.message_id))[-1] for one in responses]

    assert sum(len(node.token_ids) for node in kept) == 4
    assert all(len(node.text) == len(node.token_ids) for node in kept)


async def test_17_a_checkpoint_never_follows_the_end(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        responses = [await domain.respond(ann, f"{n}") for n in range(10)]
        while domain.supervisor.live_turns:
            await domain.supervisor.checkpoints.take()
            await asyncio.sleep(0)
        ends = [await domain.ended(ann, response) for response in responses]
        kept = [(await domain.nodes(one.message_id))[-1] for one in responses]

    assert [node.text for node in kept] == [end.text for end in ends]
    assert {len(node.token_ids) for node in kept} == {REPLY_TOKENS + 1}


async def test_17_what_a_killed_server_left_is_closed_with_its_last_checkpoint(db: Database):
    engine = EchoEngine()
    engine.hold(after_beats=4)
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        conversation = await domain.conversations.create(ann.user_id)
        accepted = await domain.send(ann, conversation.id, "hello")
        await domain.until(ann, accepted.response, TextDelta, times=3)
        await domain.supervisor.checkpoints.take()
    engine.release()
    async with open_domain(db, engine) as restarted:
        swept = await restarted.supervisor.response(ann, accepted.response.id)
        reply = (await restarted.nodes(accepted.response.message_id))[-1]
        after = await restarted.say(ann, conversation.id, "and then")
        assert restarted.logs.epoch != domain.logs.epoch

    assert swept.view.status is ResponseStatus.INCOMPLETE
    assert swept.view.incomplete_reason == "interrupted"
    assert len(swept.text) == 3
    assert (len(reply.token_ids), reply.seam) == (3, Seam.CUT)
    assert after.response.status is ResponseStatus.COMPLETED
    sent = engine.jobs[0].token_ids + reply.token_ids
    assert engine.jobs[-1].token_ids[: len(sent)] == sent


async def test_13_after_a_kill_the_stored_text_replaces_the_clients(db: Database):
    engine = EchoEngine()
    engine.hold(after_beats=6)
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        response = await domain.respond(ann, "hello")
        await domain.until(ann, response, TextDelta, times=5)
        await domain.supervisor.checkpoints.take()
    async with open_domain(db, engine) as restarted:
        for after in (-1, 3, 7):
            events = await restarted.events(ann, response, after)
            done = [event for event in events if isinstance(event, TextDone)]
            assert [len(event.text) for event in done] == [5]
            assert [event.sequence_number for event in events] == list(
                range(after + 1, after + 1 + len(events))
            )


async def test_draining_refuses_waits_and_interrupts(db: Database):
    engine = EchoEngine()
    engine.hold(after_beats=3)
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        response = await domain.respond(ann, "hello")
        await domain.until(ann, response, TextDelta, times=2)
        await domain.supervisor.drain(grace_s=0.0)
        end = await domain.ended(ann, response)
        with pytest.raises(Unavailable):
            await domain.respond(ann, "more")

    assert end.response.status is ResponseStatus.INCOMPLETE
    assert end.response.incomplete_reason == "interrupted"
    assert len(end.text) == 2


async def test_draining_lets_an_answer_finish_in_its_grace(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        response = await domain.respond(ann, "hello")
        await domain.supervisor.drain(grace_s=30.0)
        end = await domain.ended(ann, response)

    assert end.response.status is ResponseStatus.COMPLETED


# ---------------------------------------------------------------- not stored


async def test_03_what_is_not_stored_is_in_memory_only_and_can_be_continued(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        first = await domain.respond(ann, "one", store=False)
        text = (await domain.ended(ann, first)).text
        second = await domain.respond(ann, "two", first, store=False)
        await domain.ended(ann, second)
        forked = await domain.respond(ann, "other", first, store=False)
        await domain.ended(ann, forked)
        kept = await domain.supervisor.response(ann, first.id)
        items = await domain.supervisor.input_items(ann, second.id)

    assert (kept.text, kept.store) == (text, False)
    assert first.conversation_id is None
    assert [item.text for item in items] == ["two"]
    one, two, other = engine.jobs
    shared = len(one.token_ids) + REPLY_TOKENS + 1
    assert two.token_ids[:shared] == other.token_ids[:shared]
    assert two.history is not None
    assert two.history.token_ids == two.token_ids[:shared]
    assert await count(db, Conversation) == await count(db, Response) == 0
    assert await count(db, Message) == 0


async def test_a_stored_response_is_continued_in_memory(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        first = await domain.respond(ann, "one")
        await domain.ended(ann, first)
        await domain.ended(ann, await domain.respond(ann, "two", first, store=False))

    one, two = engine.jobs
    assert two.token_ids[: len(one.token_ids)] == one.token_ids
    assert two.session_id == one.session_id
    assert await count(db, Response) == 1


async def test_a_persona_stays_through_turns_in_memory(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        conversation = await domain.conversations.create(ann.user_id)
        previous = (await domain.say(ann, conversation.id, "one")).response
        for text in ("two", "three"):
            previous = await domain.respond(ann, text, previous, store=False)
            await domain.ended(ann, previous)

    head_end = engine.jobs[0].zones[1].end
    assert len({job.token_ids[:head_end] for job in engine.jobs}) == 1


async def test_what_was_not_stored_cannot_be_the_parent_of_what_is(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        first = await domain.respond(ann, "one", store=False)
        await domain.ended(ann, first)
        with pytest.raises(InvalidRequest, match="store: false"):
            await domain.respond(ann, "two", first)


async def test_memory_lets_the_oldest_of_a_user_go(db: Database, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory, "KEPT_RESPONSES_PER_USER", 3)
    async with open_domain(db, EchoEngine()) as domain:
        ann, ben = await new_person(db), await new_person(db)
        theirs = await domain.respond(ben, "hers", store=False)
        await domain.ended(ben, theirs)
        mine = []
        for n in range(5):
            mine.append(await domain.respond(ann, f"{n}", store=False))
            await domain.ended(ann, mine[-1])
        for gone in mine[:2]:
            with pytest.raises(NotFound):
                await domain.respond(ann, "more", gone, store=False)
        for kept, owner in ((mine[2], ann), (mine[4], ann), (theirs, ben)):
            response = await domain.respond(owner, "more", kept, store=False)
            await domain.ended(owner, response)


async def test_memory_lets_the_oldest_of_all_go(db: Database, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory, "KEPT_RESPONSES", 2)
    async with open_domain(db, EchoEngine()) as domain:
        people = [await new_person(db) for _ in range(3)]
        responses = []
        for who in people:
            responses.append(await domain.respond(who, "hello", store=False))
            await domain.ended(who, responses[-1])
        with pytest.raises(NotFound):
            await domain.respond(people[0], "more", responses[0], store=False)
        last = await domain.respond(people[2], "more", responses[2], store=False)
        await domain.ended(people[2], last)


# ---------------------------------------------------------------- the tree, deleting


async def test_16_a_fork_shares_the_path_and_rewrites_nothing(db: Database):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        root = await domain.respond(ann, "root")
        await domain.ended(ann, root)
        before = await domain.nodes(root.message_id)
        left, right = [await domain.respond(ann, text, root) for text in ("left", "right")]
        for response in (left, right):
            await domain.ended(ann, response)
        paths = [await domain.nodes(one.message_id) for one in (left, right)]

    assert paths[0][:2] == paths[1][:2] == before
    assert [path[2].text for path in paths] == ["left", "right"]
    _, one, two = engine.jobs
    shared = len(engine.jobs[0].token_ids) + REPLY_TOKENS + 1
    assert one.token_ids[:shared] == two.token_ids[:shared]


async def test_a_deleted_response_is_gone_and_its_history_stays(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        first = await domain.respond(ann, "one")
        await domain.ended(ann, first)
        second = await domain.respond(ann, "two", first)
        await domain.ended(ann, second)
        await domain.supervisor.delete_response(ann, first.id)
        for attempt in (
            domain.supervisor.response(ann, first.id),
            domain.supervisor.log(ann, first.id),
            domain.supervisor.delete_response(ann, first.id),
            domain.respond(ann, "more", first),
        ):
            with pytest.raises(NotFound):
                await attempt
        await domain.ended(ann, await domain.respond(ann, "three", second))
        assert len(await domain.nodes(second.message_id)) == 4


async def test_the_last_response_of_an_api_conversation_takes_it_along(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        response = await domain.respond(ann, "one")
        await domain.ended(ann, response)
        await domain.supervisor.delete_response(ann, response.id)

    assert await count(db, Conversation) == await count(db, Message) == 0


@pytest.mark.parametrize("store", [True, False])
async def test_01_the_last_response_that_is_deleted_takes_the_kv_along(
    db: Database, *, store: bool
):
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        first = await domain.respond(ann, "one", store=store)
        await domain.ended(ann, first)
        second = await domain.respond(ann, "two", first, store=store)
        await domain.ended(ann, second)
        await domain.supervisor.delete_response(ann, first.id)
        while_one_is_left = list(engine.leases)
        await domain.supervisor.delete_response(ann, second.id)

    (session_id,) = {job.session_id for job in engine.jobs}
    assert while_one_is_left == []
    ((subject, wish),) = engine.leases
    assert subject.subject_id == session_id
    assert isinstance(wish, Forget)


async def test_a_live_response_is_stopped_and_then_deleted(db: Database):
    engine = EchoEngine()
    engine.hold()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        for store in (True, False):
            response = await domain.respond(ann, "one", store=store)
            log = await domain.supervisor.log(ann, response.id)
            await domain.supervisor.delete_response(ann, response.id)
            assert log.ended
            with pytest.raises(NotFound):
                await domain.supervisor.response(ann, response.id)


async def test_a_deleted_conversation_stops_what_runs_and_forgets_its_kv(db: Database):
    engine = EchoEngine()
    engine.hold()
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        conversation = await domain.conversations.create(ann.user_id)
        accepted = await domain.send(ann, conversation.id, "hello")
        log = await domain.supervisor.log(ann, accepted.response.id)
        await domain.supervisor.delete_conversation(ann, conversation.id)
        live = domain.supervisor.live_turns

    assert live == 0
    assert log.response.status is ResponseStatus.CANCELLED
    ((subject, wish),) = engine.leases
    assert (subject.kind, subject.subject_id) == (SubjectKind.SESSION, conversation.id)
    assert wish == Forget()
    assert await count(db, Message) == await count(db, Response) == 0


# ---------------------------------------------------------------- whose is it


async def test_19_anothers_response_and_an_unknown_one_look_the_same(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann, ben = await new_person(db), await new_person(db)
        stored = await domain.respond(ann, "stored")
        hidden = await domain.respond(ann, "hidden", store=False)
        for response in (stored, hidden):
            await domain.ended(ann, response)
        supervisor, refusals = domain.supervisor, set()
        for response_id in (stored.id, hidden.id, ResponseId("resp_none")):
            for attempt in (
                supervisor.cancel(ben, response_id),
                supervisor.response(ben, response_id),
                supervisor.input_items(ben, response_id),
                supervisor.log(ben, response_id),
                supervisor.delete_response(ben, response_id),
            ):
                with pytest.raises(NotFound) as refused:
                    await attempt
                refusals.add((refused.value.message, refused.value.code, refused.value.field))
            for store in (True, False):
                with pytest.raises(NotFound, match="no such response"):
                    await domain.respond(ben, "more", response_id, store=store)

        assert len(refusals) == 1
        assert supervisor.live(ben, stored.conversation_id or ConversationId("")) == ()


async def test_19_a_parent_from_another_conversation_is_not_found(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann, ben = await new_person(db), await new_person(db)
        theirs = await domain.respond(ben, "hers")
        await domain.ended(ben, theirs)
        mine = await domain.conversations.create(ann.user_id)
        for parent_id in (theirs.message_id, MessageId("msg_none")):
            with pytest.raises(NotFound, match="no such message"):
                await domain.send(ann, mine.id, "hello", parent_id=parent_id)


async def test_an_ended_log_is_rebuilt_from_storage(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        response = await domain.respond(ann, "hello")
        end = await domain.ended(ann, response)
        domain.logs.drop(response.id)
        events = await domain.events(ann, response)

    last = events[-1]
    assert isinstance(last, ResponseEnded)
    assert (last.response, last.text) == (end.response, end.text)
    assert len(events) == 9


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "not stored"])
async def test_17_a_turn_whose_acknowledgement_was_lost_is_no_answer_for_ever(
    db: Database, monkeypatch: pytest.MonkeyPatch, *, stored: bool
):
    """The database went away between its commit and its word, or just before: nobody knows which."""
    engine, write, losses = EchoEngine(), db.write, iter([True])
    engine.hold()

    async def write_unheard(work: Callable[[Session], T]) -> T:
        is_lost = next(losses, False)
        if is_lost and not stored:
            raise Unavailable("The database is away.")
        done = await write(work)
        if is_lost:
            raise Unavailable("The database is away.")
        return done

    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        conversation = await domain.conversations.create(ann.user_id)
        monkeypatch.setattr(db, "write", write_unheard)
        with pytest.raises(Unavailable):
            await domain.send(ann, conversation.id, "hello", client_message_id="c1")
        while domain.supervisor.live_turns:  # noqa: ASYNC110  what is waited for has no event
            await asyncio.sleep(0)
        engine.release()
        again = await domain.send(ann, conversation.id, "hello", client_message_id="c1")
        end = await domain.ended(ann, again.response)
        later = await domain.say(ann, conversation.id, "go on")
        used = {one.kind: one.used for one in await domain.usage.of(ann.user_id)}

    assert again.fresh is not stored
    reason = "interrupted" if stored else None
    assert end.response.incomplete_reason == reason
    assert later.response.status is ResponseStatus.COMPLETED
    assert (used[QuotaKind.REQUESTS], used[QuotaKind.GENERATIONS]) == (2, 0)
