"""One life of the engine's process: spawned, ready, lost or stopped; it is never started twice.

Parent and child share one exclusive ZeroMQ pair over a socket file in a private folder, which is
removed as soon as the child is connected: however either of them dies, nothing is left behind.
Knows frames and signals, not jobs.
"""

import asyncio
import contextlib
import logging
import shutil
import signal
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar

import msgspec
import zmq
import zmq.asyncio

from engine import wire
from engine.api import ModelCard
from engine.config import EngineConfig
from engine.errors import Corrupt, EngineLost

log = logging.getLogger("keepwarm.engine")

_Result = TypeVar("_Result")

STDERR_LINES = 20
"""How much of the child's last words an error quotes."""


class EngineProcess:
    """A child that answers calls. `start` raises `Misconfigured` or `EngineLost` if it cannot."""

    def __init__(
        self,
        child: asyncio.subprocess.Process,
        context: zmq.asyncio.Context,
        socket: zmq.asyncio.Socket,
    ) -> None:
        self._child = child
        self._context = context
        self._socket = socket
        self._last_words: deque[str] = deque(maxlen=STDERR_LINES)
        self._stderr = asyncio.create_task(self._log_stderr())
        self._exited = asyncio.create_task(child.wait())
        self.card: ModelCard

    @classmethod
    async def start(cls, config: EngineConfig, report: Callable[[str], None]) -> Self:
        """Return when the engine is ready; `report` hears what it does until then."""
        folder = Path(tempfile.mkdtemp(prefix="keepwarm-"))
        context = zmq.asyncio.Context()
        try:
            socket = _bind(context, folder)
            child = await _spawn(config, f"ipc://{folder}/engine")
            process = cls(child, context, socket)
            try:
                process.card = await first_of(process._until_ready(folder, report), process.lost())
            except BaseException:
                await process.stop(patience_s=0)
                raise
        except BaseException:
            context.destroy(linger=0)
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return process

    @property
    def pid(self) -> int:
        return self._child.pid

    def send(self, call: wire.Call) -> None:
        """Hand over one frame; never waits. Raises `InvalidJob` for what no frame can hold."""
        frame = wire.pack(call)
        if not self._socket.closed:
            sending = asyncio.ensure_future(self._socket.send(frame))
            sending.add_done_callback(_drop_outcome)

    async def receive(self) -> wire.Note:
        """The next note, for ever: it is `lost` that ends. Raises `Corrupt` for a bad frame."""
        return wire.unpack_note(await self._socket.recv())

    async def lost(self) -> NoReturn:
        """Wait for the process to end, then raise `EngineLost` with its last words."""
        await asyncio.wait((self._exited,))
        await asyncio.wait((self._stderr,), timeout=1.0)
        words = "".join(f"\n  {line}" for line in self._last_words)
        raise EngineLost(f"the engine's process ended with status {self._child.returncode}{words}")

    async def stop(self, *, patience_s: float) -> None:
        """End the process: politely, and by force after `patience_s` or when cancelled. Idempotent."""
        try:
            if patience_s > 0:
                self._signal(signal.SIGTERM)
                await asyncio.wait((self._exited,), timeout=patience_s)
        finally:
            self._signal(signal.SIGKILL)
            await asyncio.wait((self._exited, self._stderr))
            self._context.destroy(linger=0)

    async def _until_ready(self, folder: Path, report: Callable[[str], None]) -> ModelCard:
        while True:
            match await self.receive():
                case wire.Progress(text=text):
                    shutil.rmtree(folder, ignore_errors=True)
                    report(text)
                case wire.Ready(card=card):
                    return card
                case wire.Unready(failure=failure):
                    raise wire.error_of(failure)
                case wire.Replies():
                    raise Corrupt("the engine replied before it was ready")

    def _signal(self, number: signal.Signals) -> None:
        if not self._exited.done():
            with contextlib.suppress(ProcessLookupError):
                self._child.send_signal(number)

    async def _log_stderr(self) -> None:
        stream = self._child.stderr
        assert stream is not None
        while piece := await stream.read(1 << 16):
            for line in piece.decode(errors="replace").splitlines():
                self._last_words.append(line)
                log.warning("%s", line)


async def first_of(*coroutines: Coroutine[Any, Any, _Result]) -> _Result:
    """Run all until the first one ends, cancel the others, and return or raise what it did."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return next(task for task in tasks if task in done).result()


def _bind(context: zmq.asyncio.Context, folder: Path) -> zmq.asyncio.Socket:
    socket = context.socket(zmq.PAIR)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, wire.FRAME_BYTES)
    # Calls are few and bounded by those who wait for them, so sending never has to.
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.bind(f"ipc://{folder}/engine")
    return socket


async def _spawn(config: EngineConfig, address: str) -> asyncio.subprocess.Process:
    """The child watches its stdin, whose end tells it that its parent is gone."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "engine", msgspec.json.encode(config, enc_hook=str).decode(), address),
        stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


def _drop_outcome(sending: "asyncio.Future[Any]") -> None:
    """A frame that could not be sent was meant for a process that is gone; it is sent again."""
    if not sending.cancelled():
        sending.exception()
