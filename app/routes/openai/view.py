"""The dialect's view of a response's log, for every transport. PURE: events in, events out.

A log event becomes the event of the same name and number; only two things need more than one
event, so a view folds the log from its start: an item's final status is known when the response has
ended, and the logprobs of the whole text come before the objects that repeat them. Whoever resumes
folds the whole log as well and leaves out what its client has seen.

It knows neither sockets nor HTTP.
"""

from collections.abc import Sequence
from typing import assert_never

import msgspec
from msgspec import UNSET, UnsetType

from app.chat.ledger import StoredResponse
from app.events import (
    ItemAdded,
    ItemDone,
    LogEvent,
    MessageView,
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
from app.routes.openai import schema
from app.routes.openai.events import (
    DeltaEvent,
    DoneEvent,
    ItemEvent,
    LifeEvent,
    PartEvent,
    ServerEvent,
)
from app.routes.openai.schema import Echo
from engine.api import Role, TokenLogprob, TokenLogprobs

_OUTPUT_STATUS = {
    ResponseStatus.QUEUED: "in_progress",
    ResponseStatus.IN_PROGRESS: "in_progress",
    ResponseStatus.COMPLETED: "completed",
}
_TERMINAL = {
    ResponseStatus.COMPLETED: "response.completed",
    ResponseStatus.FAILED: "response.failed",
}
"""Every other end, a cancel among them, is `response.incomplete`: there is no fourth terminal."""


# ---------------------------------------------------------------- pieces


def logprobs(tokens: Sequence[TokenLogprobs]) -> tuple[schema.Logprob, ...]:
    return tuple(
        schema.Logprob(
            token=token.chosen.token,
            logprob=token.chosen.logprob,
            bytes=_bytes(token.chosen),
            top_logprobs=tuple(
                schema.TopLogprob(token=top.token, logprob=top.logprob, bytes=_bytes(top))
                for top in token.top
            ),
        )
        for token in tokens
    )


def _bytes(token: TokenLogprob) -> tuple[int, ...]:
    return tuple(token.token.encode())


def usage(response: ResponseView) -> schema.ResponseUsage | None:
    """`cached_tokens` and `cache_write_tokens` sum to `input_tokens`, zero included (law 2)."""
    if response.usage is None:
        return None
    spent = response.usage
    return schema.ResponseUsage(
        input_tokens=spent.input_tokens,
        input_tokens_details=schema.InputTokensDetails(
            cached_tokens=spent.cached_tokens,
            cache_write_tokens=spent.input_tokens - spent.cached_tokens,
        ),
        output_tokens=spent.output_tokens,
        total_tokens=spent.input_tokens + spent.output_tokens,
    )


def output_message(
    response: ResponseView, text: str, tokens: tuple[schema.Logprob, ...] = ()
) -> schema.OutputMessage:
    return schema.OutputMessage(
        id=response.message_id,
        status=_OUTPUT_STATUS.get(response.status, "incomplete"),
        content=(schema.OutputText(text=text, logprobs=tokens),),
    )


def response_object(
    response: ResponseView, echo: Echo, output: tuple[schema.OutputMessage, ...]
) -> schema.ResponseObject:
    """The response as `GET` shows it and as its life events carry it."""
    reason, error = response.incomplete_reason, response.error
    return schema.ResponseObject(
        id=response.id,
        created_at=response.created_at,
        completed_at=response.completed_at,
        status=response.status,
        error=schema.ErrorDetail(code=error.code, message=error.message) if error else None,
        incomplete_details=schema.IncompleteDetails(reason=reason) if reason else None,
        instructions=echo.instructions,
        max_output_tokens=echo.limits.max_output_tokens,
        metadata=echo.metadata,
        model=response.model,
        output=output,
        previous_response_id=echo.previous_response_id,
        store=echo.store,
        temperature=echo.sampling.temperature,
        top_p=echo.sampling.top_p,
        top_logprobs=echo.sampling.logprobs or 0,
        usage=usage(response),
        receipt=response.receipt,
    )


def stored_echo(stored: StoredResponse) -> Echo:
    """What was kept of the request that made this response."""
    return Echo(
        instructions=stored.instructions,
        previous_response_id=stored.previous_response_id,
        metadata=stored.asked.metadata,
        sampling=stored.asked.sampling,
        limits=stored.asked.limits,
        store=stored.store,
        generate=stored.asked.generate,
    )


def stored_response(stored: StoredResponse) -> schema.ResponseObject:
    """A response outside its log: one that writes shows its text so far, a warm-up shows none."""
    output = (output_message(stored.view, stored.text),) if stored.has_item else ()
    return response_object(stored.view, stored_echo(stored), output)


def input_item(message: MessageView) -> schema.InputItem:
    part = schema.OutputText if message.role == Role.ASSISTANT else schema.InputText
    return schema.InputItem(id=message.id, role=message.role, content=(part(text=message.text),))


# ---------------------------------------------------------------- responses


class ResponseFold:
    """Turns one response's log into the events of `/v1/responses`.

    `stream_id` names the socket's lane that asked; without one the events carry none.
    """

    __slots__ = ("_echo", "_item_done", "_logprobs", "_stream_id")

    def __init__(self, echo: Echo, stream_id: str | None = None) -> None:
        self._echo = echo
        self._stream_id: str | UnsetType = UNSET if stream_id is None else stream_id
        self._logprobs: tuple[schema.Logprob, ...] = ()
        self._item_done: ItemDone | None = None

    def events(self, event: LogEvent) -> tuple[ServerEvent, ...]:
        """What to send for the next event of the log, in order."""
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
        name: str,
        event: ResponseCreated | ResponseInProgress | ResponseEnded,
        output: tuple[schema.OutputMessage, ...] = (),
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
        item = output_message(event.response, event.text, self._logprobs)
        done = ItemEvent(
            type="response.output_item.done",
            sequence_number=self._item_done.sequence_number,
            item=item,
            stream_id=self._stream_id,
        )
        return (done, self._life(name, event, (item,)))

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

    def _part(self, name: str, event: PartAdded | PartDone, part: schema.OutputText) -> PartEvent:
        return PartEvent(
            type=name,
            sequence_number=event.sequence_number,
            item_id=event.item_id,
            part=part,
            stream_id=self._stream_id,
        )

    def _text(self, event: TextDelta | TextDone) -> ServerEvent:
        if isinstance(event, TextDelta):
            return DeltaEvent(
                sequence_number=event.sequence_number,
                item_id=event.item_id,
                delta=event.delta,
                logprobs=logprobs(event.logprobs),
                stream_id=self._stream_id,
            )
        self._logprobs = logprobs(event.logprobs)
        return DoneEvent(
            sequence_number=event.sequence_number,
            item_id=event.item_id,
            text=event.text,
            logprobs=self._logprobs,
            stream_id=self._stream_id,
        )


# ---------------------------------------------------------------- chat completions


class CompletionFold:
    """Turns one response's log into chat completion chunks, or into the one whole completion.

    A response that failed has no view here: its problem is answered as an error.
    """

    __slots__ = ("_opened", "_response", "_usage_asked", "_wants_logprobs")

    def __init__(
        self, response: ResponseView, *, usage_asked: bool = False, wants_logprobs: bool = False
    ) -> None:
        self._response = response
        self._usage_asked = usage_asked
        self._wants_logprobs = wants_logprobs
        self._opened = False

    def chunks(self, event: LogEvent) -> tuple[schema.Chunk, ...]:
        """The role first, then text, then the reason of the end, then the usage if asked for."""
        match event:
            case ItemAdded():
                return self._opening()
            case TextDelta():
                delta = schema.ChunkDelta(content=event.delta)
                choice = schema.ChunkChoice(delta=delta, logprobs=self._logs(event.logprobs))
                return (self._chunk((choice,)),)
            case ResponseEnded():
                return (*self._opening(), *self._ending(event.response))
            case _:
                return ()

    def completion(
        self, ended: ResponseEnded, tokens: Sequence[TokenLogprobs]
    ) -> schema.Completion:
        """The whole answer; `tokens` are its logprobs, as `TextDone` brought them."""
        choice = schema.CompletionChoice(
            message=schema.CompletionMessage(content=ended.text),
            finish_reason=_finish_reason(ended.response),
            logprobs=self._logs(tokens),
        )
        return schema.Completion(
            id=_completion_id(self._response),
            created=int(self._response.created_at),
            model=self._response.model,
            choices=(choice,),
            usage=completion_usage(ended.response),
        )

    def _opening(self) -> tuple[schema.Chunk, ...]:
        if self._opened:
            return ()
        self._opened = True
        delta = schema.ChunkDelta(role="assistant", content="")
        return (self._chunk((schema.ChunkChoice(delta=delta),)),)

    def _ending(self, response: ResponseView) -> tuple[schema.Chunk, ...]:
        choice = schema.ChunkChoice(
            delta=schema.ChunkDelta(), finish_reason=_finish_reason(response)
        )
        last = self._chunk((choice,))
        if not self._usage_asked:
            return (last,)
        spent = msgspec.structs.replace(last, choices=(), usage=completion_usage(response))
        return (last, spent)

    def _logs(self, tokens: Sequence[TokenLogprobs]) -> schema.CompletionLogprobs | None:
        return schema.CompletionLogprobs(content=logprobs(tokens)) if self._wants_logprobs else None

    def _chunk(self, choices: tuple[schema.ChunkChoice, ...]) -> schema.Chunk:
        return schema.Chunk(
            id=_completion_id(self._response),
            created=int(self._response.created_at),
            model=self._response.model,
            choices=choices,
            usage=None if self._usage_asked else UNSET,
        )


def completion_usage(response: ResponseView) -> schema.CompletionUsage | None:
    spent = usage(response)
    if spent is None:
        return None
    return schema.CompletionUsage(
        prompt_tokens=spent.input_tokens,
        completion_tokens=spent.output_tokens,
        total_tokens=spent.total_tokens,
        prompt_tokens_details=spent.input_tokens_details,
    )


def _completion_id(response: ResponseView) -> str:
    return "chatcmpl-" + response.id.removeprefix("resp_")


def _finish_reason(response: ResponseView) -> str:
    """The dialect has no word for an answer that was stopped: like a cut one, it is not whole."""
    return "stop" if response.status == ResponseStatus.COMPLETED else "length"
