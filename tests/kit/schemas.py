"""A published schema of a socket's frames, to hold real frames against."""

from typing import Any

import jsonschema_rs

Schema = dict[str, Any]


class Frames:
    """What a published schema says of frames."""

    def __init__(self, schema: Schema) -> None:
        self._definitions: dict[str, Schema] = schema["$defs"]
        self._sides: dict[str, Schema] = schema["properties"]
        self._checks = {
            side: jsonschema_rs.Draft202012Validator({**one, "$defs": self._definitions})
            for side, one in self._sides.items()
        }

    def types(self, side: str) -> set[str]:
        """Those of a side's frames; of the log's events where the side is `event`."""
        event = self._definitions.get("Event", {}).get("properties", {})
        union = (event if side == "event" else self._sides)[side]
        named = (one["$ref"].rsplit("/", 1)[1] for one in union["anyOf"])
        kinds = (self._definitions[name]["properties"]["type"] for name in named)
        return {value for kind in kinds for value in kind["enum"]}

    def faults(self, side: str, frame: object) -> list[str]:
        """What the schema forbids in a frame."""
        return [fault.message for fault in self._checks[side].iter_errors(frame)]
