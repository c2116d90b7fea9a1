"""Holds: what API clients ask to be kept for a while after a turn (`prompt_cache_options.ttl`).

A hold is on the session of the turn that asked for it, and every further turn of that opens its time
anew. A key says whose turns are one use: where the next one is in another session, the hold goes along,
so that a client which sends whole histories holds one of them and not all. Holds are soft, within what
the pins of one owner may take, and are gone with the engine that had the KV. What the owner's quota of KV
kept warm has no room for is not held, and whoever asked hears nothing of it: it was a hint.
"""

import asyncio
import logging
from collections import OrderedDict

import msgspec

from app.chat.asked import CacheAsked
from app.db.types import QuotaKind
from app.ids import ConversationId, UserId
from app.people.usage import Usage
from engine.api import Engine, Hold, OwnerId, RetentionClass, Subject
from engine.errors import EngineError

LOG = logging.getLogger(__name__)

RETURN_S = 60.0
"""What a hold has left behind is waited for as long as a page that was lost."""
KEYS = 4_096
"""That are remembered, of all users together; and so many holds."""


class _Taken(msgspec.Struct, frozen=True, kw_only=True):
    """What was granted, as far as a quota asks."""

    tokens: int
    until_s: float


class Holds:
    """One per server; belongs to its event loop."""

    def __init__(self, engine: Engine, usage: Usage) -> None:
        self._engine = engine
        self._usage = usage
        self._taken: OrderedDict[Subject, _Taken] = OrderedDict()
        self._held: OrderedDict[tuple[OwnerId, str], Subject] = OrderedDict()

    async def take(self, subject: Subject, asked: CacheAsked, tokens: int) -> None:
        """Wish what was asked for; an engine that is away has nothing to hold. `tokens`: its length."""
        if asked.ttl_s is None:
            return
        before = self._moved(subject, asked.key)
        let_go = [] if before is None else [before]
        if before is not None:
            self._taken.pop(before, None)
        was_held = self._taken.pop(subject, None) is not None
        try:
            if await self._has_room(subject, tokens):
                self._note(subject, tokens, asked.ttl_s)
                kept = Hold(retention=RetentionClass.KEPT, ttl_s=asked.ttl_s)
                await self._engine.lease(subject, kept)
            elif was_held:
                let_go.append(subject)
            for one in let_go:
                left = Hold(retention=RetentionClass.RECENT, ttl_s=RETURN_S)
                await self._engine.lease(one, left)
        except EngineError:
            pass
        except Exception:  # one wish's fault must not end what runs beside it
            LOG.exception("a hold on %s failed", subject.subject_id)

    def tokens_of(self, user_id: UserId) -> dict[ConversationId, int]:
        """How long what is held for a user is, by session."""
        now = _now()
        return {
            ConversationId(subject.subject_id): taken.tokens
            for subject, taken in self._taken.items()
            if subject.owner_id == OwnerId(user_id) and taken.until_s > now
        }

    async def _has_room(self, subject: Subject, tokens: int) -> bool:
        user_id, session_id = UserId(subject.owner_id), ConversationId(subject.subject_id)
        allowed = await self._usage.quotas.allowed(user_id, QuotaKind.KEPT_WARM)
        if allowed is None:
            return True
        held = self.tokens_of(user_id) | {session_id: tokens}
        kept = await self._usage.kept_tokens(user_id, besides=held)
        token_bytes = (await self._engine.info()).kv_bytes_per_token
        return (kept + sum(held.values())) * token_bytes <= allowed

    def _note(self, subject: Subject, tokens: int, ttl_s: float) -> None:
        now = _now()
        for over in [one for one, taken in self._taken.items() if taken.until_s <= now]:
            del self._taken[over]
        self._taken[subject] = _Taken(tokens=tokens, until_s=now + ttl_s)
        if len(self._taken) > KEYS:
            self._taken.popitem(last=False)

    def forget_user(self, user_id: UserId) -> None:
        """Who is no more: their keys are words of theirs."""
        for subject in [one for one in self._taken if one.owner_id == OwnerId(user_id)]:
            del self._taken[subject]
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

    async def take(self, tokens: int) -> None:
        """`tokens`: how long what is to be held is."""
        await self.holds.take(self.subject, self.asked, tokens)


def _now() -> float:
    return asyncio.get_running_loop().time()
