"""Fixtures by need; what they are made of lives in `tests/kit`."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from app.db.base import Database
from app.db.revisions import migrate
from engine.sequence import Sequence
from tests.kit.db import new_postgres_url, start_postgres
from tests.kit.server import Server, start_server


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory):
    """One real PostgreSQL for the whole run, started by the first test that needs it."""
    server = start_postgres(tmp_path_factory.mktemp("postgres"))
    yield server
    server.cleanup()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
async def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database that does not exist yet (SQLite) or is empty (PostgreSQL)."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/keepwarm.db"
    return await new_postgres_url(request.getfixturevalue("postgres"))


@pytest.fixture
async def db(database_url: str) -> AsyncIterator[Database]:
    """A fresh database with the tables that the migrations make."""
    await migrate(database_url)
    async with contextlib.aclosing(Database(database_url)) as database:
        yield database


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One real server for all tests that neither stop it nor need it empty."""
    with start_server() as running:
        yield running


@pytest.fixture
def nothing_is_promised(monkeypatch):
    """Turns are seated wherever their prompt fits, as if every reply were a long one."""
    monkeypatch.setattr(Sequence, "worst_case_tokens", 0)
