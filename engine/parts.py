"""What a core is put together from: its sizes and names, and the cache that they make.

Plain data, and no decision but which index is named.
"""

from collections.abc import Callable

import msgspec

from engine.errors import Misconfigured
from engine.kv.blocks import BlockPool
from engine.kv.cache import Cache
from engine.kv.indexes import new_index
from engine.kv.pins import DEFAULT_BUDGET, Budget
from engine.kv.tiers import NO_TIERS, Tiers, TierSizes


class CoreConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and names. `step_tokens` bounds one step; `checks` runs every invariant after it."""

    block_tokens: int
    pool_blocks: int
    context_tokens: int
    step_tokens: int
    max_running: int
    max_waiting: int
    eos_token_ids: tuple[int, ...]
    model_fingerprint: str
    template_fingerprint: str
    boot_id: str
    vocabulary_tokens: int = 1 << 32
    prefix_index: str = "radix"
    retention: str = "cost"
    tiers: TierSizes = NO_TIERS
    canonical_tokens: int = 0
    """Not 0: the deterministic mode, see `Sequence.piece`."""
    checks: bool = False
    """Check the books after every step."""
    budget: Budget = DEFAULT_BUDGET
    """How much of the pool leases may pin."""

    @property
    def unused_tokens(self) -> int:
        """Up to how many tokens of a known prefix a turn may have to compute though none is lost.

        Part of a block; in the deterministic mode all of a reply, whose KV is never gone on from.
        """
        return self.context_tokens if self.canonical_tokens else self.block_tokens

    def __post_init__(self) -> None:
        least = self.max_running + self.canonical_tokens
        if self.step_tokens < least:
            # Decodes come first: with fewer, a prefill that others wait for might never move.
            raise Misconfigured(
                f"step_tokens is {self.step_tokens}, give it at least {least}: a token for each of "
                "max_running, and a whole pass of the deterministic mode"
            )


def new_cache(config: CoreConfig, meter: Callable[[], float] = float) -> Cache:
    """A cache of the config's sizes, with the index that it names."""
    pool = BlockPool(config.pool_blocks)
    tiers = Tiers(config.tiers, pool, config.block_tokens, config.boot_id)
    index = new_index(config.prefix_index, pool, config.block_tokens, config.model_fingerprint)
    cache = Cache(
        pool,
        index,
        config.block_tokens,
        tiers=tiers,
        budget=config.budget,
        granule_tokens=config.canonical_tokens or 1,
    )
    cache.meter = meter
    if config.retention == "cost":
        cache.keep_by_cost()
    return cache
