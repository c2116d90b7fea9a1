"""What one browser socket watches: conversations, and a pump for each of their live responses.

A pump reads a response's log from a cursor and offers each event to the outbox; where the outbox
was full, one snapshot stood in, and the pump goes on behind it. It knows no socket and no frame
that comes in.
"""

import asyncio
import contextlib

from app.chat.eventlog import EventLog, EventLogs
from app.chat.hub import Notice
from app.chat.liveness import Presence
from app.errors import TooMany
from app.events import LogEvent
from app.frames import (
    ConversationChanged,
    ConversationDeleted,
    Cursor,
    Event,
    MessageAdded,
    MessagesDeleted,
    OutwardFrame,
    PresenceState,
    ResponseStarted,
    Snapshot,
)
from app.ids import ConversationId, ResponseId
from app.routes.outbox import Outbox

MOST_SUBSCRIPTIONS = 64
"""A page shows one conversation, and watches those whose answers are on their way."""


class Watches:
    """One per socket. `group` is the socket's task group; pumps end with it or with their log."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        outbox: Outbox[OutwardFrame],
        logs: EventLogs,
        presence: Presence,
    ) -> None:
        self._group = group
        self._outbox = outbox
        self._logs = logs
        self._presence = presence
        self._user_id = presence.user_id
        self._pumps: dict[ConversationId, dict[ResponseId, asyncio.Task[None]]] = {}

    def open(self, conversation_id: ConversationId) -> bool:
        """Watch a conversation: what begins in it from now on. False where it was open already.

        Raises `TooMany`.
        """
        is_new = conversation_id not in self._pumps
        if is_new and len(self._pumps) >= MOST_SUBSCRIPTIONS:
            raise TooMany(f"A socket watches at most {MOST_SUBSCRIPTIONS} conversations.")
        self._pumps.setdefault(conversation_id, {})
        return is_new

    def holds(self, conversation_id: ConversationId) -> bool:
        return conversation_id in self._pumps

    def close(self, conversation_id: ConversationId) -> None:
        self._presence.see(conversation_id, PresenceState.CLOSED)
        for pump in self._pumps.pop(conversation_id, {}).values():
            pump.cancel()

    async def finished(self) -> None:
        """Returns when every pump has come to its log's end."""
        running = [pump for pumps in self._pumps.values() for pump in pumps.values()]
        if running:
            await asyncio.wait(running)

    def follow(self, response_id: ResponseId) -> None:
        """Pump a response from its beginning, if it is of a watched conversation and not pumped.

        Where nothing is logged yet its turn may still be refused; a notice tells when it begins.
        """
        log = self._logs.get(self._user_id, response_id)
        if log is not None and log.next_number:
            pumps = self._pumps_beside(log)
            if pumps is not None and response_id not in pumps:
                pumps[response_id] = self._group.create_task(self._pump(log, -1))

    async def resume(self, log: EventLog, cursor: Cursor) -> None:
        """Pump a response from a cursor: where that does not fit the log, from a snapshot."""
        after = cursor.after
        if not self._fits(log, cursor):
            frame = snapshot(log, self._logs.epoch)
            after = frame.sequence_number
            await self._outbox.put(frame)
        pumps = self._pumps_beside(log)
        assert pumps is not None, "its conversation was opened first"
        if log.response.id in pumps:
            pumps[log.response.id].cancel()
        pumps[log.response.id] = self._group.create_task(self._pump(log, after))

    async def notice(self, notice: Notice) -> None:
        """Pass on what concerns this socket."""
        match notice:
            case ResponseStarted(response=response):
                self.follow(response.id)
            case MessageAdded(message=message):
                if message.conversation_id in self._pumps:
                    await self._outbox.put(notice)
            case MessagesDeleted(conversation_id=conversation_id):
                if conversation_id in self._pumps:
                    await self._outbox.put(notice)
            case ConversationDeleted(conversation_id=conversation_id):
                self.close(conversation_id)
                await self._outbox.put(notice)
            case ConversationChanged():
                await self._outbox.put(notice)

    def _pumps_beside(self, log: EventLog) -> dict[ResponseId, asyncio.Task[None]] | None:
        conversation_id = log.response.conversation_id
        return None if conversation_id is None else self._pumps.get(conversation_id)

    def _fits(self, log: EventLog, cursor: Cursor) -> bool:
        """Whether the cursor was given by this very log, and not by one that is gone."""
        is_kept = self._logs.get(self._user_id, cursor.response_id) is log
        return is_kept and cursor.epoch == self._logs.epoch and cursor.after < log.next_number

    # ------------------------------------------------------------ the pump

    async def _pump(self, log: EventLog, after: int) -> None:
        reached: int | None = after
        while reached is not None:
            reached = await self._pump_until_full(log, reached)

    async def _pump_until_full(self, log: EventLog, after: int) -> int | None:
        """None at the log's end; else the number that a snapshot has reached."""
        reached = after

        def catch_up() -> Snapshot:
            nonlocal reached
            frame = snapshot(log, self._logs.epoch)
            reached = frame.sequence_number
            return frame

        async with contextlib.aclosing(log.subscribe(after)) as events:
            async for event in events:
                frame = dress(log, event, self._logs.epoch)
                if not await self._outbox.offer(log.response.id, frame, catch_up):
                    return reached
        return None


def dress(log: EventLog, event: LogEvent, epoch: str) -> Event:
    """A log's event as a frame. Only what is stored is watched, so it has a conversation."""
    conversation_id = log.response.conversation_id
    assert conversation_id is not None
    return Event(
        conversation_id=conversation_id, response_id=log.response.id, epoch=epoch, event=event
    )


def snapshot(log: EventLog, epoch: str) -> Snapshot:
    """Everything the log has said so far, in one frame."""
    state = log.snapshot()
    return Snapshot(
        response=state.response,
        epoch=epoch,
        text=state.text,
        sequence_number=state.sequence_number,
    )
