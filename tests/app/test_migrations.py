"""The schema is what the migrations make of it, on both databases."""

import asyncio
import contextlib
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, select, text
from sqlalchemy.exc import DBAPIError

from app.db import revisions
from app.db.base import Database
from app.db.models import Conversation, Meter, Response
from app.db.revisions import WrongRevision, check_revision, migrate, restore
from engine.api import MissReason
from tests.kit.db import migrate_to

MIGRATIONS = Path(__file__).parents[2] / "migrations"
MIGRATE = (
    "import asyncio, sys; from app.db.revisions import migrate; asyncio.run(migrate(sys.argv[1]))"
)

REVISIONS = [one.revision for one in ScriptDirectory(str(MIGRATIONS)).walk_revisions()][1:]
"""All but the newest."""


def check(connection: Connection) -> None:
    """Raises where autogenerate, as `migrations/env.py` sets it up, finds a difference."""
    config = revisions.alembic_config()
    config.attributes["connection"] = connection
    command.check(config)


@pytest.mark.row("28")
async def test_autogenerate_finds_nothing_to_do(db: Database):
    async with db.begin() as session:
        await (await session.connection()).run_sync(check)


@pytest.mark.row("28")
async def test_upgrading_twice_is_upgrading_once(empty_url: str):
    first = await migrate(empty_url)
    second = await migrate(empty_url)

    assert first.before is None
    assert second.before == second.after == first.after
    assert first.backup is None
    assert second.backup is None


@pytest.mark.row("28")
@pytest.mark.parametrize("revision", REVISIONS)
async def test_from_every_revision_one_comes_to_the_newest(empty_url: str, revision: str):
    await migrate_to(empty_url, revision)

    await migrate(empty_url)

    async with contextlib.aclosing(Database(empty_url)) as db, db.begin() as session:
        await (await session.connection()).run_sync(check)


@pytest.mark.row("28")
async def test_processes_that_upgrade_at_once_all_succeed(empty_url: str):
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", MIGRATE, empty_url, stderr=asyncio.subprocess.PIPE
        )
        for _ in range(3)
    ]
    outputs = await asyncio.gather(*(process.communicate() for process in processes))

    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    await check_revision(empty_url)


async def test_tasks_that_upgrade_at_once_all_succeed(empty_url: str):
    results = await asyncio.gather(*(migrate(empty_url) for _ in range(8)))

    assert sorted(result.before is None for result in results) == [False] * 7 + [True]


def add_migration(folder: Path, monkeypatch: pytest.MonkeyPatch, upgrade: str) -> None:
    """A version of Keepwarm with one migration more than this one."""
    shutil.copytree(MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "versions" / "9000_next.py").write_text(
        "import sqlalchemy as sa\nfrom alembic import op\n"
        f"revision = '9000'\ndown_revision = '{alembic_head()}'\n"
        f"def upgrade():\n    {upgrade}\n"
    )
    config = revisions.alembic_config()
    config.set_main_option("script_location", str(folder))
    monkeypatch.setattr(revisions, "alembic_config", lambda: config)


def alembic_head() -> str | None:
    return ScriptDirectory.from_config(revisions.alembic_config()).get_current_head()


@pytest.mark.row("28")
async def test_what_holds_data_is_written_to_a_file_before_it_is_changed(
    empty_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    before = (await migrate(empty_url)).after
    add_user = text("INSERT INTO users VALUES ('user_1', 'a@b', '', '', 'admin', :now, NULL)")
    async with contextlib.aclosing(Database(empty_url)) as db, db.begin() as session:
        await session.execute(add_user, {"now": datetime(2026, 1, 1, tzinfo=UTC)})
    with monkeypatch.context() as patch:
        add_migration(tmp_path / "broken", patch, "op.drop_table('no_such_table')")
        with pytest.raises(DBAPIError):
            await migrate(empty_url, tmp_path)

    with monkeypatch.context() as patch:
        add_migration(tmp_path / "next", patch, "op.drop_table('api_keys')")
        with pytest.raises(WrongRevision, match=f"at revision {before}.*keepwarm migrate"):
            await check_revision(empty_url)
        done = await migrate(empty_url, tmp_path)
        await check_revision(empty_url)

    assert (done.before, done.after) == (before, "9000")
    assert done.backup is not None
    assert backups(tmp_path) == [done.backup], "a start that fails and is repeated fills no disk"
    assert done.backup.stat().st_mode & 0o777 == 0o600
    copy = f"sqlite:///{tmp_path}/copy/keepwarm.db"
    await restore(copy, done.backup)
    async with contextlib.aclosing(Database(copy)) as db, db.read() as session:
        assert (await session.execute(text("SELECT email FROM users"))).all() == [("a@b",)]
        assert await session.scalar(text("SELECT count(*) FROM api_keys")) == 0
        assert await session.scalar(text("SELECT version_num FROM alembic_version")) == before


def backups(folder: Path) -> list[Path]:
    return list(folder.glob("*.backup*"))


@pytest.mark.row("28")
async def test_a_migration_happens_whole_or_not_at_all(
    empty_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    before = (await migrate(empty_url)).after
    broken = "op.drop_table('api_keys'); op.drop_table('no_such_table')"
    add_migration(tmp_path / "next", monkeypatch, broken)

    with pytest.raises(DBAPIError):
        await migrate(empty_url, tmp_path)

    async with contextlib.aclosing(Database(empty_url)) as db, db.read() as session:
        assert await session.scalar(text("SELECT count(*) FROM api_keys")) == 0
        assert await session.scalar(text("SELECT version_num FROM alembic_version")) == before


async def test_a_conversation_from_before_the_library_is_under_the_first_version(
    empty_url: str, tmp_path: Path
):
    now = {"now": datetime(2026, 1, 1, tzinfo=UTC)}
    user = text("INSERT INTO users VALUES ('user_1', 'a@b', '', '', 'admin', :now, NULL)")
    conversation = text(
        "INSERT INTO conversations"
        " VALUES (:id, 'user_1', 'chat', '', :persona_id, NULL, :now, :now)"
    )
    await migrate_to(empty_url, "0001")
    async with contextlib.aclosing(Database(empty_url)) as db, db.begin() as session:
        await session.execute(user, now)
        for name, persona_id in (("conv_1", "persona_default"), ("conv_2", None)):
            await session.execute(conversation, {"id": name, "persona_id": persona_id, **now})
    await migrate(empty_url, tmp_path)
    async with contextlib.aclosing(Database(empty_url)) as db, db.read() as session:
        found = list(await session.scalars(select(Conversation).order_by(Conversation.id)))

    assert [(one.persona_version, one.documents) for one in found] == [(1, ()), (None, ())]


async def test_what_was_stored_before_quotas_counts_in_them(empty_url: str, tmp_path: Path):
    now = {"now": datetime(2026, 1, 1, tzinfo=UTC)}
    user = text("INSERT INTO users VALUES ('user_1', 'a@b', '', '', 'admin', :now, NULL)")
    conversation = text(
        "INSERT INTO conversations (id, user_id, origin, title, documents, created_at, updated_at,"
        " kept_warm) VALUES ('conv_1', 'user_1', 'chat', '', '', :now, :now, false)"
    )
    message = text(
        "INSERT INTO messages (id, conversation_id, role, text, token_ids, created_at)"
        " VALUES (:id, 'conv_1', :role, :words, :ids, :now)"
    )
    response = text(
        "INSERT INTO responses (id, user_id, conversation_id, message_id, origin, status, model,"
        " instructions, request, epoch, created_at) VALUES ('resp_1', 'user_1', 'conv_1', 'msg_2',"
        " 'chat', 'in_progress', '', 'Be brief.', '{}', '', :now)"
    )
    said = (("msg_1", "user", "Grüße"), ("msg_2", "assistant", "not yet whole"))
    await migrate_to(empty_url, "0006")
    async with contextlib.aclosing(Database(empty_url)) as db, db.begin() as session:
        await session.execute(user, now)
        await session.execute(conversation, now)
        for name, role, words in said:
            row = {"id": name, "role": role, "words": words, "ids": b"", **now}
            await session.execute(message, row)
        await session.execute(response, now)
    await migrate(empty_url, tmp_path)
    async with contextlib.aclosing(Database(empty_url)) as db, db.read() as session:
        kept = await session.scalar(select(Conversation.stored_bytes))
        counted = await session.scalar(select(Meter.stored_bytes))

    assert kept == counted == len("Grüße".encode()) + len("Be brief.")


async def test_misses_of_turns_from_before_can_be_searched_for(empty_url: str, tmp_path: Path):
    now = {"now": datetime(2026, 1, 1, tzinfo=UTC)}
    receipt = '{"miss_reason": "input_changed", "differs_at": 12}'
    user = text(
        "INSERT INTO users (id, email, name, password_hash, role, created_at)"
        " VALUES ('user_1', 'a@b', '', '', 'admin', :now)"
    )
    conversation = text(
        "INSERT INTO conversations (id, user_id, origin, title, documents, created_at, updated_at)"
        " VALUES ('conv_1', 'user_1', 'chat', '', '', :now, :now)"
    )
    message = text(
        "INSERT INTO messages (id, conversation_id, role, text, token_ids, created_at)"
        " VALUES ('msg_1', 'conv_1', 'assistant', '', '', :now)"
    )
    response = text(
        "INSERT INTO responses (id, user_id, conversation_id, message_id, origin, status, receipt,"
        " model, request, epoch, created_at) VALUES ('resp_1', 'user_1', 'conv_1', 'msg_1', 'chat',"
        " 'completed', :receipt, '', '{}', '', :now)"
    )
    await migrate_to(empty_url, "0006")
    async with contextlib.aclosing(Database(empty_url)) as db, db.begin() as session:
        for row in (user, conversation, message):
            await session.execute(row, now)
        await session.execute(response, now | {"receipt": receipt})
    await migrate(empty_url, tmp_path)
    async with contextlib.aclosing(Database(empty_url)) as db, db.read() as session:
        found = await session.execute(select(Response.miss_reason, Response.differs_at))

    assert found.one() == (MissReason.INPUT_CHANGED, 12)


async def test_the_folder_of_a_new_database_is_for_its_owner_only(tmp_path: Path):
    await migrate(f"sqlite:///{tmp_path}/data/keepwarm.db")

    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700


async def test_a_database_that_is_not_there_names_the_command(empty_url: str, tmp_path: Path):
    with pytest.raises(WrongRevision, match="keepwarm migrate"):
        await check_revision(empty_url)

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
