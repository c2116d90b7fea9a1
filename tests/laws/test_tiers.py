"""Parking and restoring change what a turn costs, and nothing else (laws 1, 2, 4, 5, 10, 11)."""

import msgspec
import pytest

from engine.api import (
    FinishReason,
    Forget,
    MissReason,
    Park,
    Subject,
    SubjectKind,
    Warm,
)
from engine.config import PREFIX_INDEXES
from engine.figures import CacheChange
from engine.kv.parking import Reading
from engine.kv.tiers import TierSizes
from engine.step import Park as ParkOrder
from engine.step import Restore
from engine.terms import Tier
from tests.kit.desk import ANN, BEN, Desk, config, seeded
from tests.kit.paper import EOS_TOKEN_ID, answer

BANNED = (EOS_TOKEN_ID,)


def tiers(*, host: int = 0, disk: int = 4096) -> TierSizes:
    return TierSizes(token_bytes=1, host_bytes=host, disk_bytes=disk, segment_tokens=32)


@pytest.fixture(params=PREFIX_INDEXES)
def index(request) -> str:
    return request.param


def desk_with(index: str, **changes: object) -> Desk:
    sizes = {"tiers": tiers(), "context_tokens": 256, "prefix_index": index}
    return Desk(config(**(sizes | changes)))


def text(seed: int, tokens: int) -> list[int]:
    chance = seeded(seed)
    return [chance.randint(2, 96) for _ in range(tokens)]


def session(name: str, owner_id=ANN) -> Subject:
    return Subject(kind=SubjectKind.SESSION, subject_id=name, owner_id=owner_id)


def evict_all(desk: Desk) -> None:
    """Somebody needs the whole pool."""
    blocks = desk.config.pool_blocks * desk.config.block_tokens
    tokens = min(blocks, desk.config.context_tokens) - 1
    desk.run(desk.job([7] * tokens, owner_id=BEN, output=1))
    desk.drain()


def parked_desk(index: str, **changes: object) -> tuple[Desk, list[int]]:
    """A conversation of one turn that lies on disk and nowhere else."""
    desk = desk_with(index, **({"pool_blocks": 16} | changes))
    job = desk.job(text(1, 100), session="chat")
    ended = desk.run(job)
    desk.now += 10_000
    desk.drain()
    evict_all(desk)
    return desk, [*job.token_ids, *ended.token_ids]


def test_01_a_parked_conversation_goes_on_as_if_it_had_never_been_away(index):
    desk, log = parked_desk(index)

    ended = desk.run(desk.job([*log, 5, 6], session="chat", output=6))

    assert ended.token_ids == answer([*log, 5, 6], 6, BANNED)
    assert ended.receipt.cached_tokens >= len(log) - 1
    assert ended.receipt.cached_tokens + ended.receipt.computed_tokens == len(log) + 2


def test_02_what_is_restored_is_not_computed(index):
    desk, log = parked_desk(index)
    before = desk.paper.computed_tokens

    ended = desk.run(desk.job([*log, 5, 6], session="chat", output=1))

    assert desk.paper.computed_tokens - before == ended.receipt.computed_tokens == 3


@pytest.mark.parametrize("whole", [0, 1, 2, 3])
def test_01_what_is_damaged_is_computed_again(index, whole):
    desk, log = parked_desk(index)
    job = desk.submit(desk.job([*log, 5, 6], session="chat", output=6))
    desk.step()
    assert isinstance(desk.paper.moving[0], Restore)

    desk.arrive(pieces=whole)

    ended = desk.finish(job)
    assert ended.token_ids == answer([*log, 5, 6], 6, BANNED)
    assert ended.receipt.cached_tokens == min(
        32 * whole, len(log) - 1 if whole == 4 else 32 * whole
    )
    assert ended.receipt.cached_tokens + ended.receipt.computed_tokens == len(log) + 2
    desk.drain()
    desk.core.check()


def test_01_the_next_life_restores_what_the_disk_kept(index):
    desk, log = parked_desk(index)
    later = Desk(desk.config)
    later.paper.segments = {key: held for key, held in desk.paper.segments.items() if held}
    later.core.load([desk.paper.heads[name] for _, name in later.paper.segments])

    ended = later.run(later.job([*log, 5, 6], session="chat", output=6))

    assert ended.token_ids == answer([*log, 5, 6], 6, BANNED)
    assert ended.receipt.cached_tokens >= len(log) - 1


@pytest.mark.parametrize("host", [0, 40, 100, 512, 4096])
def test_01_a_close_parks_every_session(index, host):
    """On the disk: what memory holds of it, or is only being given, ends with the process."""
    desk = desk_with(index, pool_blocks=64, tiers=tiers(host=host))
    logs = {}
    for number in range(4):
        job = desk.job(text(number, 60), session=f"s{number}")
        logs[number] = [*job.token_ids, *desk.run(job).token_ids]

    desk.core.close()
    desk.drain()
    assert not desk.core.is_moving
    later = Desk(desk.config)
    later.paper.segments = {at: kv for at, kv in desk.paper.segments.items() if at[0] is Tier.DISK}
    later.core.load([desk.paper.heads[name] for _, name in later.paper.segments])

    for number, log in logs.items():
        ended = later.run(later.job([*log, 5], session=f"s{number}"))
        assert ended.receipt.cached_tokens >= len(log) - 1


def test_01_what_memory_had_no_room_for_while_others_left_it_is_parked_when_they_have(index):
    desk = desk_with(index, pool_blocks=64, tiers=tiers(host=110))
    for number in range(4):
        desk.run(desk.job(text(number, 60), session=f"s{number}"))
        desk.core.lease(session(f"s{number}"), Park(), desk.now)
    desk.drain()

    parked = {name for _, name in desk.paper.segments}
    assert sum(len(desk.paper.heads[name].token_ids) for name in parked) == 4 * 63


def test_01_a_close_parks_again_what_the_disk_had_let_go(index):
    desk = desk_with(index, pool_blocks=64, tiers=tiers(disk=120))
    for seed, name in enumerate(("first", "second")):
        desk.run(desk.job(text(seed, 100), session=name))
        desk.core.lease(session(name), Park(), desk.now)
        desk.drain()
    desk.core.lease(session("second"), Forget(), desk.now)
    desk.drain()

    desk.core.close()
    desk.drain()

    kept = [desk.paper.heads[name] for _, name in desk.paper.segments]
    assert sum(len(head.token_ids) for head in kept if head.session_id == "first") == 103


@pytest.mark.row("engine 32")
def test_04_nothing_is_matchable_before_it_has_arrived(index):
    desk, log = parked_desk(index)
    first = desk.submit(desk.job([*log, 5], session="chat"))
    desk.step()

    second = desk.submit(desk.job([*log, 6], session="chat"))
    desk.step()

    assert not {first.job_id, second.job_id} & desk.started.keys()
    assert desk.finish(first).receipt.cached_tokens >= len(log) - 1
    assert desk.finish(second).receipt.cached_tokens >= len(log) - 1


@pytest.mark.row("engine 32")
def test_05_the_source_of_a_park_is_locked_until_it_has_arrived(index):
    desk = desk_with(index, pool_blocks=16)
    desk.run(desk.job(text(1, 100), session="chat"))
    desk.now += 10_000
    desk.step()
    assert isinstance(desk.paper.moving[0], ParkOrder)
    assert desk.core.stats().blocks.copying >= 6

    job = desk.submit(desk.job([7] * 250, owner_id=BEN, output=1))
    desk.step()
    assert job.job_id not in desk.started

    assert desk.finish(job).reason is FinishReason.LENGTH


@pytest.mark.parametrize("forgets", [False, True])
def test_15_a_turn_that_is_cancelled_while_it_is_restored_gives_everything_back(index, forgets):
    desk, log = parked_desk(index)
    job = desk.submit(desk.job([*log, 5], session="chat"))
    desk.step()
    restore = desk.paper.moving[0]
    assert isinstance(restore, Restore)

    if forgets:
        desk.core.lease(session("chat"), Forget(), desk.now)
    desk.cancel(job)

    assert desk.ended[job.job_id].reason is FinishReason.CANCELLED
    assert desk.core.stats().blocks.in_use >= 7
    desk.core.check()
    desk.drain()
    assert desk.core.stats().blocks.in_use == 0
    assert desk.run(desk.job([*log, 5], session="chat")).token_ids == answer([*log, 5], 4, BANNED)


def test_10_restores_that_take_for_ever_keep_nobody_else_waiting(index):
    desk, log = parked_desk(index, pool_blocks=20)
    stuck = desk.submit(desk.job([*log, 5], session="chat"))
    desk.step()

    others = [desk.submit(desk.job(text(9, 40), owner_id=BEN)) for _ in range(3)]
    for _ in range(40):
        desk.step()

    assert all(job.job_id in desk.ended for job in others)
    assert stuck.job_id not in desk.ended
    assert desk.finish(stuck).reason is FinishReason.LENGTH


def test_11_what_one_user_parked_is_never_restored_for_another(index):
    desk, log = parked_desk(index)

    ended = desk.run(desk.job([*log, 5], owner_id=BEN, session="chat"))

    assert ended.receipt.cached_tokens == 0


def test_01_a_forgotten_conversation_is_gone_from_every_tier(index):
    desk, log = parked_desk(index, tiers=tiers(host=512))

    desk.core.lease(session("chat"), Forget(), desk.now)
    desk.drain()

    assert not [
        head for _, name in desk.paper.segments if (head := desk.paper.heads[name]).owner_id == ANN
    ]
    assert desk.run(desk.job([*log, 5], session="chat")).receipt.cached_tokens == 0


def test_02_what_is_read_slower_than_it_is_computed_is_computed(index):
    desk, log = parked_desk(index)
    desk.core._cache.parking.reading.learn({Tier.DISK: 1}, 1000.0)

    ended = desk.run(desk.job([*log, 5], session="chat"))

    assert ended.receipt.cached_tokens == 0
    assert not desk.core.stats().segments[CacheChange.RESTORED]


def test_02_a_disk_that_was_slow_once_is_tried_again(index):
    desk, log = parked_desk(index)
    desk.core._cache.parking.reading.learn({Tier.DISK: 1}, 1000.0)
    for _ in range(1000):
        ended = desk.run(desk.job([*log, 5], session="chat"))
        if ended.receipt.cached_tokens:
            break
        desk.now += 10_000
        desk.drain()
        evict_all(desk)

    assert ended.receipt.cached_tokens >= len(log) - 1
    assert desk.core.stats().segments[CacheChange.RESTORED]


def test_02_a_slow_disk_says_nothing_of_memory(index):
    desk, log = parked_desk(index, tiers=tiers(host=512))
    desk.core._cache.parking.reading.learn({Tier.DISK: 1}, 1000.0)

    ended = desk.run(desk.job([*log, 5], session="chat"))

    assert ended.receipt.cached_tokens >= len(log) - 1


def test_02_of_a_path_in_memory_and_on_disk_the_disk_takes_what_memory_does_not():
    reading = Reading()
    reading.learn({Tier.HOST: 100}, 1.0)
    reading.learn({Tier.HOST: 100, Tier.DISK: 10}, 2.0)

    assert reading.seconds({Tier.HOST: 100}) == pytest.approx(1.0)
    assert reading.seconds({Tier.HOST: 50, Tier.DISK: 20}) == pytest.approx(2.5)


def test_01_a_wish_to_park_is_carried_out_though_nothing_presses(index):
    desk = desk_with(index)
    desk.run(desk.job(text(1, 100), session="chat"))

    desk.core.lease(session("chat"), Park(), desk.now)
    desk.drain()

    assert sum(len(desk.paper.heads[name].token_ids) for _, name in desk.paper.segments) == 103
    assert desk.core.stats().blocks.free < desk.config.pool_blocks


def test_02_a_conversation_that_was_wished_back_is_there_before_its_turn(index):
    desk, log = parked_desk(index)
    before = desk.paper.computed_tokens

    desk.core.lease(session("chat"), Warm(), desk.now)
    desk.drain()

    assert desk.paper.computed_tokens == before
    job = desk.submit(desk.job([*log, 5], session="chat"))
    desk.step()
    assert desk.started[job.job_id].cached_tokens >= len(log) - 1


def test_02_what_was_wished_back_and_is_damaged_is_computed_while_nothing_else_runs(index):
    desk, log = parked_desk(index)
    desk.core.lease(session("chat"), Warm(), desk.now)
    desk.step()

    desk.arrive(pieces=1)
    desk.drain()

    assert desk.run(desk.job([*log, 5], session="chat")).receipt.cached_tokens >= len(log) - 2


@pytest.mark.parametrize("subject", [session("chat"), session("another"), session("chat", BEN)])
def test_10_wishing_back_what_is_there_or_never_was_does_nothing(index, subject):
    desk = desk_with(index)
    desk.run(desk.job(text(1, 100), session="chat"))

    state = desk.core.lease(subject, Warm(), desk.now)

    assert state.pinned_blocks == 0
    assert not desk.step()


def test_10_more_sessions_than_the_pool_holds_all_stay_warm(index):
    desk = desk_with(index, pool_blocks=48, context_tokens=120)
    logs = {str(at): text(at, 30) for at in range(24)}
    for turn in range(4):
        for name, log in logs.items():
            ended = desk.run(desk.job([*log, 5 + turn], session=name))
            if turn:
                # Less than a block is computed sooner than it is read.
                assert ended.receipt.cached_tokens > len(log) - 16, (turn, name)
            logs[name] = [*log, 5 + turn, *ended.token_ids]
            desk.drain()


def test_02_an_evicted_and_lost_conversation_says_why(index):
    desk = desk_with(index, pool_blocks=16, tiers=tiers(disk=40))
    job = desk.job(text(1, 100), session="chat")
    ended = desk.run(job)
    evict_all(desk)

    again = desk.run(
        desk.job(
            [*job.token_ids, *ended.token_ids, 5],
            session="chat",
            history=desk.history(ended, job),
        )
    )

    assert again.receipt.miss_reason in (MissReason.EVICTED_PRESSURE, MissReason.EVICTED_IDLE)


def test_17_what_is_not_to_be_stored_is_never_written_to_disk(index):
    desk = desk_with(index, pool_blocks=16, tiers=tiers(host=512))
    job = msgspec.structs.replace(desk.job(text(1, 100), session="chat"), durable=False)
    ended = desk.run(job)
    desk.now += 10_000
    desk.drain()
    evict_all(desk)
    desk.core.close()
    desk.drain()

    assert {tier for tier, _ in desk.paper.segments} == {Tier.HOST}
    log = [*job.token_ids, *ended.token_ids]
    assert desk.run(desk.job([*log, 5], session="chat")).receipt.cached_tokens >= len(log) - 1
