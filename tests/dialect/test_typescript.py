"""The SDK's TypeScript twin, unmodified, in the Node that comes as a Python package."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.chat.calls import Call, Written, spelled
from engine.api import JobClass
from tests.kit.echo import CALL_FORM, EchoEngine
from tests.kit.serving import WAIT_S, Serving

FOLDER = Path(__file__).parent / "ts"
NODE = Path(sys.executable).parent / "node"


@pytest.fixture(scope="module")
def told(echo_server: Serving) -> dict[str, Any]:
    """What one run of `client.ts` got from the server."""
    return told_by(echo_server)


def told_by(server: Serving, part: str = "") -> dict[str, Any]:
    assert (FOLDER / "node_modules" / "openai").is_dir(), f"npm ci --prefix {FOLDER}"
    named = {"DIALECT_URL": server.url, "DIALECT_KEY": server.key, "DIALECT_PART": part}
    run = subprocess.run(
        [NODE, FOLDER / "client.ts"],
        env={**os.environ, **named},
        capture_output=True,
        text=True,
        timeout=2 * WAIT_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def test_responses_come_whole_streamed_and_resumed(told: dict[str, Any], echo: EchoEngine):
    found = told["responses"]
    events = found["events"]

    assert found["whole"]["status"] == "completed"
    assert found["whole"]["output_text"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["previous_response_id"] == found["whole"]["id"]
    assert found["rest"] == events[5:]
    assert found["missing"] == ["NotFoundError", 404, "response_id"]


def test_chat_completions_come_whole_and_in_chunks(told: dict[str, Any], echo: EchoEngine):
    whole, chunks = told["completions"]["whole"], told["completions"]["chunks"]
    text = "".join(
        choice["delta"].get("content", "") for one in chunks for choice in one["choices"]
    )

    assert told["models"] == [echo.card.name]
    assert text == whole["choices"][0]["message"]["content"]
    assert chunks[-1]["choices"] == []
    details = chunks[-1]["usage"]["prompt_tokens_details"]
    assert details["cached_tokens"] == chunks[-1]["usage"]["prompt_tokens"] - 1


def test_functions_are_called_and_answered(echo_server: Serving, echo: EchoEngine):
    calling = Written(text="", calls=(Call(name="tide", arguments="{}"),))
    echo.says[JobClass.INTERACTIVE] = spelled(calling, CALL_FORM)

    found = told_by(echo_server, "calls")

    (call,) = found["first"]["output"]
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "tide", "{}")
    assert found["first"]["tool_choice"] == {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "tide"}],
    }
    assert found["second"]["previous_response_id"] == found["first"]["id"]
    (choice,) = found["chat"]["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "tide"


def test_conversations_hold_what_was_said(told: dict[str, Any], echo: EchoEngine):
    found = told["conversations"]
    made, answer = found["made"], found["answer"]

    assert made["metadata"] == {"topic": "sea"}
    assert answer["conversation"] == {"id": made["id"]}
    said = [item["content"][0]["text"] for item in found["items"]]
    assert said == ["One", answer["output_text"]]
    assert found["deleted"] == {
        "id": made["id"],
        "object": "conversation.deleted",
        "deleted": True,
    }
