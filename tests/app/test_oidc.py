"""Signing in by an OpenID provider: a certified one before a whole server, and one that lies."""

import asyncio
import base64
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc.jwk import ECKey, OctKey
from sqlalchemy import func, select

from app.db.base import Database
from app.db.models import Identity, User
from app.db.types import AccountRole
from app.errors import AppError, Forbidden, NotFound, Unauthenticated, Unavailable
from app.people.accounts import Accounts
from app.people.invitations import Invitations
from app.people.logins import FRESH, Logins
from app.people.oidc import Oidc, Reply
from app.people.provider import FRESH_S, LARGEST_ANSWER, QUIET_S, Provider
from app.people.usage import Usage
from app.routes.gate import Gate
from app.settings import Settings
from tests.kit.peers import open_engine
from tests.kit.people import WHERE, Clock, make_ada
from tests.kit.provider import (
    CLIENT_ID,
    CLIENT_SECRET,
    LyingProvider,
    RealProvider,
    lying_provider,
)
from tests.kit.serving import Serving, serving
from tests.kit.staff import boss, done, somebody
from tests.kit.tab import PASSWORD, browser

PUBLIC = "http://keepwarm.test"
"""Where the provider sends people to; a test comes by the server's own port."""
CALLBACK = f"{PUBLIC}/api/oidc/callback"
PEOPLE: dict[str, dict[str, Any]] = {
    "ada": {"email": "Ada@Example.org", "email_verified": True, "name": "Ada L."},
    "ben": {"email": "ben@elsewhere.test", "email_verified": True},
    "eve": {"email": "eve@example.org", "email_verified": False, "name": "Eve"},
    "nobody": {},
}


@pytest.fixture(scope="module")
def provider() -> Iterator[RealProvider]:
    started = RealProvider(PEOPLE)
    started.start(CALLBACK)
    yield started
    started.stop()


@pytest.fixture
def door(tmp_path: Path, database_url: str, provider: RealProvider) -> Iterator[Serving]:
    """Closed but for the invited."""
    settings = provider.settings | {"database_url": database_url, "public_url": PUBLIC}
    with serving(tmp_path, open_engine, **settings) as server:
        yield server


@pytest.fixture
def open_door(tmp_path: Path, database_url: str, provider: RealProvider) -> Iterator[Serving]:
    """Open to the people of one domain."""
    settings = provider.settings | {"database_url": database_url, "public_url": PUBLIC}
    with serving(tmp_path, open_engine, oidc_domains="example.org", **settings) as server:
        yield server


class Visitor:
    """A browser before the page, which is sent to the provider and comes back."""

    def __init__(self, provider: RealProvider, client: httpx.AsyncClient) -> None:
        self.provider = provider
        self.client = client

    async def leave(self, path: str = "/api/oidc", **body: str) -> str:
        answer = await self.client.post(path, json=None if path != "/api/oidc" else body)
        url: str = (await done(answer))["url"]
        return url

    async def come_back(self, url: str) -> str:
        """By what the provider sent; how it went, empty where it went well."""
        answer = await self.client.get(url.removeprefix(PUBLIC))
        self.client.headers["x-csrf-token"] = self.client.cookies["kw_csrf"]
        assert answer.status_code == 303
        assert "kw_errand" not in self.client.cookies, "an errand has one end"
        place, _, outcome = answer.headers["location"].partition("#sign-in=")
        assert place == "/"
        return str(outcome)

    async def sign_in(self, login: str | None, **body: str) -> str:
        url = await self.leave(**body)
        return await self.come_back(await self.provider.send_back(self.client, url, login))

    async def link(self, login: str) -> str:
        url = await self.leave("/api/identities")
        return await self.come_back(await self.provider.send_back(self.client, url, login))

    async def account(self) -> httpx.Response:
        return await self.client.get("/api/account")


@contextlib.asynccontextmanager
async def visitor(server: Serving, provider: RealProvider) -> AsyncIterator[Visitor]:
    async with httpx.AsyncClient(base_url=server.site.url, timeout=60) as client:
        await client.get("/api/account")
        client.headers["x-csrf-token"] = client.cookies["kw_csrf"]
        yield Visitor(provider, client)


async def invited(server: Serving, **body: object) -> str:
    async with boss(server) as admin:
        made = await done(await admin.client.post("/api/invitations", json={"note": "A"} | body))
        token: str = made["token"]
        return token


# ---------------------------------------------------------------- a certified provider


async def test_who_is_invited_comes_in_by_the_provider_and_from_then_on_without_the_link(
    door: Serving, provider: RealProvider
):
    token = await invited(door, role="auditor")
    async with visitor(door, provider) as first, visitor(door, provider) as later:
        offered = await done(await first.client.get("/api/sign-in"))
        outcomes = [await first.sign_in("ada", invitation=token), await later.sign_in("ada")]
        accounts = [await done(await one.account()) for one in (first, later)]
        logins = await done(await later.client.get("/api/logins"))
        await done(await later.client.post("/api/logout"))
        after = await later.account()
    async with visitor(door, provider) as other:
        once = await other.sign_in("ben", invitation=token)

    assert offered == {"provider": "single sign-on"}
    assert outcomes == ["", ""]
    assert accounts[0] == accounts[1]
    assert (accounts[0]["email"], accounts[0]["name"]) == ("ada@example.org", "Ada L.")
    assert accounts[0]["role"] == "auditor"
    assert [one["is_this_one"] for one in logins].count(True) == 1
    assert len(logins) == 2
    assert after.status_code == 401
    assert once == "invalid_link", "a link makes one account"


async def test_who_is_unknown_stays_out_and_leaves_nothing(door: Serving, provider: RealProvider):
    before = door.do(count(door.service.db, User))
    outcomes = []
    for login in ("ada", "nobody"):
        async with visitor(door, provider) as stranger:
            outcomes.append((await stranger.sign_in(login), (await stranger.account()).status_code))

    assert outcomes == [("not_invited", 401)] * 2
    assert door.do(count(door.service.db, User)) == before
    assert door.do(count(door.service.db, Identity)) == 0


async def test_a_domain_is_opened_by_the_settings_for_addresses_that_are_known_to_be_theirs(
    open_door: Serving, provider: RealProvider
):
    outcomes = {}
    for login in ("ada", "ben", "eve", "nobody"):
        async with visitor(open_door, provider) as one:
            outcome = await one.sign_in(login)
            outcomes[login] = outcome, (await one.account()).json().get("role")

    others = dict.fromkeys(("ben", "eve", "nobody"), ("not_invited", None))
    assert outcomes == {"ada": ("", "member")} | others


async def test_an_account_that_is_there_is_linked_by_who_is_signed_in_to_it_and_never_by_address(
    open_door: Serving, provider: RealProvider
):
    service = open_door.service
    user_id = open_door.do(service.accounts.create_user("ada@example.org", "Ada", PASSWORD))
    async with visitor(open_door, provider) as outside:
        refused = await outside.sign_in("ada")
        async with browser(open_door.site, "ada@example.org") as inside:
            ada = Visitor(provider, inside.client)
            linked = [await ada.link("ada"), await ada.link("ada")]
            (identity,) = await done(await inside.client.get("/api/identities"))
        let_in = await outside.sign_in("ada")
        account = await done(await outside.account())
        async with somebody(open_door) as other:
            taken = await Visitor(provider, other.client).link("ada")
            foreign = await other.client.delete(f"/api/identities/{identity['id']}")
        await done(await outside.client.delete(f"/api/identities/{identity['id']}"))
        left = await done(await outside.client.get("/api/identities"))
        again = await outside.sign_in("ada")

    assert refused == "email_taken"
    assert linked == ["", ""], "linking twice is linking once"
    assert (identity["issuer"], identity["label"]) == (provider.issuer, "Ada@Example.org")
    assert let_in == ""
    assert account["id"] == user_id
    assert taken == "identity_taken"
    assert foreign.status_code == 404
    assert left == []
    assert again == "email_taken"


async def test_the_only_way_in_stays(open_door: Serving, provider: RealProvider):
    async with visitor(open_door, provider) as ada:
        await ada.sign_in("ada")
        (identity,) = await done(await ada.client.get("/api/identities"))
        answer = await ada.client.delete(f"/api/identities/{identity['id']}")
        listed = await done(await ada.client.get("/api/identities"))

    assert (answer.status_code, answer.json()["code"]) == (409, "only_way_in")
    assert listed == [identity]


async def test_who_is_disabled_stays_out_and_who_is_removed_is_nobody(
    open_door: Serving, provider: RealProvider
):
    accounts = open_door.service.accounts
    async with visitor(open_door, provider) as ada:
        await ada.sign_in("ada")
        user_id = (await done(await ada.account()))["id"]
        open_door.do(accounts.disable(user_id))
        shut_out = await ada.sign_in("ada")
        answer = await ada.account()
        open_door.do(accounts.remove(user_id))
        new = await ada.sign_in("ada")
        new_id = (await done(await ada.account()))["id"]

    assert (shut_out, answer.status_code) == ("account_disabled", 401)
    assert (new, new_id != user_id) == ("", True)


async def test_who_turns_back_at_the_provider_is_not_signed_in(
    door: Serving, provider: RealProvider
):
    async with visitor(door, provider) as one:
        assert await one.sign_in(None) == "sign_in_denied"


async def test_an_errand_ends_once_and_in_the_browser_that_it_began_in(
    open_door: Serving, provider: RealProvider
):
    async with visitor(open_door, provider) as ada, visitor(open_door, provider) as eve:
        came = await provider.send_back(ada.client, await ada.leave(), "ada")
        stolen = await eve.come_back(came)
        await eve.leave()
        planted = await eve.come_back(came)
        mine = await ada.come_back(came)
        errand = await ada.leave() and ada.client.cookies["kw_errand"]
        state = parse_qs(urlsplit(came).query)["state"][0]
        twice = await ada.come_back(came)
        ada.client.cookies.set("kw_errand", errand[:-3] + "AAA", domain="127.0.0.1", path="/")
        forged = await ada.come_back(f"{CALLBACK}?code=made-up&state={state}")
        answers = [(await one.account()).status_code for one in (ada, eve)]

    assert mine == ""
    assert {stolen, planted, twice, forged} == {"sign_in_expired"}
    assert answers == [200, 401]


async def test_a_code_that_was_used_opens_nothing(open_door: Serving, provider: RealProvider):
    async with visitor(open_door, provider) as ada:
        url = await ada.leave()
        errand = ada.client.cookies["kw_errand"]
        came = await provider.send_back(ada.client, url, "ada")
        first = await ada.come_back(came)
        ada.client.cookies.set("kw_errand", errand, domain="127.0.0.1", path="/")
        second = await ada.client.get(came.removeprefix(PUBLIC))

    assert first == ""
    assert second.headers["location"] == "/#sign-in=sign_in_refused"


async def test_a_link_needs_the_login_that_asked_for_it_to_the_end(
    door: Serving, provider: RealProvider
):
    async with somebody(door) as one:
        visiting = Visitor(provider, one.client)
        came = await provider.send_back(one.client, await visiting.leave("/api/identities"), "ada")
        await done(await one.client.post("/api/logout"))
        outcome = await visiting.come_back(came)

    assert outcome == "sign_in_expired"
    assert door.do(count(door.service.db, Identity)) == 0


async def test_new_keys_of_the_provider_are_taken_up_and_its_absence_is_told(
    open_door: Serving, provider: RealProvider
):
    async with visitor(open_door, provider) as ada:
        before = await ada.sign_in("ada")
        on_its_way = await provider.send_back(ada.client, await ada.leave(), "ada")
        provider.stop()
        away = await ada.come_back(on_its_way)
        provider.start(CALLBACK)
        after = await ada.sign_in("ada")

    assert (before, away, after) == ("", "provider_unavailable", "")


async def test_a_provider_that_never_answered_is_told_calmly(tmp_path: Path):
    settings = {
        "oidc_issuer": "http://127.0.0.1:9",
        "oidc_client_id": "a",
        "oidc_client_secret": "b",
    }
    with serving(tmp_path, open_engine, **settings) as server:
        async with httpx.AsyncClient(base_url=server.site.url, timeout=60) as client:
            await client.get("/api/account")
            token = {"x-csrf-token": client.cookies["kw_csrf"]}
            answer = await client.post("/api/oidc", json={}, headers=token)
            elsewhere = token | {"origin": server.site.url.replace("127.0.0.1", "localhost")}
            other = await client.post("/api/oidc", json={}, headers=elsewhere)

    assert (answer.status_code, answer.json()["code"]) == (503, "provider_unavailable")
    assert answer.headers["retry-after"] == "5"
    assert "set-cookie" not in answer.headers
    assert (other.status_code, other.json()["code"]) == (400, "wrong_address")
    assert server.site.url in other.json()["detail"]


async def test_a_role_follows_what_the_provider_says_at_each_sign_in(
    tmp_path: Path, database_url: str, provider: RealProvider
):
    settings = provider.settings | {"database_url": database_url, "public_url": PUBLIC}
    mapped = {"oidc_role_claim": "groups", "oidc_roles": "keepers=admin, counters=auditor"}
    roles, codes = [], []
    with serving(tmp_path, open_engine, oidc_domains="*", **mapped, **settings) as server:
        async with boss(server), visitor(server, provider) as first:
            for groups in (
                ["others"],
                ["counters", "others"],
                ["keepers", "counters"],
                "keepers",
                [],
            ):
                provider.change("ben", groups=groups)
                async with visitor(server, provider) as again:
                    assert await again.sign_in("ben") == ""
                    roles.append((await done(await again.account()))["role"])
                if len(roles) == 1:
                    assert await first.sign_in("ben") == ""
                codes.append((await first.client.get("/api/users")).status_code)

    assert roles == ["member", "auditor", "admin", "admin", "member"]
    assert codes == [403, 403, 200, 200, 403], "wherever one is signed in already"


async def test_without_a_provider_the_page_offers_none(house: Serving):
    async with httpx.AsyncClient(base_url=house.site.url, timeout=60) as client:
        offered = await done(await client.get("/api/sign-in"))
        client.headers["x-csrf-token"] = client.cookies["kw_csrf"]
        begun = await client.post("/api/oidc", json={})
        back = await client.get("/api/oidc/callback?code=a&state=b")

    assert offered == {"provider": None}
    assert (begun.status_code, begun.json()["code"]) == (404, "no_provider")
    assert back.headers["location"] == "/#sign-in=sign_in_expired"


def test_the_errand_comes_back_from_another_site_and_is_bound_to_the_host(tmp_path: Path):
    settings = Settings(data_dir=tmp_path, public_url="https://chat.example.org")
    nothing: Any = None  # cookies ask no accounts
    gate = Gate(settings, nothing, nothing, nothing, usage=Usage(nothing, nothing))

    cookie = gate.errand_cookie("sealed", max_age_s=600).to_header(header="")

    assert cookie.startswith("__Host-kw_errand=")
    assert {"Secure", "HttpOnly", "SameSite=lax", "Path=/"} <= set(cookie.split("; "))


async def count(db: Database, table: type[Identity | User]) -> int:
    async with db.read() as session:
        return await session.scalar(select(func.count()).select_from(table)) or 0


# ---------------------------------------------------------------- one that lies


@pytest.fixture
def liar() -> Iterator[LyingProvider]:
    with lying_provider() as started:
        yield started


@pytest.fixture
async def asked(liar: LyingProvider, clock: Clock) -> AsyncIterator[Provider]:
    async with contextlib.aclosing(
        Provider(liar.issuer, CLIENT_ID, CLIENT_SECRET, CALLBACK, clock=clock.seconds)
    ) as provider:
        yield provider


def forged(key: Any, alg: str) -> Any:
    def forge(liar: LyingProvider) -> None:
        liar.key, liar.header = key, {"alg": alg, "kid": "one"}

    return forge


def claims(**changes: Any) -> Any:
    def lie(liar: LyingProvider) -> None:
        liar.claims |= changes
        for name in [name for name, value in changes.items() if value is None]:
            del liar.claims[name]

    return lie


LIES = {
    "another issuer": claims(iss="https://evil.example"),
    "another audience": claims(aud="other"),
    "no audience": claims(aud=None),
    "several audiences and no party": claims(aud=[CLIENT_ID, "other"]),
    "another party": claims(azp="other"),
    "another party of several": claims(aud=[CLIENT_ID, "other"], azp="other"),
    "over": claims(exp=1),
    "never over": claims(exp=float("nan")),
    "no end": claims(exp=None),
    "of the future": claims(iat=2**40),
    "another nonce": claims(nonce="other"),
    "no nonce": claims(nonce=None),
    "nobody": claims(sub=None),
    "a number": claims(sub=7),
    "a long name": claims(sub="a" * 256),
    "another key": forged(ECKey.generate_key("P-256", {"kid": "one"}), "ES256"),
    "our own secret": forged(OctKey.import_key(CLIENT_SECRET), "HS256"),
    "no signature": forged(OctKey.generate_key(256), "none"),
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_token_that_is_not_for_us_now_and_this_sign_in_is_refused(
    asked: Provider, liar: LyingProvider, lie: str
):
    liar.claims = liar.honest("n")
    LIES[lie](liar)

    with pytest.raises(Unauthenticated) as refused:
        await asked.redeem("code", nonce="n", verifier="v", issuer=None)

    assert refused.value.code == "sign_in_refused"


async def test_what_is_asked_is_asked_as_the_standards_say_and_once_an_hour(
    asked: Provider, liar: LyingProvider, clock: Clock
):
    url = await asked.address(state="s", nonce="n", verifier="v")
    liar.claims = liar.honest("n") | {"azp": CLIENT_ID, "aud": [CLIENT_ID]}
    await asked.redeem("a code", nonce="n", verifier="v", issuer=None)
    said = await asked.redeem("a code", nonce="n", verifier="v", issuer=liar.issuer)
    before = list(liar.asked)
    clock.now += timedelta(seconds=FRESH_S)
    await asked.redeem("a code", nonce="n", verifier="v", issuer=None)

    query = parse_qs(urlsplit(url).query)
    challenge = base64.urlsafe_b64encode(hashlib.sha256(b"v").digest()).rstrip(b"=").decode()
    assert url.startswith(f"{liar.issuer}/authorize?of=it&")
    assert query["code_challenge_method"] == ["S256"]
    assert query["code_challenge"] == [challenge]
    assert (query["state"], query["nonce"], query["redirect_uri"]) == (["s"], ["n"], [CALLBACK])
    assert liar.forms[0]["code_verifier"] == ["v"]
    assert "client_secret" not in liar.forms[0]
    basic = base64.b64decode((liar.credentials[0] or "").removeprefix("Basic ")).decode()
    assert basic == "keepwarm:a+secret%3A+with+%26+signs"
    assert (said.subject, said.email, said.is_verified) == ("1", "ada@example.org", True)
    assert [before.count(path) for path in ("/token", "/keys")] == [2, 1]
    assert before.count("/.well-known/openid-configuration") == 1
    assert [liar.asked.count(path) for path in ("/token", "/keys")] == [3, 2]


async def test_a_secret_goes_into_the_form_where_the_provider_wants_it_there(
    asked: Provider, liar: LyingProvider
):
    liar.metadata["token_endpoint_auth_methods_supported"] = ["client_secret_post"]
    liar.claims = liar.honest("n")

    await asked.redeem("code", nonce="n", verifier="v", issuer=None)

    assert liar.forms[0]["client_secret"] == [CLIENT_SECRET]
    assert liar.credentials == [None]


async def test_what_the_token_lacks_is_asked_for_and_must_be_of_the_same_person(
    asked: Provider, liar: LyingProvider
):
    liar.claims = liar.honest("n")
    del liar.claims["email"], liar.claims["email_verified"], liar.claims["name"]
    liar.userinfo = {"sub": "1", "email": "ada@b", "email_verified": "true", "name": " "}
    said = await asked.redeem("code", nonce="n", verifier="v", issuer=None)
    liar.userinfo["sub"] = "2"
    with pytest.raises(Unauthenticated):
        await asked.redeem("code", nonce="n", verifier="v", issuer=None)

    assert (said.email, said.is_verified, said.name) == ("ada@b", True, "ada")


async def test_an_answer_of_another_provider_is_refused_before_its_code_is_used(
    asked: Provider, liar: LyingProvider
):
    liar.metadata["authorization_response_iss_parameter_supported"] = True
    for issuer in ("https://evil.example", None):
        with pytest.raises(Unauthenticated):
            await asked.redeem("code", nonce="n", verifier="v", issuer=issuer)

    assert "/token" not in liar.asked


async def test_keys_that_nobody_can_use_do_not_take_the_others_along(
    asked: Provider, liar: LyingProvider
):
    liar.claims = liar.honest("n")
    liar.published = [{"kty": "AKP", "kid": "new"}, {"kty": "EC", "crv": "?"}, {}, *liar.published]

    await asked.redeem("code", nonce="n", verifier="v", issuer=None)


async def test_nobodys_token_is_shown_but_for_what_is_said_of_them(
    asked: Provider, liar: LyingProvider, clock: Clock
):
    liar.claims = liar.honest("n")
    del liar.claims["name"]
    liar.userinfo = {"sub": "1"}
    for _ in range(2):
        await asked.redeem("code", nonce="n", verifier="v", issuer=None)
        clock.now += timedelta(seconds=FRESH_S)

    assert liar.shown == [(WELL_KNOWN, None), ("/keys", None), ("/userinfo", "Bearer a")] * 2


async def test_what_is_said_of_a_token_and_not_needed_may_be_anything(
    asked: Provider, liar: LyingProvider
):
    liar.claims = liar.honest("n")
    odd = {"id_token": liar.id_token, "access_token": "a", "expires_in": "soon", "error": None}
    liar.instead["/token"] = 200, json.dumps(odd | {"expires_at": {}}).encode()

    await asked.redeem("code", nonce="n", verifier="v", issuer=None)


WELL_KNOWN = "/.well-known/openid-configuration"
TOO_DEEP = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
TOO_LONG = b" " * (LARGEST_ANSWER + 1)


@pytest.mark.parametrize(
    ("path", "status", "body"),
    [
        (WELL_KNOWN, 500, b"{}"),
        (WELL_KNOWN, 302, b""),
        (WELL_KNOWN, 200, b"<html>"),
        (WELL_KNOWN, 200, b"[]"),
        (WELL_KNOWN, 200, b"\xff" * 10),
        (WELL_KNOWN, 200, TOO_DEEP),
        (WELL_KNOWN, 200, TOO_LONG),
        ("/token", 503, b""),
        ("/token", 302, b"{}"),
        ("/token", 200, b"<html>"),
        ("/token", 200, TOO_DEEP),
        ("/token", 200, TOO_LONG),
        ("/token", 200, b'{"access_token": "a"}'),
        ("/keys", 404, b""),
        ("/keys", 200, b'{"keys": 3}'),
    ],
)
async def test_an_answer_that_cannot_be_used_is_told_calmly(
    asked: Provider, liar: LyingProvider, *, path: str, status: int, body: bytes
):
    liar.claims = liar.honest("n")
    liar.instead[path] = status, body

    with pytest.raises(Unavailable) as refused:
        await asked.redeem("code", nonce="n", verifier="v", issuer=None)

    assert refused.value.code == "provider_unavailable"
    assert refused.value.retry_after_s == QUIET_S


@pytest.mark.parametrize("path", [WELL_KNOWN, "/token"])
async def test_an_answer_is_too_long_however_it_is_packed(
    asked: Provider, liar: LyingProvider, path: str
):
    liar.claims = liar.honest("n")
    liar.is_packed = True
    await asked.address(state="s", nonce="n", verifier="v")
    asked._metadata.forget()
    liar.instead[path] = 200, TOO_LONG

    with pytest.raises(Unavailable, match="too long"):
        await asked.redeem("code", nonce="n", verifier="v", issuer=None)


@pytest.mark.parametrize("path", [WELL_KNOWN, "/token"])
async def test_an_answer_has_a_time_however_often_something_comes(
    asked: Provider, liar: LyingProvider, monkeypatch: pytest.MonkeyPatch, path: str
):
    await asked.address(state="s", nonce="n", verifier="v")
    asked._metadata.forget()
    liar.claims = liar.honest("n")
    monkeypatch.setattr("app.people.provider.PATIENCE_S", 0.5)
    liar.endless = path

    with pytest.raises(Unavailable, match="did not answer"):
        await asked.redeem("code", nonce="n", verifier="v", issuer=None)


@pytest.mark.parametrize("status", [400, 401, 429])
@pytest.mark.parametrize("body", [b"", b"{}", b'{"error": "invalid_grant"}', b"<html>"])
async def test_a_code_that_the_provider_does_not_take_is_refused(
    asked: Provider, liar: LyingProvider, status: int, body: bytes
):
    liar.instead["/token"] = status, body

    with pytest.raises(Unauthenticated) as refused:
        await asked.redeem("code", nonce="n", verifier="v", issuer=None)

    assert refused.value.code == "sign_in_refused"


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://evil.example"},
        {"token_endpoint": "http://evil.example/token"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"userinfo_endpoint": "file:///etc/passwd"},
    ],
)
async def test_a_provider_that_names_others_is_not_followed(
    asked: Provider, liar: LyingProvider, clock: Clock, metadata: dict[str, str]
):
    honest = dict(liar.metadata)
    liar.metadata |= metadata
    for _ in range(2):
        with pytest.raises(Unavailable):
            await asked.address(state="s", nonce="n", verifier="v")
    liar.metadata = honest
    clock.now += timedelta(seconds=QUIET_S)

    await asked.address(state="s", nonce="n", verifier="v")

    assert liar.asked == [WELL_KNOWN] * 2, "after a failure nobody asks again at once"


# ---------------------------------------------------------------- at the lock of the other doors


@pytest.fixture
def oidc(db: Database, logins: Logins, invitations: Invitations, asked: Provider) -> Oidc:
    return Oidc(db, logins, invitations, provider=asked, domains="*")


async def arrive(
    oidc: Oidc, liar: LyingProvider, invitation: str | None = None, **more: object
) -> Any:
    """One after another up to the token, which has to have its nonce; then at once."""
    sent = await oidc.begin(invitation)
    query = parse_qs(urlsplit(sent.url).query)
    liar.claims = liar.honest(query["nonce"][0]) | more
    reply = Reply(state=query["state"][0], code="code")
    return await oidc.finish(sent.sealed, reply, **WHERE)


@pytest.mark.row("CVE-2026-45675")
async def test_nobody_becomes_the_first_admin_by_a_provider(
    db: Database, invitations: Invitations, oidc: Oidc, liar: LyingProvider
):
    token = await invitations.first_admin_link()

    with pytest.raises(Forbidden) as refused:
        await arrive(oidc, liar, token)
    await arrive(oidc, liar)

    async with db.read() as session:
        roles = list(await session.scalars(select(User.role)))
    assert refused.value.code == "needs_password"
    assert roles == [AccountRole.MEMBER]
    assert token is not None
    await invitations.accept(token, "root@example.org", "Root", "a long password")


@pytest.mark.row("admin bootstrap", "CVE-2026-45675")
async def test_a_provider_makes_no_first_admin_and_takes_the_last_one_away_from_nobody(
    db: Database, logins: Logins, invitations: Invitations, liar: LyingProvider
):
    accounts = invitations.accounts
    provider = Provider(liar.issuer, CLIENT_ID, CLIENT_SECRET, CALLBACK, role_claim="roles")
    oidc = Oidc(
        db, logins, invitations, provider=provider, domains="*", roles="root=admin,aud=auditor"
    )
    async with contextlib.aclosing(oidc):

        async def role(*words: str) -> AccountRole:
            signed_in = await arrive(oidc, liar, roles=[*words])
            found: AccountRole = signed_in.principal.role
            return found

        before = await role("root")
        first_id = await accounts.create_user("root@example.org", "R", PASSWORD, AccountRole.ADMIN)
        then = await role("root")
        await accounts.disable(first_id)
        last = await role("aud")
        await accounts.enable(first_id)
        moved = await role("aud")

    assert (before, then) == (AccountRole.MEMBER, AccountRole.ADMIN)
    assert (last, moved) == (AccountRole.ADMIN, AccountRole.AUDITOR)


async def test_of_many_browsers_of_one_person_at_once_one_makes_the_account(
    db: Database, oidc: Oidc, liar: LyingProvider, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("app.people.oidc.new_secret", lambda: "the same")
    liar.claims = liar.honest("the same")

    async def come() -> Any:
        sent = await oidc.begin()
        return await oidc.finish(sent.sealed, Reply(state="the same", code="code"), **WHERE)

    signed_in = await asyncio.gather(*(come() for _ in range(20)))

    assert len({one.principal.user_id for one in signed_in}) == 1
    assert len({one.token for one in signed_in}) == 20
    assert await count(db, User) == await count(db, Identity) == 1


async def test_an_errand_is_over_after_ten_minutes(oidc: Oidc, liar: LyingProvider, clock: Clock):
    sent = await oidc.begin()
    state = parse_qs(urlsplit(sent.url).query)["state"][0]
    clock.now += timedelta(minutes=10)

    with pytest.raises(Unauthenticated) as refused:
        await oidc.finish(sent.sealed, Reply(state=state, code="code"), **WHERE)

    assert refused.value.code == "sign_in_expired"
    assert "/token" not in liar.asked


async def test_made_up_replies_have_to_wait(oidc: Oidc):
    refusals = []
    for _ in range(40):
        with pytest.raises(AppError) as refused:
            await oidc.finish("made up", Reply(state="a", code="b"), **WHERE)
        refusals.append(refused.value.code)

    assert refusals == ["sign_in_expired"] * 30 + ["rate_limit_exceeded"] * 10


async def test_who_came_by_a_provider_has_no_password_to_guess(
    accounts: Accounts, logins: Logins, oidc: Oidc, liar: LyingProvider
):
    signed_in = await arrive(oidc, liar)

    for password in ("", "a long password"):
        with pytest.raises(Unauthenticated):
            await logins.login("ada@example.org", password, **WHERE)
    with pytest.raises(Forbidden):
        await logins.confirm(signed_in.principal, "")


async def test_who_has_no_password_leaves_for_good_by_signing_in_anew(
    accounts: Accounts, logins: Logins, oidc: Oidc, *, liar: LyingProvider, clock: Clock
):
    stale = (await arrive(oidc, liar)).principal
    clock.now += FRESH + timedelta(seconds=1)
    fresh = (await arrive(oidc, liar)).principal

    with pytest.raises(Forbidden) as refused:
        await logins.make_sure(stale, None)
    clock.now -= timedelta(seconds=1)
    with pytest.raises(Forbidden):
        await logins.make_sure(fresh, None)  # it came in later than now is
    clock.now += timedelta(seconds=1)
    await logins.make_sure(fresh, None)

    assert refused.value.code == "login_too_old"
    assert not (await accounts.account(fresh.user_id)).has_password


async def test_an_identity_is_nobody_elses_to_list_or_unlink(
    accounts: Accounts, oidc: Oidc, liar: LyingProvider
):
    user_id = await make_ada(accounts)
    liar_user = {"email": "other@example.org"}
    sent = await oidc.begin()
    query = parse_qs(urlsplit(sent.url).query)
    liar.claims = liar.honest(query["nonce"][0]) | liar_user
    reply = Reply(state=query["state"][0], code="code")
    signed_in = await oidc.finish(sent.sealed, reply, **WHERE)
    assert signed_in is not None
    (identity,) = await oidc.list(signed_in.principal.user_id)

    assert await oidc.list(user_id) == []
    with pytest.raises(NotFound):
        await oidc.unlink(user_id, identity.id)
