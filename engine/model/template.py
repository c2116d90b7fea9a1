"""The chat template as a source of ids for new messages only (law 3).

A template is a function of the whole list of messages, yet old turns are never rendered again: new
messages are rendered behind a short dummy history that ends as the real one does, and what the
dummy contributes is cut off. How far that equals the whole rendering is checked at load
(`engine/model/doctor.py`), and the finding is public; where what users said would be rewritten,
only whole histories are rendered.

Owns the jinja template and the guard against special tokens in callers' text. It refuses to know
where ids are stored and never makes up a message: what the template refuses is refused.

    dummy history            | new messages                          what is cut
    ... user u <reply> a     | <end of turn> glue, user ..., <reply>  CUT
    ... user u <reply> a <end of turn> | glue, user ..., <reply>      STOPPED
    ... user u <reply> a <end of turn> glue | user ..., <reply>       CLOSED
                             | opening, user ..., <reply>             START
"""

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from jinja2 import TemplateError

from engine.api import (
    Function,
    Message,
    Rendered,
    RenderRequest,
    Role,
    Seam,
    Stability,
    TemplateFinding,
)
from engine.errors import InvalidJob
from engine.model.calls import NoCalls, find_call_form
from engine.model.doctor import check_template, shared_length
from engine.model.load import Tokenizer
from engine.model.text import Vocabulary

_SYSTEM = Message(role=Role.SYSTEM, text="Speak like a sailor.")
_USER = Message(role=Role.USER, text="What is 2 and 2?")
_REPLY = Message(role=Role.ASSISTANT, text="It is four.")
_NEXT = Message(role=Role.USER, text="And 3 and 3?")
_PRIVATE_USE = range(0xE000, 0xF900)


class Renderer:
    """Messages to ids, by one tokenizer's template. Reads only after it was made."""

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._eos_token_ids = frozenset(eos_token_ids)
        self.bos_token_id = tokenizer.bos_token_id
        self.template = tokenizer.chat_template or ""
        self.vocabulary = Vocabulary(tokenizer)
        names = sorted(self.vocabulary.specials.values(), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, names)) or r"(?!)")
        self.system_problem = self._find_system_problem()
        self.finding = TemplateFinding(stability=Stability.STABLE)
        self._openings = {role: self._opening(role) for role in (Role.SYSTEM, Role.USER)}
        self.finding = self._with_calls(check_template(self))

    def render(self, request: RenderRequest) -> Rendered:
        """Ids of the new messages, continuing ids that end in the request's seam.

        Raises `InvalidJob` where the template refuses the messages or their roles, and where it is
        unstable and less than the whole history was sent.
        """
        if request.seam is Seam.CLOSED and not (request.messages or request.opens_reply):
            return Rendered(token_ids=(), ends=(), opening_end=0)
        self._refuse(request)
        guard = _Guard(self._special, request)
        guarded = guard.guarded
        whole, cut = self._continued_in_one_moment(guarded)
        ids, starts = self._encode_from(guard.pieces, whole, cut)
        first = bisect_left(starts, cut)
        if request.seam is Seam.STOPPED:
            first = self._behind_end_of_turn(ids, first)
        borders = [bisect_left(starts, end) - first for end in self._ends(guarded, whole)]
        return Rendered(
            token_ids=tuple(ids[first:]),
            ends=tuple(max(border, 0) for border in borders),
            opening_end=bisect_left(starts, self._opening_length(guarded, whole)),
        )

    def continued(self, request: RenderRequest, *, day: str = "") -> tuple[str, int]:
        """The new messages' text behind a dummy history, and where in it the new part begins.

        `day` goes before the template (see `text`).
        """
        before = self._before(request)
        whole = self.text(
            [*before, *request.messages],
            opens_reply=request.opens_reply,
            day=day,
            tools=request.tools,
        )
        if not before:
            return whole, 0
        # A reply may be rendered in one way as the last message and in another as an earlier one.
        last, follower = before[-1], _NEXT if len(before) > 1 else _REPLY
        for dummy in (before, [*before, follower]):
            known = self._up_to(last, self.text(dummy, day=day))
            if whole.startswith(known):
                break
        else:
            raise InvalidJob(
                "the chat template rewrites earlier turns when it sees these messages",
                field="messages",
            )
        if request.seam is not Seam.CLOSED:
            return whole, len(known)
        closed = self.text(before, day=day)
        glue = closed[len(self._up_to(last, closed)) :]
        if not whole.startswith(glue, len(known)):
            raise InvalidJob(
                "the chat template closes a last message otherwise than an earlier one",
                field="messages",
            )
        return whole, len(known) + len(glue)

    def text(
        self,
        messages: Sequence[Message],
        *,
        opens_reply: bool = False,
        day: str = "",
        tools: Sequence[Function] = (),
    ) -> str:
        """What the template writes; `day` goes before it and may shadow what it is given."""
        told = [self.as_told(message) for message in messages]
        return self.written(told, opens_reply=opens_reply, day=day, tools=tools)

    @staticmethod
    def as_told(message: Message) -> dict[str, Any]:
        """As templates know a message."""
        return {"role": message.role.value, "content": message.text}

    def written(
        self,
        told: Sequence[dict[str, Any]],
        *,
        opens_reply: bool = False,
        day: str = "",
        tools: Sequence[Function] = (),
    ) -> str:
        """As `text`, of messages in the template's own words."""
        try:
            text: str = self._tokenizer.apply_chat_template(
                list(told),
                tools=[_declared(function) for function in tools] or None,
                chat_template=f"{day}{self.template}",
                tokenize=False,
                add_generation_prompt=opens_reply,
            )
        except (TemplateError, TypeError, ValueError, IndexError) as error:
            raise InvalidJob(
                f"the chat template refuses these messages: {error}", field="messages"
            ) from error
        return text

    def encode(self, text: str) -> list[int]:
        """Ids of a template's whole text, in which it may spell special tokens."""
        return self._encode([text])[0]

    def encode_behind(self, text: str, cut: int) -> list[int]:
        """Ids of what stands in the text from `cut` on."""
        ids, starts = self._encode_from(lambda part: [part], text, cut)
        return ids[bisect_left(starts, cut) :]

    # ------------------------------------------------------------ rendering

    def _refuse(self, request: RenderRequest) -> None:
        roles = {message.role for message in request.messages}
        if self.system_problem is not None and Role.SYSTEM in roles:
            raise InvalidJob(self.system_problem, field="messages")
        if self.finding.calls is None and (request.tools or Role.TOOL in roles):
            field = "tools" if request.tools else "messages"
            raise InvalidJob(self.finding.no_calls or "", field=field)
        if request.tools and request.seam is not Seam.START:
            raise InvalidJob("functions are declared at the start only", field="tools")
        if self.finding.stability is Stability.UNSTABLE and request.seam is not Seam.START:
            faults = "; ".join(fault.words for fault in self.finding.faults)
            raise InvalidJob(
                "the chat template is unstable: send the whole history with seam 'start' "
                f"({faults})",
                field="seam",
            )

    def _continued_in_one_moment(self, request: RenderRequest) -> tuple[str, int]:
        """As `continued`, once more where the clock may have ticked between its renderings."""
        try:
            return self.continued(request)
        except InvalidJob:
            if not self.finding.reads_clock:
                raise
            return self.continued(request)

    def _before(self, request: RenderRequest) -> list[Message]:
        """A dummy history that ends in the seam."""
        if request.seam is Seam.START:
            return []
        new = request.messages
        replies = new[0].role is Role.ASSISTANT if new else request.opens_reply
        return [_USER] if replies and request.seam is Seam.CLOSED else [_USER, _REPLY]

    def _up_to(self, dummy: Message, text: str) -> str:
        at = text.rfind(dummy.text)
        if at < 0:
            raise InvalidJob(
                f"the chat template leaves out the text of a {dummy.role} message", field="messages"
            )
        return text[: at + len(dummy.text)]

    def _encode_from(
        self, pieces: Callable[[str], list[str]], whole: str, cut: int
    ) -> tuple[list[int], list[int]]:
        """Ids and where they begin; from `cut` alone where a token would reach over it."""
        ids, starts = self._encode(pieces(whole))
        at = bisect_left(starts, cut)
        if (starts[at] if at < len(starts) else len(whole)) == cut:
            return ids, starts
        ids, starts = self._encode(pieces(whole[cut:]))
        return ids, [cut + start for start in starts]

    def _ends(self, request: RenderRequest, whole: str) -> Iterator[int]:
        """Where each new message and its glue end in the whole text, never going back."""
        before, new, end = self._before(request), request.messages, 0
        for count in range(1, len(new) + 1):
            text = self.text([*before, *new[:count]], tools=request.tools)
            if whole.startswith(text):
                end = max(end, len(text))
            else:
                rest = msgspec.structs.replace(
                    request, messages=new[count:], seam=Seam.CLOSED, tools=()
                )
                end = max(end, self._start_of(rest, whole) or shared_length(text, whole))
            yield end

    def _start_of(self, rest: RenderRequest, whole: str) -> int | None:
        """Where the last messages begin, found from the end: what stands before may differ."""
        if not rest.messages and not rest.opens_reply:
            return len(whole)
        try:
            text, cut = self.continued(rest)
        except InvalidJob:
            return None
        return len(whole) - len(text) + cut if whole.endswith(text[cut:]) else None

    def _behind_end_of_turn(self, ids: list[int], first: int) -> int:
        ends = (i for i in range(first, len(ids)) if ids[i] in self._eos_token_ids)
        return next(ends, first - 1) + 1

    def _opening_length(self, request: RenderRequest, whole: str) -> int:
        if request.seam is not Seam.START or not request.messages:
            return 0
        role = request.messages[0].role
        if self.finding.reads_clock or request.tools:
            # What was found at load may tell of another day, and tells of no functions.
            opening = self._opening(role, request.tools)
        else:
            opening = self._openings.get(role, "")
        return len(opening) if whole.startswith(opening) else 0

    def _opening(self, role: Role, tools: Sequence[Function] = ()) -> str:
        """The text that comes before a first message of `role` and not before a later one."""
        first = Message(role=role, text="x")
        try:
            alone = self.text([first], tools=tools)
            whole, cut = self.continued(
                RenderRequest(messages=(first,), seam=Seam.CLOSED, opens_reply=False)
            )
        except InvalidJob:
            return ""
        message = whole[cut:]
        return alone.removesuffix(message) if alone.endswith(message) else ""

    def _with_calls(self, finding: TemplateFinding) -> TemplateFinding:
        if finding.stability is Stability.UNSTABLE:
            words = "the model's chat template rewrites what was said before"
            return msgspec.structs.replace(finding, no_calls=words)
        try:
            return msgspec.structs.replace(finding, calls=find_call_form(self))
        except NoCalls as error:
            return msgspec.structs.replace(finding, no_calls=str(error))

    def _find_system_problem(self) -> str | None:
        try:
            shown = _SYSTEM.text in self.text([_SYSTEM, _USER])
        except InvalidJob as error:
            return f"the model's chat template has no system role: {error.message}"
        return None if shown else "the model's chat template has no system role: it leaves it out"

    def _encode(self, pieces: Sequence[str]) -> tuple[list[int], list[int]]:
        """Ids of the pieces, and where each begins in their text joined by one mark each."""
        ids: list[int] = []
        starts: list[int] = []
        offset = 0
        for piece in pieces:
            encoding = self.vocabulary.whole.encode(piece, add_special_tokens=False)
            ids.extend(encoding.ids)
            starts.extend(offset + start for start, _ in encoding.offsets)
            offset += len(piece) + 1
        return ids, starts


def _declared(function: Function) -> dict[str, Any]:
    """As templates know a function."""
    described = {} if function.description is None else {"description": function.description}
    parameters = json.loads(function.parameters)
    told = {"name": function.name, **described, "parameters": parameters}
    return {"type": "function", "function": told}


class _Guard:
    """Callers' texts with a mark inside everything that a tokenizer would take for special.

    The mark is a character that occurs nowhere in them. Where it stands the rendered text is cut
    and encoded in pieces, so that no piece spells a special token that the template did not write.
    """

    def __init__(self, special: re.Pattern[str], request: RenderRequest) -> None:
        self._special = special
        self._mark: str | None = None
        self.guarded = request
        texts = [*(message.text for message in request.messages), *_texts_of(request.tools)]
        if any(special.search(text) for text in texts):
            self._mark = _unused(texts)
            self.guarded = msgspec.structs.replace(
                request,
                messages=tuple(
                    Message(role=message.role, text=self._broken(message.text))
                    for message in request.messages
                ),
                tools=tuple(self._broken_function(function) for function in request.tools),
            )

    def pieces(self, text: str) -> list[str]:
        return [text] if self._mark is None else text.split(self._mark)

    def _broken(self, text: str) -> str:
        while self._special.search(text):
            text = self._special.sub(lambda found: f"{found[0][0]}{self._mark}{found[0][1:]}", text)
        return text

    def _broken_function(self, function: Function) -> Function:
        parameters = json.dumps(json.loads(function.parameters), ensure_ascii=False)
        return msgspec.structs.replace(
            function,
            description=function.description and self._broken(function.description),
            parameters=self._broken(parameters),
        )


def _texts_of(functions: Sequence[Function]) -> Iterator[str]:
    """What callers wrote of them, as it is rendered: not as it may be escaped."""
    for function in functions:
        yield function.description or ""
        yield json.dumps(json.loads(function.parameters), ensure_ascii=False)


def _unused(texts: Sequence[str]) -> str:
    used = set().union(*texts)
    mark = next((chr(code) for code in _PRIVATE_USE if chr(code) not in used), None)
    if mark is None:
        raise InvalidJob("a message uses every private character", field="messages")
    return mark
