"""Who comes in: Host and Origin, cookie or key -> principal, limits at the handshake.

The browser comes with a cookie and must come from our own page: exact Origin on sockets, Origin and
the double-submitted token on whatever changes something. Programs come with a key and nothing else.
It decides; `problems` finds the words' form, `people` knows the accounts.
"""

import asyncio
import hmac
import ipaddress
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

from litestar.connection import ASGIConnection
from litestar.datastructures import Cookie
from litestar.enums import RequestEncodingType, ScopeType
from litestar.handlers import BaseRouteHandler
from litestar.params import BodyKwarg
from litestar.types import Guard

from app.db.types import AccountRole, AuditDoor, KeyScope, QuotaKind
from app.errors import Forbidden, InvalidRequest, TooMany, Unauthenticated, Unavailable
from app.ids import UserId
from app.people.accounts import Principal
from app.people.audit import Actor, act_as
from app.people.keys import Keys, bearer
from app.people.logins import Logins
from app.people.quotas import refusal
from app.people.rates import one_line
from app.people.rights import Rights
from app.people.usage import Usage
from app.settings import Settings

Connection = ASGIConnection[Any, Any, Any, Any]
Check = Callable[[Connection], Awaitable[None]]
Subject = TypeVar("Subject", UserId, str)

CSRF_COOKIE = "kw_csrf"
CSRF_HEADER = "x-csrf-token"
SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class Hosts:
    """The names we answer to, and the origins that are our own page."""

    def __init__(self, settings: Settings) -> None:
        public = urlsplit(settings.public_url)
        names = {*LOOPBACK, _bracketed(settings.host), _bracketed(public.hostname or "")}
        self.public = _origin(public.scheme, _bracketed(public.hostname or ""), public.port)
        self.secure = public.scheme == "https"
        self._names = names
        self._origins = {self.public} | {
            _origin("http", name, settings.port) for name in (*LOOPBACK, _bracketed(settings.host))
        }

    def knows(self, host: str) -> bool:
        """Whether a Host header names us, with any port: a name that is not ours is rebinding."""
        return _name(host) in self._names

    def owns(self, origin: str | None) -> bool:
        """Exact scheme, host and port: cookies do not tell ports apart, origins do."""
        return origin is not None and origin.lower() in self._origins


def _origin(scheme: str, name: str, port: int | None) -> str:
    """As a browser writes it: without the scheme's own port."""
    is_default = port in (None, {"http": 80, "https": 443}[scheme])
    return f"{scheme}://{name}" if is_default else f"{scheme}://{name}:{port}"


def _bracketed(host: str) -> str:
    """An IPv6 address as it stands in a URL."""
    try:
        is_v6 = ipaddress.ip_address(host).version == 6
    except ValueError:
        is_v6 = False
    return f"[{host}]" if is_v6 else host.lower()


def _takes_json(connection: Connection) -> bool:
    field = connection.route_handler.parsed_data_field
    given = field.kwarg_definition if field else None
    return isinstance(given, BodyKwarg) and given.media_type is RequestEncodingType.JSON


def _is_json(connection: Connection) -> bool:
    """A form of another site is text or a form: a browser asks before it sends JSON elsewhere."""
    kind, _, _ = connection.headers.get("content-type", "").partition(";")
    return kind.strip().lower() == "application/json"


def _name(host: str) -> str:
    """A Host header without its port."""
    if host.startswith("["):
        return host.partition("]")[0].lower() + "]"
    return host.partition(":")[0].lower()


def _address(connection: Connection) -> str:
    """Whose it is, as trusted proxies tell."""
    return one_line(connection.client.host) if connection.client else ""


@contextmanager
def _counted(counts: dict[Subject, int], subject: Subject) -> Iterator[None]:
    counts[subject] = counts.get(subject, 0) + 1
    try:
        yield
    finally:
        counts[subject] -= 1
        if not counts[subject]:
            del counts[subject]


def chatting(principal: Principal) -> Principal:
    """Raises `Forbidden`."""
    if not principal.may_chat:
        raise Forbidden("This account looks at figures and does not chat.")
    return principal


def seeing_figures(principal: Principal) -> Principal:
    """Raises `Forbidden`."""
    if not principal.sees_figures:
        raise Forbidden("This is for administrators and auditors.")
    return principal


def guard(check: Check) -> Guard:
    """A check as Litestar wants it. It copies guards deeply, all but plain functions."""

    async def guarded(connection: Connection, _: BaseRouteHandler) -> None:
        await check(connection)

    return guarded


class Gate:
    """One per server. Its checks raise `AppError`s and change nothing."""

    def __init__(
        self, settings: Settings, logins: Logins, keys: Keys, rights: Rights, *, usage: Usage
    ) -> None:
        self.rights = rights
        self._usage = usage
        self._per_address = settings.sockets_per_address
        self._addresses: dict[str, int] = {}
        self.hosts = Hosts(settings)
        prefix = "__Host-" if self.hosts.secure else ""
        self.session_cookie = f"{prefix}kw_session"
        self.errand_name = f"{prefix}kw_errand"
        self._logins = logins
        self._keys = keys
        self._seats = usage.seats
        self.closing = asyncio.Event()
        """Set when the server stops and every turn has come to rest: sockets close."""
        self._stopping = False

    # ------------------------------------------------------------ guards of HTTP routes

    async def by_cookie(self, connection: Connection) -> None:
        """For what everybody has: an account."""
        connection.scope["user"] = await self._signed_in(connection)

    async def by_member(self, connection: Connection) -> None:
        """For the browser's routes to conversations and the library."""
        connection.scope["user"] = chatting(await self._signed_in(connection))

    async def by_admin(self, connection: Connection) -> None:
        """For what concerns other people."""
        principal = await self._signed_in(connection)
        if principal.role is not AccountRole.ADMIN:
            raise Forbidden("This is for administrators.")
        connection.scope["user"] = principal

    async def by_figures(self, connection: Connection) -> None:
        """For the page's view of what is counted over all users."""
        connection.scope["user"] = seeing_figures(await self._signed_in(connection))

    async def by_key(self, connection: Connection) -> None:
        """For the dialect's routes. A socket's handler asks for itself, to refuse with a body."""
        if connection.scope["type"] == ScopeType.HTTP:
            reads = connection.scope.get("method") in SAFE_METHODS
            scope = KeyScope.READ if reads else KeyScope.WRITE
            connection.scope["user"] = chatting(await self._key(connection, scope))

    async def by_figures_key(self, connection: Connection) -> None:
        """For what is counted over all users."""
        principal = await self._key(connection, KeyScope.FIGURES)
        if not principal.sees_figures:
            raise Forbidden("This needs an administrator's or an auditor's key.")
        connection.scope["user"] = principal

    async def own_page(self, connection: Connection) -> None:
        """A change is asked for by our own page: its Origin, and the token only it can read."""
        if connection.scope.get("method") in SAFE_METHODS:
            return
        origin = connection.headers.get("origin")
        if origin is not None and not self.hosts.owns(origin):
            raise Forbidden("This request does not come from Keepwarm's own page.", code="origin")
        cookie = connection.cookies.get(CSRF_COOKIE, "")
        header = connection.headers.get(CSRF_HEADER, "")
        if not cookie or not hmac.compare_digest(cookie.encode(), header.encode()):
            raise Forbidden(
                f"Send the value of the cookie {CSRF_COOKIE} in the header {CSRF_HEADER}.",
                code="csrf",
                field=CSRF_HEADER,
            )
        if _takes_json(connection) and not _is_json(connection):
            raise InvalidRequest("Send it as application/json.", field="content-type")

    # ------------------------------------------------------------ who

    async def browser(self, connection: Connection, before: Principal | None = None) -> Principal:
        """Who is behind a page's socket; what they may say there follows from their role.

        Who was let in `before` comes in anew where they chat no more, or may chat now: they hear
        other things then. Raises `Unauthenticated`, `Forbidden`, `InvalidRequest`.
        """
        if not self.hosts.owns(connection.headers.get("origin")):
            raise Forbidden("This socket is for Keepwarm's own page only.", code="origin")
        found = await self._signed_in(connection)
        if before is not None and found.may_chat is not before.may_chat:
            raise Forbidden("Your role was changed meanwhile; connect again.")
        return found

    async def bearer(self, connection: Connection) -> Principal:
        """The member behind a program's socket.

        Raises `Unauthenticated`, `Forbidden`, `InvalidRequest`.
        """
        return chatting(await self._key(connection, KeyScope.WRITE))

    async def again(self, connection: Connection, principal: Principal) -> Principal:
        """Who came in by HTTP, found anew. Raises `Unauthenticated` and `Forbidden`.

        Also where the role is another: what is being answered was asked for under the old one.
        """
        if principal.via == "login":
            found = await self._signed_in(connection)
        else:
            found = await self._key(connection)
        if found.role is not principal.role:
            raise Forbidden("Your role was changed meanwhile; ask again.")
        return found

    async def _signed_in(self, connection: Connection) -> Principal:
        token = connection.cookies.get(self.session_cookie)
        if token is None:
            raise Unauthenticated("Sign in first.")
        self._refuse_both(connection)
        principal = await self._logins.resolve(token)
        act_as(Actor(user_id=principal.user_id, door=AuditDoor.LOGIN))
        return principal

    async def _key(self, connection: Connection, scope: KeyScope | None = None) -> Principal:
        self._refuse_both(connection)
        principal = await self._keys.resolve(bearer(connection.headers.get("authorization")))
        if scope is not None and scope not in principal.scopes:
            raise Forbidden(f"This needs a key with the scope `{scope}`.", code="missing_scope")
        act_as(Actor(user_id=principal.user_id, door=AuditDoor.KEY))
        return principal

    def _refuse_both(self, connection: Connection) -> None:
        if self.session_cookie in connection.cookies and "authorization" in connection.headers:
            raise InvalidRequest(
                "Send a session cookie or an API key, not both.", code="two_credentials"
            )

    # ------------------------------------------------------------ sockets

    def knock(self, connection: Connection) -> None:
        """Before anything is looked up for a handshake. Raises `TooMany`, `Unavailable`."""
        self.refuse_when_stopping()
        self._usage.knocks(_address(connection))

    @asynccontextmanager
    async def seat(self, connection: Connection, principal: Principal) -> AsyncIterator[None]:
        """One of the sockets that a user and an address may have open. Raises `TooMany`."""
        user_id, address = principal.user_id, _address(connection)
        self._usage.opens(user_id)
        quotas = self._usage.quotas
        allowed = await quotas.allowed(user_id, QuotaKind.SOCKETS)
        if allowed is not None and self._seats.get(user_id, 0) >= allowed:
            raise refusal(QuotaKind.SOCKETS, allowed, quotas.now())
        if self._addresses.get(address, 0) >= self._per_address:
            raise TooMany(
                f"{self._per_address} sockets are open from this address; close one first.",
                retry_after_s=5.0,
            )
        with _counted(self._seats, user_id), _counted(self._addresses, address):
            yield

    @property
    def open_sockets(self) -> int:
        return sum(self._seats.values())

    def stop(self) -> None:
        """Let no new socket in."""
        self._stopping = True

    def refuse_when_stopping(self) -> None:
        if self._stopping:
            raise Unavailable("The server is stopping.", retry_after_s=5.0)

    # ------------------------------------------------------------ cookies

    def login_cookie(self, token: str, max_age_s: int) -> Cookie:
        return Cookie(
            key=self.session_cookie,
            value=token,
            path="/",
            max_age=max_age_s,
            httponly=True,
            secure=self.hosts.secure,
            samesite="strict",
        )

    def csrf_cookie(self) -> Cookie:
        """The token that our page repeats in a header; scripts of other origins cannot read it."""
        return Cookie(
            key=CSRF_COOKIE,
            value=secrets.token_urlsafe(24),
            path="/",
            secure=self.hosts.secure,
            samesite="strict",
        )

    def errand_cookie(self, sealed: str, max_age_s: int) -> Cookie:
        """What somebody takes along to a provider; Lax, for they come back from another site."""
        return Cookie(
            key=self.errand_name,
            value=sealed,
            path="/",
            max_age=max_age_s,
            httponly=True,
            secure=self.hosts.secure,
            samesite="lax",
        )
