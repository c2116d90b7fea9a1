"""The template doctor: what of a history a chat template writes otherwise later, and what is lost.

Made-up conversations are rendered as they grow, message by message, and as continued behind a
dummy history. A rendering is looked at in pieces, each the text before one message's last line:
what stands before a user's or a system message must stay for ever, what stands before a reply's
last line (an empty thought, reasoning) may change, for a conversation keeps its replies as they
were generated. Owns no rendering and no ids: it asks the renderer.
"""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from engine.api import (
    Message,
    RenderRequest,
    Role,
    Seam,
    Stability,
    TemplateFault,
    TemplateFaultKind,
    TemplateFinding,
)
from engine.errors import InvalidJob

if TYPE_CHECKING:
    from engine.model.template import Renderer

# Shadows the clock that Transformers gives to templates.
_ANOTHER_DAY = "{% macro strftime_now(format) %}31 Dec 1999{% endmacro %}"
_REASONING = "One more than ten."
_SYSTEM = Message(role=Role.SYSTEM, text="Answer like a pirate.")
_SAID = (
    (Role.USER, "How much is 5 and 6?"),
    (Role.ASSISTANT, "That makes eleven."),
    (Role.USER, "Why do you say so?"),
    (Role.ASSISTANT, "I have counted."),
    (Role.USER, "Thank you."),
    (Role.ASSISTANT, "With pleasure."),
)
_CLOSING_TAG = re.compile(r"(?P<open><|\[)/(?P<name>\w+)(?P<close>>|\])")
"""What a template that takes reasoning apart must have written somewhere."""
_ENDS_APPENDING = {TemplateFaultKind.HISTORY, TemplateFaultKind.REFUSED}


def check_template(renderer: "Renderer") -> TemplateFinding:
    """How a conversation goes on under the renderer's template, and of each kind the first fault."""
    found: dict[TemplateFaultKind, TemplateFault] = {}
    try:
        for fault in _Doctor(renderer).faults():
            found.setdefault(fault.kind, fault)
    except InvalidJob as error:
        refused = TemplateFault(kind=TemplateFaultKind.REFUSED, words=error.message)
        found[refused.kind] = refused
    if _ENDS_APPENDING & set(found):
        stability = Stability.UNSTABLE
    elif set(found) - {TemplateFaultKind.BOS}:
        stability = Stability.APPENDABLE
    else:
        stability = Stability.STABLE
    return TemplateFinding(stability=stability, faults=tuple(found.values()))


def shared_length(one: Sequence[object], other: Sequence[object]) -> int:
    """How many items two sequences (or characters two texts) have in common from the start."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


class _Doctor:
    def __init__(self, renderer: "Renderer") -> None:
        self._renderer = renderer

    def faults(self) -> Iterator[TemplateFault]:
        systems = [[], [_SYSTEM]] if self._renderer.system_problem is None else [[]]
        for system in systems:
            for reasoning in ("", *self._reasonings()):
                history = [*system, *_conversation(reasoning)]
                yield from self._clock_faults(history)
                yield from self._bos_faults(history)
                yield from self._growth_faults(history)
                yield from self._glue_faults(history)

    def _reasonings(self) -> list[str]:
        """What a reply might begin with, for each kind of tag that the template knows."""
        tags = dict.fromkeys(_CLOSING_TAG.findall(self._renderer.template))
        return [f"{a}{name}{b}\n{_REASONING}\n{a}/{name}{b}\n\n" for a, name, b in tags]

    def _clock_faults(self, history: list[Message]) -> Iterator[TemplateFault]:
        today = self._renderer.text(history, opens_reply=True)
        other = self._text(history, opens_reply=True)
        if today != other:
            yield self._fault(TemplateFaultKind.CLOCK, "it prints the date or time", today, other)

    def _bos_faults(self, history: list[Message]) -> Iterator[TemplateFault]:
        bos, asked = self._renderer.bos_token_id, history[:-1]
        ids = self._renderer.encode(self._text(asked, opens_reply=True))
        places = [place for place, token_id in enumerate(ids) if token_id == bos]
        turns = [message for message in asked if message.role is not Role.SYSTEM]
        begins_each_message = len(places) > len(turns)
        if places[:2] == [0, 1]:
            words = "it writes the BOS twice at the start"
        elif len(places) > 1 and not begins_each_message:
            words = "it writes the BOS again at later turns"
        else:
            return
        again = places[1]
        once = [*ids[:again], *ids[again + 1 :]]
        yield self._fault_of_ids(TemplateFaultKind.BOS, words, ids, once)

    def _growth_faults(self, history: list[Message]) -> Iterator[TemplateFault]:
        before = ""
        for count, message in enumerate(history, 1):
            said, now = history[: count - 1], self._text(history[:count])
            if count > 1:
                yield from self._differences(said, before, now)
                yield from self._borders(before, now)
            if message.role is Role.ASSISTANT:
                opened = self._text(said, opens_reply=True)
                yield from self._differences(said, before, opened)
                yield from self._differences(history[:count], opened + message.text, now)
                yield from self._borders(opened, now)
            before = now

    def _glue_faults(self, history: list[Message]) -> Iterator[TemplateFault]:
        asked = history[:-1]
        for cut in range(1, len(history)):
            yield from self._faults_behind(history, cut, opens_reply=False)
            yield from self._faults_behind(asked, cut, opens_reply=True)

    def _faults_behind(
        self, history: list[Message], cut: int, *, opens_reply: bool
    ) -> Iterator[TemplateFault]:
        """Messages from `cut` on, as they are continued behind ids, against the whole."""
        whole = self._text(history, opens_reply=opens_reply)
        last, new = history[cut - 1], tuple(history[cut:])
        if last.role is not Role.ASSISTANT and new and new[0].role is not Role.ASSISTANT:
            return  # behind a system message: nobody continues there but with the same glue
        for seam in (Seam.CLOSED, *([Seam.CUT] if last.role is Role.ASSISTANT else [])):
            request = RenderRequest(messages=new, seam=seam, opens_reply=opens_reply)
            text, start = self._renderer.continued(request, day=_ANOTHER_DAY)
            glued = whole.removesuffix(text[start:])
            if not whole.endswith(text[start:]) or (
                seam is Seam.CUT and not glued.endswith(_last_line(last))
            ):
                words = "it writes new messages otherwise behind another history"
                yield self._fault(TemplateFaultKind.HISTORY, words, glued + text[start:], whole)
            elif seam is Seam.CLOSED and glued == self._text(history[:cut]):
                ids = self._renderer.encode(glued) + self._renderer.encode_behind(text, start)
                yield from self._border_of_ids(ids, self._renderer.encode(whole))

    def _differences(
        self, said: Sequence[Message], shorter: str, longer: str
    ) -> Iterator[TemplateFault]:
        """Where the longer text does not tell what was `said` as the shorter one did."""
        old, new = _pieces(shorter, said), _pieces(longer, said)
        if old is None or new is None:
            words = "it leaves out what was said"
            yield self._fault(TemplateFaultKind.HISTORY, words, shorter, longer)
            return
        for message, one, other in zip(said, old, new, strict=False):
            if one != other:
                kind, words = _change(message, one, other)
                yield self._fault(kind, words, shorter, longer)
        if not new[-1].startswith(old[-1]):
            words = "it closes a last message otherwise than an earlier one"
            yield self._fault(TemplateFaultKind.HISTORY, words, shorter, longer)

    def _borders(self, shorter: str, longer: str) -> Iterator[TemplateFault]:
        if longer.startswith(shorter):
            ids, whole = self._renderer.encode(shorter), self._renderer.encode(longer)
            yield from self._border_of_ids(ids, whole[: len(ids)])

    def _border_of_ids(self, ids: list[int], whole: list[int]) -> Iterator[TemplateFault]:
        if ids != whole:
            words = "tokens reach over the border of its messages"
            yield self._fault_of_ids(TemplateFaultKind.BORDER, words, ids, whole)

    def _fault(self, kind: TemplateFaultKind, words: str, one: str, other: str) -> TemplateFault:
        return self._fault_of_ids(
            kind, words, self._renderer.encode(one), self._renderer.encode(other)
        )

    def _fault_of_ids(
        self, kind: TemplateFaultKind, words: str, one: list[int], other: list[int]
    ) -> TemplateFault:
        position = shared_length(one, other)
        name = self._renderer.vocabulary.token_text
        tokens = [name(ids[position]) if position < len(ids) else "" for ids in (one, other)]
        return TemplateFault(
            kind=kind, words=words, position=position, tokens=(tokens[0], tokens[1])
        )

    def _text(self, messages: Sequence[Message], *, opens_reply: bool = False) -> str:
        return self._renderer.text(messages, opens_reply=opens_reply, day=_ANOTHER_DAY)


def _conversation(reasoning: str) -> Iterator[Message]:
    for role, text in _SAID:
        thought = reasoning if role is Role.ASSISTANT else ""
        yield Message(role=role, text=thought + text)


def _last_line(message: Message) -> str:
    return message.text.rsplit("\n", 1)[-1]


def _pieces(text: str, said: Sequence[Message]) -> list[str] | None:
    """The text before each message's last line, and the rest; None where one is not there."""
    pieces, end = [], 0
    for message in said:
        line = _last_line(message)
        start = text.find(line, end)
        if start < 0:
            return None
        pieces.append(text[end:start])
        end = start + len(line)
    return [*pieces, text[end:]]


def _change(message: Message, one: str, other: str) -> tuple[TemplateFaultKind, str]:
    if message.role is not Role.ASSISTANT:
        return TemplateFaultKind.HISTORY, f"it rewrites an earlier {message.role} message"
    if _REASONING in one and _REASONING not in other:
        tag = message.text.rsplit("\n", 3)[1]
        words = f"it leaves reasoning (up to {tag!r}) out of earlier replies"
        return TemplateFaultKind.REASONING, words
    shared = shared_length(one, other)
    gone, come = one[shared:], other[shared:]
    changes = []
    if gone:
        changes.append(f"{gone!r} is there at first and not later")
    if come:
        changes.append(f"{come!r} is there later and not at first")
    return TemplateFaultKind.THOUGHT, f"before a reply {' and '.join(changes)}"
