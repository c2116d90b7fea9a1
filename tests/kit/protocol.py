"""Keeps docs/protocol.md in step with `app.frames`: every frame, its fields, its words."""

import inspect
import re
import typing
from pathlib import Path

import msgspec

from app import events, frames

PAGE = Path(__file__).parent.parent.parent / "docs" / "protocol.md"

UNIONS = {
    "inward": frames.InwardFrame,
    "outward": frames.OutwardFrame,
    "log": events.LogEvent,
}
PARTS = (
    frames.Cursor,
    events.ConversationView,
    events.MessageView,
    events.ResponseView,
    events.Usage,
    events.Problem,
    events.QuotaFault,
)


def type_words(kind: object) -> str:
    """A type as a reader of JSON would say it."""
    schema = msgspec.json.schema(kind)
    return _words(schema)


def _words(schema: dict[str, typing.Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_words(one) for one in schema["anyOf"])
    if "$ref" in schema:
        return f"`{schema['$ref'].rsplit('/', 1)[1]}`"
    if schema.get("type") == "array":
        return f"list of {_words(schema.get('items') or schema['prefixItems'][0])}"
    if "enum" in schema:
        return " or ".join(f'`"{value}"`' for value in schema["enum"])
    return str(schema.get("type", "object"))


def _fields(struct: type[msgspec.Struct]) -> str:
    hints = typing.get_type_hints(struct, include_extras=True)
    rows = [
        f"| `{field.encode_name}` | {type_words(hints[field.name])} | {_optional(field)} |\n"
        for field in msgspec.structs.fields(struct)
    ]
    return "\n| field | type | |\n|---|---|---|\n" + "".join(rows) if rows else ""


def _optional(field: msgspec.structs.FieldInfo) -> str:
    return "" if field.required else "optional"


def _words_of(struct: type[msgspec.Struct]) -> str:
    own = vars(struct).get("__doc__")
    return f"\n{inspect.cleandoc(own)}\n" if own else ""


def section(struct: type[msgspec.Struct]) -> str:
    tag = struct.__struct_config__.tag
    title = f"### `{tag or struct.__name__}`\n"
    return title + _words_of(struct) + _fields(struct)


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
