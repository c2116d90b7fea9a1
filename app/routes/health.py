"""Is it alive, is it ready, what does it count: for orchestrators, for Prometheus, for the page.

Live and ready are for anybody and tell nothing else. `/metrics` counts over all users, so it wants
an administrator's key: a proxy on the same machine makes every stranger look like loopback.
Counters only; readers divide.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Literal

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from app.db.base import Database
from app.db.types import AccountRole
from app.errors import Unavailable
from app.people.accounts import Principal
from app.routes.gate import Gate
from engine.api import Engine, ModelCard, Stats

ANSWER_S = 2.0
"""An engine or a database that takes longer is not ready."""


class Live(msgspec.Struct, frozen=True, kw_only=True):
    status: Literal["live"] = "live"


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    status: Literal["ready"] = "ready"


class Status(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`card` and `stats` are for administrators: they tell of all users together."""

    model: str
    context_tokens: int
    card: ModelCard | None = None
    stats: Stats | None = None


@get("/health/live", include_in_schema=False)
async def live() -> Live:
    return Live()


@get("/health/ready", include_in_schema=False)
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


@get("/metrics", include_in_schema=False)
async def metrics(engine: NamedDependency[Engine], gate: NamedDependency[Gate]) -> Response[bytes]:
    registry = CollectorRegistry()
    registry.register(EngineCollector(await engine.stats(), gate.open_sockets))
    ProcessCollector(registry=registry)
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


@get("/status")
async def status(principal: NamedDependency[Principal], engine: NamedDependency[Engine]) -> Status:
    card = await engine.info()
    told = Status(model=card.name, context_tokens=card.context_tokens)
    if principal.role is not AccountRole.ADMIN:
        return told
    return msgspec.structs.replace(told, card=card, stats=await engine.stats())


class EngineCollector(Collector):
    """One look at the engine's counters, under the names that the field's dashboards expect."""

    def __init__(self, stats: Stats, open_sockets: int) -> None:
        self._stats = stats
        self._open_sockets = open_sockets

    def collect(self) -> Iterator[Metric]:
        yield from self._prefix_cache()
        yield from self._blocks()
        yield from self._work()

    def _prefix_cache(self) -> Iterator[Metric]:
        stats = self._stats
        yield _counter(
            "prefix_cache_query_tokens", "Prompt tokens that were looked up.", stats.prompt_tokens
        )
        yield _counters(
            "prefix_cache_hit_tokens",
            "Prompt tokens that were found, by whose zone they lie in.",
            "source",
            msgspec.structs.asdict(stats.cached_by_source),
        )
        yield _counters(
            "prefix_cache_misses",
            "Turns that computed more than what was new.",
            "reason",
            stats.misses,
        )

    def _blocks(self) -> Iterator[Metric]:
        blocks = GaugeMetricFamily(
            "keepwarm_kv_blocks", "Blocks of the pool by state; they sum to all.", labels=["state"]
        )
        for state, count in msgspec.structs.asdict(self._stats.blocks).items():
            blocks.add_metric([state], count)
        yield blocks
        yield _counter("kv_evicted_blocks", "Blocks let go.", self._stats.evicted_blocks)

    def _work(self) -> Iterator[Metric]:
        stats = self._stats
        yield _gauge("jobs_running", "Jobs that hold blocks.", stats.running_jobs)
        yield _gauge("jobs_waiting", "Jobs in the queue.", stats.waiting_jobs)
        yield _gauge("sockets_open", "Websockets that are open.", self._open_sockets)
        yield _counters("jobs_finished", "Jobs by how they ended.", "reason", stats.finished_jobs)
        yield _counter("prefill_tokens", "Prompt tokens computed.", stats.computed_tokens)
        yield _counter("generation_tokens", "Tokens written.", stats.output_tokens)
        yield _counter("preemptions", "Jobs set back to make room.", stats.preemptions)
        yield _counter("steps", "Forward passes.", stats.steps)
        yield _counter("step_seconds", "Time in steps.", stats.step_s)
        yield _counter("cache_seconds", "Time in the cache's own work.", stats.cache_s)


def _counter(name: str, words: str, value: float) -> Metric:
    return CounterMetricFamily(f"keepwarm_{name}", words, value=value)


def _gauge(name: str, words: str, value: float) -> Metric:
    return GaugeMetricFamily(f"keepwarm_{name}", words, value=value)


def _counters(name: str, words: str, label: str, values: dict[str, int]) -> Metric:
    family = CounterMetricFamily(f"keepwarm_{name}", words, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


public_handlers = [live, ready]
admin_handlers = [metrics]
api_handlers = [status]
