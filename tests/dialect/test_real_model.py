"""The dialect on the real model: the exact ledger, warm-ups, sampling, stops and forced lengths."""

import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response

from tests.dialect.conftest import new_key, sdk
from tests.kit.server import Server

GREEDY: Any = {"temperature": 0}
LONG_TOKENS = 2_000
HELLO: Any = [{"role": "user", "content": "Name a colour."}]
ENDS = ("response.completed", "response.incomplete", "response.failed", "error")


@pytest.fixture(scope="session")
def client(model_server: Server) -> OpenAI:
    return sdk(f"{model_server.url}/v1", model_server.api_key)


@pytest.fixture(scope="session")
def stranger(model_server: Server) -> OpenAI:
    """Another user of the same server."""
    return sdk(f"{model_server.url}/v1", new_key(model_server))


@pytest.fixture(scope="session")
def model(client: OpenAI) -> str:
    return client.models.list().data[0].id


def turn(socket: Any, text: str | list[Any] | None, **asked: Any) -> Response:
    """One answer over the socket."""
    new = {} if text is None else {"input": text}
    socket.response.create(**new, **{"max_output_tokens": 8, **GREEDY, **asked})
    for event in socket:
        if event.type in ENDS:
            assert event.type in ENDS[:2], event
            response: Response = event.response
            return response
    raise AssertionError("the socket closed")


def spent(response: Response) -> tuple[int, int, int]:
    """Prompt, cached and output tokens; the receipt tells the same, and sums up."""
    assert response.usage is not None
    assert response.model_extra is not None
    usage, receipt = response.usage, response.model_extra["receipt"]
    cached = usage.input_tokens_details.cached_tokens
    assert receipt["cached_tokens"] == cached
    assert receipt["cached_tokens"] + receipt["computed_tokens"] == usage.input_tokens
    assert usage.input_tokens_details.cache_write_tokens == receipt["computed_tokens"]
    return usage.input_tokens, cached, usage.output_tokens


def source(response: Response) -> dict[str, int]:
    assert response.model_extra is not None
    found: dict[str, int] = response.model_extra["receipt"]["cached_by_source"]
    return found


def test_02_three_turns_on_a_socket_compute_only_what_is_new(client: OpenAI):
    with client.responses.connect() as socket:
        before = turn(socket, "Tell me about the sea.")
        for text in ("And the wind?", "And the sand?"):
            after = turn(socket, text, previous_response_id=before.id)

            prompt, cached, _ = spent(after)
            prompt_before, _, output_before = spent(before)
            assert cached >= prompt_before + output_before - 1
            assert prompt > prompt_before + output_before
            before = after


def test_02_a_turn_after_a_warm_up_finds_all_of_it(client: OpenAI):
    with client.responses.connect() as socket:
        warm = turn(socket, "The lighthouse of Alexandria was a tower.", generate=False)
        asked = turn(socket, "How high was it?", previous_response_id=warm.id)

    assert warm.output == []
    warmed, _, output = spent(warm)
    _, cached, _ = spent(asked)
    assert output == 0
    assert cached >= warmed - 1


def test_02_an_answer_to_a_warmed_message_computes_only_what_opens_it(client: OpenAI):
    told: Any = {"instructions": "Answer like a keeper of lighthouses.", "max_output_tokens": 8}
    with client.responses.connect() as socket:
        rules = turn(socket, None, generate=False, **told)
        warm = turn(socket, "How high?", generate=False, previous_response_id=rules.id, **told)
        answer = turn(socket, [], previous_response_id=warm.id, **told)
        after = turn(socket, "How old?", previous_response_id=answer.id, **told)
    whole = client.responses.create(input="How high?", **GREEDY, **told)

    head, _, _ = spent(rules)
    warmed, found, _ = spent(warm)
    prompt, cached, output = spent(answer)
    assert found >= head - 1
    assert cached >= warmed - 1
    assert prompt == spent(whole)[0]
    assert answer.output_text == whole.output_text
    assert spent(after)[1] >= prompt + output - 1


def test_02_an_unstored_conversation_keeps_the_same_ledger(client: OpenAI):
    with client.responses.connect() as socket:
        first = turn(socket, "Sing of rivers.", store=False)
        second = turn(socket, "Louder.", store=False, previous_response_id=first.id)

    prompt, _, output = spent(first)
    assert spent(second)[1] >= prompt + output - 1


def test_02_a_stateless_history_hits_what_renders_to_the_same_ids(client: OpenAI, model: str):
    first = client.chat.completions.create(model=model, messages=HELLO, max_tokens=6, **GREEDY)
    assert first.usage is not None

    again = client.chat.completions.create(model=model, messages=HELLO, max_tokens=6, **GREEDY)

    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    assert again.usage.prompt_tokens_details.cached_tokens == first.usage.prompt_tokens - 1
    assert again.choices[0].message.content == first.choices[0].message.content


def test_11_equal_texts_of_two_users_share_nothing_but_the_operators_zone(
    client: OpenAI, stranger: OpenAI
):
    asked: Any = {"input": "My secret is that I collect thimbles.", "max_output_tokens": 2}
    mine = client.responses.create(**asked)

    theirs = stranger.responses.create(**asked)

    assert spent(mine)[0] == spent(theirs)[0]
    assert source(theirs)["session"] == 0


def test_11_the_default_persona_is_a_hit_for_the_next_user(client: OpenAI, stranger: OpenAI):
    persona: Any = {"prompt": {"id": "persona_default"}, "max_output_tokens": 2}
    client.responses.create(input="Hello", **persona)

    theirs = stranger.responses.create(input="Bonjour", **persona)

    assert source(theirs)["persona"] > 0
    assert source(theirs)["session"] == 0


def test_a_stream_tells_what_the_plain_answer_says(client: OpenAI):
    plain = client.responses.create(input="Count to five.", max_output_tokens=10, **GREEDY)

    events = list(
        client.responses.create(input="Count to five.", max_output_tokens=10, stream=True, **GREEDY)
    )

    told = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert told == plain.output_text


@pytest.mark.parametrize("tokens", [1, 7])
def test_lengths_can_be_forced_on_both_routes(client: OpenAI, model: str, tokens: int):
    forced: Any = {"ignore_eos": True, "min_tokens": tokens}

    answer = client.responses.create(input="Hi", max_output_tokens=tokens, extra_body=forced)
    completion = client.chat.completions.create(
        model=model, messages=HELLO, max_tokens=tokens, extra_body=forced
    )

    assert answer.usage is not None
    assert completion.usage is not None
    assert answer.usage.output_tokens == completion.usage.completion_tokens == tokens


def test_a_stop_string_ends_the_text_before_it(client: OpenAI, model: str):
    asked: Any = {"model": model, "messages": HELLO, "max_tokens": 12, **GREEDY}
    whole = client.chat.completions.create(**asked).choices[0].message.content
    assert whole
    stop = whole[len(whole) // 2 :][:3]

    for form in (stop, [stop, "never there"]):
        cut = client.chat.completions.create(stop=form, **asked).choices[0]
        assert cut.message.content == whole[: whole.index(stop)]
        assert cut.finish_reason == "stop"


def test_the_same_seed_gives_the_same_answer(client: OpenAI, model: str):
    asked: Any = {"model": model, "messages": HELLO, "max_tokens": 8, "temperature": 1.5}

    answers = [
        client.chat.completions.create(seed=seed, **asked).choices[0].message.content
        for seed in (1, 1, 2)
    ]

    assert answers[0] == answers[1]
    assert answers[0] != answers[2]


def test_logprobs_are_told_for_every_token_on_both_routes(client: OpenAI, model: str):
    completion = client.chat.completions.create(
        model=model, messages=HELLO, max_tokens=4, logprobs=True, top_logprobs=3, **GREEDY
    )
    answer = client.responses.create(
        input="Name a colour.",
        max_output_tokens=4,
        top_logprobs=3,
        include=["message.output_text.logprobs"],
        **GREEDY,
    )

    told = completion.choices[0].logprobs
    assert told is not None
    assert told.content is not None
    assert completion.usage is not None
    assert len(told.content) == completion.usage.completion_tokens
    for token in told.content:
        assert len(token.top_logprobs) == 3
        assert token.logprob == token.top_logprobs[0].logprob <= 0
    message: Any = answer.output[0]
    assert [token.token for token in message.content[0].logprobs] == [
        token.token for token in told.content
    ]


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(client: OpenAI):
    limit: int = client.models.list().data[0].to_dict()["context_tokens"]  # type: ignore[assignment]

    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(input="word " * (limit + 1))

    assert refused.value.code == "context_length_exceeded"
    numbers = [int(one) for one in re.findall(r"\d+", refused.value.message.replace(",", ""))]
    assert limit in numbers
    assert any(number > limit for number in numbers)


def test_lanes_on_the_model_answer_as_they_do_alone(client: OpenAI):
    texts = ("Name a bird.", "Name a fish.", "Name a tree.")
    alone = [
        client.responses.create(input=text, max_output_tokens=6, **GREEDY).output_text
        for text in texts
    ]

    together: dict[str, str] = {}
    with client.responses.connect() as socket:
        for text in texts:
            socket.response.create(input=text, max_output_tokens=6, stream_id=text[7:-1], **GREEDY)
        for event in socket:
            told: Any = event
            if event.type in ENDS:
                together[told.stream_id] = told.response.output_text
            if len(together) == len(texts):
                break

    assert [together[text[7:-1]] for text in texts] == alone


def test_02_a_steered_answer_is_gone_on_from_and_only_what_is_new_is_computed(client: OpenAI):
    # Still written by then, however late the steer comes; the successor is stopped.
    asked: Any = {"max_output_tokens": LONG_TOKENS, "ignore_eos": True, **GREEDY}
    begun: list[Response] = []
    ended: list[Response] = []
    changed: list[str] = []
    with client.responses.connect() as socket:
        socket.send_raw(json.dumps({"type": "response.create", "input": "Tell a tale.", **asked}))
        events: Iterator[Any] = iter(socket)
        for event in events:
            if event.type == "response.created":
                begun.append(event.response)
            elif event.type == "response.output_text.delta" and begun[-1].id not in changed:
                changed.append(begun[-1].id)
                if len(begun) == 1:
                    socket.response.steer(previous_response_id=begun[0].id, input="Shorter.")
                else:
                    stop = {"type": "response.cancel", "response_id": begun[1].id}
                    socket.send_raw(json.dumps(stop))
            elif event.type in ENDS:
                assert event.type in ENDS[:2], event
                ended.append(event.response)
            if len(ended) == 2:
                break

    first, second = ended
    assert first.incomplete_details is not None
    assert first.incomplete_details.reason == "steered"
    assert 0 < len(first.output_text) == len(client.responses.retrieve(first.id).output_text)
    assert second.previous_response_id == first.id
    prompt, _, output = spent(first)
    assert output < LONG_TOKENS
    assert spent(second)[1] >= prompt + output - 1
