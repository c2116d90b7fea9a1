"""As much of JSON Schema as the schema of the sockets' frames uses, to check real frames against it."""

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

_KINDS: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "number": (int, float),
    "integer": (int,),
}
_DESCRIBING = {"title", "description", "default", "discriminator"}
_OF_OBJECTS = {"properties", "required", "additionalProperties"}
_OF_LISTS = {"items", "maxItems"}
_OF_TEXTS = {"minLength", "maxLength"}
_DECIDING = {"$ref", "anyOf", "type", "enum", *_OF_OBJECTS, *_OF_LISTS, *_OF_TEXTS}


class Frames:
    """A published schema, and what it says of frames."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._definitions: dict[str, Schema] = schema["$defs"]

    def types(self, side: str) -> set[str]:
        """Those of a side's frames; of the log's events where the side is `event`."""
        event = self._definitions["Event"]["properties"]
        union = (event if side == "event" else self._schema["properties"])[side]
        return set(union["discriminator"]["mapping"])

    def faults(self, side: str, frame: object) -> list[str]:
        """What the schema forbids in a frame."""
        return list(self._faults(self._schema["properties"][side], frame, "$"))

    def _faults(self, schema: Schema, value: Any, place: str) -> Iterator[str]:
        assert schema.keys() <= _DESCRIBING | _DECIDING, "a keyword that nothing here checks"
        if "$ref" in schema:
            name = schema["$ref"].rsplit("/", 1)[1]
            yield from self._faults(self._definitions[name], value, place)
        elif "anyOf" in schema:
            found = [list(self._faults(one, value, place)) for one in schema["anyOf"]]
            if all(found):
                yield f"{place} is nothing that it may be: {found}"
        elif not _is(value, schema.get("type")):
            yield f"{place} is no {schema['type']}"
        elif isinstance(value, dict):
            yield from self._faults_of_object(schema, value, place)
        elif isinstance(value, list):
            if len(value) > schema.get("maxItems", len(value)):
                yield f"{place} is too long"
            for index, one in enumerate(value):
                yield from self._faults(schema["items"], one, f"{place}[{index}]")
        else:
            yield from _faults_of_value(schema, value, place)

    def _faults_of_object(self, schema: Schema, value: Schema, place: str) -> Iterator[str]:
        fields = schema["properties"]
        yield from (f"{place}.{name} is missing" for name in {*schema["required"]} - value.keys())
        if schema.get("additionalProperties") is False:
            yield from (f"{place}.{name} is unknown" for name in value.keys() - fields.keys())
        for name in fields.keys() & value.keys():
            yield from self._faults(fields[name], value[name], f"{place}.{name}")


def _is(value: object, kind: str | None) -> bool:
    """In JSON a boolean is no number."""
    if kind is None or isinstance(value, bool):
        return kind in (None, "boolean")
    return isinstance(value, _KINDS[kind])


def _faults_of_value(schema: Schema, value: object, place: str) -> Iterator[str]:
    if "enum" in schema and value not in schema["enum"]:
        yield f"{place} is none of {schema['enum']}"
    length = len(value) if isinstance(value, str) else 0
    if not schema.get("minLength", 0) <= length <= schema.get("maxLength", length):
        yield f"{place} is too short or too long"
