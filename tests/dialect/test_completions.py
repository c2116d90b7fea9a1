"""Chat completions, by the unmodified SDK against a real server."""

from typing import Any

import openai
import pytest
from openai import OpenAI

from engine.api import Refusal
from tests.kit.echo import EchoEngine, text_of
from tests.kit.serving import Serving

HELLO: Any = [{"role": "user", "content": "Hello"}]


def test_a_plain_completion_is_whole(client: OpenAI, echo: EchoEngine):
    answer = client.chat.completions.create(model="echo", messages=HELLO)

    [choice] = answer.choices
    assert choice.finish_reason == "stop"
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.logprobs is None
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    spent = answer.usage.prompt_tokens_details
    assert spent.cached_tokens is not None
    assert spent.cache_write_tokens is not None
    assert spent.cached_tokens + spent.cache_write_tokens == answer.usage.prompt_tokens


@pytest.mark.row("padding")
def test_a_client_may_ask_for_padding(client: OpenAI, echo: EchoEngine):
    told: Any = {"stream": True, "stream_options": {"include_obfuscation": True}}
    chunks = list(client.chat.completions.create(model="echo", messages=HELLO, **told))
    events = list(client.responses.create(input="Hello", **told))
    again = client.responses.retrieve(
        events[0].response.id, stream=True, extra_query={"include_obfuscation": True}
    )

    for heard in (chunks, events, list(again)):
        padding: list[Any] = [getattr(one, "obfuscation", None) for one in heard]
        assert any(padding)


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_a_cut_completion_says_length(client: OpenAI, echo: EchoEngine, limit: str):
    asked: Any = {limit: 3}

    answer = client.chat.completions.create(model="echo", messages=HELLO, **asked)

    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3


def test_a_stream_opens_with_the_role_and_closes_with_reason_and_usage(
    client: OpenAI, echo: EchoEngine
):
    whole = client.chat.completions.create(model="echo", messages=HELLO)

    chunks = list(
        client.chat.completions.create(
            model="echo", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
    )

    *told, last, usage = chunks
    assert told[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in told) == (
        whole.choices[0].message.content
    )
    assert last.choices[0].finish_reason == "stop"
    assert usage.choices == []
    assert usage.usage is not None
    assert whole.usage is not None
    assert usage.usage.total_tokens == whole.usage.total_tokens
    assert len({chunk.id for chunk in chunks}) == 1


def test_without_being_asked_no_chunk_tells_the_usage(client: OpenAI, echo: EchoEngine):
    chunks = list(client.chat.completions.create(model="echo", messages=HELLO, stream=True))

    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


def test_a_stream_ends_with_done(client: OpenAI, echo: EchoEngine):
    raw = client.chat.completions.with_raw_response.create(
        model="echo", messages=HELLO, stream=True
    )

    assert raw.http_response.read().endswith(b"data: [DONE]\n\n")
    assert raw.headers["content-type"].startswith("text/event-stream")
    assert raw.headers["x-request-id"]


def test_a_whole_history_reaches_the_model_in_order(client: OpenAI, echo: EchoEngine):
    client.chat.completions.create(
        model="echo",
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "One"}]},
            {"role": "assistant", "content": "Two"},
            {"role": "user", "content": "Three"},
        ],
    )

    assert text_of(echo.jobs[-1].token_ids) == "Be brief.OneTwoThree"


def test_the_next_turn_of_a_history_finds_the_one_before_in_the_cache(
    client: OpenAI, echo: EchoEngine
):
    first = client.chat.completions.create(model="echo", messages=HELLO)
    assert first.usage is not None

    second = client.chat.completions.create(
        model="echo",
        messages=[
            *HELLO,
            {"role": "assistant", "content": first.choices[0].message.content},
            {"role": "user", "content": "And?"},
        ],
    )

    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert cached is not None
    assert cached >= first.usage.total_tokens


def test_what_is_asked_reaches_the_engine(client: OpenAI, echo: EchoEngine):
    client.chat.completions.create(
        model="echo",
        messages=HELLO,
        temperature=0.5,
        top_p=0.25,
        seed=7,
        stop=["\n", "end"],
        presence_penalty=1,
        frequency_penalty=-1,
        logprobs=True,
        top_logprobs=2,
        max_tokens=5,
        extra_body={
            "top_k": 3,
            "min_p": 0.1,
            "repetition_penalty": 1.5,
            "ignore_eos": True,
            "min_tokens": 4,
        },
    )

    asked, limits = echo.jobs[-1].sampling, echo.jobs[-1].limits
    assert (asked.temperature, asked.top_p, asked.top_k, asked.min_p) == (0.5, 0.25, 3, 0.1)
    assert (asked.presence_penalty, asked.frequency_penalty) == (1, -1)
    assert (asked.repetition_penalty, asked.seed, asked.logprobs) == (1.5, 7, 2)
    assert (limits.max_output_tokens, limits.min_output_tokens) == (5, 4)
    assert (limits.ignore_eos, limits.stop) == (True, ("\n", "end"))


def test_nothing_is_stored(client: OpenAI, echo: EchoEngine):
    answer = client.chat.completions.create(model="echo", messages=HELLO)

    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id.replace("chatcmpl-", "resp_"))


@pytest.mark.row("engine 23")
@pytest.mark.parametrize("stream", [True, False])
def test_13_a_completion_stops_when_its_client_goes(
    client: OpenAI, echo: EchoEngine, echo_server: Serving, stream: bool
):
    live = echo_server.service.supervisor
    echo_server.call(echo.hold, 2)

    with pytest.raises(openai.APITimeoutError):
        answer: Any = client.with_options(timeout=0.5).chat.completions.create(
            model="echo", messages=HELLO, stream=stream
        )
        list(answer)

    echo_server.until(lambda: live.live_turns == 0)
    assert echo.jobs[-1].job_id


@pytest.mark.parametrize(
    ("refusal", "status", "code"),
    [
        (Refusal(code="overloaded", message="Full.", retry_after_s=3), 429, "rate_limit_exceeded"),
        (
            Refusal(code="prompt_too_long", message="Long.", needed_tokens=9, limit_tokens=8),
            400,
            "context_length_exceeded",
        ),
        (Refusal(code="unheard_of", message="Secret."), 500, "server_error"),
    ],
)
def test_what_the_engine_refuses_is_the_error_of_the_request(
    client: OpenAI, echo: EchoEngine, *, refusal: Refusal, status: int, code: str
):
    echo.refusal = refusal

    with pytest.raises(openai.APIStatusError) as refused:
        client.chat.completions.create(model="echo", messages=HELLO)
    with pytest.raises(openai.APIError) as broken:
        list(client.chat.completions.create(model="echo", messages=HELLO, stream=True))

    assert (refused.value.status_code, refused.value.code) == (status, code)
    assert broken.value.code == code
    assert "Secret" not in str(refused.value)


def test_default_names_the_model_that_is_here(client: OpenAI):
    answer = client.chat.completions.create(model="default", messages=HELLO)

    assert answer.model == "echo"


@pytest.mark.parametrize(
    ("asked", "status", "param"),
    [
        ({"model": "gpt-9"}, 404, "model"),
        ({"n": 2}, 400, "n"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, 400, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, 400, "tools[0].function"),
        ({"response_format": {"type": "json"}}, 400, "response_format.type"),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, 400, "messages"),
        ({"top_logprobs": 2}, 400, "top_logprobs"),
        ({"extra_body": {"min_tokens": 9}, "max_tokens": 3}, 400, "min_tokens"),
    ],
)
def test_a_bad_request_is_refused_by_name(
    client: OpenAI, *, asked: dict[str, Any], status: int, param: str
):
    given: Any = {"model": "echo", "messages": HELLO, **asked}

    with pytest.raises(openai.APIStatusError) as refused:
        client.chat.completions.create(**given)

    assert (refused.value.status_code, refused.value.param) == (status, param)
