"""The nine calls of `Engine`, held alike by an engine in this process and one in its own."""

import contextlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, aclosing

import pytest
import pytest_asyncio

from engine.api import (
    CacheEvent,
    Delta,
    Engine,
    Finished,
    FinishReason,
    Forget,
    Hold,
    JobId,
    Limits,
    Message,
    OwnerId,
    RenderRequest,
    RetentionClass,
    Role,
    Sampling,
    Seam,
    Stability,
    Started,
    Subject,
    SubjectKind,
)
from engine.errors import EngineClosed, Refused
from tests.kit.engines import Chat, Outcome, a_job, first_prompt, fork_remote, open_local, play

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPENERS: dict[str, Callable[..., AbstractAsyncContextManager[Engine]]] = {
    "local": open_local,
    "remote": fork_remote,
}


@pytest_asyncio.fixture(params=OPENERS, scope="module", loop_scope="module")
async def engine(request):
    async with OPENERS[request.param]() as engine:
        yield engine


async def test_info_names_the_model_its_limits_and_a_stable_template(engine):
    card = await engine.info()

    assert (card.dtype, card.block_tokens, card.pool_blocks) == ("float32", 16, 256)
    assert card.context_tokens == 1024
    assert card.template.stability is Stability.STABLE
    assert card.boot_id


async def test_rendering_new_messages_behind_old_ids_equals_rendering_the_whole(engine):
    question, reply, more = (
        Message(role=Role.USER, text="Name a cat."),
        Message(role=Role.ASSISTANT, text="Tom"),
        Message(role=Role.USER, text="Another?"),
    )

    head = await engine.render(_request(question, reply, seam=Seam.START, opens_reply=False))
    tail = await engine.render(_request(more, seam=Seam.CLOSED))
    whole = await engine.render(_request(question, reply, more, seam=Seam.START))

    assert head.token_ids + tail.token_ids == whole.token_ids


@pytest.mark.parametrize(
    "messages",
    [
        (),
        (Message(role=Role.USER, text="half a pair: \ud800"),),
        (Message(role=Role.ASSISTANT, text="first"), Message(role=Role.SYSTEM, text="last")),
    ],
    ids=["none", "half a surrogate pair", "no order of roles"],
)
async def test_messages_are_rendered_or_refused(engine, messages):
    with contextlib.suppress(Refused):
        await engine.render(_request(*messages, seam=Seam.START))

    assert (await engine.stats()).boot_id == (await engine.info()).boot_id


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=-1.0),
        Sampling(temperature=float("nan")),
        Sampling(top_p=0.0),
        Sampling(top_k=-1),
        Sampling(repetition_penalty=0.0),
        Sampling(logprobs=1 << 20),
    ],
)
async def test_sampling_that_no_sampler_can_follow_is_refused_by_its_field(engine, sampling):
    outcome = await play(engine, a_job((1, 2, 3), sampling=sampling))

    assert outcome.finished.refusal is not None
    assert outcome.finished.refusal.code == "invalid_job"
    assert (outcome.finished.refusal.field or "").startswith("sampling.")


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1e-9),
        Sampling(temperature=100.0, top_p=1e-9),
        Sampling(top_k=1, min_p=1.0, seed=-(1 << 63)),
        Sampling(repetition_penalty=100.0, presence_penalty=-100.0, logprobs=20),
    ],
)
async def test_sampling_at_the_bounds_is_followed(engine, sampling):
    outcome = await play(engine, a_job((1, 2, 3), sampling=sampling))

    assert outcome.finished.reason in (FinishReason.LENGTH, FinishReason.STOP)


async def test_a_job_starts_sends_its_output_and_finishes_once(engine):
    prompt = await first_prompt(engine, "Say hello.")

    outcome = await play(engine, a_job(prompt))

    kinds = [type(event) for event in outcome.events]
    assert kinds[0] is Started
    assert kinds[-1] is Finished
    assert set(kinds[1:-1]) == {Delta}
    assert outcome.sent_ids == outcome.token_ids
    assert outcome.finished.reason in (FinishReason.LENGTH, FinishReason.STOP)
    assert outcome.text


async def test_a_receipt_adds_up(engine):
    prompt = await first_prompt(engine, "What is a receipt?")

    receipt = (await play(engine, a_job(prompt))).receipt
    again = (await play(engine, a_job(prompt))).receipt

    assert receipt.prompt_tokens == receipt.cached_tokens + receipt.computed_tokens == len(prompt)
    assert receipt.output_tokens == 8
    assert again.cached_tokens == len(prompt) - 1
    assert receipt.first_token_s is not None
    assert receipt.total_s >= receipt.first_token_s > 0
    assert receipt.boot_id == (await engine.info()).boot_id


async def test_equal_seeds_draw_equal_output_and_others_do_not(engine):
    prompt = await first_prompt(engine, "Tell me a story.")
    seeds = [3, 3, 4]

    drawn = [
        (await play(engine, a_job(prompt, sampling=Sampling(seed=seed)))).token_ids
        for seed in seeds
    ]

    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


async def test_logprobs_name_the_chosen_and_the_best_tokens(engine):
    prompt = await first_prompt(engine, "Say hello.")

    outcome = await play(engine, a_job(prompt, sampling=Sampling(temperature=0.0, logprobs=2)))

    deltas = [event for event in outcome.events if isinstance(event, Delta)]
    logprobs = [logprobs for delta in deltas for logprobs in delta.logprobs]
    assert tuple(item.chosen.token_id for item in logprobs) == outcome.token_ids
    assert all(item.top[0] == item.chosen for item in logprobs)
    assert all(len(item.top) == 2 and item.chosen.logprob <= 0 for item in logprobs)
    assert logprobs[0].chosen.token == outcome.text[: len(logprobs[0].chosen.token)]


async def test_a_stop_string_across_token_borders_ends_the_reply_before_it(engine):
    prompt = await first_prompt(engine, "Count from one to ten in words.")
    whole = (await play(engine, a_job(prompt, limits=Limits(max_output_tokens=24)))).text
    stop = whole[9:17]

    limits = Limits(max_output_tokens=24, stop=(stop,))
    outcome = await play(engine, a_job(prompt, limits=limits))

    assert outcome.text == whole[: whole.index(stop)]
    assert outcome.finished.reason is FinishReason.STOP
    assert outcome.finished.seam is Seam.CUT
    assert outcome.receipt.output_tokens == len(outcome.token_ids) < 24


async def test_a_stop_string_in_the_very_last_token_counts_as_a_stop(engine):
    prompt = await first_prompt(engine, "Count from one to ten in words.")
    whole = (await play(engine, a_job(prompt, limits=Limits(max_output_tokens=6)))).text

    limits = Limits(max_output_tokens=6, stop=(whole[-2:],))
    outcome = await play(engine, a_job(prompt, limits=limits))

    assert outcome.text == whole[: whole.index(whole[-2:])]
    assert outcome.finished.reason is FinishReason.STOP


async def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(engine):
    outcome = await play(engine, a_job((5,) * 2000))

    refusal = outcome.finished.refusal
    assert outcome.finished.reason is FinishReason.REFUSED
    assert outcome.finished.receipt is None
    assert refusal is not None
    assert refusal.code == "prompt_too_long"
    assert refusal.needed_tokens is not None
    assert refusal.needed_tokens >= 2000
    assert refusal.limit_tokens == 1024


@pytest.mark.parametrize(
    ("token_ids", "changes"),
    [
        ((), {}),
        ((1, 1 << 31), {}),
        ((-1, 2), {}),
        ((1, 2), {"zones": ()}),
        ((1, 2), {"sampling": Sampling(seed=1 << 80)}),
    ],
)
async def test_a_job_that_breaks_the_contract_is_refused(engine, token_ids, changes):
    outcome = await play(engine, a_job(token_ids, **changes))

    assert outcome.finished.reason is FinishReason.REFUSED
    assert outcome.finished.refusal is not None
    assert outcome.finished.refusal.code == "invalid_job"


async def test_a_job_id_that_runs_already_is_refused_and_the_first_goes_on(engine):
    prompt = await first_prompt(engine, "Say hello.")
    job = a_job(prompt)

    async with aclosing(engine.generate(job)) as events:
        first = [await anext(events)]
        double = await play(engine, job)
        first += [event async for event in events]

    assert double.finished.reason is FinishReason.REFUSED
    assert Outcome(events=tuple(first)).finished.reason is not FinishReason.REFUSED


async def test_a_cancelled_job_keeps_what_it_said_and_frees_what_it_held(engine):
    prompt = await first_prompt(engine, "Tell me a long story.")
    job = a_job(prompt, limits=Limits(max_output_tokens=500, ignore_eos=True))

    events = []
    async for event in engine.generate(job):
        events.append(event)
        if isinstance(event, Delta) and len(events) == 3:
            cancelled = await engine.cancel(job.job_id)
            again = await engine.cancel(job.job_id)

    outcome = Outcome(events=tuple(events))
    stats = await engine.stats()
    assert cancelled.step is not None
    assert again.job_id == job.job_id
    assert outcome.finished.reason is FinishReason.CANCELLED
    assert outcome.sent_ids == outcome.token_ids
    assert 0 < len(outcome.token_ids) < 500
    assert (stats.running_jobs, stats.waiting_jobs, stats.blocks.in_use) == (0, 0, 0)


async def test_cancelling_what_nobody_knows_is_no_error(engine):
    assert (await engine.cancel(JobId("nobody"))).step is None


@pytest.mark.row("engine 23")
async def test_dropping_the_iterator_cancels_the_job(engine):
    prompt = await first_prompt(engine, "Tell me a long story.")
    job = a_job(prompt, limits=Limits(max_output_tokens=500, ignore_eos=True))

    async with aclosing(engine.generate(job)) as events:
        await anext(events)
    stats = await engine.stats()

    assert (stats.running_jobs, stats.waiting_jobs, stats.blocks.in_use) == (0, 0, 0)


async def test_18_a_reader_who_does_not_read_holds_up_nobody_and_loses_nothing(engine):
    prompt = await first_prompt(engine, "Name ten animals.")
    limits = Limits(max_output_tokens=12, ignore_eos=True)
    undisturbed = await play(engine, a_job(prompt, limits=limits))

    async with aclosing(engine.generate(a_job(prompt, limits=limits))) as events:
        unread = [await anext(events)]
        await play(engine, a_job(prompt, limits=Limits(max_output_tokens=20, ignore_eos=True)))
        unread += [event async for event in events]

    slow = Outcome(events=tuple(unread))
    assert (slow.token_ids, slow.text) == (undisturbed.token_ids, undisturbed.text)
    assert len(slow.events) < len(undisturbed.events)


async def test_a_lease_is_granted_and_forgotten(engine):
    chat = Chat(engine, owner="lea")
    await chat.say("Remember me.")
    subject = Subject(kind=SubjectKind.SESSION, subject_id=chat.session_id, owner_id=OwnerId("lea"))

    held = await engine.lease(subject, Hold(retention=RetentionClass.LIVE, ttl_s=60.0))
    known = (await engine.snapshot()).sessions
    forgotten = await engine.lease(subject, Forget())

    assert held.retention is RetentionClass.LIVE
    assert held.pinned_blocks > 0
    assert chat.session_id in {view.session_id for view in known}
    assert forgotten.pinned_blocks == 0
    assert chat.session_id not in {view.session_id for view in (await engine.snapshot()).sessions}


async def test_05_the_blocks_of_stats_and_snapshot_sum_to_the_pool(engine):
    pool_blocks = (await engine.info()).pool_blocks

    assert (await engine.stats()).blocks.total == pool_blocks
    assert (await engine.snapshot()).blocks.total == pool_blocks


async def test_it_tells_what_it_runs_on_and_how_much_memory_is_there(engine):
    card, found = await engine.info(), (await engine.stats()).hardware

    assert found is not None and found.processor
    assert 2**26 < found.resident_bytes < found.machine_bytes
    assert 0 < found.free_bytes < found.machine_bytes
    assert (found.gpu is None) == (card.device == "cpu")


async def test_a_watcher_sees_numbered_changes(engine):
    before = (await engine.snapshot()).sequence_number
    prompt = await first_prompt(engine, "A prompt that nobody sent before.")

    await play(engine, a_job(prompt))
    async with aclosing(engine.watch(before)) as changes:
        first = await anext(changes)

    assert isinstance(first, CacheEvent)
    assert first.sequence_number == before + 1


@pytest.mark.parametrize("opener", OPENERS)
async def test_closing_ends_what_runs_and_every_later_call(opener):
    async with OPENERS[opener]() as engine:
        prompt = await first_prompt(engine, "Tell me a long story.")
        job = a_job(prompt, limits=Limits(max_output_tokens=900, ignore_eos=True))
        running = engine.generate(job)
        events = [await anext(running)]

        await engine.aclose()
        events += [event async for event in running]

        assert Outcome(events=tuple(events)).finished.reason is FinishReason.CANCELLED
        for call in (engine.info, engine.stats, engine.snapshot):
            with pytest.raises(EngineClosed):
                await call()
        with pytest.raises(EngineClosed):
            await play(engine, job)
        await engine.aclose()


def _request(*messages: Message, seam: Seam, opens_reply: bool = True) -> RenderRequest:
    return RenderRequest(messages=messages, seam=seam, opens_reply=opens_reply)
