"""Log-in attempts, counted in memory: some are free, then each has to wait longer.

An attempt counts when it starts and is taken back when it succeeds, so a volley sent at once gains
nothing. Bounded: whoever has been quiet the longest is forgotten first. Whoever keeps what is told
here elsewhere can have it counted again after a restart.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

import msgspec

from app.errors import TooMany

FORGET_S = 3600.0
_LONGEST_WAIT_S = 900.0
_BOUND = 10_000


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt is counted against, and how many are free before the waits begin."""

    key: Hashable
    free: int


class _Count(msgspec.Struct):
    attempts: int
    last_s: float
    is_told: bool = False
    """Somebody had to wait since the last attempt, and it was told."""


class Throttle:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts: OrderedDict[Hashable, _Count] = OrderedDict()

    def attempt(self, *claims: Claim) -> None:
        """Count an attempt against all claims; raises `TooMany` when one of them has to wait."""
        now = self._clock()
        wait_s = max(self._wait_s(claim, now) for claim in claims)
        if wait_s > 0:
            raise TooMany(
                f"Too many attempts to sign in; try again in {wait_s:.0f} seconds.",
                retry_after_s=wait_s,
            )
        for claim in claims:
            self._count(claim.key, now)

    def recall(self, ago_s: float, *claims: Claim) -> None:
        """Count an attempt of a former life; the oldest first."""
        for claim in claims:
            self._count(claim.key, self._clock() - ago_s)

    def is_news(self, *claims: Claim) -> bool:
        """Whether this is the first time since the last attempt that one had to wait for these."""
        counts = [self._counts[one.key] for one in claims if one.key in self._counts]
        news = any(not one.is_told for one in counts)
        for one in counts:
            one.is_told = True
        return news

    def forgive(self, *claims: Claim) -> None:
        """Take one attempt back from each claim: it was the right password."""
        for claim in claims:
            count = self._counts.get(claim.key)
            if count is not None:
                count.attempts -= 1

    def forget(self, claim: Claim) -> None:
        self._counts.pop(claim.key, None)

    def _wait_s(self, claim: Claim, now: float) -> float:
        count = self._counts.get(claim.key)
        if count is None or now - count.last_s > FORGET_S:
            return 0.0
        excess = count.attempts - claim.free
        if excess < 0:
            return 0.0
        delay_s = min(2.0 ** min(excess, 16), _LONGEST_WAIT_S)
        return max(0.0, count.last_s + delay_s - now)

    def _count(self, key: Hashable, now: float) -> None:
        count = self._counts.pop(key, None)
        if count is None or now - count.last_s > FORGET_S:
            count = _Count(attempts=0, last_s=now)
        count.attempts += 1
        count.last_s = now
        count.is_told = False
        self._counts[key] = count
        if len(self._counts) > _BOUND:
            self._counts.popitem(last=False)
