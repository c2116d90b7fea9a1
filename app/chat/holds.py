"""Holds: what API clients ask to be kept for a while after a turn (`prompt_cache_options.ttl`).

A hold is on the session of the turn that asked for it, and every further turn of that opens its time
anew. A key says whose turns are one use: where the next one is in another session, the hold goes along,
so that a client which sends whole histories holds one of them and not all. Holds are soft, within what
the pins of one owner may take, and are gone with the engine that had the KV.
"""

import logging
from collections import OrderedDict

import msgspec

from app.chat.asked import CacheAsked
from app.ids import UserId
from engine.api import Engine, Hold, OwnerId, RetentionClass, Subject
from engine.errors import EngineError

LOG = logging.getLogger(__name__)

RETURN_S = 60.0
"""What a hold has left behind is waited for as long as a page that was lost."""
KEYS = 4_096
"""That are remembered, of all users together."""


class Holds:
    """One per server; belongs to its event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._held: OrderedDict[tuple[OwnerId, str], Subject] = OrderedDict()

    async def take(self, subject: Subject, asked: CacheAsked) -> None:
        """Wish what was asked for; an engine that is away has nothing to hold."""
        if asked.ttl_s is None:
            return
        before = self._moved(subject, asked.key)
        try:
            kept = Hold(retention=RetentionClass.KEPT, ttl_s=asked.ttl_s)
            await self._engine.lease(subject, kept)
            if before is not None:
                left = Hold(retention=RetentionClass.RECENT, ttl_s=RETURN_S)
                await self._engine.lease(before, left)
        except EngineError:
            pass
        except Exception:  # one wish's fault must not end what runs beside it
            LOG.exception("a hold on %s failed", subject.subject_id)

    def forget_user(self, user_id: UserId) -> None:
        """Who is no more: their keys are words of theirs."""
        for name in [one for one in self._held if one[0] == OwnerId(user_id)]:
            del self._held[name]

    def _moved(self, subject: Subject, key: str | None) -> Subject | None:
        """The session that the key's hold was on, where that was another."""
        if key is None:
            return None
        name = (subject.owner_id, key)
        before = self._held.pop(name, subject)
        self._held[name] = subject
        if len(self._held) > KEYS:
            self._held.popitem(last=False)
        return None if before == subject else before


class Wished(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be held when a turn has ended."""

    holds: Holds
    subject: Subject
    asked: CacheAsked

    async def take(self) -> None:
        await self.holds.take(self.subject, self.asked)
