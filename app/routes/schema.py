"""What strangers build on, as schemas: OpenAPI of the HTTP routes, JSON Schema of the sockets' frames.

All are made from the types in use, so they cannot lag behind. No page that loads scripts from
elsewhere: the schema itself is all there is.
"""

import functools
from typing import Any

import msgspec
from litestar import Request, get
from litestar.di import NamedDependency

from app.frames import InwardFrame, OutwardFrame
from app.routes.gate import Gate
from app.routes.published.openapi import document


@functools.cache
def events_schema() -> dict[str, Any]:
    """JSON Schema of everything that `/ws` hears (`inward`) and says (`outward`)."""
    (inward, outward), components = msgspec.json.schema_components(
        [InwardFrame, OutwardFrame], ref_template="#/$defs/{name}"
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Frames of the browser's socket",
        "$defs": components,
        "properties": {"inward": inward, "outward": outward},
    }


@get("/schema/events.json", include_in_schema=False, sync_to_thread=False)
def events() -> dict[str, Any]:
    return events_schema()


# In a thread, for the first time takes a moment in which streams must go on.
@get("/schema/openapi.json", include_in_schema=False, sync_to_thread=True)
def openapi(request: Request[Any, Any, Any], gate: NamedDependency[Gate]) -> dict[str, Any]:
    state = request.app.state
    if "openapi" not in state:
        state["openapi"] = document(request.app.routes, gate.session_cookie)
    found: dict[str, Any] = state["openapi"]
    return found


handlers = [openapi, events]
