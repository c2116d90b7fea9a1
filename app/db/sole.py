"""One server serves a database, for each closes at its start what it takes for left open by the last.

SQLite's file is one server's by the lock on the data folder (`launch`). PostgreSQL keeps an advisory
lock for a connection that lasts as long as the server; of one whose machine is gone it hears within a
minute. One that restarts forgets the lock, and who serves then goes on.
"""

import contextlib
from collections.abc import AsyncIterator

from sqlalchemy import text

from app.db.base import database_url, lock_key
from app.db.revisions import reached, shown
from app.errors import AppError

_SERVING = "serving"
_HOLD = text(
    "SELECT pg_try_advisory_lock(:key),"
    " set_config('tcp_keepalives_idle', '15', false),"
    " set_config('tcp_keepalives_interval', '5', false),"
    " set_config('tcp_keepalives_count', '6', false)"
)


@contextlib.asynccontextmanager
async def served_alone(url: str) -> AsyncIterator[None]:
    """Serve a database until the block ends. Raises `AppError` where another server does."""
    if database_url(url).get_backend_name() == "sqlite":
        yield
        return
    async with reached(url) as db, db.engine.connect() as connection:
        is_ours = await connection.scalar(_HOLD, {"key": lock_key(_SERVING)})
        # The lock is the connection's, and nothing waits in a transaction.
        await connection.commit()
        if not is_ours:
            raise AppError(
                f"Another keepwarm serves the database {shown(url)} already. Stop it first, or set "
                "KEEPWARM_DATABASE_URL to another database."
            )
        yield
