"""A parked session back from disk, against computing it: `python -m benchmarks.restore`.

To reach: at least 10 times sooner at 4,000 tokens. The first token of a turn with 20 new tokens is
timed, in two engines of which one has a disk; the machine's page cache is warm, as it is after a
restart of the server and not after one of the machine.
"""

import asyncio
import tempfile
from pathlib import Path

import msgspec

from benchmarks.bench import arguments, opened, timed, turn, words
from benchmarks.ratio import pairs, report
from engine.config import EngineConfig
from engine.model.source import prepare

SESSIONS = 3


async def compare(config: EngineConfig, tokens: int) -> None:
    """Park some sessions in one life of the engine, then come back to each in the next."""
    cold = msgspec.structs.replace(config, disk_bytes=0)
    async with opened(config) as engine:
        known = []
        for number in range(SESSIONS):
            prompt = words(number, tokens)
            said = await timed(engine, turn(prompt, session=f"s{number}", tokens=4))
            known.append([*prompt, *said.token_ids])
    async with opened(config) as warm, opened(cold) as recomputing:

        async def restored(number: int) -> float:
            ids = [*known[number], *words(77 + number, 20)]
            done = await timed(warm, turn(ids, session=f"s{number}", tokens=2))
            assert done.receipt.cached_tokens >= tokens, "it was not restored"
            return done.first_token_s

        async def computed(number: int) -> float:
            ids = [*known[number], *words(77 + number, 20)]
            return (
                await timed(recomputing, turn(ids, session=f"s{number}", tokens=2))
            ).first_token_s

        report(
            ("restored", f"computed, {tokens} tokens"), await pairs(restored, computed, SESSIONS)
        )


async def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--tokens", type=int, nargs="*", default=[500, 1000, 4000])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = EngineConfig(
            data_dir=Path(folder),
            model=prepare("default", options.data_dir),
            kv_memory_bytes=1 << 30,  # room for all sessions of 4,000 tokens in float32
            disk_bytes=8 << 30,
            threads=options.threads,
        )
        for tokens in options.tokens:
            await compare(config, tokens)


if __name__ == "__main__":
    asyncio.run(main())
