"""What a body says, taken at its word: `0` is no `false`, and `"5"` is no number."""

from typing import Any

import msgspec
from litestar import Request


class StrictRequest(Request[Any, Any, Any]):
    """Litestar would read a body loosely, as it must read a query, in which all is text."""

    async def json(self) -> Any:
        """The body as its handler takes it. Raises `msgspec.DecodeError`."""
        field = self.route_handler.parsed_data_field
        if field is None or not field.is_subclass_of(msgspec.Struct):
            return await super().json()
        return msgspec.json.decode(await self.body(), type=field.annotation)
