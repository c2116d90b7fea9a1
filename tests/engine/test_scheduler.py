"""Who runs in a step: budget, order, classes, admission, preemption, waiting for a prefix."""

import pytest

from engine.api import FinishReason, JobClass, OwnerId
from engine.config import PREFIX_INDEXES
from engine.errors import Overloaded
from engine.scheduler import DRAFT_STEP_TOKENS
from tests.kit.desk import ANN, BEN, Desk, config

on_both = pytest.mark.parametrize("index", PREFIX_INDEXES)
"""Where it matters what is known, or what is let go."""


def shares(desk: Desk) -> dict[str, int]:
    """How many ids each job computes in the next step, which is then carried out."""
    plan = desk.core.plan(desk.now)
    assert plan is not None
    desk._book(desk.core.take_events())
    desk._book(desk.core.commit(desk.paper.collect(desk.paper.launch(plan)), desk.now))
    return {run.job_id: len(run.token_ids) for run in plan.runs}


def prompt(start: int, tokens: int) -> list[int]:
    return [2 + (start * 7 + at * (start + 1)) % 90 for at in range(tokens)]


def test_a_long_prompt_is_prefilled_in_chunks_of_the_budget():
    desk = Desk(config(step_tokens=32))
    job = desk.submit(desk.job(prompt(1, 70), output=2))

    assert [shares(desk).get(job.job_id) for _ in range(4)] == [32, 32, 6, 1]


def test_a_draft_is_prefilled_in_short_steps_so_that_a_turn_hardly_waits_for_one():
    desk = Desk(config(step_tokens=400, pool_blocks=128, context_tokens=1024))
    draft = desk.submit(desk.job(prompt(1, 300), job_class=JobClass.DRAFT, output=0))

    assert shares(desk) == {draft.job_id: DRAFT_STEP_TOKENS}
    turn = desk.submit(desk.job(prompt(2, 300)))
    assert shares(desk) == {turn.job_id: 300}


def test_decodes_come_before_prefills_and_both_share_one_step():
    desk = Desk(config(step_tokens=32))
    decoding = desk.submit(desk.job(prompt(1, 4), output=9))
    desk.step()
    prefilling = desk.submit(desk.job(prompt(2, 70)))

    assert shares(desk) == {decoding.job_id: 1, prefilling.job_id: 31}


def test_classes_are_prefilled_in_their_order():
    desk = Desk(config(step_tokens=32, max_running=3))
    draft = desk.submit(desk.job(prompt(1, 20), job_class=JobClass.DRAFT))
    background = desk.submit(desk.job(prompt(2, 20), job_class=JobClass.BACKGROUND))
    interactive = desk.submit(desk.job(prompt(3, 20)))

    assert shares(desk) == {interactive.job_id: 20, background.job_id: 12}
    assert list(shares(desk)) == [interactive.job_id, background.job_id]
    assert draft.job_id not in desk.started
    desk.drain()
    assert list(desk.ended)[-1] == draft.job_id


def test_a_stronger_job_overtakes_a_prefill_that_has_begun():
    desk = Desk(config(step_tokens=32))
    background = desk.submit(desk.job(prompt(1, 90), job_class=JobClass.BACKGROUND))
    desk.step()
    interactive = desk.submit(desk.job(prompt(2, 40)))

    assert shares(desk) == {interactive.job_id: 32}
    assert shares(desk) == {interactive.job_id: 8, background.job_id: 24}


def test_one_owner_with_many_jobs_does_not_keep_another_waiting():
    desk = Desk(config(max_running=2))
    anns = [desk.submit(desk.job(prompt(at, 5), owner_id=ANN, output=30)) for at in range(4)]
    ben = desk.submit(desk.job(prompt(9, 5), owner_id=BEN))

    assert set(shares(desk)) == {anns[0].job_id, ben.job_id}


def test_equals_are_served_in_the_order_in_which_they_came():
    desk = Desk(config(max_running=1))
    jobs = [desk.submit(desk.job(prompt(at, 5), output=1)) for at in range(3)]

    assert [list(shares(desk)) for _ in jobs] == [[job.job_id] for job in jobs]


def test_the_queue_is_bounded():
    desk = Desk(config(max_running=1, max_waiting=2))
    for at in range(3):
        desk.submit(desk.job(prompt(at, 5)))

    with pytest.raises(Overloaded) as refusal:
        desk.submit(desk.job(prompt(3, 5)))

    assert refusal.value.retry_after_s > 0
    desk.drain()


def test_a_full_queue_gives_the_place_of_who_has_most_to_who_has_fewer():
    desk = Desk(config(max_running=1, max_waiting=3))
    anns = [desk.submit(desk.job(prompt(at, 5), owner_id=ANN)) for at in range(4)]
    bens = [desk.submit(desk.job(prompt(9, at), owner_id=BEN)) for at in (5, 6)]

    with pytest.raises(Overloaded):
        desk.submit(desk.job(prompt(9, 7), owner_id=BEN))
    desk.drain()

    ends = {job.job_id: desk.ended[job.job_id] for job in (*anns, *bens)}
    refused = [job_id for job_id, end in ends.items() if end.reason is FinishReason.REFUSED]
    assert refused == [anns[2].job_id, anns[3].job_id]
    refusal = ends[anns[3].job_id].refusal
    assert refusal is not None
    assert refusal.code == Overloaded.code
    assert refusal.retry_after_s


def test_a_full_queue_gives_a_weaker_ones_place_to_a_stronger_one():
    desk = Desk(config(max_running=1, max_waiting=1))
    drafts = [desk.submit(desk.job(prompt(at, 5), job_class=JobClass.DRAFT)) for at in range(2)]
    turn = desk.submit(desk.job(prompt(3, 5)))

    desk.drain()

    assert desk.ended[drafts[1].job_id].reason is FinishReason.REFUSED
    assert desk.ended[turn.job_id].reason is not FinishReason.REFUSED


@pytest.mark.usefixtures("nothing_is_promised")
def test_what_was_preempted_keeps_its_place_in_a_full_queue():
    desk = Desk(config(max_running=3, max_waiting=0, pool_blocks=8))
    anns = [desk.submit(desk.job(prompt(at, 20), owner_id=ANN, output=80)) for at in range(3)]
    while desk.core.stats().preemptions < 2:
        desk.step()

    with pytest.raises(Overloaded):
        desk.submit(desk.job(prompt(9, 5), owner_id=BEN))
    desk.drain()

    assert {desk.ended[one.job_id].reason for one in anns} == {FinishReason.LENGTH}


@on_both
def test_a_prompt_that_many_start_at_once_is_prefilled_once(index):
    desk = Desk(config(prefix_index=index, step_tokens=64, max_running=8, pool_blocks=128))
    text = prompt(3, 100)
    jobs = [desk.submit(desk.job([*text, at + 2])) for at in range(6)]

    desk.drain()

    assert [desk.receipt(job).cached_tokens for job in jobs[1:]] == [96] * 5
    assert desk.core.stats().computed_tokens == 101 + 5 * 5


@on_both
def test_nobody_waits_for_a_prefix_in_a_scope_that_is_not_his(index):
    desk = Desk(config(prefix_index=index, step_tokens=64, max_running=8, pool_blocks=128))
    text = prompt(3, 30)
    first = desk.submit(desk.job(text, owner_id=ANN))
    second = desk.submit(desk.job(text, owner_id=BEN))

    assert set(shares(desk)) == {first.job_id, second.job_id}


@on_both
def test_an_interactive_job_does_not_wait_for_a_weaker_ones_prefix(index):
    desk = Desk(config(prefix_index=index, step_tokens=64))
    text = prompt(3, 100)
    desk.submit(desk.job(text, job_class=JobClass.DRAFT))
    desk.step()
    interactive = desk.submit(desk.job(text))

    assert interactive.job_id in shares(desk)


@on_both
def test_who_waits_for_a_prefix_goes_on_when_its_writer_is_cancelled(index):
    desk = Desk(config(prefix_index=index, step_tokens=32))
    text = prompt(3, 100)
    writer = desk.submit(desk.job(text))
    waiting = desk.submit(desk.job(text))
    assert list(shares(desk)) == [writer.job_id]
    assert list(shares(desk)) == [writer.job_id]

    desk.cancel(writer)

    assert shares(desk) == {waiting.job_id: 32}
    assert desk.started[waiting.job_id].cached_tokens == 64


@pytest.mark.usefixtures("nothing_is_promised")
@on_both
def test_the_newest_gives_way_when_blocks_run_out_and_still_answers_right(index):
    desk = Desk(config(prefix_index=index, pool_blocks=6, max_running=2, context_tokens=96))
    first = desk.submit(desk.job(prompt(1, 30), output=40))
    second = desk.submit(desk.job(prompt(2, 30), output=30))

    desk.drain()

    assert desk.core.stats().preemptions > 0
    assert len(desk.ended[first.job_id].token_ids) == 40
    assert len(desk.ended[second.job_id].token_ids) == 30


def test_a_stronger_job_takes_the_seat_of_a_weaker_one():
    desk = Desk(config(max_running=1))
    draft = desk.submit(desk.job(prompt(1, 20), output=20, job_class=JobClass.DRAFT))
    desk.step()
    interactive = desk.submit(desk.job(prompt(2, 20), output=1))

    assert list(shares(desk)) == [interactive.job_id]
    assert list(shares(desk)) == [draft.job_id]


@on_both
def test_a_weaker_job_does_not_overtake_a_stronger_one_that_finds_no_room(index):
    desk = Desk(config(prefix_index=index, pool_blocks=4, context_tokens=64))
    running = desk.submit(desk.job(prompt(1, 33), output=3))
    desk.step()
    strong = desk.submit(desk.job(prompt(2, 33), output=1))
    weak = desk.submit(desk.job(prompt(3, 5), output=1, job_class=JobClass.DRAFT))

    assert list(shares(desk)) == [running.job_id]
    desk.drain()

    order = list(desk.ended)
    assert order.index(strong.job_id) < order.index(weak.job_id)


@pytest.mark.usefixtures("nothing_is_promised")
@on_both
def test_a_preempted_job_comes_before_others_of_its_class(index):
    desk = Desk(config(prefix_index=index, pool_blocks=4, max_running=2, context_tokens=64))
    owners = [OwnerId(name) for name in "abc"]
    first = desk.submit(desk.job(prompt(1, 20), owner_id=owners[0], output=20))
    second = desk.submit(desk.job(prompt(2, 20), owner_id=owners[1], output=20))
    third = desk.submit(desk.job(prompt(3, 20), owner_id=owners[2], output=20))

    desk.drain()

    assert desk.core.stats().preemptions > 0
    assert list(desk.ended) == [first.job_id, second.job_id, third.job_id]
