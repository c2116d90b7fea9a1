"""`/v1/responses` as a websocket, by the unmodified SDK against a real server."""

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI
from openai.resources.responses.responses import ResponsesConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from app.chat.ledger import Acceptance, Entry
from app.chat.memory import MemoryLedger
from app.db.types import QuotaKind
from app.people.accounts import Principal
from app.people.usage import Ask
from app.routes.connection import OpenSocket
from app.routes.openai import lanes
from app.routes.openai import socket as dialect
from tests.dialect.conftest import a_client
from tests.kit.echo import EchoEngine, text_of
from tests.kit.serving import WAIT_S, Serving, serving

ENDS = ("response.completed", "response.incomplete", "response.failed", "error")
Event = dict[str, Any]


def ask(socket: ResponsesConnection, text: Any = "Hello", **asked: Any) -> None:
    socket.response.create(input=text, **asked)


def hear(socket: ResponsesConnection) -> Event:
    """The next event as it came."""
    event: Event = json.loads(socket.recv_bytes())
    return event


def answer(socket: ResponsesConnection, text: str = "Hello", **asked: Any) -> Event:
    """Ask, and hear it to its end: the last event."""
    ask(socket, text, **asked)
    return to_the_end(socket)[-1]


def to_the_end(socket: ResponsesConnection, answers: int = 1) -> list[Event]:
    """Every event until so many requests have ended."""
    events: list[Event] = []
    while sum(event["type"] in ENDS for event in events) < answers:
        events.append(hear(socket))
    return events


def response_id(event: Event) -> str:
    found: str = event["response"]["id"]
    return found


def code(event: Event) -> str:
    """Of an error event."""
    assert event["type"] == "error"
    found: str = event["error"]["code"]
    return found


def alive(socket: ResponsesConnection) -> bool:
    return bool(answer(socket)["type"] == "response.completed")


def until(socket: ResponsesConnection, kind: str) -> Event:
    event = hear(socket)
    while event["type"] != kind:
        event = hear(socket)
    return event


def lane_of(event: Event) -> str | None:
    lane: str | None = event.get("stream_id")
    return lane


# ---------------------------------------------------------------- turns


def test_an_answer_comes_as_the_sdks_own_events(client: OpenAI, echo: EchoEngine):
    with client.responses.connect() as socket:
        ask(socket, stream_id="left")
        events = []
        for event in socket:
            events.append(event)
            if event.type in ENDS:
                break

    assert type(events[0]).__name__ == "ResponseWsCreated"
    assert events[-1].type == "response.completed"
    told = [event.to_dict() for event in events]
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert {event["stream_id"] for event in told} == {"left"}


def test_a_conversation_goes_on_and_instructions_do_not(client: OpenAI, echo: EchoEngine):
    with client.responses.connect() as socket:
        first = answer(socket, "One", instructions="Be a pirate.")
        second = answer(socket, "Two", previous_response_id=response_id(first))

    reply = first["response"]["output"][0]["content"][0]["text"]
    assert second["type"] == "response.completed"
    assert text_of(echo.jobs[-1].token_ids) == f"One{reply}Two"


def test_without_a_previous_response_a_lane_begins_anew(client: OpenAI, echo: EchoEngine):
    with client.responses.connect() as socket:
        answer(socket, "One")
        answer(socket, "Two")

    assert text_of(echo.jobs[-1].token_ids) == "Two"


def test_15_an_answer_is_stopped_by_its_id(client: OpenAI, echo: EchoEngine, echo_server: Serving):
    with client.responses.connect() as socket:
        echo_server.call(echo.hold)
        ask(socket)
        running = response_id(until(socket, "response.created"))
        socket.send_raw(json.dumps({"type": "response.cancel", "response_id": running}))
        ended = to_the_end(socket)[-1]

    assert (ended["type"], ended["response"]["status"]) == ("response.incomplete", "cancelled")


@pytest.mark.parametrize("named", [None, 7, "resp_unknown"])
def test_15_stopping_what_is_not_there_harms_nothing(
    client: OpenAI, echo: EchoEngine, named: object
):
    with client.responses.connect() as socket:
        socket.send_raw(json.dumps({"type": "response.cancel", "response_id": named}))
        refused = hear(socket)

        assert (refused["type"], refused["error"]["param"]) == ("error", "response_id")
        assert alive(socket)


def test_a_warm_up_answers_nothing_and_can_be_continued(client: OpenAI, echo: EchoEngine):
    with client.responses.connect() as socket:
        warm = answer(socket, "Context. ", generate=False)
        turn = answer(socket, "Question?", previous_response_id=response_id(warm))

    assert warm["type"] == "response.completed"
    assert warm["response"]["output"] == []
    assert warm["response"]["usage"]["output_tokens"] == 0
    assert (
        turn["response"]["usage"]["input_tokens_details"]["cached_tokens"]
        == (warm["response"]["usage"]["input_tokens"])
    )


def test_prewarm_is_a_warm_up_too(client: OpenAI, echo: EchoEngine):
    with client.responses.connect() as socket:
        warm = answer(socket, prompt_cache_options={"prewarm": True})

    assert warm["response"]["output"] == []


@pytest.mark.parametrize("store", [True, False])
def test_what_a_warm_up_carried_is_answered_without_new_input(
    client: OpenAI, echo: EchoEngine, store: bool
):
    told: Any = {"instructions": "Be brief.", "store": store}
    with client.responses.connect() as socket:
        warm = answer(socket, "Question?", generate=False, **told)
        socket.response.create(input=[], previous_response_id=response_id(warm), **told)
        events = to_the_end(socket)
        more = answer(socket, "More?", previous_response_id=response_id(events[-1]), **told)

    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    ended = events[-1]
    assert ended["type"] == more["type"] == "response.completed"
    assert ended["response"]["previous_response_id"] == response_id(warm)
    assert text_of(echo.jobs[-2].token_ids) == "Be brief.Question?"
    assert ended["response"]["usage"]["input_tokens_details"]["cache_write_tokens"] == 1
    assert text_of(echo.jobs[-1].token_ids) == (
        f"Be brief.Question?{ended['response']['output'][0]['content'][0]['text']}More?"
    )


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("nothing", [{}, {"input": []}], ids=["no input", "empty input"])
def test_instructions_alone_are_warmed_and_continued(
    client: OpenAI, echo: EchoEngine, nothing: dict[str, Any], store: bool
):
    told: Any = {"instructions": f"Be as {store} as {nothing}.", "store": store}
    with client.responses.connect() as socket:
        socket.response.create(generate=False, **nothing, **told)
        warm = to_the_end(socket)[-1]
        turn = answer(socket, "Question?", previous_response_id=response_id(warm), **told)

    assert warm["type"] == turn["type"] == "response.completed"
    assert warm["response"]["output"] == []
    warmed, asked = warm["response"]["usage"], turn["response"]["usage"]
    assert warmed["output_tokens"] == 0
    assert asked["input_tokens_details"]["cached_tokens"] == warmed["input_tokens"]
    assert text_of(echo.jobs[-1].token_ids) == f"{told['instructions']}Question?"


def test_input_that_leaves_nothing_to_do_is_refused_and_the_socket_lives(
    client: OpenAI, echo: EchoEngine
):
    with client.responses.connect() as socket:
        answered = response_id(answer(socket))
        bad: tuple[Any, ...] = (
            {"input": []},
            {"input": [], "previous_response_id": answered},
            {"previous_response_id": answered},
            {"input": [], "instructions": "Be brief."},
            {"generate": False},
        )
        for asked in bad:
            socket.response.create(**asked)
            refused = to_the_end(socket)[-1]
            assert (code(refused), refused["status"]) == ("invalid_request", 400)
            assert refused["error"]["param"] == "input"

        assert alive(socket)


def test_a_stored_response_outlives_its_socket(client: OpenAI, echo: EchoEngine):
    with client.responses.connect() as socket:
        first = answer(socket, "One")
    with client.responses.connect() as socket:
        second = answer(socket, "Two", previous_response_id=response_id(first))

    assert second["type"] == "response.completed"
    assert client.responses.retrieve(response_id(first)).output_text


def test_13_what_is_stored_goes_on_without_the_socket(
    client: OpenAI, echo: EchoEngine, echo_server: Serving
):
    echo_server.call(echo.hold, 2)
    with client.responses.connect() as socket:
        ask(socket)
        begun = until(socket, "response.created")

    echo_server.call(echo.release)

    events = list(client.responses.retrieve(response_id(begun), stream=True))
    assert events[-1].type == "response.completed"


# ---------------------------------------------------------------- lanes


def test_lanes_run_side_by_side(client: OpenAI, echo: EchoEngine, echo_server: Serving):
    echo_server.call(echo.hold)
    with client.responses.connect() as socket:
        for lane in ("a", "b"):
            ask(socket, stream_id=lane)
        begun = [hear(socket), hear(socket)]
        echo_server.call(echo.release)
        events = begun + to_the_end(socket, answers=2)

    assert {(lane_of(event), event["type"]) for event in begun} == {
        ("a", "response.created"),
        ("b", "response.created"),
    }
    for lane in ("a", "b"):
        numbers = [event["sequence_number"] for event in events if lane_of(event) == lane]
        assert numbers == list(range(len(numbers)))


def test_a_lane_answers_one_after_the_other_while_another_lane_goes_on(
    client: OpenAI, echo: EchoEngine, echo_server: Serving
):
    echo_server.call(echo.hold)
    with client.responses.connect() as socket:
        ask(socket, "first", stream_id="a")
        ask(socket, "second", stream_id="a")
        ask(socket, "other", stream_id="b")
        begun = [hear(socket), hear(socket)]
        echo_server.call(echo.release)
        events = begun + to_the_end(socket, answers=3)

    assert [lane_of(event) for event in begun] in (["a", "b"], ["b", "a"])
    told = [event["type"] for event in events if lane_of(event) == "a"]
    assert told.index("response.completed") < told.index("response.created", 1)


def test_sixteen_responses_are_in_flight_and_more_wait(
    client: OpenAI, echo: EchoEngine, echo_server: Serving
):
    names = [f"lane-{place}" for place in range(20)]
    echo_server.call(echo.hold)
    with client.responses.connect() as socket:
        for name in names:
            ask(socket, stream_id=name)
        begun = [hear(socket) for _ in range(lanes.IN_FLIGHT)]
        echo_server.until(lambda: len(echo.jobs) >= lanes.IN_FLIGHT)
        echo_server.call(echo.release)
        events = begun + to_the_end(socket, answers=len(names))

    most, in_flight = 0, 0
    for event in events:
        in_flight += (event["type"] == "response.created") - (event["type"] in ENDS)
        most = max(most, in_flight)
    assert most == lanes.IN_FLIGHT
    assert {lane_of(event) for event in events if event["type"] in ENDS} == set(names)


def test_the_thirty_third_name_is_refused_and_the_others_live(client: OpenAI, echo: EchoEngine):
    with client.responses.connect() as socket:
        for place in range(lanes.NAMED_LANES):
            answer(socket, stream_id=f"lane-{place}", temperature=9)
        refused = answer(socket, stream_id="one-more")
        known = answer(socket, stream_id="lane-7")

        assert code(refused) == "websocket_stream_limit_reached"
        assert refused["status"] == 400
        assert known["type"] == "response.completed"
        assert alive(socket)


@pytest.mark.parametrize("name", ["", "a b", "é", "x" * 257, 7])
def test_a_bad_lane_name_is_refused(client: OpenAI, echo: EchoEngine, name: object):
    with client.responses.connect() as socket:
        socket.send_raw(json.dumps({"type": "response.create", "input": "x", "stream_id": name}))
        refused = hear(socket)

        assert code(refused) == "invalid_stream_id"
        assert refused["error"]["param"] == "stream_id"
        assert alive(socket)


def test_more_requests_than_may_wait_are_told_to_come_later(
    client: OpenAI, echo: EchoEngine, echo_server: Serving
):
    echo_server.call(echo.hold)
    with client.responses.connect() as socket:
        ask(socket)
        until(socket, "response.created")
        for _ in range(lanes.WAITING_REQUESTS + 1):
            ask(socket)
        refused = until(socket, "error")

    assert code(refused) == "websocket_queue_full"
    assert refused["status"] == 429
    assert refused["error"]["headers"]["retry-after"] == "1"


def test_a_lane_whose_first_request_came_too_early_serves_the_next_one(
    client: OpenAI, echo: EchoEngine, echo_server: Serving
):
    echo_server.call(echo.hold)
    with client.responses.connect() as socket:
        ask(socket)
        until(socket, "response.created")
        for _ in range(lanes.WAITING_REQUESTS):
            ask(socket)
        ask(socket, stream_id="late")
        refused = until(socket, "error")
        echo_server.call(echo.release)
        to_the_end(socket, answers=lanes.WAITING_REQUESTS + 1)
        served = answer(socket, stream_id="late")

    assert (code(refused), lane_of(refused)) == ("websocket_queue_full", "late")
    assert (served["type"], lane_of(served)) == ("response.completed", "late")


# ---------------------------------------------------------------- what is not stored


def test_a_lane_remembers_its_latest_response_only(client: OpenAI, echo: EchoEngine):
    with client.responses.connect() as socket:
        first = response_id(answer(socket, "One", store=False))
        second = response_id(answer(socket, "Two", store=False, previous_response_id=first))
        stale = answer(socket, "Again", store=False, previous_response_id=first, stream_id="b")
        third = answer(socket, "Three", store=False, previous_response_id=second)

    assert code(stale) == "previous_response_not_found"
    assert stale["error"]["param"] == "previous_response_id"
    assert third["type"] == "response.completed"
    assert text_of(echo.jobs[-1].token_ids).startswith("One")


def test_what_is_not_stored_is_gone_with_its_socket(client: OpenAI, echo: EchoEngine):
    with client.responses.connect() as socket:
        first = response_id(answer(socket, "One", store=False))
    with client.responses.connect() as socket:
        refused = answer(socket, "Two", store=False, previous_response_id=first)

        assert code(refused) == "previous_response_not_found"
        assert refused["status"] == 400
        assert alive(socket)


def test_another_socket_does_not_know_what_this_one_has_not_stored(
    client: OpenAI, echo: EchoEngine
):
    with client.responses.connect() as here, client.responses.connect() as there:
        first = response_id(answer(here, "One", store=False))
        refused = answer(there, "Two", store=False, previous_response_id=first)
        known = answer(here, "Two", store=False, previous_response_id=first)

    assert code(refused) == "previous_response_not_found"
    assert known["type"] == "response.completed"


def test_a_lane_is_forked_into_another(client: OpenAI, echo: EchoEngine):
    with client.responses.connect() as socket:
        first = answer(socket, "One", store=False, stream_id="main")
        parent = response_id(first)
        fork = answer(socket, "Fork", store=False, stream_id="f", previous_response_id=parent)
        main = answer(socket, "Main", store=False, stream_id="main", previous_response_id=parent)

    reply = first["response"]["output"][0]["content"][0]["text"]
    assert fork["type"] == main["type"] == "response.completed"
    assert text_of(echo.jobs[-2].token_ids) == f"One{reply}Fork"
    assert text_of(echo.jobs[-1].token_ids) == f"One{reply}Main"


def test_a_failed_continuation_evicts_its_parent_and_a_failed_fork_does_not(
    client: OpenAI, echo: EchoEngine
):
    with client.responses.connect() as socket:
        parent = response_id(answer(socket, store=False, stream_id="main"))
        bad: Any = {"store": False, "previous_response_id": parent, "temperature": 9}
        fork = answer(socket, stream_id="fork", **bad)
        good = answer(socket, stream_id="x", store=False, previous_response_id=parent)
        failed = answer(socket, stream_id="main", **bad)
        evicted = answer(socket, stream_id="main", store=False, previous_response_id=parent)

    assert code(fork) == code(failed) == "invalid_value"
    assert good["type"] == "response.completed"
    assert code(evicted) == "previous_response_not_found"


@pytest.mark.row("engine 23")
def test_13_what_is_not_stored_stops_with_its_socket(
    client: OpenAI, echo: EchoEngine, echo_server: Serving
):
    echo_server.call(echo.hold, 2)
    with client.responses.connect() as socket:
        ask(socket, store=False)
        until(socket, "response.output_text.delta")

    echo_server.until(lambda: echo_server.service.supervisor.live_turns == 0)


def test_13_what_is_not_stored_stops_though_its_socket_went_while_it_was_accepted(
    client: OpenAI, echo: EchoEngine, echo_server: Serving, monkeypatch: pytest.MonkeyPatch
):
    accept, accepting, go_on = MemoryLedger.accept, threading.Event(), asyncio.Event()

    async def accept_slowly(
        self: MemoryLedger, entry: Entry, asked: Ask, written: Callable[[], None]
    ) -> Acceptance:
        accepting.set()
        await go_on.wait()
        return await accept(self, entry, asked, written)

    monkeypatch.setattr(MemoryLedger, "accept", accept_slowly)
    echo_server.call(echo.hold)
    with client.responses.connect() as socket:
        ask(socket, store=False)
        assert accepting.wait(WAIT_S)
    echo_server.until(lambda: echo_server.service.gate.open_sockets == 0)
    echo_server.call(go_on.set)

    echo_server.until(lambda: echo_server.service.supervisor.live_turns == 0)


def test_13_what_is_not_stored_stops_though_its_socket_ended_in_a_fault(
    client: OpenAI, echo: EchoEngine, echo_server: Serving, monkeypatch: pytest.MonkeyPatch
):
    async def fail(_: object) -> Principal:
        raise OSError("the database is away")

    echo_server.call(echo.hold, 2)
    with client.responses.connect() as socket:
        ask(socket, store=False)
        until(socket, "response.output_text.delta")
        monkeypatch.setattr(OpenSocket, "may_go_on", fail)
        ask(socket, store=False)
        assert closed(socket) == 1011

    echo_server.until(lambda: echo_server.service.supervisor.live_turns == 0)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        ("{", "invalid_json"),
        ("[]", "invalid_json"),
        (b"\x00\x01", "invalid_json"),
        ("[" * 3000, "invalid_json"),
        ('{"type":"response.pause"}', "unknown_event_type"),
        ("{}", "unknown_event_type"),
        ('{"type":"response.create","input":"' + "x" * 2**20 + '"}', "frame_too_long"),
        ('{"type":"response.create","input":"x","background":true}', "unsupported_parameter"),
        ('{"type":"response.create"}', "missing_required_parameter"),
        ('{"type":"response.create","input":"x","model":"gpt-9"}', "model_not_found"),
    ],
    ids=lambda part: str(part)[:40],
)
def test_a_bad_frame_gets_an_error_and_the_socket_lives(
    client: OpenAI, echo: EchoEngine, frame: bytes | str, expected: str
):
    with client.responses.connect() as socket:
        socket.send_raw(frame)

        assert code(hear(socket)) == expected
        assert alive(socket)


def test_an_error_of_a_lane_names_it_and_harms_no_other(client: OpenAI, echo: EchoEngine):
    with client.responses.connect() as socket:
        refused = answer(socket, stream_id="a", temperature=9)

        assert lane_of(refused) == "a"
        assert refused["error"]["param"] == "temperature"
        assert "sequence_number" not in refused
        assert answer(socket, stream_id="b")["type"] == "response.completed"


def test_a_prompt_that_cannot_fit_is_refused_with_both_numbers(client: OpenAI, echo: EchoEngine):
    with client.responses.connect() as socket:
        refused = answer(socket, "x" * 5000)

    assert code(refused) == "context_length_exceeded"
    assert "5004" in refused["error"]["message"]
    assert "2000" in refused["error"]["message"]


def test_19_another_users_response_is_not_found(client: OpenAI, stranger: OpenAI, echo: EchoEngine):
    with client.responses.connect() as mine, stranger.responses.connect() as theirs:
        kept = response_id(answer(mine))
        passing = response_id(answer(mine, store=False, stream_id="a"))

        for previous in (kept, passing):
            refused = answer(theirs, store=False, previous_response_id=previous)
            assert code(refused) == "previous_response_not_found"


def refusal(connect: Callable[[], object]) -> InvalidStatus:
    with pytest.raises(InvalidStatus) as refused:
        connect()
    return refused.value


def test_a_bad_key_is_denied_with_a_body(echo_server: Serving):
    denied = refusal(a_client(echo_server, "sk-no").responses.connect().enter)

    assert denied.response.status_code == 401
    assert denied.response.headers["x-request-id"]
    assert json.loads(denied.response.body)["error"]["code"] == "invalid_api_key"


def test_one_socket_too_many_is_denied_with_a_time(echo_server: Serving):
    user_id, key = echo_server.new_user()
    echo_server.do(echo_server.service.quotas.set_for_user(user_id, QuotaKind.SOCKETS, 0))

    denied = refusal(a_client(echo_server, key.key).responses.connect().enter)

    assert denied.response.status_code == 429
    assert denied.response.headers["retry-after"] == "5"
    assert json.loads(denied.response.body)["error"]["code"] == "rate_limit_exceeded"


# ---------------------------------------------------------------- the end of a connection


def closed(socket: ResponsesConnection) -> int | None:
    """The code that the server closes with."""
    with pytest.raises(ConnectionClosed) as ended:
        hear(socket)
    return ended.value.rcvd.code if ended.value.rcvd else None


def test_an_old_connection_says_so_and_closes_for_good(
    client: OpenAI, echo: EchoEngine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dialect, "LIFETIME_S", 0.0)

    with client.responses.connect() as socket:
        assert code(hear(socket)) == "websocket_connection_limit_reached"
        assert closed(socket) == 1000


def test_a_revoked_key_closes_its_sockets(echo_server: Serving, echo: EchoEngine):
    user_id, key = echo_server.new_user()

    with a_client(echo_server, key.key).responses.connect() as socket:
        assert alive(socket)
        echo_server.do(echo_server.service.keys.revoke(user_id, key.view.id))

        assert closed(socket) == 4401


def test_a_server_that_stops_asks_to_come_back(tmp_path_factory: pytest.TempPathFactory):
    async def open_engine() -> EchoEngine:
        return EchoEngine()

    with (
        serving(tmp_path_factory.mktemp("stopping"), open_engine) as server,
        a_client(server).responses.connect() as socket,
    ):
        assert alive(socket)
        server.stop()

        assert closed(socket) == 1012


async def test_the_asynchronous_client_works_as_well(echo_server: Serving, echo: EchoEngine):
    async with (
        AsyncOpenAI(base_url=echo_server.url, api_key=echo_server.key) as client,
        client.responses.connect() as socket,
    ):
        await socket.response.create(input="Hello", stream_id="a")
        kinds = []
        async for event in socket:
            kinds.append(event.type)
            if event.type in ENDS:
                break

    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
