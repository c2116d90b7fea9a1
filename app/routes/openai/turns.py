"""From a checked request of the dialect to the turn that it asks for, in the domain's own words.

PURE. It refuses what only the contents can show: an unknown model, a picture among the texts, a
least that is above the most.
"""

from typing import TypeVar

from app.chat.asked import CacheAsked, Compared
from app.chat.entry import TurnRequest
from app.chat.ledger import Act
from app.db.types import Origin
from app.errors import InvalidRequest, NotFound
from app.ids import ConversationId, ItemId, PersonaId, ResponseId
from app.routes.openai.formats import response_format, text_format
from app.routes.openai.items import brought
from app.routes.openai.requests import missing
from app.routes.openai.schema import CompletionCreate, Echo, Knobs, ResponseCreate
from app.routes.openai.tools import completion_tools, response_tools
from engine.api import Limits, ModelCard, Role, Sampling

MODEL_HERE = "default"
"""Names whichever model the server has, so that a script runs on any server."""


def response_turn(asked: ResponseCreate, card: ModelCard) -> TurnRequest:
    """The turn that `/v1/responses` asks for, by HTTP or by a socket."""
    _check_model(asked, card.name)
    prewarm = asked.prompt_cache_options and asked.prompt_cache_options.prewarm
    generate = asked.generate is not False and not prewarm
    wants_logprobs = "message.output_text.logprobs" in (asked.include or ()) or asked.top_logprobs
    previous, conversation_id = asked.previous_response_id, _conversation_id(asked)
    goes_on = previous is not None or conversation_id is not None
    if asked.input is None and not goes_on and generate:
        raise missing("input")
    new = brought(asked.input, "input", card)
    return TurnRequest(
        messages=new.messages,
        results=new.results,
        previous_response_id=None if previous is None else ResponseId(previous),
        conversation_id=conversation_id,
        act=Act.SAY if conversation_id is None else Act.APPEND,
        instructions=asked.instructions,
        persona_id=PersonaId(ItemId(asked.prompt.id)) if asked.prompt else None,
        cache=cache(asked),
        sampling=sampling(asked, (asked.top_logprobs or 0) if wants_logprobs else None),
        limits=limits(asked, asked.max_output_tokens),
        format=text_format(asked.text),
        tools=response_tools(asked, card),
        generate=generate,
        store=asked.store is not False,
        origin=Origin.API,
        metadata=asked.metadata or {},
        shortenable=asked.truncation == "auto",
    )


def _conversation_id(asked: ResponseCreate) -> ConversationId | None:
    named = asked.conversation
    if not named:
        return None
    return ConversationId(named if isinstance(named, str) else named.id)


def completion_turn(asked: CompletionCreate, card: ModelCard) -> TurnRequest:
    """The turn of a stateless client: its whole history, of which nothing is stored."""
    _check_model(asked, card.name)
    most = asked.max_completion_tokens or asked.max_tokens
    new, tools = brought(asked.messages, "messages", card), completion_tools(asked, card)
    first, *rest = new.messages
    # A template tells of functions in the system's own message.
    instructions = first.text if tools and rest and first.role is Role.SYSTEM else None
    return TurnRequest(
        messages=new.messages if instructions is None else tuple(rest),
        results=new.results,
        instructions=instructions,
        tools=tools,
        cache=cache(asked),
        sampling=sampling(asked, (asked.top_logprobs or 0) if asked.logprobs else None),
        limits=limits(asked, most),
        format=response_format(asked.response_format),
        store=False,
        origin=Origin.API,
    )


def _check_model(asked: Knobs, model: str) -> None:
    if asked.model not in (None, MODEL_HERE, model):
        raise NotFound(
            f"The model {asked.model!r} is not here; this server has {model!r}.",
            code="model_not_found",
            field="model",
        )


def wants_padding(asked: Knobs) -> bool:
    return bool(asked.stream_options and asked.stream_options.include_obfuscation)


def echo(turn: TurnRequest, compared: Compared | None = None) -> Echo:
    """What the response object repeats of a turn that has just been asked for."""
    return Echo(
        instructions=turn.instructions,
        previous_response_id=turn.previous_response_id,
        conversation_id=turn.conversation_id,
        cache=turn.cache,
        compared=compared,
        metadata=turn.metadata,
        sampling=turn.sampling,
        limits=turn.limits,
        format=turn.format,
        tools=turn.tools,
        store=turn.store,
        generate=turn.generate,
        shortenable=turn.shortenable,
    )


# ---------------------------------------------------------------- pieces


def sampling(asked: Knobs, logprobs: int | None) -> Sampling:
    """`temperature` and `top_p` are 1 where nothing is said, as in the dialect."""
    return Sampling(
        temperature=_or(asked.temperature, 1.0),
        top_p=_or(asked.top_p, 1.0),
        top_k=_or(asked.top_k, 0),
        min_p=_or(asked.min_p, 0.0),
        repetition_penalty=_or(asked.repetition_penalty, 1.0),
        presence_penalty=_or(asked.presence_penalty, 0.0),
        frequency_penalty=_or(asked.frequency_penalty, 0.0),
        seed=asked.seed,
        logprobs=logprobs,
    )


TTLS = {"30m": 1_800.0, "12h": 43_200.0}


def cache(asked: Knobs) -> CacheAsked:
    """Half an hour where options are given without a time, as in the dialect; else no hold at all."""
    options = asked.prompt_cache_options
    named = options.comparison_response_id if options else None
    return CacheAsked(
        key=asked.prompt_cache_key,
        ttl_s=TTLS[options.ttl or "30m"] if options else None,
        memory_only=asked.prompt_cache_retention in ("in_memory", "in-memory"),
        comparison_id=ResponseId(named) if named else None,
    )


Value = TypeVar("Value")


def _or(value: Value | None, default: Value) -> Value:
    return default if value is None else value


def limits(asked: Knobs, max_output_tokens: int | None) -> Limits:
    """Raises `InvalidRequest` where the least is more than the most."""
    least = asked.min_tokens or 0
    if max_output_tokens is not None and least > max_output_tokens:
        raise InvalidRequest(
            f"`min_tokens` ({least}) is above the most that is allowed ({max_output_tokens}).",
            field="min_tokens",
        )
    stop = (asked.stop,) if isinstance(asked.stop, str) else asked.stop or ()
    return Limits(
        max_output_tokens=max_output_tokens,
        min_output_tokens=least,
        ignore_eos=bool(asked.ignore_eos),
        stop=stop,
    )
