"""An abort at every point of a job's life: nothing leaks, nothing is told wrong (laws 1, 5, 15).

Every point is visited: on the paper model every step and every transfer, before it and while it is
under way, and of the engine in this process every place at which a reader awaits.
"""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from itertools import count
from typing import Any

import pytest

from engine.api import FinishReason, Forget, Job, Limits, Subject, SubjectKind
from engine.config import PREFIX_INDEXES
from engine.core import Core
from engine.kv.tiers import TierSizes
from tests.kit.desk import ANN, BEN, Desk, config
from tests.kit.engines import a_job, as_served, first_prompt, open_local, play
from tests.kit.paper import EOS_TOKEN_ID, answer

DEADLINE_S = 60.0
TEXT = [2 + at * at % 90 for at in range(45)]
Abort = Callable[[Core, Job, float], object]


def cancel(core: Core, job: Job, now: float) -> object:
    return core.cancel(job.job_id, now)


def stop(core: Core, job: Job, now: float) -> object:
    core.stop(job.job_id, (), now)
    return None


def forget(core: Core, job: Job, now: float) -> object:
    """Whose job it is has gone, and the job with it."""
    core.lease(subject(job.owner_id), Forget(), now)
    return core.cancel(job.job_id, now)


def subject(owner_id) -> Subject:
    return Subject(kind=SubjectKind.OWNER, subject_id=owner_id, owner_id=owner_id)


def desk_with_a_turn(index: str) -> tuple[Desk, Job]:
    """A turn that meets all there is: it is restored, prefilled in pieces, decodes.

    Beside it another's answer goes on, for which there has to be room.
    """
    desk = Desk(
        config(
            block_tokens=4,
            pool_blocks=40,
            context_tokens=160,
            step_tokens=12,
            prefix_index=index,
            tiers=TierSizes(token_bytes=1, host_bytes=60, disk_bytes=400, segment_tokens=16),
        )
    )
    desk.run(desk.job(TEXT, session="chat", shared=6, output=3))
    desk.now += 10_000
    desk.drain()
    desk.run(desk.job([7] * 159, owner_id=BEN, output=1))
    desk.drain()
    desk.submit(desk.job([8] * 20, owner_id=BEN, session="other", output=12))
    turn = desk.submit(desk.job([*TEXT, *TEXT[:30]], session="chat", shared=6, output=6))
    return desk, turn


def go_on(desk: Desk, meanwhile: Callable[[Core], object] = id) -> bool:
    """The next step, or where there is none the next transfer; False: nothing is left to do."""
    if desk.step(meanwhile):
        return True
    if desk.paper.moving:
        desk.arrive()
        return True
    return False


def aborting(desk: Desk, turn: Job, abort: Abort) -> Callable[[Core], object]:
    return lambda core: abort(core, turn, desk.now)


@pytest.mark.row("engine 22")
@pytest.mark.parametrize("index", PREFIX_INDEXES)
@pytest.mark.parametrize("abort", [cancel, stop, forget])
@pytest.mark.parametrize("in_flight", [False, True], ids=["between", "in flight"])
def test_15_a_turn_that_is_aborted_at_any_point_leaves_the_pool_at_its_baseline(
    index: str, abort: Abort, in_flight
):
    for point in count():
        desk, turn = desk_with_a_turn(index)
        for _ in range(point):
            go_on(desk)
        was_over = turn.job_id in desk.ended

        if in_flight:
            go_on(desk, aborting(desk, turn, abort))
        else:
            abort(desk.core, turn, desk.now)
        desk.drain()

        _ends_as_it_should(desk, turn, abort)
        again = desk.run(desk.job([*turn.token_ids, 5], session="chat", shared=6))
        assert again.token_ids == answer([*turn.token_ids, 5], 4, (EOS_TOKEN_ID,))
        _is_at_its_baseline(desk)
        if was_over:
            break
    # Restored, prefilled in pieces, decoded: not over after a few points.
    assert point > 9


@pytest.mark.row("engine 22")
@pytest.mark.parametrize("index", PREFIX_INDEXES)
def test_15_while_a_transfer_is_silent_an_abort_gives_back_what_it_does_not_touch(index):
    """A peer that never answers keeps what it may still write to, and nothing else, nor anybody."""
    desk, turn = desk_with_a_turn(index)
    desk.step()
    assert desk.paper.moving and turn.job_id not in desk.started

    desk.cancel(turn)
    while desk.step():
        pass

    assert desk.ended[turn.job_id].reason is FinishReason.CANCELLED
    assert len(desk.ended) == 4, "another's answer waited for it"
    written = sum(piece.slots.tokens for piece in getattr(desk.paper.moving[0], "pieces", ()))
    assert desk.core.stats().blocks.in_use <= -(-len(turn.token_ids) // 4)
    assert written > 0
    desk.core.check()
    desk.drain()
    _is_at_its_baseline(desk)


@types.coroutine
def cut(whole: Coroutine[Any, Any, object], awaits: int) -> Generator[Any, None, bool]:
    """Cancel a coroutine where it awaits for the nth time; False: it ended before."""
    for at in count():
        try:
            waits = whole.send(None)
        except StopIteration:
            return False
        if at == awaits:
            with pytest.raises(asyncio.CancelledError):
                whole.throw(asyncio.CancelledError())
            return True
        yield waits
    raise AssertionError


@pytest.mark.row("engine 22")
async def test_15_a_reader_that_is_gone_at_any_await_leaves_the_pool_at_its_baseline():
    async with open_local(as_served(blocks=40, step_tokens=16)) as engine:
        prompt = await first_prompt(engine, "Name three animals, and say where each of them lives.")
        limits = Limits(max_output_tokens=4, ignore_eos=True)
        said = (await play(engine, a_job(prompt, limits=limits))).token_ids
        for awaits in count():
            was_cut = await cut(play(engine, a_job(prompt, limits=limits)), awaits)
            async with asyncio.timeout(DEADLINE_S):
                while (stats := await engine.stats()).running_jobs + stats.waiting_jobs:
                    pass
                await engine.lease(subject("ann"), Forget())
                while (blocks := (await engine.stats()).blocks).free < blocks.total:
                    pass
            if not was_cut:
                break
        assert awaits > 3
        assert (await play(engine, a_job(prompt, limits=limits))).token_ids == said


def _ends_as_it_should(desk: Desk, turn: Job, abort: Abort) -> None:
    ended = desk.ended[turn.job_id]
    said = tuple(desk.emitted.get(turn.job_id, ()))
    if ended.reason is FinishReason.LENGTH:
        assert said == answer(turn.token_ids, 6, (EOS_TOKEN_ID,))
    else:
        assert ended.reason is (FinishReason.STOP if abort is stop else FinishReason.CANCELLED)
        assert said == answer(turn.token_ids, len(said), (EOS_TOKEN_ID,))
    if ended.receipt is not None:
        receipt = ended.receipt
        assert receipt.cached_tokens + receipt.computed_tokens == receipt.prompt_tokens


def _is_at_its_baseline(desk: Desk) -> None:
    """All are forgotten: what is left is the operator's, and nothing is anybody's or on its way."""
    for owner in (ANN, BEN):
        desk.core.lease(subject(owner), Forget(), desk.now)
    desk.drain()
    desk.core.check()
    blocks = desk.core.stats().blocks
    assert (blocks.in_use, blocks.copying, blocks.pinned) == (0, 0, 0)
    assert blocks.free >= blocks.total - 2  # six tokens of the operator's zone
    assert not desk.core.is_moving and desk.core.is_idle
    assert {desk.paper.heads[name].owner_id for _, name in desk.paper.segments} <= {""}
