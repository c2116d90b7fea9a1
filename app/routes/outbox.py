"""One connection's bounded queue of frames, oldest first (law 18).

It knows neither sockets nor logs. Answers and notices wait for room, in tasks that belong to the
same connection. Events of a response do not wait: where there is no room, those queued of that
response go, and one snapshot, made at the moment it is taken, stands for them:

    queue     [a1 b1 a2 b2 a3]  full, a4 comes
    after     [b1 b2 A]         A = what response a is when the reader gets there

Of what only the last word counts no more than one waits: a newer one stands in its place.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

Frame = TypeVar("Frame")

OUTBOX_FRAMES = 256
"""About ten seconds of one fast response; a healthy reader never has more than a few waiting."""


class Close(msgspec.Struct, frozen=True, kw_only=True):
    """Stands behind the frames that still go out before the connection closes."""

    code: int


class _Entry(Generic[Frame]):
    __slots__ = ("make", "owner", "taken")

    def __init__(self, owner: str | None, make: Callable[[], Frame | Close]) -> None:
        self.owner = owner
        self.make = make
        self.taken = asyncio.Event()


class Outbox(Generic[Frame]):
    """Never longer than its limit and one frame for each owner that overflowed or was renewed."""

    def __init__(self, limit: int = OUTBOX_FRAMES) -> None:
        self._limit = limit
        self._entries: deque[_Entry[Frame]] = deque()
        self._changed = asyncio.Condition()

    def __len__(self) -> int:
        return len(self._entries)

    async def put(self, frame: Frame) -> None:
        """Add a frame, waiting for room."""
        async with self._changed:
            await self._changed.wait_for(self._has_room)
            self._append(_Entry(None, lambda: frame))

    async def offer(self, owner: str, frame: Frame, snapshot: Callable[[], Frame]) -> bool:
        """Add an event of `owner`; False where a snapshot was sent instead of it.

        In that case returns only when the snapshot has been taken, so that whoever offers goes on
        after what the snapshot covered.
        """
        async with self._changed:
            if self._has_room():
                self._append(_Entry(owner, lambda: frame))
                return True
            self._entries = deque(entry for entry in self._entries if entry.owner != owner)
            entry = _Entry(owner, snapshot)
            self._append(entry)
        await entry.taken.wait()
        return False

    async def renew(self, owner: str, frame: Frame) -> None:
        """Put the last word of `owner` in the place of the one that waits; needs no room."""
        async with self._changed:
            waiting = next((entry for entry in self._entries if entry.owner == owner), None)
            if waiting is None:
                self._append(_Entry(owner, lambda: frame))
            else:
                waiting.make = lambda: frame

    async def close(self, code: int) -> None:
        """Add the last entry; it needs no room, since nothing comes after it."""
        async with self._changed:
            self._append(_Entry(None, lambda: Close(code=code)))

    async def take(self) -> Frame | Close:
        """The oldest frame, waiting for one."""
        async with self._changed:
            await self._changed.wait_for(lambda: bool(self._entries))
            entry = self._entries.popleft()
            frame = entry.make()
            entry.taken.set()
            self._changed.notify_all()
            return frame

    def _has_room(self) -> bool:
        return len(self._entries) < self._limit

    def _append(self, entry: _Entry[Frame]) -> None:
        self._entries.append(entry)
        self._changed.notify_all()
