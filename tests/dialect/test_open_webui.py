"""What Open WebUI asks of a server: the models, streamed whole histories, and its own prompts between.

It keeps no state with the server, so that all its warmth must come from what it sends again (law 2).
"""

from typing import Any, NamedTuple

import pytest
from openai import OpenAI

from tests.dialect.conftest import sdk
from tests.kit.server import Server

TASKS = (
    "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history.\n"
    '### Output:\nJSON format: {{ "title": "your title here" }}\n'
    "### Chat History:\n<chat_history>\n{history}\n</chat_history>",
    "### Task:\nGenerate 1-3 broad tags categorizing the main themes of the chat history.\n"
    '### Output:\nJSON format: {{ "tags": ["tag1", "tag2"] }}\n'
    "### Chat History:\n<chat_history>\n{history}\n</chat_history>",
)
History = list[dict[str, str]]


class Turn(NamedTuple):
    text: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


@pytest.fixture(scope="module")
def client(model_server: Server) -> OpenAI:
    return sdk(f"{model_server.url}/v1", model_server.api_key)


def chat(client: OpenAI, model: str, history: History) -> Turn:
    """One turn as the page asks for it."""
    asked: Any = {"model": model, "messages": history, "temperature": 0, "max_tokens": 12}
    stream = client.chat.completions.create(
        stream=True, stream_options={"include_usage": True}, **asked
    )
    text, usage = "", None
    for chunk in stream:
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        usage = chunk.usage or usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    details = usage.prompt_tokens_details
    assert details.cached_tokens is not None
    assert details.cache_write_tokens is not None
    assert details.cached_tokens + details.cache_write_tokens == usage.prompt_tokens
    return Turn(text, usage.prompt_tokens, details.cached_tokens, usage.completion_tokens)


def between(client: OpenAI, model: str, history: History) -> None:
    """The title and the tags, each a completion of its own that is not streamed."""
    words = "\n".join(f"{one['role'].upper()}: {one['content']}" for one in history)
    for task in TASKS:
        prompt = task.format(history=words)
        done = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": prompt}], max_tokens=8, stream=False
        )
        assert done.choices[0].message.content is not None


def test_02_open_webui_computes_only_what_is_new_in_each_turn(client: OpenAI):
    models = client.models.list().data
    model = models[0].id
    history: History = [{"role": "system", "content": "You keep a lighthouse."}]
    before = None
    for text in ("Who lives there?", "Since when?", "And in winter?"):
        history.append({"role": "user", "content": text})
        turn = chat(client, model, history)
        history.append({"role": "assistant", "content": turn.text})
        between(client, model, history)

        if before is not None:
            assert turn.cached_tokens >= before.prompt_tokens + before.output_tokens - 1
            assert turn.prompt_tokens > before.prompt_tokens + before.output_tokens
        before = turn
