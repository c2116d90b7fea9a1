"""`keepwarm chat` as its user has it: a real terminal at a real server; no model has to be quick."""

import contextlib
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.terminal import receipt_line, socket_url
from tests.kit.peers import engine_of
from tests.kit.server import free_port
from tests.kit.serving import Serving

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0
CTRL_C, CTRL_D = b"\x03", b"\x04"


class Terminal:
    """A program on a pseudo terminal: what it shows is read until it has shown something."""

    def __init__(self, *words: str) -> None:
        self._master, slave = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "app", "chat", *words],
            cwd=ROOT,
            env=environment,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=make_controlling,  # noqa: PLW1509  one thread so far: nothing can be held
        )
        os.close(slave)
        self._seen = ""

    def type(self, text: bytes) -> None:
        os.write(self._master, text)

    def until(self, words: str) -> str:
        """Everything shown since the last call, up to `words`. Fails after a generous while."""
        deadline = time.monotonic() + DEADLINE_S
        while words not in self._seen:
            left = deadline - time.monotonic()
            assert left > 0 and select.select([self._master], [], [], left)[0], self._seen
            self._seen += os.read(self._master, 65536).decode(errors="replace")
        shown, _, self._seen = self._seen.partition(words)
        return shown

    def something(self) -> None:
        """Until there is more to see than was asked for."""
        while not self._seen:
            assert select.select([self._master], [], [], DEADLINE_S)[0]
            self._seen += os.read(self._master, 65536).decode(errors="replace")

    def wait(self) -> int:
        with contextlib.suppress(OSError):
            while os.read(self._master, 65536):
                pass
        return self.process.wait(DEADLINE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)


def make_controlling() -> None:
    """In the child: the terminal on its stdin sends it Ctrl-C as a signal."""
    os.close(os.open(os.ttyname(0), os.O_RDWR))


def new(shown: str) -> int:
    return int(re.findall(r"([\d,]+) new, ", shown)[-1].replace(",", ""))


def from_cache(shown: str) -> int:
    """Of what was shown before the words `from cache`."""
    return int(shown.rsplit(" ", 1)[1].replace(",", ""))


@pytest.fixture
def terminal(sqlite_house: Serving) -> Iterator[Terminal]:
    words = ("--url", sqlite_house.site.url, "--key", sqlite_house.key)
    with contextlib.closing(Terminal(*words)) as opened:
        yield opened


def test_a_conversation_shows_answers_and_receipts(terminal: Terminal):
    terminal.until("> ")
    terminal.type(b"Say yes.\n")
    first = terminal.until(" from cache")
    terminal.until("> ")
    terminal.type(b"Say no.\n")
    second = terminal.until(" from cache")
    terminal.until("> ")
    terminal.type(CTRL_D)

    assert from_cache(second) > from_cache(first) + new(first)
    assert terminal.wait() == 0


def test_15_ctrl_c_stops_the_answer_and_not_the_program(sqlite_house: Serving, terminal: Terminal):
    sqlite_house.call(engine_of(sqlite_house).hold, 4)
    terminal.until("> ")
    terminal.type(b"Write a very long story about a river, with many chapters.\n")
    terminal.until("chapters.\r\n")
    terminal.something()
    terminal.type(CTRL_C)
    terminal.until("cancelled, ")
    terminal.until("> ")
    terminal.type(CTRL_D)

    assert terminal.wait() == 0
    sqlite_house.call(engine_of(sqlite_house).release)


def test_a_wrong_key_is_told_apart_from_a_missing_server(sqlite_house: Serving):
    here = ("--url", sqlite_house.site.url, "--key", "sk-kw-wrong")
    with contextlib.closing(Terminal(*here)) as refused:
        refused.until("the API key is not valid")
        assert refused.wait() == 1
    nowhere = ("--url", f"http://127.0.0.1:{free_port()}", "--key", sqlite_house.key)
    with contextlib.closing(Terminal(*nowhere)) as alone:
        alone.until("keepwarm serve")
        assert alone.wait() == 1


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8000", "ws://127.0.0.1:8000/v1/responses"),
        ("https://chat.example.org/", "wss://chat.example.org/v1/responses"),
    ],
)
def test_the_address_of_the_socket_follows_the_servers(url: str, address: str):
    assert socket_url(url) == address


def test_a_receipt_without_a_first_token_leaves_it_out():
    receipt = {"computed_tokens": 1200, "cached_tokens": 3, "first_token_s": None}

    line = receipt_line({"status": "incomplete", "receipt": receipt})

    assert line == "incomplete, 1,200 new, 3 from cache"
