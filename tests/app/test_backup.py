"""A backup is proved by restoring it, into either database."""

import contextlib
import gzip
import resource
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, inspect, text

from app.chat.search import Search
from app.db import revisions
from app.db.backup import BadBackup, write
from app.db.base import Database
from app.db.models import Base, MessageText
from app.db.revisions import migrate, restore, save
from app.db.types import AccountRole
from app.errors import AppError, NotFound
from app.people.accounts import Accounts
from app.people.keys import Keys
from tests.kit.db import BOTH, migrate_to, new_postgres_url
from tests.kit.domain import new_person, open_domain
from tests.kit.echo import EchoEngine
from tests.kit.server import complaint, fork_server, run_command

Rows = dict[str, list[dict[str, Any]]]


@pytest.fixture(params=BOTH)
async def target_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where it is restored to: a database that is not there yet, or empty."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/restored/keepwarm.db"
    return await new_postgres_url(request.getfixturevalue("postgres"))


async def everything(url: str) -> Rows:
    """All rows of all tables, as the app reads them; without what search makes of them."""
    found: Rows = {}
    async with contextlib.aclosing(Database(url)) as db, db.read() as session:
        for table in Base.metadata.sorted_tables:
            if table.name == MessageText.__tablename__:
                continue
            rows = (await session.execute(table.select())).mappings()
            found[table.name] = sorted((dict(row) for row in rows), key=repr)
    return found


async def test_what_is_restored_is_what_was_there_and_goes_on(
    database_url: str, target_url: str, tmp_path: Path
):
    async with (
        contextlib.aclosing(Database(database_url)) as db,
        open_domain(db, EchoEngine()) as domain,
    ):
        who = await new_person(db)
        accounts = Accounts(db)
        await accounts.create_user("a@example.org", "Ä\U0001f600", "a long password")
        made = await Keys(db, accounts).create(who.user_id, "a key")
        conversation = await domain.conversations.create(who.user_id)
        first = await domain.send(who, conversation.id, "one \0 two", client_message_id="c1")
        leaf_id = (await domain.ended(who, first.response)).response.message_id

        saved = await save(database_url, tmp_path / "file.backup")

    done = await restore(target_url, tmp_path / "file.backup")

    before = await everything(database_url)
    assert await everything(target_url) == before
    assert done == saved
    assert done.rows == sum(map(len, before.values()))
    assert before["responses"][0]["receipt"] is not None
    async with (
        contextlib.aclosing(Database(target_url)) as db,
        open_domain(db, EchoEngine()) as domain,
    ):
        assert (await Keys(db, Accounts(db)).resolve(made.key)).user_id == who.user_id
        await Search(db).catch_up()
        assert (await Search(db).find(who.user_id, "one two")).items
        second = await domain.send(who, conversation.id, "three", parent_id=leaf_id)
        assert (await domain.ended(who, second.response)).response.receipt is not None


async def test_messages_come_back_in_whatever_order_their_ids_are(
    database_url: str, target_url: str, tmp_path: Path
):
    """A parent's row may come after its child's, and what is referred to is checked all the same."""
    async with contextlib.aclosing(Database(database_url)) as db:
        who = await new_person(db)
        async with db.begin() as session:
            now = {"now": datetime(2026, 1, 1, tzinfo=UTC)}
            conversation = text(
                "INSERT INTO conversations (id, user_id, origin, title, documents, created_at,"
                " updated_at) VALUES ('conv_1', :user_id, 'chat', '', '', :now, :now)"
            )
            await session.execute(conversation, {"user_id": who.user_id, **now})
            for message_id, parent_id in (("msg_z", None), ("msg_a", "msg_z")):
                message = text(
                    "INSERT INTO messages (id, conversation_id, parent_id, role, text, token_ids,"
                    " created_at) VALUES (:id, 'conv_1', :parent_id, 'user', '', :ids, :now)"
                )
                given = {"id": message_id, "parent_id": parent_id, "ids": b"", **now}
                await session.execute(message, given)
    await save(database_url, tmp_path / "file.backup")

    await restore(target_url, tmp_path / "file.backup")

    assert await everything(target_url) == await everything(database_url)
    async with contextlib.aclosing(Database(target_url)) as db, db.read() as session:
        keys = await (await session.connection()).run_sync(foreign_keys)
    async with contextlib.aclosing(Database(database_url)) as db, db.read() as session:
        assert keys == await (await session.connection()).run_sync(foreign_keys)
    assert ("messages", "parent_id") in keys


def foreign_keys(connection: Connection) -> set[tuple[str, str]]:
    looked = inspect(connection)
    return {
        (table, key["constrained_columns"][0])
        for table in looked.get_table_names()
        for key in looked.get_foreign_keys(table)
    }


async def test_a_backup_of_an_older_version_becomes_the_newest(
    empty_url: str, target_url: str, tmp_path: Path
):
    user = text("INSERT INTO users VALUES ('user_1', 'a@b', '', '', 'admin', :now, NULL)")
    await migrate_to(empty_url, "0001")
    async with contextlib.aclosing(Database(empty_url)) as db, db.begin() as session:
        await session.execute(user, {"now": datetime(2026, 1, 1, tzinfo=UTC)})

    saved = await save(empty_url, tmp_path / "file.backup")
    await restore(target_url, tmp_path / "file.backup")

    assert (saved.revision, saved.rows) == ("0001", 1)
    (found,) = (await everything(target_url))["users"]
    assert (found["email"], found["role"]) == ("a@b", AccountRole.ADMIN)
    await revisions.check_revision(target_url)


async def test_nothing_is_written_over(database_url: str, target_url: str, tmp_path: Path):
    await migrate(target_url)
    file = tmp_path / "file.backup"
    await save(database_url, file)
    before = file.read_bytes()

    with pytest.raises(AppError, match="is there already"):
        await save(database_url, file)
    with pytest.raises(AppError, match="holds tables already"):
        await restore(target_url, file)

    assert file.read_bytes() == before
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("damage", ["cut", "end lost", "flipped", "foreign", "other tables"])
async def test_a_damaged_backup_is_refused_and_nothing_is_restored(
    empty_url: str, tmp_path: Path, damage: str
):
    source = f"sqlite:///{tmp_path}/source.db"
    await migrate(source)
    async with contextlib.aclosing(Database(source)) as db:
        await new_person(db)
        if damage == "other tables":
            async with db.begin() as session:
                await session.execute(text("CREATE TABLE another (id INTEGER)"))
    file = tmp_path / "file.backup"
    await save(source, file)
    file.write_bytes(damaged(file.read_bytes(), damage))

    with pytest.raises(BadBackup):
        await restore(empty_url, file)

    await migrate(empty_url)
    assert (await everything(empty_url))["users"] == []


def damaged(whole: bytes, damage: str) -> bytes:
    if damage == "cut":
        return whole[:-9]
    if damage == "end lost":
        return gzip.compress(gzip.decompress(whole)[:-12])
    if damage == "flipped":
        return whole[:-6] + bytes([whole[-6] ^ 1]) + whole[-5:]
    if damage == "foreign":
        return gzip.compress(b"\x01\x00\x00\x00\xc0")
    return whole


async def test_what_cannot_be_written_whole_is_not_there(database_url: str, tmp_path: Path):
    file = tmp_path / "file.backup"

    def write_where_no_file_may_grow(connection: Connection) -> None:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
        try:
            write(connection, "0001", file)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    async with contextlib.aclosing(Database(database_url)) as db, db.read() as session:
        with pytest.raises(AppError, match="Cannot write"):
            await (await session.connection()).run_sync(write_where_no_file_may_grow)
    with pytest.raises(AppError, match="Cannot write"):
        await save(database_url, tmp_path / "no such folder" / "file.backup")

    assert not file.exists()


async def test_a_database_that_is_not_there_has_no_backup(empty_url: str, tmp_path: Path):
    with pytest.raises(NotFound):
        await save(empty_url, tmp_path / "file.backup")

    assert not (tmp_path / "keepwarm.db").exists()
    assert not (tmp_path / "file.backup").exists()


def test_a_server_is_backed_up_while_it_serves_and_restored_by_command(tmp_path: Path):
    file = str(tmp_path / "file.backup")
    with fork_server() as server:
        saved = run_command(server.folder, "backup", file)
        again = complaint(server.folder, "backup", file)
        over = complaint(server.folder, "restore", file)
        users = run_command(server.folder, "admin", "user", "list")

    restored = run_command(tmp_path / "another", "restore", file)

    assert file in saved
    assert "is there already" in again
    assert "holds tables already" in over
    assert "rows are restored" in restored
    assert run_command(tmp_path / "another", "admin", "user", "list") == users
