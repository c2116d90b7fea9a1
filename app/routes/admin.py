"""The cache and its users for administrators and auditors: `/api/admin`. Figures, and acts on sessions.

An auditor looks and does nothing. Whoever looks at figures of others is in the audit log, and so is
whatever is done. Sizes, counts, reasons and ids: no text and no title is told here (law 11).
"""

import contextlib
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Annotated, Any

import msgspec
from litestar import get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.response import ServerSentEvent

from app.chat.misses import MissFilter, MissPage, TurnCost
from app.chat.overview import CacheOverview, Overview, SessionAct, SessionPage
from app.chat.prefixes import PrefixTree
from app.chat.shares import CacheShares, Shares
from app.chat.supervisor import Supervisor
from app.chat.watching import CacheChanges, Tally, Watching
from app.db.base import Database
from app.db.types import AuditAct
from app.ids import ConversationId, UserId
from app.people.accounting import Accounting, UsageBy, UsageFilter, UsageSum, UserSums
from app.people.audit import Audit, AuditFilter, AuditPage
from app.routes.gate import Gate
from app.routes.published.told import EVENT_STREAM, told
from app.routes.streams import Asked, Frames, stream
from app.routes.vitals import Vitals, vitals
from app.settings import SETTINGS, Setting, Settings
from engine.api import Engine, MissReason
from engine.errors import EngineError

Cursor = Annotated[str | None, QueryParameter(max_length=400)]
Day = Annotated[str | None, QueryParameter(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
"""Of UTC."""
Named = Annotated[str | None, QueryParameter(max_length=200)]


class SettingView(msgspec.Struct, frozen=True, kw_only=True):
    """`value` is None where nothing was set; `default` is in words where it is not plain."""

    variable: str
    value: str | None
    default: str
    words: str


@get("/admin/health")
async def read_health(
    engine: NamedDependency[Engine],
    db: NamedDependency[Database],
    gate: NamedDependency[Gate],
    supervisor: NamedDependency[Supervisor],
) -> Vitals:
    """How the server, its engine and its database are."""
    return await vitals(engine, db, gate, supervisor)


@get("/admin/cache")
async def read_cache(overview: NamedDependency[Overview]) -> CacheOverview:
    return await overview.cache()


@get("/admin/cache/events", opt=told(gives={EVENT_STREAM: CacheOverview | CacheChanges}))
async def watch_cache(
    request: Asked,
    gate: NamedDependency[Gate],
    watching: NamedDependency[Watching],
    overview: NamedDependency[Overview],
) -> ServerSentEvent:
    """`cache.snapshot`, then `cache.changes` at most twice a second; a snapshot again where some were missed."""

    @contextlib.asynccontextmanager
    async def tell(outbox: Frames) -> AsyncIterator[Sequence[Coroutine[Any, Any, object]]]:
        with watching.tally() as tally:
            yield (_tell_of_the_cache(overview, tally, outbox),)

    return await stream(request, gate, tell)


async def _tell_of_the_cache(overview: Overview, tally: Tally, outbox: Frames) -> None:
    """Until the engine is away."""
    with contextlib.suppress(EngineError):
        await outbox.put(await overview.cache())
        while True:
            changes = await tally.take()
            await outbox.put(await overview.cache() if changes.missed else changes)


@get("/admin/sessions")
async def list_sessions(
    overview: NamedDependency[Overview],
    *,
    owner_id: Named = None,
    cursor: Cursor = None,
    limit: Annotated[int, QueryParameter(ge=1, le=500)] = 100,
) -> SessionPage:
    return await overview.sessions(owner_id=owner_id, cursor=cursor, limit=limit)


@post("/admin/sessions/{owner_id:str}/{session_id:str}/{act:str}", status_code=204)
async def act_on_session(
    owner_id: FromPath[str],
    session_id: FromPath[str],
    act: FromPath[SessionAct],
    overview: NamedDependency[Overview],
) -> None:
    """Warm it up, park it, unpin it or evict it: its owner loses time at most."""
    await overview.act(act, UserId(owner_id), ConversationId(session_id))


@get("/admin/prefixes")
async def read_prefixes(
    overview: NamedDependency[Overview],
    limit: Annotated[int, QueryParameter(ge=1, le=5000)] = 500,
) -> PrefixTree:
    return await overview.prefixes(limit)


@get("/admin/shares")
async def read_shares(shares: NamedDependency[Shares]) -> CacheShares:
    """What each owner's sessions hold, and how much may be pinned."""
    return await shares.read()


@get("/admin/turns")
async def list_turns(
    overview: NamedDependency[Overview],
    limit: Annotated[int, QueryParameter(ge=1, le=500)] = 200,
) -> Sequence[TurnCost]:
    """What the last turns cost, the newest first."""
    return await overview.turns(limit)


@get("/admin/misses")
async def list_misses(
    overview: NamedDependency[Overview],
    *,
    reason: FromQuery[MissReason | None] = None,
    user_id: Named = None,
    model: Named = None,
    cursor: Cursor = None,
    limit: Annotated[int, QueryParameter(ge=1, le=200)] = 50,
) -> MissPage:
    wanted = MissFilter(reason=reason, user_id=user_id, model=model)
    return await overview.misses(wanted, cursor=cursor, limit=limit)


@get("/admin/users")
async def list_users_and_sums(accounting: NamedDependency[Accounting]) -> list[UserSums]:
    """All accounts with what they come to: turns, tokens, what is stored, when last seen."""
    return await accounting.users()


@get("/admin/usage")
async def sum_usage(
    accounting: NamedDependency[Accounting],
    *,
    by: FromQuery[list[UsageBy]],
    since: Day = None,
    until: Day = None,
    user_id: Named = None,
) -> list[UsageSum]:
    """Ended turns and their tokens, told apart by what is asked; the 1,000 largest, newest days first."""
    return await accounting.usage(by, UsageFilter(since=since, until=until, user_id=user_id))


@get("/admin/audit")
async def read_audit(
    audit: NamedDependency[Audit],
    *,
    act: FromQuery[AuditAct | None] = None,
    actor_id: Named = None,
    subject_id: Named = None,
    cursor: Cursor = None,
    limit: Annotated[int, QueryParameter(ge=1, le=200)] = 50,
) -> AuditPage:
    wanted = AuditFilter(act=act, actor_id=actor_id, subject_id=subject_id)
    return await audit.read(wanted, cursor=cursor, limit=limit)


@get("/admin/settings")
async def read_settings(settings: NamedDependency[Settings]) -> list[SettingView]:
    """Every setting with the value that is in force; secrets are not told."""
    return [_setting(one, settings) for one in SETTINGS]


def _setting(one: Setting, settings: Settings) -> SettingView:
    value = getattr(settings, one.field)
    # As it would be written in the environment.
    written = int(value) if isinstance(value, bool) else value
    return SettingView(
        variable=one.variable,
        value=None if value is None else one.shown(str(written)).strip("'"),
        default=one.default.strip("`"),
        words=one.words,
    )


figure_handlers = [
    read_health,
    read_cache,
    watch_cache,
    list_sessions,
    read_prefixes,
    read_shares,
    list_turns,
    list_misses,
    list_users_and_sums,
    sum_usage,
]
"""For auditors too."""
handlers = [act_on_session, read_audit, read_settings]
