"""The dialect's view of a response's log, for every transport. PURE: events in, events out.

A log event becomes the event of the same name and number; only two things need more than one
event, so a view folds the log from its start: an item's final status is known when the response has
ended, and the logprobs of the whole text come before the objects that repeat them. Whoever resumes
folds the whole log as well and leaves out what its client has seen. An answer that may call is parted
into items here (`calling`), and then its events are numbered as they are told.

It knows neither sockets nor HTTP.
"""

from collections.abc import Iterable
from typing import assert_never

import msgspec
from msgspec import UNSET, UnsetType

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
    TextDelta,
    TextDone,
)
from app.routes.openai import schema
from app.routes.openai.calling import CallEvents
from app.routes.openai.events import (
    ArgumentsDelta,
    DeltaEvent,
    DoneEvent,
    ItemEvent,
    LifeEvent,
    LifeType,
    PartEvent,
    PartType,
    ServerEvent,
)
from app.routes.openai.objects import logprobs, output_items, padded, response_object
from app.routes.openai.schema import Echo

_TERMINAL: dict[ResponseStatus, LifeType] = {
    ResponseStatus.COMPLETED: "response.completed",
    ResponseStatus.FAILED: "response.failed",
}
"""Every other end, a cancel among them, is `response.incomplete`: there is no fourth terminal."""
TERMINAL = {*_TERMINAL.values(), "response.incomplete"}


class ResponseFold:
    """Turns one response's log into the events of `/v1/responses`.

    `stream_id` names the socket's lane that asked; without one the events carry none. `padding`: the
    sizes of what carries text tell little.
    """

    __slots__ = ("_calls", "_echo", "_item_done", "_logprobs", "_padding", "_stream_id", "_told")

    def __init__(self, echo: Echo, stream_id: str | None = None, *, padding: bool = False) -> None:
        self._echo = echo
        self._padding = padding
        self._stream_id: str | UnsetType = UNSET if stream_id is None else stream_id
        self._logprobs: tuple[schema.Logprob, ...] = ()
        self._item_done: ItemDone | None = None
        self._calls = None if echo.tools is None else CallEvents(echo.tools.form)
        self._told = 0

    def events(self, event: LogEvent) -> tuple[ServerEvent, ...]:
        """What to send for the next event of the log, in order."""
        if self._calls is not None:
            return tuple(self._numbered(one) for one in self._called(self._calls, event))
        match event:
            case ResponseCreated():
                return (self._life("response.created", event),)
            case ResponseInProgress():
                return (self._life("response.in_progress", event),)
            case ResponseEnded():
                return self._ending(event)
            case ItemDone():
                self._item_done = event
                return ()
            case _:
                return (self._content(event),)

    def _life(
        self,
        name: LifeType,
        event: ResponseCreated | ResponseInProgress | ResponseEnded,
        output: tuple[schema.OutputItem, ...] = (),
    ) -> LifeEvent:
        return LifeEvent(
            type=name,
            sequence_number=event.sequence_number,
            response=response_object(event.response, self._echo, output),
            stream_id=self._stream_id,
        )

    def _ending(self, event: ResponseEnded) -> tuple[ServerEvent, ...]:
        name = _TERMINAL.get(event.response.status, "response.incomplete")
        if self._item_done is None:
            return (self._life(name, event),)
        (item,) = output_items(event.response, event.text, None, self._logprobs)
        done = ItemEvent(
            type="response.output_item.done",
            sequence_number=self._item_done.sequence_number,
            item=item,
            stream_id=self._stream_id,
        )
        return (done, self._life(name, event, (item,)))

    def _called(self, calls: CallEvents, event: LogEvent) -> Iterable[ServerEvent]:
        match event:
            case ResponseCreated():
                yield self._life("response.created", event)
            case ResponseInProgress():
                yield self._life("response.in_progress", event)
            case ResponseEnded():
                name = _TERMINAL.get(event.response.status, "response.incomplete")
                yield from calls.rest()
                items: tuple[schema.OutputItem, ...] = ()
                if calls.began:
                    text, tools = event.text, self._echo.tools
                    items = output_items(event.response, text, tools, calls.logprobs)
                yield from calls.end(items)
                yield self._life(name, event, items)
            case _:
                yield from calls.events(event)

    def _numbered(self, event: ServerEvent) -> ServerEvent:
        number, self._told = self._told, self._told + 1
        told = msgspec.structs.replace(event, sequence_number=number, stream_id=self._stream_id)
        if self._padding and isinstance(told, DeltaEvent):
            return padded(told)
        if self._padding and isinstance(told, ArgumentsDelta):
            return padded(told)
        return told

    def _content(
        self, event: ItemAdded | PartAdded | TextDelta | TextDone | PartDone
    ) -> ServerEvent:
        match event:
            case ItemAdded():
                item = schema.OutputMessage(id=event.item_id, status="in_progress", content=())
                return ItemEvent(
                    type="response.output_item.added",
                    sequence_number=event.sequence_number,
                    item=item,
                    stream_id=self._stream_id,
                )
            case PartAdded():
                return self._part("response.content_part.added", event, schema.OutputText(text=""))
            case PartDone():
                part = schema.OutputText(text=event.text, logprobs=self._logprobs)
                return self._part("response.content_part.done", event, part)
            case TextDelta() | TextDone():
                return self._text(event)
            case _:
                assert_never(event)

    def _part(
        self, name: PartType, event: PartAdded | PartDone, part: schema.OutputText
    ) -> PartEvent:
        return PartEvent(
            type=name,
            sequence_number=event.sequence_number,
            item_id=event.item_id,
            part=part,
            stream_id=self._stream_id,
        )

    def _text(self, event: TextDelta | TextDone) -> ServerEvent:
        if isinstance(event, TextDelta):
            delta = DeltaEvent(
                sequence_number=event.sequence_number,
                item_id=event.item_id,
                delta=event.delta,
                logprobs=logprobs(event.logprobs),
                stream_id=self._stream_id,
            )
            return padded(delta) if self._padding else delta
        self._logprobs = logprobs(event.logprobs)
        return DoneEvent(
            sequence_number=event.sequence_number,
            item_id=event.item_id,
            text=event.text,
            logprobs=self._logprobs,
            stream_id=self._stream_id,
        )
