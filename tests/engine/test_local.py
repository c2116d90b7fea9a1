"""What only an engine in this process shows: its thread fails, and nobody waits for ever."""

import asyncio

import pytest

from engine.api import Finished, FinishReason, Limits
from engine.errors import EngineLost
from engine.model.runner import ModelRunner
from tests.kit.engines import a_job, first_prompt, open_local


async def test_a_failed_step_fails_its_jobs_and_every_later_call(monkeypatch):
    async with open_local() as engine:
        prompt = await first_prompt(engine, "Say hello.")
        limits = Limits(max_output_tokens=500, ignore_eos=True)
        running = [engine.generate(a_job(prompt, limits=limits)) for _ in range(2)]
        for events in running:
            await anext(events)
        watching = asyncio.ensure_future(anext(engine.watch(1 << 40)))

        monkeypatch.setattr(ModelRunner, "launch", fail)
        ends = [[event async for event in events][-1] for events in running]

        for end in ends:
            assert isinstance(end, Finished)
            assert end.reason is FinishReason.FAILED
            assert end.refusal is not None
        for call in (engine.info, engine.stats, engine.snapshot, engine.failed, lambda: watching):
            with pytest.raises(EngineLost):
                await call()


def fail(_runner, _plan):
    raise MemoryError("no memory for this step")
