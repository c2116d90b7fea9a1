"""Logs of responses as the app writes them, with every id and time fixed."""

from collections.abc import Sequence

import msgspec

from app.chat.asked import Asked, Tools
from app.chat.eventlog import EventLog
from app.chat.ledger import StoredResponse
from app.db.types import Origin
from app.events import LogEvent, Problem, ResponseStatus, ResponseView, Usage
from app.ids import ConversationId, MessageId, ResponseId, UserId
from app.routes.openai.schema import Echo
from engine.api import (
    CachedBySource,
    Limits,
    Receipt,
    Sampling,
    TokenLogprob,
    TokenLogprobs,
)

RUNNING = ResponseView(
    id=ResponseId("resp_1"),
    conversation_id=ConversationId("conv_1"),
    message_id=MessageId("msg_2"),
    parent_id=MessageId("msg_1"),
    status=ResponseStatus.IN_PROGRESS,
    model="paper",
    created_at=1_700_000_000.5,
)
RECEIPT = Receipt(
    prompt_tokens=40,
    cached_tokens=30,
    computed_tokens=10,
    output_tokens=2,
    cached_by_source=CachedBySource(template=4, session=26),
    miss_reason=None,
    differs_at=None,
    queue_s=0.001,
    prefill_s=0.02,
    first_token_s=0.03,
    total_s=0.05,
    model_fingerprint="m1",
    template_fingerprint="t1",
    boot_id="b1",
)
COMPLETED = msgspec.structs.replace(
    RUNNING,
    status=ResponseStatus.COMPLETED,
    completed_at=1_700_000_001.5,
    usage=Usage(input_tokens=40, cached_tokens=30, output_tokens=2),
    receipt=RECEIPT,
)
CUT = msgspec.structs.replace(
    COMPLETED, status=ResponseStatus.INCOMPLETE, incomplete_reason="max_output_tokens"
)
CANCELLED = msgspec.structs.replace(COMPLETED, status=ResponseStatus.CANCELLED)
FAILED = msgspec.structs.replace(
    RUNNING,
    status=ResponseStatus.FAILED,
    completed_at=1_700_000_001.5,
    error=Problem(code="overloaded", message="More wait than can be served.", retry_after_s=2.0),
)
ECHO = Echo(
    instructions="Be brief.",
    previous_response_id="resp_0",
    metadata={"team": "blue"},
    sampling=Sampling(temperature=0.5, top_p=0.9),
    format=None,
    limits=Limits(max_output_tokens=16),
    store=True,
    generate=True,
)


def token(text: str) -> TokenLogprobs:
    """A token that is certain, with one alternative."""
    chosen = TokenLogprob(token_id=1, token=text, logprob=-0.25)
    other = TokenLogprob(token_id=2, token="?", logprob=-2.0)
    return TokenLogprobs(chosen=chosen, top=(chosen, other))


def stored(view: ResponseView, text: str, *, generate: bool = True) -> StoredResponse:
    """The same response as a ledger keeps it."""
    return StoredResponse(
        view=view,
        user_id=UserId("user_1"),
        text=text,
        origin=Origin.API,
        previous_response_id=ResponseId("resp_0"),
        instructions="Be brief.",
        asked=Asked(
            sampling=ECHO.sampling,
            limits=ECHO.limits,
            metadata=ECHO.metadata,
            generate=generate,
            input_ids=(MessageId("msg_1"),),
            head_key="opening:user",
            opening_end=0,
            boot_id="b1",
        ),
        store=True,
        epoch="e1",
    )


async def answered(
    deltas: Sequence[str], end: ResponseView = COMPLETED, *, logprobs: bool = False
) -> list[LogEvent]:
    """The whole log of a response that wrote `deltas`, one token each."""
    log = EventLog(RUNNING)
    log.begin()
    log.progress()
    log.open_item()
    for delta in deltas:
        log.write(delta, (token(delta),) if logprobs else ())
    log.close_item()
    log.end(end)
    return [event async for event in log.subscribe()]


async def without_item(end: ResponseView) -> list[LogEvent]:
    """The log of a warm-up, or of a response that failed before it wrote."""
    log = EventLog(RUNNING)
    log.begin()
    log.progress()
    log.end(end)
    return [event async for event in log.subscribe()]


def echo_with(tools: Tools) -> Echo:
    """Of a request that declared functions."""
    return msgspec.structs.replace(ECHO, tools=tools)
