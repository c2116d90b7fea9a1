"""Reads strangers' files in a process of its own: what a file does to its reader, it does to nobody.

    parent   file on stdin -> `python -m app.chat.apart WORK ARGUMENT` -> frames on stdout
    frame    kind (1 byte), length (4 bytes), payload: an item, a refusal as JSON, or the end

The process knows no setting, has no secret in its environment, may write no file, and is killed when
it takes too long or too much. A work is a generator of bytes; what it refuses is an `InvalidRequest`.
"""

import asyncio
import contextlib
import importlib
import os
import resource
import struct
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import BinaryIO

import msgspec

from app.errors import Code, InvalidRequest, TooMany

Work = Callable[[bytes, str], Iterable[bytes]]

WORKS = {
    "conversations": "app.chat.foreign:work",
    "document": "app.chat.extract:work",
}
PROCESSES = 2
"""At a time; others wait."""
WAITING = 8
PATIENCE_S = 60.0
PROCESSOR_S = 40
MEMORY_BYTES = 2**30

_ITEM, _REFUSAL, _END = b"i", b"r", b"e"
_LENGTH = struct.Struct("<I")
_ROOT = Path(__file__).resolve().parents[2]


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    code: Code
    message: str
    field: str | None


class Apart:
    """One per server: how many such processes there are at a time."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._seats = asyncio.Semaphore(PROCESSES)
        self._asking = 0

    async def items(self, work: str, data: bytes, argument: str = "") -> AsyncIterator[bytes]:
        """What the work makes of a file, item by item.

        Raises what the work refuses; `InvalidRequest` where it was killed, and `TooMany`.
        """
        if self._asking >= PROCESSES + WAITING:
            raise TooMany("Too many files are being read; try again.", retry_after_s=5.0)
        self._asking += 1
        try:
            async with self._seats, _process(work, argument) as process:
                try:
                    async with asyncio.timeout(self._patience_s):
                        await _feed(process, data)
                        while (item := await _next_item(process)) is not None:
                            yield item
                except (TimeoutError, asyncio.IncompleteReadError) as error:
                    raise InvalidRequest(
                        "Reading this file takes more time or memory than a file gets.",
                        code="file_too_complex",
                    ) from error
        finally:
            self._asking -= 1


@contextlib.asynccontextmanager
async def _process(work: str, argument: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "app.chat.apart", work, argument),
        cwd=_ROOT,
        env={},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _feed(process: asyncio.subprocess.Process, data: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):  # it ended early; its frames say why
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()


async def _next_item(process: asyncio.subprocess.Process) -> bytes | None:
    assert process.stdout is not None
    kind = await process.stdout.readexactly(1)
    (length,) = _LENGTH.unpack(await process.stdout.readexactly(_LENGTH.size))
    payload = await process.stdout.readexactly(length)
    if kind == _REFUSAL:
        refused = msgspec.json.decode(payload, type=Refusal)
        raise InvalidRequest(refused.message, code=refused.code, field=refused.field)
    return None if kind == _END else payload


# ---------------------------------------------------------------- inside the process


def _main(work: str, argument: str) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_S, PROCESSOR_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    # Whatever a library prints must not come between the frames.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    module, _, name = WORKS[work].partition(":")
    do: Work = getattr(importlib.import_module(module), name)
    try:
        for item in do(sys.stdin.buffer.read(), argument):
            _write(out, _ITEM, item)
    except InvalidRequest as refused:
        words = Refusal(code=refused.code, message=refused.message, field=refused.field)
        _write(out, _REFUSAL, msgspec.json.encode(words))
    _write(out, _END, b"")


def _write(out: BinaryIO, kind: bytes, payload: bytes) -> None:
    out.write(kind + _LENGTH.pack(len(payload)) + payload)
    out.flush()


if __name__ == "__main__":
    _main(*sys.argv[1:])
