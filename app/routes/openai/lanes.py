"""The lanes of one dialect socket: what is asked in which order, and what each remembers. PURE.

    lane ""     [create 1] running  [create 4] waits        strictly one after the other
    lane "a"    [create 2] running                          lanes run side by side,
    lane "b"    [create 3] running                          16 responses at a time, more wait

A lane's latest response that is not stored can be continued while this socket lives, and in no
other way; a stored one is known to everybody who may read it.
"""

import asyncio
import re
from collections.abc import Iterator

from app.errors import InvalidRequest, TooMany
from app.events import ResponseView
from app.ids import ResponseId
from app.routes.openai.requests import Document
from app.routes.openai.steering import Telling

NAMED_LANES = 32
"""Distinct names over a socket's whole life; the lane without a name is not counted."""
IN_FLIGHT = 16
WAITING_REQUESTS = 64
"""Requests that one socket may have waiting in all its lanes together."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,256}")


class Lane:
    """One lane; `stream_id` is None for the lane without a name."""

    __slots__ = ("latest", "requests", "stream_id", "telling", "told", "waiting")

    def __init__(self, stream_id: str | None) -> None:
        self.stream_id = stream_id
        self.requests: asyncio.Queue[Document] = asyncio.Queue(WAITING_REQUESTS)
        self.latest: ResponseId | None = None
        """The latest response of this lane, where it is not stored."""
        self.telling: Telling | None = None
        self.told: ResponseView | None = None
        """The last response that was told to its end."""
        self.waiting: Telling | None = None
        """That response, where it was steered and waits for what its functions give."""


class Lanes:
    """All lanes of one socket."""

    def __init__(self) -> None:
        self._by_name: dict[str | None, Lane] = {}

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._by_name.values())

    def find(self, stream_id: object) -> tuple[Lane, bool]:
        """The lane of this name, and whether it is new. Raises `InvalidRequest`."""
        name = lane_name(stream_id)
        if name in self._by_name:
            return self._by_name[name], False
        if name is not None and len(self._by_name.keys() - {None}) == NAMED_LANES:
            raise InvalidRequest(
                f"A connection has at most {NAMED_LANES} named lanes.",
                code="websocket_stream_limit_reached",
                field="stream_id",
            )
        self._by_name[name] = Lane(name)
        return self._by_name[name], True

    def queue(self, lane: Lane, document: Document) -> None:
        """Let a request wait for its turn in the lane. Raises `TooMany`."""
        if sum(one.requests.qsize() for one in self) >= WAITING_REQUESTS:
            raise TooMany(
                f"{WAITING_REQUESTS} requests wait on this connection already.",
                code="websocket_queue_full",
                retry_after_s=1.0,
            )
        lane.requests.put_nowait(document)

    def telling(self, response_id: object) -> Lane | None:
        """The lane that tells this response now."""
        told = (one for one in self if one.telling and one.telling.response_id == response_id)
        return next(told, None)

    def told(self, response_id: object) -> ResponseView | None:
        """This response, where it was the last that its lane told."""
        return next((one.told for one in self if one.told and one.told.id == response_id), None)

    def remembers(self, response_id: ResponseId) -> bool:
        return any(lane.latest == response_id for lane in self)


def lane_name(stream_id: object) -> str | None:
    """A valid name, or None where none was given. Raises `InvalidRequest`."""
    if stream_id is None:
        return None
    if not isinstance(stream_id, str) or not _NAME.fullmatch(stream_id):
        raise InvalidRequest(
            "A lane is named by 1 to 256 letters, digits, `_`, `-` and `.`.",
            code="invalid_stream_id",
            field="stream_id",
        )
    return stream_id
