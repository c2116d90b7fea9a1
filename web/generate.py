"""Write types for the pages, from the server's own structs, and the codes of refusals they have words for.

The structs are the socket's and the dashboard's. With them come the names of the settings.
`python generate.py` writes `src/generated`; with `--check` it only says whether its files are fresh. It
knows the few forms of JSON Schema that msgspec prints and refuses any other.
"""

import json
import sys
from pathlib import Path
from typing import Any, get_args

import msgspec

from app.chat.chronicle import FiguresOverTime
from app.chat.misses import MissPage, TurnCost
from app.chat.overview import CacheOverview, SessionPage
from app.chat.prefixes import PrefixTree
from app.chat.shares import CacheShares
from app.errors import PageCode
from app.events import Figures
from app.frames import PROTOCOL, InwardFrame, OutwardFrame, StreamFrame
from app.people.accounting import UsageSum, UserSums
from app.people.accounts import AccountView
from app.people.audit import AuditPage
from app.people.groups import GroupView
from app.people.invitations import InvitationView, NewInvitation
from app.people.keys import OwnedKey
from app.people.quotas import Quota
from app.people.recovery import NewPasswordLink
from app.routes.admin import SettingView
from app.routes.quotas import UsageView
from app.routes.vitals import Vitals
from app.settings import SETTINGS

FOLDER = Path(__file__).parent / "src" / "generated"
HEAD = "// Generated from {} by `npm run generate`; never edited by hand.\n"
TOLD = [
    Figures,
    FiguresOverTime,
    SessionPage,
    CacheOverview,
    PrefixTree,
    MissPage,
    TurnCost,
    CacheShares,
    UserSums,
    UsageSum,
    AccountView,
    AuditPage,
    GroupView,
    InvitationView,
    NewInvitation,
    NewPasswordLink,
    Quota,
    OwnedKey,
    UsageView,
    SettingView,
    Vitals,
]
"""What administrators and auditors are told."""
PRIMITIVES = {
    "string": "string",
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
    "null": "null",
}

Schema = dict[str, Any]


def main() -> int:
    fresh = {
        "events.ts": events(),
        "admin.ts": admin(),
        "codes.ts": codes(),
        "variables.ts": variables(),
    }
    if "--check" in sys.argv:
        stale = [name for name, text in fresh.items() if _current(name) != text]
        for name in stale:
            sys.stderr.write(f"{FOLDER / name} is not fresh: npm run generate\n")
        return 1 if stale else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in fresh.items():
        (FOLDER / name).write_text(text)
    return 0


def _current(name: str) -> str:
    file = FOLDER / name
    return file.read_text() if file.exists() else ""


def events() -> str:
    """The page's frames: one declaration for each struct and enum, then the unions of frames."""
    (inward, outward, streamed), components = msgspec.json.schema_components(
        [InwardFrame, OutwardFrame, StreamFrame]
    )
    heard = _reached(inward, components)
    declarations = [
        _declared(name, schema, optional=name in heard)
        for name, schema in sorted(components.items())
    ]
    frames = [
        f"export type InwardFrame = {_type(inward)};\n",
        f"export type OutwardFrame = {_type(outward)};\n",
        f"export type StreamFrame = {_type(streamed)};\n",
        f"export const PROTOCOL = {PROTOCOL};\n",
    ]
    return "\n".join([HEAD.format("app/frames.py"), *declarations, *frames])


def admin() -> str:
    """What the dashboard reads."""
    _, components = msgspec.json.schema_components(TOLD)
    declarations = [
        _declared(name, schema, optional=False) for name, schema in sorted(components.items())
    ]
    return "\n".join([HEAD.format("the server's structs"), *declarations])


def codes() -> str:
    """The codes that a page may be told, as a type and to be gone through."""
    lines = (f"  {json.dumps(code)}," for code in get_args(PageCode))
    return "\n".join(
        [
            HEAD.format("app/errors.py"),
            "export const CODES = [",
            *lines,
            "] as const;",
            "export type Code = (typeof CODES)[number];",
            "",
        ]
    )


def variables() -> str:
    """The settings, and those of their defaults that are words: other languages have their own."""
    worded = sorted({one.default for one in SETTINGS if not one.default.startswith("`")})
    names = {"Variable": [one.variable for one in SETTINGS], "WordedDefault": worded}
    unions = (
        f"export type {name} =\n" + "\n".join(f"  | {json.dumps(one)}" for one in values) + ";\n"
        for name, values in names.items()
    )
    return "\n".join([HEAD.format("app/settings.py"), *unions])


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
        case {"type": "array" | "object"}:
            return _many(schema)
        case {"type": str(name)} if name in PRIMITIVES:
            return PRIMITIVES[name]
        case _:
            raise ValueError(f"no TypeScript for {schema}")


def _many(schema: Schema) -> str:
    match schema:
        case {"items": False, "prefixItems": list(items)}:
            return f"readonly [{', '.join(map(_type, items))}]"
        case {"items": dict(items)}:
            return f"readonly ({_type(items)})[]"
        case {"additionalProperties": dict(values)}:
            return f"Readonly<Record<string, {_type(values)}>>"
        case {"type": "object"}:
            return "Readonly<Record<string, unknown>>"
        case _:
            raise ValueError(f"no TypeScript for {schema}")


if __name__ == "__main__":
    sys.exit(main())
