"""What became of drafts: used by the next turn as far as it went the same way, else wasted."""

import pytest

from engine import drafts
from engine.api import Forget, JobClass, SubjectKind
from engine.api import Subject as Of
from tests.kit.desk import ANN, BEN, Desk, config

DRAFT, TITLE = JobClass.DRAFT, JobClass.BACKGROUND
TEXT = list(range(2, 42))


def draft(desk: Desk, ids, session="s"):
    return desk.run(desk.job(ids, session=session, job_class=DRAFT, output=0))


def turn(desk: Desk, ids, session="s"):
    return desk.run(desk.job(ids, session=session, output=1))


def told(desk: Desk) -> tuple[int, int, int, int]:
    tokens = desk.core.stats().drafts
    assert tokens.computed == tokens.used + tokens.wasted + tokens.waiting
    return tokens.computed, tokens.used, tokens.wasted, tokens.waiting


def test_a_draft_waits_for_its_turn_and_is_used_by_it():
    desk = Desk()

    draft(desk, TEXT)
    before = told(desk)
    turn(desk, [*TEXT, 50])

    assert before == (40, 0, 0, 40)
    assert told(desk) == (40, 40, 0, 0)


def test_a_draft_supersedes_the_one_before_and_what_parts_is_wasted():
    desk = Desk()

    draft(desk, TEXT)
    draft(desk, [*TEXT[:30], 60, 61, 62, 63])
    between = told(desk)
    turn(desk, [*TEXT[:30], 60, 61, 70])

    assert between == (44, 0, 10, 34)
    assert told(desk) == (44, 32, 12, 0)


def test_a_turn_that_goes_another_way_wastes_the_draft():
    desk = Desk()
    draft(desk, TEXT)

    turn(desk, [90, *TEXT])

    assert told(desk) == (40, 0, 40, 0)


def test_what_another_branch_had_cached_is_no_use_of_a_draft():
    desk = Desk()
    turn(desk, [*TEXT, *[80] * 40])
    draft(desk, [*TEXT, *range(50, 60)])

    cached = turn(desk, [*TEXT, *[80] * 40, 5]).receipt.cached_tokens

    assert cached > 50
    assert told(desk) == (10, 0, 10, 0)


def test_only_what_a_draft_computed_is_counted():
    desk = Desk()
    log = [*TEXT, *turn(desk, TEXT).token_ids]

    draft(desk, [*log, *range(50, 60)])
    turn(desk, [*log, *range(50, 60), 5])

    computed, used, wasted, waiting = told(desk)
    assert 10 <= computed <= 11 and used == computed
    assert (wasted, waiting) == (0, 0)


def test_a_title_and_another_session_leave_the_draft_waiting():
    desk = Desk()
    draft(desk, TEXT)

    desk.run(desk.job([*TEXT, 77], session="s", job_class=TITLE, output=1))
    turn(desk, [*TEXT, 50], session="other")

    assert told(desk) == (40, 0, 0, 40)


def test_an_evicted_draft_is_wasted_when_its_turn_comes():
    desk = Desk(config(pool_blocks=8, context_tokens=128))
    draft(desk, TEXT)
    desk.run(desk.job([7] * 127, owner_id=BEN, output=1))

    turn(desk, [*TEXT, 50])

    assert told(desk) == (40, 0, 40, 0)


@pytest.mark.parametrize("kind", [SubjectKind.SESSION, SubjectKind.OWNER])
def test_a_forgotten_draft_is_wasted_and_its_text_is_gone(kind):
    desk = Desk()
    draft(desk, TEXT)

    subject_id = "s" if kind is SubjectKind.SESSION else ANN
    desk.core.lease(Of(kind=kind, subject_id=subject_id, owner_id=ANN), Forget(), desk.now)

    assert told(desk) == (40, 0, 40, 0)
    assert not desk.core._totals.drafts._drafts


def test_a_draft_of_no_session_is_wasted_at_once():
    desk = Desk()

    draft(desk, TEXT, session=None)

    assert told(desk) == (40, 0, 40, 0)


def test_a_draft_that_is_cancelled_counts_as_far_as_it_got():
    desk = Desk(config(step_tokens=16))
    job = desk.submit(desk.job(TEXT, session="s", job_class=DRAFT, output=0))
    desk.step()

    desk.cancel(job)
    turn(desk, [*TEXT, 50])

    assert told(desk) == (16, 16, 0, 0)


def test_sessions_with_a_waiting_draft_are_bounded(monkeypatch):
    monkeypatch.setattr(drafts, "REMEMBERED_DRAFTS", 2)
    desk = Desk()

    for at in range(4):
        draft(desk, [*range(2, 12), 90 - at], session=f"s{at}")

    assert len(desk.core._totals.drafts._drafts) == 2
    assert told(desk)[2] > 0
