"""The table of routes: which stand behind which door. A new noun adds a line to its door's list."""

from typing import Any

from litestar import Request, Router
from litestar.di import Provide

from app.people.accounts import Principal
from app.routes import (
    account,
    admin,
    conversations,
    events,
    figures,
    files,
    health,
    library,
    messages,
    oidc,
    people,
    quotas,
    schema,
    search,
    static,
    summaries,
    transfer,
    versions,
)
from app.routes import socket as browser
from app.routes.gate import Check, Gate, guard
from app.routes.openai import (
    completions,
    responses,
)
from app.routes.openai import (
    conversations as labelled,
)
from app.routes.openai import socket as dialect

LARGEST_FORM = 64 * 2**10
"""Bytes that a stranger may send to sign in or to set up: four fields, however they are escaped."""

OPEN = [
    static.page_router(),
    *schema.handlers,
    browser.browser_socket,  # it asks for the login itself, and answers with a close code
    *health.public_handlers,
]
"""Without a credential."""

SIGN_IN = [
    *account.open_handlers,
    *oidc.open_handlers,
]
"""`/api` for strangers: from our own page, and short."""

ACCOUNT = [
    *account.handlers,
    *quotas.own_handlers,
    *oidc.handlers,
    *health.api_handlers,
]
"""`/api` for whoever is signed in, from our own page."""

PAGE = [
    *conversations.handlers,
    *messages.handlers,
    *events.handlers,
    *summaries.handlers,
    *library.handlers,
    *versions.handlers,
    *files.handlers,
    *search.handlers,
    *transfer.handlers,
]
"""`/api` for those of them who chat."""

FIGURES = [
    *admin.figure_handlers,
    *figures.figure_handlers,
]
"""`/api` for administrators and auditors."""

ADMIN = [
    *people.handlers,
    *quotas.handlers,
    *admin.handlers,
]
"""`/api` for administrators."""

DIALECT = [
    *responses.handlers,
    *labelled.handlers,
    *dialect.handlers,
    *completions.handlers,
]
"""With an API key."""

OPERATIONS = [
    *health.admin_handlers,
]
"""With the API key of who may see what is counted over all users."""


def route_table(gate: Gate) -> list[Any]:
    """Every route of the application, guarded by `gate`."""
    return [
        *OPEN,
        Router(
            path="/api",
            route_handlers=SIGN_IN,
            guards=[guard(gate.own_page)],
            request_max_body_size=LARGEST_FORM,
            tags=["account"],
        ),
        _page(gate, gate.by_cookie, ACCOUNT),
        _page(gate, gate.by_member, PAGE),
        _page(gate, gate.by_figures, FIGURES),
        _page(gate, gate.by_admin, ADMIN),
        Router(
            path="/",
            route_handlers=DIALECT,
            guards=[guard(gate.by_key)],
            security=[{"key": []}],
        ),
        Router(
            path="/",
            route_handlers=OPERATIONS,
            guards=[guard(gate.by_figures_key)],
            security=[{"key": []}],
        ),
    ]


def _page(gate: Gate, who: Check, handlers: list[Any]) -> Router:
    return Router(
        path="/api",
        route_handlers=handlers,
        guards=[guard(gate.own_page), guard(who)],
        dependencies={"principal": Provide(_principal, sync_to_thread=False)},
        security=[{"login": []}],
    )


def _principal(request: Request[Principal, Any, Any]) -> Principal:
    """Whom the router's guard let in."""
    return request.user
