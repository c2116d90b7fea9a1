"""One turn on an engine whose every beat the test decides: stopping, failing, ending."""

import asyncio

import pytest

from app.chat import turns
from app.chat.ledger import Act
from app.chat.stored import StoredLedger
from app.db.base import Database
from app.errors import NotFound, PromptTooLong
from app.events import ResponseEnded, ResponseStatus, ResponseView, TextDelta
from app.ids import ConversationId, ResponseId
from app.people.accounts import Principal
from engine.api import Cancelled, Limits, Refusal, Seam
from engine.errors import EngineLost
from tests.kit.domain import Domain, new_person, open_domain
from tests.kit.echo import CARD, FIRST_CHARACTER, EchoEngine


async def started(
    domain: Domain, text: str = "hello", **more: object
) -> tuple[Principal, ConversationId, ResponseView]:
    """A turn that was accepted, in a conversation of its own."""
    ann = await new_person(domain.db)
    conversation = await domain.conversations.create(ann.user_id)
    accepted = await domain.send(ann, conversation.id, text, **more)  # type: ignore[arg-type]
    return ann, conversation.id, accepted.response


@pytest.mark.parametrize("handed_in", [False, True])
async def test_15_a_turn_that_is_still_being_stored_is_stopped(
    db: Database, monkeypatch: pytest.MonkeyPatch, handed_in: bool
):
    """Its conversation may be deleted in that moment; what the engine has not heard of, it never hears."""
    accept, stored, go_on = StoredLedger.accept, asyncio.Event(), asyncio.Event()

    async def accept_slowly(self, entry, ask, written):
        acceptance = await accept(self, entry, ask, written if handed_in else lambda: None)
        stored.set()
        await go_on.wait()
        return acceptance

    monkeypatch.setattr(StoredLedger, "accept", accept_slowly)
    engine = EchoEngine()
    engine.hold()
    async with open_domain(db, engine) as domain, asyncio.TaskGroup() as tasks:
        ann = await new_person(db)
        conversation = await domain.conversations.create(ann.user_id)
        sending = tasks.create_task(domain.send(ann, conversation.id, "hello"))
        await stored.wait()
        (response,) = domain.supervisor.live(ann, conversation.id)
        stopping = tasks.create_task(domain.supervisor.cancel(ann, response.id))
        await asyncio.sleep(0)
        go_on.set()
        step = await stopping
        end = await domain.ended(ann, (await sending).response)

    assert step == (0 if handed_in else None)
    assert len(engine.jobs) == int(handed_in)
    assert end.response.status is ResponseStatus.CANCELLED
    assert end.text == ""


async def test_15_a_turn_is_stopped_before_its_first_token(db: Database):
    engine = EchoEngine()
    engine.hold()
    async with open_domain(db, engine) as domain:
        ann, _, response = await started(domain)
        await engine.submitted.wait()
        step = await domain.supervisor.cancel(ann, response.id)
        end = await domain.ended(ann, response)

    assert step == engine.step == 0
    assert end.response.status is ResponseStatus.CANCELLED
    assert end.text == ""


async def test_15_a_stopped_answer_keeps_its_text_and_is_continued(db: Database):
    engine = EchoEngine()
    engine.hold(after_beats=4)
    async with open_domain(db, engine) as domain:
        ann, conversation_id, response = await started(domain)
        await domain.until(ann, response, TextDelta, times=3)
        step = await domain.supervisor.cancel(ann, response.id)
        end = await domain.ended(ann, response)
        engine.release()
        await domain.say(ann, conversation_id, "go on")
        reply = (await domain.nodes(response.message_id))[-1]

    assert step == engine.jobs[0].limits.min_output_tokens + 3
    assert len(end.text) == len(reply.token_ids) == 3
    assert (reply.text, reply.seam) == (end.text, Seam.CUT)
    assert engine.jobs[1].token_ids[: len(engine.jobs[0].token_ids) + 3] == (
        engine.jobs[0].token_ids + reply.token_ids
    )


async def test_15_stopping_twice_is_stopping_once(db: Database):
    engine = EchoEngine()
    engine.hold(after_beats=2)
    async with open_domain(db, engine) as domain:
        ann, _, response = await started(domain)
        await domain.until(ann, response, TextDelta)
        steps = await asyncio.gather(
            *(domain.supervisor.cancel(ann, response.id) for _ in range(5))
        )
        late = await domain.supervisor.cancel(ann, response.id)
        events = await domain.events(ann, response)

    assert steps == [1] * 5
    assert late is None
    assert [type(event) for event in events].count(ResponseEnded) == 1


async def test_15_a_wish_that_overtakes_its_job_is_still_honoured(db: Database):
    """The engine hears of the cancel before it hears of the job, and says it knows none."""

    class Overtaking(EchoEngine):
        heard = 0

        async def cancel(self, job_id):
            self.heard += 1
            if self.heard > 1:
                return await super().cancel(job_id)
            self.release()
            return Cancelled(job_id=job_id, step=None)

    engine = Overtaking()
    engine.hold()
    async with open_domain(db, engine) as domain:
        ann, _, response = await started(domain)
        await engine.submitted.wait()
        await domain.supervisor.cancel(ann, response.id)
        end = await domain.ended(ann, response)

    assert end.response.status is ResponseStatus.CANCELLED
    assert engine.heard == 2


async def test_15_an_answer_that_ended_by_itself_stays_as_it_ended(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann, _, response = await started(domain)
        end = await domain.ended(ann, response)
        step = await domain.supervisor.cancel(ann, response.id)
        after = await domain.supervisor.response(ann, response.id)

    assert step is None
    assert after.view == end.response
    assert after.view.status is ResponseStatus.COMPLETED


async def test_an_answer_that_the_engine_stopped_was_interrupted(db: Database):
    engine = EchoEngine()
    engine.hold(after_beats=2)
    async with open_domain(db, engine) as domain:
        ann, _, response = await started(domain)
        await domain.until(ann, response, TextDelta)
        await engine.cancel(engine.jobs[0].job_id)
        end = await domain.ended(ann, response)

    assert end.response.status is ResponseStatus.INCOMPLETE
    assert end.response.incomplete_reason == "interrupted"


async def test_an_answer_that_ran_out_of_tokens_is_incomplete(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann, _, response = await started(domain, max_tokens=3)
        end = await domain.ended(ann, response)

    assert end.response.status is ResponseStatus.INCOMPLETE
    assert end.response.incomplete_reason == "max_output_tokens"
    assert end.response.usage is not None
    assert end.response.usage.output_tokens == 3


@pytest.mark.parametrize(
    ("most", "reason"), [(None, "context_full"), (8, "context_full"), (3, "max_output_tokens")]
)
async def test_an_answer_that_the_context_ends_is_told_from_one_that_its_limit_ends(
    db: Database, most: int | None, reason: str
):
    """Neither is taken up again: there is no room for another word."""
    engine = EchoEngine()
    async with open_domain(db, engine) as domain:
        ann, _, response = await started(domain, "")
        await domain.ended(ann, response)
        text = "x" * (CARD.context_tokens - len(engine.jobs[0].token_ids) - 3)
        ann, _, response = await started(domain, text, max_tokens=most)
        end = await domain.ended(ann, response)
        with pytest.raises(PromptTooLong) as refused:
            await domain.act(ann, Act.CONTINUE, end.response)

    assert end.response.status is ResponseStatus.INCOMPLETE
    assert end.response.incomplete_reason == reason
    assert len(end.text) == 3
    assert (refused.value.needed_tokens, refused.value.field) == (CARD.context_tokens + 1, "input")


async def test_a_message_that_is_too_long_by_itself_is_told_from_a_full_conversation(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        made = await domain.conversations.create(ann.user_id)
        await domain.say(ann, made.id, "x" * 900)
        with pytest.raises(PromptTooLong) as full:
            await domain.say(ann, made.id, "x" * 900)
        with pytest.raises(PromptTooLong) as alone:
            await domain.say(ann, made.id, "x" * CARD.context_tokens)

    assert (full.value.field, alone.value.field) == ("input", "text")


async def test_the_usage_is_the_receipts(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann, conversation_id, response = await started(domain)
        await domain.ended(ann, response)
        view = (await domain.say(ann, conversation_id, "more")).response

    assert view.receipt is not None
    assert view.usage is not None
    assert view.usage.input_tokens == view.receipt.prompt_tokens
    assert view.usage.cached_tokens == view.receipt.cached_tokens > 0
    assert view.usage.output_tokens == view.receipt.output_tokens


async def test_a_lost_engine_fails_the_turn_without_telling_its_inside(db: Database):
    engine = EchoEngine()
    engine.hold(after_beats=3)
    async with open_domain(db, engine) as domain:
        ann, conversation_id, response = await started(domain)
        await domain.until(ann, response, TextDelta, times=2)
        engine.fails_with = EngineLost("process 4711 died of signal 9")
        engine.release()
        end = await domain.ended(ann, response)
        engine.fails_with = None
        after = await domain.say(ann, conversation_id, "again")
        reply = (await domain.nodes(response.message_id))[-1]

    assert end.response.status is ResponseStatus.FAILED
    assert end.response.error is not None
    assert end.response.error.code == "server_error"
    assert "4711" not in end.response.error.message
    assert (len(end.text), len(reply.token_ids), reply.seam) == (2, 2, Seam.CUT)
    assert after.response.status is ResponseStatus.COMPLETED


async def test_one_turns_fault_does_not_end_the_others(db: Database):
    engine = EchoEngine()
    engine.hold(after_beats=2)
    async with open_domain(db, engine) as domain:
        ann, _, first = await started(domain)
        await domain.until(ann, first, TextDelta)
        engine.fails_with = RuntimeError("a fault of ours")
        engine.release()
        failed = await domain.ended(ann, first)
        engine.fails_with = None
        ben, _, second = await started(domain)
        completed = await domain.ended(ben, second)

    assert failed.response.status is ResponseStatus.FAILED
    assert completed.response.status is ResponseStatus.COMPLETED


@pytest.mark.parametrize(
    ("refusal", "code", "words"),
    [
        (
            Refusal(code="prompt_too_long", message="no", needed_tokens=70, limit_tokens=64),
            "context_length_exceeded",
            ("70", "64"),
        ),
        (
            Refusal(code="overloaded", message="The queue is full.", retry_after_s=2.0),
            "rate_limit_exceeded",
            ("The queue is full.",),
        ),
        (Refusal(code="invalid_job", message="Empty."), "invalid_prompt", ("Empty.",)),
        (Refusal(code="new_word", message="inside"), "server_error", ("server failed",)),
    ],
    ids=lambda value: value.code if isinstance(value, Refusal) else "",
)
async def test_a_refused_job_fails_with_a_problem_of_its_own(
    db: Database, refusal: Refusal, code: str, words: tuple[str, ...]
):
    engine = EchoEngine()
    engine.refusal = refusal
    async with open_domain(db, engine) as domain:
        ann, _, response = await started(domain)
        problem = (await domain.ended(ann, response)).response.error

    assert problem is not None
    assert (problem.code, problem.retry_after_s) == (code, refusal.retry_after_s)
    assert all(word in problem.message for word in words)


async def test_a_prompt_that_cannot_fit_leaves_nothing_behind(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        conversation = await domain.conversations.create(ann.user_id)
        with pytest.raises(PromptTooLong) as refused:
            await domain.send(ann, conversation.id, "x" * CARD.context_tokens)

        assert refused.value.limit_tokens == CARD.context_tokens
        assert refused.value.needed_tokens > CARD.context_tokens
        assert await domain.conversations.messages(ann.user_id, conversation.id) == ()


async def test_17_an_end_is_stored_before_it_is_told(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann, _, response = await started(domain)
        end = await domain.ended(ann, response)
        stored = await StoredLedger(db, domain.usage).response(ann.user_id, response.id)

    assert stored is not None
    assert stored.view == end.response
    assert stored.text == end.text


async def test_17_an_end_that_meets_a_full_disk_is_stored_later(
    db: Database, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(turns, "STORE_AGAIN_S", (0.0, 0.0))
    finish = StoredLedger.finish
    faults = [OSError("No space left on device"), OSError("No space left on device")]

    async def finish_at_last(self, outcome):
        if faults:
            raise faults.pop()
        await finish(self, outcome)

    monkeypatch.setattr(StoredLedger, "finish", finish_at_last)
    async with open_domain(db, EchoEngine()) as domain:
        ann, _, response = await started(domain)
        end = await domain.ended(ann, response)
        stored = await StoredLedger(db, domain.usage).response(ann.user_id, response.id)

    assert end.response.status is ResponseStatus.COMPLETED
    assert stored is not None
    assert stored.text == end.text


async def test_a_warm_up_completes_without_an_item(db: Database):
    async with open_domain(db, EchoEngine()) as domain:
        ann = await new_person(db)
        response = await domain.respond(ann, "context", generate=False)
        events = await domain.events(ann, response)

    assert [type(event).__name__ for event in events] == [
        "ResponseCreated",
        "ResponseInProgress",
        "ResponseEnded",
    ]
    last = events[-1]
    assert isinstance(last, ResponseEnded)
    assert last.response.status is ResponseStatus.COMPLETED
    assert last.response.message_id == response.parent_id


async def test_the_limits_and_the_sampling_reach_the_engine(db: Database):
    engine = EchoEngine()
    limits = Limits(max_output_tokens=2, ignore_eos=True, min_output_tokens=2, stop=("x",))
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        response = await domain.respond(ann, "hello", limits=limits, metadata={"a": "b"})
        await domain.ended(ann, response)
        stored = await domain.supervisor.response(ann, response.id)

    assert engine.jobs[0].limits == stored.asked.limits == limits
    assert engine.jobs[0].sampling == stored.asked.sampling
    assert stored.asked.metadata == {"a": "b"}
    assert all(one >= FIRST_CHARACTER for one in (await _ids(domain, response)))


async def _ids(domain: Domain, response: ResponseView) -> tuple[int, ...]:
    return (await domain.nodes(response.message_id))[-1].token_ids


async def test_19_stopping_anothers_turn_finds_nothing(db: Database):
    engine = EchoEngine()
    engine.hold()
    async with open_domain(db, engine) as domain:
        _, _, response = await started(domain)
        ben = await new_person(db)
        for response_id in (response.id, ResponseId("resp_none")):
            with pytest.raises(NotFound, match="There is no such response"):
                await domain.supervisor.cancel(ben, response_id)

        assert domain.supervisor.live_turns == 1
