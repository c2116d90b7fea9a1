"""Is it alive, is it ready, what does it count: for orchestrators, for Prometheus, for the page.

Live and ready are for anybody and tell nothing else. `/metrics` counts over all users, so it wants
an administrator's or an auditor's key: a proxy on the same machine makes every stranger look like loopback.
The names of its figures are in `metrics.py`.
"""

import asyncio
import contextlib
from typing import Literal

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from app.chat.supervisor import Supervisor
from app.db.base import Database
from app.errors import Unavailable
from app.people.accounts import Principal
from app.routes.gate import Gate
from app.routes.metrics import EngineCollector
from app.routes.published.told import told
from engine.api import Engine, ModelCard, Stats

ANSWER_S = 2.0
"""An engine or a database that takes longer is not ready."""


class Live(msgspec.Struct, frozen=True, kw_only=True):
    status: Literal["live"] = "live"


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    status: Literal["ready"] = "ready"


class Status(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`card` and `stats` are for administrators and auditors: they tell of all users together."""

    model: str
    context_tokens: int
    card: ModelCard | None = None
    stats: Stats | None = None


@get("/health/live")
async def live() -> Live:
    return Live()


@get("/health/ready")
async def ready(
    engine: NamedDependency[Engine], db: NamedDependency[Database], gate: NamedDependency[Gate]
) -> Ready:
    gate.refuse_when_stopping()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            await engine.info()
            if await db.answers():
                return Ready()
    raise Unavailable("The engine or the database does not answer.", retry_after_s=2)


@get("/metrics", opt=told(gives={"text/plain": str}))
async def metrics(
    engine: NamedDependency[Engine],
    gate: NamedDependency[Gate],
    db: NamedDependency[Database],
    supervisor: NamedDependency[Supervisor],
) -> Response[bytes]:
    registry, card = CollectorRegistry(), await engine.info()
    registry.register(EngineCollector(card, await engine.stats(), gate.open_sockets))
    ProcessCollector(registry=registry)
    supervisor.record.expect(card.name)
    told = map(generate_latest, (registry, supervisor.record.registry, db.figures.registry))
    return Response(b"".join(told), media_type=CONTENT_TYPE_LATEST)


@get("/status")
async def status(principal: NamedDependency[Principal], engine: NamedDependency[Engine]) -> Status:
    card = await engine.info()
    told = Status(model=card.name, context_tokens=card.context_tokens)
    if not principal.sees_figures:
        return told
    return msgspec.structs.replace(told, card=card, stats=await engine.stats())


public_handlers = [live, ready]
admin_handlers = [metrics]
api_handlers = [status]
