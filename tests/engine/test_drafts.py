"""What became of drafts: used by the next turn as far as it went the same way, else wasted."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import drafts
from engine.api import FinishReason, Forget, JobClass, RetentionClass, SubjectKind, Withdraw
from engine.api import Subject as Of
from engine.config import PREFIX_INDEXES
from tests.kit.desk import ANN, BEN, Desk, config

Make = Callable[..., Desk]

DRAFT, TITLE = JobClass.DRAFT, JobClass.BACKGROUND
TEXT = list(range(2, 42))


@pytest.fixture(params=PREFIX_INDEXES)
def make(request: pytest.FixtureRequest) -> Make:
    return lambda **changes: Desk(config(prefix_index=request.param, **changes))


def draft(desk: Desk, ids, session="s"):
    return desk.run(desk.job(ids, session=session, job_class=DRAFT, output=0))


def turn(desk: Desk, ids, session="s"):
    return desk.run(desk.job(ids, session=session, output=1))


def told(desk: Desk) -> tuple[int, int, int, int]:
    tokens = desk.core.stats().drafts
    assert tokens.computed == tokens.used + tokens.wasted + tokens.waiting
    return tokens.computed, tokens.used, tokens.wasted, tokens.waiting


def test_a_draft_waits_for_its_turn_and_is_used_by_it(make):
    desk = make()

    draft(desk, TEXT)
    before = told(desk)
    turn(desk, [*TEXT, 50])

    assert before == (40, 0, 0, 40)
    assert told(desk) == (40, 40, 0, 0)


def test_a_draft_supersedes_the_one_before_and_what_parts_is_wasted(make):
    desk = make()

    draft(desk, TEXT)
    draft(desk, [*TEXT[:30], 60, 61, 62, 63])
    between = told(desk)
    turn(desk, [*TEXT[:30], 60, 61, 70])

    assert between == (44, 0, 10, 34)
    assert told(desk) == (44, 32, 12, 0)


def test_a_turn_that_goes_another_way_wastes_the_draft(make):
    desk = make()
    draft(desk, TEXT)

    turn(desk, [90, *TEXT])

    assert told(desk) == (40, 0, 40, 0)


def test_what_another_branch_had_cached_is_no_use_of_a_draft(make):
    desk = make()
    turn(desk, [*TEXT, *[80] * 40])
    draft(desk, [*TEXT, *range(50, 60)])

    cached = turn(desk, [*TEXT, *[80] * 40, 5]).receipt.cached_tokens

    assert cached > 50
    assert told(desk) == (10, 0, 10, 0)


def test_only_what_a_draft_computed_is_counted(make):
    desk = make()
    log = [*TEXT, *turn(desk, TEXT).token_ids]

    draft(desk, [*log, *range(50, 60)])
    turn(desk, [*log, *range(50, 60), 5])

    computed, used, wasted, waiting = told(desk)
    assert 10 <= computed <= 11 and used == computed
    assert (wasted, waiting) == (0, 0)


def test_a_title_and_another_session_leave_the_draft_waiting(make):
    desk = make()
    draft(desk, TEXT)

    desk.run(desk.job([*TEXT, 77], session="s", job_class=TITLE, output=1))
    turn(desk, [*TEXT, 50], session="other")

    assert told(desk) == (40, 0, 0, 40)


def test_an_evicted_draft_is_wasted_at_once_and_its_text_is_gone(make):
    desk = make(pool_blocks=8, context_tokens=128)
    draft(desk, TEXT)

    desk.run(desk.job([7] * 127, owner_id=BEN, output=1))

    assert told(desk) == (40, 0, 40, 0)
    assert not desk.core._totals.drafts._drafts


def test_of_a_draft_that_is_evicted_in_part_the_rest_waits_and_no_more_is_remembered(make):
    desk = make(pool_blocks=8, context_tokens=128)
    draft(desk, TEXT)

    desk.run(desk.job([7] * 90, owner_id=BEN, output=1))
    between = told(desk)
    (known,) = desk.core._totals.drafts._drafts.values()
    turn(desk, [*TEXT, 50])

    assert between == (40, 0, 8, 32)
    assert list(known.ids) == TEXT[:32]
    assert told(desk) == (40, 32, 8, 0)


def test_another_orphan_of_the_session_takes_nothing_of_its_draft(make):
    desk = make(pool_blocks=10, context_tokens=128)
    draft(desk, [90, *TEXT])
    draft(desk, TEXT)
    between = told(desk)

    desk.run(desk.job([7] * 90, owner_id=BEN, output=1))

    assert between == (81, 0, 41, 40)
    assert told(desk) == between


@pytest.mark.parametrize("kind", [SubjectKind.SESSION, SubjectKind.OWNER])
def test_a_forgotten_draft_is_wasted_and_its_text_is_gone(make, kind):
    desk = make()
    draft(desk, TEXT)

    subject_id = "s" if kind is SubjectKind.SESSION else ANN
    desk.core.lease(Of(kind=kind, subject_id=subject_id, owner_id=ANN), Forget(), desk.now)

    assert told(desk) == (40, 0, 40, 0)
    assert not desk.core._totals.drafts._drafts


def test_a_draft_of_no_session_is_wasted_at_once(make):
    desk = make()

    draft(desk, TEXT, session=None)

    assert told(desk) == (40, 0, 40, 0)


def test_a_draft_that_is_cancelled_counts_as_far_as_it_got(make):
    desk = make(step_tokens=16)
    job = desk.submit(desk.job(TEXT, session="s", job_class=DRAFT, output=0))
    desk.step()

    desk.cancel(job)
    turn(desk, [*TEXT, 50])

    assert told(desk) == (16, 16, 0, 0)


def test_sessions_with_a_waiting_draft_are_bounded(make, monkeypatch):
    monkeypatch.setattr(drafts, "REMEMBERED_DRAFTS", 2)
    desk = make()

    for at in range(4):
        draft(desk, [*range(2, 12), 90 - at], session=f"s{at}")

    assert len(desk.core._totals.drafts._drafts) == 2
    assert told(desk)[2] > 0


# ---------------------------------------------------------------- for whom they make room


def lost(desk: Desk) -> int:
    """Tokens that were let go of what is more than idle."""
    evictions = desk.core.stats().evictions
    return sum(one.tokens for one in evictions if one.retention > RetentionClass.IDLE)


def test_a_draft_lets_go_nothing_that_was_used_lately(make):
    desk = make(pool_blocks=8, context_tokens=128)
    first = turn(desk, range(2, 92))
    before = desk.core.stats()

    refused = desk.submit(desk.job([7] * 60, owner_id=BEN, session="b", job_class=DRAFT, output=0))
    desk.drain()

    assert desk.ended[refused.job_id].reason is FinishReason.REFUSED
    assert desk.core.stats().evictions == before.evictions
    assert desk.core.stats().blocks == before.blocks
    again = turn(desk, [*range(2, 92), *first.token_ids, 5])
    assert again.receipt.computed_tokens <= 2


def test_a_draft_takes_the_room_of_what_is_idle(make):
    desk = make(pool_blocks=8, context_tokens=128)
    turn(desk, range(2, 92))
    desk.now += 10_000

    ended = desk.run(desk.job([7] * 60, owner_id=BEN, session="b", job_class=DRAFT, output=0))

    assert ended.reason is FinishReason.LENGTH
    assert lost(desk) == 0


def test_a_draft_takes_the_room_of_the_one_before(make):
    desk = make(pool_blocks=8, context_tokens=128)
    turn(desk, range(2, 60))
    for at in range(50, 55):
        ended = draft(desk, [at] * 60, session="b")
        assert ended.reason is FinishReason.LENGTH

    assert lost(desk) == 0


def test_a_draft_that_runs_gives_way_before_anything_that_was_used_lately(make):
    desk = make(pool_blocks=8, context_tokens=128, step_tokens=16)
    kept = turn(desk, range(2, 50))
    typed = desk.submit(desk.job([7] * 64, owner_id=BEN, session="b", job_class=DRAFT, output=0))
    desk.step()
    assert not desk.ended.get(typed.job_id), "it runs"

    turn(desk, [9] * 40, session="other")

    assert lost(desk) == 0
    again = turn(desk, [*range(2, 50), *kept.token_ids, 5])
    assert again.receipt.computed_tokens <= 2


ASKED = st.tuples(
    st.sampled_from((JobClass.INTERACTIVE, DRAFT, DRAFT, TITLE)),
    st.sampled_from((ANN, BEN)),
    st.sampled_from(("one", "two")),
    st.integers(1, 90),
    st.integers(2, 6),
    st.sampled_from((0, 0, 0, 400)),
)


@pytest.mark.parametrize("prefix_index", PREFIX_INDEXES)
@given(asked=st.lists(ASKED, min_size=4, max_size=30))
def test_no_draft_lets_go_what_is_more_than_idle_and_each_of_its_tokens_is_told(
    prefix_index, asked
):
    desk = Desk(config(prefix_index=prefix_index, pool_blocks=10, context_tokens=128))
    for job_class, owner_id, session, tokens, first, gap in asked:
        desk.now += gap
        output = 0 if job_class is DRAFT else 1
        ids = [first, *range(2, 2 + tokens)]
        before = lost(desk)
        desk.submit(
            desk.job(ids, owner_id=owner_id, session=session, job_class=job_class, output=output)
        )
        desk.drain()

        assert job_class is not DRAFT or lost(desk) == before
        waiting = told(desk)[-1]
        known = desk.core._totals.drafts._drafts.values()
        assert waiting == sum(end - start for one in known for start, end in one.spans)
        assert all(len(one.ids) == one.spans[-1][1] - one.start for one in known)
        for key, one in desk.core._totals.drafts._drafts.items():
            held = desk.core._cache._leases._orphans[key].entries
            assert max(entry.end for entry in held) >= one.spans[-1][1]


def test_a_draft_that_is_withdrawn_is_forgotten_and_what_others_share_stays(make):
    desk = make()
    turn(desk, TEXT)
    turn(desk, [*TEXT, *[80] * 40], session="other")
    shared = desk.core.stats().blocks
    whole = [*TEXT, *[80] * 40, *[81] * 40]
    draft(desk, whole)
    drafted = desk.core.stats().blocks

    desk.core.lease(
        Of(kind=SubjectKind.SESSION, subject_id="s", owner_id=ANN), Withdraw(), desk.now
    )
    desk.drain()
    after = desk.core.stats().blocks
    again = turn(desk, [*whole, 5]).receipt

    assert drafted.cached > shared.cached == after.cached
    assert told(desk)[2:] == (40, 0)
    assert again.cached_tokens >= len(TEXT) + 39, "what the other session has, and its own turn"
    assert again.cached_tokens < len(whole)


def test_a_draft_that_is_withdrawn_as_it_runs_leaves_nothing(make):
    desk = make(step_tokens=16)
    turn(desk, TEXT)
    before = desk.core.stats().blocks
    job = desk.job([*TEXT, *[80] * 100], session="s", job_class=DRAFT, output=0)
    desk.submit(job)
    desk.step()
    desk.step()

    desk.core.lease(
        Of(kind=SubjectKind.SESSION, subject_id="s", owner_id=ANN), Withdraw(), desk.now
    )
    desk.cancel(job)
    desk.drain()

    assert desk.core.stats().blocks == before
