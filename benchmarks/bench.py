"""An engine to measure, in this process, with the default model; and turns to measure it with."""

import argparse
import contextlib
import random
import time
from collections.abc import AsyncIterator, Sequence
from itertools import count
from pathlib import Path

from engine.api import (
    CacheSource,
    Delta,
    Engine,
    Finished,
    Job,
    JobId,
    Limits,
    OwnerId,
    Receipt,
    Sampling,
    Scope,
    SessionId,
    Zone,
)
from engine.config import EngineConfig
from engine.connect import open_engine

_numbers = count(1)


def arguments(description: str | None) -> argparse.ArgumentParser:
    """What every benchmark over an engine takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--data-dir", type=Path, default=Path("data"), help="of the converted model"
    )
    parser.add_argument("--threads", type=int, default=None)
    return parser


@contextlib.asynccontextmanager
async def opened(config: EngineConfig) -> AsyncIterator[Engine]:
    engine = await open_engine(config, "local", lambda _: None)
    try:
        yield engine
    finally:
        await engine.aclose()


def words(seed: int, tokens: int) -> list[int]:
    """Ids that no other seed begins with, out of the plain part of any vocabulary."""
    chance = random.Random(seed)  # noqa: S311
    return [chance.randrange(1000, 21_000) for _ in range(tokens)]


def turn(token_ids: Sequence[int], *, session: str, tokens: int, owner: str = "ann") -> Job:
    """A greedy turn of a fixed length."""
    ids = tuple(token_ids)
    return Job(
        job_id=JobId(f"bench-{next(_numbers)}"),
        owner_id=OwnerId(owner),
        session_id=SessionId(session),
        token_ids=ids,
        zones=(Zone(scope=Scope(f"user:{owner}"), source=CacheSource.SESSION, end=len(ids)),),
        sampling=Sampling(temperature=0),
        limits=Limits(max_output_tokens=tokens, ignore_eos=True),
    )


class Timed:
    """What a turn took: seconds to its first token and in all, and its receipt."""

    def __init__(self, first_token_s: float, total_s: float, finished: Finished) -> None:
        self.first_token_s = first_token_s
        self.total_s = total_s
        self.token_ids = finished.token_ids
        assert finished.receipt is not None
        self.receipt: Receipt = finished.receipt


async def timed(engine: Engine, job: Job) -> Timed:
    started = time.perf_counter()
    first = finished = None
    async for event in engine.generate(job):
        if isinstance(event, Delta) and first is None:
            first = time.perf_counter() - started
        if isinstance(event, Finished):
            finished = event
    assert finished is not None
    total = time.perf_counter() - started
    return Timed(total if first is None else first, total, finished)
