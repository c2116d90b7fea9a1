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
    """Whom to ask: an address that ends in `/v1`, a model's name and, where one is needed, a key.

    `stores`: it keeps conversations itself, and is sent what is new of them.
    """

    url: str
    model: str = "default"
    key: str = ""
    stores: bool = False


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
    response_id: str = ""
    """By which a server that stores knows it."""

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
    target: Target,
    messages: Sequence[dict[str, str]],
    tokens: int,
    *,
    user: str = "",
    previous: str = "",
) -> Heard:
    """The reply to `messages`, greedy and of exactly `tokens` tokens as far as the server can.

    Each server reads of these fields what it knows. `user` tells one conversation from another to
    those who cannot tell by the text. A server that stores has all but the last message by
    `previous`, and the system prompt is said again, as its dialect has it.
    """
    body = {
        "model": target.model,
        "stream": True,
        "temperature": 0,
        "min_tokens": tokens,
        "ignore_eos": True,
        "user": user,
    }
    if target.stores:
        instructions = [said["content"] for said in messages if said["role"] == "system"]
        body |= {
            "input": messages[-1]["content"],
            "instructions": instructions[0] if instructions else None,
            "previous_response_id": previous or None,
            "max_output_tokens": tokens,
        }
    else:
        body |= {
            "messages": messages,
            "stream_options": {"include_usage": True},
            "max_tokens": tokens,
        }
    where = urlsplit(target.url)
    route = "responses" if target.stores else "chat/completions"
    request = _request(where.netloc, f"{where.path}/{route}", target.key, body)
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
    """Of a chat completion, or (the second name) of a response."""

    prompt_tokens: int = 0
    input_tokens: int = 0
    completion_tokens: int = 0
    output_tokens: int = 0
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None


class _Response(msgspec.Struct):
    id: str
    usage: _Usage | None = None


class _Chunk(msgspec.Struct):
    """A chunk of a completion, or an event of a response."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: object = None
    type: str = ""
    delta: str = ""
    response: _Response | None = None

    def text(self) -> str:
        if self.type == "response.output_text.delta":
            return self.delta
        return "".join(choice.delta.content or "" for choice in self.choices)


_CHUNK = msgspec.json.Decoder(_Chunk)


def _read(answer: _Answer, sent_s: float) -> Heard:
    if answer.status != 200:
        said = b"".join(body for _, body in answer.pieces)
        raise Failed(f"HTTP {answer.status}: {said[:500].decode(errors='replace')}")
    texts: list[str] = []
    times: list[float] = []
    usage, response_id = None, ""
    for at, line in _lines(answer.pieces):
        if not line.startswith(b"data:") or line.endswith(b"[DONE]"):
            continue
        chunk = _CHUNK.decode(line[5:])
        if chunk.error:
            raise Failed(str(chunk.error))
        if chunk.response is not None:
            response_id, usage = chunk.response.id, chunk.response.usage
        usage = chunk.usage or usage
        if text := chunk.text():
            texts.append(text)
            times.append(at)
    if usage is None or not times:
        raise Failed("the answer has no text or no usage")
    details = usage.prompt_tokens_details or usage.input_tokens_details
    return Heard(
        sent_s=sent_s,
        pieces_s=tuple(times),
        ended_s=answer.pieces[-1][0],
        text="".join(texts),
        prompt_tokens=usage.prompt_tokens or usage.input_tokens,
        cached_tokens=details.cached_tokens if details else None,
        output_tokens=usage.completion_tokens or usage.output_tokens,
        response_id=response_id,
    )


def _lines(pieces: Sequence[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """Whole lines, each with the time at which its end arrived."""
    rest = b""
    for at, body in pieces:
        *whole, rest = (rest + body).split(b"\n")
        for line in whole:
            yield at, line.strip()
