"""The OpenAPI document of all HTTP routes, made from the handlers and types in use.

Litestar's own is not published: its schemas forget which fields are forbidden, refuse lists of texts,
and its errors are not the ones that `problems` answers with. Version 3.2, for it can say what stands in
server-sent events.
"""

import functools
import operator
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from importlib.metadata import version
from inspect import cleandoc
from types import NoneType
from typing import Annotated, Any, Optional, get_args

import msgspec
from litestar import Response
from litestar.handlers import HTTPRouteHandler
from litestar.params import PathParameter, QueryParameter
from litestar.routes import HTTPRoute
from litestar.typing import FieldDefinition

from app.routes.gate import CSRF_COOKIE, CSRF_HEADER, SAFE_METHODS
from app.routes.problems import DialectFailure, ProblemDetails, speaks_dialect
from app.routes.published.shapes import Schema, Shapes
from app.routes.published.told import EVENT_STREAM, JSON, Bodies, Sent, Told, told_by

VERSION = version("keepwarm")
PROBLEM = "application/problem+json"

EVERYWHERE = (400, 429, 500, 503)
BEHIND_A_DOOR = (401, 403)

_MEANS = {
    400: "Malformed, unknown or unsupported; `field` or `param` names it.",
    401: "No valid login or key.",
    403: "Known, and not allowed; or not from Keepwarm's own page.",
    404: "Unknown, or somebody else's.",
    409: "It goes against what is there; trying again by itself helps nothing.",
    413: "More than is taken here.",
    429: "Too much at once, or more than is allowed; the header says when to come back.",
    500: "The server failed; its log has more under the request id.",
    503: "The engine is away, or the server is starting or stopping.",
}
_TEXT: Schema = {"type": "string"}
_HEADERS: dict[int, Schema] = {
    401: {"www-authenticate": {"schema": _TEXT}},
    409: {"x-should-retry": {"schema": {"const": "false"}}},
    429: {"retry-after": {"description": "In seconds.", "schema": _TEXT}},
    503: {"retry-after": {"description": "In seconds.", "schema": _TEXT}},
}
_CONSTRAINTS = ("gt", "ge", "lt", "le", "min_length", "max_length", "pattern")


def document(routes: Iterable[Any], session_cookie: str) -> Schema:
    """Of all routes that are in the schema."""
    pages = _Pages()
    paths: dict[str, Schema] = {}
    for route in routes:
        for method, handler in _handlers(route):
            path = route.path_format
            paths.setdefault(path, {})[method.lower()] = pages.operation(path, method, handler)
    return {
        "openapi": "3.2.0",
        "info": {"title": "Keepwarm", "version": VERSION},
        "paths": paths,
        "components": {
            "schemas": dict(sorted(pages.shapes.named.items())),
            "responses": pages.refusals,
            "securitySchemes": _doors(session_cookie),
        },
    }


def _handlers(route: Any) -> Iterator[tuple[str, HTTPRouteHandler]]:
    if isinstance(route, HTTPRoute):
        for method, (handler, _) in route.route_handler_map.items():
            if handler.resolve_include_in_schema() and method != "OPTIONS":
                yield method, handler


def _doors(session_cookie: str) -> Schema:
    return {
        "login": {
            "type": "apiKey",
            "in": "cookie",
            "name": session_cookie,
            "description": "Set by `POST /api/login`.",
        },
        "csrf": {
            "type": "apiKey",
            "in": "header",
            "name": CSRF_HEADER,
            "description": "The cookie's value again. Whatever changes something asks for both.",
        },
        "csrf_cookie": {
            "type": "apiKey",
            "in": "cookie",
            "name": CSRF_COOKIE,
            "description": "Set by every answer below `/api/` where it is missing.",
        },
        "key": {"type": "http", "scheme": "bearer", "description": "An API key, `sk-kw-...`."},
    }


class _Pages:
    """What the operations share: schemas and refusals."""

    def __init__(self) -> None:
        self.shapes = Shapes("#/components/schemas/")
        self.refusals: dict[str, Schema] = {}

    def operation(self, path: str, method: str, handler: HTTPRouteHandler) -> Schema:
        told = told_by(handler.opt)
        name = handler.fn.__name__
        takes = self._takes(told, handler)
        doors = _security(path, method, handler)
        answers = {str(handler.status_code): self._answer(told, handler)}
        statuses = {*EVERYWHERE, *told.fails, *(BEHIND_A_DOOR if doors else ())}
        statuses |= {404} if "{" in path else set()
        statuses |= {413} if takes else set()
        answers |= {str(one): self._refusal(path, one) for one in sorted(statuses)}
        found = {
            "operationId": f"{path.split('/')[1]}_{name}",
            "summary": name.replace("_", " ").capitalize(),
            "description": cleandoc(handler.fn.__doc__ or ""),
            "tags": [handler.fn.__module__.rpartition(".")[2]],
            "parameters": self._parameters(handler),
            "requestBody": {"required": True, "content": takes} if takes else {},
            "responses": answers,
            "security": doors,
        }
        return {key: value for key, value in found.items() if value}

    # ------------------------------------------------------------ what comes in

    def _parameters(self, handler: HTTPRouteHandler) -> list[Schema]:
        return [
            self._parameter(name, field)
            for name, field in handler.parsed_fn_signature.parameters.items()
            if isinstance(field.kwarg_definition, PathParameter | QueryParameter)
        ]

    def _parameter(self, name: str, field: FieldDefinition) -> Schema:
        marked = field.kwarg_definition
        assert isinstance(marked, PathParameter | QueryParameter)
        schema = self.shapes.of(_bounded(field))
        if field.default not in (None, *_empty(field)):
            schema = schema | {"default": msgspec.to_builtins(field.default)}
        is_path = isinstance(marked, PathParameter)
        return {
            "name": name,
            "in": "path" if is_path else "query",
            "required": is_path or field.is_required,
            "schema": schema,
        }

    def _takes(self, told: Told, handler: HTTPRouteHandler) -> Schema:
        data = handler.parsed_fn_signature.parameters.get("data")
        return self._content(told.takes or ({JSON: data.annotation} if data else {}))

    # ------------------------------------------------------------ what goes out

    def _answer(self, told: Told, handler: HTTPRouteHandler) -> Schema:
        means = HTTPStatus(handler.status_code).phrase
        content = self._content(told.gives or _given(handler))
        return {"description": means, "content": content} if content else {"description": means}

    def _content(self, bodies: Bodies) -> Schema:
        return {media: self._media(media, kind) for media, kind in bodies.items()}

    def _media(self, media: str, kind: Any) -> Schema:
        if isinstance(kind, Sent):
            return {"itemSchema": self._sent(kind)}
        if media == EVENT_STREAM:
            return {"itemSchema": self._sent(Sent(kind))}
        return {} if kind is None else {"schema": self.shapes.of(kind)}

    def _sent(self, sent: Sent) -> Schema:
        told = {**_TEXT, "contentMediaType": JSON, "contentSchema": self.shapes.of(sent.kind)}
        data = {"anyOf": [told, {"const": sent.last}]} if sent.last else told
        return {"type": "object", "required": ["data"], "properties": {"data": data}}

    def _refusal(self, path: str, status: int) -> Schema:
        """Its name in the components, where it is written once for each dialect."""
        dialect = speaks_dialect(path)
        name = f"{'dialect' if dialect else 'problem'}-{status}"
        kind, media = (DialectFailure, JSON) if dialect else (ProblemDetails, PROBLEM)
        if name not in self.refusals:
            self.refusals[name] = {
                "description": _MEANS[status],
                "headers": _HEADERS.get(status, {}),
                "content": {media: {"schema": self.shapes.of(kind)}},
            }
        return {"$ref": f"#/components/responses/{name}"}


def _security(path: str, method: str, handler: HTTPRouteHandler) -> list[Schema]:
    """What changes something below `/api` comes from our own page, signed in or not."""
    csrf: Schema = (
        {"csrf": [], "csrf_cookie": []}
        if path.startswith("/api/") and method not in SAFE_METHODS
        else {}
    )
    doors = [{**one, **csrf} for one in handler.resolve_security()]
    return doors or ([csrf] if csrf else [])


def _bounded(field: FieldDefinition) -> Any:
    """A parameter's type with its limits. What may be left out may be `null`: it is read as nothing."""
    limits = {
        name: value
        for name in _CONSTRAINTS
        if (value := getattr(field.kwarg_definition, name)) is not None
    }
    kinds = get_args(field.annotation) if field.is_optional else (field.annotation,)
    kind = functools.reduce(operator.or_, (one for one in kinds if one is not NoneType))
    bounded = Annotated[kind, msgspec.Meta(**limits)] if limits else kind
    return Optional[bounded] if field.is_optional else bounded  # noqa: UP045  it is no type by itself


def _empty(field: FieldDefinition) -> tuple[Any, ...]:
    return (field.default,) if field.is_required else ()


def _given(handler: HTTPRouteHandler) -> Bodies:
    """What the signature says of the answer. Raises `ValueError` where it says nothing."""
    kind = handler.parsed_fn_signature.return_type.annotation
    if kind is NoneType:
        return {}
    inner = get_args(kind) if _is_response(kind) else (kind,)
    if inner == (NoneType,):
        return {}
    if not inner or inner[0] in (Any, bytes):
        raise ValueError(f"Nobody tells what {handler.fn.__name__} gives; see `told`.")
    return {JSON: inner[0]}


def _is_response(kind: Any) -> bool:
    origin = getattr(kind, "__origin__", kind)
    return isinstance(origin, type) and issubclass(origin, Response)
