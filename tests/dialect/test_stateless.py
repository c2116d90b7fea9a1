"""Clients that send their whole history, on the real model: only the new turn is computed (law 2)."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from openai import OpenAI
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionMessageParam

from tests.dialect.conftest import new_key, sdk
from tests.kit.server import Server

TEXTS = (
    "Tell me about the sea.",
    "And the wind?",
    "Make a strange poem of it.",
    "Who wrote it?",
    "Thank you.",
)
SYSTEM: ChatCompletionMessageParam = {"role": "system", "content": "You are a keeper of lights."}
Messages = list[ChatCompletionMessageParam]


@pytest.fixture(scope="session")
def client(model_server: Server) -> OpenAI:
    return sdk(f"{model_server.url}/v1", model_server.api_key)


@pytest.fixture(scope="session")
def stranger(model_server: Server) -> OpenAI:
    """Another user of the same server."""
    return sdk(f"{model_server.url}/v1", new_key(model_server))


def complete(client: OpenAI, messages: Messages, **asked: Any) -> tuple[str, CompletionUsage]:
    """The answer's text as any client gets it, and what it cost."""
    asked = {"model": "default", "max_tokens": 24, "messages": messages, **asked}
    if asked.get("stream"):
        asked["stream_options"] = {"include_usage": True}
        chunks = list(client.chat.completions.create(**asked))
        text = "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)
        usage = chunks[-1].usage
    else:
        answer = client.chat.completions.create(**asked)
        text, usage = answer.choices[0].message.content or "", answer.usage
    assert usage is not None
    return text, usage


def cached(usage: CompletionUsage) -> int:
    assert usage.prompt_tokens_details is not None
    found = usage.prompt_tokens_details.cached_tokens
    assert found is not None
    return found


def told(text: str) -> ChatCompletionMessageParam:
    return {"role": "user", "content": text}


def replied(text: str) -> ChatCompletionMessageParam:
    return {"role": "assistant", "content": text}


def chat(
    client: OpenAI, head: Messages, texts: Sequence[str] = TEXTS, **asked: Any
) -> tuple[Messages, list[CompletionUsage]]:
    """Turns, each sent with everything before it, and what each cost."""
    messages, costs = [*head], []
    for seed, text in enumerate(texts):
        messages.append(told(text))
        answer, usage = complete(client, messages, seed=seed, **asked)
        messages.append(replied(answer))
        costs.append(usage)
    return messages, costs


@pytest.mark.parametrize(
    "asked",
    [
        {"temperature": 1.0},
        {"temperature": 1.7, "stream": True},
        {"temperature": 1.0, "max_tokens": 5},
        {"temperature": 1.0, "stop": ["e", "s"], "max_tokens": 40},
    ],
    ids=["sampled", "streamed", "cut", "stopped"],
)
@pytest.mark.parametrize(
    "head",
    [
        pytest.param([], id="bare"),
        pytest.param([SYSTEM], id="under a system message", marks=pytest.mark.long),
    ],
)
def test_02_each_turn_of_a_plain_client_computes_only_what_is_new(
    client: OpenAI, head: Messages, asked: dict[str, Any]
):
    _, costs = chat(client, head, **asked)

    for before, after in pairwise(costs):
        assert cached(after) >= before.prompt_tokens + before.completion_tokens - 1


def test_02_a_reply_that_ended_by_itself_is_gone_on_from_as_well(client: OpenAI):
    sums = ("What is 2 and 2?", "And 3 and 3?", "Thank you.")

    _, costs = chat(client, [], sums, temperature=0.0, max_tokens=100)

    assert max(cost.completion_tokens for cost in costs) < 100
    for before, after in pairwise(costs):
        assert cached(after) >= before.prompt_tokens + before.completion_tokens - 1


def test_03_the_ids_are_those_that_were_drawn_and_not_the_texts(client: OpenAI, stranger: OpenAI):
    """Who has no ledger of this history gets its text made into ids, which are others."""
    messages, _ = chat(client, [], temperature=1.7, max_tokens=40)
    history = [*messages, told("And now?")]

    _, mine = complete(client, history, max_tokens=1)
    _, theirs = complete(stranger, history, max_tokens=1)

    assert mine.prompt_tokens != theirs.prompt_tokens
    assert cached(theirs) < len(TEXTS[0])


def test_a_history_with_a_changed_word_is_answered_as_if_it_were_new(
    client: OpenAI, stranger: OpenAI
):
    messages, costs = chat(client, [SYSTEM], temperature=1.7)
    messages[2] = replied(f"{messages[2]['content']} Indeed.")
    history = [*messages, told("Once more?")]

    mine, usage = complete(client, history, temperature=0)
    theirs, same = complete(stranger, history, temperature=0)

    assert mine == theirs
    assert usage.prompt_tokens == same.prompt_tokens
    assert cached(usage) < costs[1].prompt_tokens


def test_16_an_edited_message_shares_what_stands_before_it(client: OpenAI):
    messages, costs = chat(client, [], temperature=1.0)
    edited = [*messages[:-2], told("No, tell me of the moon.")]

    _, usage = complete(client, edited)

    assert cached(usage) >= costs[3].prompt_tokens + costs[3].completion_tokens - 1


@pytest.mark.parametrize("store", [True, False])
def test_02_responses_with_a_whole_history_compute_only_what_is_new(client: OpenAI, store: bool):
    history: Any = []
    spent = None
    for seed, text in enumerate(TEXTS[:3]):
        history.append(told(text))
        asked: Any = {"temperature": 1.5, "max_output_tokens": 20, "store": store}
        answer = client.responses.create(input=history, extra_body={"seed": seed}, **asked)
        history.append(replied(answer.output_text))
        assert answer.usage is not None
        if spent is not None:
            least = spent.input_tokens + spent.output_tokens - 1
            assert answer.usage.input_tokens_details.cached_tokens >= least
        spent = answer.usage
        if store:
            items = client.responses.input_items.list(answer.id, order="asc").to_dict()
            assert len(items["data"]) == len(history) - 1  # type: ignore[arg-type]
