"""`response.steer`: what is said while an answer is written, by the SDK against a real server."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from openai import OpenAI

from app.chat.calls import Call, Written, spelled
from app.routes.openai.steering import PENDING_STEERS
from engine.api import JobClass
from tests.dialect.test_socket import (
    ENDS,
    Event,
    alive,
    answer,
    ask,
    hear,
    lane_of,
    response_id,
    to_the_end,
    until,
)
from tests.kit.echo import CALL_FORM, EchoEngine, text_of
from tests.kit.serving import Serving


def steer(socket: Any, response: str, given: Any = "And now?") -> None:
    sent = {"type": "response.steer", "previous_response_id": response, "input": given}
    socket.send_raw(json.dumps(sent))


def text(event: Event) -> str:
    return "".join(part["text"] for item in event["response"]["output"] for part in item["content"])


def reason(event: Event) -> str | None:
    details = event["response"]["incomplete_details"]
    found: str | None = details and details["reason"]
    return found


def failure(event: Event) -> str:
    assert event["type"] == "response.steer.failed", event
    assert event["error"]["type"] == "invalid_request_error"
    found: str = event["error"]["code"]
    return found


@pytest.mark.parametrize("lane", [None, "left"])
@pytest.mark.parametrize("store", [True, False])
def test_15_a_steered_answer_ends_with_its_text_and_its_successor_begins_by_itself(
    client: OpenAI, echo: EchoEngine, echo_server: Serving, *, lane: str | None, store: bool
):
    asked: Any = {"instructions": "Be brief.", "store": store, "metadata": {"a": "b"}}
    asked |= {"stream_id": lane} if lane else {}
    with client.responses.connect() as socket:
        echo_server.call(echo.hold, 4)
        ask(socket, "One", **asked)
        steered = response_id(until(socket, "response.created"))
        for _ in range(3):
            until(socket, "response.output_text.delta")
        steer(socket, steered)
        accepted = until(socket, "response.steer.accepted")
        ended = to_the_end(socket)[-1]
        begun = until(socket, "response.created")
        echo_server.call(echo.release)
        successor = to_the_end(socket)[-1]

    assert accepted["steer"]["previous_response_id"] == steered
    assert accepted["steer"]["id"].startswith("steer_")
    assert (ended["type"], reason(ended)) == ("response.incomplete", "steered")
    assert len(text(ended)) == 3
    assert begun["sequence_number"] == 0
    assert successor["type"] == "response.completed"
    told = successor["response"]
    assert told["previous_response_id"] == steered
    assert (told["instructions"], told["metadata"]) == ("Be brief.", {"a": "b"})
    assert text_of(echo.jobs[-1].token_ids) == f"Be brief.One{text(ended)}And now?"
    usage = ended["response"]["usage"]
    kept = usage["input_tokens"] + usage["output_tokens"]
    assert told["usage"]["input_tokens_details"]["cached_tokens"] >= kept - 1
    assert {lane_of(one) for one in (accepted, ended, begun, successor)} == {lane}


def test_an_answer_that_completes_first_has_its_successor_too(
    client: OpenAI, echo: EchoEngine, echo_server: Serving, monkeypatch: pytest.MonkeyPatch
):
    async def loses(*_: object) -> None:
        """The answer is complete before the engine hears of it."""

    monkeypatch.setattr(echo_server.service.supervisor, "steer", loses)
    with client.responses.connect() as socket:
        echo_server.call(echo.hold)
        ask(socket, "One")
        first = response_id(until(socket, "response.created"))
        steer(socket, first)
        until(socket, "response.steer.accepted")
        echo_server.call(echo.release)
        ended, successor = [one for one in to_the_end(socket, answers=2) if one["type"] in ENDS]

    assert ended["type"] == successor["type"] == "response.completed"
    assert successor["response"]["previous_response_id"] == response_id(ended) == first
    assert text_of(echo.jobs[-1].token_ids) == f"One{text(ended)}And now?"


TIDE: Any = {"type": "function", "name": "tide", "parameters": {"type": "object"}, "strict": False}
CALLING: Any = {"tools": [TIDE], "tool_choice": "required"}


@pytest.fixture
def calls(
    echo: EchoEngine, echo_server: Serving, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Any, list[str]], Any]:
    """A response that is steered with these, and complete by then: it calls a function."""

    async def loses(*_: object) -> None:
        """The answer is complete before the engine hears of it."""

    monkeypatch.setattr(echo_server.service.supervisor, "steer", loses)

    def called(socket: Any, steers: list[str], **asked: Any) -> tuple[Event, list[Event]]:
        call = Written(text="", calls=(Call(name="tide", arguments="{}"),))
        echo.says[JobClass.INTERACTIVE] = spelled(call, CALL_FORM)
        echo_server.call(echo.hold)
        ask(socket, "One", **CALLING, **asked)
        first = response_id(until(socket, "response.created"))
        for given in steers:
            steer(socket, first, given)
            until(socket, "response.steer.accepted")
        echo_server.call(echo.release)
        ended = until(socket, "response.completed")
        echo.says.clear()
        return ended, [until(socket, "response.steer.pending") for _ in steers]

    return called


@pytest.mark.parametrize("lane", [None, "left"])
def test_what_is_accepted_waits_for_what_the_functions_give(
    client: OpenAI, echo: EchoEngine, calls: Any, *, lane: str | None
):
    named: Any = {"stream_id": lane} if lane else {}
    with client.responses.connect() as socket:
        ended, pending = calls(socket, ["And ", "now?"], **named)
        (call,) = ended["response"]["output"]
        (stub,) = pending[0]["required_input"]
        ask(
            socket,
            [{**stub, "output": "high"}, {"role": "user", "content": " Well?"}],
            previous_response_id=response_id(ended),
            tools=[TIDE],
            **named,
        )
        answer = to_the_end(socket)[-1]

    assert stub == {"type": "function_call_output", "call_id": call["call_id"], "name": "tide"}
    assert [one["reason"] for one in pending] == ["waiting_for_required_input"] * 2
    assert {lane_of(one) for one in pending} == {lane}
    assert answer["type"] == "response.completed"
    assert text_of(echo.jobs[-1].token_ids).endswith("highAnd now? Well?")


def test_a_continuation_that_is_refused_leaves_it_waiting(
    client: OpenAI, echo: EchoEngine, calls: Any
):
    with client.responses.connect() as socket:
        ended, (pending,) = calls(socket, ["And now?"])
        (stub,) = pending["required_input"]
        previous: Any = {"previous_response_id": response_id(ended), "tools": [TIDE]}
        ask(socket, [{**stub, "call_id": "another", "output": "high"}], **previous)
        until(socket, "error")
        ask(socket, [{**stub, "output": "high"}], **previous)
        to_the_end(socket)

    assert text_of(echo.jobs[-1].token_ids).endswith("highAnd now?")


def test_what_waits_comes_back_where_its_lane_goes_on_from_elsewhere(
    client: OpenAI, echo: EchoEngine, calls: Any
):
    with client.responses.connect() as socket:
        _, (pending,) = calls(socket, ["And now?"])
        ask(socket, "Something else")
        failed = until(socket, "response.steer.failed")
        to_the_end(socket)

    assert failure(failed) == "response_not_active"
    assert failed["steer"] == {**pending["steer"], "input": "And now?"}
    assert text_of(echo.jobs[-1].token_ids) == "Something else"


def test_the_successor_comes_before_what_waits_in_the_lane(
    client: OpenAI, echo: EchoEngine, echo_server: Serving
):
    with client.responses.connect() as socket:
        echo_server.call(echo.hold)
        ask(socket, "One")
        ask(socket, "Waits")
        first = response_id(until(socket, "response.created"))
        steer(socket, first, [{"role": "user", "content": one} for one in ("And ", "now?")])
        until(socket, "response.incomplete")
        echo_server.call(echo.release)
        to_the_end(socket, answers=2)

    assert [text_of(one.token_ids) for one in echo.jobs[-2:]] == ["OneAnd now?", "Waits"]


def test_a_successor_can_be_steered_as_well(client: OpenAI, echo: EchoEngine, echo_server: Serving):
    with client.responses.connect() as socket:
        echo_server.call(echo.hold)
        ask(socket, "One")
        steer(socket, response_id(until(socket, "response.created")), "Two")
        steer(socket, response_id(until(socket, "response.created")), "Three")
        third = response_id(until(socket, "response.created"))
        echo_server.call(echo.release)
        ended = to_the_end(socket)[-1]

    assert (ended["type"], response_id(ended)) == ("response.completed", third)
    assert text_of(echo.jobs[-1].token_ids) == "OneTwoThree"


BAD: tuple[tuple[str, dict[str, Any]], ...] = (
    ("no input", {"input": None}),
    ("nothing said", {"input": []}),
    ("another role", {"input": [{"role": "assistant", "content": "x"}]}),
    ("a picture", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
    ("a tool's output", {"input": [{"type": "function_call_output", "output": "x"}]}),
    ("a lane", {"stream_id": "left"}),
    ("a setting", {"temperature": 1}),
)


@pytest.mark.parametrize("bad", [bad for _, bad in BAD], ids=[name for name, _ in BAD])
def test_a_steer_that_is_none_gives_its_input_back_and_harms_nothing(
    client: OpenAI, echo: EchoEngine, echo_server: Serving, bad: dict[str, Any]
):
    with client.responses.connect() as socket:
        echo_server.call(echo.hold)
        ask(socket)
        first = response_id(until(socket, "response.created"))
        sent = {"type": "response.steer", "previous_response_id": first, "input": "x", **bad}
        socket.send_raw(json.dumps(sent))
        failed = until(socket, "response.steer.failed")
        echo_server.call(echo.release)
        ended = to_the_end(socket)[-1]

    assert failure(failed) == "invalid_input"
    assert failed["steer"] == {"previous_response_id": first, "input": sent["input"]}
    assert ended["type"] == "response.completed"


def test_what_is_not_told_here_cannot_be_steered(
    client: OpenAI, stranger: OpenAI, echo: EchoEngine, echo_server: Serving
):
    with client.responses.connect() as socket, stranger.responses.connect() as other:
        complete = response_id(answer(socket))
        echo_server.call(echo.hold)
        ask(socket)
        running = response_id(until(socket, "response.created"))
        for name in (running, complete, "resp_unknown"):
            steer(other, name)
            failed = hear(other)
            assert failure(failed) == "response_not_found"
            assert failed["steer"] == {"previous_response_id": name, "input": "And now?"}
        socket.send_raw(json.dumps({"type": "response.cancel", "response_id": running}))
        to_the_end(socket)
        steer(socket, running)
        assert failure(hear(socket)) == "response_not_active"
        echo_server.call(echo.release)
        complete = response_id(answer(socket))
        steer(socket, complete)
        assert failure(hear(socket)) == "response_already_completed"
        steer(socket, 7)  # type: ignore[arg-type]
        assert failure(hear(socket)) == "invalid_input"

        assert alive(socket)
        assert alive(other)


def test_a_warm_up_cannot_be_steered(client: OpenAI, echo: EchoEngine, echo_server: Serving):
    with client.responses.connect() as socket:
        echo_server.call(echo.hold)
        ask(socket, generate=False)
        steer(socket, response_id(until(socket, "response.created")))
        failed = until(socket, "response.steer.failed")
        echo_server.call(echo.release)

        assert failure(failed) == "steering_not_supported"
        assert to_the_end(socket)[-1]["type"] == "response.completed"


def test_so_many_steers_wait_for_one_response(
    client: OpenAI, echo: EchoEngine, echo_server: Serving, monkeypatch: pytest.MonkeyPatch
):
    async def loses(*_: object) -> None:
        """The answer is still written."""

    monkeypatch.setattr(echo_server.service.supervisor, "steer", loses)
    with client.responses.connect() as socket:
        echo_server.call(echo.hold)
        ask(socket, "One")
        first = response_id(until(socket, "response.created"))
        for _ in range(PENDING_STEERS + 1):
            steer(socket, first, "+")
        failed = until(socket, "response.steer.failed")
        echo_server.call(echo.release)
        to_the_end(socket, answers=2)

    assert failure(failed) == "too_many_pending_steers"
    assert text_of(echo.jobs[-1].token_ids).endswith("+" * PENDING_STEERS)


def test_what_was_accepted_comes_back_where_the_answer_is_stopped(
    client: OpenAI, echo: EchoEngine, echo_server: Serving, monkeypatch: pytest.MonkeyPatch
):
    async def loses(*_: object) -> None:
        """The stop comes first."""

    monkeypatch.setattr(echo_server.service.supervisor, "steer", loses)
    with client.responses.connect() as socket:
        echo_server.call(echo.hold)
        ask(socket)
        first = response_id(until(socket, "response.created"))
        steer(socket, first)
        accepted = until(socket, "response.steer.accepted")
        socket.send_raw(json.dumps({"type": "response.cancel", "response_id": first}))
        failed = until(socket, "response.steer.failed")
        echo_server.call(echo.release)

        assert failure(failed) == "response_not_active"
        assert failed["steer"] == {**accepted["steer"], "input": "And now?"}
        assert failed["sequence_number"] > accepted["sequence_number"]
        assert alive(socket)


def test_what_was_accepted_comes_back_where_no_successor_can_be_made(
    client: OpenAI, echo: EchoEngine, echo_server: Serving
):
    with client.responses.connect() as socket:
        echo_server.call(echo.hold)
        ask(socket)
        first = response_id(until(socket, "response.created"))
        steer(socket, first, "far too long " * 400)
        accepted = until(socket, "response.steer.accepted")
        failed = until(socket, "response.steer.failed")
        echo_server.call(echo.release)

        assert failure(failed) == "successor_creation_failed"
        assert failed["steer"]["id"] == accepted["steer"]["id"]
        assert failed["steer"]["input"] == "far too long " * 400
        assert alive(socket)
