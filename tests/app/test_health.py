"""Alive, ready, counted; and the schemas that strangers build on, against a real server."""

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.db.types import AccountRole
from app.frames import InwardFrame, OutwardFrame
from tests.kit import metrics
from tests.kit.server import Server
from tests.kit.tab import person


def test_live_and_ready_say_no_more_than_that(server: Server):
    live = httpx.get(f"{server.url}/health/live")
    ready = httpx.get(f"{server.url}/health/ready")

    assert (live.status_code, live.json()) == (200, {"status": "live"})
    assert (ready.status_code, ready.json()) == (200, {"status": "ready"})


def test_metrics_are_not_for_strangers_not_even_on_loopback(server: Server):
    answer = httpx.get(f"{server.url}/metrics")

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

    answer = httpx.get(f"{server.url}/metrics", headers=headers)

    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    states = {s.labels["state"]: s.value for s in families["keepwarm_kv_blocks"].samples}
    assert set(states) == {"in_use", "copying", "pinned", "cached", "free"}
    assert sum(states.values()) > 0
    sources = families["keepwarm_prefix_cache_hits"].samples
    assert {s.labels["source"] for s in sources} == {"template", "persona", "document", "session"}
    assert families["keepwarm_prefix_cache_queries"].type == "counter"


def test_metrics_tell_what_the_page_about_them_says_and_nothing_of_anybody(server: Server):
    headers = {"authorization": f"Bearer {server.api_key}"}

    answer = httpx.get(f"{server.url}/metrics", headers=headers)

    families = {
        family.name: family
        for family in text_string_to_metric_families(answer.text)
        if family.name.startswith("keepwarm_")
    }
    assert {family.name for family in metrics.families()} == set(families)
    labels = {label for f in families.values() for s in f.samples for label in s.labels}
    kinds = {"source", "reason", "origin", "state", "retention", "tier", "change", "outcome"}
    assert labels == kinds | {"cached_share", "finished_reason", "le"}
    for name, family in families.items():
        told = {s.labels.get("cached_share"): s for s in family.samples if "le" not in s.labels}
        assert family.type in ("counter", "gauge", "histogram") and told, name


@pytest.mark.parametrize("role", list(AccountRole))
async def test_status_tells_all_users_figures_to_admins_alone(server: Server, role: AccountRole):
    async with person(server, role) as somebody:
        told = (await somebody.client.get("/api/status")).json()

    assert {"model", "context_tokens"} <= set(told)
    assert ("stats" in told) == ("card" in told) == (role is AccountRole.ADMIN)


def test_the_schema_tells_of_the_api_and_the_dialect_and_of_nothing_else(server: Server):
    paths = httpx.get(f"{server.url}/schema/openapi.json").json()["paths"]

    assert {"/api/conversations", "/api/login", "/v1/responses", "/v1/models"} <= set(paths)
    assert all(path.startswith(("/api/", "/v1/")) for path in paths)


def test_the_schema_of_the_socket_names_every_frame(server: Server):
    schema = httpx.get(f"{server.url}/schema/events.json").json()

    for side, union in (("inward", InwardFrame), ("outward", OutwardFrame)):
        named = {one["$ref"].split("/")[-1] for one in schema["properties"][side]["anyOf"]}
        assert named == {kind.__name__ for kind in union.__args__}
    assert "TextDelta" in schema["$defs"]
