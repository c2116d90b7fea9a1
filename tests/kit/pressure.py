"""Conversations at once in a pool too small for them, while every slot that holds nothing is poison."""

import asyncio

import msgspec

from engine.api import FinishReason, Limits
from engine.config import EngineConfig
from tests.kit.engines import Chat, open_local
from tests.kit.random_model import SMALL

CHATS = 5
TURNS = tuple(
    20 * text for text in ("Tell me of the sea. ", "What else is there? ", "And why is it so? ")
)
TOKEN_BYTES = 2 * 2 * SMALL["num_hidden_layers"] * SMALL["num_key_value_heads"] * SMALL["head_dim"]
"""Of the small random model, in bfloat16."""
LIMITS = Limits(max_output_tokens=4, ignore_eos=True)


def pressed(config: EngineConfig, page_tokens: int) -> EngineConfig:
    """The smallest pool that may be, of five pages at least: four conversations or fewer."""
    kv_memory_bytes = max(1 << 20, 5 * page_tokens * TOKEN_BYTES)
    return msgspec.structs.replace(config, kv_memory_bytes=kv_memory_bytes, context_tokens=512)


async def talk_under_pressure(config: EngineConfig) -> str:
    """Three turns each, some cached and some evicted; returns which backend attended.

    With the config's checks a logit that is no number ends the engine, and so the test.
    """
    assert config.checks and config.poison
    async with open_local(config) as engine:
        chats = [Chat(engine, owner=f"user-{at}") for at in range(CHATS)]
        for text in TURNS:
            outcomes = await asyncio.gather(*(chat.say(text, limits=LIMITS) for chat in chats))
            assert {one.finished.reason for one in outcomes} == {FinishReason.LENGTH}
        stats, card = await engine.stats(), await engine.info()
    assert stats.evicted_blocks > 0
    assert stats.blocks.total == card.pool_blocks
    return card.attention
