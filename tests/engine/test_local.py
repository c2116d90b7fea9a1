"""What only an engine in this process shows: its thread fails, and nobody waits for ever."""

import asyncio

import pytest

from engine.api import FinishReason, Limits
from engine.errors import EngineLost
from engine.model.runner import ModelRunner
from tests.kit.engines import a_job, first_prompt, open_local, play


async def test_a_failed_step_fails_its_jobs_and_every_later_call(monkeypatch):
    async with open_local() as engine:
        prompt = await first_prompt(engine, "Say hello.")
        jobs = [a_job(prompt, limits=Limits(max_output_tokens=9)) for _ in range(2)]
        watching = asyncio.ensure_future(anext(engine.watch(1 << 40)))

        monkeypatch.setattr(ModelRunner, "launch", fail)
        outcomes = await asyncio.gather(*(play(engine, job) for job in jobs))

        assert [outcome.finished.reason for outcome in outcomes] == [FinishReason.FAILED] * 2
        assert all(outcome.finished.refusal is not None for outcome in outcomes)
        for call in (engine.info, engine.stats, engine.snapshot, engine.failed, lambda: watching):
            with pytest.raises(EngineLost):
                await call()


def fail(_runner, _plan):
    raise MemoryError("no memory for this step")
