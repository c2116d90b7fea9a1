"""What the cache costs where nothing is shared: `python -m benchmarks.no_sharing`.

To reach: the cache's own work (acquire, publish, release, evict) under 1 % of the step time at
0 % hits. Several streams at a time, prompts that share nothing, a pool that must evict.
"""

import asyncio
from pathlib import Path

from benchmarks.bench import arguments, opened, timed, turn, words
from engine.config import EngineConfig


async def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--reply", type=int, default=48)
    parser.add_argument("--index", default="radix")
    options = parser.parse_args()
    config = EngineConfig(
        data_dir=Path(options.data_dir),
        kv_memory_bytes=160 << 20,
        disk_bytes=0,
        prefix_index=options.index,
        threads=options.threads,
    )
    async with opened(config) as engine:

        async def stream(number: int) -> None:
            for at in range(options.turns):
                prompt = words(number * 1000 + at, options.prompt)
                done = await timed(
                    engine, turn(prompt, session=f"{number}-{at}", tokens=options.reply)
                )
                assert done.receipt.cached_tokens <= 1

        await asyncio.gather(*(stream(number) for number in range(options.streams)))
        stats = await engine.stats()
    share = stats.cache_s / stats.step_s
    print(
        f"{options.index}: {stats.steps} steps, {stats.step_s:.2f} s; the cache's own work "
        f"{stats.cache_s * 1e3:.1f} ms = {share:.3%}; {stats.evicted_blocks} blocks evicted"
    )


if __name__ == "__main__":
    asyncio.run(main())
