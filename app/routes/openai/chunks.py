"""The view of a response's log as a chat completion, whole or in chunks. PURE: events in, chunks out."""

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import UNSET

from app.chat.asked import Tools
from app.chat.calls import (
    Argued,
    Begun,
    CallReader,
    Piece,
    Said,
    SaidTokens,
    Written,
    call_id,
    written,
)
from app.events import (
    ItemAdded,
    LogEvent,
    ResponseEnded,
    ResponseStatus,
    ResponseView,
    TextDelta,
)
from app.routes.openai import functions, schema
from app.routes.openai.objects import logprobs, padded, usage
from engine.api import TokenLogprobs


class CompletionFold:
    """Turns one response's log into chat completion chunks, or into the one whole completion.

    A response that failed has no view here: its problem is answered as an error.
    """

    __slots__ = (
        "_calls",
        "_opened",
        "_padding",
        "_reader",
        "_response",
        "_said",
        "_tokens",
        "_tools",
        "_usage_asked",
        "_wants_logprobs",
    )

    def __init__(
        self,
        response: ResponseView,
        *,
        usage_asked: bool = False,
        wants_logprobs: bool = False,
        padding: bool = False,
        tools: Tools | None = None,
    ) -> None:
        self._padding = padding
        self._response = response
        self._usage_asked = usage_asked
        self._wants_logprobs = wants_logprobs
        self._opened = False
        self._tools = tools
        self._reader = None if tools is None else CallReader(tools.form)
        self._calls = 0
        self._said = 0
        """Characters that were told of what an answer that may call says."""
        self._tokens = SaidTokens()

    def chunks(self, event: LogEvent) -> tuple[schema.Chunk, ...]:
        """The role first, then text, then the reason of the end, then the usage if asked for."""
        match event:
            case ItemAdded():
                return self._opening()
            case TextDelta() if self._reader is not None:
                self._tokens.feed(event.delta, event.logprobs)
                return tuple(self._pieces(self._reader.feed(event.delta)))
            case TextDelta():
                return (self._more(schema.ChunkDelta(content=event.delta), event.logprobs),)
            case ResponseEnded():
                rest = () if self._reader is None else tuple(self._rest(self._reader))
                return (*self._opening(), *rest, *self._ending(event))
            case _:
                return ()

    def completion(self, events: Sequence[LogEvent]) -> schema.Completion:
        """The whole answer, from its whole log."""
        ended = events[-1]
        assert isinstance(ended, ResponseEnded), "a log ends with the response's end"
        reply = self._reply(ended.text)
        choice = schema.CompletionChoice(
            message=self._message(reply),
            finish_reason=self._finish_reason(ended),
            logprobs=self._logs(_said_tokens(events, reply.text)),
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

    def _pieces(self, pieces: Sequence[Piece]) -> Iterator[schema.Chunk]:
        for piece in pieces:
            delta = self._delta(piece)
            if delta is not None:
                yield self._more(delta, self._tokens_of(piece))

    def _rest(self, reader: CallReader) -> Iterator[schema.Chunk]:
        yield from self._pieces(reader.end())
        behind = self._tokens.behind(self._said)
        if behind:
            yield self._more(schema.ChunkDelta(content=""), behind)

    def _tokens_of(self, piece: Piece) -> tuple[TokenLogprobs, ...] | None:
        """None of a call's."""
        if not isinstance(piece, Said):
            return None
        self._said += len(piece.text)
        return self._tokens.before(self._said)

    def _more(
        self, delta: schema.ChunkDelta, tokens: Sequence[TokenLogprobs] | None
    ) -> schema.Chunk:
        logs = None if tokens is None else self._logs(tokens)
        chunk = self._chunk((schema.ChunkChoice(delta=delta, logprobs=logs),))
        return padded(chunk) if self._padding else chunk

    def _delta(self, piece: Piece) -> schema.ChunkDelta | None:
        match piece:
            case Said():
                return schema.ChunkDelta(content=piece.text)
            case Begun():
                self._calls += 1
                place = self._calls - 1
                begun = functions.ToolCallDelta(
                    index=place,
                    id=call_id(self._response.message_id, place),
                    type="function",
                    function=functions.CalledDelta(name=piece.name, arguments=""),
                )
                return schema.ChunkDelta(tool_calls=(begun,))
            case Argued():
                more = functions.ToolCallDelta(
                    index=self._calls - 1,
                    function=functions.CalledDelta(arguments=piece.arguments),
                )
                return schema.ChunkDelta(tool_calls=(more,))
            case _:
                return None

    def _reply(self, text: str) -> Written:
        return Written(text=text) if self._tools is None else written(text, self._tools.form)

    def _message(self, reply: Written) -> schema.CompletionMessage:
        if not reply.calls:
            return schema.CompletionMessage(content=reply.text)
        calls = tuple(
            functions.ToolCall(
                id=call_id(self._response.message_id, place),
                function=functions.FunctionCalled(name=call.name, arguments=call.arguments),
            )
            for place, call in enumerate(reply.calls)
        )
        return schema.CompletionMessage(content=reply.text or None, tool_calls=calls)

    def _finish_reason(self, ended: ResponseEnded) -> str:
        reason = _finish_reason(ended.response)
        called = self._reply(ended.text).calls
        return "tool_calls" if called and reason == "stop" else reason

    def _ending(self, ended: ResponseEnded) -> tuple[schema.Chunk, ...]:
        response = ended.response
        choice = schema.ChunkChoice(
            delta=schema.ChunkDelta(), finish_reason=self._finish_reason(ended)
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


def _said_tokens(events: Sequence[LogEvent], said: str) -> tuple[TokenLogprobs, ...]:
    tokens = SaidTokens()
    for event in events:
        if isinstance(event, TextDelta):
            tokens.feed(event.delta, event.logprobs)
    return (*tokens.before(len(said)), *tokens.behind(len(said)))


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
