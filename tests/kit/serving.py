"""A whole server on a real socket, in a thread of this process, so that a test holds its engine.

The thread has the loop that the server lives on; a test reaches into it by `do`.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self, TypeVar

import uvicorn

from app.asgi import Server, compose, listener_for, uvicorn_config
from app.db.revisions import migrate
from app.ids import UserId, new_user_id
from app.people.keys import NewKey
from app.service import Service
from app.settings import Settings
from engine.api import Engine
from tests.kit.people import QUICK
from tests.kit.tab import Place, Site

T = TypeVar("T")
OpenEngine = Callable[[], Awaitable[Engine]]

KEY = "sk-kw-the-key-of-the-tests-0001"
START_S = 120.0
WAIT_S = 60.0
POLL_S = 0.005
"""Between two looks at what has no event: whoever is waited for needs the core meanwhile."""


class Serving:
    """`url` is the dialect's base address; `key` is let in there. `site` is where its page lives.

    What is changed of `config` holds for whoever connects afterwards.
    """

    key = KEY

    def __init__(
        self, service: Service, port: int, stop: Callable[[], None], config: uvicorn.Config
    ) -> None:
        self.service = service
        self.site = Site(url=f"http://127.0.0.1:{port}", ws_url=f"ws://127.0.0.1:{port}")
        self.url = f"{self.site.url}/v1"
        self.database_url = service.settings.database_url
        self.place = Place(
            url=self.site.url,
            ws_url=self.site.ws_url,
            api_key=self.key,
            database_url=self.database_url,
        )
        self.stop = stop
        self.config = config
        self._loop = asyncio.get_running_loop()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` on the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

    def call(self, act: Callable[..., object], *given: object) -> None:
        """Call something that is no coroutine on the server's loop."""

        async def called() -> None:
            act(*given)

        self.do(called())

    def until(self, holds: Callable[[], bool]) -> None:
        """Returns when the server has come to where `holds` is true."""

        async def come() -> None:
            async with asyncio.timeout(WAIT_S):
                while not holds():  # noqa: ASYNC110  what is waited for has no event
                    await asyncio.sleep(POLL_S)

        self.do(come())

    def until_warm(self) -> Self:
        """Until what everybody begins with is computed and leased: what comes now is a test's."""
        self.until(lambda: bool(self.service.warming.warm))
        return self

    def new_user(self) -> tuple[UserId, NewKey]:
        """Another user and a key of theirs."""
        return self.do(self._new_user())

    async def _new_user(self) -> tuple[UserId, NewKey]:
        email = f"{new_user_id()}@example.org"
        user_id = await self.service.accounts.create_user(email, "Other", "a long password")
        return user_id, await self.service.keys.create(user_id, "test")


@contextlib.contextmanager
def serving(data_dir: Path, open_engine: OpenEngine, **settings: Any) -> Iterator[Serving]:
    """Up when this returns, drained and gone when the block ends."""
    listener = listener_for("127.0.0.1")
    listener.bind(("127.0.0.1", 0))
    own = {"data_dir": data_dir, "api_key": KEY, "port": listener.getsockname()[1]}
    # Nobody waits for titles; who tests them asks for them.
    given = {"titles": False} | own | settings
    work = _serve(Settings(**given), listener, open_engine, ready := Future[Serving]())
    thread = threading.Thread(target=asyncio.run, args=(work,))
    thread.start()
    server = ready.result(START_S)
    try:
        yield server
    finally:
        server.stop()
        thread.join()


async def _serve(
    settings: Settings, listener: socket.socket, open_engine: OpenEngine, ready: Future[Serving]
) -> None:
    try:
        with listener:
            await _run(settings, listener, open_engine, ready)
    except Exception as error:
        if ready.done():
            raise
        ready.set_exception(error)


async def _run(
    settings: Settings, listener: socket.socket, open_engine: OpenEngine, ready: Future[Serving]
) -> None:
    await migrate(settings.database_url)
    engine = await open_engine()
    service = Service(settings, engine)
    service.accounts.passwords._hasher = QUICK
    config = uvicorn_config(compose(service), settings)
    server = _Threaded(
        config, service, lambda _: ready.set_result(Serving(service, settings.port, stop, config))
    )

    def stop() -> None:
        server.should_exit = True

    try:
        await server.serve(sockets=[listener])
    finally:
        await engine.aclose()


class _Threaded(Server):
    """Signals belong to the main thread; a test stops this server by hand."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
