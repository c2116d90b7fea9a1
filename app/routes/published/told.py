"""What a route tells of itself in the OpenAPI document, where its signature does not say it.

Most routes need nothing: the document reads path, query, body and answer from the signature, and adds
the refusals that every route of its kind has (400, 429, 500 and 503; 401 and 403 behind a door; 404 where
the path has an id; 413 where there is a body). The rest is told beside the path:

    @post("/groups", opt=told(fails=(409,)))
    @get("/export", opt=told(gives={"application/json": Archive}))
    @post("/v1/responses", opt=told(takes={"application/json": ResponseCreate}, gives={...}))

`takes` and `gives` are for what a handler reads or answers by hand (`Request.body()`, `Stream`,
`Response[bytes]`); a kind of None is any bytes at all. Errors are problem details on `/api` and OpenAI's
error on `/v1` by themselves. A handler whose answer nobody tells of fails tests/app/test_contract.py.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

JSON = "application/json"
EVENT_STREAM = "text/event-stream"


class Sent(msgspec.Struct, frozen=True):
    """Server-sent events: each one's `data` is `kind` as JSON; `last` ends the stream where it is given."""

    kind: Any
    last: str = ""


Bodies = Mapping[str, Any]
"""Media type to what stands in it: a type, `Sent`, or None for bytes."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    takes: Bodies = {}
    gives: Bodies = {}
    fails: tuple[int, ...] = ()


NOTHING = Told()
_KEY = "told"


def told(
    *, takes: Bodies | None = None, gives: Bodies | None = None, fails: tuple[int, ...] = ()
) -> dict[str, Any]:
    """For a handler's `opt`."""
    return {_KEY: Told(takes=takes or {}, gives=gives or {}, fails=fails)}


def told_by(opt: Mapping[str, Any]) -> Told:
    """What a handler's `opt` holds."""
    found = opt.get(_KEY, NOTHING)
    assert isinstance(found, Told), "opt was not made by `told`"
    return found
