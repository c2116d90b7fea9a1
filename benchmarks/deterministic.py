"""What the deterministic mode costs: `python -m benchmarks.deterministic`.

Streams of multi-turn chats in two engines, one of them deterministic, interleaved.
"""

import asyncio
import time
from functools import partial

from benchmarks.bench import arguments, opened, timed, turn, words
from benchmarks.ratio import pairs, report
from engine.api import Engine
from engine.config import EngineConfig


async def chats(engine: Engine, seed: int, streams: int) -> float:
    """So many chats of three turns at a time; seconds until all are done."""

    async def chat(number: int) -> None:
        ids = words(seed * 1000 + number, 200)
        for at in range(3):
            ids += words(seed * 1000 + number + 500 + at, 40)
            said = await timed(engine, turn(ids, session=f"{seed}-{number}", tokens=32))
            ids += said.token_ids

    started = time.perf_counter()
    await asyncio.gather(*(chat(number) for number in range(streams)))
    return time.perf_counter() - started


async def arm(engine: Engine, streams: int, pair: int) -> float:
    return await chats(engine, pair + streams * 50, streams)


async def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--pairs", type=int, default=4)
    options = parser.parse_args()

    def config(*, deterministic: bool) -> EngineConfig:
        return EngineConfig(
            data_dir=options.data_dir,
            kv_memory_bytes=256 << 20,
            disk_bytes=0,
            threads=options.threads,
            deterministic=deterministic,
        )

    async with (
        opened(config(deterministic=False)) as usual,
        opened(config(deterministic=True)) as exact,
    ):
        for streams in (1, 4):
            arms = [partial(arm, engine, streams) for engine in (usual, exact)]
            measured = await pairs(arms[0], arms[1], options.pairs)
            print(f"{streams} at a time")
            report(("as usual", "deterministic"), measured)


if __name__ == "__main__":
    asyncio.run(main())
