"""Behind a proxy: whose address counts when a password is guessed, and what cookies say over https.

The loopback network has many addresses: a test connects from whichever it wants to be.
"""

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from http.cookies import Morsel, SimpleCookie

import httpx
import pytest
from websockets.asyncio.client import connect

from app.people.throttle import Throttle
from engine.api import Engine
from tests.kit.echo import EchoEngine
from tests.kit.serving import Serving, serving

PROXY, STRANGER = "127.0.0.2", "127.0.0.3"
PUBLIC = "https://chat.example.org"
PASSWORD = "a quiet word"
FREE = 5
"""Guesses at one account from one address that cost no time."""


async def open_engine() -> Engine:
    return EchoEngine()


@pytest.fixture(scope="module")
def behind_https(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Believes one proxy, which is not the one that a web server believes by itself."""
    folder = tmp_path_factory.mktemp("proxied")
    settings = {"trusted_proxies": PROXY, "public_url": PUBLIC}
    with serving(folder, open_engine, **settings) as server:
        # Where no time passes nobody has waited, however slow the machine is.
        server.service.logins._throttle = Throttle(lambda: 0.0)
        yield server


@pytest.fixture
def email(behind_https: Serving, request: pytest.FixtureRequest) -> str:
    """An account of this test's own."""
    address = f"{abs(hash(request.node.name))}@example.org"
    accounts = behind_https.service.accounts
    behind_https.do(accounts.create_user(address, "Somebody", PASSWORD))
    return address


@contextlib.asynccontextmanager
async def visitor(server: Serving, peer: str) -> AsyncIterator[httpx.AsyncClient]:
    """Our page as the server sees it through `peer`: with the token, with no login."""
    road = httpx.AsyncHTTPTransport(local_address=peer)
    headers = {
        "host": "chat.example.org",
        "origin": PUBLIC,
        "cookie": "kw_csrf=token",
        "x-csrf-token": "token",
    }
    async with httpx.AsyncClient(
        base_url=server.site.url, transport=road, headers=headers, timeout=60
    ) as client:
        yield client


async def sign_in(
    client: httpx.AsyncClient, email: str, password: str, *forwarded: str
) -> httpx.Response:
    told = [("x-forwarded-for", one) for one in forwarded]
    return await client.post(
        "/api/login", json={"email": email, "password": password}, headers=[*told]
    )


async def guesses(client: httpx.AsyncClient, email: str, *forwarded: Sequence[str]) -> list[int]:
    """One wrong password for each list of forwarding headers; the statuses."""
    answers = [await sign_in(client, email, "wrong password", *one) for one in forwarded]
    return [answer.status_code for answer in answers]


# ---------------------------------------------------------------- whose guesses


async def test_a_believed_proxys_visitors_are_told_apart(behind_https: Serving, email: str):
    async with visitor(behind_https, PROXY) as proxy:
        guesser = await guesses(proxy, email, *[["198.51.100.7"]] * (FREE + 1))
        another = await sign_in(proxy, email, "wrong password", "198.51.100.8")
        owner = await sign_in(proxy, email, PASSWORD, "198.51.100.9")

    assert guesser == [401] * FREE + [429]
    assert another.status_code == 401
    assert owner.status_code == 200


async def test_a_visitor_cannot_put_on_another_address_before_the_proxys(
    behind_https: Serving, email: str
):
    spoofed = [[f"203.0.113.{n}, 198.51.100.7"] for n in range(3)]
    doubled = [[f"203.0.113.{n}", "198.51.100.7"] for n in range(3, FREE + 1)]
    async with visitor(behind_https, PROXY) as proxy:
        statuses = await guesses(proxy, email, *spoofed, *doubled)

    assert statuses == [401] * FREE + [429]


@pytest.mark.parametrize("peer", ["127.0.0.1", STRANGER])
async def test_a_peer_that_is_no_believed_proxy_cannot_name_an_address(
    behind_https: Serving, email: str, peer: str
):
    invented = [[f"203.0.113.{n}"] for n in range(FREE + 1)]
    async with visitor(behind_https, peer) as client, visitor(behind_https, PROXY) as proxy:
        statuses = await guesses(client, email, *invented)
        owner = await sign_in(proxy, email, PASSWORD, "203.0.113.0")

    assert statuses == [401] * FREE + [429]
    assert owner.status_code == 200, "nobody is shut out from an address that was invented"


async def test_one_address_has_so_many_guesses_at_all_accounts_and_its_neighbour_others(
    behind_https: Serving,
):
    async with visitor(behind_https, PROXY) as proxy:
        tried = [
            (await guesses(proxy, f"nobody{n}@example.org", ["198.51.100.20"]))[0]
            for n in range(31)
        ]
        neighbour = await guesses(proxy, "nobody@example.org", ["198.51.100.21"])

    assert tried == [401] * 30 + [429]
    assert neighbour == [401]


# ---------------------------------------------------------------- cookies


def cookies(answer: httpx.Response) -> dict[str, "Morsel[str]"]:
    found: dict[str, Morsel[str]] = {}
    for line in answer.headers.get_list("set-cookie"):
        found |= SimpleCookie(line)
    return found


async def test_over_https_every_cookie_is_secure_and_of_this_host_and_site_alone(
    behind_https: Serving, email: str
):
    async with visitor(behind_https, PROXY) as proxy:
        planted = cookies(await proxy.get("/", headers={"cookie": ""}))
        granted = cookies(await sign_in(proxy, email, PASSWORD))
        login = granted["__Host-kw_session"]
        session = f"kw_csrf=token; __Host-kw_session={login.value}"
        ended = cookies(await proxy.post("/api/logout", headers={"cookie": session}))

    assert (set(planted), set(granted)) == ({"kw_csrf"}, {"kw_csrf", "__Host-kw_session"})
    for cookie in (*planted.values(), *granted.values(), *ended.values()):
        assert cookie["secure"]
        assert cookie["samesite"].lower() == "strict"
        assert (cookie["path"], cookie["domain"]) == ("/", "")
    assert login["httponly"]
    assert not granted["kw_csrf"]["httponly"], "our page reads it"
    assert int(login["max-age"]) > 0
    assert (ended["__Host-kw_session"].value.strip('"'), ended["__Host-kw_session"]["max-age"]) == (
        "",
        "0",
    )


async def test_over_https_a_socket_opens_with_the_login_and_the_public_origin(
    behind_https: Serving, email: str
):
    async with visitor(behind_https, PROXY) as proxy:
        login = cookies(await sign_in(proxy, email, PASSWORD))["__Host-kw_session"]
    cookie = {"Cookie": f"__Host-kw_session={login.value}"}

    address = f"{behind_https.site.ws_url}/ws"
    async with connect(
        address,
        additional_headers=cookie,
        origin=PUBLIC,  # type: ignore[arg-type]
        open_timeout=60,
    ) as opened:
        assert opened.response is not None
        assert opened.response.status_code == 101
