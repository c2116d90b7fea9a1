"""Files that are to become documents: what is told of one, and who is asked for its text."""

import msgspec

from app.chat.apart import Apart

LONGEST_TEXT = 1_000_000
"""Characters, as many as a document may have."""


class Extracted(msgspec.Struct, frozen=True, kw_only=True):
    """`title`: what the file calls itself; empty where it does not."""

    title: str
    text: str
    pages: int | None = None
    """Of a PDF."""


class Extraction:
    """Asks `extract` in a process of its own: this one never loads what reads a PDF."""

    def __init__(self, apart: Apart) -> None:
        self._apart = apart

    async def text(self, data: bytes, name: str) -> Extracted:
        """Raises `InvalidRequest` for what has no text, too much, or none that can be read."""
        (item,) = [one async for one in self._apart.items("document", data, name)]
        return msgspec.json.decode(item, type=Extracted)
