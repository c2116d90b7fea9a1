"""A real server for tests: `keepwarm serve` as a process, on a free port, with fresh data.

`start_server` and `fork_server` return when the server says that it is ready. The converted model is
shared with all other runs through a link; everything else is new. A server is stopped like a service
manager would, or killed like a power cut.
"""

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from app.chat.library import DEFAULT_PERSONA
from app.settings import Settings
from tests.kit.engines import share_made
from tests.kit.forked import FORKED, Child, Program, die_with_parent

ROOT = Path(__file__).parents[2]
READY_S = 120.0
STOP_S = 60.0
POLL_S = 0.05
"""Between two questions of what has no event: whoever is waited for needs the core meanwhile."""
ADMIN_EMAIL = "admin@example.org"
ADMIN_PASSWORD = "correct horse battery"
API_KEY = "sk-kw-test-0123456789abcdefghij"
KV_MEMORY = "128MiB"


class Server:
    """A running server, the folder it lives in, and who may come in."""

    def __init__(
        self,
        process: "Child | subprocess.Popen[bytes]",
        port: int,
        folder: Path,
        *,
        database_url: str | None = None,
        said: int = 0,
    ) -> None:
        self.process = process
        self.port = port
        self.database_url = database_url or Settings(data_dir=folder / "data").database_url
        self.url = f"http://127.0.0.1:{port}"
        self.ws_url = f"ws://127.0.0.1:{port}"
        self.folder = folder
        self.admin_email = ADMIN_EMAIL
        self.admin_password = ADMIN_PASSWORD
        self.api_key = API_KEY
        self._said = said
        """What an earlier server of this folder wrote of its output, in characters."""

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        """Everything that it wrote to stdout and stderr."""
        return (self.folder / "server.log").read_text()

    async def get(self, path: str, **headers: str) -> httpx.Response:
        """As somebody without cookies."""
        async with httpx.AsyncClient(base_url=self.url, timeout=60) as client:
            return await client.get(path, headers=headers)

    def wait_until_ready(self) -> Self:
        """Raises `AssertionError` with the server's own words when it does not come up."""
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline and self.process.poll() is None:
            if "Keepwarm is on" in self.output[self._said :]:
                return self
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.1)
        raise AssertionError(f"the server is not ready:\n{self.output}")

    def wait_until_rested(self) -> Self:
        """Until nothing is computed, and nothing will be that nobody asks for.

        After its start a server computes what everybody begins with; and an answer of an earlier test
        may still be written.
        """
        with signed_in(self) as client:
            while not _rests(client):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(0.1)
                assert self.process.poll() is None, self.output
        return self

    def stop(self) -> int:
        """Ask it to stop and return its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_S)

    def kill(self) -> None:
        """As if the power went: no handler runs."""
        self.process.kill()
        self.process.wait(STOP_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.kill()


_TAKEN: list[socket.socket] = []
"""Bound, and never listening: nobody else is given their ports, and whoever sets `SO_REUSEADDR`, as
servers do, can listen there."""


def free_port() -> int:
    """One that is this run's to listen on until it ends, however late the listener comes."""
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    taken.bind(("127.0.0.1", 0))
    _TAKEN.append(taken)
    return int(taken.getsockname()[1])


def server_environment(folder: Path, port: int, **settings: str) -> dict[str, str]:
    """Our own environment without its settings, and those of one test server."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("KEEPWARM_")}
    return inherited | {
        "KEEPWARM_PORT": str(port),
        "KEEPWARM_DATA_DIR": str(folder / "data"),
        "KEEPWARM_ADMIN_EMAIL": ADMIN_EMAIL,
        "KEEPWARM_ADMIN_PASSWORD": ADMIN_PASSWORD,
        "KEEPWARM_API_KEY": API_KEY,
        # A pool of as many tokens on every machine.
        "KEEPWARM_DTYPE": "bfloat16",
        "KEEPWARM_KV_MEMORY": KV_MEMORY,
        "KEEPWARM_TITLES": "0",
        **settings,
    }


def new_folder() -> Path:
    """A folder for one server, gone with the run; what is made for the machine is shared."""
    folder = Path(tempfile.mkdtemp(prefix="keepwarm-test-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "data").mkdir()
    share_made(folder / "data")
    return folder


def keepwarm(folder: Path, *words: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    """One command; its status and everything it said."""
    with tempfile.TemporaryFile("r+") as said:
        environment = server_environment(folder, free_port(), **settings)
        program = Program(name="app", words=words, environment=environment)
        status = FORKED.start(program, said.fileno()).wait()
        said.seek(0)  # where the program wrote, for it had the same file
        return subprocess.CompletedProcess(words, status, said.read())


def complaint(folder: Path, *words: str, **settings: str) -> str:
    """What a command says that cannot do its work: plain words, no stack trace."""
    done = keepwarm(folder, *words, **settings)
    assert done.returncode == 1
    assert "Traceback" not in done.stdout
    return done.stdout


def run_command(folder: Path, *words: str, **settings: str) -> str:
    """One `keepwarm` command on a server's folder; its output, and its errors when it fails."""
    done = keepwarm(folder, *words, **settings)
    assert done.returncode == 0, done.stdout
    return done.stdout


Start = Callable[[Program, int], "Child | subprocess.Popen[bytes]"]


def start_server(
    folder: Path | None = None, port: int | None = None, *, module: str = "app", **settings: str
) -> Server:
    """Serve as people do; with the folder of an earlier server, on its data. `module` is what is run.

    `settings` are environment variables beside or instead of the usual ones, such as
    `KEEPWARM_THREADS="1"`. Use it as a context manager, so that it ends with the test.
    """
    return started(partial(spawn, module=(module,)), folder, port, settings)


def fork_server(folder: Path | None = None, port: int | None = None, **settings: str) -> Server:
    """As `start_server`, in a tenth of the time, for who does not ask whose child its engine is."""
    return started(FORKED.start, folder, port, settings)


def started(
    start: Start, folder: Path | None, port: int | None, settings: dict[str, str]
) -> Server:
    """What `start` makes of the program, once it is ready."""
    folder = folder or new_folder()
    port = port or free_port()
    file = folder / "server.log"
    said = len(file.read_text()) if file.exists() else 0
    environment = server_environment(folder, port, **settings)
    with file.open("ab") as log:
        program = Program(name="app", words=("serve",), environment=environment)
        process = start(program, log.fileno())
    url = settings.get("KEEPWARM_DATABASE_URL")
    server = Server(process, port, folder, database_url=url, said=said)
    try:
        return server.wait_until_ready()
    except BaseException:
        server.kill()
        raise


def spawn(program: Program, output: int, module: Sequence[str] = ()) -> "subprocess.Popen[bytes]":
    """`module`: what is typed behind `python -m` in the program's stead."""
    return subprocess.Popen(
        [sys.executable, "-m", *(module or (program.name,)), *program.words],
        cwd=ROOT,
        env=program.environment,
        stdout=output,
        stderr=subprocess.STDOUT,
        preexec_fn=die_with_parent,  # noqa: PLW1509  one call of the system, no lock
    )


def _rests(client: httpx.Client) -> bool:
    stats = client.get("/api/status").raise_for_status().json()["stats"]
    personas = client.get("/api/personas").raise_for_status().json()
    is_warm = {one["id"]: one["is_warm"] for one in personas}[DEFAULT_PERSONA.id]
    return is_warm and stats["running_jobs"] == stats["waiting_jobs"] == 0


@contextlib.contextmanager
def signed_in(server: Server) -> Iterator[httpx.Client]:
    """The admin's browser: its cookies, and the CSRF header on every request."""
    with httpx.Client(base_url=server.url, timeout=60) as client:
        client.get("/api/account")
        client.headers["x-csrf-token"] = client.cookies["kw_csrf"]
        credentials = {"email": server.admin_email, "password": server.admin_password}
        client.post("/api/login", json=credentials).raise_for_status()
        client.headers["x-csrf-token"] = client.cookies["kw_csrf"]
        yield client
