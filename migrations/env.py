"""Where Alembic meets the tables: on a connection it is handed, or on its own for `alembic` itself.

Everything runs in the caller's transaction, so a migration happens whole or not at all, on both
databases. SQLite alters tables by copying them (batch mode).
"""

import asyncio
from typing import Any

import sqlalchemy as sa
from alembic import context
from alembic.autogenerate.api import AutogenContext
from sqlalchemy.types import TypeDecorator

from app.db.base import Database
from app.db.models import Base


def render_item(kind: str, item: object, _: AutogenContext) -> str | bool:
    """Our types as what the database sees: a migration is frozen history and imports no app."""
    if kind == "type" and isinstance(item, TypeDecorator):
        return f"sa.{item.impl_instance!r}"
    return False


def include_name(name: str | None, kind: str, _: Any) -> bool:
    """What search is made of is written by hand: FTS5's tables, and the index on a `tsvector`."""
    searches = name is not None and name.startswith(("message_words", "ix_message_texts_words"))
    return not (kind in ("table", "index") and searches)


def migrate(connection: sa.Connection) -> None:
    options: dict[str, Any] = {
        "compare_type": True,
        "render_item": render_item,
        "include_name": include_name,
    }
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        **options,
    )
    with context.begin_transaction():
        context.run_migrations()


async def migrate_alone(url: str) -> None:
    db = Database(url)
    async with db.begin() as session:
        await (await session.connection()).run_sync(migrate)
    await db.aclose()


handed: sa.Connection | None = context.config.attributes.get("connection")
if handed is not None:
    migrate(handed)
else:
    asyncio.run(migrate_alone(context.get_x_argument(as_dictionary=True)["url"]))
