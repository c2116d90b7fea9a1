"""The schema is what the migrations make of it, on both databases."""

import asyncio
import sys
from pathlib import Path

import pytest
from advanced_alchemy.base import orm_registry
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, text

import app.db.models  # noqa: F401  (fills the metadata)
from app.db.base import Database
from app.db.revisions import WrongRevision, check_revision, migrate

MIGRATIONS = Path(__file__).parents[2] / "migrations"
MIGRATE = (
    "import asyncio, sys; from app.db.revisions import migrate; asyncio.run(migrate(sys.argv[1]))"
)


def differences(connection: Connection) -> list[object]:
    context = MigrationContext.configure(connection, opts={"compare_type": True})
    return compare_metadata(context, orm_registry.metadata)


async def test_autogenerate_finds_nothing_to_do(db: Database):
    async with db.read() as session:
        found = await (await session.connection()).run_sync(differences)

    assert found == []


async def test_upgrading_twice_is_upgrading_once(database_url: str):
    first = await migrate(database_url)
    second = await migrate(database_url)

    assert first.before is None
    assert second.before == second.after == first.after
    assert first.backup is None
    assert second.backup is None


async def test_processes_that_upgrade_at_once_all_succeed(database_url: str):
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", MIGRATE, database_url, stderr=asyncio.subprocess.PIPE
        )
        for _ in range(3)
    ]
    outputs = await asyncio.gather(*(process.communicate() for process in processes))

    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    await check_revision(database_url)


async def test_tasks_that_upgrade_at_once_all_succeed(database_url: str):
    results = await asyncio.gather(*(migrate(database_url) for _ in range(8)))

    assert sorted(result.before is None for result in results) == [False] * 7 + [True]


async def test_a_database_that_is_not_there_names_the_command(database_url: str, tmp_path: Path):
    with pytest.raises(WrongRevision, match="keepwarm migrate"):
        await check_revision(database_url)

    assert not (tmp_path / "keepwarm.db").exists()


async def test_a_newer_database_is_refused_and_left_alone(db: Database, database_url: str):
    async with db.begin() as session:
        await session.execute(text("UPDATE alembic_version SET version_num = '9999'"))

    with pytest.raises(WrongRevision, match="9999"):
        await check_revision(database_url)
    with pytest.raises(WrongRevision, match="9999"):
        await migrate(database_url)


def test_migrations_are_frozen_history_and_import_no_app():
    for path in (MIGRATIONS / "versions").glob("*.py"):
        imports = [
            line for line in path.read_text().splitlines() if line.startswith(("import", "from"))
        ]
        assert imports == ["import sqlalchemy as sa", "from alembic import op"]
