"""What was counted over time: how finely it is kept, and that the figures are the engine's own."""

import asyncio
import json
from datetime import timedelta
from itertools import pairwise
from typing import Any

import httpx
import msgspec
import pytest

from app.chat.chronicle import LADDER, SAMPLE_S, Chronicle, figures
from app.events import Figures
from app.people.audit import Audit
from engine.api import Stats
from tests.kit.desk import Desk
from tests.kit.echo import EchoEngine
from tests.kit.people import Clock
from tests.kit.serving import Serving
from tests.kit.staff import boss, done, somebody


class Counting(EchoEngine):
    """Counts how often it is asked for its figures."""

    asked = 0
    fails_once_with: Exception | None = None

    async def stats(self) -> Stats:
        if self.fails_once_with is not None:
            error, self.fails_once_with = self.fails_once_with, None
            raise error
        self.asked += 1
        return msgspec.structs.replace(Desk().core.stats(), steps=self.asked)


@pytest.fixture
def engine() -> Counting:
    return Counting()


async def test_the_last_minutes_are_kept_finely_and_the_day_coarsely(db, engine: Counting):
    now_s = 0.0
    chronicle = Chronicle(engine, Audit(db), now=lambda: now_s)
    stats = Desk().core.stats()
    day = int(24 * 3600 / SAMPLE_S)
    for number in range(day):
        chronicle.add(figures(number * SAMPLE_S, stats))
    now_s = day * SAMPLE_S

    for (apart_s, kept), since_s in zip(LADDER, (900, 3 * 3600, 24 * 3600), strict=True):
        told = (await chronicle.history(since_s)).samples
        apart = {after.at - before.at for before, after in pairwise(told[:-1])}
        assert apart == {apart_s}
        assert kept - 2 <= len(told) <= kept + 1
        assert told[-1].at == now_s
    assert all(sample.at >= now_s - 60 for sample in (await chronicle.history(60)).samples)


async def test_who_looks_at_the_same_time_sees_the_same_sample(db, engine: Counting, clock: Clock):
    chronicle = Chronicle(engine, Audit(db), now=clock.seconds)

    first, second = await chronicle.now(), await chronicle.now()
    clock.now += timedelta(seconds=1)
    third = await chronicle.now()

    assert first is second
    assert third.at > first.at
    assert engine.asked == 2


async def test_a_clock_that_is_set_back_takes_along_what_it_had_not_reached(db, engine: Counting):
    now_s = 1000.0
    chronicle = Chronicle(engine, Audit(db), now=lambda: now_s)
    stats = Desk().core.stats()
    for at in (*range(500, 1000, 5), *range(600, 700, 5)):
        chronicle.add(figures(float(at), stats))
    now_s = 700.0

    told = [sample.at for sample in (await chronicle.history(900)).samples]

    assert told == [float(at) for at in range(500, 701, 5)]


async def test_a_sample_that_fails_does_not_end_the_others(
    db, engine: Counting, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("app.chat.chronicle.SAMPLE_S", 0.0)
    taken = asyncio.Event()

    class Noting(Chronicle):
        def add(self, sample: Figures) -> None:
            super().add(sample)
            taken.set()

    engine.fails_once_with = RuntimeError("a reply that nobody foresaw")
    async with Noting(engine, Audit(db)).running(), asyncio.timeout(30):
        await taken.wait()

    assert engine.asked == 1


async def test_figures_over_time_are_for_those_who_see_figures(house: Serving):
    async with somebody(house) as member, boss(house) as admin:
        refused = [
            (await member.client.get(f"/api/admin/figures{path}")).status_code
            for path in ("", "/events")
        ]
        told = await done(await admin.client.get("/api/admin/figures", params={"since_s": 60}))
        stats = (await done(await admin.client.get("/api/status")))["stats"]
        async with admin.client.stream("GET", "/api/admin/figures/events") as answer:
            sample = await first(answer)
        too_long = await admin.client.get("/api/admin/figures", params={"since_s": 10**6})

    assert refused == [403, 403]
    assert too_long.status_code == 400
    for found in (told["samples"][-1], sample):
        assert found["boot_id"] == stats["boot_id"]
        assert found["blocks"] == stats["blocks"]


async def first(answer: httpx.Response) -> dict[str, Any]:
    async for line in answer.aiter_lines():
        if line.startswith("data:"):
            found: dict[str, Any] = json.loads(line.removeprefix("data:"))
            assert found.pop("type") == "figures"
            return found
    raise AssertionError("the stream told nothing")
