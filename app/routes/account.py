"""Signing in and out, invitations accepted, and what is one's own: logins, keys, password: `/api`."""

from datetime import timedelta
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from app.chat.departures import Departures
from app.db.types import KeyScope
from app.ids import KeyId, LoginId
from app.people.accounts import Accounts, AccountView, Principal
from app.people.invitations import Invitations
from app.people.keys import Keys, KeyView, NewKey
from app.people.logins import IDLE, Logins, LoginView, SignedIn
from app.people.recovery import Recovery
from app.routes.gate import Gate
from app.routes.published.told import told

Short = Annotated[str, msgspec.Meta(max_length=1024)]
LONGEST_KEY_S = 10 * 366 * 24 * 3600


class Credentials(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    email: Short
    password: Short


class SetUp(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`token` is what the one-time link holds, the first administrator's or an invitation's."""

    token: Short
    email: Short
    name: Short
    password: Short


class ChosenPassword(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    token: Short
    password: Short


class NewPassword(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    current_password: Short
    password: Short


class NewName(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Short


class Removal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who has no password signs in anew first."""

    current_password: Short | None = None


class KeyRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Without `expires_in_s` it lasts until it is revoked."""

    name: Short
    scopes: Annotated[tuple[KeyScope, ...], msgspec.Meta(min_length=1, max_length=16)] = tuple(
        KeyScope
    )
    expires_in_s: Annotated[int, msgspec.Meta(ge=60, le=LONGEST_KEY_S)] | None = None


@post("/login", status_code=200, opt=told(fails=(401,)))
async def login(
    data: JSONBody[Credentials],
    request: Request[Any, Any, Any],
    accounts: NamedDependency[Accounts],
    logins: NamedDependency[Logins],
    *,
    gate: NamedDependency[Gate],
) -> Response[AccountView]:
    signed_in = await _sign_in(logins, data.email, data.password, request)
    return await _welcome(accounts, gate, signed_in)


@post("/setup", status_code=200, opt=told(fails=(401, 409)))
async def set_up(
    data: JSONBody[SetUp],
    request: Request[Any, Any, Any],
    accounts: NamedDependency[Accounts],
    logins: NamedDependency[Logins],
    *,
    invitations: NamedDependency[Invitations],
    gate: NamedDependency[Gate],
) -> Response[AccountView]:
    user_id = await invitations.accept(data.token, data.email, data.name, data.password)
    agent = request.headers.get("user-agent", "")
    signed_in = await logins.begin(user_id, user_agent=agent)
    return await _welcome(accounts, gate, signed_in)


@post("/password", status_code=200, opt=told(fails=(401,)))
async def choose_password(
    data: JSONBody[ChosenPassword],
    request: Request[Any, Any, Any],
    accounts: NamedDependency[Accounts],
    recovery: NamedDependency[Recovery],
    *,
    gate: NamedDependency[Gate],
) -> Response[AccountView]:
    """By the link that an administrator gave; it signs out everywhere else."""
    agent = request.headers.get("user-agent", "")
    signed_in = await recovery.redeem(data.token, data.password, user_agent=agent)
    return await _welcome(accounts, gate, signed_in)


@post("/logout", status_code=204)
async def logout(
    principal: NamedDependency[Principal],
    logins: NamedDependency[Logins],
    gate: NamedDependency[Gate],
) -> Response[None]:
    await logins.logout(principal)
    return _goodbye(gate)


@get("/account")
async def account(
    principal: NamedDependency[Principal], accounts: NamedDependency[Accounts]
) -> AccountView:
    return await accounts.account(principal.user_id)


@patch("/account")
async def rename_account(
    data: JSONBody[NewName],
    principal: NamedDependency[Principal],
    accounts: NamedDependency[Accounts],
) -> AccountView:
    return await accounts.rename(principal.user_id, data.name)


@post("/account/password", status_code=204)
async def change_password(
    data: JSONBody[NewPassword],
    principal: NamedDependency[Principal],
    logins: NamedDependency[Logins],
) -> None:
    """Signs out everywhere else."""
    await logins.change_password(principal, data.current_password, data.password)


@post("/account/removal", status_code=204, opt=told(fails=(409,)))
async def remove_account(
    data: JSONBody[Removal],
    principal: NamedDependency[Principal],
    accounts: NamedDependency[Accounts],
    logins: NamedDependency[Logins],
    *,
    departures: NamedDependency[Departures],
    gate: NamedDependency[Gate],
) -> Response[None]:
    """With everything that it owns, for good."""
    await logins.make_sure(principal, data.current_password)
    await accounts.remove(principal.user_id)
    await departures.look()
    return _goodbye(gate)


@get("/logins")
async def list_logins(
    principal: NamedDependency[Principal], logins: NamedDependency[Logins]
) -> list[LoginView]:
    return await logins.list(principal)


@delete("/logins")
async def end_other_logins(
    principal: NamedDependency[Principal], logins: NamedDependency[Logins]
) -> None:
    """All but the one that asks."""
    await logins.end_others(principal)


@delete("/logins/{login_id:str}")
async def end_login(
    login_id: FromPath[str], principal: NamedDependency[Principal], logins: NamedDependency[Logins]
) -> None:
    await logins.end(principal, LoginId(login_id))


@get("/keys")
async def list_keys(
    principal: NamedDependency[Principal], keys: NamedDependency[Keys]
) -> list[KeyView]:
    return await keys.list(principal.user_id)


@post("/keys")
async def create_key(
    data: JSONBody[KeyRequest], principal: NamedDependency[Principal], keys: NamedDependency[Keys]
) -> NewKey:
    lasts = None if data.expires_in_s is None else timedelta(seconds=data.expires_in_s)
    return await keys.create(principal.user_id, data.name, scopes=data.scopes, lifetime=lasts)


@delete("/keys/{key_id:str}")
async def revoke_key(
    key_id: FromPath[str], principal: NamedDependency[Principal], keys: NamedDependency[Keys]
) -> None:
    await keys.revoke(principal.user_id, KeyId(key_id))


async def _sign_in(
    logins: Logins, email: str, password: str, request: Request[Any, Any, Any]
) -> SignedIn:
    address = request.client.host if request.client else ""
    agent = request.headers.get("user-agent", "")
    return await logins.login(email, password, user_agent=agent, address=address)


async def _welcome(accounts: Accounts, gate: Gate, signed_in: SignedIn) -> Response[AccountView]:
    view = await accounts.account(signed_in.principal.user_id)
    # A new token with every login: one that was planted before it is worth nothing after.
    cookie = gate.login_cookie(signed_in.token, max_age_s=int(IDLE.total_seconds()))
    return Response(view, status_code=200, cookies=[cookie, gate.csrf_cookie()])


def _goodbye(gate: Gate) -> Response[None]:
    return Response(None, status_code=204, cookies=[gate.login_cookie("", max_age_s=0)])


open_handlers = [login, set_up, choose_password]
"""For people who are not signed in yet."""
handlers = [
    logout,
    account,
    rename_account,
    change_password,
    remove_account,
    list_logins,
    end_other_logins,
    end_login,
    list_keys,
    create_key,
    revoke_key,
]
