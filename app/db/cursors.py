"""Where a page of rows ends: a time and an id, opaque to clients and safe for a query."""

import base64
import re
from datetime import UTC, datetime

from app.errors import InvalidRequest

_PLACE = re.compile(r"(?P<moment>[0-9T:.-]+\+00:00) (?P<last_id>[a-z]+_[0-9a-z]+)")
"""Any other text could be a time or an id that a database refuses."""


def cursor_of(moment: datetime, last_id: str) -> str:
    place = f"{moment.astimezone(UTC).isoformat()} {last_id}"
    return base64.urlsafe_b64encode(place.encode()).decode()


def place_of(cursor: str) -> tuple[datetime, str]:
    """Raises `InvalidRequest` for what `cursor_of` did not make."""
    refused = InvalidRequest("This cursor is not ours.", field="cursor")
    try:
        place = _PLACE.fullmatch(base64.urlsafe_b64decode(cursor.encode()).decode())
        if place is None:
            raise refused
        return datetime.fromisoformat(place["moment"]), place["last_id"]
    except ValueError as error:
        raise refused from error
