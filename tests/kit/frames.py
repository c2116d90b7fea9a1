"""The dialect's frames as golden files, for strangers depend on them. `make golden` rewrites."""

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from app.errors import InvalidRequest, TooMany
from app.events import LogEvent
from app.routes.openai.chunks import CompletionFold
from app.routes.openai.events import ServerEvent
from app.routes.openai.schema import Chunk
from app.routes.openai.socket import error_event
from app.routes.openai.view import ResponseFold
from tests.kit import logs

REFUSED = InvalidRequest("This value is not supported.", code="invalid_value", field="top_p")
FULL = TooMany("Too many wait.", code="websocket_queue_full", retry_after_s=1.0)
GOLDEN = Path(__file__).parent.parent / "golden" / "dialect"


def responses(events: Iterable[LogEvent], lane: str | None = None) -> list[ServerEvent]:
    """A log as `/v1/responses` tells it."""
    fold = ResponseFold(logs.ECHO, lane)
    return [seen for event in events for seen in fold.events(event)]


def chunks(events: Iterable[LogEvent], **asked: Any) -> list[Chunk]:
    """A log as `/v1/chat/completions` streams it."""
    fold = CompletionFold(logs.RUNNING, **asked)
    return [chunk for event in events for chunk in fold.chunks(event)]


async def golden() -> dict[str, str]:
    """File name to content, one frame a line."""
    answer = await logs.answered(["Hel", "lo"], logprobs=True)
    return {
        "responses.jsonl": _lines(responses(answer)),
        "lane.jsonl": _lines(responses(await logs.answered(["Hi"], logs.CUT), "left")),
        "failed.jsonl": _lines(responses(await logs.without_item(logs.FAILED))),
        "chunks.jsonl": _lines(chunks(answer, usage_asked=True, wants_logprobs=True)),
        "errors.jsonl": _lines([error_event(REFUSED), error_event(FULL, "left")]),
    }


def _lines(frames: Sequence[msgspec.Struct]) -> str:
    return "".join(msgspec.json.encode(frame).decode() + "\n" for frame in frames)


if __name__ == "__main__":
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name, content in asyncio.run(golden()).items():
        (GOLDEN / name).write_text(content)
