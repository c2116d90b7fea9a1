"""Calls of functions as they stand in a reply's text: read out of it and spelled into it. PURE.

A reply is kept as its text, so that its ids are the ones that were generated. What a client is told of
its calls is read from that text, whole or as it comes, in the form that the template has for calls. A
call's id says where it stands: in which reply, and as the how manieth of its calls.

    said [opening NAME middle {"arguments"} closing] separator [opening NAME middle ...
    Said  Begun                Argued ..       Ended             Begun         Argued ..
"""

from collections.abc import Iterator, Sequence

import msgspec

from app.errors import InvalidRequest
from app.ids import MessageId
from engine.api import CallForm, Message, TokenLogprobs


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """`arguments` is JSON text as it was written; not whole where the reply was cut in it."""

    name: str
    arguments: str
    is_whole: bool = True


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """What a reply says and then calls."""

    text: str
    calls: tuple[Call, ...] = ()


class Said(msgspec.Struct, frozen=True, kw_only=True):
    text: str


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    name: str


class Argued(msgspec.Struct, frozen=True, kw_only=True):
    arguments: str


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    is_whole: bool


Piece = Said | Begun | Argued | Ended


class CallReader:
    """Reads a text as it comes: the pieces are the same, joined, however it is cut.

    Behind a call only another can come; what else stands there is no part of what was asked for.
    """

    __slots__ = ("_began", "_form", "_held", "_object", "_state")

    def __init__(self, form: CallForm) -> None:
        self._form = form
        self._held = ""
        """What came and cannot be told yet."""
        self._state = self._say
        self._object = _Object()
        self._began = False

    def feed(self, text: str) -> list[Piece]:
        self._held += text
        pieces: list[Piece] = []
        before = None
        while before != (self._state, self._held):
            before = self._state, self._held
            pieces += self._state()
        return pieces

    def end(self) -> list[Piece]:
        """Nothing more comes: what was held is text, and a call that is not closed is not whole."""
        if self._state == self._say:
            held, self._held = self._held, ""
            return [Said(text=held)] if held and not self._began else []
        return [] if self._state == self._name else [Ended(is_whole=False)]

    def _say(self) -> Iterator[Piece]:
        opening = self._form.opening
        at = self._held.find(opening)
        end = len(self._held) - _overlap(self._held, opening) if at < 0 else at
        said, self._held = self._held[:end], self._held[end:]
        if said and not self._began:
            yield Said(text=said)
        if at >= 0:
            self._held = self._held.removeprefix(opening)
            self._state = self._name

    def _name(self) -> Iterator[Piece]:
        name, found, rest = self._held.partition(self._form.middle)
        if found:
            self._held, self._state, self._began = rest, self._argue, True
            self._object = _Object()
            yield Begun(name=name)

    def _argue(self) -> Iterator[Piece]:
        end = self._object.end_in(self._held)
        argued, self._held = self._held[:end], self._held[end:]
        if self._object.is_whole:
            self._state = self._close
        if argued:
            yield Argued(arguments=argued)

    def _close(self) -> Iterator[Piece]:
        closing = self._form.closing
        if self._held.startswith(closing):
            self._held, self._state = self._held.removeprefix(closing), self._say
            yield Ended(is_whole=True)


class _Object:
    """Where an object of JSON ends, found as it comes."""

    __slots__ = ("_depth", "_escaped", "_in_string", "is_whole")

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self.is_whole = False

    def end_in(self, text: str) -> int:
        """How much of the text belongs to it."""
        for place, character in enumerate(text):
            self._take(character)
            if self.is_whole:
                return place + 1
        return len(text)

    def _take(self, character: str) -> None:
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self._in_string = False
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            self.is_whole = self._depth == 0


def _overlap(text: str, opening: str) -> int:
    """How long the longest end of the text is with which `opening` begins."""
    longest = min(len(text), len(opening) - 1)
    return next((size for size in range(longest, 0, -1) if opening.startswith(text[-size:])), 0)


class SaidTokens:
    """Which tokens of a reply make up what it says before it calls: those that begin in that.

    Text that may yet be a stop string comes later than its tokens; these begin where it was held.
    """

    __slots__ = ("_fed", "_waiting")

    def __init__(self) -> None:
        self._fed = 0
        self._waiting: list[tuple[int, TokenLogprobs]] = []
        """Tokens that were not told yet, each with where it begins."""

    def feed(self, text: str, tokens: Sequence[TokenLogprobs]) -> None:
        """The reply's next piece, and its tokens if they are asked for."""
        place, self._fed = self._fed, self._fed + len(text)
        for token in tokens:
            self._waiting.append((min(place, self._fed), token))
            place += len(token.chosen.token)

    def before(self, end: int) -> tuple[TokenLogprobs, ...]:
        """Those that begin before `end`, each once."""
        count = sum(place < end for place, _ in self._waiting)
        told, self._waiting = self._waiting[:count], self._waiting[count:]
        return tuple(token for _, token in told)

    def behind(self, end: int) -> tuple[TokenLogprobs, ...]:
        """Those that are left where the whole reply ends there: its end of turn has no text."""
        return self.before(end + 1) if end == self._fed else ()


# ---------------------------------------------------------------- whole texts


def written(text: str, form: CallForm) -> Written:
    reader = CallReader(form)
    said, calls = "", list[Call]()
    for piece in (*reader.feed(text), *reader.end()):
        match piece:
            case Said():
                said += piece.text
            case Begun():
                calls.append(Call(name=piece.name, arguments="", is_whole=False))
            case Argued():
                calls[-1] = msgspec.structs.replace(
                    calls[-1], arguments=calls[-1].arguments + piece.arguments
                )
            case Ended():
                calls[-1] = msgspec.structs.replace(calls[-1], is_whole=piece.is_whole)
    return Written(text=said, calls=tuple(calls))


def spelled(reply: Written, form: CallForm) -> str:
    """The text of a reply that says and calls this, as it is generated here."""
    calls = form.separator.join(
        form.opening + call.name + form.middle + call.arguments + form.closing
        for call in reply.calls
    )
    parted = not reply.text or not calls or reply.text.endswith(form.separator)
    return reply.text + ("" if parted else form.separator) + calls


_BARE = frozenset("[]{},: -+.0123456789Etruefalsn")
"""What JSON has outside its texts, but for quotes."""


def is_never_in_json(opening: str) -> bool:
    """Whether no value of JSON, spelled as it is here, can hold what opens a call.

    JSON has no line break. Where it has a quote a text begins, which nothing but `_BARE` stands
    before, or ends, which no letter stands behind.
    """
    before, quote, behind = opening.partition('"')
    is_no_border = bool(quote) and behind[:1].isalpha() and not _BARE.issuperset(before)
    return "\n" in opening or is_no_border


# ---------------------------------------------------------------- ids, and what was given


def call_id(message_id: str, place: int) -> str:
    return f"call_{message_id.removeprefix('msg_')}_{place}"


def calls_of(message_id: MessageId, text: str, form: CallForm) -> list[str]:
    """Ids of what a reply calls, as far as that was written to its end."""
    calls = written(text, form).calls
    return [call_id(message_id, place) for place, call in enumerate(calls) if call.is_whole]


def in_order(
    results: Sequence[Message], named: Sequence[str], called: Sequence[str], field: str
) -> tuple[Message, ...]:
    """What functions gave, in the order of their calls: a template tells them by that alone.

    Raises `InvalidRequest` unless each call is answered once, and nothing else.
    """
    given = dict(zip(named, results, strict=True))
    unknown = next((one for one in named if one not in called), None)
    if unknown is not None or len(given) < len(named):
        raise InvalidRequest(
            f"The call {unknown or named[-1]!r} is none of those right before this, or is answered twice.",
            code="call_not_found",
            field=field,
        )
    missing = next((one for one in called if one not in given), None)
    if missing is not None:
        raise InvalidRequest(
            f"There is no output for the call {missing!r}.", code="call_not_answered", field=field
        )
    return tuple(given[one] for one in called)
