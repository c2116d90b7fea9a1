"""Who comes in and who does not, on real connections: Host, Origin, cookie, key, CSRF, limits."""

import asyncio
import contextlib
import typing
from typing import Any

import httpx
import msgspec
import pytest
from litestar.routes import WebSocketRoute
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from app.asgi import create_app
from app.db.types import AccountRole
from app.events import Figures
from app.frames import (
    PROTOCOL,
    ErrorFrame,
    FiguresUnwatch,
    FiguresUnwatched,
    FiguresWatched,
    InwardFrame,
    OutwardFrame,
)
from app.people.usage import Usage
from app.routes.gate import Gate, Hosts
from app.settings import Settings
from tests.kit.echo import EchoEngine
from tests.kit.serving import Serving
from tests.kit.staff import on_the_page, somebody
from tests.kit.tab import PASSWORD, Person, Place, person

PUBLIC = {
    ("GET", "/"),
    ("GET", "/setup"),
    ("GET", "/admin"),
    ("POST", "/api/login"),
    ("POST", "/api/setup"),
    ("POST", "/api/password"),
    ("GET", "/api/sign-in"),
    ("POST", "/api/oidc"),
    ("GET", "/api/oidc/callback"),
    ("GET", "/health/live"),
    ("GET", "/health/ready"),
    ("GET", "/schema/openapi.json"),
    ("GET", "/schema/asyncapi.json"),
    ("GET", "/schema/events.json"),
    ("GET", "/schema/dialect.json"),
}
"""Everything that answers without a credential, but for the built page's files."""

SOCKETS = {"/ws", "/v1/responses"}
"""Each asks for its credential itself, so that a refusal has a body."""

OF_ONES_OWN = {
    "/api/account",
    "/api/account/password",
    "/api/account/removal",
    "/api/account/usage",
    "/api/identities",
    "/api/identities/{identity_id:str}",
    "/api/keys",
    "/api/keys/{key_id:str}",
    "/api/logins",
    "/api/logins/{login_id:str}",
    "/api/logout",
    "/api/status",
}
"""What an auditor reaches too."""


SPOKEN = {"hello", "figures.watch", "figures.unwatch"}
"""What an auditor may say on the browser's socket."""

FIGURES = {
    "cache",
    "cache/events",
    "figures",
    "figures/events",
    "health",
    "misses",
    "prefixes",
    "sessions",
    "shares",
    "turns",
    "usage",
    "users",
}


@pytest.fixture
def server(house: Serving) -> Place:
    return house.place


def sent(response: httpx.Response) -> dict[str, Any]:
    found: dict[str, Any] = response.json()
    return found


# ---------------------------------------------------------------- which routes ask for nothing


@pytest.mark.row("CVE-2024-12537")
def test_the_routes_that_ask_for_no_credential_are_few_and_known(tmp_path):
    app = create_app(Settings(data_dir=tmp_path), EchoEngine())
    asking = {"by_cookie", "by_member", "by_figures", "by_admin", "by_key", "by_figures_key"}
    public = {
        (method, route.path)
        for route in app.routes
        for handler in getattr(route, "route_handlers", ())
        if not asking & set(map(check_name, handler.resolve_guards()))
        for method in handler.http_methods - {"OPTIONS"}
    }

    files = {one for one in public if one[1].startswith("/assets/")}
    assert public - files == PUBLIC
    assert {method for method, _ in files} <= {"GET", "HEAD"}
    assert {one.path for one in app.routes if isinstance(one, WebSocketRoute)} == SOCKETS


def test_what_is_for_every_role_is_little_and_known(tmp_path):
    """All else under `/api` is for who chats, or for administrators."""
    app = create_app(Settings(data_dir=tmp_path), EchoEngine())
    for_all = {
        route.path
        for route in app.routes
        for handler in getattr(route, "route_handlers", ())
        if "by_cookie" in map(check_name, handler.resolve_guards())
    }

    assert for_all == OF_ONES_OWN


def test_what_an_auditor_sees_of_others_is_figures_and_only_to_be_read(tmp_path):
    app = create_app(Settings(data_dir=tmp_path), EchoEngine())
    found = {
        (method, route.path)
        for route in app.routes
        for handler in getattr(route, "route_handlers", ())
        if "by_figures" in map(check_name, handler.resolve_guards())
        for method in handler.http_methods - {"OPTIONS"}
    }

    assert found == {("GET", f"/api/admin/{noun}") for noun in FIGURES}


async def test_what_an_auditor_says_and_hears_on_the_socket_is_figures_and_nothing_else(
    house: Serving,
):
    """Nor of the conversations that they had before."""
    heard: dict[str, list[OutwardFrame]] = {}
    async with somebody(house) as who:
        turn = {"client_message_id": "m", "parent_id": None, "text": "Hello"}
        path = f"/api/conversations/{await who.conversation()}/turns"
        (await who.client.post(path, json=turn)).raise_for_status()
        await on_the_page(house, who, AccountRole.AUDITOR)
        async with who.tab() as tab:
            for kind in typing.get_args(InwardFrame):
                name = kind.__struct_config__.tag
                await tab.socket.send(msgspec.json.encode(a_frame(kind)).decode())
                await tab.send(FiguresUnwatch(request_id=f"behind {name}"))
                heard[name] = []
                while getattr(frame := await tab.receive(), "request_id", "") != f"behind {name}":
                    heard[name].append(frame)

    refused = {
        name
        for name, frames in heard.items()
        if [one.error.code for one in frames if isinstance(one, ErrorFrame)] == ["forbidden"]
    }
    assert heard.keys() - refused == SPOKEN
    told = {type(frame) for frames in heard.values() for frame in frames}
    assert told <= {ErrorFrame, Figures, FiguresWatched, FiguresUnwatched}


def a_frame(kind: type[msgspec.Struct]) -> dict[str, object]:
    """One that can be read, and names what is not there."""
    known = {"protocol": PROTOCOL, "state": "open"}
    fields = [field.name for field in msgspec.structs.fields(kind) if field.required]
    return {"type": kind.__struct_config__.tag} | {name: known.get(name, "x") for name in fields}


def check_name(guard: Any) -> str:
    """Which of the gate's checks a guard makes."""
    name: str = guard.__closure__[0].cell_contents.__name__
    return name


@pytest.mark.row("CVE-2024-12537")
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/account"),
        ("GET", "/api/conversations"),
        ("GET", "/api/conversations/conv_0"),
        ("GET", "/api/responses/resp_0/events"),
        ("GET", "/api/keys"),
        ("GET", "/api/identities"),
        ("GET", "/api/logins"),
        ("GET", "/api/users"),
        ("GET", "/api/invitations"),
        ("GET", "/api/groups"),
        ("GET", "/api/status"),
        ("GET", "/v1/models"),
        ("GET", "/v1/responses/resp_0"),
        ("POST", "/v1/responses"),
        ("POST", "/v1/chat/completions"),
        ("GET", "/metrics"),
    ],
)
def test_without_a_credential_the_answer_is_401(server: Place, method: str, path: str):
    answer = httpx.request(
        method, server.url + path, json={} if method == "POST" else None, timeout=60
    )

    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"


# ---------------------------------------------------------------- every answer


@pytest.mark.parametrize(
    "path", ["/", "/health/live", "/api/account", "/v1/models", "/v1/nothing", "/nothing/at/all"]
)
def test_every_answer_has_a_request_id_and_is_not_sniffed_or_framed(server: Place, path: str):
    first, second = (httpx.get(server.url + path, timeout=60) for _ in range(2))

    assert first.headers["x-request-id"].startswith("req_")
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    assert first.headers["x-content-type-options"] == "nosniff"
    assert "frame-ancestors 'none'" in first.headers["content-security-policy"]
    assert "unsafe" not in first.headers["content-security-policy"]


def test_an_unknown_path_is_told_in_the_dialect_of_its_place(server: Place):
    api = httpx.get(f"{server.url}/api/nothing", timeout=60)
    dialect = httpx.get(f"{server.url}/v1/nothing", timeout=60)

    assert (api.status_code, dialect.status_code) == (404, 404)
    assert sent(api)["request_id"] == api.headers["x-request-id"]
    assert sent(dialect)["error"]["code"] == "not_found"


def test_a_wrong_method_is_no_server_error(server: Place):
    assert httpx.delete(f"{server.url}/api/login", timeout=60).status_code == 405


# ---------------------------------------------------------------- Host


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_a_host_that_is_not_ours_is_refused(server: Place, host: str):
    answer = httpx.get(f"{server.url}/health/live", headers={"host": host}, timeout=60)

    assert answer.status_code == 400
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("host", ["localhost", "localhost:9999", "127.0.0.1", "[::1]:80"])
def test_loopback_names_are_ours_with_any_port(server: Place, host: str):
    assert (
        httpx.get(f"{server.url}/health/live", headers={"host": host}, timeout=60).status_code
        == 200
    )


async def test_a_socket_with_a_foreign_host_gets_an_answer_and_not_a_crash(server: Place):
    host, port = server.url.removeprefix("http://").split(":")
    with pytest.raises(InvalidStatus) as refused:
        async with connect(
            "ws://evil.example/v1/responses", host=host, port=int(port), open_timeout=60
        ):
            pass

    response = refused.value.response
    assert response.status_code == 400
    assert b"unknown_host" in response.body
    assert response.headers["x-request-id"]


# ---------------------------------------------------------------- the page's own requests


@pytest.mark.row("csrf")
async def test_a_change_needs_the_token_that_only_our_page_can_read(server: Place):
    async with person(server) as somebody:
        client = somebody.client
        del client.headers["x-csrf-token"]

        without = await client.post("/api/conversations", json={})
        wrong = await client.post(
            "/api/conversations", json={}, headers={"x-csrf-token": "guessed"}
        )
        reading = await client.get("/api/conversations")

    assert (without.status_code, sent(without)["code"]) == (403, "csrf")
    assert wrong.status_code == 403
    assert reading.status_code == 200


@pytest.mark.row("csrf")
@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
async def test_a_change_from_another_origin_is_refused_even_with_the_token(
    server: Place, origin: str
):
    async with person(server) as somebody:
        answer = await somebody.client.post(
            "/api/conversations", json={}, headers={"origin": origin}
        )

    assert (answer.status_code, sent(answer)["code"]) == (403, "origin")


async def test_signing_in_needs_the_token_too(server: Place):
    async with (
        person(server) as somebody,
        httpx.AsyncClient(base_url=server.url, timeout=60) as other,
    ):
        answer = await other.post(
            "/api/login", json={"email": somebody.email, "password": PASSWORD}
        )

    assert answer.status_code == 403
    assert "set-cookie" in answer.headers, "the refusal plants the token for the next try"


@pytest.mark.row("session cookie")
async def test_the_session_cookie_is_for_the_server_alone_and_the_token_for_our_page(
    server: Place,
):
    async with person(server) as somebody:
        before = dict(somebody.client.cookies)
        answer = await somebody.client.post(
            "/api/login", json={"email": somebody.email, "password": PASSWORD}
        )
        after = dict(somebody.client.cookies)

    cookies = {line.split("=")[0]: line.lower() for line in answer.headers.get_list("set-cookie")}
    assert before.keys() == after.keys() == cookies.keys()
    assert not before.items() & after.items(), "both are new at every login"
    assert "httponly" in cookies["kw_session"]
    assert "httponly" not in cookies["kw_csrf"]
    assert all("samesite=strict" in cookie for cookie in cookies.values())


def test_behind_https_cookies_are_secure_and_bound_to_the_host(tmp_path):
    settings = Settings(data_dir=tmp_path, public_url="https://chat.example.org")
    nothing: Any = None  # cookies ask no accounts
    gate = Gate(settings, nothing, nothing, nothing, usage=Usage(nothing, nothing))

    cookie = gate.login_cookie("t", max_age_s=60).to_header(header="")

    assert cookie.startswith("__Host-kw_session=")
    assert "Secure" in cookie
    assert "Path=/;" in cookie + ";"
    assert "Domain" not in cookie


@pytest.mark.parametrize(
    ("public_url", "origin", "owned"),
    [
        ("https://chat.example.org", "https://chat.example.org", True),
        ("https://chat.example.org", "http://chat.example.org", False),
        ("https://chat.example.org", "https://chat.example.org:8443", False),
        ("https://chat.example.org", "https://evil.chat.example.org", False),
        ("https://chat.example.org:443", "https://chat.example.org", True),
        ("http://box.lan:80", "http://box.lan", True),
        ("http://box.lan:8000", "http://box.lan:8000", True),
        ("http://box.lan:8000", "http://box.lan:9000", False),
        ("http://box.lan:8000", "null", False),
        ("http://box.lan:8000", None, False),
    ],
)
def test_an_origin_is_ours_by_exact_scheme_host_and_port(
    public_url: str, origin: str | None, owned: bool
):
    assert Hosts(Settings(public_url=public_url)).owns(origin) is owned


# ---------------------------------------------------------------- keys


@pytest.mark.parametrize("header", ["", "Basic abc", "Bearer", "Bearer wrong", "Bearer a b"])
def test_a_bad_key_is_told_in_the_dialect(server: Place, header: str):
    answer = httpx.get(f"{server.url}/v1/models", headers={"authorization": header}, timeout=60)

    assert answer.status_code == 401
    error = sent(answer)["error"]
    assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")


async def test_a_cookie_does_not_open_the_dialect_nor_a_key_the_page(server: Place):
    async with person(server) as somebody:
        by_cookie = await somebody.client.get("/v1/models")
    by_key = await server.get("/api/account", authorization=f"Bearer {server.api_key}")

    assert (by_cookie.status_code, by_key.status_code) == (401, 401)


@pytest.mark.row("handshake")
@pytest.mark.parametrize("path", ["/v1/models", "/api/account"])
async def test_both_kinds_of_credentials_at_once_are_refused(server: Place, path: str):
    key = {"authorization": f"Bearer {server.api_key}"}
    async with person(server) as somebody:
        answer = await somebody.client.get(path, headers=key)

    assert answer.status_code == 400
    assert "two_credentials" in answer.text


@pytest.mark.row("live revocation")
async def test_a_key_that_its_owner_ends_is_ended_at_once(server: Place):
    async with person(server) as somebody:
        made = (await somebody.client.post("/api/keys", json={"name": "mine"})).json()
        key = f"Bearer {made['key']}"
        before = await server.get("/v1/models", authorization=key)
        await somebody.client.delete(f"/api/keys/{made['view']['id']}")
        after = await server.get("/v1/models", authorization=key)

    assert (before.status_code, after.status_code) == (200, 401)


# ---------------------------------------------------------------- the handshake of the browser's socket


async def refusal(server: Place, path: str, headers: dict[str, str], **options: Any):
    """The HTTP answer to a handshake that is not let in."""
    with pytest.raises(InvalidStatus) as refused:
        async with connect(
            server.ws_url + path, additional_headers=headers, open_timeout=60, **options
        ):
            pass
    response = refused.value.response
    return httpx.Response(
        response.status_code,
        headers=list(response.headers.raw_items()),
        content=bytes(response.body),
    )


@pytest.mark.row("35", "handshake")
@pytest.mark.parametrize(
    "origin", [None, "null", "http://evil.example", "http://127.0.0.1:1", "https://{host}"]
)
async def test_a_socket_from_a_foreign_origin_is_refused_with_a_body(
    server: Place, origin: str | None
):
    if origin is not None:
        origin = origin.format(host=server.url.removeprefix("http://"))
    async with person(server) as somebody:
        refused = await refusal(server, "/ws", {"Cookie": somebody.cookie}, origin=origin)

    assert (refused.status_code, sent(refused)["code"]) == (403, "origin")
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.headers["x-request-id"] == sent(refused)["request_id"]


@pytest.mark.row("handshake")
async def test_a_socket_without_a_login_is_401(server: Place):
    refused = await refusal(server, "/ws", {}, origin=server.url)

    assert (refused.status_code, sent(refused)["code"]) == (401, "unauthenticated")


async def test_a_key_does_not_open_the_browsers_socket(server: Place):
    key = {"Authorization": f"Bearer {server.api_key}"}

    assert (await refusal(server, "/ws", key, origin=server.url)).status_code == 401


@pytest.mark.row("35", "handshake")
async def test_a_key_opens_the_dialects_socket_from_any_origin_or_none_and_not_from_its_address(
    server: Place,
):
    key = {"Authorization": f"Bearer {server.api_key}"}
    for headers in (key, key | {"Origin": "http://evil.example"}):
        async with connect(
            f"{server.ws_url}/v1/responses", additional_headers=headers, open_timeout=60
        ):
            pass
    refused = await refusal(server, f"/v1/responses?key={server.api_key}", {})

    assert refused.status_code == 401


async def test_a_dialect_socket_with_a_bad_key_is_401_in_the_dialect(server: Place):
    refused = await refusal(server, "/v1/responses", {"Authorization": "Bearer wrong"})

    assert refused.status_code == 401
    assert sent(refused)["error"]["code"] == "invalid_api_key"


@pytest.mark.row("counts")
async def test_a_user_has_so_many_sockets_and_the_next_is_told_to_wait(server: Place):
    async with person(server) as somebody, contextlib.AsyncExitStack() as open_sockets:
        for _ in range(Settings().sockets_per_user):
            await open_sockets.enter_async_context(somebody.socket())

        refused = await refusal(server, "/ws", {"Cookie": somebody.cookie}, origin=server.url)
        async with person(server) as another, another.tab():
            pass
        await open_sockets.aclose()
        await opens(somebody)

    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1


async def opens(somebody: Person) -> None:
    """A seat is free again as soon as the server has seen a socket close."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(InvalidStatus):
                async with somebody.tab():
                    return


# ---------------------------------------------------------------- signing in


@pytest.mark.row("login")
async def test_a_wrong_password_and_an_unknown_address_look_the_same(server: Place):
    async with person(server) as somebody:
        wrong = await somebody.client.post(
            "/api/login", json={"email": somebody.email, "password": "x" * 12}
        )
        unknown = await somebody.client.post(
            "/api/login", json={"email": "nobody@example.org", "password": "x" * 12}
        )

    assert wrong.status_code == unknown.status_code == 401
    assert sent(wrong)["detail"] == sent(unknown)["detail"]


MANY_GUESSES = 20
"""A machine on which each takes a while waits by itself, until the waits are longer than that."""


@pytest.mark.row("login")
async def test_guessing_a_password_is_slowed_down(server: Place):
    async with person(server) as somebody:
        body = {"email": somebody.email, "password": "wrong password"}
        answers = [await somebody.client.post("/api/login", json=body)]
        while answers[-1].status_code == 401 and len(answers) < MANY_GUESSES:
            answers.append(await somebody.client.post("/api/login", json=body))

    assert answers[-1].status_code == 429
    assert int(answers[-1].headers["retry-after"]) >= 1


@pytest.mark.row("session cookie")
async def test_signing_out_ends_the_login_and_not_only_the_cookie(server: Place):
    async with person(server) as somebody:
        cookie = somebody.cookie
        await somebody.client.post("/api/logout")

        answer = await server.get("/api/account", cookie=cookie)

    assert answer.status_code == 401


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"email":"a@b.c"}', "password"),
        (b'{"email":1,"password":"x"}', "email"),
        (b'{"email":"a@b.c","password":"x","more":1}', "more"),
        (b"{", None),
        (b"[]", None),
        (b"\xff", None),
    ],
)
async def test_a_body_that_is_wrong_is_400_and_names_the_field(
    server: Place, body: bytes, field: str | None
):
    async with person(server) as somebody:
        answer = await somebody.client.post(
            "/api/login", content=body, headers={"content-type": "application/json"}
        )

    assert answer.status_code == 400
    assert field is None or field in answer.text
