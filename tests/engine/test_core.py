"""Plan and commit: a job's road from submission to its receipt, and every way to leave it."""

import msgspec
import pytest

from engine.api import (
    OPERATOR_SCOPE,
    CachedBySource,
    CacheSource,
    FinishReason,
    Forget,
    Hold,
    JobId,
    Limits,
    MissReason,
    OwnerId,
    RetentionClass,
    Sampling,
    Scope,
    Seam,
    Subject,
    SubjectKind,
    Zone,
)
from engine.core import Core
from engine.errors import Corrupt, InvalidJob, Misconfigured, PromptTooLong
from engine.step import BlockId, DrawnToken, RunResult, StepResult
from tests.kit.desk import ANN, BEN, Desk, config
from tests.kit.paper import EOS_TOKEN_ID, answer, fingerprints, next_token

TEXT = [2 + at * 5 % 90 for at in range(40)]


def text_that_ends_the_reply() -> list[int]:
    """A prompt after which the paper model says its end-of-turn token at once."""
    for last in range(2, 97):
        for before in range(2, 97):
            *_, print_ = fingerprints([*TEXT, before, last])
            if next_token(print_) == EOS_TOKEN_ID:
                return [*TEXT, before, last]
    raise AssertionError("the paper model never ends")


ENDING = text_that_ends_the_reply()


def test_a_reply_is_the_models_and_ends_at_its_limit():
    desk = Desk()
    job = desk.job(TEXT, output=20)

    ended = desk.run(job)

    assert ended.token_ids == answer(TEXT, 20, (EOS_TOKEN_ID,))
    assert (ended.reason, ended.seam) == (FinishReason.LENGTH, Seam.CUT)
    assert tuple(desk.emitted[job.job_id]) == ended.token_ids


def test_an_end_of_turn_token_is_part_of_the_reply_and_ends_it():
    desk = Desk()

    ended = desk.run(desk.job(ENDING, limits=Limits(max_output_tokens=9)))

    assert ended.token_ids == (EOS_TOKEN_ID,)
    assert (ended.reason, ended.seam) == (FinishReason.STOP, Seam.STOPPED)


@pytest.mark.parametrize("limits", [{"ignore_eos": True}, {"min_output_tokens": 3}])
def test_an_end_of_turn_token_is_not_drawn_while_it_is_banned(limits):
    desk = Desk()

    ended = desk.run(desk.job(ENDING, limits=Limits(max_output_tokens=3, **limits)))

    assert len(ended.token_ids) == 3
    assert EOS_TOKEN_ID not in ended.token_ids


def test_a_reply_without_a_limit_fills_the_context():
    desk = Desk(config(context_tokens=64))

    ended = desk.run(desk.job(TEXT, output=None))

    assert len(ended.token_ids) == 24
    assert ended.reason is FinishReason.LENGTH


def test_a_warm_up_computes_its_whole_prompt_and_says_nothing():
    desk = Desk()

    cold = desk.run(desk.job(TEXT, output=0))
    warm = desk.run(desk.job(TEXT, output=0))

    assert (cold.reason, cold.token_ids) == (FinishReason.LENGTH, ())
    assert (cold.receipt.computed_tokens, warm.receipt.cached_tokens) == (40, 40)
    assert warm.receipt.first_token_s is None
    assert desk.paper.computed_tokens == 40


def test_warm_ups_that_are_cached_do_not_hide_who_waits_behind_them():
    desk = Desk(config(max_running=1))
    desk.run(desk.job(TEXT, output=0))
    warm = [desk.submit(desk.job(TEXT, output=0)) for _ in range(3)]
    turn = desk.submit(desk.job([*TEXT, 9], output=1))

    desk.step()

    assert all(job.job_id in desk.ended for job in [*warm, turn])


def test_a_resumed_reply_goes_on_where_it_was_and_repeats_nothing():
    desk = Desk()
    whole = answer(TEXT, 10, (EOS_TOKEN_ID,))
    job = desk.job(TEXT, output=10, resumed=whole[:4])

    ended = desk.run(job)

    assert ended.token_ids == whole
    assert tuple(desk.emitted[job.job_id]) == whole[4:]
    assert (ended.receipt.prompt_tokens, ended.receipt.output_tokens) == (40, 10)


@pytest.mark.parametrize(
    ("resumed", "reason"),
    [((5, 6), FinishReason.LENGTH), ((5, EOS_TOKEN_ID), FinishReason.STOP)],
)
def test_a_resumed_reply_that_was_complete_ends_at_once(resumed, reason):
    desk = Desk()
    output = 2 if reason is FinishReason.LENGTH else 9
    job = desk.job(TEXT, limits=Limits(max_output_tokens=output), resumed=resumed)

    ended = desk.run(job)

    assert (ended.reason, ended.token_ids) == (reason, resumed)
    assert job.job_id not in desk.emitted


@pytest.mark.parametrize(
    ("sizes", "limit"),
    [({"context_tokens": 100}, 100), ({"pool_blocks": 5, "context_tokens": 512}, 80)],
)
def test_a_prompt_beyond_the_context_or_the_pool_is_refused_with_both_numbers(sizes, limit):
    desk = Desk(config(**sizes))

    with pytest.raises(PromptTooLong) as refusal:
        desk.submit(desk.job([2] * limit))

    assert (refusal.value.needed_tokens, refusal.value.limit_tokens) == (limit + 1, limit)
    assert desk.core.stats().finished_jobs == {"refused": 1}
    assert desk.run(desk.job([2] * (limit - 1))).reason is FinishReason.LENGTH
    assert desk.run(desk.job([2] * limit, output=0)).reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"token_ids": (), "zones": ()}, "token_ids"),
        ({"token_ids": (-1, 5)}, "token_ids"),
        ({"token_ids": (5, 97)}, "token_ids"),
        ({"resumed_output": (97,)}, "token_ids"),
        ({"zones": ()}, "zones"),
        ({"zones": (Zone(scope=Scope("a"), source=CacheSource.SESSION, end=1),)}, "zones"),
        ({"limits": Limits(max_output_tokens=-1)}, "limits"),
        ({"limits": Limits(min_output_tokens=-1)}, "limits"),
    ],
)
def test_a_job_that_no_engine_could_run_is_refused_by_field(changes, field):
    desk = Desk()
    job = msgspec.structs.replace(desk.job([5, 6]), **changes)

    with pytest.raises(InvalidJob) as refusal:
        desk.core.submit(job, 0.0)

    assert refusal.value.field == field
    assert desk.core.is_idle


def test_a_job_id_cannot_be_used_twice_at_a_time():
    desk = Desk()
    job = desk.submit(desk.job(TEXT))

    with pytest.raises(InvalidJob, match="running already"):
        desk.core.submit(job, 0.0)


def test_a_waiting_job_is_cancelled_at_once():
    desk = Desk(config(max_running=1))
    desk.submit(desk.job(TEXT))
    desk.step()
    waiting = desk.submit(desk.job(TEXT))

    cancelled = desk.cancel(waiting)

    assert cancelled.step == 1
    ended = desk.ended[waiting.job_id]
    assert (ended.reason, ended.token_ids, ended.receipt) == (FinishReason.CANCELLED, (), None)


def test_a_cancelled_prefill_keeps_what_is_committed_and_frees_the_rest():
    desk = Desk(config(step_tokens=32))
    job = desk.submit(desk.job([*TEXT, *TEXT], session="s"))
    desk.step()

    desk.cancel(job)

    assert desk.core.stats().blocks.in_use == 0
    again = desk.run(desk.job([*TEXT, *TEXT], session="s"))
    assert again.receipt.cached_tokens == 32


def test_a_job_cancelled_in_flight_ends_with_that_step_and_draws_nothing_more():
    desk = Desk()
    job = desk.submit(desk.job(TEXT, output=20))
    for _ in range(3):
        desk.step()
    cancelled = []

    desk.step(meanwhile=lambda core: cancelled.append(core.cancel(job.job_id, desk.now)))

    assert cancelled[0].step == 4
    ended = desk.ended[job.job_id]
    assert (ended.reason, ended.seam) == (FinishReason.CANCELLED, Seam.CUT)
    assert ended.token_ids == answer(TEXT, 3, (EOS_TOKEN_ID,))
    assert desk.core.stats().blocks.in_use == 0


def test_cancel_is_idempotent_and_knows_nothing_of_strangers():
    desk = Desk()
    job = desk.submit(desk.job(TEXT))
    desk.cancel(job)

    assert desk.cancel(job).step is None
    assert desk.core.cancel(JobId("nobody"), 0.0).step is None


def test_the_partial_answer_of_a_cancelled_turn_is_cached_for_the_next():
    desk = Desk()
    job = desk.submit(desk.job(TEXT, output=20, session="s"))
    for _ in range(5):
        desk.step()
    desk.cancel(job)
    done = desk.ended[job.job_id]
    history = desk.history(done, job)

    following = desk.run(desk.job([*history.token_ids, 7, 8], session="s", history=history))

    assert following.receipt.cached_tokens == 40 + len(done.token_ids) - 1
    assert following.receipt.miss_reason is None


def test_a_stop_cuts_the_overshoot_from_ids_and_receipt():
    desk = Desk()
    job = desk.submit(desk.job(TEXT, output=20))
    for _ in range(6):
        desk.step()
    said = desk.emitted[job.job_id]

    desk.step(meanwhile=lambda core: core.stop(job.job_id, (*said[:3], 50), desk.now))

    ended = desk.ended[job.job_id]
    assert ended.token_ids == (*said[:3], 50)
    assert (ended.reason, ended.seam) == (FinishReason.STOP, Seam.CUT)
    assert desk.receipt(job).output_tokens == 4


def test_the_turn_after_a_stop_finds_all_kept_ids_that_were_generated():
    desk = Desk()
    job = desk.submit(desk.job(TEXT, output=20, session="s"))
    for _ in range(6):
        desk.step()
    kept = (*desk.emitted[job.job_id][:3], 50)
    desk.stop(job, kept)

    following = desk.run(desk.job([*TEXT, *kept, 9], session="s"))

    assert following.receipt.cached_tokens == 43
    assert following.token_ids == answer([*TEXT, *kept, 9], 4, (EOS_TOKEN_ID,))


def test_a_stop_that_comes_too_late_changes_nothing():
    desk = Desk()
    job = desk.job(TEXT)
    ended = desk.run(job)

    desk.stop(job, ())

    assert desk.ended[job.job_id].token_ids == ended.token_ids


def test_cached_tokens_are_counted_by_whose_zone_they_lie_in():
    desk = Desk()
    ids, ends = TEXT[:30], {CacheSource.TEMPLATE: 3, CacheSource.PERSONA: 11}
    zones = [
        *(Zone(scope=OPERATOR_SCOPE, source=source, end=end) for source, end in ends.items()),
        Zone(scope=Scope("docs"), source=CacheSource.DOCUMENT, end=20),
        Zone(scope=Scope("ann"), source=CacheSource.SESSION, end=30),
    ]
    job = msgspec.structs.replace(desk.job(ids), zones=tuple(zones))
    desk.run(job)

    again = desk.run(msgspec.structs.replace(job, job_id=JobId("again")))

    assert again.receipt.cached_by_source == CachedBySource(
        template=3, persona=8, document=9, session=9
    )
    assert again.receipt.cached_tokens == 29


def test_a_receipt_tells_times_from_submission_on():
    desk = Desk(config(step_tokens=32, max_running=1))
    desk.submit(desk.job([5], output=2))
    job = desk.submit(desk.job(TEXT, output=3))
    desk.drain()

    receipt = desk.receipt(job)

    assert receipt.queue_s == 3.0
    assert receipt.prefill_s == 1.5
    assert receipt.first_token_s == 4.5
    assert receipt.total_s == 6.5


def test_an_evicted_session_is_told_why_it_was_computed_again():
    desk = Desk(config(pool_blocks=6, context_tokens=96))
    job = desk.job(TEXT, session="s")
    history = desk.history(desk.run(job), job)
    desk.run(desk.job([3] * 90, session="t"))

    following = desk.run(desk.job([*history.token_ids, 9], session="s", history=history))

    assert following.receipt.miss_reason is MissReason.EVICTED_PRESSURE
    assert desk.core.stats().misses == {"first_turn": 2, "evicted_pressure": 1}


def test_seeds_are_the_jobs_own_or_differ_from_job_to_job_and_repeat_after_a_restart():
    def seeds(boot_id: str) -> list[int]:
        desk = Desk(config(boot_id=boot_id))
        jobs = [desk.job([5, 6, at + 2]) for at in range(2)]
        jobs.append(msgspec.structs.replace(jobs[0], sampling=Sampling(seed=7), job_id=JobId("x")))
        for job in jobs:
            desk.submit(job)
        plan = desk.core.plan(0.0)
        assert plan is not None
        return [run.draw.seed for run in plan.runs if run.draw is not None]

    assert seeds("one")[2] == 7
    assert len({*seeds("one")[:2], *seeds("two")[:2]}) == 4
    assert seeds("one") == seeds("one")


def test_what_a_forgotten_session_still_says_is_published_nowhere():
    desk = Desk()
    job = desk.submit(desk.job([*TEXT, *TEXT], session="s", output=30))
    for _ in range(4):
        desk.step()
    subject = Subject(kind=SubjectKind.SESSION, subject_id="s", owner_id=ANN)

    state = desk.core.lease(subject, Forget(), desk.now)
    ended = desk.finish(job)
    desk.drain()

    assert state.retention is RetentionClass.ORPHAN
    assert len(ended.token_ids) == 30
    assert desk.core.snapshot(desk.now).nodes == ()
    assert all(desk.paper.is_blank(BlockId(at)) for at in range(64))


def test_forgotten_blocks_are_wiped_by_a_step_of_their_own():
    desk = Desk(config(checks=False))
    desk.run(desk.job(TEXT, owner_id=ANN))
    desk.run(desk.job(TEXT, owner_id=BEN))
    assert desk.core.is_idle

    owner = OwnerId("ann")
    subject = Subject(kind=SubjectKind.OWNER, subject_id=owner, owner_id=owner)
    desk.core.lease(subject, Forget(), desk.now)
    assert desk.core.stats().blocks.cached == 3
    desk.drain()

    assert desk.paper.wiped_blocks == 3
    assert desk.core.is_idle


def test_a_wish_pins_by_class_and_shows_in_figures_and_events():
    desk = Desk()
    desk.run(desk.job(TEXT, session="s"))
    subject = Subject(kind=SubjectKind.SESSION, subject_id="s", owner_id=ANN)

    desk.core.lease(subject, Hold(retention=RetentionClass.LIVE, ttl_s=10.0), desk.now)
    assert desk.core.stats().blocks.pinned == 3
    desk.now += 11
    desk.core.plan(desk.now)

    assert desk.core.stats().blocks.pinned == 0
    assert "leased" in {event.kind for event in desk.core.cache_events(0)}


def test_figures_sum_up_the_receipts():
    desk = Desk()
    jobs = [desk.job([*TEXT, at + 2], session=f"s{at}") for at in range(3)]
    receipts = [desk.run(job).receipt for job in jobs]

    stats = desk.core.stats()

    assert stats.cached_tokens == sum(receipt.cached_tokens for receipt in receipts)
    assert stats.computed_tokens == sum(receipt.computed_tokens for receipt in receipts)
    assert stats.cached_by_source.session == stats.cached_tokens
    assert stats.output_tokens == 12
    assert stats.finished_jobs == {"length": 3}
    assert stats.step_s == stats.steps * 0.5


@pytest.mark.parametrize("wrong", ["step", "runs", "tokens"])
def test_a_result_that_is_not_the_plans_is_corrupt(wrong):
    desk = Desk()
    job = desk.submit(desk.job(TEXT))
    plan = desk.core.plan(0.0)
    assert plan is not None
    drawn = (DrawnToken(token_id=5),) * (2 if wrong == "tokens" else 1)
    runs = () if wrong == "runs" else (RunResult(job_id=job.job_id, drawn=drawn),)

    with pytest.raises(Corrupt):
        desk.core.commit(StepResult(step=plan.step + (wrong == "step"), runs=runs), 1.0)


def test_a_step_too_small_for_its_decodes_is_a_misconfiguration():
    with pytest.raises(Misconfigured, match="step_tokens is 4"):
        config(step_tokens=4, max_running=8)


def test_a_core_makes_its_own_cache_when_it_is_given_none():
    core = Core(config())

    assert core.plan(0.0) is None
    assert core.take_events() == []
    assert core.stats().blocks.free == 64
