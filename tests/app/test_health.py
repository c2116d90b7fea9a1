"""Alive, ready, counted; and the schemas that strangers build on, against a real server."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.asgi import serve
from app.db.types import AccountRole
from app.frames import InwardFrame, OutwardFrame
from app.settings import Settings
from engine.api import Engine
from tests.kit import metrics
from tests.kit.db import migrate_to
from tests.kit.echo import EchoEngine
from tests.kit.server import POLL_S, Server, free_port
from tests.kit.tab import person


def test_live_and_ready_say_no_more_than_that(server: Server):
    live = httpx.get(f"{server.url}/health/live", timeout=60)
    ready = httpx.get(f"{server.url}/health/ready", timeout=60)

    assert (live.status_code, live.json()) == (200, {"status": "live"})
    assert (ready.status_code, ready.json()) == (200, {"status": "ready"})


class Starting:
    """A server whose engine is being opened until `opening` has it; `up` when it serves."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.opening: asyncio.Future[Engine] = asyncio.get_running_loop().create_future()
        self.up = asyncio.Event()
        self.said: list[str] = []

    def say(self, words: str) -> None:
        self.said.append(words)
        if "Keepwarm is on" in words:
            self.up.set()


@pytest.fixture
async def starting(tmp_path: Path, empty_url: str) -> AsyncIterator[Starting]:
    settings = Settings(data_dir=tmp_path, port=free_port(), database_url=empty_url)
    await migrate_to(empty_url, "0001")
    start = Starting(settings.public_url)
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(serve(settings, start.opening, start.say))
        try:
            async with asyncio.timeout(60):
                while not await answers(start.url):  # noqa: ASYNC110  what is waited for has no event
                    await asyncio.sleep(POLL_S)
            yield start
        finally:
            if not start.opening.cancel():
                os.kill(os.getpid(), signal.SIGTERM)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait_for(serving, 60)


async def answers(url: str) -> bool:
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        with contextlib.suppress(httpx.ConnectError):
            return (await client.get("/health/live")).status_code == 200
    return False


@pytest.mark.row("5")
async def test_a_server_is_alive_while_its_model_is_loaded_and_says_when_to_come_back(
    starting: Starting,
):
    async with httpx.AsyncClient(base_url=starting.url, timeout=60) as client:
        live = await client.get("/health/live?probe=1")
        ready = await client.get("/health/ready")
        dialect = await client.post("/v1/responses", json={"input": "Hello"})
        page = await client.get("/api/account")

    assert (live.status_code, live.json()) == (200, {"status": "live"})
    assert [ready.status_code, dialect.status_code, page.status_code] == [503] * 3
    assert dialect.json()["error"]["code"] == "unavailable"
    assert page.headers["content-type"] == "application/problem+json"
    assert {answer.headers["retry-after"] for answer in (ready, dialect, page)} == {"1"}
    assert page.json()["request_id"] == page.headers["x-request-id"]
    assert not starting.up.is_set()


async def test_what_is_no_request_is_left_without_an_answer_and_without_a_trace(
    starting: Starting, caplog: pytest.LogCaptureFixture
):
    for sent in (b"", b"\r\n\r\n", b"GET\r\n\r\n", b"x" * 200_000):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", httpx.URL(starting.url).port or 0
        )
        with contextlib.suppress(ConnectionError):
            writer.write(sent)
            writer.write_eof()
            assert await reader.read() == b""
        writer.close()

    assert await answers(starting.url)
    assert not caplog.records


@pytest.mark.row("5", "28")
async def test_no_probe_is_missed_while_the_door_is_handed_over(starting: Starting, tmp_path: Path):
    """Every one has its answer, from the first that the server gave."""
    statuses: list[int] = []

    async def probe() -> None:
        while not starting.up.is_set() or len(statuses) < 50:
            async with httpx.AsyncClient(base_url=starting.url, timeout=60) as client:
                statuses.append((await client.get("/health/live")).status_code)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(4):
            tasks.create_task(probe())
        starting.opening.set_result(EchoEngine())
    async with httpx.AsyncClient(base_url=starting.url, timeout=60) as client:
        ready = await client.get("/health/ready")

    assert set(statuses) == {200}
    assert ready.status_code == 200
    assert "now at revision" in starting.said[0]
    assert f"as it was: {tmp_path}/keepwarm.0001.backup" in starting.said[0]


def test_metrics_are_not_for_strangers_not_even_on_loopback(server: Server):
    answer = httpx.get(f"{server.url}/metrics", timeout=60)

    assert answer.status_code == 401
    assert "keepwarm_" not in answer.text


async def test_metrics_are_not_for_members(server: Server):
    async with person(server) as member:
        made = await member.client.post("/api/keys", json={"name": "mine"})
        key = made.json()["key"]

        answer = await server.get("/metrics", authorization=f"Bearer {key}")

    assert answer.status_code == 403


def test_metrics_read_as_prometheus_reads_them(server: Server):
    headers = {"authorization": f"Bearer {server.api_key}"}

    answer = httpx.get(f"{server.url}/metrics", headers=headers, timeout=60)

    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    states = {s.labels["state"]: s.value for s in families["keepwarm_kv_blocks"].samples}
    assert set(states) == {"in_use", "copying", "pinned", "cached", "free"}
    assert sum(states.values()) > 0
    sources = families["keepwarm_prefix_cache_hits"].samples
    assert {s.labels["source"] for s in sources} == {"template", "persona", "document", "session"}
    assert families["keepwarm_prefix_cache_queries"].type == "counter"


def test_metrics_tell_what_the_page_about_them_says_and_nothing_of_anybody(server: Server):
    headers = {"authorization": f"Bearer {server.api_key}"}

    answer = httpx.get(f"{server.url}/metrics", headers=headers, timeout=60)

    families = {
        family.name: family
        for family in text_string_to_metric_families(answer.text)
        if family.name.startswith(("keepwarm_", "gen_ai_"))
    }
    assert {family.name for family in metrics.families()} == set(families)
    labels = {label for f in families.values() for s in f.samples for label in s.labels}
    kinds = {"source", "reason", "origin", "state", "retention", "tier", "change", "outcome"}
    kinds |= {"kind", "status", "cached_share", "finished_reason", "le", "error_type"}
    kinds |= {"model", "dtype", "device", "attention"}
    kinds |= {f"gen_ai_{one}" for one in ("operation_name", "provider_name", "token_type")}
    assert labels == kinds | {"gen_ai_request_model"}
    for name, family in families.items():
        told = {s.labels.get("cached_share"): s for s in family.samples if "le" not in s.labels}
        assert family.type in ("counter", "gauge", "histogram") and told, name


def sums(server: Server) -> dict[tuple[str, ...], float]:
    """Each series that sums something up, by its name and the values of its labels."""
    headers = {"authorization": f"Bearer {server.api_key}"}
    answer = httpx.get(f"{server.url}/metrics", headers=headers, timeout=60)
    return {
        (one.name, *one.labels.values()): one.value
        for family in text_string_to_metric_families(answer.text)
        for one in family.samples
        if one.name.endswith(("_sum", "_count", "_total"))
    }


def test_a_turn_is_counted_with_its_tokens_and_its_transactions(server: Server):
    server.wait_until_rested()
    before = sums(server)
    answer = httpx.post(
        f"{server.url}/v1/responses",
        json={"input": "Hello", "max_output_tokens": 4},
        headers={"authorization": f"Bearer {server.api_key}"},
        timeout=120,
    ).json()
    after = sums(server)

    more = {key: value - before.get(key, 0) for key, value in after.items()}
    request = ("chat", "keepwarm", answer["model"])
    tokens = "gen_ai_client_token_usage_sum"
    assert more[(tokens, *request, "input")] == answer["usage"]["input_tokens"]
    assert more[(tokens, *request, "output")] == answer["usage"]["output_tokens"]
    assert more[("gen_ai_server_request_duration_seconds_count", "", *request)] == 1
    assert more[("gen_ai_server_time_to_first_token_seconds_count", *request)] == 1
    assert more[("keepwarm_turns_total", answer["status"])] == 1
    assert more[("keepwarm_database_transaction_seconds_count", "write")] >= 2


@pytest.mark.parametrize("role", list(AccountRole))
async def test_status_tells_all_users_figures_to_who_may_see_them(
    server: Server, role: AccountRole
):
    async with person(server, role) as somebody:
        told = (await somebody.client.get("/api/status")).json()

    assert {"model", "context_tokens"} <= set(told)
    assert ("stats" in told) == ("card" in told) == (role is not AccountRole.MEMBER)


def test_the_schema_tells_of_the_api_the_dialect_and_operations_and_of_nothing_else(server: Server):
    paths = httpx.get(f"{server.url}/schema/openapi.json", timeout=60).json()["paths"]

    assert {"/api/conversations", "/api/login", "/v1/responses", "/v1/models"} <= set(paths)
    others = {path for path in paths if not path.startswith(("/api/", "/v1/"))}
    assert others == {"/health/live", "/health/ready", "/metrics"}


def test_the_schema_of_the_socket_names_every_frame(server: Server):
    schema = httpx.get(f"{server.url}/schema/events.json", timeout=60).json()

    for side, union in (("inward", InwardFrame), ("outward", OutwardFrame)):
        named = {one["$ref"].split("/")[-1] for one in schema["properties"][side]["anyOf"]}
        assert named == {kind.__name__ for kind in union.__args__}
    assert "TextDelta" in schema["$defs"]
