"""Signing in and out, the one-time set-up, and the keys of whoever is signed in: `/api`."""

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from app.ids import KeyId
from app.people.accounts import IDLE, Accounts, AccountView, Principal, SignedIn
from app.people.keys import Keys, KeyView, NewKey
from app.routes.gate import Gate

Short = Annotated[str, msgspec.Meta(max_length=1024)]


class Credentials(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    email: Short
    password: Short


class SetUp(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`token` is what the one-time link holds."""

    token: Short
    email: Short
    name: Short
    password: Short


class KeyRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Short


@post("/login", status_code=200)
async def login(
    data: JSONBody[Credentials],
    request: Request[Any, Any, Any],
    accounts: NamedDependency[Accounts],
    gate: NamedDependency[Gate],
) -> Response[AccountView]:
    signed_in = await _sign_in(accounts, data.email, data.password, request)
    return await _welcome(accounts, gate, signed_in)


@post("/setup", status_code=200)
async def set_up(
    data: JSONBody[SetUp],
    request: Request[Any, Any, Any],
    accounts: NamedDependency[Accounts],
    gate: NamedDependency[Gate],
) -> Response[AccountView]:
    await accounts.accept_invitation(data.token, data.email, data.name, data.password)
    signed_in = await _sign_in(accounts, data.email, data.password, request)
    return await _welcome(accounts, gate, signed_in)


@post("/logout", status_code=204)
async def logout(
    principal: NamedDependency[Principal],
    accounts: NamedDependency[Accounts],
    gate: NamedDependency[Gate],
) -> Response[None]:
    await accounts.logout(principal)
    return Response(None, status_code=204, cookies=[gate.login_cookie("", max_age_s=0)])


@get("/account")
async def account(
    principal: NamedDependency[Principal], accounts: NamedDependency[Accounts]
) -> AccountView:
    return await accounts.account(principal.user_id)


@get("/keys")
async def list_keys(
    principal: NamedDependency[Principal], keys: NamedDependency[Keys]
) -> list[KeyView]:
    return await keys.list(principal.user_id)


@post("/keys")
async def create_key(
    data: JSONBody[KeyRequest], principal: NamedDependency[Principal], keys: NamedDependency[Keys]
) -> NewKey:
    return await keys.create(principal.user_id, data.name)


@delete("/keys/{key_id:str}")
async def revoke_key(
    key_id: FromPath[str], principal: NamedDependency[Principal], keys: NamedDependency[Keys]
) -> None:
    await keys.revoke(principal.user_id, KeyId(key_id))


async def _sign_in(
    accounts: Accounts, email: str, password: str, request: Request[Any, Any, Any]
) -> SignedIn:
    address = request.client.host if request.client else ""
    agent = request.headers.get("user-agent", "")
    return await accounts.login(email, password, user_agent=agent, address=address)


async def _welcome(accounts: Accounts, gate: Gate, signed_in: SignedIn) -> Response[AccountView]:
    view = await accounts.account(signed_in.principal.user_id)
    # A new token with every login: one that was planted before it is worth nothing after.
    cookie = gate.login_cookie(signed_in.token, max_age_s=int(IDLE.total_seconds()))
    return Response(view, status_code=200, cookies=[cookie, gate.csrf_cookie()])


open_handlers = [login, set_up]
"""For people who are not signed in yet."""
handlers = [logout, account, list_keys, create_key, revoke_key]
