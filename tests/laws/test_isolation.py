"""Law 11 on the paper model: what is shared is the operator's, what is a user's stays his."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import OPERATOR_SCOPE, JobClass, OwnerId
from engine.config import PREFIX_INDEXES
from tests.kit.desk import ANN, BEN, Desk, config

PERSONA = [2 + at * 7 % 90 for at in range(37)]
"""Ends inside a block: the border between the zones is the hard case."""

on_both = pytest.mark.parametrize("index", PREFIX_INDEXES)

texts = st.lists(st.integers(2, 4), min_size=1, max_size=40)


@pytest.mark.row("side channels")
@on_both
@given(texts, st.integers(0, 6))
@settings(deadline=None)
def test_11_equal_texts_of_two_users_never_hit_each_other(index, text, output):
    desk = Desk(config(prefix_index=index, context_tokens=128))
    desk.run(desk.job(text, owner_id=ANN, output=output))

    theirs = desk.run(desk.job(text, owner_id=BEN, output=output))

    assert theirs.receipt.cached_tokens == 0
    assert theirs.receipt.computed_tokens == len(text)


@on_both
@given(texts)
@settings(deadline=None)
def test_11_a_second_user_hits_the_whole_persona_and_nothing_more(index, text):
    desk = Desk(config(prefix_index=index, context_tokens=128))
    desk.run(desk.job([*PERSONA, *text], owner_id=ANN, shared=len(PERSONA)))

    theirs = desk.run(desk.job([*PERSONA, *text], owner_id=BEN, shared=len(PERSONA)))

    assert theirs.receipt.cached_tokens == len(PERSONA)
    assert theirs.receipt.cached_by_source.persona == len(PERSONA)
    assert theirs.receipt.cached_by_source.session == 0


@on_both
def test_11_a_warmed_persona_is_a_full_hit_for_everybody(index):
    desk = Desk(config(prefix_index=index))
    desk.run(desk.job(PERSONA, owner_id=OwnerId("operator"), shared=len(PERSONA), output=0))

    for owner_id in (ANN, BEN):
        ended = desk.run(desk.job([*PERSONA, 5], owner_id=owner_id, shared=len(PERSONA)))
        assert ended.receipt.cached_tokens == len(PERSONA)


@pytest.mark.row("side channels")
@on_both
def test_11_a_user_who_writes_the_personas_text_does_not_reach_its_blocks(index):
    desk = Desk(config(prefix_index=index))
    desk.run(desk.job([*PERSONA, 5], owner_id=ANN, shared=len(PERSONA)))

    guessed = desk.run(desk.job([*PERSONA, 5], owner_id=BEN, shared=0))

    assert guessed.receipt.cached_tokens == 0


@on_both
def test_11_users_text_is_never_published_for_everybody(index):
    desk = Desk(config(prefix_index=index))
    desk.run(desk.job([*PERSONA, *PERSONA], owner_id=ANN, shared=len(PERSONA)))

    shared = [n.tokens for n in desk.core.snapshot(0.0).nodes if n.scope == OPERATOR_SCOPE]

    assert sum(shared) == len(PERSONA)


@on_both
def test_11_hits_do_not_change_whose_turn_it_is(index):
    def order(warm: bool) -> list[str]:
        desk = Desk(config(prefix_index=index, max_running=1))
        if warm:
            desk.run(desk.job(PERSONA, owner_id=BEN))
        jobs = [desk.submit(desk.job(PERSONA, owner_id=owner)) for owner in (ANN, BEN, ANN)]
        desk.drain()
        names = {job.job_id: f"{at}" for at, job in enumerate(jobs)}
        return [names[job_id] for job_id in desk.ended if job_id in names]

    assert order(warm=True) == order(warm=False) == ["0", "1", "2"]


@on_both
def test_11_a_guess_runs_as_long_as_any_other_text(index):
    """Steps from submission to the end are the same whether or not another sent the text."""

    def steps(guess: list[int]) -> int:
        desk = Desk(config(prefix_index=index, step_tokens=16))
        desk.submit(desk.job(PERSONA, owner_id=ANN, output=1, job_class=JobClass.DRAFT))
        desk.drain()
        before = desk.core.stats().steps
        desk.run(desk.job(guess, owner_id=BEN, output=1))
        return desk.core.stats().steps - before

    assert steps(PERSONA) == steps([3] * len(PERSONA))
