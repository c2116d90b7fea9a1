"""Traces as a collector gets them from a real server: what a turn cost, and nothing that was said."""

import http.server
import sys
import threading
from collections.abc import Iterator

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from app.errors import AppError
from app.tracing import exporting
from tests.kit.server import fork_server

CALLER = "0af7651916cd43dd8448eb211c80319c"


class Collector:
    """Takes what is exported to it, as it is."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        collector = self

        class Taking(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.bodies.append(self.path.encode() + b" " + body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Taking)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    @property
    def spans(self) -> list[Span]:
        found = []
        for body in self.bodies:
            path, _, message = body.partition(b" ")
            assert path == b"/v1/traces"
            request = ExportTraceServiceRequest.FromString(message)
            found += [
                span
                for one in request.resource_spans
                for two in one.scope_spans
                for span in two.spans
            ]
        return found


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    thread = threading.Thread(target=collector.server.serve_forever)
    thread.start()
    yield collector
    collector.server.shutdown()
    thread.join()
    collector.server.server_close()


def told(span: Span) -> dict[str, object]:
    return {
        one.key: getattr(one.value, one.value.WhichOneof("value") or "") for one in span.attributes
    }


def test_a_turn_is_told_below_its_request_and_not_what_was_said(collector: Collector):
    with fork_server(KEEPWARM_TRACES_URL=collector.url) as server:
        answer = httpx.post(
            f"{server.url}/v1/responses?q=hidden-query",
            json={"input": "hidden-text", "max_output_tokens": 4, "instructions": "hidden-role"},
            headers={
                "authorization": f"Bearer {server.api_key}",
                "traceparent": f"00-{CALLER}-b7ad6b7169203331-01",
            },
            timeout=120,
        )
        refused = httpx.get(
            f"{server.url}/v1/models/hidden-model",
            headers={"cookie": "hidden-cookie"},
            timeout=60,
        )
        assert server.stop() == 0
    reply = answer.raise_for_status().json()

    spans = {span.name: span for span in collector.spans if span.trace_id.hex() == CALLER}
    request, turn = spans["POST /v1/responses"], spans[f"chat {reply['model']}"]
    assert set(spans) == {request.name, turn.name, "queue", "prefill", "decode"}
    assert turn.parent_span_id == request.span_id
    assert {spans[one].parent_span_id for one in ("queue", "prefill", "decode")} == {turn.span_id}
    assert told(request)["http.response.status_code"] == 200
    assert told(request)["keepwarm.request_id"] == answer.headers["x-request-id"]
    assert told(turn)["gen_ai.response.id"] == reply["id"]
    assert told(turn)["gen_ai.usage.input_tokens"] == reply["usage"]["input_tokens"]
    assert told(turn)["gen_ai.usage.output_tokens"] == 4
    assert spans["prefill"].end_time_unix_nano <= spans["decode"].end_time_unix_nano
    others = [span for span in collector.spans if span.trace_id.hex() != CALLER]
    assert refused.status_code in {told(span)["http.response.status_code"] for span in others}
    exported = b"".join(collector.bodies)
    assert b"hidden-" not in exported
    assert reply["output"][0]["content"][0]["text"].encode() not in exported
    assert server.api_key.encode() not in exported


def test_packages_that_are_not_there_are_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)

    with pytest.raises(AppError, match=r"pip install 'keepwarm\[otel\]'"), exporting("http://x"):
        pass
