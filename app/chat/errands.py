"""Errands: what a part of the server does on the side, in tasks that end with the server.

Nothing is begun before the part runs, nor after it has been told to stop; what is under way then is
stopped by the part itself, which knows what may go on to its end.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from app.ids import ConversationId, UserId

T = TypeVar("T")


class Errands:
    """`stop` ends what needs an end when the server stops; the rest is waited for."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._tasks: asyncio.TaskGroup | None = None

    @property
    def are_taken(self) -> bool:
        """Whether anything can be begun."""
        return self._tasks is not None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Enter and leave it in one task."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                yield
            finally:
                self._tasks = None
                self._stop()

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """To be called only where `are_taken`."""
        assert self._tasks is not None, "nothing is begun before the start or after the end"
        return self._tasks.create_task(work)


class Besides(Protocol):
    """What is computed for somebody beside their turns: drafts, titles, summaries.

    It ends where turns do, because who or what it is for is gone.
    """

    def users(self) -> set[UserId]:
        """For whom something is under way."""

    async def forget(self, user_id: UserId, conversation_id: ConversationId, /) -> None:
        """The conversation is deleted: when this returns nothing more is computed for it."""

    async def forget_user(self, user_id: UserId, /) -> None:
        """They may not be here: when this returns nothing more is computed for them."""


async def settled(work: Coroutine[None, None, T], result: asyncio.Future[T]) -> T | None:
    """What came of `work`, also for a caller who went away; None where it raised."""
    try:
        done = await work
    except Exception as error:  # noqa: BLE001  it is the caller's, wherever the caller is
        if not result.done():
            result.set_exception(error)
        return None
    if not result.done():
        result.set_result(done)
    return done
