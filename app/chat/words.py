"""Words of texts and of what is looked for: folded and cut the same way, for every database. PURE.

Case, accents and width do not count. Scripts that part no words are cut into single characters, so
that a run of them is found as a phrase. Neither database cuts or folds words of its own, so that
both find the same, whatever their locale.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence

import msgspec

LONGEST_TEXT = 70_000
"""Characters of one text that can be found. A `tsvector` holds 1 MiB; one costs at most 14 bytes: four of
its own, six of a mark (`search`), four of where it stands."""
LONGEST_WORD = 400
"""A lexeme has less than 2 KiB; what is longer is no word: a key, an address, an image."""
SHORTEST_BEGINNING = 2
"""A letter stands for itself: as a beginning it would stand for a large part of all words."""
BEFORE_CHARACTERS = 60
EXCERPT_CHARACTERS = 240

_ALONE = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    r"\U00020000-\U0003ffff"
)
"""Thai and Lao, Burmese, Khmer, kana, Han."""
_MARK = "".join(
    chr(one) for one in range(0x300, 0x10000) if unicodedata.category(chr(one)).startswith("M")
)
_MARKS = re.compile(f"[{_MARK}]")
_WORD = re.compile(rf"[{_ALONE}]|(?:[^\W_{_ALONE}]|(?![{_ALONE}])[{_MARK}])+")
_SPACE = re.compile(r"\s+")

Phrase = tuple[str, ...]
"""Words that stand one behind the other; the last may be the beginning of a word."""


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an excerpt; `is_match` where it is what was looked for."""

    text: str
    is_match: bool


def words(text: str) -> tuple[str, ...]:
    """What can be found of a text, in its order."""
    return tuple(word[:LONGEST_WORD] for word in _WORD.findall(_folded(text)[:LONGEST_TEXT]))


def phrases(query: str) -> tuple[Phrase, ...]:
    """What is looked for; all of it must occur. Empty where there is no word in it."""
    return tuple(phrase for term in query.split() if (phrase := words(term)))


def is_beginning(word: str) -> bool:
    """Whether a phrase's last word stands for all that begin with it."""
    return len(word) >= SHORTEST_BEGINNING


def excerpt(text: str, wanted: Sequence[Phrase]) -> tuple[Piece, ...]:
    """A text around the first match, on one line and with dots where it goes on, in pieces."""
    first = next(_spans(text, 0, wanted), (0, 0))[0]
    start = max(0, first - BEFORE_CHARACTERS)
    end = min(len(text), start + EXCERPT_CHARACTERS)
    pieces: list[Piece] = []
    at = start
    for a, b in _spans(text, start, wanted):
        if b > end:
            break
        pieces += (_piece(text[at:a]), _piece(text[a:b], is_match=True))
        at = b
    dots = ("…" if start else "", "…" if end < len(text) else "")
    edges = (_piece(dots[0]), *pieces, _piece(text[at:end] + dots[1]))
    return tuple(piece for piece in edges if piece.text)


def _folded(text: str) -> str:
    if text.isascii():
        return text.lower()
    return _MARKS.sub("", unicodedata.normalize("NFKD", text.casefold()))


def _spans(text: str, start: int, wanted: Sequence[Phrase]) -> Iterator[tuple[int, int]]:
    """Where words stand that are looked for."""
    known = {word for phrase in wanted for word in phrase}
    beginnings = tuple(phrase[-1] for phrase in wanted if is_beginning(phrase[-1]))
    for match in _WORD.finditer(text, start):
        for word in words(match[0]):
            if word in known or (beginnings and word.startswith(beginnings)):
                yield match.span()
                break


def _piece(text: str, *, is_match: bool = False) -> Piece:
    return Piece(text=_SPACE.sub(" ", text), is_match=is_match)
