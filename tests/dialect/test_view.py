"""The dialect's view of a log: pure folds, and the frames that strangers depend on as golden files."""

from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai._models import construct_type_unchecked
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import Response, ResponsesServerEvent

from app.events import ResponseStatus, ResponseView, Usage
from app.routes.openai.chunks import CompletionFold
from app.routes.openai.events import DeltaEvent, ItemEvent, LifeEvent
from app.routes.openai.objects import PADDED_BYTES, stored_response
from app.routes.openai.schema import OutputMessage, ResponseObject
from app.routes.openai.view import ResponseFold
from tests.kit import logs
from tests.kit.frames import GOLDEN, chunks, golden, responses

ENDS = [logs.COMPLETED, logs.CUT, logs.CANCELLED, logs.FAILED]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.status)
async def test_every_event_of_the_log_keeps_its_number_and_its_place(end: ResponseView):
    events = await logs.answered(["Hel", "lo"], end)

    seen = responses(events)

    assert [one.sequence_number for one in seen] == list(range(len(events)))


@pytest.mark.parametrize(
    ("end", "name"),
    [
        (logs.COMPLETED, "response.completed"),
        (logs.CUT, "response.incomplete"),
        (logs.CANCELLED, "response.incomplete"),
        (logs.FAILED, "response.failed"),
    ],
    ids=lambda part: getattr(part, "status", ""),
)
async def test_one_terminal_event_is_named_by_the_status(end: ResponseView, name: str):
    seen = responses(await logs.answered(["Hi"], end))

    terminal = {"response.completed", "response.incomplete", "response.failed"}
    assert [one.type for one in seen if one.type in terminal] == [name]
    assert seen[-1].type == name


async def test_the_item_of_a_cut_answer_is_incomplete_in_both_events_that_show_it():
    seen = responses(await logs.answered(["Hi"], logs.CUT))

    item, end = seen[-2:]
    assert isinstance(item, ItemEvent)
    assert isinstance(end, LifeEvent)
    assert item.item.status == "incomplete"
    assert end.response.output == (item.item,)


async def test_a_warm_up_has_no_output():
    seen = responses(await logs.without_item(logs.COMPLETED))

    end = seen[-1]
    assert isinstance(end, LifeEvent)
    assert end.type == "response.completed"
    assert end.response.output == ()


@given(st.lists(st.text(min_size=1), min_size=1, max_size=8))
async def test_padding_hides_sizes_and_changes_nothing_else(deltas: list[str]):
    events = await logs.answered(deltas)
    fold = ResponseFold(logs.ECHO, padding=True)
    chunked = CompletionFold(logs.RUNNING, padding=True)

    padded = [seen for event in events for seen in fold.events(event)]
    chunks_padded = [seen for event in events for seen in chunked.chunks(event)]

    texts = [one for one in padded if isinstance(one, DeltaEvent)]
    texts_chunked = [one for one in chunks_padded if one.obfuscation is not msgspec.UNSET]
    assert len(texts) == len(texts_chunked) == len(deltas)
    sizes = {len(msgspec.json.encode(one)) % PADDED_BYTES for one in (*texts, *texts_chunked)}
    assert sizes == {0}
    bare = [_without_padding(one) for one in padded]
    assert bare == msgspec.to_builtins(responses(events))
    assert [_without_padding(one) for one in chunks_padded] == msgspec.to_builtins(chunks(events))


def _without_padding(frame: msgspec.Struct) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(frame)
    told.pop("obfuscation", None)
    return told


async def test_a_lane_is_named_on_every_event_and_otherwise_on_none():
    events = await logs.answered(["Hi"])

    named = msgspec.to_builtins(responses(events, "left"))
    unnamed = msgspec.to_builtins(responses(events))

    assert {one["stream_id"] for one in named} == {"left"}
    assert not any("stream_id" in one for one in unnamed)


@pytest.mark.row("engine 21")
@given(cached=st.integers(0, 500), computed=st.integers(0, 500), output=st.integers(0, 50))
async def test_02_usage_is_exact_zero_included(cached: int, computed: int, output: int):
    usage = Usage(input_tokens=cached + computed, cached_tokens=cached, output_tokens=output)
    end = msgspec.structs.replace(logs.COMPLETED, usage=usage)

    told = msgspec.to_builtins(responses(await logs.without_item(end)))[-1]["response"]["usage"]
    chunk = msgspec.to_builtins(chunks(await logs.without_item(end), usage_asked=True))[-1]

    details = {"cached_tokens": cached, "cache_write_tokens": computed}
    assert told["input_tokens_details"] == details
    assert told["total_tokens"] == cached + computed + output
    assert not chunk["choices"]
    assert chunk["usage"]["prompt_tokens_details"] == details


@given(st.lists(st.text(min_size=1), max_size=8), st.integers(-1, 20))
async def test_14_a_resumed_view_is_the_rest_of_the_undisturbed_one(deltas: list[str], after: int):
    events = await logs.answered(deltas, logprobs=True)

    undisturbed = responses(events)
    resumed = [one for one in responses(events) if one.sequence_number > after]

    assert resumed == undisturbed[max(after + 1, 0) :]


@given(st.lists(st.text(min_size=1), max_size=8))
async def test_14_chunks_and_events_tell_the_same_text(deltas: list[str]):
    events = await logs.answered(deltas)

    told = "".join(one.delta for one in responses(events) if isinstance(one, DeltaEvent))
    chunked = [chunk.choices[0].delta.content for chunk in chunks(events) if chunk.choices]

    assert told == "".join(deltas)
    assert "".join(text for text in chunked if isinstance(text, str)) == told


@pytest.mark.parametrize(
    ("end", "reason"), [(logs.COMPLETED, "stop"), (logs.CUT, "length"), (logs.CANCELLED, "length")]
)
async def test_chunks_open_with_the_role_and_close_with_the_reason(end: ResponseView, reason: str):
    seen = chunks(await logs.answered(["Hi"], end))

    assert seen[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in seen] == [None, None, reason]


async def test_a_completion_that_never_wrote_still_has_its_role():
    seen = chunks(await logs.without_item(logs.CANCELLED))

    assert seen[0].choices[0].delta.role == "assistant"
    assert seen[-1].choices[0].finish_reason == "length"


async def test_a_whole_completion_holds_text_usage_and_logprobs():
    events = await logs.answered(["Hel", "lo"], logprobs=True)

    whole = CompletionFold(logs.RUNNING, wants_logprobs=True).completion(events)

    told = msgspec.to_builtins(whole)
    choice = told["choices"][0]
    assert choice["message"]["content"] == "Hello"
    assert [token["token"] for token in choice["logprobs"]["content"]] == ["Hel", "lo"]
    assert told["usage"]["total_tokens"] == 42


@pytest.mark.parametrize("status", list(ResponseStatus))
def test_a_response_outside_its_log_shows_its_text_by_status(status: ResponseStatus):
    view = msgspec.structs.replace(logs.RUNNING, status=status)

    written = stored_response(logs.stored(view, "Hel"))
    never_begun = stored_response(logs.stored(view, ""))
    begun = msgspec.structs.replace(view, receipt=logs.RECEIPT)
    unwritten = stored_response(logs.stored(begun, ""))
    warmed = stored_response(logs.stored(begun, "", generate=False))

    assert text_in(written) == "Hel"
    assert never_begun.output == ()
    assert text_in(unwritten) == ""
    assert warmed.output == ()


async def test_no_event_has_an_error_of_its_own_at_the_top():
    """The SDK takes any SSE frame with a truthy `error` for a failure of the stream."""
    for end in ENDS:
        for event in msgspec.to_builtins(responses(await logs.answered(["Hi"], end))):
            assert "error" not in event


async def test_the_sdk_reads_every_frame_into_its_own_class():
    for event in msgspec.to_builtins(responses(await logs.answered(["Hi"], logprobs=True), "a")):
        # The union is no class to a type checker, though the SDK itself passes it so.
        read = construct_type_unchecked(value=event, type_=cast(Any, ResponsesServerEvent))
        assert read.type == event["type"]
        assert read.to_dict(exclude_unset=True)["sequence_number"] == event["sequence_number"]
        type(read).model_validate(event)
    for chunk in msgspec.to_builtins(chunks(await logs.answered(["Hi"]), usage_asked=True)):
        ChatCompletionChunk.model_validate(chunk)


async def test_a_stored_response_is_a_valid_response_of_the_sdk():
    shown = msgspec.to_builtins(stored_response(logs.stored(logs.COMPLETED, "Hello")))

    read = Response.model_validate(shown)

    assert read.output_text == "Hello"
    assert read.usage is not None
    assert read.usage.input_tokens_details.cached_tokens == 30


async def test_the_frames_are_those_of_the_golden_files():
    written = await golden()

    assert written == {path.name: path.read_text() for path in GOLDEN.iterdir()}


def text_in(response: ResponseObject) -> str:
    (message,) = response.output
    assert isinstance(message, OutputMessage)
    return message.content[0].text
