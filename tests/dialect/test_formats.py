"""Structured output as the SDK asks for it, on the real model: `text.format`, `response_format`."""

import json
from typing import Any, Literal

import jsonschema
import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel
from sqlalchemy import func, select

from app.chat.asked import AnswerFormat
from app.db.base import Database
from app.db.models import Response
from app.errors import InvalidRequest
from engine.api import Rendered, RenderRequest
from engine.errors import InvalidGrammar
from tests.dialect.conftest import sdk
from tests.kit.domain import new_person, open_domain
from tests.kit.echo import EchoEngine
from tests.kit.server import Server

GREEDY: Any = {"temperature": 0}
ASK = "Tom is 40 years old and has a cat. Describe him."


class Person(BaseModel):
    name: str
    age: int
    pet: Literal["cat", "dog"]


SCHEMA: Any = {
    "type": "object",
    "properties": {
        "pet": {"enum": ["cat", "dog"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["pet", "age"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "name": "person", "schema": SCHEMA, "strict": True}


@pytest.fixture(scope="session")
def client(model_server: Server) -> OpenAI:
    return sdk(f"{model_server.url}/v1", model_server.api_key)


@pytest.fixture(scope="session")
def model(client: OpenAI) -> str:
    return client.models.list().data[0].id


def in_completions(schema: Any) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}}


def test_the_sdk_parses_a_response_into_its_own_type(client: OpenAI, model: str):
    parsed = client.responses.parse(model=model, input=ASK, text_format=Person, **GREEDY)

    assert isinstance(parsed.output_parsed, Person)
    assert parsed.status == "completed"
    assert json.loads(parsed.output_text) == parsed.output_parsed.model_dump()


def test_the_sdk_parses_a_chat_completion_into_its_own_type(client: OpenAI, model: str):
    parsed = client.beta.chat.completions.parse(
        model=model, messages=[{"role": "user", "content": ASK}], response_format=Person, **GREEDY
    )

    assert isinstance(parsed.choices[0].message.parsed, Person)
    assert parsed.choices[0].finish_reason == "stop"


def test_a_streamed_answer_is_the_same_json_piece_by_piece(client: OpenAI, model: str):
    asked: Any = {"model": model, "input": ASK, "text": {"format": FORMAT}, **GREEDY}
    plain = client.responses.create(**asked)

    with client.responses.stream(**asked) as stream:
        told = "".join(e.delta for e in stream if e.type == "response.output_text.delta")

    assert told == plain.output_text
    jsonschema.validate(json.loads(told), SCHEMA)


def test_it_holds_on_the_socket_and_the_next_turn_finds_the_answer(client: OpenAI):
    with client.responses.connect() as socket:
        socket.response.create(input=ASK, text={"format": FORMAT}, **GREEDY)
        first = _end(socket)
        socket.response.create(
            input="Thank you.", previous_response_id=first.id, max_output_tokens=4, **GREEDY
        )
        second = _end(socket)

    jsonschema.validate(json.loads(first.output_text), SCHEMA)
    before = first.usage
    assert second.usage.input_tokens_details.cached_tokens >= (
        before.input_tokens + before.output_tokens - 1
    )
    assert second.text.format.type == "text"


def _end(socket: Any) -> Any:
    for event in socket:
        if event.type in ("response.completed", "response.incomplete"):
            return event.response
        assert event.type not in ("error", "response.failed"), event
    raise AssertionError("the socket closed")


def test_a_response_repeats_its_format_as_it_came(client: OpenAI):
    plain = client.responses.create(input=ASK, text={"format": FORMAT}, **GREEDY)
    kept = client.responses.retrieve(plain.id)

    for told in (plain, kept):
        assert told.text is not None
        form: Any = told.text.format
        assert (form.type, form.name, form.strict) == ("json_schema", "person", True)
        assert json.dumps(form.schema_) == json.dumps(SCHEMA)


def test_a_json_object_is_any_object_on_both_routes(client: OpenAI, model: str):
    anything: Any = {"type": "json_object"}
    limits: Any = {"stop": ["}"], **GREEDY}

    answer = client.responses.create(
        input="Write JSON.", text={"format": anything}, extra_body=limits, max_output_tokens=60
    )
    completion = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Write JSON."}],
        response_format=anything,
        max_tokens=60,
        **limits,
    )

    assert answer.output_text.startswith("{")
    assert (completion.choices[0].message.content or "").startswith("{")
    assert answer.text is not None
    assert answer.text.format is not None
    assert answer.text.format.type == "json_object"


def test_an_answer_cut_at_its_limit_is_incomplete_and_says_why(client: OpenAI, model: str):
    cut = client.responses.create(input=ASK, text={"format": FORMAT}, max_output_tokens=3, **GREEDY)
    completion = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": ASK}],
        response_format=in_completions(SCHEMA),
        max_tokens=3,
        **GREEDY,
    )

    assert cut.status == "incomplete"
    assert cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"
    assert completion.choices[0].finish_reason == "length"


def test_logprobs_come_with_every_token_of_it(client: OpenAI, model: str):
    completion = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": ASK}],
        response_format=in_completions(SCHEMA),
        logprobs=True,
        top_logprobs=2,
        **GREEDY,
    )

    told = completion.choices[0].logprobs
    assert told is not None
    assert told.content is not None
    assert "".join(token.token for token in told.content[:-1]) == (
        completion.choices[0].message.content
    )


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "bogus"}, "bogus"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"$ref": "http://127.0.0.1:9/x.json"}, "x.json"),
        ({"type": "string", "pattern": "("}, "unclosed group"),
    ],
)
def test_a_schema_that_cannot_be_followed_is_refused_by_its_place_and_its_fault(
    client: OpenAI, model: str, schema: Any, words: str
):
    form: Any = {"format": {**FORMAT, "schema": schema}}
    with pytest.raises(openai.BadRequestError, match=words) as one:
        client.responses.create(input=ASK, text=form)
    with pytest.raises(openai.BadRequestError, match=words) as other:
        client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": ASK}],
            response_format=in_completions(schema),
        )
    with client.responses.connect() as socket:
        socket.response.create(input=ASK, text=form)
        event: Any = next(iter(socket))

    assert (one.value.code, one.value.param) == ("invalid_json_schema", "text.format.schema")
    assert other.value.code == "invalid_json_schema"
    assert other.value.param == "response_format.json_schema.schema"
    assert (event.type, event.error.code) == ("error", "invalid_json_schema")


def test_what_is_not_strict_is_held_to_as_far_as_it_can_be(client: OpenAI):
    schema = {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "maxItems": 2}
    loose: Any = {**FORMAT, "schema": schema, "strict": False}

    answer = client.responses.create(input="Count.", text={"format": loose}, **GREEDY)

    assert set(json.loads(answer.output_text)) <= {1, 2}


@pytest.mark.parametrize(
    ("form", "field"),
    [
        ({"type": "grammar"}, "text.format.type"),
        ({"type": "json_schema", "schema": {}}, "text.format.name"),
        ({"type": "json_schema", "name": "it"}, "text.format.schema"),
        ({"type": "json_schema", "name": "no spaces", "schema": {}}, "text.format.name"),
        ({"type": "json_schema", "name": "it", "schema": []}, "text.format.schema"),
    ],
)
def test_a_format_that_is_none_is_refused_by_its_field(client: OpenAI, form: Any, field: str):
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(input=ASK, text={"format": form})

    assert refused.value.param == field


class _Refusing(EchoEngine):
    async def render(self, request: RenderRequest) -> Rendered:
        if request.grammar is not None:
            raise InvalidGrammar("nothing satisfies it")
        return await super().render(request)


async def test_nothing_is_stored_of_a_turn_whose_schema_is_refused(db: Database):
    async with open_domain(db, _Refusing()) as domain:
        ann = await new_person(db)
        with pytest.raises(InvalidRequest, match="nothing satisfies it") as refused:
            await domain.respond(ann, "hello", format=AnswerFormat(name="it", schema="{}"))

    async with db.read() as session:
        assert await session.scalar(select(func.count()).select_from(Response)) == 0
    assert refused.value.field == "format"


async def test_the_format_of_a_stored_response_is_kept(db: Database):
    engine = EchoEngine()
    asked = AnswerFormat(name="it", schema='{"b": 1, "a": 2}', strict=True)
    async with open_domain(db, engine) as domain:
        ann = await new_person(db)
        response = await domain.respond(ann, "hello", format=asked)
        await domain.ended(ann, response)
        found = await domain.supervisor.response(ann, response.id)

    assert found.asked.format == asked
    assert engine.jobs[0].grammar == asked.grammar(ann.user_id)
