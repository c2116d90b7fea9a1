"""A network that fails under a crowd: `python -m tests.chaos.cut --seconds 600 --seed 1`.

Everybody comes through a proxy that draws a fault for each connection: it is cut after some bytes,
in either direction; it goes silent and is cut for the client alone, so that the server holds one end
of nothing; it passes on a byte at a time; it stalls. Besides, people cut their own sockets at every
kind of frame that they hear (`tests/chaos/people.py`).
"""

import argparse
import asyncio
import contextlib
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator

from tests.chaos.crowd import House, Outcome, command, live_through
from tests.kit.server import free_port
from tests.kit.tab import Site

CUTS = 0.02
FAULTS = ("none", "cut", "silent", "bytes", "stall")
MOST_BYTES = 200_000
STALL_S = (0.1, 1.5)


class Proxy:
    """Passes connections on to a port until their fault strikes."""

    def __init__(self, port: int, seed: int, counts: Counter[str]) -> None:
        self._port = port
        self._draw = random.Random(seed)  # noqa: S311
        self._counts = counts
        self._halves: list[asyncio.StreamWriter] = []

    @contextlib.asynccontextmanager
    async def on(self, port: int) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._pass_on, "127.0.0.1", port)
        try:
            yield
        finally:
            server.close()
            for writer in self._halves:
                writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fault = self._draw.choice(FAULTS)
        left = self._draw.randrange(MOST_BYTES) if fault in ("cut", "silent", "stall") else 1 << 60
        self._counts[fault] += 1
        try:
            inner, outer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        flow = _Flow(left, self._draw.uniform(*STALL_S) if fault == "stall" else 0.0)
        steps = 1 if fault == "bytes" else 1 << 16
        ways = [
            asyncio.ensure_future(flow.carry(reader, outer, 1 << 16)),
            asyncio.ensure_future(flow.carry(inner, writer, steps)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        writer.transport.abort()
        if fault == "silent":
            self._halves.append(outer)  # the server is told nothing
        else:
            outer.transport.abort()


class _Flow:
    """What may still pass, both ways together."""

    def __init__(self, left: int, stall_s: float) -> None:
        self._left, self._stall_s = left, stall_s

    async def carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, step: int
    ) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(step):
                if len(piece) >= self._left:
                    if not self._stall_s:
                        writer.write(piece[: self._left])
                        return
                    await asyncio.sleep(self._stall_s)
                    self._left = 1 << 60
                self._left -= len(piece)
                writer.write(piece)
                await writer.drain()


async def run(*, seconds: float, people: int, seed: int, **settings: str) -> Outcome:
    """One crowd for so long."""
    port = free_port()
    site = Site(url=f"http://127.0.0.1:{port}", ws_url=f"ws://127.0.0.1:{port}")
    house, counts = House(KEEPWARM_PUBLIC_URL=site.url, **settings), Counter[str]()
    async with Proxy(house.server.port, seed, counts).on(port):
        return await live_through(
            house,
            lambda: asyncio.sleep(seconds),
            counts,
            people=people,
            seed=seed,
            cuts=CUTS,
            site=site,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="A network that fails under a crowd.")
    parser.add_argument("--seconds", type=float, default=600.0)
    return command(
        parser,
        lambda asked, settings: run(
            seconds=asked.seconds, people=asked.people, seed=asked.seed, **settings
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
