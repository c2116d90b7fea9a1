"""JSON Schema of the structs in use, in their own words: docstrings, and the unit that a name ends in.

msgspec makes the schema, and decodes by the same types, so that a limit stands here as it is enforced.
PURE: it reads source text and knows no route.
"""

import ast
import functools
import inspect
import itertools
import sys
from collections.abc import Iterator
from types import UnionType
from typing import Any, get_args

import msgspec
from msgspec import inspect as kinds

Schema = dict[str, Any]
Struct = type[msgspec.Struct]

UNITS = {
    "_s": "In seconds.",
    "_bytes": "In bytes.",
    "_tokens": "In tokens.",
}
"""What the end of a figure's name says of it."""
MOMENT = "In seconds since 1970, UTC."
"""Of a number, with its fraction, whose name ends in `_at`; a whole one so named is a position."""


class Shapes:
    """Schemas that refer to each other below `place`, such as `#/components/schemas/`.

    `discriminated`: unions name the field that tells their members apart, as OpenAPI does.
    """

    def __init__(self, place: str, *, discriminated: bool = True) -> None:
        self._place = place
        self._discriminated = discriminated
        self.named: dict[str, Schema] = {}

    def of(self, kind: Any) -> Schema:
        """The schema of a type; what it refers to is in `named` then.

        Two structs of one name would be one schema: that is a mistake of ours, and an error. What is
        only said and never heard may be one of several structs without a tag.
        """
        if isinstance(kind, UnionType) and all(map(_is_untagged, get_args(kind))):
            return {"anyOf": [self.of(one) for one in get_args(kind)]}
        (schema,), found = msgspec.json.schema_components(
            [kind], ref_template=self._place + "{name}", schema_hook=_anything
        )
        classes = {one.__name__: one for one in structs_in(kind)}
        for name, one in found.items():
            described = self._dressed(_described(one, classes.get(name)))
            if self.named.setdefault(name, described) != described:
                raise ValueError(f"Two structs are called {name}; one needs another name.")
        return schema

    def _dressed(self, schema: Schema) -> Schema:
        if self._discriminated or "properties" not in schema:
            return schema
        fields = {name: _undiscriminated(one) for name, one in schema["properties"].items()}
        return schema | {"properties": fields}


def _undiscriminated(schema: Schema) -> Schema:
    """The field's schema, and those that it is one of, without the name of what tells them apart."""
    kept = {key: value for key, value in schema.items() if key != "discriminator"}
    if "anyOf" in kept:
        kept["anyOf"] = [_undiscriminated(one) for one in kept["anyOf"]]
    if isinstance(kept.get("items"), dict):
        kept["items"] = _undiscriminated(kept["items"])
    return kept


def _anything(kind: type) -> Schema:
    if kind is object:
        return {"description": "Anything."}
    raise NotImplementedError(kind)


def _is_untagged(kind: Any) -> bool:
    return isinstance(kind, type(msgspec.Struct)) and kind.__struct_config__.tag is None


def structs_in(kind: Any) -> Iterator[Struct]:
    """Every struct that a type leads to, itself included, once."""
    seen: set[Struct] = set()
    waiting: list[object] = [kinds.type_info(kind)]
    while waiting:
        one = waiting.pop()
        if isinstance(one, kinds.StructType):
            if one.cls in seen:
                continue
            seen.add(one.cls)
            yield one.cls
            waiting += [field.type for field in one.fields]
        for name in _INSIDE:
            waiting += _listed(getattr(one, name, ()))


_INSIDE = ("types", "item_type", "item_types", "key_type", "value_type", "type")
"""Where msgspec's descriptions of types keep those that they hold."""


def _listed(inside: Any) -> tuple[object, ...]:
    return inside if isinstance(inside, tuple) else (inside,)


def _described(schema: Schema, struct: Struct | None) -> Schema:
    if struct is None or "properties" not in schema:
        return schema
    words = field_words(struct)
    fields = {
        name: one | {"description": said} if (said := _say(name, one, words)) else one
        for name, one in schema["properties"].items()
    }
    return schema | {"properties": fields}


def _say(name: str, schema: Schema, words: dict[str, str]) -> str:
    """Its docstring; and its unit, where it is a number or may be one."""
    said = [words[name]] if name in words else []
    given = {one.get("type") for one in schema.get("anyOf", [schema])}
    if name.endswith("_at") and "number" in given:
        said.append(MOMENT)
    elif given & {"integer", "number"}:
        said += [unit for end, unit in UNITS.items() if name.endswith(end)]
    return " ".join(said)


def field_words(struct: Struct) -> dict[str, str]:
    """Field to the docstring below it, those that it inherits included."""
    found: dict[str, str] = {}
    for one in reversed(struct.__mro__):
        if one.__module__.partition(".")[0] in ("app", "engine"):
            found |= _words_of_module(one.__module__).get(one.__name__, {})
    return found


@functools.cache
def _words_of_module(name: str) -> dict[str, dict[str, str]]:
    """Class to its fields' docstrings."""
    tree = ast.parse(inspect.getsource(sys.modules[name]))
    return {one.name: _own_words(one) for one in tree.body if isinstance(one, ast.ClassDef)}


def _own_words(struct: ast.ClassDef) -> dict[str, str]:
    found: dict[str, str] = {}
    for one, following in itertools.pairwise(struct.body):
        match one, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(ast.Constant(str(words))):
                found[name] = " ".join(inspect.cleandoc(words).split())
            case _:
                continue
    return found
