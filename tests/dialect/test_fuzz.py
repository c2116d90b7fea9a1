"""Whatever is sent to the dialect is accepted, or refused with a documented error; never a 5xx."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai import OpenAI

from tests.dialect.test_requests import DOCUMENTS, VALUES
from tests.kit.echo import EchoEngine
from tests.kit.serving import Serving
from tests.kit.tab import SOON

CODES = {
    *("invalid_json", "invalid_request", "invalid_value", "unsupported_parameter"),
    *("missing_required_parameter", "model_not_found", "previous_response_not_found"),
    *("prompt_not_found", "context_length_exceeded", "invalid_stream_id", "unknown_event_type"),
    *("websocket_stream_limit_reached", "turn_in_progress", "steering_not_supported"),
}
PLAUSIBLE = st.fixed_dictionaries(
    {"input": st.text(max_size=20), "messages": st.just([{"role": "user", "content": "x"}])},
    optional={
        "stream": st.booleans(),
        "store": st.booleans(),
        "generate": st.booleans(),
        "stream_id": st.sampled_from(["a", "b", ""]),
        "temperature": VALUES,
        "previous_response_id": VALUES,
        "instructions": st.text(max_size=5),
        "stop": VALUES,
    },
)
BODIES = (DOCUMENTS | PLAUSIBLE).map(json.dumps) | st.text() | st.binary()
SETTINGS = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="session")
def http(echo_server: Serving) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {echo_server.key}"}
    with httpx.Client(base_url=echo_server.url, headers=headers, limits=SOON, timeout=60) as client:
        yield client


def raw(body: str | bytes) -> bytes:
    return body if isinstance(body, bytes) else body.encode(errors="replace")


@SETTINGS
@given(body=BODIES, path=st.sampled_from(["/responses", "/chat/completions"]))
def test_any_body_is_accepted_or_refused(
    http: httpx.Client, echo: EchoEngine, body: str | bytes, path: str
):
    answer = http.post(path, content=raw(body))

    assert answer.headers["x-request-id"]
    if answer.status_code != 200:
        assert answer.status_code in (400, 404)
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] in CODES


@settings(SETTINGS, max_examples=25)
@given(frames=st.lists(BODIES, min_size=1, max_size=8))
def test_any_frame_is_answered_and_the_socket_lives(
    client: OpenAI, echo: EchoEngine, frames: list[str | bytes]
):
    # What is not read is kept: a client that stops reading would hear of the close too late.
    with client.responses.connect(websocket_connection_options={"max_queue": None}) as socket:
        for frame in frames:
            socket.send_raw(_as_create(frame))
        socket.response.create(input="still there", stream_id="a", model="nobody")

        while True:
            event: Any = json.loads(socket.recv_bytes())
            if event["type"] == "error":
                assert event["error"]["code"] in CODES
                assert event["status"] < 500
            if event.get("error", {}).get("message", "").find("'nobody'") >= 0:
                break


def _as_create(frame: str | bytes) -> str | bytes:
    """Objects as events, so that they come to be read at all."""
    if isinstance(frame, str) and frame.startswith("{"):
        document = json.loads(frame)
        return json.dumps({"type": "response.create", **document})
    return frame if isinstance(frame, bytes) else frame.encode(errors="replace").decode()
