"""Checkpoints: what live replies have so far, stored twice a second, all in one transaction (law 17).

A server that is killed loses no more than what came since. What is not stored has none.
"""

import asyncio
import logging
from collections.abc import Mapping

from app.chat.stored import StoredLedger
from app.chat.turns import Turn
from app.ids import ResponseId

LOG = logging.getLogger(__name__)

CHECKPOINT_S = 0.5


class Checkpoints:
    """Of the turns that are `live` whenever one is taken."""

    def __init__(
        self, ledger: StoredLedger, live: Mapping[ResponseId, Turn], writing: asyncio.Lock
    ) -> None:
        self._ledger = ledger
        self._live = live
        self._writing = writing
        """As a turn holds it over its end, which no checkpoint may follow."""

    async def keep(self) -> None:
        """Take one again and again. Never returns."""
        while True:
            await asyncio.sleep(CHECKPOINT_S)
            try:
                await self.take()
            except Exception:  # a full disk now need not be one at the next beat
                LOG.exception("a checkpoint failed")

    async def take(self) -> None:
        """Store what all live replies have so far, in one transaction."""
        async with self._writing:
            progress = [
                taken
                for turn in self._live.values()
                if turn.response.store and (taken := turn.take_progress()) is not None
            ]
            if progress:
                await self._ledger.checkpoint(progress)
