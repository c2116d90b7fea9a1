"""Room that is promised: blocks that those who run will need for their replies.

Knows the pool's counts; gives no block away. Upholds law 10: a newcomer is let in only where the
worst case of its turn fits beside what was promised to others, so that none of them has to give way
to it. Who grows beyond its promise takes what is there.
"""

from collections.abc import Iterable
from typing import Protocol

from engine.errors import Corrupt
from engine.kv.blocks import BlockPool


class Promised(Protocol):
    """Whoever runs, as far as promises must know it."""

    promised: int


class Promises:
    """`blocks` are promised in all and not taken yet."""

    def __init__(self, pool: BlockPool) -> None:
        self.blocks = 0
        self._pool = pool

    def allow(self, wanted: int) -> bool:
        """Whether so many blocks can be had without those that are promised."""
        return wanted + self.blocks <= self._pool.free_blocks + self._pool.idle_blocks

    def make(self, holding: Promised, blocks: int) -> None:
        holding.promised = blocks
        self.blocks += blocks

    def redeem(self, holding: Promised, blocks: int) -> None:
        """So many of the holding's are there now, or are not wanted any more."""
        redeemed = min(holding.promised, blocks)
        holding.promised -= redeemed
        self.blocks -= redeemed

    def check(self, holdings: Iterable[Promised]) -> None:
        """Raises `Corrupt` where more or less is promised than those who run were promised."""
        promised = sum(holding.promised for holding in holdings)
        if promised != self.blocks:
            raise Corrupt(f"{self.blocks} blocks are promised, {promised} to whoever runs")
