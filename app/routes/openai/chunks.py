"""The view of a response's log as a chat completion, whole or in chunks. PURE: events in, chunks out."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from app.events import (
    ItemAdded,
    LogEvent,
    ResponseEnded,
    ResponseStatus,
    ResponseView,
    TextDelta,
)
from app.routes.openai import schema
from app.routes.openai.objects import logprobs, padded, usage
from engine.api import TokenLogprobs


class CompletionFold:
    """Turns one response's log into chat completion chunks, or into the one whole completion.

    A response that failed has no view here: its problem is answered as an error.
    """

    __slots__ = ("_opened", "_padding", "_response", "_usage_asked", "_wants_logprobs")

    def __init__(
        self,
        response: ResponseView,
        *,
        usage_asked: bool = False,
        wants_logprobs: bool = False,
        padding: bool = False,
    ) -> None:
        self._padding = padding
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
                chunk = self._chunk((choice,))
                return (padded(chunk) if self._padding else chunk,)
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
