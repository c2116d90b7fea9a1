"""Ids to text and back: plain encoding, incremental detokenising, stop strings.

Owns the rule that text from outside never becomes a special token, the rule that half a UTF-8
character is never sent, and what is held back while it may still turn out to be a stop string. No
text is remembered (law 11). It refuses to know templates (`engine/model/template.py`) and jobs.

Of a stream's text, with S what was sent and H what is held:

    [0 ......... S)[S ...... H)          chars: sent | may begin a stop string
    [0 ... mark)                         the last token border at or before S: a stop string that
                                         begins inside a token is cut by re-encoding from there
"""

import codecs
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Protocol

from tokenizers import Tokenizer, decoders
from tokenizers.decoders import DecodeStream

from engine.model.load import Tokenizer as LoadedTokenizer


class Vocabulary:
    """Plain text and single tokens of one tokenizer. Reads only; safe to share between threads."""

    def __init__(self, tokenizer: LoadedTokenizer) -> None:
        """The tokenizer's own backend serves on, and no longer cuts, fills up or remembers a text."""
        self.whole = _untruncated(tokenizer.backend_tokenizer)
        """Encodes special tokens that stand in a text as such: for a template's own text."""
        self._plain = _untruncated(Tokenizer.from_str(self.whole.to_str()))
        self._plain.encode_special_tokens = True
        added = self.whole.get_added_tokens_decoder()
        self.specials = {i: token.content for i, token in added.items() if token.special}
        self._bytes_of = lru_cache(maxsize=None)(self._token_bytes)

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of plain text; whatever looks like a special token is spelled out."""
        return tuple(self._plain.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ids, without special tokens."""
        text: str = self.whole.decode(list(token_ids), skip_special_tokens=True)
        return text

    def token_text(self, token_id: int) -> str:
        """One token as logprobs name it; special tokens by their name."""
        text: str = self.whole.decode([token_id], skip_special_tokens=False)
        return text

    def detokenizer(self) -> "Detokenizer":
        """A fresh one for one job."""
        if isinstance(self.whole.decoder, decoders.ByteLevel):
            return _ByteLevelDetokenizer(self)
        return _WindowDetokenizer(self)

    def token_bytes(self, token_id: int) -> bytes:
        """What a token of a byte-level vocabulary stands for; empty for special tokens."""
        return self._bytes_of(token_id)

    def _token_bytes(self, token_id: int) -> bytes:
        token = self.whole.id_to_token(token_id)
        if token_id in self.specials or token is None:
            return b""
        try:
            return bytes(_BYTE_OF[character] for character in token)
        except KeyError:
            # An added token is spelled as itself.
            return str(token).encode()


class Detokenizer(Protocol):
    """Text of ids as they come: the pieces and the rest concatenate to `Vocabulary.decode`."""

    @property
    def is_whole(self) -> bool:
        """Whether every character so far is out, so that a token border is a text border."""
        ...

    def feed(self, token_id: int) -> str: ...

    def flush(self) -> str:
        """What an unfinished character comes to: U+FFFD, as a decoder of the whole writes it."""
        ...


class _ByteLevelDetokenizer:
    """A token is a string of bytes, so UTF-8 decodes as it comes, O(1) a token."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def is_whole(self) -> bool:
        return not self._decoder.getstate()[0]

    def feed(self, token_id: int) -> str:
        return self._decoder.decode(self._vocabulary.token_bytes(token_id))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class _WindowDetokenizer:
    """For every other decoder: the library's own stream over a short window of tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._stream = DecodeStream(skip_special_tokens=True)
        self._token_ids: list[int] = []
        self._sent_chars = 0
        self.is_whole = True

    def feed(self, token_id: int) -> str:
        self._token_ids.append(token_id)
        text: str | None = self._stream.step(self._vocabulary.whole, token_id)
        self.is_whole = text is not None or token_id in self._vocabulary.specials
        self._sent_chars += len(text or "")
        return text or ""

    def flush(self) -> str:
        return self._vocabulary.decode(self._token_ids)[self._sent_chars :]


class TextStream:
    """One job's output as text that is safe to send. State: the tokens fed, the text held.

    After a stop string was found (`is_stopped`) further tokens are ignored: they are overshoot.
    """

    def __init__(self, vocabulary: Vocabulary, stop: Sequence[str] = ()) -> None:
        self._vocabulary = vocabulary
        self._detokenizer = vocabulary.detokenizer()
        self._stop = tuple(text for text in stop if text)
        self._token_ids: list[int] = []
        # Token borders that are text borders too: (tokens, chars), the first at or before S.
        self._marks: list[tuple[int, int]] = [(0, 0)]
        # Text from the first mark on; S and the stop string's start count from the reply's start.
        self._tail = ""
        self._sent_chars = 0
        self._stop_start: int | None = None

    @property
    def is_stopped(self) -> bool:
        return self._stop_start is not None

    @property
    def kept_ids(self) -> tuple[int, ...]:
        """The tokens before the stop string; all of them while none was found."""
        if self._stop_start is None:
            return tuple(self._token_ids)
        chars = [chars for _, chars in self._marks]
        at = bisect_left(chars, self._stop_start)
        if at == len(chars) or chars[at] > self._stop_start:
            at -= 1
        tokens, start = self._marks[at]
        base = self._marks[0][1]
        rest = self._tail[start - base : self._stop_start - base]
        return (*self._token_ids[:tokens], *(self._vocabulary.encode(rest) if rest else ()))

    def feed(self, token_ids: Iterable[int]) -> str:
        """Take drawn tokens; return new text that no stop string can reach any more."""
        for token_id in token_ids:
            if self.is_stopped:
                break
            self._token_ids.append(token_id)
            self._extend(self._detokenizer.feed(token_id))
            if self._detokenizer.is_whole:
                self._marks.append((len(self._token_ids), self._marks[0][1] + len(self._tail)))
        return self._release(self._held_chars())

    def resume(self, token_ids: Iterable[int]) -> None:
        """Replay output that was sent before: state moves on, nothing is sent again."""
        self.feed(token_ids)

    def flush(self) -> str:
        """The reply is over: all remaining text, up to the stop string if one was found."""
        if not self.is_stopped:
            self._extend(self._detokenizer.flush())
        return self._release(0)

    def _extend(self, text: str) -> None:
        if not text:
            return
        unsent = self._sent_chars - self._marks[0][1]
        self._tail += text
        starts = [(self._tail.find(stop, unsent), len(stop)) for stop in self._stop]
        # The one that is whole first, so that it does not matter where tokens end.
        found = [(start + length, start) for start, length in starts if start >= 0]
        if found:
            self._stop_start = self._marks[0][1] + min(found)[1]

    def _held_chars(self) -> int:
        """Length of the longest end of the unsent text that a stop string begins with."""
        unsent = self._tail[self._sent_chars - self._marks[0][1] :]
        return max((_overlap(unsent, stop) for stop in self._stop), default=0)

    def _release(self, held_chars: int) -> str:
        base = self._marks[0][1]
        end = base + len(self._tail) - held_chars if not self.is_stopped else self._stop_start
        assert end is not None
        text = self._tail[self._sent_chars - base : end - base]
        self._sent_chars = end
        if not self.is_stopped:
            self._forget()
        return text

    def _forget(self) -> None:
        """Drop text and borders that no later cut can need."""
        at = bisect_left(self._marks, (len(self._token_ids) + 1, 0))
        while at > 1 and self._marks[at - 1][1] > self._sent_chars:
            at -= 1
        base = self._marks[0][1]
        self._marks = self._marks[at - 1 :]
        self._tail = self._tail[self._marks[0][1] - base :]


def _overlap(text: str, stop: str) -> int:
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


def _untruncated(backend: Tokenizer) -> Tokenizer:
    """How long a text may be is decided elsewhere, and never by cutting it."""
    backend.no_truncation()
    backend.no_padding()
    _remember_nothing(backend)
    return backend


def _remember_nothing(tokenizer: Tokenizer) -> None:
    """Of the words that it encodes: they would come sooner for whoever sends another's (law 11).

    And stay in memory when their text is deleted. Kinds that remember none have no such call.
    """
    resize = getattr(tokenizer.model, "_resize_cache", None)
    if resize is not None:
        resize(0)


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable ones as themselves, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = (byte for byte in range(256) if byte not in printable)
    spelled = {chr(byte): byte for byte in printable}
    return spelled | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}


_BYTE_OF = _byte_alphabet()
