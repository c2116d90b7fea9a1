"""What was counted over time: samples of the engine's counters, finely for minutes, coarsely for a day.

One task samples, however many people look. What it keeps is lost when the server stops; counters begin
anew with each engine (`boot_id`), and readers see that. It decides nothing and divides nothing.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable

import msgspec

from app.events import Figures
from app.people.audit import Audit
from engine.api import Engine, Stats
from engine.errors import EngineError
from engine.figures import EvictionReason

LOG = logging.getLogger(__name__)

SAMPLE_S = 5.0
LADDER = ((SAMPLE_S, 180), (60.0, 180), (600.0, 144))
"""Seconds between samples, and how many are kept: a quarter of an hour, three hours, a day."""
FRESH_S = 0.9
"""Those who look at the same time see the same sample."""


class FiguresOverTime(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of the time that was asked for, the oldest first; the last one is of now."""

    block_bytes: int
    samples: tuple[Figures, ...]


class Rung:
    """Samples at least so far apart, and so many of them."""

    def __init__(self, apart_s: float, kept: int) -> None:
        self.span_s = apart_s * kept
        self._apart_s = apart_s
        self._samples: deque[Figures] = deque(maxlen=kept)

    def add(self, sample: Figures) -> None:
        while self._samples and self._samples[-1].at >= sample.at:
            self._samples.pop()  # the clock was set back: what comes after now is not known yet
        # Half a sample early is in time: else each rung's steps would grow by one.
        if not self._samples or sample.at - self._samples[-1].at > self._apart_s - SAMPLE_S / 2:
            self._samples.append(sample)

    def since(self, at: float) -> tuple[Figures, ...]:
        return tuple(sample for sample in self._samples if sample.at >= at)


class Chronicle:
    """One per server."""

    def __init__(self, engine: Engine, audit: Audit, now: Callable[[], float] = time.time) -> None:
        self._engine = engine
        self._audit = audit
        self._now = now
        self._rungs = [Rung(apart_s, kept) for apart_s, kept in LADDER]
        self._last: Figures | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Enter and leave it in one task."""
        writing = asyncio.create_task(self._write())
        try:
            yield
        finally:
            writing.cancel()
            await asyncio.wait([writing])

    async def now(self) -> Figures:
        """As it is, or was a moment ago. Raises `EngineError`."""
        if self._last is None or not 0 <= self._now() - self._last.at < FRESH_S:
            self._last = figures(self._now(), await self._engine.stats())
        return self._last

    async def history(self, since_s: float) -> FiguresOverTime:
        """The last so many seconds, as finely as they are kept. Raises `EngineError`."""
        await self._audit.look("figures")
        last, card = await self.now(), await self._engine.info()
        rung = next((one for one in self._rungs if one.span_s >= since_s), self._rungs[-1])
        samples = rung.since(last.at - since_s)
        return FiguresOverTime(
            block_bytes=card.block_tokens * card.kv_bytes_per_token,
            samples=samples if samples[-1:] == (last,) else (*samples, last),
        )

    def add(self, sample: Figures) -> None:
        for rung in self._rungs:
            rung.add(sample)

    async def _write(self) -> None:
        while True:
            try:
                self.add(await self.now())
            except EngineError:
                pass  # it is sampled again when it is back
            except Exception:  # one sample's fault must not end the others
                LOG.exception("the figures could not be sampled")
            await asyncio.sleep(SAMPLE_S)


def figures(at: float, stats: Stats) -> Figures:
    """What a sample keeps of all that is counted."""
    evicted = dict.fromkeys(EvictionReason, 0)
    for one in stats.evictions:
        evicted[one.reason] += one.tokens
    return Figures(
        at=at,
        evicted_tokens=evicted,
        **{
            name: getattr(stats, name)
            for name in Figures.__struct_fields__
            if name not in ("at", "evicted_tokens")
        },
    )
