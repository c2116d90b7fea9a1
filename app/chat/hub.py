"""Fan-out of what changed to everyone who watches a user: hints, one feed per watcher.

Hints may be lost (a feed that is not read forgets its oldest); the database and the event logs are
the truth. The hub knows no socket and never waits for a watcher.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from app.chat.ledger import Acceptance
from app.frames import (
    ConversationChanged,
    ConversationDeleted,
    MessageAdded,
    MessagesDeleted,
    ResponseStarted,
)
from app.ids import UserId

FEED_NOTICES = 256
"""Notices that a feed keeps for a watcher who is late."""


Notice = (
    MessageAdded | MessagesDeleted | ResponseStarted | ConversationChanged | ConversationDeleted
)


class Feed:
    """One watcher's notices, oldest first; iterate it until the watch ends."""

    __slots__ = ("_notices", "_woken", "lost_notices")

    def __init__(self) -> None:
        self._notices: deque[Notice] = deque()
        self._woken = asyncio.Event()
        self.lost_notices = 0

    def put(self, notice: Notice) -> None:
        """Never blocks: when the watcher is late the oldest notice goes."""
        if len(self._notices) == FEED_NOTICES:
            self._notices.popleft()
            self.lost_notices += 1
        self._notices.append(notice)
        self._woken.set()

    async def __aiter__(self) -> AsyncIterator[Notice]:
        while True:
            while self._notices:
                yield self._notices.popleft()
            self._woken.clear()
            await self._woken.wait()


class Hub:
    """Who watches whom. One per process; used from the event loop's thread only."""

    def __init__(self) -> None:
        self._feeds: dict[UserId, set[Feed]] = {}

    def publish(self, user_id: UserId, notice: Notice) -> None:
        """Tell every watcher of this user."""
        for feed in self._feeds.get(user_id, ()):
            feed.put(notice)

    def announce(self, user_id: UserId, acceptance: Acceptance) -> None:
        """Tell every watcher of this user of a turn that begins."""
        for message in acceptance.messages:
            self.publish(user_id, MessageAdded(message=message))
        self.publish(user_id, ResponseStarted(response=acceptance.response))
        if acceptance.conversation is not None:
            self.publish(user_id, ConversationChanged(conversation=acceptance.conversation))

    @contextmanager
    def watch(self, user_id: UserId) -> Iterator[Feed]:
        """A feed of what happens to `user_id`'s things from now until the block ends."""
        feed = Feed()
        self._feeds.setdefault(user_id, set()).add(feed)
        try:
            yield feed
        finally:
            self._feeds[user_id].discard(feed)
            if not self._feeds[user_id]:
                del self._feeds[user_id]
