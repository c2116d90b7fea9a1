"""One log per response: append, subscribe from a cursor, snapshot (laws 13, 14, 18).

The log is the one account of a response's life; sockets, SSE and `starting_after` are views of it.
It knows nothing of who reads. Replay then live has no gap because readers hold a position in the
one list, not a queue of their own:

    events    [first ........ position)[position ........ first + len)
    fate       yielded                  still to yield, in order
    append                                                 adds here, wakes all, waits for none

A reader looks at `[position, end)` and goes to sleep in one beat of the loop, so nothing can be
appended between the look and the sleep. The last event is `ResponseEnded`, exactly once.
"""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable

import msgspec

from app.events import (
    ItemAdded,
    ItemDone,
    LogEvent,
    PartAdded,
    PartDone,
    ResponseCreated,
    ResponseEnded,
    ResponseInProgress,
    ResponseStatus,
    ResponseView,
    TextDelta,
    TextDone,
)
from app.ids import ConversationId, ResponseId, UserId
from engine.api import TokenLogprobs

KEEP_ENDED_S = 600.0
"""How long an ended log can be replayed delta by delta; later it is rebuilt from storage."""
KEEP_BYTES = 64 * 2**20
"""What all ended logs may hold together, about; beyond it the oldest logs go first."""
_EVENT_BYTES = 200
_LOGPROB_BYTES = 150


class LogSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything up to `sequence_number` in one piece; -1 when nothing was said yet."""

    response: ResponseView
    text: str
    sequence_number: int


class EventLog:
    """The events of one response, numbered from `first` without a gap."""

    __slots__ = ("_bytes", "_events", "_first", "_logprobs", "_more", "_text", "response")

    def __init__(self, response: ResponseView, *, first: int = 0) -> None:
        self.response = response
        """The newest state that was logged."""
        self._first = first
        self._events: list[LogEvent] = []
        self._text: list[str] = []
        self._logprobs: list[TokenLogprobs] = []
        self._more = asyncio.Event()
        self._bytes = 0

    @property
    def size_bytes(self) -> int:
        """What it holds in memory, about."""
        return self._bytes

    @property
    def next_number(self) -> int:
        """The sequence number that the next event must carry."""
        return self._first + len(self._events)

    @property
    def ended(self) -> bool:
        return bool(self._events) and isinstance(self._events[-1], ResponseEnded)

    @property
    def text(self) -> str:
        return "".join(self._text)

    def append(self, event: LogEvent) -> int:
        """Add `event`, wake every reader, return its sequence number.

        Raises `ValueError` after the end, or when the event carries another number.
        """
        if self.ended:
            raise ValueError(f"the log of {self.response.id} has ended")
        if event.sequence_number != self.next_number:
            raise ValueError(f"event {event.sequence_number} where {self.next_number} comes next")
        self._keep(event)
        self._events.append(event)
        woken, self._more = self._more, asyncio.Event()
        woken.set()
        return event.sequence_number

    def _keep(self, event: LogEvent) -> None:
        self._bytes += _EVENT_BYTES
        if isinstance(event, TextDelta):
            chosen_and_top = sum(1 + len(one.top) for one in event.logprobs)
            self._bytes += len(event.delta) + _LOGPROB_BYTES * chosen_and_top
            self._text.append(event.delta)
            self._logprobs.extend(event.logprobs)
        elif isinstance(event, ResponseCreated | ResponseInProgress | ResponseEnded):
            self.response = event.response

    async def subscribe(self, after: int = -1) -> AsyncGenerator[LogEvent, None]:
        """Every event with a number above `after`, as it comes; ends after `ResponseEnded`."""
        position = max(after + 1 - self._first, 0)
        while True:
            while position < len(self._events):
                yield self._events[position]
                position += 1
            if self.ended:
                return
            await self._more.wait()

    def snapshot(self) -> LogSnapshot:
        """The state and text up to the last event, to replace what a client holds."""
        return LogSnapshot(
            response=self.response, text=self.text, sequence_number=self.next_number - 1
        )

    # ------------------------------------------------------------ the order of a response's life

    def begin(self) -> None:
        """`response.created`."""
        self.append(ResponseCreated(sequence_number=self.next_number, response=self.response))

    def progress(self) -> None:
        """`response.in_progress`: the engine has taken the job up."""
        self.append(ResponseInProgress(sequence_number=self.next_number, response=self.response))

    def open_item(self) -> None:
        """The one output item and its one text part."""
        item_id = self.response.message_id
        self.append(ItemAdded(sequence_number=self.next_number, item_id=item_id))
        self.append(PartAdded(sequence_number=self.next_number, item_id=item_id))

    def write(self, delta: str, logprobs: tuple[TokenLogprobs, ...] = ()) -> None:
        """New text of the open item; nothing is logged for nothing."""
        if delta or logprobs:
            number, item_id = self.next_number, self.response.message_id
            self.append(
                TextDelta(sequence_number=number, item_id=item_id, delta=delta, logprobs=logprobs)
            )

    def close_item(self) -> None:
        """The text, its part and its item are whole."""
        text, logprobs, item_id = self.text, tuple(self._logprobs), self.response.message_id
        self.append(
            TextDone(
                sequence_number=self.next_number, item_id=item_id, text=text, logprobs=logprobs
            )
        )
        self.append(PartDone(sequence_number=self.next_number, item_id=item_id, text=text))
        self.append(ItemDone(sequence_number=self.next_number, item_id=item_id, text=text))

    def end(self, response: ResponseView) -> None:
        """The terminal event, with the state as it was stored."""
        self.append(
            ResponseEnded(sequence_number=self.next_number, response=response, text=self.text)
        )


def rebuild(response: ResponseView, text: str, *, has_item: bool, after: int = -1) -> EventLog:
    """The log of an ended response whose deltas are gone: its whole text as one delta.

    One that the engine never took up has neither an item nor a receipt, and was never in progress.
    A cursor beyond the one delta belongs to the log that is gone: what follows it is the tail with
    the whole text (text done, part done, item done, ended), numbered on from the cursor.
    """
    live = msgspec.structs.replace(
        response,
        status=ResponseStatus.IN_PROGRESS,
        completed_at=None,
        incomplete_reason=None,
        error=None,
        usage=None,
        receipt=None,
    )
    whole = EventLog(live)
    whole.begin()
    if has_item or response.receipt is not None:
        whole.progress()
    if has_item:
        whole.open_item()
        whole.write(text)
    if after < whole.next_number:
        return _close(whole, response, has_item=has_item)
    tail = EventLog(live, first=after + 1)
    tail._text.append(text)
    return _close(tail, response, has_item=has_item)


def _close(log: EventLog, response: ResponseView, *, has_item: bool) -> EventLog:
    if has_item:
        log.close_item()
    log.end(response)
    return log


class EventLogs:
    """The logs of live responses and of those that ended lately, each with its owner.

    `epoch` names this life of the server: cursors of another epoch do not fit these logs.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.epoch = secrets.token_hex(8)
        self._now = now
        self._logs: dict[ResponseId, tuple[UserId, EventLog]] = {}
        self._ended: deque[tuple[float, ResponseId]] = deque()
        self._ended_bytes = 0

    def __len__(self) -> int:
        return len(self._logs)

    def open(self, user_id: UserId, response: ResponseView) -> EventLog:
        """A new log for a response that begins."""
        log = EventLog(response)
        self._logs[response.id] = (user_id, log)
        return log

    def get(self, user_id: UserId, response_id: ResponseId) -> EventLog | None:
        """The owner's log; None where there is none or it is another's."""
        owner_id, log = self._logs.get(response_id, (None, None))
        return log if owner_id == user_id else None

    def live_conversations(self) -> set[ConversationId | None]:
        """In which something is being written."""
        return {log.response.conversation_id for _, log in self._logs.values() if not log.ended}

    def retire(self, response_id: ResponseId) -> None:
        """The response ended: keep its log a while, let the oldest of the others go."""
        if response_id not in self._logs:
            return
        self._ended.append((self._now(), response_id))
        self._ended_bytes += self._logs[response_id][1].size_bytes
        while self._ended and self._outlived():
            _, oldest_id = self._ended.popleft()
            self.drop(oldest_id)

    def _outlived(self) -> bool:
        ended_at, _ = self._ended[0]
        return self._ended_bytes > KEEP_BYTES or self._now() - ended_at > KEEP_ENDED_S

    def drop_conversation(self, user_id: UserId, conversation_id: ConversationId) -> None:
        """Forget all logs of a conversation of this user."""
        of_it = [
            response_id
            for response_id, (owner_id, log) in self._logs.items()
            if owner_id == user_id and log.response.conversation_id == conversation_id
        ]
        for response_id in of_it:
            self.drop(response_id)

    def drop_user(self, user_id: UserId) -> None:
        """Forget all logs of this user."""
        for response_id in [
            one for one, (owner_id, _) in self._logs.items() if owner_id == user_id
        ]:
            self.drop(response_id)

    def drop(self, response_id: ResponseId) -> None:
        """Forget a log at once; readers who hold it still read it to its end."""
        _, log = self._logs.pop(response_id, (None, None))
        if log is not None and log.ended:
            self._ended_bytes -= log.size_bytes
