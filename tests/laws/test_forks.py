"""Throw-away branches: a title or a summary asks its question behind a conversation's ids (law 2)."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import (
    CacheSource,
    Engine,
    Job,
    JobClass,
    Limits,
    RenderRequest,
    Role,
    Scope,
    Started,
    Zone,
)
from engine.api import Message as Said
from engine.kv.blocks import BlockPool
from engine.kv.cache import Cache
from tests.kit.desk import BEN, Desk, Turn, config, seeded
from tests.kit.engines import PERSONA, Chat, a_job, open_local, play
from tests.kit.indexes import INDEXES, MakeIndex

TITLE_TOKENS, REPLY_TOKENS = 6, 5
QUESTION = "Give this conversation a title of three words."


def desk_on(make_index: MakeIndex, pool_blocks: int) -> Desk:
    core_config = config(pool_blocks=pool_blocks, context_tokens=16 * pool_blocks)
    pool = BlockPool(pool_blocks, wipe_freed=True)
    index = make_index(pool, core_config.block_tokens)
    return Desk(core_config, Cache(pool, index, core_config.block_tokens))


def title(desk: Desk, log: list[int], question: int) -> Job:
    """On the conversation's own ids, and of no session: nobody goes on from it."""
    ids = [*log, *range(60, 60 + question)]
    return desk.job(ids, output=TITLE_TOKENS, job_class=JobClass.BACKGROUND)


def own_blocks(shared: int, end: int) -> int:
    """What a path up to `end` needs besides the whole blocks of its first `shared` tokens."""
    return -(-end // 16) - shared // 16


def chat(desk: Desk, seed: int, question: int | None) -> list[Turn]:
    """A conversation until the pool is full, and its turns; with titles, where there is room.

    A title comes before the next turn, in the middle of it, or is cancelled in its own.
    """
    words, moments = seeded(seed), seeded(seed + 1)
    room = desk.config.pool_blocks
    log: list[int] = []
    turns: list[Turn] = []
    while len(log) + 25 <= 16 * room:
        before, shared = list(log), len(log)
        log += [words.randrange(2, 50) for _ in range(words.randrange(1, 20))]
        turn = desk.job(log, session="chat", output=REPLY_TOKENS)
        kept = own_blocks(0, shared)
        branch = own_blocks(shared, shared + (question or 0) + TITLE_TOKENS)
        beside = own_blocks(shared, len(log) + REPLY_TOKENS)
        if question is not None and before and kept + branch <= room:
            asked = desk.submit(title(desk, before, question))
            for _ in range(moments.randrange(4)):
                desk.step()
            if moments.random() < 0.3:
                desk.cancel(asked)
            elif moments.random() < 0.5 or kept + branch + beside > room:
                desk.finish(asked)
        turns.append(desk.run(turn))
        log += turns[-1].token_ids
        desk.drain()
        desk.core.check()
    return turns


@pytest.mark.parametrize("make_index", INDEXES)
@given(seed=st.integers(0, 1 << 16), pool_blocks=st.integers(4, 16), question=st.integers(1, 30))
@settings(max_examples=40, deadline=None)
def test_02_a_title_never_costs_the_next_turn_a_token(make_index, seed, pool_blocks, question):
    """Also where the pool has room for what runs and what is kept, and for nothing else."""
    titled = chat(desk_on(make_index, pool_blocks), seed, question)
    plain = chat(desk_on(make_index, pool_blocks), seed, None)

    assert [turn.token_ids for turn in titled] == [turn.token_ids for turn in plain]
    for one, other in zip(titled, plain, strict=True):
        # A title computes the KV of the last reply's last token, which a turn leaves open.
        assert one.receipt.computed_tokens <= other.receipt.computed_tokens


@pytest.mark.parametrize("make_index", INDEXES)
def test_09_what_a_title_leaves_behind_is_the_first_to_go(make_index):
    desk = desk_on(make_index, 8)
    first = desk.job(range(2, 40), session="chat", output=REPLY_TOKENS)
    log = [*first.token_ids, *desk.run(first).token_ids]
    asked = title(desk, log, 20)
    desk.run(asked)

    desk.run(desk.job([90] * 70, owner_id=BEN, session="other", output=REPLY_TOKENS))

    turn = desk.run(desk.job([*log, 50, 51], session="chat", output=0))
    assert turn.receipt.cached_tokens >= len(log) - 1
    again = desk.run(title(desk, log, 20))
    assert again.receipt.cached_tokens < len(asked.token_ids) - 1


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
