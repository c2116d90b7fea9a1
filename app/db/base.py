"""The database: one engine, and short transactions on it.

`begin()` writes and commits, `read()` only looks; both are left before anybody awaits a socket or
the engine, so that a connection is never held by a stream. Nothing hands out a session that lives
longer. What `begin()` committed outlives a power cut (law 17); `jot()` is for what may be lost.
`write`, `note` and `look` do the same for work that is one plain function: the road of a turn.
SQLite by default, PostgreSQL for more; what differs between them ends in this file.

SQLite's writers are alone. On PostgreSQL they lock rows, all of them in one order, so that no two
wait for each other:

    what `serialise` names, users, groups, conversations, library items, meters, what hangs on these

and several of a kind by their ids. A removal takes a row and then whatever hangs on it, in an order
that only the database knows; so whoever writes more than one row of a user's holds that user first
(`accounts.hold_user`, which a new row does by itself), and what is merely kept up to date or swept
away waits for nobody (`skip_locked`). Should two meet all the same, the database gives one of them up.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from advanced_alchemy.config import AsyncSessionConfig, EngineConfig, SQLAlchemyAsyncConfig
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import DeclarativeBase, Session
from sqlalchemy.orm.exc import StaleDataError
from sqlalchemy.pool import ConnectionPoolEntry

from app.db.figures import DatabaseFigures
from app.errors import Conflict, Unavailable

LOG = logging.getLogger(__name__)

T = TypeVar("T")

_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+asyncpg",
    "postgresql": "postgresql+asyncpg",
}
_BUSY_MS = 10_000
"""How long SQLite waits for another process's writer (a `keepwarm admin` beside the server)."""
_SYNCHRONOUS = "keepwarm_synchronous"
"""Marks a transaction that writes; its value is SQLite's word for how far a commit goes."""
_AT_ONCE = 4
"""Threads that SQLite's plain functions run in: one of them writes, the others look."""
_FOREIGN_KEY = {"23503", "SQLITE_CONSTRAINT_FOREIGNKEY"}
"""What each database calls a row without the one that it belongs to."""
_UNIQUE = {"23505", "SQLITE_CONSTRAINT_UNIQUE", "SQLITE_CONSTRAINT_PRIMARYKEY"}
"""And a second row where there may be one."""
_CROSSED = {"40001", "40P01"}
"""How PostgreSQL says that it gave a transaction up for another one; SQLite never does."""
_OUT_OF_ORDER = (
    *("08", "53", "57", "58", "25006", "55P03"),
    *("SQLITE_BUSY", "SQLITE_CANTOPEN", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY"),
)
"""How each begins to say that it has no connection, room or time, may not write, or is stopping."""
_TOUCH = text("UPDATE alembic_version SET version_num = version_num")
"""Changes nothing, and is written all the same."""
RETRY_AFTER_S = 1.0
AGAIN_S = (0.02, 0.1, 0.5)
"""Pauses before plain work that was given up is done again: the other one is to be quicker."""
_POSTGRES_LOOK = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
"""What a SQLite transaction that only reads is by nature."""


def database_url(url: str) -> URL:
    """Accept the plain URLs that people paste, and name the async drivers."""
    parsed = make_url(url)
    parsed = parsed.set(drivername=_DRIVERS.get(parsed.drivername, parsed.drivername))
    if "sslmode" in parsed.query and parsed.drivername.endswith("asyncpg"):
        # libpq's word; asyncpg knows the same values as `ssl`.
        mode = parsed.query["sslmode"]
        parsed = parsed.difference_update_query(["sslmode"]).update_query_dict({"ssl": mode})
    return parsed


def sqlite_file(url: URL) -> Path | None:
    """The file behind a SQLite URL; None for another database."""
    if url.get_backend_name() != "sqlite" or not url.database:
        return None
    return Path(url.database)


class _Crossed(Unavailable):
    """This transaction and another one waited for each other; nothing of it is stored."""


class Database:
    """An engine with its pool. Owned by whoever made it, who also calls `aclose`."""

    def __init__(self, url: str) -> None:
        self.url = database_url(url)
        engine_config = EngineConfig()
        if not self.is_sqlite:
            # Whoever waited for a lock sees what its holder wrote, whatever the database is set to.
            engine_config = EngineConfig(pool_pre_ping=True, isolation_level="READ COMMITTED")
        self._config = SQLAlchemyAsyncConfig(
            connection_string=self.url.render_as_string(hide_password=False),
            engine_config=engine_config,
            session_config=AsyncSessionConfig(expire_on_commit=False),
            # Times are set by those who mean them; no column holds a file.
            enable_touch_updated_timestamp_listener=False,
            enable_file_object_listener=False,
        )
        self.engine: AsyncEngine = self._config.get_engine()
        self.figures = DatabaseFigures()
        self._sessions = self._config.create_session_maker()
        self._looks = {} if self.is_sqlite else _POSTGRES_LOOK
        # SQLite has one writer. Those of this process queue here, in order, instead of polling the
        # file's lock against each other.
        self._writer: contextlib.AbstractAsyncContextManager[None] = contextlib.nullcontext()
        self._apart: _Apart | None = None
        self._stores = True
        """Whether every one that wrote was stored since `answers` saw that one can be. What ends well
        need not have written anything."""
        if self.is_sqlite:
            self._writer = asyncio.Lock()
            _tune_sqlite(self.engine.sync_engine)
            self._apart = _Apart(self.url)
        else:
            event.listen(self.engine.sync_engine, "connect", _prepare_postgres)

    @property
    def is_sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    @contextlib.asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncSession]:
        """A write transaction: committed when the block ends, rolled back when it raises.

        Once committed it is on the disk. Keep it short, never nest it: on SQLite it holds the only
        writer's place from its start. Raises `Conflict` where somebody was quicker: with "gone" what
        a row belongs to was deleted, else the same was made. Raises `Unavailable` where the database
        is away or gave this up for another transaction, as all of these do.
        """
        async with self._write("FULL") as session:
            yield session

    @contextlib.asynccontextmanager
    async def jot(self) -> AsyncIterator[AsyncSession]:
        """Like `begin`, for what nobody was promised: SQLite may lose it when the power goes.

        A later `begin` keeps it too. A process that is killed loses nothing.
        """
        async with self._write("NORMAL") as session:
            yield session

    @contextlib.asynccontextmanager
    async def _write(self, synchronous: str) -> AsyncIterator[AsyncSession]:
        with self.figures.timed("write") as began:
            async with self._writer, self._sessions() as session:
                with self._watched("write"), _translated():
                    async with session.begin():
                        with _reaching():
                            _ = await session.connection(
                                execution_options={_SYNCHRONOUS: synchronous}
                            )
                        began()
                        yield session

    @contextlib.asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncSession]:
        """One consistent look, untouched by what others commit meanwhile. Nothing written stays."""
        with self.figures.timed("read") as began:
            async with self._sessions() as session:
                with _translated():
                    with _reaching():
                        _ = await session.connection(execution_options=self._looks)
                    began()
                    yield session

    # ------------------------------------------------------------ in one go

    async def write(self, work: Callable[[Session], T]) -> T:
        """`begin` for work that awaits nothing, and touches nothing that a thread may not touch.

        On SQLite it runs in a thread from its beginning to its commit. An `AsyncSession` goes to a
        thread and back several times for each statement, which costs ten times what SQLite does.
        On PostgreSQL it is done again where it was given up for another transaction.
        """
        return await self._work("write", work, {_SYNCHRONOUS: "FULL"})

    async def note(self, work: Callable[[Session], T]) -> T:
        """`jot` in one go."""
        return await self._work("write", work, {_SYNCHRONOUS: "NORMAL"})

    async def look(self, work: Callable[[Session], T]) -> T:
        """`read` in one go. What the work writes all the same is lost."""
        return await self._work("read", work, self._looks)

    async def _work(
        self, kind: str, work: Callable[[Session], T], options: Mapping[str, object]
    ) -> T:
        for pause_s in AGAIN_S:
            with contextlib.suppress(_Crossed):
                return await self._once(kind, work, options)
            await asyncio.sleep(pause_s)
        return await self._once(kind, work, options)

    async def _once(
        self, kind: str, work: Callable[[Session], T], options: Mapping[str, object]
    ) -> T:
        with self.figures.timed(kind) as began, self._watched(kind), _translated():
            if self._apart is None:
                async with self._sessions() as session:
                    with _reaching():
                        _ = await session.connection(execution_options=dict(options))
                    began()
                    done = await session.run_sync(work)
                    if kind == "write":
                        await session.commit()
                    return done
            async with self._writer if kind == "write" else contextlib.nullcontext():
                return await self._apart.run(work, options, began, commits=kind == "write")

    @contextlib.contextmanager
    def _watched(self, kind: str) -> Iterator[None]:
        """Around whatever may write: a full disk lets everybody read."""
        try:
            yield
        except Unavailable as error:
            self._stores &= kind != "write" or isinstance(error, _Crossed)
            raise

    async def answers(self) -> bool:
        """Whether a transaction can begin now, and be stored where the last one was not."""
        try:
            await self.look(lambda _: None)
            if not self._stores:
                await self.note(lambda session: session.execute(_TOUCH))
                self._stores = True
        except Unavailable:
            return False
        return True

    async def aclose(self) -> None:
        if self._apart is not None:
            self._apart.close()
        await self.engine.dispose()


class _Apart:
    """SQLite in threads: whole transactions, each in one."""

    def __init__(self, url: URL) -> None:
        self._engine = create_engine(url.set(drivername="sqlite"))
        _tune_sqlite(self._engine)
        self._threads = ThreadPoolExecutor(_AT_ONCE, "database")

    async def run(
        self,
        work: Callable[[Session], T],
        options: Mapping[str, object],
        began: Callable[[], None],
        *,
        commits: bool,
    ) -> T:
        def transact() -> T:
            with Session(self._engine, expire_on_commit=False) as session:
                with _reaching():
                    session.connection(execution_options=dict(options))
                began()
                done = work(session)
                if commits:
                    session.commit()
                return done

        running = asyncio.get_running_loop().run_in_executor(self._threads, transact)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            # A thread cannot be called back: it is over before its place is another's.
            await asyncio.wait([running])
            if not running.cancelled():
                running.exception()
            raise

    def close(self) -> None:
        self._threads.shutdown()
        self._engine.dispose()


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """What a statement cannot help: others were quicker, or the database is away."""
    try:
        yield
    except StaleDataError as error:
        raise _gone() from error
    except IntegrityError as error:
        if _told(error) in _FOREIGN_KEY:
            raise _gone() from error
        if _told(error) in _UNIQUE:
            LOG.warning("the same was made already")
            raise Conflict("The same was made already, at this moment.") from error
        raise
    except DBAPIError as error:
        if _told(error) in _CROSSED:
            LOG.warning("a transaction was given up for another: %s", _told(error))
            words = "Something else changed the same at this moment; try again."
            raise _Crossed(words, retry_after_s=RETRY_AFTER_S) from error
        if error.connection_invalidated or _told(error).startswith(_OUT_OF_ORDER):
            raise _away(error) from error
        raise


@contextlib.contextmanager
def _reaching() -> Iterator[None]:
    """Around the wait for a connection, which nothing but the database's own state can end."""
    try:
        yield
    except (SQLAlchemyError, OSError) as error:
        raise _away(error) from error


def _gone() -> Conflict:
    return Conflict("What this belongs to was deleted meanwhile.", code="gone")


def _away(error: Exception) -> Unavailable:
    LOG.warning("the database is away: %s", type(getattr(error, "orig", None) or error).__name__)
    return Unavailable("The database is away; try again in a moment.", retry_after_s=RETRY_AFTER_S)


def _told(error: DBAPIError) -> str:
    """The driver's own word for it: PostgreSQL's state, or the name of SQLite's code."""
    told = (getattr(error.orig, name, None) for name in ("sqlstate", "sqlite_errorname"))
    return next((str(one) for one in told if one), "")


def upsert(
    session: AsyncSession | Session, table: type[DeclarativeBase]
) -> postgresql.Insert | sqlite.Insert:
    """An `INSERT` that may say what happens where the row is there; both databases spell it alike."""
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    return insert(table)


async def serialise(session: AsyncSession, name: str) -> None:
    """Let only one transaction at a time pass here, in all processes, until it ends.

    SQLite's writers are alone anyway; PostgreSQL takes an advisory lock on the name.
    """
    if session.get_bind().dialect.name == "postgresql":
        await session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": lock_key(name)})


def lock_key(name: str) -> int:
    """What PostgreSQL calls an advisory lock of this name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], signed=True)


def _prepare_postgres(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    # A database may be set to acknowledge before it has written. Stricter settings stay as they are.
    cursor = connection.cursor()
    cursor.execute(
        "SELECT set_config('synchronous_commit', 'on', false)"
        " WHERE current_setting('synchronous_commit') = 'off'"
    )
    cursor.close()
    connection.commit()


def _tune_sqlite(engine: Engine) -> None:
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)


def _prepare_sqlite(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    # The driver's own transactions begin late and deferred; ours begin where `begin()` says.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in (f"busy_timeout = {_BUSY_MS}", "journal_mode = WAL", "foreign_keys = ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    synchronous = connection.get_execution_options().get(_SYNCHRONOUS)
    if synchronous is None:
        connection.exec_driver_sql("BEGIN")
        return
    # It belongs to the connection, whichever the pool gave, and cannot change in a transaction.
    if connection.info.get(_SYNCHRONOUS) != synchronous:
        connection.exec_driver_sql(f"PRAGMA synchronous = {synchronous}")
        connection.info[_SYNCHRONOUS] = synchronous
    # A deferred transaction that reads and then writes cannot wait for the lock: it fails at once.
    connection.exec_driver_sql("BEGIN IMMEDIATE")
