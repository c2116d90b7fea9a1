"""What strangers build on, as schemas: OpenAPI of the HTTP routes, AsyncAPI of the sockets.

All are made from the types in use (`routes.published`), so they cannot lag behind. No page that loads
scripts from elsewhere: the schema itself is all there is.
"""

from typing import Any

from litestar import Request, get
from litestar.di import NamedDependency

from app.routes.gate import Gate
from app.routes.published.asyncapi import asyncapi, dialect_schema, page_schema
from app.routes.published.openapi import document
from app.routes.published.shapes import Schema


# Each in a thread, for the first time takes a moment in which streams must go on.
@get("/schema/openapi.json", include_in_schema=False, sync_to_thread=True)
def openapi(request: Request[Any, Any, Any], gate: NamedDependency[Gate]) -> Schema:
    state = request.app.state
    if "openapi" not in state:
        state["openapi"] = document(request.app.routes, gate.session_cookie)
    found: Schema = state["openapi"]
    return found


@get("/schema/asyncapi.json", include_in_schema=False, sync_to_thread=True)
def sockets(gate: NamedDependency[Gate]) -> Schema:
    return asyncapi(gate.session_cookie)


@get("/schema/events.json", include_in_schema=False, sync_to_thread=True)
def events() -> Schema:
    """Of the page's socket."""
    return page_schema()


@get("/schema/dialect.json", include_in_schema=False, sync_to_thread=True)
def dialect() -> Schema:
    """Of the dialect's."""
    return dialect_schema()


handlers = [openapi, sockets, events, dialect]
