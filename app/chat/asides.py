"""Asides: what the model is asked about a conversation that the conversation never hears of.

A question stands behind the conversation's own ids, as a throw-away branch of its session: what is
cached of them is read, nothing is left behind, and the next turn pays not one token for it (law 2).
"""

import secrets
from collections.abc import Callable

import msgspec

from app.chat.prompt import Prompt
from app.ids import ConversationId, UserId
from engine.api import (
    Delta,
    Engine,
    Finished,
    Grammar,
    Job,
    JobClass,
    JobId,
    Limits,
    OwnerId,
    Sampling,
    SessionId,
    Started,
)

SURE = Sampling(temperature=0.0, repetition_penalty=1.1)
"""The likeliest words, and a little against going in circles."""


class Aside(msgspec.Struct, frozen=True, kw_only=True):
    """What the model said, and how that ended."""

    text: str
    end: Finished


def aside_job(
    user_id: UserId,
    conversation_id: ConversationId,
    prompt: Prompt,
    limits: Limits,
    *,
    grammar: Grammar | None = None,
) -> Job:
    """The prompt's answer, for as long as there is spare room for it."""
    return Job(
        job_id=JobId(f"aside_{secrets.token_hex(8)}"),
        owner_id=OwnerId(user_id),
        session_id=SessionId(conversation_id),
        token_ids=prompt.token_ids,
        zones=prompt.zones,
        sampling=SURE,
        limits=limits,
        job_class=JobClass.BACKGROUND,
        grammar=grammar,
        durable=False,
    )


async def heard(engine: Engine, job: Job, spent: Callable[[int], object]) -> Aside | None:
    """The whole answer; None where the engine gave none to the end. Raises `EngineError`.

    Whoever is cancelled meanwhile cancels the job with it. `spent` is told how many tokens were
    computed, also where nothing came of them.
    """
    text, tokens = "", 0
    try:
        async for event in engine.generate(job):
            if isinstance(event, Started):
                tokens = event.prompt_tokens - event.cached_tokens
            elif isinstance(event, Delta):
                text += event.text
                tokens += len(event.token_ids)
            elif isinstance(event, Finished):
                receipt = event.receipt
                tokens = 0 if receipt is None else receipt.computed_tokens + receipt.output_tokens
                return Aside(text=text + event.text, end=event)
        return None
    finally:
        spent(tokens)
