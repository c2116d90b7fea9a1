"""The engine's process: a local engine behind a socket, with one parent and one life.

It tells its parent what it does until it is ready, obeys calls, and says in one frame what one step
had to say. It ends when it is told to, when its engine fails, or when its parent is gone; it never
outlives any of them and never starts itself again.
"""

import argparse
import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Coroutine
from typing import NoReturn

import msgspec
import zmq
import zmq.asyncio

from engine import wire
from engine.api import Finished, FinishReason, Job
from engine.config import EngineConfig
from engine.errors import EngineError, EngineLost, Misconfigured
from engine.local import LocalEngine

OUTBOX_REPLIES = 1024
"""Beyond it jobs wait to be read, and their deltas are merged where they arise (law 18)."""
ORPHAN_S = 5.0
"""How long a process without a parent may take to close in order."""
PR_SET_PDEATHSIG = 1
"""From <sys/prctl.h>: the signal that a child gets when its parent dies."""


class Server:
    """Obeys one parent until it is told to close, then drains what runs."""

    def __init__(
        self, engine: LocalEngine, socket: zmq.asyncio.Socket, closing: asyncio.Event
    ) -> None:
        self._engine = engine
        self._socket = socket
        self._closing = closing
        self._outbox: asyncio.Queue[wire.Reply] = asyncio.Queue(OUTBOX_REPLIES)
        self._answers: dict[int, asyncio.Task[None]] = {}
        self._close_request: int | None = None

    async def run(self) -> None:
        """Raises, in a group, whatever the engine fails with."""
        async with asyncio.TaskGroup() as group:
            chores = [
                group.create_task(self._receive(group)),
                group.create_task(self._send()),
                group.create_task(self._engine.failed()),
            ]
            await self._closing.wait()
            await self._engine.aclose()
            await asyncio.gather(*self._answers.values(), return_exceptions=True)
            if self._close_request is not None:
                await self._reply(self._close_request, wire.ClosedReply())
            await self._outbox.join()
            for chore in chores:
                chore.cancel()

    async def _receive(self, group: asyncio.TaskGroup) -> None:
        while True:
            call = wire.unpack_call(await self._socket.recv())
            match call.body:
                case wire.Drop():
                    if answer := self._answers.get(call.request_id):
                        answer.cancel()
                case wire.Close():
                    self._close_request = call.request_id
                    self._closing.set()
                case wire.Generate(job=job):
                    self._start(group, call.request_id, self._generate(call.request_id, job))
                case wire.Watch(after=after):
                    self._start(group, call.request_id, self._watch(call.request_id, after))
                case body:
                    self._start(group, call.request_id, self._answer(call.request_id, body))

    def _start(
        self, group: asyncio.TaskGroup, request_id: int, work: Coroutine[None, None, None]
    ) -> None:
        task = group.create_task(self._guarded(request_id, work))
        self._answers[request_id] = task
        task.add_done_callback(lambda _: self._answers.pop(request_id, None))

    async def _guarded(self, request_id: int, work: Coroutine[None, None, None]) -> None:
        """Errors of the contract go to the caller; a lost engine ends the process."""
        try:
            await work
        except EngineLost:
            raise
        except EngineError as error:
            await self._reply(request_id, wire.FailedReply(failure=wire.failure_of(error)))

    async def _generate(self, request_id: int, job: Job) -> None:
        async with contextlib.aclosing(self._engine.generate(job)) as events:
            async for event in events:
                if isinstance(event, Finished) and event.reason is FinishReason.FAILED:
                    # Not the job's end: the parent asks the next process for the rest of it.
                    await self._engine.failed()
                await self._reply(request_id, event)

    async def _watch(self, request_id: int, after: int) -> None:
        async for event in self._engine.watch(after):
            await self._reply(request_id, wire.WatchReply(event=event))

    async def _answer(self, request_id: int, body: wire.CallBody) -> None:
        await self._reply(request_id, await self._asked(body))

    async def _asked(self, body: wire.CallBody) -> wire.ReplyBody:
        engine = self._engine
        match body:
            case wire.Render(request=request):
                return wire.RenderReply(rendered=await engine.render(request))
            case wire.Cancel(job_id=job_id):
                return wire.CancelReply(cancelled=await engine.cancel(job_id))
            case wire.Lease(subject=subject, wish=wish):
                return wire.LeaseReply(lease=await engine.lease(subject, wish))
            case wire.ReadStats():
                return wire.StatsReply(stats=await engine.stats())
            case wire.ReadSnapshot(tree=tree):
                return wire.SnapshotReply(snapshot=await engine.snapshot(tree=tree))
            case wire.Generate() | wire.Watch() | wire.Drop() | wire.Close():
                raise AssertionError("not a question")

    async def _reply(self, request_id: int, body: wire.ReplyBody) -> None:
        await self._outbox.put(wire.Reply(request_id=request_id, body=body))

    async def _send(self) -> None:
        """All that waits goes in one frame; while the parent is slow, readers of jobs wait."""
        while True:
            replies = [await self._outbox.get()]
            while not self._outbox.empty():
                replies.append(self._outbox.get_nowait())
            await self._socket.send(wire.pack(wire.Replies(replies=tuple(replies))))
            for _ in replies:
                self._outbox.task_done()


async def serve(config_json: str, address: str) -> int:
    """Run until closed; the process's exit status, 0 or, where the engine cannot start, 2."""
    closing = asyncio.Event()
    _heed(closing)
    with zmq.asyncio.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.setsockopt(zmq.MAXMSGSIZE, wire.FRAME_BYTES)
        socket.setsockopt(zmq.LINGER, 1000)
        socket.connect(address)
        try:
            engine = await _open(config_json, socket)
        except EngineError as error:
            await socket.send(wire.pack(wire.Unready(failure=wire.failure_of(error))))
            return 2
        await socket.send(wire.pack(wire.Ready(card=await engine.info())))
        try:
            await Server(engine, socket, closing).run()
        except Exception:  # noqa: BLE001  whatever it is, the parent is to know at once
            _end_at_once()
    return 0


async def _open(config_json: str, socket: zmq.asyncio.Socket) -> LocalEngine:
    loop = asyncio.get_running_loop()

    def report(text: str) -> None:
        frame = wire.pack(wire.Progress(text=text))
        loop.call_soon_threadsafe(socket.send, frame)

    report("starting the engine")
    try:
        config = msgspec.json.decode(config_json, type=EngineConfig, dec_hook=_of_text)
    except msgspec.MsgspecError as error:
        raise Misconfigured(f"the engine's configuration: {error}") from error
    return await LocalEngine.open(config, report=report)


def _of_text(kind: type, text: str) -> object:
    """A path arrives as its text."""
    return kind(text)


def _heed(closing: asyncio.Event) -> None:
    """Close in order on SIGTERM and at the end of stdin, which is the parent's end."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, closing.set)

    def outlive_nobody() -> None:
        # Not through `sys.stdin`, whose lock would be held when the interpreter ends.
        while os.read(0, 1024):
            pass
        loop.call_soon_threadsafe(closing.set)
        time.sleep(ORPHAN_S)
        os._exit(1)

    threading.Thread(target=outlive_nobody, name="parent", daemon=True).start()


def _end_at_once() -> NoReturn:
    """With the error's words, and in no order: to end in order a thread is started and waited for.

    Where memory is short it dies before it can say that it runs, and the wait has no end.
    """
    try:
        traceback.print_exc()
    finally:
        os._exit(1)


def _die_with_parent() -> None:
    """Linux only: no engine survives its parent, not even one that hangs."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m engine", description=__doc__)
    parser.add_argument("config", help="EngineConfig as JSON")
    parser.add_argument("address", help="the parent's ZeroMQ socket")
    options = parser.parse_args(arguments)
    _die_with_parent()
    # Ctrl-C reaches the whole foreground group; it is the parent that decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return asyncio.run(serve(options.config, options.address))
