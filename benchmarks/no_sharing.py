"""What the cache costs where nothing is shared: `python -m benchmarks.no_sharing`.

To reach: the cache's own work (acquire, publish, release, evict) under 1 % of the step time at
0 % hits. Several streams at a time, prompts that share nothing, a pool that must evict. With
`--pairs 30` the same work is timed with the index and without one, interleaved.
"""

import argparse
import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

from benchmarks.bench import arguments, opened, timed, turn, words
from benchmarks.ratio import pairs, report
from engine.api import Engine, Stats
from engine.config import EngineConfig
from engine.kv.blocks import BlockPool
from engine.kv.cache import Cache
from engine.kv.prefix import Entry, Ids, Match, Publication, Scopes
from engine.kv.radix import RadixIndex
from engine.local import LocalEngine
from engine.parts import CoreConfig
from engine.step import BlockId


class NoIndex(RadixIndex):
    """The cache switched off: nothing is kept, so nothing is found and nothing is evicted."""

    def match(self, ids: Ids, scopes: Scopes, end: int) -> Match:  # noqa: ARG002
        return Match(tokens=0, blocks=[], partial=None, entry=self.root, ends_entry=True)

    def publish(
        self,
        ids: Ids,  # noqa: ARG002
        scopes: Scopes,  # noqa: ARG002
        table: Sequence[BlockId],  # noqa: ARG002
        span: tuple[Entry, int],  # noqa: ARG002
    ) -> Publication:
        return Publication(entry=self.root, adopted=[], new_tokens=0)


def cache_off(config: CoreConfig, _meter: Callable[[], float]) -> Cache:
    pool = BlockPool(config.pool_blocks)
    return Cache(pool, NoIndex(pool, config.block_tokens), config.block_tokens)


async def work(engine: Engine, seed: int, options: argparse.Namespace) -> float:
    """Every stream's turns; seconds until all are done."""

    async def stream(number: int) -> None:
        for at in range(options.turns):
            prompt = words((seed * 100 + number) * 100 + at, options.prompt)
            session = f"{seed}-{number}-{at}"
            done = await timed(engine, turn(prompt, session=session, tokens=options.reply))
            assert done.receipt.cached_tokens <= 1

    started = time.perf_counter()
    await asyncio.gather(*(stream(number) for number in range(options.streams)))
    return time.perf_counter() - started


async def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--reply", type=int, default=48)
    parser.add_argument("--index", default="radix")
    parser.add_argument("--pairs", type=int, default=0)
    options = parser.parse_args()
    config = EngineConfig(
        data_dir=options.data_dir,
        kv_memory_bytes=160 << 20,
        disk_bytes=0,
        prefix_index=options.index,
        threads=options.threads,
    )
    async with opened(config) as engine:
        await work(engine, 0, options)
        tell(options.index, await engine.stats())
        if options.pairs:
            other = await LocalEngine.open(config, make_cache=cache_off)
            async with contextlib.aclosing(other) as off:
                measured = await pairs(
                    lambda pair: work(off, 1 + pair, options),
                    lambda pair: work(engine, 1 + pair, options),
                    options.pairs,
                )
            report(("off", "on"), measured)


def tell(index: str, stats: Stats) -> None:
    share = stats.cache_s / stats.step_s
    print(
        f"{index}: {stats.steps} steps, {stats.step_s:.2f} s; the cache's own work "
        f"{stats.cache_s * 1e3:.1f} ms = {share:.3%}; {stats.evicted_blocks} blocks evicted"
    )


if __name__ == "__main__":
    asyncio.run(main())
