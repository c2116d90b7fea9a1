"""Functions as the SDK declares, calls and answers them: on the real model and in a test's hand."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import OpenAI

from app.chat.asked import Tools
from app.chat.calls import Call, Written, spelled
from app.errors import InvalidRequest
from app.events import ResponseView
from app.routes.openai.chunks import CompletionFold
from app.routes.openai.events import DeltaEvent, LifeEvent
from app.routes.openai.functions import FunctionCall
from app.routes.openai.requests import completion_create, response_create
from app.routes.openai.schema import OutputMessage
from app.routes.openai.tools import completion_tools, response_tools
from app.routes.openai.view import ResponseFold
from engine.api import (
    CallForm,
    CallGrammar,
    Engine,
    Function,
    JobClass,
    Role,
    Stability,
    TemplateFinding,
)
from tests.dialect.conftest import a_client, sdk
from tests.kit import logs
from tests.kit.echo import CALL_FORM, EchoEngine, text_of, with_calls
from tests.kit.engines import as_served
from tests.kit.model import with_template
from tests.kit.server import Server
from tests.kit.serving import Serving, serving
from tests.kit.templates import CALLS

GREEDY: Any = {"temperature": 0}
ASK = "Is it cold in Oslo?"
PARAMETERS: Any = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "Tells the weather of a city.",
    "parameters": PARAMETERS,
    "strict": True,
}
NOTHING: Any = {"type": "object", "properties": {}, "additionalProperties": False}
TIDE: Any = {"type": "function", "name": "tide", "parameters": NOTHING, "strict": False}


def wrapped(tool: Any) -> Any:
    """As chat completions have it."""
    return {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}


CALLING: Any = {"tools": [WEATHER, TIDE], "tool_choice": "required", "parallel_tool_calls": False}
CALLING_CHAT: Any = {**CALLING, "tools": [wrapped(WEATHER), wrapped(TIDE)]}


def allowed(*names: str, mode: str = "required") -> Any:
    """Fewer than are declared."""
    tools = [{"type": "function", "name": name} for name in names]
    return {"type": "allowed_tools", "mode": mode, "tools": tools}


def allowed_in_chat(*names: str, mode: str = "required") -> Any:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


# ---------------------------------------------------------------- the real model


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    """A client of the default model under a template that has calls."""
    folder = tmp_path_factory.mktemp("calls")

    async def open_engine() -> Engine:
        from engine.local import LocalEngine  # noqa: PLC0415

        (folder / "model").mkdir()
        model = with_template(folder / "model", CALLS)
        return await LocalEngine.open(as_served(model=model))

    with serving(folder, open_engine) as server:
        yield a_client(server)


def call_in(response: Any) -> Any:
    (call,) = [item for item in response.output if item.type == "function_call"]
    return call


def output_of(call: Any) -> Any:
    return {"type": "function_call_output", "call_id": call.call_id, "output": "Minus four."}


def assert_warm(after: Any, before: Any) -> None:
    """Only what is new was computed; the receipt sums up."""
    whole = before.usage.input_tokens + before.usage.output_tokens
    assert after.usage.input_tokens_details.cached_tokens >= whole - 1
    receipt = after.model_extra["receipt"]
    assert receipt["cached_tokens"] + receipt["computed_tokens"] == after.usage.input_tokens


def test_02_a_call_its_output_and_an_answer_stay_warm_over_http(caller: OpenAI):
    first = caller.responses.create(input=ASK, **CALLING, **GREEDY)
    call = call_in(first)
    second = caller.responses.create(
        previous_response_id=first.id,
        input=[output_of(call)],
        tools=CALLING["tools"],
        max_output_tokens=12,
        **GREEDY,
    )
    kept = caller.responses.retrieve(first.id)
    items = list(caller.responses.input_items.list(second.id))

    assert first.status == "completed"
    assert set(json.loads(call.arguments)) == ({"city"} if call.name == "weather" else set())
    assert kept.output == first.output
    assert [tool.to_dict()["parameters"] for tool in kept.tools] == [PARAMETERS, NOTHING]
    assert (kept.tool_choice, kept.parallel_tool_calls) == ("required", False)
    assert [(one.type, one.call_id) for one in items] == [  # type: ignore[union-attr]
        ("function_call_output", call.call_id)
    ]
    assert_warm(second, first)


def test_a_named_function_is_called_and_none_calls_nothing(caller: OpenAI):
    named = caller.responses.create(
        input=ASK, tools=[WEATHER, TIDE], tool_choice={"type": "function", "name": "tide"}, **GREEDY
    )
    none = caller.responses.create(
        input=ASK, tools=[WEATHER, TIDE], tool_choice="none", max_output_tokens=12, **GREEDY
    )

    assert [(one.name, one.arguments) for one in [call_in(named)]] == [("tide", "{}")]
    assert [item.type for item in none.output] == ["message"]
    assert none.usage is not None
    assert named.usage is not None
    assert none.usage.input_tokens == named.usage.input_tokens


def test_02_under_a_persona_a_call_and_its_answer_stay_warm(caller: OpenAI):
    persona: Any = {"prompt": {"id": "persona_default"}}
    first = caller.responses.create(input=ASK, **persona, **CALLING, **GREEDY)
    second = caller.responses.create(
        previous_response_id=first.id,
        input=[output_of(call_in(first))],
        tools=CALLING["tools"],
        max_output_tokens=8,
        **GREEDY,
    )
    plain = caller.responses.create(input=ASK, max_output_tokens=1, **CALLING, **GREEDY)

    assert_warm(second, first)
    assert first.usage
    assert plain.usage
    assert plain.usage.input_tokens < first.usage.input_tokens


def test_02_a_turn_that_may_call_fewer_functions_finds_the_whole_prefix(caller: OpenAI):
    asked: Any = {"tools": [WEATHER, TIDE], "parallel_tool_calls": False, **GREEDY}
    first = caller.responses.create(input=ASK, tool_choice="none", max_output_tokens=8, **asked)
    second = caller.responses.create(
        previous_response_id=first.id, input="And the sea?", tool_choice=allowed("tide"), **asked
    )
    kept = caller.responses.retrieve(second.id)

    assert call_in(second).name == "tide"
    assert_warm(second, first)
    assert len(kept.tools) == 2
    for response in (second, kept):
        told: Any = response.tool_choice
        assert told.to_dict() == allowed("tide")


def test_a_streamed_call_tells_what_the_plain_one_says_and_can_be_resumed(caller: OpenAI):
    plain = call_in(caller.responses.create(input=ASK, **CALLING, **GREEDY))

    events: list[Any] = list(caller.responses.create(input=ASK, stream=True, **CALLING, **GREEDY))

    types = [event.type for event in events]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert types[2] == "response.output_item.added"
    assert types[-3:] == [
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    deltas = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == events[-3].arguments == plain.arguments
    assert (events[2].item.name, events[2].item.arguments) == (plain.name, "")
    assert events[-1].response.output == [events[-2].item]
    for after in (0, len(events) - 3, len(events) - 2):
        rest = list(
            caller.responses.retrieve(events[0].response.id, stream=True, starting_after=after)
        )
        assert rest == events[after + 1 :]


def test_02_on_the_socket_it_is_the_same(caller: OpenAI):
    with caller.responses.connect() as socket:
        socket.response.create(input=ASK, store=False, **CALLING, **GREEDY)
        first = _end(socket)
        socket.response.create(
            previous_response_id=first.id,
            input=[output_of(call_in(first))],
            tools=CALLING["tools"],
            store=False,
            max_output_tokens=8,
            **GREEDY,
        )
        second = _end(socket)

    assert_warm(second, first)


def _end(socket: Any) -> Any:
    for event in socket:
        if event.type in ("response.completed", "response.incomplete"):
            return event.response
        assert event.type not in ("error", "response.failed"), event
    raise AssertionError("the socket closed")


def test_02_a_client_that_sends_its_items_again_is_warm_too(caller: OpenAI):
    asked: Any = {"store": False, "tools": CALLING["tools"], **GREEDY}
    first = caller.responses.create(
        input=[{"role": "user", "content": ASK}], **{**asked, **CALLING}
    )
    items: Any = [
        {"role": "user", "content": ASK},
        *(item.to_dict() for item in first.output),
        output_of(call_in(first)),
    ]
    second = caller.responses.create(input=items, max_output_tokens=8, **asked)

    assert_warm(second, first)


def test_02_chat_completions_call_and_are_answered_whole_and_in_chunks(caller: OpenAI):
    messages: Any = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": ASK},
    ]
    asked: Any = {"model": "default", **CALLING_CHAT, **GREEDY}
    first = caller.chat.completions.create(messages=messages, **asked)
    chunks = list(caller.chat.completions.create(messages=messages, stream=True, **asked))
    (choice,) = first.choices
    assert choice.message.tool_calls
    (call,) = choice.message.tool_calls
    messages += [
        choice.message.to_dict(),
        {"role": "tool", "tool_call_id": call.id, "content": "Minus four."},
    ]
    second = caller.chat.completions.create(
        messages=messages, max_tokens=8, **{**asked, "tool_choice": "auto"}
    )

    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    told = [one.choices[0].delta.tool_calls[0] for one in chunks if one.choices[0].delta.tool_calls]
    assert told[0].function
    assert call.type == "function"
    assert (told[0].index, told[0].function.name) == (0, call.function.name)
    pieces = [one.function.arguments for one in told if one.function]
    assert "".join(piece or "" for piece in pieces) == call.function.arguments
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert first.usage
    assert second.usage
    assert second.usage.prompt_tokens_details
    assert second.usage.prompt_tokens_details.cached_tokens >= (
        first.usage.prompt_tokens + first.usage.completion_tokens - 1
    )


@pytest.mark.parametrize("choice", ["auto", "none", "required"])
def test_with_a_format_an_answer_is_a_call_or_what_the_schema_allows(caller: OpenAI, choice: Any):
    schema: Any = {"name": "it", "schema": PARAMETERS, "strict": True}
    form: Any = {"format": {"type": "json_schema", **schema}}
    asked: Any = {"tool_choice": choice, "parallel_tool_calls": False, **GREEDY}
    answer = caller.responses.create(input=ASK, tools=[WEATHER], text=form, **asked)
    (completed,) = caller.chat.completions.create(
        model="default",
        messages=[{"role": "user", "content": ASK}],
        tools=[wrapped(WEATHER)],
        response_format={"type": "json_schema", "json_schema": schema},
        **asked,
    ).choices

    (item,) = answer.output
    assert answer.status == "completed"
    assert answer.text
    assert answer.text.format
    assert answer.text.format.type == "json_schema"
    if item.type == "function_call":
        assert completed.message.tool_calls
        made: Any = completed.message.tool_calls[0]
        assert choice != "none"
        assert item.arguments == made.function.arguments
        said = item.arguments
    else:
        assert choice != "required"
        assert completed.message.content == answer.output_text
        said = answer.output_text
    assert json.loads(said) in ({"city": "Rome"}, {"city": "Oslo"})


def test_what_is_said_beside_functions_has_logprobs_and_a_call_has_none(caller: OpenAI):
    asked: Any = {
        "model": "default",
        "messages": [{"role": "user", "content": ASK}],
        **CALLING_CHAT,
        "logprobs": True,
        "top_logprobs": 1,
        **GREEDY,
    }
    (called,) = caller.chat.completions.create(**asked).choices
    says_it: Any = {**asked, "tool_choice": "none", "max_tokens": 6}
    (said,) = caller.chat.completions.create(**says_it).choices
    response = caller.responses.create(
        input=ASK,
        tools=CALLING["tools"],
        tool_choice="none",
        max_output_tokens=6,
        top_logprobs=1,
        **GREEDY,
    )

    assert called.logprobs
    assert called.logprobs.content == []
    assert said.logprobs
    tokens = [one.token for one in said.logprobs.content or ()]
    assert (len(tokens), "".join(tokens)) == (6, said.message.content)
    message: Any = response.output[0]
    assert [one.token for one in message.content[0].logprobs] == tokens


def test_a_call_that_is_cut_is_incomplete_and_says_why(caller: OpenAI):
    forced: Any = {**CALLING, "tool_choice": {"type": "function", "name": "weather"}}
    whole = caller.responses.create(input=ASK, **forced, **GREEDY)
    assert whole.usage is not None
    cut = caller.responses.create(
        input=ASK, max_output_tokens=whole.usage.output_tokens - 4, **forced, **GREEDY
    )

    assert cut.status == "incomplete"
    assert call_in(cut).status == "incomplete"
    assert call_in(whole).arguments.startswith(call_in(cut).arguments)


def test_a_conversation_lists_what_was_called_and_given(caller: OpenAI):
    made = caller.conversations.create()
    first = caller.responses.create(conversation=made.id, input=ASK, **CALLING, **GREEDY)
    call = call_in(first)
    caller.conversations.items.create(made.id, items=[output_of(call)])
    answer = caller.responses.create(
        conversation=made.id, input="So?", tools=[WEATHER], max_output_tokens=8, **GREEDY
    )
    items: list[Any] = list(caller.conversations.items.list(made.id, order="asc"))

    assert [item.type for item in items] == [
        "message",
        "function_call",
        "function_call_output",
        "message",
        "message",
    ]
    assert items[1].call_id == items[2].call_id == call.call_id
    assert answer.status in ("completed", "incomplete")


def test_functions_that_cannot_be_followed_are_refused_with_the_words_of_the_fault(caller: OpenAI):
    bad: Any = {**WEATHER, "parameters": {"type": "object", "properties": {"a": {"type": "no"}}}}

    with pytest.raises(openai.BadRequestError, match="weather") as one:
        caller.responses.create(input=ASK, tools=[bad])
    with pytest.raises(openai.BadRequestError) as other:
        caller.chat.completions.create(
            model="default", messages=[{"role": "user", "content": ASK}], tools=[wrapped(bad)]
        )

    for refused in (one, other):
        assert (refused.value.code, refused.value.param) == ("invalid_json_schema", "tools")


def test_a_model_whose_template_has_no_functions_refuses_them_and_says_why(model_server: Server):
    client = sdk(f"{model_server.url}/v1", model_server.api_key)

    with pytest.raises(openai.BadRequestError, match="template declares no functions") as refused:
        client.responses.create(input=ASK, tools=[WEATHER])

    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "tools")


# ---------------------------------------------------------------- in a test's hand


def says(echo: EchoEngine, text: str, *calls: tuple[str, str]) -> None:
    made = tuple(Call(name=name, arguments=arguments) for name, arguments in calls)
    echo.says[JobClass.INTERACTIVE] = spelled(Written(text=text, calls=made), CALL_FORM)


def test_text_and_several_calls_are_items_and_their_outputs_may_come_in_any_order(
    client: OpenAI, echo: EchoEngine
):
    says(echo, "I look.\n", ("weather", '{"city": "Rome"}'), ("tide", "{}"))
    first = client.responses.create(input=ASK, tools=[WEATHER, TIDE])
    kept = client.responses.retrieve(first.id)
    events: list[Any] = list(client.responses.create(input=ASK, tools=[WEATHER, TIDE], stream=True))
    calls: list[Any] = [item for item in first.output if item.type == "function_call"]
    outputs: Any = [output_of(call) for call in calls]
    outputs[0]["output"], outputs[1]["output"] = "rain", [{"type": "input_text", "text": "high"}]
    client.responses.create(previous_response_id=first.id, input=outputs[::-1], tools=[WEATHER])

    assert [item.type for item in first.output] == ["message", "function_call", "function_call"]
    assert first.output_text == "I look.\n"
    assert kept.output == first.output
    added = [e for e in events if e.type == "response.output_item.added"]
    done = [e for e in events if e.type == "response.output_item.done"]
    assert [e.output_index for e in added] == [e.output_index for e in done] == [0, 1, 2]
    assert [e.item for e in done] == events[-1].response.output
    given = [one for request in echo.rendered for one in request.messages]
    assert [one.text for one in given if one.role is Role.TOOL][-2:] == ["rain", "high"]


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_on_both_routes_all_functions_are_declared_and_the_allowed_ones_can_be_called(
    client: OpenAI, echo: EchoEngine, mode: str
):
    says(echo, "", ("tide", "{}"))
    client.responses.create(
        input=ASK, tools=[WEATHER, TIDE], tool_choice=allowed("tide", mode=mode)
    )
    completion = client.chat.completions.create(
        model="echo",
        messages=[{"role": "user", "content": ASK}],
        tools=[wrapped(WEATHER), wrapped(TIDE)],
        tool_choice=allowed_in_chat("tide", mode=mode),
    )

    assert completion.choices[0].finish_reason == "tool_calls"
    one, two = echo.jobs[-2:]
    for job in (one, two):
        assert "weather" in text_of(job.token_ids)
        assert isinstance(job.grammar, CallGrammar)
        assert [function.name for function in job.grammar.functions] == ["tide"]
        assert job.grammar.required == (mode == "required")


@pytest.mark.parametrize(
    ("chosen", "param"),
    [
        (allowed_in_chat("tide", "x"), "tool_choice.allowed_tools.tools[1].function.name"),
        (allowed_in_chat(), "tool_choice.allowed_tools.tools"),
        (allowed_in_chat("tide", mode="none"), "tool_choice.allowed_tools.mode"),
        ({"type": "allowed_tools"}, "tool_choice.allowed_tools"),
    ],
)
def test_a_choice_in_chat_completions_that_is_none_is_refused_by_its_field(
    client: OpenAI, chosen: Any, param: str
):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model="echo",
            messages=[{"role": "user", "content": ASK}],
            tools=[wrapped(TIDE)],
            tool_choice=chosen,
        )

    assert refused.value.param == param


@pytest.mark.parametrize(
    ("asked", "code", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "unsupported_parameter", "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "missing_required_parameter", "tools[0].name"),
        ({"tools": [{**TIDE, "name": "no spaces"}]}, "invalid_value", "tools[0].name"),
        ({"tools": [TIDE, TIDE]}, "invalid_request", "tools"),
        ({"tools": [TIDE] * 129}, "invalid_value", "tools"),
        ({"tool_choice": "required"}, "invalid_request", "tool_choice"),
        ({"tools": [TIDE], "tool_choice": {"type": "function", "name": "x"}}, "", "tool_choice"),
        ({"tools": [TIDE], "tool_choice": {"type": "custom", "name": "x"}}, "", "tool_choice.type"),
        ({"tool_choice": allowed("tide")}, "invalid_request", "tool_choice"),
        (
            {"tools": [TIDE], "tool_choice": allowed("tide", "x")},
            "invalid_request",
            "tool_choice.tools[1].name",
        ),
        ({"tools": [TIDE], "tool_choice": allowed()}, "invalid_value", "tool_choice.tools"),
        (
            {"tools": [TIDE], "tool_choice": allowed("tide", mode="none")},
            "invalid_value",
            "tool_choice.mode",
        ),
        (
            {
                "tools": [TIDE],
                "tool_choice": {**allowed(), "tools": [{"type": "mcp", "name": "tide"}]},
            },
            "invalid_value",
            "tool_choice.tools[0].type",
        ),
        (
            {"input": [{"type": "function_call_output", "call_id": "call_1", "output": "x"}]},
            "call_not_found",
            "input",
        ),
        (
            {
                "input": [
                    {"role": "user", "content": "x"},
                    {"type": "function_call_output", "call_id": "call_1", "output": "x"},
                ]
            },
            "call_not_found",
            "input[1].call_id",
        ),
    ],
)
def test_what_is_no_function_call_is_refused_by_its_field(
    client: OpenAI, *, asked: Any, code: str, param: str
):
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(**{"input": ASK, **asked})

    assert refused.value.param == param
    assert code in ("", refused.value.code)


def test_a_format_is_refused_where_its_answers_might_be_read_as_calls():
    """A text of JSON may spell what opens a call under this template."""
    form = CallForm(opening="<function=", middle=">", closing="</function>", separator="\n")
    card = msgspec.structs.replace(
        with_calls(), template=TemplateFinding(stability=Stability.STABLE, calls=form)
    )
    anything = {"type": "json_object"}
    response = response_create({"input": ASK, "tools": [TIDE], "text": {"format": anything}})
    messages = [{"role": "user", "content": ASK}]
    completion = completion_create(
        {"messages": messages, "tools": [wrapped(TIDE)], "response_format": anything}
    )

    for read, field in (
        (lambda: response_tools(response, card), "text.format"),
        (lambda: completion_tools(completion, card), "response_format"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            read()
        assert (refused.value.code, refused.value.field) == ("unsupported_parameter", field)


def test_what_is_said_under_a_format_and_what_is_called_are_items(client: OpenAI, echo: EchoEngine):
    asked: Any = {
        "input": ASK,
        "tools": [TIDE],
        "text": {"format": {"type": "json_object"}},
        "stream": True,
    }
    echo.says[JobClass.INTERACTIVE] = '{"a": "<tool_call>"}'
    said: list[Any] = list(client.responses.create(**asked))
    says(echo, "", ("tide", "{}"))
    called: list[Any] = list(client.responses.create(**asked))

    (message,), (call,) = said[-1].response.output, called[-1].response.output
    assert (message.type, message.content[0].text) == ("message", '{"a": "<tool_call>"}')
    assert (call.type, call.name) == ("function_call", "tide")


def test_02_items_that_are_added_are_computed_behind_the_functions_of_the_last_response(
    client: OpenAI, echo: EchoEngine
):
    says(echo, "", ("tide", "{}"))
    made = client.conversations.create()
    told: Any = {"tools": [TIDE], "instructions": "Be brief."}
    first = client.responses.create(conversation=made.id, input=ASK, **told)
    client.conversations.items.create(made.id, items=[output_of(call_in(first))])
    answer = client.responses.create(conversation=made.id, input="So?", **told)

    asked, added, again = echo.jobs[-3:]
    assert added.limits.max_output_tokens == 0
    assert added.token_ids[: len(asked.token_ids)] == asked.token_ids
    assert again.token_ids[: len(added.token_ids)] == added.token_ids
    assert answer.usage
    assert answer.usage.input_tokens_details.cached_tokens >= len(added.token_ids) - 1


def test_a_tool_message_that_answers_nothing_is_refused(client: OpenAI, echo: EchoEngine):
    messages: Any = [
        {"role": "user", "content": ASK},
        {"role": "tool", "tool_call_id": "call_1", "content": "x"},
    ]

    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="echo", messages=messages)

    assert (refused.value.code, refused.value.param) == (
        "call_not_found",
        "messages[1].tool_call_id",
    )


def test_a_cursor_of_a_log_that_is_gone_gets_the_end(
    client: OpenAI, echo: EchoEngine, echo_server: Serving
):
    says(echo, "", ("tide", '{"at": "noon"}'))
    events: list[Any] = list(client.responses.create(input=ASK, tools=[TIDE], stream=True))
    response = events[-1].response
    echo_server.call(echo_server.service.supervisor._logs.drop, response.id)

    after = events[-2].sequence_number
    rest: list[Any] = list(
        client.responses.retrieve(response.id, stream=True, starting_after=after)
    )

    assert [(one.type, one.sequence_number) for one in rest] == [("response.completed", after + 1)]
    assert rest[0].response.output == response.output


# ---------------------------------------------------------------- parted as it comes

TOOLS = Tools(functions=(Function(name="weather"), Function(name="tide")), form=CALL_FORM)
REPLY = spelled(
    Written(
        text="I <look.\n",
        calls=(
            Call(name="weather", arguments='{"a": "}</tool_call>"}'),
            Call(name="tide", arguments="{}"),
        ),
    ),
    CALL_FORM,
)


@pytest.mark.parametrize("end", [logs.COMPLETED, logs.CUT, logs.CANCELLED], ids=lambda e: e.status)
@given(borders=st.lists(st.integers(0, len(REPLY)), max_size=9), length=st.integers(1, len(REPLY)))
async def test_the_items_are_the_same_however_the_text_comes(
    end: ResponseView, borders: list[int], length: int
):
    text = REPLY if end is logs.COMPLETED else REPLY[:length]
    ends = sorted({*(min(one, len(text)) for one in borders), len(text)})
    deltas = [text[a:b] for a, b in zip([0, *ends], ends, strict=False) if b > a]
    events = await logs.answered(deltas, end, logprobs=True)
    fold = ResponseFold(logs.echo_with(TOOLS))
    chunked = CompletionFold(logs.RUNNING, tools=TOOLS, wants_logprobs=True)

    seen = [one for event in events for one in fold.events(event)]
    choices = [one.choices[0] for event in events for one in chunked.chunks(event)]
    chunks = [one.delta for one in choices]

    last = seen[-1]
    assert isinstance(last, LifeEvent)
    items = last.response.output
    done: list[Any] = [one.item for one in seen if one.type == "response.output_item.done"]
    assert tuple(done) == items
    told: dict[str, str] = {}
    logged: list[Any] = []
    for one in seen:
        if one.type in ("response.output_text.delta", "response.function_call_arguments.delta"):
            told[one.item_id] = told.get(one.item_id, "") + one.delta
        if isinstance(one, DeltaEvent):
            logged += one.logprobs
    for item in items:
        match item:
            case OutputMessage():
                (part,) = item.content
                assert told.get(item.id, "") == part.text
                assert "".join(one.content or "" for one in chunks) == part.text
                # The last of its tokens may reach into what follows.
                assert "".join(one.token for one in part.logprobs).startswith(part.text)
                assert list(part.logprobs) == logged
                in_chunks = [one.logprobs.content for one in choices if one.logprobs]
                assert [token for tokens in in_chunks for token in tokens] == logged
                (whole,) = chunked.completion(events).choices
                assert whole.logprobs
                assert list(whole.logprobs.content) == logged
            case FunctionCall():
                assert told.get(item.id, "") == item.arguments
    assert [one.sequence_number for one in seen] == list(range(len(seen)))
