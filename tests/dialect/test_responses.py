"""`/v1/responses` over HTTP, by the unmodified SDK against a real server."""

from collections.abc import Iterable
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response, ResponseItem, ResponseStreamEvent

from engine.api import Refusal
from tests.kit.echo import EchoEngine, text_of
from tests.kit.serving import Serving

DELTA = "response.output_text.delta"


def numbers(events: list[ResponseStreamEvent]) -> list[int]:
    return [event.sequence_number for event in events]


def plain(events: list[ResponseStreamEvent]) -> list[dict[str, Any]]:
    return [event.to_dict() for event in events]


def written(events: list[ResponseStreamEvent]) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


def receipt(response: Response) -> dict[str, Any]:
    """Our extra field, as the SDK keeps what it does not know."""
    assert response.model_extra is not None
    found: dict[str, Any] = response.model_extra["receipt"]
    return found


def texts(items: Iterable[ResponseItem]) -> list[str]:
    """Of messages with one part each."""
    told: list[Any] = [item.to_dict() for item in items]
    return [item["content"][0]["text"] for item in told]


def begin(client: OpenAI, deltas: int, **asked: Any) -> tuple[str, list[ResponseStreamEvent]]:
    """Read a stream up to so many deltas, then hang up; the response's id and what was seen."""
    seen: list[ResponseStreamEvent] = []
    with client.responses.create(input="Go on", stream=True, **asked) as stream:
        for event in stream:
            seen.append(event)
            if sum(one.type == DELTA for one in seen) == deltas:
                break
    assert seen[0].type == "response.created"
    return seen[0].response.id, seen


def test_a_plain_answer_is_whole(client: OpenAI, echo: EchoEngine):
    answer = client.responses.create(
        input="Hello", instructions="Be brief.", metadata={"team": "blue"}, max_output_tokens=4
    )

    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert len(answer.output_text) == 4
    assert (answer.instructions, answer.metadata) == ("Be brief.", {"team": "blue"})
    assert answer.usage is not None
    assert answer.usage.output_tokens == 4
    spent = answer.usage.input_tokens_details
    assert spent.cached_tokens + spent.cache_write_tokens == answer.usage.input_tokens
    assert receipt(answer)["prompt_tokens"] == answer.usage.input_tokens


def test_an_answer_that_ends_by_itself_is_completed(client: OpenAI, echo: EchoEngine):
    answer = client.responses.create(input="Hello")

    assert answer.status == "completed"
    assert answer.error is None
    assert answer.output[0].type == "message"
    assert answer.output[0].status == "completed"


def test_a_stream_tells_the_same_answer_in_order(client: OpenAI, echo: EchoEngine):
    events = list(client.responses.create(input="Hello", stream=True))

    end = events[-1]
    assert end.type == "response.completed"
    assert numbers(events) == list(range(len(events)))
    assert written(events) == end.response.output_text
    assert client.responses.retrieve(end.response.id).to_dict() == end.response.to_dict()


def test_13_a_client_that_hangs_up_stops_nothing_that_is_stored(
    client: OpenAI, echo: EchoEngine, echo_server: Serving
):
    echo_server.call(echo.hold, 3)
    response_id, _ = begin(client, deltas=2)
    half = client.responses.retrieve(response_id)

    echo_server.call(echo.release)
    events = list(client.responses.retrieve(response_id, stream=True))

    assert half.status == "in_progress"
    assert len(half.output_text) == 2
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text.startswith(half.output_text)


def test_14_resuming_in_mid_answer_gives_exactly_what_is_missing(
    client: OpenAI, echo: EchoEngine, echo_server: Serving
):
    echo_server.call(echo.hold, 4)
    response_id, seen = begin(client, deltas=3)

    with client.responses.retrieve(
        response_id, stream=True, starting_after=seen[-1].sequence_number
    ) as rest:
        echo_server.call(echo.release)
        missing = list(rest)
    whole = list(client.responses.retrieve(response_id, stream=True))

    assert plain(seen) + plain(missing) == plain(whole)


@pytest.mark.parametrize("after", [0, 4, 9, 1000])
def test_14_resuming_after_the_end_gives_exactly_what_is_missing(
    client: OpenAI, echo: EchoEngine, after: int
):
    whole = list(client.responses.create(input="Hello", stream=True))
    assert whole[0].type == "response.created"

    missing = client.responses.retrieve(whole[0].response.id, stream=True, starting_after=after)

    assert plain(list(missing)) == plain(whole[after + 1 :])


def test_14_an_answer_whose_deltas_are_gone_is_told_again_from_storage(
    client: OpenAI, echo: EchoEngine, echo_server: Serving
):
    whole = list(client.responses.create(input="Hello", stream=True))
    assert whole[0].type == "response.created"
    response_id = whole[0].response.id
    echo_server.call(echo_server.service.logs.drop, response_id)

    again = list(client.responses.retrieve(response_id, stream=True))
    tail = list(client.responses.retrieve(response_id, stream=True, starting_after=4))

    assert written(again) == written(whole)
    assert again[-1].type == whole[-1].type == "response.completed"
    assert again[-1].response.to_dict() == whole[-1].response.to_dict()
    assert plain(tail) == plain(again[5:])


def test_13_what_is_not_stored_stops_with_its_stream(
    client: OpenAI, echo: EchoEngine, echo_server: Serving
):
    echo_server.call(echo.hold, 3)

    response_id, _ = begin(client, deltas=2, store=False)

    echo_server.until(lambda: echo_server.service.supervisor.live_turns == 0)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response_id)


def test_what_is_not_stored_can_neither_be_read_nor_continued(client: OpenAI, echo: EchoEngine):
    answer = client.responses.create(input="Hello", store=False)

    assert answer.to_dict()["store"] is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(input="And?", previous_response_id=answer.id)
    assert refused.value.code == "previous_response_not_found"


def test_a_background_response_answers_at_once(
    client: OpenAI, echo: EchoEngine, echo_server: Serving
):
    echo_server.call(echo.hold)

    begun = client.responses.create(input="Hello", background=True)

    assert begun.status == "in_progress"
    echo_server.call(echo.release)
    assert list(client.responses.retrieve(begun.id, stream=True))[-1].type == "response.completed"


def test_15_any_response_can_be_cancelled_and_keeps_its_text(
    client: OpenAI, echo: EchoEngine, echo_server: Serving
):
    echo_server.call(echo.hold, 3)
    response_id, _ = begin(client, deltas=2)

    cancelled = client.responses.cancel(response_id)
    again = client.responses.cancel(response_id)

    assert cancelled.status == "cancelled"
    assert len(cancelled.output_text) == 2
    assert again.to_dict() == cancelled.to_dict()
    assert list(client.responses.retrieve(response_id, stream=True))[-1].type == (
        "response.incomplete"
    )


def test_cancelling_what_has_ended_changes_nothing(client: OpenAI, echo: EchoEngine):
    answer = client.responses.create(input="Hello")

    assert client.responses.cancel(answer.id).to_dict() == answer.to_dict()


def test_a_deleted_response_is_gone(client: OpenAI, echo: EchoEngine):
    answer = client.responses.create(input="Hello")

    client.responses.delete(answer.id)

    for ask in (client.responses.retrieve, client.responses.cancel, client.responses.delete):
        with pytest.raises(openai.NotFoundError):
            ask(answer.id)


def test_input_items_are_those_of_the_request_page_by_page(client: OpenAI, echo: EchoEngine):
    answer = client.responses.create(
        input=[
            {"role": "system", "content": "One"},
            {"role": "user", "content": "Two"},
            {"role": "assistant", "content": "Three"},
            {"role": "user", "content": "Four"},
        ]
    )

    newest = client.responses.input_items.list(answer.id, limit=3)
    oldest = client.responses.input_items.list(answer.id, limit=3, order="asc")

    assert newest.has_more
    assert texts(newest) == ["Four", "Three", "Two", "One"]
    assert [item.to_dict()["role"] for item in oldest] == ["system", "user", "assistant", "user"]


def test_a_conversation_goes_on_by_the_previous_response_without_its_instructions(
    client: OpenAI, echo: EchoEngine
):
    first = client.responses.create(input="One", instructions="Be a pirate.")

    second = client.responses.create(input="Two", previous_response_id=first.id)

    prompt = text_of(echo.jobs[-1].token_ids)
    assert second.previous_response_id == first.id
    assert prompt == f"One{first.output_text}Two"


def test_a_prompt_reference_puts_the_persona_first(client: OpenAI, echo: EchoEngine):
    client.responses.create(input="Hi", prompt={"id": "persona_default"})
    prompt = text_of(echo.jobs[-1].token_ids)

    with pytest.raises(openai.NotFoundError) as refused:
        client.responses.create(input="Hi", prompt={"id": "persona_unknown"})

    assert prompt.startswith("You are a helpful assistant.")
    assert refused.value.param == "prompt.id"


def test_19_another_users_response_does_not_exist(
    client: OpenAI, stranger: OpenAI, echo: EchoEngine
):
    answer = client.responses.create(input="Secret")

    for ask in (
        stranger.responses.retrieve,
        stranger.responses.cancel,
        stranger.responses.delete,
        stranger.responses.input_items.list,
    ):
        with pytest.raises(openai.NotFoundError):
            ask(answer.id)
    with pytest.raises(openai.BadRequestError) as refused:
        stranger.responses.create(input="And?", previous_response_id=answer.id)
    assert refused.value.code == "previous_response_not_found"
    assert client.responses.retrieve(answer.id).output_text == answer.output_text


def test_continuing_an_answer_that_is_being_written_is_refused_for_good(
    client: OpenAI, echo: EchoEngine, echo_server: Serving
):
    echo_server.call(echo.hold)
    begun = client.responses.create(input="Hello", background=True)

    with pytest.raises(openai.ConflictError) as refused:
        client.responses.create(input="And?", previous_response_id=begun.id)

    assert refused.value.code == "turn_in_progress"
    assert refused.value.response.headers["x-should-retry"] == "false"


def test_with_truncation_the_oldest_turns_leave_what_cannot_fit(client: OpenAI, echo: EchoEngine):
    first = client.responses.create(input="a" * 900)
    second = client.responses.create(input="b" * 900, previous_response_id=first.id)
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(
            input="c" * 900, previous_response_id=second.id, truncation="disabled"
        )
    third = client.responses.create(
        input="c" * 900, previous_response_id=second.id, truncation="auto"
    )
    kept = client.responses.retrieve(third.id)
    items = client.responses.input_items.list(third.id).data

    assert refused.value.code == "context_length_exceeded"
    assert (first.truncation, third.truncation, kept.truncation) == ("disabled", "auto", "auto")
    assert kept.previous_response_id == second.id
    assert [item.content[0].text for item in items] == ["c" * 900]  # type: ignore[union-attr, index]
    assert text_of(echo.jobs[-1].token_ids)[:900] == "c" * 900
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(input="Hi", truncation="middle")  # type: ignore[call-overload]
    assert refused.value.param == "truncation"


def test_a_prompt_that_cannot_fit_is_refused_with_both_numbers(client: OpenAI, echo: EchoEngine):
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(input="x" * 5000)

    assert refused.value.code == "context_length_exceeded"
    assert refused.value.param == "input"
    assert "2000" in refused.value.message
    assert "5004" in refused.value.message


def test_a_warm_up_and_its_answer_over_http(client: OpenAI, echo: EchoEngine):
    """The SDK's method has no `generate`: over HTTP it is an extension."""
    told: Any = {"instructions": "Be brief."}
    rules = client.responses.create(**told, extra_body={"generate": False})
    warm = client.responses.create(
        input="Question?", previous_response_id=rules.id, extra_body={"generate": False}, **told
    )
    answer = client.responses.create(input=[], previous_response_id=warm.id, **told)

    assert (rules.status, rules.output, warm.output) == ("completed", [], [])
    assert client.responses.retrieve(rules.id).instructions == "Be brief."
    assert client.responses.input_items.list(rules.id).data == []
    assert client.responses.input_items.list(answer.id).data == []
    assert answer.output_text
    assert client.responses.retrieve(answer.id).output_text == answer.output_text
    assert text_of(echo.jobs[-1].token_ids) == "Be brief.Question?"
    assert answer.usage is not None
    assert answer.usage.input_tokens_details.cache_write_tokens == 1


def test_a_response_that_the_engine_refuses_is_failed(client: OpenAI, echo: EchoEngine):
    echo.refusal = Refusal(code="overloaded", message="More wait than can be served.")

    answer = client.responses.create(input="Hello")

    assert answer.status == "failed"
    assert answer.error is not None
    assert answer.error.code == "rate_limit_exceeded"
    assert client.responses.retrieve(answer.id).status == "failed"


@pytest.mark.parametrize(
    ("asked", "status", "code", "param"),
    [
        ({"input": "x", "model": "gpt-9"}, 404, "model_not_found", "model"),
        ({"input": "x", "temperature": 3}, 400, "invalid_value", "temperature"),
        ({"input": "x", "max_tool_calls": 2}, 400, "unsupported_parameter", "max_tool_calls"),
        ({"input": "x", "background": True, "store": False}, 400, "invalid_request", "background"),
        ({"instructions": "x"}, 400, "missing_required_parameter", "input"),
    ],
)
def test_a_bad_request_is_refused_by_name(
    client: OpenAI, *, asked: dict[str, Any], status: int, code: str, param: str
):
    with pytest.raises(openai.APIStatusError) as refused:
        client.responses.create(**asked)

    assert refused.value.status_code == status
    assert (refused.value.code, refused.value.param) == (code, param)
    assert refused.value.request_id


@pytest.mark.parametrize(
    ("path", "status", "param"),
    [
        ("/responses/resp_unknown", 404, "response_id"),
        ("/responses/%00", 404, "response_id"),
        ("/responses/" + "x" * 2000, 404, "response_id"),
        ("/responses/{id}?starting_after=3", 400, "starting_after"),
        ("/responses/{id}?stream=true&starting_after=soon", 400, "starting_after"),
        ("/responses/{id}?stream=true&starting_after=" + "9" * 30, 400, "starting_after"),
        ("/responses/{id}/input_items?limit=0", 400, "limit"),
        ("/responses/{id}/input_items?order=up", 400, "order"),
        ("/responses/{id}/input_items?after=msg_unknown", 404, "after"),
        ("/nothing", 404, None),
    ],
)
def test_a_bad_address_is_refused_in_the_dialect(
    client: OpenAI, echo: EchoEngine, *, path: str, status: int, param: str | None
):
    answer = client.responses.create(input="Hello")

    with pytest.raises(openai.APIStatusError) as refused:
        client.get(path.replace("{id}", answer.id), cast_to=object)

    assert refused.value.status_code == status
    assert refused.value.param == param
    assert refused.value.request_id


def test_a_body_that_is_too_big_is_refused_in_the_dialect(client: OpenAI):
    with pytest.raises(openai.APIStatusError) as refused:
        client.responses.create(input="x" * 11_000_000)

    assert refused.value.status_code == 413
    assert refused.value.type == "invalid_request_error"


def test_a_bad_key_is_refused_in_the_dialect(echo_server: Serving):
    with pytest.raises(openai.AuthenticationError) as refused:
        OpenAI(base_url=echo_server.url, api_key="sk-no").models.list()

    assert refused.value.code == "invalid_api_key"
    assert refused.value.type == "authentication_error"


def test_the_models_are_listed_and_shown(client: OpenAI):
    [model] = client.models.list().data

    assert client.models.retrieve(model.id).id == model.id == "echo"
    assert client.models.retrieve("default").id == model.id
    with pytest.raises(openai.NotFoundError) as refused:
        client.models.retrieve("some/other")
    assert refused.value.code == "model_not_found"


async def test_the_asynchronous_client_works_as_well(echo_server: Serving, echo: EchoEngine):
    async with AsyncOpenAI(base_url=echo_server.url, api_key=echo_server.key) as client:
        stream = await client.responses.create(input="Hello", stream=True)
        events = [event async for event in stream]
        end = events[-1]
        assert end.type == "response.completed"

        found = await client.responses.retrieve(end.response.id)
        rest = await client.responses.retrieve(found.id, stream=True, starting_after=3)

        assert found.output_text == end.response.output_text
        assert [event.sequence_number async for event in rest] == numbers(events)[4:]
        assert (await client.models.list()).data[0].id == found.model
