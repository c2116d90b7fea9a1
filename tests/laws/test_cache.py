"""Laws 1 to 10 and 12 over the real pool, index, leases and scheduler, on the paper model."""

from array import array

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from engine.api import (
    FinishReason,
    Forget,
    History,
    Hold,
    Job,
    JobClass,
    MissReason,
    OwnerId,
    RetentionClass,
    Subject,
    SubjectKind,
    Wish,
)
from engine.errors import Refused
from engine.kv.blocks import BlockPool
from engine.kv.cache import Cache
from engine.kv.prefix import NO_END, Ids, Match, Scopes
from engine.kv.radix import RadixIndex
from engine.kv.tree import EntryTree
from tests.kit.desk import ANN, BEN, Desk, config, seeded, user_scope
from tests.kit.indexes import COLLIDING, INDEXES, MakeIndex
from tests.kit.machine import life_on
from tests.kit.paper import EOS_TOKEN_ID, answer

BANNED = (EOS_TOKEN_ID,)


on_both = pytest.mark.parametrize("make_index", INDEXES)


LIFE = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.row("engine 18")
@on_both
def test_05_any_life_keeps_the_books_and_the_replies_right(make_index):
    run_state_machine_as_test(life_on(make_index), settings=LIFE)


@pytest.mark.row("engine 27")
@pytest.mark.parametrize("name", ["radix, all keys alike", "hashed, all digests and keys alike"])
def test_08_any_life_is_as_right_when_all_keys_collide(name):
    run_state_machine_as_test(life_on(COLLIDING[name]), settings=LIFE)


class Forgetful(RadixIndex):
    """A cache that is off: an index that never matches."""

    def match(self, ids: Ids, scopes: Scopes, end: int) -> Match:
        return super().match(ids, scopes, end * 0)


def desk_with(make_index: MakeIndex = RadixIndex, *, order=None, **sizes) -> Desk:
    core_config = config(**sizes)
    pool = BlockPool(core_config.pool_blocks, order=order)
    index = make_index(pool, core_config.block_tokens)
    return Desk(core_config, Cache(pool, index, core_config.block_tokens))


def talk(desk: Desk, turns: int, *, seed: int = 0) -> list[tuple[int, ...]]:
    """Three conversations side by side, forked now and then; every reply in order."""
    chance = seeded(seed)
    logs: list[list[int]] = [[], [], []]
    replies: list[tuple[int, ...]] = []
    for _ in range(turns):
        jobs = []
        for at, log in enumerate(logs):
            log += [chance.randrange(2, 6) for _ in range(chance.randrange(1, 12))]
            jobs.append(desk.submit(desk.job(log, session=f"s{at}", output=5)))
        for job, log in zip(jobs, logs, strict=True):
            replies.append(desk.finish(job).token_ids)
            log.extend(replies[-1])
            del log[chance.choice([len(log), len(log) - 3]) :]
    return replies


@on_both
def test_01_losing_the_cache_changes_no_reply(make_index):
    assert talk(desk_with(make_index), 5) == talk(desk_with(Forgetful), 5)


@on_both
def test_01_a_pool_of_few_blocks_changes_no_reply(make_index):
    small = desk_with(make_index, pool_blocks=14, context_tokens=224)

    assert talk(small, 8) == talk(desk_with(make_index, pool_blocks=256), 8)
    assert small.core.stats().evicted_blocks > 0


@on_both
def test_01_replies_survive_every_wish_to_forget(make_index):
    desk, log = desk_with(make_index), [2, 3, 4]
    owner = Subject(kind=SubjectKind.OWNER, subject_id=ANN, owner_id=ANN)
    for _ in range(4):
        ended = desk.run(desk.job(log, session="s"))
        assert ended.token_ids == answer(log, 4, BANNED)
        log += [*ended.token_ids, 7]
        desk.core.lease(owner, Forget(), desk.now)


@on_both
def test_02_the_ledger_of_a_ten_turn_chat_is_exact(make_index):
    desk = desk_with(make_index, pool_blocks=64, context_tokens=1024)
    log: list[int] = []
    history: History | None = None
    for turn in range(10):
        new = [2 + (turn * 13 + at) % 90 for at in range(11 + turn)]
        job = desk.job([*log, *new], session="chat", output=7, history=history)
        before = desk.paper.computed_tokens

        ended = desk.run(job)

        receipt, cached = ended.receipt, max(0, len(log) - 1)
        assert receipt.cached_tokens == cached
        assert receipt.computed_tokens == len(job.token_ids) - cached
        assert receipt.cached_tokens + receipt.computed_tokens == receipt.prompt_tokens
        # All that ran: the prompt's new part, and each reply token but the last.
        assert desk.paper.computed_tokens - before == receipt.computed_tokens + 6
        assert receipt.miss_reason is (None if log else MissReason.FIRST_TURN)
        history = desk.history(ended, job)
        log = [*job.token_ids, *ended.token_ids]


@pytest.mark.parametrize("cancelled_after", range(5))
def test_02_a_turn_cancelled_in_mid_prefill_counts_what_it_got_through(cancelled_after):
    desk = Desk(config(step_tokens=16))
    text = [2 + at % 7 for at in range(80)]
    desk.run(desk.job(text[:30], output=0))
    before = desk.paper.computed_tokens
    job = desk.submit(desk.job([*text[:30], *text]))
    for _ in range(cancelled_after):
        desk.step()

    desk.step(meanwhile=lambda core: core.cancel(job.job_id, desk.now))

    receipt = desk.receipt(job)
    assert receipt.cached_tokens == 30
    assert receipt.computed_tokens == desk.paper.computed_tokens - before
    assert receipt.prompt_tokens == 30 + receipt.computed_tokens
    desk.drain()
    known = desk.core.stats()
    assert known.cached_tokens + known.computed_tokens == known.prompt_tokens


def test_02_a_turn_that_lost_its_place_counts_each_token_once():
    desk = Desk(config(pool_blocks=8, context_tokens=128, step_tokens=16, max_running=2))
    draft = desk.submit(desk.job([3] * 90, job_class=JobClass.DRAFT, output=1))
    for _ in range(3):
        desk.step()
    desk.run(desk.job([4] * 100, output=1))

    desk.drain()

    receipt = desk.receipt(draft)
    assert desk.core.stats().preemptions > 0
    assert (receipt.prompt_tokens, receipt.cached_tokens, receipt.computed_tokens) == (90, 0, 90)


@pytest.mark.row("engine 21")
@on_both
@given(st.data())
@settings(deadline=None)
def test_02_cached_and_computed_make_the_prompt_whatever_happened_before(make_index, data):
    desk = desk_with(make_index, pool_blocks=10, context_tokens=120, max_running=3)
    texts = st.lists(st.integers(2, 3), min_size=1, max_size=60)
    jobs = [desk.submit(desk.job(ids)) for ids in data.draw(st.lists(texts, max_size=8))]

    desk.drain()

    for job in jobs:
        receipt = desk.receipt(job)
        assert receipt.cached_tokens + receipt.computed_tokens == len(job.token_ids)
        assert 0 <= receipt.cached_tokens < len(job.token_ids)


def test_03_ids_are_kept_as_they_were_given_and_drawn():
    desk = Desk()
    ids = [5, 96, 2, 2, 17]

    job = desk.job(ids, output=6)

    ended = desk.run(job)

    assert ended.token_ids == tuple(desk.emitted[job.job_id]) == answer(ids, 6, BANNED)


@pytest.mark.row("engine 15")
@on_both
def test_04_nothing_is_matchable_before_its_step_is_committed(make_index):
    desk = desk_with(make_index)
    ids = list(range(2, 50))
    desk.submit(desk.job(ids))
    seen = []

    def look(core) -> None:
        seen.append([node.tokens for node in core.snapshot(desk.now).nodes])

    desk.step(meanwhile=look)

    assert seen == [[]]
    assert sum(node.tokens for node in desk.core.snapshot(desk.now).nodes) == 48


@pytest.mark.row("engine 15")
@on_both
@pytest.mark.parametrize("in_flight", [False, True])
def test_04_an_abort_in_mid_prefill_publishes_only_what_is_committed(make_index, in_flight):
    desk = desk_with(make_index, step_tokens=20, max_running=8)
    ids = list(range(2, 60))
    job = desk.submit(desk.job(ids))
    desk.step()

    if in_flight:
        desk.step(meanwhile=lambda core: core.cancel(job.job_id, desk.now))
    else:
        desk.cancel(job)

    committed = 40 if in_flight else 20
    assert sum(node.tokens for node in desk.core.snapshot(desk.now).nodes) == committed
    assert desk.run(desk.job(ids)).receipt.cached_tokens == committed


@pytest.mark.row("engine 17", "engine 18")
@on_both
def test_05_ten_thousand_random_operations_end_at_the_baseline(make_index):
    chance = seeded(5)
    sizes = {"pool_blocks": 24, "context_tokens": 200, "max_running": 4, "max_waiting": 8}
    desk = desk_with(make_index, **sizes)
    jobs: list[Job] = []
    wishes: list[Wish] = [Forget(), Hold(retention=RetentionClass.LIVE, ttl_s=9.0)]
    for _ in range(10_000):
        beat = chance.random()
        if beat < 0.25:
            known = chance.choice(jobs).token_ids if jobs and chance.random() < 0.6 else ()
            ids = [*known[: chance.randrange(160)], chance.randrange(2, 5), chance.randrange(2, 5)]
            job = desk.job(
                ids,
                owner_id=chance.choice([ANN, BEN]),
                session=chance.choice(["a", "b", None]),
                output=chance.choice([0, 2, 9]),
                job_class=chance.choice(list(JobClass)),
            )
            try:
                jobs.append(desk.submit(job))
            except Refused:
                continue
        elif beat < 0.85:
            desk.step()
        elif beat < 0.92 and jobs:
            desk.cancel(chance.choice(jobs[-8:]))
        elif beat < 0.96:
            subject = Subject(kind=SubjectKind.SESSION, subject_id="a", owner_id=ANN)
            wish = chance.choice(wishes)
            desk.core.lease(subject, wish, desk.now)
        else:
            desk.now += 400.0
        desk.core.check()
    desk.drain()
    for owner in (ANN, BEN):
        subject = Subject(kind=SubjectKind.OWNER, subject_id=owner, owner_id=owner)
        desk.core.lease(subject, Forget(), desk.now)
    desk.drain()

    assert desk.core.stats().evicted_blocks > 1000
    assert desk.core.stats().blocks.free == 24
    assert desk.core.is_idle


@on_both
@given(st.permutations(range(14)))
@settings(max_examples=20, deadline=None)
def test_07_replies_are_the_same_under_any_order_of_blocks(make_index, order):
    sizes = {"pool_blocks": 14, "context_tokens": 224}
    permuted, plain = desk_with(make_index, order=order, **sizes), desk_with(make_index, **sizes)

    assert talk(permuted, 3) == talk(plain, 3)


@pytest.mark.row("wiped blocks", "engine 17")
@on_both
def test_07_every_freed_block_is_wiped_before_it_is_used_again(make_index):
    desk = desk_with(make_index, pool_blocks=14, context_tokens=224)

    talk(desk, 8)
    desk.drain()

    evicted = desk.core.stats().evicted_blocks
    assert desk.paper.wiped_blocks >= evicted > 0


@pytest.mark.row("engine 27")
@pytest.mark.parametrize("name", COLLIDING)
def test_08_replies_and_hits_are_the_same_when_keys_collide(name):
    plain, colliding = desk_with(), desk_with(COLLIDING[name])

    assert talk(plain, 6) == talk(colliding, 6)
    assert plain.core.stats().cached_tokens == colliding.core.stats().cached_tokens > 0


def watch(pool: BlockPool, index: EntryTree) -> list[tuple[int, bool, list[int]]]:
    """Every block that leaves the index: what was free then, if it was a leaf's, who used it."""
    trimmed: list[tuple[int, bool, list[int]]] = []
    trim = index.trim

    def noted(leaf, count):
        users = [pool.users(block) for block in leaf.blocks[-count:]]
        trimmed.append((pool.free_blocks, leaf.is_leaf, users))
        return trim(leaf, count)

    index.trim = noted  # type: ignore[method-assign]
    return trimmed


@on_both
@given(seed=st.integers(0, 1 << 16), pool_blocks=st.integers(8, 20))
@settings(max_examples=30, deadline=None)
def test_09_only_idle_leaves_are_evicted_and_only_for_blocks_that_are_missing(
    make_index, seed, pool_blocks
):
    core_config = config(pool_blocks=pool_blocks, context_tokens=16 * pool_blocks, max_running=3)
    index = make_index(pool := BlockPool(pool_blocks), 16)
    trimmed = watch(pool, index)
    desk = Desk(core_config, Cache(pool, index, 16))
    chance = seeded(seed)
    for _ in range(12):
        ids = [chance.randrange(2, 4) for _ in range(chance.randrange(1, 8 * pool_blocks))]
        desk.submit(desk.job(ids, output=chance.randrange(20)))

    desk.drain()

    wanted = -(-core_config.context_tokens // 16)
    for free, is_leaf, users in trimmed:
        assert is_leaf
        assert not any(users)
        assert free < wanted


@on_both
def test_09_no_eviction_while_what_is_free_is_enough(make_index):
    desk = desk_with(make_index, pool_blocks=8, context_tokens=128)
    desk.run(desk.job([2] * 60, output=1))

    desk.run(desk.job([3] * 60, output=1))
    assert desk.core.stats().evicted_blocks == 0
    desk.run(desk.job([4] * 10, output=1))

    assert desk.core.stats().evicted_blocks == 1


@pytest.mark.row("engine 8")
@on_both
@given(st.permutations(list(RetentionClass)[:5]))
@settings(deadline=None)
def test_09_a_lower_class_goes_before_any_higher_one(make_index, classes):
    desk = desk_with(make_index, pool_blocks=6, context_tokens=96)
    for at, retention in enumerate(classes):
        session = f"s{at}"
        desk.run(desk.job([2 + at] * 16, session=session, output=0))
        subject = Subject(kind=SubjectKind.SESSION, subject_id=session, owner_id=ANN)
        desk.core.lease(subject, Hold(retention=retention), desk.now)

    def left() -> set[RetentionClass]:
        sessions = desk.core.snapshot(desk.now).sessions
        return {view.retention for view in sessions if view.cached_tokens}

    for rank in range(1, 5):
        desk.run(desk.job([50 + rank] * (16 * (1 + rank)), owner_id=BEN, output=0))
        assert left() == {retention for retention in classes if retention >= rank}


@pytest.mark.row("engine 11")
@on_both
def test_10_what_is_pinned_never_keeps_a_turn_from_finishing(make_index):
    desk = desk_with(make_index, pool_blocks=8, context_tokens=128)
    for at in range(4):
        desk.run(desk.job([2 + at] * 31, session=f"s{at}", output=0))
        subject = Subject(kind=SubjectKind.SESSION, subject_id=f"s{at}", owner_id=ANN)
        desk.core.lease(subject, Hold(retention=RetentionClass.LIVE), desk.now)
    assert desk.core.stats().blocks.pinned == 4

    ended = desk.run(desk.job([9] * 120, owner_id=OwnerId("zoe"), output=8))

    assert (ended.reason, len(ended.token_ids)) == (FinishReason.LENGTH, 8)


@on_both
def test_12_a_decode_step_without_hits_touches_the_cache_once_a_block(make_index):
    """Structural: what a decode costs the cache does not grow with the length of its history."""
    desk = Desk(config(block_tokens=16, pool_blocks=256, context_tokens=4096, step_tokens=2048))
    work: list[str] = []
    index = make_index(pool := BlockPool(256), 16)
    plain = index.publish

    def publish(ids, scopes, table, span):
        work.append(f"{span[1] - span[0].end} of {span[1]}")
        return plain(ids, scopes, table, span)

    index.publish = publish
    desk = Desk(desk.config, Cache(pool, index, 16))

    desk.run(desk.job([2 + at % 90 for at in range(2000)], output=64))

    # The prompt once, then a block at a time, from where the last one ended.
    assert work == ["2000 of 2000", "16 of 2016", "16 of 2032", "16 of 2048", "15 of 2063"]


@on_both
def test_12_a_miss_compares_no_more_than_it_has_to(make_index):
    pool = BlockPool(64)
    index = make_index(pool, 16)
    table = pool.allocate(63)
    assert table is not None
    ids = array("I", range(1000))
    scopes = ((user_scope(ANN), NO_END),)
    index.publish(ids, scopes, table, (index.root, 1000))

    match = index.match(array("I", range(500, 1500)), scopes, 1000)

    assert (match.tokens, match.entry) == (0, index.root)
