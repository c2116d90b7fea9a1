"""Chat completions and models. Stateless: the client sends its whole history, nothing is stored.

What it repeats of the caller's earlier turns keeps the ids that it had then (`chat.recall`), so that
their KV is found again.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import msgspec
from litestar import Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath

from app.chat.asked import Tools
from app.chat.entry import TurnRequest
from app.chat.supervisor import Supervisor
from app.errors import AppError, Code, InvalidRequest, NotFound, TooMany
from app.events import LogEvent, Problem, ResponseEnded
from app.people.accounts import Principal
from app.routes.openai.chunks import CompletionFold
from app.routes.openai.exchange import DialectRequest, Exchange, begin, json_answer
from app.routes.openai.formats import IN_COMPLETIONS, IN_RESPONSES
from app.routes.openai.requests import completion_create, read_document
from app.routes.openai.schema import Chunk, Completion, CompletionCreate, Model, ModelList
from app.routes.openai.turns import MODEL_HERE, completion_turn, wants_padding
from app.routes.problems import DialectFailure, dialect_error
from app.routes.published.told import EVENT_STREAM, JSON, Sent, told
from engine.api import Engine, ModelCard

_FIELDS = {"input": "messages", "format": IN_COMPLETIONS, IN_RESPONSES: IN_COMPLETIONS}
"""What a turn's parts are called here."""
_DONE = b"data: [DONE]\n\n"


@post(
    "/v1/chat/completions",
    status_code=200,
    opt=told(
        takes={JSON: CompletionCreate},
        gives={JSON: Completion, EVENT_STREAM: Sent(Chunk | DialectFailure, last="[DONE]")},
    ),
)
async def complete_chat(
    request: DialectRequest,
    supervisor: NamedDependency[Supervisor],
    engine: NamedDependency[Engine],
) -> Response[Any]:
    asked = completion_create(read_document(await request.body()))
    turn = completion_turn(asked, await engine.info())
    exchange = await _begin(supervisor, request.user, turn)
    fold = _fold(exchange, asked, turn.tools)
    if asked.stream:
        return exchange.stream(_frames(exchange, fold))
    events = await exchange.whole(request)
    return json_answer(None if events is None else _completion(events, fold))


@get("/v1/models")
async def list_models(engine: NamedDependency[Engine]) -> ModelList:
    return ModelList(data=(_model(await engine.info()),))


@get("/v1/models/{model:path}")
async def show_model(engine: NamedDependency[Engine], model: FromPath[str]) -> Model:
    """Names of models may hold slashes."""
    card = await engine.info()
    if model.removeprefix("/") not in (MODEL_HERE, card.name):
        raise NotFound(
            f"The model {model.removeprefix('/')!r} is not here.",
            code="model_not_found",
            field="model",
        )
    return _model(card)


handlers = [complete_chat, list_models, show_model]


def _model(card: ModelCard) -> Model:
    """The context as far as the pool can hold it."""
    room = card.pool_blocks * card.block_tokens
    return Model(id=card.name, context_tokens=min(card.context_tokens, room))


async def _begin(supervisor: Supervisor, principal: Principal, turn: TurnRequest) -> Exchange:
    """Here the turn's input is called `messages`, and its schema lies elsewhere."""
    try:
        return await begin(supervisor, principal, turn)
    except InvalidRequest as error:
        error.field = _FIELDS.get(error.field or "", error.field)
        raise


def _fold(exchange: Exchange, asked: CompletionCreate, tools: Tools | None) -> CompletionFold:
    options = asked.stream_options
    return CompletionFold(
        exchange.log.response,
        usage_asked=bool(options and options.include_usage),
        wants_logprobs=bool(asked.logprobs),
        padding=wants_padding(asked),
        tools=tools,
    )


async def _frames(exchange: Exchange, fold: CompletionFold) -> AsyncIterator[bytes]:
    async for event in exchange.log.subscribe():
        if isinstance(event, ResponseEnded) and event.response.error:
            yield _data(DialectFailure(error=dialect_error(_failure(event.response.error))))
            return
        for chunk in fold.chunks(event):
            yield _data(chunk)
    yield _DONE


def _data(content: object) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(content)


def _completion(events: Sequence[LogEvent], fold: CompletionFold) -> Completion:
    """Raises the response's problem where it failed."""
    ended = events[-1]
    assert isinstance(ended, ResponseEnded), "a log ends with the response's end"
    if ended.response.error:
        raise _failure(ended.response.error)
    return fold.completion(events)


def _failure(problem: Problem) -> AppError:
    """A failed response as the error of its request."""
    kind: type[AppError]
    match problem.code:
        case "context_length_exceeded" | "invalid_prompt" | "invalid_json_schema":
            kind = InvalidRequest
        case "rate_limit_exceeded":
            kind = TooMany
        case _:
            kind = AppError
    return kind(
        problem.message,
        code=cast("Code", problem.code),  # what is stored was one of ours
        field=problem.field and _FIELDS.get(problem.field, problem.field),
        retry_after_s=problem.retry_after_s,
    )
