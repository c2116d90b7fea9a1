"""The chat template as a source of ids for new messages only (law 3).

A template is a function of the whole list of messages, yet old turns are never rendered again: new
messages are rendered behind a short dummy history that ends as the real one does, and what the
dummy contributes is cut off. That this equals the whole rendering is checked at load, on histories
of every shape, and the finding is public; where it does not hold only whole histories are rendered.

Owns the jinja template and the guard against special tokens in callers' text. It refuses to know
where ids are stored and never makes up a message: what the template refuses is refused.

    dummy history            | new messages                          what is cut
    ... user u <reply> a     | <end of turn> glue, user ..., <reply>  CUT
    ... user u <reply> a <end of turn> | glue, user ..., <reply>      STOPPED
    ... user u <reply> a <end of turn> glue | user ..., <reply>       CLOSED
                             | opening, user ..., <reply>             START
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise

from jinja2 import TemplateError

from engine.api import Message, Rendered, RenderRequest, Role, Seam, TemplateFinding
from engine.errors import InvalidJob
from engine.model.load import Tokenizer
from engine.model.text import Vocabulary

_SYSTEM = Message(role=Role.SYSTEM, text="Speak like a sailor.")
_USER = Message(role=Role.USER, text="What is 2 and 2?")
_REPLY = Message(role=Role.ASSISTANT, text="It is four.")
_REASONED = Message(role=Role.ASSISTANT, text="<think>\nTwo, twice.\n</think>\n\nIt is 4.")
_NEXT = Message(role=Role.USER, text="And 3 and 3?")
# Shadows the clock that Transformers gives to templates.
_ANOTHER_DAY = "{% macro strftime_now(format) %}31 Dec 1999{% endmacro %}"
_PRIVATE_USE = range(0xE000, 0xF900)


class Renderer:
    """Messages to ids, by one tokenizer's template. Reads only after it was made."""

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._eos_token_ids = frozenset(eos_token_ids)
        self.vocabulary = Vocabulary(tokenizer)
        names = sorted(self.vocabulary.specials.values(), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, names)) or r"(?!)")
        self._system_problem = self._find_system_problem()
        self.finding = TemplateFinding(stable=True, detail="being checked")
        self._openings = {role: self._opening(role) for role in (Role.SYSTEM, Role.USER)}
        self.finding = self.check_template()

    def render(self, request: RenderRequest) -> Rendered:
        """Ids of the new messages, continuing ids that end in the request's seam.

        Raises `InvalidJob` where the template refuses the messages or their roles, and where it is
        not prefix-stable and less than the whole history was sent.
        """
        self._refuse(request)
        guard = _Guard(self._special, request.messages)
        before, base = self._before(request)
        new = guard.guarded
        whole = self._text([*before, *new], opens_reply=request.opens_reply)
        if not whole.startswith(base):
            raise InvalidJob(
                "the chat template rewrites earlier turns when it sees these messages",
                field="messages",
            )
        ids, starts = self._encode(guard.pieces(whole))
        first = bisect_left(starts, len(base))
        if request.seam is Seam.STOPPED:
            first = self._behind_end_of_turn(ids, first)
        borders = [bisect_left(starts, end) - first for end in self._ends(before, new, whole)]
        opening = self._openings.get(new[0].role, "") if not before and new else ""
        opening_end = bisect_left(starts, len(opening)) if whole.startswith(opening) else 0
        return Rendered(
            token_ids=tuple(ids[first:]),
            ends=tuple(max(border, 0) for border in borders),
            opening_end=opening_end,
        )

    def check_template(self) -> TemplateFinding:
        """Whether rendering piece by piece equals rendering whole; if not, where it first differs.

        A template is stable when every history's rendering begins with the renderings of its
        beginnings (also of one that opens a reply), when it reads no clock, and when new messages
        become the same ids behind any history.
        """
        try:
            problem = next(self._problems(), None)
        except InvalidJob as error:
            problem = error.message
        if problem is not None:
            return TemplateFinding(stable=False, detail=problem)
        return TemplateFinding(stable=True, detail="rendering new messages alone equals the whole")

    # ------------------------------------------------------------ the check

    def _problems(self) -> Iterator[str]:
        systems = [[], [_SYSTEM]] if self._system_problem is None else [[]]
        for system in systems:
            for reply in (_REPLY, _REASONED):
                history = [*system, _USER, reply, _NEXT, _REPLY]
                yield from self._clock_problems(history)
                yield from self._prefix_problems(history)
                yield from self._glue_problems(history)

    def _clock_problems(self, history: list[Message]) -> Iterator[str]:
        today, other = self._text(history), self._text(history, prelude=_ANOTHER_DAY)
        if today != other:
            yield "the template reads the clock: " + self._difference(today, other)

    def _prefix_problems(self, history: list[Message]) -> Iterator[str]:
        steps: list[tuple[str, str]] = []
        for end, message in enumerate(history):
            if message.role is Role.ASSISTANT:
                steps.append(("a reply opened", self._text(history[:end], opens_reply=True)))
            steps.append((f"{end + 1} messages", self._text(history[: end + 1])))
        for (name, shorter), (longer_name, longer) in pairwise(steps):
            ids = self._encode([shorter])[0]
            if self._encode([longer])[0][: len(ids)] != ids:
                difference = self._difference(shorter, longer)
                yield f"{longer_name} do not begin as {name} did: {difference}"
        for end, message in enumerate(history, 1):
            if message.text not in self._text(history[:end]):
                yield f"the template leaves out the text of a last {message.role} message"

    def _glue_problems(self, history: list[Message]) -> Iterator[str]:
        whole = self._encode([self._text(history)])[0]
        for cut in range(1, len(history)):
            head = RenderRequest(messages=tuple(history[:cut]), seam=Seam.START, opens_reply=False)
            tail = RenderRequest(messages=tuple(history[cut:]), seam=Seam.CLOSED, opens_reply=False)
            ids = [*self.render(head).token_ids, *self.render(tail).token_ids]
            if ids != whole:
                yield f"{cut} messages and the rest are not the whole: " + self._at(ids, whole)

    def _difference(self, one: str, other: str) -> str:
        return self._at(self._encode([one])[0], self._encode([other])[0])

    def _at(self, one: list[int], other: list[int]) -> str:
        shared = zip(one, other, strict=False)
        at = next((i for i, (a, b) in enumerate(shared) if a != b), min(len(one), len(other)))
        names = [
            repr(self.vocabulary.token_text(ids[at])) if at < len(ids) else "the end"
            for ids in (one, other)
        ]
        return f"token {at} is {names[0]} in one and {names[1]} in the other"

    # ------------------------------------------------------------ rendering

    def _refuse(self, request: RenderRequest) -> None:
        roles = {message.role for message in request.messages}
        if self._system_problem is not None and Role.SYSTEM in roles:
            raise InvalidJob(self._system_problem, field="messages")
        if not self.finding.stable and request.seam is not Seam.START:
            raise InvalidJob(
                "the chat template is not prefix-stable: send the whole history with seam 'start' "
                f"({self.finding.detail})",
                field="seam",
            )

    def _before(self, request: RenderRequest) -> tuple[list[Message], str]:
        """A dummy history that ends in the seam, and the text of it that is cut off."""
        if request.seam is Seam.START:
            return [], ""
        if request.seam is Seam.CLOSED:
            new = request.messages
            replies = new[0].role is Role.ASSISTANT if new else request.opens_reply
            closed = [_USER] if replies else [_USER, _REPLY]
            return closed, self._text(closed)
        return [_USER, _REPLY], self._text([_USER], opens_reply=True) + _REPLY.text

    def _ends(self, before: list[Message], new: Sequence[Message], whole: str) -> Iterator[int]:
        """Where each new message and its glue end in the whole text, never going back."""
        end = 0
        for count in range(1, len(new) + 1):
            text = self._text([*before, *new[:count]])
            end = max(end, len(text) if whole.startswith(text) else _shared(text, whole))
            yield end

    def _behind_end_of_turn(self, ids: list[int], first: int) -> int:
        ends = (i for i in range(first, len(ids)) if ids[i] in self._eos_token_ids)
        return next(ends, first - 1) + 1

    def _opening(self, role: Role) -> str:
        """The text that comes before a first message of `role` and not before a later one."""
        first, dummy = Message(role=role, text="x"), [_USER, _REPLY]
        try:
            alone = self._text([first])
            message = self._text([*dummy, first]).removeprefix(self._text(dummy))
        except InvalidJob:
            return ""
        return alone.removesuffix(message) if alone.endswith(message) else ""

    def _find_system_problem(self) -> str | None:
        try:
            shown = _SYSTEM.text in self._text([_SYSTEM, _USER])
        except InvalidJob as error:
            return f"the model's chat template has no system role: {error.message}"
        return None if shown else "the model's chat template has no system role: it leaves it out"

    def _text(
        self, messages: Sequence[Message], *, opens_reply: bool = False, prelude: str = ""
    ) -> str:
        try:
            text: str = self._tokenizer.apply_chat_template(
                [{"role": m.role.value, "content": m.text} for m in messages],
                chat_template=f"{prelude}{self._tokenizer.chat_template}",
                tokenize=False,
                add_generation_prompt=opens_reply,
            )
        except (TemplateError, TypeError, ValueError, IndexError) as error:
            raise InvalidJob(
                f"the chat template refuses these messages: {error}", field="messages"
            ) from error
        return text

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


class _Guard:
    """Callers' texts with a mark inside everything that a tokenizer would take for special.

    The mark is a character that occurs nowhere in them. Where it stands the rendered text is cut
    and encoded in pieces, so that no piece spells a special token that the template did not write.
    """

    def __init__(self, special: re.Pattern[str], messages: Sequence[Message]) -> None:
        self._mark: str | None = None
        self.guarded: Sequence[Message] = messages
        if any(special.search(message.text) for message in messages):
            self._mark = self._unused(messages)
            self.guarded = [
                Message(role=message.role, text=self._broken(special, message.text))
                for message in messages
            ]

    def pieces(self, text: str) -> list[str]:
        return [text] if self._mark is None else text.split(self._mark)

    def _broken(self, special: re.Pattern[str], text: str) -> str:
        while special.search(text):
            text = special.sub(lambda found: f"{found[0][0]}{self._mark}{found[0][1:]}", text)
        return text

    def _unused(self, messages: Sequence[Message]) -> str:
        used = set().union(*(message.text for message in messages))
        mark = next((chr(code) for code in _PRIVATE_USE if chr(code) not in used), None)
        if mark is None:
            raise InvalidJob("a message uses every private character", field="messages")
        return mark


def _shared(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
