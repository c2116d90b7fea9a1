"""How the server is: its process, its engine's, its database, in numbers that a person reads."""

import asyncio
import contextlib
import time

import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector

from app.chat.supervisor import Supervisor
from app.db.base import Database
from app.routes.gate import Gate
from engine.api import Engine, ModelCard, Stats
from engine.errors import EngineError
from engine.figures import Hardware

ANSWER_S = 2.0
"""Who takes longer does not answer."""


class EngineVitals(msgspec.Struct, frozen=True, kw_only=True):
    """`restarts`: how often the engine's process was lost since the server's start.

    `pool_bytes`: what it took for the KV of conversations; `hardware`: what it runs on.
    """

    model: str
    device: str
    boot_id: str
    restarts: int
    steps: int
    step_s: float
    running_jobs: int
    waiting_jobs: int
    preemptions: int
    pool_bytes: int
    hardware: Hardware | None


class ProcessVitals(msgspec.Struct, frozen=True, kw_only=True):
    """None where the system does not say."""

    uptime_s: float | None
    cpu_s: float | None
    resident_bytes: int | None
    open_files: int | None
    most_files: int | None


class Vitals(msgspec.Struct, frozen=True, kw_only=True):
    """`engine` is None while it does not answer."""

    engine: EngineVitals | None
    database_answers: bool
    process: ProcessVitals
    open_sockets: int
    live_turns: int


async def vitals(engine: Engine, db: Database, gate: Gate, supervisor: Supervisor) -> Vitals:
    answers = False
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            answers = await db.answers()
    return Vitals(
        engine=await _engine(engine),
        database_answers=answers,
        process=_process(),
        open_sockets=gate.open_sockets,
        live_turns=supervisor.live_turns,
    )


async def _engine(engine: Engine) -> EngineVitals | None:
    try:
        async with asyncio.timeout(ANSWER_S):
            card, stats = await engine.info(), await engine.stats()
    except (TimeoutError, EngineError):
        return None
    return _engine_vitals(card, stats)


def _engine_vitals(card: ModelCard, stats: Stats) -> EngineVitals:
    return EngineVitals(
        model=card.name,
        device=card.device,
        boot_id=stats.boot_id,
        restarts=stats.restarts,
        steps=stats.steps,
        step_s=stats.step_s,
        running_jobs=stats.running_jobs,
        waiting_jobs=stats.waiting_jobs,
        preemptions=stats.preemptions,
        pool_bytes=card.pool_blocks * card.block_tokens * card.kv_bytes_per_token,
        hardware=stats.hardware,
    )


def _process() -> ProcessVitals:
    registry = CollectorRegistry()
    found = {
        sample.name: sample.value
        for family in ProcessCollector(registry=registry).collect()
        for sample in family.samples
    }

    def whole(name: str) -> int | None:
        return int(found[name]) if name in found else None

    started_s = found.get("process_start_time_seconds")
    return ProcessVitals(
        uptime_s=None if started_s is None else time.time() - started_s,
        cpu_s=found.get("process_cpu_seconds_total"),
        resident_bytes=whole("process_resident_memory_bytes"),
        open_files=whole("process_open_fds"),
        most_files=whole("process_max_fds"),
    )
