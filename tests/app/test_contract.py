"""The OpenAPI document says what the server does: of every route, in every answer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import schemathesis
from litestar import Litestar, Response, get
from litestar.routes import HTTPRoute

from app.asgi import create_app
from app.routes.published.openapi import document
from app.routes.published.shapes import Shapes
from app.settings import Settings
from tests.kit import contract
from tests.kit.echo import EchoEngine
from tests.kit.peers import open_engine
from tests.kit.serving import Serving, serving

SCHEMAS = ("openapi", "asyncapi", "events", "dialect")
OUT_OF_IT = {
    "/",
    "/setup",
    "/admin",
    "/api/oidc/callback",
    "/assets/{name}",
    *(f"/schema/{name}.json" for name in SCHEMAS),
}
"""The page itself, and what describes the rest."""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("contract"), open_engine) as server:
        yield server


@pytest.fixture(scope="module")
def published(house: Serving) -> dict[str, Any]:
    found = httpx.get(f"{house.site.url}/schema/openapi.json", timeout=60).raise_for_status()
    document: dict[str, Any] = found.json()
    return document


def operations(published: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in published["paths"].items():
        for method, told in methods.items():
            yield path, method, told


def test_the_document_is_valid_openapi(published: dict[str, Any]):
    schemathesis.openapi.from_dict(published).validate()

    names = [told["operationId"] for _, _, told in operations(published)]
    assert len(names) == len(set(names))


def test_every_route_is_in_the_document(tmp_path, published: dict[str, Any]):
    app = create_app(Settings(data_dir=tmp_path), EchoEngine())
    served = {route.path_format for route in app.routes if isinstance(route, HTTPRoute)}

    assert served - set(published["paths"]) <= OUT_OF_IT


def test_streams_that_end_with_an_answer_are_told_from_those_that_never_do(
    published: dict[str, Any],
):
    """Who asks one of the latter for its end waits for ever."""
    streams = {
        path
        for path, _, told in operations(published)
        if any("text/event-stream" in one.get("content", ()) for one in told["responses"].values())
    }
    finite = {path for path in streams if "/responses" in path or "/completions" in path}

    assert streams - finite == contract.ENDLESS


def test_each_dialect_refuses_in_its_own_form(published: dict[str, Any]):
    for path, method, told in operations(published):
        refusals = {status: one for status, one in told["responses"].items() if status >= "400"}
        dialect = "dialect" if path.startswith("/v1/") else "problem"
        assert {"400", "429", "500", "503"} <= set(refusals), (path, method)
        for status, one in refusals.items():
            assert one == {"$ref": f"#/components/responses/{dialect}-{status}"}


def test_what_changes_something_asks_for_the_token_of_our_own_page(published: dict[str, Any]):
    for path, method, told in operations(published):
        asks = any("csrf" in one for one in told.get("security", ()))
        assert asks == (path.startswith("/api/") and method != "get"), (path, method)


def test_a_limit_is_published_as_it_is_enforced(published: dict[str, Any]):
    schemas = published["components"]["schemas"]

    assert schemas["NewTurn"]["properties"]["text"] == {
        "type": "string",
        "minLength": 1,
        "maxLength": 1_000_000,
    }
    assert schemas["NewTurn"]["additionalProperties"] is False
    assert schemas["ConversationView"]["properties"]["created_at"]["description"] == (
        "In seconds since 1970, UTC."
    )


@pytest.mark.row("robustness", "CVE-2026-31949")
def test_no_request_brings_the_server_to_say_what_its_document_does_not(
    tmp_path: Path, database_url: str
):
    with serving(tmp_path, open_engine, database_url=database_url) as house:
        assert not contract.ask(house, examples=1)


def test_two_structs_of_one_name_are_an_error():
    first = msgspec.defstruct("Same", [("left", int)])
    second = msgspec.defstruct("Same", [("right", int)])
    shapes = Shapes("#/")
    shapes.of(first)

    with pytest.raises(ValueError, match="another name"):
        shapes.of(second)


def test_a_handler_whose_answer_nobody_tells_is_an_error():
    @get("/untold")
    async def untold() -> Response[bytes]:
        return Response(b"")

    with pytest.raises(ValueError, match="untold"):
        document(Litestar([untold], openapi_config=None, logging_config=None).routes, "cookie")
