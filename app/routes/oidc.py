"""Signing in by an OpenID provider, for the page: `/api/sign-in`, `/api/oidc`, `/api/identities`.

A browser leaves for the provider with an errand in a cookie and comes back to the callback, which
sends it to the page, whatever the outcome: there is no other place that it could be sent to.
"""

from typing import Any

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.datastructures import Cookie
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from litestar.response import Redirect

from app.errors import InvalidRequest
from app.ids import IdentityId
from app.people.accounts import Principal
from app.people.logins import IDLE, SignedIn
from app.people.oidc import AWAY, IdentityView, Oidc, Reply, Sent
from app.routes.account import Short
from app.routes.gate import Gate
from app.routes.problems import as_app_error
from app.routes.published.told import told
from app.settings import Settings

CALLBACK = "/api/oidc/callback"
"""To be told to the provider, behind the public address."""


class WaysIn(msgspec.Struct, frozen=True, kw_only=True):
    """What the page offers besides a password: the provider's name, where there is one."""

    provider: str | None


class Begin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`invitation`: the token of the link that is to be accepted so."""

    invitation: Short | None = None


class Away(msgspec.Struct, frozen=True, kw_only=True):
    """Where the page goes next."""

    url: str


@get("/sign-in", sync_to_thread=False)
def ways_in(settings: NamedDependency[Settings], oidc: NamedDependency[Oidc]) -> WaysIn:
    return WaysIn(provider=settings.oidc_name if oidc.provider else None)


@post("/oidc", status_code=200, opt=told(fails=(404,)))
async def begin(
    data: JSONBody[Begin],
    request: Request[Any, Any, Any],
    oidc: NamedDependency[Oidc],
    gate: NamedDependency[Gate],
) -> Response[Away]:
    _refuse_elsewhere(request, gate)
    return _away(gate, await oidc.begin(data.invitation))


@get(CALLBACK.removeprefix("/api"), include_in_schema=False)
async def come_back(
    request: Request[Any, Any, Any], oidc: NamedDependency[Oidc], gate: NamedDependency[Gate]
) -> Redirect:
    over = gate.errand_cookie("", max_age_s=0)
    try:
        signed_in = await _finish(request, oidc, gate)
    except Exception as error:  # noqa: BLE001 -- a browser is here, and wants a page
        return _to_the_page(f"#sign-in={as_app_error(error).code}", over)
    if signed_in is None:
        return _to_the_page("", over)
    login = gate.login_cookie(signed_in.token, max_age_s=int(IDLE.total_seconds()))
    return _to_the_page("", over, login, gate.csrf_cookie())


@get("/identities")
async def list_identities(
    principal: NamedDependency[Principal], oidc: NamedDependency[Oidc]
) -> list[IdentityView]:
    """By whom one may sign in besides one's password."""
    return await oidc.list(principal.user_id)


@post("/identities", status_code=200, opt=told(fails=(404,)))
async def link(
    request: Request[Any, Any, Any],
    principal: NamedDependency[Principal],
    oidc: NamedDependency[Oidc],
    gate: NamedDependency[Gate],
) -> Response[Away]:
    """Whoever comes back from there is linked to the account that asks."""
    _refuse_elsewhere(request, gate)
    return _away(gate, await oidc.begin(who=principal))


@delete("/identities/{identity_id:str}", opt=told(fails=(409,)))
async def unlink(
    identity_id: FromPath[str], principal: NamedDependency[Principal], oidc: NamedDependency[Oidc]
) -> None:
    await oidc.unlink(principal.user_id, IdentityId(identity_id))


async def _finish(request: Request[Any, Any, Any], oidc: Oidc, gate: Gate) -> SignedIn | None:
    told = request.query_params
    return await oidc.finish(
        request.cookies.get(gate.errand_name, ""),
        Reply(
            state=told.get("state", ""),
            code=None if "error" in told else told.get("code"),
            issuer=told.get("iss"),
        ),
        user_agent=request.headers.get("user-agent", ""),
        address=request.client.host if request.client else "",
    )


def _to_the_page(outcome: str, *cookies: Cookie) -> Redirect:
    return Redirect(f"/{outcome}", status_code=303, cookies=cookies)


def _refuse_elsewhere(request: Request[Any, Any, Any], gate: Gate) -> None:
    """The provider sends people to the public address, where a cookie of another is not seen."""
    origin = request.headers.get("origin", gate.hosts.public).lower()
    if origin != gate.hosts.public:
        raise InvalidRequest(
            f"To sign in this way, open {gate.hosts.public} first.", code="wrong_address"
        )


def _away(gate: Gate, sent: Sent) -> Response[Away]:
    cookie = gate.errand_cookie(sent.sealed, max_age_s=int(AWAY.total_seconds()))
    return Response(Away(url=sent.url), status_code=200, cookies=[cookie])


open_handlers = [ways_in, begin, come_back]
"""For people who are not signed in yet."""
handlers = [list_identities, link, unlink]
