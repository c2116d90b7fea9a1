"""An OpenID provider: where it sends people to, and what it says of them, checked.

Authorization code with PKCE. What the provider publishes of itself is kept for an hour, its keys are
asked for again when it signs with another. Every question has a time and a size. It knows no account.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar
from urllib.parse import quote_plus, urlsplit

import httpx2
import msgspec
import structlog
from authlib.integrations.httpx_client import AsyncOAuth2Client
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import JWKRegistry, KeySet

from app.errors import Unauthenticated, Unavailable

T = TypeVar("T")

log = structlog.get_logger("keepwarm.provider")

FRESH_S = 3600.0
QUIET_S = 5.0
"""After a failure, for so long nobody is made to wait for the next one."""
PATIENCE_S = 10.0
"""For one answer as a whole, however slowly it comes."""
LARGEST_ANSWER = 2**20
LEEWAY_S = 60
"""How far two clocks may be apart."""
LONGEST_SUBJECT = 255  # OpenID Connect Core, 2
SCOPES = "openid email profile"

# Signatures that need the provider's own key: neither "none" nor what our secret could make.
_ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """What the provider says of somebody. Issuer and subject are who it is; the rest may change."""

    issuer: str
    subject: str
    email: str | None
    is_verified: bool
    """Whether the provider knows that the address is theirs."""
    name: str
    words: tuple[str, ...] = ()
    """What it says that they are there, where a claim for that is known."""


class _Metadata(msgspec.Struct, frozen=True):
    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)
    authorization_response_iss_parameter_supported: bool = False


class _Tokens(msgspec.Struct, frozen=True):
    id_token: str
    access_token: str


class _Keys(msgspec.Struct, frozen=True):
    keys: tuple[dict[str, Any], ...]


class Provider:
    """Raises `Unavailable` where it cannot be asked, `Unauthenticated` where it says otherwise."""

    def __init__(
        self,
        issuer: str,
        client_id: str,
        client_secret: str,
        callback_url: str,
        *,
        role_claim: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.issuer = issuer
        self._role_claim = role_claim
        self._client_id = client_id
        # As a form, each part (RFC 6749, 2.3.1): the library does not.
        self._basic = httpx2.BasicAuth(quote_plus(client_id), quote_plus(client_secret))
        self._http = _Client(
            client_id,
            client_secret,
            scope=SCOPES,
            redirect_uri=callback_url,
            code_challenge_method="S256",
            timeout=PATIENCE_S,
            follow_redirects=False,
        )
        self._metadata = _Kept[_Metadata](clock)
        self._keys = _Kept[KeySet](clock)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def address(self, *, state: str, nonce: str, verifier: str) -> str:
        """Where a browser goes to be told apart from everybody else."""
        endpoint = (await self._known()).authorization_endpoint
        url, _ = self._http.create_authorization_url(
            endpoint, state=state, nonce=nonce, code_verifier=verifier
        )
        return str(url)

    async def redeem(
        self, code: str, *, nonce: str, verifier: str, issuer: str | None
    ) -> Statement:
        """What the code stands for. `issuer` is what came with it (RFC 9207)."""
        metadata = await self._known()
        is_named = issuer is not None or metadata.authorization_response_iss_parameter_supported
        if is_named and issuer != self.issuer:
            raise _refused("It came from another provider than it was asked of.")
        tokens = await self._exchange(metadata, code, verifier)
        claims = await self._verified(metadata, tokens.id_token, nonce)
        return self._statement(await self._told(metadata, tokens.access_token, claims) | claims)

    # ------------------------------------------------------------ what comes back for a code

    async def _exchange(self, metadata: _Metadata, code: str, verifier: str) -> _Tokens:
        is_basic = "client_secret_basic" in metadata.token_endpoint_auth_methods_supported
        auth = self._basic if is_basic else self._http.client_auth("client_secret_post")
        async with _asking():
            tokens: _Tokens = await self._http.fetch_token(
                metadata.token_endpoint, code=code, code_verifier=verifier, auth=auth
            )
        return tokens

    async def _verified(self, metadata: _Metadata, id_token: str, nonce: str) -> dict[str, Any]:
        """The claims of an ID token that is for us, of now, and of this very sign-in."""
        try:
            try:
                token = jwt.decode(id_token, await self._signers(metadata), _ALGORITHMS)
            except InvalidKeyIdError:
                # The token came from the provider itself, so nobody else can make us ask for more.
                self._keys.forget()
                token = jwt.decode(id_token, await self._signers(metadata), _ALGORITHMS)
            jwt.JWTClaimsRegistry(
                leeway=LEEWAY_S,
                iss={"essential": True, "value": self.issuer},
                aud={"essential": True, "value": self._client_id},
                sub={"essential": True},
                exp={"essential": True},
                iat={"essential": True},
                nonce={"essential": True, "value": nonce},
            ).validate(token.claims)
        except (JoseError, ValueError) as error:
            raise _refused("Its answer is not one to this question.") from error
        self._check_party(token.claims)
        return token.claims

    def _check_party(self, claims: Mapping[str, Any]) -> None:
        """A token for several must say that we are the one it was given to."""
        audience, party = claims["aud"], claims.get("azp")
        is_shared = isinstance(audience, list) and audience != [self._client_id]
        if (is_shared or party is not None) and party != self._client_id:
            raise _refused("Its answer is for somebody else.")

    async def _told(
        self, metadata: _Metadata, access_token: str, claims: Mapping[str, Any]
    ) -> dict[str, Any]:
        """What else the provider says, where the ID token does not hold it all."""
        wanted = ("email", "email_verified", "name", self._role_claim)
        is_whole = all(claims.get(name) for name in wanted if name is not None)
        if is_whole or metadata.userinfo_endpoint is None:
            return {}
        headers = {"authorization": f"Bearer {access_token}"}
        told = await self._ask(dict[str, Any], metadata.userinfo_endpoint, headers=headers)
        if told.get("sub") != claims["sub"]:
            raise _refused("It speaks of two people.")
        return told

    def _statement(self, claims: Mapping[str, Any]) -> Statement:
        subject, email = claims["sub"], claims.get("email")
        if len(subject) > LONGEST_SUBJECT:
            raise _refused("It calls somebody by too long a name.")
        email = email if isinstance(email, str) and email else None
        names = (claims.get(name) for name in ("name", "preferred_username", "given_name"))
        named = next((name for name in names if isinstance(name, str) and name.strip()), None)
        return Statement(
            issuer=self.issuer,
            subject=subject,
            email=email,
            # As text is how some write it.
            is_verified=email is not None and claims.get("email_verified") in (True, "true"),
            name=named or (email or subject).partition("@")[0],
            words=_words(claims.get(self._role_claim)) if self._role_claim else (),
        )

    # ------------------------------------------------------------ what it publishes

    async def _known(self) -> _Metadata:
        return await self._metadata.get(self._discover)

    async def _discover(self) -> _Metadata:
        url = f"{self.issuer.rstrip('/')}/.well-known/openid-configuration"
        found = await self._ask(_Metadata, url)
        endpoints = (
            found.authorization_endpoint,
            found.token_endpoint,
            found.jwks_uri,
            found.userinfo_endpoint,
        )
        if found.issuer != self.issuer or not all(_is_safe(one) for one in endpoints if one):
            raise _away("It publishes another issuer, or addresses that are not https.")
        return found

    async def _signers(self, metadata: _Metadata) -> KeySet:
        async def fetched() -> KeySet:
            return _key_set((await self._ask(_Keys, metadata.jwks_uri)).keys)

        return await self._keys.get(fetched)

    async def _ask(self, kind: type[T], url: str, *, headers: Mapping[str, str] | None = None) -> T:
        async with _asking():
            answer = await self._http.request("GET", url, headers=headers)
            return msgspec.json.decode(answer.content, type=kind)


class _Client(AsyncOAuth2Client):  # type: ignore[misc]  # it brings no types
    """For its questions and for ours: it reads no answer at length, and keeps nobody's tokens."""

    def parse_response_token(self, resp: httpx2.Response) -> _Tokens:
        """In place of keeping them for its next questions, which may be about somebody else."""
        return msgspec.json.decode(resp.content, type=_Tokens)

    async def request(self, method: str, url: str, **asked: Any) -> httpx2.Response:
        content = bytearray()
        asked["withhold_token"] = True
        async with self.stream(method, url, **asked) as response:
            async for part in response.aiter_bytes():
                content += part
                if len(content) > LARGEST_ANSWER:
                    raise _away("Its answer is too long.")
        if method == "POST" and response.is_client_error:
            raise _refused("It does not know this attempt to sign in.")
        if response.status_code != 200:
            raise _away(f"It answered {response.status_code}.")
        return httpx2.Response(200, content=bytes(content))


@contextlib.asynccontextmanager
async def _asking() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield
    except (httpx2.HTTPError, TimeoutError) as error:
        raise _away("It did not answer.") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _away("Its answer cannot be read.") from error


class _Kept(Generic[T]):
    """One thing that is asked for when it is old; after a failure not at once again."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._asking = asyncio.Lock()
        self._value: T | None = None
        self._until_s = -math.inf

    async def get(self, ask: Callable[[], Awaitable[T]]) -> T:
        async with self._asking:
            if self._clock() >= self._until_s:
                self._value, self._until_s = None, self._clock() + QUIET_S
                self._value = await ask()
                self._until_s = self._clock() + FRESH_S
            if self._value is None:
                raise _away("It did not answer a moment ago.")
            return self._value

    def forget(self) -> None:
        self._until_s = -math.inf


def _words(claim: object) -> tuple[str, ...]:
    """A claim that may be one word or a list of them."""
    several = claim if isinstance(claim, list) else [claim]
    return tuple(one for one in several if isinstance(one, str))


def _key_set(published: Iterable[dict[str, Any]]) -> KeySet:
    """Those that we can use: one of a kind to come does not take the others along."""
    keys = []
    for one in published:
        with contextlib.suppress(JoseError, ValueError, TypeError):
            keys.append(JWKRegistry.import_key(one))
    return KeySet(keys)


def _is_safe(url: str) -> bool:
    """Whether what is sent there is read by nobody on the way."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)


def _refused(why: str) -> Unauthenticated:
    log.warning("refused what a provider says", why=why)
    return Unauthenticated(f"The provider did not sign you in. {why}", code="sign_in_refused")


def _away(why: str) -> Unavailable:
    log.warning("a provider cannot be asked", why=why)
    return Unavailable(
        f"The provider cannot be asked right now. {why}",
        code="provider_unavailable",
        retry_after_s=QUIET_S,
    )
