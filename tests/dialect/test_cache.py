"""What a request says about what is computed for it: keys, times to keep it, and where it may lie."""

from typing import Any

import msgspec
import openai
import pytest
from openai import OpenAI

from engine.api import Hold, RetentionClass
from tests.kit.echo import EchoEngine
from tests.kit.serving import Serving

HALF_AN_HOUR = Hold(retention=RetentionClass.KEPT, ttl_s=1_800.0)
LEFT = Hold(retention=RetentionClass.RECENT, ttl_s=60.0)


@pytest.fixture
def wishes(echo: EchoEngine, echo_server: Serving):
    """So many wishes for sessions of this test, each with its session.

    What earlier tests left to be let go may come meanwhile.
    """
    jobs, leases = len(echo.jobs), len(echo.leases)

    def own() -> list[tuple[str, Any]]:
        sessions = {job.session_id for job in echo.jobs[jobs:]}
        return [
            (one.subject_id, w) for one, w in echo.leases[leases:] if one.subject_id in sessions
        ]

    def heard(count: int) -> list[tuple[str, Any]]:
        echo_server.until(lambda: len(own()) >= count)
        return own()

    return heard


def complete(client: OpenAI, text: str, **asked: Any) -> None:
    said: Any = [{"role": "user", "content": text}]
    client.chat.completions.create(model="echo", messages=said, **asked)


@pytest.mark.parametrize(
    ("options", "ttl", "held_s"),
    [
        ({"ttl": "12h", "mode": "implicit"}, "12h", 43_200.0),
        ({"ttl": "30m"}, "30m", 1_800.0),
        ({"prewarm": True}, "30m", 1_800.0),
    ],
)
def test_a_response_is_held_for_as_long_as_was_asked(
    client: OpenAI, echo: EchoEngine, wishes: Any, *, options: Any, ttl: str, held_s: float
):
    made = client.responses.create(input="Hello", extra_body={"prompt_cache_options": options})

    [(session, wish)] = wishes(1)
    assert wish == Hold(retention=RetentionClass.KEPT, ttl_s=held_s)
    assert session == echo.jobs[-1].session_id
    for shown in (made, client.responses.retrieve(made.id)):
        assert shown.to_dict()["prompt_cache_options"] == {"mode": "implicit", "ttl": ttl}


def test_nothing_is_held_that_nobody_asked_for(client: OpenAI, echo: EchoEngine, wishes: Any):
    made = client.responses.create(input="Hello", prompt_cache_key="mine")

    assert wishes(0) == []
    assert made.prompt_cache_key == client.responses.retrieve(made.id).prompt_cache_key == "mine"
    assert made.to_dict()["prompt_cache_options"] is None


def test_a_key_holds_one_session_at_a_time(
    client: OpenAI, stranger: OpenAI, echo: EchoEngine, wishes: Any
):
    asked: Any = {"prompt_cache_key": "app", "extra_body": {"prompt_cache_options": {}}}

    complete(client, "First history", **asked)
    first = echo.jobs[-1].session_id
    wishes(1)
    complete(stranger, "Another's", **asked)
    others = echo.jobs[-1].session_id
    wishes(2)
    complete(client, "Second history", **asked)
    second = echo.jobs[-1].session_id

    assert wishes(4) == [
        (first, HALF_AN_HOUR),
        (others, HALF_AN_HOUR),
        (second, HALF_AN_HOUR),
        (first, LEFT),
    ]


def test_a_conversation_that_goes_on_keeps_its_hold(client: OpenAI, echo: EchoEngine, wishes: Any):
    asked: Any = {"prompt_cache_key": "chat", "extra_body": {"prompt_cache_options": {}}}
    first = client.responses.create(input="One", **asked)
    wishes(1)
    client.responses.create(input="Two", previous_response_id=first.id, **asked)

    assert [wish for _, wish in wishes(2)] == [HALF_AN_HOUR, HALF_AN_HOUR]


def test_what_is_to_stay_in_memory_is_written_to_no_disk(client: OpenAI, echo: EchoEngine):
    made = client.responses.create(input="Hello", prompt_cache_retention="in_memory")

    assert not echo.jobs[-1].durable
    assert made.prompt_cache_retention == "in_memory"
    client.responses.create(input="Hello", prompt_cache_retention="24h")
    assert echo.jobs[-1].durable


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"mode": "explicit"}, "unsupported_parameter"),
        ({"ttl": "1h"}, "invalid_value"),
        ({"prewarm": "yes"}, "invalid_value"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    client: OpenAI, echo: EchoEngine, options: Any, code: str
):
    for ask in (
        lambda: client.responses.create(input="x", extra_body={"prompt_cache_options": options}),
        lambda: complete(client, "x", extra_body={"prompt_cache_options": options}),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            ask()
        assert refused.value.code == code
        assert refused.value.param == f"prompt_cache_options.{next(iter(options))}"


# ---------------------------------------------------------------- comparisons


def compared_with(client: OpenAI, response_id: str, said: str, **asked: Any) -> Any:
    """What a response tells of itself beside another one, as it is made and as it is shown later."""
    options = {"comparison_response_id": response_id}
    made = client.responses.create(
        input=said, extra_body={"prompt_cache_options": options}, **asked
    )
    shown = client.responses.retrieve(made.id)
    assert shown.prompt_cache_diagnostics == made.prompt_cache_diagnostics
    assert made.prompt_cache_options.comparison_response_id == response_id
    return made.prompt_cache_diagnostics


def test_what_goes_on_from_a_response_is_a_hit(client: OpenAI, echo: EchoEngine):
    first = client.responses.create(input="Hello")

    told = compared_with(client, first.id, "More", previous_response_id=first.id)
    assert told.to_dict() == {"type": "cache_hit"}


def test_a_miss_names_how_much_is_shared_and_why_not_more(client: OpenAI, echo: EchoEngine):
    first = client.responses.create(input="The sea is blue", instructions="Be brief")

    other = compared_with(client, first.id, "The sea is grey", instructions="Be brief")
    sent, whole = (job.token_ids for job in echo.jobs[-2:])
    pairs = enumerate(zip(sent, whole, strict=True))
    shared = next(place for place, (left, right) in pairs if left != right)
    assert other.to_dict() == {
        "type": "cache_miss",
        "reason": "input_changed",
        "comparison_reusable_tokens": shared,
        "cache_missed_tokens": len(whole) - shared,
    }
    assert 0 < shared < len(whole)


def test_a_changed_model_is_told_before_all_else(
    client: OpenAI, echo: EchoEngine, monkeypatch: Any
):
    first = client.responses.create(input="Hello")
    card = msgspec.structs.replace(echo.card, model_fingerprint="another")
    monkeypatch.setattr(echo, "card", card)

    assert compared_with(client, first.id, "Goodbye").reason == "model_changed"


def test_turns_that_had_to_leave_are_told(client: OpenAI, echo: EchoEngine):
    long = "x" * 600
    first = client.responses.create(input=long)
    second = client.responses.create(input=long, previous_response_id=first.id)
    asked: Any = {"previous_response_id": second.id, "truncation": "auto"}

    assert compared_with(client, second.id, long * 2, **asked).reason == "context_compacted"


def test_what_is_gone_though_it_was_sent_again_is_no_miss_of_the_requests(
    client: OpenAI, echo: EchoEngine, echo_server: Serving
):
    first = client.responses.create(input="Hello")
    echo_server.call(echo.evict)

    told = compared_with(client, first.id, "More", previous_response_id=first.id)
    assert told.to_dict() == {"type": "unavailable"}


def test_only_ones_own_responses_can_be_compared_with(
    client: OpenAI, stranger: OpenAI, echo: EchoEngine
):
    first = stranger.responses.create(input="Hello")

    for named in (first.id, "resp_nowhere"):
        told = compared_with(client, named, "Hello")
        assert told.to_dict() == {"type": "comparison_response_not_found"}


def test_a_name_that_is_none_and_a_history_without_responses_are_refused(
    client: OpenAI, echo: EchoEngine
):
    """Chat completions name no responses, and have no place for what is told of one."""
    long: Any = {"prompt_cache_options": {"comparison_response_id": "r" * 101}}
    for ask, code in (
        (lambda: client.responses.create(input="x", extra_body=long), "invalid_value"),
        (lambda: complete(client, "x", extra_body=long), "unsupported_parameter"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            ask()
        assert refused.value.code == code
        assert refused.value.param == "prompt_cache_options.comparison_response_id"


def test_nothing_is_compared_that_nobody_asked_for(client: OpenAI, echo: EchoEngine):
    assert client.responses.create(input="Hello").prompt_cache_diagnostics is None
