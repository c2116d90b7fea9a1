"""Heads as text and as ids: what stands before a path, and whose tokens lie where in it (laws 3, 11). PURE.

    parts       [persona) [document) [document)            each in its readers' scope
    own         [instructions)                             in the caller's
    functions   [persona's words | functions, examples) [document) ..
                 as in parts               the caller's from there on

A template writes functions into the system's message, which is the persona's. Whatever stands behind
them depends on them, so no more of a head is shared than it has in common with the head without them.
"""

import hashlib
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain

import msgspec

from app.chat.heads import Part
from app.chat.ledger import Head
from app.db.types import VersionRef
from engine.api import (
    OPERATOR_SCOPE,
    CacheSource,
    Function,
    Message,
    Rendered,
    Role,
    Zone,
)


class HeadText(msgspec.Struct, frozen=True, kw_only=True):
    """What stands before the path as text; empty for the template's opening alone."""

    key: str
    parts: tuple[Part, ...] = ()
    """The library's, each in a scope of its own."""
    own: tuple[Message, ...] = ()
    """The caller's, in the caller's scope."""
    tools: tuple[Function, ...] = ()
    """Declared at the start, in the caller's scope too: only a head tells of them."""

    @property
    def messages(self) -> tuple[Message, ...]:
        return (*chain.from_iterable(part.compiled.messages for part in self.parts), *self.own)

    @property
    def beginning(self) -> tuple[Message, ...]:
        """What functions are told of together with; documents behind it are as they were compiled."""
        return self.parts[0].compiled.messages if self.parts else self.own


class Headed(msgspec.Struct, frozen=True, kw_only=True):
    """A head as ids, and whose tokens lie where in it; the caller's own are left over."""

    head: Head
    zones: tuple[Zone, ...]


# ---------------------------------------------------------------- as text


def library_head(parts: Sequence[Part]) -> HeadText:
    """A persona's system prompt and examples, then documents, each for those who may read it."""
    return HeadText(key=library_key(part.ref for part in parts), parts=tuple(parts))


def library_key(refs: Iterable[VersionRef]) -> str:
    return " ".join(map(str, refs))


def instructions_head(instructions: str) -> HeadText:
    """A caller's own instructions, in the caller's scope."""
    own = (Message(role=Role.SYSTEM, text=instructions),)
    return HeadText(key=f"instructions:{_digest(instructions)}", own=own)


def with_tools(head: HeadText, tools: tuple[Function, ...]) -> HeadText:
    """The same, and what may be called."""
    told = msgspec.json.encode(tools).decode()
    return msgspec.structs.replace(head, key=f"tools:{_digest(told)} {head.key}", tools=tools)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def bare_head(first: Role) -> HeadText:
    """No instructions at all: what the template itself puts before a first message of this role."""
    return HeadText(key=f"opening:{first}")


# ---------------------------------------------------------------- as ids


def rendered_with_all(text: HeadText, rendered: Rendered) -> Headed:
    """A head without functions, from a rendering of it and of whatever follows."""
    head = _up_to(text, text.messages, rendered)
    counts = accumulate(len(part.compiled.messages) for part in text.parts)
    return _with_zones(text, head, [rendered.ends[count - 1] for count in counts])


def rendered_alone(text: HeadText, rendered: Rendered) -> Head:
    """A head of the caller's own, or with functions, from a rendering of its beginning."""
    head = _up_to(text, text.beginning, rendered)
    rest = chain.from_iterable(part.compiled.token_ids for part in text.parts[1:])
    # What is declared is the caller's text, and the opening tells of it.
    opening_end = 0 if text.tools else head.opening_end
    return msgspec.structs.replace(
        head, token_ids=(*head.token_ids, *rest), opening_end=opening_end
    )


def _up_to(text: HeadText, messages: Sequence[Message], rendered: Rendered) -> Head:
    end = rendered.ends[len(messages) - 1] if messages else rendered.opening_end
    return Head(key=text.key, token_ids=rendered.token_ids[:end], opening_end=rendered.opening_end)


def joined(text: HeadText) -> Headed:
    """A head of compiled parts: a part continues a message that is closed, whatever that says."""
    ids = chain.from_iterable(part.compiled.token_ids for part in text.parts)
    opening_end = text.parts[0].compiled.opening_end
    return zoned(text, Head(key=text.key, token_ids=tuple(ids), opening_end=opening_end))


def zoned(text: HeadText, head: Head) -> Headed:
    """Parts end where the ones behind them begin; the first may tell of another day by now."""
    if text.tools and text.parts:
        return _zoned_before_tools(text.parts[0], head)
    behind = accumulate((len(part.compiled.token_ids) for part in text.parts[:0:-1]), initial=0)
    ends = [len(head.token_ids) - tokens for tokens in behind] if text.parts else []
    return _with_zones(text, head, ends[::-1])


def _zoned_before_tools(persona: Part, head: Head) -> Headed:
    compiled = persona.compiled
    end = shared_tokens(head.token_ids, compiled.token_ids)
    opening_end = min(end, compiled.opening_end)
    opening = Zone(scope=OPERATOR_SCOPE, source=CacheSource.TEMPLATE, end=opening_end)
    words = Zone(scope=persona.scope, source=persona.source, end=end)
    return Headed(head=head, zones=(opening, words))


def _with_zones(text: HeadText, head: Head, ends: Sequence[int]) -> Headed:
    opening = Zone(scope=OPERATOR_SCOPE, source=CacheSource.TEMPLATE, end=head.opening_end)
    parts = (
        Zone(scope=part.scope, source=part.source, end=end)
        for part, end in zip(text.parts, ends, strict=True)
    )
    return Headed(head=head, zones=(opening, *parts))


def shared_tokens(one: Sequence[int], other: Sequence[int]) -> int:
    """How many both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    end = min(len(one), len(other))
    return next((place for place, (left, right) in pairs if left != right), end)
