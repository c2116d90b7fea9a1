"""What of a text that is being typed will hardly change: how much of it can be computed in advance.

Pure functions of texts and ids. They know no draft, no template and no engine.
"""

import re
from collections.abc import Sequence

from app.chat.headed import shared_tokens

OPEN_TAIL = 16
"""Characters of a text without spaces that typing on may change the tokens of."""

_LAST_WORD = re.compile(r"\s+\S*\Z")
_SENTENCE_END = re.compile(r"[.!?…。！？؟][\"')\]”’»]*\Z")  # noqa: RUF001


def settled(text: str) -> str:
    """The part of a text whose tokens are the same whatever is typed behind it.

    It ends before the space before the last word: there every tokenizer that splits words ends a
    token. A long end without any space is cut inside, which is right most often.
    """
    text = text.rstrip()
    word = _LAST_WORD.search(text, max(0, len(text) - OPEN_TAIL))
    return text[: word.start() if word else max(0, len(text) - OPEN_TAIL)]


def is_finished(text: str) -> bool:
    """Whether its last sentence is closed, so that it may well be sent as it stands."""
    return _SENTENCE_END.search(text, max(0, len(text) - OPEN_TAIL)) is not None


def shared_start(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    """The ids that both begin with; none where nothing tells where they part.

    A text can be without any token. Then the glue behind it would seem to be shared.
    """
    return () if one == other else tuple(one[: shared_tokens(one, other)])
