"""What is cached changes when an answer comes and nothing else, on the real model in fp32.

The reference is stock `transformers.generate` without any cache of ours. Poison and checks are on:
a slot read before it was written would be NaN, and every step proves the books.
"""

import asyncio
from collections.abc import Callable

import pytest
import pytest_asyncio

from engine.api import Forget, Limits, OwnerId, Subject, SubjectKind
from engine.config import PREFIX_INDEXES
from engine.kv.blocks import BlockPool
from engine.kv.cache import Cache
from engine.kv.radix import RadixIndex
from engine.parts import CoreConfig
from tests.kit.engines import PERSONA, Chat, Outcome, a_config, a_job, open_local, play
from tests.kit.model import generate, loaded_model

pytestmark = pytest.mark.asyncio(loop_scope="module")

REPLY = 6
LIMITS = Limits(max_output_tokens=REPLY, ignore_eos=True)

TOPICS = ["cats", "rivers and the sea", "how bread is baked", "old ships"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine():
    async with open_local(a_config()) as engine:
        yield engine


@pytest.mark.row("engine 30")
async def test_06_conversations_that_stream_at_once_say_what_generate_says(engine):
    chats = [Chat(engine, owner=f"user-{i}") for i in range(len(TOPICS))]

    for turn in ("Tell me about {}.", "What else about {}?", "And why {}?"):
        await asyncio.gather(
            *(
                say_as_generate(chat, turn.format(topic))
                for chat, topic in zip(chats, TOPICS, strict=True)
            )
        )


async def test_06_a_conversation_forked_in_mid_block_says_what_generate_says(engine):
    chat = Chat(engine, owner="forker")
    await say_as_generate(chat, "Name an animal.")
    await say_as_generate(chat, "Name another one.")
    fork, shared = chat.fork(), len(chat.token_ids)

    one = await say_as_generate(chat, "Which is faster?")
    other = await say_as_generate(fork, "Where do they live?")

    assert shared % 16 != 0
    assert one.receipt.cached_tokens >= shared - 1
    assert other.receipt.cached_tokens >= shared - 1


async def test_01_a_turn_whose_blocks_were_forgotten_says_the_same(engine):
    chat = Chat(engine, owner="forgotten")
    await say_as_generate(chat, "Tell me about bees.")
    job = await chat.next_job("And about wasps?", limits=LIMITS)

    warm = await play(engine, job)
    subject = Subject(kind=SubjectKind.OWNER, subject_id="forgotten", owner_id=OwnerId("forgotten"))
    await engine.lease(subject, Forget())
    cold = await play(engine, await chat.next_job("And about wasps?", limits=LIMITS))

    assert warm.receipt.cached_by_source.session > 0
    assert cold.receipt.cached_by_source.session == 0
    assert (cold.token_ids, cold.text) == (warm.token_ids, warm.text)


@pytest.mark.parametrize("index", PREFIX_INDEXES)
async def test_06_under_eviction_pressure_every_answer_is_the_same(index):
    config = a_config(blocks=20, max_running=2, prefix_index=index)
    async with open_local(config) as engine:
        chats = [Chat(engine, owner=f"user-{i}") for i in range(len(TOPICS))]

        for turn in ("Tell me about {}.", "What else about {}?", "And why {}?"):
            await asyncio.gather(
                *(
                    say_as_generate(chat, turn.format(topic))
                    for chat, topic in zip(chats, TOPICS, strict=True)
                )
            )

        assert (await engine.stats()).evicted_blocks > 0


@pytest.mark.parametrize("index", PREFIX_INDEXES)
async def test_10_turns_of_two_finish_in_a_pool_of_a_single_block(index):
    """The least that may be asked for; a step could take 128 tokens."""
    config = a_config(kv_memory_bytes=1 << 20, prefix_index=index)
    async with open_local(config) as engine:
        for end in (16 - REPLY, 6):
            prompts = [tuple(range(start, start + end)) for start in (600, 700)]
            jobs = [a_job(ids, owner=f"user-{ids[0]}", limits=LIMITS) for ids in prompts]
            outcomes = await asyncio.gather(*(play(engine, job) for job in jobs))

            for ids, outcome in zip(prompts, outcomes, strict=True):
                assert list(outcome.token_ids) == generate(loaded_model(), ids, REPLY)
        refused = (await play(engine, a_job(tuple(range(600, 616))))).finished.refusal
        assert refused is not None
        assert (refused.needed_tokens, refused.limit_tokens) == (17, 16)


@pytest.mark.row("engine 17")
async def test_07_permuted_blocks_say_the_same():
    async with open_local(a_config(blocks=64), make_cache=permuted_cache) as engine:
        chats = [Chat(engine, owner=f"user-{i}") for i in range(2)]

        for text in ("Tell me about cats.", "What else about them?"):
            await asyncio.gather(*(say_as_generate(chat, text) for chat in chats))


async def test_08_with_every_key_alike_the_ids_still_decide():
    async with open_local(a_config(blocks=64), make_cache=colliding_cache) as engine:
        chats = [Chat(engine, owner=f"user-{i}") for i in range(2)]

        for chat, topic in zip(chats, TOPICS, strict=False):
            await say_as_generate(chat, f"Tell me about {topic}.")
        outcomes = [await say_as_generate(chat, "What else?") for chat in chats]

        assert all(outcome.receipt.cached_by_source.session > 0 for outcome in outcomes)


async def test_02_in_ten_turns_only_what_is_new_is_computed(engine):
    chat = Chat(engine, owner="talker", persona=PERSONA)
    known = 0

    for turn in range(10):
        prompt = await chat.next_job(f"Question {turn}: and then?")
        receipt = (
            await chat.say(f"Question {turn}: and then?", max_tokens=4 + 12 * (turn % 2))
        ).receipt

        assert receipt.prompt_tokens == len(prompt.token_ids)
        assert receipt.cached_tokens + receipt.computed_tokens == receipt.prompt_tokens
        assert receipt.cached_tokens >= known - 1
        known = receipt.prompt_tokens + receipt.output_tokens


async def test_11_two_users_who_send_the_same_share_the_operator_zone_only(engine):
    first, second = (Chat(engine, owner=owner, persona=PERSONA) for owner in ("eve", "bob"))

    await first.say("My secret is a long and very particular sentence about herons.")
    outcome = await second.say("My secret is a long and very particular sentence about herons.")

    persona_tokens = second.head[-1].end
    assert outcome.receipt.cached_by_source.persona == persona_tokens
    assert outcome.receipt.cached_tokens == persona_tokens


async def say_as_generate(chat: Chat, text: str) -> Outcome:
    """One turn, whose output must be that of `generate` for the same prompt."""
    outcome = await chat.say(text, limits=LIMITS)

    prompt = chat.token_ids[:-REPLY]
    assert list(outcome.token_ids) == generate(loaded_model(), prompt, REPLY)
    return outcome


def permuted_cache(config: CoreConfig, meter: Callable[[], float]) -> Cache:
    order = sorted(range(config.pool_blocks), key=lambda block: block * 7919 % 101)
    pool = BlockPool(config.pool_blocks, order=order)
    cache = Cache(pool, RadixIndex(pool, config.block_tokens), config.block_tokens)
    cache.meter = meter
    return cache


def colliding_cache(config: CoreConfig, meter: Callable[[], float]) -> Cache:
    pool = BlockPool(config.pool_blocks)
    index = RadixIndex(pool, config.block_tokens, key=lambda _scope, _token_id: "same")
    cache = Cache(pool, index, config.block_tokens)
    cache.meter = meter
    return cache
