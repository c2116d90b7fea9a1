"""The composition root: the only module that knows everybody, and the order of start and stop.

    start   port, database to itself, migrations, engine, sweep and supervisor, first admin, then requests; meanwhile
            the door says that it is alive
    stop    no new sockets or turns; live turns finish, or are interrupted and stored;
            sockets close with 1012; database and engine are let go

The engine was begun before this was imported, in the one process that serves its data folder
(`app/launch.py`).
"""

import asyncio
import contextlib
import gc
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator

import uvicorn
from litestar import Litestar

from app.db.revisions import check_revision, migrate
from app.db.sole import served_alone
from app.errors import AppError
from app.launch import engine_config
from app.routes import problems, starting
from app.routes.bodies import StrictRequest
from app.routes.cut import Cut
from app.routes.front import Front
from app.routes.table import route_table
from app.service import Service
from app.settings import SETTINGS, Settings
from app.tracing import exporting
from engine.api import Engine, ModelCard, Stability, TemplateFaultKind, TemplateFinding
from engine.connect import open_engine

CLOSING_S = 5
LARGEST_MESSAGE = 16 * 2**20
"""Bytes of one websocket message; both sockets have lower limits of their own."""
PING_S = 20.0
"""A websocket is pinged so often; who does not answer for as long is gone, and closed with 1011."""

_STABILITY_MEANS = {
    Stability.STABLE: "turns stay warm, and history reads as the template writes it",
    Stability.APPENDABLE: "turns stay warm: a conversation goes on from its stored ids, so its "
    "history stays as it was generated, whatever the template would write now",
    Stability.UNSTABLE: "each turn renders the whole history anew, and what comes after the first "
    "change in it is computed again",
}
_FAULT_MEANS = {
    TemplateFaultKind.CLOCK: "what is stored keeps its date, what is new gets today's",
    TemplateFaultKind.REASONING: "here a reply keeps its reasoning, and later turns see it",
    TemplateFaultKind.THOUGHT: "here a reply keeps what it was opened with",
    TemplateFaultKind.BOS: "the model reads it so; nothing is added and nothing taken away",
    TemplateFaultKind.BORDER: "here each turn's new messages become ids by themselves",
}
"""What a fault comes to where turns stay warm all the same."""


def create_app(settings: Settings, engine: Engine) -> Litestar:
    """The whole application on an engine that is open; the caller closes the engine."""
    return compose(Service(settings, engine))


def compose(service: Service) -> Litestar:
    gate = service.gate
    app = Litestar(
        route_handlers=route_table(gate),
        request_class=StrictRequest,
        dependencies=service.dependencies(),
        exception_handlers={Exception: problems.answer},
        lifespan=[service.running],
        openapi_config=None,  # ours is in `routes.published`
        logging_config=None,
    )
    # Litestar's middleware runs only behind a path that it knows; ours meets every request.
    app.asgi_handler = Front(Cut(app.asgi_handler, gate), gate)
    return app


# ---------------------------------------------------------------- the process


async def serve(settings: Settings, opening: Awaitable[Engine], say: Callable[[str], None]) -> None:
    """Serve until a signal, on the engine that is being opened; the caller closes it.

    `say` hears where the server is. Raises `AppError` and the engine's `Misconfigured` for what its
    user can mend.
    """
    async with contextlib.AsyncExitStack() as served:
        listener = served.enter_context(_listening(settings))
        async with starting.answering(listener):
            await served.enter_async_context(served_alone(settings.database_url))
            done = await migrate(settings.database_url, settings.data_dir)
            if done.before != done.after:
                say(done.words)
            engine = await opening
        service = Service(settings, engine)
        config = uvicorn_config(compose(service), settings)
        # What a server is made of stays. To look through it for what may go took 90 ms, now and then
        # while somebody waited for the first word.
        gc.freeze()
        with exporting(settings.traces_url):
            await Server(config, service, say).serve(sockets=[listener])


def uvicorn_config(app: Litestar, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        workers=1,  # each worker would hold a model and a cache of its own
        ws_max_size=LARGEST_MESSAGE,
        ws_ping_interval=PING_S,
        ws_ping_timeout=PING_S,
        ws_per_message_deflate=False,  # deltas are tiny; compressing them costs more than it saves
        forwarded_allow_ips=settings.trusted_proxies,
        timeout_graceful_shutdown=CLOSING_S,
        access_log=False,
        log_config=None,
        server_header=False,
    )


class Server(uvicorn.Server):
    """uvicorn, which says when it is up, drains before it closes, and ends a signal with success."""

    def __init__(
        self, config: uvicorn.Config, service: Service, say: Callable[[str], None]
    ) -> None:
        super().__init__(config)
        self._service = service
        self._say = say

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except OSError as error:
            # Somebody else bound the port as well, and was the first to listen.
            raise _cannot_listen(self._service.settings, error) from error
        self._say(await self._service.welcome())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._service.drain()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn's own raises the signal again in the end, which would look like a killed process.
        loop = asyncio.get_running_loop()
        caught = (signal.SIGINT, signal.SIGTERM)
        for number in caught:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in caught:
                loop.remove_signal_handler(number)


def listener_for(host: str) -> socket.socket:
    """Of TCP by name: asyncio lets no connection of another wait to fill its packets.

    What waits for the other side's acknowledgement comes 40 milliseconds late, a token as well.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)


@contextlib.contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    """Take the port before anything that lasts; uvicorn listens on it when all is there."""
    with listener_for(settings.host) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
        except OSError as error:
            raise _cannot_listen(settings, error) from error
        yield listener


def _cannot_listen(settings: Settings, error: OSError) -> AppError:
    return AppError(
        f"Cannot listen on {settings.host}:{settings.port} ({error.strerror}). Stop what "
        "does, or set KEEPWARM_HOST and KEEPWARM_PORT."
    )


async def examine(settings: Settings, say: Callable[[str], None]) -> None:
    """Say what would be served: settings, database, model. Raises what `serve` would raise."""
    for setting in SETTINGS:
        say(f"{setting.variable} = {setting.shown(getattr(settings, setting.field))}")
    await check_revision(settings.database_url)
    say("database: at the right revision")
    async with contextlib.aclosing(
        await open_engine(engine_config(settings), settings.engine, say)
    ) as engine:
        _tell_of_the_model(await engine.info(), say)
        for tier in (await engine.stats()).tiers:
            used, limit = tier.used_bytes / 2**20, tier.limit_bytes / 2**20
            say(f"parked on {tier.tier}: {used:,.0f} of {limit:,.0f} MiB")
    say(f"threads: {settings.threads or os.cpu_count()} of {os.cpu_count()} processors")
    say(f"free memory: {_free_bytes() / 2**20:,.0f} MiB")


def _tell_of_the_model(card: ModelCard, say: Callable[[str], None]) -> None:
    pool_tokens = card.pool_blocks * card.block_tokens
    pool_bytes = pool_tokens * card.kv_bytes_per_token
    say(f"model: {card.name}, {card.dtype} on {card.device}, attention by {card.attention}")
    say(f"context: {card.context_tokens:,} tokens")
    say(f"cache: {pool_tokens:,} tokens in {pool_bytes / 2**20:,.0f} MiB")
    _tell_of_the_template(card.template, say)


def _tell_of_the_template(finding: TemplateFinding, say: Callable[[str], None]) -> None:
    say(f"chat template: {finding.stability}: {_STABILITY_MEANS[finding.stability]}")
    keeps = finding.stability is not Stability.UNSTABLE
    for fault in finding.faults:
        means = _FAULT_MEANS.get(fault.kind) if keeps else None
        say(f"  {fault.words}" + (f": {means}" if means else ""))
        if fault.tokens is not None:
            one, other = (repr(token) if token else "the end" for token in fault.tokens)
            say(f"    first differing token: number {fault.position}, {one} against {other}")
    say(f"  calls of functions: {finding.no_calls or 'understood'}")


def _free_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
