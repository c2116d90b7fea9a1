"""Throw-away branches: a title or a summary asks its question behind a conversation's ids (law 2)."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import (
    CacheSource,
    Engine,
    FinishReason,
    Forget,
    Job,
    JobClass,
    Limits,
    RenderRequest,
    Role,
    Scope,
    Started,
    Subject,
    SubjectKind,
    Zone,
)
from engine.api import Message as Said
from engine.kv.blocks import BlockPool
from engine.kv.cache import Cache
from engine.step import BlockId
from tests.kit.desk import ANN, BEN, Desk, config
from tests.kit.engines import PERSONA, Chat, a_job, open_local, play
from tests.kit.indexes import INDEXES, MakeIndex
from tests.kit.paper import EOS_TOKEN_ID, answer
from tests.kit.titles import SILENCE_S, Round, lived, lives

TITLE_TOKENS, REPLY_TOKENS = 6, 5
QUESTION = "Give this conversation a title of three words."


def desk_on(make_index: MakeIndex, block_tokens: int, pool_blocks: int) -> Desk:
    core_config = config(
        block_tokens=block_tokens,
        pool_blocks=pool_blocks,
        context_tokens=block_tokens * pool_blocks,
    )
    pool = BlockPool(pool_blocks)
    return Desk(core_config, Cache(pool, make_index(pool, block_tokens), block_tokens))


def title(desk: Desk, log: Sequence[int], *, output: int = TITLE_TOKENS) -> Job:
    """On the conversation's own ids, with a question of twenty tokens behind them."""
    ids = [*log, *range(60, 80)]
    return desk.job(ids, session="chat", output=output, job_class=JobClass.BACKGROUND)


def first_turn(desk: Desk, tokens: int = 38) -> list[int]:
    """A conversation's ids after it."""
    job = desk.job(range(2, 2 + tokens), session="chat", output=REPLY_TOKENS)
    return [*job.token_ids, *desk.run(job).token_ids]


def compare(desks: Sequence[Desk], life: list[Round], titled: set[int], judged: set[int]) -> None:
    """Live it at the first desk with titles and at the second without."""
    one, other = lived(desks[0], life, titled), lived(desks[1], life)

    assert {job.job_id for job in one.titles} <= set(desks[0].ended)
    for (chat, turn), (_, plain) in zip(one.turns, other.turns, strict=True):
        assert turn.token_ids == plain.token_ids
        if chat in judged:
            assert turn.receipt.computed_tokens <= plain.receipt.computed_tokens


@pytest.mark.parametrize("make_index", INDEXES)
@pytest.mark.parametrize("block_tokens", [4, 16])
@given(pool_blocks=st.integers(4, 24), life=lives)
@settings(max_examples=60, deadline=None)
def test_02_a_title_never_costs_the_next_turn_a_token(make_index, block_tokens, pool_blocks, life):
    """In a pool of a few blocks that holds nothing but the conversation, idle or not."""
    alone = [one._replace(chat=0, titles=[t._replace(chat=0) for t in one.titles]) for one in life]
    desks = [desk_on(make_index, block_tokens, pool_blocks) for _ in range(2)]

    compare(desks, alone, titled={0}, judged={0})


@pytest.mark.parametrize("make_index", INDEXES)
@pytest.mark.parametrize("block_tokens", [4, 16])
@given(pool_blocks=st.integers(4, 24), life=lives)
@settings(max_examples=60, deadline=None)
def test_02_a_title_costs_its_own_conversation_nothing_beside_idle_ones(
    make_index, block_tokens, pool_blocks, life
):
    desks = [desk_on(make_index, block_tokens, pool_blocks) for _ in range(2)]

    compare(desks, life, titled={0}, judged={0})


@pytest.mark.parametrize("make_index", INDEXES)
@pytest.mark.parametrize("block_tokens", [4, 16])
@given(pool_blocks=st.integers(4, 24), life=lives)
@settings(max_examples=60, deadline=None)
def test_02_no_title_costs_any_conversation_a_token_within_ten_minutes(
    make_index, block_tokens, pool_blocks, life
):
    """What was drafted is a guess, and room for it is anybody's."""
    busy = [one._replace(silence=False, draft=False) for one in life]
    desks = [desk_on(make_index, block_tokens, pool_blocks) for _ in range(2)]

    compare(desks, busy, titled={0, 1, 2}, judged={0, 1, 2})


@pytest.mark.parametrize("make_index", INDEXES)
def test_05_a_title_leaves_nothing_behind(make_index):
    desk = desk_on(make_index, 16, 8)
    log = first_turn(desk)
    before = desk.core.stats().blocks, desk.core.snapshot(0.0).nodes

    asked = title(desk, log)
    ended = desk.run(asked)
    desk.drain()

    assert (desk.core.stats().blocks, desk.core.snapshot(0.0).nodes) == before
    assert ended.receipt.cached_tokens == len(log) - 1
    assert ended.token_ids == answer(asked.token_ids, TITLE_TOKENS, (EOS_TOKEN_ID,))


@pytest.mark.parametrize("make_index", INDEXES)
def test_09_a_title_takes_the_place_of_an_idle_conversation_and_of_no_other(make_index):
    desk = desk_on(make_index, 16, 8)
    desk.run(desk.job([90] * 70, owner_id=BEN, session="other", output=REPLY_TOKENS))
    log = first_turn(desk)

    refused = desk.submit(title(desk, log))
    desk.drain()
    desk.now += SILENCE_S
    served = desk.run(title(desk, log))

    ended = desk.ended[refused.job_id]
    assert ended.reason is FinishReason.REFUSED
    assert ended.refusal is not None and ended.refusal.code == "overloaded"
    assert served.reason is FinishReason.LENGTH
    assert served.receipt.cached_tokens == len(log) - 1


@pytest.mark.parametrize("make_index", INDEXES)
def test_10_a_title_without_room_waits_for_who_runs_and_holds_up_nobody(make_index):
    desk = desk_on(make_index, 16, 8)
    log = first_turn(desk)
    turn = desk.submit(desk.job([90] * 60, owner_id=BEN, session="other", output=12))
    desk.step()

    asked = desk.submit(title(desk, log, output=30))
    draft = desk.submit(desk.job([*log, 7], session="chat", output=0, job_class=JobClass.DRAFT))
    warm_up = desk.submit(
        desk.job([*log, 7], session="chat", output=0, job_class=JobClass.BACKGROUND)
    )
    desk.step()
    waits = asked.job_id not in desk.ended
    desk.finish(turn)
    desk.drain()

    assert waits
    assert desk.ended[asked.job_id].reason is FinishReason.REFUSED
    assert desk.ended[warm_up.job_id].reason is FinishReason.LENGTH
    assert desk.ended[draft.job_id].reason is FinishReason.REFUSED, "no room for it is spare"


@pytest.mark.parametrize("make_index", INDEXES)
def test_01_a_title_of_a_forgotten_conversation_is_wiped_with_it(make_index):
    desk = desk_on(make_index, 16, 8)
    log = first_turn(desk)
    desk.submit(title(desk, log))
    desk.step()
    subject = Subject(kind=SubjectKind.SESSION, subject_id="chat", owner_id=ANN)

    desk.core.lease(subject, Forget(), desk.now)
    desk.drain()

    assert desk.core.stats().blocks.free == 8
    assert all(desk.paper.is_blank(BlockId(block)) for block in range(8))


async def title_of(chat: Chat) -> Job:
    """A title as the server would ask for it: the conversation's exact ids, and one question more."""
    asked = (Said(role=Role.USER, text=QUESTION),)
    request = RenderRequest(messages=asked, seam=chat.seam, opens_reply=True)
    ids = chat.token_ids + (await chat.engine.render(request)).token_ids
    own = Zone(scope=Scope(chat.owner), source=CacheSource.SESSION, end=len(ids))
    return a_job(
        ids,
        owner=chat.owner,
        zones=(*chat.head, own),
        job_class=JobClass.BACKGROUND,
        limits=Limits(max_output_tokens=TITLE_TOKENS),
    )


async def stop_at_once(engine: Engine, job: Job) -> None:
    async for event in engine.generate(job):
        if isinstance(event, Started):
            await engine.cancel(job.job_id)


async def test_02_titles_of_the_real_model_cost_its_turns_nothing():
    """After each turn one that has ended, one that the next turn meets, and one that is cancelled."""
    texts = ("Name an animal.", "And a plant?", "Now a stone.", "Thank you.")
    async with open_local() as engine, open_local() as plain:
        titled, untitled = (Chat(one, persona=PERSONA) for one in (engine, plain))
        for text in texts:
            async with asyncio.TaskGroup() as titles:
                before = len(titled.token_ids)
                if before:
                    ended = await play(engine, await title_of(titled))
                    assert ended.receipt.cached_tokens >= before - 1
                    titles.create_task(play(engine, await title_of(titled)))
                    titles.create_task(stop_at_once(engine, await title_of(titled)))
                said = await titled.say(text)
            expected = await untitled.say(text)

            assert said.token_ids == expected.token_ids
            assert said.receipt.cached_tokens >= before - 1
            assert said.receipt.computed_tokens <= expected.receipt.computed_tokens
