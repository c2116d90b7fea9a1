"""What clients send is read or refused by name; nothing else can happen."""

import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidRequest
from app.routes.openai import requests, turns
from app.routes.openai.items import brought
from app.routes.openai.requests import completion_create, read_document, response_create
from app.routes.openai.schema import CompletionCreate, ResponseCreate
from engine.api import Message, Role
from tests.kit.echo import CARD

KNOWN = sorted({*ResponseCreate.__struct_fields__, *CompletionCreate.__struct_fields__})
UNSUPPORTED = sorted(
    {
        path.split(".")[0]
        for table in (requests.UNSUPPORTED_ON_RESPONSES, requests.UNSUPPORTED_ON_COMPLETIONS)
        for path in table
    }
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["type", "role", "content", "text", "id"]), inner)
    ),
    max_leaves=10,
)
DOCUMENTS = st.dictionaries(st.sampled_from(KNOWN + UNSUPPORTED + ["unheard_of"]), VALUES)
PLAIN = {"messages": [{"role": "user", "content": "Hi"}]}


def refusal_of(read: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        assert callable(read)
        read()
    return caught.value


@given(st.binary() | st.text())
def test_any_bytes_are_a_document_or_refused(raw: bytes | str):
    try:
        assert isinstance(read_document(raw), dict)
    except InvalidRequest as refused:
        assert refused.code in ("invalid_json", "invalid_request")


@given(DOCUMENTS)
def test_any_document_is_a_request_or_refused(document: requests.Document):
    for read in (response_create, completion_create):
        try:
            read(read_document(json.dumps(document)))
        except InvalidRequest as refused:
            assert refused.message


@pytest.mark.parametrize("raw", ['"text"', "[]", "{", "", "[" * 5000, '{"a":"\\ud800"}', b"\xff"])
def test_what_is_no_json_object_is_refused_as_such(raw: str | bytes):
    refused = refusal_of(lambda: read_document(raw))

    assert refused.code == "invalid_json"


def test_depth_and_nul_characters_are_refused_with_their_place():
    deep = '{"input":' + "[" * 40 + "]" * 40 + "}"

    assert refusal_of(lambda: read_document(deep)).field == "input" + "[0]" * 31
    assert refusal_of(lambda: read_document('{"input":["a\\u0000"]}')).field == "input[0]"


@pytest.mark.parametrize(
    ("document", "param"),
    [
        ({"max_tool_calls": 3}, "max_tool_calls"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"reasoning": "high"}, "reasoning.effort"),
        ({"prompt": {"id": "persona_default", "version": "2"}}, "prompt.version"),
        ({"input": [{"role": "user", "content": "x", "tool_calls": [1]}]}, "input[0].tool_calls"),
    ],
)
def test_known_and_unsupported_fields_of_responses_are_refused_by_name(
    document: requests.Document, param: str
):
    refused = refusal_of(lambda: response_create(document))

    assert (refused.code, refused.field) == ("unsupported_parameter", param)


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"n": 2}, "n"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"logit_bias": {"50256": -100}}, "logit_bias"),
        ({"store": True}, "store"),
        ({"functions": [{"name": "f"}]}, "functions"),
    ],
)
def test_known_and_unsupported_fields_of_completions_are_refused_by_name(
    extra: requests.Document, param: str
):
    refused = refusal_of(lambda: completion_create({**PLAIN, **extra}))

    assert (refused.code, refused.field) == ("unsupported_parameter", param)


def test_values_that_ask_for_nothing_and_unknown_fields_are_let_be():
    neutral = {
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "text": {"format": {"type": "text"}},
        "reasoning": {"effort": None},
        "truncation": "disabled",
        "include": ["reasoning.encrypted_content"],
        "unheard_of": {"deep": [1]},
        "input": "Hi",
    }

    assert response_create(neutral).input == "Hi"
    completion = completion_create({**PLAIN, "n": 1, "response_format": {"type": "text"}})
    assert completion.stop is None


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"seed": 2**64}, "seed"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"metadata": {"k": 1}}, "metadata[...]"),
        ({"metadata": {"k" * 65: "v"}}, "metadata"),
        ({"top_logprobs": 3}, "top_logprobs"),
        (
            {"messages": [{"role": "user", "content": [{"text": "x"}]}]},
            "messages[0].content[0].type",
        ),
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(extra: requests.Document, param: str):
    refused = refusal_of(lambda: completion_create({**PLAIN, **extra}))

    assert refused.field == param


def test_a_missing_field_is_named():
    refused = refusal_of(lambda: completion_create({}))

    assert (refused.code, refused.field) == ("missing_required_parameter", "messages")


def test_messages_keep_their_texts_and_a_developer_speaks_as_the_system():
    asked = response_create(
        {
            "input": [
                {"role": "developer", "content": "Be brief."},
                {
                    "type": "message",
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "One"},
                        {"type": "input_text", "text": "two"},
                    ],
                },
                {"role": "assistant", "content": [{"type": "output_text", "text": "Three"}]},
            ]
        }
    )
    assert isinstance(asked.input, tuple)

    assert brought(asked.input, "input", CARD).messages == (
        Message(role=Role.SYSTEM, text="Be brief."),
        Message(role=Role.USER, text="One\ntwo"),
        Message(role=Role.ASSISTANT, text="Three"),
    )


@pytest.mark.row("engine 28")
@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "item_reference", "id": "msg_1"}, "input[0].type"),
        ({"type": "function_call_output", "output": "x"}, "input[0].call_id"),
        ({"type": "function_call_output", "call_id": "c"}, "input[0].output"),
        ({"type": "function_call", "call_id": "c", "arguments": "{}"}, "input[0].name"),
        (
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "[]"},
            "input[0].arguments",
        ),
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}, "input"),
        ({"content": "x"}, "input[0].role"),
        ({"role": "tool", "content": "x"}, "input[0].role"),
        ({"role": "user"}, "input[0].content"),
        ({"role": "user", "content": [{"type": "input_image"}]}, "input[0].content[0].type"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[0].content[0].text"),
    ],
)
def test_items_that_are_no_texts_are_refused_with_their_place(item: object, param: str):
    asked = response_create({"input": [item]})
    assert isinstance(asked.input, tuple)
    items = asked.input

    assert refusal_of(lambda: brought(items, "input", CARD)).field == param


def test_extensions_reach_the_engine_in_its_own_words():
    asked = completion_create(
        {**PLAIN, "min_tokens": 3, "ignore_eos": True, "top_k": 5, "min_p": 0.1, "stop": "\n"}
    )

    sampling, limits = turns.sampling(asked, logprobs=None), turns.limits(asked, 8)

    assert (sampling.top_k, sampling.min_p, sampling.temperature, sampling.top_p) == (5, 0.1, 1, 1)
    assert (limits.min_output_tokens, limits.ignore_eos, limits.stop) == (3, True, ("\n",))
    assert refusal_of(lambda: turns.limits(asked, 2)).field == "min_tokens"


@given(st.text(string.ascii_letters + " "))
def test_an_input_string_is_one_user_message(text: str):
    asked = response_create({"input": text})

    assert brought(asked.input, "input", CARD).messages == (Message(role=Role.USER, text=text),)
