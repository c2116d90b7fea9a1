"""The dialect's objects: a response, its usage, its output and its input.

PURE but for the chance in what pads a frame: states in, structs out.
"""

import secrets
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from app.chat.asked import CacheAsked, Compared, Tools
from app.chat.calls import written
from app.chat.ledger import StoredResponse
from app.chat.turns import CONTEXT_FULL, MAX_OUTPUT_TOKENS
from app.errors import NotFound
from app.events import ResponseView
from app.routes.openai import schema
from app.routes.openai.events import ArgumentsDelta, DeltaEvent
from app.routes.openai.formats import told
from app.routes.openai.items import function_call, output_status
from app.routes.openai.schema import Echo
from app.routes.openai.tools import told_choice, told_tools
from engine.api import TokenLogprob, TokenLogprobs


def logprobs(tokens: Sequence[TokenLogprobs]) -> tuple[schema.Logprob, ...]:
    return tuple(
        schema.Logprob(
            token=token.chosen.token,
            logprob=token.chosen.logprob,
            bytes=_bytes(token.chosen),
            top_logprobs=tuple(
                schema.TopLogprob(token=top.token, logprob=top.logprob, bytes=_bytes(top))
                for top in token.top
            ),
        )
        for token in tokens
    )


def _bytes(token: TokenLogprob) -> tuple[int, ...]:
    return tuple(token.token.encode())


PADDED_BYTES = 64
Padded = TypeVar("Padded", DeltaEvent, ArgumentsDelta, schema.Chunk)


def padded(frame: Padded) -> Padded:
    """The same with characters of chance, so that its size as JSON tells little of the text's.

    Sizes go up in steps; what is random does not shrink where a connection compresses.
    """
    bare = msgspec.structs.replace(frame, obfuscation="")
    missing = -len(msgspec.json.encode(bare)) % PADDED_BYTES
    filling = secrets.token_hex(PADDED_BYTES // 2)[:missing]
    return msgspec.structs.replace(frame, obfuscation=filling)


def usage(response: ResponseView) -> schema.ResponseUsage | None:
    """`cached_tokens` and `cache_write_tokens` sum to `input_tokens`, zero included (law 2)."""
    if response.usage is None:
        return None
    spent = response.usage
    return schema.ResponseUsage(
        input_tokens=spent.input_tokens,
        input_tokens_details=schema.InputTokensDetails(
            cached_tokens=spent.cached_tokens,
            cache_write_tokens=spent.input_tokens - spent.cached_tokens,
        ),
        output_tokens=spent.output_tokens,
        total_tokens=spent.input_tokens + spent.output_tokens,
    )


def output_items(
    response: ResponseView,
    text: str,
    tools: Tools | None,
    tokens: tuple[schema.Logprob, ...] = (),
) -> tuple[schema.OutputItem, ...]:
    """A response's text as what it says and what it calls; the last of that may be cut."""
    status = output_status(response.status)
    if tools is None:
        return (_output_message(response, text, status, tokens),)
    reply = written(text, tools.form)
    items: list[schema.OutputItem] = []
    if reply.text or not reply.calls:
        said = "completed" if reply.calls else status
        items.append(_output_message(response, reply.text, said, tokens))
    for place, call in enumerate(reply.calls):
        done = "completed" if call.is_whole else status
        items.append(function_call(response.message_id, place, call, status=done))
    return tuple(items)


def _output_message(
    response: ResponseView, text: str, status: str, tokens: tuple[schema.Logprob, ...] = ()
) -> schema.OutputMessage:
    return schema.OutputMessage(
        id=response.message_id,
        status=status,
        content=(schema.OutputText(text=text, logprobs=tokens),),
    )


_REASONS = {CONTEXT_FULL: MAX_OUTPUT_TOKENS}
"""The dialect has no word for a full context: what is cut there is cut by its length."""


def response_object(
    response: ResponseView, echo: Echo, output: tuple[schema.OutputItem, ...]
) -> schema.ResponseObject:
    """The response as `GET` shows it and as its life events carry it."""
    reason, error = response.incomplete_reason, response.error
    named = echo.conversation_id
    return schema.ResponseObject(
        id=response.id,
        created_at=response.created_at,
        completed_at=response.completed_at,
        conversation=schema.ConversationRef(id=named) if named else None,
        status=response.status,
        error=schema.ErrorDetail(code=error.code, message=error.message) if error else None,
        incomplete_details=schema.IncompleteDetails(reason=_REASONS.get(reason, reason))
        if reason
        else None,
        instructions=echo.instructions,
        max_output_tokens=echo.limits.max_output_tokens,
        metadata=echo.metadata,
        model=response.model,
        output=output,
        previous_response_id=echo.previous_response_id,
        prompt_cache_key=echo.cache.key,
        prompt_cache_options=_applied(echo.cache),
        prompt_cache_diagnostics=_diagnostics(response, echo.compared),
        prompt_cache_retention="in_memory" if echo.cache.memory_only else None,
        store=echo.store,
        temperature=echo.sampling.temperature,
        top_p=echo.sampling.top_p,
        top_logprobs=echo.sampling.logprobs or 0,
        truncation="auto" if echo.shortenable else "disabled",
        usage=usage(response),
        receipt=response.receipt,
        text=schema.TextConfig(format=told(echo.format)),
        parallel_tool_calls=echo.tools is not None and echo.tools.parallel,
        tool_choice=told_choice(echo.tools),
        tools=told_tools(echo.tools),
    )


def _applied(asked: CacheAsked) -> schema.CacheApplied | None:
    if asked.ttl_s is None:
        return None
    return schema.CacheApplied(
        ttl=f"{asked.ttl_s / 3600:g}h" if asked.ttl_s > 3600 else "30m",
        mode="implicit",
        comparison_response_id=asked.comparison_id,
    )


def _diagnostics(
    response: ResponseView, compared: Compared | None
) -> schema.CacheDiagnostics | None:
    """Once it has ended, of a request that asked for it."""
    if compared is None or not response.status.ended:
        return None
    if not compared.is_known:
        return schema.NotCompared()
    receipt = response.receipt
    if receipt is None or compared.tokens is None:
        return schema.NotToldApart()
    if compared.difference is not None:
        return schema.CacheMiss(
            cache_missed_tokens=max(0, receipt.prompt_tokens - compared.shared_tokens),
            comparison_reusable_tokens=compared.shared_tokens,
            reason=compared.difference,
        )
    # A prompt's last token is always computed: its successor is drawn from it.
    is_there = receipt.cached_tokens >= min(compared.tokens, receipt.prompt_tokens - 1)
    return schema.CacheHit() if is_there else schema.NotToldApart()


def stored_echo(stored: StoredResponse) -> Echo:
    """What was kept of the request that made this response."""
    return Echo(
        instructions=stored.instructions,
        previous_response_id=stored.previous_response_id,
        cache=stored.asked.cache,
        compared=stored.asked.compared,
        conversation_id=stored.view.conversation_id if stored.asked.in_conversation else None,
        metadata=stored.asked.metadata,
        sampling=stored.asked.sampling,
        limits=stored.asked.limits,
        format=stored.asked.format,
        tools=stored.asked.tools,
        store=stored.store,
        generate=stored.asked.generate,
        shortenable=stored.asked.shortenable,
    )


def stored_response(stored: StoredResponse) -> schema.ResponseObject:
    """A response outside its log: one that writes shows its text so far, a warm-up shows none."""
    output: tuple[schema.OutputItem, ...] = ()
    if stored.has_item:
        output = output_items(stored.view, stored.text, stored.asked.tools)
    return response_object(stored.view, stored_echo(stored), output)


def item_page(
    items: Sequence[schema.ListedItem], after: str | None, limit: int
) -> schema.InputItemList:
    """At most `limit` items behind the one that `after` names. Raises `NotFound`."""
    ids = [item.id for item in items]
    if after is not None and after not in ids:
        raise NotFound("There is no such item.", field="after")
    start = 0 if after is None else ids.index(after) + 1
    page = tuple(items[start : start + limit])
    return schema.InputItemList(
        data=page,
        first_id=page[0].id if page else None,
        last_id=page[-1].id if page else None,
        has_more=start + limit < len(items),
    )
