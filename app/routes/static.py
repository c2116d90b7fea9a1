"""The built pages: `index.html` for the places of the chat, `admin.html`, and their hashed assets.

Knows nothing of what a page does. Asset names hold a hash of their content, so they never change;
a page itself is asked for anew each time, so that an update shows at once.
"""

import functools
import gzip
import mimetypes
import re
from pathlib import Path
from typing import Any

from litestar import MediaType, Request, Response, Router, get
from litestar.datastructures import CacheControlHeader
from litestar.exceptions import NotFoundException
from litestar.params import FromPath

PAGE = Path(__file__).parents[1] / "page"

CSP = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "manifest-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types svelte-trusted-html dompurify",
    )
)
"""No inline script or style, nothing from elsewhere, nobody frames us, and no text becomes HTML but by
the page's templates and its sanitiser."""

SECURITY_HEADERS = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}

_FOREVER = CacheControlHeader(public=True, max_age=31_536_000, immutable=True)

_NOT_BUILT = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Keepwarm</title>
<h1>Keepwarm is running, but its page has not been built.</h1>
<p>In the project's folder: <code>make page</code>, then start the server again.
The API under <code>/v1</code> works without it.</p></html>
"""


def page_router(folder: Path = PAGE) -> Router:
    """Everything that a browser loads before it talks to the API."""
    assets = folder / "assets"

    # Not in a thread: each is one small file, and Litestar wraps a handler of two paths twice.
    @get(["/", "/setup"], include_in_schema=False, sync_to_thread=False)
    def page() -> Response[bytes]:
        return _built(folder / "index.html")

    @get("/admin", include_in_schema=False, sync_to_thread=False)
    def admin_page() -> Response[bytes]:
        return _built(folder / "admin.html")

    # In a thread: who asks for a file first waits while it is packed.
    @get("/assets/{name:str}", include_in_schema=False, sync_to_thread=True, cache_control=_FOREVER)
    def asset(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
        return _asset(assets / name, request.headers.get("accept-encoding", ""))

    return Router(path="/", route_handlers=[page, admin_page, asset])


def _asset(file: Path, accepted: str) -> Response[bytes]:
    """Looked for anew: a page that was built meanwhile has others."""
    if not file.is_file():
        raise NotFoundException
    packs = _GZIP.search(accepted) is not None
    return Response(
        _packed(file) if packs else file.read_bytes(),
        media_type=mimetypes.guess_type(file.name)[0] or "application/octet-stream",
        headers={"vary": "accept-encoding"} | ({"content-encoding": "gzip"} if packs else {}),
    )


_GZIP = re.compile(r"\bgzip\b(?! *; *q=0(\.0*)? *(,|$))", re.IGNORECASE)
"""In what a browser accepts, unless with a weight of nought."""


@functools.cache
def _packed(file: Path) -> bytes:
    """Kept: there are few files, and they never change."""
    return gzip.compress(file.read_bytes())


def _built(file: Path) -> Response[bytes]:
    is_built = file.is_file()
    return Response(
        file.read_bytes() if is_built else _NOT_BUILT.encode(),
        status_code=200 if is_built else 503,
        media_type=MediaType.HTML,
        headers={"cache-control": "no-cache"},
    )
