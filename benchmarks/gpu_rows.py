"""What is measured of an engine on a GPU: rows of figures, and how much of each.

Ids are drawn, so that nothing of a prompt was seen before unless a row wants it so.
"""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Mapping

import msgspec

from benchmarks.bench import opened, timed, turn, words
from benchmarks.card import Card, Work
from benchmarks.profile_step import decode
from benchmarks.ratio import pairs
from engine.api import Engine
from engine.config import EngineConfig
from tests.kit.random_model import SMALL

NEW_TOKENS = 40
"""Of a turn behind a history."""


class Amount(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured."""

    shape: Mapping[str, int]
    """Of the random model."""
    side: int = 8192
    """Of the matrices whose product is timed."""
    copied_bytes: int = 4 << 30
    prefills: tuple[int, ...] = (512, 2048, 8192, 32_000)
    streams: tuple[int, ...] = (1, 4, 16, 64, 256)
    decode_history: int = 512
    decode_tokens: int = 128
    histories: tuple[int, ...] = (1000, 4000, 16_000, 32_000)
    sessions: tuple[int, ...] = (1, 4, 16, 64, 256)
    turns: int = 3
    kv_memory_bytes: int = 40 << 30
    parked_tokens: int = 8000
    parked_sessions: int = 4
    repeats: int = 3
    step_tokens: int = 2048


LARGE = Amount(
    # Llama 3's 8B.
    shape={
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 32_768,
    }
)
FEW = Amount(
    shape=SMALL,
    side=256,
    copied_bytes=16 << 20,
    prefills=(64, 200),
    streams=(1, 4),
    decode_history=32,
    decode_tokens=8,
    histories=(100, 400),
    sessions=(1, 4),
    turns=2,
    kv_memory_bytes=8 << 20,
    parked_tokens=300,
    parked_sessions=4,
    repeats=1,
    step_tokens=128,
)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One figure. `limit`: the share of what the card can do, where that is known."""

    name: str
    size: int
    value: float
    unit: str
    limit: float | None = None


class Bench:
    """One engine, its amounts, and what the card can do."""

    def __init__(self, engine: Engine, amount: Amount, work: Work, card: Card) -> None:
        self._engine = engine
        self._amount = amount
        self._work = work
        self._card = card
        self._seeds = iter(range(1, 1 << 30))

    async def rows(self) -> AsyncIterator[Row]:
        await self._first_token_s(64)  # what starts lazily has started
        for tokens in self._amount.prefills:
            yield await self._prefill(tokens)
        for streams in self._amount.streams:
            yield await self._decode(streams)
        for tokens in self._amount.histories:
            for row in await self._history(tokens):
                yield row
        for sessions in self._amount.sessions:
            for row in await self._crowd(sessions):
                yield row

    async def _first_token_s(self, tokens: int) -> float:
        """Of a prompt that nobody has seen."""
        seed = next(self._seeds)
        done = await timed(self._engine, turn(words(seed, tokens), session=f"new-{seed}", tokens=1))
        return done.first_token_s

    async def _prefill(self, tokens: int) -> Row:
        seconds = [await self._first_token_s(tokens) for _ in range(self._amount.repeats)]
        median_s = statistics.median(seconds)
        return Row(
            name="prefill",
            size=tokens,
            value=tokens / median_s,
            unit="tok/s",
            limit=self._work.prefill(tokens) / median_s / self._card.products_per_s,
        )

    async def _decode(self, streams: int) -> Row:
        amount = self._amount
        gaps = await decode(self._engine, streams, amount.decode_history, amount.decode_tokens)
        step_s = statistics.median(gaps)
        history = amount.decode_history + amount.decode_tokens // 2
        return Row(
            name="decode, streams",
            size=streams,
            value=streams / step_s,
            unit="tok/s",
            limit=self._work.step_bytes(streams, history) / step_s / self._card.bytes_per_s,
        )

    async def _history(self, tokens: int) -> list[Row]:
        """A turn behind so many tokens, and as many from nothing: the cache on and off."""
        seed = next(self._seeds)
        ids = words(seed, tokens)
        await timed(self._engine, turn(ids, session=f"long-{seed}", tokens=1))

        async def warm(number: int) -> float:
            # Each goes its own way behind the same history.
            new = words(1_000_000 * (number + 1) + seed, NEW_TOKENS)
            done = await timed(self._engine, turn(ids + new, session=f"long-{seed}", tokens=1))
            assert done.receipt.cached_tokens >= tokens - 1, "the history was not kept"
            return done.first_token_s

        async def cold(_: int) -> float:
            return await self._first_token_s(tokens + NEW_TOKENS)

        return compared("first token behind", tokens, await pairs(warm, cold, self._amount.repeats))

    async def _crowd(self, sessions: int) -> list[Row]:
        """Sessions that speak without a pause; first tokens are those of later turns."""
        first_s: list[float] = []
        amount = self._amount

        async def speak(number: int) -> int:
            seed = next(self._seeds)
            ids = words(seed, amount.decode_history)
            said = 0
            for at in range(amount.turns):
                job = turn(ids, session=f"crowd-{seed}", tokens=amount.decode_tokens // 2)
                done = await timed(self._engine, job)
                said += len(done.token_ids)
                if at:
                    first_s.append(done.first_token_s)
                ids = [*ids, *done.token_ids, *words(seed + number + at, NEW_TOKENS)]
            return said

        began_s = time.perf_counter()
        said = sum(await asyncio.gather(*map(speak, range(sessions))))
        wall_s = time.perf_counter() - began_s
        return [
            Row(name="sessions, reply tokens", size=sessions, value=said / wall_s, unit="tok/s"),
            Row(
                name="sessions, first token of later turns",
                size=sessions,
                value=1e3 * statistics.median(first_s),
                unit="ms",
            ),
        ]


def compared(name: str, size: int, measured: list[tuple[float, float]]) -> list[Row]:
    """A first token with what was kept, from nothing, and how much sooner that is."""
    with_s, without_s = (statistics.median(one) for one in zip(*measured, strict=True))
    sooner = statistics.median(other / one for one, other in measured)
    return [
        Row(name=name, size=size, value=1e3 * with_s, unit="ms"),
        Row(name=f"{name}, computed", size=size, value=1e3 * without_s, unit="ms"),
        Row(name=f"{name}, sooner", size=size, value=sooner, unit="times"),
    ]


async def restored(config: EngineConfig, amount: Amount, token_bytes: int) -> list[Row]:
    """Sessions that the pool has no room for, back from host memory, against computing them."""
    tokens, sessions = amount.parked_tokens, amount.parked_sessions
    config = msgspec.structs.replace(
        config,
        kv_memory_bytes=int(2.5 * (tokens + 3 * NEW_TOKENS) * token_bytes),
        host_bytes=4 * sessions * tokens * token_bytes,
    )
    cached: list[int] = []
    async with opened(config) as engine:
        for number in range(sessions):
            ids = words(number, tokens)
            await timed(engine, turn(ids, session=f"s{number}", tokens=2))

        async def back(number: int) -> float:
            ids = [*words(number, tokens), *words(77 + number, NEW_TOKENS)]
            done = await timed(engine, turn(ids, session=f"s{number}", tokens=1))
            cached.append(done.receipt.cached_tokens)
            return done.first_token_s

        async def computed(number: int) -> float:
            ids = words(777 + number, tokens + NEW_TOKENS)
            return (await timed(engine, turn(ids, session=f"new-{number}", tokens=1))).first_token_s

        rows = compared("back from host memory", tokens, await pairs(back, computed, 2))
    known = Row(
        name="back from host memory, found",
        size=tokens,
        value=statistics.median(cached),
        unit="tokens",
    )
    return [*rows, known]
