"""The cache as administrators see it: sessions, the prefix tree, misses; and what they may do about a session.

Whoever looks is in the audit log, and so is what is done.
Sizes, classes and ids, never a text and never a title. What is done here costs its owner time at
most: an evicted conversation is computed again (law 1).
"""

import enum
from collections.abc import Sequence

import msgspec

from app.chat.eventlog import EventLogs
from app.chat.liveness import RETURN_S, Liveness, session_of
from app.chat.misses import LastTurn, Misses, MissFilter, MissPage, TurnCost
from app.chat.prefixes import PrefixTree, prefix_tree
from app.chat.watching import state_of
from app.db.types import AuditAct
from app.errors import NotFound
from app.frames import CacheState
from app.ids import ConversationId, UserId
from app.people.audit import Audit
from engine.api import (
    Engine,
    Forget,
    Hold,
    Park,
    RetentionClass,
    Warm,
    Wish,
)
from engine.figures import BlockCounts, SessionView, TierCounts
from engine.terms import Tier

LONGEST_PAGE = 500
MOST_NODES = 5000


class SessionAct(enum.StrEnum):
    """What an administrator may do about a session."""

    WARM = "warm"
    PARK = "park"
    UNPIN = "unpin"
    """It gives way like any other, until its owner comes back to it or asks anew to keep it."""
    EVICT = "evict"


_DONE: dict[SessionAct, tuple[AuditAct, Wish]] = {
    SessionAct.WARM: (AuditAct.SESSION_WARMED, Warm()),
    SessionAct.PARK: (AuditAct.SESSION_PARKED, Park()),
    SessionAct.UNPIN: (
        AuditAct.SESSION_UNPINNED,
        Hold(retention=RetentionClass.RECENT, ttl_s=RETURN_S),
    ),
    SessionAct.EVICT: (AuditAct.SESSION_EVICTED, Forget()),
}


class CacheOverview(msgspec.Struct, frozen=True, kw_only=True, tag="cache.snapshot"):
    """What the cache holds in all; changes numbered above `sequence_number` came later."""

    sequence_number: int
    boot_id: str
    block_tokens: int
    block_bytes: int
    blocks: BlockCounts
    pinned_blocks: dict[str, int]
    """By the strongest retention class that pins them."""
    tiers: tuple[TierCounts, ...]
    sessions: dict[CacheState, int]


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A session. `blocks` and `device_bytes` count what it shares with others too (`shared_blocks`)."""

    session_id: str
    owner_id: str
    state: CacheState
    is_running: bool
    """A turn is being written."""
    retention: str
    wished: str | None
    expires_in_s: float | None
    idle_s: float | None
    tier: Tier
    blocks: int
    pinned_blocks: int
    """All of them, or none."""
    shared_blocks: int
    device_tokens: int
    host_tokens: int
    disk_tokens: int
    device_bytes: int
    host_bytes: int
    disk_bytes: int
    last_turn: LastTurn | None
    """None where none is stored."""


class SessionPage(msgspec.Struct, frozen=True, kw_only=True):
    """By owner, then by id; `next_cursor` is None on the last page."""

    items: tuple[SessionRow, ...]
    next_cursor: str | None


class Overview:
    """One per server."""

    def __init__(
        self,
        engine: Engine,
        misses: Misses,
        audit: Audit,
        *,
        logs: EventLogs,
        liveness: Liveness,
    ) -> None:
        self._engine = engine
        self._misses = misses
        self._logs = logs
        self._liveness = liveness
        self._audit = audit

    async def cache(self) -> CacheOverview:
        """Raises `EngineError`."""
        await self._audit.look("cache")
        card, snapshot = await self._engine.info(), await self._engine.snapshot()
        states = [state_of(view) for view in snapshot.sessions]
        return CacheOverview(
            sequence_number=snapshot.sequence_number,
            boot_id=card.boot_id,
            block_tokens=card.block_tokens,
            block_bytes=card.block_tokens * card.kv_bytes_per_token,
            blocks=snapshot.blocks,
            pinned_blocks={word_of(kind): count for kind, count in snapshot.pinned_blocks.items()},
            tiers=snapshot.tiers,
            sessions={state: states.count(state) for state in CacheState},
        )

    async def sessions(
        self, *, owner_id: str | None = None, cursor: str | None = None, limit: int = 100
    ) -> SessionPage:
        """A page of them. Raises `EngineError`."""
        await self._audit.look("sessions", owner_id)
        limit = max(1, min(limit, LONGEST_PAGE))
        card, snapshot = await self._engine.info(), await self._engine.snapshot(tree=False)
        wanted = (view for view in snapshot.sessions if owner_id in (None, view.owner_id))
        known = sorted(wanted, key=_place)
        left = [view for view in known if cursor is None or _place(view) > cursor]
        page = left[:limit]
        last = await self._misses.last_turns([ConversationId(view.session_id) for view in page])
        token_bytes, live = card.kv_bytes_per_token, self._logs.live_conversations()
        return SessionPage(
            items=tuple(
                _row(
                    view,
                    last.get(ConversationId(view.session_id)),
                    is_running=ConversationId(view.session_id) in live,
                    token_bytes=token_bytes,
                    block_tokens=card.block_tokens,
                )
                for view in page
            ),
            next_cursor=_place(page[-1]) if len(left) > limit else None,
        )

    async def prefixes(self, limit: int = MOST_NODES) -> PrefixTree:
        """Raises `EngineError`."""
        await self._audit.look("prefixes")
        card, snapshot = await self._engine.info(), await self._engine.snapshot()
        return prefix_tree(snapshot, max(1, min(limit, MOST_NODES)), card.kv_bytes_per_token)

    async def turns(self, limit: int) -> Sequence[TurnCost]:
        await self._audit.look("turns")
        return await self._misses.turns(limit)

    async def misses(
        self, wanted: MissFilter, *, cursor: str | None = None, limit: int = 50
    ) -> MissPage:
        """Raises `InvalidRequest` for a foreign cursor."""
        await self._audit.look("misses", wanted.user_id)
        return await self._misses.list(wanted, cursor=cursor, limit=limit)

    async def act(self, act: SessionAct, owner_id: UserId, session_id: ConversationId) -> None:
        """Warm a session up, park it, unpin it, or evict it. Raises `NotFound` and `EngineError`."""
        snapshot = await self._engine.snapshot(tree=False)
        known = {(view.owner_id, view.session_id) for view in snapshot.sessions}
        subject = session_of(owner_id, session_id)
        if (subject.owner_id, subject.subject_id) not in known:
            raise NotFound("There is no such session.", field="session_id")
        noted, wish = _DONE[act]
        await self._audit.order(noted, owner_id, session_id=session_id)
        await self._engine.lease(subject, wish)
        if act is SessionAct.EVICT:
            # What its owner wished for it went with it, and stands all the same.
            self._liveness.renew(subject)


def _row(
    view: SessionView,
    last_turn: LastTurn | None,
    *,
    is_running: bool,
    token_bytes: int,
    block_tokens: int,
) -> SessionRow:
    return SessionRow(
        session_id=view.session_id,
        owner_id=view.owner_id,
        state=state_of(view),
        is_running=is_running,
        retention=word_of(view.retention),
        wished=None if view.wished is None else word_of(view.wished),
        expires_in_s=view.expires_in_s,
        idle_s=view.idle_s,
        tier=view.tier,
        blocks=view.blocks,
        pinned_blocks=view.blocks if view.pins else 0,
        shared_blocks=view.shared_blocks,
        device_tokens=view.cached_tokens,
        host_tokens=view.host_tokens,
        disk_tokens=view.disk_tokens,
        device_bytes=view.blocks * block_tokens * token_bytes,
        host_bytes=view.host_tokens * token_bytes,
        disk_bytes=view.disk_tokens * token_bytes,
        last_turn=last_turn,
    )


def word_of(retention: RetentionClass) -> str:
    return retention.name.lower()


def _place(view: SessionView) -> str:
    return f"{view.owner_id} {view.session_id}"
