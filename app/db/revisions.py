"""At which revision a database is, how it gets to the newest, and how it gets into a file and back.

The migrations are `migrations/` in a checkout and `app/migrations` in an installed package. An
upgrade is one transaction behind one lock, so two processes at once end as one; what holds data
already is written to a file first. Nothing here knows what a migration says.
"""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from app.db import backup
from app.db.base import Database, database_url, serialise, sqlite_file
from app.errors import AppError, NotFound, Unavailable

_APP = Path(__file__).resolve().parents[1]
_MIGRATIONS = "migrations"
"""The lock's name: one process at a time changes what tables there are."""


class WrongRevision(AppError):
    """The database is not at the revision that this version of Keepwarm needs."""

    code = "wrong_revision"


class Migrated(msgspec.Struct, frozen=True, kw_only=True):
    """What `migrate` did: `before` None is a new database, `backup` the file made of an old one."""

    before: str | None
    after: str
    backup: Path | None

    @property
    def words(self) -> str:
        kept = f"The database as it was: {self.backup}\n" if self.backup else ""
        now = "already" if self.before == self.after else "now"
        return f"{kept}The database is {now} at revision {self.after}."


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """What was written to a file, or read from one."""

    revision: str
    rows: int


async def migrate(url: str, folder: Path | None = None) -> Migrated:
    """Bring the database to the newest revision; nothing happens to one that is there already.

    What it holds is written to a file in `folder` first, where one is named.
    """
    _make_folder(url)
    async with reached(url) as db, db.begin() as session:
        await serialise(session, _MIGRATIONS)
        connection = await session.connection()
        before = await connection.run_sync(_revision)
        _refuse_unknown(before)
        made = None
        if folder is not None and before not in (None, _head()):
            made = folder / f"keepwarm.{before}.backup"
            async with db.read() as look:  # one moment, while the lock is held
                await (await look.connection()).run_sync(_replace_backup, before, made)
        await connection.run_sync(_upgrade)
        return Migrated(before=before, after=_head(), backup=made)


async def save(url: str, path: Path) -> Saved:
    """Write all of one moment to a new file, also while the database is in use.

    Raises `AppError` where there is no database, or a file already.
    """
    file = sqlite_file(database_url(url))
    if file is not None and not file.exists():
        raise NotFound(f"There is no database {shown(url)}.")
    async with reached(url) as db, db.read() as session:
        connection = await session.connection()
        revision = await connection.run_sync(_revision)
        if revision is None:
            raise NotFound(f"The database {shown(url)} has no tables yet.")
        rows = await connection.run_sync(backup.write, revision, path)
        return Saved(revision=revision, rows=rows)


async def restore(url: str, path: Path) -> Saved:
    """Fill a database that has no tables from a file, and bring it to the newest revision.

    Raises `AppError` where there are tables, and `BadBackup`; then nothing has changed.
    """
    revision = backup.heading_of(path).revision
    _refuse_unknown(revision)
    _make_folder(url)
    async with reached(url) as db, db.begin() as session:
        await serialise(session, _MIGRATIONS)
        connection = await session.connection()
        if not await connection.run_sync(backup.is_empty):
            raise AppError(
                f"The database {shown(url)} holds tables already, and nothing is written over. "
                "Stop the server and move the file away, or name an empty database."
            )
        await connection.run_sync(_upgrade, revision)
        rows = await connection.run_sync(backup.fill, path)
        await connection.run_sync(_upgrade)
        return Saved(revision=revision, rows=rows)


async def check_revision(url: str) -> None:
    """Raises `WrongRevision`, which names the command that mends it."""
    path = sqlite_file(database_url(url))
    found = None
    if path is None or path.exists():
        async with reached(url) as db, db.read() as session:
            found = await (await session.connection()).run_sync(_revision)
    _refuse_unknown(found)
    if found != _head():
        state = "has no tables yet" if found is None else f"is at revision {found}"
        raise WrongRevision(
            f"The database {shown(url)} {state}; this version of Keepwarm needs {_head()}. "
            "Run: keepwarm migrate"
        )


@contextlib.asynccontextmanager
async def reached(url: str) -> AsyncIterator[Database]:
    """Raises `AppError` where there is no such server, no entry, or another kind of file."""
    async with contextlib.aclosing(Database(url)) as db:
        try:
            async with db.read() as look:
                await look.execute(text("SELECT 1"))
        except (Unavailable, SQLAlchemyError) as error:
            cause = error.__cause__ if isinstance(error, Unavailable) else error
            found = getattr(cause, "orig", None) or cause
            raise AppError(
                f"The database {shown(url)} cannot be used ({found}). Look at KEEPWARM_DATABASE_URL."
            ) from error
        yield db


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


def _upgrade(connection: Connection, revision: str = "head") -> None:
    config = alembic_config()
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def _replace_backup(connection: Connection, revision: str, path: Path) -> None:
    """A migration that fails is tried again at every start: one file for all of them."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    backup.write(connection, revision, part)
    part.replace(path)
    backup.sync_folder(path.parent)


def _make_folder(url: str) -> None:
    file = sqlite_file(database_url(url))
    if file is not None:
        # Conversations are in there: no other user of the machine may read them.
        with contextlib.suppress(OSError):  # the database itself says why it cannot be opened
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)


def shown(url: str) -> str:
    """Without its password, wherever that stands."""
    named = database_url(url).difference_update_query(["password"])
    return named.render_as_string(hide_password=True)
