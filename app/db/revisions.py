"""At which revision a database is, and how it gets to the newest.

The migrations are `migrations/` in a checkout and `app/migrations` in an installed package. An
upgrade is one transaction behind one lock, so two processes at once end as one; a SQLite file that
already holds data is copied first. Nothing here knows what a migration says.
"""

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import msgspec
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from app.db.base import Database, database_url, serialise, sqlite_file
from app.errors import AppError

_APP = Path(__file__).resolve().parents[1]


class WrongRevision(AppError):
    """The database is not at the revision that this version of Keepwarm needs."""

    code = "wrong_revision"


class Migrated(msgspec.Struct, frozen=True, kw_only=True):
    """What `migrate` did: `before` None is a new database, `backup` the copy made of an old one."""

    before: str | None
    after: str
    backup: Path | None


async def migrate(url: str) -> Migrated:
    """Bring the database to the newest revision; nothing happens to one that is there already."""
    path = sqlite_file(database_url(url))
    if path is not None:
        # Conversations are in there: no other user of the machine may read them.
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    async with contextlib.aclosing(Database(url)) as db, db.begin() as session:
        await serialise(session, "migrations")
        connection = await session.connection()
        before = await connection.run_sync(_revision)
        _refuse_unknown(before)
        backup = None
        if path is not None and before not in (None, _head()):
            backup = path.with_name(f"{path.name}.{before}.backup")
            await asyncio.to_thread(_copy, path, backup)
        await connection.run_sync(_upgrade)
        return Migrated(before=before, after=_head(), backup=backup)


async def check_revision(url: str) -> None:
    """Raises `WrongRevision`, which names the command that mends it."""
    path = sqlite_file(database_url(url))
    found = None
    if path is None or path.exists():
        async with contextlib.aclosing(Database(url)) as db, db.read() as session:
            found = await (await session.connection()).run_sync(_revision)
    _refuse_unknown(found)
    if found != _head():
        state = "has no tables yet" if found is None else f"is at revision {found}"
        raise WrongRevision(
            f"The database {_shown(url)} {state}; this version of Keepwarm needs {_head()}. "
            "Run: keepwarm migrate"
        )


def alembic_config() -> Config:
    """Alembic's configuration without an ini file, for the migrations of this installation."""
    folder = next(p for p in (_APP / "migrations", _APP.parent / "migrations") if p.is_dir())
    config = Config()
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    return config


def _head() -> str:
    head = ScriptDirectory.from_config(alembic_config()).get_current_head()
    assert head is not None
    return head


def _refuse_unknown(revision: str | None) -> None:
    known = {s.revision for s in ScriptDirectory.from_config(alembic_config()).walk_revisions()}
    if revision is not None and revision not in known:
        raise WrongRevision(
            f"The database is at revision {revision}, which this version of Keepwarm does not "
            "know: a newer one made it. Install that one, or restore the backup made before it."
        )


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _upgrade(connection: Connection) -> None:
    config = alembic_config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _copy(path: Path, backup: Path) -> None:
    """A whole copy, while the migration's transaction keeps every other writer out."""
    backup.unlink(missing_ok=True)
    backup.touch(mode=0o600)
    with (
        contextlib.closing(sqlite3.connect(path)) as source,
        contextlib.closing(sqlite3.connect(backup)) as target,
    ):
        source.backup(target)


def _shown(url: str) -> str:
    return database_url(url).render_as_string(hide_password=True)
