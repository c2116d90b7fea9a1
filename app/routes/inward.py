"""What comes in on `/ws`: a frame of the protocol, or why it is none."""

import msgspec

from app.errors import InvalidRequest
from app.frames import InwardFrame
from app.routes.problems import from_decoding


class _Asked(msgspec.Struct):
    """As much of a frame as an error frame repeats."""

    request_id: str | None = None


_frames = msgspec.json.Decoder(InwardFrame)


def decode(text: str) -> InwardFrame:
    """Raises `InvalidRequest`, which names the field."""
    try:
        return _frames.decode(text)
    except msgspec.DecodeError as error:
        raise from_decoding(error) from error
    except RecursionError as error:
        raise InvalidRequest("This is nested too deeply.") from error


def asked_id(text: str) -> str | None:
    """The `request_id` of what is no frame, as far as it has one."""
    try:
        return msgspec.json.decode(text, type=_Asked).request_id
    except (msgspec.DecodeError, RecursionError):
        return None
