"""One streamed chat completion, asked of any OpenAI-compatible server, with the time of each piece.

The client shares the machine's cores with the server that it measures, so it is thin: HTTP goes
through a parser in C, pieces are stamped as they come in, and are read as JSON after the last.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

import msgspec
from httptools import HttpResponseParser

ANSWER_S = 900.0
"""Longer than any answer takes: whoever is silent for so long has failed."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Whom to ask: an address that ends in `/v1`, a model's name and, where one is needed, a key."""

    url: str
    model: str = "default"
    key: str = ""


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one request. Times are seconds on this process's monotonic clock."""

    sent_s: float
    pieces_s: tuple[float, ...]
    """When each piece of text arrived."""
    ended_s: float
    text: str
    prompt_tokens: int
    cached_tokens: int | None
    """None: the server does not tell."""
    output_tokens: int

    @property
    def first_token_s(self) -> float:
        return self.pieces_s[0] - self.sent_s

    @property
    def computed_tokens(self) -> int:
        """Of the prompt; all of it where the server tells of no cache."""
        return self.prompt_tokens - (self.cached_tokens or 0)


class Failed(Exception):
    """The server refused, or its answer was none."""


async def ask(
    target: Target, messages: Sequence[dict[str, str]], tokens: int, *, user: str = ""
) -> Heard:
    """The reply to `messages`, greedy and of exactly `tokens` tokens as far as the server can.

    Each server reads of these fields what it knows. `user` tells one conversation from another to
    those who cannot tell by the text.
    """
    body = {
        "model": target.model,
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_tokens": tokens,
        "min_tokens": tokens,
        "ignore_eos": True,
        "user": user,
    }
    where = urlsplit(target.url)
    request = _request(where.netloc, f"{where.path}/chat/completions", target.key, body)
    sent_s = time.perf_counter()
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(ANSWER_S):
        _, answer = await loop.create_connection(
            lambda: _Answer(request), where.hostname or "", where.port or 80
        )
        await answer.whole
    return _read(answer, sent_s)


def _request(host: str, path: str, key: str, body: object) -> bytes:
    content = msgspec.json.encode(body)
    lines = (
        f"POST {path} HTTP/1.1",
        f"Host: {host}",
        f"Authorization: Bearer {key}",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
        "Connection: close",
    )
    return "\r\n".join((*lines, "", "")).encode() + content


class _Answer(asyncio.Protocol):
    """Sends one request and keeps what comes back, with times."""

    def __init__(self, request: bytes) -> None:
        self.whole = asyncio.get_running_loop().create_future()
        self.pieces: list[tuple[float, bytes]] = []
        self.status = 0
        self._request = request
        self._parser = HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.pieces.append((time.perf_counter(), body))

    def on_message_complete(self) -> None:
        self._transport.close()
        self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(Failed(f"the connection was lost: {exc}"))

    def _end(self, error: Exception | None) -> None:
        if self.whole.done():
            return
        if error is None:
            self.whole.set_result(None)
        else:
            self.whole.set_exception(error)


# ---------------------------------------------------------------- reading what came


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: object = None


_CHUNK = msgspec.json.Decoder(_Chunk)


def _read(answer: _Answer, sent_s: float) -> Heard:
    if answer.status != 200:
        said = b"".join(body for _, body in answer.pieces)
        raise Failed(f"HTTP {answer.status}: {said[:500].decode(errors='replace')}")
    texts: list[str] = []
    times: list[float] = []
    usage = None
    for at, line in _lines(answer.pieces):
        if not line.startswith(b"data:") or line.endswith(b"[DONE]"):
            continue
        chunk = _CHUNK.decode(line[5:])
        if chunk.error:
            raise Failed(str(chunk.error))
        usage = chunk.usage or usage
        for choice in chunk.choices:
            if choice.delta.content:
                texts.append(choice.delta.content)
                times.append(at)
    if usage is None or not times:
        raise Failed("the answer has no text or no usage")
    details = usage.prompt_tokens_details
    return Heard(
        sent_s=sent_s,
        pieces_s=tuple(times),
        ended_s=answer.pieces[-1][0],
        text="".join(texts),
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=details.cached_tokens if details else None,
        output_tokens=usage.completion_tokens,
    )


def _lines(pieces: Sequence[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """Whole lines, each with the time at which its end arrived."""
    rest = b""
    for at, body in pieces:
        *whole, rest = (rest + body).split(b"\n")
        for line in whole:
            yield at, line.strip()
