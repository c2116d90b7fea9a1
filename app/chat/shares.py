"""What each owner's sessions hold of the cache, and how much all and each may pin.

For administrators and auditors: sizes and ids.
"""

from collections import defaultdict
from collections.abc import Set

import msgspec

from app.chat.eventlog import EventLogs
from app.db.types import QuotaKind
from app.ids import ConversationId, UserId
from app.people.audit import Audit
from app.people.quotas import Quotas
from engine.api import Engine, ModelCard, RetentionClass
from engine.figures import SessionView


class OwnerShare(msgspec.Struct, frozen=True, kw_only=True):
    """`device_bytes` and `pinned_bytes` count what is shared once for each session."""

    owner_id: str
    sessions: int
    running: int
    """In how many a turn is being written."""
    device_bytes: int
    pinned_bytes: int
    kept_bytes: int
    """Of conversations that are to be kept warm, pinned or not."""
    kept_limit_bytes: int | None
    """Their quota of that; None: there is none."""
    parked_bytes: int


class CacheShares(msgspec.Struct, frozen=True, kw_only=True):
    """Owners by what they hold of the pool, the largest first."""

    pool_bytes: int
    pinned_limit_bytes: int
    owner_limit_bytes: int
    """What one owner may pin of it."""
    owners: tuple[OwnerShare, ...]


class Shares:
    """One per server. `pinned_shares`: of the pool that all, and that each owner, may pin."""

    def __init__(
        self,
        engine: Engine,
        audit: Audit,
        logs: EventLogs,
        *,
        quotas: Quotas,
        pinned_shares: tuple[float, float],
    ) -> None:
        self._engine = engine
        self._audit = audit
        self._logs = logs
        self._quotas = quotas
        self._pinned_shares = pinned_shares

    async def read(self) -> CacheShares:
        """Raises `EngineError`."""
        await self._audit.look("shares")
        card, snapshot = await self._engine.info(), await self._engine.snapshot(tree=False)
        views: dict[str, list[SessionView]] = defaultdict(list)
        for view in snapshot.sessions:
            views[view.owner_id].append(view)
        token_bytes, live = card.kv_bytes_per_token, self._logs.live_conversations()
        user_ids = [UserId(owner_id) for owner_id in views]
        allowed = await self._quotas.allowed_of(user_ids, QuotaKind.KEPT_WARM)
        owners = [
            _share(owner_id, own, card, live, kept_limit_bytes=allowed[UserId(owner_id)])
            for owner_id, own in views.items()
        ]
        pool_bytes = card.pool_blocks * card.block_tokens * token_bytes
        limit, owner_limit = (int(pool_bytes * share) for share in self._pinned_shares)
        return CacheShares(
            pool_bytes=pool_bytes,
            pinned_limit_bytes=limit,
            owner_limit_bytes=owner_limit,
            owners=tuple(sorted(owners, key=lambda one: (-one.device_bytes, one.owner_id))),
        )


def _share(
    owner_id: str,
    views: list[SessionView],
    card: ModelCard,
    live: Set[ConversationId | None],
    *,
    kept_limit_bytes: int | None,
) -> OwnerShare:
    block_bytes = card.block_tokens * card.kv_bytes_per_token
    pinning = [view for view in views if view.pins]
    kept = [view for view in views if view.wished is RetentionClass.KEPT]
    parked_tokens = sum(max(view.host_tokens, view.disk_tokens) for view in views)
    return OwnerShare(
        owner_id=owner_id,
        sessions=len(views),
        running=sum(ConversationId(view.session_id) in live for view in views),
        device_bytes=sum(view.blocks for view in views) * block_bytes,
        pinned_bytes=sum(view.blocks for view in pinning) * block_bytes,
        kept_bytes=sum(_tokens(view) for view in kept) * card.kv_bytes_per_token,
        kept_limit_bytes=kept_limit_bytes,
        parked_bytes=parked_tokens * card.kv_bytes_per_token,
    )


def _tokens(view: SessionView) -> int:
    """Of the conversation, in whichever tier it is longest: what its KV takes once it is warm."""
    return max(view.cached_tokens, view.host_tokens, view.disk_tokens)
