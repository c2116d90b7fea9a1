"""Processes that end at random moments under a crowd: `python -m tests.chaos.kill --kills 200`.

People say, edit, ask anew, stop, go on, type and look away (`tests/chaos/people.py`); meanwhile the
engine's process is killed or frozen, the server is killed or asked to stop, again and again. The same
seed draws the same script and the same pauses; what is hit by a kill depends on the machine.
"""

import argparse
import asyncio
import contextlib
import math
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Sequence

import httpx
import psutil

from tests.chaos.crowd import House, Outcome, command, live_through
from tests.kit.server import READY_S

PAUSE_S = (0.2, 3.0)
WAYS = {"engine killed": 1.0, "server killed": 1.0, "server stopped": 0.1, "engine frozen": 0.02}
"""How often each happens for one kill; a frozen engine is seen only after a minute."""


async def run(harms: Sequence[str], *, people: int, seed: int, **settings: str) -> Outcome:
    """One crowd and these harms, in an order that is drawn."""
    draw, done = random.Random(seed), Counter[str]()  # noqa: S311
    house = House(**settings)

    async def kill() -> None:
        for way in draw.sample(harms, len(harms)):
            await asyncio.sleep(draw.uniform(*PAUSE_S))
            match way:
                case "engine killed":
                    await replace_engine(house, signal.SIGKILL)
                case "engine frozen":
                    await replace_engine(house, signal.SIGSTOP)
                case "server killed":
                    house.server.kill()
                    await house.start_again()
                case _:
                    assert await asyncio.to_thread(house.server.stop) == 0
                    await house.start_again()
            done[way] += 1
            sys.stderr.write(f"{done.total()} of {len(harms)}: {way}\n")

    return await live_through(house, kill, done, people=people, seed=seed)


async def replace_engine(house: House, number: signal.Signals) -> None:
    """Send it a signal; return when another is ready in its place."""
    before = _engine_of(house)
    assert before is not None
    os.kill(before, number)
    async with (
        httpx.AsyncClient(base_url=house.server.url, timeout=READY_S) as client,
        asyncio.timeout(READY_S),
    ):
        while _engine_of(house) in (None, before) or not await _is_ready(client):  # noqa: ASYNC110  processes tell nobody
            await asyncio.sleep(0.05)


def _engine_of(house: House) -> int | None:
    children = psutil.Process(house.server.pid).children()
    return next((one.pid for one in children if "engine" in _words(one)), None)


def _words(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


async def _is_ready(client: httpx.AsyncClient) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return (await client.get("/health/ready")).is_success
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description="Processes that end under a crowd.")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--kills", type=int, default=200, help="of the engine, and of the server")
    return command(
        parser,
        lambda asked, settings: run(
            [way for way in asked.ways for _ in range(math.ceil(asked.kills * WAYS[way]))],
            people=asked.people,
            seed=asked.seed,
            **settings,
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
