"""The engine's contract as frames between two processes: one version byte, then msgpack.

Calls go down to the engine's process, notes come up from it. A frame that is unknown, malformed,
too large or of another version raises `Corrupt` and nothing else; an argument that no frame can
hold raises `InvalidJob`. Knows no socket.
"""

from typing import TypeVar

import msgspec

from engine.api import (
    CacheEvent,
    CacheSnapshot,
    Cancelled,
    Delta,
    Finished,
    Job,
    JobId,
    LeaseState,
    ModelCard,
    Refusal,
    Rendered,
    RenderRequest,
    Started,
    Stats,
    Subject,
    Wish,
)
from engine.errors import (
    Corrupt,
    EngineClosed,
    EngineError,
    EngineLost,
    InvalidGrammar,
    InvalidJob,
    Misconfigured,
    Overloaded,
    PromptTooLong,
    Refused,
)

VERSION = 2
FRAME_BYTES = 64 << 20
"""Room for the longest contexts: ids of a prompt and of its history, five bytes each."""


# ---------------------------------------------------------------- calls, down


class Render(msgspec.Struct, frozen=True, kw_only=True, tag="render"):
    request: RenderRequest


class Generate(msgspec.Struct, frozen=True, kw_only=True, tag="generate"):
    job: Job


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    job_id: JobId


class Lease(msgspec.Struct, frozen=True, kw_only=True, tag="lease"):
    subject: Subject
    wish: Wish


class ReadStats(msgspec.Struct, frozen=True, kw_only=True, tag="stats"):
    """Also the heartbeat: it is answered by the thread that computes."""


class ReadSnapshot(msgspec.Struct, frozen=True, kw_only=True, tag="snapshot"):
    tree: bool = True


class Watch(msgspec.Struct, frozen=True, kw_only=True, tag="watch"):
    after: int


class Drop(msgspec.Struct, frozen=True, kw_only=True, tag="drop"):
    """Nobody reads the answers of this request any more."""


class Close(msgspec.Struct, frozen=True, kw_only=True, tag="close"):
    pass


CallBody = Render | Generate | Cancel | Lease | ReadStats | ReadSnapshot | Watch | Drop | Close


class Call(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every reply carries its call's `request_id`; a `Drop` names the call that it ends."""

    request_id: int
    body: CallBody


# ---------------------------------------------------------------- notes, up


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """What the engine is doing before it is ready, in words."""

    text: str


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """`info` is answered from this card."""

    card: ModelCard


class Unready(msgspec.Struct, frozen=True, kw_only=True, tag="unready"):
    """The engine could not start and its process ends."""

    failure: Refusal


class RenderReply(msgspec.Struct, frozen=True, kw_only=True, tag="rendered"):
    rendered: Rendered


class CancelReply(msgspec.Struct, frozen=True, kw_only=True, tag="cancelled"):
    cancelled: Cancelled


class LeaseReply(msgspec.Struct, frozen=True, kw_only=True, tag="leased"):
    lease: LeaseState


class StatsReply(msgspec.Struct, frozen=True, kw_only=True, tag="stats"):
    stats: Stats


class SnapshotReply(msgspec.Struct, frozen=True, kw_only=True, tag="snapshot"):
    snapshot: CacheSnapshot


class WatchReply(msgspec.Struct, frozen=True, kw_only=True, tag="changed"):
    event: CacheEvent


class ClosedReply(msgspec.Struct, frozen=True, kw_only=True, tag="closed"):
    pass


class FailedReply(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    failure: Refusal


ReplyBody = (
    Started
    | Delta
    | Finished
    | RenderReply
    | CancelReply
    | LeaseReply
    | StatsReply
    | SnapshotReply
    | WatchReply
    | ClosedReply
    | FailedReply
)


class Reply(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    request_id: int
    body: ReplyBody


class Replies(msgspec.Struct, frozen=True, kw_only=True, tag="replies"):
    """Everything that one step had to say, in one frame."""

    replies: tuple[Reply, ...]


Note = Progress | Ready | Unready | Replies


# ---------------------------------------------------------------- frames

_encoder = msgspec.msgpack.Encoder()
_calls: msgspec.msgpack.Decoder[Call] = msgspec.msgpack.Decoder(Call)
_notes: msgspec.msgpack.Decoder[Note] = msgspec.msgpack.Decoder(Note)
_Frame = TypeVar("_Frame")


def pack(frame: Call | Note) -> bytes:
    """Raises `InvalidJob` for what no frame can hold: a huge integer, half a surrogate pair."""
    try:
        packed = bytes([VERSION]) + _encoder.encode(frame)
    except (OverflowError, UnicodeEncodeError, msgspec.MsgspecError) as error:
        raise InvalidJob(f"cannot be sent to the engine: {error}") from error
    if len(packed) > FRAME_BYTES:
        raise InvalidJob(f"{len(packed):,} bytes are too many for the engine ({FRAME_BYTES:,})")
    return packed


def unpack_call(frame: bytes) -> Call:
    """Raises `Corrupt`."""
    return _unpack(_calls, frame)


def unpack_note(frame: bytes) -> Note:
    """Raises `Corrupt`."""
    return _unpack(_notes, frame)


def _unpack(decoder: msgspec.msgpack.Decoder[_Frame], frame: bytes) -> _Frame:
    if len(frame) > FRAME_BYTES:
        raise Corrupt(f"a frame of {len(frame):,} bytes; at most {FRAME_BYTES:,} are read")
    if frame[:1] != bytes([VERSION]):
        raise Corrupt(f"a frame of version {frame[:1].hex() or 'none'}, not {VERSION:02x}")
    try:
        return decoder.decode(memoryview(frame)[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"a malformed frame: {error}") from error


# ---------------------------------------------------------------- errors

_CODES: dict[type[EngineError], str] = {
    EngineLost: "engine_lost",
    EngineClosed: "engine_closed",
    Corrupt: "corrupt",
    Misconfigured: "misconfigured",
}


def failure_of(error: EngineError) -> Refusal:
    """`error` as data; a refusal keeps its code, its field and its numbers."""
    if not isinstance(error, Refused):
        return Refusal(code=_CODES.get(type(error), "corrupt"), message=str(error))
    return Refusal(
        code=error.code,
        message=error.message,
        field=error.field,
        needed_tokens=getattr(error, "needed_tokens", None),
        limit_tokens=getattr(error, "limit_tokens", None),
        retry_after_s=getattr(error, "retry_after_s", None),
    )


def error_of(failure: Refusal) -> EngineError:
    """The error that `failure_of` was given, of the same type and with the same words."""
    for kind, code in _CODES.items():
        if failure.code == code:
            return kind(failure.message)
    match failure:
        case Refusal(code=PromptTooLong.code, needed_tokens=int(needed), limit_tokens=int(limit)):
            return PromptTooLong(failure.message, needed_tokens=needed, limit_tokens=limit)
        case Refusal(code=Overloaded.code, retry_after_s=float(seconds)):
            return Overloaded(failure.message, retry_after_s=seconds)
        case Refusal(code=InvalidGrammar.code):
            return InvalidGrammar(failure.message)
        case Refusal(code=InvalidJob.code):
            return InvalidJob(failure.message, field=failure.field)
        case _:
            return Refused(failure.message, field=failure.field)
