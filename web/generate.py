"""Write the socket's types for the page, from the server's own structs.

`python generate.py` writes `src/generated/events.ts`; with `--check` it only says whether that file
is fresh. It knows the few forms of JSON Schema that msgspec prints and refuses any other.
"""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from app.frames import PROTOCOL, InwardFrame, OutwardFrame

TARGET = Path(__file__).parent / "src" / "generated" / "events.ts"
HEAD = "// Generated from app/frames.py by `npm run generate`; never edited by hand.\n"
PRIMITIVES = {
    "string": "string",
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
    "null": "null",
}

Schema = dict[str, Any]


def main() -> int:
    fresh = written()
    if "--check" in sys.argv:
        current = TARGET.read_text() if TARGET.exists() else ""
        return 0 if current == fresh else _stale()
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(fresh)
    return 0


def _stale() -> int:
    sys.stderr.write(f"{TARGET} is not fresh: npm run generate\n")
    return 1


def written() -> str:
    """The whole file: one declaration for each struct and enum, then the two unions of frames."""
    (inward, outward), components = msgspec.json.schema_components([InwardFrame, OutwardFrame])
    heard = _reached(inward, components)
    declarations = [
        _declared(name, schema, optional=name in heard)
        for name, schema in sorted(components.items())
    ]
    frames = [
        f"export type InwardFrame = {_type(inward)};\n",
        f"export type OutwardFrame = {_type(outward)};\n",
        f"export const PROTOCOL = {PROTOCOL};\n",
    ]
    return "\n".join([HEAD, *declarations, *frames])


def _reached(schema: Schema, components: dict[str, Schema]) -> set[str]:
    """Names of all components under `schema`."""
    found: set[str] = set()
    waiting = [schema]
    while waiting:
        for name in _references(waiting.pop()) - found:
            found.add(name)
            waiting.append(components[name])
    return found


def _references(node: object) -> set[str]:
    match node:
        case {"$ref": str(reference)}:
            return {reference.rpartition("/")[2]}
        case dict():
            return set().union(*map(_references, node.values()))
        case list():
            return set().union(*map(_references, node))
        case _:
            return set()


def _declared(name: str, schema: Schema, *, optional: bool) -> str:
    if "enum" in schema:
        return f"export type {name} = {_type(schema)};\n"
    # What the server says always has all fields; what it hears may leave defaults out.
    required = schema["required"] if optional else schema["properties"]
    lines = (
        f"  {field}{'' if field in required else '?'}: {_type(of)};"
        for field, of in schema["properties"].items()
    )
    return "\n".join([f"export interface {name} {{", *lines, "}", ""])


def _type(schema: Schema) -> str:
    match schema:
        case {"$ref": str(reference)}:
            return reference.rpartition("/")[2]
        case {"enum": list(values)}:
            return " | ".join(json.dumps(value) for value in values)
        case {"anyOf": list(options)}:
            return " | ".join(map(_type, options))
        case {"type": "array", "items": items}:
            return f"readonly ({_type(items)})[]"
        case {"type": str(name)} if name in PRIMITIVES:
            return PRIMITIVES[name]
        case _:
            raise ValueError(f"no TypeScript for {schema}")


if __name__ == "__main__":
    sys.exit(main())
