"""`/v1/conversations` and `conversation`, by the unmodified SDK against a real server."""

from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.dialect.test_socket import answer, ask, code, to_the_end, until
from tests.kit.echo import EchoEngine, text_of
from tests.kit.serving import Serving

HELLO: Any = {"type": "message", "role": "user", "content": "Hello"}


def said(client: OpenAI, conversation: str) -> list[str]:
    """Oldest first, page by page, as the SDK walks them."""
    pages = client.conversations.items.list(conversation, order="asc", limit=2)
    items: list[Any] = list(pages)
    return [item.content[0].text for item in items]


def test_a_conversation_is_made_shown_changed_and_deleted(client: OpenAI, echo: EchoEngine):
    made = client.conversations.create(metadata={"topic": "sea"}, items=[HELLO])
    shown = client.conversations.retrieve(made.id)
    changed = client.conversations.update(made.id, metadata={"topic": "wind"})
    deleted = client.conversations.delete(made.id)

    assert made.object == "conversation"
    assert made == shown
    assert changed.metadata == {"topic": "wind"}
    assert (deleted.id, deleted.object, deleted.deleted) == (made.id, "conversation.deleted", True)
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(made.id)


def test_responses_go_on_in_their_conversation(client: OpenAI, echo: EchoEngine):
    made = client.conversations.create(items=[HELLO])
    first = client.responses.create(conversation=made.id, input="One")
    second = client.responses.create(conversation={"id": made.id}, input="Two", stream=True)
    *_, last = second

    assert first.conversation is not None
    assert first.conversation.id == made.id
    assert client.responses.retrieve(first.id).conversation == first.conversation
    assert last.type == "response.completed"
    assert last.response.previous_response_id is None
    assert last.response.usage is not None
    assert last.response.usage.input_tokens_details.cached_tokens > 0
    history = f"HelloOne{first.output_text}Two"
    assert text_of(echo.jobs[-1].token_ids) == history
    assert "".join(said(client, made.id)) == history + last.response.output_text


def test_a_socket_goes_on_in_a_conversation_too(client: OpenAI, echo: EchoEngine):
    made = client.conversations.create()
    with client.responses.connect() as socket:
        answer(socket, "One", conversation=made.id)
        ended = answer(socket, "Two", conversation=made.id)
        lost = answer(socket, "Three", conversation="conv_unknown")

    assert ended["response"]["conversation"] == {"id": made.id}
    assert said(client, made.id)[::2] == ["One", "Two"]
    assert (code(lost), lost["status"]) == ("conversation_not_found", 404)


def test_items_are_added_listed_shown_and_removed(client: OpenAI, echo: EchoEngine):
    made = client.conversations.create()
    told: Any = [{"role": "system", "content": "Be brief."}, HELLO]
    added: Any = client.conversations.items.create(made.id, items=told)
    client.responses.create(conversation=made.id, input=[])

    newest, *_ = client.conversations.items.list(made.id, limit=1)
    shown: Any = client.conversations.items.retrieve(added.data[1].id, conversation_id=made.id)
    left = client.conversations.items.delete(added.data[0].id, conversation_id=made.id)

    assert newest.type == "message"
    assert (newest.role, newest.status) == ("assistant", "completed")
    assert (shown.role, shown.content[0].type, shown.content[0].text) == (
        "user",
        "input_text",
        "Hello",
    )
    assert left.id == made.id
    assert said(client, made.id)[0] == "Hello"
    assert len(said(client, made.id)) == 2


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"store": False}, "store"),
        ({"conversation": "c" * 129}, "conversation"),
    ],
)
def test_what_does_not_go_with_a_conversation_is_refused(
    client: OpenAI, echo: EchoEngine, asked: dict[str, Any], param: str
):
    named = {"conversation": client.conversations.create().id, **asked}

    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(input="x", **named)

    assert refused.value.param == param


def test_two_at_once_in_a_conversation_are_not_tried_again(
    client: OpenAI, echo: EchoEngine, echo_server: Serving
):
    made = client.conversations.create()
    with client.responses.connect() as socket:
        echo_server.call(echo.hold)
        ask(socket, conversation=made.id)
        until(socket, "response.created")
        with pytest.raises(openai.ConflictError) as refused:
            client.responses.create(conversation=made.id, input="Two")
        with pytest.raises(openai.ConflictError):
            client.conversations.items.create(made.id, items=[HELLO])
        echo_server.call(echo.release)
        to_the_end(socket)

    assert refused.value.code == "turn_in_progress"
    assert refused.value.response.headers["x-should-retry"] == "false"


def test_what_belongs_to_a_conversation_is_not_steered(
    client: OpenAI, echo: EchoEngine, echo_server: Serving
):
    made = client.conversations.create()
    with client.responses.connect() as socket:
        echo_server.call(echo.hold)
        ask(socket, conversation=made.id)
        begun = until(socket, "response.created")
        socket.response.steer(previous_response_id=begun["response"]["id"], input="x")
        failed = until(socket, "response.steer.failed")
        echo_server.call(echo.release)
        to_the_end(socket)

    assert failed["error"]["code"] == "steering_not_supported"


def test_items_that_are_refused_are_refused_by_name(client: OpenAI, echo: EchoEngine):
    for items, param in (
        ([{**HELLO, "content": "long " * 1_000}], "input"),
        ([{**HELLO, "role": "critic"}], "items[0].role"),
        ([HELLO] * 21, "items"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            client.conversations.create(items=items)  # type: ignore[arg-type]
        assert refused.value.param == param


def test_19_anothers_conversation_is_not_there(client: OpenAI, stranger: OpenAI, echo: EchoEngine):
    made = client.conversations.create(items=[HELLO])
    item = next(iter(client.conversations.items.list(made.id))).id
    assert item is not None

    for look in (
        lambda: stranger.conversations.retrieve(made.id),
        lambda: stranger.conversations.update(made.id, metadata={}),
        lambda: stranger.conversations.delete(made.id),
        lambda: stranger.conversations.items.list(made.id),
        lambda: stranger.conversations.items.create(made.id, items=[HELLO]),
        lambda: stranger.conversations.items.retrieve(item, conversation_id=made.id),
        lambda: stranger.conversations.items.delete(item, conversation_id=made.id),
        lambda: stranger.responses.create(conversation=made.id, input="x"),
        lambda: client.conversations.retrieve("conv_unknown"),
        lambda: client.conversations.items.retrieve("msg_unknown", conversation_id=made.id),
        lambda: client.conversations.items.delete("msg_unknown", conversation_id=made.id),
    ):
        with pytest.raises(openai.NotFoundError):
            look()
    assert said(client, made.id) == ["Hello"]
