"""What `python -m app` and `python -m engine` run, forked from a process that has it loaded.

A hundred of them run in the tests, and most of what one costs is loading the same modules. `python
-m` this module is the process that is forked: it has one thread, whatever it loads. It is asked over
a socket, by the tests and by the servers that it forked, whose engines end with them as children do.
"""

import asyncio
import contextlib
import ctypes
import gc
import importlib
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Literal, NoReturn

import msgspec

from engine import process
from engine.config import EngineConfig
from engine.errors import EngineError

ROOT = Path(__file__).parents[2]
LOADED = {
    "app": ("app.__main__", "app.asgi", "app.admin", "app.db.revisions"),
    "engine": ("engine.server",),
}
"""What is run, and what it imports when it runs."""
FRAME_BYTES = 1 << 18
"""Room for an environment."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """What is typed behind `python -m`, and where its settings are."""

    name: Literal["app", "engine"]
    words: tuple[str, ...]
    environment: dict[str, str]


class Child:
    """A program that was forked: what the tests use of a `subprocess.Popen`."""

    def __init__(self, told: socket.socket) -> None:
        """`told` brings the process's id and, when it has ended, its status."""
        self.pid = int(told.recv(FRAME_BYTES))
        self._told = told
        self._status: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        with self._lock:
            return self._heard(0)

    def wait(self, timeout: float | None = None) -> int:
        with self._lock:
            status = self._heard(timeout)
        if status is None:
            raise subprocess.TimeoutExpired("a forked program", timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _heard(self, patience_s: float | None) -> int | None:
        if self._status is None:
            self._told.settimeout(patience_s)
            with contextlib.suppress(BlockingIOError, TimeoutError):
                self._status = int(self._told.recv(FRAME_BYTES))
        return self._status


class Forked:
    """The process that is forked, started by whoever first asks for a program."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._address = b""

    def begin(self) -> bytes:
        """Start it before the first program, for whoever counts processes; its address."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._process = self._start()
        return self._address

    def start(self, program: Program, output: int) -> Child:
        """Run one without an input; `output` is a file for all that it says."""
        with Path(os.devnull).open() as nothing:
            return Child(asked(self.begin(), program, (nothing.fileno(), output, output)))

    def _start(self) -> "subprocess.Popen[bytes]":
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind("")  # an address of its own, and no file
            listener.listen()
            self._address = listener.getsockname()
            return subprocess.Popen(
                [sys.executable, "-m", __name__, str(listener.fileno())],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
            )


FORKED = Forked()


def die_with_parent() -> None:
    """A test run that is killed leaves nothing behind."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def asked(address: bytes, program: Program, files: Sequence[int]) -> socket.socket:
    """Have a program run with these as its stdin, stdout and stderr; what tells of it."""
    told = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    told.connect(address)
    socket.send_fds(told, [msgspec.json.encode(program)], files)
    return told


# ---------------------------------------------------------------- engines of a server


class ForkedEngine:
    """What an engine's parent uses of an `asyncio.subprocess.Process`."""

    returncode: int | None = None

    def __init__(
        self, pid: int, told: socket.socket, stdin: int, stderr: asyncio.StreamReader
    ) -> None:
        self.pid = pid
        self.stderr = stderr
        self._told = told
        self._stdin = stdin
        """Open as long as the parent lives, which is what it is read for."""

    async def wait(self) -> int:
        status = int(await asyncio.get_running_loop().sock_recv(self._told, FRAME_BYTES))
        self._told.close()
        os.close(self._stdin)
        self.returncode = status
        return status

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


_address: ContextVar[bytes | None] = ContextVar("_address", default=None)
_spawn = process._spawn


async def _fork_or_spawn(config: EngineConfig, engine_address: str) -> object:
    address = _address.get()
    if address is None:
        return await _spawn(config, engine_address)
    program = Program(
        name="engine",
        words=(msgspec.json.encode(config, enc_hook=str).decode(), engine_address),
        environment=dict(os.environ),
    )
    stdin, ours = os.pipe()
    said, stderr = os.pipe()
    try:
        told = asked(address, program, (stdin, 1, stderr))
    finally:
        os.close(stdin)
        os.close(stderr)
    told.setblocking(False)
    reader, loop = asyncio.StreamReader(), asyncio.get_running_loop()
    protocol = asyncio.StreamReaderProtocol(reader)
    await loop.connect_read_pipe(lambda: protocol, os.fdopen(said, "rb"))
    pid = int(await loop.sock_recv(told, FRAME_BYTES))
    return ForkedEngine(pid, told, ours, reader)


@contextlib.contextmanager
def engines_forked(address: bytes) -> Iterator[None]:
    """What is opened meanwhile, in this context, forks its engine and each that takes its place.

    Whatever is opened beside it is spawned, as people have it.
    """
    process._spawn = _fork_or_spawn  # type: ignore[assignment]  # all that is asked of a process is there
    token = _address.set(address)
    try:
        yield
    finally:
        _address.reset(token)


# ---------------------------------------------------------------- the process that is forked


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A program that runs, who asked for it, and the connection that hears of it."""

    pid: int
    parent: int
    told: socket.socket


class Forge:
    """Forks whatever it is asked for, and tells of each end."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._address: bytes = listener.getsockname()
        self._running: dict[int, Running] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(sys.stdin, selectors.EVENT_READ)

    def run(self) -> None:
        """Until the tests are over, which is when stdin ends."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is sys.stdin:
                    return
                if key.fileobj is self._listener:
                    self._fork()
                else:
                    self._reap(key.fd)

    def _fork(self) -> None:
        told, _ = self._listener.accept()
        frame, files, _, _ = socket.recv_fds(told, FRAME_BYTES, 3)
        program = msgspec.json.decode(frame, type=Program)
        load(program)
        pid = os.fork()
        if pid == 0:
            become(program, files, self._address)
        for file in files:
            os.close(file)
        with contextlib.suppress(OSError):
            told.send(str(pid).encode())
        (parent,) = struct.unpack_from(
            "i", told.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        )
        ends = os.pidfd_open(pid)
        self._running[ends] = Running(pid=pid, parent=parent, told=told)
        self._selector.register(ends, selectors.EVENT_READ)

    def _reap(self, ends: int) -> None:
        self._selector.unregister(ends)
        os.close(ends)
        over = self._running.pop(ends)
        _, status = os.waitpid(over.pid, 0)
        for one in self._running.values():
            if one.parent == over.pid:
                os.kill(one.pid, signal.SIGKILL)
        # Who asked may be gone, with or without having read what it was told before.
        with contextlib.suppress(OSError), over.told:
            over.told.send(str(os.waitstatus_to_exitcode(status)).encode())


def load(program: Program) -> None:
    """Import what it runs, once; what was loaded is never looked through for what may go."""
    gc.disable()
    for name in LOADED[program.name]:
        importlib.import_module(name)
    if program.name == "app" and "serve" in program.words:
        load(msgspec.structs.replace(program, name="engine", words=()))
    if program.name == "engine" and program.words:
        load_weights(program.words[0])
    gc.freeze()


def load_weights(config_json: str) -> None:
    """Have the weights that an engine asks for; what is wrong with its wishes it says itself."""
    loaded = importlib.import_module("tests.kit.loaded")
    loaded.keep_loaded()
    with contextlib.suppress(EngineError, msgspec.MsgspecError):
        config = msgspec.json.decode(
            config_json, type=EngineConfig, dec_hook=lambda kind, text: kind(text)
        )
        loaded.load_to_be_forked(config)


def become(program: Program, files: Sequence[int], address: bytes) -> NoReturn:
    """Be the program: its environment, its input and output, its end."""
    status = 1
    try:
        die_with_parent()
        for theirs, ours in zip(files, (0, 1, 2), strict=True):
            os.dup2(theirs, ours)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.environ.clear()
        os.environ.update(program.environment)
        sys.stdin = os.fdopen(0, "r", closefd=False)
        gc.enable()
        if program.name == "app":
            with engines_forked(address):
                importlib.import_module("app.__main__").main(program.words, prog_name="keepwarm")
        else:
            status = importlib.import_module("engine.server").main(program.words)
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:  # noqa: BLE001  as Python ends a program, whatever it was
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    Forge(socket.socket(fileno=int(sys.argv[1]))).run()
