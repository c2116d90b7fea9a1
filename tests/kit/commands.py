"""Commands of `keepwarm`, each in a process of its own that is forked from one with the app loaded.

Dozens of them are run, and most of what one costs is loading the same modules. `python -m` this
module is the process that is forked: it reads a request a line and answers with an exit status.
"""

import atexit
import importlib
import os
import subprocess
import sys
import threading
import traceback
from pathlib import Path

import click
import msgspec

ROOT = Path(__file__).parents[2]
LOADED = ("app.asgi", "app.admin", "app.db.revisions")
"""What commands import when they run."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What is typed, where it is known from, and the file for all that it says."""

    words: tuple[str, ...]
    environment: dict[str, str]
    output: str


class Commands:
    """The process that is forked, started by the first command."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Start it before the first command, for whoever counts processes."""
        with self._lock:
            self._process = self._process or self._start()

    def run(self, command: Command) -> int:
        """Run one; its exit status."""
        self.begin()
        with self._lock:
            process = self._process
            assert process is not None
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(msgspec.json.encode(command) + b"\n")
            process.stdin.flush()
            return int(process.stdout.readline())

    def _start(self) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        atexit.register(process.terminate)
        return process


def serve() -> None:
    main = importlib.import_module("app.__main__").main
    for name in LOADED:
        importlib.import_module(name)
    for line in sys.stdin.buffer:
        child = os.fork()
        if child == 0:
            become(msgspec.json.decode(line, type=Command), main)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def become(command: Command, main: click.Command) -> None:
    """Be the command: its environment, its output, its end."""
    status = 1
    os.environ.clear()
    os.environ.update(command.environment)
    output = os.open(command.output, os.O_WRONLY | os.O_CREAT)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for theirs, ours in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(theirs, ours)
    sys.stdin = os.fdopen(0, "r", closefd=False)
    try:
        main(list(command.words), prog_name="keepwarm")
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:  # noqa: BLE001  as Python ends a program, whatever it was
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve()
