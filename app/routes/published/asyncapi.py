"""AsyncAPI 3 of the two sockets: what each hears and says, made from the structs in use.

The dialect's socket reads JSON objects and not these structs, for unknown fields are ignored there and
unsupported ones refused by name; tests/app/test_published.py holds the two together.
"""

import functools
from inspect import cleandoc
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.frames import InwardFrame, OutwardFrame
from app.routes.openai.events import SocketEvent
from app.routes.openai.schema import ResponseCreate, SteerCreate
from app.routes.published.openapi import VERSION
from app.routes.published.shapes import Schema, Shapes, Struct

DEFINITIONS = "#/$defs/"
COMPONENTS = "#/components/schemas/"

LaneName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,256}$")]


class CreateEvent(ResponseCreate, frozen=True, kw_only=True):
    """Ask for an answer, in the lane named by `stream_id` or in the one without a name."""

    type: Literal["response.create"]
    stream_id: LaneName | UnsetType = UNSET


class CancelEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Stop an answer, in whatever lane; its own terminal event says that it stopped. Ours."""

    type: Literal["response.cancel"]
    response_id: str


class SteerEvent(SteerCreate, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Add to an answer while it is written: it ends, and its successor has read this."""

    type: Literal["response.steer"]


DialectInward = CreateEvent | SteerEvent | CancelEvent

_PAGE = (InwardFrame, OutwardFrame)
_DIALECT = (DialectInward, SocketEvent)


@functools.cache
def page_schema() -> Schema:
    """JSON Schema of everything that `/ws` hears (`inward`) and says (`outward`)."""
    return _frames("Frames of the browser's socket", *_PAGE)


@functools.cache
def dialect_schema() -> Schema:
    """The same of `/v1/responses` as a socket."""
    return _frames("Events of the dialect's socket", *_DIALECT)


def _frames(title: str, inward: Any, outward: Any) -> Schema:
    shapes = Shapes(DEFINITIONS)
    sides = {"inward": shapes.of(inward), "outward": shapes.of(outward)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "$defs": shapes.named,
        "properties": sides,
    }


@functools.cache
def asyncapi(session_cookie: str) -> Schema:
    """The whole document."""
    shapes = Shapes(COMPONENTS, discriminated=False)  # AsyncAPI means another thing by that word
    page = _Channel("page", "/ws", "login", "The page's own socket, from its own origin.")
    dialect = _Channel("dialect", "/v1/responses", "key", "The OpenAI Responses API as a socket.")
    sides = [
        side
        for channel, (heard, said) in ((page, _PAGE), (dialect, _DIALECT))
        for side in (_Side(channel, "receive", heard), _Side(channel, "send", said))
    ]
    messages = {name: one for side in sides for name, one in side.messages(shapes).items()}
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "Keepwarm's sockets", "version": VERSION},
        "defaultContentType": "application/json",
        "channels": {
            one.name: one.told([side for side in sides if side.channel is one])
            for one in (page, dialect)
        },
        "operations": {side.name: side.told() for side in sides},
        "components": {
            "messages": messages,
            "schemas": shapes.named,
            "securitySchemes": {
                "login": {
                    "type": "httpApiKey",
                    "in": "cookie",
                    "name": session_cookie,
                    "description": "Set by `POST /api/login`; the Origin must be the page's, too.",
                },
                "key": {"type": "http", "scheme": "bearer"},
            },
        },
    }


class _Channel:
    """A socket, and the security scheme of its door."""

    def __init__(self, name: str, address: str, door: str, words: str) -> None:
        self.name = name
        self.door = door
        self._address = address
        self._words = words

    def told(self, sides: list["_Side"]) -> Schema:
        return {
            "address": self._address,
            "description": self._words,
            "messages": {
                name: {"$ref": f"#/components/messages/{name}"}
                for side in sides
                for name in side.structs
            },
            "bindings": {"ws": {"method": "GET"}},
        }


class _Side:
    """What a channel hears (`receive`) or says (`send`), by the server's view."""

    def __init__(self, channel: _Channel, action: str, union: Any) -> None:
        self.channel = channel
        self.name = f"{channel.name}.{action}"
        self.structs: dict[str, Struct] = {
            f"{self.name}.{one.__name__}": one for one in get_args(union)
        }
        self._action = action

    def told(self) -> Schema:
        place = f"#/channels/{self.channel.name}"
        return {
            "action": self._action,
            "channel": {"$ref": place},
            "messages": [{"$ref": f"{place}/messages/{name}"} for name in self.structs],
            "security": [{"$ref": f"#/components/securitySchemes/{self.channel.door}"}],
        }

    def messages(self, shapes: Shapes) -> Schema:
        return {name: _message(one, shapes) for name, one in self.structs.items()}


def _message(struct: Struct, shapes: Shapes) -> Schema:
    tag = struct.__struct_config__.tag
    return {
        "name": str(tag or struct.__name__),
        "description": cleandoc(struct.__doc__ or ""),
        "payload": shapes.of(struct),
    }
