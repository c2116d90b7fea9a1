"""The proxy of `docs/deploy/nginx.conf`, run by Debian's nginx: nothing is lost, held back or believed."""

import contextlib
import getpass
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect

from app.events import ResponseEnded, ResponseStatus, TextDelta
from app.frames import Cursor
from app.people.throttle import Throttle
from tests.kit.db import BOTH, finished, new_postgres_url
from tests.kit.peers import engine_of, open_engine
from tests.kit.server import ROOT, free_port
from tests.kit.serving import Serving, serving
from tests.kit.tab import PASSWORD, Site, browser

SNIPPET = ROOT / "docs" / "deploy" / "nginx.conf"
NGINX = next((one for one in ("/usr/sbin/nginx", "/usr/bin/nginx") if Path(one).exists()), "nginx")
WHOLE = """
daemon off; master_process off; {user}
pid {folder}/pid; error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxied;
    fastcgi_temp_path {folder}/1; uwsgi_temp_path {folder}/2; scgi_temp_path {folder}/3;
    include {folder}/keepwarm.conf;
}}
"""
EMAIL = "somebody@example.org"


class Proxied:
    """A server, and the address at which nginx serves it."""

    def __init__(self, server: Serving, port: int) -> None:
        self.server = server
        self.site = Site(url=f"https://localhost:{port}", ws_url=f"wss://localhost:{port}")

    def program(self, peer: str = "127.0.0.1") -> httpx.AsyncClient:
        """A client that comes from this address, with the server's key."""
        return httpx.AsyncClient(
            base_url=self.site.url,
            transport=httpx.AsyncHTTPTransport(
                verify=httpx.create_ssl_context(), local_address=peer
            ),
            headers={"authorization": f"Bearer {self.server.key}"},
            timeout=60,
        )


def make_certificate(folder: Path) -> None:
    """A key and a certificate of localhost, for a day."""
    name = "subjectAltName=DNS:localhost"
    made: list[str | Path] = ["-keyout", folder / "key.pem", "-out", folder / "cert.pem"]
    made += [
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "1",
        "-subj",
        "/CN=localhost",
        "-addext",
        name,
    ]
    subprocess.run(["openssl", "req", "-x509", *made], check=True, capture_output=True)


def written(folder: Path, port: int, behind: int) -> Path:
    """The configuration: the snippet with another address, name and certificate."""
    snippet = SNIPPET.read_text()
    for example, ours in {
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "chat.example.org;": "localhost;",
        "/etc/letsencrypt/live/chat.example.org/fullchain.pem": f"{folder}/cert.pem",
        "/etc/letsencrypt/live/chat.example.org/privkey.pem": f"{folder}/key.pem",
        "http://127.0.0.1:8000;": f"http://127.0.0.1:{behind};",
    }.items():
        assert snippet.count(example) == 1, example
        snippet = snippet.replace(example, ours)
    (folder / "keepwarm.conf").write_text(snippet)
    user = "user root;" if getpass.getuser() == "root" else ""
    (folder / "nginx.conf").write_text(WHOLE.format(folder=folder, user=user))
    return folder / "nginx.conf"


@pytest.fixture(scope="module", params=BOTH)
def proxied(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Proxied]:
    folder, port = tmp_path_factory.mktemp("nginx"), free_port()
    make_certificate(folder)
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setenv("SSL_CERT_FILE", str(folder / "cert.pem"))
        url = f"https://localhost:{port}"
        settings = {"public_url": url}
        if request.param == "postgres":
            postgres, template = map(request.getfixturevalue, ("postgres", "migrated_postgres"))
            settings["database_url"] = finished(new_postgres_url(postgres, template))
        server = stack.enter_context(serving(folder / "data", open_engine, **settings))
        # Where no time passes nobody has waited, however slow the machine is.
        server.service.logins._throttle = Throttle(lambda: 0.0)
        behind = int(server.site.url.rpartition(":")[2])
        server.do(server.service.accounts.create_user(EMAIL, "Somebody", PASSWORD))
        conf = written(folder, port, behind)
        subprocess.run([NGINX, "-t", "-q", "-p", folder, "-c", conf], check=True)
        nginx = subprocess.Popen([NGINX, "-p", folder, "-c", conf])
        stack.callback(nginx.wait)
        stack.callback(nginx.terminate)
        wait_for(url, nginx)
        yield Proxied(server, port)


def wait_for(url: str, nginx: "subprocess.Popen[bytes]") -> None:
    while nginx.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health/live", timeout=60).status_code == 200:
                return
        with contextlib.suppress(subprocess.TimeoutExpired):
            nginx.wait(0.05)
    raise AssertionError("nginx ended")


@pytest.fixture
async def held(proxied: Proxied) -> AsyncIterator[Proxied]:
    """Answers stop after two tokens, until the test lets them go on."""
    proxied.server.call(engine_of(proxied.server).hold, 3)
    yield proxied
    proxied.server.call(engine_of(proxied.server).release)


@pytest.mark.row("5", "33", "session cookie")
async def test_a_page_is_signed_in_and_its_socket_hears_an_answer_token_by_token(held: Proxied):
    async with browser(held.site, EMAIL) as somebody:
        cookies = {one.name: one for one in somebody.client.cookies.jar}
        conversation_id = await somebody.conversation()
        async with somebody.tab() as tab:
            await tab.subscribe(conversation_id)
            accepted = await tab.say(conversation_id, "Hello")
            await tab.event(accepted.response.id, TextDelta)

            held.server.call(engine_of(held.server).release)
            ended = await tab.event(accepted.response.id, ResponseEnded)

    assert cookies["__Host-kw_session"].secure
    assert ended.response.status.ended


@pytest.mark.row("5")
async def test_13_an_answer_is_resumed_and_stopped_through_the_proxy(held: Proxied):
    async with browser(held.site, EMAIL) as somebody:
        conversation_id = await somebody.conversation()
        async with somebody.tab() as tab:
            await tab.subscribe(conversation_id)
            accepted = await tab.say(conversation_id, "Hello")
            seen = await tab.event(accepted.response.id, TextDelta)
        cursor = Cursor(
            response_id=accepted.response.id, after=seen.sequence_number, epoch=tab.epoch
        )
        async with somebody.tab() as back:
            await back.subscribe(conversation_id, cursor)
            following = await back.event(accepted.response.id, TextDelta)
            await back.cancel(accepted.response.id)
            ended = await back.event(accepted.response.id, ResponseEnded)

    assert following.sequence_number == seen.sequence_number + 1
    assert ended.response.status is ResponseStatus.CANCELLED
    assert ended.text == seen.delta + following.delta


@pytest.mark.row("33")
async def test_a_stream_of_events_is_not_held_back(held: Proxied):
    asked = {"input": "Hello", "stream": True}
    async with held.program() as client, client.stream("POST", "/v1/responses", json=asked) as got:
        events = got.aiter_lines()
        async for line in events:
            if line == "event: response.output_text.delta":
                break
        held.server.call(engine_of(held.server).release)
        rest = [line async for line in events]

    assert "event: response.completed" in rest


async def test_a_programs_socket_opens_through_the_proxy(proxied: Proxied):
    key = {"Authorization": f"Bearer {proxied.server.key}"}
    address = f"{proxied.site.ws_url}/v1/responses"

    async with connect(address, additional_headers=key, open_timeout=60) as opened:
        await opened.send('{"type": "response.create", "input": "Hello"}')
        assert "response.created" in await opened.recv()


async def test_a_page_of_another_origin_is_not_let_in(proxied: Proxied):
    async with proxied.program() as client:
        answer = await client.post(
            "/api/login", json={}, headers={"origin": "https://localhost", "authorization": ""}
        )

    assert answer.status_code == 403


@pytest.mark.row("login")
async def test_guesses_count_against_the_visitor_that_nginx_names(proxied: Proxied):
    """Not against the proxy, nor against what a visitor says of itself."""
    statuses: dict[str, list[int]] = {"127.0.0.2": [], "127.0.0.3": []}
    for peer, guesses in (("127.0.0.2", 6), ("127.0.0.3", 1)):
        async with proxied.program(peer) as client:
            del client.headers["authorization"]
            page = {"origin": proxied.site.url, "cookie": "kw_csrf=t", "x-csrf-token": "t"}
            client.headers.update(page)
            for number in range(guesses):
                answer = await client.post(
                    "/api/login",
                    json={"email": "nobody@example.org", "password": "wrong password"},
                    headers={"x-forwarded-for": f"203.0.113.{number}"},
                )
                statuses[peer].append(answer.status_code)

    assert statuses == {"127.0.0.2": [401] * 5 + [429], "127.0.0.3": [401]}


async def test_a_large_message_passes_and_what_is_too_large_is_refused_by_the_server(
    proxied: Proxied,
):
    async with proxied.program() as client:
        refused = await client.post("/v1/responses", json={"input": "a" * 12_000_000})

    assert refused.status_code == 413
    assert "error" in refused.json(), "the server's own words"


def test_the_public_url_is_what_the_example_says():
    assert "KEEPWARM_PUBLIC_URL=https://chat.example.org" in SNIPPET.read_text()
    assert os.access(NGINX, os.X_OK), "apt-get install nginx-light"
