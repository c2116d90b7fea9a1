"""How often: token buckets, of which there are only so many.

A bucket is full at first; each act takes one token out, and they come back steadily. Whoever finds it
empty is told when to come again. Buckets that were not touched for longest are forgotten first, which
is no way around them: whoever is held back touches theirs.
"""

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

import msgspec

from app.errors import TooMany

_BOUND = 20_000


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """`burst` at once, then `per_s` each second."""

    acts: str
    """What is counted, in the words of the refusal."""
    burst: int
    per_s: float


HANDSHAKES_PER_ADDRESS = Rate(acts="sockets opened from this address", burst=512, per_s=32)
HANDSHAKES_PER_USER = Rate(acts="sockets opened", burst=256, per_s=16)
FRAMES_PER_SOCKET = Rate(acts="frames sent", burst=512, per_s=128)
"""A page sends a few a second; a program may fill its lanes at once."""
DRAFTS_PER_SOCKET = Rate(acts="drafts sent", burst=4, per_s=4)
"""A page sends one where its user pauses, closes a sentence, or has typed on for a second."""
CREATES_PER_USER = Rate(acts="turns and conversations begun", burst=512, per_s=64)
CANCELS_PER_USER = Rate(acts="answers stopped", burst=512, per_s=64)
PINS_PER_USER = Rate(acts="conversations chosen to be kept warm", burst=30, per_s=0.5)


def one_line(address: str) -> str:
    """What counts as one address: of IPv6 the /64, for whoever has one address of it has them all."""
    try:
        known = ipaddress.ip_address(address)
    except ValueError:  # a proxy may say anything, or nothing
        return address
    if isinstance(known, ipaddress.IPv4Address):
        return address
    if known.ipv4_mapped is not None:
        return str(known.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(known), 64), strict=False))


class Bucket:
    """One subject's; `take` where one place alone counts, as on a socket."""

    __slots__ = ("_at_s", "_clock", "_rate", "_tokens")

    def __init__(self, rate: Rate, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._tokens = float(rate.burst)
        self._at_s = clock()

    def take(self) -> None:
        """Raises `TooMany` where it is empty."""
        now, rate = self._clock(), self._rate
        self._tokens = min(rate.burst, self._tokens + (now - self._at_s) * rate.per_s)
        self._at_s = now
        if self._tokens < 1:
            raise TooMany(
                f"Too many {rate.acts}: {rate.burst} at once, then {rate.per_s:g} a second.",
                retry_after_s=(1 - self._tokens) / rate.per_s,
            )
        self._tokens -= 1


class Rates:
    """The buckets of everybody."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, bound: int = _BOUND) -> None:
        self._clock = clock
        self._bound = bound
        self._buckets: OrderedDict[tuple[Rate, Hashable], Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, rate: Rate, subject: Hashable) -> None:
        """Count one act of the subject. Raises `TooMany`."""
        key = (rate, subject)
        bucket = self._buckets.pop(key, None) or Bucket(rate, self._clock)
        self._buckets[key] = bucket
        if len(self._buckets) > self._bound:
            self._buckets.popitem(last=False)
        bucket.take()
