"""What strangers build on, as schemas: OpenAPI of the HTTP routes, JSON Schema of the sockets' frames.

Both are made from the types in use, so they cannot lag behind. No page that loads scripts from
elsewhere: the schema itself is all there is.
"""

from importlib.metadata import version
from typing import Any

import msgspec
from litestar import get
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, Reference, SecurityScheme

from app.frames import InwardFrame, OutwardFrame

VERSION = version("keepwarm")


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


def openapi(session_cookie: str) -> OpenAPIConfig:
    schemes: dict[str, SecurityScheme | Reference] = {
        "login": SecurityScheme(type="apiKey", name=session_cookie, security_scheme_in="cookie"),
        "key": SecurityScheme(type="http", scheme="bearer"),
    }
    return OpenAPIConfig(
        title="Keepwarm",
        version=VERSION,
        components=Components(security_schemes=schemes),
        render_plugins=[JsonRenderPlugin(path="/openapi.json")],
    )
