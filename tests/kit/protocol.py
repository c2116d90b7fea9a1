"""Keeps docs/protocol.md in step with the sockets' structs: every frame, its fields, their words."""

import inspect
import re
import typing
from pathlib import Path

import msgspec

from app import events, frames
from app.routes.openai.events import SocketEvent
from app.routes.published.asyncapi import DialectInward
from app.routes.published.shapes import Schema, Shapes

PAGE = Path(__file__).parent.parent.parent / "docs" / "protocol.md"

UNIONS = {
    "inward": frames.InwardFrame,
    "outward": frames.OutwardFrame,
    "stream": frames.PageOpened | frames.ResponseStarted,
    "log": events.LogEvent,
    "dialect-inward": DialectInward,
    "dialect-outward": SocketEvent,
}
PARTS = (
    frames.Cursor,
    frames.Warmth,
    frames.Shown,
    events.ConversationView,
    events.MessageView,
    events.ResponseView,
    events.Usage,
    events.Problem,
)
_RANGES = (
    ("minLength", "maxLength", " characters"),
    ("minItems", "maxItems", " of them"),
    ("minProperties", "maxProperties", " of them"),
    ("minimum", "maximum", ""),
)


def _words(schema: Schema) -> str:
    """A type as a reader of JSON would say it."""
    if "anyOf" in schema:
        return " or ".join(_words(one) for one in schema["anyOf"])
    if "$ref" in schema:
        return f"`{schema['$ref'].rsplit('/', 1)[1]}`"
    if schema.get("type") == "array":
        return f"list of {_words(schema.get('items') or schema['prefixItems'][0])}"
    if "enum" in schema:
        return " or ".join(f'`"{value}"`' for value in schema["enum"])
    return str(schema.get("type", "anything"))


def _fields(schema: Schema) -> str:
    rows = [
        f"| `{name}` | {_words(field)} | {_said(name, field, schema)} |\n"
        for name, field in schema["properties"].items()
        if name != "type"
    ]
    return "\n| field | type | |\n|---|---|---|\n" + "".join(rows) if rows else ""


def _said(name: str, field: Schema, schema: Schema) -> str:
    optional = [] if name in schema["required"] else ["optional"]
    said = "; ".join([*optional, *_limits(field)])
    return ". ".join(one for one in (said, field.get("description", "")) if one)


def _limits(field: Schema) -> list[str]:
    options = field.get("anyOf", [field])
    ranges = [
        _range(one.get(low), one.get(high)) + unit
        for one in options
        for low, high, unit in _RANGES
        if one.keys() & {low, high}
    ]
    return ranges + [f"`{one['pattern']}`" for one in options if "pattern" in one]


def _range(low: float | None, high: float | None) -> str:
    if high is None:
        return f"at least {low:,}"
    return f"at most {high:,}" if not low else f"{low:,} to {high:,}"


def _words_of(struct: type[msgspec.Struct]) -> str:
    own = vars(struct).get("__doc__")
    return f"\n{inspect.cleandoc(own)}\n" if own else ""


def section(struct: type[msgspec.Struct]) -> str:
    shapes = Shapes("#/")
    shapes.of(struct)
    schema = shapes.named[struct.__name__]
    kinds = schema["properties"].get("type", {}).get("enum", [struct.__name__])
    title = "### " + ", ".join(f"`{kind}`" for kind in kinds) + "\n"
    return title + _words_of(struct) + _fields(schema)


def render(page: str) -> str:
    """The page with everything between its marks written anew; the words around it stay."""
    for name, union in UNIONS.items():
        page = _between(page, name, typing.get_args(union))
    return _between(page, "parts", PARTS)


def _between(page: str, name: str, structs: typing.Iterable[type[msgspec.Struct]]) -> str:
    written = "\n".join(section(struct) for struct in structs)
    marked = f"<!-- {name} -->\n{written}<!-- /{name} -->"
    return re.sub(rf"<!-- {name} -->.*<!-- /{name} -->", lambda _: marked, page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
