"""What finding and publishing a prompt costs, by index, with a million tokens cached.

    python -m benchmarks.lookup

Many sessions of one user share a system prompt, in blocks of 16 tokens. Prints medians for a
1,000-token prompt: found whole, and published behind the shared part.
"""

import random
from array import array
from statistics import median
from time import perf_counter

from engine.api import Scope
from engine.config import PREFIX_INDEXES
from engine.kv.blocks import BlockPool
from engine.kv.indexes import new_index
from engine.kv.prefix import NO_END, Ids, PrefixIndex

BLOCK_TOKENS = 16
CACHED_TOKENS = 1_000_000
PROMPT_TOKENS = 1000
SHARED_TOKENS = 512
TIMES = 200

SCOPES = ((Scope("user"), NO_END),)


def prompt(chance: random.Random, shared: Ids) -> Ids:
    own = (chance.randrange(50_000) for _ in range(PROMPT_TOKENS - len(shared)))
    return shared + array("I", own)


def publish(index: PrefixIndex, pool: BlockPool, ids: Ids) -> float:
    """Seconds of matching and publishing one prompt; the pool's own work is left out."""
    known = index.match(ids, SCOPES, len(ids))
    pool.share(known.blocks)
    table = known.blocks + (pool.allocate(-(-len(ids) // BLOCK_TOKENS) - len(known.blocks)) or [])
    start = perf_counter()
    index.publish(ids, SCOPES, table, (index.root, len(ids)))
    spent_s = perf_counter() - start
    pool.free(table)
    return spent_s


def measure(name: str) -> tuple[float, float]:
    """Seconds of a lookup and of an insert, medians."""
    pool = BlockPool(2 * CACHED_TOKENS // BLOCK_TOKENS)
    index = new_index(name, pool, BLOCK_TOKENS, "")
    chance = random.Random(1)  # noqa: S311
    shared = array("I", (chance.randrange(50_000) for _ in range(SHARED_TOKENS)))
    own_tokens = PROMPT_TOKENS - SHARED_TOKENS
    prompts = [prompt(chance, shared) for _ in range(CACHED_TOKENS // own_tokens)]
    for ids in prompts:
        publish(index, pool, ids)
    lookups: list[float] = []
    for ids in chance.sample(prompts, TIMES):
        start = perf_counter()
        found = index.match(ids, SCOPES, len(ids))
        lookups.append(perf_counter() - start)
        assert found.tokens == len(ids)
    inserts = [publish(index, pool, prompt(chance, shared)) for _ in range(TIMES)]
    return median(lookups), median(inserts)


def main() -> None:
    print("| index | lookup, ms | insert, ms | together, ms |\n| --- | ---: | ---: | ---: |")
    for name in PREFIX_INDEXES:
        lookup_s, insert_s = measure(name)
        cells = (f"{1000 * s:.3f}" for s in (lookup_s, insert_s, lookup_s + insert_s))
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
