"""Two servers for the SDK: one whose engine a test holds in its hand, one with the real model."""

import re
from collections.abc import Iterator

import pytest
from openai import OpenAI

from app.ids import new_user_id
from engine.api import Engine
from tests.kit.db import BOTH, finished, new_postgres_url
from tests.kit.echo import EchoEngine, with_calls
from tests.kit.server import Server, fork_server, run_command
from tests.kit.serving import Serving, serving


@pytest.fixture(scope="session", params=BOTH)
def echo_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serving]:
    async def open_engine() -> Engine:
        return EchoEngine(with_calls())

    url = None
    if request.param == "postgres":
        migrated = request.getfixturevalue("migrated_postgres")
        url = finished(new_postgres_url(request.getfixturevalue("postgres"), migrated))
    with serving(tmp_path_factory.mktemp("echo"), open_engine, database_url=url) as server:
        yield server.until_warm()


@pytest.fixture
def echo(echo_server: Serving) -> Iterator[EchoEngine]:
    """Its engine, let go when the test ends."""
    engine = echo_server.service.engine
    assert isinstance(engine, EchoEngine)
    yield engine
    engine.refusal = None
    engine.says.clear()
    echo_server.call(engine.release)
    echo_server.until(lambda: echo_server.service.supervisor.live_turns == 0)


@pytest.fixture(scope="session")
def model_server() -> Iterator[Server]:
    """As its user has it: a process, with the engine in another; fp32, so that greedy is exact."""
    with fork_server(KEEPWARM_DTYPE="float32") as server:
        yield server


@pytest.fixture(scope="session")
def client(echo_server: Serving) -> OpenAI:
    return a_client(echo_server)


@pytest.fixture(scope="session")
def stranger(echo_server: Serving) -> OpenAI:
    """Another user of the same server."""
    _, key = echo_server.new_user()
    return a_client(echo_server, key.key)


def a_client(server: Serving, key: str | None = None) -> OpenAI:
    return sdk(server.url, key or server.key)


def sdk(url: str, key: str) -> OpenAI:
    """The SDK as it comes; it repeats nothing by itself, so that a test sees each answer."""
    return OpenAI(base_url=url, api_key=key, max_retries=0, timeout=60)


def new_key(server: Server) -> str:
    """A key of a user who was not there before."""
    email = f"{new_user_id()}@example.org"
    run_command(server.folder, "admin", "user", "create", email, "--password", "a long password")
    made = run_command(server.folder, "admin", "key", "create", "--email", email)
    found = re.search(r"sk-kw-\S+", made)
    assert found, made
    return found[0]
