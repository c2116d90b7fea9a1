"""An answer that may call, as it comes: its text parted into items of the dialect. PURE.

    text     output_item.added, content_part.added, output_text.delta .., .done, .done, item.done
    call     output_item.added, function_call_arguments.delta .., .done, output_item.done

An item is opened when something of it is there, so an answer that only calls has no message. What the
items are in the end is given by the whole text (`objects.output_items`); here they are told on the way.
"""

from collections.abc import Iterator

from app.chat.calls import Argued, Begun, Call, CallReader, Ended, Piece, Said, SaidTokens
from app.events import ItemAdded, LogEvent, TextDelta
from app.ids import MessageId
from app.routes.openai import functions, schema
from app.routes.openai.events import (
    ArgumentsDelta,
    ArgumentsDone,
    DeltaEvent,
    DoneEvent,
    ItemEvent,
    PartEvent,
    ServerEvent,
)
from app.routes.openai.items import function_call
from app.routes.openai.objects import logprobs
from engine.api import CallForm, TokenLogprobs

_UNNUMBERED = 0
"""Whoever tells them numbers them."""


class CallEvents:
    """The content events of one answer, from the log's text deltas."""

    __slots__ = ("_call", "_calls", "_item_id", "_logs", "_reader", "_said", "_tokens", "began")

    def __init__(self, form: CallForm) -> None:
        self._reader = CallReader(form)
        self._item_id = MessageId("")
        self._said: str | None = None
        """Of the open message; None where none was opened."""
        self._call: Call | None = None
        self._calls = 0
        self._tokens = SaidTokens()
        self._logs: list[schema.Logprob] = []
        self.began = False
        """Whether there is an answer at all."""

    @property
    def logprobs(self) -> tuple[schema.Logprob, ...]:
        """Of what was said so far; a call has none."""
        return tuple(self._logs)

    def events(self, event: LogEvent) -> Iterator[ServerEvent]:
        """What the log's next event adds; how life goes on is told by others."""
        if isinstance(event, ItemAdded):
            self._item_id, self.began = event.item_id, True
        elif isinstance(event, TextDelta):
            self._tokens.feed(event.delta, event.logprobs)
            for piece in self._reader.feed(event.delta):
                yield from self._piece(piece)

    def rest(self) -> Iterator[ServerEvent]:
        """What was held back, now that nothing more comes."""
        for piece in self._reader.end():
            if not isinstance(piece, Ended):
                yield from self._piece(piece)
        behind = self._tokens.behind(len(self._said or ""))
        if behind:
            yield from self._say("", behind)

    def end(self, items: tuple[schema.OutputItem, ...]) -> Iterator[ServerEvent]:
        """Close what is open, as the whole text has it; `rest` was told."""
        if not self.began:
            return
        if self._call is not None:
            yield from self._close_call(items[-1])
        elif self._calls == 0:
            if self._said is None:
                yield from self._open_message()
            yield from self._close_message(items[0])

    def _piece(self, piece: Piece) -> Iterator[ServerEvent]:
        match piece:
            case Said():
                end = len(self._said or "") + len(piece.text)
                yield from self._say(piece.text, self._tokens.before(end))
            case Begun():
                if self._said is not None and not self._calls:
                    yield from self._close_message(self._message("completed", self._said))
                self._calls += 1
                self._call = Call(name=piece.name, arguments="", is_whole=False)
                yield self._item("added", self._function_call("in_progress"))
            case Argued():
                call = self._open_call()
                self._call = Call(
                    name=call.name, arguments=call.arguments + piece.arguments, is_whole=False
                )
                yield ArgumentsDelta(
                    sequence_number=_UNNUMBERED,
                    item_id=self._function_call("in_progress").id,
                    delta=piece.arguments,
                    output_index=self._index,
                )
            case Ended():
                call = self._open_call()
                self._call = Call(name=call.name, arguments=call.arguments)
                yield from self._close_call(self._function_call("completed"))

    def _say(self, text: str, tokens: tuple[TokenLogprobs, ...]) -> Iterator[ServerEvent]:
        if self._said is None:
            yield from self._open_message()
        told = logprobs(tokens)
        self._said = (self._said or "") + text
        self._logs += told
        yield DeltaEvent(
            sequence_number=_UNNUMBERED, item_id=self._item_id, delta=text, logprobs=told
        )

    @property
    def _index(self) -> int:
        """Of the newest item among the output."""
        return self._calls - (1 if self._said is None else 0)

    def _open_call(self) -> Call:
        assert self._call is not None, "arguments follow a name"
        return self._call

    def _function_call(self, status: str) -> functions.FunctionCall:
        return function_call(self._item_id, self._calls - 1, self._open_call(), status=status)

    def _message(self, status: str, text: str | None = None) -> schema.OutputMessage:
        content = () if text is None else (self._text(text),)
        return schema.OutputMessage(id=self._item_id, status=status, content=content)

    def _text(self, text: str) -> schema.OutputText:
        return schema.OutputText(text=text, logprobs=self.logprobs)

    def _open_message(self) -> Iterator[ServerEvent]:
        self._said = ""
        yield self._item("added", self._message("in_progress"))
        yield self._part("added", "")

    def _close_message(self, item: schema.OutputItem) -> Iterator[ServerEvent]:
        text = self._said or ""
        yield DoneEvent(
            sequence_number=_UNNUMBERED, item_id=self._item_id, text=text, logprobs=self.logprobs
        )
        yield self._part("done", text)
        yield self._item("done", item)

    def _close_call(self, item: schema.OutputItem) -> Iterator[ServerEvent]:
        call = self._open_call()
        yield ArgumentsDone(
            sequence_number=_UNNUMBERED,
            item_id=item.id,
            name=call.name,
            arguments=call.arguments,
            output_index=self._index,
        )
        yield self._item("done", item)
        self._call = None

    def _item(self, what: str, item: schema.OutputItem) -> ItemEvent:
        return ItemEvent(
            type="response.output_item.added" if what == "added" else "response.output_item.done",
            sequence_number=_UNNUMBERED,
            item=item,
            output_index=self._index,
        )

    def _part(self, what: str, text: str) -> PartEvent:
        return PartEvent(
            type="response.content_part.added" if what == "added" else "response.content_part.done",
            sequence_number=_UNNUMBERED,
            item_id=self._item_id,
            part=self._text(text),
        )
